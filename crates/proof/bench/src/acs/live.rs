//! The paper's experiments on this machine's processes: a load, and what happens to the cells meanwhile. 1(c) is
//! [`crate::tree`].

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tailwater_load::experiment::{self, Cpu, ExperimentPlan, LiveExperiment, Outcome, Sample, Timeline};
use tailwater_load::interrupt;
use tailwater_load::limits::CONSUMERS_PER_PROCESS;
use tailwater_load::messages::{ConsumersConfig, FaultFlags, ProducerConfig, Reads, TransportFlag, Validate};
use tailwater_load::payload::HEADER_BYTES;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{CellName, CellProcesses, System, SystemArgs};

use super::model::{self, AcsExperiment, AcsPaper, ModelArgs};
use crate::plot::{self, PlotMark};

/// Flags of `bench acs 1b`, `1d` and `2a` to `2c`.
#[derive(clap::Args)]
pub struct AcsLiveArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// How many consumers. By default as many as the experiment is for on a small machine.
    #[arg(long)]
    consumers: Option<usize>,
    /// How many processes they are spread over, with a reader each. At most 500 are in one.
    #[arg(long, value_name = "PROCESSES")]
    processes: Option<usize>,
    /// What is appended, in Mbit/s of messages.
    #[arg(long, value_name = "MBIT")]
    rate_mbit: Option<f64>,
    /// Shards of the stream.
    #[arg(long, default_value_t = 120)]
    shards: u32,
    /// How many shards each consumer reads. By default as in the paper: 4, and 20 in experiment 2.
    #[arg(long, value_name = "SHARDS")]
    shards_per_consumer: Option<u32>,
    /// Backends that the data cell begins with; 3 or more.
    #[arg(long, value_name = "BACKENDS", value_parser = clap::value_parser!(u64).range(3..=64))]
    backends: Option<u64>,
    /// Backends that the data cell has in the end, in experiments 2(a) and 2(b).
    #[arg(long, default_value_t = 9, value_name = "BACKENDS", value_parser = clap::value_parser!(u64).range(3..=64))]
    backends_last: u64,
    /// Seconds that are measured.
    #[arg(long, value_name = "SECONDS")]
    duration_s: Option<f64>,
    /// How consumers read.
    #[arg(long, value_enum, default_value_t = TransportFlag::Shm)]
    transport: TransportFlag,
    /// How often the producer sends what is due, and a process polls its consumers and reads lengths, in microseconds.
    #[arg(long, default_value_t = 10_000, value_name = "US", value_parser = clap::value_parser!(u64).range(1..))]
    every_us: u64,
    /// Does everything work? Few consumers and a low rate, for some seconds. Its figures are no results.
    #[arg(long)]
    quick: bool,
    /// Draw rates and delays over time as an SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    system: SystemArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// Time before what is measured.
const WARMUP: Duration = Duration::from_secs(3);
/// How long the producer stands still in 2(c), as a part of the measured time.
const HALT_PART: f64 = 0.25;
/// From one kill to the next one, and from a kill until the backend is started again.
const KILLS_APART: Duration = Duration::from_secs(2);
const RESTARTED_AFTER: Duration = Duration::from_secs(3);

/// What an experiment is on this machine, unless flags say otherwise.
struct LiveShape {
    consumers: usize,
    processes: usize,
    rate_mbit: f64,
    shards_per_consumer: u32,
    backends: usize,
    duration_s: f64,
}

impl LiveShape {
    fn of(experiment: AcsExperiment, args: &AcsLiveArgs) -> Self {
        let (consumers, processes, rate_mbit, backends) = match experiment {
            AcsExperiment::Kills => (32, 32, 60.0, 9),
            AcsExperiment::Smooth | AcsExperiment::Abrupt => (400, 16, 60.0, 3),
            AcsExperiment::Backlog => (400, 16, 60.0, 3),
            AcsExperiment::Ideal | AcsExperiment::Spike | AcsExperiment::Hops => (1_000, 8, 120.0, 3),
        };
        let is_first =
            !matches!(experiment, AcsExperiment::Smooth | AcsExperiment::Abrupt | AcsExperiment::Backlog);
        let [consumers, processes] =
            if args.quick { [consumers / 8, processes / 4] } else { [consumers, processes] };
        let rate_mbit = if args.quick { rate_mbit / 6.0 } else { rate_mbit };
        let consumers = args.consumers.unwrap_or(consumers);
        Self {
            consumers,
            processes: args.processes.unwrap_or(processes).clamp(1, consumers.max(1)),
            rate_mbit: args.rate_mbit.unwrap_or(rate_mbit),
            shards_per_consumer: args.shards_per_consumer.unwrap_or(if is_first { 4 } else { 20 }),
            backends: args.backends.map_or(backends, |backends| backends as usize),
            duration_s: args.duration_s.unwrap_or(if args.quick { 16.0 } else { 30.0 }),
        }
    }

    fn check(&self, args: &AcsLiveArgs) -> anyhow::Result<()> {
        anyhow::ensure!(
            args.system.cells() == CellProcesses::R32,
            "backends come, leave and die: that takes backends of their own, --cells r3.2"
        );
        anyhow::ensure!(
            self.consumers > 0 && self.rate_mbit > 0.0,
            "at least one consumer, and a rate above 0"
        );
        anyhow::ensure!(self.duration_s >= 5.0, "--duration-s {}: 5 or more", self.duration_s);
        anyhow::ensure!(
            (1..=args.shards).contains(&self.shards_per_consumer),
            "a consumer can't read {} of {} shards",
            self.shards_per_consumer,
            args.shards
        );
        anyhow::ensure!(
            self.consumers <= self.processes * CONSUMERS_PER_PROCESS,
            "{} consumers in {} processes: at most {CONSUMERS_PER_PROCESS} are in one, see --processes",
            self.consumers,
            self.processes
        );
        Ok(())
    }
}

/// What is done to the cells.
#[derive(Clone, Copy, Debug)]
enum LiveAct {
    Kill(CellName, usize),
    Start(CellName, usize),
    /// The data cell gets so many backends.
    Grow(usize),
}

impl LiveAct {
    fn what(self) -> String {
        match self {
            Self::Kill(CellName::Data, number) => format!("data {number} dies"),
            Self::Kill(CellName::Metadata, number) => format!("metadata {number} dies"),
            Self::Start(_, number) => format!("{number} is back"),
            Self::Grow(backends) => format!("{backends} backends"),
        }
    }
}

/// What happens when, in the measured time.
fn acts(experiment: AcsExperiment, args: &AcsLiveArgs, shape: &LiveShape) -> Vec<(Duration, LiveAct)> {
    let part = |of: f64| Duration::from_secs_f64(shape.duration_s * of);
    let last = args.backends_last as usize;
    match experiment {
        AcsExperiment::Kills => {
            let begin = part(0.2);
            let mut acts = Vec::new();
            for number in 0..2 {
                let at = begin + KILLS_APART * number;
                acts.push((at, LiveAct::Kill(CellName::Data, number as usize)));
                acts.push((at + RESTARTED_AFTER, LiveAct::Start(CellName::Data, number as usize)));
            }
            // Of the metadata cell all keys are on all three.
            let begin = part(0.6).max(begin + KILLS_APART + 2 * RESTARTED_AFTER);
            acts.push((begin, LiveAct::Kill(CellName::Metadata, 0)));
            acts.push((begin + RESTARTED_AFTER, LiveAct::Start(CellName::Metadata, 0)));
            acts.sort_by_key(|(at, _)| *at);
            acts
        }
        AcsExperiment::Smooth => {
            let steps: Vec<usize> = (shape.backends + 2..last).step_by(2).chain([last]).collect();
            let steps: Vec<usize> = steps.into_iter().filter(|step| *step > shape.backends).collect();
            let count = steps.len() as f64;
            (1..)
                .zip(steps)
                .map(|(step, to)| (part(0.7 * f64::from(step) / (count + 1.0)), LiveAct::Grow(to)))
                .collect()
        }
        AcsExperiment::Abrupt if last > shape.backends => vec![(part(0.1), LiveAct::Grow(last))],
        _ => Vec::new(),
    }
}

/// What it reports.
#[derive(Serialize)]
struct LiveReport {
    bench: &'static str,
    experiment: AcsExperiment,
    consumers: usize,
    processes: usize,
    transport: TransportFlag,
    rate_mbit: f64,
    shards: u32,
    shards_per_consumer: u32,
    backends_first: usize,
    backends_last: usize,
    duration_s: f64,
    quick: bool,
    produced: u64,
    delivered: u64,
    #[serde(flatten)]
    faults: FaultFlags,
    unfinished_consumers: usize,
    nothing_lost: bool,
    delivered_gbit_s: f64,
    delay_ms: PercentilesMs,
    /// The highest p99 of a quarter of a second.
    p99_peak_ms: f64,
    durable_s_peak: f64,
    ack_ms: PercentilesMs,
    producer_late_ms: PercentilesMs,
    reads: Reads,
    /// Sent by cells for each byte that became readable.
    cell_bytes_for_delivered: f64,
    cpu_cores: Cpu,
    ended_after_ms: Option<f64>,
    paper: AcsPaper,
    phases: Vec<LivePhase>,
    error: Option<String>,
    series: Vec<Sample>,
}

/// What was seen from one act to the next.
#[derive(Serialize)]
struct LivePhase {
    phase: String,
    from_s: f64,
    to_s: f64,
    delay_ms: PercentilesMs,
    durable: u64,
    cell_mbyte: f64,
    /// How long the cell's backends were being changed in it.
    changing_s: f64,
}

/// Does what is due, and tells the phases apart.
struct LivePhases {
    acts: std::vec::IntoIter<(Duration, LiveAct)>,
    next: Option<(Duration, LiveAct)>,
    timeline: Timeline,
    line: ProgressLine,
    marks: Vec<PlotMark>,
    done: Vec<LivePhase>,
    phase: String,
    began: Duration,
    now: Duration,
    delays: Durations,
    reads: Reads,
    reads_before: Reads,
    changing: Duration,
}

impl LivePhases {
    fn new(acts: Vec<(Duration, LiveAct)>) -> Self {
        let mut acts = acts.into_iter();
        Self {
            next: acts.next(),
            acts,
            timeline: Timeline::new(Duration::from_millis(250)),
            line: ProgressLine::default(),
            marks: Vec::new(),
            done: Vec::new(),
            phase: "before".to_owned(),
            began: Duration::ZERO,
            now: Duration::ZERO,
            delays: Durations::default(),
            reads: Reads::default(),
            reads_before: Reads::default(),
            changing: Duration::ZERO,
        }
    }

    fn look(&mut self, live: &mut LiveExperiment, system: &mut System) -> anyhow::Result<()> {
        let passed = live.elapsed.saturating_sub(self.now);
        self.now = live.elapsed;
        self.delays.add(&live.fresh_delays());
        self.reads = live.totals().3;
        let is_changing = system.data_backends() > 3 && system.is_changing()?.is_some();
        if is_changing {
            self.changing += passed;
        }
        if self.timeline.look(live)
            && let Some(sample) = self.timeline.samples.last()
        {
            let (phase, p99, durable_s) = (&self.phase, sample.delay_ms.p99, sample.durable_s);
            let t_s = sample.t_s;
            self.line
                .show(&format!("{t_s:.0} s, {phase}: delay p99 {p99:.1} ms, {durable_s:.0} durable reads/s"));
        }
        // One change of the backends after the other.
        let is_due = |at: &Duration, act: &LiveAct| {
            self.now >= WARMUP + *at && !(is_changing && matches!(act, LiveAct::Grow(_)))
        };
        if let Some((_, act)) = self.next.filter(|(at, act)| is_due(at, act)) {
            self.end_phase();
            (self.began, self.phase) = (self.now, act.what());
            self.marks.push(PlotMark { t_s: self.now.as_secs_f64(), what: act.what() });
            match act {
                LiveAct::Kill(cell, number) => system.kill_backend(cell, number),
                LiveAct::Start(cell, number) => system.start_backend(cell, number)?,
                LiveAct::Grow(backends) => system.grow_data_cell(backends)?,
            }
            self.next = self.acts.next();
        }
        Ok(())
    }

    fn end_phase(&mut self) {
        let reads = self.reads.since(self.reads_before);
        self.done.push(LivePhase {
            phase: self.phase.clone(),
            from_s: round(self.began.as_secs_f64(), 2),
            to_s: round(self.now.as_secs_f64(), 2),
            delay_ms: self.delays.percentiles_ms(),
            durable: reads.durable,
            cell_mbyte: round(reads.cell_bytes as f64 / 1e6, 1),
            changing_s: round(self.changing.as_secs_f64(), 2),
        });
        self.delays.clear();
        self.reads_before = self.reads;
        self.changing = Duration::ZERO;
    }
}

/// Runs one, or computes it.
pub fn run(experiment: AcsExperiment, args: &AcsLiveArgs) -> anyhow::Result<()> {
    if args.model.model {
        return model::run(experiment, &args.model, args.output);
    }
    let shape = LiveShape::of(experiment, args);
    shape.check(args)?;
    interrupt::listen()?;
    let plan = plan(experiment, args, &shape);
    let mut system = System::start(&args.system.clone().with_data_backends(shape.backends))?;
    let mut phases = LivePhases::new(acts(experiment, args, &shape));
    let outcome = experiment::run(&mut system, &plan, |live, system| phases.look(live, system))?;
    phases.end_phase();
    if let Some(file) = &args.plot {
        let title = format!(
            "Fast ACS, {}: {} consumers in {} processes, {} Mbit/s",
            experiment.name(),
            shape.consumers,
            shape.processes,
            shape.rate_mbit
        );
        plot::write(file, &title, &phases.timeline.samples, &phases.marks)?;
    }
    let report = report(experiment, args, &shape, &outcome, phases, system.data_backends());
    report::print(args.output, &report)?;
    anyhow::ensure!(report.nothing_lost, "records were not what they should be: see above");
    Ok(())
}

fn plan(experiment: AcsExperiment, args: &AcsLiveArgs, shape: &LiveShape) -> ExperimentPlan {
    let duration = Duration::from_secs_f64(shape.duration_s);
    let message_bytes = 1_024.max(HEADER_BYTES);
    let rate = shape.rate_mbit * 1e6 / 8.0 / message_bytes as f64;
    let reading = ConsumersConfig {
        shards_per_consumer: shape.shards_per_consumer,
        together: true,
        // "In processes of their own" they read as applications do.
        own_reader: shape.processes == shape.consumers,
        from_beginning: !is_abrupt(experiment),
        validate: if shape.processes == shape.consumers { Validate::Consumer } else { Validate::Process },
        lengths_every_us: Some(args.every_us),
        poll_every_us: args.every_us / 2,
        ..ConsumersConfig::new(args.shards, args.transport)
    };
    let appending = ProducerConfig {
        every_us: args.every_us,
        ..ProducerConfig::new(args.shards, rate, message_bytes, duration)
    };
    let halt = duration.mul_f64(HALT_PART);
    ExperimentPlan {
        processes: shape.processes,
        start_at_once: is_abrupt(experiment),
        ramp: if experiment == AcsExperiment::Smooth { duration.mul_f64(0.7) } else { Duration::ZERO },
        halt: (experiment == AcsExperiment::Backlog).then_some((halt, halt)),
        flush: "5".to_owned(),
        ..ExperimentPlan::new(shape.consumers, reading, Some(appending), [WARMUP, duration])
    }
}

/// Whether consumers begin while the load is there.
fn is_abrupt(experiment: AcsExperiment) -> bool {
    matches!(experiment, AcsExperiment::Spike | AcsExperiment::Smooth | AcsExperiment::Abrupt)
}

fn report(
    experiment: AcsExperiment,
    args: &AcsLiveArgs,
    shape: &LiveShape,
    outcome: &Outcome,
    phases: LivePhases,
    backends_last: usize,
) -> LiveReport {
    let consumed = &outcome.consumed;
    let reads = consumed.reads;
    let series = phases.timeline.samples;
    let peak = |value: fn(&Sample) -> f64| series.iter().map(value).fold(0.0, f64::max);
    let gbit_s = consumed.measured_bytes as f64 * 8.0 / 1e9 / shape.duration_s;
    LiveReport {
        bench: "acs",
        experiment,
        consumers: shape.consumers,
        processes: outcome.processes,
        transport: args.transport,
        rate_mbit: shape.rate_mbit,
        shards: args.shards,
        shards_per_consumer: shape.shards_per_consumer,
        backends_first: shape.backends,
        backends_last,
        duration_s: shape.duration_s,
        quick: args.quick,
        produced: outcome.produced.measured,
        delivered: consumed.measured,
        faults: consumed.faults,
        unfinished_consumers: consumed.unfinished,
        nothing_lost: consumed.faults.total() == 0 && consumed.unfinished == 0 && consumed.error.is_none(),
        delivered_gbit_s: round(gbit_s, 4),
        delay_ms: outcome.delays.percentiles_ms(),
        p99_peak_ms: peak(|sample| sample.delay_ms.p99),
        durable_s_peak: peak(|sample| sample.durable_s),
        ack_ms: outcome.ack_ms(),
        producer_late_ms: outcome.late_ms(),
        reads,
        cell_bytes_for_delivered: round(reads.cell_bytes as f64 / (reads.entry_bytes as f64).max(1.0), 3),
        cpu_cores: outcome.cpu.over(outcome.wall_s, 3),
        ended_after_ms: outcome.ended_after_ms().map(|ms| round(ms, 2)),
        paper: experiment.paper(),
        phases: phases.done,
        error: consumed.error.clone(),
        series,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct AcsFlags {
        #[command(flatten)]
        args: AcsLiveArgs,
    }

    fn acts_of(experiment: AcsExperiment, flags: &[&str]) -> Vec<(Duration, LiveAct)> {
        let args = AcsFlags::parse_from([&["acs"], flags].concat()).args;
        let shape = LiveShape::of(experiment, &args);
        shape.check(&args).expect("the defaults make sense");
        acts(experiment, &args, &shape)
    }

    #[test]
    fn a_cell_grows_in_steps_to_what_was_asked_for_and_no_further() {
        let to = |acts: Vec<(Duration, LiveAct)>| -> Vec<usize> {
            let grown = acts.into_iter().filter_map(|(_, act)| match act {
                LiveAct::Grow(backends) => Some(backends),
                LiveAct::Kill(..) | LiveAct::Start(..) => None,
            });
            grown.collect()
        };
        assert_eq!(to(acts_of(AcsExperiment::Smooth, &[])), [5, 7, 9]);
        assert_eq!(to(acts_of(AcsExperiment::Smooth, &["--backends-last", "4"])), [4]);
        assert_eq!(to(acts_of(AcsExperiment::Abrupt, &[])), [9]);
        assert!(to(acts_of(AcsExperiment::Abrupt, &["--backends", "9"])).is_empty());
    }

    #[test]
    fn two_replicas_are_away_at_the_same_time_and_both_come_back() {
        let acts = acts_of(AcsExperiment::Kills, &[]);
        let mut away = std::collections::BTreeSet::new();
        let mut most = 0;
        for (_, act) in acts {
            match act {
                LiveAct::Kill(CellName::Data, number) => drop(away.insert(number)),
                LiveAct::Start(CellName::Data, number) => drop(away.remove(&number)),
                _ => {}
            }
            most = most.max(away.len());
        }
        assert_eq!((most, away.len()), (2, 0));
    }
}
