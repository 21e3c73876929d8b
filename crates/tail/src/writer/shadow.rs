//! The bytes of one segment on their way into the data cell.

use bytes::{Bytes, BytesMut};
use tailwater_format::{ChunkKey, Position, SegmentId};

/// The bytes of a segment that may still have to be written, from the beginning of a chunk on.
///
/// ```text
///        start                    end = durable
///   ---------|----------|----------|
///            | full     | partial  |      chunks; the partial one stays until it is full
/// ```
/// Full chunks leave when they are written, whatever becomes of that: a chunk that did not get into the cell is
/// one that readers take from the durable layer.
pub(super) struct Shadow {
    pub(super) segment: SegmentId,
    chunk_bytes: u32,
    /// Where `bytes` begin: a multiple of the chunk size.
    start: Position,
    bytes: BytesMut,
    /// As far as everything was acknowledged by the cell, or jumped over.
    pub(super) cached: Position,
}

impl Shadow {
    pub(super) fn new(segment: SegmentId, chunk_bytes: u32) -> Self {
        Self { segment, chunk_bytes, start: Position(0), bytes: BytesMut::new(), cached: Position(0) }
    }

    /// Takes in the bytes from `from` on.
    ///
    /// # Panics
    /// If they do not begin where the last ones ended: durable bytes are handed on in order and without gaps.
    pub(super) fn extend(&mut self, from: Position, bytes: &Bytes) {
        assert_eq!(self.end(), from, "{}: durable bytes come in order and without gaps", self.segment);
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn end(&self) -> Position {
        Position(self.start.0 + self.bytes.len() as u64)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_shadowed(&self) -> bool {
        self.cached == self.end()
    }

    /// The chunks to write, each from its beginning, keyed. The full ones are gone from here afterwards.
    pub(super) fn take_chunks(&mut self, chunks: &mut Vec<(Bytes, Bytes)>) {
        let chunk = self.chunk_bytes as usize;
        let first = self.start.0 / u64::from(self.chunk_bytes);
        let full = self.take_full();
        let partial = Bytes::copy_from_slice(&self.bytes);
        let pieces = (0..full.len()).step_by(chunk).map(|at| full.slice(at..at + chunk));
        for (number, piece) in (first..).zip(pieces.chain((!partial.is_empty()).then_some(partial))) {
            let key = ChunkKey { segment: self.segment, chunk_bytes: self.chunk_bytes, chunk: number };
            chunks.push((key.to_bytes(), piece));
        }
    }

    /// Gives up everything but the partial chunk; whether that was anything.
    pub(super) fn jump(&mut self) -> bool {
        !self.take_full().is_empty()
    }

    fn take_full(&mut self) -> Bytes {
        let full_bytes = self.bytes.len() / self.chunk_bytes as usize * self.chunk_bytes as usize;
        if full_bytes == 0 {
            return Bytes::new();
        }
        let full = self.bytes.split_to(full_bytes).freeze();
        // The rest, less than a chunk, must not keep the memory of what left.
        self.bytes = BytesMut::from(&self.bytes[..]);
        self.start.0 += full_bytes as u64;
        full
    }
}
