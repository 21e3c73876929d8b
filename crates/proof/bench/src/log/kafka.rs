//! `bench log kafka`: three nodes on three bookies beside three brokers of Apache Kafka, in turn, under the same
//! producer, which is Apache Kafka's own for Java.
//!
//! Each record has three copies, and two of them acknowledge it. A bookie syncs before it answers, and so does a broker
//! where `flush.messages` is 1; a broker's default leaves the disk to the kernel. The brokers are those of one cluster:
//! their topics differ. All servers run from the beginning to the end, and those that are not loaded are idle: what
//! they take meanwhile is in the report.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use tailwater_load::child::Child;
use tailwater_load::clock::cpu_of;
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::round;
use tailwater_load::system::{Workspace, WorkspaceArgs, agent, free_address};

use super::{LogTimes, number};
use crate::compare::series::Series;
use crate::ledger_servers::{LedgerServers, ServerSize};
use crate::program::{result_of, run_to_end};

/// How long a server may take to start, and a run to end behind what is measured.
const BESIDE: Duration = Duration::from_secs(120);
const SERVERS: usize = 3;

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    /// The script that runs ZooKeeper and bookies.
    #[arg(long, default_value = ".ci/bookkeeper", value_name = "SCRIPT")]
    bookkeeper: PathBuf,
    /// The script that runs a broker, beside which is the producer.
    #[arg(long, default_value = "bench/peers/kafka", value_name = "SCRIPT")]
    kafka: PathBuf,
    /// Partitions, over which records go round.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Bytes of each record.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    record_bytes: u32,
    /// Records that wait for their acknowledgement, a part for each.
    #[arg(long, value_delimiter = ',', default_value = "64,4096", value_name = "RECORDS")]
    in_flight: Vec<u32>,
    /// Rounds, in each of which each is loaded once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each run that are measured.
    #[arg(long, default_value_t = 15, value_name = "SECONDS")]
    duration_s: u32,
    /// Seconds of each run before them, in which the producer gets warm.
    #[arg(long, default_value_t = 8, value_name = "SECONDS")]
    warmup_s: u32,
    /// Seconds that each is loaded before the rounds, in which servers get warm.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    servers_warmup_s: u32,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Contender {
    Tailwater,
    /// Synced before each acknowledgement.
    Kafka,
    KafkaDefault,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Tailwater, Self::Kafka, Self::KafkaDefault];

    /// What the topic has set.
    fn topic(self) -> &'static str {
        match self {
            Self::Kafka => "min.insync.replicas=2,flush.messages=1",
            Self::Tailwater | Self::KafkaDefault => "min.insync.replicas=2",
        }
    }
}

/// One of them with so many records in flight, in all rounds.
#[derive(Serialize)]
struct BrokersPart {
    contender: Contender,
    in_flight: u32,
    records_per_s: Vec<f64>,
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
    p999_ms: Vec<f64>,
    /// Cores of its servers: nodes, bookies and ZooKeeper, or brokers.
    servers_cores: Vec<f64>,
    producer_cores: Vec<f64>,
    /// Cores of the servers that were idle.
    idle_cores: Vec<f64>,
    /// Records that were refused.
    failed: u64,
}

/// Tailwater over Kafka, the medians of the rounds.
#[derive(Serialize)]
struct BrokersBeside {
    in_flight: u32,
    beside: Contender,
    records_per_s: f64,
    p99_ms: f64,
}

#[derive(Serialize)]
struct BrokersReport {
    bench: &'static str,
    partitions: u32,
    record_bytes: u32,
    duration_s: u32,
    warmup_s: u32,
    servers_warmup_s: u32,
    rounds: usize,
    parts: Vec<BrokersPart>,
    tailwater_over: Vec<BrokersBeside>,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0 && args.duration_s > 0, "at least one round, and a duration above 0");
    anyhow::ensure!(args.in_flight.iter().all(|records| *records > 0), "at least one record in flight");
    let workspace = args.workspace.create()?;
    let mut line = ProgressLine::default();
    line.show("brokers, ZooKeeper, bookies and nodes start");
    let servers = ThreeServers {
        brokers: Brokers::start(&args.kafka, workspace.path())?,
        nodes: LedgerNodes::start(&args.bookkeeper, &workspace)?,
    };
    let most = args.in_flight.iter().copied().max().unwrap_or(1);
    let mut runs = KafkaRuns { args, workspace: &workspace, servers: &servers, run: 0 };
    for contender in Contender::ALL {
        line.show(&format!("{contender:?} gets warm"));
        runs.one(contender, most, 0, args.servers_warmup_s.max(1))?;
    }
    let mut parts: Vec<BrokersPart> = Vec::new();
    for in_flight in &args.in_flight {
        parts.extend(Contender::ALL.map(|contender| BrokersPart::new(contender, *in_flight)));
    }
    for round in 0..args.rounds {
        for of_one_size in parts.chunks_mut(Contender::ALL.len()) {
            // Each goes first as often as the others.
            of_one_size.rotate_left(usize::from(round > 0));
            for part in of_one_size {
                line.show(&format!(
                    "round {}: {:?}, {} in flight",
                    round + 1,
                    part.contender,
                    part.in_flight
                ));
                part.add(&runs.one(part.contender, part.in_flight, args.warmup_s, args.duration_s)?);
            }
        }
    }
    drop(line);
    report::print(
        args.output,
        &BrokersReport {
            bench: "log kafka",
            partitions: args.partitions,
            record_bytes: args.record_bytes,
            duration_s: args.duration_s,
            warmup_s: args.warmup_s,
            servers_warmup_s: args.servers_warmup_s,
            rounds: args.rounds,
            tailwater_over: beside(&parts),
            parts,
        },
    )
}

fn beside(parts: &[BrokersPart]) -> Vec<BrokersBeside> {
    let own = |in_flight| {
        let is_own =
            |part: &&BrokersPart| part.contender == Contender::Tailwater && part.in_flight == in_flight;
        parts.iter().find(is_own)
    };
    let others = parts.iter().filter(|part| part.contender != Contender::Tailwater);
    let compared = others.filter_map(|other| {
        let own = own(other.in_flight)?;
        let ratio = |own: &[f64], other: &[f64]| round(Series::ratios(own, other).median(), 3);
        Some(BrokersBeside {
            in_flight: other.in_flight,
            beside: other.contender,
            records_per_s: ratio(&own.records_per_s, &other.records_per_s),
            p99_ms: ratio(&own.p99_ms, &other.p99_ms),
        })
    });
    compared.collect()
}

impl BrokersPart {
    fn new(contender: Contender, in_flight: u32) -> Self {
        Self {
            contender,
            in_flight,
            records_per_s: Vec::new(),
            p50_ms: Vec::new(),
            p99_ms: Vec::new(),
            p999_ms: Vec::new(),
            servers_cores: Vec::new(),
            producer_cores: Vec::new(),
            idle_cores: Vec::new(),
            failed: 0,
        }
    }

    fn add(&mut self, ran: &BrokersRun) {
        self.records_per_s.push(number(&ran.said, "/records_per_s"));
        let times = LogTimes::of(&ran.said, "ack_ms");
        self.p50_ms.push(times.p50);
        self.p99_ms.push(times.p99);
        self.p999_ms.push(times.p999);
        let duration_s = number(&ran.said, "/duration_s");
        let cores = |pointer: &str| round(number(&ran.said, pointer) / duration_s, 3);
        self.servers_cores.push(cores("/cpu_s/server"));
        self.producer_cores.push(cores("/cpu_s/clients"));
        self.idle_cores.push(ran.idle_cores);
        self.failed += ran.said.get("failed").and_then(Value::as_u64).unwrap_or_default();
    }
}

/// What a run's producer told, and what others took meanwhile.
struct BrokersRun {
    said: Value,
    idle_cores: f64,
}

struct ThreeServers {
    brokers: Brokers,
    nodes: LedgerNodes,
}

struct KafkaRuns<'a> {
    args: &'a Args,
    workspace: &'a Workspace,
    servers: &'a ThreeServers,
    /// Runs so far.
    run: usize,
}

impl KafkaRuns<'_> {
    /// One run of the producer.
    fn one(
        &mut self,
        contender: Contender,
        in_flight: u32,
        warmup_s: u32,
        duration_s: u32,
    ) -> anyhow::Result<BrokersRun> {
        interrupt::check()?;
        let ThreeServers { brokers, nodes } = self.servers;
        let (own, idle, at) = match contender {
            Contender::Tailwater => (nodes.processes(), brokers.processes(), nodes.at()),
            Contender::Kafka | Contender::KafkaDefault => {
                (brokers.processes(), nodes.processes(), brokers.at())
            }
        };
        let own: Vec<String> = own.iter().map(u32::to_string).collect();
        let mut command = Process::new("java");
        command.args(["-XX:-UsePerfData", "-cp", &brokers.classes(), "KafkaBench", "append"]);
        for (flag, value) in [
            ("--bootstrap", at),
            ("--server-pid", own.join(",")),
            ("--shards", self.args.partitions.to_string()),
            ("--replicas", SERVERS.to_string()),
            ("--topic", contender.topic().to_owned()),
            ("--record-bytes", self.args.record_bytes.to_string()),
            ("--in-flight", in_flight.to_string()),
            ("--warmup-s", warmup_s.to_string()),
            ("--duration-s", duration_s.to_string()),
        ] {
            command.args([flag, &value]);
        }
        self.run += 1;
        let file = |kind: &str| self.workspace.path().join(format!("run-{}.{kind}", self.run));
        let limit = Duration::from_secs(u64::from(warmup_s + duration_s)) + BESIDE;
        let cpu = || -> Duration { idle.iter().filter_map(|process| cpu_of(*process)).sum() };
        let (begun, before) = (std::time::Instant::now(), cpu());
        let ended = run_to_end(command, &file("json"), &file("log"), limit)?;
        let idle_cores = round((cpu() - before).as_secs_f64() / begun.elapsed().as_secs_f64(), 3);
        let (said, _) = result_of(&file("json"), ended).map_err(|why| {
            let log = std::fs::read_to_string(file("log")).unwrap_or_default();
            anyhow::anyhow!("the producer to {contender:?} failed: {why}\n{log}")
        })?;
        Ok(BrokersRun { said, idle_cores })
    }
}

/// Where a broker has its data, and where it and its controller listen.
struct BrokerHome {
    dir: PathBuf,
    clients: SocketAddr,
    controller: SocketAddr,
}

/// Three brokers of one cluster.
struct Brokers {
    script: PathBuf,
    each: Vec<BrokerHome>,
    processes: Vec<u32>,
}

impl Brokers {
    fn start(script: &Path, dir: &Path) -> anyhow::Result<Self> {
        let script =
            script.canonicalize().with_context(|| format!("{}: no such script", script.display()))?;
        let installed = Process::new(script.with_file_name("install")).arg("kafka").status()?;
        anyhow::ensure!(installed.success(), "Kafka can't be installed");
        let place = |number: usize| {
            let dir = dir.join(format!("kafka{number}"));
            Ok(BrokerHome { dir, clients: free_address()?, controller: free_address()? })
        };
        let each = (0..SERVERS).map(place).collect::<anyhow::Result<Vec<_>>>()?;
        let mut brokers = Self { script, each, processes: Vec::new() };
        // None is ready before another one is there, too.
        let starting: Vec<_> = (0..SERVERS).map(|number| brokers.command("start", number).spawn()).collect();
        for started in starting {
            let status = started?.wait()?;
            anyhow::ensure!(status.success(), "{} start: {status}", brokers.script.display());
        }
        for place in &brokers.each {
            let pid =
                std::fs::read_to_string(place.dir.join("pid")).context("a broker without a pid file")?;
            brokers.processes.push(pid.trim().parse()?);
        }
        Ok(brokers)
    }

    fn command(&self, what: &str, number: usize) -> Process {
        let BrokerHome { dir, clients, controller } = &self.each[number];
        let voters = (1..).zip(&self.each).map(|(id, place)| format!("{id}@{}", place.controller));
        let voters: Vec<String> = voters.collect();
        let mut command = Process::new(&self.script);
        command.arg(what).arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("KAFKA_PORT", clients.port().to_string()).env("KAFKA_ID", (number + 1).to_string());
        command.env("KAFKA_CONTROLLER", controller.port().to_string()).env("KAFKA_VOTERS", voters.join(","));
        command
    }

    fn processes(&self) -> Vec<u32> {
        self.processes.clone()
    }

    fn at(&self) -> String {
        let each: Vec<String> = self.each.iter().map(|place| place.clients.to_string()).collect();
        each.join(",")
    }

    /// Where Java finds the producer.
    fn classes(&self) -> String {
        let tools = self.script.with_file_name("../../.tools/kafka");
        format!("{0}/classes:{0}/lib/*", tools.display())
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        for number in 0..self.each.len() {
            // It fails only if it is gone.
            let _ = self.command("stop", number).status();
        }
    }
}

/// Three active nodes on three bookies.
struct LedgerNodes {
    children: Vec<Child>,
    kafka: Vec<SocketAddr>,
    servers: LedgerServers,
}

impl LedgerNodes {
    fn start(script: &Path, workspace: &Workspace) -> anyhow::Result<Self> {
        let servers = LedgerServers::start(script, ServerSize::Large, SERVERS, 0, |_, _| Ok(()))?;
        let mut nodes = Self { children: Vec::new(), kafka: Vec::new(), servers };
        for number in 0..SERVERS {
            nodes.start_node(number, workspace)?;
        }
        Ok(nodes)
    }

    fn start_node(&mut self, number: usize, workspace: &Workspace) -> anyhow::Result<()> {
        let (data, admin, kafka) = (free_address()?, free_address()?, free_address()?);
        let name = format!("node{number}");
        let config = format!(
            "data = {:?}\nsegments = {:?}\nmetadata = \"zookeeper://{}/bench\"\n\
             [cluster]\nactive = \"all\"\nnode = \"{name}\"\n\
             [listen]\ndata = \"{data}\"\nadmin = \"{admin}\"\nwindow = false\n[kafka]\nlisten = \"{kafka}\"\n\
             [log]\ncells = false\n[sqs]\nenabled = false\n[broadcast]\nenabled = false\n",
            workspace.path().join(&name),
            self.servers.uri(),
            self.servers.zookeeper(),
        );
        let path = workspace.path().join(format!("{name}.toml"));
        std::fs::write(&path, config)?;
        let path = path.display().to_string();
        let mut child = Child::start(&name, &["serve", "--config", &path], workspace.path())?;
        let ready = format!("http://{admin}/readyz");
        child.until("is not ready", BESIDE, || {
            agent().get(&ready).call().is_ok_and(|answer| answer.status().is_success())
        })?;
        self.children.push(child);
        self.kafka.push(kafka);
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).chain(self.servers.processes()).collect()
    }

    fn at(&self) -> String {
        let each: Vec<String> = self.kafka.iter().map(SocketAddr::to_string).collect();
        each.join(",")
    }
}
