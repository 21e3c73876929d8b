//! Who owns a shard, and what metadata says to its changes.

use super::*;

#[test]
fn the_first_append_after_a_start_claims_a_term_and_later_ones_do_not() {
    let world = transcript(
        config(),
        "
        append a 1
        # No segment before the claim is durable.
        proceed
            -> commit behind 0: term 1, starts 0, next segment 0
        append b 1; proceed
        committed
            -> create and write 0.1@0 of 0..2 up to id 5, sync
        wrote; synced
            -> show 0.1@428, records 0..2
            -> extend 0.1@0 with 0..2
            -> reply a: 0 to 0 in term 1, 0/0/0
            -> reply b: 1 to 1 in term 1, 0/0/1
        append c 1; all
            -> write 0.1@428 of 2..3 up to id 5, sync
            -> show 0.1@686, records 0..3
            -> extend 0.1@428 with 2..3
            -> reply c: 2 to 2 in term 1, 0/1/0
        ",
    );
    let (record, version) = world.record.expect("claimed");
    assert_eq!((record.term, version), (Term(1), 1));
}

#[test]
fn an_owner_that_was_replaced_answers_so_and_writes_nothing_more() {
    transcript(
        config(),
        "
        append a 1; truncate 0; proceed
            -> truncated 0: starts 0
            -> commit behind 0: term 1, starts 0, next segment 0
        replaced 5
        committed
            -> reply a: this node does not own the shard any more
        append b 1
            -> reply b: this node does not own the shard any more
        truncate 0
            -> truncated 0: this node does not own the shard any more
        proceed
        ",
    );
}

#[test]
fn a_fenced_store_ends_the_ownership() {
    transcript(
        config(),
        "
        begun with a 1
        append b 1; proceed
            -> write 0.1@258 of 1..2 up to id 5, sync
        refused fenced
            -> reply b: this node does not own the shard any more
        append c 1; proceed
            -> reply c: this node does not own the shard any more
        ",
    );
}

#[test]
fn a_fenced_shard_does_not_ask_metadata_again_what_it_did_not_answer() {
    transcript(
        StreamConfig { segment_ms: 500, ..config() },
        "
        begun with a 1
        +500; tick
            -> show 0.1@258, sealed, records 0..1
            -> show completed [0.1@258 of 0..1]
            -> seal 0.1@258
            -> update 0.1@258, sealed, records 0..1
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@258 of 0..1
        uncommitted unavailable
            -> wake at 1600 ms
        append b 1; proceed
            -> create and write 1.1@0 of 1..2 up to id 5, sync
        refused fenced
            -> reply b: this node does not own the shard any more
            -> wake never
        +100; proceed
        ",
    );
}

#[test]
fn a_claim_whose_answer_was_lost_is_recognized_as_our_own() {
    transcript(
        config(),
        "
        append a 1; proceed
            -> commit behind 0: term 1, starts 0, next segment 0
        uncommitted unanswered
            -> reply a: unavailable: metadata: no answer
            -> wake at 1100 ms
        # Not before the pause is over.
        append b 1; proceed
        +100; proceed
            -> commit behind 0: term 1, starts 0, next segment 0
            -> wake never
        committed
            -> create and write 0.1@0 of 0..1 up to id 5, sync
        wrote; synced
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply b: 0 to 0 in term 1, 0/0/0
        ",
    );
}

#[test]
fn what_metadata_can_not_take_is_told_to_whoever_waits_and_not_repeated_all_the_time() {
    transcript(
        config(),
        "
        append a 1; proceed
            -> commit behind 0: term 1, starts 0, next segment 0
        uncommitted refused
            -> reply a: the shard can't be written to: the value has 2 MiB; trying again does not help: report this as a defect, with the node's log, and use another stream meanwhile; what is stored stays readable
        append b 1; proceed
            -> reply b: the shard can't be written to: the value has 2 MiB; trying again does not help: report this as a defect, with the node's log, and use another stream meanwhile; what is stored stays readable
        +100; proceed
        # What there is to record may be something else by now.
        +60000; append c 1; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..1 up to id 5, sync
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply c: 0 to 0 in term 1, 0/0/0
        ",
    );
}

#[test]
fn a_truncation_that_metadata_can_not_take_is_refused_and_does_not_happen_later() {
    transcript(
        config(),
        "
        begun with a 4
        truncate 3; proceed
            -> commit behind 1: term 1, starts 3, next segment 0
        uncommitted refused
            -> truncated 3: the change can't be recorded: the value has 2 MiB; trying again does not help: report this as a defect, with the node's log, and use another stream meanwhile; what is stored stays readable
        truncate 2; proceed
            -> truncated 2: the change can't be recorded: the value has 2 MiB; trying again does not help: report this as a defect, with the node's log, and use another stream meanwhile; what is stored stays readable
        +60000; proceed
        # And it ends, though metadata can't be told of the segment.
        close; proceed
            -> show 0.1@585, sealed, records 0..4
            -> show completed [0.1@585 of 0..4]
            -> seal 0.1@585
            -> update 0.1@585, sealed, records 0..4
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@585 of 0..4
        uncommitted refused
            -> closed
        ",
    );
}

#[test]
fn an_append_for_another_term_is_refused() {
    transcript(
        config(),
        "
        append a 1 term 3
            -> reply a: the shard's term is 1, not 3
        append b 1 term 1; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..1 up to id 5, sync
            -> show 0.1@258, records 0..1
            -> extend 0.1@0 with 0..1
            -> reply b: 0 to 0 in term 1, 0/0/0
        ",
    );
}
