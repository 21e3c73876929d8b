//! Which of Kafka's error codes our errors are.

pub use tailwater_kafka_wire::ErrorCode;
use tailwater_log::{AppendError, ReadError, SequenceError, StreamError};

/// An error, and its words for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    pub error: ErrorCode,
    pub why: String,
}

impl RefusedRequest {
    pub fn new(error: ErrorCode, why: impl Into<String>) -> Self {
        Self { error, why: why.into() }
    }
}

impl From<StreamError> for RefusedRequest {
    fn from(error: StreamError) -> Self {
        Self::new(stream_error(&error), error.to_string())
    }
}

impl From<AppendError> for RefusedRequest {
    fn from(error: AppendError) -> Self {
        Self::new(append_error(&error), error.to_string())
    }
}

/// What an append's error is to a producer.
pub fn append_error(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::NoStream | AppendError::NoShard { .. } => ErrorCode::UnknownTopicOrPartition,
        AppendError::Corrupt(_) => ErrorCode::CorruptMessage,
        AppendError::Invalid(_) | AppendError::TransactionId { .. } | AppendError::NotNext { .. } => {
            ErrorCode::InvalidRecord
        }
        AppendError::TooLarge { .. } | AppendError::TooLargeDecompressed { .. } => ErrorCode::MessageTooLarge,
        AppendError::Sequence(SequenceError::OutOfOrder { .. }) => ErrorCode::OutOfOrderSequenceNumber,
        AppendError::Sequence(SequenceError::Epoch { .. }) => ErrorCode::InvalidProducerEpoch,
        AppendError::Timestamp { .. } | AppendError::TimestampOld { .. } => ErrorCode::InvalidTimestamp,
        AppendError::Term { .. } | AppendError::NotOwner | AppendError::Closed => {
            ErrorCode::NotLeaderOrFollower
        }
        // Clients try these again by themselves.
        AppendError::Overloaded(_) | AppendError::Unavailable(_) | AppendError::Lost(_) => {
            ErrorCode::NotEnoughReplicas
        }
        AppendError::NoSpace(_) | AppendError::Damaged(_) => ErrorCode::KafkaStorageError,
        // Clients do not try these again, and show the words.
        AppendError::Copy { .. } => ErrorCode::PolicyViolation,
        AppendError::Refused(_) => ErrorCode::UnknownServerError,
    }
}

/// What a read's error is to a consumer.
pub fn read_error(error: &ReadError) -> ErrorCode {
    match error {
        ReadError::NoStream | ReadError::NoShard { .. } => ErrorCode::UnknownTopicOrPartition,
        ReadError::Truncated { .. } | ReadError::BeyondEnd { .. } => ErrorCode::OffsetOutOfRange,
        ReadError::NoSegment | ReadError::Corrupt(_) | ReadError::Damaged(_) => ErrorCode::KafkaStorageError,
        ReadError::NotOwner | ReadError::Unavailable(_) => ErrorCode::NotLeaderOrFollower,
    }
}

/// What a stream's error is to whoever looks after topics.
pub fn stream_error(error: &StreamError) -> ErrorCode {
    match error {
        StreamError::NoStream(_) | StreamError::NoShard { .. } => ErrorCode::UnknownTopicOrPartition,
        StreamError::Exists(_) => ErrorCode::TopicAlreadyExists,
        StreamError::Config(tailwater_log::ConfigError::Name { .. }) => ErrorCode::InvalidTopic,
        StreamError::Config(tailwater_log::ConfigError::Bounds { field: "shards", .. }) => {
            ErrorCode::InvalidPartitions
        }
        StreamError::Config(tailwater_log::ConfigError::Copies { .. }) => ErrorCode::InvalidReplicationFactor,
        StreamError::Config(_) => ErrorCode::InvalidConfig,
        StreamError::TooManyShards { .. } | StreamError::Copy(_) => ErrorCode::PolicyViolation,
        StreamError::BeyondEnd { .. } | StreamError::NothingToRestore { .. } => ErrorCode::OffsetOutOfRange,
        StreamError::Damaged(_) => ErrorCode::KafkaStorageError,
        StreamError::Refused(_) => ErrorCode::UnknownServerError,
        StreamError::NotOwner
        | StreamError::Overloaded
        | StreamError::Unavailable(_)
        | StreamError::Closed => ErrorCode::NotLeaderOrFollower,
    }
}
