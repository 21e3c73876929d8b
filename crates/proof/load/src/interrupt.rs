//! Ctrl-C and SIGTERM end a bench in order, so that its directory is removed.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From here on a signal is noticed by [`check`]; the second one ends the process at once.
pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            loop {
                tokio::select! {
                    biased;
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if REQUESTED.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    })?;
    Ok(())
}

/// Fails once the user wants the bench to end.
pub fn check() -> anyhow::Result<()> {
    anyhow::ensure!(!REQUESTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
