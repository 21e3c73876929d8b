//! The owner of many shards: a thin shell around [`Shard`].
//!
//! A round takes everything that is queued, lets the shards concerned write their entries, looks how far the journal
//! is, and does what the shards put out. It waits for nothing: the store takes entries without I/O, and metadata
//! commits run beside the rounds and come back into them. A task goes round whenever there is something to do; where
//! there is nothing, whoever brings a request does ([`Shell`]).
//!
//! What holds:
//! - Each shard has one owner, and only its owner's rounds touch it, one at a time.
//! - Whoever is answered finds the answer in the shard's [`crate::view::View`].
//! - The queue is bounded in requests ([`crate::limits::OWNER_QUEUE_REQUESTS`]) and, by permits that an append holds
//!   from its arrival to its answer ([`crate::budget`]), in bytes. A full one is an error value for the caller, never a
//!   wait.

mod queue;
mod shell;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_env::{Env, Instant, Task};
use tailwater_format::SegmentId;
use tailwater_journal::{FullReason, Journal, JournalAppendError as JournalError, JournalPosition, WaitFor};
use tailwater_meta::Meta;
use tailwater_store::{SegmentStore, StoreError};
use tailwater_tail::TailWriter;
use tokio::sync::oneshot;

use self::queue::SubmitRefusal;
use self::shell::Shell;
use crate::commit;
use crate::config::{StreamConfig, StreamDurability};
use crate::counters::Counters;
use crate::error::{AppendError, StreamError};
use crate::follow::{Follower, Placed};
use crate::hot::Hot;
use crate::limits::{BUSY_RETRY, ENTRIES_WITHOUT_TASK};
use crate::shard::{ChangeError, Output, Shard, StoreAppend, Truncation, Write, WriteError};
use crate::slots::{Slot, Slots};
use crate::upkeep::Upkeep;
use crate::view::SharedView;

/// What an owner is asked to do.
pub(crate) enum OwnerRequest {
    /// Append to a shard.
    Append(Slot, StoreAppend),
    /// Own a shard, after doing what recovery found undone in its segments.
    Open(Box<Shard>, Vec<Output>, Arc<SharedView>, oneshot::Sender<Slot>),
    /// Shards of a stream behave in another way from now on.
    Configure(Vec<Slot>, Arc<StreamConfig>, oneshot::Sender<()>),
    /// Truncate a shard.
    Truncate(Slot, Truncation),
    /// Give shards of a deleted stream up, and delete their segments.
    Delete(Vec<Slot>, oneshot::Sender<()>),
    /// Delete segments that no owned shard has.
    Remove(Vec<SegmentId>),
    /// Write everything out, complete and record the segments, and end.
    Close(oneshot::Sender<()>),
}

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
    pub(crate) store: SegmentStore,
    pub(crate) meta: Arc<dyn Meta>,
    pub(crate) tail: TailWriter,
    pub(crate) counters: Arc<Counters>,
    pub(crate) hot: Arc<Hot>,
    /// How often segments roll by time, and retention is looked after.
    pub(crate) tick: Duration,
}

/// Starts an owner without shards.
pub(crate) fn start(floor: OwnerDependencies) -> OwnerHandle {
    let (shell, task) = Shell::start(Owner::new(floor));
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
    /// In the list of shards to look at in this round.
    touched: bool,
    /// In the set of times to look at shards.
    wake_at: Option<Instant>,
    closed: bool,
}

struct Owner {
    floor: OwnerDependencies,
    owned: Slots<Box<Owned>>,
    touched: Vec<Slot>,
    /// Shards whose entry the store was too busy for, and when to offer it again.
    blocked: Vec<Slot>,
    blocked_until: Instant,
    /// When shards want to be looked at although nothing happens to them.
    wakes: BTreeSet<(Instant, Slot)>,
    /// Waiting to be durable: the entries of `fsync` shards for their acknowledgement, the others' to be safe.
    durable: Follower,
    /// Waiting to be written, for their acknowledgement: the entries of `interval` shards.
    written: Follower,
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
    fn new(floor: OwnerDependencies) -> Self {
        let (durable, written) =
            (Follower::new(floor.journal.durable()), Follower::new(floor.journal.written()));
        let tick_at = floor.env.now() + floor.tick;
        Self {
            floor,
            owned: Slots::new(),
            touched: Vec::new(),
            blocked: Vec::new(),
            blocked_until: Instant::default(),
            wakes: BTreeSet::new(),
            durable,
            written,
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

    /// Takes requests, lets the shards write, looks how far the journal is, and does what the shards put out.
    fn round(&mut self, requests: impl IntoIterator<Item = OwnerRequest>) {
        let (now, wall_ms) = (self.floor.env.now(), self.floor.env.wall_ms());
        for request in requests {
            self.take(request, now, wall_ms);
        }
        self.work_on_touched();
        self.follow_journal();
        self.work_on_touched();
    }

    /// Whether nothing is under way that is the task's, or that is better done together with what comes next.
    fn is_free(&self) -> bool {
        let follows_itself = self.durable.is_empty() || self.awaited.is_some();
        follows_itself
            && self.durable.len() < ENTRIES_WITHOUT_TASK
            && self.written.is_empty()
            && self.upkeep.is_idle()
            && self.blocked.is_empty()
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
        let mut wake_at = self.tick_at;
        if !self.blocked.is_empty() {
            wake_at = wake_at.min(self.blocked_until);
        }
        self.wakes.first().map_or(wake_at, |(first, _)| wake_at.min(*first))
    }

    fn take(&mut self, request: OwnerRequest, now: Instant, wall_ms: i64) {
        match request {
            OwnerRequest::Append(slot, append) => {
                let Some(owned) = self.owned.get(slot) else {
                    append.waiter.answer(Err(AppendError::NoStream));
                    return;
                };
                owned.shard.append(now, wall_ms, append, &mut self.out);
                self.touch(slot);
            }
            OwnerRequest::Truncate(slot, truncation) => {
                let Some(owned) = self.owned.get(slot) else {
                    let _ = truncation.reply.send(Err(StreamError::NoStream(String::new())));
                    return;
                };
                owned.shard.truncate(now, truncation, &mut self.out);
                self.touch(slot);
            }
            OwnerRequest::Open(shard, mut undone, view, reply) => {
                let slot = self.owned.reserve();
                self.floor.tail.open(shard.id(), shard.tail());
                let (touched, wake_at, closed) = (false, None, false);
                let mut owned = Box::new(Owned { slot, shard: *shard, view, touched, wake_at, closed });
                self.out.append(&mut undone);
                self.perform(&mut owned);
                self.owned.put(slot, owned);
                self.touch(slot);
                let _ = reply.send(slot);
            }
            OwnerRequest::Configure(slots, config, reply) => {
                for slot in slots {
                    let Some(owned) = self.owned.get(slot) else { continue };
                    owned.shard.configure(Arc::clone(&config));
                    self.touch(slot);
                }
                let _ = reply.send(());
            }
            OwnerRequest::Delete(slots, reply) => {
                for slot in slots {
                    let Some(mut owned) = self.owned.remove(slot) else { continue };
                    owned.shard.delete(&mut self.out);
                    self.perform(&mut owned);
                    if let Some(wake_at) = owned.wake_at {
                        self.wakes.remove(&(wake_at, slot));
                    }
                }
                let _ = reply.send(());
            }
            OwnerRequest::Remove(segments) => {
                for id in segments {
                    self.upkeep.delete(&self.floor.store, id);
                }
            }
            OwnerRequest::Close(reply) => {
                self.closing = Some(reply);
                for owned in self.owned.all() {
                    owned.shard.close();
                }
                self.touch_all();
            }
        }
    }

    fn touch(&mut self, slot: Slot) {
        if let Some(owned) = self.owned.get(slot)
            && !owned.touched
        {
            owned.touched = true;
            self.touched.push(slot);
        }
    }

    fn touch_all(&mut self) {
        for slot in self.owned.used().collect::<Vec<_>>() {
            self.touch(slot);
        }
    }

    /// Touches the shards whose time has come.
    fn wake_due(&mut self) {
        let now = self.floor.env.now();
        while let Some(&(wake_at, slot)) = self.wakes.first().filter(|(wake_at, _)| *wake_at <= now) {
            self.wakes.remove(&(wake_at, slot));
            if let Some(owned) = self.owned.get(slot) {
                owned.wake_at = None;
            }
            self.touch(slot);
        }
        if now >= self.blocked_until {
            for slot in std::mem::take(&mut self.blocked) {
                self.touch(slot);
            }
        }
        if now >= self.tick_at {
            self.tick_at = now + self.floor.tick;
            let wall_ms = self.floor.env.wall_ms();
            for slot in self.owned.used().collect::<Vec<_>>() {
                let Some(mut owned) = self.owned.take(slot) else { continue };
                owned.shard.tick(now, wall_ms, &mut self.out);
                self.perform(&mut owned);
                self.owned.put(slot, owned);
            }
            self.upkeep.retry(&self.floor.store);
            self.touch_all();
        }
    }

    fn work_on_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            let Some(mut owned) = self.owned.take(slot) else { continue };
            owned.touched = false;
            self.work(&mut owned);
            self.owned.put(slot, owned);
        }
        if self.touched.is_empty() {
            self.touched = touched; // its memory serves the next round
        }
    }

    /// Lets a shard write what is due, and tell metadata what is new.
    fn work(&mut self, owned: &mut Owned) {
        let (now, wall_ms) = (self.floor.env.now(), self.floor.env.wall_ms());
        while let Some(write) = owned.shard.next_write(now, wall_ms) {
            match self.write(&mut owned.shard, &write) {
                Ok(journal) => {
                    owned.shard.wrote(now, Ok(journal), &mut self.out);
                    let placed = Placed { journal, slot: owned.slot };
                    if owned.shard.durability() == StreamDurability::Interval {
                        self.written.place(placed);
                    }
                    self.durable.place(placed);
                }
                Err(Refused::Write(error)) => {
                    owned.shard.wrote(now, Err(error), &mut self.out);
                    if owned.shard.is_blocked() {
                        if self.blocked.is_empty() {
                            self.blocked_until = now + BUSY_RETRY;
                        }
                        self.blocked.push(owned.slot);
                        break;
                    }
                }
                // The segment is over. What of it is durable has been acknowledged before it is sealed there:
                // that is `follow_journal`'s, which finds the lost entries too if there are any.
                Err(Refused::Over(why)) if owned.shard.is_in_flight() => {
                    owned.shard.wrote(now, Err(WriteError::Busy("the journal lost records")), &mut self.out);
                    tracing::warn!(shard = %owned.shard.id(), %why, "a segment ends early");
                    self.blocked_until = now + BUSY_RETRY;
                    self.blocked.push(owned.slot);
                    break;
                }
                Err(Refused::Over(why)) => {
                    tracing::warn!(shard = %owned.shard.id(), %why, "a segment ends early");
                    owned.shard.lost(&why.into(), wall_ms, &mut self.out);
                    self.perform(owned);
                }
            }
        }
        if let Some(upto) = owned.shard.awaited_sync() {
            self.floor.journal.ask_sync(upto);
        }
        // First: what it completes is part of the change.
        owned.shard.finish(wall_ms, &mut self.out);
        if let Some(change) = owned.shard.next_change(now) {
            let slot = owned.slot;
            let commit = commit::commit(Arc::clone(&self.floor.meta), change);
            self.commits.push(commit.map(move |result| (slot, result)).boxed());
        }
        let wake_at = owned.shard.deadline();
        if wake_at != owned.wake_at {
            if let Some(wake_at) = owned.wake_at {
                self.wakes.remove(&(wake_at, owned.slot));
            }
            self.wakes.extend(wake_at.map(|wake_at| (wake_at, owned.slot)));
            owned.wake_at = wake_at;
        }
        self.perform(owned);
    }

    fn write(&self, shard: &mut Shard, write: &Write) -> Result<JournalPosition, Refused> {
        if write.create {
            self.floor.store.create(write.segment).map_err(refused)?;
            shard.created();
        }
        let Write { segment, position, bytes, sync, .. } = write;
        self.floor.store.append_with(segment, *position, bytes.clone(), *sync).map_err(refused)
    }

    fn committed(&mut self, slot: Slot, result: Result<u64, ChangeError>) {
        let Some(mut owned) = self.owned.take(slot) else { return };
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
        owned.shard.committed(self.floor.env.now(), result, &mut self.out);
        self.perform(&mut owned);
        self.owned.put(slot, owned);
        self.touch(slot);
    }

    /// Looks how far the journal is, and lets the shards concerned acknowledge.
    fn follow_journal(&mut self) {
        let wall_ms = self.floor.env.wall_ms();
        for placed in self.written.take_covered() {
            self.covered(placed.slot, |shard, out| shard.settle(placed.journal, wall_ms, out));
        }
        for placed in self.durable.take_covered() {
            self.covered(placed.slot, |shard, out| match shard.durability() {
                StreamDurability::Fsync => shard.settle(placed.journal, wall_ms, out),
                StreamDurability::Interval => shard.sync(placed.journal, wall_ms, out),
            });
        }
        // What was written and is lost is not durable either.
        self.written.take_lost();
        let mut lost = self.durable.take_lost();
        if !lost.is_empty() {
            lost.sort_unstable_by_key(|placed| placed.slot);
            lost.dedup_by_key(|placed| placed.slot);
            let failure = self.floor.journal.last_failure();
            let why =
                failure.map_or_else(|| "the journal was closed".to_owned(), |failure| failure.to_string());
            let why: Arc<str> = why.into();
            tracing::error!(shards = lost.len(), "records in flight were lost: {why}");
            for placed in lost {
                self.covered(placed.slot, |shard, out| shard.lost(&why, wall_ms, out));
                self.touch(placed.slot);
            }
        }
        self.upkeep.follow(&self.floor.journal, &self.floor.store);
    }

    fn covered(&mut self, slot: Slot, step: impl FnOnce(&mut Shard, &mut Vec<Output>)) {
        let Some(mut owned) = self.owned.take(slot) else { return };
        step(&mut owned.shard, &mut self.out);
        let rolled = self.perform(&mut owned);
        let is_truncating = owned.shard.is_truncating();
        self.owned.put(slot, owned);
        if rolled || is_truncating || self.closing.is_some() {
            self.touch(slot);
        }
    }

    /// Shows what changed, then does what the shard put out; whether its list of segments changed.
    fn perform(&mut self, owned: &mut Owned) -> bool {
        for output in &self.out {
            if let Output::Extend { base_offset, bytes, tail, .. } = output {
                owned.view.keep(&self.floor.hot, *base_offset, tail.next_offset, bytes);
            }
        }
        let (tail_changed, list_changed) = owned.shard.take_changed();
        if tail_changed || list_changed {
            let completed = list_changed.then(|| owned.shard.completed().copied().collect());
            owned.view.set(owned.shard.tail(), owned.shard.acked_transaction_id(), completed);
        }
        for output in self.out.drain(..) {
            match output {
                Output::Reply(waiter, result) => {
                    self.floor.counters.answered(&result);
                    waiter.answer(result);
                }
                Output::Extend { segment, from, bytes, tail, .. } => {
                    self.floor.counters.entry(bytes.len());
                    self.floor.tail.extend(segment, from, &bytes, tail);
                }
                Output::Update(tail) => self.floor.tail.update(owned.shard.id(), tail),
                Output::Seal(id, length) => self.upkeep.seal(&self.floor.store, id, length),
                Output::Delete(id) => self.upkeep.delete(&self.floor.store, id),
                Output::Truncated(truncation, result) => {
                    let _ = truncation.reply.send(result);
                }
                Output::Closed => owned.closed = true,
            }
        }
        list_changed
    }

    fn is_closed(&mut self) -> bool {
        self.closing.is_some() && self.owned.all().all(|owned| owned.closed)
    }
}

/// Why the store did not take an entry.
enum Refused {
    /// This entry, or not at the moment.
    Write(WriteError),
    /// The segment takes no more entries.
    Over(String),
}

fn refused(error: StoreError) -> Refused {
    let unavailable = |error: &StoreError| WriteError::Unavailable(error.to_string().into());
    Refused::Write(match &error {
        StoreError::Full { .. } => {
            WriteError::Busy("segment files are written more slowly than records arrive")
        }
        StoreError::Journal(JournalError::Backlog { .. }) => {
            WriteError::Busy("the journal's disk can't keep up")
        }
        // The store looks at the loss with its next call.
        StoreError::Journal(JournalError::Stale { .. }) => WriteError::Busy("the journal lost records"),
        StoreError::Journal(JournalError::Full(FullReason::FilesMax { .. })) => {
            WriteError::Busy("the journal is full: segment files are written more slowly than records arrive")
        }
        StoreError::Journal(JournalError::Full(reason)) => {
            WriteError::NoSpace(format!("{reason}; free some space or shorten retention").into())
        }
        StoreError::NoSpace { .. } => WriteError::NoSpace(error.to_string().into()),
        StoreError::DiskFailed(_) | StoreError::Journal(_) | StoreError::Closed => unavailable(&error),
        StoreError::Fenced { .. } | StoreError::NotNext { .. } => WriteError::Fenced,
        _ => return Refused::Over(error.to_string()),
    })
}
