//! How long events take from their head to this region's tail.

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
}
