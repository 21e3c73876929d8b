//! What to write to the cells next, as a state machine without I/O.
//!
//! A shard's bytes pass through these stages, each a position in its segment:
//!
//! ```text
//!   cached            in flight              end = durable
//!     |  one round of chunk writes  |  waiting  |
//!     ^ published when acknowledged             ^ published after publish_delay if cached lags
//! ```
//!
//! A shard, and a page, is in its schedule while it wants something and may have it: whatever changes either
//! ends in `reschedule`, so that nothing is forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::{Instant, Times};
use tailwater_format::{
    DurableTo, Position, SHARDS_PER_PAGE, SegmentId, ShardId, ShardNumber, StreamId, Tail, TailPage,
    tail_page_key,
};

use super::config::WriterConfig;
use super::schedule::Schedule;
use super::shadow::Shadow;
use crate::limits::{SHADOW_ROUND_BYTES_MAX, SHADOW_ROUND_PARTS_MAX, SHADOW_ROUNDS_MAX};
use crate::rate::RateLimit;

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
    /// Bytes of segments from before the start that were taken to be written to the data cell again.
    pub refilled_bytes: u64,
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

    /// The page's shards.
    fn shards(self) -> std::ops::RangeInclusive<ShardId> {
        let first = self.page * SHARDS_PER_PAGE;
        let shard = |number| ShardId { stream: self.stream, shard: ShardNumber(number) };
        shard(first)..=shard(first + (SHARDS_PER_PAGE - 1))
    }
}

/// One shard's part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) segment: SegmentId,
    /// Everything below this is in the cell if the part succeeds.
    pub(super) end: Position,
    /// How many of the round's chunks are its.
    pub(super) chunks: usize,
}

/// One batch of chunk writes: the chunks of its parts, one after the other.
pub(super) struct WriteRound {
    pub(super) parts: Vec<Part>,
    pub(super) chunks: Vec<(Bytes, Bytes)>,
}

/// One page to publish.
pub(super) struct Publish {
    pub(super) page: PageId,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// An entry that readers have yet to be told of.
#[derive(Clone, Copy, Debug)]
struct Unpublished {
    segment: SegmentId,
    end: Position,
    /// When the first of its appends was accepted.
    accepted: Instant,
}

struct Shard {
    /// As the log last told it; `cached` is filled in when it is published.
    tail: Tail,
    /// Segments with bytes to shadow, oldest first; the last one is the open segment.
    segments: VecDeque<Shadow>,
    /// The oldest entry that no publication has. Those behind it are not kept: they wait for less time.
    unpublished: Option<Unpublished>,
    in_flight: bool,
    /// There may be something to write since then.
    wanted: Option<Instant>,
    /// Not before this: a round failed.
    retry_at: Instant,
    /// When the last round of this shard ended.
    written_at: Instant,
    /// Where it is in the schedule.
    scheduled: Option<Instant>,
}

impl Shard {
    fn new(tail: Tail) -> Self {
        Self {
            tail,
            segments: VecDeque::new(),
            unpublished: None,
            in_flight: false,
            wanted: None,
            retry_at: Instant::default(),
            written_at: Instant::default(),
            scheduled: None,
        }
    }

    /// The log tells of another tail of `id`.
    fn take(&mut self, id: ShardId, tail: Tail) {
        let named = self.segments.iter_mut().find(|shadow| shadow.segment == tail.segment_id(id));
        // What a copy has ahead is not lost before its segment is sealed.
        let is_cut = |shadow: &&mut Shadow| {
            tail.durable < shadow.durable().get() && (tail.sealed || !shadow.is_ahead())
        };
        if let Some(shadow) = named.filter(is_cut) {
            shadow.cut(tail.durable);
        }
        self.tail = tail;
    }

    /// The tail as readers may see it.
    ///
    /// # Panics
    /// If more is in the cell than is durable, but for the open segment of a copy that runs ahead.
    fn published(&self) -> Tail {
        let of_tail =
            |open: &&Shadow| (open.segment.number, open.segment.term) == (self.tail.segment, self.tail.term);
        let open = self.segments.back().filter(of_tail);
        let cached = open.map_or(Position(0), Shadow::cached);
        let may_lead = open.is_some_and(Shadow::is_ahead) && !self.tail.sealed;
        assert!(may_lead || cached <= self.tail.durable, "{cached} is cached of {:?}", self.tail);
        let published = Tail { cached, ..self.tail };
        debug_assert!(published.is_possible(), "{published:?}");
        published
    }

    /// The oldest entry without a publication, if one of `published` tells readers that the cell has it, or that they
    /// have to read on from the durable layer.
    fn take_published(&mut self, published: &Tail) -> Option<Unpublished> {
        let entry = self.unpublished?;
        let Unpublished { segment, end, .. } = entry;
        let is_replaced = segment.term != published.term && published.segment <= segment.number;
        let is_cut = published.sealed
            && (published.segment, published.term) == (segment.number, segment.term)
            && published.durable < end;
        if is_replaced || is_cut {
            // It was lost: with durability `interval`, or in a copy that was ahead.
            self.unpublished = None;
            return None;
        }
        let is_told = segment.number < published.segment || end <= published.cached;
        is_told.then(|| self.unpublished.take()).flatten()
    }

    fn is_shadowed(&self) -> bool {
        self.segments.iter().all(Shadow::is_shadowed)
    }

    fn buffered_bytes(&self) -> usize {
        self.segments.iter().map(Shadow::len).sum()
    }

    /// Gives up what is buffered, but for the chunk that the durable stream is in; whether that was anything.
    fn jump(&mut self) -> bool {
        let mut jumped = false;
        while self.segments.len() > 1 {
            jumped |= self.segments.pop_front().is_some_and(|old| !old.is_shadowed());
        }
        jumped | self.segments.back_mut().is_some_and(Shadow::jump)
    }
}

#[derive(Default)]
struct LengthPage {
    deleted: bool,
    locked: bool,
    in_flight: bool,
    /// Differs from what was last published, since then.
    dirty_since: Option<Instant>,
    /// `cached` of some shard moved: publish without delay.
    due: bool,
    retry_at: Instant,
    published_at: Instant,
    /// Entries that the publication under way tells of.
    told: Vec<Unpublished>,
    /// Where it is in the schedule.
    scheduled: Option<Instant>,
}

/// All shards and pages of one writer.
pub(super) struct WriterState {
    config: WriterConfig,
    shards: BTreeMap<ShardId, Shard>,
    pages: BTreeMap<PageId, LengthPage>,
    shard_times: Schedule<ShardId>,
    page_times: Schedule<PageId>,
    rounds_in_flight: usize,
    /// Parts that may be written: [`WriterConfig::shadow_writes_per_s`].
    pace: RateLimit,
    /// No round before this: the last ones had too many parts.
    paced_until: Instant,
    /// Bytes that wait in all shards.
    buffered_bytes: usize,
    /// When to look at every shard and page for something to refresh.
    refresh_at: Instant,
    /// A page is there that was not when this was last asked.
    new_page: bool,
    stats: WriterStats,
    publish_times: Arc<Times>,
}

impl WriterState {
    pub(super) fn new(config: WriterConfig) -> Self {
        Self {
            config,
            shards: BTreeMap::new(),
            pages: BTreeMap::new(),
            shard_times: Schedule::new(),
            page_times: Schedule::new(),
            rounds_in_flight: 0,
            pace: RateLimit::new(config.shadow_writes_per_s, Instant::default()),
            paced_until: Instant::default(),
            buffered_bytes: 0,
            refresh_at: Instant::default(),
            new_page: false,
            stats: WriterStats::default(),
            publish_times: Arc::default(),
        }
    }

    /// How long entries took from when they were accepted until readers were told of them: of each shard's entries that
    /// one publication tells of first, the oldest one.
    pub(super) fn publish_times(&self) -> Arc<Times> {
        Arc::clone(&self.publish_times)
    }

    pub(super) fn stats(&self) -> WriterStats {
        self.stats
    }

    pub(super) fn cached(&self, shard: ShardId) -> Position {
        self.shards.get(&shard).map_or(Position(0), |shard| shard.published().cached)
    }

    pub(super) fn open(&mut self, now: Instant, id: ShardId, tail: Tail) {
        let in_flight = self.remove_shard(id).is_some_and(|old| old.in_flight);
        self.shards.insert(id, Shard { in_flight, ..Shard::new(tail) });
        self.touch_page(now, PageId::of(id), true);
    }

    pub(super) fn update(&mut self, now: Instant, id: ShardId, tail: Tail) {
        let Some(shard) = self.shards.get_mut(&id) else { return self.open(now, id, tail) };
        assert_eq!(shard.tail.chunk_bytes, tail.chunk_bytes, "{id}: the size of chunks is for ever");
        shard.take(id, tail);
        // A tail without bytes to wait for is worth telling at once.
        let due = shard.is_shadowed();
        self.touch_page(now, PageId::of(id), due);
    }

    pub(super) fn extend(
        &mut self,
        now: Instant,
        segment: SegmentId,
        bytes: &Bytes,
        durable: DurableTo<Position>,
        tail: Tail,
        accepted: Instant,
    ) {
        let id = segment.shard;
        assert_eq!(tail.segment_id(id), segment, "the tail is that of the bytes");
        assert_eq!(tail.durable, durable.get(), "{segment}: the tail ends with the bytes");
        if !tail.cells {
            return self.update(now, id, tail);
        }
        let shard = self.shards.entry(id).or_insert_with(|| Shard::new(tail));
        assert_eq!(shard.tail.chunk_bytes, tail.chunk_bytes, "{id}: the size of chunks is for ever");
        shard.tail = tail;
        if shard.segments.back().is_none_or(|open| open.segment != segment) {
            shard.segments.push_back(Shadow::new(segment, tail.chunk_bytes));
        }
        shard.segments.back_mut().expect("pushed if it was missing").extend(bytes, durable);
        self.extended(now, segment, bytes.len(), tail.durable, accepted);
    }

    pub(super) fn extend_ahead(
        &mut self,
        now: Instant,
        segment: SegmentId,
        bytes: &Bytes,
        source_durable: DurableTo<Position>,
        accepted: Instant,
    ) {
        let shard = self.shards.get_mut(&segment.shard).expect("readers see its segment");
        if !shard.tail.cells {
            return; // Readers are told when it is durable here.
        }
        assert_eq!(shard.tail.segment_id(segment.shard), segment, "it is the segment that readers see");
        assert!(!shard.tail.sealed, "{segment}: what is sealed does not grow");
        let open = shard.segments.back_mut().filter(|open| open.segment == segment);
        open.expect("its beginning was handed on").extend_ahead(bytes, source_durable);
        self.extended(now, segment, bytes.len(), source_durable.get(), accepted);
    }

    /// Bytes that came ahead are durable: nobody waits to be told of that, but readers of a stream without cells.
    pub(super) fn catch_up(&mut self, now: Instant, id: ShardId, tail: Tail) {
        let Some(shard) = self.shards.get_mut(&id) else { return self.open(now, id, tail) };
        assert_eq!(
            shard.tail.segment_id(id),
            tail.segment_id(id),
            "what came ahead is of the segment that readers see"
        );
        shard.tail = tail;
        self.touch_page(now, PageId::of(id), !tail.cells);
    }

    fn extended(&mut self, now: Instant, segment: SegmentId, bytes: usize, end: Position, accepted: Instant) {
        let id = segment.shard;
        let shard = self.shards.get_mut(&id).expect("it was extended");
        shard.unpublished.get_or_insert(Unpublished { segment, end, accepted });
        self.buffered_bytes += bytes;
        let too_much = shard.buffered_bytes() > self.config.shadow_bytes_max
            || self.buffered_bytes > self.config.shadow_bytes_total_max;
        if too_much {
            let before = shard.buffered_bytes();
            self.stats.jumps += u64::from(shard.jump());
            self.buffered_bytes -= before - shard.buffered_bytes();
        }
        shard.wanted.get_or_insert(now);
        self.touch_page(now, PageId::of(id), false);
        self.reschedule(id);
    }

    /// Takes in the end of a segment that was there before this writer: `pieces` reach from `from`, where a chunk
    /// begins, to the segment's end. Whether it is wanted: the segment is the shard's newest one or the one before,
    /// this writer had none of it yet, and there is memory for it.
    pub(super) fn refill(
        &mut self,
        now: Instant,
        segment: SegmentId,
        from: Position,
        pieces: &[Bytes],
    ) -> bool {
        let id = segment.shard;
        let Some(shard) = self.shards.get_mut(&id) else { return false };
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        let named = (segment, Position(from.0 + bytes as u64));
        let tail = &shard.tail;
        let is_newest = tail.sealed && (tail.segment_id(id), tail.durable) == named;
        let is_known = is_newest || tail.previous_segment_id(id) == Some(named);
        let is_first = shard.segments.front().is_none_or(|first| segment.number < first.segment.number);
        let fits = shard.buffered_bytes() + bytes <= self.config.shadow_bytes_max
            && self.buffered_bytes + bytes <= self.config.shadow_bytes_total_max;
        if bytes == 0 || !tail.cells || !is_known || !is_first || !fits {
            return false;
        }
        shard.segments.push_front(Shadow::complete(segment, tail.chunk_bytes, from, pieces));
        self.buffered_bytes += bytes;
        self.stats.refilled_bytes += bytes as u64;
        shard.wanted.get_or_insert(now);
        self.reschedule(id);
        true
    }

    pub(super) fn delete_stream(&mut self, now: Instant, stream: StreamId) {
        let first = ShardId { stream, shard: ShardNumber(0) };
        let shards: Vec<_> =
            self.shards.range(first..).map(|(id, _)| *id).take_while(|id| id.stream == stream).collect();
        for id in shards {
            self.remove_shard(id);
        }
        let pages: Vec<_> = self.pages.keys().filter(|page| page.stream == stream).copied().collect();
        for id in pages {
            self.pages.get_mut(&id).expect("just listed").deleted = true;
            self.touch_page(now, id, true);
        }
    }

    /// Pages whose locks have to be looked after.
    pub(super) fn pages(&self) -> Vec<PageId> {
        self.pages.keys().copied().collect()
    }

    /// Whether there are pages that were not there at the last call.
    pub(super) fn take_new_page(&mut self) -> bool {
        std::mem::take(&mut self.new_page)
    }

    /// Whether the page's lock is held; pages without it are neither published nor are their chunks written.
    pub(super) fn set_locked(&mut self, now: Instant, id: PageId, locked: bool) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        if page.locked == locked {
            return;
        }
        page.locked = locked;
        if locked {
            self.touch_page(now, id, true);
        } else {
            self.reschedule_page(id);
        }
        let shards: Vec<_> = self.shards.range(id.shards()).map(|(id, _)| *id).collect();
        for id in shards {
            if locked {
                self.shards.get_mut(&id).expect("just listed").wanted.get_or_insert(now);
            }
            self.reschedule(id);
        }
    }

    /// The next batch of chunk writes, if one may be started.
    pub(super) fn next_round(&mut self, now: Instant) -> Option<WriteRound> {
        self.refresh(now);
        if self.rounds_in_flight == SHADOW_ROUNDS_MAX || self.shard_times.due(now).is_none() {
            return None;
        }
        if let Err(wait) = self.pace.is_ready(now) {
            self.paced_until = now + wait;
            return None;
        }
        let mut round = WriteRound { parts: Vec::new(), chunks: Vec::new() };
        let mut round_bytes = 0;
        while round_bytes < SHADOW_ROUND_BYTES_MAX && round.parts.len() < SHADOW_ROUND_PARTS_MAX {
            let Some(id) = self.shard_times.due(now) else { break };
            let shard = self.shards.get_mut(&id).expect("what is scheduled is there");
            assert!(!shard.in_flight, "{id}: one round of a shard at a time");
            shard.wanted = None;
            // What is shadowed to its end, or was jumped over to its end, and is not the open segment has nothing
            // more to come.
            let is_over = |old: &Shadow| old.len() == 0 || old.is_shadowed();
            while shard.segments.len() > 1 && is_over(&shard.segments[0]) {
                let old = shard.segments.pop_front().expect("there is more than one");
                self.buffered_bytes -= old.len();
            }
            if let Some(shadow) = shard.segments.front_mut().filter(|shadow| shadow.len() > 0) {
                let (before, bytes) = (round.chunks.len(), shadow.len());
                shadow.take_chunks(&mut round.chunks);
                let chunks = round.chunks.len() - before;
                self.buffered_bytes -= bytes - shadow.len();
                round.parts.push(Part { segment: shadow.segment, end: shadow.end(), chunks });
                shard.in_flight = true;
                round_bytes += bytes;
                self.stats.chunks_written += chunks as u64;
                self.stats.chunk_bytes_written += bytes as u64;
            }
            self.reschedule(id);
        }
        if round.parts.is_empty() {
            return None;
        }
        let chunks: usize = round.parts.iter().map(|part| part.chunks).sum();
        assert_eq!(chunks, round.chunks.len(), "every chunk of a round is of a part");
        assert!(round.parts.len() <= SHADOW_ROUND_PARTS_MAX, "a round has a bound");
        self.pace.charge(round.parts.len() as u64);
        self.rounds_in_flight += 1;
        Some(round)
    }

    /// Takes in how each part of a round ended.
    pub(super) fn round_done(&mut self, now: Instant, parts: &[(Part, bool)]) {
        assert!(self.rounds_in_flight > 0, "a round that ends was begun");
        self.rounds_in_flight -= 1;
        self.stats.rounds_failed += u64::from(parts.iter().any(|(_, ok)| !ok));
        for &(part, ok) in parts {
            let id = part.segment.shard;
            // Deleted meanwhile.
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            shard.in_flight = false;
            shard.written_at = now;
            if ok {
                // It is not there if the cached stream jumped meanwhile.
                let shadow = shard.segments.iter_mut().find(|shadow| shadow.segment == part.segment);
                if let Some(shadow) = shadow {
                    shadow.acknowledge(part.end);
                }
            } else {
                let before = shard.buffered_bytes();
                // Full chunks of the part are given up already.
                let gave_up = part.chunks > 1 || part.end.0.is_multiple_of(u64::from(shard.tail.chunk_bytes));
                self.stats.jumps += u64::from(shard.jump() | gave_up);
                self.buffered_bytes -= before - shard.buffered_bytes();
                shard.retry_at = now + self.config.retry_delay;
            }
            if !shard.is_shadowed() {
                shard.wanted.get_or_insert(now);
            }
            self.reschedule(id);
            if ok {
                self.touch_page(now, PageId::of(id), true);
            }
        }
    }

    /// The next page to publish, if one is due.
    pub(super) fn next_publish(&mut self, now: Instant) -> Option<Publish> {
        let id = self.page_times.due(now)?;
        let page = self.pages.get_mut(&id).expect("what is scheduled is there");
        assert!(page.locked && !page.in_flight, "a page is published by who has its lock, once at a time");
        page.in_flight = true;
        page.due = false;
        page.dirty_since = None;
        let deleted = page.deleted;
        self.reschedule_page(id);
        self.stats.pages_published += 1;
        let (value, told) = self.page_value(id, deleted);
        self.pages.get_mut(&id).expect("it was there before").told = told;
        Some(Publish { page: id, key: tail_page_key(id.stream, id.page), value })
    }

    /// Takes in how a publication ended.
    pub(super) fn publish_done(&mut self, now: Instant, id: PageId, ok: bool) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        assert!(page.in_flight, "a publication that ends was begun");
        page.in_flight = false;
        page.published_at = now;
        for entry in page.told.drain(..) {
            if ok {
                self.publish_times.add(now.since(entry.accepted));
            } else if let Some(shard) = self.shards.get_mut(&entry.segment.shard) {
                // It is the older one.
                shard.unpublished = Some(entry);
            }
        }
        if !ok {
            self.stats.publishes_failed += 1;
            page.retry_at = now + self.config.retry_delay;
            page.dirty_since.get_or_insert(now);
        }
        if page.deleted && page.dirty_since.is_none() {
            self.pages.remove(&id);
        } else {
            self.reschedule_page(id);
        }
    }

    /// When to look again although nothing happened.
    pub(super) fn next_deadline(&self) -> Instant {
        let rounds = self.shard_times.next().filter(|_| self.rounds_in_flight < SHADOW_ROUNDS_MAX);
        let rounds = rounds.map(|at| at.max(self.paced_until));
        let times = [Some(self.refresh_at), rounds, self.page_times.next()];
        times.into_iter().flatten().min().expect("one is always there")
    }

    /// Marks what would expire in the cells if nothing were written.
    fn refresh(&mut self, now: Instant) {
        if now < self.refresh_at {
            return;
        }
        // Twice as often as need be, so that nothing waits for longer than it may.
        let every = self.config.page_refresh.min(self.config.chunk_refresh) / 2;
        self.refresh_at = now + every;
        let mut shards = Vec::new();
        for (id, shard) in &mut self.shards {
            if now.since(shard.written_at) + every >= self.config.chunk_refresh {
                shard.wanted.get_or_insert(now);
                shards.push(*id);
            }
        }
        for id in shards {
            self.reschedule(id);
        }
        let is_stale = |page: &LengthPage| now.since(page.published_at) + every >= self.config.page_refresh;
        let stale: Vec<_> = self.pages.iter().filter(|(_, page)| is_stale(page)).map(|(id, _)| *id).collect();
        for id in stale {
            self.touch_page(now, id, true);
        }
    }

    fn remove_shard(&mut self, id: ShardId) -> Option<Shard> {
        let mut shard = self.shards.remove(&id)?;
        self.buffered_bytes -= shard.buffered_bytes();
        self.shard_times.set(id, &mut shard.scheduled, None);
        Some(shard)
    }

    fn touch_page(&mut self, now: Instant, id: PageId, due: bool) {
        let new_page = &mut self.new_page;
        let page = self.pages.entry(id).or_insert_with(|| {
            *new_page = true;
            LengthPage::default()
        });
        page.due |= due;
        page.dirty_since.get_or_insert(now);
        self.reschedule_page(id);
    }

    fn reschedule(&mut self, id: ShardId) {
        let locked = self.pages.get(&PageId::of(id)).is_some_and(|page| page.locked);
        let Some(shard) = self.shards.get_mut(&id) else { return };
        let wanted = shard.wanted.filter(|_| locked && !shard.in_flight).map(|at| at.max(shard.retry_at));
        self.shard_times.set(id, &mut shard.scheduled, wanted);
    }

    fn reschedule_page(&mut self, id: PageId) {
        let Some(page) = self.pages.get_mut(&id) else { return };
        let since = page.dirty_since.filter(|_| page.locked && !page.in_flight);
        let delay = if page.due { Duration::ZERO } else { self.config.publish_delay };
        let wanted = since.map(|since| (since + delay).max(page.retry_at));
        self.page_times.set(id, &mut page.scheduled, wanted);
    }

    /// The page's value, and what it is the first to tell of.
    fn page_value(&mut self, id: PageId, deleted: bool) -> (Bytes, Vec<Unpublished>) {
        let first = id.page * SHARDS_PER_PAGE;
        let (mut tails, mut told) = (Vec::new(), Vec::new());
        if !deleted {
            for (shard, state) in self.shards.range_mut(id.shards()) {
                let place = (shard.shard.0 - first) as usize;
                assert!(
                    place < SHARDS_PER_PAGE as usize && place >= tails.len(),
                    "{shard}: in the order of the page"
                );
                tails.resize(place, None);
                let published = state.published();
                told.extend(state.take_published(&published));
                tails.push(Some(published));
            }
        }
        (TailPage { stream: id.stream, page: id.page, deleted, tails }.encode(), told)
    }
}

#[cfg(test)]
mod tests;
