//! The proxy-level protocol (section 3.1): the head subscribes each stream of another region at whichever proxy
//! is ahead in it, directly or over other regions, and moves when another one gets far enough ahead.
//!
//! The paper's rule is [`Expects::is_passed`]. What it leaves open:
//! - Two proxies that are as far may pass each other's threshold, subscribe to each other, and then both wait until
//!   somebody else passes it again. So only one that has more than we do is subscribed to, or as much if the stream is
//!   its own region's: what it has is never from us.
//! - It compares what was said at different moments: of several that are as far, whoever speaks next is ahead of what
//!   the source said a moment ago. So what another one said is compared with what the source says after it, or with
//!   what it said last if it says nothing for two of its turns.
//! - A source that died or fell silent may have advertised more than anybody else will have soon. So a source
//!   whose connection ended, or that said nothing for `silence_ms`, is none, and the next one that has more is
//!   subscribed to at once.
//! - A source may live and get nothing itself: it is cut off, or its chain stands still. A slow stream would have to
//!   fall far behind before the rule says so. So a source that brings nothing for `silence_ms`, in which another one
//!   has more than we do, is left for that one, first of all for the stream's own region. If that brings nothing
//!   either, because much else is on its way, there is twice as long for the next one.
//! - One that is as far as the others never passes them. So a stream is moved back to its own region's proxy once that
//!   was as far as we are for [`RETURN_SILENCES`] times `silence_ms`, so that a link which comes and goes is not relied
//!   on.
//! - What comes may be more than the chain takes. So a stream of which too much is on its way down the chain is asked
//!   of nobody until half of that has left.
//! - A subscription always begins at our own count, and what does not continue it is left out; then the
//!   subscription is made again.
//! - A region may begin anew, with other events under the same numbers. What a proxy says of itself is of one of its
//!   region's lineages: of a greater one than ours we take all from the beginning, of a smaller one nothing
//!   (`lineage.rs`). Those that have not heard of it yet say so, and are not asked, over whichever regions they are.

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::limits::{ABSENT_EACH, ABSENT_MAX, STREAMS_MAX};
use crate::message::{Advertised, FROM_NOW, Message, Reason, Role};
use crate::name::Stream;
use crate::positions::{NoRoomForStreams, Position, TooManyStreams};
use crate::replica::stream::Collects;
use crate::replica::{Connection, ConnectionId, Peer, Replica};

/// A stream is moved back to its own region's proxy once that was as far as we are for so many times `silence_ms`.
const RETURN_SILENCES: u64 = 10;
/// A source that brings nothing is left after `silence_ms`, doubled so many times at most.
const DOUBLED_MAX: u32 = 4;

/// From whom a stream's events are expected.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expects {
    /// The connection subscribed to.
    source: Option<ConnectionId>,
    /// How far the source was when it was last advertised further, and when that was.
    seq: u64,
    time_ms: u64,
    /// Since when another one has had more than we do, and nothing came.
    starves_ms: Option<u64>,
    /// How often in a row a source was left for that.
    starved: u32,
    /// Since when the stream's own region's proxy, while it is not the source, has been as far as we are, and when it
    /// last said so.
    direct_ms: Option<(u64, u64)>,
}

impl Expects {
    pub(super) fn source(&self) -> Option<ConnectionId> {
        self.source
    }

    /// Figure 1's condition: `cnt > expects.seq + C / (T - expects.time)`, if the source is at `seq` now.
    fn is_passed(&self, count: u64, seq: u64, now_ms: u64, damping: f64) -> bool {
        let seconds = now_ms.saturating_sub(self.time_ms) as f64 / 1000.0;
        seconds > 0.0 && count as f64 > seq as f64 + damping / seconds
    }

    /// The stream's own region's proxy, which is not the source, says how far it is; answers whether it has been as far
    /// as we are for long enough.
    fn may_return(&mut self, is_as_far: bool, now_ms: u64, silence_ms: u64) -> bool {
        if !is_as_far {
            self.direct_ms = None;
            return false;
        }
        let (since_ms, last_ms) = self.direct_ms.get_or_insert((now_ms, now_ms));
        if now_ms.saturating_sub(*last_ms) > silence_ms {
            *since_ms = now_ms;
        }
        *last_ms = now_ms;
        now_ms.saturating_sub(*since_ms) >= RETURN_SILENCES * silence_ms
    }

    /// Whether nothing came for too long, though another one has more than we do.
    fn starves(&mut self, has_other: bool, now_ms: u64, silence_ms: u64) -> bool {
        if !has_other {
            self.starves_ms = None;
            return false;
        }
        let since_ms = *self.starves_ms.get_or_insert(now_ms);
        now_ms.saturating_sub(since_ms) >= silence_ms << self.starved.min(DOUBLED_MAX)
    }

    fn subscribed(&mut self, source: ConnectionId, seq: u64, now_ms: u64) {
        (self.source, self.seq, self.time_ms) = (Some(source), seq, now_ms);
        (self.starves_ms, self.direct_ms) = (None, None);
    }
}

/// Another one than the source.
struct Other {
    id: ConnectionId,
    count: u64,
    /// Whether it is the stream's own region's.
    is_direct: bool,
}

/// What the other end of a connection, another region's tail, advertised last, as far as it is of our lineages.
#[derive(Debug, Default)]
pub(super) struct ProxyTold {
    counts: BTreeMap<Stream, u64>,
    at_ms: u64,
}

impl ProxyTold {
    /// What it said of some streams counts no more.
    pub(super) fn forget(&mut self, is_of: impl Fn(&Stream) -> bool) {
        self.counts.retain(|stream, _| !is_of(stream));
    }
}

impl Replica {
    /// Says that it is alive, and if it is the tail how far it is: to all replicas, and to clients if `to_clients`; not
    /// to those that ask for it.
    pub(super) fn advertise(&mut self, to_clients: bool) {
        let wanted = |connection: &Connection| match connection.peer {
            _ if connection.has_asked => false,
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

    /// Tells all replicas, as something may be new to them.
    pub(super) fn announce(&mut self) {
        let replicas =
            self.connections.iter().filter(|(_, c)| matches!(c.peer, Peer::In(_, Role::Replica(_))));
        let replicas: Vec<ConnectionId> = replicas.map(|(id, _)| *id).collect();
        replicas.into_iter().for_each(|id| self.advertise_to(id));
    }

    pub(super) fn advertise_to(&mut self, connection: ConnectionId) {
        let now_ms = self.now_ms;
        let Some(to) = self.connections.get_mut(&connection) else { return };
        let Peer::In(region, role) = &to.peer else { return };
        let is_client = matches!(role, Role::Client(_));
        let theirs = region.clone();
        let is_behind = !is_client && theirs == self.config.region && to.follows.is_some();
        let answers = to.asks.take();
        to.told_ms = now_ms;
        let is_told = match is_client || theirs != self.config.region {
            true => self.is_tail(),
            false => is_behind,
        };
        let mut counts = Vec::new();
        if is_told {
            // Of its own streams another region's proxy knows best.
            let told =
                self.streams.iter().filter(|(stream, _)| is_client || is_behind || stream.region() != theirs);
            counts.extend(told.map(|(stream, state)| Advertised {
                stream: stream.clone(),
                count: Position { lineage: self.lineage_of(stream), seq: state.held() },
                age_ms: self.age_ms(stream),
            }));
        }
        self.send(connection, Message::Advertise { epoch: self.chain.epoch, answers, counts });
    }

    /// A tail of another region says how far it is, or the replica before this one.
    pub(super) fn advertised(
        &mut self,
        from: ConnectionId,
        region: &str,
        (epoch, answers): (u64, Option<u64>),
        counts: Vec<Advertised>,
    ) {
        if region == self.config.region {
            let is_before = self.following.is_some_and(|(_, through)| through == from);
            if let Some(answers) = answers.filter(|_| is_before && epoch == self.chain.epoch) {
                self.learn(region, answers, &counts);
            }
            return;
        }
        if !self.is_head() {
            return;
        }
        self.look_at_lineages(&counts);
        let mut told = ProxyTold { counts: BTreeMap::new(), at_ms: self.now_ms };
        for Advertised { stream, count, .. } in &counts {
            if self.is_local(stream) || count.lineage != self.lineage_of(stream) {
                continue;
            }
            if !self.streams.contains_key(stream) && self.streams.len() >= STREAMS_MAX {
                self.counters.left_out += 1;
                continue;
            }
            self.state_of(stream);
            told.counts.insert(stream.clone(), count.seq);
        }
        if let Some(answers) = answers {
            self.learn(region, answers, &counts);
        }
        // One that says nothing of a stream any more is not the tail any more, or has another lineage: it sends none of
        // it.
        let mut left = Vec::new();
        for (stream, expects) in &mut self.expects {
            if expects.source == Some(from) && !told.counts.contains_key(stream) {
                expects.source = None;
                left.push(stream.clone());
            }
        }
        left.into_iter().for_each(|stream| self.send(from, Message::Unsubscribe { stream }));
        for (stream, count) in &told.counts {
            self.consider(from, stream, *count, region == stream.region());
        }
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.told = told;
        }
    }

    /// Turns to the lineages that are told, of those regions that have begun anew.
    fn look_at_lineages(&mut self, counts: &[Advertised]) {
        let mut newer: BTreeMap<&str, u64> = BTreeMap::new();
        for Advertised { stream, count, .. } in counts {
            let is_carried = self.streams.contains_key(stream) || self.streams.len() < STREAMS_MAX;
            if !self.is_local(stream)
                && count.lineage > self.lineage_of(stream)
                && is_carried
                && self.has_room_for(stream.region())
            {
                let newest = newer.entry(stream.region()).or_insert(0);
                *newest = count.lineage.max(*newest);
            }
        }
        newer.into_iter().for_each(|(region, lineage)| self.turn_region(region, lineage));
    }

    /// Subscribes a stream elsewhere if that is better; `from` has it up to `count`, and says so now.
    fn consider(&mut self, from: ConnectionId, stream: &Stream, count: u64, is_direct: bool) {
        let (now_ms, silence_ms, damping) = (self.now_ms, self.config.silence_ms, self.config.damping);
        let state = self.state_of(stream);
        let (own, has_room) = (state.last(), state.has_room());
        let mut expects = self.expects.get(stream).copied().unwrap_or_default();
        let better = match expects.source {
            None => {
                let has_more = count > own || (count == own && is_direct);
                (has_more && has_room).then_some((from, count))
            }
            Some(source) => {
                // What the others said came before what this one says now.
                let more: Vec<_> =
                    self.others(stream, source, (from, count)).filter(|o| o.count > own).collect();
                let says_now = source == from;
                let seq = if says_now { count } else { expects.seq }.max(own);
                let heard_ms = self.connections.get(&source).map_or(0, |source| source.told.at_ms);
                let is_due = now_ms.saturating_sub(heard_ms) > 2 * self.config.advertise_ms;
                let passes = |other: &&Other| {
                    (says_now || is_due) && expects.is_passed(other.count, seq, now_ms, damping)
                };
                let passed = more.iter().filter(passes).max_by_key(|other| (other.count, other.is_direct));
                let starves = expects.starves(!more.is_empty(), now_ms, silence_ms);
                let first =
                    more.iter().filter(|_| starves).max_by_key(|other| (other.is_direct, other.count));
                let returns = is_direct && !says_now && expects.may_return(count >= own, now_ms, silence_ms);
                if says_now && count > expects.seq {
                    (expects.seq, expects.time_ms) = (count, now_ms);
                }
                if starves {
                    expects.starved += 1;
                }
                passed.or(first).map(|other| (other.id, other.count)).or(returns.then_some((from, count)))
            }
        };
        if let Some((to, count)) = better {
            if let Some(old) = expects.source {
                self.counters.moved += 1;
                self.send(old, Message::Unsubscribe { stream: stream.clone() });
            }
            expects.subscribed(to, count, now_ms);
            let after = Position { lineage: self.lineage_of(stream), seq: own };
            self.send(to, Message::Subscribe { stream: stream.clone(), after });
        }
        self.expects.insert(stream.clone(), expects);
    }

    /// How far those are besides a stream's source that spoke lately, `from` just now.
    fn others<'a>(
        &'a self,
        stream: &'a Stream,
        source: ConnectionId,
        (from, count): (ConnectionId, u64),
    ) -> impl Iterator<Item = Other> + 'a {
        let others = self.connections.iter().filter(move |(id, _)| **id != source);
        others.filter_map(move |(&id, other)| {
            let Peer::Out(region, _) = &other.peer else { return None };
            let is_silent = self.now_ms.saturating_sub(other.told.at_ms) > self.config.silence_ms;
            let count = match id == from {
                true => count,
                false => *other.told.counts.get(stream).filter(|_| !is_silent)?,
            };
            Some(Other { id, count, is_direct: region == stream.region() })
        })
    }

    /// Events of another region's stream.
    pub(super) fn remote_events(&mut self, from: ConnectionId, stream: &Stream, lineage: u64, batch: &Batch) {
        if !self.is_head() || self.is_local(stream) || !self.streams.contains_key(stream) {
            return;
        }
        if lineage != self.lineage_of(stream) {
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
                if let Some(expects) = self.expects.get_mut(stream) {
                    (expects.starves_ms, expects.starved) = (None, 0);
                }
                self.counters.remote += u64::from(batch.count);
                self.stored(stream.clone(), batch.clone(), None);
            }
            Ok(false) => {}
            Err(_) => {
                self.counters.gaps += 1;
                let seq = self.state_of(stream).last();
                let after = Position { lineage, seq };
                if self.expects.get(stream).is_some_and(|expects| expects.source == Some(from)) {
                    self.send(from, Message::Subscribe { stream: stream.clone(), after });
                }
            }
        }
    }

    /// Another region's tail says up to where retention has removed a stream.
    pub(super) fn removed_elsewhere(&mut self, stream: &Stream, last: Position) {
        if self.is_head() && !self.is_local(stream) && last.lineage == self.lineage_of(stream) {
            self.remove(stream, last.seq);
        }
    }

    /// Another region's head wants a stream's events from the one after `after` on. It was told of the stream; if that
    /// is not here any more, its region has begun anew, and of what the head has it would be sent nothing.
    pub(super) fn subscribe(&mut self, from: ConnectionId, stream: Stream, after: Position) {
        if self.is_tail()
            && self.streams.contains_key(&stream)
            && let Some(connection) = self.connections.get_mut(&from)
        {
            connection.told_removed.remove(&stream);
            connection.subscriptions.insert(stream, after);
            self.receivers.insert(from);
        }
    }

    /// A client wants events. One that asks a replica which is not the tail is told the chain. One that is refused is
    /// sent what it was sent before.
    pub(super) fn listen(&mut self, from: ConnectionId, positions: Vec<(Stream, Position)>, others: bool) {
        if !self.is_tail() {
            self.send(from, Message::Chain(self.chain.clone()));
            return;
        }
        if let Err(too_many) = TooManyStreams::check(positions.len()) {
            let (reason, text) = (Reason::Invalid, too_many.to_string());
            return self.send(from, Message::ListenRefused { reason, text });
        }
        let absent = positions.iter().filter(|(stream, _)| !self.streams.contains_key(stream)).count();
        let absent = absent.saturating_sub(ABSENT_EACH);
        let others_absent = || {
            let others = self.connections.iter().filter(|(id, _)| **id != from);
            others.map(|(_, other)| other.absent).sum::<usize>()
        };
        if absent > 0 && others_absent() + absent > ABSENT_MAX {
            let (reason, text) = (Reason::Limit, NoRoomForStreams.to_string());
            return self.send(from, Message::ListenRefused { reason, text });
        }
        let begins: Vec<_> = positions.into_iter().map(|at| self.begins(at)).collect();
        let Some(connection) = self.connections.get_mut(&from) else { return };
        connection.subscriptions = begins.iter().cloned().collect();
        self.receivers.insert(from);
        connection.absent = absent;
        connection.listens_to_all = others;
        if others {
            for stream in self.streams.keys() {
                if !connection.subscriptions.contains_key(stream) {
                    connection.subscriptions.insert(stream.clone(), Position::START);
                }
            }
        }
        self.send(from, Message::Listening { positions: begins });
    }

    /// A client's streams can't be listened to now; it may ask again later.
    pub fn refuse_listener(&mut self, to: ConnectionId, why: String) {
        self.send(to, Message::ListenRefused { reason: Reason::Limit, text: why });
    }

    /// Where a client begins that wants to go on from a position: if that is of an earlier lineage than what is here,
    /// at the beginning of this one.
    pub fn begins(&self, (stream, position): (Stream, Position)) -> (Stream, Position) {
        let lineage = self.lineage_of(&stream);
        let position = match position.seq {
            FROM_NOW => {
                let seq = self.streams.get(&stream).map_or(0, |state| state.held());
                Position { lineage, seq }
            }
            _ if position.lineage < lineage => Position { lineage, seq: 0 },
            _ => position,
        };
        (stream, position)
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
        // Nobody listens to what is advertised any more.
        self.connections.values_mut().for_each(|connection| connection.told = ProxyTold::default());
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
