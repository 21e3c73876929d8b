//! A server's doorbell: a word that moves whenever something worth looking at was published.
//!
//! The word has a sealed page of its own, which clients map read-only and sleep on with a futex; clients over
//! sockets park a WATCH at an engine. What is guaranteed:
//! - What was written to regions before a ring is visible to whoever sees the word moved by it.
//! - A ring is followed by a wake within [`WAKE_INTERVAL`] and scheduling delays; many rings share one wake. A
//!   wake is not a promise to every reader (a process that maps the page can requeue others' waits), so readers
//!   look at the word themselves at least every [`crate::limits::LOOK_AGAIN_IDLE`].
//!
//! Who is woken is a process, as a rule ([`crate::client`]): it tells its own readers. Each costs the one who rings
//! some 2 us.
//!
//! Ringing costs one atomic addition, and one system call at most once per interval.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tailwater_env::Env;

use crate::atomics::{AtomicU64, AtomicUsize, Ordering};
use crate::coalesce::{Coalescer, Ring};
use crate::limits::{DOORBELL_START, WAKE_INTERVAL};
use crate::mapping::Mapping;
use crate::region::sealed_memory;
use crate::server::Mailbox;

/// The size of the page that a doorbell is passed as.
pub(crate) const DOORBELL_BYTES: usize = 4096;

/// Counters of a doorbell since its server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellStats {
    /// Times that waiters were woken.
    pub wakes: u64,
    /// How many were: sleepers in shared memory, and connections whose WATCH was parked.
    pub woken: u64,
}

/// The handle that a server's application rings with; cheap to clone. It outlives its server, harmlessly.
#[derive(Clone, Debug)]
pub struct Doorbell {
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    env: Env,
    page: Mapping,
    file: OwnedFd,
    coalescer: Coalescer,
    /// Fires when a wake that came too early is due. Polled by the first engine.
    timer: OwnedFd,
    /// Connections that were given the page; without one there is nobody to wake by futex.
    mapped_by: AtomicUsize,
    engines: Vec<Arc<Mailbox>>,
    /// Plain counters, written by whoever wakes.
    wakes: AtomicU64,
    woken: AtomicU64,
}

impl Doorbell {
    pub(crate) fn create(env: &Env, engines: Vec<Arc<Mailbox>>) -> std::io::Result<Self> {
        let (page, file) = sealed_memory("doorbell", DOORBELL_BYTES)?;
        page.word().store(DOORBELL_START, Ordering::Relaxed);
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let interval_ns = u64::try_from(WAKE_INTERVAL.as_nanos()).expect("it is short");
        let bell = Bell {
            env: env.clone(),
            page,
            file,
            coalescer: Coalescer::new(interval_ns),
            timer,
            mapped_by: AtomicUsize::new(0),
            engines,
            wakes: AtomicU64::new(0),
            woken: AtomicU64::new(0),
        };
        Ok(Self { bell: Arc::new(bell) })
    }

    /// Moves the word, and sees to it that whoever waits is woken.
    pub fn ring(&self) {
        let bell = &*self.bell;
        // Release: publishes what this thread wrote to regions; partner of the acquire in `value` and in clients.
        bell.page.word().fetch_add(1, Ordering::Release);
        match bell.coalescer.ring(bell.env.now().as_ns()) {
            Ring::Wake => bell.wake(),
            Ring::Later(ns) => bell.arm(ns),
            Ring::Covered => {}
        }
    }

    /// The word.
    pub fn value(&self) -> u32 {
        self.bell.page.word().load(Ordering::Acquire)
    }

    /// Called by the first engine when the timer fired.
    pub(crate) fn timer_fired(&self) {
        let bell = &*self.bell;
        // Only empties it: that it fired is known.
        let _ = rustix::io::read(&bell.timer, &mut [0u8; 8]);
        if bell.coalescer.take(bell.env.now().as_ns()) {
            bell.wake();
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> DoorbellStats {
        let Bell { wakes, woken, .. } = &*self.bell;
        DoorbellStats { wakes: wakes.load(Ordering::Relaxed), woken: woken.load(Ordering::Relaxed) }
    }

    /// The page's memory file, to pass on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.bell.file.as_fd()
    }

    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.bell.timer.as_fd()
    }

    /// Counts a connection that is about to be given the page.
    pub(crate) fn mapped(&self) {
        self.bell.mapped_by.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts it off again.
    pub(crate) fn unmapped(&self) {
        self.bell.mapped_by.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Bell {
    fn wake(&self) {
        let sleepers = if self.mapped_by.load(Ordering::Acquire) > 0 {
            // It fails for addresses that are not mapped only, and this one is.
            futex::wake(self.page.word(), futex::Flags::empty(), i32::MAX as u32).unwrap_or(0)
        } else {
            0
        };
        let mut parked = 0;
        for engine in &self.engines {
            let of_engine = engine.parking.parked();
            if of_engine > 0 {
                parked += of_engine;
                engine.wake();
            }
        }
        if sleepers + parked == 0 {
            return;
        }
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.woken.fetch_add((sleepers + parked) as u64, Ordering::Relaxed);
    }

    fn arm(&self, ns: u64) {
        let after = Duration::from_nanos(ns.max(1));
        let it_value = Timespec { tv_sec: 0, tv_nsec: after.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // Fails for malformed times and descriptors only.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).expect("the timer is ours");
    }
}

#[cfg(test)]
mod tests;
