//! What is posted again is published once, if it says whose it is.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use tailwater_node::{Config, Node};

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Posts an array of events; the status, and what is answered.
fn post(address: SocketAddr, headers: &str, body: &str) -> (u16, serde_json::Value) {
    let mut socket = TcpStream::connect(address).unwrap();
    let path = "/v1/streams/local/news/events";
    let kind = format!("content-type: application/json\r\nconnection: close\r\n{headers}");
    let head = format!("POST {path} HTTP/1.1\r\nhost: node\r\n{kind}content-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn what_is_posted_again_with_its_publisher_and_its_number_is_published_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
    (config.listen.data, config.listen.admin) = (free_address(), free_address());
    config.broadcast.listen = free_address();
    config.broadcast.http.listen = free_address();
    (config.sqs.enabled, config.kafka.enabled) = (false, false);
    assert_eq!(config.broadcast.region, "local");
    let address = config.broadcast.http.listen;
    let node = runtime.block_on(Node::start(config)).unwrap();
    let numbered = |number: &str| {
        format!("tailwater-publisher: 67e55044-10b1-426f-9247-bb680e5fe0c8\r\ntailwater-number: {number}\r\n")
    };
    let two = "[{\"payload\":\"1\"},{\"payload\":\"2\"}]";
    let answered = |answer: &serde_json::Value| {
        (answer["last"].as_u64().unwrap(), answer["repeated"].as_bool().unwrap())
    };
    let (_, first) = post(address, &numbered("1"), two);
    assert_eq!(answered(&first), (2, false));
    for _ in 0..2 {
        let (status, again) = post(address, &numbered("1"), two);
        assert_eq!((status, answered(&again)), (200, (2, true)));
    }
    let (_, next) = post(address, &numbered("3"), "{\"payload\":\"3\"}");
    assert_eq!(answered(&next), (3, false), "nothing between them");
    let (status, gap) = post(address, &numbered("9"), "{}");
    assert_eq!((status, gap["error"].as_str()), (409, Some("gap")));
    let alone = "tailwater-number: 4\r\n".to_owned();
    for wrong in [alone, numbered("0"), numbered("18446744073709551615"), numbered("x")] {
        assert_eq!(post(address, &wrong, "{}").0, 400, "{wrong}");
    }
    // Without, each is an event of its own.
    for last in [4, 5] {
        assert_eq!(answered(&post(address, "", "{}").1), (last, false));
    }
    runtime.block_on(node.stop()).unwrap();
}
