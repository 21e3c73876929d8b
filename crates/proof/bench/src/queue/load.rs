//! The load of BDQS, section V.A: first all senders, and when they have sent everything all receivers.
//!
//! A message is its number in its queue, a checksum and random letters. The correct order of a queue is that of its
//! index: sends that overlap may be in either order, so between the phases the queue is looked through, without
//! receiving anything.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};
use tailwater_load::measuring::on_threads;
use tailwater_load::stats::{Durations, PercentilesMs, round};
use twox_hash::XxHash3_64;

use super::client::Client;
use super::order::DeliveryOrder;

/// Senders of a queue.
pub const SENDERS: usize = 3;

/// Failures of looking through a queue, each at another node, before it is given up.
const PEEK_FAILURES_MAX: usize = 300;

/// A queue is empty when nothing has come for so long: longer than the visibility timeout.
const SILENCE: Duration = Duration::from_secs(13);

/// What is sent and received.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Receivers of a queue.
    pub receivers: usize,
    /// Messages of each sender.
    pub messages: u32,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Pause between two sends of a sender.
    pub send_pause: Duration,
    /// How long a receiver works on a message.
    pub receive_pause: Duration,
    /// Which part of requests, and of answers, is dropped; and at which part of its messages a receiver quits, and
    /// another one begins.
    pub chance: f64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub queues: usize,
    pub sends_per_s: f64,
    /// Receives with their deletes.
    pub cycles_per_s: f64,
    pub send_ms: PercentilesMs,
    pub receive_ms: PercentilesMs,
    /// Duplicates for each message.
    pub duplication_rate: f64,
    /// Part of the messages out of order.
    pub out_of_order_rate: f64,
    pub average_displacement: f64,
    #[serde(flatten)]
    pub order: DeliveryOrder,
}

/// One queue under load.
struct Queue {
    url: String,
    next: AtomicU32,
    /// Numbers, in the order in which they were received.
    received: Mutex<Vec<u32>>,
    distinct: AtomicU32,
}

/// What one receiver did.
#[derive(Default)]
struct LoadReceived {
    took: Durations,
    /// Receives whose delete was answered.
    cycles: u64,
    /// When it was done with its last message.
    last: Option<Instant>,
}

/// A small generator, seeded by what it is for: splitmix64.
pub struct LoadRandom(pub u64);

impl LoadRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.next() >> 11) as f64 / (1_u64 << 53) as f64) < p
    }
}

/// A body of about so many bytes, with a number and a sum over all of it.
pub fn body(number: u32, bytes: usize, random: &mut LoadRandom) -> String {
    let mut letters = String::with_capacity(bytes + 8);
    while letters.len() + 28 < bytes {
        let mut bits = random.next();
        for _ in 0..12 {
            letters.push(char::from(b'a' + (bits % 26) as u8));
            bits /= 26;
        }
    }
    let text = format!("{number:010}{letters}");
    format!("{:016x}:{text}", XxHash3_64::oneshot(text.as_bytes()))
}

/// The number in a body that is as it was sent.
pub fn number_of(body: &str) -> Option<u32> {
    let (sum, text) = body.split_once(':')?;
    let is_intact = u64::from_str_radix(sum, 16).ok()? == XxHash3_64::oneshot(text.as_bytes());
    text.get(..10).filter(|_| is_intact)?.parse().ok()
}

/// A client that goes on to the next node when it is not answered.
struct TurningClient<'a> {
    nodes: &'a [SocketAddr],
    turn: usize,
    client: Client,
    random: LoadRandom,
    /// How likely it is that a request is dropped, and that an answer is.
    p: f64,
}

impl<'a> TurningClient<'a> {
    fn new(nodes: &'a [SocketAddr], turn: usize, random: LoadRandom, p: f64) -> Self {
        Self { nodes, turn, client: Client::new(nodes[turn % nodes.len()]), random, p }
    }

    /// An action, with what chance drops of it: the request, which nobody sees then, or the answer.
    fn call(&mut self, action: &str, with: &Value) -> Option<Value> {
        let mut answer = None;
        if !self.random.chance(self.p) {
            if self.random.chance(self.p) {
                self.client.call_deaf(action, with);
            } else {
                answer = self.client.call(action, with).ok();
            }
        }
        if answer.is_none() {
            self.turn += 1;
            self.leave();
            std::thread::sleep(Duration::from_millis(5));
        }
        answer
    }

    /// Drops the connection.
    fn leave(&mut self) {
        self.client.turn_to(self.nodes[self.turn % self.nodes.len()]);
    }
}

impl Load {
    /// Runs both phases on queues that are empty; queue and sender go round the nodes.
    pub fn run(&self, nodes: &[SocketAddr], urls: &[String]) -> anyhow::Result<Measured> {
        let queues: Vec<Queue> = urls
            .iter()
            .map(|url| Queue {
                url: url.clone(),
                next: AtomicU32::new(0),
                received: Mutex::default(),
                distinct: AtomicU32::new(0),
            })
            .collect();
        let begin = Instant::now();
        let sends = each_worker(&queues, SENDERS, |queue, at| self.send(nodes, queue, at))?;
        let send_s = begin.elapsed().as_secs_f64();
        let orders: Vec<Vec<u32>> =
            queues.iter().map(|queue| look_through(nodes, queue)).collect::<anyhow::Result<_>>()?;
        let begin = Instant::now();
        let received = each_worker(&queues, self.receivers, |queue, at| self.receive(nodes, queue, at))?;
        let (mut send, mut receive) = (Durations::default(), Durations::default());
        sends.iter().for_each(|took| send.add(took));
        received.iter().for_each(|received| receive.add(&received.took));
        let last = received.iter().filter_map(|received| received.last).max();
        let receive_s = last.map_or(0.0, |last| (last - begin).as_secs_f64());
        let mut order = DeliveryOrder::default();
        for (queue, correct) in queues.iter().zip(orders) {
            order.add(&queue.order(&correct));
        }
        let sent = order.sent.max(1) as f64;
        let cycles: u64 = received.iter().map(|received| received.cycles).sum();
        Ok(Measured {
            queues: queues.len(),
            sends_per_s: round(order.sent as f64 / send_s, 1),
            cycles_per_s: round(cycles as f64 / receive_s.max(1e-9), 1),
            send_ms: send.percentiles_ms(),
            receive_ms: receive.percentiles_ms(),
            duplication_rate: round(order.duplicates as f64 / sent, 5),
            out_of_order_rate: round(order.out_of_order as f64 / sent, 5),
            average_displacement: round(order.displacement as f64 / sent, 3),
            order,
        })
    }

    fn total(&self) -> u32 {
        self.messages * SENDERS as u32
    }

    /// One sender; how long each send took.
    fn send(&self, nodes: &[SocketAddr], queue: &Queue, at: usize) -> Durations {
        let mut client = TurningClient::new(nodes, at, LoadRandom(at as u64), self.chance);
        let mut took = Durations::default();
        for _ in 0..self.messages {
            let number = queue.next.fetch_add(1, Ordering::Relaxed);
            let with = json!({
                "QueueUrl": queue.url,
                "MessageBody": body(number, self.body_bytes, &mut client.random),
            });
            loop {
                let begin = Instant::now();
                if client.call("SendMessage", &with).is_some() {
                    took.record(begin.elapsed().as_nanos() as u64);
                    break;
                }
            }
            pause(self.send_pause);
        }
        took
    }

    fn receive(&self, nodes: &[SocketAddr], queue: &Queue, at: usize) -> LoadReceived {
        let mut client = TurningClient::new(nodes, at, LoadRandom(1_000_003 + at as u64), self.chance);
        let mut received = LoadReceived::default();
        let mut silent_since = Instant::now();
        let with = json!({"QueueUrl": queue.url, "WaitTimeSeconds": 1});
        while queue.distinct.load(Ordering::Relaxed) < self.total() && silent_since.elapsed() < SILENCE {
            let begin = Instant::now();
            let Some(answer) = client.call("ReceiveMessage", &with) else { continue };
            let elapsed = begin.elapsed();
            let Some(message) = answer["Messages"].get(0) else { continue };
            silent_since = Instant::now();
            received.took.record(elapsed.as_nanos() as u64);
            if let Some(number) = message["Body"].as_str().and_then(number_of) {
                queue.note(number);
            }
            pause(self.receive_pause);
            if client.random.chance(self.chance) {
                client.leave();
                continue;
            }
            let receipt = json!({"QueueUrl": queue.url, "ReceiptHandle": message["ReceiptHandle"]});
            // Until it is answered, as a client does.
            for _ in 0..20 {
                if client.call("DeleteMessage", &receipt).is_some() {
                    received.cycles += 1;
                    break;
                }
            }
            received.last = Some(Instant::now());
        }
        received
    }
}

fn pause(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}

impl Queue {
    fn note(&self, number: u32) {
        let mut received = self.received.lock().expect("no worker panicked");
        if !received.contains(&number) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
        received.push(number);
    }

    /// What was received, against the correct order.
    fn order(&self, correct: &[u32]) -> DeliveryOrder {
        let sent = self.next.load(Ordering::Relaxed);
        let mut places = vec![u32::MAX; sent as usize];
        let mut next = 0;
        // A send that was tried again may be there twice: the first one counts.
        for number in correct {
            if let Some(place) = places.get_mut(*number as usize).filter(|place| **place == u32::MAX) {
                (*place, next) = (next, next + 1);
            }
        }
        let received = self.received.lock().expect("no worker panicked");
        let received: Vec<u32> = received.iter().map(|number| places[*number as usize]).collect();
        DeliveryOrder::of(&received, sent)
    }
}

/// The numbers of a queue's messages, in the order of its index.
fn look_through(nodes: &[SocketAddr], queue: &Queue) -> anyhow::Result<Vec<u32>> {
    let mut client = Client::new(nodes[0]);
    let (mut numbers, mut from, mut failures) = (Vec::new(), 0_u64, 0);
    loop {
        let with = json!({"QueueUrl": queue.url, "From": from, "MaxNumberOfMessages": 1000});
        let answer = match client.call_own("PeekMessages", &with) {
            Ok(answer) => answer,
            Err(error) if failures >= PEEK_FAILURES_MAX => return Err(error),
            Err(_) => {
                // It may just have been killed.
                failures += 1;
                client.turn_to(nodes[failures % nodes.len()]);
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        for message in answer["Messages"].as_array().into_iter().flatten() {
            numbers.push(message["Body"].as_str().and_then(number_of).context("a damaged message")?);
        }
        match answer["Next"].as_u64() {
            Some(next) => from = next,
            None => return Ok(numbers),
        }
    }
}

/// Runs `count` workers for each queue, each a thread, and waits for all; what they bring.
fn each_worker<R: Send>(
    queues: &[Queue],
    count: usize,
    work: impl Fn(&Queue, usize) -> R + Sync,
) -> anyhow::Result<Vec<R>> {
    let (start, all) = (AtomicBool::new(false), queues.len() * count);
    let wait_and_work = |number| {
        while !start.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(work(&queues[number / count], number))
    };
    let begin = || {
        start.store(true, Ordering::Release);
        Ok(())
    };
    Ok(on_threads(all, wait_and_work, begin)?.0)
}
