//! The places of shards at their owner, which are used again.

/// A shard's place at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    index: u32,
    /// How many there were before it in this place: what is still on its way to one that was removed is not for the
    /// next one.
    turn: u32,
}

struct SlotPlace<T> {
    turn: u32,
    content: Option<T>,
}

/// What is in slots.
pub(crate) struct Slots<T> {
    places: Vec<SlotPlace<T>>,
    /// Of places whose content was removed.
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// A slot of its own for what is then put there.
    pub(crate) fn reserve(&mut self) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.places.len()).expect("shards are bounded far below");
            self.places.push(SlotPlace { turn: 0, content: None });
            index
        });
        Slot { index, turn: self.places[index as usize].turn }
    }

    fn place(&mut self, slot: Slot) -> Option<&mut SlotPlace<T>> {
        self.places.get_mut(slot.index as usize).filter(|place| place.turn == slot.turn)
    }

    /// What is there, unless it was removed.
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut T> {
        self.place(slot)?.content.as_mut()
    }

    /// The same, to be [put](Slots::put) back.
    pub(crate) fn take(&mut self, slot: Slot) -> Option<T> {
        self.place(slot)?.content.take()
    }

    /// Puts something into a slot.
    pub(crate) fn put(&mut self, slot: Slot, content: T) {
        if let Some(place) = self.place(slot) {
            assert!(place.content.is_none(), "a slot is put into when it is empty");
            place.content = Some(content);
        }
    }

    /// Takes out what is there for good.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let place = self.place(slot)?;
        let content = place.content.take();
        // A place that had all of its turns stays empty.
        if let Some(turn) = place.turn.checked_add(1) {
            place.turn = turn;
            self.free.push(slot.index);
        }
        content
    }

    /// All slots that something is in.
    pub(crate) fn used(&self) -> impl Iterator<Item = Slot> + '_ {
        let places = (0..).zip(&self.places).filter(|(_, place)| place.content.is_some());
        places.map(|(index, place)| Slot { index, turn: place.turn })
    }

    /// All that is in them.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.content.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_and_what_was_for_the_one_before_does_not_reach_the_next_one() {
        let mut slots = Slots::new();
        let [first, second] = ["first", "second"].map(|name| {
            let slot = slots.reserve();
            slots.put(slot, name);
            slot
        });
        assert_eq!(slots.remove(first), Some("first"));
        let third = slots.reserve();
        assert_eq!(slots.get(third), None, "nothing was put there");
        slots.put(third, "third");
        assert_eq!((slots.places.len(), third.index), (2, first.index));
        assert_eq!(slots.get(first), None);
        assert_eq!((slots.take(first), slots.remove(first)), (None, None));
        slots.put(first, "late");
        assert_eq!(slots.all().map(|name| *name).collect::<Vec<_>>(), ["third", "second"]);
        assert_eq!(slots.used().collect::<Vec<_>>(), [third, second]);
    }

    #[test]
    fn many_that_come_and_go_take_the_room_of_one() {
        let mut slots = Slots::new();
        for number in 0..1_000 {
            let slot = slots.reserve();
            slots.put(slot, number);
            assert_eq!(slots.remove(slot), Some(number));
        }
        assert_eq!(slots.places.len(), 1);
        assert_eq!(slots.used().count(), 0);
    }

    #[test]
    fn a_place_that_had_all_of_its_turns_is_not_used_again() {
        let mut slots = Slots::new();
        let first = slots.reserve();
        slots.places[0].turn = u32::MAX;
        let last = Slot { turn: u32::MAX, ..first };
        slots.put(last, "last");
        assert_eq!(slots.remove(last), Some("last"));
        assert_ne!(slots.reserve().index, last.index);
    }
}
