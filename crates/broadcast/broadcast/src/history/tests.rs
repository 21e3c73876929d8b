//! The history against a model that keeps everything and evaluates every collection directly.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::checks::{Observer, Published};
use crate::replica::stream::StreamState;
use crate::{Content, Writer};

/// What to publish next: its key, what it collects, by how much the clock moves, and whether it begins a batch.
type Step = (Option<u8>, Option<Collect>, i64, bool);

fn step() -> impl Strategy<Value = Step> {
    let collect = prop_oneof![
        4 => Just(None),
        4 => Just(Some(Collect::SameKey)),
        1 => (0..40u64).prop_map(|n| Some(Collect::KeepLast(n))),
        1 => (0..200u64).prop_map(|n| Some(Collect::Before(n))),
        1 => (900..1400u64).prop_map(|time_ms| Some(Collect::OlderThan(time_ms))),
        2 => predicate().prop_map(|text| Some(Collect::Matching(text.into()))),
    ];
    let clock = prop_oneof![8 => 0..10i64, 1 => -40..0i64];
    (proptest::option::weighted(0.8, 0..12u8), collect, clock, proptest::bool::weighted(0.3))
}

/// Predicates about the keys, headers, numbers and times that the other steps make.
fn predicate() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..12u8).prop_map(|key| format!("key = \"key-{key}\"")),
        (0..12u8, 0..12u8).prop_map(|(a, b)| format!("key in (\"key-{a}\", \"key-{b}\")")),
        (0..12u8, 0..3u8).prop_map(|(key, n)| format!("key = \"key-{key}\" and header.n = \"{n}\"")),
        (0..200u64).prop_map(|seq| format!("seq < {seq}")),
        (0..3u8).prop_map(|n| format!("header.n = \"{n}\"")),
        (0..3u8, 0..200u64).prop_map(|(n, seq)| format!("header.n = \"{n}\" and seq <= {seq}")),
        (900..1400u64).prop_map(|time_ms| format!("time < {time_ms}")),
        Just("key starts with \"key-1\"".to_owned()),
        Just("key is missing".to_owned()),
        Just("key is missing or key > \"key-5\" or seq < 5".to_owned()),
    ]
}

/// A head: it admits and appends what is published, and leaves out what it refuses.
struct Head {
    history: History,
    published: Published,
    refused: Vec<FinalityRefusal>,
}

impl Head {
    fn new() -> Self {
        Self {
            history: History::new(HistoryOptions { seed: 7 }),
            published: Published::default(),
            refused: Vec::new(),
        }
    }

    fn publish(&mut self, events: &[Event], time_ms: u64) -> bool {
        let mut writer = Writer::new(self.history.last());
        for (content, collect) in events {
            writer.publish(content, collect.as_ref()).unwrap();
        }
        let mut batch = writer.finish(0);
        batch.state.time_ms = time_ms.max(self.history.time_ms());
        batch.check().unwrap();
        if let Err(refusal) = self.history.admit(&batch) {
            self.refused.push(refusal);
            return false;
        }
        for event in batch.events() {
            self.published.push(event.unwrap());
        }
        self.history.append(&batch).unwrap();
        true
    }

    /// What a client that begins after a number gets; checked.
    fn listen(&self, after: u64, bytes_max: usize) -> Observer {
        let mut observer = Observer::new(after);
        while let Some(batch) = self.history.read(observer.at(), u64::MAX, bytes_max) {
            batch.check().unwrap();
            assert_eq!(batch.after, observer.at());
            if batch.removed > 0 {
                observer.told_removed(&self.published, batch.removed).unwrap();
            }
            for event in batch.events() {
                observer.deliver(&self.published, &event.unwrap()).unwrap();
            }
        }
        assert_eq!(observer.at(), self.history.last());
        observer.finish(&self.published).unwrap();
        let removed = self.history.removed();
        assert_eq!(observer.removed(), if after < removed { removed } else { 0 });
        observer
    }

    /// Another one takes over, with what it read from this one.
    fn taken_over(&mut self, bytes_max: usize) {
        let mut other = History::new(HistoryOptions { seed: 9 });
        while let Some(batch) = self.history.read(other.last(), u64::MAX, bytes_max) {
            other.append(&batch).unwrap();
        }
        assert_eq!((other.last(), other.time_ms()), (self.history.last(), self.history.time_ms()));
        self.history = other;
    }

    /// Removes what is older than a time; checked.
    fn expire(&mut self, time_ms: u64) {
        let floor = self.history.blocks.floor();
        let is_live =
            |seq: &u64| self.history.blocks.with(*seq, |event| event.time_ms < time_ms) == Some(true);
        let wanted: Vec<u64> = (floor + 1..self.history.last()).filter(is_live).collect();
        assert_eq!(self.history.last_older(time_ms), wanted.last().copied());
        if let Some(last) = wanted.last() {
            assert_eq!(self.history.remove(*last), wanted.len() as u64);
            self.published.remove(*last);
        }
        assert_eq!(self.history.last_older(time_ms), None);
    }

    fn sweep_all(&mut self) {
        while self.history.sweep(100) {}
    }

    /// That it stores exactly what is not collected, once nothing is due.
    fn check_exact(&mut self) {
        self.sweep_all();
        let live = self.published.live();
        let stats = self.history.stats();
        assert_eq!(stats.live, live.len() as u64);
        for seq in 1..=self.history.last() {
            let stored = self.history.blocks.with(seq, |event| event.seq);
            assert_eq!(stored.is_some(), live.binary_search(&seq).is_ok(), "event {seq}");
        }
    }
}

fn content(key: Option<u8>) -> Content {
    let key = key.map(|key| Bytes::from(format!("key-{key}")));
    Content { key, payload: Bytes::from_static(b"some payload"), ..Content::default() }
}

fn with_header(key: Option<u8>, n: u64) -> Content {
    let headers = vec![(Bytes::from_static(b"n"), Bytes::from((n % 4).to_string()))];
    Content { headers, ..content(key) }
}

fn matching(text: &str) -> Option<Collect> {
    Some(Collect::Matching(Bytes::copy_from_slice(text.as_bytes())))
}

type Event = (Content, Option<Collect>);

/// The runs of steps that are published together, with their times.
fn batches(steps: &[Step]) -> Vec<(Vec<Event>, u64)> {
    let mut out: Vec<(Vec<_>, u64)> = Vec::new();
    let mut now = 1000u64;
    for (key, collect, moved, begins) in steps {
        now = now.saturating_add_signed(*moved);
        let event = (with_header(*key, now), collect.clone());
        match out.last_mut() {
            Some((batch, _)) if !begins => batch.push(event),
            _ => out.push((vec![event], now)),
        }
    }
    out
}

proptest! {
    // A case reads the history from each of its numbers.
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_client_gets_every_event_or_a_tombstone_that_a_later_event_explains(
        steps in proptest::collection::vec(step(), 1..250), sweeps in 0..40usize, bytes_max in 1..400usize,
    ) {
        let mut head = Head::new();
        for (events, time_ms) in batches(&steps) {
            if head.publish(&events, time_ms) {
                head.published.check_final(head.published.last()).unwrap();
            }
            head.history.sweep(sweeps);
        }
        for after in 0..head.history.last() {
            head.listen(after, bytes_max);
        }
        head.check_exact();
        for after in 0..head.history.last() {
            head.listen(after, bytes_max);
        }
    }

    #[test]
    fn a_follower_that_reads_in_pieces_holds_what_the_head_holds(
        steps in proptest::collection::vec(step(), 1..250), pieces in proptest::collection::vec((1..30u64, 1..300usize), 1..20),
    ) {
        let mut head = Head::new();
        let mut follower = History::new(HistoryOptions { seed: 8 });
        let mut pieces = pieces.iter().cycle();
        for (events, time_ms) in batches(&steps) {
            head.publish(&events, time_ms);
            let (numbers, bytes_max) = *pieces.next().unwrap();
            let after = follower.last();
            if let Some(batch) = head.history.read(after, after + numbers, bytes_max) {
                follower.append(&batch).unwrap();
            }
        }
        while let Some(batch) = head.history.read(follower.last(), u64::MAX, 1000) {
            follower.append(&batch).unwrap();
        }
        head.check_exact();
        let follower = Head { history: follower, published: head.published.clone(), refused: Vec::new() };
        let mut follower = follower;
        follower.check_exact();
        for after in 0..head.history.last() {
            follower.listen(after, 500);
        }
    }

    #[test]
    fn whoever_takes_over_with_what_is_left_admits_nothing_that_brings_an_event_back(
        steps in proptest::collection::vec(step(), 1..250), every in 1..20usize, sweeps in 0..40usize, bytes_max in 1..2000usize,
    ) {
        let mut head = Head::new();
        for (place, (events, time_ms)) in batches(&steps).into_iter().enumerate() {
            head.publish(&events, time_ms);
            head.published.check_final(head.published.last()).unwrap();
            head.history.sweep(sweeps);
            if place % every == 0 {
                head.taken_over(bytes_max);
            }
        }
        head.check_exact();
        for after in 0..head.history.last() {
            head.listen(after, bytes_max);
        }
    }

    #[test]
    fn a_follower_that_is_told_which_predicates_are_applied_holds_what_the_head_holds(
        steps in proptest::collection::vec(step(), 1..250),
        pieces in proptest::collection::vec((0..3u64, 1..300usize, any::<bool>(), 0..200usize), 1..20),
    ) {
        let mut head = Head::new();
        let mut follower = History::new(HistoryOptions { seed: 8 });
        let mut pieces = pieces.iter().cycle();
        for (events, time_ms) in batches(&steps) {
            head.publish(&events, time_ms);
            let (numbers, bytes_max, follows_anew, sweeps) = *pieces.next().unwrap();
            head.history.sweep(sweeps);
            let after = follower.last();
            if follows_anew {
                follower.applied_elsewhere(after, head.history.applied());
            }
            if let Some(batch) = head.history.read_live(after, after + 30 * numbers, bytes_max) {
                follower.append(&batch).unwrap();
            }
        }
        while let Some(batch) = head.history.read_live(follower.last(), u64::MAX, 1000) {
            follower.append(&batch).unwrap();
        }
        head.check_exact();
        let mut follower = Head { history: follower, published: head.published.clone(), refused: Vec::new() };
        follower.check_exact();
    }

    #[test]
    fn what_retention_removes_is_told_to_whoever_is_behind_it_and_all_else_is_as_before(
        steps in proptest::collection::vec(step(), 1..250),
        ages in proptest::collection::vec(0..400u64, 1..20), sweeps in 0..40usize, bytes_max in 1..400usize,
    ) {
        let mut head = Head::new();
        let mut follower = History::new(HistoryOptions { seed: 8 });
        let mut ages = ages.iter().cycle();
        for (events, time_ms) in batches(&steps) {
            if head.publish(&events, time_ms) {
                head.published.check_final(head.published.last()).unwrap();
            }
            head.history.sweep(sweeps);
            let age_ms = *ages.next().unwrap();
            if age_ms < 100 {
                head.expire(time_ms.saturating_sub(age_ms));
            } else if age_ms < 150 {
                head.taken_over(bytes_max);
            } else if let Some(batch) = head.history.read(follower.last(), u64::MAX, bytes_max) {
                follower.append(&batch).unwrap();
            }
        }
        while let Some(batch) = head.history.read_live(follower.last(), u64::MAX, bytes_max) {
            follower.append(&batch).unwrap();
        }
        // What it has and the head removed since, it is told apart.
        follower.remove(head.history.removed());
        prop_assert_eq!(follower.removed(), head.history.removed());
        let follower = Head { history: follower, published: head.published.clone(), refused: Vec::new() };
        for mut each in [head, follower] {
            for after in 0..each.history.last() {
                each.listen(after, bytes_max);
            }
            each.check_exact();
            for after in 0..each.history.last() {
                each.listen(after, bytes_max);
            }
        }
    }

    #[test]
    fn events_on_their_way_count_as_if_the_batch_began_with_them(
        steps in proptest::collection::vec(step(), 1..120), settles in proptest::collection::vec(0..3u64, 1..20),
    ) {
        let (mut stream, mut published) = (StreamState::new(HistoryOptions { seed: 7 }), Published::default());
        let mut settles = settles.iter().cycle();
        for (events, time_ms) in batches(&steps) {
            let mut batch = Writer::new(stream.last());
            for (content, collect) in &events {
                batch.publish(content, collect.as_ref()).unwrap();
            }
            let mut batch = batch.finish(0);
            batch.state.time_ms = time_ms.max(stream.time_ms());
            let mut together = Writer::new(stream.held());
            for each in stream.unsettled().map(|entry| &entry.batch).chain([&batch]) {
                let mut cursor = each.cursor();
                while let Some(event) = cursor.next().unwrap() {
                    together.push(&event);
                }
            }
            let wanted = stream.history.admit(&together.finish(0));
            match stream.admit(&batch, &mut Budget::default()) {
                Ok(collects) => {
                    prop_assert!(wanted.is_ok(), "{wanted:?}");
                    stream.store(&batch, None, collects).unwrap();
                    batch.events().for_each(|event| published.push(event.unwrap()));
                    published.check_final(published.last()).unwrap();
                }
                Err(refusal) => prop_assert!(wanted.is_err(), "{refusal}"),
            }
            match settles.next().unwrap() {
                0 => {}
                1 => stream.settle((stream.held() + stream.last()).div_ceil(2)),
                _ => stream.settle(stream.last()),
            }
        }
    }

    #[test]
    fn what_is_read_up_to_a_number_ends_with_it(
        steps in proptest::collection::vec(step(), 1..120), after in 0..100u64, up_to in 0..100u64,
    ) {
        let mut head = Head::new();
        for (events, time_ms) in batches(&steps) {
            head.publish(&events, time_ms);
        }
        let end = up_to.min(head.history.last());
        let mut at = after;
        while let Some(batch) = head.history.read(at, up_to, 100) {
            batch.check().unwrap();
            prop_assert!(batch.after == at && batch.last > at && batch.last <= end);
            at = batch.last;
        }
        prop_assert_eq!(at, after.max(end));
    }
}

#[test]
fn a_batch_after_a_gap_is_refused_and_one_that_overlaps_is_cut() {
    let mut head = Head::new();
    head.publish(&vec![(content(None), None); 5], 1);
    let again = head.history.read(2, 5, 1000).unwrap();
    let mut other = History::default();
    assert_eq!(other.append(&again), Err(Gap { after: 2, last: 0 }));
    other.append(&head.history.read(0, 4, 1000).unwrap()).unwrap();
    other.append(&again).unwrap();
    assert_eq!((other.last(), other.stats().live), (5, 5));
}

#[test]
fn collecting_by_key_what_keeps_the_last_is_refused_and_the_refusal_names_it() {
    let mut head = Head::new();
    head.publish(
        &[(content(None), None), (content(None), None), (content(Some(1)), Some(Collect::KeepLast(1)))],
        1,
    );
    assert!(!head.publish(&[(content(Some(2)), None), (content(Some(1)), Some(Collect::SameKey))], 1));
    let FinalityRefusal::Undoes { place: 1, earlier: 3, .. } = head.refused[0] else {
        panic!("{:?}", head.refused)
    };
    // In the same batch, too.
    let both = [(content(Some(3)), Some(Collect::Before(3))), (content(Some(3)), Some(Collect::SameKey))];
    assert!(!head.publish(&both, 1));
    let FinalityRefusal::Undoes { place: 1, earlier: 4, .. } = head.refused[1] else {
        panic!("{:?}", head.refused)
    };
    // Once it is collected itself, it is in nobody's way.
    assert!(head.publish(&[(content(None), Some(Collect::Before(4)))], 1));
    assert!(head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 1));
}

#[test]
fn collecting_by_age_brings_nothing_back_where_a_clock_went_back_whoever_knows_of_that() {
    for collect in [Collect::OlderThan(950), Collect::Matching("time < 950".into())] {
        let mut head = Head::new();
        head.publish(&[(content(Some(1)), None)], 1000);
        head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 900);
        head.sweep_all();
        // It has only the second event, and a tombstone for the first.
        head.taken_over(1000);
        assert!(head.publish(&[(content(None), Some(collect))], 1001));
        head.published.check_final(3).unwrap();
        assert_eq!(head.published.live(), [2, 3], "the second has no earlier time than the first");
        assert!(head.publish(&[(content(None), Some(Collect::OlderThan(1001)))], 1002));
        assert_eq!(head.published.live(), [3, 4]);
        head.check_exact();
        head.listen(0, 1000);
    }
}

#[test]
fn a_key_with_many_events_is_collected_in_steps_and_none_is_missed() {
    let mut head = Head::new();
    for _ in 0..50 {
        head.publish(&vec![(content(Some(1)), None); 100], 1);
    }
    head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 1);
    head.publish(&[(content(Some(1)), None)], 1);
    head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 1);
    assert!(head.history.stats().live > 4000, "not all at once");
    head.listen(0, 10_000);
    head.check_exact();
    assert_eq!(head.history.stats().live, 1);
    assert!(head.history.stats().memory_bytes < 30_000, "{:?}", head.history.stats());
}

#[test]
fn small_batches_are_put_together_and_large_ones_kept_as_they_are() {
    let mut head = Head::new();
    for _ in 0..5000 {
        head.publish(&[(content(None), None)], 1);
    }
    assert!(head.history.stats().blocks < 60, "{:?}", head.history.stats());
    let large = Content { payload: vec![7; 100_000].into(), ..Content::default() };
    let mut writer = Writer::new(5000);
    writer.publish(&large, None).unwrap();
    let batch = writer.finish(0);
    head.history.append(&batch).unwrap();
    let read = head.history.read(5000, 5001, 1 << 20).unwrap();
    assert_eq!(read.bytes.as_ptr(), batch.bytes.as_ptr(), "not copied");
}

#[test]
fn a_predicate_collects_what_it_holds_for_in_bounded_steps() {
    let mut head = Head::new();
    for n in 0..40 {
        let events: Vec<Event> = (0..500).map(|at| (with_header(None, n + at), None)).collect();
        head.publish(&events, 1);
    }
    assert!(head.publish(&[(content(None), matching("header.n in (\"1\", \"2\", \"3\")"))], 2));
    let before = head.history.stats();
    assert!(before.live > 19_000 && before.predicates == 1, "not at once: {before:?}");
    let mut sweeps = 0;
    while head.history.sweep(1000) {
        sweeps += 1;
    }
    assert!(sweeps > 100, "{sweeps}");
    assert_eq!(head.history.stats().live, 5001);
    head.check_exact();
    head.listen(0, 10_000);
}

#[test]
fn a_predicate_that_names_keys_collects_them_at_once() {
    let mut head = Head::new();
    for n in 0..12 {
        head.publish(&vec![(with_header(Some(n), n.into()), None); if n == 3 { 500 } else { 1 }], 1);
    }
    assert!(head.publish(&[(content(None), matching("key in (\"key-1\", \"key-2\", \"key-7\")"))], 1));
    assert_eq!(head.history.stats().live, 509);
    // With many events of one key it may take several sweeps.
    assert!(head.publish(&[(content(None), matching("key = \"key-3\" and header.n = \"3\""))], 1));
    head.check_exact();
    assert_eq!(head.history.stats().live, 10);
}

#[test]
fn a_predicate_that_does_not_cover_what_it_removes_is_refused() {
    let mut head = Head::new();
    head.publish(&[(with_header(Some(1), 1), None), (with_header(Some(1), 2), Some(Collect::SameKey))], 1);
    assert!(!head.publish(&[(content(None), matching("header.n = \"2\""))], 1), "event 1 would come back");
    assert!(
        matches!(head.refused[0], FinalityRefusal::Undoes { place: 0, earlier: 2, .. }),
        "{:?}",
        head.refused
    );
    assert!(head.publish(&[(content(None), matching("key = \"key-1\""))], 1));
    // It collects what that one collects: by the predicate, and by what the predicate says.
    assert!(head.publish(&[(with_header(Some(1), 3), matching("key = \"key-1\""))], 1));
    assert!(head.publish(&[(content(None), matching("key = \"key-1\" and header.n = \"7\" or seq < 3"))], 1));
    assert!(head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 1));
    assert!(!head.publish(&[(content(None), matching("key is missing"))], 1));
    assert!(!head.publish(&[(content(None), matching("key is missing and"))], 1));
    let said = head.refused.last().unwrap().to_string();
    assert!(said.contains("column 19") && said.contains('^'), "{said}");
    head.check_exact();
}

#[test]
fn a_predicate_that_may_remove_too_many_collections_is_refused_without_looking_at_all() {
    let mut head = Head::new();
    for n in 0..200u64 {
        let events: Vec<Event> = (0..100)
            .map(|at| {
                let key = Some(Bytes::from(format!("{}", n * 100 + at)));
                (Content { key, ..Content::default() }, Some(Collect::SameKey))
            })
            .collect();
        head.publish(&events, 1);
    }
    assert!(!head.publish(&[(content(None), matching("header.n = \"1\""))], 1));
    assert!(matches!(head.refused[0], FinalityRefusal::TooMany { place: 0 }), "{:?}", head.refused);
    assert!(head.publish(&[(content(None), matching("key >= \"1\" or seq < 100"))], 1));
    head.check_exact();
}

#[test]
fn predicates_that_wait_to_be_applied_are_bounded() {
    let mut head = Head::new();
    head.publish(&vec![(with_header(None, 0), None); 1000], 1);
    for n in 0..2000 {
        head.publish(&[(content(None), matching(&format!("header.n = \"{n}\"")))], 1);
        assert!(head.history.stats().predicates <= 64);
    }
    assert!(head.refused.iter().any(|refusal| matches!(refusal, FinalityRefusal::Busy { .. })));
    head.check_exact();
}

/// A head with events of 300 kinds, 10 of each, and then a predicate for every kind but the last ones.
fn with_predicates(count: u64) -> Head {
    let mut head = Head::new();
    let kind = |n: u64| {
        let headers = vec![(Bytes::from_static(b"kind"), Bytes::from(n.to_string()))];
        (Content { headers, ..content(None) }, None)
    };
    head.publish(&(0..3_000).map(|n| kind(n % 300)).collect::<Vec<_>>(), 1);
    for n in 0..count {
        assert!(head.publish(&[(content(None), matching(&format!("header.kind = \"{n}\"")))], 2));
        head.sweep_all();
    }
    head
}

#[test]
fn predicates_that_come_all_at_once_to_who_was_away_are_all_applied() {
    let head = with_predicates(300);
    let mut away = Head::new();
    away.published = head.published.clone();
    let first = with_predicates(0).history.read(0, 3_000, 1 << 20).unwrap();
    away.history.append(&first).unwrap();
    while let Some(batch) = head.history.read(away.history.last(), u64::MAX, 1 << 20) {
        away.history.append(&batch).unwrap();
    }
    assert!(away.history.stats().predicates > 64, "{:?}", away.history.stats());
    away.check_exact();
    assert_eq!(away.history.stats().live, 300);
}

#[test]
fn who_takes_over_what_a_predicate_left_does_not_apply_it_again() {
    // Too few of a block's events for it to be read without them in any case.
    let head = with_predicates(50);
    assert_eq!(head.history.applied(), head.history.last());
    let mut new = Head::new();
    new.published = head.published.clone();
    new.history.applied_elsewhere(0, head.history.applied());
    while let Some(batch) = head.history.read_live(new.history.last(), u64::MAX, 10_000) {
        new.history.append(&batch).unwrap();
    }
    assert_eq!(new.history.stats().predicates, 0);
    new.check_exact();
    assert!(new.publish(&[(content(None), matching("header.kind = \"200\""))], 3), "{:?}", new.refused);
    new.check_exact();
}

fn collecting(key: &str, payload: usize, collect: Collect) -> Event {
    let content =
        Content { key: Some(key.to_owned().into()), payload: vec![7; payload].into(), ..Content::default() };
    (content, Some(collect))
}

#[test]
fn what_collection_leaves_of_large_events_stays_in_batches_that_everybody_takes() {
    let mut head = Head::new();
    let mut tiny = Vec::new();
    for part in 0..2 {
        let mut events: Vec<Event> =
            (0..2).map(|n| collecting(&format!("large-{part}-{n}"), 1_000_000, Collect::SameKey)).collect();
        for n in 0..300 {
            events.push(collecting(&format!("tiny-{part}-{n}"), 1, Collect::SameKey));
        }
        assert!(head.publish(&events, 1));
        tiny.extend(events.split_off(2));
    }
    assert!(head.publish(&tiny, 2));
    while head.history.sweep(10_000) {}
    let (mut after, mut live) = (0, 0);
    while let Some(batch) = head.history.read(after, u64::MAX, 1 << 20) {
        batch.check().unwrap();
        (after, live) = (batch.last, live + batch.count);
    }
    assert_eq!((after, live), (head.history.last(), 4 + 600));
}

#[test]
fn a_batch_of_predicates_that_take_long_to_compare_is_refused_as_a_whole() {
    let mut head = Head::new();
    let plain: Vec<Event> = (0..1_500).map(|_| (collecting("a", 1, Collect::SameKey).0, None)).collect();
    assert!(head.publish(&plain, 1));
    assert!(head.publish(&[collecting("b", 1, Collect::SameKey)], 2));
    let two = ["key = \"a\" and header.x = \"1\"", "header.x = \"1\" and key = \"a\""];
    let many: Vec<Event> =
        (0..20_000).map(|n| collecting("a", 1, Collect::Matching(two[n % 2].into()))).collect();
    assert!(!head.publish(&many, 3));
    assert!(
        matches!(head.refused.last(), Some(FinalityRefusal::TooMany { .. })),
        "{:?}",
        head.refused.last()
    );
}

#[test]
fn more_predicates_than_are_applied_at_a_time_are_refused_also_in_one_batch() {
    let mut head = Head::new();
    let predicate = |n| collecting("a", 1, Collect::Matching(format!("header.x = \"{n}\"").into()));
    let many: Vec<Event> = (0..work::PASSES_MAX + 1).map(predicate).collect();
    assert!(!head.publish(&many, 1));
    assert!(
        matches!(head.refused.last(), Some(FinalityRefusal::TooMany { .. })),
        "{:?}",
        head.refused.last()
    );
    assert!(head.publish(&many[1..], 1));
}
