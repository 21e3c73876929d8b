//! A byte-rate limit that a reader puts on itself (Fast ACS, section 2.4 "Consumers"): a backlog must not be
//! multiplied by the number of consumers.

use std::time::Duration;

use tailwater_env::Instant;

/// A bucket that holds one second's worth of bytes.
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
        Self { bytes_per_s, tokens: bytes_per_s as i64, at: now }
    }

    /// Takes `bytes`, which may overdraw, or says how long to wait until a read may begin.
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Duration> {
        self.is_ready(now)?;
        self.charge(bytes);
        Ok(())
    }

    /// Whether a read may begin, or how long to wait until one may.
    pub(crate) fn is_ready(&mut self, now: Instant) -> Result<(), Duration> {
        let full = self.bytes_per_s as i64;
        let earned = u128::from(self.bytes_per_s) * now.since(self.at).as_nanos() / 1_000_000_000;
        if earned > 0 {
            let earned = i64::try_from(earned).unwrap_or(full * 2);
            self.tokens = self.tokens.saturating_add(earned).min(full);
            self.at = now;
        }
        if self.tokens <= 0 {
            // Rounded up: a wait that is too short would be another, and none at all would be a loop.
            let wait = ((1 - self.tokens) as u128 * 1_000_000_000).div_ceil(u128::from(self.bytes_per_s));
            return Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        Ok(())
    }

    /// Takes `bytes` that were read.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_time_no_more_than_the_rate_and_one_burst_passes() {
        let mut limit = RateLimit::new(1_000, Instant::from_ns(0));
        let mut now = Instant::from_ns(0);
        let mut passed = 0;
        for _ in 0..1_000 {
            match limit.take(now, 100) {
                Ok(()) => passed += 100,
                Err(wait) => now = now + wait,
            }
        }
        let allowed = 1_000.0 * now.as_ns() as f64 / 1e9 + 1_000.0 + 100.0;
        assert!(passed as f64 <= allowed, "{passed} bytes in {} ns", now.as_ns());
        assert!(passed > 1_000, "it goes on after the burst");
    }

    #[test]
    fn one_large_read_is_paid_for_by_waiting() {
        let mut limit = RateLimit::new(1_000, Instant::from_ns(0));
        assert_eq!(limit.take(Instant::from_ns(0), 5_000), Ok(()));
        let wait = limit.take(Instant::from_ns(0), 1).expect_err("overdrawn");
        assert!(wait >= Duration::from_secs(4), "{wait:?}");
    }
}
