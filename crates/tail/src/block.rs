//! The one validated private copy that a process has of a run of entries; everything that is handed to
//! consumers borrows from it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use tailwater_format::batch::{BatchHeader, Codec, Decompressor};
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{EntryCorrupt, EntryError, EntryHeader, EntryReader, Position, SegmentId};

/// Whole entries of one segment, checked, in one piece of memory.
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
}

/// One entry of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockEntry {
    /// Its header.
    pub header: EntryHeader,
    /// Its record batches among the block's.
    first_batch: u32,
    batch_end: u32,
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

    /// Takes in the bytes from [`Cutter::end`] on. The block has the entries that are whole, `None` if none
    /// is. After an error the bytes since [`Cutter::position`] are forgotten, so that they can be read again.
    pub(crate) fn push(&mut self, bytes: BytesMut) -> Result<Option<Block>, CutError> {
        if self.rest.is_empty() {
            self.rest = bytes;
        } else {
            self.rest.extend_from_slice(&bytes);
        }
        let (start, before) = (self.reader.position(), self.reader.clone());
        let mut entries = Vec::new();
        let mut at = 0;
        let result = loop {
            match self.reader.read(&self.rest[at..]) {
                Ok(entry) => {
                    entries.push((entry.header, at));
                    at += entry.header.len as usize;
                }
                Err(EntryError::Incomplete { .. }) => break Ok(()),
                Err(EntryError::Corrupt(why)) => break Err(CutError::Entry(why)),
            }
        };
        let bytes = self.rest.split_to(at).freeze();
        let block = result.and_then(|()| self.block(start, bytes, &entries));
        match block {
            Err(_) => {
                self.reader = before;
                self.rest.clear();
            }
            // The beginning of an entry must not keep the whole block's memory.
            Ok(_) if at > 0 && !self.rest.is_empty() => self.rest = BytesMut::from(&self.rest[..]),
            Ok(_) => {}
        }
        Ok(block?.filter(|_| at > 0))
    }

    fn block(
        &mut self,
        start: Position,
        bytes: Bytes,
        found: &[(EntryHeader, usize)],
    ) -> Result<Option<Block>, CutError> {
        let (mut entries, mut batches) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        let mut len_bytes = bytes.len();
        for (header, at) in found.iter().filter(|(header, _)| !header.is_control()) {
            let end = at + header.len as usize;
            let mut body = bytes.slice(end - header.body_len()..end);
            let first_batch = batches.len() as u32;
            while !body.is_empty() {
                let header = BatchHeader::parse(&body).map_err(|why| CutError::Batch(why.to_string()))?;
                if header.len > body.len() {
                    return Err(CutError::Batch(format!("{} bytes in {}", header.len, body.len())));
                }
                let batch = body.split_to(header.len);
                let records = self.records(&header, &batch)?;
                if header.codec != Codec::None {
                    len_bytes += records.len();
                }
                batches.push(BlockBatch { header, records });
            }
            entries.push(BlockEntry { header: *header, first_batch, batch_end: batches.len() as u32 });
        }
        len_bytes += size_of_val(&entries[..]) + size_of_val(&batches[..]);
        let end = self.reader.position();
        Ok(Some(Block { segment: self.segment, start, end, entries, batches, len_bytes }))
    }

    fn records(&mut self, header: &BatchHeader, batch: &Bytes) -> Result<Bytes, CutError> {
        let stored = batch.slice(batch.len() - header.records_len()..);
        if header.codec == Codec::None {
            return Ok(stored);
        }
        let records = self.decompressor.decompress(header.codec, &stored, RECORDS_DECOMPRESSED_BYTES_MAX);
        Ok(Bytes::copy_from_slice(records.map_err(|why| CutError::Batch(why.to_string()))?))
    }
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
}
