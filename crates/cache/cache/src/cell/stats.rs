//! What a cell's client counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Lookup, SetError};
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
    /// Reads that failed.
    pub failed: u64,
    /// Reads that missed.
    pub misses: u64,
    /// Times that the replicas of a key did not agree, so that it was read again.
    pub disagreed: u64,
    /// Times that a value that replicas agreed on had changed before it was read, so that it was read again.
    pub replaced: u64,
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
    pub(super) disagreed: StatCount,
    pub(super) replaced: StatCount,
    pub(super) bytes: StatCount,
    pub(super) sets: StatCount,
    pub(super) set_failures: StatCount,
    pub(super) updates: StatCount,
    pub(super) update_failures: StatCount,
    pub(super) updates_unknown: StatCount,
    pub(super) update_retries: StatCount,
}

impl Counters {
    /// Counts how reads ended.
    pub(super) fn count(&self, lookups: &[Lookup]) {
        let misses = lookups.iter().filter(|lookup| matches!(lookup, Lookup::Miss)).count();
        let failed = lookups.iter().filter(|lookup| matches!(lookup, Lookup::Failed(_))).count();
        if misses > 0 {
            self.misses.add(misses as u64);
        }
        if failed > 0 {
            self.failed.add(failed as u64);
        }
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
            disagreed: self.disagreed.get(),
            replaced: self.replaced.get(),
            bytes: self.bytes.get(),
            sets: self.sets.get(),
            set_failures: self.set_failures.get(),
            updates: self.updates.get(),
            update_failures: self.update_failures.get(),
            updates_unknown: self.updates_unknown.get(),
            update_retries: self.update_retries.get(),
        }
    }
}
