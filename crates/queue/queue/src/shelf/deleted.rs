//! When queues were deleted, for as long as their names can't be used again.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::RECREATE_PAUSE_MS;

/// Account and name of a queue.
pub(crate) type DeletedName = (String, String);

/// Names of queues that were deleted. There are as many as were deleted within [`RECREATE_PAUSE_MS`] before the last of
/// them.
#[derive(Default)]
pub(crate) struct Deleted {
    names: BTreeMap<DeletedName, u64>,
    /// In the order of deletion.
    order: VecDeque<(u64, DeletedName)>,
}

impl Deleted {
    /// A queue was deleted at that time.
    pub(crate) fn insert(&mut self, name: DeletedName, at: u64) {
        while let Some((deleted_at, name)) = self.order.front()
            && deleted_at + RECREATE_PAUSE_MS <= at
        {
            if self.names.get(name) == Some(deleted_at) {
                self.names.remove(name);
            }
            self.order.pop_front();
        }
        self.order.push_back((at, name.clone()));
        self.names.insert(name, at);
    }

    /// Whether the name can't be used yet.
    pub(crate) fn is_held(&self, name: &DeletedName, now: u64) -> bool {
        self.names.get(name).is_some_and(|at| now < at + RECREATE_PAUSE_MS)
    }

    /// Takes everything out, in the order of deletion.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (DeletedName, u64)> {
        self.names.clear();
        std::mem::take(&mut self.order).into_iter().map(|(at, name)| (name, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> DeletedName {
        ("account".to_owned(), number.to_string())
    }

    #[test]
    fn a_name_is_held_for_its_pause_and_forgotten_with_the_next_deletion_after_it() {
        let mut deleted = Deleted::default();
        for number in 0..1_000 {
            deleted.insert(name(number), number * RECREATE_PAUSE_MS / 10);
        }
        assert_eq!((deleted.names.len(), deleted.order.len()), (10, 10));
        let last = 999 * RECREATE_PAUSE_MS / 10;
        assert!(deleted.is_held(&name(999), last + RECREATE_PAUSE_MS - 1));
        assert!(!deleted.is_held(&name(999), last + RECREATE_PAUSE_MS));
        // One that was made again and deleted again.
        deleted.insert(name(999), last + RECREATE_PAUSE_MS);
        deleted.insert(name(0), last + RECREATE_PAUSE_MS + 1);
        assert!(deleted.is_held(&name(999), last + RECREATE_PAUSE_MS + 1));
    }
}
