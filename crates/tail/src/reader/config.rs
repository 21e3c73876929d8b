//! How a process reads, and what it counts.

use std::time::Duration;

use crate::limits::{
    DURABLE_LENGTHS_EVERY, LENGTHS_EVERY, SILENCE_CHECK_EVERY, SILENT_AFTER, UNCHANGED_AFTER, WATCH_DEADLINE,
};

/// How a process reads. The defaults are the paper's where it names one.
#[derive(Clone, Copy, Debug)]
pub struct ReaderConfig {
    /// How long the cached layer may be behind before the durable one is read (algorithm 1's maxDelay: 1 s).
    pub delay_max: Duration,
    /// Bytes of each shard that are kept for the consumers that are near the tail.
    pub window_bytes: usize,
    /// Bytes that are read ahead for a consumer that catches up by itself.
    pub catch_up_window_bytes: usize,
    /// Most bytes per second of each shard, from the cell.
    pub bytes_per_s: u64,
    /// Most bytes per second of each shard from the durable layer, and most in all for a consumer that catches up by
    /// itself.
    pub catch_up_bytes_per_s: u64,
    /// Where 50 cursors or more follow, lengths are not read again sooner than this, rounded up to the runtime's next
    /// tick (1 ms); 0 reads them at every wake-up. What comes after a pause is read at once.
    pub lengths_every: Duration,
    /// Lengths are read after this long even if no doorbell rang.
    pub watch_deadline: Duration,
    /// A page that the metadata cell has not told of for this long is asked of the durable source.
    pub silent_after: Duration,
    /// How often a silent page is asked of the durable source.
    pub silence_check_every: Duration,
    /// A page that says the same for this long counts as silent: more than twice the writers' `page_refresh`.
    pub unchanged_after: Duration,
    /// How often the durable source is asked for lengths although the metadata cell answers.
    pub durable_lengths_every: Duration,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self {
            delay_max: Duration::from_secs(1),
            window_bytes: 4 << 20,
            catch_up_window_bytes: 1 << 20,
            bytes_per_s: 512 << 20,
            catch_up_bytes_per_s: 64 << 20,
            lengths_every: LENGTHS_EVERY,
            watch_deadline: WATCH_DEADLINE,
            silent_after: SILENT_AFTER,
            silence_check_every: SILENCE_CHECK_EVERY,
            unchanged_after: UNCHANGED_AFTER,
            durable_lengths_every: DURABLE_LENGTHS_EVERY,
        }
    }
}

/// Counters of a reader since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Chunks asked for in relaxed mode.
    pub relaxed: u64,
    /// Relaxed reads that were late and asked another replica too.
    pub hedged: u64,
    /// Chunks asked for in consistent mode, after a relaxed read came short.
    pub consistent: u64,
    /// Reads of the durable layer.
    pub durable: u64,
    /// Bytes that came from the data cell.
    pub cell_bytes: u64,
    /// Bytes that came from the durable layer.
    pub durable_bytes: u64,
    /// Bytes of entries that became readable.
    pub entry_bytes: u64,
}
