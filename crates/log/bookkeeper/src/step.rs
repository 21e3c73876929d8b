//! What the protocols have in common. Each is a state machine without I/O: [`StepInput`]s and the time go in,
//! [`StepEffect`]s come out. Whoever drives one carries the effects out and hands each result back, once.

use tailwater_env::Instant;

use crate::ids::{BookieId, EntryId, Quorums};
use crate::metadata::LedgerMetadata;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};

/// What has to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepEffect {
    /// Ask a bookie; the result is an [`StepInput::Answer`] of the same token.
    Ask { token: u64, bookie: BookieId, request: BookieRequest },
    /// Replace the ledger's metadata if they still have this version; [`StepInput::Replaced`].
    Replace { metadata: Box<LedgerMetadata>, version: i32 },
    /// Read the ledger's metadata; [`StepInput::Reread`].
    Reread,
    /// Say which bookies take entries; [`StepInput::Bookies`].
    ListBookies,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum StepInput {
    Answer {
        token: u64,
        result: Result<BookieAnswer, BookieError>,
    },
    /// The new version.
    Replaced(Result<i32, ReplaceFault>),
    Reread(Result<VersionedMetadata, LedgerFault>),
    /// `None` if they can't be listed now.
    Bookies(Option<Vec<BookieId>>),
    /// Time has passed.
    Tick,
}

/// Metadata with the version to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedMetadata {
    /// What was read.
    pub metadata: LedgerMetadata,
    /// Counts changes.
    pub version: i32,
}

/// Why metadata were not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplaceFault {
    /// They have another version.
    Conflict,
    /// Nobody said whether they were.
    Unknown,
}

/// Why something can't be done with a ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerFault {
    /// It is not there.
    #[error("there is no such ledger")]
    NoLedger,
    /// Its metadata can't be understood.
    #[error("the ledger's metadata can't be read: {0}")]
    Metadata(#[from] crate::metadata::MetadataFault),
    /// Somebody else recovers it or has closed it.
    #[error("the ledger was fenced: somebody else recovers it or has closed it; append to a new one")]
    Fenced,
    /// The password is another one.
    #[error("the ledger has another password")]
    Unauthorized,
    /// Too few bookies take entries.
    #[error(
        "too few bookies take entries: {have} of {need} that a write needs; start more, or ask for fewer copies"
    )]
    TooFewBookies {
        /// Bookies that take entries.
        have: usize,
        /// Bookies that are needed.
        need: usize,
    },
    /// The bookies that take entries are not in the regions that are wanted.
    #[error(
        "no {quorums} of the bookies that take entries has every ack quorum in {regions} regions: they are in {have}; start \
         bookies in more regions, or ask for fewer"
    )]
    Regions {
        /// What is wanted of the ledger.
        quorums: Quorums,
        /// Regions that every ack quorum is to cover.
        regions: usize,
        /// Regions that bookies which take entries are in.
        have: usize,
    },
    /// Too few bookies answered in time.
    #[error("entry {entry} did not get its quorum in time, and no other bookies are there for it")]
    NoQuorum {
        /// The first entry that is short of copies.
        entry: EntryId,
    },
    /// Bookies that would have to answer do not.
    #[error("{what}: too few bookies answered in time; the last one that did not said that {last}")]
    Unanswered {
        /// What was asked.
        what: &'static str,
        /// The last error.
        last: BookieError,
    },
    /// So many bookies do not have it that it can't have been acknowledged, and yet it was.
    #[error("entry {0} was acknowledged, and its bookies do not have it: data is lost")]
    Lost(EntryId),
    /// Beyond the end of a closed ledger, or not acknowledged yet.
    #[error("there is no entry {0}: the last one that can be read is {1}")]
    NoEntry(EntryId, EntryId),
    /// Each copy that could be read has a wrong digest, or is another entry.
    #[error("entry {0} can't be read: every copy that was found is damaged")]
    Damaged(EntryId),
    /// An entry that bookies would refuse.
    #[error("an entry of {0} bytes is too long: {max} at most", max = crate::limits::ENTRY_BYTES_MAX)]
    TooLong(usize),
    /// So many changes of bookies that its metadata would outgrow ZooKeeper.
    #[error("the ledger's bookies changed too often; append to a new one")]
    TooManyEnsembles,
    /// Its writer was closed, or its process's tasks have ended.
    #[error("the writer is closed")]
    WriterClosed,
    /// ZooKeeper does not do what it is asked.
    #[error("ZooKeeper: {0}")]
    ZooKeeper(String),
}

/// Numbers that look random, from a seed: what a state machine chooses has to be the same with the same inputs.
#[derive(Clone, Debug)]
pub(crate) struct Choice(u64);

impl Choice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number in `0..bound`; 0 if there is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * bound as u128) >> 64) as usize
    }
}

/// A point in time that a tick is compared with; `None` is never.
pub(crate) fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now >= at)
}
