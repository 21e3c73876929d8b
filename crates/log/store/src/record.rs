//! The store's records in the journal.
//!
//! ```text
//! offset width  little-endian
//!      0     1  kind: 1 create, 2 append, 3 seal, 4 delete
//!      1     1  version: 1
//!      2     2  zero
//!      4     4  shard
//!      8    16  stream UUID, bytes in order
//!     24     8  segment number
//!     32     4  term
//!     36     4  zero
//!     40     8  append: position in the segment; seal: sealed length; else zero
//!     48     n  append: one entry; else nothing
//! ```
//! The journal frames and checksums records, so this layer only has to refuse what it does not understand.

use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use tailwater_journal::Tag;
use uuid::Uuid;

/// The store's tag in the journal.
pub const TAG: Tag = Tag(2);

/// Bytes before an append's entry.
pub const HEADER_BYTES: usize = 48;

const VERSION: u8 = 1;

/// What a record says of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// It exists.
    Create(SegmentId),
    /// It has this entry at this position.
    Append(SegmentId, Position, &'a [u8]),
    /// It ends at this length, for ever.
    Seal(SegmentId, Position),
    /// It is gone.
    Delete(SegmentId),
}

/// Why bytes are not a record of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreRecordError {
    /// Shorter than a header, or bytes after a record that has none.
    #[error("a store record of {0} bytes does not have its kind's length")]
    Length(usize),
    /// Written by a later version.
    #[error("store record version {0} is not known to this version (it knows 1)")]
    Version(u8),
    /// Written by a later version.
    #[error("store record kind {0} is not known to this version")]
    Kind(u8),
}

impl<'a> Record<'a> {
    /// The bytes before the entry; all bytes of a record that has none.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let (kind, id, at) = match self {
            Record::Create(id) => (1, id, 0),
            Record::Append(id, position, _) => (2, id, position.0),
            Record::Seal(id, length) => (3, id, length.0),
            Record::Delete(id) => (4, id, 0),
        };
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[1] = VERSION;
        header[4..8].copy_from_slice(&id.shard.shard.0.to_le_bytes());
        header[8..24].copy_from_slice(id.shard.stream.0.as_bytes());
        header[24..32].copy_from_slice(&id.number.0.to_le_bytes());
        header[32..36].copy_from_slice(&id.term.0.to_le_bytes());
        header[40..48].copy_from_slice(&at.to_le_bytes());
        header
    }

    /// Reads a record that the journal replays.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, StoreRecordError> {
        let (header, entry) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(StoreRecordError::Length(bytes.len()))?;
        if header[1] != VERSION {
            return Err(StoreRecordError::Version(header[1]));
        }
        let id = SegmentId {
            shard: ShardId {
                stream: StreamId(Uuid::from_bytes(field(header, 8))),
                shard: ShardNumber(u32::from_le_bytes(field(header, 4))),
            },
            number: SegmentNumber(u64::from_le_bytes(field(header, 24))),
            term: Term(u32::from_le_bytes(field(header, 32))),
        };
        let at = Position(u64::from_le_bytes(field(header, 40)));
        let record = match header[0] {
            1 => Record::Create(id),
            2 => return Ok(Record::Append(id, at, entry)),
            3 => Record::Seal(id, at),
            4 => Record::Delete(id),
            kind => return Err(StoreRecordError::Kind(kind)),
        };
        if entry.is_empty() { Ok(record) } else { Err(StoreRecordError::Length(bytes.len())) }
    }
}

/// `N` bytes of `bytes` from `offset`; both are constants of a drawn layout.
pub(crate) fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SegmentId {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(0x0102_0304)), shard: ShardNumber(5) };
        SegmentId { shard, number: SegmentNumber(6), term: Term(7) }
    }

    #[test]
    fn records_read_back_as_they_were_written() {
        for record in [
            Record::Create(id()),
            Record::Append(id(), Position(9), b"entry"),
            Record::Seal(id(), Position(u64::MAX)),
            Record::Delete(id()),
        ] {
            let mut bytes = record.header().to_vec();
            if let Record::Append(_, _, entry) = record {
                bytes.extend_from_slice(entry);
            }
            assert_eq!(Record::parse(&bytes), Ok(record));
        }
    }

    #[test]
    fn golden_bytes_of_version_1() {
        let mut expected = [0; HEADER_BYTES];
        expected[0] = 3;
        expected[1] = 1;
        expected[4] = 5;
        expected[20..24].copy_from_slice(&[1, 2, 3, 4]);
        expected[24] = 6;
        expected[32] = 7;
        expected[41] = 1;
        assert_eq!(Record::Seal(id(), Position(256)).header(), expected);
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        let good = Record::Create(id()).header();
        assert_eq!(Record::parse(&good[..47]), Err(StoreRecordError::Length(47)));
        assert_eq!(Record::parse(&[&good[..], b"x"].concat()), Err(StoreRecordError::Length(49)));
        let mut later = good;
        later[1] = 2;
        assert_eq!(Record::parse(&later), Err(StoreRecordError::Version(2)));
        let mut unknown = good;
        unknown[0] = 9;
        assert_eq!(Record::parse(&unknown), Err(StoreRecordError::Kind(9)));
    }
}
