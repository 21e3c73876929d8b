//! What a copy's index has: the checksum of each block of the segment, and places to begin a search at.
//!
//! ```text
//! offset size  field             (little-endian)
//!      0    8  magic             "TWcold01"
//!      8    8  length            of the segment in bytes
//!     16    4  part_bytes        of each part but the last one
//!     20    4  blocks            of 1 MiB each, but the last one
//!     24    4  points
//!     28    4  zero
//!     32       blocks * 8        XXH3-64 of each block
//!              points * 24       position, base offset, transaction id (signed) of an entry, in their order
//! ```
//!
//! The whole of it has a checksum in metadata, and in the copy's name.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tailwater_format::{EntryHeader, Offset, Position, TransactionId};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::limits::{BLOCK_BYTES, POINT_BYTES_MIN, POINTS_MAX};
use crate::names::ColdCopy;

const MAGIC: [u8; 8] = *b"TWcold01";
const HEAD_BYTES: usize = 32;
const POINT_BYTES: usize = 24;

/// Where an entry begins, and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColdPoint {
    position: Position,
    base_offset: Offset,
    transaction_id: TransactionId,
}

/// The index of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ColdIndex {
    pub(crate) length: Position,
    pub(crate) part_bytes: u32,
    blocks: Vec<u64>,
    points: Vec<ColdPoint>,
}

impl ColdIndex {
    /// Bytes of a block.
    pub(crate) fn block_len(&self, block: u64) -> usize {
        let begin = block * BLOCK_BYTES as u64;
        (self.length.0.saturating_sub(begin)).min(BLOCK_BYTES as u64) as usize
    }

    /// Whether these are the bytes of a block.
    pub(crate) fn is_block(&self, block: u64, bytes: &[u8]) -> bool {
        let checksum = usize::try_from(block).ok().and_then(|block| self.blocks.get(block));
        bytes.len() == self.block_len(block) && checksum == Some(&xxh3_64(bytes))
    }

    /// How many objects have the segment's bytes.
    pub(crate) fn parts(&self) -> u64 {
        self.length.0.div_ceil(self.part_bytes.into())
    }

    /// Where an entry begins that is at or before the one with `offset`.
    pub(crate) fn position_of_offset(&self, offset: Offset) -> Position {
        let behind = self.points.partition_point(|point| point.base_offset <= offset);
        self.position_before(behind)
    }

    /// Where an entry begins that is at or before the first one whose transaction id reaches `wanted`.
    pub(crate) fn position_of_transaction_id(&self, wanted: TransactionId) -> Position {
        let behind = self.points.partition_point(|point| point.transaction_id < wanted);
        self.position_before(behind)
    }

    fn position_before(&self, behind: usize) -> Position {
        behind.checked_sub(1).map_or(Position(0), |index| self.points[index].position)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let len = HEAD_BYTES + self.blocks.len() * 8 + self.points.len() * POINT_BYTES;
        let mut out = BytesMut::with_capacity(len);
        out.put_slice(&MAGIC);
        out.put_u64_le(self.length.0);
        out.put_u32_le(self.part_bytes);
        out.put_u32_le(self.blocks.len() as u32);
        out.put_u32_le(self.points.len() as u32);
        out.put_u32_le(0);
        self.blocks.iter().for_each(|checksum| out.put_u64_le(*checksum));
        for point in &self.points {
            out.put_u64_le(point.position.0);
            out.put_u64_le(point.base_offset.0);
            out.put_i64_le(point.transaction_id.0);
        }
        out.freeze()
    }

    /// The copy that has these bytes for an index.
    pub(crate) fn copy_of(bytes: &[u8]) -> ColdCopy {
        ColdCopy(xxh3_64(bytes))
    }

    /// What `bytes` say, if they are the index of `copy`, of a segment of `length`.
    ///
    /// # Errors
    /// How they differ.
    pub(crate) fn decode(copy: ColdCopy, length: Position, bytes: &[u8]) -> Result<Self, String> {
        if Self::copy_of(bytes) != copy {
            return Err(format!("its {} bytes have another checksum", bytes.len()));
        }
        if bytes.len() < HEAD_BYTES {
            return Err("it is too short".to_owned());
        }
        let (mut head, mut rest) = bytes.split_at(HEAD_BYTES);
        if head[..8] != MAGIC {
            return Err("a later version wrote it: read it with that".to_owned());
        }
        head.advance(8);
        let of = Position(head.get_u64_le());
        let (part_bytes, blocks, points) = (head.get_u32_le(), head.get_u32_le(), head.get_u32_le());
        let (blocks, points) = (blocks as usize, points as usize);
        let is_whole = rest.len() as u64 == blocks as u64 * 8 + points as u64 * POINT_BYTES as u64;
        let fits = of == length
            && blocks as u64 == of.0.div_ceil(BLOCK_BYTES as u64)
            && part_bytes > 0
            && (part_bytes as usize).is_multiple_of(BLOCK_BYTES);
        if !is_whole || !fits {
            return Err(format!("it is of a segment of {of} bytes, which has {length}"));
        }
        let blocks = (0..blocks).map(|_| rest.get_u64_le()).collect();
        let points = (0..points).map(|_| ColdPoint {
            position: Position(rest.get_u64_le()),
            base_offset: Offset(rest.get_u64_le()),
            transaction_id: TransactionId(rest.get_i64_le()),
        });
        let points = points.collect();
        Ok(Self { length, part_bytes, blocks, points })
    }
}

/// An index that grows with the segment's bytes.
pub(crate) struct ColdIndexBuilder {
    index: ColdIndex,
    block: Xxh3,
    in_block: usize,
    point_every: u64,
    next_point: u64,
}

impl ColdIndexBuilder {
    pub(crate) fn new(length: Position, part_bytes: u32) -> Self {
        Self {
            index: ColdIndex { length, part_bytes, blocks: Vec::new(), points: Vec::new() },
            block: Xxh3::new(),
            in_block: 0,
            point_every: POINT_BYTES_MIN.max(length.0 / POINTS_MAX),
            next_point: 0,
        }
    }

    /// The segment goes on with these bytes.
    pub(crate) fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.in_block));
            self.block.update(now);
            self.in_block += now.len();
            if self.in_block == BLOCK_BYTES {
                self.end_block();
            }
            bytes = later;
        }
    }

    /// An entry begins at `position`.
    pub(crate) fn entry(&mut self, position: Position, header: &EntryHeader) {
        if position.0 >= self.next_point {
            let (base_offset, transaction_id) = (header.base_offset, header.transaction_id);
            self.index.points.push(ColdPoint { position, base_offset, transaction_id });
            self.next_point = position.0 + self.point_every;
        }
    }

    pub(crate) fn finish(mut self) -> ColdIndex {
        if self.in_block > 0 {
            self.end_block();
        }
        self.index
    }

    fn end_block(&mut self) {
        self.index.blocks.push(self.block.digest());
        self.block.reset();
        self.in_block = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> ColdIndex {
        let mut builder = ColdIndexBuilder::new(Position(BLOCK_BYTES as u64 + 5), BLOCK_BYTES as u32);
        builder.bytes(&vec![1; BLOCK_BYTES - 3]);
        builder.bytes(&[2; 8]);
        for (position, offset, id) in [(0, 10, 5), (70_000, 20, 5), (200_000, 30, 9)] {
            let (base_offset, transaction_id) = (Offset(offset), TransactionId(id));
            builder.index.points.push(ColdPoint {
                position: Position(position),
                base_offset,
                transaction_id,
            });
        }
        builder.finish()
    }

    #[test]
    fn an_index_is_read_as_it_was_written_and_nothing_else_is() {
        let index = index();
        let bytes = index.encode();
        let copy = ColdIndex::copy_of(&bytes);
        assert_eq!(ColdIndex::decode(copy, index.length, &bytes), Ok(index.clone()));
        assert_eq!(index.parts(), 2);
        assert!(ColdIndex::decode(ColdCopy(copy.0 ^ 1), index.length, &bytes).is_err());
        assert!(ColdIndex::decode(copy, Position(7), &bytes).is_err());
        // Bytes with the right checksum of which nothing else is right: no panic, and no index.
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            assert!(ColdIndex::decode(ColdIndex::copy_of(cut), index.length, cut).is_err(), "{len}");
        }
    }

    #[test]
    fn a_block_is_known_by_its_bytes() {
        let index = index();
        let mut first = vec![1; BLOCK_BYTES - 3];
        first.extend([2; 3]);
        assert!(index.is_block(0, &first) && index.is_block(1, &[2; 5]));
        first[7] = 0;
        assert!(!index.is_block(0, &first) && !index.is_block(1, &[2; 4]) && !index.is_block(2, &[]));
    }

    #[test]
    fn a_search_begins_at_or_before_what_it_looks_for() {
        let index = index();
        let offsets = [(0, 0), (10, 0), (19, 0), (20, 70_000), (30, 200_000), (99, 200_000)];
        for (offset, position) in offsets {
            assert_eq!(index.position_of_offset(Offset(offset)), Position(position), "{offset}");
        }
        // The first entry that reaches 5 is the first one; that with 9 may begin anywhere behind the second point.
        for (id, position) in [(0, 0), (5, 0), (6, 70_000), (9, 70_000), (10, 200_000)] {
            assert_eq!(index.position_of_transaction_id(TransactionId(id)), Position(position), "{id}");
        }
    }
}
