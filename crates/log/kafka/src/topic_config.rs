//! What Kafka calls the configuration of a topic, as a view of the stream's own.
//!
//! What holds:
//! - A name that Kafka knows is either mapped on something that the stream does, or *fixed*: shown with the one value
//!   that describes what happens here, and refused with any other. Nothing is accepted and then ignored.
//! - A name that Kafka does not know is refused, as Kafka does.
//! - Whether a value was set or is the default is told by comparing it with the default: the stream keeps no names.

use tailwater_format::Codec;
use tailwater_log::{FlushPolicy, StreamConfig, StreamDurability, Timestamps};

use crate::errors::{ErrorCode, RefusedRequest};

/// What kind of values there are, as DescribeConfigs tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in Kafka
pub(crate) enum TopicConfigKind {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// What cannot be set to a value.
type Wrong = String;
/// Reads a value out of a stream's configuration.
type Get = fn(&StreamConfig, u64) -> String;
/// Puts one in.
type Set = fn(&mut StreamConfig, &str) -> Result<(), Wrong>;

/// How a name is meant here.
#[derive(Clone, Copy)]
enum Meaning {
    /// The stream has it: `Get` is told the node's limit for timestamps ahead of its clock, in ms.
    Mapped(Get, Set),
    /// It has this value, for this reason.
    Fixed(&'static str, &'static str),
}

/// One name.
pub(crate) struct TopicConfigKey {
    pub name: &'static str,
    pub kind: TopicConfigKind,
    /// What Kafka calls it in a broker's configuration; empty if it has no such name.
    pub synonym: &'static str,
    pub documentation: &'static str,
    meaning: Meaning,
}

impl TopicConfigKey {
    /// The value that a stream has.
    pub fn value(&self, config: &StreamConfig, after_max_ms: u64) -> String {
        match self.meaning {
            Meaning::Mapped(get, _) => get(config, after_max_ms),
            Meaning::Fixed(value, _) => value.to_owned(),
        }
    }

    /// Whether there is only one value.
    pub fn is_fixed(&self) -> bool {
        matches!(self.meaning, Meaning::Fixed(..))
    }

    /// Sets it in `config`.
    pub fn set(&self, config: &mut StreamConfig, value: &str) -> Result<(), RefusedRequest> {
        let wrong = match self.meaning {
            Meaning::Mapped(_, set) => set(config, value.trim()).err(),
            Meaning::Fixed(fixed, _) if value.trim() == fixed => None,
            Meaning::Fixed(fixed, why) => Some(format!("{why}; it is {fixed:?} for every topic")),
        };
        let shown: String = value.chars().take(64).collect();
        match wrong {
            None => Ok(()),
            Some(why) => Err(RefusedRequest::new(
                ErrorCode::InvalidConfig,
                format!("{} = {shown:?}: {why}", self.name),
            )),
        }
    }

    /// Gives it back the value of `default` in `config`.
    pub fn reset(&self, config: &mut StreamConfig, default: &StreamConfig, after_max_ms: u64) {
        match (self.name, self.meaning) {
            ("message.timestamp.after.max.ms", _) => {
                config.timestamp_after_max_ms = default.timestamp_after_max_ms;
            }
            ("min.insync.replicas", _) => config.ack_quorum = None,
            (_, Meaning::Mapped(get, set)) => {
                set(config, &get(default, after_max_ms)).expect("a default is a value");
            }
            (_, Meaning::Fixed(..)) => {}
        }
    }
}

/// A number of that type.
pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, Wrong> {
    text.parse().map_err(|_| format!("not a number of type {}", kind_of::<T>()))
}

fn kind_of<T>() -> &'static str {
    if size_of::<T>() == 4 { "INT" } else { "LONG" }
}

/// A number of which `none` says that there is no limit.
fn limit(text: &str, none: i64) -> Result<Option<u64>, Wrong> {
    match number::<i64>(text)? {
        given if given == none => Ok(None),
        given => u64::try_from(given).map(Some).map_err(|_| format!("at least 0, or {none} for no limit")),
    }
}

fn shown(limit: Option<u64>, none: i64) -> String {
    limit.map_or(none, |limit| i64::try_from(limit).unwrap_or(i64::MAX)).to_string()
}

/// A number of type LONG that is not negative.
pub(crate) fn unsigned(text: &str) -> Result<u64, Wrong> {
    u64::try_from(number::<i64>(text)?).map_err(|_| "it is negative".to_owned())
}

const NEVER: i64 = i64::MAX;
const NO_COMPACTION: &str = "topics are not compacted here";
const ONE_LEVEL: &str = "the node compresses at one level";
const NO_REPLICATION: &str = "a partition has one replica";

/// All names, in their order.
pub(crate) const KEYS: &[TopicConfigKey] = &[
    TopicConfigKey {
        name: "cleanup.policy",
        kind: TopicConfigKind::List,
        synonym: "log.cleanup.policy",
        documentation: "Old segments are deleted; a topic is never compacted.",
        meaning: Meaning::Fixed("delete", NO_COMPACTION),
    },
    TopicConfigKey {
        name: "compression.gzip.level",
        kind: TopicConfigKind::Int,
        synonym: "compression.gzip.level",
        documentation: "Of batches that the node compresses.",
        meaning: Meaning::Fixed("-1", ONE_LEVEL),
    },
    TopicConfigKey {
        name: "compression.lz4.level",
        kind: TopicConfigKind::Int,
        synonym: "compression.lz4.level",
        documentation: "Of batches that the node compresses.",
        meaning: Meaning::Fixed("9", ONE_LEVEL),
    },
    TopicConfigKey {
        name: "compression.type",
        kind: TopicConfigKind::String,
        synonym: "compression.type",
        documentation: "producer: batches stay as their producer compressed them. uncompressed, gzip, snappy, lz4 or \
                        zstd: those that are not compressed so are compressed anew.",
        meaning: Meaning::Mapped(
            |config, _| match config.compression {
                None => "producer".to_owned(),
                Some(Codec::None) => "uncompressed".to_owned(),
                Some(codec) => codec.name().to_owned(),
            },
            |config, text| {
                config.compression = match text {
                    "producer" => None,
                    "uncompressed" => Some(Codec::None),
                    name => match name.parse() {
                        Ok(codec) if codec != Codec::None => Some(codec),
                        _ => return Err("producer, uncompressed, gzip, snappy, lz4 or zstd".to_owned()),
                    },
                };
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "compression.zstd.level",
        kind: TopicConfigKind::Int,
        synonym: "compression.zstd.level",
        documentation: "Of batches that the node compresses.",
        meaning: Meaning::Fixed("3", ONE_LEVEL),
    },
    TopicConfigKey {
        name: "delete.retention.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.cleaner.delete.retention.ms",
        documentation: "Of compaction.",
        meaning: Meaning::Fixed("86400000", NO_COMPACTION),
    },
    TopicConfigKey {
        name: "file.delete.delay.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.segment.delete.delay.ms",
        documentation: "Files go when nobody reads them any more.",
        meaning: Meaning::Fixed("60000", "files go when nobody reads them any more"),
    },
    TopicConfigKey {
        name: "flush.messages",
        kind: TopicConfigKind::Long,
        synonym: "log.flush.interval.messages",
        documentation: "1: records are acknowledged when they are on the disk. 9223372036854775807: when they are \
                        written; the disk gets them within the journal's sync interval. Fixed when a topic is created.",
        meaning: Meaning::Mapped(
            |config, _| match config.durability {
                StreamDurability::Fsync => "1".to_owned(),
                StreamDurability::Interval => NEVER.to_string(),
            },
            |config, text| {
                config.durability = match number::<i64>(text)? {
                    1 => StreamDurability::Fsync,
                    NEVER => StreamDurability::Interval,
                    _ => {
                        return Err(format!(
                            "1 (synced before it is acknowledged) or {NEVER} (synced later)"
                        ));
                    }
                };
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "flush.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.flush.interval.ms",
        documentation: "Records are gathered for so long before they are written and acknowledged; \
                        9223372036854775807: not at all.",
        meaning: Meaning::Mapped(
            |config, _| match config.flush {
                FlushPolicy::Immediate => NEVER.to_string(),
                FlushPolicy::EveryMs(ms) => ms.to_string(),
            },
            |config, text| {
                config.flush = match unsigned(text)? {
                    0 => FlushPolicy::Immediate,
                    ms if ms == NEVER.unsigned_abs() => FlushPolicy::Immediate,
                    ms => FlushPolicy::EveryMs(ms),
                };
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "follower.replication.throttled.replicas",
        kind: TopicConfigKind::List,
        synonym: "",
        documentation: "A partition has one replica.",
        meaning: Meaning::Fixed("", NO_REPLICATION),
    },
    TopicConfigKey {
        name: "index.interval.bytes",
        kind: TopicConfigKind::Int,
        synonym: "log.index.interval.bytes",
        documentation: "Indexes are the store's own.",
        meaning: Meaning::Fixed("4096", "indexes are the store's own"),
    },
    TopicConfigKey {
        name: "leader.replication.throttled.replicas",
        kind: TopicConfigKind::List,
        synonym: "",
        documentation: "A partition has one replica.",
        meaning: Meaning::Fixed("", NO_REPLICATION),
    },
    TopicConfigKey {
        name: "local.retention.bytes",
        kind: TopicConfigKind::Long,
        synonym: "log.local.retention.bytes",
        documentation: "The oldest segments that cold storage has leave the node while the others have so many bytes; -2: as \
                        retention.bytes.",
        meaning: Meaning::Mapped(
            |config, _| shown(config.cold_after_bytes, -2),
            |config, text| {
                config.cold_after_bytes = limit(text, -2)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "local.retention.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.local.retention.ms",
        documentation: "A segment that cold storage has leaves the node so long after it was completed; -2: as retention.ms.",
        meaning: Meaning::Mapped(
            |config, _| shown(config.cold_after_ms, -2),
            |config, text| {
                config.cold_after_ms = limit(text, -2)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "max.compaction.lag.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.cleaner.max.compaction.lag.ms",
        documentation: "Of compaction.",
        meaning: Meaning::Fixed("9223372036854775807", NO_COMPACTION),
    },
    TopicConfigKey {
        name: "max.message.bytes",
        kind: TopicConfigKind::Int,
        synonym: "message.max.bytes",
        documentation: "Bytes of a record batch.",
        meaning: Meaning::Mapped(
            |config, _| config.append_bytes_max.to_string(),
            |config, text| {
                let bytes = number::<i32>(text)?;
                config.append_bytes_max = u32::try_from(bytes).map_err(|_| "it is negative".to_owned())?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "message.timestamp.after.max.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.message.timestamp.after.max.ms",
        documentation: "How far a record's timestamp may be ahead of the node's clock.",
        meaning: Meaning::Mapped(
            |config, after_max_ms| shown(Some(config.timestamp_after_max_ms.unwrap_or(after_max_ms)), NEVER),
            |config, text| {
                config.timestamp_after_max_ms = Some(unsigned(text)?);
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "message.timestamp.before.max.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.message.timestamp.before.max.ms",
        documentation: "How far a record's timestamp may be behind the node's clock.",
        meaning: Meaning::Mapped(
            |config, _| shown(config.timestamp_before_max_ms, NEVER),
            |config, text| {
                config.timestamp_before_max_ms = limit(text, NEVER)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "message.timestamp.type",
        kind: TopicConfigKind::String,
        synonym: "log.message.timestamp.type",
        documentation: "CreateTime: a record has its producer's time. LogAppendTime: that of its append.",
        meaning: Meaning::Mapped(
            |config, _| match config.timestamps {
                Timestamps::Create => "CreateTime".to_owned(),
                Timestamps::Append => "LogAppendTime".to_owned(),
            },
            |config, text| {
                config.timestamps = match text {
                    "CreateTime" => Timestamps::Create,
                    "LogAppendTime" => Timestamps::Append,
                    _ => return Err("CreateTime or LogAppendTime".to_owned()),
                };
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "min.cleanable.dirty.ratio",
        kind: TopicConfigKind::Double,
        synonym: "log.cleaner.min.cleanable.ratio",
        documentation: "Of compaction.",
        meaning: Meaning::Fixed("0.5", NO_COMPACTION),
    },
    TopicConfigKey {
        name: "min.compaction.lag.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.cleaner.min.compaction.lag.ms",
        documentation: "Of compaction.",
        meaning: Meaning::Fixed("0", NO_COMPACTION),
    },
    TopicConfigKey {
        name: "min.insync.replicas",
        kind: TopicConfigKind::Int,
        synonym: "min.insync.replicas",
        documentation: "Copies that are durable before an append is acknowledged, and a majority of them at least. On a node's \
                        own disk there is one.",
        meaning: Meaning::Mapped(
            |config, _| config.ack_quorum.unwrap_or(1).to_string(),
            |config, text| {
                config.ack_quorum = Some(number(text)?);
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "preallocate",
        kind: TopicConfigKind::Boolean,
        synonym: "log.preallocate",
        documentation: "Files are the store's own.",
        meaning: Meaning::Fixed("false", "files are the store's own"),
    },
    TopicConfigKey {
        name: "remote.log.copy.disable",
        kind: TopicConfigKind::Boolean,
        synonym: "",
        documentation: "What is in cold storage stays readable when remote.storage.enable is false.",
        meaning: Meaning::Fixed("false", "set remote.storage.enable to false, which ends copying"),
    },
    TopicConfigKey {
        name: "remote.log.delete.on.disable",
        kind: TopicConfigKind::Boolean,
        synonym: "",
        documentation: "What is in cold storage stays readable when remote.storage.enable is false.",
        meaning: Meaning::Fixed("false", "copies go by retention"),
    },
    TopicConfigKey {
        name: "remote.storage.enable",
        kind: TopicConfigKind::Boolean,
        synonym: "remote.log.storage.system.enable",
        documentation: "Whether completed segments are copied to cold storage.",
        meaning: Meaning::Mapped(
            |config, _| config.cold.to_string(),
            |config, text| {
                config.cold = text.to_ascii_lowercase().parse().map_err(|_| "true or false".to_owned())?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "retention.bytes",
        kind: TopicConfigKind::Long,
        synonym: "log.retention.bytes",
        documentation: "The oldest segments of a partition go while the others hold so many bytes; -1: none.",
        meaning: Meaning::Mapped(
            |config, _| shown(config.retention_bytes, -1),
            |config, text| {
                config.retention_bytes = limit(text, -1)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "retention.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.retention.ms",
        documentation: "A segment goes so long after it was completed; -1: never.",
        meaning: Meaning::Mapped(
            |config, _| shown(config.retention_ms, -1),
            |config, text| {
                config.retention_ms = limit(text, -1)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "segment.bytes",
        kind: TopicConfigKind::Int,
        synonym: "log.segment.bytes",
        documentation: "A segment that would grow beyond it is completed.",
        meaning: Meaning::Mapped(
            // A stream's own limit is not one of 31 bits.
            |config, _| config.segment_bytes.min(i32::MAX as u64).to_string(),
            |config, text| {
                let bytes = number::<i32>(text)?;
                config.segment_bytes = u64::try_from(bytes).map_err(|_| "it is negative".to_owned())?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "segment.index.bytes",
        kind: TopicConfigKind::Int,
        synonym: "log.index.size.max.bytes",
        documentation: "Indexes are the store's own.",
        meaning: Meaning::Fixed("10485760", "indexes are the store's own"),
    },
    TopicConfigKey {
        name: "segment.jitter.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.roll.jitter.ms",
        documentation: "Segments are completed when their time has come.",
        meaning: Meaning::Fixed("0", "segments are completed when their time has come"),
    },
    TopicConfigKey {
        name: "segment.ms",
        kind: TopicConfigKind::Long,
        synonym: "log.roll.ms",
        documentation: "A segment older than this is completed.",
        meaning: Meaning::Mapped(
            |config, _| config.segment_ms.to_string(),
            |config, text| {
                config.segment_ms = unsigned(text)?;
                Ok(())
            },
        ),
    },
    TopicConfigKey {
        name: "unclean.leader.election.enable",
        kind: TopicConfigKind::Boolean,
        synonym: "unclean.leader.election.enable",
        documentation: "A partition's records are never given up for its availability.",
        meaning: Meaning::Fixed("false", "records are never given up for availability"),
    },
];

/// The name, if there is such a one.
pub(crate) fn key(name: &str) -> Result<&'static TopicConfigKey, RefusedRequest> {
    KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        RefusedRequest::new(ErrorCode::InvalidConfig, format!("there is no topic configuration {name:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn set(name: &str, value: &str) -> Result<StreamConfig, RefusedRequest> {
        let mut config = StreamConfig::default();
        key(name)?.set(&mut config, value)?;
        Ok(config)
    }

    #[test]
    fn what_is_shown_can_be_set_and_changes_nothing_and_names_are_in_order() {
        assert!(KEYS.is_sorted_by_key(|key| key.name));
        let default = StreamConfig::default();
        for key in KEYS {
            let mut config = default.clone();
            key.set(&mut config, &key.value(&default, HOUR)).expect("a value");
            key.reset(&mut config, &default, HOUR);
            assert_eq!(config, default, "{}", key.name);
        }
    }

    #[test]
    fn every_name_that_is_mapped_is_what_the_stream_does() {
        let default = StreamConfig::default();
        for (name, value, expected) in [
            ("retention.ms", "1000", StreamConfig { retention_ms: Some(1_000), ..default.clone() }),
            ("retention.ms", "-1", StreamConfig { retention_ms: None, ..default.clone() }),
            ("retention.bytes", "5000", StreamConfig { retention_bytes: Some(5_000), ..default.clone() }),
            ("segment.bytes", "4096", StreamConfig { segment_bytes: 4_096, ..default.clone() }),
            ("segment.ms", " 7 ", StreamConfig { segment_ms: 7, ..default.clone() }),
            ("flush.ms", "20", StreamConfig { flush: FlushPolicy::EveryMs(20), ..default.clone() }),
            ("flush.messages", "1", default.clone()),
            ("max.message.bytes", "999", StreamConfig { append_bytes_max: 999, ..default.clone() }),
            (
                "flush.messages",
                "9223372036854775807",
                StreamConfig { durability: StreamDurability::Interval, ..default.clone() },
            ),
            (
                "compression.type",
                "uncompressed",
                StreamConfig { compression: Some(Codec::None), ..default.clone() },
            ),
            ("compression.type", "lz4", StreamConfig { compression: Some(Codec::Lz4), ..default.clone() }),
            (
                "message.timestamp.type",
                "LogAppendTime",
                StreamConfig { timestamps: Timestamps::Append, ..default.clone() },
            ),
            ("remote.storage.enable", "true", StreamConfig { cold: true, ..default.clone() }),
            ("local.retention.ms", "0", StreamConfig { cold_after_ms: Some(0), ..default.clone() }),
            ("local.retention.ms", "-2", default.clone()),
            ("local.retention.bytes", "7", StreamConfig { cold_after_bytes: Some(7), ..default.clone() }),
            (
                "message.timestamp.before.max.ms",
                "5",
                StreamConfig { timestamp_before_max_ms: Some(5), ..default.clone() },
            ),
        ] {
            let config = set(name, value).expect("a value");
            assert_eq!(config, expected, "{name}");
            assert_eq!(key(name).expect("known").value(&config, HOUR), value.trim(), "{name}");
        }
    }

    #[test]
    fn what_is_not_done_here_is_refused_and_said() {
        for (name, value, why) in [
            ("cleanup.policy", "compact", "not compacted"),
            ("cleanup.policy", "compact,delete", "not compacted"),
            ("compression.type", "none", "producer, uncompressed, gzip"),
            ("compression.zstd.level", "9", "at one level"),
            ("min.insync.replicas", "two", "not a number of type INT"),
            ("retention.ms", "-2", "at least 0"),
            ("retention.ms", "soon", "not a number of type LONG"),
            ("segment.bytes", "3000000000", "not a number of type INT"),
            ("remote.storage.enable", "yes", "true or false"),
            ("remote.log.copy.disable", "true", "remote.storage.enable"),
            ("local.retention.ms", "-3", "or -2"),
            ("flush.messages", "7", "synced"),
            ("message.timestamp.type", "createtime", "CreateTime or"),
            ("no.such.name", "1", "there is no topic configuration"),
        ] {
            let refused = set(name, value).expect_err("refused");
            assert_eq!(refused.error, ErrorCode::InvalidConfig);
            assert!(refused.why.contains(why), "{name}: {}", refused.why);
        }
    }
}
