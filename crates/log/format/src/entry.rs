//! Entries: what one flush appends to a segment.
//!
//! A segment is a sequence of entries and nothing else. An entry is a fixed header and the Kafka record batches
//! of the flush, or none: a *control entry*, which moves the last confirmed length and is not delivered.
//!
//! ```text
//! offset size field              (little-endian)
//!      0    4 magic              "TWen"
//!      4    2 version            2
//!      6    2 zero
//!      8    4 len                of the whole entry, header included
//!     12    4 record_count       0 exactly if there is no body
//!     16   16 stream             UUID, in the order in which it is printed
//!     32    4 shard
//!     36    4 term               < 2^31
//!     40    8 segment
//!     48    8 entry_id           counted from 0 in each segment
//!     56    8 base_offset        of the first record; of the next one to come in a control entry
//!     64    8 transaction_id     largest of the shard up to and including this entry (signed)
//!     72    8 checksum           XXH3-64 of the body
//!     80    8 header_checksum    XXH3-64 of bytes 0..80
//!     88      body: len - 88 bytes of record batches, one after the other
//! ```
//!
//! What holds:
//! - The header has a checksum of its own, which covers the body's checksum: together they cover every byte. So
//!   a length can be believed as soon as the 88 bytes are there, and garbage is told from "not all here yet"
//!   without waiting for a body that never comes.
//! - Both have 64 bits and are what is fastest (`cargo bench -p tailwater-format` prints it): `twox-hash` finds out at
//!   run time what the processor can do, and where that has no AVX-512 a CRC-64 takes four times as long. The batches
//!   inside keep Kafka's CRC32C, which Kafka's clients check.
//! - Nothing here allocates while parsing, and no input makes it panic.
//!
//! Entries are written by a segment's one writer; recovery, the tail readers and the copies parse them.

use bytes::{BufMut, Bytes, BytesMut};
use twox_hash::XxHash3_64;
use uuid::Uuid;

use crate::bytes_at::{
    bytes16, i64_le, put_i64_le, put_u16_le, put_u32_le, put_u64_le, u16_le, u32_le, u64_le,
};
use crate::ids::{
    Dlsn, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, SlotId, StreamId, Term,
    TransactionId,
};
use crate::limits::{ENTRY_BODY_BYTES_MAX, OFFSET_MAX, TERM_MAX};

/// Length of an entry's header in bytes.
pub const ENTRY_HEADER_BYTES: usize = 88;
/// Length of the longest entry in bytes, header included.
pub const ENTRY_BYTES_MAX: usize = ENTRY_HEADER_BYTES + ENTRY_BODY_BYTES_MAX;
/// The version that [`encode_entry`] writes, and the only one that is read.
pub const ENTRY_VERSION: u16 = 2;

const MAGIC: [u8; 4] = *b"TWen";
const AT_VERSION: usize = 4;
const AT_ZERO: usize = 6;
const AT_LEN: usize = 8;
const AT_RECORD_COUNT: usize = 12;
const AT_STREAM: usize = 16;
const AT_SHARD: usize = 32;
const AT_TERM: usize = 36;
const AT_SEGMENT: usize = 40;
const AT_ENTRY_ID: usize = 48;
const AT_BASE_OFFSET: usize = 56;
const AT_TRANSACTION_ID: usize = 64;
const AT_CHECKSUM: usize = 72;
const AT_HEADER_CHECKSUM: usize = 80;
const _: () = assert!(AT_HEADER_CHECKSUM + 8 == ENTRY_HEADER_BYTES);

/// What a writer says of an entry; length and checksums follow from the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFields {
    /// The segment it belongs to.
    pub segment: SegmentId,
    /// Its place in the segment.
    pub entry_id: EntryId,
    /// Offset of its first record; in a control entry, of the next record to come.
    pub base_offset: Offset,
    /// Number of records in all its batches; 0 exactly for a control entry.
    pub record_count: u32,
    /// Largest transaction id of the shard up to and including this entry.
    pub transaction_id: TransactionId,
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// Version of the layout.
    pub version: u16,
    /// Length of the whole entry in bytes, header included; at most [`ENTRY_BYTES_MAX`].
    pub len: u32,
    /// The stream.
    pub stream: StreamId,
    /// The shard.
    pub shard: ShardNumber,
    /// The segment.
    pub segment: SegmentNumber,
    /// The term of the segment's writer; at most [`TERM_MAX`].
    pub term: Term,
    /// Place in the segment.
    pub entry_id: EntryId,
    /// Offset of the first record; in a control entry, of the next record to come.
    pub base_offset: Offset,
    /// Number of records; 0 exactly for a control entry.
    pub record_count: u32,
    /// Largest transaction id of the shard up to and including this entry.
    pub transaction_id: TransactionId,
    /// XXH3-64 of the body.
    pub checksum: u64,
}

/// An entry whose header and body were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The header.
    pub header: EntryHeader,
    /// The record batches, one after the other; empty in a control entry. Their own checksums were not looked at.
    pub batches: &'a [u8],
}

/// Why bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// What is there may be the beginning of an entry.
    #[error("incomplete: {needed} bytes are needed from the entry's beginning")]
    Incomplete {
        /// How many bytes, counted from the entry's beginning, the next attempt needs: first those of the
        /// header, then those of the whole entry; at most [`ENTRY_BYTES_MAX`].
        needed: usize,
    },
    /// No further bytes make this an entry.
    #[error("corrupt entry: {0}")]
    Corrupt(#[from] EntryCorrupt),
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryCorrupt {
    /// It does not begin as an entry does.
    #[error("begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that this program does not know; its header's checksum was not looked at.
    #[error("version {found}, but only {ENTRY_VERSION} is known")]
    Version {
        /// The version.
        found: u16,
    },
    /// The header's checksum does not fit the header.
    #[error("header checksum {found:#018x}, computed {computed:#018x}")]
    HeaderChecksum {
        /// As stored.
        found: u64,
        /// As it should be.
        computed: u64,
    },
    /// The body's checksum does not fit the body.
    #[error("body checksum {found:#018x}, computed {computed:#018x} over {body_bytes} bytes")]
    BodyChecksum {
        /// As stored.
        found: u64,
        /// As it should be.
        computed: u64,
        /// Length of the body.
        body_bytes: usize,
    },
    /// The header is whole, but no writer writes these numbers.
    #[error("impossible header: len {len}, records {record_count}, term {term}, base offset {base_offset}")]
    Impossible {
        /// Length of the entry.
        len: u32,
        /// Number of records.
        record_count: u32,
        /// Term.
        term: u32,
        /// Base offset.
        base_offset: u64,
    },
    /// It is an entry, but not the one that continues what was read before.
    #[error("does not continue: {0}")]
    Discontinuity(#[from] Discontinuity),
}

/// Why an entry is not the successor of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Discontinuity {
    /// It belongs elsewhere, or to another term.
    #[error("segment {found}, expected {expected}")]
    Segment {
        /// The entry's.
        found: SegmentId,
        /// The one that was being read.
        expected: SegmentId,
    },
    /// Entries are missing or repeated.
    #[error("entry {found}, expected {expected}")]
    EntryId {
        /// The entry's.
        found: EntryId,
        /// One more than the one before.
        expected: EntryId,
    },
    /// Records are missing or repeated.
    #[error("base offset {found}, expected {expected}")]
    BaseOffset {
        /// The entry's.
        found: Offset,
        /// The one before's base offset and record count.
        expected: Offset,
    },
    /// The running maximum went back.
    #[error("transaction id {found}, after {previous}")]
    TransactionId {
        /// The entry's.
        found: TransactionId,
        /// The one before's.
        previous: TransactionId,
    },
}

impl EntryHeader {
    /// The segment with its shard and term.
    pub fn segment_id(&self) -> SegmentId {
        SegmentId {
            shard: ShardId { stream: self.stream, shard: self.shard },
            number: self.segment,
            term: self.term,
        }
    }

    /// Whether the entry has no records.
    pub fn is_control(&self) -> bool {
        self.record_count == 0
    }

    /// Length of the record batches in bytes.
    pub fn body_len(&self) -> usize {
        (self.len as usize).saturating_sub(ENTRY_HEADER_BYTES)
    }

    /// Offset of the first record after this entry.
    pub fn next_offset(&self) -> Offset {
        Offset(self.base_offset.0.saturating_add(u64::from(self.record_count)))
    }

    /// Coordinates of the record at `offset`, if it is one of this entry's.
    pub fn dlsn(&self, offset: Offset) -> Option<Dlsn> {
        let slot = offset.0.checked_sub(self.base_offset.0)?;
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < self.record_count)?;
        Some(Dlsn { segment: self.segment, entry: self.entry_id, slot: SlotId(slot) })
    }

    /// Whether this is the entry that comes directly after `previous`: same segment and term, next entry id,
    /// base offset where the one before ends, transaction id not smaller.
    pub fn follows(&self, previous: &EntryHeader) -> bool {
        self.check_follows(previous).is_ok()
    }

    /// [`EntryHeader::follows`], with the numbers that say why not.
    pub fn check_follows(&self, previous: &EntryHeader) -> Result<(), Discontinuity> {
        if self.segment_id() != previous.segment_id() {
            return Err(Discontinuity::Segment { found: self.segment_id(), expected: previous.segment_id() });
        }
        if previous.entry_id.0.checked_add(1) != Some(self.entry_id.0) {
            let expected = EntryId(previous.entry_id.0.saturating_add(1));
            return Err(Discontinuity::EntryId { found: self.entry_id, expected });
        }
        if self.base_offset != previous.next_offset() {
            let expected = previous.next_offset();
            return Err(Discontinuity::BaseOffset { found: self.base_offset, expected });
        }
        if self.transaction_id < previous.transaction_id {
            return Err(Discontinuity::TransactionId {
                found: self.transaction_id,
                previous: previous.transaction_id,
            });
        }
        Ok(())
    }
}

/// The bytes of an entry with these batches, which are copied once.
///
/// # Panics
/// If the body is longer than [`ENTRY_BODY_BYTES_MAX`]; if there are records but no batches, or batches but no
/// records; if term or offsets are out of their range: what builds entries keeps to these bounds.
pub fn encode_entry(fields: &EntryFields, batches: &[Bytes]) -> Bytes {
    encode_entry_with(fields, batches.iter(), |_| {})
}

/// [`encode_entry`], with a say in the body before it is checksummed: `place` gives the copied batches their base
/// offsets and terms (see [`crate::batch::assign`]), so that they are copied only once.
///
/// # Panics
/// As [`encode_entry`].
pub fn encode_entry_with<'a>(
    fields: &EntryFields,
    batches: impl Iterator<Item = &'a Bytes> + Clone,
    place: impl FnOnce(&mut [u8]),
) -> Bytes {
    let body_len: usize = batches.clone().map(Bytes::len).sum();
    assert!(body_len <= ENTRY_BODY_BYTES_MAX, "an entry of {body_len} bytes is longer than a flush may be");
    assert!((body_len == 0) == (fields.record_count == 0), "records and batches come together");
    assert!(fields.segment.term.0 <= TERM_MAX, "a term is a Kafka leader epoch");
    let offset_end = fields.base_offset.0.checked_add(u64::from(fields.record_count));
    assert!(offset_end.is_some_and(|end| end <= OFFSET_MAX), "offsets are Kafka offsets");

    let mut entry = BytesMut::with_capacity(ENTRY_HEADER_BYTES + body_len);
    entry.put_bytes(0, ENTRY_HEADER_BYTES);
    for batch in batches {
        entry.put_slice(batch);
    }
    let (header, body) = entry.split_at_mut(ENTRY_HEADER_BYTES);
    place(body);
    header[..4].copy_from_slice(&MAGIC);
    put_u16_le(header, AT_VERSION, ENTRY_VERSION);
    put_u32_le(header, AT_LEN, (ENTRY_HEADER_BYTES + body_len) as u32);
    put_u32_le(header, AT_RECORD_COUNT, fields.record_count);
    header[AT_STREAM..AT_SHARD].copy_from_slice(fields.segment.shard.stream.0.as_bytes());
    put_u32_le(header, AT_SHARD, fields.segment.shard.shard.0);
    put_u32_le(header, AT_TERM, fields.segment.term.0);
    put_u64_le(header, AT_SEGMENT, fields.segment.number.0);
    put_u64_le(header, AT_ENTRY_ID, fields.entry_id.0);
    put_u64_le(header, AT_BASE_OFFSET, fields.base_offset.0);
    put_i64_le(header, AT_TRANSACTION_ID, fields.transaction_id.0);
    put_u64_le(header, AT_CHECKSUM, XxHash3_64::oneshot(body));
    let header_checksum = XxHash3_64::oneshot(&header[..AT_HEADER_CHECKSUM]);
    put_u64_le(header, AT_HEADER_CHECKSUM, header_checksum);
    entry.freeze()
}

/// The header at the beginning of `bytes`, checked by its own checksum; the body need not be there.
pub fn parse_entry_header(bytes: &[u8]) -> Result<EntryHeader, EntryError> {
    let magic_len = bytes.len().min(4);
    if bytes[..magic_len] != MAGIC[..magic_len] {
        let mut found = [0; 4];
        found[..magic_len].copy_from_slice(&bytes[..magic_len]);
        return Err(EntryCorrupt::Magic { found }.into());
    }
    let Some(header) = bytes.get(..ENTRY_HEADER_BYTES) else {
        return Err(EntryError::Incomplete { needed: ENTRY_HEADER_BYTES });
    };
    let version = u16_le(header, AT_VERSION);
    if version != ENTRY_VERSION {
        return Err(EntryCorrupt::Version { found: version }.into());
    }
    let found = u64_le(header, AT_HEADER_CHECKSUM);
    let computed = XxHash3_64::oneshot(&header[..AT_HEADER_CHECKSUM]);
    if found != computed {
        return Err(EntryCorrupt::HeaderChecksum { found, computed }.into());
    }
    let len = u32_le(header, AT_LEN);
    let record_count = u32_le(header, AT_RECORD_COUNT);
    let term = u32_le(header, AT_TERM);
    let base_offset = u64_le(header, AT_BASE_OFFSET);
    let possible = u16_le(header, AT_ZERO) == 0
        && (ENTRY_HEADER_BYTES..=ENTRY_BYTES_MAX).contains(&(len as usize))
        && (len as usize == ENTRY_HEADER_BYTES) == (record_count == 0)
        && term <= TERM_MAX
        && base_offset.checked_add(u64::from(record_count)).is_some_and(|end| end <= OFFSET_MAX);
    if !possible {
        return Err(EntryCorrupt::Impossible { len, record_count, term, base_offset }.into());
    }
    Ok(EntryHeader {
        version,
        len,
        stream: StreamId(Uuid::from_bytes(bytes16(header, AT_STREAM))),
        shard: ShardNumber(u32_le(header, AT_SHARD)),
        segment: SegmentNumber(u64_le(header, AT_SEGMENT)),
        term: Term(term),
        entry_id: EntryId(u64_le(header, AT_ENTRY_ID)),
        base_offset: Offset(base_offset),
        record_count,
        transaction_id: TransactionId(i64_le(header, AT_TRANSACTION_ID)),
        checksum: u64_le(header, AT_CHECKSUM),
    })
}

/// The entry at the beginning of `bytes`, which may go on after it.
pub fn parse_entry(bytes: &[u8]) -> Result<Entry<'_>, EntryError> {
    let header = parse_entry_header(bytes)?;
    let len = header.len as usize;
    let Some(batches) = bytes.get(ENTRY_HEADER_BYTES..len) else {
        return Err(EntryError::Incomplete { needed: len });
    };
    let computed = XxHash3_64::oneshot(batches);
    if header.checksum != computed {
        let found = header.checksum;
        return Err(EntryCorrupt::BodyChecksum { found, computed, body_bytes: batches.len() }.into());
    }
    Ok(Entry { header, batches })
}

/// Reads the entries of one segment in order and accepts only what continues.
#[derive(Clone, Debug)]
pub struct EntryReader {
    segment: SegmentId,
    position: Position,
    previous: Option<EntryHeader>,
}

impl EntryReader {
    /// Reads `segment` from its beginning: the first entry must have id 0.
    pub fn new(segment: SegmentId) -> Self {
        Self { segment, position: Position(0), previous: None }
    }

    /// Reads `segment` from an entry that begins at `position`, whichever it is.
    pub fn starting_at(segment: SegmentId, position: Position) -> Self {
        Self { segment, position, previous: None }
    }

    /// Where the next entry begins.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The header of the entry read last.
    pub fn previous(&self) -> Option<&EntryHeader> {
        self.previous.as_ref()
    }

    /// Reads the entry at the beginning of `bytes`, which are the segment's from [`EntryReader::position`] on,
    /// and moves behind it. After an error the reader is where it was.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Entry<'a>, EntryError> {
        let header = parse_entry_header(bytes)?;
        self.check_continues(&header).map_err(EntryCorrupt::from)?;
        let entry = parse_entry(bytes)?;
        self.position = Position(self.position.0 + u64::from(entry.header.len));
        self.previous = Some(entry.header);
        Ok(entry)
    }

    fn check_continues(&self, header: &EntryHeader) -> Result<(), Discontinuity> {
        if let Some(previous) = &self.previous {
            return header.check_follows(previous);
        }
        if header.segment_id() != self.segment {
            return Err(Discontinuity::Segment { found: header.segment_id(), expected: self.segment });
        }
        if self.position == Position(0) && header.entry_id != EntryId(0) {
            return Err(Discontinuity::EntryId { found: header.entry_id, expected: EntryId(0) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
