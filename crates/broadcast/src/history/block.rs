//! A run of stored events: a batch as it came, or several small ones put together, and beside it what finds an
//! event in it and which of its events are collected.
//!
//! Beside the events a block has a mark of 24 bytes for every 16 events.

use crate::batch::{Batch, Cursor, EventRef, Malformed, State, Writer};
use crate::event::Collect;

/// Events from one mark to the next: as many as a mark has bits for.
const STRIDE: u32 = 16;

/// Where an event begins, so that finding one does not read the block from its start; and which of those from there to the
/// next mark are collected.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The number of the event before it.
    seq: u64,
    /// The time that the event takes over.
    time_ms: u64,
    /// Its first byte.
    position: u32,
    /// The collection that it takes over: 0 is none, 1 that of the batch's state, 2 the first of `collects`, …
    collect: u16,
    /// A bit for each event from here on, by place.
    collected: u16,
}

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) batch: Batch,
    /// Of the events with the places 0, 16, 32, …: there is always one.
    marks: Vec<Mark>,
    collects: Vec<Collect>,
    collected_count: u32,
    /// The least time of its events.
    pub(super) time_min: u64,
}

/// What came of collecting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was stored, and is collected now.
    Collected,
    /// It is not stored any more, or was collected before.
    Gone,
    /// It is none of those to be collected.
    Kept,
}

/// What [`Block::collect_all`] did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The last number it got to.
    pub(super) reached: u64,
    /// How many events it looked at.
    pub(super) events: u32,
    /// How many it collected.
    pub(super) collected: u32,
}

impl Block {
    /// A block of a batch; `seen` is shown its events, the last one of each of those alike with how many they are.
    pub(super) fn new(batch: Batch, mut seen: impl FnMut(&EventRef<'_>, u32)) -> Result<Self, Malformed> {
        let mut marks = Vec::with_capacity(1 + (batch.count / STRIDE) as usize);
        let mut collects: Vec<Collect> = Vec::new();
        let mut time_min = u64::MAX;
        let mut cursor = batch.cursor();
        let mut to_mark = 0;
        loop {
            if to_mark == 0 {
                to_mark = STRIDE;
                let collect = match &cursor.state.collect {
                    None => 0,
                    same if *same == batch.state.collect => 1,
                    Some(other) => {
                        if collects.last() != Some(other) {
                            collects.push(other.clone());
                        }
                        // Sixteen events take 32 bytes, and of two that follow each other in other ways one a byte more: the
                        // bytes of a batch are too few for as many.
                        u16::try_from(1 + collects.len())
                            .map_err(|_| Malformed("it has too many collections"))?
                    }
                };
                let (position, time_ms) = (cursor.position as u32, cursor.state.time_ms);
                marks.push(Mark { seq: cursor.seq, time_ms, position, collect, collected: 0 });
            }
            // By reference: to move it costs as much as all the rest.
            let next = cursor.next_alike(to_mark);
            let (event, alike) = match &next {
                Ok(Some((event, alike))) => (event, *alike),
                Ok(None) => break,
                Err(error) => return Err(error.clone()),
            };
            time_min = time_min.min(event.time_ms);
            seen(event, alike);
            to_mark -= alike;
        }
        Ok(Self { batch, marks, collects, collected_count: 0, time_min })
    }

    /// About how many bytes its events take that are not collected.
    pub(super) fn live_bytes(&self) -> usize {
        let live = self.batch.count - self.collected_count;
        (self.batch.bytes.len() as u64 * u64::from(live) / u64::from(self.batch.count.max(1))) as usize
    }

    /// How many events it stores that are collected.
    pub(super) fn collected(&self) -> u32 {
        self.collected_count
    }

    /// Whether an event is collected, by its place.
    #[inline]
    pub(super) fn is_collected(&self, place: u32) -> bool {
        let mark = self.marks.get((place / STRIDE) as usize);
        mark.is_some_and(|mark| mark.collected >> (place % STRIDE) & 1 == 1)
    }

    /// Marks an event as collected, by its place.
    pub(super) fn collect(&mut self, place: u32) {
        debug_assert!(place < self.batch.count);
        let (mark, bit) = (&mut self.marks[(place / STRIDE) as usize], 1 << (place % STRIDE));
        self.collected_count += u32::from(mark.collected & bit == 0);
        mark.collected |= bit;
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.batch.bytes.len() + self.marks.len() * size_of::<Mark>() + size_of::<Self>()
    }

    /// A cursor at the last mark with at most the number `after`, and the place of its next event.
    pub(super) fn cursor(&self, after: u64) -> (Cursor<'_>, u32) {
        let at = self.mark_before(after);
        let (mut cursor, mark) = (self.batch.cursor(), &self.marks[at]);
        cursor.seq = mark.seq;
        cursor.position = mark.position as usize;
        cursor.state = self.state(mark);
        (cursor, at as u32 * STRIDE)
    }

    fn state(&self, mark: &Mark) -> State {
        let collect = match mark.collect {
            0 => None,
            1 => self.batch.state.collect.clone(),
            other => Some(self.collects[other as usize - 2].clone()),
        };
        State { time_ms: mark.time_ms, collect }
    }

    /// About which mark is the last one with at most the number `after`.
    #[inline]
    fn guess(&self, after: u64) -> usize {
        let part =
            after.saturating_sub(self.batch.after) as f64 / (self.batch.last - self.batch.after) as f64;
        ((part * f64::from(self.batch.count / STRIDE)) as usize).min(self.marks.len() - 1)
    }

    /// Which mark is the last one with at most the number `after`; the first if none is. Events are spread evenly more or
    /// less, so the search begins where it would end if they were: it touches less memory than one by halves.
    #[inline]
    fn mark_before(&self, after: u64) -> usize {
        let has = |at: usize| self.marks.get(at).is_some_and(|mark| mark.seq <= after);
        let guess = self.guess(after);
        let (mut low, mut high, mut step) = (guess, guess + 1, 1);
        if has(guess) {
            while has(high) {
                (low, high, step) = (high, high + step, 2 * step);
            }
        } else {
            while low > 0 && !has(low) {
                (low, high, step) = (low.saturating_sub(step), low, 2 * step);
            }
        }
        let between = &self.marks[low..high.min(self.marks.len())];
        (low + between.partition_point(|mark| mark.seq <= after)).saturating_sub(1)
    }

    /// Reads what finding an event begins with.
    pub(super) fn peek(&self) -> u64 {
        self.batch.after ^ self.batch.last ^ (self.batch.bytes.len() ^ self.marks.len()) as u64
    }

    /// Reads about where the mark before an event is.
    pub(super) fn peek_mark(&self, seq: u64) -> u64 {
        self.marks[self.guess(seq - 1)].seq
    }

    /// Reads something of the events behind the mark before an event.
    pub(super) fn peek_event(&self, seq: u64) -> u64 {
        let position = self.marks[self.mark_before(seq - 1)].position as usize;
        let byte = |at: usize| self.batch.bytes.get(at).copied().unwrap_or(0);
        (0..8).fold(0, |sum, line| sum ^ u64::from(byte(position + 64 * line)))
    }

    /// Shows the event with a number and its place, if it is stored.
    #[inline]
    pub(super) fn with<T>(&self, seq: u64, show: impl FnOnce(u32, &EventRef<'_>) -> T) -> Option<T> {
        let (mut cursor, mut place) = self.cursor(seq.checked_sub(1)?);
        while let Ok(Some(event)) = &cursor.next() {
            if event.seq >= seq {
                return (event.seq == seq).then(|| show(place, event));
            }
            place += 1;
        }
        None
    }

    /// Collects the event with a number if it is one to be collected.
    pub(super) fn collect_if(&mut self, seq: u64, wanted: impl FnOnce(&EventRef<'_>) -> bool) -> Outcome {
        let found = self.with(seq, |place, event| {
            if self.is_collected(place) {
                return Err(Outcome::Gone);
            }
            if wanted(event) { Ok(place) } else { Err(Outcome::Kept) }
        });
        match found {
            None => Outcome::Gone,
            Some(Err(outcome)) => outcome,
            Some(Ok(place)) => {
                self.collect(place);
                Outcome::Collected
            }
        }
    }

    /// Collects those with the numbers (`after`, `before`) that are to be collected, but looks at no more than
    /// about `most` events. Learns the times of those that are left, if it looks at all.
    pub(super) fn collect_all(
        &mut self,
        after: u64,
        before: u64,
        most: u32,
        mut wanted: impl FnMut(&EventRef<'_>) -> bool,
    ) -> Look {
        let mut places = Vec::new();
        let mut time_min = u64::MAX;
        let (mut cursor, first) = self.cursor(after);
        let mut place = first;
        let mut reached = self.batch.last;
        while let Ok(Some(event)) = &cursor.next() {
            if !self.is_collected(place) {
                if event.seq > after && event.seq < before && wanted(event) {
                    places.push(place);
                } else {
                    time_min = time_min.min(event.time_ms);
                }
            }
            place += 1;
            if event.seq > after && place - first >= most.max(STRIDE) && place < self.batch.count {
                reached = event.seq;
                break;
            }
        }
        if first == 0 && place == self.batch.count {
            self.time_min = time_min;
        }
        for place in &places {
            self.collect(*place);
        }
        Look { reached, events: place - first, collected: places.len() as u32 }
    }

    /// Shows the events with the numbers (`after`, `last`] that are not collected, as long as it answers true.
    /// Whether it did for all.
    pub(super) fn all(&self, after: u64, last: u64, mut show: impl FnMut(&EventRef<'_>) -> bool) -> bool {
        let (mut cursor, mut place) = self.cursor(after);
        while let Ok(Some(event)) = &cursor.next() {
            if event.seq > last {
                break;
            }
            if event.seq > after && !self.is_collected(place) && !show(event) {
                return false;
            }
            place += 1;
        }
        true
    }

    /// How many events that are not collected have at most this number.
    pub(super) fn live_up_to(&self, seq: u64) -> u32 {
        let (mut cursor, mut place) = self.cursor(seq);
        while let Ok(Some(event)) = &cursor.next() {
            if event.seq > seq {
                break;
            }
            place += 1;
        }
        (0..place).filter(|&place| !self.is_collected(place)).count() as u32
    }

    /// Shows its events with greater numbers than `after` that are not collected.
    pub(super) fn each_live(&self, after: u64, mut show: impl FnMut(&EventRef<'_>)) {
        let (mut cursor, mut place) = self.cursor(after);
        while let Ok(Some(event)) = &cursor.next() {
            if event.seq > after && !self.is_collected(place) {
                show(event);
            }
            place += 1;
        }
    }

    /// What of it has the numbers (`after`, `up_to`], roughly the first `bytes_max` bytes of that, but at least
    /// an event or a tombstone. `after` is one of its numbers, but for its last, or the one before its first.
    pub(super) fn read(&self, after: u64, up_to: u64, bytes_max: usize) -> Result<Option<Batch>, Malformed> {
        if self.collected_count * 4 >= self.batch.count {
            return Ok(Some(self.read_live(after, up_to, bytes_max)));
        }
        // From the last mark before `after` to the first beyond the limits; what is too much at the ends is
        // cut off event by event.
        let first = self.mark_before(after);
        let mark = self.marks[first];
        let start = mark.position as usize;
        let beyond = start.saturating_add(bytes_max);
        let end = self.marks.partition_point(|mark| mark.position as usize <= beyond && mark.seq < up_to);
        let mut part = Batch {
            after: mark.seq,
            last: self.batch.last,
            count: self.batch.count - first as u32 * STRIDE,
            state: self.state(&mark),
            bytes: self.batch.bytes.slice(start..),
        };
        if let Some(mark) = self.marks.get(end) {
            part.last = mark.seq;
            part.count = (end - first) as u32 * STRIDE;
            part.bytes = part.bytes.slice(..mark.position as usize - start);
        }
        match part.rest(after)? {
            Some(rest) => rest.up_to(up_to),
            None => Ok(None),
        }
    }

    /// As [`read`](Self::read), but nothing of it is collected.
    pub(super) fn read_live(&self, after: u64, up_to: u64, bytes_max: usize) -> Batch {
        let mut out = Writer::new(after);
        let (mut cursor, mut place) = self.cursor(after);
        let mut end = self.batch.last.min(up_to);
        while let Ok(Some(event)) = &cursor.next() {
            if event.seq > end {
                break;
            }
            if event.seq > after && !self.is_collected(place) {
                out.push(event);
                if out.len() >= bytes_max {
                    end = event.seq;
                    break;
                }
            }
            place += 1;
        }
        out.finish(end)
    }
}
