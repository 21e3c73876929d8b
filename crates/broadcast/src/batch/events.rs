//! A batch's events, one after the other, as an application gets them.

use bytes::Bytes;

use super::{Batch, EventRef, Malformed, read_event};
use crate::event::{Content, Event, Kind};

/// The events of a batch, with tombstones. It holds the batch, and each event is made when it is asked for: what it carries are
/// slices of the batch, so that only headers, if it has some, take an allocation.
#[derive(Clone, Debug)]
pub struct Events {
    /// What follows the events that were taken: its state is that of the next one, and it covers all behind `at`.
    batch: Batch,
    /// Of the next event in the batch's bytes.
    position: usize,
    /// The number of the last event that was read, or the one before the first.
    at: u64,
    /// Read behind a tombstone, and not taken yet.
    pending: Option<Event>,
    ended: bool,
}

impl Events {
    pub(super) fn new(batch: Batch) -> Self {
        Self { at: batch.after, batch, position: 0, pending: None, ended: false }
    }
}

impl Iterator for Events {
    type Item = Result<Event, Malformed>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.pending.is_some() {
            return self.pending.take().map(Ok);
        }
        if self.ended {
            return None;
        }
        let before = self.batch.state.time_ms;
        let tombstone = |seq, range| Event { seq, range, time_ms: before, kind: Kind::Tombstone };
        let bytes = &self.batch.bytes;
        match read_event(bytes, &mut self.position, &mut self.batch.state, &mut self.at) {
            Ok(Some(event)) if event.skipped == 0 => Some(Ok(owned(bytes, &event))),
            Ok(Some(event)) => {
                let first = tombstone(event.seq - 1, event.skipped);
                self.pending = Some(owned(bytes, &event));
                Some(Ok(first))
            }
            Ok(None) => {
                self.ended = true;
                let range = self.batch.last.saturating_sub(self.at);
                (range > 0).then(|| Ok(tombstone(self.batch.last, range)))
            }
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
        }
    }
}

#[inline(always)]
fn owned(bytes: &Bytes, event: &EventRef<'_>) -> Event {
    let content = Content {
        key: event.key.map(|key| bytes.slice_ref(key)),
        headers: event.headers().map(|(n, v)| (bytes.slice_ref(n), bytes.slice_ref(v))).collect(),
        payload: bytes.slice_ref(event.payload),
    };
    let kind = match event.collect {
        None => Kind::Data(content),
        Some(collect) => Kind::Collection(content, collect.clone()),
    };
    Event { seq: event.seq, range: 1, time_ms: event.time_ms, kind }
}
