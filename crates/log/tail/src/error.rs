//! What can go wrong while following a file.

use tailwater_format::Offset;

/// Why a durable source did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The stream was deleted, or never existed. Final.
    #[error("the stream does not exist (any more)")]
    NoStream,
    /// The bytes were removed by retention or truncation.
    #[error("records before offset {log_start} were removed by retention or truncation")]
    Truncated {
        /// The first offset that is still there.
        log_start: Offset,
    },
    /// The source can't be reached or is overloaded: try again.
    #[error("the durable source is unavailable: {0}")]
    Unavailable(String),
    /// The source does not give it, and trying again does not help.
    #[error("the durable source refuses: {0}")]
    Refused(String),
    /// What it answered does not make sense.
    #[error("the durable source answered nonsense: {0}")]
    Invalid(String),
}
