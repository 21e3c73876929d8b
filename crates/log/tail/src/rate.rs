//! A limit on a rate. A reader puts one on the bytes that it fetches (Fast ACS, section 2.4 "Consumers"), since a
//! backlog must not be multiplied by the number of consumers; a writer on how often it writes shards' chunks. Tokens
//! are what is counted.

use std::time::Duration;

use tailwater_env::Instant;

/// What a bucket holds: this fraction of a second's worth. Enough for what is written between two looks.
const FULL: u64 = 16;

/// What time alone fills a bucket of a steady limit to: this fraction of a second's worth. Enough for the clock's
/// ticks.
const STEADY: u64 = 256;

/// A bucket of tokens that fills with time.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_s: u64,
    /// What it holds.
    full: i64,
    /// What time fills it to.
    burst: i64,
    /// Those that are there, as of `at`; negative after more were taken than that.
    tokens: i64,
    at: Instant,
}

impl RateLimit {
    pub(crate) fn new(per_s: u64, now: Instant) -> Self {
        let per_s = per_s.clamp(1, i64::MAX as u64 / 2);
        let full = (per_s / FULL).max(1) as i64;
        Self { per_s, full, burst: full, tokens: full, at: now }
    }

    /// One under which nothing is read in a rush, however long nothing was read before: others have as much of a core
    /// and of the disk then as later on. A `step` passes at once in any case.
    pub(crate) fn steady(per_s: u64, step: u64, now: Instant) -> Self {
        let mut limit = Self::new(per_s, now);
        let burst = i64::try_from((limit.per_s / STEADY).max(step)).unwrap_or(i64::MAX);
        limit.burst = burst.min(limit.full);
        limit.tokens = limit.burst;
        limit
    }

    /// Tokens that may be taken without overdrawing, as of the last [`is_ready`](Self::is_ready).
    pub(crate) fn left(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(0)
    }

    /// Lets so many more pass, as far as the bucket holds them. More than a second's worth at once was not written
    /// between two looks: nobody looked, and that is a backlog.
    pub(crate) fn earn(&mut self, count: u64) {
        let most = if count <= self.per_s { self.full } else { self.burst };
        self.fill(i64::try_from(count).unwrap_or(i64::MAX), most);
    }

    fn fill(&mut self, count: i64, most: i64) {
        self.tokens = self.tokens.saturating_add(count).min(self.tokens.max(most));
    }

    /// Whether any may be taken, or how long to wait until some may.
    pub(crate) fn is_ready(&mut self, now: Instant) -> Result<(), Duration> {
        let earned = u128::from(self.per_s) * now.since(self.at).as_nanos() / 1_000_000_000;
        if earned > 0 {
            self.fill(i64::try_from(earned).unwrap_or(i64::MAX), self.burst);
            // What is left of the time counts at the next look: that may come every one and a half tokens.
            let ns = earned * 1_000_000_000 / u128::from(self.per_s);
            self.at = self.at + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        }
        if self.tokens <= 0 {
            // Rounded up: a wait that is too short would be another, and none at all would be a loop.
            let wait = ((1 - self.tokens) as u128 * 1_000_000_000).div_ceil(u128::from(self.per_s));
            return Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        Ok(())
    }

    /// Takes `count` of them, which may overdraw.
    pub(crate) fn charge(&mut self, count: u64) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_rate_passes_however_often_somebody_looks() {
        for every_us in [10, 400, 750, 1_000, 1_500, 1_900] {
            let mut limit = RateLimit::new(1_000, Instant::from_ns(0));
            limit.charge(limit.left());
            let mut passed = 0;
            for look in 1..=2_000_000 / every_us {
                while limit.is_ready(Instant::from_ns(look * every_us * 1_000)).is_ok() {
                    limit.charge(1);
                    passed += 1;
                }
            }
            assert!((1_990..=2_000).contains(&passed), "{passed} in two seconds, looked every {every_us} us");
        }
    }

    /// Bytes that pass in reads of `bytes` until `reads` were asked for, and when that was.
    fn read(limit: &mut RateLimit, bytes: u64, reads: usize) -> (u64, Instant) {
        let mut now = Instant::from_ns(0);
        let mut passed = 0;
        for _ in 0..reads {
            match limit.is_ready(now) {
                Ok(()) => {
                    limit.charge(bytes);
                    passed += bytes;
                }
                Err(wait) => now = now + wait,
            }
        }
        (passed, now)
    }

    #[test]
    fn over_time_no_more_than_the_rate_and_one_burst_passes() {
        let mut limit = RateLimit::new(16_000, Instant::from_ns(0));
        let (passed, now) = read(&mut limit, 100, 1_000);
        let allowed = 16_000.0 * now.as_ns() as f64 / 1e9 + 1_000.0 + 100.0;
        assert!(passed as f64 <= allowed, "{passed} bytes in {} ns", now.as_ns());
        assert!(passed > 1_000, "it goes on after the burst");
    }

    #[test]
    fn one_large_read_is_paid_for_by_waiting() {
        let mut limit = RateLimit::new(1_000, Instant::from_ns(0));
        assert_eq!(limit.is_ready(Instant::from_ns(0)), Ok(()));
        limit.charge(5_000);
        let wait = limit.is_ready(Instant::from_ns(0)).expect_err("overdrawn");
        assert!(wait >= Duration::from_secs(4), "{wait:?}");
    }

    #[test]
    fn what_is_earned_besides_is_kept_as_far_as_the_bucket_holds_it() {
        let mut limit = RateLimit::new(16_000, Instant::from_ns(0));
        limit.charge(3_000);
        limit.earn(2_500);
        assert_eq!(limit.left(), 500);
        limit.earn(1 << 40);
        assert_eq!(limit.left(), 1_000);
    }

    #[test]
    fn under_a_steady_limit_what_was_written_between_two_looks_passes_at_once_and_a_backlog_in_steps() {
        let second = |s: u64| Instant::from_ns(s * 1_000_000_000);
        let (rate, step) = (64 << 20, 256 << 10);
        let mut limit = RateLimit::steady(rate, step, second(0));
        assert_eq!(limit.left(), step);
        assert_eq!(limit.is_ready(second(60)), Ok(()));
        assert_eq!(limit.left(), step, "a minute without a read saves nothing up");
        limit.earn(3 << 20);
        assert_eq!(limit.left(), step + (3 << 20));
        assert_eq!(limit.is_ready(second(61)), Ok(()));
        assert_eq!(limit.left(), step + (3 << 20), "time takes nothing away");
        limit.charge(limit.left());
        limit.earn(15 << 20);
        assert_eq!(limit.left(), rate / 16, "of much that was written as much as the bucket holds");
        limit.charge(limit.left());
        limit.earn(300 << 20);
        assert_eq!(limit.left(), step, "a minute's worth at once");
        // A limit so low that it would be a burst: as any other.
        assert_eq!(RateLimit::steady(1 << 20, step, second(0)).left(), (1 << 20) / 16);
    }
}
