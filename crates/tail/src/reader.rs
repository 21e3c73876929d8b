//! The reading half: follows the lengths of all files that a process reads, fetches what is new once for the
//! whole process, and hands it to any number of cursors (Fast ACS, section 2.4).
//!
//! ```text
//!   metadata cell --lengths--> feeds --plan--> fetch --blocks--> feeds --look--> cursors
//!   durable source --tails, less often--^         ^--data cell, then durable source
//! ```
//!
//! What holds:
//! - Lengths are read in bulk and in consistent mode, by one task; a length that goes back is ignored.
//! - When the metadata cell is silent, lengths come from the durable source within [`SILENT_AFTER`].
//! - A cursor that is slow, stopped or dropped holds no other cursor back, and costs one bounded window.
//! - A cursor sees every entry from where it began, in order, once; or an error that says why not.

mod lengths;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task};
use tailwater_format::{SHARDS_PER_PAGE, SegmentNumber, ShardId, StreamId};
use tokio::sync::{Notify, watch};

use crate::cursor::Waiter;
use crate::feed::{Feed, FeedConfig, Plan};
use crate::fetch::{Assembly, ByteRange, FetchCounters, Fetcher};
use crate::limits::{FETCHES_MAX, ROUND_CHUNKS_MAX};
use crate::{Cells, DurableSource, SegmentInfo, SourceError};

#[cfg(doc)]
use crate::limits::SILENT_AFTER;

/// How a process reads. The defaults are the paper's where it names one.
#[derive(Clone, Copy, Debug)]
pub struct ReaderConfig {
    /// How long the cached layer may be behind before the durable one is read (algorithm 1's maxDelay: 1 s).
    pub delay_max: Duration,
    /// Bytes of each shard that are kept for the consumers that are near the tail.
    pub window_bytes: usize,
    /// Bytes that are read ahead for a consumer that catches up by itself.
    pub catch_up_window_bytes: usize,
    /// Most bytes per second of each shard.
    pub bytes_per_s: u64,
    /// Most bytes per second for a consumer that catches up by itself.
    pub catch_up_bytes_per_s: u64,
    /// Lengths are not read again sooner than this; 0 reads them at every wake-up.
    pub lengths_every: Duration,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self {
            delay_max: Duration::from_secs(1),
            window_bytes: 4 << 20,
            catch_up_window_bytes: 1 << 20,
            bytes_per_s: 512 << 20,
            catch_up_bytes_per_s: 64 << 20,
            lengths_every: Duration::ZERO,
        }
    }
}

/// Counters of a reader since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Chunks asked for in relaxed mode.
    pub relaxed: u64,
    /// Relaxed reads that were late and asked another replica too.
    pub hedged: u64,
    /// Chunks asked for in consistent mode, after a relaxed read came short.
    pub consistent: u64,
    /// Reads of the durable layer.
    pub durable: u64,
    /// Bytes that came from the data cell.
    pub cell_bytes: u64,
    /// Bytes that came from the durable layer.
    pub durable_bytes: u64,
    /// Bytes of entries that became readable.
    pub entry_bytes: u64,
}

/// Reads any number of shards for any number of cursors in one process. Cheap to clone.
#[derive(Clone)]
pub struct TailReader {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) config: ReaderConfig,
    fetcher: Fetcher,
    state: Mutex<State>,
    /// When each page was last read from the metadata cell.
    heard: Mutex<BTreeMap<(StreamId, u32), Instant>>,
    /// Rung when a feed may have something to plan.
    wake: Notify,
    /// Rung when a shard is followed that was not.
    followed: Notify,
    /// Counts what became readable.
    progress: watch::Sender<u64>,
    tasks: Mutex<Vec<Task>>,
}

#[derive(Default)]
struct State {
    shared: BTreeMap<ShardId, Arc<SharedFeed>>,
    private: Vec<Weak<SharedFeed>>,
}

/// A feed and who waits for it.
pub(crate) struct SharedFeed {
    pub(crate) shard: ShardId,
    pub(crate) feed: Mutex<Feed>,
    waiters: Mutex<Vec<Arc<Waiter>>>,
}

impl SharedFeed {
    pub(crate) fn join(&self, waiter: &Arc<Waiter>) {
        self.waiters.lock().push(Arc::clone(waiter));
    }

    /// How many cursors are left after one leaves.
    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) -> usize {
        let mut waiters = self.waiters.lock();
        if let Some(index) = waiters.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            waiters.swap_remove(index);
        }
        waiters.len()
    }

    fn wake_cursors(&self) {
        for waiter in self.waiters.lock().iter() {
            waiter.wake();
        }
    }
}

impl TailReader {
    /// Starts reading: hot bytes from `cells` (without them, everything is read from the durable layer), the
    /// rest from `source`.
    pub fn start(
        env: &Env,
        cells: Option<Cells>,
        source: Arc<dyn DurableSource>,
        config: ReaderConfig,
    ) -> Self {
        let (data, metadata) = cells.map(|cells| (cells.data, cells.metadata)).unzip();
        let fetcher = Fetcher { data, source, counters: Arc::new(FetchCounters::default()) };
        let inner = Arc::new(Inner {
            env: env.clone(),
            config,
            fetcher,
            state: Mutex::new(State::default()),
            heard: Mutex::new(BTreeMap::new()),
            wake: Notify::new(),
            followed: Notify::new(),
            progress: watch::channel(0).0,
            tasks: Mutex::new(Vec::new()),
        });
        let mut tasks = vec![env.spawn("tail-fetch", run(Arc::downgrade(&inner), env.clone()))];
        if let Some(metadata) = metadata {
            let lengths = lengths::follow_cell(Arc::downgrade(&inner), env.clone(), metadata);
            tasks.push(env.spawn("tail-lengths", lengths));
        }
        let durable = lengths::follow_source(Arc::downgrade(&inner), env.clone());
        tasks.push(env.spawn("tail-durable-lengths", durable));
        *inner.tasks.lock() = tasks;
        Self { inner }
    }

    /// Counters since the start.
    pub fn stats(&self) -> ReaderStats {
        let counters = &self.inner.fetcher.counters;
        let hedged = self.inner.fetcher.data.as_ref().map_or(0, |cell| cell.stats().hedged);
        ReaderStats {
            relaxed: counters.relaxed.load(Ordering::Relaxed),
            hedged,
            consistent: counters.consistent.load(Ordering::Relaxed),
            durable: counters.durable.load(Ordering::Relaxed),
            cell_bytes: counters.cell_bytes.load(Ordering::Relaxed),
            durable_bytes: counters.durable_bytes.load(Ordering::Relaxed),
            entry_bytes: counters.entry_bytes.load(Ordering::Relaxed),
        }
    }

    /// A receiver that changes whenever some shard has something new: for a thread that polls many cursors.
    pub fn progress(&self) -> watch::Receiver<u64> {
        self.inner.progress.subscribe()
    }
}

impl Inner {
    /// The process's feed of a shard, begun if need be.
    pub(crate) fn shared_feed(&self, shard: ShardId) -> Arc<SharedFeed> {
        let mut state = self.state.lock();
        let feed = state.shared.entry(shard).or_insert_with(|| {
            let config = FeedConfig {
                window_bytes: self.config.window_bytes,
                delay_max: self.config.delay_max,
                bytes_per_s: self.config.bytes_per_s,
                shared: true,
            };
            let feed = Mutex::new(Feed::new(shard, config, None, self.env.now()));
            Arc::new(SharedFeed { shard, feed, waiters: Mutex::new(Vec::new()) })
        });
        let feed = Arc::clone(feed);
        drop(state);
        self.followed.notify_waiters();
        feed
    }

    /// A feed for one cursor that fell out of the shared window.
    pub(crate) fn private_feed(&self, shared: &SharedFeed) -> Arc<SharedFeed> {
        let config = FeedConfig {
            window_bytes: self.config.catch_up_window_bytes,
            delay_max: self.config.delay_max,
            bytes_per_s: self.config.catch_up_bytes_per_s,
            shared: false,
        };
        let tail = shared.feed.lock().tail();
        let feed = Mutex::new(Feed::new(shared.shard, config, tail, self.env.now()));
        let feed = Arc::new(SharedFeed { shard: shared.shard, feed, waiters: Mutex::new(Vec::new()) });
        self.state.lock().private.push(Arc::downgrade(&feed));
        feed
    }

    /// Nobody reads the shard any more.
    pub(crate) fn unfollow(&self, feed: &Arc<SharedFeed>) {
        let mut state = self.state.lock();
        // Somebody may have joined since.
        if feed.waiters.lock().is_empty() {
            feed.feed.lock().stop();
            if state.shared.get(&feed.shard).is_some_and(|known| Arc::ptr_eq(known, feed)) {
                state.shared.remove(&feed.shard);
            }
        }
    }

    /// Something changed that a feed's plan depends on.
    pub(crate) fn plan_again(&self) {
        self.wake.notify_one();
    }

    /// All feeds, shared ones first.
    fn feeds(&self) -> Vec<Arc<SharedFeed>> {
        let mut state = self.state.lock();
        state.private.retain(|feed| feed.strong_count() > 0);
        let private = state.private.iter().filter_map(Weak::upgrade);
        state.shared.values().cloned().chain(private).collect()
    }

    fn feeds_of(&self, shard: ShardId) -> Vec<Arc<SharedFeed>> {
        let state = self.state.lock();
        let private = state.private.iter().filter_map(Weak::upgrade).filter(|feed| feed.shard == shard);
        state.shared.get(&shard).cloned().into_iter().chain(private).collect()
    }

    /// The pages that have a followed shard.
    fn pages(&self) -> BTreeSet<(StreamId, u32)> {
        self.state.lock().shared.keys().map(|id| (id.stream, id.shard.0 / SHARDS_PER_PAGE)).collect()
    }

    fn announce(&self, feed: &SharedFeed) {
        feed.wake_cursors();
        self.progress.send_modify(|count| *count = count.wrapping_add(1));
    }
}

enum Done {
    /// One relaxed read for the chunks of many feeds.
    Round(Vec<(Arc<SharedFeed>, Assembly)>),
    Bytes(Arc<SharedFeed>, ByteRange, bool, Result<BytesMut, SourceError>),
    Segments(Arc<SharedFeed>, SegmentNumber, Result<Vec<SegmentInfo>, SourceError>),
}

/// Fetches what the feeds want, until the reader is dropped.
async fn run(reader: Weak<Inner>, env: Env) {
    let mut under_way: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    loop {
        let Some(inner) = reader.upgrade() else { return };
        let wake_at = start_planned(&inner, &mut under_way);
        let sleep = env.sleep_until(wake_at);
        let woken = async {
            tokio::select! {
                biased;
                Some(done) = under_way.next() => Some(done),
                () = inner.wake.notified() => None,
                () = sleep => None,
            }
        };
        if let Some(done) = woken.await {
            take_in(&inner, done, &mut under_way);
        }
    }
}

/// Starts fetching what is planned; when to plan again at the latest.
fn start_planned(inner: &Inner, under_way: &mut FuturesUnordered<BoxFuture<'static, Done>>) -> Instant {
    let now = inner.env.now();
    let mut wake_at = now + Duration::from_millis(500);
    if under_way.len() >= FETCHES_MAX {
        return wake_at;
    }
    let (mut feeds, mut ranges, mut chunks) = (Vec::new(), Vec::new(), 0);
    for feed in inner.feeds() {
        let plan = feed.feed.lock().plan(now);
        match plan {
            Plan::Wait { at } => wake_at = wake_at.min(at.unwrap_or(wake_at)),
            Plan::Fetch { range, durable: false } => {
                chunks += range.chunk_count();
                feeds.push(feed);
                ranges.push(range);
                if chunks >= ROUND_CHUNKS_MAX {
                    chunks = 0;
                    let round = (std::mem::take(&mut feeds), std::mem::take(&mut ranges));
                    under_way.push(relaxed_round(inner.fetcher.clone(), round.0, round.1));
                }
            }
            Plan::Fetch { range, durable: true } => {
                let fetcher = inner.fetcher.clone();
                under_way.push(
                    async move {
                        let bytes = fetcher.durable(&range).await;
                        Done::Bytes(feed, range, true, bytes)
                    }
                    .boxed(),
                );
            }
            Plan::Segments { from } => {
                let source = Arc::clone(&inner.fetcher.source);
                under_way.push(
                    async move {
                        let listed = source.segments(feed.shard, from).await;
                        Done::Segments(feed, from, listed)
                    }
                    .boxed(),
                );
            }
        }
    }
    if !feeds.is_empty() {
        under_way.push(relaxed_round(inner.fetcher.clone(), feeds, ranges));
    }
    wake_at
}

fn relaxed_round(
    fetcher: Fetcher,
    feeds: Vec<Arc<SharedFeed>>,
    ranges: Vec<ByteRange>,
) -> BoxFuture<'static, Done> {
    async move {
        let assemblies = fetcher.relaxed(&ranges).await;
        Done::Round(feeds.into_iter().zip(assemblies).collect())
    }
    .boxed()
}

fn take_in(inner: &Inner, done: Done, under_way: &mut FuturesUnordered<BoxFuture<'static, Done>>) {
    let now = inner.env.now();
    match done {
        Done::Round(assemblies) => {
            for (feed, assembly) in assemblies {
                let range = assembly.range;
                match assembly.complete() {
                    Ok(bytes) => take_in_bytes(inner, &feed, &range, bytes, false),
                    // One file that comes short does not hold the others of its round back.
                    Err(assembly) => {
                        let fetcher = inner.fetcher.clone();
                        under_way.push(
                            async move {
                                let bytes = fetcher.finish(assembly).await;
                                Done::Bytes(feed, range, false, bytes)
                            }
                            .boxed(),
                        );
                    }
                }
            }
        }
        Done::Bytes(feed, range, durable, Ok(bytes)) => take_in_bytes(inner, &feed, &range, bytes, durable),
        Done::Segments(feed, from, Ok(segments)) => {
            if feed.feed.lock().listed(from, &segments) {
                inner.announce(&feed);
            }
        }
        Done::Bytes(feed, .., Err(error)) | Done::Segments(feed, _, Err(error)) => {
            tracing::debug!(shard = %feed.shard, %error, "reading failed");
            if feed.feed.lock().failed(now, error) {
                inner.announce(&feed);
            }
        }
    }
}

fn take_in_bytes(inner: &Inner, feed: &SharedFeed, range: &ByteRange, bytes: BytesMut, durable: bool) {
    let count = bytes.len() as u64;
    let new = feed.feed.lock().fetched(range, bytes, durable);
    if new {
        inner.fetcher.counters.entry_bytes.fetch_add(count, Ordering::Relaxed);
        inner.announce(feed);
    }
}
