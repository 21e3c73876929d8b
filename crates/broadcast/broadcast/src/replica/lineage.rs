//! Which beginning of its region's events a replica has (`Chain::lineage`).
//!
//! When all that have a region's events are lost, or stay away for too long, its chain begins with a replica that was
//! no member, and gives the same numbers to other events. Whoever comes back later has some that nobody else will ever
//! have, under numbers that others have events for. How far it is says nothing about that once the chain has gone
//! further; the lineage does.
//!
//! - The replica that a lineage begins with keeps what it has: nobody has more.
//! - One that joins keeps what it has until it reaches the chain's tail: until then the next chain may begin with it.
//! - What is dropped is all of it, streams of other regions as well. Those come again, from the tail like the others.
//!
//! Other regions have events of it too. What says how far somebody is says of which lineage, and counts only together
//! with what is of the same one:
//! - All that a replica has of another region is of one lineage. A head that hears of a greater one, from whomever,
//!   drops what it has of that region and takes it from its beginning; of a smaller one it takes nothing.
//! - Down the chain it is the replica before that knows: the one behind drops what it has of another lineage than what
//!   comes.
//! - So whoever is behind another one in a chain has no greater lineage of any region, and no more of the same, but one
//!   that joins: it takes what the chain has.

use std::collections::BTreeMap;

use crate::limits::STREAMS_MAX;
use crate::message::{Has, Message};
use crate::name::Stream;
use crate::record::Record;
use crate::replica::stream::StreamState;
use crate::replica::{Replica, ReplicaOutput};

/// Of which lineages somebody's events are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineages {
    /// Those of its own region; 0 before it was in a chain.
    pub own: u64,
    /// The epoch of the last chain of which it was a member ([`Has::epoch`]).
    pub member: u64,
    /// Those of other regions.
    pub others: BTreeMap<String, u64>,
}

impl Lineages {
    /// Of which a stream's are, for a replica of `region`; 0 if it knows of none.
    pub(super) fn of(&self, region: &str, stream: &Stream) -> u64 {
        match stream.region() {
            own if own == region => self.own,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }
}

/// What a replica had of a lineage that goes on no more.
#[derive(Debug)]
pub struct Dropped {
    /// The region whose lineage that is: this replica's, or another one, of which alone the streams are then.
    pub region: String,
    /// The lineage, as that region's own.
    pub lineages: Lineages,
    /// All its streams.
    pub streams: BTreeMap<Stream, StreamState>,
}

/// By how far the streams are.
impl PartialEq for Dropped {
    fn eq(&self, other: &Self) -> bool {
        let lasts = |dropped: &Self| -> Vec<(Stream, u64)> {
            dropped.streams.iter().map(|(stream, state)| (stream.clone(), state.last())).collect()
        };
        (&self.region, &self.lineages) == (&other.region, &other.lineages) && lasts(self) == lasts(other)
    }
}

impl Dropped {
    /// Its events that nothing collected.
    pub fn live(&self) -> u64 {
        let on_its_way =
            |state: &StreamState| state.unsettled().map(|entry| u64::from(entry.batch.count)).sum::<u64>();
        self.streams.values().map(|state| state.history.stats().live + on_its_way(state)).sum()
    }
}

impl Replica {
    /// The lineage of what it has of its own region; 0 before it was in a chain.
    pub fn lineage(&self) -> u64 {
        self.lineages.own
    }

    /// The lineages of all that it has.
    pub fn lineages(&self) -> &Lineages {
        &self.lineages
    }

    /// The lineage of what it has of a stream, or would have; 0 if it knows of none.
    pub fn lineage_of(&self, stream: &Stream) -> u64 {
        self.lineages.of(&self.config.region, stream)
    }

    /// What it has of its own region's streams, for the configuration service: those of others can be had from others.
    pub fn has(&self) -> Has {
        let local = self.streams.iter().filter(|(stream, _)| self.is_local(stream));
        let events = local.map(|(_, state)| state.last()).fold(0, u64::saturating_add);
        Has { lineage: self.lineages.own, epoch: self.lineages.member, events }
    }

    /// This replica is its chain's only member: if that is of a new lineage, it begins with what this replica has.
    pub(super) fn begin_lineage(&mut self) {
        if self.lineages.own != self.chain.lineage {
            // What comes from here on is its own, whatever those had applied from whom it had the rest.
            for state in self.streams.values_mut() {
                state.history.applied_elsewhere(0, 0);
                state.forget_removes();
            }
            self.turn_to_lineage(true);
        }
    }

    /// This replica joins a chain, whose tail it reaches: what it has of another lineage is no part of that.
    pub(super) fn join_lineage(&mut self) {
        if self.lineages.own == self.chain.lineage {
            return;
        }
        let (region, lineages) = (self.config.region.clone(), std::mem::take(&mut self.lineages));
        let dropped = Dropped { region, lineages, streams: std::mem::take(&mut self.streams) };
        self.persisted.clear();
        self.held_before.clear();
        self.known.clear();
        self.heads_ms = None;
        self.forgot += 1;
        self.watch.forgot();
        if dropped.streams.values().any(|state| state.last() > 0) {
            self.outputs.push(ReplicaOutput::SetAside(dropped));
        }
        self.turn_to_lineage(false);
    }

    /// It is a member of its chain, or has been handed over to: what was acknowledged until now it has, and from now on
    /// nothing is without it.
    pub(super) fn is_as_good_as_a_member(&mut self) {
        if self.lineages.member == self.chain.epoch {
            return;
        }
        self.lineages.member = self.chain.epoch;
        if self.config.durability.needs_disk() {
            let record = Record::Member { epoch: self.chain.epoch };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
        }
    }

    fn turn_to_lineage(&mut self, keeps: bool) {
        self.lineages.own = self.chain.lineage;
        if self.config.durability.needs_disk() {
            let record = Record::Lineage { lineage: self.lineages.own, keeps };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
        }
    }

    /// Whether the lineage of another region can be kept: of each that is told there is a stream, and those are
    /// limited.
    pub(super) fn has_room_for(&self, region: &str) -> bool {
        self.lineages.others.contains_key(region) || self.lineages.others.len() < STREAMS_MAX
    }

    /// The replica before this one, which is in the same epoch, sends what is of some lineage: whether it is taken. Of
    /// another region than this one's that is what counts, whatever this replica has.
    pub(super) fn takes(&mut self, stream: &Stream, lineage: u64) -> bool {
        if self.lineage_of(stream) == lineage {
            return true;
        }
        let takes = !self.is_local(stream) && self.has_room_for(stream.region());
        if takes {
            self.turn_region(stream.region(), lineage);
        }
        takes
    }

    /// What comes of another region from here on is of another lineage than what this replica has of it, which is
    /// dropped.
    pub(super) fn turn_region(&mut self, region: &str, lineage: u64) {
        let is_of = |stream: &Stream| stream.region() == region;
        let (streams, kept) = std::mem::take(&mut self.streams).into_iter().partition(|(s, _)| is_of(s));
        self.streams = kept;
        let own = self.lineages.others.insert(region.to_owned(), lineage).unwrap_or(0);
        let (region_of, lineages) = (region.to_owned(), Lineages { own, ..Lineages::default() });
        let dropped = Dropped { region: region_of, lineages, streams };
        self.persisted.retain(|stream, _| !is_of(stream));
        self.known.retain(|stream, _| !is_of(stream));
        self.told_held.retain(|stream, _| !is_of(stream));
        self.watch.turned();
        for connection in self.connections.values_mut() {
            connection.told.forget(is_of);
            if let Some(follows) = &mut connection.follows {
                follows.forget_all(|stream, _| is_of(stream));
            }
        }
        let expects = std::mem::take(&mut self.expects);
        for (stream, expects) in expects {
            if !is_of(&stream) {
                self.expects.insert(stream, expects);
            } else if let Some(source) = expects.source() {
                self.send(source, Message::Unsubscribe { stream });
            }
        }
        let needs_disk = self.config.durability.needs_disk();
        if dropped.streams.values().any(|state| state.last() > 0) {
            self.outputs.push(ReplicaOutput::SetAside(dropped));
            if needs_disk {
                self.watch.puts_aside(region);
            }
        }
        if needs_disk {
            let record = Record::Elsewhere { region: region.to_owned(), lineage };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
        }
    }
}
