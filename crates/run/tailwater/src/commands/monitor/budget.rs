//! What may go wrong within a window of time, and what is left of that.

use std::collections::VecDeque;

/// The least that is told to be left: where nothing may go wrong, any part of it is beyond all bounds.
const LEAST_LEFT: f64 = -999.0;

/// An objective, and how it is kept.
#[derive(Clone, Debug)]
pub struct ErrorBudget {
    /// The part that has to be good, above 0 and up to 1.
    target: f64,
    /// The newest steps: what was good and what was bad.
    steps: VecDeque<(u64, u64)>,
    steps_max: usize,
    good: u64,
    bad: u64,
}

impl ErrorBudget {
    /// Of the last `steps_max` steps together, which is at least one.
    pub fn new(target: f64, steps_max: usize) -> Self {
        Self { target, steps: VecDeque::new(), steps_max: steps_max.max(1), good: 0, bad: 0 }
    }

    /// One more step.
    pub fn step(&mut self, good: u64, bad: u64) {
        if self.steps.len() == self.steps_max
            && let Some((good, bad)) = self.steps.pop_front()
        {
            self.good -= good;
            self.bad -= bad;
        }
        self.steps.push_back((good, bad));
        self.good += good;
        self.bad += bad;
    }

    /// The part that has to be good.
    pub fn target(&self) -> f64 {
        self.target
    }

    /// The part that was good; `None` if there was nothing.
    pub fn share(&self) -> Option<f64> {
        let all = self.good + self.bad;
        (all > 0).then(|| self.good as f64 / all as f64)
    }

    /// The part of what may be bad that was not; below zero, more was than may be.
    pub fn left(&self) -> f64 {
        if self.bad == 0 {
            return 1.0;
        }
        let may = (1.0 - self.target) * (self.good + self.bad) as f64;
        (1.0 - self.bad as f64 / may).max(LEAST_LEFT)
    }

    /// Whether more was bad than may be. The target itself is kept, whatever was rounded.
    pub fn is_broken(&self) -> bool {
        self.left() < -1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_broken_by_more_than_may_be_bad_in_its_window_and_mends_as_that_passes() {
        let mut budget = ErrorBudget::new(0.999, 3);
        assert_eq!((budget.share(), budget.left(), budget.is_broken()), (None, 1.0, false));
        budget.step(9_995, 5);
        assert!((budget.left() - 0.5).abs() < 1e-9 && !budget.is_broken(), "{budget:?}");
        budget.step(0, 0);
        budget.step(9_985, 15);
        assert!(budget.left().abs() < 1e-9 && !budget.is_broken(), "{budget:?}");
        assert_eq!(budget.share(), Some(0.999));
        budget.step(10_000, 6);
        assert!(budget.is_broken(), "{budget:?}");
        (0..3).for_each(|_| budget.step(10, 0));
        assert_eq!((budget.share(), budget.is_broken()), (Some(1.0), false));
    }

    #[test]
    fn where_nothing_may_be_bad_anything_breaks_it() {
        let mut budget = ErrorBudget::new(1.0, 10);
        budget.step(1 << 40, 0);
        assert!(!budget.is_broken());
        budget.step(0, 1);
        assert_eq!((budget.is_broken(), budget.left()), (true, LEAST_LEFT));
    }
}
