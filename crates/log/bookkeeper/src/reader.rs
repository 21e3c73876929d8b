//! The handle on a ledger that is read: entry by entry up to the LAC, and on from there with long polls.

use tokio::sync::Mutex;

use crate::check::{Checker, LedgerCheck};
use crate::client::{BookKeeper, StepDriver, is_closed};
use crate::digest::LedgerEntry;
use crate::ids::{EntryId, LedgerId};
use crate::limits::READ_AHEAD_MAX;
use crate::metadata::LedgerMetadata;
use crate::read::{EntryRead, LacRead, Polled, ReadTimes, TailPoll};
use crate::step::{LedgerFault, StepInput};
use crate::zookeeper::closed_at;

/// What is known of the ledger.
struct KnownLedger {
    metadata: LedgerMetadata,
    lac: EntryId,
    /// The entry that came with the last news of the LAC, until it is read.
    polled: Option<LedgerEntry>,
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
        let known =
            KnownLedger { lac: closed_at(&metadata).unwrap_or(EntryId::NONE), metadata, polled: None };
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

    async fn read_with(&self, entry: EntryId, metadata: &LedgerMetadata) -> Result<LedgerEntry, LedgerFault> {
        let mut driver = StepDriver::new(&self.client, self.ledger);
        let env = self.client.env();
        let mut effects = Vec::new();
        // Readers of one ledger begin with another copy each, of those in their region if there are any.
        let ensemble = metadata.ensemble_of(entry);
        let mut copies: Vec<usize> = (0..metadata.quorums.write()).collect();
        let is_near = |copy: &usize| {
            let bookie = metadata.quorums.write_set(entry).nth(*copy).and_then(|at| ensemble.get(at));
            bookie.is_some_and(|bookie| self.client.places().is_near(bookie))
        };
        if copies.iter().any(is_near) {
            copies.retain(is_near);
        }
        let first = copies[env.random_below(copies.len() as u64) as usize];
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

    /// Reads entries from `from` on, up to the LAC and [`READ_AHEAD_MAX`] of them, at once; in order.
    pub async fn read_range(&self, from: EntryId) -> Result<Vec<LedgerEntry>, LedgerFault> {
        let lac = self.lac().await;
        let count = usize::try_from(lac.get() - from.get() + 1).unwrap_or(0).min(READ_AHEAD_MAX);
        let entries = (0..count as i64).map(|ahead| self.read(EntryId::new(from.get() + ahead)));
        futures::future::try_join_all(entries).await
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
