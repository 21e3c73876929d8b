//! Clients of SQS's protocol that send and receive while servers die, and what they know.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::{Node, wait_for};

/// A client of SQS's protocol, as small as can be.
pub struct Client {
    url: String,
    queue: String,
    agent: ureq::Agent,
}

impl Client {
    pub fn new(node: &Node, queue: &str) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        let config = config.timeout_global(Some(super::PATIENCE));
        Self { url: format!("http://{}/", node.sqs), queue: queue.to_owned(), agent: config.build().into() }
    }

    /// The answer, if there is one, and it is 200.
    pub fn call(&self, action: &str, mut parameters: Value) -> Option<Value> {
        parameters["QueueUrl"] = self.queue.clone().into();
        let request = self.agent.post(&self.url).header("x-amz-target", format!("AmazonSQS.{action}"));
        let mut answer = request.send(parameters.to_string()).ok()?;
        answer.status().is_success().then(|| answer.body_mut().read_json().ok())?
    }
}

/// What the world outside knows.
#[derive(Default)]
pub struct Ledger {
    pub attempted: BTreeSet<String>,
    pub sent: BTreeSet<String>,
    /// Whose delete was asked for, answered or not.
    pub deleting: BTreeSet<String>,
    /// Whose delete was answered.
    pub deleted: BTreeSet<String>,
}

impl Ledger {
    pub fn counts(&self) -> (usize, usize) {
        (self.sent.len(), self.deleted.len())
    }
}

#[derive(Default)]
pub struct World {
    ledger: Mutex<Ledger>,
    numbers: AtomicU64,
    pub stop: AtomicBool,
}

impl World {
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no thread panics with it")
    }

    pub fn send(&self, client: &Client) {
        let bodies: Vec<String> = (0..3)
            .map(|_| format!("{}/{}", self.numbers.fetch_add(1, Ordering::Relaxed), "x".repeat(500)))
            .collect();
        self.ledger().attempted.extend(bodies.clone());
        let entries = bodies.iter().enumerate();
        let entries: Vec<Value> =
            entries.map(|(id, body)| json!({"Id": id.to_string(), "MessageBody": body})).collect();
        if client.call("SendMessageBatch", json!({"Entries": entries})).is_some() {
            self.ledger().sent.extend(bodies);
        }
    }

    /// Receives, and deletes what it gets but for some; how many it got.
    pub fn receive(&self, client: &Client, keep: bool) -> Option<usize> {
        let gone = self.ledger().deleted.clone();
        let parameters = json!({"MaxNumberOfMessages": 10, "WaitTimeSeconds": 1});
        let answer = client.call("ReceiveMessage", parameters)?;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        for message in &messages {
            let body = message["Body"].as_str().expect("text").to_owned();
            assert!(!gone.contains(&body), "{body} was deleted and came back");
            assert!(self.ledger().attempted.contains(&body), "{body} was never sent");
            if keep && self.numbers.load(Ordering::Relaxed).is_multiple_of(5) {
                continue; // its worker dies
            }
            self.ledger().deleting.insert(body.clone());
            let receipt = &message["ReceiptHandle"];
            if client.call("DeleteMessage", json!({"ReceiptHandle": receipt})).is_some() {
                self.ledger().deleted.insert(body);
            }
        }
        Some(messages.len())
    }
}

/// Sends and receives at all nodes until `during` has returned, which is called when there was some load.
pub fn under_load<T>(
    world: &Arc<World>,
    nodes: &[&Node],
    queue: &str,
    enough: usize,
    during: impl FnOnce() -> T,
) -> T {
    world.stop.store(false, Ordering::Relaxed);
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (world, client) = (Arc::clone(world), Client::new(nodes[number % nodes.len()], queue));
            let run = move || {
                while !world.stop.load(Ordering::Relaxed) {
                    if number < 2 {
                        world.send(&client);
                    } else {
                        world.receive(&client, true);
                    }
                }
            };
            std::thread::Builder::new().spawn(run).expect("a thread")
        })
        .collect();
    let before = world.ledger().counts();
    wait_for("some load", || {
        let (sent, deleted) = world.ledger().counts();
        (sent > before.0 + enough && deleted > before.1 + 50).then_some(())
    });
    let result = during();
    world.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("nothing came back");
    }
    result
}

/// Receives and deletes everything; everything that was sent has to have come.
pub fn drain(world: &World, client: &Client) {
    wait_for("the queue to be empty", || {
        let received = world.receive(client, false)?;
        let names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
        let answer = client.call("GetQueueAttributes", json!({"AttributeNames": names}))?;
        let is_empty = names.iter().all(|name| answer["Attributes"][name] == "0");
        (received == 0 && is_empty).then_some(())
    });
    let ledger = world.ledger();
    let lost: Vec<&String> = ledger.sent.difference(&ledger.deleting).collect();
    assert!(lost.is_empty(), "{} of {} were never received: {lost:?}", lost.len(), ledger.sent.len());
}
