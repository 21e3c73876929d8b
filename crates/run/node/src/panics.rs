//! What a panic is to a process that serves: its end.
//!
//! After a panic a task or a thread is missing. What it owned answers nobody any more, everything else goes on, and
//! nothing looks as if something were wrong. Recovery is proven for a process that was killed, and for nothing in
//! between. So the process ends at once, as if it had been killed, and whoever supervises it starts another one.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use tailwater_env::panics;

/// Ends the process at a panic of any thread, after a line in its log; but for those that [`panics::catch`] catches,
/// which only get the line.
pub fn end_the_process() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::enabled!(tracing::Level::ERROR) {
            tell(panic);
        } else {
            // Whoever wants to see no lines wants to know all the same why there is no process any more.
            before(panic);
        }
        if !panics::is_caught() {
            std::process::abort();
        }
    }));
}

fn tell(panic: &PanicHookInfo<'_>) {
    let why = panic.payload_as_str().unwrap_or("not in words");
    let at = panic.location().map(tracing::field::display);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    // Where RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(&backtrace));
    if panics::is_caught() {
        tracing::error!(why, at, thread, backtrace, "a panic, which is made do with");
    } else {
        tracing::error!(why, at, thread, backtrace, "a panic: the process ends, and its next start recovers");
    }
}
