//! What an order hint costs and saves (BDQS, section V.C), and whether `auto` finds the one that it is to find: two or three
//! receivers, each at a front end of its own, and a queue full of messages, over a model of Cassandra where nothing fails.
//!
//! Each receiver takes a message, works on it for a time by chance and deletes it. The seed says how many receivers there are,
//! and whether K is fixed, and at what, or `auto` ([`Case::of`]). Counted is the second half of what is received, when `auto` has
//! found its K: duplicates, messages out of the order of the index, and by how many places.
//!
//! Checked: every message is received.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_queue::shared::{SharedConfig, SharedQueues};
use tailwater_queue::{
    Consistency, OrderHint, QueueError, QueueRecord, QueueStore, Receive, Send, Settings, View,
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

/// What receivers got: the number in a message and its place in the index, in the order in which they came.
type Received = Arc<Mutex<Vec<(u64, (u64, u64))>>>;

/// Runs the scenario.
pub fn run(world: &mut World, _: Plant) -> Result<Report, Violation> {
    let case = Case::of(world.seed());
    run_case(world, case)
}

/// Runs it for one case.
pub fn run_case(world: &mut World, case: Case) -> Result<Report, Violation> {
    world.set_steps_max(400_000_000);
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), 0);
    let received = Received::default();
    // They are of one process for the world, and share nothing but the cluster.
    let node = world.node("front ends");
    let load = load(node.env(), Arc::clone(&cluster), case, Arc::clone(&received), world.seed());
    match world.run(node.run("load", load))? {
        Ok(result) => result.map_err(|error| Violation::new(format!("a call failed: {error:?}")))?,
        Err(crashed) => return Err(Violation::new(format!("the front ends: {crashed:?}"))),
    }
    let received = std::mem::take(&mut *received.lock());
    let distinct: BTreeSet<u64> = received.iter().map(|(number, _)| *number).collect();
    let lost = case.messages - distinct.len() as u64;
    ensure(lost == 0, || format!("{lost} messages are lost"))?;
    Ok(figures(case, &received))
}

async fn load(
    env: Env,
    cluster: Arc<Cluster>,
    case: Case,
    received: Received,
    seed: u64,
) -> Result<(), QueueError> {
    let config = SharedConfig { consistency: Consistency::Quorum, ..SharedConfig::default() };
    let mut fronts: Vec<(SharedQueues, Arc<View>)> = Vec::new();
    for _ in &FRONTS[..case.receivers] {
        let rows = Arc::new(SimRows::new(&cluster, &env, Plant::None));
        let store = SharedQueues::start(&env, rows, config.clone()).await?;
        let settings = Settings { order_hint: case.hint, ..Settings::default() };
        let view = fronts::create(&store, QueueRecord::new("account", "q", settings)).await?;
        fronts.push((store, view));
    }
    let (store, view) = &fronts[0];
    for first in (0..case.messages).step_by(BATCH as usize) {
        let numbers = first..(first + BATCH).min(case.messages);
        let send = numbers
            .map(|number| Send { content: Bytes::copy_from_slice(&number.to_le_bytes()), ..Send::default() });
        store.send(view, send.collect()).await?;
    }
    let receivers = fronts.into_iter().enumerate().map(|(at, (store, view))| {
        let rng = Rng::new(seed, FRONTS[at]);
        receive(env.clone(), store, view, rng, Arc::clone(&received))
    });
    futures::future::try_join_all(receivers).await?;
    Ok(())
}

async fn receive(
    env: Env,
    store: SharedQueues,
    view: Arc<View>,
    mut rng: Rng,
    received: Received,
) -> Result<(), QueueError> {
    loop {
        let receive = Receive { count: 1, visibility: Some(VISIBILITY), wait: Some(WAIT), attempt: None };
        let Some(message) = store.receive(&view, receive).await?.into_iter().next() else { return Ok(()) };
        received.lock().push((number_of(&message), (message.sent_at, message.number.0)));
        let even = (rng.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
        env.sleep(WORK.mul_f64(-even.ln())).await;
        // Whoever was faster has deleted it.
        while store.delete(&view, vec![message.receipt]).await.is_err() {
            env.sleep(RETRY).await;
        }
    }
}

/// What the second half shows.
fn figures(case: Case, received: &[(u64, (u64, u64))]) -> Report {
    let mut seen = BTreeSet::new();
    let mut firsts = Vec::new();
    let (mut receives, mut duplicates) = (0, 0);
    for (at, (number, place)) in received.iter().enumerate() {
        let is_first = seen.insert(*number);
        if at < received.len() / 2 {
            continue;
        }
        receives += 1;
        if is_first {
            firsts.push(*place);
        } else {
            duplicates += 1;
        }
    }
    let mut sorted = firsts.clone();
    sorted.sort_unstable();
    let displaced =
        |(at, place): (usize, &(u64, u64))| sorted.partition_point(|other| other < place).abs_diff(at) as u64;
    let displacement: u64 = firsts.iter().enumerate().map(displaced).sum();
    let mut report = Report::default();
    let k = match case.hint {
        OrderHint::K(k) => u64::from(k),
        _ => 0,
    };
    report.count("K", k);
    report.count("receivers", case.receivers as u64);
    report.count("received", receives);
    report.count("duplicates", duplicates);
    report.count("out of order", firsts.len() as u64 - super::servers::longest_in_order(&firsts) as u64);
    report.count("places", displacement);
    report
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
