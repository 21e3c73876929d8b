//! The bytes of one segment on their way into the data cell.

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_format::{CachedTo, ChunkKey, DurableTo, Position, SegmentId};

/// The bytes of a segment that may still have to be written, from the beginning of a chunk on.
///
/// ```text
///        start                    end = durable
///   ---------|----------|----------|
///            | full     | partial  |      chunks; the partial one stays until it is full
/// ```
/// Full chunks leave when they are written, whatever becomes of that: a chunk that did not get into the cell is
/// one that readers take from the durable layer. Bytes are copied only where a chunk spans several pieces.
pub(super) struct Shadow {
    pub(super) segment: SegmentId,
    chunk_bytes: u32,
    /// Where `pieces` begin: a multiple of the chunk size.
    start: Position,
    /// The bytes as they were handed on.
    pieces: VecDeque<Bytes>,
    /// How many they are.
    len: usize,
    /// The end that the log gave, which is `end` unless a loss took some of it back.
    durable: DurableTo<Position>,
    cached: CachedTo<Position>,
    /// It is a copy's, and some of the bytes were handed on before they were durable here: `durable` is then how far
    /// they are at the source.
    is_ahead: bool,
}

impl Shadow {
    pub(super) fn new(segment: SegmentId, chunk_bytes: u32) -> Self {
        Self::beginning_at(segment, chunk_bytes, Position(0))
    }

    /// One that jumps over what is before `start`, where a chunk begins.
    fn beginning_at(segment: SegmentId, chunk_bytes: u32, start: Position) -> Self {
        assert!(start.0.is_multiple_of(u64::from(chunk_bytes)), "{segment}: chunks are aligned");
        Self {
            segment,
            chunk_bytes,
            start,
            pieces: VecDeque::new(),
            len: 0,
            durable: DurableTo::new(start),
            cached: CachedTo::new(Position(0)),
            is_ahead: false,
        }
    }

    /// One of a segment that is complete: `pieces` reach from `start`, where a chunk begins, to its end.
    pub(super) fn complete(segment: SegmentId, chunk_bytes: u32, start: Position, pieces: &[Bytes]) -> Self {
        let mut shadow = Self::beginning_at(segment, chunk_bytes, start);
        pieces.iter().for_each(|piece| shadow.push(piece.clone()));
        shadow.durable = DurableTo::new(shadow.end());
        shadow
    }

    /// Takes in the bytes that end at `durable`, which is how far the segment is durable with them.
    ///
    /// # Panics
    /// If they do not begin where the last ones ended: durable bytes are handed on in order and without gaps.
    pub(super) fn extend(&mut self, bytes: &Bytes, durable: DurableTo<Position>) {
        self.push(bytes.clone());
        assert_eq!(
            self.end(),
            durable.get(),
            "{}: durable bytes come in order and without gaps",
            self.segment
        );
        self.durable = durable;
    }

    /// The same with bytes of a copy, which may be durable at the source only.
    pub(super) fn extend_ahead(&mut self, bytes: &Bytes, source_durable: DurableTo<Position>) {
        self.extend(bytes, source_durable);
        self.is_ahead = true;
    }

    /// A loss ended the segment at `length`, in an `interval` stream or in a copy that was ahead: what the cell has
    /// beyond that is none of it.
    pub(super) fn cut(&mut self, length: Position) {
        self.durable.take_back(length);
        self.cached.take_back(self.cached.get().min(length));
    }

    /// How far the segment is durable; in a copy that is ahead, at the source.
    pub(super) fn durable(&self) -> DurableTo<Position> {
        self.durable
    }

    /// Where the bytes end that were handed on.
    pub(super) fn end(&self) -> Position {
        Position(self.start.0 + self.len as u64)
    }

    /// Whether it is a copy's that was given bytes before they were durable here.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// As far as everything was acknowledged by the cell, or jumped over.
    pub(super) fn cached(&self) -> Position {
        self.cached.get()
    }

    /// The cell acknowledged a round with everything up to `end`, or what of it was not jumped over.
    pub(super) fn acknowledge(&mut self, end: Position) {
        // A loss may have cut the segment while the round was under way.
        let end = end.min(self.durable.get());
        // Of two rounds the later one may be seen first.
        if end > self.cached.get() {
            self.cached.advance(end, self.durable);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_shadowed(&self) -> bool {
        self.cached.get() == self.durable.get()
    }

    /// The chunks to write, each from its beginning, keyed. The full ones are gone from here afterwards.
    pub(super) fn take_chunks(&mut self, chunks: &mut Vec<(Bytes, Bytes)>) {
        let (segment, chunk_bytes) = (self.segment, self.chunk_bytes);
        let first = self.start.0 / u64::from(chunk_bytes);
        let mut write = |number: u64, value: Bytes| {
            let key = ChunkKey { segment, chunk_bytes, chunk: first + number };
            chunks.push((key.to_bytes(), value));
        };
        let mut full = 0;
        while let Some(value) = self.take_full() {
            write(full, value);
            full += 1;
        }
        let partial = self.keep_partial();
        if !partial.is_empty() {
            write(full, partial);
        }
        self.check();
    }

    /// Gives up everything but the partial chunk; whether that was anything.
    pub(super) fn jump(&mut self) -> bool {
        let before = self.start;
        while self.take_full().is_some() {}
        self.keep_partial();
        self.check();
        self.start != before
    }

    /// What is left behind a round or a jump is the partial chunk.
    fn check(&self) {
        assert!(self.len < self.chunk_bytes as usize, "{}: full chunks leave", self.segment);
        assert!(
            self.start.0.is_multiple_of(u64::from(self.chunk_bytes)),
            "{}: chunks are aligned",
            self.segment
        );
        assert!(self.pieces.len() <= 1, "{}: what is left has memory of its own", self.segment);
    }

    fn push(&mut self, piece: Bytes) {
        debug_assert!(!piece.is_empty(), "{}: a piece has bytes", self.segment);
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    fn take_full(&mut self) -> Option<Bytes> {
        let chunk = self.chunk_bytes as usize;
        if self.len < chunk {
            return None;
        }
        self.start.0 += chunk as u64;
        self.len -= chunk;
        if let Some(first) = self.pieces.front_mut().filter(|first| first.len() >= chunk) {
            return Some(first.split_to(chunk));
        }
        let mut bytes = Vec::with_capacity(chunk);
        while bytes.len() < chunk {
            let mut piece = self.pieces.pop_front().expect("there are as many bytes as `len`");
            bytes.extend_from_slice(&piece.split_to(piece.len().min(chunk - bytes.len())));
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        debug_assert_eq!(bytes.len(), chunk, "{}: a full chunk is full", self.segment);
        Some(bytes.into())
    }

    /// What is left, less than a chunk, as one piece of its own: it must not keep the memory of what left.
    fn keep_partial(&mut self) -> Bytes {
        debug_assert_eq!(self.pieces.iter().map(Bytes::len).sum::<usize>(), self.len, "{}", self.segment);
        let partial = Bytes::from(Vec::from_iter(self.pieces.drain(..)).concat());
        self.len = 0;
        if !partial.is_empty() {
            self.push(partial.clone());
        }
        partial
    }
}
