//! `tailwater demo-clusters`: a stream copied over three continents on this machine, watched.
//!
//! ```text
//!   us-east --30 ms--> us-west --55 ms--> asia
//!           --30 ms--> eu-west --20 ms--> eu-north
//! ```
//!
//! Five nodes, each a cluster with a directory of its own, reached by others through a gateway that delays. A producer
//! appends at us-east, and consumers in every cluster read what their own node has, one-sidedly, and check it. On the
//! way the line between us-west and asia is cut, and eu-west is killed, so that eu-north is cut off, too. At the end
//! every consumer has to have everything, once and in order.

pub mod node;
pub mod relay;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::json;

pub use self::node::{ClusterNode, ClusterPlace};
use self::relay::Gateways;
use crate::clock::monotonic_ns;
use crate::demo::verdict;
use crate::interrupt;
use crate::limits::{FINISH_DEADLINE, READY_DEADLINE};
use crate::measuring::until;
use crate::messages::{
    Appending, Consumed, ConsumersConfig, FaultFlags, MessageAnswer, MessageOrder, ProcessRole, Produced,
    ProducerConfig, ReadingFlags, TransportFlag,
};
use crate::report::{self, ReportFormat};
use crate::stats::{Durations, PercentilesMs};
use crate::system::{Workspace, WorkspaceArgs};
use crate::workers::Workers;

/// The clusters, the source first.
const PLACES: [ClusterPlace; 5] = [
    ClusterPlace { name: "us-east", continent: "America", above: None, delay_ms: 30 },
    ClusterPlace { name: "us-west", continent: "America", above: Some("us-east"), delay_ms: 55 },
    ClusterPlace { name: "eu-west", continent: "Europe", above: Some("us-east"), delay_ms: 20 },
    ClusterPlace { name: "eu-north", continent: "Europe", above: Some("eu-west"), delay_ms: 20 },
    ClusterPlace { name: "asia", continent: "Asia", above: Some("us-west"), delay_ms: 55 },
];
/// The cluster whose gateway is cut: no other one reaches it.
const CUT: usize = 1;
/// The cluster that is killed.
const KILLED: usize = 2;
/// The stream.
const STREAM: &str = "demo";
/// Memory of a node's data cell, in bytes.
const CELL_BYTES: u64 = 64 << 20;
/// Time before anything counts.
const WARMUP: Duration = Duration::from_secs(2);
/// How long an answer is waited for before something else is looked at.
const HEAR: Duration = Duration::from_millis(20);
/// How long a node that was killed, or cut off, may take until it has what it missed.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(120);

/// Flags of `demo-clusters`.
#[derive(clap::Args)]
pub struct Args {
    /// How many consumers each cluster has. Each reads everything.
    #[arg(long, default_value_t = 500)]
    consumers: usize,
    /// Shards of the stream.
    #[arg(long, default_value_t = 4)]
    shards: u32,
    /// Lines that are appended in a second.
    #[arg(long, default_value_t = 500.0, value_name = "LINES")]
    rate: f64,
    /// How long to append, in seconds. A fifth of that a line is cut, and a fifth a cluster is dead.
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the summary.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// The summary, as JSON.
#[derive(Serialize)]
struct ClustersSummary {
    demo: &'static str,
    consumers: usize,
    shards: u32,
    appended: u64,
    delivered: u64,
    clusters: Vec<ClusterSummary>,
    #[serde(flatten)]
    faults: FaultFlags,
    verdict: String,
}

/// What one cluster's consumers say.
#[derive(Serialize)]
struct ClusterSummary {
    name: &'static str,
    continent: &'static str,
    copied_from: Option<&'static str>,
    delivered: u64,
    /// Delays until the line was cut.
    before_ms: PercentilesMs,
    /// All delays, those of what waited for the line or for the cluster, too.
    all_ms: PercentilesMs,
    #[serde(flatten)]
    faults: FaultFlags,
    unfinished: usize,
    error: Option<String>,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoEvent {
    Cut,
    Mend,
    Kill,
    Restart,
}

impl DemoEvent {
    /// All of them, and when: in fifths of the time of appending.
    const ALL: [(u32, Self); 4] = [(1, Self::Cut), (2, Self::Mend), (3, Self::Kill), (4, Self::Restart)];

    fn in_words(self) -> String {
        let (cut, killed) = (PLACES[CUT].name, PLACES[KILLED].name);
        match self {
            Self::Cut => format!("the line to {cut} is cut: asia, which copies from there, waits"),
            Self::Mend => format!("the line to {cut} is mended"),
            Self::Kill => format!("{killed} is killed: eu-north, which copies from there, waits"),
            Self::Restart => format!("{killed} is started again"),
        }
    }
}

/// Runs it.
///
/// # Errors
/// A part can't be started or fails; a consumer has not everything at the end, once and in order.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.consumers > 0 && args.shards > 0, "at least one consumer and one shard");
    anyhow::ensure!(args.rate > 0.0 && args.seconds > 0.0, "a rate and a time above 0");
    interrupt::listen()?;
    let say = |words: &str| {
        if args.output == ReportFormat::Table {
            println!("{words}");
        }
    };
    let workspace = args.workspace.create()?;
    say(&format!("five clusters on three continents, in {}", workspace.path().display()));
    let gateways = Gateways::new()?;
    let cells_bytes = CELL_BYTES;
    let stream = TreeStream { name: STREAM, shards: args.shards, flush: "immediate", cells_bytes };
    let nodes = start_clusters(&PLACES, &stream, workspace.path(), &gateways)?;
    for place in &PLACES {
        let way = match place.above {
            Some(above) => format!("copies from {above}"),
            None => "the source".to_owned(),
        };
        say(&format!("  {:8} {:8} {way}", place.name, place.continent));
    }
    say(&format!("{} consumers in each cluster read all {} shards", args.consumers, args.shards));
    let mut demo = ClustersDemo::start(&args, nodes, &workspace)?;
    demo.run()?;
    let summary = demo.finish()?;
    match args.output {
        ReportFormat::Json => report::print(ReportFormat::Json, &summary)?,
        ReportFormat::Table => print_summary(&summary)?,
    }
    let is_whole = summary.clusters.iter().all(|of| of.unfinished == 0 && of.error.is_none());
    anyhow::ensure!(summary.faults.total() == 0 && is_whole && summary.delivered > 0, "{}", summary.verdict);
    Ok(())
}

/// A stream that is copied along a tree of clusters.
#[derive(Clone, Copy, Debug)]
pub struct TreeStream<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its shards.
    pub shards: u32,
    /// When it is written: `immediate`, or a number of milliseconds.
    pub flush: &'a str,
    /// Memory of each cluster's data cell, in bytes.
    pub cells_bytes: u64,
}

/// Starts the nodes of clusters below `dir`, the source first, and places the stream. Ends when each of them has it.
///
/// # Errors
/// A node can't be started or is not ready in time, or refuses the stream.
pub fn start_clusters(
    places: &[ClusterPlace],
    stream: &TreeStream<'_>,
    dir: &Path,
    gateways: &Gateways,
) -> anyhow::Result<Vec<ClusterNode>> {
    let start = |place: &ClusterPlace| ClusterNode::start(*place, stream.cells_bytes, dir, gateways);
    let mut nodes: Vec<ClusterNode> = places.iter().map(start).collect::<anyhow::Result<_>>()?;
    nodes.iter_mut().try_for_each(ClusterNode::wait_until_ready)?;
    let (source, others) = nodes.split_first().context("there are clusters")?;
    let TreeStream { name, shards, flush, .. } = *stream;
    source.ask("POST", "/v1/streams", &json!({ "name": name, "shards": shards, "flush": flush }))?;
    others.iter().try_for_each(|other| source.add(other))?;
    let hops: Vec<_> = places.iter().filter_map(|place| Some([place.above?, place.name])).collect();
    let to: Vec<_> = others.iter().map(|other| other.place.name).collect();
    let plan = json!({ "source": source.place.name, "to": to, "hops": hops });
    source.ask("PUT", &format!("/v1/streams/{name}/tree"), &plan)?;
    until("each cluster has the stream", READY_DEADLINE, || {
        Ok(others.iter().all(|other| other.has(name)).then_some(()))
    })?;
    Ok(nodes)
}

struct ClustersDemo<'a> {
    args: &'a Args,
    nodes: Vec<ClusterNode>,
    /// The consumers of each cluster, in the clusters' order; the producer is behind them.
    workers: Workers<MessageAnswer>,
    appending: Appending,
    reading: Vec<ReadingFlags>,
    /// Delays until the first event, by cluster.
    before: Vec<Durations>,
    /// All delays that count, by cluster.
    all: Vec<Durations>,
    /// Since the last row, by cluster.
    fresh: Vec<Durations>,
    started: usize,
    measuring: usize,
    has_events: bool,
    produced: Option<Produced>,
    consumed: Vec<Option<Consumed>>,
}

impl<'a> ClustersDemo<'a> {
    fn start(args: &'a Args, nodes: Vec<ClusterNode>, workspace: &Workspace) -> anyhow::Result<Self> {
        let mut workers = Workers::default();
        let worker = ["load", "worker"];
        let of = nodes.len() * args.consumers;
        for (number, node) in nodes.iter().enumerate() {
            let config = ConsumersConfig {
                node: node.address().into(),
                stream: STREAM.to_owned(),
                first: number * args.consumers,
                count: args.consumers,
                of,
                tick_ms: 250,
                ..ConsumersConfig::new(args.shards, TransportFlag::Shm)
            };
            let name = format!("consumers-{}", node.place.name);
            workers.start(&name, &worker, workspace.path(), &ProcessRole::Consumers(config))?;
        }
        let source = nodes.first().context("there are clusters")?;
        let config = ProducerConfig {
            node: source.address().into(),
            stream: STREAM.to_owned(),
            text: Some(String::new()),
            tick_ms: 250,
            ..ProducerConfig::new(args.shards, args.rate, 0, Duration::from_secs_f64(args.seconds))
        };
        workers.start("producer", &worker, workspace.path(), &ProcessRole::Producer(config))?;
        let is_ready = |answer| matches!(answer, MessageAnswer::Ready).then_some(());
        workers.gather(READY_DEADLINE, || Ok(()), is_ready)?;
        let count = nodes.len();
        Ok(Self {
            args,
            nodes,
            workers,
            appending: Appending::default(),
            reading: vec![ReadingFlags::default(); count],
            before: vec![Durations::default(); count],
            all: vec![Durations::default(); count],
            fresh: vec![Durations::default(); count],
            started: 0,
            measuring: 0,
            has_events: false,
            produced: None,
            consumed: (0..count).map(|_| None).collect(),
        })
    }

    fn is_quiet(&self) -> bool {
        self.args.output == ReportFormat::Json
    }

    /// Takes in the next answer; whether one came in time.
    fn hear(&mut self, limit: Duration) -> anyhow::Result<bool> {
        let Some((number, answer)) = self.workers.hear(limit)? else { return Ok(false) };
        match answer {
            MessageAnswer::Ready => {}
            MessageAnswer::Started { .. } => self.started += 1,
            MessageAnswer::Measures => self.measuring += 1,
            MessageAnswer::Reading(reading) => {
                if !self.has_events {
                    self.before[number].add_sparse(&reading.delays);
                }
                self.all[number].add_sparse(&reading.delays);
                self.fresh[number].add_sparse(&reading.delays);
                self.reading[number] = reading;
            }
            MessageAnswer::Appending(appending) => self.appending = appending,
            MessageAnswer::Produced(produced) => self.produced = Some(produced),
            MessageAnswer::Consumed(consumed) => self.consumed[number] = Some(consumed),
            MessageAnswer::Hops(_) => {}
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

    /// Lets the producer append, with what happens on the way.
    fn run(&mut self) -> anyhow::Result<()> {
        let clusters = self.nodes.len();
        self.workers.tell_first(clusters, &MessageOrder::Start)?;
        self.wait_for("each process starts its consumers", READY_DEADLINE, |demo| demo.started == clusters)?;
        let begin_ns = monotonic_ns();
        let order = MessageOrder::Measure { from_ns: begin_ns + WARMUP.as_nanos() as u64 };
        self.workers.tell_first(clusters, &order)?;
        self.wait_for("each process measures", READY_DEADLINE, |demo| demo.measuring == clusters)?;
        self.workers.tell_behind(clusters, &order)?;
        let fifth = Duration::from_secs_f64(self.args.seconds / 5.0);
        let mut events = DemoEvent::ALL.into_iter().peekable();
        let row_every = Duration::from_secs_f64((self.args.seconds / 20.0).max(1.0));
        let mut row_at = WARMUP;
        self.head()?;
        while self.produced.is_none() || events.peek().is_some() {
            let elapsed = Duration::from_nanos(monotonic_ns() - begin_ns);
            interrupt::check()?;
            if let Some((_, event)) = events.next_if(|(at, _)| elapsed >= WARMUP + fifth * *at) {
                self.has_events = true;
                if !self.is_quiet() {
                    println!("  --  {}", event.in_words());
                }
                self.carry_out(event)?;
            }
            let is_killed = events.peek().is_some_and(|(_, next)| *next == DemoEvent::Restart);
            for (number, node) in self.nodes.iter_mut().enumerate() {
                if number != KILLED || !is_killed {
                    node.check()?;
                }
            }
            if elapsed >= row_at {
                row_at = elapsed + row_every;
                self.row(elapsed)?;
            }
            if elapsed < WARMUP {
                // What comes before is the beginning's.
                let delays = self.before.iter_mut().chain(&mut self.all).chain(&mut self.fresh);
                delays.for_each(Durations::clear);
            }
            self.hear(HEAR)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, event: DemoEvent) -> anyhow::Result<()> {
        match event {
            DemoEvent::Cut | DemoEvent::Mend => self.nodes[CUT].gateway.cut(event == DemoEvent::Cut),
            DemoEvent::Kill => self.nodes[KILLED].kill()?,
            DemoEvent::Restart => self.nodes[KILLED].restart()?,
        }
        Ok(())
    }

    /// Waits until every consumer has everything.
    fn finish(mut self) -> anyhow::Result<ClustersSummary> {
        let produced = self.produced.take().unwrap_or_default();
        let wanted: u64 = produced.shards.iter().map(|shard| shard.records).sum();
        let each = wanted * self.args.consumers as u64;
        if !self.is_quiet() {
            println!("  --  the last line is appended: until every consumer has everything");
        }
        // Consumers that are told the end wait for a while only, and a cluster may have been away until now.
        self.wait_for("each cluster has everything", CATCH_UP_DEADLINE, |demo| {
            demo.reading.iter().all(|reading| reading.delivered >= each)
        })?;
        let clusters = self.nodes.len();
        self.workers.tell_first(clusters, &MessageOrder::Finish { produced: produced.shards })?;
        let limit = FINISH_DEADLINE + Duration::from_secs(20);
        self.wait_for("each process with consumers ends", limit, |demo| {
            demo.consumed.iter().all(Option::is_some)
        })?;
        let mut faults = FaultFlags::default();
        let mut of_clusters = Vec::with_capacity(clusters);
        for (number, consumed) in self.consumed.into_iter().enumerate() {
            let (place, consumed) = (PLACES[number], consumed.unwrap_or_default());
            faults.add(consumed.faults);
            of_clusters.push(ClusterSummary {
                name: place.name,
                continent: place.continent,
                copied_from: place.above,
                delivered: consumed.delivered,
                before_ms: self.before[number].percentiles_ms(),
                all_ms: self.all[number].percentiles_ms(),
                faults: consumed.faults,
                unfinished: consumed.unfinished,
                error: consumed.error,
            });
        }
        let mut verdict = verdict(faults);
        if let Some(error) = of_clusters.iter().find_map(|of| of.error.as_deref()) {
            verdict += &format!("; a consumer failed: {error}");
        }
        Ok(ClustersSummary {
            demo: "clusters",
            consumers: self.args.consumers,
            shards: self.args.shards,
            appended: wanted,
            delivered: of_clusters.iter().map(|of| of.delivered).sum(),
            clusters: of_clusters,
            faults,
            verdict,
        })
    }

    fn head(&self) -> anyhow::Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{:17}  99th percentile of the delays since the last row, in ms", "")?;
        write!(out, "{:>6} {:>10}", "time", "appended")?;
        PLACES.iter().try_for_each(|place| write!(out, "  {:>10}", place.name))?;
        writeln!(out)?;
        Ok(())
    }

    fn row(&mut self, elapsed: Duration) -> anyhow::Result<()> {
        let fresh: Vec<_> = self.fresh.iter().map(Durations::percentiles_ms).collect();
        let is_silent: Vec<_> = self.fresh.iter().map(|fresh| fresh.count() == 0).collect();
        self.fresh.iter_mut().for_each(Durations::clear);
        if self.is_quiet() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        write!(out, "{:>5.0}s {:>10}", elapsed.as_secs_f64(), self.appending.acked)?;
        for (of, is_silent) in fresh.iter().zip(is_silent) {
            match is_silent {
                true => write!(out, "  {:>10}", "-")?,
                false => write!(out, "  {:>10.1}", of.p99)?,
            }
        }
        writeln!(out)?;
        out.flush()?;
        Ok(())
    }
}

fn print_summary(summary: &ClustersSummary) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{:9} {:9} {:>10}  {:^21}  {:^32}", "", "", "", "before the cut, ms", "all, ms")?;
    writeln!(
        out,
        "{:9} {:9} {:>10}  {:>10} {:>10}  {:>10} {:>10} {:>10}",
        "cluster", "copies", "delivered", "p50", "p99", "p50", "p99", "max"
    )?;
    for of in &summary.clusters {
        writeln!(
            out,
            "{:9} {:9} {:>10}  {:>10.1} {:>10.1}  {:>10.1} {:>10.1} {:>10.1}",
            of.name,
            of.copied_from.unwrap_or("-"),
            of.delivered,
            of.before_ms.p50,
            of.before_ms.p99,
            of.all_ms.p50,
            of.all_ms.p99,
            of.all_ms.max,
        )?;
    }
    writeln!(out, "\nappended   {} lines", summary.appended)?;
    writeln!(out, "delivered  {} to {} consumers in each cluster", summary.delivered, summary.consumers)?;
    writeln!(out, "verdict    {}", summary.verdict)?;
    Ok(())
}
