//! Sends followers and subscribers what is there for them, as far as their connections take it.
//!
//! A follower is sent, each in its turn:
//! - who published what it has no other way to know (`greeting.rs`), a joining one once it has all events,
//! - the events that the disk here has and the follower has not been sent,
//! - if it joins, what is held without it,
//! - the token, if it is to become the tail.
//!
//! Subscribers are sent what is held, by the tail only. Where a connection is full no stream keeps another one waiting:
//! the next turn begins with the stream after the one that filled it.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::message::{Chain, Message, ReplicaId, Role};
use crate::name::Stream;
use crate::positions::Position;
use crate::replica::chain::{Handover, persisted};
use crate::replica::follower::StreamFollower;
use crate::replica::greeting::Greeting;
use crate::replica::lineage::Lineages;
use crate::replica::stream::StreamState;
use crate::replica::{
    Config, Connection, ConnectionId, MESSAGE_BYTES, Peer, Replica, ReplicaOutput, WAITING_BYTES_MAX,
    size_of_message,
};

/// What a replica has to send, and by what it decides who is sent it.
struct Pump<'a> {
    config: &'a Config,
    chain: &'a Chain,
    lineages: &'a Lineages,
    streams: &'a BTreeMap<Stream, StreamState>,
    on_disk: &'a BTreeMap<Stream, u64>,
    is_tail: bool,
    handover: &'a mut Option<Handover>,
}

/// A connection that is sent something.
struct PumpTo<'a> {
    id: ConnectionId,
    waiting: &'a mut usize,
    outputs: &'a mut Vec<ReplicaOutput>,
}

impl PumpTo<'_> {
    fn send(&mut self, message: Message) {
        *self.waiting += size_of_message(&message);
        self.outputs.push(ReplicaOutput::Send(self.id, message));
    }

    fn is_full(&self) -> bool {
        *self.waiting >= WAITING_BYTES_MAX
    }
}

impl Replica {
    /// Sends followers and subscribers what is there for them, as far as their connections take it.
    pub(super) fn pump(&mut self) {
        let is_tail = self.is_tail();
        let Self { config, chain, lineages, streams, persisted: on_disk, handover, .. } = self;
        let Self { connections, receivers, outputs, .. } = self;
        receivers.retain(|id| connections.get(id).is_some_and(Connection::receives));
        let mut pump = Pump { config, chain, lineages, streams, on_disk, is_tail, handover };
        for &id in receivers.iter() {
            let Some(connection) = connections.get_mut(&id) else { continue };
            let Connection { peer, waiting, follows, subscriptions, told_removed, filled, .. } = connection;
            let follower = match peer {
                Peer::In(_, Role::Replica(replica)) => Some(*replica),
                _ => None,
            };
            let mut to = PumpTo { id, waiting, outputs };
            if let (Some(replica), Some(follows)) = (follower, follows)
                && pump.is_behind_this(replica, follows)
            {
                pump.feed(&mut to, replica, follows);
            }
            if is_tail {
                let told_removed = follower.is_some().then_some(told_removed);
                pump.serve(&mut to, told_removed, subscriptions, filled);
            }
        }
    }
}

impl Pump<'_> {
    fn lineage_of(&self, stream: &Stream) -> u64 {
        self.lineages.of(&self.config.region, stream)
    }

    /// How far a stream may be sent to followers.
    fn end_of(&self, stream: &Stream, state: &StreamState) -> u64 {
        state.last().min(persisted(&self.config.durability, self.on_disk, stream))
    }

    /// Whether a follower is in this replica's epoch, and the next one of its chain.
    fn is_behind_this(&self, replica: ReplicaId, follows: &StreamFollower) -> bool {
        let before = self.chain.before(replica);
        follows.epoch == self.chain.epoch && before.is_some_and(|member| member.id == self.config.id)
    }

    /// Sends a follower all that is for it.
    fn feed(&mut self, to: &mut PumpTo<'_>, replica: ReplicaId, follows: &mut StreamFollower) {
        let is_member = self.chain.place(replica).is_some();
        self.greet(to, replica, follows, is_member);
        let is_greeted = follows.greeting.as_ref().is_some_and(Greeting::is_told);
        // A member is told who published what it has no other way to know before it gets it.
        let may_send = is_greeted || !is_member;
        let has_all = may_send && self.append_to(to, follows, is_member);
        if !is_member {
            self.tell_held_without(to, follows);
        }
        let is_next_tail = has_all && self.chain.tail() == Some(replica);
        if is_greeted && !follows.token && (is_next_tail || !is_member) {
            follows.token = true;
            to.send(Message::Token { epoch: self.chain.epoch });
        }
    }

    /// Tells a follower who published what is settled: a member first of all, a joining one once this tail hands over
    /// to it.
    fn greet(
        &mut self,
        to: &mut PumpTo<'_>,
        replica: ReplicaId,
        follows: &mut StreamFollower,
        is_member: bool,
    ) {
        if follows.greeting.is_none() && (is_member || self.hands_over(replica, follows)) {
            follows.greeting = Some(Greeting::of(self.streams, &self.chain.region));
        }
        let Some(greeting) = &mut follows.greeting else { return };
        let enough = WAITING_BYTES_MAX.min(*to.waiting + MESSAGE_BYTES);
        while *to.waiting < enough
            && let Some(message) = greeting.next(self.streams)
        {
            to.send(message);
        }
    }

    /// Hands over to a joining replica that has been sent everything and holds what that was, unless it is another
    /// one's turn. Answers whether it does.
    fn hands_over(&mut self, replica: ReplicaId, follows: &mut StreamFollower) -> bool {
        if !self.is_tail || self.handover.as_ref().is_some_and(|handover| handover.to != replica) {
            return false;
        }
        let mut has_all = self.streams.iter().map(|(stream, state)| {
            follows.sent_of(stream, self.lineage_of(stream)) >= self.end_of(stream, state)
        });
        if !has_all.all(|has| has) || !follows.holds_everything() {
            return false;
        }
        // From here on everything new waits for it, and carries who published it; also while it has no connection, as
        // the service may know already that it caught up. Each connection tells it anew.
        self.handover.get_or_insert(Handover { to: replica, ready: false });
        true
    }

    /// Sends a follower the events that it lacks. Answers whether it has been sent all of them.
    fn append_to(&self, to: &mut PumpTo<'_>, follows: &mut StreamFollower, is_member: bool) -> bool {
        let filled = follows.filled.take();
        let mut has_all = true;
        for part in turns(filled.as_ref()) {
            for (stream, state) in self.streams.range::<Stream, _>(part) {
                has_all &= self.append_of(stream, state, to, follows, is_member);
            }
        }
        follows.filled = follows.filled.take().or(filled);
        has_all
    }

    /// The same of one stream.
    fn append_of(
        &self,
        stream: &Stream,
        state: &StreamState,
        to: &mut PumpTo<'_>,
        follows: &mut StreamFollower,
        is_member: bool,
    ) -> bool {
        let (epoch, lineage, last) = (self.chain.epoch, self.lineage_of(stream), self.end_of(stream, state));
        let takes_more =
            |to: &PumpTo<'_>, follows: &StreamFollower| !to.is_full() && (is_member || follows.has_room());
        let mut sent = follows.sent_of(stream, lineage);
        self.tell_removed(stream, state, to, &mut follows.told_removed);
        while sent < last && takes_more(to, follows) {
            let next = state.next_after(sent, MESSAGE_BYTES);
            let Some(next) = next.filter(|next| next.batch.last <= last) else { break };
            if follows.told_applied.insert(stream.clone()) {
                let last = Position { lineage, seq: state.history.applied() };
                to.send(Message::Applied { epoch, stream: stream.clone(), last });
            }
            sent = next.batch.last;
            if !is_member {
                follows.sent_while_joining(stream, Position { lineage, seq: sent }, next.batch.bytes.len());
            }
            let (stream, origin, batch) = (stream.clone(), next.origin, next.batch);
            to.send(Message::Append { epoch, stream: stream.clone(), lineage, origin, batch });
            if !takes_more(to, follows) {
                follows.filled = Some(stream);
            }
        }
        if let Some(position) = follows.sent.get_mut(stream) {
            position.seq = sent;
        }
        sent >= last
    }

    /// Tells a replica up to where retention has removed a stream, if that is news.
    fn tell_removed(
        &self,
        stream: &Stream,
        state: &StreamState,
        to: &mut PumpTo<'_>,
        told: &mut BTreeMap<Stream, u64>,
    ) {
        let seq = state.history.removed();
        if seq == 0 || to.is_full() || told.get(stream).is_some_and(|told| *told >= seq) {
            return;
        }
        told.insert(stream.clone(), seq);
        let (epoch, last) = (self.chain.epoch, Position { lineage: self.lineage_of(stream), seq });
        to.send(Message::Removed { epoch, stream: stream.clone(), last });
    }

    /// Tells a joining replica how far the chain holds streams without it, where that is news.
    fn tell_held_without(&self, to: &mut PumpTo<'_>, follows: &mut StreamFollower) {
        let held = self.streams.iter().filter(|(_, state)| state.held() > 0).map(|(stream, state)| {
            (stream, Position { lineage: self.lineage_of(stream), seq: state.held() })
        });
        let counts: Vec<(Stream, Position)> = held
            .filter(|(stream, held)| follows.told_held.get(*stream) != Some(held))
            .map(|(stream, held)| (stream.clone(), held))
            .collect();
        if !counts.is_empty() {
            follows.told_held.extend(counts.iter().cloned());
            to.send(Message::Held { epoch: self.chain.epoch, counts });
        }
    }

    /// Sends a subscriber what is held of its streams beyond where it is; a replica is told what was removed as well.
    fn serve(
        &self,
        to: &mut PumpTo<'_>,
        mut told_removed: Option<&mut BTreeMap<Stream, u64>>,
        subscriptions: &mut BTreeMap<Stream, Position>,
        filled: &mut Option<Stream>,
    ) {
        let filled_last = filled.take();
        for part in turns(filled_last.as_ref()) {
            for (stream, sent) in subscriptions.range_mut::<Stream, _>(part) {
                let Some(state) = self.streams.get(stream) else { continue };
                if self.serve_of(stream, state, to, told_removed.as_deref_mut(), sent) {
                    *filled = Some(stream.clone());
                }
            }
        }
        *filled = filled.take().or(filled_last);
    }

    /// The same of one stream. Answers whether that filled the connection.
    fn serve_of(
        &self,
        stream: &Stream,
        state: &StreamState,
        to: &mut PumpTo<'_>,
        told_removed: Option<&mut BTreeMap<Stream, u64>>,
        sent: &mut Position,
    ) -> bool {
        let lineage = self.lineage_of(stream);
        if sent.lineage != lineage {
            // A client is told by what comes. A proxy drops what it has first, and asks anew.
            if sent.lineage > lineage || told_removed.is_some() {
                return false;
            }
            *sent = Position { lineage, seq: 0 };
        }
        if let Some(told) = told_removed {
            self.tell_removed(stream, state, to, told);
        }
        let was_full = to.is_full();
        while sent.seq < state.held() && !to.is_full() {
            let Some(batch) = state.history.read(sent.seq, u64::MAX, MESSAGE_BYTES) else { break };
            sent.seq = batch.last;
            to.send(Message::Events { stream: stream.clone(), lineage, batch });
        }
        !was_full && to.is_full()
    }
}

/// The streams after the one that filled a connection last, then the others: none keeps another one waiting.
fn turns(filled: Option<&Stream>) -> impl Iterator<Item = (Bound<&Stream>, Bound<&Stream>)> {
    let first = (filled.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
    std::iter::once(first).chain(filled.map(|filled| (Bound::Unbounded, Bound::Included(filled))))
}
