//! The end of a segment that is not safe in its file yet: a queue of entries in memory.
//!
//! ```text
//!   0          synced        written        durable       appended
//!   |------------|--------------|--------------|--------------|
//!   in the file,   in the file,   in the synced  in the
//!   synced         not synced     journal        journal's queue
//!                |<------------- held in memory ------------->|
//! ```
//! `synced <= written <= durable <= appended`, positions, exclusive, each at the end of an entry. Bytes stay
//! here until they are synced in the file, not only written: after a failed sync the page cache shows bytes
//! that the disk does not have, and what is here is what the file is written again from.
//!
//! Pure state: who writes and syncs is the filler.

use std::collections::VecDeque;

use bytes::Bytes;
use tailwater_format::{AppendedTo, DurableTo, Position};
use tailwater_journal::JournalPosition;

use crate::limits::PIECE_OVERHEAD;

/// One entry in memory.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where it begins in the segment.
    pub start: Position,
    /// Its bytes.
    pub bytes: Bytes,
    /// Where its record ends in the journal: durable once the journal is synced up to here.
    pub journal_end: JournalPosition,
}

impl Piece {
    /// Where it ends in the segment.
    pub fn end(&self) -> Position {
        Position(self.start.0 + self.bytes.len() as u64)
    }

    /// What it counts against the memory's bound, in bytes.
    pub fn cost(&self) -> u64 {
        cost(self.bytes.len())
    }
}

/// What an entry of `length` bytes counts against the memory's bound.
pub fn cost(length: usize) -> u64 {
    length as u64 + PIECE_OVERHEAD
}

/// See the module.
#[derive(Debug)]
pub struct PendingEntries {
    pieces: VecDeque<Piece>,
    synced: DurableTo<Position>,
    durable: DurableTo<Position>,
    appended: AppendedTo<Position>,
    /// How many of the pieces are in the file.
    written: usize,
    /// How many of the pieces are durable.
    durable_pieces: usize,
}

impl PendingEntries {
    /// Nothing pending behind `synced`.
    pub fn new(synced: Position) -> Self {
        let (durable, appended) = (DurableTo::new(synced), AppendedTo::new(synced));
        Self { pieces: VecDeque::new(), synced: durable, durable, appended, written: 0, durable_pieces: 0 }
    }

    /// Up to here the file is synced.
    pub fn synced(&self) -> Position {
        self.synced.get()
    }

    /// Up to here the file is written.
    pub fn written(&self) -> Position {
        self.start_of(self.written)
    }

    /// The segment's end.
    pub fn appended(&self) -> Position {
        self.appended.get()
    }

    /// The same as a watermark.
    pub fn appended_to(&self) -> AppendedTo<Position> {
        self.appended
    }

    /// What the pending entries count against the memory's bound.
    pub fn cost(&self) -> u64 {
        self.pieces.iter().map(Piece::cost).sum()
    }

    /// Whether all of the segment is synced in its file.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// `synced <= written <= durable <= appended`, and the pieces are what lies between the first and the last.
    fn check(&self) {
        assert!(self.written <= self.durable_pieces, "only durable bytes are written to a file");
        assert!(self.durable_pieces <= self.pieces.len(), "only what was appended is durable");
        debug_assert_eq!(self.start_of(self.durable_pieces), self.durable.get(), "at the end of an entry");
        debug_assert_eq!(self.start_of(0), self.synced(), "what is synced is not pending");
        debug_assert_eq!(
            self.pieces.back().map_or(self.synced(), Piece::end),
            self.appended(),
            "and the rest is"
        );
    }

    fn start_of(&self, index: usize) -> Position {
        self.pieces.get(index).map_or(self.appended(), |piece| piece.start)
    }

    /// Appends an entry whose record ends at `journal_end`.
    pub fn push(&mut self, bytes: Bytes, journal_end: JournalPosition) {
        debug_assert!(self.pieces.back().is_none_or(|last| last.journal_end <= journal_end));
        debug_assert!(!bytes.is_empty(), "an entry has a header");
        let piece = Piece { start: self.appended(), bytes, journal_end };
        self.appended.advance(piece.end());
        self.pieces.push_back(piece);
    }

    /// The journal is durable up to `journal`.
    pub fn advance(&mut self, journal: JournalPosition) -> DurableTo<Position> {
        self.advance_while(&|end| end <= journal)
    }

    /// Entries are durable as long as `durable` says so of their records' ends.
    pub fn advance_while(&mut self, durable: &dyn Fn(JournalPosition) -> bool) -> DurableTo<Position> {
        while let Some(piece) =
            self.pieces.get(self.durable_pieces).filter(|piece| durable(piece.journal_end))
        {
            self.durable.advance(piece.end(), self.appended);
            self.durable_pieces += 1;
        }
        self.durable
    }

    /// Cuts the segment at `length`, which must be where an entry begins or ends, or before all that is pending.
    /// Answers the memory given back; `None`, and nothing is changed, if `length` is inside a pending entry.
    pub fn cut(&mut self, length: Position) -> Option<u64> {
        let keep = self.pieces.partition_point(|piece| piece.start < length);
        if keep > 0 && self.pieces[keep - 1].end() > length {
            return None;
        }
        let cut = self.pieces.drain(keep..).map(|piece| piece.cost()).sum();
        self.appended.take_back(length);
        if length < self.synced() {
            self.synced.take_back(length);
        }
        if length < self.durable.get() {
            self.durable.take_back(length);
        }
        self.written = self.written.min(keep);
        self.durable_pieces = self.durable_pieces.min(keep);
        self.check();
        Some(cut)
    }

    /// The durable pieces that are not written yet, up to about `bytes` and `journal`, at least one if any.
    pub fn unwritten(&self, bytes: usize, journal: JournalPosition) -> Vec<Piece> {
        let mut total = 0;
        let ready = self.pieces.range(self.written..self.durable_pieces);
        ready
            .take_while(|piece| {
                let room = total == 0 || total + piece.bytes.len() <= bytes;
                total += piece.bytes.len();
                room && piece.journal_end <= journal
            })
            .cloned()
            .collect()
    }

    /// The file is written up to `end`, where a durable piece ends (or which was cut away since).
    pub fn mark_written(&mut self, end: Position) {
        let count = self.pieces.partition_point(|piece| piece.end() <= end);
        assert!(count <= self.durable_pieces, "only durable bytes are written to a file");
        self.written = self.written.max(count);
        self.check();
    }

    /// Nothing after `synced` is believed to be in the file any more.
    pub fn mark_unwritten(&mut self) {
        self.written = 0;
    }

    /// The file is synced up to `end`. Answers the memory given back and the last piece that was dropped.
    pub fn mark_synced(&mut self, end: Position) -> (u64, Option<Piece>) {
        let count = self.pieces.partition_point(|piece| piece.end() <= end);
        assert!(count <= self.written, "only written bytes can be synced");
        let mut freed = 0;
        let mut last = None;
        for piece in self.pieces.drain(..count) {
            freed += piece.cost();
            last = Some(piece);
        }
        self.written -= count;
        self.durable_pieces -= count;
        self.synced.advance(self.start_of(0), self.appended);
        self.check();
        (freed, last)
    }

    /// The pending entries.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// The last pending entry.
    pub fn last(&self) -> Option<&Piece> {
        self.pieces.back()
    }

    /// Bytes that wait to be written, durable or not.
    pub fn unwritten_bytes(&self) -> u64 {
        self.appended().0 - self.written().0
    }

    /// The bytes of `from..to`, in order, without copying; both must lie in what is pending.
    pub fn read(&self, from: Position, to: Position) -> Vec<Bytes> {
        assert!(
            self.synced() <= from && from <= to && to <= self.appended(),
            "only what is pending is read here"
        );
        let first = self.pieces.partition_point(|piece| piece.end() <= from);
        let mut out = Vec::new();
        for piece in self.pieces.range(first..) {
            if piece.start >= to {
                break;
            }
            debug_assert!(piece.start >= self.synced(), "what is synced is not pending");
            let begin = from.0.saturating_sub(piece.start.0) as usize;
            let end = (to.0.min(piece.end().0) - piece.start.0) as usize;
            out.push(piece.bytes.slice(begin..end));
        }
        debug_assert_eq!(out.iter().map(|bytes| bytes.len() as u64).sum::<u64>(), to.0 - from.0, "no gap");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> Position {
        Position(position)
    }

    /// Entries "aa", "bbb", "c" behind position 10, whose records end at 100, 200 and 300.
    fn pending() -> PendingEntries {
        let mut pending = PendingEntries::new(at(10));
        pending.push(Bytes::from_static(b"aa"), JournalPosition(100));
        pending.push(Bytes::from_static(b"bbb"), JournalPosition(200));
        pending.push(Bytes::from_static(b"c"), JournalPosition(300));
        pending
    }

    #[test]
    fn watermarks_follow_the_journal_and_the_file() {
        let mut pending = pending();
        assert_eq!((pending.durable.get(), pending.appended()), (at(10), at(16)));
        assert_eq!(pending.advance(JournalPosition(199)).get(), at(12));
        assert_eq!(pending.advance(JournalPosition(250)).get(), at(15));
        assert_eq!(pending.advance(JournalPosition(0)).get(), at(15), "never back");
        assert_eq!(pending.unwritten(1, JournalPosition(300)).len(), 1);
        assert_eq!(pending.unwritten(100, JournalPosition(300)).len(), 2);
        assert_eq!(pending.unwritten(100, JournalPosition(100)).len(), 1);
        pending.mark_written(at(15));
        assert_eq!(pending.written(), at(15));
        let (freed, last) = pending.mark_synced(at(12));
        assert_eq!((freed, last.map(|piece| piece.bytes)), (cost(2), Some(Bytes::from_static(b"aa"))));
        assert_eq!((pending.synced(), pending.written(), pending.durable.get()), (at(12), at(15), at(15)));
        pending.mark_unwritten();
        assert_eq!((pending.synced(), pending.written()), (at(12), at(12)));
    }

    #[test]
    fn reads_slice_across_entries() {
        let pending = pending();
        assert_eq!(pending.read(at(10), at(16)).concat(), b"aabbbc");
        assert_eq!(pending.read(at(11), at(14)).concat(), b"abb");
        assert_eq!(pending.read(at(12), at(12)).concat(), b"");
        assert_eq!(pending.read(at(16), at(16)).concat(), b"");
    }

    #[test]
    fn a_cut_gives_memory_back_and_refuses_to_split_an_entry() {
        let mut pending = pending();
        assert_eq!(pending.cut(at(13)), None);
        assert_eq!(pending.appended(), at(16));
        assert_eq!(pending.cut(at(12)), Some(cost(3) + cost(1)));
        assert_eq!(pending.appended(), at(12));
        assert_eq!(pending.cut(at(4)), Some(cost(2)), "into what is synced");
        assert_eq!((pending.synced(), pending.appended()), (at(4), at(4)));
    }
}
