//! A log on a store that has a watermark for each segment, and no journal for its entries.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::told::ToldStore;
use common::{config, create, in_world, open_with, shard, values, values_of};
use tailwater_env::Env;
use tailwater_format::{ShardNumber, StreamId, Term};
use tailwater_log::{
    AppendError, AppendOptions, Log, LogConfig, PendingAppend, StreamConfig, StreamDurability,
};
use tailwater_store::OpenSegments;

async fn open(env: &Env, dir: &Path, store: &ToldStore) -> Log {
    let segments: Option<Arc<dyn OpenSegments>> = Some(Arc::new(store.clone()));
    open_with(env, dir, LogConfig { segments, ..config() }).await
}

async fn append(log: &Log, stream: StreamId, number: u32, value: &str) -> Result<Term, AppendError> {
    log.append(stream, ShardNumber(number), values(&[value])).await.map(|answer| answer.term)
}

fn submit(log: &Log, stream: StreamId, number: u32, value: &str) -> PendingAppend {
    let submitted = log.submit(stream, ShardNumber(number), values(&[value]), AppendOptions::default());
    submitted.expect("there is room")
}

fn two_shards() -> StreamConfig {
    StreamConfig { shards: 2, ..StreamConfig::default() }
}

#[test]
fn a_shard_whose_entries_are_not_durable_yet_keeps_no_other_one_waiting() {
    in_world(|env| async move {
        let (dir, store) = (tempfile::tempdir().expect("a directory"), ToldStore::default());
        let log = open(&env, dir.path(), &store).await;
        let stream = create(&log, "s", two_shards()).await;
        append(&log, stream, 0, "a").await.expect("durable");
        store.hold(shard(stream, 0));
        let held = submit(&log, stream, 0, "b");
        append(&log, stream, 1, "x").await.expect("of another shard");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["a"], "never past durable");
        store.release(shard(stream, 0));
        held.outcome().await.expect("durable now");
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["a", "b"]);
        log.close().await;
    });
}

#[test]
fn what_is_given_up_in_one_shard_is_told_there_and_the_shard_goes_on_in_a_segment_of_a_higher_term() {
    in_world(|env| async move {
        let (dir, store) = (tempfile::tempdir().expect("a directory"), ToldStore::default());
        let log = open(&env, dir.path(), &store).await;
        let stream = create(&log, "s", two_shards()).await;
        for number in 0..2 {
            assert_eq!(append(&log, stream, number, "kept").await.expect("durable"), Term(1));
        }
        store.hold(shard(stream, 0));
        let lost = submit(&log, stream, 0, "lost");
        // What is behind it in the queue is carried out behind it.
        common::until(&env, || store.0.lock().places == 3).await;
        store.give_up(shard(stream, 0));
        let error = lost.outcome().await.expect_err("it was given up");
        assert!(matches!(&error, AppendError::Lost(why) if &**why == "the test says so"), "{error}");
        assert_eq!(append(&log, stream, 0, "again").await.expect("durable"), Term(2));
        assert_eq!(append(&log, stream, 1, "as before").await.expect("durable"), Term(1));
        // The bytes of what was lost are in the store behind the segment's end, and nobody is told of them.
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["kept", "again"]);
        drop(log);
        let log = open(&env, dir.path(), &store).await;
        assert_eq!(values_of(&log, shard(stream, 0)).await, ["kept", "again"], "after a restart");
        assert_eq!(store.0.lock().clusters.len(), 1, "a directory has one number");
    });
}

#[test]
fn what_was_acknowledged_before_a_crash_is_there_after_it_and_deleted_streams_leave_nothing() {
    in_world(|env| async move {
        let (dir, store) = (tempfile::tempdir().expect("a directory"), ToldStore::default());
        let log = open(&env, dir.path(), &store).await;
        let stream = create(&log, "s", StreamConfig { segment_bytes: 4 << 10, ..two_shards() }).await;
        let expected: Vec<String> = (0..100).map(|number| format!("{number} {}", "-".repeat(100))).collect();
        for value in &expected {
            append(&log, stream, 0, value).await.expect("durable");
        }
        drop(log);
        let log = open(&env, dir.path(), &store).await;
        assert_eq!(values_of(&log, shard(stream, 0)).await, expected);
        assert_eq!(append(&log, stream, 0, "more").await.expect("durable"), Term(2));
        log.delete_stream("s").await.expect("deleted");
        common::until(&env, || store.0.lock().segments.is_empty()).await;
    });
}

#[test]
fn durability_interval_is_refused_and_so_is_the_directory_without_its_store() {
    in_world(|env| async move {
        let (dir, store) = (tempfile::tempdir().expect("a directory"), ToldStore::default());
        let log = open(&env, dir.path(), &store).await;
        let interval = StreamConfig { durability: StreamDurability::Interval, ..two_shards() };
        let error = log.create_stream("s", interval).await.expect_err("refused").to_string();
        assert!(error.contains("use \"fsync\""), "{error}");
        log.close().await;
        drop(log);
        let error = Log::open(&env, config(), dir.path(), None).await.err().expect("refused").to_string();
        assert!(error.contains("set `segments` to it"), "{error}");
    });
}
