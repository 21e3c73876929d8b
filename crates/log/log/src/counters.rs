//! Counters, always on. Each stands for itself, so all accesses are relaxed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AppendError;
use crate::shard::AppendAnswer;

/// How a log is doing, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Appends that were acknowledged.
    pub appends: u64,
    /// Records in them.
    pub records: u64,
    /// Entries that became visible to readers.
    pub entries: u64,
    /// Bytes in them.
    pub entry_bytes: u64,
    /// Appends that were refused or failed after they had reached their shard's owner.
    pub appends_failed: u64,
    /// Appends that were lost with a failed sync; also counted as failed.
    pub appends_lost: u64,
    /// Bytes of entries that were read for copies in other clusters and were in memory.
    pub copied_memory_bytes: u64,
    /// Those that were not, and came from the store.
    pub copied_store_bytes: u64,
    /// Bytes of appends that wait for their answer at the moment.
    pub in_flight_bytes: u64,
    /// Bytes of the newest entries that are kept in memory at the moment.
    pub hot_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    appends: AtomicU64,
    records: AtomicU64,
    entries: AtomicU64,
    entry_bytes: AtomicU64,
    appends_failed: AtomicU64,
    appends_lost: AtomicU64,
    copied_memory_bytes: AtomicU64,
    copied_store_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn answered(&self, result: &Result<AppendAnswer, AppendError>) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        match result {
            Ok(appended) => {
                add(&self.appends, 1);
                add(&self.records, appended.last_offset.0 - appended.base_offset.0 + 1);
            }
            Err(error) => {
                add(&self.appends_failed, 1);
                if matches!(error, AppendError::Lost(_)) {
                    add(&self.appends_lost, 1);
                }
            }
        }
    }

    pub(crate) fn entry(&self, bytes: usize) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.entry_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of entries were read for a copy.
    pub(crate) fn copied_on(&self, from_memory: bool, bytes: usize) {
        let counter = if from_memory { &self.copied_memory_bytes } else { &self.copied_store_bytes };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self, in_flight_bytes: u64, hot_bytes: u64) -> LogStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStats {
            appends: of(&self.appends),
            records: of(&self.records),
            entries: of(&self.entries),
            entry_bytes: of(&self.entry_bytes),
            appends_failed: of(&self.appends_failed),
            appends_lost: of(&self.appends_lost),
            copied_memory_bytes: of(&self.copied_memory_bytes),
            copied_store_bytes: of(&self.copied_store_bytes),
            in_flight_bytes,
            hot_bytes,
        }
    }
}
