//! Bytes on their way to a server, in order: what is short is put together, what is long goes out from where it is.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// A piece that is at least this long is not copied. Below, a copy costs less than what there is to do for a piece.
const LONG_BYTES: usize = 2 << 10;

/// Memory of short pieces that is kept for the next ones.
const KEPT_BYTES: usize = 64 << 10;

/// Most pieces of one write.
pub(super) const PIECES_MAX: usize = 64;

/// What waits to be written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Goes before `tail`, in order.
    ahead: VecDeque<Bytes>,
    /// Bytes of `ahead` that are not written yet.
    ahead_bytes: usize,
    tail: Vec<u8>,
    /// Bytes of `tail` that are written; none are while something is ahead.
    sent: usize,
}

impl Outgoing {
    /// Bytes that are not written yet.
    pub(super) fn len(&self) -> usize {
        self.ahead_bytes + self.tail.len() - self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where short pieces are appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a piece.
    pub(super) fn push(&mut self, piece: &Bytes) {
        if piece.len() < LONG_BYTES {
            self.tail.extend_from_slice(piece);
            return;
        }
        let mut tail = Bytes::from(std::mem::take(&mut self.tail));
        tail.advance(std::mem::take(&mut self.sent));
        for piece in [tail, piece.clone()].into_iter().filter(|piece| !piece.is_empty()) {
            self.ahead_bytes += piece.len();
            self.ahead.push_back(piece);
        }
    }

    /// Fills in what is to be written next; how many pieces that is.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let tail = Some(&self.tail[self.sent..]).filter(|tail| !tail.is_empty());
        let pieces = self.ahead.iter().map(|piece| &piece[..]).chain(tail);
        slices.iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    /// As many bytes were written.
    pub(super) fn written(&mut self, mut count: usize) {
        self.ahead_bytes -= count.min(self.ahead_bytes);
        while let Some(first) = self.ahead.front_mut() {
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.ahead.pop_front();
        }
        self.sent += count;
    }

    /// Empty, with memory of this one for short pieces if it is not much.
    pub(super) fn cleared(mut self) -> Self {
        self.tail.clear();
        let tail = if self.tail.capacity() <= KEPT_BYTES { self.tail } else { Vec::new() };
        Self { tail, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came_however_few_are_written_at_once() {
        let (long, short) = (vec![b'l'; LONG_BYTES + 7], vec![b's'; 5]);
        for step in [1, 3, LONG_BYTES, 5 * LONG_BYTES] {
            let mut outgoing = Outgoing::default();
            let mut expected = Vec::new();
            let mut sent = Vec::new();
            for round in 0..3 {
                outgoing.tail().push(round);
                outgoing.push(&Bytes::from(short.clone()));
                outgoing.push(&Bytes::from(long.clone()));
                outgoing.push(&Bytes::from(long.clone()));
                outgoing.tail().extend_from_slice(b"end");
                expected.extend([&[round][..], &short, &long, &long, b"end"].concat());
                // Something is left of each round but the last when the next one comes.
                while !outgoing.is_empty() && (round == 2 || expected.len() - sent.len() > 2) {
                    let mut slices = [IoSlice::new(&[]); PIECES_MAX];
                    let count = outgoing.slices(&mut slices);
                    let bytes: Vec<u8> =
                        slices[..count].iter().flat_map(|slice| slice.to_vec()).take(step).collect();
                    outgoing.written(bytes.len());
                    sent.extend(bytes);
                }
            }
            assert_eq!(outgoing.len(), 0);
            assert!(sent == expected, "in steps of {step}");
        }
    }

    #[test]
    fn more_pieces_than_one_write_takes_leave_in_several() {
        let mut outgoing = Outgoing::default();
        let piece = Bytes::from(vec![1; LONG_BYTES]);
        for _ in 0..PIECES_MAX + 1 {
            outgoing.push(&piece);
        }
        assert_eq!(outgoing.slices(&mut [IoSlice::new(&[]); PIECES_MAX]), PIECES_MAX);
        outgoing.written(PIECES_MAX * LONG_BYTES);
        assert_eq!(outgoing.slices(&mut [IoSlice::new(&[]); PIECES_MAX]), 1);
        assert_eq!(outgoing.len(), LONG_BYTES);
    }
}
