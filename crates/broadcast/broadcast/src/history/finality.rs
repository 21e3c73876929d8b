//! Garbage collection is final (section 2.1): a collection `g` that matches an earlier garbage-collection event
//! `g'` has to match everything that `g'` does, or those would have a tombstone but no event that explains it.
//! The head refuses any other.
//!
//! What has to be known for this about the events before is little and bounded:
//! - A collection by number ([`Collect::KeepLast`], [`Collect::Before`]) that matches `g'` matches all events
//!   before `g'`, and so whatever `g'` does. It is always final.
//! - One by key matches `g'` with that key. It is final if that collects by key too. So the events that have a
//!   key and collect in another way are known by key.
//! - One by a predicate matches those for which the predicate holds. Whole kinds of them are found to be no
//!   matter by what the predicate looks at ([`Predicate::is_stable`]): one with upper bounds of `seq` only, any;
//!   one on the key, those that collect by key. Of the other kinds, those are looked at for which it may hold: by
//!   key if the predicate pins it, else all. What `g'` collects is turned into facts about an event, and the
//!   predicate has to hold given the facts alone.
//! - One by age matches `g'` with an earlier time. No event before `g'` has a later time than that (the head gives
//!   none that is earlier than the one before, whatever its clock says), so it is always final.
//!
//! All of this errs on the safe side: where ranges had to be put together, a collection may be refused that
//! would have been final.
//!
//! It is known in three generations: of the history, of what is on its way to it ([`OnItsWay`]), and of the events that
//! are to be admitted together. Each event is looked at once for each of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{Batch, EventRef, MalformedBatch};
use crate::event::Collect;
use crate::predicate::{Facts, NumberFacts, Predicate, SyntaxError, Truth, Values};

use super::History;
use super::keys::KeyEntry;
use super::prefix_bound;
use super::table::HistoryTable;
use super::work::PASSES_MAX;

/// Steps that may be taken for one event that is to be admitted; beyond, it is refused. To look at a stored event
/// takes 4 and the [cost](Predicate::cost) of the predicate, and [`FIND`] more where it has to be found by its number.
pub const ADMIT_STEPS_MAX: usize = 64 << 10;
/// The same for all that are to be admitted together: about as many milliseconds as a disk takes for them.
pub const ADMIT_ALL_STEPS_MAX: usize = 64 * ADMIT_STEPS_MAX;
/// Steps that all who publish may take in one tick: a quarter of its time.
const BUDGET_STEPS: i64 = 1 << 20;
/// Steps that it takes to find one event by its number: up to 16 are read.
const FIND: usize = 16;
/// Steps that it takes to parse a byte of a predicate.
const PARSE: usize = 4;
/// Predicates of garbage-collection events that are kept parsed.
const PREDICATES_MAX: usize = 256;
/// Runs of garbage-collection events that are known apart, and numbers that one has at least.
const RUNS_MAX: usize = 1024;
const RUN_LENGTH: u64 = 64;

/// Why events get no numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinalityRefusal {
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
    Malformed(#[from] MalformedBatch),
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
        "the event may remove too many garbage-collection events to look at each within {ADMIT_STEPS_MAX} steps, \
         or the events before it took too many; publish fewer together, or collect those first by number (keep last, \
         before)"
    )]
    TooMany {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
    },
    /// What was published just before took all the time that there is to find out.
    #[error(
        "what was published just before took all the time that there is for finding out what its garbage collection may \
         undo; try again later"
    )]
    Spent {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
    },
    /// Its predicate is none.
    #[error("{error}")]
    Predicate {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
        /// What is wrong with it.
        error: Box<SyntaxError>,
    },
    /// Many predicates are still being applied to all events.
    #[error("{PASSES_MAX} predicates are still being applied to all events; try again later, or name keys")]
    Busy {
        /// The place of the event among those to be admitted, from 0.
        place: u64,
    },
}

const NOT_BY_KEY: &str = "that one does not collect by key only";
const NOT_IMPLIED: &str = "the predicate does not hold for everything that one collects";

/// What is known about the garbage-collection events.
#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    /// The last event that has a key with this hash and collects, but not by key only.
    not_by_key: HistoryTable,
    /// Where there are garbage-collection events, and of which kinds: before the last run, and that.
    runs: VecDeque<Run>,
    run: Run,
    /// The predicates, by text.
    predicates: BTreeMap<Bytes, Known>,
    /// The last event with a predicate that is not among them.
    unknown: u64,
}

/// None if `kinds` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    first: u64,
    last: u64,
    kinds: u8,
}

/// Kinds of garbage-collection events.
const BY_KEY: u8 = 1;
const BY_NUMBER: u8 = 2;
const BY_AGE: u8 = 4;
const BY_PREDICATE: u8 = 8;

fn kind(collect: &Collect) -> u8 {
    match collect {
        Collect::SameKey => BY_KEY,
        Collect::KeepLast(_) | Collect::Before(_) => BY_NUMBER,
        Collect::OlderThan(_) => BY_AGE,
        Collect::Matching(_) => BY_PREDICATE,
    }
}

#[derive(Clone, Debug)]
struct Known {
    predicate: Arc<Predicate>,
    /// The last event with it.
    last: u64,
}

impl Registry {
    /// Notes the next event, and the `alike - 1` before it that differ from it in their numbers only.
    #[inline]
    pub(super) fn see(&mut self, event: &EventRef<'_>, alike: u32) {
        let Some(collect) = event.collect.filter(|collect| !is_vacuous(event, collect)) else { return };
        let (seq, kind) = (event.seq, kind(collect));
        let mut first = seq - u64::from(alike - 1);
        while first <= seq {
            if self.run.kinds != kind && first - self.run.first >= RUN_LENGTH {
                self.see_run(Run { first, last: first, kinds: kind });
            }
            self.run.kinds |= kind;
            self.run.last = if self.run.kinds == kind { seq } else { first };
            first = self.run.last + 1;
        }
        if let Collect::Matching(text) = collect {
            self.see_predicate(text, seq);
        }
    }

    /// The runs that the floor has not passed.
    fn runs(&self, floor: u64) -> impl Iterator<Item = &Run> {
        let last = std::iter::once(&self.run).filter(|run| run.kinds != 0);
        self.runs.iter().chain(last).filter(move |run| run.last > floor)
    }

    #[cold]
    fn see_run(&mut self, run: Run) {
        let ended = std::mem::replace(&mut self.run, run);
        if ended.kinds != 0 {
            self.runs.push_back(ended);
        }
        if self.runs.len() > RUNS_MAX
            && let (Some(a), Some(b)) = (self.runs.pop_front(), self.runs.pop_front())
        {
            self.runs.push_front(Run { first: a.first, last: b.last, kinds: a.kinds | b.kinds });
        }
    }

    fn see_predicate(&mut self, text: &Bytes, seq: u64) {
        if let Some(known) = self.predicates.get_mut(text) {
            known.last = seq;
        } else if self.predicates.len() >= PREDICATES_MAX {
            self.unknown = seq;
        } else if let Ok(predicate) = Predicate::parse(text) {
            let text = Bytes::copy_from_slice(text);
            self.predicates.insert(text, Known { predicate: Arc::new(predicate), last: seq });
        }
    }

    /// A predicate of an event that was admitted.
    pub(super) fn predicate(&self, text: &[u8]) -> Option<Arc<Predicate>> {
        match self.predicates.get(text) {
            Some(known) => Some(known.predicate.clone()),
            None => Predicate::parse(text).ok().map(Arc::new),
        }
    }

    /// Notes an event that has a key with this hash and is not collected by the floor.
    #[inline]
    pub(super) fn see_keyed(&mut self, hash: u64, event: &EventRef<'_>, floor: u64) {
        if self.is_not_by_key(event) {
            self.not_by_key.insert(hash, event.seq, |_, seq| seq > floor);
        }
    }

    /// Whether it collects others than those with its own key.
    fn is_not_by_key(&self, event: &EventRef<'_>) -> bool {
        let Some(collect) = event.collect.filter(|collect| !is_vacuous(event, collect)) else { return false };
        match collect {
            Collect::SameKey => false,
            Collect::Matching(text) => {
                let predicate = self.predicate(text);
                let pins = predicate.as_ref().and_then(|predicate| predicate.pins());
                !pins.is_some_and(|pins| pins.iter().all(|pin| event.key == Some(pin)))
            }
            _ => true,
        }
    }

    /// The kinds of garbage-collection events for which it is open whether a predicate that holds for one of
    /// them holds for all that it collects.
    fn open_kinds(
        &self,
        predicate: &Predicate,
        floor: u64,
        steps: &mut Steps,
    ) -> Result<u8, FinalityRefusal> {
        steps.take(predicate.cost() as usize)?;
        let live = self.runs(floor).fold(0, |kinds, run| kinds | run.kinds);
        if live == 0 || predicate.is_stable(false) {
            return Ok(0);
        }
        let mut open = live;
        if predicate.is_stable(true) {
            open &= !BY_KEY;
        }
        if open & BY_PREDICATE != 0 && self.unknown <= floor {
            let mut implied = true;
            for known in self.predicates.values().filter(|known| known.last > floor) {
                let branches = known.predicate.branches();
                steps.take(branches.len() * predicate.cost() as usize)?;
                implied &= *known.predicate == *predicate
                    || branches.iter().all(|facts| predicate.holds_given(facts) == Truth::True);
            }
            if implied {
                open &= !BY_PREDICATE;
            }
        }
        Ok(open)
    }

    /// Whether a predicate holds for everything that a garbage-collection event collects.
    fn is_implied(
        &self,
        predicate: &Predicate,
        collection: &EventRef<'_>,
        steps: &mut Steps,
    ) -> Result<bool, FinalityRefusal> {
        let seq = collection.seq;
        let time_ms = NumberFacts(0, collection.time_ms);
        let mut facts = Facts { seq: NumberFacts::below(seq), time_ms, ..Facts::default() };
        let mut parsed = None;
        match collection.collect {
            None => return Ok(true),
            Some(Collect::SameKey) => {
                facts.key = Values::OneOf(collection.key.map(Bytes::copy_from_slice).into_iter().collect());
            }
            Some(Collect::OlderThan(time_ms)) => {
                facts.time_ms = facts.time_ms.and(NumberFacts::below(*time_ms))
            }
            Some(Collect::Matching(text)) => {
                if !self.predicates.contains_key(text) {
                    steps.take(text.len())?;
                }
                parsed = self.predicate(text);
            }
            Some(prefix) => facts.seq = facts.seq.and(NumberFacts::below(prefix_bound(prefix, seq))),
        }
        let Some(parsed) = parsed else { return Ok(predicate.holds_given(&facts) == Truth::True) };
        steps.take(parsed.branches().len() * predicate.cost() as usize)?;
        let mut branches = parsed.branches().iter().map(|branch| branch.clone().and(facts.clone()));
        Ok(*parsed == *predicate || branches.all(|branch| predicate.holds_given(&branch) == Truth::True))
    }

    /// Forgets what is about events up to a number.
    pub(super) fn forget(&mut self, floor: u64) {
        while self.runs.front().is_some_and(|run| run.last <= floor) {
            self.runs.pop_front();
        }
        if self.predicates.len() >= PREDICATES_MAX / 2 {
            self.predicates.retain(|_, known| known.last > floor);
        }
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

/// What is left of [`ADMIT_STEPS_MAX`] for an event.
struct Steps {
    left: usize,
    place: u64,
    /// Whether it would have more, were it not for others.
    is_spent: bool,
}

impl Steps {
    fn take(&mut self, steps: usize) -> Result<(), FinalityRefusal> {
        let place = self.place;
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None if self.is_spent => Err(FinalityRefusal::Spent { place }),
            None => {
                self.left = 0;
                Err(FinalityRefusal::TooMany { place })
            }
        }
    }
}

/// The steps that all who publish have together until time passes. Whoever begins while there are some gets as many as
/// one may have, so that it comes to an end; who comes next then waits longer.
#[derive(Clone, Debug)]
pub struct Budget {
    left: i64,
    taken: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: BUDGET_STEPS, taken: 0 }
    }
}

impl Budget {
    /// A tick's time passed.
    pub fn tick(&mut self) {
        self.left = BUDGET_STEPS.min(self.left + BUDGET_STEPS);
    }

    /// The steps that were taken since the start.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes as many as were taken from another one.
    pub(crate) fn takes_as(&mut self, other: &Self) {
        self.take(usize::try_from(other.taken).unwrap_or(usize::MAX));
    }

    fn take(&mut self, steps: usize) {
        self.left -= i64::try_from(steps).unwrap_or(i64::MAX / 2);
        self.taken += steps as u64;
    }
}

/// What is known about events behind the history's last, which are on their way to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnItsWay {
    registry: Registry,
    /// The last number that it knows.
    seen: u64,
    /// Events whose predicates all events will have to be gone through for, and the predicate of the last of them.
    passes: VecDeque<u64>,
    pass: Bytes,
}

impl OnItsWay {
    /// The last number that it knows; 0 if it knows nothing.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Notes the next events.
    pub(crate) fn see(
        &mut self,
        history: &History,
        batch: &Batch,
        budget: &mut Budget,
    ) -> Result<(), MalformedBatch> {
        budget.take(batch.count as usize);
        let registry = &mut self.registry;
        let mut cursor = batch.cursor();
        while let Some((event, alike)) = &cursor.next_alike(u32::MAX)? {
            registry.see(event, *alike);
            if let Some(key) = event.key {
                registry.see_keyed(history.keys.hash(key), event, history.last);
            }
            if let Some(Collect::Matching(text)) = event.collect
                && (self.passes.is_empty() || self.pass != *text)
                && registry.predicate(text).is_some_and(|predicate| predicate.pins().is_none())
            {
                self.passes.push_back(event.seq);
                self.pass = Bytes::copy_from_slice(text);
            }
        }
        self.seen = batch.last;
        Ok(())
    }

    /// The events up to a number are in the history.
    pub(crate) fn settled(&mut self, held: u64) {
        if self.seen <= held {
            // Much of what it takes is for each event that it ever saw.
            if self.seen > 0 {
                *self = Self::default();
            }
            return;
        }
        self.registry.forget(held);
        while self.passes.pop_front_if(|seq| *seq <= held).is_some() {}
    }
}

/// See [`History::admit`]; `on_its_way` is what is known of `unsettled`, which is between the history and the batch.
pub(crate) fn admit<'a>(
    history: &History,
    on_its_way: &OnItsWay,
    unsettled: impl Iterator<Item = &'a Batch> + Clone,
    (last, batch): (u64, &Batch),
    budget: &mut Budget,
) -> Result<(), FinalityRefusal> {
    if batch.after != last {
        return Err(FinalityRefusal::NotNext { after: batch.after, last });
    }
    // By number or age only, or not at all: most batches.
    let mut cursor = batch.cursor();
    let mut final_anyway = true;
    while let Some((event, _)) = cursor.next_alike(u32::MAX)? {
        final_anyway &= !matches!(event.collect, Some(Collect::SameKey | Collect::Matching(_)));
    }
    if final_anyway {
        return Ok(());
    }
    let fresh = Registry::default();
    let is_spent = budget.left <= 0;
    let left = if is_spent { 0 } else { ADMIT_ALL_STEPS_MAX };
    let mut admission =
        Admission { history, on_its_way, unsettled, batch, fresh, left, is_spent, passes: 0, pass: None };
    let admitted = admission.admit_all();
    budget.take(left - admission.left + batch.count as usize);
    admitted
}

/// A batch that is to be admitted.
struct Admission<'a, B> {
    history: &'a History,
    on_its_way: &'a OnItsWay,
    unsettled: B,
    batch: &'a Batch,
    /// About the batch's events so far.
    fresh: Registry,
    /// Steps for the rest of them, and whether those that they would have are spent.
    left: usize,
    is_spent: bool,
    /// Predicates so far that all events will have to be gone through for, and the last of them.
    passes: usize,
    pass: Option<Bytes>,
}

impl<'b, B: Iterator<Item = &'b Batch> + Clone> Admission<'_, B> {
    fn admit_all(&mut self) -> Result<(), FinalityRefusal> {
        let mut cursor = self.batch.cursor();
        let mut place = 0;
        let mut before: Option<Collect> = None;
        while let Some(event) = cursor.next()? {
            // What the event right before was admitted for needs no second look.
            let same =
                matches!(event.collect, Some(Collect::Matching(_))) && before.as_ref() == event.collect;
            let steps_max = ADMIT_STEPS_MAX.min(self.left);
            let mut steps = Steps { left: steps_max, place, is_spent: self.is_spent };
            let admitted = self.admit(place, &event, same, &mut steps);
            self.left -= steps_max - steps.left;
            admitted?;
            if !same {
                before = event.collect.cloned();
            }
            place += 1;
        }
        Ok(())
    }

    fn admit(
        &mut self,
        place: u64,
        event: &EventRef<'_>,
        same: bool,
        steps: &mut Steps,
    ) -> Result<(), FinalityRefusal> {
        let floor = self.history.blocks.floor();
        let hash = event.key.map(|key| (key, self.history.keys.hash(key)));
        match (event.collect, hash) {
            _ if same => {}
            (Some(Collect::SameKey), Some((key, hash))) => self.admit_by_key(place, key, hash, steps)?,
            (Some(Collect::Matching(text)), _) => self.admit_by_predicate(text, event.seq, steps)?,
            _ => {}
        }
        self.fresh.see(event, 1);
        if let Some((_, hash)) = hash {
            self.fresh.see_keyed(hash, event, floor);
        }
        Ok(())
    }

    fn admit_by_key(
        &self,
        place: u64,
        key: &[u8],
        hash: u64,
        steps: &mut Steps,
    ) -> Result<(), FinalityRefusal> {
        let undoes = |earlier| Err(FinalityRefusal::Undoes { place, earlier, why: NOT_BY_KEY });
        let History { registry, blocks, keys, .. } = self.history;
        if let Some(seq) = self.fresh.not_by_key.get(hash) {
            // Which one it is, and that it is no other key with the same hash.
            let mut cursor = self.batch.cursor();
            while let Some(event) = cursor.next()?.filter(|event| event.seq <= seq) {
                if event.key == Some(key) && self.fresh.is_not_by_key(&event) {
                    return undoes(event.seq);
                }
            }
        }
        let on_its_way = &self.on_its_way.registry;
        if on_its_way.not_by_key.get(hash).is_some_and(|seq| seq > self.history.last) {
            for batch in self.unsettled.clone() {
                let mut cursor = batch.cursor();
                while let Some(event) = cursor.next()? {
                    steps.take(1)?;
                    if event.key == Some(key) && on_its_way.is_not_by_key(&event) {
                        return undoes(event.seq);
                    }
                }
            }
        }
        let Some(last) = registry.not_by_key.get(hash).filter(|&seq| seq > blocks.floor()) else {
            return Ok(());
        };
        let is_undone = |seq| {
            blocks.with(seq, |event| event.key == Some(key) && registry.is_not_by_key(event)) == Some(true)
        };
        steps.take(FIND)?;
        if is_undone(last) {
            return undoes(last);
        }
        // That one was collected alone, or has another key: one before it may be there.
        let numbers = match keys.entry(hash) {
            None => return Ok(()),
            Some(KeyEntry::One(seq)) => return if is_undone(seq) { undoes(seq) } else { Ok(()) },
            Some(KeyEntry::Many(list)) => keys.list(list),
        };
        steps.take(FIND * numbers.len())?;
        numbers.iter().find(|&&seq| is_undone(seq)).map_or(Ok(()), |&seq| undoes(seq))
    }

    fn admit_by_predicate(
        &mut self,
        text: &Bytes,
        seq: u64,
        steps: &mut Steps,
    ) -> Result<(), FinalityRefusal> {
        let place = steps.place;
        let History { registry, blocks, keys, work, .. } = self.history;
        let (on_its_way, held) = (&self.on_its_way.registry, self.history.last);
        let known = [registry, on_its_way, &self.fresh].into_iter().find_map(|of| of.predicates.get(text));
        let predicate = match known {
            Some(known) => known.predicate.clone(),
            None => {
                steps.take(PARSE * text.len())?;
                let parsed = Predicate::parse(text);
                Arc::new(
                    parsed.map_err(|error| FinalityRefusal::Predicate { place, error: Box::new(error) })?,
                )
            }
        };
        let is_busy = match predicate.pins() {
            None => {
                self.passes += usize::from(self.pass.as_ref() != Some(text));
                self.pass = Some(text.clone());
                if self.passes > PASSES_MAX {
                    return Err(FinalityRefusal::TooMany { place });
                }
                work.predicates() + self.on_its_way.passes.len() + self.passes > PASSES_MAX
            }
            Some(pins) => pins.iter().any(|pin| work.followings(keys.hash(pin)) >= PASSES_MAX),
        };
        if is_busy {
            return Err(FinalityRefusal::Busy { place });
        }
        let floor = blocks.floor();
        // Whether it undoes an event, of these kinds, that is known to this registry.
        let look = |event: &EventRef<'_>, registry: &Registry, kinds, steps: &mut Steps| {
            steps.take(4 + predicate.cost() as usize)?;
            let matched = event.collect.is_some_and(|collect| {
                kind(collect) & kinds != 0 && !is_vacuous(event, collect) && predicate.holds(event)
            });
            if matched && !registry.is_implied(&predicate, event, steps)? {
                return Err(FinalityRefusal::Undoes { place, earlier: event.seq, why: NOT_IMPLIED });
            }
            Ok(())
        };
        let open = self.fresh.open_kinds(&predicate, held, steps)?;
        let mut cursor = self.batch.cursor();
        while open != 0
            && let Some(event) = cursor.next()?.filter(|event| event.seq < seq)
        {
            look(&event, &self.fresh, open, steps)?;
        }
        let open = on_its_way.open_kinds(&predicate, held, steps)?;
        let mut runs = on_its_way.runs(held).filter(|run| run.kinds & open != 0).peekable();
        for batch in self.unsettled.clone() {
            while runs.next_if(|run| run.last <= batch.after).is_some() {}
            let Some(run) = runs.peek() else { break };
            steps.take(1)?;
            let mut cursor = batch.cursor();
            while run.first <= batch.last
                && let Some(event) = cursor.next()?
            {
                look(&event, on_its_way, open, steps)?;
            }
        }
        let open = registry.open_kinds(&predicate, floor, steps)?;
        if open == 0 {
            return Ok(());
        }
        for key in predicate.pins().unwrap_or_default() {
            let one;
            let numbers = match keys.entry(keys.hash(key)) {
                None => continue,
                Some(KeyEntry::One(seq)) => {
                    one = [seq];
                    &one[..]
                }
                Some(KeyEntry::Many(list)) => keys.list(list),
            };
            for &seq in numbers {
                steps.take(FIND)?;
                blocks.with(seq, |event| look(event, registry, open, steps)).unwrap_or(Ok(()))?;
            }
        }
        if predicate.pins().is_some() {
            return Ok(());
        }
        for run in registry.runs(floor).filter(|run| run.kinds & open != 0) {
            let mut result = Ok(());
            blocks.all(run.first.saturating_sub(1), run.last, |event| {
                result = look(event, registry, open, steps);
                result.is_ok()
            });
            result?;
        }
        Ok(())
    }
}
