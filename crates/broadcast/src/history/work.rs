//! What is due: blocks to compact, keys with many events to go through, and the collections that go through all
//! blocks. It is done in steps, so that no call takes long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::predicate::Predicate;

use super::History;
use super::block::Outcome;
use super::keys::{Entry, Following};

/// Steps that it takes to find one event by its number.
const FIND: i64 = 16;
/// Predicates that wait to go through all blocks. A head admits no more; where there are more nevertheless, they
/// are given up, and what they match stays.
pub(super) const PASSES_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Blocks to compact, by the number before their first.
    compact: BTreeSet<u64>,
    /// Keys with many events, by hash; one after the other for each hash.
    following: BTreeMap<u64, VecDeque<Following>>,
    /// The ages that a pass over all blocks is at, and how far it is.
    ages: Vec<Age>,
    ages_after: u64,
    /// The ages for the next pass.
    ages_next: Vec<Age>,
    /// Predicates that go through all blocks, one after the other.
    passes: VecDeque<Pass>,
    dropped: u64,
}

/// Collects the events with smaller numbers than `before` for which a predicate holds; it has been through those
/// up to `after`.
#[derive(Clone, Debug)]
struct Pass {
    predicate: Arc<Predicate>,
    before: u64,
    after: u64,
}

/// Collects the events with smaller numbers than `before` and times before `time_ms`. Of several, the later
/// ones have smaller times: others make no difference.
#[derive(Clone, Copy, Debug)]
struct Age {
    before: u64,
    time_ms: u64,
}

impl Work {
    /// Notes a block that is worth being compacted.
    #[inline]
    pub(super) fn compact(&mut self, block: Option<u64>) {
        if let Some(block) = block {
            self.compact.insert(block);
        }
    }

    /// Notes that all events before `seq` with a key are to be collected, or those for which a predicate holds,
    /// where the index has a list of them.
    pub(super) fn follow(&mut self, hash: u64, key: &[u8], seq: u64, only: Option<&Arc<Predicate>>) {
        let queue = self.following.entry(hash).or_default();
        // One that has not begun yet collects these on its way.
        let waits =
            |known: &&mut Following| known.left.is_none() && known.key == key && known.only.as_ref() == only;
        match queue.iter_mut().find(waits) {
            Some(known) => known.before = seq,
            None => {
                let (key, only) = (Bytes::copy_from_slice(key), only.cloned());
                queue.push_back(Following { key, before: seq, only, left: None });
            }
        }
    }

    /// Notes that all events before `seq` that are older are to be collected.
    pub(super) fn age(&mut self, seq: u64, time_ms: u64) {
        let kept = self.ages_next.partition_point(|age| age.time_ms > time_ms);
        self.ages_next.truncate(kept);
        self.ages_next.push(Age { before: seq, time_ms });
    }

    /// Notes that all events before `seq` for which a predicate holds are to be collected.
    pub(super) fn pass(&mut self, seq: u64, predicate: &Arc<Predicate>) {
        if let Some(last) = self.passes.back_mut()
            && last.after == 0
            && last.predicate == *predicate
        {
            last.before = seq;
        } else if self.passes.len() >= PASSES_MAX {
            self.dropped += 1;
        } else {
            self.passes.push_back(Pass { predicate: predicate.clone(), before: seq, after: 0 });
        }
    }

    /// How many predicates are being applied.
    pub(super) fn predicates(&self) -> usize {
        self.passes.len()
    }

    /// How many collections wait to go through the events with a key.
    pub(super) fn followings(&self, hash: u64) -> usize {
        self.following.get(&hash).map_or(0, VecDeque::len)
    }

    /// How many predicates were given up.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// See [`History::sweep`].
pub(super) fn sweep(history: &mut History, steps: usize) -> bool {
    let mut left = i64::try_from(steps).unwrap_or(i64::MAX);
    loop {
        let work = &mut history.work;
        if let Some(&block) = work.compact.first() {
            if left <= 0 {
                return true;
            }
            work.compact.pop_first();
            left -= 1 + i64::from(history.blocks.compact(block));
        } else if !work.following.is_empty() {
            if left <= 0 {
                return true;
            }
            sweep_key(history, &mut left);
        } else if !work.ages.is_empty() || !work.ages_next.is_empty() {
            if left <= 0 {
                return true;
            }
            left -= sweep_ages(history);
        } else if !work.passes.is_empty() {
            if left <= 0 {
                return true;
            }
            left -= sweep_pass(history, left);
        } else {
            return false;
        }
    }
}

/// Goes on with the first key that has many events.
fn sweep_key(history: &mut History, left: &mut i64) {
    let History { blocks, keys, work, .. } = history;
    let Some(mut queue) = work.following.first_entry() else { return };
    let hash = *queue.key();
    let Some(task) = queue.get_mut().front_mut() else {
        queue.remove();
        return;
    };
    let mut thin = BTreeSet::new();
    let mut collect = |seq: u64, task: &Following| {
        if seq >= task.before {
            return Outcome::Kept;
        }
        let (outcome, block) = blocks.collect_if(seq, |event| {
            event.key == Some(&task.key) && task.only.as_ref().is_none_or(|only| only.holds(event))
        });
        thin.extend(block);
        outcome
    };
    let mut done = true;
    match keys.entry(hash) {
        None => {}
        Some(Entry::One(seq)) => {
            *left -= FIND;
            collect(seq, task);
        }
        Some(Entry::Many(list)) => {
            keys.hold(list, true);
            let mut at = task.left.unwrap_or_else(|| keys.list(list).len());
            while at > 0 && *left > 0 {
                at -= 1;
                *left -= FIND;
                if collect(keys.list(list)[at], task) != Outcome::Kept {
                    keys.take_out(list, at);
                }
            }
            task.left = Some(at);
            done = at == 0;
            if done {
                keys.hold(list, false);
                keys.shorten(hash, list);
            }
        }
    }
    if done {
        queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        }
    }
    *left -= 1;
    work.compact.extend(thin);
}

/// Looks at the next block for events that are too old. Answers the steps it took.
fn sweep_ages(history: &mut History) -> i64 {
    let History { blocks, work, .. } = history;
    if work.ages.is_empty() {
        work.ages = std::mem::take(&mut work.ages_next);
        work.ages_after = 0;
    }
    let ages = &work.ages;
    // The first of them has the greatest time and the least number, the last the greatest number.
    let (Some(first), Some(last)) = (ages.first(), ages.last()) else { return 1 };
    let looked = blocks.collect_in_next(
        work.ages_after,
        last.before,
        // Its times are known better only if it is gone through at once.
        u32::MAX,
        |block| block.time_min < first.time_ms,
        |event| {
            let first = ages.partition_point(|age| age.before <= event.seq);
            ages.get(first).is_some_and(|age| event.time_ms < age.time_ms)
        },
    );
    let Some((look, thin)) = looked else {
        work.ages.clear();
        return 1;
    };
    work.ages_after = look.reached;
    work.compact(thin);
    i64::from(look.events)
}

/// Looks at some events of the next block, whether the first predicate holds for them. Answers the steps it
/// took.
fn sweep_pass(history: &mut History, left: i64) -> i64 {
    let History { blocks, work, .. } = history;
    let Some(pass) = work.passes.front_mut() else { return 1 };
    let predicate = &pass.predicate;
    let cost = 1 + i64::from(predicate.cost());
    let most = u32::try_from(left / cost).unwrap_or(u32::MAX);
    let looked =
        blocks.collect_in_next(pass.after, pass.before, most, |_| true, |event| predicate.holds(event));
    let Some((look, thin)) = looked else {
        work.passes.pop_front();
        return 1;
    };
    pass.after = look.reached;
    work.compact(thin);
    i64::from(look.events) * cost
}
