//! Counters of cold storage, always on. Each stands for itself, so all accesses are relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// How cold storage is doing, since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColdStats {
    /// Segments that were copied, read back and compared.
    pub segments_copied: u64,
    /// Bytes that were put.
    pub bytes_put: u64,
    /// Attempts to copy a segment, or to remove or look for copies, that failed.
    pub failures: u64,
    /// Bytes that readers were given from it.
    pub bytes_read: u64,
    /// Blocks and indexes that could not be had for readers.
    pub reads_failed: u64,
    /// Copies that were removed, as no record names them any more.
    pub copies_removed: u64,
    /// Folders of copies that no record named and a sweep removed.
    pub copies_swept: u64,
    /// Completed segments that wait to be copied.
    pub segments_waiting: u64,
    /// Segments whose bytes are not what was written, so that they can't be copied.
    pub segments_damaged: u64,
    /// Folders of streams that no record says anything of. They are left alone.
    pub streams_unknown: u64,
    /// Why it does not do what it is asked, at the moment.
    pub trouble: Option<Arc<str>>,
}

/// The counters behind [`ColdStats`].
#[derive(Debug, Default)]
#[allow(missing_docs)] // as there
pub struct ColdCounters {
    pub segments_copied: AtomicU64,
    pub bytes_put: AtomicU64,
    pub failures: AtomicU64,
    pub bytes_read: AtomicU64,
    pub reads_failed: AtomicU64,
    pub copies_removed: AtomicU64,
    pub copies_swept: AtomicU64,
    pub segments_waiting: AtomicU64,
    pub segments_damaged: AtomicU64,
    pub streams_unknown: AtomicU64,
    pub trouble: Mutex<Option<Arc<str>>>,
}

impl ColdCounters {
    /// One more.
    pub fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters at this moment.
    pub fn get(&self) -> ColdStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ColdStats {
            segments_copied: of(&self.segments_copied),
            bytes_put: of(&self.bytes_put),
            failures: of(&self.failures),
            bytes_read: of(&self.bytes_read),
            reads_failed: of(&self.reads_failed),
            copies_removed: of(&self.copies_removed),
            copies_swept: of(&self.copies_swept),
            segments_waiting: of(&self.segments_waiting),
            segments_damaged: of(&self.segments_damaged),
            streams_unknown: of(&self.streams_unknown),
            trouble: self.trouble.lock().clone(),
        }
    }
}
