//! The paper's experiments at its size, by the model of [`super::flows`].

use std::path::PathBuf;

use serde::Serialize;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{PercentilesMs, round};

use super::costs::FlowCosts;
use super::flows::{FlowEvent, FlowLoad, FlowModel, FlowOutcome, FlowSample, FlowScaling};
use crate::plot::{self, PlotMark};

const S: u64 = 1_000_000;
/// Samples of a report, at most.
const SERIES_MAX: usize = 120;

/// An experiment of the paper.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub enum AcsExperiment {
    #[value(name = "1a")]
    #[serde(rename = "1a")]
    Ideal,
    #[value(name = "1b")]
    #[serde(rename = "1b")]
    Spike,
    #[value(name = "1c")]
    #[serde(rename = "1c")]
    Hops,
    #[value(name = "1d")]
    #[serde(rename = "1d")]
    Kills,
    #[value(name = "2a")]
    #[serde(rename = "2a")]
    Smooth,
    #[value(name = "2b")]
    #[serde(rename = "2b")]
    Abrupt,
    #[value(name = "2c")]
    #[serde(rename = "2c")]
    Backlog,
}

/// Flags of the model.
#[derive(clap::Args, Clone, Debug)]
pub struct ModelArgs {
    /// Nothing runs: the experiment at the paper's size is computed, by what each consumer reads of each shard in each
    /// interval.
    #[arg(long)]
    pub model: bool,
    /// With --model: this part of the paper's consumers and backends.
    #[arg(long, default_value_t = 1.0, value_name = "PART", requires = "model")]
    part: f64,
    /// With --model: how long before its start a consumer begins to read, in seconds. 0 is the end.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", requires = "model")]
    back_s: f64,
    /// With --model: what everything that is random follows from.
    #[arg(long, default_value_t = 1, requires = "model")]
    seed: u64,
    /// With --model: draw delays, durable reads and rates over time as an SVG.
    #[arg(long, value_name = "FILE", requires = "model")]
    model_plot: Option<PathBuf>,
}

/// What the paper says of an experiment; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct AcsPaper {
    /// The highest p99 of the delay that it names, in ms.
    pub p99_ms: Option<f64>,
    /// Of the data cache, at its peak.
    pub cell_gbit_s: Option<f64>,
    pub cell_reads_s: Option<f64>,
    pub metadata_reads_s: Option<f64>,
    pub durable_s: Option<f64>,
    pub backends: Option<usize>,
}

impl AcsExperiment {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideal => "1a",
            Self::Spike => "1b",
            Self::Hops => "1c",
            Self::Kills => "1d",
            Self::Smooth => "2a",
            Self::Abrupt => "2b",
            Self::Backlog => "2c",
        }
    }

    /// Section 4 of the paper.
    pub fn paper(self) -> AcsPaper {
        let none = AcsPaper::default();
        match self {
            Self::Ideal => AcsPaper {
                p99_ms: Some(500.0),
                cell_gbit_s: Some(70.0),
                cell_reads_s: Some(4.5e6),
                durable_s: Some(0.0),
                backends: Some(9),
                ..none
            },
            // An increase of about 1 s.
            Self::Spike => {
                AcsPaper { p99_ms: Some(1_500.0), cell_reads_s: Some(4.7e6), backends: Some(9), ..none }
            }
            Self::Hops => AcsPaper { p99_ms: Some(1_800.0), backends: Some(9), ..none },
            Self::Kills => {
                AcsPaper { p99_ms: Some(2_000.0), durable_s: Some(60_000.0), backends: Some(9), ..none }
            }
            Self::Smooth => AcsPaper {
                p99_ms: Some(2_500.0),
                cell_gbit_s: Some(1_800.0),
                metadata_reads_s: Some(19.2e6),
                backends: Some(481),
                ..none
            },
            Self::Abrupt => AcsPaper {
                p99_ms: Some(3_000.0),
                cell_gbit_s: Some(645.0),
                metadata_reads_s: Some(6.24e6),
                durable_s: Some(300_000.0),
                backends: Some(406),
                ..none
            },
            Self::Backlog => AcsPaper { cell_gbit_s: Some(1_600.0), backends: Some(184), ..none },
        }
    }

    /// The load at a part of the paper's size, as it is at the end of so many hops.
    pub fn load(self, part: f64, hops: u32, back_us: u64, seed: u64) -> FlowLoad {
        let count = |paper: u32| ((f64::from(paper) * part).round() as u32).max(1);
        let is_first = matches!(self, Self::Ideal | Self::Spike | Self::Hops | Self::Kills);
        let mbit = if is_first { 240.0 } else { 480.0 };
        let (events, warmup_s, duration_s) = self.events(count);
        let backends = match self {
            Self::Smooth | Self::Abrupt => 18,
            Self::Backlog => 171,
            _ => 9,
        };
        let scaling = (!is_first).then_some(FlowScaling { bytes_per_s: 4e9 / 8.0, reads_per_s: 400_000.0 });
        FlowLoad {
            shards: 240,
            shards_per_consumer: if is_first { 8 } else { 40 },
            bytes_per_s: mbit * 1e6 / 8.0,
            gather_us: 100_000,
            poll_us: if is_first { 100_000 } else { 500_000 },
            hops,
            backends: (count(backends) as usize).max(3),
            nodes: count(if is_first { 9 } else { 18 }),
            back_us,
            // 160 Mbit/s.
            read_bytes_per_s: (self == Self::Backlog).then_some(20e6),
            scaling,
            events,
            warmup_us: warmup_s * S,
            duration_us: duration_s * S,
            seed,
        }
    }

    /// What happens when, what of it comes before what counts, and how long the rest takes, in seconds.
    fn events(self, count: impl Fn(u32) -> u32) -> (Vec<(u64, FlowEvent)>, u64, u64) {
        let begin = |at_s: u64, consumers: u32| (at_s * S, FlowEvent::Begin(consumers));
        let ramp = |first: u32, last: u32, each: u32, every_s: u64| {
            let mut events = vec![begin(5, count(first))];
            let (mut there, last, mut at_s) = (count(first), count(last), 30);
            while there < last {
                // At a small size one at a time.
                let more = count(each).min(last - there);
                events.push(begin(at_s, more));
                there += more;
                at_s += every_s;
            }
            (events, 20, at_s + 40)
        };
        match self {
            Self::Ideal => ramp(1_500, 7_950, 5, 5),
            Self::Smooth => ramp(1_000, 20_000, 50, 10),
            Self::Spike | Self::Hops => (vec![begin(30, count(4_000))], 20, 120),
            Self::Kills => {
                let mut events = vec![begin(5, count(4_000))];
                // One after the other, so that two of a key's replicas are away at the same time. Each is started again
                // three seconds after it was killed.
                for (at_s, place) in [(40, 0), (42, 1)] {
                    events.push((at_s * S, FlowEvent::Kill(place)));
                    events.push(((at_s + 3) * S, FlowEvent::Restart(place)));
                }
                events.sort_by_key(|(at_us, _)| *at_us);
                (events, 20, 100)
            }
            Self::Abrupt => (vec![begin(30, count(6_500))], 20, 600),
            Self::Backlog => {
                let events = vec![
                    begin(5, count(6_500)),
                    (60 * S, FlowEvent::Halt),
                    (960 * S, FlowEvent::Resume(2.5)),
                ];
                (events, 20, 1_640)
            }
        }
    }

    /// The clusters that have consumers, by their hops from the source.
    fn clusters(self) -> Vec<u32> {
        if self == Self::Hops { vec![0, 1, 2, 3] } else { vec![3] }
    }
}

/// What came out in one cluster.
#[derive(Serialize)]
struct FlowClusterReport {
    hops: u32,
    consumers: u32,
    /// Of all records of what counts.
    delay_ms: PercentilesMs,
    /// The highest p99 of a second.
    p99_peak_ms: f64,
    /// For how many seconds the p99 of a second was above twice that of the last one.
    above_s: usize,
    cell_gbit_s_peak: f64,
    cell_reads_s_peak: f64,
    metadata_reads_s_peak: f64,
    durable_reads: f64,
    durable_s_peak: f64,
    backends_first: usize,
    backends_last: usize,
    backlog_ms_peak: f64,
    /// Bytes read from cells over bytes that became readable; and reads over chunks of these.
    bytes_read: f64,
    reads: f64,
    delivered_gbit_s: f64,
    lost_bytes: u64,
    series: Vec<FlowSample>,
}

impl FlowClusterReport {
    fn of(hops: u32, load: &FlowLoad, costs: &FlowCosts, outcome: &FlowOutcome) -> Self {
        let counted: Vec<&FlowSample> =
            outcome.samples.iter().filter(|sample| sample.t_s * 1e6 > load.warmup_us as f64).collect();
        let peak =
            |value: fn(&FlowSample) -> f64| counted.iter().map(|sample| value(sample)).fold(0.0, f64::max);
        let (totals, useful) = (outcome.totals, outcome.totals.delivered_bytes.max(1.0));
        let last_ms = counted.last().map_or(0.0, |sample| sample.delay_ms.p99);
        let above = |sample: &&&FlowSample| sample.delay_ms.p99 > 2.0 * last_ms;
        let every = counted.len().div_ceil(SERIES_MAX).max(1);
        Self {
            hops,
            consumers: counted.last().map_or(0, |sample| sample.consumers),
            delay_ms: outcome.delay_ms,
            p99_peak_ms: peak(|sample| sample.delay_ms.p99),
            above_s: counted.iter().filter(above).count(),
            cell_gbit_s_peak: peak(|sample| sample.cell_gbit_s),
            cell_reads_s_peak: peak(|sample| sample.cell_reads_s),
            metadata_reads_s_peak: peak(|sample| sample.metadata_reads_s),
            durable_reads: totals.durable_reads,
            durable_s_peak: peak(|sample| sample.durable_s),
            backends_first: load.backends,
            backends_last: counted.last().map_or(0, |sample| sample.backends),
            backlog_ms_peak: peak(|sample| sample.backlog_ms),
            bytes_read: round(totals.cell_bytes / useful, 3),
            reads: round(totals.cell_reads / (useful / costs.chunk_bytes as f64), 3),
            delivered_gbit_s: round(useful * 8.0 / 1e3 / load.duration_us as f64, 2),
            lost_bytes: totals.lost_bytes,
            series: counted.into_iter().step_by(every).cloned().collect(),
        }
    }
}

/// What it reports.
#[derive(Serialize)]
struct FlowReport {
    bench: &'static str,
    experiment: AcsExperiment,
    part: f64,
    back_s: f64,
    seed: u64,
    took_s: f64,
    costs: FlowCosts,
    paper: AcsPaper,
    nothing_lost: bool,
    /// Where the paper has one, whether ours is below.
    p99_below_paper: Option<bool>,
    durable_below_paper: Option<bool>,
    clusters: Vec<FlowClusterReport>,
}

/// Computes it.
pub fn run(experiment: AcsExperiment, args: &ModelArgs, output: ReportFormat) -> anyhow::Result<()> {
    anyhow::ensure!(args.part > 0.0 && args.part <= 1.0, "--part: above 0 and at most 1");
    anyhow::ensure!((0.0..=60.0).contains(&args.back_s), "--back-s: 0 to 60 seconds, which cells have");
    let began = std::time::Instant::now();
    let costs = FlowCosts::MEASURED;
    let mut clusters = Vec::new();
    let mut line = ProgressLine::default();
    for hops in experiment.clusters() {
        let load = experiment.load(args.part, hops, (args.back_s * 1e6) as u64, args.seed);
        let outcome = FlowModel::new(load.clone(), costs).run(|sample| {
            let FlowSample { t_s, consumers, backends, cell_gbit_s, .. } = sample;
            let p99 = sample.delay_ms.p99;
            line.show(&format!(
                "{hops} hops, {t_s} s: {consumers} consumers, {backends} backends, {cell_gbit_s} Gbit/s, p99 {p99} ms"
            ));
        });
        if let Some(file) = &args.model_plot {
            draw(file, experiment, &load, &outcome)?;
        }
        clusters.push(FlowClusterReport::of(hops, &load, &costs, &outcome));
    }
    drop(line);
    let paper = experiment.paper();
    let most = |value: fn(&FlowClusterReport) -> f64| clusters.iter().map(value).fold(0.0, f64::max);
    let report = FlowReport {
        bench: "acs-model",
        experiment,
        part: args.part,
        back_s: args.back_s,
        seed: args.seed,
        took_s: round(began.elapsed().as_secs_f64(), 1),
        costs,
        paper,
        nothing_lost: clusters.iter().all(|cluster| cluster.lost_bytes == 0),
        p99_below_paper: paper.p99_ms.map(|p99_ms| most(|cluster| cluster.p99_peak_ms) < p99_ms),
        durable_below_paper: paper
            .durable_s
            .map(|durable_s| most(|cluster| cluster.durable_s_peak) <= durable_s),
        clusters,
    };
    report::print(output, &report)
}

/// Draws one cluster. Of several the last one stays.
fn draw(
    file: &std::path::Path,
    experiment: AcsExperiment,
    load: &FlowLoad,
    outcome: &FlowOutcome,
) -> anyhow::Result<()> {
    let samples: Vec<_> = outcome
        .samples
        .iter()
        .map(|sample| tailwater_load::experiment::Sample {
            t_s: sample.t_s,
            appended_s: 0.0,
            delivered_s: sample.cell_gbit_s,
            delay_ms: sample.delay_ms,
            ack_ms: PercentilesMs::default(),
            durable_s: sample.durable_s,
        })
        .collect();
    let told = |event: &FlowEvent| match event {
        FlowEvent::Begin(count) if *count >= 100 => Some(format!("{count} begin")),
        FlowEvent::Begin(_) => None,
        FlowEvent::Kill(place) => Some(format!("{place} dies")),
        FlowEvent::Restart(_) => None,
        FlowEvent::Halt => Some("producer stops".to_owned()),
        FlowEvent::Resume(_) => Some("producer goes on".to_owned()),
    };
    let marks: Vec<PlotMark> = load
        .events
        .iter()
        .filter_map(|(at_us, event)| Some(PlotMark { t_s: *at_us as f64 / 1e6, what: told(event)? }))
        .collect();
    let title = format!(
        "Fast ACS, {}, modelled: delays, durable reads and Gbit/s of the data cell",
        experiment.name()
    );
    plot::write_with(file, &title, &samples, &marks, "cells, Gbit/s")
}
