//! Reading one entry, and asking for the LAC: state machines for readers. Neither changes anything at a bookie.
//!
//! An entry is read from one bookie of its write set. Another one is asked when the first fails, does not have it,
//! sends a wrong digest, or has not answered for [`ReadTimes::speculative`]; the first right answer is taken.

use std::collections::BTreeMap;
use std::time::Duration;

use tailwater_env::Instant;

use crate::digest::{EntryCodec, LedgerEntry};
use crate::ids::{BookieId, EntryId, LedgerId, Quorums};
use crate::metadata::LedgerMetadata;
use crate::protocol::{BookieAnswer, BookieError, BookieRequest};
use crate::step::{LedgerFault, StepEffect, StepInput};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTimes {
    /// Until another bookie is asked beside those that have not answered.
    pub(crate) speculative: Duration,
    /// Until it is given up.
    pub(crate) all: Duration,
}

/// What a bookie said of an entry.
pub(crate) enum Copied {
    Right(Box<LedgerEntry>, bytes::Bytes),
    Absent,
    Damaged,
    Failed(BookieError),
}

/// Checks an answer to a read of `entry`.
pub(crate) fn checked(
    codec: &EntryCodec,
    entry: Option<EntryId>,
    result: Result<BookieAnswer, BookieError>,
) -> Copied {
    match result {
        Ok(BookieAnswer::Entry { packet: Some(packet), .. }) => match codec.open(entry, packet.clone()) {
            Ok(opened) => Copied::Right(Box::new(opened), packet),
            Err(_) => Copied::Damaged,
        },
        Ok(_) => Copied::Failed(BookieError::Malformed("another answer than was asked for")),
        Err(error) if error.is_absence() => Copied::Absent,
        Err(error) => Copied::Failed(error),
    }
}

/// Reads one entry; see the module.
pub(crate) struct EntryRead {
    ledger: LedgerId,
    entry: EntryId,
    codec: EntryCodec,
    times: ReadTimes,
    /// Those that are not asked yet, the next one last.
    left: Vec<BookieId>,
    waiting: usize,
    begun: Instant,
    asked_at: Instant,
    damaged: bool,
    last: BookieError,
    absent: usize,
    copies: usize,
}

impl EntryRead {
    /// Begins with the copy number `first` of the write set.
    pub(crate) fn new(
        ledger: LedgerId,
        entry: EntryId,
        metadata: &LedgerMetadata,
        first: usize,
        times: ReadTimes,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let ensemble = metadata.ensemble_of(entry);
        let mut left: Vec<BookieId> =
            metadata.quorums.write_set(entry).filter_map(|at| ensemble.get(at).cloned()).collect();
        let copies = left.len();
        left.rotate_left(first % copies.max(1));
        left.reverse();
        let mut read = Self {
            ledger,
            entry,
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            times,
            left,
            waiting: 0,
            begun: now,
            asked_at: now,
            damaged: false,
            last: BookieError::NoEntry,
            absent: 0,
            copies,
        };
        read.ask_next(now, effects);
        read
    }

    fn ask_next(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let Some(bookie) = self.left.pop() {
            self.waiting += 1;
            self.asked_at = now;
            let request = BookieRequest::Read { ledger: self.ledger, entry: self.entry, fence: None };
            effects.push(StepEffect::Ask { token: 0, bookie, request });
        }
    }

    /// What happened, and what came of it, once.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        input: StepInput,
        effects: &mut Vec<StepEffect>,
    ) -> Option<Result<LedgerEntry, LedgerFault>> {
        match input {
            StepInput::Answer { result, .. } => {
                self.waiting -= 1;
                match checked(&self.codec, Some(self.entry), result) {
                    Copied::Right(entry, _) => return Some(Ok(*entry)),
                    Copied::Damaged => {
                        tracing::warn!(ledger = %self.ledger, entry = %self.entry, "a copy is damaged; another one is read");
                        self.damaged = true;
                    }
                    Copied::Absent => self.absent += 1,
                    Copied::Failed(error) => self.last = error,
                }
                self.ask_next(now, effects);
            }
            _ if now.since(self.asked_at) >= self.times.speculative => self.ask_next(now, effects),
            _ => {}
        }
        let over = now.since(self.begun) >= self.times.all;
        (over || (self.waiting == 0 && self.left.is_empty())).then(|| Err(self.fault()))
    }

    fn fault(&self) -> LedgerFault {
        if self.damaged {
            LedgerFault::Damaged(self.entry)
        } else if self.absent == self.copies {
            LedgerFault::Lost(self.entry)
        } else {
            let last = if self.waiting > 0 { BookieError::TimedOut } else { self.last };
            LedgerFault::Unanswered { what: "reading an entry", last }
        }
    }
}

/// Reads entries that lie behind each other from one bookie at once. It asks once: what does not come is to be read
/// entry by entry, from whichever bookies have it.
pub(crate) struct BatchRead {
    ledger: LedgerId,
    first: EntryId,
    count: usize,
    codec: EntryCodec,
    until: Instant,
}

impl BatchRead {
    /// Asks `bookie`, which has each of these entries if the ledger is not striped. It has `patience` for all of them.
    pub(crate) fn new(
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        entries: (EntryId, usize),
        bytes_max: usize,
        bookie: BookieId,
        until: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let (first, count) = entries;
        let bounded = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let request = BookieRequest::ReadBatch {
            ledger,
            first,
            count_max: bounded(count),
            bytes_max: bounded(bytes_max),
        };
        effects.push(StepEffect::Ask { token: 0, bookie, request });
        let codec = EntryCodec::new(ledger, metadata.digest, &metadata.password);
        Self { ledger, first, count, codec, until }
    }

    /// What happened, and what came of it, once: those that are right, up to the first that is not there or is not.
    pub(crate) fn step(&self, now: Instant, input: StepInput) -> Option<Vec<LedgerEntry>> {
        match input {
            StepInput::Answer { result: Ok(BookieAnswer::Batch { packets }), .. } => {
                let mut entries = Vec::with_capacity(packets.len());
                let mut wanted = self.first;
                for packet in packets.into_iter().take(self.count) {
                    match self.codec.open(Some(wanted), packet) {
                        Ok(entry) => entries.push(entry),
                        Err(fault) => {
                            tracing::warn!(ledger = %self.ledger, entry = %wanted, %fault, "a copy is damaged; another one is read");
                            break;
                        }
                    }
                    wanted = wanted.next();
                }
                Some(entries)
            }
            StepInput::Answer { .. } => Some(Vec::new()),
            _ => (now >= self.until).then(Vec::new),
        }
    }
}

/// Asks for the LAC until every write set has so many answers that none of its ack quorums is left out: what an
/// acknowledged entry told is found.
pub(crate) struct LacRead {
    codec: EntryCodec,
    quorums: Quorums,
    positions: BTreeMap<u64, usize>,
    answered: u64,
    lac: EntryId,
    begun: Instant,
    all: Duration,
    last: BookieError,
}

impl LacRead {
    pub(crate) fn new(
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        times: ReadTimes,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let (first, ensemble) = metadata.last_ensemble();
        let mut positions = BTreeMap::new();
        for (position, bookie) in ensemble.iter().enumerate() {
            let token = position as u64;
            positions.insert(token, position);
            effects.push(StepEffect::Ask {
                token,
                bookie: bookie.clone(),
                request: BookieRequest::ReadLac { ledger },
            });
        }
        Self {
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            quorums: metadata.quorums,
            positions,
            answered: 0,
            // Everything before the last ensemble was acknowledged before that was there.
            lac: first.previous(),
            begun: now,
            all: times.all,
            last: BookieError::TimedOut,
        }
    }

    /// What happened, and what came of it, once.
    pub(crate) fn step(&mut self, now: Instant, input: StepInput) -> Option<Result<EntryId, LedgerFault>> {
        if let StepInput::Answer { token, result } = input
            && let Some(position) = self.positions.remove(&token)
        {
            match result {
                Ok(BookieAnswer::Lac { explicit, last }) => {
                    let explicit = explicit.map_or(Ok(EntryId::NONE), |packet| self.codec.open_lac(&packet));
                    let last = last.map_or(Ok(EntryId::NONE), |packet| {
                        self.codec.open(None, packet).map(|entry| entry.lac)
                    });
                    // A damaged entry hides what it told.
                    if let (Ok(explicit), Ok(last)) = (explicit, last) {
                        self.lac = self.lac.max(explicit).max(last);
                        self.answered |= 1 << position;
                    }
                }
                Err(error) if error.is_absence() => self.answered |= 1 << position,
                Err(error) => self.last = error,
                Ok(_) => self.last = BookieError::Malformed("another answer than was asked for"),
            }
        }
        if self.quorums.covered(self.answered) {
            return Some(Ok(self.lac));
        }
        (self.positions.is_empty() || now.since(self.begun) >= self.all)
            .then_some(Err(LedgerFault::Unanswered { what: "asking for the LAC", last: self.last }))
    }
}

/// One round of waiting for the LAC to pass `previous`: a bookie is asked, and another one beside it when it fails or
/// has not answered for a while. Bookies are told the LAC with entries of their own only, so one alone may know
/// nothing.
pub(crate) struct TailPoll {
    ledger: LedgerId,
    codec: EntryCodec,
    previous: EntryId,
    wait_ms: u64,
    left: Vec<BookieId>,
    waiting: usize,
    asked_at: Instant,
    times: ReadTimes,
}

/// What a [`TailPoll`] found.
#[derive(Debug)]
pub(crate) enum Polled {
    /// The LAC is here, and the entry behind the previous one is this.
    News { lac: EntryId, entry: Option<LedgerEntry> },
    /// Nobody knows of anything new.
    Nothing,
}

impl TailPoll {
    pub(crate) fn new(
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        previous: EntryId,
        times: ReadTimes,
        now: Instant,
        effects: &mut Vec<StepEffect>,
    ) -> Self {
        let ensemble = metadata.last_ensemble().1;
        // Those that hold the entry behind the next one come first: with that the next one's LAC is told.
        let telling = previous.next().next();
        let first = (telling.get().max(0) as u64 % ensemble.len().max(1) as u64) as usize;
        let mut left = ensemble.to_vec();
        left.rotate_left(first);
        left.reverse();
        let mut poll = Self {
            ledger,
            codec: EntryCodec::new(ledger, metadata.digest, &metadata.password),
            previous,
            wait_ms: times.all.as_millis().try_into().unwrap_or(u64::MAX),
            left,
            waiting: 0,
            asked_at: now,
            times,
        };
        poll.ask_next(now, effects);
        poll
    }

    fn ask_next(&mut self, now: Instant, effects: &mut Vec<StepEffect>) {
        if let Some(bookie) = self.left.pop() {
            self.waiting += 1;
            self.asked_at = now;
            let request =
                BookieRequest::Poll { ledger: self.ledger, previous: self.previous, wait_ms: self.wait_ms };
            effects.push(StepEffect::Ask { token: 0, bookie, request });
        }
    }

    /// What happened, and what came of it, once.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        input: StepInput,
        effects: &mut Vec<StepEffect>,
    ) -> Option<Polled> {
        match input {
            StepInput::Answer { result, .. } => {
                self.waiting -= 1;
                match result {
                    Ok(BookieAnswer::Entry { lac: Some(lac), packet }) if lac > self.previous => {
                        let wanted = Some(self.previous.next());
                        let entry = packet.and_then(|packet| self.codec.open(wanted, packet).ok());
                        return Some(Polled::News { lac, entry });
                    }
                    // It has waited as long as it was to.
                    Ok(_) => return Some(Polled::Nothing),
                    Err(_) => self.ask_next(now, effects),
                }
            }
            _ if now.since(self.asked_at) >= self.times.speculative => self.ask_next(now, effects),
            _ => {}
        }
        (self.waiting == 0 && self.left.is_empty()).then_some(Polled::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use std::time::Duration;

    use super::*;
    use crate::digest::DigestKind;

    fn batch_of(packets: Vec<Bytes>) -> StepInput {
        StepInput::Answer { token: 0, result: Ok(BookieAnswer::Batch { packets }) }
    }

    #[test]
    fn of_a_batch_entries_are_taken_up_to_the_first_that_is_wrong_and_no_more_than_were_asked_for() {
        let ledger = LedgerId::new(4).expect("not negative");
        let bookie = BookieId::new("a:1");
        let quorums = Quorums::new(1, 1, 1).expect("in order");
        let metadata = LedgerMetadata::new(quorums, vec![bookie.clone()], DigestKind::Crc32c, b"secret");
        let codec = EntryCodec::new(ledger, DigestKind::Crc32c, b"secret");
        let packed =
            |entry: i64| codec.pack(EntryId::new(entry), EntryId::NONE, 1, format!("{entry}").as_bytes());
        let damaged = |entry: i64| {
            let mut packet = packed(entry).to_vec();
            *packet.last_mut().expect("some bytes") ^= 1;
            Bytes::from(packet)
        };
        let begun = Instant::default();
        let until = begun + Duration::from_millis(50);
        let mut effects = Vec::new();
        let read = BatchRead::new(
            ledger,
            &metadata,
            (EntryId::new(7), 3),
            1_000,
            bookie.clone(),
            until,
            &mut effects,
        );
        let request =
            BookieRequest::ReadBatch { ledger, first: EntryId::new(7), count_max: 3, bytes_max: 1_000 };
        assert_eq!(effects, [StepEffect::Ask { token: 0, bookie, request }]);
        let taken = |input: StepInput| -> Option<Vec<i64>> {
            let entries = read.step(begun, input)?;
            Some(entries.iter().map(|entry| entry.entry.get()).collect())
        };
        assert_eq!(taken(batch_of(vec![packed(7), packed(8)])), Some(vec![7, 8]));
        assert_eq!(taken(batch_of((7..12).map(packed).collect())), Some(vec![7, 8, 9]));
        assert_eq!(taken(batch_of(vec![packed(7), damaged(8), packed(9)])), Some(vec![7]));
        assert_eq!(taken(batch_of(vec![packed(7), packed(9)])), Some(vec![7]), "one is missing");
        assert_eq!(taken(batch_of(vec![packed(8)])), Some(vec![]), "another entry");
        for error in [BookieError::Unsupported, BookieError::NoEntry, BookieError::Unreachable] {
            assert_eq!(taken(StepInput::Answer { token: 0, result: Err(error) }), Some(vec![]));
        }
        assert_eq!(taken(StepInput::Tick), None);
        assert_eq!(read.step(until, StepInput::Tick), Some(vec![]), "it is waited for no longer");
    }
}
