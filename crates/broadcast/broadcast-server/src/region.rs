//! The clients of the region that share events among each other ([`tailwater_broadcast::region`]): the replica that is
//! the chain's tail tells the first few of what is new, and answers those that nobody else can answer.
//!
//! - There is a [`ProxyPeer`] while the replica is the tail. Before and after, who asks is told the chain, and goes to
//!   the tail.
//! - A member connects to the proxy and stays connected; nobody is connected to from here.
//! - What waits for a member's connection is bounded: one that has too much is told and answered nothing until it has
//!   read, and cut off if it reads nothing for some seconds.

use std::collections::BTreeMap;

use tailwater_broadcast::TooManyStreams;
use tailwater_broadcast::message::{self, Message, Reason};
use tailwater_broadcast::name::Stream;
use tailwater_broadcast::positions::Position;
use tailwater_broadcast::region::{self, Member, Options, ProxyPeer};
use tailwater_broadcast::replica::{
    ConnectionId, Peer, Replica, ReplicaOutput, WAITING_BYTES_MAX, size_of_message,
};

/// How long a member may leave unread what waits for it, and how often such ones are looked for, in milliseconds.
const STALLED_MS_MAX: u64 = 5_000;
const LOOK_MS: u64 = 250;
/// Members of the proxy's view at most, and milliseconds between two messages about progress to one of them.
const VIEW_MAX: usize = 20;
const NOTIFY_MS: u64 = 5;

/// The proxy's side, as a step function.
pub struct Region {
    me: Member,
    options: Options,
    seed: u64,
    /// While this replica is the tail.
    proxy: Option<ProxyPeer>,
    /// The lineage of what the proxy was told of.
    lineage: u64,
    members: BTreeMap<ConnectionId, Joined>,
    /// Where a member is connected.
    connections: BTreeMap<u64, ConnectionId>,
    /// When to look for members that are stalled.
    look_at_ms: u64,
    outputs: Vec<ReplicaOutput>,
    outbox: Vec<region::PeerOutput>,
    requests: u64,
    bytes: u64,
}

/// A member's connection.
struct Joined {
    member: Member,
    waiting: usize,
    paused: bool,
    /// When it last read something, or had something to read.
    moved_ms: u64,
}

/// The region's clients that share events among each other, as the tail sees them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionSnapshot {
    /// Those that are connected.
    pub members: usize,
    /// Those of them that are told first of what is new.
    pub view: usize,
    /// Requests of them that stand: how often each event is sent from here as it comes, over all streams.
    pub standing: usize,
    /// Their requests.
    pub requests: u64,
    /// Of those, how many were dropped because they waited too long or were too many.
    pub dropped: u64,
    /// Events sent to them.
    pub events: u64,
    /// Bytes of those, as messages.
    pub bytes: u64,
    /// Times that they were not told of a stream, as there were too many.
    pub left_out: u64,
}

impl Region {
    /// Of a replica that is no tail yet. `seed` makes its choices.
    pub fn new(me: &message::Member, seed: u64) -> Self {
        Self {
            me: Member { id: me.id, address: me.address.as_str().into() },
            // It is one for all of them, and the first that has news: it knows more, and tells sooner.
            options: Options { view_max: VIEW_MAX, notify_ms: NOTIFY_MS, ..Options::default() },
            seed,
            proxy: None,
            lineage: 0,
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            look_at_ms: 0,
            outputs: Vec::new(),
            outbox: Vec::new(),
            requests: 0,
            bytes: 0,
        }
    }

    /// When [`outputs`](Self::outputs) has to be asked for at the latest, in milliseconds.
    pub fn due_ms(&self) -> u64 {
        self.proxy.as_ref().map_or(u64::MAX, ProxyPeer::due_ms)
    }

    /// All replicas hold more of a stream.
    pub fn held(&mut self, stream: &Stream, replica: &Replica) {
        if let Some(proxy) = &mut self.proxy {
            proxy.appended(stream, held(replica, stream), &mut self.outbox);
        }
    }

    /// A client wants to take part.
    pub fn shared(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        member: Member,
        positions: Vec<(Stream, Position)>,
        replica: &mut Replica,
    ) {
        self.follow_role(now_ms, replica);
        let is_client = matches!(replica.peer(from), Some(Peer::In(_, message::Role::Client(_))));
        if !is_client || member.id == self.me.id {
            self.outputs.push(ReplicaOutput::Close(
                from,
                "only a client shares events, by a number of its own".into(),
            ));
            return;
        }
        if self.members.get(&from).is_some_and(|joined| joined.waiting > WAITING_BYTES_MAX) {
            self.outputs.push(ReplicaOutput::Close(from, "it does not read what it is answered".into()));
            return;
        }
        let Some(proxy) = &mut self.proxy else {
            replica.tell_chain(from);
            return;
        };
        if let Err(too_many) = TooManyStreams::check(positions.len()) {
            let (reason, text) = (Reason::Invalid, too_many.to_string());
            self.outputs.push(ReplicaOutput::Send(from, Message::ListenRefused { reason, text }));
            return;
        }
        let begins = positions.into_iter().map(|at| replica.begins(at));
        let listening = Message::Listening { positions: begins.collect() };
        // The same one on another connection, while the loss of the first one is not known yet.
        if let Some(old) = self.connections.insert(member.id, from).filter(|old| *old != from) {
            self.members.remove(&old);
            self.outputs.push(ReplicaOutput::Close(old, "its client has another connection".into()));
        }
        let joined = Joined { member: member.clone(), waiting: 0, paused: false, moved_ms: now_ms };
        let joined = self.members.entry(from).or_insert(joined);
        joined.waiting += size_of_message(&listening);
        if joined.member.id != member.id {
            self.connections.remove(&joined.member.id);
            joined.member = member.clone();
        }
        self.outputs.push(ReplicaOutput::Send(from, listening));
        proxy.connected(now_ms, &member, replica, &mut self.outbox);
    }

    /// A member says something to the proxy.
    pub fn receive(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        message: region::Message,
        replica: &mut Replica,
    ) {
        let (Some(proxy), Some(joined)) = (&mut self.proxy, self.members.get(&from)) else {
            // It was not the tail, or not any more.
            replica.tell_chain(from);
            return;
        };
        self.requests += u64::from(matches!(message, region::Message::Request { .. }));
        proxy.receive(now_ms, joined.member.id, message, replica, &mut self.outbox);
    }

    /// Bytes of somebody else's message wait for a connection, maybe a member's.
    pub fn sent(&mut self, to: ConnectionId, bytes: usize) {
        if let Some(joined) = self.members.get_mut(&to) {
            joined.waiting += bytes;
        }
    }

    /// So many bytes of a connection's messages have left.
    pub fn drained(&mut self, now_ms: u64, id: ConnectionId, bytes: usize, replica: &Replica) {
        let Some(joined) = self.members.get_mut(&id) else { return };
        joined.waiting = joined.waiting.saturating_sub(bytes);
        joined.moved_ms = now_ms;
        if joined.paused && joined.waiting < WAITING_BYTES_MAX / 2 {
            joined.paused = false;
            if let Some(proxy) = &mut self.proxy {
                proxy.pause(now_ms, joined.member.id, false, replica, &mut self.outbox);
            }
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, now_ms: u64, id: ConnectionId, replica: &Replica) {
        let Some(joined) = self.members.remove(&id) else { return };
        if self.connections.get(&joined.member.id) == Some(&id) {
            self.connections.remove(&joined.member.id);
        }
        if let Some(proxy) = &mut self.proxy {
            proxy.disconnected(now_ms, joined.member.id, replica, &mut self.outbox);
        }
    }

    /// Tells the replica how far those are that are fed here, by which it answers publishers. With each tick.
    pub fn tell_readers(&self, replica: &mut Replica) {
        let Some(proxy) = &self.proxy else { return };
        let own: Vec<Stream> = replica.own_streams().cloned().collect();
        own.iter().for_each(|stream| replica.readers_have(stream, proxy.fed_up_to(stream)));
    }

    /// What is to be done after the inputs so far.
    pub fn outputs(&mut self, now_ms: u64, replica: &Replica) -> Vec<ReplicaOutput> {
        self.follow_role(now_ms, replica);
        self.send_all(now_ms, replica);
        if let Some(proxy) = &mut self.proxy
            && proxy.due_ms() <= now_ms
        {
            proxy.tick(now_ms, replica, &mut self.outbox);
        }
        self.send_all(now_ms, replica);
        if now_ms >= self.look_at_ms {
            self.look_at_ms = now_ms + LOOK_MS;
            self.end_stalled(now_ms, replica);
        }
        std::mem::take(&mut self.outputs)
    }

    fn end_stalled(&mut self, now_ms: u64, replica: &Replica) {
        let stalled =
            |joined: &Joined| joined.paused && now_ms.saturating_sub(joined.moved_ms) > STALLED_MS_MAX;
        let stalled: Vec<ConnectionId> =
            self.members.iter().filter(|(_, joined)| stalled(joined)).map(|(id, _)| *id).collect();
        for id in stalled {
            self.outputs.push(ReplicaOutput::Close(id, "it does not read what it is sent".into()));
            self.closed(now_ms, id, replica);
        }
    }

    fn send_all(&mut self, now_ms: u64, replica: &Replica) {
        // Who can't be reached, or has enough, changes what is to be sent.
        while !self.outbox.is_empty() {
            for output in std::mem::take(&mut self.outbox) {
                if let region::PeerOutput::Send { to, message } = output {
                    self.send(now_ms, to, message, replica);
                }
            }
        }
    }

    fn send(&mut self, now_ms: u64, to: u64, message: region::Message, replica: &Replica) {
        let Some(proxy) = &mut self.proxy else { return };
        let connection = self.connections.get(&to).copied();
        let Some((id, joined)) = connection.and_then(|id| Some((id, self.members.get_mut(&id)?))) else {
            proxy.disconnected(now_ms, to, replica, &mut self.outbox);
            return;
        };
        if matches!(message, region::Message::Events { .. }) {
            self.bytes += message.size() as u64;
        }
        let message = Message::Region(message);
        joined.waiting += size_of_message(&message);
        if !joined.paused && joined.waiting > WAITING_BYTES_MAX {
            (joined.paused, joined.moved_ms) = (true, now_ms);
            proxy.pause(now_ms, to, true, replica, &mut self.outbox);
        }
        self.outputs.push(ReplicaOutput::Send(id, message));
    }

    /// Begins or ends to serve the members as the replica becomes the tail, or is not it any more. A tail with which
    /// its region begins anew has what it had, and its members have to hear that all of that is of another lineage.
    fn follow_role(&mut self, now_ms: u64, replica: &Replica) {
        let is_tail = replica.is_tail();
        let begins_anew = is_tail && replica.lineage() != self.lineage;
        if is_tail != self.proxy.is_some() {
            // Members were told the chain, and come again; whoever is here has to say who it is.
            self.members.clear();
            self.connections.clear();
            self.outbox.clear();
            self.proxy = is_tail.then(|| ProxyPeer::new(self.me.clone(), &self.options, self.seed ^ now_ms));
        } else if !begins_anew {
            return;
        }
        self.lineage = replica.lineage();
        if let Some(proxy) = &mut self.proxy {
            for (stream, _) in replica.streams() {
                proxy.appended(stream, held(replica, stream), &mut self.outbox);
            }
        }
    }

    /// What it has counted.
    pub fn snapshot(&self) -> RegionSnapshot {
        let stats = self.proxy.as_ref().map(ProxyPeer::stats).unwrap_or_default();
        RegionSnapshot {
            members: self.members.len(),
            view: stats.view,
            standing: stats.feeds,
            requests: self.requests,
            dropped: stats.dropped,
            events: stats.served,
            bytes: self.bytes,
            left_out: stats.left_out,
        }
    }
}

fn held(replica: &Replica, stream: &Stream) -> Position {
    let seq = replica.stream(stream).map_or(0, |state| state.held());
    Position { lineage: replica.lineage_of(stream), seq }
}
