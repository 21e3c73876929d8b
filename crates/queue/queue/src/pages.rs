//! What is known of each message of a queue, in memory, by the number it has in its queue: 48 bytes, or 16 in a
//! backlog.
//!
//! Numbers are dense and grow, so entries lie in pages of [`PAGE_ENTRIES`]; a page goes when its last entry does. A
//! lookup is two array accesses. A page is open when one of its entries is put in or changed, and is packed by
//! [`Pages::pack`], which the checkpoints call: messages that nobody has received yet differ in little. One whose delay
//! ends opens its page, which stays so until something of it is changed again.
//!
//! Between the oldest entry and the newest an empty page keeps its place of 16 bytes. So one message that nobody
//! deletes costs a quarter of a byte for each that was sent after it, until it is too old: 22 MB for a day of 1,000
//! messages a second. That is little beside what a tree of pages would cost each lookup.

use std::collections::VecDeque;

use crate::ids::{Number, Sequence};
use crate::limits::PAGE_ENTRIES;

/// One message's entry. Times are milliseconds since the epoch, and those after `sent_at` count from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageEntry {
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

const _: () = assert!(std::mem::size_of::<PageEntry>() == 48);

impl PageEntry {
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

enum BodyPage {
    Open(Box<OpenPage>),
    Packed(Box<Packed>),
}

struct OpenPage {
    live: usize,
    entries: [PageEntry; PAGE_ENTRIES],
}

/// Entries that differ from one of them by little.
struct Packed {
    /// One bit for each entry, the first one's the lowest.
    live: u64,
    like: PageEntry,
    differences: [Difference; PAGE_ENTRIES],
}

/// What is added to the fields of the entry that the others are like; `visible_at` counts from `sent_at`.
#[derive(Clone, Copy, Default)]
struct Difference {
    number: i32,
    sent_at: i32,
    visible_at: i32,
    group: u32,
}

const _: () = assert!(PAGE_ENTRIES == u64::BITS as usize && std::mem::size_of::<Difference>() == 16);

impl OpenPage {
    /// The same, packed, if the entries are that much alike.
    fn packed(&self) -> Option<Packed> {
        let like = *self.entries.iter().find(|entry| entry.is(LIVE))?;
        let mut packed = Packed { live: 0, like, differences: [Difference::default(); PAGE_ENTRIES] };
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.is(LIVE)) {
            let PageEntry { number, sent_at, visible_at, group, .. } = *entry;
            if (PageEntry { number, sent_at, visible_at, group, ..like }) != *entry {
                return None;
            }
            let difference =
                |one: u64, other: u64| i32::try_from(one.cast_signed() - other.cast_signed()).ok();
            packed.live |= 1 << at;
            packed.differences[at] = Difference {
                number: difference(number.0, like.number.0)?,
                sent_at: difference(sent_at, like.sent_at)?,
                visible_at: difference(visible_at, sent_at)?,
                group,
            };
        }
        Some(packed)
    }
}

impl Packed {
    fn get(&self, at: usize) -> Option<PageEntry> {
        let Difference { number, sent_at, visible_at, group } = self.differences[at];
        let sent_at = self.like.sent_at.wrapping_add_signed(sent_at.into());
        (self.live & (1 << at) != 0).then(|| PageEntry {
            number: Number(self.like.number.0.wrapping_add_signed(number.into())),
            sent_at,
            visible_at: sent_at.wrapping_add_signed(visible_at.into()),
            group,
            ..self.like
        })
    }

    fn opened(&self) -> OpenPage {
        let dead = PageEntry::new(Number(0), 0, 0);
        let entries = std::array::from_fn(|at| self.get(at).unwrap_or(dead));
        OpenPage { live: self.live.count_ones() as usize, entries }
    }
}

impl BodyPage {
    fn get(&self, at: usize) -> Option<PageEntry> {
        match self {
            Self::Open(open) => Some(open.entries[at]).filter(|entry| entry.is(LIVE)),
            Self::Packed(packed) => packed.get(at),
        }
    }

    /// The page as one whose entries can be changed.
    fn open(&mut self) -> &mut OpenPage {
        if let Self::Packed(packed) = self {
            *self = Self::Open(Box::new(packed.opened()));
        }
        match self {
            Self::Open(open) => open,
            Self::Packed(_) => unreachable!("it was opened"),
        }
    }
}

/// The entries of one queue.
#[derive(Default)]
pub(crate) struct Pages {
    /// The index of the first page in `pages`.
    first: u64,
    pages: VecDeque<Option<BodyPage>>,
    len: u64,
}

impl Pages {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn get(&self, sequence: Sequence) -> Option<PageEntry> {
        let (page, at) = place(sequence);
        self.pages.get(self.index(page)?)?.as_ref()?.get(at)
    }

    pub(crate) fn get_mut(&mut self, sequence: Sequence) -> Option<&mut PageEntry> {
        let (page, at) = place(sequence);
        let index = self.index(page)?;
        let page = self.pages.get_mut(index)?.as_mut()?;
        // A page need not be opened for one that is not in it.
        page.get(at)?;
        Some(&mut page.open().entries[at])
    }

    fn index(&self, page: u64) -> Option<usize> {
        usize::try_from(page.checked_sub(self.first)?).ok()
    }

    /// Packs the pages that entries are in, or were, if they are alike enough.
    pub(crate) fn pack(&mut self, sequences: impl Iterator<Item = Sequence>) {
        let mut before = None;
        for page in sequences.map(|sequence| place(sequence).0) {
            if before.replace(page) != Some(page)
                && let Some(index) = self.index(page)
                && let Some(Some(page)) = self.pages.get_mut(index)
                && let BodyPage::Open(open) = page
                && let Some(packed) = open.packed()
            {
                *page = BodyPage::Packed(Box::new(packed));
            }
        }
    }

    /// An entry's place in the page before that of another one, if there is one.
    pub(crate) fn page_before(sequence: Sequence) -> Option<Sequence> {
        sequence.0.checked_sub(PAGE_ENTRIES as u64).map(Sequence)
    }

    /// Puts an entry in, in place of one that is there.
    pub(crate) fn insert(&mut self, sequence: Sequence, mut entry: PageEntry) {
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
        let dead = PageEntry::new(Number(0), 0, 0);
        let empty = || BodyPage::Open(Box::new(OpenPage { live: 0, entries: [dead; PAGE_ENTRIES] }));
        let page = self.pages[index].get_or_insert_with(empty).open();
        if !page.entries[at].is(LIVE) {
            page.live += 1;
            self.len += 1;
        }
        entry.set(LIVE, true);
        page.entries[at] = entry;
    }

    pub(crate) fn remove(&mut self, sequence: Sequence) -> Option<PageEntry> {
        let (number, at) = place(sequence);
        let index = self.index(number)?;
        let slot = self.pages.get_mut(index)?;
        let page = slot.as_mut()?;
        let mut entry = page.get(at)?;
        let page = page.open();
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
    pub(crate) fn first(&self) -> Option<(Sequence, PageEntry)> {
        let page = self.pages.front()?.as_ref()?;
        let base = self.first * PAGE_ENTRIES as u64;
        (0..PAGE_ENTRIES).find_map(|at| Some((Sequence(base + at as u64), page.get(at)?)))
    }

    /// All entries, oldest first, from a number on.
    pub(crate) fn iter_from(&self, from: Sequence) -> impl Iterator<Item = (Sequence, PageEntry)> {
        let skipped = usize::try_from(place(from).0.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let pages = self.pages.iter().enumerate().skip(skipped);
        let entries =
            pages.filter_map(|(index, page)| Some((index, page.as_ref()?))).flat_map(|(index, page)| {
                let base = (self.first + index as u64) * PAGE_ENTRIES as u64;
                (0..PAGE_ENTRIES).filter_map(move |at| Some((Sequence(base + at as u64), page.get(at)?)))
            });
        entries.filter(move |(sequence, _)| *sequence >= from)
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
            pages.insert(Sequence(number), PageEntry::new(Number(number), 0, 0));
        }
        assert_eq!(pages.first().map(|(sequence, _)| sequence), Some(Sequence(100)));
        for number in (100..999).rev() {
            assert_eq!(pages.remove(Sequence(number)).map(|entry| entry.number), Some(Number(number)));
            assert_eq!(pages.remove(Sequence(number)), None);
        }
        assert_eq!((pages.len(), pages.pages.len()), (1, 1));
        assert_eq!(pages.first().map(|(sequence, _)| sequence), Some(Sequence(999)));
        pages.insert(Sequence(7), PageEntry::new(Number(7), 0, 0));
        let all: Vec<u64> = pages.iter_from(Sequence(0)).map(|(sequence, _)| sequence.0).collect();
        assert_eq!(all, [7, 999]);
        assert_eq!(pages.iter_from(Sequence(8)).count(), 1);
    }

    #[test]
    fn a_packed_page_has_the_entries_that_were_put_in_and_is_opened_for_changes() {
        let mut pages = Pages::default();
        let entry = |number: u64| PageEntry {
            group: (number % 3) as u32,
            source: 7,
            flags: IN_TREE | STORED,
            // One that was moved here is older, and its content is older, too.
            ..PageEntry::new(Number(5_000 - number), 1_000_000 - 9 * number, 2_000_000 + number)
        };
        for number in 0..200 {
            pages.insert(Sequence(number), entry(number));
        }
        pages.remove(Sequence(70));
        pages.get_mut(Sequence(130)).expect("it is there").receives = 1;
        pages.pack((0..200).map(Sequence));
        let packed: Vec<bool> =
            pages.pages.iter().map(|page| matches!(page, Some(BodyPage::Packed(_)))).collect();
        assert_eq!(packed, [true, true, false, true]);
        let found: Vec<_> = pages.iter_from(Sequence(0)).map(|(sequence, _)| sequence.0).collect();
        assert_eq!(found, (0..200).filter(|number| *number != 70).collect::<Vec<_>>());
        for number in [0, 63, 64, 69, 71, 199] {
            let live = PageEntry { flags: IN_TREE | STORED | LIVE, ..entry(number) };
            assert_eq!(pages.get(Sequence(number)), Some(live));
        }
        assert_eq!((pages.get(Sequence(70)), pages.get_mut(Sequence(70)).is_none()), (None, true));
        assert_eq!(pages.remove(Sequence(3)), Some(entry(3)));
        pages.get_mut(Sequence(64)).expect("it is there").receives = 9;
        assert_eq!(pages.get(Sequence(64)).map(|entry| entry.receives), Some(9));
        assert_eq!((pages.len(), pages.iter_from(Sequence(0)).count()), (198, 198));
    }

    #[test]
    fn entries_that_differ_by_more_than_a_packed_page_can_say_stay_as_they_are() {
        let far = [(0, 0, 1 << 32), (0, 1 << 32, 1 << 32), (1 << 32, 0, 0)];
        for (number, sent_at, visible_at) in far {
            let mut pages = Pages::default();
            pages.insert(Sequence(0), PageEntry::new(Number(0), 0, 0));
            pages.insert(Sequence(1), PageEntry::new(Number(number), sent_at, visible_at));
            pages.pack([Sequence(0)].into_iter());
            assert!(matches!(pages.pages[0], Some(BodyPage::Open(_))));
        }
    }
}
