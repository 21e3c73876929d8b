//! When a doorbell wakes its waiters: at most once per interval, and never not at all.
//!
//! Small protocols between threads, free of clocks and system calls, so that loom can try all their
//! interleavings (`tests/loom.rs`).

use crate::atomics::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// What the one who rang has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Wake the waiters.
    Wake,
    /// Have [`Coalescer::take`] called in so many nanoseconds, and the waiters woken if it says so.
    Later(u64),
    /// Nothing: somebody else is about to wake, and will have seen this ring.
    Covered,
}

/// Spaces wakes.
///
/// Invariant: whenever the word moved after the last wake began, `pending` is set, and whoever set it wakes or
/// has armed the timer that does.
#[derive(Debug)]
pub(crate) struct Coalescer {
    interval_ns: u64,
    /// A wake is due. Set by whoever rings, cleared by whoever wakes, before it wakes.
    pending: AtomicBool,
    /// No wake before this time. Written by whoever wakes, read by whoever rings; only a hint, so relaxed.
    not_before_ns: AtomicU64,
}

impl Coalescer {
    pub(crate) fn new(interval_ns: u64) -> Self {
        Self { interval_ns, pending: AtomicBool::new(false), not_before_ns: AtomicU64::new(0) }
    }

    /// To be called after the word was moved.
    pub(crate) fn ring(&self, now_ns: u64) -> Ring {
        // AcqRel: the move of the word comes before this, and the one who takes the wake sees it.
        if self.pending.swap(true, Ordering::AcqRel) {
            return Ring::Covered;
        }
        let not_before_ns = self.not_before_ns.load(Ordering::Relaxed);
        if now_ns < not_before_ns {
            return Ring::Later(not_before_ns - now_ns);
        }
        if self.take(now_ns) { Ring::Wake } else { Ring::Covered }
    }

    /// Whether a wake is due; the caller then wakes everybody who waits, after this.
    pub(crate) fn take(&self, now_ns: u64) -> bool {
        // AcqRel: pairs with `ring`, so that the wake comes after every move of the word that it stands for.
        let due = self.pending.swap(false, Ordering::AcqRel);
        if due {
            self.not_before_ns.store(now_ns.saturating_add(self.interval_ns), Ordering::Relaxed);
        }
        due
    }
}

/// How many waiters an engine has parked, so that whoever rings wakes only engines that need it.
///
/// Either the engine sees the moved word after it announced its waiters, or the one who wakes sees the waiters:
/// a fence on each side between the own store and the load of the other's.
#[derive(Debug)]
pub(crate) struct Parking {
    /// Written by the engine, read by whoever wakes.
    parked: AtomicUsize,
}

impl Parking {
    pub(crate) fn new() -> Self {
        Self { parked: AtomicUsize::new(0) }
    }

    /// The engine's side: to be called when the number grew, and the word looked at after that.
    pub(crate) fn announce(&self, parked: usize) {
        self.parked.store(parked, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The waker's side: to be called after the word moved.
    pub(crate) fn parked(&self) -> usize {
        fence(Ordering::SeqCst);
        self.parked.load(Ordering::Relaxed)
    }
}

/// Whether an engine is going to look at what others left for it anyway, so that nobody has to wake it.
///
/// Either the engine, behind [`Attention::rest`], sees what was left, or the one who left it is told to wake it.
#[derive(Debug)]
pub(crate) struct Attention {
    /// It will look before it waits. Set by the engine while it is busy, and by whoever wakes it; cleared by the
    /// engine.
    given: AtomicBool,
}

impl Attention {
    pub(crate) fn new() -> Self {
        Self { given: AtomicBool::new(false) }
    }

    /// To be called when something was left for the engine; whether the caller has to wake it.
    pub(crate) fn ask(&self) -> bool {
        // AcqRel: if the engine has yet to rest, then it will see, behind that, what was left before.
        !self.given.swap(true, Ordering::AcqRel)
    }

    /// The engine's side: it is about to wait, and looks at what was left once more behind this.
    pub(crate) fn rest(&self) {
        // AcqRel: pairs with `ask`.
        self.given.swap(false, Ordering::AcqRel);
    }

    /// The engine's side: it does something, and rests before it waits.
    pub(crate) fn stay(&self) {
        // Relaxed: it says nothing of what was left. A swap, which `rest` sees through to what was asked before it;
        // behind a store it would not.
        self.given.swap(true, Ordering::Relaxed);
    }
}
