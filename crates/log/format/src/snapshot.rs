//! Snapshots: what the updates of a shard come to, up to one of them.
//!
//! The snapshots of the stream `NAME` are records of the stream `NAME.snapshots`, which has as many shards. A snapshot
//! of a shard is *parts*, and behind them a *manifest*. The records of a shard come in order wherever a stream is
//! copied, so who has the manifest has all parts. Several writers may write snapshots of one shard at the same time:
//! each has an id of its own, and a reader leaves out what has another one.
//!
//! Each is the value of one record. Integers are little-endian.
//!
//! ```text
//! part: offset size field
//!            0    2 magic          "TS"
//!            2    1 kind           1
//!            3    1 version        1
//!            4    4 number         from 0 in each snapshot, dense
//!            8    8 id             the snapshot's
//!           16    4 count          of the entries
//!           20      entries: key length (4, signed; -1: no key), value length (4, likewise), key, value
//!
//! manifest: offset size field
//!            0    2 magic          "TS"
//!            2    1 kind           2
//!            3    1 version        1
//!            4    4 parts          at least 1
//!            8    8 id             the snapshot's
//!           16   16 stream         UUID of the stream that it is of
//!           32    4 shard
//!           36    4 term           of the record before `position`; 0 if there is none
//!           40    8 position       offset of the first update that it does not have
//!           48    8 first          offset of the first part, in the stream of snapshots
//!           56    8 previous       offset of the manifest before it there, or -1
//!           64    8 entries        of all parts
//!           72    8 bytes          of all keys and values
//!           80    8 created_ms     ms since the epoch, by the writer's clock
//!           88    8 checksum       of all parts: SnapshotSum
//! ```
//!
//! What holds:
//! - No bytes make a decoder panic, or take more memory than they have.
//! - A value has one encoding only: what decodes encodes to the same bytes.

mod assembly;
#[cfg(test)]
mod tests;

use bytes::{Buf, BufMut, Bytes, TryGetError};
use twox_hash::XxHash3_64;
use uuid::Uuid;

use crate::limits::{OFFSET_MAX, SNAPSHOT_ENTRY_BYTES_MAX, SNAPSHOT_PART_BYTES, TERM_MAX};
use crate::{Offset, ShardNumber, StreamId, Term};
pub use assembly::{SnapshotAssembly, SnapshotTorn};

/// What the name of a stream of snapshots ends with, behind the name of the stream that they are of.
pub const SNAPSHOTS_SUFFIX: &str = ".snapshots";

const MAGIC: [u8; 2] = *b"TS";
const VERSION: u8 = 1;
const KIND_PART: u8 = 1;
const KIND_MANIFEST: u8 = 2;
/// Bytes of a part before its entries.
const PART_HEAD_BYTES: usize = 20;
const PART_COUNT_AT: usize = 16;
const MANIFEST_BYTES: usize = 96;
/// Bytes of an entry beside its key and its value.
const ENTRY_HEAD_BYTES: usize = 8;
/// Stands for a field or an offset that is not there.
const NONE: i64 = -1;

/// A key and a value, each of which may not be there.
pub type SnapshotEntry<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Why a record is none of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRecordError {
    /// It ends too early.
    #[error("it ends too early")]
    Short,
    /// It is something else altogether, or of another version.
    #[error("it begins with {found:02x?}: it is none of version {VERSION}")]
    Unknown {
        /// Its first four bytes.
        found: [u8; 4],
    },
    /// No writer writes this.
    #[error("its {0} can't be")]
    Impossible(&'static str),
}

impl From<TryGetError> for SnapshotRecordError {
    fn from(_: TryGetError) -> Self {
        Self::Short
    }
}

/// A record of a stream of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRecord {
    /// Some entries of a snapshot.
    Part(SnapshotPart),
    /// The end of a snapshot, which is whole.
    Manifest(SnapshotManifest),
}

/// Some entries of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// The snapshot's.
    pub id: u64,
    /// Its place among the parts of the snapshot, from 0 on.
    pub number: u32,
    count: u32,
    entries: Bytes,
}

/// What is known of a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotManifest {
    /// The snapshot's: a number that nobody else takes.
    pub id: u64,
    /// The stream that it is of.
    pub stream: StreamId,
    /// The shard, of either stream.
    pub shard: ShardNumber,
    /// The updates that it has.
    pub up_to: SnapshotUpTo,
    /// Where its first part is, in the stream of snapshots.
    pub first: Offset,
    /// Where the manifest before it is there, if its writer knew of one.
    pub previous: Option<Offset>,
    /// What its parts have together.
    pub totals: SnapshotTotals,
    /// When it was whole, in ms since the epoch, by its writer's clock.
    pub created_ms: i64,
}

/// Which updates a snapshot has: all before a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUpTo {
    /// The offset of the first update that it does not have.
    pub position: Offset,
    /// The term of the update before that; 0 if there is none. In a stream that has lost records, or whose source was
    /// moved by force, it tells whether that update is still the one that the snapshot has.
    pub term: Term,
}

/// What the parts of a snapshot have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTotals {
    /// How many parts there are.
    pub parts: u32,
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Over all bytes of all parts, in order.
    pub sum: SnapshotSum,
}

/// A checksum over parts: for each part, XXH3-64 of its bytes with the checksum so far as the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSum(pub u64);

impl SnapshotSum {
    fn add(&mut self, part: &[u8]) {
        self.0 = XxHash3_64::oneshot_with_seed(self.0, part);
    }
}

impl SnapshotTotals {
    fn add(&mut self, part: &[u8], entries: u32) {
        // No writer gets there, and a reader compares.
        self.parts = self.parts.saturating_add(1);
        self.entries = self.entries.saturating_add(entries.into());
        let heads = PART_HEAD_BYTES + entries as usize * ENTRY_HEAD_BYTES;
        self.bytes = self.bytes.saturating_add(part.len().saturating_sub(heads) as u64);
        self.sum.add(part);
    }
}

impl SnapshotPart {
    /// Its entries, in the order in which they were written.
    pub fn entries(&self) -> impl Iterator<Item = SnapshotEntry<'_>> {
        let mut rest = &self.entries[..];
        // All were looked at when it was decoded.
        (0..self.count).map_while(move |_| take_entry(&mut rest).ok())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// An entry has more bytes of key and value than a part has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an entry of {bytes} bytes of key and value is longer than the {SNAPSHOT_ENTRY_BYTES_MAX} of a snapshot's"
)]
pub struct SnapshotEntryTooLong {
    /// How many it has.
    pub bytes: usize,
}

/// Cuts entries into parts. It keeps the entries of one part, which are not more than [`SNAPSHOT_PART_BYTES`], or one
/// entry that is longer.
#[derive(Clone, Debug)]
pub struct SnapshotParts {
    id: u64,
    totals: SnapshotTotals,
    part: Vec<u8>,
    count: u32,
}

impl SnapshotParts {
    /// Those of the snapshot `id`.
    pub fn new(id: u64) -> Self {
        let mut parts = Self { id, totals: SnapshotTotals::default(), part: Vec::new(), count: 0 };
        parts.begin();
        parts
    }

    fn begin(&mut self) {
        self.count = 0;
        put_head(&mut self.part, KIND_PART, self.totals.parts, self.id);
        self.part.put_u32_le(0);
    }

    /// Appends an entry. Answers the part before it, if that is full.
    pub fn push(&mut self, (key, value): SnapshotEntry<'_>) -> Result<Option<Vec<u8>>, SnapshotEntryTooLong> {
        let len_of = |field: Option<&[u8]>| field.map_or(0, <[u8]>::len);
        let bytes = len_of(key) + len_of(value);
        if bytes > SNAPSHOT_ENTRY_BYTES_MAX {
            return Err(SnapshotEntryTooLong { bytes });
        }
        let is_full = self.count > 0 && self.part.len() + ENTRY_HEAD_BYTES + bytes > SNAPSHOT_PART_BYTES;
        let full = is_full.then(|| self.take_part());
        for field in [key, value] {
            // An entry is far shorter than where 32 bits end.
            self.part.put_i32_le(field.map_or(-1, |field| field.len() as i32));
        }
        for field in [key, value].into_iter().flatten() {
            self.part.put_slice(field);
        }
        self.count += 1;
        Ok(full)
    }

    fn take_part(&mut self) -> Vec<u8> {
        let mut part = std::mem::take(&mut self.part);
        part[PART_COUNT_AT..PART_HEAD_BYTES].copy_from_slice(&self.count.to_le_bytes());
        self.totals.add(&part, self.count);
        self.begin();
        part
    }

    /// The last part, and what all of them have. A snapshot without entries has one part.
    pub fn finish(mut self) -> (Option<Vec<u8>>, SnapshotTotals) {
        let is_wanted = self.count > 0 || self.totals.parts == 0;
        let last = is_wanted.then(|| self.take_part());
        (last, self.totals)
    }
}

impl SnapshotManifest {
    /// The record's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MANIFEST_BYTES);
        put_head(&mut bytes, KIND_MANIFEST, self.totals.parts, self.id);
        bytes.put_slice(self.stream.0.as_bytes());
        bytes.put_u32_le(self.shard.0);
        bytes.put_u32_le(self.up_to.term.0);
        bytes.put_u64_le(self.up_to.position.0);
        bytes.put_u64_le(self.first.0);
        bytes.put_i64_le(self.previous.map_or(NONE, |offset| offset.0.cast_signed()));
        bytes.put_u64_le(self.totals.entries);
        bytes.put_u64_le(self.totals.bytes);
        bytes.put_i64_le(self.created_ms);
        bytes.put_u64_le(self.totals.sum.0);
        debug_assert_eq!(bytes.len(), MANIFEST_BYTES);
        bytes
    }

    fn decode(parts: u32, id: u64, mut rest: &[u8]) -> Result<Self, SnapshotRecordError> {
        let mut stream = [0; 16];
        rest.try_copy_to_slice(&mut stream)?;
        let (shard, term) = (ShardNumber(rest.try_get_u32_le()?), Term(rest.try_get_u32_le()?));
        let (position, first) = (Offset(rest.try_get_u64_le()?), Offset(rest.try_get_u64_le()?));
        let previous = match rest.try_get_i64_le()? {
            NONE => None,
            offset => Some(Offset(u64::try_from(offset).map_err(|_| impossible("manifest before it"))?)),
        };
        let (entries, bytes) = (rest.try_get_u64_le()?, rest.try_get_u64_le()?);
        let created_ms = rest.try_get_i64_le()?;
        let sum = SnapshotSum(rest.try_get_u64_le()?);
        if !rest.is_empty() {
            return Err(impossible("length"));
        }
        if term.0 > TERM_MAX || position.0 > OFFSET_MAX || first.0 > OFFSET_MAX {
            return Err(impossible("place"));
        }
        if parts == 0 {
            return Err(impossible("number of parts"));
        }
        Ok(Self {
            id,
            stream: StreamId(Uuid::from_bytes(stream)),
            shard,
            up_to: SnapshotUpTo { position, term },
            first,
            previous,
            totals: SnapshotTotals { parts, entries, bytes, sum },
            created_ms,
        })
    }
}

impl SnapshotRecord {
    /// Takes a record's value apart. A part keeps the value's bytes, and does not copy them.
    ///
    /// # Errors
    /// If it is none of a snapshot.
    pub fn decode(value: &Bytes) -> Result<Self, SnapshotRecordError> {
        let mut rest = &value[..];
        let mut found = [0; 4];
        rest.try_copy_to_slice(&mut found)?;
        let [first, second, kind, version] = found;
        if [first, second] != MAGIC || version != VERSION {
            return Err(SnapshotRecordError::Unknown { found });
        }
        let (number, id) = (rest.try_get_u32_le()?, rest.try_get_u64_le()?);
        match kind {
            KIND_MANIFEST => SnapshotManifest::decode(number, id, rest).map(Self::Manifest),
            KIND_PART => {
                let count = rest.try_get_u32_le()?;
                let entries = value.slice(value.len() - rest.len()..);
                for _ in 0..count {
                    take_entry(&mut rest)?;
                }
                if !rest.is_empty() {
                    return Err(impossible("number of entries"));
                }
                Ok(Self::Part(SnapshotPart { id, number, count, entries }))
            }
            _ => Err(SnapshotRecordError::Unknown { found }),
        }
    }
}

fn impossible(what: &'static str) -> SnapshotRecordError {
    SnapshotRecordError::Impossible(what)
}

fn put_head(bytes: &mut Vec<u8>, kind: u8, number: u32, id: u64) {
    bytes.put_slice(&MAGIC);
    bytes.put_u8(kind);
    bytes.put_u8(VERSION);
    bytes.put_u32_le(number);
    bytes.put_u64_le(id);
}

fn take_entry<'a>(rest: &mut &'a [u8]) -> Result<SnapshotEntry<'a>, SnapshotRecordError> {
    let (key_len, value_len) = (rest.try_get_i32_le()?, rest.try_get_i32_le()?);
    Ok((take_field(rest, key_len)?, take_field(rest, value_len)?))
}

fn take_field<'a>(rest: &mut &'a [u8], len: i32) -> Result<Option<&'a [u8]>, SnapshotRecordError> {
    if len == -1 {
        return Ok(None);
    }
    let len = usize::try_from(len).map_err(|_| impossible("length of an entry"))?;
    let (field, behind) = rest.split_at_checked(len).ok_or(SnapshotRecordError::Short)?;
    *rest = behind;
    Ok(Some(field))
}
