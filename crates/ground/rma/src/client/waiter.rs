//! The one thread of a process that sleeps on doorbells, for all its shared-memory connections.
//!
//! Each wake costs the one who rings about 2 us per sleeper, so a process has one sleeper however many of its
//! tasks wait; it tells them through channels. What holds:
//! - A task that waits is told of the word's move at once as a rule: the ring ends the thread's sleep. (Any process
//!   that maps a doorbell can steal its wakes by requeueing.) At the latest it is told when the thread looks at all
//!   words again: after [`LOOK_AGAIN_IDLE`], or [`LOOK_AGAIN`] where a look found what no wake had told of.
//! - While no task waits, the thread sleeps without a deadline.
//!
//! The thread sleeps on a word of its own as well, by which it is told that the set of doorbells changed. So that
//! a task which waits again and again need not do that each time, a doorbell stays in the set for a while after
//! its last waiter ([`PASSES_KEPT`]).
//!
//! Locks: a bell's own and the set's are never held together.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tailwater_env::Env;
use tokio::sync::watch;

use crate::atomics::{AtomicU32, Ordering};
use crate::limits::{DOORBELLS_WAITED_MAX, LOOK_AGAIN, LOOK_AGAIN_IDLE, POLL_PERIOD};
use crate::mapping::Mapping;

/// For how many looks without a waiter a doorbell stays in the set that is slept on: some seconds.
const PASSES_KEPT: u32 = 10;

/// A doorbell's page, mapped, and a channel to the tasks of this process that wait for it.
pub(crate) struct Bell {
    page: Mapping,
    /// The word as the thread last saw it; whoever waits is subscribed.
    told: watch::Sender<u32>,
    listening: Mutex<DoorbellListening>,
}

/// Whether a bell needs the thread. A task subscribes before it looks here, the thread counts subscribers with
/// this locked: so either the thread sees the task, or the task sees that it has to poke the thread.
#[derive(Default)]
struct DoorbellListening {
    /// The thread sleeps on this bell's word, or is about to.
    listened: bool,
    /// Looks since anybody waited.
    idle_passes: u32,
    lost: bool,
}

impl Bell {
    pub(crate) fn new(page: Mapping) -> Arc<Self> {
        let value = page.word().load(Ordering::Acquire);
        let (told, listening) = (watch::Sender::new(value), Mutex::new(DoorbellListening::default()));
        Arc::new(Self { page, told, listening })
    }

    /// The word; what was published before it moved is visible to reads behind this.
    fn value(&self) -> u32 {
        // Partner of the release in `Doorbell::ring`.
        self.page.word().load(Ordering::Acquire)
    }

    /// Tells everybody who waits that nobody will ring any more.
    pub(crate) fn lose(&self) {
        self.listening.lock().lost = true;
        self.told.send_modify(|_| {});
    }

    /// Tells whoever waits if the word moved; answers whether it did, and its value if the thread is to sleep on
    /// it.
    fn look(&self, woken: bool) -> (bool, Option<u32>) {
        let mut listening = self.listening.lock();
        let anybody = self.told.receiver_count() > 0;
        let value = self.value();
        let moved = self.told.send_if_modified(|told| std::mem::replace(told, value) != value);
        listening.idle_passes = match (anybody, woken) {
            (true, _) => 0,
            // Rings that nobody waits for must not wake us for ever.
            (false, true) => PASSES_KEPT,
            (false, false) => listening.idle_passes.saturating_add(1),
        };
        listening.listened = !listening.lost && listening.idle_passes < PASSES_KEPT;
        (moved, listening.listened.then_some(value))
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
        let mut told = self.bell.told.subscribe();
        loop {
            let value = self.bell.value();
            if value != last_seen {
                return Some(value);
            }
            let (listened, lost) = {
                let listening = self.bell.listening.lock();
                (listening.listened, listening.lost)
            };
            if lost {
                return None;
            }
            if !listened {
                Waiter::of_process().poke(&self.env);
            }
            // The sender lives as long as the bell.
            let _ = told.changed().await;
        }
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
    set: Mutex<DoorbellSet>,
    /// Moves when the set changed, or a bell that is not slept on has a waiter. Private to the process.
    poked: AtomicU32,
}

#[derive(Default)]
struct DoorbellSet {
    bells: Vec<Arc<Bell>>,
    running: bool,
}

impl Waiter {
    fn of_process() -> &'static Self {
        static WAITER: OnceLock<Waiter> = OnceLock::new();
        WAITER.get_or_init(|| Waiter { set: Mutex::new(DoorbellSet::default()), poked: AtomicU32::new(0) })
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
        let mut bells: Vec<Arc<Bell>> = Vec::new();
        let mut bells_of = None;
        let mut waits = Vec::new();
        let mut look_again = LOOK_AGAIN;
        loop {
            // Before the set is read: a change behind this ends the sleep below at once.
            let poked = self.poked.load(Ordering::Acquire);
            if bells_of != Some(poked) {
                let mut set = self.set.lock();
                if set.bells.is_empty() {
                    set.running = false;
                    return;
                }
                bells.clone_from(&set.bells);
                bells_of = Some(poked);
            }
            waits.clear();
            waits.push(wait_for(&self.poked, poked, futex::WaitFlags::PRIVATE));
            look_again = (look_again * 2).min(LOOK_AGAIN_IDLE);
            for bell in &bells {
                let (moved, value) = bell.look(woken);
                if moved && !woken {
                    // No wake told of it: somebody steals them.
                    look_again = LOOK_AGAIN;
                }
                if let Some(value) = value {
                    // Not private: the same page is mapped by the process that rings.
                    waits.push(wait_for(bell.page.word(), value, futex::WaitFlags::empty()));
                }
            }
            let anybody_waits = waits.len() > 1;
            let all = waitv_works && waits.len() <= 1 + DOORBELLS_WAITED_MAX;
            waits.truncate(if waitv_works { 1 + DOORBELLS_WAITED_MAX } else { 1 });
            let period = match (anybody_waits, all) {
                (false, _) => None,
                (true, true) => Some(look_again),
                (true, false) => Some(POLL_PERIOD),
            };
            match self.sleep(poked, &waits, period) {
                Ok(rang) => woken = rang,
                Err(Errno::NOSYS) => {
                    tracing::info!("the kernel lacks futex_waitv: doorbells are polled");
                    waitv_works = false;
                }
                Err(error) => {
                    // Nothing known leads here; polling works whatever it is.
                    tracing::warn!(%error, "cannot sleep on doorbells: they are polled");
                    waitv_works = false;
                }
            }
        }
    }

    /// Sleeps until one of the words moves, of which the first is our own, or the period is over; whether it was
    /// a doorbell's.
    fn sleep(&self, poked: u32, waits: &[futex::Wait], period: Option<Duration>) -> Result<bool, Errno> {
        let until = period.map(after);
        if waits.len() == 1 {
            // The plain call, which every kernel has; its deadline is a point in time as well.
            let all_bits = std::num::NonZeroU32::MAX;
            let flags = futex::Flags::PRIVATE;
            return match futex::wait_bitset(&self.poked, flags, poked, until.as_ref(), all_bits) {
                Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(false),
                Err(error) => Err(error),
            };
        }
        match futex::waitv(waits, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic) {
            Ok(place) => Ok(place > 0),
            // A word had moved before we slept.
            Err(Errno::AGAIN) => Ok(true),
            Err(Errno::TIMEDOUT | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn wait_for(word: &AtomicU32, value: u32, flags: futex::WaitFlags) -> futex::Wait {
    let mut wait = futex::Wait::new();
    wait.val = value.into();
    wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
    wait.flags = futex::WaitFlags::SIZE_U32 | flags;
    wait
}

/// The kernel's time in so long.
fn after(period: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = i64::from(period.subsec_nanos()) + now.tv_nsec;
    let seconds = i64::try_from(period.as_secs()).expect("periods are short");
    Timespec { tv_sec: now.tv_sec + seconds + ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

#[cfg(test)]
mod tests;
