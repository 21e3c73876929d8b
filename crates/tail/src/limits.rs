//! Every bound of this crate, with its unit and its reason. What an operator may want to change has its default
//! here and its place in [`crate::WriterConfig`] or [`crate::ReaderConfig`].

use std::time::Duration;

/// Bytes of one shard that wait to be written to the data cell. Beyond it the cached stream jumps to where the
/// durable one is: readers then take the gap from the durable layer, and the log is not held up.
pub const SHADOW_BYTES_MAX: usize = 4 << 20;

/// The same for all shards of a process together: what a thousand shards may take while the cell is slow.
pub const SHADOW_BYTES_TOTAL_MAX: usize = 256 << 20;

/// Rounds of chunk writes under way at once. A shard is in one at most, so this bounds how many shards' slow
/// writes can be outstanding before the others wait.
pub const SHADOW_ROUNDS_MAX: usize = 8;

/// Bytes in one round of chunk writes, after which no further shard is added: a few CALLs for each replica.
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

/// Where [`CURSORS_MANY`] follow, a doorbell that rings sooner than this after lengths were read is answered a little
/// later: at the runtime's next tick, of which there are a thousand a second.
pub const LENGTHS_EVERY: Duration = Duration::from_micros(250);

/// From so many cursors on, waking all of them for one flush costs more than the next flushes may wait for.
pub const CURSORS_MANY: usize = 50;

/// Lengths are looked at after this long even if no doorbell rang: often enough that a cell which answers never
/// counts as silent. Stolen wake-ups are the transport's care, which looks more often.
pub const WATCH_DEADLINE: Duration = Duration::from_millis(750);

/// Bytes of one file that are fetched at once.
pub const FETCH_BYTES_MAX: u64 = 2 << 20;

/// Chunks of one file that are fetched at once: small chunks are bounded by their number.
pub const FETCH_CHUNKS_MAX: u64 = 512;

/// Bytes that one round of reads for many files asks for, after which the next round begins.
pub const ROUND_BYTES_MAX: u64 = 4 << 20;

/// Bytes that one durable read asks for: all that is fetched of a file at once.
pub const DURABLE_READ_BYTES_MAX: u32 = FETCH_BYTES_MAX as u32;

/// Fetches under way at once in one process; each is a round for many files, or one file's fallback.
pub const FETCHES_MAX: usize = 64;

/// Durable reads under way at once for what is near the tail.
pub const TAIL_READS_MAX: usize = 16;

/// Durable reads under way at once for consumers that catch up; apart from [`TAIL_READS_MAX`], so that the
/// others do not wait behind them.
pub const CATCH_UP_READS_MAX: usize = 8;

/// The pause before a failed fetch is tried again, at first; it doubles up to sixteen times as long.
pub const FETCH_RETRY: Duration = Duration::from_millis(50);

/// How long a shared feed waits for most of its readers before it leaves them behind.
pub const READERS_WAIT_MAX: Duration = Duration::from_millis(500);

/// Ends of old segments that a feed remembers of one listing.
pub const SEGMENTS_KEPT_MAX: usize = 1_024;

/// Positions from here on are nobody's: below it, sums of positions and lengths do not overflow.
pub const POSITION_END: u64 = 1 << 62;

/// A page that the metadata cell has not told of for this long is asked of the durable source.
pub const SILENT_AFTER: Duration = Duration::from_millis(850);

/// How often a silent page is asked of the durable source: with [`SILENT_AFTER`], a length is followed within a
/// second.
pub const SILENCE_CHECK_EVERY: Duration = Duration::from_millis(250);

/// A page that says the same for this long is as good as silent: its writer, which refreshes it, can't reach the
/// cell.
pub const UNCHANGED_AFTER: Duration = Duration::from_secs(11);

/// How often the durable source is asked for lengths although the metadata cell answers.
pub const DURABLE_LENGTHS_EVERY: Duration = Duration::from_secs(10);

/// Pages that are asked of the durable source at once.
pub const ASKS_MAX: usize = 16;

const _: () = assert!(UNCHANGED_AFTER.as_nanos() > 2 * PAGE_REFRESH.as_nanos());
const _: () = assert!(SILENT_AFTER.as_nanos() > WATCH_DEADLINE.as_nanos());
const _: () = assert!(SHADOW_BYTES_MAX <= SHADOW_BYTES_TOTAL_MAX);
