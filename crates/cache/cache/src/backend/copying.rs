//! What a table tells other replicas of what it holds, and what it copies from them.
//!
//! A copy is the highest version as it is, at its age: it is no mutation. It never undoes a higher version, what was
//! erased or has expired, or what was removed for room, so a full backend is not filled again for ever. Below a version
//! that was promised nothing is copied as long as who was promised that may use it: it was told that there is nothing.

use std::ops::Range;

use super::*;

/// What a table has of some of its buckets, in the order of nothing.
#[derive(Debug)]
pub(in super::super) struct ScanPart {
    pub(in super::super) held: Vec<(KeyHash, Version)>,
    pub(in super::super) erased: Vec<(KeyHash, Version)>,
    /// The lower half of a hash that the next part begins with; `None` behind the last one.
    pub(in super::super) next: Option<u64>,
    /// Whether a key that is in neither list is not held: these buckets are filled.
    pub(in super::super) is_known: bool,
}

impl Table {
    /// From now on a key that is not held is unknown. For a table of which nothing is read yet.
    pub(in super::super) fn begin_unfilled(&mut self) {
        self.filled_buckets = 0;
    }

    /// The other way round, for a table that nobody can fill.
    pub(in super::super) fn end_unfilled(&mut self) {
        self.filled_buckets = self.config.buckets;
    }

    /// Whether it is known what all buckets should hold.
    pub(in super::super) fn is_filled(&self) -> bool {
        self.filled_buckets == self.config.buckets
    }

    /// Buckets of which that is known.
    pub(in super::super) fn filled_buckets(&self) -> u64 {
        self.filled_buckets
    }

    /// Writes the flags of some buckets.
    pub(in super::super) fn flag_buckets(&self, buckets: Range<u64>) {
        buckets.for_each(|bucket| self.write_flags(bucket));
    }

    /// Buckets all of whose keys have hashes with a lower half below `next` hold what they should, at most `max` more
    /// than did so far; `true` if there are more. `None` is all buckets.
    pub(in super::super) fn fill_up_to(&mut self, next: Option<u64>, max: u64) -> bool {
        let behind = next.map_or(self.config.buckets, |next| KeyHash::bucket_of(next, self.config.buckets));
        let first = self.filled_buckets;
        self.filled_buckets = behind.min(first + max).max(first);
        self.flag_buckets(first..self.filled_buckets);
        self.filled_buckets < behind
    }

    /// Whether nobody here knows what there is of `hash`.
    pub(in super::super) fn is_unknown(&self, hash: KeyHash) -> bool {
        let is_filled = hash.bucket(self.config.buckets) < self.filled_buckets;
        !is_filled
            && self.find(hash).is_none()
            && self.tombstones.of(hash).is_none_or(|gone| gone.erased == Version::ZERO)
    }

    /// No mutation at or below `floor` is applied any more.
    pub(in super::super) fn raise_floor(&mut self, floor: Version) {
        self.floor = self.floor.max(floor);
    }

    /// No mutation at or below this version is applied. It rises when a backend joins.
    pub(in super::super) fn floor(&self) -> Version {
        self.floor
    }

    /// Above all that was applied or promised, and at or above all that is refused whatever key it is of.
    pub(in super::super) fn highest(&self) -> Version {
        self.highest.max(self.floor).max(self.tombstones.summary())
    }

    /// A key that is neither held nor told of as erased may have been erased, or removed, at this version or below.
    pub(in super::super) fn forgotten(&self) -> Version {
        self.tombstones.summary().max(self.removed)
    }

    /// The same is true here, once what others held was copied.
    pub(in super::super) fn forget_up_to(&mut self, forgotten: Version) {
        self.tombstones.raise_summary(forgotten);
        self.removed = self.removed.max(forgotten);
    }

    /// What there is of some buckets, from the first one that has keys with a lower half of `from` on.
    pub(in super::super) fn scan(
        &self,
        from: u64,
        buckets_max: u64,
        wants: impl Fn(KeyHash) -> bool,
    ) -> ScanPart {
        let first = KeyHash::bucket_of(from, self.config.buckets);
        let behind = (first + buckets_max).min(self.config.buckets);
        let next = (behind < self.config.buckets).then(|| KeyHash::low_of(behind, self.config.buckets));
        let is_wanted = |hash: KeyHash| {
            let low = hash.0 as u64;
            low >= from && next.is_none_or(|next| low < next) && wants(hash)
        };
        let mut held = Vec::new();
        for bucket in first..behind {
            let ways = self.ways[bucket as usize * WAYS..][..WAYS].iter();
            let nodes = ways.chain(self.chains.get(&bucket).into_iter().flatten());
            let nodes = nodes.filter(|number| **number != NOBODY).map(|number| self.node(*number));
            held.extend(nodes.map(|node| (node.hash, node.version)).filter(|(hash, _)| is_wanted(*hash)));
        }
        let erased = self.tombstones.erased().filter(|(hash, _)| is_wanted(*hash)).collect();
        ScanPart { held, erased, next, is_known: behind <= self.filled_buckets }
    }

    /// What is known of a key: the version that it is held or was erased at.
    pub(in super::super) fn known(&self, hash: KeyHash) -> Version {
        let gone = self.tombstones.of(hash).unwrap_or_default();
        self.find(hash).map_or(gone.erased, |number| self.node(number).version)
    }

    /// How long ago an item that is held was modified.
    pub(in super::super) fn age_of(&self, hash: KeyHash, now: Instant) -> Duration {
        self.find(hash).map(|number| now.since(self.node(number).modified)).unwrap_or_default()
    }

    /// Whether a copy of this version is newer than what is known here of its key. What was evicted is not missed.
    pub(in super::super) fn takes_copy(&self, hash: KeyHash, version: Version) -> bool {
        let is_forgotten = self.find(hash).is_none() && version <= self.forgotten();
        version > self.known(hash) && !is_forgotten
    }

    /// Whether somebody was promised a version above this one, and may still use that: it is not below `settled_us`.
    pub(in super::super) fn is_bound(&self, hash: KeyHash, version: Version, settled_us: u64) -> bool {
        let gone = self.tombstones.of(hash).unwrap_or_default();
        let promised = self.promises.get(&hash).copied().unwrap_or(gone.promised);
        promised > version && promised.timestamp_us >= settled_us
    }

    /// Copies what another replica holds, if it is above all that is known here; whether it was.
    pub(in super::super) fn copy(&mut self, item: &Item<'_>, age: Duration, now: Instant) -> bool {
        let hash = KeyHash::of(item.key);
        let held = self.find(hash);
        if item.tombstone || !self.takes_copy(hash, item.version) || age >= self.config.ttl {
            return false;
        }
        let wanted = self.slabs.slot_bytes_for(item.bytes.len());
        let is_full = self.slabs.live_bytes() + wanted > self.config.evict_above_bytes;
        // It would be the next one to go.
        let next = self.eviction.peek().or_else(|| self.oldest());
        let is_next = next.is_some_and(|next| self.node(next).used >= now - age);
        if is_full && is_next {
            self.removed = self.removed.max(item.version);
            return false;
        }
        let gone = self.tombstones.of(hash).unwrap_or_default();
        let promised = self.promises.remove(&hash).unwrap_or(gone.promised);
        self.set(hash, item, held, now, Some(age));
        // A copy is no mutation: what was promised above it stands.
        if promised > item.version && self.find(hash).is_some() {
            self.promises.insert(hash, promised);
        }
        self.highest = self.highest.max(item.version);
        self.counts.copied += 1;
        true
    }

    /// Erases a key as another replica has, if that is above all that is known here.
    pub(in super::super) fn copy_erased(&mut self, hash: KeyHash, version: Version, now: Instant) {
        if version <= self.known(hash) {
            return;
        }
        if let Some(number) = self.find(hash) {
            self.remove(number, now);
        }
        self.tombstones.note(hash, version);
        self.highest = self.highest.max(version);
    }
}
