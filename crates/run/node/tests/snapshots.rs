//! Snapshots of a stream, and the state that consumers make of it, against a node in this process.

#![allow(clippy::disallowed_methods)] // a test of real sockets

mod common;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;

use tailwater_client::{
    Client, ClientConfig, ConsumerConfig, Error, KeyedState, Producer, ProducerSettings, ReaderConfig,
    SnapshotUpTo, Snapshots, StateConfig, StateConsumer, StateNews,
};
use tailwater_env::Env;
use tailwater_format::{Offset, Start};
use tailwater_node::{Config, Node};
use tokio::runtime::Runtime;

/// A node below `dir` that has nothing but streams.
fn config(dir: &Path) -> Config {
    let mut config = common::config(dir);
    (config.kafka.enabled, config.sqs.enabled, config.broadcast.enabled) = (false, false, false);
    config.journal.file_bytes = 16 << 20;
    config.data_cell.capacity_bytes = 64 << 20;
    config.listen.window = false;
    config
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn create(admin: SocketAddr, shards: u32) {
    for name in ["prices", "prices.snapshots"] {
        asked(admin, "/v1/streams", &format!("{{\"name\":\"{name}\",\"shards\":{shards}}}"));
    }
}

/// Runs a test with a node that has the streams `prices` and `prices.snapshots`: where its admin HTTP and its CALLs
/// are, and a client of it.
fn with_node<F: Future<Output = ()>>(shards: u32, test: impl FnOnce([SocketAddr; 2], Client) -> F) {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let config = config(dir.path());
    let (data, admin) = (config.listen.data, config.listen.admin);
    let node = runtime.block_on(Node::start(config)).unwrap();
    let _entered = runtime.enter();
    create(admin, shards);
    runtime.block_on(async {
        let client = Client::connect(&data.to_string()).await.unwrap();
        test([admin, data], client).await;
    });
    runtime.block_on(node.stop()).unwrap();
}

fn asked(admin: SocketAddr, path: &str, body: &str) {
    let answer = common::anybody(admin, "POST", path, body);
    assert!(answer.starts_with("HTTP/1.1 2"), "{path}: {answer}");
}

fn truncate(admin: SocketAddr, name: &str, before: Offset) {
    asked(admin, &format!("/v1/streams/{name}/truncate"), &format!("{{\"before\":\"{before}\"}}"));
}

async fn put(producer: &Producer, key: &str, value: &str) {
    producer.send(Some(key.as_bytes()), value.as_bytes()).unwrap().await.unwrap();
}

async fn producer(client: &Client) -> Producer {
    client.producer("prices", ProducerSettings::default()).await.unwrap()
}

/// What a consumer makes of the stream that begins now, up to its end.
struct Loaded {
    state: StateConsumer,
    keyed: KeyedState,
    /// Updates that were handed out.
    updates: u64,
}

impl Loaded {
    async fn begin(client: &Client) -> Self {
        let state = client.state("prices", StateConfig::default()).await.unwrap();
        let keyed = KeyedState::new(state.stream().shards);
        let mut loaded = Self { state, keyed, updates: 0 };
        loaded.catch_up().await;
        loaded
    }

    async fn catch_up(&mut self) {
        let ends = self.state.ends().await.unwrap();
        while !self.state.has_reached(&ends) {
            self.take_next().await;
        }
    }

    async fn take_next(&mut self) {
        let news = self.state.next().await.unwrap();
        if let StateNews::Updates(batch) = &news {
            self.updates += batch.records().count() as u64;
        }
        self.keyed.apply(&news);
    }

    fn values(&self) -> BTreeMap<String, String> {
        let text = |field: Option<&[u8]>| String::from_utf8(field.unwrap().to_vec()).unwrap();
        let shards = 0..self.keyed.shards();
        shards
            .flat_map(|shard| self.keyed.entries(shard))
            .map(|(key, value)| (text(key), text(value)))
            .collect()
    }

    async fn publish(&self, client: &Client) {
        let snapshots = snapshots(client).await;
        for shard in 0..self.keyed.shards() {
            let mut writer = snapshots.begin(shard, self.state.up_to(shard).unwrap()).await.unwrap();
            for (key, value) in self.keyed.entries(shard) {
                writer.put(key, value).await.unwrap();
            }
            writer.finish().await.unwrap();
        }
    }
}

async fn snapshots(client: &Client) -> Snapshots {
    let stream = client.stream("prices").await.unwrap();
    client.snapshots(&stream).await.unwrap().expect("there is a stream for them")
}

fn values(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn who_loads_a_snapshot_has_what_who_read_everything_has_and_reads_only_what_follows() {
    with_node(3, async |_, client| {
        let producer = producer(&client).await;
        for number in 0..200 {
            put(&producer, &format!("key {}", number % 50), &format!("value {number}")).await;
        }
        let mut from_the_beginning = Loaded::begin(&client).await;
        assert_eq!(from_the_beginning.updates, 200);
        from_the_beginning.publish(&client).await;
        for number in 0..7 {
            put(&producer, &format!("key {number}"), "new").await;
        }
        from_the_beginning.catch_up().await;
        let from_the_snapshot = Loaded::begin(&client).await;
        assert_eq!(from_the_snapshot.values(), from_the_beginning.values());
        assert_eq!(from_the_snapshot.values().len(), 50);
        assert_eq!(
            from_the_snapshot.updates, 7,
            "each update behind the snapshot comes once, and no other one"
        );
    });
}

#[test]
fn updates_and_snapshots_that_older_snapshots_have_are_removed_and_a_new_consumer_has_everything() {
    with_node(1, async |[admin, _], client| {
        let producer = producer(&client).await;
        let snapshots = snapshots(&client).await;
        let mut first = Loaded::begin(&client).await;
        let mut kept = None;
        for round in 0..4 {
            put(&producer, "tea", &round.to_string()).await;
            put(&producer, &format!("only in {round}"), "x").await;
            first.catch_up().await;
            first.publish(&client).await;
            kept = snapshots.kept(0, 2).await.unwrap();
            assert_eq!(kept.is_some(), round >= 1, "there are two from the second round on");
        }
        let kept = kept.unwrap();
        // Each round has two updates, and a part and a manifest.
        assert_eq!((kept.updates_from, kept.snapshots_from), (Offset(6), Offset(4)));
        truncate(admin, "prices", kept.updates_from);
        truncate(admin, "prices.snapshots", kept.snapshots_from);
        assert_eq!(snapshots.list(0, 10).await.unwrap().len(), 2);
        put(&producer, "tea", "last").await;

        let second = Loaded::begin(&client).await;
        first.catch_up().await;
        assert_eq!(second.values(), first.values());
        assert_eq!(second.values().len(), 5, "{:?}", second.values());
    });
}

#[test]
fn a_snapshot_that_is_not_finished_is_not_loaded_and_the_one_before_it_is() {
    with_node(1, async |_, client| {
        let producer = producer(&client).await;
        put(&producer, "tea", "1").await;
        let before = Loaded::begin(&client).await;
        before.publish(&client).await;
        let snapshots = snapshots(&client).await;
        let newest = snapshots.newest(0).await.unwrap().unwrap();

        put(&producer, "tea", "2").await;
        let up_to = snapshots.up_to(0, Start::End).await.unwrap();
        let mut dropped = snapshots.begin(0, up_to).await.unwrap();
        let mut unfinished = snapshots.begin(0, up_to).await.unwrap();
        let long = vec![b'x'; 700_000];
        for writer in [&mut dropped, &mut unfinished] {
            for key in 0..4 {
                writer.put(Some(format!("{key}").as_bytes()), Some(&long)).await.unwrap();
            }
        }
        drop(dropped);
        let records = client.state("prices.snapshots", StateConfig::default()).await.unwrap();
        // A part at least is behind the snapshot's part and manifest.
        while records.ends().await.unwrap()[0] < Offset(3) {}
        assert_eq!(snapshots.newest(0).await.unwrap(), Some(newest), "behind which others are being written");
        assert_eq!(Loaded::begin(&client).await.values(), values(&[("tea", "2")]));

        // The other one is whole all the same, with parts of two in between.
        let finished = unfinished.finish().await.unwrap();
        assert_eq!(snapshots.newest(0).await.unwrap(), Some(finished));
        assert_eq!(snapshots.before(&finished).await.unwrap(), Some(newest));
        assert_eq!(snapshots.check(&finished).await.unwrap(), None);
        assert_eq!(Loaded::begin(&client).await.values().len(), 4);
    });
}

#[test]
fn a_torn_snapshot_is_left_out_for_the_one_before_it() {
    with_node(1, async |_, client| {
        let producer = producer(&client).await;
        put(&producer, "tea", "1").await;
        Loaded::begin(&client).await.publish(&client).await;
        put(&producer, "tea", "2").await;
        put(&producer, "coffee", "3").await;
        Loaded::begin(&client).await.publish(&client).await;

        // A manifest of parts that are not what it says.
        let snapshots = snapshots(&client).await;
        let newest = snapshots.newest(0).await.unwrap().unwrap();
        let mut manifest = newest.manifest;
        (manifest.totals.sum.0, manifest.previous) = (manifest.totals.sum.0 ^ 1, Some(newest.offset));
        let records = client.producer("prices.snapshots", ProducerSettings::default()).await.unwrap();
        records.send(None, &manifest.encode()).unwrap().await.unwrap();
        let torn = snapshots.newest(0).await.unwrap().unwrap();
        assert!(snapshots.check(&torn).await.unwrap().is_some());
        assert!(matches!(snapshots.kept(0, 1).await, Err(Error::Snapshots { .. })), "nothing may be removed");

        let loaded = Loaded::begin(&client).await;
        assert_eq!(loaded.values(), values(&[("tea", "2"), ("coffee", "3")]));
        assert_eq!(loaded.updates, 0, "the one before it has all of them");
    });
}

#[test]
fn a_snapshot_of_updates_that_the_log_does_not_have_is_left_out() {
    with_node(1, async |_, client| {
        let producer = producer(&client).await;
        put(&producer, "tea", "1").await;
        put(&producer, "tea", "2").await;
        let snapshots = snapshots(&client).await;
        let good = snapshots.up_to(0, Start::Offset(Offset(1))).await.unwrap();
        let mut writer = snapshots.begin(0, good).await.unwrap();
        writer.put(Some(b"tea"), Some(b"1")).await.unwrap();
        let good = writer.finish().await.unwrap();
        // As of a cluster whose records were cut off: the update before the position was another one there.
        let other = SnapshotUpTo { position: Offset(2), term: good.manifest.up_to.term.next() };
        let mut writer = snapshots.begin(0, other).await.unwrap();
        writer.put(Some(b"tea"), Some(b"other")).await.unwrap();
        let other = writer.finish().await.unwrap();
        assert_eq!(snapshots.newest(0).await.unwrap(), Some(other));

        let loaded = Loaded::begin(&client).await;
        assert_eq!((loaded.values(), loaded.updates), (values(&[("tea", "2")]), 1));
    });
}

#[test]
fn a_snapshot_ahead_of_the_updates_waits_for_them_and_applies_none_twice() {
    with_node(1, async |_, client| {
        let producer = producer(&client).await;
        put(&producer, "tea", "1").await;
        let snapshots = snapshots(&client).await;
        let here = snapshots.up_to(0, Start::End).await.unwrap();
        // As in a cluster to which the snapshot was copied sooner than the two updates before its end.
        let mut writer = snapshots.begin(0, SnapshotUpTo { position: Offset(3), ..here }).await.unwrap();
        writer.put(Some(b"tea"), Some(b"3")).await.unwrap();
        writer.finish().await.unwrap();

        let mut loaded = Loaded::begin(&client).await;
        assert_eq!(loaded.values(), values(&[("tea", "3")]));
        for value in ["2", "3", "4"] {
            put(&producer, "tea", value).await;
        }
        loaded.catch_up().await;
        assert_eq!((loaded.values(), loaded.updates), (values(&[("tea", "4")]), 1));
    });
}

#[test]
fn a_consumer_that_is_so_far_behind_that_its_updates_were_removed_begins_anew_with_a_newer_snapshot() {
    with_node(1, async |[admin, data], client| {
        let producer = producer(&client).await;
        put(&producer, "gone", "1").await;
        // It has little in memory of what it has not taken.
        let (window_bytes, catch_up_window_bytes) = (64 << 10, 64 << 10);
        let reader = ReaderConfig { window_bytes, catch_up_window_bytes, ..ReaderConfig::default() };
        let config = ClientConfig { reader, ..ClientConfig::default() };
        let slow = Client::connect_with(Env::real(), &data.to_string(), config).await.unwrap();
        let mut behind = Loaded::begin(&slow).await;
        let long = "x".repeat(10_000);
        for number in 0..200 {
            put(&producer, "tea", &format!("{number}{long}")).await;
        }
        let snapshots = snapshots(&client).await;
        let up_to = snapshots.up_to(0, Start::Offset(Offset(199))).await.unwrap();
        let mut writer = snapshots.begin(0, up_to).await.unwrap();
        writer.put(Some(b"coffee"), Some(b"1")).await.unwrap();
        writer.finish().await.unwrap();
        truncate(admin, "prices", Offset(199));

        behind.catch_up().await;
        let last = format!("199{long}");
        assert_eq!(behind.values(), values(&[("coffee", "1"), ("tea", &last)]), "the rest is forgotten");
        assert!(behind.updates < 200, "{} updates", behind.updates);
    });
}

#[test]
fn without_a_snapshot_of_updates_that_were_removed_a_consumer_is_told_until_there_is_one_or_takes_what_is_left()
 {
    with_node(1, async |[admin, _], client| {
        let producer = producer(&client).await;
        for value in 0..10 {
            put(&producer, "tea", &value.to_string()).await;
        }
        truncate(admin, "prices", Offset(5));
        let left = StateConfig { takes_what_is_left: true };
        let mut state = client.state("prices", left).await.unwrap();
        while !state.has_reached(&[Offset(10)]) {
            state.next().await.unwrap();
        }

        let mut state = client.state("prices", StateConfig::default()).await.unwrap();
        let error = state.next().await.unwrap_err();
        assert!(matches!(error, Error::Incomplete { log_start: Offset(5), .. }), "{error}");
        let snapshots = snapshots(&client).await;
        let up_to = snapshots.up_to(0, Start::Offset(Offset(8))).await.unwrap();
        let mut writer = snapshots.begin(0, up_to).await.unwrap();
        writer.put(Some(b"tea"), Some(b"7")).await.unwrap();
        writer.finish().await.unwrap();
        let mut loaded = Loaded { state, keyed: KeyedState::new(1), updates: 0 };
        loaded.catch_up().await;
        assert_eq!((loaded.values(), loaded.updates), (values(&[("tea", "9")]), 2));
    });
}

#[test]
fn the_newest_snapshot_is_found_among_records_of_others_and_one_of_a_deleted_stream_is_none() {
    with_node(1, async |[admin, _], client| {
        let producer = producer(&client).await;
        put(&producer, "tea", "1").await;
        Loaded::begin(&client).await.publish(&client).await;
        let snapshots = snapshots(&client).await;
        let newest = snapshots.newest(0).await.unwrap();
        assert!(newest.is_some());
        // With a time, which parts don't have: whoever looks reads everything.
        let records = client.producer("prices.snapshots", ProducerSettings::default()).await.unwrap();
        let later = newest.unwrap().manifest.created_ms + 60_000;
        records.send_at(0, later, None, b"somebody's").unwrap().await.unwrap();
        assert_eq!(snapshots.newest(0).await.unwrap(), newest);
        // Its writer's time is behind that of the record.
        let up_to = newest.unwrap().manifest.up_to;
        let next = snapshots.begin(0, up_to).await.unwrap().finish().await.unwrap();
        records.send_at(0, -1, None, b"somebody's").unwrap().await.unwrap();
        assert_eq!(snapshots.newest(0).await.unwrap(), Some(next));

        let deleted = common::anybody(admin, "DELETE", "/v1/streams/prices", "");
        assert!(deleted.starts_with("HTTP/1.1 2"), "{deleted}");
        asked(admin, "/v1/streams", "{\"name\":\"prices\"}");
        let anew = self::snapshots(&client).await;
        assert_eq!(anew.newest(0).await.unwrap(), None);
        assert_eq!(Loaded::begin(&client).await.values(), values(&[]));
    });
}

/// Two clusters, `us` and `eu`; `us` has the streams, and is told which of them `eu` gets.
struct Clusters {
    runtime: Runtime,
    _dir: tempfile::TempDir,
    nodes: [Node; 2],
    admins: [SocketAddr; 2],
    clients: [Client; 2],
}

impl Clusters {
    fn start() -> Self {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let configs = ["us", "eu"].map(|name| {
            let mut config = config(&dir.path().join(name));
            name.clone_into(&mut config.cluster.name);
            config
        });
        let admins = configs.each_ref().map(|config| config.listen.admin);
        let [us, eu] = configs.each_ref().map(|config| config.listen.data);
        let nodes = configs.map(|config| runtime.block_on(Node::start(config)).unwrap());
        let clients = [us, eu].map(|data| runtime.block_on(Client::connect(&data.to_string())).unwrap());
        let added =
            common::anybody(admins[0], "PUT", "/v1/clusters/eu", &format!("{{\"address\":\"{eu}\"}}"));
        assert!(added.starts_with("HTTP/1.1 2"), "{added}");
        create(admins[0], 1);
        let clusters = Self { runtime, _dir: dir, nodes, admins, clients };
        for name in ["prices", "prices.snapshots"] {
            clusters.copies(name, true);
        }
        clusters
    }

    /// Whether `eu` gets what comes of a stream. If not, it knows.
    fn copies(&self, name: &str, is_copied: bool) {
        let to = if is_copied { "\"eu\"" } else { "" };
        let plan = format!("{{\"source\":\"us\",\"to\":[{to}]}}");
        let path = format!("/v1/streams/{name}/tree");
        let placed = common::anybody(self.admins[0], "PUT", &path, &plan);
        assert!(placed.starts_with("HTTP/1.1 2"), "{placed}");
        while !is_copied && !common::anybody(self.admins[1], "GET", &path, "").contains("\"hops\":[]") {}
    }

    fn stop(self) {
        let Self { runtime, nodes, clients, .. } = self;
        drop(clients);
        for node in nodes {
            runtime.block_on(node.stop()).unwrap();
        }
    }
}

/// The streams, once they have come to a cluster.
async fn come(client: &Client) {
    for name in ["prices", "prices.snapshots"] {
        while client.stream(name).await.is_err_and(|error| error.is_unknown_stream()) {
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn in_a_copy_that_has_a_snapshot_and_not_its_updates_yet_a_consumer_waits_for_them() {
    let clusters = Clusters::start();
    clusters.runtime.block_on(async {
        let [us, eu] = &clusters.clients;
        come(eu).await;
        let producer = producer(us).await;
        put(&producer, "tea", "1").await;
        let mut follower = Loaded::begin(eu).await;
        while follower.state.up_to(0).is_none_or(|up_to| up_to.position < Offset(1)) {
            follower.take_next().await;
        }
        clusters.copies("prices", false);
        put(&producer, "tea", "2").await;
        put(&producer, "coffee", "3").await;
        Loaded::begin(us).await.publish(us).await;
        let there = snapshots(eu).await;
        while there.newest(0).await.unwrap().is_none() {}

        let mut loaded = Loaded::begin(eu).await;
        assert_eq!(loaded.values(), values(&[("tea", "2"), ("coffee", "3")]), "sooner than the updates");
        put(&producer, "tea", "4").await;
        clusters.copies("prices", true);
        while loaded.updates == 0 {
            loaded.take_next().await;
        }
        assert_eq!((loaded.values(), loaded.updates), (values(&[("tea", "4"), ("coffee", "3")]), 1));
        while follower.updates < 4 {
            follower.take_next().await;
        }
        assert_eq!(follower.values(), loaded.values(), "who has read all updates");
    });
    clusters.stop();
}

#[test]
fn in_a_copy_whose_updates_were_removed_before_the_snapshot_came_a_consumer_is_told_until_it_comes() {
    let clusters = Clusters::start();
    clusters.runtime.block_on(async {
        let [us, eu] = &clusters.clients;
        come(eu).await;
        clusters.copies("prices.snapshots", false);
        let producer = producer(us).await;
        for value in ["1", "2", "3"] {
            put(&producer, "tea", value).await;
        }
        Loaded::begin(us).await.publish(us).await;
        put(&producer, "coffee", "4").await;
        truncate(clusters.admins[0], "prices", Offset(3));

        let mut state = eu.state("prices", StateConfig::default()).await.unwrap();
        let stream = eu.stream("prices").await.unwrap();
        let config = || ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
        let start = || eu.consumer_of(stream.clone(), config());
        while start().await.unwrap().offsets().next() != Some((0, Offset(3))) {}
        let error = state.next().await.unwrap_err();
        assert!(matches!(error, Error::Incomplete { .. }), "{error}");
        clusters.copies("prices.snapshots", true);
        let there = snapshots(eu).await;
        while there.newest(0).await.unwrap().is_none() {}
        let mut loaded = Loaded { state, keyed: KeyedState::new(1), updates: 0 };
        loaded.catch_up().await;
        assert_eq!(loaded.values(), Loaded::begin(us).await.values());
    });
    clusters.stop();
}
