//! Segments in a replicated store that no record names: what a store asks before it deletes them.

use std::fmt;

use tailwater_env::BoxFuture;
use tailwater_format::{SegmentId, SegmentNumber, Term};

/// Whoever knows which segments there are to be.
pub trait SegmentJudge: Send + Sync {
    /// What becomes of each of these, in their order. All of them were seen in the store before the call: what decides
    /// is read after it, and is as new as any change that was answered before.
    fn judge<'a>(&'a self, found: &'a [SegmentId]) -> BoxFuture<'a, Vec<SegmentVerdict>>;
}

/// What becomes of a segment that was found in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentVerdict {
    /// Nobody has it, and nobody will.
    LeftOver(LeftOverWhy),
    /// It stays.
    Kept(KeptWhy),
}

/// Why a segment is left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOverWhy {
    /// There is no such stream any more.
    StreamGone,
    /// Its shard has been claimed in a later term, has completed segments up to a later number, and names no such one.
    NotNamed {
        /// The shard's term.
        term: Term,
        /// The number behind the shard's last completed segment.
        next: SegmentNumber,
    },
    /// The record names it, and says that only cold storage has it.
    Released,
}

/// Why a segment stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptWhy {
    /// The shard's record names it.
    Named,
    /// It is of the shard's term, or of a later one: its owner writes it, or is about to delete it.
    OwnersTerm {
        /// The shard's term.
        term: Term,
    },
    /// It is not below the shard's next number: whoever takes the shard over may find entries in it that were
    /// acknowledged, and record it.
    Undecided {
        /// The number behind the shard's last completed segment.
        next: SegmentNumber,
    },
    /// What metadata says of it can't be read.
    Unknown(String),
}

impl fmt::Display for LeftOverWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StreamGone => f.write_str("its stream is deleted"),
            Self::NotNamed { term, next } => {
                write!(f, "no record names it, and its shard is at term {term} and segment {next}")
            }
            Self::Released => f.write_str("only its copy in cold storage is needed"),
        }
    }
}

impl fmt::Display for KeptWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named => f.write_str("its shard's records name it"),
            Self::OwnersTerm { term } => {
                write!(f, "its shard is at term {term}: the owner may record it, or deletes it")
            }
            Self::Undecided { next } => {
                write!(
                    f,
                    "its shard is at segment {next}: the next owner may find acknowledged records in it"
                )
            }
            Self::Unknown(why) => write!(f, "it is not known whose it is: {why}"),
        }
    }
}
