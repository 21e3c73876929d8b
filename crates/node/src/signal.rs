//! How a process is told to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Completes at SIGINT or SIGTERM.
///
/// # Panics
/// If the operating system refuses to say, which it does for no signal that can be caught.
pub async fn stop_requested() {
    let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT can be caught");
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
    tokio::select! {
        biased;
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
