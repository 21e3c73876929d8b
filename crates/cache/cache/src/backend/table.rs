//! The table: which keys the backend holds, and how their items get into the regions and out again.
//!
//! The table has one writer at a time (the backend's lock). Readers take no lock: they copy from the regions at
//! any moment, in any order, and check. What a reader may meet, and why it does no harm:
//!
//! - **Replace.** The new item is written whole into a slot that nothing points at; then the index
//!   entry's version; then, by one release store, its pointer. A reader sees the old pointer or the new one,
//!   never a mix, and the key never seems absent. It may see the new version beside the old pointer, or two
//!   halves of two versions: the item carries its own version, so a consistent read notices, and a relaxed
//!   read gets a value that was current a moment ago.
//! - **Insert.** Item, then hash and version into an index entry whose pointer is 0, then the pointer. A
//!   reader sees no entry until the pointer is there. If the index entry was another key's a moment ago, the
//!   reader may combine the new hash with the old pointer: the item carries its whole key.
//! - **Remove.** The pointer becomes 0, then hash and version do; the slot is freed and rests. Were the name left
//!   there, the pointer of the way's next key would complete it: a reader that combines the two would count a version
//!   that this replica held long ago as its vote.
//! - **Reuse.** A reader that copied a pointer before it changed may find its slot half rewritten, or rewritten
//!   whole for another key, or its slab cut into other slots: checksum, key and length tell.
//! - **Overflow.** The chained item is in the table before the bucket's flag is set, and a chained item that
//!   moves into the bucket is there before the flag is cleared. A reader whose copy mixes the bucket's words of
//!   before with the flag of after misses the key once; a miss is always allowed.
//! - **Refill.** While the backend does not know what it should hold, a bucket says so, and a key that is not in it is
//!   unknown ([`Table::begin_unfilled`]). What other replicas hold is copied into the bucket some time before it says
//!   otherwise ([`Table::fill_up_to`]), so that no reader's copy mixes the bucket of before with the flag of after.
//! - **Move.** All of this holds at either of two places in memory while the regions move from one to the other
//!   ([`regions`]). A reader is at one of them.
//!
//! A reader on a machine with weak ordering that sees the new pointer but the slot's old bytes is in the case
//! of *reuse*.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Instant;

// The same file wherever this one is taken from: `tests/loom.rs` takes it, too.
#[path = "copying.rs"]
mod copying;
#[path = "eviction.rs"]
pub(super) mod eviction;
#[path = "regions.rs"]
pub(super) mod regions;

// From the module above: `tests/loom.rs` has another one.
use super::Region;
use super::recency::{Recency, RecencyLinks, RecencyNodes};
use super::slabs::{NOBODY, SlabSlot, Slabs};
use super::tombstones::Tombstones;
use crate::layout::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, FLAG_ASK, FLAG_CHAINED, FLAG_UNFILLED, FLAGS_OFFSET,
    INDEX_ENTRY_BYTES, ITEM_HEADER_BYTES, Item, KeyHash, POINTER_OFFSET, Pointer, WAYS, bucket_offset,
    index_entry_offset,
};
use crate::limits::{EXPIRED_KEPT, MUTATIONS_SETTLE, OVERFLOW_CHAIN_MAX};
use crate::protocol::{Outcome, PromiseState};
use crate::version::Version;
use eviction::{EvictionOrder, EvictionPlace, EvictionPolicy};
use regions::TableRegion;

/// What the table counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableCounts {
    pub(super) sets: u64,
    pub(super) erases: u64,
    pub(super) superseded: u64,
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) slabs_reclaimed: u64,
    pub(super) copied: u64,
    /// The age of the last one of those that were evicted.
    pub(super) evicted_age: Duration,
    /// How long ago clients had told last that they had read that one, or it was set.
    pub(super) evicted_unused: Duration,
    /// Times that clients told of an item that they had read it.
    pub(super) touches: u64,
}

/// Where an item is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TablePlace {
    Way(usize),
    Chain,
}

struct Node {
    hash: KeyHash,
    version: Version,
    slot: SlabSlot,
    len: u32,
    place: TablePlace,
    modified: Instant,
    /// When it was modified, or clients told last that they had read it.
    used: Instant,
    /// When it expires, in milliseconds since the Unix epoch; 0: it does not.
    expires_ms: u64,
    links: RecencyLinks,
    eviction: EvictionPlace,
    /// It was copied from another replica, with its age, and is not in the order of what was modified here.
    is_copied: bool,
}

struct NodeArena(Vec<Node>);

impl RecencyNodes for NodeArena {
    fn links(&mut self, node: u32) -> &mut RecencyLinks {
        &mut self.0[node as usize].links
    }
}

/// Sizes and times that the table keeps to.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableConfig {
    pub(super) config_id: u64,
    pub(super) buckets: u64,
    pub(super) blocks: u32,
    pub(super) ttl: Duration,
    /// Items are evicted while more bytes than this are live.
    pub(super) evict_above_bytes: u64,
    /// Which of them.
    pub(super) eviction: EvictionPolicy,
    /// Chained items of all buckets together.
    pub(super) overflow_max: usize,
}

/// The table of one backend.
pub(super) struct Table {
    config: TableConfig,
    index: TableRegion,
    data: TableRegion,
    slabs: Slabs,
    nodes: NodeArena,
    unused_nodes: Vec<u32>,
    /// The node of each way of each bucket.
    ways: Vec<u32>,
    chains: BTreeMap<u64, Vec<u32>>,
    chained: usize,
    recency: Recency,
    eviction: EvictionOrder,
    /// Nodes that were copied, by when they were modified.
    copied: BTreeSet<(Instant, u32)>,
    /// Nodes that expire, the first one first.
    expiring: BTreeSet<(u64, u32)>,
    /// Of keys that are held: nothing below these versions is applied to them.
    promises: BTreeMap<KeyHash, Version>,
    tombstones: Tombstones,
    /// No mutation at or below this version is applied: before this start it may have been the turn of a higher one.
    floor: Version,
    /// The highest version that was applied or promised.
    highest: Version,
    /// The highest version that was removed for room or for its age: nothing at or below it is copied back.
    removed: Version,
    /// Whoever adds an item asks first whether there is room, as nothing is evicted.
    keeps_all: bool,
    /// Buckets below this one hold what they should.
    filled_buckets: u64,
    counts: TableCounts,
}

impl Table {
    /// An empty table over regions of the right sizes whose buckets are all zero.
    pub(super) fn new(config: TableConfig, index: Arc<Region>, data: Arc<Region>) -> Self {
        for bucket in 0..config.buckets {
            index.write(bucket_offset(bucket), &config.config_id.to_le_bytes());
        }
        Self {
            config,
            index: TableRegion::at(index),
            data: TableRegion::at(data),
            slabs: Slabs::new(config.blocks),
            nodes: NodeArena(Vec::new()),
            unused_nodes: Vec::new(),
            ways: vec![NOBODY; config.buckets as usize * WAYS],
            chains: BTreeMap::new(),
            chained: 0,
            recency: Recency::EMPTY,
            eviction: EvictionOrder::new(config.eviction),
            copied: BTreeSet::new(),
            expiring: BTreeSet::new(),
            promises: BTreeMap::new(),
            tombstones: Tombstones::default(),
            floor: Version::ZERO,
            highest: Version::ZERO,
            removed: Version::ZERO,
            keeps_all: false,
            filled_buckets: config.buckets,
            counts: TableCounts::default(),
        }
    }

    /// The configuration whose mutations are applied; 0: none are.
    pub(super) fn config_id(&self) -> u64 {
        self.config.config_id
    }

    /// Goes by another configuration: mutations under the one before are not applied any more. The buckets are to
    /// follow ([`Table::name_buckets`]).
    pub(super) fn set_config_id(&mut self, config_id: u64) {
        self.config.config_id = config_id;
    }

    /// Names the configuration in some buckets.
    pub(super) fn name_buckets(&mut self, buckets: Range<u64>) {
        buckets.for_each(|bucket| self.index.store_release_u64(bucket_offset(bucket), self.config.config_id));
    }

    /// Forgets those keys of some buckets that are not kept.
    pub(super) fn keep_only(&mut self, buckets: Range<u64>, now: Instant, keep: impl Fn(KeyHash) -> bool) {
        for bucket in buckets {
            let ways = self.ways[bucket as usize * WAYS..][..WAYS].iter();
            let chained = self.chains.get(&bucket).into_iter().flatten();
            let gone: Vec<u32> = ways
                .chain(chained)
                .copied()
                .filter(|node| *node != NOBODY && !keep(self.node(*node).hash))
                .collect();
            gone.into_iter().for_each(|node| self.remove(node, now));
        }
    }

    /// Notes that clients have read a key, if it is held, and that is what evictions go by.
    pub(super) fn touch(&mut self, hash: KeyHash, now: Instant) {
        let Some(number) = self.find(hash).filter(|_| self.wants_touches()) else { return };
        self.node_used(number, now);
        self.counts.touches += 1;
    }

    /// Whether evictions go by what clients have read.
    pub(super) fn wants_touches(&self) -> bool {
        self.eviction.policy().wants_touches() && !self.keeps_all
    }

    fn node_used(&mut self, number: u32, now: Instant) {
        self.nodes.0[number as usize].used = now;
        self.eviction.note_use(number, &mut self.nodes);
    }

    /// From now on nothing is forgotten for its age, and nothing is to be for room: see [`Table::lacks_room_for`].
    pub(super) fn keep_for_ever(&mut self) {
        self.config.ttl = Duration::MAX;
        self.keeps_all = true;
    }

    /// Whether an item that is above what is known here could be held only if others were evicted, and none may be.
    pub(super) fn lacks_room_for(&mut self, item: &Item<'_>) -> bool {
        if !self.keeps_all {
            return false;
        }
        let (hash, len) = (KeyHash::of(item.key), item.bytes.len());
        if self.known(hash) >= item.version {
            return false;
        }
        let bucket = hash.bucket(self.config.buckets);
        if self.find(hash).is_none() && self.is_chain_full(bucket) && self.free_way(bucket).is_none() {
            return true;
        }
        if self.slabs.live_bytes() + self.slabs.slot_bytes_for(len) > self.config.evict_above_bytes {
            return true;
        }
        while !self.slabs.has_slot_for(len) {
            if !self.slabs.reclaim_empty() {
                return true;
            }
        }
        false
    }

    fn is_chain_full(&self, bucket: u64) -> bool {
        self.chained >= self.config.overflow_max
            || self.chains.get(&bucket).is_some_and(|chain| chain.len() >= OVERFLOW_CHAIN_MAX)
    }

    /// Forgets those keys of some buckets whose first eight bytes are not kept.
    pub(super) fn keep_generations(&mut self, buckets: Range<u64>, now: Instant, keep: impl Fn(u64) -> bool) {
        let mut gone = Vec::new();
        for bucket in buckets {
            let ways = self.ways[bucket as usize * WAYS..][..WAYS].iter();
            let all = ways.chain(self.chains.get(&bucket).into_iter().flatten());
            for node in all.copied().filter(|node| *node != NOBODY) {
                let mut begin = [0; 8];
                let offset = self.slabs.offset(self.node(node).slot) + ITEM_HEADER_BYTES as u64;
                self.data.read(offset, &mut begin);
                if !keep(u64::from_be_bytes(begin)) {
                    gone.push(node);
                }
            }
        }
        gone.into_iter().for_each(|node| self.remove(node, now));
    }

    /// Bytes of items that there is room for before others are evicted.
    pub(super) fn room_bytes(&self) -> u64 {
        self.config.evict_above_bytes.saturating_sub(self.live_bytes())
    }

    /// Applies a SET or an ERASE. The slot of what it replaces is free afterwards.
    pub(super) fn apply(&mut self, item: &Item<'_>, now: Instant) -> Outcome {
        let hash = KeyHash::of(item.key);
        let held = self.find(hash);
        // A key that is held is not among them.
        let gone = if held.is_some() { None } else { self.tombstones.of(hash) };
        let known = held.map(|node| self.node(node).version).or(gone.map(|gone| gone.erased));
        let promised = self.promises.get(&hash).copied().or(gone.map(|gone| gone.promised));
        match known {
            // The same mutation again, on its second way here.
            Some(known) if known == item.version => return Outcome::Applied,
            Some(known) if known > item.version => {
                self.counts.superseded += 1;
                return Outcome::Superseded(known);
            }
            _ if self.floor >= item.version => {
                self.counts.superseded += 1;
                return Outcome::BelowSummary(self.floor);
            }
            None if self.tombstones.summary() >= item.version => {
                self.counts.superseded += 1;
                return Outcome::BelowSummary(self.tombstones.summary());
            }
            _ => {}
        }
        // Whoever was promised this relies on nothing coming in between. It is not that client's SET, so the answer
        // is not that it was superseded, which is as good as applied if both are the same client's.
        if let Some(promised) = promised.filter(|promised| *promised > item.version) {
            self.counts.superseded += 1;
            return Outcome::BelowSummary(promised);
        }
        self.put(hash, item, held, now)
    }

    /// Applies what was promised its version, unless anything was applied, copied or promised since. A promise is over
    /// when another backend joins: who was promised may count a former start of that one.
    pub(super) fn apply_promised(&mut self, item: &Item<'_>, now: Instant) -> Outcome {
        let hash = KeyHash::of(item.key);
        let held = self.find(hash);
        let gone = self.tombstones.of(hash).unwrap_or_default();
        let known = held.map_or(gone.erased, |node| self.node(node).version);
        if known == item.version {
            return Outcome::Applied;
        }
        let promised = self.promises.get(&hash).copied().unwrap_or(gone.promised);
        if promised != item.version || known.max(self.floor) >= item.version {
            self.counts.superseded += 1;
            return Outcome::Superseded(known.max(promised).max(self.tombstones.summary()).max(self.floor));
        }
        self.put(hash, item, held, now)
    }

    /// Promises that nothing of `hash` below `version` is applied any more, and tells what there is; or what stands
    /// against that.
    pub(super) fn promise(&mut self, hash: KeyHash, version: Version) -> Result<PromiseState, Version> {
        let held = self.find(hash);
        let gone = self.tombstones.of(hash);
        let known = held.map(|node| self.node(node).version).or(gone.map(|gone| gone.erased));
        let promised = self.promises.get(&hash).copied().or(gone.map(|gone| gone.promised));
        let floor = known.max(promised).unwrap_or(self.tombstones.summary()).max(self.floor);
        // The same once more is one whose answer was lost.
        if floor > version || (floor == version && promised != Some(version)) {
            return Err(floor);
        }
        match held {
            Some(_) => drop(self.promises.insert(hash, version)),
            None if promised != Some(version) => self.tombstones.promise(hash, version),
            None => {}
        }
        self.highest = self.highest.max(version);
        Ok(match self.read(hash) {
            Some(item) => PromiseState::Held(item.into()),
            None => PromiseState::Gone(gone.unwrap_or_default().erased),
        })
    }

    fn put(&mut self, hash: KeyHash, item: &Item<'_>, held: Option<u32>, now: Instant) -> Outcome {
        self.promises.remove(&hash);
        self.highest = self.highest.max(item.version);
        if item.tombstone {
            if let Some(node) = held {
                self.remove(node, now);
            }
            self.tombstones.insert(hash, item.version);
            self.counts.erases += 1;
        } else {
            self.set(hash, item, held, now, None);
            self.counts.sets += 1;
        }
        Outcome::Applied
    }

    /// `age` is that of a copy from another replica.
    fn set(
        &mut self,
        hash: KeyHash,
        item: &Item<'_>,
        held: Option<u32>,
        now: Instant,
        age: Option<Duration>,
    ) {
        if let Some(node) = held {
            // First of all, so that it is the last one to be evicted for its own successor.
            self.unlink(node);
            self.recency.push(node, &mut self.nodes);
            self.node_used(node, now);
        }
        let slot = self.make_room(item.bytes.len(), now);
        let pointer = Pointer { offset: self.slabs.offset(slot), len: item.bytes.len() as u32 };
        self.data.write(pointer.offset, item.bytes);
        let number = match self.find(hash) {
            Some(node) => {
                self.replace(node, item.version, slot, pointer, now);
                node
            }
            None => {
                self.tombstones.remove(hash);
                self.insert(hash, item.version, slot, pointer, now)
            }
        };
        self.expire_at(number, item.extras.expires_ms);
        if let Some(age) = age {
            self.recency.unlink(number, &mut self.nodes);
            let node = &mut self.nodes.0[number as usize];
            node.modified = now - age;
            node.used = node.modified;
            node.is_copied = true;
            self.copied.insert((node.modified, number));
        }
    }

    /// Takes a node out of the order in which items were modified.
    fn unlink(&mut self, number: u32) {
        let node = &mut self.nodes.0[number as usize];
        if std::mem::take(&mut node.is_copied) {
            self.copied.remove(&(node.modified, number));
        } else {
            self.recency.unlink(number, &mut self.nodes);
        }
    }

    /// The node that was not modified for the longest time.
    fn oldest(&self) -> Option<u32> {
        let here = self.recency.oldest();
        let copied = self.copied.first().copied();
        match (here, copied) {
            (Some(here), Some((modified, _))) if self.node(here).modified < modified => Some(here),
            (here, copied) => copied.map(|(_, number)| number).or(here),
        }
    }

    /// Notes when a node expires.
    fn expire_at(&mut self, number: u32, expires_ms: u64) {
        let before = std::mem::replace(&mut self.nodes.0[number as usize].expires_ms, expires_ms);
        if before == expires_ms {
            return;
        }
        if before != 0 {
            self.expiring.remove(&(before, number));
        }
        if expires_ms != 0 {
            self.expiring.insert((expires_ms, number));
        }
    }

    fn replace(&mut self, number: u32, version: Version, slot: SlabSlot, pointer: Pointer, now: Instant) {
        let node = &mut self.nodes.0[number as usize];
        node.version = version;
        node.modified = now;
        node.used = now;
        node.len = pointer.len;
        let before = std::mem::replace(&mut node.slot, slot);
        let (hash, place) = (node.hash, node.place);
        self.slabs.set_owner(slot, number);
        if let TablePlace::Way(way) = place {
            let at = index_entry_offset(hash.bucket(self.config.buckets), way);
            self.index.write(at + 16, &version.to_bytes());
            self.index.store_release_u64(at + POINTER_OFFSET as u64, pointer.to_word());
        }
        self.slabs.free(before, now);
        self.eviction.resize(number, pointer.len, &mut self.nodes);
    }

    fn insert(
        &mut self,
        hash: KeyHash,
        version: Version,
        slot: SlabSlot,
        pointer: Pointer,
        now: Instant,
    ) -> u32 {
        let bucket = hash.bucket(self.config.buckets);
        if self.is_chain_full(bucket) && self.free_way(bucket).is_none() {
            self.evict_from(bucket, now);
        }
        let node = Node {
            hash,
            version,
            slot,
            len: pointer.len,
            place: TablePlace::Chain,
            modified: now,
            used: now,
            expires_ms: 0,
            links: RecencyLinks::NONE,
            eviction: EvictionPlace::NONE,
            is_copied: false,
        };
        let number = match self.unused_nodes.pop() {
            Some(number) => {
                self.nodes.0[number as usize] = node;
                number
            }
            None => {
                let number = u32::try_from(self.nodes.0.len()).expect("slots are counted in 32 bits");
                self.nodes.0.push(node);
                number
            }
        };
        self.slabs.set_owner(slot, number);
        self.recency.push(number, &mut self.nodes);
        self.eviction.insert(number, &mut self.nodes);
        match self.free_way(bucket) {
            Some(way) => self.put_in_way(number, bucket, way),
            None => {
                self.chains.entry(bucket).or_default().push(number);
                self.chained += 1;
                self.write_flags(bucket);
            }
        }
        number
    }

    /// Names a node in a way that is free, and says so in the index.
    fn put_in_way(&mut self, number: u32, bucket: u64, way: usize) {
        self.ways[bucket as usize * WAYS + way] = number;
        let node = &mut self.nodes.0[number as usize];
        node.place = TablePlace::Way(way);
        let pointer = Pointer { offset: self.slabs.offset(node.slot), len: node.len };
        let mut name = [0; POINTER_OFFSET];
        name[..16].copy_from_slice(&node.hash.0.to_le_bytes());
        name[16..].copy_from_slice(&node.version.to_bytes());
        let at = index_entry_offset(bucket, way);
        self.index.write(at, &name);
        self.index.store_release_u64(at + POINTER_OFFSET as u64, pointer.to_word());
    }

    /// Forgets a node, frees its slot, and moves a chained item into the way that became free.
    fn remove(&mut self, number: u32, now: Instant) {
        self.unlink(number);
        self.eviction.remove(number, &mut self.nodes);
        self.expire_at(number, 0);
        let Node { hash, slot, place, .. } = *self.node(number);
        let bucket = hash.bucket(self.config.buckets);
        match place {
            TablePlace::Way(way) => {
                let at = index_entry_offset(bucket, way);
                self.index.store_release_u64(at + POINTER_OFFSET as u64, 0);
                self.ways[bucket as usize * WAYS + way] = NOBODY;
                let promoted = self.chains.get_mut(&bucket).and_then(Vec::pop);
                match promoted {
                    Some(promoted) => {
                        self.chained -= 1;
                        self.put_in_way(promoted, bucket, way);
                    }
                    None => self.index.write(at, &[0; POINTER_OFFSET]),
                }
            }
            TablePlace::Chain => {
                let chain = self.chains.get_mut(&bucket).expect("the chain of a chained node");
                chain.retain(|chained| *chained != number);
                self.chained -= 1;
            }
        }
        if self.chains.get(&bucket).is_some_and(Vec::is_empty) {
            self.chains.remove(&bucket);
            self.write_flags(bucket);
        }
        self.slabs.free(slot, now);
        self.unused_nodes.push(number);
        // What was promised holds whether the value does or not.
        if let Some(promised) = self.promises.remove(&hash) {
            self.tombstones.promise(hash, promised);
        }
    }

    /// The node that is to go next where there has to be room.
    fn next_to_evict(&mut self) -> Option<u32> {
        match self.eviction.policy() {
            EvictionPolicy::Lrm => self.oldest(),
            EvictionPolicy::Lru | EvictionPolicy::S3Fifo => {
                self.eviction.next(self.slabs.live_bytes(), &mut self.nodes)
            }
        }
    }

    /// A slot for `len` bytes, evicting others as far as needed.
    fn make_room(&mut self, len: usize, now: Instant) -> SlabSlot {
        let wanted = self.slabs.slot_bytes_for(len);
        while self.slabs.live_bytes() + wanted > self.config.evict_above_bytes {
            let Some(next) = self.next_to_evict() else { break };
            self.evict(next, now);
        }
        loop {
            if let Some(slot) = self.slabs.allocate(len, now) {
                return slot;
            }
            // There is room, but cut into slots of other sizes.
            if self.slabs.reclaim_empty() {
                continue;
            }
            let next = self.next_to_evict().expect("with no item at all, every slab is free or empty");
            for owner in self.slabs.owners_around(self.node(next).slot, len) {
                self.evict(owner, now);
            }
            self.counts.slabs_reclaimed += 1;
        }
    }

    /// Evicts the way of `bucket` that was used least.
    fn evict_from(&mut self, bucket: u64, now: Instant) {
        let ways = self.ways[bucket as usize * WAYS..][..WAYS].iter().copied();
        let use_of = |node: &u32| (self.node(*node).eviction.uses, self.node(*node).used);
        if let Some(next) = ways.filter(|node| *node != NOBODY).min_by_key(use_of) {
            self.evict(next, now);
        }
    }

    /// Removes a node for room.
    fn evict(&mut self, number: u32, now: Instant) {
        let Node { version, modified, used, .. } = *self.node(number);
        self.removed = self.removed.max(version);
        self.counts.evicted_age = now.since(modified);
        self.counts.evicted_unused = now.since(used);
        self.eviction.note_evicted(number, self.items(), &mut self.nodes);
        self.remove(number, now);
        if self.counts.evicted_age < MUTATIONS_SETTLE {
            // A SET of a lower version may still be under way. The key is not held, so it would be applied. A version
            // that holds for every key costs nothing here, where a promise for each would be kept and dropped again.
            self.tombstones.raise_summary(version);
        }
        self.counts.evicted += 1;
    }

    /// Removes what has expired by a wall clock that shows `wall_ms` and what has outlived the TTL, at most `max`
    /// items; `true` if there may be more.
    pub(super) fn sweep(&mut self, now: Instant, wall_ms: i64, max: usize) -> bool {
        let kept_ms = u64::try_from(EXPIRED_KEPT.as_millis()).unwrap_or(u64::MAX);
        let expired_ms = u64::try_from(wall_ms).unwrap_or(0).saturating_sub(kept_ms);
        for _ in 0..max {
            if let Some(&(expires_ms, first)) = self.expiring.first()
                && expires_ms <= expired_ms
            {
                let Node { hash, version, .. } = *self.node(first);
                self.remove(first, now);
                // A replica that has missed it may hold what was before it, which is not to be copied back.
                self.tombstones.note(hash, version);
                self.counts.expired += 1;
                continue;
            }
            let Some(oldest) = self.oldest() else { return false };
            if now.since(self.node(oldest).modified) < self.config.ttl {
                return false;
            }
            self.removed = self.removed.max(self.node(oldest).version);
            self.remove(oldest, now);
            self.counts.expired += 1;
        }
        true
    }

    /// Removes at most `max` items; `true` if there are more. With the last one, tombstones go too.
    pub(super) fn clear(&mut self, now: Instant, max: usize) -> bool {
        for _ in 0..max {
            let Some(oldest) = self.oldest() else {
                self.tombstones = Tombstones::default();
                self.promises.clear();
                self.eviction.forget();
                return false;
            };
            // What another replica has not forgotten yet is not copied back.
            self.removed = self.removed.max(self.node(oldest).version);
            self.remove(oldest, now);
        }
        true
    }

    /// The item of `hash`, copied from the region.
    pub(super) fn read(&self, hash: KeyHash) -> Option<Vec<u8>> {
        let node = self.node(self.find(hash)?);
        let mut bytes = vec![0; node.len as usize];
        self.data.read(self.slabs.offset(node.slot), &mut bytes);
        Some(bytes)
    }

    /// Length of the item of `hash`.
    pub(super) fn len_of(&self, hash: KeyHash) -> Option<usize> {
        Some(self.node(self.find(hash)?).len as usize)
    }

    pub(super) fn counts(&self) -> TableCounts {
        self.counts
    }

    /// Items held, in buckets and in chains.
    pub(super) fn items(&self) -> usize {
        self.nodes.0.len() - self.unused_nodes.len()
    }

    /// Items in chains.
    pub(super) fn chained(&self) -> usize {
        self.chained
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.slabs.live_bytes()
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes.0[number as usize]
    }

    /// What a bucket says beside its entries.
    fn write_flags(&self, bucket: u64) {
        let chained = if self.chains.contains_key(&bucket) { FLAG_CHAINED | FLAG_ASK } else { 0 };
        let unfilled = if bucket >= self.filled_buckets { FLAG_UNFILLED | FLAG_ASK } else { 0 };
        self.index.store_release_u64(bucket_offset(bucket) + FLAGS_OFFSET, chained | unfilled);
    }

    fn free_way(&self, bucket: u64) -> Option<usize> {
        self.ways[bucket as usize * WAYS..][..WAYS].iter().position(|node| *node == NOBODY)
    }

    /// The node of `hash`. The bucket is looked through in the index region, where its hashes lie together.
    fn find(&self, hash: KeyHash) -> Option<u32> {
        let bucket = hash.bucket(self.config.buckets);
        let ways = &self.ways[bucket as usize * WAYS..][..WAYS];
        let mut bytes = [0; BUCKET_BYTES];
        self.index.read(bucket_offset(bucket), &mut bytes);
        let entries = bytes[BUCKET_HEADER_BYTES..].chunks_exact(INDEX_ENTRY_BYTES);
        let wanted = hash.0.to_le_bytes();
        for (node, entry) in ways.iter().zip(entries) {
            if *node != NOBODY && entry[..16] == wanted {
                debug_assert_eq!(self.node(*node).hash, hash);
                return Some(*node);
            }
        }
        let chain = self.chains.get(&bucket)?;
        chain.iter().copied().find(|node| self.node(*node).hash == hash)
    }
}
