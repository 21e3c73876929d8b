//! Messages as the closed loops send, receive and delete them: on one queue, each body with a number and a sum over all
//! of it.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tailwater_load::interrupt;
use tailwater_load::measuring::on_threads;
use tailwater_load::report::ProgressLine;
use tailwater_load::stats::Durations;

use super::client::Client;
use super::load::{LoadRandom, body, number_of};

/// Messages of one request when a queue is filled.
const FILL_BATCH: u64 = 10;

/// The messages of one queue.
pub struct Traffic {
    url: String,
    body_bytes: usize,
    fifo: Option<u64>,
    next: AtomicU64,
}

impl Traffic {
    /// Creates the queue; with `fifo` it is one of so many groups.
    pub fn create(
        client: &mut Client,
        name: &str,
        body_bytes: usize,
        fifo: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut attributes = json!({"VisibilityTimeout": "30"});
        let mut name = format!("{name}-{}", std::process::id());
        if fifo.is_some() {
            name += ".fifo";
            attributes["FifoQueue"] = "true".into();
        }
        let created = client.call("CreateQueue", &json!({"QueueName": name, "Attributes": attributes}))?;
        let url = created["QueueUrl"].as_str().context("no address of the queue")?.to_owned();
        Ok(Self { url, body_bytes, fifo, next: AtomicU64::new(0) })
    }

    /// The queue's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends `messages`, rounded down to tens, from `workers` connections.
    pub fn fill(&self, server: SocketAddr, messages: u64, workers: usize) -> anyhow::Result<()> {
        share_out(server, workers, messages / FILL_BATCH, "filling", |client, random| {
            self.send(client, FILL_BATCH, random)
        })
    }

    /// Sends so many messages in one request, at most ten.
    pub fn send(&self, client: &mut Client, count: u64, random: &mut LoadRandom) -> anyhow::Result<()> {
        let message = |random: &mut LoadRandom| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let mut message = json!({"MessageBody": body(number as u32, self.body_bytes, random)});
            if let Some(groups) = self.fifo {
                message["MessageGroupId"] = format!("group-{}", number % groups).into();
                message["MessageDeduplicationId"] = number.to_string().into();
            }
            message
        };
        if count == 1 {
            let mut one = message(random);
            one["QueueUrl"] = self.url.as_str().into();
            client.call("SendMessage", &one)?;
            return Ok(());
        }
        let entries = (0..count).map(|id| {
            let mut entry = message(random);
            entry["Id"] = id.to_string().into();
            entry
        });
        let entries: Vec<Value> = entries.collect();
        all_well(&client.call("SendMessageBatch", &json!({"QueueUrl": self.url, "Entries": entries}))?)
    }

    /// Receives up to `most` messages, at most ten, and checks their bodies; their receipts.
    pub fn receive(&self, client: &mut Client, most: u64) -> anyhow::Result<Vec<String>> {
        let with = json!({"QueueUrl": self.url, "MaxNumberOfMessages": most});
        let received = client.call("ReceiveMessage", &with)?;
        let messages = received["Messages"].as_array().into_iter().flatten();
        let receipts = messages.map(|message| {
            let body = message["Body"].as_str().context("a message without a body")?;
            ensure!(number_of(body).is_some(), "a body that is not what was sent: {body:.60}");
            Ok(message["ReceiptHandle"].as_str().context("a message without a receipt")?.to_owned())
        });
        receipts.collect()
    }

    /// Deletes the messages of receipts, a single one with the action that is for one.
    pub fn delete(&self, client: &mut Client, receipts: &[String]) -> anyhow::Result<()> {
        if let [receipt] = receipts {
            client.call("DeleteMessage", &json!({"QueueUrl": self.url, "ReceiptHandle": receipt}))?;
            return Ok(());
        }
        let entry = |(id, receipt)| json!({"Id": format!("{id}"), "ReceiptHandle": receipt});
        let entries: Vec<Value> = receipts.iter().enumerate().map(entry).collect();
        all_well(&client.call("DeleteMessageBatch", &json!({"QueueUrl": self.url, "Entries": entries}))?)
    }
}

/// How long each took; a cycle is from before a send to after the delete.
#[derive(Default)]
pub struct Took {
    pub cycle: Durations,
    pub send: Durations,
    pub receive: Durations,
}

impl Took {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Self) {
        self.cycle.add(&other.cycle);
        self.send.add(&other.send);
        self.receive.add(&other.receive);
    }
}

/// Has `workers` connections do something `times` times together, and shows how far they are. The first failure ends
/// all.
pub fn share_out(
    server: SocketAddr,
    workers: usize,
    times: u64,
    what: &str,
    step: impl Fn(&mut Client, &mut LoadRandom) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let (left, line) = (AtomicU64::new(times), Mutex::new(ProgressLine::default()));
    let work = |at: usize| {
        let (mut client, mut random) = (Client::new(server), LoadRandom(at as u64));
        let one_less = |left: u64| left.checked_sub(1);
        while let Ok(before) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            if before % 100 == 0 {
                let done = (times - before) * 100 / times;
                line.lock().expect("no worker panics").show(&format!("{what}: {done}%"));
            }
            if let Err(error) = interrupt::check().and_then(|()| step(&mut client, &mut random)) {
                left.store(0, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    on_threads(workers, work, || Ok(())).map(drop)
}

/// None of a batch was refused.
fn all_well(answer: &Value) -> anyhow::Result<()> {
    let refused = answer["Failed"].as_array().is_some_and(|failed| !failed.is_empty());
    ensure!(!refused, "a part of a batch was refused: {answer}");
    Ok(())
}
