//! What is due: blocks to compact, keys with many events to go through, and the collections that go through all
//! blocks. It is done in steps, so that no call takes long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::event::Collect;
use crate::predicate::Predicate;

use super::History;
use super::block::Outcome;
use super::keys::{FollowedKeys, KeyEntry};

/// Steps that it takes to find one event by its number.
const FIND: i64 = 16;
/// Predicates that wait to go through all blocks beyond which a head admits no more. Elsewhere there may be any number:
/// for one that waits only its number is kept.
pub(super) const PASSES_MAX: usize = 64;
/// What the predicates of one walk cost for each event, together, but for the first: as much as a single one may.
const WALK_COST_MAX: u32 = 512;

#[derive(Clone, Debug, Default)]
pub(super) struct HistoryWork {
    /// Blocks to compact, by the number before their first.
    compact: BTreeSet<u64>,
    /// Keys with many events, by hash; one after the other for each hash.
    following: BTreeMap<u64, VecDeque<FollowedKeys>>,
    /// The ages that a pass over all blocks is at, and how far it is.
    ages: Vec<Age>,
    ages_after: u64,
    /// The ages for the next pass.
    ages_next: Vec<Age>,
    /// The predicates that one walk through all blocks is for, how far it is, and whether it has begun.
    passes: Vec<Pass>,
    passes_after: u64,
    walks: bool,
    /// The events whose predicates are for later walks, in order, and the predicate of the last one.
    waiting: VecDeque<WorkWaiting>,
    waiting_text: Bytes,
}

/// Collects the events with smaller numbers than `before` for which a predicate holds.
#[derive(Clone, Debug)]
struct Pass {
    /// The first event that has it.
    seq: u64,
    predicate: Arc<Predicate>,
    before: u64,
}

/// An event whose predicate is to be applied to those with smaller numbers than `before`. Its text is where the event
/// is: if that was collected meanwhile, what did it matches all that the predicate does.
#[derive(Clone, Copy, Debug)]
struct WorkWaiting {
    seq: u64,
    before: u64,
}

/// Collects the events with smaller numbers than `before` and times before `time_ms`. Of several, the later
/// ones have smaller times: others make no difference.
#[derive(Clone, Copy, Debug)]
struct Age {
    before: u64,
    time_ms: u64,
}

impl HistoryWork {
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
        let waits = |known: &&mut FollowedKeys| {
            known.left.is_none() && known.key == key && known.only.as_ref() == only
        };
        match queue.iter_mut().find(waits) {
            Some(known) => known.before = seq,
            None => {
                let (key, only) = (Bytes::copy_from_slice(key), only.cloned());
                queue.push_back(FollowedKeys { key, before: seq, only, left: None });
            }
        }
    }

    /// Notes that all events before `seq` that are older are to be collected.
    pub(super) fn age(&mut self, seq: u64, time_ms: u64) {
        let kept = self.ages_next.partition_point(|age| age.time_ms > time_ms);
        self.ages_next.truncate(kept);
        self.ages_next.push(Age { before: seq, time_ms });
    }

    /// Notes that of the events before `before` those are to be collected for which the predicate of event `seq` holds.
    pub(super) fn pass(&mut self, seq: u64, text: &[u8], before: u64) {
        // The later one of two with the same predicate collects for both.
        if let Some(last) = self.waiting.back_mut()
            && self.waiting_text == text
        {
            *last = WorkWaiting { seq, before: before.max(last.before) };
        } else {
            self.waiting.push_back(WorkWaiting { seq, before });
            self.waiting_text = Bytes::copy_from_slice(text);
        }
    }

    /// How many predicates are being applied.
    pub(super) fn predicates(&self) -> usize {
        self.passes.len() + self.waiting.len()
    }

    /// The first event whose predicate is not applied yet to all that it should be.
    pub(super) fn first_predicate(&self) -> Option<u64> {
        let walking = self.passes.iter().map(|pass| pass.seq).min();
        walking.into_iter().chain(self.waiting.front().map(|waiting| waiting.seq)).min()
    }

    /// Whether something is left to do.
    pub(super) fn is_due(&self) -> bool {
        let Self { compact, following, ages, ages_next, passes, waiting, .. } = self;
        !(compact.is_empty()
            && following.is_empty()
            && ages.is_empty()
            && ages_next.is_empty()
            && passes.is_empty()
            && waiting.is_empty())
    }

    /// How many collections wait to go through the events with a key.
    pub(super) fn followings(&self, hash: u64) -> usize {
        self.following.get(&hash).map_or(0, VecDeque::len)
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
        } else if !work.passes.is_empty() || !work.waiting.is_empty() {
            if left <= 0 {
                return true;
            }
            left -= if work.walks { sweep_passes(history, left) } else { gather_pass(history) };
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
    let mut collect = |seq: u64, task: &FollowedKeys| {
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
        Some(KeyEntry::One(seq)) => {
            *left -= FIND;
            collect(seq, task);
        }
        Some(KeyEntry::Many(list)) => {
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

/// Takes the next predicate that waits into the next walk, or begins that. Answers the steps it took.
fn gather_pass(history: &mut History) -> i64 {
    let History { blocks, registry, work, .. } = history;
    let Some(&WorkWaiting { seq, before }) = work.waiting.front() else {
        (work.walks, work.passes_after) = (!work.passes.is_empty(), 0);
        return 1;
    };
    let found = blocks.with(seq, |event| match event.collect {
        Some(Collect::Matching(text)) => (text.len(), registry.predicate(text)),
        _ => (0, None),
    });
    let (parsed, predicate) = found.unwrap_or_default();
    if let Some(predicate) = predicate {
        match work.passes.iter_mut().find(|pass| pass.predicate == predicate) {
            Some(pass) => pass.before = pass.before.max(before),
            None => {
                let together: u32 = work.passes.iter().map(|pass| 1 + pass.predicate.cost()).sum();
                if !work.passes.is_empty() && together + predicate.cost() >= WALK_COST_MAX {
                    (work.walks, work.passes_after) = (true, 0);
                    return FIND + parsed as i64;
                }
                work.passes.push(Pass { seq, predicate, before });
            }
        }
    }
    work.waiting.pop_front();
    FIND + parsed as i64
}

/// Looks at some events of the next block, whether one of the walk's predicates holds for them. Answers the steps it
/// took.
fn sweep_passes(history: &mut History, left: i64) -> i64 {
    let History { blocks, work, .. } = history;
    let passes = &work.passes;
    let cost = 1 + passes.iter().map(|pass| 1 + i64::from(pass.predicate.cost())).sum::<i64>();
    let most = u32::try_from(left / cost).unwrap_or(u32::MAX);
    let before = passes.iter().map(|pass| pass.before).max().unwrap_or(0);
    let looked = blocks.collect_in_next(
        work.passes_after,
        before,
        most,
        |_| true,
        |event| passes.iter().any(|pass| event.seq < pass.before && pass.predicate.holds(event)),
    );
    let Some((look, thin)) = looked else {
        work.passes.clear();
        work.walks = false;
        return 1;
    };
    work.passes_after = look.reached;
    work.compact(thin);
    i64::from(look.events) * cost
}
