//! One shard as one process reads it: which bytes to fetch next, and a window of what was fetched.
//!
//! A *shared* feed is what all of a process's consumers near the tail read from. It begins where the first of them is,
//! and drops its oldest blocks when the window is full, so a slow consumer holds nobody back. If most of them would
//! fall out of the window, it is the process that is slow, and the feed waits for them for a while: were each to go on
//! by itself, the process would be slower still. A consumer that begins, or falls, too far behind gets a *private* feed
//! from where it is, which does not read further than the consumer has room for, and is given up when the consumer is
//! in the shared window again. What the only cursor of a process has taken of a shared feed is dropped at once: its
//! memory is used again while it is in the core's cache.
//!
//! This is the state machine; [`crate::reader`] fetches what [`Feed::plan`] asks for.
//!
//! What holds:
//! - Blocks of a feed are consecutive: no entry is left out and none comes twice, but for those that retention
//!   removed ([`Feed::log_start`] is then behind them) and those that a later term replaced (see
//!   [`Feed::begin_again`]).
//! - A feed never goes back, whatever lengths are published.
//! - A segment is left only at its sealed length, and only for the next one.
//! - Over time no more bytes are read than the process's limits allow, whichever layer they come from. Its backlogs
//!   together shrink no faster than their own limit says, in small reads, so that catching up leaves the processor and
//!   the disk to who is not behind; what is written meanwhile does not count (see [`crate::budget`]).
//! - After every fetch there is either progress, another layer to ask, a pause, or an error for the readers:
//!   nothing that a cell or a source answers makes a feed spin.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, Tail, Term};

use crate::block::{Block, Cutter};
use crate::budget::{RateBudget, RateCharge, RateLine, WrittenMeanwhile};
use crate::fetch::ByteRange;
use crate::layer::DelayedDurable;
use crate::limits::{
    CATCH_UP_STEP_BYTES, FETCH_BYTES_MAX, FETCH_CHUNKS_MAX, FETCH_RETRY, PARKED_MAX, POSITION_END,
    READERS_WAIT_MAX, SEGMENTS_KEPT_MAX, WINDOW_BYTES,
};
use crate::window::{UndecodedMessage, WindowMessage, WindowMessageError};
use crate::{SourceError, SourceSegment};

/// A place in a shard: before the byte at `position` of segment `segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The segment.
    pub segment: SegmentNumber,
    /// Where an entry begins, or the segment ends.
    pub position: Position,
}

/// Why a shard can't be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedReadError {
    /// The stream was deleted. Final.
    #[error("the stream was deleted")]
    StreamDeleted,
    /// What should come next was removed: go on at `log_start`.
    #[error("records before offset {log_start} were removed by retention or truncation")]
    Truncated {
        /// The first offset that is still there.
        log_start: Offset,
    },
    /// The durable layer holds something else than an entry that continues what was read. Final.
    #[error("{segment} at {position}: {why}")]
    Corrupt {
        /// Where.
        segment: SegmentId,
        /// Where.
        position: Position,
        /// What is wrong.
        why: String,
    },
    /// The durable layer does not give what should come next, and says that trying again does not help. Final.
    #[error("{0}")]
    Refused(String),
}

/// What a feed wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FeedPlan {
    /// Nothing, until something is published or `at`.
    Wait { at: Option<Instant> },
    /// Bytes; from the durable layer alone if `durable`.
    Fetch { range: ByteRange, durable: bool },
    /// The shard's segments from this one on.
    Segments { from: SegmentNumber },
    /// To be planned again when its place in this line comes.
    Line(RateLine),
}

/// Bounds of a feed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedConfig {
    pub(crate) window_bytes: usize,
    pub(crate) delay_max: Duration,
    /// How fast all backlogs of the process shrink.
    pub(crate) catch_up_bytes_per_s: u64,
    /// Shared feeds drop old blocks; private ones wait for their reader.
    pub(crate) shared: bool,
}

/// What the window has for a reader.
#[derive(Debug)]
pub(crate) enum Look {
    /// The block with this number.
    Block(u64, Arc<Block>),
    /// Nothing yet: the reader is at the front.
    Front,
    /// The reader's place is not in the window, and will not be.
    Behind,
    /// It is over.
    Failed(FeedReadError),
}

/// What an answer brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Readers have something to see.
    pub(crate) announce: bool,
    /// Bytes of entries that became readable.
    pub(crate) entry_bytes: u64,
}

/// What the window of another process had said, and was waited with until now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unparked {
    /// A block that was taken.
    Block(News),
    /// How far the shard reaches.
    Tail(Tail),
}

/// What is heard of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knowledge {
    tail: Option<Tail>,
    log_start: Offset,
    silent: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Feed {
    shard: ShardId,
    config: FeedConfig,
    tail: Option<Tail>,
    log_start: Offset,
    /// Nothing is heard from the metadata cell: there is no use in waiting for the cached layer.
    silent: bool,
    /// Where the window of another process is in this shard, as far as it told: what comes next it brings from there.
    fed_from: Option<(SegmentId, Position)>,
    /// It brought the end of the segment before the one of `place`, so it brings the beginning of this one.
    is_fed_on: bool,
    /// The window's block that comes next, where something before it is still being read, or readers have yet to take
    /// what it would push out.
    waiting: Option<Block>,
    /// What the window said behind it. It lies where the window wrote it, so that a process that comes late to it has
    /// only to read what it missed before, and not what others read by then.
    parked: VecDeque<UndecodedMessage>,
    layer: DelayedDurable,
    written: WrittenMeanwhile,
    /// The entry to read next begins here; `None` in a shared feed that has not begun.
    place: Option<Place>,
    /// The term of what was read last.
    read_term: Option<Term>,
    /// Offset after the last record that was read, or before which nothing is wanted.
    read_to: Option<Offset>,
    /// Of the segment of `place`, once its term is known.
    cutter: Option<Cutter>,
    /// Sealed segments that the tail does not tell of: term and length.
    sealed: BTreeMap<SegmentNumber, (Term, Position)>,
    /// Where the window begins: entries from here on are in it, or are going to be.
    began: Place,
    window: VecDeque<Arc<Block>>,
    window_bytes: usize,
    /// Number of the window's first block.
    first: u64,
    /// Where its readers are.
    readers: Readers,
    /// Since when a shared feed waits for its readers, and with how many bytes to come.
    held_since: Option<(Instant, u64)>,
    /// A fetch or listing is under way.
    busy: bool,
    /// What the fetch under way cost.
    charged: RateCharge,
    /// What came from a cell made no sense: take the next entry from the durable layer.
    distrust: bool,
    /// The beginning of an entry that is there came from the durable layer alone.
    rest_is_durable: bool,
    /// The durable layer does not have what should come next: ask it for the segments that are left.
    relist: bool,
    retry_at: Option<Instant>,
    failures: u32,
    error: Option<FeedReadError>,
}

const NOWHERE: Place = Place { segment: SegmentNumber(0), position: Position(0) };

/// Construction, and what is heard of the file.
impl Feed {
    /// A feed for all of a process; it begins with the first reader near the tail.
    pub(crate) fn shared(shard: ShardId, config: FeedConfig) -> Self {
        Self {
            shard,
            config,
            tail: None,
            log_start: Offset(0),
            silent: false,
            fed_from: None,
            is_fed_on: false,
            waiting: None,
            parked: VecDeque::new(),
            layer: DelayedDurable::new(config.delay_max),
            written: WrittenMeanwhile::new(config.catch_up_bytes_per_s),
            place: None,
            read_term: None,
            read_to: None,
            cutter: None,
            sealed: BTreeMap::new(),
            began: NOWHERE,
            window: VecDeque::new(),
            window_bytes: 0,
            first: 0,
            readers: Readers::default(),
            held_since: None,
            busy: false,
            charged: RateCharge::default(),
            distrust: false,
            rest_is_durable: false,
            relist: false,
            retry_at: None,
            failures: 0,
            error: None,
        }
    }

    /// A feed for one reader at `place`, who has read bytes of that segment in `read_term`, if any.
    pub(crate) fn private(shard: ShardId, config: FeedConfig, place: Place, read_term: Option<Term>) -> Self {
        Self { place: Some(place), began: place, read_term, ..Self::shared(shard, config) }
    }

    /// The same feed for one who wants nothing before `offset`.
    pub(crate) fn starting_at(mut self, offset: Offset) -> Self {
        self.read_to = Some(offset);
        self
    }

    /// What is heard of the file, for another feed of it.
    pub(crate) fn knowledge(&self) -> Knowledge {
        Knowledge { tail: self.tail, log_start: self.log_start, silent: self.silent }
    }

    /// Takes in what another feed of the file has heard.
    pub(crate) fn learn(&mut self, known: Knowledge) {
        if let Some(tail) = known.tail {
            self.observe(tail);
        }
        self.observe_log_start(known.log_start);
        self.silent = known.silent;
    }

    pub(crate) fn tail(&self) -> Option<Tail> {
        self.tail
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.place
    }

    /// First offset that was not removed, as far as is known.
    pub(crate) fn log_start(&self) -> Offset {
        self.log_start
    }

    /// Whether a window's worth of bytes at most lies between `place` and the tail.
    fn is_near(&self, place: Place) -> bool {
        self.rest(place).is_some_and(|rest| rest <= self.config.window_bytes as u64)
    }

    /// Whether a node makes a durable read from `place` on wait for its turn among those that catch up: that does not
    /// depend on this feed's window.
    pub(crate) fn is_far(&self, place: Place) -> bool {
        self.rest(place).is_none_or(|rest| rest > WINDOW_BYTES as u64)
    }

    /// Bytes between `place` and the tail, as far as the tail tells of them.
    fn rest(&self, place: Place) -> Option<u64> {
        self.tail?.rest(place.segment, place.position)
    }

    /// Begins to read at `place`, where an entry begins, if that is near the tail; whether it did. A feed that is
    /// reading stays where it is.
    pub(crate) fn begin_near(&mut self, place: Place) -> bool {
        if self.place.is_some() || !self.is_near(place) {
            return false;
        }
        self.place = Some(place);
        self.began = place;
        // What was written before is a backlog.
        self.written.clear();
        true
    }

    /// Takes in a published or recorded tail; whether it says anything that was not known. What is older than
    /// what is known, or impossible, changes nothing.
    pub(crate) fn observe(&mut self, seen: Tail) -> bool {
        let end = seen.cached.max(seen.durable);
        if !seen.is_possible() || end.0 >= POSITION_END || seen.segment.0 >= POSITION_END {
            return false;
        }
        self.observe_log_start(seen.log_start);
        let Some(known) = &mut self.tail else {
            // A cell that is so far behind when a reader comes is not on its way there: its node was started again, or
            // took the shard over, and what lies before is only in the file.
            if seen.durable.0.saturating_sub(seen.cached.0) >= FETCH_BYTES_MAX {
                self.layer.give_up(seen.durable);
            }
            self.tail = Some(seen);
            return true;
        };
        // A term grows with every change of owner, so a later one decides whatever the number.
        match (seen.term, seen.segment).cmp(&(known.term, known.segment)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => {
                if known.sealed {
                    self.sealed.insert(known.segment, (known.term, known.durable));
                }
                // How the last segment grew is known if it is the previous one; of more of them time has to pay.
                let last = seen.previous.filter(|(number, ..)| *number == known.segment);
                let grown = last.map_or(0, |(.., length)| length.0.saturating_sub(known.durable.0));
                self.written.earn(grown.saturating_add(end.0));
                *known = seen;
                // Positions of another segment: what was seen of the last one says nothing.
                self.layer = DelayedDurable::new(self.config.delay_max);
                true
            }
            std::cmp::Ordering::Equal => {
                let before = *known;
                let reach = |tail: &Tail| tail.durable.max(tail.cached);
                known.cached = known.cached.max(seen.cached);
                if !known.sealed && seen.sealed {
                    // What a segment is sealed at is its length, even if more was seen: with durability
                    // `interval`, what was published last may be lost.
                    known.sealed = true;
                    (known.durable, known.next_offset) = (seen.durable, seen.next_offset);
                } else if !known.sealed && seen.durable > known.durable {
                    (known.durable, known.next_offset) = (seen.durable, seen.next_offset);
                }
                known.previous = known.previous.or(seen.previous);
                self.written.earn(reach(known).0.saturating_sub(reach(&before).0));
                *known != before
            }
        }
    }

    /// Takes in that records below `log_start` were removed.
    pub(crate) fn observe_log_start(&mut self, log_start: Offset) {
        self.log_start = self.log_start.max(log_start);
    }

    /// Takes in that the stream is gone.
    pub(crate) fn observe_deleted(&mut self) {
        self.error = Some(FeedReadError::StreamDeleted);
    }

    /// Takes in that the source says nothing of the file, and will not.
    pub(crate) fn observe_refused(&mut self, why: &str) {
        self.error.get_or_insert_with(|| FeedReadError::Refused(why.to_owned()));
    }

    /// Whether it is over.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Takes in whether the metadata cell is silent; whether that is a change.
    pub(crate) fn set_silent(&mut self, silent: bool) -> bool {
        std::mem::replace(&mut self.silent, silent) != silent
    }
}

/// What to fetch, and what was fetched.
impl Feed {
    /// What to do next. After [`FeedPlan::Fetch`] and [`FeedPlan::Segments`] nothing more is planned until the answer
    /// was taken in. `granted`: its place in a line has come, and it may read so much of a backlog.
    pub(crate) fn plan(&mut self, now: Instant, budget: &mut RateBudget, granted: Option<u64>) -> FeedPlan {
        let wait = FeedPlan::Wait { at: None };
        let Some(tail) = self.tail.filter(|_| !self.busy && self.error.is_none()) else { return wait };
        if let Some(at) = self.retry_at.filter(|at| now < *at) {
            return FeedPlan::Wait { at: Some(at) };
        }
        self.leave_read_segments();
        if self.waiting_fits()
            && let Some((since, _)) = self.held_since
        {
            return FeedPlan::Wait { at: Some(since + READERS_WAIT_MAX) };
        }
        if self.is_fed()
            && let Some(wait) = self.plan_fed(now, &tail)
        {
            return wait;
        }
        if !self.config.shared && self.window_bytes >= self.config.window_bytes {
            return wait; // until the reader has made room
        }
        loop {
            let Some(place) = self.place else { return wait };
            if place.segment > tail.segment {
                if self.read_term.is_some_and(|term| term < tail.term) {
                    self.begin_again(tail.segment);
                    continue;
                }
                return wait; // it is going to be written
            }
            let known = if self.relist { None } else { self.segment(place.segment, &tail) };
            let Some((term, sealed_at)) = known else {
                self.busy = true;
                return FeedPlan::Segments { from: place.segment };
            };
            if place.position > Position(0) && self.read_term.is_some_and(|read| read != term) {
                self.begin_again(place.segment);
                continue;
            }
            let segment = SegmentId { shard: self.shard, number: place.segment, term };
            let cutter = match &mut self.cutter {
                Some(cutter) if cutter.segment() == segment => cutter,
                other => other.insert(Cutter::new(segment, place.position)),
            };
            let from = cutter.end();
            if let Some(end) = sealed_at.filter(|end| from >= *end) {
                if cutter.position() < end {
                    // Entries end where a segment is sealed, so this is no beginning of an entry.
                    cutter.forget_rest();
                    if std::mem::replace(&mut self.distrust, true) {
                        let (position, why) =
                            (cutter.position(), "an entry ends behind the segment".to_owned());
                        self.error = Some(FeedReadError::Corrupt { segment, position, why });
                        return wait;
                    }
                    continue;
                }
                self.leave(place.segment);
                continue;
            }
            return match self.next_bytes(now, &tail, segment, from, sealed_at) {
                Ok((range, durable)) => self.plan_fetch(now, budget, granted, range, durable),
                Err(at) => FeedPlan::Wait { at },
            };
        }
    }

    /// All bytes that come next from `from` on, and whether from the durable layer alone: algorithm 1 for the tail. Or
    /// until when there are none.
    fn next_bytes(
        &mut self,
        now: Instant,
        tail: &Tail,
        segment: SegmentId,
        from: Position,
        sealed_at: Option<Position>,
    ) -> Result<(ByteRange, bool), Option<Instant>> {
        let is_tail = segment.number == tail.segment;
        let durable = sealed_at.unwrap_or(tail.durable);
        // In a copy the cached layer may be ahead, up to what is durable at the source.
        let cached = match (is_tail, sealed_at) {
            (true, None) => tail.cached,
            (true, Some(end)) => tail.cached.min(end),
            (false, _) => durable,
        };
        let delayed = is_tail && self.layer.is_late(now, from, tail.cached, durable);
        let (to, durably) = match () {
            () if durable.max(cached) <= from => return Err(None),
            // Until the durable layer has it, or a window brings it.
            () if (self.distrust || self.silent) && durable <= from => return Err(None),
            // Asking the cell for what it never gets would be a round trip more.
            () if self.distrust || !tail.cells => (durable, true),
            // What the writer cached is still worth a look.
            () if self.silent => (durable, false),
            () if cached > from => (cached, false),
            () if delayed => (durable, true),
            () => return Err(self.layer.deadline()),
        };
        // The window brings what comes from there on.
        let next = self.waiting.as_ref().filter(|block| block.segment == segment && from < block.start);
        let to = next.map_or(to, |block| to.min(block.start));
        assert!(
            from < to && to <= durable.max(cached),
            "{segment}: fetched is what is there and was not: {from}..{to}"
        );
        Ok((ByteRange { segment, chunk_bytes: tail.chunk_bytes, from, to }, durably))
    }

    /// As much of these bytes as one fetch may bring, if it may.
    fn plan_fetch(
        &mut self,
        now: Instant,
        budget: &mut RateBudget,
        granted: Option<u64>,
        mut range: ByteRange,
        durable: bool,
    ) -> FeedPlan {
        let (chunk, rest) = (u64::from(range.chunk_bytes), range.len());
        let is_open = budget.is_ready(RateLine::Written, 1, now).is_ok();
        let own = self.written.bytes();
        // A backlog that is written to as well is not read in crumbs.
        let is_own = own >= rest.min(CATCH_UP_STEP_BYTES);
        let backlog = if is_own { 0 } else { CATCH_UP_STEP_BYTES };
        let paid = own.saturating_add(granted.unwrap_or(backlog)).min(budget.left()).max(CATCH_UP_STEP_BYTES);
        let most = FETCH_BYTES_MAX.min(chunk * FETCH_CHUNKS_MAX).min(paid.max(chunk));
        let most = range.from.0.saturating_add(most);
        if range.to.0 > most {
            // Up to where a chunk ends, so that none is fetched twice; `most` is at least a chunk away.
            range.to = Position(most / chunk * chunk);
        }
        if !(self.config.shared && self.would_leave_most_behind(range.len())) {
            self.held_since = None;
        } else {
            let (since, _) = *self.held_since.get_or_insert((now, range.len()));
            let until = since + READERS_WAIT_MAX;
            if now < until {
                return FeedPlan::Wait { at: Some(until) };
            }
        }
        if granted.is_none() {
            let line = match () {
                () if is_own => RateLine::Written,
                () if rest <= CATCH_UP_STEP_BYTES => RateLine::Short,
                () => RateLine::Long,
            };
            if line != RateLine::Written || !is_open {
                return FeedPlan::Line(line);
            }
        }
        self.held_since = None;
        assert!(!self.busy, "{}: one fetch at a time", range.segment);
        self.charged = self.written.pay(range.len(), budget);
        self.busy = true;
        FeedPlan::Fetch { range, durable }
    }

    /// Takes in the bytes of the planned range; `durable` if they were asked of the durable layer alone.
    pub(crate) fn fetched(&mut self, range: &ByteRange, bytes: Bytes, durable: bool) -> News {
        self.busy = false;
        self.charged = RateCharge::default();
        self.failures = 0;
        self.retry_at = None;
        // What became of the segment meanwhile may make it unwanted.
        let Some(cutter) = &mut self.cutter else { return News::default() };
        if cutter.segment() != range.segment || cutter.end() != range.from {
            return News::default();
        }
        // What the beginning of an entry came from counts as much as its end.
        let durable = durable && (cutter.end() == cutter.position() || self.rest_is_durable);
        self.rest_is_durable = durable;
        let (block, result) = cutter.push(bytes);
        let position = cutter.position();
        self.place = Some(Place { segment: range.segment.number, position });
        self.read_term = Some(range.segment.term);
        let mut news = News::default();
        if let Some(block) = block {
            self.distrust = false;
            news = News { announce: true, entry_bytes: block.end.0 - block.start.0 };
            self.push_block(block);
        }
        match result {
            Ok(()) => {}
            // Chunks and entries have checksums of their own, so this is two writers' work, or a bug; the durable
            // file decides.
            Err(_) if !durable => self.distrust = true,
            Err(why) => {
                self.error =
                    Some(FeedReadError::Corrupt { segment: range.segment, position, why: why.to_string() });
                news.announce = true;
            }
        }
        news
    }

    /// Takes in the shard's segments as the durable layer lists them.
    pub(crate) fn listed(&mut self, now: Instant, from: SegmentNumber, segments: &[SourceSegment]) -> News {
        self.busy = false;
        for info in segments.iter().filter(|info| info.sealed).take(SEGMENTS_KEPT_MAX) {
            if info.length.0 < POSITION_END && info.number.0 < POSITION_END {
                self.sealed.insert(info.number, (info.term, info.length));
            }
        }
        let was_missing = std::mem::replace(&mut self.relist, false);
        match segments.first() {
            // What a window brought meanwhile is further on.
            Some(_) if self.place.is_some_and(|place| place.segment != from) => {}
            Some(first) if first.number > from => {
                // Numbers need not be consecutive. Where records are missing they were removed: who has not read them
                // is told.
                if self.read_to.is_none_or(|read_to| read_to < first.base_offset) {
                    self.observe_log_start(first.base_offset);
                }
                self.jump(Place { segment: first.number, position: Position(0) });
                self.failures = 0;
                return News { announce: true, entry_bytes: 0 };
            }
            Some(_) if !was_missing && self.sealed.contains_key(&from) => self.failures = 0,
            // The list is older than the tail, or the source contradicts itself.
            _ => self.pause(now),
        }
        News::default()
    }

    /// Takes in that a fetch or a listing failed.
    pub(crate) fn failed(&mut self, now: Instant, error: SourceError, budget: &mut RateBudget) -> News {
        self.busy = false;
        // Nothing was read: who waits for a node that is away is not slowed when it is back.
        let charged = std::mem::take(&mut self.charged);
        self.written.give_back(charged, budget);
        match error {
            SourceError::NoStream => self.error = Some(FeedReadError::StreamDeleted),
            SourceError::Truncated { log_start } => {
                self.observe_log_start(log_start);
                self.relist = true;
            }
            SourceError::Refused(why) => self.error = Some(FeedReadError::Refused(why)),
            SourceError::Unavailable(_) | SourceError::Invalid(_) => {
                self.pause(now);
                return News::default();
            }
        }
        News { announce: true, entry_bytes: 0 }
    }

    fn pause(&mut self, now: Instant) {
        self.retry_at = Some(now + FETCH_RETRY * (1 << self.failures.min(4)));
        self.failures = self.failures.saturating_add(1);
    }

    /// Term and, if sealed, length of a segment, as far as they are known.
    fn segment(&self, number: SegmentNumber, tail: &Tail) -> Option<(Term, Option<Position>)> {
        if number == tail.segment {
            return Some((tail.term, tail.sealed.then_some(tail.durable)));
        }
        let previous = tail.previous.filter(|(previous, ..)| *previous == number);
        let previous = previous.map(|(_, term, length)| (term, length));
        let (term, length) = previous.or_else(|| self.sealed.get(&number).copied())?;
        Some((term, Some(length)))
    }

    /// Goes on with the segment after `number`. A window that brought its end goes on with that one, too.
    fn leave(&mut self, number: SegmentNumber) {
        let read = self.place.map_or(Position(0), |place| place.position);
        let is_brought = |(segment, at): (SegmentId, Position)| segment.number == number && at >= read;
        // Of a segment with nothing in it there is nothing to bring.
        self.is_fed_on = self.fed_from.is_some_and(is_brought) || self.is_fed_on && read == Position(0);
        self.place = Some(Place { segment: number.next(), position: Position(0) });
        self.cutter = None;
        // Ends of segments left behind are not asked for again.
        self.sealed = self.sealed.split_off(&number.next());
    }

    /// Goes on at `place`, further on.
    fn jump(&mut self, place: Place) {
        self.place = Some(place);
        self.cutter = None;
        self.distrust = false;
        self.sealed = self.sealed.split_off(&place.segment);
    }

    /// Entries that were read of segment `number`, or of later ones, were never made durable, and their offsets
    /// were given again in a later term: reads it from its beginning. It takes durability `interval`, and a power
    /// failure or a disk that fails.
    fn begin_again(&mut self, number: SegmentNumber) {
        while !self.window.is_empty() {
            self.drop_oldest();
        }
        self.read_term = None;
        self.began = Place { segment: number, position: Position(0) };
        self.jump(self.began);
    }
}

/// The window of another process: a layer in front of the cells. Its blocks are those that it cut of the same bytes.
impl Feed {
    /// Whether the window brings what comes next. It has reached this place or is about to, in the segment that is
    /// written now; at its end, and when nothing else is heard, the feed goes on by itself.
    pub(crate) fn is_fed(&self) -> bool {
        let (Some((segment, at)), Some(place), Some(tail)) = (self.fed_from, self.place, self.tail) else {
            return false;
        };
        if self.is_fed_on {
            return place.segment >= tail.segment && !self.silent && self.error.is_none();
        }
        let is_written = tail.segment == segment.number && tail.term == segment.term;
        let is_left = tail.sealed && place.position >= tail.durable;
        let is_place = place.segment == segment.number && at <= place.position;
        let is_same = self.read_term.is_none_or(|read| read == segment.term);
        is_written && is_place && is_same && !is_left && !self.silent && self.error.is_none()
    }

    /// Whether it has brought all that is durable.
    pub(crate) fn is_fed_all(&self) -> bool {
        let is_behind = |tail: &Tail, place: Place| place.position < tail.durable;
        self.is_fed() && !self.tail.zip(self.place).is_some_and(|(tail, place)| is_behind(&tail, place))
    }

    /// Waits for the window as algorithm 1 waits for the cached layer, and no longer.
    fn plan_fed(&mut self, now: Instant, tail: &Tail) -> Option<FeedPlan> {
        let position = self.place?.position;
        if self.layer.is_late(now, position, position, tail.durable) {
            self.window_at(None);
            return None;
        }
        Some(FeedPlan::Wait { at: self.layer.deadline() })
    }

    /// Takes in where the window is; `None` if it does not feed this any more.
    pub(crate) fn window_at(&mut self, at: Option<(SegmentId, Position)>) {
        (self.fed_from, self.is_fed_on) = (at, false);
    }

    /// The window is gone, and what it had said with it.
    pub(crate) fn window_is_gone(&mut self) {
        self.window_at(None);
        self.waiting = None;
        self.parked = VecDeque::new();
    }

    /// Takes note of what the window says, for [`Feed::unpark`]. Of too much the oldest is forgotten.
    pub(crate) fn park(&mut self, message: UndecodedMessage) {
        if self.parked.len() >= PARKED_MAX {
            self.parked.pop_front();
        }
        self.parked.push_back(message);
    }

    /// Takes in what the window has said, in its order; a tail is left to the caller. `None` where there is nothing
    /// left, or where its next block has to wait.
    ///
    /// # Errors
    /// If it is no message that a window writes.
    pub(crate) fn unpark(&mut self, now: Instant) -> Result<Option<Unparked>, WindowMessageError> {
        loop {
            if let Some(block) = self.waiting.take() {
                let news = self.offered(now, block);
                if news.announce {
                    return Ok(Some(Unparked::Block(news)));
                }
                if self.waiting.is_some() {
                    return Ok(None);
                }
            }
            let Some(message) = self.parked.pop_front() else { return Ok(None) };
            match message.decode()? {
                WindowMessage::Block(block) => self.waiting = Some(block),
                WindowMessage::At(segment, position) => self.window_at(Some((segment, position))),
                WindowMessage::Lost(_) => self.window_at(None),
                WindowMessage::Tail(_, tail) => return Ok(Some(Unparked::Tail(tail))),
            }
        }
    }

    /// Takes in a block of the window, if it continues what was read. It waits where it is further on, until the feed
    /// has read what lies between, and where most readers have yet to take what it would push out, but not for long.
    pub(crate) fn offered(&mut self, now: Instant, block: Block) -> News {
        let (segment, end) = (block.segment, block.end);
        self.leave_read_segments();
        self.window_at(Some((segment, end)));
        let (Some(place), Some(tail)) = (self.place, self.tail) else { return News::default() };
        let known = self.segment(segment.number, &tail);
        let is_of_log = known.is_some_and(|(term, sealed_at)| {
            term == segment.term && sealed_at.is_none_or(|sealed_at| end <= sealed_at)
        });
        if !is_of_log || self.error.is_some() {
            return News::default();
        }
        if place < (Place { segment: segment.number, position: block.start }) {
            self.window_at(Some((segment, block.start)));
            self.waiting = Some(block);
            return News::default();
        }
        let continues = place.segment == segment.number && place.position < end;
        if !continues || self.read_term.is_some_and(|read| read != segment.term) {
            return News::default();
        }
        let bytes = end.0 - block.start.0;
        if self.would_leave_most_behind(bytes) {
            let (since, _) = *self.held_since.get_or_insert((now, bytes));
            if now < since + READERS_WAIT_MAX {
                self.window_at(Some((segment, place.position)));
                self.waiting = Some(block);
                return News::default();
            }
        }
        self.cutter = None;
        self.distrust = false;
        self.rest_is_durable = false;
        self.failures = 0;
        self.retry_at = None;
        self.held_since = None;
        self.written.lose(end.0 - place.position.0);
        self.place = Some(Place { segment: segment.number, position: end });
        self.read_term = Some(segment.term);
        self.push_block(block);
        self.leave_read_segments();
        News { announce: true, entry_bytes: end.0 - place.position.0 }
    }

    /// Whether the window's next block continues what was read: it waits for readers.
    fn waiting_fits(&self) -> bool {
        let fits = |block: &Block, place: Place| {
            block.segment.number == place.segment && block.start <= place.position
        };
        self.waiting.as_ref().zip(self.place).is_some_and(|(block, place)| fits(block, place))
    }

    /// Goes on behind segments that were read to their ends.
    fn leave_read_segments(&mut self) {
        let Some(tail) = self.tail else { return };
        while let Some(place) = self.place.filter(|place| place.segment < tail.segment)
            && let Some((term, Some(end))) = self.segment(place.segment, &tail)
            && place.position >= end
            && self.read_term == Some(term)
        {
            self.leave(place.segment);
        }
    }

    /// Lets go of what keeps arenas before this one, whoever has yet to take it.
    pub(crate) fn let_go_before(&mut self, arena: u64) {
        while self.parked.front().is_some_and(|message| message.arena() < arena) {
            self.parked.pop_front();
        }
        self.waiting = self.waiting.take().filter(|block| block.arena().is_none_or(|of| of >= arena));
        while self.window.front().and_then(|block| block.arena()).is_some_and(|of| of < arena) {
            self.drop_oldest();
        }
    }
}

/// The window.
impl Feed {
    /// Counts in a reader at `here`: the number of the block that it takes next. `None`, and nothing is counted, if
    /// `here` is not in the window and will not be.
    pub(crate) fn joined(&mut self, here: Place) -> Option<u64> {
        if self.place.is_none() || here < self.began {
            return None;
        }
        let next = self.number_of(here);
        self.readers.add(self.first, next);
        Some(next)
    }

    /// The block that `here` is in, or the next one.
    fn number_of(&self, here: Place) -> u64 {
        let end = |block: &Block| Place { segment: block.segment.number, position: block.end };
        self.first + self.window.partition_point(|block| end(block) <= here) as u64
    }

    /// The block after number `seen`, or the one that `here` is in for a reader that has seen none. Numbers are
    /// never given twice.
    pub(crate) fn look(&self, seen: Option<u64>, here: Place) -> Look {
        if let Some(error @ FeedReadError::StreamDeleted) = &self.error {
            return Look::Failed(error.clone());
        }
        let number = match seen {
            Some(seen) => seen + 1,
            None if self.place.is_none() && self.tail.is_some() => return Look::Behind,
            None if here < self.began => return Look::Behind,
            None => self.number_of(here),
        };
        let Some(index) = number.checked_sub(self.first) else { return Look::Behind };
        match usize::try_from(index).ok().and_then(|index| self.window.get(index)) {
            Some(block) => Look::Block(number, Arc::clone(block)),
            None => self.error.clone().map_or(Look::Front, Look::Failed),
        }
    }

    /// A reader takes block `number`, and was counted with `next` before, if it was; whether the feed waited for that.
    pub(crate) fn took(&mut self, next: Option<u64>, number: u64) -> bool {
        self.left(next);
        self.readers.add(self.first, number + 1);
        self.held_since.is_some_and(|(_, bytes)| !self.would_leave_most_behind(bytes))
    }

    /// A reader that was counted with `next`, if it was, takes no more.
    pub(crate) fn left(&mut self, next: Option<u64>) {
        if let Some(next) = next {
            self.readers.remove(self.first, next);
        }
    }

    /// Whether a block of so many bytes would push out some that most readers have yet to take.
    fn would_leave_most_behind(&self, bytes: u64) -> bool {
        let room = self.config.window_bytes.saturating_sub(self.window_bytes);
        let mut missing = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(room);
        let mut dropped = 0;
        for block in &self.window {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(block.len_bytes());
            dropped += 1;
        }
        self.readers.most_are_before(dropped)
    }

    /// Whether one reader is counted, and no more.
    pub(crate) fn has_one_reader(&self) -> bool {
        self.readers.count == 1
    }

    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        self.window_bytes
    }

    /// The one reader of the feed has taken blocks up to and including number `seen`.
    pub(crate) fn release(&mut self, seen: u64) {
        while self.first <= seen && !self.window.is_empty() {
            self.drop_oldest();
        }
    }

    /// Whether a private feed's reader has taken everything.
    pub(crate) fn is_drained(&self) -> bool {
        self.window.is_empty()
    }

    fn push_block(&mut self, block: Block) {
        debug_assert!(block.start < block.end, "{}: a block has bytes", block.segment);
        self.read_to = block.entries().last().map(|last| last.header.next_offset()).or(self.read_to);
        self.window_bytes += block.len_bytes();
        self.window.push_back(Arc::new(block));
        while self.config.shared && self.window_bytes > self.config.window_bytes && self.window.len() > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(block) = self.window.pop_front() {
            assert!(
                self.window_bytes >= block.len_bytes(),
                "{}: what leaves the window was in it",
                block.segment
            );
            self.window_bytes -= block.len_bytes();
            self.first += 1;
            self.readers.drop_first();
            self.began = Place { segment: block.segment.number, position: block.end };
        }
    }
}

/// How many readers take which block next; those that are behind the window are not among them.
#[derive(Debug, Default)]
struct Readers {
    /// By the block's place in the window. May be shorter than the window.
    next: VecDeque<u32>,
    count: u32,
}

impl Readers {
    fn add(&mut self, first: u64, number: u64) {
        let Some(place) = number.checked_sub(first) else { return };
        // A window has few blocks, and a reader takes those that are there: `place` is at most one behind them.
        let place = place as usize;
        if self.next.len() <= place {
            self.next.resize(place + 1, 0);
        }
        self.next[place] += 1;
        self.count += 1;
    }

    fn remove(&mut self, first: u64, number: u64) {
        let place = number.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        if let Some(readers) = place.and_then(|place| self.next.get_mut(place))
            && *readers > 0
        {
            *readers -= 1;
            self.count -= 1;
        }
    }

    fn drop_first(&mut self) {
        debug_assert_eq!(self.next.iter().sum::<u32>(), self.count, "every reader is counted once");
        self.count -= self.next.pop_front().unwrap_or(0);
    }

    /// Whether most have yet to take one of the window's first blocks.
    fn most_are_before(&self, blocks: usize) -> bool {
        let before: u32 = self.next.iter().take(blocks).sum();
        before * 2 > self.count
    }
}

#[cfg(test)]
mod tests;
