//! Clients of one cell that set, erase and get the same few keys in a bad network, each with its own way to look up;
//! backends that die.
//!
//! Checked: whatever a get answers was set for that key, whole. As long as no backend has lost its memory: after
//! an acknowledged SET a consistent get answers that version or a later one, and what one client gets
//! consistently never goes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{Lookup, LookupWay, Version};

use crate::checkers::{Report, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

use super::cells::{self, CellsKind};
use super::clients::{self, CLIENT_NAMES, CellFloors, ClientSeat, OfferedValues, key_of};
use super::outcome::{Noted, Outcome};

const KEYS: u64 = 12;
const VALUE_BYTES_MAX: u64 = 6_000;
const DURATION: Duration = Duration::from_millis(200);

#[derive(Default)]
struct CacheScenario {
    offered: OfferedValues,
    /// The latest version that was acknowledged for a key.
    floors: CellFloors,
    /// What was ever erased.
    erased: BTreeSet<u64>,
    /// A backend has lost its memory.
    forgetful: bool,
    noted: Noted,
}

type SharedCache = Arc<Mutex<CacheScenario>>;

impl Outcome for CacheScenario {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/cache");
    let net = Net::new(world);
    let (backends, buckets) = clients::start_data_cell(world, &net, &mut rng);
    let state = SharedCache::default();
    let mut cells = Vec::new();
    for number in 0..CLIENT_NAMES.len() {
        let (node, seat) = ClientSeat::take(world, &net, plant, number, 0, &state)?;
        let seat = seat.asking(LookupWay::ALL[rng.index(LookupWay::ALL.len())]);
        cells.push(seat.cell.clone());
        node.env().spawn("client", Client { seat, seen: CellFloors::default() }.run()).detach();
    }
    if rng.below(2) == 0 {
        let breaking =
            break_backends(rng.clone(), world.outside(), net.clone(), backends, buckets, state.clone());
        world.outside().spawn("chaos", breaking).detach();
    }
    world.run_for(DURATION)?;
    // Longer than any deadline and any pause between two attempts to connect.
    clients::calm(world, &net, &state, Duration::from_secs(12))?;
    for cell in &cells {
        let keys: Vec<Bytes> = (0..KEYS).map(key_of).collect();
        let floors = state.lock().floors.clone();
        let lookups = world.run(cell.get_consistent(&keys))?;
        for (number, lookup) in (0..).zip(lookups) {
            let state = state.lock();
            state.check_value(number, &lookup)?;
            state.check_floor(number, floors.of(number), &lookup)?;
            // SETs without a quorum, or memory that was lost, may leave three replicas with three opinions.
            let agreed = !state.forgetful && !state.noted.report.counts.contains_key("refused sets");
            let failed = agreed && matches!(lookup, Lookup::Failed(_));
            ensure(!failed, || format!("in fair weather, key {number}: {lookup:?}"))?;
        }
    }
    let report = state.lock().report();
    Ok(report)
}

/// Kills and restarts backends now and then.
async fn break_backends(
    mut rng: Rng,
    outside: Outside,
    net: Net,
    backends: Vec<Node>,
    buckets: u64,
    state: SharedCache,
) {
    loop {
        outside.sleep(Duration::from_micros(rng.between(1_000, 60_000))).await;
        if state.lock().is_over() {
            return;
        }
        let number = rng.index(backends.len());
        state.lock().forgetful = true;
        state.lock().count("backends killed", 1);
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
        self.offered.check(key, value).map(|_| ())
    }

    /// A consistent get is not older than what was acknowledged before it.
    fn check_floor(&self, key: u64, floor: Version, lookup: &Lookup) -> Result<(), Violation> {
        match lookup {
            _ if self.forgetful => Ok(()),
            Lookup::Hit { version, .. } => clients::check_not_before(key, floor, *version),
            // It may have been erased while this get was under way.
            Lookup::Miss => {
                let is_lost = floor > Version::ZERO && !self.erased.contains(&key);
                ensure(!is_lost, || format!("key {key} is missing, but {floor} was acknowledged"))
            }
            Lookup::Failed(_) => Ok(()),
        }
    }
}

struct Client {
    seat: ClientSeat<CacheScenario>,
    /// The latest version that this client got consistently.
    seen: CellFloors,
}

impl Client {
    async fn run(mut self) {
        for number in 0.. {
            match self.seat.env.random_below(8) {
                0..3 => self.set(number).await,
                3 => self.erase().await,
                4..6 => self.get(false).await,
                _ => self.get(true).await,
            }
            if !self.seat.goes_on(1_000).await {
                return;
            }
        }
    }

    async fn set(&self, number: u64) {
        let key = self.seat.env.random_below(KEYS);
        let length = self.seat.env.random_below(VALUE_BYTES_MAX) as usize;
        let value = self.seat.model.lock().offered.offer((key, self.seat.number, number), length);
        let results = self.seat.cell.set(vec![(key_of(key), value)]).await;
        self.acknowledged(key, results, "sets");
    }

    async fn erase(&self) {
        let key = self.seat.env.random_below(KEYS);
        // From here on it may be gone.
        self.seat.model.lock().erased.insert(key);
        let results = self.seat.cell.erase(vec![key_of(key)]).await;
        self.acknowledged(key, results, "erases");
    }

    fn acknowledged(
        &self,
        key: u64,
        results: Vec<Result<Version, tailwater_cache::SetError>>,
        what: &'static str,
    ) {
        let mut model = self.seat.model.lock();
        match results.first() {
            Some(Ok(version)) => {
                model.floors.raise(key, *version);
                model.count(what, 1);
            }
            _ => model.count("refused sets", 1),
        }
    }

    async fn get(&mut self, consistent: bool) {
        let count = 1 + self.seat.env.random_below(4);
        let numbers: Vec<u64> = (0..count).map(|_| self.seat.env.random_below(KEYS)).collect();
        let keys: Vec<Bytes> = numbers.iter().copied().map(key_of).collect();
        let floors = self.seat.model.lock().floors.clone();
        let before = self.seen.clone();
        let lookups = match consistent {
            true => self.seat.cell.get_consistent(&keys).await,
            false => self.seat.cell.get_relaxed(&keys).await,
        };
        let mut model = self.seat.model.lock();
        for (number, lookup) in numbers.into_iter().zip(lookups) {
            let mut checked = model.check_value(number, &lookup);
            if consistent && checked.is_ok() {
                checked = model.check_floor(number, floors.of(number), &lookup);
                if let Lookup::Hit { version, .. } = lookup {
                    // A key that is asked for twice in one call is read twice at the same time, in any order.
                    let before = before.of(number);
                    self.seen.raise(number, version);
                    let back = version < before && !model.forgetful;
                    let went_back = || format!("key {number}: version {version} was got after {before}");
                    checked = checked.and(ensure(!back, went_back));
                }
            }
            model.count(clients::word_of(&lookup), 1);
            model.note(checked);
        }
    }
}
