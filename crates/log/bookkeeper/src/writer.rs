//! The handle on a ledger that is written. A task has the state machine, [`crate::append`]; appends are messages to it.
//!
//! Entries are acknowledged in the order of the appends. What waits is bounded in entries and in bytes: an append that
//! finds no room waits for it, before it has a number.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Task;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::append::{AppendTimes, LedgerAppender};
use crate::client::{BookKeeper, StepDriver};
use crate::ids::{EntryId, LedgerId};
use crate::limits::{ENTRY_BYTES_MAX, IN_FLIGHT_BYTES_MAX, IN_FLIGHT_ENTRIES_MAX, TICK};
use crate::metadata::LedgerMetadata;
use crate::step::{LedgerFault, StepInput, VersionedMetadata};

/// What the handle asks of the task.
enum Command {
    Append { payload: Bytes, room: OwnedSemaphorePermit, done: oneshot::Sender<Result<EntryId, LedgerFault>> },
    Close { done: oneshot::Sender<Result<EntryId, LedgerFault>> },
}

/// An append that is on its way: whether it is in the ledger is known when this completes.
pub struct PendingEntry(oneshot::Receiver<Result<EntryId, LedgerFault>>);

impl PendingEntry {
    /// The entry's number, once it and everything before it is durable.
    pub async fn acknowledged(self) -> Result<EntryId, LedgerFault> {
        self.0.await.unwrap_or(Err(LedgerFault::WriterClosed))
    }
}

/// A look at the metadata of a ledger that is written, as its writer has them at that moment.
#[derive(Clone)]
pub struct WriterMetadata(Arc<Mutex<LedgerMetadata>>);

impl WriterMetadata {
    /// Hands them to `look`, which must not wait: the writer does.
    pub fn with<T>(&self, look: impl FnOnce(&LedgerMetadata) -> T) -> T {
        look(&self.0.lock())
    }
}

/// Writes one ledger. Dropped without [`LedgerWriter::close`] it leaves the ledger open, to be recovered.
pub struct LedgerWriter {
    ledger: LedgerId,
    commands: mpsc::Sender<Command>,
    room: Arc<Semaphore>,
    metadata: Arc<Mutex<LedgerMetadata>>,
    _task: Task,
}

impl LedgerWriter {
    pub(crate) fn start(client: &BookKeeper, ledger: LedgerId, versioned: VersionedMetadata) -> Self {
        let (commands, received) = mpsc::channel(IN_FLIGHT_ENTRIES_MAX);
        let metadata = Arc::new(Mutex::new(versioned.metadata.clone()));
        let places = client.places().of_ledger(&versioned.metadata.custom);
        let times =
            AppendTimes { entry: client.times().entry, pause: client.times().pause, lac: client.times().lac };
        let env = client.env();
        let appender =
            LedgerAppender::new(ledger, versioned, times, env.random_u64(), env.now()).with_places(places);
        let run = Writing {
            client: client.clone(),
            driver: StepDriver::new(client, ledger),
            appender,
            waiting: VecDeque::new(),
            closing: None,
            metadata: metadata.clone(),
        };
        let task = env.spawn("ledger writer", run.run(received));
        let room = Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX));
        Self { ledger, commands, room, metadata, _task: task }
    }

    /// Which ledger it is.
    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// The ledger's metadata, as the writer has them.
    pub fn metadata(&self) -> LedgerMetadata {
        self.metadata.lock().clone()
    }

    /// The same whenever somebody looks, also while somebody else has the writer.
    pub fn watch_metadata(&self) -> WriterMetadata {
        WriterMetadata(Arc::clone(&self.metadata))
    }

    /// Sends an entry. It waits for room only; entries get their numbers in the order of the calls that are polled.
    pub async fn send(&self, payload: Bytes) -> Result<PendingEntry, LedgerFault> {
        if payload.len() > ENTRY_BYTES_MAX {
            return Err(LedgerFault::TooLong(payload.len()));
        }
        let bytes = u32::try_from(payload.len().max(1)).unwrap_or(u32::MAX);
        let closed = |_| LedgerFault::WriterClosed;
        let room = self.room.clone().acquire_many_owned(bytes).await.map_err(closed)?;
        let (done, acknowledged) = oneshot::channel();
        let command = Command::Append { payload, room, done };
        self.commands.send(command).await.map_err(|_| LedgerFault::WriterClosed)?;
        Ok(PendingEntry(acknowledged))
    }

    /// Appends an entry: its number, once it is durable.
    pub async fn append(&self, payload: Bytes) -> Result<EntryId, LedgerFault> {
        self.send(payload).await?.acknowledged().await
    }

    /// Closes the ledger behind what was sent before, once that is acknowledged; its last entry.
    pub async fn close(self) -> Result<EntryId, LedgerFault> {
        let (done, closed) = oneshot::channel();
        self.commands.send(Command::Close { done }).await.map_err(|_| LedgerFault::WriterClosed)?;
        closed.await.unwrap_or(Err(LedgerFault::WriterClosed))
    }
}

/// Somebody who waits for an entry.
struct Waiter {
    entry: EntryId,
    done: oneshot::Sender<Result<EntryId, LedgerFault>>,
    _room: OwnedSemaphorePermit,
}

struct Writing {
    client: BookKeeper,
    driver: StepDriver,
    appender: LedgerAppender,
    waiting: VecDeque<Waiter>,
    closing: Option<oneshot::Sender<Result<EntryId, LedgerFault>>>,
    metadata: Arc<Mutex<LedgerMetadata>>,
}

impl Writing {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut effects = Vec::new();
        let env = self.client.env().clone();
        let mut tick_at = env.now() + TICK;
        loop {
            let has_room = self.appender.unacked() < IN_FLIGHT_ENTRIES_MAX && self.closing.is_none();
            let ticks = self.appender.needs_ticks();
            tokio::select! {
                biased;
                input = self.driver.next_answer() => {
                    self.appender.step(env.now(), input, &mut effects);
                    while let Some(input) = self.driver.try_next() {
                        self.appender.step(env.now(), input, &mut effects);
                    }
                }
                command = commands.recv(), if has_room => match command {
                    Some(command) => self.command(command, &mut effects),
                    // The handle is gone, and with it this task.
                    None => return,
                },
                () = env.sleep_until(tick_at), if ticks => {}
            }
            if ticks && env.now() >= tick_at {
                self.appender.step(env.now(), StepInput::Tick, &mut effects);
                tick_at = env.now() + TICK;
            }
            while self.appender.unacked() < IN_FLIGHT_ENTRIES_MAX && self.closing.is_none() {
                let Ok(command) = commands.try_recv() else { break };
                self.command(command, &mut effects);
            }
            self.driver.carry_out(&mut effects);
            if self.tell() {
                return;
            }
        }
    }

    fn command(&mut self, command: Command, effects: &mut Vec<crate::step::StepEffect>) {
        let now = self.client.env().now();
        match command {
            Command::Append { payload, room, done } => {
                let entry = self.appender.append(now, &payload, effects);
                self.waiting.push_back(Waiter { entry, done, _room: room });
            }
            Command::Close { done } => {
                self.closing = Some(done);
                self.appender.close(now, effects);
            }
        }
    }

    /// Tells those who wait what is known now; whether it is over. Who does not wait any more is told nothing.
    fn tell(&mut self) -> bool {
        let lac = self.appender.lac();
        while self.waiting.front().is_some_and(|waiter| waiter.entry <= lac) {
            if let Some(waiter) = self.waiting.pop_front() {
                let _ = waiter.done.send(Ok(waiter.entry));
            }
        }
        if *self.metadata.lock() != *self.appender.metadata() {
            *self.metadata.lock() = self.appender.metadata().clone();
        }
        if let Some(failure) = self.appender.failure() {
            for waiter in self.waiting.drain(..) {
                let _ = waiter.done.send(Err(failure.clone()));
            }
            if let Some(done) = self.closing.take() {
                let _ = done.send(Err(failure.clone()));
                return true;
            }
        }
        if self.appender.is_closed() {
            if let Some(done) = self.closing.take() {
                let _ = done.send(Ok(lac));
            }
            return true;
        }
        false
    }
}
