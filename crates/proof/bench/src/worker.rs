//! One worker process: takes its orders as lines of JSON, and answers in such ([`crate::messages`]).
//!
//! It has one thread that does everything, so that nothing is handed from one thread to another; only the orders are
//! read by a second one. Consumers' tasks are scheduled as an application's usually are: who was woken last runs next,
//! so that bytes are checked and read while they are in the core's cache.

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::messages::{MessageAnswer, MessageOrder, ProcessRole};
use crate::{broadcast, load, reading};

/// Orders that wait to be read: there are four in all.
const ORDERS_MAX: usize = 8;

/// What a worker hears.
pub type Orders = mpsc::Receiver<MessageOrder>;

/// Runs a worker until it is told to end, or nobody tells it anything any more.
pub fn run() -> anyhow::Result<()> {
    let mut role = String::new();
    std::io::stdin().read_line(&mut role)?;
    let role: ProcessRole =
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
    let result = match role {
        ProcessRole::Consumers(config) => {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(1).enable_all().build()?;
            // On that thread: what blocks on it has another one.
            let running = runtime.spawn(reading::run(config, orders));
            runtime.block_on(running)?
        }
        ProcessRole::Producer(config) => alone(load::run(config, orders))?,
        ProcessRole::Members(config) => alone(broadcast::be_members(config, orders))?,
    };
    if let Err(error) = &result {
        // The coordinator may be gone, which is then the reason.
        let _ = answer(&MessageAnswer::Failed(format!("{error:#}")));
    }
    // Connections and their threads end with the process.
    result
}

/// Runs a task, and those that it begins, on this thread.
fn alone(task: impl Future<Output = anyhow::Result<()>>) -> std::io::Result<anyhow::Result<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, task))
}

/// Tells the coordinator something.
pub fn answer(what: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}
