//! A cache that is kept up to date by a broadcast stream, with a real proxy.

use std::sync::Arc;
use std::time::Duration;

use tailwater_broadcast::replica::Config;
use tailwater_broadcast_server::{ConfigurationAt, Server, ServerConfig, fresh_id};
use tailwater_client::broadcast::{
    Cached, Collect, Content, InvalidatingCache, InvalidatingConfig, Publisher, Stream,
};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_meta::{Meta, MetaConfig, Recovery};
use tokio::net::TcpListener;

async fn proxy(env: &Env, dir: &std::path::Path) -> Server {
    let mut recovery = Recovery::begin(env, &dir.join("meta")).unwrap();
    let mut replay = |_, position, bytes: &[u8]| recovery.replay(position, bytes);
    let journal = Journal::open(env, &dir.join("journal"), JournalConfig::default(), &mut replay).unwrap();
    let meta: Arc<dyn Meta> = Arc::new(recovery.finish(env, journal, MetaConfig::default()));
    let config = ServerConfig {
        replica: Config::new("eu", fresh_id(env)),
        advertised: None,
        regions: std::collections::BTreeMap::new(),
        configuration: ConfigurationAt::Here(meta),
        silence_ms: 1_000,
        lost_ms: 60_000,
        connections_max: 100,
        quotas: None,
        authorizer: Arc::new(tailwater_access::Everybody),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
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
    cache.fresh().await;
    assert_eq!(cache.get(b"tea"), Some(Cached::Fresh(1)));

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
