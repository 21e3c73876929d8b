//! A histogram of durations that costs a few cycles for each value and travels between processes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Sub-buckets of a power of two, as a power of two: a bucket is at most 1.6 % wide.
const SUB_BITS: u32 = 6;
const SUBS: u64 = 1 << SUB_BITS;
/// Powers of two of nanoseconds that are told apart: up to 2^40 ns, about 18 minutes.
const POWERS: u64 = 40;
const BUCKETS: usize = ((POWERS - SUB_BITS as u64 + 1) * SUBS) as usize;

/// Counts of durations in nanoseconds.
#[derive(Clone)]
pub struct Durations {
    counts: Box<[u64; BUCKETS]>,
    max_ns: u64,
}

/// The same as it is sent: only the buckets that have something.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SparseDurations {
    counts: Vec<(u16, u64)>,
    max_ns: u64,
}

impl SparseDurations {
    /// The longest one; `None` if there is none.
    pub fn longest(&self) -> Option<Duration> {
        (!self.counts.is_empty()).then(|| Duration::from_nanos(self.max_ns))
    }
}

/// Percentiles in milliseconds; all 0 if nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PercentilesMs {
    /// Half of the values are at most this.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
    /// All.
    pub max: f64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), max_ns: 0 }
    }
}

impl Durations {
    /// Counts one value.
    #[inline(always)]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts a value `count` times.
    #[inline(always)]
    pub fn record_many(&mut self, ns: u64, count: u64) {
        self.counts[bucket_of(ns)] += count;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What at least the fraction `quantile` of the values did not exceed, at most 1.6 % too long; 0 if there is none.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let wanted = (quantile * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_last(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The usual percentiles.
    pub fn percentiles_ms(&self) -> PercentilesMs {
        let ms = |quantile| round(self.quantile_ns(quantile) as f64 / 1e6, 4);
        PercentilesMs {
            p50: ms(0.5),
            p99: ms(0.99),
            p999: ms(0.999),
            max: round(self.max_ns as f64 / 1e6, 4),
        }
    }

    /// Adds the values of another.
    pub fn add(&mut self, other: &Durations) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += more;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Adds the values of one that came from another process.
    pub fn add_sparse(&mut self, other: &SparseDurations) {
        for &(bucket, count) in &other.counts {
            if let Some(own) = self.counts.get_mut(usize::from(bucket)) {
                *own += count;
            }
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// In the form in which it is sent.
    pub fn to_sparse(&self) -> SparseDurations {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        SparseDurations { counts: counts.map(|(i, &count)| (i as u16, count)).collect(), max_ns: self.max_ns }
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.max_ns = 0;
    }
}

#[inline(always)]
fn bucket_of(ns: u64) -> usize {
    let shift = (63 - (ns | SUBS).leading_zeros()) - SUB_BITS;
    let bucket = (u64::from(shift) << SUB_BITS) + (ns >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest duration that a bucket counts, in ns.
fn bucket_last(bucket: usize) -> u64 {
    let shift = (bucket as u64 >> SUB_BITS).saturating_sub(1);
    ((bucket as u64 - (shift << SUB_BITS) + 1) << shift) - 1
}

/// `value` with `digits` behind the point, for people.
pub fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_is_in_a_bucket_that_is_at_most_1_6_percent_wide(ns in 0..1u64 << 39) {
            let last = bucket_last(bucket_of(ns));
            prop_assert!(last >= ns);
            prop_assert!(last - ns <= ns / 64);
        }

        #[test]
        fn buckets_are_in_the_order_of_their_values(a: u64, b: u64) {
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(bucket_of(a) <= bucket_of(b));
        }
    }

    #[test]
    fn percentiles_of_a_thousand_milliseconds() {
        let mut durations = Durations::default();
        for ms in 1..=1_000u64 {
            durations.record(ms * 1_000_000);
        }
        let mut sum = Durations::default();
        sum.add_sparse(&durations.to_sparse());
        let percentiles = sum.percentiles_ms();
        assert!((500.0..508.0).contains(&percentiles.p50), "{percentiles:?}");
        assert!((990.0..=1_000.0).contains(&percentiles.p99), "{percentiles:?}");
        assert_eq!(percentiles.max, 1_000.0);
        assert_eq!(sum.count(), 1_000);
    }

    #[test]
    fn nothing_has_percentiles_of_zero() {
        assert_eq!(Durations::default().percentiles_ms(), PercentilesMs::default());
    }
}
