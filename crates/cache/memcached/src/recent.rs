//! When keys were last read over this node's listener: a cell does not know, as nobody asks it.
//!
//! A table of a fixed size without locks. Keys that share a place take it from each other, and are then as if never
//! read.

use std::sync::atomic::{AtomicU64, Ordering};

use tailwater_cache::Version;

use crate::limits::RECENT_KEYS_MAX;

/// Bits of a slot that are the second of the access.
const SECOND_BITS: u32 = 32;

/// The table.
pub(crate) struct RecentKeys {
    /// What is left of the value's token, and the second of the access; 0: none.
    slots: Vec<AtomicU64>,
}

impl RecentKeys {
    pub fn new() -> Self {
        Self { slots: (0..RECENT_KEYS_MAX).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The second since the Unix epoch at which the value was last read, if it was and that is known.
    pub fn last(&self, version: Version) -> Option<u64> {
        let (slot, token) = self.place(version);
        // Relaxed: a slot is one word, and stands for itself.
        let seen = slot.load(Ordering::Relaxed);
        (seen != 0 && seen >> SECOND_BITS == token).then_some(seen & u64::from(u32::MAX))
    }

    /// The value is read now.
    pub fn note(&self, version: Version, now_s: u64) {
        let (slot, token) = self.place(version);
        slot.store(token << SECOND_BITS | (now_s & u64::from(u32::MAX)), Ordering::Relaxed);
    }

    fn place(&self, version: Version) -> (&AtomicU64, u64) {
        let token = version.token();
        (&self.slots[token as usize & (RECENT_KEYS_MAX - 1)], token >> SECOND_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_was_read_when_it_was_and_its_successor_was_not() {
        let recent = RecentKeys::new();
        let version = |sequence| Version { timestamp_us: 1, client_id: 2, sequence };
        assert_eq!(recent.last(version(0)), None);
        recent.note(version(0), 1_800_000_000);
        assert_eq!((recent.last(version(0)), recent.last(version(1))), (Some(1_800_000_000), None));
    }
}
