//! What scenarios of queues over the model have in common: three front ends with clocks apart, which crash and come
//! back with another clock, and what is seen of messages from outside, by what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{Consistency, Message, QueueError, QueueRecord, QueueStore, QueueView};

use super::cluster::{Cluster, SimRows};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

pub(super) const FRONTS: [&str; 3] = ["front-0", "front-1", "front-2"];
/// How far clocks may be apart.
pub(super) const SKEW_MS: u64 = 5_000;
pub(super) const SKEW: Duration = Duration::from_millis(SKEW_MS);

/// What the world outside has seen of messages.
#[derive(Default)]
pub(super) struct FrontSeen {
    /// Those whose sends were answered.
    pub(super) sent: BTreeSet<u64>,
    pub(super) going: Going,
    /// How often each was received at the end.
    pub(super) drained: BTreeMap<u64, u64>,
    /// Clients are to end.
    pub(super) stop: bool,
    violation: Option<Violation>,
    pub(super) report: Report,
}

impl FrontSeen {
    /// Keeps the first violation.
    pub(super) fn note(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked {
            self.violation.get_or_insert(violation);
        }
    }

    /// Messages that were acknowledged, and that nobody may have deleted.
    pub(super) fn kept(&self) -> impl Iterator<Item = u64> {
        self.sent.iter().copied().filter(|number| !self.going.has(*number))
    }

    /// That all of them were received at the end.
    pub(super) fn nothing_is_lost(&self) -> Result<(), Violation> {
        let lost: Vec<u64> = self.kept().filter(|number| !self.drained.contains_key(number)).collect();
        ensure(lost.is_empty(), || format!("message {lost:?} was acknowledged and is lost"))
    }
}

/// Messages that may be gone: how many deletes of each are under way, or were not surely in vain.
#[derive(Default)]
pub(super) struct Going(BTreeMap<u64, usize>);

impl Going {
    pub(super) fn begin(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            *self.0.entry(number).or_default() += 1;
        }
    }

    /// A delete that was begun has surely not deleted it.
    pub(super) fn in_vain(&mut self, number: u64) {
        let under_way = self.0.get_mut(&number).expect("this one is");
        *under_way -= 1;
        if *under_way == 0 {
            self.0.remove(&number);
        }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }
}

/// Whether something that takes messages was done: it is done once at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Once {
    #[default]
    No,
    Now,
    /// What began to be sent before this may be gone.
    Until(Instant),
}

impl Once {
    /// Whether what begins to be sent now may go.
    pub(super) fn takes(self, now: Instant) -> bool {
        match self {
            Once::No => false,
            Once::Now => true,
            Once::Until(until) => now < until,
        }
    }
}

/// Something that takes messages and is under way, until it is dropped: when it is answered, or its front end crashes.
pub(super) struct Doing<'a, M> {
    pub(super) env: &'a Env,
    pub(super) model: &'a Mutex<M>,
    pub(super) which: fn(&mut M) -> &mut Once,
    /// It may take what is sent so long after its end.
    pub(super) takes_after: Duration,
}

impl<M> Drop for Doing<'_, M> {
    fn drop(&mut self) {
        let until = self.env.now() + self.takes_after;
        *(self.which)(&mut self.model.lock()) = Once::Until(until);
    }
}

pub(super) fn number_of(message: &Message) -> u64 {
    message.content.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// How front ends use the store.
pub(super) fn config(consistency: Consistency, rng: &mut Rng) -> SharedConfig {
    SharedConfig {
        consistency,
        skew_ms: SKEW_MS,
        parts: rng.between(1, 3) as u16,
        sweep_ms: 30_000,
        ..SharedConfig::default()
    }
}

/// A front end and what `open` finds there, as soon as the cluster lets it be.
pub(super) async fn open<T, F: Future<Output = Option<T>>>(
    env: &Env,
    cluster: &Arc<Cluster>,
    config: &SharedConfig,
    plant: Plant,
    open: impl Fn(SharedQueues) -> F,
) -> Option<T> {
    for _ in 0..1_000 {
        let rows = Arc::new(SimRows::new(cluster, env, plant));
        if let Ok(store) = SharedQueues::start(env, rows, config.clone()).await
            && let Some(opened) = open(store).await
        {
            return Some(opened);
        }
        env.sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Runs two clients of a front end once it is open.
pub(super) fn start<F: Send + Sync + 'static, C: Future<Output = ()> + Send + 'static>(
    env: &Env,
    opened: impl Future<Output = Option<Arc<F>>> + Send + 'static,
    client: fn(Arc<F>) -> C,
) {
    let run = async move {
        let Some(front) = opened.await else { return };
        futures::future::join_all((0..2).map(|_| client(Arc::clone(&front)))).await;
    };
    env.spawn("front", run).detach();
}

/// Creates a queue, or finds the one that is there.
pub(super) async fn create(store: &SharedQueues, record: QueueRecord) -> Result<Arc<QueueView>, QueueError> {
    match store.create(record).await {
        Ok(view) | Err(QueueError::Exists(view)) => Ok(view),
        Err(error) => Err(error),
    }
}

/// Runs front ends, which crash now and then in every other world, for the first of `times`; lets the cluster rest for
/// the second one, without failures; and then runs `last` alone.
pub(super) fn run<M, L>(
    world: &World,
    mut rng: Rng,
    cluster: &Cluster,
    model: &Arc<Mutex<M>>,
    times: (Duration, Duration),
    start: impl Fn(Env) + Send + 'static,
    last: impl FnOnce(Env) -> L,
) -> Result<(), Violation>
where
    M: AsMut<FrontSeen> + Send + 'static,
    L: Future<Output = Result<(), String>> + Send + 'static,
{
    let nodes: Vec<Node> = FRONTS.iter().map(|name| world.node(name)).collect();
    let mut skews = Vec::new();
    for node in &nodes {
        let skew = rng.below(SKEW_MS) as i64;
        node.skew_wall_ms(skew);
        skews.push(skew);
        start(node.env());
    }
    if rng.below(2) == 0 {
        let (over, counted) = (Arc::clone(model), Arc::clone(model));
        let is_over = move || over.lock().as_mut().stop;
        let start = move |node: &Node| {
            counted.lock().as_mut().report.count("crashes", 1);
            start(node.env());
        };
        let breaking = break_fronts(world.outside(), rng, nodes, skews, is_over, start);
        world.outside().spawn("chaos", breaking).detach();
    }
    world.run_for(times.0)?;
    model.lock().as_mut().stop = true;
    *cluster.faults_per_million.lock() = 0;
    world.run_for(times.1)?;
    take_violation(model)?;
    let node = world.node("last");
    match world.run(node.run("last", last(node.env())))? {
        Ok(Ok(())) => {}
        other => return Err(Violation::new(format!("without any failures: {other:?}"))),
    }
    take_violation(model)
}

fn take_violation<M: AsMut<FrontSeen>>(model: &Mutex<M>) -> Result<(), Violation> {
    model.lock().as_mut().violation.take().map_or(Ok(()), Err)
}

/// Crashes front ends now and then; they come back with another clock.
async fn break_fronts(
    outside: Outside,
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
