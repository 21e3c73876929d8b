//! How many bytes may be between their arrival and their answer, over all owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be in flight, over all owners.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    bytes_max: u64,
    used: AtomicU64,
}

/// Room for one append; given back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<ReadBudget>,
    bytes: u64,
}

impl ReadBudget {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: AtomicU64::new(0) })
    }

    /// Room for `bytes`, if there is any. Relaxed: the count stands for itself.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let permit = Permit { budget: Arc::clone(self), bytes };
        (before.saturating_add(bytes) <= self.bytes_max).then_some(permit)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let before = self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "what is given back was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_until_the_budget_is_used_up_and_comes_back() {
        let budget = ReadBudget::new(100);
        let first = budget.take(60).expect("room");
        assert!(budget.take(41).is_none());
        let second = budget.take(40).expect("room");
        assert_eq!(budget.used(), 100);
        drop((first, second));
        assert_eq!(budget.used(), 0);
        assert!(budget.take(100).is_some());
    }
}
