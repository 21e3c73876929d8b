//! When which readers are woken: one bell after the other, so that readers do not all want a processor at once.

use crate::limits::{BELLS, READERS_OF_BELL};

/// The bells in their turns.
///
/// A publication is due at every bell that has readers. Bells ring in turn, so that each that is due rings after one
/// round at most.
#[derive(Debug)]
pub(crate) struct BellTurns {
    readers: [usize; BELLS],
    is_due: [bool; BELLS],
    /// Where the next round goes on.
    next: usize,
}

impl BellTurns {
    pub(crate) fn new() -> Self {
        Self { readers: [0; BELLS], is_due: [false; BELLS], next: 0 }
    }

    /// A bell for another reader: the first with room, or the one with the fewest readers.
    pub(crate) fn give(&mut self) -> usize {
        let with_room = self.readers.iter().position(|readers| *readers < READERS_OF_BELL);
        let bell =
            with_room.or_else(|| (0..BELLS).min_by_key(|bell| self.readers[*bell])).expect("there are bells");
        self.readers[bell] += 1;
        bell
    }

    /// A reader with this bell is gone.
    pub(crate) fn take_back(&mut self, bell: usize) {
        self.readers[bell] -= 1;
        self.is_due[bell] &= self.readers[bell] > 0;
    }

    /// Something was published.
    pub(crate) fn published(&mut self) {
        for (is_due, readers) in self.is_due.iter_mut().zip(&self.readers) {
            *is_due = *readers > 0;
        }
    }

    pub(crate) fn any_is_due(&self) -> bool {
        self.is_due.contains(&true)
    }

    /// The bell to ring now.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let bell = (self.next..self.next + BELLS).map(|bell| bell % BELLS).find(|bell| self.is_due[*bell])?;
        self.is_due[bell] = false;
        self.next = bell + 1;
        Some(bell)
    }

    /// Bells that have readers.
    pub(crate) fn used(&self) -> usize {
        self.readers.iter().filter(|readers| **readers > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_readers_have_one_bell_and_very_many_share_all_evenly() {
        let mut bells = BellTurns::new();
        assert!((0..READERS_OF_BELL).all(|_| bells.give() == 0));
        assert_eq!(bells.give(), 1);
        for _ in 0..3 * BELLS * READERS_OF_BELL - READERS_OF_BELL - 1 {
            bells.give();
        }
        assert_eq!(bells.readers, [3 * READERS_OF_BELL; BELLS]);
    }

    #[test]
    fn each_bell_with_readers_rings_once_for_a_publication_and_in_turn_where_they_never_end() {
        let mut bells = BellTurns::new();
        assert_eq!(bells.next(), None, "nobody is there");
        for _ in 0..2 * READERS_OF_BELL + 1 {
            bells.give();
        }
        assert_eq!((bells.used(), bells.any_is_due()), (3, false));
        bells.published();
        assert_eq!([(); 4].map(|()| bells.next()), [Some(0), Some(1), Some(2), None]);
        let rung: Vec<_> = (0..6)
            .map(|_| {
                bells.published();
                bells.next().expect("due")
            })
            .collect();
        assert_eq!(rung, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_bell_whose_last_reader_is_gone_does_not_ring_and_is_given_again() {
        let mut bells = BellTurns::new();
        let bell = bells.give();
        bells.published();
        bells.take_back(bell);
        assert_eq!((bells.next(), bells.any_is_due(), bells.used()), (None, false, 0));
        assert_eq!(bells.give(), bell);
    }
}
