//! A consumer that is stopped (SIGSTOP) for a while: what the others notice, and how it catches up.
//!
//! ```text
//!   measured time:  before | stopped | catching_up | after
//!                          ^ SIGSTOP ^ SIGCONT     ^ its first report without a record that is older than 1 s
//! ```
//!
//! The consumer has a process to itself, so that nobody else stands still with it. What the others report belongs to
//! the part in which the report arrives, which may be [`TICK_MS`] late.

use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use tailwater_client::ReaderConfig;

use crate::child::Child;
use crate::clock::monotonic_ns;
use crate::limits::KEPT_UP_WITHIN;
use crate::messages::{ReadingFlags, Reads};
use crate::stats::{Durations, PercentilesMs, round};

/// How often consumers report while one of them is stopped: what the times of this module are exact to.
pub const TICK_MS: u64 = 100;

/// Shortest stop: its records then are old enough to be told from those that are late by chance.
const STOP_MIN: Duration = Duration::from_secs(2);

/// When, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct StopOne {
    /// Since the measured time began.
    after: Duration,
    /// How long it stands still.
    lasts: Duration,
}

impl StopOne {
    /// A stop of `seconds` in a measured time of `duration_s`: a quarter of what is left comes before it, the rest is
    /// for catching up and for what comes after. An error if too little is left, or the stop is too short.
    pub fn within(seconds: f64, duration_s: f64) -> anyhow::Result<Self> {
        anyhow::ensure!(
            seconds >= STOP_MIN.as_secs_f64(),
            "--stop-one {seconds}: {} seconds or more",
            STOP_MIN.as_secs()
        );
        anyhow::ensure!(
            duration_s >= 1.5 * seconds,
            "--duration-s {duration_s} is too short for a stop of {seconds} s and catching up: {} or more",
            (1.5 * seconds).ceil()
        );
        let after = Duration::from_secs_f64((duration_s - seconds) / 4.0);
        Ok(Self { after, lasts: Duration::from_secs_f64(seconds) })
    }
}

/// Parts of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoppingPart {
    WarmUp,
    Before,
    Stopped,
    CatchingUp,
    After,
}

/// The consumer that is stopped, and what is known of it and of the others.
pub struct Stopping {
    plan: StopOne,
    /// Number of its process.
    process: usize,
    /// How fast its backlog may shrink, in bytes a second.
    catch_up_bytes_per_s: u64,
    part: StoppingPart,
    /// Delays of the others: before, stopped, catching up, after.
    others: [Durations; 4],
    /// Its last report before it was stopped.
    at_stop: ReadingFlags,
    continued_ns: u64,
    /// Whether a record has come that waited for it.
    saw_old: bool,
    /// Its last report, or the one with which it had caught up.
    last: ReadingFlags,
}

impl Stopping {
    /// Process `process` will be stopped, whose backlog may shrink by so many bytes a second, or as the client library
    /// has it.
    pub fn new(plan: StopOne, process: usize, catch_up_bytes_per_s: Option<u64>) -> Self {
        Self {
            plan,
            process,
            catch_up_bytes_per_s: catch_up_bytes_per_s
                .unwrap_or(ReaderConfig::default().catch_up_bytes_per_s),
            part: StoppingPart::WarmUp,
            others: Default::default(),
            at_stop: ReadingFlags::default(),
            continued_ns: 0,
            saw_old: false,
            last: ReadingFlags::default(),
        }
    }

    /// Stops and continues it when it is time. `elapsed` is counted from the beginning of the measured time.
    pub fn act(&mut self, elapsed: Option<Duration>, workers: &[Child]) -> anyhow::Result<()> {
        let Some(elapsed) = elapsed else { return Ok(()) };
        if let Some(signal) = self.next(elapsed, monotonic_ns()) {
            workers[self.process].signal(signal)?;
        }
        Ok(())
    }

    /// What to send at this time.
    fn next(&mut self, elapsed: Duration, now_ns: u64) -> Option<Signal> {
        match self.part {
            StoppingPart::WarmUp => {
                self.part = StoppingPart::Before;
                None
            }
            StoppingPart::Before if elapsed >= self.plan.after => {
                self.part = StoppingPart::Stopped;
                self.at_stop = self.last.clone();
                Some(Signal::STOP)
            }
            StoppingPart::Stopped if elapsed >= self.plan.after + self.plan.lasts => {
                self.part = StoppingPart::CatchingUp;
                self.continued_ns = now_ns;
                Some(Signal::CONT)
            }
            _ => None,
        }
    }

    /// Takes in a report of any process.
    pub fn heard(&mut self, process: usize, reading: &ReadingFlags) {
        if process == self.process {
            self.heard_of_it(reading);
            return;
        }
        let part = match self.part {
            StoppingPart::WarmUp => return,
            StoppingPart::Before => 0,
            StoppingPart::Stopped => 1,
            StoppingPart::CatchingUp => 2,
            StoppingPart::After => 3,
        };
        self.others[part].add_sparse(&reading.delays);
    }

    fn heard_of_it(&mut self, reading: &ReadingFlags) {
        if self.part == StoppingPart::After {
            return;
        }
        self.last = reading.clone();
        if self.part != StoppingPart::CatchingUp {
            return;
        }
        // Its first report may still be about records from before the stop.
        let Some(longest) = reading.delays.longest() else { return };
        self.saw_old |= longest >= self.plan.lasts / 2;
        if self.saw_old && longest < KEPT_UP_WITHIN {
            self.part = StoppingPart::After;
        }
    }

    /// What is known at the end.
    pub fn report(&self) -> Report {
        let [before, stopped, catching_up, after] = self.others.each_ref().map(Durations::percentiles_ms);
        let ratio = |part: &PercentilesMs| {
            let known = before.p99 > 0.0 && part.p99 > 0.0;
            known.then(|| round(part.p99 / before.p99, 3))
        };
        let took_s = self.last.at_ns.saturating_sub(self.continued_ns) as f64 / 1e9;
        let reads = self.last.reads.since(self.at_stop.reads);
        let mbyte_s = |bytes: u64| if took_s > 0.0 { round(bytes as f64 / took_s / 1e6, 2) } else { 0.0 };
        Report {
            stopped_s: self.plan.lasts.as_secs_f64(),
            others_p99_ratio: Ratios {
                stopped: ratio(&stopped),
                catching_up: ratio(&catching_up),
                after: ratio(&after),
            },
            others_delay_ms: Parts { before, stopped, catching_up, after },
            caught_up_s: (self.part == StoppingPart::After).then(|| round(took_s, 2)),
            delivered_mbyte_s: mbyte_s(self.last.delivered_bytes - self.at_stop.delivered_bytes),
            read_mbyte_s: mbyte_s(reads.cell_bytes + reads.durable_bytes),
            limit_mbyte_s: Limits {
                all: round(ReaderConfig::default().bytes_per_s as f64 / 1e6, 2),
                backlog: round(self.catch_up_bytes_per_s as f64 / 1e6, 2),
            },
            reads,
        }
    }
}

/// What is reported of it.
#[derive(Serialize)]
pub struct Report {
    stopped_s: f64,
    /// Delays of all other consumers in the parts of the measured time.
    others_delay_ms: Parts,
    /// Their p99 as a multiple of that from before; `None` for a part in which nothing was reported.
    others_p99_ratio: Ratios,
    /// From SIGCONT until it was less than a second behind; `None`: not before the producer had ended.
    caught_up_s: Option<f64>,
    /// What it was given in that time, and what was read for it.
    delivered_mbyte_s: f64,
    read_mbyte_s: f64,
    /// What its process's reads are bounded by: in all, and of backlogs, beyond what is written meanwhile.
    limit_mbyte_s: Limits,
    /// What it took to catch up.
    reads: Reads,
}

#[derive(Serialize)]
struct Parts {
    before: PercentilesMs,
    stopped: PercentilesMs,
    catching_up: PercentilesMs,
    after: PercentilesMs,
}

#[derive(Serialize)]
struct Ratios {
    stopped: Option<f64>,
    catching_up: Option<f64>,
    after: Option<f64>,
}

#[derive(Serialize)]
struct Limits {
    all: f64,
    backlog: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_s: u64, delay_ms: u64, durable: u64) -> ReadingFlags {
        let mut delays = Durations::default();
        delays.record(delay_ms * 1_000_000);
        let reads = Reads { durable, durable_bytes: durable * 1_000_000, ..Reads::default() };
        let at_ns = at_s * 1_000_000_000;
        ReadingFlags {
            at_ns,
            delays: delays.to_sparse(),
            reads,
            delivered_bytes: at_s,
            ..ReadingFlags::default()
        }
    }

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Stopped from second 10 to 70 of the measured time, which begins at second 0.
    fn stopped() -> Stopping {
        let mut stopping = Stopping::new(StopOne { after: second(10), lasts: second(60) }, 1, None);
        stopping.heard(0, &reading(0, 900, 0));
        assert_eq!(stopping.next(second(0), 0), None);
        stopping.heard(0, &reading(5, 10, 0));
        stopping.heard(1, &reading(9, 10, 7));
        assert_eq!(stopping.next(second(10), 10_000_000_000), Some(Signal::STOP));
        stopping.heard(0, &reading(20, 11, 0));
        assert_eq!(stopping.next(second(69), 69_000_000_000), None);
        assert_eq!(stopping.next(second(70), 70_000_000_000), Some(Signal::CONT));
        stopping
    }

    #[test]
    fn a_consumer_has_caught_up_when_nothing_old_comes_any_more() {
        let mut stopping = stopped();
        // From before the stop, and no sign of having caught up.
        stopping.heard(1, &reading(70, 10, 7));
        stopping.heard(1, &reading(71, 60_000, 20));
        stopping.heard(0, &reading(71, 12, 0));
        stopping.heard(1, &reading(72, 1_500, 35));
        stopping.heard(1, &reading(74, 20, 37));
        stopping.heard(0, &reading(75, 10, 0));
        stopping.heard(1, &reading(90, 20, 99));
        let report = stopping.report();
        assert_eq!(report.caught_up_s, Some(4.0));
        assert_eq!((report.reads.durable, report.read_mbyte_s), (30, 7.5));
        let delays = &report.others_delay_ms;
        let most = [&delays.before, &delays.stopped, &delays.catching_up, &delays.after].map(|part| part.max);
        assert_eq!(most, [10.0, 11.0, 12.0, 10.0]);
        assert_eq!(report.others_p99_ratio.stopped, Some(1.1));
    }

    #[test]
    fn a_consumer_that_still_gets_old_records_at_the_end_has_not_caught_up() {
        let mut stopping = stopped();
        stopping.heard(1, &reading(71, 60_000, 20));
        let report = stopping.report();
        assert_eq!(report.caught_up_s, None);
        assert_eq!(report.others_p99_ratio.after, None);
    }

    #[test]
    fn a_stop_needs_time_before_and_after_it() {
        assert!(StopOne::within(60.0, 89.0).is_err());
        assert!(StopOne::within(1.0, 10.0).is_err());
        let plan = StopOne::within(60.0, 120.0).expect("time enough");
        assert_eq!((plan.after, plan.lasts), (second(15), second(60)));
    }
}
