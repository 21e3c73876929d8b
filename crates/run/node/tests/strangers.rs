//! Those who are not let in: what they cost the node, and those who are.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use common::{anybody, config, kafka, kafka_answer, kafka_asked, rest};
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::messages::cluster::ApiVersionsRequest;
use tailwater_kafka_wire::messages::security::{SaslAuthenticateRequest, SaslHandshakeRequest};
use tailwater_login::limits::{MESSAGE_BYTES_MAX, STRANGERS_MAX};
use tailwater_node::{Config, Node};

const PASSWORD: &str = "correct horse";
/// For machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(300);
const REFUSED: i16 = ErrorCode::SaslAuthenticationFailed.number();

/// A node at which clients of Kafka's protocol log in, with a user `alice`.
struct World {
    node: Option<Node>,
    config: Config,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl World {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.kafka.login = true;
        let node = runtime.block_on(Node::start(config.clone())).unwrap();
        let user = format!("{{\"password\":\"{PASSWORD}\"}}");
        assert!(anybody(config.listen.admin, "PUT", "/v1/users/alice", &user).starts_with("HTTP/1.1 200 "));
        Self { node: Some(node), config, runtime, _dir: dir }
    }

    /// A connection from another address of this host.
    fn connect_from_elsewhere(&self, to: SocketAddr) -> TcpStream {
        self.runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
            let stream = socket.connect(to).await.unwrap().into_std().unwrap();
            stream.set_nonblocking(false).unwrap();
            stream
        })
    }

    fn end(mut self) {
        self.runtime.block_on(self.node.take().unwrap().stop()).unwrap();
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Whether the other end closes it, without another answer.
fn is_closed(socket: &mut TcpStream) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset};
    match socket.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => matches!(error.kind(), ConnectionReset | ConnectionAborted),
    }
}

fn begin_login(socket: &mut TcpStream) {
    let asked = SaslHandshakeRequest { mechanism: "SCRAM-SHA-256".to_owned() };
    assert_eq!(kafka(socket, 1, &asked).error_code, 0);
}

/// A login of alice's with a wrong proof, over a connection of its own; what it was refused with.
fn guess(to: SocketAddr) -> String {
    let mut socket = connect(to);
    begin_login(&mut socket);
    let step = |message: String| SaslAuthenticateRequest { auth_bytes: Bytes::from(message) };
    let first = kafka(&mut socket, 1, &step("n,,n=alice,r=0123456789".to_owned()));
    if first.error_code == REFUSED {
        return first.error_message.unwrap();
    }
    assert_eq!(first.error_code, 0);
    let challenge = String::from_utf8(first.auth_bytes.to_vec()).unwrap();
    let nonce = challenge.split(',').next().unwrap();
    let last = format!("c=biws,{nonce},p={}", STANDARD.encode([0; 32]));
    let last = kafka(&mut socket, 1, &step(last));
    assert_eq!(last.error_code, REFUSED);
    assert!(is_closed(&mut socket), "who was refused may ask nothing more");
    last.error_message.unwrap()
}

/// What the node answers to a request with alice's password.
fn log_in(mut socket: TcpStream) -> String {
    let basic = STANDARD.encode(format!("alice:{PASSWORD}"));
    let head = format!(
        "GET /v1/streams HTTP/1.1\r\nhost: node\r\nauthorization: Basic {basic}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    rest(&mut socket)
}

#[test]
fn of_a_thousand_wrong_logins_nearly_all_are_refused_unread_and_another_address_is_let_in() {
    let world = World::start();
    let (at, admin) = (world.config.kafka.listen, world.config.listen.admin);
    assert!(log_in(connect(admin)).starts_with("HTTP/1.1 200 "));
    let left = AtomicUsize::new(1_000);
    let guessing = || {
        let mut unread = 0;
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            unread += usize::from(guess(at).contains("too many"));
        }
        unread
    };
    let unread: usize = std::thread::scope(|scope| {
        let guessers: Vec<_> = (0..16).map(|_| scope.spawn(guessing)).collect();
        guessers.into_iter().map(|guesser| guesser.join().unwrap()).sum()
    });
    assert!(unread >= 500, "{unread} of 1,000");
    // The right password of somebody at the same address is not looked at either.
    assert!(!log_in(connect(admin)).starts_with("HTTP/1.1 200 "));
    assert!(log_in(world.connect_from_elsewhere(admin)).starts_with("HTTP/1.1 200 "));
    world.end();
}

#[test]
fn frames_and_messages_of_a_login_that_are_too_long_end_their_connection() {
    let world = World::start();
    let at = world.config.kafka.listen;
    // A frame of a gigabyte, and one that only who is known may send.
    for length in [1_u32 << 30, 1 << 20] {
        let mut socket = connect(at);
        socket.write_all(&length.to_be_bytes()).unwrap();
        // It may be closed already.
        let _ = socket.write_all(&[0; 64]);
        assert!(is_closed(&mut socket), "{length}");
    }
    // A message within a frame that is short enough.
    let mut socket = connect(at);
    begin_login(&mut socket);
    let message = SaslAuthenticateRequest { auth_bytes: vec![b'n'; MESSAGE_BYTES_MAX + 1].into() };
    assert_eq!(kafka(&mut socket, 1, &message).error_code, REFUSED);
    assert!(is_closed(&mut socket));
    // A mechanism that nobody knows, of 30,000 bytes.
    let mut socket = connect(at);
    let asked = SaslHandshakeRequest { mechanism: "S".repeat(30_000) };
    assert_eq!(kafka(&mut socket, 1, &asked).error_code, ErrorCode::UnsupportedSaslMechanism.number());
    begin_login(&mut connect(at));
    world.end();
}

#[test]
fn connections_that_never_log_in_leave_room_for_those_of_other_addresses() {
    let world = World::start();
    let at = world.config.kafka.listen;
    let mut half: Vec<TcpStream> = (0..STRANGERS_MAX)
        .map(|number| {
            let mut socket = connect(at);
            // Some say nothing, others stop within a frame.
            if number % 2 == 0 {
                socket.write_all(&[0, 0, 0, 20, 0, 18]).unwrap();
            }
            socket
        })
        .collect();
    let mut last = connect(at);
    kafka_asked(&mut last, 0, &ApiVersionsRequest::default());
    assert!(is_closed(&mut last), "the address has as many as it may");
    let mut other = world.connect_from_elsewhere(at);
    assert_eq!(kafka(&mut other, 0, &ApiVersionsRequest::default()).error_code, 0);
    // A place that is free again is had again.
    drop(half.pop());
    loop {
        let mut again = connect(at);
        kafka_asked(&mut again, 0, &ApiVersionsRequest::default());
        if !is_closed_or_answers(&mut again) {
            break;
        }
    }
    world.end();
}

/// Whether it was closed; otherwise it has answered.
fn is_closed_or_answers(socket: &mut TcpStream) -> bool {
    if socket.peek(&mut [0]).is_ok_and(|count| count > 0) {
        assert_eq!(kafka_answer::<ApiVersionsRequest>(socket, 0).error_code, 0);
        return false;
    }
    true
}
