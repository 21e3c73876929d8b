//! An account's quota that several front ends give together ([`QuotaShares`]), over the same model of Cassandra: what
//! is asked for moves from front end to front end; calls fail, replicas get reports late, front ends crash and come
//! back, are cut off from the store, or stand still.
//!
//! Checked, at any time: the shares of front ends that have exchanged reports for a while come to no more than the
//! quota. And at the end, when nothing fails any more: within some seconds a front end that alone is asked has almost
//! all of it, wherever that is; and when one is killed, the others soon give its share, too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{Consistency, FrontReport, QueueStore, SharedConfig};
use tailwater_quotas::{QuotaShares, ShareBucket, ShareUse};

use super::cluster::Cluster;
use super::fronts;
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

const NAMES: [&str; 4] = ["front-0", "front-1", "front-2", "front-3"];
const TAKER: u64 = 7;
/// What the account may have in a second.
const QUOTA: u64 = 200;
/// What clients ask of a front end at most, in a second.
const ASKED_MAX: u64 = 2 * QUOTA;
/// How long things fail.
const LOAD: Duration = Duration::from_secs(60);
/// How long it takes at most, without failures, until shares are where they are used.
const CONVERGED: Duration = Duration::from_secs(8);
/// As long as a front end that died is counted, and then some.
const FREED: Duration = Duration::from_secs(20);
/// How long is counted what is given.
const COUNTED: Duration = Duration::from_secs(5);
/// After so long of exchanging reports all others that do so have heard of it.
const SETTLED: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_millis(50);

/// A front end that is there.
struct ShareFront {
    shares: QuotaShares,
    bucket: ShareBucket,
    /// Since when it exchanges reports.
    exchanging_since: Option<Instant>,
    /// What is asked for, as far as it is not a whole one yet.
    asked: f64,
}

impl ShareFront {
    fn is_settled(&self, now: Instant) -> bool {
        let since = self.exchanging_since.filter(|_| self.shares.is_exchanging(now));
        since.is_some_and(|since| now.since(since) >= SETTLED)
    }
}

/// What the world outside knows.
#[derive(Default)]
struct ShareModel {
    fronts: Vec<Option<ShareFront>>,
    /// What is asked of each, in a second.
    asked: Vec<u64>,
    is_cut_off: Vec<bool>,
    admitted: u64,
    is_over: bool,
    report: Report,
}

type ShareOutside = Arc<Mutex<ShareModel>>;

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(20_000_000);
    let mut rng = Rng::new(world.seed(), "scenario/quota-shares");
    let count = rng.between(2, NAMES.len() as u64) as usize;
    let faults = [0, 2_000, 20_000][rng.index(3)];
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), faults);
    let model = ShareOutside::new(Mutex::new(ShareModel {
        fronts: (0..count).map(|_| None).collect(),
        asked: vec![0; count],
        is_cut_off: vec![false; count],
        ..ShareModel::default()
    }));
    let starting = ShareStarting { cluster: Arc::clone(&cluster), model: Arc::clone(&model), plant };
    let nodes: Vec<Node> = NAMES[..count].iter().map(|name| world.node(name)).collect();
    for (number, node) in nodes.iter().enumerate() {
        starting.clone().start(number, node.env());
    }
    let chaos = starting.clone().chaos(world.outside(), Rng::new(world.seed(), "chaos"), nodes.clone());
    world.outside().spawn("chaos", chaos).detach();
    world
        .outside()
        .spawn("asking", ask(world.outside(), Rng::new(world.seed(), "asked"), Arc::clone(&model)))
        .detach();
    watch(world, &model, LOAD)?;
    model.lock().is_over = true;
    *cluster.faults_per_million.lock() = 0;
    // Longer than anything that has begun before lasts.
    watch(world, &model, Duration::from_secs(45))?;
    shares_follow(world, &model, rng.index(count))?;
    nodes[0].crash(Crash::Process);
    model.lock().fronts[0] = None;
    model.lock().asked = vec![ASKED_MAX; count];
    watch(world, &model, FREED)?;
    ensure_given(world, &model, "one front end is dead, and all others are asked", (0.95, 1.05))?;
    let model = model.lock();
    Ok(model.report.clone())
}

/// What is asked for comes from one front end after the other, and most of the quota with it.
fn shares_follow(world: &World, model: &ShareOutside, first: usize) -> Result<(), Violation> {
    let count = model.lock().fronts.len();
    for step in 0..2 {
        let busy = (first + step) % count;
        {
            let mut model = model.lock();
            model.asked = vec![0; count];
            model.asked[busy] = ASKED_MAX;
        }
        watch(world, model, CONVERGED)?;
        ensure_given(world, model, "one front end is asked for all of it", (0.85, 1.05))?;
    }
    Ok(())
}

/// Counts what is given for a while; it has to be that part of the quota.
fn ensure_given(
    world: &World,
    model: &ShareOutside,
    when: &str,
    (least, most): (f64, f64),
) -> Result<(), Violation> {
    let before = model.lock().admitted;
    watch(world, model, COUNTED)?;
    let given = (model.lock().admitted - before) as f64;
    let part = given / (QUOTA as f64 * COUNTED.as_secs_f64());
    ensure((least..=most).contains(&part), || format!("when {when}, {part:.2} of the quota is given"))
}

/// Lets the world run, and looks at all shares again and again.
fn watch(world: &World, model: &ShareOutside, duration: Duration) -> Result<(), Violation> {
    let until = world.now() + duration;
    while world.now() < until {
        world.run_for(TICK)?;
        let (now, mut model) = (world.now(), model.lock());
        let settled = model.fronts.iter().flatten().filter(|front| front.is_settled(now));
        let shares: Vec<f64> = settled.map(|front| front.shares.share(TAKER, QUOTA, now)).collect();
        let sum: f64 = shares.iter().sum();
        ensure(sum <= QUOTA as f64 + 0.001, || {
            format!("shares {shares:?} come to more than the quota, {QUOTA}")
        })?;
        if shares.len() == model.fronts.len() {
            model.report.count("looks at all", 1);
        }
    }
    Ok(())
}

/// Asks for something else now and then: of all front ends, of one, or as it comes.
async fn ask(outside: Outside, mut rng: Rng, model: ShareOutside) {
    while !model.lock().is_over {
        {
            let mut model = model.lock();
            let count = model.asked.len();
            let busy = rng.index(count);
            let kind = rng.below(3);
            model.asked = (0..count)
                .map(|number| match kind {
                    0 => ASKED_MAX,
                    1 if number == busy => ASKED_MAX,
                    1 => 0,
                    _ => rng.below(QUOTA),
                })
                .collect();
        }
        outside.sleep(Duration::from_millis(rng.between(1_000, 15_000))).await;
    }
}

/// What a front end is started with.
#[derive(Clone)]
struct ShareStarting {
    cluster: Arc<Cluster>,
    model: ShareOutside,
    plant: Plant,
}

impl ShareStarting {
    fn start(self, number: usize, env: Env) {
        let spawned = env.clone();
        spawned.spawn("front", self.serve(number, env)).detach();
    }

    /// A front end: what the accounts of the real one do.
    async fn serve(self, number: usize, env: Env) {
        let config = SharedConfig { consistency: Consistency::Quorum, ..SharedConfig::default() };
        let opened = fronts::open(&env, &self.cluster, &config, self.plant, async |store| Some(store));
        let Some(store) = opened.await else { return };
        let mut shares = QuotaShares::new(env.random_u64() >> 1);
        // It serves nobody before.
        loop {
            let report = begin(&mut shares, env.now(), None);
            if let Some(reports) = put_and_read(&self.model, number, &env, &store, report).await {
                end(&mut shares, env.now(), &reports);
                break;
            }
            env.sleep(TICK).await;
        }
        let now = env.now();
        let bucket = ShareBucket::full(QUOTA, now);
        let front = ShareFront { shares, bucket, exchanging_since: Some(now), asked: 0.0 };
        self.model.lock().fronts[number] = Some(front);
        env.spawn("clients", clients(Arc::clone(&self.model), number, env.clone())).detach();
        loop {
            env.sleep(Duration::from_millis(750 + env.random_below(250))).await;
            let round = self.round(number, &env, &store);
            let ended = env.timeout(Duration::from_secs(1), round).await;
            let what = if ended == Some(true) { "rounds" } else { "failed rounds" };
            self.model.lock().report.count(what, 1);
        }
    }

    /// One round of a front end that serves.
    async fn round(&self, number: usize, env: &Env, store: &SharedQueues) -> bool {
        let (was_exchanging, report) = {
            let mut model = self.model.lock();
            let Some(front) = &mut model.fronts[number] else { return false };
            let (taken, is_refused) = front.bucket.taken();
            let used = ShareUse { taker: TAKER, quota: QUOTA, taken, is_refused };
            let now = env.now();
            (front.shares.is_exchanging(now), begin(&mut front.shares, now, Some(used)))
        };
        let Some(reports) = put_and_read(&self.model, number, env, store, report).await else { return false };
        let mut model = self.model.lock();
        let Some(front) = &mut model.fronts[number] else { return false };
        end(&mut front.shares, env.now(), &reports);
        if !was_exchanging {
            front.exchanging_since = Some(env.now());
        }
        true
    }

    /// Crashes front ends, cuts them off from the store, and lets them stand still.
    async fn chaos(self, outside: Outside, mut rng: Rng, nodes: Vec<Node>) {
        loop {
            outside.sleep(Duration::from_millis(rng.between(2_000, 20_000))).await;
            if self.model.lock().is_over {
                return;
            }
            let number = rng.index(nodes.len());
            let pause = Duration::from_millis(rng.between(100, 16_000));
            match rng.below(3) {
                0 => {
                    nodes[number].crash(Crash::Process);
                    {
                        let mut model = self.model.lock();
                        model.fronts[number] = None;
                        model.report.count("crashes", 1);
                    }
                    outside.sleep(pause).await;
                    nodes[number].start();
                    self.clone().start(number, nodes[number].env());
                }
                1 => {
                    self.model.lock().is_cut_off[number] = true;
                    outside.sleep(pause).await;
                    self.model.lock().is_cut_off[number] = false;
                    self.model.lock().report.count("cuts", 1);
                }
                _ => {
                    nodes[number].pause();
                    outside.sleep(pause).await;
                    nodes[number].resume();
                    self.model.lock().report.count("pauses", 1);
                }
            }
        }
    }
}

/// Asks a front end for as much as the world outside says.
async fn clients(model: ShareOutside, number: usize, env: Env) {
    loop {
        env.sleep(TICK).await;
        let now = env.now();
        let mut model = model.lock();
        let asked = model.asked[number] as f64 * TICK.as_secs_f64();
        let Some(front) = &mut model.fronts[number] else { return };
        front.asked += asked;
        let share = front.shares.share(TAKER, QUOTA, now);
        let mut admitted = 0;
        while front.asked >= 1.0 {
            front.asked -= 1.0;
            admitted += u64::from(front.bucket.take(1, share, now));
        }
        model.admitted += admitted;
        model.report.count("admitted", admitted);
    }
}

fn begin(shares: &mut QuotaShares, now: Instant, used: Option<ShareUse>) -> FrontReport {
    let (number, value) = shares.begin(now, used);
    FrontReport { front: shares.front(), number, value: value.into() }
}

fn end(shares: &mut QuotaShares, now: Instant, reports: &[FrontReport]) {
    shares.end(now, reports.iter().map(|report| (report.front, report.number, &report.value[..])));
}

async fn put_and_read(
    model: &ShareOutside,
    number: usize,
    env: &Env,
    store: &SharedQueues,
    report: FrontReport,
) -> Option<Vec<FrontReport>> {
    if model.lock().is_cut_off[number] {
        env.sleep(Duration::from_secs(2)).await;
        return None;
    }
    store.exchange_reports(report).await.ok().flatten()
}
