//! What a FIFO queue has seen in the last five minutes, so that it takes nothing twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use tailwater_env::HashMap;

use crate::ids::{Number, Sequence};
use crate::limits::DEDUPLICATION_MS;
use crate::settings::Scope;

/// Stands for a deduplication id within its scope: the beginning of a SHA-256, so that nobody can make two ids meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeduplicationKey(pub(crate) [u8; 16]);

impl DeduplicationKey {
    /// The key of an id.
    pub(crate) fn new(scope: Scope, group: &str, id: &str) -> Self {
        let mut hash = Sha256::new();
        if scope == Scope::Group {
            hash.update([1]);
            hash.update((group.len() as u64).to_le_bytes());
            hash.update(group);
        }
        hash.update(id);
        Self(hash.finalize()[..16].try_into().expect("16 of 32 bytes"))
    }
}

/// The message that a key was taken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeduplicationSeen {
    pub(crate) number: Number,
    pub(crate) sequence: Sequence,
    /// When, in milliseconds since the epoch.
    pub(crate) at: u64,
}

/// The keys of one queue.
#[derive(Default)]
pub(crate) struct Deduplication {
    seen: HashMap<DeduplicationKey, DeduplicationSeen>,
    /// In the order of their times.
    order: VecDeque<(u64, DeduplicationKey)>,
    /// What the checkpoint does not have yet.
    pub(crate) added: Vec<DeduplicationKey>,
    /// What it need not have any more.
    pub(crate) expired: Vec<DeduplicationKey>,
    /// Keys of all queues that are counted together; these are among them.
    total: Arc<AtomicU64>,
}

impl Drop for Deduplication {
    fn drop(&mut self) {
        self.total.fetch_sub(self.seen.len() as u64, Ordering::Relaxed);
    }
}

impl Deduplication {
    /// Counts its keys with those of others, as of now there.
    pub(crate) fn count_in(&mut self, total: &Arc<AtomicU64>) {
        let count = self.seen.len() as u64;
        total.fetch_add(count, Ordering::Relaxed);
        self.total.fetch_sub(count, Ordering::Relaxed);
        self.total = Arc::clone(total);
    }

    /// The message that was taken with this key less than five minutes ago.
    pub(crate) fn get(&self, key: &DeduplicationKey, now: u64) -> Option<DeduplicationSeen> {
        self.seen.get(key).copied().filter(|seen| now < seen.at + DEDUPLICATION_MS)
    }

    /// Remembers a key. `is_new` says that the checkpoint does not have it.
    pub(crate) fn insert(&mut self, key: DeduplicationKey, seen: DeduplicationSeen, is_new: bool) {
        if self.seen.insert(key, seen).is_none() {
            self.total.fetch_add(1, Ordering::Relaxed);
        }
        self.order.push_back((seen.at, key));
        if is_new {
            self.added.push(key);
        }
    }

    /// Puts what was inserted in any order into the order of times.
    pub(crate) fn sort(&mut self) {
        self.order.make_contiguous().sort();
    }

    /// Forgets what is too old.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some((at, key)) = self.order.front().copied().filter(|(at, _)| at + DEDUPLICATION_MS <= now)
        {
            self.order.pop_front();
            // A key may have been taken again since.
            if self.seen.get(&key).is_some_and(|seen| seen.at == at) {
                self.seen.remove(&key);
                self.total.fetch_sub(1, Ordering::Relaxed);
                self.expired.push(key);
            }
        }
    }

    /// Forgets what was taken for the messages up to this one.
    pub(crate) fn forget(&mut self, upto: Sequence) {
        let Self { seen, order, expired, total, .. } = self;
        seen.retain(|key, seen| {
            let is_kept = seen.sequence > upto;
            if !is_kept {
                total.fetch_sub(1, Ordering::Relaxed);
                expired.push(*key);
            }
            is_kept
        });
        order.retain(|(at, key)| seen.get(key).is_some_and(|seen| seen.at == *at));
    }

    /// What the next checkpoint has to write, and to remove.
    pub(crate) fn take_changes(
        &mut self,
    ) -> (Vec<(DeduplicationKey, DeduplicationSeen)>, Vec<DeduplicationKey>) {
        let added = std::mem::take(&mut self.added);
        let written = added.into_iter().filter_map(|key| Some((key, *self.seen.get(&key)?))).collect();
        // One that was taken again since is written over.
        let mut removed = std::mem::take(&mut self.expired);
        removed.retain(|key| !self.seen.contains_key(key));
        (written, removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_for_five_minutes_and_can_be_taken_again_then() {
        let key = DeduplicationKey::new(Scope::Queue, "g", "id");
        let mut seen = Deduplication::default();
        let first = DeduplicationSeen { number: Number(1), sequence: Sequence(1), at: 1_000 };
        seen.insert(key, first, true);
        assert_eq!(seen.get(&key, 1_000 + DEDUPLICATION_MS - 1), Some(first));
        assert_eq!(seen.get(&key, 1_000 + DEDUPLICATION_MS), None);
        let again =
            DeduplicationSeen { number: Number(2), sequence: Sequence(2), at: 1_000 + DEDUPLICATION_MS };
        seen.insert(key, again, true);
        seen.expire(1_000 + DEDUPLICATION_MS);
        assert_eq!(seen.get(&key, 1_000 + DEDUPLICATION_MS), Some(again));
        assert_eq!(seen.take_changes(), (vec![(key, again), (key, again)], vec![]));
    }

    #[test]
    fn what_was_taken_up_to_a_message_is_forgotten_and_can_be_taken_again_before_the_next_checkpoint() {
        let [one, two] = ["1", "2"].map(|id| DeduplicationKey::new(Scope::Queue, "g", id));
        let mut seen = Deduplication::default();
        let at = |number| DeduplicationSeen { number: Number(number), sequence: Sequence(number), at: 1_000 };
        seen.insert(one, at(1), true);
        seen.insert(two, at(2), true);
        seen.take_changes();
        seen.forget(Sequence(1));
        assert_eq!((seen.get(&one, 1_000), seen.get(&two, 1_000)), (None, Some(at(2))));
        assert_eq!(seen.total.load(Ordering::Relaxed), 1);
        seen.insert(one, at(3), true);
        assert_eq!(seen.take_changes(), (vec![(one, at(3))], vec![]));
        seen.forget(Sequence(3));
        assert_eq!(seen.take_changes().1.len(), 2);
    }

    #[test]
    fn groups_share_ids_only_where_the_scope_is_the_queue() {
        let key = |scope, group| DeduplicationKey::new(scope, group, "id");
        assert_eq!(key(Scope::Queue, "a"), key(Scope::Queue, "b"));
        assert_ne!(key(Scope::Group, "a"), key(Scope::Group, "b"));
    }
}
