//! Delays of all records, counted by ranges.

use tailwater_load::stats::{PercentilesMs, round};

/// How wide a bin is, in microseconds.
const BIN_US: u64 = 1_000;
/// Longer delays are counted as this long: twenty minutes.
const BINS: usize = 1_200_000;

/// Counts of delays. The records of one flush were produced evenly over the time before it, so that their delays are a
/// range: a range costs two additions, however many records it has.
pub struct FlowDelays {
    /// What each bin has more than the one before it.
    steps: Vec<i64>,
    /// Bins from here on have nothing.
    end: usize,
}

impl FlowDelays {
    pub fn new() -> Self {
        Self { steps: vec![0; BINS + 1], end: 0 }
    }

    /// Counts delays that lie evenly from `from_us` to `from_us + long_us`.
    #[inline]
    pub fn add(&mut self, from_us: u64, long_us: u64) {
        let from = ((from_us / BIN_US) as usize).min(BINS - 1);
        let to = (((from_us + long_us) / BIN_US) as usize).clamp(from + 1, BINS);
        self.steps[from] += 1;
        self.steps[to] -= 1;
        self.end = self.end.max(to);
    }

    /// Moves all counts into `other`.
    pub fn move_into(&mut self, other: &mut Self) {
        for (mine, theirs) in self.steps[..=self.end].iter_mut().zip(&mut other.steps) {
            *theirs += std::mem::take(mine);
        }
        other.end = other.end.max(std::mem::take(&mut self.end));
    }

    /// Percentiles; the upper end of their bin.
    pub fn percentiles_ms(&self) -> PercentilesMs {
        let bins = || {
            self.steps[..self.end].iter().scan(0, |count, step| {
                *count += step;
                Some(*count)
            })
        };
        let all: i64 = bins().sum();
        let mut found = [0.0; 3];
        let (mut seen, mut next) = (0, 0);
        let wanted = [0.5, 0.99, 0.999].map(|quantile| (all as f64 * quantile).ceil() as i64);
        for (bin, count) in bins().enumerate() {
            seen += count;
            while next < wanted.len() && all > 0 && seen >= wanted[next] {
                found[next] = (bin as u64 + 1) as f64 * BIN_US as f64 / 1e3;
                next += 1;
            }
        }
        let max = if all > 0 { self.end as f64 * BIN_US as f64 / 1e3 } else { 0.0 };
        let [p50, p99, p999] = found.map(|ms| round(ms, 1));
        PercentilesMs { p50, p99, p999, max: round(max, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_counts_as_all_of_its_records() {
        let mut delays = FlowDelays::new();
        delays.add(100_000, 100_000);
        let told = delays.percentiles_ms();
        assert_eq!((told.p50, told.p99, told.max), (150.0, 199.0, 200.0));
        let mut all = FlowDelays::new();
        delays.move_into(&mut all);
        assert_eq!(all.percentiles_ms(), told);
        assert_eq!(delays.percentiles_ms(), PercentilesMs::default());
    }
}
