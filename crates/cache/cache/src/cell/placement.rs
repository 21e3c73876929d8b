//! Which backends hold a key: a ring, as a table.
//!
//! The ring is the circle of all 64-bit numbers. A backend has [`HashRing::points`] points on it, which follow from its
//! number in the cell alone. The circle is cut into [`HashRing::rows`] rows of equal length. The replicas of a row
//! are the first backends, all different, that have a point at the row's begin or behind it, clockwise. A key is in
//! the row that the upper half of its hash lies in; its bucket is taken from the lower half.
//!
//! Whoever knows a configuration makes the table of all rows once, and a look-up is a multiplication and a load. As
//! points depend on nothing but numbers, a backend that joins takes over rows, and no row moves between others.
//!
//! What the tests below hold it to, with the ring that a new cell has:
//! - no backend holds more than 1.4 times the mean of what backends hold, and none less than 0.6 times, up to 16 of
//!   them;
//! - of n + 1 backends the one that joined takes over 0.6 to 1.4 times 1 / (n + 1) of the copies, and every copy that
//!   moves moves to it.

use crate::layout::{KeyHash, scale, xxh3_64};

/// How many replicas a cell keeps of each key, and how many have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One replica: for a cell in one process.
    R1,
    /// Three replicas, two of which acknowledge a SET and agree in a consistent read.
    R32,
    /// Two replicas of what does not change: one is asked, and the other one if that fails. What they hold is loaded
    /// as a whole ([`crate::Cell::begin_load`]).
    R2Immutable,
}

impl Mode {
    /// Replicas of a key.
    pub const fn replicas(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R2Immutable => 2,
            Mode::R32 => 3,
        }
    }

    /// Replicas that have to agree.
    pub const fn quorum(self) -> usize {
        match self {
            Mode::R1 | Mode::R2Immutable => 1,
            Mode::R32 => 2,
        }
    }

    /// Replicas that have to acknowledge what is written.
    pub const fn write_quorum(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R32 | Mode::R2Immutable => 2,
        }
    }

    /// Whether single keys can't be changed.
    pub const fn is_immutable(self) -> bool {
        matches!(self, Mode::R2Immutable)
    }

    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::R1 => "R1",
            Mode::R32 => "R3.2",
            Mode::R2Immutable => "R2/Immutable",
        }
    }
}

/// The most replicas of a key in any mode.
pub(super) const REPLICAS_MAX: usize = 3;

/// How fine a cell's ring is. It is chosen with the cell and stays: with another one nearly all keys would move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRing {
    /// Rows that the circle is cut into; a power of two from [`HashRing::ROWS_MIN`] to [`HashRing::ROWS_MAX`].
    pub rows: u32,
    /// Points of each backend (its virtual nodes), from 1 to [`HashRing::POINTS_MAX`].
    pub points: u16,
}

impl HashRing {
    /// The fewest rows.
    pub const ROWS_MIN: u32 = 1 << 8;
    /// The most rows: a table of 1.5 MiB, for three replicas.
    pub const ROWS_MAX: u32 = 1 << 18;
    /// The most points of a backend. 1,024 backends have a million then, which are sorted in a tenth of a second.
    pub const POINTS_MAX: u16 = 1_024;
    /// The points of a backend, if nothing else is said: its load is off the mean by some 1 / sqrt(256).
    pub const POINTS: u16 = 256;
    /// The rows of a cell that begins with few backends: a table of 24 KiB, for three replicas.
    pub const ROWS: u32 = 1 << 12;

    /// The ring of a new cell that begins with so many backends: 256 rows for each, and 4,096 at least, so that a small
    /// cell may grow.
    pub fn for_backends(backends: usize) -> Self {
        let rows = u32::try_from(backends).unwrap_or(u32::MAX).saturating_mul(u32::from(Self::POINTS));
        // Before the next power of two is taken: that of a number near the greatest one does not exist.
        let rows = rows.clamp(Self::ROWS, Self::ROWS_MAX).next_power_of_two();
        Self { rows, points: Self::POINTS }
    }

    /// Whether it is one.
    pub fn is_valid(self) -> bool {
        self.rows.is_power_of_two()
            && (Self::ROWS_MIN..=Self::ROWS_MAX).contains(&self.rows)
            && (1..=Self::POINTS_MAX).contains(&self.points)
    }
}

/// Where point number `point` of backend number `backend` lies on the circle.
fn point_of(backend: u32, point: u16) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&backend.to_le_bytes());
    bytes[4..6].copy_from_slice(&point.to_le_bytes());
    xxh3_64(&bytes)
}

/// The table of a configuration: for each row the places of its replicas among the configuration's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    replicas: usize,
    rows: u64,
    places: Box<[u16]>,
}

impl Placement {
    /// The table for backends with these numbers, which are all different, and at least as many as `mode` has replicas.
    ///
    /// # Panics
    /// If there are fewer, or more than 65,535, or `ring` is none.
    pub fn new(mode: Mode, ring: HashRing, numbers: &[u32]) -> Self {
        let replicas = mode.replicas();
        assert!(numbers.len() >= replicas && numbers.len() <= usize::from(u16::MAX) && ring.is_valid());
        if numbers.len() == 1 {
            return Self { replicas, rows: 1, places: Box::new([0]) };
        }
        let mut points: Vec<(u64, u32, u16)> = Vec::with_capacity(numbers.len() * usize::from(ring.points));
        for (place, number) in (0_u16..).zip(numbers) {
            points.extend((0..ring.points).map(|point| (point_of(*number, point), *number, place)));
        }
        // The numbers decide where points meet, and not the order in which the backends are listed.
        points.sort_unstable();
        let rows = u64::from(ring.rows);
        let row_len = u64::MAX / rows + 1;
        let mut places = Vec::with_capacity(ring.rows as usize * replicas);
        let mut first = 0;
        for row in 0..rows {
            let begin = row * row_len;
            while points.get(first).is_some_and(|(at, ..)| *at < begin) {
                first += 1;
            }
            let of_row = places.len();
            for step in 0..points.len() {
                let (.., place) = points[(first + step) % points.len()];
                if !places[of_row..].contains(&place) {
                    places.push(place);
                    if places.len() - of_row == replicas {
                        break;
                    }
                }
            }
        }
        Self { replicas, rows, places: places.into() }
    }

    /// The places of a key's replicas among the configuration's backends, all different, as many as the mode has.
    #[inline]
    pub fn of(&self, hash: KeyHash) -> &[u16] {
        let row = scale((hash.0 >> 64) as u64, self.rows) as usize;
        &self.places[row * self.replicas..][..self.replicas]
    }

    /// The same of a key.
    pub fn of_key(&self, key: &[u8]) -> &[u16] {
        self.of(KeyHash::of(key))
    }

    /// The same with other numbers for places.
    ///
    /// # Panics
    /// If one of them does not fit in 16 bits.
    pub(crate) fn among(mut self, place: impl Fn(usize) -> usize) -> Self {
        for of in &mut self.places {
            *of = u16::try_from(place(usize::from(*of))).expect("places are counted in 16 bits");
        }
        self
    }

    /// The replicas of row number `row` of so many.
    pub(crate) fn row(&self, row: u32, rows: u32) -> &[u16] {
        let begin = u128::from(u64::MAX / u64::from(rows) + 1) * u128::from(row);
        self.of(KeyHash(begin << 64))
    }

    /// The part of all copies of keys that the backend at `place` holds, from 0 to 1.
    pub fn part_of(&self, place: usize) -> f64 {
        let held = self.places.iter().filter(|of| usize::from(**of) == place).count();
        held as f64 / self.places.len() as f64
    }

    /// The place of the backend that holds replica `replica` of a key.
    #[inline]
    pub(super) fn backend_of(&self, hash: KeyHash, replica: usize) -> usize {
        usize::from(self.of(hash)[replica])
    }

    /// Which of a key's replicas the backend at `place` is, if it is one.
    pub(crate) fn replica_at(&self, hash: KeyHash, place: usize) -> Option<usize> {
        self.of(hash).iter().position(|of| usize::from(*of) == place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEYS: u32 = 20_000;

    fn hash(n: u32) -> KeyHash {
        KeyHash::of(&n.to_le_bytes())
    }

    fn held(placement: &Placement, backends: usize) -> Vec<usize> {
        let mut held = vec![0_usize; backends];
        for n in 0..KEYS {
            placement.of(hash(n)).iter().for_each(|place| held[usize::from(*place)] += 1);
        }
        held
    }

    fn assert_even(held: &[usize], what: &str) {
        let mean = held.iter().sum::<usize>() as f64 / held.len() as f64;
        let even = |held: &usize| (0.6..=1.4).contains(&(*held as f64 / mean));
        assert!(held.iter().all(even), "{what}: {held:?}, on average {mean}");
    }

    #[test]
    fn different_backends_hold_a_key_and_all_backends_about_equally_many() {
        for (mode, backends) in [(Mode::R1, 1), (Mode::R1, 2), (Mode::R1, 5), (Mode::R32, 3)]
            .into_iter()
            .chain([4, 7, 16].map(|backends| (Mode::R32, backends)))
        {
            let numbers: Vec<u32> = (0..backends as u32).collect();
            let placement = Placement::new(mode, HashRing::for_backends(backends), &numbers);
            for n in 0..KEYS {
                let of = placement.of(hash(n));
                assert_eq!(of.len(), mode.replicas());
                assert!(of.iter().all(|place| of.iter().filter(|other| *other == place).count() == 1));
                assert!(of.iter().all(|place| usize::from(*place) < backends));
            }
            assert_even(&held(&placement, backends), &format!("{mode:?} {backends}"));
        }
    }

    #[test]
    fn a_ring_of_many_backends_has_more_rows_and_is_valid_however_many_there_are() {
        assert_eq!(HashRing::for_backends(3), HashRing { rows: 4_096, points: 256 });
        assert_eq!(HashRing::for_backends(17).rows, 8_192);
        for backends in [0, 1, 1_024, usize::MAX] {
            assert!(HashRing::for_backends(backends).is_valid());
        }
    }

    #[test]
    fn the_table_is_the_same_wherever_it_is_made() {
        // What is written here is in the cells of other processes: it must never change.
        let placement = Placement::new(Mode::R32, HashRing { rows: 4_096, points: 256 }, &[0, 1, 2, 3, 4]);
        let of: Vec<&[u16]> = (0..6).map(|n| placement.of(hash(n))).collect();
        assert_eq!(of, FIXED, "placement has changed");
    }

    const FIXED: [&[u16]; 6] = [&[1, 2, 0], &[4, 1, 2], &[1, 3, 2], &[1, 0, 2], &[4, 0, 3], &[2, 1, 3]];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// The property that the ring is for.
        #[test]
        fn a_backend_that_joins_takes_its_part_of_the_copies_and_none_moves_elsewhere(
            backends in 3_usize..16,
            numbers in proptest::collection::hash_set(any::<u32>(), 17),
            three in any::<bool>(),
        ) {
            let numbers: Vec<u32> = numbers.into_iter().collect();
            let mode = if three { Mode::R32 } else { Mode::R1 };
            let ring = HashRing::for_backends(3);
            let before = Placement::new(mode, ring, &numbers[..backends]);
            // The newcomer may be listed anywhere: places shift, numbers stay.
            let mut with_another = numbers[..backends].to_vec();
            with_another.insert(backends / 2, numbers[backends]);
            let after = Placement::new(mode, ring, &with_another);
            let joined = numbers[backends];
            let mut moved = 0_usize;
            for n in 0..KEYS {
                let numbers_of = |placement: &Placement, numbers: &[u32]| -> Vec<u32> {
                    placement.of(hash(n)).iter().map(|place| numbers[usize::from(*place)]).collect()
                };
                let old = numbers_of(&before, &numbers[..backends]);
                let new = numbers_of(&after, &with_another);
                let came: Vec<u32> = new.iter().copied().filter(|number| !old.contains(number)).collect();
                prop_assert!(came.is_empty() || came == [joined], "{old:?} became {new:?}");
                moved += came.len();
            }
            let copies = KEYS as usize * mode.replicas();
            let part = moved as f64 * (backends + 1) as f64 / copies as f64;
            prop_assert!((0.6..=1.4).contains(&part), "{moved} of {copies} copies moved, with {backends} backends");
            assert_even(&held(&after, backends + 1), &format!("{mode:?} {backends} and one more"));
        }

        #[test]
        fn the_order_in_which_backends_are_listed_moves_no_key(mut numbers in Just((0_u32..7).collect::<Vec<_>>()).prop_shuffle()) {
            let ring = HashRing::for_backends(7);
            let listed = Placement::new(Mode::R32, ring, &numbers);
            let of = |placement: &Placement, numbers: &[u32], n| -> Vec<u32> {
                placement.of(hash(n)).iter().map(|place| numbers[usize::from(*place)]).collect()
            };
            let shuffled: Vec<Vec<u32>> = (0..500).map(|n| of(&listed, &numbers, n)).collect();
            numbers.sort_unstable();
            let sorted = Placement::new(Mode::R32, ring, &numbers);
            for (n, shuffled) in (0..500).zip(shuffled) {
                prop_assert_eq!(of(&sorted, &numbers, n), shuffled);
            }
        }
    }
}
