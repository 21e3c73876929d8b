//! Replicas, publishers and listeners on real connections.

mod common;

use bytes::Bytes;
use tailwater_broadcast::client::{Acknowledged, Listener, PublishError, Publisher, Received};
use tailwater_broadcast::message::Reason;
use tailwater_broadcast::{Batch, Collect, Content, Positions, Stream, Writer};
use tailwater_broadcast_server::{ConfigurationAt, ReplicaServerConfig, Server};
use tailwater_env::Env;
use tokio::net::TcpListener;

use common::{config, meta};

async fn start(env: &Env, region: &str, at: ConfigurationAt, regions: &[(&str, Vec<String>)]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(env, listener, region, at, regions)
}

fn start_on(
    env: &Env,
    listener: TcpListener,
    region: &str,
    at: ConfigurationAt,
    regions: &[(&str, Vec<String>)],
) -> Server {
    let regions = regions.iter().map(|(name, all)| ((*name).to_owned(), all.clone())).collect();
    let config = ReplicaServerConfig { regions, silence_ms: 2_000, ..config(env, region, at) };
    Server::start(env, listener, config).unwrap()
}

fn content(n: u64) -> Content {
    Content { payload: Bytes::copy_from_slice(&n.to_le_bytes()), ..Content::default() }
}

async fn numbers(listener: &mut Listener, count: u64) -> Vec<u64> {
    let mut all = Vec::new();
    while (all.len() as u64) < count {
        let event = listener.get_event().await.unwrap();
        all.push(u64::from_le_bytes(event.payload().try_into().expect("nothing is collected")));
        assert_eq!(event.seq(), all.len() as u64);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_in_one_region_is_heard_in_order_in_two() {
    let env = Env::real();
    let ((meta_a, _dir_a), (meta_b, _dir_b)) = (meta(&env).await, meta(&env).await);
    let a = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = a.local_addr().unwrap().to_string();
    let b = start(&env, "b", ConfigurationAt::Here(meta_b), &[("a", vec![address.clone()])]).await;
    let a = start_on(&env, a, "a", ConfigurationAt::Here(meta_a), &[("b", vec![b.address().to_string()])]);
    let stream = Stream::parse("a/prices").unwrap();
    let publisher = Publisher::new(&env, vec![a.address().to_string()]);
    let mut far = Listener::new(&env, vec![b.address().to_string()], Positions::start());
    let mut all = Vec::new();
    for n in 0..1000 {
        all.push(publisher.publish(&stream, &content(n), None));
    }
    let all = futures::future::try_join_all(all).await.unwrap();
    // One that was sent again because the answer was late is answered with a later place at most.
    let fits = |place: u64, told: &Acknowledged| told.seq == place || told.repeated && told.seq > place;
    assert!((1..).zip(&all).all(|(place, told)| fits(place, told)), "{all:?}");
    let mut near = Listener::new(&env, vec![a.address().to_string()], Positions::start());
    assert_eq!(numbers(&mut near, 1000).await, (0..1000).collect::<Vec<_>>());
    assert_eq!(numbers(&mut far, 1000).await, (0..1000).collect::<Vec<_>>());
    assert_eq!(far.positions().streams[&stream].seq, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_event_is_its_publishers_alone_and_nobody_says_what_time_it_is() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, "a", ConfigurationAt::Here(meta), &[]).await;
    let addresses = vec![server.address().to_string()];
    let stream = Stream::parse("a/x").unwrap();
    let publisher = Publisher::new(&env, addresses.clone());
    // Those of the middle are gathered while the first is on its way.
    let bad = Collect::Matching("no predicate".into());
    let first = publisher.publish(&stream, &content(0), None);
    let good: Vec<_> = (1..=20)
        .map(|n| {
            let refused = publisher.publish(&stream, &content(100 + n), Some(&bad));
            (publisher.publish(&stream, &content(n), None), refused)
        })
        .collect();
    assert_eq!(first.await.unwrap().seq, 1);
    for (n, (good, refused)) in good.into_iter().enumerate() {
        let (place, told) = (n as u64 + 2, good.await.unwrap());
        assert!(told.seq == place || told.repeated && told.seq > place, "{told:?} in {place}");
        assert!(matches!(refused.await, Err(PublishError::Refused { .. })));
    }
    // One event says that it is of the year 2100.
    let mut late = Writer::new(1);
    late.publish(&content(22), None).unwrap();
    let mut late = late.finish(0);
    late.state.time_ms = 4_102_444_800_000;
    let mut early = Writer::new(0);
    early.publish(&content(21), None).unwrap();
    let both = Batch::joined(&[early.finish(0), late]).unwrap();
    assert_eq!(publisher.publish_batch(&stream, both).await.unwrap().seq, 23);
    let mut listener = Listener::new(&env, addresses, Positions::of([stream]));
    let now_ms = env.wall_ms() as u64;
    for n in 0..=22 {
        let event = listener.get_event().await.unwrap().to_event();
        assert_eq!(event.content(), Some(&content(n)));
        assert!(event.time_ms <= now_ms, "{}", event.time_ms);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_of_another_region_s_stream_is_told_so_and_goes_on_with_its_own_region_s() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let server = start(&env, "a", ConfigurationAt::Here(meta), &[]).await;
    let publisher = Publisher::new(&env, vec![server.address().to_string()]);
    let [own, far] = ["a/x", "b/x"].map(|name| Stream::parse(name).unwrap());
    let (first, refused) =
        (publisher.publish(&own, &content(0), None), publisher.publish(&far, &content(1), None));
    let second = publisher.publish(&own, &content(2), None);
    let Err(PublishError::Refused { stream, reason, text }) = refused.await else {
        panic!("it is published")
    };
    assert_eq!((stream, reason), (far, Reason::Invalid));
    assert!(text.contains("region b") && text.contains("region a"), "{text}");
    assert!(first.await.unwrap().seq <= second.await.unwrap().seq);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_middle_and_tail_end_in_turn_and_nothing_is_lost_or_repeated() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    // The configuration service is in a replica that stays.
    let first = start(&env, "a", ConfigurationAt::Here(meta), &[]).await;
    let at = ConfigurationAt::There(first.address().to_string());
    let mut replicas = vec![first];
    let mut addresses = vec![replicas[0].address().to_string()];
    let chain_of = async |server: &Server, wanted: usize| {
        server.handle().until(move |snapshot| snapshot.chain.members.len() == wanted).await.unwrap().chain
    };
    for n in 2..=4 {
        let replica = start(&env, "a", at.clone(), &[]).await;
        addresses.push(replica.address().to_string());
        replicas.push(replica);
        chain_of(&replicas[0], n).await;
    }
    let stream = Stream::parse("a/prices").unwrap();
    let publisher = Publisher::new(&env, addresses.clone());
    let mut listener = Listener::new(&env, addresses.clone(), Positions::start());
    let mut published = 0;
    // Second, last, then a new last one: a middle, a tail, and one that has just joined.
    for round in 0..3 {
        for _ in 0..200 {
            published += 1;
            // Also if it was published by an earlier try: there is nothing behind it.
            assert_eq!(
                publisher.publish(&stream, &content(published - 1), None).await.unwrap().seq,
                published
            );
        }
        let gone = if round == 0 { 1 } else { replicas.len() - 1 };
        drop(replicas.remove(gone));
        for _ in 0..200 {
            published += 1;
            // Also if it was published by an earlier try: there is nothing behind it.
            assert_eq!(
                publisher.publish(&stream, &content(published - 1), None).await.unwrap().seq,
                published
            );
        }
        let members = chain_of(&replicas[0], replicas.len()).await;
        assert_eq!(members.members.len(), replicas.len());
        let replica = start(&env, "a", at.clone(), &[]).await;
        replicas.push(replica);
        chain_of(&replicas[0], replicas.len()).await;
    }
    assert_eq!(numbers(&mut listener, published).await, (0..published).collect::<Vec<_>>());
    let mut again = Listener::new(&env, addresses[..1].to_vec(), Positions::start());
    assert_eq!(numbers(&mut again, published).await, (0..published).collect::<Vec<_>>());
    // And a position is enough to go on from.
    let token = listener.positions().token();
    publisher.publish(&stream, &content(published), None).await.unwrap();
    let mut resumed = Listener::new(&env, addresses, Positions::parse(&token).unwrap());
    let batch = loop {
        if let Received::Events(_, batch) = resumed.next().await.unwrap() {
            break batch;
        }
    };
    assert_eq!((batch.after, batch.last), (published, published + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_ends_for_good_while_it_is_the_head_if_one_that_is_none_decides_the_chain() {
    let env = Env::real();
    let (meta, _dir) = meta(&env).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let decides = ReplicaServerConfig { joins: false, ..config(&env, "a", ConfigurationAt::Here(meta)) };
    let decides = Server::start(&env, listener, decides).unwrap();
    let at = vec![decides.address().to_string()];
    let there = ConfigurationAt::There(at[0].clone());
    let chain_of = async |count: usize| {
        decides.handle().until(move |snapshot| snapshot.chain.members.len() == count).await.unwrap().chain
    };
    let mut replicas = Vec::new();
    for count in 1..=3 {
        replicas.push(start(&env, "a", there.clone(), &[]).await);
        chain_of(count).await;
    }
    let stream = Stream::parse("a/prices").unwrap();
    let publisher = Publisher::new(&env, at.clone());
    for n in 0..3 {
        publisher.publish(&stream, &content(n), None).await.unwrap();
        let chain = chain_of(3).await;
        let is_head = |server: &Server| server.address().to_string() == chain.members[0].address;
        drop(replicas.remove(replicas.iter().position(is_head).unwrap()));
        chain_of(2).await;
        replicas.push(start(&env, "a", there.clone(), &[]).await);
        chain_of(3).await;
    }
    publisher.publish(&stream, &content(3), None).await.unwrap();
    let mut listener = Listener::new(&env, at, Positions::start());
    assert_eq!(numbers(&mut listener, 4).await, [0, 1, 2, 3]);
    let snapshot = decides.handle().snapshot().await.unwrap();
    assert_eq!((snapshot.place, snapshot.streams.len()), (0, 0));
}
