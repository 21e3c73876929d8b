//! Appending to a ledger: the state machine of its writer, and of the half of a recovery that writes back.
//!
//! What holds:
//! - An entry is sent to its write set, and acknowledged when an ack quorum of it has it durably and everything before
//!   it is acknowledged. The LAC is the last one acknowledged; each packet carries it.
//! - A bookie that fails an add is replaced. The new ensemble begins with the first entry that is not acknowledged:
//!   the change is one compare-and-set of the metadata, nothing is acknowledged while it is on its way, and what the
//!   replaced bookie has acknowledged of these entries counts no more. They are sent to the new bookie.
//! - Without a bookie to replace it by, entries go on to the others, as long as they can have their ack quorum.
//! - The bookie itself may take the place again, after a pause, by the same compare-and-set: whoever recovers the
//!   ledger has changed the metadata before, so no writer goes on that has been fenced meanwhile.
//! - Once it failed it does nothing more. What is beyond its LAC may or may not be in the ledger: a recovery says.
//!
//! Driven by [`crate::writer`] and by [`crate::recover`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;

use crate::digest::{EntryCodec, MasterKey};
use crate::ids::{BookieId, EntryId, LedgerId, Quorums};
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::placement::BookiePlaces;
use crate::planted::Planted;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};
use crate::step::{Choice, LedgerFault, ReplaceFault, StepEffect, StepInput, VersionedMetadata, is_due};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendTimes {
    /// Until an entry has its ack quorum; then the writer fails.
    pub(crate) entry: Duration,
    /// A bookie that failed is not chosen again for so long, and what could not be done is tried again.
    pub(crate) pause: Duration,
    /// Without another entry the LAC is sent by itself after so long.
    pub(crate) lac: Duration,
}

/// An entry that is not acknowledged.
struct UnackedEntry {
    entry: EntryId,
    packet: Bytes,
    /// Of the ledger, with this entry.
    length: u64,
    since: Instant,
    /// The positions that have it, as bits.
    acked: u64,
    /// The positions to which it is sent again at the next tick.
    again: u64,
}

/// What a token stands for.
#[derive(Clone, Copy)]
enum AppendSent {
    Add { entry: EntryId, position: usize },
    Lac,
}

/// How far a change of metadata is.
enum EnsembleChange {
    None,
    /// The bookies that take entries are asked for.
    Listing,
    /// New metadata are on their way.
    Replacing {
        wanted: Box<LedgerMetadata>,
        positions: Vec<usize>,
        closing: bool,
    },
    /// What became of `wanted` is not known.
    Rereading {
        wanted: Box<LedgerMetadata>,
        positions: Vec<usize>,
        closing: bool,
    },
}

/// A place of the ensemble whose bookie failed an add.
struct FailedPlace {
    /// It may be tried again from here on.
    until: Instant,
}

/// See the module.
pub(crate) struct LedgerAppender {
    ledger: LedgerId,
    codec: EntryCodec,
    key: MasterKey,
    times: AppendTimes,
    planted: Planted,
    choice: Choice,
    places: BookiePlaces,
    /// Writes back what a recovery found: changes of bookies stay here, and whoever recovers commits them.
    recovering: bool,
    metadata: LedgerMetadata,
    version: i32,
    ensemble: Vec<BookieId>,
    failed: BTreeMap<usize, FailedPlace>,
    pauses: BTreeMap<BookieId, Instant>,
    change: EnsembleChange,
    retry_at: Option<Instant>,
    next: EntryId,
    lac: EntryId,
    /// Payload bytes up to the last entry sent, and up to the last one acknowledged.
    length: u64,
    length_acked: u64,
    /// The highest LAC that a packet has told.
    lac_told: EntryId,
    told_at: Instant,
    unacked: VecDeque<UnackedEntry>,
    sent: BTreeMap<u64, AppendSent>,
    token: u64,
    closing: bool,
    closed: bool,
    failure: Option<LedgerFault>,
}

impl LedgerAppender {
    /// The writer of a ledger that it has just created.
    pub(crate) fn new(
        ledger: LedgerId,
        VersionedMetadata { metadata, version }: VersionedMetadata,
        times: AppendTimes,
        seed: u64,
        now: Instant,
    ) -> Self {
        let ensemble = metadata.last_ensemble().1.to_vec();
        Self {
            ledger,
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            key: MasterKey::of(&metadata.password),
            times,
            planted: Planted::Nothing,
            choice: Choice::new(seed),
            places: BookiePlaces::default(),
            recovering: false,
            metadata,
            version,
            ensemble,
            failed: BTreeMap::new(),
            pauses: BTreeMap::new(),
            change: EnsembleChange::None,
            retry_at: None,
            next: EntryId::FIRST,
            lac: EntryId::NONE,
            length: 0,
            length_acked: 0,
            lac_told: EntryId::NONE,
            told_at: now,
            unacked: VecDeque::new(),
            sent: BTreeMap::new(),
            token: 0,
            closing: false,
            closed: false,
            failure: None,
        }
    }

    /// One that writes back the entries from `next` on, for whoever recovers the ledger.
    pub(crate) fn recovering(
        ledger: LedgerId,
        versioned: VersionedMetadata,
        next: EntryId,
        times: AppendTimes,
        seed: u64,
        now: Instant,
    ) -> Self {
        let mut appender = Self::new(ledger, versioned, times, seed, now);
        (appender.recovering, appender.next, appender.lac) = (true, next, next.previous());
        appender.lac_told = appender.lac;
        appender
    }

    /// The same where it is known where bookies are.
    #[must_use]
    pub(crate) fn with_places(mut self, places: BookiePlaces) -> Self {
        self.places = places;
        self
    }

    /// From here on it makes a mistake.
    #[cfg(test)]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The last entry that is acknowledged.
    pub(crate) fn lac(&self) -> EntryId {
        self.lac
    }

    /// Why it ended.
    pub(crate) fn failure(&self) -> Option<&LedgerFault> {
        self.failure.as_ref()
    }

    /// Whether the ledger is closed, as [`LedgerAppender::close`] wanted it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Entries that are not acknowledged.
    pub(crate) fn unacked(&self) -> usize {
        self.unacked.len()
    }

    /// The metadata with the changes of bookies so far.
    pub(crate) fn metadata(&self) -> &LedgerMetadata {
        &self.metadata
    }

    /// Whether time has to be told: something waits.
    pub(crate) fn needs_ticks(&self) -> bool {
        let waits =
            !self.unacked.is_empty() || self.closing || !self.failed.is_empty() || self.lac > self.lac_told;
        self.failure.is_none() && !self.closed && waits
    }

    /// Sends an entry; its number. Not behind [`LedgerAppender::close`].
    pub(crate) fn append(&mut self, now: Instant, payload: &[u8], effects: &mut Vec<StepEffect>) -> EntryId {
        debug_assert!(!self.closing, "an entry behind the end");
        let entry = self.next;
        self.length += payload.len() as u64;
        let packet = self.codec.pack(entry, self.lac, self.length, payload);
        (self.lac_told, self.told_at) = (self.lac, now);
        self.push(now, packet, self.length, effects);
        entry
    }

    /// Writes back an entry that was found, as it was found: all copies of an entry are the same bytes.
    pub(crate) fn append_found(
        &mut self,
        now: Instant,
        packet: Bytes,
        length: u64,
        effects: &mut Vec<StepEffect>,
    ) {
        self.length = length;
        self.push(now, packet, length, effects);
    }

    fn push(&mut self, now: Instant, packet: Bytes, length: u64, effects: &mut Vec<StepEffect>) {
        let entry = self.next;
        self.next = entry.next();
        if self.failure.is_some() {
            return;
        }
        self.unacked.push_back(UnackedEntry { entry, packet, length, since: now, acked: 0, again: 0 });
        for position in self.quorums().write_set(entry) {
            self.send(self.unacked.len() - 1, position, effects);
        }
    }

    fn quorums(&self) -> Quorums {
        self.metadata.quorums
    }

    fn ask(
        &mut self,
        sent: AppendSent,
        position: usize,
        request: BookieRequest,
        effects: &mut Vec<StepEffect>,
    ) {
        self.token += 1;
        self.sent.insert(self.token, sent);
        effects.push(StepEffect::Ask { token: self.token, bookie: self.ensemble[position].clone(), request });
    }

    /// Sends an unacknowledged entry to a place, unless the bookie there has failed.
    fn send(&mut self, index: usize, position: usize, effects: &mut Vec<StepEffect>) {
        if self.failed.contains_key(&position) {
            return;
        }
        let UnackedEntry { entry, packet, .. } = &self.unacked[index];
        let (entry, packet) = (*entry, packet.clone());
        let request = BookieRequest::Add {
            ledger: self.ledger,
            entry,
            packet,
            key: self.key.clone(),
            recovery: self.recovering,
        };
        self.ask(AppendSent::Add { entry, position }, position, request, effects);
    }

    /// What happened; [`LedgerAppender::lac`], [`LedgerAppender::failure`] and [`LedgerAppender::is_closed`] say what
    /// came of it.
    pub(crate) fn step(&mut self, now: Instant, input: StepInput, effects: &mut Vec<StepEffect>) {
        if self.failure.is_some() || self.closed {
            return;
        }
        match input {
            StepInput::Answer { token, result } => self.answered(now, token, result, effects),
            StepInput::Bookies(bookies) => self.listed(now, bookies, effects),
            StepInput::Replaced(result) => self.replaced(now, result, effects),
            StepInput::Reread(result) => self.reread(now, result, effects),
            StepInput::Tick => self.tick(now, effects),
        }
        self.advance(now, effects);
    }

    /// No more entries; when all are acknowledged the ledger is closed.
    pub(crate) fn close(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        self.closing = true;
        self.advance(now, effects);
    }

    fn answered(
        &mut self,
        now: Instant,
        token: u64,
        result: Result<BookieAnswer, BookieError>,
        effects: &mut Vec<StepEffect>,
    ) {
        // Of a bookie that was replaced: no longer known.
        let Some(sent) = self.sent.remove(&token) else { return };
        let position = match (sent, result) {
            (_, Err(BookieError::Fenced)) => return self.fail(LedgerFault::Fenced),
            // An explicit LAC is a hint: the next packet tells it, too.
            (AppendSent::Lac, _) => return,
            (AppendSent::Add { entry, position }, Ok(BookieAnswer::Added)) => {
                if let Some(unacked) = self.unacked_mut(entry) {
                    unacked.acked |= 1 << position;
                }
                return;
            }
            (AppendSent::Add { entry, position }, Err(BookieError::Overloaded)) => {
                if let Some(unacked) = self.unacked_mut(entry) {
                    unacked.again |= 1 << position;
                }
                return;
            }
            (AppendSent::Add { entry, position }, result) => {
                let bookie = &self.ensemble[position];
                tracing::debug!(ledger = %self.ledger, %entry, %bookie, why = ?result.err(), "an add failed");
                position
            }
        };
        let until = now + self.times.pause;
        self.pauses.insert(self.ensemble[position].clone(), until);
        self.failed.entry(position).or_insert(FailedPlace { until });
        self.begin_change(effects);
    }

    fn unacked_mut(&mut self, entry: EntryId) -> Option<&mut UnackedEntry> {
        let front = self.unacked.front()?.entry.get();
        let index = usize::try_from(entry.get() - front).ok()?;
        self.unacked.get_mut(index)
    }

    fn fail(&mut self, failure: LedgerFault) {
        self.failure = Some(failure);
        self.sent.clear();
        self.unacked.clear();
    }

    fn begin_change(&mut self, effects: &mut Vec<StepEffect>) {
        if matches!(self.change, EnsembleChange::None) && !self.failed.is_empty() {
            self.change = EnsembleChange::Listing;
            effects.push(StepEffect::ListBookies);
        }
    }

    /// Chooses bookies for the places that need another one.
    fn listed(&mut self, now: Instant, bookies: Option<Vec<BookieId>>, effects: &mut Vec<StepEffect>) {
        if !matches!(self.change, EnsembleChange::Listing) {
            return;
        }
        self.change = EnsembleChange::None;
        self.pauses.retain(|_, until| *until > now);
        let mut free: Vec<BookieId> = bookies.clone().unwrap_or_default();
        free.retain(|bookie| !self.ensemble.contains(bookie) && !self.pauses.contains_key(bookie));
        free.sort();
        let mut ensemble = self.ensemble.clone();
        let mut positions = Vec::new();
        for (position, place) in &self.failed {
            let quorums = self.metadata.quorums;
            let chosen = self.places.replace(quorums, &ensemble, *position, &mut free, &mut self.choice);
            if let Some(bookie) = chosen {
                ensemble[*position] = bookie;
            } else if now < place.until || !bookies.iter().flatten().any(|of| *of == ensemble[*position]) {
                // Nobody else, and not this one yet.
                continue;
            }
            positions.push(*position);
        }
        if positions.is_empty() {
            self.retry_at = Some(now + self.times.pause);
            return;
        }
        let first = if self.planted == Planted::EnsembleTooLate { self.next } else { self.lac.next() };
        let mut wanted = Box::new(self.metadata.clone());
        if !wanted.set_ensemble(first, ensemble) {
            return self.fail(LedgerFault::TooManyEnsembles);
        }
        if self.recovering {
            return self.adopt(now, *wanted, self.version, &positions, effects);
        }
        effects.push(StepEffect::Replace { metadata: wanted.clone(), version: self.version });
        self.change = EnsembleChange::Replacing { wanted, positions, closing: false };
    }

    /// The metadata are these: what places changed begins anew there.
    fn adopt(
        &mut self,
        now: Instant,
        metadata: LedgerMetadata,
        version: i32,
        positions: &[usize],
        effects: &mut Vec<StepEffect>,
    ) {
        (self.metadata, self.version) = (metadata, version);
        let ensemble = self.metadata.last_ensemble().1.to_vec();
        let changed: Vec<usize> = (0..ensemble.len())
            .filter(|position| {
                positions.contains(position) || ensemble[*position] != self.ensemble[*position]
            })
            .collect();
        let before = std::mem::replace(&mut self.ensemble, ensemble);
        for position in changed {
            // The same bookie once more is no reason to be patient for longer.
            let is_another = before[position] != self.ensemble[position];
            self.failed.remove(&position);
            self.sent
                .retain(|_, sent| !matches!(sent, AppendSent::Add { position: of, .. } if *of == position));
            for index in 0..self.unacked.len() {
                let unacked = &mut self.unacked[index];
                if self.planted != Planted::ReplacedCounts {
                    unacked.acked &= !(1 << position);
                }
                unacked.again &= !(1 << position);
                if is_another {
                    unacked.since = now;
                }
                if self.metadata.quorums.holds(unacked.entry, position) {
                    self.send(index, position, effects);
                }
            }
        }
        self.change = EnsembleChange::None;
        self.begin_change(effects);
    }

    fn replaced(&mut self, now: Instant, result: Result<i32, ReplaceFault>, effects: &mut Vec<StepEffect>) {
        let EnsembleChange::Replacing { wanted, positions, closing } =
            std::mem::replace(&mut self.change, EnsembleChange::None)
        else {
            return;
        };
        match result {
            Ok(_) if closing => self.closed = true,
            Ok(version) => self.adopt(now, *wanted, version, &positions, effects),
            Err(ReplaceFault::Conflict | ReplaceFault::Unknown) => {
                self.change = EnsembleChange::Rereading { wanted, positions, closing };
                effects.push(StepEffect::Reread);
            }
        }
    }

    fn reread(
        &mut self,
        now: Instant,
        result: Result<VersionedMetadata, LedgerFault>,
        effects: &mut Vec<StepEffect>,
    ) {
        let EnsembleChange::Rereading { wanted, positions, closing } =
            std::mem::replace(&mut self.change, EnsembleChange::None)
        else {
            return;
        };
        match result {
            // The answer was lost, or somebody did the same.
            Ok(found) if found.metadata == *wanted && closing => self.closed = true,
            Ok(found) if found.metadata == *wanted => {
                self.adopt(now, *wanted, found.version, &positions, effects);
            }
            Ok(VersionedMetadata { metadata, .. }) if metadata.state != LedgerStatus::Open => {
                // A recovery that ended where we would have closed it did what we wanted.
                let same = closing && metadata.state == wanted.state;
                if same { self.closed = true } else { self.fail(LedgerFault::Fenced) }
            }
            // Somebody moved copies to other bookies.
            Ok(VersionedMetadata { metadata, version }) => self.adopt(now, metadata, version, &[], effects),
            Err(LedgerFault::NoLedger) => self.fail(LedgerFault::NoLedger),
            Err(_) => {
                self.change = EnsembleChange::Rereading { wanted, positions, closing };
                self.retry_at = Some(now + self.times.pause);
            }
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let Some(front) = self.unacked.front()
            && now.since(front.since) > self.times.entry
        {
            let entry = front.entry;
            return self.fail(LedgerFault::NoQuorum { entry });
        }
        if self.unacked.iter().any(|unacked| unacked.again != 0) {
            for index in 0..self.unacked.len() {
                let again = std::mem::take(&mut self.unacked[index].again);
                for position in (0..self.ensemble.len()).filter(|position| again & (1 << position) != 0) {
                    self.send(index, position, effects);
                }
            }
        }
        if is_due(self.retry_at, now) {
            self.retry_at = None;
            match self.change {
                EnsembleChange::Rereading { .. } => effects.push(StepEffect::Reread),
                _ => self.begin_change(effects),
            }
        }
        let idle = self.unacked.is_empty() && now.since(self.told_at) >= self.times.lac;
        if idle && self.lac > self.lac_told && !self.recovering {
            self.tell_lac(now, effects);
        }
    }

    /// Sends the LAC to every bookie: any of them may be asked for it.
    fn tell_lac(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        (self.lac_told, self.told_at) = (self.lac, now);
        let packet = self.codec.pack_lac(self.lac);
        for position in (0..self.ensemble.len()).filter(|position| !self.failed.contains_key(position)) {
            let request = BookieRequest::WriteLac {
                ledger: self.ledger,
                lac: self.lac,
                packet: packet.clone(),
                key: self.key.clone(),
            };
            self.token += 1;
            self.sent.insert(self.token, AppendSent::Lac);
            effects.push(StepEffect::Ask {
                token: self.token,
                bookie: self.ensemble[position].clone(),
                request,
            });
        }
    }

    /// Acknowledges in order, and closes when nothing is left to be acknowledged.
    fn advance(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        // New metadata say from which entry on the new bookies have them: meanwhile that must not move.
        let changing =
            matches!(self.change, EnsembleChange::Replacing { .. } | EnsembleChange::Rereading { .. });
        if self.failure.is_some() || (changing && self.planted != Planted::AckWhileChanging) {
            return;
        }
        let ack = if self.planted == Planted::OneAck { 1 } else { self.quorums().ack() };
        while self.unacked.front().is_some_and(|front| front.acked.count_ones() as usize >= ack) {
            if let Some(UnackedEntry { entry, length, .. }) = self.unacked.pop_front() {
                debug_assert_eq!(entry, self.lac.next());
                (self.lac, self.length_acked) = (entry, length);
                if let Some(front) = self.unacked.front_mut() {
                    front.since = front.since.max(now);
                }
            }
        }
        if self.closing && self.unacked.is_empty() && !self.recovering && !self.closed && !changing {
            // What the list of bookies says does not matter any more.
            let wanted = Box::new(self.metadata.closed(self.lac, self.length_acked));
            effects.push(StepEffect::Replace { metadata: wanted.clone(), version: self.version });
            self.change = EnsembleChange::Replacing { wanted, positions: Vec::new(), closing: true };
        }
    }
}
