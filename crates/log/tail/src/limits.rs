//! Every bound of this crate, with its unit and its reason.
//!
//! What somebody may want to change has its default here and its place in [`crate::ReaderConfig`], which applications
//! set, or [`crate::WriterConfig`], of which a node's configuration has what its operator may want to change.
//! The paper (Fast ACS) names these:
//!
//! | what | the paper's | here |
//! |---|---|---|
//! | how long the cached layer may be behind (algorithm 1) | 1 s | [`DELAY_MAX`] |
//! | lengths in the metadata cell are polled every | 50 ms | not polled: the doorbell, and [`WATCH_DEADLINE`] without one; [`UNWATCHED_PAUSE_MIN`] |
//! | lengths in the durable layer are polled every | less often | [`DURABLE_LENGTHS_EVERY`] |
//! | a reader's byte rate is limited to | by deployment | [`READ_BYTES_PER_S`], [`CATCH_UP_BYTES_PER_S`] |
//! | a lock that nobody releases is seized after | a small delay | [`crate::lock::LockTiming`] |
//! | chunk size, the cells' time to live and deadlines, hedging | 4 KiB; 1 min, 24 h; below 1 s; 30 ms | the stream's, and the cells' (`tailwater-cache`) |
//!
//! Constant is what only has to fit the rest: how much is fetched, asked and written at once ([`FETCH_BYTES_MAX`] to
//! [`CATCH_UP_READS_MAX`], [`ASKS_MAX`], [`SHADOW_ROUNDS_MAX`], [`SHADOW_ROUND_BYTES_MAX`],
//! [`SHADOW_ROUND_PARTS_MAX`]), which follows from the sizes of messages; the pause after a fetch failed
//! ([`FETCH_RETRY`]), which nobody waits for while all is well; and [`READERS_WAIT_MAX`], [`CURSORS_MANY`] and
//! [`SEGMENTS_KEPT_MAX`], which change what is done at once and never what is read.

use std::time::Duration;

/// How long the cached layer may be behind before the durable one is read: the paper's maxDelay.
pub const DELAY_MAX: Duration = Duration::from_secs(1);

/// Bytes of each shard that are kept for the consumers near the tail: two of the longest fetches.
pub const WINDOW_BYTES: usize = 4 << 20;

/// Bytes that are read ahead for a consumer that catches up by itself; each such consumer costs so much.
pub const CATCH_UP_WINDOW_BYTES: usize = 1 << 20;

/// The least and the most bytes that either window may be set to: a chunk, and what a process can have of many shards.
pub const WINDOW_BYTES_MIN: usize = 4 << 10;
/// See [`WINDOW_BYTES_MIN`].
pub const WINDOW_BYTES_MAX: usize = 1 << 30;

/// Most bytes per second of a process: above what a node's writers reach, so that only a backlog is slowed.
pub const READ_BYTES_PER_S: u64 = 512 << 20;

/// Most bytes per second of a process beyond what is written meanwhile, which is how fast its backlogs shrink together:
/// many processes share the disk that it may come from, and the processor.
pub const CATCH_UP_BYTES_PER_S: u64 = 64 << 20;

/// A backlog is read in pieces of this at least, whatever the limits: a tenth of a millisecond of a core, and large
/// enough for a disk.
pub const CATCH_UP_STEP_BYTES: u64 = 256 << 10;

/// The shortest and the longest that a reader's intervals may be set to: shorter ones would be polling all the time,
/// and after longer ones nobody waits any more.
pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// See [`INTERVAL_MIN`].
pub const INTERVAL_MAX: Duration = Duration::from_secs(3_600);

/// Bytes of one shard that wait to be written to the data cell. Beyond it the cached stream jumps to where the
/// durable one is: readers then take the gap from the durable layer, and the log is not held up.
pub const SHADOW_BYTES_MAX: usize = 4 << 20;

/// The same for all shards of a process together: what a thousand shards may take while the cell is slow.
pub const SHADOW_BYTES_TOTAL_MAX: usize = 256 << 20;

/// Rounds of chunk writes under way at once. A shard is in one at most, so this bounds how many shards' slow
/// writes can be outstanding before the others wait.
pub const SHADOW_ROUNDS_MAX: usize = 8;

/// Bytes of the end of a shard that go back into the data cell after a start, when they are only on the disk: the
/// longest fetch, and half of what may wait for the cell, so that what is appended meanwhile has room.
pub const REFILL_BYTES_MAX: u64 = SHADOW_BYTES_MAX as u64 / 2;

/// The same for all shards of a process together: a quarter of a data cell of the default size, so that what other
/// nodes have in it stays.
pub const REFILL_BYTES_TOTAL_MAX: u64 = 64 << 20;

/// Bytes in one round of chunk writes, after which no further shard is added: a few CALLs for each replica.
pub const SHADOW_ROUND_BYTES_MAX: usize = 2 << 20;

/// Shards in one round, after which no further one is added: what a round may overdraw [`SHADOW_WRITES_PER_S`] by.
pub const SHADOW_ROUND_PARTS_MAX: usize = 1_024;

/// How often in a second some shard's chunks are written to the data cell, for all shards together. A write takes some
/// 5 us of all processes, for the partial chunk goes with it each time, from its beginning and to three backends: with
/// one for each entry of a few records it would be a third of all that the entry takes. With so many writes each of a
/// thousand shards that always have something has one every 33 ms, and each of a hundred one every 3 ms.
pub const SHADOW_WRITES_PER_S: u64 = 30_000;

/// How long a durable length may wait for its bytes to be cached before it is published alone. A reader does
/// not turn to the durable layer for a hundred times as long (algorithm 1), so nothing is lost by it.
pub const PUBLISH_DELAY: Duration = Duration::from_millis(10);

/// After a failed write to a cell, how long until the next attempt for the same shard or page.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often an idle shard's partial chunk is written again: a third of the paper's time to live of a chunk.
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

/// From so many bytes on, what a socket brought in one piece is read from where it was received; it may keep some times
/// its length in memory. What is shorter is copied, which costs little.
pub const WHOLE_BYTES_MIN: u64 = 64 << 10;

/// Bytes that one round of reads for many files asks for, after which the next round begins.
pub const ROUND_BYTES_MAX: u64 = 4 << 20;

/// Bytes that one durable read asks for: all that is fetched of a file at once.
pub const DURABLE_READ_BYTES_MAX: u32 = FETCH_BYTES_MAX as u32;

/// Fetches under way at once in one process for what is near the tail; each is a round for many files, or one file's
/// fallback.
pub const FETCHES_MAX: usize = 64;

/// The same for consumers that catch up; apart from [`FETCHES_MAX`], so that the others do not wait behind them. Two
/// for each of their durable reads: one that is read, one that waits for its turn.
pub const CATCH_UP_FETCHES_MAX: usize = 2 * CATCH_UP_READS_MAX;

/// Durable reads under way at once for what is near the tail.
pub const TAIL_READS_MAX: usize = 16;

/// Durable reads under way at once for consumers that catch up; apart from [`TAIL_READS_MAX`], so that the
/// others do not wait behind them.
pub const CATCH_UP_READS_MAX: usize = 8;

/// The pause before a failed fetch is tried again, at first; it doubles up to sixteen times as long.
pub const FETCH_RETRY: Duration = Duration::from_millis(50);

/// How long a shared feed waits for most of its readers before it leaves them behind.
pub const READERS_WAIT_MAX: Duration = Duration::from_millis(500);

/// Messages of a window that wait for one feed, of which each takes 48 bytes; beyond it the oldest are forgotten. A
/// window says some hundred in a second of each shard, and readers keep its arenas of some seconds.
pub const PARKED_MAX: usize = 16_384;

/// Ends of old segments that a feed remembers of one listing.
pub const SEGMENTS_KEPT_MAX: usize = 1_024;

/// Positions from here on are nobody's: below it, sums of positions and lengths do not overflow.
pub const POSITION_END: u64 = 1 << 62;

/// A page that the metadata cell has not told of for this long is asked of the durable source.
pub const SILENT_AFTER: Duration = Duration::from_millis(850);

/// A page that a window follows for this process is asked of the durable source after this long without news: the
/// window says that it is alive several times in a second.
pub const FED_SILENT_AFTER: Duration = Duration::from_secs(3);

/// How often a silent page is asked of the durable source: with [`SILENT_AFTER`], a length is followed within a
/// second.
pub const SILENCE_CHECK_EVERY: Duration = Duration::from_millis(250);

/// How much longer than two refreshes a page may say the same before it counts as silent: its writer's own delays.
pub const UNCHANGED_BEYOND: Duration = Duration::from_secs(1);

/// Where lengths are read no more often than this, and the last read brought something new, the next one does not wait
/// for the doorbell: over TCP that takes a request of each backend and its answer, which is as much as the read itself,
/// and whoever rings has nobody to wake. The last of what flows is followed by one read that brings nothing.
pub const UNWATCHED_PAUSE_MIN: Duration = Duration::from_millis(1);

/// How often the durable source is asked for the lengths of a page although the metadata cell answers, one page each
/// time: a writer that can't reach the cell is noticed within two seconds by whoever follows one page, and an idle
/// process costs its node a CALL in two seconds whatever it follows.
pub const DURABLE_LENGTHS_EVERY: Duration = Duration::from_secs(2);

/// Pages that are asked of the durable source at once.
pub const ASKS_MAX: usize = 16;

const _: () = assert!(SILENT_AFTER.as_nanos() > WATCH_DEADLINE.as_nanos());
const _: () = assert!(SHADOW_BYTES_MAX <= SHADOW_BYTES_TOTAL_MAX);

const _: () = {
    assert!(
        WINDOW_BYTES_MIN <= CATCH_UP_WINDOW_BYTES && CATCH_UP_WINDOW_BYTES <= WINDOW_BYTES,
        "in this order"
    );
    assert!(WINDOW_BYTES <= WINDOW_BYTES_MAX, "the default can be configured");
    assert!(
        FETCH_BYTES_MAX <= WINDOW_BYTES as u64 && FETCH_BYTES_MAX <= ROUND_BYTES_MAX,
        "any fetch has room"
    );
    assert!(CATCH_UP_STEP_BYTES <= FETCH_BYTES_MAX && WHOLE_BYTES_MIN <= FETCH_BYTES_MAX, "parts of a fetch");
    assert!(CATCH_UP_BYTES_PER_S <= READ_BYTES_PER_S, "the tail goes first");
    assert!(FETCH_CHUNKS_MAX <= tailwater_cache::limits::KEYS_PER_LOOKUP_MAX as u64, "a fetch is one lookup");
    assert!(SHADOW_ROUND_BYTES_MAX <= SHADOW_BYTES_MAX, "a round is part of what waits");
    assert!(REFILL_BYTES_MAX <= SHADOW_BYTES_MAX as u64 / 2, "what goes back leaves room for what is new");
    assert!(REFILL_BYTES_TOTAL_MAX <= SHADOW_BYTES_TOTAL_MAX as u64 / 2, "of all shards, too");
    assert!(SHADOW_ROUND_PARTS_MAX as u64 <= SHADOW_WRITES_PER_S, "a round is less than a second's writes");
    assert!(PAGE_REFRESH.as_nanos() <= CHUNK_REFRESH.as_nanos(), "lengths are never older than bytes");
    assert!(RETRY_DELAY.as_nanos() < PAGE_REFRESH.as_nanos(), "a page is tried again before it expires");
    assert!(PUBLISH_DELAY.as_nanos() < DELAY_MAX.as_nanos(), "what is published is seen in time");
    assert!(INTERVAL_MIN.as_nanos() <= INTERVAL_MAX.as_nanos(), "there are intervals");
    assert!(SEGMENTS_KEPT_MAX >= tailwater_format::limits::SEGMENTS_PER_REPLY_MAX, "a reply is kept");
    assert!(CATCH_UP_READS_MAX <= TAIL_READS_MAX, "the tail has as many turns");
};
