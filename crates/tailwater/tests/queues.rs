//! Queues of real processes: kill -9 under load, and the command line.

#![allow(clippy::disallowed_methods)] // tests of real processes and real files

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};
use support::{Node, wait_for};

/// A client of SQS's protocol, as small as can be.
struct Client {
    url: String,
    queue: String,
    agent: ureq::Agent,
}

impl Client {
    fn new(node: &Node, queue: &str) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        let config = config.timeout_global(Some(support::PATIENCE));
        Self { url: format!("http://{}/", node.sqs), queue: queue.to_owned(), agent: config.build().into() }
    }

    /// The answer, if there is one, and it is 200.
    fn call(&self, action: &str, mut parameters: Value) -> Option<Value> {
        parameters["QueueUrl"] = self.queue.clone().into();
        let request = self.agent.post(&self.url).header("x-amz-target", format!("AmazonSQS.{action}"));
        let mut answer = request.send(parameters.to_string()).ok()?;
        answer.status().is_success().then(|| answer.body_mut().read_json().ok())?
    }
}

/// What the world outside knows.
#[derive(Default)]
struct Ledger {
    attempted: BTreeSet<String>,
    sent: BTreeSet<String>,
    /// Whose delete was asked for, answered or not.
    deleting: BTreeSet<String>,
    /// Whose delete was answered.
    deleted: BTreeSet<String>,
}

impl Ledger {
    fn counts(&self) -> (usize, usize) {
        (self.sent.len(), self.deleted.len())
    }
}

#[derive(Default)]
struct World {
    ledger: Mutex<Ledger>,
    numbers: AtomicU64,
    stop: AtomicBool,
}

impl World {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no thread panics with it")
    }

    fn send(&self, client: &Client) {
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
    fn receive(&self, client: &Client, keep: bool) -> Option<usize> {
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

#[test]
fn what_was_sent_is_received_until_it_is_deleted_although_the_node_is_killed_again_and_again() {
    let dir = tempfile::tempdir().expect("a directory");
    // Checkpoints come and go while it runs.
    let environment = [("TAILWATER_QUEUES__CHECKPOINT_BYTES", "4194304")];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["queue", "create", "q", "--visibility-timeout", "1"]);
    let world = Arc::new(World::default());
    let queue = format!("http://{}/000000000000/q", node.sqs);
    for round in 0..5_u64 {
        world.stop.store(false, Ordering::Relaxed);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (world, client) = (Arc::clone(&world), Client::new(&node, &queue));
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
            let enough = (200 + 150 * round) as usize;
            (sent > before.0 + enough && deleted > before.1 + 50).then_some(())
        });
        node.process.kill();
        world.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("nothing came back");
        }
        node.restart();
    }
    let client = Client::new(&node, &queue);
    wait_for("the queue to be empty", || {
        let received = world.receive(&client, false).expect("it answers");
        let names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
        let answer = client.call("GetQueueAttributes", json!({"AttributeNames": names})).expect("it answers");
        let is_empty = names.iter().all(|name| answer["Attributes"][name] == "0");
        (received == 0 && is_empty).then_some(())
    });
    let ledger = world.ledger();
    let lost: Vec<&String> = ledger.sent.difference(&ledger.deleting).collect();
    assert!(lost.is_empty(), "{} of {} were never received: {lost:?}", lost.len(), ledger.sent.len());
    assert!(node.process.stop(), "it stops in order");
}

#[test]
fn the_command_line_sends_looks_receives_and_moves() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["queue", "create", "dead"]);
    let args = [
        "queue",
        "create",
        "work",
        "--dead-letter-queue",
        "dead",
        "--max-receives",
        "1",
        "--order-hint",
        "2",
    ];
    assert!(node.run(&args).trim().ends_with("/000000000000/work"));
    let file = dir.path().join("message");
    std::fs::write(&file, "from\na file").expect("written");
    assert_eq!(node.run(&["queue", "send", "work", "one", "--attribute", "a=b"]), "1 sent\n");
    assert_eq!(node.run(&["queue", "send", "dead", "--file", file.to_str().expect("text")]), "1 sent\n");
    let described: Value =
        serde_json::from_str(&node.run(&["queue", "describe", "work", "-o", "json"])).expect("JSON");
    assert_eq!(described["attributes"]["ApproximateNumberOfMessages"], "1");
    assert_eq!(described["tags"]["tailwater-order-hint"], "2");
    let peeked: Value =
        serde_json::from_str(&node.run(&["queue", "peek", "dead", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&peeked["Body"], &peeked["Attributes"]["ApproximateReceiveCount"]),
        (&json!("from\na file"), &json!("0"))
    );
    assert_eq!(node.run(&["queue", "receive", "dead", "--delete"]), "from\na file\n");

    // A handler that fails, and then there is no second chance.
    let failed = node.run_failing(&["queue", "receive", "work", "-n", "1", "--exec", "cat; exit 3"]);
    assert!(failed.contains("1 of 1 messages were not handled"), "{failed}");
    assert_eq!(node.run(&["queue", "receive", "work"]), "");
    assert_eq!(node.run(&["queue", "move", "dead"]), "1 moved\n");
    let handled =
        node.run(&["queue", "receive", "work", "--exec", "cat; echo \" by $TAILWATER_RECEIVE_COUNT\""]);
    assert_eq!(handled, "one by 1\n");
    let listed = node.run(&["queue", "ls", "-o", "json"]);
    let names: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["name"].clone())
        .collect();
    assert_eq!(names, ["dead", "work"]);
    node.run(&["queue", "purge", "work"]);
    node.run(&["queue", "delete", "work"]);
    let gone = node.run_failing(&["queue", "send", "work", "x"]);
    assert!(gone.contains("does not exist") && gone.contains("tailwater queue ls"), "{gone}");
}

#[test]
fn a_message_stays_invisible_for_as_long_as_its_handler_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["queue", "create", "q", "--visibility-timeout", "3"]);
    node.run(&["queue", "send", "q", "long"]);
    let (begun, over) = (dir.path().join("begun"), dir.path().join("over"));
    // Much longer than its visibility timeout; it ends when it is told to.
    let command = format!("touch {}; while [ ! -e {} ]; do sleep 0.1; done", begun.display(), over.display());
    let mut handling =
        node.command(&["queue", "receive", "q", "-n", "1", "--exec", &command]).spawn().expect("it starts");
    wait_for("the handler to begin", || begun.exists().then_some(()));
    // Three timeouts after it was received, by the queue's own clock: the receives wait at the node.
    for _ in 0..9 {
        assert_eq!(node.run(&["queue", "receive", "q", "--wait", "1"]), "", "it became visible");
    }
    std::fs::write(&over, "").expect("written");
    assert!(handling.wait().expect("it ends").success());
    let peeked = node.run(&["queue", "peek", "q", "-o", "json"]);
    assert_eq!(peeked, "", "it was handled, and deleted");
}
