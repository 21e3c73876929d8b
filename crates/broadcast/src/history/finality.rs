//! Garbage collection is final (section 2.1): a collection `g` that matches an earlier garbage-collection event
//! `g'` has to match everything that `g'` does, or those would have a tombstone but no event that explains it.
//! The head refuses any other.
//!
//! What has to be known for this about the events before is little and bounded:
//! - A collection by number ([`Collect::KeepLast`], [`Collect::Before`]) that matches `g'` matches all events
//!   before `g'`, and so whatever `g'` does. It is always final.
//! - One by key matches `g'` with that key. It is final if that collects by key too. So the events that have a
//!   key and collect in another way are known by key.
//! - One by age matches `g'` with an earlier time. It is final if no event before `g'` has a later time than
//!   that: if no clock went back. So the times of collections that are behind an earlier event's are known.
//!
//! All of this errs on the safe side: where ranges had to be put together, a collection may be refused that
//! would have been final.

use std::collections::VecDeque;

use crate::batch::{Batch, EventRef, Malformed};
use crate::event::Collect;

use super::History;
use super::keys::Entry;
use super::prefix_bound;
use super::table::Table;

/// Stored events that are looked at for one event that is to be admitted; beyond, it is refused.
pub const EXAMINED_MAX: usize = 16 << 10;
/// Ranges of times that are known apart.
const LATE_MAX: usize = 64;

/// Why events get no numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// They are numbered from another number on than the next.
    #[error("the events begin after number {after}, but the next number is the one after {last}")]
    NotNext {
        /// The number before their first.
        after: u64,
        /// The stream's last.
        last: u64,
    },
    /// They are no events.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// One of them would undo garbage collection.
    #[error(
        "the event would remove the garbage-collection event {earlier}, but not all that this one does: {why}"
    )]
    Undoes {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
        /// The number of the garbage-collection event that it would undo.
        earlier: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// Whether it would undo garbage collection takes too long to find out.
    #[error(
        "the event may remove more than {EXAMINED_MAX} garbage-collection events: too many to look at each"
    )]
    TooMany {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
    },
}

const NOT_BY_KEY: &str = "that one does not collect by key only";
const LATE: &str = "it may collect events with a later time, since a clock went back before it";

/// Garbage-collection events whose time is behind that of an event before them: a collection by a time in
/// (`from`, `to`] matches one of them, and may not match what that one does.
#[derive(Clone, Debug)]
struct Late {
    from: u64,
    to: u64,
    first: u64,
    last: u64,
}

/// What is known about the garbage-collection events.
#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    /// The greatest time so far.
    time_max: u64,
    late: VecDeque<Late>,
    /// The last event that has a key with this hash and collects, but not by key only.
    not_by_key: Table,
}

impl Registry {
    /// Notes the next event.
    #[inline]
    pub(super) fn see(&mut self, event: &EventRef<'_>) {
        if event.time_ms >= self.time_max {
            self.time_max = event.time_ms;
        } else if let Some(collect) = event.collect
            && !is_vacuous(event, collect)
        {
            self.see_late(event, collect);
        }
    }

    fn see_late(&mut self, event: &EventRef<'_>, collect: &Collect) {
        let to = match collect {
            // All that it matches is matched by any later time.
            Collect::OlderThan(time_ms) => self.time_max.min(time_ms - 1),
            _ => self.time_max,
        };
        if to <= event.time_ms {
            return;
        }
        match self.late.back_mut() {
            Some(late) if late.to == to => {
                late.from = late.from.min(event.time_ms);
                late.last = event.seq;
            }
            _ => self.late.push_back(Late { from: event.time_ms, to, first: event.seq, last: event.seq }),
        }
        if self.late.len() > LATE_MAX
            && let (Some(a), Some(b)) = (self.late.pop_front(), self.late.pop_front())
        {
            let (from, to) = (a.from.min(b.from), a.to.max(b.to));
            self.late.push_front(Late { from, to, first: a.first, last: b.last });
        }
    }

    /// Notes an event that has a key with this hash and is not collected by the floor.
    #[inline]
    pub(super) fn see_keyed(&mut self, hash: u64, event: &EventRef<'_>, floor: u64) {
        if is_not_by_key(event) {
            self.not_by_key.insert(hash, event.seq, |_, seq| seq > floor);
        }
    }

    /// Forgets what is about events up to a number.
    pub(super) fn forget(&mut self, floor: u64) {
        while self.late.front().is_some_and(|late| late.last <= floor) {
            self.late.pop_front();
        }
    }

    /// A garbage-collection event that a collection by this time may undo.
    fn undone_by_age(&self, time_ms: u64, floor: u64) -> Option<u64> {
        let mut late = self.late.iter().filter(|late| late.last > floor);
        late.find(|late| late.from < time_ms && time_ms <= late.to).map(|late| late.first.max(floor + 1))
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.not_by_key.memory_bytes()
    }
}

/// Whether it matches nothing at all.
fn is_vacuous(event: &EventRef<'_>, collect: &Collect) -> bool {
    match collect {
        Collect::SameKey => event.key.is_none(),
        Collect::KeepLast(_) | Collect::Before(_) => prefix_bound(collect, event.seq) <= 1,
        Collect::OlderThan(time_ms) => *time_ms == 0,
        Collect::Matching(_) => false,
    }
}

fn is_not_by_key(event: &EventRef<'_>) -> bool {
    event.collect.is_some_and(|collect| *collect != Collect::SameKey && !is_vacuous(event, collect))
}

/// See [`History::admit`].
pub(super) fn admit(history: &History, batch: &Batch) -> Result<(), Refusal> {
    if batch.after != history.last {
        return Err(Refusal::NotNext { after: batch.after, last: history.last });
    }
    // By number only, or not at all: most batches.
    let mut cursor = batch.cursor();
    let mut final_anyway = true;
    while let Some(event) = cursor.next()? {
        final_anyway &= matches!(event.collect, None | Some(Collect::KeepLast(_) | Collect::Before(_)));
    }
    if final_anyway {
        return Ok(());
    }
    let mut admission = Admission {
        history,
        batch,
        fresh: Registry { time_max: history.registry.time_max, ..Registry::default() },
    };
    let mut cursor = batch.cursor();
    let mut place = 0;
    while let Some(event) = cursor.next()? {
        admission.admit(place, &event)?;
        place += 1;
    }
    Ok(())
}

/// A batch that is to be admitted.
struct Admission<'a> {
    history: &'a History,
    batch: &'a Batch,
    /// About the batch's events so far.
    fresh: Registry,
}

impl Admission<'_> {
    fn admit(&mut self, place: u64, event: &EventRef<'_>) -> Result<(), Refusal> {
        let floor = self.history.blocks.floor();
        let hash = event.key.map(|key| (key, self.history.keys.hash(key)));
        match (event.collect, hash) {
            (Some(Collect::SameKey), Some((key, hash))) => self.admit_by_key(place, key, hash)?,
            (Some(Collect::OlderThan(time_ms)), _) => {
                let registries = [&self.history.registry, &self.fresh];
                let undone = registries.iter().find_map(|known| known.undone_by_age(*time_ms, floor));
                if let Some(earlier) = undone {
                    return Err(Refusal::Undoes { place, earlier, why: LATE });
                }
            }
            _ => {}
        }
        self.fresh.see(event);
        if let Some((_, hash)) = hash {
            self.fresh.see_keyed(hash, event, floor);
        }
        Ok(())
    }

    fn admit_by_key(&self, place: u64, key: &[u8], hash: u64) -> Result<(), Refusal> {
        let undoes = |earlier| Err(Refusal::Undoes { place, earlier, why: NOT_BY_KEY });
        let is_bad = |event: &EventRef<'_>| event.key == Some(key) && is_not_by_key(event);
        if let Some(seq) = self.fresh.not_by_key.get(hash) {
            // Which one it is, and that it is no other key with the same hash.
            let mut cursor = self.batch.cursor();
            while let Some(event) = cursor.next()?.filter(|event| event.seq <= seq) {
                if is_bad(&event) {
                    return undoes(event.seq);
                }
            }
        }
        let History { registry, blocks, keys, .. } = self.history;
        let Some(last) = registry.not_by_key.get(hash).filter(|&seq| seq > blocks.floor()) else {
            return Ok(());
        };
        if blocks.with(last, is_bad) == Some(true) {
            return undoes(last);
        }
        // That one was collected alone, or has another key: one before it may be there.
        match keys.entry(hash) {
            None => Ok(()),
            Some(Entry::One(seq)) => match blocks.with(seq, is_bad) {
                Some(true) => undoes(seq),
                _ => Ok(()),
            },
            Some(Entry::Many(list)) => {
                let numbers = keys.list(list);
                if numbers.len() > EXAMINED_MAX {
                    return Err(Refusal::TooMany { place });
                }
                match numbers.iter().find(|&&seq| blocks.with(seq, is_bad) == Some(true)) {
                    Some(&seq) => undoes(seq),
                    None => Ok(()),
                }
            }
        }
    }
}
