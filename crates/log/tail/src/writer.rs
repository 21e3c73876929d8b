//! The writing half: shadows durable bytes to the data cell as chunks and publishes lengths in the metadata
//! cell (Fast ACS, sections 2.2, 2.4 "Writers" and 3).
//!
//! What holds:
//! - Its callers never wait and never see an error: a cell that is slow or gone costs readers latency, and the
//!   log nothing. Memory is bounded, for each shard and for all ([`WriterConfig`]).
//! - A chunk is always written from its beginning, so any part of it that a reader finds is right.
//! - Full chunks go out in parallel. The partial chunk of a shard is written by one round at a time, in order.
//! - `cached` is published after every chunk below it was acknowledged by the cell or jumped over. At a stream's source
//!   it never exceeds `durable`: [`TailWriter::extend`] is only told of bytes that are durable. In a copy it may, up to
//!   what is durable at the source ([`TailWriter::extend_ahead`]), until the segment is sealed.
//! - After an outage the cached stream jumps to the chunk that the durable one is in; what lies between is
//!   read from the durable layer.
//! - A page is written only while its lock is held (see [`crate::lock`]).
//!
//! The state machine is in [`state`]; this file is the task that drives it.

mod config;
mod locks;
mod schedule;
mod shadow;
mod state;

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_cache::Cell;
use tailwater_env::{Env, Instant, Task, TimesRead};
use tailwater_format::{DurableTo, Position, SegmentId, ShardId, StreamId, Tail};
use tokio::sync::Notify;

pub use config::WriterConfig;
pub use state::WriterStats;
use state::{PageId, Part, Publish, WriteRound, WriterState};

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
    inner: Option<Arc<WriterHandle>>,
}

struct WriterHandle {
    env: Env,
    config: WriterConfig,
    shared: Arc<TailWriterShared>,
    _task: Task,
    _locks: Task,
}

struct TailWriterShared {
    state: Mutex<WriterState>,
    /// Rung when there is something to write.
    work: Notify,
    /// Rung when there is a page whose lock is not looked after.
    new_page: Notify,
}

impl TailWriter {
    /// Starts shadowing to `cells`; without cells the handle does nothing.
    pub fn start(env: &Env, cells: Option<Cells>) -> Self {
        Self::start_with(env, cells, WriterConfig::default())
    }

    /// The same with a given configuration.
    pub fn start_with(env: &Env, cells: Option<Cells>, config: WriterConfig) -> Self {
        let Some(cells) = cells else { return Self { inner: None } };
        let state = Mutex::new(WriterState::new(config));
        let shared = Arc::new(TailWriterShared { state, work: Notify::new(), new_page: Notify::new() });
        let task = env.spawn("tail-writer", run(env.clone(), cells.clone(), Arc::clone(&shared)));
        let locks = locks::run(env.clone(), cells.metadata, config.lock, Arc::clone(&shared));
        let locks = env.spawn("tail-locks", locks);
        let env = env.clone();
        Self { inner: Some(Arc::new(WriterHandle { env, config, shared, _task: task, _locks: locks })) }
    }

    /// Announces a shard: after its creation, and after a restart with the tail that recovery found.
    pub fn open(&self, shard: ShardId, tail: Tail) {
        self.with_state(|state, now| state.open(now, shard, tail));
    }

    /// Takes in bytes of `segment` that became durable: they begin where those of the call before ended, or at 0 of a
    /// segment that nothing was told of, and end at `durable`. `tail` is the shard's tail with them; its `cached` is
    /// ignored. `accepted` is when the first append in them was, on the clock of the writer's world.
    ///
    /// # Panics
    /// If bytes were left out or come twice.
    pub fn extend(
        &self,
        segment: SegmentId,
        bytes: &Bytes,
        durable: DurableTo<Position>,
        tail: Tail,
        accepted: Instant,
    ) {
        self.with_state(|state, now| state.extend(now, segment, bytes, durable, tail, accepted));
    }

    /// Takes in bytes of a copy that are durable at its source and not here yet. They begin where those before ended,
    /// in the segment of the shard's tail, and end at `source_durable`.
    ///
    /// # Panics
    /// If bytes were left out or come twice, or of another segment.
    pub fn extend_ahead(
        &self,
        segment: SegmentId,
        bytes: &Bytes,
        source_durable: DurableTo<Position>,
        accepted: Instant,
    ) {
        self.with_state(|state, now| state.extend_ahead(now, segment, bytes, source_durable, accepted));
    }

    /// Bytes that came ahead are durable: `tail` is the shard's tail with them.
    pub fn catch_up(&self, shard: ShardId, tail: Tail) {
        self.with_state(|state, now| state.catch_up(now, shard, tail));
    }

    /// Takes in a change of a tail that brought no bytes: sealed, or truncated at the front.
    pub fn update(&self, shard: ShardId, tail: Tail) {
        self.with_state(|state, now| state.update(now, shard, tail));
    }

    /// Takes in the end of a segment that was there before this writer, as after a restart: `pieces` reach from `from`,
    /// where a chunk begins, to the segment's end. The cell gets them as if they had just become durable, and readers
    /// are told then. Whether they were taken: not where the shard has gone on beyond the next segment, nor where there
    /// is no room among what waits to be written.
    pub fn refill(&self, segment: SegmentId, from: Position, pieces: &[Bytes]) -> bool {
        let mut taken = false;
        self.with_state(|state, now| taken = state.refill(now, segment, from, pieces));
        taken
    }

    /// Bytes of the end of each of `shards` shards that [`TailWriter::refill`] is to be given; 0 without cells.
    pub fn refill_share(&self, shards: usize) -> u64 {
        let Some(handle) = &self.inner else { return 0 };
        let config = handle.config;
        config.refill_bytes_max.min(config.refill_bytes_total_max / shards.max(1) as u64)
    }

    /// Tells readers that the stream is gone, and forgets it.
    pub fn delete_stream(&self, stream: StreamId) {
        self.with_state(|state, now| state.delete_stream(now, stream));
    }

    /// How far the shard's newest segment is in the data cell.
    pub fn cached(&self, shard: ShardId) -> Position {
        self.inner.as_ref().map_or(Position(0), |handle| handle.shared.state.lock().cached(shard))
    }

    /// Counters since the start.
    pub fn stats(&self) -> WriterStats {
        self.inner.as_ref().map_or_else(WriterStats::default, |handle| handle.shared.state.lock().stats())
    }

    /// How long entries took from when they were accepted until the metadata cell had the length with which readers
    /// take them. It is of the oldest entry of each shard in each publication; nothing without cells.
    pub fn publish_times(&self) -> TimesRead {
        let times = self.inner.as_ref().map(|handle| handle.shared.state.lock().publish_times());
        times.unwrap_or_default().read()
    }

    fn with_state(&self, change: impl FnOnce(&mut WriterState, Instant)) {
        let Some(handle) = &self.inner else { return };
        let now = handle.env.now();
        let new_page = {
            let mut state = handle.shared.state.lock();
            change(&mut state, now);
            state.take_new_page()
        };
        handle.shared.work.notify_one();
        if new_page {
            handle.shared.new_page.notify_one();
        }
    }
}

enum WriteDone {
    /// Each part of a round, and whether all of its chunks were acknowledged.
    Round(Vec<(Part, bool)>),
    Publish(PageId, bool),
}

/// Starts what the state says is due, and tells it how each ended.
async fn run(env: Env, cells: Cells, shared: Arc<TailWriterShared>) {
    let mut under_way: FuturesUnordered<BoxFuture<'static, WriteDone>> = FuturesUnordered::new();
    loop {
        let wake_at = {
            let mut state = shared.state.lock();
            let now = env.now();
            while let Some(round) = state.next_round(now) {
                under_way.push(write(cells.data.clone(), round).boxed());
            }
            while let Some(page) = state.next_publish(now) {
                under_way.push(publish(cells.metadata.clone(), page).boxed());
            }
            state.next_deadline()
        };
        tokio::select! {
            biased;
            Some(done) = under_way.next() => {
                let mut state = shared.state.lock();
                match done {
                    WriteDone::Round(parts) => state.round_done(env.now(), &parts),
                    WriteDone::Publish(page, ok) => state.publish_done(env.now(), page, ok),
                }
            }
            () = shared.work.notified() => {}
            () = env.sleep_until(wake_at) => {}
        }
    }
}

async fn write(cell: Cell, round: WriteRound) -> WriteDone {
    let mut results = cell.set(round.chunks).await.into_iter();
    let outcome = |part: Part| {
        // Counted to the end: the results of the parts lie one behind the other.
        let acknowledged = results.by_ref().take(part.chunks).filter(Result::is_ok).count();
        (part, acknowledged == part.chunks)
    };
    WriteDone::Round(round.parts.into_iter().map(outcome).collect())
}

async fn publish(cell: Cell, publish: Publish) -> WriteDone {
    let results = cell.set(vec![(publish.key, publish.value)]).await;
    WriteDone::Publish(publish.page, results.iter().all(Result::is_ok))
}
