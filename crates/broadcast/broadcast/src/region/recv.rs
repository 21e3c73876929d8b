//! What a client has delivered and still keeps for others (the paper's `Recv`): the last events of each stream, in
//! order and without a gap, in a bounded number of bytes over all streams; the oldest go first.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::Batch;
use crate::limits::STREAMS_MAX;
use crate::name::Stream;

use super::message::batch_size;
use super::serve::ServeSource;

/// What a batch takes in memory besides its bytes, about.
const OVERHEAD: usize = 64;

/// What is asked for is most often among the newest batches: so many are looked at before it is searched for.
const NEWEST: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Recv {
    names: BTreeMap<Stream, usize>,
    streams: Vec<ReceivedKept>,
    /// By region, of which lineage its streams are.
    lineages: BTreeMap<String, u64>,
    /// The stream of each kept batch, in the order in which they were delivered.
    order: VecDeque<u32>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct ReceivedKept {
    name: Stream,
    held: u64,
    count: u64,
    bytes: usize,
    batches: VecDeque<Batch>,
}

impl Recv {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// The number of a known stream.
    pub(super) fn index(&self, stream: &Stream) -> Option<usize> {
        self.names.get(stream).copied()
    }

    /// Begins a stream after `count`; `None` if there are too many.
    pub(super) fn begin(&mut self, stream: &Stream, count: u64) -> Option<usize> {
        if self.streams.len() >= STREAMS_MAX {
            return None;
        }
        let index = self.streams.len();
        self.names.insert(stream.clone(), index);
        self.streams.push(ReceivedKept {
            name: stream.clone(),
            held: count,
            count,
            bytes: 0,
            batches: VecDeque::new(),
        });
        Some(index)
    }

    /// The lineage of which a region's streams are; 0 if none is known.
    pub(super) fn lineage_of(&self, region: &str) -> u64 {
        self.lineages.get(region).copied().unwrap_or(0)
    }

    /// A region's streams are of another lineage from now on; whether that can be kept.
    pub(super) fn turn(&mut self, region: &str, lineage: u64) -> bool {
        let has_room = self.lineages.len() < STREAMS_MAX || self.lineages.contains_key(region);
        if has_room {
            self.lineages.insert(region.to_owned(), lineage);
        }
        has_room
    }

    /// Begins a stream anew, before its first event.
    pub(super) fn restart(&mut self, index: usize) {
        let kept = &mut self.streams[index];
        self.bytes -= kept.bytes;
        (kept.held, kept.count, kept.bytes) = (0, 0, 0);
        kept.batches.clear();
        self.order.retain(|of| *of as usize != index);
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn name(&self, index: usize) -> &Stream {
        &self.streams[index].name
    }

    /// A stream's name and lineage.
    pub(super) fn named(&self, index: usize) -> (Stream, u64) {
        let name = self.name(index);
        (name.clone(), self.lineage(name))
    }

    pub(super) fn count(&self, index: usize) -> u64 {
        self.streams[index].count
    }

    pub(super) fn kept_after(&self, index: usize) -> u64 {
        self.streams[index].held
    }

    /// How many bytes an event of a stream has on average, from 1; `None` if none is kept.
    pub(super) fn event_bytes(&self, index: usize) -> Option<usize> {
        let ReceivedKept { held, count, bytes, .. } = &self.streams[index];
        let numbers = usize::try_from(count - held).unwrap_or(usize::MAX);
        bytes.checked_div(numbers).map(|bytes| bytes.max(1))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds what follows.
    ///
    /// # Panics
    /// If it does not: nothing with a gap is ever delivered.
    pub(super) fn push(&mut self, index: usize, batch: Batch) {
        let kept = &mut self.streams[index];
        assert!(batch.after == kept.count && batch.last > batch.after, "events without a gap");
        kept.count = batch.last;
        kept.bytes += batch_size(&batch) + OVERHEAD;
        self.bytes += batch_size(&batch) + OVERHEAD;
        kept.batches.push_back(batch);
        self.order.push_back(index as u32);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            let kept = &mut self.streams[oldest as usize];
            let Some(batch) = kept.batches.pop_front() else { break };
            kept.held = batch.last;
            kept.bytes -= batch_size(&batch) + OVERHEAD;
            self.bytes -= batch_size(&batch) + OVERHEAD;
        }
    }
}

impl ServeSource for Recv {
    fn lineage(&self, stream: &Stream) -> u64 {
        // As long as no region has begun anew, there is no name to look for.
        if self.lineages.is_empty() { 0 } else { self.lineage_of(stream.region()) }
    }

    fn held(&self, stream: &Stream) -> Option<(u64, u64)> {
        let kept = &self.streams[self.index(stream)?];
        Some((kept.held, kept.count))
    }

    fn read(&self, stream: &Stream, after: u64, up_to: u64, _bytes_max: usize) -> Option<Batch> {
        let kept = &self.streams[self.index(stream)?];
        if after < kept.held || after >= kept.count {
            return None;
        }
        let newest = kept.batches.iter().rev().take(NEWEST).take_while(|batch| batch.last > after).count();
        let at = match newest {
            NEWEST => kept.batches.partition_point(|batch| batch.last <= after),
            _ => kept.batches.len() - newest,
        };
        // They were checked when they came; an error could only be a stream that is not sent.
        kept.batches.get(at)?.rest(after).ok()??.up_to(up_to).ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, Writer};

    #[test]
    fn what_is_kept_is_read_from_any_number_on_whether_it_came_long_ago_or_just_now() {
        let stream = Stream::parse("eu/x").unwrap();
        let mut recv = Recv::new(5_000);
        recv.begin(&stream, 0).unwrap();
        assert_eq!(recv.read(&stream, 0, u64::MAX, 1), None);
        for _ in 0..50 {
            let after = recv.count(0);
            let mut writer = Writer::new(after);
            (0..3).for_each(|_| writer.publish(&Content::default(), None).unwrap());
            recv.push(0, writer.finish(after + 3));
            let (held, count) = recv.held(&stream).unwrap();
            for after in 0..count + 2 {
                let read = recv.read(&stream, after, u64::MAX, 1).map(|batch| (batch.after, batch.last));
                let kept = (held..count).contains(&after);
                assert_eq!(read, kept.then_some((after, after / 3 * 3 + 3)), "{after} of ({held}, {count}]");
            }
        }
        assert!(recv.held(&stream).unwrap().0 > 0, "some were dropped");
    }
}
