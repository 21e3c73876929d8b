//! What goes into a shard and comes out of it.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::{Dlsn, Offset, Position, SegmentId, Tail, Term};
use tokio::sync::oneshot;

use crate::batches::Checked;
use crate::budget::Permit;
use crate::error::{AppendError, StreamError};

/// Checked record batches to append, and who waits for the answer.
#[derive(Debug)]
pub struct StoreAppend {
    /// The batches.
    pub batches: Checked,
    /// Refuse them if the shard's term is another one.
    pub expected_term: Option<Term>,
    /// Who waits.
    pub waiter: Waiter,
}

type Tell = Box<dyn FnOnce(Result<AppendAnswer, AppendError>) + Send>;

/// Who waits for an append: told once how it ended, and told [`AppendError::Closed`] where it is dropped before.
pub struct Waiter {
    tell: Option<Tell>,
    /// The room that the append takes; given back with the answer.
    permit: Option<Permit>,
}

impl Waiter {
    /// One that is told through `tell`.
    pub(crate) fn new(
        permit: Option<Permit>,
        tell: impl FnOnce(Result<AppendAnswer, AppendError>) + Send + 'static,
    ) -> Self {
        Self { tell: Some(Box::new(tell)), permit }
    }

    /// Answers.
    pub(crate) fn answer(mut self, result: Result<AppendAnswer, AppendError>) {
        self.tell_once(result);
    }

    /// Ends without an answer: whoever waits is told in another way.
    pub(crate) fn forget(mut self) {
        self.tell = None;
    }

    fn tell_once(&mut self, result: Result<AppendAnswer, AppendError>) {
        // First, so that whoever is told finds the room.
        self.permit = None;
        if let Some(tell) = self.tell.take() {
            tell(result);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.tell_once(Err(AppendError::Closed));
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("permit", &self.permit).finish_non_exhaustive()
    }
}

/// An acknowledged append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendAnswer {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// When it was accepted, wall time in ms.
    pub append_time_ms: i64,
    /// The shard's term.
    pub term: Term,
    /// Coordinates of its first record; `None` for a duplicate of an earlier append.
    pub dlsn: Option<Dlsn>,
}

/// Who waits for a truncation.
#[derive(Debug)]
pub struct Truncation {
    /// The first offset to keep.
    pub before: Offset,
    /// Answered with the first offset that is kept.
    pub reply: oneshot::Sender<Result<Offset, StreamError>>,
}

/// An entry to hand to the store.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its segment.
    pub segment: SegmentId,
    /// Create the segment first.
    pub create: bool,
    /// Where the entry begins.
    pub position: Position,
    /// The entry.
    pub bytes: Bytes,
    /// Whether the journal should sync it at once.
    pub sync: bool,
}

/// Why the store did not take an entry.
#[derive(Clone, Debug)]
pub enum WriteError {
    /// Too much is queued: the same entry is offered again in a moment.
    Busy(&'static str),
    /// The disk is full.
    NoSpace(Arc<str>),
    /// A higher term has been seen.
    Fenced,
    /// Anything else.
    Unavailable(Arc<str>),
}

/// What the shell has to do, in this order.
#[derive(Debug)]
pub enum Output {
    /// Answer an append.
    Reply(Waiter, Result<AppendAnswer, AppendError>),
    /// Hand bytes that readers may see to the cells' writer.
    Extend {
        /// Their segment.
        segment: SegmentId,
        /// Where they begin.
        from: Position,
        /// Offset of their first record.
        base_offset: Offset,
        /// The bytes.
        bytes: Bytes,
        /// The shard's tail with them.
        tail: Tail,
    },
    /// Tell the cells' writer of a tail that changed without new bytes.
    Update(Tail),
    /// Seal a segment in the store.
    Seal(SegmentId, Position),
    /// Delete a segment in the store.
    Delete(SegmentId),
    /// Answer a truncation.
    Truncated(Truncation, Result<Offset, StreamError>),
    /// Everything is written, completed and recorded: the shard can go.
    Closed,
}
