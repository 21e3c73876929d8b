//! `bench log`: streams whose segments are in ledgers (DistributedLog, section VII).
//!
//! | experiment | the paper's figure | what varies |
//! |---|---|---|
//! | `latency` | 10 | the rate, with what is appended written at once and every 10 ms |
//! | `streams` | 11 | over how many ledgers one node spreads a rate |
//! | `cluster` | 12 | nodes, each with streams and a rate of its own, on the same bookies |
//! | `fanout` | 13 | consumers of what one node writes |
//! | `geo` | 14, 15 | the rate, with copies in two regions 80 ms apart |
//! | `kafka` | none | records in flight to three nodes by Kafka's protocol, beside three brokers of Apache Kafka |
//!
//! Every point of the paper's is a `bench fanout` of its own process, and so is checked: nothing lost, reordered or
//! corrupted. A shard stands for a stream of the paper's, as each has a ledger of its own. All share this machine's
//! processors and disk: ZooKeeper, bookies (which sync before they answer), nodes, clients and the emulated lines.

mod kafka;

use std::path::PathBuf;
use std::process::Command as Process;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use tailwater_load::clusters::relay::{Gateway, Gateways};
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::round;
use tailwater_load::system::{Workspace, WorkspaceArgs};

use crate::ledger_servers::{LedgerServers, ServerSize};
use crate::program::{result_of, run_to_end};

/// What a run may take besides its warm-up and what is measured: starts, and reading to the end.
const BESIDE: Duration = Duration::from_secs(120);

/// Which of them.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Acknowledgements and delivery by rate, with two ways to flush (figure 10).
    Latency(LatencyArgs),
    /// One rate over more and more streams of one node (figure 11).
    Streams(StreamsArgs),
    /// More and more nodes, each with streams of its own, on the same bookies (figure 12).
    Cluster(ClusterArgs),
    /// More and more consumers of what one node writes (figure 13).
    Fanout(LogFanoutArgs),
    /// Acknowledgements and delivery by rate, with copies in two regions (figures 14 and 15).
    Geo(GeoArgs),
    /// Appends by Kafka's protocol to three nodes, beside three brokers of Apache Kafka.
    Kafka(kafka::Args),
}

/// Flags of all of them.
#[derive(clap::Args)]
struct Common {
    /// The script that runs ZooKeeper and bookies.
    #[arg(long, default_value = ".ci/bookkeeper", value_name = "SCRIPT")]
    bookkeeper: PathBuf,
    /// Seconds of each point that are measured.
    #[arg(long, default_value_t = 8.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Seconds of warm-up of each point.
    #[arg(long, default_value_t = 4.0, value_name = "SECONDS")]
    warmup_s: f64,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// Flags of `latency`.
#[derive(clap::Args)]
pub struct LatencyArgs {
    /// Records a second, a point for each.
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,10000,30000,100000,330000")]
    rates: Vec<u32>,
    /// When the node writes what was appended: at once, or every so many milliseconds. Each with all rates.
    #[arg(long, value_delimiter = ',', default_value = "immediate,10", value_name = "immediate|MS")]
    flushes: Vec<String>,
    /// Bytes of each record.
    #[arg(long, default_value_t = 128, value_name = "BYTES")]
    record_bytes: u32,
    #[command(flatten)]
    common: Common,
}

/// Flags of `streams`.
#[derive(clap::Args)]
pub struct StreamsArgs {
    /// Streams, a point for each.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
    streams: Vec<u32>,
    /// Records a second, over all streams.
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// How often the node writes what was appended, in milliseconds. Each with all counts of streams.
    #[arg(long, value_delimiter = ',', default_value = "10,100", value_name = "MS")]
    flushes: Vec<String>,
    /// Bytes of each record.
    #[arg(long, default_value_t = 128, value_name = "BYTES")]
    record_bytes: u32,
    #[command(flatten)]
    common: Common,
}

/// Flags of `cluster`.
#[derive(clap::Args)]
pub struct ClusterArgs {
    /// Nodes, a point for each.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8")]
    nodes: Vec<u32>,
    /// Streams of each node.
    #[arg(long, default_value_t = 100)]
    streams: u32,
    /// Records a second of each node.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Bytes of each record.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    record_bytes: u32,
    #[command(flatten)]
    common: Common,
}

/// Flags of `fanout`.
#[derive(clap::Args)]
pub struct LogFanoutArgs {
    /// Consumers, each of all records. A point for each.
    #[arg(long, value_delimiter = ',', default_value = "1,10,40,160")]
    consumers: Vec<u32>,
    /// What is appended, in Mbit/s.
    #[arg(long, default_value_t = 80.0, value_name = "MBIT")]
    rate_mbit: f64,
    #[command(flatten)]
    common: Common,
}

/// Flags of `geo`.
#[derive(clap::Args)]
pub struct GeoArgs {
    /// Records a second, a point for each.
    #[arg(long, value_delimiter = ',', default_value = "500,1000,2000,4000,8000")]
    rates: Vec<u32>,
    /// Streams.
    #[arg(long, default_value_t = 100)]
    streams: u32,
    /// Bookies of each of the two regions. Every record has a copy on each.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=5))]
    bookies: u16,
    /// Round trip between the regions, in milliseconds.
    #[arg(long, default_value_t = 80, value_name = "MS")]
    round_trip_ms: u32,
    /// Bytes of each record.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    record_bytes: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Serialize)]
struct LogReport {
    bench: &'static str,
    bookies: usize,
    warmup_s: f64,
    duration_s: f64,
    points: Vec<LogPoint>,
}

/// One load and what came of it.
#[derive(Clone, Serialize)]
struct LogLoad {
    nodes: u32,
    /// Streams of each node.
    streams: u32,
    /// Consumers of each node's streams.
    consumers: u32,
    flush: String,
    record_bytes: u32,
    /// What is asked for of each node.
    records_per_s: f64,
}

#[derive(Serialize)]
struct LogPoint {
    #[serde(flatten)]
    load: LogLoad,
    /// Appended by all nodes, of what was measured.
    produced_per_s: f64,
    /// Delivered to all consumers.
    delivered_per_s: f64,
    /// The worst node's.
    write_ms: LogTimes,
    delivery_ms: LogTimes,
    /// Cores of nodes and of their clients, in the measured time.
    nodes_cores: f64,
    clients_cores: f64,
    /// Cores of bookies and of emulated lines, over the whole run: its start and its warm-up count.
    bookies_cores: f64,
    lines_cores: f64,
    /// Whether all rates were reached, and everything was delivered once, in order.
    keeps_up: bool,
    /// Why it did not come to its end, if it did not.
    failed: Option<String>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct LogTimes {
    p50: f64,
    p99: f64,
    p999: f64,
}

impl LogTimes {
    fn of(ran: &Value, key: &str) -> Self {
        let of = |name: &str| number(ran, &format!("/{key}/{name}"));
        Self { p50: of("p50"), p99: of("p99"), p999: of("p999") }
    }

    fn worst(self, other: Self) -> Self {
        Self { p50: self.p50.max(other.p50), p99: self.p99.max(other.p99), p999: self.p999.max(other.p999) }
    }
}

fn number(ran: &Value, pointer: &str) -> f64 {
    ran.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}

/// Runs one of them.
pub fn run(command: Command) -> anyhow::Result<()> {
    interrupt::listen()?;
    match command {
        Command::Latency(args) => {
            let loads = each_with_all(&args.flushes, &args.rates)
                .map(|(flush, rate)| LogLoad { flush, ..one_node(1, f64::from(rate), args.record_bytes) });
            near("log latency", &args.common, loads.collect())
        }
        Command::Streams(args) => {
            let loads = each_with_all(&args.flushes, &args.streams).map(|(flush, streams)| LogLoad {
                flush,
                ..one_node(streams, f64::from(args.rate), args.record_bytes)
            });
            near("log streams", &args.common, loads.collect())
        }
        Command::Cluster(args) => {
            let loads = args.nodes.iter().map(|nodes| LogLoad {
                nodes: *nodes,
                flush: "10".to_owned(),
                ..one_node(args.streams, f64::from(args.rate), args.record_bytes)
            });
            near("log cluster", &args.common, loads.collect())
        }
        Command::Fanout(args) => {
            const RECORD_BYTES: u32 = 1_024;
            let rate = args.rate_mbit * 1e6 / 8.0 / f64::from(RECORD_BYTES);
            let loads = args.consumers.iter().map(|consumers| LogLoad {
                consumers: *consumers,
                flush: "10".to_owned(),
                ..one_node(4, rate, RECORD_BYTES)
            });
            near("log fanout", &args.common, loads.collect())
        }
        Command::Geo(args) => geo(&args),
        Command::Kafka(args) => kafka::run(&args),
    }
}

fn each_with_all<'a>(
    flushes: &'a [String],
    numbers: &'a [u32],
) -> impl Iterator<Item = (String, u32)> + use<'a> {
    flushes.iter().flat_map(|flush| numbers.iter().map(|number| (flush.clone(), *number)))
}

fn one_node(streams: u32, records_per_s: f64, record_bytes: u32) -> LogLoad {
    LogLoad { nodes: 1, streams, consumers: 1, flush: "immediate".to_owned(), record_bytes, records_per_s }
}

/// Loads of three bookies on this host, three copies, two of which acknowledge.
fn near(bench: &'static str, common: &Common, loads: Vec<LogLoad>) -> anyhow::Result<()> {
    let servers = LedgerServers::start(&common.bookkeeper, ServerSize::Small, 3, 0, |_, _| Ok(()))?;
    let config = format!("segments = {:?}\n", servers.uri());
    measure(bench, common, &servers, None, &config, loads)
}

/// Loads of two regions' bookies, the second of which are far.
fn geo(args: &GeoArgs) -> anyhow::Result<()> {
    let lines = Gateways::new()?;
    let one_way = Duration::from_millis(u64::from(args.round_trip_ms)) / 2;
    let region = usize::from(args.bookies);
    let mut gateways: Vec<Gateway> = Vec::new();
    let servers =
        LedgerServers::start(&args.common.bookkeeper, ServerSize::Small, region, region, |told, listens| {
            gateways.push(lines.open_at(told, listens, one_way)?);
            Ok(())
        })?;
    let place = |(number, bookie): (usize, &String)| {
        let (region, rack) = (if number < region { "west" } else { "east" }, number % region);
        format!("\"{bookie}\" = \"/{region}/rack{rack}\"")
    };
    let places: Vec<String> = servers.bookies().iter().enumerate().map(place).collect();
    let copies = 2 * region;
    let config = format!(
        "segments = {:?}\n\n[ledgers]\nensemble = {copies}\nwrite_quorum = {copies}\nack_quorum = {}\nmin_regions = 2\n\
         region = \"west\"\nplaces = {{ {} }}\n",
        servers.uri(),
        copies / 2 + 1,
        places.join(", ")
    );
    let of = |rate: &u32| one_node(args.streams, f64::from(*rate), args.record_bytes);
    let loads = args.rates.iter().map(of).collect();
    measure("log geo", &args.common, &servers, Some(&lines), &config, loads)
}

fn measure(
    bench: &'static str,
    common: &Common,
    servers: &LedgerServers,
    lines: Option<&Gateways>,
    config: &str,
    loads: Vec<LogLoad>,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        common.duration_s > 0.0 && common.warmup_s >= 0.0,
        "a duration above 0, and no warmup below"
    );
    let workspace = common.workspace.create()?;
    let mut line = ProgressLine::default();
    let mut points = Vec::new();
    for load in loads {
        anyhow::ensure!(
            load.nodes > 0 && load.streams > 0 && load.consumers > 0 && load.records_per_s > 0.0,
            "nodes, streams, consumers and rates above 0"
        );
        line.show(&format!(
            "{} nodes, {} streams, {} consumers, {:.0} records/s, flush {}",
            load.nodes, load.streams, load.consumers, load.records_per_s, load.flush
        ));
        let cpu = || (servers.cpu(), lines.map(Gateways::cpu).unwrap_or_default());
        let (begun, (bookies, relays)) = (std::time::Instant::now(), cpu());
        let ran = run_nodes(common, &workspace, config, &load)?;
        let wall_s = begun.elapsed().as_secs_f64();
        let (bookies_end, relays_end) = cpu();
        let cores = |from: Duration, to: Duration| round((to - from).as_secs_f64() / wall_s, 3);
        let mut point = sum(load, ran, common.duration_s);
        point.bookies_cores = cores(bookies, bookies_end);
        point.lines_cores = cores(relays, relays_end);
        points.push(point);
    }
    drop(line);
    let bookies = servers.bookies().len();
    let Common { warmup_s, duration_s, .. } = *common;
    report::print(common.output, &LogReport { bench, bookies, warmup_s, duration_s, points })
}

/// What the nodes of a point told, each for itself.
fn run_nodes(
    common: &Common,
    workspace: &Workspace,
    config: &str,
    load: &LogLoad,
) -> anyhow::Result<Vec<Result<Value, String>>> {
    let limit = BESIDE + Duration::from_secs_f64(common.warmup_s + common.duration_s);
    let program = std::env::current_exe()?;
    let one = |number: u32| -> anyhow::Result<Result<Value, String>> {
        let dir = workspace.path().join(format!("node{number}"));
        std::fs::create_dir_all(&dir)?;
        let mut command = Process::new(&program);
        command.args(["bench", "fanout", "--cells", "r1", "--cell-mib", "128", "-o", "json"]);
        command.args(["--every-us", "1000", "--spread", "round-robin", "--processes", "1"]);
        let rate_mbit = load.records_per_s * f64::from(load.record_bytes) * 8.0 / 1e6;
        for (flag, value) in [
            ("--consumers", load.consumers.to_string()),
            ("--shards", load.streams.to_string()),
            ("--shards-per-consumer", load.streams.to_string()),
            ("--message-bytes", load.record_bytes.to_string()),
            ("--rate-mbit", rate_mbit.to_string()),
            ("--flush", load.flush.clone()),
            ("--duration-s", common.duration_s.to_string()),
            ("--warmup-s", common.warmup_s.to_string()),
            ("--node-config", config.to_owned()),
            ("--dir", dir.display().to_string()),
        ] {
            command.args([flag, &value]);
        }
        let (said, log) = (dir.join("said"), dir.join("log"));
        let ended = run_to_end(command, &said, &log, limit)?;
        Ok(result_of(&said, ended).map(|(value, _)| value).map_err(|why| {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{why}: {}", log.lines().last().unwrap_or_default())
        }))
    };
    std::thread::scope(|scope| {
        let nodes: Vec<_> = (0..load.nodes).map(|number| scope.spawn(move || one(number))).collect();
        let ended = nodes.into_iter().map(|node| node.join().ok().context("a thread failed")?);
        ended.collect()
    })
}

/// All nodes of a point together.
fn sum(load: LogLoad, ran: Vec<Result<Value, String>>, duration_s: f64) -> LogPoint {
    let mut point = LogPoint {
        load,
        produced_per_s: 0.0,
        delivered_per_s: 0.0,
        write_ms: LogTimes::default(),
        delivery_ms: LogTimes::default(),
        nodes_cores: 0.0,
        clients_cores: 0.0,
        bookies_cores: 0.0,
        lines_cores: 0.0,
        keeps_up: true,
        failed: None,
    };
    for ran in ran {
        let ran = match ran {
            Ok(ran) => ran,
            Err(why) => {
                (point.keeps_up, point.failed) = (false, Some(why));
                continue;
            }
        };
        point.produced_per_s += round(number(&ran, "/produced") / duration_s, 0);
        point.delivered_per_s += round(number(&ran, "/delivered") / duration_s, 0);
        point.write_ms = point.write_ms.worst(LogTimes::of(&ran, "ack_ms"));
        point.delivery_ms = point.delivery_ms.worst(LogTimes::of(&ran, "delay_ms"));
        point.nodes_cores += number(&ran, "/cpu_cores/node");
        point.clients_cores += number(&ran, "/cpu_cores/producer") + number(&ran, "/cpu_cores/consumers");
        point.keeps_up &= ran.get("keeps_up").and_then(Value::as_bool).unwrap_or(false);
    }
    point.nodes_cores = round(point.nodes_cores, 3);
    point.clients_cores = round(point.clients_cores, 3);
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_point_are_added_up_and_the_worst_times_count() {
        let ran = |p99: f64| {
            let ran = serde_json::json!({
                "produced": 800, "delivered": 1_600, "keeps_up": true,
                "ack_ms": { "p50": 1.0, "p99": p99, "p999": 9.0 },
                "delay_ms": { "p50": 2.0, "p99": 5.0, "p999": 9.0 },
                "cpu_cores": { "node": 0.25, "producer": 0.125, "consumers": 0.5 },
            });
            Ok(ran)
        };
        let point = sum(one_node(1, 100.0, 128), vec![ran(3.0), ran(4.0)], 8.0);
        assert_eq!((point.produced_per_s, point.delivered_per_s), (200.0, 400.0));
        assert_eq!((point.write_ms.p99, point.delivery_ms.p99), (4.0, 5.0));
        assert_eq!((point.nodes_cores, point.clients_cores), (0.5, 1.25));
        assert!(point.keeps_up && point.failed.is_none());
    }

    #[test]
    fn a_point_with_a_node_that_failed_does_not_keep_up() {
        let point = sum(one_node(1, 100.0, 128), vec![Err("no bookies".to_owned())], 8.0);
        assert!(!point.keeps_up);
        assert_eq!(point.failed.as_deref(), Some("no bookies"));
    }
}
