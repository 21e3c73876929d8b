//! Clients of one cell that change the same few keys by what these hold, in a bad network that parts some of them from
//! some backends.
//!
//! The code that runs is `cache`. Some keys are only counted up. Others are set to expire, exchanged, touched and
//! erased. Wall clocks differ by up to [`SKEW_MAX_MS`]. No backend dies: what a majority has lost nobody can count.
//!
//! Checked: no two acknowledged updates changed the same value. In the end a counter is what was acknowledged, and at
//! most one more for each update of which its client was told that it is not known. What was told to have changed
//! nothing has not. A value is answered at most [`SKEW_MAX_MS`] longer than it lives. After an acknowledged change no
//! consistent get answers an earlier version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{CasError, CellValue, ItemExtras, Lookup, Updated, Version};

use crate::checkers::{Report, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Outside, World};

use super::clients::{self, CLIENT_NAMES, CellCounters, CellFloors, ClientSeat, Parting, key_of};
use super::outcome::{Noted, Outcome};

/// Keys that are only counted up.
const COUNTERS: u64 = 2;
/// The others.
const VALUES: u64 = 3;
/// How far wall clocks are from the world's, at most.
const SKEW_MAX_MS: u64 = 100;
/// The longest that a value lives that expires.
const TTL_MS_MAX: u64 = 400;
const DURATION: Duration = Duration::from_millis(600);
/// Longer than any deadline and any pause between two attempts to connect.
const SETTLED_MAX: Duration = Duration::from_secs(12);
/// How far behind a clock is that is planted.
const FAR_BEHIND_MS: i64 = 30 * 60 * 1_000;

#[derive(Default)]
struct Updates {
    /// Which client changed a version of a key, and told of it.
    changed: BTreeMap<(u64, Version), u64>,
    counters: CellCounters,
    /// The latest version that was acknowledged of a value.
    floors: CellFloors,
    noted: Noted,
}

impl Outcome for Updates {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl Updates {
    /// An update was acknowledged.
    fn note_change(&mut self, key: u64, client: u64, updated: &Updated) {
        let before = updated.before.as_ref().map(|before| before.version);
        if let Some(version) = updated.version {
            self.floors.raise(key, version);
        }
        let Some(before) = before.filter(|_| updated.version.is_some()) else { return };
        if let Some(other) = self.changed.insert((key, before), client) {
            let what = format!("key {key}: version {before} was changed twice, by {other} and by {client}");
            self.note(Err(Violation::new(what)));
        }
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/updates");
    let net = Net::new(world);
    let (backends, _) = clients::start_data_cell(world, &net, &mut rng);
    let model = Arc::<Mutex<Updates>>::default();
    let (mut cells, mut nodes) = (Vec::new(), Vec::new());
    for number in 0..CLIENT_NAMES.len() {
        let skew_ms = rng.between(0, 2 * SKEW_MAX_MS) as i64 - SKEW_MAX_MS as i64;
        let (node, seat) = ClientSeat::take(world, &net, plant, number, skew_ms, &model)?;
        cells.push(seat.cell.clone());
        let begun_ms = seat.env.wall_ms() - skew_ms - (world.outside().now().as_ns() / 1_000_000) as i64;
        let client = Client { seat, world: world.outside(), begun_ms, skew_ms };
        node.env().spawn("client", client.run()).detach();
        nodes.push(node);
    }
    if plant == Plant::ClockFarBehind {
        nodes[0].skew_wall_ms(-FAR_BEHIND_MS);
    }
    if rng.below(2) == 0 {
        let parting =
            Parting { net: net.clone(), clients: nodes, backends, pause_us: 20_000, model: model.clone() };
        world.outside().spawn("chaos", parting.run(rng, world.outside())).detach();
    }
    world.run_for(DURATION)?;
    clients::calm(world, &net, &model, SETTLED_MAX)?;
    for key in 0..COUNTERS {
        let held = world.run(clients::counter(&cells[1], key))??;
        model.lock().counters.check(key, held)?;
        // They agree by then.
        let lookup = world.run(cells[2].get_consistent(&[key_of(key)]))?.pop();
        let is_there = matches!(&lookup, Some(Lookup::Hit { value, .. }) if value == &held.to_string());
        ensure(held == 0 || is_there, || format!("counter {key} is {held}, and got as {lookup:?}"))?;
    }
    let report = model.lock().report();
    Ok(report)
}

struct Client {
    seat: ClientSeat<Updates>,
    world: Outside,
    /// What the world's wall clock showed when the world began.
    begun_ms: i64,
    /// How far its own wall clock is ahead of the world's, before anything is planted.
    skew_ms: i64,
}

impl Client {
    async fn run(self) {
        for number in 0.. {
            let value = COUNTERS + self.seat.env.random_below(VALUES);
            match self.seat.env.random_below(8) {
                0..3 => self.count().await,
                3 => self.set(value, number).await,
                4 => self.exchange(value, number).await,
                5 => self.touch(value).await,
                _ => self.get(value).await,
            }
            if !self.seat.goes_on(2_000).await {
                return;
            }
        }
    }

    /// The world's wall clock.
    fn now_ms(&self) -> u64 {
        self.begun_ms as u64 + self.world.now().as_ns() / 1_000_000
    }

    /// When a value expires that lives for a while, or 0.
    fn expires_ms(&self) -> u64 {
        match self.seat.env.random_below(2) {
            0 => 0,
            _ => self.now_ms() + 1 + self.seat.env.random_below(TTL_MS_MAX),
        }
    }

    async fn count(&self) {
        let key = self.seat.env.random_below(COUNTERS);
        if let Some(updated) = self.seat.count_up(key, |model| &mut model.counters).await {
            self.seat.model.lock().note_change(key, self.seat.number, &updated);
        }
    }

    async fn set(&self, key: u64, number: u64) {
        let extras = ItemExtras { expires_ms: self.expires_ms(), tag: number, token: 0 };
        let result =
            self.seat.cell.set_with(vec![(key_of(key), number.to_string().into(), extras)]).await.pop();
        let mut model = self.seat.model.lock();
        if let Some(Ok(version)) = result {
            model.floors.raise(key, version);
            model.count("sets", 1);
        }
    }

    /// Exchanges what it has got for something else, or for nothing.
    async fn exchange(&self, key: u64, number: u64) {
        let Some(Lookup::Hit { version, .. }) = self.seat.cell.get_consistent(&[key_of(key)]).await.pop()
        else {
            return;
        };
        let extras = ItemExtras { expires_ms: self.expires_ms(), tag: number, token: 0 };
        let exchanged =
            self.seat.cell.cas(key_of(key), Some(version), number.to_string().into(), extras).await;
        let mut model = self.seat.model.lock();
        match exchanged {
            Ok(after) => {
                let before = CellValue { version, value: Bytes::new(), extras };
                let updated = Updated { before: Some(before), version: Some(after) };
                model.note_change(key, self.seat.number, &updated);
                model.count("exchanged", 1);
            }
            Err(CasError::Other(_) | CasError::Absent) => model.count("not exchanged", 1),
            Err(CasError::Update(_)) => model.count("exchanges that failed", 1),
        }
    }

    async fn touch(&self, key: u64) {
        let expires_ms = self.expires_ms();
        if let Ok(Some(version)) = self.seat.cell.touch(key_of(key), expires_ms).await {
            let mut model = self.seat.model.lock();
            model.floors.raise(key, version);
            model.count("touched", 1);
        }
    }

    async fn get(&self, key: u64) {
        let begun_ms = self.now_ms();
        let floor = self.seat.model.lock().floors.of(key);
        let is_consistent = self.seat.env.random_below(2) == 0;
        let lookup = match is_consistent {
            true => self.seat.cell.get_consistent(&[key_of(key)]).await.pop(),
            false => self.seat.cell.get_relaxed(&[key_of(key)]).await.pop(),
        };
        let mut model = self.seat.model.lock();
        let Some(Lookup::Hit { version, extras, .. }) = lookup else { return };
        model.count("hits", 1);
        let is_over = extras.expires_ms != 0 && begun_ms > extras.expires_ms + SKEW_MAX_MS;
        let is_back = is_consistent && version < floor;
        if is_over || is_back {
            let what = match is_over {
                true => format!(
                    "key {key}: {version} was answered at {begun_ms}, {} ms after it had expired, by a clock {} ms ahead",
                    begun_ms - extras.expires_ms,
                    self.skew_ms
                ),
                false => format!("key {key}: version {version} was got after {floor} had been acknowledged"),
            };
            model.note(Err(Violation::new(what)));
        }
    }
}
