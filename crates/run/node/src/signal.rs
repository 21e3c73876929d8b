//! How a process is told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Does `act` at every SIGHUP, which no longer ends the process from the first poll on. For ever.
///
/// # Panics
/// As [`StopSignals::caught`].
pub async fn at_hangups(act: impl Fn()) {
    let mut hangups = signal(SignalKind::hangup()).expect("SIGHUP can be caught");
    while hangups.recv().await.is_some() {
        act();
    }
    std::future::pending().await
}

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
