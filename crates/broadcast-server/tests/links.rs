//! A link between two replicas that is cut while both reach the one that keeps the chain.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_broadcast::client::Publisher;
use tailwater_broadcast::replica::Config;
use tailwater_broadcast::{Content, Stream};
use tailwater_broadcast_server::{ConfigurationAt, Server, ServerConfig, fresh_id};
use tailwater_env::{Env, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use common::meta;

fn start(env: &Env, listener: TcpListener, advertised: Option<String>, at: ConfigurationAt) -> Server {
    let config = ServerConfig {
        replica: Config::new("a", fresh_id(env)),
        advertised,
        regions: BTreeMap::new(),
        configuration: at,
        silence_ms: 500,
        lost_ms: 60_000,
        connections_max: 100,
        quotas: None,
        authorizer: Arc::new(tailwater_access::Everybody),
    };
    Server::start(env, listener, config).unwrap()
}

/// Carries bytes one way, while nothing is cut.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut cut: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let is_open = cut.wait_for(|cut| !*cut).await.is_ok();
        if !is_open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Takes connections for the replica at `to`. Those of other replicas can be cut: their hello has the role 1.
async fn forward(env: Env, listener: TcpListener, to: String, cut: watch::Receiver<bool>) {
    let mut carried: Vec<Task> = Vec::new();
    while let Ok((mut near, _)) = listener.accept().await {
        let (to, mut cut) = (to.clone(), cut.clone());
        carried.push(env.spawn("carry", async move {
            let mut hello = [0; 8];
            let Ok(mut far) = TcpStream::connect(&to).await else { return };
            if near.read_exact(&mut hello).await.is_err() {
                return;
            }
            if hello[7] == 0 {
                cut = watch::channel(false).1;
            }
            let is_open = cut.wait_for(|cut| !*cut).await.is_ok();
            if !is_open || far.write_all(&hello).await.is_err() {
                return;
            }
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::join!(carry(near_in, far_out, cut.clone()), carry(far_in, near_out, cut));
        }));
    }
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
