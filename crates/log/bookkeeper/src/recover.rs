//! Recovery: finding the end of a ledger whose writer is gone, or is to be shut out, and closing it there. Nothing that
//! was acknowledged is beyond that end, and nothing more ever will be.
//!
//! ```text
//!  Claiming   the state becomes InRecovery, by compare-and-set: the writer can't change bookies any more
//!  Fencing    all bookies of the last ensemble are asked to fence, until no ack quorum of unfenced ones is left in any
//!             write set; the highest LAC that they tell is where reading begins
//!  Reading    entry by entry, each from its whole write set, every read fencing again; what is found is written
//!             back, as it is, until an ack quorum has it
//!  Measuring  where nothing was found: the length is in the last entry before
//!  Closing    the state becomes Closed, by compare-and-set
//! ```
//!
//! Rules, each of which the simulation breaks on purpose once:
//! - An entry is not there only if `write - ack + 1` bookies of its write set said so ([`BookieError::is_absence`]).
//!   Silence, errors and damaged copies leave it open, and without enough answers the recovery fails.
//! - Reads fence, too. Fencing stops when no ack quorum is left, so a bookie may be unfenced when reading begins. An
//!   entry that was on its way could reach it behind its answer, and be acknowledged with a copy that was there
//!   before.
//! - Everything found is on an ack quorum before the ledger is closed. Who recovers may die at any point: the next one
//!   begins again, and finds at least what was acknowledged.
//! - If the metadata were changed meanwhile somebody else recovers. Closed by them it is done; otherwise it begins
//!   again with what they are now.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;

use crate::append::{AppendTimes, LedgerAppender};
use crate::digest::{EntryCodec, MasterKey};
use crate::ids::{EntryId, LedgerId};
use crate::limits::RECOVERY_READS_MAX;
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::placement::BookiePlaces;
use crate::planted::Planted;
use crate::protocol::{BookieError, BookieRequest};
use crate::read::{Copied, EntryRead, ReadTimes, checked};
use crate::step::{LedgerFault, ReplaceFault, StepEffect, StepInput, VersionedMetadata};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverTimes {
    /// Without any progress, until it fails.
    pub(crate) patience: Duration,
    /// Before a bookie that failed is asked again.
    pub(crate) pause: Duration,
}

/// What a bookie said of an entry or to a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BookieSaid {
    /// It was asked.
    Nothing,
    /// Ask it again from here on.
    Failed(Instant),
    Answered,
    Absent,
}

/// An entry that is looked for.
struct Sought {
    said: Vec<BookieSaid>,
    found: Option<(Bytes, u64)>,
}

enum RecoveryStage {
    Claiming(Box<LedgerMetadata>),
    Fencing {
        said: Vec<BookieSaid>,
        lac: EntryId,
    },
    Reading,
    Measuring(Box<EntryRead>),
    Closing(Box<LedgerMetadata>),
    /// The metadata are read again: somebody may have changed them.
    Rereading,
    Done,
}

/// What an answer is to. The stage is told apart by `round`: what was asked before a new beginning is over.
enum RecoveryAsk {
    Fence(usize),
    Read {
        entry: EntryId,
        position: usize,
    },
    Measure,
    /// The appender's, with its own token.
    WriteBack(u64),
}

/// See the module.
pub(crate) struct Recoverer {
    ledger: LedgerId,
    metadata: LedgerMetadata,
    version: i32,
    key: MasterKey,
    codec: EntryCodec,
    times: RecoverTimes,
    planted: Planted,
    places: BookiePlaces,
    seed: u64,
    stage: RecoveryStage,
    asked: BTreeMap<u64, RecoveryAsk>,
    token: u64,
    sought: BTreeMap<EntryId, Sought>,
    /// The next entry that is written back, and the next one that is looked for.
    next: EntryId,
    ahead: EntryId,
    /// Entries up to here are known to be acknowledged: one that is not there is lost.
    lac: EntryId,
    /// The last entry of the ledger, once it is known.
    end: Option<EntryId>,
    length: u64,
    appender: Option<LedgerAppender>,
    progress_at: Instant,
    last: BookieError,
    reread_at: Option<Instant>,
    result: Option<Result<LedgerMetadata, LedgerFault>>,
}

impl Recoverer {
    /// Begins with metadata as they were read.
    pub(crate) fn new(
        ledger: LedgerId,
        VersionedMetadata { metadata, version }: VersionedMetadata,
        times: RecoverTimes,
        seed: u64,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let mut recoverer = Self {
            ledger,
            key: MasterKey::of(&metadata.password),
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            metadata,
            version,
            times,
            planted: Planted::Nothing,
            places: BookiePlaces::default(),
            seed,
            stage: RecoveryStage::Rereading,
            asked: BTreeMap::new(),
            token: 0,
            sought: BTreeMap::new(),
            next: EntryId::FIRST,
            ahead: EntryId::FIRST,
            lac: EntryId::NONE,
            end: None,
            length: 0,
            appender: None,
            progress_at: now,
            last: BookieError::TimedOut,
            reread_at: None,
            result: None,
        };
        recoverer.begin(now, effects);
        recoverer
    }

    /// It is known where bookies are.
    pub(crate) fn place(&mut self, places: BookiePlaces) {
        self.places = places;
    }

    /// From here on it makes a mistake.
    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// What came of it: the closed ledger's metadata.
    pub(crate) fn result(&self) -> Option<&Result<LedgerMetadata, LedgerFault>> {
        self.result.as_ref()
    }

    fn done(&mut self, result: Result<LedgerMetadata, LedgerFault>) {
        self.stage = RecoveryStage::Done;
        self.asked.clear();
        self.result = Some(result);
    }

    /// From the start, with `self.metadata`.
    fn begin(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        self.asked.clear();
        self.sought.clear();
        (self.appender, self.end, self.length) = (None, None, 0);
        self.progress_at = now;
        match self.metadata.state {
            LedgerStatus::Closed { .. } => self.done(Ok(self.metadata.clone())),
            // Of several that recover it the first to close it wins; the others find it closed.
            LedgerStatus::InRecovery => self.begin_fencing(now, effects),
            LedgerStatus::Open => {
                let mut wanted = Box::new(self.metadata.clone());
                wanted.state = LedgerStatus::InRecovery;
                effects.push(StepEffect::Replace { metadata: wanted.clone(), version: self.version });
                self.stage = RecoveryStage::Claiming(wanted);
            }
        }
    }

    /// What happened; [`Recoverer::result`] says what came of it.
    pub(crate) fn step(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) {
        if self.result.is_some() {
            return;
        }
        match input {
            StepInput::Answer { token, result } => match self.asked.remove(&token) {
                Some(RecoveryAsk::Fence(position)) => self.fenced(now, position, result),
                Some(RecoveryAsk::Read { entry, position }) => self.read(now, entry, position, result),
                Some(RecoveryAsk::Measure) => {
                    self.measure(now, StepInput::Answer { token, result }, effects);
                }
                Some(RecoveryAsk::WriteBack(token)) => {
                    self.write_back(now, StepInput::Answer { token, result }, effects)
                }
                None => {}
            },
            StepInput::Bookies(bookies) => self.write_back(now, StepInput::Bookies(bookies), effects),
            StepInput::Replaced(result) => self.replaced(now, result, effects),
            StepInput::Reread(result) => self.reread(now, result, effects),
            StepInput::Tick => self.tick(now, effects),
        }
        self.go_on(now, effects);
    }

    fn ask(
        &mut self,
        asked: RecoveryAsk,
        position: usize,
        entry: EntryId,
        fence: bool,
        effects: &mut Vec<StepEffect>,
    ) {
        // Fencing and reading are about the last ensemble only: before it everything was acknowledged.
        let Some(bookie) = self.metadata.last_ensemble().1.get(position).cloned() else { return };
        self.token += 1;
        self.asked.insert(self.token, asked);
        let fence = fence.then(|| self.key.clone());
        let request = BookieRequest::Read { ledger: self.ledger, entry, fence };
        effects.push(StepEffect::Ask { token: self.token, bookie, request });
    }

    fn replaced(&mut self, now: Instant, result: Result<i32, ReplaceFault>, effects: &mut Vec<StepEffect>) {
        match (std::mem::replace(&mut self.stage, RecoveryStage::Rereading), result) {
            (RecoveryStage::Claiming(wanted), Ok(version)) => {
                (self.metadata, self.version) = (*wanted, version);
                self.begin_fencing(now, effects);
            }
            (RecoveryStage::Closing(wanted), Ok(_)) => self.done(Ok(*wanted)),
            (RecoveryStage::Claiming(_) | RecoveryStage::Closing(_), Err(_)) => {
                effects.push(StepEffect::Reread)
            }
            (stage, _) => self.stage = stage,
        }
    }

    fn reread(
        &mut self,
        now: Instant,
        result: Result<VersionedMetadata, LedgerFault>,
        effects: &mut Vec<StepEffect>,
    ) {
        if !matches!(self.stage, RecoveryStage::Rereading) {
            return;
        }
        match result {
            Ok(VersionedMetadata { metadata, version }) => {
                (self.metadata, self.version) = (metadata, version);
                self.begin(now, effects);
            }
            Err(fault @ (LedgerFault::NoLedger | LedgerFault::Metadata(_))) => self.done(Err(fault)),
            Err(_) => self.reread_at = Some(now + self.times.pause),
        }
    }

    fn begin_fencing(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        let (first, ensemble) = self.metadata.last_ensemble();
        let (lac, bookies) = (first.previous(), ensemble.len());
        self.progress_at = now;
        self.stage = RecoveryStage::Fencing { said: vec![BookieSaid::Nothing; bookies], lac };
        for position in 0..bookies {
            self.ask(RecoveryAsk::Fence(position), position, EntryId::NONE, true, effects);
        }
    }

    fn fenced(
        &mut self,
        now: Instant,
        position: usize,
        result: Result<crate::protocol::BookieAnswer, BookieError>,
    ) {
        let copied = checked(&self.codec, None, result);
        let RecoveryStage::Fencing { said, lac } = &mut self.stage else { return };
        said[position] = match copied {
            Copied::Right(entry, _) => {
                *lac = (*lac).max(entry.lac);
                BookieSaid::Answered
            }
            // Fenced it is; where reading begins others say.
            Copied::Damaged => BookieSaid::Answered,
            Copied::Absent => BookieSaid::Absent,
            Copied::Failed(error) => {
                self.last = error;
                BookieSaid::Failed(now + self.times.pause)
            }
        };
        if said[position] == BookieSaid::Answered || said[position] == BookieSaid::Absent {
            self.progress_at = now;
        }
    }

    fn is_fenced(&self, said: &[BookieSaid]) -> bool {
        let answered = said
            .iter()
            .enumerate()
            .filter(|(_, said)| matches!(said, BookieSaid::Answered | BookieSaid::Absent))
            .fold(0_u64, |bits, (position, _)| bits | 1 << position);
        let quorums = self.metadata.quorums;
        match self.planted {
            Planted::FenceOne => answered != 0,
            Planted::FenceOneSet => {
                let silent = quorums.write_set(EntryId::FIRST).filter(|at| answered & (1 << at) == 0);
                silent.count() < quorums.ack()
            }
            _ => quorums.covered(answered),
        }
    }

    fn read(
        &mut self,
        now: Instant,
        entry: EntryId,
        position: usize,
        result: Result<crate::protocol::BookieAnswer, BookieError>,
    ) {
        let copied = checked(&self.codec, Some(entry), result);
        let Some(sought) = self.sought.get_mut(&entry) else { return };
        match copied {
            Copied::Right(opened, packet) => {
                sought.found = Some((packet, opened.length));
                sought.said[position] = BookieSaid::Answered;
            }
            Copied::Absent => sought.said[position] = BookieSaid::Absent,
            Copied::Damaged => {
                self.last = BookieError::Malformed("the copy of an entry is damaged");
                sought.said[position] = BookieSaid::Failed(now + self.times.pause);
                return;
            }
            Copied::Failed(error) => {
                self.last = error;
                sought.said[position] = if self.planted == Planted::SilenceEnds {
                    BookieSaid::Absent
                } else {
                    BookieSaid::Failed(now + self.times.pause)
                };
                return;
            }
        }
        self.progress_at = now;
    }

    fn write_back(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) {
        let Some(appender) = &mut self.appender else { return };
        let before = appender.lac();
        let mut own = Vec::new();
        appender.step(now, input, &mut own);
        if appender.lac() > before {
            self.progress_at = now;
        }
        self.renumber(own, effects);
    }

    /// Answers to the appender come back through our own tokens.
    fn renumber(&mut self, own: Vec<StepEffect>, effects: &mut Vec<StepEffect>) {
        for effect in own {
            match effect {
                StepEffect::Ask { token, bookie, request } => {
                    self.token += 1;
                    self.asked.insert(self.token, RecoveryAsk::WriteBack(token));
                    effects.push(StepEffect::Ask { token: self.token, bookie, request });
                }
                other => effects.push(other),
            }
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if now.since(self.progress_at) > self.times.patience {
            let last = self.last;
            return self.done(Err(LedgerFault::Unanswered { what: "recovering the ledger", last }));
        }
        if crate::step::is_due(self.reread_at, now) && matches!(self.stage, RecoveryStage::Rereading) {
            self.reread_at = None;
            effects.push(StepEffect::Reread);
        }
        self.write_back(now, StepInput::Tick, effects);
        self.ask_again(now, effects);
        if matches!(self.stage, RecoveryStage::Measuring(_)) {
            self.measure(now, StepInput::Tick, effects);
        }
    }

    fn ask_again(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        let due = |said: &mut Vec<BookieSaid>| -> Vec<usize> {
            let due = |said: &BookieSaid| matches!(said, BookieSaid::Failed(at) if now >= *at);
            let positions: Vec<usize> = (0..said.len()).filter(|position| due(&said[*position])).collect();
            positions.iter().for_each(|position| said[*position] = BookieSaid::Nothing);
            positions
        };
        let mut again = Vec::new();
        if let RecoveryStage::Fencing { said, .. } = &mut self.stage {
            again.extend(
                due(said).into_iter().map(|position| (RecoveryAsk::Fence(position), position, EntryId::NONE)),
            );
        }
        for (entry, sought) in self.sought.iter_mut().filter(|(_, sought)| sought.found.is_none()) {
            let read = |position| (RecoveryAsk::Read { entry: *entry, position }, position, *entry);
            again.extend(due(&mut sought.said).into_iter().map(read));
        }
        for (asked, position, entry) in again {
            let fence = entry == EntryId::NONE || self.planted != Planted::ReadsDoNotFence;
            self.ask(asked, position, entry, fence, effects);
        }
    }

    /// From one stage into the next, when it is over.
    fn go_on(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let RecoveryStage::Fencing { said, lac } = &self.stage
            && self.is_fenced(said)
        {
            let lac = *lac;
            let first = self.metadata.last_ensemble().0;
            self.lac = lac;
            // From the last one that is known to be acknowledged on: the ledger's length is in it.
            self.next = lac.max(first);
            self.ahead = self.next;
            let versioned = VersionedMetadata { metadata: self.metadata.clone(), version: self.version };
            let times =
                AppendTimes { entry: self.times.patience, pause: self.times.pause, lac: self.times.patience };
            self.appender = Some(
                LedgerAppender::recovering(self.ledger, versioned, self.next, times, self.seed, now)
                    .with_places(self.places.clone()),
            );
            self.stage = RecoveryStage::Reading;
        }
        if matches!(self.stage, RecoveryStage::Reading) {
            self.go_on_reading(now, effects);
        }
    }

    fn go_on_reading(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        let quorums = self.metadata.quorums;
        let enough = if self.planted == Planted::OneAbsence { 1 } else { quorums.absent() };
        while self.end.is_none() {
            let Some(sought) = self.sought.get_mut(&self.next) else { break };
            if let Some((packet, length)) = sought.found.take() {
                self.sought.remove(&self.next);
                self.next = self.next.next();
                self.length = length;
                let mut own = Vec::new();
                if let Some(appender) = &mut self.appender
                    && self.planted != Planted::NotWrittenBack
                {
                    appender.append_found(now, packet, length, &mut own);
                }
                self.renumber(own, effects);
            } else if sought.said.iter().filter(|said| **said == BookieSaid::Absent).count() >= enough {
                if self.next <= self.lac {
                    return self.done(Err(LedgerFault::Lost(self.next)));
                }
                self.end = Some(self.next.previous());
                self.sought.clear();
            } else {
                break;
            }
        }
        let unacked = self.appender.as_ref().map_or(0, LedgerAppender::unacked);
        while self.end.is_none() && self.sought.len() + unacked < RECOVERY_READS_MAX {
            let entry = self.ahead;
            self.ahead = entry.next();
            // Places that are not in the write set have nothing to say.
            self.sought
                .insert(entry, Sought { said: vec![BookieSaid::Answered; quorums.ensemble()], found: None });
            for position in quorums.write_set(entry) {
                if let Some(sought) = self.sought.get_mut(&entry) {
                    sought.said[position] = BookieSaid::Nothing;
                }
                let fence = self.planted != Planted::ReadsDoNotFence;
                self.ask(RecoveryAsk::Read { entry, position }, position, entry, fence, effects);
            }
        }
        if let Some(failure) = self.appender.as_ref().and_then(LedgerAppender::failure).cloned() {
            return self.done(Err(failure));
        }
        if let Some(end) = self.end
            && unacked == 0
        {
            self.begin_closing(now, end, effects);
        }
    }

    fn begin_closing(&mut self, now: Instant, end: EntryId, effects: &mut Vec<StepEffect>) {
        if end.is_some() && end < self.metadata.last_ensemble().0 {
            // Nothing in the last ensemble: the last entry is in the one before it.
            let times = ReadTimes { speculative: self.times.pause, all: self.times.patience };
            let mut own = Vec::new();
            let read = EntryRead::new(self.ledger, end, &self.metadata, 0, times, now, &mut own);
            self.stage = RecoveryStage::Measuring(Box::new(read));
            return self.renumber_measure(own, effects);
        }
        self.close(end, effects);
    }

    fn renumber_measure(&mut self, own: Vec<StepEffect>, effects: &mut Vec<StepEffect>) {
        for effect in own {
            if let StepEffect::Ask { bookie, request, .. } = effect {
                self.token += 1;
                self.asked.insert(self.token, RecoveryAsk::Measure);
                effects.push(StepEffect::Ask { token: self.token, bookie, request });
            }
        }
    }

    fn measure(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) {
        let RecoveryStage::Measuring(read) = &mut self.stage else { return };
        let mut own = Vec::new();
        match read.step(now, input, &mut own) {
            Some(Ok(entry)) => {
                self.length = entry.length;
                self.close(entry.entry, effects);
            }
            Some(Err(fault)) => self.done(Err(fault)),
            None => self.renumber_measure(own, effects),
        }
    }

    fn close(&mut self, end: EntryId, effects: &mut Vec<StepEffect>) {
        let metadata = self.appender.as_ref().map_or(&self.metadata, LedgerAppender::metadata);
        let wanted = Box::new(metadata.closed(end, self.length));
        let version = if self.planted == Planted::NoCompare { -1 } else { self.version };
        effects.push(StepEffect::Replace { metadata: wanted.clone(), version });
        self.stage = RecoveryStage::Closing(wanted);
    }
}
