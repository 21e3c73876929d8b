//! Receives that are stopped, at a server that answers what the test says.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

/// The body of the next request over a connection.
async fn request(stream: &mut TcpStream) -> Value {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let length = head.split_once("content-length: ").expect("it has a body").1;
    let length = length.lines().next().expect("a number").parse().expect("a number");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.expect("a body");
    serde_json::from_slice(&body).expect("JSON")
}

async fn answer(stream: &mut TcpStream, body: &Value) {
    let body = body.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head, body].concat().into_bytes()).await.expect("sent");
}

/// A queue at a server; the connection over which it was asked for; and where the next one comes.
async fn opened() -> (Queue, TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let endpoint =
        Endpoint::new(&tailwater_env::Env::real(), &format!("http://{address}"), None).expect("an address");
    let served = async {
        let (mut stream, _) = listener.accept().await.expect("a client");
        request(&mut stream).await;
        answer(&mut stream, &json!({"QueueUrl": "q"})).await;
        request(&mut stream).await;
        answer(&mut stream, &json!({"Attributes": {"VisibilityTimeout": "30"}})).await;
        stream
    };
    let (queue, stream) = futures::join!(endpoint.queue("q"), served);
    (queue.expect("there"), stream, listener)
}

#[tokio::test]
async fn what_was_answered_before_a_server_heard_of_the_stop_is_received_and_its_connection_is_not_used_again()
 {
    let (queue, mut stream, listener) = opened().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let receive = queue.receive_until(1, async { stopped.await.expect("it is told") });
    let served = async {
        assert_eq!(request(&mut stream).await["MaxNumberOfMessages"], 1);
        stop.send(()).expect("it waits");
        assert_eq!(stream.read(&mut [0]).await.expect("an end"), 0, "nothing more is asked");
        let message = json!({"Body": "work", "MessageId": "1", "ReceiptHandle": "first"});
        answer(&mut stream, &json!({"Messages": [message]})).await;
    };
    let (received, ()) = futures::join!(receive, served);
    let received = received.expect("answered");
    assert_eq!(received.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["work"]);

    let served = async {
        let (mut stream, _) = listener.accept().await.expect("another connection");
        let asked = request(&mut stream).await;
        answer(&mut stream, &json!({})).await;
        asked
    };
    let (told, asked) = futures::join!(queue.change_visibility(&received[0], 0), served);
    told.expect("told");
    assert_eq!((&asked["ReceiptHandle"], &asked["VisibilityTimeout"]), (&json!("first"), &json!(0)));
}

#[tokio::test]
async fn a_receive_that_is_stopped_and_not_answered_has_nothing() {
    let (queue, mut stream, _listener) = opened().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let receive = queue.receive_until(1, async { stopped.await.expect("it is told") });
    let served = async {
        request(&mut stream).await;
        stop.send(()).expect("it waits");
        assert_eq!(stream.read(&mut [0]).await.expect("an end"), 0);
        drop(stream);
    };
    let (received, ()) = futures::join!(receive, served);
    assert_eq!(received.expect("no error").len(), 0);
}
