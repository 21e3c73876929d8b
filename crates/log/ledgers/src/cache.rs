//! Entries that were acknowledged or read last, over all segments: the oldest go first.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_bookkeeper::LedgerId;
use tailwater_env::HashMap;
use tailwater_format::Position;

use crate::limits::{CACHE_BYTES_MAX, ENTRY_OVERHEAD_BYTES};

/// An entry and where it begins in its segment.
#[derive(Clone, Debug)]
pub(crate) struct HeldEntry {
    pub(crate) position: Position,
    pub(crate) bytes: Bytes,
}

type EntryKey = (LedgerId, i64);

#[derive(Default)]
struct CacheContent {
    entries: HashMap<EntryKey, HeldEntry>,
    order: VecDeque<EntryKey>,
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct EntryCache(Mutex<CacheContent>);

fn cost(entry: &HeldEntry) -> usize {
    entry.bytes.len() + ENTRY_OVERHEAD_BYTES as usize
}

impl EntryCache {
    pub(crate) fn get(&self, ledger: LedgerId, entry: i64) -> Option<HeldEntry> {
        self.0.lock().entries.get(&(ledger, entry)).cloned()
    }

    pub(crate) fn put(&self, ledger: LedgerId, entry: i64, held: HeldEntry) {
        let kept = &mut *self.0.lock();
        let key = (ledger, entry);
        if kept.entries.contains_key(&key) {
            return;
        }
        kept.bytes += cost(&held);
        kept.entries.insert(key, held);
        kept.order.push_back(key);
        while kept.bytes > CACHE_BYTES_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.bytes -= kept.entries.remove(&oldest).map_or(0, |gone| cost(&gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_make_room() {
        let cache = EntryCache::default();
        let ledger = LedgerId::new(1).expect("a number");
        let bytes = Bytes::from(vec![0; 1 << 20]);
        for entry in 0..40 {
            cache.put(ledger, entry, HeldEntry { position: Position(0), bytes: bytes.clone() });
            cache.put(ledger, entry, HeldEntry { position: Position(0), bytes: bytes.clone() });
        }
        let kept = cache.0.lock();
        assert!(kept.bytes <= CACHE_BYTES_MAX && kept.order.len() == kept.entries.len());
        assert!(!kept.entries.contains_key(&(ledger, 0)) && kept.entries.contains_key(&(ledger, 39)));
    }
}
