//! Regions of clients and replicated proxies that run the real protocol code in simulated time: `broadcast::replica`
//! for chains and between regions, `broadcast::region` within each region.
//!
//! Each region has one stream, whose events its head is sent in lots at a fixed rate, as long as so many are answered
//! as a publisher waits for. The tail of a region's chain is the member of the region-level protocol that has
//! everything.

use std::collections::BTreeMap;
use std::sync::Arc;

use tailwater_broadcast::message::{Chain, Member, Message, Role};
use tailwater_broadcast::region::{self, Options, Peer, PeerOutput, ProxyPeer};
use tailwater_broadcast::replica::{self, Config, ConnectionId, Replica};
use tailwater_broadcast::{Batch, Collect, Content, Position, Stream, Writer};

use super::net::{Costs, MS, NetLines, Network, NextArrival, NodeId, Queue, SECOND, Time};
use super::watch::Watch;

/// Between two ticks of a replica, as its server has them.
const REPLICA_TICK: Time = 20 * MS;
/// Between two lots of the few events before the load.
const TRICKLE: Time = 200 * MS;
/// Steps after which it is shown how far a run is.
const SHOWN_STEPS: u64 = 200_000;
/// A wall clock's time at the beginning, in milliseconds.
const WALL_MS: u64 = 1_700_000_000_000;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Clients of each region.
    pub clients: u32,
    /// Replicas of each proxy.
    pub replicas: u32,
    /// Machines and links; it says how many regions there are.
    pub network: Network,
    /// What messages cost.
    pub costs: Costs,
    /// Of the region-level protocol.
    pub options: Options,
    /// Events a second that come to each region's proxy.
    pub events_s: f64,
    /// Between two lots of them.
    pub lot: Time,
    /// Lots of a region that are not answered yet, with which its publisher waits for an answer. It makes up for the
    /// time of as many.
    pub window: u64,
    /// Whether proxies answer later if listeners lag.
    pub answers_wait: bool,
    /// Bytes of an event.
    pub event_bytes: usize,
    /// How many events of its stream an event keeps: older ones are collected.
    pub keep: u64,
    /// How long clients gossip before the load begins.
    pub warm_up: Time,
    /// Before that, how long few events come, [`TRICKLE`] from lot to lot: so clients know the streams, and who is fed
    /// is when the load begins.
    pub trickle: Time,
    /// How long events come.
    pub load: Time,
    /// From the load's beginning until what comes counts.
    pub settle: Time,
    /// How long is waited for the last ones.
    pub drain: Time,
    /// Links between regions that are cut: which, and from when to when after the first event.
    pub cuts: Vec<(u32, u32, Time, Time)>,
    /// Of all choices.
    pub seed: u64,
}

impl Setup {
    /// Events of a lot: whole ones, so that few a second are not quite as many as asked for.
    pub fn lot_events(&self) -> u64 {
        (self.events_s * self.lot as f64 / SECOND as f64).round().max(1.0) as u64
    }
}

enum WorldStep {
    Region { from: NodeId, to: NodeId, message: region::Message },
    Replica { connection: ConnectionId, to: NodeId, message: Box<Message> },
    Drained { connection: ConnectionId, node: NodeId, bytes: usize },
    ReplicaTick(NodeId),
    Publish(u32),
    Cut { a: u32, b: u32, cut: bool },
}

/// A replica; the last of its chain is also its region's proxy to clients.
struct ReplicaNode {
    replica: Replica,
    proxy: Option<ProxyPeer>,
}

/// Two replicas, or a replica and a publisher.
#[derive(Clone, Copy)]
struct LinkEnds {
    from: NodeId,
    to: NodeId,
}

pub struct World {
    setup: Setup,
    queue: Queue<WorldStep>,
    lines: NetLines,
    replicas: Vec<ReplicaNode>,
    clients: Vec<Peer>,
    /// When the tick of each client and each proxy is due.
    ticks: Vec<Time>,
    names: WorldNames,
    connections: BTreeMap<ConnectionId, LinkEnds>,
    streams: Vec<Stream>,
    lots: Vec<Batch>,
    published: Vec<u64>,
    /// Lots of each region that are not answered yet, and whether its publisher waits for that.
    unanswered: Vec<(u64, bool)>,
    /// When each region's publisher has its next lot.
    due: Vec<Time>,
    start: Time,
    outbox: Vec<PeerOutput>,
    pub watch: Watch,
}

/// Addresses by their lengths, which is all that counts here: "n" and a machine's number. Views are full of them, and
/// copied all the time: those of the same length share one, so that it stays in the cache.
struct WorldNames(Vec<Arc<str>>);

impl WorldNames {
    fn new() -> Self {
        Self((0..=NodeId::MAX.ilog10() as usize).map(|digits| Arc::from("n".repeat(digits + 2))).collect())
    }

    /// A machine in the region-level protocol.
    fn member(&self, node: NodeId) -> region::Member {
        let address = &self.0[node.checked_ilog10().unwrap_or(0) as usize];
        region::Member { id: u64::from(node) + 1, address: address.clone() }
    }
}

fn node_of(id: u64) -> NodeId {
    (id - 1) as NodeId
}

/// A publisher's connection to the head of a region.
fn publisher(region: u32) -> ConnectionId {
    1 << 40 | u64::from(region)
}

/// `events` events as a publisher encodes them.
fn lot(events: u64, bytes: usize, keep: u64) -> Batch {
    let mut writer = Writer::new(0);
    let content = Content { payload: vec![7; bytes].into(), ..Content::default() };
    for _ in 0..events {
        writer.publish(&content, Some(&Collect::KeepLast(keep))).expect("a small event");
    }
    writer.finish(0)
}

impl World {
    /// A world at its beginning.
    pub fn new(setup: Setup) -> Self {
        let regions = setup.network.latency_ms.len() as u32;
        let replicas = regions * setup.replicas;
        let mut region_of: Vec<u32> = (0..replicas).map(|node| node / setup.replicas).collect();
        region_of.extend((0..regions * setup.clients).map(|client| client / setup.clients));
        let events = setup.lot_events();
        let lots = (0..regions).map(|_| lot(events, setup.event_bytes, setup.keep)).collect();
        let watched = (0..regions).map(|_| events).collect();
        let start = setup.warm_up;
        let watch = Watch::new(regions * setup.clients, watched, start + setup.settle, start + setup.load);
        let name = |region| Stream::parse(&format!("region{region}/events")).expect("a name");
        let mut world = Self {
            lines: NetLines::new(setup.network.clone(), region_of),
            queue: Queue::new(),
            replicas: Vec::new(),
            clients: Vec::new(),
            ticks: vec![0; (replicas + regions * setup.clients) as usize],
            names: WorldNames::new(),
            connections: BTreeMap::new(),
            streams: (0..regions).map(name).collect(),
            lots,
            published: vec![0; regions as usize],
            unanswered: vec![(0, false); regions as usize],
            due: vec![0; regions as usize],
            start,
            outbox: Vec::new(),
            watch,
            setup,
        };
        for node in 0..replicas {
            world.add_replica(node);
        }
        for region in 0..regions {
            world.connect_chain(region);
            let first = start.saturating_sub(world.setup.trickle);
            let at = first + (world.setup.lot / u64::from(regions)) * u64::from(region);
            world.due[region as usize] = at;
            world.queue.at(at, WorldStep::Publish(region));
        }
        for client in 0..regions * world.setup.clients {
            world.add_client(replicas + client);
        }
        for (a, b, from, to) in world.setup.cuts.clone() {
            world.queue.at(start + from, WorldStep::Cut { a, b, cut: true });
            world.queue.at(start + to, WorldStep::Cut { a, b, cut: false });
        }
        world
    }

    fn regions(&self) -> u32 {
        self.streams.len() as u32
    }

    fn head(&self, region: u32) -> NodeId {
        region * self.setup.replicas
    }

    fn tail(&self, region: u32) -> NodeId {
        (region + 1) * self.setup.replicas - 1
    }

    fn add_replica(&mut self, node: NodeId) {
        let region = node / self.setup.replicas;
        let is_tail = node == self.tail(region);
        let proxy = is_tail.then(|| {
            ProxyPeer::new(self.names.member(node), &self.setup.options, self.setup.seed ^ u64::from(node))
        });
        let mut replica = Replica::new(Config::new(&format!("region{region}"), u64::from(node)));
        let member = |node: NodeId| Member { id: u64::from(node), address: String::new() };
        replica.configure(
            0,
            Chain {
                epoch: 1,
                lineage: 0,
                region: format!("region{region}"),
                members: (self.head(region)..=self.tail(region)).map(member).collect(),
                joining: Vec::new(),
            },
        );
        self.replicas.push(ReplicaNode { replica, proxy });
        self.queue.at(u64::from(node), WorldStep::ReplicaTick(node));
        if is_tail {
            self.queue.tick_at(0, node);
        }
    }

    fn add_client(&mut self, node: NodeId) {
        let proxy = self.names.member(self.tail(self.lines.region_of(node)));
        let seed = self.setup.seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(node));
        let me = self.names.member(node);
        let peer = Peer::new(me.clone(), proxy, BTreeMap::new(), self.setup.options.clone(), seed);
        // They do not all start at once.
        let tick = u64::from(node) * (SECOND / u64::from(self.setup.clients * self.regions()));
        // Every client is connected to its proxy, which feeds a part of those that are.
        let tail = self.tail(self.lines.region_of(node));
        self.proxy_step(0, tail, |proxy, source, out| proxy.connected(0, &me, source, out));
        self.clients.push(peer);
        self.ticks[node as usize] = tick;
        self.queue.tick_at(tick, node);
    }

    /// Each replica follows the one before it; a head may subscribe at every other region's tail.
    fn connect_chain(&mut self, region: u32) {
        let (head, tail) = (self.head(region), self.tail(region));
        for node in head + 1..=tail {
            self.connect(node, node - 1);
        }
        for other in (0..self.regions()).filter(|other| *other != region) {
            self.connect(head, self.tail(other));
        }
        let role = Role::Client(u128::from(region));
        let name = format!("region{region}");
        self.connections.insert(publisher(region), LinkEnds { from: head, to: head });
        self.replica(head).connected(0, publisher(region), replica::Peer::In(name, role));
    }

    fn connect(&mut self, from: NodeId, to: NodeId) {
        let connection = u64::from(from) << 20 | u64::from(to);
        self.connections.insert(connection, LinkEnds { from, to });
        let name = |node| format!("region{}", node / self.setup.replicas);
        let (out, into) = (
            replica::Peer::Out(name(to), u64::from(to)),
            replica::Peer::In(name(from), Role::Replica(u64::from(from))),
        );
        let now_ms = self.lines.work(0, from, 0.0) / MS;
        self.replica(from).connected(now_ms, connection, out);
        self.replica(to).connected(now_ms, connection, into);
    }

    fn replica(&mut self, node: NodeId) -> &mut Replica {
        &mut self.replicas[node as usize].replica
    }

    /// Runs to its end, and says how many steps that took. How far it is is `shown` now and then.
    pub fn run(&mut self, mut shown: impl FnMut(Time)) -> u64 {
        let end = self.end();
        let mut show_at = 0;
        while let Some((now, next)) = self.queue.next(end) {
            if self.queue.happened() >= show_at {
                show_at = self.queue.happened() + SHOWN_STEPS;
                shown(now);
            }
            match next {
                NextArrival::Tick(node) => self.tick(now, node),
                NextArrival::What(step) => self.step(now, step),
            }
        }
        self.queue.happened()
    }

    fn step(&mut self, now: Time, step: WorldStep) {
        let costs = self.setup.costs;
        match step {
            WorldStep::Region { from, to, message } => {
                let events = match &message {
                    region::Message::Events { batches, .. } => {
                        batches.iter().map(|b| u64::from(b.count)).sum()
                    }
                    _ => 0,
                };
                let cost = costs.message_ns + costs.event_ns * events as f64;
                let done = self.lines.handle(now, to, message.size(), cost);
                self.region_message(done, from, to, message);
            }
            WorldStep::Replica { connection, to, message } => {
                let events = match &*message {
                    Message::Events { batch, .. } | Message::Append { batch, .. } => u64::from(batch.count),
                    _ => 0,
                };
                let cost = costs.message_ns + costs.event_ns * events as f64;
                let done = self.lines.work(now, to, cost);
                self.replica(to).receive(done / MS, connection, *message);
                self.replica_outputs(done, to);
            }
            WorldStep::Drained { connection, node, bytes } => {
                self.replica(node).drained(connection, bytes);
                self.replica_outputs(now, node);
            }
            WorldStep::ReplicaTick(node) => self.replica_tick(now, node),
            WorldStep::Publish(region) => self.publish(now, region),
            WorldStep::Cut { a, b, cut } => self.cut(now, a, b, cut),
        }
    }

    fn publish(&mut self, now: Time, region: u32) {
        let index = region as usize;
        let (unanswered, waits) = &mut self.unanswered[index];
        *waits = *unanswered >= self.setup.window;
        if *waits || now >= self.start + self.setup.load {
            return;
        }
        *unanswered += 1;
        let batch = self.lots[index].clone();
        let (stream, first) = (self.streams[index].clone(), self.published[index] + 1);
        self.published[index] += u64::from(batch.count);
        let cost = self.setup.costs.message_ns + self.setup.costs.event_ns * f64::from(batch.count);
        let head = self.head(region);
        self.watch.published(now, index);
        let done = self.lines.work(now, head, cost);
        let message = Message::Publish { stream, client: u128::from(region), answered: 0, first, batch };
        self.replica(head).receive(done / MS, publisher(region), message);
        self.replica_outputs(done, head);
        let lots = if now < self.start { TRICKLE } else { self.setup.lot };
        let earliest = now.saturating_sub(self.setup.window * self.setup.lot);
        self.due[index] = self.due[index].max(earliest) + lots;
        let next = now.max(self.due[index]);
        if next < self.start + self.setup.load {
            self.queue.at(next, WorldStep::Publish(region));
        }
    }

    /// A region's publisher has the answer for one of its lots.
    fn answered(&mut self, now: Time, region: u32) {
        let (unanswered, waits) = &mut self.unanswered[region as usize];
        *unanswered = unanswered.saturating_sub(1);
        if std::mem::take(waits) {
            self.queue.at(now, WorldStep::Publish(region));
        }
    }

    /// A cut link loses everything without a word; when it heals, the connections over it are made anew.
    fn cut(&mut self, now: Time, a: u32, b: u32, cut: bool) {
        self.lines.cut(a, b, cut);
        if cut {
            return;
        }
        for (from, to) in [(self.head(a), self.tail(b)), (self.head(b), self.tail(a))] {
            let connection = u64::from(from) << 20 | u64::from(to);
            for node in [from, to] {
                self.replica(node).closed(now / MS, connection);
            }
            self.connect(from, to);
            self.replica_outputs(now, from);
            self.replica_outputs(now, to);
        }
    }

    fn tick(&mut self, now: Time, node: NodeId) {
        let due = &mut self.ticks[node as usize];
        if *due != now {
            // It was needed sooner, and has been called then.
            return;
        }
        *due = Time::MAX;
        let now = self.lines.work(now, node, 0.0);
        let now_ms = now / MS;
        match (node as usize).checked_sub(self.replicas.len()) {
            Some(client) => {
                self.clients[client].tick(now_ms, &mut self.outbox);
                self.region_outputs(now, node);
            }
            None => self.proxy_step(now, node, |proxy, source, out| proxy.tick(now_ms, source, out)),
        }
    }

    fn replica_tick(&mut self, now: Time, node: NodeId) {
        let now_ms = now / MS;
        self.replica(node).tick(now_ms, WALL_MS + now_ms);
        let ReplicaNode { replica, proxy } = &mut self.replicas[node as usize];
        let own = &self.streams[(node / self.setup.replicas) as usize];
        if let Some(proxy) = proxy.as_ref().filter(|_| self.setup.answers_wait) {
            replica.readers_have(own, proxy.fed_up_to(own));
        }
        self.replica_outputs(now, node);
        self.queue.at(now + REPLICA_TICK, WorldStep::ReplicaTick(node));
    }

    fn replica_outputs(&mut self, now: Time, node: NodeId) {
        for output in self.replica(node).outputs() {
            match output {
                replica::ReplicaOutput::Send(connection, message) => {
                    self.send_replica(now, node, connection, message)
                }
                replica::ReplicaOutput::Close(_, why) => panic!("a replica ends a connection: {why}"),
                replica::ReplicaOutput::Persist { .. } | replica::ReplicaOutput::SetAside(_) => {}
                replica::ReplicaOutput::Held { stream, last } => {
                    let node_state = &mut self.replicas[node as usize];
                    if let Some(proxy) = &mut node_state.proxy {
                        let lineage = node_state.replica.lineage_of(&stream);
                        proxy.appended(&stream, Position { lineage, seq: last }, &mut self.outbox);
                        let now_ms = now / MS;
                        self.proxy_step(now, node, |proxy, source, out| {
                            if proxy.due_ms() <= now_ms {
                                proxy.tick(now_ms, source, out);
                            }
                        });
                    }
                }
            }
        }
    }

    fn send_replica(&mut self, now: Time, node: NodeId, connection: ConnectionId, message: Message) {
        let bytes = replica::size_of_message(&message);
        let Some(ends) = self.connections.get(&connection).copied() else { return };
        if ends.from == ends.to {
            self.replica(node).drained(connection, bytes);
            if let Message::Published { .. } = message {
                self.answered(now, node / self.setup.replicas);
            }
            return;
        }
        let to = if ends.from == node { ends.to } else { ends.from };
        let (left, arrives) = self.lines.send(now, node, to, bytes);
        self.queue.at(left, WorldStep::Drained { connection, node, bytes });
        if let Some(arrives) = arrives {
            self.queue.at(arrives, WorldStep::Replica { connection, to, message: Box::new(message) });
        }
    }

    fn region_message(&mut self, now: Time, from: NodeId, to: NodeId, message: region::Message) {
        let (now_ms, from) = (now / MS, u64::from(from) + 1);
        match (to as usize).checked_sub(self.replicas.len()) {
            Some(client) => {
                self.clients[client].receive(now_ms, from, message, &mut self.outbox);
                self.region_outputs(now, to);
            }
            None => self.proxy_step(now, to, |proxy, source, out| {
                proxy.receive(now_ms, from, message, source, out);
            }),
        }
    }

    fn proxy_step(
        &mut self,
        now: Time,
        node: NodeId,
        step: impl FnOnce(&mut ProxyPeer, &Replica, &mut Vec<PeerOutput>),
    ) {
        let ReplicaNode { replica, proxy, .. } = &mut self.replicas[node as usize];
        if let Some(proxy) = proxy {
            step(proxy, replica, &mut self.outbox);
            self.region_outputs(now, node);
        }
    }

    /// Sends and delivers what the region-level protocol wants, and notes when it is to be called again.
    fn region_outputs(&mut self, now: Time, node: NodeId) {
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut now = now;
        for output in outbox.drain(..) {
            match output {
                PeerOutput::Send { to, message } => {
                    let to = node_of(to);
                    now = self.lines.work(now, node, self.setup.costs.message_ns);
                    let (_, arrives) = self.lines.send(now, node, to, message.size());
                    let arrives = arrives.expect("links within regions are not cut");
                    self.queue.at(arrives, WorldStep::Region { from: node, to, message });
                }
                PeerOutput::Anew { region, .. } => panic!("region {region} begins anew"),
                PeerOutput::Deliver { stream, batch, .. } => {
                    let index =
                        self.streams.iter().position(|known| *known == stream).expect("a known stream");
                    self.watch.delivered(now, index, batch.after, batch.last);
                }
            }
        }
        self.outbox = outbox;
        let replicas = self.replicas.len();
        let due_ms = match (node as usize).checked_sub(replicas) {
            Some(client) => self.clients[client].due_ms(),
            None => {
                let Some(proxy) = &self.replicas[node as usize].proxy else { return };
                proxy.due_ms()
            }
        };
        let tick = &mut self.ticks[node as usize];
        let due = due_ms.saturating_mul(MS).max(now + MS);
        if due < *tick || *tick <= now {
            *tick = due;
            self.queue.tick_at(due, node);
        }
    }

    /// What all clients have counted together; `view` is the smallest view.
    pub fn stats(&self) -> region::Stats {
        let mut all = region::Stats { view: usize::MAX, ..region::Stats::default() };
        for client in &self.clients {
            let one = client.stats();
            all.delivered += one.delivered;
            all.from_proxy += one.from_proxy;
            all.from_peers += one.from_peers;
            all.duplicates += one.duplicates;
            all.requests_to_proxy += one.requests_to_proxy;
            all.requests_to_peers += one.requests_to_peers;
            all.timeouts += one.timeouts;
            all.view = all.view.min(one.view);
            all.fed += one.fed;
            if one.hops != region::UNFED {
                all.hops = all.hops.max(one.hops);
            }
            all.recv_bytes = all.recv_bytes.max(one.recv_bytes);
        }
        all
    }

    /// Times that a proxy has subscribed elsewhere.
    pub fn moved(&self) -> u64 {
        self.replicas.iter().map(|node| node.replica.counters.moved).sum()
    }

    /// When it is over.
    pub fn end(&self) -> Time {
        self.start + self.setup.load + self.setup.drain
    }

    /// When few events come first: until then clients gossip.
    pub fn first_event(&self) -> Time {
        self.start.saturating_sub(self.setup.trickle)
    }

    /// When the last event comes.
    pub fn load_end(&self) -> Time {
        self.start + self.setup.load
    }

    /// When the first event comes.
    pub fn load_start(&self) -> Time {
        self.start
    }
}
