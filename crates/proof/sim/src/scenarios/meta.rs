//! Metadata alone, in its embedded form, through many lives: clients that commit with and without expectations,
//! read, watch and hold leases; snapshots; a disk that fails or gets full, crashes at any I/O, recovery included.
//!
//! Checked against a plain model ([`model`]) that replays commits in the order of their versions: after every start
//! the keys are exactly what the commits that survived make of nothing, their expectations held, and every commit
//! that was answered, or that anybody saw, is among them. A read is never older than what was answered before it;
//! what only one client writes is what that client left there; whoever watches has in the end what is there; no
//! lease survives its process.

mod client;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_meta::{EmbeddedMeta, Meta, MetaConfig, Recovery};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Living};
use client::Client;
use model::Model;

const DIR: &str = "/data";

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "meta",
    most: 5,
    changes_max: 150,
    length_max: Duration::from_millis(60),
    calm: Duration::from_millis(10),
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
    let Living { env, model, .. } = living;
    let config = MetaConfig { snapshot_bytes: rng.between(1, 8) as usize * 1024 };
    let opening = open(env.clone(), lives::draw_journal(rng, (3, 6), (8, 32)), config);
    let Some((meta, journal)) = living.open(opening)? else { return Ok(()) };
    let listing = meta.clone();
    let Some(found) = living.run("list", async move { listing.list("").await })? else { return Ok(()) };
    model.lock().recovered(found.map_err(|error| Violation::new(format!("after a start: {error}")))?)?;

    for number in 0..rng.between(1, 3) {
        Client::start(env, &meta, model, number);
    }
    env.spawn("watcher", client::watch(env.clone(), meta.clone(), Arc::clone(model))).detach();
    living.end(|| living.world.run(end_in_order(living, meta, journal))?)
}

/// With a disk that works commits are answered again, whoever watches catches up, and the journal closes.
async fn end_in_order(
    living: &Living<'_, Model>,
    meta: EmbeddedMeta,
    journal: Journal,
) -> Result<(), Violation> {
    let (outside, model) = (living.world.outside(), living.model);
    let before = model.lock().answered;
    let otherwise = "the disk works again, but no commit is answered";
    living.until(otherwise, |model| model.answered != before).await?;
    living.stop_clients().await?;
    let found = living.finish("list", async move { meta.list("").await }).await?;
    let found = found.map_err(|error| Violation::new(format!("at the end: {error}")))?;
    let caught_up = async {
        while !model.lock().watcher_has(&found) {
            outside.sleep(Duration::from_millis(1)).await;
        }
    };
    let caught_up = outside.timeout(Duration::from_secs(1), caught_up).await;
    ensure(caught_up.is_some(), || model.lock().describe_watcher(&found))?;
    living.close(async move { journal.close().await }).await
}

/// Opens everything as a node does; an error in words.
async fn open(
    env: Env,
    journal: JournalConfig,
    config: MetaConfig,
) -> Result<(EmbeddedMeta, Journal), String> {
    let dir = Path::new(DIR);
    let mut recovery = Recovery::begin(&env, &dir.join("meta")).map_err(|error| error.to_string())?;
    let journal = Journal::open(&env, &dir.join("journal"), journal, &mut |tag, end, bytes| {
        assert_eq!(tag, tailwater_meta::TAG, "nobody else writes here");
        recovery.replay(end, bytes)
    })
    .map_err(|error| error.to_string())?;
    Ok((recovery.finish(&env, journal.clone(), config), journal))
}
