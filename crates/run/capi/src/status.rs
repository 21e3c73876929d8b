//! The choices and outcomes that cross the boundary as numbers. What comes in is a plain `uint32_t`, and checked: a
//! number that is none of an enumeration's would be undefined behaviour in Rust.

use std::ffi::CString;

use tailwater_cache::{CellFailure, Version};
use tailwater_client::{Error, Transport};
use tailwater_format::call::CallErrorCode;

/// How an operation stands, or why it was not done.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterStatus {
    /// Done. What it brought may be taken.
    Ok = 0,
    /// Not done yet.
    Pending = 1,
    /// What was asked for makes no sense. The text says what to do.
    InvalidArgument = 2,
    /// Nobody answers there. The same may work later.
    Unreachable = 3,
    /// There was no answer in time. What was asked for may have been done.
    Deadline = 4,
    /// The caller may not do this.
    NotAuthorized = 5,
    /// There is no stream or cell of that name.
    NotFound = 6,
    /// Too much is under way. The same may work later.
    Overloaded = 7,
    /// Records that were due are removed. The consumer goes on with the oldest ones that are left.
    Truncated = 8,
    /// The stream was deleted.
    Deleted = 9,
    /// What is stored is damaged, or can't be read.
    Corrupt = 10,
    /// Another poll of the consumer is under way, or its batch was not taken.
    Busy = 11,
    /// The process is a fork of one that used the library.
    Forked = 12,
    /// The node refused for another reason.
    Refused = 13,
    /// A defect of the library.
    Internal = 14,
}

/// How a key's lookup ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterFound {
    /// With a value.
    Hit = 0,
    /// There is none.
    Miss = 1,
    /// Nothing can be said: there may be a value.
    Inconclusive = 2,
}

/// What came of a change of a key.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterChanged {
    /// A quorum has it.
    Applied = 0,
    /// Nothing has changed: the key is at another version, which is told.
    OtherVersion = 1,
    /// Nothing has changed: the key has no value.
    Absent = 2,
    /// It was not acknowledged, for the reason that is told.
    Failed = 3,
    /// It may have been done, may be done later, or never.
    Unknown = 4,
}

/// How a cell looks keys up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterLookupMode {
    /// What a majority of the replicas agrees on.
    Consistent = 0,
    /// What one replica has. It may be old.
    Relaxed = 1,
}

/// Which way a client takes to a cell's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterTransport {
    /// Shared memory on this host, TCP elsewhere.
    Auto = 0,
    /// Shared memory or nothing.
    Shm = 1,
    /// TCP even on this host.
    Tcp = 2,
}

/// Where a consumer begins in a shard.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailwaterStartKind {
    /// The oldest record there is.
    Earliest = 0,
    /// Behind the newest record.
    Latest = 1,
    /// The record at the offset `value`.
    Offset = 2,
    /// `value` records before the end.
    Last = 3,
    /// The first record at or after the time `value`, in milliseconds since 1970.
    TimeMs = 4,
}

/// Which change of a key a value is of. Versions are unique. A later one is greater: by time, then by client, then by
/// sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailwaterVersion {
    /// Microseconds since 1970, by the clock of the client that made it.
    pub timestamp_us: u64,
    /// Which client.
    pub client_id: u32,
    /// Tells one client's versions of the same microsecond apart.
    pub sequence: u32,
}

impl From<Version> for TailwaterVersion {
    fn from(version: Version) -> Self {
        let Version { timestamp_us, client_id, sequence } = version;
        Self { timestamp_us, client_id, sequence }
    }
}

impl From<TailwaterVersion> for Version {
    fn from(version: TailwaterVersion) -> Self {
        let TailwaterVersion { timestamp_us, client_id, sequence } = version;
        Self { timestamp_us, client_id, sequence }
    }
}

/// Why something was not done: the number to act on, the words for a person.
#[derive(Clone, Debug)]
pub(crate) struct NotDone {
    pub(crate) status: TailwaterStatus,
    pub(crate) why: String,
}

impl NotDone {
    pub(crate) fn new(status: TailwaterStatus, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    /// The caller's arguments make no sense.
    pub(crate) fn invalid(why: impl Into<String>) -> Self {
        Self::new(TailwaterStatus::InvalidArgument, why)
    }
}

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Address(_) | Error::Config(_) => TailwaterStatus::InvalidArgument,
            Error::Unreachable { .. } | Error::Secure { .. } => TailwaterStatus::Unreachable,
            Error::Login { .. } => TailwaterStatus::NotAuthorized,
            Error::Deadline { .. } => TailwaterStatus::Deadline,
            Error::Refused(refusal) => match refusal.code {
                CallErrorCode::NotAuthorized => TailwaterStatus::NotAuthorized,
                CallErrorCode::UnknownStream | CallErrorCode::UnknownShard | CallErrorCode::UnknownCell => {
                    TailwaterStatus::NotFound
                }
                CallErrorCode::Overloaded => TailwaterStatus::Overloaded,
                CallErrorCode::Unavailable => TailwaterStatus::Unreachable,
                CallErrorCode::OffsetOutOfRange => TailwaterStatus::InvalidArgument,
                _ => TailwaterStatus::Refused,
            },
            Error::StreamDeleted(_) => TailwaterStatus::Deleted,
            Error::Truncated { .. } | Error::Incomplete { .. } => TailwaterStatus::Truncated,
            Error::Corrupt { .. } | Error::Unreadable { .. } | Error::Malformed(_) => {
                TailwaterStatus::Corrupt
            }
            Error::BufferFull { .. } => TailwaterStatus::Overloaded,
            Error::RecordTooLong { .. }
            | Error::Queue { .. }
            | Error::Group { .. }
            | Error::Snapshots { .. }
            | Error::Closed(_) => TailwaterStatus::Refused,
        };
        Self::new(status, error.to_string())
    }
}

/// The transport of that number.
pub(crate) fn transport(number: u32) -> Result<Transport, NotDone> {
    match number {
        0 => Ok(Transport::Auto),
        1 => Ok(Transport::Shm),
        2 => Ok(Transport::Tcp),
        other => Err(NotDone::invalid(format!("{other} is no transport: use one of TailwaterTransport"))),
    }
}

/// Whether lookups of that mode go by quorum.
pub(crate) fn is_consistent(mode: u32) -> Result<bool, NotDone> {
    match mode {
        0 => Ok(true),
        1 => Ok(false),
        other => {
            Err(NotDone::invalid(format!("{other} is no way to look up: use one of TailwaterLookupMode")))
        }
    }
}

/// A text for C, which ends at the first zero: there is none in it.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// What people are told of a key of which nothing can be said.
pub(crate) fn inconclusive(failure: CellFailure) -> String {
    format!("nothing can be said of the key: {failure}")
}
