//! Retention by age: heads remove what is a few seconds old, while listeners read nothing or are away, links and
//! regions are cut, and replicas crash and come back.
//!
//! Checked beside all else: a head removes nothing that is younger; a listener is told of what was removed before it
//! got it, and of no more; and in the end no replica of any region keeps what was removed.

use super::Sim;
use super::clients::{Client, Listener};
use crate::checkers::{Violation, ensure};

/// How long streams hold their events, between these.
pub(super) const MS: (u64, u64) = (1_500, 5_000);
/// Clocks differ by less than that, and what is removed is told everywhere by then.
const MORE_MS: u64 = 5_000;

impl Sim {
    /// Nothing is published any more until all is old enough; and all replicas hear of that.
    pub(super) fn all_expires(&mut self) -> Result<(), Violation> {
        let end_ms = self.now_ms + self.retention_ms + MORE_MS;
        while self.now_ms < end_ms {
            self.step(false)?;
        }
        for (pid, node) in &self.nodes {
            for stream in self.truths.streams() {
                let removed = node.replica.stream(stream).map_or(0, |state| state.history.removed());
                let wanted = self.truths.removed_of(stream);
                ensure(removed == wanted, || {
                    format!(
                        "replica {pid} keeps {stream} from {removed} on, and retention removed it up to {wanted}"
                    )
                })?;
            }
            self.report.count("removed", node.replica.counters.removed);
        }
        // Who begins now is told.
        for region in 0..self.regions.len() {
            self.client(Client::Listener(Listener::new(region, self.plant)));
        }
        self.settle()
    }
}
