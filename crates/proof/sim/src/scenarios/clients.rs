//! The frame of a scenario of one cell: clients on nodes of their own that change and get a few keys, in a network that
//! may be bad and parts some of them from some backends, until it is over; and what their answers are checked by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{
    Cell, CellValue, ItemExtras, Lookup, LookupWay, UpdateError, UpdateTo, Updated, Version,
};
use tailwater_env::Env;

use crate::checkers::{Violation, ensure};
use crate::net::{Net, Weather};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, Outside, World};

use super::cells::{self, CellsKind};
use super::outcome::Outcome;

pub(super) const CLIENT_NAMES: [&str; 3] = ["client-0", "client-1", "client-2"];

/// Key, client and number of a value.
pub(super) type CellIdentity = (u64, u64, u64);

pub(super) fn key_of(number: u64) -> Bytes {
    Bytes::from(format!("key {number}"))
}

/// A bad network with every other seed.
pub(super) fn draw_weather(net: &Net, rng: &mut Rng) {
    if rng.below(2) == 0 {
        net.set_weather(Weather::FOUL);
    }
}

/// Starts the backends of the data cell, and draws the weather; their nodes, and how many buckets each has.
pub(super) fn start_data_cell(world: &World, net: &Net, rng: &mut Rng) -> (Vec<Node>, u64) {
    let backends = cells::backend_nodes(world);
    let buckets = rng.between(1, 8);
    for (number, node) in backends.iter().enumerate() {
        cells::start_backend(net, node, number, CellsKind::Data, buckets);
    }
    draw_weather(net, rng);
    (backends, buckets)
}

/// What a client has, whatever it does.
pub(super) struct ClientSeat<M> {
    pub(super) env: Env,
    pub(super) cell: Cell,
    pub(super) number: u64,
    pub(super) model: Arc<Mutex<M>>,
}

impl<M: Outcome> ClientSeat<M> {
    /// Connects a client on a node of its own, whose wall clock is so far ahead of the world's.
    pub(super) fn take(
        world: &World,
        net: &Net,
        plant: Plant,
        number: usize,
        skew_ms: i64,
        model: &Arc<Mutex<M>>,
    ) -> Result<(Node, Self), Violation> {
        Self::take_of(world, net, CellsKind::Data, plant, number, skew_ms, model)
    }

    /// The same of any cell.
    pub(super) fn take_of(
        world: &World,
        net: &Net,
        kind: CellsKind,
        plant: Plant,
        number: usize,
        skew_ms: i64,
        model: &Arc<Mutex<M>>,
    ) -> Result<(Node, Self), Violation> {
        let node = world.node(CLIENT_NAMES[number]);
        node.skew_wall_ms(skew_ms);
        let env = node.env();
        let cell = world.run(cells::connect(net, &node, &env, kind, plant))?;
        Ok((node, Self { env, cell, number: number as u64, model: Arc::clone(model) }))
    }

    /// The same with lookups in this way.
    pub(super) fn asking(mut self, lookup: LookupWay) -> Self {
        self.cell = self.cell.with_lookup(lookup);
        self
    }

    /// Whether it does one more thing, after a pause of up to so many microseconds.
    pub(super) async fn goes_on(&self, pause_us: u64) -> bool {
        self.env.sleep(Duration::from_micros(self.env.random_below(pause_us))).await;
        !self.model.lock().is_over()
    }

    /// Counts a key up, which the model's counters are told; the update, if it was acknowledged.
    pub(super) async fn count_up(
        &self,
        key: u64,
        counters: impl FnOnce(&mut M) -> &mut CellCounters,
    ) -> Option<Updated> {
        let one_more = |held: Option<&CellValue>| {
            UpdateTo::Set((held.map_or(0, number_of) + 1).to_string().into(), ItemExtras::default())
        };
        let result = self.cell.update(key_of(key), one_more).await;
        let mut model = self.model.lock();
        let (acknowledged, unknown) = counters(&mut model).0.entry(key).or_default();
        let what = match &result {
            Ok(_) => {
                *acknowledged += 1;
                "counted"
            }
            Err(UpdateError::Unknown) => {
                *unknown += 1;
                "unknown"
            }
            Err(_) => "nothing changed",
        };
        model.count(what, 1);
        result.ok()
    }
}

/// Parts two nodes for so long.
pub(super) fn part(net: &Net, outside: &Outside, (a, b): (&Node, &Node), lasts: Duration) {
    net.partition(a, b);
    let (net, outside_too, a, b) = (net.clone(), outside.clone(), a.clone(), b.clone());
    let heal = async move {
        outside_too.sleep(lasts).await;
        net.heal(&a, &b);
    };
    outside.spawn("heal", heal).detach();
}

/// Parts clients from backends for a while, one pair at a time, with a pause of up to so many microseconds between.
pub(super) struct Parting<M> {
    pub(super) net: Net,
    pub(super) clients: Vec<Node>,
    pub(super) backends: Vec<Node>,
    pub(super) pause_us: u64,
    pub(super) model: Arc<Mutex<M>>,
}

impl<M: Outcome> Parting<M> {
    pub(super) async fn run(self, mut rng: Rng, outside: Outside) {
        let Self { net, clients, backends, pause_us, model } = self;
        while !model.lock().is_over() {
            let (client, backend) =
                (&clients[rng.index(clients.len())], &backends[rng.index(backends.len())]);
            net.partition(client, backend);
            outside.sleep(Duration::from_micros(rng.between(1_000, 60_000))).await;
            net.heal(client, backend);
            outside.sleep(Duration::from_micros(rng.below(pause_us))).await;
            model.lock().count("partings", 1);
        }
    }
}

/// Clients end, the weather is fair, and so much time passes. Fails if anything was seen that must not be.
pub(super) fn calm<M: Outcome>(
    world: &World,
    net: &Net,
    model: &Mutex<M>,
    time: Duration,
) -> Result<(), Violation> {
    model.lock().noted().stop = true;
    net.set_weather(Weather::FAIR);
    world.run_for(time)?;
    model.lock().take_violation()
}

/// What a get came to, in a word to count it by.
pub(super) fn word_of(lookup: &Lookup) -> &'static str {
    match lookup {
        Lookup::Hit { .. } => "hits",
        Lookup::Miss => "misses",
        Lookup::Failed(_) => "failed gets",
    }
}

/// The latest versions that are known of keys.
#[derive(Clone, Default)]
pub(super) struct CellFloors(BTreeMap<u64, Version>);

impl CellFloors {
    /// What is known of a key; [`Version::ZERO`] is nothing.
    pub(super) fn of(&self, key: u64) -> Version {
        self.0.get(&key).copied().unwrap_or(Version::ZERO)
    }

    pub(super) fn raise(&mut self, key: u64, version: Version) {
        let floor = self.0.entry(key).or_default();
        *floor = version.max(*floor);
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// A consistent get that began when `floor` was known of the key is not older.
pub(super) fn check_not_before(key: u64, floor: Version, version: Version) -> Result<(), Violation> {
    ensure(version >= floor, || {
        format!("key {key}: version {version} was got after {floor} had been acknowledged")
    })
}

/// Every value that was handed to a SET.
#[derive(Default)]
pub(super) struct OfferedValues(BTreeSet<CellIdentity>);

impl OfferedValues {
    /// A value to be set.
    pub(super) fn offer(&mut self, identity: CellIdentity, length: usize) -> Bytes {
        self.0.insert(identity);
        encode(identity, length)
    }

    /// What a get answers was set for that key, whole.
    pub(super) fn check(&self, key: u64, value: &[u8]) -> Result<CellIdentity, Violation> {
        let identity =
            decode(value).ok_or_else(|| Violation::new(format!("key {key}: its value is damaged")))?;
        ensure(identity.0 == key && self.0.contains(&identity), || {
            format!("key {key} was answered with {identity:?}, which nobody set for it")
        })?;
        Ok(identity)
    }
}

/// Of each key that is only counted up, the updates that were acknowledged, and those of which nothing is known.
#[derive(Default)]
pub(super) struct CellCounters(BTreeMap<u64, (u64, u64)>);

impl CellCounters {
    /// A counter is what was acknowledged, and at most one more for each update of which nothing is known.
    pub(super) fn check(&self, key: u64, held: u64) -> Result<(), Violation> {
        let (counted, unknown) = self.0.get(&key).copied().unwrap_or_default();
        ensure((counted..=counted + unknown).contains(&held), || {
            format!("counter {key} is {held}, of {counted} acknowledged and {unknown} unknown updates")
        })
    }
}

/// What a counter holds, in fair weather.
pub(super) async fn counter(cell: &Cell, key: u64) -> Result<u64, Violation> {
    let updated = cell.update(key_of(key), |_| UpdateTo::Keep).await;
    let held = updated.map_err(|error| Violation::new(format!("in fair weather, key {key}: {error}")))?;
    Ok(held.before.as_ref().map_or(0, number_of))
}

fn number_of(held: &CellValue) -> u64 {
    String::from_utf8_lossy(&held.value).parse().unwrap_or(u64::MAX)
}

/// A value that says whose it is, in every byte.
fn encode(identity: CellIdentity, length: usize) -> Bytes {
    let (key, client, number) = identity;
    let mut bytes = Vec::with_capacity(length + 24);
    for word in [key, client, number] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let seed = (key ^ (client << 3) ^ (number << 5)) as u8;
    bytes.extend((0..length).map(|at| seed.wrapping_add(at as u8)));
    bytes.into()
}

fn decode(bytes: &[u8]) -> Option<CellIdentity> {
    let (words, _) = bytes.first_chunk::<24>()?.as_chunks::<8>();
    let identity = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]), u64::from_le_bytes(words[2]));
    (encode(identity, bytes.len() - 24) == bytes).then_some(identity)
}
