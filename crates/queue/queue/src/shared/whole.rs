//! Calls that go on to their end when nobody waits for them any more, and what they have received then.
//!
//! A send between its body and its tuple, a receive between the new tuple and the old one: whoever asks may leave in
//! between, and nobody would come back for the rest. So these are tasks of their own, which a call only waits for. What
//! they take together is bounded.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{KnownQueue, SharedFront};
use crate::ids::Receipt;
use crate::limits::CALLS_KIB;
use crate::request::{Message, QueueError};

/// KiB that are counted for a call that does not bring much, and for one that may come to have much.
pub(super) const SMALL_KIB: usize = 1;
/// See [`SMALL_KIB`].
pub(super) const RECEIVE_KIB: usize = 64;

impl SharedFront {
    /// Does something as a task of its own, for which so much is counted while it is under way.
    pub(super) async fn whole<T: Send + 'static>(
        &self,
        kib: usize,
        call: impl Future<Output = Result<T, QueueError>> + Send + 'static,
    ) -> Result<T, QueueError> {
        let kib = u32::try_from(kib.clamp(1, CALLS_KIB)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.calls).acquire_many_owned(kib).await;
        let room = room.map_err(|_| QueueError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let call = async move {
            let _ = reply.send(call.await);
            drop(room);
        };
        self.env.spawn("queue-call", call).detach();
        answer.await.unwrap_or(Err(QueueError::Closed))
    }
}

/// Messages that were received, until they are handed out. Dropped before, it gives them back.
pub(super) struct HeldCall {
    front: Arc<SharedFront>,
    known: Arc<KnownQueue>,
    messages: Vec<Message>,
}

impl HeldCall {
    pub(super) fn new(front: &Arc<SharedFront>, known: &Arc<KnownQueue>, messages: Vec<Message>) -> Self {
        Self { front: Arc::clone(front), known: Arc::clone(known), messages }
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn handed_out(mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        let receipts: Vec<Receipt> = self.messages.iter().map(|message| message.receipt).collect();
        if receipts.is_empty() {
            return;
        }
        let (front, known) = (Arc::clone(&self.front), Arc::clone(&self.known));
        let give_back = async move {
            // If it fails they are visible when their timeout is over.
            let _ = front.give_back(&known, receipts).await;
        };
        self.front.env.spawn("queue-give-back", give_back).detach();
    }
}
