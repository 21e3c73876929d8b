//! The whole log in one cluster: an owner that crashes, three backend processes that die, readers that follow
//! one-sidedly, producers, and a network and a disk that fail.
//!
//! The code that runs is that of `log` on `journal`, `store` and `meta`; of `tail`'s writer and readers; and of
//! `cache` over simulated connections. Checked:
//! - each shard by a [`ShardChecker`]: what was acknowledged is what every reader gets, in order, without gaps, and
//!   so is whatever any reader got, before and after all crashes; what was refused for good is never seen;
//! - by an auditor beside them ([`audit`]): every chunk in the cell is a prefix of the durable bytes, and no
//!   published length is beyond them;
//! - at the end, when everything works again: all readers, one that begins at the start among them, get everything.

mod audit;
mod chaos;
mod client;
mod owner;
mod reader;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::{ShardId, ShardNumber, StreamId};
use tailwater_log::Log;
use tailwater_tail::Cells;

use crate::checkers::{Report, ShardChecker, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, Outside, World};

use super::cells::{self, Kind};
use super::journal::make_data_dir;

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_millis(800);
/// How long everything may take to be well again: the longest pause of anybody, several times.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
const READER_NAMES: [&str; 2] = ["reader-0", "reader-1"];
/// The reader that begins when all is over.
const LATE_READER: u64 = 100;

/// What everybody in the scenario shares: the world from outside.
struct Shared {
    outside: Outside,
    net: Net,
    owner: Node,
    backends: Vec<Node>,
    shards: u32,
    buckets: u64,
    plant: Plant,
    /// The owner's log and its process's view of the world; stale once the owner is down.
    log: Mutex<Option<(Log, Env)>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stream: Option<StreamId>,
    checkers: BTreeMap<u32, ShardChecker>,
    identity_next: u64,
    /// Nothing goes wrong any more.
    calm: bool,
    /// Producers end.
    stop: bool,
    violation: Option<Violation>,
    report: Report,
}

type Cluster = Arc<Shared>;

impl Shared {
    fn note(&self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.state.lock().violation.get_or_insert(violation);
        }
    }

    fn count(&self, what: &'static str) {
        self.state.lock().report.count(what, 1);
    }

    /// The log, if its process is up and has opened it.
    fn log(&self) -> Option<(Log, Env)> {
        if self.owner.is_up() { self.log.lock().clone() } else { None }
    }

    fn stream(&self) -> Option<StreamId> {
        self.state.lock().stream
    }

    fn shard(&self, number: u32) -> Option<ShardId> {
        self.stream().map(|stream| ShardId { stream, shard: ShardNumber(number) })
    }

    fn is_over(&self) -> bool {
        self.state.lock().violation.is_some()
    }

    /// Both cells, as a client on `node` sees them.
    async fn cells(&self, node: &Node, env: &Env, plant: Plant) -> Cells {
        let data = cells::connect(&self.net, node, env, Kind::Data, plant).await;
        let metadata = cells::connect(&self.net, node, env, Kind::Metadata, plant).await;
        Cells { data, metadata }
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/cluster");
    let shared = Arc::new(Shared {
        outside: world.outside(),
        net: Net::new(world),
        owner: world.node("owner"),
        backends: cells::backend_nodes(world),
        shards: rng.between(1, 3) as u32,
        buckets: rng.between(4, 64),
        plant,
        log: Mutex::new(None),
        state: Mutex::new(State::default()),
    });
    make_data_dir(&shared.owner);
    for (number, node) in shared.backends.iter().enumerate() {
        cells::start_backends(&shared.net, node, number, shared.buckets);
    }
    let outside = world.outside();
    outside.spawn("supervisor", owner::supervise(shared.clone(), rng.clone())).detach();
    for number in 0..shared.shards {
        let producer = client::produce(shared.clone(), number, Rng::new(world.seed(), "producer"));
        outside.spawn("producer", producer).detach();
    }
    let mut readers = Vec::new();
    for (number, name) in READER_NAMES.iter().enumerate() {
        let node = world.node(name);
        outside.spawn("reader", reader::keep_reading(shared.clone(), node.clone(), number as u64)).detach();
        readers.push(node);
    }
    let auditor = world.node("auditor");
    outside.spawn("auditor", audit::audit(shared.clone(), auditor)).detach();
    outside.spawn("chaos", chaos::trouble(shared.clone(), readers.clone(), rng.clone())).detach();

    let began = world.now();
    world.run(async {
        while world.now().since(began) < TROUBLE && !shared.is_over() {
            outside.sleep(Duration::from_millis(1)).await;
        }
    })?;
    shared.state.lock().calm = true;
    chaos::mend(&shared, &readers);
    let late = world.node("reader-late");
    outside.spawn("reader", reader::keep_reading(shared.clone(), late, LATE_READER)).detach();
    let well = world.run(outside.timeout(RECOVERY_MAX, settle(shared.clone())))?;
    shared.state.lock().violation.take().map_or(Ok(()), Err)?;
    ensure(well.is_some(), || shared.describe_stuck())?;
    let mut state = shared.state.lock();
    let records: u64 = state.checkers.values().map(ShardChecker::acknowledged_count).sum();
    state.report.count("records acknowledged", records);
    Ok(state.report.clone())
}

/// Everything works: producers are served, then stop, and every reader gets everything.
async fn settle(shared: Cluster) {
    let acknowledged = |shared: &Shared| -> Vec<u64> {
        let state = shared.state.lock();
        (0..shared.shards)
            .map(|shard| state.checkers.get(&shard).map_or(0, ShardChecker::acknowledged_count))
            .collect()
    };
    let before = acknowledged(&shared);
    while !shared.is_over() && acknowledged(&shared).iter().zip(&before).any(|(now, before)| now <= before) {
        shared.outside.sleep(Duration::from_millis(1)).await;
    }
    shared.state.lock().stop = true;
    while !shared.is_over() && !shared.is_complete() {
        shared.outside.sleep(Duration::from_millis(5)).await;
    }
}

impl Shared {
    fn is_complete(&self) -> bool {
        let state = self.state.lock();
        state
            .checkers
            .values()
            .all(|checker| [0, 1, LATE_READER].iter().all(|&reader| checker.complete(reader).is_ok()))
    }

    fn describe_stuck(&self) -> String {
        let state = self.state.lock();
        let mut what = "everything works again, but not all is well".to_owned();
        for (shard, checker) in &state.checkers {
            let readers = [0, 1, LATE_READER].map(|reader| checker.reader_next(reader));
            let end = checker.acknowledged_end();
            what.push_str(&format!("; shard {shard}: acknowledged to {end}, readers at {readers:?}"));
        }
        if !state.stop {
            what.push_str("; producers are not served");
        }
        what
    }
}
