//! A run of stored events: a batch as it came, or several small ones put together, and beside it what finds an
//! event in it and which of its events are collected.
//!
//! Beside the events a block has a mark for every 16 of them: its number, 8 bytes, and 16 more, or 64 where events have
//! keys, which also say where each of the 16 begins. An event that is looked for by its key lies anywhere in memory,
//! and of what has to be read for that each line counts: so the numbers, which are searched, lie close together, and
//! the rest of a mark is one line.

use prefetch_index::prefetch_index;

use crate::batch::{Batch, BatchCursor, BatchState, EventRef, MalformedBatch, Writer};
use crate::event::Collect;

/// Events from one mark to the next: as many as a mark has bits for.
const STRIDE: u32 = 16;

/// Bytes of an event that are fetched: its flags, number and key, where they are no longer than most are.
const EVENT_BYTES: usize = 32;

/// Numbers on either side of where a mark's should be that are read ahead with it.
const AROUND: usize = 2;

/// Where an event begins, so that finding one does not read the block from its start; and which of those from there to
/// the next mark are collected.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The time that the event takes over.
    time_ms: u64,
    /// Its first byte.
    position: u32,
    /// The collection that it takes over: 0 is none, 1 that of the batch's state, 2 the first of `collects`, …
    collect: u16,
    /// A bit for each event from here on, by place.
    collected: u16,
}

/// A mark, and where the events from it to the next one are; as large as a line of memory, and one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct KeyedMark {
    mark: Mark,
    /// The first byte of each, from the mark's on.
    positions: [u16; STRIDE as usize],
    /// Of how many of them it is known where they are: from the first on, which is the mark's own.
    known: u8,
    /// How much greater the number before each of the others is than that before its neighbour.
    gaps: [u8; STRIDE as usize - 1],
}

const _: () = assert!(size_of::<KeyedMark>() == 64, "one line of memory");

impl KeyedMark {
    fn new(mark: Mark) -> Self {
        Self { mark, positions: [0; STRIDE as usize], known: 1, gaps: [0; STRIDE as usize - 1] }
    }

    /// Notes one of the events behind the mark, which begins so many bytes behind it, and before which the numbers are
    /// so much greater than before its neighbour. If one is too far away, all from it on are unknown.
    fn note(&mut self, place: usize, position: usize, gap: u64) {
        let position = u16::try_from(position).ok().filter(|_| place == usize::from(self.known));
        if let (Some(position), Ok(gap)) = (position, u8::try_from(gap)) {
            (self.positions[place], self.gaps[place - 1]) = (position, gap);
            self.known += 1;
        }
    }

    /// The last one with a number before it that is less than `number`, from the mark's on: its place, its position and
    /// the number before it. `None` if that is not known.
    #[inline]
    fn find(&self, number: u64) -> Option<(usize, u16, u16)> {
        let number = u16::try_from(number).ok()?;
        // Without a branch that depends on what is found: the processor goes on to the next event meanwhile.
        let (mut before, mut sum) = ([0; STRIDE as usize], 0);
        for (before, gap) in before[1..].iter_mut().zip(self.gaps) {
            sum += u16::from(gap);
            *before = sum;
        }
        let less = before.iter().filter(|before| **before < number).count();
        let place = less.min(self.known.into()).checked_sub(1)?;
        Some((place, self.positions[place], before[place]))
    }
}

/// A block's marks, but for their numbers.
#[derive(Clone, Debug)]
enum Marks {
    /// No mark's first event has a key.
    Plain(Vec<Mark>),
    Keyed(Vec<KeyedMark>),
}

impl Marks {
    fn with_capacity(room: usize, have_keys: bool) -> Self {
        if have_keys { Self::Keyed(Vec::with_capacity(room)) } else { Self::Plain(Vec::with_capacity(room)) }
    }

    fn get(&self, at: usize) -> &Mark {
        match self {
            Self::Plain(marks) => &marks[at],
            Self::Keyed(marks) => &marks[at].mark,
        }
    }

    fn get_mut(&mut self, at: usize) -> &mut Mark {
        match self {
            Self::Plain(marks) => &mut marks[at],
            Self::Keyed(marks) => &mut marks[at].mark,
        }
    }

    /// Adds one. From the first on whose event has a key all have places.
    fn push(&mut self, mark: Mark, has_key: bool) {
        match self {
            Self::Plain(marks) if has_key => {
                let mut keyed = Vec::with_capacity(marks.capacity());
                keyed.extend(marks.iter().copied().chain([mark]).map(KeyedMark::new));
                *self = Self::Keyed(keyed);
            }
            Self::Plain(marks) => marks.push(mark),
            Self::Keyed(marks) => marks.push(KeyedMark::new(mark)),
        }
    }

    /// The last one, if it has places.
    fn last_keyed(&mut self) -> Option<&mut KeyedMark> {
        match self {
            Self::Plain(_) => None,
            Self::Keyed(marks) => marks.last_mut(),
        }
    }

    /// One, if it has places.
    fn keyed(&self, at: usize) -> Option<&KeyedMark> {
        match self {
            Self::Plain(_) => None,
            Self::Keyed(marks) => marks.get(at),
        }
    }

    /// How many take over an earlier time than this one.
    fn before(&self, time_ms: u64) -> usize {
        match self {
            Self::Plain(marks) => marks.partition_point(|mark| mark.time_ms < time_ms),
            Self::Keyed(marks) => marks.partition_point(|keyed| keyed.mark.time_ms < time_ms),
        }
    }

    /// How many begin at most at this byte.
    fn up_to(&self, position: usize) -> usize {
        match self {
            Self::Plain(marks) => marks.partition_point(|mark| mark.position as usize <= position),
            Self::Keyed(marks) => marks.partition_point(|keyed| keyed.mark.position as usize <= position),
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Plain(marks) => size_of_val(&marks[..]),
            Self::Keyed(marks) => size_of_val(&marks[..]),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct HistoryBlock {
    pub(super) batch: Batch,
    /// The number before each event that has a mark: those with the places 0, 16, 32, …; there is always one.
    numbers: Vec<u64>,
    /// Their marks.
    marks: Marks,
    collects: Vec<Collect>,
    collected_count: u32,
    /// The least time of its events.
    pub(super) time_min: u64,
}

/// Where an event with a number is, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// How many events are before it.
    place: u32,
    /// Its first byte.
    position: u32,
    /// The number before it.
    before: u64,
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

/// What [`HistoryBlock::collect_all`] did.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLook {
    /// The last number it got to.
    pub(super) reached: u64,
    /// How many events it looked at.
    pub(super) events: u32,
    /// How many it collected.
    pub(super) collected: u32,
}

/// Has something brought into the processor's cache, and does not wait for it.
#[inline]
fn fetch<T>(of: &T) {
    prefetch_index(std::slice::from_ref(of), 0);
}

impl HistoryBlock {
    /// A block of a batch; `seen` is shown its events, the last one of each of those alike with how many they are.
    pub(super) fn new(
        batch: Batch,
        mut seen: impl FnMut(&EventRef<'_>, u32),
    ) -> Result<Self, MalformedBatch> {
        let room = 1 + (batch.count / STRIDE) as usize;
        let mut numbers = Vec::with_capacity(room);
        let mut marks = Marks::with_capacity(room, batch.cursor().is_before_key());
        let mut collects: Vec<Collect> = Vec::new();
        let mut time_min = u64::MAX;
        let mut cursor = batch.cursor();
        let (mut to_mark, mut before) = (0, 0);
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
                        // Sixteen events take 32 bytes, and of two that follow each other in other ways one a byte
                        // more: the bytes of a batch are too few for as many.
                        u16::try_from(1 + collects.len())
                            .map_err(|_| MalformedBatch("it has too many collections"))?
                    }
                };
                let (position, time_ms) = (cursor.position as u32, cursor.state.time_ms);
                numbers.push(cursor.seq);
                marks.push(Mark { time_ms, position, collect, collected: 0 }, cursor.is_before_key());
                before = cursor.seq;
            }
            if let Some(keyed) = marks.last_keyed() {
                let position = cursor.position - keyed.mark.position as usize;
                keyed.note((STRIDE - to_mark) as usize, position, cursor.seq - before);
                before = cursor.seq;
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
        Ok(Self { batch, numbers, marks, collects, collected_count: 0, time_min })
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
        place < self.batch.count
            && self.marks.get((place / STRIDE) as usize).collected >> (place % STRIDE) & 1 == 1
    }

    /// Marks an event as collected, by its place.
    pub(super) fn collect(&mut self, place: u32) {
        debug_assert!(place < self.batch.count);
        let (mark, bit) = (self.marks.get_mut((place / STRIDE) as usize), 1 << (place % STRIDE));
        self.collected_count += u32::from(mark.collected & bit == 0);
        mark.collected |= bit;
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let beside = size_of_val(&self.numbers[..]) + self.marks.memory_bytes();
        self.batch.bytes.len() + beside + size_of::<Self>()
    }

    /// A cursor at the last mark with at most the number `after`, and the place of its next event.
    pub(super) fn cursor(&self, after: u64) -> (BatchCursor<'_>, u32) {
        self.cursor_at(self.mark_before(after))
    }

    /// The same at a mark.
    fn cursor_at(&self, at: usize) -> (BatchCursor<'_>, u32) {
        let (mut cursor, mark) = (self.batch.cursor(), self.marks.get(at));
        cursor.seq = self.numbers[at];
        cursor.position = mark.position as usize;
        cursor.state = self.state(mark);
        (cursor, at as u32 * STRIDE)
    }

    fn state(&self, mark: &Mark) -> BatchState {
        let collect = match mark.collect {
            0 => None,
            1 => self.batch.state.collect.clone(),
            other => Some(self.collects[other as usize - 2].clone()),
        };
        BatchState { time_ms: mark.time_ms, collect }
    }

    /// About which mark is the last one with at most the number `after`.
    #[inline]
    fn guess(&self, after: u64) -> usize {
        let part =
            after.saturating_sub(self.batch.after) as f64 / (self.batch.last - self.batch.after) as f64;
        ((part * f64::from(self.batch.count / STRIDE)) as usize).min(self.numbers.len() - 1)
    }

    /// Which mark is the last one with at most the number `after`; the first if none is. Events are spread evenly more
    /// or less, so the search begins where it would end if they were: it touches less memory than one by halves.
    #[inline]
    pub(super) fn mark_before(&self, after: u64) -> usize {
        let has = |at: usize| self.numbers.get(at).is_some_and(|number| *number <= after);
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
        let between = &self.numbers[low..high.min(self.numbers.len())];
        (low + between.partition_point(|number| *number <= after)).saturating_sub(1)
    }

    /// Fetches what finding an event begins with.
    #[inline]
    pub(super) fn fetch(&self) {
        fetch(&self.batch.after);
        fetch(&self.batch.bytes);
        fetch(&self.numbers);
        fetch(&self.marks);
    }

    /// Fetches the numbers of marks about where the one before an event is: of some around it, too, as events are
    /// spread evenly more or less only.
    #[inline]
    pub(super) fn fetch_numbers(&self, seq: u64) {
        let guess = self.guess(seq - 1);
        prefetch_index(&self.numbers, guess.saturating_sub(AROUND));
        prefetch_index(&self.numbers, guess + AROUND);
    }

    /// Fetches a mark.
    #[inline]
    pub(super) fn fetch_mark(&self, at: usize) {
        fetch(self.marks.get(at));
    }

    /// Fetches the beginning of an event, or of those behind the mark before it if it is not known where it is.
    #[inline]
    pub(super) fn fetch_event(&self, mark: usize, spot: Option<Spot>) {
        let (from, bytes) = match spot {
            Some(spot) => (spot.position, EVENT_BYTES),
            None => (self.marks.get(mark).position, STRIDE as usize * EVENT_BYTES),
        };
        for at in (0..=bytes).step_by(EVENT_BYTES) {
            prefetch_index(&self.batch.bytes, from as usize + at);
        }
    }

    /// Where the event with a number is, if it is stored, and that can be told without reading those before it.
    #[inline]
    pub(super) fn find(&self, mark: usize, seq: u64) -> Option<Spot> {
        let (keyed, number) = (self.marks.keyed(mark)?, self.numbers[mark]);
        let (place, position, before) = keyed.find(seq.checked_sub(number)?)?;
        Some(Spot {
            place: mark as u32 * STRIDE + place as u32,
            position: keyed.mark.position + u32::from(position),
            before: number + u64::from(before),
        })
    }

    /// Whether the event with a number has a key, if it is where it may be.
    fn has_key(&self, spot: Spot, seq: u64, key: &[u8]) -> Option<bool> {
        let mut cursor = self.batch.cursor();
        let mark = self.marks.get((spot.place / STRIDE) as usize);
        // It may take over other things, but no other key.
        (cursor.seq, cursor.position, cursor.state) = (spot.before, spot.position as usize, self.state(mark));
        match cursor.next() {
            Ok(Some(event)) if event.seq == seq => Some(event.key == Some(key)),
            _ => None,
        }
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

    /// Collects the event with a number if it has a key. The spot is where it was [found](Self::find).
    pub(super) fn collect_key(&mut self, spot: Option<Spot>, seq: u64, key: &[u8]) -> Outcome {
        let found = spot.and_then(|spot| Some((spot.place, self.has_key(spot, seq, key)?)));
        match found {
            None => self.collect_if(seq, |event| event.key == Some(key)),
            Some((place, _)) if self.is_collected(place) => Outcome::Gone,
            Some((_, false)) => Outcome::Kept,
            Some((place, true)) => {
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
    ) -> BlockLook {
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
        BlockLook { reached, events: place - first, collected: places.len() as u32 }
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

    /// The last of its events with the numbers (`after`, `end`) that has an earlier time than this one and is not
    /// collected. No event has an earlier time than the one before it: so most often the events of one mark are read.
    pub(super) fn last_older(&self, after: u64, end: u64, time_ms: u64) -> Option<u64> {
        for at in (self.mark_before(after)..self.marks.before(time_ms)).rev() {
            let (mut cursor, first) = self.cursor_at(at);
            let (mut place, mut found) = (first, None);
            while place < first + STRIDE
                && let Ok(Some(event)) = &cursor.next()
                && event.seq < end
            {
                if event.seq > after && event.time_ms < time_ms && !self.is_collected(place) {
                    found = Some(event.seq);
                }
                place += 1;
            }
            if found.is_some() {
                return found;
            }
        }
        None
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
    pub(super) fn read(
        &self,
        after: u64,
        up_to: u64,
        bytes_max: usize,
    ) -> Result<Option<Batch>, MalformedBatch> {
        if self.collected_count * 4 >= self.batch.count {
            return Ok(Some(self.read_live(after, up_to, bytes_max)));
        }
        // From the last mark before `after` to the first beyond the limits; what is too much at the ends is
        // cut off event by event.
        let first = self.mark_before(after);
        let mark = self.marks.get(first);
        let start = mark.position as usize;
        let beyond = start.saturating_add(bytes_max);
        let end = self.marks.up_to(beyond).min(self.numbers.partition_point(|number| *number < up_to));
        let mut part = Batch {
            after: self.numbers[first],
            last: self.batch.last,
            removed: 0,
            count: self.batch.count - first as u32 * STRIDE,
            state: self.state(mark),
            bytes: self.batch.bytes.slice(start..),
        };
        if let Some(number) = self.numbers.get(end) {
            part.last = *number;
            part.count = (end - first) as u32 * STRIDE;
            part.bytes = part.bytes.slice(..self.marks.get(end).position as usize - start);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::event::Content;

    /// An event: numbers that are missing before it, its key if it has one, bytes of its payload.
    fn event() -> impl Strategy<Value = (u64, Option<u8>, usize)> {
        let gap = prop_oneof![8 => Just(0u64), 4 => 1..9u64, 1 => 1_000..70_000u64];
        let bytes = prop_oneof![8 => 0..40usize, 1 => 3_000..9_000usize];
        (gap, prop_oneof![1 => Just(None), 6 => (0..4u8).prop_map(Some)], bytes)
    }

    proptest! {
        #[test]
        fn an_event_is_collected_by_its_key_as_it_is_by_looking_at_all_before_it(
            events in proptest::collection::vec(event(), 1..100),
            same_collection in any::<bool>(),
        ) {
            let mut out = Writer::new(5);
            for (gap, key, bytes) in &events {
                let key = key.map(|key| Bytes::from(vec![key; 3]));
                let collect = (key.is_some() && (same_collection || *bytes % 2 == 0)).then_some(Collect::SameKey);
                let payload = Bytes::from(vec![0; *bytes]);
                let mut one = Writer::new(out.last() + gap);
                one.publish(&Content { key, payload, ..Content::default() }, collect.as_ref()).unwrap();
                let one = one.finish(0);
                out.push(&one.cursor().next().unwrap().unwrap());
            }
            let last = out.last() + 3;
            let block = HistoryBlock::new(out.finish(last), |_, _| {}).unwrap();
            let (mut by_key, mut by_all) = (block.clone(), block);
            let mut numbers: Vec<u64> = vec![6, last];
            let mut cursor = by_all.batch.cursor();
            while let Some(event) = cursor.next().unwrap() {
                numbers.extend([event.seq.saturating_sub(1), event.seq, event.seq + 1]);
            }
            let mut found = 0;
            for number in numbers {
                for key in [[0; 3], [1; 3]] {
                        let spot = by_key.find(by_key.mark_before(number.saturating_sub(1)), number);
                    found += u32::from(spot.and_then(|spot| by_key.has_key(spot, number, &key)).is_some());
                    let outcome = by_all.collect_if(number, |event| event.key == Some(&key));
                    prop_assert_eq!(by_key.collect_key(spot, number, &key), outcome, "{} of {:?}", number, events);
                }
            }
            // Events that follow each other in one way: where that changes, those up to the next mark are read.
            let is_plain = |(gap, key, bytes): &(u64, Option<u8>, usize)| {
                *gap < 9 && key.is_some() && *bytes < 40 && (same_collection || bytes % 2 == 0)
            };
            prop_assert!(found as usize >= 2 * events.len() || !events.iter().all(is_plain), "{} found", found);
        }
    }
}
