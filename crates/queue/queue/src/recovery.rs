//! From the tree and the journal's records to the queues.
//!
//! ```text
//! let mut recovery = Recovery::begin(&env, dir)?;
//! let journal = Journal::open(&env, journal_dir, config, &mut |tag, position, bytes| match tag {
//!     queue::TAG => recovery.replay(position, bytes),
//!     ..
//! })?;
//! let queues = recovery.finish(&env, journal, QueuesConfig::default());
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tailwater_env::Env;
use tailwater_journal::{Journal, JournalPosition, ReplayError};

use crate::clock::QueueClock;
use crate::ids::{QueueId, Secret, Sequence};
use crate::queues::{Queues, QueuesConfig};
use crate::record::{self, QueueOp};
use crate::shelf::Shelf;
use crate::tree::{Tree, TreeError};

/// Queues that are being recovered.
pub struct Recovery {
    tree: Tree,
    secret: Secret,
    covered: JournalPosition,
    shelf: Shelf,
    /// Messages whose move went to a queue that is not there, by that queue.
    stayed: BTreeMap<QueueId, Vec<(QueueId, Sequence)>>,
    now: u64,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovery").field("covered", &self.covered).finish_non_exhaustive()
    }
}

impl Recovery {
    /// Reads the tree in `dir`, making it if it is not there: all but the contents. Blocks on the disk.
    pub fn begin(env: &Env, dir: &Path) -> Result<Self, TreeError> {
        let tree = Tree::open(env, dir)?;
        let mut shelf = Shelf::default();
        let now = QueueClock::start(env, 0).now();
        tree.load(&mut shelf, now)?;
        let (secret, covered) = (tree.secret()?, tree.covered()?);
        Ok(Self { tree, secret, covered, shelf, stayed: BTreeMap::new(), now })
    }

    /// Takes a record of [`crate::TAG`] from the journal's replay.
    pub fn replay(&mut self, position: JournalPosition, bytes: &[u8]) -> Result<(), ReplayError> {
        // Files are trimmed whole.
        if position <= self.covered {
            return Ok(());
        }
        let ops = record::read(bytes)
            .map_err(|error| ReplayError::new(format!("a record of the queues can't be read: {error}")))?;
        for op in ops {
            self.mind_dropped(&op);
            self.shelf.apply(op, self.now);
        }
        Ok(())
    }

    /// The tree may know already that a queue was deleted where the journal is still moving messages there. They stay
    /// where they are when their move is applied, and go when the journal comes to the deletion.
    fn mind_dropped(&mut self, op: &QueueOp) {
        match op {
            QueueOp::Move { queue, sequence, to, .. } if !self.shelf.queues.contains_key(to) => {
                self.stayed.entry(*to).or_default().push((*queue, *sequence));
            }
            QueueOp::Drop { queue, .. } => {
                for (queue, sequence) in self.stayed.remove(queue).unwrap_or_default() {
                    self.shelf.apply(QueueOp::Delete { queue, sequence }, self.now);
                }
            }
            _ => {}
        }
    }

    /// How many queues there are by what was replayed.
    pub fn queues(&self) -> usize {
        self.shelf.queues.len()
    }

    /// Everything was replayed: the queues go on in `journal`.
    pub fn finish(self, env: &Env, journal: Journal, config: QueuesConfig) -> Queues {
        Queues::start(env, journal, Arc::new(self.tree), self.secret, self.shelf, config)
    }
}
