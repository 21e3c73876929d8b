//! Which numbers the events with a key have.
//!
//! A seeded 64-bit hash of a key leads to the number of the only event with it, or to a list of several. An
//! entry may be out of date (its event is collected) or another key's (same hash): whoever follows it looks at
//! the stored event. An event whose key no other stored event has takes an entry of the table, about 30 bytes;
//! otherwise 8 to 16 bytes in a list.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::predicate::Predicate;

use super::table::HistoryTable;

/// Places that are looked at, to drop numbers out of date, whenever one is added to a list.
const LOOKED_AT: usize = 2;

#[derive(Clone, Debug, Default)]
struct List {
    numbers: Vec<u64>,
    /// Where to look for a number out of date next.
    next: usize,
    /// Whether somebody goes through it: no number may move then.
    held: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HistoryKeys {
    seed: u64,
    /// From a hash to twice a number, or to twice a list's place plus one.
    entries: HistoryTable,
    lists: Vec<List>,
    /// Places in `lists` that are not used.
    free: Vec<usize>,
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyEntry {
    One(u64),
    Many(usize),
}

fn decode(value: u64) -> KeyEntry {
    if value & 1 == 0 { KeyEntry::One(value >> 1) } else { KeyEntry::Many((value >> 1) as usize) }
}

impl HistoryKeys {
    /// An index without entries. The seed keeps publishers from choosing keys with equal hashes.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The hash of a key.
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// What there is for a hash.
    #[inline]
    pub(super) fn entry(&self, hash: u64) -> Option<KeyEntry> {
        self.entries.get(hash).map(decode)
    }

    /// Has what there is for a hash brought into the processor's cache, and does not wait for it.
    #[inline]
    pub(super) fn fetch(&self, hash: u64) {
        self.entries.fetch(hash);
    }

    /// Sets a number to be the only one for a hash, unless there is a list; answers what there was.
    #[inline]
    pub(super) fn replace(&mut self, hash: u64, seq: u64, live: impl Fn(u64) -> bool) -> Option<KeyEntry> {
        let before = self.set(hash, seq << 1, live).map(decode);
        if let Some(KeyEntry::Many(list)) = before {
            self.set(hash, (list as u64) << 1 | 1, |_| true);
        }
        before
    }

    fn set(&mut self, hash: u64, value: u64, live: impl Fn(u64) -> bool) -> Option<u64> {
        let Self { entries, lists, free, .. } = self;
        entries.insert(hash, value, |_, value| match decode(value) {
            KeyEntry::One(seq) => live(seq),
            KeyEntry::Many(place) => {
                let list = &mut lists[place];
                // A long list is left to its own look at it.
                let wanted = list.held
                    || list.numbers.iter().rev().take(16).any(|&seq| live(seq))
                    || list.numbers.len() > 16;
                if !wanted {
                    *list = List::default();
                    free.push(place);
                }
                wanted
            }
        })
    }

    /// Adds a number for a hash.
    pub(super) fn add(&mut self, hash: u64, seq: u64, live: impl Fn(u64) -> bool) {
        match self.replace(hash, seq, &live) {
            None => {}
            Some(KeyEntry::One(other)) if !live(other) => {}
            Some(KeyEntry::One(other)) => {
                let list = List { numbers: vec![other, seq], ..List::default() };
                let place = match self.free.pop() {
                    Some(place) => {
                        self.lists[place] = list;
                        place
                    }
                    None => {
                        self.lists.push(list);
                        self.lists.len() - 1
                    }
                };
                self.set(hash, (place as u64) << 1 | 1, |_| true);
            }
            Some(KeyEntry::Many(place)) => {
                let list = &mut self.lists[place];
                list.numbers.push(seq);
                for _ in 0..if list.held { 0 } else { LOOKED_AT } {
                    let at = list.next % list.numbers.len();
                    if live(list.numbers[at]) {
                        list.next = at + 1;
                    } else {
                        list.numbers.swap_remove(at);
                    }
                }
            }
        }
    }

    /// The numbers of a list.
    pub(super) fn list(&self, place: usize) -> &[u64] {
        &self.lists[place].numbers
    }

    /// Says that somebody goes through a list, from its end to its start, and takes out what he passes; or that
    /// he is done.
    pub(super) fn hold(&mut self, place: usize, held: bool) {
        self.lists[place].held = held;
    }

    /// Takes a number out of a list. The list's last one takes its place.
    pub(super) fn take_out(&mut self, place: usize, at: usize) {
        self.lists[place].numbers.swap_remove(at);
    }

    /// Makes a list with one number or none a plain entry again.
    pub(super) fn shorten(&mut self, hash: u64, place: usize) {
        let list = &mut self.lists[place];
        match list.numbers[..] {
            [] => self.entries.remove(hash),
            [seq] => self.entries.insert(hash, seq << 1, |_, _| true),
            _ => {
                if list.numbers.capacity() > 4 * list.numbers.len() {
                    list.numbers.shrink_to(2 * list.numbers.len());
                }
                return;
            }
        };
        *list = List::default();
        self.free.push(place);
    }

    /// How many keys it has.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let numbers: usize = self.lists.iter().map(|list| list.numbers.capacity() * 8).sum();
        self.entries.memory_bytes() + self.lists.len() * size_of::<List>() + numbers
    }
}

/// A key whose events are being collected: of one list, from its end to its start.
#[derive(Clone, Debug)]
pub(super) struct FollowedKeys {
    pub(super) key: Bytes,
    /// Only those with smaller numbers.
    pub(super) before: u64,
    /// Only those for which it holds.
    pub(super) only: Option<Arc<Predicate>>,
    /// How many of the list's numbers are still to be looked at; `None` if it has not begun.
    pub(super) left: Option<usize>,
}
