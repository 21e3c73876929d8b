//! Listening to broadcasts over WebSockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::logins::{try_listen, wait_for_end};
use crate::support::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, HandshakeError, Message, WebSocket, client};

/// Where it is answered, as `host:port`.
fn address(node: &Node) -> String {
    let view: Value = serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    view["broadcast"]["http"].as_str().expect("an address").to_owned()
}

fn publish(address: &str, stream: &str, headers: &[(&str, &str)], body: &[u8]) {
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    let mut request = agent.post(format!("http://{address}/v1/streams/{stream}/events"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send(body).expect("it is published");
}

/// A listener.
#[derive(Debug)]
struct Socket(WebSocket<TcpStream>);

impl Socket {
    /// Opens one; the status if that is refused.
    fn try_open(address: &str, query: &str, origin: Option<&str>) -> Result<Self, u16> {
        let mut request = format!("ws://{address}/v1/ws?{query}").into_client_request().expect("a request");
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().expect("a header"));
        }
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        match client(request, stream) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(HandshakeError::Failure(Error::Http(answer))) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens one, and answers with it the token where it begins.
    fn open(address: &str, query: &str) -> (Self, String) {
        let mut socket = Self::try_open(address, query, None).expect("it is open");
        let begin = socket.next().expect("a message");
        assert!(begin["stream"].is_null(), "{begin}");
        (socket, begin["token"].as_str().expect("a token").to_owned())
    }

    /// The next message, or how the connection was closed.
    fn next(&mut self) -> Result<Value, CloseCode> {
        loop {
            match self.0.read().expect("it is open") {
                Message::Text(text) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Message::Close(frame) => {
                    let frame = frame.expect("a reason");
                    assert!(!frame.reason.is_empty());
                    return Err(frame.code);
                }
                _ => {}
            }
        }
    }

    /// The events of the next batches until there are `count`; and the last token.
    fn take(&mut self, count: usize) -> (Vec<Value>, String) {
        let (mut all, mut token) = (Vec::new(), String::new());
        while all.len() < count {
            let message = self.next().expect("a message");
            all.extend(message["events"].as_array().expect("events").iter().cloned());
            token = message["token"].as_str().expect("a token").to_owned();
        }
        assert_eq!(all.len(), count, "{all:?}");
        (all, token)
    }
}

#[test]
fn a_listener_that_was_cut_off_goes_on_behind_its_token_and_misses_nothing() {
    let (_dir, node) = Node::start_anew();
    let address = address(&node);
    let (mut live, begin) = Socket::open(&address, "from=now");
    publish(&address, "local/prices", &[("tailwater-key", "k")], b"one");
    let (events, token) = live.take(1);
    assert_eq!((&events[0]["payload"], &events[0]["key"]), (&json!("one"), &json!("k")));
    drop(live); // without a close
    publish(&address, "local/prices", &[], b"\xff\x00");
    let (mut again, resumed) = Socket::open(&address, &format!("token={token}"));
    assert_eq!(resumed, token);
    let (events, _) = again.take(1);
    assert_eq!((&events[0]["seq"], &events[0]["payload"]), (&json!(2), &json!({"base64": "/wA="})));
    // From where the first one began it is both.
    assert_eq!(Socket::open(&address, &format!("token={begin}")).0.take(2).0.len(), 2);

    again.0.close(None).expect("it is open");
    wait_for("the answer to the close", || {
        matches!(again.0.read(), Err(Error::ConnectionClosed)).then_some(())
    });
}

#[test]
fn a_listener_that_does_not_read_is_cut_off_and_catches_up_and_hurts_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = [
        ("TAILWATER_BROADCAST__HTTP__LISTENER_BYTES_MAX", "65536"),
        ("TAILWATER_BROADCAST__HTTP__TIMEOUT_MS", "600000"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &small);
    let address = address(&node);
    let (mut slow, _) = Socket::open(&address, "stream=local/s&from=start");
    let (mut quick, _) = Socket::open(&address, "stream=local/s&from=start");
    let all = |socket: &mut Socket| {
        let (mut last, mut collected) = (0, 0);
        while last < 400 {
            let message = socket.next().expect("a message");
            if message["stale"].is_boolean() {
                continue;
            }
            assert_eq!(message["after"], last);
            last = message["last"].as_u64().expect("a number");
            let events = message["events"].as_array().expect("events");
            collected += events.iter().filter_map(|event| event["tombstone"].as_u64()).sum::<u64>();
        }
        collected
    };
    let reader = std::thread::Builder::new().spawn(move || all(&mut quick)).expect("a thread");
    // Far more than sockets and the ring hold.
    let payload = vec![b'x'; 100_000];
    for _ in 0..400 {
        publish(&address, "local/s", &[("tailwater-collect", "keep-last=10")], &payload);
    }
    reader.join().expect("the other one got all in order");
    let collected = all(&mut slow);
    assert!(collected > 100, "{collected} of 400 came as tombstones");
}

#[test]
fn whatever_a_client_sends_ends_its_own_connection_only_and_with_the_reason() {
    let (_dir, node) = Node::start_anew();
    let address = address(&node);
    let (mut other, _) = Socket::open(&address, "from=now");
    type Garbage = fn(&mut WebSocket<TcpStream>);
    let garbage: [(Garbage, CloseCode); 5] = [
        (|socket| socket.send(Message::text("hello")).expect("sent"), CloseCode::Policy),
        (|socket| socket.send(Message::binary(vec![0; 5])).expect("sent"), CloseCode::Policy),
        (|socket| socket.send(Message::binary(vec![0; 100_000])).expect("sent"), CloseCode::Size),
        (
            |socket| write(socket, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            CloseCode::Protocol,
        ),
        // Not masked, as only a server's is.
        (|socket| write(socket, b"\x81\x01a"), CloseCode::Protocol),
    ];
    for (number, (send, code)) in garbage.into_iter().enumerate() {
        let (mut socket, _) = Socket::open(&address, "from=now");
        send(&mut socket.0);
        assert_eq!(socket.next(), Err(code), "of {number}");
    }
    // No text that is UTF-8.
    let (mut socket, _) = Socket::open(&address, "from=now");
    let frame = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    socket.0.send(Message::Frame(frame)).expect("sent");
    assert_eq!(socket.next(), Err(CloseCode::Invalid));
    publish(&address, "local/s", &[], b"still there");
    assert_eq!(other.take(1).0[0]["payload"], "still there");
}

/// Past the library.
fn write(socket: &mut WebSocket<TcpStream>, bytes: &[u8]) {
    std::io::Write::write_all(socket.get_mut(), bytes).expect("written");
}

#[test]
fn a_request_that_can_not_become_a_websocket_is_answered_with_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let allowed = [
        ("TAILWATER_BROADCAST__HTTP__ORIGINS", "[\"https://good.example\"]"),
        ("TAILWATER_BROADCAST__HTTP__CONNECTIONS_MAX", "3"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &allowed);
    let address = address(&node);
    let refused = |query: &str, origin| Socket::try_open(&address, query, origin).err();
    assert_eq!(refused("token=abc", None), Some(400));
    assert_eq!(refused("stream=x", None), Some(400));
    assert_eq!(refused("from=now", Some("https://evil.example")), Some(403));
    let plain: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
    let answer = plain.get(format!("http://{address}/v1/ws")).call().expect("it answers");
    assert_eq!(answer.status(), 426);

    // One more than there may be, and again one when another one has ended.
    let mut open: Vec<Socket> = (0..3)
        .map(|_| Socket::try_open(&address, "from=now", Some("https://good.example")).expect("open"))
        .collect();
    assert_eq!(refused("from=now", None), Some(503));
    open.pop();
    wait_for("room", || Socket::try_open(&address, "from=now", None).ok());
}

#[test]
fn listeners_end_when_their_token_s_time_is_over() {
    let (_dir, node) = Node::start_anew();
    // Where a token's time is over before both listen, the next one has more.
    let mut seconds = 5;
    let (token, events, mut socket) = wait_for("both to listen in time", || {
        let (name, expires) = (format!("ci-{seconds}"), format!("{seconds}s"));
        seconds *= 2;
        let create = ["token", "create", &name, "--allow", "read", "--broadcast", "local/*"];
        let token = node.run(&[&create[..], &["--expires", &expires]].concat()).trim().to_owned();
        let events = try_listen(&node, &format!("Bearer {token}"))?;
        let query = format!("from=now&access_token={token}");
        let socket = Socket::try_open(&address(&node), &query, None).ok()?;
        Some((token, events, socket))
    });
    let ended = std::iter::repeat_with(|| socket.next()).find_map(Result::err);
    assert_eq!(ended, Some(CloseCode::Policy));
    wait_for_end(events);
    let refused = Socket::try_open(&address(&node), &format!("from=now&access_token={token}"), None);
    assert_eq!(refused.err(), Some(401));
}

#[test]
fn a_node_that_stops_says_so() {
    let (_dir, mut node) = Node::start_anew();
    let (mut socket, _) = Socket::open(&address(&node), "from=now");
    assert!(node.process.stop());
    assert_eq!(socket.next(), Err(CloseCode::Away));
}

/// The next frame of a server that is no ping, which comes where nothing else did for a while: whether it is the last
/// one of its message, its code, and what it carries.
fn read_frame(from: &mut impl Read) -> (bool, u8, Vec<u8>) {
    loop {
        let frame = read_any_frame(from);
        if frame.1 != 9 {
            return frame;
        }
    }
}

fn read_any_frame(from: &mut impl Read) -> (bool, u8, Vec<u8>) {
    let mut head = [0; 2];
    from.read_exact(&mut head).expect("a frame");
    assert_eq!(head[1] & 0x80, 0, "a server masks nothing");
    let len = match head[1] {
        126 => {
            let mut len = [0; 2];
            from.read_exact(&mut len).expect("a length");
            u64::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            from.read_exact(&mut len).expect("a length");
            u64::from_be_bytes(len)
        }
        len => u64::from(len),
    };
    let mut bytes = vec![0; len as usize];
    from.read_exact(&mut bytes).expect("a payload");
    (head[0] & 0x80 != 0, head[0] & 0x0f, bytes)
}

#[test]
fn handshake_fragments_pong_and_close_are_those_of_rfc_6455_byte_by_byte() {
    let (_dir, node) = Node::start_anew();
    let address = address(&node);
    let mut socket = TcpStream::connect(&address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // The key and its answer are those of section 1.3; a browser names other connection options as well.
    let head = format!(
        "GET /v1/ws?from=now HTTP/1.1\r\nHost: {address}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).expect("written");
    let mut reader = BufReader::new(socket.try_clone().expect("a socket"));
    let mut answer = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if line == "\r\n" {
            break;
        }
        answer.push(line.trim_end().to_ascii_lowercase());
    }
    assert_eq!(answer[0], "http/1.1 101 switching protocols");
    assert!(answer.contains(&"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=".to_owned()), "{answer:?}");
    let (is_last, code, begin) = read_frame(&mut reader);
    assert_eq!((is_last, code), (true, 1));
    let begin: Value = serde_json::from_slice(&begin).expect("JSON");
    assert!(begin["token"].is_string());

    publish(&address, "local/s", &[], b"one");
    let (first_is_last, first, mut message) = read_frame(&mut reader);
    let (second_is_last, second, rest) = read_frame(&mut reader);
    assert_eq!(((first_is_last, first), (second_is_last, second)), ((false, 1), (true, 0)));
    message.extend(rest);
    let message: Value = serde_json::from_slice(&message).expect("JSON");
    assert_eq!(message["events"][0]["payload"], "one");

    // Masked with zeros, which leaves it as it is.
    socket.write_all(b"\x89\x82\0\0\0\0hi").expect("written");
    assert_eq!(read_frame(&mut reader), (true, 10, b"hi".to_vec()));
    socket.write_all(b"\x88\x82\0\0\0\0\x03\xe8").expect("written");
    assert_eq!(read_frame(&mut reader), (true, 8, b"\x03\xe8".to_vec()));
    assert_eq!(reader.read(&mut [0; 1]).expect("the end"), 0);
}
