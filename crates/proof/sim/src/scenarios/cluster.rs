//! The whole log in one cluster: an owner that crashes or is replaced while it goes on running, three backend
//! processes that die, readers that follow one-sidedly, producers, and a network and a disk that fail; beside them
//! records are removed, and the stream is deleted and created again.
//!
//! The code that runs is that of `log` on `journal`, `store` and `meta`; of `tail`'s writer and readers; and of
//! `cache` over simulated connections. Checked:
//! - each shard by a [`ShardChecker`]: what was acknowledged is what every reader gets, in order, without gaps, and
//!   so is whatever any reader got, before and after all crashes; what was refused for good is never seen; no record
//!   is there twice, and those of idempotent producers, which send again what was not answered, are all there;
//! - a reader misses only what retention or truncation removed, and is told; what was removed stays so;
//! - a stream that is deleted and created again is another one: its readers are told of the end, never see a record
//!   of the other, and a deletion that was answered, or that anybody was told of, is final;
//! - an owner whose disk another one has taken acknowledges nothing, and what it still writes to the cells does no
//!   harm;
//! - by an auditor beside them ([`audit`]): every chunk in the cell is a prefix of the durable bytes, and no
//!   published length is beyond them;
//! - at the end, when everything works again: all readers, one that begins at the start among them, get everything.

mod audit;
mod chaos;
mod client;
mod owner;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tailwater_env::Env;
use tailwater_format::{Offset, StreamId};
use tailwater_log::{Log, StreamConfig, StreamDurability};
use tokio::sync::watch;

use crate::checkers::{Report, ShardChecker, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

use super::cells;
use super::lives::make_data_dir;
use super::records::shard_id;
pub(super) use owner::{draw_config, draw_stream};

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_millis(400);
/// How long everything may take to be well again: the longest pause of anybody, several times.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
const OWNER_NAMES: [&str; 2] = ["owner-0", "owner-1"];
const READER_NAMES: [&str; 2] = ["reader-0", "reader-1"];
/// The reader that begins when all is over.
const LATE_READER: u64 = 100;
const STREAM: &str = "stream";

/// What everybody in the scenario shares: the world from outside.
struct ClusterShared {
    outside: Outside,
    net: Net,
    /// Where the log may be opened; the disk with the data goes from one to the other.
    owners: [Node; 2],
    /// Which of them has the disk. The other one may still run: see [`ClusterShared::former`].
    current: watch::Sender<usize>,
    backends: Vec<Node>,
    stream_config: StreamConfig,
    /// Producers send again what was not answered, with sequence numbers.
    idempotent: bool,
    /// What goes wrong besides is the owner's death: neither its machine nor its disk fails.
    kills_only: bool,
    buckets: u64,
    plant: Plant,
    /// The log as opened by each owner's process, and the process's view of the world; stale once it is down.
    logs: Mutex<[Option<(Log, Env)>; 2]>,
    state: Mutex<ClusterState>,
}

#[derive(Default)]
struct ClusterState {
    /// What was acknowledged may be lost, if a new term shows it.
    may_lose: bool,
    /// The stream each time it was created; the last one is the one there is.
    streams: Vec<Stream>,
    producer_ids: BTreeSet<i64>,
    identity_next: u64,
    /// Nothing goes wrong any more.
    calm: bool,
    /// Producers end.
    stop: bool,
    violation: Option<Violation>,
    report: Report,
}

/// A stream between its creation and its deletion.
struct Stream {
    id: StreamId,
    checkers: BTreeMap<u32, ShardChecker>,
    /// Appends acknowledged, by shard.
    appends: BTreeMap<u32, u64>,
    /// Somebody has asked for its deletion.
    deleting: bool,
    /// That was answered, or somebody was told.
    deleted: bool,
}

/// Which of [`ClusterState::streams`].
type Generation = usize;

type Cluster = Arc<ClusterShared>;

impl ClusterState {
    fn note(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.violation.get_or_insert(violation);
        }
    }

    fn checker(&mut self, generation: Generation, shard: u32) -> &mut ShardChecker {
        let fresh = || if self.may_lose { ShardChecker::that_may_lose() } else { ShardChecker::new() };
        self.streams[generation].checkers.entry(shard).or_insert_with(fresh)
    }
}

impl ClusterShared {
    fn note(&self, result: Result<(), Violation>) {
        self.state.lock().note(result);
    }

    fn count(&self, what: &'static str) {
        self.state.lock().report.count(what, 1);
    }

    /// The place of the node that has the data.
    fn current(&self) -> usize {
        *self.current.borrow()
    }

    /// The owner's process that is up, if one is.
    fn process(&self) -> (usize, Option<u64>) {
        (self.current(), self.owner().incarnation())
    }

    fn owner(&self) -> &Node {
        &self.owners[self.current()]
    }

    /// The log, if its process is up and has opened it.
    fn log(&self) -> Option<(Log, Env)> {
        self.log_of(self.current())
    }

    /// The log of the owner before, which has lost the disk and does not know that.
    fn former(&self) -> Option<(Log, Env)> {
        self.log_of(1 - self.current())
    }

    fn log_of(&self, place: usize) -> Option<(Log, Env)> {
        if self.owners[place].is_up() { self.logs.lock()[place].clone() } else { None }
    }

    fn generation(&self) -> Option<(Generation, StreamId)> {
        let state = self.state.lock();
        state.streams.last().map(|stream| (state.streams.len() - 1, stream.id))
    }

    fn checker(&self, generation: Generation, shard: u32) -> MappedMutexGuard<'_, ShardChecker> {
        MutexGuard::map(self.state.lock(), |state| state.checker(generation, shard))
    }

    /// The stream with this id is there. One that is new takes the place of one that was to be deleted.
    fn found(&self, id: StreamId) {
        let mut state = self.state.lock();
        let checked = match state.streams.last() {
            Some(last) if last.id == id => {
                ensure(!last.deleted, || "a stream that was deleted came back".to_owned())
            }
            Some(last) => ensure(last.deleting, || "another stream has taken the name".to_owned()),
            None => Ok(()),
        };
        state.note(checked);
        if state.streams.last().is_none_or(|last| last.id != id) {
            let (checkers, appends) = (BTreeMap::new(), BTreeMap::new());
            let stream = Stream { id, checkers, appends, deleting: false, deleted: false };
            state.streams.push(stream);
        }
    }

    /// Somebody was told that this stream is gone.
    fn told_of_deletion(&self, generation: Generation) {
        let mut state = self.state.lock();
        let stream = &mut state.streams[generation];
        stream.deleted = true;
        let checked =
            ensure(stream.deleting, || "a reader was told of a deletion that nobody asked for".to_owned());
        state.note(checked);
    }

    /// Somebody was told that a shard starts at `start`, which retention may have moved at any time.
    fn told_of_start(&self, generation: Generation, shard: u32, start: Offset) {
        if self.stream_config.retention_bytes.is_some() {
            self.checker(generation, shard).truncating(start.0);
        }
    }

    /// Whether what readers see, and what is acknowledged, need not be synced.
    fn is_interval(&self) -> bool {
        self.stream_config.durability == StreamDurability::Interval && self.plant != Plant::IntervalAsFsync
    }

    fn is_over(&self) -> bool {
        self.state.lock().violation.is_some()
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let durability = match plant {
        Plant::IntervalAsFsync => StreamDurability::Interval,
        _ => StreamDurability::Fsync,
    };
    let rng = Rng::new(world.seed(), "scenario/cluster");
    run_with(world, plant, rng, durability, false, false)
}

/// The same with durability `interval`: the owner's machine may lose what was acknowledged last, and a new term shows
/// it. With every other seed only processes are killed, and nothing at all may be lost.
pub fn run_interval(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/cluster-interval");
    let kills_only = rng.below(2) == 0;
    run_with(world, plant, rng, StreamDurability::Interval, kills_only, !kills_only)
}

fn run_with(
    world: &mut World,
    plant: Plant,
    mut rng: Rng,
    durability: StreamDurability,
    kills_only: bool,
    may_lose: bool,
) -> Result<Report, Violation> {
    let shards = rng.between(1, 3) as u32;
    let shared = Arc::new(ClusterShared {
        outside: world.outside(),
        net: Net::new(world),
        owners: OWNER_NAMES.map(|name| world.node(name)),
        current: watch::Sender::new(0),
        backends: cells::backend_nodes(world),
        stream_config: owner::draw_stream(&mut rng, shards, durability),
        // What is lost takes the sequence numbers along that its producers go on from.
        idempotent: rng.below(2) == 0 && !may_lose,
        kills_only,
        buckets: rng.between(4, 64),
        plant,
        logs: Mutex::default(),
        state: Mutex::new(ClusterState { may_lose, ..ClusterState::default() }),
    });
    make_data_dir(shared.owner());
    shared.owners[1].crash(Crash::Process);
    for (number, node) in shared.backends.iter().enumerate() {
        cells::start_backends(&shared.net, node, number, shared.buckets);
    }
    let outside = world.outside();
    outside.spawn("supervisor", owner::supervise(shared.clone(), rng.clone())).detach();
    for number in 0..shards {
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
    let checkers = state.streams.iter().flat_map(|stream| stream.checkers.values());
    let records: u64 = checkers.map(ShardChecker::acknowledged_count).sum();
    state.report.count("records acknowledged", records);
    Ok(state.report.clone())
}

/// Everything works: producers are served, then stop, and every reader gets everything.
async fn settle(shared: Cluster) {
    let mut before = shared.acknowledged();
    while !shared.is_over() {
        let now = shared.acknowledged();
        if now.0 != before.0 {
            before = now;
        } else if !now.1.is_empty() && now.1.iter().zip(&before.1).all(|(now, before)| now > before) {
            break;
        }
        shared.outside.sleep(Duration::from_millis(1)).await;
    }
    shared.state.lock().stop = true;
    while !shared.is_over() && !shared.is_complete() {
        shared.outside.sleep(Duration::from_millis(5)).await;
    }
}

impl ClusterShared {
    /// How many appends to each shard of the stream there is were acknowledged.
    fn acknowledged(&self) -> (usize, Vec<u64>) {
        let state = self.state.lock();
        let Some(stream) = state.streams.last() else { return (0, Vec::new()) };
        let shards = 0..self.stream_config.shards;
        let counts = shards.map(|shard| stream.appends.get(&shard).copied().unwrap_or_default());
        (state.streams.len(), counts.collect())
    }

    fn is_complete(&self) -> bool {
        let state = self.state.lock();
        let Some(stream) = state.streams.last() else { return false };
        let complete = |checker: &ShardChecker| {
            [0, 1, LATE_READER].iter().all(|&reader| checker.complete(reader).is_ok())
        };
        stream.checkers.values().all(complete)
    }

    fn describe_stuck(&self) -> String {
        let state = self.state.lock();
        let mut what = "everything works again, but not all is well".to_owned();
        for (shard, checker) in state.streams.last().iter().flat_map(|stream| &stream.checkers) {
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
