//! The newest entries of all shards, in memory as they were written: what two-sided readers at the tail are served
//! from.
//!
//! What holds:
//! - Only the owners put entries in, each once, when they become visible, or when a copy's store has taken them;
//!   reading moves nothing. So whoever catches up pushes nobody's bytes out.
//! - Memory is bounded over all shards ([`Hot`]): the entry that became visible first goes first.
//! - Bytes are shared, never copied: with the store until they are in their file, with the readers that send them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_format::{ENTRY_HEADER_BYTES, Offset};

use crate::view::SharedView;

/// The newest entries of one shard, oldest first, without a gap.
#[derive(Debug, Default)]
pub(crate) struct HotNewest(VecDeque<Kept>);

#[derive(Clone, Debug)]
struct Kept {
    base_offset: Offset,
    next_offset: Offset,
    entry: Bytes,
}

impl HotNewest {
    pub(crate) fn push(&mut self, base_offset: Offset, next_offset: Offset, entry: Bytes) {
        // With durability `interval` records may be lost that were visible: others have their offsets now.
        while self.0.back().is_some_and(|last| last.next_offset > base_offset) {
            self.0.pop_back();
        }
        if self.0.back().is_some_and(|last| last.next_offset < base_offset) {
            self.0.clear();
        }
        self.0.push_back(Kept { base_offset, next_offset, entry });
    }

    /// The entries themselves in the same way, at least one if there is one, and the bytes of those behind them.
    pub(crate) fn entries_from(
        &self,
        offset: Offset,
        end: Offset,
        bytes_max: usize,
    ) -> Option<(Vec<Bytes>, u64)> {
        let first = self.0.partition_point(|kept| kept.next_offset <= offset);
        if self.0.get(first)?.base_offset > offset {
            return None;
        }
        let (mut entries, mut bytes, mut behind) = (Vec::new(), 0, 0);
        for kept in self.0.range(first..).take_while(|kept| kept.next_offset <= end) {
            if behind == 0 && (entries.is_empty() || bytes + kept.entry.len() <= bytes_max) {
                bytes += kept.entry.len();
                entries.push(kept.entry.clone());
            } else {
                behind += kept.entry.len() as u64;
            }
        }
        Some((entries, behind))
    }

    fn pop_oldest(&mut self) {
        self.0.pop_front();
    }

    /// The batches of the entries from the one that holds `offset` on and before `end`, entry by entry, until they have
    /// `bytes_max` bytes. `None` if that entry is not here. The owner puts entries in before it shows them: `end` is
    /// what is visible.
    pub(crate) fn from(&self, offset: Offset, end: Offset, bytes_max: usize) -> Option<Vec<Bytes>> {
        let first = self.0.partition_point(|kept| kept.next_offset <= offset);
        if self.0.get(first)?.base_offset > offset {
            return None;
        }
        let mut bytes = 0;
        let mut bodies = Vec::new();
        for kept in self.0.range(first..) {
            if bytes >= bytes_max || kept.next_offset > end {
                break;
            }
            let body = kept.entry.slice(ENTRY_HEADER_BYTES..);
            bytes += body.len();
            bodies.push(body);
        }
        Some(bodies)
    }
}

/// What the newest entries of all shards take together.
#[derive(Debug)]
pub(crate) struct Hot {
    bytes_max: u64,
    kept: Mutex<InOrder>,
}

/// Whose entries became visible in which order.
#[derive(Debug, Default)]
struct InOrder {
    bytes: u64,
    entries: VecDeque<(Weak<SharedView>, u32)>,
}

impl Hot {
    /// At most `bytes_max` bytes over all shards; 0 keeps nothing.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }

    /// Notes that `view` keeps an entry of `len` bytes more, and lets go of the oldest ones.
    pub(crate) fn kept(&self, view: &Arc<SharedView>, len: usize) {
        let mut kept = self.kept.lock();
        kept.bytes += len as u64;
        kept.entries.push_back((Arc::downgrade(view), len as u32));
        while kept.bytes > self.bytes_max {
            let Some((view, len)) = kept.entries.pop_front() else { return };
            kept.bytes -= u64::from(len);
            if let Some(view) = view.upgrade() {
                view.newest().lock().pop_oldest();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tailwater_format::{ShardId, ShardNumber, StreamId};

    use super::*;
    use crate::config::StreamConfig;
    use crate::producer::Producers;
    use crate::shard::{Recovered, Shard};
    use crate::view::View;

    fn entry(body: usize) -> Bytes {
        vec![7; ENTRY_HEADER_BYTES + body].into()
    }

    fn view(number: u32) -> Arc<SharedView> {
        let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(number) };
        let config = Arc::new(StreamConfig::default());
        SharedView::new(View::of(&Shard::new(shard, config, 1, Recovered::default(), Producers::default())))
    }

    fn lens(newest: &HotNewest, offset: u64, bytes_max: usize) -> Option<Vec<usize>> {
        let bodies = newest.from(Offset(offset), Offset(u64::MAX), bytes_max)?;
        Some(bodies.iter().map(Bytes::len).collect())
    }

    #[test]
    fn entries_are_found_by_any_of_their_offsets_and_end_with_the_bytes_asked_for() {
        let mut newest = HotNewest::default();
        for (base, next, body) in [(10, 15, 100), (15, 16, 200), (16, 20, 300)] {
            newest.push(Offset(base), Offset(next), entry(body));
        }
        assert_eq!(lens(&newest, 9, 1_000), None);
        assert_eq!(lens(&newest, 10, 1_000), Some(vec![100, 200, 300]));
        assert_eq!(lens(&newest, 14, 101), Some(vec![100, 200]));
        assert_eq!(lens(&newest, 15, 1), Some(vec![200]));
        assert_eq!(lens(&newest, 20, 1_000), None);
    }

    #[test]
    fn entries_that_are_not_visible_yet_are_not_given() {
        let mut newest = HotNewest::default();
        for (base, next) in [(0, 5), (5, 10), (10, 15)] {
            newest.push(Offset(base), Offset(next), entry(100));
        }
        let count = |offset, end| newest.from(Offset(offset), Offset(end), 1_000).map(|bodies| bodies.len());
        assert_eq!(
            [count(0, 15), count(0, 10), count(7, 10), count(0, 5)],
            [Some(3), Some(2), Some(1), Some(1)]
        );
    }

    #[test]
    fn whole_entries_end_with_the_bytes_asked_for_and_say_what_is_behind_them() {
        let mut newest = HotNewest::default();
        for (base, next, body) in [(0, 5, 100), (5, 10, 200), (10, 15, 300)] {
            newest.push(Offset(base), Offset(next), entry(body));
        }
        let header = ENTRY_HEADER_BYTES;
        let read = |offset, end, bytes_max| {
            let (entries, behind) = newest.entries_from(Offset(offset), Offset(end), bytes_max)?;
            Some((entries.iter().map(|entry| entry.len() - header).collect::<Vec<_>>(), behind))
        };
        assert_eq!(read(3, 15, 1), Some((vec![100], (500 + 2 * header) as u64)));
        assert_eq!(read(5, 10, 1_000), Some((vec![200], 0)));
        assert_eq!(read(0, 15, 300 + 2 * header), Some((vec![100, 200], (300 + header) as u64)));
        assert_eq!(read(15, 20, 1_000), None);
        assert_eq!(read(10, 12, 1_000), Some((vec![], 0)), "it ends behind what may be copied");
    }

    #[test]
    fn records_that_take_the_offsets_of_lost_ones_replace_them() {
        let mut newest = HotNewest::default();
        for (base, next, body) in [(0, 5, 100), (5, 10, 200), (5, 7, 300)] {
            newest.push(Offset(base), Offset(next), entry(body));
        }
        assert_eq!(lens(&newest, 0, 1_000), Some(vec![100, 300]));
        newest.push(Offset(9), Offset(10), entry(1));
        assert_eq!(lens(&newest, 0, 1_000), None, "no gap");
    }

    #[test]
    fn over_all_shards_what_became_visible_first_goes_first() {
        let one = ENTRY_HEADER_BYTES as u64 + 100;
        let hot = Hot::new(3 * one);
        let (a, b) = (view(0), view(1));
        for (view, base) in [(&a, 0), (&b, 0), (&a, 1), (&a, 2), (&b, 1)] {
            view.keep(&hot, Offset(base), Offset(base + 1), &entry(100));
        }
        assert_eq!(hot.bytes(), 3 * one);
        assert_eq!(lens(&a.newest().lock(), 0, 1_000), None);
        assert_eq!(lens(&a.newest().lock(), 1, 1_000), Some(vec![100, 100]));
        assert_eq!(lens(&b.newest().lock(), 0, 1_000), None);
        assert_eq!(lens(&b.newest().lock(), 1, 1_000), Some(vec![100]));
    }
}
