//! The records of a batch, one after the other, borrowed from its (decompressed) bytes.
//!
//! ```text
//! length           varint    of what follows
//! attributes       1 byte    unused
//! timestamp delta  varlong   from the batch's base timestamp
//! offset delta     varint    from the batch's base offset
//! key length       varint    -1 for none
//! key
//! value length     varint    -1 for none
//! value
//! header count     varint
//! headers          each: key length varint, key (UTF-8), value length varint (-1 for none), value
//! ```
//!
//! This is every consumer's hot loop: nothing is allocated, and headers are decoded only if asked for. What was
//! damaged before the batch's checksum was made, or hand-made, answers an error and ends the iteration.

use super::BatchHeader;
use super::varint;
use crate::ids::Offset;

/// Length of the shortest record in bytes: its length and six fields of one byte each.
pub const RECORD_BYTES_MIN: usize = 7;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its offset: right once the shard's owner has given the batch its base offset.
    pub offset: Offset,
    /// Its producer's time, or the batch's append time if the batch says so, in ms since the epoch; -1 for none.
    pub timestamp_ms: i64,
    /// Its key, if it has one.
    pub key: Option<&'a [u8]>,
    /// Its value, if it has one.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: RecordHeaders<'a>,
}

/// The headers of one record, not decoded yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeaders<'a> {
    count: u32,
    bytes: &'a [u8],
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its value, if it has one.
    pub value: Option<&'a [u8]>,
}

/// A record is not what a record has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {index} of {record_count}: {what}")]
pub struct RecordCorrupt {
    /// Which record of the batch, counted from 0.
    pub index: u32,
    /// How many there should be.
    pub record_count: u32,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Iterator over the records of a batch. Ends behind the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    base_offset: u64,
    base_timestamp_ms: i64,
    /// Set if the batch gives all its records one time.
    append_time_ms: Option<i64>,
    index: u32,
    record_count: u32,
}

impl<'a> Records<'a> {
    /// The records in `bytes`, which are those behind `header`, decompressed.
    pub fn new(header: &BatchHeader, bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            base_offset: header.base_offset.0,
            base_timestamp_ms: header.base_timestamp_ms,
            append_time_ms: header.is_append_time().then_some(header.max_timestamp_ms),
            index: 0,
            record_count: header.record_count,
        }
    }

    /// Goes straight behind the records below `offset`, reading no more of them than their lengths.
    pub fn skip_below(&mut self, offset: Offset) -> Result<(), RecordCorrupt> {
        while self.index < self.record_count && self.base_offset + u64::from(self.index) < offset.0 {
            let (_, rest) = split_record(self.rest).ok_or_else(|| self.corrupt(LENGTH))?;
            self.rest = rest;
            self.index += 1;
        }
        Ok(())
    }

    #[cold]
    fn corrupt(&mut self, what: &'static str) -> RecordCorrupt {
        let error = RecordCorrupt { index: self.index, record_count: self.record_count, what };
        self.index = self.record_count;
        self.rest = &[];
        error
    }

    #[inline(always)]
    fn parse(&self, record: &'a [u8]) -> Result<Record<'a>, &'static str> {
        let [_attributes, rest @ ..] = record else { return Err("no attributes") };
        let (timestamp_delta, rest) = varint::read_i64(rest).ok_or("timestamp delta")?;
        let (offset_delta, rest) = varint::read_i32(rest).ok_or("offset delta")?;
        if offset_delta as u32 != self.index {
            return Err("offset delta is not the record's place in the batch");
        }
        let (key, rest) = read_bytes(rest).ok_or("key")?;
        let (value, rest) = read_bytes(rest).ok_or("value")?;
        let (header_count, rest) = varint::read_i32(rest).ok_or("header count")?;
        // A header is two lengths at least. A negative count fails here too.
        if header_count as u32 as usize > rest.len() / 2 || (header_count == 0 && !rest.is_empty()) {
            return Err("header count does not fit the record's length");
        }
        let timestamp_ms = match self.append_time_ms {
            None => self.base_timestamp_ms.wrapping_add(timestamp_delta),
            Some(append_time_ms) => append_time_ms,
        };
        Ok(Record {
            offset: Offset(self.base_offset + u64::from(self.index)),
            timestamp_ms,
            key,
            value,
            headers: RecordHeaders { count: header_count as u32, bytes: rest },
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordCorrupt>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.record_count {
            if self.rest.is_empty() {
                return None;
            }
            return Some(Err(self.corrupt("bytes behind the last record")));
        }
        let Some((record, rest)) = split_record(self.rest) else {
            return Some(Err(self.corrupt(LENGTH)));
        };
        match self.parse(record) {
            Ok(record) => {
                self.rest = rest;
                self.index += 1;
                Some(Ok(record))
            }
            Err(what) => Some(Err(self.corrupt(what))),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // What the header claims is no reason to reserve memory: the bytes bound it.
        (0, Some(self.rest.len() / RECORD_BYTES_MIN + 1))
    }
}

impl std::iter::FusedIterator for Records<'_> {}

const LENGTH: &str = "its length ends outside the batch";

/// The record at the beginning of `bytes`, without its length, and what is behind it.
#[inline(always)]
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = varint::read_i32(bytes)?;
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// Bytes with their length before them: `Some(None)` for length -1.
#[inline(always)]
fn read_bytes(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (len, rest) = varint::read_i32(bytes)?;
    if len >= 0 {
        let (bytes, rest) = rest.split_at_checked(len as usize)?;
        Some((Some(bytes), rest))
    } else if len == -1 {
        Some((None, rest))
    } else {
        None
    }
}

impl<'a> RecordHeaders<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The headers in order; `Err` with what is wrong ends the iteration.
    pub fn iter(&self) -> impl Iterator<Item = Result<RecordHeader<'a>, &'static str>> + use<'a> {
        let mut left = self.count;
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            if left == 0 {
                // Not reported twice.
                return if std::mem::take(&mut rest).is_empty() {
                    None
                } else {
                    Some(Err("bytes behind the last header"))
                };
            }
            let header = read_header(rest);
            match header {
                Ok((header, behind)) => {
                    left -= 1;
                    rest = behind;
                    Some(Ok(header))
                }
                Err(what) => {
                    left = 0;
                    rest = &[];
                    Some(Err(what))
                }
            }
        })
    }

    /// The value of the first header with this key.
    pub fn get(&self, key: &str) -> Option<Option<&'a [u8]>> {
        self.iter().map_while(Result::ok).find(|header| header.key == key).map(|header| header.value)
    }
}

fn read_header(bytes: &[u8]) -> Result<(RecordHeader<'_>, &[u8]), &'static str> {
    let (key, rest) = read_bytes(bytes).ok_or("header key")?;
    let key = std::str::from_utf8(key.ok_or("header without a key")?);
    let (value, rest) = read_bytes(rest).ok_or("header value")?;
    Ok((RecordHeader { key: key.map_err(|_| "header key is not UTF-8")?, value }, rest))
}
