//! Why a node refuses: few codes, which never change their meaning.

use std::fmt;

use super::CallFailure;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal, $retry:literal;)*) => {
        /// Why a node refuses. A code that this program does not know is kept as [`CallErrorCode::Other`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CallErrorCode {
            $($(#[$doc])* $name,)*
            /// A code of a later version, with its number. It is treated as one that a retry does not help.
            Other(u16),
        }

        impl CallErrorCode {
            /// All codes that this program knows.
            pub const ALL: &[CallErrorCode] = &[$(CallErrorCode::$name,)*];

            /// The number on the wire.
            pub const fn number(self) -> u16 {
                match self {
                    $(CallErrorCode::$name => $number,)*
                    CallErrorCode::Other(number) => number,
                }
            }

            /// The code with this number.
            pub const fn from_number(number: u16) -> Self {
                match number {
                    $($number => CallErrorCode::$name,)*
                    other => CallErrorCode::Other(other),
                }
            }

            /// Its name in logs, metrics and JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(CallErrorCode::$name => $word,)*
                    CallErrorCode::Other(_) => "other",
                }
            }

            /// Whether the same request may succeed a while later, if need be at another node. It says
            /// nothing of whether the first one was carried out.
            pub const fn is_retriable(self) -> bool {
                match self {
                    $(CallErrorCode::$name => $retry,)*
                    CallErrorCode::Other(_) => false,
                }
            }
        }
    };
}

error_codes! {
    /// The payload is not the message that the method takes.
    Malformed = 1, "malformed", false;
    /// The node does not know the method.
    UnknownMethod = 2, "unknown_method", false;
    /// The principal may not do this.
    NotAuthorized = 3, "not_authorized", false;
    /// No such stream; it may have been deleted.
    UnknownStream = 4, "unknown_stream", false;
    /// The stream has no such shard.
    UnknownShard = 5, "unknown_shard", false;
    /// No such segment: it was removed, or its number and term never existed.
    UnknownSegment = 6, "unknown_segment", false;
    /// Another node owns the shard.
    NotOwner = 7, "not_owner", true;
    /// The shard's term is not the one expected.
    WrongTerm = 8, "wrong_term", false;
    /// The offset was removed, or does not exist yet.
    OffsetOutOfRange = 9, "offset_out_of_range", false;
    /// A record batch is damaged or has a layout that is not accepted.
    CorruptBatch = 10, "corrupt_batch", false;
    /// A record batch, or all batches of an item together, are longer than accepted.
    BatchTooLarge = 11, "batch_too_large", false;
    /// A sequence number is neither the next one nor one of the last batches'.
    OutOfOrderSequence = 12, "out_of_order_sequence", false;
    /// The producer is not known any more; a batch with sequence number 0 begins anew.
    UnknownProducer = 13, "unknown_producer", false;
    /// A later epoch of the producer was seen.
    ProducerFenced = 14, "producer_fenced", false;
    /// An explicit transaction id is smaller than one before it.
    TransactionIdDecreased = 15, "transaction_id_decreased", false;
    /// The node's disk is full; it goes on by itself when there is room.
    NoSpace = 16, "no_space", true;
    /// A write or sync failed before this could be acknowledged; it is not known to be in the log.
    StorageFailed = 17, "storage_failed", true;
    /// The node has too much to do and did not begin.
    Overloaded = 18, "overloaded", true;
    /// The node, or the shard's ownership, is starting or stopping.
    Unavailable = 19, "unavailable", true;
    /// A defect of the node, which its log tells about.
    Internal = 20, "internal", false;
    /// The stream exists already.
    StreamExists = 21, "stream_exists", false;
    /// A record's timestamp is too far ahead of the node's clock.
    InvalidTimestamp = 22, "invalid_timestamp", false;
    /// Bytes of the shard are missing, and the node did not open it.
    Damaged = 23, "damaged", false;
    /// The stream is a copy: only its source takes records.
    Copy = 24, "copy", false;
    /// No such cell; those of the log are not among them.
    UnknownCell = 25, "unknown_cell", false;
}

impl fmt::Display for CallErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallErrorCode::Other(number) => write!(f, "other ({number})"),
            known => f.write_str(known.name()),
        }
    }
}

/// A refusal as the program handles it: the code to act on, the words for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct CallRefusal {
    /// The code.
    pub code: CallErrorCode,
    /// In words.
    pub message: String,
}

impl CallRefusal {
    /// A refusal.
    pub fn new(code: CallErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<CallRefusal> for CallFailure {
    fn from(refusal: CallRefusal) -> Self {
        Self { code: u32::from(refusal.code.number()), message: refusal.message }
    }
}

impl From<CallFailure> for CallRefusal {
    fn from(failure: CallFailure) -> Self {
        // A number that no code can have is told apart from none of them: it stays unknown.
        let number = u16::try_from(failure.code).unwrap_or(u16::MAX);
        Self { code: CallErrorCode::from_number(number), message: failure.message }
    }
}
