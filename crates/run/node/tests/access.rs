//! One authorizer for all protocols: what it refuses is refused in each, in the form that the protocol's clients know.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use common::{config, connected, kafka};
use tailwater_access::{ANONYMOUS, AccessRequest, Authorizer, Denied, Peer, Protocol, Resource};
use tailwater_broadcast::client::{PublishError, Publisher};
use tailwater_broadcast::message::Reason;
use tailwater_broadcast::{Content, Stream};
use tailwater_cache::protocol::{METHOD_INFO, REFUSED_NOT_AUTHORIZED};
use tailwater_client::{Client, Error, ProducerSettings};
use tailwater_env::Env;
use tailwater_format::call::CallErrorCode;
use tailwater_kafka_wire::ErrorCode as KafkaError;
use tailwater_kafka_wire::messages::cluster::{
    DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic,
};
use tailwater_kafka_wire::messages::membership::{ConsumerGroupHeartbeatRequest, HeartbeatRequest};
use tailwater_kafka_wire::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka_wire::messages::topics::{CreatableTopic, CreateTopicsRequest};
use tailwater_node::Node;
use tailwater_rma::{Address, CallError};

/// Nobody may know of this stream.
const HIDDEN: &str = "hidden";

/// Lets everybody in until it is shut, but for what is hidden, and remembers what it was asked.
#[derive(Default)]
struct Door {
    shut: AtomicBool,
    asked: Mutex<BTreeSet<String>>,
}

const WHY: &str = "the door is shut";

impl Authorizer for Door {
    fn authorize(
        &self,
        peer: &Peer,
        AccessRequest { protocol, operation, resource }: AccessRequest<'_>,
    ) -> Result<(), Denied> {
        let of_socket = peer.address.starts_with("unix:") && peer.principal.starts_with("uid:");
        assert!(of_socket || &*peer.principal == ANONYMOUS, "{peer:?}");
        assert!(peer.address.contains("127.0.0.1:") || peer.address.starts_with("unix:"), "{peer:?}");
        self.asked.lock().unwrap().insert(format!("{protocol:?} {operation} {resource:?}"));
        let is_hidden = resource == Resource::Stream(HIDDEN) && operation != "create";
        match self.shut.load(Ordering::Relaxed) || is_hidden {
            false => Ok(()),
            true => Err(Denied(WHY.to_owned())),
        }
    }
}

fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    let kind = "content-type: application/json\r\nconnection: close";
    let head = format!("{method} {path} HTTP/1.1\r\nhost: node\r\n{kind}\r\ncontent-length: {}", body.len());
    socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// A request of SQS's Query protocol, or with a target of its JSON protocol.
fn sqs_asked(address: SocketAddr, target: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    let kind = match target {
        "" => "content-type: application/x-www-form-urlencoded".to_owned(),
        target => format!("content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{target}"),
    };
    let head = format!(
        "POST / HTTP/1.1\r\nhost: node\r\nconnection: close\r\n{kind}\r\ncontent-length: {}",
        body.len()
    );
    socket.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// A topic, a group and the cluster are refused, each with its own code, and what is listed is nothing.
fn kafka_refuses(socket: &mut TcpStream, metadata: &MetadataRequest) {
    let data = PartitionProduceData { index: 0, ..Default::default() };
    let data = TopicProduceData { name: "s".to_owned(), partition_data: vec![data], ..Default::default() };
    let produce =
        ProduceRequest { acks: -1, timeout_ms: 1_000, topic_data: vec![data], ..Default::default() };
    let created = CreatableTopic {
        name: "t".to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest { topics: vec![created], timeout_ms: 1_000, ..Default::default() };
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".to_owned()], ..Default::default() };
    let beat = HeartbeatRequest { group_id: "g".to_owned(), ..Default::default() };
    let refused = [
        (
            kafka(socket, 9, &produce).responses[0].partition_responses[0].error_code,
            KafkaError::TopicAuthorizationFailed,
        ),
        (kafka(socket, 9, metadata).topics[0].error_code, KafkaError::TopicAuthorizationFailed),
        (kafka(socket, 5, &create).topics[0].error_code, KafkaError::TopicAuthorizationFailed),
        (kafka(socket, 4, &find).coordinators[0].error_code, KafkaError::GroupAuthorizationFailed),
        (kafka(socket, 4, &beat).error_code, KafkaError::GroupAuthorizationFailed),
        (
            kafka(socket, 0, &DescribeClusterRequest::default()).error_code,
            KafkaError::ClusterAuthorizationFailed,
        ),
    ];
    for (answered, expected) in refused {
        assert_eq!(answered, expected.number(), "{expected:?}");
    }
    let all = kafka(socket, 9, &MetadataRequest::default());
    assert!(all.topics.is_empty(), "{all:?}");
}

/// Of what matches a pattern, a member of a group is told of what it may know of.
fn a_pattern_shows_what_may_be_known(admin: SocketAddr, socket: &mut TcpStream) {
    let created = http(admin, "POST", "/v1/streams", &format!("{{\"name\":\"{HIDDEN}\"}}"));
    assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    let joins = ConsumerGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: "a".to_owned(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_regex: Some(".*".to_owned()),
        topic_partitions: Some(vec![]),
        ..Default::default()
    };
    let told = kafka(socket, 1, &joins);
    assert_eq!((told.error_code, told.assignment.map(|told| told.topic_partitions.len())), (0, Some(1)));
    let leaves = ConsumerGroupHeartbeatRequest { member_epoch: -1, ..joins };
    assert_eq!(kafka(socket, 1, &leaves).error_code, 0);
}

fn every_protocol_asked(asked: &BTreeSet<String>, stream: &str) {
    for (protocol, operation, resource) in [
        (Protocol::Call, "append", Resource::Stream("s")),
        (Protocol::Cell, "read", Resource::Cell("data")),
        (Protocol::Http, "GET", Resource::Path("/v1/streams")),
        (Protocol::Kafka, "Produce", Resource::Stream("s")),
        (Protocol::Kafka, "Heartbeat", Resource::Group("g")),
        (Protocol::Broadcast, "connect", Resource::Node),
        (Protocol::Sqs, "ReceiveMessage", Resource::Node),
        (Protocol::Sqs, "CreateQueue", Resource::Queue("000000000000/q")),
        (Protocol::Sqs, "SendMessage", Resource::Queue("000000000000/q")),
        (Protocol::Broadcast, "publish", Resource::Broadcast(stream)),
    ] {
        let question = format!("{protocol:?} {operation} {resource:?}");
        assert!(asked.contains(&question), "{question} among {asked:#?}");
    }
}

/// In the JSON protocol and in the Query protocol.
fn sqs_denies(sqs: SocketAddr, receive: &str, send: &str) {
    let answer = sqs_asked(sqs, "ReceiveMessage", receive);
    let is_denied = answer.starts_with("HTTP/1.1 400 ") && answer.contains("#AccessDeniedException");
    assert!(is_denied && answer.contains(WHY), "{answer}");
    let answer = sqs_asked(sqs, "", send);
    let is_denied = answer.starts_with("HTTP/1.1 403 ") && answer.contains("<Code>AccessDenied</Code>");
    assert!(is_denied && answer.contains(WHY), "{answer}");
}

#[test]
fn whom_the_authorizer_refuses_every_protocol_refuses_in_words_of_its_own() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (admin, broadcast_http) = (config.listen.admin, config.broadcast.http.listen);
    let sqs = config.sqs.listen;
    let (data, kafka_at) = (config.listen.data.to_string(), config.kafka.listen);
    let broadcast = config.broadcast.listen.to_string();
    let region = config.broadcast.region.clone();
    let door = Arc::new(Door::default());
    let node = runtime.block_on(Node::start_with(config, Arc::clone(&door) as _)).unwrap();
    let _entered = runtime.enter();
    let env = Env::real();

    // All is well.
    assert!(http(admin, "POST", "/v1/streams", "{\"name\":\"s\"}").starts_with("HTTP/1.1 200 "));
    let view = http(admin, "GET", "/v1/node", "");
    let view: serde_json::Value = serde_json::from_str(&view[view.find("\r\n\r\n").unwrap()..]).unwrap();
    let cell: Vec<Address> = view["cells"][0]["backends"][0]
        .as_array()
        .unwrap()
        .iter()
        .map(|address| address.as_str().unwrap().parse().unwrap())
        .collect();
    let client = runtime.block_on(Client::connect(&data)).unwrap();
    let backend = runtime.block_on(tailwater_rma::connect(&env, &cell[0])).unwrap();
    let info = runtime.block_on(backend.call(METHOD_INFO, Bytes::new()));
    assert!(info.is_ok());
    let stream = Stream::parse(&format!("{region}/news")).unwrap();
    let publisher = Publisher::new(&env, vec![broadcast]);
    let content = Content { payload: "1".into(), ..Content::default() };
    assert_eq!(runtime.block_on(publisher.publish(&stream, &content, None)).unwrap().seq, 1);
    let producing = async {
        let producer = client.producer("s", ProducerSettings::default()).await.unwrap();
        producer.send(None, b"1").unwrap().await.unwrap();
        producer
    };
    let producer = runtime.block_on(producing);
    let mut socket = TcpStream::connect(kafka_at).unwrap();
    let topics = || Some(vec![MetadataRequestTopic { name: Some("s".to_owned()), ..Default::default() }]);
    let metadata = MetadataRequest { topics: topics(), ..Default::default() };
    assert_eq!(kafka(&mut socket, 9, &metadata).topics[0].error_code, 0);

    let queue = sqs_asked(sqs, "CreateQueue", "{\"QueueName\":\"q\"}");
    assert!(queue.starts_with("HTTP/1.1 200 ") && queue.contains("/000000000000/q"), "{queue}");
    let send = "Action=SendMessage&QueueUrl=/000000000000/q&MessageBody=1";
    assert!(sqs_asked(sqs, "", send).starts_with("HTTP/1.1 200 "));

    a_pattern_shows_what_may_be_known(admin, &mut socket);

    door.shut.store(true, Ordering::Relaxed);

    let answer = http(admin, "GET", "/v1/streams", "");
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(WHY), "{answer}");
    let answer = http(broadcast_http, "POST", &format!("/v1/streams/{stream}/events"), "{}");
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(WHY), "{answer}");

    let is_refused = |error: &Error| matches!(error, Error::Refused(refusal) if refusal.code == CallErrorCode::NotAuthorized);
    let found = runtime.block_on(client.stream("s")).unwrap_err();
    assert!(is_refused(&found), "{found}");
    let sent = runtime.block_on(producer.send(None, b"2").unwrap()).unwrap_err();
    assert!(is_refused(&sent), "{sent}");

    // Who is connected to a cell may make no CALL, and nobody else is told where anything lies.
    let called = runtime.block_on(backend.call(METHOD_INFO, Bytes::new()));
    assert!(matches!(called, Err(CallError::Refused { code: REFUSED_NOT_AUTHORIZED, .. })), "{called:?}");
    for address in &cell {
        assert!(!connected(&runtime, &env, address), "{address}");
    }

    kafka_refuses(&mut socket, &metadata);

    let receive = "{\"QueueUrl\":\"/000000000000/q\"}";
    sqs_denies(sqs, receive, send);

    let published = runtime.block_on(publisher.publish(&stream, &content, None)).unwrap_err();
    let PublishError::Refused { reason, text, .. } = published else { panic!("{published}") };
    assert_eq!((reason, text.as_str()), (Reason::NotAuthorized, WHY));

    door.shut.store(false, Ordering::Relaxed);
    assert_eq!(
        runtime.block_on(publisher.publish(&stream, &content, None)).unwrap().seq,
        2,
        "nothing between them"
    );
    let received = sqs_asked(sqs, "ReceiveMessage", receive);
    assert_eq!(received.matches("\"MessageId\"").count(), 1, "{received}");
    let asked = door.asked.lock().unwrap().clone();
    every_protocol_asked(&asked, stream.as_str());
    drop(publisher);
    runtime.block_on(node.stop()).unwrap();
}
