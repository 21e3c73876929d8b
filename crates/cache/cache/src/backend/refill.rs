//! Refills a backend that has started, and mends what any backend has missed: it asks the others of its cell what they
//! hold, again and again, and copies what is above what it holds itself.
//!
//! It goes through all hashes in steps, with all others at once. Of each key the highest version counts that any other
//! replica holds, and it is copied as it is. What was erased is erased. What another replica knows nothing of, but may
//! have erased or removed, is not copied: it would come back.
//!
//! A step is complete when the replicas that answered decide for each row of the ring: a quorum of those that are read
//! which knows what it holds, this backend among them if it does, or all others. So what a quorum had acknowledged is
//! in what is copied, and a bucket may say again that a key is absent. While the cell's backends change, what a backend
//! is going to hold is copied with it. Where those before and those after are read, both decide. Each step is followed
//! by a pause, which bounds the bandwidth.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message;
use tailwater_env::Env;
use tailwater_rma::Connection;

use super::load::{self, is_of_use};
use super::table::Table;
use super::told::ToldPlaces;
use super::{Backend, check_version};
use crate::cell::{Connector, Mode, Placement};
use crate::configuration::{BackendPlace, Configuration};
use crate::layout::{Item, KeyHash};
use crate::limits::{APPLY_ITEMS_MAX, LOOKUP_KEYS_MAX, MUTATIONS_SETTLE};
use crate::protocol::{
    JoinReply, JoinRequest, Looked, LookupReply, LookupRequest, METHOD_JOIN, METHOD_LOOKUP, METHOD_SCAN,
    ScanReply, ScanRequest,
};
use crate::version::Version;

/// How a backend is refilled.
#[derive(Clone, Copy, Debug)]
pub struct RefillConfig {
    /// The most that is copied in a second, in bytes: names and versions of keys count.
    pub bytes_per_second: u64,
    /// The pause before it is compared with the others again.
    pub again_after: Duration,
    /// The longest pause before it is tried again where others are not reached; the first one is a sixteenth of it.
    pub retry_after: Duration,
    /// The longest that another backend takes to answer.
    pub deadline: Duration,
}

impl Default for RefillConfig {
    /// 64 MiB a second, and once more a minute after the last time.
    fn default() -> Self {
        Self {
            bytes_per_second: 64 << 20,
            again_after: Duration::from_secs(60),
            retry_after: Duration::from_secs(1),
            deadline: Duration::from_secs(2),
        }
    }
}

impl Backend {
    /// Has the backend refilled from the others of its cell, whichever those are by its configuration. Said once,
    /// before it is served. A backend of which this is not said takes what it holds for all there is.
    pub fn refill_from(self: &Arc<Self>, connector: Arc<dyn Connector>, config: RefillConfig) {
        self.will_be_refilled();
        let refilling = Refilling {
            env: self.env.clone(),
            backend: Arc::downgrade(self),
            connector,
            config,
            connections: BTreeMap::new(),
            stopped_at: None,
            dirty: 0,
        };
        *self.refiller.lock() = Some(self.env.spawn("cache-refill", refilling.run()));
    }

    /// Whom it is refilled from; `None` if there is nobody.
    fn cohort(&self) -> Option<Cohort> {
        let told = self.told()?;
        let place = told.configuration.place_of(told.number)?;
        let has_others = told.configuration.mode != Mode::R1 || told.configuration.change.is_some();
        has_others.then_some(Cohort { told, place })
    }

    /// What of the step to `next` is to be copied from whom, once what was erased is; and of how many keys something
    /// was missed here that was over long ago.
    fn plan(
        &self,
        cohort: &Cohort,
        floor: Version,
        told: &BTreeMap<usize, ScanTold>,
        next: Option<u64>,
    ) -> Result<(CopiesWanted, u64), String> {
        let settled_us = self.settled_us();
        let mut dirty = 0;
        let mut keys: BTreeMap<KeyHash, Vec<(usize, Version, bool)>> = BTreeMap::new();
        for (place, of) in told {
            let all =
                of.held.iter().map(|pair| (pair, false)).chain(of.erased.iter().map(|pair| (pair, true)));
            for ((hash, version), is_erased) in all {
                if next.is_none_or(|next| (hash.0 as u64) < next) {
                    keys.entry(*hash).or_default().push((*place, *version, is_erased));
                }
            }
        }
        let mut wanted = CopiesWanted::new();
        let keys: Vec<_> = keys.into_iter().collect();
        for some in keys.chunks(APPLY_ITEMS_MAX) {
            let mut table = self.table.lock();
            cohort.check_still(&table, floor)?;
            for (hash, said) in some {
                let is_kept_out =
                    |version| cohort.is_bound(*hash) && table.is_bound(*hash, version, settled_us);
                match cohort.decide(*hash, said, told) {
                    CopyVerdict::Held { version, .. } | CopyVerdict::Erased(version)
                        if is_kept_out(version) => {}
                    CopyVerdict::Held { place, version } if table.takes_copy(*hash, version) => {
                        dirty += u64::from(version.timestamp_us < settled_us);
                        wanted.entry(place).or_default().push((*hash, version));
                    }
                    CopyVerdict::Erased(version) => {
                        let is_newer = version > table.known(*hash);
                        let is_held = table.len_of(*hash).is_some() && is_newer;
                        dirty += u64::from(is_held && version.timestamp_us < settled_us);
                        table.copy_erased(*hash, version, self.env.now());
                        // Also where it is not held: a quorum may know by this that it was erased.
                        if is_newer {
                            self.note_copy(*hash);
                        }
                    }
                    CopyVerdict::Held { .. } | CopyVerdict::Leave => {}
                }
            }
        }
        Ok((wanted, dirty))
    }

    /// The timestamp of versions below which nothing is under way any more, as far as clocks agree.
    fn settled_us(&self) -> u64 {
        let wall_us = u64::try_from(self.env.wall_ms()).unwrap_or(0).saturating_mul(1_000);
        wall_us.saturating_sub(u64::try_from(MUTATIONS_SETTLE.as_micros()).unwrap_or(u64::MAX))
    }

    /// Copies items that another backend has sent for `wanted`; answers which of them it has deferred.
    fn copy_all(
        &self,
        cohort: &Cohort,
        floor: Version,
        wanted: &[(KeyHash, Version)],
        reply: &LookupReply,
    ) -> Result<Vec<(KeyHash, Version)>, String> {
        let nonsense = || "a backend answers nonsense to what it is asked for".to_owned();
        let parts = reply.parts(wanted.len()).ok_or_else(nonsense)?;
        let mut ages = reply.ages_ms.iter();
        let mut deferred = Vec::new();
        let mut items = Vec::new();
        for ((hash, version), part) in wanted.iter().zip(parts) {
            match part {
                Looked::Absent | Looked::Unknown => {}
                Looked::Deferred => deferred.push((*hash, *version)),
                Looked::Item(bytes) => {
                    let age = Duration::from_millis(*ages.next().ok_or_else(nonsense)?);
                    items.push((*hash, *version, bytes, age));
                }
            }
        }
        if deferred.len() == wanted.len() {
            // The first item always has room.
            return Err(nonsense());
        }
        let settled_us = self.settled_us();
        let mut is_any = false;
        for some in items.chunks(APPLY_ITEMS_MAX) {
            let mut table = self.table.lock();
            cohort.check_still(&table, floor)?;
            for (hash, version, bytes, age) in some {
                let item = Item::parse(bytes).map_err(|error| error.to_string())?;
                // A higher version than was told of has come since.
                let is_right = KeyHash::of(item.key) == *hash
                    && item.version >= *version
                    && is_of_use(cohort.configuration(), item.key)
                    && !(cohort.is_bound(*hash) && table.is_bound(*hash, item.version, settled_us));
                if is_right && check_version(item.version, self.env.wall_ms()).is_ok() {
                    if table.takes_copy(*hash, item.version) && table.lacks_room_for(&item) {
                        return Err(load::no_room().message);
                    }
                    if table.copy(&item, *age, self.env.now()) {
                        self.note_copy(*hash);
                        is_any = true;
                    }
                }
            }
        }
        if is_any {
            self.ring();
        }
        Ok(deferred)
    }
}

fn other_by_now() -> String {
    "the cell has another configuration by now".to_owned()
}

/// By the place of a backend, what is to be copied from it.
type CopiesWanted = BTreeMap<usize, Vec<(KeyHash, Version)>>;

/// The others of a cell, by one configuration.
struct Cohort {
    told: ToldPlaces,
    /// This backend's, among the cell's members.
    place: usize,
}

/// What another backend told of a step.
struct ScanTold {
    held: BTreeMap<KeyHash, Version>,
    erased: BTreeMap<KeyHash, Version>,
    forgotten: Version,
    next: Option<u64>,
    is_known: bool,
    bytes: usize,
}

/// What is to be done about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyVerdict {
    /// The highest version is there.
    Held { place: usize, version: Version },
    /// It was erased at this one.
    Erased(Version),
    /// Nothing.
    Leave,
}

impl Cohort {
    fn configuration(&self) -> &Configuration {
        &self.told.configuration
    }

    /// Whether what others said still counts, who were asked when `floor` was this backend's. Another configuration
    /// ends that. So does a backend that has joined since: what its former start said may come so late that its next
    /// one does not learn it from here, and whoever counts that start's acknowledgement is not to count this backend.
    fn check_still(&self, table: &Table, floor: Version) -> Result<(), String> {
        if table.config_id() != self.configuration().id {
            return Err(other_by_now());
        }
        match table.floor() == floor {
            true => Ok(()),
            false => Err("another backend has joined meanwhile".to_owned()),
        }
    }

    /// Whether this backend keeps what it has promised of a key also where it copies: who was promised that counts on
    /// what it was told of there being nothing else by the replicas before. One that comes takes what was there.
    fn is_bound(&self, hash: KeyHash) -> bool {
        self.told.is_of_before(hash, self.place)
    }

    fn others(&self) -> impl Iterator<Item = (usize, &BackendPlace)> {
        let all = self.configuration().members().enumerate();
        all.filter(|(place, _)| *place != self.place)
    }

    fn number_of(&self, place: usize) -> u32 {
        self.configuration().members().nth(place).map_or(0, |of| of.number)
    }

    /// Whether those that answered decide for each row that this backend has part in. `answered` says of a place
    /// whether it answered, and whether it knows what it holds; `is_known` whether this backend does.
    fn is_enough(&self, answered: impl Fn(usize) -> Option<bool>, is_known: bool) -> bool {
        let mode = self.configuration().mode;
        let quorum = mode.quorum();
        let rows = self.configuration().ring.rows;
        (0..rows).all(|row| {
            let is_mine = |of: &[u16]| of.iter().any(|place| usize::from(*place) == self.place);
            let mut tables = std::iter::once(&self.told.placement).chain(&self.told.other);
            let has_part = tables.any(|table| is_mine(table.row(row, rows)));
            let is_decided = |table: &Placement| {
                let replicas = table.row(row, rows);
                let others =
                    || replicas.iter().map(|place| usize::from(*place)).filter(|place| *place != self.place);
                let known = others().filter(|place| answered(*place) == Some(true)).count();
                let own = usize::from(is_known && is_mine(replicas));
                // What was loaded is never taken for gone because nobody has it any more.
                let all_answer = || !mode.is_immutable() && others().all(|place| answered(place).is_some());
                known + own >= quorum || all_answer()
            };
            !has_part || self.told.read().all(is_decided)
        })
    }

    /// What is to be done about a key of which some said something.
    fn decide(
        &self,
        hash: KeyHash,
        said: &[(usize, Version, bool)],
        told: &BTreeMap<usize, ScanTold>,
    ) -> CopyVerdict {
        let is_replica = |place: usize| self.told.is_read(hash, place);
        let said = || said.iter().filter(|(place, ..)| is_replica(*place));
        let held = said().filter(|(.., is_erased)| !is_erased).max_by_key(|(_, version, _)| *version);
        let erased = said().filter(|(.., is_erased)| *is_erased).map(|(_, version, _)| *version).max();
        let top = held.map_or(Version::ZERO, |(_, version, _)| *version);
        if let Some(erased) = erased.filter(|erased| *erased >= top) {
            return CopyVerdict::Erased(erased);
        }
        // Whoever knows what it holds, and not this key, may have erased or removed it.
        let silent = told.iter().filter(|(place, of)| {
            is_replica(**place) && of.is_known && !said().any(|(who, ..)| who == *place)
        });
        let forgotten = silent.map(|(_, of)| of.forgotten).max().unwrap_or_default();
        match held {
            Some((place, version, _)) if *version > forgotten => {
                CopyVerdict::Held { place: *place, version: *version }
            }
            _ => CopyVerdict::Leave,
        }
    }
}

impl ScanTold {
    fn of(reply: &ScanReply) -> Option<Self> {
        Some(Self {
            held: ScanReply::pairs_of(&reply.held)?.collect(),
            erased: ScanReply::pairs_of(&reply.erased)?.collect(),
            forgotten: Version::from_bytes(reply.forgotten.first_chunk()?),
            next: (reply.next != 0).then_some(reply.next),
            is_known: reply.is_known,
            bytes: reply.held.len() + reply.erased.len(),
        })
    }
}

/// What refills one backend.
struct Refilling {
    env: Env,
    backend: Weak<Backend>,
    connector: Arc<dyn Connector>,
    config: RefillConfig,
    /// To others, by their numbers.
    connections: BTreeMap<u32, Arc<dyn Connection>>,
    /// Where the last pass was cut short, and under which configuration.
    stopped_at: Option<(u64, u64)>,
    /// Keys that the pass found to be missed here.
    dirty: u64,
}

impl Refilling {
    async fn run(mut self) {
        let first = self.config.retry_after / 16;
        let mut backoff = first;
        loop {
            let Some(backend) = self.backend.upgrade() else { return };
            let (changed, cohort) = (Arc::clone(&backend.cohort.changed), backend.cohort());
            drop(backend);
            let passed = match &cohort {
                Some(cohort) => self.pass(cohort).await,
                None => Ok(()),
            };
            let Some(backend) = self.backend.upgrade() else { return };
            let pause = match &passed {
                Ok(()) => {
                    backoff = first;
                    // What was missed is mended. Soon it is known whether that was all.
                    if self.dirty > 0 { self.config.retry_after } else { self.config.again_after }
                }
                Err(why) => {
                    if *backend.cohort.hindrance.lock() != *why {
                        tracing::info!(
                            why,
                            is_filled = backend.is_filled(),
                            "cache backend not compared with others"
                        );
                    }
                    let pause = backoff;
                    backoff = (backoff * 2).min(self.config.retry_after);
                    pause
                }
            };
            *backend.cohort.hindrance.lock() = passed.err().unwrap_or_default();
            drop(backend);
            let _ = self.env.timeout(pause, changed.notified()).await;
        }
    }

    fn backend(&self) -> Result<Arc<Backend>, String> {
        self.backend.upgrade().ok_or_else(|| "the backend has ended".to_owned())
    }

    /// Once through all hashes. An error is what keeps it from that.
    async fn pass(&mut self, cohort: &Cohort) -> Result<(), String> {
        let unreached = self.connect(cohort).await;
        if !self.backend()?.has_joined() {
            self.join(cohort, &unreached).await?;
        }
        let id = cohort.configuration().id;
        let mut from = match self.stopped_at.take() {
            Some((of, from)) if of == id => from,
            _ => {
                self.dirty = 0;
                0
            }
        };
        let mut forgotten = Version::ZERO;
        loop {
            let stepped = self.step(cohort, from, &unreached).await;
            let (next, step_forgotten) = stepped.inspect_err(|_| self.stopped_at = Some((id, from)))?;
            forgotten = forgotten.max(step_forgotten);
            let backend = self.backend()?;
            let noted = backend.while_told(id, || match next {
                Some(next) => backend.filled_up_to(Some(next)),
                None => backend.has_passed(cohort.configuration(), forgotten, self.dirty),
            });
            noted.ok_or_else(other_by_now)?;
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }

    /// Connects to all others that are not connected; answers why some, by their numbers, are not.
    async fn connect(&mut self, cohort: &Cohort) -> BTreeMap<u32, String> {
        self.connections.retain(|number, connection| {
            connection.lost().is_none() && cohort.configuration().place_of(*number).is_some()
        });
        let missing = cohort.others().filter(|(_, place)| !self.connections.contains_key(&place.number));
        let connect = async |place: &BackendPlace| {
            let connected = self.env.timeout(self.config.deadline, self.connector.connect(place)).await;
            (place.number, connected.unwrap_or_else(|| Err("it does not answer in time".to_owned())))
        };
        let connected = join_all(missing.map(|(_, place)| connect(place))).await;
        let mut unreached = BTreeMap::new();
        for (number, connected) in connected {
            match connected {
                Ok(connection) => drop(self.connections.insert(number, connection)),
                Err(why) => drop(unreached.insert(number, format!("backend {number} is not reached: {why}"))),
            }
        }
        unreached
    }

    /// One CALL to the backend with that number.
    async fn call(&self, number: u32, method: u16, payload: Vec<u8>) -> Result<Bytes, String> {
        let told = |why: &dyn std::fmt::Display| format!("backend {number}: {why}");
        let connection = self.connections.get(&number).ok_or_else(|| told(&"it is not reached"))?;
        let call = connection.call(method, payload.into());
        match self.env.timeout(self.config.deadline, call).await {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(error)) => Err(told(&error)),
            None => Err(told(&"it does not answer in time")),
        }
    }

    /// Joins the others: as many as it takes to hear of all that this backend may have had part in before.
    async fn join(&self, cohort: &Cohort, unreached: &BTreeMap<u32, String>) -> Result<(), String> {
        let request = JoinRequest {
            config_id: cohort.configuration().id,
            number: cohort.told.number,
            instance: self.backend()?.served().index.generation(),
        };
        let ask = async |place: usize, number: u32| {
            let reply = self.call(number, METHOD_JOIN, request.encode_to_vec()).await?;
            let floor = JoinReply::decode(reply).ok().and_then(|reply| reply.floor());
            Ok::<_, String>((
                place,
                floor.ok_or_else(|| format!("backend {number} tells a version that is none"))?,
            ))
        };
        let mut floors = BTreeMap::new();
        let mut why = unreached.values().next().cloned();
        for answer in join_all(cohort.others().map(|(place, of)| ask(place, of.number))).await {
            match answer {
                Ok((place, floor)) => drop(floors.insert(place, floor)),
                Err(error) => drop(why.get_or_insert(error)),
            }
        }
        if !cohort.is_enough(|place| floors.get(&place).map(|_| true), false) {
            return Err(why.unwrap_or_else(|| "too few others answer".to_owned()));
        }
        let floor = floors.into_values().max().unwrap_or_default();
        let backend = self.backend()?;
        backend.while_told(request.config_id, || backend.joined_above(floor)).ok_or_else(other_by_now)
    }

    /// Copies what others hold of keys with hashes whose lower half is `from` or above; answers where the next step
    /// begins, if there is one, and below what others may have erased or removed keys.
    async fn step(
        &mut self,
        cohort: &Cohort,
        from: u64,
        unreached: &BTreeMap<u32, String>,
    ) -> Result<(Option<u64>, Version), String> {
        let request = ScanRequest { config_id: cohort.configuration().id, number: cohort.told.number, from };
        let ask = async |place: usize, number: u32| {
            let reply = self.call(number, METHOD_SCAN, request.encode_to_vec()).await?;
            let reply = ScanReply::decode(reply).map_err(|error| error.to_string())?;
            let told = ScanTold::of(&reply).filter(|told| told.next.is_none_or(|next| next > from));
            Ok((place, told.ok_or_else(|| format!("backend {number} tells nonsense of what it holds"))?))
        };
        let floor = self.backend()?.table.lock().floor();
        let asked = join_all(cohort.others().map(|(place, of)| ask(place, of.number))).await;
        let mut why: Option<String> = unreached.values().next().cloned();
        let mut told = BTreeMap::new();
        for answer in asked {
            match answer {
                Ok((place, of)) => drop(told.insert(place, of)),
                Err(error) => drop(why.get_or_insert(error)),
            }
        }
        let next = told.values().filter_map(|of| of.next).min();
        let backend = self.backend()?;
        let is_known = backend.knows_up_to(next);
        if !cohort.is_enough(|place| told.get(&place).map(|of| of.is_known), is_known) {
            return Err(why.unwrap_or_else(|| "the others know too little themselves".to_owned()));
        }
        let (wanted, dirty) = backend.plan(cohort, floor, &told, next)?;
        self.dirty += dirty;
        drop(backend);
        let mut bytes = told.values().map(|of| of.bytes).sum::<usize>();
        for (place, wanted) in wanted {
            bytes += self.copy(cohort, floor, cohort.number_of(place), wanted).await?;
        }
        // Also so that a reader's copy of a bucket is of before what was copied, or of after it, when that counts.
        let pause_ns = (bytes as u64).saturating_mul(1_000_000_000) / self.config.bytes_per_second.max(1);
        self.env.sleep(Duration::from_nanos(pause_ns).max(Duration::from_millis(1))).await;
        let forgotten = told.values().map(|of| of.forgotten).max().unwrap_or_default();
        Ok((next, forgotten))
    }

    /// Copies keys from one backend; answers how many bytes that were.
    async fn copy(
        &self,
        cohort: &Cohort,
        floor: Version,
        number: u32,
        mut wanted: Vec<(KeyHash, Version)>,
    ) -> Result<usize, String> {
        let mut bytes = 0;
        while !wanted.is_empty() {
            let later = wanted.split_off(wanted.len().min(LOOKUP_KEYS_MAX));
            let hashes = wanted.iter().map(|(hash, _)| *hash);
            let request = LookupRequest::of(cohort.configuration().id, hashes);
            let request = LookupRequest { with_ages: true, ..request };
            let reply = self.call(number, METHOD_LOOKUP, request.encode_to_vec()).await?;
            let reply = LookupReply::decode(reply).map_err(|error| error.to_string())?;
            bytes += reply.items.len();
            let backend = self.backend()?;
            backend.note_copied(reply.items.len());
            wanted = backend.copy_all(cohort, floor, &wanted, &reply)?;
            wanted.extend(later);
        }
        Ok(bytes)
    }
}
