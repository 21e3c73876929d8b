//! `cached <= durable <= appended`, each of them only forward.

use super::{Violation, ensure};

/// Checks the watermarks of one segment, all exclusive byte positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatermarkChecker {
    cached: u64,
    durable: u64,
    appended: u64,
}

impl WatermarkChecker {
    /// A segment in which nothing happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The writer's own view, all three at one moment.
    pub fn writer(&mut self, cached: u64, durable: u64, appended: u64) -> Result<(), Violation> {
        ensure(cached <= durable && durable <= appended, || {
            format!("watermarks are out of order: cached {cached}, durable {durable}, appended {appended}")
        })?;
        let before = *self;
        ensure(cached >= before.cached && durable >= before.durable && appended >= before.appended, || {
            format!("watermarks went back: {before:?} to {cached}, {durable}, {appended}")
        })?;
        *self = Self { cached, durable, appended };
        Ok(())
    }

    /// After a crash a segment goes on from what was recovered, which no reader may have seen more than.
    pub fn recovered(&mut self, length: u64) -> Result<(), Violation> {
        ensure(length >= self.durable, || {
            format!("{} bytes were durable, but only {length} were recovered", self.durable)
        })?;
        *self = Self { cached: self.cached.min(length), durable: length, appended: length };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_out_of_order_or_going_back_are_noticed() {
        let mut marks = WatermarkChecker::new();
        marks.writer(1, 2, 3).expect("in order");
        assert!(marks.clone().writer(2, 1, 3).is_err());
        assert!(marks.clone().writer(1, 4, 3).is_err());
        assert!(marks.clone().writer(0, 2, 3).is_err(), "cached went back");
        marks.writer(2, 2, 9).expect("forward");
        assert!(marks.clone().recovered(1).is_err());
        marks.recovered(5).expect("the durable ones and some more");
        marks.writer(2, 5, 5).expect("it goes on from there");
    }
}
