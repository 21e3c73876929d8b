//! What a cell's client counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Lookup, LookupOutcome, SetError};
use crate::version::Version;

/// Counts of keys since the cell was connected to; a batch of eight keys counts eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellStats {
    /// Keys read relaxed.
    pub relaxed: u64,
    /// Keys that another replica was asked for because the first was late.
    pub hedged: u64,
    /// Keys read consistently.
    pub consistent: u64,
    /// Reads of both kinds of which nothing can be said.
    pub failed: u64,
    /// Reads of both kinds that missed.
    pub misses: u64,
    /// Of those that missed, the relaxed ones.
    pub relaxed_misses: u64,
    /// Of those of which nothing can be said, the relaxed ones.
    pub relaxed_failed: u64,
    /// Times that the replicas of a key did not agree, so that it was read again.
    pub disagreed: u64,
    /// Times that a value that replicas agreed on had changed before it was read, so that it was read again.
    pub replaced: u64,
    /// Times that bytes did not prove themselves, so that a relaxed read was made again.
    pub torn: u64,
    /// Times that a key was read again because a backend went by another configuration.
    pub reconfigured: u64,
    /// Times that backends were asked for a key by CALL, because reading their memory was inconclusive.
    pub called: u64,
    /// Bytes that came from backends, buckets and torn reads included.
    pub bytes: u64,
    /// SETs and ERASEs that a quorum acknowledged.
    pub sets: u64,
    /// SETs and ERASEs that none did.
    pub set_failures: u64,
    /// Updates that a quorum acknowledged, or that left everything as it was.
    pub updates: u64,
    /// Updates that came to nothing.
    pub update_failures: u64,
    /// Updates of which it is not known whether they came about.
    pub updates_unknown: u64,
    /// Times that an update began again because another one of the same key came in between.
    pub update_retries: u64,
    /// Keys that backends were told of as read, once for all of them.
    pub touches: u64,
}

impl CellStats {
    /// Keys read, by the operation and by how it ended: relaxed reads first, outcomes in the order of
    /// [`LookupOutcome`].
    pub fn lookups(&self) -> [(&'static str, LookupOutcome, u64); 6] {
        use LookupOutcome::{Hit, Inconclusive, Miss};
        let of = |operation, all: u64, misses: u64, failed: u64| {
            let hits = all.saturating_sub(misses + failed);
            [(operation, Hit, hits), (operation, Miss, misses), (operation, Inconclusive, failed)]
        };
        let consistent_misses = self.misses.saturating_sub(self.relaxed_misses);
        let consistent_failed = self.failed.saturating_sub(self.relaxed_failed);
        let [r0, r1, r2] = of("relaxed", self.relaxed, self.relaxed_misses, self.relaxed_failed);
        let [c0, c1, c2] = of("consistent", self.consistent, consistent_misses, consistent_failed);
        [r0, r1, r2, c0, c1, c2]
    }

    /// Times that keys were read again, or asked for once more, by why.
    pub fn retries(&self) -> [(&'static str, u64); 6] {
        [
            ("disagreed", self.disagreed),
            ("replaced", self.replaced),
            ("torn", self.torn),
            ("late", self.hedged),
            ("configuration", self.reconfigured),
            ("inconclusive", self.called),
        ]
    }
}

/// A count that any thread adds to.
#[derive(Default)]
pub(super) struct StatCount(AtomicU64);

impl StatCount {
    pub(super) fn add(&self, n: u64) {
        // Relaxed: it publishes nothing but itself.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) relaxed: StatCount,
    pub(super) hedged: StatCount,
    pub(super) consistent: StatCount,
    pub(super) failed: StatCount,
    pub(super) misses: StatCount,
    pub(super) relaxed_misses: StatCount,
    pub(super) relaxed_failed: StatCount,
    pub(super) torn: StatCount,
    pub(super) reconfigured: StatCount,
    pub(super) called: StatCount,
    pub(super) disagreed: StatCount,
    pub(super) replaced: StatCount,
    pub(super) bytes: StatCount,
    pub(super) sets: StatCount,
    pub(super) set_failures: StatCount,
    pub(super) updates: StatCount,
    pub(super) update_failures: StatCount,
    pub(super) updates_unknown: StatCount,
    pub(super) update_retries: StatCount,
    pub(super) touches: StatCount,
}

impl Counters {
    /// Counts how relaxed reads ended.
    pub(super) fn count_relaxed(&self, lookups: &[Lookup]) {
        self.relaxed.add(lookups.len() as u64);
        let (misses, failed) = self.count(lookups);
        if misses + failed > 0 {
            self.relaxed_misses.add(misses);
            self.relaxed_failed.add(failed);
        }
    }

    /// Counts how consistent reads ended.
    pub(super) fn count_consistent(&self, lookups: &[Lookup]) {
        self.consistent.add(lookups.len() as u64);
        self.count(lookups);
    }

    /// Counts, and answers, how many missed, and of how many nothing can be said.
    fn count(&self, lookups: &[Lookup]) -> (u64, u64) {
        let with = |outcome| lookups.iter().filter(|lookup| lookup.outcome() == outcome).count() as u64;
        let (misses, failed) = (with(LookupOutcome::Miss), with(LookupOutcome::Inconclusive));
        // Nearly all hit, and a count is shared by all threads.
        if misses + failed > 0 {
            self.misses.add(misses);
            self.failed.add(failed);
        }
        (misses, failed)
    }

    /// Counts how SETs ended.
    pub(super) fn count_sets(&self, results: &[Result<Version, SetError>]) {
        let applied = results.iter().filter(|result| result.is_ok()).count();
        self.sets.add(applied as u64);
        self.set_failures.add((results.len() - applied) as u64);
    }

    pub(super) fn stats(&self) -> CellStats {
        CellStats {
            relaxed: self.relaxed.get(),
            hedged: self.hedged.get(),
            consistent: self.consistent.get(),
            failed: self.failed.get(),
            misses: self.misses.get(),
            relaxed_misses: self.relaxed_misses.get(),
            relaxed_failed: self.relaxed_failed.get(),
            torn: self.torn.get(),
            reconfigured: self.reconfigured.get(),
            called: self.called.get(),
            disagreed: self.disagreed.get(),
            replaced: self.replaced.get(),
            bytes: self.bytes.get(),
            sets: self.sets.get(),
            set_failures: self.set_failures.get(),
            updates: self.updates.get(),
            update_failures: self.update_failures.get(),
            updates_unknown: self.updates_unknown.get(),
            update_retries: self.update_retries.get(),
            touches: self.touches.get(),
        }
    }
}
