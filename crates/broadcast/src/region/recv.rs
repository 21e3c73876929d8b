//! What a client has delivered and still keeps for others (the paper's `Recv`): the last events of each stream, in
//! order and without a gap, in a bounded number of bytes over all streams; the oldest go first.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::Batch;
use crate::limits::STREAMS_MAX;
use crate::name::Stream;

use super::message::batch_size;
use super::serve::Source;

/// What a batch takes in memory besides its bytes, about.
const OVERHEAD: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Recv {
    names: BTreeMap<Stream, usize>,
    streams: Vec<Kept>,
    /// By region, of which lineage its streams are.
    lineages: BTreeMap<String, u64>,
    /// The stream of each kept batch, in the order in which they were delivered.
    order: VecDeque<u32>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Kept {
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
        self.streams.push(Kept {
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
        (name.clone(), self.lineage_of(name.region()))
    }

    pub(super) fn count(&self, index: usize) -> u64 {
        self.streams[index].count
    }

    pub(super) fn kept_after(&self, index: usize) -> u64 {
        self.streams[index].held
    }

    /// How many bytes an event of a stream has on average, from 1; `None` if none is kept.
    pub(super) fn event_bytes(&self, index: usize) -> Option<usize> {
        let Kept { held, count, bytes, .. } = &self.streams[index];
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

impl Source for Recv {
    fn lineage(&self, stream: &Stream) -> u64 {
        self.lineage_of(stream.region())
    }

    fn held(&self, stream: &Stream) -> Option<(u64, u64)> {
        let kept = &self.streams[self.index(stream)?];
        Some((kept.held, kept.count))
    }

    fn read(&self, stream: &Stream, after: u64, up_to: u64, _bytes_max: usize) -> Option<Batch> {
        let kept = &self.streams[self.index(stream)?];
        if after < kept.held {
            return None;
        }
        let at = kept.batches.partition_point(|batch| batch.last <= after);
        // They were checked when they came; an error could only be a stream that is not sent.
        kept.batches.get(at)?.rest(after).ok()??.up_to(up_to).ok()?
    }
}
