use proptest::prelude::*;

use tailwater_meta::limits::VALUE_BYTES_MAX;

use super::*;
use crate::limits::REFUSED_PRODUCERS;
use crate::stream::ProducersRecord;

fn claim(epoch: i16, first: i32, count: u32) -> Claim {
    Claim { producer: 7, epoch, first, count }
}

/// Accepts what `check` allows and makes it durable.
fn append(producers: &mut Producers, claim: Claim, base: u64) {
    assert_eq!(producers.check(claim), Verdict::Append);
    producers.accept(claim, Offset(base));
    producers.settle(claim.producer, 0);
}

#[test]
fn batches_in_sequence_are_appended_and_repeated_ones_are_recognized() {
    let mut producers = Producers::default();
    append(&mut producers, claim(0, 0, 10), 100);
    append(&mut producers, claim(0, 10, 1), 110);
    assert_eq!(producers.check(claim(0, 0, 10)), Verdict::Duplicate(Offset(100)));
    assert_eq!(producers.check(claim(0, 10, 1)), Verdict::Duplicate(Offset(110)));
    // The same first record with another count is no duplicate.
    assert!(matches!(producers.check(claim(0, 0, 9)), Verdict::Refused(SequenceError::OutOfOrder { .. })));
}

#[test]
fn a_gap_is_refused_with_the_expected_number() {
    let mut producers = Producers::default();
    append(&mut producers, claim(0, 0, 10), 0);
    let refused = SequenceError::OutOfOrder { producer: 7, expected: 10, given: 11 };
    assert_eq!(producers.check(claim(0, 11, 1)), Verdict::Refused(refused));
}

#[test]
fn only_the_last_five_batches_are_recognized() {
    let mut producers = Producers::default();
    for sequence in 0..6 {
        append(&mut producers, claim(0, sequence, 1), sequence as u64);
    }
    assert!(matches!(producers.check(claim(0, 0, 1)), Verdict::Refused(_)));
    for sequence in 1..6 {
        assert_eq!(producers.check(claim(0, sequence, 1)), Verdict::Duplicate(Offset(sequence as u64)));
    }
}

#[test]
fn a_later_epoch_starts_at_zero_and_shuts_out_the_earlier() {
    let mut producers = Producers::default();
    append(&mut producers, claim(3, 0, 5), 0);
    assert!(matches!(producers.check(claim(4, 5, 1)), Verdict::Refused(SequenceError::OutOfOrder { .. })));
    append(&mut producers, claim(4, 0, 1), 5);
    let refused = SequenceError::Epoch { producer: 7, current: 4, given: 3 };
    assert_eq!(producers.check(claim(3, 5, 1)), Verdict::Refused(refused));
}

#[test]
fn sequence_numbers_wrap_to_zero() {
    let mut producers = Producers::default();
    append(&mut producers, claim(0, i32::MAX - 1, 2), 0);
    append(&mut producers, claim(0, 0, 3), 2);
    append(&mut producers, claim(0, 3, 1), 5);
    append(&mut producers, Claim { producer: 8, epoch: 0, first: i32::MAX, count: 3 }, 6);
    append(&mut producers, Claim { producer: 8, epoch: 0, first: 2, count: 1 }, 9);
}

#[test]
fn what_fails_before_it_is_durable_never_came() {
    let mut producers = Producers::default();
    append(&mut producers, claim(0, 0, 1), 0);
    for sequence in 1..8 {
        producers.accept(claim(0, sequence, 1), Offset(sequence as u64));
    }
    assert_eq!(producers.check(claim(0, 5, 1)), Verdict::Duplicate(Offset(5)));
    producers.settle(7, 0);
    producers.take_back(Offset(2));
    assert_eq!(producers.check(claim(0, 1, 1)), Verdict::Duplicate(Offset(1)));
    assert_eq!(producers.check(claim(0, 2, 1)), Verdict::Append);
    assert_eq!(producers.check(claim(0, 0, 1)), Verdict::Duplicate(Offset(0)));
}

#[test]
fn an_unknown_producer_may_begin_anywhere_and_one_that_failed_at_once_only_with_what_failed_first() {
    let mut producers = Producers::default();
    assert_eq!(producers.check(claim(2, 99, 1)), Verdict::Append);
    producers.accept(claim(2, 99, 1), Offset(0));
    producers.accept(claim(2, 100, 5), Offset(1));
    producers.take_back(Offset(0));
    assert!(producers.is_empty());
    let refused = SequenceError::OutOfOrder { producer: 7, expected: 99, given: 100 };
    assert_eq!(producers.check(claim(2, 100, 5)), Verdict::Refused(refused));
    // What failed; what was before it, of which others know whether it is there; a new incarnation.
    for next in [claim(2, 99, 1), claim(2, 98, 1), claim(3, 0, 1)] {
        assert_eq!(producers.check(next), Verdict::Append);
    }
    append(&mut producers, claim(2, 99, 1), 0);
    assert_eq!(producers.check(claim(2, 100, 5)), Verdict::Append);
    // It was forgotten, and goes on: nothing failed since.
    producers.expire(i64::MAX);
    assert_eq!(producers.check(claim(2, 105, 5)), Verdict::Append);
}

#[test]
fn what_fails_behind_what_is_lost_with_it_later_is_expected_first() {
    let mut producers = Producers::default();
    // Acknowledged before it was synced, and two behind it.
    append(&mut producers, claim(0, 0, 5), 0);
    producers.accept(claim(0, 5, 1), Offset(5));
    producers.accept(claim(0, 6, 1), Offset(6));
    producers.take_back(Offset(5));
    producers.take_back(Offset(0));
    assert!(producers.is_empty());
    assert!(matches!(producers.check(claim(0, 7, 1)), Verdict::Refused(_)));
    assert_eq!(producers.check(claim(0, 5, 1)), Verdict::Append);
}

#[test]
fn a_refused_repetition_of_what_is_there_does_not_hold_back_a_producer_that_was_forgotten_meanwhile() {
    let mut producers = Producers::default();
    append(&mut producers, claim(0, 9, 1), 0);
    producers.refused().note(claim(0, 9, 1));
    assert_eq!(producers.check(claim(0, 9, 1)), Verdict::Duplicate(Offset(0)));
    producers.take_back(Offset(0));
    assert_eq!(producers.check(claim(0, 10, 1)), Verdict::Append);
    append(&mut producers, claim(0, 10, 1), 0);
    producers.refused().note(claim(0, 11, 1));
    producers.expire(i64::MAX);
    assert_eq!(producers.check(claim(0, 12, 1)), Verdict::Append);
}

#[test]
fn what_is_refused_before_it_comes_to_the_shard_holds_back_what_comes_behind_it() {
    let mut producers = Producers::default();
    // As many as are remembered, and one that is not any more.
    for id in 0..=REFUSED_PRODUCERS as i64 {
        producers.refused().note(Claim { producer: 100 + id, ..claim(0, 0, 1) });
    }
    assert_eq!(producers.check(Claim { producer: 100, ..claim(0, 1, 1) }), Verdict::Append);
    let behind = Claim { producer: 101, ..claim(0, 1, 1) };
    assert!(matches!(producers.check(behind), Verdict::Refused(_)));
    // The first counts, also around the end of all numbers.
    for sequence in [5, i32::MAX - 1, 3, i32::MAX] {
        producers.refused().note(claim(0, sequence, 1));
    }
    assert_eq!(producers.check(claim(0, i32::MAX - 1, 1)), Verdict::Append);
    for sequence in [i32::MAX, 0, 3] {
        assert!(matches!(producers.check(claim(0, sequence, 1)), Verdict::Refused(_)), "{sequence}");
    }
    // Whoever is known goes on as what is known says.
    append(&mut producers, claim(0, i32::MAX - 1, 1), 0);
    producers.refused().note(claim(0, i32::MAX, 1));
    assert_eq!(producers.check(claim(0, i32::MAX, 1)), Verdict::Append);
    assert!(matches!(producers.check(claim(0, 0, 1)), Verdict::Refused(_)));
}

#[test]
fn a_snapshot_has_what_is_before_its_end_and_the_rest_is_replayed() {
    let mut producers = Producers::default();
    for sequence in 0..8 {
        append(&mut producers, claim(0, sequence, 1), sequence as u64);
    }
    let rebuilt = Producers::restore(producers.snapshot(Offset(6)));
    assert_eq!(rebuilt.check(claim(0, 6, 1)), Verdict::Append);
    assert_eq!(rebuilt.check(claim(0, 5, 1)), Verdict::Duplicate(Offset(5)));
    assert!(producers.snapshot(Offset(3)).is_empty(), "of the last five, none is before it");
}

#[test]
fn producers_expire_after_a_day_without_appends() {
    let mut producers = Producers::default();
    producers.replay(claim(0, 0, 1), Offset(0), 1_000);
    producers.expire(1_000 + PRODUCER_EXPIRY_MS - 1);
    assert!(!producers.is_empty());
    producers.expire(1_000 + PRODUCER_EXPIRY_MS);
    assert!(producers.is_empty());
}

/// Bytes of a snapshot as metadata gets it.
fn snapshot_bytes(producers: &Producers) -> usize {
    let upto = Offset(u64::MAX);
    let record =
        ProducersRecord { term: tailwater_format::Term(u32::MAX), upto, producers: producers.snapshot(upto) };
    record.encode().len()
}

#[test]
fn a_flood_of_producers_forgets_the_oldest_and_never_one_with_pending_batches() {
    let mut producers = Producers::default();
    producers.accept(claim(0, 0, 1), Offset(0));
    let stranger = |id: i64| Claim { producer: i64::MAX - id, epoch: i16::MAX, first: i32::MAX, count: 1 };
    for id in 0..60_000 {
        producers.replay(stranger(id), Offset(u64::MAX - 60_000 + id as u64), i64::MAX - 60_000 + id);
    }
    assert!(producers.bytes <= PRODUCERS_BYTES_MAX);
    assert!(snapshot_bytes(&producers) <= VALUE_BYTES_MAX);
    producers.settle(7, 0);
    assert!(matches!(producers.check(stranger(59_999)), Verdict::Duplicate(_)));
    assert_eq!(producers.check(stranger(0)), Verdict::Append, "forgotten");
}

#[test]
fn a_day_of_producers_of_one_batch_each_every_five_seconds_is_remembered() {
    let mut producers = Producers::default();
    let one = |id: i64| Claim { producer: id, epoch: 0, first: 0, count: 100 };
    let (last, in_a_day) = (30_000, PRODUCER_EXPIRY_MS / 5_000);
    for id in 0..=last {
        producers.replay(one(id), Offset(id as u64 * 100), id * 5_000);
        if id % 12 == 0 {
            producers.expire(id * 5_000);
        }
    }
    for id in last - in_a_day + 1..=last {
        assert!(matches!(producers.check(one(id)), Verdict::Duplicate(_)), "{id} of {last}");
    }
    let rebuilt = Producers::restore(producers.snapshot(Offset(u64::MAX)));
    assert_eq!(rebuilt.snapshot(Offset(u64::MAX)), producers.snapshot(Offset(u64::MAX)));
}

#[test]
fn more_producers_with_batches_pending_than_a_snapshot_has_room_for_are_all_told_apart_and_the_newest_saved()
{
    let mut producers = Producers::default();
    let one = |id: i64, first: i32| Claim { producer: i64::MAX - id, epoch: i16::MAX, first, count: 1 };
    for id in 0..30_000 {
        producers.accept(one(id, 0), Offset(u64::MAX - 60_000 + id as u64));
    }
    for id in 0..30_000 {
        assert!(matches!(producers.check(one(id, 0)), Verdict::Duplicate(_)));
        producers.settle(i64::MAX - id, i64::MAX - 30_000 + id);
    }
    assert!(producers.bytes > PRODUCERS_BYTES_MAX);
    assert!(snapshot_bytes(&producers) <= VALUE_BYTES_MAX);
    let rebuilt = Producers::restore(producers.snapshot(Offset(u64::MAX)));
    assert!(matches!(rebuilt.check(one(29_999, 0)), Verdict::Duplicate(_)));
    // The next look finds that they can be forgotten.
    producers.expire(i64::MAX);
    assert!(producers.bytes <= PRODUCERS_BYTES_MAX);
    assert!(matches!(producers.check(one(29_999, 0)), Verdict::Duplicate(_)));
}

proptest! {
    /// A table rebuilt from a snapshot taken anywhere plus the later batches answers as the table itself.
    #[test]
    fn snapshot_and_replay_rebuild_the_table(
        batches in prop::collection::vec((0i64..4, 1u32..5, prop::bool::weighted(0.1)), 1..80),
        cut in 0usize..80,
    ) {
        let mut whole = Producers::default();
        let mut log = Vec::new();
        let mut next = std::collections::BTreeMap::<i64, (i16, i32)>::new();
        let mut snapshot = (0, Vec::new());
        for (at, &(producer, count, bump)) in batches.iter().enumerate() {
            if at == cut {
                snapshot = (at, whole.snapshot(Offset(u64::MAX)));
            }
            let (epoch, first) = next.entry(producer).or_default();
            if bump {
                (*epoch, *first) = (*epoch + 1, 0);
            }
            let claim = Claim { producer, epoch: *epoch, first: *first, count };
            *first += count as i32;
            prop_assert_eq!(whole.check(claim), Verdict::Append);
            whole.replay(claim, Offset(at as u64), at as i64);
            log.push(claim);
        }
        let mut rebuilt = Producers::restore(snapshot.1);
        for (at, &claim) in log.iter().enumerate().skip(snapshot.0) {
            rebuilt.replay(claim, Offset(at as u64), at as i64);
        }
        prop_assert_eq!(rebuilt.snapshot(Offset(u64::MAX)), whole.snapshot(Offset(u64::MAX)));
        prop_assert_eq!(rebuilt.bytes, rebuilt.table.values().map(Producer::bytes).sum::<usize>());
    }
}
