//! Checkpoints: what the owners have that the tree has not goes there, and the journal need not keep it.
//!
//! Each owner says what has changed since the last one, and up to which position of the journal everything is in that.
//! The least of these positions is what the tree covers when the transaction is durable; only then is the journal
//! trimmed. An operation beyond it may be in the tree already: replaying it changes nothing.
//!
//! A checkpoint that fails is tried again with the same changes until it succeeds; the journal keeps everything
//! meanwhile, and refuses more when it is full.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tailwater_journal::{Journal, JournalPosition, Tag};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::ids::{Number, QueueId};
use crate::limits::TREE_RETRY_MS;
use crate::reader::{Gate, enter};
use crate::request::QueueRequest;
use crate::shelf::ShelfDelta;
use crate::tree::{Checkpoint, Tree};

/// The tag of the queues' records in the journal.
pub const TAG: Tag = Tag(3);

/// What a checkpoint writes of one owner.
#[derive(Default)]
pub(crate) struct OwnerDelta {
    pub(crate) shelf: ShelfDelta,
    pub(crate) covered: JournalPosition,
    pub(crate) next_number: Number,
    pub(crate) next_queue: QueueId,
}

/// Takes checkpoints.
pub(crate) struct Checkpointer {
    pub(crate) env: Env,
    pub(crate) journal: Journal,
    pub(crate) tree: Arc<Tree>,
    pub(crate) owners: Vec<mpsc::Sender<QueueRequest>>,
    /// Rung by owners that have journalled enough.
    pub(crate) due: Arc<Notify>,
    pub(crate) gate: Gate,
    /// What the last checkpoint since the start covers. Goes forward only.
    pub(crate) covered: JournalPosition,
}

impl Checkpointer {
    /// Takes checkpoints for as long as it is not dropped; on a thread of its own, as it blocks on the disk.
    pub(crate) async fn run(mut self, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut may_sweep = true;
        loop {
            // Between two steps of sweeping, what is due comes first.
            let pause = self.env.sleep(Duration::from_millis(if may_sweep { 1 } else { TREE_RETRY_MS }));
            let reply = tokio::select! {
                biased;
                asked = asked.recv() => match asked {
                    Some(reply) => Some(reply),
                    None => return,
                },
                () = self.due.notified() => None,
                _ = self.journal.trim_wanted(TAG) => None,
                () = pause, if may_sweep => {
                    let entered = enter(&self.gate).await;
                    let swept = self.tree.sweep();
                    drop(entered);
                    may_sweep = match swept {
                        Ok(more) => more,
                        Err(error) => {
                            tracing::warn!(%error, "what was purged can't be removed yet, trying on");
                            self.env.sleep(Duration::from_millis(TREE_RETRY_MS)).await;
                            true
                        }
                    };
                    continue;
                }
            };
            if !self.checkpoint().await {
                return;
            }
            may_sweep = true;
            if let Some(reply) = reply {
                let _ = reply.send(());
            }
        }
    }

    /// One checkpoint; false if the owners are gone.
    async fn checkpoint(&mut self) -> bool {
        let mut checkpoint = Checkpoint {
            covered: JournalPosition(u64::MAX),
            next_number: Number::default(),
            next_queue: QueueId::default(),
            shelves: Vec::with_capacity(self.owners.len()),
        };
        for owner in &self.owners {
            let (reply, delta) = oneshot::channel();
            if owner.send(QueueRequest::Delta(reply)).await.is_err() {
                return false;
            }
            let Ok(delta) = delta.await else { return false };
            checkpoint.covered = checkpoint.covered.min(delta.covered);
            checkpoint.next_number = checkpoint.next_number.max(delta.next_number);
            checkpoint.next_queue = checkpoint.next_queue.max(delta.next_queue);
            checkpoint.shelves.push(delta.shelf);
        }
        let (before, covered) = (self.covered, checkpoint.covered);
        assert!(before <= covered, "checkpoints go forward only: from {before} to {covered}");
        self.covered = covered;
        loop {
            let entered = enter(&self.gate).await;
            let committed = self.tree.commit(&checkpoint);
            drop(entered);
            let Err(error) = committed else { break };
            tracing::warn!(%error, "no checkpoint of the queues can be taken, trying on");
            self.env.sleep(Duration::from_millis(TREE_RETRY_MS)).await;
        }
        self.journal.trim(TAG, checkpoint.covered);
        for (owner, shelf) in self.owners.iter().zip(checkpoint.shelves) {
            let numbers = shelf.contents.into_iter().map(|(number, _)| number).collect();
            if owner.send(QueueRequest::Stored(numbers)).await.is_err() {
                return false;
            }
        }
        true
    }
}
