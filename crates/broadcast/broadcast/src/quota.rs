//! How much may be published: by one publisher, and by all of a region together.
//!
//! A quota is a bucket that fills at its rate and holds `burst_s` seconds of it. What is larger than the bucket passes
//! when there is something in it, and is missing later: so no event is too large for a quota, and the rate holds over
//! time all the same.

use std::time::Duration;

use tailwater_env::Instant;

/// What may be published in each second; 0 is no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Bytes of events, as they are encoded.
    pub bytes_per_s: u64,
    /// Events.
    pub events_per_s: u64,
    /// Seconds' worth that may be published at once after a pause; more than 0.
    pub burst_s: f64,
}

impl Quota {
    /// No bound.
    pub const NONE: Self = Self { bytes_per_s: 0, events_per_s: 0, burst_s: 1.0 };
}

/// A quota, and what is left of it.
#[derive(Debug)]
pub struct Meter {
    bytes: QuotaBucket,
    events: QuotaBucket,
    at: Instant,
}

#[derive(Debug)]
struct QuotaBucket {
    level: f64,
    rate: f64,
    most: f64,
}

impl QuotaBucket {
    fn full(rate: u64, burst_s: f64) -> Self {
        let rate = rate as f64;
        Self { level: rate * burst_s, rate, most: rate * burst_s }
    }

    fn fill(&mut self, elapsed: Duration) {
        self.level = (self.level + self.rate * elapsed.as_secs_f64()).min(self.most);
    }

    /// How long until there is something in it.
    fn wait(&self) -> Duration {
        match self.rate > 0.0 && self.level < 0.0 {
            // A debt can be large; whoever waits looks again.
            true => Duration::from_secs_f64((-self.level / self.rate).min(3_600.0)),
            false => Duration::ZERO,
        }
    }

    fn spend(&mut self, amount: u64) {
        if self.rate > 0.0 {
            self.level -= amount as f64;
        }
    }
}

impl Meter {
    /// A full one.
    pub fn new(quota: Quota, now: Instant) -> Self {
        let full = |rate| QuotaBucket::full(rate, quota.burst_s);
        Self { bytes: full(quota.bytes_per_s), events: full(quota.events_per_s), at: now }
    }

    /// How long until more may be published; zero: it may now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let elapsed = now.since(self.at);
        self.at = now;
        self.bytes.fill(elapsed);
        self.events.fill(elapsed);
        self.bytes.wait().max(self.events.wait())
    }

    /// So much is published.
    pub fn spend(&mut self, bytes: u64, events: u64) {
        self.bytes.spend(bytes);
        self.events.spend(events);
    }

    /// Whether nothing is missing, so that a new one would be the same.
    pub fn is_full(&self) -> bool {
        self.bytes.level >= self.bytes.most && self.events.level >= self.events.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(0) + Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_passes_at_once_and_the_rate_after_it() {
        let quota = Quota { bytes_per_s: 0, events_per_s: 10, burst_s: 2.0 };
        let mut meter = Meter::new(quota, at(0));
        let mut published = |now: Instant| {
            (0..100)
                .take_while(|_| {
                    meter.wait(now).is_zero() && {
                        meter.spend(1_000_000, 1);
                        true
                    }
                })
                .count()
        };
        // One more than the burst, which is missing later.
        assert_eq!(published(at(0)), 21);
        assert_eq!(published(at(90)), 0);
        assert_eq!(published(at(1_000)), 10);
        assert_eq!(published(at(60_000)), 21);
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_waited_for_later() {
        let quota = Quota { bytes_per_s: 100, events_per_s: 0, burst_s: 1.0 };
        let mut meter = Meter::new(quota, at(0));
        assert!(meter.wait(at(0)).is_zero() && meter.is_full());
        meter.spend(600, 1);
        assert_eq!(meter.wait(at(0)), Duration::from_secs(5));
        assert_eq!(meter.wait(at(2_000)), Duration::from_secs(3));
        assert!(meter.wait(at(5_000)).is_zero() && !meter.is_full());
        assert!(meter.wait(at(6_000)).is_zero() && meter.is_full());
        let mut unbounded = Meter::new(Quota::NONE, at(0));
        unbounded.spend(u64::MAX, u64::MAX);
        assert!(unbounded.wait(at(0)).is_zero() && unbounded.is_full());
    }
}
