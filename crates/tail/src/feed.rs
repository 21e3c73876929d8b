//! One shard as one process reads it: which bytes to fetch next, and a window of what was fetched.
//!
//! A *shared* feed stays at the tail and is what all of a process's consumers of the shard read from; it drops
//! its oldest blocks when the window is full, so a slow consumer holds nobody back. A consumer that falls out
//! of the window gets a *private* feed from where it is, which does not read further than the consumer has
//! room for, and is given up when the consumer is back in the shared window.
//!
//! This is the state machine; [`crate::reader`] fetches what [`Feed::plan`] asks for.
//!
//! What holds:
//! - Blocks of a feed are consecutive: no entry is left out and none comes twice.
//! - A feed never goes back, whatever lengths are published.
//! - A segment is left only at its sealed length, and only for the next one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tailwater_env::Instant;
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, Tail, Term};

use crate::block::{Block, Cutter};
use crate::fetch::ByteRange;
use crate::layer::DelayedDurable;
use crate::limits::ROUND_CHUNKS_MAX;
use crate::rate::RateLimit;
use crate::{SegmentInfo, SourceError};

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
pub enum ReadError {
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
}

/// What a feed wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing, until something is published or `at`.
    Wait { at: Option<Instant> },
    /// Bytes; from the durable layer alone if `durable`.
    Fetch { range: ByteRange, durable: bool },
    /// The shard's segments from this one on.
    Segments { from: SegmentNumber },
}

/// Bounds of a feed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedConfig {
    pub(crate) window_bytes: usize,
    pub(crate) delay_max: Duration,
    pub(crate) bytes_per_s: u64,
    /// Shared feeds drop old blocks; private ones wait for their reader.
    pub(crate) shared: bool,
}

#[derive(Debug)]
pub(crate) struct Feed {
    shard: ShardId,
    config: FeedConfig,
    tail: Option<Tail>,
    layer: DelayedDurable,
    rate: RateLimit,
    /// Where to read on; `None` while nobody reads.
    place: Option<Place>,
    /// Known once the term of `place`'s segment is.
    cutter: Option<Cutter>,
    /// Segments that the tail does not tell of: term, and length if sealed.
    segments: BTreeMap<SegmentNumber, (Term, Option<Position>)>,
    window: VecDeque<Arc<Block>>,
    window_bytes: usize,
    /// Number of the window's first block.
    first: u64,
    busy: bool,
    /// What came from a cell made no sense: take the next bytes from the durable layer.
    distrust: bool,
    retry_at: Option<Instant>,
    failures: u32,
    error: Option<ReadError>,
}

/// What the window has for a reader.
#[derive(Debug)]
pub(crate) enum Look {
    /// The block with this number.
    Block(u64, Arc<Block>),
    /// Nothing yet: the reader is at the front.
    Front,
    /// The reader's place is no longer in the window.
    Behind,
    /// It is over.
    Failed(ReadError),
}

impl Feed {
    pub(crate) fn new(shard: ShardId, config: FeedConfig, tail: Option<Tail>, now: Instant) -> Self {
        Self {
            shard,
            config,
            tail,
            layer: DelayedDurable::new(config.delay_max),
            rate: RateLimit::new(config.bytes_per_s, now),
            place: None,
            cutter: None,
            segments: BTreeMap::new(),
            window: VecDeque::new(),
            window_bytes: 0,
            first: 0,
            busy: false,
            distrust: false,
            retry_at: None,
            failures: 0,
            error: None,
        }
    }

    pub(crate) fn tail(&self) -> Option<Tail> {
        self.tail
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.place
    }

    pub(crate) fn log_start(&self) -> Offset {
        self.tail.map_or(Offset(0), |tail| tail.log_start)
    }

    /// Begins to read at `place`, where an entry begins. A feed that is already reading stays where it is.
    pub(crate) fn start(&mut self, place: Place) {
        self.place.get_or_insert(place);
    }

    /// Forgets everything but the tail: nobody reads.
    pub(crate) fn stop(&mut self) {
        self.place = None;
        self.cutter = None;
        self.window.clear();
        self.window_bytes = 0;
        self.first = 0;
    }

    /// Where a newcomer at the end begins: behind what is published as durable.
    pub(crate) fn end(&self) -> Option<(Place, Offset)> {
        let tail = self.tail?;
        Some((Place { segment: tail.segment, position: tail.durable }, tail.next_offset))
    }

    /// Takes in a published or recorded tail; one that is older than what is known changes nothing.
    pub(crate) fn observe(&mut self, seen: Tail) -> bool {
        let Some(known) = &mut self.tail else {
            self.tail = Some(seen);
            return true;
        };
        match (seen.segment, seen.term).cmp(&(known.segment, known.term)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => {
                if known.sealed {
                    self.segments.insert(known.segment, (known.term, Some(known.durable)));
                }
                *known = Tail { log_start: known.log_start.max(seen.log_start), ..seen };
                true
            }
            std::cmp::Ordering::Equal => {
                let before = *known;
                known.cached = known.cached.max(seen.cached);
                if seen.durable >= known.durable {
                    known.durable = seen.durable;
                    known.next_offset = known.next_offset.max(seen.next_offset);
                }
                known.sealed |= seen.sealed;
                known.log_start = known.log_start.max(seen.log_start);
                known.previous = known.previous.or(seen.previous);
                *known != before
            }
        }
    }

    /// Takes in that the stream is gone.
    pub(crate) fn observe_deleted(&mut self) {
        self.error.get_or_insert(ReadError::StreamDeleted);
    }

    /// What to do next. After [`Plan::Fetch`] and [`Plan::Segments`] nothing more is planned until the answer
    /// was taken in.
    pub(crate) fn plan(&mut self, now: Instant) -> Plan {
        let wait = Plan::Wait { at: None };
        if self.busy || self.error.is_some() {
            return wait;
        }
        let Some(tail) = self.tail else { return wait };
        if let Some(at) = self.retry_at.filter(|at| now < *at) {
            return Plan::Wait { at: Some(at) };
        }
        if !self.config.shared && self.window_bytes >= self.config.window_bytes {
            return wait; // until the reader has made room
        }
        loop {
            let Some(place) = self.place else { return wait };
            let Some((term, sealed_at)) = self.segment(place.segment, &tail) else {
                if place.segment > tail.segment {
                    return wait; // it is going to be written
                }
                self.busy = true;
                return Plan::Segments { from: place.segment };
            };
            if self.cutter.as_ref().is_none_or(|cutter| cutter.segment().term != term) {
                // A segment of another term under this number can only be one that nothing was read of.
                let segment = SegmentId { shard: self.shard, number: place.segment, term };
                self.cutter = Some(Cutter::new(segment, place.position));
            }
            let cutter = self.cutter.as_ref().expect("just made");
            let from = cutter.end();
            if sealed_at.is_some_and(|end| from >= end) {
                // Sealed lengths lie where an entry ends, so nothing is left over.
                self.place = Some(Place { segment: place.segment.next(), position: Position(0) });
                self.cutter = None;
                continue;
            }
            let is_tail = place.segment == tail.segment;
            let delayed = is_tail && self.layer.should_read_durable(now, tail.cached, tail.durable);
            let cached = if is_tail { tail.cached.min(tail.durable) } else { sealed_at.unwrap_or(from) };
            let durable = sealed_at.unwrap_or(tail.durable);
            let (to, durable) = match () {
                () if self.distrust && durable > from => (durable, true),
                () if cached > from => (cached, false),
                () if delayed && durable > from => (durable, true),
                // Nothing more will be cached of a sealed segment than was when it was sealed.
                () if is_tail && durable > from => return Plan::Wait { at: self.layer.deadline() },
                () => return wait,
            };
            let chunk_bytes = tail.chunk_bytes;
            let most = u64::from(chunk_bytes) * ROUND_CHUNKS_MAX as u64 / 4;
            let to = Position(to.0.min(from.0 + most));
            if let Err(pause) = self.rate.take(now, to.0 - from.0) {
                return Plan::Wait { at: Some(now + pause) };
            }
            self.busy = true;
            let range = ByteRange { segment: cutter.segment(), chunk_bytes, from, to };
            return Plan::Fetch { range, durable };
        }
    }

    /// Takes in the bytes of the planned range; whether readers have something new to see.
    pub(crate) fn fetched(&mut self, range: &ByteRange, bytes: BytesMut, durable: bool) -> bool {
        self.busy = false;
        self.failures = 0;
        self.retry_at = None;
        // Stopped meanwhile, or stopped and started elsewhere: not what is wanted any more.
        let Some(cutter) = &mut self.cutter else { return false };
        if cutter.segment() != range.segment || cutter.end() != range.from {
            return false;
        }
        match cutter.push(bytes) {
            Ok(block) => {
                self.distrust = false;
                self.place = Some(Place { segment: range.segment.number, position: cutter.position() });
                if let Some(block) = block {
                    self.push_block(block);
                }
                true
            }
            Err(_) if !durable => {
                // Chunks and entries have checksums of their own, so this is two writers' work, or a bug; the
                // durable file decides.
                self.distrust = true;
                false
            }
            Err(why) => {
                let (segment, position) = (range.segment, cutter.position());
                self.error = Some(ReadError::Corrupt { segment, position, why: why.to_string() });
                true
            }
        }
    }

    /// Takes in the shard's segments as the durable layer lists them.
    pub(crate) fn listed(&mut self, from: SegmentNumber, segments: &[SegmentInfo]) -> bool {
        self.busy = false;
        self.failures = 0;
        for info in segments {
            self.segments.insert(info.number, (info.term, info.sealed.then_some(info.length)));
        }
        match segments.first() {
            Some(first) if first.number > from => {
                self.error = Some(ReadError::Truncated { log_start: first.base_offset });
                true
            }
            _ => false,
        }
    }

    /// Takes in that a fetch or a listing failed; whether readers have something new to see.
    pub(crate) fn failed(&mut self, now: Instant, error: SourceError) -> bool {
        self.busy = false;
        match error {
            SourceError::NoStream => self.error = Some(ReadError::StreamDeleted),
            SourceError::Truncated { log_start } => self.error = Some(ReadError::Truncated { log_start }),
            SourceError::Unavailable(_) | SourceError::Invalid(_) => {
                let pause = Duration::from_millis(50 << self.failures.min(4));
                self.failures += 1;
                self.retry_at = Some(now + pause);
                return false;
            }
        }
        true
    }

    /// The block after number `seen`, or the one that `place` is in for a reader that has seen none.
    pub(crate) fn look(&self, seen: Option<u64>, place: Place) -> Look {
        if let Some(error @ ReadError::StreamDeleted) = &self.error {
            return Look::Failed(error.clone());
        }
        if let Some(seen) = seen {
            match (seen + 1).checked_sub(self.first) {
                None => return Look::Behind,
                Some(index) => {
                    if let Some(block) = self.window.get(index as usize) {
                        return Look::Block(seen + 1, Arc::clone(block));
                    }
                }
            }
            return self.error.clone().map_or(Look::Front, Look::Failed);
        }
        let index = self.window.partition_point(|block| (block.segment.number, block.end) <= (place.segment, place.position));
        if let Some(block) = self.window.get(index) {
            let begins_in_it = block.segment.number == place.segment && block.start <= place.position;
            // The first block of a segment also continues the end of the one before, if that is in the window.
            let continues = index > 0 && block.start == Position(0);
            return if begins_in_it || continues {
                Look::Block(self.first + index as u64, Arc::clone(block))
            } else {
                Look::Behind
            };
        }
        let reached = self.window.back().map(|block| (block.segment.number, block.end));
        let here = (place.segment, place.position);
        if self.place.is_some_and(|at| (at.segment, at.position) <= here) || reached == Some(here) {
            return self.error.clone().map_or(Look::Front, Look::Failed);
        }
        Look::Behind
    }

    /// A private feed's reader is done with blocks up to and including number `seen`.
    pub(crate) fn release(&mut self, seen: u64) {
        while self.first <= seen && !self.window.is_empty() {
            self.drop_oldest();
        }
    }

    /// Number of the last block in the window.
    pub(crate) fn last(&self) -> Option<u64> {
        (!self.window.is_empty()).then(|| self.first + self.window.len() as u64 - 1)
    }

    /// Term and, if sealed, length of a segment, as far as they are known.
    fn segment(&self, number: SegmentNumber, tail: &Tail) -> Option<(Term, Option<Position>)> {
        if number == tail.segment {
            return Some((tail.term, tail.sealed.then_some(tail.durable)));
        }
        if let Some((previous, term, length)) = tail.previous.filter(|(previous, ..)| *previous == number) {
            debug_assert_eq!(previous, number);
            return Some((term, Some(length)));
        }
        // A segment that is listed as open but is not the tail was sealed since: ask again.
        self.segments.get(&number).copied().filter(|(_, length)| length.is_some())
    }

    fn push_block(&mut self, block: Block) {
        self.window_bytes += block.len_bytes();
        self.window.push_back(Arc::new(block));
        if self.config.shared {
            while self.window_bytes > self.config.window_bytes && self.window.len() > 1 {
                self.drop_oldest();
            }
        }
        // Old segments' ends are not asked for again.
        if let Some(place) = self.place {
            while self.segments.first_key_value().is_some_and(|(number, _)| *number < place.segment) {
                self.segments.pop_first();
            }
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(block) = self.window.pop_front() {
            self.window_bytes -= block.len_bytes();
            self.first += 1;
        }
    }
}
