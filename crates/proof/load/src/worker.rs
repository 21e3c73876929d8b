//! One worker process: takes its orders as lines of JSON, and answers in such ([`crate::messages`]).
//!
//! It has one thread that does everything, so that nothing is handed from one thread to another; only the orders are
//! read by a second one. Consumers' tasks are scheduled as an application's usually are: who was woken last runs next,
//! so that bytes are checked and read while they are in the core's cache.

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::messages::{MessageOrder, ProcessRole};
use crate::{appending, hopping, reading};

/// Orders that wait to be read: there are four in all.
const ORDERS_MAX: usize = 8;

/// What a worker hears.
pub type Orders = mpsc::Receiver<MessageOrder>;

/// Runs a worker of this crate's roles until it is told to end, or nobody tells it anything any more.
pub fn run() -> anyhow::Result<()> {
    run_as(|role, orders| match role {
        ProcessRole::Consumers(config) => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(1).enable_all().build()?;
            // On that thread: what blocks on it has another one.
            let running = runtime.spawn(reading::run(config, orders));
            runtime.block_on(running)?
        }
        ProcessRole::Hops(config) => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(1).enable_all().build()?;
            let running = runtime.spawn(hopping::run(config, orders));
            runtime.block_on(running)?
        }
        ProcessRole::Producer(config) => {
            // Of this thread, and of those that it starts for its connections.
            rustix::process::setpriority_process(None, config.nice)
                .with_context(|| format!("the producer may not have niceness {}", config.nice))?;
            alone(appending::run(config, orders))
        }
    })
}

/// Runs a worker whose first line says what it is for, as an `R`; it tells the coordinator why it fails.
///
/// # Errors
/// Those of `run`, and a first line that is no `R`.
pub fn run_as<R: DeserializeOwned>(run: impl FnOnce(R, Orders) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut role = String::new();
    std::io::stdin().read_line(&mut role)?;
    let role =
        serde_json::from_str(&role).context("a worker is told on standard input what it is for, as JSON")?;
    let (sender, orders) = mpsc::channel(ORDERS_MAX);
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { return };
            if sender.blocking_send(order).is_err() {
                return;
            }
        }
    })?;
    let result = run(role, orders);
    if let Err(error) = &result {
        // The coordinator may be gone, which is then the reason.
        let _ = fail(error);
    }
    // Connections and their threads end with the process.
    result
}

/// Runs a task, and those that it begins, on this thread.
pub fn alone(task: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, task)
}

/// Tells the coordinator something.
pub fn answer(what: &impl Serialize) -> anyhow::Result<()> {
    say(&Ok::<_, String>(what))
}

/// Tells the coordinator that this worker can't go on, and why.
pub fn fail(why: &anyhow::Error) -> anyhow::Result<()> {
    say(&Err::<(), _>(format!("{why:#}")))
}

fn say(what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}
