//! Events to many subscribers of one region: what a delivery costs, beside NATS and Redis.

pub mod load;
mod nats;
mod redis;

use std::path::Path;

use serde_json::Value;

use super::Effort;
use super::markdown::MarkdownTable;
use super::peers::{Peer, Server, words};
use super::runner::{Missing, Runner, number};
use super::series::Series;
use crate::charts::{self, Row};

const SUBSCRIBERS: usize = 200;
const EVENT_BYTES: usize = 64;
const EVERY_US: u64 = 2_000;
/// Events a second.
const RATES: [u32; 2] = [2_000, 20_000];
/// A subscriber that gets less than this of what is offered does not keep up.
const KEPT_UP: f64 = 0.98;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedSystem {
    Tailwater { shares: bool, durability: &'static str },
    Peer { peer: Peer, load: &'static str, fsync: bool },
}

const SYSTEMS: [ComparedSystem; 10] = [
    ComparedSystem::Tailwater { shares: true, durability: "memory" },
    ComparedSystem::Tailwater { shares: true, durability: "interval" },
    ComparedSystem::Tailwater { shares: true, durability: "fsync" },
    ComparedSystem::Tailwater { shares: false, durability: "interval" },
    ComparedSystem::Peer { peer: Peer::Nats, load: "nats-core", fsync: false },
    ComparedSystem::Peer { peer: Peer::Redis, load: "redis-pubsub", fsync: false },
    ComparedSystem::Peer { peer: Peer::Nats, load: "jetstream", fsync: false },
    ComparedSystem::Peer { peer: Peer::Nats, load: "jetstream", fsync: true },
    ComparedSystem::Peer { peer: Peer::Redis, load: "redis-streams", fsync: false },
    ComparedSystem::Peer { peer: Peer::Redis, load: "redis-streams", fsync: true },
];

/// What all rounds brought: for each rate, for each system.
pub struct Results(Vec<Vec<Vec<Result<Value, Missing>>>>);

/// Runs all of them.
pub fn run(runner: &mut Runner, effort: &Effort) -> anyhow::Result<Results> {
    let mut results: Vec<Vec<Vec<_>>> = RATES.map(|_| SYSTEMS.map(|_| Vec::new()).to_vec()).to_vec();
    for round in 0..effort.rounds {
        runner.begin_round("broadcast", round);
        for (rate, systems) in RATES.into_iter().zip(&mut results) {
            for (system, runs) in SYSTEMS.into_iter().zip(systems) {
                runs.push(one(runner, effort, system, rate)?);
            }
        }
    }
    Ok(Results(results))
}

fn one(
    runner: &mut Runner,
    effort: &Effort,
    system: ComparedSystem,
    rate: u32,
) -> anyhow::Result<Result<Value, Missing>> {
    let label = format!("broadcast-{rate}-{}", system.label());
    let takes_s = effort.broadcast_warmup_s + effort.broadcast_s;
    let load = format!(
        "--rate {rate} --event-bytes {EVENT_BYTES} --every-us {EVERY_US} --warmup-s {} --duration-s {}",
        effort.broadcast_warmup_s, effort.broadcast_s
    );
    let (peer, name, fsync) = match system {
        ComparedSystem::Tailwater { shares, durability } => {
            let alone = if shares { "" } else { "--proxy-alone" };
            let args =
                format!("broadcast members --clients {SUBSCRIBERS} --durability {durability} {alone} {load}");
            return runner.tailwater(&label, &words(&args), takes_s);
        }
        ComparedSystem::Peer { peer, load, fsync } => (peer, load, fsync),
    };
    let server = match Server::start(runner, peer, fsync)? {
        Ok(server) => server,
        Err(missing) => return Ok(Err(missing)),
    };
    let args = format!("--system {name} --subscribers {SUBSCRIBERS} {load}");
    let result = server.load_broadcast(runner, &label, &words(&args), takes_s)?;
    server.stop(runner);
    Ok(result)
}

impl ComparedSystem {
    fn label(self) -> String {
        match self {
            ComparedSystem::Tailwater { shares, durability } => {
                format!("tailwater-{}-{durability}", if shares { "sharing" } else { "alone" })
            }
            ComparedSystem::Peer { load, fsync, .. } => {
                format!("{load}{}", if fsync { "-synced" } else { "" })
            }
        }
    }

    fn name(self, root: &Path) -> String {
        match self {
            ComparedSystem::Tailwater { shares: true, .. } => "Tailwater, listeners share".to_owned(),
            ComparedSystem::Tailwater { shares: false, .. } => "Tailwater, the node alone".to_owned(),
            ComparedSystem::Peer { peer, load, .. } => {
                let name = match load {
                    "nats-core" => "NATS",
                    "jetstream" => "NATS JetStream",
                    "redis-pubsub" => "Redis, PUBLISH",
                    _ => "Redis, streams",
                };
                peer.title(name, root)
            }
        }
    }

    /// When an event is acknowledged.
    fn acknowledges(self) -> &'static str {
        match self {
            ComparedSystem::Tailwater { durability: "memory", .. } => "in memory",
            ComparedSystem::Tailwater { durability: "interval", .. } => "written, synced each second",
            ComparedSystem::Tailwater { .. } => "synced",
            ComparedSystem::Peer { load: "nats-core" | "redis-pubsub", .. } => "stored nowhere",
            ComparedSystem::Peer { fsync: true, .. } => "synced",
            ComparedSystem::Peer { load: "jetstream", .. } => "written, synced every 2 minutes",
            ComparedSystem::Peer { .. } => "written, synced each second",
        }
    }

    /// Whether an event outlives the server's process.
    fn is_durable(self) -> bool {
        match self {
            ComparedSystem::Tailwater { durability, .. } => durability != "memory",
            ComparedSystem::Peer { load, .. } => !["nats-core", "redis-pubsub"].contains(&load),
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, ComparedSystem::Tailwater { .. })
    }
}

/// Cores of the server, and of the subscribers.
fn cores(value: &Value) -> (f64, f64) {
    let first = |names: [&str; 2]| {
        let found = names.iter().map(|name| number(value, &format!("/cores/{name}"))).find(|n| !n.is_nan());
        found.unwrap_or(f64::NAN)
    };
    (first(["proxy", "server"]), first(["listeners", "subscribers"]))
}

fn delivered_per_s(value: &Value) -> f64 {
    number(value, "/delivered_per_s") * number(value, "/clients")
}

/// Events that subscribers got for each second of CPU time of the server and the subscribers.
fn per_cpu_s(value: &Value) -> f64 {
    let (server, subscribers) = cores(value);
    delivered_per_s(value) / (server + subscribers)
}

/// The tables and the plot.
pub fn show(runner: &Runner, results: &Results) -> anyhow::Result<String> {
    let columns = [
        "system",
        "acknowledged when",
        "keeps up",
        "delivered/s",
        "events per CPU second",
        "of the server alone",
        "delay p50, ms",
        "delay p99, ms",
        "lost, reordered",
        "cores: server, subscribers",
    ];
    let (mut text, mut rows) = (String::new(), Vec::new());
    for (rate, systems) in RATES.into_iter().zip(&results.0) {
        let title = format!("{SUBSCRIBERS} subscribers of {rate} events a second of {EVENT_BYTES} bytes");
        let mut table = MarkdownTable::new(&title, &columns);
        for (system, runs) in SYSTEMS.into_iter().zip(systems) {
            let (name, acknowledged) = (system.name(runner.root()), system.acknowledges());
            let values: Vec<&Value> = runs.iter().flatten().collect();
            for missing in runs.iter().filter_map(|run| run.as_ref().err()) {
                table.missing(&format!("{name}, {acknowledged}"), &missing.0);
            }
            if values.is_empty() {
                continue;
            }
            let series =
                |figure: &dyn Fn(&Value) -> f64| Series::of(values.iter().map(|value| figure(value)));
            let of = |pointer: &'static str| series(&|value| number(value, pointer));
            let kept = values.iter().filter(|value| {
                number(value, "/delivered_per_s") >= KEPT_UP * f64::from(rate)
                    && number(value, "/lost") == 0.0
            });
            let events = series(&per_cpu_s);
            table.row(&[
                &name,
                acknowledged,
                &format!("{} of {}", kept.count(), values.len()),
                &series(&delivered_per_s).show(0),
                &events.show(0),
                &series(&|value| delivered_per_s(value) / cores(value).0).show(0),
                &of("/delay_ms/p50").show(1),
                &of("/delay_ms/p99").show(1),
                &format!("{}, {}", of("/lost").show(0), of("/reordered").show(0)),
                &format!(
                    "{}, {}",
                    series(&|value| cores(value).0).show(2),
                    series(&|value| cores(value).1).show(2)
                ),
            ]);
            let label = format!("{name}, {acknowledged}, {rate}/s");
            rows.push(Row { label, values: vec![("events per CPU second", events.median())] });
        }
        text += &table.end(&beside(runner, systems));
    }
    runner.write(
        "broadcast-cpu.svg",
        &charts::bars("Events delivered per CPU second", "events", false, &rows),
    )?;
    text += "\nCPU time is that of the server and of the subscribers, without the publisher's. What is due is published every 2 ms, \
             as one batch where there are batches (Redis: MULTI); a subscriber has a connection, checks the number of every \
             event, and shares two threads with the others; the peers' client is a lean one of our own \
             (`crates/proof/bench/src/compare/broadcast/`). JetStream: a push consumer each without acknowledgements; Redis's \
             streams: XREAD with BLOCK.\n\n![](broadcast-cpu.svg)\n";
    Ok(text)
}

/// Our durable ways over whichever durable peer did best in the same round.
fn beside(runner: &Runner, systems: &[Vec<Result<Value, Missing>>]) -> String {
    let figures = |runs: &[Result<Value, Missing>]| -> Vec<f64> {
        runs.iter().map(|run| run.as_ref().map_or(f64::NAN, per_cpu_s)).collect()
    };
    let durable = || SYSTEMS.into_iter().zip(systems).filter(|(system, _)| system.is_durable());
    let peers = durable().filter(|(system, _)| !system.is_ours()).map(|(_, runs)| figures(runs));
    let best = peers.reduce(|best, one| best.iter().zip(&one).map(|(a, b)| a.max(*b)).collect());
    let mut lines = String::new();
    for (system, runs) in durable().filter(|(system, _)| system.is_ours()) {
        lines += &format!(
            "- {} ({}) over the best durable peer, events per CPU second: {}\n",
            system.name(runner.root()),
            system.acknowledges(),
            Series::ratios(&figures(runs), best.as_deref().unwrap_or_default()).show(2),
        );
    }
    lines
}
