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
    /// Who does so says so with [`DelayedDurable::begin_anew`]; algorithm 1 does both in one step, but not
    /// every "yes" can be followed at once here.
    pub fn is_late(&mut self, now: Instant, cached: Position, durable: Position) -> bool {
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
        self.deadline().is_some_and(|deadline| now >= deadline)
    }

    /// The durable layer is read: from here on, the cached one is waited for again.
    pub fn begin_anew(&mut self) {
        self.history.clear();
    }

    /// When the answer becomes yes although nothing is published: the moment the wait is over.
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

    /// Algorithm 1 as the paper has it.
    fn should_read_durable(layer: &mut DelayedDurable, ms: u64, cached: u64, durable: u64) -> bool {
        let late = layer.is_late(at(ms), Position(cached), Position(durable));
        if late {
            layer.begin_anew();
        }
        late
    }

    #[test]
    fn a_cache_that_keeps_up_is_never_left() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        for step in 0..10_000 {
            // The cache is one step behind, for ever, but each length for one step only.
            assert!(!should_read_durable(&mut layer, step * 10, step * 100, step * 100 + 100));
        }
    }

    #[test]
    fn a_cache_that_stops_is_left_after_the_delay_and_not_before() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!should_read_durable(&mut layer, 0, 100, 200));
        assert!(!should_read_durable(&mut layer, 999, 100, 300));
        assert!(should_read_durable(&mut layer, 1_000, 100, 400));
    }

    #[test]
    fn after_a_durable_read_the_wait_begins_anew() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!should_read_durable(&mut layer, 0, 0, 200));
        assert!(should_read_durable(&mut layer, 1_000, 0, 200));
        assert!(!should_read_durable(&mut layer, 1_002, 0, 300));
        assert!(!should_read_durable(&mut layer, 2_001, 0, 300));
        assert!(should_read_durable(&mut layer, 2_002, 0, 300));
    }

    #[test]
    fn a_late_cache_stays_late_until_somebody_reads_the_durable_layer() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!layer.is_late(at(0), Position(0), Position(200)));
        assert!(layer.is_late(at(1_000), Position(0), Position(200)));
        assert!(layer.is_late(at(1_100), Position(100), Position(200)));
        assert!(!layer.is_late(at(1_200), Position(200), Position(200)), "it has caught up by itself");
    }

    #[test]
    fn a_cache_that_catches_up_in_time_resets_the_wait() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!should_read_durable(&mut layer, 0, 0, 200));
        assert!(!should_read_durable(&mut layer, 900, 200, 300));
        assert!(!should_read_durable(&mut layer, 1_500, 200, 300));
        assert_eq!(layer.deadline(), Some(at(1_900)));
    }

    #[test]
    fn a_long_outage_is_remembered_in_bounded_memory() {
        let mut layer = DelayedDurable::new(Duration::from_secs(3_600));
        for step in 1..10_000 {
            layer.is_late(at(step), Position(0), Position(step));
        }
        assert!(layer.history.len() <= HISTORY_MAX);
    }
}
