//! A map from numbers to numbers that grows without ever stalling: one cache line a look-up, and the most that
//! one insertion moves is a segment of 1,024 entries, at ten entries and at ten million. (A plain hash map
//! moves all its entries at once when it grows, while a proxy's clients wait.)
//!
//! Extendible hashing: the top bits of a key's hash choose a segment through a directory; a segment is a small
//! table with linear probing, which doubles up to 1,024 slots and then splits in two. Before it grows, entries
//! that are no longer wanted are dropped. Segments are between 3/8 and 3/4 full, so that an entry takes about
//! 30 bytes.

use prefetch_index::prefetch_index;

/// Slots of a segment.
const SLOTS_MAX: usize = 1024;
/// Slots of the first segment, which grows.
const SLOTS_MIN: usize = 16;
/// Slots behind its first one among which a key almost always is: they are in the same line of memory or the next.
const FETCHED: usize = 3;

/// Values are never 0: that is a slot without an entry.
#[derive(Clone, Copy, Debug, Default)]
struct TableSlot {
    key: u64,
    value: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    slots: Box<[TableSlot]>,
    len: usize,
    /// How many of the top bits all its keys share.
    depth: u32,
}

/// The map.
#[derive(Clone, Debug, Default)]
pub(super) struct HistoryTable {
    /// 2^`depth` segments' places, by the top bits of a hash.
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    len: usize,
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

impl Segment {
    fn new(slots: usize, depth: u32) -> Self {
        Self { slots: vec![TableSlot::default(); slots].into(), len: 0, depth }
    }

    /// Where the key is, or the empty slot where it belongs.
    #[inline]
    fn find(&self, hash: u64, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].value != 0 && self.slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn put(&mut self, slot: TableSlot) {
        let at = self.find(hash(slot.key), slot.key);
        self.slots[at] = slot;
        self.len += 1;
    }

    /// Empties a slot and moves those up that had been pushed past it.
    fn clear(&mut self, mut at: usize) {
        let mask = self.slots.len() - 1;
        let mut next = (at + 1) & mask;
        while self.slots[next].value != 0 {
            let home = hash(self.slots[next].key) as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.slots[at] = self.slots[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[at] = TableSlot::default();
        self.len -= 1;
    }

    fn is_full(&self) -> bool {
        self.len >= self.slots.len() / 4 * 3
    }
}

impl HistoryTable {
    /// How many entries it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let slots: usize = self.segments.iter().map(|segment| segment.slots.len()).sum();
        slots * size_of::<TableSlot>() + self.directory.len() * 4 + self.segments.len() * size_of::<Segment>()
    }

    #[inline]
    fn segment(&self, hash: u64) -> usize {
        // A shift by 64 would be none.
        self.directory[(hash >> 1 >> (63 - self.depth)) as usize] as usize
    }

    /// The value of a key.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let hash = hash(key);
        let segment = &self.segments[self.segment(hash)];
        let value = segment.slots[segment.find(hash, key)].value;
        (value != 0).then_some(value)
    }

    /// Has the place where a key is looked for brought into the processor's cache, and what lies behind it as it may
    /// have been pushed on, and does not wait for it.
    #[inline]
    pub(super) fn fetch(&self, key: u64) {
        if self.len == 0 {
            return;
        }
        let hash = hash(key);
        let slots = &self.segments[self.segment(hash)].slots;
        let (at, mask) = (hash as usize, slots.len() - 1);
        prefetch_index(slots, at & mask);
        prefetch_index(slots, (at + FETCHED) & mask);
    }

    /// Sets the value of a key and answers the one it had. Where it has to grow, it asks of the entries of one
    /// segment whether they are still wanted.
    pub(super) fn insert(
        &mut self,
        key: u64,
        value: u64,
        mut wanted: impl FnMut(u64, u64) -> bool,
    ) -> Option<u64> {
        assert!(value != 0, "0 is no value");
        if self.segments.is_empty() {
            self.segments.push(Segment::new(SLOTS_MIN, 0));
            self.directory.push(0);
        }
        let hash = hash(key);
        loop {
            let index = self.segment(hash);
            let segment = &mut self.segments[index];
            let at = segment.find(hash, key);
            if segment.slots[at].value != 0 {
                return Some(std::mem::replace(&mut segment.slots[at].value, value));
            }
            if !segment.is_full() {
                segment.slots[at] = TableSlot { key, value };
                segment.len += 1;
                self.len += 1;
                return None;
            }
            let mut kept = Segment::new(segment.slots.len(), segment.depth);
            for slot in segment.slots.iter().filter(|slot| slot.value != 0) {
                if wanted(slot.key, slot.value) {
                    kept.put(*slot);
                }
            }
            self.len -= segment.len - kept.len;
            *segment = kept;
            // With less room won than this it would soon be asked again.
            if segment.len > segment.slots.len() / 2 {
                self.grow(index, hash);
            }
        }
    }

    /// Takes a key out and answers its value.
    pub(super) fn remove(&mut self, key: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let hash = hash(key);
        let index = self.segment(hash);
        let segment = &mut self.segments[index];
        let at = segment.find(hash, key);
        let value = segment.slots[at].value;
        if value == 0 {
            return None;
        }
        segment.clear(at);
        self.len -= 1;
        Some(value)
    }

    /// Makes room in a segment, which has the hash `at`.
    fn grow(&mut self, index: usize, at: u64) {
        let segment = &self.segments[index];
        if segment.slots.len() < SLOTS_MAX {
            let mut larger = Segment::new(segment.slots.len() * 2, segment.depth);
            segment.slots.iter().filter(|slot| slot.value != 0).for_each(|slot| larger.put(*slot));
            self.segments[index] = larger;
            return;
        }
        let depth = segment.depth + 1;
        let mut halves = [Segment::new(SLOTS_MAX, depth), Segment::new(SLOTS_MAX, depth)];
        for slot in segment.slots.iter().filter(|slot| slot.value != 0) {
            halves[(hash(slot.key) >> (64 - depth)) as usize & 1].put(*slot);
        }
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|&place| [place, place]).collect();
            self.depth = depth;
        }
        let [low, high] = halves;
        let place = self.segments.len() as u32;
        self.segments[index] = low;
        self.segments.push(high);
        // The directory's places of a segment are neighbours; the upper half of them is the new one's.
        let width = 1 << (self.depth - depth);
        let first = (at >> 1 >> (63 - self.depth)) as usize & !(2 * width - 1);
        self.directory[first + width..first + 2 * width].fill(place);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::KEY_INDEX_BYTES_MAX;

    proptest! {
        #[test]
        fn a_table_answers_as_a_map_does(steps in proptest::collection::vec((0..400u64, 0..3u64), 0..3000)) {
            let (mut table, mut map) = (HistoryTable::default(), BTreeMap::new());
            for (step, (key, what)) in steps.into_iter().enumerate() {
                let value = step as u64 + 1;
                match what {
                    0 => prop_assert_eq!(table.remove(key), map.remove(&key)),
                    _ => prop_assert_eq!(table.insert(key, value, |_, _| true), map.insert(key, value)),
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for key in 0..400 {
                prop_assert_eq!(table.get(key), map.get(&key).copied());
            }
        }
    }

    #[test]
    fn a_table_that_grows_past_many_segments_keeps_all_and_takes_less_than_48_bytes_an_entry() {
        let mut table = HistoryTable::default();
        for key in 0..200_000u64 {
            assert_eq!(table.insert(key << 7, key + 1, |_, _| true), None);
        }
        for key in 0..200_000u64 {
            assert_eq!(table.get(key << 7), Some(key + 1));
        }
        assert!(
            table.memory_bytes() < KEY_INDEX_BYTES_MAX as usize * table.len(),
            "{}",
            table.memory_bytes()
        );
    }

    #[test]
    fn entries_that_are_no_longer_wanted_make_room_for_new_ones() {
        let mut table = HistoryTable::default();
        for key in 1..=1_000_000u64 {
            table.insert(key, key, |_, value| value + 1000 > key);
        }
        assert!(table.len() < 10_000, "{}", table.len());
        assert!((999_001..=1_000_000).all(|key| table.get(key) == Some(key)));
    }
}
