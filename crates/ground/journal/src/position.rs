//! Names and numbers of the journal, as types.

use std::fmt;

/// Whose record it is. Each tag is replayed to, and trimmed by, its own owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u8);

/// A byte position in the endless sequence of all records of one journal, framing included.
///
/// A record's position is where it ends. Positions grow for ever, over all files; those of records that were
/// cut after a failure are skipped and never given to other records while the journal is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalPosition(pub u64);

/// Grows whenever records may have been lost: with every start, and with every failure of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A file of the journal, counted from 1; every file has another number, recycled or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSequence(pub u64);

impl JournalPosition {
    /// The position `bytes` further on.
    #[must_use]
    pub(crate) fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("no journal sees 16 EiB"))
    }

    /// Bytes from `earlier` to here.
    ///
    /// # Panics
    /// If `earlier` is later.
    pub(crate) fn bytes_since(self, earlier: Self) -> u64 {
        self.0.checked_sub(earlier.0).expect("positions only grow")
    }
}

impl Incarnation {
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl FileSequence {
    #[must_use]
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for JournalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for FileSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
