use proptest::prelude::*;

use super::*;

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
fn an_unknown_producer_may_begin_anywhere_and_one_that_failed_at_once_is_unknown() {
    let mut producers = Producers::default();
    assert_eq!(producers.check(claim(2, 99, 1)), Verdict::Append);
    producers.accept(claim(2, 99, 1), Offset(0));
    producers.take_back(Offset(0));
    assert!(producers.is_empty());
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

#[test]
fn a_flood_of_producers_forgets_the_oldest_and_never_one_with_pending_batches() {
    let mut producers = Producers::default();
    producers.accept(claim(0, 0, 1), Offset(0));
    for id in 0..3 * PRODUCERS_PER_SHARD_MAX as i64 {
        let stranger = Claim { producer: 100 + id, epoch: 0, first: 0, count: 1 };
        producers.replay(stranger, Offset(1 + id as u64), id);
    }
    assert!(producers.table.len() <= PRODUCERS_PER_SHARD_MAX);
    producers.settle(7, 0);
    let last = Claim { producer: 99 + 3 * PRODUCERS_PER_SHARD_MAX as i64, epoch: 0, first: 0, count: 1 };
    assert!(matches!(producers.check(last), Verdict::Duplicate(_)));
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
                snapshot = (at, whole.snapshot());
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
        prop_assert_eq!(rebuilt.snapshot(), whole.snapshot());
    }
}
