//! What is known of each message of a queue, in memory: 48 bytes, by the number it has in its queue.
//!
//! Numbers are dense and grow, so entries lie in pages of [`PAGE_ENTRIES`]; a page goes when its last entry does. A
//! lookup is two array accesses, and nothing is ever moved.

use std::collections::VecDeque;

use crate::ids::{Number, Sequence};
use crate::limits::PAGE_ENTRIES;

/// One message's entry. Times are milliseconds since the epoch, and those after `sent_at` count from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where its content is.
    pub(crate) number: Number,
    pub(crate) sent_at: u64,
    /// The T of its tuple: from then on it can be received.
    pub(crate) visible_at: u64,
    /// When it was received first, after `sent_at`.
    pub(crate) first_after: u32,
    /// When it was received last, after `sent_at`.
    pub(crate) last_after: u32,
    /// What its latest receipt was given.
    pub(crate) token: u32,
    /// Its group, in a FIFO queue.
    pub(crate) group: u32,
    /// Times it was received, at most 65,535.
    pub(crate) receives: u16,
    /// How often it was brought back as a new message: its id is another each time.
    pub(crate) generation: u8,
    pub(crate) flags: u8,
    /// The queue that it was moved away from, by its place in the queue's list.
    pub(crate) source: u32,
}

/// Received, and not visible again yet.
pub(crate) const IN_FLIGHT: u8 = 1;
/// Sent with a delay that is not over.
pub(crate) const DELAYED: u8 = 2;
/// On its way to another queue: in no index.
pub(crate) const MOVING: u8 = 4;
/// Its state is in the tree, or about to be.
pub(crate) const IN_TREE: u8 = 8;
/// Its content is in the tree, or about to be.
pub(crate) const STORED: u8 = 16;
/// Its state has changed since the last checkpoint.
pub(crate) const DIRTY: u8 = 32;
const LIVE: u8 = 128;

const _: () = assert!(std::mem::size_of::<Entry>() == 48);

impl Entry {
    pub(crate) fn new(number: Number, sent_at: u64, visible_at: u64) -> Self {
        Self {
            number,
            sent_at,
            visible_at,
            first_after: 0,
            last_after: 0,
            token: 0,
            group: 0,
            receives: 0,
            generation: 0,
            flags: 0,
            source: 0,
        }
    }

    pub(crate) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

struct Page {
    live: usize,
    entries: [Entry; PAGE_ENTRIES],
}

/// The entries of one queue.
#[derive(Default)]
pub(crate) struct Pages {
    /// The index of the first page in `pages`.
    first: u64,
    pages: VecDeque<Option<Box<Page>>>,
    len: u64,
}

impl Pages {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn get(&self, sequence: Sequence) -> Option<&Entry> {
        let (page, at) = place(sequence);
        let page = self.pages.get(usize::try_from(page.checked_sub(self.first)?).ok()?)?.as_ref()?;
        Some(&page.entries[at]).filter(|entry| entry.is(LIVE))
    }

    pub(crate) fn get_mut(&mut self, sequence: Sequence) -> Option<&mut Entry> {
        let (page, at) = place(sequence);
        let page = self.pages.get_mut(usize::try_from(page.checked_sub(self.first)?).ok()?)?.as_mut()?;
        Some(&mut page.entries[at]).filter(|entry| entry.is(LIVE))
    }

    /// Puts an entry in, in place of one that is there.
    pub(crate) fn insert(&mut self, sequence: Sequence, mut entry: Entry) {
        let (page, at) = place(sequence);
        if self.pages.is_empty() {
            self.first = page;
        }
        while page < self.first {
            self.pages.push_front(None);
            self.first -= 1;
        }
        let index = usize::try_from(page - self.first).expect("pages are in memory");
        while index >= self.pages.len() {
            self.pages.push_back(None);
        }
        let empty = || Box::new(Page { live: 0, entries: [Entry::new(Number(0), 0, 0); PAGE_ENTRIES] });
        let page = self.pages[index].get_or_insert_with(empty);
        if !page.entries[at].is(LIVE) {
            page.live += 1;
            self.len += 1;
        }
        entry.set(LIVE, true);
        page.entries[at] = entry;
    }

    pub(crate) fn remove(&mut self, sequence: Sequence) -> Option<Entry> {
        let (number, at) = place(sequence);
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let slot = self.pages.get_mut(index)?;
        let page = slot.as_mut()?;
        let mut entry = page.entries[at];
        if !entry.is(LIVE) {
            return None;
        }
        page.entries[at].flags = 0;
        page.live -= 1;
        self.len -= 1;
        if page.live == 0 {
            *slot = None;
            while self.pages.front().is_some_and(Option::is_none) {
                self.pages.pop_front();
                self.first += 1;
            }
            while self.pages.back().is_some_and(Option::is_none) {
                self.pages.pop_back();
            }
        }
        entry.set(LIVE, false);
        Some(entry)
    }

    /// The oldest entry. Looks at one page only: the first one always has one.
    pub(crate) fn first(&self) -> Option<(Sequence, &Entry)> {
        let page = self.pages.front()?.as_ref()?;
        let at = page.entries.iter().position(|entry| entry.is(LIVE))?;
        Some((Sequence(self.first * PAGE_ENTRIES as u64 + at as u64), &page.entries[at]))
    }

    /// All entries, oldest first, from a number on.
    pub(crate) fn iter_from(&self, from: Sequence) -> impl Iterator<Item = (Sequence, &Entry)> {
        let skipped = usize::try_from(place(from).0.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let pages = self.pages.iter().enumerate().skip(skipped);
        let entries =
            pages.filter_map(|(index, page)| Some((index, page.as_ref()?))).flat_map(move |(index, page)| {
                let base = (self.first + index as u64) * PAGE_ENTRIES as u64;
                page.entries.iter().enumerate().map(move |(at, entry)| (Sequence(base + at as u64), entry))
            });
        entries.filter(move |(sequence, entry)| entry.is(LIVE) && *sequence >= from)
    }
}

fn place(sequence: Sequence) -> (u64, usize) {
    (sequence.0 / PAGE_ENTRIES as u64, (sequence.0 % PAGE_ENTRIES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go_in_any_order_and_their_pages_with_them() {
        let mut pages = Pages::default();
        for number in 100..1_000 {
            pages.insert(Sequence(number), Entry::new(Number(number), 0, 0));
        }
        assert_eq!(pages.first().map(|(sequence, _)| sequence), Some(Sequence(100)));
        for number in (100..999).rev() {
            assert_eq!(pages.remove(Sequence(number)).map(|entry| entry.number), Some(Number(number)));
            assert_eq!(pages.remove(Sequence(number)), None);
        }
        assert_eq!((pages.len(), pages.pages.len()), (1, 1));
        assert_eq!(pages.first().map(|(sequence, _)| sequence), Some(Sequence(999)));
        pages.insert(Sequence(7), Entry::new(Number(7), 0, 0));
        let all: Vec<u64> = pages.iter_from(Sequence(0)).map(|(sequence, _)| sequence.0).collect();
        assert_eq!(all, [7, 999]);
        assert_eq!(pages.iter_from(Sequence(8)).count(), 1);
    }
}
