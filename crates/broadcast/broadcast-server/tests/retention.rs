//! Listeners that come when retention has removed what they want, on real connections.

mod common;

use tailwater_broadcast::client::{ListenError, Listener, Publisher, Received, Sharing};
use tailwater_broadcast::replica::Config;
use tailwater_broadcast::{Batch, Content, Positions, Stream};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server, Snapshot, fresh_id};
use tailwater_env::Env;
use tokio::net::TcpListener;

use common::{config, meta};

fn stream() -> Stream {
    Stream::parse("a/prices").unwrap()
}

/// A proxy in which all but the last of five events is removed.
async fn proxy(env: &Env, configuration: ConfigurationAt) -> Server {
    let replica = Config { retention_ms: 1, ..Config::new("a", fresh_id(env)) };
    let config = ReplicaServerConfig { replica, ..config(env, "a", configuration) };
    let server = Server::start(env, TcpListener::bind("127.0.0.1:0").await.unwrap(), config).unwrap();
    let publisher = Publisher::new(env, vec![server.address().to_string()]);
    for _ in 0..5 {
        publisher.publish(&stream(), &Content::default(), None).await.unwrap();
    }
    let is_removed = |snapshot: &Snapshot| snapshot.counters.removed == 4;
    server.handle().until(is_removed).await.unwrap();
    server
}

/// What a listener is told of what was removed, and the batch that it is sent then.
async fn told(listener: &mut Listener) -> (Option<u64>, Batch) {
    let mut told = None;
    loop {
        match listener.next().await.unwrap() {
            Received::Removed { stream: of, last } => {
                assert_eq!((of, told.replace(last)), (stream(), None));
            }
            Received::Events(_, batch) => return (told, batch),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_is_told_before_what_is_left_if_it_has_not_got_all_that_was_removed() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = proxy(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let mut listener = Listener::new(&env, addresses.clone(), Positions::of([stream()]));
    let (removed, batch) = told(&mut listener).await;
    assert_eq!((removed, batch.after, batch.last), (Some(4), 0, 4));
    let mut resumed = listener.positions().clone();
    let (removed, batch) = told(&mut listener).await;
    assert_eq!((removed, batch.after, batch.last), (None, 4, 5));
    for (after, wanted) in [(4, None), (3, Some(4))] {
        resumed.streams.get_mut(&stream()).unwrap().seq = after;
        let token = Positions::parse(&resumed.token()).unwrap();
        let (removed, batch) = told(&mut Listener::new(&env, addresses.clone(), token)).await;
        assert_eq!((removed, batch.after), (wanted, after));
    }
    // Who wants what comes from now on wants nothing of it.
    let mut now = Listener::new(&env, addresses.clone(), Positions::now([stream()]));
    while !matches!(now.next().await.unwrap(), Received::Began(_)) {}
    let publisher = Publisher::new(&env, addresses);
    publisher.publish(&stream(), &Content::default(), None).await.unwrap();
    let (removed, batch) = told(&mut now).await;
    assert_eq!((removed, batch.after, batch.last), (None, 5, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_events_one_by_one_is_told_once_and_goes_on() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = proxy(&env, ConfigurationAt::Here(meta)).await;
    let mut listener = Listener::new(&env, vec![server.address().to_string()], Positions::of([stream()]));
    let told = listener.get_event().await.map(|event| event.seq()).unwrap_err();
    assert_eq!(told, ListenError::Removed { stream: stream(), last: 4 });
    let event = listener.get_event().await.unwrap();
    assert_eq!((event.is_tombstone(), event.after(), event.seq()), (true, 0, 4));
    assert_eq!(listener.get_event().await.unwrap().seq(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_that_share_are_told_whoever_sends_them_what_is_left() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = proxy(&env, ConfigurationAt::Here(meta)).await;
    let addresses = vec![server.address().to_string()];
    let mut listeners = Vec::new();
    for _ in 0..4 {
        let positions = Positions::of([stream()]);
        let mut listener =
            Listener::sharing(&env, addresses.clone(), positions, Sharing::default()).await.unwrap();
        let (removed, batch) = told(&mut listener).await;
        assert_eq!((removed, batch.after), (Some(4), 0));
        listeners.push(listener);
    }
}
