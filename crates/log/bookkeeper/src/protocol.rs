//! What is asked of a bookie, and what it answers, whatever carries it.

use bytes::Bytes;

use crate::digest::MasterKey;
use crate::ids::{EntryId, LedgerId};

/// A question to one bookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookieRequest {
    /// Keep an entry. It is answered when the entry is durable.
    Add {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// Its bytes, see [`crate::digest`].
        packet: Bytes,
        /// The ledger's key.
        key: MasterKey,
        /// From whoever recovers the ledger: taken although it is fenced.
        recovery: bool,
    },
    /// Read an entry; [`EntryId::NONE`] is the last one that the bookie has.
    Read {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// Fence the ledger before: no more entries are taken but those of a recovery.
        fence: Option<MasterKey>,
    },
    /// Read entries that lie behind each other, if the bookie has a request for that.
    ReadBatch {
        /// The ledger.
        ledger: LedgerId,
        /// The first one, which is answered whatever it takes.
        first: EntryId,
        /// How many there are at most.
        count_max: u32,
        /// Bytes that those behind the first one may take with it, and with some for each.
        bytes_max: u32,
    },
    /// Say what is known of the LAC.
    ReadLac {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Wait until the LAC is beyond `previous`, and read the entry behind that.
    Poll {
        /// The ledger.
        ledger: LedgerId,
        /// The LAC that is known already.
        previous: EntryId,
        /// Milliseconds after which the bookie answers in any case.
        wait_ms: u64,
    },
    /// Keep an explicit LAC.
    WriteLac {
        /// The ledger.
        ledger: LedgerId,
        /// The LAC.
        lac: EntryId,
        /// Its bytes, see [`crate::digest`].
        packet: Bytes,
        /// The ledger's key.
        key: MasterKey,
    },
}

/// What a bookie answers when it does what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookieAnswer {
    /// The entry is durable.
    Added,
    /// What was read; not checked yet.
    Entry {
        /// An entry's bytes. A poll may have none.
        packet: Option<Bytes>,
        /// The LAC that the bookie knows.
        lac: Option<EntryId>,
    },
    /// Entries that lie behind each other, from the first that was asked for on; not checked yet.
    Batch {
        /// Their bytes.
        packets: Vec<Bytes>,
    },
    /// The explicit LAC's bytes and those of the last entry, not checked yet.
    Lac {
        /// What a writer sent without an entry.
        explicit: Option<Bytes>,
        /// The last entry that the bookie has.
        last: Option<Bytes>,
    },
    /// The explicit LAC is kept.
    LacWritten,
}

/// Why a bookie did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookieError {
    /// It has nothing of this ledger.
    #[error("it has nothing of the ledger")]
    NoLedger,
    /// It does not have this entry.
    #[error("it does not have the entry")]
    NoEntry,
    /// Somebody recovers the ledger, or has.
    #[error("the ledger is fenced there")]
    Fenced,
    /// It takes no entries.
    #[error("it takes no entries: it is read-only")]
    ReadOnly,
    /// The ledger's password is another one there, or it wants a login.
    #[error("it does not let this client in: it wants a login, or the ledger has another password there")]
    Unauthorized,
    /// It has too much to do; later it may do it.
    #[error("it has too many requests")]
    Overloaded,
    /// It does not know such a request.
    #[error("it does not know such a request")]
    Unsupported,
    /// A status that says nothing about entries: an error of its disk, a request that it does not know.
    #[error("it answered with status {0}")]
    Refused(i32),
    /// An answer that is none.
    #[error("its answer is malformed: {0}")]
    Malformed(&'static str),
    /// There is no connection to it, or there is none any more. Whether it did what it was asked is not known.
    #[error("it can't be reached")]
    Unreachable,
    /// It did not answer in time. Whether it did what it was asked is not known.
    #[error("it did not answer in time")]
    TimedOut,
}

impl BookieError {
    /// Whether the bookie said that it does not have what was asked for. Silence and every other error leave that open.
    pub fn is_absence(self) -> bool {
        matches!(self, Self::NoLedger | Self::NoEntry)
    }
}
