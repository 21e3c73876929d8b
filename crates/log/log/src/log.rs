//! The handle: streams by name, appends, positions, reads.
//!
//! An append's way, in the order of the files: [`Log::submit`] checks its bytes (`batches.rs`) and takes room for
//! it (`budget.rs`); the owner (`owner.rs`) lets the shard (`shard.rs`) give it offsets and an entry, hands that to
//! the store, and when the journal is durable shows it to readers (`view.rs`, and the cells) and answers.

mod streams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use tailwater_env::{Env, HashMap, Task};
use tailwater_format::{
    Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail, Term, TransactionId,
};
use tailwater_journal::Journal;
use tailwater_meta::Meta;
use tailwater_store::{DataDir, SegmentStore, StoreContract, StoreError};
use tailwater_tail::TailWriter;
use tokio::sync::oneshot;

use crate::ahead::SourceEnds;
use crate::batches::{Checked, TransactionIds};
use crate::budget::ReadBudget;
use crate::cold::LogCold;
use crate::config::{StreamConfig, Timestamps};
use crate::counters::{Counters, LogStats};
use crate::error::{AppendError, ReadError, StreamError};
use crate::hot::Hot;
use crate::limits::{APPEND_OVERHEAD_BYTES, READ_BYTES_MAX, SHARDS_TOTAL_MAX};
use crate::locate::{LocateRead, ReadLocation, locate};
use crate::owner::{OwnerHandle, OwnerRequest};
use crate::producer::{Claim, ProducerState, Refused};
use crate::producer_ids::ProducerIds;
use crate::scan::read_error;
use crate::shard::{AppendAnswer, StoreAppend, Waiter};
use crate::share::SharedShards;
use crate::slots::Slot;
use crate::stream::StreamRecord;
use crate::sweep::LogSweeping;
use crate::view::{SharedView, View};

/// A stream in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStreamInfo {
    /// Its id.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// When it was created, wall time in ms.
    pub created_ms: i64,
    /// How it behaves.
    pub config: StreamConfig,
    /// The cluster that has its source, if it is a copy: nobody but the copying appends to it.
    pub source: Option<String>,
}

/// A stream with its shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamDescription {
    /// The stream.
    pub stream: LogStreamInfo,
    /// Its shards, in order.
    pub shards: Vec<ShardDescription>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardDescription {
    /// Its number.
    pub shard: ShardNumber,
    /// Its tail; `cached` is not filled in.
    pub tail: Tail,
    /// Its segments, oldest first.
    pub segments: Vec<SegmentDescription>,
    /// Why it was not opened, if bytes of it are missing: then the rest says nothing.
    pub damaged: Option<Arc<str>>,
    /// Whether it is another process's, or nobody's: then the rest is what was known last.
    pub is_elsewhere: bool,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentDescription {
    /// Its number.
    pub number: SegmentNumber,
    /// The term of its writer.
    pub term: Term,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last durable record.
    pub next_offset: Offset,
    /// Its durable length.
    pub length: Position,
    /// Whether it is completed: then nothing of this changes any more.
    pub sealed: bool,
    /// What only completed segments have on record.
    pub completed: Option<CompletedSegment>,
}

/// What is on record of a completed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedSegment {
    /// Transaction id of its first record.
    pub first_transaction_id: TransactionId,
    /// Transaction id of its last record.
    pub last_transaction_id: TransactionId,
    /// When its first entry was written, wall time in ms.
    pub created_ms: i64,
    /// When it was sealed, wall time in ms.
    pub sealed_ms: i64,
    /// Whether cold storage has a copy.
    pub is_copied: bool,
    /// Whether only cold storage has it.
    pub is_released: bool,
}

/// How an append wants to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendOptions {
    /// Refuse it if the shard's term is another one.
    pub expected_term: Option<Term>,
    /// Where its transaction ids come from.
    pub transaction_ids: TransactionIds,
    /// It is all of a request: where there is nothing else to do, the caller's own thread brings it into the journal,
    /// and the journal's thread answers it. Several of one request go there together, and so into one sync.
    pub alone: bool,
}

/// The answer to an append, to be awaited. Dropping it does not take the append back.
#[derive(Debug)]
#[must_use = "an append that is not awaited may have failed"]
pub struct PendingAppend(oneshot::Receiver<Result<AppendAnswer, AppendError>>);

impl PendingAppend {
    /// How the append ended.
    pub async fn outcome(self) -> Result<AppendAnswer, AppendError> {
        self.0.await.unwrap_or(Err(AppendError::Closed))
    }
}

/// All streams of one data directory. Cheap to clone.
///
/// Dropping the last handle without [`Log::close`] is like a crash of the process.
#[derive(Clone)]
pub struct Log {
    pub(crate) inner: Arc<LogInner>,
}

pub(crate) use streams::{remove_deleted, remove_leftovers};

pub(crate) struct LogInner {
    pub(crate) env: Env,
    pub(crate) config_close_timeout: Duration,
    pub(crate) timestamp_after_max_ms: u64,
    pub(crate) decompressed_bytes_max: usize,
    pub(crate) dir: PathBuf,
    pub(crate) owner_number: u64,
    /// Who owns what, where several processes share the shards.
    pub(crate) sharing: Option<SharedShards>,
    pub(crate) owners: Vec<OwnerHandle>,
    pub(crate) streams: RwLock<Streams>,
    /// Held while streams are created or deleted, and over the commit: names are taken one at a time.
    pub(crate) naming: tokio::sync::Mutex<()>,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) budget: Arc<ReadBudget>,
    pub(crate) hot: Arc<Hot>,
    /// Held by reads of the durable layer that are under way.
    pub(crate) catching_up: tokio::sync::Semaphore,
    /// Held by those of segments that only cold storage has.
    pub(crate) cold_reading: tokio::sync::Semaphore,
    /// Held by those of one batch.
    pub(crate) single: tokio::sync::Semaphore,
    pub(crate) counters: Arc<Counters>,
    pub(crate) closed: AtomicBool,
    pub(crate) source_ends: SourceEnds,
    /// Brings the shards' ends back into the data cell after the start.
    pub(crate) refill: Mutex<Option<Task>>,
    pub(crate) tail: TailWriter,
    pub(crate) meta: Arc<dyn Meta>,
    /// What the data directory has itself: it makes room in the journal for as long as it is there.
    pub(crate) _local: Arc<dyn Meta>,
    /// Where the streams' segments are: `store`, or a replicated one; with cold storage behind it, if there is any.
    pub(crate) segments: Arc<dyn StoreContract>,
    pub(crate) cold: Option<LogCold>,
    /// Copies segments to cold storage.
    pub(crate) copying: Mutex<Option<Task>>,
    /// Looks for what no record names in a replicated store.
    pub(crate) sweeping: LogSweeping,
    /// What is on this host's disk.
    pub(crate) store: SegmentStore,
    pub(crate) journal: Journal,
    /// Given up last.
    pub(crate) _dir: DataDir,
}

#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) by_id: HashMap<StreamId, Arc<Stream>>,
    by_name: BTreeMap<String, StreamId>,
    shards: u64,
    /// How often one was added, changed or removed.
    changes: u64,
}

/// A stream that exists.
pub(crate) struct Stream {
    pub(crate) record: StreamRecord,
    shards: Vec<ShardHandle>,
}

#[derive(Clone)]
pub(crate) struct ShardHandle {
    pub(crate) owner: usize,
    slot: Result<Slot, ClosedShard>,
    /// The term that its record had when it was opened: later than its segments' where one was claimed in vain.
    pub(crate) opened: Term,
    view: Arc<SharedView>,
    refused: Arc<Refused>,
}

/// Why a shard is not open.
#[derive(Clone, Debug)]
pub(crate) enum ClosedShard {
    /// Bytes of it are missing.
    Damaged(Damaged),
    /// It is another process's, or nobody's.
    Elsewhere,
}

impl From<&ClosedShard> for AppendError {
    fn from(closed: &ClosedShard) -> Self {
        match closed {
            ClosedShard::Damaged(damaged) => Self::Damaged(Arc::clone(&damaged.why)),
            ClosedShard::Elsewhere => Self::NotOwner,
        }
    }
}

impl From<&ClosedShard> for ReadError {
    fn from(closed: &ClosedShard) -> Self {
        match closed {
            ClosedShard::Damaged(damaged) => Self::Damaged(Arc::clone(&damaged.why)),
            ClosedShard::Elsewhere => Self::NotOwner,
        }
    }
}

impl From<&ClosedShard> for StreamError {
    fn from(closed: &ClosedShard) -> Self {
        match closed {
            ClosedShard::Damaged(damaged) => Self::Damaged(Arc::clone(&damaged.why)),
            ClosedShard::Elsewhere => Self::NotOwner,
        }
    }
}

/// A shard that was not opened. Nothing of it is touched before its stream is deleted.
#[derive(Clone, Debug)]
pub(crate) struct Damaged {
    /// What is missing.
    pub(crate) why: Arc<str>,
    /// The segments that the store has of it.
    pub(crate) segments: Vec<SegmentId>,
}

impl ShardHandle {
    /// Its place at its owner, or the error that whoever asks for it gets.
    pub(crate) fn slot<E>(&self) -> Result<Slot, E>
    where
        E: for<'a> From<&'a ClosedShard>,
    {
        self.slot.as_ref().copied().map_err(E::from)
    }

    pub(crate) fn slot_or_closed(&self) -> Result<Slot, &ClosedShard> {
        self.slot.as_ref().copied()
    }

    /// What is missing of it, if it was not opened for that.
    pub(crate) fn damaged(&self) -> Option<&Damaged> {
        match &self.slot {
            Err(ClosedShard::Damaged(damaged)) => Some(damaged),
            Ok(_) | Err(ClosedShard::Elsewhere) => None,
        }
    }

    /// The same shard once it is somebody else's.
    pub(crate) fn closed_elsewhere(&self) -> Self {
        Self { slot: Err(ClosedShard::Elsewhere), ..self.clone() }
    }

    /// Tells whoever listens to it to look again.
    pub(crate) fn wake(&self) {
        self.view.wake();
    }

    pub(crate) fn view(&self) -> View {
        self.view.get()
    }

    pub(crate) fn tail(&self) -> Tail {
        self.view.tail()
    }
}

impl Stream {
    fn info(&self) -> LogStreamInfo {
        let StreamRecord { id, name, created_ms, config, source, .. } = self.record.clone();
        LogStreamInfo { id, name, created_ms, config, source }
    }

    pub(crate) fn shard(&self, shard: ShardNumber) -> Option<&ShardHandle> {
        self.shards.get(shard.0 as usize)
    }

    /// The same shards under another record.
    pub(crate) fn with_record(&self, record: StreamRecord) -> Self {
        Self { record, shards: self.shards.clone() }
    }

    /// The same with another handle on one of its shards.
    pub(crate) fn with_shard(&self, shard: ShardNumber, handle: ShardHandle) -> Self {
        let mut shards = self.shards.clone();
        shards[shard.0 as usize] = handle;
        Self { record: self.record.clone(), shards }
    }

    pub(crate) fn shards(&self) -> &[ShardHandle] {
        &self.shards
    }
}

impl Streams {
    fn insert(&mut self, stream: Stream) {
        self.changes += 1;
        self.shards += stream.shards.len() as u64;
        self.by_name.insert(stream.record.name.clone(), stream.record.id);
        self.by_id.insert(stream.record.id, Arc::new(stream));
    }

    /// Whether there may be so many shards more.
    fn check_room(&self, more: u32) -> Result<(), StreamError> {
        if self.shards + u64::from(more) > SHARDS_TOTAL_MAX {
            return Err(StreamError::TooManyShards { used: self.shards, max: SHARDS_TOTAL_MAX });
        }
        Ok(())
    }

    pub(crate) fn replace(&mut self, stream: Stream) {
        self.remove(stream.record.id);
        self.insert(stream);
    }

    pub(crate) fn remove(&mut self, id: StreamId) {
        if let Some(stream) = self.by_id.remove(&id) {
            self.changes += 1;
            self.shards -= stream.shards.len() as u64;
            self.by_name.remove(&stream.record.name);
        }
    }
}

/// Appends.
impl Log {
    /// Appends the record batches in `batches`, all or none, and answers when they are as durable as the stream
    /// promises. Cancelling it does not take them back.
    pub async fn append(
        &self,
        stream: StreamId,
        shard: ShardNumber,
        batches: Bytes,
    ) -> Result<AppendAnswer, AppendError> {
        let alone = AppendOptions { alone: true, ..AppendOptions::default() };
        self.submit(stream, shard, batches, alone)?.outcome().await
    }

    /// Begins an append; appends to one shard that one task submits are in the order of these calls. Takes time
    /// for the batches' checksums, and never waits.
    ///
    /// # Errors
    /// What is known at once; the rest comes with [`PendingAppend::outcome`].
    pub fn submit(
        &self,
        stream: StreamId,
        shard: ShardNumber,
        batches: Bytes,
        options: AppendOptions,
    ) -> Result<PendingAppend, AppendError> {
        let (reply, receiver) = oneshot::channel();
        // That nobody waits any more is no error: the append takes place all the same.
        self.submit_with(stream, shard, batches, options, move |outcome| drop(reply.send(outcome)))?;
        Ok(PendingAppend(receiver))
    }

    /// As [`Log::submit`], with `answer` called once when it is known how the append ended: on the task of the shard's
    /// owner, on the journal's thread, or in some call of this. It must not wait. Spares whoever has to answer for
    /// several appends a task that waits for them.
    ///
    /// # Errors
    /// What is known at once; `answer` is then not called.
    pub fn submit_with(
        &self,
        stream: StreamId,
        shard: ShardNumber,
        batches: Bytes,
        options: AppendOptions,
        answer: impl FnOnce(Result<AppendAnswer, AppendError>) + Send + 'static,
    ) -> Result<(), AppendError> {
        let inner = &*self.inner;
        let known = inner.streams.read().by_id.get(&stream).cloned().ok_or(AppendError::NoStream)?;
        let shards = known.record.config.shards;
        let handle = known.shard(shard).ok_or(AppendError::NoShard { shard: shard.0, shards })?;
        let slot = handle.slot::<AppendError>()?;
        if let Some(source) = &known.record.source {
            return Err(AppendError::Copy { cluster: source.as_str().into() });
        }
        let config = &known.record.config;
        if batches.len() > config.append_bytes_max as usize {
            return Err(AppendError::TooLarge {
                given: batches.len(),
                max: config.append_bytes_max as usize,
            });
        }
        let mut batches = Checked::check(batches, options.transaction_ids, inner.decompressed_bytes_max)?;
        if let Some(codec) = config.compression {
            batches.recompress(codec, config.append_bytes_max as usize)?;
        }
        let now = inner.env.wall_ms();
        match config.timestamps {
            Timestamps::Create => {
                let after_max_ms = config.timestamp_after_max_ms.unwrap_or(inner.timestamp_after_max_ms);
                batches.check_time(now, config.timestamp_before_max_ms, after_max_ms)?;
            }
            Timestamps::Append => batches.set_append_time(now)?,
        }
        let claim = batches.claim;
        // It comes again, and what the producer has sent behind it must not be before it.
        let refuse = |error| {
            claim.inspect(|claim| handle.refused.note(*claim));
            error
        };
        let permit = inner.budget.take(batches.bytes.len() as u64 + APPEND_OVERHEAD_BYTES);
        let permit = permit.ok_or_else(|| refuse(AppendError::Overloaded("too many bytes are in flight")))?;
        let waiter = Waiter::new(Some(permit), answer);
        let append = StoreAppend { batches, expected_term: options.expected_term, copied: None, waiter };
        inner.owners[handle.owner].try_send(OwnerRequest::Append(slot, append), options.alone).map_err(refuse)
    }

    /// Takes note that whoever is in front of the log has refused an append for a reason that passes: nothing that its
    /// producers have sent behind it is taken before it has come again.
    pub fn refuse(&self, stream: StreamId, shard: ShardNumber, batches: &[u8]) {
        let Some(known) = self.inner.streams.read().by_id.get(&stream).cloned() else { return };
        let Some(handle) = known.shard(shard) else { return };
        // An append with a producer is a single batch.
        let first = tailwater_format::batches(batches).next().and_then(Result::ok);
        if let Some(claim) = first.and_then(|batch| Claim::of(batch.header())) {
            handle.refused.note(claim);
        }
    }

    /// A producer id that nobody else has, with epoch 0.
    pub async fn init_producer_id(&self) -> Result<i64, StreamError> {
        self.inner.producer_ids.next(&*self.inner.meta).await
    }
}

/// Reading.
impl Log {
    /// A shard at this moment.
    pub fn view(&self, shard: ShardId) -> Result<View, ReadError> {
        Ok(self.shared_view(shard)?.get())
    }

    pub(crate) fn shared_view(&self, shard: ShardId) -> Result<Arc<SharedView>, ReadError> {
        let stream = self.inner.streams.read().by_id.get(&shard.stream).cloned();
        let stream = stream.ok_or(ReadError::NoStream)?;
        let shards = stream.record.config.shards;
        let handle = stream.shard(shard.shard).ok_or(ReadError::NoShard { shard: shard.shard.0, shards })?;
        handle.slot::<ReadError>()?;
        Ok(Arc::clone(&handle.view))
    }

    /// The shards that are not damaged, with their tails as they are now, in order.
    pub(crate) fn whole_shards(&self) -> Vec<(ShardId, Tail)> {
        let streams = self.inner.streams.read();
        let handles = streams.by_id.values().flat_map(|stream| &stream.shards);
        let views = handles.filter(|handle| handle.slot.is_ok()).map(|handle| handle.view.get());
        let mut shards: Vec<_> = views.map(|view| (view.shard, view.tail)).collect();
        shards.sort_unstable_by_key(|(shard, _)| *shard);
        shards
    }

    /// The tails of shards; `cached` is not filled in. A shard without any segment has the tail that its first
    /// segment will most likely begin with.
    pub fn tails(&self, stream: StreamId, shards: &[ShardNumber]) -> Result<Vec<Tail>, ReadError> {
        let known = self.inner.streams.read().by_id.get(&stream).cloned().ok_or(ReadError::NoStream)?;
        let count = known.record.config.shards;
        let tail = |shard: &ShardNumber| {
            let handle = known.shard(*shard).ok_or(ReadError::NoShard { shard: shard.0, shards: count })?;
            handle.slot::<ReadError>()?;
            Ok(handle.view.tail())
        };
        shards.iter().map(tail).collect()
    }

    /// What a shard remembers of the idempotent producers of acknowledged records, by producer: so many as one snapshot
    /// has room for ([`crate::limits::PRODUCERS_BYTES_MAX`]).
    ///
    /// # Errors
    /// `Unavailable` where its owner has too much to do, or has ended.
    pub async fn producers(&self, shard: ShardId) -> Result<Vec<ProducerState>, ReadError> {
        let stream = self.inner.streams.read().by_id.get(&shard.stream).cloned();
        let stream = stream.ok_or(ReadError::NoStream)?;
        let shards = stream.record.config.shards;
        let handle = stream.shard(shard.shard).ok_or(ReadError::NoShard { shard: shard.shard.0, shards })?;
        let slot = handle.slot::<ReadError>()?;
        let (reply, answer) = oneshot::channel();
        let request = OwnerRequest::Producers(slot, reply);
        let sent = self.inner.owners[handle.owner].try_send(request, false);
        sent.map_err(|error| ReadError::Unavailable(error.to_string()))?;
        answer.await.map_err(|_| ReadError::NoStream)
    }

    /// A shard's segments from number `from` on, oldest first; from the oldest that is left, if that was removed.
    pub fn segments(
        &self,
        shard: ShardId,
        from: SegmentNumber,
    ) -> Result<Vec<SegmentDescription>, ReadError> {
        let view = self.view(shard)?;
        let first = view.completed.partition_point(|segment| segment.number < from);
        let mut segments = describe_segments(&view, first);
        segments.retain(|segment| segment.number >= from);
        Ok(segments)
    }

    /// A shard's segments from the one that holds `offset` on, oldest first.
    pub fn segments_from_offset(
        &self,
        shard: ShardId,
        offset: Offset,
    ) -> Result<Vec<SegmentDescription>, ReadError> {
        let view = self.view(shard)?;
        let first = view.completed.partition_point(|segment| segment.next_offset <= offset);
        Ok(describe_segments(&view, first))
    }

    /// Where to begin reading a shard.
    pub async fn locate(&self, shard: ShardId, what: LocateRead) -> Result<ReadLocation, ReadError> {
        let inner = &*self.inner;
        let mut view = self.view(shard)?;
        loop {
            let result = locate(&view, &*inner.segments, what).await;
            if result != Err(ReadError::NoSegment) {
                return result;
            }
            // Retention may have removed the segment since the view was taken: that moved the start.
            let newer = self.view(shard)?;
            if newer.tail.log_start == view.tail.log_start {
                return result;
            }
            view = newer;
        }
    }

    /// Bytes of a segment from `position` on, at most `len`, never past what is durable; none exactly at the
    /// durable length.
    ///
    /// # Errors
    /// `Truncated` if retention or truncation removed the segment; `NoSegment` if no such one was ever visible;
    /// `BeyondEnd` behind the durable length.
    pub async fn read_durable(
        &self,
        segment: SegmentId,
        position: Position,
        len: u32,
    ) -> Result<Bytes, ReadError> {
        let view = self.view(segment.shard)?;
        let length = len.min(READ_BYTES_MAX) as usize;
        let _permit = match self.is_cold_segment(&segment) {
            true => self.inner.reading(true).await,
            false => None,
        };
        match self.inner.segments.read(&segment, position, length).await {
            Ok(bytes) => Ok(bytes),
            Err(StoreError::Unknown(_)) => {
                let oldest = view.completed.first().map_or(view.tail.segment, |oldest| oldest.number);
                if segment.number < oldest {
                    Err(ReadError::Truncated { log_start: view.tail.log_start })
                } else {
                    Err(ReadError::NoSegment)
                }
            }
            Err(StoreError::BeyondDurable { .. }) => Err(ReadError::BeyondEnd { end: view.tail.next_offset }),
            Err(error) => Err(read_error(error)),
        }
    }
}

/// The whole.
impl Log {
    /// Counters.
    pub fn stats(&self) -> LogStats {
        self.inner.counters.stats(self.inner.budget.used(), self.inner.hot.bytes())
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// How far a record's timestamp may be ahead of the node's clock where its stream does not say, in ms.
    pub fn timestamp_after_max_ms(&self) -> u64 {
        self.inner.timestamp_after_max_ms
    }

    /// Whether appends are taken, and if not, why, in words.
    pub fn health(&self) -> Result<(), String> {
        if self.inner.owners.iter().any(OwnerHandle::has_ended) {
            let why = if self.inner.closed.load(Ordering::Acquire) {
                "was closed"
            } else {
                "lost a task: restart the node"
            };
            return Err(format!("the log {why}"));
        }
        self.inner.journal.health().map_err(|failure| failure.to_string())?;
        self.inner.segments.health().map_err(|error| error.to_string())
    }

    /// The journal that everything here is acknowledged by.
    pub fn journal(&self) -> &Journal {
        &self.inner.journal
    }

    /// The store of segments on this host's disk. It is empty where segments are replicated.
    pub fn store(&self) -> &SegmentStore {
        &self.inner.store
    }

    /// Whether segments are in a replicated store, and not on this host's disk.
    pub fn is_replicated(&self) -> bool {
        self.inner.segments.journal().is_none()
    }

    /// Counters of the replicated store that segments are in, if they are in one.
    pub fn replicated_stats(&self) -> Option<tailwater_store::ReplicatedStats> {
        self.inner.segments.replicated_stats()
    }

    /// The metadata that the streams are in.
    pub fn meta(&self) -> &Arc<dyn Meta> {
        &self.inner.meta
    }

    /// What shadows the segments to the cells.
    pub fn tail_writer(&self) -> &TailWriter {
        &self.inner.tail
    }

    /// Takes no more appends, writes out what was accepted, completes and records all segments, and brings them
    /// into their files, so that the next start has nothing to recover. What of that could not be done within the
    /// configured time is left to the next start, as after a crash.
    pub async fn close(&self) {
        let inner = &*self.inner;
        {
            let _naming = inner.naming.lock().await;
            if inner.closed.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        drop(inner.copying.lock().take());
        drop(inner.sweeping.task.lock().take());
        let owners = inner.owners.iter().map(|owner| async {
            let (reply, done) = oneshot::channel();
            if owner.send(OwnerRequest::Close(reply)).await.is_ok() {
                let _ = done.await;
            }
        });
        let limit = inner.config_close_timeout;
        if inner.env.timeout(limit, join_all(owners)).await.is_none() {
            tracing::warn!("not all segments were completed in time; the next start does it");
        }
        let flush = async {
            inner.segments.flush().await?;
            // The journal, which has metadata and queues, is trimmed with it.
            if self.is_replicated() { inner.store.flush().await } else { Ok(()) }
        };
        match inner.env.timeout(limit, flush).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::warn!(%error, "segments are brought in order at the next start"),
            None => tracing::warn!("segments were not brought in order in time; the next start does it"),
        }
        if let Err(error) = inner.journal.close().await {
            tracing::error!(%error, "closing");
        }
    }
}

fn describe_segments(view: &View, first: usize) -> Vec<SegmentDescription> {
    let completed = view.completed[first..].iter().map(|segment| SegmentDescription {
        number: segment.number,
        term: segment.term,
        base_offset: segment.base_offset,
        next_offset: segment.next_offset,
        length: segment.length,
        sealed: true,
        completed: Some(CompletedSegment {
            first_transaction_id: segment.first_transaction_id,
            last_transaction_id: segment.last_transaction_id,
            created_ms: segment.created_ms,
            sealed_ms: segment.sealed_ms,
            is_copied: segment.cold.is_some(),
            is_released: segment.is_released(),
        }),
    });
    let open = view.open().map(|id| SegmentDescription {
        number: id.number,
        term: id.term,
        base_offset: view.tail.base_offset,
        next_offset: view.tail.next_offset,
        length: view.tail.durable,
        sealed: false,
        completed: None,
    });
    completed.chain(open).collect()
}
