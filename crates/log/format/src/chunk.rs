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
        Position(self.chunk.saturating_mul(u64::from(self.chunk_bytes)))
    }
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

    proptest! {
        #[test]
        fn any_bytes_are_a_key_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(key) = ChunkKey::from_bytes(&bytes) {
                prop_assert_eq!(&key.to_array()[..], &bytes[..]);
            }
        }
    }
}
