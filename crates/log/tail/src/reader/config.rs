//! How a process reads, and what it counts.

use std::time::Duration;

use crate::limits::{
    CATCH_UP_BYTES_PER_S, CATCH_UP_WINDOW_BYTES, DELAY_MAX, DURABLE_LENGTHS_EVERY, INTERVAL_MAX,
    INTERVAL_MIN, PAGE_REFRESH, READ_BYTES_PER_S, SILENCE_CHECK_EVERY, SILENT_AFTER, UNCHANGED_BEYOND,
    WATCH_DEADLINE, WINDOW_BYTES, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN,
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
    /// Most bytes per second of all shards and consumers together, wherever they are read.
    pub bytes_per_s: u64,
    /// The same beyond what is written meanwhile: how fast the backlogs of all shards and consumers shrink together.
    /// Those that wait for it go in turn.
    pub catch_up_bytes_per_s: u64,
    /// Lengths are not read again sooner than this, rounded up to the runtime's next tick (1 ms); 0 reads them at every
    /// wake-up. What comes after a pause is read at once. The longer it is, the fewer and the larger are the reads.
    /// From [`crate::limits::UNWATCHED_PAUSE_MIN`] on no doorbell is waited for as long as each read brings something
    /// new. `None`: 250 us where 50 cursors or more follow, and 0 where fewer do.
    pub lengths_every: Option<Duration>,
    /// Lengths are read after this long even if no doorbell rang.
    pub watch_deadline: Duration,
    /// A page that the metadata cell has not told of for this long is asked of the durable source.
    pub silent_after: Duration,
    /// How often a silent page is asked of the durable source.
    pub silence_check_every: Duration,
    /// How often the writers publish an idle page again. A page that says the same for more than twice as long counts
    /// as silent. A client takes what its node tells.
    pub page_refresh: Duration,
    /// How often the durable source is asked for the lengths of a page (64 shards of a stream) of which the metadata
    /// cell says nothing new: one page each time, however many are followed. One of which it says more than the cell
    /// counts as silent, and the others are all asked at once.
    pub durable_lengths_every: Duration,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self {
            delay_max: DELAY_MAX,
            window_bytes: WINDOW_BYTES,
            catch_up_window_bytes: CATCH_UP_WINDOW_BYTES,
            bytes_per_s: READ_BYTES_PER_S,
            catch_up_bytes_per_s: CATCH_UP_BYTES_PER_S,
            lengths_every: None,
            watch_deadline: WATCH_DEADLINE,
            silent_after: SILENT_AFTER,
            silence_check_every: SILENCE_CHECK_EVERY,
            page_refresh: PAGE_REFRESH,
            durable_lengths_every: DURABLE_LENGTHS_EVERY,
        }
    }
}

/// A [`ReaderConfig`] that nothing can be read with, and what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ReaderConfig::{0}")]
pub struct ReaderConfigError(String);

impl ReaderConfig {
    /// Whether it makes sense. [`crate::TailReader::start`] takes any.
    ///
    /// # Errors
    /// The first thing that does not, and what it should be.
    pub fn check(&self) -> Result<(), ReaderConfigError> {
        let ensure = |holds: bool, why: &dyn Fn() -> String| {
            if holds { Ok(()) } else { Err(ReaderConfigError(why())) }
        };
        for (name, bytes) in
            [("window_bytes", self.window_bytes), ("catch_up_window_bytes", self.catch_up_window_bytes)]
        {
            ensure((WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&bytes), &|| {
                format!("{name} = {bytes} is not between {WINDOW_BYTES_MIN} and {WINDOW_BYTES_MAX}")
            })?;
        }
        for (name, bytes) in
            [("bytes_per_s", self.bytes_per_s), ("catch_up_bytes_per_s", self.catch_up_bytes_per_s)]
        {
            ensure(bytes > 0, &|| format!("{name} = 0 reads nothing: use at least 1"))?;
        }
        for (name, interval) in [
            ("watch_deadline", self.watch_deadline),
            ("silent_after", self.silent_after),
            ("silence_check_every", self.silence_check_every),
            ("page_refresh", self.page_refresh),
            ("durable_lengths_every", self.durable_lengths_every),
        ] {
            ensure((INTERVAL_MIN..=INTERVAL_MAX).contains(&interval), &|| {
                format!("{name} = {interval:?} is not between {INTERVAL_MIN:?} and {INTERVAL_MAX:?}")
            })?;
        }
        let lengths_every = self.lengths_every.unwrap_or_default();
        for (name, interval) in [("delay_max", self.delay_max), ("lengths_every", lengths_every)] {
            ensure(interval <= INTERVAL_MAX, &|| {
                format!("{name} = {interval:?} is more than {INTERVAL_MAX:?}")
            })?;
        }
        // Or a cell that answers whenever it is asked would count as silent in between.
        ensure(self.watch_deadline < self.silent_after, &|| {
            let Self { watch_deadline, silent_after, .. } = self;
            format!("watch_deadline = {watch_deadline:?} is not shorter than silent_after = {silent_after:?}")
        })
    }

    /// A page that says the same for this long is as good as silent: its writer, which refreshes it, can't reach the
    /// cell.
    pub(crate) fn unchanged_after(&self) -> Duration {
        self.page_refresh * 2 + UNCHANGED_BEYOND
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
    /// Blocks that came through the window of another process, and were not read again.
    pub window_blocks: u64,
    /// Bytes of entries in them.
    pub window_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_can_be_read_with_is_refused_with_what_it_should_be() {
        let good = ReaderConfig::default();
        assert_eq!(good.check(), Ok(()));
        let ms = Duration::from_millis;
        for (config, named) in [
            (ReaderConfig { window_bytes: 0, ..good }, "window_bytes = 0 is not between 4096 and"),
            (ReaderConfig { catch_up_window_bytes: usize::MAX, ..good }, "catch_up_window_bytes"),
            (ReaderConfig { bytes_per_s: 0, ..good }, "bytes_per_s = 0 reads nothing: use at least 1"),
            (ReaderConfig { catch_up_bytes_per_s: 0, ..good }, "catch_up_bytes_per_s"),
            (ReaderConfig { silence_check_every: Duration::ZERO, ..good }, "silence_check_every = 0ns"),
            (ReaderConfig { durable_lengths_every: Duration::MAX, ..good }, "durable_lengths_every"),
            (ReaderConfig { delay_max: Duration::MAX, ..good }, "delay_max"),
            (ReaderConfig { lengths_every: Some(Duration::MAX), ..good }, "lengths_every"),
            (
                ReaderConfig { silent_after: ms(500), ..good },
                "watch_deadline = 750ms is not shorter than silent_after = 500ms",
            ),
        ] {
            let why = config.check().expect_err(named).to_string();
            assert!(why.starts_with("ReaderConfig::") && why.contains(named), "{why}");
        }
        let quick = ReaderConfig { silent_after: ms(20), watch_deadline: ms(10), ..good };
        assert_eq!(ReaderConfig { delay_max: Duration::ZERO, ..quick }.check(), Ok(()));
    }

    #[test]
    fn a_page_may_say_the_same_for_longer_than_two_refreshes() {
        for page_refresh in [1, 5_000, 3_600_000].map(Duration::from_millis) {
            let config = ReaderConfig { page_refresh, ..ReaderConfig::default() };
            assert!(config.unchanged_after() > page_refresh * 2);
        }
    }
}
