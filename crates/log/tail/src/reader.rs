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
//! - When the metadata cell is silent, or says less than the durable source, lengths come from there, and bytes are
//!   fetched as soon as they are durable: there is no cached length to wait for.
//! - A cursor that is slow, stopped or dropped holds no other cursor back, and costs one bounded window.
//! - A cursor sees every entry from where it began, in order, once; or an error that says why not.
//!
//! Whoever changes what a feed's plan depends on calls [`TailReaderInner::plan_again`] for it; whoever changes what a
//! cursor can see calls [`TailReaderInner::announce`]. Both keep until somebody looks, so that neither is lost.

mod config;
mod fed;
mod lengths;
mod lines;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant, Task};
use tailwater_format::{Offset, SHARDS_PER_PAGE, SegmentNumber, ShardId, StreamId, Term};
use tokio::sync::{Notify, watch};

pub use config::{ReaderConfig, ReaderConfigError, ReaderStats};
use lines::{InLines, RateLines};

use crate::budget::RateBudget;
use crate::cursor::Waiter;
use crate::feed::{Feed, FeedConfig, FeedPlan, News, Place};
use crate::fetch::{Assembly, ByteRange, Fetcher, Lane};
use crate::limits::{CATCH_UP_FETCHES_MAX, FETCHES_MAX, ROUND_BYTES_MAX};
use crate::{Cells, DurableSource, SourceError, SourceSegment};

/// Reads any number of shards for any number of cursors in one process. Cheap to clone; the tasks end with the
/// last handle and the last cursor.
#[derive(Clone)]
pub struct TailReader {
    pub(crate) inner: Arc<TailReaderInner>,
    _tasks: Arc<Vec<Task>>,
}

pub(crate) struct TailReaderInner {
    env: Env,
    config: ReaderConfig,
    fetcher: Fetcher,
    /// Whether there is a metadata cell.
    follows_cell: bool,
    state: Mutex<TailReaderState>,
    /// How many follow a shard.
    cursors: AtomicUsize,
    /// The feeds that may have something to plan.
    due: Mutex<Due>,
    /// Rung when there is one.
    wake: Notify,
    /// Rung when the metadata cell failed to tell of a page.
    untold: Notify,
    /// Counts the feeds that have yet to hear how far their shard reaches.
    followed: watch::Sender<u64>,
    /// Counts what became readable.
    progress: watch::Sender<u64>,
}

/// Feeds in the order in which they wait to be planned, each once. Not kept for those whom nobody follows any more.
#[derive(Default)]
struct Due {
    tail: VecDeque<Weak<SharedFeed>>,
    catch_up: VecDeque<Weak<SharedFeed>>,
}

impl Due {
    fn of(&mut self, lane: Lane) -> &mut VecDeque<Weak<SharedFeed>> {
        match lane {
            Lane::Tail => &mut self.tail,
            Lane::CatchUp => &mut self.catch_up,
        }
    }

    fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.catch_up.is_empty()
    }
}

/// A page of tails.
type ReaderPage = (StreamId, u32);

#[derive(Default)]
struct TailReaderState {
    shared: BTreeMap<ShardId, Arc<SharedFeed>>,
    private: Vec<Weak<SharedFeed>>,
    /// What was heard of the pages that have a followed shard.
    heard: BTreeMap<ReaderPage, LengthHeard>,
}

/// When the metadata cell told of a page.
#[derive(Clone, Copy)]
struct LengthHeard {
    /// Anything, or when it was followed.
    at: Instant,
    /// Something else than before.
    changed_at: Instant,
    /// The durable source has told of more since.
    is_behind: bool,
    /// The window that feeds shards of it, and follows the page itself, was last known to be alive.
    fed_at: Option<Instant>,
}

/// A feed and who waits for it.
pub(crate) struct SharedFeed {
    pub(crate) shard: ShardId,
    pub(crate) feed: Mutex<Feed>,
    lane: Lane,
    waiters: Mutex<Vec<Arc<Waiter>>>,
    /// Counts the changes of what a cursor at its front can see.
    changes: AtomicU64,
    /// Whether it waits to be planned.
    is_due: AtomicBool,
    in_lines: InLines,
    /// Whether a window brings what comes next.
    is_fed: AtomicBool,
}

impl SharedFeed {
    fn new(shard: ShardId, feed: Feed, lane: Lane) -> Self {
        Self {
            shard,
            feed: Mutex::new(feed),
            lane,
            waiters: Mutex::default(),
            changes: AtomicU64::new(0),
            is_due: AtomicBool::new(false),
            in_lines: InLines::default(),
            is_fed: AtomicBool::new(false),
        }
    }

    /// Whose turns a durable read of a range takes. A shared feed that is far behind is made to wait by the node, as
    /// all are that catch up: meanwhile it holds no turn of those that are at their tail.
    fn read_lane(&self, range: &ByteRange) -> Lane {
        let from = Place { segment: range.segment.number, position: range.from };
        match self.lane {
            Lane::Tail if !self.feed.lock().is_far(from) => Lane::Tail,
            Lane::Tail | Lane::CatchUp => Lane::CatchUp,
        }
    }

    /// Whether one cursor of the process is in this shard, and no more, wherever they are.
    pub(crate) fn is_followed_by_one(&self) -> bool {
        self.waiters.lock().len() == 1
    }

    /// As long as this is the same as before a look that found the front, the next look finds it, too.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn wake_cursors(&self) {
        // In one order with `Waiter::arm`: who arms and sees no change is seen to wait.
        self.changes.fetch_add(1, Ordering::SeqCst);
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
        let inner = Arc::new(TailReaderInner {
            env: env.clone(),
            config,
            fetcher: Fetcher::new(data, source),
            follows_cell: metadata.is_some(),
            state: Mutex::new(TailReaderState::default()),
            cursors: AtomicUsize::new(0),
            due: Mutex::default(),
            wake: Notify::new(),
            untold: Notify::new(),
            followed: watch::Sender::new(0),
            progress: watch::Sender::new(0),
        });
        let mut tasks = vec![env.spawn("tail-fetch", run(Arc::clone(&inner)))];
        if let Some(metadata) = metadata {
            tasks.push(env.spawn("tail-lengths", lengths::follow_cell(Arc::clone(&inner), metadata)));
        }
        tasks.push(env.spawn("tail-durable-lengths", lengths::follow_source(Arc::clone(&inner))));
        Self { inner, _tasks: Arc::new(tasks) }
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
            window_blocks: counters.window_blocks.load(Ordering::Relaxed),
            window_bytes: counters.window_bytes.load(Ordering::Relaxed),
        }
    }

    /// A receiver that changes whenever some shard has something new: for a thread that polls many cursors.
    pub fn progress(&self) -> watch::Receiver<u64> {
        self.inner.progress.subscribe()
    }
}

/// Cursors coming and going.
impl TailReaderInner {
    /// The process's feed of a shard, with one more cursor at it.
    pub(crate) fn follow(&self, shard: ShardId, waiter: &Arc<Waiter>) -> Arc<SharedFeed> {
        let now = self.env.now();
        let mut state = self.state.lock();
        let mut is_new = false;
        let feed = state.shared.entry(shard).or_insert_with(|| {
            is_new = true;
            let config = FeedConfig {
                window_bytes: self.config.window_bytes,
                delay_max: self.config.delay_max,
                catch_up_bytes_per_s: self.config.catch_up_bytes_per_s,
                shared: true,
            };
            let mut feed = Feed::shared(shard, config);
            feed.set_silent(!self.follows_cell);
            Arc::new(SharedFeed::new(shard, feed, Lane::Tail))
        });
        let feed = Arc::clone(feed);
        // Under the state's lock, or `unfollow` could take the feed away in between.
        feed.waiters.lock().push(Arc::clone(waiter));
        self.cursors.fetch_add(1, Ordering::Relaxed);
        if is_new {
            state.heard.entry(page_of(shard)).or_insert(LengthHeard {
                at: now,
                changed_at: now,
                is_behind: false,
                fed_at: None,
            });
            drop(state);
            self.followed.send_modify(|count| *count += 1);
        }
        feed
    }

    /// One cursor less; the last one takes the feed along.
    pub(crate) fn unfollow(&self, feed: &Arc<SharedFeed>, waiter: &Arc<Waiter>) {
        let mut state = self.state.lock();
        let is_last = {
            let mut waiters = feed.waiters.lock();
            if let Some(index) = waiters.iter().position(|other| Arc::ptr_eq(other, waiter)) {
                waiters.swap_remove(index);
                self.cursors.fetch_sub(1, Ordering::Relaxed);
            }
            waiters.is_empty()
        };
        if is_last {
            state.shared.remove(&feed.shard);
            let page = page_of(feed.shard);
            if !state.shared.keys().any(|shard| page_of(*shard) == page) {
                state.heard.remove(&page);
            }
        }
    }

    /// A feed for one cursor at `place`, which is not in the shared window, and wants nothing before `offset`.
    pub(crate) fn read_alone(
        &self,
        shared: &SharedFeed,
        place: Place,
        offset: Offset,
        read_term: Option<Term>,
        waiter: &Arc<Waiter>,
    ) -> Arc<SharedFeed> {
        let config = FeedConfig {
            window_bytes: self.config.catch_up_window_bytes,
            delay_max: self.config.delay_max,
            catch_up_bytes_per_s: self.config.catch_up_bytes_per_s,
            shared: false,
        };
        let shard = shared.shard;
        let feed = Feed::private(shard, config, place, read_term).starting_at(offset);
        let feed = Arc::new(SharedFeed::new(shard, feed, Lane::CatchUp));
        feed.waiters.lock().push(Arc::clone(waiter));
        {
            let mut state = self.state.lock();
            state.private.retain(|feed| feed.strong_count() > 0);
            state.private.push(Arc::downgrade(&feed));
        }
        let known = shared.feed.lock().knowledge();
        feed.feed.lock().learn(known);
        // What was heard at this moment may have been for the feeds before it: it is told again.
        self.followed.send_modify(|count| *count += 1);
        self.plan_again(&feed);
        feed
    }

    /// Something changed that a feed's plan depends on.
    pub(crate) fn plan_again(&self, feed: &Arc<SharedFeed>) {
        self.make_due(feed);
        self.plan_due();
    }

    /// The same, for one of several that are planned together: [`TailReaderInner::plan_due`] behind the last one.
    fn make_due(&self, feed: &Arc<SharedFeed>) {
        // Taken back before it is planned: what changes from then on makes it due again.
        if !feed.is_due.swap(true, Ordering::AcqRel) {
            self.due.lock().of(feed.lane).push_back(Arc::downgrade(feed));
        }
    }

    /// Has those planned that are due.
    fn plan_due(&self) {
        if !self.due.lock().is_empty() {
            self.wake.notify_one();
        }
    }

    /// The next feed to plan.
    fn next_due(&self, lane: Lane) -> Option<Arc<SharedFeed>> {
        let mut due = self.due.lock();
        let feed = std::iter::from_fn(|| due.of(lane).pop_front()).find_map(|feed| feed.upgrade())?;
        feed.is_due.store(false, Ordering::Release);
        Some(feed)
    }

    /// All feeds, the shared ones before the private ones.
    fn feeds(&self) -> Vec<Arc<SharedFeed>> {
        let state = self.state.lock();
        let private = state.private.iter().filter_map(Weak::upgrade);
        state.shared.values().cloned().chain(private).collect()
    }

    fn feeds_of(&self, shard: ShardId) -> Vec<Arc<SharedFeed>> {
        let state = self.state.lock();
        let private = state.private.iter().filter_map(Weak::upgrade).filter(|feed| feed.shard == shard);
        state.shared.get(&shard).cloned().into_iter().chain(private).collect()
    }

    #[cfg(test)]
    pub(crate) fn kept_bytes(&self, shard: ShardId) -> usize {
        self.feeds_of(shard).iter().map(|feed| feed.feed.lock().kept_bytes()).sum()
    }

    #[cfg(test)]
    pub(crate) fn followed_shards(&self) -> usize {
        let state = self.state.lock();
        state.shared.len() + state.heard.len()
    }

    fn announce(&self, feed: &SharedFeed) {
        feed.wake_cursors();
        self.progress.send_modify(|count| *count = count.wrapping_add(1));
    }
}

fn page_of(shard: ShardId) -> ReaderPage {
    (shard.stream, shard.shard.0 / SHARDS_PER_PAGE)
}

enum ReadDone {
    /// One relaxed read for the chunks of many feeds.
    Round(Vec<(Arc<SharedFeed>, Assembly)>),
    /// One feed's bytes; from the durable layer alone if `durable`.
    Bytes {
        feed: Arc<SharedFeed>,
        range: ByteRange,
        durable: bool,
        fetched: Result<Bytes, SourceError>,
    },
    Segments(Arc<SharedFeed>, SegmentNumber, Result<Vec<SourceSegment>, SourceError>),
}

/// The fetches that were begun, and how many there are in each lane.
#[derive(Default)]
struct ReadsUnderWay {
    fetches: FuturesUnordered<BoxFuture<'static, (Lane, ReadDone)>>,
    tail: usize,
    catch_up: usize,
}

impl ReadsUnderWay {
    fn push(&mut self, lane: Lane, fetch: impl Future<Output = ReadDone> + Send + 'static) {
        *self.count(lane) += 1;
        self.fetches.push(fetch.map(move |done| (lane, done)).boxed());
    }

    async fn next(&mut self) -> Option<(Lane, ReadDone)> {
        let done = self.fetches.next().await;
        if let Some((lane, _)) = &done {
            *self.count(*lane) -= 1;
        }
        done
    }

    /// Whether another fetch of this lane may begin.
    fn has_room(&self, lane: Lane) -> bool {
        match lane {
            Lane::Tail => self.tail < FETCHES_MAX,
            Lane::CatchUp => self.catch_up < CATCH_UP_FETCHES_MAX,
        }
    }

    fn count(&mut self, lane: Lane) -> &mut usize {
        match lane {
            Lane::Tail => &mut self.tail,
            Lane::CatchUp => &mut self.catch_up,
        }
    }
}

/// Every feed is planned again at the latest after this long, though everything that matters makes it due.
const PLAN_EVERY: Duration = Duration::from_secs(5);

/// Feeds that are due again at a time, each once.
#[derive(Default)]
struct Later {
    at: BTreeMap<(Instant, u64), Weak<SharedFeed>>,
    /// What each one in `at` has there, by its address.
    of: BTreeMap<usize, (Instant, u64)>,
    /// Makes places in `at` differ.
    next: u64,
}

impl Later {
    /// Has a feed planned at this time, and not when it was to be before.
    fn set(&mut self, feed: &Arc<SharedFeed>, at: Option<Instant>) {
        let address = Arc::as_ptr(feed).addr();
        if let Some(place) = self.of.remove(&address) {
            self.at.remove(&place);
        }
        if let Some(at) = at {
            self.next += 1;
            self.at.insert((at, self.next), Arc::downgrade(feed));
            self.of.insert(address, (at, self.next));
        }
    }

    /// The next one whose time has come.
    fn due(&mut self, now: Instant) -> Option<Weak<SharedFeed>> {
        let entry = self.at.first_entry().filter(|entry| entry.key().0 <= now)?;
        let (_, feed) = entry.remove_entry();
        // Its address is nobody else's as long as there is a weak reference to it.
        self.of.remove(&feed.as_ptr().addr());
        Some(feed)
    }

    fn next(&self) -> Option<Instant> {
        self.at.keys().next().map(|(at, _)| *at)
    }
}

/// Fetches what the feeds want, until the reader and all cursors are dropped.
async fn run(inner: Arc<TailReaderInner>) {
    let mut planner = Planner::new(&inner);
    let mut all_at = inner.env.now() + PLAN_EVERY;
    loop {
        let now = inner.env.now();
        if all_at <= now {
            inner.feeds().iter().for_each(|feed| inner.make_due(feed));
            all_at = now + PLAN_EVERY;
        }
        let wake_at = planner.start_planned(&inner, now).map_or(all_at, |at| at.min(all_at));
        tokio::select! {
            biased;
            Some((lane, done)) = planner.under_way.next() => planner.take_in(&inner, lane, done),
            () = inner.wake.notified() => {}
            () = inner.env.sleep_until(wake_at) => {}
        }
    }
}

/// Has the feeds planned, and starts what they want.
struct Planner {
    under_way: ReadsUnderWay,
    /// Feeds whose time comes.
    later: Later,
    /// Feeds that wait until they may read.
    lines: RateLines,
    budget: RateBudget,
    /// What one relaxed read of each lane asks for, so far.
    rounds: [PlannedRound; 2],
}

#[derive(Default)]
struct PlannedRound {
    parts: Vec<(Arc<SharedFeed>, ByteRange)>,
    bytes: u64,
}

impl Planner {
    fn new(inner: &TailReaderInner) -> Self {
        let ReaderConfig { bytes_per_s, catch_up_bytes_per_s, .. } = inner.config;
        Self {
            under_way: ReadsUnderWay::default(),
            later: Later::default(),
            lines: RateLines::default(),
            budget: RateBudget::new(bytes_per_s, catch_up_bytes_per_s, inner.env.now()),
            rounds: Default::default(),
        }
    }

    /// Starts fetching what is planned; when there may be more to plan, if nothing is heard before. Feeds of a lane
    /// without room keep their place.
    fn start_planned(&mut self, inner: &TailReaderInner, now: Instant) -> Option<Instant> {
        while let Some(feed) = self.later.due(now) {
            feed.upgrade().iter().for_each(|feed| inner.make_due(feed));
        }
        self.start_of_lines(inner, now);
        for lane in [Lane::Tail, Lane::CatchUp] {
            while self.under_way.has_room(lane) {
                let Some(feed) = inner.next_due(lane) else { break };
                self.plan(inner, feed, None, now);
            }
        }
        // Some of those are in a line now.
        self.start_of_lines(inner, now);
        for lane in [Lane::Tail, Lane::CatchUp] {
            self.start_round(inner, lane);
        }
        let ready_at = self.lines.ready_at(&mut self.budget, now, |lane| self.under_way.has_room(lane));
        ready_at.into_iter().chain(self.later.next()).min()
    }

    fn start_of_lines(&mut self, inner: &TailReaderInner, now: Instant) {
        while let Some((feed, granted)) =
            self.lines.pop(&mut self.budget, now, |lane| self.under_way.has_room(lane))
        {
            self.plan(inner, feed, granted, now);
        }
    }

    fn plan(&mut self, inner: &TailReaderInner, feed: Arc<SharedFeed>, granted: Option<u64>, now: Instant) {
        if let Err(why) = inner.unpark(&feed) {
            tracing::debug!(shard = %feed.shard, %why, "a window said what none says");
            feed.feed.lock().window_is_gone();
        }
        let (plan, has_failed) = {
            let mut feed = feed.feed.lock();
            let had_failed = feed.has_failed();
            let plan = feed.plan(now, &mut self.budget, granted);
            (plan, feed.has_failed() && !had_failed)
        };
        if has_failed {
            inner.announce(&feed);
        }
        inner.note_fed(&feed);
        self.later.set(&feed, None);
        let lane = feed.lane;
        match plan {
            FeedPlan::Wait { at } => self.later.set(&feed, at),
            FeedPlan::Line(line) => self.lines.join(line, &feed),
            FeedPlan::Fetch { range, durable: false } => {
                let round = &mut self.rounds[lane as usize];
                round.bytes += range.len();
                round.parts.push((feed, range));
                if round.bytes >= ROUND_BYTES_MAX {
                    self.start_round(inner, lane);
                }
            }
            FeedPlan::Fetch { range, durable: true } => {
                self.under_way.push(lane, durable_read(inner.fetcher.clone(), feed, range));
            }
            FeedPlan::Segments { from } => {
                self.under_way.push(lane, list_segments(Arc::clone(&inner.fetcher.source), feed, from));
            }
        }
    }

    fn start_round(&mut self, inner: &TailReaderInner, lane: Lane) {
        let round = std::mem::take(&mut self.rounds[lane as usize]);
        if !round.parts.is_empty() {
            self.under_way.push(lane, relaxed_round(inner.fetcher.clone(), round.parts));
        }
    }

    fn take_in(&mut self, inner: &TailReaderInner, lane: Lane, done: ReadDone) {
        let now = inner.env.now();
        let (feed, news) = match done {
            ReadDone::Round(assemblies) => {
                for (feed, mut assembly) in assemblies {
                    let range = assembly.range;
                    match assembly.complete() {
                        Some(fetched) => {
                            let news = feed.feed.lock().fetched(&range, fetched, false);
                            tell(inner, &feed, news);
                        }
                        // One file that comes short does not hold the others of its round back.
                        None => {
                            self.under_way.push(lane, finish(inner.fetcher.clone(), feed, assembly));
                        }
                    }
                }
                return;
            }
            ReadDone::Bytes { feed, range, durable, fetched: Ok(fetched) } => {
                let news = feed.feed.lock().fetched(&range, fetched, durable);
                (feed, news)
            }
            ReadDone::Segments(feed, from, Ok(segments)) => {
                let news = feed.feed.lock().listed(now, from, &segments);
                (feed, news)
            }
            ReadDone::Bytes { feed, fetched: Err(error), .. } | ReadDone::Segments(feed, _, Err(error)) => {
                tracing::debug!(shard = %feed.shard, %error, "reading failed");
                let news = feed.feed.lock().failed(now, error, &mut self.budget);
                (feed, news)
            }
        };
        tell(inner, &feed, news);
    }
}

async fn relaxed_round(fetcher: Fetcher, round: Vec<(Arc<SharedFeed>, ByteRange)>) -> ReadDone {
    let (feeds, ranges): (Vec<_>, Vec<_>) = round.into_iter().unzip();
    let assemblies = fetcher.relaxed(&ranges).await;
    ReadDone::Round(feeds.into_iter().zip(assemblies).collect())
}

async fn finish(fetcher: Fetcher, feed: Arc<SharedFeed>, assembly: Assembly) -> ReadDone {
    let range = assembly.range;
    let fetched = fetcher.finish(assembly, feed.read_lane(&range)).await;
    ReadDone::Bytes { feed, range, durable: false, fetched }
}

async fn durable_read(fetcher: Fetcher, feed: Arc<SharedFeed>, range: ByteRange) -> ReadDone {
    let fetched = fetcher.durable(&range, feed.read_lane(&range)).await;
    ReadDone::Bytes { feed, range, durable: true, fetched }
}

async fn list_segments(
    source: Arc<dyn DurableSource>,
    feed: Arc<SharedFeed>,
    from: SegmentNumber,
) -> ReadDone {
    let listed = source.segments(feed.shard, from).await;
    ReadDone::Segments(feed, from, listed)
}

fn tell(inner: &TailReaderInner, feed: &Arc<SharedFeed>, news: News) {
    // It is the planner that is told this.
    inner.make_due(feed);
    inner.fetcher.counters.entry_bytes.fetch_add(news.entry_bytes, Ordering::Relaxed);
    if news.announce {
        inner.announce(feed);
    }
}
