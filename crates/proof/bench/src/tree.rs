//! `bench tree`: a chain of clusters with long lines between them, and many consumers in the last one (Fast ACS, 1a).
//!
//! ```text
//!   producer --> source --60 ms--> hop-1 --60 ms--> hop-2 --60 ms--> hop-3 <-- consumers, in many processes
//!                  ^                 ^                ^                ^
//!                  `-----------------+--- a probe ----+----------------'
//! ```
//!
//! All clusters are nodes on this machine. What goes from one to another goes through a gateway that delays it. The
//! gateways use the machine's cores, too: what they use is measured before, alone, and the rate is lowered where that
//! is more than a third.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tailwater_load::clock::monotonic_ns;
use tailwater_load::clusters::relay::Gateways;
use tailwater_load::clusters::{ClusterNode, ClusterPlace, TreeStream, start_clusters};
use tailwater_load::experiment::shares;
use tailwater_load::interrupt;
use tailwater_load::limits::{
    CONSUMERS_PER_PROCESS, FINISH_DEADLINE, KEPT_UP_WITHIN, RATE_TOLERANCE, READY_DEADLINE,
};
use tailwater_load::measuring::{RunMeter, RunPhase, until};
use tailwater_load::messages::{
    Consumed, ConsumersConfig, FaultFlags, HopEnd, HopsConfig, HopsSeen, MessageAnswer, MessageOrder,
    ProcessRole, Produced, ProducerConfig, Reads, TransportFlag, Validate,
};
use tailwater_load::payload::HEADER_BYTES;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{Workspace, WorkspaceArgs};
use tailwater_load::workers::Workers;

/// The clusters, the source first.
const NAMES: [&str; 9] = ["source", "hop-1", "hop-2", "hop-3", "hop-4", "hop-5", "hop-6", "hop-7", "hop-8"];
/// The stream.
const STREAM: &str = "bench";
/// Mbit/s, and where the lines alone would take more than a third of the cores.
const RATES_MBIT: [f64; 2] = [240.0, 60.0];
/// The part of the cores that the lines alone may take for the first of these.
const LINES_SHARE_MAX: f64 = 1.0 / 3.0;
/// What the last cluster's p99 may be above the delay of all lines, in ms.
const ABOVE_LINES_MS: f64 = 100.0;
/// What a hop's processing may take, in ms: half of all records, and 99 of 100.
const PROCESSING_MS: [f64; 2] = [5.0, 25.0];
/// How long an answer is waited for before something else is looked at.
const HEAR: Duration = Duration::from_millis(20);
/// Bytes that go over a line at once when it is measured alone.
const PIECE_BYTES: usize = 64 << 10;

/// Flags of `bench tree`.
#[derive(clap::Args)]
pub struct Args {
    /// How many hops.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=8))]
    hops: u64,
    /// Delay of the line of each hop, in each direction, in milliseconds.
    #[arg(long, default_value_t = 60, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=5_000))]
    line_ms: u64,
    /// How many consumers the last cluster has.
    #[arg(long, default_value_t = 1_500)]
    consumers: usize,
    /// How many processes they are spread over, with a reader each. At most 500 are in one.
    #[arg(long, default_value_t = 16)]
    processes: usize,
    /// What is appended, in Mbit/s of messages. By default 240, and 60 where the emulated lines alone would take more
    /// than a third of the cores.
    #[arg(long, value_name = "MBIT")]
    rate_mbit: Option<f64>,
    /// Bytes of each message.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    message_bytes: usize,
    /// Spread the consumers, and their processes, evenly over all clusters, the source too. Otherwise all are in the
    /// last one.
    #[arg(long)]
    everywhere: bool,
    /// Start all consumers when the measured time begins. Otherwise they are there before.
    #[arg(long)]
    at_once: bool,
    /// Shards of the stream.
    #[arg(long, default_value_t = 120)]
    shards: u32,
    /// How many shards each consumer reads.
    #[arg(long, default_value_t = 4, value_name = "SHARDS")]
    shards_per_consumer: u32,
    /// How many shards a probe reads in each cluster, to tell how long each hop takes.
    #[arg(long, default_value_t = 8, value_name = "SHARDS")]
    probe_shards: u32,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Seconds of warm-up, which do not count.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    warmup_s: f64,
    /// Seconds for which the emulated lines are measured alone.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    lines_s: f64,
    /// When the source writes what was appended: at once, or every MS milliseconds.
    #[arg(long, default_value = "immediate", value_name = "immediate|MS")]
    flush: String,
    /// How often the producer sends what is due, in microseconds. By default as often as each shard is given 8 records,
    /// from 5,000 to 30,000.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..))]
    every_us: Option<u64>,
    /// The least time between two polls of a process's consumers, and between two looks of its reader for lengths, in
    /// microseconds.
    #[arg(long, default_value_t = 5_000, value_name = "US")]
    poll_every_us: u64,
    /// Memory of each cluster's data cell, in MiB.
    #[arg(long, default_value_t = 128, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=65_536))]
    cell_mib: u64,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

impl Args {
    fn message_bytes(&self) -> usize {
        self.message_bytes.max(HEADER_BYTES)
    }

    /// With consumers in all clusters that begin at once: Fast ACS, 1(c).
    pub fn spiked(self) -> Self {
        Self { everywhere: true, at_once: true, ..self }
    }

    /// Form of the output.
    pub fn output(&self) -> ReportFormat {
        self.output
    }

    /// The lines of all hops together, in ms.
    fn lines_ms(&self) -> u64 {
        self.hops * self.line_ms
    }

    fn every_us(&self, records_per_s: f64) -> u64 {
        let of_shard = records_per_s / f64::from(self.shards);
        self.every_us.unwrap_or(((8.0 / of_shard * 1e6) as u64).clamp(5_000, 30_000))
    }

    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.consumers > 0 && self.shards > 0, "at least one consumer and one shard");
        anyhow::ensure!(self.rate_mbit.is_none_or(|rate| rate > 0.0), "a rate above 0");
        anyhow::ensure!(
            self.duration_s > 0.0 && self.warmup_s >= 0.0 && self.lines_s > 0.0,
            "--duration-s and --lines-s above 0, and --warmup-s of 0 or more"
        );
        let shards = 1..=self.shards;
        anyhow::ensure!(
            shards.contains(&self.shards_per_consumer) && shards.contains(&self.probe_shards),
            "--shards-per-consumer and --probe-shards: 1 to {} shards",
            self.shards
        );
        let least = self.consumers.div_ceil(CONSUMERS_PER_PROCESS);
        anyhow::ensure!(
            (least..=self.consumers).contains(&self.processes),
            "{} consumers are spread over {least} to {} processes, not {}: see --processes",
            self.consumers,
            self.consumers,
            self.processes
        );
        Ok(())
    }
}

/// What it reports.
#[derive(Serialize)]
struct TreeReport {
    bench: &'static str,
    hops: u64,
    line_ms: u64,
    consumers: usize,
    processes: usize,
    everywhere: bool,
    at_once: bool,
    shards: u32,
    shards_per_consumer: u32,
    message_bytes: usize,
    flush: String,
    every_us: u64,
    poll_every_us: u64,
    duration_s: f64,
    cores: usize,
    rate_mbit: f64,
    /// What the emulated lines take of all cores when 240 Mbit/s, or the rate that was asked for, go over them and
    /// nothing else runs.
    lines_alone_share: f64,
    lines_alone_mbit: f64,
    produced: u64,
    delivered: u64,
    #[serde(flatten)]
    faults: FaultFlags,
    unfinished_consumers: usize,
    delivered_gbit_s: f64,
    /// Of every measured record, for every consumer of the last cluster.
    delay_ms: PercentilesMs,
    delay_p99_max_ms: f64,
    ack_ms: PercentilesMs,
    producer_late_ms: PercentilesMs,
    producer_rate: f64,
    cpu_cores: TreeCpu,
    reads: Reads,
    /// As the probe saw them.
    clusters: Vec<TreeCluster>,
    processing_max_ms: [f64; 2],
    keeps_up: bool,
    /// Whether all bounds hold.
    holds: bool,
    error: Option<String>,
}

/// CPU time in a second.
#[derive(Clone, Copy, Debug, Serialize)]
struct TreeCpu {
    nodes: f64,
    consumers: f64,
    probe: f64,
    producer: f64,
    /// The emulated lines.
    lines: f64,
}

/// A cluster, as the probe saw it.
#[derive(Debug, Serialize)]
struct TreeCluster {
    name: &'static str,
    delay_ms: PercentilesMs,
    /// From when a record came in the cluster before until it came here, less the line; none for the source.
    processing_ms: Option<PercentilesMs>,
    missing: u64,
    error: Option<String>,
}

impl TreeCluster {
    fn of(number: usize, seen: &HopsSeen) -> Self {
        let percentiles = |sparse| {
            let mut durations = Durations::default();
            durations.add_sparse(sparse);
            durations.percentiles_ms()
        };
        Self {
            name: NAMES[number],
            delay_ms: percentiles(&seen.delays),
            processing_ms: (number > 0).then(|| percentiles(&seen.processing)),
            missing: seen.missing,
            error: seen.error.clone(),
        }
    }

    fn holds(&self) -> bool {
        let [p50, p99] = PROCESSING_MS;
        let is_quick = self.processing_ms.is_none_or(|took| took.p50 <= p50 && took.p99 <= p99);
        is_quick && self.missing == 0 && self.error.is_none()
    }
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    interrupt::listen()?;
    let mut line = ProgressLine::default();
    line.show("the emulated lines alone");
    let cores = std::thread::available_parallelism()?.get();
    let asked_mbit = args.rate_mbit.unwrap_or(RATES_MBIT[0]);
    let lines_alone_share = lines_alone(&args, asked_mbit)? / cores as f64;
    let lowered = args.rate_mbit.is_none() && lines_alone_share > LINES_SHARE_MAX;
    let rate_mbit = if lowered { RATES_MBIT[1] } else { asked_mbit };
    let workspace = args.workspace.create()?;
    line.show("the clusters start");
    let mut run = TreeRun::start(&args, rate_mbit, &workspace)?;
    line.show("it runs");
    run.run(&args)?;
    line.show("until all has come");
    let report = run.finish(&args)?;
    drop(line);
    let report = TreeReport {
        cores,
        rate_mbit,
        lines_alone_share: round(lines_alone_share, 3),
        lines_alone_mbit: asked_mbit,
        ..report
    };
    report::print(args.output, &report)?;
    anyhow::ensure!(
        report.faults.total() == 0 && report.error.is_none(),
        "records were not what they should be: see above"
    );
    Ok(())
}

/// Cores that the lines take which carry `rate_mbit` each, while nothing else runs.
fn lines_alone(args: &Args, rate_mbit: f64) -> anyhow::Result<f64> {
    let gateways = Gateways::new()?;
    let bytes_per_s = rate_mbit * 1e6 / 8.0;
    let time = Duration::from_secs_f64(args.lines_s);
    std::thread::scope(|scope| {
        let (mut threads, mut open) = (Vec::new(), Vec::new());
        for _ in 0..args.hops {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let gateway = gateways.open(listener.local_addr()?, Duration::from_millis(args.line_ms))?;
            let address = gateway.address;
            // Its connections end with it.
            open.push(gateway);
            threads.push(scope.spawn(move || send_at(TcpStream::connect(address)?, bytes_per_s, time)));
            threads.push(scope.spawn(move || receive(&listener)));
        }
        let (begin, before) = (Instant::now(), gateways.cpu());
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread of a line panicked"))?
                .context("a line failed")?;
        }
        let used = gateways.cpu().saturating_sub(before);
        Ok(used.as_secs_f64() / begin.elapsed().as_secs_f64())
    })
}

/// Reads what comes over a line, to its end.
fn receive(listener: &TcpListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let mut stream = until("something comes over a line", READY_DEADLINE, || match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    })?;
    stream.set_nonblocking(false)?;
    let mut piece = vec![0; PIECE_BYTES];
    while stream.read(&mut piece)? > 0 {}
    Ok(())
}

/// Sends so many bytes in a second, for so long.
fn send_at(mut stream: TcpStream, bytes_per_s: f64, time: Duration) -> anyhow::Result<()> {
    let (begin, piece) = (Instant::now(), vec![7; PIECE_BYTES]);
    let mut sent = 0.0;
    while begin.elapsed() < time {
        let due = begin.elapsed().as_secs_f64() * bytes_per_s;
        while sent < due {
            stream.write_all(&piece)?;
            sent += piece.len() as f64;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

struct TreeRun {
    /// Before what uses them ends.
    nodes: Vec<ClusterNode>,
    gateways: Gateways,
    /// Those with consumers; then the probe, and the producer.
    workers: Workers<MessageAnswer>,
    consumers: usize,
    producer: ProducerConfig,
    started: usize,
    measuring: usize,
    produced: Option<Produced>,
    consumed: Vec<Consumed>,
    seen: Option<Vec<HopsSeen>>,
    cpu: [f64; 5],
}

impl TreeRun {
    fn start(args: &Args, rate_mbit: f64, workspace: &Workspace) -> anyhow::Result<Self> {
        let gateways = Gateways::new()?;
        let place = |number: usize| ClusterPlace {
            name: NAMES[number],
            continent: "",
            above: number.checked_sub(1).map(|above| NAMES[above]),
            delay_ms: args.line_ms,
        };
        let places: Vec<_> = (0..=args.hops as usize).map(place).collect();
        let cells_bytes = args.cell_mib << 20;
        let stream = TreeStream { name: STREAM, shards: args.shards, flush: &args.flush, cells_bytes };
        let nodes = start_clusters(&places, &stream, workspace.path(), &gateways)?;
        let (first, last) = nodes.first().zip(nodes.last()).context("there are clusters")?;
        let records_per_s = rate_mbit * 1e6 / 8.0 / args.message_bytes() as f64;
        let mut workers = Workers::default();
        let worker = ["load", "worker"];
        let half_second = (rate_mbit * 1e6 / 16.0) as usize / args.shards as usize;
        let shares = shares(args.consumers, args.processes, false);
        let consumers = shares.len();
        for (number, share) in shares.into_iter().enumerate() {
            let node = if args.everywhere { &nodes[number % nodes.len()] } else { last };
            let config = ConsumersConfig {
                node: node.address().into(),
                stream: STREAM.to_owned(),
                first: share.start,
                count: share.len(),
                of: args.consumers,
                together: true,
                shards_per_consumer: args.shards_per_consumer,
                validate: Validate::Process,
                lengths_every_us: Some(args.poll_every_us),
                poll_every_us: args.poll_every_us,
                window_bytes: half_second.clamp(128 << 10, 64 << 20),
                from_beginning: !args.at_once,
                tick_ms: 500,
                ..ConsumersConfig::new(args.shards, TransportFlag::Shm)
            };
            let role = ProcessRole::Consumers(config);
            workers.start(&format!("consumers-{number}"), &worker, workspace.path(), &role)?;
        }
        let end = |(number, node): (usize, &ClusterNode)| HopEnd {
            node: node.address(),
            line_ms: if number == 0 { 0 } else { args.line_ms },
        };
        let probe = HopsConfig {
            clusters: nodes.iter().enumerate().map(end).collect(),
            stream: STREAM.to_owned(),
            // Spread over all of them.
            shards: (0..args.probe_shards).map(|number| number * args.shards / args.probe_shards).collect(),
        };
        workers.start("probe", &worker, workspace.path(), &ProcessRole::Hops(probe))?;
        let duration = Duration::from_secs_f64(args.duration_s);
        let producer = ProducerConfig {
            node: first.address().into(),
            stream: STREAM.to_owned(),
            every_us: args.every_us(records_per_s),
            tick_ms: 500,
            ..ProducerConfig::new(args.shards, records_per_s, args.message_bytes(), duration)
        };
        workers.start("producer", &worker, workspace.path(), &ProcessRole::Producer(producer.clone()))?;
        let is_ready = |answer| matches!(answer, MessageAnswer::Ready).then_some(());
        workers.gather(READY_DEADLINE, || Ok(()), is_ready)?;
        Ok(Self {
            nodes,
            gateways,
            workers,
            consumers,
            producer,
            started: 0,
            measuring: 0,
            produced: None,
            consumed: Vec::new(),
            seen: None,
            cpu: [0.0; 5],
        })
    }

    /// Takes in the next answer; whether one came in time.
    fn hear(&mut self, limit: Duration) -> anyhow::Result<bool> {
        let Some((_, answer)) = self.workers.hear(limit)? else { return Ok(false) };
        match answer {
            MessageAnswer::Ready | MessageAnswer::Reading(_) | MessageAnswer::Appending(_) => {}
            MessageAnswer::Started { .. } => self.started += 1,
            MessageAnswer::Measures => self.measuring += 1,
            MessageAnswer::Produced(produced) => self.produced = Some(produced),
            MessageAnswer::Consumed(consumed) => self.consumed.push(consumed),
            MessageAnswer::Hops(seen) => self.seen = Some(seen),
        }
        Ok(true)
    }

    fn wait_for(&mut self, what: &str, limit: Duration, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        until(what, limit, || {
            while self.hear(Duration::ZERO)? {}
            self.nodes.iter_mut().try_for_each(ClusterNode::check)?;
            Ok(done(self).then_some(()))
        })
    }

    /// CPU seconds of the nodes, the consumers, the probe, the producer and the lines.
    fn counters(&self) -> [f64; 5] {
        let children = self.workers.children();
        let (consumers, others) = children.split_at(self.consumers);
        let cpu = |of: &[tailwater_load::child::Child]| of.iter().map(|child| child.cpu()).sum::<Duration>();
        let nodes = self.nodes.iter().map(ClusterNode::cpu).sum();
        let (probe, producer) = others.split_at(1);
        [nodes, cpu(consumers), cpu(probe), cpu(producer), self.gateways.cpu()].map(|cpu| cpu.as_secs_f64())
    }

    fn run(&mut self, args: &Args) -> anyhow::Result<()> {
        let readers = self.consumers + 1;
        let mut told = if args.at_once { self.consumers } else { 0 };
        for number in told..readers {
            self.workers.tell_one(number, &MessageOrder::Start)?;
        }
        let before = readers - told;
        self.wait_for("each process starts its consumers", READY_DEADLINE, |run| run.started == before)?;
        let [warmup, duration] = [args.warmup_s, args.duration_s].map(Duration::from_secs_f64);
        let mut meter = RunMeter::start(warmup, duration);
        let order = MessageOrder::Measure { from_ns: meter.times().from_ns };
        self.workers.tell_first(readers, &order)?;
        self.wait_for("each process measures", READY_DEADLINE, |run| run.measuring == readers)?;
        self.workers.tell_behind(readers, &order)?;
        while self.produced.is_none() {
            if meter.look(monotonic_ns(), || self.counters()) != RunPhase::WarmUp && told > 0 {
                self.workers.tell_first(told, &MessageOrder::Start)?;
                told = 0;
            }
            interrupt::check()?;
            self.nodes.iter_mut().try_for_each(ClusterNode::check)?;
            self.hear(HEAR)?;
        }
        let metered = meter.end(self.counters())?;
        self.cpu = metered.per_s(3);
        Ok(())
    }

    /// Waits until every consumer has everything.
    fn finish(mut self, args: &Args) -> anyhow::Result<TreeReport> {
        let produced = self.produced.take().unwrap_or_default();
        let readers = self.consumers + 1;
        self.workers.tell_first(readers, &MessageOrder::Finish { produced: produced.shards.clone() })?;
        let limit = FINISH_DEADLINE + Duration::from_secs(20);
        self.wait_for("each process with consumers ends", limit, |run| {
            run.consumed.len() == run.consumers && run.seen.is_some()
        })?;
        let (consumed, delays) = Consumed::of_all(self.consumed.drain(..));
        let seen = self.seen.take().unwrap_or_default();
        let clusters: Vec<_> =
            seen.iter().enumerate().map(|(number, seen)| TreeCluster::of(number, seen)).collect();
        let percentiles = |sparse| {
            let mut durations = Durations::default();
            durations.add_sparse(sparse);
            durations.percentiles_ms()
        };
        let producer_rate = produced.measured as f64 / produced.measured_s / self.producer.rate;
        let ended_after_ns = consumed.finished_ns.map(|ns| ns.saturating_sub(produced.last_sent_ns));
        let ends = KEPT_UP_WITHIN + Duration::from_millis(args.lines_ms());
        let is_whole = ended_after_ns.is_some_and(|ns| u128::from(ns) <= ends.as_nanos());
        let delay_ms = delays.percentiles_ms();
        let delay_p99_max_ms = args.lines_ms() as f64 + ABOVE_LINES_MS;
        let keeps_up =
            is_whole && (1.0 - producer_rate).abs() <= RATE_TOLERANCE && consumed.faults.total() == 0;
        let holds = keeps_up && delay_ms.p99 <= delay_p99_max_ms && clusters.iter().all(TreeCluster::holds);
        let [nodes, of_consumers, probe, producer, lines] = self.cpu;
        Ok(TreeReport {
            bench: "tree",
            hops: args.hops,
            line_ms: args.line_ms,
            consumers: args.consumers,
            processes: self.consumers,
            everywhere: args.everywhere,
            at_once: args.at_once,
            shards: args.shards,
            shards_per_consumer: args.shards_per_consumer,
            message_bytes: args.message_bytes(),
            flush: args.flush.clone(),
            every_us: self.producer.every_us,
            poll_every_us: args.poll_every_us,
            duration_s: args.duration_s,
            cores: 0,
            rate_mbit: 0.0,
            lines_alone_share: 0.0,
            lines_alone_mbit: 0.0,
            produced: produced.measured,
            delivered: consumed.measured,
            faults: consumed.faults,
            unfinished_consumers: consumed.unfinished,
            delivered_gbit_s: round(consumed.measured_bytes as f64 * 8.0 / 1e9 / produced.measured_s, 3),
            delay_ms,
            delay_p99_max_ms,
            ack_ms: percentiles(&produced.acks),
            producer_late_ms: percentiles(&produced.late),
            producer_rate: round(producer_rate, 4),
            cpu_cores: TreeCpu { nodes, consumers: of_consumers, probe, producer, lines },
            reads: consumed.reads,
            processing_max_ms: PROCESSING_MS,
            clusters,
            keeps_up,
            holds,
            error: consumed.error.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(processing_ms: &[u64], missing: u64) -> HopsSeen {
        let mut processing = Durations::default();
        processing_ms.iter().for_each(|ms| processing.record(ms * 1_000_000));
        HopsSeen { processing: processing.to_sparse(), missing, ..HopsSeen::default() }
    }

    #[test]
    fn a_hop_holds_its_bounds_by_the_half_and_by_99_of_100_of_its_records_and_with_all_of_them() {
        let quick: Vec<u64> = (0..100).map(|at| if at < 98 { 4 } else { 24 }).collect();
        assert!(TreeCluster::of(1, &seen(&quick, 0)).holds());
        assert!(!TreeCluster::of(1, &seen(&quick, 1)).holds(), "a record is missing");
        assert!(!TreeCluster::of(1, &seen(&[6; 100], 0)).holds());
        let slow: Vec<u64> = (0..100).map(|at| if at < 98 { 4 } else { 27 }).collect();
        assert!(!TreeCluster::of(1, &seen(&slow, 0)).holds());
        assert!(TreeCluster::of(0, &seen(&slow, 0)).holds(), "no hop ends at the source");
    }

    #[test]
    fn lines_that_carry_something_take_time_of_the_cores() {
        use clap::Parser;
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let args = Command::parse_from(["tree", "--hops", "2", "--line-ms", "1", "--lines-s", "0.2"]).args;
        args.check().expect("flags that make sense");
        assert!(lines_alone(&args, 80.0).expect("lines") > 0.0);
    }
}
