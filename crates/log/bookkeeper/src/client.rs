//! The client: what ledgers are created, written, read, recovered and deleted with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tokio::sync::mpsc;

use crate::connections::{Connections, Inbox};
use crate::digest::DigestKind;
use crate::ids::{BookieId, LedgerId, Quorums};
use crate::limits::TICK;
use crate::metadata::{LedgerMetadata, LedgerStatus};
use crate::placement::BookiePlaces;
use crate::reader::LedgerReader;
use crate::recover::{RecoverTimes, Recoverer};
use crate::security::LedgersSecurity;
use crate::step::{Choice, LedgerFault, StepEffect, StepInput, VersionedMetadata};
use crate::writer::LedgerWriter;
use crate::zookeeper::{Ledgers, LedgersUri};

/// Times of a client; the defaults suit a local network.
#[derive(Clone, Copy, Debug)]
pub struct LedgerTimes {
    /// How long an entry may wait for its ack quorum before its writer fails.
    pub entry: Duration,
    /// How long a recovery may get no further before it fails.
    pub recovery: Duration,
    /// How long a bookie that failed is left alone.
    pub pause: Duration,
    /// After how long without another entry the LAC is sent by itself, so that readers see the last entry.
    pub lac: Duration,
    /// How long a bookie has for a read before another one is asked, too.
    pub speculative: Duration,
    /// How long a read may take in all.
    pub read: Duration,
    /// How long bookies hold a long poll.
    pub poll: Duration,
}

impl Default for LedgerTimes {
    fn default() -> Self {
        Self {
            entry: Duration::from_secs(30),
            recovery: Duration::from_secs(30),
            pause: Duration::from_secs(2),
            lac: Duration::from_millis(20),
            speculative: Duration::from_millis(50),
            read: Duration::from_secs(15),
            poll: Duration::from_secs(1),
        }
    }
}

/// What a new ledger is like.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// Numbers of bookies and copies.
    pub quorums: Quorums,
    /// How entries are checked.
    pub digest: DigestKind,
    /// Who knows it may write, read and fence the ledger.
    pub password: Bytes,
    /// What is kept with the ledger. [`crate::MIN_REGIONS_KEY`] says where its bookies have to be.
    pub custom: BTreeMap<String, Bytes>,
}

/// A client of BookKeeper. Cheap to clone.
#[derive(Clone)]
pub struct BookKeeper {
    env: Env,
    ledgers: Ledgers,
    connections: Connections,
    times: LedgerTimes,
    places: BookiePlaces,
    reads_batches: bool,
    /// Entries that came together with others. Stands for itself, so its accesses are relaxed.
    entries_batched: Arc<AtomicU64>,
}

impl BookKeeper {
    /// Connects to ZooKeeper; to bookies when they are needed. Without a login, and without TLS.
    ///
    /// # Errors
    /// Those of ZooKeeper, and that there are no ledgers at the place.
    pub async fn connect(env: Env, uri: LedgersUri, times: LedgerTimes) -> Result<Self, LedgerFault> {
        Self::connect_with(env, uri, LedgersSecurity::default(), times).await
    }

    /// The same where the servers want to know who comes, or speak in TLS.
    ///
    /// # Errors
    /// As those of [`Self::connect`]. A bookie that refuses a connection is one that can't be reached, and the log says
    /// why.
    pub async fn connect_with(
        env: Env,
        uri: LedgersUri,
        security: LedgersSecurity,
        times: LedgerTimes,
    ) -> Result<Self, LedgerFault> {
        let ledgers =
            Ledgers::connect(env.clone(), uri, security.zookeeper, security.zookeeper_dialer).await?;
        let connections = Connections::new(env.clone(), ledgers.clone(), security.bookies);
        let (places, entries_batched) = (BookiePlaces::default(), Arc::default());
        Ok(Self { env, ledgers, connections, times, places, reads_batches: true, entries_batched })
    }

    /// The same where it is known where bookies are.
    #[must_use]
    pub fn with_places(mut self, places: BookiePlaces) -> Self {
        self.places = places;
        self
    }

    /// The same, reading many entries with one request where bookies have one for that, or each by one of its own.
    #[must_use]
    pub fn with_batches(mut self, reads_batches: bool) -> Self {
        self.reads_batches = reads_batches;
        self
    }

    pub(crate) fn reads_batches(&self) -> bool {
        self.reads_batches
    }

    /// Entries that came together with others, with one request.
    pub fn entries_batched(&self) -> u64 {
        self.entries_batched.load(Ordering::Relaxed)
    }

    pub(crate) fn note_batch(&self, entries: usize) {
        self.entries_batched.fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Where it is said that bookies are.
    pub fn places(&self) -> &BookiePlaces {
        &self.places
    }

    /// The metadata of ledgers, and the bookies.
    pub fn ledgers(&self) -> &Ledgers {
        &self.ledgers
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn times(&self) -> LedgerTimes {
        self.times
    }

    /// Bookies that a ledger with these quorums may be on at this moment, if bookies are at `places`.
    ///
    /// # Errors
    /// `TooFewBookies`, `Regions`; those of ZooKeeper.
    pub async fn choose(
        &self,
        quorums: Quorums,
        places: &BookiePlaces,
    ) -> Result<Vec<BookieId>, LedgerFault> {
        let bookies = self.ledgers.bookies().await?;
        let (have, need) = (bookies.len(), quorums.ensemble());
        if have < need {
            return Err(LedgerFault::TooFewBookies { have, need });
        }
        let mut choice = Choice::new(self.env.random_u64());
        let (regions, have) = (places.min_regions, places.regions(&bookies));
        let chosen = places.choose(quorums, bookies, &mut choice);
        chosen.ok_or(LedgerFault::Regions { quorums, regions, have })
    }

    /// Creates a ledger, and opens it for writing.
    pub async fn create(&self, options: &LedgerOptions) -> Result<LedgerWriter, LedgerFault> {
        let ensemble = self.choose(options.quorums, &self.places.of_ledger(&options.custom)).await?;
        let mut metadata = LedgerMetadata::new(options.quorums, ensemble, options.digest, &options.password);
        metadata.custom = options.custom.clone();
        metadata.created_ms = Some(self.env.wall_ms());
        // Java's tokens are not negative.
        metadata.token = Some((self.env.random_u64() >> 1) as i64);
        let (ledger, versioned) = self.ledgers.create(&metadata).await?;
        Ok(LedgerWriter::start(self, ledger, versioned))
    }

    /// Opens a ledger for reading. Its writer goes on.
    pub async fn open(&self, ledger: LedgerId, password: &[u8]) -> Result<LedgerReader, LedgerFault> {
        LedgerReader::open(self, ledger, password).await
    }

    /// Shuts the writer of a ledger out, finds its end and closes it there. A closed ledger stays as it is.
    pub async fn recover(&self, ledger: LedgerId, password: &[u8]) -> Result<LedgerMetadata, LedgerFault> {
        let versioned = self.read_checked(ledger, password).await?;
        let places = self.places.of_ledger(&versioned.metadata.custom);
        let times = RecoverTimes {
            patience: self.times.recovery,
            pause: self.times.pause.min(self.times.speculative),
        };
        let mut effects = Vec::new();
        let (seed, now) = (self.env.random_u64(), self.env.now());
        let mut recoverer = Recoverer::new(ledger, versioned, times, seed, now, &mut effects);
        recoverer.place(places);
        let mut driver = StepDriver::new(self, ledger);
        loop {
            driver.carry_out(&mut effects);
            if let Some(result) = recoverer.result() {
                return result.clone();
            }
            let input = driver.next().await;
            recoverer.step(self.env.now(), input, &mut effects);
        }
    }

    /// Deletes a ledger.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), LedgerFault> {
        self.ledgers.delete(ledger).await
    }

    /// A ledger's metadata, if the password is right.
    pub(crate) async fn read_checked(
        &self,
        ledger: LedgerId,
        password: &[u8],
    ) -> Result<VersionedMetadata, LedgerFault> {
        let versioned = self.ledgers.read_latest(ledger).await?;
        if versioned.metadata.password != password {
            return Err(LedgerFault::Unauthorized);
        }
        Ok(versioned)
    }
}

/// Carries out the effects of one state machine, and has their results.
pub(crate) struct StepDriver {
    client: BookKeeper,
    ledger: LedgerId,
    inbox: Inbox,
    inputs: mpsc::UnboundedReceiver<StepInput>,
}

impl StepDriver {
    pub(crate) fn new(client: &BookKeeper, ledger: LedgerId) -> Self {
        let (inbox, inputs) = Inbox::new();
        Self { client: client.clone(), ledger, inbox, inputs }
    }

    pub(crate) fn carry_out(&self, effects: &mut Vec<StepEffect>) {
        for effect in effects.drain(..) {
            let (ledgers, inbox, ledger) = (self.client.ledgers.clone(), self.inbox.clone(), self.ledger);
            let env = &self.client.env;
            match effect {
                StepEffect::Ask { token, bookie, request } => {
                    self.client.connections.ask(&bookie, request, token, &self.inbox);
                }
                StepEffect::Replace { metadata, version } => env
                    .spawn("replace ledger metadata", async move {
                        inbox.put(StepInput::Replaced(ledgers.replace(ledger, &metadata, version).await));
                    })
                    .detach(),
                StepEffect::Reread => env
                    .spawn("read ledger metadata", async move {
                        inbox.put(StepInput::Reread(ledgers.read_latest(ledger).await));
                    })
                    .detach(),
                StepEffect::ListBookies => env
                    .spawn("list bookies", async move {
                        inbox.put(StepInput::Bookies(ledgers.bookies().await.ok()));
                    })
                    .detach(),
            }
        }
    }

    /// The next result, or a tick when there is none for a while.
    pub(crate) async fn next(&mut self) -> StepInput {
        let next = self.client.env.timeout(TICK, self.inputs.recv()).await;
        next.flatten().unwrap_or(StepInput::Tick)
    }

    /// The next result, whenever it comes.
    pub(crate) async fn next_answer(&mut self) -> StepInput {
        self.inputs.recv().await.unwrap_or(StepInput::Tick)
    }

    /// A result that is there already.
    pub(crate) fn try_next(&mut self) -> Option<StepInput> {
        self.inputs.try_recv().ok()
    }
}

/// Whether a ledger gets no entry any more.
pub(crate) fn is_closed(metadata: &LedgerMetadata) -> bool {
    matches!(metadata.state, LedgerStatus::Closed { .. })
}
