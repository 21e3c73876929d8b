//! The journal over its life: appending, rolling, trimming, closing, and what a start finds.

mod world;

use std::path::Path;
use std::time::Duration;

use tailwater_env::Progress;
use tailwater_journal::{
    FullReason, Journal, JournalAppendError, JournalAppendOptions, JournalConfig, JournalOpenError,
    JournalPosition, ReplayError, Tag,
};
use world::World;

const TAG: Tag = Tag(2);
const OTHER: Tag = Tag(9);

fn config() -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: 6,
        reserve_bytes: 8 << 10,
        backlog_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        sync_interval: Duration::from_millis(200),
    }
}

fn dir() -> &'static Path {
    Path::new("/data/journal")
}

type Replayed = Vec<(Tag, JournalPosition, Vec<u8>)>;

fn try_open(world: &World) -> Result<(Journal, Replayed), JournalOpenError> {
    let mut replayed = Vec::new();
    let mut replay = |tag, position, bytes: &[u8]| {
        replayed.push((tag, position, bytes.to_vec()));
        Ok(())
    };
    let journal = Journal::open(&world.env, dir(), config(), &mut replay)?;
    Ok((journal, replayed))
}

fn open(world: &World) -> (Journal, Replayed) {
    try_open(world).expect("it opens")
}

fn append(journal: &Journal, record: &[u8]) -> JournalPosition {
    journal.append(TAG, &[record], JournalAppendOptions::new(journal.incarnation())).expect("there is room")
}

async fn append_durably(journal: &Journal, record: &[u8]) -> JournalPosition {
    let position = append(journal, record);
    journal.durable().wait_for(position).await.expect("the disk works");
    position
}

#[test]
fn what_was_acknowledged_is_replayed_in_order_after_a_crash() {
    let world = World::new(1);
    let (journal, replayed) = open(&world);
    assert!(replayed.is_empty());
    let positions = world
        .run(async {
            let mut positions = Vec::new();
            for number in 0..20u8 {
                positions.push(append_durably(&journal, &[number; 100]).await);
            }
            positions
        })
        .expect("no crash");
    let world = World::with_disk(2, world.disk.after_crash());
    let (_journal, replayed) = open(&world);
    let expected: Replayed =
        positions.into_iter().zip(0..).map(|(position, number)| (TAG, position, vec![number; 100])).collect();
    assert_eq!(replayed, expected);
}

#[test]
fn whoever_waits_for_a_replay_is_told_how_much_of_it_is_done() {
    let world = World::new(1);
    let (journal, _) = open(&world);
    world
        .run(async {
            for _ in 0..50 {
                append_durably(&journal, &[1; 4000]).await;
            }
        })
        .expect("no crash");
    let world = World::with_disk(2, world.disk.after_crash());
    let progress = Progress::default();
    let mut told = Vec::new();
    let mut replay = |_, _, _: &[u8]| {
        told.push(progress.stage());
        Ok(())
    };
    let _journal =
        Journal::open_telling(&world.env, dir(), config(), &mut replay, &progress).expect("it opens");
    let end = progress.stage();
    assert_eq!((end.what, end.done), ("bytes of the journal", end.whole));
    assert!(told.len() == 50 && told.iter().all(|stage| stage.whole == end.whole), "{told:?}");
    assert!(told[0].done == 0 && told.is_sorted_by_key(|stage| stage.done), "{told:?}");
    // It is in several files.
    let last = told[49].done;
    assert!((100_000..end.whole).contains(&last) && end.whole >= 200_000, "{last} of {end}");
}

#[test]
fn a_record_is_given_in_parts_and_comes_back_as_one() {
    let world = World::new(1);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let position = journal.append(TAG, &[b"a", b"", b"bc"], append).expect("room");
        let empty = journal.append(OTHER, &[], append).expect("room");
        assert!(empty > position);
        journal.close().await.expect("closed");
    });
    drop(journal);
    let world = World::with_disk(2, world.disk.after_crash());
    let (_journal, replayed) = open(&world);
    let records: Vec<_> = replayed.iter().map(|(tag, _, bytes)| (*tag, bytes.as_slice())).collect();
    assert_eq!(records, [(TAG, b"abc".as_slice()), (OTHER, b"".as_slice())]);
}

#[test]
fn files_are_rolled_and_used_again_once_they_are_trimmed() {
    let world = World::new(3);
    let (journal, _) = open(&world);
    world.run(async {
        for _ in 0..400 {
            let position = append_durably(&journal, &[1; 4000]).await;
            journal.trim(TAG, position);
        }
        journal.close().await.expect("closed");
    });
    let names = world.disk.names(dir());
    let files = names.iter().filter(|name| name.ends_with(".journal") || name.ends_with(".spare")).count();
    assert!(files <= 6, "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("000000000000000000") && name.ends_with(".journal")));
}

#[test]
fn a_file_stays_until_every_tag_that_has_records_in_it_has_trimmed_them() {
    let world = World::new(4);
    let (journal, _) = open(&world);
    let (other, replayed) = world
        .run(async {
            let append = JournalAppendOptions::new(journal.incarnation());
            let other = journal.append(OTHER, &[b"kept"], append).expect("room");
            for _ in 0..60 {
                let position = append_durably(&journal, &[1; 4000]).await;
                journal.trim(TAG, position);
            }
            assert_eq!(journal.trim_wanted(OTHER).await, other);
            journal.close().await.expect("closed");
            other
        })
        .map(|other| {
            let world = World::with_disk(5, world.disk.after_crash());
            (other, open(&world).1)
        })
        .expect("no crash");
    assert_eq!(replayed[0], (OTHER, other, b"kept".to_vec()));
}

#[test]
fn when_no_file_can_be_had_only_reserved_appends_go_on_and_trimming_makes_room() {
    let world = World::new(6);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let full = loop {
            match journal.append(TAG, &[&[1; 4000]], append) {
                Ok(position) => journal.durable().wait_for(position).await.expect("the disk works"),
                Err(error) => break error,
            }
        };
        assert_eq!(full, JournalAppendError::Full(FullReason::FilesMax { files_max: 6 }));
        let position = journal.append(OTHER, &[&[2; 4000]], append.reserved()).expect("kept back for this");
        journal.durable().wait_for(position).await.expect("durable like any other");
        journal.trim(TAG, position);
        journal.ready().await;
        append_durably(&journal, &[3; 4000]).await;
    });
    let world = World::with_disk(7, world.disk.after_crash());
    let (_, replayed) = open(&world);
    assert!(replayed.iter().any(|(tag, _, _)| *tag == OTHER));
}

#[test]
fn a_disk_without_room_for_a_further_file_makes_full_and_room_makes_it_go_on() {
    let world = World::new(8);
    let (journal, _) = open(&world);
    world.run(async {
        append_durably(&journal, b"first").await;
        while journal.stats().spares < 2 {
            tokio::task::yield_now().await;
        }
        world.disk.limit(Some(200 << 10));
        let append = JournalAppendOptions::new(journal.incarnation());
        let full = loop {
            match journal.append(TAG, &[&[1; 4000]], append) {
                Ok(position) => match journal.durable().wait_for(position).await {
                    Ok(()) => {}
                    Err(lost) => panic!("what was admitted fits: {lost}"),
                },
                Err(error) => break error,
            }
        };
        assert!(matches!(full, JournalAppendError::Full(FullReason::NoSpace { .. })), "{full}");
        world.disk.limit(None);
        journal.ready().await;
        append_durably(&journal, &[1; 4000]).await;
    });
}

#[test]
fn a_start_on_a_full_disk_replays_everything_and_service_resumes_when_there_is_room() {
    let world = World::new(9);
    let (journal, _) = open(&world);
    world.run(append_durably(&journal, b"kept"));
    drop(journal);
    let world = World::with_disk(10, world.disk.after_crash());
    world.disk.fail_all(None);
    world.disk.limit(Some(0));
    for name in world.disk.names(dir()).iter().filter(|name| name.ends_with(".spare")) {
        world.disk.delete(&dir().join(name));
    }
    let (journal, replayed) = open(&world);
    assert_eq!(replayed.len(), 1);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let refused = journal.append(TAG, &[b"no"], append).expect_err("no file to write to");
        assert!(matches!(refused, JournalAppendError::Latched(_)), "{refused}");
        world.env.sleep(Duration::from_secs(10)).await;
        assert!(journal.append(TAG, &[b"no"], append).is_err());
        world.disk.limit(None);
        journal.ready().await;
        append_durably(&journal, b"again").await;
    });
}

#[test]
fn more_than_the_backlog_is_refused_until_the_disk_has_caught_up() {
    let world = World::new(11);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let mut last = JournalPosition(0);
        let refused = loop {
            match journal.append(TAG, &[&[1; 10_000]], append) {
                Ok(position) => last = position,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, JournalAppendError::Backlog { backlog_bytes: 6 * 10_024 });
        journal.ready().await;
        journal.append(TAG, &[&[1; 10_000]], append).expect("room again");
        journal.durable().wait_for(last).await.expect("what was taken is done");
    });
}

#[test]
fn appends_that_can_not_be_taken_say_why_and_leave_nothing() {
    let world = World::new(12);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation());
        let too_large = journal.append(TAG, &[&[0; 10_000], &[0; 10_000]], append);
        assert_eq!(too_large, Err(JournalAppendError::TooLarge { length: 20_000, length_max: 16 << 10 }));
        let stale = JournalAppendOptions { incarnation: tailwater_journal::Incarnation(0), ..append };
        let current = journal.incarnation();
        assert_eq!(journal.append(TAG, &[b"x"], stale), Err(JournalAppendError::Stale { current }));
        journal.close().await.expect("closed");
        assert_eq!(journal.append(TAG, &[b"x"], append), Err(JournalAppendError::Closed));
        journal.ready().await;
    });
    assert!(open(&world).1.is_empty());
}

#[test]
fn records_without_a_sync_are_written_at_once_and_durable_within_the_interval() {
    let world = World::new(13);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation()).unsynced();
        let before = world.env.now();
        let position = journal.append(TAG, &[b"soon"], append).expect("room");
        journal.written().wait_for(position).await.expect("written");
        assert_eq!(world.env.now(), before, "no timer was needed for that");
        assert!(journal.durable().position() < position);
        journal.durable().wait_for(position).await.expect("synced");
        assert_eq!(world.env.now().since(before), config().sync_interval);
        // A record that is synced takes those before it along.
        let unsynced = journal.append(TAG, &[b"with"], append).expect("room");
        append_durably(&journal, b"it").await;
        assert!(journal.durable().position() > unsynced);
    });
}

#[test]
fn a_close_makes_everything_durable() {
    let world = World::new(14);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation()).unsynced();
        for _ in 0..5 {
            journal.append(TAG, &[&[1; 9000]], append).expect("room");
        }
        journal.close().await.expect("closed");
    });
    let world = World::with_disk(15, world.disk.after_crash());
    assert_eq!(open(&world).1.len(), 5);
}

#[test]
fn a_failed_sync_cuts_what_was_not_durable_for_good_even_if_it_looks_whole() {
    let world = World::new(16);
    let (journal, _) = open(&world);
    world.run(async {
        append_durably(&journal, b"kept").await;
        let old = JournalAppendOptions::new(journal.incarnation());
        world.disk.fail_syncs(true);
        let cut = journal.append(TAG, &[b"cut"], old).expect("taken");
        let lost = journal.durable().wait_for(cut).await.expect_err("its sync fails");
        assert!(lost.incarnation > old.incarnation && !lost.closed);
        let stale = journal.append(TAG, &[b"unaware"], old);
        assert_eq!(stale, Err(JournalAppendError::Stale { current: lost.incarnation }));
        world.disk.fail_syncs(false);
        journal.ready().await;
        append_durably(&journal, b"after").await;
        assert_eq!(journal.durable().wait_for(cut).await, Err(lost), "it stays lost");
        journal.close().await.expect("closed");
    });
    // Not even a kill that leaves the page cache as it was brings the cut record back.
    for disk in [world.disk.after_kill(), world.disk.after_crash()] {
        let (_, replayed) = open(&World::with_disk(17, disk));
        let records: Vec<_> = replayed.iter().map(|(_, _, bytes)| bytes.as_slice()).collect();
        assert_eq!(records, [b"kept".as_slice(), b"after"]);
    }
}

#[test]
fn while_nothing_works_appends_are_refused_and_the_directory_does_not_fill() {
    let world = World::new(18);
    let (journal, _) = open(&world);
    world.run(async {
        append_durably(&journal, b"kept").await;
        world.disk.fail_syncs(true);
        for round in 0..20 {
            let append = JournalAppendOptions::new(journal.incarnation());
            match journal.append(TAG, &[b"cut"], append) {
                Ok(position) => drop(journal.durable().wait_for(position).await.expect_err("it fails")),
                Err(error) => {
                    assert!(matches!(error, JournalAppendError::Latched(_)), "round {round}: {error}")
                }
            }
            world.env.sleep(Duration::from_secs(1)).await;
        }
        world.disk.fail_syncs(false);
        for round in 0..20 {
            journal.ready().await;
            let append = JournalAppendOptions::new(journal.incarnation());
            world.disk.fail_syncs(true);
            let position = journal.append(TAG, &[b"cut"], append).expect("ready");
            let lost = journal.durable().wait_for(position).await;
            lost.expect_err(&format!("round {round}"));
            world.disk.fail_syncs(false);
        }
        journal.ready().await;
        append_durably(&journal, b"after").await;
    });
    let names = world.disk.names(dir());
    assert!(names.len() <= 8, "{names:?}");
    let (_, replayed) = open(&World::with_disk(19, world.disk.after_crash()));
    assert_eq!(replayed.len(), 2);
}

#[test]
fn a_killed_process_leaves_what_it_wrote_and_it_is_durable_once_it_is_replayed() {
    let world = World::new(20);
    let (journal, _) = open(&world);
    world.run(async {
        let append = JournalAppendOptions::new(journal.incarnation()).unsynced();
        let position = journal.append(TAG, &[b"in the page cache"], append).expect("room");
        journal.written().wait_for(position).await.expect("written");
    });
    let killed = World::with_disk(21, world.disk.after_kill());
    let (journal, replayed) = open(&killed);
    assert_eq!(replayed.len(), 1);
    drop(journal);
    let (_, replayed) = open(&World::with_disk(22, killed.disk.after_crash()));
    assert_eq!(replayed.len(), 1);
}

#[test]
fn a_journal_in_use_is_not_opened_again_before_its_close() {
    let world = World::new(23);
    let (journal, _) = open(&world);
    assert!(matches!(try_open(&world), Err(JournalOpenError::InUse { .. })));
    world.run(journal.close());
    open(&world);
}

#[test]
fn a_record_that_its_owner_refuses_ends_the_opening() {
    let world = World::new(24);
    let (journal, _) = open(&world);
    let position = world.run(append_durably(&journal, b"strange")).expect("no crash");
    let world = World::with_disk(25, world.disk.after_crash());
    let mut replay = |_, _, _: &[u8]| Err(ReplayError::new("never seen the like"));
    let error = Journal::open(&world.env, dir(), config(), &mut replay).expect_err("refused");
    assert!(
        matches!(error, JournalOpenError::Replay { tag: TAG, position: at, .. } if at == position),
        "{error}"
    );
}

#[test]
fn many_restarts_without_a_record_do_not_fill_the_directory() {
    let mut world = World::new(26);
    for seed in 0..30 {
        let (journal, _) = open(&world);
        world.run(async {
            while journal.stats().spares < 2 {
                tokio::task::yield_now().await;
            }
        });
        let disk = world.disk.after_crash();
        drop(journal);
        world = World::with_disk(seed, disk);
    }
    let names = world.disk.names(dir());
    assert!(names.len() <= 8, "{names:?}");
}

// ---- damage ----

/// A journal of three files with one record each in the first two and three in the last one.
fn damaged(edit: impl FnOnce(&World, &[String])) -> Result<Replayed, JournalOpenError> {
    let mut world = World::new(30);
    for records in [1, 1, 3] {
        let (journal, _) = open(&world);
        world.run(async {
            for _ in 0..records {
                append_durably(&journal, &[5; 100]).await;
            }
        });
        let disk = world.disk.after_crash();
        drop(journal);
        world = World::with_disk(31, disk);
    }
    let mut names = world.disk.names(dir());
    names.retain(|name| name.ends_with(".journal"));
    assert_eq!(names.len(), 3);
    edit(&world, &names);
    try_open(&world).map(|(_, replayed)| replayed)
}

fn flip(world: &World, name: &str, offset: usize) {
    world.disk.edit(&dir().join(name), |bytes| bytes[offset] ^= 1);
}

/// Where the record of that number begins in its file.
fn record_offset(number: usize) -> usize {
    4096 + number * 124
}

#[test]
fn an_undamaged_journal_of_several_files_is_replayed_whole() {
    assert_eq!(damaged(|_, _| {}).expect("whole").len(), 5);
}

#[test]
fn damage_in_an_earlier_file_is_an_error_that_says_where() {
    let error = damaged(|world, names| flip(world, &names[1], record_offset(0) + 50)).expect_err("damaged");
    let JournalOpenError::Corrupt { offset, position, .. } = &error else { panic!("{error}") };
    assert_eq!((*offset, *position), (4096, JournalPosition(124)));
    let text = error.to_string();
    assert!(text.contains(".journal is damaged at byte 4096") && text.contains("cut the file to"), "{text}");
}

#[test]
fn damage_in_the_last_file_is_an_error_if_a_later_record_knew_the_damaged_one_durable() {
    let error = damaged(|world, names| flip(world, &names[2], record_offset(0) + 50)).expect_err("damaged");
    assert!(matches!(error, JournalOpenError::Corrupt { offset: 4096, .. }), "{error}");
}

#[test]
fn a_broken_last_record_is_where_the_journal_ends() {
    let replayed =
        damaged(|world, names| flip(world, &names[2], record_offset(2) + 50)).expect("a torn tail");
    assert_eq!(replayed.len(), 4);
}

#[test]
fn the_advice_for_damage_works() {
    let replayed = damaged(|world, names| {
        flip(world, &names[1], record_offset(0) + 50);
        world.disk.edit(&dir().join(&names[1]), |bytes| bytes.truncate(record_offset(0)));
        world.disk.delete(&dir().join(&names[2]));
    });
    assert_eq!(replayed.expect("readable").len(), 1);
    let replayed = damaged(|world, names| {
        flip(world, &names[1], 33);
        world.disk.delete(&dir().join(&names[1]));
        world.disk.delete(&dir().join(&names[2]));
    });
    assert_eq!(replayed.expect("readable").len(), 1);
}

#[test]
fn a_damaged_header_is_an_error_in_any_file() {
    for file in 0..3 {
        let error = damaged(|world, names| flip(world, &names[file], 33)).expect_err("damaged");
        assert!(matches!(error, JournalOpenError::Header { .. }), "{error}");
    }
}

#[test]
fn a_file_that_is_gone_from_the_middle_is_an_error() {
    let error = damaged(|world, names| world.disk.delete(&dir().join(&names[1]))).expect_err("missing");
    assert!(matches!(error, JournalOpenError::Missing { .. }), "{error}");
}

#[test]
fn a_file_that_is_shorter_than_its_successor_says_is_an_error() {
    let shorten = |bytes: &mut Vec<u8>| bytes.truncate(record_offset(0) + 60);
    let error =
        damaged(|world, names| world.disk.edit(&dir().join(&names[1]), shorten)).expect_err("cut off");
    assert!(matches!(error, JournalOpenError::Corrupt { .. }), "{error}");
}

#[test]
fn files_of_another_journal_are_not_mixed_in() {
    let other = World::new(32);
    let (journal, _) = open(&other);
    other.run(append_durably(&journal, &[5; 100]));
    let mut foreign = Vec::new();
    let first = dir().join("00000000000000000001.journal");
    other.disk.edit(&first, |bytes| foreign = bytes.clone());
    let error = damaged(|world, names| world.disk.edit(&dir().join(&names[0]), |bytes| *bytes = foreign))
        .expect_err("mixed up");
    assert!(matches!(error, JournalOpenError::Header { .. }), "{error}");
}
