//! Answers that are long, and clients that do not take them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use serde_json::{Value, json};
use tailwater_env::Env;
use tailwater_sqs::{Server, SqsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Api;

#[tokio::test]
async fn answers_that_nobody_takes_are_bounded_together_and_others_are_told() {
    const BYTES_MAX: usize = 1 << 20;
    let api = Api::open(SqsConfig { answers_bytes_max: BYTES_MAX, stalled_ms: 200, ..SqsConfig::default() });
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "x".repeat(100_000)})).await;
    let receive = || {
        let request =
            Request::post("/").header("x-amz-target", "AmazonSQS.ReceiveMessage").header("host", "h:1");
        let body = Bytes::from(json!({"QueueUrl": url, "VisibilityTimeout": 0}).to_string());
        api.front.answer(&api.peer, request.body(Full::new(body)).expect("a request"))
    };
    let answers = futures::future::join_all((0..20).map(|_| receive())).await;
    let (good, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert!(good.len() * 100_000 <= BYTES_MAX && good.len() > 5, "{} answers at the same time", good.len());
    assert!(refused.iter().all(|answer| answer.status() == 503));
    assert!(api.front.stats().answer_bytes > 500_000);
    // What is read is whole, and makes room for others.
    for answer in good {
        let body = answer.into_body().collect().await.expect("whole").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["Messages"][0]["Body"].as_str().map(str::len), Some(100_000));
    }
    assert_eq!(api.front.stats().answer_bytes, 0);
    assert_eq!(receive().await.status(), 200);
}

#[tokio::test]
async fn messages_for_whose_answer_there_is_no_room_count_as_not_received() {
    // Beside an answer that is kept there is not enough for messages as they are, or not for what becomes of them: in
    // XML each character of them is five.
    for (room, form) in [(300 << 10, false), (400 << 10, true)] {
        let api = Api::open(SqsConfig { answers_bytes_max: room, stalled_ms: 200, ..SqsConfig::default() });
        let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
        for _ in 0..2 {
            api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "&".repeat(50_000)})).await;
        }
        let receive = async |form: bool| {
            let request = Request::post("/000000000000/q").header("host", "h:1");
            let (request, body) = match form {
                true => (
                    request.header("content-type", "application/x-www-form-urlencoded"),
                    "Action=ReceiveMessage&WaitTimeSeconds=20".to_owned(),
                ),
                false => (
                    request.header("x-amz-target", "AmazonSQS.ReceiveMessage"),
                    json!({"QueueUrl": url, "WaitTimeSeconds": 20, "AttributeNames": ["All"]}).to_string(),
                ),
            };
            api.front.answer(&api.peer, request.body(Full::new(body.into())).expect("a request")).await
        };
        let kept = receive(true).await;
        assert_eq!(kept.status(), 200);
        for _ in 0..3 {
            assert_eq!(receive(form).await.status(), 503, "in a form: {form}");
        }
        drop(kept);
        let body = receive(false).await.into_body().collect().await.expect("whole").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["Messages"][0]["Attributes"]["ApproximateReceiveCount"], "1", "in a form: {form}");
    }
}

#[tokio::test]
async fn a_client_that_takes_its_answer_too_slowly_is_left_and_its_room_is_free() {
    let api = Api::open(SqsConfig { stalled_ms: 5_000, ..SqsConfig::default() });
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    for _ in 0..10 {
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "x".repeat(1_000_000)})).await;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = Server::start(listener, Arc::clone(&api.front)).expect("it listens");
    let mut client = TcpStream::connect(server.address()).await.expect("it listens");
    let body = json!({"QueueUrl": url, "MaxNumberOfMessages": 10}).to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: h\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).await.expect("sent");
    let (mut part, mut read) = ([0; 4096], client.read_u8().await.map(|_| 1).expect("an answer"));
    assert!(api.front.stats().answer_bytes >= 10_000_000);
    // It goes on to read, and so to be sent something now and then.
    while api.front.stats().connections > 0 {
        // At its end the connection may be reset.
        read += client.read(&mut part).await.unwrap_or(0);
        assert!(read < 10_000_000, "it was sent all of it");
        Env::real().sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(api.front.stats().answer_bytes, 0);
}

#[tokio::test]
async fn a_look_at_long_messages_has_a_few_of_them_and_goes_on_behind() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    for number in 0..25 {
        let message = json!({"QueueUrl": url, "MessageBody": format!("{number} {}", "x".repeat(200_000))});
        api.done("SendMessage", message).await;
    }
    let (mut seen, mut from) = (0, json!(0));
    while !from.is_null() {
        let request =
            Request::post("/").header("x-amz-target", "Tailwater.PeekMessages").header("host", "h:1");
        let body = json!({"QueueUrl": url, "From": from, "MaxNumberOfMessages": 100}).to_string();
        let (status, _, body) = api.send(request.body(Full::new(body.into())).expect("a request")).await;
        assert_eq!(status, 200, "{body}");
        assert!(body.len() < 1_200_000, "{} bytes", body.len());
        let body: Value = serde_json::from_str(&body).expect("JSON");
        for message in body["Messages"].as_array().expect("some") {
            assert!(message["Body"].as_str().expect("text").starts_with(&format!("{seen} ")));
            seen += 1;
        }
        from = body["Next"].clone();
    }
    assert_eq!(seen, 25);
}
