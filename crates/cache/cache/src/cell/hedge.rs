//! When a relaxed read that waits also asks another replica.
//!
//! Hedging is for a backend that is stuck (Fast ACS, section 2.4: after 30 ms). Where everything is slow, asking twice
//! makes it slower still, until nearly every read is asked twice. So one waits, before that, longer than reads did
//! lately ([`Usual`]); and a read that waits for a backend which answers *something*, or where all of a key's backends
//! kept reads waiting lately, or this process itself runs late, is only hedged as far as a budget goes, a fixed part of
//! all reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One read in so many may be hedged though its backend goes on answering, or all are late, or this process is.
const READS_PER_HEDGE: u64 = 20;

/// Hedges that may be saved up.
const SAVED_MAX: u64 = 64;

/// Hedges that a cell's reads have earned, in parts of [`READS_PER_HEDGE`].
pub(super) struct HedgeBudget(AtomicU64);

impl HedgeBudget {
    /// A budget that is full.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(SAVED_MAX * READS_PER_HEDGE))
    }

    /// `reads` were asked for.
    pub(super) fn earn(&self, reads: usize) {
        let earn = |saved: u64| Some(saved.saturating_add(reads as u64).min(SAVED_MAX * READS_PER_HEDGE));
        // It is only a number, and the function always answers one.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earn);
    }

    /// Takes one hedge, if there is one.
    pub(super) fn spend(&self) -> bool {
        let spend = |saved: u64| saved.checked_sub(READS_PER_HEDGE);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }
}

/// How many times as long as usual a read waits for a backend that answers nobody before another one is asked.
pub(super) const STUCK_FACTOR: u32 = 2;

/// How many times as long as usual a read waits before the budget is spent on it.
pub(super) const BUDGET_FACTOR: u32 = 4;

/// What one read counts for in what is usual: one in so many.
const USUAL_ONE_IN: u64 = 8;

/// How long a cell's reads took lately, of those that took time: their mean, in which the last ones count most.
#[derive(Default)]
pub(super) struct Usual {
    mean_ns: AtomicU64,
}

impl Usual {
    /// A read took so long.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Of two that are noted at once one may be forgotten.
        let mean = self.mean_ns.load(Ordering::Relaxed);
        self.mean_ns.store(mean - mean / USUAL_ONE_IN + took / USUAL_ONE_IN, Ordering::Relaxed);
    }

    /// So many times what is usual.
    pub(super) fn times(&self, factor: u32) -> Duration {
        Duration::from_nanos(self.mean_ns.load(Ordering::Relaxed)).saturating_mul(factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_follows_the_last_reads() {
        let ms = Duration::from_millis;
        let usual = Usual::default();
        assert_eq!(usual.times(2), ms(0), "nothing is known yet");
        (0..50).for_each(|_| usual.note(ms(200)));
        assert!(usual.times(2) > ms(350) && usual.times(2) <= ms(400));
        (0..50).for_each(|_| usual.note(ms(1)));
        assert!(usual.times(2) < ms(5));
        usual.note(Duration::MAX);
        assert!(usual.times(u32::MAX) > Duration::from_secs(3_600));
    }

    #[test]
    fn one_read_in_twenty_earns_a_hedge_and_only_so_many_are_saved() {
        let budget = HedgeBudget::new();
        budget.earn(1_000_000);
        for _ in 0..SAVED_MAX {
            assert!(budget.spend());
        }
        assert!(!budget.spend());
        budget.earn(19);
        assert!(!budget.spend());
        budget.earn(1);
        assert!(budget.spend());
        assert!(!budget.spend());
    }
}
