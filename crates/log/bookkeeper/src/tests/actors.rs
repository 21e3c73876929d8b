//! Who acts in the simulated world: each drives one state machine.

use std::collections::BTreeMap;

use tailwater_env::Instant;

use super::world::{ms, payload};
use crate::append::{AppendTimes, LedgerAppender};
use crate::digest::LedgerEntry;
use crate::ids::{EntryId, LedgerId};
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::planted::Planted;
use crate::read::{EntryRead, LacRead, ReadTimes};
use crate::recover::{RecoverTimes, Recoverer};
use crate::step::{LedgerFault, StepEffect, StepInput, VersionedMetadata};

const READ_TIMES: ReadTimes = ReadTimes { speculative: ms(20), all: ms(400) };

/// One who acts.
pub struct Actor {
    pub role: Role,
    /// It does nothing any more.
    pub dead: bool,
    /// Requests that were not answered: the world's number of each, and its own token.
    pub waits_for: BTreeMap<u64, u64>,
}

/// What it does.
pub enum Role {
    Writer { appender: Box<LedgerAppender>, next: EntryId, closing: bool },
    Recoverer(Box<Recoverer>),
    Reader(Box<ModelReader>),
}

/// Finds the LAC and then reads the entry there.
pub struct ModelReader {
    ledger: LedgerId,
    metadata: LedgerMetadata,
    stage: ReaderStage,
    news: Heard,
}

enum ReaderStage {
    Lac(LacRead),
    Entry(EntryRead),
    Done,
}

/// What came of a step that others have to agree with.
#[derive(Debug)]
pub enum Heard {
    /// Entries up to here are acknowledged.
    Acked(EntryId),
    /// A reader was told this LAC.
    Lac(EntryId),
    /// A reader got this entry, by the metadata that it had.
    Entry(Box<(Result<LedgerEntry, LedgerFault>, LedgerMetadata)>),
    Nothing,
}

impl Role {
    pub fn writer(ledger: LedgerId, versioned: VersionedMetadata, planted: Planted, now: Instant) -> Self {
        let times = AppendTimes { entry: ms(1_000), pause: ms(40), lac: ms(30) };
        let mut appender = Box::new(LedgerAppender::new(ledger, versioned, times, 1, now));
        appender.plant(planted);
        Self::Writer { appender, next: EntryId::FIRST, closing: false }
    }

    pub fn recoverer(
        ledger: LedgerId,
        versioned: VersionedMetadata,
        planted: Planted,
        seed: u64,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let times = RecoverTimes { patience: ms(800), pause: ms(20) };
        let mut recoverer = Box::new(Recoverer::new(ledger, versioned, times, seed, now, effects));
        recoverer.plant(planted);
        Self::Recoverer(recoverer)
    }

    pub fn reader(
        ledger: LedgerId,
        metadata: LedgerMetadata,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let stage = match metadata.state {
            LedgerStatus::Closed { last, .. } if last.is_some() => {
                ReaderStage::Entry(EntryRead::new(ledger, last, &metadata, 0, READ_TIMES, now, effects))
            }
            LedgerStatus::Closed { .. } => ReaderStage::Done,
            _ => ReaderStage::Lac(LacRead::new(ledger, &metadata, READ_TIMES, now, effects)),
        };
        Self::Reader(Box::new(ModelReader { ledger, metadata, stage, news: Heard::Nothing }))
    }
}

impl Actor {
    pub fn new(role: Role) -> Self {
        Self { role, dead: false, waits_for: BTreeMap::new() }
    }

    pub fn recovers(&self) -> bool {
        matches!(self.role, Role::Recoverer(_))
    }

    /// How its recovery ended.
    pub fn recovered(&self) -> Option<&Result<LedgerMetadata, LedgerFault>> {
        match &self.role {
            Role::Recoverer(recoverer) => recoverer.result(),
            _ => None,
        }
    }

    pub fn has_recovered(&self) -> bool {
        self.recovered().is_some()
    }

    pub fn append(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let Role::Writer { appender, next, closing: false } = &mut self.role
            && appender.failure().is_none()
        {
            appender.append(now, &payload(*next), effects);
            *next = next.next();
        }
    }

    pub fn close(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let Role::Writer { appender, closing, .. } = &mut self.role
            && appender.failure().is_none()
        {
            *closing = true;
            appender.close(now, effects);
        }
    }

    pub fn step(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) {
        match &mut self.role {
            Role::Writer { appender, .. } => appender.step(now, input, effects),
            Role::Recoverer(recoverer) => recoverer.step(now, input, effects),
            Role::Reader(reader) => {
                if reader.step(now, input, effects) {
                    self.waits_for.clear();
                }
            }
        }
    }

    /// What it learned.
    pub fn heard(&mut self) -> Heard {
        match &mut self.role {
            Role::Writer { appender, .. } => Heard::Acked(appender.lac()),
            Role::Recoverer(_) => Heard::Nothing,
            Role::Reader(reader) => std::mem::replace(&mut reader.news, Heard::Nothing),
        }
    }
}

impl ModelReader {
    /// Whether what was asked before does not matter any more.
    fn step(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) -> bool {
        match &mut self.stage {
            ReaderStage::Lac(read) => match read.step(now, input) {
                Some(Ok(lac)) if lac.is_some() => {
                    self.news = Heard::Lac(lac);
                    let read = EntryRead::new(self.ledger, lac, &self.metadata, 0, READ_TIMES, now, effects);
                    self.stage = ReaderStage::Entry(read);
                    return true;
                }
                Some(_) => self.stage = ReaderStage::Done,
                None => {}
            },
            ReaderStage::Entry(read) => {
                if let Some(result) = read.step(now, input, effects) {
                    self.news = Heard::Entry(Box::new((result, self.metadata.clone())));
                    self.stage = ReaderStage::Done;
                }
            }
            ReaderStage::Done => {}
        }
        false
    }
}
