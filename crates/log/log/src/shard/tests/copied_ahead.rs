//! A shard that is a copy: what it hands on before it is durable.

use super::transcript::copy_transcript;
use super::world::{World, config};
use super::*;

/// What was written down, but for what is asked of the store and of metadata.
fn told(world: &World) -> Vec<String> {
    let lines: Vec<String> = world.lines.lock().drain(..).collect();
    let is_told =
        |line: &String| ["took", "extend", "ahead", "caught up"].iter().any(|word| line.starts_with(word));
    lines.into_iter().filter(is_told).collect()
}

fn synced(world: &mut World, upto: u64) {
    world.step(ShardInput::Synced(EntryPlace(upto)));
}

#[test]
fn what_a_copy_takes_is_copied_on_at_once_and_shown_ahead_once_its_segment_is_durable() {
    let mut world = World::new(StreamConfig::default());
    for (name, base, count) in [("a", 0, 2), ("b", 2, 1), ("c", 3, 1)] {
        let _answer = world.give(name, base, count);
    }
    world.work();
    assert_eq!(told(&world), ["took 0..2", "took 2..3", "took 3..4"]);
    assert_eq!((world.shard.tail().next_offset, world.shard.copyable_next().get()), (Offset(0), Offset(4)));
    let first = world.journal / 3;
    synced(&mut world, first);
    let lines = told(&world);
    assert!(lines[0].starts_with("extend 0.1@0 with 0..2"), "{lines:?}");
    assert!(lines[1].ends_with("with 2..3") && lines[2].ends_with("with 3..4"), "{lines:?}");
    assert!(lines.len() == 3 && lines[1..].iter().all(|line| line.starts_with("ahead 0.1@")), "{lines:?}");
    // What comes from here on is shown as soon as the store has it.
    let _answer = world.give("d", 4, 1);
    world.work();
    let lines = told(&world);
    assert!(
        lines.len() == 2 && lines[1].starts_with("ahead 0.1@") && lines[1].ends_with("with 4..5"),
        "{lines:?}"
    );
    assert_eq!((world.shard.tail().next_offset, world.shard.copyable_next().get()), (Offset(2), Offset(5)));
    let all = world.journal;
    synced(&mut world, all);
    assert!(told(&world).iter().all(|line| line.starts_with("caught up")));
    assert_eq!(world.shard.tail().next_offset, Offset(5));
}

#[test]
fn what_a_copy_loses_is_copied_on_no_more_and_comes_again_in_another_segment() {
    let mut world = World::new(StreamConfig::default());
    let _answer = world.give("a", 0, 2);
    world.settle_all();
    let _answer = world.give("b", 2, 1);
    world.work();
    assert_eq!(world.shard.copyable_next().get(), Offset(3));
    world.step(ShardInput::Lost("a disk that fails".into()));
    world.work();
    let tail = world.shard.tail();
    assert_eq!(
        (tail.next_offset, world.shard.copyable_next().get(), tail.sealed),
        (Offset(2), Offset(2), true)
    );
    told(&world);
    let _answer = world.give("b", 2, 1);
    world.settle_all();
    let lines = told(&world);
    assert!(lines.iter().any(|line| line.starts_with("extend 1.1@0 with 2..3")), "{lines:?}");
}

#[test]
fn a_number_is_used_once_in_a_term_whichever_crash_hides_that_it_was() {
    copy_transcript(
        config(),
        "
        entry a 3 at 0 of 1; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..3 up to id 5, sync
            -> took 0..3
        lost a disk that fails
            -> show 1.1@0, records 0..0
            -> reply a: not durable: a disk that fails; the log goes on without these records, send them again
            -> seal 0.1@0
            -> update 1.1@0, records 0..0
        restart
            -> show 1.1@0, records 0..0
            -> show completed []
        # Were it deleted by now, this start would know nothing of it.
        restart
            -> show 1.1@0, records 0..0
            -> show completed []
        entry a 3 at 0 of 1; proceed
            -> commit behind 1: term 1, starts 0, next segment 1
        committed
            -> delete 0.1
            -> create and write 1.1@0 of 0..3 up to id 5, sync
        wrote; synced
            -> took 0..3
            -> show 1.1@476, records 0..3
            -> extend 1.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 1/0/0
        ",
    );
}

#[test]
fn a_number_that_a_copy_lost_is_not_used_again_by_the_process_that_lost_it() {
    copy_transcript(
        config(),
        "
        entry a 3 at 0 of 1; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..3 up to id 5, sync
            -> took 0..3
        lost a disk that fails
            -> show 1.1@0, records 0..0
            -> reply a: not durable: a disk that fails; the log goes on without these records, send them again
            -> seal 0.1@0
            -> update 1.1@0, records 0..0
        entry a 3 at 0 of 1; proceed
            -> commit behind 1: term 1, starts 0, next segment 1
        committed
            -> delete 0.1
            -> create and write 1.1@0 of 0..3 up to id 5, sync
        wrote; synced
            -> took 0..3
            -> show 1.1@476, records 0..3
            -> extend 1.1@0 with 0..3
            -> reply a: 0 to 2 in term 1, 1/0/0
        restart
            -> show 1.1@476, sealed, records 0..3
            -> show completed [1.1@476 of 0..3]
            -> seal 1.1@476
            -> commit behind 2: term 1, starts 0, next segment 2; completed 1.1@476 of 0..3
        ",
    );
}

#[test]
fn what_a_copy_lost_is_sealed_without_entries_before_a_segment_of_the_same_term_goes_on() {
    copy_transcript(
        StreamConfig { segment_bytes: 4 << 10, ..config() },
        "
        entry a 30 at 0 of 1; proceed; committed; wrote
            -> commit behind 0: term 1, starts 0, next segment 0
            -> create and write 0.1@0 of 0..30 up to id 5, sync
            -> took 0..30
        entry b 30 at 30 of 1; proceed
            -> create and write 1.1@0 of 30..60 up to id 5, sync
        # The store knows that the first one is lost, and the shard does not yet.
        refused busy
            -> wake at 1002 ms
        lost a disk that fails
            -> show 2.1@0, records 0..0
            -> reply a: not durable: a disk that fails; the log goes on without these records, send them again
            -> reply b: not durable: a disk that fails; the log goes on without these records, send them again
            -> seal 0.1@0
            -> update 2.1@0, records 0..0
            -> wake never
        entry a 30 at 0 of 1; proceed
            -> commit behind 1: term 1, starts 0, next segment 2
        committed; wrote; synced
            -> delete 0.1
            -> create and write 2.1@0 of 0..30 up to id 5, sync
            -> took 0..30
            -> show 2.1@3419, records 0..30
            -> extend 2.1@0 with 0..30
            -> reply a: 0 to 29 in term 1, 2/0/0
        ",
    );
}

#[test]
fn a_copy_whose_disk_is_not_synced_yet_is_copied_on_all_the_same_as_its_source_has_it() {
    let config = StreamConfig { durability: StreamDurability::Interval, ..config() };
    let mut world = World::new(config).of_copy();
    let _answer = world.give("a", 0, 2);
    world.work();
    assert_eq!(world.shard.copyable_next().get(), Offset(2));
    world.step(ShardInput::Written(EntryPlace(world.journal)));
    assert_eq!((world.shard.tail().next_offset, world.shard.copyable_next().get()), (Offset(2), Offset(2)));
}
