//! Backends of a cell die one at a time and start again with nothing, are refilled by the others, and then the next one
//! dies; under clients that set, erase, get and count, in a bad network, with wall clocks that differ. In
//! [`run_resize`] the cell's backends change, too ([`super::breaking`]).
//!
//! The code that runs is `cache`. Checked, all the time: no consistent get answers an earlier version than an
//! acknowledged change or an earlier get had, or what nobody set, or a value at another version than it was
//! acknowledged at; a key that was acknowledged and never erased is not missed. In the end a counter is what was
//! acknowledged, and at most one more for each update of which its client was told that it is not known. A backend that
//! started again is filled within some time, and a change is over within some more. What was set once, at
//! the begin, is gone when it is too old.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{Cell, Lookup, Version};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::world::World;

use super::breaking::{BACKEND_NAMES, BreakWays, BreakableCell, BreakablePlan, Broken, until_filled};
use super::cells::{self, CellsKind};
use super::clients::{self, CellCounters, CellFloors, CellIdentity, ClientSeat, OfferedValues, key_of};
use super::outcome::{Noted, Outcome};

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

impl Broken for Refills {}

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
    let mut seats = Vec::new();
    let plan = BreakablePlan {
        name: "scenario/refill",
        kind: CellsKind::Data,
        plant,
        backends: if is_resized { BACKEND_NAMES.len() } else { cells::BACKENDS },
        buckets_min: 1,
        ttl: TTL,
        skew_ms_max: Some(SKEW_MAX_MS),
    };
    let cell = BreakableCell::<Refills>::start(world, plan, |node, seat| seats.push((node.clone(), seat)))?;
    let (cells_of, state) = (cell.cells.clone(), cell.state.clone());
    world.run(until_filled(&world.outside(), &cell.running, &cell.members))??;
    let begun = world.now();
    let aged = (KEYS + COUNTERS..KEYS + COUNTERS + AGED).map(|key| (key_of(key), Bytes::from_static(b"old")));
    world.run(cells_of[0].set(aged.collect()))?;
    // So that an age that is lost makes a difference.
    world.run_for(Duration::from_secs(3))?;
    for (node, seat) in seats {
        node.env().spawn("client", run_client(seat)).detach();
    }
    let ways = BreakWays {
        partings: 2,
        changes: is_resized,
        pause_ms: 120,
        chaos_max: CHAOS_MAX,
        calm: Duration::from_secs(6),
    };
    let (running, members) = cell.break_up(world, &ways)?;
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
