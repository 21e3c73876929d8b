//! What can go wrong for an application.

use std::time::Duration;

use tailwater_format::Offset;
use tailwater_format::call::{CallDecodeError, CallErrorCode, CallRefusal};
use tailwater_tail::{FeedReadError, ReaderConfigError};
use tailwater_tls::DialError;

/// Why something was not done. [`Error::is_retriable`] says whether trying again makes sense.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be understood.
    #[error("{0}: use IP:PORT, tcp:IP:PORT, tls:IP:PORT or unix:/path")]
    Address(String),
    /// The application's [`crate::ClientConfig`] makes no sense.
    #[error("the client's configuration: {0}")]
    Config(#[from] ReaderConfigError),
    /// No node answers.
    #[error("no node answers at {address} ({reason}); is `tailwater serve` running there?")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The node's certificate is not taken here, or the one that was shown not there, or only one of both speaks TLS.
    /// Trying again helps once somebody has changed that.
    #[error("{address} can't be used: {reason}")]
    Secure {
        /// Which node.
        address: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The node wants a login, or does not let in who shows that one.
    #[error("can't log in at {address}: {reason}")]
    Login {
        /// Which node.
        address: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The node refused.
    #[error(transparent)]
    Refused(#[from] CallRefusal),
    /// A call was not answered in time; it may or may not have been carried out.
    #[error("the node at {address} did not answer within {deadline:?}")]
    Deadline {
        /// Which node.
        address: String,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// The node answered something else than what was asked.
    #[error("the node's answer makes no sense: {0}")]
    Malformed(String),
    /// The stream was deleted; a stream of the same name that was created since is another one.
    #[error("stream {0} was deleted")]
    StreamDeleted(String),
    /// Records that should come next were removed; the next call goes on at `log_start`.
    #[error(
        "shard {shard}: records from offset {from} to {log_start} were removed by retention or truncation"
    )]
    Truncated {
        /// Which shard.
        shard: u32,
        /// The record that was due.
        from: Offset,
        /// The first one that is left.
        log_start: Offset,
    },
    /// Updates were removed that no snapshot has, so nobody knows what they came to.
    #[error(
        "shard {shard} of {stream}: records before offset {log_start} were removed, and no snapshot has them; publish \
         a snapshot, or take what is left for all there is"
    )]
    Incomplete {
        /// Of which stream.
        stream: String,
        /// Which shard.
        shard: u32,
        /// The first one that is left.
        log_start: Offset,
    },
    /// A snapshot can't be written, or the stream of snapshots is not one.
    #[error("snapshots of {stream}: {why}")]
    Snapshots {
        /// Of which stream.
        stream: String,
        /// What is wrong.
        why: String,
    },
    /// What is stored is not what was written.
    #[error("shard {shard}: {why}")]
    Corrupt {
        /// Which shard.
        shard: u32,
        /// What is wrong.
        why: String,
    },
    /// The node does not give what should come next, and says that trying again does not help.
    #[error("shard {shard} can't be read: {why}")]
    Unreadable {
        /// Which shard.
        shard: u32,
        /// What the node says.
        why: String,
    },
    /// The application hands over more than goes out: wait for acknowledgements.
    #[error("{bytes} bytes wait to be sent, and at most {bytes_max} may")]
    BufferFull {
        /// Bytes that wait.
        bytes: usize,
        /// The bound ([`crate::ProducerConfig::buffer_bytes_max`]).
        bytes_max: usize,
    },
    /// A record is longer than any batch may be.
    #[error("a record of {bytes} bytes of key and value is longer than the {bytes_max} that one may have")]
    RecordTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// SQS's API did not do what was asked for.
    #[error("{message}")]
    Queue {
        /// Its code, as `AWS.SimpleQueueService.NonExistentQueue`.
        code: String,
        /// In words.
        message: String,
    },
    /// A group does not take this member, or what it says.
    #[error("group {group}: {code:?}")]
    Group {
        /// Which group.
        group: String,
        /// Kafka's name of what is wrong.
        code: tailwater_kafka_wire::ErrorCode,
    },
    /// The producer was closed, or gave up after an error that leaves a hole in its sequence.
    #[error("the producer is closed: {0}")]
    Closed(String),
}

impl Error {
    /// Whether the same thing may work a while later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Error::Refused(refusal) => refusal.code.is_retriable(),
            Error::Queue { code, .. } => {
                matches!(code.as_str(), "RequestThrottled" | "ServiceUnavailable" | "InternalFailure")
            }
            Error::Unreachable { .. } | Error::Secure { .. } => true,
            Error::Deadline { .. } | Error::BufferFull { .. } => true,
            _ => false,
        }
    }

    /// Whether there is no such stream.
    pub fn is_unknown_stream(&self) -> bool {
        matches!(self, Error::Refused(refusal) if refusal.code == CallErrorCode::UnknownStream)
    }

    /// Whether there is no such cell.
    pub fn is_unknown_cell(&self) -> bool {
        matches!(self, Error::Refused(refusal) if refusal.code == CallErrorCode::UnknownCell)
    }

    pub(crate) fn from_dial(address: &str, error: DialError) -> Self {
        let address = address.to_owned();
        match error {
            DialError::Refused(reason) => Error::Secure { address, reason },
            other => Error::Unreachable { address, reason: other.to_string() },
        }
    }

    pub(crate) fn from_read(stream: &str, shard: u32, from: Offset, error: FeedReadError) -> Self {
        match error {
            FeedReadError::StreamDeleted => Error::StreamDeleted(stream.to_owned()),
            FeedReadError::Truncated { log_start } => Error::Truncated { shard, from, log_start },
            FeedReadError::Refused(why) => Error::Unreadable { shard, why },
            FeedReadError::Corrupt { .. } => Error::Corrupt { shard, why: error.to_string() },
        }
    }
}

impl From<CallDecodeError> for Error {
    fn from(error: CallDecodeError) -> Self {
        Error::Malformed(error.to_string())
    }
}
