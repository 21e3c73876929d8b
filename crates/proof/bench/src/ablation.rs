//! `bench ablation`: the cells taken away one after the other (Fast ACS, section 5), under a steady load.
//!
//! | phase | data cell | metadata cell |
//! |---|---|---|
//! | `both` | up | up |
//! | `no data` | killed | up |
//! | `none` | killed | killed |
//! | `restarted` | up again, empty | up again, empty |

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tailwater_load::experiment::{self, ExperimentPlan, LiveExperiment, Sample, Timeline};
use tailwater_load::interrupt;
use tailwater_load::messages::{ConsumersConfig, FaultFlags, ProducerConfig, Reads, TransportFlag};
use tailwater_load::payload::HEADER_BYTES;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{CellName, CellProcesses, System, SystemArgs};

use crate::plot::{self, PlotMark};

/// Flags of `bench ablation`.
#[derive(clap::Args)]
pub struct Args {
    /// How many consumers.
    #[arg(long, default_value_t = 100)]
    consumers: usize,
    /// How consumers read while there is a cell.
    #[arg(long, value_enum, default_value_t = TransportFlag::Shm)]
    transport: TransportFlag,
    /// What is appended, in Mbit/s of messages.
    #[arg(long, default_value_t = 40.0, value_name = "MBIT")]
    rate_mbit: f64,
    /// Bytes of each message.
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    message_bytes: usize,
    /// Shards of the stream; each consumer reads all of them.
    #[arg(long, default_value_t = 4)]
    shards: u32,
    /// Seconds of each phase.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    phase_s: f64,
    /// Draw the phases into this file, as an SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    system: SystemArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What it reports.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    consumers: usize,
    processes: usize,
    transport: TransportFlag,
    cells: CellProcesses,
    rate_mbit: f64,
    message_bytes: usize,
    shards: u32,
    produced: u64,
    delivered: u64,
    #[serde(flatten)]
    faults: FaultFlags,
    reads: Reads,
    phases: Vec<PhaseReport>,
    series: Vec<Sample>,
    error: Option<String>,
}

#[derive(Serialize)]
struct PhaseReport {
    phase: &'static str,
    from_s: f64,
    to_s: f64,
    delay_ms: PercentilesMs,
    /// Without the first second, in which readers find out.
    delay_later_ms: PercentilesMs,
    durable_s: f64,
}

/// What each phase begins with: the cells, and whether they are up from then on.
const PHASES: [(&str, &[(CellName, bool)]); 4] = [
    ("both", &[]),
    ("no data", &[(CellName::Data, false)]),
    ("none", &[(CellName::Metadata, false)]),
    ("restarted", &[(CellName::Metadata, true), (CellName::Data, true)]),
];

/// Time before the first phase.
const WARMUP: Duration = Duration::from_secs(2);

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.system.cells() == CellProcesses::R32,
        "the cells are taken away from the node: that takes backends of their own, --cells r3.2"
    );
    interrupt::listen()?;
    let message_bytes = args.message_bytes.max(HEADER_BYTES);
    let duration = Duration::from_secs_f64(args.phase_s * PHASES.len() as f64);
    let rate = args.rate_mbit * 1e6 / 8.0 / message_bytes as f64;
    let reading = ConsumersConfig::new(args.shards, args.transport);
    let appending = ProducerConfig::new(args.shards, rate, message_bytes, duration);
    let plan = ExperimentPlan::new(args.consumers, reading, Some(appending), [WARMUP, duration]);
    let mut system = System::start(&args.system)?;
    let mut phases = Phases::new(Duration::from_secs_f64(args.phase_s));
    let outcome = experiment::run(&mut system, &plan, |live, system| phases.look(live, system))?;
    phases.end_phase();
    let Phases { line, timeline, done, marks, .. } = phases;
    drop(line);
    if let Some(file) = &args.plot {
        let title = format!(
            "{} consumers, {} Mbit/s: the cells taken away one after the other",
            args.consumers, args.rate_mbit
        );
        plot::write(file, &title, &timeline.samples, &marks)?;
    }
    let consumed = &outcome.consumed;
    let report = Report {
        bench: "ablation",
        consumers: args.consumers,
        processes: outcome.processes,
        transport: args.transport,
        cells: args.system.cells(),
        rate_mbit: args.rate_mbit,
        message_bytes,
        shards: args.shards,
        produced: outcome.produced.measured,
        delivered: consumed.measured,
        faults: consumed.faults,
        reads: consumed.reads,
        phases: done,
        series: timeline.samples,
        error: consumed.error.clone(),
    };
    report::print(args.output, &report)?;
    anyhow::ensure!(
        consumed.faults.total() == 0 && consumed.error.is_none(),
        "records were not what they should be: see above"
    );
    Ok(())
}

/// Goes through the phases.
#[derive(Default)]
struct Phases {
    length: Duration,
    line: ProgressLine,
    timeline: Timeline,
    marks: Vec<PlotMark>,
    done: Vec<PhaseReport>,
    next: usize,
    began: Duration,
    now: Duration,
    delays: Durations,
    later: Durations,
    durable_before: u64,
    durable: u64,
}

impl Phases {
    fn new(length: Duration) -> Self {
        Self { length, timeline: Timeline::new(Duration::from_millis(250)), ..Self::default() }
    }

    fn end_phase(&mut self) {
        let Some(last) = self.next.checked_sub(1) else { return };
        let seconds = (self.now - self.began).as_secs_f64();
        self.done.push(PhaseReport {
            phase: PHASES[last].0,
            from_s: round(self.began.as_secs_f64(), 2),
            to_s: round(self.now.as_secs_f64(), 2),
            delay_ms: self.delays.percentiles_ms(),
            delay_later_ms: self.later.percentiles_ms(),
            durable_s: round((self.durable - self.durable_before) as f64 / seconds.max(0.001), 1),
        });
        self.delays.clear();
        self.later.clear();
        self.durable_before = self.durable;
    }

    fn look(&mut self, live: &mut LiveExperiment, system: &mut System) -> anyhow::Result<()> {
        self.now = live.elapsed;
        let (_, _, _, reads) = live.totals();
        self.durable = reads.durable;
        let delays = live.fresh_delays();
        self.delays.add(&delays);
        if self.now > self.began + Duration::from_secs(1) {
            self.later.add(&delays);
        }
        if self.timeline.look(live)
            && let (Some(sample), Some((phase, _))) =
                (self.timeline.samples.last(), PHASES.get(self.next.saturating_sub(1)))
        {
            self.line.show(&format!(
                "{:.0} s, {phase}: delay p50 {:.2} ms, p99 {:.2} ms, {:.0} durable reads/s",
                sample.t_s, sample.delay_ms.p50, sample.delay_ms.p99, sample.durable_s
            ));
        }
        if let Some((phase, changes)) = PHASES.get(self.next)
            && self.now >= WARMUP + self.length * self.next as u32
        {
            self.end_phase();
            self.began = self.now;
            self.next += 1;
            self.marks.push(PlotMark { t_s: self.now.as_secs_f64(), what: (*phase).to_owned() });
            for &(cell, up) in *changes {
                system.set_cell(cell, up)?;
            }
        }
        Ok(())
    }
}
