//! The guarantees of section 2.1 as checks that run: of what one client was delivered, against what was
//! published. The tests of the history, the simulator and the tests against real processes use them.
//!
//! - Order, no gaps, no repetitions: each event begins with the number after the last one's.
//! - Only what was published: a data or garbage-collection event is the published one, time included.
//! - Tombstones are explained: each number that a tombstone covers is matched by a garbage-collection event
//!   that was delivered later. (While a stream goes on that may be still to come; a client that has got the
//!   stream's last event has got all explanations, since the last event is never collected.)
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
}

/// What a client must not see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
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

    /// The numbers of those that no later one matches: what a history has to store.
    pub fn live(&self) -> Vec<u64> {
        let mut later = Collections::default();
        let mut live = Vec::new();
        for event in self.events.iter().rev() {
            if !later.matches(event) {
                live.push(event.seq);
            }
            later.add(event);
        }
        live.reverse();
        live
    }

    /// That garbage collection is final, for a stream that ends with the number `last`.
    pub fn check_final(&self, last: u64) -> Result<(), Violation> {
        let (mut all, mut live) = (Collections::default(), Collections::default());
        for event in self.events[..last as usize].iter().rev() {
            if !all.matches(event) {
                live.add(event);
            } else if !live.matches(event) {
                return Err(Violation::Undone { seq: event.seq });
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
}

impl Observer {
    /// A client that begins with the number after `after`.
    pub fn new(after: u64) -> Self {
        Self { at: after, tombstones: Vec::new(), start: after }
    }

    /// The last number that was delivered to it.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// How many of the events it got as tombstones.
    pub fn missed(&self) -> u64 {
        self.tombstones.iter().map(|(after, last)| last - after).sum()
    }

    /// Takes the next event that was delivered.
    pub fn deliver(&mut self, published: &Published, event: &Event) -> Result<(), Violation> {
        let (range, seq) = (event.range, event.seq);
        if range == 0 || seq.checked_sub(range) != Some(self.at) || (range > 1 && !event.is_tombstone()) {
            let after = seq.saturating_sub(range);
            return Err(Violation::OutOfOrder { at: self.at, after, seq });
        }
        match published.get(seq) {
            None => return Err(Violation::NotPublished { seq }),
            Some(original) if !event.is_tombstone() && original != event => {
                return Err(Violation::NotPublished { seq });
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
    pub fn finish(&self, published: &Published) -> Result<(), Violation> {
        let mut later = Collections::default();
        let mut tombstones = self.tombstones.iter().rev().peekable();
        for seq in (self.start + 1..=self.at).rev() {
            while tombstones.next_if(|(after, _)| seq <= *after).is_some() {}
            let Some(event) = published.get(seq) else { return Err(Violation::NotPublished { seq }) };
            if !tombstones.peek().is_some_and(|(after, last)| *after < seq && seq <= *last) {
                later.add(event);
            } else if !later.matches(event) {
                return Err(Violation::Unexplained { seq });
            }
        }
        Ok(())
    }
}
