//! Chain replication of a proxy (section 3.3).
//!
//! Every replica follows the one before it: it says how far it got in each stream and is sent what comes after,
//! which is the same for a new event, for what a failed replica in between did not hand on, and for a replica
//! that joins with nothing. Back go the numbers up to which all from there to the tail hold.
//!
//! A replica joins behind the tail. When it has been sent everything, and holds what that was, the tail hands over:
//! from then on it counts nothing as held that the joining replica does not hold as well, and tells it what publishers
//! have published. Only then the configuration service hears that it caught up. So whatever was acknowledged before it
//! became a member, and by whoever knows of that or not, it has. And one whose disk stands still is not handed over to:
//! it keeps nobody waiting, and is sent no more than a bounded part of the history.
//!
//! What keeps the others waiting all the same is told to the configuration service (`waits.rs`), which removes it. A
//! tail does not give a handover up by itself: the service may know already that the joining replica caught up, and
//! only the next epoch says that it did not become a member.
//!
//! What a joining replica has beyond what is held without it may come to nothing: the tail may die, and the next one
//! give the same numbers to other events. So it moves into its history only what the tail says is held without it, and
//! forgets the rest when it joins behind another tail, or it may have been another one meanwhile.
//!
//! A link carries something only while both its ends are in the same epoch; a replica follows anew in each.
//! Messages of an earlier epoch are left out, so a replica that was removed can neither append nor acknowledge.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::durability::{Durabilities, Durability};
use crate::message::{Chain, Message, Origin, PublisherId, ReplicaId, Role};
use crate::name::Stream;
use crate::positions::Position;
use crate::record::Record;
use crate::replica::follower::StreamFollower;
use crate::replica::readers::ReaderLags;
use crate::replica::stream::{Collects, StreamState};
use crate::replica::{ConnectionId, Peer, Replica, ReplicaOutput, ReplicaTicket};

impl Replica {
    /// The configuration service says how the chain is. Older news are left out, and a chain that has not begun.
    pub fn configure(&mut self, now_ms: u64, chain: Chain) {
        self.now_ms = now_ms;
        if chain.region != self.config.region || chain.epoch <= self.chain.epoch || chain.members.is_empty() {
            return;
        }
        let me = self.config.id;
        if self.recovered {
            // The configuration service does not know yet that we restarted: others may have gone on without us.
            if chain.place(me).is_some() && chain.members.len() > 1 {
                return;
            }
            self.recovered = false;
        }
        let (was_member, was_tail) = (self.chain.place(me).is_some(), self.is_tail());
        let (is_member, is_tail) = (chain.place(me).is_some(), chain.tail() == Some(me));
        let was_head = self.is_head();
        let joins = |chain: &Chain| chain.joining.iter().any(|member| member.id == me);
        let joins_behind_the_same = chain.epoch == self.chain.epoch + 1
            && chain.tail() == self.chain.tail()
            && joins(&self.chain)
            && joins(&chain);
        self.chain = chain;
        if was_head && !self.is_head() {
            self.unsubscribe_all();
        }
        // Of another lineage nobody goes on otherwise, and whoever begins with it has the more the better.
        let is_of_the_lineage = self.lineages.own == self.chain.lineage;
        if !is_member && !joins_behind_the_same && is_of_the_lineage {
            self.forget_unsettled();
        }
        // The token is ours if there is nobody else to have it: those who were behind us are gone.
        let ours = was_tail || was_member || self.chain.members.len() == 1;
        self.token = (is_tail && ours).then_some(self.chain.epoch);
        if is_member && self.chain.members.len() == 1 {
            self.begin_lineage();
        }
        if is_member {
            self.is_as_good_as_a_member();
        }
        if !self.is_tail() {
            for connection in self.connections.values_mut() {
                connection.subscriptions.clear();
                connection.absent = 0;
                connection.listens_to_all = false;
            }
        }
        if !self.is_head() {
            self.refuse_all_answers();
        }
        self.told_held.clear();
        self.streams.values_mut().for_each(|state| state.readers = ReaderLags::default());
        self.held_before.clear();
        self.handover = None;
        self.following = None;
        let connections: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for connection in connections {
            self.follow_if_before(connection);
            self.look_at_follower(connection);
            if let Some(Peer::In(_, Role::Client(_))) = self.connections.get(&connection).map(|c| &c.peer) {
                self.send(connection, Message::Chain(self.chain.clone()));
            }
        }
        self.settle_all();
        self.announce();
    }

    /// Forgets what was on its way: it may never have reached the others, and they may have gone on without it.
    fn forget_unsettled(&mut self) {
        for (stream, state) in &mut self.streams {
            state.forget_unsettled();
            if let Some(persisted) = self.persisted.get_mut(stream) {
                *persisted = state.last().min(*persisted);
            }
        }
        self.forgot += 1;
        self.watch.forgot();
        if self.config.durability.needs_disk() {
            self.outputs.push(ReplicaOutput::Persist { record: Record::Forgot, ticket: None });
        }
    }

    /// Follows through a connection if it leads to the replica before this one.
    pub(super) fn follow_if_before(&mut self, connection: ConnectionId) {
        let Some(before) = self.chain.before(self.config.id).map(|member| member.id) else { return };
        let Some(Peer::Out(region, id)) = self.connections.get(&connection).map(|c| &c.peer) else { return };
        if *region != self.config.region || *id != before {
            return;
        }
        if self.chain.place(self.config.id).is_none() {
            self.join_lineage();
        }
        self.following = Some((before, connection));
        self.told_held.clear();
        let position = |stream: &Stream, seq| Position { lineage: self.lineage_of(stream), seq };
        let has = self.streams.iter().map(|(stream, state)| (stream, state.last()));
        let counts = has.map(|(stream, last)| (stream.clone(), position(stream, last))).collect();
        let (epoch, lineage) = (self.chain.epoch, self.lineages.own);
        self.send(connection, Message::Follow { epoch, lineage, counts });
    }

    /// Another replica wants to be sent what it misses.
    pub(super) fn followed(
        &mut self,
        from: ConnectionId,
        epoch: u64,
        lineage: u64,
        counts: Vec<(Stream, Position)>,
    ) {
        // A follower that is ahead in news waits here until they reach us as well.
        if epoch < self.chain.epoch {
            return;
        }
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.follows = Some(StreamFollower::new(epoch, lineage, counts.into_iter().collect()));
            self.receivers.insert(from);
            self.look_at_follower(from);
        }
    }

    /// Sends a joining replica away that has other events than this chain, once both are in the same epoch.
    fn look_at_follower(&mut self, from: ConnectionId) {
        let (region, lineages) = (&self.config.region, &self.lineages);
        let Some(connection) = self.connections.get_mut(&from) else { return };
        let (Some(follows), Peer::In(_, Role::Replica(id))) = (&mut connection.follows, &connection.peer)
        else {
            return;
        };
        let is_joining = self.chain.joining.iter().any(|member| member.id == *id);
        if follows.epoch != self.chain.epoch || !is_joining {
            return;
        }
        // What it has of another region in another lineage it drops when something comes.
        follows.forget_all(|stream, sent| {
            stream.region() != region && sent.lineage != lineages.of(region, stream)
        });
        let has_more = |(stream, count): &(&Stream, &Position)| {
            count.seq > self.streams.get(*stream).map_or(0, StreamState::last)
        };
        let why = if follows.lineage != self.chain.lineage {
            format!(
                "replica {id} has events of lineage {:x}, and those of this chain are of {:x}",
                follows.lineage, self.chain.lineage
            )
        } else if let Some((stream, count)) = follows.sent.iter().find(has_more) {
            // It would be the tail, with events under numbers that this chain gave, or will give, to others.
            format!(
                "replica {id} has {stream} up to {}, and the chain that it wants to join does not: its replicas lost \
                 some of their events; remove what it has, or start the one that has most of it first",
                count.seq
            )
        } else {
            return;
        };
        self.outputs.push(ReplicaOutput::Close(from, why));
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.follows = None;
        }
    }

    /// Events from the replica before us.
    pub(super) fn append(
        &mut self,
        (from, id, epoch): (ConnectionId, ReplicaId, u64),
        stream: Stream,
        lineage: u64,
        origin: Option<Origin>,
        batch: Batch,
    ) {
        if epoch != self.chain.epoch || self.following != Some((id, from)) || !self.takes(&stream, lineage) {
            return;
        }
        match self.state_of(&stream).store(&batch, origin, Collects::UNKNOWN) {
            Ok(true) => {
                self.counters.followed += u64::from(batch.count);
                self.stored(stream, batch, origin);
            }
            Ok(false) => {}
            Err(_) => {
                self.counters.gaps += 1;
                self.follow_if_before(from);
            }
        }
    }

    /// The replica before us says how far it has applied the predicates of a stream that it sends from here on.
    pub(super) fn applied_before(
        &mut self,
        (from, id, epoch): (ConnectionId, ReplicaId, u64),
        stream: Stream,
        Position { lineage, seq: last }: Position,
    ) {
        if epoch != self.chain.epoch || self.following != Some((id, from)) || !self.takes(&stream, lineage) {
            return;
        }
        self.state_of(&stream).applied_elsewhere(last);
        if self.is_kept(&stream) {
            let record = Record::Applied { stream, last };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
        }
    }

    /// The replica before us says up to where retention has removed a stream.
    pub(super) fn removed_before(
        &mut self,
        (from, id, epoch): (ConnectionId, ReplicaId, u64),
        stream: &Stream,
        Position { lineage, seq: last }: Position,
    ) {
        if epoch == self.chain.epoch && self.following == Some((id, from)) && self.takes(stream, lineage) {
            self.remove(stream, last);
        }
    }

    /// New events are in a stream; `batch` may begin with some that were there.
    pub(super) fn stored(&mut self, stream: Stream, batch: Batch, origin: Option<Origin>) {
        if self.is_kept(&stream) {
            let ticket = self.ticket(&stream, batch.last);
            let record = Record::Stored { stream: stream.clone(), batch, origin };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: Some(ticket) });
        }
        self.settle(&stream);
    }

    /// The disk has what a ticket stands for, and what was to be written before it.
    pub fn persisted(&mut self, now_ms: u64, ticket: &ReplicaTicket) {
        self.now_ms = now_ms;
        if (ticket.forgot, ticket.elsewhere) != (self.forgot, self.elsewhere(&ticket.stream)) {
            return;
        }
        let persisted = self.persisted.entry(ticket.stream.clone()).or_insert(0);
        *persisted = ticket.last.max(*persisted);
        self.watch.wrote(ticket.stream.region());
        self.settle(&ticket.stream);
    }

    /// Tickets for all that is there, to be given back once a disk has it that was given none of it before.
    pub fn tickets(&self) -> Vec<ReplicaTicket> {
        let kept = self.streams.iter().filter(|(stream, _)| self.is_kept(stream));
        kept.map(|(stream, state)| self.ticket(stream, state.last())).collect()
    }

    fn ticket(&self, stream: &Stream, last: u64) -> ReplicaTicket {
        let elsewhere = self.elsewhere(stream);
        ReplicaTicket { stream: stream.clone(), last, elsewhere, forgot: self.forgot }
    }

    /// The lineage of a stream's region, if that is another one: what it has of its own it may keep in another one.
    fn elsewhere(&self, stream: &Stream) -> u64 {
        if self.is_local(stream) { 0 } else { self.lineage_of(stream) }
    }

    pub(super) fn publishers_from(
        &mut self,
        from: ConnectionId,
        stream: Stream,
        numbers: Vec<(PublisherId, u64)>,
    ) {
        if self.following.is_some_and(|(_, through)| through == from) && self.is_local(&stream) {
            let state = self.state_of(&stream);
            for (client, number) in &numbers {
                state.publishers.settle(*client, *number);
            }
            if self.is_kept(&stream) {
                let record = Record::Publishers { stream, numbers };
                self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
            }
        }
    }

    pub(super) fn token_from(&mut self, from: ConnectionId, epoch: u64) {
        let followed = self.following.is_some_and(|(_, through)| through == from);
        if !followed || epoch != self.chain.epoch {
            return;
        }
        if self.chain.tail() == Some(self.config.id) {
            self.token = Some(epoch);
            self.announce();
        } else {
            self.is_as_good_as_a_member();
            self.send(from, Message::Ready { epoch });
        }
    }

    pub(super) fn follower_holds(
        &mut self,
        from: ConnectionId,
        id: ReplicaId,
        epoch: u64,
        counts: Vec<(Stream, Position)>,
    ) {
        let Some(follows) = self.connections.get_mut(&from).and_then(|c| c.follows.as_mut()) else { return };
        if follows.epoch != epoch {
            return;
        }
        // Of a follower that is ahead in news, too: it says so once, and it counts when they have reached us.
        let streams: Vec<Stream> = counts.iter().map(|(stream, _)| stream.clone()).collect();
        follows.holds(counts);
        if epoch == self.chain.epoch && self.waits_for() == Some(id) {
            streams.iter().for_each(|stream| self.settle(stream));
        }
    }

    /// The tail that this joining replica follows says what is held without it.
    pub(super) fn tail_holds(&mut self, from: ConnectionId, epoch: u64, counts: Vec<(Stream, Position)>) {
        if epoch != self.chain.epoch || self.following.is_none_or(|(_, through)| through != from) {
            return;
        }
        for (stream, held) in counts {
            self.held_before.insert(stream.clone(), held);
            self.settle(&stream);
        }
    }

    pub(super) fn follower_is_ready(&mut self, id: ReplicaId, epoch: u64) {
        if let Some(handover) = &mut self.handover
            && handover.to == id
            && epoch == self.chain.epoch
        {
            handover.ready = true;
        }
    }

    /// Who has to hold an event before this replica counts it as held.
    pub(super) fn waits_for(&self) -> Option<ReplicaId> {
        self.chain.next(self.config.id).or(self.handover.as_ref().map(|handover| handover.to))
    }

    /// How far a replica that follows this one holds a stream.
    fn held_by(&self, id: ReplicaId, stream: &Stream) -> u64 {
        let is_it = |peer: &Peer| matches!(peer, Peer::In(_, Role::Replica(other)) if *other == id);
        let followers = self.connections.values().filter(|connection| is_it(&connection.peer));
        let of = self.lineage_of(stream);
        let held = followers.filter_map(|connection| {
            let follows = connection.follows.as_ref().filter(|follows| follows.epoch == self.chain.epoch)?;
            follows.held.get(stream).filter(|held| held.lineage == of).map(|held| held.seq)
        });
        held.max().unwrap_or(0)
    }

    fn settle_all(&mut self) {
        let streams: Vec<Stream> = self.streams.keys().cloned().collect();
        for stream in streams {
            self.settle(&stream);
        }
    }

    /// How far the others hold a stream that have to: all from here to the tail, or without us if we are joining.
    fn held_by_others(&self, stream: &Stream) -> u64 {
        if self.chain.place(self.config.id).is_none() {
            let before = self.held_before.get(stream).filter(|held| held.lineage == self.lineage_of(stream));
            return before.map_or(0, |held| held.seq);
        }
        self.waits_for().map_or(u64::MAX, |id| self.held_by(id, stream))
    }

    /// Moves a stream's events into its history as far as others hold them who have to.
    fn settle(&mut self, stream: &Stream) {
        let others = self.held_by_others(stream);
        let persisted = persisted(&self.config.durability, &self.persisted, stream);
        // One that is joining is sent what was held long ago.
        let is_member = self.chain.place(self.config.id).is_some();
        let wall_ms = self.wall_ms + (self.now_ms - self.ticked_ms);
        let held_back_ms = self.held_back_ms();
        let Some(state) = self.streams.get_mut(stream) else { return };
        let held = others.min(state.last()).min(persisted);
        if held > state.held() {
            if is_member {
                let delays = self.delays.entry(stream.region().to_owned()).or_default();
                state.times_up_to(held).for_each(|time_ms| delays.add(wall_ms.saturating_sub(time_ms)));
            }
            let before = state.held();
            state.settle(held);
            state.readers.grew(self.now_ms, held, state.settled_bytes, held_back_ms);
            // What may be told when it is held is told at once.
            let told = state.readers.may_be_told(self.now_ms, held_back_ms);
            self.counters.held_back += held.saturating_sub(before.max(told));
            self.outputs.push(ReplicaOutput::Held { stream: stream.clone(), last: held });
        }
    }

    /// Tells the replica before us what all from here on hold, if that grew; there is nobody behind one that is
    /// joining. A tail whose listeners lag tells it later: publishers are answered by it.
    pub(super) fn tell_held(&mut self) {
        let Some((_, through)) = self.following else { return };
        let is_member = self.chain.place(self.config.id).is_some();
        let (now_ms, held_back_ms) = (self.now_ms, self.held_back_ms());
        let (region, lineages, told) = (&self.config.region, &self.lineages, &mut self.told_held);
        let mut counts = Vec::new();
        for (stream, state) in &self.streams {
            let held = match is_member {
                true => state.held().min(state.readers.may_be_told(now_ms, held_back_ms)),
                false => state.last().min(persisted(&self.config.durability, &self.persisted, stream)),
            };
            if held > told.get(stream).copied().unwrap_or(0) {
                told.insert(stream.clone(), held);
                counts.push((stream.clone(), Position { lineage: lineages.of(region, stream), seq: held }));
            }
        }
        if !counts.is_empty() {
            self.send(through, Message::Held { epoch: self.chain.epoch, counts });
        }
    }

    /// The joining replica that has everything that was ever acknowledged, for the configuration service.
    pub fn caught_up(&self) -> Option<ReplicaId> {
        let handover = self.handover.as_ref().filter(|handover| handover.ready && self.is_tail())?;
        let has_all =
            |(stream, state): (&Stream, &StreamState)| self.held_by(handover.to, stream) >= state.held();
        self.streams.iter().all(has_all).then_some(handover.to)
    }
}

/// How far this replica's disk has a stream; to the end if it need not have it.
pub(super) fn persisted(
    durability: &Durabilities,
    persisted: &BTreeMap<Stream, u64>,
    stream: &Stream,
) -> u64 {
    match durability.of(stream) {
        Durability::Memory => u64::MAX,
        Durability::Interval | Durability::Fsync => persisted.get(stream).copied().unwrap_or(0),
    }
}

/// A tail that gives its place to a joining replica.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) to: ReplicaId,
    /// Whether it has been told what publishers have published.
    pub(super) ready: bool,
}
