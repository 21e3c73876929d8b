//! Kafka's record batch, magic 2: stored and sent as the producer made it.
//!
//! ```text
//! offset size field                    (big-endian, signed)
//!      0    8 base offset              filled in by the shard's owner
//!      8    4 batch length             of what follows this field
//!     12    4 partition leader epoch   the term, filled in by the shard's owner
//!     16    1 magic                    2
//!     17    4 crc                      CRC32C of bytes 21..
//!     21    2 attributes               bits 0-2 codec, 3 timestamp is append time, 4 transactional, 5 control
//!     23    4 last offset delta        record count - 1
//!     27    8 base timestamp           ms since the epoch
//!     35    8 max timestamp
//!     43    8 producer id              -1 for none
//!     51    2 producer epoch
//!     53    4 base sequence
//!     57    4 record count
//!     61      records, compressed together if the attributes say so; see `records.rs`
//! ```
//!
//! What holds:
//! - [`Batch::parse`] looks at the header only; [`Batch::validate`] at all that an owner must be sure of before
//!   it takes a batch, short of looking at the records; [`Batch::check_records`] at these.
//! - Offsets of a batch's records are dense, as Kafka demands of producers: record count = last offset delta + 1.
//!   (Compaction, which makes holes, does not exist here.) There is at least one record.
//! - Base offset and leader epoch lie before the checksummed bytes, so [`assign`] leaves the checksum alone.
//! - Nothing here panics on any bytes, nor takes memory beyond what the caller allows for decompression.

use bytes::Bytes;

use crate::bytes_at::{i16_be, i32_be, i64_be, put_i16_be, put_i32_be, put_i64_be, put_u32_be, u32_be};
use crate::ids::{Offset, Term};
use crate::limits::{OFFSET_MAX, RECORDS_DECOMPRESSED_BYTES_MAX, TERM_MAX};

mod builder;
mod compression;
mod recompress;
mod records;
mod varint;

pub use builder::{BatchBuilder, Producer, RecordTooLarge};
pub use compression::{Codec, DecompressError, Decompressor, UnknownCodec};
pub use recompress::Recompressor;
pub use records::{RECORD_BYTES_MIN, Record, RecordCorrupt, RecordHeader, RecordHeaders, Records};

/// Length of a batch's header in bytes.
pub const BATCH_HEADER_BYTES: usize = 61;

/// The timestamp of a record to which its producer gave none.
pub const NO_TIMESTAMP_MS: i64 = -1;

/// The bytes that are not counted in the batch length.
const LENGTH_PREFIX_BYTES: usize = 12;
const MAGIC: u8 = 2;
const AT_LENGTH: usize = 8;
const AT_LEADER_EPOCH: usize = 12;
const AT_MAGIC: usize = 16;
const AT_CRC: usize = 17;
const AT_ATTRIBUTES: usize = 21;
const AT_LAST_OFFSET_DELTA: usize = 23;
const AT_BASE_TIMESTAMP: usize = 27;
const AT_MAX_TIMESTAMP: usize = 35;
const AT_PRODUCER_ID: usize = 43;
const AT_PRODUCER_EPOCH: usize = 51;
const AT_BASE_SEQUENCE: usize = 53;
const AT_RECORD_COUNT: usize = 57;
const _: () = assert!(AT_RECORD_COUNT + 4 == BATCH_HEADER_BYTES);

const CODEC_MASK: i16 = 0b111;
const APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// A batch's header. Its numbers are in their ranges and fit each other, but only the checksum says whether they
/// are the producer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record; what the producer left there until the owner assigns it.
    pub base_offset: Offset,
    /// Length of the whole batch in bytes, header included.
    pub len: usize,
    /// The term in which it was appended; -1, or anything else, until the owner assigns it.
    pub leader_epoch: i32,
    /// CRC32C of everything behind it.
    pub crc: u32,
    /// Codec and flags as they are.
    pub attributes: i16,
    /// How the records are compressed.
    pub codec: Codec,
    /// What the records' timestamps are counted from, in ms since the epoch.
    pub base_timestamp_ms: i64,
    /// The largest timestamp of a record, or the append time; -1 if the records have none.
    pub max_timestamp_ms: i64,
    /// As it is; see [`BatchHeader::producer`].
    pub producer_id: i64,
    /// As it is.
    pub producer_epoch: i16,
    /// As it is.
    pub base_sequence: i32,
    /// Number of records, at least 1.
    pub record_count: u32,
}

/// Why bytes are not a batch, or not one that is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("incomplete: {needed} bytes are needed from the batch's beginning, {found} are there")]
    Incomplete {
        /// How many bytes are there.
        found: usize,
        /// How many bytes are needed: those of the header, or of the whole batch.
        needed: usize,
    },
    /// Another magic than 2: an old message format, or no batch at all.
    #[error("record batch magic {found}, but only 2 is taken")]
    Magic {
        /// The magic.
        found: i8,
    },
    /// No batch has this length.
    #[error("batch length {found}")]
    Length {
        /// As the batch says it, without the 12 bytes before.
        found: i32,
    },
    /// Longer than the limit it is held to.
    #[error("batch of {found} bytes, at most {bytes_max} are taken")]
    TooLarge {
        /// Length of the batch.
        found: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The checksum does not fit the bytes.
    #[error("batch checksum {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// As stored.
        found: u32,
        /// As it should be.
        computed: u32,
    },
    /// No codec has this number.
    #[error("unknown compression codec {found}")]
    Codec {
        /// The number.
        found: u8,
    },
    /// The base offset is negative, or the last one would be too large.
    #[error("base offset {found}")]
    BaseOffset {
        /// The base offset.
        found: i64,
    },
    /// The number of records does not fit the offsets or the bytes.
    #[error("{record_count} records with last offset delta {last_offset_delta} in {records_bytes} bytes")]
    RecordCount {
        /// As the batch says it.
        record_count: i32,
        /// As the batch says it.
        last_offset_delta: i32,
        /// Length of the records, compressed or not.
        records_bytes: usize,
    },
    /// A producer id comes with a negative epoch or sequence, or transactional without a producer id.
    #[error("producer id {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")]
    Producer {
        /// As the batch says it.
        producer_id: i64,
        /// As the batch says it.
        producer_epoch: i16,
        /// As the batch says it.
        base_sequence: i32,
    },
    /// A control batch, which only brokers write.
    #[error("control batches are not taken")]
    Control,
    /// The records could not be decompressed.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// A record is damaged.
    #[error(transparent)]
    Record(#[from] RecordCorrupt),
}

impl BatchHeader {
    /// The header at the beginning of `bytes`; the records need not be there. The checksum is not looked at.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // Magic first: older formats have it at the same place and other things behind it.
        if let Some(&magic) = bytes.get(AT_MAGIC)
            && magic != MAGIC
        {
            return Err(BatchError::Magic { found: magic as i8 });
        }
        let header = bytes
            .get(..BATCH_HEADER_BYTES)
            .ok_or(BatchError::Incomplete { found: bytes.len(), needed: BATCH_HEADER_BYTES })?;
        let length = i32_be(header, AT_LENGTH);
        let len = usize::try_from(length).ok().map(|length| length + LENGTH_PREFIX_BYTES);
        let len = len.filter(|len| *len >= BATCH_HEADER_BYTES).ok_or(BatchError::Length { found: length })?;

        let attributes = i16_be(header, AT_ATTRIBUTES);
        let codec = (attributes & CODEC_MASK) as u8;
        let codec = Codec::from_number(codec).ok_or(BatchError::Codec { found: codec })?;

        let record_count = i32_be(header, AT_RECORD_COUNT);
        let last_offset_delta = i32_be(header, AT_LAST_OFFSET_DELTA);
        let records_bytes = len - BATCH_HEADER_BYTES;
        let record_bytes_max =
            if codec == Codec::None { records_bytes } else { RECORDS_DECOMPRESSED_BYTES_MAX };
        if record_count < 1
            || last_offset_delta != record_count - 1
            || record_count as usize > record_bytes_max / RECORD_BYTES_MIN
        {
            return Err(BatchError::RecordCount { record_count, last_offset_delta, records_bytes });
        }
        let base_offset = i64_be(header, 0);
        if base_offset < 0 || base_offset.checked_add(i64::from(record_count)).is_none() {
            return Err(BatchError::BaseOffset { found: base_offset });
        }
        Ok(Self {
            base_offset: Offset(base_offset as u64),
            len,
            leader_epoch: i32_be(header, AT_LEADER_EPOCH),
            crc: u32_be(header, AT_CRC),
            attributes,
            codec,
            base_timestamp_ms: i64_be(header, AT_BASE_TIMESTAMP),
            max_timestamp_ms: i64_be(header, AT_MAX_TIMESTAMP),
            producer_id: i64_be(header, AT_PRODUCER_ID),
            producer_epoch: i16_be(header, AT_PRODUCER_EPOCH),
            base_sequence: i32_be(header, AT_BASE_SEQUENCE),
            record_count: record_count as u32,
        })
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset.0 + u64::from(self.record_count) - 1)
    }

    /// Offset after the last record.
    pub fn next_offset(&self) -> Offset {
        Offset(self.base_offset.0 + u64::from(self.record_count))
    }

    /// The idempotent producer that made it, if one did.
    pub fn producer(&self) -> Option<Producer> {
        (self.producer_id >= 0).then_some(Producer {
            id: self.producer_id,
            epoch: self.producer_epoch,
            base_sequence: self.base_sequence,
        })
    }

    /// Whether all records have the append time for their timestamp, which is the batch's max timestamp.
    pub fn is_append_time(&self) -> bool {
        self.attributes & APPEND_TIME != 0
    }

    /// Whether it belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether its records are the broker's own, such as a transaction's end.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Length of the records as they are stored, in bytes.
    pub fn records_len(&self) -> usize {
        self.len - BATCH_HEADER_BYTES
    }
}

/// One whole batch with its parsed header, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The batch at the beginning of `bytes`, which may go on after it. The checksum is not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        let needed = header.len;
        let batch = bytes.get(..needed).ok_or(BatchError::Incomplete { found: bytes.len(), needed })?;
        Ok(Self { header, bytes: batch })
    }

    /// [`Batch::parse`], and everything that a shard's owner checks of a client's batch before it takes it: at
    /// most `bytes_max` long, checksum, producer fields that go together, no control batch. The records are not
    /// looked at: what their compressed bytes hold is the readers' to check.
    pub fn validate(bytes: &'a [u8], bytes_max: usize) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(bytes)?;
        if header.len > bytes_max {
            return Err(BatchError::TooLarge { found: header.len, bytes_max });
        }
        let batch = Self::parse(bytes)?;
        batch.check_crc()?;
        if header.is_control() {
            return Err(BatchError::Control);
        }
        let numbered = header.producer_epoch >= 0 && header.base_sequence >= 0;
        if (header.producer_id >= 0 && !numbered) || (header.producer_id < 0 && header.is_transactional()) {
            return Err(BatchError::Producer {
                producer_id: header.producer_id,
                producer_epoch: header.producer_epoch,
                base_sequence: header.base_sequence,
            });
        }
        Ok(batch)
    }

    /// The header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// All bytes of the batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the checksum fits.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (found, computed) = (self.header.crc, crc_of(self.bytes));
        if found == computed { Ok(()) } else { Err(BatchError::Crc { found, computed }) }
    }

    /// The records, borrowed from the batch, or from `decompressor` if they are compressed.
    ///
    /// At most `bytes_max` bytes are decompressed.
    pub fn records<'r>(
        &self,
        decompressor: &'r mut Decompressor,
        bytes_max: usize,
    ) -> Result<Records<'r>, BatchError>
    where
        'a: 'r,
    {
        let stored = &self.bytes[BATCH_HEADER_BYTES..];
        let records = decompressor.decompress(self.header.codec, stored, bytes_max)?;
        Ok(Records::new(&self.header, records))
    }

    /// Walks all records and their headers: their lengths are exact, their offsets dense, nothing is behind them.
    /// At most `bytes_max` bytes are decompressed.
    pub fn check_records(
        &self,
        decompressor: &mut Decompressor,
        bytes_max: usize,
    ) -> Result<RecordsFound, BatchError> {
        let record_count = self.header.record_count;
        let (mut min_timestamp_ms, mut max_timestamp_ms) = (i64::MAX, i64::MIN);
        let stored = &self.bytes[BATCH_HEADER_BYTES..];
        let records = decompressor.decompress(self.header.codec, stored, bytes_max)?;
        for (index, record) in Records::new(&self.header, records).enumerate() {
            let record = record?;
            if record.timestamp_ms != NO_TIMESTAMP_MS {
                min_timestamp_ms = min_timestamp_ms.min(record.timestamp_ms);
            }
            max_timestamp_ms = max_timestamp_ms.max(record.timestamp_ms);
            for header in record.headers.iter() {
                header.map_err(|what| RecordCorrupt { index: index as u32, record_count, what })?;
            }
        }
        Ok(RecordsFound { min_timestamp_ms, max_timestamp_ms, bytes: records.len() })
    }
}

/// What [`Batch::check_records`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsFound {
    /// The smallest timestamp of those that are none but [`NO_TIMESTAMP_MS`].
    pub min_timestamp_ms: i64,
    /// The largest timestamp, which [`BatchHeader::max_timestamp_ms`] ought to be.
    pub max_timestamp_ms: i64,
    /// Bytes of the records, decompressed.
    pub bytes: usize,
}

/// The batches in `bytes`, one after the other; ends behind the first error, and with one if the last batch is
/// not whole. Checksums are not looked at.
pub fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches { rest: bytes }
}

/// Iterator over batches; see [`batches`].
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<Batch<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = Batch::parse(self.rest);
        self.rest = batch.as_ref().map_or(&[], |batch| &self.rest[batch.header.len..]);
        Some(batch)
    }
}

impl std::iter::FusedIterator for Batches<'_> {}

/// The records of one batch as a value that can be kept: it shares the batch's memory, or owns what was decompressed.
#[derive(Clone, Debug)]
pub struct RecordsOfBatch {
    header: BatchHeader,
    records: Bytes,
}

impl RecordsOfBatch {
    /// The records of the batch at the beginning of `bytes`, at most `bytes_max` bytes when decompressed. The
    /// checksum is not looked at.
    pub fn open(
        bytes: &Bytes,
        decompressor: &mut Decompressor,
        bytes_max: usize,
    ) -> Result<Self, BatchError> {
        let header = *Batch::parse(bytes)?.header();
        let stored = bytes.slice(BATCH_HEADER_BYTES..header.len);
        let records = match header.codec {
            Codec::None if stored.len() <= bytes_max => stored,
            codec => {
                decompressor.decompress(codec, &stored, bytes_max)?;
                Bytes::from(decompressor.take())
            }
        };
        Ok(Self { header, records })
    }

    /// The batch's header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The records.
    pub fn iter(&self) -> Records<'_> {
        Records::new(&self.header, &self.records)
    }
}

impl<'a> IntoIterator for &'a RecordsOfBatch {
    type Item = Result<Record<'a>, RecordCorrupt>;
    type IntoIter = Records<'a>;

    fn into_iter(self) -> Records<'a> {
        self.iter()
    }
}

/// Gives a batch its place: base offset and term. The checksum stays right.
///
/// # Panics
/// If `batch` is shorter than a header, or the numbers are out of Kafka's range.
pub fn assign(batch: &mut [u8], base_offset: Offset, term: Term) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "a batch of {} bytes", batch.len());
    assert!(base_offset.0 <= OFFSET_MAX && term.0 <= TERM_MAX, "offset {base_offset}, term {term}");
    put_i64_be(batch, 0, base_offset.0 as i64);
    put_i32_be(batch, AT_LEADER_EPOCH, term.0 as i32);
}

/// Gives all records of a batch one timestamp, the time at which it is appended, and makes the checksum anew.
///
/// # Panics
/// If `batch` is shorter than a header. It must be exactly one batch, whose checksum was checked.
pub fn set_append_time(batch: &mut [u8], append_time_ms: i64) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "a batch of {} bytes", batch.len());
    let attributes = i16_be(batch, AT_ATTRIBUTES);
    put_i16_be(batch, AT_ATTRIBUTES, attributes | APPEND_TIME);
    put_i64_be(batch, AT_MAX_TIMESTAMP, append_time_ms);
    let crc = crc_of(batch);
    put_u32_be(batch, AT_CRC, crc);
}

fn crc_of(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&batch[AT_ATTRIBUTES..])
}

#[cfg(test)]
mod tests;
