//! What goes into a shard and comes out of it.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_cold::ColdCopy;
use tailwater_env::Instant;
use tailwater_format::{Dlsn, DurableTo, Offset, Position, SegmentId, Tail, Term};
use tailwater_store::EntryPlace;
use tokio::sync::oneshot;

use super::{Change, ChangeError, RestoreRequest, SegmentCopied};
use crate::batches::Checked;
use crate::budget::Permit;
use crate::config::StreamConfig;
use crate::error::{AppendError, StreamError};

/// When a step is taken.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// What durations are measured by.
    pub now: Instant,
    /// What is written down: wall time in ms.
    pub wall_ms: i64,
}

/// What happens to a shard.
///
/// Requests, those before [`ShardInput::Proceed`], are gathered: it says that all that came together is there. After
/// everything else the shard goes on by itself.
#[derive(Debug)]
pub enum ShardInput {
    /// Somebody appends: answered by one [`Output::Reply`].
    Append(StoreAppend),
    /// Somebody removes the records before an offset, at record granularity; segments wholly before it are deleted.
    /// What may still be lost (`interval`) is removed when it is synced. Answered by one [`Output::Truncated`].
    Truncate(Truncation),
    /// A segment was copied to cold storage.
    Copied(SegmentCopied),
    /// Somebody wants removed records back. Answered by one [`Output::Restored`].
    Restore(RestoreRequest),
    /// A copy goes on at a later offset, as its source has removed what is before it. Answered by one
    /// [`Output::Begun`].
    Begin(CopyBegin),
    /// The stream is configured so from now on, and keeps what it keeps for ever ([`StreamConfig::may_become`]).
    Configure(Arc<StreamConfig>),
    /// No more appends are taken. [`Output::Closed`] follows once all is written, completed and recorded.
    Close,
    /// Appends are taken again: whoever closed the shard has given up.
    Resume,
    /// All requests that came together are there, or the time of the last [`Output::WakeAt`] has come.
    Proceed,
    /// The shard has an owner: the first input.
    Opened,
    /// The store answers [`Output::Write`]: the next input after that.
    Wrote {
        /// Whether the store has the segment by now.
        created: bool,
        /// The entry's place, or why the store did not take the entry.
        result: Result<EntryPlace, WriteError>,
    },
    /// Entries are written up to there. Only `interval` shards are told.
    Written(EntryPlace),
    /// Entries are durable up to there, and so written. The two watermarks are not read at the same moment: this
    /// may come before [`ShardInput::Written`].
    Synced(EntryPlace),
    /// Whatever of this shard was not durable is given up: a sync failed, or a ledger was fenced or got no quorum.
    Lost(Arc<str>),
    /// How the commit of the last [`Output::Commit`] ended: with the new version of the shard's record, or not.
    Committed(Result<u64, ChangeError>),
    /// About a second has passed: segments roll by time and expire, producers are forgotten.
    Tick,
    /// The stream is deleted: the last input.
    Delete,
}

/// Which part of what readers see of a shard a step has changed.
#[must_use = "what changed is shown before the outputs are carried out"]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewChange {
    /// [`super::Shard::tail`] and [`super::Shard::acked_transaction_id`].
    pub tail: bool,
    /// [`super::Shard::completed`].
    pub list: bool,
    /// Records were lost, so that the tail may end before where it did; it never does without that.
    pub taken_back: bool,
}

/// Checked record batches to append, and who waits for the answer.
#[derive(Debug)]
pub struct StoreAppend {
    /// The batches.
    pub batches: Checked,
    /// Refuse them if the shard's term is another one.
    pub expected_term: Option<Term>,
    /// Where they have to go, and in which term, if they are copied.
    pub copied: Option<CopiedTo>,
    /// Who waits.
    pub waiter: Waiter,
}

/// The place of what is copied: that which it has at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedTo {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// The term of its segment.
    pub term: Term,
}

/// Who waits for a copy to begin anew.
#[derive(Debug)]
pub struct CopyBegin {
    /// The offset of the next record.
    pub offset: Offset,
    /// Answered when the shard goes on there.
    pub reply: oneshot::Sender<Result<(), StreamError>>,
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
#[derive(Debug)]
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
    /// Whether the shard is to be told when it is written, and not only when it is synced.
    pub tell_written: bool,
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
    /// The segment takes no more entries.
    Over(Arc<str>),
    /// Anything else.
    Unavailable(Arc<str>),
}

/// What the shell has to do, in this order.
#[derive(Debug)]
pub enum Output {
    /// Hand an entry to the store. The last output of its step; [`ShardInput::Wrote`] is the next input.
    Write(Write),
    /// Have entries synced up to there: the next segment, or a truncation, waits for it.
    Sync(EntryPlace),
    /// Commit to metadata. [`ShardInput::Committed`] follows, some time, and no other commit before it.
    Commit(Change),
    /// [`ShardInput::Proceed`] is due then, although nothing happens; `None`: not any more.
    WakeAt(Option<Instant>),
    /// Answer an append.
    Reply(Waiter, Result<AppendAnswer, AppendError>),
    /// The store has taken an entry of a copy, which its source has made durable: whoever copies from here may have it.
    Took {
        /// Offset of its first record.
        base_offset: Offset,
        /// Offset after its last record.
        next_offset: Offset,
        /// The entry.
        bytes: Bytes,
    },
    /// Hand bytes of a copy to the cells' writer that are durable at its source and not here yet.
    Ahead {
        /// Their segment, which readers see already.
        segment: SegmentId,
        /// The bytes.
        bytes: Bytes,
        /// How far their segment is durable at the source with them.
        source_durable: DurableTo<Position>,
        /// When the append in them was accepted.
        accepted_at: Instant,
    },
    /// So many bytes that the cells' writer had ahead are durable: the shard's tail with them.
    CaughtUp(Tail, usize),
    /// Hand bytes that readers may see to the cells' writer.
    Extend {
        /// Their segment.
        segment: SegmentId,
        /// Offset of their first record.
        base_offset: Offset,
        /// The bytes.
        bytes: Bytes,
        /// How far their segment is durable with them.
        durable: DurableTo<Position>,
        /// The shard's tail with them.
        tail: Tail,
        /// When the first append in them was accepted.
        accepted_at: Instant,
        /// There was [`Output::Took`] for them.
        was_taken: bool,
    },
    /// Tell the cells' writer of a tail that changed without new bytes.
    Update(Tail),
    /// Seal a segment in the store.
    Seal(SegmentId, Position),
    /// Delete a segment in the store.
    Delete(SegmentId),
    /// Forget a segment of which nothing was acknowledged, and delete what no other owner can have found in the store.
    Discard(SegmentId),
    /// Metadata names a copy of a segment of this length: readers may be given it.
    NameCopy(SegmentId, ColdCopy, Position),
    /// Metadata keeps a copy that readers are not given any more.
    HideCopy(SegmentId),
    /// Metadata names a copy no longer: remove it.
    RemoveCopy(SegmentId, ColdCopy),
    /// Answer a truncation.
    Truncated(Truncation, Result<Offset, StreamError>),
    /// Answer whoever wanted records back: with the first offset that readers see by now.
    Restored(RestoreRequest, Result<Offset, StreamError>),
    /// Answer whoever had a copy begin at a later offset.
    Begun(CopyBegin, Result<(), StreamError>),
    /// Everything is written, completed and recorded: the shard can go.
    Closed,
}
