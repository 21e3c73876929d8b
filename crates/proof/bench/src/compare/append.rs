//! Durable appends: acknowledged only when they are on disk.

use std::time::Duration;

use serde_json::{Value, json};
use tailwater_load::stats::round;

use super::Effort;
use super::markdown::MarkdownTable;
use super::peers::{Peer, Server, words};
use super::runner::{Missing, Runner, number, ratios};
use super::series::Series;
use crate::charts::{self, Row};
use crate::disk;

const RECORD_BYTES: usize = 128;
const IN_FLIGHT: [usize; 2] = [4_096, 1];
const SYSTEMS: [ComparedSystem; 3] = [ComparedSystem::Tailwater, ComparedSystem::Kafka, ComparedSystem::Nats];
/// What is appended and synced to see what the disk does by itself.
const DISK_BYTES: usize = 4_096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedSystem {
    Tailwater,
    Kafka,
    Nats,
}

/// How Kafka's producer gathers records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerGathering {
    linger_ms: u32,
    batch_kib: u32,
}

impl PeerGathering {
    /// Nothing waits: the client's default, but for batches that hold many records.
    pub const NONE: PeerGathering = PeerGathering { linger_ms: 0, batch_kib: 128 };

    /// All that are tried.
    pub fn all() -> impl Iterator<Item = PeerGathering> {
        [1_024, 128]
            .into_iter()
            .flat_map(|batch_kib| [1, 5, 0].map(|linger_ms| PeerGathering { linger_ms, batch_kib }))
    }

    /// As KafkaBench takes it.
    pub fn args(self) -> Vec<String> {
        words(&format!("--linger-ms {} --batch-bytes {}", self.linger_ms, self.batch_kib << 10))
    }

    /// For people.
    pub fn name(self) -> String {
        format!("linger {} ms, batches of {} KiB", self.linger_ms, self.batch_kib)
    }
}

/// What all rounds brought.
pub struct Results {
    /// For each number in flight, for each system.
    runs: Vec<Vec<Vec<Result<Value, Missing>>>>,
    disk: Vec<Value>,
    /// What suits Kafka best with many in flight; `None` if no attempt at it succeeded.
    gathering: Option<PeerGathering>,
}

/// Runs all of them.
pub fn run(runner: &mut Runner, effort: &Effort) -> anyhow::Result<Results> {
    let gathering = choose(runner, effort)?;
    let mut runs: Vec<Vec<Vec<_>>> = IN_FLIGHT.map(|_| SYSTEMS.map(|_| Vec::new()).to_vec()).to_vec();
    let mut disk = Vec::new();
    for round in 0..effort.rounds {
        runner.begin_round("append", round);
        for (number, in_flight) in IN_FLIGHT.into_iter().enumerate() {
            disk.push(sync_alone(runner)?);
            for (system, results) in SYSTEMS.into_iter().zip(&mut runs[number]) {
                let best = gathering.unwrap_or(PeerGathering::NONE);
                let gathering = if in_flight == 1 { PeerGathering::NONE } else { best };
                results.push(one(runner, effort, system, in_flight, gathering)?);
            }
        }
    }
    Ok(Results { runs, disk, gathering })
}

/// Kafka's best throughput with many in flight.
fn choose(runner: &mut Runner, effort: &Effort) -> anyhow::Result<Option<PeerGathering>> {
    eprintln!("== append, what suits Kafka best");
    let Ok(server) = Server::start(runner, Peer::Kafka, true)? else { return Ok(None) };
    let mut best = (f64::MIN, None);
    let mut warmup_s = effort.cold_jvm_s;
    for gathering in PeerGathering::all().take(effort.settings) {
        let args = kafka_args(IN_FLIGHT[0], gathering, warmup_s, effort.choose_s);
        let label =
            format!("append-choose-kafka-linger-{}-batch-{}", gathering.linger_ms, gathering.batch_kib);
        if let Ok(value) = server.load(runner, &label, &args, warmup_s + effort.choose_s)? {
            let rate = number(&value, "/records_per_s");
            if rate > best.0 {
                best = (rate, Some(gathering));
            }
        }
        warmup_s = effort.warm_jvm_s;
    }
    server.stop(runner);
    Ok(best.1)
}

fn kafka_args(in_flight: usize, gathering: PeerGathering, warmup_s: u64, duration_s: u64) -> Vec<String> {
    let load = format!(
        "append --record-bytes {RECORD_BYTES} --in-flight {in_flight} --warmup-s {warmup_s} --duration-s {duration_s}"
    );
    [words(&load), gathering.args()].concat()
}

fn one(
    runner: &mut Runner,
    effort: &Effort,
    system: ComparedSystem,
    in_flight: usize,
    gathering: PeerGathering,
) -> anyhow::Result<Result<Value, Missing>> {
    let load = format!("append --record-bytes {RECORD_BYTES} --in-flight {in_flight}");
    let duration_s = effort.append_s;
    let (peer, label, args, warmup_s) = match system {
        ComparedSystem::Tailwater => {
            let args = words(&format!("{load} --warmup-s {} --duration-s {duration_s}", effort.warmup_s));
            return runner.tailwater(
                &format!("append-{in_flight}-tailwater"),
                &args,
                effort.warmup_s + duration_s,
            );
        }
        ComparedSystem::Kafka => {
            let args = kafka_args(in_flight, gathering, effort.cold_jvm_s, duration_s);
            (Peer::Kafka, "kafka", args, effort.cold_jvm_s)
        }
        ComparedSystem::Nats => {
            let args = words(&format!("{load} --warmup-s {} --duration-s {duration_s}", effort.warmup_s));
            (Peer::Nats, "nats", args, effort.warmup_s)
        }
    };
    let server = match Server::start(runner, peer, true)? {
        Ok(server) => server,
        Err(missing) => return Ok(Err(missing)),
    };
    let result = server.load(runner, &format!("append-{in_flight}-{label}"), &args, warmup_s + duration_s)?;
    server.stop(runner);
    Ok(result)
}

fn sync_alone(runner: &mut Runner) -> anyhow::Result<Value> {
    let times = disk::append_and_sync(runner.work(), DISK_BYTES, Duration::from_secs(2))?.times;
    let ms = |quantile| round(times.quantile_ns(quantile) as f64 / 1e6, 4);
    let value = json!({
        "bench": "fdatasync",
        "bytes": DISK_BYTES,
        "fdatasync_ms": { "p50": ms(0.5), "p99": ms(0.99), "p999": ms(0.999) },
    });
    runner.keep("fdatasync", &value)?;
    Ok(value)
}

/// The table and the plot.
pub fn show(runner: &Runner, effort: &Effort, results: &Results) -> anyhow::Result<String> {
    let columns = [
        "system",
        "in flight",
        "records/s",
        "ack p50, ms",
        "ack p99, ms",
        "ack p99.9, ms",
        "cores: server, client",
    ];
    let mut table = MarkdownTable::new("Durable append of 128-byte records", &columns);
    let mut rows = Vec::new();
    let mut notes = String::new();
    for (in_flight, systems) in IN_FLIGHT.into_iter().zip(&results.runs) {
        for (system, runs) in SYSTEMS.into_iter().zip(systems) {
            let name = system.name(runner);
            let values: Vec<&Value> = runs.iter().flatten().collect();
            if values.is_empty() {
                let why = runs.iter().find_map(|run| run.as_ref().err()).map_or("", |missing| &missing.0);
                table.missing(&format!("{name}, {in_flight} in flight"), why);
                continue;
            }
            let series = |pointer| Series::of(values.iter().map(|value| number(value, pointer)));
            let [p50, p99, p999] = ["/ack_ms/p50", "/ack_ms/p99", "/ack_ms/p999"].map(series);
            let cores =
                |own, seconds: &str| Series::of(values.iter().map(|value| system.cores(value, own, seconds)));
            table.row(&[
                &name,
                &in_flight.to_string(),
                &series("/records_per_s").show(0),
                &p50.show(2),
                &p99.show(2),
                &p999.show(2),
                &format!(
                    "{}, {}",
                    cores("/cpu_cores/node", "/cpu_s/server").show(2),
                    cores("/cpu_cores/client", "/cpu_s/clients").show(2)
                ),
            ]);
            let medians = [("p50", p50.median()), ("p99", p99.median()), ("p99.9", p999.median())];
            rows.push(Row { label: format!("{name}, {in_flight} in flight"), values: medians.to_vec() });
            if runs.iter().any(Result::is_err) {
                let failed: Vec<_> =
                    runs.iter().filter_map(|run| run.as_ref().err()).map(|m| m.0.as_str()).collect();
                notes += &format!("- {name}, {in_flight} in flight: {}\n", failed.join("; "));
            }
        }
        let over_kafka = |pointer| ratios(&systems[0], &systems[1], |value| number(value, pointer)).show(2);
        notes += &format!(
            "- Tailwater over Kafka, {in_flight} in flight: records/s {}, ack p50 {}, ack p99 {}\n",
            over_kafka("/records_per_s"),
            over_kafka("/ack_ms/p50"),
            over_kafka("/ack_ms/p99"),
        );
    }
    let synced = |pointer| Series::of(results.disk.iter().map(|value| number(value, pointer)));
    let [p50, p99, p999] = ["/fdatasync_ms/p50", "/fdatasync_ms/p99", "/fdatasync_ms/p999"].map(synced);
    table.row(&[
        "the disk alone: 4 KiB appended, fdatasync",
        "1",
        "-",
        &p50.show(3),
        &p99.show(3),
        &p999.show(3),
        "-",
    ]);
    let medians = [("p50", p50.median()), ("p99", p99.median()), ("p99.9", p999.median())];
    rows.push(Row { label: "fdatasync of 4 KiB".to_owned(), values: medians.to_vec() });
    let latest = Series::of(systems_p50(&results.runs));
    notes += &format!(
        "- Tailwater's ack p50 with one in flight over the disk's p50: {}\n",
        tailwater_load::stats::round(latest.median() / p50.median(), 2)
    );
    runner.write(
        "ack-latency.svg",
        &charts::bars("Time to acknowledgement of a 128-byte record", "ms", true, &rows),
    )?;
    let chosen = results.gathering.map_or_else(String::new, |gathering| {
        format!(
            "Kafka with 4,096 in flight: {}, the best of {} settings tried by records/s; with one in flight there is \
             nothing to gather: {}. ",
            gathering.name(),
            PeerGathering::all().count().min(effort.settings),
            PeerGathering::NONE.name(),
        )
    });
    let said = format!(
        "Synced before an acknowledgement in all of them: Tailwater fdatasync of its journal, Kafka \
         `log.flush.interval.messages=1`, NATS `sync_interval: always`. {chosen}Client and server on the same cores. \
         Tailwater's server is node and cache backends.\n\n{notes}\n![](ack-latency.svg)"
    );
    Ok(table.end(&said))
}

/// Tailwater's p50 with one in flight.
fn systems_p50(runs: &[Vec<Vec<Result<Value, Missing>>>]) -> Vec<f64> {
    runs[1][0].iter().flatten().map(|value| number(value, "/ack_ms/p50")).collect()
}

impl ComparedSystem {
    fn name(self, runner: &Runner) -> String {
        match self {
            ComparedSystem::Tailwater => "Tailwater".to_owned(),
            ComparedSystem::Kafka => Peer::Kafka.title("Kafka", runner.root()),
            ComparedSystem::Nats => Peer::Nats.title("NATS JetStream", runner.root()),
        }
    }

    /// Cores in use: Tailwater says so itself, the peers say seconds.
    fn cores(self, value: &Value, own: &str, seconds: &str) -> f64 {
        match self {
            ComparedSystem::Tailwater => number(value, own),
            ComparedSystem::Kafka | ComparedSystem::Nats => {
                number(value, seconds) / number(value, "/duration_s")
            }
        }
    }
}
