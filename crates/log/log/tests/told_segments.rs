//! A log on a store that has a watermark for each segment, and no journal for its entries.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use common::{config, create, in_world, open_with, shard, values, values_of};
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::{
    Offset, Position, SegmentId, ShardId, ShardNumber, StreamId, Term, TransactionId, parse_entry,
};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_log::{
    AppendError, AppendOptions, Log, LogConfig, PendingAppend, StreamConfig, StreamDurability,
};
use tailwater_store::{
    DecidedCopies, EntryPlace, IndexContents, OpenSegments, OpenedSegments, RawHeader, RecoveredSegment,
    SegmentCopies, SegmentWatch, StoreContract, StoreError, WriteRight,
};
use uuid::Uuid;

struct Stored {
    bytes: Vec<u8>,
    durable: usize,
    last_place: EntryPlace,
    sealed: bool,
    watch: Option<Arc<dyn SegmentWatch>>,
}

#[derive(Default)]
struct Content {
    segments: BTreeMap<SegmentId, Stored>,
    places: u64,
    /// Shards of which nothing gets durable.
    held: BTreeSet<ShardId>,
    clusters: BTreeSet<Uuid>,
}

/// A store in memory, which outlives the logs on it. An entry is durable at once unless its shard is held.
#[derive(Clone, Default)]
struct ToldStore(Arc<Mutex<Content>>);

impl std::fmt::Debug for ToldStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToldStore")
    }
}

impl ToldStore {
    fn hold(&self, shard: ShardId) {
        self.0.lock().held.insert(shard);
    }

    /// What was held of a shard is durable now.
    fn release(&self, shard: ShardId) {
        let content = &mut *self.0.lock();
        content.held.remove(&shard);
        for (_, stored) in content.segments.iter_mut().filter(|(id, _)| id.shard == shard) {
            stored.durable = stored.bytes.len();
            stored.watch.iter().for_each(|watch| watch.durable(stored.last_place));
        }
    }

    /// What was held of a shard is given up.
    fn give_up(&self, shard: ShardId) {
        let content = &mut *self.0.lock();
        content.held.remove(&shard);
        let newest = content.segments.iter().rfind(|(id, _)| id.shard == shard).expect("one is written");
        newest.1.watch.as_ref().expect("it is new").lost("the test says so");
    }

    fn read_now(&self, id: &SegmentId, at: Position, length: usize) -> Result<Bytes, StoreError> {
        let content = self.0.lock();
        let stored = content.segments.get(id).ok_or(StoreError::Unknown(*id))?;
        let (from, durable) = (at.0 as usize, stored.durable);
        if from > durable {
            return Err(StoreError::BeyondDurable { position: at, durable: Position(durable as u64) });
        }
        Ok(Bytes::copy_from_slice(&stored.bytes[from..durable.min(from + length)]))
    }
}

impl StoreContract for ToldStore {
    fn journal(&self) -> Option<&Journal> {
        None
    }

    fn decided(&self, _: SegmentCopies) -> DecidedCopies {
        DecidedCopies::ONE
    }

    fn check_copies(&self, _: SegmentCopies) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn create(
        &self,
        id: SegmentId,
        _: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError> {
        let (bytes, last_place) = (Vec::new(), EntryPlace(0));
        let stored = Stored { bytes, durable: 0, last_place, sealed: false, watch: Some(watch) };
        assert!(self.0.lock().segments.insert(id, stored).is_none(), "{id}: a name is used once");
        Ok(())
    }

    fn append(&self, id: &SegmentId, at: Position, entry: Bytes, _: bool) -> Result<EntryPlace, StoreError> {
        let content = &mut *self.0.lock();
        let is_held = content.held.contains(&id.shard);
        content.places += 1;
        let place = EntryPlace(content.places);
        let stored = content.segments.get_mut(id).ok_or(StoreError::Unknown(*id))?;
        assert_eq!(at.0, stored.bytes.len() as u64, "{id}: it continues");
        stored.bytes.extend_from_slice(&entry);
        stored.last_place = place;
        if !is_held {
            stored.durable = stored.bytes.len();
            stored.watch.as_ref().expect("it is new").durable(place);
        }
        Ok(place)
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        let content = &mut *self.0.lock();
        let stored = content.segments.get_mut(id).ok_or(StoreError::Unknown(*id))?;
        stored.sealed = true;
        stored.durable = length.0 as usize;
        Ok(None)
    }

    fn lower_fence(&self, _: &ShardId, _: Term) {}

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.0.lock().segments.remove(id).map(drop).ok_or(StoreError::Unknown(*id))
    }

    fn read<'a>(
        &'a self,
        id: &'a SegmentId,
        at: Position,
        length: usize,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move { self.read_now(id, at, length) })
    }

    fn locate_offset<'a>(
        &'a self,
        _: &'a SegmentId,
        _: Offset,
    ) -> BoxFuture<'a, Result<Position, StoreError>> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn locate_transaction_id<'a>(
        &'a self,
        _: &'a SegmentId,
        _: TransactionId,
    ) -> BoxFuture<'a, Result<Position, StoreError>> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn contents_of(bytes: &[u8]) -> Option<IndexContents> {
    let (mut contents, mut at) = (None, 0);
    while at < bytes.len() {
        let header = parse_entry(&bytes[at..]).expect("an entry").header;
        let raw = RawHeader::of(&bytes[at..]).expect("a header");
        let first = contents.unwrap_or_else(|| IndexContents::first(&header, raw));
        contents = Some(IndexContents { last: raw, ..first });
        at += header.len as usize;
    }
    contents
}

impl OpenSegments for ToldStore {
    fn open<'a>(
        &'a self,
        _: &'a Env,
        _: Arc<dyn WriteRight>,
        cluster: Uuid,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<OpenedSegments, String>> {
        Box::pin(async move {
            let content = &mut *self.0.lock();
            content.clusters.insert(cluster);
            let mut found = Vec::new();
            for (id, stored) in &mut content.segments {
                // As with ledgers: what was not acknowledged may be there.
                stored.watch = None;
                stored.durable = stored.bytes.len();
                let (length, damaged) = (Position(stored.durable as u64), None);
                let contents = if recorded(id) { None } else { contents_of(&stored.bytes) };
                found.push(RecoveredSegment { id: *id, length, contents, sealed: true, damaged });
            }
            Ok((Arc::new(self.clone()) as Arc<dyn StoreContract>, found))
        })
    }
}

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
