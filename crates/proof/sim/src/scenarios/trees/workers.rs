//! The workers of clusters: processes that copy parts of the stream for the node of their cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_copy::{ClusterLinks, CopyWorker};
use tailwater_env::BoxFuture;
use tailwater_format::call::{CopyReport, CopyTask, CopyTasks, Method, decode_call, encode_call};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, Connection};

use crate::rng::Rng;
use crate::scenarios::clients::part;
use crate::world::{Crash, Node};

use super::cluster::{SimLinks, address};
use super::{NAMES, STREAM, Trees, TreesShared};

/// How long the first worker of a cluster that has ended, or was killed, is away. The second one is away twice as long.
const AWAY: Duration = Duration::from_millis(600);
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
            let question = encode_call(&CopyReport { number: *self.last.lock(), ..asked.clone() });
            let answer = inner.call(method, question).await?;
            let Ok(tasks) = decode_call::<CopyTasks>(answer.clone()) else { return Ok(answer) };
            *self.last.lock() = tasks.number;
            Ok(encode_call(&self.others(&asked, tasks)))
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
    for worker in shared.workers.iter().flatten() {
        for node in &shared.nodes {
            shared.net.heal(worker, node);
            shared.net.slow_down(worker, node, Duration::ZERO);
        }
    }
}

impl TreesShared {
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
