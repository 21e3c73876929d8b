//! What is posted again is published once, if it says whose it is.

#![allow(clippy::disallowed_methods)] // a test of real sockets, which waits for their other ends

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use tailwater_node::{Config, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

fn free_address() -> SocketAddr {
    tailwater_load::free_address().unwrap()
}

/// What posts an array of events to a region.
fn request(region: &str, headers: &str, body: &str) -> String {
    let path = format!("/v1/streams/{region}/news/events");
    let kind = format!("content-type: application/json\r\nconnection: close\r\n{headers}");
    let head = format!("POST {path} HTTP/1.1\r\nhost: node\r\n{kind}content-length: {}\r\n\r\n", body.len());
    format!("{head}{body}")
}

/// An answer's status, and what it says.
fn parsed(answer: &str) -> (u16, serde_json::Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

/// Posts an array of events; the status, and what is answered.
fn post(address: SocketAddr, headers: &str, body: &str) -> (u16, serde_json::Value) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(request("local", headers, body).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    parsed(&answer)
}

/// A node with nothing but logs and broadcasts.
fn config(data: &Path) -> Config {
    let mut config = Config { data: data.to_owned(), ..Config::default() };
    (config.listen.data, config.listen.admin) = (free_address(), free_address());
    config.broadcast.listen = free_address();
    config.broadcast.http.listen = free_address();
    (config.sqs.enabled, config.kafka.enabled) = (false, false);
    assert_eq!(config.broadcast.region, "local");
    config
}

fn numbered(number: &str) -> String {
    format!("tailwater-publisher: 67e55044-10b1-426f-9247-bb680e5fe0c8\r\ntailwater-number: {number}\r\n")
}

#[test]
fn what_is_posted_again_with_its_publisher_and_its_number_is_published_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let address = config.broadcast.http.listen;
    let node = runtime.block_on(Node::start(config)).unwrap();
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

#[test]
fn one_numbered_request_more_than_may_be_under_way_is_told_to_come_later_and_others_go_on() {
    const NUMBERED_MAX: usize = 256;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    // Nobody answers there, so what is posted to it stays under way.
    config.broadcast.regions.insert("away".to_owned(), vec!["127.0.0.1:1".to_owned()]);
    config.broadcast.http.timeout_ms = 600_000;
    let address = config.broadcast.http.listen;
    let node = runtime.block_on(Node::start(config)).unwrap();
    let mut posts = JoinSet::new();
    for _ in 0..=NUMBERED_MAX {
        let post = async move {
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            socket.write_all(request("away", &numbered("1"), "{}").as_bytes()).await.unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await.unwrap();
            answer
        };
        posts.spawn_on(post, runtime.handle());
    }
    let (status, refused) = parsed(&runtime.block_on(posts.join_next()).unwrap().unwrap());
    assert_eq!((status, refused["error"].as_str()), (503, Some("unavailable")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("later"), "{refused}");
    assert_eq!(post(address, &numbered("1"), "{}").0, 503);
    assert_eq!(post(address, "", "{}").0, 200, "it has no connection of its own");
    // Those who are gone leave their room to others.
    runtime.block_on(posts.shutdown());
    while post(address, &numbered("1"), "{}").0 == 503 {}
    runtime.block_on(node.stop()).unwrap();
}
