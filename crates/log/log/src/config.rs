//! How a stream behaves, and the bounds that keep it sane.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tailwater_format::Codec;
use tailwater_format::limits::APPEND_BYTES_MAX;
use tailwater_store::SegmentCopies;

use crate::limits::{COPIES_MAX, NAME_BYTES_MAX, SHARDS_MAX};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
/// 100 years: far enough for anybody, and no sum with a wall clock overflows.
const TIME_MS_MAX: u64 = 36_525 * DAY_MS;

/// When the transmit buffer of a shard becomes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushPolicy {
    /// In every round of the shard's owner: all that was queued by then is one entry.
    Immediate,
    /// This many milliseconds after the first batch came into the buffer, or at `flush_bytes`.
    EveryMs(u64),
}

impl FromStr for FlushPolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if text == "immediate" {
            return Ok(Self::Immediate);
        }
        match text.parse() {
            Ok(ms) => Ok(Self::EveryMs(ms)),
            Err(_) => Err(ConfigError::Word {
                field: "flush",
                given: text.to_owned(),
                allowed: "immediate or milliseconds",
            }),
        }
    }
}

impl fmt::Display for FlushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immediate => f.write_str("immediate"),
            Self::EveryMs(ms) => ms.fmt(f),
        }
    }
}

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamDurability {
    /// The records survive a crash of the machine.
    Fsync,
    /// The records survive a crash of the process; the operating system has them, and the disk gets them with
    /// the journal's next periodic sync. What was acknowledged and delivered since the last one may be lost by
    /// a crash of the machine: the next segment's higher term shows it.
    Interval,
}

impl FromStr for StreamDurability {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "fsync" => Ok(Self::Fsync),
            "interval" => Ok(Self::Interval),
            _ => Err(ConfigError::Word {
                field: "durability",
                given: text.to_owned(),
                allowed: "fsync or interval",
            }),
        }
    }
}

impl fmt::Display for StreamDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fsync => "fsync",
            Self::Interval => "interval",
        })
    }
}

/// Which time a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timestamps {
    /// Its producer's.
    Create,
    /// That of its append.
    Append,
}

impl FromStr for Timestamps {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "create" => Ok(Self::Create),
            "append" => Ok(Self::Append),
            _ => Err(ConfigError::Word {
                field: "timestamps",
                given: text.to_owned(),
                allowed: "create or append",
            }),
        }
    }
}

impl fmt::Display for Timestamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Append => "append",
        })
    }
}

/// How a stream behaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamConfig {
    /// Number of shards, 1 to [`SHARDS_MAX`]; it never falls.
    pub shards: u32,
    /// A completed segment is deleted this many milliseconds after it was sealed; `None` keeps it for ever.
    pub retention_ms: Option<u64>,
    /// The oldest completed segments of a shard are deleted while the others hold at least this many bytes;
    /// `None` is no limit. Per shard.
    pub retention_bytes: Option<u64>,
    /// A segment that would grow beyond this many bytes is completed (one larger entry still fits in one).
    pub segment_bytes: u64,
    /// A segment older than this many milliseconds is completed.
    pub segment_ms: u64,
    /// Bytes of a chunk in the data cell; a power of two. Fixed when the stream is created.
    pub chunk_bytes: u32,
    /// Whether its newest bytes are put into the data cell, where everybody who may read the cell reads them. If not,
    /// readers ask the node, which looks for the right to read the stream. Fixed when the stream is created.
    pub cells: bool,
    /// When the transmit buffer becomes an entry.
    pub flush: FlushPolicy,
    /// Bytes in the transmit buffer that make a periodic flush happen at once.
    pub flush_bytes: u32,
    /// What an acknowledgement promises. Fixed when the stream is created.
    pub durability: StreamDurability,
    /// Which time a record has.
    pub timestamps: Timestamps,
    /// How far a producer's timestamp may be behind the node's clock, in milliseconds; `None` is no limit.
    pub timestamp_before_max_ms: Option<u64>,
    /// How far it may be ahead; `None` is the node's limit.
    pub timestamp_after_max_ms: Option<u64>,
    /// Bytes of one append, at most [`APPEND_BYTES_MAX`].
    pub append_bytes_max: u32,
    /// The codec by which records are compressed anew when they are appended; `None` leaves them as their producer
    /// compressed them. An append may have [`StreamConfig::append_bytes_max`] before and after that.
    #[serde(with = "compression_name")]
    pub compression: Option<Codec>,
    /// Whether completed segments are copied to cold storage (Kafka's `remote.storage.enable`).
    pub cold: bool,
    /// A copied segment leaves the store this many milliseconds after it was sealed (Kafka's `local.retention.ms`);
    /// `None` keeps it there as long as retention keeps it at all.
    pub cold_after_ms: Option<u64>,
    /// The oldest copied segments of a shard leave the store while the others in it hold at least this many bytes
    /// (Kafka's `local.retention.bytes`); `None` is no limit.
    pub cold_after_bytes: Option<u64>,
    /// Places that each of its segments is spread over, where segments are in a replicated store: BookKeeper's
    /// ensemble. As for the next two, `None` is what [`tailwater_store::DecidedCopies::unless`] says, and a segment
    /// keeps what it began with.
    pub ensemble: Option<u32>,
    /// Copies of each entry (Kafka's `replication.factor`).
    pub write_quorum: Option<u32>,
    /// Copies that are durable before an append is acknowledged (Kafka's `min.insync.replicas`, and at least a majority
    /// there).
    pub ack_quorum: Option<u32>,
    /// Regions that the copies which acknowledge an append are in, whichever they are. `None` is what the node says.
    pub min_regions: Option<u32>,
}

/// What `compression` is called.
mod compression_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tailwater_format::Codec;

    /// As their producer compressed them.
    const PRODUCER: &str = "producer";

    pub(super) fn serialize<S: Serializer>(codec: &Option<Codec>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(codec.map_or(PRODUCER, Codec::name))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Codec>, D::Error> {
        match String::deserialize(from)?.as_str() {
            PRODUCER => Ok(None),
            name => name.parse().map(Some).map_err(D::Error::custom),
        }
    }
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            retention_ms: Some(7 * DAY_MS),
            retention_bytes: None,
            segment_bytes: 256 << 20,
            segment_ms: DAY_MS,
            chunk_bytes: 4_096,
            cells: true,
            flush: FlushPolicy::Immediate,
            flush_bytes: 256 << 10,
            durability: StreamDurability::Fsync,
            timestamps: Timestamps::Create,
            timestamp_before_max_ms: None,
            timestamp_after_max_ms: None,
            append_bytes_max: APPEND_BYTES_MAX as u32,
            compression: None,
            cold: false,
            cold_after_ms: None,
            cold_after_bytes: None,
            ensemble: None,
            write_quorum: None,
            ack_quorum: None,
            min_regions: None,
        }
    }
}

impl StreamConfig {
    /// Whether every field lies in its bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |field, given: u64, min: u64, max: u64| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(ConfigError::Bounds { field, given, min, max })
            }
        };
        within("shards", self.shards.into(), 1, SHARDS_MAX.into())?;
        if let Some(ms) = self.retention_ms {
            within("retention-ms", ms, 1, TIME_MS_MAX)?;
        }
        if let Some(bytes) = self.retention_bytes {
            within("retention-bytes", bytes, 4 << 10, 1 << 60)?;
        }
        if let Some(ms) = self.cold_after_ms {
            within("cold-after-ms", ms, 0, self.retention_ms.unwrap_or(TIME_MS_MAX))?;
        }
        if let Some(bytes) = self.cold_after_bytes {
            within("cold-after-bytes", bytes, 0, self.retention_bytes.unwrap_or(1 << 60))?;
        }
        // Positions and sparse indexes are made for files that a machine reads through in seconds.
        within("segment-bytes", self.segment_bytes, 4 << 10, 64 << 30)?;
        within("segment-ms", self.segment_ms, 1, TIME_MS_MAX)?;
        within("chunk-bytes", self.chunk_bytes.into(), 512, 1 << 20)?;
        if !self.chunk_bytes.is_power_of_two() {
            return Err(ConfigError::PowerOfTwo { field: "chunk-bytes", given: self.chunk_bytes.into() });
        }
        if let FlushPolicy::EveryMs(ms) = self.flush {
            within("flush", ms, 1, MINUTE_MS)?;
        }
        within("flush-bytes", self.flush_bytes.into(), 1, 8 << 20)?;
        let copies = [
            ("ensemble", self.ensemble),
            ("write-quorum", self.write_quorum),
            ("ack-quorum", self.ack_quorum),
            ("min-regions", self.min_regions),
        ];
        for (field, given) in copies {
            within(field, given.unwrap_or(1).into(), 1, COPIES_MAX.into())?;
        }
        within("append-bytes-max", self.append_bytes_max.into(), 1, APPEND_BYTES_MAX as u64)?;
        Ok(())
    }

    /// How many copies of its segments there are to be.
    pub fn copies(&self) -> SegmentCopies {
        let Self { ensemble, write_quorum, ack_quorum, min_regions, .. } = *self;
        SegmentCopies { ensemble, write_quorum, ack_quorum, min_regions }
    }

    /// Whether a stream that behaves like this may be changed to `other`.
    pub fn may_become(&self, other: &Self) -> Result<(), ConfigError> {
        other.check()?;
        if other.shards < self.shards {
            let (given, min) = (other.shards.into(), self.shards.into());
            return Err(ConfigError::Bounds { field: "shards", given, min, max: SHARDS_MAX.into() });
        }
        // Chunks are found by their size, what was once in a cell has been seen, and what waits for an acknowledgement
        // waits for one promise.
        let fixed = [
            ("chunk-bytes", self.chunk_bytes != other.chunk_bytes),
            ("cells", self.cells != other.cells),
            ("durability", self.durability != other.durability),
        ];
        match fixed.iter().find(|(_, changes)| *changes) {
            Some((field, _)) => Err(ConfigError::Fixed { field }),
            None => Ok(()),
        }
    }
}

/// Whether `name` can name a stream: 1 to 249 of `a-z A-Z 0-9 . _ -`, and neither `.` nor `..`, as in Kafka.
pub fn check_name(name: &str) -> Result<(), ConfigError> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "it is longer than 249 characters"
    } else if name == "." || name == ".." {
        "a directory is called so"
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        "only letters, digits, '.', '_' and '-' may be in it"
    } else {
        return Ok(());
    };
    // What a peer sent is shown cut, or an error message could be as long as a request.
    Err(ConfigError::Name { name: name.chars().take(64).collect(), why })
}

/// What is wrong with a name or a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The number is out of bounds.
    #[error("{field} is {given}, it must be from {min} to {max}")]
    Bounds {
        /// The field, as on the command line.
        field: &'static str,
        /// What was given.
        given: u64,
        /// The least value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
    },
    /// The number is no power of two.
    #[error("{field} is {given}, it must be a power of two")]
    PowerOfTwo {
        /// The field, as on the command line.
        field: &'static str,
        /// What was given.
        given: u64,
    },
    /// The word is none of those allowed.
    #[error("{field} is {given:?}, it must be {allowed}")]
    Word {
        /// The field, as on the command line.
        field: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A stream keeps it for ever.
    #[error("{field} is fixed when a stream is created")]
    Fixed {
        /// The field, as on the command line.
        field: &'static str,
    },
    /// What is acknowledged before it is durable would have to be somewhere until then.
    #[error(
        "durability is \"interval\", and segments are in a replicated store, which acknowledges what is durable: use \"fsync\""
    )]
    IntervalReplicated,
    /// There is nothing that segments could be copied to.
    #[error(
        "cold is on, and this node has no cold storage: set url below [cold] in its configuration, or leave cold off"
    )]
    NoCold,
    /// The store can't keep as many copies as are wanted, or as few.
    #[error(
        "{why}: ensemble, write-quorum, ack-quorum and min-regions are of streams in BookKeeper, and follow the node's if \
         none is given"
    )]
    Copies {
        /// What it can.
        why: String,
    },
    /// No stream can have this name.
    #[error("no stream can be named {name:?}: {why}")]
    Name {
        /// The beginning of what was given.
        name: String,
        /// Why not.
        why: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lies_within_its_own_bounds() {
        StreamConfig::default().check().expect("in bounds");
    }

    #[test]
    fn a_number_out_of_bounds_is_named_with_its_bounds() {
        let config = StreamConfig { shards: 0, ..StreamConfig::default() };
        assert_eq!(config.check().unwrap_err().to_string(), "shards is 0, it must be from 1 to 4096");
        let config = StreamConfig { chunk_bytes: 5_000, ..StreamConfig::default() };
        assert!(config.check().unwrap_err().to_string().contains("power of two"));
    }

    #[test]
    fn a_stream_never_gets_fewer_shards_another_durability_or_other_chunks() {
        let two = StreamConfig { shards: 2, ..StreamConfig::default() };
        let three = StreamConfig { shards: 3, retention_ms: None, ..StreamConfig::default() };
        assert_eq!(two.may_become(&three), Ok(()));
        assert_eq!(three.may_become(&two).unwrap_err().to_string(), "shards is 2, it must be from 3 to 4096");
        let interval = StreamConfig { durability: StreamDurability::Interval, ..two.clone() };
        assert_eq!(two.may_become(&interval), Err(ConfigError::Fixed { field: "durability" }));
        let chunks = StreamConfig { chunk_bytes: 512, ..two.clone() };
        assert_eq!(two.may_become(&chunks), Err(ConfigError::Fixed { field: "chunk-bytes" }));
    }

    #[test]
    fn names_are_kafkas() {
        for name in ["a", "Orders.v2_x-1", &"n".repeat(249)] {
            check_name(name).expect("a name");
        }
        for name in ["", ".", "..", "a b", "a/b", "ü", &"n".repeat(250)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn words_are_parsed_as_they_are_shown() {
        for flush in [FlushPolicy::Immediate, FlushPolicy::EveryMs(20)] {
            assert_eq!(flush.to_string().parse(), Ok(flush));
        }
        for durability in [StreamDurability::Fsync, StreamDurability::Interval] {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        assert!("soon".parse::<FlushPolicy>().is_err());
    }
}
