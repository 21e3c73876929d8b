//! The handle on a ledger that is read: entry by entry up to the LAC, and on from there with long polls.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tailwater_env::Instant;
use tokio::sync::Mutex;

use crate::check::{Checker, LedgerCheck};
use crate::client::{BookKeeper, StepDriver, is_closed};
use crate::digest::LedgerEntry;
use crate::ids::{EntryId, LedgerId};
use crate::limits::{BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, READ_AHEAD_MAX};
use crate::metadata::LedgerMetadata;
use crate::read::{BatchRead, EntryRead, LacRead, Polled, ReadTimes, TailPoll};
use crate::step::{LedgerFault, StepInput};
use crate::zookeeper::closed_at;

/// How much longer a bookie has for many entries than for one.
const BATCH_PATIENCE: u32 = 4;
/// How long a ledger is read entry by entry after many at once were late: what comes late was sent for nothing.
const BATCH_PAUSE: Duration = Duration::from_secs(2);

/// What is known of the ledger.
struct KnownLedger {
    metadata: LedgerMetadata,
    lac: EntryId,
    /// The entry that came with the last news of the LAC, until it is read.
    polled: Option<LedgerEntry>,
    /// Until then no entries are asked for with one request.
    singly_until: Instant,
}

/// Reads one ledger. It never changes anything there.
pub struct LedgerReader {
    client: BookKeeper,
    ledger: LedgerId,
    known: Mutex<KnownLedger>,
}

impl LedgerReader {
    pub(crate) async fn open(
        client: &BookKeeper,
        ledger: LedgerId,
        password: &[u8],
    ) -> Result<Self, LedgerFault> {
        let metadata = client.read_checked(ledger, password).await?.metadata;
        let lac = closed_at(&metadata).unwrap_or(EntryId::NONE);
        let known = KnownLedger { metadata, lac, polled: None, singly_until: client.env().now() };
        let reader = Self { client: client.clone(), ledger, known: Mutex::new(known) };
        if !is_closed(&reader.known.lock().await.metadata) {
            reader.read_lac().await?;
        }
        Ok(reader)
    }

    /// The ledger's metadata as they were last read.
    pub async fn metadata(&self) -> LedgerMetadata {
        self.known.lock().await.metadata.clone()
    }

    /// The last entry that can be read, as far as is known here.
    pub async fn lac(&self) -> EntryId {
        self.known.lock().await.lac
    }

    /// Takes in that an entry was acknowledged: whoever writes the ledger knows it before bookies tell.
    pub async fn learn(&self, acknowledged: EntryId) {
        let mut known = self.known.lock().await;
        known.lac = known.lac.max(acknowledged);
    }

    /// Whether [`LedgerReader::lac`] is the end.
    pub async fn is_closed(&self) -> bool {
        is_closed(&self.known.lock().await.metadata)
    }

    fn read_times(&self) -> ReadTimes {
        let times = self.client.times();
        ReadTimes { speculative: times.speculative, all: times.read }
    }

    /// Asks so many bookies for the LAC that whatever an acknowledged entry told is found.
    pub async fn read_lac(&self) -> Result<EntryId, LedgerFault> {
        let metadata = self.known.lock().await.metadata.clone();
        let mut driver = StepDriver::new(&self.client, self.ledger);
        let env = self.client.env();
        let mut effects = Vec::new();
        let mut read = LacRead::new(self.ledger, &metadata, self.read_times(), env.now(), &mut effects);
        driver.carry_out(&mut effects);
        loop {
            let input = driver.next().await;
            if let Some(result) = read.step(env.now(), input) {
                let mut known = self.known.lock().await;
                known.lac = known.lac.max(result?);
                return Ok(known.lac);
            }
        }
    }

    /// Reads an entry up to the LAC.
    pub async fn read(&self, entry: EntryId) -> Result<LedgerEntry, LedgerFault> {
        let (metadata, lac) = {
            let mut known = self.known.lock().await;
            if let Some(polled) = known.polled.take_if(|polled| polled.entry == entry) {
                return Ok(polled);
            }
            (known.metadata.clone(), known.lac)
        };
        if !entry.is_some() || entry > lac {
            return Err(LedgerFault::NoEntry(entry, lac));
        }
        match self.read_with(entry, &metadata).await {
            // The copies may have been moved since.
            Err(LedgerFault::Lost(_) | LedgerFault::Unanswered { .. }) => {
                self.refresh().await?;
                let metadata = self.metadata().await;
                self.read_with(entry, &metadata).await
            }
            other => other,
        }
    }

    /// The copy of an entry to begin with. Readers of one ledger begin with another one each, of those in their region
    /// if there are any.
    fn first_copy(&self, entry: EntryId, metadata: &LedgerMetadata) -> usize {
        let ensemble = metadata.ensemble_of(entry);
        let mut copies: Vec<usize> = (0..metadata.quorums.write()).collect();
        let is_near = |copy: &usize| {
            let bookie = metadata.quorums.write_set(entry).nth(*copy).and_then(|at| ensemble.get(at));
            bookie.is_some_and(|bookie| self.client.places().is_near(bookie))
        };
        if copies.iter().any(is_near) {
            copies.retain(is_near);
        }
        copies[self.client.env().random_below(copies.len() as u64) as usize]
    }

    async fn read_with(&self, entry: EntryId, metadata: &LedgerMetadata) -> Result<LedgerEntry, LedgerFault> {
        let mut driver = StepDriver::new(&self.client, self.ledger);
        let env = self.client.env();
        let mut effects = Vec::new();
        let first = self.first_copy(entry, metadata);
        let times = self.read_times();
        let mut read = EntryRead::new(self.ledger, entry, metadata, first, times, env.now(), &mut effects);
        loop {
            driver.carry_out(&mut effects);
            let input = driver.next().await;
            if let Some(result) = read.step(env.now(), input, &mut effects) {
                return result;
            }
        }
    }

    /// Reads entries from `from` on, up to the LAC, some of them at once; in order. None if `from` is beyond it.
    ///
    /// # Errors
    /// As those of [`Self::read`].
    pub async fn read_range(&self, from: EntryId) -> Result<Vec<LedgerEntry>, LedgerFault> {
        match self.lac().await {
            lac if from > lac => Ok(Vec::new()),
            _ => self.read_some(from, BATCH_ENTRIES_MAX, BATCH_BYTES_MAX).await,
        }
    }

    /// Reads entries from `from` on, in order and up to the LAC: one at least, `count_max` of them at most, and those
    /// behind the first within about `bytes_max` bytes. With one request, if the bookie has one for that. Otherwise
    /// each by one of its own, [`READ_AHEAD_MAX`] of them at most, and `bytes_max` bounds nothing. The first one that
    /// can't be read ends it.
    ///
    /// # Errors
    /// As those of [`Self::read`], for the first one.
    pub async fn read_some(
        &self,
        from: EntryId,
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<LedgerEntry>, LedgerFault> {
        let (metadata, lac, reads_batches) = {
            let known = self.known.lock().await;
            let may_batch = self.client.env().now() >= known.singly_until;
            (known.metadata.clone(), known.lac, may_batch && self.client.reads_batches())
        };
        if !from.is_some() || from > lac {
            return Err(LedgerFault::NoEntry(from, lac));
        }
        let end = metadata.ensemble_end(from).map_or(lac.next(), |end| end.min(lac.next()));
        let count = usize::try_from(end.get() - from.get()).unwrap_or(usize::MAX);
        let count = count.min(count_max).clamp(1, BATCH_ENTRIES_MAX);
        // A bookie of a striped ledger does not have each entry.
        let is_whole = metadata.quorums.write() == metadata.quorums.ensemble();
        if count > 1 && is_whole && reads_batches {
            let entries = self.read_batch((from, count), bytes_max.min(BATCH_BYTES_MAX), &metadata).await;
            if !entries.is_empty() {
                self.client.note_batch(entries.len());
                return Ok(entries);
            }
        }
        let entries = (0..count.min(READ_AHEAD_MAX) as i64).map(|ahead| EntryId::new(from.get() + ahead));
        let mut reads: FuturesOrdered<_> = entries.map(|entry| self.read(entry)).collect();
        let mut read = Vec::new();
        while let Some(result) = reads.next().await {
            match result {
                Ok(entry) => read.push(entry),
                Err(fault) if read.is_empty() => return Err(fault),
                // It is told to who asks for that one.
                Err(_) => break,
            }
        }
        Ok(read)
    }

    /// What one bookie has of these entries, as far as it is right.
    async fn read_batch(
        &self,
        entries: (EntryId, usize),
        bytes_max: usize,
        metadata: &LedgerMetadata,
    ) -> Vec<LedgerEntry> {
        let first = entries.0;
        let copy = self.first_copy(first, metadata);
        let ensemble = metadata.ensemble_of(first);
        let Some(bookie) = metadata.quorums.write_set(first).nth(copy).and_then(|at| ensemble.get(at)) else {
            return Vec::new();
        };
        let mut driver = StepDriver::new(&self.client, self.ledger);
        let env = self.client.env();
        let mut effects = Vec::new();
        // It reads all of them, from a disk it may be: one entry that is late is asked for elsewhere earlier.
        let until = env.now() + BATCH_PATIENCE * self.client.times().speculative;
        let read =
            BatchRead::new(self.ledger, metadata, entries, bytes_max, bookie.clone(), until, &mut effects);
        loop {
            driver.carry_out(&mut effects);
            let input = driver.next().await;
            if let Some(entries) = read.step(env.now(), input) {
                let now = env.now();
                if entries.is_empty() && now >= until {
                    self.known.lock().await.singly_until = now + BATCH_PAUSE;
                }
                return entries;
            }
        }
    }

    /// Reads the metadata again.
    async fn refresh(&self) -> Result<(), LedgerFault> {
        let metadata = self.client.ledgers().read(self.ledger).await?.metadata;
        let mut known = self.known.lock().await;
        known.lac = known.lac.max(closed_at(&metadata).unwrap_or(EntryId::NONE));
        known.metadata = metadata;
        Ok(())
    }

    /// Reads every copy of every entry up to the LAC and compares them. Nothing is changed.
    pub async fn check(&self) -> LedgerCheck {
        let (metadata, lac) = {
            let known = self.known.lock().await;
            (known.metadata.clone(), known.lac)
        };
        let mut driver = StepDriver::new(&self.client, self.ledger);
        let env = self.client.env();
        let mut effects = Vec::new();
        let mut checker = Checker::new(self.ledger, metadata, lac, &mut effects);
        let mut input = StepInput::Tick;
        loop {
            if let Some(check) = checker.step(env.now(), input, &mut effects) {
                return check;
            }
            driver.carry_out(&mut effects);
            input = driver.next().await;
        }
    }

    /// Waits until there is something behind `previous` that can be read, or until the ledger is closed without it; the
    /// LAC then. It looks at the metadata between two polls, so it notices other bookies and the end of the ledger.
    pub async fn wait_beyond(&self, previous: EntryId) -> Result<EntryId, LedgerFault> {
        loop {
            let (metadata, lac) = {
                let known = self.known.lock().await;
                (known.metadata.clone(), known.lac)
            };
            if lac > previous || is_closed(&metadata) {
                return Ok(lac);
            }
            let times = self.client.times();
            let poll_times = ReadTimes { speculative: times.speculative, all: times.poll };
            let mut driver = StepDriver::new(&self.client, self.ledger);
            let env = self.client.env();
            let begun = env.now();
            let mut effects = Vec::new();
            let mut poll = TailPoll::new(self.ledger, &metadata, previous, poll_times, begun, &mut effects);
            let polled = loop {
                driver.carry_out(&mut effects);
                let input = driver.next().await;
                if let Some(polled) = poll.step(env.now(), input, &mut effects) {
                    break polled;
                }
            };
            match polled {
                Polled::News { lac, entry } => {
                    let mut known = self.known.lock().await;
                    known.lac = known.lac.max(lac);
                    known.polled = entry;
                }
                Polled::Nothing => {
                    // Where all of them fail at once this is what keeps us from asking without a pause.
                    env.sleep_until(begun + times.speculative).await;
                    self.refresh().await?;
                }
            }
        }
    }
}
