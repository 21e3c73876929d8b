//! What the log asks of whatever keeps its segments, on this host's disk or across a network.
//!
//! A segment is one append-only sequence of entries. It is created, appended to, sealed for ever and deleted. What
//! is appended is durable some time later, in the order of the appends of a shard, over its segments too. How that
//! is told is the store's choice:
//! - A store that acknowledges by one journal says so ([`StoreContract::journal`]): an entry is durable once that
//!   journal is durable up to the entry's place. Nobody is told of single segments.
//! - Every other one tells each segment's [`SegmentWatch`].
//!
//! What holds for each:
//! - **One writer.** Once a segment with a higher term was created in a shard, lower terms are refused. A segment
//!   that was there when the store was opened takes no entries.
//! - **In order.** No entry is durable before all entries of its shard that were appended before it.
//! - **Never past durable.** A read answers only what is durable.
//! - **Without waiting.** Creating, appending, sealing and deleting do no I/O in the caller's thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::{Offset, Position, SegmentId, ShardId, StreamId, Term, TransactionId};
use tailwater_journal::{Journal, JournalPosition};

use crate::{DecidedCopies, RecoveredSegment, SegmentCopies, SegmentJudge, SegmentStore, StoreError};

/// Where an entry stands among those of its shard: one that was appended later has a greater place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPlace(pub u64);

/// Who is told how far a segment is durable, by a store that has a watermark for each segment. Called on a task of the
/// store's; it must not wait.
pub trait SegmentWatch: Send + Sync {
    /// Every entry of the segment up to this place is durable.
    fn durable(&self, upto: EntryPlace);

    /// What was appended and is not durable yet is given up, in this segment and in those of its shard behind it:
    /// it will never be told to be durable. The last call, and for one segment of a shard only.
    fn lost(&self, why: &str);
}

/// Counters of a replicated store, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicatedStats {
    /// Bytes of entries that are neither durable nor given up, with their bookkeeping.
    pub pending_bytes: u64,
    /// Entries that got durable.
    pub entries: u64,
    /// Segments of which entries were given up.
    pub given_up: u64,
    /// Entries that were read from replicas, and not from this process's memory.
    pub entries_read: u64,
    /// Those of them that came together with others, with one request.
    pub entries_batched: u64,
    /// Segments that were sealed or deleted, and are not closed or deleted at the replicas yet.
    pub unfinished: u64,
    /// Segments that were begun with fewer copies than wanted, as there were too few replicas.
    pub begun_short: u64,
    /// Segments that take entries, and have fewer copies at places that live than wanted.
    pub short: u64,
    /// Segments that sweeps have looked at.
    pub swept: u64,
    /// Segments among them that were left over, and were deleted.
    pub swept_away: u64,
}

/// Shuts out whoever still writes a shard, finds the end of what was left open, and answers all segments of it. What
/// the store knew of the shard before it forgets. Waits for what it needs, however long that takes.
pub type ShardTakeOver<'a> = BoxFuture<'a, Vec<RecoveredSegment>>;

/// An answer of a store of segments.
pub type FromStore<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store of segments; see the module.
pub trait StoreContract: Send + Sync {
    /// The journal that every entry is durable by, if there is one. Places are its positions then.
    fn journal(&self) -> Option<&Journal>;

    /// What becomes of the copies that are wanted, and of those that nobody decided.
    fn decided(&self, wanted: SegmentCopies) -> DecidedCopies;

    /// How many places take entries, as far as a replicated store knows.
    fn places(&self) -> Option<u32> {
        None
    }

    /// How many copies of what is appended to a shard now are at places that live, at least: those of the shard's open
    /// segment. `None` where no segment of it takes entries here, or that is not known.
    fn living_copies(&self, _: &ShardId) -> Option<u32> {
        None
    }

    /// Whether segments with such copies can be begun at this moment.
    ///
    /// # Errors
    /// `Copies`, with what can be had; `Replicas` if that is not known at the moment.
    fn check_copies(&self, wanted: SegmentCopies) -> FromStore<'_, ()>;

    /// Begins a segment, and fences all lower terms of the shard. `watch` is told of it where there is no
    /// [`StoreContract::journal`]. It keeps the copies that it begins with; a store that has one copy of everything has
    /// one of it, too.
    ///
    /// # Errors
    /// `Fenced`, `NotNext`, `LostBefore`; or why nothing can be written at the moment.
    fn create(
        &self,
        id: SegmentId,
        copies: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError>;

    /// Appends one entry at `position`, the segment's end. Without `sync` a store with a journal syncs it when it
    /// likes.
    ///
    /// # Errors
    /// Nothing was appended then. See [`SegmentStore::append`].
    fn append(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        sync: bool,
    ) -> Result<EntryPlace, StoreError>;

    /// Ends the segment at `length`, for ever, which is at most what is appended. Where it answers a position, the
    /// seal is lost with the journal's record there; otherwise the store sees to it.
    ///
    /// # Errors
    /// `SealBeyondEnd`, `Sealed` at another length, `Unknown`, `Journal`.
    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError>;

    /// Lowers the fence of a shard to `term`, if it is higher: what was written in higher terms was cut off, or deleted
    /// with its stream. Only for a copy: its one writer takes terms as they come, and no number twice.
    fn lower_fence(&self, shard: &ShardId, term: Term);

    /// Forgets the segment at once, and removes its bytes some time later. Its id is never used again.
    ///
    /// # Errors
    /// `Unknown`, `Journal`.
    fn delete(&self, id: &SegmentId) -> Result<(), StoreError>;

    /// The same of a segment of which nothing was acknowledged. Where another process may have taken the shard over,
    /// its bytes are removed only if there are none: what nobody acknowledged may have been found, and kept, all the
    /// same.
    ///
    /// # Errors
    /// `Unknown`, `Journal`.
    fn discard(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.delete(id)
    }

    /// The bytes from `position`, at most `length` and at most [`crate::limits::READ_BYTES_MAX`], never past what is
    /// durable: at least one if anything is durable there, else none. Dropping the future abandons the read.
    ///
    /// # Errors
    /// `Unknown`, `BeyondDurable`; `Busy`, `Read`.
    fn read<'a>(&'a self, id: &'a SegmentId, position: Position, length: usize) -> FromStore<'a, Bytes>;

    /// Where the entry that holds `offset` begins, or an entry a little before it.
    ///
    /// # Errors
    /// `Unknown`; `Busy`, `Read`.
    fn locate_offset<'a>(&'a self, id: &'a SegmentId, offset: Offset) -> FromStore<'a, Position>;

    /// Where an entry begins that is at or a little before the first one whose running transaction id reaches
    /// `transaction_id`.
    ///
    /// # Errors
    /// `Unknown`; `Busy`, `Read`.
    fn locate_transaction_id<'a>(
        &'a self,
        id: &'a SegmentId,
        transaction_id: TransactionId,
    ) -> FromStore<'a, Position>;

    /// Completes when a restart has nothing to bring in order of what was sealed and deleted before.
    ///
    /// # Errors
    /// Why that can't be had at the moment. Trying goes on by itself.
    fn flush(&self) -> FromStore<'_, ()>;

    /// Whether it takes entries, and if not, why.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    fn health(&self) -> Result<(), StoreError>;

    /// Looks for the segments of shards that other processes wrote, and touches none of them yet. Only of a store that
    /// was opened by [`OpenSegments::open_shared`], and after the right to these shards was taken. Answers for each
    /// shard how it is taken over; see [`ShardTakeOver`]. What each segment holds is told of those that are not
    /// `recorded`. Waits for what it needs, however long that takes.
    ///
    /// # Errors
    /// What no waiting changes, in words.
    fn take_over<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        _recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        let why = format!("{} shards are not taken over: the store is one process's", shards.len());
        Box::pin(std::future::ready(Err(why)))
    }

    /// Takes over again what was not opened since this store has looked for it the last time, because something of it
    /// can't be read: looks at what it has found then, and at nothing else. Only where nobody else had the right to
    /// these shards since. What the store has forgotten it looks for.
    ///
    /// # Errors
    /// What no waiting changes, in words.
    fn take_over_again<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        self.take_over(shards, recorded)
    }

    /// Forgets all segments of a shard, which another process may write from here on, and touches none of them. What
    /// was sealed is closed, and what was deleted is deleted, all the same.
    fn forget(&self, _shard: &ShardId) {}

    /// Deletes all segments of a stream that is deleted, whoever has written them: those that nobody owns, too. Only of
    /// a store that several processes write.
    ///
    /// # Errors
    /// What of it is left, in words.
    fn delete_stream(&self, _stream: StreamId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Looks slowly through all segments that there are, whoever has written them, and deletes those of this cluster
    /// that are left over, as `judge` says. Others may do the same at the same time. Dropping the future ends it.
    ///
    /// # Errors
    /// Why it does not go on, in words. What is left the next sweep finds.
    fn sweep<'a>(&'a self, _judge: &'a dyn SegmentJudge) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The counters of a replicated store.
    fn replicated_stats(&self) -> Option<ReplicatedStats> {
        None
    }
}

/// Whose a store is that several processes can reach: of the one that may write.
pub trait WriteRight: Send + Sync + fmt::Debug {
    /// Completes when it is certain that the process still had the right at some time after the call: the right to
    /// write that segment, or to write at all.
    ///
    /// # Errors
    /// See [`WriteRightFault`].
    fn confirm<'a>(&'a self, segment: Option<&'a SegmentId>) -> BoxFuture<'a, Result<(), WriteRightFault>>;
}

/// Why a process does not know that it may write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteRightFault {
    /// Another one has the right, for ever.
    #[error("{0}")]
    Lost(String),
    /// It can't be known at the moment.
    #[error("{0}")]
    Unknown(String),
}

/// A store that was opened, and the segments that are in it.
pub type OpenedSegments = (Arc<dyn StoreContract>, Vec<RecoveredSegment>);

/// A store of segments that is not on this host's disk, to be opened.
pub trait OpenSegments: Send + Sync + fmt::Debug {
    /// Shuts out whoever still writes, finds the end of what was left open, and answers the store with all segments
    /// of `cluster`. What each of them holds is told of those that are not `recorded`. Where what it needs is not
    /// there yet it waits, and says for what in `progress`.
    ///
    /// Before it touches what it has found, and before anything is appended to what it has made, it has `right`
    /// confirmed. So whoever has the right next finds all that was acknowledged, and what it makes is touched by nobody
    /// who had the right before.
    ///
    /// # Errors
    /// What can't be put right by waiting, and what to do.
    fn open<'a>(
        &'a self,
        env: &'a Env,
        right: Arc<dyn WriteRight>,
        cluster: uuid::Uuid,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<OpenedSegments, String>>;

    /// The same store, which other processes write, too: nothing in it is touched, and it has no segments before
    /// [`StoreContract::take_over`]. Each segment's right is confirmed by its name.
    ///
    /// # Errors
    /// What can't be put right by waiting, and what to do.
    fn open_shared<'a>(
        &'a self,
        _env: &'a Env,
        _right: Arc<dyn WriteRight>,
        _cluster: uuid::Uuid,
        _progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Arc<dyn StoreContract>, String>> {
        Box::pin(std::future::ready(Err("this store of segments is one process's at a time".to_owned())))
    }
}

impl StoreContract for SegmentStore {
    fn journal(&self) -> Option<&Journal> {
        Some(self.journal())
    }

    fn decided(&self, _: SegmentCopies) -> DecidedCopies {
        DecidedCopies::ONE
    }

    fn check_copies(&self, wanted: SegmentCopies) -> FromStore<'_, ()> {
        let is_one = DecidedCopies::ONE.unless(wanted) == DecidedCopies::ONE;
        let why = "segments are on this node's disk, which has one copy of each";
        let checked = if is_one { Ok(()) } else { Err(StoreError::Copies(why.to_owned())) };
        Box::pin(std::future::ready(checked))
    }

    fn create(&self, id: SegmentId, _: SegmentCopies, _: Arc<dyn SegmentWatch>) -> Result<(), StoreError> {
        self.create(id).map(drop)
    }

    fn append(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        sync: bool,
    ) -> Result<EntryPlace, StoreError> {
        self.append_with(id, position, entry, sync).map(|end| EntryPlace(end.0))
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        self.seal(id, length).map(Some)
    }

    fn lower_fence(&self, shard: &ShardId, term: Term) {
        self.lower_fence(shard, term);
    }

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.delete(id).map(drop)
    }

    fn read<'a>(&'a self, id: &'a SegmentId, position: Position, length: usize) -> FromStore<'a, Bytes> {
        Box::pin(self.read(id, position, length))
    }

    fn locate_offset<'a>(&'a self, id: &'a SegmentId, offset: Offset) -> FromStore<'a, Position> {
        Box::pin(self.locate_offset(id, offset))
    }

    fn locate_transaction_id<'a>(
        &'a self,
        id: &'a SegmentId,
        transaction_id: TransactionId,
    ) -> FromStore<'a, Position> {
        Box::pin(self.locate_transaction_id(id, transaction_id))
    }

    fn flush(&self) -> FromStore<'_, ()> {
        Box::pin(self.flush())
    }

    fn health(&self) -> Result<(), StoreError> {
        self.health()
    }
}
