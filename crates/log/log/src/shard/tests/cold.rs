//! Segments that are copied to cold storage, leave the store, are removed and come back. What must hold is checked with
//! each output by the [`World`]: with mistakes that are planted, too.

use super::*;
use crate::planted::ShardMistake;

fn cold() -> StreamConfig {
    StreamConfig { cold: true, cold_after_ms: Some(100), ..short_segments() }
}

#[test]
fn a_segment_leaves_the_store_when_metadata_names_its_copy_and_its_time_has_come() {
    transcript(
        cold(),
        "
        cold 1000; filled 2
        # Its time has come, and there is no copy.
        +100; tick
        copied 0; proceed
            -> commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied
        tick; committed
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60]
            -> name the copy of 0.1
        tick; committed
            -> commit behind 4: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, cold
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60]
            -> delete 0.1
        # It stays where it is over a restart.
        restart
            -> show 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60; 2.1@1784 of 60..75]
            -> seal 2.1@1784
            -> commit behind 5: term 1, starts 0, next segment 3; completed 2.1@1784 of 60..75
        all; tick
        ",
    );
}

#[test]
fn a_kill_between_the_record_and_the_deletion_is_made_good_at_the_next_start() {
    transcript(
        cold(),
        "
        cold 1000; filled 2
        +100; copied 0; all
            -> commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60]
            -> name the copy of 0.1
        tick
            -> commit behind 4: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, cold
        # It is in both, and the next start finds it.
        restart unanswered
            -> show 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60; 2.1@1784 of 60..75]
            -> seal 2.1@1784
            -> delete 0.1
            -> commit behind 5: term 1, starts 0, next segment 3; completed 2.1@1784 of 60..75
        ",
    );
}

#[test]
fn a_removed_segment_waits_for_its_copy_is_kept_and_comes_back() {
    transcript(
        cold(),
        "
        cold 1000; filled 3
        # None is copied, and so none is removed.
        truncate 65; all
            -> commit behind 4: term 1, starts 65, next segment 3
            -> show 3.1@1784, records 65..105, behind 2.1@3568
            -> update 3.1@1784, records 65..105, behind 2.1@3568
            -> truncated 65: starts 65
        copied 0; all
            -> commit behind 5: term 1, starts 65, next segment 3; now 0.1@3568 of 0..30, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60; 2.1@3568 of 60..90]
            -> name the copy of 0.1
            -> commit behind 6: term 1, starts 65, next segment 3; deleted 0; kept 0
            -> show completed [1.1@3568 of 30..60; 2.1@3568 of 60..90]
            -> delete 0.1
            -> hide the copy of 0.1
        copied 1; all
            -> commit behind 7: term 1, starts 65, next segment 3; now 1.1@3568 of 30..60, copied
            -> show completed [1.1@3568 of 30..60, copied; 2.1@3568 of 60..90]
            -> name the copy of 1.1
            -> commit behind 8: term 1, starts 65, next segment 3; deleted 1; kept 1
            -> show completed [2.1@3568 of 60..90]
            -> delete 1.1
            -> hide the copy of 1.1
        restore 40; all
            -> commit behind 9: term 1, starts 40, next segment 3; restored 1.1@3568 of 30..60, cold
            -> show 3.1@1784, records 40..105, behind 2.1@3568
            -> show completed [1.1@3568 of 30..60, cold; 2.1@3568 of 60..90]
            -> update 3.1@1784, records 40..105, behind 2.1@3568
            -> name the copy of 1.1
            -> restored: starts 40
        # What is before it is still kept, and comes back too.
        restore 0; all
            -> commit behind 10: term 1, starts 0, next segment 3; restored 0.1@3568 of 0..30, cold
            -> show 3.1@1784, records 0..105, behind 2.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60, cold; 2.1@3568 of 60..90]
            -> update 3.1@1784, records 0..105, behind 2.1@3568
            -> name the copy of 0.1
            -> restored: starts 0
        restart
            -> show 3.1@1784, sealed, records 0..105, behind 2.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60, cold; 2.1@3568 of 60..90; 3.1@1784 of 90..105]
            -> seal 3.1@1784
            -> commit behind 11: term 1, starts 0, next segment 4; completed 3.1@1784 of 90..105
        restore 0
            -> restored: no removed records from offset 0 on are kept in cold storage: the shard begins at offset 0
        ",
    );
}

#[test]
fn all_completed_segments_come_back_to_a_log_that_begins_within_the_open_one() {
    transcript(
        cold(),
        "
        cold 1000; filled 2
        copied 0; copied 1; all
            -> commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied; now 1.1@3568 of 30..60, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60, copied]
            -> name the copy of 0.1
            -> name the copy of 1.1
        truncate 70; all
            -> commit behind 4: term 1, starts 70, next segment 2; deleted 0; deleted 1; kept 0; kept 1
            -> show 2.1@1784, records 70..75, behind 1.1@3568
            -> show completed []
            -> update 2.1@1784, records 70..75, behind 1.1@3568
            -> delete 0.1
            -> hide the copy of 0.1
            -> delete 1.1
            -> hide the copy of 1.1
            -> truncated 70: starts 70
        restore 0; all
            -> commit behind 5: term 1, starts 0, next segment 2; restored 0.1@3568 of 0..30, cold; restored 1.1@3568 of 30..60, cold
            -> show 2.1@1784, records 0..75, behind 1.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60, cold]
            -> update 2.1@1784, records 0..75, behind 1.1@3568
            -> name the copy of 1.1
            -> name the copy of 0.1
            -> restored: starts 0
        ",
    );
}

#[test]
fn what_retention_removed_and_is_restored_stays_for_as_long_as_copies_are_kept() {
    transcript(
        StreamConfig { retention_ms: Some(200), ..cold() },
        "
        cold 1000; filled 2
        copied 0; copied 1; all
            -> commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied; now 1.1@3568 of 30..60, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60, copied]
            -> name the copy of 0.1
            -> name the copy of 1.1
        +200; tick; all
            -> show 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60, copied; 2.1@1784 of 60..75]
            -> seal 2.1@1784
            -> update 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> commit behind 4: term 1, starts 60, next segment 3; completed 2.1@1784 of 60..75; deleted 0; deleted 1; kept 0; kept 1
            -> show 2.1@1784, sealed, records 60..75, behind 1.1@3568
            -> show completed [2.1@1784 of 60..75]
            -> update 2.1@1784, sealed, records 60..75, behind 1.1@3568
            -> delete 0.1
            -> hide the copy of 0.1
            -> delete 1.1
            -> hide the copy of 1.1
        restore 0; all
            -> commit behind 5: term 1, starts 0, next segment 3; restored 0.1@3568 of 0..30, cold; restored 1.1@3568 of 30..60, cold
            -> show 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> show completed [0.1@3568 of 0..30, cold; 1.1@3568 of 30..60, cold; 2.1@1784 of 60..75]
            -> update 2.1@1784, sealed, records 0..75, behind 1.1@3568
            -> name the copy of 1.1
            -> name the copy of 0.1
            -> restored: starts 0
        # Their age does not matter any more, but how long they are back does.
        +900; tick; all
        +100; tick; all
            -> commit behind 6: term 1, starts 75, next segment 3; deleted 0; deleted 1; kept 0; kept 1
            -> show 2.1@1784, sealed, records 75..75, behind 1.1@3568
            -> show completed [2.1@1784 of 60..75]
            -> update 2.1@1784, sealed, records 75..75, behind 1.1@3568
            -> hide the copy of 0.1
            -> hide the copy of 1.1
        # And then they are forgotten, and their copies go.
        +1000; tick; all
            -> commit behind 7: term 1, starts 75, next segment 3; forgotten 0; forgotten 1
            -> remove the copy of 0.1
            -> remove the copy of 1.1
        ",
    );
}

#[test]
fn without_time_to_keep_a_copy_goes_with_its_segment_and_nothing_waits_for_one() {
    transcript(
        cold(),
        "
        cold 0; filled 2
        copied 0; all
            -> commit behind 3: term 1, starts 0, next segment 2; now 0.1@3568 of 0..30, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60]
            -> name the copy of 0.1
        truncate 60; all
            -> commit behind 4: term 1, starts 60, next segment 2; deleted 0; deleted 1
            -> show 2.1@1784, records 60..75, behind 1.1@3568
            -> show completed []
            -> update 2.1@1784, records 60..75, behind 1.1@3568
            -> delete 0.1
            -> remove the copy of 0.1
            -> delete 1.1
            -> truncated 60: starts 60
        ",
    );
}

#[test]
fn a_deleted_stream_leaves_no_copy_that_is_not_told_to_go() {
    transcript(
        cold(),
        "
        cold 1000; filled 3
        copied 0; copied 1; all
            -> commit behind 4: term 1, starts 0, next segment 3; now 0.1@3568 of 0..30, copied; now 1.1@3568 of 30..60, copied
            -> show completed [0.1@3568 of 0..30, copied; 1.1@3568 of 30..60, copied; 2.1@3568 of 60..90]
            -> name the copy of 0.1
            -> name the copy of 1.1
        truncate 30; all
            -> commit behind 5: term 1, starts 30, next segment 3; deleted 0; kept 0
            -> show 3.1@1784, records 30..105, behind 2.1@3568
            -> show completed [1.1@3568 of 30..60, copied; 2.1@3568 of 60..90]
            -> update 3.1@1784, records 30..105, behind 2.1@3568
            -> delete 0.1
            -> hide the copy of 0.1
            -> truncated 30: starts 30
        +100; tick; all
            -> commit behind 6: term 1, starts 30, next segment 3; now 1.1@3568 of 30..60, cold
            -> show completed [1.1@3568 of 30..60, cold; 2.1@3568 of 60..90]
            -> delete 1.1
        delete
            -> delete 3.1
            -> remove the copy of 1.1
            -> delete 2.1
            -> remove the copy of 0.1
        ",
    );
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
    let mut world = World::new(config);
    take_in(&mut world, "cold 300; filled 2");
    world.shard.plant(planted);
    for _ in 0..60 {
        let next = world.shard.tail().next_offset.0;
        match draw(12) {
            0..=2 => take_in(&mut world, "append a 15; all"),
            3..=4 => {
                let uncopied = world.shard.completed().find(|segment| segment.cold.is_none());
                if let Some(number) = uncopied.map(|segment| segment.number) {
                    take_in(&mut world, &format!("copied {number}"));
                }
            }
            5..=6 => take_in(&mut world, "+60; tick"),
            7 => take_in(&mut world, &format!("truncate {}; proceed", draw(next + 1))),
            8 => take_in(&mut world, &format!("restore {}", draw(next + 1))),
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
