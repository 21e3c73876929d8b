//! Every scenario holds for the first seeds, and the same seed gives the same trace.

use tailwater_sim::scenarios::{self, Scenario};
use tailwater_sim::{Plant, Report};

/// `SEEDS=n` runs more.
fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

fn holds(name: &str, seeds: u64) {
    let scenario: &Scenario = scenarios::find(name).expect("it is listed");
    for seed in 0..seeds {
        if let Err(failure) = scenario.run_seed(seed, Plant::None, false) {
            panic!("{failure}\nreplay with: {}", failure.replay());
        }
    }
    let mut traces = std::collections::BTreeSet::new();
    for seed in 0..3 {
        let traced = || scenario.run_seed(seed, Plant::None, false).expect("it held before").trace;
        let trace = traced();
        assert_eq!(trace, traced(), "{name}: seed {seed} is not repeatable");
        traces.insert(trace);
    }
    assert_eq!(traces.len(), 3, "{name}: other seeds, other traces");
}

/// Seeds beyond the first ones that have found something once.
const FOUND: &[(&str, u64)] = &[
    // An append whose record was longer than what the backlog had room for was told to try again, in a loop.
    ("journal", 990),
    // What was truncated before the producers' first snapshot was forgotten with a crash, and taken for new when it
    // came again.
    ("log", 3527),
    ("log-every-io", 16_644),
    // A durable fetch whose segment was removed between its two looks answered nothing, as at the end.
    ("log", 13_669),
    ("log-every-io", 5242),
    // The scenario itself took two reads of a key in one call for two that follow each other.
    ("cache", 1112),
    // A backend that started again was told what was before by a client that came late and left it with the next
    // answer, and nobody told it more.
    ("cell", 893),
    ("cell", 1000),
    // An owner whose shard waited for the sync of a segment, with a flush that was due, ran without a pause.
    ("cluster-interval", 8),
    // A journal that was full before its first checkpoint waited for the checkpoint, and that for a mark in the
    // journal.
    ("broadcast-disk", 331),
    // A crash at the first start on a disk that had no room left a replica with an id and without a journal.
    ("broadcast-disk", 9178),
    // The scenario itself took events that a replica refused for some that it has.
    ("broadcast", 1811),
    // What a tail held already when it heard of a chain before its head did was forgotten, and its publisher waited.
    ("broadcast", 3624),
    // The scenario itself did not know what a joining replica had been given before it collected that and was
    // restarted.
    ("broadcast", 20051),
    // What an earlier tail alone had given a joining replica was kept, and its numbers were given to others.
    ("broadcast", 24200),
    // A replica whose disk stood still was removed, and the other one had just ended and lost its disk.
    ("broadcast", 956),
    // A listener that asked for everything was answered with all of it at once, whatever its connection took.
    ("broadcast-sharing", 300_028),
    ("broadcast-sharing", 300_135),
    // The scenario itself took a chain for whole one of whose replicas had just ended.
    ("broadcast-sharing", 400_965),
    // A tail with which its region began anew did not tell those that share of streams in which nothing came.
    ("broadcast-sharing", 72),
    // The scenario itself took a replica to have what it had dropped with a lineage.
    ("broadcast", 1899),
    ("broadcast-sharing", 668),
    // The scenario itself took a replica to have what it had numbered, and its disk, which had lost that, had numbered
    // otherwise before.
    ("broadcast-sharing", 689),
    // The scenario itself took a message that another receiver had deleted for one that is there.
    ("queue-cassandra", 1055),
    // A message that another front end was just moving to the dead-letter queue was received once more than it may be.
    ("queue-cassandra-letters", 236),
    // The scenario itself took a message for kept that one of two deletes at the same time had deleted.
    ("queue-cassandra-letters", 680),
    // The scenario itself took a receive that was answered late, after the message was deleted, for one that came
    // after.
    ("queue", 3141),
    // The scenario itself waited for ever for a full disk to take the record of a queue.
    ("queue", 3195),
];

#[test]
fn what_was_found_once_stays_away() {
    for &(name, seed) in FOUND {
        let scenario = scenarios::find(name).expect("it is listed");
        if let Err(failure) = scenario.run_seed(seed, Plant::None, false) {
            panic!("{failure}\nreplay with: {}", failure.replay());
        }
    }
}

/// What a seed of a scenario tells, which has to hold.
fn report(scenario: &str, seed: u64) -> Report {
    let scenario = scenarios::find(scenario).expect("it is listed");
    scenario.run_seed(seed, Plant::None, false).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn queue_servers() {
    // The paper's shortest mean time, at both levels: the others are hours of virtual time.
    for seed in [0, 3] {
        let report = report("queue-servers", seed);
        assert!(report.counts["kills"] > 0, "{report}");
    }
}

#[test]
fn queue_auto() {
    // Three receivers, and two; and those whose load once lay on the edge of what is asked of them.
    for seed in [0, 1, 14, 32] {
        println!("{}", report("queue-auto", seed));
    }
}

/// A test each, with the name of its scenario: it holds for the first seeds, or for one in so many of them.
macro_rules! hold {
    ($($name:ident / $share:literal;)*) => {
        $(#[test]
        fn $name() {
            holds(&stringify!($name).replace('_', "-"), seeds() / $share);
        })*
    };
}

hold! {
    journal / 1;
    store / 1;
    // Minutes of virtual time each.
    queue_cassandra / 10;
    queue_cassandra_letters / 10;
    quota_shares / 5;
    journal_every_io / 1;
    store_every_io / 1;
    meta / 1;
    meta_every_io / 1;
    log / 1;
    log_every_io / 1;
    // Many replicas, clients and messages each.
    broadcast / 5;
    broadcast_sharing / 5;
    broadcast_anew / 2;
    broadcast_retention / 10;
    broadcast_disk / 1;
    broadcast_disk_anew / 1;
    broadcast_disk_every_io / 1;
    queue / 1;
    queue_every_io / 1;
    cache / 2;
    cell / 2;
    // A second of a core and more, each.
    refill / 4;
    resize / 10;
    loads / 20;
    updates / 2;
    duel / 1;
    cluster_interval / 4;
    // Up to twelve logs each.
    trees / 20;
    // Up to five logs, and fifteen workers.
    schedule / 20;
    ahead / 10;
    // Three logs each.
    nodes / 20;
    // Minutes of virtual time, and a second of a core, each.
    lengths / 10;
    cluster / 2;
}
