//! What an order hint costs and saves (BDQS, section V.C), and whether `auto` finds the one that it is to find: two or
//! three receivers, each at a front end of its own, and a queue full of messages, over a model of Cassandra where
//! nothing fails.
//!
//! Each receiver takes a message, works on it for a time by chance and deletes it. The seed says how many receivers
//! there are, and whether K is fixed, and at what, or `auto` ([`Case::of`]). Counted is the second half of what is
//! received, when `auto` has found its K: duplicates, messages out of the order of the index, and by how many places.
//!
//! Checked: every message is received.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{
    Consistency, OrderHint, QueueError, QueueRecord, QueueStore, QueueView, Receive, Send, Settings,
};

use super::cluster::{Cluster, SimRows};
use super::fronts::{self, FRONTS, number_of};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

/// Messages, when nothing else is said.
const MESSAGES: u64 = 12_000;
/// Messages of one send.
const BATCH: u64 = 10;
/// How long a receiver works on a message, on average.
const WORK: Duration = Duration::from_millis(20);
const VISIBILITY: Duration = Duration::from_secs(30);
/// A receiver has ended when nothing has come for so long.
const WAIT: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(50);
/// The hints of the paper, and those that find out where `auto` should be.
const HINTS: [OrderHint; 12] = [
    OrderHint::K(1),
    OrderHint::K(2),
    OrderHint::K(3),
    OrderHint::K(5),
    OrderHint::K(8),
    OrderHint::K(12),
    OrderHint::K(16),
    OrderHint::K(20),
    OrderHint::K(25),
    OrderHint::K(30),
    OrderHint::K(40),
    OrderHint::Auto,
];

/// What one run is about.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How receives choose.
    pub hint: OrderHint,
    /// Receivers, each at another front end: 3 at most.
    pub receivers: usize,
    /// Messages in the queue.
    pub messages: u64,
}

impl Case {
    fn of(seed: u64) -> Self {
        let hints = HINTS.len() as u64;
        let receivers = [3, 2][(seed / hints % 2) as usize];
        Self { hint: HINTS[(seed % hints) as usize], receivers, messages: MESSAGES }
    }
}

/// What one receive got: the number in a message and its place in the index.
pub(super) type Got = (u64, (u64, u64));

/// Runs the scenario.
pub fn run(world: &mut World, _: Plant) -> Result<Report, Violation> {
    let case = Case::of(world.seed());
    run_case(world, case)
}

/// Runs it for one case.
pub fn run_case(world: &mut World, case: Case) -> Result<Report, Violation> {
    let received = Arc::new(Mutex::new(Vec::new()));
    in_world(world, {
        let received = Arc::clone(&received);
        move |env, cluster, seed| async move {
            let fronts = Fronts::open(env, &cluster, case.receivers, Plant::None, seed).await?;
            let note = move |got| {
                received.lock().push(got);
                ControlFlow::Continue(())
            };
            fronts.receive(case.hint, case.messages, note).await
        }
    })?;
    let received = std::mem::take(&mut *received.lock());
    let distinct: BTreeSet<u64> = received.iter().map(|(number, _)| *number).collect();
    let lost = case.messages - distinct.len() as u64;
    ensure(lost == 0, || format!("{lost} messages are lost"))?;
    let mut counted = OrderCounts::default();
    for (at, got) in received.iter().enumerate() {
        counted.note(*got, at >= received.len() / 2);
    }
    let mut report = Report::default();
    let k = match case.hint {
        OrderHint::K(k) => u64::from(k),
        _ => 0,
    };
    report.count("K", k);
    report.count("receivers", case.receivers as u64);
    report.count("received", counted.received);
    report.count("duplicates", counted.duplicates);
    report.count("out of order", counted.out_of_order());
    report.count("places", counted.places());
    Ok(report)
}

/// Runs `load` in a process of its own, beside a cluster where nothing fails.
pub(super) fn in_world<T, F>(
    world: &mut World,
    load: impl FnOnce(Env, Arc<Cluster>, u64) -> F,
) -> Result<T, Violation>
where
    T: std::marker::Send + 'static,
    F: Future<Output = Result<T, QueueError>> + std::marker::Send + 'static,
{
    world.set_steps_max(400_000_000);
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), 0);
    let node = world.node("front ends");
    let load = load(node.env(), cluster, world.seed());
    match world.run(node.run("load", load))? {
        Ok(result) => result.map_err(|error| Violation::new(format!("a call failed: {error:?}"))),
        Err(crashed) => Err(Violation::new(format!("the front ends: {crashed:?}"))),
    }
}

/// Front ends, of which each has one receiver. They are of one process for the world, and share nothing but the
/// cluster.
pub(super) struct Fronts {
    env: Env,
    stores: Vec<SharedQueues>,
    seed: u64,
}

impl Fronts {
    pub(super) async fn open(
        env: Env,
        cluster: &Arc<Cluster>,
        receivers: usize,
        plant: Plant,
        seed: u64,
    ) -> Result<Self, QueueError> {
        let config = SharedConfig { consistency: Consistency::Quorum, ..SharedConfig::default() };
        let mut stores = Vec::new();
        for _ in &FRONTS[..receivers] {
            let rows = Arc::new(SimRows::new(cluster, &env, plant));
            stores.push(SharedQueues::start(&env, rows, config.clone()).await?);
        }
        Ok(Self { env, stores, seed })
    }

    /// Fills a queue with that order hint, and receives from it until nothing comes any more, or `note` has enough.
    pub(super) async fn receive(
        &self,
        hint: OrderHint,
        messages: u64,
        note: impl Fn(Got) -> ControlFlow<()>,
    ) -> Result<(), QueueError> {
        let settings = Settings { order_hint: hint, ..Settings::default() };
        let record = QueueRecord::new("account", format!("q-{hint}"), settings);
        let mut views = Vec::new();
        for store in &self.stores {
            views.push(fronts::create(store, record.clone()).await?);
        }
        for first in (0..messages).step_by(BATCH as usize) {
            let numbers = first..(first + BATCH).min(messages);
            let send = numbers.map(|number| Send {
                content: Bytes::copy_from_slice(&number.to_le_bytes()),
                ..Send::default()
            });
            self.stores[0].send(&views[0], send.collect()).await?;
        }
        let receivers = self.stores.iter().zip(&views).zip(FRONTS).map(|((store, view), name)| {
            let rng = Rng::new(self.seed, name);
            receive(&self.env, store, view, rng, &note)
        });
        futures::future::try_join_all(receivers).await?;
        Ok(())
    }
}

async fn receive(
    env: &Env,
    store: &SharedQueues,
    view: &QueueView,
    mut rng: Rng,
    note: &impl Fn(Got) -> ControlFlow<()>,
) -> Result<(), QueueError> {
    loop {
        let receive = Receive { count: 1, visibility: Some(VISIBILITY), wait: Some(WAIT), attempt: None };
        let Some(message) = store.receive(view, receive).await?.into_iter().next() else { return Ok(()) };
        if note((number_of(&message), (message.sent_at, message.number.0))).is_break() {
            return Ok(());
        }
        let even = (rng.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
        env.sleep(WORK.mul_f64(-even.ln())).await;
        // Whoever was faster has deleted it.
        while store.delete(view, vec![message.receipt]).await.is_err() {
            env.sleep(RETRY).await;
        }
    }
}

/// Receives, as they are counted.
#[derive(Default)]
pub(super) struct OrderCounts {
    seen: BTreeSet<u64>,
    /// Places of the messages that came for the first time, in the order in which they came.
    firsts: Vec<(u64, u64)>,
    pub(super) received: u64,
    pub(super) duplicates: u64,
}

impl OrderCounts {
    /// Another receive; what is not counted is only remembered.
    pub(super) fn note(&mut self, (number, place): Got, is_counted: bool) {
        let is_first = self.seen.insert(number);
        if !is_counted {
            return;
        }
        self.received += 1;
        if is_first {
            self.firsts.push(place);
        } else {
            self.duplicates += 1;
        }
    }

    pub(super) fn out_of_order(&self) -> u64 {
        self.firsts.len() as u64 - super::servers::longest_in_order(&self.firsts) as u64
    }

    /// By how many places all of them together are not where they would be in order.
    fn places(&self) -> u64 {
        let mut sorted = self.firsts.clone();
        sorted.sort_unstable();
        let displaced = |(at, place): (usize, &(u64, u64))| {
            sorted.partition_point(|other| other < place).abs_diff(at) as u64
        };
        self.firsts.iter().enumerate().map(displaced).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_that_all_take_the_oldest_receive_in_order() {
        let case = Case { hint: OrderHint::K(1), receivers: 3, messages: 600 };
        let counts = run_case(&mut World::new(1), case).expect("nothing is lost").counts;
        assert_eq!((counts["out of order"], counts["places"]), (0, 0), "{counts:?}");
    }
}
