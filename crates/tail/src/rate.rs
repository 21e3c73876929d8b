//! A byte-rate limit that a reader puts on itself (Fast ACS, section 2.4 "Consumers"): a backlog must not be
//! multiplied by the number of consumers.

use std::time::Duration;

use tailwater_env::Instant;

/// What a bucket holds: this fraction of a second's worth. Enough for the clock's ticks and for a short pause, and so
/// little that no core is busy with it for long.
const BURST: u64 = 16;

/// A bucket of bytes that fills with time.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bytes_per_s: u64,
    /// Bytes that may be read, as of `at`; negative after a read larger than what was there.
    tokens: i64,
    at: Instant,
}

impl RateLimit {
    pub(crate) fn new(bytes_per_s: u64, now: Instant) -> Self {
        let bytes_per_s = bytes_per_s.clamp(1, i64::MAX as u64 / 2);
        let mut limit = Self { bytes_per_s, tokens: 0, at: now };
        limit.tokens = limit.full();
        limit
    }

    fn full(&self) -> i64 {
        (self.bytes_per_s / BURST).max(1) as i64
    }

    /// Bytes that may be read without overdrawing, as of the last [`is_ready`](Self::is_ready).
    pub(crate) fn left(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(0)
    }

    /// Lets so many bytes more pass, as far as the bucket holds them.
    pub(crate) fn earn(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(bytes).min(self.full());
    }

    /// Whether a read may begin, or how long to wait until one may.
    pub(crate) fn is_ready(&mut self, now: Instant) -> Result<(), Duration> {
        let earned = u128::from(self.bytes_per_s) * now.since(self.at).as_nanos() / 1_000_000_000;
        if earned > 0 {
            self.earn(u64::try_from(earned).unwrap_or(u64::MAX));
            self.at = now;
        }
        if self.tokens <= 0 {
            // Rounded up: a wait that is too short would be another, and none at all would be a loop.
            let wait = ((1 - self.tokens) as u128 * 1_000_000_000).div_ceil(u128::from(self.bytes_per_s));
            return Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        Ok(())
    }

    /// Takes `bytes` that are read, which may overdraw.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
