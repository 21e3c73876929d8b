//! How the queues of a store that several front ends share are used: known also to a build that has no such store.

use crate::settings::Consistency;

/// How front ends use a shared store. All of one store have to agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedConfig {
    /// The level of queues that do not say.
    pub consistency: Consistency,
    /// How far the clocks of any two front ends may be apart, in milliseconds.
    pub skew_ms: u64,
    /// Over how many partitions a new queue's messages of the same time are spread, 1 to [`crate::limits::PARTS_MAX`]:
    /// a receive reads them all.
    pub parts: u16,
    /// Pause between two sweeps of a queue, in milliseconds.
    pub sweep_ms: u64,
    /// How old what a front end knows of a queue's settings may be, in milliseconds.
    pub directory_ms: u64,
    /// Whether a minute has to be between two purges of a queue, and between its deletion and its name's next use.
    pub cooldowns: bool,
}

impl Default for SharedConfig {
    fn default() -> Self {
        Self {
            consistency: Consistency::Quorum,
            skew_ms: 1_000,
            parts: 2,
            sweep_ms: 600_000,
            directory_ms: 1_000,
            cooldowns: true,
        }
    }
}
