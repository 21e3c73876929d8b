//! Listening.
//!
//! A listener asks the tail of its region's chain for what follows its positions, and goes on from there after
//! every failure; it never accepts a gap. What it is sent waits in its connection until it is asked for, so a
//! slow listener costs nobody anything: it is sent the rest later, with tombstones for what was collected
//! meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailwater_env::{Env, Instant, Task};
use tokio::sync::{mpsc, watch};

use crate::batch::{Batch, Malformed};
use crate::client::link::{self, CLIENT, End, Link};
use crate::client::sharing::{self, Sharing, SharingStats};
use crate::event::Event;
use crate::message::{AGE_UNKNOWN, Advertised, Chain, FROM_NOW, Message};
use crate::name::Stream;
use crate::positions::Positions;

/// Batches that wait for [`Listener::next`].
const WAITING_MAX: usize = 16;
/// A pause between two tries to reach the tail.
const RETRY: Duration = Duration::from_millis(50);
/// How often the tail is asked how far it is.
pub(super) const ASK: Duration = Duration::from_millis(500);
/// How long it may say nothing.
const SILENCE: Duration = Duration::from_secs(3);

/// Listens. Dropping it ends it.
#[derive(Debug)]
pub struct Listener {
    received: mpsc::Receiver<Received>,
    positions: Positions,
    events: VecDeque<(Stream, Event)>,
    epoch: Arc<AtomicU64>,
    stats: Option<watch::Receiver<SharingStats>>,
    _task: Task,
}

/// What came.
#[derive(Clone, Debug)]
pub enum Received {
    /// Events; they continue what came before of their stream.
    Events(Stream, Batch),
    /// Where it begins, of the streams that it was told of: for `Positions::now` the numbers that "now" is.
    Began(Vec<(Stream, u64)>),
    /// How far the region's proxy is.
    Counts(Vec<Count>),
    /// The connection to the proxy is gone; the listener may be out of date until [`Received::Counts`] comes.
    Lost,
    /// The region has begun anew: its streams' numbers are those of other events from here on, of which the listener hears
    /// none up to where it was. Who must not miss those starts another one, from the start or from now on. One that
    /// [shares](Listener::sharing) does not say so.
    Anew,
}

/// How far the region's proxy has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The stream.
    pub stream: Stream,
    /// The last number.
    pub count: u64,
    /// Then the stream's own region had acknowledged nothing that is not among it: a listener that has all of it was up to date.
    /// `None` if the proxy never knew. However long this was on its way, or waited to be read, it is true.
    pub as_of: Option<Instant>,
}

impl Count {
    /// What the tail says.
    pub(super) fn all(env: &Env, answers: Option<u64>, counts: Vec<Advertised>) -> Vec<Self> {
        let asked_ms = answers.map(|at| at.min(env.now().as_ns() / 1_000_000));
        let count = |told: Advertised| {
            let age_ms = Some(told.age_ms).filter(|age_ms| *age_ms != AGE_UNKNOWN);
            // What is older than this process's clock is as good as unknown.
            let as_of_ms = asked_ms.zip(age_ms).and_then(|(at, age_ms)| at.checked_sub(age_ms.into()));
            let as_of = as_of_ms.map(|ms| Instant::from_ns(ms * 1_000_000));
            Self { stream: told.stream, count: told.count, as_of }
        };
        counts.into_iter().map(count).collect()
    }
}

/// Asks how far somebody is, now.
pub(super) fn ask(env: &Env) -> Message {
    Message::Ask { at: env.now().as_ns() / 1_000_000 }
}

/// Why no more events come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The proxy sent events that can't be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The listener's task has ended.
    #[error("the listener has ended")]
    Ended,
}

impl Listener {
    /// A listener of the region whose replicas are at `addresses`, from `positions` on.
    pub fn new(env: &Env, addresses: Vec<String>, positions: Positions) -> Self {
        Self::start(env, addresses, positions, None)
    }

    /// As [`Listener::new`], one that hears no tail of an earlier chain than that of `epoch`, nor of an earlier one than it has
    /// heard: a tail that was cut off from its region may not know that it was removed. What the members of a chain hold, those of
    /// all later ones hold, so what is missing at a tail that is heard was lost with all replicas.
    pub fn since(env: &Env, addresses: Vec<String>, positions: Positions, epoch: u64) -> Self {
        Self::start(env, addresses, positions, Some(epoch))
    }

    fn start(env: &Env, addresses: Vec<String>, positions: Positions, since: Option<u64>) -> Self {
        let (events, received) = mpsc::channel(WAITING_MAX);
        let epoch = Arc::new(AtomicU64::new(since.unwrap_or(0)));
        let state = State {
            env: env.clone(),
            addresses,
            positions: positions.clone(),
            lineage: None,
            events,
            epoch: Arc::clone(&epoch),
            hears_all: since.is_none(),
        };
        let task = env.spawn("broadcast-listener", state.run());
        Self { received, positions, events: VecDeque::new(), epoch, stats: None, _task: task }
    }

    /// The epoch of a chain whose members hold all that came, for [`Listener::since`]; 0 for one that shares.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// As [`Listener::new`], but it gets most events from the region's other listeners that share, and passes them on
    /// to others (section 3.2). What they no longer have it gets from the proxy.
    ///
    /// # Errors
    /// If it can't listen for the others, or they could not be told where.
    pub async fn sharing(
        env: &Env,
        addresses: Vec<String>,
        positions: Positions,
        sharing: Sharing,
    ) -> std::io::Result<Self> {
        let (events, received) = mpsc::channel(WAITING_MAX);
        let (stats, task) = sharing::start(env, addresses, positions.clone(), sharing, events).await?;
        let epoch = Arc::default();
        Ok(Self { received, positions, events: VecDeque::new(), epoch, stats: Some(stats), _task: task })
    }

    /// What a listener that shares has counted; `None` for one that does not.
    pub fn sharing_stats(&self) -> Option<SharingStats> {
        self.stats.as_ref().map(|stats| *stats.borrow())
    }

    /// Waits until `holds` is true of what it has counted; `None` if it does not share, or has ended.
    pub async fn sharing_until(&self, holds: impl FnMut(&SharingStats) -> bool) -> Option<SharingStats> {
        let mut stats = self.stats.clone()?;
        stats.wait_for(holds).await.ok().map(|stats| *stats)
    }

    /// What comes next. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Received, ListenError> {
        let received = self.received.recv().await.ok_or(ListenError::Ended)?;
        match &received {
            Received::Events(stream, batch) => {
                self.positions.streams.insert(stream.clone(), batch.last);
            }
            Received::Began(positions) => self.began(positions),
            Received::Counts(_) | Received::Lost | Received::Anew => {}
        }
        Ok(received)
    }

    /// The next event (the paper's `getEvent`). Cancelling it loses nothing.
    pub async fn get_event(&mut self) -> Result<(Stream, Event), ListenError> {
        loop {
            if let Some((stream, event)) = self.events.pop_front() {
                self.positions.streams.insert(stream.clone(), event.seq);
                return Ok((stream, event));
            }
            match self.received.recv().await.ok_or(ListenError::Ended)? {
                Received::Events(stream, batch) => {
                    for event in batch.events() {
                        self.events.push_back((stream.clone(), event?));
                    }
                }
                Received::Began(positions) => self.began(&positions),
                Received::Counts(_) | Received::Lost | Received::Anew => {}
            }
        }
    }

    /// From here on a token says the number that "now" was, so that who resumes from it misses nothing.
    fn began(&mut self, positions: &[(Stream, u64)]) {
        for (stream, after) in positions {
            if let Some(position) = self.positions.streams.get_mut(stream)
                && *position == FROM_NOW
            {
                *position = *after;
            }
        }
    }

    /// How far it got, to go on from there later: what [`Listener::next`] and [`Listener::get_event`] answered.
    pub fn positions(&self) -> &Positions {
        &self.positions
    }
}

struct State {
    env: Env,
    addresses: Vec<String>,
    positions: Positions,
    /// Of the chain that it listened to last.
    lineage: Option<u64>,
    events: mpsc::Sender<Received>,
    /// The greatest epoch of a tail that was heard, or that one was to have.
    epoch: Arc<AtomicU64>,
    /// Whether tails with a smaller one are heard as well.
    hears_all: bool,
}

impl State {
    async fn run(mut self) {
        let client = u128::from(self.env.random_u64());
        loop {
            match link::connect(&self.env, &self.addresses, (client, CLIENT), End::Tail).await {
                Ok(link) if !self.hears_all && link.chain.epoch < self.epoch.load(Ordering::Relaxed) => {
                    tracing::debug!(
                        link.address,
                        link.chain.epoch,
                        "the listener hears no tail of an old chain"
                    );
                }
                Ok(link) => {
                    if let Err(error) = self.serve(link).await {
                        tracing::debug!(%error, "the listener looks for the tail again");
                    }
                    if self.events.send(Received::Lost).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "the listener finds no tail"),
            }
            if self.events.is_closed() {
                return;
            }
            self.env.sleep(RETRY).await;
        }
    }

    /// Its positions go on counting in other events then: it is all that this listener can say. It is said before anything of
    /// those comes.
    async fn look_at_lineage(&mut self, chain: &Chain) -> anyhow::Result<()> {
        let before = self.lineage.replace(chain.lineage);
        if before.is_some_and(|before| before != chain.lineage) {
            tracing::warn!(
                region = chain.region,
                "the region has begun anew: its streams' numbers are those of other events now; listen from the start or from now on"
            );
            self.events.send(Received::Anew).await?;
        }
        Ok(())
    }

    async fn serve(&mut self, mut link: Link) -> anyhow::Result<()> {
        let mut ask_at = self.env.now();
        loop {
            // Another one than the tail may be in no chain yet.
            if link.is_at(&link.chain, End::Tail) {
                self.look_at_lineage(&link.chain).await?;
            }
            self.epoch.fetch_max(link.chain.epoch, Ordering::Relaxed);
            let positions = self.positions.streams.iter().map(|(s, after)| (s.clone(), *after)).collect();
            link.writer.send(&Message::Listen { positions, others: self.positions.others }).await?;
            loop {
                let silent = self.env.now() + SILENCE;
                let next = loop {
                    if self.env.now() >= ask_at {
                        link.writer.send(&ask(&self.env)).await?;
                        ask_at = self.env.now() + ASK;
                    }
                    let until = silent.min(ask_at);
                    match self.env.timeout(until.since(self.env.now()), link.reader.next()).await {
                        Some(next) => break next,
                        None if self.env.now() >= silent => {
                            anyhow::bail!("{} said nothing for {SILENCE:?}", link.address)
                        }
                        None => {}
                    }
                };
                let Some(message) = next? else { anyhow::bail!("{} closed the connection", link.address) };
                match message {
                    Message::Events { stream, batch } => self.received(stream, batch).await?,
                    Message::Listening { positions } => {
                        for (stream, after) in &positions {
                            if let Some(position) = self.positions.streams.get_mut(stream)
                                && *position == FROM_NOW
                            {
                                *position = *after;
                            }
                        }
                        self.events.send(Received::Began(positions)).await?;
                    }
                    Message::Advertise { answers, counts, .. } => {
                        if !counts.is_empty() {
                            let counts = Count::all(&self.env, answers, counts);
                            self.events.send(Received::Counts(counts)).await?;
                        }
                    }
                    Message::Chain(chain) if link.is_at(&chain, End::Tail) => {
                        link.chain = chain;
                        // It is the tail, or about to be: the token may be on its way.
                        self.env.sleep(RETRY).await;
                        break;
                    }
                    Message::Chain(_) => anyhow::bail!("{} is not the tail any more", link.address),
                    other => anyhow::bail!("{} sent {other:?}", link.address),
                }
            }
        }
    }

    async fn received(&mut self, stream: Stream, batch: Batch) -> anyhow::Result<()> {
        let known = self.positions.streams.get(&stream).copied();
        let position = known.unwrap_or(0);
        let batch = if position == batch.after {
            batch
        } else if batch.after < position {
            match batch.rest(position)? {
                Some(rest) => rest,
                None => return Ok(()),
            }
        } else {
            anyhow::bail!("{stream} continues after {}, not {position}", batch.after);
        };
        if known.is_none() && !self.positions.others {
            return Ok(());
        }
        self.positions.streams.insert(stream.clone(), batch.last);
        self.events.send(Received::Events(stream, batch)).await?;
        Ok(())
    }
}
