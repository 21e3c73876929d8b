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
use crate::world::{Crash, Crashed, Node, World};

use super::faults::{End, Life};
use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Outcome};
use client::Client;
use model::Model;

const DIR: &str = "/data";
/// Longest time that a disk which works again may leave commits without an answer.
const RESUME_MAX: Duration = Duration::from_secs(60);

/// What the world outside of the node knows.
type Outside = Arc<Mutex<Model>>;

const LIVES: Lives = Lives {
    name: "meta",
    most: 5,
    changes_max: 150,
    length_max: Duration::from_millis(60),
    calm: Duration::from_millis(10),
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
    let config = MetaConfig { snapshot_bytes: rng.between(1, 8) as usize * 1024 };
    let opened = world.run(node.run("open", open(env.clone(), draw_journal(rng), config)))?;
    let Some((meta, journal)) = lives::opened(node, life, model, opened)? else {
        return Ok(());
    };
    let listing = meta.clone();
    let found = match world.run(node.run("list", async move { listing.list("").await }))? {
        Err(Crashed) => return Ok(()),
        Ok(found) => found.map_err(|error| Violation::new(format!("after a start: {error}")))?,
    };
    model.lock().recovered(found)?;

    for number in 0..rng.between(1, 3) {
        Client::start(&env, &meta, model, number);
    }
    env.spawn("watcher", client::watch(env.clone(), meta.clone(), model.clone())).detach();
    if !lives::pass(world, node, life, model)? {
        return Ok(());
    }
    match life.end {
        End::Crash(how) => node.crash(how),
        End::Close => {
            Life::mend(node);
            world.run(end_in_order(world, node, meta, journal, model))??;
        }
    }
    model.lock().take_violation()
}

/// With a disk that works commits are answered again, whoever watches catches up, and the journal closes.
async fn end_in_order(
    world: &World,
    node: &Node,
    meta: EmbeddedMeta,
    journal: Journal,
    model: &Outside,
) -> Result<(), Violation> {
    let outside = world.outside();
    let before = model.lock().answered();
    let resumed = async {
        while model.lock().answered() == before && model.lock().violation.is_none() {
            outside.sleep(Duration::from_millis(2)).await;
        }
    };
    let resumed = outside.timeout(RESUME_MAX, resumed).await;
    ensure(resumed.is_some(), || "the disk works again, but no commit is answered".to_owned())?;
    model.lock().stop = true;
    let ended = async {
        while model.lock().clients > 0 {
            outside.sleep(Duration::from_millis(2)).await;
        }
    };
    ensure(outside.timeout(RESUME_MAX, ended).await.is_some(), || "a client waits for ever".to_owned())?;
    model.lock().take_violation()?;
    let found = node.run("list", async move { meta.list("").await }).await;
    let found = found.map_err(|_| Violation::new("nobody crashed the node"))?;
    let found = found.map_err(|error| Violation::new(format!("at the end: {error}")))?;
    let caught_up = async {
        while !model.lock().watcher_has(&found) {
            outside.sleep(Duration::from_millis(1)).await;
        }
    };
    let caught_up = outside.timeout(Duration::from_secs(1), caught_up).await;
    ensure(caught_up.is_some(), || model.lock().describe_watcher(&found))?;
    let closed = node.run("close", async move { journal.close().await });
    match outside.timeout(RESUME_MAX, closed).await {
        Some(Ok(Ok(()))) => model.lock().report.count("closes", 1),
        other => return Err(Violation::new(format!("closing with a disk that works: {other:?}"))),
    }
    model.lock().stop = false;
    node.crash(Crash::Power);
    Ok(())
}

fn draw_journal(rng: &mut Rng) -> JournalConfig {
    JournalConfig {
        file_bytes: 64 << 10,
        files_max: rng.between(3, 6) as u32,
        reserve_bytes: 4 << 10,
        backlog_bytes: rng.between(8, 32) as usize * 1024,
        record_bytes_max: 6_000,
        sync_interval: Duration::from_millis(rng.between(1, 20)),
    }
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
