//! Who owns a shard, and what metadata says to its changes.

use super::*;

#[test]
fn the_first_append_after_a_start_claims_a_term_and_later_ones_do_not() {
    let mut world = world(config());
    world.commits = false;
    let mut reply = world.append(1);
    world.work();
    assert!(is_waiting(&mut reply) && world.segments.is_empty(), "no segment before the claim is durable");
    world.commits = true;
    world.settle_all();
    assert_eq!(offsets(reply), (0, 0));
    drop(world.append(1));
    world.settle_all();
    let (record, version) = world.record.expect("claimed");
    assert_eq!((record.term, record.owner, version), (Term(1), OWNER, 1));
}

#[test]
fn an_owner_that_was_replaced_answers_so_and_writes_nothing_more() {
    let mut world = world(config());
    world.record = Some((ShardRecord { term: Term(5), ..ShardRecord::default() }, 7));
    let reply = world.append(1);
    world.work();
    assert_eq!(error(reply), AppendError::NotOwner);
    assert_eq!(error(world.append(1)), AppendError::NotOwner);
    assert!(world.segments.is_empty());
}

#[test]
fn a_fenced_store_ends_the_ownership() {
    let mut world = world(config());
    drop(world.append(1));
    world.settle_all();
    world.refuse = Some(WriteError::Fenced);
    let reply = world.append(1);
    world.work();
    assert_eq!(error(reply), AppendError::NotOwner);
}

#[test]
fn a_claim_whose_answer_was_lost_is_recognized_as_our_own() {
    let mut world = world(config());
    world.commits = false;
    let reply = world.append(1);
    let change = world.shard.next_change(world.now()).expect("a claim");
    world.commit(&change).expect("it took place");
    world.answer_commit(Err(ChangeError::Unavailable("no answer".into())));
    assert!(matches!(error(reply), AppendError::Unavailable(_)));

    world.commits = true;
    let reply = world.append(1);
    world.work();
    assert!(world.segments.is_empty(), "not before the pause is over");
    world.now_ms += COMMIT_RETRY_MS;
    world.settle_all();
    assert_eq!(offsets(reply), (0, 0));
    assert_eq!(world.record.expect("claimed").0.term, Term(1));
}

#[test]
fn what_metadata_can_not_take_is_told_to_whoever_waits_and_not_repeated_all_the_time() {
    let mut world = world(config());
    world.commits = false;
    let waiting = world.append(1);
    world.shard.next_change(world.now()).expect("a claim");
    let mut out = Vec::new();
    let refused = ChangeError::Refused("the value has 2 MiB".into());
    world.shard.committed(world.now(), Err(refused), &mut out);
    world.perform(out);
    for reply in [waiting, world.append(1)] {
        let error = error(reply);
        assert!(!error.is_retriable(), "{error:?}");
        assert!(error.to_string().contains("the value has 2 MiB; trying again does not help"), "{error}");
    }
    assert_eq!(world.shard.next_change(world.now()), None, "nothing is repeated");
    world.now_ms += COMMIT_RETRY_MS;
    assert_eq!(world.shard.next_change(world.now()), None, "nor soon");
    // What there is to record may be something else by now.
    world.now_ms += crate::limits::COMMIT_REFUSED_PAUSE.as_millis() as u64;
    world.commits = true;
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (0, 0));
}

#[test]
fn a_truncation_that_metadata_can_not_take_is_refused_and_does_not_happen_later() {
    let mut world = world(config());
    drop(world.append(4));
    world.settle_all();
    world.commits = false;
    world.truncate(3);
    world.shard.next_change(world.now()).expect("the truncation");
    world.answer_commit(Err(ChangeError::Refused("no".into())));
    world.truncate(2);
    let refused = || Err(StreamError::Refused("no".to_owned()));
    assert_eq!(world.truncated, [refused(), refused()]);
    world.commits = true;
    world.now_ms += crate::limits::COMMIT_REFUSED_PAUSE.as_millis() as u64;
    world.work();
    assert_eq!(world.shard.tail().log_start, Offset(0));
    // And it ends, though metadata can't be told of the segment.
    world.commits = false;
    world.close();
    assert!(!world.closed, "the segment waits to be recorded");
    world.shard.next_change(world.now()).expect("the segment");
    world.answer_commit(Err(ChangeError::Refused("no".into())));
    world.close();
    assert!(world.closed);
}

const COMMIT_RETRY_MS: u64 = crate::limits::COMMIT_RETRY.as_millis() as u64;

#[test]
fn an_append_for_another_term_is_refused() {
    let mut world = world(config());
    let reply = world.offer(batch(&[1], None), Some(Term(3)), TransactionIds::RunningMaximum);
    assert_eq!(error(reply), AppendError::Term { current: Term(1), given: Term(3) });
    let reply = world.offer(batch(&[1], None), Some(Term(1)), TransactionIds::RunningMaximum);
    world.settle_all();
    assert_eq!(offsets(reply), (0, 0));
}
