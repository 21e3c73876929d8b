//! How effective garbage collection is (figures 9, 10a and 10b): the generated workload through the history that a
//! proxy has, each event also collecting those before with its key, beside what is left if one keeps the latest
//! event of each key.

use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use tailwater_broadcast::{Collect, Content, History, HistoryOptions, Writer};
use tailwater_env::HashMap;
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::round;

use crate::charts::{self, Curve};

use super::workload::{Update, Workload, WorkloadArrivals};

/// Events of one batch.
const BATCH: usize = 100;
/// New keys for each tick.
const NEW_KEYS: f64 = 10.0;

/// Flags of `bench broadcast 9`.
#[derive(clap::Args)]
pub struct AgesArgs {
    /// Ticks to generate.
    #[arg(long, default_value_t = 4000)]
    ticks: u64,
    #[command(flatten)]
    common: Common,
}

/// Flags of `bench broadcast 10a` and `10b`.
#[derive(clap::Args)]
pub struct KeptArgs {
    /// Events to generate.
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// Skews of the distributions, all above 1.
    #[arg(long, value_delimiter = ',', default_values_t = [1.1, 1.3, 1.5])]
    skew: Vec<f64>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// Seed of the generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the figure into this file, as an SVG.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct AgesReport {
    bench: &'static str,
    seed: u64,
    ticks: u64,
    curves: Vec<AgesCurve>,
}

#[derive(Serialize)]
struct AgesCurve {
    skew: f64,
    lambda: f64,
    events: u64,
    /// Ticks since the key was added, at the middle of a range, and invalidations for each tick of that age.
    points: Vec<(f64, f64)>,
}

#[derive(Serialize)]
struct KeptReport {
    bench: &'static str,
    seed: u64,
    events: u64,
    /// The largest difference between the history and keeping the latest of each key, in percentage points.
    difference_points_max: f64,
    curves: Vec<KeptCurve>,
}

#[derive(Serialize)]
struct KeptCurve {
    skew: f64,
    /// New keys to invalidations.
    new_keys: &'static str,
    points: Vec<KeptPoint>,
    /// Events, without tombstones, that a client gets that listens from number 1, at the end.
    delivered_to_newcomer: u64,
    bytes_per_kept_event: f64,
}

#[derive(Clone, Serialize)]
struct KeptPoint {
    events: u64,
    /// In the history, not collected.
    kept: u64,
    /// If only the latest event of each key is kept.
    latest_per_key: u64,
    /// In the history's memory: also those that are collected and not dropped yet.
    stored: u64,
    saved_percent: f64,
}

/// The name for `-o json` of the ratio of new keys to invalidations in a case, and what comes.
type KeptCase = (&'static str, WorkloadArrivals);

/// Figure 9.
pub fn ages(args: AgesArgs) -> anyhow::Result<()> {
    let curves: Vec<AgesCurve> = [(1.1, 200.0), (1.1, 100.0), (1.1, 50.0), (1.3, 200.0), (1.5, 200.0)]
        .into_iter()
        .map(|(skew, lambda)| ages_of(args.common.seed, skew, lambda, args.ticks))
        .collect();
    let drawn = curves.iter().map(|curve| Curve {
        name: format!("skew {}, lambda {}", curve.skew, curve.lambda),
        points: curve.points.clone(),
    });
    let title = "Invalidations of keys by their age (figure 9)";
    plot(args.common.plot.as_deref(), title, "ticks since the key was added", "", drawn.collect())?;
    let report = AgesReport { bench: "broadcast 9", seed: args.common.seed, ticks: args.ticks, curves };
    report::print(args.common.output, &report)
}

fn ages_of(seed: u64, skew: f64, lambda: f64, ticks: u64) -> AgesCurve {
    let mut workload =
        Workload::new(seed, skew, WorkloadArrivals::Growing { new_keys: NEW_KEYS, invalidations: lambda });
    // Ranges of ages [2^n, 2^(n+1)).
    let mut counts = vec![0u64; 64];
    let mut events = 0;
    loop {
        let Update { tick, added, .. } = workload.next();
        if tick > ticks {
            break;
        }
        events += 1;
        let age = tick - added;
        if age > 0 {
            counts[age.ilog2() as usize] += 1;
        }
    }
    let points = counts
        .iter()
        .enumerate()
        .filter(|(power, count)| **count > 0 && 2u64 << power <= ticks)
        .map(|(power, count)| {
            let width = (1u64 << power) as f64;
            (round(width * 1.5 - 0.5, 1), round(*count as f64 / width, 2))
        })
        .collect();
    AgesCurve { skew, lambda, events, points }
}

/// Figure 10a.
pub fn growing(args: KeptArgs) -> anyhow::Result<()> {
    let arrivals = WorkloadArrivals::Growing { new_keys: NEW_KEYS, invalidations: 200.0 };
    kept("broadcast 10a", "Events kept, with new keys (figure 10a)", &[("10 to 200", arrivals)], args)
}

/// Figure 10b.
pub fn finite(args: KeptArgs) -> anyhow::Result<()> {
    let cases = [
        ("none", WorkloadArrivals::Finite { new_keys: 0.0, invalidations: 10.0 * NEW_KEYS }),
        ("1 to 10", WorkloadArrivals::Finite { new_keys: NEW_KEYS, invalidations: 10.0 * NEW_KEYS }),
    ];
    kept("broadcast 10b", "Events kept, with 100,000 keys (figure 10b)", &cases, args)
}

fn kept(bench: &'static str, title: &str, cases: &[KeptCase], args: KeptArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.skew.iter().all(|skew| *skew > 1.0), "a skew has to be above 1");
    let mut curves = Vec::new();
    for &case in cases {
        for &skew in &args.skew {
            curves.push(kept_of(args.common.seed, skew, case, args.events)?);
        }
    }
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let difference =
        points().map(|point| point.kept.abs_diff(point.latest_per_key) as f64 * 100.0 / point.events as f64);
    let difference_points_max = round(difference.fold(0.0, f64::max), 4);
    let mut drawn = Vec::new();
    if let Some(curve) = curves.first() {
        let points = curve.points.iter().map(|point| (point.events as f64, point.events as f64)).collect();
        drawn.push(Curve { name: "no garbage collection".to_owned(), points });
    }
    drawn.extend(curves.iter().map(|curve| Curve {
        name: format!("skew {}, new keys {}", curve.skew, curve.new_keys),
        points: curve.points.iter().map(|point| (point.events as f64, point.kept as f64)).collect(),
    }));
    plot(args.common.plot.as_deref(), title, "events generated", "", drawn)?;
    let report =
        KeptReport { bench, seed: args.common.seed, events: args.events, difference_points_max, curves };
    report::print(args.common.output, &report)
}

fn kept_of(seed: u64, skew: f64, (new_keys, arrivals): KeptCase, events: u64) -> anyhow::Result<KeptCurve> {
    let mut workload = Workload::new(seed, skew, arrivals);
    let mut history = History::new(HistoryOptions { seed });
    let mut latest: HashMap<u32, u64> = HashMap::default();
    let mut points = Vec::new();
    let mut next_point = 1000;
    while history.last() < events {
        let mut writer = Writer::new(history.last());
        for _ in 0..BATCH {
            let update = workload.next();
            let key = Some(Bytes::copy_from_slice(&update.key.to_le_bytes()));
            writer.publish(&Content { key, ..Content::default() }, Some(&Collect::SameKey))?;
            latest.insert(update.key, update.tick);
        }
        let batch = writer.finish(0);
        history.admit(&batch)?;
        history.append(&batch)?;
        if history.last() >= next_point || history.last() >= events {
            let stats = history.stats();
            let saved = 100.0 - stats.live as f64 * 100.0 / stats.last as f64;
            points.push(KeptPoint {
                events: stats.last,
                kept: stats.live,
                latest_per_key: latest.len() as u64,
                stored: stats.stored,
                saved_percent: round(saved, 2),
            });
            // Ten points for each factor of ten, at whole batches.
            let exact = 10f64.powf(((next_point as f64).log10() * 10.0).round() / 10.0 + 0.1);
            next_point = (exact / BATCH as f64).round() as u64 * BATCH as u64;
        }
    }
    let mut delivered_to_newcomer = 0;
    let mut at = 0;
    while let Some(batch) = history.read(at, u64::MAX, 1 << 20) {
        delivered_to_newcomer += u64::from(batch.count);
        at = batch.last;
    }
    let stats = history.stats();
    let bytes_per_kept_event = round(stats.memory_bytes as f64 / stats.live.max(1) as f64, 1);
    Ok(KeptCurve { skew, new_keys, points, delivered_to_newcomer, bytes_per_kept_event })
}

fn plot(
    file: Option<&Path>,
    title: &str,
    across: &str,
    unit: &str,
    curves: Vec<Curve>,
) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, charts::curves(title, across, unit, &curves))
        .with_context(|| format!("{} can't be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_keeps_what_keeping_the_latest_of_each_key_keeps() {
        for case in [
            ("growing", WorkloadArrivals::Growing { new_keys: NEW_KEYS, invalidations: 200.0 }),
            ("finite", WorkloadArrivals::Finite { new_keys: NEW_KEYS, invalidations: 10.0 * NEW_KEYS }),
        ] {
            let curve = kept_of(3, 1.1, case, 20_000).unwrap();
            assert!(curve.points.len() >= 13);
            for point in &curve.points {
                assert_eq!(point.kept, point.latest_per_key, "after {} events", point.events);
                assert!(point.stored < 3 * point.kept, "{} of {}", point.stored, point.kept);
            }
        }
    }
}
