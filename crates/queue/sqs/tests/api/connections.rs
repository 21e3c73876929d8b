//! Clients that hold connections, and room, without asking for anything.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use serde_json::{Value, json};
use tailwater_sqs::{Server, SqsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::Api;
use super::waiting::waiting_at;

async fn serve(api: &Api) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    Server::start(listener, Arc::clone(&api.front)).expect("it listens")
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("it listens")
}

fn request(action: &str, body: &Value) -> String {
    let (target, body) = (format!("x-amz-target: AmazonSQS.{action}"), body.to_string());
    let length = body.len();
    format!("POST / HTTP/1.1\r\nhost: h\r\n{target}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// What is told over a connection as far as its status.
async fn status(client: &mut TcpStream) -> String {
    let mut told = [0; 12];
    client.read_exact(&mut told).await.expect("an answer");
    String::from_utf8(told.to_vec()).expect("text")
}

/// Waits until a connection has ended.
async fn ended(client: &mut TcpStream) {
    // It may be reset.
    while client.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
}

#[tokio::test]
async fn one_address_has_its_part_of_the_connections_and_no_more() {
    let api = Api::open(SqsConfig { connections_per_address_max: 2, ..SqsConfig::default() });
    let server = serve(&api).await;
    let ask = request("ListQueues", &json!({}));
    let (mut one, mut two) = (connect(&server).await, connect(&server).await);
    for client in [&mut one, &mut two] {
        client.write_all(ask.as_bytes()).await.expect("sent");
        assert_eq!(status(client).await, "HTTP/1.1 200");
    }
    ended(&mut connect(&server).await).await;
    let elsewhere = TcpSocket::new_v4().expect("a socket");
    elsewhere.bind("127.0.0.2:0".parse().expect("an address")).expect("all of them are ours");
    let mut elsewhere = elsewhere.connect(server.address()).await.expect("it listens");
    elsewhere.write_all(ask.as_bytes()).await.expect("sent");
    assert_eq!(status(&mut elsewhere).await, "HTTP/1.1 200");
    // When one of them ends there is room for another one.
    drop(one);
    loop {
        let mut next = connect(&server).await;
        // It may be refused once more, until that is known.
        if next.write_all(ask.as_bytes()).await.is_ok() && next.read_u8().await.is_ok() {
            break;
        }
    }
}

#[tokio::test]
async fn a_connection_without_a_request_ends_and_one_that_has_asked_something_stays() {
    let api = Api::open(SqsConfig { head_ms: 200, ..SqsConfig::default() });
    let server = serve(&api).await;
    let ask = request("ListQueues", &json!({}));
    let mut known = loop {
        let mut next = connect(&server).await;
        let mut told = [0; 12];
        // Whoever stands still for that time before it asks has no answer.
        if next.write_all(ask.as_bytes()).await.is_ok() && next.read_exact(&mut told).await.is_ok() {
            assert_eq!(&told, b"HTTP/1.1 200");
            break next;
        }
    };
    let (mut silent, mut slow, mut healthy) =
        (connect(&server).await, connect(&server).await, connect(&server).await);
    slow.write_all(b"POST / HTTP/1.1\r\nhost: ").await.expect("sent");
    healthy.write_all(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n").await.expect("sent");
    for client in [&mut silent, &mut slow, &mut healthy] {
        ended(client).await;
    }
    known.write_all(request("ListQueues", &json!({})).as_bytes()).await.expect("it is still there");
    while known.read_u8().await.expect("an answer") != b'H' {}
}

#[tokio::test]
async fn bodies_that_do_not_come_keep_no_room_from_those_that_do() {
    // Room for one body.
    let config = SqsConfig {
        body_bytes_max: 1 << 20,
        bodies_bytes_max: 1 << 20,
        stalled_ms: 5_000,
        head_ms: 5_000,
        ..SqsConfig::default()
    };
    let api = Api::open(config);
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let server = serve(&api).await;
    let mut slow = connect(&server).await;
    let head = format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", 1 << 20);
    slow.write_all(head.as_bytes()).await.expect("sent");
    slow.write_all(&[b'x'; 100_000]).await.expect("sent");
    let mut client = connect(&server).await;
    let long = json!({"QueueUrl": url, "MessageBody": "x".repeat(400_000)});
    client.write_all(request("SendMessage", &long).as_bytes()).await.expect("sent");
    // Not only when the slow one was given up.
    let answered = match select(pin!(status(&mut client)), pin!(slow.read_u8())).await {
        Either::Left((answered, _)) => answered,
        Either::Right(_) => panic!("the slow one was answered first"),
    };
    assert_eq!(answered, "HTTP/1.1 200");
}

#[tokio::test]
async fn bodies_that_wait_for_each_other_s_room_come_all_when_their_clients_try_again() {
    let config = SqsConfig { body_bytes_max: 1 << 20, bodies_bytes_max: 1 << 20, ..SqsConfig::default() };
    let api = Api::open(config);
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let server = serve(&api).await;
    let long = request("SendMessage", &json!({"QueueUrl": url, "MessageBody": "x".repeat(900_000)}));
    let send = async || loop {
        let mut client = connect(&server).await;
        // One that is refused is not read to its end.
        let _ = client.write_all(long.as_bytes()).await;
        let mut told = [0; 12];
        if client.read_exact(&mut told).await.is_ok() && &told == b"HTTP/1.1 200" {
            return;
        }
    };
    futures::future::join_all((0..4).map(|_| send())).await;
}

#[tokio::test]
async fn who_says_that_it_waits_no_longer_is_answered_nothing_and_nothing_is_received_for_it() {
    let api = Api::open(SqsConfig::default());
    let server = serve(&api).await;
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let mut client = connect(&server).await;
    let receive = request("ReceiveMessage", &json!({"QueueUrl": url, "WaitTimeSeconds": 20}));
    client.write_all(receive.as_bytes()).await.expect("sent");
    while waiting_at(&api).await == 0 {
        tokio::task::yield_now().await;
    }
    client.shutdown().await.expect("it is there");
    assert_eq!(client.read(&mut [0]).await.expect("an end"), 0, "no answer");
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "work"})).await;
    let received = api.done("ReceiveMessage", json!({"QueueUrl": url, "AttributeNames": ["All"]})).await;
    assert_eq!(received["Messages"][0]["Attributes"]["ApproximateReceiveCount"], "1", "{received}");
}
