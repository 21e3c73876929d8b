//! Numbers and names: of ledgers, entries and bookies; how many copies an entry has, and where they are.

use std::fmt;
use std::sync::Arc;

use crate::limits::ENSEMBLE_MAX;

/// Number of a ledger, never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerId(i64);

impl LedgerId {
    /// `None` of a negative number.
    pub fn new(number: i64) -> Option<Self> {
        (number >= 0).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an entry in its ledger, from 0 on without gaps. As a watermark it is inclusive, and [`EntryId::NONE`] of a
/// ledger without entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(i64);

impl EntryId {
    /// Before the first entry.
    pub const NONE: Self = Self(-1);
    /// The first entry.
    pub const FIRST: Self = Self(0);

    /// What a peer said: everything below 0 is [`EntryId::NONE`].
    pub fn new(number: i64) -> Self {
        Self(number.max(-1))
    }

    /// The number; -1 is none.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The one behind it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The one before it; [`EntryId::NONE`] has none and stays itself.
    pub fn previous(self) -> Self {
        Self((self.0 - 1).max(-1))
    }

    /// Whether it is an entry, and not [`EntryId::NONE`].
    pub fn is_some(self) -> bool {
        self.0 >= 0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Name of a bookie, as ledgers' metadata has it: `HOST:PORT`, or a name that is looked up among those registered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BookieId(Arc<str>);

impl BookieId {
    /// The bookie of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How many bookies a ledger is on, how many copies an entry has, and how many of those acknowledge it. Always
/// `1 <= ack <= write <= ensemble <=` [`ENSEMBLE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorums {
    ensemble: usize,
    write: usize,
    ack: usize,
}

impl fmt::Display for Quorums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.ensemble, self.write, self.ack)
    }
}

impl Quorums {
    /// `None` if the numbers are not in their order.
    pub fn new(ensemble: usize, write: usize, ack: usize) -> Option<Self> {
        (1 <= ack && ack <= write && write <= ensemble && ensemble <= ENSEMBLE_MAX).then_some(Self {
            ensemble,
            write,
            ack,
        })
    }

    /// Bookies of the ledger.
    pub fn ensemble(self) -> usize {
        self.ensemble
    }

    /// Copies of an entry.
    pub fn write(self) -> usize {
        self.write
    }

    /// Copies that have to be durable before an entry is acknowledged.
    pub fn ack(self) -> usize {
        self.ack
    }

    /// The same on at most so many bookies, which are at least as many as acknowledge.
    ///
    /// # Panics
    /// If they are fewer.
    #[must_use]
    pub fn within(self, bookies: usize) -> Self {
        assert!(bookies >= self.ack, "{bookies} bookies are too few to acknowledge with {}", self.ack);
        Self { ensemble: self.ensemble.min(bookies), write: self.write.min(bookies), ack: self.ack }
    }

    /// The positions in the ensemble that hold an entry: `write` of them, round-robin. A negative entry has those of
    /// the first one.
    pub fn write_set(self, entry: EntryId) -> impl Iterator<Item = usize> + Clone {
        let first = (entry.0.max(0) as u64 % self.ensemble as u64) as usize;
        (0..self.write).map(move |copy| (first + copy) % self.ensemble)
    }

    /// Whether there are entries that both positions of the ensemble hold.
    pub fn share(self, one: usize, other: usize) -> bool {
        let apart = one.abs_diff(other);
        apart.min(self.ensemble - apart) < self.write
    }

    /// Whether a position of the ensemble holds an entry.
    pub fn holds(self, entry: EntryId, position: usize) -> bool {
        self.write_set(entry).any(|of| of == position)
    }

    /// How many bookies of a write set have to say that they do not have an entry, until it can't have been
    /// acknowledged: fewer than `ack` are left then.
    pub fn absent(self) -> usize {
        self.write - self.ack + 1
    }

    /// Whether those that answered leave no ack quorum of others in any write set. `answered` has a bit for each
    /// position.
    pub fn covered(self, answered: u64) -> bool {
        (0..self.ensemble).all(|first| {
            let silent = (0..self.write)
                .filter(|copy| answered & (1 << ((first + copy) % self.ensemble)) == 0)
                .count();
            silent < self.ack
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_round_the_ensemble() {
        let quorums = Quorums::new(5, 3, 2).expect("in order");
        let set = |entry| quorums.write_set(EntryId::new(entry)).collect::<Vec<_>>();
        assert_eq!(
            (set(0), set(3), set(4), set(5)),
            (vec![0, 1, 2], vec![3, 4, 0], vec![4, 0, 1], vec![0, 1, 2])
        );
        assert!(quorums.holds(EntryId::new(4), 1) && !quorums.holds(EntryId::new(4), 2));
        assert_eq!(quorums.absent(), 2);
    }

    #[test]
    fn a_ledger_is_covered_when_no_write_set_has_an_ack_quorum_of_silent_bookies() {
        let quorums = Quorums::new(5, 3, 2).expect("in order");
        // Exhaustively, beside what the words say.
        for answered in 0_u64..32 {
            let wanted = (0..5).all(|entry| {
                let silent =
                    quorums.write_set(EntryId::new(entry)).filter(|at| answered & (1 << at) == 0).count();
                silent < 2
            });
            assert_eq!(quorums.covered(answered), wanted, "{answered:05b}");
        }
        assert!(!quorums.covered(0b00111), "3 and 4 are two of the write set of entry 2");
        assert!(quorums.covered(0b01011 | 0b10000));
        let all = Quorums::new(3, 3, 2).expect("in order");
        assert!(!all.covered(0b001) && all.covered(0b011));
    }

    #[test]
    fn quorums_out_of_order_are_none() {
        for (ensemble, write, ack) in [(3, 4, 2), (3, 2, 3), (3, 3, 0), (ENSEMBLE_MAX + 1, 3, 2)] {
            assert_eq!(Quorums::new(ensemble, write, ack), None);
        }
    }
}
