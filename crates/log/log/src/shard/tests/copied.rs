//! A shard that is a copy: it takes its source's entries in their places and terms, goes on behind what the source has
//! removed, and becomes the source.

use super::*;

#[test]
fn a_copied_entry_has_its_source_s_offsets_and_term_and_stays_one_entry() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 4; entry b 2 at 3 of 4; proceed
            -> commit behind 0: term 4, starts 0, next segment 0
        committed
            -> create and write 0.4@0 of 0..3 up to id 5, sync
        wrote
            -> took 0..3
            -> write 0.4@476 of 3..5 up to id 5, sync
        wrote
            -> took 3..5
        synced
            -> show 0.4@843, records 0..5
            -> extend 0.4@0 with 0..3
            -> ahead 0.4@476 with 3..5
            -> reply a: 0 to 2 in term 4, 0/0/0
            -> caught up 0.4@843, records 0..5
            -> reply b: 3 to 4 in term 4, 0/1/0
        ",
    );
}

#[test]
fn an_entry_of_a_later_term_claims_it_and_begins_a_segment() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 1; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..3 up to id 5, sync
            -> took 0..3
            -> show 0.1@476, records 0..3
            -> extend 0.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 0/0/0
        entry b 2 at 3 of 3; proceed
            -> commit behind 1: term 3, starts 0, next segment 0
        committed
            -> create and write 1.3@0 of 3..5 up to id 5, sync
        wrote; synced
            -> took 3..5
            -> show 1.3@367, records 0..5, behind 0.1@476
            -> show completed [0.1@476 of 0..3]
            -> seal 0.1@476
            -> update 0.1@476, sealed, records 0..3
            -> extend 1.3@0 with 3..5
            -> reply b: 3 to 4 in term 3, 1/0/0
            -> commit behind 2: term 3, starts 0, next segment 1; completed 0.1@476 of 0..3
        committed
        ",
    );
}

#[test]
fn an_entry_that_is_not_the_next_one_or_of_an_older_term_is_refused() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 2; all
            -> commit behind 0: term 2, starts 0, next segment 0
            -> create and write 0.2@0 of 0..3 up to id 5, sync
            -> took 0..3
            -> show 0.2@476, records 0..3
            -> extend 0.2@0 with 0..3
            -> reply a: 0 to 2 in term 2, 0/0/0
        # Again, behind a gap, and of an owner that was replaced.
        entry b 3 at 0 of 2
            -> reply b: refused: the copy goes on at offset 3, not at 0
        entry c 1 at 4 of 2
            -> reply c: refused: the copy goes on at offset 3, not at 4
        entry d 1 at 3 of 1
            -> reply d: the shard's term is 2, not 1
        # The place is that behind what is in the buffer.
        entry e 2 at 3 of 2; entry f 1 at 4 of 2; entry g 1 at 5 of 2; all
            -> reply f: refused: the copy goes on at offset 5, not at 4
            -> write 0.2@476 of 3..5 up to id 5, sync
            -> took 3..5
            -> ahead 0.2@476 with 3..5
            -> write 0.2@843 of 5..6 up to id 5, sync
            -> took 5..6
            -> ahead 0.2@843 with 5..6
            -> show 0.2@1101, records 0..6
            -> caught up 0.2@843, records 0..5
            -> reply e: 3 to 4 in term 2, 0/1/0
            -> caught up 0.2@1101, records 0..6
            -> reply g: 5 to 5 in term 2, 0/2/0
        ",
    );
}

#[test]
fn a_copy_goes_on_behind_a_gap_and_what_it_had_is_removed() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 1; all
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..3 up to id 5, sync
            -> took 0..3
            -> show 0.1@476, records 0..3
            -> extend 0.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 0/0/0
        # What the source removed is not there to be copied.
        begin 40
            -> show 1.1@0, records 0..40
            -> show completed [0.1@476 of 0..3]
            -> seal 0.1@476
            -> update 0.1@476, sealed, records 0..3
            -> update 1.1@0, records 0..40
            -> begun at 40
        proceed
            -> commit behind 1: term 1, starts 40, next segment 1; completed 0.1@476 of 0..3
        committed
            -> show 1.1@0, records 40..40
            -> update 1.1@0, records 40..40
            -> commit behind 2: term 1, starts 40, next segment 1; deleted 0
        entry b 2 at 3 of 1
            -> reply b: refused: the copy goes on at offset 40, not at 3
        entry c 2 at 40 of 1; all
            -> show completed []
            -> delete 0.1
            -> commit behind 3: term 1, starts 40, next segment 1
            -> create and write 1.1@0 of 40..42 up to id 5, sync
            -> took 40..42
            -> show 1.1@367, records 40..42
            -> extend 1.1@0 with 40..42
            -> reply c: 40 to 41 in term 1, 1/0/0
        # It is there already.
        begin 41
            -> begun at 41
        restart
            -> show 1.1@367, sealed, records 40..42
            -> show completed [1.1@367 of 40..42]
            -> seal 1.1@367
            -> commit behind 4: term 1, starts 40, next segment 2; completed 1.1@367 of 40..42
        entry d 1 at 42 of 1; all
            -> commit behind 5: term 1, starts 40, next segment 2
            -> create and write 2.1@0 of 42..43 up to id 5, sync
            -> took 42..43
            -> show 2.1@258, records 40..43, behind 1.1@367
            -> extend 2.1@0 with 42..43
            -> reply d: 42 to 42 in term 1, 2/0/0
        ",
    );
}

#[test]
fn a_copy_that_begins_behind_a_gap_has_its_place_in_metadata_before_an_entry_is_written() {
    transcript(
        config(),
        "
        begin 40; proceed
            -> show 0.0@0, records 0..40
            -> update 0.0@0, records 0..40
            -> begun at 40
            -> commit behind 0: term 0, starts 40, next segment 0
        committed
            -> show 0.0@0, records 40..40
            -> update 0.0@0, records 40..40
        # Nobody has written anything yet, and the next start goes on there all the same.
        restart
            -> show 0.1@0, records 40..40
            -> show completed []
        entry a 1 at 40 of 2; all
            -> commit behind 1: term 2, starts 40, next segment 0
            -> create and write 0.2@0 of 40..41 up to id 5, sync
            -> took 40..41
            -> show 0.2@258, records 40..41
            -> extend 0.2@0 with 40..41
            -> reply a: 40 to 40 in term 2, 0/0/0
        ",
    );
}

#[test]
fn a_copy_does_not_go_on_elsewhere_while_an_entry_is_on_its_way() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 1; begin 40; proceed
            -> begun at 40: overloaded: too many requests are queued; try again
            -> commit behind 0: term 1, starts 0, next segment 0
        begin 40; committed
            -> begun at 40: overloaded: too many requests are queued; try again
            -> create and write 0.1@0 of 0..3 up to id 5, sync
        wrote; begin 40
            -> took 0..3
            -> begun at 40: overloaded: too many requests are queued; try again
        synced; begin 40
            -> show 0.1@476, records 0..3
            -> extend 0.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 0/0/0
            -> show 1.1@0, records 0..40
            -> show completed [0.1@476 of 0..3]
            -> seal 0.1@476
            -> update 0.1@476, sealed, records 0..3
            -> update 1.1@0, records 0..40
            -> begun at 40
        ",
    );
}

#[test]
fn a_copy_that_leads_goes_on_where_it_ends_in_a_term_of_its_own() {
    transcript(
        config(),
        "
        entry a 3 at 0 of 4; all
            -> commit behind 0: term 4, starts 0, next segment 0
            -> create and write 0.4@0 of 0..3 up to id 5, sync
            -> took 0..3
            -> show 0.4@476, records 0..3
            -> extend 0.4@0 with 0..3
            -> reply a: 0 to 2 in term 4, 0/0/0
        # All is recorded before the shard is given up.
        close; all
            -> show 0.4@476, sealed, records 0..3
            -> show completed [0.4@476 of 0..3]
            -> seal 0.4@476
            -> update 0.4@476, sealed, records 0..3
            -> commit behind 1: term 4, starts 0, next segment 1; completed 0.4@476 of 0..3
            -> closed
        lead 7
            -> show 0.4@476, sealed, records 0..3
            -> show completed [0.4@476 of 0..3]
        # What the source before had in flight has no place here.
        entry b 2 at 3 of 4
            -> reply b: the shard's term is 6, not 4
        append c 2; all
            -> commit behind 2: term 7, starts 0, next segment 1
            -> create and write 1.7@0 of 3..5 up to id 5, sync
            -> show 1.7@367, records 0..5, behind 0.4@476
            -> extend 1.7@0 with 3..5
            -> reply c: 3 to 4 in term 7, 1/0/0
        ",
    );
}

#[test]
fn a_source_that_follows_goes_on_in_the_term_of_the_source_that_leads() {
    transcript(
        config(),
        "
        begun with a 2
        close; all
            -> show 0.1@367, sealed, records 0..2
            -> show completed [0.1@367 of 0..2]
            -> seal 0.1@367
            -> update 0.1@367, sealed, records 0..2
            -> commit behind 1: term 1, starts 0, next segment 1; completed 0.1@367 of 0..2
            -> closed
        follow
            -> show 0.1@367, sealed, records 0..2
            -> show completed [0.1@367 of 0..2]
        # It is of the new source, whose terms are higher.
        entry b 1 at 2 of 7; all
            -> commit behind 2: term 7, starts 0, next segment 1
            -> create and write 1.7@0 of 2..3 up to id 5, sync
            -> took 2..3
            -> show 1.7@258, records 0..3, behind 0.1@367
            -> extend 1.7@0 with 2..3
            -> reply b: 2 to 2 in term 7, 1/0/0
        # What comes from the old one is refused.
        entry c 1 at 3 of 1
            -> reply c: the shard's term is 7, not 1
        ",
    );
}
