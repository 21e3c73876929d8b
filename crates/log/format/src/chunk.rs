//! Chunks: the fixed-size pieces of a segment that the data cell keeps.
//!
//! The value of a chunk is the segment's bytes from the chunk's start on: a full chunk has `chunk_bytes` of them,
//! the last one of a growing segment fewer, and always from its beginning. Segments are never rewritten and their
//! names never used again, so every value that was ever set under one key is a prefix of the longest.
//!
//! ```text
//! offset size field              (little-endian)
//!      0    4 kind               "TWck"
//!      4    4 chunk_bytes
//!      8   16 stream             UUID, in the order in which it is printed
//!     24    4 shard
//!     28    4 term
//!     32    8 segment
//!     40    8 chunk              number, counted from 0
//! ```

use std::ops::Range;

use bytes::Bytes;
use uuid::Uuid;

use crate::bytes_at::{bytes16, put_u32_le, put_u64_le, u32_le, u64_le};
use crate::ids::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};

/// Length of a chunk's key in bytes.
pub const CHUNK_KEY_BYTES: usize = 48;

const KIND: [u8; 4] = *b"TWck";
const AT_CHUNK_BYTES: usize = 4;
const AT_STREAM: usize = 8;
const AT_SHARD: usize = 24;
const AT_TERM: usize = 28;
const AT_SEGMENT: usize = 32;
const AT_CHUNK: usize = 40;
const _: () = assert!(AT_CHUNK + 8 == CHUNK_KEY_BYTES);

/// Names one chunk of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    /// The segment, with its term.
    pub segment: SegmentId,
    /// Size of the segment's chunks in bytes, at least 1.
    pub chunk_bytes: u32,
    /// Which chunk, counted from 0.
    pub chunk: u64,
}

/// What of one chunk lies in a range of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPiece {
    /// Which chunk.
    pub chunk: u64,
    /// Which of its bytes, counted from the chunk's start.
    pub range: Range<usize>,
}

impl ChunkKey {
    /// The canonical bytes.
    pub fn to_array(&self) -> [u8; CHUNK_KEY_BYTES] {
        let mut key = [0; CHUNK_KEY_BYTES];
        key[..4].copy_from_slice(&KIND);
        put_u32_le(&mut key, AT_CHUNK_BYTES, self.chunk_bytes);
        key[AT_STREAM..AT_SHARD].copy_from_slice(self.segment.shard.stream.0.as_bytes());
        put_u32_le(&mut key, AT_SHARD, self.segment.shard.shard.0);
        put_u32_le(&mut key, AT_TERM, self.segment.term.0);
        put_u64_le(&mut key, AT_SEGMENT, self.segment.number.0);
        put_u64_le(&mut key, AT_CHUNK, self.chunk);
        key
    }

    /// The canonical bytes, as a cell takes them.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.to_array())
    }

    /// The key with these canonical bytes; `None` if they are not a chunk's key.
    pub fn from_bytes(key: &[u8]) -> Option<Self> {
        if key.len() != CHUNK_KEY_BYTES || key[..4] != KIND {
            return None;
        }
        let shard = ShardId {
            stream: StreamId(Uuid::from_bytes(bytes16(key, AT_STREAM))),
            shard: ShardNumber(u32_le(key, AT_SHARD)),
        };
        let number = SegmentNumber(u64_le(key, AT_SEGMENT));
        let segment = SegmentId { shard, number, term: Term(u32_le(key, AT_TERM)) };
        let chunk_bytes = u32_le(key, AT_CHUNK_BYTES);
        (chunk_bytes > 0).then(|| Self { segment, chunk_bytes, chunk: u64_le(key, AT_CHUNK) })
    }

    /// Where the chunk begins in its segment.
    pub fn start(&self) -> Position {
        chunk_start(self.chunk, self.chunk_bytes)
    }
}

/// The chunk that holds the byte at `position`.
///
/// # Panics
/// If `chunk_bytes` is 0, as everywhere below.
pub fn chunk_at(position: Position, chunk_bytes: u32) -> u64 {
    position.0 / u64::from(chunk_bytes)
}

/// Where a chunk begins in its segment.
pub fn chunk_start(chunk: u64, chunk_bytes: u32) -> Position {
    Position(chunk.saturating_mul(u64::from(chunk_bytes)))
}

/// How many bytes of a chunk a segment of `segment_len` bytes has: 0 behind its end, `chunk_bytes` for a full one.
pub fn chunk_len(chunk: u64, chunk_bytes: u32, segment_len: Position) -> usize {
    let behind_start = segment_len.0.saturating_sub(chunk_start(chunk, chunk_bytes).0);
    behind_start.min(u64::from(chunk_bytes)) as usize
}

/// The chunks that cover `[from, to)`; none if that is empty.
pub fn chunks_covering(from: Position, to: Position, chunk_bytes: u32) -> Range<u64> {
    let first = chunk_at(from, chunk_bytes);
    if to <= from { first..first } else { first..chunk_at(Position(to.0 - 1), chunk_bytes) + 1 }
}

/// The chunks that cover `[from, to)`, each with those of its bytes that lie in it; together, in order, they
/// are exactly the range.
pub fn chunk_pieces(
    from: Position,
    to: Position,
    chunk_bytes: u32,
) -> impl DoubleEndedIterator<Item = ChunkPiece> {
    chunks_covering(from, to, chunk_bytes).map(move |chunk| {
        let start = chunk_start(chunk, chunk_bytes).0;
        let first = from.0.saturating_sub(start) as usize;
        ChunkPiece { chunk, range: first..chunk_len(chunk, chunk_bytes, to) }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> ChunkKey {
        let stream = StreamId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
        let segment = SegmentId {
            shard: ShardId { stream, shard: ShardNumber(7) },
            number: SegmentNumber(0x0102),
            term: Term(9),
        };
        ChunkKey { segment, chunk_bytes: 4096, chunk: 0x0304 }
    }

    #[test]
    fn the_bytes_of_a_key_never_change() {
        let expected = [
            &b"TWck"[..],
            &[0x00, 0x10, 0, 0],
            &[0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff],
            &[7, 0, 0, 0],
            &[9, 0, 0, 0],
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[4, 3, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(key().to_bytes(), expected);
        assert_eq!(ChunkKey::from_bytes(&expected), Some(key()));
    }

    #[test]
    fn every_part_of_a_key_tells_chunks_apart() {
        let mut keys = vec![key()];
        keys.push(ChunkKey { chunk: 1, ..key() });
        keys.push(ChunkKey { chunk_bytes: 8192, ..key() });
        for change in 0..4 {
            let mut other = key();
            match change {
                0 => other.segment.term = Term(10),
                1 => other.segment.number = SegmentNumber(1),
                2 => other.segment.shard.shard = ShardNumber(8),
                _ => other.segment.shard.stream = StreamId(Uuid::from_u128(1)),
            }
            keys.push(other);
        }
        let mut bytes: Vec<_> = keys.iter().map(ChunkKey::to_bytes).collect();
        bytes.sort();
        bytes.dedup();
        assert_eq!(bytes.len(), keys.len());
    }

    #[test]
    fn an_empty_range_needs_no_chunk() {
        assert!(chunks_covering(Position(10), Position(10), 4).is_empty());
        assert!(chunks_covering(Position(10), Position(3), 4).is_empty());
    }

    #[test]
    fn a_range_that_ends_on_a_boundary_does_not_touch_the_next_chunk() {
        assert_eq!(chunks_covering(Position(0), Position(8), 4), 0..2);
        assert_eq!(chunks_covering(Position(3), Position(9), 4), 0..3);
    }

    proptest! {
        #[test]
        fn pieces_are_exactly_the_range(from in 0u64..100_000, len in 0u64..50_000, chunk_bytes in 1u32..9_000) {
            let to = from + len;
            let mut at = from;
            for piece in chunk_pieces(Position(from), Position(to), chunk_bytes) {
                prop_assert!(piece.range.end <= chunk_bytes as usize);
                prop_assert!(!piece.range.is_empty());
                let start = chunk_start(piece.chunk, chunk_bytes).0;
                prop_assert_eq!(start + piece.range.start as u64, at);
                at = start + piece.range.end as u64;
            }
            prop_assert_eq!(at, to);
        }

        #[test]
        fn any_bytes_are_a_key_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(key) = ChunkKey::from_bytes(&bytes) {
                prop_assert_eq!(&key.to_array()[..], &bytes[..]);
            }
        }
    }
}
