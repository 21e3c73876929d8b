//! Brings byte ranges of segments together from both layers (Fast ACS, section 2.4 "Readers").
//!
//! For every range: a relaxed read of all its chunks; a consistent read of those that came short; and for those that
//! are still short, one durable read that spans all of them. What a chunk holds beyond the range is ignored: callers
//! ask for nothing that is not published. Whether full chunks that came over a socket are what was written is left to
//! the checksums of the entries in them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tailwater_cache::{Cell, Lookup, joined};
use tailwater_format::{CHUNK_KEY_BYTES, ChunkKey, Position, SegmentId};
use tokio::sync::Semaphore;

use crate::limits::{CATCH_UP_READS_MAX, DURABLE_READ_BYTES_MAX, TAIL_READS_MAX, WHOLE_BYTES_MIN};
use crate::{DurableSource, SourceError};

/// A range of one segment: `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) segment: SegmentId,
    pub(crate) chunk_bytes: u32,
    pub(crate) from: Position,
    pub(crate) to: Position,
}

impl ByteRange {
    /// The chunks that the range touches.
    fn chunks(&self) -> std::ops::Range<u64> {
        let chunk = u64::from(self.chunk_bytes);
        self.from.0 / chunk..self.to.0.div_ceil(chunk)
    }

    pub(crate) fn len(&self) -> u64 {
        debug_assert!(self.from <= self.to, "{}: a range does not end before it begins", self.segment);
        self.to.0 - self.from.0
    }

    /// As [`ByteRange::len`], in memory.
    fn memory(&self) -> usize {
        usize::try_from(self.len()).expect("a feed asks for what fits into memory")
    }

    fn key(&self, chunk: u64) -> ChunkKey {
        ChunkKey { segment: self.segment, chunk_bytes: self.chunk_bytes, chunk }
    }

    /// The part of chunk `number` that the range needs.
    fn part(&self, number: u64) -> (u64, u64) {
        let chunk = u64::from(self.chunk_bytes);
        let (start, end) = (number * chunk, (number + 1) * chunk);
        debug_assert!(self.chunks().contains(&number), "{}: chunk {number} is not asked for", self.segment);
        (start.max(self.from.0), end.min(self.to.0))
    }
}

/// A range on its way: its bytes as far as they came, and the chunks that are still short.
pub(crate) struct Assembly {
    pub(crate) range: ByteRange,
    /// All of it, where it came in one piece.
    whole: Option<Bytes>,
    /// Reaches as far as something came, with zeros for what is short in between.
    bytes: BytesMut,
    short: Vec<u64>,
}

impl Assembly {
    fn new(range: ByteRange) -> Self {
        Self { range, whole: None, bytes: BytesMut::new(), short: Vec::new() }
    }

    /// The part of chunk `number`, which is `value`, that the range needs, if the chunk has all of it.
    fn part<'a>(&self, number: u64, value: &'a [u8]) -> Option<&'a [u8]> {
        let (from, to) = self.range.part(number);
        let chunk_start = number * u64::from(self.range.chunk_bytes);
        value.get((from - chunk_start) as usize..(to - chunk_start) as usize)
    }

    /// Takes in all chunks as they are, if they have all that the range needs in one piece of one of `frames`, and it
    /// is long enough; whether it did.
    fn accept_whole(&mut self, lookups: &[Lookup], frames: &[Bytes]) -> bool {
        if self.range.len() < WHOLE_BYTES_MIN {
            return false;
        }
        let parts = self.range.chunks().zip(lookups).map(|(number, lookup)| match lookup {
            Lookup::Hit { value, .. } => self.part(number, value),
            Lookup::Miss | Lookup::Failed(_) => None,
        });
        let parts: Option<Vec<&[u8]>> = parts.collect();
        self.whole = parts.and_then(|parts| joined(parts, frames));
        self.whole.is_some()
    }

    /// Takes in chunk `number`, if `value` has all of it that the range needs.
    fn accept(&mut self, number: u64, value: &[u8]) -> bool {
        let Some(part) = self.part(number, value) else { return false };
        let place = (self.range.part(number).0 - self.range.from.0) as usize;
        self.reserve();
        if place == self.bytes.len() {
            // The usual order: memory is written once.
            self.bytes.extend_from_slice(part);
        } else {
            self.place(place..place + part.len()).copy_from_slice(part);
        }
        true
    }

    /// Where some of the range's bytes belong.
    fn place(&mut self, place: Range<usize>) -> &mut [u8] {
        self.reserve();
        if self.bytes.len() < place.end {
            self.bytes.resize(place.end, 0);
        }
        &mut self.bytes[place]
    }

    /// Makes room for all of the range, once.
    fn reserve(&mut self) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(self.range.memory());
        }
    }

    /// Takes the bytes out, if none is missing.
    pub(crate) fn complete(&mut self) -> Option<Bytes> {
        self.short.is_empty().then(|| self.take())
    }

    fn take(&mut self) -> Bytes {
        let bytes = self.whole.take().unwrap_or_else(|| std::mem::take(&mut self.bytes).freeze());
        assert_eq!(bytes.len(), self.range.memory(), "{}: all of the range and no more", self.range.segment);
        bytes
    }
}

/// Counters of reads.
#[derive(Debug, Default)]
pub(crate) struct FetchCounters {
    pub(crate) relaxed: AtomicU64,
    pub(crate) consistent: AtomicU64,
    pub(crate) durable: AtomicU64,
    pub(crate) cell_bytes: AtomicU64,
    pub(crate) durable_bytes: AtomicU64,
    pub(crate) entry_bytes: AtomicU64,
    pub(crate) window_blocks: AtomicU64,
    pub(crate) window_bytes: AtomicU64,
}

/// Who is fetched for, and what a durable read of it is. Each has turns of its own, so that consumers near the tail do
/// not wait behind those that catch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Tail,
    CatchUp,
}

/// Reads ranges; shared by everything in a process that reads.
#[derive(Clone)]
pub(crate) struct Fetcher {
    pub(crate) data: Option<Cell>,
    pub(crate) source: Arc<dyn DurableSource>,
    pub(crate) counters: Arc<FetchCounters>,
    tail_turns: Arc<Semaphore>,
    catch_up_turns: Arc<Semaphore>,
}

impl Fetcher {
    pub(crate) fn new(data: Option<Cell>, source: Arc<dyn DurableSource>) -> Self {
        Self {
            data,
            source,
            counters: Arc::default(),
            tail_turns: Arc::new(Semaphore::new(TAIL_READS_MAX)),
            catch_up_turns: Arc::new(Semaphore::new(CATCH_UP_READS_MAX)),
        }
    }

    /// One relaxed read for the chunks of all `ranges`.
    pub(crate) async fn relaxed(&self, ranges: &[ByteRange]) -> Vec<Assembly> {
        let mut assemblies: Vec<_> = ranges.iter().map(|range| Assembly::new(*range)).collect();
        let Some(cell) = &self.data else {
            for assembly in &mut assemblies {
                assembly.short = assembly.range.chunks().collect();
            }
            return assemblies;
        };
        let wanted: Vec<ChunkKey> =
            ranges.iter().flat_map(|range| range.chunks().map(|number| range.key(number))).collect();
        let keys = encode_keys(wanted.into_iter());
        self.counters.relaxed.fetch_add(keys.len() as u64, Ordering::Relaxed);
        // A full chunk is never written again, so it is torn only where it was evicted meanwhile; its entries have
        // checksums of their own, without which nothing is read. The last one of a file is replaced at every flush.
        let full = ranges.iter().map(|range| range.chunk_bytes).max().unwrap_or(u32::MAX);
        let (lookups, frames) = cell.get_relaxed_with_frames(&keys, full as usize).await;
        let mut rest = &lookups[..];
        for assembly in &mut assemblies {
            let chunks = assembly.range.chunks();
            let found;
            (found, rest) = rest.split_at(chunks.clone().count());
            self.count(found);
            if !assembly.accept_whole(found, &frames) {
                chunks.zip(found).for_each(|(number, lookup)| accept(assembly, number, lookup));
            }
        }
        assemblies
    }

    /// Brings in what an assembly is short of: consistent reads, then the durable layer.
    pub(crate) async fn finish(&self, mut assembly: Assembly, lane: Lane) -> Result<Bytes, SourceError> {
        if let Some(cell) = self.data.as_ref().filter(|_| !assembly.short.is_empty()) {
            let numbers = std::mem::take(&mut assembly.short);
            let keys = encode_keys(numbers.iter().map(|&number| assembly.range.key(number)));
            self.counters.consistent.fetch_add(keys.len() as u64, Ordering::Relaxed);
            let lookups = cell.get_consistent(&keys).await;
            self.count(&lookups);
            for (number, lookup) in numbers.into_iter().zip(&lookups) {
                accept(&mut assembly, number, lookup);
            }
        }
        if let (Some(&first), Some(&last)) = (assembly.short.first(), assembly.short.last()) {
            let from = assembly.range.part(first).0;
            let to = assembly.range.part(last).1;
            let place = (from - assembly.range.from.0) as usize..(to - assembly.range.from.0) as usize;
            self.durable_into(assembly.range.segment, from, assembly.place(place), lane).await?;
        }
        Ok(assembly.take())
    }

    /// Reads a range from the durable layer alone.
    pub(crate) async fn durable(&self, range: &ByteRange, lane: Lane) -> Result<Bytes, SourceError> {
        let mut assembly = Assembly::new(*range);
        let whole = 0..range.memory();
        self.durable_into(range.segment, range.from.0, assembly.place(whole), lane).await?;
        Ok(assembly.take())
    }

    async fn durable_into(
        &self,
        segment: SegmentId,
        from: u64,
        out: &mut [u8],
        lane: Lane,
    ) -> Result<(), SourceError> {
        let turns = match lane {
            Lane::Tail => &self.tail_turns,
            Lane::CatchUp => &self.catch_up_turns,
        };
        let _turn = turns.acquire().await.expect("nobody closes it");
        let mut done = 0;
        while done < out.len() {
            let len = u32::try_from(out.len() - done).unwrap_or(u32::MAX).min(DURABLE_READ_BYTES_MAX);
            self.counters.durable.fetch_add(1, Ordering::Relaxed);
            let bytes = self.source.read(segment, Position(from + done as u64), len).await?;
            if bytes.is_empty() || bytes.len() > len as usize {
                let what = format!("{} bytes of {segment} at {from}, asked for 1 to {len}", bytes.len());
                return Err(SourceError::Invalid(what));
            }
            self.counters.durable_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            out[done..done + bytes.len()].copy_from_slice(&bytes);
            done += bytes.len();
        }
        Ok(())
    }

    /// Counts what came from the cell.
    fn count(&self, lookups: &[Lookup]) {
        let bytes = lookups.iter().map(|lookup| match lookup {
            Lookup::Hit { value, .. } => value.len() as u64,
            Lookup::Miss | Lookup::Failed(_) => 0,
        });
        self.counters.cell_bytes.fetch_add(bytes.sum(), Ordering::Relaxed);
    }
}

/// Takes in what was found of a chunk, or notes that it is short.
fn accept(assembly: &mut Assembly, number: u64, lookup: &Lookup) {
    let is_there = match lookup {
        Lookup::Hit { value, .. } => assembly.accept(number, value),
        Lookup::Miss | Lookup::Failed(_) => false,
    };
    if !is_there {
        assembly.short.push(number);
    }
}

/// Keys as a cell takes them, all in one allocation.
fn encode_keys(keys: impl ExactSizeIterator<Item = ChunkKey>) -> Vec<Bytes> {
    let mut bytes = BytesMut::with_capacity(keys.len() * CHUNK_KEY_BYTES);
    keys.for_each(|key| bytes.extend_from_slice(&key.to_array()));
    let bytes = bytes.freeze();
    (0..bytes.len()).step_by(CHUNK_KEY_BYTES).map(|at| bytes.slice(at..at + CHUNK_KEY_BYTES)).collect()
}

#[cfg(test)]
mod tests;
