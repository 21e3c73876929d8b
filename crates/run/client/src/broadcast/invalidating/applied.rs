//! How far everything was applied, where tombstones were skipped.
//!
//! Of a tombstone that was skipped all is applied when the event that made the others obsolete has arrived. Whoever
//! made the tombstone had that event, so it was acknowledged by when the tombstone arrived; a proxy that knows all that
//! was acknowledged by then says a count that has it.

use std::collections::VecDeque;

use tailwater_env::Instant;

/// Marks that wait for the proxy's word.
const MARKS_MAX: usize = 16;

/// What had arrived when.
#[derive(Clone, Copy, Debug)]
struct AppliedMark {
    last: u64,
    by: Instant,
    /// Whether something was skipped since the mark before.
    skipped: bool,
}

#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The last number that arrived.
    arrived: u64,
    upto: u64,
    /// Whether something was skipped since the last mark.
    skipped: bool,
    /// The oldest first.
    marks: VecDeque<AppliedMark>,
    /// What is applied up to the first number when the second one has arrived.
    owed: Option<(u64, u64)>,
}

impl Applied {
    /// Nothing before it is asked for.
    pub(super) fn from(position: u64) -> Self {
        Self { arrived: position, upto: position, ..Self::default() }
    }

    /// All events up to that number were applied.
    pub(super) fn upto(&self) -> u64 {
        self.upto
    }

    pub(super) fn arrive(&mut self, last: u64, skipped: bool) {
        self.arrived = last;
        self.skipped |= skipped;
        self.advance();
    }

    /// The proxy has the stream up to `count`, which is all that had been acknowledged at a time, if that is known.
    /// Answers whether these are still the events that have arrived.
    pub(super) fn tell(&mut self, now: Instant, count: u64, knew_all_until: Option<Instant>) -> bool {
        if self.marks.len() < MARKS_MAX {
            let skipped = std::mem::take(&mut self.skipped);
            self.marks.push_back(AppliedMark { last: self.arrived, by: now, skipped });
        }
        let known = self.marks.partition_point(|mark| knew_all_until.is_some_and(|until| mark.by <= until));
        if self.marks.range(..known).any(|mark| mark.last > count) {
            return false;
        }
        // What is owed was told before, and comes first.
        if self.owed.is_none() {
            let known: Vec<AppliedMark> = self.marks.drain(..known).collect();
            if let Some(last) = known.last().filter(|_| known.iter().any(|mark| mark.skipped)) {
                self.owed = Some((last.last, count));
            }
        }
        self.advance();
        true
    }

    fn advance(&mut self) {
        if let Some((upto, until)) = self.owed
            && self.arrived >= until
        {
            (self.upto, self.owed) = (upto, None);
        }
        if !self.is_owed() {
            self.upto = self.arrived;
        }
    }

    /// Whether something was skipped that is not applied.
    pub(super) fn is_owed(&self) -> bool {
        self.skipped || self.owed.is_some() || self.marks.iter().any(|mark| mark.skipped)
    }

    /// All values were forgotten.
    pub(super) fn clear(&mut self) {
        *self = Self::from(self.arrived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Told through the connection through which all comes.
    fn tell(applied: &mut Applied, count: u64) {
        let now = Instant::from_ns(1);
        assert!(applied.tell(now, count, Some(now)));
    }

    #[test]
    fn what_a_tombstone_stands_for_is_applied_when_all_that_the_proxy_had_then_has_arrived() {
        let mut applied = Applied::default();
        applied.arrive(4, false);
        assert_eq!(applied.upto, 4);
        applied.arrive(6, true);
        applied.arrive(7, false);
        assert_eq!(applied.upto, 4);
        tell(&mut applied, 9);
        // Behind what the proxy said, and with a tombstone of its own, which has to wait for its next word.
        applied.arrive(8, true);
        assert_eq!(applied.upto, 4);
        applied.arrive(12, false);
        assert_eq!(applied.upto, 7);
        tell(&mut applied, 12);
        assert_eq!(applied.upto, 12);
    }

    #[test]
    fn nothing_is_owed_once_all_values_are_forgotten() {
        let mut applied = Applied::default();
        applied.arrive(4, true);
        tell(&mut applied, 9);
        applied.arrive(5, true);
        applied.clear();
        assert!(!applied.is_owed());
        applied.arrive(6, false);
        assert_eq!(applied.upto, 6);
    }

    #[test]
    fn a_tombstone_that_another_listener_sent_waits_for_a_word_of_what_was_acknowledged_after_it_came() {
        let at = Instant::from_ns;
        let mut applied = Applied::from(40);
        // The event that made 50 obsolete is 200; what the proxy said before that was is heard behind the tombstone.
        applied.arrive(160, true);
        assert!(applied.tell(at(10), 150, Some(at(5))));
        assert!(applied.tell(at(20), 150, None));
        assert_eq!(applied.upto, 40);
        assert!(applied.tell(at(30), 210, Some(at(12))));
        applied.arrive(205, false);
        assert_eq!(applied.upto, 40);
        applied.arrive(210, false);
        assert_eq!(applied.upto, 210);
    }

    #[test]
    fn fewer_events_than_others_sent_mean_that_numbers_began_anew_only_if_the_proxy_knew_of_those() {
        let at = Instant::from_ns;
        let mut applied = Applied::from(40);
        applied.arrive(60, false);
        assert!(applied.tell(at(10), 50, Some(at(5))));
        assert!(applied.tell(at(20), 60, Some(at(11))));
        assert!(!applied.tell(at(30), 59, Some(at(25))));
    }

    #[test]
    fn tombstones_that_never_end_and_a_proxy_that_knows_late_leave_what_is_applied_a_few_words_behind() {
        let at = Instant::from_ns;
        let mut applied = Applied::default();
        for round in 1..200u64 {
            applied.arrive(10 * round, true);
            assert!(applied.tell(at(10 * round), 10 * round + 2, Some(at((10 * round).saturating_sub(25)))));
            assert!(round < 10 || applied.upto >= 10 * (round - 6), "{applied:?}");
            assert!(applied.upto < 10 * round);
        }
    }
}
