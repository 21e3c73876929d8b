//! The handle: append, read, seal, delete.
//!
//! An append takes its stripe's lock, checks that it continues, puts one record into the journal's queue and the
//! entry into the segment's pending memory: no system call, no I/O, no allocation but the queue's growth.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tailwater_env::{Env, Task};
use tailwater_format::{AppendedTo, DurableTo, Offset, Position, SegmentId, ShardId, Term, TransactionId};
use tailwater_journal::{Incarnation, Journal, JournalAppendError, JournalPosition};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::files::HandleCache;
use crate::index::{IndexContents, SparseIndex};
use crate::indexes::FiledIndexes;
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::limits::{READ_BYTES_MAX, READ_QUEUE, READER_TASKS, STRIPES, StoreConfig};
use crate::pending::cost;
use crate::reader::{self, Job};
use crate::record::Record;
use crate::segment::{Phase, Segment};
use crate::shards::{Deleting, Stripe, stripe_of};
use crate::syncer::{self, Syncers};
use crate::{StoreError, filler};

/// What a segment is like at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSegment {
    /// Which.
    pub id: SegmentId,
    /// Its end, durable or not.
    pub appended: AppendedTo<Position>,
    /// How far it is durable; readers get no further.
    pub durable: DurableTo<Position>,
    /// Whether `appended` is final.
    pub sealed: bool,
    /// Its first and last entry up to `appended`. `None` if it has none, or if it was sealed below what its
    /// file holds and the filler has not read that again yet.
    pub contents: Option<IndexContents>,
}

/// Counters of a store, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Bytes in memory that are not synced in segment files, with their bookkeeping.
    pub pending_bytes: u64,
    /// Bytes written into segment files.
    pub written_bytes: u64,
    /// Syncs of segment files.
    pub syncs: u64,
    /// Rounds of writing, syncing and trimming that went through.
    pub rounds: u64,
    /// Rounds that did not.
    pub rounds_failed: u64,
    /// Reads that went to a file.
    pub file_reads: u64,
    /// The journal was trimmed up to here.
    pub trimmed: JournalPosition,
}

/// The same, being counted: each stands for itself, so all accesses are relaxed.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) written_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) rounds_failed: AtomicU64,
    pub(crate) file_reads: AtomicU64,
    pub(crate) trimmed: AtomicU64,
}

/// What the handle, the filler and the readers share.
pub(crate) struct StoreInner {
    pub(crate) env: Env,
    pub(crate) layout: Layout,
    pub(crate) config: StoreConfig,
    pub(crate) ledger: Ledger,
    stripes: Vec<Mutex<Stripe>>,
    /// Bytes against `config.pending_bytes_max`: added before an append, taken away where pieces are dropped.
    pending_bytes: AtomicU64,
    /// A durable journal position before every record that is not noted in a segment's or a deletion's
    /// `needs_from`. Moved forward by the filler only.
    pub(crate) floor: AtomicU64,
    /// Written by the filler; read by appends before they look at `refusal`, so relaxed: an append that
    /// misses it is only accepted a moment longer.
    refusing: AtomicBool,
    refusal: Mutex<Option<StoreError>>,
    /// Wakes the filler before its tick.
    pub(crate) wake: Notify,
    /// The journal is full: the filler's next turn is a round. Set by appends, cleared by the filler.
    pub(crate) urgent: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) handles: Mutex<HandleCache>,
    pub(crate) indexes: Mutex<FiledIndexes>,
}

pub(crate) type FlushReply = oneshot::Sender<Result<(), StoreError>>;

struct StoreShared {
    inner: Arc<StoreInner>,
    flushes: mpsc::Sender<FlushReply>,
    readers: Vec<mpsc::Sender<Job>>,
    // Dropped, and so cancelled, with the last handle.
    _tasks: Vec<Task>,
}

/// A store of segments on a local disk; see the crate. Cheap to clone; the last handle's drop stops its tasks.
#[derive(Clone)]
pub struct SegmentStore {
    shared: Arc<StoreShared>,
}

impl StoreInner {
    pub(crate) fn new(
        env: Env,
        layout: Layout,
        config: StoreConfig,
        journal: Journal,
        mut stripes: Vec<Stripe>,
        floor: JournalPosition,
    ) -> Self {
        assert_eq!(stripes.len(), STRIPES, "shards are found by the number of their stripe");
        let ledger = Ledger::new(journal);
        let incarnation = ledger.incarnation();
        let mut pending_bytes = 0;
        for stripe in &mut stripes {
            stripe.incarnation = incarnation;
            pending_bytes += stripe.shards.segments().map(|segment| segment.pending.cost()).sum::<u64>();
        }
        Self {
            env,
            layout,
            config,
            ledger,
            stripes: stripes.into_iter().map(Mutex::new).collect(),
            pending_bytes: AtomicU64::new(pending_bytes),
            floor: AtomicU64::new(floor.0),
            refusing: AtomicBool::new(false),
            refusal: Mutex::new(None),
            wake: Notify::new(),
            urgent: AtomicBool::new(false),
            counters: Counters { trimmed: AtomicU64::new(floor.0), ..Counters::default() },
            handles: Mutex::new(HandleCache::default()),
            indexes: Mutex::default(),
        }
    }

    /// The stripe of a shard, brought up to date with the journal's incarnation.
    pub(crate) fn stripe(&self, shard: &ShardId) -> MutexGuard<'_, Stripe> {
        self.stripe_at(stripe_of(shard))
    }

    pub(crate) fn stripe_at(&self, index: usize) -> MutexGuard<'_, Stripe> {
        let mut stripe = self.stripes[index].lock();
        let incarnation = self.ledger.incarnation();
        if stripe.incarnation != incarnation {
            self.absorb_loss(&mut stripe);
            stripe.incarnation = incarnation;
        }
        stripe
    }

    /// The journal lost records since this stripe was looked at: cuts what they were, before anybody takes
    /// positions beyond the gap for theirs.
    fn absorb_loss(&self, stripe: &mut Stripe) {
        let survived = |end| self.ledger.survived(end);
        let freed = stripe.shards.segments_mut().map(|segment| segment.lose(&survived)).sum();
        self.release(freed);
        for deleting in &mut stripe.work.deleting {
            if !survived(deleting.record_end) {
                // Not durable, so not to be carried out; the filler records it again.
                deleting.record_end = JournalPosition(u64::MAX);
            }
        }
    }

    /// Takes `cost` bytes of the pending memory.
    fn reserve(&self, cost: u64) -> Result<u64, StoreError> {
        let pending_bytes = self.pending_bytes.fetch_add(cost, Ordering::Relaxed);
        let pending_bytes_max = self.config.pending_bytes_max;
        if pending_bytes + cost > pending_bytes_max {
            self.release(cost);
            self.wake.notify_one();
            return Err(StoreError::Full { pending_bytes, pending_bytes_max });
        }
        Ok(pending_bytes)
    }

    /// Gives `cost` bytes of the pending memory back.
    pub(crate) fn release(&self, cost: u64) {
        let before = self.pending_bytes.fetch_sub(cost, Ordering::Relaxed);
        assert!(before >= cost, "what is given back was taken");
    }

    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn floor(&self) -> JournalPosition {
        JournalPosition(self.floor.load(Ordering::Relaxed))
    }

    /// Why appends are refused, if they are.
    fn refusal(&self) -> Option<StoreError> {
        if !self.refusing.load(Ordering::Relaxed) {
            return None;
        }
        self.refusal.lock().clone()
    }

    pub(crate) fn set_refusal(&self, refusal: Option<StoreError>) {
        let mut slot = self.refusal.lock();
        self.refusing.store(refusal.is_some(), Ordering::Relaxed);
        *slot = refusal;
    }

    /// Puts a record into the journal; a full journal hurries the filler, which trims it.
    pub(crate) fn record(
        &self,
        incarnation: Incarnation,
        record: Record<'_>,
        sync: bool,
    ) -> Result<JournalPosition, StoreError> {
        self.ledger.append(record, incarnation, sync).map_err(|error| {
            if matches!(error, JournalAppendError::Full(_)) {
                self.urgent.store(true, Ordering::Relaxed);
                self.wake.notify_one();
            }
            StoreError::Journal(error)
        })
    }
}

impl SegmentStore {
    pub(crate) fn start(inner: StoreInner) -> Self {
        let inner = Arc::new(inner);
        let (flushes, flush_requests) = mpsc::channel(64);
        let (syncers, sync_queues) = Syncers::new();
        let filler = filler::run(inner.clone(), flush_requests, syncers);
        let mut tasks = vec![inner.env.spawn_dedicated("store-filler", filler)];
        for queue in sync_queues {
            tasks.push(inner.env.spawn_dedicated("store-syncer", syncer::run(queue, inner.env.clone())));
        }
        let mut readers = Vec::new();
        for _ in 0..READER_TASKS {
            let (jobs, queue) = mpsc::channel(READ_QUEUE / READER_TASKS);
            tasks.push(inner.env.spawn_dedicated("store-reader", reader::run(inner.clone(), queue)));
            readers.push(jobs);
        }
        Self { shared: Arc::new(StoreShared { inner, flushes, readers, _tasks: tasks }) }
    }

    fn inner(&self) -> &StoreInner {
        &self.shared.inner
    }

    /// The journal that this store's positions are in.
    pub fn journal(&self) -> &Journal {
        self.inner().ledger.journal()
    }

    /// Begins a segment; answers where its record ends in the journal. Does no I/O: the file appears when it
    /// is filled. Fences all lower terms of the shard.
    ///
    /// # Errors
    /// `Fenced`, `NotNext`, `LostBefore`; `NoSpace`, `DiskFailed`, `Journal` if nothing can be written at the moment.
    pub fn create(&self, id: SegmentId) -> Result<JournalPosition, StoreError> {
        let inner = self.inner();
        let mut stripe = inner.stripe(&id.shard);
        stripe.shards.check_create(&id)?;
        if let Some(refusal) = inner.refusal() {
            return Err(refusal);
        }
        let end = inner.record(stripe.incarnation, Record::Create(id), true)?;
        assert!(stripe.shards.get(&id).is_err(), "{id}: a segment's name is used once");
        let mut segment = Segment::new(id, Phase::Open, inner.config.index_step);
        segment.created = end;
        stripe.shards.insert(segment);
        Ok(end)
    }

    /// Appends one entry at `position`, the segment's end; answers where its record ends in the journal: it is
    /// acknowledged once the journal is durable up to there. Does no I/O and does not wait.
    ///
    /// # Errors
    /// Nothing was appended then. `Fenced`, `Lost`, `Recovered`, `Sealed`: this segment is over. `Full`,
    /// `NoSpace`, `DiskFailed`, `Journal`: not at the moment (`Journal` with `Stale`: try once more, which tells
    /// whether this segment lost anything). `NotContinuing`, `Entry`, `EntryLength`: the caller has lost count.
    pub fn append(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
    ) -> Result<JournalPosition, StoreError> {
        self.append_with(id, position, entry, true)
    }

    /// [`SegmentStore::append`]; without `sync` the journal syncs it when it likes, at the latest after its
    /// interval or with the next record that asks for it.
    ///
    /// # Errors
    /// As [`SegmentStore::append`].
    pub fn append_with(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        sync: bool,
    ) -> Result<JournalPosition, StoreError> {
        let inner = self.inner();
        if let Some(refusal) = inner.refusal() {
            return Err(refusal);
        }
        let cost = cost(entry.len());
        let pending_before = inner.reserve(cost)?;
        let mut wake = false;
        let mut stripe = inner.stripe(&id.shard);
        let appended = self.append_locked(&mut stripe, id, position, entry, sync, &mut wake);
        drop(stripe);
        if appended.is_err() {
            inner.release(cost);
        }
        let mark = inner.config.sync_bytes;
        if wake || (pending_before < mark && pending_before + cost >= mark) {
            inner.wake.notify_one();
        }
        appended
    }

    fn append_locked(
        &self,
        stripe: &mut Stripe,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        sync: bool,
        wake: &mut bool,
    ) -> Result<JournalPosition, StoreError> {
        let inner = self.inner();
        let segment = stripe.shards.get_unfenced(id)?;
        let header = segment.check_append(position, &entry)?;
        // Taken before the record: the floor may pass the record as soon as it is in the journal.
        let floor = inner.floor();
        let record = Record::Append(*id, position, &entry);
        let end = inner.record(stripe.incarnation, record, sync)?;
        assert!(segment.created < end, "{id}: an entry's record is behind that of its segment");
        segment.append(header, entry, end);
        stripe.work.mark_dirty(segment, floor);
        if !segment.ready && segment.pending.unwritten_bytes() >= inner.config.fill_bytes {
            segment.ready = true;
            stripe.work.ready.push(*id);
            *wake = true;
        }
        Ok(end)
    }

    /// Ends the segment at `length`, for ever; answers where its record ends in the journal (0 if it was
    /// sealed there and filed long ago). What is after `length` is cut. Sealing again at the same length is
    /// no error. Works on a full disk, and for any term: whoever takes a shard over seals what it finds.
    ///
    /// # Errors
    /// `SealBeyondEnd`, `Sealed` at another length, `Unknown`, `Journal`.
    pub fn seal(&self, id: &SegmentId, length: Position) -> Result<JournalPosition, StoreError> {
        let inner = self.inner();
        let mut stripe = inner.stripe(&id.shard);
        if let Some(end) = stripe.shards.get(id)?.check_seal(length)? {
            return Ok(end);
        }
        let floor = inner.floor();
        let end = inner.record(stripe.incarnation, Record::Seal(*id, length), true)?;
        let stripe = &mut *stripe;
        let segment = stripe.shards.get_mut(id)?;
        let freed = segment.seal(length, end);
        stripe.work.mark_dirty(segment, floor);
        inner.release(freed);
        Ok(end)
    }

    /// Forgets the segment at once and removes its files once that is durable; answers where its record ends
    /// in the journal. Its id is never used again. Reads that have begun may still answer its bytes.
    ///
    /// # Errors
    /// `Unknown`, `Journal`.
    pub fn delete(&self, id: &SegmentId) -> Result<JournalPosition, StoreError> {
        let inner = self.inner();
        let mut stripe = inner.stripe(&id.shard);
        let dirty = stripe.shards.get(id)?;
        let needs_from = if dirty.dirty { dirty.needs_from } else { inner.floor() };
        let record_end = inner.record(stripe.incarnation, Record::Delete(*id), true)?;
        if let Some(segment) = stripe.shards.remove(id) {
            inner.release(segment.pending.cost());
        }
        stripe.work.deleting.push(Deleting { id: *id, record_end, needs_from });
        inner.indexes.lock().forget(id);
        Ok(record_end)
    }

    /// The segment's end, durable or not.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn appended(&self, id: &SegmentId) -> Result<Position, StoreError> {
        Ok(self.inner().stripe(&id.shard).shards.get(id)?.pending.appended())
    }

    /// How far the segment is durable.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn durable_length(&self, id: &SegmentId) -> Result<Position, StoreError> {
        let inner = self.inner();
        let durable = inner.ledger.durable();
        let mut stripe = inner.stripe(&id.shard);
        Ok(stripe.shards.get_mut(id)?.pending.advance(durable).get())
    }

    /// What the segment is like.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn info(&self, id: &SegmentId) -> Result<StoredSegment, StoreError> {
        let inner = self.inner();
        let durable = inner.ledger.durable();
        let mut stripe = inner.stripe(&id.shard);
        Ok(info(stripe.shards.get_mut(id)?, durable))
    }

    /// All segments of a shard, in order.
    pub fn segments(&self, shard: &ShardId) -> Vec<StoredSegment> {
        let inner = self.inner();
        let durable = inner.ledger.durable();
        let mut stripe = inner.stripe(shard);
        let Some(shard) = stripe.shards.shard_mut(shard) else { return Vec::new() };
        shard.segments.values_mut().map(|segment| info(segment, durable)).collect()
    }

    /// The highest term seen in the shard, which fences the lower ones. After a restart it is that of the
    /// segments that are left.
    pub fn highest_term(&self, shard: &ShardId) -> Option<Term> {
        let stripe = self.inner().stripe(shard);
        stripe.shards.shard(shard).and_then(|shard| shard.highest).map(|(term, _)| term)
    }

    /// Lowers the fence of a shard, if it is higher: see [`crate::StoreContract::lower_fence`].
    pub fn lower_fence(&self, shard: &ShardId, term: Term) {
        let inner = self.inner();
        let mut stripe = inner.stripe(shard);
        if let Some((highest, _)) = stripe.shards.shard_mut(shard).and_then(|shard| shard.highest.as_mut()) {
            *highest = term.min(*highest);
        }
    }

    /// The bytes from `position`, at most `length` and at most [`READ_BYTES_MAX`], never past what is durable:
    /// at least one if anything is durable there, else none. Dropping the future abandons the read.
    ///
    /// # Errors
    /// `Unknown`, `BeyondDurable`; `Busy`, `Read`.
    pub async fn read(&self, id: &SegmentId, position: Position, length: usize) -> Result<Bytes, StoreError> {
        let inner = self.inner();
        let (file_end, tail) = {
            let journal = inner.ledger.durable();
            let mut stripe = inner.stripe(&id.shard);
            let segment = stripe.shards.get_mut(id)?;
            let durable = segment.pending.advance(journal).get();
            if position > durable {
                return Err(StoreError::BeyondDurable { position, durable });
            }
            let end = Position(position.0.saturating_add(length.min(READ_BYTES_MAX) as u64)).min(durable);
            let synced = segment.pending.synced();
            assert!(synced <= durable, "{id}: what is synced in a file was durable before");
            let tail = if end > synced { segment.pending.read(position.max(synced), end) } else { vec![] };
            (end.min(synced), tail)
        };
        if position >= file_end {
            return Ok(join(&[], tail));
        }
        let (reply, answer) = oneshot::channel();
        let bytes = (file_end.0 - position.0) as usize;
        self.submit(Job::Read { id: *id, position, bytes, reply })?;
        let head = answer.await.map_err(|_| StoreError::Closed)??;
        assert_eq!(head.len(), bytes, "{id}: a read is answered whole or with an error");
        Ok(if tail.is_empty() { head.into() } else { join(&head, tail) })
    }

    /// Where the entry that holds `offset` begins, or an entry at most about an index step before it.
    ///
    /// # Errors
    /// `Unknown`; `Busy`, `Read` where the index has to come from a file.
    pub async fn locate_offset(&self, id: &SegmentId, offset: Offset) -> Result<Position, StoreError> {
        self.locate(id, |index| index.by_offset(offset)).await
    }

    /// Where an entry begins that is at or before the first one whose running transaction id reaches
    /// `transaction_id`, at most about an index step before it.
    ///
    /// # Errors
    /// `Unknown`; `Busy`, `Read` where the index has to come from a file.
    pub async fn locate_transaction_id(
        &self,
        id: &SegmentId,
        transaction_id: TransactionId,
    ) -> Result<Position, StoreError> {
        self.locate(id, |index| index.by_transaction_id(transaction_id)).await
    }

    async fn locate(
        &self,
        id: &SegmentId,
        look_up: impl Fn(&SparseIndex) -> Position,
    ) -> Result<Position, StoreError> {
        let inner = self.inner();
        {
            let stripe = inner.stripe(&id.shard);
            let segment = stripe.shards.get(id)?;
            if let Some(index) = &segment.index {
                return Ok(look_up(index));
            }
        }
        let kept = inner.indexes.lock().get(id);
        if let Some(index) = kept {
            return Ok(look_up(&index));
        }
        let (reply, answer) = oneshot::channel();
        self.submit(Job::Index { id: *id, reply })?;
        let index = answer.await.map_err(|_| StoreError::Closed)??;
        Ok(look_up(&index))
    }

    /// Gives a job to a reader thread that has room for it.
    fn submit(&self, mut job: Job) -> Result<(), StoreError> {
        // Threads take turns by what has been read: which one is first matters little.
        let first = self.inner().counters.file_reads.fetch_add(1, Ordering::Relaxed) as usize;
        for turn in 0..READER_TASKS {
            match self.shared.readers[(first + turn) % READER_TASKS].try_send(job) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(refused)) => job = refused,
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(StoreError::Closed),
            }
        }
        Err(StoreError::Busy)
    }

    /// Completes when all that is durable in the journal when the filler gets to it is synced in segment
    /// files, and the journal trimmed: a restart after it has nothing to replay.
    ///
    /// # Errors
    /// `NoSpace`, `DiskFailed`, `Closed`. Trying goes on by itself.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.shared.flushes.send(reply).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Why appends are refused at the moment, if segment files can't be written.
    pub fn refusal(&self) -> Option<StoreError> {
        self.inner().refusal()
    }

    /// Whether it takes entries, and if not, why.
    pub fn health(&self) -> Result<(), StoreError> {
        self.inner().refusal().map_or(Ok(()), Err)
    }

    /// The counters.
    pub fn stats(&self) -> StoreStats {
        let inner = self.inner();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            pending_bytes: inner.pending_bytes(),
            written_bytes: of(&inner.counters.written_bytes),
            syncs: of(&inner.counters.syncs),
            rounds: of(&inner.counters.rounds),
            rounds_failed: of(&inner.counters.rounds_failed),
            file_reads: of(&inner.counters.file_reads),
            trimmed: JournalPosition(of(&inner.counters.trimmed)),
        }
    }
}

fn info(segment: &mut Segment, journal: JournalPosition) -> StoredSegment {
    let durable = segment.pending.advance(journal);
    StoredSegment {
        id: segment.id,
        appended: segment.pending.appended_to(),
        durable,
        sealed: segment.is_sealed(),
        contents: segment.contents(),
    }
}

/// The bytes in one piece; without a copy if they are in one already.
fn join(head: &[u8], mut tail: Vec<Bytes>) -> Bytes {
    if head.is_empty() && tail.len() <= 1 {
        return tail.pop().unwrap_or_default();
    }
    let mut out = Vec::with_capacity(head.len() + tail.iter().map(Bytes::len).sum::<usize>());
    out.extend_from_slice(head);
    for bytes in &tail {
        out.extend_from_slice(bytes);
    }
    out.into()
}
