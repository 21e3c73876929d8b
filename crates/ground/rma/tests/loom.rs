//! All interleavings of the doorbell's protocols: the sources themselves, over loom's atomics.

#![allow(missing_docs)]

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

#[allow(dead_code)]
#[path = "../src/coalesce.rs"]
mod coalesce;

use atomics::{AtomicU32, Ordering};
use coalesce::{Attention, Coalescer, Parking, Ring};
use loom::sync::Arc;

/// A bell as the server has it: the word, who waits, and what a waiter was last woken for.
struct Bell {
    word: AtomicU32,
    coalescer: Coalescer,
    /// The word as the last wake's waiters found it.
    woken_at: AtomicU32,
}

impl Bell {
    fn wake(&self) {
        // A waiter that is woken looks at the word.
        let seen = self.word.load(Ordering::Acquire);
        self.woken_at.fetch_max(seen, Ordering::AcqRel);
    }

    /// Answers whether the timer was armed.
    fn ring(&self, now_ns: u64) -> bool {
        self.word.fetch_add(1, Ordering::AcqRel);
        match self.coalescer.ring(now_ns) {
            Ring::Wake => self.wake(),
            Ring::Later(_) => return true,
            Ring::Covered => {}
        }
        false
    }
}

/// Tries the interleavings with up to three preemptions: all of them take minutes, and have been tried.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

fn rings(times: [u64; 2]) {
    model(move || {
        let bell = Arc::new(Bell {
            word: AtomicU32::new(0),
            coalescer: Coalescer::new(100),
            woken_at: AtomicU32::new(0),
        });
        let ringers: Vec<_> = times
            .into_iter()
            .map(|now_ns| {
                let bell = bell.clone();
                loom::thread::spawn(move || bell.ring(now_ns))
            })
            .collect();
        // The engine's timer from an earlier arming may fire in the middle.
        if bell.coalescer.take(0) {
            bell.wake();
        }
        let mut armed = false;
        for ringer in ringers {
            armed |= ringer.join().expect("ringing does not panic");
        }
        if armed && bell.coalescer.take(300) {
            bell.wake();
        }
        assert_eq!(bell.woken_at.load(Ordering::Acquire), 2, "a ring was lost");
    });
}

#[test]
fn two_rings_at_once_wake_for_both() {
    rings([200, 200]);
}

#[test]
fn a_ring_too_early_is_delivered_by_the_timer() {
    rings([200, 201]);
    rings([0, 50]);
}

#[test]
fn an_engine_that_parks_while_somebody_rings_is_woken_or_sees_the_word() {
    model(|| {
        let state = Arc::new((AtomicU32::new(0), Parking::new()));
        let ringer = {
            let state = state.clone();
            loom::thread::spawn(move || {
                state.0.fetch_add(1, Ordering::Release);
                state.1.parked() > 0
            })
        };
        state.1.announce(1);
        let seen = state.0.load(Ordering::Acquire) == 1;
        let woken = ringer.join().expect("ringing does not panic");
        assert!(seen || woken, "the engine sleeps through a ring");
    });
}

#[test]
fn an_engine_that_rests_while_two_others_leave_something_sees_it_or_is_woken() {
    model(|| {
        let state = Arc::new((AtomicU32::new(0), Attention::new()));
        // It is busy.
        state.1.stay();
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let state = state.clone();
                loom::thread::spawn(move || {
                    state.0.fetch_add(1, Ordering::Release);
                    state.1.ask()
                })
            })
            .collect();
        // It was woken by something else.
        state.1.stay();
        state.1.rest();
        let mut seen = state.0.load(Ordering::Acquire);
        if seen == 1 {
            state.1.stay();
            state.1.rest();
            seen = state.0.load(Ordering::Acquire);
        }
        let mut woken = false;
        for sender in senders {
            woken |= sender.join().expect("leaving something does not panic");
        }
        assert!(seen == 2 || woken, "the engine waits beside something that was left");
    });
}
