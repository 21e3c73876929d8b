//! One stream's events in memory; collections are not applied yet.

use crate::batch::Batch;

/// How a history is kept.
#[derive(Clone, Debug, Default)]
pub struct HistoryOptions {
    /// Of the hashes in its index: a random number, so that nobody can choose keys with equal hashes.
    pub seed: u64,
}

/// One stream's events.
#[derive(Debug, Default)]
pub struct History {
    batches: Vec<Batch>,
}

/// An event that the head may not number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused")]
pub struct Refusal;

/// A batch that does not follow what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch begins after event {after}, but the history ends with event {last}")]
pub struct Gap {
    /// The number before the batch's first.
    pub after: u64,
    /// The history's last.
    pub last: u64,
}

impl History {
    /// An empty one.
    pub fn new(_options: HistoryOptions) -> Self {
        Self::default()
    }

    /// The number of its last event.
    pub fn last(&self) -> u64 {
        self.batches.last().map_or(0, |batch| batch.last)
    }

    /// Whether the head may give the events their numbers.
    pub fn admit(&self, _batch: &Batch) -> Result<(), Refusal> {
        Ok(())
    }

    /// Adds a batch, but for what it has already.
    pub fn append(&mut self, batch: &Batch) -> Result<(), Gap> {
        let last = self.last();
        if batch.after > last {
            return Err(Gap { after: batch.after, last });
        }
        self.batches.extend(batch.rest(last).ok().flatten());
        Ok(())
    }

    /// What follows `after`, up to `up_to`.
    pub fn read(&self, after: u64, up_to: u64, _bytes_max: usize) -> Option<Batch> {
        let at = self.batches.partition_point(|batch| batch.last <= after);
        self.batches.get(at)?.rest(after).ok()??.up_to(up_to).ok()?
    }

    /// Goes on with what is due.
    pub fn sweep(&mut self, _steps: usize) -> bool {
        false
    }
}
