//! The writing half: shadows durable bytes to the data cell as chunks and publishes lengths in the metadata
//! cell (Fast ACS, sections 2.2, 2.4 "Writers" and 3).
//!
//! What holds:
//! - Its callers never wait and never see an error: a cell that is slow or gone costs readers latency, and the
//!   log nothing. Memory is bounded by [`SHADOW_BYTES_MAX`] for each shard.
//! - A chunk is always written from its beginning, so any part of it that a reader finds is right.
//! - Full chunks go out in parallel. The partial chunk of a shard is written by one round at a time, in order.
//! - `cached` is published after every chunk below it was acknowledged by the cell, and never exceeds
//!   `durable`: [`TailWriter::extend`] is only told of bytes that are durable.
//! - After an outage the cached stream jumps to the chunk that the durable one is in; what lies between is
//!   read from the durable layer.
//! - A page is written only while its lock is held (see [`crate::lock`]).
//!
//! The state machine is in [`state`]; this file is the task that drives it.

mod locks;
mod state;



use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_cache::Cell;
use tailwater_env::{Env, Task};
use tailwater_format::{Position, SegmentId, ShardId, StreamId, Tail};
use tokio::sync::Notify;

pub use state::WriterStats;
use state::{PublishOutcome, RoundOutcome, WriterState};

#[cfg(doc)]
use crate::limits::SHADOW_BYTES_MAX;

/// The two cells of a cluster.
#[derive(Clone)]
pub struct Cells {
    /// Chunks.
    pub data: Cell,
    /// Tail pages and locks.
    pub metadata: Cell,
}

/// Shadows the segments that one process writes. Cheap to clone; the task ends with the last handle.
#[derive(Clone)]
pub struct TailWriter {
    inner: Option<Arc<Handle>>,
}

struct Handle {
    env: Env,
    shared: Arc<Shared>,
    _task: Task,
    _locks: Task,
}

struct Shared {
    state: Mutex<WriterState>,
    /// Rung when there is something to write.
    work: Notify,
}

impl TailWriter {
    /// Starts shadowing to `cells`; without cells the handle does nothing.
    pub fn start(env: &Env, cells: Option<Cells>) -> Self {
        let Some(cells) = cells else { return Self { inner: None } };
        let shared = Arc::new(Shared { state: Mutex::new(WriterState::new()), work: Notify::new() });
        let task = env.spawn("tail-writer", run(env.clone(), cells.clone(), Arc::clone(&shared)));
        let locks = env.spawn("tail-locks", locks::run(env.clone(), cells.metadata, Arc::clone(&shared)));
        Self { inner: Some(Arc::new(Handle { env: env.clone(), shared, _task: task, _locks: locks })) }
    }

    /// Announces a shard: after its creation, and after a restart with the tail that recovery found.
    pub fn open(&self, shard: ShardId, tail: Tail) {
        self.with_state(|state| state.open(shard, tail));
    }

    /// Takes in bytes of `segment` that became durable, in order: they begin at `from`, where the bytes of the
    /// call before ended, or at 0 of a new segment. `tail` is the shard's tail with them; its `cached` is
    /// ignored.
    pub fn extend(&self, segment: SegmentId, from: Position, bytes: &Bytes, tail: Tail) {
        self.with_state(|state| state.extend(segment, from, bytes, tail));
    }

    /// Takes in a change of a tail that brought no bytes: sealed, or truncated at the front.
    pub fn update(&self, shard: ShardId, tail: Tail) {
        self.with_state(|state| state.update(shard, tail));
    }

    /// Tells readers that the stream is gone, and forgets it.
    pub fn delete_stream(&self, stream: StreamId) {
        self.with_state(|state| state.delete_stream(stream));
    }

    /// How far the shard's newest segment is in the data cell.
    pub fn cached(&self, shard: ShardId) -> Position {
        self.inner.as_ref().map_or(Position(0), |handle| handle.shared.state.lock().cached(shard))
    }

    /// Counters since the start.
    pub fn stats(&self) -> WriterStats {
        self.inner.as_ref().map_or_else(WriterStats::default, |handle| handle.shared.state.lock().stats())
    }

    fn with_state(&self, change: impl FnOnce(&mut WriterState)) {
        if let Some(handle) = &self.inner {
            let now = handle.env.now();
            let mut state = handle.shared.state.lock();
            state.set_now(now);
            change(&mut state);
            drop(state);
            handle.shared.work.notify_one();
        }
    }
}

enum Done {
    Round(RoundOutcome),
    Publish(PublishOutcome),
}

/// Starts what the state says is due, and tells it how each ended.
async fn run(env: Env, cells: Cells, shared: Arc<Shared>) {
    let mut under_way: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    loop {
        let wake_at = {
            let mut state = shared.state.lock();
            let now = env.now();
            while let Some(round) = state.next_round(now) {
                let cell = cells.data.clone();
                under_way.push(
                    async move {
                        let results = cell.set(round.chunks).await;
                        let ok = results.iter().all(Result::is_ok);
                        Done::Round(RoundOutcome { shards: round.shards, ok })
                    }
                    .boxed(),
                );
            }
            while let Some(publish) = state.next_publish(now) {
                let cell = cells.metadata.clone();
                under_way.push(
                    async move {
                        let results = cell.set(vec![(publish.key, publish.value)]).await;
                        let ok = results.iter().all(Result::is_ok);
                        Done::Publish(PublishOutcome { page: publish.page, ok })
                    }
                    .boxed(),
                );
            }
            state.next_deadline(now)
        };
        tokio::select! {
            biased;
            Some(done) = under_way.next() => {
                let mut state = shared.state.lock();
                match done {
                    Done::Round(outcome) => state.round_done(env.now(), outcome),
                    Done::Publish(outcome) => state.publish_done(env.now(), outcome),
                }
            }
            () = shared.work.notified() => {}
            () = env.sleep_until(wake_at) => {}
        }
    }
}
