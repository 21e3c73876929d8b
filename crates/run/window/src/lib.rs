//! The shared window across processes: one process reads a node's cells once, validates what it reads once, and hands
//! it to all processes of its user on this host, which borrow it from where it is. A node has one for its own host. A
//! *sidecar* is one that somebody starts, on any host.
//!
//! ```text
//!   readers --which shards--> Window <--blocks-- consumers of the client library <-- cells, durable fallback
//!      ^                         `--> the publisher: arenas, notice
//!      `------ mapped, read-only -------'
//! ```
//!
//! It is a client of the node like any other, and nobody depends on it: what it does not bring its readers read by
//! themselves. See [`tailwater_tail::window`] for what it says and how.
//!
//! What holds:
//! - What was published is never changed, and readers can't change it. The window keeps two arenas; others are kept by
//!   who reads in them.
//! - No reader holds it back: one that does not take its arenas is hung up on.
//! - Readers are woken in groups, one after the other, so that what else runs on the host never waits for all of them.
//! - A shard is fed while enough readers follow it that reading for all of them is cheaper than what each reads. A
//!   reader is greeted once it follows one that is fed. Until then it reads by itself, and the window has no arena.
//! - Only processes of its own user, and root's, are served.
//! - Readers, shards and what waits for either are bounded ([`limits`]).

mod bells;
mod kept;
pub mod limits;
mod publisher;
mod readers;
mod shards;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tailwater_client::{
    Client, ClientConfig, ClientLogin, Dialer, ReaderConfig, ReaderStats, Transport, WindowUse,
    sidecar_socket,
};
use tailwater_env::{Env, Instant};
use tailwater_rma::PassingListener;
use tailwater_tail::window::WindowFrame;
pub use tailwater_tail::window::WindowStats;

use crate::kept::{FoundStream, KeptStreams};
use crate::limits::{BEAT_EVERY, BEATS_TOLD, PACE_FOR_READER, PACE_MAX, PACE_MIN};
use crate::publisher::ArenaPublisher;
use crate::readers::{ReaderAsked, ReaderConnections};
use crate::shards::{FedShards, StartedShard};

/// What a window needs to know.
#[derive(Clone, Debug)]
pub struct WindowConfig {
    /// What the node's logs call it.
    pub name: &'static str,
    /// The address of the node.
    pub node: String,
    /// The Unix socket where readers connect. `None`: [`sidecar_socket`].
    pub listen: Option<PathBuf>,
    /// A shard is fed from so many readers on, at least 1, and until it has less than half as many.
    pub fed_from: usize,
    /// Streams that are read whether somebody follows them or not.
    pub streams: Vec<String>,
    /// Which way to the cells.
    pub transport: Transport,
    /// Whom it trusts where cells are in TLS.
    pub dialer: Dialer,
    /// What it logs in with at the node and its cells, if it has to.
    pub login: Option<ClientLogin>,
}

/// What a window does, and how it is, for whoever watches it. Counters begin with the window.
#[derive(Clone, Debug)]
pub struct WindowReport {
    /// What it does for readers.
    pub stats: WindowStats,
    /// What it has read, and how.
    pub reads: ReaderStats,
    /// Bytes of blocks that it published, each counted for every reader that followed its shard then.
    pub bytes_lent: u64,
    /// When it published a block last.
    pub published_at: Option<Instant>,
    /// Records that it knows of and has not published.
    pub behind: u64,
    /// Why it does not read all [`WindowConfig::streams`].
    pub missing: Option<String>,
}

/// Serves readers until it is dropped. `tell` is told how it is once a second.
///
/// # Errors
/// If the node can't be reached or the socket can't be bound, and if there is no memory for an arena.
pub async fn run(env: Env, config: WindowConfig, mut tell: impl FnMut(WindowReport)) -> anyhow::Result<()> {
    let mut window = ServingWindow::start(env.clone(), config).await?;
    let mut progress = window.client.reader().progress();
    let (mut beat_at, mut ring_at) = (env.now(), env.now());
    loop {
        tokio::select! {
            biased;
            () = env.sleep_until(beat_at) => {
                if let Some(report) = window.beat() {
                    tell(report);
                }
                beat_at = env.now() + BEAT_EVERY;
            }
            () = env.sleep_until(ring_at), if window.is_due || window.readers.bells().any_is_due() => {
                if window.ring()? {
                    let pace = pace(window.readers.greeted(), window.readers.bells().used());
                    ring_at = next_ring(ring_at, env.now(), pace);
                }
            }
            changed = progress.changed(), if !window.is_due => {
                changed.context("the reader ended")?;
                window.is_due = true;
            }
            asked = window.readers.next() => window.take(asked),
            started = window.shards.started() => window.take_started(started)?,
            found = window.kept.found() => window.take_found(found),
        }
    }
}

/// A window that serves, between two things that happen.
struct ServingWindow {
    env: Env,
    client: Client,
    /// Its memory is taken when something is fed for the first time.
    publisher: Option<ArenaPublisher>,
    readers: ReaderConnections,
    shards: FedShards,
    kept: KeptStreams,
    /// There may be something to publish.
    is_due: bool,
    publications: u64,
    published_at: Option<Instant>,
    beats: u32,
}

impl ServingWindow {
    async fn start(env: Env, config: WindowConfig) -> anyhow::Result<Self> {
        let reader = ReaderConfig { lengths_every: Some(PACE_MIN), ..ReaderConfig::default() };
        let of_client = ClientConfig {
            name: config.name.to_owned(),
            transport: config.transport,
            reader,
            window: WindowUse::Never,
            dialer: config.dialer,
            login: config.login,
            ..ClientConfig::default()
        };
        let client = Client::connect_with(env.clone(), &config.node, of_client).await?;
        let node_id = client.connected_node_id();
        let listen = config.listen.or_else(|| sidecar_socket(node_id));
        let listen = listen.with_context(|| format!("the node has no id, but {node_id:?}"))?;
        let listener = PassingListener::bind(&listen)
            .with_context(|| format!("the {} can't listen at {}", config.name, listen.display()))?;
        tracing::info!(socket = %listen.display(), node = config.node, "the {} listens", config.name);
        let readers = ReaderConnections::new(&env, listener, WindowFrame::node(node_id));
        let shards = FedShards::new(client.clone(), config.fed_from.max(1));
        let kept = KeptStreams::new(client.clone(), config.streams);
        Ok(Self {
            env,
            client,
            publisher: None,
            readers,
            shards,
            kept,
            is_due: false,
            publications: 0,
            published_at: None,
            beats: 0,
        })
    }

    /// Says that it is alive; what there is to tell, now and then.
    fn beat(&mut self) -> Option<WindowReport> {
        if let Some(publisher) = &self.publisher {
            publisher.beat();
        }
        self.shards.beat();
        self.kept.beat();
        self.beats = self.beats.wrapping_add(1);
        // What changed of a shard that nothing was written to is told now.
        self.is_due = true;
        self.beats.is_multiple_of(BEATS_TOLD).then(|| self.report())
    }

    fn report(&self) -> WindowReport {
        let unfed = self.shards.kept_unfed();
        let unfed = (unfed > 0).then(|| format!("{unfed} shards of its streams can't be read yet"));
        WindowReport {
            stats: WindowStats {
                readers: self.readers.count() as u64,
                readers_fed: self.readers.greeted() as u64,
                shards: self.shards.fed() as u64,
                publications: self.publications,
                bytes: self.publisher.as_ref().map_or(0, ArenaPublisher::position),
            },
            reads: self.client.reader_stats(),
            bytes_lent: self.shards.lent(),
            published_at: self.published_at,
            behind: self.shards.behind(),
            missing: self.kept.missing().or(unfed),
        }
    }

    /// Publishes what there is, and rings the next bell that is due; whether one rang.
    fn ring(&mut self) -> anyhow::Result<bool> {
        let is_due = std::mem::take(&mut self.is_due);
        let Some(publisher) = &mut self.publisher else { return Ok(false) };
        if is_due {
            let pumped = self.shards.pump(publisher, &mut self.readers)?;
            if pumped.any {
                publisher.publish();
                self.publications += 1;
                self.readers.bells().published();
            }
            if pumped.any_block {
                self.published_at = Some(self.env.now());
            }
        }
        Ok(self.readers.ring_next(publisher))
    }

    fn take(&mut self, asked: ReaderAsked) {
        match asked {
            ReaderAsked::Come(socket) => self.readers.admit(socket),
            ReaderAsked::Follow(reader, shard) if self.readers.follows(reader, shard) => {
                if !self.shards.follow(shard) {
                    // Who is not counted must not be taken off when it leaves.
                    self.readers.leaves(reader, shard);
                    return;
                }
                if let Some(publisher) = self.publisher.as_ref().filter(|_| self.shards.is_fed(shard)) {
                    self.readers.greet(reader, publisher);
                }
                self.is_due = true;
            }
            ReaderAsked::Follow(..) => {}
            ReaderAsked::Leave(reader, shard) => {
                if self.readers.leaves(reader, shard) {
                    self.shards.leave(shard);
                    self.is_due = true;
                }
            }
            ReaderAsked::Gone(reader) => {
                self.readers.gone(reader).into_iter().for_each(|shard| self.shards.leave(shard));
                self.is_due = true;
            }
        }
    }

    fn take_started(&mut self, started: StartedShard) -> anyhow::Result<()> {
        let shard = started.0;
        self.shards.take(started);
        if self.shards.is_fed(shard) {
            let publisher = match &mut self.publisher {
                Some(publisher) => publisher,
                none => none.insert(ArenaPublisher::create(&self.env)?),
            };
            self.readers.greet_followers(shard, publisher);
        }
        self.is_due = true;
        Ok(())
    }

    fn take_found(&mut self, found: FoundStream) {
        let change = self.kept.take(found);
        if let Some(gone) = change.gone {
            self.shards.unkeep(&gone);
        }
        if let Some(new) = change.new {
            self.shards.keep(&new);
        }
        self.is_due = true;
    }
}

/// When the next bell rings, after one that was due at `last`.
fn next_ring(last: Instant, now: Instant, pace: Duration) -> Instant {
    // Timers are late, and a round of bells must not be late by all of that.
    (last + pace).max(now + pace / 2)
}

/// How long after one bell of so many readers and bells the next one rings.
fn pace(readers: usize, bells: usize) -> Duration {
    let round = PACE_FOR_READER * u32::try_from(readers).unwrap_or(u32::MAX);
    round.clamp(PACE_MIN, PACE_MAX) / u32::try_from(bells).unwrap_or(u32::MAX).max(1)
}
