//! A data directory whose streams are moved to metadata and a store of segments that processes share.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use common::told::ToldStore;
use common::{
    Seen, batch, config, create, in_world, open, open_with, read_all, shard, until, until_some, values,
};
use tailwater_env::{Env, OpenMode, Progress};
use tailwater_format::{Codec, Offset, SegmentId, SegmentNumber, ShardNumber, StreamId, Term};
use tailwater_log::{
    Log, LogConfig, MigrationError, MigrationOutcome, MigrationSource, MigrationStep, MigrationTarget,
    SegmentRecords, ShardMember, ShardSharing, SharedMetadata, StreamConfig, StreamDurability, migrate,
};
use tailwater_meta::testing::FailingMeta;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_store::OpenSegments;
use uuid::Uuid;

const CLUSTER: Uuid = Uuid::from_u128(7);
const SOURCE: &str = "0123456789abcdef";
/// Shards of the stream "s".
const SHARDS: u32 = 2;
/// Records of its first shard, by an idempotent producer.
const RECORDS: i32 = 20;
/// Keys of others than the log.
const OTHERS: [(&str, &str); 3] =
    [("kafka/offsets/s/0/g", "17"), ("login/user/orders", "scram"), ("node/id", "me")];

/// What is moved, and what was read of it before.
struct Moved {
    dir: tempfile::TempDir,
    stream: StreamId,
    producer: i64,
    seen: Vec<Vec<Seen>>,
}

fn numbered(producer: i64, sequence: i32) -> Bytes {
    let record = (1_000 + i64::from(sequence), format!("{sequence} {}", "x".repeat(900)));
    batch(&[record], Codec::None, Some((producer, 0, sequence)))
}

/// Truncates the first shard; completes when the segments below are gone.
async fn truncate(env: &Env, log: &Log, stream: StreamId, before: u64) {
    log.truncate("s", ShardNumber(0), Offset(before)).await.expect("truncated");
    let first = || log.segments(shard(stream, 0), SegmentNumber(0)).expect("the shard")[0].next_offset;
    until(env, || first() > Offset(before)).await;
}

async fn seen(log: &Log, stream: StreamId) -> Vec<Vec<Seen>> {
    let mut seen = Vec::new();
    for number in 0..SHARDS {
        seen.push(read_all(log, shard(stream, number)).await);
    }
    seen
}

impl Moved {
    async fn begin(env: &Env) -> Self {
        Self::begin_with(env, config()).await
    }

    /// A directory that was killed: with segments that are completed, one that is open, and what retention left.
    async fn begin_with(env: &Env, config: LogConfig) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open_with(env, dir.path(), config).await;
        let small = StreamConfig { segment_bytes: 4 << 10, shards: SHARDS, ..StreamConfig::default() };
        let stream = create(&log, "s", small).await;
        create(&log, "untouched", StreamConfig::default()).await;
        let producer = log.init_producer_id().await.expect("an id");
        for sequence in 0..RECORDS {
            log.append(stream, ShardNumber(0), numbered(producer, sequence)).await.expect("durable");
        }
        log.append(stream, ShardNumber(1), values(&["one", "two"])).await.expect("durable");
        truncate(env, &log, stream, 7).await;
        let put = |(key, value): (&str, &str)| Op::Put {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            expect: Expect::Absent,
        };
        log.meta().commit(OTHERS.map(put).into()).await.expect("written");
        let seen = seen(&log, stream).await;
        Self { dir, stream, producer, seen }
    }

    async fn source(&self, env: &Env) -> MigrationSource {
        self.source_of(env, config()).await
    }

    async fn source_of(&self, env: &Env, config: LogConfig) -> MigrationSource {
        let (dir, progress) = (self.dir.path(), Progress::default());
        until_some(env, async || {
            let lock = tailwater_store::lock_data_dir(env, dir).ok()?;
            let mut others = |_, _, _: &[u8]| Ok(());
            match MigrationSource::open(env, &config, dir, lock, &mut others, &progress).await {
                Ok(source) => Some(source),
                // By tasks of one that was dropped a moment ago.
                Err(error) if error.to_string().contains("in use") => None,
                Err(error) => panic!("{error}"),
            }
        })
        .await
    }

    /// Whether the log has all of it: records at their offsets, terms, producers and what others keep.
    async fn check(&self, log: &Log) {
        assert_eq!(seen(log, self.stream).await, self.seen);
        assert_eq!(log.stream("untouched").expect("it is there").config.shards, 1);
        for (key, value) in OTHERS {
            let found = log.meta().get(key).await.expect("read").expect("it is there");
            assert_eq!(found.value, value.as_bytes(), "{key}");
        }
        for sequence in RECORDS - 5..RECORDS {
            let sent = numbered(self.producer, sequence);
            let again = log.append(self.stream, ShardNumber(0), sent).await.expect("a duplicate");
            assert_eq!((again.base_offset, again.dlsn), (Offset(sequence as u64), None));
        }
        let next =
            log.append(self.stream, ShardNumber(0), numbered(self.producer, RECORDS)).await.expect("durable");
        assert_eq!((next.base_offset, next.term), (Offset(RECORDS as u64), Term(2)), "it goes on");
        assert!(log.init_producer_id().await.expect("an id") > self.producer, "never handed out again");
    }
}

/// Where it is moved.
struct Place {
    env: Env,
    dir: tempfile::TempDir,
    /// Whose own metadata is what others share.
    meta: Log,
    store: ToldStore,
}

impl Place {
    async fn new(env: &Env) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let meta = open(env, &dir.path().join("meta")).await;
        Self { env: env.clone(), dir, meta, store: ToldStore::default() }
    }

    fn metadata(&self) -> Arc<dyn Meta> {
        Arc::clone(self.meta.meta())
    }

    fn shared(&self, meta: Arc<dyn Meta>, is_shared: bool) -> SharedMetadata {
        SharedMetadata { meta, place: "there".to_owned(), cluster: CLUSTER, is_shared }
    }

    fn log_config(&self, is_shared: bool) -> LogConfig {
        let segments: Option<Arc<dyn OpenSegments>> = Some(Arc::new(self.store.clone()));
        LogConfig { segments, metadata: Some(self.shared(self.metadata(), is_shared)), ..config() }
    }

    /// A process on a new data directory, which goes by what was moved.
    async fn open(&self, name: &str) -> Log {
        open_with(&self.env, &self.dir.path().join(name), self.log_config(false)).await
    }

    async fn refused(&self, dir: &Path, config: LogConfig) -> String {
        let refused = until_some(&self.env, async || {
            let error = Log::open(&self.env, config.clone(), dir, None).await.err().expect("refused");
            Some(error.to_string()).filter(|error| !error.contains("in use"))
        });
        refused.await
    }

    /// A run that ends where `goes_on` says so.
    async fn run(
        &self,
        moved: &Moved,
        goes_on: impl Fn(MigrationStep) -> bool + Send + Sync,
    ) -> Result<MigrationOutcome, MigrationError> {
        let source = moved.source(&self.env).await;
        let outcome = self.run_of(&source, self.metadata(), goes_on).await;
        source.close().await;
        outcome
    }

    async fn run_of(
        &self,
        source: &MigrationSource,
        meta: Arc<dyn Meta>,
        goes_on: impl Fn(MigrationStep) -> bool + Send + Sync,
    ) -> Result<MigrationOutcome, MigrationError> {
        let target = MigrationTarget {
            metadata: self.shared(meta, false),
            segments: Arc::new(self.store.clone()),
            source: SOURCE.to_owned(),
        };
        migrate(&self.env, source, &target, &Progress::default(), &goes_on).await
    }

    /// Goes on until everything is there, and leaves the data directory as it is; what is there then.
    async fn completed(&self, source: &MigrationSource) -> There {
        let stopped = self.run_of(source, self.metadata(), |step| step != MigrationStep::Whole).await;
        assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
        let keys = self.metadata().list("").await.expect("read");
        let keys = keys.into_iter().map(|(key, found)| (key, found.value));
        let content = self.store.0.lock();
        let segments = content.segments.iter().map(|(id, stored)| {
            assert_eq!(stored.durable, stored.bytes.len(), "{id}");
            (*id, stored.bytes.clone())
        });
        // The segments' number is a new one in each place.
        There { keys: keys.filter(|(key, _)| key != "log/segments").collect(), segments: segments.collect() }
    }

    /// A place that nothing was moved to.
    async fn emptied(self) -> Self {
        let keys = self.metadata().list("").await.expect("read").into_iter();
        let ops = keys.map(|(key, _)| Op::Delete { key, expect: Expect::Present });
        self.metadata().commit(ops.collect()).await.expect("deleted");
        Self { store: ToldStore::default(), ..self }
    }
}

/// What is in a place.
#[derive(Debug, PartialEq, Eq)]
struct There {
    keys: BTreeMap<String, Bytes>,
    segments: BTreeMap<SegmentId, Vec<u8>>,
}

#[test]
fn a_run_that_ends_behind_any_step_is_gone_on_with_and_nothing_is_lost_or_there_twice() {
    in_world(|env| async move {
        let (moved, mut place) = (Moved::begin(&env).await, Place::new(&env).await);
        let source = moved.source(&env).await;
        let expected = place.completed(&source).await;
        assert!(expected.keys.contains_key("log/moving") && expected.segments.len() > 4, "{expected:?}");
        let mut steps = 0;
        loop {
            place = place.emptied().await;
            let (count, is_whole) = (AtomicUsize::new(0), AtomicBool::new(false));
            let goes_on = |step| {
                is_whole.store(step == MigrationStep::Whole, Ordering::SeqCst);
                step != MigrationStep::Whole && count.fetch_add(1, Ordering::SeqCst) < steps
            };
            let stopped = place.run_of(&source, place.metadata(), goes_on).await;
            assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
            assert_eq!(place.completed(&source).await, expected, "behind {steps} steps");
            if is_whole.load(Ordering::SeqCst) {
                break;
            }
            steps += 1;
        }
        assert!(steps > expected.segments.len(), "each segment is a step, and others are: {steps}");
        source.close().await;
    });
}

#[test]
fn a_run_whose_metadata_goes_away_before_any_commit_is_gone_on_with() {
    in_world(|env| async move {
        let (moved, mut place) = (Moved::begin(&env).await, Place::new(&env).await);
        let source = moved.source(&env).await;
        let expected = place.completed(&source).await;
        for commits in 0.. {
            place = place.emptied().await;
            let failing = FailingMeta::new(&place.metadata());
            failing.take(commits);
            let run = place.run_of(&source, failing.clone(), |step| step != MigrationStep::Whole).await;
            assert!(run.is_err());
            assert_eq!(place.completed(&source).await, expected, "behind {commits} commits");
            if failing.refused() == 0 {
                assert!(commits > 1, "{commits}");
                break;
            }
        }
        source.close().await;
    });
}

#[test]
fn from_the_mark_on_the_directory_is_not_opened_with_metadata_of_its_own_and_nobody_opens_half_of_it() {
    in_world(|env| async move {
        let (moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        let stopped = place.run(&moved, |step| step != MigrationStep::Segments).await;
        assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
        for dir in [moved.dir.path(), &place.dir.path().join("another")] {
            let why = place.refused(dir, place.log_config(false)).await;
            assert!(why.contains("is being moved to") && why.contains(SOURCE), "{why}");
        }
        let records = SegmentRecords::new(place.metadata());
        let why = records.cluster().await.expect_err("of half of the records nobody judges segments");
        assert!(why.contains("tailwater migrate"), "{why}");
        // It is still its own.
        assert_eq!(seen(&open(&env, moved.dir.path()).await, moved.stream).await, moved.seen);

        let stopped = place.run(&moved, |step| step != MigrationStep::Marked).await;
        assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
        let why = place.refused(moved.dir.path(), config()).await;
        assert!(why.contains("or moved there"), "{why}");
        let why = place.refused(moved.dir.path(), place.log_config(false)).await;
        assert!(why.contains("is being moved to"), "{why}");

        let outcome = place.run(&moved, |_| true).await.expect("it comes to its end");
        assert_eq!((outcome.was_moved, outcome.segments, outcome.keys), (true, 0, 0));
        let outcome = place.run(&moved, |_| true).await.expect("once more");
        assert!(outcome.was_moved);
        assert!(records.cluster().await.expect("whole").is_some());
        moved.check(&open_with(&env, moved.dir.path(), place.log_config(false)).await).await;
    });
}

#[test]
fn a_directory_of_the_place_does_not_end_the_move_of_another_one() {
    in_world(|env| async move {
        let (moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        let stopped = place.run(&moved, |step| step != MigrationStep::Marked).await;
        assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
        let put = |id: &'static str| Op::Put {
            key: "log/moving".to_owned(),
            value: Bytes::from_static(id.as_bytes()),
            expect: Expect::Present,
        };
        place.metadata().commit(vec![put("ffffffffffffffff")]).await.expect("written");
        let why = place.run(&moved, |_| true).await.expect_err("refused").to_string();
        assert!(why.contains("from another data directory"), "{why}");
        assert!(place.metadata().get("log/moving").await.expect("read").is_some(), "it goes on");
        place.metadata().commit(vec![put(SOURCE)]).await.expect("written");
        assert!(place.run(&moved, |_| true).await.expect("it comes to its end").was_moved);
        assert!(place.metadata().get("log/moving").await.expect("read").is_none(), "nodes may start");
    });
}

#[test]
fn the_segments_that_were_left_behind_go_when_they_are_told_to_and_not_before_the_move() {
    in_world(|env| async move {
        let (moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        let source = moved.source(&env).await;
        let left = source.segments_here();
        let why = source.remove_segments().await.expect_err("they are the only ones");
        assert!(left > 3 && why.contains("was not moved"), "{left}: {why}");
        source.close().await;
        drop(source);
        let outcome = place.run(&moved, |_| true).await.expect("it comes to its end");
        assert!(!outcome.was_moved && outcome.segments > 3 && outcome.bytes > 2_000, "{outcome:?}");
        let source = moved.source(&env).await;
        assert_eq!(source.remove_segments().await, Ok(left));
        source.close().await;
        drop(source);
        let source = moved.source(&env).await;
        assert_eq!((source.segments_here(), source.remove_segments().await), (0, Ok(0)));
        source.close().await;
        drop(source);
        moved.check(&open_with(&env, moved.dir.path(), place.log_config(false)).await).await;
    });
}

#[test]
fn between_two_runs_the_directory_may_be_served_and_what_it_has_at_last_is_what_is_moved() {
    in_world(|env| async move {
        let (mut moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        let stopped = place.run(&moved, |step| step != MigrationStep::Whole).await;
        assert!(matches!(stopped, Err(MigrationError::Stopped)), "{stopped:?}");
        let log = open(&env, moved.dir.path()).await;
        let gone = log.meta().get("login/user/orders").await.expect("read").expect("there").version;
        let expect = Expect::Version(gone);
        let change = [
            Op::Delete { key: "login/user/orders".to_owned(), expect },
            Op::Put { key: "login/user/other".to_owned(), value: "scram".into(), expect: Expect::Absent },
        ];
        log.meta().commit(change.into()).await.expect("written");
        log.append(moved.stream, ShardNumber(1), values(&["three"])).await.expect("durable");
        truncate(&env, &log, moved.stream, 12).await;
        log.delete_stream("untouched").await.expect("deleted");
        moved.seen = seen(&log, moved.stream).await;
        drop(log);

        let outcome = place.run(&moved, |_| true).await.expect("it comes to its end");
        assert!(outcome.segments < 4, "only what is new: {outcome:?}");
        let log = place.open("next").await;
        assert_eq!(seen(&log, moved.stream).await, moved.seen);
        assert!(log.stream("untouched").is_err());
        for (key, is_there) in [("login/user/orders", false), ("login/user/other", true)] {
            assert_eq!(log.meta().get(key).await.expect("read").is_some(), is_there, "{key}");
        }
        let known: Vec<_> = moved.seen.iter().flatten().map(|seen| seen.segment).collect();
        let there: Vec<_> = place.store.0.lock().segments.keys().copied().collect();
        assert!(there.iter().all(|id| known.contains(id)), "none is left over: {there:?}");
    });
}

#[test]
fn what_is_there_already_and_what_would_be_lost_is_refused_before_anything_is_moved() {
    in_world(|env| async move {
        let (moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        let refused = async |put: (&str, &str), what: &str| {
            let (key, value) = (put.0.to_owned(), Bytes::copy_from_slice(put.1.as_bytes()));
            place
                .metadata()
                .commit(vec![Op::Put { key: key.clone(), value, expect: Expect::Absent }])
                .await
                .expect("written");
            let why = place.run(&moved, |_| true).await.expect_err("refused").to_string();
            assert!(why.contains(what), "{why}");
            assert!(place.store.0.lock().segments.is_empty());
            place
                .metadata()
                .commit(vec![Op::Delete { key, expect: Expect::Present }])
                .await
                .expect("deleted");
        };
        refused(("node/id", "somebody"), "has metadata already").await;
        refused(("log/moving", "ffffffffffffffff"), "from another data directory").await;
        refused(("log/moving", SOURCE), "is not as an earlier run left it").await;

        let log = open(&env, moved.dir.path()).await;
        let interval = StreamConfig { durability: StreamDurability::Interval, ..StreamConfig::default() };
        create(&log, "late", interval).await;
        drop(log);
        let why = place.run(&moved, |_| true).await.expect_err("refused").to_string();
        assert!(why.contains("durability interval: late."), "{why}");
        let log = open(&env, moved.dir.path()).await;
        log.delete_stream("late").await.expect("deleted");
        log.close().await;
        drop(log);

        // A byte of a completed segment is another one.
        let first = moved.seen[0][0].segment;
        let path = moved.dir.path().join("segments").join(first.shard.stream.to_string());
        let shard = env.disk().list(&path).expect("readable").into_iter().min().expect("its first shard");
        let names = env.disk().list(&path.join(&shard)).expect("readable");
        let name = names.iter().filter(|name| name.ends_with(".seg")).min().expect("a segment");
        let file = env.disk().open(&path.join(shard).join(name), OpenMode::ReadWrite).expect("it opens");
        file.write_all_at(b"?", 200).expect("written");
        let why = place.run(&moved, |_| true).await.expect_err("damaged").to_string();
        assert!(why.contains("is not copied: stored bytes are corrupt"), "{why}");
        let log = open_with(&env, moved.dir.path(), config()).await;
        assert!(log.stream("s").is_ok(), "the directory is its own as before");
    });
}

#[test]
fn a_directory_whose_segments_are_in_the_replicated_store_is_moved_by_its_metadata_alone() {
    in_world(|env| async move {
        let place = Place::new(&env).await;
        let segments: Option<Arc<dyn OpenSegments>> = Some(Arc::new(place.store.clone()));
        let config = LogConfig { segments, ..config() };
        let moved = Moved::begin_with(&env, config.clone()).await;
        let source = moved.source_of(&env, config).await;
        let outcome = place.run_of(&source, place.metadata(), |_| true).await.expect("it comes to its end");
        source.close().await;
        assert_eq!((outcome.was_moved, outcome.segments), (false, 0), "they are there");
        moved.check(&place.open("next").await).await;
        assert_eq!(place.store.0.lock().clusters.len(), 1, "by the number that they have had before");
    });
}

#[test]
fn several_processes_share_what_was_moved() {
    in_world(|env| async move {
        let (moved, place) = (Moved::begin(&env).await, Place::new(&env).await);
        place.run(&moved, |_| true).await.expect("it comes to its end");
        let (mut members, mut logs) = (Vec::new(), Vec::new());
        for name in ["a", "b"] {
            let log = open_with(&env, &place.dir.path().join(name), place.log_config(true)).await;
            members.push(ShardMember { id: name.to_owned(), owner: log.owner_number(), takes: true });
            logs.push((ShardSharing::new(&log).expect("it shares"), log));
        }
        let is_owned = |logs: &[(ShardSharing, Log)], number: u32| {
            logs.iter().any(|(_, log)| log.tails(moved.stream, &[ShardNumber(number)]).is_ok())
        };
        while !(0..SHARDS).all(|number| is_owned(&logs, number)) {
            for (sharing, _) in &mut logs {
                sharing.seen().look(env.now(), &members);
                sharing.look(&members).await.expect("metadata answers");
            }
            env.sleep(std::time::Duration::from_millis(20)).await;
        }
        for number in 0..SHARDS {
            let owner = logs.iter().find(|(_, log)| log.tails(moved.stream, &[ShardNumber(number)]).is_ok());
            let log = &owner.expect("it has one").1;
            assert_eq!(read_all(log, shard(moved.stream, number)).await, moved.seen[number as usize]);
            let next = log.append(moved.stream, ShardNumber(number), values(&["more"])).await;
            assert_eq!(next.expect("durable").term, Term(2), "the claim's");
        }
    });
}
