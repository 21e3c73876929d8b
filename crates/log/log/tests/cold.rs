//! A log with cold storage: segments are copied, leave the store, are read all the same, removed, and come back.

mod common;
#[path = "common/objects.rs"]
mod objects;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{config, create, in_world, log_start, open_with, shard, until, until_some, values, values_of};
use objects::{MemoryObjects, with_cold};
use tailwater_cold::{ColdCounters, ColdDirectory, CopyPace, SegmentToCopy};
use tailwater_env::Env;
use tailwater_format::{Offset, SegmentId, ShardId, ShardNumber, TransactionId};
use tailwater_log::{
    ConfigError, CopyCursor, CopyRecord, LocateRead, Log, LogConfig, ReadError, StreamConfig, StreamError,
};
use tokio::sync::oneshot;
use uuid::Uuid;

/// Segments of some ten records that leave the store at once.
fn cold_stream() -> StreamConfig {
    StreamConfig { segment_bytes: 4_096, cold: true, cold_after_ms: Some(0), ..StreamConfig::default() }
}

fn value(number: usize) -> String {
    format!("{number:0300}")
}

async fn append(log: &Log, id: ShardId, numbers: std::ops::Range<usize>) {
    for number in numbers {
        log.append(id.stream, id.shard, values(&[&value(number)])).await.expect("appended");
    }
}

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(value).collect()
}

/// How many completed segments there are, of how many there is a copy, and how many have left the store.
fn counts(log: &Log, id: ShardId) -> [usize; 3] {
    let segments = log.segments_from_offset(id, Offset(0)).expect("the shard");
    let completed = segments.iter().filter_map(|segment| segment.completed);
    let count = |is: fn(&tailwater_log::CompletedSegment) -> bool| completed.clone().filter(is).count();
    [count(|_| true), count(|segment| segment.is_copied), count(|segment| segment.is_released)]
}

fn all_released(log: &Log, id: ShardId) -> bool {
    let [completed, _, released] = counts(log, id);
    completed > 0 && completed == released
}

async fn open(env: &Env, dir: &Path, objects: &MemoryObjects) -> Log {
    open_with(env, dir, with_cold(config(), objects.clone())).await
}

#[test]
fn segments_leave_the_store_for_a_directory_and_are_read_all_the_same() {
    in_world(async |env| {
        let (dir, cold) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let open = async || {
            open_with(&env, dir.path(), with_cold(config(), ColdDirectory::new(&env, cold.path()))).await
        };
        let log = open().await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..60).await;
        until(&env, || all_released(&log, id)).await;
        assert_eq!(values_of(&log, id).await, numbered(0..60));
        let stored = log.store().stats();
        // By offset, by time, by coordinates; and as Kafka's clients ask.
        let place = log.locate(id, LocateRead::Offset(Offset(17))).await.expect("there");
        assert_eq!(place.offset, Offset(17));
        let first = log.locate(id, LocateRead::TransactionId(TransactionId(1_000))).await.expect("there");
        assert_eq!(first.offset, Offset(0));
        let fetched = log.fetch(id, Offset(17), 100, true).await.expect("there");
        assert!(fetched.bytes > 300);
        assert_eq!(log.store().stats().file_reads, stored.file_reads, "none of that is on the disk");
        let copied = log.cold_stats().expect("it has some");
        assert_eq!(copied.segments_copied as usize, counts(&log, id)[0]);
        assert!(copied.bytes_read > 0 && copied.trouble.is_none());
        log.close().await;
        drop(log);
        let log = open().await;
        assert_eq!(values_of(&log, id).await, numbered(0..60));
        append(&log, id, 60..61).await;
        assert_eq!(log.view(id).expect("it").tail.next_offset, Offset(61));
    });
}

#[test]
fn cold_storage_that_is_down_stops_nothing_but_deletion_and_says_so() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        objects.down.store(true, Ordering::SeqCst);
        let log = open(&env, dir.path(), &objects).await;
        let stream =
            StreamConfig { retention_bytes: Some(8_192), cold_after_bytes: Some(0), ..cold_stream() };
        let id = shard(create(&log, "a", stream).await, 0);
        append(&log, id, 0..60).await;
        until(&env, || log.cold_stats().expect("it has some").trouble.is_some()).await;
        until(&env, || log_start(&log, id) > Offset(30)).await;
        append(&log, id, 60..70).await;
        log.health().expect("it takes appends");
        // They are counted when somebody looks for them, which is less often while it is down.
        until(&env, || log.cold_stats().expect("it has some").segments_waiting >= 5).await;
        let stats = log.cold_stats().expect("it has some");
        assert!(stats.failures > 0, "{stats:?}");
        assert!(stats.trouble.expect("down").contains("the test has it down"));
        assert_eq!(counts(&log, id)[1..], [0, 0], "what is not copied is kept");
        // It is up again: what waits is copied, then removed.
        objects.down.store(false, Ordering::SeqCst);
        let removed = || log.segments_from_offset(id, Offset(0)).expect("it")[0].base_offset > Offset(0);
        until(&env, removed).await;
        until(&env, || log.cold_stats().expect("it has some").trouble.is_none()).await;
    });
}

#[test]
fn a_segment_whose_copy_is_not_what_was_put_stays_in_the_store() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        objects.garbles.store(true, Ordering::SeqCst);
        let log = open(&env, dir.path(), &objects).await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..30).await;
        let trouble = || log.cold_stats().expect("it has some").trouble;
        until(&env, || trouble().is_some_and(|why| why.contains("read back"))).await;
        assert_eq!(counts(&log, id)[1..], [0, 0]);
        objects.garbles.store(false, Ordering::SeqCst);
        until(&env, || all_released(&log, id)).await;
        assert_eq!(values_of(&log, id).await, numbered(0..30));
    });
}

#[test]
fn bytes_that_changed_in_cold_storage_are_an_error_and_never_given_out() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        let log = open(&env, dir.path(), &objects).await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..30).await;
        until(&env, || all_released(&log, id)).await;
        for (name, object) in objects.objects.lock().iter_mut().filter(|(name, _)| name.ends_with("/000000"))
        {
            let mut bytes = object.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            assert!(name.len() > 100, "{name}");
            *object = bytes.into();
        }
        let refused = log.fetch(id, Offset(0), 1_000, true).await.expect_err("damaged");
        let ReadError::Unavailable(why) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("not what was written"), "{why}");
        append(&log, id, 30..31).await;
        assert!(log.cold_stats().expect("it has some").reads_failed > 0);
    });
}

#[test]
fn a_kill_at_any_step_of_copying_loses_nothing_and_leaves_nothing_for_ever() {
    for step in [0, 1, 3, 4, 6, 11, 25] {
        in_world(async |env| {
            let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
            objects.left.store(step, Ordering::SeqCst);
            let log = open(&env, dir.path(), &objects).await;
            let id = shard(create(&log, "a", cold_stream()).await, 0);
            append(&log, id, 0..40).await;
            until(&env, || objects.left.load(Ordering::SeqCst) == 0).await;
            // Cut off where it stands: nothing was closed, and what it waits for is never answered.
            drop(log);
            objects.left.store(-1, Ordering::SeqCst);
            let log = open(&env, dir.path(), &objects).await;
            append(&log, id, 40..41).await;
            until(&env, || all_released(&log, id)).await;
            assert_eq!(values_of(&log, id).await, numbered(0..41), "after {step} requests");
            // A truncation of everything, and no time to keep it: then nothing is left.
            log.close().await;
            drop(log);
            let mut config = with_cold(config(), objects.clone());
            config.cold.as_mut().expect("some").kept = Duration::ZERO;
            let log = open_with(&env, dir.path(), config).await;
            log.truncate("a", ShardNumber(0), Offset(41)).await.expect("truncated");
            until(&env, || objects.folders().is_empty()).await;
        });
    }
}

#[test]
fn a_sweep_removes_what_no_record_names_and_leaves_what_another_term_may_be_about_to_name() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        let log = open(&env, dir.path(), &objects).await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..40).await;
        until(&env, || all_released(&log, id)).await;
        let named = objects.folders();
        let (parent, _) = named.first().expect("one").rsplit_once('/').expect("folders");
        let plant = |term: u32| {
            let folder = format!("{parent}/{:020}-{term:010}-{:016x}", 0, 77);
            objects.objects.lock().insert(format!("{folder}/000000"), "left over".into());
            folder
        };
        let (ours, later) = (plant(1), plant(9));
        let unknown = format!("{}/{}/0000/x", parent.split('/').next().expect("it"), Uuid::from_u128(5));
        objects.objects.lock().insert(unknown.clone(), "of other metadata".into());
        until(&env, || !objects.folders().contains(&ours)).await;
        until(&env, || log.cold_stats().expect("it has some").streams_unknown == 1).await;
        let left = objects.folders();
        assert!(
            left.contains(&later)
                && left.is_superset(&named)
                && objects.objects.lock().contains_key(&unknown)
        );
        // A deleted stream leaves nothing.
        log.delete_stream("a").await.expect("deleted");
        until(&env, || objects.objects.lock().len() == 1).await;
    });
}

#[test]
fn a_copy_of_a_stream_that_is_deleted_and_made_again_keeps_what_only_cold_storage_has() {
    in_world(async |env| {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let objects = MemoryObjects::new();
        let source = open(&env, dirs[0].path(), &MemoryObjects::new()).await;
        let copy = open(&env, dirs[1].path(), &objects).await;
        let id = shard(create(&source, "a", cold_stream()).await, 0);
        append(&source, id, 0..40).await;
        let record = CopyRecord::new(&source.stream("a").expect("the stream"), "us");
        for is_again in [false, true] {
            copy.keep_copy(&record, is_again).await.expect("a copy");
            let mut cursor = CopyCursor::new(id, Offset(0));
            while cursor.offset() < Offset(40) {
                for entry in source.read_entries(&mut cursor, 64 << 10).await.expect("readable").entries {
                    let (reply, answer) = oneshot::channel();
                    copy.append_copied(id, &entry, move |outcome| drop(reply.send(outcome))).expect("taken");
                    answer.await.expect("an answer").expect("copied");
                }
            }
            until(&env, || all_released(&copy, id)).await;
            if !is_again {
                copy.delete_stream("a").await.expect("deleted");
            }
        }
        // What no record names goes with a sweep: it has swept since.
        let named = objects.folders();
        let (parent, _) = named.first().expect("one").rsplit_once('/').expect("folders");
        let left_over = format!("{parent}/{:020}-{:010}-{:016x}/000000", 0, 1, 77);
        objects.objects.lock().insert(left_over.clone(), "left over".into());
        until(&env, || !objects.objects.lock().contains_key(&left_over)).await;
        assert_eq!(values_of(&copy, id).await, numbered(0..40));
    });
}

#[test]
fn what_was_truncated_is_kept_and_comes_back_and_is_still_there_after_a_restart() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        let log = open(&env, dir.path(), &objects).await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..40).await;
        until(&env, || all_released(&log, id)).await;
        log.truncate("a", ShardNumber(0), Offset(35)).await.expect("truncated");
        let removed = || log.segments_from_offset(id, Offset(0)).expect("it")[0].base_offset > Offset(0);
        until(&env, removed).await;
        let refused = log.fetch(id, Offset(0), 1, true).await.expect_err("removed");
        assert_eq!(refused, ReadError::Truncated { log_start: Offset(35) });
        log.close().await;
        drop(log);
        let log = open(&env, dir.path(), &objects).await;
        assert_eq!(log.restore("a", ShardNumber(0), Offset(20)).await, Ok(Offset(20)));
        let fetched = log.fetch(id, Offset(20), 1, true).await.expect("back");
        assert!(fetched.bytes > 0);
        assert_eq!(log.restore("a", ShardNumber(0), Offset(0)).await, Ok(Offset(0)));
        assert_eq!(values_of(&log, id).await, numbered(0..40));
        let nothing = log.restore("a", ShardNumber(0), Offset(0)).await;
        assert!(matches!(nothing, Err(StreamError::NothingToRestore { .. })), "{nothing:?}");
        log.close().await;
        drop(log);
        let log = open(&env, dir.path(), &objects).await;
        assert_eq!(values_of(&log, id).await, numbered(0..40));
    });
}

#[test]
fn two_that_copy_one_segment_at_the_same_time_make_one_copy() {
    in_world(async |env| {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open_with(&env, dir.path(), config()).await;
        let stream = StreamConfig { segment_bytes: 4 << 20, ..StreamConfig::default() };
        let id = shard(create(&log, "a", stream).await, 0);
        let large = "x".repeat(900_000);
        for _ in 0..6 {
            log.append(id.stream, id.shard, values(&[&large])).await.expect("appended");
        }
        until(&env, || counts(&log, id)[0] > 0).await;
        let segment = log.segments_from_offset(id, Offset(0)).expect("it")[0];
        let (objects, counters) = (MemoryObjects::new(), ColdCounters::default());
        let pace = CopyPace::new(&env, 0);
        let copying = SegmentToCopy {
            env: &env,
            store: log.store(),
            objects: &objects,
            cluster: Uuid::from_u128(1),
            id: SegmentId { shard: id, number: segment.number, term: segment.term },
            length: segment.length,
            part_bytes: 1 << 20,
            pace: &pace,
            counters: &counters,
        };
        let (one, other) = futures::future::join(copying.copy(), copying.copy()).await;
        assert_eq!(one, other);
        assert_eq!(objects.folders().len(), 1);
        assert_eq!(objects.objects.lock().len() as u64, segment.length.0.div_ceil(1 << 20) + 1);
        // A third finds it done, and puts nothing.
        let put = counters.get().bytes_put;
        assert_eq!(copying.copy().await, one);
        assert_eq!(counters.get().bytes_put, put);
    });
}

#[test]
fn without_its_cold_storage_a_directory_is_not_opened_and_no_stream_wants_one_that_is_not_there() {
    in_world(async |env| {
        let (dir, objects) = (tempfile::tempdir().expect("a directory"), MemoryObjects::new());
        let log = open(&env, dir.path(), &objects).await;
        let id = shard(create(&log, "a", cold_stream()).await, 0);
        append(&log, id, 0..20).await;
        until(&env, || all_released(&log, id)).await;
        log.close().await;
        drop(log);
        let refused = until_some(&env, async || {
            let opened = Log::open(&env, config(), dir.path(), None).await;
            opened.err().map(|error| error.to_string()).filter(|why| !why.contains("in use"))
        });
        let why = refused.await;
        assert!(why.contains("in cold storage alone") && why.contains("[cold]"), "{why}");

        let other = tempfile::tempdir().expect("a directory");
        let log = open_with(&env, other.path(), LogConfig { cold: None, ..config() }).await;
        let refused = log.create_stream("a", cold_stream()).await;
        assert_eq!(refused, Err(StreamError::Config(ConfigError::NoCold)));
    });
}
