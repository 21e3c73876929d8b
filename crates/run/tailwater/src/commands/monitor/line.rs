//! What is told of a stream in a cluster: a line of a table, a JSON object, and the values of metrics.

use std::time::Duration;

use serde::Serialize;
use tailwater_env::Instant;
use tailwater_load::stats::{Durations, round};
use tailwater_node::api::CopyHopView;

use super::budget::ErrorBudget;
use super::standing::{MonitorState, StuckShards};
use super::watched::{WatchedCluster, WatchedStream};
use crate::output;

/// A clock that is further from this one's than this is told of in words, in ms, where it is further than its error.
const CLOCK_AHEAD_TOLD_MS: u64 = 10;

/// What is written of a stream in a cluster. Counts are since the last line, but for those that say otherwise.
#[derive(Clone, Serialize)]
pub struct MonitorLine {
    pub stream: String,
    pub cluster: String,
    pub state: MonitorState,
    /// Why it is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub records: u64,
    pub bytes: u64,
    /// Records that the source has and that did not come here; not there while the source is away.
    pub behind: Option<u64>,
    #[serde(flatten)]
    pub delay: MonitorPercentiles,
    /// Records whose timestamps are ahead of the monitor's clock, and by how much at most.
    pub early_records: u64,
    pub early_max_ms: u64,
    /// How far the cluster's clock is ahead of the monitor's, and the most that this may be wrong.
    pub clock_ahead_ms: Option<i64>,
    pub clock_error_ms: Option<u64>,
    /// Shards that stand still, and where they do.
    pub stuck_shards: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hop: Option<MonitorHop>,
    /// The part of the bytes that the cells had.
    pub cache_share: Option<f64>,
    pub cache_bytes: u64,
    pub durable_bytes: u64,
    pub checked: MonitorChecked,
    pub objectives: Vec<MonitorObjective>,
}

/// Percentiles of delays; none if nothing was delayed.
#[derive(Clone, Copy, Default, Serialize)]
pub struct MonitorPercentiles {
    pub p50_ms: Option<f64>,
    pub p90_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub p999_ms: Option<f64>,
    pub p9999_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

/// The hop that ends in the cluster.
#[derive(Clone, Serialize)]
pub struct MonitorHop {
    pub from: String,
    /// From when records had come in the cluster above until they came here.
    #[serde(flatten)]
    pub delay: MonitorPercentiles,
    /// As its operation tells.
    pub is_copying: bool,
    pub behind_records: Option<u64>,
    pub behind_bytes: Option<u64>,
    pub source_delay_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What was read beside what was written, since the monitor began.
#[derive(Clone, Serialize)]
pub struct MonitorChecked {
    pub records: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub differing_ranges: u64,
    pub lost_records: u64,
    pub uncompared_records: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Why nothing is compared at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An objective, and what is left of its budget.
#[derive(Clone, Serialize)]
pub struct MonitorObjective {
    pub objective: &'static str,
    pub target: f64,
    pub share: Option<f64>,
    pub budget_left: f64,
    pub is_broken: bool,
}

impl MonitorObjective {
    fn of(objective: &'static str, budget: &ErrorBudget) -> Self {
        Self {
            objective,
            target: budget.target(),
            share: budget.share().map(|share| round(share, 7)),
            budget_left: round(budget.left(), 4),
            is_broken: budget.is_broken(),
        }
    }
}

/// The objectives of a stream in a cluster.
#[derive(Clone, Debug, Default)]
pub struct MonitorBudgets {
    /// Of bytes, those that the cells have.
    pub cache: Option<ErrorBudget>,
    /// Of records, those that come in time.
    pub delay: Option<ErrorBudget>,
}

impl MonitorBudgets {
    fn step(&mut self, watched: &WatchedCluster) -> Vec<MonitorObjective> {
        let (cache_bytes, durable_bytes) = parts(watched.became);
        if let Some(cache) = &mut self.cache {
            cache.step(cache_bytes, durable_bytes);
        }
        if let Some(delay) = &mut self.delay {
            delay.step(watched.delays.count() - watched.slow, watched.slow);
        }
        let cache = self.cache.as_ref().map(|budget| MonitorObjective::of("cache_bytes", budget));
        let delay = self.delay.as_ref().map(|budget| MonitorObjective::of("delay", budget));
        cache.into_iter().chain(delay).collect()
    }
}

impl MonitorPercentiles {
    fn of(delays: &Durations) -> Self {
        if delays.count() == 0 {
            return Self::default();
        }
        let ms = |quantile| Some(round(delays.quantile_ns(quantile) as f64 / 1e6, 2));
        Self {
            p50_ms: ms(0.5),
            p90_ms: ms(0.9),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            p9999_ms: ms(0.9999),
            max_ms: ms(1.0),
        }
    }

    /// As quantiles, in seconds.
    pub fn quantiles_s(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("0.5", self.p50_ms),
            ("0.9", self.p90_ms),
            ("0.99", self.p99_ms),
            ("0.999", self.p999_ms),
            ("0.9999", self.p9999_ms),
            ("1", self.max_ms),
        ];
        all.into_iter().filter_map(|(quantile, ms)| Some((quantile, ms? / 1e3)))
    }
}

impl MonitorHop {
    fn of(hop: &CopyHopView, watched: &WatchedCluster) -> Self {
        Self {
            from: hop.from.clone(),
            delay: MonitorPercentiles::of(&watched.hop),
            is_copying: hop.is_copying,
            behind_records: hop.behind_records,
            behind_bytes: hop.behind_bytes,
            source_delay_ms: hop.delay_ms,
            why: hop.why.clone(),
        }
    }
}

/// Of what became readable and what of it was read from the durable layer: what the cells had, and what they did not.
fn parts((became, durable): (u64, u64)) -> (u64, u64) {
    let durable = durable.min(became);
    (became - durable, durable)
}

/// The lines of a stream, one for each cluster, and what is counted begins anew.
pub fn lines(
    name: &str,
    stream: &mut WatchedStream,
    budgets: &mut [MonitorBudgets],
    now: Instant,
    stuck_after: Duration,
) -> Vec<MonitorLine> {
    let all = stream.take();
    let source = stream.source.and_then(|source| all.get(source));
    let source_end = source.filter(|source| source.why.is_none()).and_then(WatchedCluster::place);
    let line = |(watched, budgets): (&WatchedCluster, &mut MonitorBudgets)| {
        let behind = source_end.zip(watched.place());
        let behind = behind.map(|((_, end), (position, _))| end.saturating_sub(position));
        let shards = StuckShards::of(&watched.shards, now, stuck_after);
        let state = shards.state(watched.records, watched.why.is_some(), behind);
        let (stuck_shards, stuck) = match state {
            MonitorState::ReadingStuck => {
                let first = shards.reading.first().copied().unwrap_or_default();
                let what =
                    format!("shard {first} is here and is not read: its cells fail, or the way to them");
                (shards.reading.len(), Some(what))
            }
            MonitorState::CopyStuck => {
                let first = shards.copy.first().copied().unwrap_or_default();
                let hop = stream.culprit(&watched.name, &shards);
                let hop = hop.unwrap_or_else(|| "on which hop is not known".to_owned());
                (shards.copy.len(), Some(format!("shard {first} does not come: {hop}")))
            }
            _ => (0, None),
        };
        let hop = stream.tree.iter().flat_map(|tree| &tree.hops).find(|hop| hop.to == watched.name);
        let (cache_bytes, durable_bytes) = parts(watched.became);
        let sums = &watched.checked.sums;
        MonitorLine {
            stream: name.to_owned(),
            cluster: watched.name.clone(),
            state,
            why: watched.why.clone(),
            records: watched.records,
            bytes: watched.bytes,
            behind,
            delay: MonitorPercentiles::of(&watched.delays),
            early_records: watched.early.0,
            early_max_ms: watched.early.1,
            clock_ahead_ms: watched.clock.map(|clock| clock.ahead_ms),
            clock_error_ms: watched.clock.map(|clock| clock.error_ms),
            stuck_shards,
            stuck,
            hop: hop.map(|hop| MonitorHop::of(hop, watched)),
            cache_share: (watched.became.0 > 0)
                .then(|| round(cache_bytes as f64 / watched.became.0 as f64, 7)),
            cache_bytes,
            durable_bytes,
            checked: MonitorChecked {
                records: sums.records,
                read_bytes: sums.read_bytes,
                written_bytes: sums.written_bytes,
                differing_ranges: sums.differing,
                lost_records: sums.lost,
                uncompared_records: sums.uncompared,
                first: sums.first.clone(),
                why: stream.unwritten.clone(),
            },
            objectives: budgets.step(watched),
        }
    };
    all.iter().zip(budgets).map(line).collect()
}

/// The heads of the table.
pub fn head() -> String {
    format!(
        "{:20} {:12} {:13} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "STREAM",
        "CLUSTER",
        "STATE",
        "RECORDS",
        "BYTES",
        "BEHIND",
        "P50 MS",
        "P99",
        "P99.9",
        "P99.99",
        "MAX",
        "HOP P99",
        "CACHE %"
    )
}

impl MonitorLine {
    /// A row of the table, with a row for each thing that has to be said.
    pub fn row(&self) -> String {
        let number =
            |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"));
        let MonitorPercentiles { p50_ms, p99_ms, p999_ms, p9999_ms, max_ms, .. } = self.delay;
        let mut row = format!(
            "{:20} {:12} {:13} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            self.stream,
            self.cluster,
            self.state.in_words(),
            self.records,
            output::bytes(self.bytes),
            self.behind.map_or_else(|| "-".to_owned(), |behind| behind.to_string()),
            number(p50_ms),
            number(p99_ms),
            number(p999_ms),
            number(p9999_ms),
            number(max_ms),
            number(self.hop.as_ref().and_then(|hop| hop.delay.p99_ms)),
            self.cache_share.map_or_else(|| "-".to_owned(), |share| format!("{:.3}", share * 100.0)),
        );
        for note in self.notes() {
            row += "\n  ";
            row += &note;
        }
        row
    }

    /// What has to be said, in words.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.why.iter().chain(&self.stuck).cloned().collect();
        let checked = &self.checked;
        if let Some(first) = &checked.first {
            notes.push(format!(
                "what was read is not what was written: {} and {} since the monitor began; {first}",
                output::counted(checked.differing_ranges, "differing range"),
                output::counted(checked.lost_records, "lost record"),
            ));
        }
        if let Some(why) = &checked.why {
            notes.push(format!("what was written is not read, and nothing is compared: {why}"));
        }
        for objective in self.objectives.iter().filter(|objective| objective.is_broken) {
            notes.push(format!(
                "the objective {} is broken: {} was good, and {} has to be",
                objective.objective,
                objective.share.unwrap_or_default(),
                objective.target
            ));
        }
        if let (Some(ahead), Some(error)) = (self.clock_ahead_ms, self.clock_error_ms)
            && ahead.unsigned_abs() > error.max(CLOCK_AHEAD_TOLD_MS)
        {
            let (by, where_to) = (ahead.unsigned_abs(), if ahead > 0 { "ahead of" } else { "behind" });
            notes.push(format!("its clock is {by} ms {where_to} this one's, give or take {error}"));
        }
        if self.early_records > 0 {
            let (records, most) = (output::counted(self.early_records, "record"), self.early_max_ms);
            notes.push(format!(
                "{records} came before their timestamps, by up to {most} ms: delays are too short"
            ));
        }
        notes
    }

    /// Which stream, and where.
    pub fn place(&self) -> String {
        format!("{} in {}", self.stream, self.cluster)
    }

    /// Whether something is not as it has to be that the monitor's exit status tells.
    pub fn is_broken(&self) -> bool {
        let checked = &self.checked;
        let is_other = checked.differing_ranges > 0 || checked.lost_records > 0;
        is_other || self.objectives.iter().any(|objective| objective.is_broken)
    }
}
