//! Whether whoever connected may do what it wants: asked once for each stream that a client's message names, before the
//! message goes to the replica, and once more for what it listens to when rights change. A replica is asked about when
//! it connects, and when rights change; what it hands on was allowed where it came from.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, Resource, RightsChanges};
use tailwater_broadcast::Stream;
use tailwater_broadcast::limits::STREAMS_MAX;
use tailwater_broadcast::message::{Message, Role};
use tailwater_broadcast::region;

/// One connection's.
pub(crate) struct ReplicaGate {
    authorizer: Arc<dyn Authorizer>,
    peer: Peer,
    /// From before anything was asked.
    changes: RightsChanges,
    let_in: Mutex<LetIn>,
}

/// What a connection was let do for as long as it lasts.
#[derive(Default)]
struct LetIn {
    replicates: bool,
    /// Hears all streams.
    others: bool,
    /// Hears these: as many as there may be.
    streams: BTreeSet<Stream>,
}

impl ReplicaGate {
    /// Of a connection of `peer`.
    pub(crate) fn new(authorizer: Arc<dyn Authorizer>, peer: Peer) -> Self {
        let changes = authorizer.changes();
        Self { authorizer, peer, changes, let_in: Mutex::default() }
    }

    /// Whether it may connect, as what it says it is.
    pub(crate) fn admit(&self, role: &Role) -> Result<(), Denied> {
        match role {
            Role::Client(_) => self.ask("connect", Resource::Node),
            Role::Replica(_) => {
                self.ask("replicate", Resource::Node)?;
                self.let_in.lock().replicates = true;
                Ok(())
            }
        }
    }

    /// Whether it may say this.
    pub(crate) fn check(&self, message: &Message) -> Result<(), Denied> {
        match message {
            Message::Publish { stream, .. } => self.ask("publish", Resource::Broadcast(stream.as_str())),
            Message::Listen { positions, others } => {
                self.listen(*others, positions.iter().map(|(stream, _)| stream))
            }
            // A member is told how far all streams are, and asks for what it wants of them.
            Message::Share { positions, .. } => self.listen(true, positions.iter().map(|(stream, _)| stream)),
            Message::Region(region::Message::Request { stream, .. }) => {
                self.ask("listen", Resource::Broadcast(stream.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// Completes when something that it was let do is not let any more, and says why.
    pub(crate) async fn revoked(&self) -> Denied {
        let mut changes = self.changes.clone();
        loop {
            changes.changed().await;
            let let_in = self.let_in.lock();
            let replicates = match let_in.replicates {
                true => self.ask("replicate", Resource::Node),
                false => Ok(()),
            };
            let asked = replicates.and_then(|()| self.ask_to_listen(let_in.others, &let_in.streams));
            if let Err(denied) = asked {
                return denied;
            }
        }
    }

    fn listen<'a>(
        &self,
        others: bool,
        streams: impl Iterator<Item = &'a Stream> + Clone,
    ) -> Result<(), Denied> {
        let mut let_in = self.let_in.lock();
        self.ask_to_listen(others, streams.clone())?;
        // The replica refuses who names more at once, and says so.
        if streams.clone().count() > STREAMS_MAX {
            return Ok(());
        }
        let_in.others |= others;
        let_in.streams.extend(streams.cloned());
        match let_in.streams.len() > STREAMS_MAX {
            true => {
                Err(Denied(format!("more than {STREAMS_MAX} streams were asked for over one connection")))
            }
            false => Ok(()),
        }
    }

    fn ask_to_listen<'a>(
        &self,
        others: bool,
        streams: impl IntoIterator<Item = &'a Stream>,
    ) -> Result<(), Denied> {
        if others {
            self.ask("listen", Resource::Node)?;
        }
        let mut streams = streams.into_iter();
        streams.try_for_each(|stream| self.ask("listen", Resource::Broadcast(stream.as_str())))
    }

    fn ask(&self, operation: &str, resource: Resource<'_>) -> Result<(), Denied> {
        let request = AccessRequest { protocol: Protocol::Broadcast, operation, resource };
        self.authorizer.authorize(&self.peer, request)
    }
}
