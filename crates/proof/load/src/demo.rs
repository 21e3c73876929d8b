//! `tailwater demo`: the main job on this machine, watched.
//!
//! One node; a data cell and a metadata cell of three backend processes each; a producer that appends lines of real
//! text; a thousand consumers in several processes that read them one-sidedly and check each record's sequence number
//! and checksum, and at the end the sum of all checksums against the producer's.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::experiment::{self, ExperimentPlan, LiveExperiment, Outcome};
use crate::interrupt;
use crate::messages::{ConsumersConfig, FaultFlags, ProducerConfig, Reads, TransportFlag};
use crate::report::{self, ReportFormat};
use crate::stats::{Durations, PercentilesMs, round};
use crate::system::{System, SystemArgs, WorkspaceArgs};
use crate::text::Text;

/// Flags of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Append the lines of this file, again and again. By default the lines are of text that this machine has.
    #[arg(long, env = "INPUT", value_name = "FILE")]
    input: Option<String>,
    /// How many consumers there are. Each reads everything.
    #[arg(long, default_value_t = 1_000)]
    consumers: usize,
    /// Processes over which the consumers are spread.
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Shards of the stream.
    #[arg(long, default_value_t = 4)]
    shards: u32,
    /// Lines that are appended in a second.
    #[arg(long, default_value_t = 5_000.0, value_name = "LINES")]
    rate: f64,
    /// How long to append, in seconds.
    #[arg(long, default_value_t = 25.0)]
    seconds: f64,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the summary.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// The summary, as JSON.
#[derive(Serialize)]
struct Summary {
    demo: &'static str,
    consumers: usize,
    processes: usize,
    shards: u32,
    appended: u64,
    delivered: u64,
    delivered_per_s: f64,
    delay_ms: PercentilesMs,
    ack_ms: PercentilesMs,
    reads: Reads,
    #[serde(flatten)]
    faults: FaultFlags,
    error: Option<String>,
    verdict: String,
}

/// Time before the delays of the summary are counted.
const WARMUP: Duration = Duration::from_secs(1);

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.consumers > 0 && args.shards > 0, "at least one consumer and one shard");
    anyhow::ensure!(args.rate > 0.0 && args.seconds > 0.0, "a rate and a time above 0");
    interrupt::listen()?;
    // An empty variable is none.
    let input = args.input.as_deref().filter(|input| !input.is_empty()).map(PathBuf::from);
    let input =
        input.map(|file| file.canonicalize().with_context(|| format!("{} can't be read", file.display())));
    let input = input.transpose()?;
    let (bytes, files) = Text::open(input.as_deref())?.size();
    let quiet = args.output == ReportFormat::Json;
    if !quiet {
        match &input {
            Some(file) => println!("text: {} ({:.1} MB)", file.display(), bytes as f64 / 1e6),
            None => println!("text: {files} files of this machine ({:.1} MB)", bytes as f64 / 1e6),
        }
    }
    let mut system = System::start(&SystemArgs::usual(args.workspace.clone()))?;
    if !quiet {
        println!(
            "one node, data cell and metadata cell of three backend processes each, in {}",
            system.dir().display()
        );
        println!(
            "starting {} consumers in {} processes; each reads all {} shards",
            args.consumers,
            args.processes.clamp(1, args.consumers),
            args.shards
        );
    }
    let plan = plan(&args, input)?;
    let mut table = DemoTable::new(quiet);
    let outcome = experiment::run(&mut system, &plan, |live, _| table.look(live))?;
    table.end();
    let summary = summary(&args, &outcome);
    match args.output {
        ReportFormat::Json => report::print(ReportFormat::Json, &summary)?,
        ReportFormat::Table => print_summary(&summary, &outcome)?,
    }
    anyhow::ensure!(is_right(&outcome), "{}", summary.verdict);
    Ok(())
}

fn plan(args: &Args, input: Option<PathBuf>) -> anyhow::Result<ExperimentPlan> {
    let text = input.map(|file| file.into_os_string().into_string());
    let text = text.transpose().map_err(|name| anyhow::anyhow!("{name:?} is no name in UTF-8"))?;
    let duration = Duration::from_secs_f64(args.seconds);
    let tick_ms = 250;
    let reading = ConsumersConfig { tick_ms, ..ConsumersConfig::new(args.shards, TransportFlag::Shm) };
    let appending = ProducerConfig {
        text: Some(text.unwrap_or_default()),
        tick_ms,
        ..ProducerConfig::new(args.shards, args.rate, 0, duration)
    };
    let plan = ExperimentPlan::new(args.consumers, reading, Some(appending), [WARMUP, duration]);
    Ok(ExperimentPlan { processes: args.processes.clamp(plan.processes, args.consumers.max(1)), ..plan })
}

fn is_right(outcome: &Outcome) -> bool {
    let consumed = &outcome.consumed;
    consumed.faults.total() == 0
        && consumed.error.is_none()
        && consumed.unfinished == 0
        && consumed.delivered > 0
}

pub(crate) fn verdict(faults: FaultFlags) -> String {
    format!(
        "{} lost, {} reordered, {} corrupted",
        faults.lost,
        faults.reordered + faults.duplicated,
        faults.corrupted
    )
}

fn summary(args: &Args, outcome: &Outcome) -> Summary {
    let Outcome { produced, consumed, .. } = outcome;
    let mut verdict = verdict(consumed.faults);
    if let Some(error) = &consumed.error {
        verdict += &format!("; a consumer failed: {error}");
    } else if consumed.delivered == 0 {
        verdict += "; but nothing was delivered";
    }
    Summary {
        demo: "demo",
        consumers: args.consumers,
        processes: outcome.processes,
        shards: args.shards,
        appended: produced.shards.iter().map(|shard| shard.records).sum(),
        delivered: consumed.delivered,
        delivered_per_s: round(consumed.measured as f64 / produced.measured_s, 0),
        delay_ms: outcome.delays.percentiles_ms(),
        ack_ms: outcome.ack_ms(),
        reads: consumed.reads,
        faults: consumed.faults,
        error: consumed.error.clone(),
        verdict,
    }
}

fn print_summary(summary: &Summary, outcome: &Outcome) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let percentiles = |of: PercentilesMs| {
        format!("p50 {:.2} ms, p99 {:.2} ms, 99.9 % {:.2} ms, max {:.2} ms", of.p50, of.p99, of.p999, of.max)
    };
    let cores = |seconds: f64| seconds / outcome.wall_s;
    writeln!(out)?;
    writeln!(out, "appended   {} lines, each acknowledged after fdatasync", summary.appended)?;
    writeln!(
        out,
        "delivered  {} to {} consumers: {:.2} million/s, {:.2} Gbit/s",
        summary.delivered,
        summary.consumers,
        summary.delivered_per_s / 1e6,
        outcome.consumed.measured_bytes as f64 * 8.0 / 1e9 / outcome.produced.measured_s,
    )?;
    writeln!(out, "delay      {} (before the append to after the check)", percentiles(summary.delay_ms))?;
    writeln!(out, "ack        {}", percentiles(summary.ack_ms))?;
    let reads = summary.reads;
    writeln!(
        out,
        "reads      {} relaxed, {} hedged, {} consistent, {} durable, by {} processes",
        reads.relaxed, reads.hedged, reads.consistent, reads.durable, summary.processes
    )?;
    writeln!(
        out,
        "cores      node {:.2}, backends {:.2}, consumers {:.2}, producer {:.2}",
        cores(outcome.cpu.node - outcome.cpu.backends),
        cores(outcome.cpu.backends),
        cores(outcome.cpu.consumers),
        cores(outcome.cpu.producer),
    )?;
    writeln!(out, "verdict    {}", summary.verdict)?;
    Ok(())
}

/// The live table: one row, written over on a terminal, and a row every few seconds elsewhere.
#[derive(Default)]
struct DemoTable {
    quiet: bool,
    terminal: bool,
    step: Duration,
    at: Duration,
    headed: bool,
    before: (u64, u64, Reads),
    delays: Durations,
}

impl DemoTable {
    fn new(quiet: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let step = Duration::from_millis(if terminal { 500 } else { 3_000 });
        Self { quiet, terminal, step, ..Self::default() }
    }

    fn end(&self) {
        if self.terminal && self.headed && !self.quiet {
            println!();
        }
    }

    fn look(&mut self, live: &mut LiveExperiment) -> anyhow::Result<()> {
        self.delays.add(&live.fresh_delays());
        let took = live.elapsed.saturating_sub(self.at);
        if self.quiet || took < self.step {
            return Ok(());
        }
        let (delivered, _, faults, reads) = live.totals();
        let seconds = took.as_secs_f64();
        let since = reads.since(self.before.2);
        let per_s = |count: u64| (count as f64 / seconds).round();
        let delay = self.delays.percentiles_ms();
        let mut out = std::io::stdout().lock();
        if !self.headed {
            self.headed = true;
            writeln!(out)?;
            writeln!(
                out,
                "{:>5} {:>10} {:>13} {:>8} {:>8} {:>8}  {:>9} {:>7} {:>10} {:>8}  verified so far",
                "",
                "appended/s",
                "delivered/s",
                "p50 ms",
                "p99 ms",
                "max ms",
                "relaxed/s",
                "hedged",
                "consistent",
                "durable"
            )?;
        }
        let row = format!(
            "{:>4.0}s {:>10} {:>13} {:>8.2} {:>8.2} {:>8.2}  {:>9} {:>7} {:>10} {:>8}  {}",
            live.elapsed.as_secs_f64(),
            per_s(live.appending.acked.saturating_sub(self.before.0)),
            per_s(delivered.saturating_sub(self.before.1)),
            delay.p50,
            delay.p99,
            delay.max,
            per_s(since.relaxed),
            since.hedged,
            since.consistent,
            since.durable,
            verdict(faults),
        );
        if self.terminal {
            write!(out, "\r\x1b[K{row}")?;
        } else {
            writeln!(out, "{row}")?;
        }
        out.flush()?;
        self.before = (live.appending.acked, delivered, reads);
        self.at = live.elapsed;
        self.delays.clear();
        Ok(())
    }
}
