//! Readers that catch up take turns: one that asks for much at once holds no other one back, nor readers at the tail.
//! A bridge with a backlog is one of them.

#![allow(clippy::disallowed_methods)] // a test of real sockets

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_client::{Client, ProducerSettings};
use tailwater_env::Env;
use tailwater_format::call::{
    CallErrorCode, FindStream, Method, ReadDurable, SegmentRef, Segments, SegmentsReply, StreamInfo,
    decode_call, encode_call,
};
use tailwater_node::{BridgeConfig, BridgeStart, Config, Node};
use tailwater_rma::{Address, CallError, Connection};
use tokio::sync::Semaphore;

/// Of a read of a reader that catches up.
const READ_BYTES: u32 = 64 << 10;
/// More than the rate lets through while a read may wait.
const GREEDY_READS: usize = 200;
const MODEST_READS: usize = 4;

fn free_address() -> SocketAddr {
    tailwater_load::free_address().unwrap()
}

async fn read(connection: &dyn Connection, segment: SegmentRef, position: u64) -> Result<Bytes, CallError> {
    let asked = ReadDurable { segment: Some(segment), position, len: READ_BYTES };
    connection.call(Method::ReadDurable.number(), encode_call(&asked)).await
}

fn is_overloaded(answer: &Result<Bytes, CallError>) -> bool {
    matches!(answer, Err(CallError::Refused { code, .. }) if *code == CallErrorCode::Overloaded.number())
}

/// What the node's metrics say under a name.
fn counted(admin: SocketAddr, name: &str) -> Option<f64> {
    let metrics = ureq::get(format!("http://{admin}/metrics")).call().unwrap().body_mut().read_to_string();
    let metrics = metrics.unwrap();
    let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")))?;
    Some(value.parse().unwrap())
}

fn create(admin: SocketAddr) {
    let mut created = ureq::post(format!("http://{admin}/v1/streams"))
        .content_type("application/json")
        .send("{\"name\":\"s\"}")
        .unwrap();
    assert!(created.status().is_success(), "{:?}", created.body_mut().read_to_string());
}

/// Appends records of 64 KiB.
async fn append(client: &Client, count: usize) {
    let producer = client.producer("s", ProducerSettings::default()).await.unwrap();
    let value = vec![7; 64 << 10];
    let acks: Vec<_> = (0..count).map(|_| producer.send(None, &value).unwrap()).collect();
    for ack in acks {
        ack.await.unwrap();
    }
}

#[test]
fn one_that_asks_for_much_holds_back_neither_who_asks_for_little_nor_who_is_at_the_tail() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
    (config.listen.data, config.listen.admin) = (free_address(), free_address());
    (config.kafka.enabled, config.sqs.enabled, config.broadcast.enabled) = (false, false, false);
    config.log.catch_up_bytes_per_s = 4 * u64::from(READ_BYTES);
    let (data, admin) = (config.listen.data, config.listen.admin);
    let node = runtime.block_on(Node::start(config)).unwrap();
    let _entered = runtime.enter();
    let env = Env::real();
    create(admin);
    let turns = runtime.block_on(async {
        let client = Client::connect(&data.to_string()).await.unwrap();
        append(&client, (8 << 20) / (64 << 10)).await;

        let address: Address = format!("tcp:{data}").parse().unwrap();
        let [greedy, modest, at_the_tail] = [
            tailwater_rma::connect(&env, &address).await.unwrap(),
            tailwater_rma::connect(&env, &address).await.unwrap(),
            tailwater_rma::connect(&env, &address).await.unwrap(),
        ];
        let found = encode_call(&FindStream { name: "s".to_owned() });
        let found: StreamInfo =
            decode_call(modest.call(Method::FindStream.number(), found).await.unwrap()).unwrap();
        let asked = encode_call(&Segments {
            stream: found.stream.clone(),
            shard: 0,
            from_offset: 0,
            from_segment: None,
        });
        let listed = modest.call(Method::Segments.number(), asked).await.unwrap();
        let listed: SegmentsReply = decode_call(listed).unwrap();
        let last = listed.segments.last().unwrap();
        let segment =
            SegmentRef { stream: found.stream.clone(), shard: 0, number: last.number, term: last.term };
        assert!(last.len > 8 << 20, "{last:?}");

        // As many as may wait for one connection, all the time.
        let [answered, ended] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let enough = Arc::new(AtomicBool::new(false));
        for _ in 0..GREEDY_READS {
            let (greedy, segment, enough) = (Arc::clone(&greedy), segment.clone(), Arc::clone(&enough));
            let (answered, ended) = (Arc::clone(&answered), Arc::clone(&ended));
            let asking = async move {
                while !enough.load(Ordering::Relaxed) {
                    let answer = read(&*greedy, segment.clone(), 0).await;
                    assert!(answer.is_ok() || is_overloaded(&answer), "{answer:?}");
                    answered.add_permits(answer.is_ok().into());
                }
                ended.add_permits(1);
            };
            env.spawn("greedy", asking).detach();
        }
        drop(answered.acquire().await.unwrap());
        let near = read(&*at_the_tail, segment.clone(), last.len - u64::from(READ_BYTES)).await.unwrap();
        assert_eq!(near.len(), READ_BYTES as usize);
        let (mut got, mut refused) = (0, 0);
        while got < MODEST_READS {
            let answer = read(&*modest, segment.clone(), 0).await;
            assert!(answer.is_ok() || is_overloaded(&answer), "{answer:?}");
            got += usize::from(answer.is_ok());
            refused += usize::from(answer.is_err());
            assert!(refused < 10, "it never has a turn");
        }
        enough.store(true, Ordering::Relaxed);
        drop(ended.acquire_many(GREEDY_READS as u32).await.unwrap());
        got + answered.available_permits()
    });
    let counted = |name: &str| counted(admin, name).expect(name);
    let bytes = (turns * READ_BYTES as usize) as f64;
    assert_eq!(counted("tailwater_catch_up_bytes_total"), bytes);
    assert_eq!(
        counted("tailwater_durable_read_bytes_total"),
        bytes + f64::from(READ_BYTES),
        "one at the tail"
    );
    assert_eq!(counted("tailwater_catch_up_waiting"), 0.0);
    runtime.block_on(node.stop()).unwrap();
}

#[test]
fn a_bridge_with_a_backlog_reads_what_is_far_from_its_shard_s_end_in_turn_and_within_the_rate() {
    // Of 64 KiB each; the last 64 of them are near the end.
    const RECORDS: usize = 160;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
    (config.listen.data, config.listen.admin) = (free_address(), free_address());
    config.broadcast.listen = free_address();
    (config.kafka.enabled, config.sqs.enabled) = (false, false);
    (config.broadcast.http.enabled, config.memcached.enabled) = (false, false);
    config.log.catch_up_bytes_per_s = 16 << 20;
    let (data, admin) = (config.listen.data, config.listen.admin);
    let _entered = runtime.enter();
    let node = runtime.block_on(Node::start(config.clone())).unwrap();
    create(admin);
    runtime.block_on(async {
        append(&Client::connect(&data.to_string()).await.unwrap(), RECORDS).await;
    });
    runtime.block_on(node.stop()).unwrap();
    config.bridge = vec![BridgeConfig {
        from: "log:s".to_owned(),
        to: "broadcast:local/s".to_owned(),
        collect: String::new(),
        shards: Vec::new(),
        start: BridgeStart::Start,
    }];
    // The data directory and the queues in it are free as soon as the last task of the node before has ended.
    let is_held = |error: &anyhow::Error| {
        let why = format!("{error:#}");
        why.contains("can't be used") || why.contains("are in use by another process")
    };
    let node = loop {
        match runtime.block_on(Node::start(config.clone())) {
            Ok(node) => break node,
            Err(error) if is_held(&error) => std::thread::yield_now(),
            Err(error) => panic!("{error:#}"),
        }
    };
    let carried = "tailwater_bridge_carried_total{bridge=\"log:s>broadcast:local/s\"}";
    while counted(admin, carried).is_none_or(|carried| carried < RECORDS as f64) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let turns = counted(admin, "tailwater_catch_up_bytes_total").unwrap();
    let far = ((RECORDS - 64) * (64 << 10)) as f64;
    assert!((far..far + f64::from(2 << 20)).contains(&turns), "{turns} bytes, of {far} that are far");
    runtime.block_on(node.stop()).unwrap();
}
