//! The whole log on a real disk.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    batch, config, create, faulty, in_world, log_start, losing, open, open_with, read_all, shard, until,
    until_some, values, values_of,
};
use futures::future::join_all;
use tailwater_env::{BoxFuture, Env, OpenMode, Progress, Stage, panics};
use tailwater_format::{
    Codec, Dlsn, EntryId, Offset, SegmentId, SegmentNumber, ShardNumber, SlotId, StreamId, Term,
    TransactionId,
};
use tailwater_log::{
    AppendError, AppendOptions, FlushPolicy, LocateRead, Log, LogConfig, ReadError, SequenceError,
    StreamConfig, StreamDurability, StreamError, TransactionIds,
};
use tailwater_tail::{DurableSource, SourceError};
use tempfile::TempDir;
use tokio::sync::oneshot;

const SHARD: ShardNumber = ShardNumber(0);

/// Runs a test of a log in a directory of its own.
fn in_log(test: impl AsyncFnOnce(Env, TempDir, Log)) {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open(&env, dir.path()).await;
        test(env, dir, log).await;
    });
}

/// Drops a log, and opens it again.
async fn reopen(env: &Env, dir: &TempDir, log: Log) -> Log {
    drop(log);
    open(env, dir.path()).await
}

#[test]
fn what_was_acknowledged_is_read_back_and_survives_a_clean_restart() {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        let first = log.append(stream, SHARD, values(&["one", "two"])).await.expect("appended");
        let second = log.append(stream, SHARD, values(&["three"])).await.expect("appended");
        assert_eq!((first.base_offset, first.last_offset, first.term), (Offset(0), Offset(1), Term(1)));
        assert_eq!(second.base_offset, Offset(2));
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["one", "two", "three"]);
        log.close().await;
        assert_eq!(log.append(stream, SHARD, values(&["late"])).await, Err(AppendError::Closed));
        let log = reopen(&env, &dir, log).await;
        let tail = log.view(shard(stream, 0)).expect("the shard").tail;
        assert!(tail.sealed, "completed by the stop");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["one", "two", "three"]);
        let third = log.append(stream, SHARD, values(&["four"])).await.expect("appended");
        assert_eq!((third.base_offset, third.term), (Offset(3), Term(2)));
        assert_eq!(third.dlsn.expect("new").segment, SegmentNumber(1), "an old segment is never appended to");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["one", "two", "three", "four"]);
    });
}

#[test]
fn whoever_waits_for_a_log_is_told_how_far_it_is_until_all_its_shards_are_open() {
    in_log(async |env, dir, log| {
        for name in ["a", "b"] {
            let config = StreamConfig { shards: 3, ..StreamConfig::default() };
            let stream = create(&log, name, config).await;
            log.append(stream, SHARD, values(&["one"])).await.expect("appended");
        }
        log.close().await;
        drop(log);
        let lock = until_some(&env, async || tailwater_store::lock_data_dir(&env, dir.path()).ok()).await;
        let (progress, mut others) = (Progress::default(), |_, _, _: &[u8]| Ok(()));
        let no_cells = Box::new(|_| -> BoxFuture<'static, _> { Box::pin(std::future::ready(Ok(None))) });
        let log = Log::open_locked(&env, config(), dir.path(), lock, no_cells, &mut others, &progress).await;
        let _log = log.expect("it opens");
        assert_eq!(progress.stage(), Stage { what: "shards", done: 6, whole: 6 });
    });
}

#[test]
fn a_log_that_lost_an_owner_or_was_closed_says_that_it_takes_no_appends() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (world, owners) = losing(&env, "log-owner");
        let log = open(&world, dir.path()).await;
        assert_eq!(log.health(), Ok(()));
        owners.lock()[1].abort();
        until(&env, || log.health().is_err()).await;
        let why = log.health().expect_err("one of its owners is gone");
        assert!(why.contains("restart"), "{why}");
        let log = reopen(&env, &dir, log).await;
        log.close().await;
        assert_eq!(log.health(), Err("the log was closed".to_owned()));
    });
}

#[test]
fn a_log_whose_owner_panicked_on_the_thread_of_who_appended_takes_no_appends_and_says_so() {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        log.append(stream, SHARD, values(&["one"])).await.expect("appended");
        // Refused at once, and so answered within the round of whoever finds the owner with nothing to do.
        let here = std::thread::current().id();
        let panicked_here = Arc::new(AtomicBool::new(false));
        let append = || {
            let told = Arc::clone(&panicked_here);
            let options =
                AppendOptions { alone: true, expected_term: Some(Term(7)), ..AppendOptions::default() };
            panics::catch(|| {
                log.submit_with(stream, SHARD, values(&["two"]), options, move |refused| {
                    if std::thread::current().id() == here {
                        told.store(true, Ordering::Relaxed);
                        panic!("{refused:?}");
                    }
                })
            })
            .is_err()
        };
        until(&env, append).await;
        assert!(panicked_here.load(Ordering::Relaxed));

        assert_eq!(log.append(stream, SHARD, values(&["three"])).await, Err(AppendError::Closed));
        let why = log.health().expect_err("one of its owners is gone");
        assert!(why.contains("restart"), "{why}");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["one"], "what is there is read");
        let log = reopen(&env, &dir, log).await;
        log.append(stream, SHARD, values(&["four"])).await.expect("appended");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["one", "four"]);
    });
}

#[test]
fn whoever_waits_for_records_is_told_when_their_stream_is_deleted() {
    in_log(async |_, _dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        let id = shard(stream, 0);
        log.append(stream, SHARD, values(&["one"])).await.expect("appended");
        let listener = log.listen([id]);
        assert!(log.fetch_hot(id, Offset(1), 1, true).expect("there").expect("hot").pieces.is_empty());
        log.delete_stream("a").await.expect("deleted");
        listener.changed().await;
        assert_eq!(log.fetch_hot(id, Offset(1), 1, true), Err(ReadError::NoStream));
    });
}

#[test]
fn a_shard_with_missing_bytes_is_refused_and_all_others_go_on() {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig { shards: 2, ..StreamConfig::default() }).await;
        let other = create(&log, "b", StreamConfig::default()).await;
        for (stream, number) in [(stream, 0), (stream, 1), (other, 0)] {
            let written = log.append(stream, ShardNumber(number), values(&["one", "two"])).await;
            written.expect("appended");
        }
        log.close().await;
        drop(log);
        let damaged = dir.path().join("segments").join(stream.to_string()).join("0");
        let names = env.disk().list(&damaged).expect("the shard's directory");
        let segment = damaged.join(names.iter().find(|name| name.ends_with(".seg")).expect("a segment file"));
        let segment = env.disk().open(&segment, OpenMode::ReadWrite).expect("it is there");
        segment.set_len(10).expect("cut");

        let log = open(&env, dir.path()).await;
        let refused = log.append(stream, SHARD, values(&["more"])).await.expect_err("refused").to_string();
        assert!(refused.contains("damaged") && refused.contains("backup"), "{refused}");
        let unread = log.locate(shard(stream, 0), LocateRead::Start).await;
        assert!(matches!(unread, Err(ReadError::Damaged(_))), "{unread:?}");
        assert!(matches!(log.truncate("a", SHARD, Offset(1)).await, Err(StreamError::Damaged(_))));
        let source: &dyn DurableSource = &log;
        let untold = source.tails(stream, &[SHARD]).await;
        assert!(matches!(untold, Err(SourceError::Refused(_))), "{untold:?}");
        let shards = log.describe("a").expect("it exists").shards;
        assert_eq!(shards.iter().map(|shard| shard.damaged.is_some()).collect::<Vec<_>>(), [true, false]);
        assert_eq!(log.shards_damaged(), 1);
        for id in [shard(stream, 1), shard(other, 0)] {
            assert_eq!(values_of(&log, id).await, ["one", "two"]);
            log.append(id.stream, id.shard, values(&["three"])).await.expect("appended");
            assert_eq!(values_of(&log, id).await, ["one", "two", "three"]);
        }
        log.close().await;
        let log = reopen(&env, &dir, log).await;
        assert!(matches!(log.view(shard(stream, 0)), Err(ReadError::Damaged(_))), "also the next time");
        log.delete_stream("a").await.expect("deleted");
        assert_eq!(log.shards_damaged(), 0);
        until(&env, || !damaged.parent().expect("the stream's").exists()).await;
        assert_eq!(values_of(&log, shard(other, 0)).await, ["one", "two", "three"]);
    });
}

#[test]
fn a_shard_whose_open_segment_lost_synced_bytes_is_refused_at_every_start_and_its_offsets_are_not_given_again()
 {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig { shards: 3, ..StreamConfig::default() }).await;
        for number in 0..3 {
            for value in ["one", "two"] {
                log.append(stream, ShardNumber(number), values(&[value])).await.expect("appended");
            }
        }
        // All of it is in the files, which are what the next start believes.
        log.store().flush().await.expect("written");
        drop(log);
        let file = |number: u32| {
            let shard = dir.path().join("segments").join(stream.to_string()).join(number.to_string());
            let names = env.disk().list(&shard).expect("the shard's directory");
            shard.join(names.iter().find(|name| name.ends_with(".seg")).expect("a segment file"))
        };
        env.disk().open(&file(0), OpenMode::ReadWrite).expect("it is there").set_len(200).expect("cut");
        let (missing, aside) = (file(1), dir.path().join("aside"));
        env.disk().rename(&missing, &aside).expect("moved");
        let mut whole = vec!["one", "two"];
        for start in 0..3 {
            let log = open(&env, dir.path()).await;
            assert_eq!(log.shards_damaged(), 2, "start {start}");
            for number in 0..2 {
                let refused = log.append(stream, ShardNumber(number), values(&["three"])).await;
                let refused = refused.expect_err("its offset was given before").to_string();
                assert!(refused.contains("is not whole"), "shard {number}, start {start}: {refused}");
            }
            assert_eq!(values_of(&log, shard(stream, 2)).await, whole, "start {start}");
            log.append(stream, ShardNumber(2), values(&["more"])).await.expect("appended");
            whole.push("more");
            // Neither a later checkpoint nor a clean stop forgets it.
            log.store().flush().await.expect("written");
            if start == 1 {
                log.close().await;
            }
        }
        env.disk().create_dir_all(missing.parent().expect("the shard's")).expect("there");
        env.disk().rename(&aside, &missing).expect("restored");
        let log = open(&env, dir.path()).await;
        assert_eq!(log.shards_damaged(), 1);
        assert_eq!(values_of(&log, shard(stream, 1)).await, ["one", "two"]);
        log.append(stream, ShardNumber(1), values(&["three"])).await.expect("appended");
        assert_eq!(values_of(&log, shard(stream, 1)).await, ["one", "two", "three"]);
    });
}

#[test]
fn a_copy_of_a_lost_segment_that_lacks_what_was_appended_after_it_does_not_make_it_whole() {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        log.append(stream, SHARD, values(&["one"])).await.expect("appended");
        log.store().flush().await.expect("written");
        let folder = dir.path().join("segments").join(stream.to_string()).join("0");
        let names = env.disk().list(&folder).expect("the shard's directory");
        let file = folder.join(names.iter().find(|name| name.ends_with(".seg")).expect("a segment file"));
        let original = env.disk().open(&file, OpenMode::Read).expect("it is there");
        let mut copy = vec![0; original.len().expect("told") as usize];
        original.read_at(&mut copy, 0).expect("read");
        // In the journal, and as yet nowhere else.
        log.append(stream, SHARD, values(&["two"])).await.expect("appended");
        drop(log);
        env.disk().remove_file(&file).expect("removed");
        let log = open(&env, dir.path()).await;
        assert_eq!(log.shards_damaged(), 1);
        log.store().flush().await.expect("written");
        drop(log);
        env.disk().create_dir_all(&folder).expect("there");
        let restored = env.disk().open(&file, OpenMode::CreateNew).expect("made");
        restored.write_all_at(&copy, 0).expect("restored");
        let log = open(&env, dir.path()).await;
        assert_eq!(log.shards_damaged(), 1, "what was acknowledged last is missing");
    });
}

#[test]
fn what_was_acknowledged_survives_kills_and_terms_grow() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut stream = None;
        let mut expected = Vec::new();
        for round in 0..4 {
            let log = open(&env, dir.path()).await;
            let stream = match stream {
                Some(stream) => stream,
                None => *stream
                    .insert(create(&log, "a", StreamConfig { shards: 3, ..StreamConfig::default() }).await),
            };
            for (number, records) in (0..).zip(&mut expected) {
                assert_eq!(&values_of(&log, shard(stream, number)).await, records);
            }
            expected.resize(3, Vec::new());
            for number in 0..3 {
                for record in 0..10 {
                    let value = format!("{round}/{number}/{record}");
                    let appended =
                        log.append(stream, ShardNumber(number), values(&[&value])).await.expect("appended");
                    assert_eq!(appended.term, Term(round + 1));
                    expected[number as usize].push(value);
                }
            }
            // Some more in flight when it dies.
            for record in 0..10 {
                let value = format!("unacknowledged {record}");
                drop(log.submit(stream, SHARD, values(&[&value]), AppendOptions::default()));
            }
            let log = reopen(&env, &dir, log).await;
            let found = values_of(&log, shard(stream, 0)).await;
            assert!(found.starts_with(&expected[0]));
            expected[0] = found;
            log.close().await;
        }
    });
}

#[test]
fn segments_roll_and_every_position_is_found_exactly() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut small = config();
        small.store.index_step = 512;
        let log = open_with(&env, dir.path(), small).await;
        let config = StreamConfig { segment_bytes: 4_096, ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let id = shard(stream, 0);
        let mut next = 0;
        for round in 0..60_i64 {
            // Timestamps go up and down; the running maximum rises in steps.
            let timestamps = [round * 10, round * 10 - 35, round * 10 + 7, round * 10 + 7];
            let records: Vec<_> = timestamps
                .iter()
                .map(|timestamp| {
                    next += 1;
                    (*timestamp, format!("record {next} {}", "x".repeat(20 + next % 40)))
                })
                .collect();
            let codec = Codec::ALL[round as usize % 5];
            log.append(stream, SHARD, batch(&records, codec, None)).await.expect("appended");
        }
        let seen = read_all(&log, id).await;
        assert_eq!(seen.len(), 240);
        assert!(seen.last().expect("some").segment.number >= SegmentNumber(3));

        let check = async |what: LocateRead, index: usize| {
            let found = log.locate(id, what).await.expect("found");
            let expected = &seen[index];
            assert_eq!(
                (found.offset.0, found.segment, found.position),
                (expected.offset, expected.segment.number, expected.position),
                "{what:?}"
            );
        };
        for (index, record) in seen.iter().enumerate() {
            check(LocateRead::Offset(Offset(record.offset)), index).await;
            let dlsn = Dlsn {
                segment: record.segment.number,
                entry: EntryId(record.entry),
                slot: SlotId(record.slot),
            };
            check(LocateRead::Dlsn(dlsn), index).await;
        }
        for wanted in -50..600 {
            let location =
                log.locate(id, LocateRead::TransactionId(TransactionId(wanted))).await.expect("found");
            let expected = seen.iter().find(|record| record.timestamp >= wanted);
            assert_eq!(location.offset.0, expected.map_or(240, |record| record.offset), "{wanted}");
            let running = seen.iter().find(|record| record.transaction_id >= wanted);
            assert_eq!(running.map(|record| record.offset), expected.map(|record| record.offset));
        }
        check(LocateRead::Start, 0).await;
        check(LocateRead::Last(1), 239).await;
        check(LocateRead::Last(100_000), 0).await;
        let end = log.locate(id, LocateRead::End).await.expect("found");
        assert_eq!(end.offset, Offset(240));
        assert_eq!(log.locate(id, LocateRead::Offset(Offset(240))).await, Ok(end));
        let beyond = log.locate(id, LocateRead::Offset(Offset(241))).await;
        assert_eq!(beyond, Err(ReadError::BeyondEnd { end: Offset(240) }));
        let dlsn = Dlsn { segment: SegmentNumber(0), entry: EntryId(9_999), slot: SlotId(0) };
        let location = log.locate(id, LocateRead::Dlsn(dlsn)).await.expect("found");
        let next = seen.iter().find(|record| record.segment.number > SegmentNumber(0)).expect("another");
        assert_eq!((location.offset.0, location.segment), (next.offset, next.segment.number));

        // The same after a restart, from the sidecars.
        log.close().await;
        let log = reopen(&env, &dir, log).await;
        assert_eq!(read_all(&log, id).await, seen);
        for record in &seen {
            let found = log.locate(id, LocateRead::Offset(Offset(record.offset))).await.expect("found");
            assert_eq!(found.position, record.position);
        }
    });
}

#[test]
fn truncation_is_exact_to_the_record_durable_and_told_to_readers() {
    in_log(async |env, dir, log| {
        let config = StreamConfig { segment_bytes: 4_096, ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let id = shard(stream, 0);
        for _ in 0..20 {
            log.append(stream, SHARD, values(&["x".repeat(500).as_str(), "y"])).await.expect("appended");
        }
        let first = log.segments(id, SegmentNumber(0)).expect("the shard")[0];
        let cut = Offset(first.next_offset.0 + 3);
        assert_eq!(log.truncate("a", SHARD, cut).await, Ok(cut));
        assert_eq!(log_start(&log, id), cut);
        assert_eq!(log.locate(id, LocateRead::Start).await.expect("found").offset, cut);
        let gone = Err(ReadError::Truncated { log_start: cut });
        assert_eq!(log.locate(id, LocateRead::Offset(Offset(cut.0 - 1))).await, gone);
        let segment = tailwater_format::SegmentId { shard: id, number: first.number, term: first.term };
        let read = log.read_durable(segment, tailwater_format::Position(0), 100).await;
        assert_eq!(read, Err(ReadError::Truncated { log_start: cut }));
        let beyond = log.truncate("a", SHARD, Offset(41)).await;
        assert_eq!(beyond, Err(StreamError::BeyondEnd { end: Offset(40), given: Offset(41) }));
        let log = reopen(&env, &dir, log).await;
        assert_eq!(log_start(&log, id), cut);
        let time = log.locate(id, LocateRead::TransactionId(TransactionId(0))).await.expect("found");
        assert_eq!(time.offset, cut, "not before the start");
        // All of it, and nothing is left to restart from but the numbers.
        log.truncate("a", SHARD, Offset(40)).await.expect("truncated");
        until(&env, || log.segments(id, SegmentNumber(0)).expect("the shard").is_empty()).await;
        let log = reopen(&env, &dir, log).await;
        let appended = log.append(stream, SHARD, values(&["z"])).await.expect("appended");
        assert_eq!(appended.base_offset, Offset(40));
    });
}

#[test]
fn a_time_that_only_a_removed_record_reached_is_where_what_is_left_begins() {
    in_log(async |_, _dir, log| {
        let config = StreamConfig { segment_bytes: 4_096, ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let id = shard(stream, 0);
        let record = |timestamp: i64| batch(&[(timestamp, "x".repeat(1_000))], Codec::None, None);
        log.append(stream, SHARD, record(600)).await.expect("appended");
        for timestamp in [100; 10] {
            log.append(stream, SHARD, record(timestamp)).await.expect("appended");
        }
        let first = log.segments(id, SegmentNumber(0)).expect("the shard")[0];
        log.truncate("a", SHARD, first.next_offset).await.expect("truncated");
        let at = async |time| {
            let found = log.locate(id, LocateRead::TransactionId(TransactionId(time))).await;
            found.expect("found").offset
        };
        for time in [0, 100, 101, 600] {
            assert_eq!(at(time).await, first.next_offset, "{time}");
        }
        assert_eq!(at(601).await, Offset(11));
        log.append(stream, SHARD, record(700)).await.expect("appended");
        assert_eq!((at(600).await, at(601).await), (first.next_offset, Offset(11)));
    });
}

#[test]
fn a_batch_whose_header_says_another_largest_time_is_positioned_by_its_records() {
    in_log(async |_, _dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        // Bytes 35 to 43 of a batch are the time, 17 to 21 the checksum of all from 21 on.
        let saying = |time: i64, records: &[(i64, String)]| {
            let mut bytes = batch(records, Codec::None, None).to_vec();
            bytes[35..43].copy_from_slice(&time.to_be_bytes());
            let crc = crc_fast::crc32_iscsi(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
            bytes
        };
        let record = |time: i64| (time, format!("at {time}"));
        let low = saying(1, &[record(10), record(20)]);
        let high = saying(1_000, &[record(21), record(22)]);
        let last = saying(31, &[record(30), record(31)]);
        let both: Vec<u8> = [low, high, last].concat();
        log.append(stream, SHARD, both.into()).await.expect("appended");
        for (time, offset) in [(5, 0), (11, 1), (21, 2), (22, 3), (23, 4), (31, 5), (32, 6)] {
            let found = log.locate(shard(stream, 0), LocateRead::TransactionId(TransactionId(time))).await;
            assert_eq!(found.expect("found").offset, Offset(offset), "{time}");
        }
    });
}

#[test]
fn retention_by_time_removes_what_is_old_even_if_nothing_comes_after_it() {
    in_log(async |env, _dir, log| {
        let config = StreamConfig { retention_ms: Some(30), ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let id = shard(stream, 0);
        log.append(stream, SHARD, values(&["one", "two"])).await.expect("appended");
        until(&env, || log_start(&log, id) == Offset(2)).await;
        until(&env, || log.segments(id, SegmentNumber(0)).expect("the shard").is_empty()).await;
        let appended = log.append(stream, SHARD, values(&["three"])).await.expect("appended");
        assert_eq!(appended.base_offset, Offset(2));
    });
}

#[test]
fn retention_by_bytes_keeps_the_newest() {
    in_log(async |env, _dir, log| {
        let config = StreamConfig {
            retention_ms: None,
            retention_bytes: Some(16 << 10),
            segment_bytes: 4 << 10,
            ..StreamConfig::default()
        };
        let stream = create(&log, "a", config).await;
        let id = shard(stream, 0);
        for _ in 0..100 {
            log.append(stream, SHARD, values(&["x".repeat(1_000).as_str()])).await.expect("appended");
        }
        let kept = || {
            log.segments(id, SegmentNumber(0))
                .expect("the shard")
                .iter()
                .map(|segment| segment.length.0)
                .sum::<u64>()
        };
        until(&env, || kept() < 24 << 10).await;
        assert!(kept() >= 16 << 10);
        assert_eq!(log.view(id).expect("the shard").tail.next_offset, Offset(100));
    });
}

#[test]
fn an_idempotent_producer_that_repeats_itself_is_recognized_over_kills() {
    in_log(async |env, dir, log| {
        // Small segments, so that snapshots and scans both have a part in it.
        let config = StreamConfig { segment_bytes: 4_096, ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let producer = log.init_producer_id().await.expect("an id");
        let numbered = |sequence: i32| {
            batch(
                &[(1, format!("{sequence} {}", "x".repeat(300)))],
                Codec::None,
                Some((producer, 0, sequence)),
            )
        };
        for sequence in 0..30 {
            let appended = log.append(stream, SHARD, numbered(sequence)).await.expect("appended");
            assert_eq!(appended.base_offset.0, sequence as u64);
        }
        drop(log);
        for _ in 0..2 {
            let log = open(&env, dir.path()).await;
            for sequence in 25..30 {
                let again = log.append(stream, SHARD, numbered(sequence)).await.expect("a duplicate");
                assert_eq!((again.base_offset.0, again.dlsn), (sequence as u64, None));
            }
            let gap = log.append(stream, SHARD, numbered(31)).await;
            let expected = SequenceError::OutOfOrder { producer, expected: 30, given: 31 };
            assert_eq!(gap, Err(AppendError::Sequence(expected)));
            drop(log);
        }
        let log = open(&env, dir.path()).await;
        log.append(stream, SHARD, numbered(30)).await.expect("appended");
        assert_eq!(read_all(&log, shard(stream, 0)).await.len(), 31);
        assert!(log.init_producer_id().await.expect("an id") > producer, "never handed out again");
    });
}

#[test]
fn a_stream_that_is_created_again_under_its_name_is_another_one() {
    in_log(async |env, dir, log| {
        let first = create(&log, "a", StreamConfig::default()).await;
        log.append(first, SHARD, values(&["old"])).await.expect("appended");
        let again = log.create_stream("a", StreamConfig::default()).await;
        assert_eq!(again, Err(StreamError::Exists("a".to_owned())));
        log.delete_stream("a").await.expect("deleted");
        assert_eq!(log.append(first, SHARD, values(&["late"])).await, Err(AppendError::NoStream));
        assert!(log.view(shard(first, 0)).is_err());
        assert_eq!(log.delete_stream("a").await, Err(StreamError::NoStream("a".to_owned())));

        let second = create(&log, "a", StreamConfig { shards: 2, ..StreamConfig::default() }).await;
        assert_ne!(first, second);
        assert!(read_all(&log, shard(second, 0)).await.is_empty());
        log.append(second, ShardNumber(1), values(&["new"])).await.expect("appended");
        let log = reopen(&env, &dir, log).await;
        let names: Vec<_> = log.list_streams().into_iter().map(|stream| (stream.name, stream.id)).collect();
        assert_eq!(names, [("a".to_owned(), second)]);
        assert_eq!(values_of(&log, shard(second, 1)).await, ["new"]);
        assert!(log.store().segments(&shard(first, 0)).is_empty());
        let left = log.meta().list(&format!("log/shard/{first}")).await.expect("metadata");
        assert!(left.is_empty());
        let description = log.describe("a").expect("there");
        assert_eq!((description.shards.len(), description.shards[1].segments.len()), (2, 1));
    });
}

#[test]
fn names_and_configurations_out_of_bounds_are_refused_with_reasons() {
    in_log(async |_, _dir, log| {
        let refused = log.create_stream("a/b", StreamConfig::default()).await.unwrap_err();
        assert!(refused.to_string().contains("only letters"), "{refused}");
        let config = StreamConfig { shards: 5_000, ..StreamConfig::default() };
        assert!(log.create_stream("a", config).await.unwrap_err().to_string().contains("4096"));
        let stream = create(&log, "a", StreamConfig::default()).await;
        let wrong = log.append(stream, ShardNumber(1), values(&["x"])).await;
        assert_eq!(wrong, Err(AppendError::NoShard { shard: 1, shards: 1 }));
        let garbage = log.append(stream, SHARD, vec![1; 200].into()).await;
        assert!(matches!(garbage, Err(AppendError::Invalid(_))));
    });
}

#[test]
fn a_second_log_in_the_same_directory_is_refused() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let _log = open(&env, dir.path()).await;
        let second = Log::open(&env, config(), dir.path(), None).await;
        assert!(second.err().expect("refused").to_string().contains("in use"));
    });
}

#[test]
fn concurrent_appends_to_many_shards_are_all_acknowledged_in_order() {
    in_log(async |_, _dir, log| {
        let config = StreamConfig { shards: 100, flush: FlushPolicy::EveryMs(2), ..StreamConfig::default() };
        let stream = create(&log, "a", config).await;
        let shards = (0..100).map(|number| {
            let log = log.clone();
            async move {
                let pending: Vec<_> = (0..50)
                    .map(|record| {
                        let value = format!("{record}");
                        log.submit(stream, ShardNumber(number), values(&[&value]), AppendOptions::default())
                    })
                    .collect();
                for (record, pending) in pending.into_iter().enumerate() {
                    let appended = pending.expect("submitted").outcome().await.expect("appended");
                    assert_eq!(appended.base_offset.0, record as u64);
                }
            }
        });
        join_all(shards).await;
        let expected: Vec<String> = (0..50).map(|record| record.to_string()).collect();
        for number in 0..100 {
            assert_eq!(values_of(&log, shard(stream, number)).await, expected);
        }
        assert_eq!(log.stats().records, 5_000);
        assert_eq!(log.stats().in_flight_bytes, 0);
    });
}

/// The name of the thread that answers an append.
async fn answered_by(log: &Log, stream: StreamId, options: AppendOptions) -> String {
    let (reply, answer) = oneshot::channel();
    let told = move |outcome: Result<_, AppendError>| {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        drop(reply.send(outcome.map(|_| thread)));
    };
    log.submit_with(stream, SHARD, values(&["x"]), options, told).expect("submitted");
    answer.await.expect("answered").expect("appended")
}

#[test]
fn an_append_that_comes_alone_to_an_idle_log_is_answered_by_the_journals_thread_and_others_are_not() {
    in_log(async |env, _dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        let alone = AppendOptions { alone: true, ..AppendOptions::default() };
        // The first one claims a term, which takes the owner's task; afterwards the log is idle some time.
        until_some(&env, async || (answered_by(&log, stream, alone).await == "journal-writer").then_some(()))
            .await;
        for _ in 0..10 {
            assert_ne!(answered_by(&log, stream, AppendOptions::default()).await, "journal-writer");
        }
        let read = values_of(&log, shard(stream, 0)).await.len() as u64;
        assert_eq!(read, log.stats().records, "each of them once");
    });
}

fn flushed_by_the_minute() -> StreamConfig {
    StreamConfig { flush: FlushPolicy::EveryMs(60_000), ..StreamConfig::default() }
}

/// A log that takes 10,000 bytes that are not durable yet, and no more.
async fn open_with_little_room(env: &Env, dir: &Path) -> Log {
    open_with(env, dir, LogConfig { in_flight_bytes: 10_000, ..config() }).await
}

#[test]
fn more_bytes_in_flight_than_allowed_are_refused_as_overload() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open_with_little_room(&env, dir.path()).await;
        let stream = create(&log, "a", flushed_by_the_minute()).await;
        let large = "x".repeat(8_000);
        let first = log.submit(stream, SHARD, values(&[&large]), AppendOptions::default()).expect("room");
        let second = log.submit(stream, SHARD, values(&[&large]), AppendOptions::default());
        assert!(matches!(second.unwrap_err(), AppendError::Overloaded(_)));
        log.close().await;
        first.outcome().await.expect("written out by the close");
    });
}

#[test]
fn what_a_new_producer_sends_behind_a_batch_that_found_no_room_waits_for_that_batch() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open_with_little_room(&env, dir.path()).await;
        let busy = create(&log, "busy", flushed_by_the_minute()).await;
        let stream = create(&log, "a", StreamConfig::default()).await;
        let producer = log.init_producer_id().await.expect("an id");
        let submit = |sequence: i32, bytes: usize| {
            let record = (1, format!("{sequence}{}", "x".repeat(bytes)));
            let batch = batch(&[record], Codec::None, Some((producer, 0, sequence)));
            log.submit(stream, SHARD, batch, AppendOptions::default())
        };
        let large = "x".repeat(8_000);
        let in_flight = log.submit(busy, SHARD, values(&[&large]), AppendOptions::default()).expect("room");
        assert!(matches!(submit(0, 4_000).unwrap_err(), AppendError::Overloaded(_)));
        // There is room for this one.
        let behind = submit(1, 0).expect("room").outcome().await;
        let expected = SequenceError::OutOfOrder { producer, expected: 0, given: 1 };
        assert_eq!(behind, Err(AppendError::Sequence(expected)));
        submit(0, 0).expect("room").outcome().await.expect("what was refused comes first");
        submit(1, 0).expect("room").outcome().await.expect("and then this");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["0", "1"]);
        log.close().await;
        in_flight.outcome().await.expect("written out by the close");
    });
}

#[test]
fn explicit_transaction_ids_are_positions_and_may_not_decrease() {
    in_log(async |_, _dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        let explicit =
            AppendOptions { transaction_ids: TransactionIds::Explicit, ..AppendOptions::default() };
        let append = async |ids: &[i64]| {
            let records: Vec<_> = ids.iter().map(|id| (*id, "x".to_owned())).collect();
            log.submit(stream, SHARD, batch(&records, Codec::None, None), explicit)?.outcome().await
        };
        append(&[10, 20]).await.expect("appended");
        let (given, last) = (TransactionId(19), TransactionId(20));
        assert_eq!(append(&[19]).await, Err(AppendError::TransactionId { given, last }));
        append(&[20, 35]).await.expect("appended");
        let id = shard(stream, 0);
        for (wanted, offset) in [(0, 0), (11, 1), (20, 1), (21, 3), (36, 4)] {
            let found =
                log.locate(id, LocateRead::TransactionId(TransactionId(wanted))).await.expect("found");
            assert_eq!(found.offset.0, offset, "{wanted}");
        }
    });
}

#[test]
fn a_failed_sync_fails_what_was_in_flight_and_the_log_goes_on() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (env, faults) = faulty(&env);
        let log = open(&env, dir.path()).await;
        let stream = create(&log, "a", StreamConfig { shards: 2, ..StreamConfig::default() }).await;
        let mut acknowledged = Vec::new();
        let mut lost = 0;
        for round in 0..20 {
            if round % 5 == 4 {
                faults.journal_syncs.store(true, Ordering::SeqCst);
            }
            let value = format!("{round}");
            match log.append(stream, SHARD, values(&[&value])).await {
                Ok(appended) => {
                    assert_eq!(appended.base_offset.0, acknowledged.len() as u64);
                    acknowledged.push((appended.term, value));
                }
                Err(AppendError::Lost(why)) => {
                    assert!(why.contains("as it was told to"), "{why}");
                    lost += 1;
                }
                // A claim of a term is a record in the journal too.
                Err(AppendError::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost > 0);
        assert!(acknowledged.last().expect("some").0 > Term(1), "it goes on in a higher term");
        let expected: Vec<String> = acknowledged.into_iter().map(|(_, value)| value).collect();
        assert_eq!(values_of(&log, shard(stream, 0)).await, expected);
        let log = reopen(&env, &dir, log).await;
        assert_eq!(values_of(&log, shard(stream, 0)).await, expected, "what failed does not come back");
    });
}

#[test]
fn a_full_disk_refuses_appends_with_a_reason_and_service_resumes() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (env, faults) = faulty(&env);
        let mut small = config();
        small.store.fill_bytes = 1 << 10;
        small.store.sync_bytes = 4 << 10;
        let log = open_with(&env, dir.path(), small).await;
        let stream = create(&log, "a", StreamConfig::default()).await;
        let large = "x".repeat(2_000);
        let mut count = 0;
        faults.full.store(true, Ordering::SeqCst);
        let refused = loop {
            match log.append(stream, SHARD, values(&[&large])).await {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(&refused, AppendError::NoSpace(why) if why.contains("free some")), "{refused}");
        assert!(refused.is_retriable());
        assert_eq!(
            read_all(&log, shard(stream, 0)).await.len(),
            count,
            "what was acknowledged stays readable"
        );
        faults.full.store(false, Ordering::SeqCst);
        until_some(&env, async || log.append(stream, SHARD, values(&[&large])).await.ok()).await;
        assert_eq!(read_all(&log, shard(stream, 0)).await.len(), count + 1);
    });
}

#[test]
fn a_start_on_a_disk_without_room_opens_and_is_read_and_what_it_left_undone_is_done_when_there_is_room() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (env, faults) = faulty(&env);
        let log = open(&env, dir.path()).await;
        let stream = create(&log, "a", StreamConfig::default()).await;
        log.append(stream, SHARD, values(&["kept"])).await.expect("appended");
        let segment = log.segments(shard(stream, 0), SegmentNumber(0)).expect("the shard")[0];
        let segment = SegmentId { shard: shard(stream, 0), number: segment.number, term: segment.term };
        drop(log);
        for round in 0..2 {
            faults.journal_full.store(true, Ordering::SeqCst);
            let journal = dir.path().join("journal");
            for name in env.disk().list(&journal).expect("the journal's directory") {
                if name.ends_with(".spare") {
                    env.disk().remove_file(&journal.join(name)).expect("removed");
                }
            }
            let log = open(&env, dir.path()).await;
            assert_eq!(values_of(&log, shard(stream, 0)).await, ["kept"], "start {round}");
            assert!(log.append(stream, SHARD, values(&["refused"])).await.is_err(), "start {round}");
            assert!(!log.store().info(&segment).expect("it is there").sealed, "start {round}");
        }
        let log = open(&env, dir.path()).await;
        faults.journal_full.store(false, Ordering::SeqCst);
        until_some(&env, async || log.append(stream, SHARD, values(&["after"])).await.ok()).await;
        until(&env, || log.store().info(&segment).expect("it is there").sealed).await;
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["kept", "after"]);
    });
}

#[test]
fn interval_durability_acknowledges_and_reads_back() {
    in_log(async |env, dir, log| {
        let config = StreamConfig {
            durability: StreamDurability::Interval,
            segment_bytes: 4_096,
            ..StreamConfig::default()
        };
        let stream = create(&log, "a", config).await;
        let value = "x".repeat(500);
        for record in 0..50 {
            let appended = log.append(stream, SHARD, values(&[&value])).await.expect("appended");
            assert_eq!(appended.base_offset.0, record);
        }
        log.close().await;
        let log = reopen(&env, &dir, log).await;
        assert_eq!(read_all(&log, shard(stream, 0)).await.len(), 50);
    });
}

#[test]
fn a_truncation_of_what_was_acknowledged_and_not_synced_does_not_wait_for_the_interval() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = LogConfig { tick: Duration::from_secs(3_600), ..config() };
        config.journal.sync_interval = Duration::from_secs(3_600);
        let log = open_with(&env, dir.path(), config).await;
        let interval = StreamConfig { durability: StreamDurability::Interval, ..StreamConfig::default() };
        let stream = create(&log, "a", interval).await;
        log.append(stream, SHARD, values(&["one", "two", "three"])).await.expect("appended");
        assert_eq!(log.truncate("a", SHARD, Offset(3)).await, Ok(Offset(3)));
        assert_eq!(log_start(&log, shard(stream, 0)), Offset(3));
    });
}

async fn alter(log: &Log, config: StreamConfig) -> Result<(), StreamError> {
    log.alter_stream("a", move |_| Ok::<_, StreamError>(config)).await.map(drop)
}

#[test]
fn a_stream_gets_more_shards_and_another_behaviour_for_good() {
    in_log(async |env, dir, log| {
        let stream = create(&log, "a", StreamConfig::default()).await;
        log.append(stream, SHARD, values(&["one"])).await.expect("appended");
        // Segments of the old size are open, and a commit of the shard's owner follows the change.
        let grown = log.alter_stream("a", |old| {
            Ok::<_, StreamError>(StreamConfig {
                shards: 3,
                segment_bytes: 4_096,
                append_bytes_max: 1_000,
                ..old.clone()
            })
        });
        assert_eq!(grown.await.expect("altered").config.shards, 3);
        for number in 0..3 {
            log.append(stream, ShardNumber(number), values(&["two"])).await.expect("appended");
        }
        let long = values(&["x".repeat(2_000).as_str()]);
        let refused = log.append(stream, SHARD, long).await;
        assert!(matches!(refused, Err(AppendError::TooLarge { max: 1_000, .. })), "{refused:?}");
        for _ in 0..20 {
            log.append(stream, SHARD, values(&["y".repeat(500).as_str()])).await.expect("appended");
        }
        let segments = log.segments(shard(stream, 0), SegmentNumber(0)).expect("the shard");
        assert!(segments.len() > 2, "the shard rolls at its new size: {segments:?}");
        assert_eq!(log.truncate("a", SHARD, Offset(5)).await, Ok(Offset(5)));
        let log = reopen(&env, &dir, log).await;
        let info = log.stream("a").expect("it is there");
        assert_eq!((info.config.shards, info.config.segment_bytes), (3, 4_096));
        assert_eq!(values_of(&log, shard(stream, 2)).await, ["two"]);
        log.append(stream, ShardNumber(2), values(&["three"])).await.expect("appended");
        let refused = alter(&log, StreamConfig { shards: 2, ..info.config }).await;
        assert!(matches!(refused, Err(StreamError::Config(_))), "{refused:?}");
        log.delete_stream("a").await.expect("deleted");
        let gone = alter(&log, StreamConfig::default()).await;
        assert!(matches!(gone, Err(StreamError::NoStream(_))), "{gone:?}");
        log.close().await;
    });
}

#[test]
fn a_change_that_nobody_waits_for_any_more_takes_place_as_a_whole() {
    in_log(async |env, _dir, log| {
        for name in ["a", "b", "c"] {
            // Polled once, so that it has begun, and dropped.
            let mut creation = Box::pin(log.create_stream(name, StreamConfig::default()));
            assert!(futures::poll!(&mut creation).is_pending());
            drop(creation);
            until(&env, || log.stream(name).is_ok()).await;
        }
        let mut change = Box::pin(alter(&log, StreamConfig { shards: 2, ..StreamConfig::default() }));
        assert!(futures::poll!(&mut change).is_pending());
        drop(change);
        until(&env, || log.stream("a").is_ok_and(|stream| stream.config.shards == 2)).await;
        log.close().await;
    });
}
