//! A backend: one replica's memory, written by CALLs, read by anybody without asking.
//!
//! What holds:
//! - SETs and ERASEs are applied in the order of their versions: a lower one than what is held changes nothing,
//!   the same one again changes nothing and is acknowledged.
//! - When a mutation is acknowledged, READs that begin afterwards see it, and the doorbell was rung.
//! - A mutation under another configuration of the cell than the backend goes by is not applied, not even one that came
//!   before the change. When the backend has said that it goes by a configuration, it holds nothing that is not its
//!   own.
//! - READ and SCAR take no lock and never wait for a writer; see [`table`] for what they may meet.
//! - What was promised a version is applied at it only if nothing was applied to its key, nor copied above it, and no
//!   backend has joined since; and meanwhile nothing at a lower version is ([`METHOD_PROMISE`]).
//! - What expires is reclaimed by this backend's wall clock, [`EXPIRED_KEPT`](crate::limits::EXPIRED_KEPT) later.
//! - A backend that starts again does not know what it should hold. It says so ([`REFUSED_UNFILLED`]), and is refilled
//!   by the others of its cell while it serves ([`cohort`], [`refill`]).
//! - Memory is fixed when the backend starts: the two regions, and private tables in proportion to them. While the
//!   regions move to another place ([`moving`]), there are four.
//!
//! Called by an `rma` server's threads and by its own sweeping task.

mod changes;
mod cohort;
mod ending;
mod load;
mod moving;
mod recency;
mod refill;
mod slabs;
mod table;
mod told;
mod tombstones;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tailwater_env::{Env, Instant, Task};
use tailwater_rma::{Backing, Peer, READ_BYTES_MAX, Refusal, Region, Reply, ScarHit, ScarOp, Service};

use crate::layout::{
    BUCKET_BYTES, BucketView, DATA_KIND, INDEX_KIND, IndexHeader, Item, KeyHash, bucket_offset,
    index_region_bytes, scan_bucket, u64_at,
};
use crate::limits::{
    APPLY_ITEMS_MAX, BLOCK_BYTES, BLOCKS_MAX, BLOCKS_MIN, BUCKETS_MAX, LOOKUP_BYTES_MAX, MUTATE_ITEMS_MAX,
    SHORT_CALL_BYTES_MAX, SWEEP_ITEMS_MAX, TOUCHES_PER_STEP,
};
use crate::protocol::{
    BackendStats, InfoReply, LOOKUP_DEFERRED, LOOKUP_UNKNOWN, LookupReply, LookupRequest, METHOD_ACCEPT,
    METHOD_CHANGES, METHOD_CLEAR, METHOD_CONFIG, METHOD_CONFIGURE, METHOD_END, METHOD_INFO, METHOD_JOIN,
    METHOD_LOAD, METHOD_LOOKUP, METHOD_MUTATE, METHOD_PROMISE, METHOD_SCAN, METHOD_TOUCH, MutateReply,
    MutateRequest, Outcome, PromiseReply, PromiseRequest, REFUSED_CONFIG, REFUSED_MALFORMED, REFUSED_METHOD,
    REFUSED_VERSION, TouchReply, TouchRequest,
};
use crate::version::Version;
use changes::BackendChanges;
use cohort::BackendCohort;
use ending::BackendEnding;
use load::BackendLoads;
use moving::ServedRegions;
pub use refill::RefillConfig;
pub use table::eviction::EvictionPolicy;
use table::{Table, TableConfig};
use told::BackendTold;

/// How a backend is laid out. Nothing of it changes while it runs, but for the cell's configuration.
#[derive(Clone, Copy, Debug)]
pub struct BackendConfig {
    /// Size of the data region in bytes; rounded up to whole blocks of about 1 MiB, and to four of them.
    pub capacity_bytes: u64,
    /// Number of buckets, of nine index entries each.
    pub buckets: u64,
    /// How long an item lives after it was last set, if it does not expire sooner.
    pub ttl: Duration,
    /// The part of the capacity, above 0 and at most 1, above which items are evicted.
    pub eviction_at: f64,
    /// Which items are evicted.
    pub eviction: EvictionPolicy,
    /// The id of the cell's configuration. 0: it is told one, and again when that changes ([`Configuration`]). Any
    /// other id stays: that is for a cell whose parties are all started with it.
    pub config_id: u64,
    /// Where the regions live.
    pub backing: Backing,
}

impl BackendConfig {
    /// For items of about `value_bytes`, a TTL of one minute, eviction from 80 % on, and
    /// twice as many index entries as values fit, so that about one bucket in a hundred overflows when full. That is 85
    /// bytes of index for each value that fits. Shorter values overflow more buckets, which costs their readers CALLs,
    /// and beyond a chained item for each bucket the oldest ones are evicted though there is room.
    pub fn data(capacity_bytes: u64, value_bytes: u64, config_id: u64, backing: Backing) -> Self {
        let values = capacity_bytes / value_bytes.max(1);
        let buckets = (2 * values / crate::layout::WAYS as u64).clamp(64, BUCKETS_MAX);
        let (ttl, eviction) = (Duration::from_secs(60), EvictionPolicy::default());
        Self { capacity_bytes, buckets, ttl, eviction_at: 0.8, eviction, config_id, backing }
    }
}

type DoorbellRing = Arc<dyn Fn() + Send + Sync>;

/// One replica of a cell.
pub struct Backend {
    env: Env,
    config: BackendConfig,
    served: RwLock<ServedRegions>,
    is_moving: AtomicBool,
    moves: AtomicU64,
    table: Mutex<Table>,
    lookups: AtomicU64,
    /// One for each server or local connection that serves this backend: set up by the owner, so few.
    doorbells: Mutex<Vec<DoorbellRing>>,
    sweeper: Mutex<Option<Task>>,
    refiller: Mutex<Option<Task>>,
    told: BackendTold,
    cohort: BackendCohort,
    ending: BackendEnding,
    loads: Mutex<BackendLoads>,
    changes: BackendChanges,
}

impl Backend {
    /// Creates the regions and starts sweeping. Errors are those of reserving the memory, and `InvalidInput` for
    /// a configuration that makes no sense.
    pub fn start(env: &Env, config: BackendConfig) -> io::Result<Arc<Self>> {
        let blocks = config.capacity_bytes.div_ceil(BLOCK_BYTES).max(BLOCKS_MIN);
        let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
        if !(1..=BUCKETS_MAX).contains(&config.buckets) {
            return invalid("the number of buckets is out of range");
        }
        if !(config.eviction_at > 0.0 && config.eviction_at <= 1.0) {
            return invalid("eviction_at is above 0 and at most 1");
        }
        if blocks > BLOCKS_MAX {
            return invalid("the capacity is too large");
        }
        let capacity_bytes = blocks * BLOCK_BYTES;
        let config = BackendConfig { capacity_bytes, ..config };
        let data = Arc::new(region(env, "cache-data", capacity_bytes, DATA_KIND, config.backing)?);
        let index_bytes = index_region_bytes(config.buckets);
        let index = Arc::new(region(env, "cache-index", index_bytes, INDEX_KIND, config.backing)?);
        let header = IndexHeader {
            config_id: config.config_id,
            buckets: config.buckets,
            data_generation: data.generation(),
            is_filled: true,
            has_moved: false,
        };
        index.write(0, &header.encode());
        let table_config = TableConfig {
            config_id: config.config_id,
            buckets: config.buckets,
            blocks: blocks as u32,
            ttl: config.ttl,
            evict_above_bytes: (capacity_bytes as f64 * config.eviction_at) as u64,
            eviction: config.eviction,
            overflow_max: usize::try_from(config.buckets).unwrap_or(usize::MAX).max(1024),
        };
        let table = Mutex::new(Table::new(table_config, Arc::clone(&index), Arc::clone(&data)));
        let backend = Arc::new(Self {
            env: env.clone(),
            config,
            served: RwLock::new(ServedRegions { index, data }),
            is_moving: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            table,
            lookups: AtomicU64::new(0),
            doorbells: Mutex::new(Vec::new()),
            sweeper: Mutex::new(None),
            refiller: Mutex::new(None),
            told: BackendTold::new(config.config_id),
            cohort: BackendCohort::default(),
            ending: BackendEnding::default(),
            loads: Mutex::default(),
            changes: BackendChanges::default(),
        });
        let sweeper = env.spawn("cache-sweep", sweep(env.clone(), config.ttl, Arc::downgrade(&backend)));
        *backend.sweeper.lock() = Some(sweeper);
        Ok(backend)
    }

    /// Has `ring` called after every batch that changed something; it must not block. For each server that
    /// serves this backend, its doorbell.
    pub fn ring_on_change(&self, ring: impl Fn() + Send + Sync + 'static) {
        self.doorbells.lock().push(Arc::new(ring));
    }

    /// As it was laid out.
    pub fn config(&self) -> &BackendConfig {
        &self.config
    }

    /// Counters since the start, and how full it is.
    pub fn stats(&self) -> BackendStats {
        let table = self.table.lock();
        let counts = table.counts();
        InfoReply {
            config_id: self.config_id(),
            buckets: self.config.buckets,
            capacity_bytes: self.config.capacity_bytes,
            ttl_ms: u64::try_from(self.config.ttl.as_millis()).unwrap_or(u64::MAX),
            items: table.items() as u64,
            live_bytes: table.live_bytes(),
            sets: counts.sets,
            erases: counts.erases,
            superseded: counts.superseded,
            evicted: counts.evicted,
            expired: counts.expired,
            evicted_age_ms: u64::try_from(counts.evicted_age.as_millis()).unwrap_or(u64::MAX),
            evicted_unused_ms: u64::try_from(counts.evicted_unused.as_millis()).unwrap_or(u64::MAX),
            touches: counts.touches,
            overflowed: table.chained() as u64,
            lookups: self.lookups.load(Ordering::Relaxed),
            slabs_reclaimed: counts.slabs_reclaimed,
            unfilled_buckets: self.config.buckets - table.filled_buckets(),
            copied: counts.copied,
            copied_bytes: self.cohort.copied_bytes.load(Ordering::Relaxed),
            scans: self.cohort.scans.load(Ordering::Relaxed),
            scanned_config_id: self.cohort.scanned_config_id.load(Ordering::Acquire),
            hindrance: self.cohort.hindrance.lock().clone(),
            dirty: self.cohort.dirty.load(Ordering::Relaxed),
        }
    }

    /// Forgets everything, tombstones included.
    pub fn clear(&self) {
        while self.table.lock().clear(self.env.now(), SWEEP_ITEMS_MAX) {}
        self.note_all_changed();
        self.ring();
    }

    /// Removes what has expired or has outlived its TTL, a bounded number; `true` if there may be more.
    fn sweep_once(&self) -> bool {
        self.table.lock().sweep(self.env.now(), self.env.wall_ms(), SWEEP_ITEMS_MAX)
    }

    fn ring(&self) {
        for ring in self.doorbells.lock().iter() {
            ring();
        }
    }

    fn check_config(ours: u64, config_id: u64) -> Result<(), Refusal> {
        // 0 is no configuration: none is known, or what was held under another cell's is being forgotten.
        if config_id == ours && ours != 0 {
            return Ok(());
        }
        Err(Refusal {
            code: REFUSED_CONFIG,
            message: format!("this backend has config {ours}, not {config_id}"),
        })
    }

    fn mutate(
        &self,
        payload: Bytes,
        apply: fn(&mut Table, &Item<'_>, Instant) -> Outcome,
    ) -> Result<Bytes, Refusal> {
        let request = MutateRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        // All is checked before anything is applied, and outside the lock: hashing is most of the work.
        let mut items = Vec::new();
        let mut rest = &request.items[..];
        while !rest.is_empty() {
            let item = Item::parse(rest).map_err(|error| malformed(&error.to_string()))?;
            rest = &rest[item.bytes.len()..];
            if items.len() == MUTATE_ITEMS_MAX {
                return Err(malformed("too many items"));
            }
            items.push(item);
        }
        self.check_joined()?;
        self.check_loading(&items)?;
        let wall_ms = self.env.wall_ms();
        items.iter().try_for_each(|item| check_version(item.version, wall_ms))?;
        let mut outcomes = Vec::with_capacity(items.len());
        let mut checked = Ok(());
        for some in items.chunks(APPLY_ITEMS_MAX) {
            let mut table = self.table.lock();
            // Each time anew, as the configuration may change in between.
            checked = Self::check_config(table.config_id(), request.config_id);
            if checked.is_err() {
                break;
            }
            let now = self.env.now();
            checked = some.iter().try_for_each(|item| {
                if table.lacks_room_for(item) {
                    return Err(load::no_room());
                }
                outcomes.push(apply(&mut table, item, now));
                Ok(())
            });
            if checked.is_err() {
                break;
            }
        }
        if outcomes.contains(&Outcome::Applied) {
            let applied = items.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Outcome::Applied);
            self.note_changes(applied.map(|(item, _)| (KeyHash::of(item.key), item.version)));
            self.ring();
        }
        checked?;
        Ok(MutateReply::of(&outcomes).encode_to_vec().into())
    }

    fn promise(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = PromiseRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let (hash, version) = request.parts().ok_or_else(|| malformed("hash or version"))?;
        check_version(version, self.env.wall_ms())?;
        self.check_mutable()?;
        self.check_joined()?;
        // A promise says what there is. What becomes known, and not read, in between does no harm.
        if self.is_asked_in_vain(hash) {
            return Err(cohort::unfilled("this backend is being refilled, and does not know of the key yet"));
        }
        let mut table = self.table.lock();
        Self::check_config(table.config_id(), request.config_id)?;
        let promised = table.promise(hash, version);
        drop(table);
        Ok(PromiseReply::of(promised).encode_to_vec().into())
    }

    fn touch(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = TouchRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        let hashes = request.decode_hashes().ok_or_else(|| malformed("hashes"))?;
        let is_wanted = self.table.lock().wants_touches();
        if is_wanted {
            let now = self.env.now();
            for some in hashes.chunks(TOUCHES_PER_STEP) {
                let mut table = self.table.lock();
                some.iter().for_each(|hash| table.touch(*hash, now));
            }
        }
        Ok(TouchReply { is_wanted }.encode_to_vec().into())
    }

    fn lookup(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let request = LookupRequest::decode(payload).map_err(|error| malformed(&error.to_string()))?;
        Self::check_config(self.config_id(), request.config_id)?;
        let hashes = request.decode_hashes().ok_or_else(|| malformed("hashes"))?;
        let (mut lengths, mut ages_ms) = (Vec::new(), Vec::new());
        let mut items = BytesMut::new();
        for hash in hashes {
            // Locked for each one: a batch of large items must not hold writers up. Once another configuration
            // begins, what is not held under that is being forgotten, which is no miss.
            let table = self.table.lock();
            Self::check_config(table.config_id(), request.config_id)?;
            lengths.push(match table.len_of(hash) {
                None if table.is_unknown(hash) && !request.may_be_unknown => {
                    return Err(cohort::unfilled(
                        "this backend is being refilled, and does not know of the key yet",
                    ));
                }
                None if table.is_unknown(hash) => LOOKUP_UNKNOWN,
                None => 0,
                Some(len) if items.len() + len > LOOKUP_BYTES_MAX => LOOKUP_DEFERRED,
                Some(_) => {
                    let item = table.read(hash).expect("it is there, under the same lock");
                    items.extend_from_slice(&item);
                    if request.with_ages {
                        let age = table.age_of(hash, self.env.now());
                        ages_ms.push(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
                    }
                    item.len() as u32
                }
            });
        }
        self.lookups.fetch_add(lengths.len() as u64, Ordering::Relaxed);
        Ok(LookupReply { lengths, items: items.freeze(), ages_ms }.encode_to_vec().into())
    }
}

/// A region whose generation comes out of the world's randomness, so that a simulated one is the same each time.
fn region(env: &Env, name: &str, len: u64, kind: u16, backing: Backing) -> io::Result<Region> {
    Region::create_with_generation(name, len, kind, backing, env.random_u64())
}

/// Nobody could replace what is too far ahead until that time has come, and erased, it would outlast its key.
fn check_version(version: Version, wall_ms: i64) -> Result<(), Refusal> {
    if !version.is_ahead(wall_ms) {
        return Ok(());
    }
    let message = format!("version {version} is more than an hour ahead of this backend's clock");
    Err(Refusal { code: REFUSED_VERSION, message })
}

fn malformed(why: &str) -> Refusal {
    Refusal { code: REFUSED_MALFORMED, message: format!("malformed payload: {why}") }
}

impl Service for Backend {
    fn regions(&self) -> Vec<Arc<Region>> {
        let ServedRegions { index, data } = self.served();
        vec![index, data]
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        if op.bucket >= self.config.buckets {
            return None;
        }
        let mut bucket = [0; BUCKET_BYTES];
        self.served.read().index.read(bucket_offset(op.bucket), &mut bucket);
        // Whichever configuration the bucket names: who asked decides whether that is the right one.
        let config_id = u64_at(&bucket, 0).unwrap_or_default();
        let data = match scan_bucket(&bucket, KeyHash(op.key_hash), config_id) {
            // An item that is too long for one READ is fetched in two by the client.
            BucketView::Found { pointer, .. } if pointer.len <= READ_BYTES_MAX => {
                Some((1, pointer.offset, pointer.len))
            }
            _ => None,
        };
        Some(ScarHit { bucket: (0, bucket_offset(op.bucket), BUCKET_BYTES as u32), data })
    }

    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        matches!(method, METHOD_MUTATE | METHOD_LOOKUP | METHOD_PROMISE | METHOD_ACCEPT)
            && payload.len() <= SHORT_CALL_BYTES_MAX
    }

    fn call(&self, _peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        if method == METHOD_CONFIG {
            return self.answer_config(payload, reply);
        }
        if method == METHOD_CHANGES {
            return self.answer_changes(payload, reply);
        }
        reply.send(match method {
            METHOD_MUTATE => self.mutate(payload, Table::apply),
            METHOD_ACCEPT => self.mutate(payload, Table::apply_promised),
            METHOD_PROMISE => self.promise(payload),
            METHOD_LOOKUP => self.lookup(payload),
            METHOD_TOUCH => self.touch(payload),
            METHOD_JOIN => self.join(payload),
            METHOD_SCAN => self.scan(payload),
            METHOD_CONFIGURE => self.configure(payload),
            METHOD_INFO => Ok(self.stats().encode_to_vec().into()),
            METHOD_END => self.end(),
            METHOD_LOAD => self.load(payload),
            METHOD_CLEAR => self.check_mutable().map(|()| {
                self.clear();
                self.begin_empty();
                Bytes::new()
            }),
            _ => Err(Refusal { code: REFUSED_METHOD, message: format!("no method {method:#x}") }),
        });
    }
}

/// Expires items, a bounded number at a time, until the backend is gone.
async fn sweep(env: Env, ttl: Duration, backend: Weak<Backend>) {
    let pause = (ttl / 64).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        env.sleep(pause).await;
        loop {
            let Some(backend) = backend.upgrade() else { return };
            // While much expires, too: who waits would take this backend for lost.
            backend.answer_long_waiting();
            backend.answer_waiting_for_changes();
            if !backend.sweep_once() {
                break;
            }
            drop(backend);
            env.sleep(Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod eviction_tests;
#[cfg(test)]
mod planted_tests;
#[cfg(test)]
mod tests;
