//! Backends of a cell die one at a time and start again with nothing, are refilled by the others, and then the next one
//! dies; under clients that set, erase, get and count, in a bad network, with wall clocks that differ. In
//! [`run_resize`] the cell's backends change, too: some come and some leave, of which one may be dead already; others
//! die meanwhile, and so does who carries the change on, whom another one follows. Or some are restarted one after
//! another, while a spare stands for each.
//!
//! The code that runs is `cache`. Checked, all the time: no consistent get answers an earlier version than an
//! acknowledged change or an earlier get had, or what nobody set, or a value at another version than it was
//! acknowledged at; a key that was acknowledged and never erased is not missed. In the end a counter is what was
//! acknowledged, and at most one more for each update of which its client was told that it is not known. A backend that
//! started again is filled within [`FILLED_MAX`], and a change is over within [`CHANGED_MAX`]. What was set once, at
//! the begin, is gone when it is too old.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{Backend, BackendPlace, Cell, Configuration, Lookup, LookupWay, RollStep, Version};

use crate::checkers::{Report, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

use super::cells::{self, BackendShape, CellsKind};
use super::clients::{
    self, CLIENT_NAMES, CellCounters, CellFloors, CellIdentity, ClientSeat, OfferedValues, Parting, key_of,
};
use super::outcome::{Noted, Outcome};

const BACKEND_NAMES: [&str; 5] = ["backend-0", "backend-1", "backend-2", "backend-3", "backend-4"];
/// Who carries changes on, one after another.
const OWNER_NAMES: [&str; 4] = ["owner-0", "owner-1", "owner-2", "owner-3"];
/// Keys that are set, and of those the ones that are erased, too.
const KEYS: u64 = 6;
const ERASED_FROM: u64 = 4;
/// Keys that are only counted up.
const COUNTERS: u64 = 2;
/// Keys that are set once, at the begin.
const AGED: u64 = 4;
const VALUE_BYTES_MAX: u64 = 3_000;
/// How far wall clocks are from the world's, at most.
const SKEW_MAX_MS: u64 = 300;
/// How long backends keep a value.
const TTL: Duration = Duration::from_secs(40);
/// The longest that a backend sweeps later than that.
const SWEPT_MAX: Duration = Duration::from_secs(2);
/// Longer than any deadline, the network's longest silence, and any pause between two attempts to connect.
const FILLED_MAX: Duration = Duration::from_secs(15);
/// The same for a change of backends, of which each phase waits for some of that.
const CHANGED_MAX: Duration = Duration::from_secs(40);
/// When no more backends are killed: all of it is over before a value is too old.
const CHAOS_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Refills {
    /// The latest version that was acknowledged or got of a key.
    floors: CellFloors,
    /// The value that was acknowledged at a version of a key.
    acknowledged: BTreeMap<(u64, Version), CellIdentity>,
    offered: OfferedValues,
    counters: CellCounters,
    noted: Noted,
}

type SharedRefills = Arc<Mutex<Refills>>;

impl Outcome for Refills {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl Refills {
    /// What a consistent get answered that began when `floor` was known of the key.
    fn check(&self, key: u64, floor: Version, lookup: &Lookup) -> Result<(), Violation> {
        match lookup {
            Lookup::Failed(_) => Ok(()),
            Lookup::Miss => {
                let is_lost = floor > Version::ZERO && key < ERASED_FROM;
                ensure(!is_lost, || format!("key {key} is missing, and was acknowledged at {floor}"))
            }
            Lookup::Hit { version, value, .. } => {
                let identity = self.offered.check(key, value)?;
                clients::check_not_before(key, floor, *version)?;
                let known = self.acknowledged.iter().find(|(_, of)| **of == identity);
                ensure(known.is_none_or(|((_, at), _)| version <= at), || {
                    format!("key {key}: {identity:?} was acknowledged, and got at another version, {version}")
                })
            }
        }
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    run_with(world, plant, false)
}

/// Runs it with backends that change.
pub fn run_resize(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    run_with(world, plant, true)
}

fn run_with(world: &mut World, plant: Plant, is_resized: bool) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/refill");
    let net = Net::new(world);
    let backends = if is_resized { BACKEND_NAMES.len() } else { cells::BACKENDS };
    let nodes: Vec<Node> = BACKEND_NAMES[..backends].iter().map(|name| world.node(name)).collect();
    let owners: Vec<Node> = OWNER_NAMES.iter().map(|name| world.node(name)).collect();
    let shape = BackendShape { buckets: rng.between(1, 8), ttl: TTL, refilled: Some(plant) };
    let running: Vec<Arc<Backend>> = (0..nodes.len())
        .map(|number| cells::start_backend_of(&net, &nodes[number], number, CellsKind::Data, shape))
        .collect();
    let state = SharedRefills::default();
    let (mut cells_of, mut seats) = (Vec::new(), Vec::new());
    for number in 0..CLIENT_NAMES.len() {
        let skew_ms = rng.between(0, 2 * SKEW_MAX_MS) as i64 - SKEW_MAX_MS as i64;
        let (node, seat) = ClientSeat::take(world, &net, plant, number, skew_ms, &state)?;
        let seat = seat.asking(LookupWay::ALL[rng.index(LookupWay::ALL.len())]);
        cells_of.push(seat.cell.clone());
        seats.push((node, seat));
    }
    let members: Vec<u32> = (0..cells::BACKENDS as u32).collect();
    world.run(until_filled(&world.outside(), &running, &members))??;
    let begun = world.now();
    let aged = (KEYS + COUNTERS..KEYS + COUNTERS + AGED).map(|key| (key_of(key), Bytes::from_static(b"old")));
    world.run(cells_of[0].set(aged.collect()))?;
    // So that an age that is lost makes a difference.
    world.run_for(Duration::from_secs(3))?;
    clients::draw_weather(&net, &mut rng);
    let client_nodes: Vec<Node> = seats.iter().map(|(node, _)| node.clone()).collect();
    for (node, seat) in seats {
        node.env().spawn("client", run_client(seat)).detach();
    }
    let outside = world.outside();
    for _ in 0..2 {
        let rng = Rng::new(rng.below(u64::MAX), "scenario/refill/parting");
        let parting = Parting {
            net: net.clone(),
            clients: client_nodes.clone(),
            backends: nodes.clone(),
            pause_us: 40_000,
            model: state.clone(),
        };
        outside.spawn("parting", parting.run(rng, outside.clone())).detach();
    }
    let breaking = Breaking {
        rng,
        outside,
        net: net.clone(),
        nodes,
        running,
        members,
        shape,
        plant,
        stored: CellsKind::Data.configuration(),
        owners: is_resized.then_some(owners),
        state: state.clone(),
    };
    let (running, members) = world.run(breaking.run())??;
    clients::calm(world, &net, &state, Duration::from_secs(6))?;
    world.run(until_filled(&world.outside(), &running, &members))??;
    check_the_end(world, &cells_of, &state)?;
    let over = begun + TTL + SWEPT_MAX;
    world.run_for(over.since(world.now()))?;
    let aged: Vec<Bytes> = (KEYS + COUNTERS..KEYS + COUNTERS + AGED).map(key_of).collect();
    for (key, lookup) in aged.iter().zip(world.run(cells_of[1].get_consistent(&aged))?) {
        let is_gone = !matches!(lookup, Lookup::Hit { .. });
        ensure(is_gone, || format!("{key:?} was set once, and is answered when it is too old"))?;
    }
    let report = state.lock().report();
    Ok(report)
}

/// All keys, in fair weather, with all backends filled.
fn check_the_end(world: &World, cells: &[Cell], state: &SharedRefills) -> Result<(), Violation> {
    for cell in cells {
        let floors = state.lock().floors.clone();
        let keys: Vec<Bytes> = (0..KEYS).map(key_of).collect();
        for (key, lookup) in (0..).zip(world.run(cell.get_consistent(&keys))?) {
            state.lock().check(key, floors.of(key), &lookup)?;
        }
        for key in KEYS..KEYS + COUNTERS {
            let held = world.run(clients::counter(cell, key))??;
            state.lock().counters.check(key, held)?;
        }
    }
    Ok(())
}

/// Waits until the backends with these numbers know what they should hold.
async fn until_filled(outside: &Outside, running: &[Arc<Backend>], members: &[u32]) -> Result<(), Violation> {
    let end = outside.now() + FILLED_MAX;
    let is_filled = |number: &&u32| {
        let backend = &running[**number as usize];
        backend.config_id() != 0 && backend.is_filled()
    };
    while let Some(number) = members.iter().find(|number| !is_filled(number)) {
        let why = running[*number as usize].stats().hindrance;
        ensure(outside.now() < end, || format!("backend {number} is not refilled: {why}"))?;
        outside.sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// What kills backends, and changes them.
struct Breaking {
    rng: Rng,
    outside: Outside,
    net: Net,
    nodes: Vec<Node>,
    running: Vec<Arc<Backend>>,
    /// The numbers of the cell's backends.
    members: Vec<u32>,
    shape: BackendShape,
    plant: Plant,
    /// What an owner keeps in metadata before it tells it.
    stored: Configuration,
    /// Who carry changes on, if there are any.
    owners: Option<Vec<Node>>,
    state: SharedRefills,
}

impl Breaking {
    async fn run(mut self) -> Result<(Vec<Arc<Backend>>, Vec<u32>), Violation> {
        let end = self.outside.now() + CHAOS_MAX;
        for _ in 0..self.rng.between(2, 5) {
            self.pause(120).await;
            if self.state.lock().has_failed() || self.outside.now() >= end {
                break;
            }
            let what = if self.owners.is_some() { self.rng.below(5) } else { 0 };
            let one = self.members[self.rng.index(self.members.len())];
            match what {
                0 => self.restart(one).await,
                1 => {
                    let after = self.other_members(None);
                    self.change(after, None).await?;
                }
                // One that dies while others come and leave, and starts again.
                2 => {
                    let after = self.other_members(None);
                    self.change(after, Some(one)).await?;
                }
                // Some are restarted one after another, if there can be a spare.
                3 if self.members.len() < self.nodes.len() => self.roll().await?,
                // One that is dead leaves, and another one comes.
                _ => {
                    self.nodes[one as usize].crash(Crash::Process);
                    let after = self.other_members(Some(one));
                    self.change(after, None).await?;
                    self.restart(one).await;
                }
            }
            // Another one that dies before this one is refilled is the second loss.
            until_filled(&self.outside, &self.running, &self.members).await?;
        }
        self.pause(80).await;
        Ok((self.running, self.members))
    }

    async fn restart(&mut self, number: u32) {
        let at = number as usize;
        self.state.lock().count("backends killed", 1);
        self.nodes[at].crash(Crash::Process);
        self.pause(40).await;
        self.nodes[at].start();
        self.running[at] =
            cells::start_backend_of(&self.net, &self.nodes[at], at, CellsKind::Data, self.shape);
    }

    /// Other backends than now, at least three, and not the one that is dead.
    fn other_members(&mut self, dead: Option<u32>) -> Vec<u32> {
        loop {
            let all = 0..self.nodes.len() as u32;
            let mut after: Vec<u32> = all.filter(|number| Some(*number) != dead).collect();
            while after.len() > 3 && self.rng.below(2) == 0 {
                after.remove(self.rng.index(after.len()));
            }
            if after != self.members {
                return after;
            }
        }
    }

    /// Changes the cell to the backends `after`; one that `dies` meanwhile starts again.
    async fn change(&mut self, after: Vec<u32>, dies: Option<u32>) -> Result<(), Violation> {
        let end = self.outside.now() + CHANGED_MAX;
        self.state.lock().count("changes", 1);
        let place = |number: &u32| BackendPlace::new(*number, Vec::new());
        let mut owner = self.owner().await;
        let before = owner.configuration();
        let begin = before.changing_to(after.iter().map(place).collect());
        let begin = begin.map_err(|error| Violation::new(error.to_string()))?;
        // Each phase has the next id.
        let last = begin.id + 2;
        self.tell(&owner, begin).await?;
        let mut dies = dies;
        loop {
            let known = owner.configuration();
            if known.change.is_none() && known.id >= last {
                break;
            }
            ensure(self.outside.now() < end, || format!("the change to {after:?} is at {:#x}", known.id))?;
            self.outside.sleep(Duration::from_millis(2)).await;
            if let Some(one) = dies.take_if(|_| self.rng.below(8) == 0) {
                self.restart(one).await;
            }
            if self.rng.below(40) == 0 {
                self.state.lock().count("owners killed", 1);
                owner = self.owner().await;
                continue;
            }
            let next = match self.plant {
                Plant::CopiedTooEarly => known.next_phase(),
                _ => owner.next_phase().await,
            };
            if let Some(next) = next {
                self.tell(&owner, next).await?;
            }
        }
        self.members = after;
        if let Some(one) = dies {
            self.restart(one).await;
        }
        Ok(())
    }

    /// Restarts two backends one after another, while a spare stands for each.
    async fn roll(&mut self) -> Result<(), Violation> {
        self.state.lock().count("rolls", 1);
        let outside = (0..self.nodes.len() as u32).find(|number| !self.members.contains(number));
        let spare = BackendPlace::new(outside.expect("one is no member"), Vec::new());
        let wrong = |error: tailwater_cache::ConfigurationError| Violation::new(error.to_string());
        let mut owner = self.owner().await;
        let with_spare = owner.configuration().with_other_spares(vec![spare]).map_err(wrong)?;
        self.tell(&owner, with_spare).await?;
        let first = self.rng.index(self.members.len());
        let count = if self.plant == Plant::RolledTooEarly { self.members.len() } else { 2 };
        let in_order = self.members.iter().cycle().skip(first);
        let numbers: Vec<u32> = in_order.take(count).copied().collect();
        let instances: BTreeMap<u32, u64> = loop {
            let seen = owner.roll_seen().await.instances;
            if numbers.iter().all(|number| seen.contains_key(number)) {
                break numbers.iter().map(|number| (*number, seen[number])).collect();
            }
            self.outside.sleep(Duration::from_millis(2)).await;
        };
        let mut pending = instances;
        let end = self.outside.now() + 4 * CHANGED_MAX;
        loop {
            let mut seen = owner.roll_seen().await;
            let known = owner.configuration();
            if self.plant == Plant::RolledTooEarly {
                seen.clean = self.members.iter().copied().collect();
            }
            let step = RollStep::next(&known, &pending, &seen);
            ensure(self.outside.now() < end, || format!("the roll of {numbers:?} is at {step:?}"))?;
            match step {
                RollStep::Done => break,
                RollStep::Drain { .. } if self.plant == Plant::RolledTooEarly => {
                    for number in std::mem::take(&mut pending).into_keys() {
                        self.restart(number).await;
                    }
                }
                RollStep::Drain { number, spare } => {
                    let spare = known.spares.iter().find(|of| of.number == spare).expect("it is a spare");
                    let after = known.drained_onto(number, spare).expect("it is a backend");
                    self.tell(&owner, known.changing_to(after).map_err(wrong)?).await?;
                }
                RollStep::Restore(number) => {
                    let place = BackendPlace::new(number, Vec::new());
                    let after = known.restored(&place).expect("it is drained");
                    self.tell(&owner, known.changing_to(after).map_err(wrong)?).await?;
                }
                RollStep::End(number) => self.restart(number).await,
                RollStep::Over(number) => {
                    pending.remove(&number);
                }
                RollStep::Wait(_) => {
                    self.outside.sleep(Duration::from_millis(2)).await;
                    if self.rng.below(60) == 0 {
                        self.state.lock().count("owners killed", 1);
                        owner = self.owner().await;
                        continue;
                    }
                    if let Some(next) = owner.next_phase().await {
                        self.tell(&owner, next).await?;
                    }
                }
            }
        }
        // What was the spare is any other backend's place again.
        let without = owner.configuration().with_other_spares(Vec::new()).map_err(wrong)?;
        self.tell(&owner, without).await
    }

    /// Stores a configuration, and tells it.
    async fn tell(&mut self, owner: &Cell, next: Configuration) -> Result<(), Violation> {
        self.stored = next.clone();
        owner.configure(next).await.map_err(|error| Violation::new(error.to_string()))?;
        Ok(())
    }

    /// Another one who carries changes on; the one before is dead. It goes by what is stored.
    async fn owner(&mut self) -> Cell {
        let owners = self.owners.as_mut().expect("there are changes");
        owners[0].crash(Crash::Process);
        owners.rotate_left(1);
        owners[0].restart(Crash::Process);
        let node = owners[0].clone();
        loop {
            let owner = cells::connect(&self.net, &node, &node.env(), CellsKind::Data, Plant::None).await;
            // It has asked each backend that it knows of.
            if owner.live_backends() > 0 {
                // It may know as much already.
                let _ = owner.configure(self.stored.clone()).await;
                return owner;
            }
            self.outside.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Up to so many milliseconds.
    async fn pause(&mut self, ms: u64) {
        let pause = Duration::from_micros(self.rng.below(ms * 1_000));
        self.outside.sleep(pause).await;
    }
}

async fn run_client(seat: ClientSeat<Refills>) {
    for number in 0.. {
        match seat.env.random_below(8) {
            0..2 => set(&seat, number).await,
            2 => erase(&seat).await,
            3 => {
                let key = KEYS + seat.env.random_below(COUNTERS);
                seat.count_up(key, |model| &mut model.counters).await;
            }
            _ => get(&seat).await,
        }
        if !seat.goes_on(4_000).await {
            return;
        }
    }
}

async fn set(seat: &ClientSeat<Refills>, number: u64) {
    let key = seat.env.random_below(KEYS);
    let identity = (key, seat.number, number);
    let length = seat.env.random_below(VALUE_BYTES_MAX) as usize;
    let value = seat.model.lock().offered.offer(identity, length);
    let result = seat.cell.set(vec![(key_of(key), value)]).await.pop();
    let mut model = seat.model.lock();
    if let Some(Ok(version)) = result {
        model.floors.raise(key, version);
        model.acknowledged.insert((key, version), identity);
        model.count("sets", 1);
    }
}

async fn erase(seat: &ClientSeat<Refills>) {
    let key = ERASED_FROM + seat.env.random_below(KEYS - ERASED_FROM);
    let result = seat.cell.erase(vec![key_of(key)]).await.pop();
    let mut model = seat.model.lock();
    if let Some(Ok(version)) = result {
        model.floors.raise(key, version);
        model.count("erases", 1);
    }
}

async fn get(seat: &ClientSeat<Refills>) {
    let key = seat.env.random_below(KEYS);
    let floor = seat.model.lock().floors.of(key);
    let lookup = seat.cell.get_consistent(&[key_of(key)]).await.pop().expect("one for each key");
    let mut model = seat.model.lock();
    let checked = model.check(key, floor, &lookup);
    if let Lookup::Hit { version, .. } = lookup {
        model.floors.raise(key, version);
    }
    model.count(clients::word_of(&lookup), 1);
    model.note(checked);
}
