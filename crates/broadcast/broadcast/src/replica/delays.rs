//! How long events take from their head until all of this region's replicas hold them, as one of those knows.

/// Powers of two of milliseconds between which delays are told apart: from 1 ms to 131 s.
const POWERS: u32 = 18;

/// A histogram of delays, with a bucket for each power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// The first holds what is less than 1 ms, the last what is 131 s or more.
    counts: [u64; POWERS as usize + 1],
    sum_ms: u64,
}

impl Delays {
    pub(super) fn add(&mut self, delay_ms: u64) {
        let bucket = delay_ms.checked_ilog2().map_or(0, |power| power + 1).min(POWERS);
        self.counts[bucket as usize] += 1;
        self.sum_ms = self.sum_ms.saturating_add(delay_ms);
    }

    /// Of each bucket its end in milliseconds, which is not in it any more, and what it holds; the last one has no end.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let ends = (0..POWERS).map(|power| Some(1 << power)).chain([None]);
        ends.zip(self.counts)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The end of the bucket, in milliseconds, below which `percent` of all are; `None` if there are none, or that one
    /// has no end.
    pub fn percentile_ms(&self, percent: u32) -> Option<u64> {
        let wanted = (u128::from(self.count()) * u128::from(percent)).div_ceil(100).max(1);
        let mut passed = 0;
        let mut reached = self.buckets().skip_while(|(_, count)| {
            passed += u128::from(*count);
            passed < wanted
        });
        reached.next()?.0
    }

    /// The sum of all, in milliseconds.
    pub fn sum_ms(&self) -> u64 {
        self.sum_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_counted_in_the_bucket_that_ends_behind_it() {
        let mut delays = Delays::default();
        for ms in [0, 1, 2, 3, 1_000, 131_071, 131_072, u64::MAX] {
            delays.add(ms);
        }
        let filled: Vec<_> = delays.buckets().filter(|(_, count)| *count > 0).collect();
        let expected =
            [(Some(1), 1), (Some(2), 1), (Some(4), 2), (Some(1_024), 1), (Some(131_072), 1), (None, 2)];
        assert_eq!(filled, expected);
        assert_eq!(delays.sum_ms(), u64::MAX);
    }

    #[test]
    fn a_percentile_is_the_end_of_the_bucket_that_it_is_in() {
        let mut delays = Delays::default();
        assert_eq!((delays.count(), delays.percentile_ms(50)), (0, None));
        (0..50).for_each(|_| delays.add(3));
        (0..49).for_each(|_| delays.add(100));
        assert_eq!(
            [0, 50, 51, 99, 100].map(|percent| delays.percentile_ms(percent)),
            [Some(4), Some(4), Some(128), Some(128), Some(128)]
        );
        delays.add(1 << 40);
        assert_eq!(
            [50, 51, 99, 100].map(|percent| delays.percentile_ms(percent)),
            [Some(4), Some(128), Some(128), None]
        );
        assert_eq!(delays.count(), 100);
    }
}
