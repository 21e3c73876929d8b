//! A cache that is kept up to date by a broadcast stream, with a real proxy.

#[path = "../../../broadcast/broadcast-server/tests/common/mod.rs"]
mod common;
#[path = "../../../broadcast/broadcast-server/tests/common/cut.rs"]
mod cut;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tailwater_broadcast::message::{Advertised, Chain, FROM_NOW, Member, Message, Role};
use tailwater_broadcast::{Batch, Position, Writer, frame};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server};
use tailwater_client::broadcast::{
    CELL_AS_OF_KEY, Cached, Collect, Content, InvalidatingCache, InvalidatingConfig, Publisher,
    RegionOptions, Sharing, Stream, cell_event_key,
};
use tailwater_env::{Env, Task};
use tailwater_meta::Meta;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use cut::forward;

fn metadata(env: &Env, dir: &std::path::Path) -> Arc<dyn Meta> {
    tailwater_meta::testing::open(env, dir).1
}

async fn proxy(env: &Env, dir: &std::path::Path) -> Server {
    start(env, "eu", ConfigurationAt::Here(metadata(env, dir)), None, BTreeMap::new()).await
}

async fn start(
    env: &Env,
    region: &str,
    configuration: ConfigurationAt,
    advertised: Option<String>,
    regions: BTreeMap<String, Vec<String>>,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(env, listener, region, configuration, advertised, regions)
}

fn start_on(
    env: &Env,
    listener: TcpListener,
    region: &str,
    configuration: ConfigurationAt,
    advertised: Option<String>,
    regions: BTreeMap<String, Vec<String>>,
) -> Server {
    let config = ReplicaServerConfig { advertised, regions, ..common::config(env, region, configuration) };
    Server::start(env, listener, config).unwrap()
}

fn change(key: &str) -> Content {
    Content { key: Some(key.to_owned().into()), ..Content::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_kept_until_its_key_changes_and_fresh_while_the_proxy_says_so() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let proxy = proxy(&env, dir.path()).await;
    let addresses = vec![proxy.address().to_string()];
    let stream = Stream::parse("eu/invalidations").unwrap();
    let publisher = Publisher::new(&env, addresses.clone());
    let old = publisher.publish(&stream, &change("old"), Some(&Collect::SameKey)).await.unwrap();
    let config = InvalidatingConfig { fresh_for: Duration::from_secs(4), ..InvalidatingConfig::default() };
    let cache: InvalidatingCache<u32> = InvalidatingCache::new(&env, addresses, stream.clone(), config);
    cache.fresh().await;
    // It has nothing from before it began, and so nothing to wait for.
    cache.reached(old.seq).await;
    let publish = async |content: Content| publisher.publish(&stream, &content, None).await.unwrap().seq;
    let load = async |key: &'static str, value| {
        cache.get_or_load(key.as_bytes(), || async move { Ok::<u32, ()>(value) }).await.unwrap()
    };
    assert_eq!(load("tea", 1).await, 1);
    assert_eq!(load("coffee", 2).await, 2);
    until_fresh(&cache, 1).await;

    cache.reached(publish(change("tea")).await).await;
    assert_eq!(cache.get(b"tea"), None);
    assert_eq!(cache.get(b"coffee").map(Cached::into_value), Some(2));

    // A load that began before the change must not leave the old value.
    let loading = cache.load(b"coffee");
    cache.reached(publish(change("coffee")).await).await;
    assert_eq!(cache.get(b"coffee"), None);
    assert!(!loading.store(2));
    assert_eq!(cache.get(b"coffee"), None);
    assert_eq!(load("coffee", 3).await, 3);

    // An event without a key is about all of them.
    cache.reached(publish(Content::default()).await).await;
    assert!(cache.is_empty());

    // Without the proxy values stay, and are known to be old.
    assert_eq!(load("tea", 4).await, 4);
    drop(proxy);
    cache.stale().await;
    assert_eq!(cache.get(b"tea"), Some(Cached::MaybeStale(4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_value_used_longest_ago_makes_room() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let proxy = proxy(&env, dir.path()).await;
    let stream = Stream::parse("eu/invalidations").unwrap();
    let config = InvalidatingConfig { entries_max: 2, ..InvalidatingConfig::default() };
    let cache = InvalidatingCache::new(&env, vec![proxy.address().to_string()], stream.clone(), config);
    let publisher = Publisher::new(&env, vec![proxy.address().to_string()]);
    publisher.publish(&stream, &change("any"), None).await.unwrap();
    cache.fresh().await;
    for (key, value) in [("a", 1), ("b", 2)] {
        assert!(cache.load(key.as_bytes()).store(value));
    }
    assert!(cache.get(b"a").is_some());
    assert!(cache.load(b"c").store(3));
    assert_eq!(cache.get(b"b"), None);
    assert_eq!((cache.len(), cache.get(b"a").map(Cached::into_value)), (2, Some(1)));
}

/// Waits until a cache holds this value of "tea" for fresh: whoever stands still between it and a look finds it stale.
async fn until_fresh(cache: &InvalidatingCache<u32>, value: u32) {
    loop {
        cache.fresh().await;
        match cache.get(b"tea") {
            Some(Cached::Fresh(held)) => return assert_eq!(held, value),
            other => assert_eq!(other, Some(Cached::MaybeStale(value))),
        }
    }
}

/// A cache with a value that it holds for fresh.
async fn fresh_cache(env: &Env, address: String, stream: &Stream) -> InvalidatingCache<u32> {
    let config = InvalidatingConfig { fresh_for: Duration::from_secs(4), ..InvalidatingConfig::default() };
    fresh_cache_of(env, address, stream, config).await
}

async fn fresh_cache_of(
    env: &Env,
    address: String,
    stream: &Stream,
    config: InvalidatingConfig,
) -> InvalidatingCache<u32> {
    let cache = InvalidatingCache::new(env, vec![address], stream.clone(), config);
    cache.fresh().await;
    assert!(cache.load(b"tea").store(1));
    cache
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_stale_while_its_region_is_cut_off_from_the_streams_own_region() {
    let env = Env::real();
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = proxy(&env, there.path()).await;
    let forwarder = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let regions = BTreeMap::from([("eu".to_owned(), vec![forwarder.local_addr().unwrap().to_string()])]);
    let (cut, is_cut) = watch::channel(false);
    let _forwarding =
        env.spawn("forward", forward(env.clone(), forwarder, own.address().to_string(), is_cut));
    let configuration = ConfigurationAt::Here(metadata(&env, here.path()));
    let far = start(&env, "us", configuration, None, regions).await;
    let stream = Stream::parse("eu/invalidations").unwrap();
    let publisher = Publisher::new(&env, vec![own.address().to_string()]);
    publisher.publish(&stream, &change("coffee"), None).await.unwrap();
    let cache = fresh_cache(&env, far.address().to_string(), &stream).await;
    cut.send(true).unwrap();
    // It is told all the time how far the proxy is that it listens to.
    cache.stale().await;
    let changed = publisher.publish(&stream, &change("tea"), None).await.unwrap();
    assert_eq!(cache.get(b"tea"), Some(Cached::MaybeStale(1)));
    cut.send(false).unwrap();
    cache.reached(changed.seq).await;
    assert_eq!(cache.get(b"tea"), None);
    cache.fresh().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_stale_where_the_tail_was_removed_from_its_chain_and_does_not_know() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (listener, forwarder) = (bind().await, bind().await);
    let (to, advertised) = (listener.local_addr().unwrap(), forwarder.local_addr().unwrap().to_string());
    let (cut, is_cut) = watch::channel(false);
    let _forwarding = env.spawn("forward", forward(env.clone(), forwarder, to.to_string(), is_cut));
    let configuration = ConfigurationAt::Here(metadata(&env, dir.path()));
    let first = start_on(&env, listener, "eu", configuration, Some(advertised.clone()), BTreeMap::new());
    let there = ConfigurationAt::There(advertised.clone());
    let tail = start(&env, "eu", there, None, BTreeMap::new()).await;
    tail.handle().until(|snapshot| snapshot.is_tail && snapshot.chain.members.len() == 2).await.unwrap();
    let stream = Stream::parse("eu/invalidations").unwrap();
    let publisher = Publisher::new(&env, vec![advertised]);
    publisher.publish(&stream, &change("coffee"), None).await.unwrap();
    let cache = fresh_cache(&env, tail.address().to_string(), &stream).await;
    cut.send(true).unwrap();
    first.handle().until(|snapshot| snapshot.chain.members.len() == 1).await.unwrap();
    publisher.publish(&stream, &change("tea"), None).await.unwrap();
    cache.stale().await;
    assert_eq!(cache.get(b"tea"), Some(Cached::MaybeStale(1)));
    assert!(tail.handle().snapshot().await.unwrap().is_tail, "as far as it knows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_that_share_hear_of_every_change_and_are_stale_while_the_proxy_restarts() {
    const CACHES: usize = 12;
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let meta = metadata(&env, dir.path());
    let start =
        |listener| start_on(&env, listener, "eu", ConfigurationAt::Here(meta.clone()), None, BTreeMap::new());
    let mut proxy = start(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = proxy.address();
    let stream = Stream::parse("eu/invalidations").unwrap();
    let publisher = Publisher::new(&env, vec![address.to_string()]);
    let options = RegionOptions { gossip_ms: 100, ..RegionOptions::default() };
    let sharing = Some(Sharing { options, ..Sharing::default() });
    for collects_by_key in [false, true] {
        let collect = collects_by_key.then_some(Collect::SameKey);
        let publish =
            async |key: &str| publisher.publish(&stream, &change(key), collect.as_ref()).await.unwrap().seq;
        publish("coffee").await;
        let caches: Vec<InvalidatingCache<u32>> = (0..CACHES)
            .map(|_| {
                let (sharing, config) = (sharing.clone(), InvalidatingConfig::default());
                let config = InvalidatingConfig { collects_by_key, sharing, ..config };
                InvalidatingCache::new(&env, vec![address.to_string()], stream.clone(), config)
            })
            .collect();
        for cache in &caches {
            cache.fresh().await;
            assert!(cache.load(b"tea").store(1));
        }
        proxy.handle().until(|snapshot| snapshot.region.members == CACHES).await.unwrap();
        // One is changed often enough that much of it is collected before it is heard.
        let mut last = 0;
        for round in 0..300 {
            last = publish(if round % 100 == 50 { "tea" } else { "coffee" }).await;
        }
        for cache in &caches {
            cache.reached(last).await;
            assert_eq!(cache.get(b"tea"), None);
            cache.fresh().await;
            assert!(cache.load(b"tea").store(2));
        }
        drop(proxy);
        for cache in &caches {
            cache.stale().await;
            assert_eq!(cache.get(b"tea"), Some(Cached::MaybeStale(2)));
        }
        // It kept its events in memory: the region begins anew.
        proxy = start(TcpListener::bind(address).await.unwrap());
        publish("tea").await;
        for cache in &caches {
            cache.fresh().await;
            assert_eq!(cache.get(b"tea"), None);
        }
        proxy.handle().until(|snapshot| snapshot.region.members == CACHES).await.unwrap();
        drop(caches);
        proxy.handle().until(|snapshot| snapshot.region.members == 0).await.unwrap();
    }
}

/// What a tail says.
#[derive(Clone, Copy)]
struct Says {
    lineage: u64,
    /// Events of the stream, each with a key that no cache holds.
    count: u64,
    /// Up to this number they were removed, if they were.
    removed: u64,
    /// Of asks it answers the newest one, or only the first one of a connection.
    answers_newest: bool,
}

const SAYS: Says = Says { lineage: 1, count: 1, removed: 0, answers_newest: true };

/// A tail, of one connection at a time, which it ends when the lineage is another one, or events were removed.
async fn tail(listener: TcpListener, stream: Stream, mut says: watch::Receiver<Says>) {
    while let Ok((connection, _)) = listener.accept().await {
        let address = listener.local_addr().unwrap().to_string();
        let of = |says: &Says| (says.lineage, says.removed);
        let (served, now) = (says.clone(), of(&says.borrow()));
        tokio::select! {
            _ = serve(connection, address, &stream, served) => {}
            _ = says.wait_for(|says| of(says) != now) => {}
        }
    }
}

async fn serve(
    connection: TcpStream,
    address: String,
    stream: &Stream,
    says: watch::Receiver<Says>,
) -> Option<()> {
    let (mut reader, mut writer) = frame::split(connection).ok()?;
    let mut hello = reader.next().await.ok()??;
    if let Message::Hello { role, .. } = &mut hello {
        *role = Role::Replica(1);
    }
    writer.send(&hello).await.ok()?;
    let (members, lineage) = (vec![Member { id: 1, address }], says.borrow().lineage);
    let chain = Chain { epoch: lineage, lineage, region: "eu".to_owned(), members, joining: Vec::new() };
    writer.send(&Message::Chain(chain)).await.ok()?;
    let mut first = None;
    loop {
        let message = reader.next().await.ok()??;
        let Says { count, answers_newest, removed, .. } = *says.borrow();
        match message {
            Message::Listen { positions, .. } => {
                let position = positions.iter().map(|(_, position)| *position).find(|at| at.seq != FROM_NOW);
                let after = position.map(|at| if at.lineage == lineage { at.seq } else { 0 });
                let position = Position { lineage, seq: after.unwrap_or(count) };
                writer
                    .send(&Message::Listening { positions: vec![(stream.clone(), position)] })
                    .await
                    .ok()?;
                if let Some(after) = after.filter(|after| *after < count) {
                    let first = after.max(removed);
                    let mut events = Writer::new(first);
                    (first..count).for_each(|_| events.publish(&change("coffee"), None).unwrap());
                    let batch = Batch::joined(&[Writer::new(after).finish(first), events.finish(0)]).unwrap();
                    let removed = if removed > after { removed } else { 0 };
                    let (stream, batch) = (stream.clone(), Batch { removed, ..batch });
                    let events = Message::Events { stream, lineage, batch };
                    writer.send(&events).await.ok()?;
                }
            }
            Message::Ask { at } => {
                let first = *first.get_or_insert(at);
                let answers = Some(if answers_newest { at } else { first });
                let count = Position { lineage, seq: count };
                let counts = vec![Advertised { stream: stream.clone(), count, age_ms: 0 }];
                writer.send(&Message::Advertise { epoch: lineage, answers, counts }).await.ok()?;
            }
            _ => {}
        }
    }
}

/// A cache that is fresh, what its tail says from now on, and the tail.
async fn told_cache(collects_by_key: bool) -> (InvalidatingCache<u32>, watch::Sender<Says>, Task) {
    let env = Env::real();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stream = Stream::parse("eu/invalidations").unwrap();
    let (say, says) = watch::channel(SAYS);
    let tail = env.spawn("tail", tail(listener, stream.clone(), says));
    let fresh_for = Duration::from_secs(4);
    let config = InvalidatingConfig { fresh_for, collects_by_key, ..InvalidatingConfig::default() };
    let cache = fresh_cache_of(&env, address, &stream, config).await;
    (cache, say, tail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_long_ago_and_is_read_now_makes_no_value_fresh() {
    let (cache, say, _tail) = told_cache(false).await;
    say.send(Says { answers_newest: false, ..SAYS }).unwrap();
    cache.stale().await;
    assert_eq!(cache.get(b"tea"), Some(Cached::MaybeStale(1)));
    say.send(SAYS).unwrap();
    until_fresh(&cache, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_is_kept_when_the_region_began_anew_and_has_passed_what_the_cache_had_heard() {
    let (cache, say, _tail) = told_cache(false).await;
    let loading = cache.load(b"coffee");
    // The first of the new events may be about the key: that is what nobody sends the cache any more.
    say.send(Says { lineage: 2, count: 5, ..SAYS }).unwrap();
    cache.reached(5).await;
    assert_eq!(cache.get(b"tea"), None);
    assert!(!loading.store(2));
    cache.fresh().await;
    assert!(cache.load(b"tea").store(3));
    until_fresh(&cache, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_is_kept_when_changes_were_removed_before_the_cache_heard_of_them() {
    let (cache, say, _tail) = told_cache(true).await;
    let loading = cache.load(b"coffee");
    say.send(Says { count: 5, removed: 4, ..SAYS }).unwrap();
    cache.reached(5).await;
    // What is left is about another key, and all collect by key: a tombstone by itself forgets nothing.
    assert_eq!(cache.get(b"tea"), None);
    assert!(!loading.store(2));
    cache.fresh().await;
    assert!(cache.load(b"tea").store(3));
    until_fresh(&cache, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_a_cell_are_fresh_only_as_far_as_the_bridge_says_that_it_has_told_all() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let proxy = proxy(&env, dir.path()).await;
    let addresses = vec![proxy.address().to_string()];
    let stream = Stream::parse("eu/tiles").unwrap();
    let publisher = Publisher::new(&env, addresses.clone());
    let (of_cell, fresh_for) = (true, Duration::from_secs(1_800));
    let config = InvalidatingConfig { of_cell, fresh_for, ..InvalidatingConfig::default() };
    let cache: InvalidatingCache<u32> = InvalidatingCache::new(&env, addresses, stream.clone(), config);
    let publish = async |key: Option<&[u8]>, payload: String, collect: &Collect| {
        let key = key.map(bytes::Bytes::copy_from_slice);
        let content = Content { key, payload: payload.into(), ..Content::default() };
        let seq = publisher.publish(&stream, &content, Some(collect)).await.unwrap().seq;
        cache.reached(seq).await;
    };
    let as_of = async |ago_s: i64| {
        let told = (env.wall_ms() - ago_s * 1_000).to_string();
        publish(Some(CELL_AS_OF_KEY.as_bytes()), told, &Collect::SameKey).await;
    };
    let (tea, coffee) = (cell_event_key(b"tea"), cell_event_key(b"coffee"));
    as_of(3_600).await;
    for key in [&tea, &coffee] {
        assert!(cache.load(key).store(1));
        assert_eq!(cache.get(key), Some(Cached::MaybeStale(1)), "the bridge is an hour behind");
    }
    as_of(0).await;
    cache.fresh().await;
    assert_eq!(cache.get(&tea), Some(Cached::Fresh(1)), "and a bridge's word forgets nothing");
    publish(Some(&tea), String::new(), &Collect::SameKey).await;
    assert_eq!((cache.get(&tea), cache.get(&coffee)), (None, Some(Cached::Fresh(1))));
    // What it said before, and what says nothing, take nothing back.
    as_of(7_200).await;
    publish(Some(CELL_AS_OF_KEY.as_bytes()), "yesterday".to_owned(), &Collect::SameKey).await;
    assert_eq!(cache.get(&coffee), Some(Cached::Fresh(1)));
    publish(None, String::new(), &Collect::KeepLast(0)).await;
    assert!(cache.is_empty(), "any key may have changed");
}
