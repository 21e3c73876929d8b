//! Several active nodes: three logs on one metadata and the same bookies, each of which owns a part of the shards,
//! under producers and consumers that go from node to node.
//!
//! The code that runs is that of `log`: claims, takeovers, releases, and what follows metadata's watches. Metadata is
//! the embedded one on a node of its own, which works. Ledgers and bookies are a model ([`bookies`]). Nodes crash, stop
//! for longer than their sessions last and go on, are cut from metadata and from bookies, and are drained. All the
//! time one of them deletes ledgers that no record names. Checked:
//! - each shard by a [`ShardChecker`]: what was acknowledged is there, every offset has one record for ever, in order;
//! - one owner at a time: nothing is acknowledged in a term that was sent after a later one was acknowledged;
//! - no shard is damaged;
//! - when nothing fails any more, within [`RECOVERY_MAX`] each shard has one owner, takes records, and can be read from
//!   its start.

mod bookies;
mod chaos;
mod clients;
mod links;
mod meta;
mod process;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::{ShardNumber, StreamId, Term};
use tailwater_journal::{Journal, JournalConfig};
use tailwater_log::{Log, LogConfig, StreamConfig, StreamDurability};
use tailwater_meta::{Meta, MetaConfig, Recovery};

use crate::checkers::{Report, ShardChecker, Violation};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, Outside, World, run_on};

use super::cluster::{draw_config, draw_stream};
use super::lives::make_data_dir;
use super::outcome::SharedOutcome;
use super::records::shard_id;

use bookies::Bookies;
use links::NodeLinks;
use meta::NodeSessions;

const NAMES: [&str; 3] = ["a", "b", "c"];
const STREAM: &str = "stream";
const SHARDS: u32 = 4;
/// The consumer that reads each shard from its start when all is over.
const LATE: u64 = 1;
/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(15);
/// How long everything may take to be well again: a claim that failed is tried again after 1.5 s, those who are gone
/// are so after as long, and those who live move after two.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// What a running process has.
#[derive(Clone)]
struct NodeLife {
    env: Env,
    log: Log,
}

/// What everybody in the scenario shares.
struct NodesShared {
    outside: Outside,
    links: Arc<NodeLinks>,
    sessions: NodeSessions,
    bookies: Arc<Bookies>,
    meta: Arc<dyn Meta>,
    nodes: Vec<Node>,
    config: LogConfig,
    plant: Plant,
    lives: Mutex<Vec<Option<NodeLife>>>,
    state: Mutex<NodesState>,
    outcome: SharedOutcome,
}

struct NodesState {
    stream: Option<StreamId>,
    checkers: Vec<ShardChecker>,
    /// The highest term of each shard in which something was acknowledged.
    terms: Vec<Term>,
    /// Appends that were acknowledged, by shard.
    appended: Vec<u64>,
    identity_next: u64,
    /// Which nodes are to give everything up.
    drains: [bool; NAMES.len()],
    /// Nothing goes wrong any more.
    calm: bool,
    /// Producers end.
    stop: bool,
}

type SharedNodes = Arc<NodesShared>;

impl NodesState {
    /// Whether consumers have everything, where each shard has its owner. Producers end once each shard has taken more
    /// than `before`.
    fn is_well(&mut self, is_owned: bool, before: &[u64]) -> bool {
        self.stop |= is_owned && self.appended.iter().zip(before).all(|(now, before)| now > before);
        let is_complete =
            |checker: &ShardChecker| [0, LATE].iter().all(|reader| checker.complete(*reader).is_ok());
        self.stop && is_owned && self.checkers.iter().all(is_complete)
    }

    /// A new record's identity.
    fn produced(&mut self, shard: u32) -> u64 {
        self.identity_next += 1;
        self.checkers[shard as usize].produced(self.identity_next);
        self.identity_next
    }
}

impl NodesShared {
    fn drains(&self, number: usize) -> bool {
        self.state.lock().drains[number]
    }

    fn stream(&self) -> Option<StreamId> {
        self.state.lock().stream
    }

    fn life(&self, number: usize) -> Option<NodeLife> {
        if self.nodes[number].is_up() { self.lives.lock()[number].clone() } else { None }
    }

    fn lives(&self) -> Vec<Option<NodeLife>> {
        (0..NAMES.len()).map(|number| self.life(number)).collect()
    }

    /// Whether each shard has one owner.
    fn is_owned(&self, stream: StreamId) -> bool {
        let lives = self.lives();
        (0..SHARDS).all(|shard| {
            let owns = |life: &&Option<NodeLife>| {
                life.as_ref().is_some_and(|life| life.log.tails(stream, &[ShardNumber(shard)]).is_ok())
            };
            lives.iter().filter(owns).count() == 1
        })
    }

    fn describe_stuck(&self) -> String {
        let mut what = format!("{} s after the last fault not all is well", RECOVERY_MAX.as_secs());
        let stream = self.stream();
        for (name, life) in NAMES.iter().zip(self.lives()) {
            let (Some(life), Some(stream)) = (life, stream) else {
                what.push_str(&format!("; {name} is not up"));
                continue;
            };
            let of = |shard: u32| {
                let known = life.log.shard_owner(shard_id(stream, shard));
                let known = known.map(|known| (known.owner == life.log.owner_number(), known.term.0));
                (life.log.tails(stream, &[ShardNumber(shard)]).is_ok(), known)
            };
            let shards: Vec<_> = (0..SHARDS).map(of).collect();
            what.push_str(&format!("; {name} has (open, (owns, term)) {shards:?}"));
        }
        let state = self.state.lock();
        for (shard, checker) in state.checkers.iter().enumerate() {
            let (end, appended) = (checker.acknowledged_end(), state.appended[shard]);
            let readers = [0, LATE].map(|reader| checker.reader_next(reader));
            what.push_str(&format!(
                "; shard {shard}: acknowledged to {end} in {appended}, consumers at {readers:?}"
            ));
        }
        format!("{what}; ledgers: {}", self.bookies.describe())
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(40_000_000);
    let mut rng = Rng::new(world.seed(), "scenario/nodes");
    let stream_config =
        StreamConfig { retention_bytes: None, ..draw_stream(&mut rng, SHARDS, StreamDurability::Fsync) };
    let config = LogConfig { tick: Duration::from_millis(rng.between(50, 500)), ..draw_config(&mut rng) };
    let keeper = world.node("metadata");
    make_data_dir(&keeper);
    let journal = JournalConfig { file_bytes: 1 << 20, files_max: 8, ..config.journal.clone() };
    let meta = world.run(keeper.run("metadata", open_metadata(keeper.env(), journal)))?;
    let meta = meta.map_err(|crashed| Violation::new(crashed.to_string()))?.map_err(Violation::new)?;
    let shared = Arc::new(NodesShared {
        outside: world.outside(),
        links: Arc::default(),
        sessions: NodeSessions::default(),
        bookies: Arc::default(),
        meta,
        nodes: NAMES.iter().map(|name| world.node(name)).collect(),
        config,
        plant,
        lives: Mutex::new(vec![None; NAMES.len()]),
        outcome: SharedOutcome::default(),
        state: Mutex::new(NodesState {
            stream: None,
            checkers: (0..SHARDS).map(|_| ShardChecker::new()).collect(),
            terms: vec![Term(0); SHARDS as usize],
            appended: vec![0; SHARDS as usize],
            identity_next: 0,
            drains: [false; NAMES.len()],
            calm: false,
            stop: false,
        }),
    });
    for (number, node) in shared.nodes.iter().enumerate() {
        make_data_dir(node);
        shared.outside.spawn("supervisor", process::supervise(Arc::clone(&shared), number)).detach();
    }
    world.run(begin(Arc::clone(&shared), stream_config))??;
    clients::start(&shared, world.seed());
    let trouble = Rng::new(world.seed(), "scenario/nodes/trouble");
    shared.outside.spawn("chaos", chaos::trouble(Arc::clone(&shared), trouble)).detach();

    shared.outcome.let_pass(world, TROUBLE)?;
    shared.state.lock().calm = true;
    let well = world.run(settle(Arc::clone(&shared)))?;
    shared.outcome.take_violation()?;
    if !well {
        return Err(Violation::new(shared.describe_stuck()));
    }
    let state = shared.state.lock();
    let records: u64 = state.checkers.iter().map(ShardChecker::acknowledged_count).sum();
    let terms: u64 = state.terms.iter().map(|term| u64::from(term.0)).sum();
    shared.outcome.count("records acknowledged", records);
    shared.outcome.count("terms", terms);
    shared.outcome.count("ledgers swept away", shared.bookies.swept_away());
    Ok(shared.outcome.report())
}

async fn open_metadata(env: Env, journal: JournalConfig) -> Result<Arc<dyn Meta>, String> {
    let dir = Path::new("/data");
    let mut recovery = Recovery::begin(&env, &dir.join("meta")).map_err(|error| error.to_string())?;
    let mut replay = |_, end, bytes: &[u8]| recovery.replay(end, bytes);
    let journal = Journal::open(&env, &dir.join("journal"), journal, &mut replay);
    let journal = journal.map_err(|error| error.to_string())?;
    Ok(Arc::new(recovery.finish(&env, journal, MetaConfig { snapshot_bytes: 64 << 10 })))
}

/// All nodes run, and one of them has created the stream.
async fn begin(shared: SharedNodes, config: StreamConfig) -> Result<(), Violation> {
    while shared.lives().iter().any(Option::is_none) {
        shared.outside.sleep(Duration::from_millis(1)).await;
    }
    let life = shared.life(0).ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    let log = life.log.clone();
    let created = run_on(&life.env, "create", async move { log.create_stream(STREAM, config).await }).await;
    let created = created.ok_or_else(|| Violation::new("nothing has crashed yet"))?;
    let stream = created.map_err(|error| Violation::new(error.to_string()))?.id;
    while !shared.is_owned(stream) {
        shared.outside.sleep(Duration::from_millis(10)).await;
    }
    shared.state.lock().stream = Some(stream);
    Ok(())
}

/// Everything works: whether all is well in time.
async fn settle(shared: SharedNodes) -> bool {
    chaos::mend(&shared);
    let Some(stream) = shared.stream() else { return false };
    let began = shared.outside.now();
    let before = shared.state.lock().appended.clone();
    while !shared.outcome.has_failed() && shared.outside.now().since(began) < RECOVERY_MAX {
        // What was meant to be mended later is mended by now.
        chaos::mend(&shared);
        let is_owned = shared.is_owned(stream);
        if shared.state.lock().is_well(is_owned, &before) {
            let took = shared.outside.now().since(began).as_millis() as u64;
            shared.outcome.count("ms until all was well", took);
            return true;
        }
        shared.outside.sleep(Duration::from_millis(50)).await;
    }
    false
}
