//! A stream that is copied along a chain of clusters whose disks are slow, stand still and fail. The last cluster has
//! cells, which its consumer reads one-sidedly: so it is given records that this cluster, or all between it and the
//! source, have not on their disks yet.
//!
//! The code that runs is that of `copy` on `log`, `tail`'s writer and reader, and `cache` over simulated connections.
//! Clusters and the consumer's process are killed, machines lose their power, links are cut, syncs fail. Checked:
//! - by a [`ShardChecker`] for each shard: what was acknowledged at the source is what the consumer gets, in order,
//!   once, without a gap, whatever became of the disks on the way;
//! - the consumer is never given a record that the source has not on its disk;
//! - at the end, when nothing fails any more: within [`RECOVERY_MAX`] the consumer has everything, and so has every
//!   cluster.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_copy::testing::CopyService;
use tailwater_copy::{Copies, PlaceRequest, TreeEdge};
use tailwater_env::Env;
use tailwater_format::{Codec, Offset, Records, ShardId, ShardNumber, StreamId};
use tailwater_log::{AppendError, LocateRead, Log, LogConfig, StreamConfig, StreamDurability};
use tailwater_rma::LocalDoorbell;
use tailwater_tail::{Cursor, DurableSource, Entries, Place, ReaderConfig, TailReader, Waiter};

use crate::checkers::{Report, ShardChecker, Violation, ensure};
use crate::disk::{Fault, Faults};
use crate::log_source::{FoundLog, RemoteLog};
use crate::net::{Net, Weather};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Crashed, Node, Outside, World, run_on};

use super::cells;
use super::clients::part;
use super::cluster::{draw_config, draw_stream};
use super::lives::{make_data_dir, open_log};
use super::outcome::SharedOutcome;
use super::records::{batch_of, decode, shard_id};
use super::trees::cluster::{SimLinks, address};

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(6);
/// How long everything may take to be well again: a session ends after 8 s of silence.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The clusters, from the source to the one with the consumer.
const NAMES: [&str; 3] = ["us", "eu", "asia"];
const LAST: usize = NAMES.len() - 1;
const STREAM: &str = "stream";
const READER: u64 = 0;

/// What a running process of a cluster has.
#[derive(Clone)]
struct AheadLife {
    env: Env,
    log: Log,
    copies: Copies,
}

/// What everybody in the scenario shares: the world from outside.
struct AheadShared {
    outside: Outside,
    net: Net,
    nodes: Vec<Node>,
    consumer: Node,
    config: LogConfig,
    stream_config: StreamConfig,
    plant: Plant,
    lives: Mutex<Vec<Option<AheadLife>>>,
    state: Mutex<AheadState>,
    outcome: SharedOutcome,
}

#[derive(Default)]
struct AheadState {
    stream: Option<StreamId>,
    checkers: Vec<ShardChecker>,
    identity_next: u64,
    /// Nothing goes wrong any more.
    calm: bool,
    /// Producers end.
    stop: bool,
}

type SharedAhead = Arc<AheadShared>;

impl AheadShared {
    fn life(&self, number: usize) -> Option<AheadLife> {
        if self.nodes[number].is_up() { self.lives.lock()[number].clone() } else { None }
    }

    fn shard(&self, shard: u32) -> Option<ShardId> {
        Some(shard_id(self.state.lock().stream?, shard))
    }

    /// Where a shard ends on a cluster's disk, if that runs.
    fn end(&self, number: usize, shard: u32) -> Option<Offset> {
        let view = self.life(number)?.log.view(self.shard(shard)?).ok()?;
        Some(view.tail.next_offset)
    }

    fn is_complete(&self) -> bool {
        let ends = (0..self.stream_config.shards).all(|shard| {
            let source = self.end(0, shard);
            source.is_some() && (1..NAMES.len()).all(|number| self.end(number, shard) == source)
        });
        ends && self.state.lock().checkers.iter().all(|checker| checker.complete(READER).is_ok())
    }

    fn describe_stuck(&self) -> String {
        let mut what = format!("{} s after the last fault not all is well", RECOVERY_MAX.as_secs());
        for shard in 0..self.stream_config.shards {
            let ends: Vec<_> = (0..NAMES.len()).map(|number| self.end(number, shard)).collect();
            let reader = self.state.lock().checkers[shard as usize].reader_next(READER);
            what.push_str(&format!("; shard {shard} ends at {ends:?}, its consumer is at {reader}"));
        }
        for (number, name) in NAMES.iter().enumerate().skip(1) {
            let hops = self.life(number).map(|life| life.copies.hops());
            what.push_str(&format!("; {name} {hops:?}"));
        }
        what
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(40_000_000);
    let mut rng = Rng::new(world.seed(), "scenario/ahead");
    let shards = rng.between(1, 3) as u32;
    let drawn = draw_stream(&mut rng, shards, StreamDurability::Fsync);
    // Segments that are full now and then, and that take what comes while a disk stands still.
    let stream_config =
        StreamConfig { retention_bytes: None, segment_bytes: rng.between(16, 256) << 10, ..drawn };
    let config = LogConfig {
        tick: Duration::from_millis(500),
        hot_bytes: rng.below(4).min(1) * (256 << 10),
        ..draw_config(&mut rng)
    };
    let shared = Arc::new(AheadShared {
        outside: world.outside(),
        net: Net::new(world),
        nodes: NAMES.iter().map(|name| world.node(name)).collect(),
        consumer: world.node("consumer"),
        config,
        stream_config,
        plant,
        lives: Mutex::new(vec![None; NAMES.len()]),
        outcome: SharedOutcome::default(),
        state: Mutex::new(AheadState {
            checkers: (0..shards).map(|_| ShardChecker::new()).collect(),
            ..AheadState::default()
        }),
    });
    for (number, node) in cells::backend_nodes(world).iter().enumerate() {
        cells::start_backends(&shared.net, node, number, 64);
    }
    let outside = world.outside();
    for (number, node) in shared.nodes.iter().enumerate() {
        make_data_dir(node);
        outside.spawn("supervisor", supervise(Arc::clone(&shared), number)).detach();
    }
    world.run(begin(Arc::clone(&shared)))??;
    outside.spawn("consumer", keep_reading(Arc::clone(&shared))).detach();
    outside.spawn("chaos", trouble(Arc::clone(&shared), rng)).detach();
    shared.outcome.let_pass(world, TROUBLE)?;
    shared.state.lock().calm = true;
    let well = world.run(settle(Arc::clone(&shared)))?;
    shared.outcome.take_violation()?;
    ensure(well, || shared.describe_stuck())?;
    let state = shared.state.lock();
    let records: u64 = state.checkers.iter().map(ShardChecker::acknowledged_count).sum();
    shared.outcome.count("records acknowledged", records);
    Ok(shared.outcome.report())
}

/// Keeps a cluster up, for as long as the scenario lasts.
async fn supervise(shared: SharedAhead, number: usize) {
    let node = shared.nodes[number].clone();
    while !shared.outcome.has_failed() {
        if !node.is_up() {
            shared.outside.sleep(Duration::from_millis(100)).await;
            node.start();
        }
        // What the source says to have synced is what others are given.
        let plant = if number == 0 { shared.plant } else { Plant::None };
        let env = node.env_with_disk(|disk| plant.disk(disk));
        match node.run("open", open(Arc::clone(&shared), number, env)).await {
            Ok(Ok(life)) => {
                shared.outcome.count("starts of clusters", 1);
                shared.lives.lock()[number] = Some(life);
                node.died().await;
                shared.lives.lock()[number] = None;
            }
            Ok(Err(_)) => {
                shared.outcome.count("failed starts", 1);
                node.crash(Crash::Power);
            }
            Err(Crashed) => shared.outcome.count("crashes while starting", 1),
        }
    }
}

async fn open(shared: SharedAhead, number: usize, env: Env) -> Result<AheadLife, String> {
    let node = shared.nodes[number].clone();
    let cells =
        if number == LAST { Some(cells::both(&shared.net, &node, &env, Plant::None).await) } else { None };
    let log = open_log(&env, shared.config.clone(), cells).await?;
    let links = Arc::new(SimLinks { net: shared.net.clone(), node: node.clone(), plant: shared.plant });
    let copies = Copies::start(&env, &log, Some(NAMES[number]), links).await;
    let copies = copies.map_err(|error| error.to_string())?;
    let service = CopyService::new(&env, &copies);
    shared.net.listen(&node, &address(number), service, LocalDoorbell::new());
    copies.listens_at(&address(number));
    let life = AheadLife { env: env.clone(), log, copies };
    for shard in (0..shared.stream_config.shards).filter(|_| number == 0) {
        env.spawn("producer", produce(Arc::clone(&shared), life.clone(), shard)).detach();
    }
    Ok(life)
}

/// All clusters run, the first one has the stream, and each copies from the one before.
async fn begin(shared: SharedAhead) -> Result<(), Violation> {
    while (0..NAMES.len()).any(|number| shared.life(number).is_none()) {
        shared.outside.sleep(Duration::from_millis(1)).await;
    }
    let life = shared.life(0).ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    let (log, copies, config) = (life.log.clone(), life.copies.clone(), shared.stream_config.clone());
    let placing = async move {
        for (number, name) in NAMES.iter().enumerate().skip(1) {
            copies.add(name, &address(number)).await.map_err(|error| error.to_string())?;
        }
        let created = log.create_stream(STREAM, config).await.map_err(|error| error.to_string())?;
        let name = |number: usize| NAMES[number].to_owned();
        let hop = |to| TreeEdge { from: name(to - 1), to: name(to) };
        let request = PlaceRequest {
            stream: STREAM.to_owned(),
            source: name(0),
            to: (1..NAMES.len()).map(name).collect(),
            hops: Some((1..NAMES.len()).map(hop).collect()),
        };
        copies.place(&request).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(created.id)
    };
    let placed = run_on(&life.env, "place", placing).await;
    let placed = placed.ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    shared.state.lock().stream = Some(placed.map_err(Violation::new)?);
    Ok(())
}

/// Appends to a shard at the source; waits for the answer before it sends the next batch.
async fn produce(shared: SharedAhead, life: AheadLife, shard: u32) {
    let env = &life.env;
    while !shared.outcome.has_failed() {
        env.sleep(Duration::from_micros(500 + env.random_below(20_000))).await;
        let (stream, stop) = {
            let state = shared.state.lock();
            (state.stream, state.stop)
        };
        let Some(stream) = stream.filter(|_| !stop) else { continue };
        let count = 1 + env.random_below(4);
        let identities: Vec<u64> = {
            let mut state = shared.state.lock();
            let first = state.identity_next + 1;
            state.identity_next += count;
            (first..first + count).inspect(|id| state.checkers[shard as usize].produced(*id)).collect()
        };
        let batch = batch_of(env, &identities, || env.random_below(600)).finish(Codec::None);
        let answer = life.log.append(stream, ShardNumber(shard), batch).await;
        let mut state = shared.state.lock();
        let checker = &mut state.checkers[shard as usize];
        let checked = match answer {
            Ok(answer) => checker.acknowledged(answer.base_offset.0, &identities, answer.term.0),
            Err(AppendError::NoStream) => checker.refused(&identities),
            Err(_) => Ok(()),
        };
        drop(state);
        shared.outcome.note(checked);
    }
}

/// Keeps the consumer's process up and reading.
async fn keep_reading(shared: SharedAhead) {
    let node = shared.consumer.clone();
    while !shared.outcome.has_failed() {
        if !node.is_up() {
            shared.outside.sleep(Duration::from_millis(20)).await;
            node.start();
        }
        let env = node.env();
        if node.run("consumer", read_all(Arc::clone(&shared), env)).await.is_ok() {
            return;
        }
        shared.outcome.count("consumers killed", 1);
    }
}

/// The durable layer of the consumer: the log of the last cluster, as long as that runs.
fn last_log(shared: &SharedAhead) -> Arc<dyn DurableSource> {
    let shared = Arc::clone(shared);
    Arc::new(RemoteLog(move || -> FoundLog {
        let life = shared.life(LAST).map(|life| (life.log, life.env));
        Box::pin(std::future::ready(life))
    }))
}

async fn read_all(shared: SharedAhead, env: Env) {
    let cells = cells::both(&shared.net, &shared.consumer, &env, Plant::None).await;
    let config = ReaderConfig { delay_max: Duration::from_millis(300), ..ReaderConfig::default() };
    let tail = TailReader::start(&env, Some(cells), last_log(&shared), config);
    let shards = (0..shared.stream_config.shards).map(|shard| read_shard(&shared, &env, &tail, shard));
    futures::future::join_all(shards).await;
}

async fn read_shard(shared: &SharedAhead, env: &Env, tail: &TailReader, shard: u32) {
    while !shared.outcome.has_failed() {
        let next = Offset(shared.state.lock().checkers[shard as usize].reader_next(READER));
        let located = match (shared.life(LAST), shared.shard(shard)) {
            (Some(life), Some(id)) => {
                let locating = async move { life.log.locate(id, LocateRead::Offset(next)).await };
                let env = shared.life(LAST).map(|life| life.env);
                match env {
                    Some(env) => {
                        run_on(&env, "locate", locating).await.and_then(Result::ok).map(|at| (id, at))
                    }
                    None => None,
                }
            }
            _ => None,
        };
        // What the consumer was given ahead may not be there yet.
        let Some((id, at)) = located else {
            env.sleep(Duration::from_millis(5)).await;
            continue;
        };
        let place = Place { segment: at.segment, position: at.position };
        let mut cursor = Cursor::new(tail, id, place, at.offset, Arc::new(Waiter::default()));
        while !shared.outcome.has_failed() {
            match cursor.next().await {
                Ok(entries) => shared.outcome.note(check(shared, shard, &entries)),
                Err(error) => {
                    shared
                        .outcome
                        .note(Err(Violation::new(format!("shard {shard} can't be read on: {error}"))));
                    return;
                }
            }
        }
    }
}

/// Takes in what the consumer was given.
fn check(shared: &AheadShared, shard: u32, entries: &Entries) -> Result<(), Violation> {
    let (source, here) = (shared.end(0, shard), shared.end(LAST, shard));
    let next = entries.next_offset();
    ensure(source.is_none_or(|source| next <= source), || {
        format!("the consumer of shard {shard} has records to {next}, more than its source has: {source:?}")
    })?;
    let cached = shared.life(LAST).zip(shared.shard(shard)).map(|(life, id)| {
        let durable = life.log.view(id).map_or(u64::MAX, |view| view.tail.durable.0);
        life.log.tail_writer().cached(id).0 > durable
    });
    let mut state = shared.state.lock();
    shared.outcome.count("entries read", 1);
    if cached == Some(true) {
        shared.outcome.count("times that the cells were ahead", 1);
    }
    if here.is_some_and(|here| here < next) {
        shared.outcome.count("entries read ahead of the disk", 1);
    }
    let term = entries.block().segment.term.0;
    for batch in entries.batches() {
        let mut records = Records::new(&batch.header, &batch.records);
        records.skip_below(entries.from).map_err(|error| Violation::new(error.to_string()))?;
        for record in records {
            let record = record.map_err(|error| Violation::new(error.to_string()))?;
            let identity = record.value.and_then(decode);
            ensure(identity.is_some(), || format!("a damaged record at {}", record.offset))?;
            let checker = &mut state.checkers[shard as usize];
            checker.read(READER, record.offset.0, identity.unwrap_or_default(), term)?;
        }
    }
    Ok(())
}

/// Breaks one thing after the other until it is calm.
async fn trouble(shared: SharedAhead, mut rng: Rng) {
    loop {
        shared.outside.sleep(Duration::from_millis(rng.between(20, 500))).await;
        if shared.state.lock().calm || shared.outcome.has_failed() {
            return;
        }
        let any = rng.index(NAMES.len());
        let copy = 1 + rng.index(NAMES.len() - 1);
        match rng.below(12) {
            0 | 1 => {
                shared.outcome.count("crashes of clusters", 1);
                let how = if rng.below(2) == 0 { Crash::Process } else { Crash::Power };
                shared.nodes[any].crash(how);
            }
            2 => {
                shared.outcome.count("crashes of clusters at an I/O", 1);
                shared.nodes[any].disk().crash_at_change(Some(1 + rng.below(60)));
            }
            3..=6 => {
                shared.outcome.count("slow disks", 1);
                let by = Duration::from_millis(rng.between(5, 400));
                shared.nodes[copy].disk().slow_down_syncs(by);
            }
            7 => shared.nodes[copy].disk().slow_down_syncs(Duration::ZERO),
            8 => {
                shared.outcome.count("failing syncs", 1);
                let faults = Faults { sync: Fault::Next(1), ..Faults::default() };
                shared.nodes[copy].disk().set_faults(faults);
            }
            9 => {
                shared.outcome.count("partitions", 1);
                let lasts = Duration::from_millis(rng.between(50, 3_000));
                part(&shared.net, &shared.outside, (&shared.nodes[copy - 1], &shared.nodes[copy]), lasts);
            }
            10 => shared.consumer.crash(Crash::Process),
            _ => {
                let foul = rng.below(2) == 0;
                shared.net.set_weather(if foul { Weather::FOUL } else { Weather::FAIR });
            }
        }
    }
}

/// Everything works: whether everybody gets everything in time.
async fn settle(shared: SharedAhead) -> bool {
    shared.net.set_weather(Weather::FAIR);
    for number in 0..NAMES.len() {
        let disk = shared.nodes[number].disk();
        disk.crash_at_change(None);
        disk.set_faults(Faults::default());
        disk.slow_down_syncs(Duration::ZERO);
        for other in (0..NAMES.len()).filter(|other| *other != number) {
            shared.net.heal(&shared.nodes[number], &shared.nodes[other]);
        }
    }
    let began = shared.outside.now();
    while !shared.outcome.has_failed() && shared.outside.now().since(began) < RECOVERY_MAX {
        // Something is appended and copied, and then no more.
        if shared.outside.now().since(began) > Duration::from_secs(2) {
            shared.state.lock().stop = true;
        }
        if shared.state.lock().stop && shared.is_complete() {
            return true;
        }
        shared.outside.sleep(Duration::from_millis(20)).await;
    }
    false
}
