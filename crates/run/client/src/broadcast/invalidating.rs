//! A local cache that is told of every change of the keys that it holds.
//!
//! What holds:
//! - A value is forgotten when an event with its key arrives; an event without a key, or a tombstone whose events
//!   may have had any key, forgets everything.
//! - A value that was being loaded while its key changed is not kept: a [`Load`] begins before the source is read,
//!   and keeps its value only if nothing that could concern it came since.
//! - It knows when it may be stale: [`Cached::Fresh`] is answered at a time T only if every event is applied whose
//!   publish was answered before T - [`fresh_for`](InvalidatingConfig::fresh_for), in whichever region. The proxy says
//!   how far the stream is, and how old it is what it knows of the stream's own region; that counts from when it was
//!   asked, so neither a cut link, nor a replica that was removed and does not know, nor bytes that waited make a value
//!   look fresh.
//! - When the stream's region has begun anew, which gives the numbers of events that it heard to others, it forgets
//!   everything and begins again from now on; whichever region it listens in, once that has heard of it. Until then
//!   values get stale.
//! - When retention removed events of the stream before they arrived, it does so as well.
//! - Where a bridge tells the stream what changes in a cell, values are fresh only as far as the bridge says that it
//!   has told all: a bridge that is gone tells nothing, and neither does the proxy say so.

mod applied;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_broadcast::client::{ListenError, Listener, Received, ReplicasAt, Sharing};
use tailwater_broadcast::{Batch, Kind, Positions, Stream};
use tailwater_env::{Env, HashMap, Instant, Task};
use tokio::sync::Notify;

use self::applied::Applied;
use super::of_cell::{CELL_AS_OF_KEY, as_of_ms};

/// How often the proxy is asked how far it is at least.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A pause after it could not listen for others.
const RETRY: Duration = Duration::from_secs(1);
/// Answers of the proxy that wait until all that it had is applied.
const TOLD_MAX: usize = 16;

/// How a cache is kept.
#[derive(Clone, Debug)]
pub struct InvalidatingConfig {
    /// Values at most; beyond it the one that was used longest ago is forgotten.
    pub entries_max: usize,
    /// How old it may be what is known of the stream's own region for values to count as fresh. The proxy is asked
    /// twice a second; to that comes `advertise_ms`, some milliseconds and the way there and back for each replica
    /// behind the head and each region that what it says came through.
    pub fresh_for: Duration,
    /// Whether all events of the stream collect by key only. Then the event that made another one obsolete has
    /// its key, and a tombstone forgets nothing.
    pub collects_by_key: bool,
    /// Whether the stream is that of a bridge from a cell ([`super::cell_event_key`] names the keys). Then values count
    /// as fresh only if all that changed [`fresh_for`](Self::fresh_for) ago is told by the bridge's own word, too, as
    /// far as its wall clock and this one agree. The bridge is about four seconds behind, so `fresh_for` has to be
    /// more. Events collect as with `collects_by_key`.
    pub of_cell: bool,
    /// Whether it gets most events from the region's other listeners and caches that share, and passes them on to
    /// others ([`Listener::sharing`]), so that thousands of caches don't load the proxy. It is `Fresh` by the same word
    /// of the proxy's, which each of them asks all the same. Where it can't listen for the others it says so in the
    /// log, tries again, and keeps nothing meanwhile.
    pub sharing: Option<Sharing>,
}

impl Default for InvalidatingConfig {
    fn default() -> Self {
        Self {
            entries_max: 100_000,
            fresh_for: Duration::from_secs(2),
            collects_by_key: false,
            of_cell: false,
            sharing: None,
        }
    }
}

/// A value of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached<V> {
    /// No change of its key has arrived, and all have whose publish was answered before
    /// [`fresh_for`](InvalidatingConfig::fresh_for) ago.
    Fresh(V),
    /// No change of its key has arrived, but there may be one that is older than that.
    MaybeStale(V),
}

impl<V> Cached<V> {
    /// The value, fresh or not.
    pub fn into_value(self) -> V {
        match self {
            Cached::Fresh(value) | Cached::MaybeStale(value) => value,
        }
    }
}

/// The cache; cheap to clone. It listens until the last clone is dropped.
#[derive(Debug)]
pub struct InvalidatingCache<V> {
    shared: Arc<InvalidatingShared<V>>,
    _task: Arc<Task>,
}

impl<V> Clone for InvalidatingCache<V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), _task: Arc::clone(&self._task) }
    }
}

#[derive(Debug)]
struct InvalidatingShared<V> {
    env: Env,
    config: InvalidatingConfig,
    state: Mutex<InvalidatingState<V>>,
    /// Told of every change of `position` and `fresh_as_of`.
    moved: Notify,
}

#[derive(Debug)]
struct InvalidatingState<V> {
    entries: HashMap<Bytes, (V, u64)>,
    by_use: BTreeMap<u64, Bytes>,
    uses: u64,
    /// Loads under way: how many, and how often their key changed meanwhile.
    loads: HashMap<Bytes, (usize, u64)>,
    /// How often everything was forgotten.
    clears: u64,
    /// Whether changes are being listened to: what was loaded before may have missed some.
    began: bool,
    /// No value from before this number is kept, once it is known where the stream was at the beginning.
    position: Option<u64>,
    fresh_as_of: Option<Instant>,
    /// Until then the bridge has told all, by its own word and both wall clocks.
    bridge_as_of: Option<Instant>,
}

impl<V: Clone + Send + 'static> InvalidatingCache<V> {
    /// A cache that listens to `stream` from now on, at the region whose replicas are at `addresses`. It is empty,
    /// and keeps nothing until it hears the proxy.
    pub fn new(
        env: &Env,
        addresses: impl Into<ReplicasAt>,
        stream: Stream,
        config: InvalidatingConfig,
    ) -> Self {
        let state = InvalidatingState {
            entries: HashMap::default(),
            by_use: BTreeMap::new(),
            uses: 0,
            loads: HashMap::default(),
            clears: 0,
            began: false,
            position: None,
            fresh_as_of: None,
            bridge_as_of: None,
        };
        let shared = Arc::new(InvalidatingShared {
            env: env.clone(),
            config,
            state: Mutex::new(state),
            moved: Notify::new(),
        });
        let listening = listen(Arc::clone(&shared), addresses.into(), stream);
        Self { shared, _task: Arc::new(env.spawn("invalidating-cache", listening)) }
    }

    /// A key's value, if it is there.
    pub fn get(&self, key: &[u8]) -> Option<Cached<V>> {
        let mut state = self.shared.state.lock();
        let fresh = state.fresh_until(&self.shared.config).is_some_and(|end| self.shared.env.now() < end);
        let value = state.used(key)?;
        Some(if fresh { Cached::Fresh(value) } else { Cached::MaybeStale(value) })
    }

    /// Begins to load a key: call it before the source is read, and [`Load::store`] with what was read.
    pub fn load(&self, key: &[u8]) -> Load<V> {
        let key = Bytes::copy_from_slice(key);
        let mut state = self.shared.state.lock();
        let (clears, began) = (state.clears, state.began);
        let load = state.loads.entry(key.clone()).or_insert((0, 0));
        load.0 += 1;
        Load { shared: Arc::clone(&self.shared), key, changes: load.1, clears, began }
    }

    /// A key's value, fresh from here or from `source`. An error of the source is answered, and kept by nobody.
    pub async fn get_or_load<E, F: Future<Output = Result<V, E>>>(
        &self,
        key: &[u8],
        source: impl FnOnce() -> F,
    ) -> Result<V, E> {
        if let Some(Cached::Fresh(value)) = self.get(key) {
            return Ok(value);
        }
        let load = self.load(key);
        let value = source().await?;
        load.store(value.clone());
        Ok(value)
    }

    /// Completes when values count as fresh: at once if they do, and not before somebody published in the stream, since
    /// the proxy knows nothing of it until then. Cancelling it loses nothing, here and below.
    pub async fn fresh(&self) {
        let shared = &*self.shared;
        let is_fresh = |state: &InvalidatingState<V>| {
            state.fresh_until(&shared.config).is_some_and(|end| shared.env.now() < end)
        };
        shared.until(is_fresh).await;
    }

    /// Completes when values don't count as fresh any more: at once if they don't. Who must not answer from an old
    /// copy can stop here, and go on with [`InvalidatingCache::fresh`].
    pub async fn stale(&self) {
        let shared = &*self.shared;
        loop {
            let end = shared.state.lock().fresh_until(&shared.config);
            match end {
                Some(end) if shared.env.now() < end => shared.env.sleep_until(end).await,
                _ => return,
            }
        }
    }

    /// Completes when all events up to the number `seq` were applied: no value from before them is answered any more.
    /// With [`InvalidatingConfig::collects_by_key`] also those that made them obsolete, if it heard of a tombstone
    /// only; that may take until the proxy says how far it is. `seq` is what
    /// [`Publisher::publish`](super::Publisher::publish) answered for the cache's stream, in this process or in another
    /// one, and so who changes something and awaits this reads what he wrote.
    pub async fn reached(&self, seq: u64) {
        self.shared.until(|state| state.position.is_some_and(|position| position >= seq)).await;
    }

    /// All events are applied whose publish was answered before then, in whichever region, and the bridge from a cell
    /// has told of all that changed before then, if the stream has one; `None` if that is not known.
    pub fn fresh_as_of(&self) -> Option<Instant> {
        self.shared.state.lock().as_of(&self.shared.config)
    }

    /// Values that it holds.
    pub fn len(&self) -> usize {
        self.shared.state.lock().entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V> InvalidatingShared<V> {
    /// Completes when something holds that `moved` is told of.
    async fn until(&self, holds: impl Fn(&InvalidatingState<V>) -> bool) {
        loop {
            let moved = self.moved.notified();
            // From now on nothing is missed.
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            if holds(&self.state.lock()) {
                return;
            }
            moved.await;
        }
    }
}

/// A load under way.
#[derive(Debug)]
#[must_use = "what was read is kept by `store`"]
pub struct Load<V> {
    shared: Arc<InvalidatingShared<V>>,
    key: Bytes,
    changes: u64,
    clears: u64,
    began: bool,
}

impl<V> Load<V> {
    /// Keeps what was read from the source after the load began, unless the key changed meanwhile; answers whether
    /// it did.
    pub fn store(self, value: V) -> bool {
        let mut state = self.shared.state.lock();
        let changes = state.loads.get(&self.key).map(|load| load.1);
        let keeps = self.began && state.clears == self.clears && changes == Some(self.changes);
        if keeps {
            state.insert(self.key.clone(), value, self.shared.config.entries_max);
        }
        keeps
    }
}

impl<V> Drop for Load<V> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(load) = state.loads.get_mut(&self.key) {
            load.0 -= 1;
            if load.0 == 0 {
                state.loads.remove(&self.key);
            }
        }
    }
}

impl<V> InvalidatingState<V> {
    fn as_of(&self, config: &InvalidatingConfig) -> Option<Instant> {
        // None is less than any time.
        if config.of_cell { self.fresh_as_of.min(self.bridge_as_of) } else { self.fresh_as_of }
    }

    /// Until when values count as fresh.
    fn fresh_until(&self, config: &InvalidatingConfig) -> Option<Instant> {
        Some(self.as_of(config)? + config.fresh_for)
    }

    /// The bridge had told all up to a time by its wall clock, so long ago by this one.
    fn told_until(&mut self, now: Instant, ago: Duration) {
        // Before this process's time there is no instant.
        let as_of = (now.since(Instant::from_ns(0)) > ago).then(|| now - ago);
        self.bridge_as_of = self.bridge_as_of.max(as_of);
    }

    fn insert(&mut self, key: Bytes, value: V, entries_max: usize) {
        self.forget(&key);
        if self.entries.len() >= entries_max.max(1)
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.uses += 1;
        self.by_use.insert(self.uses, key.clone());
        self.entries.insert(key, (value, self.uses));
    }

    fn used(&mut self, key: &[u8]) -> Option<V>
    where
        V: Clone,
    {
        let (value, used) = self.entries.get_mut(key)?;
        self.uses += 1;
        let key = self.by_use.remove(used)?;
        self.by_use.insert(self.uses, key);
        *used = self.uses;
        Some(value.clone())
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some((_, used)) = self.entries.remove(key) {
            self.by_use.remove(&used);
        }
    }

    fn changed(&mut self, key: &[u8]) {
        self.forget(key);
        if let Some(load) = self.loads.get_mut(key) {
            load.1 += 1;
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.by_use.clear();
        self.clears += 1;
    }
}

/// A listener as the configuration says.
async fn begin<V>(shared: &InvalidatingShared<V>, addresses: &ReplicasAt, stream: &Stream) -> Listener {
    let positions = || Positions::now([stream.clone()]);
    let Some(sharing) = &shared.config.sharing else {
        return Listener::new(&shared.env, addresses.clone(), positions());
    };
    let sharing = Sharing { ask_every: sharing.ask_every.min(ASK_EVERY), ..sharing.clone() };
    loop {
        match Listener::sharing(&shared.env, addresses.clone(), positions(), sharing.clone()).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::warn!(%stream, %error, "a cache can't listen for others, and keeps nothing meanwhile");
                shared.env.sleep(RETRY).await;
            }
        }
    }
}

/// Follows the stream, anew if what the proxy has of it is not what it was.
async fn listen<V: Send + 'static>(
    shared: Arc<InvalidatingShared<V>>,
    addresses: ReplicasAt,
    stream: Stream,
) {
    let shares = shared.config.sharing.is_some();
    loop {
        let mut listener = begin(&shared, &addresses, &stream).await;
        let mut position = None;
        let mut applied = Applied::default();
        // How far the proxy said it was, and when the stream's own region had acknowledged no more than that: what is
        // newer than all that is applied.
        let mut told: VecDeque<(u64, Instant)> = VecDeque::new();
        loop {
            match listener.next().await {
                Ok(Received::Began(began)) if position.is_none() => {
                    position = began.iter().find(|(s, _)| *s == stream).map(|(_, at)| at.seq);
                    applied = Applied::from(position.unwrap_or(0));
                    shared.state.lock().began = true;
                }
                Ok(Received::Events(_, batch)) => {
                    let Ok(skipped) = apply(&shared, &batch) else { break };
                    applied.arrive(batch.last, skipped);
                    position = Some(batch.last);
                }
                Ok(Received::Counts(counts)) => {
                    let found = counts.iter().find(|told| told.stream == stream);
                    let (count, as_of) = found.map_or((0, None), |told| (told.count, told.as_of));
                    let now = shared.env.now();
                    // Through one connection all comes in order: the proxy knew of what it had sent. What others send
                    // may be newer than what it said.
                    let knew_all_until = if shares { as_of } else { Some(now) };
                    if !applied.tell(now, count, knew_all_until) {
                        break; // All replicas were lost, and numbers begin anew.
                    }
                    if let Some(as_of) = as_of {
                        told.truncate(TOLD_MAX - 1);
                        told.push_front((count, as_of));
                    }
                }
                Ok(Received::Began(_) | Received::Lost) => {
                    // Another proxy may not say yet what the one before it knew.
                    if !shares && applied.is_owed() {
                        shared.state.lock().clear();
                        applied.clear();
                    }
                }
                // It goes on by itself.
                Err(ListenError::Refused(why)) => {
                    tracing::warn!(%stream, why, "a cache hears nothing of its stream, and is stale meanwhile");
                }
                // What comes has the numbers of what was applied, or greater ones: they say nothing of what is missing.
                // And nothing says which keys were changed by what was removed.
                Ok(Received::Anew { .. } | Received::Removed { .. }) | Err(_) => break,
            }
            if position.is_some() {
                let mut state = shared.state.lock();
                state.position = Some(applied.upto());
                // What arrived may be a tombstone of what is not applied.
                if let Some(at) = told.iter().position(|(count, _)| *count <= applied.upto()) {
                    let as_of = told.drain(at..).map(|(_, as_of)| as_of).max();
                    state.fresh_as_of = state.fresh_as_of.max(as_of);
                }
            }
            shared.moved.notify_waiters();
        }
        // It listens where the next one will.
        drop(listener);
        let mut state = shared.state.lock();
        state.clear();
        (state.began, state.position, state.fresh_as_of, state.bridge_as_of) = (false, None, None, None);
    }
}

/// Forgets what the events are about; answers whether there was a tombstone that forgot nothing.
fn apply<V>(
    shared: &InvalidatingShared<V>,
    batch: &Batch,
) -> Result<bool, tailwater_broadcast::MalformedBatch> {
    let mut state = shared.state.lock();
    let mut skipped = false;
    for event in batch.events() {
        let event = event?;
        match &event.kind {
            Kind::Tombstone if shared.config.collects_by_key || shared.config.of_cell => skipped = true,
            Kind::Tombstone => state.clear(),
            Kind::Data(content) | Kind::Collection(content, _) => match &content.key {
                Some(key) if shared.config.of_cell && key == CELL_AS_OF_KEY.as_bytes() => {
                    if let Some(as_of_ms) = as_of_ms(&content.payload) {
                        let ago = shared.env.wall_ms().saturating_sub(as_of_ms);
                        // A clock that is ahead makes nothing fresher than now.
                        let ago = Duration::from_millis(u64::try_from(ago).unwrap_or(0));
                        state.told_until(shared.env.now(), ago);
                    }
                }
                Some(key) => state.changed(key),
                None => state.clear(),
            },
        }
    }
    Ok(skipped)
}
