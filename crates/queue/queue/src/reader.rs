//! Reads contents from the tree, on a thread of its own: a receive whose messages are not in memory waits for it, and
//! nobody else does. What owners want to be read ahead comes after what somebody waits for.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard, mpsc, oneshot};

use crate::core::ReadAhead;
use crate::ids::Number;
use crate::limits::READ_AHEAD_BYTES;
use crate::request::QueueRequest;
use crate::tree::{Tree, TreeError};

/// Contents that somebody waits for.
pub(crate) struct Read {
    pub(crate) numbers: Vec<Number>,
    pub(crate) reply: oneshot::Sender<Result<Vec<Option<Bytes>>, TreeError>>,
}

/// Contents that an owner wants to have in memory before they are received.
pub(crate) struct AheadRead {
    /// The owner's place.
    pub(crate) owner: usize,
    pub(crate) ahead: ReadAhead,
}

/// Held by whoever is at the tree, where only one may be at a time ([`crate::QueuesConfig::one_at_the_tree`]).
pub(crate) type Gate = Option<Arc<Mutex<()>>>;

/// Waits until the tree may be used.
pub(crate) async fn enter(gate: &Gate) -> Option<MutexGuard<'_, ()>> {
    match gate {
        Some(gate) => Some(gate.lock().await),
        None => None,
    }
}

/// Reads contents.
pub(crate) struct Reader {
    pub(crate) tree: Arc<Tree>,
    pub(crate) owners: Vec<mpsc::Sender<QueueRequest>>,
    pub(crate) gate: Gate,
}

impl Reader {
    /// Answers reads until nobody can ask any more.
    pub(crate) async fn run(self, mut reads: mpsc::Receiver<Read>, mut aheads: mpsc::Receiver<AheadRead>) {
        loop {
            tokio::select! {
                biased;
                read = reads.recv() => {
                    let Some(Read { numbers, reply }) = read else { return };
                    let _entered = enter(&self.gate).await;
                    // Whoever is gone does not need it.
                    if !reply.is_closed() {
                        let _ = reply.send(self.tree.contents(&numbers, usize::MAX));
                    }
                }
                Some(ahead) = aheads.recv() => self.read_ahead(ahead).await,
            }
        }
    }

    async fn read_ahead(&self, AheadRead { owner, ahead: ReadAhead { queue, wanted } }: AheadRead) {
        let numbers: Vec<Number> = wanted.iter().map(|(_, number)| *number).collect();
        let entered = enter(&self.gate).await;
        // Whoever receives them will be told what is wrong with the tree.
        let contents = self.tree.contents(&numbers, READ_AHEAD_BYTES).unwrap_or_default();
        drop(entered);
        let read = wanted.into_iter().zip(contents);
        let read = read.filter_map(|((sequence, number), content)| Some((sequence, number, content?)));
        // The owner is gone: then so is its queue.
        let _ = self.owners[owner].send(QueueRequest::Ahead(queue, read.collect())).await;
    }
}
