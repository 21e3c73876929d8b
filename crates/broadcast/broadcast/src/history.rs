//! One stream's events in memory, and the garbage collection of them (sections 2.1 and 3.4).
//!
//! What holds:
//! - Every number from 1 to [`last`](History::last) is covered: by its event, or by a tombstone if an event with
//!   a greater number matches it, or retention removed it. The last event of a stream is matched by none.
//! - What is read is a run of successive numbers, in order. It may have events that are collected already; it
//!   has no tombstone for one that is not.
//! - Times never go back: each event's is the one before it's, or later.
//! - An event that [`admit`](History::admit) lets through brings back nothing: what an earlier collection
//!   matches stays matched by an event that is not collected itself (section 2.1's condition).
//! - No call takes long, however much is stored: besides reading what it is given, an
//!   [`append`](History::append) does a bounded piece of the work that is due, and [`sweep`](History::sweep)
//!   does as much as it is told to.
//!
//! How the collections are applied: [`Collect::KeepLast`] and [`Collect::Before`] raise a floor below which
//! everything is collected; whole blocks are dropped below it. [`Collect::SameKey`] goes through the index by
//! key. [`Collect::OlderThan`] and [`Collect::Matching`] go through the blocks in the background (a predicate
//! that pins the key through the index, at once).
//!
//! Retention raises the same floor ([`remove`](History::remove)). What it removed is told with what is read from before
//! there ([`Batch::removed`]): no later event explains it.
//!
//! Memory: the encoded events, 1.5 bytes for each beside them and 4 more where they have keys, and the index's share of
//! those (`keys.rs`). At most half of a block's events are collected ones for longer than the work that is due takes;
//! of the block that the floor goes through, all but one may be.

mod block;
mod blocks;
mod finality;
mod keys;
mod order;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::ops::Range;

use bytes::Bytes;

use crate::batch::{Batch, EventRef};
use crate::event::Collect;
use crate::limits::KEY_INDEX_BYTES_MAX;

pub(crate) use finality::OnItsWay;
pub use finality::{Budget, FinalityRefusal};

use block::{HistoryBlock, Outcome};
use blocks::Blocks;
use finality::Registry;
use keys::{HistoryKeys, KeyEntry};
use work::HistoryWork;

/// Steps of due work that an append does for each of its events: more than an event can make due on average.
const STEPS_PER_EVENT: usize = 6;

/// Events that are looked up in the index together: what they touch, some dozen lines of memory each, stays in the
/// first-level cache.
const GROUP: usize = 64;
/// Blocks that are few enough to be in the processor's cache.
const BLOCKS_CACHED: usize = 64;

/// An event with a key.
struct Keyed {
    hash: u64,
    seq: u64,
    /// Where the key is in the batch's bytes.
    key: Range<usize>,
    by_key: bool,
}

/// How a history is kept.
#[derive(Clone, Debug, Default)]
pub struct HistoryOptions {
    /// Of the hashes in its index: a random number, so that nobody can choose keys with equal hashes.
    pub seed: u64,
}

/// One stream's events.
#[derive(Clone, Debug)]
pub struct History {
    last: u64,
    time_ms: u64,
    /// Up to this number retention removed some that nothing had collected.
    removed: u64,
    blocks: Blocks,
    keys: HistoryKeys,
    registry: Registry,
    work: HistoryWork,
    /// What [`History::applied_elsewhere`] said last.
    elsewhere: Elsewhere,
}

/// Of the predicates of the events (`after`, `up_to`] what has been applied where the events come from.
#[derive(Clone, Copy, Debug, Default)]
struct Elsewhere {
    after: u64,
    up_to: u64,
}

/// A batch that does not follow what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch begins after event {after}, but the history ends with event {last}")]
pub struct Gap {
    /// The number before the batch's first.
    pub after: u64,
    /// The history's last.
    pub last: u64,
}

/// What a history holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryStats {
    /// The last number.
    pub last: u64,
    /// All events up to this number are collected.
    pub floor: u64,
    /// Events that are stored and not collected.
    pub live: u64,
    /// Events that are stored; more than `live` until those that are collected have been dropped.
    pub stored: u64,
    /// Bytes of the encoded events that are stored.
    pub bytes: u64,
    /// Blocks that they are in.
    pub blocks: u64,
    /// All bytes of memory it takes, about: events, marks, index.
    pub memory_bytes: u64,
    /// Predicates that are being applied in the background.
    pub predicates: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::new(HistoryOptions::default())
    }
}

impl History {
    /// An empty history: the next event has the number 1.
    pub fn new(options: HistoryOptions) -> Self {
        Self {
            last: 0,
            time_ms: 0,
            removed: 0,
            blocks: Blocks::default(),
            keys: HistoryKeys::new(options.seed),
            registry: Registry::default(),
            work: HistoryWork::default(),
            elsewhere: Elsewhere::default(),
        }
    }

    /// The number of its last event; 0 if it has none. The paper's `cnt`.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The time of its last event, the latest of all: the next event may not have an earlier one.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Whether the head may give the batch's events their numbers: that it follows what is there, and that its
    /// collections are final. Their times are none before [`time_ms`](Self::time_ms). Later events of the batch see the
    /// earlier ones. Where it takes more than it may to find out, it refuses, and says so.
    pub fn admit(&self, batch: &Batch) -> Result<(), FinalityRefusal> {
        self.admit_behind(
            &OnItsWay::default(),
            std::iter::empty(),
            (self.last, batch),
            &mut Budget::default(),
        )
    }

    /// As [`admit`](Self::admit), for a batch that follows number `last`, with others on their way before it, of which
    /// `on_its_way` knows.
    pub(crate) fn admit_behind<'a>(
        &self,
        on_its_way: &OnItsWay,
        unsettled: impl Iterator<Item = &'a Batch> + Clone,
        (last, batch): (u64, &Batch),
        budget: &mut Budget,
    ) -> Result<(), FinalityRefusal> {
        finality::admit(self, on_its_way, unsettled, (last, batch), budget)
    }

    /// Adds a batch, but for what it has already, and applies the batch's collections. The batch's bytes are
    /// kept as they are if they are many, else copied some time later.
    ///
    /// # Panics
    /// If the batch is malformed: what comes from outside has to be [checked](Batch::check) first.
    pub fn append(&mut self, batch: &Batch) -> Result<(), Gap> {
        if batch.after > self.last {
            return Err(Gap { after: batch.after, last: self.last });
        }
        let checked = "the batch was checked where it came in";
        let Some(mut batch) = batch.rest(self.last).expect(checked) else { return Ok(()) };
        // Whoever reads it from here is told by the history.
        let mut floor = std::mem::take(&mut batch.removed);
        self.removed = self.removed.max(floor);
        let (mut has_keys, mut slow) = (false, false);
        let block = HistoryBlock::new(batch.clone(), |event, alike| {
            has_keys |= event.key.is_some();
            self.time_ms = self.time_ms.max(event.time_ms);
            self.registry.see(event, alike);
            match event.collect {
                None | Some(Collect::SameKey) => {}
                Some(Collect::OlderThan(_) | Collect::Matching(_)) => slow = true,
                Some(prefix) => floor = floor.max(prefix_bound(prefix, event.seq).saturating_sub(1)),
            }
        });
        self.blocks.push(block.expect(checked));
        self.last = batch.last;
        self.blocks.raise_floor(floor);
        let floor = self.blocks.floor();
        if has_keys || slow {
            let mut keyed = Vec::with_capacity(if has_keys { batch.count as usize } else { 0 });
            let mut predicates: Vec<(Bytes, u64)> = Vec::new();
            let mut cursor = batch.cursor();
            while let Some(event) = &cursor.next().expect(checked) {
                if let Some(key) = event.key.filter(|_| event.seq > floor) {
                    let hash = self.keys.hash(key);
                    let start = key.as_ptr().addr() - batch.bytes.as_ptr().addr();
                    let by_key = event.collect == Some(&Collect::SameKey);
                    keyed.push(Keyed { hash, seq: event.seq, key: start..start + key.len(), by_key });
                    self.registry.see_keyed(hash, event, floor);
                }
                match event.collect {
                    Some(Collect::OlderThan(time_ms)) => self.work.age(event.seq, *time_ms),
                    Some(Collect::Matching(text)) => match predicates.last_mut() {
                        // The last of several in a row with the same predicate collects for all of them.
                        Some((same, before)) if same == text => *before = event.seq,
                        _ => predicates.push((text.clone(), event.seq)),
                    },
                    _ => {}
                }
            }
            keyed.chunks(GROUP).for_each(|group| self.index(&batch.bytes, group));
            predicates.iter().for_each(|(text, before)| self.match_all(text, *before));
        }
        self.registry.forget(self.blocks.floor());
        self.sweep(batch.count as usize * STEPS_PER_EVENT);
        Ok(())
    }

    /// Puts events with keys into the index, and collects those with the same keys where they say so.
    ///
    /// All of a group are looked up before the first is changed: then the memory that this touches, most of it
    /// in no cache if much is stored, is read for many of them at the same time.
    fn index(&mut self, bytes: &[u8], group: &[Keyed]) {
        let Self { blocks, keys, work, .. } = self;
        if blocks.len() > BLOCKS_CACHED {
            group.iter().for_each(|keyed| keys.fetch(keyed.hash));
        }
        let mut replaced = Vec::with_capacity(group.len());
        for keyed in group {
            let live = |seq| blocks.with(seq, |_| ()).is_some();
            if !keyed.by_key {
                keys.add(keyed.hash, keyed.seq, live);
                continue;
            }
            match keys.replace(keyed.hash, keyed.seq, live) {
                None => {}
                Some(KeyEntry::One(old)) => replaced.push((old, keyed)),
                Some(KeyEntry::Many(_)) => {
                    keys.add(keyed.hash, keyed.seq, |_| true);
                    work.follow(keyed.hash, &bytes[keyed.key.clone()], keyed.seq, None);
                }
            }
        }
        let numbers = replaced.iter().map(|(old, _)| *old);
        let found: Vec<_> = if blocks.len() > BLOCKS_CACHED {
            blocks.find_all(numbers)
        } else {
            numbers.map(|old| blocks.find(old)).collect()
        };
        // Until all are collected no block moves.
        for ((old, keyed), found) in replaced.into_iter().zip(found) {
            let (outcome, thin) = blocks.collect_key(found, &bytes[keyed.key.clone()]);
            work.compact(thin);
            if outcome == Outcome::Kept {
                // Another key with the same hash.
                keys.add(keyed.hash, old, |seq| blocks.with(seq, |_| ()).is_some());
            }
        }
    }

    /// Collects those before an event for which a predicate holds, at once or later.
    fn match_all(&mut self, text: &[u8], before: u64) {
        let Self { blocks, keys, registry, work, elsewhere, .. } = self;
        // A head admits no other; elsewhere one that does not parse collects nothing.
        let Some(predicate) = registry.predicate(text) else { return };
        let Some(pins) = predicate.pins() else {
            let is_applied = elsewhere.after < before && before <= elsewhere.up_to;
            let left = if is_applied { before.min(elsewhere.after + 1) } else { before };
            if left > 1 {
                work.pass(before, text, left);
            }
            return;
        };
        for key in pins {
            let hash = keys.hash(key);
            match keys.entry(hash) {
                None => {}
                Some(KeyEntry::One(seq)) if seq >= before => {}
                Some(KeyEntry::One(seq)) => {
                    let wanted = |old: &EventRef<'_>| old.key == Some(key) && predicate.holds(old);
                    let (_, thin) = blocks.collect_if(seq, wanted);
                    work.compact(thin);
                }
                Some(KeyEntry::Many(_)) => work.follow(hash, key, before, Some(&predicate)),
            }
        }
    }

    /// What follows the number `after`, up to the number `up_to`: a batch that begins with the number after
    /// `after` and has at least one event or tombstone, and roughly at most `bytes_max` bytes of events; most
    /// often a slice of what was appended. `None` if `after` is [`last`](Self::last) or `up_to`, or beyond.
    pub fn read(&self, after: u64, up_to: u64, bytes_max: usize) -> Option<Batch> {
        let up_to = up_to.min(self.last);
        if after >= up_to {
            return None;
        }
        let read = self.blocks.read(after, up_to, bytes_max).expect("stored events were checked");
        read.map(|batch| self.telling(batch))
    }

    /// What was read, with what was removed of it.
    fn telling(&self, batch: Batch) -> Batch {
        let removed = if batch.after < self.removed { self.removed.min(batch.last) } else { 0 };
        Batch { removed, ..batch }
    }

    /// As [`read`](Self::read), but nothing of it is collected already: who takes it over need not apply the predicates
    /// up to [`applied`](Self::applied) to it, as that was before.
    pub fn read_live(&self, after: u64, up_to: u64, bytes_max: usize) -> Option<Batch> {
        let up_to = up_to.min(self.last);
        if after >= up_to {
            return None;
        }
        let read = self.blocks.read_live(after, up_to, bytes_max).expect("stored events were checked");
        read.map(|batch| self.telling(batch))
    }

    /// The predicates of all events up to this number have been applied.
    pub fn applied(&self) -> u64 {
        self.work.first_predicate().map_or(self.last, |first| first - 1)
    }

    /// The events after number `after` are appended as somebody [reads](Self::read_live) them who has
    /// [applied](Self::applied) the predicates up to number `up_to`: those after `after` of them have to be applied
    /// only to what was here before. It holds until something else is said; an `up_to` of 0 is nothing.
    pub fn applied_elsewhere(&mut self, after: u64, up_to: u64) {
        self.elsewhere = Elsewhere { after, up_to };
    }

    /// The last event but for the stream's last one that got its number before a time, in milliseconds since 1970, and
    /// is not collected: that up to which retention removes.
    pub fn last_older(&self, time_ms: u64) -> Option<u64> {
        self.blocks.last_older(self.last, time_ms)
    }

    /// Removes all up to a number, collected or not; what is beyond its last is not here. Answers how many of them
    /// nothing had collected. It brings nothing back: what a removed event collects was before it.
    pub fn remove(&mut self, up_to: u64) -> u64 {
        let up_to = up_to.min(self.last);
        if up_to <= self.removed {
            return 0;
        }
        let live = self.blocks.live();
        self.removed = up_to;
        self.blocks.raise_floor(up_to);
        self.registry.forget(self.blocks.floor());
        live.saturating_sub(self.blocks.live())
    }

    /// Up to this number retention removed some that nothing had collected; 0 if there are none.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// Whether something is due, for [`sweep`](Self::sweep).
    pub fn is_due(&self) -> bool {
        self.work.is_due()
    }

    /// Goes on with what is due: dropping what is collected, and looking for what the background collections
    /// match. A step is about the time to read one event. Answers whether something is left to do.
    pub fn sweep(&mut self, steps: usize) -> bool {
        work::sweep(self, steps)
    }

    /// Bytes of the encoded events that are stored, at once.
    pub fn bytes(&self) -> u64 {
        self.blocks.bytes()
    }

    /// Bytes that it takes to find events by their keys, at once, and at most.
    pub fn index_bytes(&self) -> u64 {
        self.keys.len() as u64 * KEY_INDEX_BYTES_MAX
    }

    /// What it holds. Takes time in proportion to the number of its blocks.
    pub fn stats(&self) -> HistoryStats {
        HistoryStats {
            last: self.last,
            floor: self.blocks.floor(),
            live: self.blocks.live(),
            stored: self.blocks.stored(),
            bytes: self.blocks.bytes(),
            blocks: self.blocks.len() as u64,
            memory_bytes: (self.blocks.memory_bytes()
                + self.keys.memory_bytes()
                + self.registry.memory_bytes()) as u64,
            predicates: self.work.predicates() as u64,
        }
    }
}

/// The number below which an event with the number `seq` collects everything, by [`Collect::KeepLast`] or
/// [`Collect::Before`]; 0 or 1 is nothing.
#[inline]
fn prefix_bound(collect: &Collect, seq: u64) -> u64 {
    match collect {
        Collect::KeepLast(n) => seq.saturating_sub(*n),
        Collect::Before(bound) => seq.min(*bound),
        _ => 0,
    }
}
