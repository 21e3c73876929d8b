//! Receives that wait: what they cost meanwhile, counted in turns, which no busy machine makes more of, and what they
//! take from others.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::future::{BoxFuture, Either, select};
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tailwater_env::{Clock, Env, Instant, Random, Task, Tasks};
use tailwater_sqs::{Server, SqsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Api;

/// Receives that wait at the same time.
const WAITING: usize = 50;

/// Turns of the few requests that a test makes meanwhile: of a front or an owner that looks again and again it would be
/// more for each receive that waits.
const TURNS_MAX: usize = WAITING / 2;

/// A future that counts how often it is asked.
struct Counted<F: ?Sized> {
    future: Pin<Box<F>>,
    turns: Arc<AtomicUsize>,
}

impl<F: Future + ?Sized> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.future.as_mut().poll(context)
    }
}

/// The real world, in which the turns of the queues' owners are counted.
struct Counting {
    real: Env,
    owners: Arc<AtomicUsize>,
}

impl Clock for Counting {
    fn now(&self) -> Instant {
        self.real.now()
    }

    fn wall_ms(&self) -> i64 {
        self.real.wall_ms()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.real.sleep_until(deadline)
    }
}

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.real.random_u64()
    }
}

impl Tasks for Counting {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        match name {
            "queue-owner" => self.real.spawn(name, Counted { future, turns: Arc::clone(&self.owners) }),
            name => self.real.spawn(name, future),
        }
    }

    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.real.spawn_dedicated(name, future)
    }
}

/// Receives of the queue `q` that wait at the moment.
pub(super) async fn waiting_at(api: &Api) -> usize {
    let queues = api.front.queues();
    let queue = queues.find("000000000000", "q").await.expect("answered").expect("created");
    queues.figures(&queue).await.expect("there").waiting
}

/// Does something while others wait, who must not be answered.
async fn meanwhile<F, T>(waiting: &mut FuturesUnordered<F>, done: impl Future<Output = T>) -> T
where
    F: Future<Output = Value>,
{
    match select(pin!(done), waiting.next()).await {
        Either::Left((answer, _)) => answer,
        Either::Right((answer, _)) => panic!("{answer:?}, where there was nothing"),
    }
}

#[tokio::test]
async fn receives_that_wait_cost_nothing_until_there_is_something_for_one_of_them() {
    let owners = Arc::new(AtomicUsize::new(0));
    let world = Arc::new(Counting { real: Env::real(), owners: Arc::clone(&owners) });
    let disk = Arc::clone(world.real.disk());
    let env = Env::new(Arc::clone(&world) as _, Arc::clone(&world) as _, world, disk);
    let api = Api::open_in(env, SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let other = api.done("CreateQueue", json!({"QueueName": "other"})).await["QueueUrl"].clone();

    let receives = Arc::new(AtomicUsize::new(0));
    let mut waiting: FuturesUnordered<_> = (0..WAITING)
        .map(|_| {
            let receive = api.done("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": 20}));
            Counted { future: Box::pin(receive), turns: Arc::clone(&receives) }
        })
        .collect();
    let turns = || (owners.load(Ordering::SeqCst), receives.load(Ordering::SeqCst));
    while meanwhile(&mut waiting, waiting_at(&api)).await < WAITING {}
    let before = turns();
    assert!(before.0 > 0 && before.1 >= WAITING, "all are counted: {before:?}");

    // A second, by the node's own clock: one more that waits, for nothing. And whoever asks for something else is
    // answered.
    let one_second = api.done("ReceiveMessage", json!({"QueueUrl": other, "WaitTimeSeconds": 1}));
    assert_eq!(meanwhile(&mut waiting, one_second).await, json!({}));
    let asked = json!({"QueueUrl": url, "AttributeNames": ["All"]});
    let told = meanwhile(&mut waiting, api.done("GetQueueAttributes", asked)).await;
    assert_eq!(told["Attributes"]["ApproximateNumberOfMessages"], "0");
    let after = turns();
    assert!(after.0 - before.0 < TURNS_MAX, "the owner had {} turns", after.0 - before.0);
    assert_eq!(after.1, before.1, "somebody looked at those that wait");

    // Each message is one's, and no other's concern.
    let mut bodies = BTreeSet::new();
    for batch in 0..5 {
        let entries =
            (0..10).map(|id| json!({"Id": format!("{id}"), "MessageBody": format!("{batch}/{id}")}));
        let entries: Vec<Value> = entries.collect();
        let send = api.done("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries}));
        let (_, received): (_, Vec<Value>) = futures::join!(send, waiting.by_ref().take(10).collect());
        for received in received {
            assert_eq!(received["Messages"].as_array().map(Vec::len), Some(1), "{received}");
            let body = received["Messages"][0]["Body"].as_str().expect("text").to_owned();
            assert!(bodies.insert(body), "twice: {received}");
        }
        assert_eq!((bodies.len(), waiting.len()), (10 * (batch + 1), WAITING - 10 * (batch + 1)));
    }
    let at_last = turns();
    // One turn is enough; a busy runtime may ask for another one.
    assert!(at_last.1 - after.1 <= 2 * WAITING, "{} turns of those that waited", at_last.1 - after.1);
    assert!(at_last.0 - after.0 < WAITING, "the owner had {} turns for five batches", at_last.0 - after.0);
}

#[tokio::test]
async fn receives_that_wait_hold_nothing_that_the_bodies_of_others_need() {
    // Room for one body.
    let config = SqsConfig { body_bytes_max: 1 << 20, bodies_bytes_max: 1 << 20, ..SqsConfig::default() };
    let api = Api::open(config);
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = Server::start(listener, Arc::clone(&api.front)).expect("it listens");
    let ask = async |head: &str, body: String| {
        let mut client = TcpStream::connect(server.address()).await.expect("it listens");
        let request = format!("{head} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{body}");
        client.write_all(request.as_bytes()).await.expect("sent");
        client
    };
    let target = |action: &str| format!("x-amz-target: AmazonSQS.{action}\r\n");
    let in_chunks = |action: &str, body: &Value| {
        let body = body.to_string();
        let head = target(action) + "transfer-encoding: chunked\r\n\r\n";
        format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    };
    let whole = |action: &str, body: &Value| {
        let body = body.to_string();
        format!("{}content-length: {}\r\n\r\n{body}", target(action), body.len())
    };

    // One has no body, and the other one does not say how long it is.
    let query = "GET /000000000000/q?Action=ReceiveMessage&WaitTimeSeconds=20";
    let form = ask(query, "\r\n".to_owned()).await;
    let receive = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
    let chunked = ask("POST /", in_chunks("ReceiveMessage", &receive)).await;
    while waiting_at(&api).await < 2 {
        assert!(
            form.try_read(&mut [0]).is_err(),
            "one of them did not begin to wait before the other one's end"
        );
        tokio::task::yield_now().await;
    }
    // One that would hold much does not wait.
    let padded = json!({"QueueUrl": url, "WaitTimeSeconds": 20, "x": "x".repeat(100_000)});
    let long = json!({"QueueUrl": url, "MessageBody": "x".repeat(100_000)});
    for (request, answer) in [
        (whole("ReceiveMessage", &padded), "HTTP/1.1 400 "),
        (in_chunks("ReceiveMessage", &padded), "HTTP/1.1 400 "),
        (whole("SendMessage", &long), "HTTP/1.1 200 "),
        (in_chunks("SendMessage", &long), "HTTP/1.1 200 "),
    ] {
        let mut told = String::new();
        ask("POST /", request).await.read_to_string(&mut told).await.expect("an answer");
        assert!(told.starts_with(answer), "{told}");
    }
    for mut client in [form, chunked] {
        let mut told = String::new();
        client.read_to_string(&mut told).await.expect("an answer");
        assert!(told.contains("xxx"), "it waited in vain: {told}");
    }
}
