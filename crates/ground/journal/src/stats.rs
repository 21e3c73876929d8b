//! Counters, always on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sub-buckets per power of two of [`SyncTimes`], as a power of two: 8, so a bucket is 12 % wide at most.
const SUB_BITS: u32 = 3;
/// Powers of two of nanoseconds that are told apart: up to 2^40 ns, about 18 minutes.
const POWERS: u32 = 40;
const BUCKETS: usize = (POWERS as usize) << SUB_BITS;

/// How the journal is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Records framed since the start.
    pub records: u64,
    /// Groups written since the start.
    pub groups: u64,
    /// Bytes written in groups since the start, padding included.
    pub bytes: u64,
    /// Failures of the disk that cost records since the start.
    pub failures: u64,
    /// Files that hold records or are being written.
    pub files: u32,
    /// Files that are ready to be written.
    pub spares: u32,
    /// Durations of fdatasync.
    pub sync_times: SyncTimes,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncTimes {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl SyncTimes {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many were shorter than 2^`power` nanoseconds.
    pub fn count_below(&self, power: u32) -> u64 {
        let buckets = (power.saturating_sub(SUB_BITS) as usize) << SUB_BITS;
        self.counts.iter().take(buckets).sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// The duration that the fraction `quantile` (0 to 1) of them did not exceed, up to 12 % too long; zero if
    /// there were none.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let wanted = (quantile.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(bucket_end(bucket));
            }
        }
        Duration::ZERO
    }
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << SUB_BITS);
    let power = ns.ilog2();
    let sub = (ns >> (power - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    ((((power - SUB_BITS) as usize) << SUB_BITS) + sub as usize).min(BUCKETS - 1)
}

/// The first duration, in ns, after those of the bucket.
fn bucket_end(bucket: usize) -> u64 {
    let power = (bucket >> SUB_BITS) as u32;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    ((1 << SUB_BITS) + sub + 1) << power
}

/// The same, being counted. Written by the writer's thread, read by anyone; each counter stands for itself, so
/// all accesses are relaxed.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) groups: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    sync_times: Box<[AtomicU64]>,
    sync_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            groups: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            sync_times: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sync_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn add_group(&self, bytes: u64) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_sync(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sync_times[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// What is counted here; the rest is zero.
    pub(crate) fn stats(&self) -> JournalStats {
        JournalStats {
            groups: self.groups.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            sync_times: self.sync_times(),
            ..JournalStats::default()
        }
    }

    fn sync_times(&self) -> SyncTimes {
        SyncTimes {
            counts: self.sync_times.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_ns: self.sync_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_at_most_an_eighth_below_its_buckets_end() {
        for ns in [8, 9, 100, 1023, 1024, 95_000, 150_000, 10_000_000, 3_000_000_000] {
            let end = bucket_end(bucket_of(ns));
            assert!(ns < end && end <= ns + ns / 8 + 1, "{ns} in a bucket that ends at {end}");
        }
    }

    #[test]
    fn durations_below_a_power_of_two_are_counted_exactly() {
        let counters = Counters::new();
        for ns in [1, 1 << 19, (1 << 20) - 1, 1 << 20, 3 << 20] {
            counters.add_sync(Duration::from_nanos(ns));
        }
        let times = counters.sync_times();
        assert_eq!([19, 20, 21, 22].map(|power| times.count_below(power)), [1, 3, 4, 5]);
        assert_eq!((times.count_below(u32::MAX), times.count_below(0)), (5, 0));
        assert_eq!(times.sum(), Duration::from_nanos(1 + (1 << 19) + ((1 << 20) - 1) + (4 << 20)));
    }

    #[test]
    fn quantiles_are_read_off_the_counts() {
        let counters = Counters::new();
        assert_eq!(counters.sync_times().quantile(0.5), Duration::ZERO);
        for _ in 0..99 {
            counters.add_sync(Duration::from_micros(100));
        }
        counters.add_sync(Duration::from_millis(10));
        let times = counters.sync_times();
        assert_eq!(times.count(), 100);
        assert_eq!(times.quantile(0.5), times.quantile(0.99));
        assert!(times.quantile(1.0) >= Duration::from_millis(10));
    }
}
