//! Clients of SQS's protocol that send and receive while servers die, and what they know.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Of a FIFO queue, the number that each message was answered or received with.
    numbers: BTreeMap<String, String>,
    /// Of a FIFO queue, what was attempted and is not in `deleting`.
    left: BTreeSet<String>,
}

impl Ledger {
    pub fn counts(&self) -> (usize, usize) {
        (self.sent.len(), self.deleted.len())
    }

    /// A deduplication id stands for one message, however often it was sent.
    fn one_message(&mut self, body: &str, number: &Value) {
        let number = number.as_str().expect("text");
        let known = self.numbers.entry(body.to_owned()).or_insert_with(|| number.to_owned());
        assert_eq!(known, number, "{body} was sent with one deduplication id, and is there twice");
    }

    /// All that was sent to a message's group before it is deleted, or was received just before it.
    fn in_order(&self, body: &str, just_before: &[String]) {
        let group = format!("{}/", group_of(body));
        for before in self.left.range(group..body.to_owned()) {
            assert!(just_before.contains(before), "{body} was received, and {before} was not");
        }
    }
}

/// Senders that [`under_load`] has.
const SENDERS: usize = 2;

/// Groups that each of them sends to; no two send to the same.
const GROUPS: u64 = 3;

fn group_of(body: &str) -> &str {
    body.split('/').next().expect("a first part")
}

/// Messages on their way to a FIFO queue: they are sent until that is answered, and with the same deduplication ids
/// always.
#[derive(Default)]
struct OnTheirWay {
    bodies: Vec<String>,
    answers: usize,
}

#[derive(Default)]
pub struct World {
    ledger: Mutex<Ledger>,
    numbers: AtomicU64,
    pub stop: AtomicBool,
    /// Of a FIFO queue: of each sender.
    on_their_way: Option<[Mutex<OnTheirWay>; SENDERS]>,
}

impl World {
    /// One with a FIFO queue.
    pub fn fifo() -> Self {
        Self { on_their_way: Some(Default::default()), ..Self::default() }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no thread panics with it")
    }

    fn send(&self, client: &Client, sender: usize) {
        match &self.on_their_way {
            Some(on_their_way) => {
                let mut on_its_way = on_their_way[sender].lock().expect("no thread panics with it");
                self.send_to_groups(client, sender, &mut on_its_way);
            }
            None => self.send_to_none(client),
        }
    }

    /// Sends to groups of the sender, in order: nothing before what it sent last was answered. Now and then it is not
    /// sure that it was, and sends again.
    fn send_to_groups(&self, client: &Client, sender: usize, on_their_way: &mut OnTheirWay) {
        if on_their_way.bodies.is_empty() {
            let bodies = (0..3_u64).map(|place| {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                // Two of them to the same group.
                let group = sender as u64 * GROUPS + (number - place / 2) % GROUPS;
                format!("{group}/{number:09}/{}", "x".repeat(500))
            });
            *on_their_way = OnTheirWay { bodies: bodies.collect(), answers: 0 };
            let mut ledger = self.ledger();
            ledger.attempted.extend(on_their_way.bodies.clone());
            ledger.left.extend(on_their_way.bodies.clone());
        }
        let entries = on_their_way.bodies.iter().enumerate();
        let entries: Vec<Value> = entries
            .map(|(id, body)| {
                let (group, name) = (group_of(body), &body[..body.len() - 501]);
                json!({"Id": id.to_string(), "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": name})
            })
            .collect();
        let Some(answer) = client.call("SendMessageBatch", json!({"Entries": entries})) else { return };
        let mut ledger = self.ledger();
        for sent in answer["Successful"].as_array().into_iter().flatten() {
            let id: usize = sent["Id"].as_str().and_then(|id| id.parse().ok()).expect("as it was sent");
            ledger.one_message(&on_their_way.bodies[id], &sent["SequenceNumber"]);
        }
        // Whoever could not be answered for some sends all again.
        if !answer["Failed"].is_null() {
            return;
        }
        ledger.sent.extend(on_their_way.bodies.clone());
        on_their_way.answers += 1;
        let is_unsure = on_their_way.answers == 1 && ledger.sent.len().is_multiple_of(4);
        if !is_unsure {
            on_their_way.bodies.clear();
        }
    }

    fn send_to_none(&self, client: &Client) {
        let bodies: Vec<String> = (0..3)
            .map(|_| format!("{}/{}", self.numbers.fetch_add(1, Ordering::Relaxed), "x".repeat(500)))
            .collect();
        self.ledger().attempted.extend(bodies.clone());
        let entries = bodies.iter().enumerate();
        let entries: Vec<Value> =
            entries.map(|(id, body)| json!({"Id": id.to_string(), "MessageBody": body})).collect();
        let Some(answer) = client.call("SendMessageBatch", json!({"Entries": entries})) else { return };
        // Some of them may have failed.
        for sent in answer["Successful"].as_array().into_iter().flatten() {
            let id: usize = sent["Id"].as_str().and_then(|id| id.parse().ok()).expect("it was given");
            self.ledger().sent.insert(bodies[id].clone());
        }
    }

    /// Receives, and deletes what it gets but for some; how many it got.
    pub fn receive(&self, client: &Client, keep: bool) -> Option<usize> {
        let gone = self.ledger().deleted.clone();
        let parameters =
            json!({"MaxNumberOfMessages": 10, "WaitTimeSeconds": 1, "AttributeNames": ["SequenceNumber"]});
        let answer = client.call("ReceiveMessage", parameters)?;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        let bodies = messages.iter().map(|message| message["Body"].as_str().expect("text").to_owned());
        let bodies: Vec<String> = bodies.collect();
        for (place, (body, message)) in bodies.iter().zip(&messages).enumerate() {
            assert!(!gone.contains(body), "{body} was deleted and came back");
            let mut ledger = self.ledger();
            assert!(ledger.attempted.contains(body), "{body} was never sent");
            if self.on_their_way.is_some() {
                ledger.one_message(body, &message["Attributes"]["SequenceNumber"]);
                ledger.in_order(body, &bodies[..place]);
            }
        }
        let asked = bodies.into_iter().zip(messages.iter().map(|message| &message["ReceiptHandle"]));
        let numbers = self.numbers.load(Ordering::Relaxed)..;
        // The worker of some dies.
        let asked = numbers.zip(asked).filter(|(number, _)| !keep || !number.is_multiple_of(5));
        let asked: Vec<(String, &Value)> = asked.map(|(_, asked)| asked).collect();
        // Each for itself, while there are several workers; but what is left at the end goes faster together.
        let at_once = if keep { 1 } else { 10 };
        for asked in asked.chunks(at_once) {
            self.delete(client, asked);
        }
        Some(messages.len())
    }

    /// Deletes messages of receipts, one or some.
    fn delete(&self, client: &Client, asked: &[(String, &Value)]) {
        let mut ledger = self.ledger();
        for (body, _) in asked {
            ledger.left.remove(body);
            ledger.deleting.insert(body.clone());
        }
        drop(ledger);
        let entries = asked.iter().enumerate();
        let entries: Vec<Value> = entries
            .map(|(id, (_, receipt))| json!({"Id": id.to_string(), "ReceiptHandle": receipt}))
            .collect();
        let Some(answer) = client.call("DeleteMessageBatch", json!({"Entries": entries})) else { return };
        let deleted = answer["Successful"].as_array().cloned().unwrap_or_default();
        let place = |deleted: &Value| deleted["Id"].as_str().and_then(|id| id.parse::<usize>().ok());
        let deleted = deleted.iter().filter_map(place).map(|place| asked[place].0.clone());
        self.ledger().deleted.extend(deleted);
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
                    if number < SENDERS {
                        world.send(&client, number);
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
