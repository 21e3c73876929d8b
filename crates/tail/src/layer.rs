//! Which layer to read a growing file from: Fast ACS, algorithm 1 ("Delayed Colossus Reads").
//!
//! The cached layer usually leads and costs the durable store nothing, so a reader waits for it; only when it
//! has been behind for longer than the reader can bear does the reader turn to the durable layer.

use std::collections::VecDeque;
use std::time::Duration;

use tailwater_env::Instant;
use tailwater_format::Position;

/// How many past durable lengths are remembered. When a cached layer falls behind by more, neighbours are
/// merged, which only makes a reader wait for the cache a little longer.
const HISTORY_MAX: usize = 1_024;

/// Decides, for one file and one reader, when to stop waiting for the cached layer.
#[derive(Debug)]
pub struct DelayedDurable {
    delay_max: Duration,
    /// Durable lengths that the cached layer has not reached yet, with the time each was first seen; both
    /// grow from front to back.
    history: VecDeque<(Instant, Position)>,
}

impl DelayedDurable {
    /// `delay_max` is how long the cached layer may be behind (the paper's: 1 s).
    pub fn new(delay_max: Duration) -> Self {
        Self { delay_max, history: VecDeque::new() }
    }

    /// Whether to read from the durable layer what the cached one does not have, seeing both lengths at `now`.
    pub fn should_read_durable(&mut self, now: Instant, cached: Position, durable: Position) -> bool {
        let last = self.history.back().map_or(Position(0), |&(_, position)| position);
        if durable > last {
            if self.history.len() == HISTORY_MAX {
                self.history.pop_back();
            }
            self.history.push_back((now, durable));
        }
        while self.history.front().is_some_and(|&(_, position)| position <= cached) {
            self.history.pop_front();
        }
        match self.history.front() {
            None => false,
            Some(&(seen, _)) if now > seen + self.delay_max => {
                self.history.clear();
                true
            }
            Some(_) => false,
        }
    }

    /// When the answer may change although nothing was published: the moment the wait is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.history.front().map(|&(seen, _)| seen + self.delay_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * MS)
    }

    #[test]
    fn a_cache_that_keeps_up_is_never_left() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        for step in 0..10_000 {
            // The cache is one step behind, for ever, but each length for one step only.
            let durable = Position(step * 100 + 100);
            assert!(!layer.should_read_durable(at(step * 10), Position(step * 100), durable));
        }
    }

    #[test]
    fn a_cache_that_stops_is_left_after_the_delay_and_not_before() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!layer.should_read_durable(at(0), Position(100), Position(200)));
        assert!(!layer.should_read_durable(at(1_000), Position(100), Position(300)));
        assert!(layer.should_read_durable(at(1_001), Position(100), Position(400)));
    }

    #[test]
    fn after_a_durable_read_the_wait_begins_anew() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!layer.should_read_durable(at(0), Position(0), Position(200)));
        assert!(layer.should_read_durable(at(1_001), Position(0), Position(200)));
        assert!(!layer.should_read_durable(at(1_002), Position(0), Position(300)));
        assert!(!layer.should_read_durable(at(2_002), Position(0), Position(300)));
        assert!(layer.should_read_durable(at(2_003), Position(0), Position(300)));
    }

    #[test]
    fn a_cache_that_catches_up_in_time_resets_the_wait() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!layer.should_read_durable(at(0), Position(0), Position(200)));
        assert!(!layer.should_read_durable(at(900), Position(200), Position(300)));
        assert!(!layer.should_read_durable(at(1_500), Position(200), Position(300)));
        assert_eq!(layer.deadline(), Some(at(1_900)));
    }

    #[test]
    fn a_long_outage_is_remembered_in_bounded_memory() {
        let mut layer = DelayedDurable::new(Duration::from_secs(3_600));
        for step in 1..10_000 {
            layer.should_read_durable(at(step), Position(0), Position(step));
        }
        assert!(layer.history.len() <= HISTORY_MAX);
    }
}
