//! Metadata on a journal over restarts, crashes and failures of the disk.

#[path = "../../journal/tests/world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalAppendOptions, JournalConfig, JournalOpenError, Tag};
use tailwater_meta::{
    EmbeddedMeta, Expect, Meta, MetaConfig, MetaError, Op, Recovery, RecoveryError, Versioned, WatchEnd,
    conformance,
};
use world::{Fault, TestDisk, World, splitmix};

fn dir() -> &'static Path {
    Path::new("/data/meta")
}

fn journal_dir() -> &'static Path {
    Path::new("/data/journal")
}

fn journal_config() -> JournalConfig {
    JournalConfig {
        file_bytes: 128 << 10,
        files_max: 5,
        reserve_bytes: 16 << 10,
        backlog_bytes: 64 << 10,
        record_bytes_max: 64 << 10,
        sync_interval: Duration::from_millis(100),
    }
}

#[derive(Debug)]
enum Failed {
    Recovery(RecoveryError),
    Journal(JournalOpenError),
}

fn try_open_with(
    env: &Env,
    config: JournalConfig,
    snapshot_bytes: usize,
) -> Result<(EmbeddedMeta, Journal), Failed> {
    let mut recovery = Recovery::begin(env, dir()).map_err(Failed::Recovery)?;
    let mut replay = |tag, position, bytes: &[u8]| match tag {
        tailwater_meta::TAG => recovery.replay(position, bytes),
        _ => Ok(()),
    };
    let journal = Journal::open(env, journal_dir(), config, &mut replay).map_err(Failed::Journal)?;
    Ok((recovery.finish(env, journal.clone(), MetaConfig { snapshot_bytes }), journal))
}

fn try_open(world: &World, snapshot_bytes: usize) -> Result<(EmbeddedMeta, Journal), Failed> {
    try_open_with(&world.env, journal_config(), snapshot_bytes)
}

fn open(world: &World) -> (EmbeddedMeta, Journal) {
    try_open(world, 1 << 20).expect("it opens")
}

fn put(key: &str, value: &str, expect: Expect) -> Op {
    Op::Put { key: key.to_owned(), value: Bytes::copy_from_slice(value.as_bytes()), expect }
}

async fn set(meta: &EmbeddedMeta, key: &str, value: &str) -> u64 {
    meta.commit(vec![put(key, value, Expect::Any)]).await.expect("committed")
}

async fn value(meta: &EmbeddedMeta, key: &str) -> Option<String> {
    let found = meta.get(key).await.expect("available");
    found.map(|found| String::from_utf8(found.value.to_vec()).expect("text"))
}

fn large_journal() -> JournalConfig {
    JournalConfig { file_bytes: 32 << 20, backlog_bytes: 8 << 20, ..JournalConfig::default() }
}

#[test]
fn it_is_what_the_contract_says() {
    for seed in 0..3 {
        let world = World::new(seed);
        let (meta, _journal) = try_open_with(&world.env, large_journal(), 1 << 20).expect("it opens");
        world.run(conformance::check(&world.env, Arc::new(meta))).expect("no crash");
    }
}

#[test]
fn it_is_what_the_contract_says_on_the_real_disk_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let env = Env::real();
    let data = tempfile::tempdir().expect("a directory");
    let (journal, meta) = tailwater_meta::testing::open(&env, data.path());
    runtime.block_on(async {
        conformance::check(&env, meta).await;
        journal.close().await.expect("closed");
    });
}

#[test]
fn what_was_answered_is_there_after_a_crash_with_its_version_and_leases_are_not() {
    let world = World::new(1);
    let (meta, _journal) = open(&world);
    let (first, second, lease) = world
        .run(async {
            let first = set(&meta, "a", "1").await;
            set(&meta, "gone", "x").await;
            let second = set(&meta, "b", "2").await;
            let delete = Op::Delete { key: "gone".to_owned(), expect: Expect::Any };
            meta.commit(vec![delete]).await.expect("committed");
            let lease = meta.lease("lease", Bytes::new(), Duration::from_secs(1)).await.expect("free");
            (first, second, lease)
        })
        .expect("no crash");
    let world = World::with_disk(2, world.disk.after_crash());
    let (meta, _journal) = open(&world);
    world.run(async {
        let version = |value: &str, version| Versioned { value: Bytes::from(value.to_owned()), version };
        let expected = [("a".to_owned(), version("1", first)), ("b".to_owned(), version("2", second))];
        assert_eq!(meta.list("").await.expect("available"), expected);
        assert!(set(&meta, "c", "3").await > lease.version(), "not even a lease's version is given again");
    });
}

#[test]
fn snapshots_make_room_in_the_journal_and_hold_what_it_no_longer_has() {
    let world = World::new(3);
    let (meta, journal) = try_open(&world, 32 << 10).expect("it opens");
    world.run(async {
        for number in 0..2000 {
            set(&meta, &format!("key{}", number % 50), &format!("{number}{}", "x".repeat(500))).await;
        }
        journal.close().await.expect("closed");
    });
    let names = world.disk.names(dir());
    assert_eq!(names.len(), 1, "{names:?}");
    drop((meta, journal));
    let world = World::with_disk(4, world.disk.after_crash());
    let (meta, _journal) = open(&world);
    world.run(async {
        assert_eq!(meta.list("key").await.expect("available").len(), 50);
        assert!(value(&meta, "key49").await.expect("there").starts_with("1999x"));
    });
}

#[test]
fn a_snapshot_is_taken_for_few_commits_too_if_the_journal_needs_its_files_back() {
    let world = World::new(5);
    let (meta, journal) = open(&world);
    world.run(async {
        set(&meta, "old", "1").await;
        for _ in 0..40 {
            let append = JournalAppendOptions::new(journal.incarnation());
            loop {
                match journal.append(Tag(2), &[&[0; 60 << 10]], append) {
                    Ok(position) => {
                        journal.durable().wait_for(position).await.expect("durable");
                        journal.trim(Tag(2), position);
                        break;
                    }
                    Err(_) => journal.ready().await,
                }
            }
        }
        assert_eq!(value(&meta, "old").await.as_deref(), Some("1"));
    });
    let names = world.disk.names(dir());
    assert_eq!(names.len(), 1, "{names:?}");
    let world = World::with_disk(6, world.disk.after_crash());
    let (meta, _journal) = open(&world);
    assert_eq!(world.run(value(&meta, "old")), Some(Some("1".to_owned())));
}

#[test]
fn a_commit_that_the_journal_loses_is_never_visible_and_what_rests_on_it_is_judged_again() {
    let world = World::new(7);
    let (meta, journal) = open(&world);
    world.run(async {
        let version = set(&meta, "key", "kept").await;
        let mut watch = meta.watch("").await.expect("available");
        world.disk.fail_syncs(true);
        let lost = meta.commit(vec![put("key", "lost", Expect::Version(version))]);
        // Conflicts only if the first one lasts, which it does not.
        let resting = meta.commit(vec![put("key", "second", Expect::Version(version))]);
        let (lost, resting) = futures::future::join(lost, resting).await;
        assert!(matches!(lost, Err(MetaError::Unavailable(_))), "{lost:?}");
        assert!(matches!(resting, Err(MetaError::Unavailable(_))), "{resting:?}");
        assert_eq!(value(&meta, "key").await.as_deref(), Some("kept"));
        assert_eq!(watch.try_next(), None);
        world.disk.fail_syncs(false);
        journal.ready().await;
        let again =
            meta.commit(vec![put("key", "again", Expect::Version(version))]).await.expect("committed");
        assert!(again > version);
        let event = watch.next().await.expect("an event");
        assert_eq!(event.value.map(|found| found.version), Some(again));
    });
    let world = World::with_disk(8, world.disk.after_crash());
    let (meta, _journal) = open(&world);
    assert_eq!(world.run(value(&meta, "key")), Some(Some("again".to_owned())));
}

#[test]
fn many_commits_at_once_share_the_syncs_and_all_are_answered() {
    let world = World::new(9);
    let (meta, journal) = open(&world);
    world.run(async {
        let groups = journal.stats().groups;
        let commits = (0..3000).map(|number| {
            let meta = meta.clone();
            async move { set(&meta, &format!("{number:04}"), &"x".repeat(100)).await }
        });
        let mut versions = futures::future::join_all(commits).await;
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), 3000);
        assert!(journal.stats().groups - groups < 300);
    });
}

#[test]
fn a_lease_that_is_not_renewed_in_time_ends_and_everybody_is_told() {
    let world = World::new(10);
    let (meta, _journal) = open(&world);
    world.run(async {
        let ttl = Duration::from_secs(1);
        // Dropped before it is answered: nobody holds it, nobody renews it.
        let mut watch = meta.watch("lease").await.expect("available");
        let mut claim = meta.lease("lease", Bytes::new(), ttl);
        assert!((&mut claim).now_or_never().is_none());
        drop(claim);
        let granted = watch.next().await.expect("an event");
        assert!(granted.value.is_some());
        let at = world.env.now();
        let ended = watch.next().await.expect("an event");
        assert_eq!((ended.value, world.env.now().since(at)), (None, ttl));
    });
}

#[test]
fn leases_and_watches_end_with_the_store() {
    let world = World::new(11);
    let (meta, _journal) = open(&world);
    world.run(async {
        let mut watch = meta.watch("").await.expect("available");
        let lease = meta.lease("lease", Bytes::new(), Duration::from_secs(1)).await.expect("free");
        watch.next().await.expect("the lease's key");
        drop(meta);
        lease.lost().await;
        assert!(lease.is_lost());
        assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    });
}

#[test]
fn after_the_journals_close_commits_are_refused() {
    let world = World::new(12);
    let (meta, journal) = open(&world);
    world.run(async {
        set(&meta, "key", "kept").await;
        journal.close().await.expect("closed");
        let refused = meta.commit(vec![put("key", "late", Expect::Any)]).await;
        assert!(matches!(refused, Err(MetaError::Unavailable(_))), "{refused:?}");
    });
}

/// A store with one snapshot and a commit after it.
fn with_snapshot() -> (World, String) {
    let world = World::new(13);
    let (meta, journal) = try_open(&world, 1000).expect("it opens");
    world.run(async {
        for _ in 0..20 {
            set(&meta, "key", &"x".repeat(100)).await;
        }
        journal.close().await.expect("closed");
    });
    let names = world.disk.names(dir());
    assert_eq!(names.len(), 1, "{names:?}");
    (World::with_disk(14, world.disk.after_crash()), names[0].clone())
}

#[test]
fn a_damaged_snapshot_is_an_error_that_says_which() {
    let (world, name) = with_snapshot();
    world.disk.edit(&dir().join(name), |bytes| bytes[20] ^= 1);
    let failed = try_open(&world, 1000).expect_err("damaged");
    assert!(matches!(failed, Failed::Recovery(RecoveryError::Snapshot { .. })), "{failed:?}");
}

#[test]
fn commits_that_do_not_follow_the_snapshot_are_an_error_and_not_a_loss() {
    // The journal's early files are trimmed, and then the snapshot is taken away.
    let world = World::new(15);
    let (meta, journal) = try_open(&world, 32 << 10).expect("it opens");
    world.run(async {
        for number in 0..1500 {
            set(&meta, &format!("{}", number % 10), &"x".repeat(500)).await;
        }
        journal.close().await.expect("closed");
    });
    let world = World::with_disk(16, world.disk.after_crash());
    for name in world.disk.names(dir()) {
        world.disk.delete(&dir().join(name));
    }
    let failed = try_open(&world, 1000).expect_err("a gap");
    assert!(matches!(failed, Failed::Journal(JournalOpenError::Replay { .. })), "{failed:?}");
}

// ---- crashes at every call ----

type Ops = Vec<(usize, Option<u64>)>;

/// What is known of every commit: its changes, and whether it was answered.
#[derive(Default)]
struct Model {
    /// Version and changes of the commits that were answered.
    answered: BTreeMap<u64, Ops>,
    /// Changes of those that were not, by the number that their values have.
    open: Vec<Ops>,
    numbers: u64,
}

const KEYS: usize = 6;

fn key(number: usize) -> String {
    format!("key{number}")
}

impl Model {
    async fn work(&mut self, world: &World, meta: &EmbeddedMeta, mut seed: u64, steps: usize) {
        let mut under_way = FuturesUnordered::new();
        for _ in 0..steps {
            let mut changes: Ops = Vec::new();
            for number in 0..KEYS {
                match splitmix(&mut seed) % 6 {
                    0 => changes.push((number, None)),
                    1 | 2 => {
                        self.numbers += 1;
                        changes.push((number, Some(self.numbers)));
                    }
                    _ => {}
                }
            }
            let ops = changes.iter().map(|(number, value)| match value {
                Some(value) => put(&key(*number), &format!("{value}/{}", "x".repeat(900)), Expect::Any),
                None => Op::Delete { key: key(*number), expect: Expect::Any },
            });
            let ops = ops.collect::<Vec<_>>();
            let place = self.open.len();
            self.open.push(changes);
            let meta = meta.clone();
            under_way.push(async move { (place, meta.commit(ops).await) }.boxed());
            while under_way.len() >= 4 {
                self.learn(under_way.next().await);
            }
            if splitmix(&mut seed).is_multiple_of(8) {
                world.env.sleep(Duration::from_millis(300)).await;
            }
        }
        while !under_way.is_empty() {
            self.learn(under_way.next().await);
        }
    }

    fn learn(&mut self, settled: Option<(usize, Result<u64, MetaError>)>) {
        match settled {
            Some((place, Ok(version))) if self.open[place].iter().any(|(_, value)| value.is_some()) => {
                let changes = std::mem::take(&mut self.open[place]);
                let before = self.answered.insert(version, changes);
                assert_eq!(before, None, "version {version} is given once");
            }
            // Deleting what was not there has no version of its own, so these count as possible only.
            Some((_, Ok(_))) => {}
            Some((_, Err(MetaError::Unavailable(_)))) | None => {}
            Some((_, Err(error))) => panic!("{error}"),
        }
    }

    /// Everything that was answered is there, unless something later changed it.
    async fn check(&self, meta: &EmbeddedMeta) {
        let listed = meta.list("").await.expect("available");
        let listed: BTreeMap<String, Versioned> = listed.into_iter().collect();
        for number in 0..KEYS {
            let newest = self.answered.iter().rev().find_map(|(version, changes)| {
                changes.iter().find(|(changed, _)| *changed == number).map(|(_, value)| (*version, *value))
            });
            let found = listed.get(&key(number)).map(|found| {
                let text = std::str::from_utf8(&found.value).expect("text");
                let value: u64 = text.split_once('/').expect("as written").0.parse().expect("a number");
                (found.version, value)
            });
            let open =
                |value: Option<u64>| self.open.iter().flatten().any(|change| *change == (number, value));
            match (newest, found) {
                (Some((version, Some(value))), Some(found)) if found == (version, value) => {}
                (newest, Some((version, value))) => {
                    assert!(open(Some(value)), "key{number}: {newest:?} was answered, {value} is there");
                    assert!(newest.is_none_or(|(newest, _)| version > newest));
                }
                (None | Some((_, None)), None) => {}
                (Some(newest), None) => assert!(open(None), "key{number}: {newest:?} is gone"),
            }
        }
    }
}

fn run(seed: u64, faults: &[(u64, Fault)], steps: usize) -> u64 {
    let disk = Arc::new(TestDisk::new(seed));
    for (call, fault) in faults {
        disk.fault_at(*call, *fault);
    }
    let mut model = Model::default();
    let world = World::with_disk(seed, disk);
    if let Ok((meta, _journal)) = try_open(&world, 4000) {
        world.run(model.work(&world, &meta, seed, steps));
    }
    let calls = world.disk.calls();
    let mut disk = world.disk.after_crash();
    drop(world);
    for round in 0..2 {
        let world = World::with_disk(seed ^ round, disk);
        let (meta, _journal) = try_open(&world, 4000).expect("a sound disk");
        world
            .run(async {
                model.check(&meta).await;
                // From here on what is there is what is known.
                model = Model { numbers: model.numbers, ..Model::default() };
                model.work(&world, &meta, seed ^ 77 ^ round, 10).await;
                model.check(&meta).await;
            })
            .expect("no crash");
        disk = world.disk.after_crash();
    }
    calls
}

#[test]
fn the_machine_stops_at_every_call() {
    for seed in 0..2 {
        let calls = run(seed, &[], 40);
        assert!(calls > 100, "the workload reaches the disk: {calls}");
        for call in 1..=calls {
            run(seed, &[(call, Fault::Crash)], 40);
        }
    }
}

#[test]
fn every_call_fails_once_and_later_the_machine_stops() {
    for seed in 10..12 {
        let calls = run(seed, &[], 40);
        for call in 1..=calls {
            run(seed, &[(call, Fault::Fail), (call + 7, Fault::Crash)], 40);
            run(seed, &[(call, Fault::Fail)], 40);
        }
    }
}
