//! A stream that is copied between 3 to 12 clusters: the copying of a node in each of them, over simulated links, while
//! clusters crash, links are slow or cut, plans change, copies are emptied, and the source removes records.
//!
//! The code that runs is that of `copy` on `log`. A cluster has one node, without cells. In the scenario `schedule` it
//! has workers, too, which crash, leave, are slow and cut off, and which two schedulers tell at once what to run.
//! Checked:
//! - each shard by a [`ShardChecker`], whose readers are those of all clusters: what was acknowledged at the source is
//!   what every consumer of every cluster gets, at the same offsets, in order, in the same terms;
//! - a consumer misses only what the source was asked to remove, and is told;
//! - where two plans together make a cycle, it copies nothing a second later;
//! - at the end a worker that is killed is found dead within [`workers::DEAD_MAX`], and what it ran flows elsewhere
//!   within 100 ms of that; where one leaves, everything flows all the time;
//! - the source moves, in order: nothing is lost then; and by force: then there is another lineage from where the new
//!   source ended, with checkers of its own, and no cluster that goes by it ever shows what others had beyond that;
//! - at the end, when nothing fails any more: within [`RECOVERY_MAX`] every cluster goes by the newest plan and has
//!   everything, and a consumer that begins at the start reads all of it.

mod chaos;
pub(super) mod cluster;
mod consumers;
mod producers;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_copy::{Copies, PlaceRequest, TreeEdge};
use tailwater_env::Env;
use tailwater_format::StreamId;
use tailwater_format::call::CopyPlan;
use tailwater_log::{Log, LogConfig, StreamConfig, StreamDurability};

use crate::checkers::{Report, ShardChecker, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, Outside, World, run_on};

use super::cluster::{draw_config, draw_stream};
use super::lives::make_data_dir;
use super::outcome::SharedOutcome;

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(12);
/// How long everything may take to be well again: plans are told again every 30 s, and a session ends after 8 s of
/// silence.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// How long a cycle of two plans may copy, where no link fails.
const CYCLE_MAX: Duration = Duration::from_secs(1);
const NAMES: [&str; 12] = ["us", "eu", "asia", "br", "in", "jp", "za", "au", "ca", "mx", "no", "kr"];
const STREAM: &str = "stream";
/// The consumers that begin when all is over have numbers from here on.
const LATE: u64 = 100;

/// What a running process of a cluster has.
#[derive(Clone)]
struct ClusterLife {
    env: Env,
    log: Log,
    copies: Copies,
}

impl ClusterLife {
    /// Whether it is the source, and the rank of its plan among those of others who say so too.
    fn leads(&self, number: usize) -> Option<(u64, &'static str)> {
        let plan = self.copies.plan(STREAM).ok();
        let is_source = !self.log.is_copy(self.log.stream(STREAM).ok()?.id);
        // Before it is placed for the first time it has no plan.
        let by_plan = plan.as_ref().is_none_or(|plan| plan.source == NAMES[number]);
        (is_source && by_plan).then(|| (plan.map_or(0, |plan| plan.moves), NAMES[number]))
    }
}

/// What everybody in the scenario shares: the world from outside.
struct TreesShared {
    outside: Outside,
    net: Net,
    nodes: Vec<Node>,
    /// The workers of each cluster.
    workers: Vec<Vec<Node>>,
    /// Tells workers now and then what to run, too.
    other_scheduler: workers::OtherScheduler,
    drills: workers::CrewDrills,
    config: LogConfig,
    stream_config: StreamConfig,
    plant: Plant,
    lives: Mutex<Vec<Option<ClusterLife>>>,
    state: Mutex<TreesState>,
    outcome: SharedOutcome,
}

/// What holds between two forced moves of the source.
#[derive(Clone, Default)]
struct Lineage {
    checkers: Vec<ShardChecker>,
    /// The term of each record that was read, by shard and offset.
    terms: BTreeMap<(u32, u64), u32>,
}

#[derive(Default)]
struct TreesState {
    stream: Option<StreamId>,
    /// By the number of the forced move that it begins with; 0 is the first.
    lineages: BTreeMap<u64, Lineage>,
    identity_next: u64,
    source: usize,
    /// How often the source has moved by the latest plan that anybody was seen to go by.
    moves: u64,
    /// Nothing goes wrong any more.
    calm: bool,
    /// Producers end.
    stop: bool,
}

type Trees = Arc<TreesShared>;

impl TreesShared {
    fn life(&self, number: usize) -> Option<ClusterLife> {
        if self.nodes[number].is_up() { self.lives.lock()[number].clone() } else { None }
    }

    /// The cluster that has the source: of several, the one whose plan the others will follow. While it moves there is
    /// none, and the last one is told of.
    fn source(&self) -> usize {
        let leads =
            (0..self.nodes.len()).filter_map(|number| Some((self.life(number)?.leads(number)?, number)));
        let (rank, source) = leads.max().unzip();
        let mut state = self.state.lock();
        state.moves = state.moves.max(rank.map_or(0, |(moves, _)| moves));
        state.source = source.unwrap_or(state.source);
        state.source
    }

    /// The lineage by which a cluster goes, if it knows of the stream. Whoever has made it need not have said so yet.
    fn lineage(&self, life: &ClusterLife) -> Option<u64> {
        let plan = life.copies.plan(STREAM).ok()?;
        self.knows(&plan);
        Some(plan.lineage())
    }

    /// The hop to a cluster, as that tells: whence, and whether it copies.
    fn hop(&self, number: usize) -> Option<(String, bool)> {
        let hops = self.life(number)?.copies.hops();
        hops.into_iter().next().map(|(_, hop)| (hop.from, hop.is_copying))
    }

    /// The plan that a cluster goes by: how often the source has moved by it, and its number.
    fn plan(&self, number: usize) -> Option<(u64, u64)> {
        let plan = self.life(number)?.copies.plan(STREAM).ok()?;
        Some((plan.moves, plan.number))
    }

    /// Places the stream so, if the source is there; the plan as in [`TreesShared::plan`].
    async fn place(&self, hops: &[(usize, usize)]) -> Option<(u64, u64)> {
        let source = self.source();
        let life = self.life(source)?;
        let name = |number: &usize| NAMES[*number].to_owned();
        let request = PlaceRequest {
            stream: STREAM.to_owned(),
            source: name(&source),
            to: hops.iter().map(|(_, to)| name(to)).collect(),
            hops: Some(hops.iter().map(|(from, to)| TreeEdge { from: name(from), to: name(to) }).collect()),
        };
        let copies = life.copies.clone();
        let placed = run_on(&life.env, "place", async move { copies.place(&request).await }).await?;
        self.outcome.count("plans", 1);
        placed.ok().map(|plan| (plan.moves, plan.number))
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/trees");
    let clusters = rng.between(3, NAMES.len() as u64) as usize;
    let shards = rng.between(1, 2) as u32;
    run_with(world, plant, rng, (clusters, shards, 0))
}

/// The same with workers in each cluster.
pub fn run_scheduled(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/schedule");
    let clusters = rng.between(3, 5) as usize;
    let shards = rng.between(1, 6) as u32;
    let workers = rng.between(1, 3) as usize;
    run_with(world, plant, rng, (clusters, shards, workers))
}

fn run_with(
    world: &mut World,
    plant: Plant,
    mut rng: Rng,
    (clusters, shards, crew): (usize, u32, usize),
) -> Result<Report, Violation> {
    world.set_steps_max(40_000_000);
    let stream_config =
        StreamConfig { retention_bytes: None, ..draw_stream(&mut rng, shards, StreamDurability::Fsync) };
    let shared = Arc::new(TreesShared {
        outside: world.outside(),
        net: Net::new(world),
        nodes: NAMES[..clusters].iter().map(|name| world.node(name)).collect(),
        workers: (0..clusters)
            .map(|of| (0..crew).map(|number| world.node(workers::WORKER_NODES[of][number])).collect())
            .collect(),
        other_scheduler: workers::OtherScheduler::default(),
        drills: workers::CrewDrills::default(),
        config: LogConfig { tick: Duration::from_millis(500), ..draw_config(&mut rng) },
        stream_config,
        plant,
        lives: Mutex::new(vec![None; clusters]),
        outcome: SharedOutcome::default(),
        state: Mutex::new(TreesState {
            lineages: BTreeMap::from([(
                0,
                Lineage {
                    checkers: (0..shards).map(|_| ShardChecker::new()).collect(),
                    ..Lineage::default()
                },
            )]),
            ..TreesState::default()
        }),
    });
    let outside = world.outside();
    for (number, node) in shared.nodes.iter().enumerate() {
        make_data_dir(node);
        outside.spawn("supervisor", cluster::supervise(Arc::clone(&shared), number)).detach();
    }
    for number in 0..clusters {
        for worker in 0..crew {
            let working = workers::supervise(Arc::clone(&shared), number, worker);
            outside.spawn("worker", working).detach();
        }
    }
    world.run(begin(Arc::clone(&shared)))??;
    outside.spawn("chaos", chaos::trouble(Arc::clone(&shared), rng)).detach();

    shared.outcome.let_pass(world, TROUBLE)?;
    shared.state.lock().calm = true;
    let well = world.run(settle(Arc::clone(&shared)))?;
    if well && crew > 0 {
        world.run(workers::drill(Arc::clone(&shared)))?;
    }
    shared.outcome.take_violation()?;
    if !well {
        let answers = world.run(shared.answers_to_the_plan())?;
        return Err(Violation::new(format!("{}{answers}", shared.describe_stuck())));
    }
    let state = shared.state.lock();
    let last = state.lineages.values().flat_map(|lineage| &lineage.checkers);
    let records: u64 = last.map(ShardChecker::acknowledged_count).sum();
    shared.outcome.count("records acknowledged", records);
    shared.outcome.count("clusters", clusters as u64);
    Ok(shared.outcome.report())
}

/// All clusters run, the first one has the stream and knows the others, which all get copies from it.
async fn begin(shared: Trees) -> Result<(), Violation> {
    let all = 0..shared.nodes.len();
    while all.clone().any(|number| shared.life(number).is_none()) {
        shared.outside.sleep(Duration::from_millis(1)).await;
    }
    let life = shared.life(shared.source()).ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    let (log, copies, config) = (life.log.clone(), life.copies.clone(), shared.stream_config.clone());
    let creating = async move {
        for number in all.skip(1) {
            copies.add(NAMES[number], &cluster::address(number)).await.map_err(|error| error.to_string())?;
        }
        log.create_stream(STREAM, config).await.map(|stream| stream.id).map_err(|error| error.to_string())
    };
    let created = run_on(&life.env, "create", creating).await;
    let created = created.ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    shared.state.lock().stream = Some(created.map_err(Violation::new)?);
    let star: Vec<_> = (1..shared.nodes.len()).map(|to| (0, to)).collect();
    ensure(shared.place(&star).await.is_some(), || "the stream can't be placed".to_owned())
}

/// Everything works: whether everybody gets everything in time.
async fn settle(shared: Trees) -> bool {
    chaos::mend(&shared).await;
    let began = shared.outside.now();
    let (mut plan, mut failed_at) = (None, None);
    while !shared.outcome.has_failed() && shared.outside.now().since(began) < RECOVERY_MAX {
        if plan.is_none() {
            plan = shared.place(&chaos::last_tree(&shared)).await;
        }
        // Another move may have been under way.
        if plan.is_some_and(|plan| shared.plan(shared.source()).is_some_and(|known| known > plan)) {
            plan = None;
        }
        let since = shared.outside.now().since(began);
        // Nothing but this ends what stands still then: no session begins anew.
        if plan.is_some() && since > Duration::from_secs(1) && failed_at.is_none() {
            workers::fail_syncs(&shared);
            failed_at = Some(since);
        }
        // Something is appended and copied by the last plan, and then no more.
        if failed_at.is_some_and(|at| since > at + Duration::from_secs(1)) {
            shared.state.lock().stop = true;
        }
        if plan.is_some() && shared.state.lock().stop && shared.is_complete(plan) {
            let took = shared.outside.now().since(began).as_millis() as u64;
            shared.outcome.count("ms until all was well", took);
            return true;
        }
        shared.outside.sleep(Duration::from_millis(20)).await;
    }
    false
}

impl TreesShared {
    fn is_complete(&self, plan: Option<(u64, u64)>) -> bool {
        let numbers = 0..self.nodes.len();
        if numbers.clone().any(|number| self.plan(number) != plan) {
            return false;
        }
        let Some(lineage) = self.life(self.source()).and_then(|life| self.lineage(&life)) else {
            return false;
        };
        let state = self.state.lock();
        let complete = |checker: &ShardChecker| {
            let both = numbers.clone().flat_map(|number| [number as u64, LATE + number as u64]);
            both.into_iter().all(|reader| checker.complete(reader).is_ok())
        };
        state.lineages[&lineage].checkers.iter().all(complete) && self.is_scheduled()
    }

    /// What clusters answer that are told of the plan of the source, where they don't keep it.
    async fn answers_to_the_plan(&self) -> String {
        let mut answers = String::new();
        let Some(plan) = self.life(self.source()).and_then(|life| life.copies.plan(STREAM).ok()) else {
            return answers;
        };
        for number in (0..self.nodes.len()).filter(|number| NAMES[*number] != plan.source) {
            let Some(life) = self.life(number) else { continue };
            let (copies, told) = (life.copies.clone(), CopyPlan { plan: plan.to_bytes() });
            let keeping = run_on(&life.env, "keep", async move { copies.keep_plan(&told).await });
            match self.outside.timeout(Duration::from_secs(1), keeping).await {
                Some(Some(Ok(_))) => {}
                other => answers.push_str(&format!("; {} answers {other:?}", NAMES[number])),
            }
        }
        answers
    }

    fn describe_stuck(&self) -> String {
        let mut what = format!("{} s after the last fault not all is well", RECOVERY_MAX.as_secs());
        for (number, name) in NAMES.iter().enumerate().take(self.nodes.len()) {
            let (plan, hop) = (self.plan(number), self.hop(number));
            let life = self.life(number);
            let why = life.and_then(|life| life.copies.hops().first().map(|(_, hop)| hop.why.clone()));
            what.push_str(&format!("; {name} goes by plan {plan:?}, hop {hop:?} {why:?}"));
            what.push_str(&self.describe_crew(number));
        }
        let lineage = self.life(self.source()).and_then(|life| self.lineage(&life)).unwrap_or_default();
        let state = self.state.lock();
        for (shard, checker) in state.lineages[&lineage].checkers.iter().enumerate() {
            let readers: Vec<u64> =
                (0..self.nodes.len()).map(|number| checker.reader_next(number as u64)).collect();
            let end = checker.acknowledged_end();
            what.push_str(&format!("; shard {shard}: acknowledged to {end}, consumers at {readers:?}"));
        }
        what
    }
}
