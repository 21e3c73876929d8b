//! A cell as its clients see it: keys and values over some backends, read one-sidedly.
//!
//! What holds:
//! - A value is never wrong: it was SET for that key, whole, at the version it is answered with. It may be
//!   old, most of all from a relaxed read, and any key may be missing at any time.
//! - Whoever awaited `set(k, v1)` and then `set(k, v2)` leaves `v2`, as long as a quorum acknowledged both.
//! - No operation outlasts the deadline; nothing here waits for a backend that is gone. With one of three
//!   replicas gone everything works; with two gone consistent reads and SETs fail at once and relaxed reads use
//!   what is there.
//! - Queues, batches, retries and buffers are bounded.
//!
//! Cancelling a read abandons it. Cancelling a SET leaves open whether it comes about.

mod backends;
mod buffers;
mod consistent;
mod hedge;
mod lookup;
mod mapped;
mod placement;
mod quorum;
mod relaxed;
mod replica;
mod sender;
mod set;
mod stats;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tailwater_env::{Env, Task};
use tailwater_rma::CallError;
use tokio::sync::watch;

pub use backends::{Backends, Connector, instance_of};
pub use placement::Mode;
pub use stats::CellStats;

use crate::limits::{BACKENDS_MAX, KEYS_PER_LOOKUP_MAX, MUTATE_ENTRIES_MAX};
use crate::protocol::METHOD_CLEAR;
use crate::version::{Version, VersionClock};
use buffers::BufferPool;
use hedge::{HedgeBudget, Usual};
use replica::{KeepConfig, Replica, keep_connected};
use sender::{SendConfig, Sender};
use stats::Counters;

/// What a lookup brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key's value.
    Hit {
        /// The version it was SET at.
        version: Version,
        /// Its bytes, checked; they borrow from a buffer that may hold other values as well.
        value: Bytes,
    },
    /// The replicas that count hold no value.
    Miss,
    /// Nothing can be said.
    Failed(CellFailure),
}

/// `parts` as one piece, without a copy, if they lie one behind the other in one of `frames` and are at least half of
/// it: the piece keeps all of the frame.
pub fn joined<'a>(parts: impl IntoIterator<Item = &'a [u8]>, frames: &[Bytes]) -> Option<Bytes> {
    let mut place: Option<Range<usize>> = None;
    for part in parts {
        let begin = part.as_ptr().addr();
        let behind = place.get_or_insert(begin..begin);
        if behind.end != begin {
            return None;
        }
        behind.end += part.len();
    }
    let Range { start, end } = place?;
    frames.iter().find_map(|frame| {
        let begin = frame.as_ptr().addr();
        let is_within = begin <= start && end <= begin + frame.len();
        (is_within && frame.len() <= 2 * (end - start)).then(|| frame.slice(start - begin..end - begin))
    })
}

/// Why nothing can be said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellFailure {
    /// Too few of its replicas are connected.
    #[error("too few replicas are reachable")]
    Unreachable,
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// Its replicas went on disagreeing.
    #[error("the replicas do not agree")]
    NoQuorum,
    /// Its bytes were torn as often as we looked.
    #[error("it changed as often as it was read")]
    Torn,
}

/// Why a SET or ERASE was not acknowledged by a quorum. It may still have been applied by some replicas, except
/// where it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Key or value are longer than the limits; nothing was sent.
    #[error("a key of {key_len} or a value of {value_len} bytes is too large")]
    TooLarge {
        /// Bytes of the key.
        key_len: usize,
        /// Bytes of the value.
        value_len: usize,
    },
    /// The queues to too many of its backends are full: come back later.
    #[error("too many SETs are waiting already")]
    Overloaded,
    /// Too few of its replicas answer.
    #[error("too few replicas are reachable")]
    Unreachable,
    /// No quorum answered before the deadline.
    #[error("the deadline passed")]
    Deadline,
    /// Another client holds the key at a higher version, again and again or by a clock far ahead of ours.
    #[error("superseded by version {held}")]
    Superseded {
        /// Its version.
        held: Version,
    },
}

/// How a client takes part in a cell.
#[derive(Clone, Debug)]
pub struct CellConfig {
    /// The cell's config id; backends of another one are not read from.
    pub id: u64,
    /// How many replicas a key has.
    pub mode: Mode,
    /// The backends, in the same order for all clients.
    pub backends: Backends,
    /// This client's id in versions: unique among the clients of the cell, for example random.
    pub client_id: u32,
    /// The longest that an operation takes.
    pub deadline: Duration,
    /// The longest that one attempt to connect to a backend takes, at all of its addresses together.
    pub connect_deadline: Duration,
    /// After this long a relaxed read also asks another replica, if its backend has not answered anything for as
    /// long; else only one read in 20 does.
    pub hedge_after: Duration,
    /// SETs that wait for one backend, in bytes of their entries.
    pub queue_bytes_max: usize,
    /// SETs that wait for one backend.
    pub queue_entries_max: usize,
    /// The pause before a lost backend is connected again, at first; it doubles each time.
    pub reconnect_after_min: Duration,
    /// The longest such pause.
    pub reconnect_after_max: Duration,
    /// How long one WATCH lasts, and how often it is looked whether an unwatched backend is still there. Moves
    /// are told at once; this only bounds how long a lost connection goes unnoticed while nobody uses it.
    pub watch_slice: Duration,
}

impl CellConfig {
    /// The defaults: half a second's deadline, hedging after 30 ms (Fast ACS, section 2.4), 64 MiB of SETs
    /// waiting for each backend.
    pub fn new(id: u64, mode: Mode, backends: Backends, client_id: u32) -> Self {
        Self {
            id,
            mode,
            backends,
            client_id,
            deadline: Duration::from_millis(500),
            connect_deadline: Duration::from_secs(1),
            hedge_after: Duration::from_millis(30),
            queue_bytes_max: 64 << 20,
            queue_entries_max: 65_536,
            reconnect_after_min: Duration::from_millis(10),
            reconnect_after_max: Duration::from_secs(1),
            watch_slice: Duration::from_secs(4),
        }
    }
}

/// A cell that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cell of {backends} backends: {mode:?} needs at least {} and at most {BACKENDS_MAX}", mode.replicas())]
pub struct CellConfigError {
    /// Backends given.
    pub backends: usize,
    /// The mode they are for.
    pub mode: Mode,
}

/// How far a watcher has seen; the default has seen nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(u64);

/// A handle on a cell; cheap to clone. The connections end with the last one.
#[derive(Clone)]
pub struct Cell {
    inner: Arc<CellInner>,
}

/// What all handles share.
struct CellInner {
    env: Env,
    config_id: u64,
    mode: Mode,
    deadline: Duration,
    hedge_after: Duration,
    hedges: HedgeBudget,
    usual: Usual,
    sending: SendConfig,
    versions: VersionClock,
    replicas: Vec<Arc<Replica>>,
    buffers: BufferPool,
    counters: Counters,
    /// Counts what the doorbells and connections of all backends did.
    moved: Arc<watch::Sender<u64>>,
    /// Connecting and sending; cancelled when dropped.
    _tasks: Vec<Task>,
}

impl Drop for CellInner {
    fn drop(&mut self) {
        for replica in &self.replicas {
            replica.sender.close();
        }
    }
}

impl CellInner {
    fn count_bytes(&self, bytes: usize) {
        self.counters.bytes.add(bytes as u64);
    }
}

impl Cell {
    /// Connects to all backends at once, and returns when each of them was reached or not: a cell whose backends
    /// are all gone is a cell, in which everything fails until they are back.
    pub async fn connect(env: &Env, config: CellConfig) -> Result<Self, CellConfigError> {
        let backends = config.backends.count;
        if backends < config.mode.replicas() || backends > BACKENDS_MAX {
            return Err(CellConfigError { backends, mode: config.mode });
        }
        let moved = Arc::new(watch::Sender::new(0));
        let keep = KeepConfig {
            config_id: config.id,
            connect_deadline: config.connect_deadline,
            backoff_min: config.reconnect_after_min,
            backoff_max: config.reconnect_after_max,
            watch_slice: config.watch_slice,
        };
        let sending = SendConfig { env: env.clone(), config_id: config.id, call_deadline: config.deadline };
        let mut replicas = Vec::with_capacity(backends);
        let mut tasks = Vec::with_capacity(2 * backends);
        let mut tried = Vec::with_capacity(backends);
        for number in 0..backends {
            let sender = Sender::new(config.queue_bytes_max, config.queue_entries_max);
            let replica = Arc::new(Replica::new(number, sender));
            let (trying, is_tried) = watch::channel(false);
            let connecting = keep_connected(
                env.clone(),
                keep,
                Arc::clone(&replica),
                Arc::clone(&config.backends.connector),
                trying,
                Arc::clone(&moved),
            );
            tasks.push(env.spawn("cache-connect", connecting));
            let sending = sender::keep_sending(sending.clone(), Arc::clone(&replica));
            tasks.push(env.spawn("cache-send", sending));
            replicas.push(replica);
            tried.push(is_tried);
        }
        for mut tried in tried {
            // An error would mean that the task ended, which only dropping does.
            let _ = tried.wait_for(|tried| *tried).await;
        }
        let inner = CellInner {
            env: env.clone(),
            config_id: config.id,
            mode: config.mode,
            deadline: config.deadline,
            hedge_after: config.hedge_after,
            hedges: HedgeBudget::new(),
            usual: Usual::default(),
            sending,
            versions: VersionClock::new(config.client_id),
            replicas,
            buffers: BufferPool::default(),
            counters: Counters::default(),
            moved,
            _tasks: tasks,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Looks keys up at one replica each, chosen at random. Answers in the order of the keys.
    pub async fn get_relaxed(&self, keys: &[Bytes]) -> Vec<Lookup> {
        self.get_relaxed_with_frames(keys, usize::MAX).await.0
    }

    /// The same, and what values borrow from that came over a socket. Those that one backend sent together, in the
    /// order of the keys, lie next to each other in it: see [`joined`]. Of those that came over a socket, values of
    /// `unchecked_from` bytes or more are whatever the backend had where they lay when it sent them: for whoever checks
    /// what is in them in any case.
    pub async fn get_relaxed_with_frames(
        &self,
        keys: &[Bytes],
        unchecked_from: usize,
    ) -> (Vec<Lookup>, Vec<Bytes>) {
        let mut frames = Vec::new();
        let mut lookups = Vec::with_capacity(keys.len());
        let mut end = None;
        for some in keys.chunks(KEYS_PER_LOOKUP_MAX) {
            self.inner.hedges.earn(some.len());
            lookups.extend(relaxed::get(&self.inner, some, unchecked_from, &mut end, &mut frames).await);
        }
        self.inner.counters.relaxed.add(keys.len() as u64);
        self.inner.counters.count(&lookups);
        (lookups, frames)
    }

    /// Looks keys up by quorum. Answers in the order of the keys.
    pub async fn get_consistent(&self, keys: &[Bytes]) -> Vec<Lookup> {
        let mut lookups = Vec::with_capacity(keys.len());
        let mut end = None;
        for some in keys.chunks(KEYS_PER_LOOKUP_MAX) {
            lookups.extend(consistent::get(&self.inner, some, &mut end).await);
        }
        self.inner.counters.consistent.add(keys.len() as u64);
        self.inner.counters.count(&lookups);
        lookups
    }

    /// Sets keys to values, and answers each when a quorum has it, with the version it has it at.
    pub async fn set(&self, items: Vec<(Bytes, Bytes)>) -> Vec<Result<Version, SetError>> {
        self.mutate(items.into_iter().map(|(key, value)| (key, Some(value))).collect()).await
    }

    /// Erases keys, and answers each when a quorum has forgotten it, with the version it did at.
    pub async fn erase(&self, keys: Vec<Bytes>) -> Vec<Result<Version, SetError>> {
        self.mutate(keys.into_iter().map(|key| (key, None)).collect()).await
    }

    async fn mutate(&self, items: Vec<(Bytes, Option<Bytes>)>) -> Vec<Result<Version, SetError>> {
        let mut results = Vec::with_capacity(items.len());
        let deadline = self.inner.env.now() + self.inner.deadline;
        for some in items.chunks(MUTATE_ENTRIES_MAX) {
            results.extend(set::mutate(&self.inner, some, deadline).await);
        }
        self.inner.counters.count_sets(&results);
        results
    }

    /// Completes when any backend's doorbell moved, or its connection came or went, since `seen`, or at the
    /// deadline; `true` if something moved. `seen` is then up to date. Any number of tasks may wait: the
    /// backends are asked once for all of them.
    pub async fn watch(&self, seen: &mut Seen, deadline: Duration) -> bool {
        for replica in &self.inner.replicas {
            replica.watch();
        }
        let mut moved = self.inner.moved.subscribe();
        let changed = moved.wait_for(|count| *count != seen.0);
        let changed = self.inner.env.timeout(deadline, changed).await.is_some();
        *seen = Seen(*self.inner.moved.borrow());
        changed
    }

    /// Empties every backend that is reached; answers how many were.
    pub async fn clear(&self) -> usize {
        let clear = async |replica: &Replica| {
            let Some(live) = replica.live() else { return false };
            let call = live.connection.call(METHOD_CLEAR, Bytes::new());
            match self.inner.env.timeout(self.inner.deadline, call).await {
                Some(Ok(_)) => true,
                Some(Err(CallError::Lost(_))) => {
                    replica.give_up(&live);
                    false
                }
                Some(Err(CallError::Overloaded { .. } | CallError::Refused { .. })) | None => false,
            }
        };
        let cleared = join_all(self.inner.replicas.iter().map(|replica| clear(replica))).await;
        cleared.into_iter().filter(|cleared| *cleared).count()
    }

    /// Backends that are connected.
    pub fn live_backends(&self) -> usize {
        self.inner.replicas.iter().filter(|replica| replica.is_live()).count()
    }

    /// Of each backend that is connected, in their order, which start of it that is ([`instance_of`]).
    pub fn instances(&self) -> Vec<Option<u64>> {
        let instance = |replica: &Arc<Replica>| Some(replica.live()?.index.generation);
        self.inner.replicas.iter().map(instance).collect()
    }

    /// What this handle's family counted.
    pub fn stats(&self) -> CellStats {
        self.inner.counters.stats()
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cell({:#x})", self.inner.config_id)
    }
}

#[cfg(test)]
mod tests;
