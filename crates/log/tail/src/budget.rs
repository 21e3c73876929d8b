//! What all feeds of a process may read together: in all, and of backlogs. Neither the number of shards nor that of
//! consumers changes it.
//!
//! What is written while a feed reads is its own ([`WrittenMeanwhile`]): it is paid by nobody else and counts only as
//! a part of all. The rest is a backlog, and costs a place in a line ([`RateLine`]); [`crate::reader`] keeps the lines
//! and gives each feed a step when its place comes.

use std::time::Duration;

use tailwater_env::Instant;

use crate::limits::CATCH_UP_STEP_BYTES;
use crate::rate::RateLimit;

/// Of a second's worth of the backlogs' rate: what a feed keeps of what was written and not read yet.
const KEPT: u64 = 16;

/// What a feed waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLine {
    /// Bytes that were written meanwhile: only the rate of all bytes is in their way.
    Written,
    /// The last step of a backlog. Apart from the long ones, or who begins near the end would wait for all those far
    /// from it.
    Short,
    /// A step of a longer backlog.
    Long,
}

impl RateLine {
    pub(crate) const ALL: [Self; 3] = [Self::Written, Self::Short, Self::Long];
}

/// What a fetch cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateCharge {
    /// Bytes that were written meanwhile.
    written: u64,
    /// Bytes of a backlog.
    backlog: u64,
}

impl RateCharge {
    fn all(&self) -> u64 {
        self.written + self.backlog
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RateBudget {
    all: RateLimit,
    backlog: RateLimit,
}

impl RateBudget {
    /// Most bytes a second of all that is read, and of backlogs.
    pub(crate) fn new(bytes_per_s: u64, catch_up_bytes_per_s: u64, now: Instant) -> Self {
        Self {
            all: RateLimit::new(bytes_per_s, now),
            backlog: RateLimit::steady(catch_up_bytes_per_s, CATCH_UP_STEP_BYTES, now),
        }
    }

    /// Whether a feed may read that is the first of this line, or how long to wait until it may. Of a backlog a step,
    /// or its part of what there is where that is more: `sharing` feeds wait for it.
    pub(crate) fn is_ready(&mut self, line: RateLine, sharing: usize, now: Instant) -> Result<u64, Duration> {
        let of_all = self.all.is_ready(now);
        if line == RateLine::Written {
            return of_all.map(|()| 0);
        }
        match (of_all, self.backlog.is_ready(now)) {
            (Ok(()), Ok(())) => {
                let left = self.all.left().min(self.backlog.left());
                Ok((left / (sharing as u64).max(1)).max(CATCH_UP_STEP_BYTES))
            }
            (of_all, of_backlog) => Err(of_all.err().max(of_backlog.err()).unwrap_or_default()),
        }
    }

    /// Bytes that may be read in all without overdrawing, as of the last look.
    pub(crate) fn left(&self) -> u64 {
        self.all.left()
    }

    /// Takes what a fetch costs, which may overdraw.
    fn charge(&mut self, charge: RateCharge) {
        self.all.charge(charge.all());
        self.backlog.charge(charge.backlog);
    }

    /// Gives back what a fetch cost that brought nothing.
    fn give_back(&mut self, charge: RateCharge) {
        self.all.earn(charge.all());
        self.backlog.earn(charge.backlog);
    }
}

/// What was written to a file since a feed began, and the feed has not read: nobody else pays for it, or who reads a
/// file that is written faster than backlogs shrink would never catch up.
#[derive(Debug)]
pub(crate) struct WrittenMeanwhile {
    bytes: u64,
    per_s: u64,
}

impl WrittenMeanwhile {
    /// `catch_up_bytes_per_s` is what backlogs shrink by.
    pub(crate) fn new(catch_up_bytes_per_s: u64) -> Self {
        Self { bytes: 0, per_s: catch_up_bytes_per_s.max(1) }
    }

    /// What there is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in that so much was written. Only a part of a second's worth is kept, and nothing of more than a second's
    /// worth at once: that was not written between two looks. Nobody looked, and it is a backlog.
    pub(crate) fn earn(&mut self, count: u64) {
        if count <= self.per_s {
            let most = (self.per_s / KEPT).max(1);
            self.bytes = self.bytes.saturating_add(count).min(self.bytes.max(most));
        }
    }

    /// Takes in that so much of it was read elsewhere.
    pub(crate) fn lose(&mut self, count: u64) {
        self.bytes = self.bytes.saturating_sub(count);
    }

    /// Nothing is the feed's own any more.
    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
    }

    /// Pays for a fetch of so many bytes, and has the rest of them paid as a backlog's.
    pub(crate) fn pay(&mut self, bytes: u64, budget: &mut RateBudget) -> RateCharge {
        let written = bytes.min(self.bytes);
        self.bytes -= written;
        let charge = RateCharge { written, backlog: bytes - written };
        budget.charge(charge);
        charge
    }

    /// Gives back what was paid for a fetch that brought nothing.
    pub(crate) fn give_back(&mut self, charge: RateCharge, budget: &mut RateBudget) {
        self.bytes += charge.written;
        budget.give_back(charge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 16 << 20;

    #[test]
    fn what_was_written_between_two_looks_is_kept_as_far_as_it_is_not_a_backlog() {
        let mut written = WrittenMeanwhile::new(RATE);
        written.earn(3_000);
        written.earn(RATE / KEPT);
        assert_eq!(written.bytes(), RATE / KEPT);
        written.clear();
        written.earn(RATE + 1);
        assert_eq!(written.bytes(), 0, "more than a second's worth at once");
    }

    #[test]
    fn a_fetch_is_paid_by_what_was_written_meanwhile_first_and_given_back_to_who_paid() {
        let now = Instant::from_ns(0);
        let mut budget = RateBudget::new(1 << 30, RATE, now);
        let mut written = WrittenMeanwhile::new(RATE);
        written.earn(1_000);
        let left = budget.backlog.left();
        let charge = written.pay(3_000, &mut budget);
        assert_eq!((written.bytes(), left - budget.backlog.left()), (0, 2_000));
        written.give_back(charge, &mut budget);
        assert_eq!((written.bytes(), budget.backlog.left()), (1_000, left));
    }

    #[test]
    fn a_backlog_that_is_overdrawn_holds_back_nothing_that_was_written_meanwhile() {
        let now = Instant::from_ns(0);
        let mut budget = RateBudget::new(1 << 30, RATE, now);
        let granted = budget.is_ready(RateLine::Long, 1, now).expect("a step is there");
        WrittenMeanwhile::new(RATE).pay(granted * 10, &mut budget);
        assert_eq!(budget.is_ready(RateLine::Written, 1, now), Ok(0));
        for line in [RateLine::Short, RateLine::Long] {
            let wait = budget.is_ready(line, 1, now).expect_err("overdrawn");
            assert!(wait >= Duration::from_secs(granted * 9 / RATE), "{wait:?}");
        }
    }

    #[test]
    fn who_shares_a_large_rate_is_given_a_part_of_what_there_is_and_a_step_at_least() {
        let now = Instant::from_ns(0);
        let mut budget = RateBudget::new(8 << 30, 4 << 30, now);
        let alone = budget.is_ready(RateLine::Long, 1, now).expect("nothing was read yet");
        assert_eq!(budget.is_ready(RateLine::Long, 4, now), Ok(alone / 4));
        assert_eq!(budget.is_ready(RateLine::Long, 1_000, now), Ok(CATCH_UP_STEP_BYTES));
    }
}
