//! The workers of clusters: processes that copy parts of the stream for the node of their cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_copy::{ClusterLinks, Copies, CopyWorker, CrewView};
use tailwater_env::{BoxFuture, Env};
use tailwater_format::call::{CopyReport, CopyTask, CopyTasks, Method, decode_call, encode_call};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, Connection};

use crate::checkers::Violation;
use crate::disk::{Fault, Faults};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::scenarios::clients::part;
use crate::world::{Crash, Node};

use super::cluster::{SimLinks, address};
use super::{NAMES, STREAM, Trees, TreesShared};

/// How long the first worker of a cluster that has ended, or was killed, is away. The second one is away twice as long.
const AWAY: Duration = Duration::from_millis(600);
/// How long a worker may be dead until it is found so: it is 1.5 s, and a look every 100 ms.
pub(super) const DEAD_MAX: Duration = Duration::from_millis(1_700);
/// How long it may take from then until what it ran flows elsewhere.
const ELSEWHERE_MAX: Duration = Duration::from_millis(100);
/// How long a worker may take to leave, where nothing fails.
const LEFT_MAX: Duration = Duration::from_secs(15);
/// What the machines of workers are called, by cluster.
pub(super) const WORKER_NODES: [[&str; 3]; 5] = [
    ["us-0", "us-1", "us-2"],
    ["eu-0", "eu-1", "eu-2"],
    ["asia-0", "asia-1", "asia-2"],
    ["br-0", "br-1", "br-2"],
    ["in-0", "in-1", "in-2"],
];

/// A second scheduler of each cluster, which knows what the first one ever had run, and tells each worker to run a half
/// of that, while it is there.
#[derive(Default)]
pub(super) struct OtherScheduler {
    state: Mutex<OtherState>,
}

#[derive(Default)]
struct OtherState {
    is_there: bool,
    /// By cluster, stream and part.
    known: BTreeMap<(String, Bytes, u32), CopyTask>,
}

impl OtherScheduler {
    fn set_there(&self, is_there: bool) {
        self.state.lock().is_there = is_there;
    }
}

/// What is done to workers at the end, when all else is well.
#[derive(Default)]
pub(super) struct CrewDrills {
    /// The cluster and the number of the worker that is to leave.
    leaves: Mutex<Option<(usize, usize)>>,
    /// What each worker has told last, by cluster and name.
    heard: Mutex<BTreeMap<(usize, String), CopyReport>>,
}

/// Connections of a worker.
struct WorkerLinks {
    shared: Trees,
    number: usize,
    links: SimLinks,
}

impl ClusterLinks for WorkerLinks {
    fn connect<'a>(&'a self, to: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        Box::pin(async move {
            let inner = self.links.connect(to).await?;
            if to != address(self.number) {
                return Ok(inner);
            }
            let hooks =
                TwiceTold { shared: Arc::clone(&self.shared), number: self.number, last: Mutex::default() };
            Ok(Arc::new(Decorated { inner, hooks }) as Arc<dyn Connection>)
        })
    }
}

/// What a worker and its node say to each other, where another scheduler may have its say.
struct TwiceTold {
    shared: Trees,
    number: usize,
    /// The number of the last answer of the node itself.
    last: Mutex<u64>,
}

impl TwiceTold {
    /// What the other scheduler would have the worker run.
    fn others(&self, asked: &CopyReport, tasks: CopyTasks) -> CopyTasks {
        let mut state = self.shared.other_scheduler.state.lock();
        let cluster = NAMES[self.number].to_owned();
        for task in &tasks.tasks {
            state.known.insert((cluster.clone(), task.stream.clone(), task.part), task.clone());
        }
        if !state.is_there || tasks.may_go {
            return tasks;
        }
        let number = asked.worker.bytes().last().unwrap_or_default();
        let known = state.known.iter().filter(|((of, ..), _)| *of == cluster);
        let known = known.filter(|((_, _, part), _)| (u32::from(number) + part).is_multiple_of(2));
        self.shared.outcome.count("times that another scheduler told a worker", 1);
        CopyTasks { tasks: known.map(|(_, task)| task.clone()).collect(), ..tasks }
    }
}

impl ConnectionHooks for TwiceTold {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            let asked = match Method::from_number(method) {
                Some(Method::CopyReport) => decode_call::<CopyReport>(payload.clone()).ok(),
                _ => None,
            };
            let Some(asked) = asked else { return inner.call(method, payload).await };
            let told = (self.number, asked.worker.clone());
            self.shared.drills.heard.lock().insert(told, asked.clone());
            let question = encode_call(&CopyReport { number: *self.last.lock(), ..asked.clone() });
            let answer = inner.call(method, question).await?;
            let Ok(tasks) = decode_call::<CopyTasks>(answer.clone()) else { return Ok(answer) };
            *self.last.lock() = tasks.number;
            Ok(encode_call(&self.others(&asked, self.shared.without_moving(self.number, &asked, tasks))))
        })
    }
}

/// Keeps a worker up, for as long as the scenario lasts.
pub(super) async fn supervise(shared: Trees, number: usize, worker: usize) {
    let node = shared.workers[number][worker].clone();
    while !shared.outcome.has_failed() {
        if !node.is_up() {
            shared.outside.sleep(AWAY * (1 + worker as u32)).await;
            node.start();
        }
        let env = node.env();
        let links = SimLinks { net: shared.net.clone(), node: node.clone(), plant: shared.plant };
        let links = WorkerLinks { shared: Arc::clone(&shared), number, links };
        let name = format!("{}-{worker}", NAMES[number]);
        let working = CopyWorker::new(&env, Arc::new(links), vec![address(number)], &name);
        let (of, waiting) = (Arc::clone(&shared), env.clone());
        let work = async move {
            let stop = async {
                // Now and then one is to end.
                loop {
                    waiting.sleep(Duration::from_millis(500)).await;
                    if *of.drills.leaves.lock() == Some((number, worker)) {
                        return;
                    }
                    if !of.state.lock().calm && waiting.random_below(12) == 0 {
                        return;
                    }
                }
            };
            working.run(stop).await;
        };
        match node.run("work", work).await {
            Ok(()) => {
                shared.outcome.count("workers that left", 1);
                node.crash(Crash::Process);
            }
            Err(_) => shared.outcome.count("workers killed", 1),
        }
    }
}

/// Something goes wrong with the workers of a cluster.
pub(super) fn trouble(shared: &TreesShared, rng: &mut Rng, number: usize) {
    let workers = &shared.workers[number];
    let worker = &workers[rng.index(workers.len())];
    let any: &Node = &shared.nodes[rng.index(shared.nodes.len())];
    match rng.below(8) {
        0 | 1 => worker.crash(Crash::Process),
        2 => workers.iter().for_each(|worker| worker.crash(Crash::Process)),
        3 => {
            shared.outcome.count("crashes of clusters", 1);
            shared.nodes[number].crash(Crash::Process);
        }
        4 | 5 => {
            shared.outcome.count("workers cut off", 1);
            let lasts = Duration::from_millis(rng.between(50, 9_000));
            part(&shared.net, &shared.outside, (worker, any), lasts);
        }
        6 => {
            shared.outcome.count("slow workers", 1);
            let extra = Duration::from_millis(rng.below(3) * rng.below(800));
            shared.nodes.iter().for_each(|node| shared.net.slow_down(worker, node, extra));
        }
        _ => shared.other_scheduler.set_there(rng.below(2) == 0),
    }
}

/// Nothing goes wrong with workers any more.
pub(super) fn mend(shared: &TreesShared) {
    shared.other_scheduler.set_there(false);
    calm_links(shared);
}

/// Where there are workers, a sync of each copy's disk fails: what the log did not take is not lost.
pub(super) fn fail_syncs(shared: &TreesShared) {
    let source = shared.source();
    for number in (0..shared.nodes.len()).filter(|number| *number != source) {
        if !shared.workers[number].is_empty() {
            shared.outcome.count("failing syncs", 1);
            shared.nodes[number].disk().set_faults(Faults { sync: Fault::Next(1), ..Faults::default() });
        }
    }
}

/// No link of a worker fails, or is slow.
pub(super) fn calm_links(shared: &TreesShared) {
    for worker in shared.workers.iter().flatten() {
        for node in &shared.nodes {
            shared.net.heal(worker, node);
            shared.net.slow_down(worker, node, Duration::ZERO);
        }
    }
}

/// [`Plant::DeadWorkerHeard`]: what workers have told last, they tell for ever.
pub(super) async fn hear_the_dead(shared: Trees, number: usize, env: Env, copies: Copies) {
    loop {
        env.sleep(Duration::from_millis(400)).await;
        let heard = shared.drills.heard.lock().clone();
        for (_, report) in heard.into_iter().filter(|((of, _), _)| *of == number) {
            // That of a worker that runs anew is refused.
            let _ = copies.work(CopyReport { number: 0, ..report }).await;
        }
    }
}

/// Kills a worker, and has another one leave, where everything else is well.
pub(super) async fn drill(shared: Trees) {
    for number in 0..shared.nodes.len() {
        if let Err(violation) = shared.kill_one(number).await {
            shared.outcome.note(Err(violation));
            return;
        }
        if let Err(violation) = shared.have_one_leave(number).await {
            shared.outcome.note(Err(violation));
            return;
        }
    }
}

impl TreesShared {
    fn crew(&self, number: usize) -> Option<CrewView> {
        self.life(number).map(|life| life.copies.crew())
    }

    /// The worker of a cluster with most operations, if one has any.
    fn busiest(&self, number: usize) -> Option<usize> {
        let crew = self.crew(number)?;
        let of = |worker: usize| {
            let name = format!("{}-{worker}", NAMES[number]);
            let own = crew.operations.iter().filter(|of| of.worker.as_ref() == Some(&name));
            (own.count(), worker)
        };
        let all = (0..self.workers[number].len()).map(of);
        all.max().filter(|(operations, _)| *operations > 0).map(|(_, worker)| worker)
    }

    /// A worker is killed: it is found dead in time, and what it ran flows elsewhere soon after.
    async fn kill_one(&self, number: usize) -> Result<(), Violation> {
        let (Some(worker), Some(before)) = (self.busiest(number), self.crew(number)) else {
            return Ok(());
        };
        let name = format!("{}-{worker}", NAMES[number]);
        self.workers[number][worker].crash(Crash::Process);
        let killed = self.outside.now();
        while self.crew(number).is_some_and(|crew| crew.counts.dead == before.counts.dead) {
            if self.outside.now().since(killed) > DEAD_MAX {
                return Err(Violation::new(format!("{name} was killed, and was not found dead in time")));
            }
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        let found = self.outside.now();
        while self.hop(number).is_some_and(|(_, is_copying)| !is_copying) {
            if self.outside.now().since(found) > ELSEWHERE_MAX {
                let crew = self.describe_crew(number);
                let what = format!("100 ms after {name} was found dead what it ran flows nowhere: {crew}");
                return Err(Violation::new(what));
            }
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        let took = self.outside.now().since(found).as_millis() as u64;
        self.outcome.count("ms from a death that was found until all flowed elsewhere", took);
        self.outcome.count("drills of deaths", 1);
        Ok(())
    }

    /// A worker leaves: nothing stands still meanwhile.
    async fn have_one_leave(&self, number: usize) -> Result<(), Violation> {
        let began = self.outside.now();
        while !self.is_scheduled() && self.outside.now().since(began) < LEFT_MAX {
            self.outside.sleep(Duration::from_millis(10)).await;
        }
        let Some(worker) = self.busiest(number) else { return Ok(()) };
        let node = &self.workers[number][worker];
        if !node.is_up() || !self.is_scheduled() {
            return Ok(());
        }
        *self.drills.leaves.lock() = Some((number, worker));
        let began = self.outside.now();
        while node.is_up() && self.outside.now().since(began) < LEFT_MAX {
            if let Some((_, false)) = self.hop(number) {
                let what = format!("a copy did not flow while a worker left: {}", self.describe_crew(number));
                return Err(Violation::new(what));
            }
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        *self.drills.leaves.lock() = None;
        if node.is_up() {
            let what = format!("a worker was to leave, and is there: {}", self.describe_crew(number));
            return Err(Violation::new(what));
        }
        self.outcome.count("drills of departures", 1);
        Ok(())
    }

    /// [`Plant::BreakBeforeMake`]: a worker is told of what it is to run from now on only.
    fn without_moving(&self, number: usize, asked: &CopyReport, tasks: CopyTasks) -> CopyTasks {
        if self.plant != Plant::BreakBeforeMake {
            return tasks;
        }
        let Some(crew) = self.crew(number) else { return tasks };
        let own = crew.operations.iter().filter(|of| of.worker.as_ref() == Some(&asked.worker));
        let own: BTreeSet<u32> = own.map(|of| of.part).collect();
        let kept = tasks.tasks.iter().filter(|task| own.contains(&task.part)).cloned();
        CopyTasks { tasks: kept.collect(), ..tasks }
    }

    /// Whether every operation flows, where there are workers, and at one of them only.
    pub(super) fn is_scheduled(&self) -> bool {
        (0..self.nodes.len()).all(|number| {
            if self.workers[number].is_empty() {
                return true;
            }
            let Some(crew) = self.life(number).map(|life| life.copies.crew()) else { return false };
            crew.operations.iter().all(|operation| operation.state == "flows" && operation.also.is_empty())
        })
    }

    pub(super) fn describe_crew(&self, number: usize) -> String {
        match self.life(number) {
            Some(life) if !self.workers[number].is_empty() => {
                let crew = life.copies.crew();
                format!(" crew of {STREAM} {:?} {:?}", crew.workers, crew.operations)
            }
            _ => String::new(),
        }
    }
}
