//! The journal as this crate uses it.

use futures::FutureExt;
use tailwater_journal::{
    Incarnation, Journal, JournalAppendError, JournalAppendOptions, JournalPosition, Priority,
    WatermarkFollower,
};

use crate::record::{Record, TAG};

/// The journal, and how far it is durable.
pub(crate) struct Ledger {
    journal: Journal,
    durable: WatermarkFollower,
}

impl Ledger {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { durable: journal.durable(), journal }
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.durable.incarnation()
    }

    /// How far the journal is durable. Positions of lost records are skipped by it: whoever compares a record's
    /// end with it reads it first and looks at the incarnation after that, or a record that was lost in between
    /// passes for a durable one.
    pub(crate) fn durable(&self) -> JournalPosition {
        self.durable.position()
    }

    /// Whether the record that ends at `end`, appended under an earlier incarnation, is durable; it is lost else.
    pub(crate) fn survived(&self, end: JournalPosition) -> bool {
        matches!(self.durable.wait_for(end).now_or_never(), Some(Ok(())))
    }

    /// Puts a record into the journal's queue. Seals and deletions, which make room, may use what is kept back.
    pub(crate) fn append(
        &self,
        record: Record<'_>,
        incarnation: Incarnation,
        sync: bool,
    ) -> Result<JournalPosition, JournalAppendError> {
        let header = record.header();
        let (body, priority) = match record {
            Record::Append(_, _, entry) => (entry, Priority::Normal),
            Record::Create(_) => (&[][..], Priority::Normal),
            Record::Seal(..) | Record::Delete(_) => (&[][..], Priority::Reserved),
        };
        self.journal.append(TAG, &[&header, body], JournalAppendOptions { sync, priority, incarnation })
    }

    /// Nothing of the store before `upto` is needed any more.
    pub(crate) fn trim(&self, upto: JournalPosition) {
        self.journal.trim(TAG, upto);
    }

    /// Whether journal files are getting scarce because of the store's records.
    pub(crate) fn trim_wanted(&self) -> bool {
        self.journal.trim_wanted(TAG).now_or_never().is_some()
    }
}
