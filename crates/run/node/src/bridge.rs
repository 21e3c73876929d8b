//! Bridges between log streams and broadcast streams, and from cells to those: `[[bridge]]` in the configuration.
//!
//! ```text
//!   log stream  --a task a shard: reads, publishes, in order-->  broadcast stream      to_broadcast.rs
//!   log stream  <--one task: appends, awaits, goes on----------  broadcast stream      to_log.rs
//!   cell        --one task: follows, publishes what changed--->  broadcast stream      from_cell.rs
//! ```
//!
//! How far one of a log stream is stands in the metadata (`state.rs`). It is written behind what it tells of, so after
//! a crash something is read again; what of it the other side has is left out there, see the two files. A bridge that
//! can't go on says what to do and tries again for ever.

mod from_cell;
mod state;
mod to_broadcast;
mod to_log;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_broadcast::client::ReplicasAt;
use tailwater_env::{Env, Task};
use tailwater_log::Log;

use crate::api::BridgeView;
use crate::cells::created::CreatedCells;
use crate::config::{BridgeConfig, BridgeEnd};
use crate::turns::Turns;

/// A pause before what did not work is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How often it is said that something does not work.
const SAY_EVERY: u32 = 60;
/// How far a bridge is, is written so often.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Where a record or event that a bridge carried comes from: an end, as in the configuration.
pub const FROM_HEADER: &str = "tailwater-from";
/// The shard of the record that an event was.
pub const SHARD_HEADER: &str = "tailwater-shard";
/// The offset of the record that an event was.
pub const OFFSET_HEADER: &str = "tailwater-offset";
/// The number of the event that a record was.
pub const SEQ_HEADER: &str = "tailwater-seq";
/// What of a record is not in the event that it was, and why.
pub const OMITTED_HEADER: &str = "tailwater-omitted";

/// What all bridges use.
#[derive(Clone)]
struct BridgeContext {
    env: Env,
    log: Log,
    /// Of those who catch up: a bridge with a backlog is one of them.
    turns: Arc<Turns>,
    cells: Arc<CreatedCells>,
    /// The replicas of each region, this one included.
    regions: Arc<BTreeMap<String, ReplicasAt>>,
}

/// How a bridge is doing.
#[derive(Default)]
struct BridgeStatus {
    carried: AtomicU64,
    omitted: AtomicU64,
    removed: AtomicU64,
    errors: AtomicU64,
    /// By shard, `None` until it was looked at; of a broadcast stream there is only 0.
    lags: Mutex<BTreeMap<u32, Option<u64>>>,
    error: Mutex<Option<String>>,
}

impl BridgeStatus {
    fn count(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// It is to carry this shard, and does not know yet what is before it.
    fn begins(&self, shard: u32) {
        self.lags.lock().entry(shard).or_default();
    }

    /// It works, and has so much before it.
    fn works(&self, shard: u32, lag: u64) {
        self.lags.lock().insert(shard, Some(lag));
        *self.error.lock() = None;
    }

    /// What it has before it in all shards, once each of them was looked at.
    fn lag(&self) -> Option<u64> {
        let lags = self.lags.lock();
        lags.values().copied().sum::<Option<u64>>().filter(|_| !lags.is_empty())
    }
}

struct Bridge {
    config: BridgeConfig,
    status: Arc<BridgeStatus>,
}

/// The bridges of a node; they end when this is dropped.
pub struct Bridges {
    bridges: Vec<Bridge>,
    _tasks: Vec<Task>,
}

impl Bridges {
    /// Starts what `configs` say, which were checked.
    pub fn start(
        env: &Env,
        (log, turns, cells): (&Log, &Arc<Turns>, &Arc<CreatedCells>),
        regions: BTreeMap<String, ReplicasAt>,
        configs: &[BridgeConfig],
    ) -> Self {
        let (log, turns, cells) = (log.clone(), Arc::clone(turns), Arc::clone(cells));
        let context = BridgeContext { env: env.clone(), log, turns, cells, regions: Arc::new(regions) };
        let (mut bridges, mut tasks) = (Vec::new(), Vec::new());
        for config in configs {
            let status = Arc::new(BridgeStatus::default());
            let (context, config) = (context.clone(), config.clone());
            bridges.push(Bridge { config: config.clone(), status: Arc::clone(&status) });
            let Ok((from, to)) = config.ends() else { continue };
            tracing::info!(from = config.from, to = config.to, "a bridge is carried");
            tasks.push(match (from, to) {
                (BridgeEnd::Log(name), BridgeEnd::Broadcast(stream)) => {
                    env.spawn("bridge", to_broadcast::run(context, config, name, stream, status))
                }
                (BridgeEnd::Broadcast(stream), BridgeEnd::Log(name)) => {
                    env.spawn("bridge", to_log::run(context, config, stream, name, status))
                }
                (BridgeEnd::Cell(name), BridgeEnd::Broadcast(stream)) => {
                    env.spawn("bridge", from_cell::run(context, config, name, stream, status))
                }
                _ => continue,
            });
        }
        Self { bridges, _tasks: tasks }
    }

    /// What `/v1/broadcast` and the metrics tell.
    pub fn views(&self) -> Vec<BridgeView> {
        let view = |bridge: &Bridge| {
            let (status, read) = (&bridge.status, |counter: &AtomicU64| counter.load(Ordering::Relaxed));
            BridgeView {
                from: bridge.config.from.clone(),
                to: bridge.config.to.clone(),
                carried: read(&status.carried),
                omitted: read(&status.omitted),
                removed: read(&status.removed),
                errors: read(&status.errors),
                lag: status.lag(),
                error: status.error.lock().clone(),
            }
        };
        self.bridges.iter().map(view).collect()
    }
}

/// Does `once` again and again: it completes only with an error, which is said and counted.
async fn for_ever<F: Future<Output = anyhow::Result<Infallible>>>(
    env: &Env,
    config: &BridgeConfig,
    status: &BridgeStatus,
    mut once: impl FnMut() -> F,
) {
    let mut said: Option<(String, u32)> = None;
    loop {
        let Err(error) = once().await;
        let why = error.to_string();
        BridgeStatus::count(&status.errors, 1);
        *status.error.lock() = Some(why.clone());
        let is_news = said.as_ref().is_none_or(|(last, times)| *last != why || times % SAY_EVERY == 0);
        if is_news {
            tracing::warn!(from = config.from, to = config.to, why, "a bridge waits");
        }
        let times = said.filter(|(last, _)| *last == why).map_or(1, |(_, times)| times + 1);
        said = Some((why, times));
        env.sleep(RETRY).await;
    }
}
