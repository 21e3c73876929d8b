//! A cell that is loaded as a whole, again and again, while its backends die one at a time, come, leave, and restart
//! while a spare stands for each ([`super::breaking`]); under clients that look up many keys at once, in a bad network.
//!
//! The code that runs is `cache`. Checked, all the time: what one lookup answers is of one load, and of one that was to
//! be read; no client gets an earlier load than it got before; no key is missed, as each load has all of them. In the
//! end each client gets all keys of the load that was read last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{Cell, CellLoadError, Lookup};

use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::world::{Node, World};

use super::breaking::{
    BACKEND_NAMES, BreakWays, BreakableCell, BreakablePlan, Broken, EndedLoad, until_filled,
};
use super::cells::{self, CellsKind};
use super::clients::{self, ClientSeat, key_of};
use super::outcome::{Noted, Outcome};

const KEYS: u64 = 12;
const LOADER_NAME: &str = "loader";
/// When no more backends are killed.
const CHAOS_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Loads {
    /// Those that were to be read.
    read: BTreeSet<u64>,
    ended: Option<EndedLoad>,
    noted: Noted,
}

type SharedLoads = Arc<Mutex<Loads>>;

impl Outcome for Loads {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl Broken for Loads {
    fn ended_load(&mut self) -> Option<EndedLoad> {
        self.ended.take()
    }

    fn will_read(&mut self, number: u64) {
        self.read.insert(number);
    }
}

impl Loads {
    /// What one lookup answered a client that had got load number `last` before; which load it got.
    fn check(&self, last: u64, keys: &[u64], lookups: &[Lookup]) -> Result<u64, Violation> {
        let mut now = None;
        for (key, lookup) in keys.iter().zip(lookups) {
            let value = match lookup {
                Lookup::Failed(_) => continue,
                Lookup::Miss => {
                    return Err(Violation::new(format!("key {key} is missing, and each load has it")));
                }
                Lookup::Hit { value, .. } => value,
            };
            let number = number_in(*key, value);
            let number =
                number.ok_or_else(|| Violation::new(format!("key {key} was answered with {value:?}")))?;
            ensure(self.read.contains(&number), || {
                format!("load {number} was answered, and is not to be read")
            })?;
            ensure(now.is_none_or(|now| now == number), || format!("a mix of loads {now:?} and {number}"))?;
            now = Some(number);
        }
        let now = now.unwrap_or(last);
        ensure(now >= last, || format!("load {now} was got after load {last}"))?;
        Ok(now)
    }
}

/// A value of a load.
fn value_of(number: u64, key: u64) -> Bytes {
    Bytes::from(format!("{number} of key {key}"))
}

/// The load that a key's value is of.
fn number_in(key: u64, value: &Bytes) -> Option<u64> {
    let number = std::str::from_utf8(value).ok()?.split(' ').next()?.parse().ok()?;
    (value_of(number, key) == value).then_some(number)
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let plan = BreakablePlan {
        name: "scenario/loads",
        kind: CellsKind::Loaded,
        plant,
        backends: BACKEND_NAMES.len(),
        buckets_min: 2,
        ttl: Duration::from_secs(60),
        skew_ms_max: None,
    };
    let broken = BreakableCell::<Loads>::start(world, plan, |node, seat| {
        node.env().spawn("client", run_client(seat)).detach();
    })?;
    let (cells_of, state) = (broken.cells.clone(), broken.state.clone());
    let loader = world.node(LOADER_NAME);
    let cell =
        world.run(cells::connect(&broken.net, &loader, &loader.env(), CellsKind::Loaded, Plant::None))?;
    loader.env().spawn("loader", run_loader(loader.clone(), cell, state.clone())).detach();
    let ways = BreakWays {
        partings: 1,
        changes: true,
        pause_ms: 2_000,
        chaos_max: CHAOS_MAX,
        calm: Duration::from_secs(12),
    };
    let (running, members) = broken.break_up(world, &ways)?;
    let last = state.lock().read.last().copied();
    if let Some(last) = last {
        world.run(until_filled(&world.outside(), &running, &members))??;
        for cell in &cells_of {
            let (numbers, keys): (Vec<u64>, Vec<Bytes>) = (0..KEYS).map(|key| (key, key_of(key))).unzip();
            let lookups = world.run(cell.get_consistent(&keys))?;
            let is_there = lookups.iter().all(|lookup| matches!(lookup, Lookup::Hit { .. }));
            ensure(is_there, || format!("in fair weather, of load {last}: {lookups:?}"))?;
            state.lock().check(last, &numbers, &lookups)?;
        }
    }
    let report = state.lock().report();
    Ok(report)
}

/// Loads again and again; each load that comes to its end is to be read before the next one begins.
async fn run_loader(node: Node, cell: Cell, model: SharedLoads) {
    let env = node.env();
    for number in 1.. {
        let loaded = load(&cell, number).await;
        let what = if loaded.is_ok() { "loads ended" } else { "loads cut short" };
        model.lock().count(what, 1);
        model.lock().ended = loaded.ok();
        let is_waiting = || {
            let mut model = model.lock();
            model.ended.is_some() && !model.is_over()
        };
        while is_waiting() {
            env.sleep(Duration::from_millis(1)).await;
        }
        env.sleep(Duration::from_micros(env.random_below(60_000))).await;
        if model.lock().is_over() {
            return;
        }
    }
}

/// Loads all keys, in two parts.
async fn load(cell: &Cell, number: u64) -> Result<EndedLoad, CellLoadError> {
    let mut load = cell.begin_load().await?;
    for part in 0..2 {
        let keys = (0..KEYS).filter(|key| key % 2 == part);
        load.set(keys.map(|key| (key_of(key), value_of(number, key))).collect()).await?;
    }
    let ended = EndedLoad { generation: load.generation(), config_id: load.config_id(), number };
    load.end().await?;
    Ok(ended)
}

async fn run_client(seat: ClientSeat<Loads>) {
    let mut last = 0;
    loop {
        let count = 1 + seat.env.random_below(KEYS);
        let numbers: Vec<u64> = (0..count).map(|_| seat.env.random_below(KEYS)).collect();
        let keys: Vec<Bytes> = numbers.iter().copied().map(key_of).collect();
        let lookups = match seat.env.random_below(2) {
            0 => seat.cell.get_relaxed(&keys).await,
            _ => seat.cell.get_consistent(&keys).await,
        };
        {
            let mut model = seat.model.lock();
            let checked = model.check(last, &numbers, &lookups);
            last = checked.as_ref().ok().copied().unwrap_or(last);
            lookups.iter().for_each(|lookup| model.count(clients::word_of(lookup), 1));
            model.note(checked.map(drop));
        }
        if !seat.goes_on(8_000).await {
            return;
        }
    }
}
