//! Reads contents from the tree, on a thread of its own: a receive whose messages are not in memory waits for it, and
//! nobody else does.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard, mpsc, oneshot};

use crate::ids::Number;
use crate::tree::{Tree, TreeError};

/// Contents that somebody waits for.
pub(crate) struct Read {
    pub(crate) numbers: Vec<Number>,
    pub(crate) reply: oneshot::Sender<Result<Vec<Option<Bytes>>, TreeError>>,
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

/// Answers reads until nobody can ask any more.
pub(crate) async fn run(tree: Arc<Tree>, mut reads: mpsc::Receiver<Read>, gate: Gate) {
    while let Some(Read { numbers, reply }) = reads.recv().await {
        let _entered = enter(&gate).await;
        // Whoever is gone does not need it.
        if !reply.is_closed() {
            let _ = reply.send(tree.contents(&numbers));
        }
    }
}
