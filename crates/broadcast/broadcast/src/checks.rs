//! The guarantees of section 2.1 as checks that run: of what one client was delivered, against what was
//! published. The tests of the history, the simulator and the tests against real processes use them.
//!
//! - Order, no gaps, no repetitions: each event begins with the number after the last one's.
//! - Only what was published: a data or garbage-collection event is the published one, time included.
//! - Tombstones are explained: each number that a tombstone covers is matched by a garbage-collection event
//!   that was delivered later. (While a stream goes on that may be still to come; a client that has got the
//!   stream's last event has got all explanations, since the last event is never collected.)
//! - What retention removed needs no explanation: a client that had not got it yet is told of it, and of nothing else.
//! - Garbage collection is final: what has been matched once is matched, from then on at any time, by an event
//!   that is not matched itself.
//!
//! Everything is evaluated directly on the published events, with none of the history's index, floors or
//! marks; a check of all that one client got takes time in proportion to it.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_env::HashSet;

use crate::event::{Collect, Event, Kind};
use crate::predicate::Predicate;

/// A stream as it was published, from number 1.
#[derive(Clone, Debug, Default)]
pub struct Published {
    events: Vec<Event>,
    /// Up to this number retention removed them.
    removed: u64,
}

/// What a client must not see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckViolation {
    /// Something is missing, came twice or in another order.
    #[error("after number {at} came an event that covers ({after}, {seq}]")]
    OutOfOrder {
        /// The last number delivered.
        at: u64,
        /// What the event covers.
        after: u64,
        /// Its number.
        seq: u64,
    },
    /// An event was delivered that nobody published, or with another content.
    #[error("event {seq} is not what was published under that number")]
    NotPublished {
        /// Its number.
        seq: u64,
    },
    /// A tombstone covers an event that no garbage-collection event delivered later matches.
    #[error("event {seq} was replaced by a tombstone, but nothing that came later collects it")]
    Unexplained {
        /// The number of the event that is missed.
        seq: u64,
    },
    /// A client was told that something was removed which was not.
    #[error("a client was told that retention removed events up to {up_to}, and it did up to {removed}")]
    NotRemoved {
        /// What it was told.
        up_to: u64,
        /// What is so.
        removed: u64,
    },
    /// A collection was undone.
    #[error("event {seq} was collected, but what collected it was removed by something that does not")]
    Undone {
        /// The number of the event that would come back.
        seq: u64,
    },
}

impl Published {
    /// Adds the next event.
    ///
    /// # Panics
    /// If it is a tombstone or has not the next number.
    pub fn push(&mut self, event: Event) {
        assert!(!event.is_tombstone() && event.seq == self.last() + 1, "published events are numbered");
        self.events.push(event);
    }

    /// The number of the last one.
    pub fn last(&self) -> u64 {
        self.events.len() as u64
    }

    /// The event with a number.
    pub fn get(&self, seq: u64) -> Option<&Event> {
        self.events.get(usize::try_from(seq.checked_sub(1)?).ok()?)
    }

    /// Retention removed them up to a number.
    pub fn remove(&mut self, up_to: u64) {
        self.removed = self.removed.max(up_to);
    }

    /// Up to this number retention removed them.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// The numbers of those that no later one matches, and retention did not remove: what a history has to store.
    pub fn live(&self) -> Vec<u64> {
        let mut later = Collections::default();
        let mut live = Vec::new();
        for event in self.events.iter().skip(self.removed as usize).rev() {
            if !later.matches(event) {
                live.push(event.seq);
            }
            later.add(event);
        }
        live.reverse();
        live
    }

    /// That garbage collection is final, for a stream that ends with the number `last`. What was removed does not come
    /// back, whatever becomes of what had collected it.
    pub fn check_final(&self, last: u64) -> Result<(), CheckViolation> {
        let (mut all, mut live) = (Collections::default(), Collections::default());
        for event in self.events[..last as usize].iter().skip(self.removed as usize).rev() {
            if !all.matches(event) {
                live.add(event);
            } else if !live.matches(event) {
                return Err(CheckViolation::Undone { seq: event.seq });
            }
            all.add(event);
        }
        Ok(())
    }
}

/// What a number of garbage-collection events match, of the events before all of them.
#[derive(Clone, Debug, Default)]
pub struct Collections {
    before: u64,
    older_than_ms: u64,
    keys: HashSet<Bytes>,
    /// By text, so that each is parsed once.
    predicates: BTreeMap<Bytes, Predicate>,
}

impl Collections {
    /// Adds what an event collects.
    pub fn add(&mut self, event: &Event) {
        let Kind::Collection(content, collect) = &event.kind else { return };
        match collect {
            Collect::SameKey => self.keys.extend(content.key.clone()),
            Collect::KeepLast(n) => self.before = self.before.max(event.seq.saturating_sub(*n)),
            Collect::Before(seq) => self.before = self.before.max(*seq),
            Collect::OlderThan(time_ms) => self.older_than_ms = self.older_than_ms.max(*time_ms),
            Collect::Matching(text) => {
                if !self.predicates.contains_key(text)
                    && let Ok(predicate) = Predicate::parse(text)
                {
                    self.predicates.insert(text.clone(), predicate);
                }
            }
        }
    }

    /// Whether one of them matches an event, which is before all of them.
    pub fn matches(&self, event: &Event) -> bool {
        event.seq < self.before
            || event.time_ms < self.older_than_ms
            || event
                .content()
                .and_then(|content| content.key.as_ref())
                .is_some_and(|key| self.keys.contains(key))
            || self.predicates.values().any(|predicate| predicate.holds(event))
    }
}

/// One client of a stream, and what it was delivered.
#[derive(Clone, Debug)]
pub struct Observer {
    at: u64,
    /// What tombstones covered: (after, last].
    tombstones: Vec<(u64, u64)>,
    start: u64,
    /// It was told that up to here events were removed before it got them.
    removed: u64,
}

impl Observer {
    /// A client that begins with the number after `after`.
    pub fn new(after: u64) -> Self {
        Self { at: after, tombstones: Vec::new(), start: after, removed: 0 }
    }

    /// The last number that was delivered to it.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// How many of the events it got as tombstones.
    pub fn missed(&self) -> u64 {
        self.tombstones.iter().map(|(after, last)| last - after).sum()
    }

    /// Up to this number it was told that events were removed before it got them.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// It is told that retention removed events up to a number before it got them.
    pub fn told_removed(&mut self, published: &Published, up_to: u64) -> Result<(), CheckViolation> {
        let removed = published.removed;
        if up_to <= self.at || up_to > removed {
            return Err(CheckViolation::NotRemoved { up_to, removed });
        }
        self.removed = self.removed.max(up_to);
        Ok(())
    }

    /// Takes the next event that was delivered.
    pub fn deliver(&mut self, published: &Published, event: &Event) -> Result<(), CheckViolation> {
        let (range, seq) = (event.range, event.seq);
        if range == 0 || seq.checked_sub(range) != Some(self.at) || (range > 1 && !event.is_tombstone()) {
            let after = seq.saturating_sub(range);
            return Err(CheckViolation::OutOfOrder { at: self.at, after, seq });
        }
        match published.get(seq) {
            None => return Err(CheckViolation::NotPublished { seq }),
            Some(original) if !event.is_tombstone() && original != event => {
                return Err(CheckViolation::NotPublished { seq });
            }
            Some(_) => {}
        }
        if event.is_tombstone() {
            match self.tombstones.last_mut() {
                Some((_, last)) if *last == self.at => *last = seq,
                _ => self.tombstones.push((self.at, seq)),
            }
        }
        self.at = seq;
        Ok(())
    }

    /// That all tombstones are explained, where nothing more will come: the client has got the last event.
    pub fn finish(&self, published: &Published) -> Result<(), CheckViolation> {
        let mut later = Collections::default();
        let mut tombstones = self.tombstones.iter().rev().peekable();
        for seq in (self.start + 1..=self.at).rev() {
            while tombstones.next_if(|(after, _)| seq <= *after).is_some() {}
            let Some(event) = published.get(seq) else { return Err(CheckViolation::NotPublished { seq }) };
            if !tombstones.peek().is_some_and(|(after, last)| *after < seq && seq <= *last) {
                later.add(event);
            } else if seq > self.removed && !later.matches(event) {
                return Err(CheckViolation::Unexplained { seq });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Content;

    fn event(seq: u64, key: &'static str, collect: Option<Collect>) -> Event {
        let content = Content { key: Some(Bytes::from_static(key.as_bytes())), ..Content::default() };
        let kind = match collect {
            None => Kind::Data(content),
            Some(collect) => Kind::Collection(content, collect),
        };
        Event { seq, range: 1, time_ms: seq * 1_000, kind }
    }

    fn tombstone(seq: u64, range: u64) -> Event {
        Event { seq, range, time_ms: 0, kind: Kind::Tombstone }
    }

    fn published(events: &[(&'static str, Option<Collect>)]) -> Published {
        let mut published = Published::default();
        (1..).zip(events).for_each(|(seq, (key, collect))| published.push(event(seq, key, collect.clone())));
        published
    }

    /// What is wrong with what an observer was delivered, if anything is.
    fn wrong(published: &Published, delivered: &[Event]) -> Option<CheckViolation> {
        let mut observer = Observer::new(0);
        let told = delivered.iter().try_for_each(|event| observer.deliver(published, event));
        told.and_then(|()| observer.finish(published)).err()
    }

    #[test]
    fn what_is_missing_comes_twice_or_in_another_order_is_found() {
        let published = published(&[("a", None), ("b", None), ("a", Some(Collect::SameKey))]);
        let [one, two, three] = [1, 2, 3].map(|seq| published.get(seq).unwrap().clone());
        let all = [one.clone(), two.clone(), three.clone()];
        assert_eq!(wrong(&published, &all), None);
        assert_eq!(wrong(&published, &[tombstone(1, 1), two.clone(), three.clone()]), None);
        for (delivered, at, after, seq) in [
            (vec![two.clone()], 0, 1, 2),
            (vec![one.clone(), one.clone()], 1, 0, 1),
            (vec![one.clone(), three], 1, 2, 3),
            (vec![one, tombstone(2, 2)], 1, 0, 2),
            (vec![tombstone(1, 0)], 0, 1, 1),
            (vec![tombstone(1, 2)], 0, 0, 1),
            (vec![Event { range: 2, ..two }], 0, 0, 2),
        ] {
            assert_eq!(wrong(&published, &delivered), Some(CheckViolation::OutOfOrder { at, after, seq }));
        }
    }

    #[test]
    fn what_nobody_published_is_found() {
        let published = published(&[("a", None)]);
        let one = published.get(1).unwrap().clone();
        for delivered in [
            vec![event(1, "b", None)],
            vec![event(1, "a", Some(Collect::SameKey))],
            vec![Event { time_ms: 1_001, ..one.clone() }],
        ] {
            assert_eq!(wrong(&published, &delivered), Some(CheckViolation::NotPublished { seq: 1 }));
        }
        for beyond in [event(2, "a", None), tombstone(2, 1)] {
            let delivered = [one.clone(), beyond];
            assert_eq!(wrong(&published, &delivered), Some(CheckViolation::NotPublished { seq: 2 }));
        }
    }

    #[test]
    fn a_tombstone_that_nothing_delivered_later_explains_is_found() {
        let collects = |collect| published(&[("a", None), ("b", None), ("a", Some(collect)), ("c", None)]);
        for (collect, unexplained) in [
            (Collect::SameKey, Some(2)),
            (Collect::KeepLast(0), None),
            (Collect::KeepLast(1), Some(2)),
            (Collect::Before(2), Some(2)),
            (Collect::Before(3), None),
            (Collect::OlderThan(2_000), Some(2)),
            (Collect::OlderThan(2_001), None),
            (Collect::Matching(Bytes::from_static(b"key = \"a\"")), Some(2)),
            (Collect::Matching(Bytes::from_static(b"seq < 9")), None),
        ] {
            let published = collects(collect.clone());
            let [three, four] = [3, 4].map(|seq| published.get(seq).unwrap().clone());
            let found = wrong(&published, &[tombstone(2, 2), three, four.clone()]);
            assert_eq!(found, unexplained.map(|seq| CheckViolation::Unexplained { seq }), "{collect:?}");
            // What collects them is collected by nothing that is there.
            let found = wrong(&published, &[tombstone(3, 3), four]);
            assert_eq!(found, Some(CheckViolation::Unexplained { seq: 3 }), "{collect:?}");
        }
    }

    #[test]
    fn what_was_removed_needs_no_explanation_for_whoever_was_told_and_who_was_told_too_much_is_found() {
        let mut published = published(&[("a", None), ("b", None), ("c", None)]);
        let three = published.get(3).unwrap().clone();
        published.remove(2);
        for told in [None, Some(1), Some(2), Some(3)] {
            let mut observer = Observer::new(0);
            let is_told = told.map_or(Ok(()), |up_to| observer.told_removed(&published, up_to));
            let found = is_told
                .and_then(|()| observer.deliver(&published, &tombstone(2, 2)))
                .and_then(|()| observer.deliver(&published, &three))
                .and_then(|()| observer.finish(&published));
            let wanted = match told {
                None | Some(1) => Err(CheckViolation::Unexplained { seq: 2 }),
                Some(3) => Err(CheckViolation::NotRemoved { up_to: 3, removed: 2 }),
                _ => Ok(()),
            };
            assert_eq!(found, wanted, "{told:?}");
        }
        let mut observer = Observer::new(2);
        assert!(observer.told_removed(&published, 2).is_err(), "it had them");
    }

    #[test]
    fn a_collection_that_another_one_undoes_is_found() {
        let first = Some(Collect::Matching(Bytes::from_static(b"key = \"a\"")));
        let events = |last: Collect| published(&[("a", None), ("b", first.clone()), ("b", Some(last))]);
        let undone = Err(CheckViolation::Undone { seq: 1 });
        for (last, checked) in [
            (Collect::SameKey, undone.clone()),
            (Collect::Matching(Bytes::from_static(b"key = \"b\"")), undone),
            (Collect::Before(3), Ok(())),
            (Collect::Before(2), Ok(())),
            (Collect::Matching(Bytes::from_static(b"key = \"c\"")), Ok(())),
        ] {
            let published = events(last.clone());
            assert_eq!(published.check_final(3), checked, "{last:?}");
            assert_eq!(published.check_final(2), Ok(()), "it is not there yet");
        }
    }
}
