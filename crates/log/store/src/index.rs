//! Sparse indexes of a segment, and the sidecar that keeps them beside a sealed one.
//!
//! A point is taken at the first entry that begins at least `step` bytes after the point before, the first at
//! position 0. Both lookups answer the position of an entry at or before the one that is looked for, at most
//! about `step` bytes and one entry before it; the caller goes on from there entry by entry.
//!
//! The sidecar, all little-endian, written once, after the segment's bytes and name are durable:
//! ```text
//! offset width
//!      0     4  magic "TWsx"
//!      4     2  version 1
//!      6     2  1 if there are points, else 0 (they are rebuilt by scanning when first asked for)
//!      8    16  stream UUID
//!     24     4  shard
//!     28     4  term
//!     32     8  segment number
//!     40     8  sealed length
//!     48     8  first offset           \
//!     56     8  first transaction id    } zero in a segment without entries
//!     64    88  last entry's header    /
//!    152     4  points
//!    156     4  step
//!    160     8  XXH3-64 of the points
//!    168     8  XXH3-64 of bytes 0..168
//!    176        points: position u64, base offset u64, transaction id i64
//! ```
//! The header has a checksum of its own: damaged points cost a scan, never the sealed length.

use tailwater_format::{
    ENTRY_HEADER_BYTES, EntryError, EntryHeader, Offset, Position, SegmentId, SegmentNumber, ShardId,
    ShardNumber, StreamId, Term, TransactionId, parse_entry_header,
};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::record::field;

const MAGIC: [u8; 4] = *b"TWsx";
const VERSION: u16 = 1;
/// Bytes of a sidecar before its points.
pub const SIDECAR_HEADER_BYTES: usize = 176;
const POINT_BYTES: usize = 24;
/// Bytes of [`IndexContents`] in a sidecar or checkpoint.
pub const CONTENTS_BYTES: usize = 16 + ENTRY_HEADER_BYTES;
const _: () = assert!(48 + CONTENTS_BYTES == 152 && 152 + 8 + 8 + 8 == SIDECAR_HEADER_BYTES);

/// An entry that an index knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Where it begins.
    pub position: Position,
    /// Its base offset.
    pub base_offset: Offset,
    /// Its running transaction id: the largest up to and including it.
    pub transaction_id: TransactionId,
}

/// The first and the last of the entries that a segment, or a part of one from its beginning, holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexContents {
    /// Base offset of the first entry.
    pub first_offset: Offset,
    /// Running transaction id of the first entry.
    pub first_transaction_id: TransactionId,
    /// Header of the last entry.
    pub last: RawHeader,
}

/// An entry's header as bytes that were checked once: half the size of the parsed one in a checkpoint, and the
/// same bytes that recovery checks again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawHeader([u8; ENTRY_HEADER_BYTES]);

impl RawHeader {
    /// The header at the beginning of an entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(entry: &[u8]) -> Result<Self, EntryError> {
        parse_entry_header(entry)?;
        Ok(Self(*entry.first_chunk().expect("a header was just parsed from it")))
    }

    /// The header.
    pub fn header(&self) -> EntryHeader {
        parse_entry_header(&self.0).expect("it was parsed when it was taken")
    }
}

impl std::fmt::Debug for RawHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header().fmt(f)
    }
}

impl IndexContents {
    /// A single entry.
    pub fn first(entry: &EntryHeader, raw: RawHeader) -> Self {
        Self { first_offset: entry.base_offset, first_transaction_id: entry.transaction_id, last: raw }
    }

    /// As bytes; zeros where there is nothing.
    pub fn encode(contents: Option<&Self>) -> [u8; CONTENTS_BYTES] {
        let mut out = [0; CONTENTS_BYTES];
        if let Some(contents) = contents {
            out[..8].copy_from_slice(&contents.first_offset.0.to_le_bytes());
            out[8..16].copy_from_slice(&contents.first_transaction_id.0.to_le_bytes());
            out[16..].copy_from_slice(&contents.last.0);
        }
        out
    }

    /// What [`IndexContents::encode`] wrote.
    ///
    /// # Errors
    /// If what should be a header in it is not one.
    pub fn decode(bytes: &[u8; CONTENTS_BYTES]) -> Result<Option<Self>, EntryError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        Ok(Some(Self {
            first_offset: Offset(u64::from_le_bytes(field(bytes, 0))),
            first_transaction_id: TransactionId(i64::from_le_bytes(field(bytes, 8))),
            last: RawHeader::of(&bytes[16..])?,
        }))
    }
}

/// A segment's points, in the order of their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseIndex {
    step: u32,
    points: Vec<Point>,
}

impl SparseIndex {
    /// Without points, with one every `step` bytes to come.
    pub fn new(step: u32) -> Self {
        Self { step, points: Vec::new() }
    }

    /// Whether it is time for a point at an entry that begins at `position`.
    fn is_due(&self, position: Position) -> bool {
        match self.points.last() {
            None => true,
            Some(last) => position.0 >= last.position.0.saturating_add(u64::from(self.step)),
        }
    }

    /// Takes a point if it is time for one.
    pub fn note(&mut self, position: Position, entry: &EntryHeader) {
        if self.is_due(position) {
            let (base_offset, transaction_id) = (entry.base_offset, entry.transaction_id);
            debug_assert!(
                self.points
                    .last()
                    .is_none_or(|last| last.position < position && last.base_offset <= base_offset),
                "points are in the order of the entries"
            );
            self.points.push(Point { position, base_offset, transaction_id });
        }
    }

    /// The points of some entries behind each other, each with its place. Where none is due, an entry is not looked at;
    /// where its header makes no sense, none is taken.
    pub fn of<'a>(step: u32, entries: impl Iterator<Item = (Position, &'a [u8])>) -> Self {
        let mut index = Self::new(step);
        for (position, entry) in entries {
            if index.is_due(position)
                && let Ok(header) = parse_entry_header(entry)
            {
                index.note(position, &header);
            }
        }
        index
    }

    /// Takes over the points of the entries that follow.
    pub fn extend(&mut self, following: Self) {
        debug_assert!(
            self.points
                .last()
                .zip(following.points.first())
                .is_none_or(|(last, next)| last.position < next.position),
            "what follows lies behind"
        );
        self.points.extend(following.points);
    }

    /// One with these points.
    #[cfg(test)]
    pub fn from_points(step: u32, points: Vec<Point>) -> Self {
        Self { step, points }
    }

    /// The same with every second point.
    pub fn thinned(&self) -> Self {
        let points = self.points.iter().step_by(2).copied().collect();
        Self { step: self.step.saturating_mul(2), points }
    }

    /// Forgets entries that begin at `length` or after.
    pub fn cut(&mut self, length: Position) {
        self.points.truncate(self.points.partition_point(|point| point.position < length));
    }

    /// Where the entry that holds `offset` begins, or one before it; the segment's beginning if `offset` is
    /// before all its entries.
    pub fn by_offset(&self, offset: Offset) -> Position {
        self.before(|point| point.base_offset <= offset)
    }

    /// Where an entry begins that is at or before the first one whose running transaction id reaches `id`.
    pub fn by_transaction_id(&self, id: TransactionId) -> Position {
        // The entry of a point below `id` comes strictly before the one looked for; a point that reaches `id`
        // may have others before it that reach it too.
        self.before(|point| point.transaction_id < id)
    }

    fn before(&self, holds: impl Fn(&Point) -> bool) -> Position {
        match self.points.partition_point(holds) {
            0 => Position(0),
            count => self.points[count - 1].position,
        }
    }

    /// The points.
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

/// What a sidecar says of its sealed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The segment.
    pub id: SegmentId,
    /// Its length, for ever.
    pub length: Position,
    /// Its first and last entry.
    pub contents: Option<IndexContents>,
}

/// Why bytes are not the sidecar of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SidecarError {
    /// Too short, other magic or a checksum that does not fit.
    #[error("the sidecar is damaged")]
    Damaged,
    /// Written by a later version.
    #[error("sidecar version {0} is not known to this version (it knows 1)")]
    Version(u16),
    /// Another segment's.
    #[error("the sidecar is that of {0}")]
    Other(SegmentId),
}

impl Sidecar {
    /// The sidecar's bytes; without `index` it says that points have to be rebuilt.
    pub fn encode(&self, index: Option<&SparseIndex>) -> Vec<u8> {
        let points = index.map_or(&[][..], SparseIndex::points);
        let mut out = vec![0; SIDECAR_HEADER_BYTES];
        for point in points {
            out.extend_from_slice(&point.position.0.to_le_bytes());
            out.extend_from_slice(&point.base_offset.0.to_le_bytes());
            out.extend_from_slice(&point.transaction_id.0.to_le_bytes());
        }
        let sum = xxh3_64(&out[SIDECAR_HEADER_BYTES..]);
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&u16::from(index.is_some()).to_le_bytes());
        out[8..24].copy_from_slice(self.id.shard.stream.0.as_bytes());
        out[24..28].copy_from_slice(&self.id.shard.shard.0.to_le_bytes());
        out[28..32].copy_from_slice(&self.id.term.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.id.number.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.length.0.to_le_bytes());
        out[48..152].copy_from_slice(&IndexContents::encode(self.contents.as_ref()));
        let count = u32::try_from(points.len()).expect("a point per 4 KiB or more of at most 2^44 bytes");
        out[152..156].copy_from_slice(&count.to_le_bytes());
        out[156..160].copy_from_slice(&index.map_or(0, |index| index.step).to_le_bytes());
        out[160..168].copy_from_slice(&sum.to_le_bytes());
        let header_sum = xxh3_64(&out[..168]);
        out[168..176].copy_from_slice(&header_sum.to_le_bytes());
        out
    }

    /// Reads the header of the sidecar of `id`, from its first [`SIDECAR_HEADER_BYTES`] or more.
    pub fn decode(id: &SegmentId, bytes: &[u8]) -> Result<Self, SidecarError> {
        let header: &[u8; SIDECAR_HEADER_BYTES] = bytes.first_chunk().ok_or(SidecarError::Damaged)?;
        if header[..4] != MAGIC {
            return Err(SidecarError::Damaged);
        }
        let version = u16::from_le_bytes(field(header, 4));
        if version != VERSION {
            return Err(SidecarError::Version(version));
        }
        if xxh3_64(&header[..168]) != u64::from_le_bytes(field(header, 168)) {
            return Err(SidecarError::Damaged);
        }
        let found = SegmentId {
            shard: ShardId {
                stream: StreamId(Uuid::from_bytes(field(header, 8))),
                shard: ShardNumber(u32::from_le_bytes(field(header, 24))),
            },
            number: SegmentNumber(u64::from_le_bytes(field(header, 32))),
            term: Term(u32::from_le_bytes(field(header, 28))),
        };
        if found != *id {
            return Err(SidecarError::Other(found));
        }
        let contents = IndexContents::decode(&field(header, 48)).map_err(|_| SidecarError::Damaged)?;
        Ok(Self { id: *id, length: Position(u64::from_le_bytes(field(header, 40))), contents })
    }

    /// The points in a whole sidecar whose header was read by [`Sidecar::decode`]; `None` if they were not
    /// written or are damaged, and have to be rebuilt.
    pub fn decode_points(bytes: &[u8]) -> Option<SparseIndex> {
        let header: &[u8; SIDECAR_HEADER_BYTES] = bytes.first_chunk()?;
        let count = u32::from_le_bytes(field(header, 152)) as usize;
        let end = SIDECAR_HEADER_BYTES.checked_add(count.checked_mul(POINT_BYTES)?)?;
        let points = bytes.get(SIDECAR_HEADER_BYTES..end)?;
        let written = u16::from_le_bytes(field(header, 6)) & 1 == 1;
        if !written || xxh3_64(points) != u64::from_le_bytes(field(header, 160)) {
            return None;
        }
        let points = points.chunks_exact(POINT_BYTES).map(|point| Point {
            position: Position(u64::from_le_bytes(field(point, 0))),
            base_offset: Offset(u64::from_le_bytes(field(point, 8))),
            transaction_id: TransactionId(i64::from_le_bytes(field(point, 16))),
        });
        Some(SparseIndex { step: u32::from_le_bytes(field(header, 156)), points: points.collect() })
    }
}

#[cfg(test)]
mod tests;
