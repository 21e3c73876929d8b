//! What waits to be written to one connection, and how many bytes that is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::{Input, LinkId};
use crate::frame::FrameWriter;
use crate::message::Message;
use crate::replica::size_of_message;

/// Bytes that wait for a link after which its listener is told and answered nothing more until half of it has left.
pub(super) const WAITING_BYTES_MAX: usize = 512 << 10;
/// Bytes after which a writer writes what it gathered.
const WRITE_BYTES: usize = 256 << 10;

/// Where the core task puts messages. The connection ends when it is dropped, and they have left.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    messages: mpsc::UnboundedSender<Message>,
    /// Grown here, and lessened where it is written.
    waiting: Arc<AtomicUsize>,
}

/// What a connection writes.
#[derive(Debug)]
pub(super) struct Written {
    messages: mpsc::UnboundedReceiver<Message>,
    waiting: Arc<AtomicUsize>,
}

/// The two ends of it.
pub(super) fn outbox() -> (Outbox, Written) {
    let (sender, messages) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Outbox { messages: sender, waiting: Arc::clone(&waiting) }, Written { messages, waiting })
}

impl Outbox {
    /// Adds a message; how many bytes wait with it.
    pub(super) fn send(&self, message: Message) -> usize {
        let size = size_of_message(&message);
        let waiting = self.waiting.fetch_add(size, Ordering::Relaxed) + size;
        // Where the connection has ended nothing is written, and the core task hears of it.
        let _ = self.messages.send(message);
        waiting
    }

    /// How many bytes wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Written {
    #[cfg(test)]
    pub(super) fn try_recv(&mut self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// Writes what there is until the other end is dropped, whether or not anybody reads it. The core task hears of it only where so much waited that
    /// it may hold something back: every other write would wake it for nothing.
    pub(super) async fn write<W: tokio::io::AsyncWrite + Unpin>(
        mut self,
        link: LinkId,
        mut writer: FrameWriter<W>,
        inputs: &mpsc::Sender<Input>,
    ) -> anyhow::Result<()> {
        let mut gathered = VecDeque::new();
        loop {
            // What came while the last ones were written, or the next one.
            if gathered.is_empty() {
                let Some(message) = self.messages.recv().await else { break };
                gathered.push_back(message);
            }
            let (mut left, mut bytes) = (0, 0);
            while bytes < WRITE_BYTES
                && let Some(message) = gathered.pop_front().or_else(|| self.messages.try_recv().ok())
            {
                left += size_of_message(&message);
                bytes = writer.add(&message);
            }
            if !writer.flush_while(&mut self.messages, &mut gathered).await? {
                break;
            }
            let waited = self.waiting.fetch_sub(left, Ordering::Relaxed);
            if waited > WAITING_BYTES_MAX / 2 && inputs.send(Input::Drained(link)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}
