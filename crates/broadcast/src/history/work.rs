//! What is due: blocks to compact, keys with many events to go through, and the collections that go through all
//! blocks. It is done in steps, so that no call takes long.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::batch::EventRef;
use crate::event::Collect;

use super::History;
use super::block::Outcome;
use super::keys::{Entry, Following};

/// Steps that it takes to find one event by its number.
const FIND: i64 = 16;

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
    dropped: u64,
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

    /// Notes that all events before `seq` with a key are to be collected, where the index has a list of them.
    pub(super) fn follow(&mut self, hash: u64, key: &[u8], seq: u64) {
        let queue = self.following.entry(hash).or_default();
        let key = Bytes::copy_from_slice(key);
        // One that has not begun yet collects these on its way.
        if let Some(same) = queue.back_mut().filter(|last| last.left.is_none() && last.key == key) {
            same.before = seq;
            return;
        }
        queue.push_back(Following { key, before: seq, left: None });
    }

    /// Notes what an event collects by going through all blocks.
    #[inline]
    pub(super) fn plan(&mut self, event: &EventRef<'_>) {
        if let Some(Collect::OlderThan(time_ms)) = event.collect {
            let kept = self.ages_next.partition_point(|age| age.time_ms > *time_ms);
            self.ages_next.truncate(kept);
            self.ages_next.push(Age { before: event.seq, time_ms: *time_ms });
        }
    }

    /// How many predicates are being applied.
    pub(super) fn predicates(&self) -> usize {
        0
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
        let (outcome, block) = blocks.collect_if(seq, |event| event.key == Some(&task.key));
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
    // The oldest of them has the greatest time and the least number, the newest the greatest number.
    let (Some(oldest), Some(newest)) = (ages.first(), ages.last()) else { return 1 };
    let looked = blocks.collect_in_next(
        work.ages_after,
        newest.before,
        |block| block.time_min < oldest.time_ms,
        |event| {
            let first = ages.partition_point(|age| age.before <= event.seq);
            ages.get(first).is_some_and(|age| event.time_ms < age.time_ms)
        },
    );
    let Some(looked) = looked else {
        work.ages.clear();
        return 1;
    };
    work.ages_after = looked.last;
    if looked.thin {
        work.compact.insert(looked.block);
    }
    i64::from(looked.events)
}
