//! Which beginning of its region's events a replica has (`Chain::lineage`).
//!
//! When all that have a region's events are lost, or stay away for too long, its chain begins with a replica that was no
//! member, and gives the same numbers to other events. Whoever comes back later has some that nobody else will ever have,
//! under numbers that others have events for. How far it is says nothing about that once the chain has gone further; the lineage does.
//!
//! - The replica that a lineage begins with keeps what it has: nobody has more.
//! - One that joins keeps what it has until it reaches the chain's tail: until then the next chain may begin with it.
//! - What is dropped is all of it, streams of other regions as well. Those come again, from the tail like the others.

use std::collections::BTreeMap;

use crate::message::Has;
use crate::name::Stream;
use crate::record::Record;
use crate::replica::stream::StreamState;
use crate::replica::{Output, Replica};

/// What a replica had of a lineage that goes on no more.
#[derive(Debug)]
pub struct Dropped {
    /// The lineage.
    pub lineage: u64,
    /// All its streams.
    pub streams: BTreeMap<Stream, StreamState>,
}

/// By how far the streams are.
impl PartialEq for Dropped {
    fn eq(&self, other: &Self) -> bool {
        let lasts = |dropped: &Self| -> Vec<(Stream, u64)> {
            dropped.streams.iter().map(|(stream, state)| (stream.clone(), state.last())).collect()
        };
        self.lineage == other.lineage && lasts(self) == lasts(other)
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
    /// The lineage of what it has; 0 before it was in a chain.
    pub fn lineage(&self) -> u64 {
        self.lineage
    }

    /// What it has of its own region's streams, for the configuration service: those of others can be had from others.
    pub fn has(&self) -> Has {
        let local = self.streams.iter().filter(|(stream, _)| self.is_local(stream));
        let events = local.map(|(_, state)| state.last()).fold(0, u64::saturating_add);
        Has { lineage: self.lineage, events }
    }

    /// This replica is its chain's only member: if that is of a new lineage, it begins with what this replica has.
    pub(super) fn begin_lineage(&mut self) {
        if self.lineage != self.chain.lineage {
            // What comes from here on is its own, whatever those had applied from whom it had the rest.
            self.streams.values_mut().for_each(|state| state.history.applied_elsewhere(0, 0));
            self.turn_to_lineage(true);
        }
    }

    /// This replica joins a chain, whose tail it reaches: what it has of another lineage is no part of that.
    pub(super) fn join_lineage(&mut self) {
        if self.lineage == self.chain.lineage {
            return;
        }
        let dropped = Dropped { lineage: self.lineage, streams: std::mem::take(&mut self.streams) };
        self.persisted.clear();
        self.held_before.clear();
        self.known.clear();
        self.heads_ms = None;
        self.forgot += 1;
        self.watch.forgot();
        if dropped.streams.values().any(|state| state.last() > 0) {
            self.outputs.push(Output::SetAside(dropped));
        }
        self.turn_to_lineage(false);
    }

    fn turn_to_lineage(&mut self, keeps: bool) {
        self.lineage = self.chain.lineage;
        if self.config.durability.needs_disk() {
            let record = Record::Lineage { lineage: self.lineage, keeps };
            self.outputs.push(Output::Persist { record, ticket: None });
        }
    }
}
