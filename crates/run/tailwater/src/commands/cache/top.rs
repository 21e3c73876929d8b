//! `tailwater cache top`: what a cell's backends do, as the differences of what they counted.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tailwater_cache::{BackendStats, Cell};
use tailwater_env::Env;

use crate::output::{self, Format};

/// What a backend did between two looks.
#[derive(Debug, PartialEq, Serialize)]
struct BackendRates {
    number: u32,
    entries: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    sets_per_s: f64,
    erases_per_s: f64,
    /// Mutations that came after a higher version.
    superseded_per_s: f64,
    /// Keys that readers asked for by a CALL.
    lookups_per_s: f64,
    evicted_per_s: f64,
    expired_per_s: f64,
    /// Values copied from other backends.
    copied_per_s: f64,
    /// The age of what was evicted last; none if nothing was.
    evicted_age_s: Option<f64>,
    /// How long ago that had been set or read, as far as clients tell.
    evicted_unused_s: Option<f64>,
    /// Values that clients told of as read.
    touches_per_s: f64,
    unfilled_buckets: u64,
    /// Keys of which the last comparison with others found that something had been missed.
    dirty: u64,
}

impl BackendRates {
    /// `before` is of the same start of the backend, or of one before: then counts begin again.
    fn between(number: u32, before: &BackendStats, now: &BackendStats, seconds: f64) -> Self {
        let rate = |read: fn(&BackendStats) -> u64| {
            let (before, now) = (read(before), read(now));
            (now.checked_sub(before).unwrap_or(now) as f64 / seconds * 10.0).round() / 10.0
        };
        Self {
            number,
            entries: now.items,
            live_bytes: now.live_bytes,
            capacity_bytes: now.capacity_bytes,
            sets_per_s: rate(|of| of.sets),
            erases_per_s: rate(|of| of.erases),
            superseded_per_s: rate(|of| of.superseded),
            lookups_per_s: rate(|of| of.lookups),
            evicted_per_s: rate(|of| of.evicted),
            expired_per_s: rate(|of| of.expired),
            copied_per_s: rate(|of| of.copied),
            evicted_age_s: (now.evicted > 0).then_some(now.evicted_age_ms as f64 / 1_000.0),
            evicted_unused_s: (now.evicted > 0).then_some(now.evicted_unused_ms as f64 / 1_000.0),
            touches_per_s: rate(|of| of.touches),
            unfilled_buckets: now.unfilled_buckets,
            dirty: now.dirty,
        }
    }

    fn row(&self) -> [String; 13] {
        let full = self.live_bytes as f64 / self.capacity_bytes.max(1) as f64 * 100.0;
        let state = match (self.unfilled_buckets, self.dirty) {
            (0, 0) => "whole".to_owned(),
            (0, dirty) => format!("mended {dirty}"),
            _ => "refilling".to_owned(),
        };
        [
            self.number.to_string(),
            self.entries.to_string(),
            format!("{full:.1} %"),
            self.sets_per_s.to_string(),
            self.erases_per_s.to_string(),
            self.superseded_per_s.to_string(),
            self.lookups_per_s.to_string(),
            self.touches_per_s.to_string(),
            self.evicted_per_s.to_string(),
            self.evicted_age_s.map_or_else(|| "-".to_owned(), |age| format!("{age:.1} s")),
            self.expired_per_s.to_string(),
            self.copied_per_s.to_string(),
            state,
        ]
    }
}

/// Shows it every so often, as often as `count` says.
pub(super) async fn run(cell: Cell, every: Duration, count: Option<u64>, form: Format) -> anyhow::Result<()> {
    let env = Env::real();
    let look = async || cell.backend_stats().await.into_iter().collect::<BTreeMap<u32, BackendStats>>();
    let (mut before, mut since) = (look().await, env.now());
    let mut looks = 0;
    while count.is_none_or(|count| looks < count) {
        env.sleep(every).await;
        let (now, at) = (look().await, env.now());
        let seconds = at.since(since).as_secs_f64();
        let rates: Vec<BackendRates> = now
            .iter()
            // One that comes anew has counted since before the last look, too.
            .map(|(number, of)| (number, before.get(number).unwrap_or(of), of))
            .map(|(number, before, of)| BackendRates::between(*number, before, of, seconds))
            .collect();
        match form {
            Format::Json => output::print_json(&rates)?,
            Format::Table => show(&cell, &rates)?,
        }
        (before, since) = (now, at);
        looks += 1;
    }
    Ok(())
}

fn show(cell: &Cell, rates: &[BackendRates]) -> anyhow::Result<()> {
    let mut table = output::table(&[
        "BACKEND",
        "VALUES",
        "FULL",
        "SETS/s",
        "ERASES/s",
        "REFUSED/s",
        "CALLED/s",
        "TOUCHED/s",
        "EVICTED/s",
        "AT AGE",
        "EXPIRED/s",
        "COPIED/s",
        "STATE",
    ]);
    for of in rates {
        table.add_row(of.row());
    }
    output::print(&table)?;
    let all = cell.configuration().members().count();
    output::print(&format!("{} of {all} backends answer\n", rates.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_and_begin_again_with_a_backend_that_starts_again() {
        let before = BackendStats { sets: 100, evicted: 7, ..BackendStats::default() };
        let now = BackendStats { sets: 150, evicted: 7, evicted_age_ms: 1_500, ..BackendStats::default() };
        let rates = BackendRates::between(2, &before, &now, 2.0);
        assert_eq!((rates.sets_per_s, rates.evicted_per_s, rates.evicted_age_s), (25.0, 0.0, Some(1.5)));
        let again = BackendStats { sets: 10, ..BackendStats::default() };
        assert_eq!(BackendRates::between(2, &before, &again, 2.0).sets_per_s, 5.0);
        assert_eq!(BackendRates::between(2, &again, &again, 2.0).evicted_age_s, None);
    }
}
