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
use crate::world::{Crash, World};

use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Living};
use super::outcome::Outcome;
use model::Model;
use writer::Writer;

const DIR: &str = "/data";

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "store",
    most: 5,
    changes_max: 250,
    length_max: Duration::from_millis(80),
    calm: Duration::from_millis(20),
    resume_max: Duration::from_secs(60),
    every_io: (EVERY_IO, RECOVERY_IO),
};

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, Model::default(), live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, |_| Model::default(), live)
}

/// From a start to a crash or a close.
fn live(living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    let Living { env, model, plant, .. } = living;
    let journal = JournalConfig { record_bytes_max: 8 << 10, ..lives::draw_journal(rng, (4, 8), (16, 64)) };
    let opening = open(env.clone(), journal, draw_store(rng));
    let Some((store, segments)) = living.open(opening)? else { return Ok(()) };
    model.lock().recovered(&segments)?;
    let verified = verify(store.clone(), segments, Arc::clone(model), *plant);
    let Some(verified) = living.run("verify", verified)? else { return Ok(()) };
    verified?;

    let writers = rng.between(1, 3);
    for number in 0..writers {
        let shard = ShardId { stream: stream(), shard: ShardNumber(number as u32) };
        let writer = Writer::new(env, &store, model, shard, rng.below(2) == 0);
        env.spawn("writer", writer.clone().run(Duration::ZERO)).detach();
        if rng.below(3) == 0 {
            let after = Duration::from_micros(rng.below(20_000));
            env.spawn("rival", writer.run(after)).detach();
        }
        env.spawn("reader", read(env.clone(), store.clone(), Arc::clone(model), shard)).detach();
    }
    living.end(|| living.world.run(end_in_order(living, &store))?)
}

/// With a disk that works writers get on, and everything comes into segment files.
async fn end_in_order(living: &Living<'_, Model>, store: &SegmentStore) -> Result<(), Violation> {
    let model = living.model;
    let before = model.lock().acknowledged;
    let otherwise = "the disk works again, but nothing is acknowledged any more";
    living.until(otherwise, |model| model.acknowledged != before).await?;
    model.lock().take_violation()?;
    model.lock().noted().stop = true;
    let (flushing, env) = (store.clone(), living.node.env());
    let flush = living.finish("flush", async move {
        while flushing.flush().await.is_err() {
            env.sleep(Duration::from_millis(10)).await;
        }
    });
    living.in_time("the disk works again, but segments are not filled", flush).await??;
    model.lock().count("flushes", 1);
    living.node.crash(Crash::Power);
    Ok(())
}

fn stream() -> StreamId {
    StreamId(uuid::Uuid::from_u128(0x5eed))
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
        let durable = model.lock().durable(&info.id, info.durable.get().0, info.appended.get().0);
        model.lock().note(durable);
        let at = Position(env.random_below(info.durable.get().0 + 1));
        let read = store.read(&info.id, at, env.random_below(6_000) as usize).await;
        let mut model = model.lock();
        match read {
            Ok(bytes) => {
                let read = model.read(&info.id, at.0, &bytes);
                model.note(read);
                model.count("reads", 1);
            }
            // Deleted meanwhile, or too much at once.
            Err(StoreError::Unknown(_) | StoreError::Busy) => {}
            Err(error) => {
                let what = format!("reading {} at {at} of {}: {error}", info.id, info.durable.get());
                model.note(Err(Violation::new(what)));
            }
        }
    }
}
