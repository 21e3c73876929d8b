//! Rights that are taken end what is open, by every way in, and interrupt nobody else.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

mod common;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use common::{anybody, asked, config, connected, enforced, kafka, kafka_answer, kafka_asked, rest, rule};
use tailwater_broadcast::client::{Listener, Received};
use tailwater_broadcast::{Positions, Stream};
use tailwater_cache::protocol::{METHOD_INFO, REFUSED_NOT_AUTHORIZED};
use tailwater_env::Env;
use tailwater_format::BatchBuilder;
use tailwater_format::Codec;
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use tailwater_kafka_wire::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka_wire::wire::RecordsBytes;
use tailwater_node::Node;
use tailwater_permissions::{AccessRule, Operation, ResourceKind, RuleFilter};
use tailwater_rma::{Address, CallError};

const PASSWORD: &str = "correct horse";
/// What nobody takes.
const KEPT: &str = "news";
/// What is taken.
const TAKEN: &str = "secret";
/// Longer than any of this takes.
const LONG_MS: i32 = 600_000;

/// What a request of a user has in its head.
fn of_alice() -> String {
    format!("authorization: Basic {}\r\n", STANDARD.encode(format!("alice:{PASSWORD}")))
}

/// Reads until a text came.
fn until(socket: &mut TcpStream, text: &str) {
    let mut came = Vec::new();
    while !String::from_utf8_lossy(&came).contains(text) {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        came.extend(byte);
    }
}

fn fetch(topic: &str, offset: i64) -> FetchRequest {
    let partition =
        FetchPartition { fetch_offset: offset, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: topic.to_owned(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        max_wait_ms: LONG_MS,
        min_bytes: 1,
        max_bytes: 1 << 20,
        topics: vec![topic],
        ..Default::default()
    }
}

fn produce(socket: &mut TcpStream, topic: &str) {
    let mut batch = BatchBuilder::new();
    batch.append(None, Some(b"record"), &[], 5).unwrap();
    let data = PartitionProduceData { index: 0, records: RecordsBytes(vec![batch.finish(Codec::None)]) };
    let data = TopicProduceData { name: topic.to_owned(), partition_data: vec![data], ..Default::default() };
    let asked =
        ProduceRequest { acks: -1, timeout_ms: LONG_MS, topic_data: vec![data], ..Default::default() };
    assert_eq!(kafka(socket, 9, &asked).responses[0].partition_responses[0].error_code, 0);
}

/// Those whose rights stay: each counts what it got, and fails if it is interrupted.
struct Others {
    ends: Arc<AtomicBool>,
    fetched: Arc<AtomicU64>,
    heard: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Others {
    fn start(kafka_at: SocketAddr, http: SocketAddr) -> Self {
        let (ends, fetched, heard) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (stop, count) = (Arc::clone(&ends), Arc::clone(&fetched));
        let fetching = std::thread::spawn(move || {
            let mut socket = TcpStream::connect(kafka_at).unwrap();
            let mut offset = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = kafka(&mut socket, 12, &fetch(KEPT, offset));
                let partition = &answer.responses[0].partitions[0];
                assert_eq!(partition.error_code, 0);
                offset = partition.high_watermark;
                count.store(offset as u64, Ordering::Relaxed);
            }
        });
        let (stop, count) = (Arc::clone(&ends), Arc::clone(&heard));
        let listening = std::thread::spawn(move || {
            let path = format!("/v1/events?stream=local/{KEPT}&from=start");
            let mut socket = asked(http, "GET", &path, &of_alice(), "");
            while !stop.load(Ordering::Relaxed) {
                until(&mut socket, "\"events\"");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stop = Arc::clone(&ends);
        let writing = std::thread::spawn(move || {
            let mut socket = TcpStream::connect(kafka_at).unwrap();
            while !stop.load(Ordering::Relaxed) {
                produce(&mut socket, KEPT);
                let posted = anybody(http, "POST", &format!("/v1/streams/local/{KEPT}/events"), "{}");
                assert!(posted.starts_with("HTTP/1.1 200 "), "{posted}");
            }
            // So that those who wait for the next one end.
            produce(&mut socket, KEPT);
            anybody(http, "POST", &format!("/v1/streams/local/{KEPT}/events"), "{}");
        });
        Self { ends, fetched, heard, threads: vec![fetching, listening, writing] }
    }

    fn counts(&self) -> (u64, u64) {
        (self.fetched.load(Ordering::Relaxed), self.heard.load(Ordering::Relaxed))
    }

    /// Waits until both got more than this.
    fn go_on(&self, (fetched, heard): (u64, u64)) {
        loop {
            let now = self.counts();
            if now.0 > fetched && now.1 > heard {
                return;
            }
            assert!(!self.threads.iter().any(std::thread::JoinHandle::is_finished), "interrupted");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// What is let at first.
fn let_in() -> Vec<AccessRule> {
    let anonymous = |operation, kind, name: &str| rule("anonymous", operation, kind, name);
    let mut all = vec![
        anonymous(Operation::All, ResourceKind::Node, ResourceKind::NODE_NAME),
        anonymous(Operation::Read, ResourceKind::Cell, "data"),
        // The node itself, where it has no certificate.
        anonymous(Operation::All, ResourceKind::Broadcast, "*"),
    ];
    for name in [KEPT, TAKEN] {
        all.extend([
            anonymous(Operation::All, ResourceKind::Stream, name),
            anonymous(Operation::All, ResourceKind::Queue, &format!("000000000000/{name}")),
            rule("alice", Operation::Read, ResourceKind::Broadcast, &format!("local/{name}")),
        ]);
    }
    all
}

/// What is let of what is taken.
fn taken() -> Vec<RuleFilter> {
    let of = |kind, name: &str| RuleFilter {
        kind: Some(kind),
        name: Some(name.to_owned()),
        ..RuleFilter::default()
    };
    vec![
        of(ResourceKind::Stream, TAKEN),
        of(ResourceKind::Broadcast, &format!("local/{TAKEN}")),
        of(ResourceKind::Queue, &format!("000000000000/{TAKEN}")),
        of(ResourceKind::Cell, "data"),
    ]
}

fn sqs(address: SocketAddr, target: &str, body: &str) -> TcpStream {
    let head = format!(
        "content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{target}\r\nconnection: close\r\n"
    );
    asked(address, "POST", "/", &head, body)
}

fn data_cell(admin: SocketAddr) -> Vec<Address> {
    let view = anybody(admin, "GET", "/v1/node", "");
    let view: serde_json::Value = serde_json::from_str(&view[view.find("\r\n\r\n").unwrap()..]).unwrap();
    let cells = view["cells"].as_array().unwrap();
    let data = cells.iter().find(|cell| cell["name"] == "data").unwrap();
    let backend = data["backends"][0].as_array().unwrap();
    backend.iter().map(|address| address.as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_right_that_is_taken_ends_what_is_open_by_every_way_in_and_nobody_else_notices() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (admin, kafka_at, http) = (config.listen.admin, config.kafka.listen, config.broadcast.http.listen);
    let _entered = runtime.enter();
    let env = Env::real();
    let rules = runtime.block_on(enforced(&env, dir.path(), let_in()));
    let node = runtime.block_on(Node::start_with(config.clone(), Arc::clone(&rules) as _)).unwrap();
    let user = format!("{{\"password\":\"{PASSWORD}\"}}");
    assert!(anybody(admin, "PUT", "/v1/users/alice", &user).starts_with("HTTP/1.1 200 "));
    for stream in [KEPT, TAKEN] {
        let created = anybody(admin, "POST", "/v1/streams", &format!("{{\"name\":\"{stream}\"}}"));
        assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    }
    let others = Others::start(kafka_at, http);
    others.go_on((0, 0));

    // All are let in, and wait.
    let mut fetching = TcpStream::connect(kafka_at).unwrap();
    kafka_asked(&mut fetching, 12, &fetch(TAKEN, 0));
    let head = format!("{}connection: close\r\n", of_alice());
    let mut events = asked(http, "GET", &format!("/v1/events?stream=local/{TAKEN}"), &head, "");
    until(&mut events, "event: begin");
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let upgrade = format!("{}{upgrade}", of_alice());
    let mut socket = asked(http, "GET", &format!("/v1/ws?stream=local/{TAKEN}"), &upgrade, "");
    until(&mut socket, "token");
    let positions = Positions::of([Stream::parse(&format!("local/{TAKEN}")).unwrap()]);
    let mut listener = Listener::new(&env, vec![config.broadcast.listen.to_string()], positions);
    while !matches!(runtime.block_on(listener.next()).unwrap(), Received::Began(_)) {}
    let queue = format!("{{\"QueueName\":\"{TAKEN}\"}}");
    assert!(rest(&mut sqs(config.sqs.listen, "CreateQueue", &queue)).starts_with("HTTP/1.1 200 "));
    let cell = data_cell(admin);
    let tcp = cell.iter().find(|address| matches!(address, Address::Tcp(_))).unwrap();
    let unix = cell.iter().find(|address| matches!(address, Address::Unix(_))).unwrap();
    let [far, near] = [tcp, unix].map(|at| runtime.block_on(tailwater_rma::connect(&env, at)).unwrap());
    assert!(runtime.block_on(far.call(METHOD_INFO, Bytes::new())).is_ok());
    // At last, as nobody may wait for longer than 20 seconds.
    let receive = format!("{{\"QueueUrl\":\"/000000000000/{TAKEN}\",\"WaitTimeSeconds\":20}}");
    let mut receiving = sqs(config.sqs.listen, "ReceiveMessage", &receive);

    assert_eq!(runtime.block_on(rules.remove(taken())).unwrap().len(), 4);
    let counts = others.counts();

    let answer = kafka_answer::<FetchRequest>(&mut fetching, 12);
    let code = answer.responses[0].partitions[0].error_code;
    assert_eq!(code, ErrorCode::TopicAuthorizationFailed.number());
    assert!(rest(&mut events).ends_with("0\r\n\r\n"), "the events end as an answer does");
    assert!(rest(&mut socket).contains("the right to listen was taken away"));
    let answer = rest(&mut receiving);
    assert!(answer.contains("AccessDenied"), "{answer}");
    // A CALL may be refused before the connection ends.
    let ended = loop {
        match runtime.block_on(far.call(METHOD_INFO, Bytes::new())) {
            Err(CallError::Refused { code: REFUSED_NOT_AUTHORIZED, .. }) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Err(CallError::Lost(_))), "{ended:?}");
    assert!(!connected(&runtime, &env, tcp));

    others.go_on(counts);
    assert!(runtime.block_on(near.call(METHOD_INFO, Bytes::new())).is_ok(), "the node's own user reads on");
    others.end();
    let all = RuleFilter { kind: Some(ResourceKind::Broadcast), ..RuleFilter::default() };
    assert_eq!(runtime.block_on(rules.remove(vec![all])).unwrap().len(), 2);
    while !matches!(runtime.block_on(listener.next()).unwrap(), Received::Lost) {}
    drop(listener);
    runtime.block_on(node.stop()).unwrap();
}
