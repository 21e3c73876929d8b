//! The history against a model that keeps everything and evaluates every collection directly.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::checks::{Observer, Published};
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
    ];
    let clock = prop_oneof![8 => 0..10i64, 1 => -40..0i64];
    (proptest::option::weighted(0.8, 0..12u8), collect, clock, proptest::bool::weighted(0.3))
}

/// A head: it admits and appends what is published, and leaves out what it refuses.
struct Head {
    history: History,
    published: Published,
    refused: Vec<Refusal>,
}

impl Head {
    fn new() -> Self {
        Self {
            history: History::new(HistoryOptions { seed: 7 }),
            published: Published::default(),
            refused: Vec::new(),
        }
    }

    fn publish(&mut self, events: &[(Content, Option<Collect>)], time_ms: u64) -> bool {
        let mut writer = Writer::new(self.history.last());
        for (content, collect) in events {
            writer.publish(content, collect.as_ref()).unwrap();
        }
        let mut batch = writer.finish(0);
        batch.state.time_ms = time_ms;
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
            for event in batch.events() {
                observer.deliver(&self.published, &event.unwrap()).unwrap();
            }
        }
        assert_eq!(observer.at(), self.history.last());
        observer.finish(&self.published).unwrap();
        observer
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

/// The runs of steps that are published together, with their times.
/// What is published together, and when.
type Publication = (Vec<(Content, Option<Collect>)>, u64);

fn batches(steps: &[Step]) -> Vec<Publication> {
    let mut out: Vec<(Vec<_>, u64)> = Vec::new();
    let mut now = 1000u64;
    for (key, collect, moved, begins) in steps {
        now = now.saturating_add_signed(*moved);
        let event = (content(*key), collect.clone());
        match out.last_mut() {
            Some((batch, _)) if !begins => batch.push(event),
            _ => out.push((vec![event], now)),
        }
    }
    out
}

proptest! {
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
    let Refusal::Undoes { place: 1, earlier: 3, .. } = head.refused[0] else { panic!("{:?}", head.refused) };
    // In the same batch, too.
    let both = [(content(Some(3)), Some(Collect::Before(3))), (content(Some(3)), Some(Collect::SameKey))];
    assert!(!head.publish(&both, 1));
    let Refusal::Undoes { place: 1, earlier: 4, .. } = head.refused[1] else { panic!("{:?}", head.refused) };
    // Once it is collected itself, it is in nobody's way.
    assert!(head.publish(&[(content(None), Some(Collect::Before(4)))], 1));
    assert!(head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 1));
}

#[test]
fn collecting_by_age_is_refused_where_a_clock_went_back_and_only_there() {
    let mut head = Head::new();
    head.publish(&[(content(Some(1)), None)], 1000);
    head.publish(&[(content(Some(1)), Some(Collect::SameKey))], 900);
    assert!(
        !head.publish(&[(content(None), Some(Collect::OlderThan(950)))], 1001),
        "event 1 would come back"
    );
    assert!(head.publish(&[(content(None), Some(Collect::OlderThan(900)))], 1001));
    assert!(head.publish(&[(content(None), Some(Collect::OlderThan(1001)))], 1002));
    assert_eq!(head.published.live(), [3, 4]);
    head.check_exact();
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
