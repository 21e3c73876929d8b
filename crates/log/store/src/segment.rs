//! One segment's state, without I/O: what may be appended, sealed and read, and what is to be done in its file.
//!
//! ```text
//!            create              seal(length)
//!   (none) ---------> Open ------------------------> Sealed ----> filed: in its file, synced, with sidecar
//!                       |                              ^
//!                       |  journal lost its tail       |  seal(length), the only thing left to do
//!                       +------------> Closed ---------+
//!                         restart
//! ```
//! - Only an open segment is appended to, by entries that continue: position, segment, entry id, base offset,
//!   transaction id. A recovered segment is never open.
//! - A sealed segment's length never changes, unless the seal's record itself was lost with the journal's
//!   tail; then nobody was told that it is sealed, and it is closed.

use bytes::Bytes;
use tailwater_format::{
    Discontinuity, EntryCorrupt, EntryHeader, EntryId, Offset, Position, SegmentId, TransactionId,
    parse_entry_header,
};
use tailwater_journal::JournalPosition;

use crate::StoreError;
use crate::index::{IndexContents, RawHeader, SparseIndex};
use crate::pending::{PendingEntries, Piece};

/// What may be done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is appended to.
    Open,
    /// It can only be sealed: it was open when the process ended, or the journal lost its tail.
    Closed(Closed),
    /// It has its final length.
    Sealed {
        /// Where the seal's record ends in the journal.
        record_end: JournalPosition,
    },
    /// It is sealed, and all of it and its sidecar are durable in files.
    Filed,
}

/// Why a segment is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The journal lost records that were not durable.
    Lost,
    /// It was open when the process ended.
    Recovered,
}

/// What is known of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// There is none yet.
    Absent,
    /// It is there, but its name may not be durable.
    Unnamed,
    /// It is there and its name is durable.
    Named,
    /// A sync of it or of its name failed: nothing after the synced length is believed, and it is replaced
    /// by another file before anything else.
    Suspect,
}

/// See the module.
#[derive(Debug)]
pub struct Segment {
    /// Which segment.
    pub id: SegmentId,
    /// What may be done with it.
    pub phase: Phase,
    /// What is not synced in its file yet.
    pub pending: PendingEntries,
    /// Entries up to `pending.synced()`.
    pub synced_contents: Option<IndexContents>,
    /// Points of all entries, if it has been followed from its beginning, or was looked at since it was closed; not of
    /// a filed one.
    pub index: Option<SparseIndex>,
    /// Its file.
    pub file: FileState,
    /// It is in its stripe's list of segments with something to do.
    pub dirty: bool,
    /// It is in its stripe's list of segments with enough to write.
    pub ready: bool,
    /// A position in the journal at or before all its records that the files don't cover; only if `dirty`.
    pub needs_from: JournalPosition,
    /// Where the record of its creation ends in the journal; 0 if it was there before the process began.
    pub created: JournalPosition,
    /// It was cut below what was synced: what it holds has to be read from its file.
    pub rescan: bool,
    /// The journal lost entries of it, and it was not sealed since: whoever writes it may not know of that yet.
    pub has_lost: bool,
    /// How far the disk once had it, beyond where it ends, because the disk has lost the rest; 0 if nothing is missing.
    pub promised: Position,
    first: Option<(Offset, TransactionId)>,
    last: Option<EntryHeader>,
}

impl Segment {
    /// A segment without entries.
    pub fn new(id: SegmentId, phase: Phase, index_step: u32) -> Self {
        Self::at(id, phase, Position(0), None, Some(SparseIndex::new(index_step)), FileState::Absent)
    }

    /// A segment whose file holds `contents` in its first `synced` bytes.
    pub fn at(
        id: SegmentId,
        phase: Phase,
        synced: Position,
        contents: Option<IndexContents>,
        index: Option<SparseIndex>,
        file: FileState,
    ) -> Self {
        Self {
            id,
            phase,
            pending: PendingEntries::new(synced),
            synced_contents: contents,
            index,
            file,
            dirty: false,
            ready: false,
            needs_from: JournalPosition(0),
            created: JournalPosition(0),
            rescan: false,
            has_lost: false,
            promised: Position(0),
            first: contents.map(|contents| (contents.first_offset, contents.first_transaction_id)),
            last: contents.map(|contents| contents.last.header()),
        }
    }

    /// Whether the segment has its final length.
    pub fn is_sealed(&self) -> bool {
        matches!(self.phase, Phase::Sealed { .. } | Phase::Filed)
    }

    /// What it holds up to its end.
    pub fn contents(&self) -> Option<IndexContents> {
        if self.rescan {
            return None;
        }
        let Some(piece) = self.pending.last() else { return self.synced_contents };
        let (first_offset, first_transaction_id) = self.first?;
        let last = RawHeader::of(&piece.bytes).ok()?;
        Some(IndexContents { first_offset, first_transaction_id, last })
    }

    /// What a checkpoint says of its file: how far it is synced, and what it holds up to there. Of what the disk has
    /// lost, so that the next start misses it too, how far it was synced.
    pub fn checkpointed(&self) -> (Position, Option<IndexContents>) {
        if self.promised > self.pending.synced() {
            return (self.promised, None);
        }
        (self.pending.synced(), self.synced_contents)
    }

    /// Whether `entry` may be appended at `position`; its header if so.
    pub fn check_append(&self, position: Position, entry: &[u8]) -> Result<EntryHeader, StoreError> {
        let appended = self.pending.appended();
        match self.phase {
            Phase::Open => {}
            Phase::Closed(Closed::Lost) => return Err(StoreError::Lost { durable: appended }),
            Phase::Closed(Closed::Recovered) => return Err(StoreError::Recovered { length: appended }),
            Phase::Sealed { .. } | Phase::Filed => return Err(StoreError::Sealed { length: appended }),
        }
        self.check_continues(position, entry)
    }

    /// Whether `entry` at `position` is the segment's next; its header if so.
    pub fn check_continues(&self, position: Position, entry: &[u8]) -> Result<EntryHeader, StoreError> {
        let appended = self.pending.appended();
        if position != appended {
            return Err(StoreError::NotContinuing { position, appended });
        }
        let header = parse_entry_header(entry).map_err(StoreError::Entry)?;
        if header.len as usize != entry.len() {
            return Err(StoreError::EntryLength { given: entry.len(), entry: header.len });
        }
        let continues = match &self.last {
            Some(last) => header.check_follows(last),
            None if header.segment_id() != self.id => {
                Err(Discontinuity::Segment { found: header.segment_id(), expected: self.id })
            }
            None if header.entry_id != EntryId(0) => {
                Err(Discontinuity::EntryId { found: header.entry_id, expected: EntryId(0) })
            }
            None => Ok(()),
        };
        continues.map_err(|error| StoreError::Entry(EntryCorrupt::from(error).into()))?;
        Ok(header)
    }

    /// Appends an entry that was checked, whose record ends at `journal_end`.
    pub fn append(&mut self, header: EntryHeader, entry: Bytes, journal_end: JournalPosition) {
        assert!(!self.is_sealed(), "{}: nothing is appended behind a seal", self.id);
        assert_eq!(header.len as usize, entry.len(), "{}: an entry is whole", self.id);
        debug_assert_eq!(header.segment_id(), self.id, "an entry is of its segment");
        if let Some(index) = &mut self.index {
            index.note(self.pending.appended(), &header);
        }
        self.first.get_or_insert((header.base_offset, header.transaction_id));
        self.last = Some(header);
        self.pending.push(entry, journal_end);
    }

    /// Whether the segment may be sealed at `length`. `Ok(Some(end))` if it is already, by a record that ends
    /// there.
    pub fn check_seal(&self, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        let appended = self.pending.appended();
        match self.phase {
            Phase::Sealed { record_end } if length == appended => Ok(Some(record_end)),
            Phase::Filed if length == appended => Ok(Some(JournalPosition(0))),
            Phase::Sealed { .. } | Phase::Filed => Err(StoreError::Sealed { length: appended }),
            _ if length > appended => Err(StoreError::SealBeyondEnd { length, appended }),
            _ => Ok(None),
        }
    }

    /// Ends the segment at `length`, by a record that ends at `record_end`. Answers the memory given back.
    pub fn seal(&mut self, length: Position, record_end: JournalPosition) -> u64 {
        assert!(length <= self.pending.appended(), "{}: a seal does not grow a segment", self.id);
        assert!(self.phase != Phase::Filed, "{}: its length is written down for ever", self.id);
        let freed = self.cut(length);
        // Nothing beyond counts any more.
        self.promised = Position(0);
        self.has_lost = false;
        self.phase = Phase::Sealed { record_end };
        freed
    }

    /// The journal lost records: of those that were not known to be durable, only the ones that `survived` are
    /// in it. Answers the memory given back.
    pub fn lose(&mut self, survived: &dyn Fn(JournalPosition) -> bool) -> u64 {
        let end = self.pending.advance_while(survived).get();
        assert!(
            self.pending.synced() <= end && end <= self.pending.appended(),
            "{}: a loss is of the end",
            self.id
        );
        match self.phase {
            Phase::Sealed { record_end } if !survived(record_end) => {
                self.phase = Phase::Closed(Closed::Lost);
            }
            Phase::Open if end < self.pending.appended() || !survived(self.created) => {
                self.phase = Phase::Closed(Closed::Lost);
                self.has_lost |= end < self.pending.appended();
            }
            _ => {}
        }
        self.cut(end)
    }

    /// Cuts the end off. A length inside an entry cuts that entry whole in memory, which only a damaged journal
    /// asks for.
    fn cut(&mut self, length: Position) -> u64 {
        if length == self.pending.appended() {
            return 0;
        }
        if length < self.pending.synced() {
            self.rescan = true;
            self.synced_contents = None;
            self.index = None;
        }
        let freed = self.pending.cut(length).unwrap_or_default();
        if let Some(index) = &mut self.index {
            index.cut(length);
        }
        let contents = self.contents();
        self.first = contents.map(|contents| (contents.first_offset, contents.first_transaction_id));
        self.last = contents.map(|contents| contents.last.header());
        freed
    }

    /// The file is synced up to `end`. Answers the memory given back.
    pub fn mark_synced(&mut self, end: Position) -> u64 {
        let (freed, last) = self.pending.mark_synced(end);
        if let Some(Piece { bytes, .. }) = last
            && let (Some((first_offset, first_transaction_id)), Ok(last)) =
                (self.first, RawHeader::of(&bytes))
        {
            self.synced_contents = Some(IndexContents { first_offset, first_transaction_id, last });
        }
        freed
    }
}
