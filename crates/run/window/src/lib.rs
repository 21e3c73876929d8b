//! The shared window across processes: one process reads a node's cells once, validates what it reads once, and hands
//! it to all processes of its user on this host, which borrow it from where it is.
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
pub mod limits;
mod publisher;
mod readers;
mod shards;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tailwater_client::{Client, ClientConfig, Dialer, ReaderConfig, WindowUse};
use tailwater_env::{Env, Instant};
use tailwater_rma::PassingListener;
use tailwater_tail::window::WindowFrame;
pub use tailwater_tail::window::WindowStats;

use crate::limits::{BEAT_EVERY, BEATS_TOLD, PACE_FOR_READER, PACE_MAX, PACE_MIN};
use crate::publisher::ArenaPublisher;
use crate::readers::{ReaderAsked, ReaderConnections};
use crate::shards::FedShards;

/// What a window needs to know.
#[derive(Clone, Debug)]
pub struct WindowConfig {
    /// The address of the node.
    pub node: String,
    /// The Unix socket where readers connect.
    pub listen: PathBuf,
    /// A shard is fed from so many readers on, at least 1, and until it has less than half as many.
    pub fed_from: usize,
    /// Whom it trusts where cells are in TLS.
    pub dialer: Dialer,
}

/// Serves readers until it is dropped. What it does, `tell` is told once a second, where that has changed.
///
/// # Errors
/// If the node can't be reached or the socket can't be bound, and if there is no memory for an arena.
pub async fn run(env: Env, config: WindowConfig, mut tell: impl FnMut(WindowStats)) -> anyhow::Result<()> {
    let reader = ReaderConfig { lengths_every: Some(PACE_MIN), ..ReaderConfig::default() };
    let client = ClientConfig {
        name: "window".to_owned(),
        reader,
        window: WindowUse::Never,
        dialer: config.dialer.clone(),
        ..ClientConfig::default()
    };
    let client = Client::connect_with(env.clone(), &config.node, client).await?;
    let listener = PassingListener::bind(&config.listen)
        .with_context(|| format!("the window can't listen at {}", config.listen.display()))?;
    let node = WindowFrame::node(client.connected_node_id());
    // Its memory is taken when something is fed for the first time.
    let mut publisher: Option<ArenaPublisher> = None;
    let mut readers = ReaderConnections::new(&env, listener, node);
    let mut shards = FedShards::new(client.clone(), config.fed_from.max(1));
    let mut progress = client.reader().progress();
    let mut beat_at = env.now();
    let mut ring_at = env.now();
    let mut is_due = false;
    let (mut told, mut publications, mut beats) = (WindowStats::default(), 0, 0_u32);
    loop {
        tokio::select! {
            biased;
            () = env.sleep_until(beat_at) => {
                if let Some(publisher) = &publisher {
                    publisher.beat();
                }
                shards.beat();
                beats = beats.wrapping_add(1);
                let stats = WindowStats {
                    readers: readers.count() as u64,
                    readers_fed: readers.greeted() as u64,
                    shards: shards.fed() as u64,
                    publications,
                    bytes: publisher.as_ref().map_or(0, ArenaPublisher::position),
                };
                if beats.is_multiple_of(BEATS_TOLD) && stats != std::mem::replace(&mut told, stats) {
                    tell(stats);
                }
                // What changed of a shard that nothing was written to is told now.
                is_due = true;
                beat_at = env.now() + BEAT_EVERY;
            }
            () = env.sleep_until(ring_at), if is_due || readers.bells().any_is_due() => {
                let Some(publisher) = &mut publisher else {
                    is_due = false;
                    continue;
                };
                if std::mem::take(&mut is_due) && shards.pump(publisher, &mut readers)? {
                    publisher.publish();
                    publications += 1;
                    readers.bells().published();
                }
                if readers.ring_next(publisher) {
                    ring_at = next_ring(ring_at, env.now(), pace(readers.greeted(), readers.bells().used()));
                }
            }
            changed = progress.changed(), if !is_due => {
                changed.context("the reader ended")?;
                is_due = true;
            }
            asked = readers.next() => match asked {
                ReaderAsked::Come(socket) => readers.admit(socket),
                ReaderAsked::Follow(reader, shard) if readers.follows(reader, shard) => {
                    shards.follow(shard);
                    if let Some(publisher) = publisher.as_ref().filter(|_| shards.is_fed(shard)) {
                        readers.greet(reader, publisher);
                    }
                    is_due = true;
                }
                ReaderAsked::Follow(..) => {}
                ReaderAsked::Leave(reader, shard) => {
                    if readers.leaves(reader, shard) {
                        shards.leave(shard);
                        is_due = true;
                    }
                }
                ReaderAsked::Gone(reader) => {
                    readers.gone(reader).into_iter().for_each(|shard| shards.leave(shard));
                    is_due = true;
                }
            },
            started = shards.started() => {
                let shard = started.0;
                shards.take(started);
                if shards.is_fed(shard) {
                    let publisher = match &mut publisher {
                        Some(publisher) => publisher,
                        none => none.insert(ArenaPublisher::create(&env)?),
                    };
                    readers.greet_followers(shard, publisher);
                }
                is_due = true;
            }
        }
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
