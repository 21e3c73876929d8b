//! The owner of many shards: a thin shell around [`Shard`].
//!
//! A round takes everything that is queued, lets the shards concerned write their entries, looks how far the journal is,
//! and does what the shards put out. It waits for nothing: the store takes entries without I/O, and metadata commits run
//! beside the rounds and come back into them. A task goes round whenever there is something to do; where there is nothing,
//! whoever brings a request does ([`Shell`]).
//!
//! What holds:
//! - Each shard has one owner, and only its owner's rounds touch it, one at a time.
//! - Whoever is answered finds the answer in the shard's [`crate::view::View`].
//! - The queue is bounded in requests ([`OWNER_QUEUE_REQUESTS`]) and, by permits that an append holds from its
//!   arrival to its answer ([`crate::budget`]), in bytes. A full one is an error value for the caller, never a wait.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task, yield_once};
use tailwater_format::SegmentId;
use tailwater_journal::{
    AppendError as JournalError, Durable, FullReason, Journal, JournalPosition, Lost, WaitFor, Written,
};
use tailwater_meta::Meta;
use tailwater_store::{SegmentStore, StoreError};
use tailwater_tail::TailWriter;
use tokio::sync::{Notify, oneshot};

use crate::commit;
use crate::config::{Durability, StreamConfig};
use crate::counters::Counters;
use crate::error::{AppendError, StreamError};
use crate::follow::{Follower, Placed};
use crate::hot::Hot;
use crate::limits::{
    BUSY_RETRY, ENTRIES_WITHOUT_TASK, OWNER_QUEUE_REQUESTS, OWNER_ROUND_REQUESTS, ROUNDS_AT_A_STRETCH,
};
use crate::shard::{Append, ChangeError, Output, Shard, Truncation, Write, WriteError};
use crate::slots::{Slot, Slots};
use crate::upkeep::Upkeep;
use crate::view::SharedView;

/// What an owner is asked to do.
pub(crate) enum Request {
    /// Append to a shard.
    Append(Slot, Append),
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
    /// Puts a request into the queue, or refuses it, which is then all that is said of it. One that comes alone is carried
    /// out by the caller, if the owner has nothing to do.
    pub(crate) fn try_send(&self, request: Request, alone: bool) -> Result<(), AppendError> {
        self.shell.queue.push(request).map_err(|refused| {
            let (request, why) = match refused {
                Refusal::Full(request) => (request, AppendError::Overloaded("too many requests are queued")),
                Refusal::Ended(request) => (request, AppendError::Closed),
            };
            if let Request::Append(_, append) = *request {
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
    pub(crate) async fn send(&self, request: Request) -> Result<(), AppendError> {
        self.shell.queue.send(request).await?;
        self.shell.look(false);
        Ok(())
    }
}

/// What an owner stands on.
#[derive(Clone)]
pub(crate) struct Floor {
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
pub(crate) fn start(floor: Floor) -> OwnerHandle {
    let env = floor.env.clone();
    let task =
        Following { env: env.clone(), durable: floor.journal.durable(), written: floor.journal.written() };
    let shell = Arc::new_cyclic(|shell| Shell {
        owner: Mutex::new(Some(Box::new(Owner::new(floor)))),
        queue: Queue::default(),
        wake: Notify::new(),
        poke: Waker::from(Arc::new(Poke(Weak::clone(shell)))),
    });
    OwnerHandle { shell: Arc::clone(&shell), _task: env.spawn("log-owner", task.run(End(shell))) }
}

/// An owner, and the ways to it.
///
/// Whoever finds it with next to nothing to do carries a single append out on the spot, and the journal's thread what follows
/// from its sync: an append that is flushed at once and acknowledged when it is synced wakes no thread but the journal's
/// before it is answered. Under load, and for everything else, the task goes round, with many requests at a time.
struct Shell {
    /// Locked for a round, and never over an await. `None` once it has ended, which it does with a round that panics.
    owner: Mutex<Option<Box<Owner>>>,
    queue: Queue,
    /// Wakes the task.
    wake: Notify,
    /// For the journal: [`Shell::follow`].
    poke: Waker,
}

struct Poke(Weak<Shell>);

impl Wake for Poke {
    fn wake(self: Arc<Self>) {
        if let Some(shell) = self.0.upgrade() {
            shell.follow();
        }
    }
}

impl Shell {
    /// There is something in the queue. `here`: if the owner has nothing to do, the caller does it.
    fn look(&self, here: bool) {
        if here {
            // Others that wait are the task's, with this one behind them.
            self.round_here(|owner| if owner.is_free() { self.queue.take_only().map(Some) } else { None });
        } else {
            self.wake.notify_one();
        }
    }

    /// The journal has covered what [`Shell::round_here`] awaits, or never will.
    fn follow(&self) {
        // A loss has to be known everywhere before anything is appended again, and the journal is in the midst of telling.
        self.round_here(|owner| owner.is_first_durable().then_some(None));
    }

    /// A round on the caller's thread with what `begin` takes up, if that is its to do; the task is woken for what is left.
    fn round_here(&self, begin: impl FnOnce(&mut Owner) -> Option<Option<Request>>) {
        let Some(mut place) = self.owner.try_lock() else { return self.wake.notify_one() };
        let Some(mut owner) = place.take() else { return };
        // Put back behind the round, and not if that panics: nobody goes on with what is half done.
        let unless_done = OnPanic(self);
        let needs_task = match begin(&mut owner) {
            Some(request) => {
                owner.round(request);
                owner.await_first(&self.poke) || !self.queue.is_empty()
            }
            None => true,
        };
        std::mem::forget(unless_done);
        *place = Some(owner);
        drop(place);
        if needs_task {
            self.wake.notify_one();
        }
    }
}

/// Where a round panics, on whatever thread: no more is taken, and the task ends as if it had been its own.
struct OnPanic<'a>(&'a Shell);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.0.queue.end();
        self.0.wake.notify_one();
    }
}

/// Ends an owner with its task, even with one that has not begun.
struct End(Arc<Shell>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.queue.end();
        drop(self.0.owner.lock().take());
    }
}

/// The task of an owner.
struct Following {
    env: Env,
    durable: Durable,
    written: Written,
}

impl Following {
    /// Rounds whenever there is something to do, until the owner is closed.
    async fn run(mut self, end: End) {
        let shell = &*end.0;
        let mut commits = FuturesUnordered::new();
        let mut requests = VecDeque::new();
        for round in 1_u64.. {
            let plan = shell.owner.lock().as_mut().map(|owner| owner.hand_over(&mut commits));
            let Plan { wake_at, follow_durable, follow_written } = plan.expect(PANICKED);
            let mut done = Vec::new();
            let (mut durable_closed, mut written_closed) = (false, false);
            tokio::select! {
                biased;
                () = shell.wake.notified() => {}
                Some(committed) = commits.next() => done.push(committed),
                moved = self.durable.changed(), if follow_durable => durable_closed = is_closed(moved),
                moved = self.written.changed(), if follow_written => written_closed = is_closed(moved),
                () = self.env.sleep_until(wake_at) => {}
            }
            // The branches above are tried in order: under load only the first one ever is.
            while let Some(Some(committed)) = commits.next().now_or_never() {
                done.push(committed);
            }
            {
                let mut place = shell.owner.lock();
                let mut owner = place.take().expect(PANICKED);
                owner.journal_is_closed(durable_closed, written_closed);
                done.into_iter().for_each(|(slot, result)| owner.committed(slot, result));
                owner.wake_due();
                shell.queue.take(&mut requests);
                owner.round(requests.drain(..));
                if owner.is_closed()
                    && let Some(reply) = owner.closing.take()
                {
                    let _ = reply.send(());
                    return;
                }
                *place = Some(owner);
            }
            if !shell.queue.is_empty() {
                shell.wake.notify_one();
            }
            // Whoever fills the queue on another thread would keep this one from everybody else.
            if round % ROUNDS_AT_A_STRETCH == 0 {
                yield_once().await;
            }
        }
    }
}

/// A round that a caller or the journal's thread made.
const PANICKED: &str = "a round on another thread panicked";

fn is_closed(moved: Result<JournalPosition, Lost>) -> bool {
    moved.is_err_and(|lost| lost.closed)
}

/// What waits for an owner, in order.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    /// Rung when there is room again, and at the end.
    room: Notify,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    has_ended: bool,
}

/// Why a request is not in the queue, with it.
enum Refusal {
    Full(Box<Request>),
    Ended(Box<Request>),
}

impl Queue {
    fn push(&self, request: Request) -> Result<(), Refusal> {
        let mut waiting = self.waiting.lock();
        if waiting.has_ended {
            return Err(Refusal::Ended(Box::new(request)));
        }
        if waiting.requests.len() >= OWNER_QUEUE_REQUESTS {
            return Err(Refusal::Full(Box::new(request)));
        }
        waiting.requests.push_back(request);
        Ok(())
    }

    async fn send(&self, mut request: Request) -> Result<(), AppendError> {
        loop {
            // Before the look, so that no room is missed.
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            request = match self.push(request) {
                Ok(()) => return Ok(()),
                Err(Refusal::Ended(_)) => return Err(AppendError::Closed),
                Err(Refusal::Full(request)) => *request,
            };
            room.await;
        }
    }

    /// Takes what comes next, up to a round's worth, into `empty`.
    fn take(&self, empty: &mut VecDeque<Request>) {
        let mut waiting = self.waiting.lock();
        let was_full = waiting.requests.len() >= OWNER_QUEUE_REQUESTS;
        if waiting.requests.len() <= OWNER_ROUND_REQUESTS {
            std::mem::swap(&mut waiting.requests, empty);
        } else {
            empty.extend(waiting.requests.drain(..OWNER_ROUND_REQUESTS));
        }
        drop(waiting);
        if was_full {
            self.room.notify_waiters();
        }
    }

    /// Takes what waits, if that is one request.
    fn take_only(&self) -> Option<Request> {
        let mut waiting = self.waiting.lock();
        if waiting.requests.len() == 1 { waiting.requests.pop_front() } else { None }
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().requests.is_empty()
    }

    fn has_ended(&self) -> bool {
        self.waiting.lock().has_ended
    }

    /// Takes no more; those who wait are told by their requests' being dropped.
    fn end(&self) {
        let requests = {
            let mut waiting = self.waiting.lock();
            waiting.has_ended = true;
            std::mem::take(&mut waiting.requests)
        };
        self.room.notify_waiters();
        drop(requests);
    }
}

/// A change of a shard's metadata, and how it ended.
type Commit = BoxFuture<'static, (Slot, Result<u64, ChangeError>)>;

/// What the task waits for.
struct Plan {
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
    floor: Floor,
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
    fn new(floor: Floor) -> Self {
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
    fn round(&mut self, requests: impl IntoIterator<Item = Request>) {
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
    fn hand_over(&mut self, commits: &mut FuturesUnordered<Commit>) -> Plan {
        commits.extend(self.commits.drain(..));
        self.commits_under_way = commits.len();
        self.awaited = None;
        self.sleeps_until = self.wake_at();
        // What nothing waits for wakes nobody; a loss meanwhile is seen at the next look.
        let waiting = !self.durable.is_empty() || !self.upkeep.is_idle();
        Plan {
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

    fn take(&mut self, request: Request, now: Instant, wall_ms: i64) {
        match request {
            Request::Append(slot, append) => {
                let Some(owned) = self.owned.get(slot) else {
                    append.waiter.answer(Err(AppendError::NoStream));
                    return;
                };
                owned.shard.append(now, wall_ms, append, &mut self.out);
                self.touch(slot);
            }
            Request::Truncate(slot, truncation) => {
                let Some(owned) = self.owned.get(slot) else {
                    let _ = truncation.reply.send(Err(StreamError::NoStream(String::new())));
                    return;
                };
                owned.shard.truncate(now, truncation, &mut self.out);
                self.touch(slot);
            }
            Request::Open(shard, mut undone, view, reply) => {
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
            Request::Configure(slots, config, reply) => {
                for slot in slots {
                    let Some(owned) = self.owned.get(slot) else { continue };
                    owned.shard.configure(Arc::clone(&config));
                    self.touch(slot);
                }
                let _ = reply.send(());
            }
            Request::Delete(slots, reply) => {
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
            Request::Remove(segments) => {
                for id in segments {
                    self.upkeep.delete(&self.floor.store, id);
                }
            }
            Request::Close(reply) => {
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
                    if owned.shard.durability() == Durability::Interval {
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
                Durability::Fsync => shard.settle(placed.journal, wall_ms, out),
                Durability::Interval => shard.sync(placed.journal, wall_ms, out),
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
