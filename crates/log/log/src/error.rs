//! What can go wrong, one enum for each kind of request.

use std::sync::Arc;

use tailwater_format::{Offset, Term, TransactionId};

use crate::config::ConfigError;
use crate::producer::SequenceError;
use crate::stream::StreamRecordError;

/// What to do about a change that metadata can't take: no value that it refuses gets smaller by waiting.
const REPORT: &str = "trying again does not help: report this as a defect, with the node's log, and use another stream \
                      meanwhile; what is stored stays readable";

/// What to do about a damaged shard.
const RESTORE: &str = "stop the node and restore the data directory from a backup, or delete the stream";

/// Why records were not acknowledged. Unless said otherwise the records are not in the log and never will be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No such stream, or it was deleted.
    #[error("the stream does not exist")]
    NoStream,
    /// The stream has fewer shards.
    #[error("the stream has {shards} shards, counted from 0: there is no shard {shard}")]
    NoShard {
        /// The shard asked for.
        shard: u32,
        /// How many there are.
        shards: u32,
    },
    /// These bytes are not record batches as they have to be.
    #[error("refused: {0}")]
    Invalid(Arc<str>),
    /// These bytes are not what the producer made: their checksum does not fit.
    #[error("damaged on the way: {0}; send it again")]
    Corrupt(Arc<str>),
    /// The batches are larger than an append may be.
    #[error("{given} bytes in one append, at most {max} are allowed: send smaller batches")]
    TooLarge {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Their records are larger when decompressed than an append's may be.
    #[error(
        "more than {max} bytes in one append when decompressed: send smaller batches, or raise [log] \
         decompressed_bytes_max"
    )]
    TooLargeDecompressed {
        /// Bytes allowed.
        max: usize,
    },
    /// The producer's epoch or sequence number.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Explicit transaction ids must not decrease.
    #[error("transaction id {given} after {last}: transaction ids must not decrease")]
    TransactionId {
        /// The first one given.
        given: TransactionId,
        /// The shard's last one.
        last: TransactionId,
    },
    /// Positions by time, and transaction ids, go by the largest timestamp so far: one from the far future would
    /// decide over all that come after it.
    #[error(
        "a record's timestamp {given} is more than {max_ms} ms after the node's clock, {now}: correct the producer's \
         clock, or raise [log] timestamp_after_max_ms"
    )]
    Timestamp {
        /// The largest one given, in ms since the epoch.
        given: i64,
        /// The node's clock, in ms since the epoch.
        now: i64,
        /// How far ahead of it a timestamp may be, in ms.
        max_ms: u64,
    },
    /// The stream wants records that are not older.
    #[error("a record's timestamp {given} is more than {max_ms} ms before the node's clock, {now}")]
    TimestampOld {
        /// The smallest one given, in ms since the epoch.
        given: i64,
        /// The node's clock, in ms since the epoch.
        now: i64,
        /// How far behind it a timestamp may be, in ms.
        max_ms: u64,
    },
    /// A copy takes its source's entries in their places.
    #[error("refused: the copy goes on at offset {next}, not at {given}")]
    NotNext {
        /// Offset of the next record.
        next: Offset,
        /// First offset of what was given.
        given: Offset,
    },
    /// The producer expected another term.
    #[error("the shard's term is {current}, not {given}")]
    Term {
        /// The shard's.
        current: Term,
        /// The one given.
        given: Term,
    },
    /// Another owner has taken the shard (Kafka's `NOT_LEADER_OR_FOLLOWER`).
    #[error("this node does not own the shard any more")]
    NotOwner,
    /// More is queued than is allowed: try again later.
    #[error("overloaded: {0}; try again")]
    Overloaded(&'static str),
    /// The disk is full.
    #[error("no space: {0}")]
    NoSpace(Arc<str>),
    /// It is not known whether the records survived: the sync that was to make them durable failed. The log
    /// goes on without them, in another segment.
    #[error("not durable: {0}; the log goes on without these records, send them again")]
    Lost(Arc<str>),
    /// The disk or the metadata does not answer as it should: try again later.
    #[error("unavailable: {0}")]
    Unavailable(Arc<str>),
    /// Metadata can't take what the shard has to record before it may append; other shards go on.
    #[error("the shard can't be written to: {0}; {REPORT}")]
    Refused(Arc<str>),
    /// The shard was not opened, because bytes of it are missing; other shards go on.
    #[error("the shard is damaged and was not opened: {0}; {RESTORE}")]
    Damaged(Arc<str>),
    /// The stream is a copy: only its source takes records.
    #[error("the stream is a copy: its source is in the cluster {cluster:?}, send the records there")]
    Copy {
        /// The cluster of the source.
        cluster: Arc<str>,
    },
    /// The log is closing. Records that were already queued may be in the log nevertheless if the node was
    /// killed before it could say so.
    #[error("the log is closing")]
    Closed,
}

impl AppendError {
    /// Whether the same append may succeed later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::NotOwner
            | Self::Overloaded(_)
            | Self::NoSpace(_)
            | Self::Lost(_)
            | Self::Corrupt(_)
            | Self::Unavailable(_)
            | Self::Closed => true,
            Self::NoStream
            | Self::NoShard { .. }
            | Self::Damaged(_)
            | Self::Refused(_)
            | Self::Invalid(_)
            | Self::TooLarge { .. }
            | Self::TooLargeDecompressed { .. }
            | Self::Sequence(_)
            | Self::TransactionId { .. }
            | Self::Timestamp { .. }
            | Self::TimestampOld { .. }
            | Self::Term { .. }
            | Self::NotNext { .. }
            | Self::Copy { .. } => false,
        }
    }
}

/// Why a stream was not created, changed, found or deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No stream has this name or id.
    #[error("there is no stream {0:?}")]
    NoStream(String),
    /// The stream has fewer shards.
    #[error("the stream has {shards} shards, counted from 0: there is no shard {shard}")]
    NoShard {
        /// The shard asked for.
        shard: u32,
        /// How many there are.
        shards: u32,
    },
    /// Another stream has the name.
    #[error("there is a stream {0:?} already")]
    Exists(String),
    /// The stream is a copy: only its source is changed.
    #[error("the stream is a copy: its source is in the cluster {0:?}, change it there")]
    Copy(String),
    /// The name or the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// All streams together would have too many shards.
    #[error("all streams together may have {max} shards and have {used}: delete some, or ask for fewer")]
    TooManyShards {
        /// Shards there are.
        used: u64,
        /// Shards allowed.
        max: u64,
    },
    /// Records that do not exist can't be truncated.
    #[error("the shard ends at offset {end}: it can't be truncated before {given}")]
    BeyondEnd {
        /// The first offset that does not exist yet.
        end: Offset,
        /// The offset given.
        given: Offset,
    },
    /// No copies of removed segments are kept that reach so far back.
    #[error(
        "no removed records from offset {from} on are kept in cold storage: the shard begins at offset {log_start}"
    )]
    NothingToRestore {
        /// The first offset that is there.
        log_start: Offset,
        /// The offset given.
        from: Offset,
    },
    /// The shard was not opened, because bytes of it are missing; other shards go on.
    #[error("the shard is damaged and was not opened: {0}; {RESTORE}")]
    Damaged(Arc<str>),
    /// This node does not own the shard any more.
    #[error("this node does not own the shard any more")]
    NotOwner,
    /// More is queued than is allowed: try again later.
    #[error("overloaded: too many requests are queued; try again")]
    Overloaded,
    /// Metadata can't take the change, which has not happened.
    #[error("the change can't be recorded: {0}; {REPORT}")]
    Refused(String),
    /// The metadata does not answer as it should. The change may or may not have happened.
    #[error("metadata unavailable: {0}")]
    Unavailable(String),
    /// The log is closing.
    #[error("the log is closing")]
    Closed,
}

/// Why a position was not found or bytes were not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No such stream, or it was deleted.
    #[error("the stream does not exist")]
    NoStream,
    /// The stream has fewer shards.
    #[error("the stream has {shards} shards, counted from 0: there is no shard {shard}")]
    NoShard {
        /// The shard asked for.
        shard: u32,
        /// How many there are.
        shards: u32,
    },
    /// Retention or truncation removed what was asked for.
    #[error("records before offset {log_start} were removed by retention or truncation")]
    Truncated {
        /// The first offset that is there.
        log_start: Offset,
    },
    /// What was asked for does not exist yet.
    #[error("the shard ends at offset {end}")]
    BeyondEnd {
        /// The first offset that does not exist yet.
        end: Offset,
    },
    /// The segment is none of the shard's: its name was superseded by one of a higher term.
    #[error("the shard has no such segment")]
    NoSegment,
    /// The shard was not opened, because bytes of it are missing; other shards go on.
    #[error("the shard is damaged and was not opened: {0}; {RESTORE}")]
    Damaged(Arc<str>),
    /// This node does not own the shard.
    #[error("this node does not own the shard")]
    NotOwner,
    /// Stored bytes are not what was written.
    #[error("stored bytes are corrupt: {0}")]
    Corrupt(String),
    /// The store does not answer as it should: try again later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LogOpenError {
    /// The data directory.
    #[error("the data directory {dir} can't be used: {why}")]
    Directory {
        /// The directory.
        dir: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The journal.
    #[error("the journal can't be opened: {0}")]
    Journal(String),
    /// The store.
    #[error("the segments can't be recovered: {0}")]
    Store(String),
    /// Metadata.
    #[error("the metadata can't be read: {0}")]
    Meta(String),
    /// The cells, as whoever opened the log says.
    #[error("the cells can't be had: {0}")]
    Cells(String),
    /// A stored value.
    #[error(transparent)]
    Record(#[from] StreamRecordError),
    /// Segments are not what metadata says of them.
    #[error("shard {shard}: {why}")]
    Inconsistent {
        /// The shard.
        shard: tailwater_format::ShardId,
        /// What does not fit.
        why: String,
    },
}
