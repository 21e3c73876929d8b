//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// Bytes of one shard that wait to be written to the data cell. Beyond it the cached stream jumps to where the
/// durable one is: readers then take the gap from the durable layer, and the log is not held up.
pub const SHADOW_BYTES_MAX: usize = 4 << 20;

/// Rounds of chunk writes under way at once. A shard is in one at most, so this bounds how many shards' slow
/// writes can be outstanding before the others wait.
pub const SHADOW_ROUNDS_MAX: usize = 8;

/// Bytes in one round of chunk writes: a few CALLs for each replica.
pub const SHADOW_ROUND_BYTES_MAX: usize = 2 << 20;

/// How long a durable length may wait for its bytes to be cached before it is published alone. A reader does
/// not turn to the durable layer for a hundred times as long (algorithm 1), so nothing is lost by it.
pub const PUBLISH_DELAY: Duration = Duration::from_millis(10);

/// After a failed write to a cell, how long until the next attempt for the same shard or page.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often an idle shard's partial chunk is written again: a third of the data cell's time to live.
pub const CHUNK_REFRESH: Duration = Duration::from_secs(20);

/// How often an idle page of tails is published again; also how long a metadata cell that was emptied is
/// without an idle page.
pub const PAGE_REFRESH: Duration = Duration::from_secs(5);

/// Lengths are looked at after this long even if no doorbell rang (a wake-up can be stolen).
pub const WATCH_DEADLINE: Duration = Duration::from_millis(50);

/// Chunks that one round of reads asks for: 4 MiB of the usual size.
pub const ROUND_CHUNKS_MAX: usize = 1_024;

/// Bytes that one durable read asks for.
pub const DURABLE_READ_BYTES_MAX: u32 = 1 << 20;

/// Fetches under way at once in one process; each is a round for many files, or one file's fallback.
pub const FETCHES_MAX: usize = 64;

/// A page that the metadata cell has not told of for this long is asked of the durable source.
pub const SILENT_AFTER: Duration = Duration::from_millis(500);

/// How often to look for silent pages: with [`SILENT_AFTER`], a length is followed within a second.
pub const SILENCE_CHECK_EVERY: Duration = Duration::from_millis(250);

/// How often the durable source is asked for lengths although the metadata cell answers.
pub const DURABLE_LENGTHS_EVERY: Duration = Duration::from_secs(10);
