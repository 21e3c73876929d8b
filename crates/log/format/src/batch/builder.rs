//! Making batches: records are encoded as they come, compressed and checksummed once at the end.

use bytes::Bytes;

use super::compression::{Codec, Compressor};
use super::{
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BASE_TIMESTAMP, AT_CRC, AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH,
    AT_LENGTH, AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, AT_RECORD_COUNT,
    BATCH_HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, crc_of, varint,
};
use crate::bytes_at::{put_i16_be, put_i32_be, put_i64_be, put_u32_be};
use crate::limits::BATCH_BYTES_MAX;

/// An idempotent producer and its place in its sequence of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Its id, not negative.
    pub id: i64,
    /// Its epoch, not negative.
    pub epoch: i16,
    /// Sequence number of the batch's first record; after 2^31 - 1 comes 0.
    pub base_sequence: i32,
}

/// A record that would make a batch longer than a batch may be; it was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a batch of {batch_bytes} bytes can't take a record of {record_bytes}: {BATCH_BYTES_MAX} is the most"
)]
pub struct RecordTooLarge {
    /// Length of the record, encoded.
    pub record_bytes: usize,
    /// Length of the batch before it, without compression.
    pub batch_bytes: usize,
}

/// Makes one batch after the other. What is not compressed is handed over as it was gathered; otherwise the memory it
/// was gathered in is used again.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    /// Room for the batch's header, and its records behind it; empty before the first record.
    batch: Vec<u8>,
    record_count: u32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
    producer: Option<Producer>,
    compressor: Compressor,
}

impl BatchBuilder {
    /// One without records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record and answers the batch's length so far, before compression.
    ///
    /// `timestamp_ms` counts from the epoch; -1 stands for none.
    pub fn append(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
        timestamp_ms: i64,
    ) -> Result<usize, RecordTooLarge> {
        let timestamp_delta =
            if self.record_count == 0 { 0 } else { timestamp_ms.wrapping_sub(self.base_timestamp_ms) };
        let offset_delta = i64::from(self.record_count);
        let headers_len: usize =
            headers.iter().map(|(key, value)| bytes_len(Some(key.as_bytes())) + bytes_len(*value)).sum();
        let body_len = 1
            + varint::len(timestamp_delta)
            + varint::len(offset_delta)
            + bytes_len(key)
            + bytes_len(value)
            + varint::len(headers.len() as i64)
            + headers_len;
        let record_bytes = varint::len(body_len as i64) + body_len;
        let batch_bytes = self.len();
        // Also keeps every length below far from where 32 bits end.
        if batch_bytes + record_bytes > BATCH_BYTES_MAX {
            return Err(RecordTooLarge { record_bytes, batch_bytes });
        }

        if self.record_count == 0 {
            (self.base_timestamp_ms, self.max_timestamp_ms) = (timestamp_ms, timestamp_ms);
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        self.record_count += 1;
        let out = &mut self.batch;
        if out.is_empty() {
            out.reserve(BATCH_HEADER_BYTES + record_bytes);
            out.resize(BATCH_HEADER_BYTES, 0);
        }
        let start = out.len();
        out.reserve(record_bytes);
        varint::put(out, body_len as i64);
        out.push(0);
        varint::put(out, timestamp_delta);
        varint::put(out, offset_delta);
        put_bytes(out, key);
        put_bytes(out, value);
        varint::put(out, headers.len() as i64);
        for (key, value) in headers {
            put_bytes(out, Some(key.as_bytes()));
            put_bytes(out, *value);
        }
        debug_assert_eq!(out.len() - start, record_bytes, "a record is as long as was computed");
        Ok(self.len())
    }

    /// Length of the batch so far in bytes, before compression.
    pub fn len(&self) -> usize {
        self.batch.len().max(BATCH_HEADER_BYTES)
    }

    /// Memory that is kept for records, in bytes, whether there are any or not.
    pub fn memory(&self) -> usize {
        self.batch.capacity()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Number of records so far.
    pub fn record_count(&self) -> u32 {
        self.record_count
    }

    /// Who makes the batch, if its appends are to be idempotent; holds for the next [`BatchBuilder::finish`] only.
    ///
    /// # Panics
    /// If a number is negative.
    pub fn set_producer(&mut self, producer: Producer) {
        assert!(producer.id >= 0 && producer.epoch >= 0 && producer.base_sequence >= 0, "{producer:?}");
        self.producer = Some(producer);
    }

    /// The batch, with base offset 0 and no leader epoch. The builder is empty afterwards. Compression may make
    /// short batches a little longer than [`BatchBuilder::len`] said.
    ///
    /// # Panics
    /// If there is no record: an empty batch is not taken by anyone.
    pub fn finish(&mut self, codec: Codec) -> Bytes {
        assert!(self.record_count > 0, "a batch has at least one record");
        let mut batch = match codec {
            // The next batch is likely to be about as long: growing by and by would copy it several times. One that is
            // a few bytes longer, as timestamps differ, would be copied once.
            Codec::None => {
                let len = self.batch.len();
                std::mem::replace(&mut self.batch, Vec::with_capacity(len + len / 8))
            }
            codec => {
                let mut batch = Vec::with_capacity(BATCH_HEADER_BYTES + self.len() / 2);
                batch.resize(BATCH_HEADER_BYTES, 0);
                self.compressor.compress(codec, &self.batch[BATCH_HEADER_BYTES..], &mut batch);
                batch
            }
        };

        let none = Producer { id: -1, epoch: -1, base_sequence: -1 };
        let producer = self.producer.unwrap_or(none);
        let length = i32::try_from(batch.len() - LENGTH_PREFIX_BYTES);
        put_i32_be(&mut batch, AT_LENGTH, length.expect("a batch is far shorter than 2 GiB"));
        put_i32_be(&mut batch, AT_LEADER_EPOCH, -1);
        batch[AT_MAGIC] = MAGIC;
        put_i16_be(&mut batch, AT_ATTRIBUTES, codec as i16);
        put_i32_be(&mut batch, AT_LAST_OFFSET_DELTA, self.record_count as i32 - 1);
        put_i64_be(&mut batch, AT_BASE_TIMESTAMP, self.base_timestamp_ms);
        put_i64_be(&mut batch, AT_MAX_TIMESTAMP, self.max_timestamp_ms);
        put_i64_be(&mut batch, AT_PRODUCER_ID, producer.id);
        put_i16_be(&mut batch, AT_PRODUCER_EPOCH, producer.epoch);
        put_i32_be(&mut batch, AT_BASE_SEQUENCE, producer.base_sequence);
        put_i32_be(&mut batch, AT_RECORD_COUNT, self.record_count as i32);
        let crc = crc_of(&batch);
        put_u32_be(&mut batch, AT_CRC, crc);

        self.clear();
        Bytes::from(batch)
    }

    /// Drops what was appended.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.record_count = 0;
        self.producer = None;
    }
}

/// Length of bytes with their length before them.
fn bytes_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint::len(bytes.len() as i64) + bytes.len())
}

fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::put(out, -1),
        Some(bytes) => {
            varint::put(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
