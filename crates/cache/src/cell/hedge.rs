//! When a relaxed read that waits also asks another replica.
//!
//! Hedging is for a backend that is stuck (Fast ACS, section 2.4: after 30 ms). Where everything is slow, asking
//! twice makes it slower still, until nearly every read is asked twice. So a read that waits for a backend which
//! answers *something*, or where all of a key's backends kept reads waiting lately, or this process itself runs late, is
//! only hedged as far as a budget goes, a fixed part of all reads.

use std::sync::atomic::{AtomicU64, Ordering};

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

#[cfg(test)]
mod tests {
    use super::*;

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
