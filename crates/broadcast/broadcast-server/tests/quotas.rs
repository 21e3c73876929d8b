//! Publishers over real connections, slowed to their quotas.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::config;
use tailwater_broadcast::client::{Listener, Publisher};
use tailwater_broadcast::quota::Quota;
use tailwater_broadcast::{Content, Positions, Stream};
use tailwater_broadcast_server::{ConfigurationAt, Quotas, ReplicaServerConfig, Server};
use tailwater_env::Env;
use tokio::net::TcpListener;

async fn proxy(env: &Env, dir: &std::path::Path, quotas: &Arc<Quotas>) -> Server {
    let (_, meta) = tailwater_meta::testing::open(env, dir);
    let config = config(env, "eu", ConfigurationAt::Here(meta));
    let config = ReplicaServerConfig { quotas: Some(Arc::clone(quotas)), ..config };
    Server::start(env, TcpListener::bind("127.0.0.1:0").await.unwrap(), config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_publishes_too_much_is_slowed_and_keeps_all_in_order_and_a_gateway_is_not() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    // However long this test stands still, what is saved up meanwhile is one event.
    let quota = Quota { bytes_per_s: 0, events_per_s: 10, burst_s: 0.1 };
    let quotas = Quotas::new(&env, quota, Quota::NONE);
    let proxy = proxy(&env, dir.path(), &quotas).await;
    let addresses = vec![proxy.address().to_string()];
    let stream = Stream::parse("eu/s").unwrap();
    let payload =
        |n: u64| Content { payload: Bytes::copy_from_slice(&n.to_le_bytes()), ..Content::default() };

    let gateway = Publisher::gateway(&env, addresses.clone());
    for n in 0..50 {
        gateway.publish(&stream, &payload(n), None).await.unwrap();
    }
    assert_eq!(quotas.delayed(), 0);

    let publisher = Publisher::new(&env, addresses.clone());
    let began = env.now();
    for n in 50..75 {
        publisher.publish(&stream, &payload(n), None).await.unwrap();
    }
    // All but the burst, and one that was larger than what was left of it, at the rate.
    assert!(env.now().since(began).as_millis() >= 2_200, "25 events at 10 a second");
    assert!(quotas.delayed() > 0, "all but those that took as long by themselves");
    let mut listener = Listener::new(&env, addresses, Positions::start());
    for n in 0..75 {
        let event = listener.get_event().await.unwrap();
        assert_eq!(event.payload(), u64::to_le_bytes(n));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_publishers_of_a_region_share_its_quota() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    let region = Quota { bytes_per_s: 10_000, events_per_s: 0, burst_s: 0.1 };
    let quotas = Quotas::new(&env, Quota::NONE, region);
    let proxy = proxy(&env, dir.path(), &quotas).await;
    let addresses = vec![proxy.address().to_string()];
    let stream = Stream::parse("eu/s").unwrap();
    let content = Content { payload: Bytes::from_static(&[0; 1_000]), ..Content::default() };
    let publishers: Vec<_> = (0..3).map(|_| Publisher::gateway(&env, addresses.clone())).collect();
    let began = env.now();
    let all =
        publishers.iter().flat_map(|publisher| (0..3).map(|_| publisher.publish(&stream, &content, None)));
    for published in all.collect::<Vec<_>>() {
        published.await.unwrap();
    }
    assert!(env.now().since(began).as_millis() >= 400, "9 kB at 10 kB a second");
}
