//! Regions with chains of replicas, their configuration services, publishers that try again and listeners: replicas die
//! and are replaced, are cut off and suspected wrongly, regions are cut from each other, connections break, links are
//! slow, clocks differ, disks stand still, clients crash and come back with what they had kept, or stop reading
//! (`crashes.rs`); a configuration service restarts, or loses its metadata, with a replica's disk perhaps
//! (`configuration.rs`). At the end one fault lasts (`long.rs`). In a scenario of its own some listeners share
//! (`sharing.rs`), and in another one retention removes what is a few seconds old (`retention.rs`).
//!
//! Checked with the executable guarantees of section 2.1: every listener gets every event, or a tombstone that a later
//! collection explains, in order; what was acknowledged is there once, in its publisher's order, under the number that
//! was told; no collection undoes another one, and publishers are refused nothing else; all regions agree on every
//! number; no connection has more to send than it may; whatever tails say of how old their knowledge is covers what had
//! been acknowledged by then. Some regions' replicas keep events on disk: all of them may end at once, and lose what
//! was not synced. Of the others' one member of the chain survives always: what is lost with all of them is not
//! promised.

mod anew;
mod clients;
mod configuration;
mod crashes;
mod disk;
mod long;
mod net;
mod retention;
mod sharing;
mod truth;

use std::collections::{BTreeMap, VecDeque};

use tailwater_broadcast::membership::Membership;
use tailwater_broadcast::message::{AGE_UNKNOWN, Chain, Member, Message, Role, Waits};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::replica::{
    Config, MESSAGE_BYTES, Peer, Replica, ReplicaOutput, WAITING_BYTES_MAX, size_of_message,
};
use tailwater_broadcast::{Durability, Position, Stream};
use tailwater_broadcast_server::region::Region as Sharers;

use self::clients::{Client, Listener, NextAct, Observed, Publisher};
use self::disk::Disk;
use self::net::{Happening, Net, Pid, SimLinkId};
use self::sharing::Sharer;
use self::truth::{HEAVY_BYTES, KINDS, Truths, publisher_id};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Outside, World};

const REGIONS: [&str; 3] = ["a", "b", "c"];
/// Between two looks at everything, in milliseconds.
const STEP_MS: u64 = 5;
/// A replica's tick, and its report to the configuration service.
const TICK_MS: u64 = 20;
/// A member that was silent for so long is removed.
const SILENCE_MS: u64 = 400;
/// The last member is given up after so long: never here, but where a region begins anew.
const LOST_MS: u64 = 600_000;
/// How long everything may take to arrive once nothing fails any more.
const SETTLE_MS: u64 = 120_000;
/// Once nothing fails any more tails know of all streams how far their own regions were so long ago.
const KNOWN_MS: u64 = 2_000;
/// Bytes that may be on their way from a replica on one connection: what its events may be, one message more, and as
/// much again for all else.
const WAITING_MAX: usize = WAITING_BYTES_MAX + 2 * (MESSAGE_BYTES + HEAVY_BYTES);
/// 1970 is so long ago when a world begins.
const WALL_MS_AT_START: u64 = 1_700_000_000_000;

struct Node {
    replica: Replica,
    /// The listeners that share, as it sees them while it is the tail.
    sharers: Option<Sharers>,
    region: usize,
    slot: usize,
    skew_ms: u64,
    joined: bool,
    /// From when on it reaches the configuration service again, which was not there.
    reports_from_ms: u64,
    /// What it waited for, a while ago and since.
    waited: VecDeque<Waits>,
    links: BTreeMap<SimLinkId, Pid>,
    /// Whether something came that it has not acted on yet.
    has_news: bool,
}

struct Region {
    service: Membership,
    /// The replica in each slot, and when a new one starts there.
    slots: Vec<(Option<Pid>, u64)>,
    /// What its streams' events collect: by key or predicate, and by number or age.
    kinds: [usize; 2],
    /// Whether its replicas keep what they have, and the disks in the slots.
    durable: bool,
    disks: BTreeMap<usize, Disk>,
}

struct Sim {
    outside: Outside,
    rng: Rng,
    plant: Plant,
    lost_ms: u64,
    /// How long streams hold their events; 0 is for ever.
    retention_ms: u64,
    now_ms: u64,
    next_pid: Pid,
    net: Net,
    regions: Vec<Region>,
    nodes: BTreeMap<Pid, Node>,
    clients: BTreeMap<Pid, Client>,
    truths: Truths,
    /// A replica that takes itself for a member of a chain that is no more.
    late: Option<Pid>,
    /// Whether some listeners share.
    shares: bool,
    report: Report,
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut sim = Sim::new(world, plant, "broadcast", LOST_MS);
    sim.populate();
    live(sim)
}

/// Runs the scenario in which some listeners share.
pub fn run_sharing(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut sim = Sim::new(world, plant, "broadcast-sharing", LOST_MS);
    sim.shares = true;
    sim.populate();
    sim.populate_sharers();
    live(sim)
}

fn live(mut sim: Sim) -> Result<Report, Violation> {
    let quiet_ms = sim.now_ms + sim.rng.between(5_000, 20_000);
    let mut next_fault_ms = sim.now_ms + 1_000;
    while sim.now_ms < quiet_ms {
        sim.step(true)?;
        if sim.now_ms >= next_fault_ms {
            match sim.shares && sim.rng.chance(400_000) {
                true => sim.sharing_fault()?,
                false => sim.fault()?,
            }
            next_fault_ms = sim.now_ms + sim.rng.between(100, 1_000);
        }
    }
    sim.net.heal(sim.now_ms);
    sim.net.stopped.clear();
    sim.sharers_read();
    for region in 0..sim.regions.len() {
        // One that has to get all of it from what is left.
        sim.client(Client::Listener(Listener::new(region, sim.plant)));
    }
    sim.disks_go_on();
    sim.settle()?;
    if sim.last_long()? {
        sim.settle()?;
    }
    if sim.retention_ms > 0 {
        sim.all_expires()?;
    }
    sim.finish()
}

/// Runs the scenario in which retention removes events, and in every second world some listeners share.
pub fn run_retention(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut sim = Sim::new(world, plant, "broadcast-retention", LOST_MS);
    sim.retention_ms = sim.rng.between(retention::MS.0, retention::MS.1);
    sim.shares = sim.rng.chance(500_000);
    sim.populate();
    if sim.shares {
        sim.populate_sharers();
    }
    live(sim)
}

/// Runs the scenario in which a region begins anew.
pub fn run_anew(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    anew::run(Sim::new(world, plant, "broadcast-anew", anew::LOST_MS))
}

impl Sim {
    fn new(world: &World, plant: Plant, scenario: &'static str, lost_ms: u64) -> Self {
        let mut rng = Rng::new(world.seed(), scenario);
        let latency_ms = rng.between(2, 40);
        Self {
            outside: world.outside(),
            plant,
            lost_ms,
            retention_ms: 0,
            now_ms: 1_000,
            next_pid: 1,
            net: Net::new(latency_ms),
            regions: Vec::new(),
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            truths: Truths::default(),
            late: None,
            shares: false,
            report: Report::default(),
            rng,
        }
    }

    fn populate(&mut self) {
        let regions = self.rng.between(1, 3) as usize;
        for name in REGIONS.iter().take(regions) {
            let slots = self.rng.between(1, 3) as usize;
            let durable = self.rng.chance(500_000);
            self.region(name, slots, durable);
        }
        self.populate_clients();
    }

    fn region(&mut self, name: &str, slots: usize, durable: bool) {
        let chain = Chain { region: name.to_owned(), ..Chain::default() };
        let service = Membership::new(self.now_ms, chain, SILENCE_MS, self.lost_ms);
        let slots = vec![(None, 0); slots];
        let kinds = [[0, 3], [1, 2]].map(|kinds| kinds[self.rng.index(2)]);
        self.regions.push(Region { service, slots, kinds, durable, disks: BTreeMap::new() });
    }

    fn populate_clients(&mut self) {
        // In some worlds one stream has large events.
        let heavy = if self.rng.chance(500_000) { self.rng.index(self.regions.len()) } else { usize::MAX };
        for region in 0..self.regions.len() {
            self.populate_publishers(region, region == heavy);
            for _ in 0..2 {
                self.client(Client::Listener(Listener::new(region, self.plant)));
            }
        }
    }

    /// Those of its streams; some events of the first one are large if it `is_heavy`.
    fn populate_publishers(&mut self, region: usize, is_heavy: bool) {
        for (at, kind) in self.regions[region].kinds.into_iter().enumerate() {
            let stream =
                Stream::parse(&format!("{}/{}", REGIONS[region], KINDS[kind])).expect("it is a name");
            for _ in 0..self.rng.between(1, 2) {
                let id = publisher_id(self.rng.next_u64(), kind, is_heavy && at == 0);
                self.client(Client::Publisher(Publisher::new(region, id, stream.clone(), self.plant)));
            }
        }
    }

    /// Until all has arrived everywhere: nothing fails any more.
    fn settle(&mut self) -> Result<(), Violation> {
        let end_ms = self.now_ms + SETTLE_MS;
        while !self.is_settled() {
            ensure(self.now_ms < end_ms, || self.stuck())?;
            self.step(false)?;
        }
        Ok(())
    }

    fn disks_go_on(&mut self) {
        let disks = self.regions.iter_mut().flat_map(|region| region.disks.values_mut());
        disks.for_each(|disk| disk.stands_until_ms = 0);
    }

    fn client(&mut self, client: Client) -> Pid {
        let pid = self.next_pid;
        self.next_pid += 1;
        self.net.sites.insert(pid, site(client.region(), 9));
        self.clients.insert(pid, client);
        pid
    }

    fn step(&mut self, active: bool) -> Result<(), Violation> {
        self.now_ms += STEP_MS;
        self.start_replicas()?;
        for happening in self.net.step(self.now_ms) {
            match happening {
                Happening::Opened(link) => self.opened(link),
                Happening::Delivered { link, to, from, message } => {
                    self.delivered(link, to, from, *message)?
                }
                Happening::Broken(link) => self.broken(link),
            }
        }
        let pids: Vec<Pid> = self.nodes.keys().copied().collect();
        for pid in pids {
            self.outputs(pid)?;
            if self.now_ms.is_multiple_of(TICK_MS) {
                self.tick(pid)?;
                self.outputs(pid)?;
            }
            self.disk_step(pid);
        }
        self.drive_clients(active);
        self.drive_sharers()?;
        for region in 0..self.regions.len() {
            self.configure(region);
        }
        Ok(())
    }

    /// New replicas where others died: with nothing, or with what the disk there has.
    fn start_replicas(&mut self) -> Result<(), Violation> {
        for (region, name) in REGIONS.iter().enumerate().take(self.regions.len()) {
            for slot in 0..self.regions[region].slots.len() {
                let (None, at_ms) = self.regions[region].slots[slot] else { continue };
                if at_ms > self.now_ms {
                    continue;
                }
                let (pid, replica) = self.new_replica(region, slot, name)?;
                let skew_ms = self.rng.below(2_000);
                let me = Member { id: pid, address: address(region, slot) };
                let sharers = self.shares.then(|| Sharers::new(&me, self.rng.next_u64()));
                let links = BTreeMap::new();
                let node = Node {
                    replica,
                    sharers,
                    region,
                    slot,
                    skew_ms,
                    joined: false,
                    reports_from_ms: 0,
                    waited: VecDeque::new(),
                    links,
                    has_news: true,
                };
                self.nodes.insert(pid, node);
                self.net.sites.insert(pid, site(region, slot));
                self.regions[region].slots[slot].0 = Some(pid);
            }
        }
        Ok(())
    }

    /// A replica, and its number: even if it has a disk.
    fn new_replica(&mut self, region: usize, slot: usize, name: &str) -> Result<(Pid, Replica), Violation> {
        let retention_ms = self.retention_ms;
        let config = |id| Config { retention_ms, ..Config::new(name, id) };
        let Region { durable, disks, .. } = &mut self.regions[region];
        let new_id = self.next_pid + u64::from((self.next_pid & 1 == 0) != *durable);
        if !*durable {
            self.next_pid = new_id + 1;
            return Ok((new_id, Replica::new(config(new_id))));
        }
        let disk = disks.entry(slot).or_insert_with(|| Disk::new(new_id));
        self.next_pid = self.next_pid.max(disk.id + 1);
        let recovered = disk.load(self.plant)?;
        let (lineages, streams) = (recovered.lineages().clone(), recovered.into_streams());
        self.truths.holds(disk.id, |stream| streams.get(stream).map_or(0, |state| state.last()));
        for (stream, state) in &streams {
            // It may have forgotten it, and numbered others so, and the disk does not have that.
            state.unsettled().for_each(|entry| self.truths.stored(disk.id, stream, &entry.batch));
        }
        let config = Config { durability: Durability::Fsync.into(), ..config(disk.id) };
        Ok((disk.id, Replica::recovered(config, lineages, streams)))
    }

    fn tick(&mut self, pid: Pid) -> Result<(), Violation> {
        let wanted = self.wanted(pid);
        let Some(node) = self.nodes.get_mut(&pid) else { return Ok(()) };
        node.has_news = true;
        let wall_ms = WALL_MS_AT_START + self.now_ms + node.skew_ms;
        node.replica.tick(self.now_ms, wall_ms);
        if self.retention_ms > 0 && node.replica.is_head() {
            let local = node.replica.streams().filter(|(s, _)| s.region() == REGIONS[node.region]);
            for (stream, state) in local {
                let older_ms = wall_ms - self.retention_ms;
                self.truths.removed(stream, state.history.removed(), older_ms)?;
            }
        }
        for acceptor in wanted {
            if self.net.between(pid, acceptor).is_none() {
                self.net.dial(self.now_ms, &mut self.rng, pid, acceptor);
            }
        }
        // To the configuration service, which is at a site of its own.
        let (region, slot) = (node.region, node.slot);
        let cut = self.net.cuts.contains(&(site(region, slot), site(region, 8)));
        if cut || self.rng.chance(100_000) || self.now_ms < node.reports_from_ms {
            return Ok(());
        }
        let Region { service, durable, .. } = &mut self.regions[region];
        if !node.joined || !node.replica.is_in_chain() {
            let member = Member { id: pid, address: address(region, slot) };
            service.join(self.now_ms, member, *durable, node.replica.chain().epoch == 0);
            node.joined = true;
        }
        let mut caught_up: Vec<Pid> = node.replica.caught_up().into_iter().collect();
        if self.plant == Plant::JoinedBeforeCaughtUp {
            caught_up = service.chain().joining.iter().map(|member| member.id).collect();
        }
        let waits = self.plant.broadcast_waits(node.replica.waits(), &mut node.waited);
        service.alive(self.now_ms, pid, node.replica.chain().epoch, &caught_up, waits);
        service.has(pid, node.replica.has());
        let mut chain = self.plant.broadcast_chain(service.chain().clone());
        if self.plant == Plant::HeadAcknowledgesAlone && chain.head() == Some(pid) {
            chain.members.truncate(1);
        }
        node.replica.configure(self.now_ms, chain);
        // It may forget what was on its way.
        self.truths.holds(pid, |stream| last_of(&node.replica, stream));
        Ok(())
    }

    /// Whom a replica connects to.
    fn wanted(&self, pid: Pid) -> Vec<Pid> {
        let Some(node) = self.nodes.get(&pid) else { return Vec::new() };
        let others = self.regions.iter().enumerate().filter(|(region, _)| *region != node.region);
        let mut wanted: Vec<Pid> =
            others.flat_map(|(_, region)| region.slots.iter().filter_map(|(pid, _)| *pid)).collect();
        let before = node.replica.predecessor().map(|member| member.address.clone());
        wanted.extend(before.and_then(|at| self.at(&at)).filter(|before| *before != pid));
        wanted
    }

    /// The replica at an address.
    fn at(&self, at: &str) -> Option<Pid> {
        let (region, slot) = at.split_once(':')?;
        let region = REGIONS.iter().position(|name| *name == region)?;
        self.regions.get(region)?.slots.get(slot.parse::<usize>().ok()?)?.0
    }

    fn configure(&mut self, region: usize) {
        let service = &mut self.regions[region].service;
        if let Some(chain) = service.next(self.now_ms) {
            self.outside.record("chain", chain.epoch, chain.members.len() as u64);
            self.report.count("stuck replicas removed", u64::from(service.leaves().is_some()));
            service.changed(chain);
            self.report.count("chains", 1);
        }
    }

    fn opened(&mut self, link: SimLinkId) {
        let Some(Link2 { dialer, acceptor }) = self.ends(link) else { return };
        if matches!(self.clients.get(&dialer), Some(Client::Sharer(_))) && !self.nodes.contains_key(&acceptor)
        {
            return self.sharers_opened(link, dialer, acceptor);
        }
        let role = match (self.nodes.get(&dialer), self.clients.get(&dialer)) {
            (Some(node), _) => (REGIONS[node.region].to_owned(), Role::Replica(dialer)),
            (None, Some(client)) => ("client".to_owned(), Role::Client(client.id(dialer))),
            (None, None) => return,
        };
        let Some(node) = self.nodes.get_mut(&acceptor) else { return };
        node.has_news = true;
        node.links.insert(link, dialer);
        node.replica.connected(self.now_ms, link, Peer::In(role.0, role.1));
        let (region, at) = (REGIONS[node.region].to_owned(), address(node.region, node.slot));
        if let Some(node) = self.nodes.get_mut(&dialer) {
            node.has_news = true;
            node.links.insert(link, acceptor);
            node.replica.connected(self.now_ms, link, Peer::Out(region, acceptor));
            // With the one before it it may begin anew.
            self.truths.holds(dialer, |stream| last_of(&node.replica, stream));
        } else if let Some(client) = self.clients.get_mut(&dialer) {
            client.linked(link, at);
        }
    }

    fn ends(&self, link: SimLinkId) -> Option<Link2> {
        self.net.links.get(&link).map(|link| Link2 { dialer: link.dialer, acceptor: link.acceptor })
    }

    fn delivered(&mut self, link: SimLinkId, to: Pid, from: Pid, message: Message) -> Result<(), Violation> {
        if let Some(sender) = self.nodes.get_mut(&from)
            && self.plant != Plant::DrainedTooEarly
        {
            let bytes = size_of_message(&message);
            sender.has_news = true;
            sender.replica.drained(link, bytes);
            if let Some(sharers) = &mut sender.sharers {
                sharers.drained(self.now_ms, link, bytes, &sender.replica);
            }
        }
        self.sharer_drained(link, from);
        self.outside.record("message", to, from);
        if let Some(node) = self.nodes.get_mut(&to) {
            node.has_news = true;
            let Node { replica, sharers, .. } = node;
            let message = match (message, sharers) {
                (Message::Share { member, positions }, Some(sharers)) => {
                    sharers.shared(self.now_ms, link, member, positions, replica);
                    return Ok(());
                }
                (Message::Region(message), Some(sharers)) => {
                    sharers.receive(self.now_ms, link, message, replica);
                    return Ok(());
                }
                (message, _) => message,
            };
            let (given, is_published) = match &message {
                Message::Publish { stream, batch, .. } => (Some((stream.clone(), batch.clone())), true),
                Message::Append { stream, batch, .. } | Message::Events { stream, batch, .. } => {
                    (Some((stream.clone(), batch.clone())), false)
                }
                _ => (None, false),
            };
            let before = given.as_ref().map_or(0, |(stream, _)| last_of(replica, stream));
            replica.receive(self.now_ms, link, message);
            if let Some((stream, mut batch)) = given
                && let last = last_of(replica, &stream)
                && last > before
            {
                if is_published {
                    // What it has numbered just now are the last of what was published.
                    batch.after = last - u64::from(batch.count);
                    batch.last = last;
                    batch.state.time_ms = replica.stream(&stream).map_or(0, |state| state.time_ms());
                }
                // What it has already it does not take again, from whom ever: one that does not know the newest chain
                // may have numbered others so.
                if let Ok(Some(new)) = batch.rest(before) {
                    self.truths.stored(to, &stream, &new);
                }
            }
            return Ok(());
        }
        if let Some(Client::Sharer(_)) = self.clients.get(&to) {
            return self.sharer_receives(to, link, message);
        }
        let Some(client) = self.clients.get_mut(&to) else { return Ok(()) };
        if client.link() != Some(link) {
            return Ok(());
        }
        match client.receive(message, &mut self.truths)? {
            NextAct::Nothing => {}
            NextAct::Send(messages) => {
                for message in messages {
                    self.net.send(self.now_ms, &mut self.rng, link, to, message);
                }
            }
            NextAct::Reconnect(wanted) => {
                *client.wanted() = wanted;
                self.broken(link);
            }
        }
        Ok(())
    }

    /// A connection is gone, for both of its ends.
    fn broken(&mut self, link: SimLinkId) {
        let Some(ends) = self.ends(link) else { return };
        self.net.remove(link);
        for pid in [ends.dialer, ends.acceptor] {
            if let Some(node) = self.nodes.get_mut(&pid)
                && node.links.remove(&link).is_some()
            {
                node.has_news = true;
                node.replica.closed(self.now_ms, link);
                if let Some(sharers) = &mut node.sharers {
                    sharers.closed(self.now_ms, link, &node.replica);
                }
            } else if let Some(Client::Sharer(sharer)) = self.clients.get_mut(&pid) {
                sharer.lost(self.now_ms, link);
            } else if let Some(client) = self.clients.get_mut(&pid)
                && client.link() == Some(link)
            {
                client.lost();
                if self.plant == Plant::RetryAsAnother
                    && let Client::Publisher(publisher) = client
                {
                    publisher.rename();
                }
            }
        }
    }

    /// What a replica does about what came.
    fn outputs(&mut self, pid: Pid) -> Result<(), Violation> {
        let Some(node) = self.nodes.get_mut(&pid) else { return Ok(()) };
        let is_due = node.sharers.as_ref().is_some_and(|sharers| sharers.due_ms() <= self.now_ms);
        if !std::mem::take(&mut node.has_news) && !is_due {
            return Ok(());
        }
        let region = node.region;
        let tail = self.regions[region].service.chain().tail();
        // With a bug that makes tails of others only the true one's word counts. One that does not know yet that
        // another is the tail now has settled what that one has as well.
        let tails_are_right = matches!(
            self.plant,
            Plant::None
                | Plant::WaitsNotTold
                | Plant::BeforeNotTold
                | Plant::WaitsToldLate
                | Plant::TombstoneForNothing
                | Plant::RemovalNotTold
                | Plant::RemovalNotHandedOn
                | Plant::ResumedTooFar
                | Plant::RenamedOnGap
                | Plant::PositionKeptTooEarly
                | Plant::DrainedTooEarly
                | Plant::FallbackLeftOut
                | Plant::HoleHidden
        ) && self.late != Some(pid);
        if node.replica.chain().tail() == Some(pid) && (tails_are_right || tail == Some(pid)) {
            for (stream, state) in node.replica.streams() {
                if stream.region() == REGIONS[region] {
                    self.truths.settled(pid, stream, state.held())?;
                }
            }
        }
        let mut outputs = node.replica.outputs();
        let of_the_replica = outputs.len();
        if let Some(sharers) = &mut node.sharers {
            for output in &outputs {
                match output {
                    ReplicaOutput::Held { stream, .. } => sharers.held(stream, &node.replica),
                    ReplicaOutput::Send(to, message) => sharers.sent(*to, size_of_message(message)),
                    _ => {}
                }
            }
            outputs.extend(sharers.outputs(self.now_ms, &node.replica));
        }
        let mut ended = Vec::new();
        for (at, output) in outputs.into_iter().enumerate() {
            match output {
                ReplicaOutput::Close(link, _) if at >= of_the_replica => ended.push(link),
                output => self.act_on(pid, output)?,
            }
        }
        self.report.count("sharing connections ended by the proxy", ended.len() as u64);
        ended.into_iter().for_each(|link| self.broken(link));
        Ok(())
    }

    /// A replica wants something done.
    fn act_on(&mut self, pid: Pid, output: ReplicaOutput) -> Result<(), Violation> {
        let Some(node) = self.nodes.get_mut(&pid) else { return Ok(()) };
        let disk = self.regions[node.region].disks.get_mut(&node.slot);
        match output {
            ReplicaOutput::Send(link, message) => return self.sent(pid, link, message),
            ReplicaOutput::Close(link, why) => {
                return Err(Violation::new(format!("replica {pid} ended connection {link}: {why}")));
            }
            ReplicaOutput::SetAside(dropped) => {
                self.report.count("replicas that dropped what they had", 1);
                if let Some(disk) = disk {
                    disk.put_aside(REGIONS[node.region], dropped);
                }
            }
            ReplicaOutput::Persist { record, ticket } => {
                if let Some(disk) = disk {
                    disk.append(&record, ticket);
                }
            }
            ReplicaOutput::Held { stream, last } => {
                if let Some(disk) = disk {
                    disk.append(&Record::Held { stream, last }, None);
                }
            }
        }
        Ok(())
    }

    /// A replica sends a message: what it says has to be true, and no more may wait than there is room for.
    fn sent(&mut self, pid: Pid, link: SimLinkId, message: Message) -> Result<(), Violation> {
        let Some(node) = self.nodes.get_mut(&pid) else { return Ok(()) };
        let message = self.plant.broadcast_message(&node.replica, message);
        match &message {
            Message::Published { stream, seq, repeated: false, .. } => {
                self.truths.answered(self.now_ms, stream, *seq);
            }
            Message::Advertise { counts, .. } if is_outside(&node.replica, link, node.region) => {
                for told in counts.iter().filter(|told| told.age_ms != AGE_UNKNOWN) {
                    let as_of_ms = self.now_ms - u64::from(told.age_ms);
                    // Another bug may make this wrong before what it is for is found.
                    if matches!(self.plant, Plant::None | Plant::AgeNotTold) {
                        self.truths.told(&told.stream, told.count, as_of_ms)?;
                    }
                    self.report.count("ages told", 1);
                }
            }
            _ => {}
        }
        if self.plant == Plant::DrainedTooEarly {
            node.replica.drained(link, size_of_message(&message));
        }
        let bytes = self.net.send(self.now_ms, &mut self.rng, link, pid, message);
        ensure(bytes <= WAITING_MAX, || {
            format!("{bytes} bytes wait for a connection of replica {pid}, which may be {WAITING_MAX}")
        })?;
        if bytes > WAITING_BYTES_MAX {
            self.report.count("messages to full connections", 1);
        }
        Ok(())
    }

    /// Its disk goes on.
    fn disk_step(&mut self, pid: Pid) {
        let Some(node) = self.nodes.get_mut(&pid) else { return };
        let Some(disk) = self.regions[node.region].disks.get_mut(&node.slot) else { return };
        for ticket in disk.step(self.now_ms, &mut self.rng, self.plant, &node.replica) {
            node.has_news = true;
            node.replica.persisted(self.now_ms, &ticket);
        }
    }

    fn drive_clients(&mut self, active: bool) {
        self.clients_keep();
        let pids: Vec<Pid> = self.clients.keys().copied().collect();
        for pid in pids {
            let Some(client) = self.clients.get_mut(&pid) else { continue };
            if client.link().is_none() && !matches!(client, Client::Listener(listener) if listener.is_away) {
                let region = client.region();
                let wanted = client.wanted().take();
                let is_dialling = match client {
                    Client::Sharer(_) => {
                        self.net.dialled_by(pid).any(|(acceptor, _)| self.nodes.contains_key(&acceptor))
                    }
                    _ => !self.net.of(pid).is_empty(),
                };
                if is_dialling || self.rng.chance(800_000) {
                    continue;
                }
                let slot = self.rng.index(self.regions[region].slots.len());
                let replica = wanted.and_then(|at| self.at(&at)).or(self.regions[region].slots[slot].0);
                if let Some(replica) = replica {
                    self.net.dial(self.now_ms, &mut self.rng, pid, replica);
                }
            } else if active
                && let Client::Publisher(publisher) = client
                && self.rng.chance(100_000)
            {
                let messages = publisher.publish(self.now_ms, self.rng.between(1, 5));
                self.report.count("publishes", messages.len() as u64);
                for (message, link) in messages.into_iter().zip(publisher.link.into_iter().cycle()) {
                    self.net.send(self.now_ms, &mut self.rng, link, pid, message);
                }
            }
        }
    }

    fn fault(&mut self) -> Result<(), Violation> {
        let region = self.rng.index(self.regions.len());
        let slots = self.regions[region].slots.len();
        let slot = self.rng.index(slots);
        match self.rng.below(20) {
            0..=3 => self.crash(region, slot),
            13..=15 => self.crash_client()?,
            16 | 17 => self.slow_link(),
            18 => self.stop_listener(),
            19 => self.head_alone(region),
            10 if self.regions[region].durable => {
                (0..slots).for_each(|slot| self.crash(region, slot));
                self.report.count("regions ended", 1);
            }
            11 => {
                // Two replicas of a region.
                let other = self.rng.index(slots);
                if other != slot {
                    self.cut(site(region, slot), site(region, other));
                    self.report.count("links cut", 1);
                }
            }
            12 => {
                let until_ms = self.now_ms + self.rng.between(100, 6_000);
                if let Some(disk) = self.regions[region].disks.get_mut(&slot) {
                    disk.stands_until_ms = until_ms;
                    self.report.count("disks standing still", 1);
                }
            }
            4 => {
                // Regions are cut from each other.
                let other = self.rng.index(self.regions.len());
                if other != region {
                    for (a, b) in (0..10).flat_map(|a| (0..10).map(move |b| (a, b))) {
                        self.cut(site(region, a), site(other, b));
                    }
                    self.report.count("regions cut", 1);
                }
            }
            5 => {
                // A replica is cut off from its region, its clients perhaps excepted, or its configuration service as
                // well.
                if !self.regions[region].slots[slot].0.is_some_and(|pid| self.can_spare(region, pid)) {
                    return Ok(());
                }
                for other in 0..self.rng.between(8, 10) as usize {
                    self.cut(site(region, slot), site(region, other));
                }
                self.report.count("replicas cut off", 1);
            }
            6 => {
                let links: Vec<SimLinkId> = self.net.links.keys().copied().collect();
                if !links.is_empty() {
                    let link = links[self.rng.index(links.len())];
                    self.broken(link);
                    self.report.count("connections broken", 1);
                }
            }
            7 => self.service_ends(region),
            _ => {
                self.net.heal(self.now_ms);
                self.report.count("healed", 1);
            }
        }
        Ok(())
    }

    /// Whether all that was published is acknowledged, all listeners have it, and all chains are whole.
    fn is_settled(&self) -> bool {
        self.regions.iter().all(|region| self.is_whole(region))
            && self.nodes.values().filter(|node| node.replica.is_tail()).all(|node| {
                self.truths.streams().all(|stream| u64::from(node.replica.age_ms(stream)) < KNOWN_MS)
            })
            && self.clients.values().all(|client| match client {
                Client::Publisher(publisher) => publisher.is_done(),
                Client::Listener(Listener { observed, .. }) | Client::Sharer(Sharer { observed, .. }) => {
                    self.truths.streams().all(|stream| self.has_all(observed, stream))
                }
            })
    }

    /// Whether the replicas of a region are its chain, and know it. Counting members is not enough: one that has just
    /// ended is a member until it was silent for long enough, and the chain has yet to change for it.
    fn is_whole(&self, region: &Region) -> bool {
        let chain = region.service.chain();
        let is_member = |pid: Pid| {
            let knows = self.nodes.get(&pid).is_some_and(|node| node.replica.chain().epoch == chain.epoch);
            knows && chain.place(pid).is_some()
        };
        chain.joining.is_empty()
            && chain.members.len() == region.slots.len()
            && region.slots.iter().all(|(pid, _)| pid.is_some_and(is_member))
    }

    /// Whether a listener is at the end of a stream, of its newest lineage.
    fn has_all(&self, observed: &Observed, stream: &Stream) -> bool {
        let at = observed.positions.streams.get(stream).copied().unwrap_or_default();
        at.seq == self.truths.last(stream) && !self.truths.is_earlier(stream, at.lineage)
    }

    fn stuck(&self) -> String {
        let mut text = "nothing fails any more, and not everything was delivered:".to_owned();
        for (pid, client) in &self.clients {
            match client {
                Client::Publisher(publisher) if !publisher.is_done() => {
                    text += &format!(" publisher {pid} of {} waits;", publisher.stream);
                }
                Client::Listener(Listener { observed, .. }) | Client::Sharer(Sharer { observed, .. }) => {
                    for stream in self.truths.streams().filter(|stream| !self.has_all(observed, stream)) {
                        let at = observed.positions.streams.get(stream).copied().unwrap_or_default();
                        let (Position { lineage, seq }, last) = (at, self.truths.last(stream));
                        text += &format!(
                            " listener {pid} is at {seq} of {last} of {stream}, in lineage {lineage};"
                        );
                    }
                    text += &self.sharing_text(*pid);
                }
                Client::Publisher(_) => {}
            }
        }
        for (name, region) in REGIONS.iter().zip(&self.regions) {
            let chain = region.service.chain();
            let ids = |members: &[Member]| members.iter().map(|member| member.id).collect::<Vec<_>>();
            let (members, joining) = (ids(&chain.members), ids(&chain.joining));
            text += &format!(" chain {name}, epoch {}: {members:?}, joining {joining:?};", chain.epoch);
        }
        for (pid, node) in &self.nodes {
            let Node { replica, .. } = node;
            let (epoch, tail) = (replica.chain().epoch, replica.is_tail());
            let counts: Vec<_> = replica.streams().map(|(_, s)| (s.last(), s.held())).collect();
            text += &format!(" replica {pid} in epoch {epoch}, answers: {tail}, has {counts:?};");
        }
        text
    }

    fn finish(mut self) -> Result<Report, Violation> {
        let acknowledged = self.truths.check_acknowledged()?;
        self.report.count("acknowledged", acknowledged);
        self.truths.check_final()?;
        for client in self.clients.values() {
            if let Client::Listener(Listener { observed, .. }) | Client::Sharer(Sharer { observed, .. }) =
                client
            {
                self.report.count("listeners told that a region begins anew", observed.anew);
                self.report.count("listeners told that events were removed", observed.removed);
                for (stream, observer) in &observed.observers {
                    self.truths.finish(stream, observer)?;
                    self.report.count("delivered", observer.at() - observer.missed());
                    self.report.count("tombstoned", observer.missed());
                }
            }
        }
        self.count_shared();
        for node in self.nodes.values() {
            self.report.count("repeats left out", node.replica.counters.repeated);
            self.report.count("subscriptions moved", node.replica.counters.moved);
        }
        Ok(self.report)
    }
}

/// Whether a connection leads out of the chain.
fn is_outside(replica: &Replica, link: SimLinkId, region: usize) -> bool {
    match replica.peer(link) {
        Some(Peer::In(_, Role::Client(_))) => true,
        Some(Peer::In(other, Role::Replica(_))) => other != REGIONS[region],
        Some(Peer::Out(..)) | None => false,
    }
}

fn last_of(replica: &Replica, stream: &Stream) -> u64 {
    replica.stream(stream).map_or(0, |state| state.last())
}

/// The two ends of a connection.
struct Link2 {
    dialer: Pid,
    acceptor: Pid,
}

fn site(region: usize, place: usize) -> u32 {
    (region * 10 + place) as u32
}

fn address(region: usize, slot: usize) -> String {
    format!("{}:{slot}", REGIONS[region])
}
