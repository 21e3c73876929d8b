//! The owner of many shards: a thin shell around [`Shard`].
//!
//! A round takes everything that is queued, lets the shards concerned write their entries, and looks how far the
//! journal is. Each of these is a step of the shard, whose outputs are carried out before its next step. A round waits
//! for nothing: the store takes entries without I/O, and metadata commits run beside the rounds and come back into
//! them. A task goes round whenever there is something to do; where there is nothing, whoever brings a request does
//! ([`Shell`]).
//!
//! What holds:
//! - Each shard has one owner, and only its owner's rounds touch it, one at a time.
//! - Whoever is answered finds the answer in the shard's [`crate::view::View`].
//! - The queue is bounded in requests ([`crate::limits::OWNER_QUEUE_REQUESTS`]) and, by permits that an append holds
//!   from its arrival to its answer ([`crate::budget`]), in bytes. A full one is an error value for the caller, never a
//!   wait.

mod queue;
mod shell;
mod told;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_cold::ColdTier;
use tailwater_env::{Env, Instant, Task};
use tailwater_format::SegmentId;
use tailwater_journal::{FullReason, Journal, JournalAppendError as JournalError, JournalPosition, WaitFor};
use tailwater_meta::Meta;
use tailwater_store::{EntryPlace, StoreContract, StoreError};
use tailwater_tail::TailWriter;
use tokio::sync::{Notify, oneshot};

use self::queue::SubmitRefusal;
use self::shell::Shell;
use self::told::OwnerNews;
use crate::commit;
use crate::config::StreamConfig;
use crate::counters::Counters;
use crate::error::{AppendError, StreamError};
use crate::follow::{Follower, Placed};
use crate::hot::Hot;
use crate::limits::ENTRIES_WITHOUT_TASK;
use crate::producer::{ProducerState, Producers};
use crate::shard::{
    ChangeError, CopyBegin, Output, Recovered, RestoreRequest, SegmentCopied, Shard, ShardInput, StepTime,
    StoreAppend, Truncation, ViewChange, Write, WriteError,
};
use crate::slots::{Slot, Slots};
use crate::upkeep::Upkeep;
use crate::view::SharedView;

/// What an owner is asked to do.
pub(crate) enum OwnerRequest {
    /// Append to a shard.
    Append(Slot, StoreAppend),
    /// Own a shard.
    Open(Box<Shard>, Arc<SharedView>, oneshot::Sender<Slot>),
    /// Shards of a stream behave in another way from now on.
    Configure(Vec<Slot>, Arc<StreamConfig>, oneshot::Sender<()>),
    /// Truncate a shard.
    Truncate(Slot, Truncation),
    /// Take note of a segment that was copied to cold storage.
    Copied(Slot, SegmentCopied),
    /// Bring removed records of a shard back.
    Restore(Slot, RestoreRequest),
    /// Have a copy go on behind a gap.
    Begin(Slot, CopyBegin),
    /// Give a shard up once all is written, completed and recorded; `None` while it is not.
    Release(Slot, oneshot::Sender<Result<Option<Box<ReleasedShard>>, StreamError>>),
    /// Give a shard up that another process has claimed: nothing of it is written any more.
    Abandon(Slot, oneshot::Sender<()>),
    /// Go on with a shard that was to be given up.
    Resume(Slot),
    /// Tell what a shard remembers of its producers.
    Producers(Slot, oneshot::Sender<Vec<ProducerState>>),
    /// Give shards of a deleted stream up, and delete their segments.
    Delete(Vec<Slot>, oneshot::Sender<()>),
    /// Delete segments that no owned shard has.
    Remove(Vec<SegmentId>),
    /// Write everything out, complete and record the segments, and end.
    Close(oneshot::Sender<()>),
}

/// What a start would find of a shard, and its producers.
pub(crate) type ReleasedShard = (Recovered, Producers);

/// An owner's queue. Dropping it cancels the owner.
pub(crate) struct OwnerHandle {
    shell: Arc<Shell>,
    _task: Task,
}

impl OwnerHandle {
    /// Puts a request into the queue, or refuses it, which is then all that is said of it. One that comes alone is
    /// carried out by the caller, if the owner has nothing to do.
    pub(crate) fn try_send(&self, request: OwnerRequest, alone: bool) -> Result<(), AppendError> {
        self.shell.queue.push(request).map_err(|refused| {
            let (request, why) = match refused {
                SubmitRefusal::Full(request) => {
                    (request, AppendError::Overloaded("too many requests are queued"))
                }
                SubmitRefusal::Ended(request) => (request, AppendError::Closed),
            };
            if let OwnerRequest::Append(_, append) = *request {
                append.waiter.forget();
            }
            why
        })?;
        self.shell.look(alone);
        Ok(())
    }

    /// Whether nobody takes requests any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.shell.queue.has_ended()
    }

    /// Puts a request into the queue, waiting for room. For the rare ones.
    pub(crate) async fn send(&self, request: OwnerRequest) -> Result<(), AppendError> {
        self.shell.queue.send(request).await?;
        self.shell.look(false);
        Ok(())
    }
}

/// What an owner stands on.
#[derive(Clone)]
pub(crate) struct OwnerDependencies {
    pub(crate) env: Env,
    pub(crate) journal: Journal,
    pub(crate) segments: Arc<dyn StoreContract>,
    pub(crate) cold: Option<ColdTier>,
    pub(crate) meta: Arc<dyn Meta>,
    pub(crate) tail: TailWriter,
    pub(crate) counters: Arc<Counters>,
    pub(crate) hot: Arc<Hot>,
    /// How often segments roll by time, and retention is looked after.
    pub(crate) tick: Duration,
}

/// Starts an owner without shards.
pub(crate) fn start(needs: OwnerDependencies) -> OwnerHandle {
    let (shell, task) = Shell::start(Owner::new(needs));
    OwnerHandle { shell, _task: task }
}

/// A change of a shard's metadata, and how it ended.
type Commit = BoxFuture<'static, (Slot, Result<u64, ChangeError>)>;

/// What the task waits for.
struct RoundPlan {
    wake_at: Instant,
    follow_durable: bool,
    follow_written: bool,
}

struct Owned {
    slot: Slot,
    shard: Shard,
    view: Arc<SharedView>,
    /// In the list of shards that are to go on in this round.
    touched: bool,
    /// The last one in the set of times at which shards go on.
    wake_at: Option<Instant>,
    closed: bool,
    /// It is another process's: nothing of it is touched in the store.
    abandoned: bool,
}

struct Owner {
    needs: OwnerDependencies,
    owned: Slots<Box<Owned>>,
    touched: Vec<Slot>,
    /// When shards go on although nothing happens to them.
    wakes: BTreeSet<(Instant, Slot)>,
    /// Waiting to be durable: the entries of `fsync` shards for their acknowledgement, the others' to be safe.
    durable: Follower,
    /// Waiting to be written, for their acknowledgement: the entries of `interval` shards.
    written: Follower,
    /// What is told of single segments, where no journal tells of all. `None` if one does.
    told: Option<Arc<OwnerNews>>,
    /// Wakes the task.
    wake: Arc<Notify>,
    upkeep: Upkeep,
    /// The first of those that wait to be durable, while the journal's thread follows it and not the task.
    awaited: Option<WaitFor>,
    /// To be begun by the task.
    commits: Vec<Commit>,
    commits_under_way: usize,
    /// Until when the task sleeps if nobody wakes it.
    sleeps_until: Instant,
    out: Vec<Output>,
    tick_at: Instant,
    closing: Option<oneshot::Sender<()>>,
    journal_closed: bool,
}

impl Owner {
    fn new(needs: OwnerDependencies) -> Self {
        let (durable, written) =
            (Follower::new(needs.journal.durable()), Follower::new(needs.journal.written()));
        let tick_at = needs.env.now() + needs.tick;
        let wake = Arc::new(Notify::new());
        let told = needs.segments.journal().is_none().then(|| OwnerNews::new(&wake));
        Self {
            needs,
            owned: Slots::new(),
            touched: Vec::new(),
            wakes: BTreeSet::new(),
            durable,
            written,
            told,
            wake,
            upkeep: Upkeep::default(),
            awaited: None,
            commits: Vec::new(),
            commits_under_way: 0,
            sleeps_until: Instant::default(),
            out: Vec::new(),
            tick_at,
            closing: None,
            journal_closed: false,
        }
    }

    /// The time of a round: all of its steps are taken at once.
    fn time(&self) -> StepTime {
        StepTime { now: self.needs.env.now(), wall_ms: self.needs.env.wall_ms() }
    }

    /// Takes requests, lets the shards go on that got some, and looks how far the journal is.
    fn round(&mut self, requests: impl IntoIterator<Item = OwnerRequest>) {
        let at = self.time();
        for request in requests {
            self.take(request, at);
        }
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            if let Some(owned) = self.owned.get(slot) {
                owned.touched = false;
            }
            self.step(slot, at, ShardInput::Proceed);
        }
        self.touched = touched; // its memory serves the next round
        self.follow_journal(at);
    }

    /// Whether nothing is under way that is the task's, or that is better done together with what comes next.
    fn is_free(&self) -> bool {
        let follows_itself = self.durable.is_empty() || self.awaited.is_some();
        follows_itself
            && self.durable.len() < ENTRIES_WITHOUT_TASK
            && self.written.is_empty()
            && self.upkeep.is_idle()
            && self.wakes.is_empty()
            && self.commits.is_empty()
            && self.commits_under_way == 0
            && self.closing.is_none()
            && !self.journal_closed
    }

    /// Leaves to the task what it does until the next round: it follows the journal from here on.
    fn hand_over(&mut self, commits: &mut FuturesUnordered<Commit>) -> RoundPlan {
        commits.extend(self.commits.drain(..));
        self.commits_under_way = commits.len();
        self.awaited = None;
        self.sleeps_until = self.wake_at();
        // What nothing waits for wakes nobody; a loss meanwhile is seen at the next look.
        let waiting = !self.durable.is_empty() || !self.upkeep.is_idle();
        RoundPlan {
            wake_at: self.sleeps_until,
            follow_durable: waiting && !self.journal_closed,
            follow_written: !self.written.is_empty() && !self.journal_closed,
        }
    }

    /// Whether what [`Owner::await_first`] has noted is durable; `false` once the task follows the journal by itself.
    fn is_first_durable(&mut self) -> bool {
        let context = &mut Context::from_waker(Waker::noop());
        let awaited = self.awaited.take();
        awaited.is_some_and(|mut awaited| matches!(awaited.poll_unpin(context), Poll::Ready(Ok(()))))
    }

    /// Has the journal call `poke` for the first entry that waits; whether there is something that the task has to do.
    fn await_first(&mut self, poke: &Waker) -> bool {
        self.awaited = self.durable.first();
        let poke = &mut Context::from_waker(poke);
        let is_over = self.awaited.as_mut().is_some_and(|awaited| awaited.poll_unpin(poke).is_ready());
        is_over
            || !self.commits.is_empty()
            || !self.written.is_empty()
            || !self.upkeep.is_idle()
            || self.closing.is_some()
            || self.wake_at() < self.sleeps_until
    }

    fn journal_is_closed(&mut self, durable: bool, written: bool) {
        if durable {
            self.durable.close();
        }
        if written {
            self.written.close();
        }
        self.journal_closed |= durable || written;
    }

    fn wake_at(&self) -> Instant {
        self.wakes.first().map_or(self.tick_at, |(first, _)| self.tick_at.min(*first))
    }

    fn take(&mut self, request: OwnerRequest, at: StepTime) {
        match request {
            OwnerRequest::Append(slot, append) => {
                // Of a stream that was deleted a moment ago, or that is being moved: the next attempt tells.
                if self.owned.get(slot).is_none() {
                    append.waiter.answer(Err(AppendError::NotOwner));
                    return;
                }
                self.step(slot, at, ShardInput::Append(append));
                self.touch(slot);
            }
            OwnerRequest::Truncate(slot, truncation) => {
                if self.owned.get(slot).is_none() {
                    let _ = truncation.reply.send(Err(StreamError::NotOwner));
                    return;
                }
                self.step(slot, at, ShardInput::Truncate(truncation));
                self.touch(slot);
            }
            OwnerRequest::Copied(slot, copied) => {
                self.step(slot, at, ShardInput::Copied(copied));
                self.touch(slot);
            }
            OwnerRequest::Restore(slot, wish) => {
                // Of a shard that is gone the sender is dropped, which is an answer.
                self.step(slot, at, ShardInput::Restore(wish));
                self.touch(slot);
            }
            OwnerRequest::Begin(slot, begin) => {
                if self.owned.get(slot).is_none() {
                    let _ = begin.reply.send(Err(StreamError::NotOwner));
                    return;
                }
                self.step(slot, at, ShardInput::Begin(begin));
                self.touch(slot);
            }
            OwnerRequest::Release(slot, reply) => {
                // Whoever has given up leaves the shard closed, and asks again.
                let _ = reply.send(self.release(slot, at));
            }
            OwnerRequest::Abandon(slot, reply) => {
                self.abandon(slot, at);
                let _ = reply.send(());
            }
            OwnerRequest::Resume(slot) => self.resume(slot, at),
            OwnerRequest::Producers(slot, reply) => {
                // Of a shard that is gone the sender is dropped, which is an answer.
                if let Some(owned) = self.owned.get(slot) {
                    let _ = reply.send(owned.shard.producers());
                }
            }
            OwnerRequest::Open(shard, view, reply) => {
                let slot = self.owned.reserve();
                self.needs.tail.open(shard.id(), shard.tail());
                let (touched, wake_at, closed, abandoned) = (false, None, false, false);
                let owned = Owned { slot, shard: *shard, view, touched, wake_at, closed, abandoned };
                self.owned.put(slot, Box::new(owned));
                self.step(slot, at, ShardInput::Opened);
                let _ = reply.send(slot);
            }
            OwnerRequest::Configure(slots, config, reply) => {
                for slot in slots {
                    self.step(slot, at, ShardInput::Configure(Arc::clone(&config)));
                    self.touch(slot);
                }
                let _ = reply.send(());
            }
            OwnerRequest::Delete(slots, reply) => {
                for slot in slots {
                    self.step(slot, at, ShardInput::Delete);
                    let Some(owned) = self.owned.remove(slot) else { continue };
                    if let Some(wake_at) = owned.wake_at {
                        self.wakes.remove(&(wake_at, slot));
                    }
                }
                let _ = reply.send(());
            }
            OwnerRequest::Remove(segments) => {
                for id in segments {
                    self.upkeep.delete(&*self.needs.segments, id);
                }
            }
            OwnerRequest::Close(reply) => {
                self.closing = Some(reply);
                for slot in self.owned.used().collect::<Vec<_>>() {
                    self.step(slot, at, ShardInput::Close);
                    self.touch(slot);
                }
            }
        }
    }

    /// Takes a shard from this owner, if it has nothing left to do.
    fn release(&mut self, slot: Slot, at: StepTime) -> Result<Option<Box<ReleasedShard>>, StreamError> {
        let owned = self.owned.get(slot).ok_or(StreamError::Closed)?;
        if owned.shard.is_lost() {
            return Err(StreamError::NotOwner);
        }
        // One that is closed may still have had a commit to make, of segments that retention deletes.
        if !owned.closed || owned.shard.is_committing() {
            self.step(slot, at, ShardInput::Close);
            self.touch(slot);
            return Ok(None);
        }
        let owned = self.owned.remove(slot).ok_or(StreamError::Closed)?;
        if let Some(wake_at) = owned.wake_at {
            self.wakes.remove(&(wake_at, slot));
        }
        Ok(Some(Box::new(owned.shard.into_released())))
    }

    /// Lets a shard go as it is: whoever waits for an answer is told that it is not known.
    fn abandon(&mut self, slot: Slot, at: StepTime) {
        if let Some(owned) = self.owned.get(slot) {
            owned.abandoned = true;
        }
        self.step(slot, at, ShardInput::Lost("another node owns the shard by now".into()));
        let Some(owned) = self.owned.remove(slot) else { return };
        if let Some(wake_at) = owned.wake_at {
            self.wakes.remove(&(wake_at, slot));
        }
    }

    /// Goes on with a shard that was to be released, unless all of them are closed.
    fn resume(&mut self, slot: Slot, at: StepTime) {
        let Some(owned) = self.owned.get(slot).filter(|_| self.closing.is_none()) else { return };
        owned.closed = false;
        self.step(slot, at, ShardInput::Resume);
        self.touch(slot);
    }

    fn touch(&mut self, slot: Slot) {
        if let Some(owned) = self.owned.get(slot)
            && !owned.touched
        {
            owned.touched = true;
            self.touched.push(slot);
        }
    }

    /// Touches the shards whose time has come.
    fn wake_due(&mut self) {
        let at = self.time();
        while let Some((_, slot)) = self.wakes.first().copied().filter(|(wake_at, _)| *wake_at <= at.now) {
            self.wakes.pop_first();
            self.touch(slot);
        }
        if at.now >= self.tick_at {
            self.tick_at = at.now + self.needs.tick;
            for slot in self.owned.used().collect::<Vec<_>>() {
                self.step(slot, at, ShardInput::Tick);
            }
            self.upkeep.retry(&*self.needs.segments);
        }
    }

    /// A step of a shard, if it is still there, and of what follows from it at once.
    fn step(&mut self, slot: Slot, at: StepTime, input: ShardInput) {
        let Some(mut owned) = self.owned.take(slot) else { return };
        let mut next = Some(input);
        while let Some(input) = next {
            let changed = owned.shard.step(at, input, &mut self.out);
            next = self.perform(&mut owned, changed).map(|write| self.write(&owned, write));
        }
        self.owned.put(slot, owned);
    }

    /// Hands an entry to the store; what the shard is told of it.
    fn write(&mut self, owned: &Owned, write: Write) -> ShardInput {
        let Write { segment, create, position, bytes, sync, tell_written } = write;
        if create {
            let watch = told::watch(&self.told, owned.slot);
            if let Err(error) = self.needs.segments.create(segment, owned.shard.copies(), watch) {
                return ShardInput::Wrote { created: false, result: Err(refused(owned, error)) };
            }
        }
        let result = self.needs.segments.append(&segment, position, bytes, sync);
        if let Ok(place) = result
            && self.told.is_none()
        {
            let placed = Placed { journal: JournalPosition(place.0), slot: owned.slot };
            if tell_written {
                self.written.place(placed);
            }
            self.durable.place(placed);
        }
        ShardInput::Wrote { created: true, result: result.map_err(|error| refused(owned, error)) }
    }

    fn committed(&mut self, slot: Slot, result: Result<u64, ChangeError>) {
        let Some(owned) = self.owned.get(slot) else { return };
        match &result {
            Ok(_) => {}
            Err(ChangeError::Refused(why)) => tracing::error!(
                shard = %owned.shard.id(), %why,
                "metadata can't take what this shard has to record: it claims no term and removes nothing until it can; \
                 report this as a defect"
            ),
            Err(error) => {
                tracing::warn!(shard = %owned.shard.id(), ?error, "metadata did not take a change");
            }
        }
        self.step(slot, self.time(), ShardInput::Committed(result));
    }

    /// Looks how far the journal is, and lets the shards concerned acknowledge.
    fn follow_journal(&mut self, at: StepTime) {
        for placed in self.written.take_covered() {
            self.step(placed.slot, at, ShardInput::Written(EntryPlace(placed.journal.0)));
        }
        for placed in self.durable.take_covered() {
            self.step(placed.slot, at, ShardInput::Synced(EntryPlace(placed.journal.0)));
        }
        self.follow_segments(at);
        // What was written and is lost is not durable either.
        self.written.take_lost();
        let mut lost = self.durable.take_lost();
        if !lost.is_empty() {
            lost.sort_unstable_by_key(|placed| placed.slot);
            lost.dedup_by_key(|placed| placed.slot);
            let failure = self.needs.journal.last_failure();
            let why =
                failure.map_or_else(|| "the journal was closed".to_owned(), |failure| failure.to_string());
            let why: Arc<str> = why.into();
            tracing::error!(shards = lost.len(), "records in flight were lost: {why}");
            for placed in lost {
                self.step(placed.slot, at, ShardInput::Lost(Arc::clone(&why)));
            }
        }
        self.upkeep.follow(&self.needs.journal, &*self.needs.segments);
    }

    /// Takes in what is told of single segments.
    fn follow_segments(&mut self, at: StepTime) {
        let Some(told) = &self.told else { return };
        for (slot, news) in told.take() {
            if let Some(upto) = news.durable {
                self.step(slot, at, ShardInput::Synced(upto));
            }
            if let Some(why) = news.lost {
                tracing::error!("records in flight were given up: {why}");
                self.step(slot, at, ShardInput::Lost(why));
            }
        }
    }

    /// Shows what changed, then does what the shard put out, but for an entry, which is answered.
    fn perform(&mut self, owned: &mut Owned, changed: ViewChange) -> Option<Write> {
        owned.view.show(&self.needs.hot, &owned.shard, changed, &self.out);
        let mut write = None;
        for output in self.out.drain(..) {
            match output {
                Output::Write(next) => {
                    assert!(write.is_none(), "{}: one entry at a time", owned.shard.id());
                    write = Some(next);
                }
                // Only what is acknowledged before it is synced asks for it, which takes a journal.
                Output::Sync(upto) => self.needs.journal.ask_sync(JournalPosition(upto.0)),
                Output::Commit(change) => {
                    let slot = owned.slot;
                    let commit = commit::commit(Arc::clone(&self.needs.meta), change);
                    self.commits.push(commit.map(move |result| (slot, result)).boxed());
                }
                Output::WakeAt(wake_at) => {
                    if let Some(before) = std::mem::replace(&mut owned.wake_at, wake_at) {
                        self.wakes.remove(&(before, owned.slot));
                    }
                    self.wakes.extend(wake_at.map(|wake_at| (wake_at, owned.slot)));
                }
                Output::Reply(waiter, result) => {
                    self.needs.counters.answered(&result);
                    waiter.answer(result);
                }
                // It is shown.
                Output::Took { .. } => {}
                Output::Ahead { segment, bytes, source_durable, accepted_at } => {
                    self.needs.tail.extend_ahead(segment, &bytes, source_durable, accepted_at);
                }
                Output::CaughtUp(tail, bytes) => {
                    self.needs.counters.entry(bytes);
                    self.needs.tail.catch_up(owned.shard.id(), tail);
                }
                Output::Extend { segment, bytes, durable, tail, accepted_at, .. } => {
                    self.needs.counters.entry(bytes.len());
                    self.needs.tail.extend(segment, &bytes, durable, tail, accepted_at);
                }
                Output::Update(tail) => self.needs.tail.update(owned.shard.id(), tail),
                // What it left in the store is the new owner's, who may have recorded it.
                Output::Seal(..) | Output::Delete(_) | Output::Discard(_) if owned.abandoned => {}
                Output::Seal(id, length) => self.upkeep.seal(&*self.needs.segments, id, length),
                Output::Delete(id) => self.upkeep.delete(&*self.needs.segments, id),
                Output::Discard(id) => self.upkeep.discard(&*self.needs.segments, id),
                Output::NameCopy(id, copy, length) => {
                    self.needs.cold.iter().for_each(|cold| cold.name(id, copy, length));
                }
                Output::HideCopy(id) => self.needs.cold.iter().for_each(|cold| cold.hide(&id)),
                Output::RemoveCopy(id, copy) => {
                    self.needs.cold.iter().for_each(|cold| cold.remove(&id, copy));
                }
                Output::Truncated(truncation, result) => {
                    let _ = truncation.reply.send(result);
                }
                Output::Restored(wish, result) => {
                    let _ = wish.reply.send(result);
                }
                Output::Begun(begin, result) => {
                    let _ = begin.reply.send(result);
                }
                Output::Closed => owned.closed = true,
            }
        }
        write
    }

    fn is_closed(&mut self) -> bool {
        self.closing.is_some() && self.owned.all().all(|owned| owned.closed)
    }
}

/// What the store's not taking an entry is to a shard.
fn refused(owned: &Owned, error: StoreError) -> WriteError {
    match &error {
        StoreError::Full { .. } => WriteError::Busy("segments are written more slowly than records arrive"),
        StoreError::Journal(JournalError::Backlog { .. }) => {
            WriteError::Busy("the journal's disk can't keep up")
        }
        // The store looks at the loss with its next call.
        StoreError::Journal(JournalError::Stale { .. }) => WriteError::Busy("the journal lost records"),
        // The shard is told in a moment.
        StoreError::LostBefore { .. } => WriteError::Busy("the journal lost records"),
        StoreError::Journal(JournalError::Full(FullReason::FilesMax { .. })) => {
            WriteError::Busy("the journal is full: segment files are written more slowly than records arrive")
        }
        StoreError::Journal(JournalError::Full(reason)) => {
            WriteError::NoSpace(format!("{reason}; free some space or shorten retention").into())
        }
        StoreError::NoSpace { .. } => WriteError::NoSpace(error.to_string().into()),
        StoreError::DiskFailed(_) | StoreError::Journal(_) | StoreError::Replicas(_) | StoreError::Closed => {
            WriteError::Unavailable(error.to_string().into())
        }
        StoreError::Fenced { .. } | StoreError::NotNext { .. } => WriteError::Fenced,
        _ => {
            tracing::warn!(shard = %owned.shard.id(), why = %error, "a segment ends early");
            WriteError::Over(error.to_string().into())
        }
    }
}
