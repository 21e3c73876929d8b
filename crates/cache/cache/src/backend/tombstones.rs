//! What was erased, so that a SET which was under way then does not bring it back; and what was promised of keys that
//! are not held, so that nothing at a lower version comes about.
//!
//! The most recent [`TOMBSTONES_MAX`] are kept one by one. Of the older ones only the highest version is kept,
//! and holds for every key: a SET of an unknown key at a lower version is refused, and its client comes back
//! with a higher one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::layout::KeyHash;
use crate::limits::TOMBSTONES_MAX;
use crate::version::Version;

/// The tombstones of a backend.
#[derive(Default)]
pub(super) struct Tombstones {
    by_key: BTreeMap<KeyHash, GoneKey>,
    /// In the order of their arrival; an item counts only if `by_key` has the same.
    arrived: VecDeque<(KeyHash, Version)>,
    summary: Version,
}

/// What is known of a key that is not held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GoneKey {
    /// The version it was erased at; the lowest if it was not.
    pub(super) erased: Version,
    /// Nothing at a lower version is applied; the lowest if nothing was promised.
    pub(super) promised: Version,
}

impl GoneKey {
    /// What a mutation has to be above.
    pub(super) fn floor(self) -> Version {
        self.erased.max(self.promised)
    }
}

impl Tombstones {
    /// What is known of `hash`, if anything is.
    pub(super) fn of(&self, hash: KeyHash) -> Option<GoneKey> {
        self.by_key.get(&hash).copied()
    }

    /// At or below this version, a key that is neither held nor among the tombstones may have been erased.
    pub(super) fn summary(&self) -> Version {
        self.summary
    }

    /// Remembers that `hash` was erased at `version`, which is above all that was known of it.
    pub(super) fn insert(&mut self, hash: KeyHash, version: Version) {
        self.remember(hash, GoneKey { erased: version, promised: Version::ZERO });
    }

    /// Remembers that a value of `hash` at `version` has expired, or that another replica knows that `hash` was erased
    /// then: what was promised of the key stands.
    pub(super) fn note(&mut self, hash: KeyHash, version: Version) {
        let gone = self.of(hash).unwrap_or_default();
        self.remember(hash, GoneKey { erased: gone.erased.max(version), ..gone });
    }

    /// What is kept one by one and was erased.
    pub(super) fn erased(&self) -> impl Iterator<Item = (KeyHash, Version)> + '_ {
        self.by_key.iter().map(|(hash, gone)| (*hash, gone.erased)).filter(|(_, at)| *at > Version::ZERO)
    }

    /// From now on any key that is not known may have been erased at `version` or below.
    pub(super) fn raise_summary(&mut self, version: Version) {
        self.summary = self.summary.max(version);
    }

    /// Remembers that nothing of `hash` below `version` is to be applied.
    pub(super) fn promise(&mut self, hash: KeyHash, version: Version) {
        let gone = self.by_key.entry(hash).or_default();
        if gone.promised < version {
            gone.promised = version;
            let floor = gone.floor();
            self.arrive(hash, floor);
        }
    }

    fn remember(&mut self, hash: KeyHash, gone: GoneKey) {
        self.by_key.insert(hash, gone);
        self.arrive(hash, gone.floor());
    }

    fn arrive(&mut self, hash: KeyHash, floor: Version) {
        self.arrived.push_back((hash, floor));
        if self.arrived.len() > TOMBSTONES_MAX
            && let Some((hash, floor)) = self.arrived.pop_front()
            && let Entry::Occupied(gone) = self.by_key.entry(hash)
            && gone.get().floor() == floor
        {
            gone.remove();
            self.summary = self.summary.max(floor);
        }
    }

    /// Forgets the tombstone of a key that was set again.
    pub(super) fn remove(&mut self, hash: KeyHash) {
        self.by_key.remove(&hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(timestamp_us: u64) -> Version {
        Version { timestamp_us, client_id: 1, sequence: 0 }
    }

    #[test]
    fn the_oldest_tombstones_become_one_version_that_holds_for_all_keys() {
        let mut tombstones = Tombstones::default();
        for n in 0..TOMBSTONES_MAX as u64 {
            tombstones.insert(KeyHash(n.into()), version(1_000_000 - n));
        }
        let other = KeyHash(u128::MAX);
        assert_eq!(tombstones.summary(), Version::ZERO);
        assert_eq!(tombstones.of(KeyHash(0)).map(GoneKey::floor), Some(version(1_000_000)));
        tombstones.insert(other, version(5));
        assert_eq!(tombstones.of(KeyHash(0)), None);
        assert_eq!(tombstones.summary(), version(1_000_000));
        assert_eq!(tombstones.by_key.len(), TOMBSTONES_MAX);
    }

    #[test]
    fn erasing_and_setting_one_key_for_ever_takes_no_more_room() {
        let mut tombstones = Tombstones::default();
        for n in 0..3 * TOMBSTONES_MAX as u64 {
            tombstones.insert(KeyHash(1), version(n));
            tombstones.remove(KeyHash(1));
        }
        assert!(tombstones.arrived.len() <= TOMBSTONES_MAX);
        assert_eq!(tombstones.summary(), Version::ZERO, "none of them was still in force");
    }
}
