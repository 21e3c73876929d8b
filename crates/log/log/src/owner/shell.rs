//! Who goes round, and when: whoever brings an append that comes alone, the journal's thread behind the sync of it, and
//! for all else a task.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tailwater_env::{Env, Task, yield_once};
use tailwater_journal::{JournalPosition, Lost, WatermarkFollower};
use tokio::sync::Notify;

use super::queue::Queue;
use super::{Owner, OwnerDependencies, OwnerRequest, RoundPlan};
use crate::limits::ROUNDS_AT_A_STRETCH;

/// An owner, and the ways to it.
///
/// Whoever finds it with next to nothing to do carries a single append out on the spot, and the journal's thread what
/// follows from its sync: an append that is flushed at once and acknowledged when it is synced wakes no thread but the
/// journal's before it is answered. Under load, and for everything else, the task goes round, with many requests at a
/// time.
pub(super) struct Shell {
    /// Locked for a round, and never over an await. `None` once it has ended, which it does with a round that panics.
    owner: Mutex<Option<Box<Owner>>>,
    pub(super) queue: Queue,
    /// Wakes the task.
    wake: Arc<Notify>,
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
    /// One around `owner`, and its task.
    pub(super) fn start(owner: Owner) -> (Arc<Self>, Task) {
        let OwnerDependencies { env, journal, .. } = owner.needs.clone();
        let wake = Arc::clone(&owner.wake);
        let following =
            Following { env: env.clone(), durable: journal.durable(), written: journal.written() };
        let shell = Arc::new_cyclic(|shell| Self {
            owner: Mutex::new(Some(Box::new(owner))),
            queue: Queue::default(),
            wake,
            poke: Waker::from(Arc::new(Poke(Weak::clone(shell)))),
        });
        let task = env.spawn("log-owner", following.run(RoundEnd(Arc::clone(&shell))));
        (shell, task)
    }

    /// There is something in the queue. `here`: if the owner has nothing to do, the caller does it.
    pub(super) fn look(&self, here: bool) {
        if here {
            // Others that wait are the task's, with this one behind them.
            self.round_here(|owner| if owner.is_free() { self.queue.take_only().map(Some) } else { None });
        } else {
            self.wake.notify_one();
        }
    }

    /// The journal has covered what [`Shell::round_here`] awaits, or never will.
    fn follow(&self) {
        // A loss has to be known everywhere before anything is appended again, and the journal is in the midst of
        // telling.
        self.round_here(|owner| owner.is_first_durable().then_some(None));
    }

    /// A round on the caller's thread with what `begin` takes up, if that is its to do; the task is woken for what is
    /// left.
    fn round_here(&self, begin: impl FnOnce(&mut Owner) -> Option<Option<OwnerRequest>>) {
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
struct RoundEnd(Arc<Shell>);

impl Drop for RoundEnd {
    fn drop(&mut self) {
        self.0.queue.end();
        drop(self.0.owner.lock().take());
    }
}

/// The task of an owner.
struct Following {
    env: Env,
    durable: WatermarkFollower,
    written: WatermarkFollower,
}

impl Following {
    /// Rounds whenever there is something to do, until the owner is closed.
    async fn run(mut self, end: RoundEnd) {
        let shell = &*end.0;
        let mut commits = FuturesUnordered::new();
        let mut requests = VecDeque::new();
        for round in 1_u64.. {
            let plan = shell.owner.lock().as_mut().map(|owner| owner.hand_over(&mut commits));
            let RoundPlan { wake_at, follow_durable, follow_written } = plan.expect(PANICKED);
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
