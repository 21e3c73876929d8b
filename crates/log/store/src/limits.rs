//! Every bound of this crate, each with its unit, its reason and its relation to the others.

use std::time::Duration;

/// Stripes that the shards are spread over; one lock each, held for one append (well under a microsecond).
/// 64 makes two appenders meet on a lock rarely even with dozens of threads, and costs 64 small maps.
pub const STRIPES: usize = 64;

/// Bytes that one [`read`](crate::SegmentStore::read) answers at most. A caller that wants more calls again;
/// the reader threads' memory stays below `READERS_MAX * READ_BYTES_MAX` plus the queue's.
pub const READ_BYTES_MAX: usize = 4 << 20;

/// Threads that read segment files. Two cores' worth of page cache copies; more only queue on the disk.
pub const READER_TASKS: usize = 2;

/// Bytes of a segment file that are asked of the disk at once: a longer request would keep the journal's sync waiting
/// behind it, which costs every producer.
pub const DISK_READ_BYTES: usize = 256 << 10;

/// Reads that wait for a reader thread; beyond it a read is answered [`Busy`](crate::StoreError::Busy).
pub const READ_QUEUE: usize = 1024;

/// Bytes of one write into a segment file: large enough for sequential bandwidth, small enough that a
/// buffer it is gathered in stays in the second-level cache's neighbourhood.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// Entries of one write that have so many bytes on average are written from where they are. Joining 1 MiB of them
/// first took an eighth of the write's time; of entries of 300 bytes it saved a tenth.
pub const JOINED_BYTES_MAX: usize = 4 << 10;

/// Bytes of one write into a segment file from which on the system begins at once to bring them to the disk. What is
/// shorter is not worth a request of its own.
pub const BEGIN_SYNC_BYTES: u64 = 64 << 10;

/// Segments written and synced as one batch, which is also how many file handles the filler holds. Below
/// half of the usual limit of 1,024 descriptors, together with [`READ_HANDLES_MAX`].
pub const FILL_BATCH: usize = 256;

/// Threads that sync for the filler. A file system commits what is synced at the same time together: 120
/// files took 12 ms one by one and 3.6 ms from 16 threads. More would keep the journal's own sync waiting.
pub const SYNC_TASKS: usize = 8;

/// Open files kept for readers, least recently used dropped first.
pub const READ_HANDLES_MAX: usize = 128;

/// Points of sealed segments' sparse indexes that are kept in memory, 24 bytes each: 24 MiB, which is 64 segments of
/// 1 GiB at 64 KiB a point. As many again of indexes that took a scan, which have fewer points each the more they are.
pub const INDEX_POINTS_MAX: usize = 1 << 20;

/// Largest sidecar accepted, in bytes: the points of a 64 GiB segment at 64 KiB a point.
pub const SIDECAR_BYTES_MAX: u64 = 24 << 20;

/// Largest checkpoint accepted, in bytes: two million open segments.
pub const CHECKPOINT_BYTES_MAX: u64 = 256 << 20;

/// Memory that one pending entry takes besides its bytes: its place in the queue and its allocation.
pub const PIECE_OVERHEAD: u64 = 128;

/// First and longest pause before filling is tried again after the disk refused.
pub const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
pub const RETRY_MAX: Duration = Duration::from_secs(5);

/// What an owner may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes (with [`PIECE_OVERHEAD`] for each entry) held in memory until they are synced in segment files;
    /// an append beyond it is answered [`Full`](crate::StoreError::Full). Recovery may exceed it by what the
    /// journal holds. Should be at least four times `sync_bytes`.
    pub pending_bytes_max: u64,
    /// A segment with so many pending bytes is written (not synced) at once.
    pub fill_bytes: u64,
    /// Pending bytes of all segments that make a round of writing, syncing and trimming start.
    pub sync_bytes: u64,
    /// Journal bytes since the last trim that make a round start, whoever wrote them. Must be well below
    /// the journal's capacity (half of it), or the journal runs full before it can be trimmed.
    pub journal_bytes: u64,
    /// Age of the oldest pending bytes that makes a round start.
    pub sync_age: Duration,
    /// How often the filler looks at ages and at the journal.
    pub tick: Duration,
    /// Bytes of a segment between two points of its sparse indexes; 4 to 64 KiB are sensible.
    pub index_step: u32,
}

impl StoreConfig {
    /// The default, for the relations below.
    const fn usual() -> Self {
        Self {
            pending_bytes_max: 512 << 20,
            fill_bytes: 256 << 10,
            sync_bytes: 64 << 20,
            journal_bytes: 128 << 20,
            sync_age: Duration::from_secs(5),
            tick: Duration::from_millis(500),
            index_step: 64 << 10,
        }
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self::usual()
    }
}

const _: () = {
    assert!(WRITE_BYTES_MAX as u64 >= BEGIN_SYNC_BYTES, "a large write begins its way to the disk");
    assert!(DISK_READ_BYTES <= READ_BYTES_MAX, "a read is some of the disk's");
    assert!(READ_QUEUE >= READER_TASKS, "every reader has a queue");
    assert!(SYNC_TASKS <= FILL_BATCH, "a batch keeps all of them busy");
    assert!(RETRY_MIN.as_nanos() <= RETRY_MAX.as_nanos(), "a pause grows");
    assert!(SIDECAR_BYTES_MAX < CHECKPOINT_BYTES_MAX, "one segment is less than all");
};

const _: () = {
    let config = StoreConfig::usual();
    let entry_max = tailwater_format::ENTRY_BYTES_MAX as u64 + PIECE_OVERHEAD;
    assert!(config.fill_bytes <= config.sync_bytes, "files are written before they are synced");
    assert!(config.sync_bytes + entry_max < config.pending_bytes_max, "and synced before memory is full");
    assert!(config.sync_bytes <= config.journal_bytes, "and before the journal has much that is not needed");
    assert!(config.index_step as usize <= READ_BYTES_MAX, "from one point to the next is one read");
    assert!(config.tick.as_nanos() < config.sync_age.as_nanos(), "an age is looked at in time");
};
