//! What is run in a world: real code, a workload, faults by seed, and the checkers beside it.
//!
//! A scenario is a function of a seed and of a [`Plant`], a bug put in front of the real code at one of its seams
//! (see [`crate::planted`]); without one it has to hold for every seed, and with one that it knows it has to fail
//! for some.

pub mod ahead;
mod breaking;
pub mod broadcast;
pub mod broadcast_disk;
pub mod cache;
pub mod cell;
mod cells;
mod clients;
pub mod cluster;
pub mod duel;
mod faults;
pub mod journal;
pub mod lengths;
mod lives;
pub mod loads;
pub mod log;
pub mod meta;
pub mod nodes;
mod outcome;
pub mod queue;
pub mod queue_cassandra;
mod records;
pub mod refill;
mod seeds;
pub mod store;
pub mod trees;
pub mod updates;

use tailwater_env::panics;

use crate::checkers::{Report, Violation};
use crate::planted::Plant;
use crate::world::{StuckWorld, World};
pub use seeds::run_seeds;

/// A named scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// As on the command line.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Runs it in a world of its own.
    pub run: fn(&mut World, Plant) -> Result<Report, Violation>,
}

/// All scenarios there are.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "journal",
        about: "appenders, trims, failing syncs, a full disk, crashes at any I/O and recoveries of one journal",
        run: journal::run,
    },
    Scenario {
        name: "store",
        about: "segments of several shards over one journal: rolls, fences, deletes, readers, the same faults",
        run: store::run,
    },
    Scenario {
        name: "journal-every-io",
        about: "one journal, and a power failure at the next I/O with each seed, then one in the recovery",
        run: journal::run_every_io,
    },
    Scenario {
        name: "store-every-io",
        about: "segments of several shards, and a power failure at the next I/O with each seed",
        run: store::run_every_io,
    },
    Scenario {
        name: "meta",
        about: "clients that commit, read, watch and hold leases, snapshots, the same faults",
        run: meta::run,
    },
    Scenario {
        name: "meta-every-io",
        about: "metadata, and a power failure at the next I/O with each seed, then one in the recovery",
        run: meta::run_every_io,
    },
    Scenario {
        name: "log",
        about: "a log without cells: producers, readers, rolls, truncations, the stream deleted and created, the same faults",
        run: log::run,
    },
    Scenario {
        name: "log-every-io",
        about: "a log without cells, and a power failure at the next I/O with each seed, then one in the recovery",
        run: log::run_every_io,
    },
    Scenario {
        name: "queue",
        about: "clients that send, receive and delete in queues, dead letters, checkpoints, the same faults",
        run: queue::run,
    },
    Scenario {
        name: "queue-every-io",
        about: "queues, and a power failure at the next I/O with each seed, then one in the recovery",
        run: queue::run_every_io,
    },
    Scenario {
        name: "broadcast",
        about: "regions with chains of replicas, publishers and listeners; all of them die, regions are cut apart, links are slow",
        run: broadcast::run,
    },
    Scenario {
        name: "broadcast-sharing",
        about: "the same, and listeners that share, come and go and are cut off, while replicas die",
        run: broadcast::run_sharing,
    },
    Scenario {
        name: "broadcast-anew",
        about: "a region that loses all its replicas and begins anew; one with what was before comes back late",
        run: broadcast::run_anew,
    },
    Scenario {
        name: "broadcast-retention",
        about: "regions whose heads remove what is a few seconds old, under listeners that are slow or away; the same faults",
        run: broadcast::run_retention,
    },
    Scenario {
        name: "broadcast-disk",
        about: "a replica of a broadcast and its disk: a publisher that tries again, checkpoints, the same faults",
        run: broadcast_disk::run,
    },
    Scenario {
        name: "broadcast-disk-every-io",
        about: "the same, and a power failure at the next I/O with each seed, then one in the recovery",
        run: broadcast_disk::run_every_io,
    },
    Scenario {
        name: "broadcast-disk-anew",
        about: "the same, and the replica's region begins anew: what it had is put aside",
        run: broadcast_disk::run_anew,
    },
    Scenario {
        name: "queue-cassandra",
        about: "front ends with clocks apart over a model of Cassandra; calls fail, writes come late, front ends crash",
        run: queue_cassandra::run,
    },
    Scenario {
        name: "queue-cassandra-letters",
        about: "the same: dead letters, move tasks, delays, late deletes, queues that are purged, deleted and created again",
        run: queue_cassandra::letters::run,
    },
    Scenario {
        name: "quota-shares",
        about: "an account's quota that front ends over the same model give together; they crash, are cut off, stand still",
        run: queue_cassandra::shares::run,
    },
    Scenario {
        name: "queue-servers",
        about: "BDQS, figure 8: servers over the same model killed every 100, 1,000 or 10,000 s, 10 s away; nothing is lost",
        run: queue_cassandra::servers::run,
    },
    Scenario {
        name: "queue-order",
        about: "what an order hint costs and saves: receivers at front ends over the same model; K of 1 to 40, and auto",
        run: queue_cassandra::order::run,
    },
    Scenario {
        name: "queue-auto",
        about: "K = auto beside fixed order hints, as in queue-order: duplicates at the target, no more out of order than need be",
        run: queue_cassandra::auto::run,
    },
    Scenario {
        name: "cache",
        about: "clients of one cell that set, erase and get the same keys in a bad network; backends die",
        run: cache::run,
    },
    Scenario {
        name: "cell",
        about: "a cell whose configuration changes under its clients: backends come, leave and die; one that is created anew",
        run: cell::run,
    },
    Scenario {
        name: "refill",
        about: "backends of a cell die one at a time, start again with nothing and are refilled, under clients in a bad network",
        run: refill::run,
    },
    Scenario {
        name: "resize",
        about: "the same, and backends come and leave, while others die and whoever carries the change on",
        run: refill::run_resize,
    },
    Scenario {
        name: "loads",
        about: "a cell that is loaded as a whole, again and again, while its backends die, come, leave and are restarted",
        run: loads::run,
    },
    Scenario {
        name: "updates",
        about: "clients that change the same keys of a cell by what these hold, and values that expire, in a bad network",
        run: updates::run,
    },
    Scenario {
        name: "cluster",
        about: "the whole log: owner, backends and readers crash, network and disk fail, all records arrive",
        run: cluster::run,
    },
    Scenario {
        name: "cluster-interval",
        about: "the same with durability interval: lost is only what a machine loses, and a new term shows it",
        run: cluster::run_interval,
    },
    Scenario {
        name: "duel",
        about: "writers of several terms that shadow to the same cells at once, also under the same segment number",
        run: duel::run,
    },
    Scenario {
        name: "trees",
        about: "a stream copied between 3 to 12 clusters that crash, over links that fail, by plans that change",
        run: trees::run,
    },
    Scenario {
        name: "schedule",
        about: "the same with workers that crash, leave, are slow, cut off, and told by two schedulers at once",
        run: trees::run_scheduled,
    },
    Scenario {
        name: "ahead",
        about: "a stream copied along a chain of clusters whose disks are slow and fail, read one-sidedly at its end",
        run: ahead::run,
    },
    Scenario {
        name: "nodes",
        about: "three active nodes on one metadata and shared bookies: they crash, stand still, are cut off and drained; shards move",
        run: nodes::run,
    },
    Scenario {
        name: "lengths",
        about: "a writer is cut off from cells that answer its readers: they notice within seconds, and ask little while idle",
        run: lengths::run,
    },
];

/// Those whose seeds are the cases of a figure, or hold by chance more or less, each many times as long as another
/// scenario's seed: nobody means them who asks for seeds of all.
pub const FIGURES: &[&str] = &["queue-servers", "queue-order", "queue-auto"];

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// What a failed run left.
#[derive(Clone, Debug, thiserror::Error)]
#[error("scenario {scenario}, seed {seed}: {violation}")]
pub struct ScenarioFailure {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed that shows it.
    pub seed: u64,
    /// What did not hold.
    pub violation: Violation,
    /// The last events before it, oldest first.
    pub recent: Vec<String>,
}

impl ScenarioFailure {
    /// The command that shows it again.
    pub fn replay(&self) -> String {
        format!("cargo run -p tailwater-sim --bin sim -- --scenario {} --seed {}", self.scenario, self.seed)
    }
}

impl Scenario {
    /// Runs one seed. A panic anywhere in the world is a violation like any other.
    pub fn run_seed(&self, seed: u64, plant: Plant, print_events: bool) -> Result<Report, ScenarioFailure> {
        let mut world = World::new(seed);
        world.set_print_events(print_events);
        // A world that panicked is looked at, and never run again.
        let result = panics::catch(|| (self.run)(&mut world, plant)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(Violation::new(format!("panic: {}", text.unwrap_or("not in words"))))
        });
        let recent = if result.is_err() { world.recent_events() } else { Vec::new() };
        result
            .map(|mut report| {
                report.trace = world.trace();
                report.events = world.events();
                report
            })
            .map_err(|violation| ScenarioFailure { scenario: self.name, seed, violation, recent })
    }
}

impl From<StuckWorld> for Violation {
    fn from(stuck: StuckWorld) -> Self {
        Violation::new(stuck.to_string())
    }
}
