//! All limits of the journal: unit, reason, relation to the others.

use std::time::Duration;

/// Bytes of a page: headers and groups are padded to whole pages, so that overwriting a recycled file never
/// makes the kernel read the rest of a page from the disk first.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a file before its first record: one page.
pub const HEADER_BYTES: u64 = PAGE_BYTES;

/// Bytes of framing before each record.
pub const FRAME_BYTES: usize = 24;

/// Most bytes of one record. A flush of one shard is at most a few MiB; what is larger would hold up the
/// group it is in. Recovery keeps one record in memory.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Least bytes of a file; a record has to fit in one beside [`crate::JournalConfig::reserve_bytes`].
pub const FILE_BYTES_MIN: u64 = 64 << 10;

/// Fewest files: the one being written, one kept for the step after a failure, and one to roll into.
pub const FILES_MIN: u32 = 3;

/// Files in use from which on the owner of the oldest record is asked to trim, or half of the most files if that is
/// less. Few: a file that comes back is overwritten in the page cache that it already has, while one that is
/// zeroed costs about as much as the records it is for, in pages, in writing, and in syncs that the groups wait
/// behind.
pub const FILES_ASKED_BACK: u32 = 4;

/// Spare files that are zeroed ahead: one for the step after a failure, one for the next roll.
pub const SPARES_TARGET: u32 = 2;

/// Spare files that an ordinary roll leaves alone, so that the step after a failure has room.
pub const SPARES_FOR_FAILURE: u32 = 1;

/// Most spare files that are kept when trimmed ones come back; what is beyond is removed, so that an idle
/// journal gives the room of a busy hour back.
pub const SPARES_KEPT_MAX: u32 = 8;

/// Files that wait to be removed, beyond which no further file is begun after a failure.
pub const DEAD_MAX: usize = 64;

/// Bytes of zeros in one write, and between two syncs, while a spare file is made in the background: few
/// enough that a group's own sync doesn't wait long behind them.
pub const ZERO_SLICE_BYTES: u64 = 1 << 20;

/// Bytes that recovery reads at once.
pub const READ_BYTES: usize = 1 << 20;

/// Initial capacity in bytes of a group buffer. It grows up to the backlog and is then used again.
pub const GROUP_BYTES_INITIAL: usize = 1 << 20;

/// Group buffers kept for the next groups: one in flight, one being assembled.
pub const BUFFERS_KEPT: usize = 2;

/// Bytes of a group that is not synced at once from which on the system is asked to begin with it. What is shorter is
/// not worth a request of its own.
pub const BEGIN_SYNC_BYTES: u64 = 64 << 10;

/// Bytes that are written and not synced beyond which the next group is synced with them, before their interval is
/// over. Few enough that such a sync is short, and that whoever waits for bytes to be durable gets them in portions:
/// behind the sync of a whole file groups wait for some 25 ms, and segments are filled in one go.
pub const UNSYNCED_BYTES_MAX: u64 = 16 << 20;

/// How long after a failure the next attempt at a further file follows, at first and at most. It doubles in
/// between. The longest is how late service resumes once the disk has room.
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// See [`RETRY_MIN`].
pub const RETRY_MAX: Duration = Duration::from_secs(1);

/// Ranges of lost positions that are remembered for late waiters, 16 bytes each. A position below the oldest
/// one that is remembered counts as lost once there were more.
pub const GAPS_MAX: usize = 1024;

const _: () = assert!(FILES_MIN > SPARES_FOR_FAILURE + 1);
const _: () = assert!(SPARES_TARGET > SPARES_FOR_FAILURE && SPARES_TARGET <= SPARES_KEPT_MAX);
const _: () = assert!(FILE_BYTES_MIN.is_multiple_of(PAGE_BYTES) && FILE_BYTES_MIN > HEADER_BYTES);
const _: () = assert!(FRAME_BYTES.is_multiple_of(8));

const _: () = {
    assert!(UNSYNCED_BYTES_MAX >= RECORD_BYTES_MAX as u64, "one record is written before it is synced");
    assert!(BEGIN_SYNC_BYTES <= UNSYNCED_BYTES_MAX, "the disk begins before the sync has to");
    assert!(RECORD_BYTES_MAX + FRAME_BYTES < u32::MAX as usize, "a frame's length is 32 bits wide");
    assert!(ZERO_SLICE_BYTES.is_multiple_of(PAGE_BYTES), "whole pages are zeroed");
    assert!(RETRY_MIN.as_nanos() <= RETRY_MAX.as_nanos(), "a pause grows");
    assert!(SPARES_KEPT_MAX as usize <= DEAD_MAX, "what is asked back can be kept");
};
