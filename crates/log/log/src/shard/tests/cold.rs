//! Segments that are copied to cold storage, leave the store, are removed and come back. What must hold is checked with
//! each output by the [`World`]: with mistakes that are planted, too.

use super::*;
use crate::planted::ShardMistake;

fn cold() -> StreamConfig {
    StreamConfig { cold: true, cold_after_ms: Some(100), ..short_segments() }
}

/// A shard with so many completed segments of 30 records, and an open one.
fn world(config: StreamConfig, segments: usize, kept_ms: u64) -> World {
    let mut world = World::new(config);
    take_in(&mut world, &format!("cold {kept_ms}"));
    for _ in 0..segments * 2 + 1 {
        take_in(&mut world, "append a 15; all");
    }
    world.lines.lock().clear();
    world
}

fn told(world: &World) -> Vec<String> {
    world.lines.lock().drain(..).collect()
}

#[test]
fn a_segment_leaves_the_store_when_metadata_names_its_copy_and_its_time_has_come() {
    let mut world = world(cold(), 2, 1_000);
    // Its time has come, and there is no copy.
    take_in(&mut world, "+100; tick");
    assert_eq!(told(&world), Vec::<String>::new());
    take_in(&mut world, "copied 0; proceed");
    assert_eq!(
        told(&world),
        ["commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied"]
    );
    take_in(&mut world, "tick; committed");
    assert_eq!(
        told(&world),
        ["show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60]", "name the copy of 0.1",]
    );
    take_in(&mut world, "tick; committed");
    assert_eq!(
        told(&world),
        [
            "commit behind 4: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, cold",
            "show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60]",
            "delete 0.1",
        ]
    );
    world.check_readable();
    take_in(&mut world, "restart; all; tick");
    world.check_readable();
    assert_eq!(world.shard.completed().filter(|segment| segment.is_released()).count(), 1);
}

#[test]
fn a_kill_between_the_record_and_the_deletion_is_made_good_at_the_next_start() {
    let mut world = world(cold(), 2, 1_000);
    take_in(&mut world, "+100; copied 0; all; tick");
    world.commit_unanswered().expect("nobody else is there");
    assert!(world.segments.keys().any(|id| id.number == SegmentNumber(0)), "it is in both");
    told(&world);
    take_in(&mut world, "restart");
    assert!(told(&world).contains(&"delete 0.1".to_owned()));
    world.check_readable();
}

#[test]
fn a_removed_segment_waits_for_its_copy_is_kept_and_comes_back() {
    let mut world = world(cold(), 3, 1_000);
    take_in(&mut world, "truncate 65; all");
    assert_eq!(world.shard.tail().log_start, Offset(65));
    assert_eq!(world.recorded.len(), 3, "none is copied, and so none is removed");
    take_in(&mut world, "copied 0; all; copied 1; all");
    assert_eq!(world.truncated.keys().copied().collect::<Vec<_>>(), [SegmentNumber(0), SegmentNumber(1)]);
    assert_eq!((world.copies.len(), world.named.len()), (2, 0));
    world.restore(Offset(40));
    take_in(&mut world, "all; tick; all");
    let answer = world.restored.pop().expect("asked").try_recv().expect("answered");
    assert_eq!(answer, Ok(Offset(40)));
    assert_eq!(world.shard.tail().log_start, Offset(40));
    world.check_readable();
    // What is before it is still kept, and comes back too.
    world.restore(Offset(0));
    take_in(&mut world, "all; restart; all");
    assert_eq!(world.shard.tail().log_start, Offset(0));
    world.check_readable();
    world.restore(Offset(0));
    let refused = world.restored.pop().expect("asked").try_recv().expect("answered").expect_err("nothing");
    assert!(refused.to_string().contains("begins at offset 0"), "{refused}");
}

#[test]
fn all_completed_segments_come_back_to_a_log_that_begins_within_the_open_one() {
    let mut world = world(cold(), 2, 1_000);
    take_in(&mut world, "copied 0; all; copied 1; all; truncate 70; all");
    assert_eq!((world.recorded.len(), world.truncated.len()), (0, 2));
    world.restore(Offset(0));
    take_in(&mut world, "all");
    assert_eq!(world.shard.tail().log_start, Offset(0));
    world.check_readable();
}

#[test]
fn what_retention_removed_and_is_restored_stays_for_as_long_as_copies_are_kept() {
    let config = StreamConfig { retention_ms: Some(200), ..cold() };
    let mut world = world(config, 2, 1_000);
    take_in(&mut world, "copied 0; all; copied 1; all; +200; tick; all; tick; all");
    assert_eq!(world.truncated.len(), 2);
    world.restore(Offset(0));
    take_in(&mut world, "all; +900; tick; all; tick; all");
    assert_eq!(world.shard.tail().log_start, Offset(0));
    take_in(&mut world, "+100; tick; all; tick; all");
    assert!(world.shard.tail().log_start >= Offset(60) && world.truncated.len() == 2);
    // And then they are forgotten, and their copies go.
    take_in(&mut world, "+1000; tick; all; tick; all");
    assert_eq!((world.truncated.len(), world.copies.len()), (0, 0));
}

#[test]
fn without_time_to_keep_a_copy_goes_with_its_segment_and_nothing_waits_for_one() {
    let mut world = world(cold(), 2, 0);
    take_in(&mut world, "copied 0; all; truncate 60; all");
    assert_eq!((world.recorded.len(), world.truncated.len(), world.copies.len()), (0, 0, 0));
}

#[test]
fn a_deleted_stream_leaves_no_copy_that_is_not_told_to_go() {
    let mut world = world(cold(), 3, 1_000);
    take_in(&mut world, "copied 0; copied 1; all; truncate 30; all; +100; tick; all; delete");
    assert_eq!((world.copies.len(), world.segments.len()), (0, 0));
}

/// What happens in some order that the seed says, with answers that are lost and kills in between.
fn random(seed: u64, planted: ShardMistake) {
    let mut state = seed;
    let mut draw = |bound: u64| {
        // Knuth's, good enough to choose.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let config = StreamConfig { retention_ms: Some(500), cold_after_ms: Some(draw(200)), ..cold() };
    let mut world = world(config, 2, 300);
    world.shard.plant(planted);
    for _ in 0..60 {
        let next = world.shard.tail().next_offset.0;
        match draw(12) {
            0..=2 => take_in(&mut world, "append a 15; all"),
            3..=4 => {
                let uncopied = world.shard.completed().find(|segment| segment.cold.is_none());
                if let Some(number) = uncopied.map(|segment| segment.number) {
                    world.copied(number);
                }
            }
            5..=6 => take_in(&mut world, "+60; tick"),
            7 => take_in(&mut world, &format!("truncate {}; proceed", draw(next + 1))),
            8 => world.restore(Offset(draw(next + 1))),
            9 if world.asked_meta.is_some() => take_in(&mut world, "uncommitted unanswered; +100; all"),
            10 if world.asked.is_none() => {
                // The answer is lost with the process, or was never given.
                if world.asked_meta.is_some() && draw(2) == 0 {
                    let _ = world.commit_unanswered();
                }
                take_in(&mut world, "restart");
            }
            _ => take_in(&mut world, "all"),
        }
        world.check_readable();
    }
    take_in(&mut world, "all; +10000; tick; all");
}

#[test]
fn whatever_happens_in_whatever_order_no_record_is_lost_and_no_named_copy_goes() {
    for seed in 0..300 {
        random(seed, ShardMistake::Nothing);
    }
}

#[test]
fn each_planted_mistake_is_caught() {
    for planted in
        [ShardMistake::LeavesBeforeNamed, ShardMistake::RemovedWithoutCopy, ShardMistake::CopyGoesFirst]
    {
        let is_caught = |seed| tailwater_env::panics::catch(|| random(seed, planted)).is_err();
        assert!((0..100).any(is_caught), "no seed finds {planted:?}");
    }
}
