use std::time::Duration;

use proptest::prelude::*;
use tailwater_format::batch::{Batch, Decompressor};
use tailwater_format::call::CallRefusal;
use tailwater_format::limits::APPEND_BYTES_MAX;

use super::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Instant {
    Instant::from_ns(ms * MS)
}

fn config() -> ProducerSettings {
    ProducerSettings { batch_bytes: 1_000, buffer_bytes_max: 100_000, ..ProducerSettings::default() }
}

fn refused(code: CallErrorCode) -> Error {
    Error::Refused(CallRefusal::new(code, "a test"))
}

/// A producer of three shards, and a node that takes batches as one does: in sequence from the first one that it sees,
/// each once.
struct Rig {
    state: ProducerCore,
    now: Instant,
    /// CALLs that the sender says are under way.
    calls: usize,
    node: Vec<NodeShard>,
    acks: Vec<(u32, Vec<u8>, Ack)>,
}

#[derive(Default)]
struct NodeShard {
    values: Vec<Vec<u8>>,
    /// `None` until it knows the producer.
    next_sequence: Option<i32>,
    /// The last five batches: first sequence, offset.
    last: VecDeque<(i32, u64)>,
}

impl Rig {
    fn new(config: ProducerSettings) -> Self {
        let identity = config.idempotent.then_some((7, 0));
        let node = (0..3).map(|_| NodeShard::default()).collect();
        Self {
            state: ProducerCore::new(3, APPEND_BYTES_MAX, config, identity),
            now: at(1_000),
            calls: 0,
            node,
            acks: Vec::new(),
        }
    }

    /// One whose shards have acknowledged something.
    fn known(config: ProducerSettings) -> Self {
        let mut rig = Self::new(config);
        rig.state.shards.iter_mut().for_each(|shard| shard.is_known = true);
        rig.node.iter_mut().for_each(|shard| shard.next_sequence = Some(0));
        rig
    }

    fn put(&mut self, shard: u32, value: &[u8]) -> bool {
        let (ack, wake) = self.state.put(|| self.now, 5, shard, None, value).expect("there is room");
        self.acks.push((shard, value.to_vec(), ack));
        wake
    }

    fn take(&mut self) -> Vec<Sealed> {
        let taken = self.state.take_ready(self.now, self.calls);
        let bytes: usize = taken.iter().map(|batch| batch.bytes.len()).sum();
        assert!(taken.len() <= 1 || bytes <= CALL_BYTES_TARGET);
        taken
    }

    /// Appends as the node does.
    fn append(&mut self, batch: &Sealed) -> Outcome {
        let parsed = Batch::validate(&batch.bytes, 1 << 20).expect("a batch that a node takes");
        let node = &mut self.node[batch.shard as usize];
        let offset = node.values.len() as u64;
        if let Some(producer) = parsed.header().producer() {
            if let Some((_, offset)) = node.last.iter().find(|(first, _)| *first == producer.base_sequence) {
                return Outcome::Acked(Offset(*offset));
            }
            if node.next_sequence.is_some_and(|next| producer.base_sequence != next) {
                return Outcome::from_error(refused(CallErrorCode::OutOfOrderSequence));
            }
            node.next_sequence = Some(producer.base_sequence + parsed.header().record_count as i32);
            node.last.push_back((producer.base_sequence, offset));
            if node.last.len() > 5 {
                node.last.pop_front();
            }
        }
        let mut decompressor = Decompressor::new();
        for record in parsed.records(&mut decompressor, 1 << 20).expect("it can be read") {
            node.values.push(record.expect("it can be read").value.expect("it has one").to_vec());
        }
        Outcome::Acked(Offset(offset))
    }

    fn answer(&mut self, batches: Vec<Sealed>) {
        let mut outcomes = Vec::new();
        for batch in batches {
            let outcome = self.append(&batch);
            outcomes.push((batch, outcome));
        }
        self.state.answered(self.now, outcomes);
    }

    fn refuse(&mut self, batches: Vec<Sealed>, code: CallErrorCode) {
        let outcomes = batches.into_iter().map(|batch| (batch, Outcome::from_error(refused(code)))).collect();
        self.state.answered(self.now, outcomes);
    }

    /// Sends and answers until nothing is left; everything is acknowledged then, and in order.
    fn settle_in_order(&mut self) {
        self.settle();
        self.assert_all_acked();
        self.assert_in_order();
    }

    /// Sends and answers until nothing is left.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let batches = self.take();
            if !batches.is_empty() {
                self.answer(batches);
            } else if let Some(at) = self.state.next_deadline(self.now, self.calls) {
                assert!(at > self.now, "what is due is taken");
                self.now = at;
            } else {
                return;
            }
        }
        panic!("it does not come to an end");
    }

    /// Every record is acknowledged, at the offset at which the node has it.
    fn assert_all_acked(&self) {
        for (shard, value, ack) in &self.acks {
            let acked = ack.try_result().expect("it is answered").expect("it is acknowledged");
            assert_eq!(acked.shard, *shard);
            assert_eq!(&self.node[*shard as usize].values[acked.offset.0 as usize], value);
            assert!(
                (acked.base_offset.0..acked.base_offset.0 + u64::from(acked.count)).contains(&acked.offset.0)
            );
        }
        assert_eq!((self.state.buffered, self.state.outstanding.len()), (0, 0));
    }

    /// Each shard of the node has what was put there, once and in order.
    fn assert_in_order(&self) {
        for (number, node) in self.node.iter().enumerate() {
            let put =
                self.acks.iter().filter(|(shard, ..)| *shard == number as u32).map(|(_, value, _)| value);
            assert!(node.values.iter().eq(put), "shard {number}");
        }
    }
}

#[test]
fn alone_a_record_goes_at_once_and_under_load_batches_grow() {
    let mut rig = Rig::new(config());
    assert!(rig.put(0, b"first"));
    let first = rig.take();
    assert_eq!(first.len(), 1);
    for _ in 0..5 {
        assert!(!rig.put(0, b"more"), "the answer makes the sender look again");
    }
    assert!(rig.take().is_empty());
    rig.answer(first);
    let second = rig.take();
    assert_eq!((second.len(), second[0].count), (1, 5));
    rig.answer(second);
    rig.assert_all_acked();
    rig.assert_in_order();
}

#[test]
fn where_answers_take_long_a_batch_goes_before_the_answer_in_a_fifth_of_their_time() {
    let mut rig = Rig::known(config());
    // Acknowledgements take 50 ms.
    for _ in 0..64 {
        rig.put(0, b"slow");
        let batches = rig.take();
        rig.now = rig.now + Duration::from_millis(50);
        rig.answer(batches);
    }
    assert!(rig.put(0, b"first"));
    let mut sent = vec![(rig.now, rig.take())];
    for _ in 0..40 {
        rig.now = rig.now + Duration::from_millis(1);
        rig.calls = sent.len();
        rig.put(0, b"more");
        let batches = rig.take();
        if !batches.is_empty() {
            sent.push((rig.now, batches));
        }
    }
    assert_eq!(sent.len(), 5, "one at once, and four in 40 ms");
    for both in sent.windows(2) {
        let between = both[1].0.since(both[0].0);
        assert!((9..=11).contains(&between.as_millis()), "{between:?}");
    }
    sent.into_iter().for_each(|(_, batches)| rig.answer(batches));
    rig.calls = 0;
    rig.settle_in_order();
}

#[test]
fn a_record_that_comes_late_behind_a_slow_answer_wakes_the_sender() {
    let mut rig = Rig::known(config());
    rig.put(0, b"first");
    let first = rig.take();
    rig.calls = 1;
    let early = rig.state.next_deadline(rig.now, rig.calls).expect("it looks again before the answer");
    rig.now = early;
    assert!(rig.take().is_empty(), "there is nothing");
    assert_eq!(rig.state.next_deadline(rig.now, rig.calls), None);
    assert!(rig.put(0, b"second"), "nobody else tells the sender of it");
    let second = rig.take();
    assert_eq!(second.len(), 1);
    rig.answer(first);
    rig.answer(second);
    rig.settle_in_order();
}

#[test]
fn with_many_calls_under_way_batches_grow_as_there_is_much_to_send() {
    let mut rig = Rig::known(config());
    rig.put(0, b"first");
    let first = rig.take();
    rig.put(0, b"more");
    (rig.calls, rig.now) = (BATCHES_IN_FLIGHT_MAX, at(60_000));
    assert!(rig.take().is_empty());
    assert_eq!(rig.state.next_deadline(rig.now, rig.calls), None, "the answer makes the sender look again");
    rig.answer(first);
    rig.settle_in_order();
}

#[test]
fn with_slow_answers_shards_do_not_wait_for_those_of_others_and_calls_are_spread() {
    let mut rig = Rig::known(config());
    for _ in 0..64 {
        rig.put(0, b"slow");
        let batches = rig.take();
        rig.now = rig.now + Duration::from_millis(160);
        rig.answer(batches);
    }
    rig.calls = APPENDS_UNPACED - 1;
    rig.put(0, b"at once");
    let mut sent = rig.take();
    assert_eq!(sent.len(), 1);
    rig.put(1, b"a little later");
    rig.calls += 1;
    assert!(rig.take().is_empty());
    let next = rig.state.next_deadline(rig.now, rig.calls).expect("before an answer is there");
    assert_eq!(next.since(rig.now), Duration::from_millis(10), "a sixteenth");
    rig.now = next;
    sent.extend(rig.take());
    assert_eq!(sent.len(), 2);
    rig.put(2, b"with an answer");
    (rig.calls, rig.now) = (APPENDS_IN_FLIGHT_MAX, at(60_000));
    assert!(rig.take().is_empty());
    assert_eq!(rig.state.next_deadline(rig.now, rig.calls), None);
    rig.calls = 0;
    rig.answer(sent);
    rig.settle_in_order();
}

#[test]
fn full_batches_do_not_wait_for_answers_up_to_as_many_as_the_node_remembers() {
    let mut rig = Rig::known(config());
    let mut taken = Vec::new();
    for _ in 0..100 {
        rig.put(0, &[1; 200]);
        taken.extend(rig.take());
    }
    assert_eq!(taken.len(), BATCHES_IN_FLIGHT_MAX);
    rig.answer(taken);
    rig.settle_in_order();
}

#[test]
fn the_first_batches_of_a_shard_wait_for_its_first_answer_as_the_node_takes_any_sequence_till_then() {
    let mut rig = Rig::new(config());
    for n in 0..4_u8 {
        rig.put(0, &[n; 240]);
    }
    let first = rig.take();
    for n in 4..12_u8 {
        rig.put(0, &[n; 240]);
    }
    // The first CALL is lost with its connection; a second one would arrive on the next.
    let second = rig.take();
    let lost = Error::Unreachable { address: "node".to_owned(), reason: "reset".to_owned() };
    let outcomes = first.into_iter().map(|batch| (batch, Outcome::from_error(lost.clone()))).collect();
    rig.state.answered(rig.now, outcomes);
    rig.answer(second);
    rig.settle_in_order();
}

#[test]
fn a_batch_that_fills_up_while_it_lingers_goes_at_once() {
    let mut rig = Rig::new(ProducerSettings { linger: Duration::from_millis(100), ..config() });
    assert!(rig.put(0, b"first"));
    assert!(rig.take().is_empty());
    assert_eq!(rig.state.next_deadline(rig.now, rig.calls), Some(at(1_100)));
    assert!(!rig.put(0, b"second"));
    assert!(rig.put(0, &[0; 300]), "the sender is woken before the time");
    assert_eq!(rig.take().len(), 1);
}

#[test]
fn a_flush_waits_for_what_was_there_and_not_for_what_comes() {
    let mut rig = Rig::new(ProducerSettings { linger: Duration::from_secs(100), ..config() });
    rig.put(0, b"one");
    rig.put(1, b"two");
    let upto = rig.state.flush();
    let flushed = rig.take();
    assert_eq!(flushed.len(), 2, "they do not linger");
    rig.put(0, b"later");
    assert!(!rig.state.is_flushed(upto));
    rig.answer(flushed);
    assert!(rig.state.is_flushed(upto), "though a later record lingers");
    assert!(rig.take().is_empty());
    let upto = rig.state.flush();
    assert!(!rig.state.is_flushed(upto));
    rig.settle();
    assert!(rig.state.is_flushed(upto));
}

#[test]
fn a_full_buffer_refuses_and_has_room_again_after_the_answer() {
    let mut rig = Rig::new(ProducerSettings { buffer_bytes_max: 500, ..config() });
    for _ in 0..4 {
        rig.put(0, &[0; 100]);
    }
    assert!(!rig.state.has_room());
    let refused = rig.state.put(Instant::default, 5, 0, None, b"one more");
    assert!(matches!(refused, Err(Error::BufferFull { bytes: 528, bytes_max: 500 })));
    let batches = rig.take();
    rig.answer(batches);
    assert!(rig.state.has_room());
}

#[test]
fn batches_are_no_longer_than_the_stream_takes_and_a_record_that_can_not_fit_is_refused_at_once() {
    let mut state = ProducerCore::new(1, 1_000, config(), None);
    for _ in 0..20 {
        drop(state.put(Instant::default, 5, 0, None, &[0; 300]).expect("it is not too long"));
    }
    for len in [0, 850, 900] {
        drop(state.put(Instant::default, 5, 0, None, &vec![0; len]).expect("it is not too long"));
    }
    let refused = state.put(Instant::default, 5, 0, None, &[0; 940]);
    assert!(matches!(refused, Err(Error::RecordTooLong { bytes: 940, bytes_max: 939 })));
    state.flush();
    let mut records = 0;
    loop {
        let ready = state.take_ready(at(1_000_000), 0);
        if ready.is_empty() {
            break;
        }
        let answers = ready.into_iter().map(|batch| {
            assert!(batch.bytes.len() <= 1_000, "{} bytes", batch.bytes.len());
            records += batch.count;
            (batch, Outcome::Acked(Offset(0)))
        });
        let answers = answers.collect();
        state.answered(at(1_000_000), answers);
    }
    assert_eq!(records, 23);
}

#[test]
fn records_of_the_greatest_length_fit_whatever_the_configuration_says() {
    let mut rig =
        Rig::new(ProducerSettings { batch_bytes: usize::MAX, buffer_bytes_max: 1 << 30, ..config() });
    let long = vec![0; RECORD_BYTES_MAX];
    for _ in 0..6 {
        let (ack, _) = rig.state.put(Instant::default, 5, 0, None, &long).expect("it is not too long");
        drop(ack);
    }
    let too_long = rig.state.put(Instant::default, 5, 0, Some(b"k"), &long);
    assert!(matches!(too_long, Err(Error::RecordTooLong { .. })));
    let mut count = 0;
    while let [batch] = &rig.take()[..] {
        assert!(batch.bytes.len() <= APPEND_BYTES_MAX);
        count += batch.count;
    }
    assert!(count > 0);
}

#[test]
fn one_call_carries_many_shards_and_no_more_than_a_node_takes() {
    let shards = 3 * APPEND_ITEMS_MAX as u32 / 2;
    let mut state = ProducerCore::new(
        shards,
        APPEND_BYTES_MAX,
        ProducerSettings { buffer_bytes_max: 1 << 30, ..config() },
        Some((1, 0)),
    );
    for shard in 0..shards {
        drop(state.put(|| at(0), 5, shard, None, b"value").expect("there is room"));
    }
    assert_eq!(state.take_ready(at(0), 0).len(), APPEND_ITEMS_MAX);
    assert_eq!(state.take_ready(at(0), 0).len(), APPEND_ITEMS_MAX / 2);
    assert!(state.take_ready(at(0), 0).is_empty());
}

#[test]
fn a_refusal_that_may_pass_is_followed_by_the_same_batches_in_order() {
    let mut rig = Rig::known(config());
    for n in 0..20_u8 {
        rig.put(0, &[n; 240]);
    }
    let first = rig.take();
    assert_eq!(first.len(), BATCHES_IN_FLIGHT_MAX);
    let sequences: Vec<Bytes> = first.iter().map(|batch| batch.bytes.clone()).collect();
    rig.refuse(first, CallErrorCode::Overloaded);
    assert!(rig.take().is_empty(), "after a pause");
    rig.now = rig.state.next_deadline(rig.now, rig.calls).expect("it is tried again");
    assert_eq!(rig.now, at(1_000) + RETRY_PAUSE);
    let again = rig.take();
    assert!(again.iter().map(|batch| &batch.bytes).eq(&sequences), "the same bytes, with the same sequences");
    rig.answer(again);
    rig.settle_in_order();
}

#[test]
fn batches_behind_a_refused_one_are_sent_again_and_not_failed() {
    let mut rig = Rig::known(config());
    for n in 0..12_u8 {
        rig.put(0, &[n; 240]);
    }
    let mut batches = rig.take();
    let refused_one = batches.remove(0);
    // The node never saw the first one, so the others are out of order; their answers may come before or after.
    let late = batches.split_off(2);
    rig.answer(batches);
    assert!(rig.take().is_empty(), "nothing is sent while some are in flight");
    rig.refuse(vec![refused_one], CallErrorCode::Overloaded);
    rig.answer(late);
    rig.settle_in_order();
}

#[test]
fn what_was_appended_but_not_answered_is_not_appended_twice() {
    let mut rig = Rig::known(config());
    for n in 0..12_u8 {
        rig.put(0, &[n; 240]);
    }
    let batches = rig.take();
    for batch in &batches {
        assert!(matches!(rig.append(batch), Outcome::Acked(_)));
    }
    let lost = Error::Unreachable { address: "node".to_owned(), reason: "reset".to_owned() };
    let outcomes = batches.into_iter().map(|batch| (batch, Outcome::from_error(lost.clone()))).collect();
    rig.state.answered(rig.now, outcomes);
    rig.settle_in_order();
}

#[test]
fn a_batch_that_waits_for_its_answer_stays_among_those_that_the_node_remembers() {
    let mut rig = Rig::known(config());
    for n in 0..20_u8 {
        rig.put(0, &[n; 240]);
    }
    let mut batches = rig.take();
    let first = batches.remove(0);
    assert!(matches!(rig.append(&first), Outcome::Acked(_)));
    // The others' answers overtake the first one's, and that is lost.
    rig.answer(batches);
    assert!(rig.take().is_empty(), "a sixth one would make the node forget the first");
    let lost = Outcome::Retry(refused(CallErrorCode::Unavailable));
    rig.state.answered(rig.now, vec![(first, lost)]);
    rig.settle_in_order();
}

#[test]
fn trouble_is_why_batches_are_sent_again_for_as_long_as_that_lasts_and_of_the_shard_where_it_lasts_longest() {
    let mut rig = Rig::new(config());
    let code = |rig: &Rig| {
        let Trouble { error, lasts } = rig.state.trouble(rig.now)?;
        let Error::Refused(refusal) = error else { panic!("{error}") };
        Some((refusal.code, lasts))
    };
    rig.put(0, b"a");
    rig.put(1, b"b");
    let mut batches = rig.take();
    assert_eq!(code(&rig), None, "nothing is known of what is in flight");
    let second = batches.split_off(1);
    rig.refuse(batches, CallErrorCode::Overloaded);
    rig.now = rig.now + Duration::from_secs(1);
    rig.refuse(second, CallErrorCode::StorageFailed);
    assert_eq!(code(&rig), Some((CallErrorCode::Overloaded, Duration::from_secs(1))));
    // The first shard's reason is another one now, and is as old as the first.
    let again = rig.take();
    rig.refuse(again, CallErrorCode::NoSpace);
    assert_eq!(code(&rig), Some((CallErrorCode::NoSpace, Duration::from_secs(1))));
    rig.now = rig.now + Duration::from_secs(1);
    let mut first = rig.take();
    let second = first.split_off(1);
    rig.answer(first);
    assert_eq!(code(&rig), Some((CallErrorCode::StorageFailed, Duration::from_secs(1))));
    rig.answer(second);
    assert_eq!(code(&rig), None);
    rig.settle();
    rig.assert_all_acked();
}

#[test]
fn without_sequences_a_shard_has_one_batch_in_flight_so_that_order_is_kept() {
    let mut rig = Rig::new(ProducerSettings { idempotent: false, ..config() });
    for n in 0..12_u8 {
        rig.put(0, &[n; 240]);
    }
    let first = rig.take();
    assert_eq!(first.len(), 1);
    rig.refuse(first, CallErrorCode::Overloaded);
    rig.settle_in_order();
}

#[test]
fn without_sequences_a_failure_is_one_batch_s_own() {
    let mut rig = Rig::new(ProducerSettings { idempotent: false, ..config() });
    rig.put(0, b"bad");
    let first = rig.take();
    rig.refuse(first, CallErrorCode::CorruptBatch);
    assert!(matches!(rig.acks[0].2.try_result(), Some(Err(Error::Refused(_)))));
    rig.put(0, b"good");
    rig.settle();
    assert!(matches!(rig.acks[1].2.try_result(), Some(Ok(_))));
}

#[test]
fn a_failure_for_good_fails_what_is_behind_it_and_closes_the_producer() {
    let mut rig = Rig::known(config());
    for n in 0..12_u8 {
        rig.put(0, &[n; 240]);
    }
    rig.put(1, b"in flight");
    let mut batches = rig.take();
    let other = batches.pop().expect("that of shard 1");
    assert_eq!(other.shard, 1);
    rig.put(1, b"open");
    let bad = batches.remove(0);
    rig.refuse(vec![bad], CallErrorCode::ProducerFenced);
    assert!(matches!(rig.acks[0].2.try_result(), Some(Err(Error::Refused(_)))), "why");
    assert!(matches!(rig.acks[13].2.try_result(), Some(Err(Error::Closed(_)))), "what was never sent");
    assert!(matches!(rig.state.put(Instant::default, 5, 2, None, b"late"), Err(Error::Closed(_))));
    assert!(rig.state.has_room(), "nobody waits for room that never comes");
    // What is in flight may still be acknowledged, or fails now.
    rig.answer(vec![other]);
    assert!(matches!(rig.acks[12].2.try_result(), Some(Ok(_))));
    rig.refuse(batches, CallErrorCode::Overloaded);
    assert!(rig.acks.iter().all(|(_, _, ack)| ack.try_result().is_some()));
    assert_eq!((rig.state.buffered, rig.state.next_deadline(rig.now, rig.calls)), (0, None));
    assert!(rig.state.is_flushed(u64::MAX));
}

#[test]
fn a_node_that_does_not_come_back_is_given_up_at_the_deadline() {
    let mut rig = Rig::new(ProducerSettings { deadline: Duration::from_secs(2), ..config() });
    rig.put(0, b"value");
    while rig.acks[0].2.try_result().is_none() {
        rig.now = rig.now.max(rig.state.next_deadline(rig.now, rig.calls).expect("it is tried again"));
        let batches = rig.take();
        assert_eq!(batches.len(), 1);
        rig.refuse(batches, CallErrorCode::Unavailable);
    }
    assert!(rig.now >= at(3_000));
    assert!(matches!(rig.acks[0].2.try_result(), Some(Err(Error::Refused(_)))));
}

#[test]
fn sequences_go_from_the_largest_number_to_zero() {
    let mut rig = Rig::new(config());
    rig.state.shards[0].next_sequence = i32::MAX - 1;
    for _ in 0..3 {
        rig.put(0, b"value");
    }
    let batch = &rig.take()[0];
    let header = *Batch::parse(&batch.bytes).expect("a batch").header();
    assert_eq!(header.producer().expect("it has one").base_sequence, i32::MAX - 1);
    assert_eq!(rig.state.shards[0].next_sequence, 1);
}

#[test]
fn whatever_way_a_batch_is_lost_its_records_are_answered() {
    let mut rig = Rig::new(config());
    for shard in 0..2 {
        rig.put(shard, b"value");
    }
    let in_flight = rig.take();
    rig.put(0, b"open");
    drop(in_flight);
    drop(rig.state);
    for (_, _, ack) in rig.acks {
        assert!(matches!(futures::executor::block_on(ack), Err(Error::Closed(_))));
    }
}

#[test]
fn shards_are_chosen_as_the_configuration_says() {
    let chosen = |partitioner, key: Option<&[u8]>| {
        let mut state =
            ProducerCore::new(4, APPEND_BYTES_MAX, ProducerSettings { partitioner, ..config() }, None);
        (0..8_u64).map(|n| state.choose_shard(key, || n * 3)).collect::<Vec<_>>()
    };
    assert_eq!(chosen(Partitioner::RoundRobin, Some(b"key")), [1, 2, 3, 0, 1, 2, 3, 0]);
    assert_eq!(chosen(Partitioner::Key, None), [1, 2, 3, 0, 1, 2, 3, 0]);
    assert_eq!(chosen(Partitioner::Random, Some(b"key")), [0, 3, 2, 1, 0, 3, 2, 1]);
    // As Kafka: murmur2("foobar") = -790332482, made positive, modulo 4.
    let expected = ((-790_332_482_i32 & 0x7fff_ffff) % 4) as u32;
    assert!(chosen(Partitioner::Key, Some(b"foobar")).iter().all(|shard| *shard == expected));
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// Refused before anything was done.
    Overloaded,
    /// Done, but the answer is lost.
    AnswerLost,
    /// Only the first batch was done, the others refused.
    Cut,
}

proptest! {
    /// Whatever happens to calls, and in whichever order their answers come: every record is acknowledged, and the
    /// node has each once and in order.
    #[test]
    fn every_record_is_appended_once_and_in_order(
        steps in prop::collection::vec((0_u8..4, 0_u32..3, 0_usize..400), 1..200),
        idempotent in prop::bool::weighted(0.8),
    ) {
        let mut rig = Rig::new(ProducerSettings { idempotent, ..config() });
        let mut under_way: VecDeque<Vec<Sealed>> = VecDeque::new();
        for (number, (what, shard, len)) in steps.into_iter().enumerate() {
            rig.calls = under_way.len();
            match what {
                0 | 1 => drop(rig.put(shard, &[&(number as u32).to_le_bytes()[..], &vec![0; len]].concat())),
                2 => {
                    // As on the wire: the node does what it does in the order of sending.
                    let batches = rig.take();
                    if !batches.is_empty() {
                        under_way.push_back(batches);
                    }
                }
                _ => {
                    rig.now = rig.now + Duration::from_millis(len as u64);
                    let Some(batches) = under_way.pop_front() else { continue };
                    let fate = match len % 5 {
                        0 => Fate::Overloaded,
                        // Without sequences an answer that is lost makes a record come twice.
                        1 if idempotent => Fate::AnswerLost,
                        2 => Fate::Cut,
                        _ => Fate::Answered,
                    };
                    let mut outcomes = Vec::new();
                    for (index, batch) in batches.into_iter().enumerate() {
                        let outcome = match fate {
                            Fate::Answered => rig.append(&batch),
                            Fate::AnswerLost => {
                                drop(rig.append(&batch));
                                Outcome::Retry(refused(CallErrorCode::StorageFailed))
                            }
                            Fate::Cut if index == 0 => rig.append(&batch),
                            Fate::Cut | Fate::Overloaded => Outcome::Retry(refused(CallErrorCode::Overloaded)),
                        };
                        outcomes.push((batch, outcome));
                    }
                    rig.state.answered(rig.now, outcomes);
                }
            }
        }
        rig.calls = 0;
        for batches in under_way {
            rig.answer(batches);
        }
        rig.settle_in_order();
    }
}
