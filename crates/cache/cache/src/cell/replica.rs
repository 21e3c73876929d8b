//! One backend as a client sees it: the connection to it while there is one, and the task that sees to it.
//!
//! Operations take the connection as it is at that moment and report when it failed them; they never wait for a
//! new one. The task here connects, checks the backend's layout, waits for trouble, and connects again after a
//! pause that doubles up to a bound, with jitter so that the clients of a restarted backend do not come at once. Where
//! the backend goes by another configuration of the cell, it brings the two together ([`super::agreed`]).
//! While somebody waits for the cell to move it also follows the backend's doorbell: one WATCH for all who wait, and
//! none for a reader that is not back yet from what the last one told it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::RwLock;
use tailwater_env::{Env, Instant};
use tailwater_rma::{Capabilities, Connection, RegionInfo};
use tokio::sync::{Notify, watch};

use super::CellShared;
use super::agreed::{Agreement, agree, follow_configuration, read_header};
use super::backends::Connector;
use super::lookup::NoAnswer;
use super::policy::LookupLatency;
use super::sender::Sender;
use crate::configuration::BackendPlace;
use crate::layout::{DATA_KIND, INDEX_KIND, IndexHeader};

/// A connection to a backend whose layout was checked.
pub(super) struct LiveReplica {
    pub(super) connection: Arc<dyn Connection>,
    pub(super) can: Capabilities,
    pub(super) index: RegionInfo,
    pub(super) data: RegionInfo,
    pub(super) buckets: u64,
    /// Whether it held what it should when it was connected.
    is_filled: bool,
    /// When it last answered a read that took time (nanoseconds of the world's clock); 0: not yet.
    pub(super) answered_ns: AtomicU64,
    /// Whether it goes by what clients have read, as far as is known.
    pub(super) wants_touches: AtomicBool,
}

impl LiveReplica {
    /// Checks that a backend of the cell is at the other end, which goes by the client's configuration when this is
    /// over.
    async fn open(
        connection: Arc<dyn Connection>,
        number: u32,
        cell: &Weak<CellShared>,
    ) -> Result<Self, String> {
        let regions = connection.regions();
        let of_kind = |kind| regions.iter().copied().find(|region| region.kind == kind);
        let (Some(index), Some(data)) = (of_kind(INDEX_KIND), of_kind(DATA_KIND)) else {
            return Err("no cache is served there".to_owned());
        };
        let header = read_header(&*connection, &index).await?;
        if header.data_generation != data.generation {
            return Err("its index belongs to another data region".to_owned());
        }
        let can = connection.capabilities();
        let (buckets, is_filled) = (header.buckets, header.is_filled);
        let (answered_ns, wants_touches) = (AtomicU64::new(0), AtomicBool::new(true));
        let live = Self { connection, can, index, data, buckets, is_filled, answered_ns, wants_touches };
        live.agree_on(&header, number, cell, false).await?;
        Ok(live)
    }

    /// Brings client and backend together; an error if that can't be.
    async fn agree_on(
        &self,
        header: &IndexHeader,
        number: u32,
        cell: &Weak<CellShared>,
        is_doubted: bool,
    ) -> Result<(), String> {
        let gone = || "the cell's client has ended".to_owned();
        let agreed = cell.upgrade().map(|cell| Arc::clone(&cell.agreed)).ok_or_else(gone)?;
        let doubts = agreed.doubts();
        let ours = agreed.newest();
        let agreement = agree(&*self.connection, header, &ours, number, is_doubted).await?;
        if let Agreement::Newer(theirs) = agreement {
            let cell = cell.upgrade().ok_or_else(gone)?;
            // This settles doubts when the newcomers are connected.
            cell.adopt(*theirs);
        }
        agreed.settle(doubts);
        Ok(())
    }

    /// Whether the regions are mapped where they are not any more. Mapped memory is read at once; what would have to be
    /// waited for is not mapped.
    fn has_moved(&self) -> bool {
        let moved = |header: IndexHeader| header.has_moved;
        let header = || read_header(&*self.connection, &self.index).now_or_never()?.ok();
        self.can.memory && header().is_some_and(moved)
    }

    /// It has just answered.
    pub(super) fn note_answer(&self, env: &Env) {
        if !self.can.memory {
            self.answered_ns.fetch_max(env.now().as_ns(), Ordering::Relaxed);
        }
    }
}

/// One backend of the cell.
pub(super) struct Replica {
    pub(super) number: u32,
    /// As the newest configuration has it.
    place: RwLock<BackendPlace>,
    pub(super) sender: Sender,
    live: RwLock<Option<Arc<LiveReplica>>>,
    /// Written with `live` held, read without: whether it is worth asking for it.
    is_live: AtomicBool,
    /// Relaxed reads prefer other replicas until then (nanoseconds of the world's clock).
    suspect_until_ns: AtomicU64,
    trouble: Notify,
    /// Written with `live` held: whether it takes round trips to read it.
    is_far: AtomicBool,
    /// How long it took lately to say what it holds of some keys.
    pub(super) latency: LookupLatency,
    /// Somebody waits for the doorbell, and it has not moved since.
    wanted: AtomicBool,
    /// The backend seems to go by another configuration.
    doubted: AtomicBool,
}

impl Replica {
    pub(super) fn new(place: BackendPlace, sender: Sender) -> Self {
        Self {
            number: place.number,
            place: RwLock::new(place),
            sender,
            live: RwLock::new(None),
            is_live: AtomicBool::new(false),
            suspect_until_ns: AtomicU64::new(0),
            is_far: AtomicBool::new(false),
            latency: LookupLatency::default(),
            trouble: Notify::new(),
            wanted: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
        }
    }

    /// Whether a later configuration may mean the same backend by `place`: it has the same number, and is not somewhere
    /// else altogether.
    pub(super) fn may_be_at(&self, place: &BackendPlace) -> bool {
        let known = self.place.read();
        let is_there = place.addresses.iter().any(|address| known.addresses.contains(address));
        self.number == place.number && (is_there || place.addresses.is_empty() && known.addresses.is_empty())
    }

    /// Where it is.
    pub(super) fn place(&self) -> BackendPlace {
        self.place.read().clone()
    }

    /// It is reached there from now on. The connection stays as long as it holds.
    pub(super) fn moved_to(&self, place: &BackendPlace) {
        self.place.write().clone_from(place);
    }

    /// The backend seems to go by another configuration: it is to be asked. The connection stays.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
        self.trouble.notify_one();
    }

    /// What is to be done about a connection that did not answer as it should.
    pub(super) fn failed(&self, failed: &Arc<LiveReplica>, why: NoAnswer) {
        match why {
            NoAnswer::Lost => self.give_up(failed),
            NoAnswer::OtherConfig => self.doubt(),
        }
    }

    /// The connection, if there is one.
    pub(super) fn live(&self) -> Option<Arc<LiveReplica>> {
        self.live.read().clone()
    }

    /// Whether there is a connection.
    pub(super) fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed)
    }

    /// Whether there is a connection, and it takes round trips to read over it.
    pub(super) fn is_far(&self) -> bool {
        self.is_live() && self.is_far.load(Ordering::Relaxed)
    }

    /// Gives up a connection that failed, unless that was done already and there is another one by now.
    pub(super) fn give_up(&self, failed: &Arc<LiveReplica>) {
        let mut live = self.live.write();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, failed)) {
            *live = None;
            self.is_live.store(false, Ordering::Relaxed);
            self.trouble.notify_one();
        }
    }

    /// Makes relaxed reads prefer others for a while, because this one kept one waiting.
    pub(super) fn suspect(&self, until: Instant) {
        self.suspect_until_ns.fetch_max(until.as_ns(), Ordering::Relaxed);
    }

    /// Whether the backend answered anything at `time` or later: then it is slow at worst, not stuck.
    pub(super) fn has_answered_since(&self, time: Instant) -> bool {
        self.live().is_some_and(|live| {
            let answered_ns = live.answered_ns.load(Ordering::Relaxed);
            answered_ns > 0 && answered_ns >= time.as_ns()
        })
    }

    /// Whether there is a connection, and it did not keep a read waiting lately.
    pub(super) fn is_quick(&self, env: &Env) -> bool {
        let until = self.suspect_until_ns.load(Ordering::Relaxed);
        self.is_live() && (until == 0 || until <= env.now().as_ns())
    }

    /// The doorbell's next move is to be told. A move since the last one that was told counts.
    pub(super) fn watch(&self) {
        if !self.wanted.swap(true, Ordering::Relaxed) {
            self.trouble.notify_one();
        }
    }

    fn install(&self, live: &Arc<LiveReplica>) {
        let mut installed = self.live.write();
        *installed = Some(Arc::clone(live));
        self.is_far.store(!live.can.memory, Ordering::Relaxed);
        // Another start of the backend, or another way to it.
        self.latency.forget();
        self.is_live.store(true, Ordering::Relaxed);
    }
}

/// What [`keep_connected`] keeps to.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepConfig {
    pub(super) connect_deadline: Duration,
    pub(super) backoff_min: Duration,
    pub(super) backoff_max: Duration,
    pub(super) watch_slice: Duration,
}

/// Keeps `replica` connected until it is dropped. `tried` is told when the first attempt is over; `moved` counts
/// what its doorbell and its connection did.
pub(super) async fn keep_connected(
    env: Env,
    config: KeepConfig,
    cell: Weak<CellShared>,
    replica: Arc<Replica>,
    connector: Arc<dyn Connector>,
    tried: watch::Sender<bool>,
    moved: Arc<watch::Sender<u64>>,
) {
    let mut backoff = config.backoff_min;
    loop {
        let Some(mut is_resting) = cell.upgrade().map(|cell| cell.is_resting.subscribe()) else { return };
        if *is_resting.borrow() {
            // Nobody waits for an attempt that is not made.
            tried.send_replace(true);
            if is_resting.wait_for(|is_resting| !is_resting).await.is_err() {
                return;
            }
            backoff = config.backoff_min;
        }
        let attempt = open_one(&connector, &replica, &cell);
        match env.timeout(config.connect_deadline, attempt).await {
            // It was told to rest meanwhile: nobody is to read over this one.
            Some(Ok(_)) if *is_resting.borrow() => continue,
            Some(Ok(live)) => {
                let live = Arc::new(live);
                if !live.is_filled {
                    // The others know more.
                    replica.suspect(env.now() + config.backoff_max);
                }
                replica.install(&live);
                want_touches(&cell);
                tried.send_replace(true);
                moved.send_modify(|count| *count += 1);
                let connected = env.now();
                let last = follow_moves(&env, config, &cell, &replica, &connector, live, &moved).await;
                replica.give_up(&last);
                moved.send_modify(|count| *count += 1);
                if *is_resting.borrow() {
                    continue;
                }
                tracing::info!(backend = replica.number, peer = last.connection.peer(), "cache backend lost");
                // A backend that accepts and fails at once must not be asked in a tight loop.
                if env.now().since(connected) > config.backoff_max {
                    backoff = config.backoff_min;
                }
            }
            Some(Err(reason)) => {
                tracing::debug!(backend = replica.number, reason, "cache backend not reached");
                tried.send_replace(true);
            }
            None => {
                tracing::debug!(backend = replica.number, "cache backend did not answer in time");
                tried.send_replace(true);
            }
        }
        let jitter_ns = u64::try_from(backoff.as_nanos() / 2).unwrap_or(u64::MAX).max(1);
        env.sleep(backoff / 2 + Duration::from_nanos(env.random_below(jitter_ns))).await;
        backoff = (backoff * 2).min(config.backoff_max);
    }
}

/// A connection is there that was not asked yet whether the backend goes by what clients have read.
fn want_touches(cell: &Weak<CellShared>) {
    if let Some(cell) = cell.upgrade() {
        cell.want_touches();
    }
}

async fn open_one(
    connector: &Arc<dyn Connector>,
    replica: &Replica,
    cell: &Weak<CellShared>,
) -> Result<LiveReplica, String> {
    let place = replica.place();
    let connection = connector.connect(&place).await?;
    LiveReplica::open(connection, replica.number, cell).await
}

/// Returns when the connection is lost or was given up, with the last one that there was: where the backend's regions
/// have moved, another one takes its place, without a moment without one.
async fn follow_moves(
    env: &Env,
    config: KeepConfig,
    cell: &Weak<CellShared>,
    replica: &Replica,
    connector: &Arc<dyn Connector>,
    mut live: Arc<LiveReplica>,
    moved: &watch::Sender<u64>,
) -> Arc<LiveReplica> {
    while let Followed::Moved = follow(env, config, cell, replica, &live, moved).await {
        match env.timeout(config.connect_deadline, open_one(connector, replica, cell)).await {
            Some(Ok(next)) => {
                live = Arc::new(next);
                replica.install(&live);
                want_touches(cell);
                tracing::debug!(
                    backend = replica.number,
                    "cache backend followed to where its memory is now"
                );
                // Moved again, or what connects was given the old regions once more: not at once again and again.
                if live.has_moved() {
                    env.sleep(config.backoff_min).await;
                }
            }
            // The old regions are read on as long as they can be.
            _ => env.sleep(config.backoff_max).await,
        }
    }
    live
}

/// Why a connection is followed no more.
enum Followed {
    /// It is lost, or was given up.
    Ended,
    /// The regions that it has mapped are at another place by now.
    Moved,
}

/// Returns when the connection is lost or was given up, or the regions have moved. Passes the doorbell's moves on to
/// those who wait for one.
async fn follow(
    env: &Env,
    config: KeepConfig,
    cell: &Weak<CellShared>,
    replica: &Replica,
    live: &Arc<LiveReplica>,
    moved: &watch::Sender<u64>,
) -> Followed {
    let mut last_seen = 0;
    let told = follow_configuration(env, &*live.connection, cell, config.watch_slice);
    let mut told = std::pin::pin!(told);
    let mut is_told = true;
    loop {
        // What was connected while it was told to rest was not given up.
        let is_resting = cell.upgrade().is_none_or(|cell| *cell.is_resting.borrow());
        if is_resting || live.connection.lost().is_some() || !replica.is_live() {
            return Followed::Ended;
        }
        if live.has_moved() {
            return Followed::Moved;
        }
        if replica.doubted.swap(false, Ordering::Relaxed) {
            let agreeing = async {
                let header = read_header(&*live.connection, &live.index).await?;
                live.agree_on(&header, replica.number, cell, true).await
            };
            match env.timeout(config.connect_deadline, agreeing).await {
                Some(Ok(())) => {}
                Some(Err(reason)) => {
                    tracing::debug!(
                        backend = replica.number,
                        reason,
                        "cache backend of another configuration"
                    );
                    return Followed::Ended;
                }
                None => return Followed::Ended,
            }
        }
        let wanted = replica.wanted.load(Ordering::Relaxed);
        // At times that all backends share, so that an idle process wakes once for all of them.
        let now = env.now();
        let slice = until_next(now, config.watch_slice);
        let next = async {
            if wanted {
                return live.connection.watch(last_seen, slice).await;
            }
            // Nobody waits: only look from time to time whether it is still there.
            env.sleep_until(now + slice).await;
            Ok(last_seen)
        };
        tokio::select! {
            biased;
            () = replica.trouble.notified() => {}
            () = &mut told, if is_told => is_told = false,
            seen = next => match seen {
                Ok(seen) if seen != last_seen => {
                    last_seen = seen;
                    // Before it is told: who is woken by that and waits again wants the next one.
                    replica.wanted.store(false, Ordering::Relaxed);
                    moved.send_modify(|count| *count += 1);
                }
                Ok(_) => {}
                Err(_) => return Followed::Ended,
            }
        }
    }
}

/// From `now` to the next multiple of `period`; never nothing.
fn until_next(now: Instant, period: Duration) -> Duration {
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(period_ns - now.as_ns() % period_ns)
}
