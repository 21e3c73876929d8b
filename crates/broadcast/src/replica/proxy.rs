//! The proxy-level protocol (section 3.1): the head subscribes each stream of another region at whichever proxy
//! is ahead in it, directly or over other regions, and moves when another one gets far enough ahead.
//!
//! The paper's rule is [`Expects::is_passed`]. Four things it leaves open:
//! - Two proxies that are as far may pass each other's threshold, subscribe to each other, and then both wait until
//!   somebody else passes it again. So only one that has more than we do is subscribed to, or as much if the stream is
//!   its own region's: what it has is never from us. That also brings a stream back to the direct way once that is healed.
//! - A source that died or fell silent may have advertised more than anybody else will have soon. So a source
//!   whose connection ended, or that said nothing for `silence_ms`, is none, and the next one that has more is
//!   subscribed to at once.
//! - What comes may be more than the chain takes. So a stream of which too much is on its way down the chain is asked
//!   of nobody until half of that has left.
//! - A subscription always begins at our own count, and what does not continue it is left out; then the
//!   subscription is made again.

use crate::batch::Batch;
use crate::limits::STREAMS_MAX;
use crate::message::{FROM_NOW, Message, Role};
use crate::name::Stream;
use crate::replica::stream::Collects;
use crate::replica::{Connection, ConnectionId, Peer, Replica};

/// From whom a stream's events are expected.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expects {
    /// The connection subscribed to.
    source: Option<ConnectionId>,
    /// How far the stream was when it was last advertised further, and when that was.
    seq: u64,
    time_ms: u64,
}

impl Expects {
    /// Figure 1's condition: `cnt > expects.seq + C / (T - expects.time)`.
    fn is_passed(&self, count: u64, now_ms: u64, damping: f64) -> bool {
        let seconds = now_ms.saturating_sub(self.time_ms) as f64 / 1000.0;
        seconds > 0.0 && count as f64 > self.seq as f64 + damping / seconds
    }
}

impl Replica {
    /// Says that it is alive, and if it is the tail how far it is: to all replicas, and to clients if asked to.
    pub(super) fn advertise(&mut self, to_clients: bool) {
        let wanted = |connection: &Connection| match connection.peer {
            Peer::In(_, Role::Replica(_)) => true,
            Peer::In(_, Role::Client(_)) => to_clients,
            Peer::Out(..) => false,
        };
        let to: Vec<ConnectionId> =
            self.connections.iter().filter(|(_, c)| wanted(c)).map(|(id, _)| *id).collect();
        for connection in to {
            self.advertise_to(connection);
        }
    }

    pub(super) fn advertise_to(&mut self, connection: ConnectionId) {
        let Some(Peer::In(region, role)) = self.connections.get(&connection).map(|c| &c.peer) else { return };
        let is_client = matches!(role, Role::Client(_));
        let theirs = region.clone();
        let mut counts = Vec::new();
        if self.is_tail() && (is_client || theirs != self.config.region) {
            // Of its own streams another region's proxy knows best.
            let told = self.streams.iter().filter(|(stream, _)| is_client || stream.region() != theirs);
            counts.extend(told.map(|(stream, state)| (stream.clone(), state.held())));
        }
        self.send(connection, Message::Advertise { counts });
    }

    /// A tail of another region says how far it is.
    pub(super) fn advertised(&mut self, from: ConnectionId, region: &str, counts: Vec<(Stream, u64)>) {
        if !self.is_head() || region == self.config.region {
            return;
        }
        // One that says nothing of a stream any more is not the tail any more, and sends none of it.
        for (stream, expects) in &mut self.expects {
            if expects.source == Some(from) && !counts.iter().any(|(told, _)| told == stream) {
                expects.source = None;
            }
        }
        for (stream, count) in counts {
            if self.is_local(&stream) {
                continue;
            }
            if !self.streams.contains_key(&stream) && self.streams.len() >= STREAMS_MAX {
                continue;
            }
            let state = self.state_of(&stream);
            let (own, has_room) = (state.last(), state.has_room());
            let (now_ms, damping) = (self.now_ms, self.config.damping);
            let expects = self.expects.entry(stream.clone()).or_default();
            let has_more = count > own || (count == own && region == stream.region());
            let (move_here, old) = match expects.source {
                None if has_more && has_room => (true, None),
                Some(source) if (source == from || has_more) && expects.is_passed(count, now_ms, damping) => {
                    (source != from, Some(source))
                }
                _ => continue,
            };
            expects.seq = count.max(expects.seq);
            expects.time_ms = now_ms;
            if !move_here {
                continue;
            }
            expects.source = Some(from);
            if let Some(old) = old {
                self.counters.moved += 1;
                self.send(old, Message::Unsubscribe { stream: stream.clone() });
            }
            self.send(from, Message::Subscribe { stream, after: own });
        }
    }

    /// Events of another region's stream.
    pub(super) fn remote_events(&mut self, from: ConnectionId, stream: &Stream, batch: &Batch) {
        if !self.is_head() || self.is_local(stream) || !self.streams.contains_key(stream) {
            return;
        }
        let state = self.state_of(stream);
        if state.is_full() {
            if let Some(expects) = self.expects.get_mut(stream)
                && expects.source.take_if(|source| *source == from).is_some()
            {
                self.send(from, Message::Unsubscribe { stream: stream.clone() });
            }
            return;
        }
        match state.store(batch, None, Collects::UNKNOWN) {
            Ok(true) => {
                self.counters.remote += u64::from(batch.count);
                self.stored(stream.clone(), batch.clone(), None);
            }
            Ok(false) => {}
            Err(_) => {
                self.counters.gaps += 1;
                let after = self.state_of(stream).last();
                if self.expects.get(stream).is_some_and(|expects| expects.source == Some(from)) {
                    self.send(from, Message::Subscribe { stream: stream.clone(), after });
                }
            }
        }
    }

    /// Somebody wants a stream's events from the one after `after` on.
    pub(super) fn subscribe(&mut self, from: ConnectionId, stream: Stream, after: u64) {
        if !self.is_tail() {
            return;
        }
        if let Some(connection) = self.connections.get_mut(&from)
            && (connection.subscriptions.len() < STREAMS_MAX
                || connection.subscriptions.contains_key(&stream))
        {
            connection.subscriptions.insert(stream, after);
        }
    }

    /// A client wants events. One that asks a replica which is not the tail is told the chain.
    pub(super) fn listen(&mut self, from: ConnectionId, positions: Vec<(Stream, u64)>, others: bool) {
        if !self.is_tail() {
            self.send(from, Message::Chain(self.chain.clone()));
            return;
        }
        let Some(connection) = self.connections.get_mut(&from) else { return };
        connection.subscriptions.clear();
        connection.listens_to_all = others;
        for (stream, after) in positions.into_iter().take(STREAMS_MAX) {
            let after = match after {
                FROM_NOW => self.streams.get(&stream).map_or(0, |state| state.held()),
                after => after,
            };
            connection.subscriptions.insert(stream, after);
        }
        let begins =
            connection.subscriptions.iter().map(|(stream, after)| (stream.clone(), *after)).collect();
        if others {
            for stream in self.streams.keys() {
                if !connection.subscriptions.contains_key(stream) {
                    connection.subscriptions.insert(stream.clone(), 0);
                }
            }
        }
        self.send(from, Message::Listening { positions: begins });
    }

    /// The region whose proxy a stream of another region is fetched from at the moment; the head knows.
    pub fn source_of(&self, stream: &Stream) -> Option<&str> {
        let source = self.expects.get(stream)?.source?;
        match &self.connections.get(&source)?.peer {
            Peer::Out(region, _) => Some(region),
            Peer::In(..) => None,
        }
    }

    /// A connection is gone: nothing is expected from it any more.
    pub(super) fn source_lost(&mut self, connection: ConnectionId) {
        for expects in self.expects.values_mut() {
            if expects.source == Some(connection) {
                expects.source = None;
            }
        }
    }

    /// This replica is not the head any more: what it subscribed to would be sent for nothing.
    pub(super) fn unsubscribe_all(&mut self) {
        for (stream, expects) in std::mem::take(&mut self.expects) {
            if let Some(source) = expects.source {
                self.send(source, Message::Unsubscribe { stream });
            }
        }
    }

    /// Gives up sources that said nothing for too long.
    pub(super) fn watch_sources(&mut self) {
        let (now_ms, silence_ms) = (self.now_ms, self.config.silence_ms);
        let mut silent = Vec::new();
        for (stream, expects) in &mut self.expects {
            let heard = expects.source.and_then(|source| self.connections.get(&source)).map(|c| c.heard_ms);
            if heard.is_none_or(|heard| now_ms.saturating_sub(heard) > silence_ms) {
                silent.extend(expects.source.take().map(|source| (source, stream.clone())));
            }
        }
        // When it speaks again, it would go on beside another one.
        for (source, stream) in silent {
            self.send(source, Message::Unsubscribe { stream });
        }
    }
}
