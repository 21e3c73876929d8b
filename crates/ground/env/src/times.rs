//! A histogram of durations, as metrics have it.
//!
//! Each counter stands for itself, so all accesses are relaxed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Powers of two of nanoseconds between which durations are told apart: from 33 microseconds to 17 seconds.
pub const TIMES_POWERS: std::ops::RangeInclusive<u32> = 15..=34;

/// What a histogram counts apart: below all powers, between each two of them, and above them.
pub const TIMES_BUCKETS: usize = (*TIMES_POWERS.end() - *TIMES_POWERS.start()) as usize + 2;

/// A histogram of durations, with a bucket for each power of two.
#[derive(Debug, Default)]
pub struct Times {
    counts: [AtomicU64; TIMES_BUCKETS],
    sum_ns: AtomicU64,
}

/// The same, read.
#[derive(Clone, Debug, PartialEq)]
pub struct TimesRead {
    /// For each bucket its end in seconds, which is not in it any more, and how many durations it holds; the last has
    /// no end.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all durations.
    pub sum: Duration,
}

impl Times {
    /// Counts one.
    pub fn add(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let power = ns.checked_ilog2().unwrap_or(0);
        let bucket = (power + 1).clamp(*TIMES_POWERS.start(), TIMES_POWERS.end() + 1) - TIMES_POWERS.start();
        self.counts[bucket as usize].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts those of another histogram, whatever it says: no counter goes over its end.
    pub fn add_all(&self, counts: &[u64], sum: Duration) {
        let add = |counter: &AtomicU64, more: u64| {
            let sum = |count: u64| Some(count.saturating_add(more));
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        };
        self.counts.iter().zip(counts).for_each(|(counter, more)| add(counter, *more));
        add(&self.sum_ns, u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What was counted.
    pub fn read(&self) -> TimesRead {
        let ends = TIMES_POWERS.map(times_end).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        TimesRead {
            buckets: ends.zip(counts).collect(),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }

    /// What was counted since the last time that this was called: for each bucket how many, and the sum.
    pub fn take(&self) -> (Vec<u64>, Duration) {
        let counts = self.counts.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect();
        (counts, Duration::from_nanos(self.sum_ns.swap(0, Ordering::Relaxed)))
    }
}

impl TimesRead {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Where the bucket below this power of two of nanoseconds ends, in seconds.
pub fn times_end(power: u32) -> f64 {
    (1_u64 << power) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_ends_behind_it() {
        let times = Times::default();
        for took in [0, 1, (1 << 15) - 1, 1 << 15, 1 << 20, (1 << 34) - 1, 1 << 34, u64::MAX] {
            times.add(Duration::from_nanos(took));
        }
        let read = times.read();
        let filled: Vec<(f64, u64)> = read.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        let expected = [
            (times_end(15), 3),
            (times_end(16), 1),
            (times_end(21), 1),
            (times_end(34), 1),
            (f64::INFINITY, 2),
        ];
        assert_eq!(filled, expected);
        assert_eq!(read.count(), 8);
    }

    #[test]
    fn what_is_taken_from_one_and_added_to_another_is_counted_once() {
        let (from, to) = (Times::default(), Times::default());
        let took = Duration::from_millis(3);
        from.add(took);
        for _ in 0..2 {
            let (counts, sum) = from.take();
            to.add_all(&counts, sum);
        }
        to.add_all(&[], Duration::ZERO);
        assert_eq!(to.read().sum, took);
        assert_eq!((from.read().count(), to.read().count()), (0, 1));
    }
}
