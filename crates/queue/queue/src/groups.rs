//! The groups of a FIFO queue: which message of each is first, and so whether the group can be received from.
//!
//! Only the first message of a group has a tuple in the queue's index. So a group whose first message is invisible is
//! not found by a receive, whatever is behind it, and however much that is.

use std::collections::VecDeque;
use std::sync::Arc;

use tailwater_env::HashMap;

use crate::ids::Sequence;
use crate::index::Tuple;

/// One group that has messages.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    /// Its messages in their order. Some may be gone, but never the first one.
    pub(crate) messages: VecDeque<Sequence>,
    /// The tuple that the index has for it.
    pub(crate) head: Option<Tuple>,
}

/// The groups of one queue that have messages.
#[derive(Default)]
pub(crate) struct Groups {
    by_name: HashMap<Arc<str>, u32>,
    slots: Vec<Group>,
    free: Vec<u32>,
}

impl Groups {
    /// The place of a group, which is made if it is not there.
    pub(crate) fn place(&mut self, name: &str) -> u32 {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let name: Arc<str> = name.into();
        let group = Group { name: Arc::clone(&name), ..Group::default() };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = group;
                place
            }
            None => {
                self.slots.push(group);
                u32::try_from(self.slots.len() - 1).expect("groups with messages are in memory")
            }
        };
        self.by_name.insert(name, place);
        place
    }

    /// A group, by its place.
    pub(crate) fn get(&self, place: u32) -> &Group {
        &self.slots[place as usize]
    }

    /// The same, to change.
    pub(crate) fn get_mut(&mut self, place: u32) -> &mut Group {
        &mut self.slots[place as usize]
    }

    /// Forgets a group that has no messages.
    pub(crate) fn free(&mut self, place: u32) {
        let group = std::mem::take(&mut self.slots[place as usize]);
        debug_assert!(group.messages.is_empty() && group.head.is_none(), "only what is empty goes");
        self.by_name.remove(&group.name);
        self.free.push(place);
    }

    /// Whether a place has a group.
    pub(crate) fn is_used(&self, place: u32) -> bool {
        self.by_name.get(&self.slots[place as usize].name) == Some(&place)
    }

    /// How many have messages.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}
