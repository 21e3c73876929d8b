//! One worker process: takes its orders as lines of JSON, and answers in such ([`crate::messages`]).
//!
//! It has one thread that does everything, so that nothing is handed from one thread to another; only the orders are
//! read by a second one.

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::messages::{Answer, Order, Role};
use crate::{broadcast, load, reading};

/// Orders that wait to be read: there are four in all.
const ORDERS_MAX: usize = 8;

/// What a worker hears.
pub type Orders = mpsc::Receiver<Order>;

/// Runs a worker until it is told to end, or nobody tells it anything any more.
pub fn run() -> anyhow::Result<()> {
    let mut role = String::new();
    std::io::stdin().read_line(&mut role)?;
    let role: Role =
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, async {
        match role {
            Role::Consumers(config) => reading::run(config, orders).await,
            Role::Producer(config) => load::run(config, orders).await,
            Role::Members(config) => broadcast::be_members(config, orders).await,
        }
    });
    if let Err(error) = &result {
        // The coordinator may be gone, which is then the reason.
        let _ = answer(&Answer::Failed(format!("{error:#}")));
    }
    // Connections and their threads end with the process.
    result
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
