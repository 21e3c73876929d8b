//! Retention by age: what publishers do not collect goes all the same, and listeners are told.
//!
//! The head of a stream's own region decides by its clock, which gave the events their times: all up to the last event
//! that is old enough goes, but never the stream's last one, whose number and time the next one follows. It tells the
//! replica behind, that the next one, and the tail the heads of the other regions that subscribe the stream. Each is
//! told anew on each connection, and of the greatest number only: so what a replica missed while it was away it hears
//! of when it is back, and a head that has just become it decides anew.
//!
//! - Only what all replicas hold is removed. So no number that was removed is ever given again.
//! - What goes is taken off the front of the history, as a collection by number would ([`History::remove`]). What is on
//!   its way, and counts as such, is left alone until it is settled.
//! - An event that was removed has nothing that explains it. So what is read from before there says so, to clients and
//!   replicas alike ([`Batch::removed`]).
//!
//! [`History::remove`]: crate::history::History::remove
//! [`Batch::removed`]: crate::batch::Batch::removed

use crate::name::Stream;
use crate::record::Record;
use crate::replica::{Replica, ReplicaOutput};

/// While retention lasts it is looked so many times for what is old enough.
const LOOKS: u64 = 100;
/// Milliseconds between two of these looks at most.
const LOOK_MS_MAX: u64 = 1_000;

impl Replica {
    /// As the head, removes what is older than it may be of this region's streams.
    pub(super) fn expire(&mut self) {
        let retention_ms = self.config.retention_ms;
        let every_ms = (retention_ms / LOOKS).min(LOOK_MS_MAX);
        if retention_ms == 0 || !self.is_head() || self.now_ms.saturating_sub(self.removed_ms) < every_ms {
            return;
        }
        self.removed_ms = self.now_ms;
        let before_ms = self.wall_ms.saturating_sub(retention_ms);
        let local = self.streams.iter().filter(|(stream, _)| self.is_local(stream));
        let old: Vec<(Stream, u64)> = local
            .filter_map(|(stream, state)| Some((stream.clone(), state.history.last_older(before_ms)?)))
            .collect();
        old.into_iter().for_each(|(stream, last)| self.remove(&stream, last));
    }

    /// Removes all of a stream up to a number, if it is here.
    pub(super) fn remove(&mut self, stream: &Stream, last: u64) {
        let Some(removed) = self.streams.get_mut(stream).and_then(|state| state.remove(last)) else { return };
        self.counters.removed += removed;
        if self.is_kept(stream) {
            let record = Record::Removed { stream: stream.clone(), last };
            self.outputs.push(ReplicaOutput::Persist { record, ticket: None });
        }
    }
}
