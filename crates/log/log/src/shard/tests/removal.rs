//! What truncation and retention remove, and when.

use super::*;

#[test]
fn truncation_moves_the_start_at_record_granularity_and_deletes_what_lies_before() {
    let mut world = world(StreamConfig { segment_bytes: 4_096, ..config() });
    for _ in 0..5 {
        drop(world.append(15));
        world.settle_all();
    }
    assert_eq!(world.recorded.len(), 2);
    world.truncate(40);
    world.work();
    assert_eq!(world.truncated, [Ok(Offset(40))]);
    assert_eq!(world.shard.tail().log_start, Offset(40));
    assert_eq!((world.deleted.len(), world.recorded.len()), (1, 1), "0 to 29 are wholly before it");
    assert_eq!(world.tails.last().expect("told").log_start, Offset(40));

    world.truncate(20);
    world.truncate(76);
    let end = Offset(75);
    assert_eq!(
        world.truncated[1..],
        [Ok(Offset(40)), Err(StreamError::BeyondEnd { end, given: Offset(76) })]
    );
    world.truncate(75);
    world.work();
    assert_eq!(world.recorded.len(), 0);
    assert_eq!(world.segments.len(), 1, "the open segment stays");
}

#[test]
fn a_truncation_of_what_is_not_synced_is_recorded_once_it_is() {
    let mut world = world(StreamConfig { durability: StreamDurability::Interval, ..config() });
    drop(world.append(4));
    world.settle_all();
    world.sync(world.journal);
    drop(world.append(4));
    world.settle_all();
    world.truncate(6);
    world.work();
    assert!(world.truncated.is_empty());
    assert_eq!(world.shard.tail().log_start, Offset(4), "what is synced goes at once");
    assert_eq!(world.shard.awaited_sync(), Some(JournalPosition(world.journal)), "and the rest soon");
    world.sync(world.journal);
    assert!(world.shard.is_truncating());
    world.work();
    assert_eq!(world.truncated, [Ok(Offset(6))]);
    assert_eq!((world.shard.is_truncating(), world.shard.awaited_sync()), (false, None));
}

#[test]
fn a_truncation_of_what_is_lost_afterwards_goes_as_far_as_the_log_does() {
    for synced in [0, 4] {
        let mut world = world(StreamConfig { durability: StreamDurability::Interval, ..config() });
        if synced > 0 {
            drop(world.append(synced));
            world.settle_all();
            world.sync(world.journal);
        }
        drop(world.append(4));
        world.settle_all();
        world.commits = false;
        world.truncate(synced as u64 + 4);
        // Synced part and all: metadata does not say whether it took it, and is asked again behind the loss.
        let change = world.shard.next_change(world.now());
        world.lose();
        if change.is_some() {
            world.answer_commit(Err(ChangeError::Unavailable("no answer".to_owned())));
        }
        world.commits = true;
        world.now_ms += crate::limits::COMMIT_RETRY.as_millis() as u64;
        world.work();
        let end = Offset(synced as u64);
        let tail = world.shard.tail();
        assert_eq!((tail.log_start, tail.next_offset), (end, end));
        assert!(tail.is_possible());
        assert_eq!(world.truncated.len(), 1, "somebody waits for the answer");

        let reply = world.append(1);
        world.settle_all();
        assert_eq!(offsets(reply), (synced as u64, synced as u64));
    }
}

#[test]
fn retention_deletes_completed_segments_and_rolls_the_last_one_first() {
    let mut world = world(StreamConfig { retention_ms: Some(1_000), ..config() });
    drop(world.append(3));
    world.settle_all();
    world.tick(999);
    assert!(world.sealed.is_empty());
    world.tick(1);
    assert_eq!(world.sealed.len(), 1);
    world.tick(1_000);
    assert_eq!(world.deleted.len(), 1);
    let tail = world.shard.tail();
    assert_eq!((tail.log_start, tail.next_offset), (Offset(3), Offset(3)));

    // Numbers and offsets go on, also over a restart with nothing left.
    world.restart(config());
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (3, 3));
    assert_eq!((world.shard.tail().segment, world.shard.tail().term), (SegmentNumber(1), Term(2)));
}

#[test]
fn retention_by_bytes_keeps_at_least_that_much() {
    let mut world = world(StreamConfig { retention_bytes: Some(4_096), segment_bytes: 4_096, ..config() });
    for _ in 0..20 {
        drop(world.append(15));
        world.settle_all();
        world.tick(1);
    }
    let left: u64 = world.segments.values().flatten().map(|entry| entry.len() as u64).sum();
    assert!((4_096..12_288).contains(&left), "{left}");
    assert_eq!(world.recorded.len() + world.deleted.len(), world.sealed.len());
}
