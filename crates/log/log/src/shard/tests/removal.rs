//! What truncation and retention remove, and when.

use super::*;

#[test]
fn truncation_moves_the_start_at_record_granularity_and_deletes_what_lies_before() {
    transcript(
        short_segments(),
        "
        append a 15; append b 15; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..30 up to id 5, sync
            -> show 0.1@3480, records 0..30
            -> extend 0.1@0 with 0..30
            -> reply a: 0 to 14 in term 1, 0/0/0
            -> reply b: 15 to 29 in term 1, 0/0/15
        append c 15; append d 15; all
            -> create and write 1.1@0 of 30..60 up to id 5, sync
            -> show 1.1@3480, records 0..60, behind 0.1@3480
            -> show completed [0.1@3480 of 0..30]
            -> seal 0.1@3480
            -> update 0.1@3480, sealed, records 0..30
            -> extend 1.1@0 with 30..60
            -> reply c: 30 to 44 in term 1, 1/0/0
            -> reply d: 45 to 59 in term 1, 1/0/15
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3480 of 0..30
        append e 15; all
            -> create and write 2.1@0 of 60..75 up to id 5, sync
            -> show 2.1@1784, records 0..75, behind 1.1@3480
            -> show completed [0.1@3480 of 0..30; 1.1@3480 of 30..60]
            -> seal 1.1@3480
            -> update 1.1@3480, sealed, records 0..60, behind 0.1@3480
            -> extend 2.1@0 with 60..75
            -> reply e: 60 to 74 in term 1, 2/0/0
            -> commit behind 2: term 1, starts 0, next segment 2; completed 1.1@3480 of 30..60
        # 0 to 29 are wholly before it.
        truncate 40; proceed
            -> commit behind 3: term 1, starts 40, next segment 2; deleted 0
        committed
            -> show 2.1@1784, records 40..75, behind 1.1@3480
            -> show completed [1.1@3480 of 30..60]
            -> update 2.1@1784, records 40..75, behind 1.1@3480
            -> delete 0.1
            -> truncated 40: starts 40
        truncate 20; truncate 76; proceed
            -> truncated 20: starts 40
            -> truncated 76: the shard ends at offset 75: it can't be truncated before 76
        # The open segment stays.
        truncate 75; proceed
            -> commit behind 4: term 1, starts 75, next segment 2; deleted 1
        committed
            -> show 2.1@1784, records 75..75, behind 1.1@3480
            -> show completed []
            -> update 2.1@1784, records 75..75, behind 1.1@3480
            -> delete 1.1
            -> truncated 75: starts 75
        ",
    );
}

#[test]
fn a_truncation_of_what_is_not_synced_is_recorded_once_it_is() {
    transcript(
        interval(),
        "
        append a 4; proceed; committed; wrote; written; synced
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..4 up to id 5
            -> show 0.1@585, records 0..4
            -> extend 0.1@0 with 0..4
            -> reply a: 0 to 3 in term 1, 0/0/0
        append b 4; proceed; wrote; written
            -> write 0.1@585 of 4..8 up to id 5
            -> show 0.1@1170, records 0..8
            -> extend 0.1@585 with 4..8
            -> reply b: 4 to 7 in term 1, 0/1/0
        # What is synced goes at once, and the rest soon.
        truncate 6; proceed
            -> sync 20
            -> commit behind 1: term 1, starts 4, next segment 0
        committed
            -> show 0.1@1170, records 4..8
            -> update 0.1@1170, records 4..8
            -> sync 20
        synced
            -> commit behind 2: term 1, starts 6, next segment 0
        committed
            -> show 0.1@1170, records 6..8
            -> update 0.1@1170, records 6..8
            -> truncated 6: starts 6
        ",
    );
}

#[test]
fn a_truncation_of_what_is_lost_afterwards_goes_as_far_as_the_log_does() {
    transcript(
        interval(),
        "
        append a 4; proceed; committed; wrote; written; synced
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..4 up to id 5
            -> show 0.1@585, records 0..4
            -> extend 0.1@0 with 0..4
            -> reply a: 0 to 3 in term 1, 0/0/0
        append b 4; proceed; wrote; written
            -> write 0.1@585 of 4..8 up to id 5
            -> show 0.1@1170, records 0..8
            -> extend 0.1@585 with 4..8
            -> reply b: 4 to 7 in term 1, 0/1/0
        # Metadata does not say whether it took the synced part of it, and is asked again behind the loss.
        truncate 8; proceed
            -> sync 20
            -> commit behind 1: term 1, starts 4, next segment 0
        lost disk broken
            -> show 0.1@585, records 0..4
            -> show completed []
            -> seal 0.1@585
            -> update 0.1@585, records 0..4
        uncommitted unavailable
            -> truncated 4: metadata unavailable: no answer
            -> wake at 1100 ms
        +100; proceed
            -> commit behind 1: term 1, starts 4, next segment 0
            -> wake never
        committed
            -> show 0.1@585, records 4..4
            -> update 0.1@585, records 4..4
            -> commit behind 2: term 1, starts 4, next segment 1; completed 0.1@585 of 0..4
        committed
            -> show 0.1@585, sealed, records 4..4
            -> show completed [0.1@585 of 0..4]
            -> update 0.1@585, sealed, records 4..4
            -> commit behind 3: term 1, starts 4, next segment 1; deleted 0
        append c 1; all
            -> show completed []
            -> delete 0.1
            -> commit behind 4: term 2, starts 4, next segment 1
            -> create and write 1.2@0 of 4..5 up to id 5
            -> show 1.2@258, records 4..5, behind 0.1@585
            -> extend 1.2@0 with 4..5
            -> reply c: 4 to 4 in term 2, 1/0/0
        ",
    );
}

#[test]
fn a_truncation_of_what_is_lost_as_a_whole_removes_nothing() {
    transcript(
        interval(),
        "
        append a 4; proceed; committed; wrote; written
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..4 up to id 5
            -> show 0.1@585, records 0..4
            -> extend 0.1@0 with 0..4
            -> reply a: 0 to 3 in term 1, 0/0/0
        truncate 4; proceed
            -> sync 10
        lost disk broken
            -> show 0.2@0, records 0..0
            -> discard 0.1
            -> truncated 0: starts 0
            -> update 0.2@0, records 0..0
        append b 1; all
            -> commit behind 1: term 2, starts 0, next segment 0
            -> create and write 0.2@0 of 0..1 up to id 5
            -> show 0.2@258, records 0..1
            -> extend 0.2@0 with 0..1
            -> reply b: 0 to 0 in term 2, 0/0/0
        ",
    );
}

#[test]
fn retention_rolls_the_last_segment_and_deletes_it_when_its_time_is_over_again() {
    transcript(
        StreamConfig { retention_ms: Some(1_000), ..config() },
        "
        begun with a 3
        +999; tick
        +1; tick
            -> show 0.1@476, sealed, records 0..3
            -> show completed [0.1@476 of 0..3]
            -> seal 0.1@476
            -> update 0.1@476, sealed, records 0..3
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@476 of 0..3
        committed
        +1000; tick
            -> commit behind 2: term 1, starts 3, next segment 1; deleted 0
        committed
            -> show 0.1@476, sealed, records 3..3
            -> show completed []
            -> update 0.1@476, sealed, records 3..3
            -> delete 0.1
        # Numbers and offsets go on, also over a restart with nothing left.
        restart
            -> show 1.2@0, records 3..3
            -> show completed []
        append b 1; all
            -> commit behind 3: term 2, starts 3, next segment 1
            -> create and write 1.2@0 of 3..4 up to id 5, sync
            -> show 1.2@258, records 3..4
            -> extend 1.2@0 with 3..4
            -> reply b: 3 to 3 in term 2, 1/0/0
        ",
    );
}

#[test]
fn retention_by_bytes_keeps_at_least_that_much() {
    let mut world = World::new(StreamConfig { retention_bytes: Some(4_096), ..short_segments() });
    for round in 1..=20 {
        take_in(&mut world, "append a 15; all; +1; tick; all");
        let left: u64 = world.segments.values().flatten().map(|entry| entry.len() as u64).sum();
        assert!((4_096..12_288).contains(&left) || (round < 4 && left < 4_096), "{left} after {round}");
    }
    assert!(world.shard.tail().log_start > Offset(200));
}
