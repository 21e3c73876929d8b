//! A cell whose configuration changes under its clients: backends come, leave, die and start again, and the cell is
//! created anew under its name; in a bad network at times.
//!
//! The code that runs is `cache`. One client, the owner, makes the changes, as a node does that has metadata. Of the
//! others one knows the first configuration and nothing later, one comes late with it, one knows addresses of backends
//! alone, and one does nothing. CellBackends start one at a time, in any order, some after the clients.
//!
//! Checked: whatever a get answers was set for that key, whole. While all backends go by one configuration, and none
//! dies: after an acknowledged SET, or a consistent get, no consistent get answers an earlier version or a miss; and
//! nothing is answered that was set in the cell before this one. After a change all backends go by the new one within
//! [`SETTLED_MAX`], those that have left too. In the end all clients do, with the owner dead, and a backend that starts
//! again then is told by them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{
    Backend, BackendPlace, Cell, CellConfig, Configuration, Lookup, Mode, SetError, Version,
};
use tailwater_env::Env;

use crate::checkers::{Report, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

use super::cells::{self, CellsKind};
use super::clients::{self, CellFloors, CellIdentity, OfferedValues, key_of};
use super::outcome::{Noted, Outcome};

const BACKEND_NAMES: [&str; 6] =
    ["backend-0", "backend-1", "backend-2", "backend-3", "backend-4", "backend-5"];
const KEYS: u64 = 16;
const VALUE_BYTES_MAX: u64 = 3_000;
/// Longest time until all backends go by a new configuration: several times the longest pauses between two attempts,
/// and the network's longest silence.
const SETTLED_MAX: Duration = Duration::from_secs(30);
/// The same for clients that look for their backends, in fair weather.
const FOUND_MAX: Duration = Duration::from_secs(15);

#[derive(Default)]
struct ChangingCell {
    /// While all backends go by one configuration, and none dies: how often that has begun.
    settled: Option<u64>,
    changes: u64,
    /// How often the cell was created anew.
    life: u64,
    /// The latest version that was acknowledged or got of a key, since this is settled.
    floors: CellFloors,
    offered: OfferedValues,
    /// The life in which a SET was over.
    over: BTreeMap<CellIdentity, u64>,
    /// Where clients are that have found the cell.
    clients: BTreeMap<&'static str, Cell>,
    noted: Noted,
}

type Shared = Arc<Mutex<ChangingCell>>;

impl Outcome for ChangingCell {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl ChangingCell {
    fn unsettle(&mut self) {
        self.settled = None;
        self.floors.forget();
    }

    fn settle(&mut self) {
        self.changes += 1;
        self.settled = Some(self.changes);
    }

    /// A get's answer. `since` is, of one at a settled time, what was known of the key when it began, and the life.
    fn check(&self, key: u64, lookup: &Lookup, since: Option<(Version, u64)>) -> Result<(), Violation> {
        let (floor, life) = since.unwrap_or((Version::ZERO, 0));
        let Lookup::Hit { version, value, .. } = lookup else {
            let is_lost = floor > Version::ZERO && matches!(lookup, Lookup::Miss);
            return ensure(!is_lost, || format!("key {key} is missing, and was acknowledged at {floor}"));
        };
        let identity = self.offered.check(key, value)?;
        clients::check_not_before(key, floor, *version)?;
        let is_of_before = self.over.get(&identity).is_some_and(|over| *over < life);
        ensure(!is_of_before, || format!("key {key} was answered with {identity:?}, set in the cell before"))
    }

    /// Notes that a key had this version at a time that was settled throughout since `begun`.
    fn note_version(&mut self, key: u64, version: Version, begun: Option<u64>) {
        if begun.is_some() && begun == self.settled {
            self.floors.raise(key, version);
        }
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/cell");
    let net = Net::new(world);
    let nodes: Vec<Node> = BACKEND_NAMES.iter().map(|name| world.node(name)).collect();
    let buckets = rng.between(2, 16);
    let backends = CellBackends { net: net.clone(), nodes, buckets, running: Arc::default() };
    let first = configuration(7 << 32 | 1, &draw_numbers(&mut rng));
    clients::draw_weather(&net, &mut rng);
    let state = Shared::default();
    for (client, name) in (0..).zip(["owner", "early", "late", "seeded", "idle"]) {
        let node = world.node(name);
        let pause = Duration::from_millis(if name == "late" { rng.between(50, 400) } else { rng.below(20) });
        let client = Client { name, node: node.clone(), number: client, state: state.clone() };
        node.env().spawn("client", client.run(net.clone(), first.clone(), pause, plant)).detach();
    }
    let owner = world.node("owner");
    let changing =
        Changing { rng, outside: world.outside(), env: owner.env(), backends, state, plant, first };
    let (mut rng, backends, state, last) = world.run(changing.run())??;
    // Longer than any deadline and any pause between two attempts to connect.
    clients::calm(world, &net, &state, FOUND_MAX)?;
    owner.crash(Crash::Process);
    let again = last.backends[rng.index(last.backends.len())].number as usize;
    backends.nodes[again].restart(Crash::Process);
    backends.start(again);
    world.run_for(FOUND_MAX)?;
    let found = state.lock().clients.clone();
    for name in ["early", "late", "seeded", "idle"] {
        let cell = found.get(name).ok_or_else(|| Violation::new(format!("{name} finds no cell")))?;
        world.run(works(cell, &last, name))??;
    }
    let report = state.lock().report();
    Ok(report)
}

/// Whether a client goes by the last configuration, reaches all backends, and sets and gets.
async fn works(cell: &Cell, last: &Configuration, name: &str) -> Result<(), Violation> {
    let id = cell.configuration().id;
    ensure(id == last.id, || format!("{name} goes by configuration {id:#x}, and not by {:#x}", last.id))?;
    let live = cell.live_backends();
    let all = last.backends.len();
    ensure(live == all, || format!("in fair weather {name} reaches {live} of {all} backends"))?;
    let items: Vec<_> =
        (0..KEYS).map(|number| (key_of(number), Bytes::from(format!("{name} {number}")))).collect();
    for (number, result) in cell.set(items.clone()).await.into_iter().enumerate() {
        ensure(result.is_ok(), || format!("in fair weather {name} can't set key {number}: {result:?}"))?;
    }
    let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
    for ((key, wanted), lookup) in items.iter().zip(cell.get_consistent(&keys).await) {
        let is_there = matches!(&lookup, Lookup::Hit { value, .. } if value == wanted);
        ensure(is_there, || format!("in fair weather {name} set {key:?} to {wanted:?} and got {lookup:?}"))?;
    }
    Ok(())
}

/// Three to five backends.
fn draw_numbers(rng: &mut Rng) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..BACKEND_NAMES.len() as u32).collect();
    for _ in 0..rng.between(1, 3) {
        numbers.remove(rng.index(numbers.len()));
    }
    numbers
}

/// The configuration of the backends with these numbers.
fn configuration(id: u64, numbers: &[u32]) -> Configuration {
    let addresses = vec![Vec::new(); numbers.len()];
    let name = CellsKind::Data.configuration().name;
    let mut configuration = Configuration::first(id, &name, Mode::R32, addresses).expect("three or more");
    for (place, number) in configuration.backends.iter_mut().zip(numbers) {
        place.number = *number;
    }
    configuration
}

struct CellBackends {
    net: Net,
    nodes: Vec<Node>,
    buckets: u64,
    running: Arc<Mutex<BTreeMap<usize, Arc<Backend>>>>,
}

impl CellBackends {
    /// Starts one on its node, which is up.
    fn start(&self, number: usize) {
        let backend =
            cells::start_backend(&self.net, &self.nodes[number], number, CellsKind::Data, self.buckets);
        self.running.lock().insert(number, backend);
    }

    /// One that does not go by `configuration` and should, and what it goes by: one that is in it, or in what it goes
    /// by. The others answer nobody.
    fn behind(&self, configuration: &Configuration) -> Option<(usize, u64)> {
        let running = self.running.lock();
        let behind = running.iter().find(|(number, backend)| {
            let has = |of: &Configuration| of.place_of(**number as u32).is_some();
            let is_in_its_own = backend.configuration().is_some_and(|own| has(&own));
            backend.config_id() != configuration.id && (has(configuration) || is_in_its_own)
        });
        behind.map(|(number, backend)| (*number, backend.config_id()))
    }
}

/// What changes the cell.
struct Changing {
    rng: Rng,
    outside: Outside,
    env: Env,
    backends: CellBackends,
    state: Shared,
    plant: Plant,
    first: Configuration,
}

impl Changing {
    async fn run(mut self) -> Result<(Rng, CellBackends, Shared, Configuration), Violation> {
        let mut order: Vec<usize> = (0..BACKEND_NAMES.len()).collect();
        while !order.is_empty() {
            let number = order.remove(self.rng.index(order.len()));
            self.backends.start(number);
            self.pause(10).await;
        }
        let mut now = self.first.clone();
        self.settle(&now).await?;
        let owner = self.owner().await?;
        for _ in 0..self.rng.between(2, 6) {
            self.pause(80).await;
            if self.state.lock().has_failed() {
                break;
            }
            self.state.lock().unsettle();
            match self.rng.below(6) {
                0 => self.restart_one().await,
                what => {
                    let is_anew = what == 1;
                    let id = match is_anew {
                        true => self.plant.id_anew(self.env.wall_ms(), now.id),
                        false => now.id + 1,
                    };
                    let counted = if is_anew { "cells created anew" } else { "changes" };
                    self.state.lock().count(counted, 1);
                    self.state.lock().life += u64::from(is_anew);
                    now = configuration(id, &draw_numbers(&mut self.rng));
                    let configured = owner.configure(now.clone()).await;
                    let is_new = configured.map_err(|error| Violation::new(error.to_string()))?;
                    ensure(is_new, || "a greater id was taken for none".to_owned())?;
                }
            }
            self.settle(&now).await?;
        }
        self.pause(80).await;
        Ok((self.rng, self.backends, self.state, now))
    }

    /// The owner's client, once it has tried all backends.
    async fn owner(&self) -> Result<Cell, Violation> {
        let end = self.outside.now() + SETTLED_MAX;
        while self.outside.now() < end {
            if let Some(owner) = self.state.lock().clients.get("owner") {
                return Ok(owner.clone());
            }
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        Err(Violation::new("the owner finds no cell"))
    }

    /// Up to so many milliseconds.
    async fn pause(&mut self, ms: u64) {
        let pause = Duration::from_micros(self.rng.below(ms * 1_000));
        self.outside.sleep(pause).await;
    }

    async fn restart_one(&mut self) {
        let number = self.rng.index(self.backends.nodes.len());
        self.state.lock().count("backends killed", 1);
        self.backends.nodes[number].crash(Crash::Process);
        self.backends.running.lock().remove(&number);
        self.pause(40).await;
        self.backends.nodes[number].start();
        self.backends.start(number);
    }

    /// Waits until all backends go by `configuration`.
    async fn settle(&self, configuration: &Configuration) -> Result<(), Violation> {
        let end = self.outside.now() + SETTLED_MAX;
        while let Some((number, id)) = self.backends.behind(configuration) {
            ensure(self.outside.now() < end, || {
                format!("backend {number} goes by configuration {id:#x}, and not by {:#x}", configuration.id)
            })?;
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        self.state.lock().settle();
        Ok(())
    }
}

struct Client {
    name: &'static str,
    node: Node,
    number: u64,
    state: Shared,
}

impl Client {
    async fn run(self, net: Net, first: Configuration, pause: Duration, plant: Plant) {
        let env = self.node.env();
        env.sleep(pause).await;
        let connector = cells::connector(&net, &self.node, CellsKind::Data, plant);
        let client_id = env.random_u64() as u32;
        let cell = if self.name == "seeded" {
            let seeds: Vec<BackendPlace> =
                (0..BACKEND_NAMES.len() as u32).map(|number| BackendPlace::new(number, Vec::new())).collect();
            loop {
                let found = Cell::at_seeds(&env, Arc::clone(&connector), &seeds, client_id, |_| ()).await;
                match found {
                    Ok(cell) => break cell,
                    Err(_) => env.sleep(Duration::from_millis(20)).await,
                }
            }
        } else {
            Cell::connect(&env, CellConfig::of(first, connector, client_id)).await.expect("it was checked")
        };
        self.state.lock().clients.insert(self.name, cell.clone());
        if matches!(self.name, "owner" | "idle") {
            return;
        }
        for number in 0.. {
            if self.state.lock().is_over() {
                return;
            }
            match env.random_below(2) {
                0 => self.set(&env, &cell, number).await,
                _ => self.get(&env, &cell).await,
            }
            env.sleep(Duration::from_micros(env.random_below(3_000))).await;
        }
    }

    async fn set(&self, env: &Env, cell: &Cell, number: u64) {
        let key_number = env.random_below(KEYS);
        let identity = (key_number, self.number, number);
        let length = env.random_below(VALUE_BYTES_MAX) as usize;
        let (value, begun) = {
            let mut state = self.state.lock();
            (state.offered.offer(identity, length), state.settled)
        };
        let result = cell.set(vec![(key_of(key_number), value)]).await.pop();
        let mut state = self.state.lock();
        let life = state.life;
        state.over.insert(identity, life);
        match result {
            Some(Ok(version)) => {
                state.count("sets", 1);
                state.note_version(key_number, version, begun);
            }
            Some(Err(SetError::Superseded { .. })) => state.count("superseded sets", 1),
            _ => state.count("refused sets", 1),
        }
    }

    async fn get(&self, env: &Env, cell: &Cell) {
        let number = env.random_below(KEYS);
        let (begun, life, floor) = {
            let state = self.state.lock();
            (state.settled, state.life, state.floors.of(number))
        };
        let lookup = cell.get_consistent(&[key_of(number)]).await.pop().expect("one for each key");
        let mut state = self.state.lock();
        let is_settled = begun.is_some() && begun == state.settled;
        let since = is_settled.then_some((floor, life));
        let checked = state.check(number, &lookup, since);
        if let Lookup::Hit { version, .. } = &lookup {
            state.note_version(number, *version, begun);
        }
        state.count(clients::word_of(&lookup), 1);
        state.note(checked);
    }
}
