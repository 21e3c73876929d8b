//! Brings byte ranges of segments together from both layers (Fast ACS, section 2.4 "Readers").
//!
//! For every range: a relaxed read of all its chunks; a consistent read of those that came short; and for
//! those that are still short, one durable read that spans all of them. What a chunk holds beyond the range is
//! ignored: callers ask for nothing that is not published.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tailwater_cache::{Cell, Lookup};
use tailwater_format::{CHUNK_KEY_BYTES, ChunkKey, Position, SegmentId};
use tokio::sync::Semaphore;

use crate::limits::{CATCH_UP_READS_MAX, DURABLE_READ_BYTES_MAX, TAIL_READS_MAX};
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
        (start.max(self.from.0), end.min(self.to.0))
    }
}

/// The bytes of a range.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) bytes: BytesMut,
    /// How many were read from the durable layer to get them.
    pub(crate) durable_bytes: u64,
}

/// A range on its way: its bytes as far as they came, and the chunks that are still short.
pub(crate) struct Assembly {
    pub(crate) range: ByteRange,
    /// Reaches as far as something came, with zeros for what is short in between.
    bytes: BytesMut,
    short: Vec<u64>,
}

impl Assembly {
    fn new(range: ByteRange) -> Self {
        Self { range, bytes: BytesMut::with_capacity(range.memory()), short: Vec::new() }
    }

    /// Takes in chunk `number`, if `value` has all of it that the range needs.
    fn accept(&mut self, number: u64, value: &[u8]) -> bool {
        let (from, to) = self.range.part(number);
        let chunk_start = number * u64::from(self.range.chunk_bytes);
        let Some(part) = value.get((from - chunk_start) as usize..(to - chunk_start) as usize) else {
            return false;
        };
        let place = (from - self.range.from.0) as usize;
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
        if self.bytes.len() < place.end {
            self.bytes.resize(place.end, 0);
        }
        &mut self.bytes[place]
    }

    /// The bytes, if none is missing.
    pub(crate) fn complete(self) -> Result<Fetched, Self> {
        if self.short.is_empty() { Ok(Fetched { bytes: self.bytes, durable_bytes: 0 }) } else { Err(self) }
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
        let wanted: Vec<(usize, u64)> =
            ranges.iter().enumerate().flat_map(|(i, range)| range.chunks().map(move |n| (i, n))).collect();
        let keys = encode_keys(wanted.iter().map(|&(i, number)| ranges[i].key(number)));
        self.counters.relaxed.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let lookups = cell.get_relaxed(&keys).await;
        for ((i, number), lookup) in wanted.into_iter().zip(lookups) {
            if !self.accept(&mut assemblies[i], number, &lookup) {
                assemblies[i].short.push(number);
            }
        }
        assemblies
    }

    /// Brings in what an assembly is short of: consistent reads, then the durable layer.
    pub(crate) async fn finish(&self, mut assembly: Assembly, lane: Lane) -> Result<Fetched, SourceError> {
        let mut durable_bytes = 0;
        if let Some(cell) = self.data.as_ref().filter(|_| !assembly.short.is_empty()) {
            let numbers = std::mem::take(&mut assembly.short);
            let keys = encode_keys(numbers.iter().map(|&number| assembly.range.key(number)));
            self.counters.consistent.fetch_add(keys.len() as u64, Ordering::Relaxed);
            for (number, lookup) in numbers.into_iter().zip(cell.get_consistent(&keys).await) {
                if !self.accept(&mut assembly, number, &lookup) {
                    assembly.short.push(number);
                }
            }
        }
        if let (Some(&first), Some(&last)) = (assembly.short.first(), assembly.short.last()) {
            let from = assembly.range.part(first).0;
            let to = assembly.range.part(last).1;
            let place = (from - assembly.range.from.0) as usize..(to - assembly.range.from.0) as usize;
            self.durable_into(assembly.range.segment, from, assembly.place(place), lane).await?;
            durable_bytes = to - from;
        }
        Ok(Fetched { bytes: assembly.bytes, durable_bytes })
    }

    /// Reads a range from the durable layer alone.
    pub(crate) async fn durable(&self, range: &ByteRange, lane: Lane) -> Result<Fetched, SourceError> {
        let mut assembly = Assembly::new(*range);
        let whole = 0..range.memory();
        self.durable_into(range.segment, range.from.0, assembly.place(whole), lane).await?;
        Ok(Fetched { bytes: assembly.bytes, durable_bytes: range.len() })
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

    fn accept(&self, assembly: &mut Assembly, number: u64, lookup: &Lookup) -> bool {
        let Lookup::Hit { value, .. } = lookup else { return false };
        self.counters.cell_bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        assembly.accept(number, value)
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
