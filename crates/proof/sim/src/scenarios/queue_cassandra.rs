//! Queues in a store that front ends share: three of them, with clocks up to five seconds apart ([`fronts`]), over a
//! model of Cassandra ([`cluster`]) whose calls fail and whose replicas get writes late; front ends crash and come back
//! with another clock.
//!
//! Checked, by what is in the messages: whatever is received was sent; at a quorum, what a receive answers was not
//! deleted before the receive began; and at the end, when everybody has swept and received, whatever was acknowledged
//! and not asked to be deleted has come. At one replica only the last, as replicas agree in the end. At a quorum the
//! queue may be a FIFO queue: what holds for it beyond that is in [`fifo`].
//!
//! The queue is purged once at most: what was acknowledged before is deleted then, and what is sent after the answer
//! stays.

pub mod auto;
mod cluster;
mod fifo;
mod fronts;
pub mod letters;
pub mod order;
pub mod servers;
pub mod shares;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{
    Consistency, Fifo, Message, OrderHint, QueueRecord, QueueStore, QueueView, Receive, Send, Settings,
};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;
use cluster::Cluster;
use fronts::{Doing, FrontSeen, Once, SKEW, number_of};

/// How long there is load: buckets are dropped within it.
const LOAD: Duration = Duration::from_secs(100);
/// Longer than any timeout, any late write, and what is too young for a sweep.
const REST: Duration = Duration::from_secs(60);

/// What the world outside knows.
#[derive(Default)]
struct Model {
    seen: FrontSeen,
    next: u64,
    attempted: BTreeSet<u64>,
    deleted: BTreeSet<u64>,
    purge: Once,
    groups: fifo::FifoGroups,
}

type Outside = Arc<Mutex<Model>>;

impl AsMut<FrontSeen> for Model {
    fn as_mut(&mut self) -> &mut FrontSeen {
        &mut self.seen
    }
}

impl Model {
    /// Messages that are about to be sent, so many of them; the first one's number.
    fn begin_sends(&mut self, count: u64, now: Instant) -> std::ops::Range<u64> {
        let numbers = self.next..self.next + count;
        self.next += count;
        self.attempted.extend(numbers.clone());
        if self.purge.takes(now) {
            self.seen.going.begin(numbers.clone());
        }
        numbers
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
    let config = fronts::config(level, &mut rng);
    let model = Outside::default();
    let starting = QueueCassandraStarting {
        cluster: Arc::clone(&cluster),
        config,
        plant,
        model: Arc::clone(&model),
        settings,
    };
    let start = {
        let starting = starting.clone();
        move |env| starting.start(env)
    };
    fronts::run(world, rng, &cluster, &model, (LOAD, REST), start, |env| last(env, starting))?;
    let model = model.lock();
    model.seen.nothing_is_lost()?;
    let mut report = model.seen.report.clone();
    report.count("sent", model.seen.sent.len() as u64);
    report.count("deleted", model.deleted.len() as u64);
    report.count("fifo", u64::from(is_fifo));
    Ok(report)
}

/// What a front end is started with.
#[derive(Clone)]
struct QueueCassandraStarting {
    cluster: Arc<Cluster>,
    config: SharedConfig,
    plant: Plant,
    model: Outside,
    settings: Settings,
}

impl QueueCassandraStarting {
    fn start(&self, env: Env) {
        fronts::start(&env, self.clone().open(env.clone()), SimFront::client);
    }

    /// A front end of the one queue, as soon as the cluster lets it be.
    async fn open(self, env: Env) -> Option<Arc<SimFront>> {
        let record = QueueRecord::new("account", "q", self.settings);
        let opened = fronts::open(&env, &self.cluster, &self.config, self.plant, |store| {
            let record = record.clone();
            async move {
                let queue = fronts::create(&store, record).await.ok()?;
                Some((store, queue))
            }
        });
        let (store, queue) = opened.await?;
        let level = self.config.consistency;
        Some(Arc::new(SimFront { env, store, queue, model: self.model, level }))
    }
}

/// A front end and its clients.
struct SimFront {
    env: Env,
    store: SharedQueues,
    queue: Arc<QueueView>,
    model: Outside,
    level: Consistency,
}

impl SimFront {
    async fn client(self: Arc<Self>) {
        while !self.model.lock().seen.stop {
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
            Ok(_) => self.model.lock().seen.sent.extend(numbers),
            Err(_) => self.model.lock().seen.report.count("failed sends", 1),
        }
    }

    /// Purges the queue, if nobody has.
    async fn purge(&self) {
        let before = {
            let mut model = self.model.lock();
            if !matches!(model.purge, Once::No) {
                return;
            }
            model.purge = Once::Now;
            let all = 0..model.next;
            model.seen.going.begin(all);
            model.seen.sent.clone()
        };
        // Where nobody is told its end, it may take what is sent by clocks that are behind.
        let mut purging = Doing {
            env: &self.env,
            model: &self.model,
            which: |model| &mut model.purge,
            takes_after: 2 * SKEW,
        };
        if self.store.purge(&self.queue).await.is_ok() {
            purging.takes_after = Duration::ZERO;
            let mut model = self.model.lock();
            model.deleted.extend(before);
            model.seen.report.count("purges", 1);
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
            self.model.lock().seen.report.count("failed receives", 1);
            return None;
        };
        for message in &messages {
            let number = number_of(message);
            self.check(number, &gone);
            match self.env.random_below(8) {
                0 => self.model.lock().seen.report.count("forgotten", 1),
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
        self.model.lock().seen.going.begin([number]);
        if self.store.delete(&self.queue, vec![message.receipt]).await.is_ok() {
            self.model.lock().deleted.insert(number);
        }
    }

    fn check(&self, number: u64, gone: &BTreeSet<u64>) {
        let mut model = self.model.lock();
        model.seen.report.count("received", 1);
        let attempted = model.attempted.contains(&number);
        let is_back = self.level == Consistency::Quorum && gone.contains(&number);
        let checked = ensure(attempted, || format!("message {number} was never sent"))
            .and_then(|()| ensure(!is_back, || format!("message {number} was deleted and came back")));
        model.seen.note(checked);
    }
}

/// Nobody else is there any more, and nothing fails: sweeps, and receives and deletes everything.
async fn last(env: Env, starting: QueueCassandraStarting) -> Result<(), String> {
    let is_fifo = starting.settings.fifo.is_some();
    let settings = Settings { order_hint: OrderHint::K(1), ..starting.settings.clone() };
    let opened = QueueCassandraStarting { settings, ..starting }.open(env).await;
    let front = opened.ok_or("the queue can't be opened")?;
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
            *front.model.lock().seen.drained.entry(number_of(message)).or_default() += 1;
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
