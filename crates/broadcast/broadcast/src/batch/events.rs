//! A batch's events, one after the other, as an application gets them.

use std::ops::Range;

use bytes::Bytes;

use super::{Batch, HeaderIter, MalformedBatch, read_parts};
use crate::event::{Collect, Content, Event, Kind};

/// The events of a batch, with tombstones. It holds the batch, and is at one of its events, which can be looked at in
/// place or taken out; what is taken out are slices of the batch, so that only headers, if it has some, take an
/// allocation.
#[derive(Clone, Debug)]
pub struct Events {
    /// Its state is that of the last event that was read.
    batch: Batch,
    /// Of the next event in the batch's bytes.
    position: usize,
    /// The number of the last event that was read, or the one before the first.
    read: u64,
    /// The event that it is at.
    at: EventPlace,
    /// Read behind the tombstone that it is at.
    pending: Option<EventPlace>,
    ended: bool,
}

/// An event, and where in the batch's bytes its parts are.
#[derive(Clone, Debug)]
struct EventPlace {
    seq: u64,
    /// How many numbers it covers; 0 where there is no event, before the first one.
    range: u64,
    time_ms: u64,
    is_tombstone: bool,
    /// As its batch's state says.
    collects: bool,
    key: Option<Range<u32>>,
    headers: Range<u32>,
    payload: Range<u32>,
}

impl EventPlace {
    fn without_content(seq: u64, range: u64, time_ms: u64) -> Self {
        let (headers, payload) = (0..0, 0..0);
        Self { seq, range, time_ms, is_tombstone: true, collects: false, key: None, headers, payload }
    }
}

impl Events {
    pub(super) fn new(batch: Batch) -> Self {
        let (read, at) = (batch.after, EventPlace::without_content(batch.after, 0, batch.state.time_ms));
        Self { batch, position: 0, read, at, pending: None, ended: false }
    }

    /// Goes on to the next event. `false` if there is none, and then it stays at the last one.
    #[inline]
    pub fn advance(&mut self) -> Result<bool, MalformedBatch> {
        if let Some(pending) = self.pending.take() {
            self.at = pending;
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        let before_ms = self.batch.state.time_ms;
        let bytes = &self.batch.bytes;
        match read_parts(bytes, &mut self.position, &mut self.batch.state, &mut self.read) {
            Ok(Some(parts)) => {
                let within = |part: &[u8]| {
                    let start = (part.as_ptr().addr() - bytes.as_ptr().addr()) as u32;
                    start..start + part.len() as u32
                };
                let place = EventPlace {
                    seq: parts.seq,
                    range: 1,
                    time_ms: self.batch.state.time_ms,
                    is_tombstone: false,
                    collects: parts.collects,
                    key: parts.key.map(within),
                    headers: within(parts.headers),
                    payload: within(parts.payload),
                };
                if parts.skipped == 0 {
                    self.at = place;
                } else {
                    self.at = EventPlace::without_content(parts.seq - 1, parts.skipped, before_ms);
                    self.pending = Some(place);
                }
                Ok(true)
            }
            Ok(None) => {
                self.ended = true;
                let range = self.batch.last.saturating_sub(self.read);
                if range > 0 {
                    self.at = EventPlace::without_content(self.batch.last, range, before_ms);
                }
                Ok(range > 0)
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    /// [`Event::seq`] of the event that it is at; before the first one, the number before that.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.at.seq
    }

    /// [`Event::range`] of the event that it is at.
    #[inline]
    pub fn range(&self) -> u64 {
        self.at.range
    }

    /// [`Event::time_ms`] of the event that it is at.
    #[inline]
    pub fn time_ms(&self) -> u64 {
        self.at.time_ms
    }

    /// Whether the event that it is at stands for collected ones.
    #[inline]
    pub fn is_tombstone(&self) -> bool {
        self.at.is_tombstone
    }

    /// [`Content::key`] of the event that it is at.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        self.at.key.as_ref().map(|key| self.part(key))
    }

    /// [`Content::headers`] of the event that it is at.
    pub fn headers(&self) -> HeaderIter<'_> {
        HeaderIter { rest: self.part(&self.at.headers) }
    }

    /// [`Content::payload`] of the event that it is at; nothing for a tombstone.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.part(&self.at.payload)
    }

    /// What the event that it is at makes obsolete.
    #[inline]
    pub fn collect(&self) -> Option<&Collect> {
        // The state is that of the event behind a tombstone, which collects nothing.
        self.batch.state.collect.as_ref().filter(|_| self.at.collects)
    }

    /// The event that it is at, to keep.
    pub fn to_event(&self) -> Event {
        let EventPlace { seq, range, time_ms, .. } = self.at;
        let kind = match (self.is_tombstone(), self.collect()) {
            (true, _) => Kind::Tombstone,
            (false, None) => Kind::Data(self.to_content()),
            (false, Some(collect)) => Kind::Collection(self.to_content(), collect.clone()),
        };
        Event { seq, range, time_ms, kind }
    }

    fn to_content(&self) -> Content {
        let bytes: &Bytes = &self.batch.bytes;
        Content {
            key: self.key().map(|key| bytes.slice_ref(key)),
            headers: self.headers().map(|(n, v)| (bytes.slice_ref(n), bytes.slice_ref(v))).collect(),
            payload: bytes.slice_ref(self.payload()),
        }
    }

    #[inline]
    fn part(&self, range: &Range<u32>) -> &[u8] {
        &self.batch.bytes[range.start as usize..range.end as usize]
    }
}

impl Iterator for Events {
    type Item = Result<Event, MalformedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(false) => None,
            Ok(true) => Some(Ok(self.to_event())),
            Err(error) => Some(Err(error)),
        }
    }
}
