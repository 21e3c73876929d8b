//! Queues in a store that front ends share: three of them, with clocks up to five seconds apart, over a model of Cassandra
//! ([`cluster`]) whose calls fail and whose replicas get writes late; front ends crash and come back with another clock.
//!
//! Checked, by what is in the messages: whatever is received was sent; at a quorum, what a receive answers was not deleted
//! before the receive began; and at the end, when everybody has swept and received, whatever was acknowledged and not asked to be
//! deleted has come. At one replica only the last, as replicas agree in the end. At a quorum the queue may be a FIFO queue: what holds
//! for it beyond that is in [`fifo`].
//!
//! The queue is purged once at most: what was acknowledged before is deleted then, and what is sent after the answer stays.

mod cluster;
mod fifo;
pub mod letters;
pub mod order;
pub mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::shared::{SharedConfig, SharedQueues};
use tailwater_queue::{
    Consistency, Fifo, Message, OrderHint, QueueError, QueueRecord, QueueStore, Receive, Send, Settings, View,
};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, World};
use cluster::{Cluster, SimRows};

const FRONTS: [&str; 3] = ["front-0", "front-1", "front-2"];
/// How far clocks may be apart.
const SKEW_MS: u64 = 5_000;
/// How long there is load: buckets are dropped within it.
const LOAD: Duration = Duration::from_secs(100);
/// Longer than any timeout, any late write, and what is too young for a sweep.
const REST: Duration = Duration::from_secs(60);

/// What the world outside knows.
#[derive(Default)]
struct Model {
    next: u64,
    attempted: BTreeSet<u64>,
    sent: BTreeSet<u64>,
    /// Messages that may be deleted: how many deletes of each are under way, or were not surely in vain.
    deleting: BTreeMap<u64, usize>,
    deleted: BTreeSet<u64>,
    drained: BTreeSet<u64>,
    purge: Purge,
    groups: fifo::Groups,
    stop: bool,
    violation: Option<Violation>,
    report: Report,
}

/// Whether the queue was purged.
#[derive(Clone, Copy, Debug, Default)]
enum Purge {
    #[default]
    No,
    Now,
    /// What began to be sent before this may be gone.
    Until(Instant),
}

type Outside = Arc<Mutex<Model>>;

impl Model {
    /// Messages that are about to be sent, so many of them; the first one's number.
    fn begin_sends(&mut self, count: u64, now: Instant) -> std::ops::Range<u64> {
        let numbers = self.next..self.next + count;
        self.next += count;
        self.attempted.extend(numbers.clone());
        let may_be_purged = match self.purge {
            Purge::No => false,
            Purge::Now => true,
            Purge::Until(until) => now < until,
        };
        for number in numbers.clone().filter(|_| may_be_purged) {
            *self.deleting.entry(number).or_default() += 1;
        }
        numbers
    }
}

/// A purge that is under way. Where nobody is told its end, it may take what is sent by clocks that are behind.
struct Purging<'a> {
    front: &'a Front,
    is_done: bool,
}

impl Drop for Purging<'_> {
    fn drop(&mut self) {
        let skew = if self.is_done { Duration::ZERO } else { Duration::from_millis(2 * SKEW_MS) };
        self.front.model.lock().purge = Purge::Until(self.front.env.now() + skew);
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(20_000_000);
    let mut rng = Rng::new(world.seed(), "scenario/queue-cassandra");
    let level = if rng.below(4) == 0 { Consistency::One } else { Consistency::Quorum };
    let faults = [0, 2_000, 20_000][rng.index(3)];
    let hint = [OrderHint::K(1), OrderHint::K(3), OrderHint::Auto][rng.index(3)];
    let is_fifo = level == Consistency::Quorum && rng.below(2) == 0;
    let settings = Settings { order_hint: hint, fifo: is_fifo.then(Fifo::default), ..Settings::default() };
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), faults);
    let config = SharedConfig {
        consistency: level,
        skew_ms: SKEW_MS,
        parts: rng.between(1, 3) as u16,
        sweep_ms: 30_000,
        ..SharedConfig::default()
    };
    let model = Outside::default();
    let nodes: Vec<Node> = FRONTS.iter().map(|name| world.node(name)).collect();
    let mut skews = Vec::new();
    for node in &nodes {
        let skew = rng.below(SKEW_MS) as i64;
        node.skew_wall_ms(skew);
        skews.push(skew);
        Front::start(node.env(), &cluster, &config, plant, &model, &settings);
    }
    if rng.below(2) == 0 {
        let over = model.clone();
        let (cluster, config, model, settings) =
            (cluster.clone(), config.clone(), model.clone(), settings.clone());
        let breaking = break_fronts(
            world.outside(),
            rng.clone(),
            nodes,
            skews,
            move || over.lock().stop,
            move |node: &Node| {
                model.lock().report.count("crashes", 1);
                Front::start(node.env(), &cluster, &config, plant, &model, &settings);
            },
        );
        world.outside().spawn("chaos", breaking).detach();
    }
    world.run_for(LOAD)?;
    model.lock().stop = true;
    *cluster.faults_per_million.lock() = 0;
    world.run_for(REST)?;
    take_violation(&model)?;
    let node = world.node("last");
    let settings = Settings { order_hint: OrderHint::K(1), ..settings };
    let last = last(node.env(), cluster, config, plant, model.clone(), settings);
    match world.run(node.run("last", last))? {
        Ok(Ok(())) => {}
        other => return Err(Violation::new(format!("without any failures: {other:?}"))),
    }
    take_violation(&model)?;
    let model = model.lock();
    let lost: Vec<&u64> = model
        .sent
        .iter()
        .filter(|one| !model.deleting.contains_key(one) && !model.drained.contains(one))
        .collect();
    ensure(lost.is_empty(), || format!("message {lost:?} was acknowledged and is lost"))?;
    let mut report = model.report.clone();
    report.count("sent", model.sent.len() as u64);
    report.count("deleted", model.deleted.len() as u64);
    report.count("fifo", u64::from(is_fifo));
    Ok(report)
}

fn take_violation(model: &Outside) -> Result<(), Violation> {
    model.lock().violation.take().map_or(Ok(()), Err)
}

/// Crashes front ends now and then; they come back with another clock.
async fn break_fronts(
    outside: crate::world::Outside,
    mut rng: Rng,
    nodes: Vec<Node>,
    mut skews: Vec<i64>,
    is_over: impl Fn() -> bool,
    start: impl Fn(&Node),
) {
    loop {
        outside.sleep(Duration::from_millis(rng.between(1_000, 40_000))).await;
        if is_over() {
            return;
        }
        let number = rng.index(nodes.len());
        nodes[number].crash(Crash::Process);
        outside.sleep(Duration::from_millis(rng.below(5_000))).await;
        nodes[number].start();
        let skew = rng.below(SKEW_MS) as i64;
        nodes[number].skew_wall_ms(skew - skews[number]);
        skews[number] = skew;
        start(&nodes[number]);
    }
}

/// A front end and its clients.
struct Front {
    env: Env,
    store: SharedQueues,
    queue: Arc<View>,
    model: Outside,
    level: Consistency,
}

impl Front {
    fn start(
        env: Env,
        cluster: &Arc<Cluster>,
        config: &SharedConfig,
        plant: Plant,
        model: &Outside,
        settings: &Settings,
    ) {
        let (cluster, config, model) = (Arc::clone(cluster), config.clone(), Arc::clone(model));
        let settings = settings.clone();
        let run = {
            let env = env.clone();
            async move {
                let level = config.consistency;
                let Some((store, queue)) = open(&env, &cluster, config, plant, settings).await else {
                    return;
                };
                let front = Arc::new(Front { env: env.clone(), store, queue, model, level });
                let clients = (0..2).map(|_| Arc::clone(&front).client());
                futures::future::join_all(clients).await;
            }
        };
        env.spawn("front", run).detach();
    }

    async fn client(self: Arc<Self>) {
        while !self.model.lock().stop {
            self.env.sleep(Duration::from_millis(100 + self.env.random_below(4_000))).await;
            if self.env.random_below(200) == 0 {
                self.purge().await;
            }
            let is_fifo = self.queue.record().settings.fifo.is_some();
            match self.env.random_below(2) {
                0 if is_fifo => self.send_fifo().await,
                _ if is_fifo => self.receive_fifo().await,
                0 => self.send().await,
                _ => drop(self.receive().await),
            }
        }
    }

    async fn send(&self) {
        let count = 1 + self.env.random_below(3);
        let numbers: Vec<u64> = self.model.lock().begin_sends(count, self.env.now()).collect();
        let sends = numbers
            .iter()
            .map(|number| Send { content: Bytes::copy_from_slice(&number.to_le_bytes()), ..Send::default() });
        match self.store.send(&self.queue, sends.collect()).await {
            Ok(_) => self.model.lock().sent.extend(numbers),
            Err(_) => self.model.lock().report.count("failed sends", 1),
        }
    }

    /// Purges the queue, if nobody has.
    async fn purge(&self) {
        let before = {
            let mut model = self.model.lock();
            if !matches!(model.purge, Purge::No) {
                return;
            }
            model.purge = Purge::Now;
            for number in 0..model.next {
                *model.deleting.entry(number).or_default() += 1;
            }
            model.sent.clone()
        };
        let mut purging = Purging { front: self, is_done: false };
        purging.is_done = self.store.purge(&self.queue).await.is_ok();
        if purging.is_done {
            let mut model = self.model.lock();
            model.deleted.extend(before);
            model.report.count("purges", 1);
        }
    }

    /// Receives, and deletes most of it; how many came.
    async fn receive(&self) -> Option<usize> {
        let gone = self.model.lock().deleted.clone();
        let receive = Receive {
            count: 1 + self.env.random_below(3) as usize,
            visibility: Some(Duration::from_millis(500 + self.env.random_below(7_000))),
            wait: Some(Duration::from_millis(self.env.random_below(300))),
            attempt: None,
        };
        let Ok(messages) = self.store.receive(&self.queue, receive).await else {
            self.model.lock().report.count("failed receives", 1);
            return None;
        };
        for message in &messages {
            let number = number_of(message);
            self.check(number, &gone);
            match self.env.random_below(8) {
                0 => self.model.lock().report.count("forgotten", 1),
                1 => {
                    let change = (message.receipt, Duration::from_millis(self.env.random_below(3_000)));
                    let _ = self.store.change_visibility(&self.queue, vec![change]).await;
                }
                _ => self.delete(message).await,
            }
        }
        Some(messages.len())
    }

    async fn delete(&self, message: &Message) {
        let number = number_of(message);
        *self.model.lock().deleting.entry(number).or_default() += 1;
        if self.store.delete(&self.queue, vec![message.receipt]).await.is_ok() {
            self.model.lock().deleted.insert(number);
        }
    }

    fn check(&self, number: u64, gone: &BTreeSet<u64>) {
        let mut model = self.model.lock();
        model.report.count("received", 1);
        let attempted = model.attempted.contains(&number);
        let is_back = self.level == Consistency::Quorum && gone.contains(&number);
        let checked = ensure(attempted, || format!("message {number} was never sent"))
            .and_then(|()| ensure(!is_back, || format!("message {number} was deleted and came back")));
        if let Err(violation) = checked {
            model.violation.get_or_insert(violation);
        }
    }
}

fn number_of(message: &Message) -> u64 {
    message.content.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// A front end of the one queue, as soon as the cluster lets it be.
async fn open(
    env: &Env,
    cluster: &Arc<Cluster>,
    config: SharedConfig,
    plant: Plant,
    settings: Settings,
) -> Option<(SharedQueues, Arc<View>)> {
    let record = QueueRecord::new("account", "q", settings);
    for _ in 0..1_000 {
        let rows = Arc::new(SimRows::new(cluster, env, plant));
        if let Ok(store) = SharedQueues::start(env, rows, config.clone()).await {
            match store.create(record.clone()).await {
                Ok(view) | Err(QueueError::Exists(view)) => return Some((store, view)),
                Err(_) => {}
            }
        }
        env.sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Nobody else is there any more, and nothing fails: sweeps, and receives and deletes everything.
async fn last(
    env: Env,
    cluster: Arc<Cluster>,
    config: SharedConfig,
    plant: Plant,
    model: Outside,
    settings: Settings,
) -> Result<(), String> {
    let (level, is_fifo) = (config.consistency, settings.fifo.is_some());
    let opened = open(&env, &cluster, config, plant, settings).await;
    let (store, queue) = opened.ok_or("the queue can't be opened")?;
    let front = Front { env: env.clone(), store, queue, model, level };
    front.store.sweep().await.map_err(|error| error.to_string())?;
    let mut silent = 0;
    while silent < 3 {
        let gone = front.model.lock().deleted.clone();
        let wait = Some(Duration::from_secs(10));
        let receive = Receive { count: 10, wait, ..Receive::default() };
        let messages = match is_fifo {
            true => {
                front.receive_checked(receive, Duration::from_secs(30)).await.ok_or("a receive failed")?
            }
            false => front.store.receive(&front.queue, receive).await.map_err(|error| error.to_string())?,
        };
        silent = if messages.is_empty() { silent + 1 } else { 0 };
        for message in &messages {
            front.check(number_of(message), &gone);
            front.model.lock().drained.insert(number_of(message));
            match is_fifo {
                true => front.delete_fifo(message).await,
                false => front.delete(message).await,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
