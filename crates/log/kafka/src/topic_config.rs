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

use TopicConfigKind as Kind;

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
/// What the documentation of a name with one value says, and why it has no other.
type FixedReason = (&'static str, &'static str);

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

/// A name, what kind of values it has, and what Kafka calls it in a broker's configuration.
const fn named(name: &'static str, kind: Kind, synonym: &'static str) -> TopicConfigName {
    TopicConfigName { name, kind, synonym }
}

struct TopicConfigName {
    name: &'static str,
    kind: Kind,
    synonym: &'static str,
}

impl TopicConfigName {
    const fn fixed(self, value: &'static str, (documentation, why): FixedReason) -> TopicConfigKey {
        self.means(documentation, Meaning::Fixed(value, why))
    }

    const fn mapped(self, documentation: &'static str, get: Get, set: Set) -> TopicConfigKey {
        self.means(documentation, Meaning::Mapped(get, set))
    }

    const fn means(self, documentation: &'static str, meaning: Meaning) -> TopicConfigKey {
        let Self { name, kind, synonym } = self;
        TopicConfigKey { name, kind, synonym, documentation, meaning }
    }
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
fn number<T: std::str::FromStr>(text: &str) -> Result<T, Wrong> {
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

/// A number of the type `Given`, INT or LONG, that is not negative.
pub(crate) fn not_negative<Given: std::str::FromStr, T: TryFrom<Given>>(text: &str) -> Result<T, Wrong> {
    T::try_from(number::<Given>(text)?).map_err(|_| "it is negative".to_owned())
}

/// Sets a field, if there is a value for it.
pub(crate) fn put<T>(field: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *field = value?;
    Ok(())
}

const NEVER: i64 = i64::MAX;
const NO_COMPACTION: FixedReason = ("Of compaction.", "topics are not compacted here");
const ONE_LEVEL: FixedReason = ("Of batches that the node compresses.", "the node compresses at one level");
const NO_REPLICATION: FixedReason = ("A partition has one replica.", "a partition has one replica");
const COLD_STAYS: &str = "What is in cold storage stays readable when remote.storage.enable is false.";
const OWN_INDEXES: FixedReason = ("Indexes are the store's own.", "indexes are the store's own");

/// All names, in their order.
pub(crate) const KEYS: &[TopicConfigKey] = &[
    named("cleanup.policy", Kind::List, "log.cleanup.policy")
        .fixed("delete", ("Old segments are deleted; a topic is never compacted.", NO_COMPACTION.1)),
    named("compression.gzip.level", Kind::Int, "compression.gzip.level").fixed("-1", ONE_LEVEL),
    named("compression.lz4.level", Kind::Int, "compression.lz4.level").fixed("9", ONE_LEVEL),
    named("compression.type", Kind::String, "compression.type").mapped(
        "producer: batches stay as their producer compressed them. uncompressed, gzip, snappy, lz4 \
         or zstd: those that are not compressed so are compressed anew.",
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
    named("compression.zstd.level", Kind::Int, "compression.zstd.level").fixed("3", ONE_LEVEL),
    named("delete.retention.ms", Kind::Long, "log.cleaner.delete.retention.ms")
        .fixed("86400000", NO_COMPACTION),
    named("file.delete.delay.ms", Kind::Long, "log.segment.delete.delay.ms").fixed(
        "60000",
        ("Files go when nobody reads them any more.", "files go when nobody reads them any more"),
    ),
    named("flush.messages", Kind::Long, "log.flush.interval.messages").mapped(
        "1: records are acknowledged when they are on the disk. 9223372036854775807: when they are \
         written; the disk gets them within the journal's sync interval. Fixed when a topic is \
         created.",
        |config, _| match config.durability {
            StreamDurability::Fsync => "1".to_owned(),
            StreamDurability::Interval => NEVER.to_string(),
        },
        |config, text| {
            config.durability = match number::<i64>(text)? {
                1 => StreamDurability::Fsync,
                NEVER => StreamDurability::Interval,
                _ => return Err(format!("1 (synced before it is acknowledged) or {NEVER} (synced later)")),
            };
            Ok(())
        },
    ),
    named("flush.ms", Kind::Long, "log.flush.interval.ms").mapped(
        "Records are gathered for so long before they are written and acknowledged; \
         9223372036854775807: not at all.",
        |config, _| match config.flush {
            FlushPolicy::Immediate => NEVER.to_string(),
            FlushPolicy::EveryMs(ms) => ms.to_string(),
        },
        |config, text| {
            config.flush = match not_negative::<i64, u64>(text)? {
                0 => FlushPolicy::Immediate,
                ms if ms == NEVER.unsigned_abs() => FlushPolicy::Immediate,
                ms => FlushPolicy::EveryMs(ms),
            };
            Ok(())
        },
    ),
    named("follower.replication.throttled.replicas", Kind::List, "").fixed("", NO_REPLICATION),
    named("index.interval.bytes", Kind::Int, "log.index.interval.bytes").fixed("4096", OWN_INDEXES),
    named("leader.replication.throttled.replicas", Kind::List, "").fixed("", NO_REPLICATION),
    named("local.retention.bytes", Kind::Long, "log.local.retention.bytes").mapped(
        "The oldest segments that cold storage has leave the node while the others have so many \
         bytes; -2: as retention.bytes.",
        |config, _| shown(config.cold_after_bytes, -2),
        |config, text| put(&mut config.cold_after_bytes, limit(text, -2)),
    ),
    named("local.retention.ms", Kind::Long, "log.local.retention.ms").mapped(
        "A segment that cold storage has leaves the node so long after it was completed; -2: as \
         retention.ms.",
        |config, _| shown(config.cold_after_ms, -2),
        |config, text| put(&mut config.cold_after_ms, limit(text, -2)),
    ),
    named("max.compaction.lag.ms", Kind::Long, "log.cleaner.max.compaction.lag.ms")
        .fixed("9223372036854775807", NO_COMPACTION),
    named("max.message.bytes", Kind::Int, "message.max.bytes").mapped(
        "Bytes of a record batch.",
        |config, _| config.append_bytes_max.to_string(),
        |config, text| put(&mut config.append_bytes_max, not_negative::<i32, _>(text)),
    ),
    named("message.timestamp.after.max.ms", Kind::Long, "log.message.timestamp.after.max.ms").mapped(
        "How far a record's timestamp may be ahead of the node's clock.",
        |config, after_max_ms| shown(Some(config.timestamp_after_max_ms.unwrap_or(after_max_ms)), NEVER),
        |config, text| put(&mut config.timestamp_after_max_ms, not_negative::<i64, _>(text).map(Some)),
    ),
    named("message.timestamp.before.max.ms", Kind::Long, "log.message.timestamp.before.max.ms").mapped(
        "How far a record's timestamp may be behind the node's clock.",
        |config, _| shown(config.timestamp_before_max_ms, NEVER),
        |config, text| put(&mut config.timestamp_before_max_ms, limit(text, NEVER)),
    ),
    named("message.timestamp.type", Kind::String, "log.message.timestamp.type").mapped(
        "CreateTime: a record has its producer's time. LogAppendTime: that of its append.",
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
    named("min.cleanable.dirty.ratio", Kind::Double, "log.cleaner.min.cleanable.ratio")
        .fixed("0.5", NO_COMPACTION),
    named("min.compaction.lag.ms", Kind::Long, "log.cleaner.min.compaction.lag.ms").fixed("0", NO_COMPACTION),
    named("min.insync.replicas", Kind::Int, "min.insync.replicas").mapped(
        "Copies that are durable before an append is acknowledged, and a majority of them at least. \
         On a node's own disk there is one.",
        |config, _| config.ack_quorum.unwrap_or(1).to_string(),
        |config, text| put(&mut config.ack_quorum, number(text).map(Some)),
    ),
    named("preallocate", Kind::Boolean, "log.preallocate")
        .fixed("false", ("Files are the store's own.", "files are the store's own")),
    named("remote.log.copy.disable", Kind::Boolean, "")
        .fixed("false", (COLD_STAYS, "set remote.storage.enable to false, which ends copying")),
    named("remote.log.delete.on.disable", Kind::Boolean, "")
        .fixed("false", (COLD_STAYS, "copies go by retention")),
    named("remote.storage.enable", Kind::Boolean, "remote.log.storage.system.enable").mapped(
        "Whether completed segments are copied to cold storage.",
        |config, _| config.cold.to_string(),
        |config, text| {
            put(&mut config.cold, text.to_ascii_lowercase().parse().map_err(|_| "true or false".to_owned()))
        },
    ),
    named("retention.bytes", Kind::Long, "log.retention.bytes").mapped(
        "The oldest segments of a partition go while the others hold so many bytes; -1: none.",
        |config, _| shown(config.retention_bytes, -1),
        |config, text| put(&mut config.retention_bytes, limit(text, -1)),
    ),
    named("retention.ms", Kind::Long, "log.retention.ms").mapped(
        "A segment goes so long after it was completed; -1: never.",
        |config, _| shown(config.retention_ms, -1),
        |config, text| put(&mut config.retention_ms, limit(text, -1)),
    ),
    named("segment.bytes", Kind::Int, "log.segment.bytes").mapped(
        "A segment that would grow beyond it is completed.",
        // A stream's own limit is not one of 31 bits.
        |config, _| config.segment_bytes.min(i32::MAX as u64).to_string(),
        |config, text| put(&mut config.segment_bytes, not_negative::<i32, _>(text)),
    ),
    named("segment.index.bytes", Kind::Int, "log.index.size.max.bytes").fixed("10485760", OWN_INDEXES),
    named("segment.jitter.ms", Kind::Long, "log.roll.jitter.ms").fixed(
        "0",
        (
            "Segments are completed when their time has come.",
            "segments are completed when their time has come",
        ),
    ),
    named("segment.ms", Kind::Long, "log.roll.ms").mapped(
        "A segment older than this is completed.",
        |config, _| config.segment_ms.to_string(),
        |config, text| put(&mut config.segment_ms, not_negative::<i64, _>(text)),
    ),
    named("unclean.leader.election.enable", Kind::Boolean, "unclean.leader.election.enable").fixed(
        "false",
        (
            "A partition's records are never given up for its availability.",
            "records are never given up for availability",
        ),
    ),
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
