//! The single-threaded executor: which task runs next is drawn by seed, and time jumps when none can run.
//!
//! Rules that keep it free of deadlocks with itself:
//! - No future is polled and none is dropped while [`ExecutorShared::core`] is locked: both run foreign code that may
//!   call back in here. Futures to be dropped wait in the graveyard until the scheduler is at its top.
//! - Wakers touch the ready list only, so they may be called at any moment.
//!
//! **Tasks that run during a disk call.** Disk calls block, and in the real world the other threads go on
//! meanwhile: an append that arrives during an fdatasync is the ordinary case, not the rare one. So a disk call
//! of a dedicated task polls a few other ready tasks, by seed, before it returns ([`ExecutorShared::pause_for_io`]).
//! Code that holds a lock across a disk call while another task wants that lock would hang here; in the real
//! world it would stall an asynchronous worker thread for the length of an fdatasync.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::rng::Rng;
use crate::trace::{Event, Trace};

use super::node::NodeState;

/// A task of the world; never used again.
pub(crate) type TaskId = u64;
/// The future that [`super::World::run`] was called with.
pub(crate) const MAIN_TASK: TaskId = 0;
/// How deep disk calls may nest: a task polled during a disk call may be a dedicated one itself.
const IO_NESTING_MAX: usize = 3;
/// Tasks polled during the disk calls of one outermost poll, at most. A dedicated task need not yield while there
/// is work, and what runs meanwhile makes more work: without a bound the scheduler would never get back to its top.
const POLLS_PER_OUTERMOST_MAX: u64 = 100;
/// The same where a disk stands still: all there is to do is done meanwhile, within this.
const POLLS_PER_LONG_IO_MAX: u64 = 20_000;
/// Events in one poll, at most: a task that makes more never yields.
const EVENTS_PER_POLL_MAX: u64 = 1_000_000;
/// Tasks polled during one disk call, at most.
const POLLS_PER_IO_MAX: u64 = 6;

/// One start of one node; a dead one never lives again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The node.
    pub(crate) node: usize,
    /// Counts the node's starts.
    pub(crate) incarnation: u64,
}

struct TaskSlot {
    name: &'static str,
    owner: Option<Owner>,
    dedicated: bool,
    /// `None` while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    /// To be dropped as soon as the poll under way returns.
    doomed: bool,
    waker: Arc<TaskWaker>,
}

/// Woken tasks in the order of their ids; the scheduler picks one by seed. Not in the order of their wake-ups:
/// `tokio::sync::watch` wakes those who wait for the same change in an order of its own, which differs from run to
/// run.
type ReadyList = Mutex<Vec<TaskId>>;

fn insert(ready: &mut Vec<TaskId>, id: TaskId) {
    let place = ready.partition_point(|other| *other < id);
    ready.insert(place, id);
}

struct TaskWaker {
    id: TaskId,
    /// In the ready list already. Written by wakers and by the scheduler, all on one thread.
    queued: AtomicBool,
    ready: Arc<ReadyList>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            insert(&mut self.ready.lock(), self.id);
        }
    }
}

pub(crate) struct Core {
    pub(crate) now_ns: u64,
    pub(crate) trace: Trace,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) steps: u64,
    rng: Rng,
    tasks: BTreeMap<TaskId, TaskSlot>,
    task_next: TaskId,
    timers: BTreeMap<(u64, u64), Waker>,
    timer_next: u64,
    /// Tasks being polled, innermost last.
    stack: Vec<TaskId>,
    /// Tasks polled in disk calls since the outermost poll began.
    nested_polls: u64,
    /// Number of events when the last poll began.
    events_at_poll: u64,
    graveyard: Vec<BoxFuture<'static, ()>>,
}

/// What all handles on one world share.
pub(crate) struct ExecutorShared {
    pub(crate) seed: u64,
    core: Mutex<Core>,
    ready: Arc<ReadyList>,
    main_waker: Arc<TaskWaker>,
    run_tasks_during_io: AtomicBool,
}

/// Whether the scheduler found something to do.
pub(crate) enum ExecutorStep {
    /// The main future is to be polled.
    Main,
    /// A task was polled, or time moved.
    Done,
    /// Nothing is ready and no timer is set.
    Nothing,
}

impl ExecutorShared {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let ready = Arc::new(ReadyList::default());
        let main_waker =
            Arc::new(TaskWaker { id: MAIN_TASK, queued: AtomicBool::new(false), ready: ready.clone() });
        let core = Core {
            now_ns: 0,
            trace: Trace::default(),
            nodes: Vec::new(),
            steps: 0,
            rng: Rng::new(seed, "scheduler"),
            tasks: BTreeMap::new(),
            task_next: MAIN_TASK + 1,
            timers: BTreeMap::new(),
            timer_next: 0,
            stack: Vec::new(),
            nested_polls: 0,
            events_at_poll: 0,
            graveyard: Vec::new(),
        };
        let run_tasks_during_io = AtomicBool::new(true);
        Arc::new(Self { seed, core: Mutex::new(core), ready, main_waker, run_tasks_during_io })
    }

    /// Reads or changes the core. Neither polls nor drops futures inside `with`.
    pub(crate) fn with<T>(&self, with: impl FnOnce(&mut Core) -> T) -> T {
        with(&mut self.core.lock())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.with(|core| core.now_ns)
    }

    pub(crate) fn record(&self, kind: &'static str, name: &'static str, a: u64, b: u64) {
        self.with(|core| core.record(kind, name, a, b));
    }

    pub(crate) fn set_run_tasks_during_io(&self, run: bool) {
        self.run_tasks_during_io.store(run, Ordering::Relaxed);
    }

    pub(crate) fn main_waker(&self) -> Waker {
        self.main_waker.wake_by_ref();
        Waker::from(self.main_waker.clone())
    }

    /// Starts a task; one of a dead owner never runs.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        owner: Option<Owner>,
        dedicated: bool,
        future: BoxFuture<'static, ()>,
    ) -> Option<TaskId> {
        let waker = self.with(|core| {
            if owner.is_some_and(|owner| !core.is_alive(owner)) {
                core.graveyard.push(future);
                return None;
            }
            let id = core.task_next;
            core.task_next += 1;
            core.record("spawn", name, id, u64::from(dedicated));
            let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready: self.ready.clone() });
            let slot = TaskSlot {
                name,
                owner,
                dedicated,
                future: Some(future),
                doomed: false,
                waker: waker.clone(),
            };
            core.tasks.insert(id, slot);
            Some(waker)
        })?;
        waker.wake_by_ref();
        Some(waker.id)
    }

    /// Drops a task's future, at the latest when its poll under way returns.
    pub(crate) fn cancel(&self, id: TaskId) {
        self.with(|core| {
            core.record("cancel", "", id, 0);
            core.doom(|other, _| other == id);
        });
    }

    /// Drops the futures of all tasks of `owner`.
    pub(crate) fn kill_tasks(&self, owner: Owner) {
        self.with(|core| core.doom(|_, slot| slot.owner == Some(owner)));
    }

    /// Drops every future there is.
    pub(crate) fn clear(&self) {
        self.with(|core| core.doom(|_, _| true));
        self.bury();
    }

    /// One scheduling decision: polls a ready task or moves time to the next timer.
    pub(crate) fn step(&self) -> ExecutorStep {
        self.bury();
        match self.pick(true) {
            Some(MAIN_TASK) => ExecutorStep::Main,
            Some(id) => {
                self.poll_task(id);
                ExecutorStep::Done
            }
            None => match self.with(|core| core.timers.first_key_value().map(|(&(at, _), _)| at)) {
                Some(at_ns) => {
                    self.advance_to(at_ns);
                    ExecutorStep::Done
                }
                None => ExecutorStep::Nothing,
            },
        }
    }

    /// Time that a disk call of the current task takes. Other tasks run meanwhile if that task is a dedicated
    /// one, so the caller must hold no lock of the world's.
    pub(crate) fn pause_for_io(&self, cost_ns: u64) {
        self.pause(cost_ns, false);
    }

    /// The same for a call of a disk that stands still: all there is to do is done meanwhile, with a bound.
    pub(crate) fn pause_for_long_io(&self, cost_ns: u64) {
        self.pause(cost_ns, true);
    }

    fn pause(&self, cost_ns: u64, is_long: bool) {
        let (until, polls) = self.with(|core| {
            let until = core.now_ns + cost_ns;
            let dedicated =
                core.stack.last().and_then(|id| core.tasks.get(id)).is_some_and(|slot| slot.dedicated);
            let most = if is_long { POLLS_PER_LONG_IO_MAX } else { POLLS_PER_OUTERMOST_MAX };
            let run = dedicated
                && core.stack.len() <= IO_NESTING_MAX
                && core.nested_polls < most
                && self.run_tasks_during_io.load(Ordering::Relaxed);
            let polls = match run {
                true if is_long => most,
                true => core.rng.below(POLLS_PER_IO_MAX + 1),
                false => 0,
            };
            (until, polls)
        });
        for _ in 0..polls {
            // Such calls nest, and those further up may have used up what there was.
            if is_long && self.with(|core| core.nested_polls) >= POLLS_PER_LONG_IO_MAX {
                break;
            }
            if let Some(id) = self.pick(false) {
                self.poll_task(id);
                continue;
            }
            let timer = self.with(|core| core.timers.first_key_value().map(|(&(at, _), _)| at));
            match timer {
                Some(at_ns) if at_ns <= until => self.advance_to(at_ns),
                _ => break,
            }
        }
        self.advance_to(until);
    }

    /// Draws one of the ready tasks that can be polled at this point.
    fn pick(&self, main_too: bool) -> Option<TaskId> {
        let mut core = self.core.lock();
        let core = &mut *core;
        let mut ready = self.ready.lock();
        let mut aside: Vec<TaskId> = Vec::new();
        let picked = loop {
            if ready.is_empty() {
                break None;
            }
            let place = core.rng.index(ready.len());
            let id = ready.remove(place);
            match core.tasks.get(&id) {
                Some(slot) if slot.future.is_some() && !core.is_paused(slot.owner) => {
                    slot.waker.queued.store(false, Ordering::Relaxed);
                    break Some((id, slot.name));
                }
                None if id == MAIN_TASK && main_too => {
                    self.main_waker.queued.store(false, Ordering::Relaxed);
                    break Some((id, "main"));
                }
                // Being polled further down the stack, of a node that stands still, or not to be polled in the middle
                // of a disk call.
                Some(_) => aside.push(id),
                None if id == MAIN_TASK => aside.push(id),
                // Tasks that are gone leave their wake-ups behind.
                None => {}
            }
        };
        for id in aside {
            insert(&mut ready, id);
        }
        let (id, name) = picked?;
        // A poll takes time too: code that waits by looking at the clock gets on.
        core.now_ns += core.rng.between(50, 1_000);
        core.steps += 1;
        core.events_at_poll = core.trace.count();
        core.record("poll", name, id, ready.len() as u64);
        Some(id)
    }

    fn poll_task(&self, id: TaskId) {
        let Some((mut future, waker)) = self.with(|core| {
            let slot = core.tasks.get_mut(&id)?;
            let future = slot.future.take()?;
            let waker = slot.waker.clone();
            if core.stack.is_empty() {
                core.nested_polls = 0;
            } else {
                core.nested_polls += 1;
            }
            core.stack.push(id);
            Some((future, waker))
        }) else {
            return;
        };
        let waker = Waker::from(waker);
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        let to_drop = self.with(|core| {
            assert_eq!(core.stack.pop(), Some(id), "polls nest");
            match core.tasks.get_mut(&id) {
                Some(slot) if poll.is_pending() && !slot.doomed => {
                    slot.future = Some(future);
                    None
                }
                _ => {
                    core.tasks.remove(&id);
                    Some(future)
                }
            }
        });
        if let Some(future) = to_drop {
            // Not here: in a nested poll the task below may hold a lock that this future's drop wants.
            self.with(|core| core.graveyard.push(future));
        }
    }

    /// Drops what waits to be dropped, which may doom more.
    fn bury(&self) {
        loop {
            let graves = self.with(|core| std::mem::take(&mut core.graveyard));
            if graves.is_empty() {
                return;
            }
            drop(graves);
        }
    }

    fn advance_to(&self, at_ns: u64) {
        let due = self.with(|core| {
            core.now_ns = core.now_ns.max(at_ns);
            let later = core.timers.split_off(&(core.now_ns + 1, 0));
            let due = std::mem::replace(&mut core.timers, later);
            if !due.is_empty() {
                core.record("timers", "", due.len() as u64, 0);
            }
            due
        });
        for waker in due.into_values() {
            waker.wake();
        }
    }
}

impl Core {
    pub(crate) fn record(&mut self, kind: &'static str, name: &'static str, a: u64, b: u64) {
        self.trace.record(Event { at_ns: self.now_ns, kind, name, a, b });
        let events = self.trace.count() - self.events_at_poll;
        assert!(
            events < EVENTS_PER_POLL_MAX,
            "a task does not yield: {kind} {name}, the {events}th in one poll"
        );
    }

    pub(crate) fn is_alive(&self, owner: Owner) -> bool {
        self.nodes[owner.node].is_alive(owner.incarnation)
    }

    fn is_paused(&self, owner: Option<Owner>) -> bool {
        owner.is_some_and(|owner| self.nodes[owner.node].is_paused)
    }

    fn doom(&mut self, which: impl Fn(TaskId, &TaskSlot) -> bool) {
        let ids: Vec<TaskId> =
            self.tasks.iter().filter(|&(&id, slot)| which(id, slot)).map(|(&id, _)| id).collect();
        for id in ids {
            let slot = self.tasks.get_mut(&id).expect("listed above");
            match slot.future.take() {
                Some(future) => {
                    self.graveyard.push(future);
                    self.tasks.remove(&id);
                }
                None => slot.doomed = true,
            }
        }
    }
}

/// Completes when virtual time has reached its deadline; dropping it cancels the timer.
pub(crate) struct Sleep {
    shared: Arc<ExecutorShared>,
    owner: Option<Owner>,
    deadline_ns: u64,
    key: Option<(u64, u64)>,
}

impl Sleep {
    pub(crate) fn new(shared: Arc<ExecutorShared>, owner: Option<Owner>, deadline_ns: u64) -> Self {
        Self { shared, owner, deadline_ns, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut core = this.shared.core.lock();
        if let Some(key) = this.key.take() {
            core.timers.remove(&key);
        }
        if this.owner.is_some_and(|owner| !core.is_alive(owner)) {
            return Poll::Pending;
        }
        if core.now_ns >= this.deadline_ns {
            return Poll::Ready(());
        }
        let key = (this.deadline_ns, core.timer_next);
        core.timer_next += 1;
        core.timers.insert(key, context.waker().clone());
        this.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.shared.with(|core| core.timers.remove(&key));
        }
    }
}
