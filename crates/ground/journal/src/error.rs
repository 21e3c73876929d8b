//! What can go wrong, with the numbers needed to act.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::JournalConfigError;
use crate::position::{FileSequence, Incarnation, JournalPosition, Tag};

/// A disk operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {path}: {message}")]
pub struct JournalFailure {
    /// The operation.
    pub what: &'static str,
    /// The file or directory.
    pub path: Arc<str>,
    /// The kind of error, such as [`io::ErrorKind::StorageFull`].
    pub kind: io::ErrorKind,
    /// In the operating system's words.
    pub message: Arc<str>,
}

impl JournalFailure {
    pub(crate) fn new(what: &'static str, path: &std::path::Path, error: &io::Error) -> Self {
        Self {
            what,
            path: path.to_string_lossy().into(),
            kind: error.kind(),
            message: error.to_string().into(),
        }
    }
}

/// Why no further file can be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FullReason {
    /// As many files as allowed are in use: what they hold has to be trimmed first.
    #[error("all {files_max} journal files are in use")]
    FilesMax {
        /// As configured.
        files_max: u32,
    },
    /// The disk has no room for one more.
    #[error("the disk has {free_bytes} bytes free, and a journal file takes {file_bytes}")]
    NoSpace {
        /// Bytes free when last looked.
        free_bytes: u64,
        /// As configured.
        file_bytes: u64,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] JournalFailure),
}

/// Why a record was not taken. Nothing of it will be found in the journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalAppendError {
    /// No room on disk for an append of this priority; room comes with [`crate::Journal::trim`] or free space.
    #[error("the journal is full: {0}")]
    Full(FullReason),
    /// The disk failed and no further file could be begun yet; attempts go on.
    #[error("the journal can't be written: {0}")]
    Latched(JournalFailure),
    /// The record is larger than the journal takes.
    #[error("a record of {length} bytes is over the journal's limit of {length_max}")]
    TooLarge {
        /// Of this record, in bytes.
        length: usize,
        /// As configured.
        length_max: usize,
    },
    /// The disk can't keep up: wait with [`crate::Journal::ready`].
    #[error("{backlog_bytes} bytes are already waiting for the disk")]
    Backlog {
        /// Bytes that wait.
        backlog_bytes: usize,
    },
    /// Records were lost since the incarnation that the caller knows.
    #[error("records were lost: the incarnation is {current} by now")]
    Stale {
        /// The journal's incarnation.
        current: Incarnation,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// What a replay callback answers if it can't take a record.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ReplayError {
    /// Why, in words.
    pub reason: String,
}

impl ReplayError {
    /// An error for that reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// Why a journal could not be opened. Nothing was changed on disk that an earlier state needs.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] JournalConfigError),
    /// Another process, or this one, has the journal open.
    #[error("the journal in {dir} is in use by another process")]
    InUse {
        /// The journal's directory.
        dir: PathBuf,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] JournalFailure),
    /// The first page of a file is damaged, or of a format that this version can't read.
    #[error(
        "{path} is not a readable journal file: {reason}. Restore it from a copy. To give up all records from it on, \
         remove it and the journal files with higher numbers"
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Acknowledged records are damaged.
    #[error(
        "{path} is damaged at byte {offset} (journal position {position}), among acknowledged records: {reason}. \
         Restore it from a copy. To give up all records from there on, cut the file to {offset} bytes and remove \
         the journal files with higher numbers"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// Where in the journal.
        position: JournalPosition,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file in the middle is gone.
    #[error("journal file {sequence} in {dir} is missing, but files before and after it are there")]
    Missing {
        /// The journal's directory.
        dir: PathBuf,
        /// The missing file.
        sequence: FileSequence,
    },
    /// A record's owner refused it.
    #[error("the record of tag {tag} at journal position {position} can't be replayed: {reason}")]
    Replay {
        /// The record's tag.
        tag: Tag,
        /// Where the record ends.
        position: JournalPosition,
        /// In the owner's words.
        reason: ReplayError,
    },
}

/// The journal was closed while it could not be written; the waiters of what is not durable have been told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal was closed while it could not be written: {failure}")]
pub struct CloseError {
    /// The failure that was in the way.
    pub failure: JournalFailure,
}
