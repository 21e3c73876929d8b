//! Checking a ledger: every copy of every entry is read, and compared with the others. Nothing is changed.
//!
//! A bookie that does not answer says nothing about its copies: they are counted apart from those that it said it does
//! not have, and from those whose digest is wrong. It is asked [`CHECK_TRIES`] times for the first of them, as its
//! connection may just have broken, and once for each of the others until it answers again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tailwater_env::Instant;

use crate::digest::EntryCodec;
use crate::ids::{BookieId, EntryId, LedgerId};
use crate::limits::{CHECK_BYTES_MAX, CHECK_ENTRIES_MAX, CHECK_FAULTS_MAX, CHECK_TRIES};
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::protocol::{BookieError, BookieRequest};
use crate::read::{Copied, checked};
use crate::step::{StepEffect, StepInput};

/// What is wrong with one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyFault {
    /// The bookie said so.
    #[error("it is not there")]
    Absent,
    /// Its digest is wrong, or it is another entry.
    #[error("it is damaged")]
    Damaged,
    /// Its digest is right, and yet it is not what the other copies are.
    #[error("it differs from another copy")]
    Differs,
    /// The bookie did not say.
    #[error("its bookie does not answer: {0}")]
    Unanswered(BookieError),
}

/// A copy with something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCopy {
    /// Of which entry.
    pub entry: EntryId,
    /// At which bookie.
    pub bookie: BookieId,
    /// What.
    pub fault: CopyFault,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCheck {
    /// The metadata that were gone by.
    pub metadata: LedgerMetadata,
    /// The last entry that was checked.
    pub last: EntryId,
    /// Bytes of the payloads that were read, each entry counted once.
    pub bytes: u64,
    /// Copies that are right.
    pub copies: u64,
    /// Copies that are not there.
    pub absent: u64,
    /// Copies that are damaged, or differ from others.
    pub damaged: u64,
    /// Copies whose bookies do not answer.
    pub unanswered: u64,
    /// Entries with fewer right copies than the ledger's write quorum, those without any included.
    pub short: u64,
    /// Entries without a right copy.
    pub unreadable: u64,
    /// The first entry whose length is not what the payloads before it say, if there is one; behind the last one if it
    /// is the closed ledger's length.
    pub wrong_length: Option<EntryId>,
    /// The first [`CHECK_FAULTS_MAX`] copies with something wrong.
    pub bad: Vec<BadCopy>,
}

impl LedgerCheck {
    /// Whether every entry has all its copies.
    pub fn is_whole(&self) -> bool {
        self.short == 0 && self.wrong_length.is_none()
    }
}

/// An entry whose copies are being read.
struct Checking {
    waiting: usize,
    right: usize,
    /// The first right copy's length and bytes.
    found: Option<(u64, bytes::Bytes, usize)>,
}

/// Between two tries of one copy.
const PAUSE: Duration = Duration::from_millis(300);

/// A copy that is asked for, for the so manieth time.
struct AskedCopy {
    entry: EntryId,
    bookie: BookieId,
    tries: u32,
}

/// See the module.
pub(crate) struct Checker {
    ledger: LedgerId,
    codec: EntryCodec,
    /// The first of `checking`.
    first: EntryId,
    checking: VecDeque<Checking>,
    asked: BTreeMap<u64, AskedCopy>,
    /// Copies that are asked for again.
    again: Vec<(Instant, AskedCopy)>,
    /// Bookies that did not answer, however often they were asked.
    silent: BTreeSet<BookieId>,
    token: u64,
    /// How many entries are read at a time: fewer of large ones.
    window: usize,
    /// Payload bytes up to the last entry that is finished, unless one was missing.
    length: Option<u64>,
    check: LedgerCheck,
}

impl Checker {
    /// Checks the entries up to `last`.
    pub(crate) fn new(
        ledger: LedgerId,
        metadata: LedgerMetadata,
        last: EntryId,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let mut checker = Self {
            ledger,
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            first: EntryId::FIRST,
            checking: VecDeque::new(),
            asked: BTreeMap::new(),
            again: Vec::new(),
            silent: BTreeSet::new(),
            token: 0,
            window: 1,
            length: Some(0),
            check: LedgerCheck {
                metadata,
                last,
                bytes: 0,
                copies: 0,
                absent: 0,
                damaged: 0,
                unanswered: 0,
                short: 0,
                unreadable: 0,
                wrong_length: None,
                bad: Vec::new(),
            },
        };
        checker.ask(effects);
        checker
    }

    fn ask(&mut self, effects: &mut Vec<StepEffect>) {
        while self.checking.len() < self.window {
            let entry = EntryId::new(self.first.get() + self.checking.len() as i64);
            if entry > self.check.last {
                return;
            }
            let ensemble = self.check.metadata.ensemble_of(entry);
            let set = self.check.metadata.quorums.write_set(entry);
            let bookies: Vec<BookieId> = set.filter_map(|position| ensemble.get(position).cloned()).collect();
            self.checking.push_back(Checking { waiting: bookies.len(), right: 0, found: None });
            for bookie in bookies {
                self.ask_for(AskedCopy { entry, bookie, tries: 1 }, effects);
            }
        }
    }

    fn ask_for(&mut self, copy: AskedCopy, effects: &mut Vec<StepEffect>) {
        self.token += 1;
        let request = BookieRequest::Read { ledger: self.ledger, entry: copy.entry, fence: None };
        effects.push(StepEffect::Ask { token: self.token, bookie: copy.bookie.clone(), request });
        self.asked.insert(self.token, copy);
    }

    /// What happened; the result once everything was read.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        input: StepInput,
        effects: &mut Vec<StepEffect>,
    ) -> Option<LedgerCheck> {
        if let StepInput::Answer { token, result } = input
            && let Some(copy) = self.asked.remove(&token)
        {
            match checked(&self.codec, Some(copy.entry), result) {
                Copied::Failed(_) if copy.tries < CHECK_TRIES && !self.silent.contains(&copy.bookie) => {
                    self.again.push((now + PAUSE, AskedCopy { tries: copy.tries + 1, ..copy }));
                }
                copied => self.copied(copy.entry, copy.bookie, copied),
            }
        }
        for (_, copy) in self.again.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            self.ask_for(copy, effects);
        }
        while self.checking.front().is_some_and(|front| front.waiting == 0) {
            if let Some(done) = self.checking.pop_front() {
                self.finish(&done);
            }
        }
        self.ask(effects);
        self.checking.is_empty().then(|| self.end())
    }

    fn copied(&mut self, entry: EntryId, bookie: BookieId, copied: Copied) {
        let index = usize::try_from(entry.get() - self.first.get()).ok();
        let Some(checking) = index.and_then(|index| self.checking.get_mut(index)) else { return };
        checking.waiting -= 1;
        if matches!(copied, Copied::Failed(_)) {
            self.silent.insert(bookie.clone());
        } else {
            self.silent.remove(&bookie);
        }
        let fault = match copied {
            Copied::Right(opened, packet) => match &checking.found {
                Some((_, first, _)) if *first != packet => CopyFault::Differs,
                _ => {
                    checking.right += 1;
                    self.check.copies += 1;
                    checking.found.get_or_insert((opened.length, packet, opened.payload.len()));
                    return;
                }
            },
            Copied::Absent => CopyFault::Absent,
            Copied::Damaged => CopyFault::Damaged,
            Copied::Failed(error) => CopyFault::Unanswered(error),
        };
        *match fault {
            CopyFault::Absent => &mut self.check.absent,
            CopyFault::Damaged | CopyFault::Differs => &mut self.check.damaged,
            CopyFault::Unanswered(_) => &mut self.check.unanswered,
        } += 1;
        if self.check.bad.len() < CHECK_FAULTS_MAX {
            self.check.bad.push(BadCopy { entry, bookie, fault });
        }
    }

    fn finish(&mut self, done: &Checking) {
        let entry = self.first;
        self.first = entry.next();
        self.check.short += u64::from(done.right < self.check.metadata.quorums.write());
        let Some((length, packet, payload)) = &done.found else {
            self.check.unreadable += 1;
            self.length = None;
            return;
        };
        self.check.bytes += *payload as u64;
        if self.length.is_some_and(|before| before + *payload as u64 != *length) {
            self.check.wrong_length.get_or_insert(entry);
        }
        self.length = Some(*length);
        self.window = (CHECK_BYTES_MAX / packet.len().max(1)).clamp(1, CHECK_ENTRIES_MAX);
    }

    fn end(&mut self) -> LedgerCheck {
        if let LedgerStatus::Closed { length, .. } = self.check.metadata.state
            && self.length.is_some_and(|read| read != length)
        {
            self.check.wrong_length.get_or_insert(self.check.last.next());
        }
        self.check.clone()
    }
}

#[cfg(test)]
mod tests;
