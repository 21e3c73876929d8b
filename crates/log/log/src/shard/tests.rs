//! Scenarios as transcripts ([`transcript`]), with a journal, a store and metadata that are lists ([`world`]).

mod cold;
mod copied;
mod copied_ahead;
mod ownership;
mod removal;
mod transcript;
mod world;

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_format::{BatchBuilder, Codec, parse_entry};

use self::transcript::{take_in, transcript};
use self::world::{Reply, World, batch, checked, config, shard_id};
use super::*;
use crate::batches::TransactionIds;
use crate::stream::ShardRecord;

/// Segments of two entries of 15 records.
fn short_segments() -> StreamConfig {
    StreamConfig { segment_bytes: 4_096, ..config() }
}

fn interval() -> StreamConfig {
    StreamConfig { durability: StreamDurability::Interval, ..short_segments() }
}

#[test]
fn appends_whose_times_were_taken_in_another_order_than_their_places_have_times_that_do_not_go_back() {
    let mut world = World::new(config());
    let mut replies = [2_000, 1_990, 2_001].map(|taken| {
        let two = [batch(&[7, 9], None), batch(&[8], None)].concat();
        let mut batches = checked(two.into(), TransactionIds::RunningMaximum);
        batches.set_append_time(taken).expect("no explicit ids");
        world.offer("a", batches, None)
    });
    world.settle_all();
    let told = replies.each_mut().map(|reply| reply.try_recv().expect("answered").expect("appended"));
    assert_eq!(told.map(|appended| appended.append_time_ms), [2_000, 2_000, 2_001]);
    let mut times = Vec::new();
    for entry in world.segments.values().flatten() {
        for batch in tailwater_format::batches(parse_entry(entry).expect("an entry").batches) {
            let batch = batch.expect("whole");
            batch.check_crc().expect("a checksum that fits");
            times.push(batch.header().max_timestamp_ms);
        }
    }
    assert_eq!(times, [2_000, 2_000, 2_000, 2_000, 2_001, 2_001]);
}

#[test]
fn what_is_queued_becomes_more_entries_than_one_when_it_is_too_much_to_be_decompressed() {
    let mut builder = BatchBuilder::new();
    let value = vec![7; 2 << 20];
    for _ in 0..3 {
        builder.append(None, Some(&value), &[], 5).expect("small enough");
    }
    let of_18_mib: Bytes = builder.finish(Codec::Zstd).repeat(3).into();
    let mut world = World::new(config());
    for _ in 0..4 {
        drop(world.offer("a", checked(of_18_mib.clone(), TransactionIds::RunningMaximum), None));
    }
    world.settle_all();
    let entries = world.segments.values().flatten().map(|entry| parse_entry(entry).expect("an entry"));
    let records: Vec<u32> = entries.map(|entry| entry.header.record_count).collect();
    assert_eq!(records, [27, 9], "an entry holds at most 64 MiB");
}

#[test]
fn an_append_is_acknowledged_when_its_entry_is_durable_and_not_before() {
    transcript(
        config(),
        "
        append a 3
        proceed
            -> commit behind 0: term 1, starts 0, next segment 0
        committed
            -> create and write 0.1@0 of 0..3 up to id 5, sync
        wrote
        synced 9
        synced 10
            -> show 0.1@476, records 0..3
            -> extend 0.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 0/0/0
        ",
    );
}

#[test]
fn what_is_queued_becomes_one_entry_with_immediate_flush() {
    transcript(
        config(),
        "
        append a 1; append b 2; append c 3; append d 4
        all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..10 up to id 5, sync
            -> show 0.1@1422, records 0..10
            -> extend 0.1@0 with 0..10
            -> reply a: 0 to 0 in term 1, 0/0/0
            -> reply b: 1 to 2 in term 1, 0/0/1
            -> reply c: 3 to 5 in term 1, 0/0/3
            -> reply d: 6 to 9 in term 1, 0/0/6
        ",
    );
}

#[test]
fn dlsns_name_segment_entry_and_slot() {
    transcript(
        config(),
        "
        append a 2; append b 3; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..5 up to id 5, sync
            -> show 0.1@755, records 0..5
            -> extend 0.1@0 with 0..5
            -> reply a: 0 to 1 in term 1, 0/0/0
            -> reply b: 2 to 4 in term 1, 0/0/2
        append c 1; all
            -> write 0.1@755 of 5..6 up to id 5, sync
            -> show 0.1@1013, records 0..6
            -> extend 0.1@755 with 5..6
            -> reply c: 5 to 5 in term 1, 0/1/0
        ",
    );
}

#[test]
fn a_periodic_flush_waits_for_its_time_or_its_bytes() {
    transcript(
        StreamConfig { flush: FlushPolicy::EveryMs(20), flush_bytes: 1_000, ..config() },
        "
        append a 1; proceed; committed
            -> commit behind 0: term 1, starts 0, next segment 0
            -> wake at 1020 ms
        +19; proceed
        +1; proceed
            -> create and write 0.1@0 of 0..1 up to id 5, sync
        wrote
            -> wake never
        synced
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply a: 0 to 0 in term 1, 0/0/0
        # More than 1,000 bytes.
        append b 20; proceed
            -> write 0.1@258 of 1..21 up to id 5, sync
        ",
    );
}

#[test]
fn a_full_segment_rolls_and_is_recorded_once_its_last_entry_is_durable() {
    transcript(
        short_segments(),
        "
        append a 15; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..15 up to id 5, sync
        append b 15; proceed; wrote
            -> write 0.1@1784 of 15..30 up to id 5, sync
        append c 15; proceed; wrote
            -> create and write 1.1@0 of 30..45 up to id 5, sync
        synced 20
            -> show 0.1@3568, sealed, records 0..30
            -> show completed [0.1@3568 of 0..30]
            -> extend 0.1@0 with 0..15
            -> reply a: 0 to 14 in term 1, 0/0/0
            -> extend 0.1@1784 with 15..30
            -> reply b: 15 to 29 in term 1, 0/1/0
            -> seal 0.1@3568
            -> update 0.1@3568, sealed, records 0..30
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3568 of 0..30
        committed
        synced 30
            -> show 1.1@1784, records 0..45, behind 0.1@3568
            -> extend 1.1@0 with 30..45
            -> reply c: 30 to 44 in term 1, 1/0/0
        ",
    );
}

#[test]
fn an_entry_larger_than_a_segment_gets_one_of_its_own() {
    transcript(
        short_segments(),
        "
        begun with a 100
        append b 100; all
            -> create and write 1.1@0 of 100..200 up to id 5, sync
            -> show 1.1@11085, records 0..200, behind 0.1@11085
            -> show completed [0.1@11085 of 0..100]
            -> seal 0.1@11085
            -> update 0.1@11085, sealed, records 0..100
            -> extend 1.1@0 with 100..200
            -> reply b: 100 to 199 in term 1, 1/0/0
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@11085 of 0..100
        ",
    );
}

#[test]
fn an_old_segment_rolls_without_further_appends_and_the_owner_keeps_its_term() {
    transcript(
        StreamConfig { segment_ms: 500, ..config() },
        "
        begun with a 1
        +499; tick
        +1; tick
            -> show 0.1@258, sealed, records 0..1
            -> show completed [0.1@258 of 0..1]
            -> seal 0.1@258
            -> update 0.1@258, sealed, records 0..1
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@258 of 0..1
        committed
        append b 1; all
            -> create and write 1.1@0 of 1..2 up to id 5, sync
            -> show 1.1@258, records 0..2, behind 0.1@258
            -> extend 1.1@0 with 1..2
            -> reply b: 1 to 1 in term 1, 1/0/0
        ",
    );
}

#[test]
fn transaction_ids_are_the_running_maximum_of_timestamps() {
    transcript(
        config(),
        "
        append a 2 ids 5,9; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..2 up to id 9, sync
            -> show 0.1@367, records 0..2
            -> extend 0.1@0 with 0..2
            -> reply a: 0 to 1 in term 1, 0/0/0
        append b 1 ids 3; all
            -> write 0.1@367 of 2..3 up to id 9, sync
            -> show 0.1@625, records 0..3
            -> extend 0.1@367 with 2..3
            -> reply b: 2 to 2 in term 1, 0/1/0
        append c 3 ids 7,20,8; all
            -> write 0.1@625 of 3..6 up to id 20, sync
            -> show 0.1@1101, records 0..6
            -> extend 0.1@625 with 3..6
            -> reply c: 3 to 5 in term 1, 0/2/0
        ",
    );
}

#[test]
fn explicit_transaction_ids_that_decrease_are_refused() {
    transcript(
        config(),
        "
        append a 2 ids 5,9 explicit
        append b 2 ids 8,10 explicit
            -> reply b: transaction id 8 after 9: transaction ids must not decrease
        append c 2 ids 9,10 explicit; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..4 up to id 10, sync
            -> show 0.1@646, records 0..4
            -> extend 0.1@0 with 0..4
            -> reply a: 0 to 1 in term 1, 0/0/0
            -> reply c: 2 to 3 in term 1, 0/0/2
        ",
    );
}

#[test]
fn a_duplicate_of_a_durable_batch_is_answered_at_once_and_of_one_in_flight_with_it() {
    transcript(
        config(),
        "
        append a 2 as 7/0/0
        append again 2 as 7/0/0
        proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..2 up to id 5, sync
        append third 2 as 7/0/0; proceed
        synced
            -> show 0.1@367, records 0..2
            -> extend 0.1@0 with 0..2
            -> reply a: 0 to 1 in term 1, 0/0/0
            -> reply again: 0 to 1 in term 1, a duplicate
            -> reply third: 0 to 1 in term 1, a duplicate
        append late 2 as 7/0/0; proceed
            -> reply late: 0 to 1 in term 1, a duplicate
        ",
    );
}

#[test]
fn sequences_out_of_order_and_old_epochs_are_refused() {
    transcript(
        config(),
        "
        append a 2 as 7/1/0
        append b 1 as 7/1/3
            -> reply b: the next sequence number of producer 7 is 2, the batch begins with 3
        append c 1 as 7/0/2
            -> reply c: producer 7 has epoch 1 by now, the batch has 0
        ",
    );
}

#[test]
fn a_failed_sync_fails_what_was_in_flight_and_the_log_goes_on_with_a_higher_term() {
    transcript(
        config(),
        "
        begun with kept 1 as 7/0/0
        append lost 1 as 7/0/1; proceed; wrote
            -> write 0.1@258 of 1..2 up to id 5, sync
        append duplicate 1 as 7/0/1
        append buffered 1 as 7/0/2
        # Until metadata knows the length, a crash may bring back what was lost: readers are not told of an end.
        lost disk broken
            -> show 0.1@258, records 0..1
            -> show completed []
            -> reply lost: not durable: disk broken; the log goes on without these records, send them again
            -> reply buffered: not durable: disk broken; the log goes on without these records, send them again
            -> reply duplicate: not durable: disk broken; the log goes on without these records, send them again
            -> seal 0.1@258
            -> update 0.1@258, records 0..1
            -> update 0.1@258, records 0..1
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@258 of 0..1; producers up to 1: 1
        committed
            -> show 0.1@258, sealed, records 0..1
            -> show completed [0.1@258 of 0..1]
            -> update 0.1@258, sealed, records 0..1
        append retried 1 as 7/0/1; all
            -> commit behind 2: term 2, starts 0, next segment 1
            -> create and write 1.2@0 of 1..2 up to id 5, sync
            -> show 1.2@258, records 0..2, behind 0.1@258
            -> extend 1.2@0 with 1..2
            -> reply retried: 1 to 1 in term 2, 1/0/0
        ",
    );
}

#[test]
fn a_loss_with_a_roll_in_flight_leaves_no_gap() {
    transcript(
        short_segments(),
        "
        append a 15; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..15 up to id 5, sync
        append b 15; proceed; wrote
            -> write 0.1@1784 of 15..30 up to id 5, sync
        append c 15; proceed; wrote
            -> create and write 1.1@0 of 30..45 up to id 5, sync
        append d 15; proceed; wrote
            -> write 1.1@1784 of 45..60 up to id 5, sync
        synced 10
            -> show 0.1@1784, records 0..15
            -> extend 0.1@0 with 0..15
            -> reply a: 0 to 14 in term 1, 0/0/0
        # Nobody saw the second segment.
        lost disk broken
            -> show 0.1@1784, records 0..15
            -> show completed []
            -> reply b: not durable: disk broken; the log goes on without these records, send them again
            -> reply c: not durable: disk broken; the log goes on without these records, send them again
            -> reply d: not durable: disk broken; the log goes on without these records, send them again
            -> seal 0.1@1784
            -> update 0.1@1784, records 0..15
            -> discard 1.1
            -> update 0.1@1784, records 0..15
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@1784 of 0..15
        append e 1; all
            -> show 0.1@1784, sealed, records 0..15
            -> show completed [0.1@1784 of 0..15]
            -> update 0.1@1784, sealed, records 0..15
            -> commit behind 2: term 2, starts 0, next segment 1
            -> create and write 1.2@0 of 15..16 up to id 5, sync
            -> show 1.2@258, records 0..16, behind 0.1@1784
            -> extend 1.2@0 with 15..16
            -> reply e: 15 to 15 in term 2, 1/0/0
        ",
    );
}

#[test]
fn a_loss_of_a_shards_first_entry_begins_it_anew() {
    transcript(
        config(),
        "
        append a 1; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..1 up to id 5, sync
        lost disk broken
            -> show 0.2@0, records 0..0
            -> reply a: not durable: disk broken; the log goes on without these records, send them again
            -> discard 0.1
            -> update 0.2@0, records 0..0
        append b 1; all
            -> commit behind 1: term 2, starts 0, next segment 0
            -> create and write 0.2@0 of 0..1 up to id 5, sync
            -> show 0.2@258, records 0..1
            -> extend 0.2@0 with 0..1
            -> reply b: 0 to 0 in term 2, 0/0/0
        ",
    );
}

#[test]
fn a_segment_that_takes_no_more_ends_when_what_is_in_flight_is_decided() {
    transcript(
        config(),
        "
        append a 1; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..1 up to id 5, sync
        append b 1; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused over
            -> wake at 1002 ms
        +2; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused over
            -> wake at 1004 ms
        synced 10
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply a: 0 to 0 in term 1, 0/0/0
        +2; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused over
            -> show 0.1@258, sealed, records 0..1
            -> show completed [0.1@258 of 0..1]
            -> reply b: not durable: the journal lost records; the log goes on without these records, send them again
            -> seal 0.1@258
            -> update 0.1@258, sealed, records 0..1
            -> update 0.1@258, sealed, records 0..1
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@258 of 0..1
            -> wake never
        committed
        append c 1; all
            -> commit behind 2: term 2, starts 0, next segment 1
            -> create and write 1.2@0 of 1..2 up to id 5, sync
            -> show 1.2@258, records 0..2, behind 0.1@258
            -> extend 1.2@0 with 1..2
            -> reply c: 1 to 1 in term 2, 1/0/0
        ",
    );
}

#[test]
fn a_full_disk_refuses_appends_and_gives_their_offsets_back() {
    transcript(
        config(),
        "
        begun with a 1 as 7/0/0
        append b 1 as 7/0/1; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused full
            -> reply b: no space: 3 bytes free
        append c 1 as 7/0/1; all
            -> write 0.1@258 of 1..2 up to id 5, sync
            -> show 0.1@516, records 0..2
            -> extend 0.1@258 with 1..2
            -> reply c: 1 to 1 in term 1, 0/1/0
        ",
    );
}

#[test]
fn a_busy_store_is_waited_for_and_then_given_up() {
    transcript(
        config(),
        "
        begun with a 1
        append waits 1; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused busy
            -> wake at 1002 ms
        append behind 1; proceed
        +2; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        wrote
            -> write 0.1@516 of 2..3 up to id 5, sync
        wrote
            -> wake never
        synced
            -> show 0.1@774, records 0..3
            -> extend 0.1@258 with 1..2
            -> reply waits: 1 to 1 in term 1, 0/1/0
            -> extend 0.1@516 with 2..3
            -> reply behind: 2 to 2 in term 1, 0/2/0
        append given-up 1; proceed
            -> write 0.1@774 of 3..4 up to id 5, sync
        refused busy
            -> wake at 1004 ms
        +5001; proceed
            -> write 0.1@774 of 3..4 up to id 5, sync
        refused busy
            -> reply given-up: overloaded: slow disk; try again
            -> wake never
        ",
    );
}

#[test]
fn a_clean_stop_completes_and_records_the_open_segment() {
    transcript(
        StreamConfig { flush: FlushPolicy::EveryMs(1_000), ..config() },
        "
        append a 2; proceed; committed
            -> commit behind 0: term 1, starts 0, next segment 0
            -> wake at 2000 ms
        close; proceed
            -> create and write 0.1@0 of 0..2 up to id 5, sync
        wrote
            -> wake never
        synced
            -> show 0.1@367, sealed, records 0..2
            -> show completed [0.1@367 of 0..2]
            -> extend 0.1@0 with 0..2
            -> reply a: 0 to 1 in term 1, 0/0/0
            -> seal 0.1@367
            -> update 0.1@367, sealed, records 0..2
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@367 of 0..2
        append b 1
            -> reply b: the log is closing
        committed
            -> closed
        restart
            -> show 0.1@367, sealed, records 0..2
            -> show completed [0.1@367 of 0..2]
        ",
    );
}

#[test]
fn after_a_kill_the_open_segment_is_sealed_and_never_appended_to() {
    transcript(
        config(),
        "
        begun with a 2
        # Recorded without waiting for an append.
        restart
            -> show 0.1@367, sealed, records 0..2
            -> show completed [0.1@367 of 0..2]
            -> seal 0.1@367
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@367 of 0..2
        committed
        append b 1; all
            -> commit behind 2: term 2, starts 0, next segment 1
            -> create and write 1.2@0 of 2..3 up to id 5, sync
            -> show 1.2@258, records 0..3, behind 0.1@367
            -> extend 1.2@0 with 2..3
            -> reply b: 2 to 2 in term 2, 1/0/0
        ",
    );
}

#[test]
fn recovery_deletes_what_metadata_gave_up_and_refuses_what_is_missing() {
    let id = |number: u64, term: u32| SegmentId {
        shard: shard_id(),
        number: SegmentNumber(number),
        term: Term(term),
    };
    let content = |base: u64, next: u64| FoundContent {
        base_offset: Offset(base),
        next_offset: Offset(next),
        first_transaction_id: TransactionId(0),
        last_transaction_id: TransactionId(0),
    };
    let found = |id, length, sealed, content| {
        let length = Position(length);
        SegmentsFound { id, length, sealed, content, damaged: None }
    };
    let record = ShardRecord {
        term: Term(3),
        log_start: Offset(10),
        next_segment: SegmentNumber(2),
        next_offset: Offset(20),
        ..ShardRecord::default()
    };
    let kept = SegmentRecord {
        number: SegmentNumber(1),
        term: Term(1),
        base_offset: Offset(10),
        next_offset: Offset(20),
        length: Position(100),
        first_transaction_id: TransactionId(0),
        last_transaction_id: TransactionId(0),
        created_ms: 0,
        sealed_ms: 0,
        cold: None,
    };
    let stored = [
        found(id(0, 1), 50, true, Some(content(0, 10))),
        found(id(1, 1), 130, false, Some(content(10, 25))),
        found(id(2, 2), 0, false, None),
        found(id(2, 3), 70, false, Some(content(20, 30))),
        found(id(3, 3), 0, false, None),
    ];
    let recovered = recover(shard_id(), record, 4, vec![kept], &stored, 9).expect("consistent");
    assert_eq!(recovered.deletes, [id(0, 1), id(2, 2), id(3, 3)]);
    assert_eq!(recovered.seals, [(id(1, 1), Position(100)), (id(2, 3), Position(70))]);
    let numbers: Vec<_> = recovered.completed.iter().map(|segment| segment.number.0).collect();
    assert_eq!((numbers, recovered.unsaved.len()), (vec![1, 2], 1));

    let missing = recover(shard_id(), record, 4, vec![kept], &stored[2..], 9).unwrap_err();
    assert!(missing.contains("missing"), "{missing}");
    let short = [found(id(1, 1), 99, true, Some(content(10, 19)))];
    assert!(recover(shard_id(), record, 4, vec![kept], &short, 9).unwrap_err().contains("99 of 100"));
    let gap = [stored[1].clone(), found(id(2, 3), 70, false, Some(content(21, 30)))];
    assert!(recover(shard_id(), record, 4, vec![kept], &gap, 9).unwrap_err().contains("goes on"));
    let short = SegmentsFound { damaged: Some("synced up to 90".to_owned()), ..stored[3].clone() };
    let short = recover(shard_id(), record, 4, vec![kept], &[stored[1].clone(), short], 9).unwrap_err();
    assert!(short.contains("is not whole: synced up to 90"), "{short}");
}

#[test]
fn interval_durability_acknowledges_when_written_and_a_loss_takes_back_what_was_not_synced() {
    transcript(
        interval(),
        "
        append synced 1 as 7/0/0; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..1 up to id 5
        written
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply synced: 0 to 0 in term 1, 0/0/0
        synced
        append unsynced 1 as 7/0/1; proceed; wrote; written
            -> write 0.1@258 of 1..2 up to id 5
            -> show 0.1@516, records 0..2
            -> extend 0.1@258 with 1..2
            -> reply unsynced: 1 to 1 in term 1, 0/1/0
        lost disk broken
            -> show 0.1@258, records 0..1
            -> show completed []
            -> seal 0.1@258
            -> update 0.1@258, records 0..1
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@258 of 0..1; producers up to 1: 1
        committed
            -> show 0.1@258, sealed, records 0..1
            -> show completed [0.1@258 of 0..1]
            -> update 0.1@258, sealed, records 0..1
        # Not taken for a duplicate.
        append other 1 as 7/0/1; proceed; committed; wrote; written
            -> commit behind 2: term 2, starts 0, next segment 1
            -> create and write 1.2@0 of 1..2 up to id 5
            -> show 1.2@258, records 0..2, behind 0.1@258
            -> extend 1.2@0 with 1..2
            -> reply other: 1 to 1 in term 2, 1/0/0
        ",
    );
}

#[test]
fn what_is_seen_synced_before_it_is_seen_written_does_not_hold_up_the_next_segment() {
    transcript(
        interval(),
        "
        append first 30; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..30 up to id 5, sync
        append waits 30; proceed
            -> sync 10
        # What is synced is written.
        synced
            -> show 0.1@3419, sealed, records 0..30
            -> show completed [0.1@3419 of 0..30]
            -> extend 0.1@0 with 0..30
            -> reply first: 0 to 29 in term 1, 0/0/0
            -> seal 0.1@3419
            -> update 0.1@3419, sealed, records 0..30
            -> create and write 1.1@0 of 30..60 up to id 5, sync
        wrote; written
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3419 of 0..30
            -> show 1.1@3419, records 0..60, behind 0.1@3419
            -> extend 1.1@0 with 30..60
            -> reply waits: 30 to 59 in term 1, 1/0/0
        ",
    );
}

#[test]
fn a_segment_follows_at_once_on_one_that_was_synced_before_it_was_full() {
    transcript(
        interval(),
        "
        append a 30; proceed; committed; wrote; written; synced
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..30 up to id 5, sync
            -> show 0.1@3419, records 0..30
            -> extend 0.1@0 with 0..30
            -> reply a: 0 to 29 in term 1, 0/0/0
        append b 30; proceed
            -> create and write 1.1@0 of 30..60 up to id 5, sync
        wrote; written
            -> show 1.1@3419, records 0..60, behind 0.1@3419
            -> show completed [0.1@3419 of 0..30]
            -> seal 0.1@3419
            -> update 0.1@3419, sealed, records 0..30
            -> extend 1.1@0 with 30..60
            -> reply b: 30 to 59 in term 1, 1/0/0
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3419 of 0..30
        synced
        ",
    );
}

#[test]
fn what_waits_for_the_sync_of_a_segment_has_no_time_that_is_over() {
    transcript(
        StreamConfig { flush: FlushPolicy::EveryMs(20), ..interval() },
        "
        append a 30; +20; proceed; committed; wrote; written
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..30 up to id 5, sync
            -> show 0.1@3419, records 0..30
            -> extend 0.1@0 with 0..30
            -> reply a: 0 to 29 in term 1, 0/0/0
        append b 30; proceed
            -> wake at 1040 ms
        # The first segment is full and not synced.
        +20; proceed
            -> sync 10
            -> wake never
        synced
            -> show 0.1@3419, sealed, records 0..30
            -> show completed [0.1@3419 of 0..30]
            -> seal 0.1@3419
            -> update 0.1@3419, sealed, records 0..30
            -> create and write 1.1@0 of 30..60 up to id 5, sync
        wrote; written
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3419 of 0..30
            -> show 1.1@3419, records 0..60, behind 0.1@3419
            -> extend 1.1@0 with 30..60
            -> reply b: 30 to 59 in term 1, 1/0/0
        ",
    );
}

#[test]
fn what_waits_for_a_busy_store_is_offered_again_soon_and_not_at_once() {
    transcript(
        StreamConfig { flush: FlushPolicy::EveryMs(20), ..config() },
        "
        append a 1; proceed; committed; +20; proceed; wrote; synced
            -> commit behind 0: term 1, starts 0, next segment 0
            -> wake at 1020 ms
            -> create and write 0.1@0 of 0..1 up to id 5, sync
            -> wake never
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply a: 0 to 0 in term 1, 0/0/0
        append b 1; +20; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused busy
            -> wake at 1042 ms
        append c 1; proceed
        +2; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused busy
            -> wake at 1044 ms
        ",
    );
}

#[test]
fn the_producers_are_recorded_with_each_completed_segment() {
    let world = transcript(
        StreamConfig { segment_ms: 10, ..config() },
        "
        begun with a 4 as 7/0/0
        +10; tick
            -> show 0.1@585, sealed, records 0..4
            -> show completed [0.1@585 of 0..4]
            -> seal 0.1@585
            -> update 0.1@585, sealed, records 0..4
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@585 of 0..4; producers up to 4: 1
        committed
        ",
    );
    let record = world.producers.expect("recorded");
    assert_eq!(record.producers[0].batches[0].last, 3);
}

#[test]
fn a_deleted_shard_fails_everything_and_frees_its_segments() {
    transcript(
        short_segments(),
        "
        begun with a 15
        append b 15; all
            -> write 0.1@1784 of 15..30 up to id 5, sync
            -> show 0.1@3568, records 0..30
            -> extend 0.1@1784 with 15..30
            -> reply b: 15 to 29 in term 1, 0/1/0
        append c 15; all
            -> create and write 1.1@0 of 30..45 up to id 5, sync
            -> show 1.1@1784, records 0..45, behind 0.1@3568
            -> show completed [0.1@3568 of 0..30]
            -> seal 0.1@3568
            -> update 0.1@3568, sealed, records 0..30
            -> extend 1.1@0 with 30..45
            -> reply c: 30 to 44 in term 1, 1/0/0
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@3568 of 0..30
        append in-flight 1; proceed; wrote
            -> write 1.1@1784 of 45..46 up to id 5, sync
        truncate 10
        delete
            -> reply in-flight: the stream does not exist
            -> delete 1.1
            -> delete 0.1
            -> truncated 10: there is no stream \"00000000-0000-0000-0000-000000000001\"
        append late 1
            -> reply late: the stream does not exist
        ",
    );
}

proptest::proptest! {
    /// Whatever is appended, synced, lost and restarted in whatever order: what was acknowledged stays, dense and
    /// in order, and an idempotent producer that retries is there exactly once.
    #[test]
    fn acknowledged_records_survive_any_order_of_events(
        steps in proptest::collection::vec((0u8..10, 1usize..20), 1..120),
    ) {
        let mut world = World::new(short_segments());
        let mut sequence = 0;
        // What the producer has not been answered yet: first sequence, count, reply.
        let mut waiting: VecDeque<(i32, usize, Reply)> = VecDeque::new();
        let mut acked: Vec<(u64, i32, usize)> = Vec::new();
        for (kind, size) in steps {
            match kind {
                0..=3 => {
                    if waiting.len() < 5 {
                        let reply = world.append_as(7, 0, sequence, size);
                        waiting.push_back((sequence, size, reply));
                        sequence += size as i32;
                    }
                }
                4 => world.work(),
                5 | 6 => {
                    world.work();
                    let upto = world.journal.saturating_sub(10 * (size as u64 % 3));
                    world.step(ShardInput::Synced(EntryPlace(upto)));
                }
                7 => world.step(ShardInput::Lost("disk broken".into())),
                8 => {
                    world.step(ShardInput::Proceed);
                    if world.asked.is_some() {
                        world.refuse(WriteError::Busy("slow disk"));
                    }
                }
                _ => {
                    world.now_ms += size as u64;
                    world.step(ShardInput::Tick);
                }
            }
            while world.asked.is_some() {
                world.wrote();
            }
            // The producer sends again, in order, what failed.
            while let Some((first, count, mut reply)) = waiting.pop_front() {
                match reply.try_recv() {
                    Ok(Ok(appended)) => acked.push((appended.base_offset.0, first, count)),
                    Ok(Err(_)) => {
                        let mut again = VecDeque::from([(first, count)]);
                        again.extend(waiting.drain(..).map(|(first, count, _)| (first, count)));
                        for (first, count) in again {
                            let reply = world.append_as(7, 0, first, count);
                            waiting.push_back((first, count, reply));
                        }
                        break;
                    }
                    Err(_) => {
                        waiting.push_front((first, count, reply));
                        break;
                    }
                }
            }
        }
        world.now_ms += 10;
        world.settle_all();
        let mut expected = 0;
        for (base, first, count) in acked {
            proptest::prop_assert_eq!((base, first as u64), (expected, expected));
            expected += count as u64;
        }
        proptest::prop_assert!(world.shard.tail().next_offset.0 >= expected);
    }
}
