//! What is to be written to one connection: it leaves at once, as far as the connection takes it, so that nobody has to
//! be woken for it. What is left the connection's own task writes.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Buf;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::LinkId;
use super::inputs::{Input, SharingInputs};
use super::socket::WriteHalf;
use crate::message::Message;
use crate::pieces::Pieces;

/// Bytes that wait for a link after which its listener is told and answered nothing more until half of it has left.
pub(super) const WAITING_BYTES_MAX: usize = 512 << 10;
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 256 << 10;

/// Where the core puts messages. The connection ends when it is dropped.
#[derive(Debug)]
pub(super) struct Outbox(Arc<OutboxShared>);

/// The connection's side of it.
#[derive(Debug)]
pub(super) struct OutboxWritten(Arc<OutboxShared>);

#[derive(Debug, Default)]
struct OutboxShared {
    waiting: Mutex<OutboxWaiting>,
    /// Where it leads, once that is there.
    to: OnceLock<WriteHalf>,
    /// There is something for the connection's task to do.
    wake: Notify,
}

#[derive(Debug, Default)]
struct OutboxWaiting {
    pieces: Pieces,
    /// The core may write: the connection is there, and has taken all so far. Otherwise its task does.
    is_clear: bool,
    /// Nothing more is added.
    is_over: bool,
}

/// The two ends of it.
pub(super) fn outbox() -> (Outbox, OutboxWritten) {
    let shared = Arc::default();
    (Outbox(Arc::clone(&shared)), OutboxWritten(shared))
}

impl Outbox {
    /// Adds a message; how many bytes wait with it. It leaves with the next [`flush`](Self::flush) at the latest, if
    /// the connection takes it.
    pub(super) fn add(&self, message: &Message) -> usize {
        let mut waiting = self.0.waiting.lock();
        waiting.pieces.add(message);
        if waiting.pieces.remaining() >= WRITE_BYTES {
            self.0.flush(&mut waiting);
        }
        waiting.pieces.remaining()
    }

    /// Writes what the connection takes at once.
    pub(super) fn flush(&self) {
        self.0.flush(&mut self.0.waiting.lock());
    }

    /// How many bytes wait.
    pub(super) fn waiting(&self) -> usize {
        self.0.waiting.lock().pieces.remaining()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.waiting.lock().is_over = true;
        self.0.wake.notify_one();
    }
}

impl OutboxWritten {
    /// Sends something that the connection's task itself has to say.
    pub(super) fn send(&self, message: &Message) {
        let mut waiting = self.0.waiting.lock();
        waiting.pieces.add(message);
        self.0.flush(&mut waiting);
    }

    /// Writes to `to` what waited for it, and from then on what does not leave at once; the core hears when some of
    /// that has left. Ends when the other end is dropped, and gives up what is left then.
    ///
    /// # Errors
    /// What the system says when the connection has ended.
    pub(super) async fn write(&self, link: LinkId, to: WriteHalf, inputs: &SharingInputs) -> io::Result<()> {
        let to = self.0.to.get_or_init(|| to);
        loop {
            let is_clear = {
                let mut waiting = self.0.waiting.lock();
                to.write_some(&mut waiting.pieces)?;
                if waiting.is_over {
                    return Ok(());
                }
                waiting.is_clear = !waiting.pieces.has_remaining();
                waiting.is_clear
            };
            if inputs.give([Input::Drained(link)]).is_err() {
                return Ok(());
            }
            if is_clear {
                self.0.wake.notified().await;
            } else {
                tokio::select! {
                    biased;
                    writable = to.writable() => writable?,
                    () = self.0.wake.notified() => {}
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn take(&self) -> bytes::Bytes {
        let pieces = &mut self.0.waiting.lock().pieces;
        pieces.copy_to_bytes(pieces.remaining())
    }
}

impl OutboxShared {
    fn flush(&self, waiting: &mut OutboxWaiting) {
        let Some(to) = self.to.get().filter(|_| waiting.is_clear) else { return };
        // Of an error the task hears as well, when it tries.
        let _ = to.write_some(&mut waiting.pieces);
        if waiting.pieces.has_remaining() {
            waiting.is_clear = false;
            self.wake.notify_one();
        }
    }
}
