//! Whether whoever connected may do what it wants: asked once for each stream that a client's message names, before the
//! message goes to the replica. A replica is asked about when it connects; what it hands on was allowed where it came
//! from.

use std::sync::Arc;

use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, Resource};
use tailwater_broadcast::message::{Message, Role};
use tailwater_broadcast::region;

/// One connection's.
pub(crate) struct ReplicaGate {
    authorizer: Arc<dyn Authorizer>,
    peer: Peer,
}

impl ReplicaGate {
    /// Of a connection of `peer`.
    pub(crate) fn new(authorizer: Arc<dyn Authorizer>, peer: Peer) -> Self {
        Self { authorizer, peer }
    }

    /// Whether it may connect, as what it says it is.
    pub(crate) fn admit(&self, role: &Role) -> Result<(), Denied> {
        match role {
            Role::Client(_) => self.ask("connect", Resource::Node),
            Role::Replica(_) => self.ask("replicate", Resource::Node),
        }
    }

    /// Whether it may say this.
    pub(crate) fn check(&self, message: &Message) -> Result<(), Denied> {
        match message {
            Message::Publish { stream, .. } => self.ask("publish", Resource::Broadcast(stream.as_str())),
            Message::Listen { positions, others } => {
                if *others {
                    self.ask("listen", Resource::Node)?;
                }
                self.listen(positions.iter().map(|(stream, _)| stream.as_str()))
            }
            // A member is told how far all streams are, and asks for what it wants of them.
            Message::Share { positions, .. } => {
                self.ask("listen", Resource::Node)?;
                self.listen(positions.iter().map(|(stream, _)| stream.as_str()))
            }
            Message::Region(region::Message::Request { stream, .. }) => {
                self.ask("listen", Resource::Broadcast(stream.as_str()))
            }
            _ => Ok(()),
        }
    }

    fn listen<'a>(&self, mut streams: impl Iterator<Item = &'a str>) -> Result<(), Denied> {
        streams.try_for_each(|stream| self.ask("listen", Resource::Broadcast(stream)))
    }

    fn ask(&self, operation: &str, resource: Resource<'_>) -> Result<(), Denied> {
        let request = AccessRequest { protocol: Protocol::Broadcast, operation, resource };
        self.authorizer.authorize(&self.peer, request)
    }
}
