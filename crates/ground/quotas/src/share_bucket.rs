//! What may still be used of a share at the moment.

use tailwater_env::Instant;

/// Fills at the rate of a share, up to a second's worth of it, and remembers what was taken and refused.
#[derive(Debug)]
pub struct ShareBucket {
    level: f64,
    filled_at: Instant,
    taken: u64,
    is_refused: bool,
}

impl ShareBucket {
    /// One with a second's worth of `rate`.
    pub fn full(rate: u64, now: Instant) -> Self {
        Self { level: rate as f64, filled_at: now, taken: 0, is_refused: false }
    }

    /// Whether there is something. A rate of 0 is any rate.
    pub fn has_some(&mut self, rate: f64, now: Instant) -> bool {
        if rate == 0.0 {
            return true;
        }
        self.level = (self.level + rate * now.since(self.filled_at).as_secs_f64()).min(rate);
        self.filled_at = now;
        self.is_refused |= self.level <= 0.0;
        self.level > 0.0
    }

    /// Takes `amount` out, if there is something; what is too much is missing later.
    pub fn take(&mut self, amount: u64, rate: f64, now: Instant) -> bool {
        let is_there = self.has_some(rate, now);
        if is_there {
            self.level -= amount as f64;
            self.taken = self.taken.saturating_add(amount);
        }
        is_there
    }

    /// What was taken since the last call, and whether something was refused.
    pub fn taken(&mut self) -> (u64, bool) {
        (std::mem::take(&mut self.taken), std::mem::take(&mut self.is_refused))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_a_second_s_worth_at_once_and_tells_what_it_gave() {
        let start = Instant::from_ns(0);
        let mut bucket = ShareBucket::full(10, start);
        let mut taken = |now: Instant| (0..100).filter(|_| bucket.take(1, 10.0, now)).count();
        assert_eq!(taken(start), 10);
        assert_eq!(taken(start + Duration::from_millis(500)), 5);
        assert_eq!(taken(start + Duration::from_secs(60)), 10);
        assert_eq!((bucket.taken(), bucket.taken()), ((25, true), (0, false)));
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_missing_later() {
        let start = Instant::from_ns(0);
        let mut bucket = ShareBucket::full(10, start);
        assert!(bucket.take(30, 10.0, start));
        assert!(!bucket.take(1, 10.0, start + Duration::from_secs(2)));
        assert!(bucket.take(1, 10.0, start + Duration::from_millis(2_100)));
    }

    #[test]
    fn a_share_of_less_than_one_request_a_second_is_a_request_in_some_seconds() {
        let start = Instant::from_ns(0);
        let mut bucket = ShareBucket::full(1, start);
        let mut taken = |ms: u64| bucket.take(1, 0.25, start + Duration::from_millis(ms));
        // What is there at first is cut to the share.
        let times: Vec<u64> = (0..20_000).step_by(100).filter(|ms| taken(*ms)).collect();
        assert_eq!(times.len(), 6, "{times:?}");
    }
}
