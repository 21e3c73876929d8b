//! A link between two replicas that is cut while both reach the one that keeps the chain.

mod common;
#[path = "common/cut.rs"]
mod cut;

use bytes::Bytes;
use tailwater_broadcast::client::Publisher;
use tailwater_broadcast::{Content, Stream};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server};
use tailwater_env::Env;
use tokio::net::TcpListener;
use tokio::sync::watch;

use common::{config, meta};
use cut::forward;

fn start(env: &Env, listener: TcpListener, advertised: Option<String>, at: ConfigurationAt) -> Server {
    let config = ReplicaServerConfig { advertised, silence_ms: 500, ..config(env, "a", at) };
    Server::start(env, listener, config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_goes_on_without_the_replica_to_which_a_link_is_cut_and_it_joins_again_when_that_is_healed()
 {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = start(&env, bind().await, None, ConfigurationAt::Here(meta));
    let at = ConfigurationAt::There(first.address().to_string());
    let joined = async |count: usize| {
        first.handle().until(move |snapshot| snapshot.chain.members.len() == count).await.unwrap().chain
    };
    let (listener, forwarder) = (bind().await, bind().await);
    let (cut, is_cut) = watch::channel(false);
    let (to, advertised) = (listener.local_addr().unwrap(), forwarder.local_addr().unwrap());
    let _forwarding = env.spawn("forward", forward(env.clone(), forwarder, to.to_string(), is_cut));
    let _second = start(&env, listener, Some(advertised.to_string()), at.clone());
    joined(2).await;
    let _third = start(&env, bind().await, None, at);
    let third = joined(3).await.tail();
    let stream = Stream::parse("a/prices").unwrap();
    let publisher = Publisher::new(&env, vec![first.address().to_string()]);
    let content =
        |n: u64| Content { payload: Bytes::copy_from_slice(&n.to_le_bytes()), ..Content::default() };
    assert_eq!(publisher.publish(&stream, &content(1), None).await.unwrap().seq, 1);
    cut.send(true).unwrap();
    for n in 2..=10 {
        assert_eq!(publisher.publish(&stream, &content(n), None).await.unwrap().seq, n);
    }
    let chain = joined(2).await;
    assert_eq!(chain.place(third.unwrap()), None, "{chain:?}");
    cut.send(false).unwrap();
    joined(3).await;
    assert_eq!(publisher.publish(&stream, &content(11), None).await.unwrap().seq, 11);
}
