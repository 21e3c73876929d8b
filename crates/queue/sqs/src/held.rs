//! Messages that were received for an answer that is not made yet.

use std::sync::Arc;

use tailwater_env::Env;
use tailwater_queue::{Message, QueueStore, QueueView, Receipt};

/// Dropped, it gives them back: the answer is refused, or the client is gone. As if they had not been received, or it
/// would take a message to its dead-letter queue that nobody takes answers with it.
pub(crate) struct Held {
    env: Env,
    queues: Arc<dyn QueueStore>,
    queue: Arc<QueueView>,
    receipts: Vec<Receipt>,
}

impl Held {
    pub(crate) fn new(
        env: &Env,
        queues: &Arc<dyn QueueStore>,
        queue: &Arc<QueueView>,
        messages: &[Message],
    ) -> Self {
        let receipts = messages.iter().map(|message| message.receipt).collect();
        Self { env: env.clone(), queues: Arc::clone(queues), queue: Arc::clone(queue), receipts }
    }

    /// They are in an answer.
    pub(crate) fn handed_out(mut self) {
        self.receipts.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let receipts = std::mem::take(&mut self.receipts);
        if receipts.is_empty() {
            return;
        }
        let (queues, queue) = (Arc::clone(&self.queues), Arc::clone(&self.queue));
        let give_back = async move {
            // If it fails they are visible when their timeout is over.
            let _ = queues.give_back(&queue, receipts).await;
        };
        self.env.spawn("sqs-give-back", give_back).detach();
    }
}
