//! Clients of one cell that set, erase and get the same few keys in a bad network, each with its own way to look up;
//! backends that die.
//!
//! Checked: whatever a get answers was set for that key, whole. As long as no backend has lost its memory: after
//! an acknowledged SET a consistent get answers that version or a later one, and what one client gets
//! consistently never goes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{Cell, Lookup, LookupWay, Version};
use tailwater_env::Env;

use crate::checkers::{Report, Violation, ensure};
use crate::net::{Net, Weather};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, World};

use super::cells::{self, CellsKind};

const KEYS: u64 = 12;
const CLIENT_NAMES: [&str; 3] = ["client-0", "client-1", "client-2"];
const VALUE_BYTES_MAX: u64 = 6_000;
const DURATION: Duration = Duration::from_millis(200);

#[derive(Default)]
struct CacheScenario {
    /// (key, client, number) of every value that was handed to a SET.
    offered: BTreeSet<(u64, u64, u64)>,
    /// The latest version that was acknowledged for a key, and whether it was ever erased.
    floors: BTreeMap<u64, (Version, bool)>,
    /// A backend has lost its memory.
    forgetful: bool,
    stop: bool,
    violation: Option<Violation>,
    report: Report,
}

type Outside = Arc<Mutex<CacheScenario>>;

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/cache");
    let net = Net::new(world);
    let backends = cells::backend_nodes(world);
    let buckets = rng.between(1, 8);
    for (number, node) in backends.iter().enumerate() {
        cells::start_backend(&net, node, number, CellsKind::Data, buckets);
    }
    if rng.below(2) == 0 {
        net.set_weather(Weather::FOUL);
    }
    let state = Outside::default();
    let mut clients = Vec::new();
    for (number, name) in CLIENT_NAMES.iter().enumerate() {
        let node = world.node(name);
        let env = node.env();
        let cell = world.run(cells::connect(&net, &node, &env, CellsKind::Data, plant))?;
        let cell = cell.with_lookup(LookupWay::ALL[rng.index(LookupWay::ALL.len())]);
        let client = Client {
            env: env.clone(),
            cell,
            number: number as u64,
            state: state.clone(),
            seen: BTreeMap::new(),
        };
        clients.push(client.cell.clone());
        env.spawn("client", client.run()).detach();
    }
    if rng.below(2) == 0 {
        let breaking =
            break_backends(rng.clone(), world.outside(), net.clone(), backends, buckets, state.clone());
        world.outside().spawn("chaos", breaking).detach();
    }
    world.run_for(DURATION)?;
    state.lock().stop = true;
    net.set_weather(Weather::FAIR);
    // Longer than any deadline and any pause between two attempts to connect.
    world.run_for(Duration::from_secs(12))?;
    if let Some(violation) = state.lock().violation.take() {
        return Err(violation);
    }
    for cell in &clients {
        let keys: Vec<Bytes> = (0..KEYS).map(key).collect();
        let floors = state.lock().floors.clone();
        let lookups = world.run(cell.get_consistent(&keys))?;
        for (number, lookup) in (0..).zip(lookups) {
            let state = state.lock();
            state.check_value(number, &lookup)?;
            let floor = floors.get(&number).copied();
            state.check_floor(number, floor, &lookup)?;
            // SETs without a quorum, or memory that was lost, may leave three replicas with three opinions.
            let agreed = !state.forgetful && !state.report.counts.contains_key("refused sets");
            let failed = agreed && matches!(lookup, Lookup::Failed(_));
            ensure(!failed, || format!("in fair weather, key {number}: {lookup:?}"))?;
        }
    }
    let state = state.lock();
    Ok(state.report.clone())
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key {number}"))
}

/// Kills and restarts backends now and then.
async fn break_backends(
    mut rng: Rng,
    outside: crate::world::Outside,
    net: Net,
    backends: Vec<Node>,
    buckets: u64,
    state: Outside,
) {
    loop {
        outside.sleep(Duration::from_micros(rng.between(1_000, 60_000))).await;
        if state.lock().stop {
            return;
        }
        let number = rng.index(backends.len());
        state.lock().forgetful = true;
        state.lock().report.count("backends killed", 1);
        backends[number].crash(Crash::Process);
        outside.sleep(Duration::from_micros(rng.below(40_000))).await;
        backends[number].start();
        cells::start_backend(&net, &backends[number], number, CellsKind::Data, buckets);
    }
}

impl CacheScenario {
    /// What a get answers was set for that key, whole.
    fn check_value(&self, key: u64, lookup: &Lookup) -> Result<(), Violation> {
        let Lookup::Hit { value, .. } = lookup else { return Ok(()) };
        let decoded =
            decode(value).ok_or_else(|| Violation::new(format!("key {key}: its value is damaged")))?;
        ensure(decoded.0 == key && self.offered.contains(&decoded), || {
            format!("key {key} was answered with {decoded:?}, which nobody set for it")
        })
    }

    /// A consistent get is not older than what was acknowledged before it.
    fn check_floor(
        &self,
        key: u64,
        floor: Option<(Version, bool)>,
        lookup: &Lookup,
    ) -> Result<(), Violation> {
        let Some((floor, erased)) = floor.filter(|_| !self.forgetful) else { return Ok(()) };
        match lookup {
            Lookup::Hit { version, .. } => ensure(*version >= floor, || {
                format!("key {key}: version {version} was got after {floor} had been acknowledged")
            }),
            Lookup::Miss => ensure(erased, || format!("key {key} is missing, but {floor} was acknowledged")),
            Lookup::Failed(_) => Ok(()),
        }
    }
}

struct Client {
    env: Env,
    cell: Cell,
    number: u64,
    state: Outside,
    /// The latest version that this client got consistently.
    seen: BTreeMap<u64, Version>,
}

impl Client {
    async fn run(mut self) {
        for number in 0.. {
            if self.state.lock().stop || self.state.lock().violation.is_some() {
                return;
            }
            match self.env.random_below(8) {
                0..3 => self.set(number).await,
                3 => self.erase().await,
                4..6 => self.get(false).await,
                _ => self.get(true).await,
            }
            self.env.sleep(Duration::from_micros(self.env.random_below(1_000))).await;
        }
    }

    async fn set(&self, number: u64) {
        let key_number = self.env.random_below(KEYS);
        let length = self.env.random_below(VALUE_BYTES_MAX) as usize;
        let value = encode((key_number, self.number, number), length);
        self.state.lock().offered.insert((key_number, self.number, number));
        let results = self.cell.set(vec![(key(key_number), value)]).await;
        self.acknowledged(key_number, results, false);
    }

    async fn erase(&self) {
        let key_number = self.env.random_below(KEYS);
        {
            // From here on it may be gone.
            let mut state = self.state.lock();
            state.floors.entry(key_number).or_default().1 = true;
        }
        let results = self.cell.erase(vec![key(key_number)]).await;
        self.acknowledged(key_number, results, true);
    }

    fn acknowledged(&self, key: u64, results: Vec<Result<Version, tailwater_cache::SetError>>, erased: bool) {
        let mut state = self.state.lock();
        match results.first() {
            Some(Ok(version)) => {
                let floor = state.floors.entry(key).or_default();
                floor.0 = floor.0.max(*version);
                state.report.count(if erased { "erases" } else { "sets" }, 1);
            }
            _ => state.report.count("refused sets", 1),
        }
    }

    async fn get(&mut self, consistent: bool) {
        let count = 1 + self.env.random_below(4);
        let numbers: Vec<u64> = (0..count).map(|_| self.env.random_below(KEYS)).collect();
        let keys: Vec<Bytes> = numbers.iter().copied().map(key).collect();
        let floors = self.state.lock().floors.clone();
        let before = self.seen.clone();
        let lookups = match consistent {
            true => self.cell.get_consistent(&keys).await,
            false => self.cell.get_relaxed(&keys).await,
        };
        let mut state = self.state.lock();
        for (number, lookup) in numbers.into_iter().zip(lookups) {
            let mut checked = state.check_value(number, &lookup);
            if consistent && checked.is_ok() {
                // It may have been erased while this get was under way.
                let erased = state.floors.get(&number).is_some_and(|(_, erased)| *erased);
                let floor = floors.get(&number).map(|(version, _)| (*version, erased));
                checked = state.check_floor(number, floor, &lookup);
                if let Lookup::Hit { version, .. } = lookup {
                    // A key that is asked for twice in one call is read twice at the same time, in any order.
                    let before = before.get(&number).copied().unwrap_or(Version::ZERO);
                    let seen = self.seen.entry(number).or_default();
                    *seen = version.max(*seen);
                    let back = version < before && !state.forgetful;
                    let went_back = || format!("key {number}: version {version} was got after {before}");
                    checked = checked.and(ensure(!back, went_back));
                }
            }
            let what = match lookup {
                Lookup::Hit { .. } => "hits",
                Lookup::Miss => "misses",
                Lookup::Failed(_) => "failed gets",
            };
            state.report.count(what, 1);
            if let Err(violation) = checked {
                state.violation.get_or_insert(violation);
            }
        }
    }
}

/// A value that says whose it is, in every byte.
pub(super) fn encode(identity: (u64, u64, u64), length: usize) -> Bytes {
    let (key, client, number) = identity;
    let mut bytes = Vec::with_capacity(length + 24);
    for word in [key, client, number] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let seed = (key ^ (client << 3) ^ (number << 5)) as u8;
    bytes.extend((0..length).map(|at| seed.wrapping_add(at as u8)));
    bytes.into()
}

pub(super) fn decode(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let (words, _) = bytes.first_chunk::<24>()?.as_chunks::<8>();
    let identity = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]), u64::from_le_bytes(words[2]));
    (encode(identity, bytes.len() - 24) == bytes).then_some(identity)
}
