//! Which tuples this front end's receives are taking, so that no two of them take the same one.
//!
//! A receive reads the index, chooses, and then takes what it chose. Another one of the same front end may have read
//! the index before the first had moved its tuples, and choose after it has: what it read is not so any more. So a
//! tuple stays hidden from a read
//! - while somebody takes it, and
//! - if it was let go of after the read began.
//!
//! A read that begins later sees the move, at a quorum; at one replica it may not, and receives what somebody has, as
//! at any other front end.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Number;

/// Where a tuple is: when it is visible, and its message.
pub(super) type TakePlace = (u64, Number);

/// When something happened, in the order of what happened here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Takes {
    last: u64,
    taking: BTreeSet<TakePlace>,
    /// What was let go of while somebody was reading; no longer than reads that began before.
    gone: BTreeMap<TakePlace, Moment>,
    reading: BTreeSet<Moment>,
}

impl Takes {
    fn next(&mut self) -> Moment {
        self.last += 1;
        Moment(self.last)
    }

    /// A read begins; [`Takes::end_read`] has to follow.
    pub(super) fn begin_read(&mut self) -> Moment {
        let begun = self.next();
        self.reading.insert(begun);
        begun
    }

    /// What was read was chosen from, or is of no use any more.
    pub(super) fn end_read(&mut self, begun: Moment) {
        self.reading.remove(&begun);
        match self.reading.first() {
            Some(oldest) => self.gone.retain(|_, gone| *gone > *oldest),
            None => self.gone.clear(),
        }
    }

    /// Whether a tuple that a read found may be taken.
    pub(super) fn is_free(&self, place: &TakePlace, begun: Moment) -> bool {
        !self.taking.contains(place) && self.gone.get(place).is_none_or(|gone| *gone < begun)
    }

    /// So many tuples may be found by a read and not be free.
    pub(super) fn hidden(&self) -> usize {
        self.taking.len() + self.gone.len()
    }

    /// They are being taken.
    pub(super) fn take(&mut self, places: impl IntoIterator<Item = TakePlace>) {
        self.taking.extend(places);
    }

    /// One was taken, or not: it is where it is.
    pub(super) fn let_go(&mut self, place: TakePlace) {
        self.taking.remove(&place);
        if !self.reading.is_empty() {
            let now = self.next();
            self.gone.insert(place, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TakePlace = (7, Number(1));

    #[test]
    fn what_is_being_taken_is_free_for_nobody_and_what_was_taken_for_reads_that_begin_later() {
        let mut takes = Takes::default();
        let before = takes.begin_read();
        assert!(takes.is_free(&ONE, before));
        takes.take([ONE]);
        let during = takes.begin_read();
        assert!(!takes.is_free(&ONE, before) && !takes.is_free(&ONE, during));
        takes.let_go(ONE);
        let after = takes.begin_read();
        assert!(!takes.is_free(&ONE, before) && !takes.is_free(&ONE, during));
        assert!(takes.is_free(&ONE, after), "moved to the same place again, it is another one");
        // Only as long as somebody has read before.
        takes.end_read(before);
        assert_eq!(takes.hidden(), 1);
        takes.end_read(during);
        assert_eq!(takes.hidden(), 0);
        takes.end_read(after);
        takes.take([ONE]);
        takes.let_go(ONE);
        assert_eq!(takes.hidden(), 0, "nobody reads");
    }
}
