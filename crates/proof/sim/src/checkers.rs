//! What must hold, checked from outside: each checker is told what happened and answers the first violation.
//!
//! Checkers know nothing of the code under test. They work on identities that a scenario puts into its records,
//! so that a record that was never written, or was written for somebody else, is noticed too.

mod ledger;
mod shard;

use std::collections::BTreeMap;
use std::fmt;

pub use ledger::{DeliveryLedger, RecordId};
pub use shard::ShardChecker;

/// A guarantee that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Violation {
    /// What was promised, and what happened instead.
    pub what: String,
}

impl Violation {
    /// A violation in words.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

/// Answers a violation unless the condition holds.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation::new(what())) }
}

/// What a scenario went through: its trace, and how often things happened, so that a scenario that tests nothing
/// is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The world's trace at the end.
    pub trace: u64,
    /// Number of events in it.
    pub events: u64,
    /// How often what happened.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Counts something.
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Report) {
        self.events += other.events;
        for (what, times) in &other.counts {
            self.count(what, *times);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events", self.events)?;
        for (what, times) in &self.counts {
            write!(f, ", {times} {what}")?;
        }
        Ok(())
    }
}
