//! Where in the data region the next item goes: blocks, slabs, slots, and how long a freed slot rests.
//!
//! ```text
//! region   | block 0                      | block 1                      | ...
//!          | slab 0 | slab 1 | .. slab 15 | slots of one large size      |
//!          | slots of one small size each |                              |
//! ```
//! Sizes are whole fractions of a slab (small) or of a block (large), so little is left over. A slab belongs to a
//! size while an item is in it, and is reclaimed for another one when slabs run short.
//!
//! A slot is never written while an index entry points at it. A freed one goes to the end of its size's queue and
//! is written again when it has rested for [`SLOT_REST`], or sooner if there is no other room: a reader that
//! copied a pointer just before it changed will then mostly still find the old item whole, and otherwise notice.
//!
//! This module hands out numbers; it does not touch memory, and knows nothing of keys or versions.

use std::collections::{BTreeSet, VecDeque};

use tailwater_env::Instant;

use crate::limits::{BLOCK_BYTES, ITEM_BYTES_MAX, SLAB_BYTES, SLABS_PER_BLOCK, SLOT_REST};

/// Number of a node of the table, or [`NOBODY`].
pub(super) type Owner = u32;
/// A slot that holds nothing.
pub(super) const NOBODY: Owner = u32::MAX;

/// Slots are multiples of this long, which is also the unit of pointers.
const SLOT_UNIT: u64 = 64;
/// A slab of small slots has at least this many: the longest small slot wastes less than 1/8 on the next shorter.
const SMALL_SLOTS_MIN: u64 = 8;
/// How many times larger than its best slot the slot of an item may be.
const LARGER_SLOT_FACTOR: u32 = 4;

/// A slot of the data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabSlot {
    slab: u32,
    index: u32,
}

/// A slab, or a block with one large size, which is at the number of its first slab.
#[derive(Clone, Default)]
struct Slab {
    /// Index into `sizes`; meaningless while it belongs to none.
    size: usize,
    /// Slots handed out at least once; those from here on were never used since the slab got its size.
    carved: u32,
    /// Slots that hold an item.
    live: u32,
    /// Who is in each slot. Empty: it belongs to no size.
    owners: Vec<Owner>,
}

struct Size {
    slot_bytes: u32,
    /// Cut out of blocks, not of slabs.
    large: bool,
    /// Freed slots, the one freed first in front.
    resting: VecDeque<(SlabSlot, Instant)>,
    /// The slab that still has slots which were never used.
    carving: Option<u32>,
}

/// All slabs of a data region.
pub(super) struct Slabs {
    sizes: Vec<Size>,
    slabs: Vec<Slab>,
    free_blocks: VecDeque<u32>,
    /// Slabs without a size, of blocks that are not free as a whole.
    free_slabs: VecDeque<u32>,
    /// How many of each block's slabs are among them.
    free_slabs_of: Vec<u32>,
    /// Slabs that have a size but hold nothing.
    empty: BTreeSet<u32>,
    live_bytes: u64,
}

impl Slabs {
    /// `blocks` blocks, all free.
    pub(super) fn new(blocks: u32) -> Self {
        Self {
            sizes: sizes(),
            slabs: vec![Slab::default(); (blocks * SLABS_PER_BLOCK) as usize],
            free_blocks: (0..blocks).collect(),
            free_slabs: VecDeque::new(),
            free_slabs_of: vec![0; blocks as usize],
            empty: BTreeSet::new(),
            live_bytes: 0,
        }
    }

    /// Bytes of the slots that hold items.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of the slot that is best for an item of `len` bytes.
    pub(super) fn slot_bytes_for(&self, len: usize) -> u64 {
        u64::from(self.sizes[self.size_for(len)].slot_bytes)
    }

    /// Takes a slot for an item of `len` bytes, or `None` if something has to be freed or reclaimed first. When
    /// slabs run short it may be a larger slot, up to [`LARGER_SLOT_FACTOR`] times.
    ///
    /// # Panics
    /// If `len` is beyond [`ITEM_BYTES_MAX`].
    pub(super) fn allocate(&mut self, len: usize, now: Instant) -> Option<SlabSlot> {
        let size = self.size_for(len);
        if let Some((_, since)) = self.sizes[size].resting.front()
            && now.since(*since) >= SLOT_REST
        {
            return self.take_resting(size);
        }
        if self.sizes[size].carving.is_none()
            && let Some(slab) = self.take_free(self.sizes[size].large)
        {
            let Size { slot_bytes, large, .. } = self.sizes[size];
            let bytes = if large { BLOCK_BYTES } else { SLAB_BYTES };
            let slots = (bytes / u64::from(slot_bytes)) as usize;
            self.slabs[slab as usize] = Slab { size, carved: 0, live: 0, owners: vec![NOBODY; slots] };
            self.empty.insert(slab);
            self.sizes[size].carving = Some(slab);
        }
        let size = self.size_with_slots(size)?;
        self.carve(size).or_else(|| self.take_resting(size))
    }

    /// Whether [`Slabs::allocate`] would take a slot.
    pub(super) fn has_slot_for(&self, len: usize) -> bool {
        let size = self.size_for(len);
        let is_small = !self.sizes[size].large;
        !self.free_blocks.is_empty()
            || is_small && !self.free_slabs.is_empty()
            || self.size_with_slots(size).is_some()
    }

    /// The smallest size from `size` on that has slots, and is not far larger.
    fn size_with_slots(&self, size: usize) -> Option<usize> {
        let limit = self.sizes[size].slot_bytes.saturating_mul(LARGER_SLOT_FACTOR);
        let mut candidates =
            (size..self.sizes.len()).take_while(|size| self.sizes[*size].slot_bytes <= limit);
        candidates.find(|size| {
            let size = &self.sizes[*size];
            size.carving.is_some() || !size.resting.is_empty()
        })
    }

    /// A slot that was never used since its slab got its size.
    fn carve(&mut self, size: usize) -> Option<SlabSlot> {
        let index = self.sizes[size].carving?;
        let slab = &mut self.slabs[index as usize];
        let slot = SlabSlot { slab: index, index: slab.carved };
        slab.carved += 1;
        if slab.carved as usize == slab.owners.len() {
            self.sizes[size].carving = None;
        }
        self.note_taken(slot);
        Some(slot)
    }

    fn take_resting(&mut self, size: usize) -> Option<SlabSlot> {
        let (slot, _) = self.sizes[size].resting.pop_front()?;
        self.note_taken(slot);
        Some(slot)
    }

    fn note_taken(&mut self, slot: SlabSlot) {
        let slab = &mut self.slabs[slot.slab as usize];
        if slab.live == 0 {
            self.empty.remove(&slot.slab);
        }
        slab.live += 1;
        self.live_bytes += u64::from(self.sizes[slab.size].slot_bytes);
    }

    /// A slab, or a block, that belongs to no size.
    fn take_free(&mut self, large: bool) -> Option<u32> {
        if large {
            return self.free_blocks.pop_front().map(|block| block * SLABS_PER_BLOCK);
        }
        if self.free_slabs.is_empty() {
            let block = self.free_blocks.pop_front()?;
            let first = block * SLABS_PER_BLOCK;
            self.free_slabs.extend(first..first + SLABS_PER_BLOCK);
            self.free_slabs_of[block as usize] = SLABS_PER_BLOCK;
        }
        let slab = self.free_slabs.pop_front()?;
        self.free_slabs_of[(slab / SLABS_PER_BLOCK) as usize] -= 1;
        Some(slab)
    }

    /// Says who is in a slot.
    pub(super) fn set_owner(&mut self, slot: SlabSlot, owner: Owner) {
        self.slabs[slot.slab as usize].owners[slot.index as usize] = owner;
    }

    /// Gives a slot back. No index entry points at it any more.
    pub(super) fn free(&mut self, slot: SlabSlot, now: Instant) {
        let slab = &mut self.slabs[slot.slab as usize];
        slab.owners[slot.index as usize] = NOBODY;
        slab.live -= 1;
        if slab.live == 0 {
            self.empty.insert(slot.slab);
        }
        let size = &mut self.sizes[slab.size];
        self.live_bytes -= u64::from(size.slot_bytes);
        size.resting.push_back((slot, now));
    }

    /// Where in the data region a slot begins.
    pub(super) fn offset(&self, slot: SlabSlot) -> u64 {
        let slot_bytes = self.sizes[self.slabs[slot.slab as usize].size].slot_bytes;
        u64::from(slot.slab) * SLAB_BYTES + u64::from(slot.index) * u64::from(slot_bytes)
    }

    /// Who has to go, so that reclaiming what is empty then makes room for an item of `len` bytes: everybody in
    /// the slab of `slot`, or in its block if a whole one is needed.
    pub(super) fn owners_around(&self, slot: SlabSlot, len: usize) -> Vec<Owner> {
        let first = slot.slab / SLABS_PER_BLOCK * SLABS_PER_BLOCK;
        let slabs = if self.sizes[self.size_for(len)].large {
            first..first + SLABS_PER_BLOCK
        } else {
            slot.slab..slot.slab + 1
        };
        let owners = slabs.flat_map(|slab| self.slabs[slab as usize].owners.iter());
        owners.copied().filter(|owner| *owner != NOBODY).collect()
    }

    /// Takes a slab that holds nothing from its size, for any other one; `false` if there is none.
    pub(super) fn reclaim_empty(&mut self) -> bool {
        let Some(index) = self.empty.pop_first() else { return false };
        let Slab { size, live, .. } = std::mem::take(&mut self.slabs[index as usize]);
        assert_eq!(live, 0, "it is among the empty ones");
        let size = &mut self.sizes[size];
        size.resting.retain(|(slot, _)| slot.slab != index);
        if size.carving == Some(index) {
            size.carving = None;
        }
        let block = index / SLABS_PER_BLOCK;
        if size.large {
            self.free_blocks.push_back(block);
            return true;
        }
        self.free_slabs.push_back(index);
        let free = &mut self.free_slabs_of[block as usize];
        *free += 1;
        if *free == SLABS_PER_BLOCK {
            *free = 0;
            self.free_slabs.retain(|slab| slab / SLABS_PER_BLOCK != block);
            self.free_blocks.push_back(block);
        }
        true
    }

    fn size_for(&self, len: usize) -> usize {
        assert!(len <= ITEM_BYTES_MAX);
        self.sizes.partition_point(|size| (size.slot_bytes as usize) < len)
    }
}

/// All sizes, ascending.
fn sizes() -> Vec<Size> {
    let mut all = Vec::new();
    let mut last = 0;
    let mut add = |bytes: u64, large: bool| {
        let slot_bytes = (bytes / SLOT_UNIT * SLOT_UNIT) as u32;
        if slot_bytes > last {
            last = slot_bytes;
            all.push(Size { slot_bytes, large, resting: VecDeque::new(), carving: None });
        }
    };
    for slots in (SMALL_SLOTS_MIN..=SLAB_BYTES / SLOT_UNIT).rev() {
        add(SLAB_BYTES / slots, false);
    }
    // Steps of about 1/8 while there are many slots in a block, and then every fraction.
    let mut slots = BLOCK_BYTES / (SLAB_BYTES / SMALL_SLOTS_MIN) - 1;
    while slots > 0 {
        add(BLOCK_BYTES / slots, true);
        slots -= (slots / 8).max(1);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(0) + Duration::from_millis(ms)
    }

    #[test]
    fn slot_sizes_waste_little_and_hold_the_longest_item() {
        let sizes: Vec<u32> = sizes().iter().map(|size| size.slot_bytes).collect();
        assert!(sizes.is_sorted() && sizes.len() < 120, "{} sizes", sizes.len());
        assert!(*sizes.last().expect("some") as usize >= ITEM_BYTES_MAX);
        for pair in sizes.windows(2).filter(|pair| pair[0] >= 1024 && u64::from(pair[1]) < BLOCK_BYTES / 4) {
            assert!(pair[1] - pair[0] <= pair[0] / 5, "{pair:?}");
        }
        assert!(sizes.iter().all(|bytes| u64::from(*bytes).is_multiple_of(SLOT_UNIT)));
        let chunk = sizes.iter().find(|bytes| **bytes >= 4096 + 80).expect("one");
        assert_eq!(*chunk, 4288, "a chunk of 4 KiB with header and key loses less than 3 %");
    }

    #[test]
    fn a_freed_slot_rests_while_there_is_other_room() {
        let mut slabs = Slabs::new(4);
        let first = slabs.allocate(4176, at(0)).expect("room");
        slabs.free(first, at(0));
        let second = slabs.allocate(4176, at(1)).expect("room");
        assert_ne!(first, second, "one millisecond is too early");
        let third = slabs.allocate(4176, at(2)).expect("room");
        assert_eq!(first, third);
    }

    #[test]
    fn without_other_room_the_slot_that_was_freed_first_is_used_at_once() {
        let mut slabs = Slabs::new(1);
        let slots: Vec<SlabSlot> = std::iter::from_fn(|| slabs.allocate(100_000, at(0))).collect();
        assert!(slots.len() > 2);
        slabs.free(slots[2], at(0));
        slabs.free(slots[0], at(0));
        assert_eq!(slabs.allocate(100_000, at(0)), Some(slots[2]));
        assert_eq!(slabs.allocate(100_000, at(0)), Some(slots[0]));
        assert_eq!(slabs.allocate(100_000, at(0)), None);
        assert_eq!(slabs.allocate(64, at(0)), None, "the only block has another size");
    }

    #[test]
    fn when_slabs_run_short_an_item_takes_a_larger_slot_but_not_far_too_large_a_one() {
        let mut slabs = Slabs::new(1);
        for _ in 0..SLABS_PER_BLOCK * 8 - 1 {
            slabs.allocate(9000, at(0)).expect("room for all but one");
        }
        let before = slabs.live_bytes();
        slabs.allocate(4000, at(0)).expect("a larger slot");
        assert_eq!(slabs.live_bytes() - before, SLAB_BYTES / SMALL_SLOTS_MIN);
        assert_eq!(slabs.allocate(4000, at(0)), None, "that was the last one");
        let mut slabs = Slabs::new(1);
        for _ in 0..SLABS_PER_BLOCK * 8 - 1 {
            slabs.allocate(9000, at(0)).expect("room for all but one");
        }
        assert_eq!(slabs.allocate(2000, at(0)), None, "more than four times larger");
    }

    #[test]
    fn sixteen_emptied_slabs_of_a_block_hold_the_longest_item_again() {
        let mut slabs = Slabs::new(1);
        let slots: Vec<SlabSlot> = (0..SLABS_PER_BLOCK as usize * 8)
            .map(|n| slabs.allocate(9000, at(0)).unwrap_or_else(|| panic!("room for item {n}")))
            .collect();
        slabs.set_owner(slots[1], 7);
        assert_eq!(slabs.allocate(ITEM_BYTES_MAX, at(0)), None);
        assert!(!slabs.reclaim_empty());
        assert_eq!(slabs.owners_around(slots[127], ITEM_BYTES_MAX), [7]);
        assert!(slabs.owners_around(slots[127], 100).is_empty(), "another slab");
        for slot in slots {
            slabs.free(slot, at(0));
        }
        assert_eq!(slabs.live_bytes(), 0);
        while slabs.reclaim_empty() {}
        let slot = slabs.allocate(ITEM_BYTES_MAX, at(0)).expect("room");
        assert_eq!(slabs.offset(slot), 0);
        assert_eq!(slabs.live_bytes(), BLOCK_BYTES);
    }

    proptest! {
        #[test]
        fn no_two_slots_in_use_overlap(
            steps in proptest::collection::vec((0_usize..ITEM_BYTES_MAX, 0_u32..6, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut slabs = Slabs::new(4);
            let mut used: Vec<(SlabSlot, u64, u64)> = Vec::new();
            for (n, (len, shift, index)) in steps.into_iter().enumerate() {
                let now = at(n as u64);
                let len = (len >> (2 * shift)).max(33);
                let slot = loop {
                    if let Some(slot) = slabs.allocate(len, now) {
                        break slot;
                    }
                    if !slabs.reclaim_empty() {
                        let (slot, ..) = used.swap_remove(index.index(used.len()));
                        slabs.free(slot, now);
                    }
                };
                let (begin, end) = (slabs.offset(slot), slabs.offset(slot) + len as u64);
                prop_assert!(end <= 4 * BLOCK_BYTES);
                prop_assert!(used.iter().all(|(_, other_begin, other_end)| end <= *other_begin || *other_end <= begin));
                used.push((slot, begin, end));
                let live: u64 = used.iter().map(|(slot, ..)| u64::from(slabs.sizes[slabs.slabs[slot.slab as usize].size].slot_bytes)).sum();
                prop_assert_eq!(live, slabs.live_bytes());
            }
        }
    }
}
