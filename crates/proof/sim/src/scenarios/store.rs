//! The segments of several shards over one journal through many lives: writers that roll, seal, delete and are
//! fenced by others, readers beside them, a disk that fails or gets full, crashes at any I/O.
//!
//! Checked against a plain model of every segment ([`model`]): what was acknowledged, or seen by a reader, is
//! there after every recovery, byte by byte; what a reader gets is what was appended; a sealed length is final; a
//! deleted segment stays away; after a higher term nothing of a lower one is accepted; nothing recovered is
//! appended to again.

mod model;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::{Position, SegmentId, ShardId, ShardNumber, StreamId, Term};
use tailwater_journal::{Journal, JournalConfig};
use tailwater_store::{RecoveredSegment, Recovery, SegmentStore, StoreConfig, StoreError};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Crashed, Node, World};

use super::faults::{End, Life};
use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Outcome};
use model::Model;
use writer::Writer;

const DIR: &str = "/data";
/// Longest time that a disk which works again may leave writers without service.
const RESUME_MAX: Duration = Duration::from_secs(60);

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "store",
    most: 5,
    changes_max: 250,
    length_max: Duration::from_millis(80),
    calm: Duration::from_millis(20),
    every_io: (EVERY_IO, RECOVERY_IO),
};

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, Model::new(), live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, |_| Model::new(), live)
}

/// From a start to a crash or a close.
fn live(
    world: &World,
    node: &Node,
    rng: &mut Rng,
    life: &Life,
    plant: Plant,
    model: &Outside,
) -> Result<(), Violation> {
    life.begin(node);
    let env = node.env_with_disk(|disk| plant.disk(disk));
    model.lock().report.count("lives", 1);
    let opening = open(env.clone(), draw_journal(rng), draw_store(rng));
    let opened = world.run(node.run("open", opening))?;
    let Some((store, segments)) = lives::opened(node, life, model, opened)? else {
        return Ok(());
    };
    model.lock().stop = false;
    model.lock().recovered(&segments)?;
    let verified = verify(store.clone(), segments, model.clone(), plant);
    match world.run(node.run("verify", verified))? {
        Err(Crashed) => return Ok(()),
        Ok(verified) => verified?,
    }

    let writers = rng.between(1, 3);
    for number in 0..writers {
        let shard = ShardId { stream: stream(), shard: ShardNumber(number as u32) };
        let writer = Writer::new(&env, &store, model, shard, rng.below(2) == 0);
        env.spawn("writer", writer.clone().run(Duration::ZERO)).detach();
        if rng.below(3) == 0 {
            let after = Duration::from_micros(rng.below(20_000));
            env.spawn("rival", writer.run(after)).detach();
        }
        env.spawn("reader", read(env.clone(), store.clone(), model.clone(), shard)).detach();
    }
    if !lives::pass(world, node, life, model)? {
        return Ok(());
    }
    match life.end {
        End::Crash(how) => node.crash(how),
        End::Close => {
            Life::mend(node);
            world.run(end_in_order(world, node, &store, model))??;
        }
    }
    model.lock().take_violation()
}

/// With a disk that works writers get on, everything comes into segment files, and the journal closes.
async fn end_in_order(
    world: &World,
    node: &Node,
    store: &SegmentStore,
    model: &Outside,
) -> Result<(), Violation> {
    let before = model.lock().acknowledged;
    let outside = world.outside();
    let resumed = async {
        while model.lock().acknowledged == before && model.lock().violation.is_none() {
            outside.sleep(Duration::from_millis(5)).await;
        }
    };
    let resumed = outside.timeout(RESUME_MAX, resumed).await;
    ensure(resumed.is_some(), || "the disk works again, but nothing is acknowledged any more".to_owned())?;
    model.lock().take_violation()?;
    model.lock().stop = true;
    let (flushing, env) = (store.clone(), node.env());
    let flushed = node.run("flush", async move {
        while flushing.flush().await.is_err() {
            env.sleep(Duration::from_millis(10)).await;
        }
    });
    let flushed = outside.timeout(RESUME_MAX, flushed).await;
    ensure(flushed.is_some(), || "the disk works again, but segments are not filled".to_owned())?;
    model.lock().report.count("flushes", 1);
    node.crash(Crash::Power);
    Ok(())
}

fn stream() -> StreamId {
    StreamId(uuid::Uuid::from_u128(0x5eed))
}

fn draw_journal(rng: &mut Rng) -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: rng.between(4, 8) as u32,
        reserve_bytes: 4 << 10,
        backlog_bytes: rng.between(16, 64) as usize * 1024,
        record_bytes_max: 8 << 10,
        sync_interval: Duration::from_millis(rng.between(1, 20)),
    }
}

fn draw_store(rng: &mut Rng) -> StoreConfig {
    StoreConfig {
        pending_bytes_max: rng.between(32, 128) << 10,
        fill_bytes: rng.between(1, 8) << 10,
        sync_bytes: rng.between(4, 16) << 10,
        journal_bytes: 64 << 10,
        sync_age: Duration::from_millis(rng.between(1, 40)),
        tick: Duration::from_millis(rng.between(1, 10)),
        index_step: 1 << 10,
    }
}

/// Opens everything as a node does; an error in words.
async fn open(
    env: Env,
    journal: JournalConfig,
    store: StoreConfig,
) -> Result<(SegmentStore, Vec<RecoveredSegment>), String> {
    let dir = Path::new(DIR);
    let mut recovery = Recovery::begin(&env, dir, store).map_err(|error| error.to_string())?;
    let journal = Journal::open(&env, &dir.join("journal"), journal, &mut |tag, end, bytes| {
        assert_eq!(tag, tailwater_store::TAG, "nobody else writes here");
        recovery.replay(end, bytes)
    })
    .map_err(|error| error.to_string())?;
    recovery.finish(journal).map_err(|error| error.to_string())
}

/// Reads every recovered segment whole, tries to append to those that must not be, and seals them.
async fn verify(
    store: SegmentStore,
    segments: Vec<RecoveredSegment>,
    model: Outside,
    plant: Plant,
) -> Result<(), Violation> {
    for segment in &segments {
        let id = segment.id;
        let mut at = Position(0);
        while at < segment.length {
            let read = store.read(&id, at, 5_000).await;
            let bytes = read.map_err(|error| Violation::new(format!("recovered {id}: {error}")))?;
            ensure(!bytes.is_empty(), || format!("recovered {id} is not readable at {at}"))?;
            model.lock().read(&id, at.0, &bytes)?;
            at.0 += bytes.len() as u64;
        }
        let next = model.lock().next_entry(&id, 100);
        let appended = plant.append(&store, &id, segment.length, next);
        ensure(appended.is_err(), || format!("{id} was appended to after a recovery"))?;
        let lower = SegmentId { term: Term(0), ..id };
        let fenced = id.term == Term(0) || matches!(store.create(lower), Err(StoreError::Fenced { .. }));
        ensure(fenced, || format!("a segment of term 0 was created in a shard that has {id}"))?;
    }
    Ok(())
}

/// Reads here and there, from all segments of a shard.
async fn read(env: Env, store: SegmentStore, model: Outside, shard: ShardId) {
    loop {
        env.sleep(Duration::from_micros(env.random_below(3_000))).await;
        let segments = store.segments(&shard);
        if segments.is_empty() {
            continue;
        }
        let info = &segments[env.random_below(segments.len() as u64) as usize];
        let durable = model.lock().durable(&info.id, info.durable.0, info.appended.0);
        model.lock().note(durable);
        let at = Position(env.random_below(info.durable.0 + 1));
        let read = store.read(&info.id, at, env.random_below(6_000) as usize).await;
        let mut model = model.lock();
        match read {
            Ok(bytes) => {
                let read = model.read(&info.id, at.0, &bytes);
                model.note(read);
                model.report.count("reads", 1);
            }
            // Deleted meanwhile, or too much at once.
            Err(StoreError::Unknown(_) | StoreError::Busy) => {}
            Err(error) => {
                let what = format!("reading {} at {at} of {}: {error}", info.id, info.durable);
                model.note(Err(Violation::new(what)));
            }
        }
    }
}
