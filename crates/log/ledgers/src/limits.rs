//! Every bound of this crate.

use std::time::Duration;

/// Bytes of entries that are not acknowledged, over all segments, with [`ENTRY_OVERHEAD_BYTES`] for each: beyond it
/// appends are told to come again.
pub const PENDING_BYTES_MAX: u64 = 256 << 20;
/// Bytes of memory that an entry takes beside its own until it is acknowledged.
pub const ENTRY_OVERHEAD_BYTES: u64 = 256;
/// Bytes of one segment that are with its ledger's writer; the rest waits behind them. Less than the writer has
/// room for, so that handing it an entry does not wait.
pub const SENT_BYTES_MAX: usize = 16 << 20;
/// Bytes of entries that were acknowledged or read last: readers at the tail find them here, and those who read a large
/// entry in pieces.
pub const CACHE_BYTES_MAX: usize = 32 << 20;
/// Entries whose places are remembered for each segment: half of them is forgotten when there are more.
pub const POINTS_MAX: usize = 512;
/// Bytes between two entries of a segment that is written whose places are remembered.
pub const POINT_STEP_BYTES: u64 = 256 << 10;
/// Entries that one read takes bytes of.
pub const READS_MAX: usize = 1_024;
/// Bytes that an entry takes beside its own where many are read at once: its head with a digest, and its length.
pub const ENTRY_HEAD_BYTES: usize = 64;
/// Ledgers that are looked at, recovered or deleted at a time.
pub const LEDGERS_AT_A_TIME: usize = 16;
/// Ledgers that a sweep looks at before it deletes what is left over among them, and pauses.
pub const SWEPT_AT_A_TIME: usize = 64;
/// How long a node's sweep pauses after [`SWEPT_AT_A_TIME`] ledgers: it looks at some hundred a second at most.
pub const SWEEP_PAUSE: Duration = Duration::from_millis(500);
/// Ledgers that are remembered because their metadata can't be read.
pub const UNREAD_MAX: usize = 1_024;
/// Pause before something that ZooKeeper or bookies did not do is tried again.
pub const RETRY: Duration = Duration::from_secs(1);
/// How long a segment waits for a ledger to be made for it, before what was appended is given up.
pub const CREATE_PATIENCE: Duration = Duration::from_secs(20);
/// How long the store says that it takes no entries after it could not take some: nobody may try meanwhile.
pub const TROUBLE_TOLD: Duration = Duration::from_secs(30);
/// How often it is looked how many bookies take entries, which Kafka's clients are told as replicas in sync.
pub const BOOKIES_LOOK: Duration = Duration::from_secs(2);

const _: () = assert!(READS_MAX <= tailwater_bookkeeper::limits::BATCH_ENTRIES_MAX);
const _: () = assert!(
    SENT_BYTES_MAX + tailwater_bookkeeper::limits::ENTRY_BYTES_MAX
        <= tailwater_bookkeeper::limits::IN_FLIGHT_BYTES_MAX
);
