//! The one validated private copy that a process has of a run of entries; everything that is handed to
//! consumers borrows from it.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tailwater_format::batch::{BatchHeader, Codec, Decompressor, Records};
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{
    Entry, EntryCorrupt, EntryError, EntryHeader, EntryReader, Offset, Position, SegmentId,
};

/// Whole entries of one segment, checked.
#[derive(Debug)]
pub struct Block {
    /// The segment they are of.
    pub segment: SegmentId,
    /// Where the first one begins.
    pub start: Position,
    /// Where the last one ends.
    pub end: Position,
    entries: Vec<BlockEntry>,
    batches: Vec<BlockBatch>,
    len_bytes: usize,
    /// The arena that it borrows from, if it came through a window.
    arena: Option<u64>,
}

/// One entry of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockEntry {
    /// Its header.
    pub header: EntryHeader,
    /// Its record batches among the block's.
    pub(crate) first_batch: u32,
    pub(crate) batch_end: u32,
}

/// One record batch of a block, ready to be iterated over by any number of consumers.
#[derive(Clone, Debug)]
pub struct BlockBatch {
    /// Its header.
    pub header: BatchHeader,
    /// Its records, decompressed.
    pub records: Bytes,
}

impl Block {
    /// A block that another process has checked; it borrows `len_bytes` of that process's memory.
    pub(crate) fn of_window(
        segment: SegmentId,
        place: Range<Position>,
        entries: Vec<BlockEntry>,
        batches: Vec<BlockBatch>,
        len_bytes: usize,
        arena: u64,
    ) -> Self {
        let Range { start, end } = place;
        Self { segment, start, end, entries, batches, len_bytes, arena: Some(arena) }
    }

    /// The number of the window's arena that it borrows from, if it does.
    pub(crate) fn arena(&self) -> Option<u64> {
        self.arena
    }

    /// The entries, in order; control entries are not among them.
    pub fn entries(&self) -> &[BlockEntry] {
        &self.entries
    }

    /// The record batches of some entries, by their places in [`Block::entries`].
    ///
    /// # Panics
    /// If there are no such entries.
    pub fn batches(&self, entries: Range<usize>) -> &[BlockBatch] {
        match &self.entries[entries] {
            [] => &[],
            [first, .., last] => &self.batches[first.first_batch as usize..last.batch_end as usize],
            [only] => &self.batches[only.first_batch as usize..only.batch_end as usize],
        }
    }

    /// The same in parts of at most `entries_max` entries, which is at least one, and, but for an entry that is longer,
    /// `bytes_max` bytes of the segment. A block with control entries, whose places it does not know, stays whole.
    pub fn parts(self: Arc<Self>, bytes_max: u64, entries_max: usize) -> Vec<Arc<Self>> {
        let len = |entry: &BlockEntry| u64::from(entry.header.len);
        let bytes = self.end.0 - self.start.0;
        let is_small = bytes <= bytes_max && self.entries.len() <= entries_max;
        if is_small || self.entries.iter().map(len).sum::<u64>() != bytes {
            return vec![self];
        }
        let mut parts = Vec::new();
        let (mut from, mut start) = (0, self.start);
        while let Some(first) = self.entries.get(from) {
            let (mut to, mut end) = (from, start.0);
            while let Some(next) = self.entries.get(to).filter(|_| to - from < entries_max)
                && (to == from || end + len(next) - start.0 <= bytes_max)
            {
                end += len(next);
                to += 1;
            }
            let of_part = |entry: &BlockEntry| BlockEntry {
                first_batch: entry.first_batch - first.first_batch,
                batch_end: entry.batch_end - first.first_batch,
                ..*entry
            };
            let end = Position(end);
            parts.push(Arc::new(Self {
                segment: self.segment,
                start,
                end,
                entries: self.entries[from..to].iter().map(of_part).collect(),
                batches: self.batches(from..to).to_vec(),
                len_bytes: (end.0 - start.0) as usize,
                arena: self.arena,
            }));
            (from, start) = (to.max(from + 1), end);
        }
        parts
    }

    /// Memory that the block keeps.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// Cuts the bytes of one segment, as they come, into blocks of whole entries.
pub(crate) struct Cutter {
    segment: SegmentId,
    reader: EntryReader,
    decompressor: Decompressor,
    /// Bytes from the reader's position on: the beginning of an entry.
    rest: BytesMut,
}

impl Cutter {
    /// Begins where an entry begins.
    pub(crate) fn new(segment: SegmentId, position: Position) -> Self {
        let reader = if position == Position(0) {
            EntryReader::new(segment)
        } else {
            EntryReader::starting_at(segment, position)
        };
        Self { segment, reader, decompressor: Decompressor::new(), rest: BytesMut::new() }
    }

    pub(crate) fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Where the next entry begins.
    pub(crate) fn position(&self) -> Position {
        self.reader.position()
    }

    /// How far the bytes reach that were taken in: where the next ones begin.
    pub(crate) fn end(&self) -> Position {
        Position(self.reader.position().0 + self.rest.len() as u64)
    }

    /// Forgets the bytes from [`Cutter::position`] on, so that they can be read again.
    pub(crate) fn forget_rest(&mut self) {
        self.rest.clear();
    }

    /// Takes in the bytes from [`Cutter::end`] on. The block has the entries that are whole, `None` if none is.
    /// With an error, it has those before the bad one, and the bytes behind them are forgotten, so that they can
    /// be read again from [`Cutter::position`] on.
    pub(crate) fn push(&mut self, mut bytes: Bytes) -> (Option<Block>, Result<(), CutError>) {
        let (start, all) = (self.reader.position(), self.end().0 + bytes.len() as u64);
        let mut parts = BlockParts::default();
        let result = match self.complete_rest(&mut bytes, &mut parts) {
            Ok(true) => self.cut(bytes, &mut parts),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.rest.clear();
        }
        let end = self.reader.position();
        assert!(start <= end, "{}: entries are read in order", self.segment);
        assert!(
            result.is_err() || self.end().0 == all,
            "{}: a byte is in an entry or waits for its rest",
            self.segment
        );
        let block = (end > start).then(|| Block {
            segment: self.segment,
            start,
            end,
            len_bytes: (end.0 - start.0) as usize
                + parts.extra_bytes
                + size_of_val(&parts.entries[..])
                + size_of_val(&parts.batches[..]),
            entries: parts.entries,
            batches: parts.batches,
            arena: None,
        });
        (block, result)
    }

    /// Completes the entry whose beginning is there with what it lacks of `bytes`, and copies no more of them: whoever
    /// is behind fetches many at once, and nearly always an entry lies across two fetches. Whether it is whole now, or
    /// there was none.
    fn complete_rest(&mut self, bytes: &mut Bytes, parts: &mut BlockParts) -> Result<bool, CutError> {
        while !self.rest.is_empty() {
            let before = self.reader.clone();
            match self.reader.read(&self.rest) {
                Ok(Entry { header, .. }) => {
                    let entry = std::mem::take(&mut self.rest).freeze();
                    if let Err(error) = parts.add(&header, &entry, &mut self.decompressor) {
                        self.reader = before;
                        return Err(error);
                    }
                }
                Err(EntryError::Incomplete { .. }) if bytes.is_empty() => return Ok(false),
                Err(EntryError::Incomplete { needed }) => {
                    let lacks = (needed - self.rest.len()).min(bytes.len());
                    self.rest.extend_from_slice(&bytes.split_to(lacks));
                }
                Err(EntryError::Corrupt(why)) => return Err(CutError::Entry(why)),
            }
        }
        Ok(true)
    }

    /// Takes the entries off that `bytes` begin with, and keeps the beginning of the next one.
    fn cut(&mut self, bytes: Bytes, parts: &mut BlockParts) -> Result<(), CutError> {
        let mut at = 0;
        loop {
            let before = self.reader.clone();
            match self.reader.read(&bytes[at..]) {
                Ok(Entry { header, .. }) => {
                    if let Err(error) = parts.add(&header, &bytes.slice(at..), &mut self.decompressor) {
                        self.reader = before;
                        return Err(error);
                    }
                    at += header.len as usize;
                }
                Err(EntryError::Incomplete { .. }) => {
                    // A copy: the beginning of an entry must not keep the whole block's memory. Without a block
                    // there is nothing to share with, and no copy.
                    self.rest = if at == 0 { into_mut(bytes) } else { BytesMut::from(&bytes[at..]) };
                    return Ok(());
                }
                Err(EntryError::Corrupt(why)) => return Err(CutError::Entry(why)),
            }
        }
    }
}

/// What a block is made of.
#[derive(Default)]
struct BlockParts {
    entries: Vec<BlockEntry>,
    batches: Vec<BlockBatch>,
    /// Memory of decompressed records.
    extra_bytes: usize,
}

impl BlockParts {
    /// Adds the entry that `bytes` begin with, or nothing if a record of it can't be read. Control entries have
    /// nothing to deliver.
    fn add(&mut self, header: &EntryHeader, bytes: &Bytes, out: &mut Decompressor) -> Result<(), CutError> {
        if header.is_control() {
            return Ok(());
        }
        let len = header.len as usize;
        let mut body = bytes.slice(len - header.body_len()..len);
        let first_batch = self.batches.len();
        let mut next_offset = header.base_offset;
        // What is put together for one entry is bounded where it is written, and so it is where it is read.
        let mut left = RECORDS_DECOMPRESSED_BYTES_MAX;
        let result = loop {
            if body.is_empty() {
                break Ok(());
            }
            match batch(&mut body, next_offset, out, left) {
                Ok(batch) => {
                    left -= if batch.header.codec == Codec::None { 0 } else { batch.records.len() };
                    next_offset = batch.header.next_offset();
                    self.batches.push(batch);
                }
                Err(error) => break Err(error),
            }
        };
        let result = result.and_then(|()| {
            let found = next_offset;
            let expected = header.next_offset();
            if found == expected { Ok(()) } else { Err(CutError::Offset { found, expected }) }
        });
        if result.is_err() {
            self.batches.truncate(first_batch);
            return result;
        }
        let compressed = self.batches[first_batch..].iter().filter(|batch| batch.header.codec != Codec::None);
        self.extra_bytes += compressed.map(|batch| batch.records.len()).sum::<usize>();
        let (first_batch, batch_end) = (first_batch as u32, self.batches.len() as u32);
        debug_assert!(first_batch <= batch_end, "an entry's batches are those added for it");
        self.entries.push(BlockEntry { header: *header, first_batch, batch_end });
        Ok(())
    }
}

/// Takes the batch off that `body` begins with, and reads through its records once, so that none of the many who
/// iterate over them finds a bad one.
fn batch(
    body: &mut Bytes,
    expected: Offset,
    out: &mut Decompressor,
    bytes_max: usize,
) -> Result<BlockBatch, CutError> {
    let header = BatchHeader::parse(body).map_err(|why| CutError::Batch(why.to_string()))?;
    if header.len > body.len() {
        return Err(CutError::Batch(format!("{} bytes in {}", header.len, body.len())));
    }
    if header.base_offset != expected {
        return Err(CutError::Offset { found: header.base_offset, expected });
    }
    let stored = body.split_to(header.len).split_off(header.len - header.records_len());
    let records = match header.codec {
        Codec::None => stored,
        codec => Bytes::copy_from_slice(
            out.decompress(codec, &stored, bytes_max).map_err(|why| CutError::Batch(why.to_string()))?,
        ),
    };
    for record in Records::new(&header, &records) {
        record.map_err(|why| CutError::Batch(why.to_string()))?;
    }
    Ok(BlockBatch { header, records })
}

/// `bytes` as something that can grow; without a copy if nobody else has them.
fn into_mut(bytes: Bytes) -> BytesMut {
    bytes.try_into_mut().unwrap_or_else(|bytes| BytesMut::from(&bytes[..]))
}

impl std::fmt::Debug for Cutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cutter({} at {})", self.segment, self.reader.position())
    }
}

/// Why bytes could not be cut into entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CutError {
    #[error(transparent)]
    Entry(#[from] EntryCorrupt),
    #[error("record batch: {0}")]
    Batch(String),
    #[error("offset {found} where {expected} is due")]
    Offset { found: Offset, expected: Offset },
}

#[cfg(test)]
mod tests;
