//! What a replica has on its disk comes back, through the real journal and on real files.

#![allow(clippy::disallowed_methods)] // it damages files

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use common::config;
use tailwater_broadcast::client::{Listener, Publisher};
use tailwater_broadcast::replica::Config;
use tailwater_broadcast::{Collect, Content, Durability, Position, Positions, Stream};
use tailwater_broadcast_server::disk::{Disk, DiskOptions};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server, Snapshot};
use tailwater_env::Env;
use tokio::net::TcpListener;

/// A region of one replica, whose metadata and events are in `dir`.
struct Region {
    env: Env,
    dir: tempfile::TempDir,
    durability: Durability,
    checkpoint_bytes: u64,
}

impl Region {
    fn new(durability: Durability) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { env: Env::real(), dir, durability, checkpoint_bytes: 64 << 20 }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("broadcast")
    }

    fn open(&self) -> Result<Disk, tailwater_broadcast_server::disk::DiskError> {
        let options = DiskOptions {
            checkpoint_bytes: self.checkpoint_bytes,
            ..DiskOptions::new(self.durability.into())
        };
        Disk::open(&self.env, &self.path(), "a", options)
    }

    async fn start(&self) -> Server {
        let env = &self.env;
        let (_, meta) = tailwater_meta::testing::open(env, self.dir.path());
        let config = config(env, "a", ConfigurationAt::Here(meta));
        let config = ReplicaServerConfig { replica: Config::new("a", 0), silence_ms: 2_000, ..config };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Server::start_with(env, listener, config, Some(self.open().unwrap())).unwrap()
    }
}

fn content(key: u64, payload: Vec<u8>) -> Content {
    let key = Some(Bytes::copy_from_slice(&key.to_le_bytes()));
    Content { key, payload: payload.into(), ..Content::default() }
}

fn stream() -> Stream {
    Stream::parse("a/prices").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_ends_does_not_apply_again_what_it_had_applied_before_its_checkpoint() {
    let region = Region { checkpoint_bytes: 4 << 10, ..Region::new(Durability::Interval) };
    let server = region.start().await;
    let publisher = Publisher::new(&region.env, vec![server.address().to_string()]);
    let with = |n: u64| {
        let headers = vec![(Bytes::from_static(b"n"), Bytes::from(n.to_string()))];
        Content { headers, ..Content::default() }
    };
    for n in 0..100 {
        publisher.publish(&stream(), &with(n), None).await.unwrap();
    }
    for n in 0..20 {
        let collect = Collect::Matching(format!("header.n = \"{n}\"").into());
        publisher.publish(&stream(), &Content::default(), Some(&collect)).await.unwrap();
    }
    let applied = |snapshot: &Snapshot| snapshot.streams.iter().all(|stream| stream.predicates == 0);
    let before = server.handle().until(applied).await.unwrap().disk.unwrap().checkpoints;
    // The second one from here on began when all were applied.
    while server.handle().snapshot().await.unwrap().disk.unwrap().checkpoints < before + 2 {
        publisher.publish(&stream(), &with(1_000), None).await.unwrap();
    }
    drop((publisher, server));
    ended(&region).await;
    let disk = region.open().unwrap();
    let stats = disk.streams[&stream()].history.stats();
    assert_eq!((stats.live, stats.predicates), (stats.last - 20, 0));
}

/// All that follows a position, up to the number `last`: what each event has, or nothing for those that are collected.
async fn heard(env: &Env, server: &Server, from: Positions, last: u64) -> Vec<(u64, Option<Bytes>)> {
    let mut listener = Listener::new(env, vec![server.address().to_string()], from);
    let mut all = Vec::new();
    loop {
        let event = listener.get_event().await.unwrap().to_event();
        all.push((event.seq, event.content().map(|content| content.payload.clone())));
        if event.seq == last {
            return all;
        }
    }
}

/// Waits until the journals of a server that was dropped can be opened again.
async fn ended(region: &Region) {
    let lock = region.path().join("journal").join("lock");
    for path in [lock, region.dir.path().join("journal").join("lock")] {
        while region.env.disk().lock(&path).is_err() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_ends_comes_back_with_its_events_its_numbers_and_its_id() {
    for durability in [Durability::Fsync, Durability::Interval] {
        let region = Region::new(durability);
        let env = &region.env;
        let mut token = None;
        for life in 0..3u64 {
            let server = region.start().await;
            let publisher = Publisher::new(env, vec![server.address().to_string()]);
            for n in 1..=100 {
                let payload = (life * 100 + n).to_le_bytes().to_vec();
                let published = publisher.publish(&stream(), &content(n, payload), None).await.unwrap();
                // Also if it was published by an earlier try: there is nothing behind it.
                assert_eq!(published.seq, life * 100 + n);
            }
            let from = token
                .clone()
                .map_or_else(Positions::start, |token: String| Positions::parse(&token).unwrap());
            let first = if token.is_some() { life * 100 - 49 } else { 1 };
            let all = heard(env, &server, from, life * 100 + 100).await;
            let expected =
                (first..=life * 100 + 100).map(|n| (n, Some(Bytes::copy_from_slice(&n.to_le_bytes()))));
            assert_eq!(all, expected.collect::<Vec<_>>());
            let mut half = Positions::of(vec![stream()]);
            let lineage = server.handle().snapshot().await.unwrap().chain.lineage;
            half.streams.insert(stream(), Position { lineage, seq: life * 100 + 50 });
            token = Some(half.token());
            let snapshot = server.handle().snapshot().await.unwrap();
            assert_eq!(snapshot.disk.unwrap().loaded, life * 100);
            drop((publisher, server));
            ended(&region).await;
        }
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_collected_leaves_the_disk_and_the_rest_comes_back() {
    let mut region = Region::new(Durability::Interval);
    region.checkpoint_bytes = 1 << 20;
    let env = &region.env;
    let server = region.start().await;
    let publisher = Publisher::new(env, vec![server.address().to_string()]);
    let (count, keys) = (8_000u64, 10u64);
    let payload = |n: u64| [&n.to_le_bytes()[..], &[7; 16 << 10]].concat();
    let mut last = 0;
    for part in 0..count / 500 {
        let all = (part * 500..part * 500 + 500)
            .map(|n| publisher.publish(&stream(), &content(n % keys, payload(n)), Some(&Collect::SameKey)));
        last = futures::future::try_join_all(all).await.unwrap().last().unwrap().seq;
    }
    assert_eq!(last, count);
    let trimmed = |snapshot: &Snapshot| {
        snapshot.disk.as_ref().is_some_and(|disk| disk.checkpoints > 0 && disk.journal.files <= 4)
    };
    let disk = server.handle().until(trimmed).await.unwrap().disk.unwrap();
    assert!(disk.journal.bytes > 120 << 20, "{disk:?}");
    server.stop().await;
    drop((publisher, server));
    ended(&region).await;
    // Spare files included, of which there are eight at most.
    let bytes = bytes_in(&region.path());
    assert!(bytes < 56 << 20, "{bytes}");
    let server = region.start().await;
    let all = heard(env, &server, Positions::start(), last).await;
    // Some that are collected are still among what is read: of each key the last one counts.
    let read = all.iter().filter_map(|(seq, payload)| Some((*seq, payload.clone()?)));
    let live: BTreeMap<u64, (u64, Bytes)> =
        read.map(|(seq, payload)| ((seq - 1) % keys, (seq, payload))).collect();
    let expected = (count - keys..count).map(|n| (n % keys, (n + 1, Bytes::from(payload(n)))));
    assert_eq!(live, expected.collect());
    assert!(server.handle().snapshot().await.unwrap().disk.unwrap().loaded < 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_missing_file_is_named_and_nothing_panics() {
    let mut region = Region::new(Durability::Fsync);
    region.checkpoint_bytes = 1;
    let env = &region.env;
    let server = region.start().await;
    let publisher = Publisher::new(env, vec![server.address().to_string()]);
    let mut published = 0u64;
    while server.handle().snapshot().await.unwrap().disk.unwrap().checkpoints < 2 {
        publisher.publish(&stream(), &content(published, vec![1; 100]), None).await.unwrap();
        published += 1;
    }
    server.stop().await;
    drop((publisher, server));
    ended(&region).await;
    let error = || region.open().err().expect("refused").to_string();
    for name in ["checkpoint", "replica"] {
        let path = region.path().join(name);
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(1 + good.len() / 200) {
            let mut damaged = good.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            assert!(error().contains(name), "byte {at}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(error().contains(name), "cut to {at}");
        }
        std::fs::write(&path, &good).unwrap();
    }
    let aside = region.dir.path().join("aside");
    std::fs::rename(region.path().join("replica"), &aside).unwrap();
    assert!(error().contains("whose it is"));
    std::fs::rename(&aside, region.path().join("replica")).unwrap();
    std::fs::rename(region.path().join("journal"), &aside).unwrap();
    assert!(error().contains("journal"));
    std::fs::rename(&aside, region.path().join("journal")).unwrap();
    let id = region.open().unwrap().id();
    assert_eq!(id & 1, 0);
    // Wiped, it is another one.
    ended(&region).await;
    std::fs::remove_dir_all(region.path()).unwrap();
    assert_ne!(region.open().unwrap().id(), id);
}
