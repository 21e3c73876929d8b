//! One stream in one replica: what all replicas hold, and what is on its way down the chain.
//!
//! Only what all replicas hold enters the history. So a garbage collection takes effect only when it can't be
//! lost any more, and a replica that was removed from the chain forgets what is on its way by dropping it.

use std::collections::VecDeque;

use crate::batch::{Batch, MalformedBatch};
use crate::event::Collect;
use crate::history::{Budget, FinalityRefusal, Gap, History, HistoryOptions, OnItsWay};
use crate::limits::UNSETTLED_BYTES_MAX;
use crate::message::Origin;
use crate::replica::publishers::Publishers;
use crate::replica::readers::ReaderLags;

/// Events on their way.
#[derive(Clone, Debug)]
pub struct Unsettled {
    /// The events.
    pub batch: Batch,
    /// Who published them, if it was in this region.
    pub origin: Option<Origin>,
    /// How they collect.
    pub collects: Collects,
}

/// How a batch's events collect others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collects {
    /// Some do by key.
    pub by_key: bool,
    /// Some do in another way.
    pub otherwise: bool,
    /// Some of those by age or by predicate.
    pub slow: bool,
}

/// What a batch on its way takes besides its events, about.
pub(super) const UNSETTLED_BYTES: usize = 128;

impl Collects {
    /// Of a batch that nobody has looked at.
    pub const UNKNOWN: Self = Self { by_key: true, otherwise: true, slow: true };

    /// Whether any does.
    pub fn any(self) -> bool {
        self.by_key || self.otherwise
    }

    fn of(batch: &Batch) -> Result<Self, MalformedBatch> {
        let mut collects = Self { by_key: false, otherwise: false, slow: false };
        let mut cursor = batch.cursor();
        while let Some((event, _)) = cursor.next_alike(u32::MAX)? {
            match event.collect {
                None => {}
                Some(Collect::SameKey) => collects.by_key = true,
                Some(Collect::KeepLast(_) | Collect::Before(_)) => collects.otherwise = true,
                Some(Collect::OlderThan(_) | Collect::Matching(_)) => {
                    (collects.otherwise, collects.slow) = (true, true);
                }
            }
        }
        Ok(collects)
    }
}

impl Unsettled {
    /// The part with greater numbers than `after`. (A publisher's events carry no tombstones, so what is cut off
    /// is as many of its own numbers.)
    fn rest(&self, after: u64) -> Option<Self> {
        let batch = self.batch.rest(after).ok()??;
        let origin = self.origin.map(|o| Origin { first: o.first + (batch.after - self.batch.after), ..o });
        Some(Self { batch, origin, collects: self.collects })
    }

    fn up_to(&self, last: u64) -> Option<Self> {
        Some(Self { batch: self.batch.up_to(last).ok()??, ..self.clone() })
    }
}

/// A stream.
#[derive(Debug)]
pub struct StreamState {
    /// What all replicas hold.
    pub history: History,
    /// Who has published in it, if it belongs to this region.
    pub publishers: Publishers,
    unsettled: VecDeque<Unsettled>,
    unsettled_bytes: usize,
    /// How many of these have events that collect otherwise than by key.
    otherwise: usize,
    /// What is known of these, or of the first of them.
    on_its_way: OnItsWay,
    /// Up to this number retention removes, also what is not in the history yet.
    removes: u64,
    /// Bytes of all events that it settled so far.
    pub(super) settled_bytes: u64,
    /// Those that the tail feeds.
    pub(super) readers: ReaderLags,
}

impl StreamState {
    /// An empty one.
    pub fn new(options: HistoryOptions) -> Self {
        Self {
            history: History::new(options),
            publishers: Publishers::default(),
            unsettled: VecDeque::new(),
            unsettled_bytes: 0,
            otherwise: 0,
            on_its_way: OnItsWay::default(),
            removes: 0,
            settled_bytes: 0,
            readers: ReaderLags::default(),
        }
    }

    /// The last number that this replica has.
    pub fn last(&self) -> u64 {
        self.unsettled.back().map_or_else(|| self.history.last(), |entry| entry.batch.last)
    }

    /// The last number that all replicas have.
    pub fn held(&self) -> u64 {
        self.history.last()
    }

    /// The time of the last event that this replica has, or a later one: the next event gets none before it. The last
    /// event is never collected, so whoever becomes the head knows it, whatever it was told of those before.
    pub fn time_ms(&self) -> u64 {
        let held = self.history.time_ms();
        // One without events says nothing: it stands for some that were collected.
        let newest = self.unsettled.iter().rev().find(|entry| entry.batch.count > 0);
        let Some(newest) = newest else { return held };
        let mut time_ms = held.max(newest.batch.state.time_ms);
        // What was published has one time; what came out of another one's history may have many.
        let mut cursor = newest.batch.cursor();
        while newest.origin.is_none()
            && let Ok(Some((event, _))) = cursor.next_alike(u32::MAX)
        {
            time_ms = time_ms.max(event.time_ms);
        }
        time_ms
    }

    /// What is on its way, in order.
    pub fn unsettled(&self) -> impl Iterator<Item = &Unsettled> {
        self.unsettled.iter()
    }

    /// Whether so much is on its way down the chain that publishers have to try again later.
    pub fn is_full(&self) -> bool {
        self.unsettled_bytes > UNSETTLED_BYTES_MAX
    }

    /// Bytes of encoded events that it has, those on their way among them, and of the index of their keys: of small
    /// events that is most of the memory they take.
    pub fn bytes(&self) -> u64 {
        self.history.bytes() + self.history.index_bytes() + self.unsettled_bytes as u64
    }

    /// Whether so little is on its way that it is worth to ask another region for more again.
    pub fn has_room(&self) -> bool {
        self.unsettled_bytes <= UNSETTLED_BYTES_MAX / 2
    }

    /// Whether the head may give these events the numbers that they carry, which follow [`StreamState::last`].
    ///
    /// The history knows what is settled. What is on its way is looked at as well where it can make a difference: for a
    /// stream whose events collect by key only, or by number only, it can't. Steps are taken from the budget.
    pub fn admit(&mut self, batch: &Batch, budget: &mut Budget) -> Result<Collects, FinalityRefusal> {
        let collects = Collects::of(batch)?;
        let last = self.last();
        let nothing = OnItsWay::default();
        let mut on_its_way = &nothing;
        if collects.slow || (collects.by_key && (self.otherwise > 0 || collects.otherwise)) {
            let seen = self.on_its_way.seen();
            let new = self.unsettled.partition_point(|entry| entry.batch.last <= seen);
            for entry in self.unsettled.range(new..) {
                self.on_its_way.see(&self.history, &entry.batch, budget)?;
            }
            on_its_way = &self.on_its_way;
        }
        let unsettled = self.unsettled.iter().map(|entry| &entry.batch);
        match self.history.admit_behind(on_its_way, unsettled, (last, batch), budget) {
            Err(FinalityRefusal::TooMany { place }) if !self.unsettled.is_empty() => {
                // What is on its way took a part of the steps. Is it too many for the history alone, it is so later as
                // well.
                let mut alone = Budget::default();
                let none = std::iter::empty();
                let admitted = self.history.admit_behind(&nothing, none, (last, batch), &mut alone);
                budget.takes_as(&alone);
                admitted?;
                Err(FinalityRefusal::Spent { place })
            }
            admitted => admitted.map(|()| collects),
        }
    }

    /// Takes the part of `batch` that it does not have yet; answers whether there was any. Refuses a gap.
    pub fn store(&mut self, batch: &Batch, origin: Option<Origin>, collects: Collects) -> Result<bool, Gap> {
        let last = self.last();
        if batch.last <= last {
            return Ok(false);
        }
        if batch.after > last {
            return Err(Gap { after: batch.after, last });
        }
        let Some(new) = (Unsettled { batch: batch.clone(), origin, collects }).rest(last) else {
            return Ok(false);
        };
        if let Some(origin) = new.origin {
            self.publishers.stored(origin.client, origin.first + u64::from(new.batch.count) - 1);
        }
        self.unsettled_bytes += new.batch.bytes.len() + UNSETTLED_BYTES;
        self.otherwise += usize::from(new.collects.otherwise);
        self.unsettled.push_back(new);
        Ok(true)
    }

    /// Of each batch on its way that begins before `held`, the time of its first event.
    pub fn times_up_to(&self, held: u64) -> impl Iterator<Item = u64> {
        let batches = self.unsettled.iter().map(|entry| &entry.batch);
        batches.take_while(move |batch| batch.after < held).map(|batch| batch.state.time_ms)
    }

    /// All replicas hold it up to `held`.
    pub fn settle(&mut self, held: u64) {
        while self.unsettled.front().is_some_and(|entry| entry.batch.after < held) {
            let Some(entry) = self.unsettled.pop_front() else { return };
            self.unsettled_bytes -= entry.batch.bytes.len() + UNSETTLED_BYTES;
            self.otherwise -= usize::from(entry.collects.otherwise);
            let Some(now) = entry.up_to(held) else { return };
            if let Some(later) = entry.rest(held) {
                self.unsettled_bytes += later.batch.bytes.len() + UNSETTLED_BYTES;
                self.otherwise += usize::from(later.collects.otherwise);
                self.unsettled.push_front(later);
            }
            if let Some(origin) = now.origin {
                self.publishers.settle(origin.client, origin.first + u64::from(now.batch.count) - 1);
            }
            self.settled_bytes += (now.batch.bytes.len() + UNSETTLED_BYTES) as u64;
            let appended = self.history.append(&now.batch);
            debug_assert!(appended.is_ok(), "{appended:?}");
        }
        self.history.remove(self.removes);
        self.on_its_way.settled(self.history.last());
    }

    /// Retention removes all up to a number; what of that is on its way, once it is settled. Answers how many events
    /// went that nothing had collected, or `None` if it was said before.
    pub fn remove(&mut self, up_to: u64) -> Option<u64> {
        if up_to <= self.removes.max(self.history.removed()) {
            return None;
        }
        self.removes = up_to;
        Some(self.history.remove(up_to))
    }

    /// Numbers that are not in the history may be given to other events from here on: what was said of them is
    /// forgotten.
    pub fn forget_removes(&mut self) {
        self.removes = self.history.removed();
    }

    /// What is stored from here on comes from a replica that has applied the predicates up to number `last`, as it
    /// gives it to the replica behind.
    pub fn applied_elsewhere(&mut self, last: u64) {
        self.history.applied_elsewhere(self.last(), last);
    }

    /// What follows `after`, for the replica behind: from the history what all hold, then what is on its way.
    pub fn next_after(&self, after: u64, bytes_max: usize) -> Option<Unsettled> {
        if after < self.held() {
            let batch = self.history.read_live(after, u64::MAX, bytes_max)?;
            return Some(Unsettled { batch, origin: None, collects: Collects::UNKNOWN });
        }
        let at = self.unsettled.partition_point(|entry| entry.batch.last <= after);
        self.unsettled.get(at)?.rest(after)
    }

    /// Forgets what is on its way.
    pub fn forget_unsettled(&mut self) {
        self.unsettled.clear();
        self.unsettled_bytes = 0;
        self.otherwise = 0;
        self.on_its_way = OnItsWay::default();
        self.publishers.unsettle();
        self.forget_removes();
        // Others may give what comes next.
        self.history.applied_elsewhere(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Content, Writer};

    #[test]
    fn what_an_admission_takes_does_not_grow_with_what_is_on_its_way() {
        let mut stream = StreamState::new(HistoryOptions::default());
        let mut budget = Budget::default();
        for n in 0..1_000u64 {
            let mut events = Writer::new(2 * n);
            let key = Some(Bytes::from(n.to_string()));
            let content = Content { key, ..Content::default() };
            events.publish(&content, Some(&Collect::SameKey)).unwrap();
            events.publish(&Content::default(), Some(&Collect::OlderThan(5))).unwrap();
            let (batch, before) = (events.finish(0), budget.taken());
            let collects = stream.admit(&batch, &mut budget).unwrap();
            assert!(budget.taken() - before < 10, "{n}: {}", budget.taken() - before);
            stream.store(&batch, None, collects).unwrap();
        }
    }

    #[test]
    fn the_time_of_the_last_event_is_known_also_while_it_is_on_its_way() {
        let mut stream = StreamState::new(HistoryOptions::default());
        let events = |after, time_ms| {
            let mut writer = Writer::new(after);
            (0..2).for_each(|_| writer.publish(&Content::default(), None).unwrap());
            let mut batch = writer.finish(0);
            batch.state.time_ms = time_ms;
            batch
        };
        // As another one's history has them.
        let two = Batch::joined(&[events(0, 1000), events(2, 2000)]).unwrap();
        assert_eq!(stream.store(&two, None, Collects::UNKNOWN), Ok(true));
        assert_eq!(stream.time_ms(), 2000);
        // What follows them there was collected, up to where what was read together ends.
        assert_eq!(stream.store(&Writer::new(4).finish(9), None, Collects::UNKNOWN), Ok(true));
        assert_eq!(stream.time_ms(), 2000);
        stream.settle(9);
        assert_eq!(stream.time_ms(), 2000);
        let origin = Some(Origin { client: 5, first: 1 });
        assert_eq!(stream.store(&events(9, 3000), origin, Collects::UNKNOWN), Ok(true));
        assert_eq!(stream.time_ms(), 3000);
        stream.forget_unsettled();
        assert_eq!(stream.time_ms(), 2000);
    }

    #[test]
    fn whether_too_much_is_to_be_looked_at_for_ever_or_for_now_is_told_apart_while_something_is_on_its_way() {
        let events = |after: u64, count: u64, collect: Option<&Collect>| {
            let mut writer = Writer::new(after);
            for n in after..after + count {
                let key = Some(Bytes::from(n.to_string()));
                writer.publish(&Content { key, ..Content::default() }, collect).unwrap();
            }
            writer.finish(0)
        };
        let admitted = |stream: &mut StreamState| {
            let collect = Collect::Matching(Bytes::from_static(b"header.n = \"1\""));
            stream.admit(&events(stream.last(), 1, Some(&collect)), &mut Budget::default())
        };
        let mut stream = StreamState::new(HistoryOptions::default());
        let many = events(0, 20_000, Some(&Collect::SameKey));
        assert_eq!(stream.store(&many, None, Collects::UNKNOWN), Ok(true));
        assert!(matches!(admitted(&mut stream), Err(FinalityRefusal::Spent { place: 0 })));
        stream.settle(20_000);
        assert!(matches!(admitted(&mut stream), Err(FinalityRefusal::TooMany { place: 0 })));
        assert_eq!(stream.store(&events(20_000, 1, None), None, Collects::UNKNOWN), Ok(true));
        assert!(matches!(admitted(&mut stream), Err(FinalityRefusal::TooMany { place: 0 })));
    }

    #[test]
    fn what_a_batch_collects_by_number_and_then_by_key_is_admitted_with_its_own_numbers() {
        let mut stream = StreamState::new(HistoryOptions::default());
        let key = Some(Bytes::from_static(b"k"));
        let content = Content { key, ..Content::default() };
        let mut plain = Writer::new(0);
        (0..100).for_each(|_| plain.publish(&Content::default(), None).unwrap());
        let plain = plain.finish(0);
        let collects = stream.admit(&plain, &mut Budget::default()).unwrap();
        assert_eq!(stream.store(&plain, None, collects), Ok(true));
        let mut both = Writer::new(100);
        both.publish(&content, Some(&Collect::KeepLast(50))).unwrap();
        both.publish(&content, Some(&Collect::SameKey)).unwrap();
        // The first of them collects 50 events, for which the second would leave no reason.
        assert!(matches!(
            stream.admit(&both.finish(0), &mut Budget::default()),
            Err(FinalityRefusal::Undoes { .. })
        ));
    }
}
