//! The one thread of a process that sleeps on doorbells, for all its shared-memory connections.
//!
//! Each wake costs the one who rings about 2 us per sleeper, so a process has one sleeper however many of its
//! tasks wait; it tells them through channels. What holds:
//! - A task that waits is told within [`LOOK_AGAIN`] of the word's move, and as a rule at once: the thread's sleep
//!   ends by the ring, or after that time, when it looks at all words again. (Any process that maps a doorbell
//!   can steal its wakes by requeueing.)
//! - While no task waits, the thread sleeps without a deadline.
//!
//! The thread sleeps on a word of its own as well, by which it is told that the set of doorbells changed. So that
//! a task which waits again and again need not do that each time, a doorbell stays in the set for a while after
//! its last waiter ([`PASSES_KEPT`]).
//!
//! Locks: a bell's own may be taken under the set's, never the other way round.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tailwater_env::Env;
use tokio::sync::oneshot;

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::{DOORBELLS_WAITED_MAX, LOOK_AGAIN, POLL_PERIOD};
use crate::mapping::Mapping;

/// For how many looks without a waiter a doorbell stays in the set that is slept on: about a second.
const PASSES_KEPT: u32 = 20;

/// A doorbell's page, mapped, and the tasks of this process that wait for it.
pub(crate) struct Bell {
    page: Mapping,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    tasks: Vec<(u32, oneshot::Sender<u32>)>,
    /// The thread sleeps on this bell's word, or is about to.
    listened: bool,
    /// Looks since the last waiter.
    idle_passes: u32,
    lost: bool,
}

impl Bell {
    pub(crate) fn new(page: Mapping) -> Arc<Self> {
        Arc::new(Self { page, waiting: Mutex::new(Waiting::default()) })
    }

    /// The word; what was published before it moved is visible to reads behind this.
    fn value(&self) -> u32 {
        // Partner of the release in `Doorbell::ring`.
        self.page.word().load(Ordering::Acquire)
    }

    /// Tells everybody who waits that nobody will ring any more.
    pub(crate) fn lose(&self) {
        let mut waiting = self.waiting.lock();
        waiting.lost = true;
        waiting.tasks.clear();
    }

    /// Tells whoever waits for another value than the present one; answers that value if the thread is to sleep
    /// on the word.
    fn look(&self, woken: bool) -> Option<u32> {
        let mut waiting = self.waiting.lock();
        // Behind the lock: a task that waits from here on has seen this value or a later one.
        let value = self.value();
        let (moved, same): (Vec<_>, Vec<_>) = std::mem::take(&mut waiting.tasks)
            .into_iter()
            .filter(|(_, tell)| !tell.is_closed())
            .partition(|(last_seen, _)| *last_seen != value);
        let told = !moved.is_empty();
        waiting.tasks = same;
        for (_, tell) in moved {
            // The task may have just given up.
            let _ = tell.send(value);
        }
        if told || !waiting.tasks.is_empty() {
            waiting.idle_passes = 0;
        } else {
            // Rings that nobody waits for must not wake us for ever.
            waiting.idle_passes = if woken { PASSES_KEPT } else { waiting.idle_passes + 1 };
        }
        waiting.listened = !waiting.lost && waiting.idle_passes < PASSES_KEPT;
        waiting.listened.then_some(value)
    }
}

/// A connection's share in the thread: as long as it exists, its bell can be waited for.
pub(crate) struct Registration {
    env: Env,
    bell: Arc<Bell>,
}

impl Registration {
    pub(crate) fn new(env: &Env, bell: Arc<Bell>) -> Self {
        Waiter::of_process().add(env, bell.clone());
        Self { env: env.clone(), bell }
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    pub(crate) fn value(&self) -> u32 {
        self.bell.value()
    }

    /// Completes with the word once it differs from `last_seen`, or with `None` when the bell is lost.
    pub(crate) async fn moved(&self, last_seen: u32) -> Option<u32> {
        let told = {
            let mut waiting = self.bell.waiting.lock();
            let value = self.bell.value();
            if value != last_seen {
                return Some(value);
            }
            if waiting.lost {
                return None;
            }
            // A task that gave up leaves its entry behind, until the next look or the next task.
            waiting.tasks.retain(|(_, tell)| !tell.is_closed());
            let (tell, told) = oneshot::channel();
            waiting.tasks.push((last_seen, tell));
            let listened = waiting.listened;
            drop(waiting);
            if !listened {
                Waiter::of_process().poke(&self.env);
            }
            told
        };
        told.await.ok()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.bell.lose();
        Waiter::of_process().remove(&self.bell);
    }
}

/// The thread's side.
struct Waiter {
    set: Mutex<Set>,
    /// Moves when the set changed, or a bell that is not slept on has a waiter. Private to the process.
    poked: AtomicU32,
}

#[derive(Default)]
struct Set {
    bells: Vec<Arc<Bell>>,
    running: bool,
}

impl Waiter {
    fn of_process() -> &'static Self {
        static WAITER: OnceLock<Waiter> = OnceLock::new();
        WAITER.get_or_init(|| Waiter { set: Mutex::new(Set::default()), poked: AtomicU32::new(0) })
    }

    fn add(&'static self, env: &Env, bell: Arc<Bell>) {
        self.set.lock().bells.push(bell);
        self.poke(env);
    }

    fn remove(&self, bell: &Arc<Bell>) {
        self.set.lock().bells.retain(|other| !Arc::ptr_eq(other, bell));
        self.wake();
    }

    /// Has the thread look at everything, and starts it if it does not run.
    fn poke(&'static self, env: &Env) {
        let start = !std::mem::replace(&mut self.set.lock().running, true);
        if start {
            env.spawn_dedicated("rma-waiter", async { self.run() }).detach();
        } else {
            self.wake();
        }
    }

    fn wake(&self) {
        self.poked.fetch_add(1, Ordering::Release);
        // It fails for addresses that are not mapped only.
        let _ = futex::wake(&self.poked, futex::Flags::PRIVATE, 1);
    }

    /// Looks and sleeps by turns, until no connection is left.
    fn run(&self) {
        let mut woken = false;
        let mut waitv_works = true;
        loop {
            // Before the set is read: a change behind this ends the sleep below at once.
            let poked = self.poked.load(Ordering::Acquire);
            let bells = {
                let mut set = self.set.lock();
                if set.bells.is_empty() {
                    set.running = false;
                    return;
                }
                set.bells.clone()
            };
            let mut sleeps_on = Vec::with_capacity(bells.len());
            let mut anybody_waits = false;
            for bell in &bells {
                if let Some(value) = bell.look(woken) {
                    sleeps_on.push((bell.page.word(), value));
                    anybody_waits = true;
                }
            }
            let all = waitv_works && sleeps_on.len() <= DOORBELLS_WAITED_MAX;
            let period = match (anybody_waits, all) {
                (false, _) => None,
                (true, true) => Some(LOOK_AGAIN),
                (true, false) => Some(POLL_PERIOD),
            };
            sleeps_on.truncate(if waitv_works { DOORBELLS_WAITED_MAX } else { 0 });
            match self.sleep(poked, &sleeps_on, period) {
                Ok(rang) => woken = rang,
                Err(Errno::NOSYS) => {
                    tracing::info!("the kernel lacks futex_waitv: doorbells are polled");
                    waitv_works = false;
                }
                Err(_) => woken = false,
            }
        }
    }

    /// Sleeps until one of the words moves or the period is over; whether it was a doorbell's.
    fn sleep(
        &self,
        poked: u32,
        words: &[(&AtomicU32, u32)],
        period: Option<Duration>,
    ) -> Result<bool, Errno> {
        let until = period.map(after);
        if words.is_empty() {
            // The plain call, which every kernel has; its deadline is a point in time as well.
            let result = futex::wait_bitset(
                &self.poked,
                futex::Flags::PRIVATE,
                poked,
                until.as_ref(),
                std::num::NonZeroU32::MAX,
            );
            return match result {
                Ok(_) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(false),
                Err(error) => Err(error),
            };
        }
        let wait = |word: &AtomicU32, value: u32, flags: futex::WaitFlags| {
            let mut wait = futex::Wait::new();
            wait.val = value.into();
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            wait.flags = futex::WaitFlags::SIZE_U32 | flags;
            wait
        };
        let mut waits = Vec::with_capacity(words.len() + 1);
        waits.push(wait(&self.poked, poked, futex::WaitFlags::PRIVATE));
        // Not private: the same page is mapped by the process that rings.
        waits.extend(words.iter().map(|(word, value)| wait(word, *value, futex::WaitFlags::empty())));
        match futex::waitv(&waits, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
            Ok(place) => Ok(place > 0),
            // A word had moved before we slept.
            Err(Errno::AGAIN) => Ok(true),
            Err(Errno::TIMEDOUT | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The kernel's time in so long.
fn after(period: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = i64::from(period.subsec_nanos()) + now.tv_nsec;
    let seconds = i64::try_from(period.as_secs()).expect("periods are short");
    Timespec { tv_sec: now.tv_sec + seconds + ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}
