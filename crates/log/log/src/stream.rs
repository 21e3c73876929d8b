//! What metadata keeps of streams: the keys and their values.
//!
//! ```text
//! log/stream/<stream uuid>                        StreamRecord
//! log/name/<name>                                 the stream's uuid, 16 bytes
//! log/shard/<stream uuid>/<shard, 4 digits>       ShardRecord; absent until the first append
//! log/segment/<stream uuid>/<shard>/<20 digits>   SegmentRecord of a completed segment
//! log/producers/<stream uuid>/<shard>             ProducersRecord, as of a completed segment's end
//! log/truncated/<stream uuid>/<shard>/<20 digits> TruncatedRecord of a removed segment whose cold copy is kept
//! log/producer-ids                                ProducerIdsRecord
//! log/segments                                    SegmentsRecord; absent where segments are on this host's disk
//! log/metadata                                    in a data directory: whose metadata, elsewhere, it was begun with,
//!                                                 or moved to
//! log/moving                                      the id of the data directory from which this metadata is being
//!                                                 moved here: nobody goes by it yet
//! log/cold                                        ColdPlaceRecord; absent before there was cold storage
//! log/cold-gone/<stream uuid>                     empty: the stream is deleted, and its cold copies are to be removed
//! log/deleted/<stream uuid>                       empty: a stream of several processes is deleted, and something of it
//!                                                 may be left
//! ```
//!
//! Values are protobuf messages, so later versions can add fields. What holds:
//! - A stream's keys appear in one commit and its name is given up in one commit; what a crash in the midst of
//!   a deletion leaves behind is removed at the next start, because its stream has no record any more.
//! - Every commit of a shard's owner replaces the shard's record at the version the owner knows, so an owner
//!   that was replaced changes nothing any more.
//! - The open segment has no record: what a crash leaves of it is found in the store and recorded then.

use bytes::Bytes;
use prost::Message;
use tailwater_cold::ColdCopy;
use tailwater_format::{
    Codec, Offset, Position, SegmentNumber, ShardId, ShardNumber, StreamId, Term, TransactionId,
};
use uuid::Uuid;

use crate::config::{FlushPolicy, StreamConfig, StreamDurability, Timestamps};
use crate::producer::{ProducerBatch, ProducerState};

/// Prefix of every key of this crate.
pub const PREFIX: &str = "log/";
/// The key of the next producer id.
pub const PRODUCER_IDS_KEY: &str = "log/producer-ids";
/// The key of where segments are.
pub const SEGMENTS_KEY: &str = "log/segments";
/// The key, in a data directory whose metadata is elsewhere, of which cluster's that is.
pub const METADATA_KEY: &str = "log/metadata";
/// The key of the data directory from which this metadata is being moved here.
pub const MOVING_KEY: &str = "log/moving";
/// The key of the number by which cold storage knows this data directory.
pub const COLD_PLACE_KEY: &str = "log/cold";
/// Prefix of the keys of deleted streams whose cold copies are to be removed.
pub const COLD_GONE_PREFIX: &str = "log/cold-gone/";

/// Prefix of the keys of deleted streams of several processes, of which something may be left.
pub const DELETED_PREFIX: &str = "log/deleted/";

/// Kinds of what is stored: the part of a key behind [`PREFIX`].
const STREAM: &str = "stream";
const NAME: &str = "name";
const SHARD: &str = "shard";
const SEGMENT: &str = "segment";
const PRODUCERS: &str = "producers";
const TRUNCATED: &str = "truncated";
const COLD_GONE: &str = "cold-gone";
const DELETED: &str = "deleted";

/// The transaction id before the first record of a shard.
pub const TRANSACTION_ID_NONE: TransactionId = TransactionId(-1);

/// The key of a stream.
pub fn stream_key(stream: StreamId) -> String {
    format!("{PREFIX}{STREAM}/{stream}")
}

/// The key of a stream's name.
pub fn name_key(name: &str) -> String {
    format!("{PREFIX}{NAME}/{name}")
}

/// The key of a shard.
pub fn shard_key(shard: ShardId) -> String {
    format!("{PREFIX}{SHARD}/{}/{:04}", shard.stream, shard.shard.0)
}

/// The key of a completed segment.
pub fn segment_key(shard: ShardId, number: SegmentNumber) -> String {
    format!("{PREFIX}{SEGMENT}/{}/{:04}/{:020}", shard.stream, shard.shard.0, number.0)
}

/// The key of a removed segment whose cold copy is kept.
pub fn truncated_key(shard: ShardId, number: SegmentNumber) -> String {
    format!("{PREFIX}{TRUNCATED}/{}/{:04}/{:020}", shard.stream, shard.shard.0, number.0)
}

/// The key of a deleted stream whose cold copies are to be removed.
pub fn cold_gone_key(stream: StreamId) -> String {
    format!("{COLD_GONE_PREFIX}{stream}")
}

/// The key of a deleted stream of several processes, of which something may be left.
pub fn deleted_key(stream: StreamId) -> String {
    format!("{DELETED_PREFIX}{stream}")
}

/// The key of a shard's producers.
pub fn producers_key(shard: ShardId) -> String {
    format!("{PREFIX}{PRODUCERS}/{}/{:04}", shard.stream, shard.shard.0)
}

/// Prefixes of all keys below those of a stream: what is left of one that has no record any more.
pub fn prefixes_of_parts(stream: StreamId) -> [String; 4] {
    [SHARD, SEGMENT, PRODUCERS, TRUNCATED].map(|kind| format!("{PREFIX}{kind}/{stream}/"))
}

/// Prefixes of the keys of a shard's segments: those that are there, and those that were removed and kept.
pub fn prefixes_of_shard(shard: ShardId) -> [String; 2] {
    [SEGMENT, TRUNCATED].map(|kind| format!("{PREFIX}{kind}/{}/{:04}/", shard.stream, shard.shard.0))
}

/// What a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A stream.
    Stream(StreamId),
    /// A name.
    Name(String),
    /// A shard.
    Shard(ShardId),
    /// A completed segment.
    Segment(ShardId, SegmentNumber),
    /// A shard's producers.
    Producers(ShardId),
    /// A removed segment whose cold copy is kept.
    Truncated(ShardId, SegmentNumber),
    /// The next producer id.
    ProducerIds,
    /// Where segments are.
    Segments,
    /// The number by which cold storage knows this data directory.
    ColdPlace,
    /// A deleted stream whose cold copies are to be removed.
    ColdGone(StreamId),
    /// A deleted stream of several processes, of which something may be left.
    Deleted(StreamId),
}

impl Key {
    /// What `key` names; `None` if it is none of this crate's.
    pub fn parse(key: &str) -> Option<Self> {
        if key == PRODUCER_IDS_KEY {
            return Some(Self::ProducerIds);
        }
        if key == SEGMENTS_KEY {
            return Some(Self::Segments);
        }
        if key == COLD_PLACE_KEY {
            return Some(Self::ColdPlace);
        }
        let mut parts = key.strip_prefix(PREFIX)?.split('/');
        let kind = parts.next()?;
        let first = parts.next()?;
        let rest: Vec<&str> = parts.collect();
        if kind == NAME {
            return rest.is_empty().then(|| Self::Name(first.to_owned()));
        }
        let stream = StreamId(Uuid::try_parse(first).ok()?);
        let shard = |number: &str| Some(ShardId { stream, shard: ShardNumber(number.parse().ok()?) });
        match (kind, rest.as_slice()) {
            (STREAM, []) => Some(Self::Stream(stream)),
            (SHARD, [number]) => Some(Self::Shard(shard(number)?)),
            (COLD_GONE, []) => Some(Self::ColdGone(stream)),
            (DELETED, []) => Some(Self::Deleted(stream)),
            (PRODUCERS, [number]) => Some(Self::Producers(shard(number)?)),
            (TRUNCATED, [number, segment]) => {
                Some(Self::Truncated(shard(number)?, SegmentNumber(segment.parse().ok()?)))
            }
            (SEGMENT, [number, segment]) => {
                Some(Self::Segment(shard(number)?, SegmentNumber(segment.parse().ok()?)))
            }
            _ => None,
        }
    }
}

/// A stored value that is not what its key promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata of {key:?} can't be read: {why}")]
pub struct StreamRecordError {
    /// The key.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    /// Its id.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// When it was created, wall time in ms.
    pub created_ms: i64,
    /// How it behaves.
    pub config: StreamConfig,
    /// The cluster that has its source, if it is a copy.
    pub source: Option<String>,
    /// The first term of the source here, where it was moved here: shards claim none below it, and what they have of
    /// earlier ones is of producers that are not known here.
    pub term_min: Term,
    /// No segment has a number below it: those were used by a copy that was here before.
    pub numbers_from: SegmentNumber,
}

/// What a shard's owner must not forget beside its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRecord {
    /// The highest term that was ever claimed.
    pub term: Term,
    /// First offset that was not removed.
    pub log_start: Offset,
    /// The number after the last completed segment's.
    pub next_segment: SegmentNumber,
    /// The offset after the last completed segment's last record. Matters once that segment is deleted.
    pub next_offset: Offset,
    /// The last completed segment's last transaction id; likewise.
    pub transaction_id: TransactionId,
    /// A random number of the owner that put this record, by which it knows its own.
    pub owner: u64,
}

impl Default for ShardRecord {
    fn default() -> Self {
        Self {
            term: Term(0),
            log_start: Offset(0),
            next_segment: SegmentNumber(0),
            next_offset: Offset(0),
            transaction_id: TRANSACTION_ID_NONE,
            owner: 0,
        }
    }
}

/// A completed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its number.
    pub number: SegmentNumber,
    /// The term of its writer.
    pub term: Term,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// Its sealed length.
    pub length: Position,
    /// Transaction id of its first record.
    pub first_transaction_id: TransactionId,
    /// Transaction id of its last record.
    pub last_transaction_id: TransactionId,
    /// When its first entry was written, wall time in ms; when it was recovered if that is not known.
    pub created_ms: i64,
    /// When it was sealed, wall time in ms.
    pub sealed_ms: i64,
    /// Its copy in cold storage, if there is one.
    pub cold: Option<SegmentCold>,
}

impl SegmentRecord {
    /// Whether only cold storage has it.
    pub fn is_released(&self) -> bool {
        self.cold.is_some_and(|cold| cold.is_released)
    }
}

/// A segment's copy in cold storage, which was read back and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentCold {
    /// The copy.
    pub copy: ColdCopy,
    /// Whether the segment has left the store.
    pub is_released: bool,
    /// When it was restored, wall time in ms, if it was: retention leaves it alone for a while.
    pub restored_ms: Option<i64>,
}

/// A segment that retention or a truncation removed, and whose cold copy is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncatedRecord {
    /// As it was; it has a copy.
    pub segment: SegmentRecord,
    /// When it was removed, wall time in ms.
    pub truncated_ms: i64,
}

/// The number by which cold storage knows this data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColdPlaceRecord {
    /// With which the names of all its copies begin.
    pub cluster: Uuid,
}

/// Where segments are that are not on this host's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentsRecord {
    /// By which the replicated store tells these segments from those of others.
    pub cluster: Uuid,
}

/// The producers of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducersRecord {
    /// The shard's term when it was written: before the first one of a source that was moved here, the producers are
    /// others.
    pub term: Term,
    /// All batches below this offset are in it, and none from it on.
    pub upto: Offset,
    /// The producers.
    pub producers: Vec<ProducerState>,
}

mod stored {
    //! The messages as they are stored. Field numbers are for ever.

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Stream {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) id: Vec<u8>,
        #[prost(string, tag = "2")]
        pub(super) name: String,
        #[prost(int64, tag = "3")]
        pub(super) created_ms: i64,
        #[prost(uint32, tag = "4")]
        pub(super) shards: u32,
        #[prost(uint64, optional, tag = "5")]
        pub(super) retention_ms: Option<u64>,
        #[prost(uint64, optional, tag = "6")]
        pub(super) retention_bytes: Option<u64>,
        #[prost(uint64, tag = "7")]
        pub(super) segment_bytes: u64,
        #[prost(uint64, tag = "8")]
        pub(super) segment_ms: u64,
        #[prost(uint32, tag = "9")]
        pub(super) chunk_bytes: u32,
        /// 0 is immediate.
        #[prost(uint64, tag = "10")]
        pub(super) flush_ms: u64,
        #[prost(uint32, tag = "11")]
        pub(super) flush_bytes: u32,
        #[prost(bool, tag = "12")]
        pub(super) interval: bool,
        #[prost(bool, tag = "13")]
        pub(super) append_time: bool,
        #[prost(uint64, optional, tag = "14")]
        pub(super) timestamp_before_max_ms: Option<u64>,
        #[prost(uint64, optional, tag = "15")]
        pub(super) timestamp_after_max_ms: Option<u64>,
        #[prost(uint32, optional, tag = "16")]
        pub(super) append_bytes_max: Option<u32>,
        /// The number of the codec.
        #[prost(uint32, optional, tag = "17")]
        pub(super) compression: Option<u32>,
        /// The cluster that has the source, if this is a copy.
        #[prost(string, optional, tag = "18")]
        pub(super) source: Option<String>,
        #[prost(bool, tag = "19")]
        pub(super) cold: bool,
        #[prost(uint64, optional, tag = "20")]
        pub(super) cold_after_ms: Option<u64>,
        #[prost(uint64, optional, tag = "21")]
        pub(super) cold_after_bytes: Option<u64>,
        #[prost(uint32, tag = "22")]
        pub(super) term_min: u32,
        #[prost(uint32, optional, tag = "23")]
        pub(super) ensemble: Option<u32>,
        #[prost(uint32, optional, tag = "24")]
        pub(super) write_quorum: Option<u32>,
        #[prost(uint32, optional, tag = "25")]
        pub(super) ack_quorum: Option<u32>,
        #[prost(uint64, tag = "26")]
        pub(super) numbers_from: u64,
        #[prost(uint32, optional, tag = "27")]
        pub(super) min_regions: Option<u32>,
        #[prost(bool, tag = "28")]
        pub(super) without_cells: bool,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Shard {
        #[prost(uint32, tag = "1")]
        pub(super) term: u32,
        #[prost(uint64, tag = "2")]
        pub(super) log_start: u64,
        #[prost(uint64, tag = "3")]
        pub(super) next_segment: u64,
        #[prost(uint64, tag = "4")]
        pub(super) next_offset: u64,
        #[prost(sint64, tag = "5")]
        pub(super) transaction_id: i64,
        #[prost(fixed64, tag = "6")]
        pub(super) owner: u64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Segment {
        #[prost(uint64, tag = "1")]
        pub(super) number: u64,
        #[prost(uint32, tag = "2")]
        pub(super) term: u32,
        #[prost(uint64, tag = "3")]
        pub(super) base_offset: u64,
        #[prost(uint64, tag = "4")]
        pub(super) next_offset: u64,
        #[prost(uint64, tag = "5")]
        pub(super) length: u64,
        #[prost(sint64, tag = "6")]
        pub(super) first_transaction_id: i64,
        #[prost(sint64, tag = "7")]
        pub(super) last_transaction_id: i64,
        #[prost(int64, tag = "8")]
        pub(super) created_ms: i64,
        #[prost(int64, tag = "9")]
        pub(super) sealed_ms: i64,
        /// The checksum of its cold copy's index.
        #[prost(fixed64, optional, tag = "10")]
        pub(super) cold_copy: Option<u64>,
        #[prost(bool, tag = "11")]
        pub(super) cold_released: bool,
        #[prost(int64, optional, tag = "12")]
        pub(super) cold_restored_ms: Option<i64>,
        /// Only of those that were removed.
        #[prost(int64, optional, tag = "13")]
        pub(super) truncated_ms: Option<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Producers {
        #[prost(uint64, tag = "1")]
        pub(super) upto: u64,
        #[prost(message, repeated, tag = "2")]
        pub(super) producers: Vec<Producer>,
        #[prost(uint32, tag = "3")]
        pub(super) term: u32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Producer {
        #[prost(int64, tag = "1")]
        pub(super) producer: i64,
        #[prost(int64, tag = "2")]
        pub(super) last_ms: i64,
        #[prost(message, repeated, tag = "3")]
        pub(super) batches: Vec<Batch>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Batch {
        #[prost(sint32, tag = "1")]
        pub(super) epoch: i32,
        #[prost(int32, tag = "2")]
        pub(super) first: i32,
        #[prost(int32, tag = "3")]
        pub(super) last: i32,
        #[prost(uint64, tag = "4")]
        pub(super) base_offset: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct SegmentsAt {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) cluster: Vec<u8>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct ProducerIds {
        #[prost(int64, tag = "1")]
        pub(super) next: i64,
    }
}

fn decode<M: Message + Default>(key: &str, value: &[u8]) -> Result<M, StreamRecordError> {
    M::decode(value).map_err(|error| StreamRecordError { key: key.to_owned(), why: error.to_string() })
}

impl StreamRecord {
    /// What is recorded of one of its shards, with no segment number below the stream's first one to be used next.
    pub(crate) fn numbered(&self, record: ShardRecord) -> ShardRecord {
        ShardRecord { next_segment: record.next_segment.max(self.numbers_from), ..record }
    }

    /// The value to store.
    pub fn encode(&self) -> Bytes {
        let config = &self.config;
        stored::Stream {
            id: self.id.0.as_bytes().to_vec(),
            name: self.name.clone(),
            created_ms: self.created_ms,
            shards: config.shards,
            retention_ms: config.retention_ms,
            retention_bytes: config.retention_bytes,
            segment_bytes: config.segment_bytes,
            segment_ms: config.segment_ms,
            chunk_bytes: config.chunk_bytes,
            flush_ms: match config.flush {
                FlushPolicy::Immediate => 0,
                FlushPolicy::EveryMs(ms) => ms,
            },
            flush_bytes: config.flush_bytes,
            interval: config.durability == StreamDurability::Interval,
            append_time: config.timestamps == Timestamps::Append,
            timestamp_before_max_ms: config.timestamp_before_max_ms,
            timestamp_after_max_ms: config.timestamp_after_max_ms,
            append_bytes_max: Some(config.append_bytes_max),
            compression: config.compression.map(|codec| codec as u32),
            source: self.source.clone(),
            term_min: self.term_min.0,
            cold: config.cold,
            cold_after_ms: config.cold_after_ms,
            cold_after_bytes: config.cold_after_bytes,
            ensemble: config.ensemble,
            write_quorum: config.write_quorum,
            ack_quorum: config.ack_quorum,
            min_regions: config.min_regions,
            without_cells: !config.cells,
            numbers_from: self.numbers_from.0,
        }
        .encode_to_vec()
        .into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        let stored: stored::Stream = decode(key, value)?;
        let refuse = |why: String| StreamRecordError { key: key.to_owned(), why };
        let id = Uuid::from_slice(&stored.id).map_err(|error| refuse(error.to_string()))?;
        let codec = |number: u32| {
            let known = u8::try_from(number).ok().and_then(Codec::from_number);
            known.ok_or_else(|| refuse(format!("there is no codec {number}")))
        };
        let config = StreamConfig {
            shards: stored.shards,
            retention_ms: stored.retention_ms,
            retention_bytes: stored.retention_bytes,
            segment_bytes: stored.segment_bytes,
            segment_ms: stored.segment_ms,
            chunk_bytes: stored.chunk_bytes,
            cells: !stored.without_cells,
            flush: if stored.flush_ms == 0 {
                FlushPolicy::Immediate
            } else {
                FlushPolicy::EveryMs(stored.flush_ms)
            },
            flush_bytes: stored.flush_bytes,
            durability: if stored.interval { StreamDurability::Interval } else { StreamDurability::Fsync },
            timestamps: if stored.append_time { Timestamps::Append } else { Timestamps::Create },
            timestamp_before_max_ms: stored.timestamp_before_max_ms,
            timestamp_after_max_ms: stored.timestamp_after_max_ms,
            append_bytes_max: stored.append_bytes_max.unwrap_or(StreamConfig::default().append_bytes_max),
            compression: stored.compression.map(codec).transpose()?,
            cold: stored.cold,
            cold_after_ms: stored.cold_after_ms,
            cold_after_bytes: stored.cold_after_bytes,
            ensemble: stored.ensemble,
            write_quorum: stored.write_quorum,
            ack_quorum: stored.ack_quorum,
            min_regions: stored.min_regions,
        };
        config.check().map_err(|error| refuse(error.to_string()))?;
        let stored::Stream { name, created_ms, source, term_min, numbers_from, .. } = stored;
        Ok(Self {
            id: StreamId(id),
            name,
            created_ms,
            config,
            source,
            term_min: Term(term_min),
            numbers_from: SegmentNumber(numbers_from),
        })
    }
}

impl SegmentsRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        stored::SegmentsAt { cluster: self.cluster.as_bytes().to_vec() }.encode_to_vec().into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        let stored: stored::SegmentsAt = decode(key, value)?;
        let cluster = Uuid::from_slice(&stored.cluster)
            .map_err(|error| StreamRecordError { key: key.to_owned(), why: error.to_string() })?;
        Ok(Self { cluster })
    }
}

impl ShardRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        stored::Shard {
            term: self.term.0,
            log_start: self.log_start.0,
            next_segment: self.next_segment.0,
            next_offset: self.next_offset.0,
            transaction_id: self.transaction_id.0,
            owner: self.owner,
        }
        .encode_to_vec()
        .into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        let stored: stored::Shard = decode(key, value)?;
        Ok(Self {
            term: Term(stored.term),
            log_start: Offset(stored.log_start),
            next_segment: SegmentNumber(stored.next_segment),
            next_offset: Offset(stored.next_offset),
            transaction_id: TransactionId(stored.transaction_id),
            owner: stored.owner,
        })
    }
}

impl SegmentRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        self.stored().encode_to_vec().into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        Self::of(key, &decode(key, value)?)
    }

    fn stored(&self) -> stored::Segment {
        stored::Segment {
            number: self.number.0,
            term: self.term.0,
            base_offset: self.base_offset.0,
            next_offset: self.next_offset.0,
            length: self.length.0,
            first_transaction_id: self.first_transaction_id.0,
            last_transaction_id: self.last_transaction_id.0,
            created_ms: self.created_ms,
            sealed_ms: self.sealed_ms,
            cold_copy: self.cold.map(|cold| cold.copy.0),
            cold_released: self.is_released(),
            cold_restored_ms: self.cold.and_then(|cold| cold.restored_ms),
            truncated_ms: None,
        }
    }

    fn of(key: &str, stored: &stored::Segment) -> Result<Self, StreamRecordError> {
        let (base_offset, next_offset) = (Offset(stored.base_offset), Offset(stored.next_offset));
        if next_offset < base_offset {
            let why = format!("it begins at offset {base_offset} and ends before it, at {next_offset}");
            return Err(StreamRecordError { key: key.to_owned(), why });
        }
        Ok(Self {
            number: SegmentNumber(stored.number),
            term: Term(stored.term),
            base_offset,
            next_offset,
            length: Position(stored.length),
            first_transaction_id: TransactionId(stored.first_transaction_id),
            last_transaction_id: TransactionId(stored.last_transaction_id),
            created_ms: stored.created_ms,
            sealed_ms: stored.sealed_ms,
            cold: stored.cold_copy.map(|copy| SegmentCold {
                copy: ColdCopy(copy),
                is_released: stored.cold_released,
                restored_ms: stored.cold_restored_ms,
            }),
        })
    }
}

impl TruncatedRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        let truncated_ms = Some(self.truncated_ms);
        stored::Segment { truncated_ms, ..self.segment.stored() }.encode_to_vec().into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        let stored: stored::Segment = decode(key, value)?;
        let segment = SegmentRecord::of(key, &stored)?;
        match stored.truncated_ms.filter(|_| segment.cold.is_some()) {
            Some(truncated_ms) => Ok(Self { segment, truncated_ms }),
            None => Err(StreamRecordError {
                key: key.to_owned(),
                why: "it has no cold copy, or no time of its removal".to_owned(),
            }),
        }
    }
}

impl ColdPlaceRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        SegmentsRecord { cluster: self.cluster }.encode()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        SegmentsRecord::decode(key, value).map(|record| Self { cluster: record.cluster })
    }
}

impl ProducersRecord {
    /// The value to store.
    pub fn encode(&self) -> Bytes {
        let producers = self.producers.iter().map(|state| stored::Producer {
            producer: state.producer,
            last_ms: state.last_ms,
            batches: state
                .batches
                .iter()
                .map(|batch| stored::Batch {
                    epoch: batch.epoch.into(),
                    first: batch.first,
                    last: batch.last,
                    base_offset: batch.base_offset.0,
                })
                .collect(),
        });
        let producers = producers.collect();
        stored::Producers { upto: self.upto.0, producers, term: self.term.0 }.encode_to_vec().into()
    }

    /// The record that is stored under `key`.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, StreamRecordError> {
        let stored: stored::Producers = decode(key, value)?;
        let mut producers = Vec::with_capacity(stored.producers.len());
        for state in stored.producers {
            let mut batches = Vec::with_capacity(state.batches.len());
            for batch in state.batches {
                let epoch = i16::try_from(batch.epoch)
                    .map_err(|error| StreamRecordError { key: key.to_owned(), why: error.to_string() })?;
                batches.push(ProducerBatch {
                    epoch,
                    first: batch.first,
                    last: batch.last,
                    base_offset: Offset(batch.base_offset),
                });
            }
            producers.push(ProducerState { producer: state.producer, last_ms: state.last_ms, batches });
        }
        Ok(Self { term: Term(stored.term), upto: Offset(stored.upto), producers })
    }
}

/// The value of [`PRODUCER_IDS_KEY`]: the first id that no block contains.
pub fn encode_producer_ids(next: i64) -> Bytes {
    stored::ProducerIds { next }.encode_to_vec().into()
}

/// The first id that no block contains.
pub fn decode_producer_ids(value: &[u8]) -> Result<i64, StreamRecordError> {
    decode::<stored::ProducerIds>(PRODUCER_IDS_KEY, value).map(|stored| stored.next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> ShardId {
        ShardId { stream: StreamId(Uuid::from_u128(77)), shard: ShardNumber(12) }
    }

    #[test]
    fn keys_parse_to_what_they_were_made_of() {
        let keys = [
            (stream_key(shard().stream), Key::Stream(shard().stream)),
            (name_key("a.b-c_d"), Key::Name("a.b-c_d".into())),
            (shard_key(shard()), Key::Shard(shard())),
            (segment_key(shard(), SegmentNumber(9)), Key::Segment(shard(), SegmentNumber(9))),
            (producers_key(shard()), Key::Producers(shard())),
            (truncated_key(shard(), SegmentNumber(9)), Key::Truncated(shard(), SegmentNumber(9))),
            (cold_gone_key(shard().stream), Key::ColdGone(shard().stream)),
            (PRODUCER_IDS_KEY.to_owned(), Key::ProducerIds),
            (COLD_PLACE_KEY.to_owned(), Key::ColdPlace),
        ];
        for (text, key) in keys {
            assert_eq!(Key::parse(&text), Some(key), "{text}");
        }
        for foreign in ["", "log/", "log/stream/x", "other/stream", "log/shard/x/1", "log/name/a/b"] {
            assert_eq!(Key::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn records_decode_to_what_was_encoded() {
        let stream = StreamRecord {
            id: shard().stream,
            name: "orders".into(),
            created_ms: -5,
            config: StreamConfig {
                retention_ms: None,
                retention_bytes: Some(1 << 40),
                flush: FlushPolicy::EveryMs(7),
                durability: StreamDurability::Interval,
                timestamps: Timestamps::Append,
                timestamp_before_max_ms: Some(0),
                timestamp_after_max_ms: Some(1),
                append_bytes_max: 2,
                compression: Some(Codec::Lz4),
                cold: true,
                cold_after_ms: Some(0),
                cold_after_bytes: Some(4),
                ensemble: Some(5),
                write_quorum: Some(4),
                ack_quorum: Some(3),
                min_regions: Some(2),
                ..StreamConfig::default()
            },
            source: Some("us".into()),
            term_min: Term(3),
            numbers_from: SegmentNumber(4),
        };
        assert_eq!(StreamRecord::decode("k", &stream.encode()), Ok(stream));
        let record = ShardRecord {
            term: Term(4),
            log_start: Offset(5),
            next_segment: SegmentNumber(6),
            next_offset: Offset(7),
            transaction_id: TransactionId(-8),
            owner: u64::MAX,
        };
        assert_eq!(ShardRecord::decode("k", &record.encode()), Ok(record));
        let segment = SegmentRecord {
            number: SegmentNumber(1),
            term: Term(2),
            base_offset: Offset(3),
            next_offset: Offset(4),
            length: Position(5),
            first_transaction_id: TransactionId(-1),
            last_transaction_id: TransactionId(i64::MAX),
            created_ms: 8,
            sealed_ms: 9,
            cold: None,
        };
        assert_eq!(SegmentRecord::decode("k", &segment.encode()), Ok(segment));
        let copied = Some(SegmentCold { copy: ColdCopy(0), is_released: true, restored_ms: Some(-1) });
        let segment = SegmentRecord { cold: copied, ..segment };
        assert_eq!(SegmentRecord::decode("k", &segment.encode()), Ok(segment));
        let truncated = TruncatedRecord { segment, truncated_ms: 0 };
        assert_eq!(TruncatedRecord::decode("k", &truncated.encode()), Ok(truncated));
        assert!(TruncatedRecord::decode("k", &segment.encode()).is_err(), "no time");
        let batch = ProducerBatch { epoch: -1, first: 0, last: i32::MAX, base_offset: Offset(3) };
        let producers = ProducersRecord {
            term: Term(8),
            upto: Offset(9),
            producers: vec![ProducerState { producer: 5, last_ms: 6, batches: vec![batch, batch] }],
        };
        assert_eq!(ProducersRecord::decode("k", &producers.encode()), Ok(producers));
    }

    #[test]
    fn bytes_that_are_no_record_are_an_error_with_their_key() {
        let error = StreamRecord::decode("log/stream/x", b"\xff\xff\xff").unwrap_err();
        assert_eq!(error.key, "log/stream/x");
        assert!(StreamRecord::decode("k", b"").is_err(), "no id");
        let backwards = stored::Segment { base_offset: 3, next_offset: 2, ..stored::Segment::default() };
        assert_eq!(SegmentRecord::decode("k", &backwards.encode_to_vec()).unwrap_err().key, "k");
    }
}
