//! What to write to the cells next, as a state machine without I/O.
//!
//! A shard's bytes pass through these stages, each a position in its segment:
//!
//! ```text
//!   cached            in flight              end = durable
//!     |  one round of chunk writes  |  waiting  |
//!     ^ published when acknowledged             ^ published after PUBLISH_DELAY if cached lags
//! ```

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use tailwater_env::Instant;
use tailwater_format::{
    ChunkKey, Position, SHARDS_PER_PAGE, SegmentId, ShardId, ShardNumber, StreamId, Tail, TailPage,
    tail_page_key,
};

use crate::limits::{
    CHUNK_REFRESH, PAGE_REFRESH, PUBLISH_DELAY, RETRY_DELAY, SHADOW_BYTES_MAX, SHADOW_ROUND_BYTES_MAX,
    SHADOW_ROUNDS_MAX,
};

/// Counters of a writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Chunks handed to the data cell.
    pub chunks_written: u64,
    /// Bytes in them.
    pub chunk_bytes_written: u64,
    /// Rounds of chunk writes that failed in part or whole.
    pub rounds_failed: u64,
    /// Pages handed to the metadata cell.
    pub pages_published: u64,
    /// Publications that failed.
    pub publishes_failed: u64,
    /// Times that a shard's cached stream jumped over bytes.
    pub jumps: u64,
}

/// A page of a stream: up to [`SHARDS_PER_PAGE`] shards whose tails are one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageId {
    pub(super) stream: StreamId,
    pub(super) page: u32,
}

impl PageId {
    pub(super) fn of(shard: ShardId) -> Self {
        Self { stream: shard.stream, page: shard.shard.0 / SHARDS_PER_PAGE }
    }
}

/// One batch of chunk writes.
pub(super) struct Round {
    pub(super) shards: Vec<(SegmentId, Position)>,
    pub(super) chunks: Vec<(Bytes, Bytes)>,
}

/// How a round ended: `shards` as they were in it.
pub(super) struct RoundOutcome {
    pub(super) shards: Vec<(SegmentId, Position)>,
    pub(super) ok: bool,
}

/// One page to publish.
pub(super) struct Publish {
    pub(super) page: PageId,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// How a publication ended.
pub(super) struct PublishOutcome {
    pub(super) page: PageId,
    pub(super) ok: bool,
}

/// The bytes of one segment that are not known to be cached, from the beginning of a chunk on.
struct Unshadowed {
    segment: SegmentId,
    chunk_bytes: u32,
    /// The beginning of the chunk that holds `cached`, or where the cached stream jumped to.
    start: Position,
    bytes: BytesMut,
    /// Bytes below this were acknowledged by the data cell.
    cached: Position,
}

impl Unshadowed {
    fn new(segment: SegmentId, chunk_bytes: u32) -> Self {
        Self { segment, chunk_bytes, start: Position(0), bytes: BytesMut::new(), cached: Position(0) }
    }

    fn end(&self) -> Position {
        Position(self.start.0 + self.bytes.len() as u64)
    }

    fn is_shadowed(&self) -> bool {
        self.cached == self.end()
    }

    /// Forgets the full chunks below `position`.
    fn advance_start(&mut self, position: Position) {
        let chunk = u64::from(self.chunk_bytes);
        let start = position.0 / chunk * chunk;
        if start > self.start.0 {
            let drop = usize::try_from(start - self.start.0).expect("no more than what is buffered");
            // A copy of what is left, at most a chunk in the usual case, gives the rest of the memory back.
            self.bytes = BytesMut::from(&self.bytes[drop..]);
            self.start = Position(start);
        }
    }
}

struct Shard {
    /// As the log last told it; `cached` is filled in when it is published.
    tail: Tail,
    /// Segments with bytes to shadow, oldest first; the last one is the open segment.
    segments: VecDeque<Unshadowed>,
    in_flight: bool,
    /// In the queue of shards that may have something to write.
    queued: bool,
    /// Not before this: a round failed.
    retry_at: Instant,
    /// When the last round of this shard ended.
    written_at: Instant,
}

impl Shard {
    fn new(tail: Tail) -> Self {
        Self {
            tail,
            segments: VecDeque::new(),
            in_flight: false,
            queued: false,
            retry_at: Instant::default(),
            written_at: Instant::default(),
        }
    }

    /// The tail as readers may see it.
    fn published(&self) -> Tail {
        let cached = match self.segments.back() {
            Some(open) if open.segment.number == self.tail.segment && open.segment.term == self.tail.term => {
                open.cached
            }
            _ => Position(0),
        };
        Tail { cached: cached.min(self.tail.durable), ..self.tail }
    }

    /// Puts the shard into `dirty`, once.
    fn queue(&mut self, id: ShardId, dirty: &mut VecDeque<ShardId>) {
        if !self.queued {
            self.queued = true;
            dirty.push_back(id);
        }
    }

    fn is_shadowed(&self) -> bool {
        self.segments.iter().all(Unshadowed::is_shadowed)
    }

    fn buffered_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes.len()).sum()
    }
}

#[derive(Default)]
struct Page {
    deleted: bool,
    locked: bool,
    in_flight: bool,
    /// Differs from what was last published, since then.
    dirty_since: Option<Instant>,
    /// `cached` of some shard moved: publish without delay.
    due: bool,
    retry_at: Instant,
    published_at: Instant,
}

/// All shards and pages of one writer.
pub(super) struct WriterState {
    shards: BTreeMap<ShardId, Shard>,
    pages: BTreeMap<PageId, Page>,
    /// Shards that may have something to write, in the order they asked.
    dirty: VecDeque<ShardId>,
    /// Pages that may have something to publish.
    dirty_pages: VecDeque<PageId>,
    rounds_in_flight: usize,
    /// When to look at every shard and page for something to refresh.
    refresh_at: Instant,
    /// The last time that was passed in; calls without a time of their own use it.
    now: Instant,
    stats: WriterStats,
}

impl WriterState {
    pub(super) fn new() -> Self {
        Self {
            shards: BTreeMap::new(),
            pages: BTreeMap::new(),
            dirty: VecDeque::new(),
            dirty_pages: VecDeque::new(),
            rounds_in_flight: 0,
            refresh_at: Instant::default(),
            now: Instant::default(),
            stats: WriterStats::default(),
        }
    }

    pub(super) fn cached(&self, shard: ShardId) -> Position {
        self.shards.get(&shard).map_or(Position(0), |shard| shard.published().cached)
    }

    pub(super) fn stats(&self) -> WriterStats {
        self.stats
    }

    /// Sets the time for the calls that have none of their own.
    pub(super) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    pub(super) fn open(&mut self, shard: ShardId, tail: Tail) {
        self.shards.insert(shard, Shard::new(tail));
        self.touch_page(PageId::of(shard), true);
    }

    pub(super) fn update(&mut self, shard: ShardId, tail: Tail) {
        let Some(known) = self.shards.get_mut(&shard) else { return self.open(shard, tail) };
        known.tail = tail;
        // A tail without bytes to wait for is worth telling at once.
        let due = known.is_shadowed();
        self.touch_page(PageId::of(shard), due);
    }

    pub(super) fn extend(&mut self, segment: SegmentId, from: Position, bytes: &Bytes, tail: Tail) {
        let shard = self.shards.entry(segment.shard).or_insert_with(|| Shard::new(tail));
        shard.tail = tail;
        let is_open = shard.segments.back().is_some_and(|open| open.segment == segment);
        if !is_open {
            shard.segments.push_back(Unshadowed::new(segment, tail.chunk_bytes));
        }
        let open = shard.segments.back_mut().expect("pushed if it was missing");
        assert_eq!(open.end(), from, "{segment}: durable bytes are handed on in order and without gaps");
        open.bytes.extend_from_slice(bytes);
        if shard.buffered_bytes() > SHADOW_BYTES_MAX {
            self.stats.jumps += 1;
            jump(shard);
        }
        shard.queue(segment.shard, &mut self.dirty);
        self.touch_page(PageId::of(segment.shard), false);
    }

    pub(super) fn delete_stream(&mut self, stream: StreamId) {
        self.shards.retain(|shard, _| shard.stream != stream);
        let pages: Vec<_> = self.pages.keys().filter(|page| page.stream == stream).copied().collect();
        for page in pages {
            self.pages.get_mut(&page).expect("just listed").deleted = true;
            self.touch_page(page, true);
        }
    }

    /// Pages whose locks have to be looked after.
    pub(super) fn pages(&self) -> Vec<PageId> {
        self.pages.keys().copied().collect()
    }

    /// Whether the page's lock is held; pages without it are neither published nor are their chunks written.
    pub(super) fn set_locked(&mut self, id: PageId, locked: bool) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        let gained = locked && !page.locked;
        page.locked = locked;
        if gained {
            // It may have been looked at, and passed over, while it was not locked.
            page.due = true;
            page.dirty_since.get_or_insert(self.now);
            self.dirty_pages.push_back(id);
            let range = ShardId { stream: id.stream, shard: ShardNumber(id.page * SHARDS_PER_PAGE) }
                ..ShardId { stream: id.stream, shard: ShardNumber((id.page + 1) * SHARDS_PER_PAGE) };
            for (shard, state) in self.shards.range_mut(range) {
                state.queue(*shard, &mut self.dirty);
            }
        }
    }

    /// The next batch of chunk writes, if one may be started.
    pub(super) fn next_round(&mut self, now: Instant) -> Option<Round> {
        self.now = now;
        self.refresh(now);
        if self.rounds_in_flight == SHADOW_ROUNDS_MAX {
            return None;
        }
        let mut round = Round { shards: Vec::new(), chunks: Vec::new() };
        let mut round_bytes = 0;
        for _ in 0..self.dirty.len() {
            let Some(id) = self.dirty.pop_front() else { break };
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            shard.queued = false;
            if shard.in_flight {
                continue; // it is looked at again when its round ends
            }
            if !self.pages.get(&PageId::of(id)).is_some_and(|page| page.locked) {
                continue; // and again when the lock is gained
            }
            if now < shard.retry_at {
                shard.queue(id, &mut self.dirty);
                continue;
            }
            // What is shadowed to its end and is not the open segment has nothing more to come.
            while shard.segments.len() > 1 && shard.segments[0].is_shadowed() {
                shard.segments.pop_front();
            }
            let stale = now.since(shard.written_at) >= CHUNK_REFRESH;
            let Some(segment) = shard.segments.front() else { continue };
            if segment.bytes.is_empty() || (segment.is_shadowed() && !stale) {
                continue;
            }
            let before = round.chunks.len();
            push_chunks(&mut round.chunks, segment);
            round_bytes += segment.bytes.len();
            self.stats.chunks_written += (round.chunks.len() - before) as u64;
            self.stats.chunk_bytes_written += segment.bytes.len() as u64;
            round.shards.push((segment.segment, segment.end()));
            shard.in_flight = true;
            if round_bytes >= SHADOW_ROUND_BYTES_MAX {
                break;
            }
        }
        if round.shards.is_empty() {
            return None;
        }
        self.rounds_in_flight += 1;
        Some(round)
    }

    /// Takes in how a round ended.
    pub(super) fn round_done(&mut self, now: Instant, outcome: RoundOutcome) {
        self.now = now;
        self.rounds_in_flight -= 1;
        if !outcome.ok {
            self.stats.rounds_failed += 1;
        }
        for (id, end) in outcome.shards {
            let Some(shard) = self.shards.get_mut(&id.shard) else { continue };
            shard.in_flight = false;
            shard.written_at = now;
            let Some(segment) = shard.segments.iter_mut().find(|segment| segment.segment == id) else {
                continue;
            };
            if outcome.ok {
                segment.cached = segment.cached.max(end);
                segment.advance_start(end);
            } else {
                shard.retry_at = now + RETRY_DELAY;
                self.stats.jumps += 1;
                jump(shard);
            }
            shard.queue(id.shard, &mut self.dirty);
            if outcome.ok {
                self.touch_page(PageId::of(id.shard), true);
            }
        }
    }

    /// The next page to publish, if one is due.
    pub(super) fn next_publish(&mut self, now: Instant) -> Option<Publish> {
        self.now = now;
        for _ in 0..self.dirty_pages.len() {
            let id = self.dirty_pages.pop_front()?;
            let Some(page) = self.pages.get_mut(&id) else { continue };
            let Some(since) = page.dirty_since else { continue };
            if page.in_flight || !page.locked {
                continue; // looked at again when the publication ends, or the lock is gained
            }
            if now < page.retry_at || !(page.due || now >= since + PUBLISH_DELAY) {
                self.dirty_pages.push_back(id);
                continue;
            }
            page.in_flight = true;
            page.due = false;
            page.dirty_since = None;
            let deleted = page.deleted;
            self.stats.pages_published += 1;
            let value = self.page_value(id, deleted);
            return Some(Publish { page: id, key: tail_page_key(id.stream, id.page), value });
        }
        None
    }

    /// Takes in how a publication ended.
    pub(super) fn publish_done(&mut self, now: Instant, outcome: PublishOutcome) {
        self.now = now;
        let Some(page) = self.pages.get_mut(&outcome.page) else { return };
        page.in_flight = false;
        page.published_at = now;
        if !outcome.ok {
            self.stats.publishes_failed += 1;
            page.retry_at = now + RETRY_DELAY;
            page.dirty_since.get_or_insert(now);
        }
        if page.dirty_since.is_some() {
            self.dirty_pages.push_back(outcome.page);
        } else if page.deleted {
            self.pages.remove(&outcome.page);
        }
    }

    /// When to look again although nothing happened.
    pub(super) fn next_deadline(&self, now: Instant) -> Instant {
        let retries = self.dirty.iter().filter_map(|id| {
            let shard = self.shards.get(id)?;
            (!shard.in_flight && now < shard.retry_at).then_some(shard.retry_at)
        });
        let publishes = self.dirty_pages.iter().filter_map(|id| {
            let page = self.pages.get(id)?;
            let since = page.dirty_since?;
            (!page.in_flight && page.locked).then(|| (since + PUBLISH_DELAY).max(page.retry_at))
        });
        retries.chain(publishes).min().unwrap_or(self.refresh_at).min(self.refresh_at)
    }

    /// Marks what would expire in the cells if nothing were written.
    fn refresh(&mut self, now: Instant) {
        if now < self.refresh_at {
            return;
        }
        self.refresh_at = now + PAGE_REFRESH;
        for (id, shard) in &mut self.shards {
            if now.since(shard.written_at) >= CHUNK_REFRESH {
                shard.queue(*id, &mut self.dirty);
            }
        }
        let stale: Vec<_> = self
            .pages
            .iter()
            .filter(|(_, page)| now.since(page.published_at) >= PAGE_REFRESH)
            .map(|(id, _)| *id)
            .collect();
        for id in stale {
            self.touch_page(id, true);
        }
    }

    fn touch_page(&mut self, id: PageId, due: bool) {
        let page = self.pages.entry(id).or_default();
        page.due |= due;
        if page.dirty_since.is_none() {
            page.dirty_since = Some(self.now);
            self.dirty_pages.push_back(id);
        }
    }

    fn page_value(&self, id: PageId, deleted: bool) -> Bytes {
        let first = id.page * SHARDS_PER_PAGE;
        let mut tails = Vec::new();
        if !deleted {
            let range = ShardId { stream: id.stream, shard: ShardNumber(first) }
                ..ShardId { stream: id.stream, shard: ShardNumber(first + SHARDS_PER_PAGE) };
            for (shard, state) in self.shards.range(range) {
                let place = (shard.shard.0 - first) as usize;
                tails.resize(place, None);
                tails.push(Some(state.published()));
            }
        }
        TailPage { stream: id.stream, page: id.page, deleted, tails }.encode()
    }
}

/// Gives up what is buffered, but for the chunk that the durable stream is in.
fn jump(shard: &mut Shard) {
    let Some(mut open) = shard.segments.pop_back() else { return };
    shard.segments.clear();
    open.advance_start(open.end());
    shard.segments.push_back(open);
}

/// The chunks that cover a segment's unshadowed bytes, each from its beginning.
fn push_chunks(chunks: &mut Vec<(Bytes, Bytes)>, segment: &Unshadowed) {
    let chunk_bytes = segment.chunk_bytes as usize;
    let first = segment.start.0 / u64::from(segment.chunk_bytes);
    // One copy for the whole round; the chunks are slices of it.
    let all = Bytes::copy_from_slice(&segment.bytes);
    for (number, start) in (first..).zip((0..all.len()).step_by(chunk_bytes)) {
        let end = (start + chunk_bytes).min(all.len());
        let key = ChunkKey { segment: segment.segment, chunk_bytes: segment.chunk_bytes, chunk: number };
        chunks.push((key.to_bytes(), all.slice(start..end)));
    }
}
