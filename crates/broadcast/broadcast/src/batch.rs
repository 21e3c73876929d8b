//! A run of successive events of one stream as they travel and are stored: encoded once, by the publisher, and
//! handed on as they are by everybody else.
//!
//! Collected events are not there: the next event (or the end of the batch) says how many numbers it skips,
//! and a reader gets a tombstone for them ("since events of the same stream arrive in FIFO order, there is no
//! need to store tombstone events explicitly", section 5.4). A batch can be cut at any event without touching a
//! byte: what an event takes over from the one before it (time, collection) is in [`BatchState`].
//!
//! ```text
//! event:
//!   flags    u8       bits 0-2  collection: 0 none, 1 as of the event before, 2 same key, 3 keep last,
//!                               4 before, 5 older than, 6 matching
//!                     bit 3     has a key            bit 5   skips numbers
//!                     bit 4     has headers          bit 6   other time than the event before
//!                     bit 7     0
//!   skipped  varint   if bit 5: numbers collected right before it, from 1
//!   time     varint   if bit 6: milliseconds since the event before, zigzag
//!   collect           3, 4, 5: varint; 6: varint length, text
//!   key               if bit 3: varint length, bytes
//!   headers           if bit 4: varint count, then for each: varint length, name, varint length, value
//!   payload           varint length, bytes
//! ```

mod events;
mod piece;

use bytes::{BufMut, Bytes};

pub use self::events::Events;
use crate::event::{Collect, Content};
use crate::limits::{
    BATCH_BYTES_MAX, BATCH_EVENTS_MAX, HEADER_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PREDICATE_BYTES_MAX,
};
use crate::varint;

const COLLECT: u8 = 0b111;
const KEY: u8 = 1 << 3;
const HEADERS: u8 = 1 << 4;
const SKIP: u8 = 1 << 5;
const TIME: u8 = 1 << 6;

/// What an event takes over from the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchState {
    /// Its time, in milliseconds since 1970.
    pub time_ms: u64,
    /// Its collection.
    pub collect: Option<Collect>,
}

/// Events with the numbers (`after`, `last`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number before the first.
    pub after: u64,
    /// The last number; greater than the last event's if what follows that is collected.
    pub last: u64,
    /// Up to this number retention removed some that nothing had collected: whoever has none of them yet has missed
    /// them. 0 if there are none.
    pub removed: u64,
    /// How many events are encoded in `bytes`.
    pub count: u32,
    /// What the first event takes over.
    pub state: BatchState,
    /// The events.
    pub bytes: Bytes,
}

/// Bytes that are no events, or that lie about themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no valid batch of events: {0}")]
pub struct MalformedBatch(pub &'static str);

/// An event that can't be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {is}, more than {max}")]
pub struct TooLarge {
    /// What is too large.
    pub what: &'static str,
    /// How large it is.
    pub is: usize,
    /// How large it may be.
    pub max: usize,
}

impl Batch {
    /// Checks that the events are well-formed and that their number and their numbers are what the batch says.
    /// Everything that takes a batch from outside calls it first.
    pub fn check(&self) -> Result<(), MalformedBatch> {
        if self.last <= self.after {
            return Err(MalformedBatch("it covers no number"));
        }
        if self.removed != 0 && (self.removed <= self.after || self.removed > self.last) {
            return Err(MalformedBatch("what was removed of it is not among its numbers"));
        }
        if self.bytes.len() > BATCH_BYTES_MAX || self.count > BATCH_EVENTS_MAX {
            return Err(MalformedBatch("it is too large"));
        }
        let mut cursor = self.cursor();
        let mut count = 0u32;
        while let Some((event, alike)) = cursor.next_alike(u32::MAX)? {
            if event.seq > self.last {
                return Err(MalformedBatch("an event is numbered beyond its end"));
            }
            count += alike;
        }
        if count != self.count {
            return Err(MalformedBatch("it has another number of events than it says"));
        }
        Ok(())
    }

    /// Whether all its events have the time of its state.
    pub fn has_one_time(&self) -> bool {
        let mut cursor = self.cursor();
        while let Ok(Some((event, _))) = cursor.next_alike(u32::MAX) {
            if event.time_ms != self.state.time_ms {
                return false;
            }
        }
        true
    }

    /// Its encoded events, in order, without the collected ones.
    pub fn cursor(&self) -> BatchCursor<'_> {
        BatchCursor::new(self.after, self.state.clone(), &self.bytes)
    }

    /// Its events, in order, with tombstones for the collected ones; what they carry are slices of the batch.
    pub fn events(&self) -> Events {
        Events::new(self.clone())
    }

    /// What of it has greater numbers than `after`, at an event's boundary: it begins with the number after
    /// the later of `after` and its own start. `None` if nothing has.
    pub fn rest(&self, after: u64) -> Result<Option<Batch>, MalformedBatch> {
        if after <= self.after {
            return Ok(Some(self.clone()));
        }
        if after >= self.last {
            return Ok(None);
        }
        let removed = if self.removed > after { self.removed } else { 0 };
        let mut cursor = self.cursor();
        let mut passed = 0;
        loop {
            let (position, state) = (cursor.position, cursor.state.clone());
            match cursor.next()? {
                Some(event) if event.seq <= after => passed += 1,
                Some(event) => {
                    // Within the numbers that this event skips: it has to say that it skips fewer.
                    let start = event.seq - event.skipped - 1;
                    if start < after {
                        return self.reencoded(after).map(|rest| Some(Batch { removed, ..rest }));
                    }
                    return Ok(Some(Batch {
                        after,
                        last: self.last,
                        removed,
                        count: self.count - passed,
                        state,
                        bytes: self.bytes.slice(position..),
                    }));
                }
                None => {
                    let end = self.bytes.len();
                    return Ok(Some(Batch {
                        after,
                        last: self.last,
                        removed,
                        count: 0,
                        state,
                        bytes: self.bytes.slice(end..),
                    }));
                }
            }
        }
    }

    /// What of it has the numbers up to `last`: it ends with the earlier of `last` and its own end. `None` if
    /// nothing has.
    pub fn up_to(&self, last: u64) -> Result<Option<Batch>, MalformedBatch> {
        if last >= self.last {
            return Ok(Some(self.clone()));
        }
        if last <= self.after {
            return Ok(None);
        }
        let mut cursor = self.cursor();
        let (mut count, mut end) = (0, 0);
        while let Some(event) = cursor.next()? {
            if event.seq > last {
                break;
            }
            count += 1;
            end = cursor.position;
        }
        let bytes = self.bytes.slice(..end);
        let removed = self.removed.min(last);
        Ok(Some(Batch { after: self.after, last, removed, count, state: self.state.clone(), bytes }))
    }

    /// Batches that follow each other, as one: every reader of it reads one where it would have read many.
    pub fn joined(batches: &[Batch]) -> Result<Batch, MalformedBatch> {
        let first = batches.first().ok_or(MalformedBatch("no batch makes none"))?;
        let mut writer = Writer::new(first.after);
        writer
            .bytes
            .reserve(batches.iter().map(|batch| batch.bytes.len()).sum::<usize>() + 16 * batches.len());
        for batch in batches {
            writer.append(batch)?;
        }
        let removed = batches.iter().map(|batch| batch.removed).max().unwrap_or(0);
        Ok(Batch { removed, ..writer.finish(batches.last().map_or(0, |batch| batch.last)) })
    }

    fn reencoded(&self, after: u64) -> Result<Batch, MalformedBatch> {
        let mut writer = Writer::new(after);
        let mut cursor = self.cursor();
        while let Some(event) = cursor.next()? {
            if event.seq > after {
                writer.push(&event);
            }
        }
        Ok(writer.finish(self.last))
    }
}

/// An encoded event.
#[derive(Clone, Copy, Debug)]
pub struct EventRef<'a> {
    /// Its number.
    pub seq: u64,
    /// How many numbers right before it are collected.
    pub skipped: u64,
    /// As [`Event::time_ms`].
    pub time_ms: u64,
    /// What it collects.
    pub collect: Option<&'a Collect>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its headers, still encoded; [`HeaderIter`] reads them.
    headers: &'a [u8],
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> EventRef<'a> {
    /// Its headers' names and values.
    pub fn headers(&self) -> HeaderIter<'a> {
        HeaderIter { rest: self.headers }
    }

    /// A header's value: the first one of that name.
    pub fn header(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.headers().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// Names and values of an event's headers.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let name = text(&mut self.rest, HEADER_BYTES_MAX)?;
        let value = text(&mut self.rest, HEADER_BYTES_MAX)?;
        Some((name, value))
    }
}

/// Reads encoded events one after the other.
#[derive(Clone, Debug)]
pub struct BatchCursor<'a> {
    /// Of the next event in the batch's bytes.
    pub position: usize,
    /// What the next event takes over.
    pub state: BatchState,
    /// The number of the last event read, or the one before the first.
    pub seq: u64,
    bytes: &'a [u8],
}

#[inline]
fn text<'a>(rest: &mut &'a [u8], max: usize) -> Option<&'a [u8]> {
    let len = usize::try_from(varint::take(rest)?).ok()?;
    if len > max || len > rest.len() {
        return None;
    }
    let (text, after) = rest.split_at(len);
    *rest = after;
    Some(text)
}

/// Events that are looked at together.
const AHEAD: u32 = 8;

impl<'a> BatchCursor<'a> {
    fn new(after: u64, state: BatchState, bytes: &'a [u8]) -> Self {
        Self { position: 0, state, seq: after, bytes }
    }

    /// Whether the next event has a key.
    pub(crate) fn is_before_key(&self) -> bool {
        self.bytes.get(self.position).is_some_and(|flags| flags & KEY != 0)
    }

    /// The next event and those after it that differ from it in their numbers and payloads only, at most `most` in
    /// all (from 1): the last one of them, and how many they are. Much faster than reading each, where each would be
    /// treated like the others; one with a key or headers comes alone.
    pub fn next_alike(&mut self, most: u32) -> Result<Option<(EventRef<'_>, u32)>, MalformedBatch> {
        match self.bytes.get(self.position) {
            None => return Ok(None),
            Some(flags) if flags & (KEY | HEADERS) != 0 => {
                return self.next().map(|event| event.map(|event| (event, 1)));
            }
            Some(_) => {}
        }
        let Some(first) = self.next()? else { return Ok(None) };
        let (mut skipped, mut payload) = (first.skipped, first.payload.len());
        let collects = first.collect.is_some();
        let (bytes, mut end, mut count) = (self.bytes, self.position, 1);
        // Nothing but its payload: as the one before it in all else.
        while count < most
            && let Some(&[flags, len]) = bytes[end..].first_chunk()
            && flags == u8::from(collects)
            && len < 0x80
            && bytes.len() - end >= 2 + usize::from(len)
        {
            (payload, skipped) = (usize::from(len), 0);
            let whole = 2 + payload;
            // Most often the next ones are as long as this one: where they are then need not be read first.
            while most - count > AHEAD
                && let Some(next) = bytes.get(end + whole..end + whole * (1 + AHEAD as usize))
                && next.chunks_exact(whole).all(|event| event[..2] == [flags, len])
            {
                end += whole * AHEAD as usize;
                count += AHEAD;
            }
            end += whole;
            count += 1;
        }
        let seq = self.seq.checked_add(u64::from(count - 1)).ok_or(MalformedBatch("its numbers overflow"))?;
        (self.seq, self.position) = (seq, end);
        let event = EventRef {
            seq,
            skipped,
            time_ms: self.state.time_ms,
            collect: self.state.collect.as_ref().filter(|_| collects),
            key: None,
            headers: &[],
            payload: &bytes[end - payload..end],
        };
        Ok(Some((event, count)))
    }

    /// The next event; `None` at the end. (No `Iterator`: the event borrows the cursor's state.)
    #[allow(clippy::should_implement_trait)]
    #[inline(always)]
    pub fn next(&mut self) -> Result<Option<EventRef<'_>>, MalformedBatch> {
        read_event(self.bytes, &mut self.position, &mut self.state, &mut self.seq)
    }
}

/// Reads the event at `position` behind the one with number `last`, and moves both behind it.
#[inline(always)]
fn read_event<'a>(
    bytes: &'a [u8],
    position: &mut usize,
    state: &'a mut BatchState,
    last: &mut u64,
) -> Result<Option<EventRef<'a>>, MalformedBatch> {
    let parts = read_parts(bytes, position, state, last)?;
    Ok(parts.map(|BatchParts { seq, skipped, collects, key, headers, payload }| EventRef {
        seq,
        skipped,
        time_ms: state.time_ms,
        collect: if collects { state.collect.as_ref() } else { None },
        key,
        headers,
        payload,
    }))
}

/// What an event itself says: its time and its collection are in the [`BatchState`].
struct BatchParts<'a> {
    seq: u64,
    skipped: u64,
    collects: bool,
    key: Option<&'a [u8]>,
    headers: &'a [u8],
    payload: &'a [u8],
}

/// As [`read_event`]; what it answers does not hold the state.
#[inline(always)]
fn read_parts<'a>(
    bytes: &'a [u8],
    position: &mut usize,
    state: &mut BatchState,
    last: &mut u64,
) -> Result<Option<BatchParts<'a>>, MalformedBatch> {
    let mut rest = &bytes[*position..];
    // Most events of most batches: nothing but a payload, and as the one before it in all else.
    if let Some(&[flags, len]) = rest.first_chunk()
        && flags <= u8::from(state.collect.is_some())
        && len < 0x80
        && let Some(payload) = rest.get(2..2 + usize::from(len))
        && let Some(seq) = last.checked_add(1)
    {
        *position += 2 + payload.len();
        *last = seq;
        let (skipped, collects, key, headers) = (0, flags == 1, None, &rest[..0]);
        return Ok(Some(BatchParts { seq, skipped, collects, key, headers, payload }));
    }
    let Some((&flags, after)) = rest.split_first() else { return Ok(None) };
    rest = after;
    let cut = MalformedBatch("an event is cut off or too large");
    let mut skipped = 0;
    if flags & (SKIP | TIME | 0x80) != 0 {
        if flags & 0x80 != 0 {
            return Err(MalformedBatch("an event has an unknown flag"));
        }
        if flags & SKIP != 0 {
            skipped = varint::take(&mut rest).ok_or(cut.clone())?;
            if skipped == 0 {
                return Err(MalformedBatch("an event says that it skips nothing"));
            }
        }
        if flags & TIME != 0 {
            let delta = varint::unzigzag(varint::take(&mut rest).ok_or(cut.clone())?);
            state.time_ms = state.time_ms.wrapping_add_signed(delta);
        }
    }
    let seq = last
        .checked_add(skipped)
        .and_then(|seq| seq.checked_add(1))
        .ok_or(MalformedBatch("its numbers overflow"))?;
    let collects = match flags & COLLECT {
        0 => false,
        1 => {
            if state.collect.is_none() {
                return Err(MalformedBatch("an event collects as one before that collects nothing"));
            }
            true
        }
        code => {
            state.collect = Some(take_collect(code, &mut rest)?);
            true
        }
    };
    let key = match flags & KEY {
        0 => None,
        _ => Some(text(&mut rest, KEY_BYTES_MAX).ok_or(cut.clone())?),
    };
    let headers = if flags & HEADERS == 0 {
        &rest[..0]
    } else {
        let count = varint::take(&mut rest).ok_or(cut.clone())?;
        if count == 0 || count > HEADERS_MAX as u64 {
            return Err(MalformedBatch("an event has no or too many headers"));
        }
        let start = rest;
        for _ in 0..2 * count {
            text(&mut rest, HEADER_BYTES_MAX).ok_or(cut.clone())?;
        }
        &start[..start.len() - rest.len()]
    };
    let payload = text(&mut rest, PAYLOAD_BYTES_MAX).ok_or(cut)?;
    *position = bytes.len() - rest.len();
    *last = seq;
    Ok(Some(BatchParts { seq, skipped, collects, key, headers, payload }))
}

#[cold]
fn take_collect(code: u8, rest: &mut &[u8]) -> Result<Collect, MalformedBatch> {
    let cut = MalformedBatch("a collection is cut off or too large");
    Ok(match code {
        2 => Collect::SameKey,
        3 => Collect::KeepLast(varint::take(rest).ok_or(cut)?),
        4 => Collect::Before(varint::take(rest).ok_or(cut)?),
        5 => Collect::OlderThan(varint::take(rest).ok_or(cut)?),
        6 => Collect::Matching(Bytes::copy_from_slice(text(rest, PREDICATE_BYTES_MAX).ok_or(cut)?)),
        _ => return Err(MalformedBatch("an event has an unknown collection")),
    })
}

fn put_collect(out: &mut impl BufMut, collect: &Collect) {
    match collect {
        Collect::SameKey => {}
        Collect::KeepLast(n) | Collect::Before(n) | Collect::OlderThan(n) => varint::put(out, *n),
        Collect::Matching(predicate) => {
            varint::put(out, predicate.len() as u64);
            out.put_slice(predicate);
        }
    }
}

fn code_of(collect: &Collect) -> u8 {
    match collect {
        Collect::SameKey => 2,
        Collect::KeepLast(_) => 3,
        Collect::Before(_) => 4,
        Collect::OlderThan(_) => 5,
        Collect::Matching(_) => 6,
    }
}

/// Encodes events into a batch.
///
/// A publisher, who knows no numbers yet, starts it at 0 and leaves the times at 0: the head numbers a batch by
/// changing its `after` and `last`, and times it by its state, without touching the events.
#[derive(Clone, Debug)]
pub struct Writer {
    after: u64,
    seq: u64,
    count: u32,
    start: Option<BatchState>,
    state: BatchState,
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty batch that begins with the number after `after`.
    pub fn new(after: u64) -> Self {
        Self { after, seq: after, count: 0, start: None, state: BatchState::default(), bytes: Vec::new() }
    }

    /// Encoded bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no event yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Events so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The number of the last event so far, or the one before the first.
    pub fn last(&self) -> u64 {
        self.seq
    }

    /// Adds what an application publishes, as the next number, with the time of the event before it.
    pub fn publish(&mut self, content: &Content, collect: Option<&Collect>) -> Result<(), TooLarge> {
        within("the key", content.key.as_ref().map_or(0, Bytes::len), KEY_BYTES_MAX)?;
        within("the number of headers", content.headers.len(), HEADERS_MAX)?;
        for (name, value) in &content.headers {
            within("a header's name", name.len(), HEADER_BYTES_MAX)?;
            within("a header's value", value.len(), HEADER_BYTES_MAX)?;
        }
        within("the payload", content.payload.len(), PAYLOAD_BYTES_MAX)?;
        if let Some(Collect::Matching(predicate)) = collect {
            within("the predicate", predicate.len(), PREDICATE_BYTES_MAX)?;
        }
        let headers = content.headers.iter().map(|(n, v)| (n.as_ref(), v.as_ref()));
        let (seq, time_ms) = (self.seq + 1, self.state.time_ms);
        self.put(seq, time_ms, content.key.as_deref(), headers, &content.payload, collect);
        Ok(())
    }

    /// Adds an event that was read from a batch; numbers between the last one and it are skipped.
    ///
    /// # Panics
    /// If its number is not greater than the last one.
    pub fn push(&mut self, event: &EventRef<'_>) {
        assert!(event.seq > self.seq, "events go forward");
        self.put(event.seq, event.time_ms, event.key, event.headers(), event.payload, event.collect);
    }

    fn put<'a>(
        &mut self,
        seq: u64,
        time_ms: u64,
        key: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
        payload: &[u8],
        collect: Option<&Collect>,
    ) {
        if self.start.is_none() {
            // The first event's state is the batch's, so that the event itself need not say it.
            self.state = BatchState { time_ms, collect: collect.cloned() };
            self.start = Some(self.state.clone());
        }
        let count = headers.clone().count();
        let skipped = seq - self.seq - 1;
        let repeats = collect.is_some() && self.state.collect.as_ref() == collect;
        let mut flags = match collect {
            None => 0,
            Some(_) if repeats => 1,
            Some(collect) => code_of(collect),
        };
        flags |= if key.is_some() { KEY } else { 0 };
        flags |= if count > 0 { HEADERS } else { 0 };
        flags |= if skipped > 0 { SKIP } else { 0 };
        flags |= if time_ms != self.state.time_ms { TIME } else { 0 };
        let out = &mut self.bytes;
        out.reserve(key.map_or(0, <[u8]>::len) + payload.len() + 32);
        out.put_u8(flags);
        if skipped > 0 {
            varint::put(out, skipped);
        }
        if time_ms != self.state.time_ms {
            varint::put(out, varint::zigzag(time_ms.wrapping_sub(self.state.time_ms) as i64));
            self.state.time_ms = time_ms;
        }
        if let Some(collect) = collect.filter(|_| !repeats) {
            put_collect(out, collect);
            self.state.collect = Some(collect.clone());
        }
        if let Some(key) = key {
            varint::put(out, key.len() as u64);
            out.put_slice(key);
        }
        if count > 0 {
            varint::put(out, count as u64);
            for (name, value) in headers {
                for text in [name, value] {
                    varint::put(out, text.len() as u64);
                    out.put_slice(text);
                }
            }
        }
        varint::put(out, payload.len() as u64);
        out.put_slice(payload);
        self.seq = seq;
        self.count += 1;
    }

    /// Adds a batch that begins where this one ends, or later. As soon as its next event takes over the same here as
    /// there, the rest is copied as it is.
    fn append(&mut self, batch: &Batch) -> Result<(), MalformedBatch> {
        let mut cursor = batch.cursor();
        while self.start.is_none() || self.seq != cursor.seq || self.state != cursor.state {
            let Some(event) = &cursor.next()? else { return Ok(()) };
            if event.seq <= self.seq {
                return Err(MalformedBatch("it begins before the end of the one before it"));
            }
            self.push(event);
        }
        let copied = cursor.position;
        while let Some((event, alike)) = cursor.next_alike(u32::MAX)? {
            self.seq = event.seq;
            self.count += alike;
        }
        self.bytes.extend_from_slice(&batch.bytes[copied..]);
        self.state = cursor.state;
        Ok(())
    }

    /// Adds a publisher's batch: its events follow with the next numbers, and the time of the event before them.
    pub fn extend(&mut self, batch: &Batch) -> Result<(), MalformedBatch> {
        let mut cursor = batch.cursor();
        while let Some(event) = cursor.next()? {
            let (seq, time_ms) = (self.seq + 1, self.state.time_ms);
            self.put(seq, time_ms, event.key, event.headers(), event.payload, event.collect);
        }
        Ok(())
    }

    /// The batch, up to `last` or its last event, whichever is later.
    pub fn finish(self, last: u64) -> Batch {
        Batch {
            after: self.after,
            last: last.max(self.seq),
            removed: 0,
            count: self.count,
            state: self.start.unwrap_or_default(),
            bytes: self.bytes.into(),
        }
    }
}

fn within(what: &'static str, is: usize, max: usize) -> Result<(), TooLarge> {
    if is > max { Err(TooLarge { what, is, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Event, Kind};

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    fn collect() -> impl Strategy<Value = Collect> {
        prop_oneof![
            Just(Collect::SameKey),
            (0..3u64).prop_map(Collect::KeepLast),
            any::<u64>().prop_map(Collect::Before),
            any::<u64>().prop_map(Collect::OlderThan),
            bytes().prop_map(Collect::Matching),
        ]
    }

    fn content() -> impl Strategy<Value = Content> {
        (proptest::option::of(bytes()), proptest::collection::vec((bytes(), bytes()), 0..3), bytes())
            .prop_map(|(key, headers, payload)| Content { key, headers, payload })
    }

    type Published = Vec<(Content, Option<Collect>)>;

    fn published() -> impl Strategy<Value = Published> {
        proptest::collection::vec((content(), proptest::option::of(collect())), 1..12)
    }

    fn encode(events: &Published) -> Batch {
        let mut writer = Writer::new(0);
        for (content, collect) in events {
            writer.publish(content, collect.as_ref()).unwrap();
        }
        writer.finish(0)
    }

    fn numbered(mut batch: Batch, after: u64, time_ms: u64) -> Batch {
        batch.last = after + (batch.last - batch.after);
        batch.after = after;
        batch.state.time_ms = time_ms;
        batch
    }

    proptest! {
        #[test]
        fn what_is_published_comes_back_numbered_and_timed(events in published(), after in 0..1u64 << 60) {
            let batch = numbered(encode(&events), after, 77);
            batch.check().unwrap();
            let read: Vec<Event> = batch.events().map(Result::unwrap).collect();
            prop_assert_eq!(read.len(), events.len());
            for (at, (event, (content, collect))) in read.iter().zip(&events).enumerate() {
                prop_assert_eq!((event.seq, event.range, event.time_ms), (after + 1 + at as u64, 1, 77));
                let kind = match collect {
                    None => Kind::Data(content.clone()),
                    Some(collect) => Kind::Collection(content.clone(), collect.clone()),
                };
                prop_assert_eq!(&event.kind, &kind);
            }
        }

        #[test]
        fn events_that_are_alike_are_passed_together_and_none_is_left_out(
            runs in proptest::collection::vec((any::<bool>(), proptest::option::of(collect()), 1..40usize, 0..300usize), 1..8),
            most in 1..50u32,
        ) {
            let mut events = Published::new();
            for (has_key, collect, count, length) in runs {
                let key = has_key.then(|| Bytes::from_static(b"key"));
                let payload = Bytes::from(vec![7; length]);
                let content = Content { key, headers: Vec::new(), payload };
                events.extend(std::iter::repeat_n((content, collect), count));
            }
            let batch = encode(&events);
            let (mut cursor, mut one_by_one) = (batch.cursor(), batch.cursor());
            while let Some((last, alike)) = cursor.next_alike(most).unwrap() {
                prop_assert!((1..=most).contains(&alike));
                for left in (0..alike).rev() {
                    let event = one_by_one.next().unwrap().expect("as many events");
                    prop_assert_eq!(event.seq + u64::from(left), last.seq);
                    let of = |event: &EventRef<'_>| (event.collect.cloned(), event.key.map(<[u8]>::to_vec), event.time_ms);
                    prop_assert_eq!(of(&event), of(&last));
                    prop_assert!(left > 0 || event.payload == last.payload);
                }
            }
            prop_assert!(one_by_one.next().unwrap().is_none());
        }

        #[test]
        fn a_batch_with_some_events_left_out_covers_every_number_once(
            events in published(), keep in proptest::collection::vec(any::<bool>(), 12), cut in 0..14u64,
            end in 1..14u64,
        ) {
            let batch = encode(&events);
            let mut writer = Writer::new(0);
            let mut cursor = batch.cursor();
            while let Some(event) = cursor.next().unwrap() {
                if keep[event.seq as usize - 1] {
                    writer.push(&event);
                }
            }
            let thinned = writer.finish(batch.last);
            thinned.check().unwrap();
            let whole: Vec<Event> = batch.events().map(Result::unwrap).collect();
            let Some(rest) = thinned.rest(cut).unwrap() else {
                prop_assert!(cut >= batch.last);
                return Ok(());
            };
            let Some(rest) = rest.up_to(end).unwrap() else {
                prop_assert!(end <= cut);
                return Ok(());
            };
            rest.check().unwrap();
            let mut at = cut;
            for event in rest.events() {
                let event = event.unwrap();
                prop_assert_eq!(event.after(), at);
                at = event.seq;
                if event.is_tombstone() {
                    for seq in event.after() + 1..=event.seq {
                        prop_assert!(!keep[seq as usize - 1]);
                    }
                } else {
                    prop_assert!(keep[event.seq as usize - 1]);
                    prop_assert_eq!(&event.kind, &whole[event.seq as usize - 1].kind);
                }
            }
            prop_assert_eq!(at, batch.last.min(end));
        }

        #[test]
        fn batches_that_follow_each_other_are_the_same_events_when_they_are_joined(
            parts in proptest::collection::vec((published(), proptest::collection::vec(any::<bool>(), 12), 0..3u64), 1..5),
        ) {
            let (mut batches, mut wanted, mut after) = (Vec::new(), Vec::new(), 0);
            for (events, keep, more) in parts {
                let whole = Batch { after, last: after + events.len() as u64, ..encode(&events) };
                let mut writer = Writer::new(after);
                let mut cursor = whole.cursor();
                let mut place = keep.iter();
                while let Some(event) = cursor.next().unwrap() {
                    if *place.next().unwrap() {
                        writer.push(&event);
                    }
                }
                // Some as they were published, some with collected events, and numbers collected at the end.
                let batch = if keep[0] { whole } else { writer.finish(whole.last + more) };
                wanted.extend(batch.events().map(Result::unwrap).filter(|event| !event.is_tombstone()));
                after = batch.last;
                batches.push(batch);
            }
            let joined = Batch::joined(&batches).unwrap();
            joined.check().unwrap();
            prop_assert_eq!((joined.after, joined.last), (0, after));
            let events: Vec<Event> =
                joined.events().map(Result::unwrap).filter(|event| !event.is_tombstone()).collect();
            prop_assert_eq!(events, wanted);
        }

        #[test]
        fn bytes_that_are_no_events_are_refused_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..64), count in 0..5u32,
        ) {
            let batch = Batch { after: 0, last: 10, removed: 0, count, state: BatchState::default(), bytes: bytes.into() };
            let _ = batch.check();
            let _ = batch.rest(3);
            for _ in batch.events().take(100) {}
        }
    }

    #[test]
    fn what_was_removed_is_told_by_each_part_that_follows_what_was_there_before_and_by_its_bytes() {
        let mut writer = Writer::new(3);
        let one = numbered(encode(&vec![(Content::default(), None)]), 5, 0);
        writer.push(&one.cursor().next().unwrap().unwrap());
        let two = numbered(encode(&vec![(Content::default(), None)]), 9, 0);
        writer.push(&two.cursor().next().unwrap().unwrap());
        let batch = Batch { removed: 9, ..writer.finish(12) };
        for (after, last) in (3..12).flat_map(|after| (after + 1..=12).map(move |last| (after, last))) {
            let part = batch.rest(after).unwrap().unwrap().up_to(last).unwrap().unwrap();
            part.check().unwrap();
            let removed = if after < 9 { last.min(9) } else { 0 };
            assert_eq!((part.after, part.last, part.removed), (after, last, removed));
            let mut bytes = bytes::BytesMut::new();
            crate::wire::WirePiece::append(&part, &mut bytes);
            assert_eq!(bytes.len(), crate::wire::WirePiece::size(&part));
            let mut reader = crate::wire::Reader::new(bytes.freeze());
            let read: Batch = crate::wire::WirePiece::take(&mut reader).unwrap();
            assert_eq!(read, part);
        }
        let before = Batch { removed: 2, ..Writer::new(0).finish(3) };
        assert_eq!(Batch::joined(&[before.clone(), batch]).unwrap().removed, 9);
        for removed in [3, 13] {
            assert!(Batch { removed, after: 3, last: 12, ..before.clone() }.check().is_err());
        }
    }

    #[test]
    fn an_event_of_ten_bytes_that_keeps_the_last_costs_twelve() {
        let content = Content { payload: Bytes::from_static(b"0123456789"), ..Content::default() };
        let keep = Collect::KeepLast(100_000_000);
        let batch = encode(&vec![(content, Some(keep)); 100]);
        assert_eq!(batch.bytes.len(), 1200);
    }

    #[test]
    fn a_key_that_is_too_long_is_refused_with_both_lengths() {
        let content = Content { key: Some(vec![0; KEY_BYTES_MAX + 1].into()), ..Content::default() };
        let error = Writer::new(0).publish(&content, None).unwrap_err();
        assert_eq!(error.to_string(), "the key is 1025, more than 1024");
    }
}
