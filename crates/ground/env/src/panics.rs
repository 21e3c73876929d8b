//! Panics that somebody makes do with.
//!
//! A process that serves ends at a panic: whoever else waits for the task or thread that is gone would wait for ever.
//! Where a panic leaves nothing behind that others stand on, it is caught here, so that whoever ends the process knows.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;

thread_local! {
    /// How many [`catch`] this thread is in.
    static CATCHING: Cell<usize> = const { Cell::new(0) };
}

/// Whether a panic of this thread, now, ends in a [`catch`]; for a panic hook.
pub fn is_caught() -> bool {
    CATCHING.get() > 0
}

/// Runs `run`. If it panics that is the answer, and the process goes on: what `run` may have left half done nobody may
/// rely on afterwards.
#[allow(clippy::disallowed_methods)] // this is what leads to it
pub fn catch<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    CATCHING.set(CATCHING.get() + 1);
    let result = std::panic::catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(CATCHING.get() - 1);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_known_to_be_caught_inside_however_deep_and_not_afterwards() {
        assert!(!is_caught());
        let outer = catch(|| {
            let inner = catch(|| panic!("inner"));
            assert!(inner.is_err() && is_caught());
            7
        });
        assert_eq!(outer.expect("the inner one was caught"), 7);
        assert!(!is_caught());
        assert!(
            !catch(|| std::thread::scope(|scope| scope.spawn(is_caught).join().expect("it answers")))
                .expect("ok")
        );
    }
}
