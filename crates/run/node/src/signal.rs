//! How a process is told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, caught from here on: what comes before they are waited for is not lost, and does not end the
/// process.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Begins to catch them.
    ///
    /// # Panics
    /// Outside of a runtime; if the operating system refuses, which it does for no signal that can be caught.
    pub fn caught() -> Self {
        Self {
            interrupt: signal(SignalKind::interrupt()).expect("SIGINT can be caught"),
            terminate: signal(SignalKind::terminate()).expect("SIGTERM can be caught"),
        }
    }

    /// Completes at the next one. Cancelling it loses none.
    pub async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
