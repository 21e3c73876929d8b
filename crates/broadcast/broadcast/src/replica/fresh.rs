//! How old it is what a replica knows of a stream: an age says that so many milliseconds ago the stream's own region
//! had acknowledged nothing that is not held here.
//!
//! - An age counts from when it was asked for ([`Message::Ask`]), so that an answer which waited somewhere is as old as
//!   it is. Who tells it adds how old its own knowledge is; so over any number of proxies and replicas the ages add up.
//! - In the stream's own region the chain proves it. Nothing is acknowledged in a later epoch before one of its
//!   members, which are some of this epoch's and some that its tail handed over to, has moved on to that. So a tail
//!   asks the replica before it, and that one the one before it: if all of them up to the head are in the tail's epoch
//!   when they answer, the tail has what had been acknowledged when it asked. While it hands over nobody knows but the
//!   one that joins, so for that time it learns nothing.
//! - In other regions a head asks all proxies that it knows, and what it learns goes down its chain in the same way.
//!   What it is told is more than it holds, perhaps: that counts once it holds as much. Less than it holds says nothing
//!   of that: whoever says so has not got as far himself. From whom a stream comes says at least as much as it has
//!   sent, so of a stream that goes on something is always learnt. In the chain less counts as well: a replica may not
//!   know yet what those behind it hold.
//! - What is told of another lineage than is held says nothing.
//! - A tail that was removed and does not know, or a region that is cut off, is answered by nobody: its ages grow.

use crate::message::{AGE_UNKNOWN, Advertised, Message};
use crate::name::Stream;
use crate::replica::stream::StreamState;
use crate::replica::{ConnectionId, Peer, Replica};

/// What is known of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Then its region had acknowledged nothing that is not held here.
    as_of_ms: Option<u64>,
    /// The same, once so many events are held.
    next: Option<(u64, u64)>,
}

impl Known {
    fn learn(&mut self, held: u64, count: u64, as_of_ms: u64) {
        self.settle(held);
        if count <= held {
            self.as_of_ms = self.as_of_ms.max(Some(as_of_ms));
        } else if self.next.is_none_or(|(next, ms)| count <= next && as_of_ms >= ms) {
            // Of what is ahead the first, as there may always be something ahead.
            self.next = Some((count, as_of_ms));
        }
    }

    fn settle(&mut self, held: u64) {
        if let Some((_, as_of_ms)) = self.next.take_if(|(count, _)| *count <= held) {
            self.as_of_ms = self.as_of_ms.max(Some(as_of_ms));
        }
    }
}

impl Replica {
    /// The other end of a connection wants to know how far this replica is.
    pub(super) fn asked(&mut self, from: ConnectionId, at: u64) {
        if let Some(connection) = self.connections.get_mut(&from) {
            (connection.asks, connection.has_asked) = (Some(at), true);
        }
    }

    /// Answers those that asked, each not more often than anybody needs it.
    pub(super) fn answer_askers(&mut self) {
        let (now_ms, pause_ms) = (self.now_ms, self.config.advertise_ms / 2);
        let due = self.connections.iter().filter(|(_, connection)| {
            connection.asks.is_some() && now_ms.saturating_sub(connection.told_ms) >= pause_ms
        });
        let due: Vec<ConnectionId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.advertise_to(id));
    }

    /// Asks all replicas that this one has connected to.
    pub(super) fn ask(&mut self) {
        let dialled = self.connections.iter().filter(|(_, c)| matches!(c.peer, Peer::Out(..)));
        let dialled: Vec<ConnectionId> = dialled.map(|(id, _)| *id).collect();
        let at = self.now_ms;
        dialled.into_iter().for_each(|id| self.send(id, Message::Ask { at }));
    }

    /// A head knows what its region acknowledges, unless it is the tail as well and hands over.
    pub(super) fn know_own(&mut self) {
        if self.is_head() && self.handover.is_none() {
            self.heads_ms = Some(self.now_ms);
        }
    }

    /// Somebody who was asked at `answers` says how far it is: another region's tail, or the replica before this one.
    pub(super) fn learn(&mut self, region: &str, answers: u64, counts: &[Advertised]) {
        let (at_ms, is_own) = (answers.min(self.now_ms), region == self.config.region);
        for told in counts.iter().filter(|told| told.age_ms != AGE_UNKNOWN) {
            let Some(held) = self.streams.get(&told.stream).map(StreamState::held) else { continue };
            if self.is_local(&told.stream) && (!is_own || self.handover.is_some()) {
                continue;
            }
            if told.count.lineage != self.lineage_of(&told.stream) || (!is_own && told.count.seq < held) {
                continue;
            }
            // What is older than this process's clock is as good as unknown.
            let Some(as_of_ms) = at_ms.checked_sub(u64::from(told.age_ms)) else { continue };
            self.known.entry(told.stream.clone()).or_default().learn(held, told.count.seq, as_of_ms);
        }
    }

    /// So many milliseconds ago a stream's own region had acknowledged nothing that is not held here; [`AGE_UNKNOWN`]
    /// if that was never known.
    pub fn age_ms(&self, stream: &Stream) -> u32 {
        let Some(state) = self.streams.get(stream) else { return AGE_UNKNOWN };
        let mut known = self.known.get(stream).copied().unwrap_or_default();
        known.settle(state.held());
        let own_ms = self.heads_ms.filter(|_| self.is_local(stream));
        match known.as_of_ms.max(own_ms) {
            None => AGE_UNKNOWN,
            Some(ms) => {
                u32::try_from(self.now_ms.saturating_sub(ms)).unwrap_or(AGE_UNKNOWN - 1).min(AGE_UNKNOWN - 1)
            }
        }
    }
}
