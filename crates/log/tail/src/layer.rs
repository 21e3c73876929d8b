//! Which layer to read a growing file from: Fast ACS, algorithm 1 ("Delayed Colossus Reads").
//!
//! The cached layer usually leads and costs the durable store nothing, so a reader waits for it; only when it
//! has been behind for longer than the reader can bear does the reader turn to the durable layer.
//!
//! What the cached layer was waited for once is not waited for again: of all that was durable when the wait was over,
//! the reader takes the rest as fast as its limits allow. The paper reads all of it at once, so that it needs no such
//! rule.

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
    /// grow from front to back, and all are behind `given_up`.
    history: VecDeque<(Instant, Position)>,
    /// The cached layer is not waited for before this position.
    given_up: Position,
}

impl DelayedDurable {
    /// `delay_max` is how long the cached layer may be behind (the paper's: 1 s).
    pub fn new(delay_max: Duration) -> Self {
        Self { delay_max, history: VecDeque::new(), given_up: Position(0) }
    }

    /// Whether a reader at `from` takes from the durable layer what the cached one does not have, seeing both lengths
    /// at `now`.
    pub fn is_late(&mut self, now: Instant, from: Position, cached: Position, durable: Position) -> bool {
        let last = self.history.back().map_or(self.given_up, |&(_, position)| position);
        if durable > last {
            if self.history.len() == HISTORY_MAX {
                self.history.pop_back();
            }
            self.history.push_back((now, durable));
        }
        let there = cached.max(from);
        while self.history.front().is_some_and(|&(_, position)| position <= there) {
            self.history.pop_front();
        }
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.give_up(durable);
        }
        from < self.given_up
    }

    /// The cached layer is not waited for up to `durable`, which has been there for long enough.
    pub fn give_up(&mut self, durable: Position) {
        self.given_up = self.given_up.max(durable);
        self.history.retain(|&(_, position)| position > durable);
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

    /// Algorithm 1 as the paper has it: a reader that takes all that a layer has.
    struct Follower {
        layer: DelayedDurable,
        from: u64,
    }

    impl Follower {
        fn new() -> Self {
            Self { layer: DelayedDurable::new(Duration::from_secs(1)), from: 0 }
        }

        fn should_read_durable(&mut self, ms: u64, cached: u64, durable: u64) -> bool {
            self.from = self.from.max(cached);
            let late = self.layer.is_late(at(ms), Position(self.from), Position(cached), Position(durable));
            if late {
                self.from = durable;
            }
            late
        }
    }

    #[test]
    fn a_cache_that_keeps_up_is_never_left() {
        let mut follower = Follower::new();
        for step in 0..10_000 {
            // The cache is one step behind, for ever, but each length for one step only.
            assert!(!follower.should_read_durable(step * 10, step * 100, step * 100 + 100));
        }
    }

    #[test]
    fn a_cache_that_stops_is_left_after_the_delay_and_not_before() {
        let mut follower = Follower::new();
        assert!(!follower.should_read_durable(0, 100, 200));
        assert!(!follower.should_read_durable(999, 100, 300));
        assert!(follower.should_read_durable(1_000, 100, 400));
    }

    #[test]
    fn after_a_durable_read_the_wait_begins_anew() {
        let mut follower = Follower::new();
        assert!(!follower.should_read_durable(0, 0, 200));
        assert!(follower.should_read_durable(1_000, 0, 200));
        assert!(!follower.should_read_durable(1_002, 0, 300));
        assert!(!follower.should_read_durable(2_001, 0, 300));
        assert!(follower.should_read_durable(2_002, 0, 300));
    }

    #[test]
    fn what_was_waited_for_once_is_read_in_many_pieces_without_another_wait() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        let mut is_late =
            |ms, from, durable| layer.is_late(at(ms), Position(from), Position(0), Position(durable));
        assert!(!is_late(0, 0, 1_000));
        for from in (0..1_000).step_by(100) {
            assert!(is_late(1_000 + from, from, 1_000 + from), "at {from}");
        }
        // What came meanwhile was first seen later, and is waited for since then.
        assert!(!is_late(2_000, 1_000, 1_900));
        assert!(!is_late(2_099, 1_000, 1_900));
        assert!(is_late(2_100, 1_000, 1_900));
    }

    #[test]
    fn a_late_cache_stays_late_until_it_is_read_or_has_caught_up() {
        let mut layer = DelayedDurable::new(Duration::from_secs(1));
        assert!(!layer.is_late(at(0), Position(0), Position(0), Position(200)));
        assert!(layer.is_late(at(1_000), Position(0), Position(0), Position(200)));
        assert!(layer.is_late(at(1_100), Position(100), Position(100), Position(200)));
        assert!(!layer.is_late(at(1_200), Position(200), Position(200), Position(200)));
    }

    #[test]
    fn a_cache_that_catches_up_in_time_resets_the_wait() {
        let mut follower = Follower::new();
        assert!(!follower.should_read_durable(0, 0, 200));
        assert!(!follower.should_read_durable(900, 200, 300));
        assert!(!follower.should_read_durable(1_500, 200, 300));
        assert_eq!(follower.layer.deadline(), Some(at(1_900)));
    }

    #[test]
    fn a_long_outage_is_remembered_in_bounded_memory() {
        let mut layer = DelayedDurable::new(Duration::from_secs(3_600));
        for step in 1..10_000 {
            layer.is_late(at(step), Position(0), Position(0), Position(step));
        }
        assert!(layer.history.len() <= HISTORY_MAX);
    }
}
