//! What kills a cell's backends, one at a time, and changes them: some come and some leave, of which one may be dead
//! already; others die meanwhile, and so does who carries the change on, whom another one follows. Or some are
//! restarted one after another, while a spare stands for each.
//!
//! [`BreakableCell`] is the cell that this happens to, with its clients, for each scenario about that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_cache::{Backend, BackendPlace, Cell, Configuration, LookupWay, RollStep};

use crate::checkers::{Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

use super::cells::{self, BackendShape, CellsKind};
use super::clients::{self, CLIENT_NAMES, ClientSeat, Parting};
use super::outcome::Outcome;

pub(super) const BACKEND_NAMES: [&str; 5] = ["backend-0", "backend-1", "backend-2", "backend-3", "backend-4"];
/// Who carries changes on, one after another.
const OWNER_NAMES: [&str; 4] = ["owner-0", "owner-1", "owner-2", "owner-3"];
/// Longer than any deadline, the network's longest silence, and any pause between two attempts to connect.
const FILLED_MAX: Duration = Duration::from_secs(15);
/// The same for a change of backends, of which each phase waits for some of that.
const CHANGED_MAX: Duration = Duration::from_secs(40);

/// A load of which all backends have said that they have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedLoad {
    pub(super) generation: u64,
    pub(super) config_id: u64,
    /// Which one it is for the scenario.
    pub(super) number: u64,
}

/// What is known of a cell whose backends are killed.
pub(super) trait Broken: Outcome {
    /// A load that is to be read, once.
    fn ended_load(&mut self) -> Option<EndedLoad> {
        None
    }

    /// The load with that number is going to be read.
    fn will_read(&mut self, _number: u64) {}
}

/// Waits until the backends with these numbers know what they should hold.
pub(super) async fn until_filled(
    outside: &Outside,
    running: &[Arc<Backend>],
    members: &[u32],
) -> Result<(), Violation> {
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

/// What differs between the cells of the scenarios.
pub(super) struct BreakablePlan {
    /// What the scenario draws is drawn under this name.
    pub(super) name: &'static str,
    pub(super) kind: CellsKind,
    pub(super) plant: Plant,
    /// How many backends there are, the spare ones included.
    pub(super) backends: usize,
    /// How many buckets each has at least, of up to 8.
    pub(super) buckets_min: u64,
    pub(super) ttl: Duration,
    /// How far clients' wall clocks are from the world's, at most, if they are drawn.
    pub(super) skew_ms_max: Option<u64>,
}

/// How a cell is broken.
pub(super) struct BreakWays {
    /// Pairs of a client and a backend that part, at a time.
    pub(super) partings: usize,
    /// Whether its backends change, too.
    pub(super) changes: bool,
    /// The longest pause before something happens, and when nothing begins any more.
    pub(super) pause_ms: u64,
    pub(super) chaos_max: Duration,
    /// How long it is fair behind that.
    pub(super) calm: Duration,
}

/// A cell with its clients, whose backends are going to break.
pub(super) struct BreakableCell<M> {
    plan: BreakablePlan,
    rng: Rng,
    pub(super) net: Net,
    pub(super) state: Arc<Mutex<M>>,
    /// The cell as each client has it.
    pub(super) cells: Vec<Cell>,
    clients: Vec<Node>,
    nodes: Vec<Node>,
    owners: Vec<Node>,
    shape: BackendShape,
    pub(super) running: Vec<Arc<Backend>>,
    /// The numbers of the cell's backends.
    pub(super) members: Vec<u32>,
}

impl<M: Broken + Default + Send + 'static> BreakableCell<M> {
    /// Starts the backends, and connects clients, each of which looks up in a way of its own and is given to `begin`.
    pub(super) fn start(
        world: &World,
        plan: BreakablePlan,
        mut begin: impl FnMut(&Node, ClientSeat<M>),
    ) -> Result<Self, Violation> {
        let mut rng = Rng::new(world.seed(), plan.name);
        let net = Net::new(world);
        let nodes: Vec<Node> = BACKEND_NAMES[..plan.backends].iter().map(|name| world.node(name)).collect();
        let owners: Vec<Node> = OWNER_NAMES.iter().map(|name| world.node(name)).collect();
        let shape = BackendShape {
            buckets: rng.between(plan.buckets_min, 8),
            ttl: plan.ttl,
            refilled: Some(plan.plant),
        };
        let running: Vec<Arc<Backend>> = (0..nodes.len())
            .map(|number| cells::start_backend_of(&net, &nodes[number], number, plan.kind, shape))
            .collect();
        let state = Arc::<Mutex<M>>::default();
        let (mut cells, mut clients) = (Vec::new(), Vec::new());
        for number in 0..CLIENT_NAMES.len() {
            let skew_ms = plan.skew_ms_max.map_or(0, |max| rng.between(0, 2 * max) as i64 - max as i64);
            let (node, seat) =
                ClientSeat::take_of(world, &net, plan.kind, plan.plant, number, skew_ms, &state)?;
            let seat = seat.asking(LookupWay::ALL[rng.index(LookupWay::ALL.len())]);
            cells.push(seat.cell.clone());
            begin(&node, seat);
            clients.push(node);
        }
        let members = (0..cells::BACKENDS as u32).collect();
        Ok(Self { plan, rng, net, state, cells, clients, nodes, owners, shape, running, members })
    }

    /// Breaks it until that is over, and lets the weather be fair then; which backends run, and which are members.
    pub(super) fn break_up(
        self,
        world: &World,
        ways: &BreakWays,
    ) -> Result<(Vec<Arc<Backend>>, Vec<u32>), Violation> {
        let Self { plan, mut rng, net, state, clients, nodes, owners, shape, running, members, .. } = self;
        clients::draw_weather(&net, &mut rng);
        let outside = world.outside();
        for _ in 0..ways.partings {
            let rng = Rng::new(rng.below(u64::MAX), &format!("{}/parting", plan.name));
            let parting = Parting {
                net: net.clone(),
                clients: clients.clone(),
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
            kind: plan.kind,
            nodes,
            running,
            members,
            shape,
            plant: plan.plant,
            stored: plan.kind.configuration(),
            owners: ways.changes.then_some(owners),
            pause_ms: ways.pause_ms,
            chaos_max: ways.chaos_max,
            state: state.clone(),
        };
        let left = world.run(breaking.run())??;
        clients::calm(world, &net, &state, ways.calm)?;
        Ok(left)
    }
}

/// What kills backends, and changes them.
struct Breaking<M> {
    rng: Rng,
    outside: Outside,
    net: Net,
    kind: CellsKind,
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
    /// The longest pause before something happens, and when nothing begins any more.
    pause_ms: u64,
    chaos_max: Duration,
    state: Arc<Mutex<M>>,
}

impl<M: Broken> Breaking<M> {
    /// Until it is over; then the backends that run, and the numbers of those that are members.
    async fn run(mut self) -> Result<(Vec<Arc<Backend>>, Vec<u32>), Violation> {
        let end = self.outside.now() + self.chaos_max;
        for _ in 0..self.rng.between(2, 5) {
            self.pause(self.pause_ms).await;
            self.read_what_was_loaded().await?;
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
        self.read_what_was_loaded().await?;
        Ok((self.running, self.members))
    }

    /// Has a load that has ended be read, as a node does that is told so.
    async fn read_what_was_loaded(&mut self) -> Result<(), Violation> {
        let Some(ended) = self.state.lock().ended_load() else { return Ok(()) };
        let owner = self.owner().await;
        let known = owner.configuration();
        let next = known.loaded(ended.generation).ok().filter(|_| known.id == ended.config_id);
        let Some(next) = next else { return Ok(()) };
        if owner.check_load(ended.generation, ended.config_id).await.is_err() {
            self.state.lock().count("loads refused", 1);
            return Ok(());
        }
        self.state.lock().will_read(ended.number);
        self.state.lock().count("loads read", 1);
        let (id, end) = (next.id, self.outside.now() + FILLED_MAX);
        self.tell(&owner, next).await?;
        let is_behind = |number: &&u32| self.running[**number as usize].config_id() != id;
        while let Some(number) = self.members.iter().find(is_behind) {
            ensure(self.outside.now() < end, || format!("backend {number} is not told what is read"))?;
            self.outside.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn restart(&mut self, number: u32) {
        let at = number as usize;
        self.state.lock().count("backends killed", 1);
        self.nodes[at].crash(Crash::Process);
        self.pause(40).await;
        self.nodes[at].start();
        self.running[at] = cells::start_backend_of(&self.net, &self.nodes[at], at, self.kind, self.shape);
    }

    /// Other backends than now, as many as a key has replicas at least, and not the one that is dead.
    fn other_members(&mut self, dead: Option<u32>) -> Vec<u32> {
        loop {
            let all = 0..self.nodes.len() as u32;
            let mut after: Vec<u32> = all.filter(|number| Some(*number) != dead).collect();
            while after.len() > self.stored.mode.replicas() && self.rng.below(2) == 0 {
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
            let owner = cells::connect(&self.net, &node, &node.env(), self.kind, Plant::None).await;
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
