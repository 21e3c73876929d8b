//! A cell as its clients see it: keys and values over some backends, read one-sidedly.
//!
//! What holds:
//! - A value is never wrong: it was SET for that key, whole, at the version it is answered with. It may be
//!   old, most of all from a relaxed read, and any key may be missing at any time.
//! - Whoever awaited `set(k, v1)` and then `set(k, v2)` leaves `v2`, as long as a quorum acknowledged both.
//! - An update ([`Cell::update`]) changes what it was told of, or nothing: of two that go by the same value at most one
//!   comes about. Where that can't be told it says so.
//! - A value that has expired by the reader's own wall clock is missed. Two readers whose clocks differ by some time
//!   begin to miss it at times that differ by as much.
//! - No operation outlasts the deadline; nothing here waits for a backend that is gone. With one of three
//!   replicas gone everything works; with two gone consistent reads and SETs fail at once and relaxed reads use
//!   what is there.
//! - Queues, batches, retries and buffers are bounded.
//! - An operation goes by one configuration of the cell. A backend that goes by another one neither answers it nor
//!   applies it; when client and backend have agreed ([`agreed`]) the operation is made again.
//!
//! Cancelling a read abandons it. Cancelling a SET leaves open whether it comes about.

mod agreed;
mod backends;
mod buffers;
mod change;
mod consistent;
mod follow;
mod hedge;
mod load;
mod lookup;
mod mapped;
mod placement;
mod policy;
mod quorum;
mod relaxed;
mod replica;
mod roll;
mod sender;
mod set;
mod stats;
mod touches;
mod update;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tailwater_env::{Env, Instant, Task};
use tailwater_rma::CallError;
use tokio::sync::{oneshot, watch};

pub use backends::{Backends, Connecting, Connector, instance_of};
pub use follow::{CellFollower, CellNews};
pub use load::{CellLoad, CellLoadError, LOADED_KEY_BYTES_MAX};
pub use placement::{HashRing, Mode, Placement};
pub use policy::LookupWay;
pub use roll::{RollSeen, RollStep};
pub use stats::CellStats;
pub use update::{CasError, CellValue, UpdateError, UpdateTo, Updated};

use crate::configuration::{BackendPlace, Configuration, ConfigurationError};
use crate::layout::{ItemExtras, KeyHash};
use crate::limits::{
    CONFIGURATION_RETRIES_MAX, KEYS_PER_LOOKUP_MAX, MUTATE_ITEMS_MAX, SEED_DEADLINE, TOUCH_EVERY,
};
use crate::protocol::{BackendStats, METHOD_CLEAR, METHOD_INFO};
use crate::version::{Version, VersionClock};
use agreed::Agreed;
use buffers::BufferPool;
use hedge::{HedgeBudget, Usual};
use policy::LookupTimes;
use quorum::WriteQuorums;
use replica::{KeepConfig, Replica, keep_connected};
use sender::{SendConfig, Sender};
use set::CellMutation;
use stats::Counters;
use touches::Touches;

/// What a lookup brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The key's value.
    Hit {
        /// The version it was SET at.
        version: Version,
        /// Its bytes, checked; they borrow from a buffer that may hold other values as well.
        value: Bytes,
        /// What it has beside the value; it has not expired by this client's wall clock.
        extras: ItemExtras,
    },
    /// The replicas that count hold no value, or one that has expired by this client's wall clock.
    Miss,
    /// Nothing can be said.
    Failed(CellFailure),
}

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// With a value.
    Hit,
    /// There is none.
    Miss,
    /// Nothing can be said: there may be a value.
    Inconclusive,
}

impl LookupOutcome {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            LookupOutcome::Hit => "hit",
            LookupOutcome::Miss => "miss",
            LookupOutcome::Inconclusive => "inconclusive",
        }
    }
}

impl Lookup {
    /// How it ended.
    pub fn outcome(&self) -> LookupOutcome {
        match self {
            Lookup::Hit { .. } => LookupOutcome::Hit,
            Lookup::Miss => LookupOutcome::Miss,
            Lookup::Failed(_) => LookupOutcome::Inconclusive,
        }
    }
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
    /// Too few of its replicas are connected, or know what they hold: one that has started again is refilled first.
    #[error("too few replicas are reachable and refilled")]
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

impl SetError {
    /// Whether the SET or ERASE may come about all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Deadline | Self::Unreachable)
    }
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
    /// The cell's keys can't be changed one by one; nothing was sent.
    #[error("the cell is in mode R2/Immutable: its keys can't be changed one by one; load it anew")]
    Immutable,
    /// A backend has no room for it, and nothing of this cell is removed for that.
    #[error("a backend of the cell has no room for it, and removes nothing that is read")]
    NoRoom,
    /// Another client holds the key at a higher version, again and again or by a clock far ahead of ours.
    #[error("superseded by version {held}")]
    Superseded {
        /// Its version.
        held: Version,
    },
}

/// How a client takes part in a cell.
#[derive(Clone)]
pub struct CellConfig {
    /// The cell's configuration, as far as the client knows when it begins.
    pub configuration: Configuration,
    /// How backends are reached.
    pub connector: Arc<dyn Connector>,
    /// This client's id in versions: unique among the clients of the cell, for example random.
    pub client_id: u32,
    /// The longest that an operation takes.
    pub deadline: Duration,
    /// The longest that one attempt to connect to a backend takes, at all of its addresses together.
    pub connect_deadline: Duration,
    /// After this long a relaxed read also asks another replica, if its backend has not answered anything for as
    /// long; else only one read in 20 does.
    pub hedge_after: Duration,
    /// SETs that wait for one backend, in bytes of their items.
    pub queue_bytes_max: usize,
    /// SETs that wait for one backend.
    pub queue_items_max: usize,
    /// The pause before a lost backend is connected again, at first; it doubles each time.
    pub reconnect_after_min: Duration,
    /// The longest such pause.
    pub reconnect_after_max: Duration,
    /// How long one WATCH lasts, and how often it is looked whether an unwatched backend is still there. Moves
    /// are told at once; this only bounds how long a lost connection goes unnoticed while nobody uses it.
    pub watch_slice: Duration,
    /// How often backends that evict by it are told which keys were read. `None`: they are not told.
    pub touch_every: Option<Duration>,
}

impl CellConfig {
    /// A cell whose configuration never changes, and whose backends were started with its id; with the defaults of
    /// [`CellConfig::of`].
    pub fn new(id: u64, mode: Mode, backends: Backends, client_id: u32) -> Self {
        let Backends { places, connector } = backends;
        let ring = HashRing::for_backends(places.len());
        let (name, spares) = (String::new(), Vec::new());
        let configuration =
            Configuration { id, name, mode, backends: places, change: None, spares, ring, generation: 0 };
        Self::of(configuration, connector, client_id)
    }

    /// The defaults: half a second's deadline, hedging after 30 ms (Fast ACS, section 2.4), 64 MiB of SETs
    /// waiting for each backend.
    pub fn of(configuration: Configuration, connector: Arc<dyn Connector>, client_id: u32) -> Self {
        Self {
            configuration,
            connector,
            client_id,
            deadline: Duration::from_millis(500),
            connect_deadline: Duration::from_secs(1),
            hedge_after: Duration::from_millis(30),
            queue_bytes_max: 64 << 20,
            queue_items_max: 65_536,
            reconnect_after_min: Duration::from_millis(10),
            reconnect_after_max: Duration::from_secs(1),
            watch_slice: Duration::from_secs(4),
            touch_every: Some(TOUCH_EVERY),
        }
    }
}

/// How far a watcher has seen; the default has seen nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(u64);

/// A handle on a cell; cheap to clone. The connections end with the last one.
#[derive(Clone)]
pub struct Cell {
    shared: Arc<CellShared>,
    /// How this handle looks up by quorum.
    way: LookupWay,
}

/// What all handles share.
struct CellShared {
    env: Env,
    agreed: Arc<Agreed>,
    /// How operations that begin now go about it.
    current: RwLock<Arc<CellInner>>,
    /// The backends of the current configuration, by their numbers, with what connects to them and sends.
    kept: Mutex<BTreeMap<u32, KeptReplica>>,
    connector: Arc<dyn Connector>,
    keep: KeepConfig,
    queue_bytes_max: usize,
    queue_items_max: usize,
    /// Counts what the doorbells and connections of all backends did.
    moved: Arc<watch::Sender<u64>>,
    /// The id of the current configuration.
    adopted: watch::Sender<u64>,
    /// Whether it has no connections, and makes none.
    is_resting: watch::Sender<bool>,
    /// Waits for the backends that came with the current configuration.
    adopting: Mutex<Option<Task>>,
    /// Tells backends that have left, by their numbers; some may be over.
    leaving: Mutex<BTreeMap<u32, Task>>,
    touches: Arc<Touches>,
    /// Tells backends of them, if they are told.
    telling: OnceLock<Task>,
}

struct KeptReplica {
    replica: Arc<Replica>,
    /// Connecting and sending; cancelled when dropped.
    _tasks: [Task; 2],
}

impl Drop for KeptReplica {
    fn drop(&mut self) {
        self.replica.sender.close();
    }
}

/// What an operation goes by from its begin to its end: one configuration.
#[derive(Clone)]
struct CellInner {
    env: Env,
    config_id: u64,
    mode: Mode,
    /// What keys begin with, in a cell that is loaded.
    generation: Option<u64>,
    /// Who is read.
    placement: Arc<Placement>,
    /// While the cell's backends change: of whom a quorum has to acknowledge mutations, too.
    other: Option<Arc<Placement>>,
    /// Lookups by quorum need a quorum of those, too.
    reads_both: bool,
    /// In the order of the configuration's members.
    replicas: Vec<Arc<Replica>>,
    agreed: Arc<Agreed>,
    deadline: Duration,
    hedge_after: Duration,
    hedges: Arc<HedgeBudget>,
    usual: Arc<Usual>,
    times: Arc<LookupTimes>,
    sending: Arc<SendConfig>,
    versions: Arc<VersionClock>,
    buffers: BufferPool,
    counters: Arc<Counters>,
}

impl CellInner {
    /// The backends that a mutation of a key goes to, and of which of its quorums each is one.
    fn writers(&self, hash: KeyHash) -> impl Iterator<Item = (usize, WriteQuorums)> + Clone + '_ {
        let read = self.placement.of(hash);
        let other = self.other.as_ref().map_or(&[][..], |other| other.of(hash));
        let of_read = read
            .iter()
            .map(|place| (usize::from(*place), WriteQuorums { read: true, other: other.contains(place) }));
        let more = other.iter().filter(|place| !read.contains(place));
        of_read.chain(more.map(|place| (usize::from(*place), WriteQuorums { read: false, other: true })))
    }

    /// The same with the other ones as those who are read, if lookups by quorum need their answer, too.
    fn by_other(&self) -> Option<Self> {
        let other = self.other.as_ref().filter(|_| self.reads_both)?;
        Some(Self { placement: Arc::clone(other), ..self.clone() })
    }

    fn count_bytes(&self, bytes: usize) {
        self.counters.bytes.add(bytes as u64);
    }
}

impl CellShared {
    fn current(&self) -> Arc<CellInner> {
        Arc::clone(&self.current.read())
    }

    /// Some backend may go by what clients have read.
    fn want_touches(&self) {
        if self.telling.get().is_some() {
            self.touches.want();
        }
    }

    /// Goes by `configuration` from now on, if it is newer than what is known. Doubts are settled when each backend
    /// that came with it was reached or not. Answers when each that has left was told, or is given up.
    fn adopt(self: &Arc<Self>, configuration: Configuration) -> Option<Vec<oneshot::Receiver<()>>> {
        if !self.agreed.learn(configuration) {
            return None;
        }
        let (agreed, env, within) = (Arc::clone(&self.agreed), self.env.clone(), self.keep.connect_deadline);
        agreed.begin_adopting();
        let (tried, told) = self.go_by_the_newest();
        let settling = async move {
            let all_tried = async {
                for mut tried in tried {
                    // An error means that there is a newer configuration, without that backend.
                    let _ = tried.wait_for(|tried| *tried).await;
                }
            };
            let _ = env.timeout(within, all_tried).await;
            agreed.end_adopting();
        };
        *self.adopting.lock() = Some(self.env.spawn("cache-adopt", settling));
        Some(told)
    }

    /// Connects to the backends of the newest configuration, leaves those that are not in it, and has operations that
    /// begin from now on go by it. Answers when each backend that is new was reached or not, and each that has left was
    /// told or is given up.
    fn go_by_the_newest(self: &Arc<Self>) -> (Vec<watch::Receiver<bool>>, Vec<oneshot::Receiver<()>>) {
        let mut tried = Vec::new();
        let mut kept = self.kept.lock();
        // Under the lock, so that of two who come here the later one has the newer configuration.
        let configuration = self.agreed.newest();
        let mut before = std::mem::take(&mut *kept);
        for place in configuration.members() {
            let known = before.remove(&place.number).filter(|known| known.replica.may_be_at(place));
            let keep = match known {
                Some(known) => {
                    known.replica.moved_to(place);
                    // It may go by the configuration before.
                    known.replica.doubt();
                    known
                }
                None => {
                    let (started, is_tried) = self.start(place);
                    tried.push(is_tried);
                    started
                }
            };
            kept.insert(place.number, keep);
        }
        let members = configuration.members();
        let next = CellInner {
            config_id: configuration.id,
            mode: configuration.mode,
            generation: generation_of(&configuration),
            placement: Arc::new(configuration.placement()),
            other: configuration.other_placement().map(Arc::new),
            reads_both: configuration.reads_both(),
            replicas: members.map(|place| Arc::clone(&kept[&place.number].replica)).collect(),
            ..(*self.current()).clone()
        };
        *self.current.write() = Arc::new(next);
        let has_left = |kept: &&KeptReplica| configuration.place_of(kept.replica.number).is_none();
        let told =
            self.tell_left(before.values().filter(has_left).map(|kept| kept.replica.place()).collect());
        drop(kept);
        // What waits for a backend that is none any more is answered here, which takes other locks.
        drop(before);
        self.adopted.send_replace(configuration.id);
        self.moved.send_modify(|count| *count += 1);
        (tried, told)
    }

    /// Has backends told that have left; those that left before and have come back need it no more. Whoever leaves
    /// one does so, and not only who made the change: it may have told the one that started again what was before.
    fn tell_left(self: &Arc<Self>, left: Vec<BackendPlace>) -> Vec<oneshot::Receiver<()>> {
        let newest = self.agreed.newest();
        let mut leaving = self.leaving.lock();
        leaving.retain(|number, _| newest.place_of(*number).is_none());
        let tell = |place: BackendPlace| {
            let (number, (done, is_done)) = (place.number, oneshot::channel());
            let (env, connector) = (self.env.clone(), Arc::clone(&self.connector));
            let telling = agreed::tell_left(env, connector, place, self.keep, Arc::downgrade(self), done);
            leaving.insert(number, self.env.spawn("cache-leave", telling));
            is_done
        };
        left.into_iter().map(tell).collect()
    }

    fn start(self: &Arc<Self>, place: &BackendPlace) -> (KeptReplica, watch::Receiver<bool>) {
        let sender = Sender::new(self.queue_bytes_max, self.queue_items_max);
        let replica = Arc::new(Replica::new(place.clone(), sender));
        let (trying, is_tried) = watch::channel(false);
        let connecting = keep_connected(
            self.env.clone(),
            self.keep,
            Arc::downgrade(self),
            Arc::clone(&replica),
            Arc::clone(&self.connector),
            trying,
            Arc::clone(&self.moved),
        );
        let connecting = self.env.spawn("cache-connect", connecting);
        let sending = sender::keep_sending(Arc::clone(&self.current().sending), Arc::clone(&replica));
        let sending = self.env.spawn("cache-send", sending);
        (KeptReplica { replica, _tasks: [connecting, sending] }, is_tried)
    }
}

impl Cell {
    /// Connects to all backends at once, and returns when each of them was reached or not: a cell whose backends
    /// are all gone is a cell, in which everything fails until they are back. Backends that know no configuration, or
    /// an older one, are told; a newer one that one of them knows is gone by.
    pub async fn connect(env: &Env, config: CellConfig) -> Result<Self, ConfigurationError> {
        match config.configuration.is_fixed() {
            true => config.configuration.check_unnamed()?,
            false => config.configuration.check()?,
        }
        let configuration = Arc::new(config.configuration);
        let agreed = Arc::new(Agreed::new(Arc::clone(&configuration)));
        let (env, deadline) = (env.clone(), config.deadline);
        let sending = SendConfig { env: env.clone(), agreed: Arc::clone(&agreed), call_deadline: deadline };
        let sending = Arc::new(sending);
        let begin = CellInner {
            env: env.clone(),
            config_id: configuration.id,
            mode: configuration.mode,
            generation: generation_of(&configuration),
            placement: Arc::new(configuration.placement()),
            other: configuration.other_placement().map(Arc::new),
            reads_both: configuration.reads_both(),
            // Nobody has a handle before they are there.
            replicas: Vec::new(),
            agreed: Arc::clone(&agreed),
            deadline,
            hedge_after: config.hedge_after,
            hedges: Arc::new(HedgeBudget::new()),
            usual: Arc::default(),
            times: Arc::default(),
            sending,
            versions: Arc::new(VersionClock::new(config.client_id)),
            buffers: BufferPool::default(),
            counters: Arc::default(),
        };
        let shared = Arc::new(CellShared {
            env,
            agreed,
            current: RwLock::new(Arc::new(begin)),
            kept: Mutex::default(),
            connector: config.connector,
            keep: KeepConfig {
                connect_deadline: config.connect_deadline,
                backoff_min: config.reconnect_after_min,
                backoff_max: config.reconnect_after_max,
                watch_slice: config.watch_slice,
            },
            queue_bytes_max: config.queue_bytes_max,
            queue_items_max: config.queue_items_max,
            moved: Arc::new(watch::Sender::new(0)),
            adopted: watch::Sender::new(configuration.id),
            is_resting: watch::Sender::new(false),
            adopting: Mutex::default(),
            leaving: Mutex::default(),
            touches: Arc::default(),
            telling: OnceLock::new(),
        });
        if let Some(every) = config.touch_every {
            let (touches, cell) = (Arc::clone(&shared.touches), Arc::downgrade(&shared));
            let telling = touches::keep_telling(shared.env.clone(), touches, cell, every);
            shared.telling.get_or_init(|| shared.env.spawn("cache-touch", telling));
        }
        for mut tried in shared.go_by_the_newest().0 {
            // An error would mean that the task ended: the backend is in no newer configuration.
            let _ = tried.wait_for(|tried| *tried).await;
        }
        Ok(Self { shared, way: LookupWay::Auto })
    }

    /// Lets go of all connections, of all handles, and makes none until [`Cell::wake`]: for a process that reads
    /// elsewhere for a while, and would cost the backends a connection each. Meanwhile operations fail as if all
    /// backends were gone, and no newer configuration is learned from them.
    pub fn rest(&self) {
        self.shared.is_resting.send_replace(true);
        // What is connected after this sees that it is to rest.
        for kept in self.shared.kept.lock().values() {
            if let Some(live) = kept.replica.live() {
                kept.replica.give_up(&live);
            }
        }
    }

    /// Connects to the backends again, behind [`Cell::rest`]. [`Cell::awake`] waits for that.
    pub fn wake(&self) {
        self.shared.is_resting.send_replace(false);
    }

    /// Completes when two thirds of the backends are connected, or when one attempt to connect has had its time. In a
    /// cell of three backends each key has a quorum then; in a larger one some keys may lack it for a while.
    pub async fn awake(&self) {
        let mut moved = self.shared.moved.subscribe();
        let connected = async {
            loop {
                moved.mark_unchanged();
                let inner = self.inner();
                let live = inner.replicas.iter().filter(|replica| replica.is_live()).count();
                if live >= inner.replicas.len() - inner.replicas.len() / 3 || moved.changed().await.is_err() {
                    return;
                }
            }
        };
        // Those that are gone are tried on.
        let _ = self.shared.env.timeout(self.shared.keep.connect_deadline, connected).await;
    }

    /// A handle on the same cell that goes about lookups by quorum in this way. Connections and counts are shared.
    pub fn with_lookup(&self, way: LookupWay) -> Self {
        Self { way, ..self.clone() }
    }

    /// The configuration that the first of `seeds` goes by that answers within that time and knows one. The number of a
    /// seed means nothing where `connector` goes by addresses. An error says why no seed was of use.
    pub async fn configuration_at(
        env: &Env,
        connector: &dyn Connector,
        seeds: &[BackendPlace],
        within: Duration,
    ) -> Result<Configuration, String> {
        let mut why = "no backend was named".to_owned();
        for seed in seeds {
            let asked = async {
                let connection = connector.connect(seed).await?;
                agreed::configuration_of(&*connection).await
            };
            match env.timeout(within, asked).await {
                Some(Ok(Some(configuration))) => return Ok(configuration),
                Some(Ok(None)) => why = "the backend knows no configuration of its cell yet".to_owned(),
                Some(Err(error)) => why = error,
                None => why = "the backend does not answer in time".to_owned(),
            }
        }
        Err(why)
    }

    /// Connects to the cell that one of `seeds` belongs to, by [`Cell::configuration_at`] them: for clients that know
    /// addresses and nothing else. The configuration's backends are reached at the addresses that it has. `change`
    /// may set what [`CellConfig::of`] has defaults for.
    pub async fn at_seeds(
        env: &Env,
        connector: Arc<dyn Connector>,
        seeds: &[BackendPlace],
        client_id: u32,
        change: impl FnOnce(&mut CellConfig),
    ) -> Result<Self, String> {
        let configuration = Self::configuration_at(env, &*connector, seeds, SEED_DEADLINE).await?;
        let mut config = CellConfig::of(configuration, connector, client_id);
        change(&mut config);
        Self::connect(env, config).await.map_err(|error| error.to_string())
    }

    /// The newest configuration that this client knows.
    pub fn configuration(&self) -> Arc<Configuration> {
        self.shared.agreed.newest()
    }

    /// Goes by `configuration` from now on, and tells it to its backends and to those that are none any more; `false`
    /// if its id is not greater than that of what this client knows, or it is another cell's. Completes when each
    /// backend that is new or has left was reached or not, after the deadline at the latest. One that has left and
    /// was not reached is told later, if it is reached within [`TELL_LEFT_MAX`](crate::limits::TELL_LEFT_MAX). Values
    /// of keys that get other backends are carried over if the change goes through its phases, beginning with
    /// [`Configuration::changing_to`]; otherwise their keys are missed.
    pub async fn configure(&self, configuration: Configuration) -> Result<bool, ConfigurationError> {
        configuration.check()?;
        let deadline = self.shared.current().deadline;
        let Some(told) = self.shared.adopt(configuration) else { return Ok(false) };
        // A backend that is gone holds nothing that anybody reads.
        let _ = self.shared.env.timeout(deadline, join_all(told)).await;
        self.shared.agreed.adopted().await;
        Ok(true)
    }

    /// Completes when this client goes by a configuration with a greater id than `id`.
    pub async fn configured_after(&self, id: u64) -> Arc<Configuration> {
        let mut adopted = self.shared.adopted.subscribe();
        // An error would mean that the cell is gone, which this handle keeps.
        let _ = adopted.wait_for(|adopted| *adopted > id).await;
        self.configuration()
    }

    /// What an operation goes by that begins now.
    fn inner(&self) -> Arc<CellInner> {
        self.shared.current()
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
        let mut end = None;
        let mut doubts = self.shared.agreed.doubts();
        let mut inner = self.inner();
        let mut lookups = Vec::with_capacity(keys.len());
        for some in load::stored_keys(&inner, keys).chunks(KEYS_PER_LOOKUP_MAX) {
            inner.hedges.earn(some.len());
            lookups.extend(relaxed::get(&inner, some, unchecked_from, &mut end, &mut frames).await);
        }
        for _ in 0..CONFIGURATION_RETRIES_MAX {
            let Some(failed) = self.failed_in_doubt(&lookups, doubts, &mut end).await else { break };
            // In this order: what changes in between is a doubt that came after.
            doubts = self.shared.agreed.doubts();
            let (failed, again) = self.read_again(keys, failed, &mut inner);
            let mut answers = Vec::with_capacity(again.len());
            for some in load::stored_keys(&inner, &again).chunks(KEYS_PER_LOOKUP_MAX) {
                answers.extend(relaxed::get(&inner, some, unchecked_from, &mut end, &mut frames).await);
            }
            failed.into_iter().zip(answers).for_each(|(key, answer)| lookups[key] = answer);
        }
        miss_expired(&mut lookups, &inner.env);
        inner.counters.count_relaxed(&lookups);
        self.note_read(&inner, keys, &lookups);
        (lookups, frames)
    }

    /// Looks keys up by quorum. Answers in the order of the keys.
    pub async fn get_consistent(&self, keys: &[Bytes]) -> Vec<Lookup> {
        let mut end = None;
        let mut doubts = self.shared.agreed.doubts();
        let mut inner = self.inner();
        let mut lookups = Vec::with_capacity(keys.len());
        for some in load::stored_keys(&inner, keys).chunks(KEYS_PER_LOOKUP_MAX) {
            inner.hedges.earn(some.len());
            lookups.extend(consistent::get(&inner, some, self.way, &mut end).await);
        }
        for _ in 0..CONFIGURATION_RETRIES_MAX {
            let Some(failed) = self.failed_in_doubt(&lookups, doubts, &mut end).await else { break };
            // In this order: what changes in between is a doubt that came after.
            doubts = self.shared.agreed.doubts();
            let (failed, again) = self.read_again(keys, failed, &mut inner);
            let mut answers = Vec::with_capacity(again.len());
            for some in load::stored_keys(&inner, &again).chunks(KEYS_PER_LOOKUP_MAX) {
                answers.extend(consistent::get(&inner, some, self.way, &mut end).await);
            }
            failed.into_iter().zip(answers).for_each(|(key, answer)| lookups[key] = answer);
        }
        miss_expired(&mut lookups, &inner.env);
        inner.counters.count_consistent(&lookups);
        self.note_read(&inner, keys, &lookups);
        lookups
    }

    /// For backends that evict by what is read. Of a cell that is loaded nothing is evicted.
    fn note_read(&self, inner: &CellInner, keys: &[Bytes], lookups: &[Lookup]) {
        if inner.generation.is_none() {
            self.shared.touches.note(keys, lookups);
        }
    }

    /// The indexes of keys whose reads failed, if some did while a backend went by another configuration, once that is
    /// settled; `None` if there is nothing to be read again, or no time left.
    async fn failed_in_doubt(
        &self,
        lookups: &[Lookup],
        doubts: u64,
        end: &mut Option<Instant>,
    ) -> Option<Vec<usize>> {
        let is_open = |lookup: &Lookup| lookup.outcome() == LookupOutcome::Inconclusive;
        let failed: Vec<usize> = (0..lookups.len()).filter(|key| is_open(&lookups[*key])).collect();
        let is_again = !failed.is_empty() && self.settled_after(doubts, end).await;
        is_again.then_some(failed)
    }

    /// The keys that are read again, by the configuration that counts now: those that failed, or all if another load is
    /// read by it, so that all are answered from one.
    fn read_again(
        &self,
        keys: &[Bytes],
        failed: Vec<usize>,
        inner: &mut Arc<CellInner>,
    ) -> (Vec<usize>, Vec<Bytes>) {
        let before = std::mem::replace(inner, self.inner());
        let again = if before.generation == inner.generation { failed } else { (0..keys.len()).collect() };
        inner.counters.reconfigured.add(again.len() as u64);
        let keys = again.iter().map(|key| keys[*key].clone()).collect();
        (again, keys)
    }

    /// Waits until a doubt that came after `doubts` is settled, or the backends of a new configuration are connected;
    /// `false` if there was neither, or it is not by `end`.
    async fn settled_after(&self, doubts: u64, end: &mut Option<Instant>) -> bool {
        let inner = self.inner();
        if !inner.agreed.is_doubtful(doubts) {
            return false;
        }
        let now = inner.env.now();
        let end = *end.get_or_insert(now + inner.deadline);
        now < end && inner.agreed.settled_after(doubts, &inner.env, end.since(now)).await
    }

    /// Sets keys to values, and answers each when a quorum has it, with the version it has it at.
    pub async fn set(&self, items: Vec<(Bytes, Bytes)>) -> Vec<Result<Version, SetError>> {
        self.set_with(items.into_iter().map(|(key, value)| (key, value, ItemExtras::default())).collect())
            .await
    }

    /// The same, with what there is beside each value, and when it expires. A SET does not keep what was there before.
    pub async fn set_with(&self, items: Vec<(Bytes, Bytes, ItemExtras)>) -> Vec<Result<Version, SetError>> {
        self.mutate(items.into_iter().map(|(key, value, extras)| (key, Some((value, extras)))).collect())
            .await
    }

    /// Erases keys, and answers each when a quorum has forgotten it, with the version it did at.
    pub async fn erase(&self, keys: Vec<Bytes>) -> Vec<Result<Version, SetError>> {
        self.mutate(keys.into_iter().map(|key| (key, None)).collect()).await
    }

    async fn mutate(&self, items: Vec<CellMutation>) -> Vec<Result<Version, SetError>> {
        let mut doubts = self.shared.agreed.doubts();
        let mut inner = self.inner();
        let deadline = inner.env.now() + inner.deadline;
        if inner.mode.is_immutable() {
            return items.iter().map(|_| Err(SetError::Immutable)).collect();
        }
        let mut results = Vec::with_capacity(items.len());
        for some in items.chunks(MUTATE_ITEMS_MAX) {
            results.extend(set::mutate(&inner, some, deadline).await);
        }
        for _ in 0..CONFIGURATION_RETRIES_MAX {
            // Some replicas may have applied it: a later version of the same value does no harm.
            let is_open = |result: &Result<_, _>| matches!(result, Err(SetError::Unreachable));
            let open: Vec<usize> = (0..items.len()).filter(|item| is_open(&results[*item])).collect();
            if open.is_empty() || !self.settled_after(doubts, &mut Some(deadline)).await {
                break;
            }
            // In this order: what changes in between is a doubt that came after.
            doubts = self.shared.agreed.doubts();
            inner = self.inner();
            let again: Vec<_> = open.iter().map(|item| items[*item].clone()).collect();
            let mut answers = Vec::with_capacity(again.len());
            for some in again.chunks(MUTATE_ITEMS_MAX) {
                answers.extend(set::mutate(&inner, some, deadline).await);
            }
            open.into_iter().zip(answers).for_each(|(item, answer)| results[item] = answer);
        }
        inner.counters.count_sets(&results);
        results
    }

    /// Completes when any backend's doorbell moved, or its connection came or went, since `seen`, or at the
    /// deadline; `true` if something moved. `seen` is then up to date. Any number of tasks may wait: the
    /// backends are asked once for all of them.
    pub async fn watch(&self, seen: &mut Seen, deadline: Duration) -> bool {
        for replica in &self.inner().replicas {
            replica.watch();
        }
        let mut moved = self.shared.moved.subscribe();
        let changed = moved.wait_for(|count| *count != seen.0);
        let changed = self.shared.env.timeout(deadline, changed).await.is_some();
        *seen = Seen(*self.shared.moved.borrow());
        changed
    }

    /// Empties every backend that is reached; answers how many were.
    pub async fn clear(&self) -> usize {
        let inner = self.inner();
        let clear = async |replica: &Replica| {
            let Some(live) = replica.live() else { return false };
            let call = live.connection.call(METHOD_CLEAR, Bytes::new());
            match self.shared.env.timeout(inner.deadline, call).await {
                Some(Ok(_)) => true,
                Some(Err(CallError::Lost(_))) => {
                    replica.give_up(&live);
                    false
                }
                Some(Err(CallError::Overloaded { .. } | CallError::Refused { .. })) | None => false,
            }
        };
        let cleared = join_all(inner.replicas.iter().map(|replica| clear(replica))).await;
        cleared.into_iter().filter(|cleared| *cleared).count()
    }

    /// What each backend that answers counted, and how full it is, by their numbers.
    pub async fn backend_stats(&self) -> Vec<(u32, BackendStats)> {
        let inner = self.inner();
        let ask = async |replica: &Replica| {
            let live = replica.live()?;
            let call = live.connection.call(METHOD_INFO, Bytes::new());
            let reply = self.shared.env.timeout(inner.deadline, call).await?.ok()?;
            Some((replica.number, BackendStats::decode(reply).ok()?))
        };
        join_all(inner.replicas.iter().map(|replica| ask(replica))).await.into_iter().flatten().collect()
    }

    /// Backends that are connected.
    pub fn live_backends(&self) -> usize {
        self.inner().replicas.iter().filter(|replica| replica.is_live()).count()
    }

    /// The backends, and of each that is connected which start of it that is ([`instance_of`]).
    pub fn backends(&self) -> Vec<(BackendPlace, Option<u64>)> {
        let instance = |replica: &Replica| Some(replica.live()?.index.generation);
        self.inner().replicas.iter().map(|replica| (replica.place(), instance(replica))).collect()
    }

    /// What this handle's family counted.
    pub fn stats(&self) -> CellStats {
        self.inner().counters.stats()
    }
}

/// What keys begin with, in a cell that is loaded.
fn generation_of(configuration: &Configuration) -> Option<u64> {
    configuration.mode.is_immutable().then_some(configuration.generation)
}

/// Misses what has expired, whichever way it was read.
fn miss_expired(lookups: &mut [Lookup], env: &Env) {
    // Most values do not expire, and the clock is not asked for them.
    let may_expire = |lookup: &Lookup| matches!(lookup, Lookup::Hit { extras, .. } if extras.expires_ms != 0);
    if !lookups.iter().any(may_expire) {
        return;
    }
    let wall_ms = env.wall_ms();
    for lookup in lookups {
        if matches!(lookup, Lookup::Hit { extras, .. } if extras.is_expired(wall_ms)) {
            *lookup = Lookup::Miss;
        }
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cell({:#x})", self.configuration().id)
    }
}

#[cfg(test)]
mod configuration_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod lookup_tests;
#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod refill_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod touch_tests;
#[cfg(test)]
mod update_tests;
