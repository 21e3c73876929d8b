//! What is made of answers, without a session.

use tailwater_format::{
    BatchBuilder, Codec, EntryFields, EntryId, Position, SegmentId, SegmentNumber, Term, TransactionId,
    encode_entry,
};
use uuid::Uuid;

use super::*;
use crate::limits::WINDOW;

fn stream() -> StreamId {
    StreamId(Uuid::from_u128(7))
}

fn shard() -> ShardId {
    ShardId { stream: stream(), shard: ShardNumber(0) }
}

/// A copy in eu of one shard, which has the records from `start` to `next`.
fn follow(start: u64, next: u64) -> Follow {
    let tail = Tail {
        segment: SegmentNumber(0),
        term: Term(3),
        base_offset: Offset(start),
        cached: Position(0),
        durable: Position(0),
        next_offset: Offset(next),
        sealed: false,
        previous: None,
        chunk_bytes: 4_096,
        cells: true,
        log_start: Offset(start),
    };
    let mut follow = Follow::new(stream(), "eu", "us", &[tail]);
    let plain = CopyNext { session: 7, ..CopyNext::default() };
    (0..WINDOW as u64).for_each(|number| assert_eq!(follow.question(7), (number, plain.clone())));
    follow
}

/// An entry with so many records from `base` on.
fn entry(base: u64, count: u32) -> Bytes {
    let mut builder = BatchBuilder::new();
    for _ in 0..count {
        builder.append(None, Some(b"value"), &[], 1_000).expect("small");
    }
    let fields = EntryFields {
        segment: SegmentId { shard: shard(), number: SegmentNumber(0), term: Term(3) },
        entry_id: EntryId(0),
        base_offset: Offset(base),
        record_count: count,
        transaction_id: TransactionId(1_000),
    };
    encode_entry(&fields, &[builder.finish(Codec::None)])
}

fn answer(sequence: u64, log_start: u64, entries: &[Bytes]) -> CopyEntries {
    let news = CopiedShard {
        shard: 0,
        entries: entries.concat().into(),
        log_start,
        next_offset: 100,
        behind_bytes: 0,
        why: String::new(),
    };
    CopyEntries { sequence, shards: vec![news], way: vec!["us".to_owned()] }
}

/// What is to be done with the log, in words.
fn done(steps: &[FollowStep]) -> Vec<String> {
    let words = |step: &FollowStep| match step {
        FollowStep::Begin(_, offset) => Some(format!("begin at {offset}")),
        FollowStep::Append(_, _, copied) => {
            Some(format!("append {} up to {}", copied.records, copied.next_offset))
        }
        FollowStep::Way(_) | FollowStep::Told(_) => None,
    };
    steps.iter().filter_map(words).collect()
}

#[test]
fn answers_that_overtake_each_other_are_taken_in_their_order() {
    let mut follow = follow(0, 0);
    assert!(follow.answer(1, answer(1, 0, &[entry(2, 2)])).expect("early").is_empty());
    let steps = follow.answer(0, answer(0, 0, &[entry(0, 2)])).expect("the next one");
    assert_eq!(done(&steps), ["append 2 up to 2", "append 2 up to 4"]);
}

#[test]
fn an_answer_that_comes_twice_or_was_not_asked_for_ends_the_session() {
    let mut twice = follow(0, 0);
    twice.answer(0, answer(0, 0, &[])).expect("the first");
    assert!(twice.answer(0, answer(0, 0, &[])).is_err());
    assert!(follow(0, 0).answer(0, answer(WINDOW as u64, 0, &[])).is_err());
    let mut early = follow(0, 0);
    early.answer(3, answer(3, 0, &[])).expect("early");
    assert!(early.answer(3, answer(3, 0, &[])).is_err());
}

#[test]
fn offsets_that_no_shard_has_end_the_session() {
    assert!(follow(0, 0).answer(0, answer(0, 101, &[])).is_err());
    let mut beyond = answer(0, 0, &[]);
    beyond.shards[0].next_offset = u64::MAX;
    assert!(follow(0, 0).answer(0, beyond).is_err());
}

#[test]
fn what_the_copy_has_is_left_out() {
    let steps =
        follow(0, 4).answer(0, answer(0, 0, &[entry(0, 2), entry(2, 2), entry(4, 1)])).expect("taken");
    assert_eq!(done(&steps), ["append 1 up to 5"]);
}

#[test]
fn records_that_are_missing_end_the_session_unless_their_source_has_removed_them() {
    let error = follow(0, 4).answer(0, answer(0, 4, &[entry(6, 2)])).expect_err("5 is missing");
    assert!(error.contains("offsets 4 to 6 are missing"), "{error}");
    let mut behind = follow(0, 4);
    let steps = behind.answer(0, answer(0, 6, &[entry(6, 2)])).expect("a gap");
    assert_eq!(done(&steps), ["begin at 6", "append 2 up to 8"]);
    assert_eq!(behind.truncations(), [(shard(), Offset(6))]);
    assert!(behind.truncations().is_empty(), "it is under way");
    behind.truncated(ShardNumber(0), None);
    assert_eq!(behind.truncations(), [(shard(), Offset(6))]);
    behind.truncated(ShardNumber(0), Some(Offset(6)));
    assert!(behind.truncations().is_empty());
}

#[test]
fn where_all_is_removed_a_copy_goes_on_behind_it() {
    let steps = follow(0, 4).answer(0, answer(0, 9, &[])).expect("taken");
    assert_eq!(done(&steps), ["begin at 9"]);
}

#[test]
fn a_way_that_leads_back_ends_the_session() {
    let leads_back = CopyEntries { way: vec!["asia".to_owned(), "eu".to_owned()], ..answer(0, 0, &[]) };
    let error = follow(0, 0).answer(0, leads_back).expect_err("a cycle");
    assert!(error.contains("is made from the one here"), "{error}");
    assert!(follow(0, 0).check_way(&["us".to_owned()]).is_ok());
}

#[test]
fn bytes_that_are_no_entries_end_the_session() {
    let torn = entry(0, 2).slice(..40);
    assert!(follow(0, 0).answer(0, answer(0, 0, &[torn])).is_err());
    let other = CopiedShard { shard: 1, ..CopiedShard::default() };
    let of_another_shard = CopyEntries { shards: vec![other], ..answer(0, 0, &[]) };
    assert!(follow(0, 0).answer(0, of_another_shard).is_err());
    let whole = entry(0, 2);
    assert!(follow(0, 0).answer(0, answer(0, 0, &[whole.slice(..whole.len() - 1)])).is_err());
}

#[test]
fn a_shard_that_is_held_takes_nothing_until_the_answer_to_the_question_that_has_it_go_on() {
    let mut follow = follow(0, 0);
    follow.answer(0, answer(0, 0, &[entry(0, 2)])).expect("flowing");
    follow.hold(ShardNumber(0));
    let (hold, held) = follow.question(7);
    assert_eq!((held.hold, held.from), (vec![0], vec![]));
    let steps = follow.answer(1, answer(1, 0, &[entry(2, 2)])).expect("was on its way");
    assert!(done(&steps).is_empty());
    // The log has taken back what it had in flight.
    follow.resume(ShardNumber(0), Offset(1), Offset(0));
    assert!(follow.is_held(ShardNumber(0)) && !follow.has_news(), "one question at a time tells of it");
    follow.answer(hold, answer(2, 0, &[])).expect("it overtook the others");
    assert!(follow.has_news());
    let (resume, resumed) = follow.question(7);
    assert_eq!((resumed.hold, resumed.from), (vec![], vec![CopyFrom { shard: 0, next_offset: 1 }]));
    // What was asked before would leave something out.
    let steps = follow.answer(2, answer(3, 0, &[entry(4, 2)])).expect("was on its way");
    assert!(done(&steps).is_empty());
    let steps = follow.answer(resume, answer(4, 0, &[entry(0, 2), entry(2, 1)])).expect("goes on");
    assert_eq!(done(&steps), ["append 2 up to 2", "append 1 up to 3"]);
    assert!(!follow.is_held(ShardNumber(0)));
}

#[test]
fn a_shard_that_is_held_again_before_it_went_on_stays_held() {
    let mut follow = follow(0, 0);
    follow.hold(ShardNumber(0));
    let (hold, _) = follow.question(7);
    follow.answer(hold, answer(0, 0, &[])).expect("told");
    follow.resume(ShardNumber(0), Offset(0), Offset(0));
    let (resume, _) = follow.question(7);
    follow.hold(ShardNumber(0));
    let steps = follow.answer(resume, answer(1, 0, &[entry(0, 2)])).expect("told");
    assert!(done(&steps).is_empty() && follow.is_held(ShardNumber(0)));
    assert_eq!(follow.question(7).1.hold, vec![0], "the cluster above is told again");
}
