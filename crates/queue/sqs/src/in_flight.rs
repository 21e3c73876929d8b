//! How many messages of an account are in flight: received, and neither deleted nor visible again.
//!
//! Queues know it exactly, each its own, and messages become visible without anybody being told. So all queues of an
//! account are asked once in [`COUNT_EVERY`], and between two counts what was received and deleted through this front
//! is added and taken off. What becomes visible meanwhile, and what other front ends do, is known at the next count.
//! Receives that wait at the same time each see the room that was there when they began: together they may take up to
//! ten messages each beyond the quota.

use std::time::Duration;

use tailwater_env::Instant;

/// How old a count may be.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What is known of an account.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    counted_at: Option<Instant>,
    counted: u64,
    /// Received less deleted since the count began.
    since: i64,
}

impl InFlight {
    /// Whether the queues are to be asked; whoever is told so asks, and the others use what is known.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.counted_at.is_none_or(|at| now.since(at) >= COUNT_EVERY);
        if is_due {
            (self.counted_at, self.counted, self.since) = (Some(now), self.now(), 0);
        }
        is_due
    }

    /// The queues say that there are so many.
    pub(crate) fn count(&mut self, counted: u64) {
        // What was received since the count began may be in it already: counted twice until the next one.
        self.counted = counted;
    }

    pub(crate) fn received(&mut self, count: usize) {
        self.since += count as i64;
    }

    pub(crate) fn deleted(&mut self, count: usize) {
        self.since -= count as i64;
    }

    /// How many may still be received of at most `most`.
    pub(crate) fn room(&self, most: u64) -> u64 {
        most.saturating_sub(self.now())
    }

    fn now(&self) -> u64 {
        self.counted.saturating_add_signed(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_counts_what_is_received_takes_room_and_what_is_deleted_gives_it_back() {
        let (mut known, start) = (InFlight::default(), Instant::from_ns(0));
        assert!(known.is_due(start));
        assert!(!known.is_due(start), "one asks, and not everybody");
        known.count(7);
        assert_eq!(known.room(10), 3);
        known.received(3);
        assert_eq!(known.room(10), 0);
        known.deleted(2);
        assert_eq!(known.room(10), 2);
        // Two of the others are visible again, which nobody told.
        assert!(known.is_due(start + COUNT_EVERY));
        assert_eq!(known.room(10), 2);
        known.count(6);
        assert_eq!(known.room(10), 4);
        known.deleted(100);
        assert_eq!(known.room(10), 10);
    }
}
