//! Every request of admin HTTP, SQS, CALLs, cells and broadcasts, made by somebody who may do nothing: it is refused in
//! the words of its protocol, and does nothing. Kafka's are in `crates/log/kafka/tests/rights.rs`.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use common::{anybody, asked, config, connected, enforced, rest, rule};
use tailwater_broadcast::client::{PublishError, Publisher};
use tailwater_broadcast::message::Reason;
use tailwater_broadcast::{Content, Stream};
use tailwater_client::{
    Client, ClientConfig, ClientLogin, ConsumerConfig, Error, Mechanism, ProducerSettings, SecretText, Start,
    Transport,
};
use tailwater_env::Env;
use tailwater_format::call::{
    Append, CallErrorCode, CopyLead, CopyOffsets, CopyOpen, CopyPlan, CopyPush, CopyReport, CopyState,
    FindCell, FindStream, InitProducer, Locate, LoginMessage, Method, ReadDurable, SegmentRef, Segments,
    StreamInfo, Tails, decode_call, encode_call,
};
use tailwater_node::Node;
use tailwater_permissions::{Operation, ResourceKind, RuleFilter};
use tailwater_rma::{Address, CallError};

/// What there is of everything, and what nobody without rights is told of.
const NAME: &str = "hidden";

/// Requests of admin HTTP, by what their path names.
const HTTP: [(&str, &str, &str); 49] = [
    ("GET", "/metrics", ""),
    ("GET", "/v1/node", ""),
    ("POST", "/v1/node/drain", ""),
    ("GET", "/v1/cells", ""),
    ("POST", "/v1/cells", "{\"name\":\"c\",\"backends\":1}"),
    ("GET", "/v1/cells/data", ""),
    ("POST", "/v1/cells/data/clear", "{}"),
    ("POST", "/v1/cells/data/resize", "{\"backends\":4}"),
    ("POST", "/v1/cells/data/drain", "{\"backend\":0}"),
    ("POST", "/v1/cells/data/restore", "{\"backend\":0}"),
    ("POST", "/v1/cells/data/roll", "{\"stop\":true}"),
    ("POST", "/v1/cells/data/load", "{\"generation\":1,\"config_id\":1}"),
    ("POST", "/v1/streams", "{\"name\":\"new\"}"),
    ("GET", "/v1/streams/hidden", ""),
    ("GET", "/v1/streams/missing", ""),
    ("DELETE", "/v1/streams/hidden", ""),
    ("PATCH", "/v1/streams/hidden", "{\"cold\":true}"),
    ("PUT", "/v1/streams/hidden/restore", "{\"from\":0}"),
    ("POST", "/v1/streams/hidden/truncate", "{\"shard\":0,\"offset\":0}"),
    ("GET", "/v1/streams/hidden/tree", ""),
    ("PUT", "/v1/streams/hidden/tree", "{\"source\":\"us\",\"to\":[\"eu\"]}"),
    ("GET", "/v1/operations", ""),
    ("GET", "/v1/clusters", ""),
    ("GET", "/v1/clusters/eu", ""),
    ("PUT", "/v1/clusters/eu", "{\"address\":\"127.0.0.1:1\"}"),
    ("DELETE", "/v1/clusters/eu", ""),
    ("POST", "/v1/clusters/eu/drain", "{\"is_draining\":true}"),
    ("GET", "/v1/broadcast", ""),
    ("GET", "/v1/broadcast/streams", ""),
    ("GET", "/v1/groups/hidden", ""),
    ("DELETE", "/v1/groups/hidden", ""),
    ("POST", "/v1/groups/hidden/reset", "{}"),
    ("GET", "/v1/users", ""),
    ("PUT", "/v1/users/eve", "{\"password\":\"correct horse\"}"),
    ("DELETE", "/v1/users/alice", ""),
    ("GET", "/v1/tokens", ""),
    ("POST", "/v1/tokens", "{\"name\":\"eve\",\"rules\":[]}"),
    ("DELETE", "/v1/tokens/ci", ""),
    ("GET", "/v1/accounts", ""),
    ("POST", "/v1/accounts", "{\"id\":\"123456789012\"}"),
    ("DELETE", "/v1/accounts/123456789012?everybody=true", ""),
    ("GET", "/v1/rules", ""),
    ("POST", "/v1/rules", "[]"),
    ("DELETE", "/v1/rules?principal=alice", ""),
    ("GET", "/v1/quotas", ""),
    ("PUT", "/v1/quotas", "{\"entity\":{\"user\":\"eve\"},\"bounds\":{\"request_rate\":1}}"),
    ("DELETE", "/v1/quotas?user=eve", ""),
    ("GET", "/v1/audit", ""),
    ("GET", "/v1/unheard", ""),
];

/// Lists, which have nothing in them for whoever may do nothing.
const LISTS: [&str; 2] = ["/v1/streams", "/v1/groups"];

/// What everybody may ask.
const FOR_ALL: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// The actions of SQS about one queue, with what each needs to be looked at.
const SQS: [(&str, &str); 20] = [
    ("AddPermission", "\"Label\":\"l\",\"AWSAccountIds\":[\"111122223333\"],\"Actions\":[\"SendMessage\"]"),
    ("ChangeMessageVisibility", "\"ReceiptHandle\":\"r\",\"VisibilityTimeout\":1"),
    (
        "ChangeMessageVisibilityBatch",
        "\"Entries\":[{\"Id\":\"1\",\"ReceiptHandle\":\"r\",\"VisibilityTimeout\":1}]",
    ),
    ("DeleteMessage", "\"ReceiptHandle\":\"r\""),
    ("DeleteMessageBatch", "\"Entries\":[{\"Id\":\"1\",\"ReceiptHandle\":\"r\"}]"),
    ("DeleteQueue", ""),
    ("GetQueueAttributes", ""),
    ("GetQueueUrl", "\"QueueName\":\"hidden\""),
    ("ListDeadLetterSourceQueues", ""),
    ("ListMessageMoveTasks", "\"SourceArn\":\"arn:aws:sqs:us-east-1:000000000000:hidden\""),
    ("ListQueueTags", ""),
    ("PurgeQueue", ""),
    ("ReceiveMessage", ""),
    ("RemovePermission", "\"Label\":\"l\""),
    ("SendMessage", "\"MessageBody\":\"1\""),
    ("SendMessageBatch", "\"Entries\":[{\"Id\":\"1\",\"MessageBody\":\"1\"}]"),
    ("SetQueueAttributes", "\"Attributes\":{\"DelaySeconds\":\"1\"}"),
    ("StartMessageMoveTask", "\"SourceArn\":\"arn:aws:sqs:us-east-1:000000000000:hidden\""),
    ("TagQueue", "\"Tags\":{\"a\":\"b\"}"),
    ("UntagQueue", "\"TagKeys\":[\"a\"]"),
];

fn sqs(address: SocketAddr, action: &str, body: &str) -> String {
    let head = format!(
        "content-type: application/x-amz-json-1.0\r\nx-amz-target: AmazonSQS.{action}\r\nconnection: close\r\n"
    );
    rest(&mut asked(address, "POST", "/", &head, body))
}

/// One CALL of each method that is about something.
fn calls(stream: &Bytes) -> Vec<(Method, Bytes)> {
    let segment = SegmentRef { stream: stream.clone(), ..Default::default() };
    let stream = || stream.clone();
    vec![
        (Method::FindStream, encode_call(&FindStream { name: NAME.to_owned() })),
        (Method::FindCell, encode_call(&FindCell { name: NAME.to_owned() })),
        (Method::Append, encode_call(&Append { stream: stream(), ..Default::default() })),
        (Method::ReadDurable, encode_call(&ReadDurable { segment: Some(segment), position: 0, len: 1 })),
        (Method::Tails, encode_call(&Tails { stream: stream(), shards: vec![0] })),
        (Method::Segments, encode_call(&Segments { stream: stream(), ..Default::default() })),
        (Method::Locate, encode_call(&Locate { stream: stream(), ..Default::default() })),
        (Method::InitProducer, encode_call(&InitProducer {})),
        (Method::CopyOpen, encode_call(&CopyOpen { stream: stream(), ..Default::default() })),
        (Method::CopyPlan, encode_call(&CopyPlan::default())),
        (Method::CopyState, encode_call(&CopyState { stream: stream() })),
        (Method::CopyLead, encode_call(&CopyLead::default())),
        (Method::CopyOffsets, encode_call(&CopyOffsets { stream: stream(), ..Default::default() })),
        (Method::CopyReport, encode_call(&CopyReport { worker: "w".to_owned(), ..Default::default() })),
        (Method::CopyPush, encode_call(&CopyPush { stream: stream(), ..Default::default() })),
    ]
}

#[test]
fn every_call_and_every_route_of_admin_http_is_among_those_that_are_tried() {
    let tried: Vec<Method> = calls(&Bytes::new()).into_iter().map(|(method, _)| method).collect();
    // What a session is asked for is what it was opened for. The others are for everybody: a greeting tells where the
    // cells are, and a cell asks for itself; delays that consumers had are added to a metric; a login comes before all.
    let others = [Method::CopyNext, Method::Hello, Method::DeliveryDelays, Method::Login];
    for method in Method::ALL {
        assert!(tried.contains(&method) != others.contains(&method), "{method:?}");
    }
    let mut routes = 0;
    let table = include_str!("../src/http.rs");
    let table = table.split_once("fn router(").unwrap().1.split_once(".fallback(").unwrap().0;
    for route in table.split(".route(\"").skip(1) {
        let (path, handlers) = route.split_once("\", ").unwrap();
        let is_it = |asked: &str| {
            let asked = asked.split('?').next().unwrap();
            let (named, given) = (path.split('/'), asked.split('/'));
            named.clone().count() == given.clone().count()
                && named.zip(given).all(|(named, given)| named.starts_with('{') || named == given)
        };
        for method in ["get", "post", "put", "patch", "delete"] {
            let is_first = handlers.starts_with(&format!("{method}("));
            if !is_first && !handlers.contains(&format!(").{method}(")) {
                continue;
            }
            let upper = method.to_uppercase();
            let is_tried = HTTP.iter().any(|(asked, path, _)| *asked == upper && is_it(path));
            let is_open = upper == "GET" && (LISTS.contains(&path) || FOR_ALL.contains(&path));
            assert!(is_tried || is_open, "{upper} {path} is tried by nobody");
            routes += 1;
        }
    }
    assert!(routes > 40, "only {routes} routes");
}

fn http_refuses(admin: SocketAddr) {
    for (method, path, body) in HTTP {
        let answer = anybody(admin, method, path, body);
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("has no right to"),
            "{method} {path}: {answer}"
        );
    }
    for path in LISTS {
        let answer = anybody(admin, "GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("[]"), "{path}: {answer}");
    }
    for path in FOR_ALL {
        let answer = anybody(admin, "GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains(NAME), "{path}: {answer}");
    }
}

/// Each body as an array of its values, in their order, which is no object.
fn arrays_are_refused(admin: SocketAddr) {
    let mut tried = 0;
    for (method, path, body) in HTTP {
        let Ok(serde_json::Value::Object(body)) = serde_json::from_str(body) else { continue };
        if body.is_empty() {
            continue;
        }
        let array: Vec<serde_json::Value> = body.into_iter().map(|(_, value)| value).collect();
        let answer = anybody(admin, method, path, &serde_json::to_string(&array).unwrap());
        assert!(
            answer.starts_with("HTTP/1.1 4") && answer.contains("an object"),
            "{method} {path}: {answer}"
        );
        tried += 1;
    }
    assert!(tried > 10, "only {tried}");
    let rule = "[\"alice\",\"read\",\"stream\",\"a\",\"literal\",\"allow\"]";
    for (path, body) in [
        ("/v1/rules", format!("[{rule}]")),
        ("/v1/tokens", format!("{{\"name\":\"eve\",\"rules\":[{rule}]}}")),
    ] {
        let answer = anybody(admin, "POST", path, &body);
        assert!(answer.starts_with("HTTP/1.1 4") && answer.contains("an object"), "{path}: {answer}");
    }
}

fn sqs_refuses(address: SocketAddr) {
    for name in [NAME, "missing"] {
        for (action, more) in SQS {
            let more = more.replace(NAME, name);
            let comma = if more.is_empty() { "" } else { "," };
            let body = format!("{{\"QueueUrl\":\"/000000000000/{name}\"{comma}{more}}}");
            let answer = sqs(address, action, &body);
            assert!(answer.contains("AccessDenied"), "{action} of {name}: {answer}");
        }
    }
    let created = sqs(address, "CreateQueue", "{\"QueueName\":\"new\"}");
    assert!(created.contains("AccessDenied"), "{created}");
    let cancelled = sqs(address, "CancelMessageMoveTask", "{\"TaskHandle\":\"t\"}");
    assert!(cancelled.contains("AccessDenied"), "{cancelled}");
    let listed = sqs(address, "ListQueues", "{}");
    assert!(listed.starts_with("HTTP/1.1 200 ") && !listed.contains(NAME), "{listed}");
}

/// Whoever may read one of the cells has none of the CALLs that change one, also of methods that there are not yet.
fn readers_change_no_cell(runtime: &tokio::runtime::Runtime, env: &Env, cells: &[Address]) {
    use tailwater_cache::protocol::{
        METHOD_ACCEPT, METHOD_CLEAR, METHOD_CONFIG, METHOD_CONFIGURE, METHOD_END, METHOD_INFO, METHOD_JOIN,
        METHOD_LOAD, METHOD_MUTATE, METHOD_PROMISE, METHOD_TOUCH, REFUSED_NOT_AUTHORIZED,
    };
    let connected = cells.iter().find_map(|cell| runtime.block_on(tailwater_rma::connect(env, cell)).ok());
    let connected = connected.expect("one of them may be read");
    for method in [METHOD_CONFIG, METHOD_INFO, METHOD_TOUCH] {
        runtime.block_on(connected.call(method, Bytes::new())).unwrap();
    }
    let changes = [METHOD_MUTATE, METHOD_PROMISE, METHOD_ACCEPT, METHOD_JOIN, METHOD_LOAD];
    for method in changes.into_iter().chain([METHOD_CONFIGURE, METHOD_END, METHOD_CLEAR, METHOD_LOAD + 99]) {
        let refused = runtime.block_on(connected.call(method, Bytes::new()));
        assert!(
            matches!(refused, Err(CallError::Refused { code: REFUSED_NOT_AUTHORIZED, .. })),
            "{method:#x}: {refused:?}"
        );
    }
}

/// Where the node's own cells are read over TCP.
fn cells_over_tcp(admin: SocketAddr) -> Vec<Address> {
    let view = anybody(admin, "GET", "/v1/node", "");
    let view: serde_json::Value = serde_json::from_str(&view[view.find("\r\n\r\n").unwrap()..]).unwrap();
    view["cells"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|cell| cell["backends"][0].as_array().unwrap())
        .map(|address| address.as_str().unwrap().parse().unwrap())
        .filter(|address| matches!(address, Address::Tcp(_)))
        .collect()
}

/// A connection whose client says what it likes: frames of the format that `rma` describes.
struct RawConnection(TcpStream);

const HELLO: u8 = 1;
const READ: u8 = 2;
const SCAR: u8 = 3;
const WATCH: u8 = 4;
const CALL: u8 = 5;

impl RawConnection {
    /// One that has said HELLO, and was told of no region, and to log in.
    fn of_stranger(address: SocketAddr) -> Self {
        let mut raw = Self(TcpStream::connect(address).unwrap());
        raw.send(HELLO, 0, b"rma\0\x02\x02\0\0");
        let (kind, regions, body) = raw.answer().expect("an answer");
        assert_eq!(
            (kind, regions, body.len(), body[1]),
            (0x81, 0, 8, 8),
            "nothing but that it has to log in"
        );
        raw
    }

    fn send(&mut self, kind: u8, argument: u16, body: &[u8]) {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&[2, kind]);
        frame.extend_from_slice(&argument.to_le_bytes());
        frame.extend_from_slice(&1_u64.to_le_bytes());
        frame.extend_from_slice(body);
        self.0.write_all(&frame).unwrap();
    }

    /// The kind, the argument and the body of what comes; `None` if the connection ends.
    fn answer(&mut self) -> Option<(u8, u16, Vec<u8>)> {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).ok()?;
        let mut body = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
        self.0.read_exact(&mut body).ok()?;
        Some((head[5], u16::from_le_bytes([head[6], head[7]]), body))
    }
}

/// Whoever has not logged in is answered no CALL but that of a login, and its reads end its connection.
fn strangers_are_refused(data: SocketAddr, cells: &[Address]) {
    let first = LoginMessage { mechanism: "SCRAM-SHA-256".to_owned(), message: "n,,n=eve,r=12345678".into() };
    for method in Method::ALL {
        let mut raw = RawConnection::of_stranger(data);
        raw.send(CALL, method.number(), &encode_call(&first));
        let (kind, outcome, body) = raw.answer().expect("an answer");
        assert_eq!((kind, outcome), (0x85, u16::from(method != Method::Login)), "{method:?}");
        if method != Method::Login {
            let code = u16::from_le_bytes([body[0], body[1]]);
            let told = String::from_utf8(body[2..].to_vec()).unwrap();
            assert_eq!(code, CallErrorCode::NotAuthorized.number(), "{method:?}");
            assert!(told.contains("wants a login") && told.contains("--login NAME"), "{method:?}: {told}");
        }
    }
    for cell in cells {
        let Address::Tcp(cell) = cell else { panic!("over TCP") };
        for (kind, count, len) in [(READ, 1, 24), (SCAR, 1, 28), (WATCH, 0, 8), (HELLO, 0, 8)] {
            let mut raw = RawConnection::of_stranger(*cell);
            let body = if kind == HELLO { b"rma\0\x02\x02\0\0".to_vec() } else { vec![0; len] };
            raw.send(kind, count, &body);
            assert_eq!(raw.answer(), None, "{kind}");
        }
        let mut raw = RawConnection::of_stranger(*cell);
        raw.send(CALL, tailwater_cache::protocol::METHOD_LOOKUP, b"");
        assert_eq!(raw.answer().map(|(_, outcome, _)| outcome), Some(1));
    }
}

fn as_user(user: &str, password: &str, mechanism: Mechanism) -> ClientConfig {
    let login = ClientLogin::of_user(user, SecretText::new(password), mechanism).unwrap();
    // As from another host.
    ClientConfig { login: Some(login), transport: Transport::Tcp, ..ClientConfig::default() }
}

#[test]
fn who_has_to_log_in_is_answered_nothing_before_and_may_do_what_its_user_may_until_that_is_removed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.listen.login = true;
    let (admin, data) = (config.listen.admin, config.listen.data);
    let _entered = runtime.enter();
    let env = Env::real();
    // Whoever does not log in might do everything, if it had not to.
    let everything = ResourceKind::EVERY.map(|kind| {
        let name = if kind == ResourceKind::Node { ResourceKind::NODE_NAME } else { "*" };
        rule("anonymous", Operation::All, kind, name)
    });
    let of_alice = [
        rule("alice", Operation::Describe, ResourceKind::Node, ResourceKind::NODE_NAME),
        rule("alice", Operation::Write, ResourceKind::Stream, NAME),
        rule("alice", Operation::Read, ResourceKind::Stream, NAME),
        rule("alice", Operation::Read, ResourceKind::Cell, "data"),
        rule("alice", Operation::Read, ResourceKind::Cell, "metadata"),
    ];
    let rules = runtime.block_on(enforced(&env, dir.path(), [&everything[..], &of_alice[..]].concat()));
    let node = runtime.block_on(Node::start_with(config, Arc::clone(&rules) as _)).unwrap();
    let created = anybody(admin, "POST", "/v1/streams", &format!("{{\"name\":\"{NAME}\"}}"));
    assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    for user in ["alice", "eve"] {
        let put = anybody(admin, "PUT", &format!("/v1/users/{user}"), "{\"password\":\"correct horse\"}");
        assert!(put.starts_with("HTTP/1.1 200 "), "{put}");
    }
    let cells = cells_over_tcp(admin);
    assert_eq!(cells.len(), 2);
    strangers_are_refused(data, &cells);

    let connect =
        |config: ClientConfig| runtime.block_on(Client::connect_with(env.clone(), &data.to_string(), config));
    let refused = |config: ClientConfig| connect(config).err().expect("refused");
    let anonymous = refused(ClientConfig::default());
    assert!(
        matches!(&anonymous, Error::Login { reason, .. } if reason.contains("wants a login")),
        "{anonymous}"
    );
    let wrong = refused(as_user("alice", "wrong horse", Mechanism::ScramSha256));
    assert!(matches!(&wrong, Error::Login { reason, .. } if reason.contains("password")), "{wrong}");
    // Others would read it on the way.
    let shown = refused(as_user("alice", "correct horse", Mechanism::Plain));
    assert!(matches!(&shown, Error::Login { reason, .. } if reason.contains("TLS only")), "{shown}");
    // A greeting is for everybody who is known, and nothing else is.
    let eve = connect(as_user("eve", "correct horse", Mechanism::ScramSha256)).unwrap();
    let nobody = runtime.block_on(eve.stream(NAME)).unwrap_err();
    let code = CallErrorCode::NotAuthorized;
    let told = format!("{nobody}");
    assert!(matches!(nobody, Error::Refused(refusal) if refusal.code == code), "{told}");
    assert!(told.contains("eve has no right to"), "{told}");

    for mechanism in [Mechanism::ScramSha256, Mechanism::ScramSha512] {
        let client = connect(as_user("alice", "correct horse", mechanism)).unwrap();
        runtime.block_on(async {
            let producer = client.producer(NAME, ProducerSettings::default()).await.unwrap();
            producer.send(None, b"value").unwrap().await.unwrap();
            let from_start = ConsumerConfig { shards: Vec::new(), start: Start::Beginning };
            let mut consumer = client.consumer(NAME, from_start).await.unwrap();
            let batch = consumer.next().await.unwrap().expect("there is one");
            assert_eq!(batch.records().next().unwrap().value, Some(&b"value"[..]));
        });
        assert!(client.reader_stats().cell_bytes > 0, "one-sidedly: {:?}", client.reader_stats());
    }
    let client = connect(as_user("alice", "correct horse", Mechanism::ScramSha256)).unwrap();
    let removed = anybody(admin, "DELETE", "/v1/users/alice", "");
    assert!(removed.starts_with("HTTP/1.1 200 "), "{removed}");
    // Its connection ends, and there is no other one.
    let error = loop {
        match runtime.block_on(client.stream(NAME)) {
            Err(error @ Error::Login { .. }) => break error,
            _ => std::thread::yield_now(),
        }
    };
    assert!(error.to_string().contains("no such user"), "{error}");
    runtime.block_on(node.stop()).unwrap();
}

#[test]
fn who_may_do_nothing_is_refused_by_every_request_of_every_protocol() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (admin, http) = (config.listen.admin, config.broadcast.http.listen);
    let _entered = runtime.enter();
    let env = Env::real();
    let everything = ResourceKind::EVERY.map(|kind| {
        let name = if kind == ResourceKind::Node { ResourceKind::NODE_NAME } else { "*" };
        rule("anonymous", Operation::All, kind, name)
    });
    let rules = runtime.block_on(enforced(&env, dir.path(), everything.to_vec()));
    let node = runtime.block_on(Node::start_with(config.clone(), Arc::clone(&rules) as _)).unwrap();

    // There is something of everything.
    let created = anybody(admin, "POST", "/v1/streams", &format!("{{\"name\":\"{NAME}\"}}"));
    assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    let created = sqs(config.sqs.listen, "CreateQueue", &format!("{{\"QueueName\":\"{NAME}\"}}"));
    assert!(created.starts_with("HTTP/1.1 200 "), "{created}");
    let data = Address::Tcp(config.listen.data);
    let calling = runtime.block_on(tailwater_rma::connect(&env, &data)).unwrap();
    let call = |method: Method, payload: Bytes| runtime.block_on(calling.call(method.number(), payload));
    let find = encode_call(&FindStream { name: NAME.to_owned() });
    let info: StreamInfo = decode_call(call(Method::FindStream, find).unwrap()).unwrap();
    let cells = cells_over_tcp(admin);
    assert_eq!(cells.len(), 2);
    let stream = Stream::parse(&format!("local/{NAME}")).unwrap();
    let publisher = Publisher::new(&env, vec![config.broadcast.listen.to_string()]);
    let content = Content { payload: "1".into(), ..Content::default() };
    assert_eq!(runtime.block_on(publisher.publish(&stream, &content, None)).unwrap().seq, 1);

    arrays_are_refused(admin);
    runtime.block_on(rules.remove(vec![RuleFilter::default()])).unwrap();

    http_refuses(admin);
    sqs_refuses(config.sqs.listen);
    for (method, payload) in calls(&info.stream) {
        let refused = call(method, payload);
        let code = CallErrorCode::NotAuthorized.number();
        assert!(
            matches!(refused, Err(CallError::Refused { code: own, .. }) if own == code),
            "{method:?}: {refused:?}"
        );
    }
    for cell in &cells {
        assert!(!connected(&runtime, &env, cell), "{cell}");
    }
    let reads = rule("anonymous", Operation::Read, ResourceKind::Cell, "data");
    runtime.block_on(rules.add(vec![reads])).unwrap();
    readers_change_no_cell(&runtime, &env, &cells);
    runtime.block_on(rules.remove(vec![RuleFilter::default()])).unwrap();
    // Whoever reads a stream is not told of the groups that do.
    let reads = rule("anonymous", Operation::Read, ResourceKind::Stream, NAME);
    runtime.block_on(rules.add(vec![reads])).unwrap();
    call(Method::Tails, encode_call(&Tails { stream: info.stream.clone(), shards: vec![0] })).unwrap();
    let told = CopyOffsets { stream: info.stream.clone(), ..Default::default() };
    let refused = call(Method::CopyOffsets, encode_call(&told)).unwrap_err();
    assert!(refused.to_string().contains("cluster_action"), "{refused}");
    runtime.block_on(rules.remove(vec![RuleFilter::default()])).unwrap();

    let refused = runtime.block_on(publisher.publish(&stream, &content, None)).unwrap_err();
    assert!(matches!(refused, PublishError::Refused { reason: Reason::NotAuthorized, .. }), "{refused}");
    for (method, path) in [
        ("POST", format!("/v1/streams/local/{NAME}/events")),
        ("GET", format!("/v1/events?stream=local/{NAME}")),
        ("GET", "/v1/events".to_owned()),
    ] {
        let answer = anybody(http, method, &path, "{}");
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("not_authorized"), "{path}: {answer}");
    }

    // Nothing was done.
    runtime.block_on(rules.add(everything.to_vec())).unwrap();
    let listed = anybody(admin, "GET", "/v1/streams", "");
    assert!(listed.contains(NAME) && !listed.contains("\"new\""), "{listed}");
    let listed = sqs(config.sqs.listen, "ListQueues", "{}");
    assert!(listed.contains(NAME) && !listed.contains("/new"), "{listed}");
    assert!(!anybody(admin, "GET", "/v1/users", "").contains("eve"));
    assert_eq!(runtime.block_on(publisher.publish(&stream, &content, None)).unwrap().seq, 2);
    drop(publisher);
    runtime.block_on(node.stop()).unwrap();
}
