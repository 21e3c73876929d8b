//! A log alone, without cells, through many lives: producers of two shards, one of them idempotent, readers of the
//! durable layer, segments that roll, truncations and retention, the stream deleted and created again; a disk that
//! fails or gets full, and crashes at any I/O, of metadata, segments and recovery too.
//!
//! Checked as in the [`cluster`](super::cluster): each shard by a [`ShardChecker`](crate::checkers::ShardChecker), read
//! from its start after every start and followed from there on; no record twice, and those of the idempotent producer,
//! which sends again what was not answered, also over a crash, and now and then what is on its way or was answered, all
//! there, at the offsets that were answered first; a reader misses only what was to be removed, and what was removed
//! stays so; a stream that is deleted and created again is another one, and a deletion that was answered is final.

mod client;
mod model;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_log::{StreamConfig, StreamDurability};

use crate::checkers::{Report, Violation};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

use super::cluster;
use super::lives::{Lives, Living, open_undamaged};
use super::records::shard_id;
use client::Client;
use model::Model;

const STREAM: &str = "stream";
const SHARDS: u32 = 2;
/// The shard whose producer is idempotent.
const IDEMPOTENT: u32 = 0;

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "log",
    most: 5,
    changes_max: 400,
    length_max: Duration::from_millis(100),
    calm: Duration::from_millis(20),
    resume_max: Duration::from_secs(60),
    every_io: (300, 60),
};

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let model = Model::new(draw_stream(world, plant));
    LIVES.drawn(world, plant, model, live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, |world| Model::new(draw_stream(world, plant)), live)
}

/// A stream whose segments roll all the time.
fn draw_stream(world: &World, plant: Plant) -> StreamConfig {
    let mut rng = Rng::new(world.seed(), "scenario/log/stream");
    let durability = match plant {
        Plant::IntervalAsFsync => StreamDurability::Interval,
        _ => StreamDurability::Fsync,
    };
    let segment_bytes = rng.between(4, 8) << 10;
    StreamConfig {
        segment_bytes,
        segment_ms: rng.between(10, 200),
        retention_bytes: (rng.below(4) == 0).then(|| segment_bytes + (rng.below(32) << 10)),
        ..cluster::draw_stream(&mut rng, SHARDS, durability)
    }
}

/// From a start to a crash or a close.
fn live(living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    let Living { env, model, plant, .. } = living;
    let (opener, config) = (env.clone(), cluster::draw_config(rng));
    let opening = async move { open_undamaged(&opener, config, None).await };
    let Some(log) = living.open(opening)? else { return Ok(()) };
    model.lock().recovered(&log)?;
    let client = Client { env: env.clone(), log: log.clone(), plant: *plant, model: Arc::clone(model) };
    let reading = client.clone();
    let Some(verified) = living.run("verify", async move { reading.verify().await })? else { return Ok(()) };
    verified?;

    if let Some(spoiling) = plant.spoil_producers(env, &log) {
        env.spawn("planted", spoiling).detach();
    }
    for shard in 0..SHARDS {
        client.spawn("producer", client.clone().produce(shard));
        client.spawn("reader", client.clone().read(shard));
    }
    client.spawn("keeper", client.clone().keep());
    living.end(|| living.world.run(end_in_order(living, client))?)
}

/// With a disk that works appends are answered again, everything can be read, and the log closes.
async fn end_in_order(living: &Living<'_, Model>, client: Client) -> Result<(), Violation> {
    let before = living.model.lock().answered;
    let otherwise = "the disk works again, but not all appends are answered";
    living.until(otherwise, |model| model.all_answered_since(before)).await?;
    living.stop_clients().await?;
    let log = client.log.clone();
    living.finish("verify", async move { client.verify().await }).await??;
    let close = async move {
        log.close().await;
        Ok::<(), Violation>(())
    };
    living.close(close).await
}
