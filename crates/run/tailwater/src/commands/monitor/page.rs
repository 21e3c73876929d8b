//! The metrics of a monitor.

use std::collections::BTreeMap;

use tailwater_node::probes::{ProbeFamily, ProbeTold};

use super::line::{MonitorLine, MonitorPercentiles};
use super::standing::MonitorState;

/// What was counted since the monitor began, of a stream in a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct MonitorTotals {
    records: u64,
    bytes: u64,
    cache_bytes: u64,
    durable_bytes: u64,
}

/// The lines that were told last.
#[derive(Clone, Default)]
pub struct MonitorPage {
    lines: Vec<MonitorLine>,
    totals: BTreeMap<(String, String), MonitorTotals>,
}

impl MonitorPage {
    /// Takes in the newest lines, of all streams and clusters.
    pub fn set(&mut self, lines: Vec<MonitorLine>) {
        for line in &lines {
            let totals = self.totals.entry((line.stream.clone(), line.cluster.clone())).or_default();
            totals.records += line.records;
            totals.bytes += line.bytes;
            totals.cache_bytes += line.cache_bytes;
            totals.durable_bytes += line.durable_bytes;
        }
        self.lines = lines;
    }

    /// As they are asked for.
    pub fn told(&self) -> ProbeTold {
        let mut families = self.counters();
        families.extend(self.gauges());
        families.extend(self.delays());
        let unready = self.lines.is_empty().then(|| "it has not told anything yet".to_owned());
        ProbeTold { unready, families, ..ProbeTold::default() }
    }

    fn counters(&self) -> Vec<ProbeFamily> {
        let family = |name, help, read: fn(&MonitorTotals) -> u64| {
            let of = |((stream, cluster), totals): (&(String, String), &MonitorTotals)| {
                (vec![stream.clone(), cluster.clone()], read(totals) as f64)
            };
            counter(name, help, self.totals.iter().map(of).collect())
        };
        let checked = |name, help, read: fn(&MonitorLine) -> u64| {
            let of = |line: &MonitorLine| (line.labels(), read(line) as f64);
            counter(name, help, self.lines.iter().map(of).collect())
        };
        vec![
            family("tailwater_monitor_records", "Records that came.", |totals| totals.records),
            family("tailwater_monitor_bytes", "Bytes of their keys and values.", |totals| totals.bytes),
            family("tailwater_monitor_cache_bytes", "Bytes that the cells had.", |totals| totals.cache_bytes),
            family("tailwater_monitor_durable_bytes", "Bytes that they did not have.", |totals| {
                totals.durable_bytes
            }),
            checked("tailwater_monitor_read_bytes", "Bytes that were compared, as they were read.", |line| {
                line.checked.read_bytes
            }),
            checked(
                "tailwater_monitor_written_bytes",
                "The same, as they were written at the source.",
                |line| line.checked.written_bytes,
            ),
            checked(
                "tailwater_monitor_differing_ranges",
                "Ranges of records that are not the same.",
                |line| line.checked.differing_ranges,
            ),
            checked(
                "tailwater_monitor_lost_records",
                "Records that did not come although later ones did.",
                |line| line.checked.lost_records,
            ),
            checked("tailwater_monitor_uncompared_records", "Records that could not be compared.", |line| {
                line.checked.uncompared_records
            }),
        ]
    }

    fn gauges(&self) -> Vec<ProbeFamily> {
        let family = |name, help, read: &dyn Fn(&MonitorLine) -> Option<f64>| {
            let of = |line: &MonitorLine| Some((line.labels(), read(line)?));
            gauge(name, help, &["stream", "cluster"], self.lines.iter().filter_map(of).collect())
        };
        let states = self.lines.iter().flat_map(|line| {
            MonitorState::ALL.into_iter().map(|state| {
                let labels = [line.labels(), vec![state.in_words().replace(' ', "_")]].concat();
                (labels, f64::from(u8::from(line.state == state)))
            })
        });
        let objectives = |read: &dyn Fn(&super::line::MonitorObjective) -> f64| {
            let of_line = |line: &MonitorLine| {
                let of = |told| ([line.labels(), vec![objective_name(told)]].concat(), read(told));
                line.objectives.iter().map(of).collect::<Vec<_>>()
            };
            self.lines.iter().flat_map(of_line).collect()
        };
        let by_objective = ["stream", "cluster", "objective"];
        vec![
            gauge(
                "tailwater_monitor_state",
                "1 for how it is with a stream in a cluster.",
                &["stream", "cluster", "state"],
                states.collect(),
            ),
            family("tailwater_monitor_behind_records", "Records of the source that did not come.", &|line| {
                Some(line.behind? as f64)
            }),
            family("tailwater_monitor_stuck_shards", "Shards that stand still.", &|line| {
                Some(line.stuck_shards as f64)
            }),
            family("tailwater_monitor_cache_share", "The part of the bytes that the cells had.", &|line| {
                line.cache_share
            }),
            family(
                "tailwater_monitor_clock_ahead_seconds",
                "How far the cluster's clock is ahead of the monitor's.",
                &|line| Some(line.clock_ahead_ms? as f64 / 1e3),
            ),
            family("tailwater_monitor_clock_error_seconds", "The most that this may be wrong.", &|line| {
                Some(line.clock_error_ms? as f64 / 1e3)
            }),
            gauge(
                "tailwater_monitor_objective_share",
                "The part that was good within the window.",
                &by_objective,
                objectives(&|told| told.share.unwrap_or(1.0)),
            ),
            gauge(
                "tailwater_monitor_budget_left",
                "The part of what may be bad within the window that was not.",
                &by_objective,
                objectives(&|told| told.budget_left),
            ),
            gauge(
                "tailwater_monitor_objective_broken",
                "1 if more was bad than may be.",
                &by_objective,
                objectives(&|told| f64::from(u8::from(told.is_broken))),
            ),
        ]
    }

    fn delays(&self) -> Vec<ProbeFamily> {
        let of = |labels: Vec<String>, delay: &MonitorPercentiles| {
            let with = |(quantile, s): (&str, f64)| ([labels.clone(), vec![quantile.to_owned()]].concat(), s);
            delay.quantiles_s().map(with).collect::<Vec<_>>()
        };
        let delays = self.lines.iter().flat_map(|line| of(line.labels(), &line.delay)).collect();
        let hops = self.lines.iter().flat_map(|line| {
            let hop = line.hop.as_ref();
            hop.map_or_else(Vec::new, |hop| {
                of(vec![line.stream.clone(), hop.from.clone(), line.cluster.clone()], &hop.delay)
            })
        });
        vec![
            gauge(
                "tailwater_monitor_delay_seconds",
                "From a record's timestamp until it was decoded in the cluster.",
                &["stream", "cluster", "quantile"],
                delays,
            ),
            gauge(
                "tailwater_monitor_hop_delay_seconds",
                "From when a record had come in one cluster until it came in the next one.",
                &["stream", "from", "to", "quantile"],
                hops.collect(),
            ),
        ]
    }
}

impl MonitorLine {
    fn labels(&self) -> Vec<String> {
        vec![self.stream.clone(), self.cluster.clone()]
    }
}

fn objective_name(told: &super::line::MonitorObjective) -> String {
    told.objective.to_owned()
}

fn counter(name: &'static str, help: &'static str, values: Vec<(Vec<String>, f64)>) -> ProbeFamily {
    ProbeFamily { name, help, is_counter: true, labels: vec!["stream", "cluster"], values }
}

fn gauge(
    name: &'static str,
    help: &'static str,
    labels: &[&'static str],
    values: Vec<(Vec<String>, f64)>,
) -> ProbeFamily {
    ProbeFamily { name, help, is_counter: false, labels: labels.to_vec(), values }
}
