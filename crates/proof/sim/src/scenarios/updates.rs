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
use tailwater_cache::{
    CasError, Cell, CellValue, EntryExtras, Lookup, UpdateError, UpdateTo, Updated, Version,
};
use tailwater_env::Env;

use crate::checkers::{Report, Violation, ensure};
use crate::net::{Net, Weather};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, Outside, World};

use super::cells::{self, CellsKind};

const CLIENT_NAMES: [&str; 3] = ["client-0", "client-1", "client-2"];
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
    /// Of each counter, the updates that were acknowledged, and those of which nothing is known.
    counted: BTreeMap<u64, (u64, u64)>,
    /// The latest version that was acknowledged of a value.
    floors: BTreeMap<u64, Version>,
    stop: bool,
    violation: Option<Violation>,
    report: Report,
}

type SharedUpdates = Arc<Mutex<Updates>>;

impl Updates {
    /// An update was acknowledged.
    fn note_change(&mut self, key: u64, client: u64, updated: &Updated) {
        let before = updated.before.as_ref().map(|before| before.version);
        if let Some(version) = updated.version {
            let floor = self.floors.entry(key).or_default();
            *floor = version.max(*floor);
        }
        let Some(before) = before.filter(|_| updated.version.is_some()) else { return };
        if let Some(other) = self.changed.insert((key, before), client) {
            let what = format!("key {key}: version {before} was changed twice, by {other} and by {client}");
            self.violation.get_or_insert(Violation::new(what));
        }
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/updates");
    let net = Net::new(world);
    let backends = cells::backend_nodes(world);
    let buckets = rng.between(1, 8);
    for (number, node) in backends.iter().enumerate() {
        cells::start_backend(&net, node, number, CellsKind::Data, buckets);
    }
    if rng.below(2) == 0 {
        net.set_weather(Weather::FOUL);
    }
    let state = SharedUpdates::default();
    let (mut clients, mut nodes) = (Vec::new(), Vec::new());
    for (number, name) in (0..).zip(CLIENT_NAMES) {
        let node = world.node(name);
        let skew_ms = rng.between(0, 2 * SKEW_MAX_MS) as i64 - SKEW_MAX_MS as i64;
        node.skew_wall_ms(skew_ms);
        let env = node.env();
        let cell = world.run(cells::connect(&net, &node, &env, CellsKind::Data, plant))?;
        clients.push(cell.clone());
        let begun_ms = env.wall_ms() - skew_ms - (world.outside().now().as_ns() / 1_000_000) as i64;
        let client = Client {
            env: env.clone(),
            world: world.outside(),
            cell,
            number,
            begun_ms,
            skew_ms,
            state: state.clone(),
        };
        env.spawn("client", client.run()).detach();
        nodes.push(node);
    }
    if plant == Plant::ClockFarBehind {
        nodes[0].skew_wall_ms(-FAR_BEHIND_MS);
    }
    if rng.below(2) == 0 {
        let parting = part(rng.clone(), world.outside(), net.clone(), nodes, backends, state.clone());
        world.outside().spawn("chaos", parting).detach();
    }
    world.run_for(DURATION)?;
    state.lock().stop = true;
    net.set_weather(Weather::FAIR);
    world.run_for(SETTLED_MAX)?;
    if let Some(violation) = state.lock().violation.take() {
        return Err(violation);
    }
    for key in 0..COUNTERS {
        let updated = world.run(clients[1].update(key_of(key), |_| UpdateTo::Keep))?;
        let held = updated.map_err(|error| Violation::new(format!("in fair weather, key {key}: {error}")))?;
        let held = held.before.map_or(0, |held| number_of(&held));
        let (counted, unknown) = state.lock().counted.get(&key).copied().unwrap_or_default();
        ensure((counted..=counted + unknown).contains(&held), || {
            format!("counter {key} is {held}, of {counted} acknowledged and {unknown} unknown updates")
        })?;
        // They agree by then.
        let lookup = world.run(clients[2].get_consistent(&[key_of(key)]))?.pop();
        let is_there = matches!(&lookup, Some(Lookup::Hit { value, .. }) if value == &held.to_string());
        ensure(held == 0 || is_there, || format!("counter {key} is {held}, and got as {lookup:?}"))?;
    }
    let state = state.lock();
    Ok(state.report.clone())
}

fn key_of(number: u64) -> Bytes {
    Bytes::from(format!("key {number}"))
}

fn number_of(held: &CellValue) -> u64 {
    String::from_utf8_lossy(&held.value).parse().unwrap_or(u64::MAX)
}

/// Parts clients from backends for a while, one pair at a time.
async fn part(
    mut rng: Rng,
    outside: Outside,
    net: Net,
    clients: Vec<Node>,
    backends: Vec<Node>,
    state: SharedUpdates,
) {
    while !state.lock().stop {
        let (client, backend) = (&clients[rng.index(clients.len())], &backends[rng.index(backends.len())]);
        net.partition(client, backend);
        outside.sleep(Duration::from_micros(rng.between(1_000, 60_000))).await;
        net.heal(client, backend);
        outside.sleep(Duration::from_micros(rng.below(20_000))).await;
        state.lock().report.count("partings", 1);
    }
}

struct Client {
    env: Env,
    world: Outside,
    cell: Cell,
    number: u64,
    /// What the world's wall clock showed when the world began.
    begun_ms: i64,
    /// How far its own wall clock is ahead of the world's, before anything is planted.
    skew_ms: i64,
    state: SharedUpdates,
}

impl Client {
    async fn run(self) {
        for number in 0.. {
            if self.state.lock().stop || self.state.lock().violation.is_some() {
                return;
            }
            let value = COUNTERS + self.env.random_below(VALUES);
            match self.env.random_below(8) {
                0..3 => self.count().await,
                3 => self.set(value, number).await,
                4 => self.exchange(value, number).await,
                5 => self.touch(value).await,
                _ => self.get(value).await,
            }
            self.env.sleep(Duration::from_micros(self.env.random_below(2_000))).await;
        }
    }

    /// The world's wall clock.
    fn now_ms(&self) -> u64 {
        self.begun_ms as u64 + self.world.now().as_ns() / 1_000_000
    }

    /// When a value expires that lives for a while, or 0.
    fn expires_ms(&self) -> u64 {
        match self.env.random_below(2) {
            0 => 0,
            _ => self.now_ms() + 1 + self.env.random_below(TTL_MS_MAX),
        }
    }

    async fn count(&self) {
        let key = self.env.random_below(COUNTERS);
        let one_more = |held: Option<&CellValue>| {
            UpdateTo::Set((held.map_or(0, number_of) + 1).to_string().into(), EntryExtras::default())
        };
        let result = self.cell.update(key_of(key), one_more).await;
        let mut state = self.state.lock();
        let counted = state.counted.entry(key).or_default();
        match &result {
            Ok(_) => counted.0 += 1,
            Err(UpdateError::Unknown) => counted.1 += 1,
            Err(_) => {}
        }
        let what = match &result {
            Ok(_) => "counted",
            Err(UpdateError::Unknown) => "unknown",
            Err(_) => "nothing changed",
        };
        state.report.count(what, 1);
        if let Ok(updated) = result {
            state.note_change(key, self.number, &updated);
        }
    }

    async fn set(&self, key: u64, number: u64) {
        let extras = EntryExtras { expires_ms: self.expires_ms(), tag: number, token: 0 };
        let result = self.cell.set_with(vec![(key_of(key), number.to_string().into(), extras)]).await.pop();
        let mut state = self.state.lock();
        if let Some(Ok(version)) = result {
            let floor = state.floors.entry(key).or_default();
            *floor = version.max(*floor);
            state.report.count("sets", 1);
        }
    }

    /// Exchanges what it has got for something else, or for nothing.
    async fn exchange(&self, key: u64, number: u64) {
        let Some(Lookup::Hit { version, .. }) = self.cell.get_consistent(&[key_of(key)]).await.pop() else {
            return;
        };
        let extras = EntryExtras { expires_ms: self.expires_ms(), tag: number, token: 0 };
        let exchanged = self.cell.cas(key_of(key), Some(version), number.to_string().into(), extras).await;
        let mut state = self.state.lock();
        match exchanged {
            Ok(after) => {
                let before = CellValue { version, value: Bytes::new(), extras };
                let updated = Updated { before: Some(before), version: Some(after) };
                state.note_change(key, self.number, &updated);
                state.report.count("exchanged", 1);
            }
            Err(CasError::Other(_) | CasError::Absent) => state.report.count("not exchanged", 1),
            Err(CasError::Update(_)) => state.report.count("exchanges that failed", 1),
        }
    }

    async fn touch(&self, key: u64) {
        let expires_ms = self.expires_ms();
        if let Ok(Some(version)) = self.cell.touch(key_of(key), expires_ms).await {
            let mut state = self.state.lock();
            let floor = state.floors.entry(key).or_default();
            *floor = version.max(*floor);
            state.report.count("touched", 1);
        }
    }

    async fn get(&self, key: u64) {
        let begun_ms = self.now_ms();
        let floor = self.state.lock().floors.get(&key).copied().unwrap_or_default();
        let is_consistent = self.env.random_below(2) == 0;
        let lookup = match is_consistent {
            true => self.cell.get_consistent(&[key_of(key)]).await.pop(),
            false => self.cell.get_relaxed(&[key_of(key)]).await.pop(),
        };
        let mut state = self.state.lock();
        let Some(Lookup::Hit { version, extras, .. }) = lookup else { return };
        state.report.count("hits", 1);
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
            state.violation.get_or_insert(Violation::new(what));
        }
    }
}
