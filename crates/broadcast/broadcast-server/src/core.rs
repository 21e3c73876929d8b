//! The task that owns the replica.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tailwater_access::Denied;
use tailwater_broadcast::limits::STREAMS_MAX;
use tailwater_broadcast::message::{FROM_NOW, Member, Message, Reason};
use tailwater_broadcast::replica::{ConnectionId, Peer, Replica, ReplicaOutput, size_of_message};
use tailwater_broadcast::{Position, Stream};
use tailwater_env::{Complaints, Env, Instant, Task};
use tokio::sync::mpsc;

use crate::configuration::Report;
use crate::dial::{self, Patience};
use crate::disk::{Keeper, KeeperHappened};
use crate::handle::SnapshotWanted;
use crate::inputs::Inputs;
use crate::region::Region;
use crate::{ConfigurationAt, ReplicaInput, ReplicaServerConfig, Snapshot, StreamSnapshot, TICK};

/// Inputs that the replica is given before what follows from them is sent.
const BURST: usize = 256;
/// Steps, of about 5 ns each, that they may take before it is.
const BURST_STEPS: u64 = 2 << 20;
/// Bytes of a message that take a step.
const BYTES_A_STEP: u64 = 4;
/// Ticks between two reports to the configuration service.
const TICKS_A_REPORT: u64 = 5;

pub(crate) struct Core {
    env: Env,
    replica: Replica,
    /// Its disk, if it has one.
    keeper: Option<Keeper>,
    region: Region,
    me: Member,
    config: ReplicaServerConfig,
    /// The configuration service, if it is here.
    service: Option<mpsc::Sender<Report>>,
    /// The connection to it, if it is not.
    service_at: Option<ConnectionId>,
    /// Whether the service heard that this replica started.
    joined: bool,
    /// Connections of replicas that follow the configuration service here.
    reporters: BTreeSet<ConnectionId>,
    writers: BTreeMap<ConnectionId, mpsc::UnboundedSender<Message>>,
    dialled: BTreeMap<String, Task>,
    inputs: Inputs,
    /// Who waits until this replica stands in some way.
    wanted: Vec<SnapshotWanted>,
    ticks: u64,
    complaints: Complaints,
    /// Whether it was said that there are too many streams.
    told_left_out: bool,
}

impl Core {
    pub(crate) fn new(
        env: Env,
        replica: Replica,
        keeper: Option<Keeper>,
        me: Member,
        config: ReplicaServerConfig,
        service: Option<mpsc::Sender<Report>>,
        inputs: Inputs,
    ) -> Self {
        Self {
            region: Region::new(&me, env.random_u64()),
            env,
            replica,
            keeper,
            me,
            config,
            service,
            service_at: None,
            joined: false,
            reporters: BTreeSet::new(),
            writers: BTreeMap::new(),
            dialled: BTreeMap::new(),
            inputs,
            wanted: Vec::new(),
            ticks: 0,
            complaints: Complaints::default(),
            told_left_out: false,
        }
    }

    /// Runs until it is dropped, with what comes from clients and from replicas.
    pub(crate) async fn run(
        mut self,
        mut of_clients: mpsc::Receiver<ReplicaInput>,
        mut of_replicas: mpsc::Receiver<ReplicaInput>,
    ) {
        let (mut clients, mut replicas) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        let mut due = VecDeque::with_capacity(BURST);
        let mut next_tick = self.env.now();
        loop {
            let wake = next_tick.min(self.region_due());
            // None of them first: a checkpoint's pieces and a stream of inputs must not hold each other up.
            tokio::select! {
                () = self.env.sleep_until(wake) => {}
                happened = happened(&mut self.keeper) => {
                    if let Some(keeper) = &mut self.keeper {
                        let answered = keeper.handle(happened, &self.replica);
                        let now_ms = self.now_ms();
                        answered.iter().for_each(|ticket| self.replica.persisted(now_ms, ticket));
                    }
                }
                count = of_clients.recv_many(&mut clients, BURST), if due.is_empty() => {
                    if count == 0 {
                        return;
                    }
                    due.extend(clients.drain(..));
                }
                count = of_replicas.recv_many(&mut replicas, BURST), if due.is_empty() => {
                    if count == 0 {
                        return;
                    }
                    due.extend(replicas.drain(..));
                }
                () = tokio::task::yield_now(), if !due.is_empty() => {}
            }
            self.take_burst(&mut due);
            if self.env.now() >= next_tick {
                next_tick = self.env.now() + TICK;
                self.tick();
            }
            self.carry_out();
        }
    }

    fn now_ms(&self) -> u64 {
        self.env.now().as_ns() / 1_000_000
    }

    /// When the region's members have to be told something.
    fn region_due(&self) -> Instant {
        let wait_ms = self.region.due_ms().saturating_sub(self.now_ms()).clamp(1, 1_000);
        self.env.now() + Duration::from_millis(wait_ms)
    }

    fn tick(&mut self) {
        let wall_ms = self.env.wall_ms().max(0) as u64;
        self.replica.tick(self.now_ms(), wall_ms);
        self.region.tell_readers(&mut self.replica);
        if let Some(keeper) = &mut self.keeper {
            keeper.tick(&self.replica);
        }
        self.dial();
        self.look();
        if !self.told_left_out && self.replica.counters.left_out + self.region.snapshot().left_out > 0 {
            self.told_left_out = true;
            tracing::warn!(
                max = STREAMS_MAX,
                "there are more broadcast streams than a proxy carries: others are left out, and counted in \
                 tailwater_broadcast_streams_left_out_total"
            );
        }
        self.ticks += 1;
        if !self.joined || self.ticks.is_multiple_of(TICKS_A_REPORT) {
            self.report();
        }
    }

    /// Opens the connections that are wanted, and ends those that are not any more.
    fn dial(&mut self) {
        // Whoever is in no chain has nothing to do with other regions.
        let far = self.config.regions.values().flatten().filter(|_| self.config.joins);
        let mut wanted: BTreeMap<&str, Patience> =
            far.map(|address| (address.as_str(), Patience::FAR)).collect();
        let near = Patience::near(self.config.silence_ms);
        if let ConfigurationAt::There(address) = &self.config.configuration {
            wanted.insert(address, near);
        }
        if let Some(before) = self.replica.predecessor() {
            wanted.insert(&before.address, near);
        }
        wanted.remove(self.me.address.as_str());
        self.dialled.retain(|address, _| wanted.contains_key(address.as_str()));
        for (address, patience) in wanted {
            if !self.dialled.contains_key(address) {
                let (env, hello, inputs) = (self.env.clone(), self.replica.hello(), self.inputs.clone());
                let dialer = self.config.dialer.clone();
                let keeping = dial::keep(env, dialer, address.to_owned(), patience, hello, inputs);
                self.dialled.insert(address.to_owned(), self.env.spawn("broadcast-dial", keeping));
            }
        }
    }

    /// Tells the configuration service that this replica is there.
    fn report(&mut self) {
        if !self.config.joins {
            return;
        }
        let (epoch, caught_up) = (self.replica.chain().epoch, self.replica.caught_up().into_iter().collect());
        let (waits, has) = (self.replica.waits(), self.replica.has());
        // One that was removed, though it was only out of reach, joins again.
        let joins = !self.joined || !self.replica.is_in_chain();
        // Said until the service answers: before it knows, a replica that comes back is in no chain.
        let started = self.replica.chain().epoch == 0;
        let (member, durable) = (self.me.clone(), self.keeper.is_some());
        if let Some(service) = &self.service {
            // Not waited for: the service may wait for us.
            if joins {
                self.joined |= service.try_send(Report::Join { member, durable, started, has }).is_ok();
            }
            let _ = service.try_send(Report::Alive { id: self.me.id, epoch, caught_up, waits, has });
        } else if let Some(writer) = self.service_at.and_then(|at| self.writers.get(&at)) {
            if joins {
                let _ = writer.send(Message::Join { member, durable, started, has });
                self.joined = true;
            }
            let _ = writer.send(Message::Alive { epoch, caught_up, waits, has });
        }
    }

    /// Gives the replica inputs, as many as take about as long as may pass until others hear of it again.
    fn take_burst(&mut self, due: &mut VecDeque<ReplicaInput>) {
        let begun = self.replica.steps();
        let mut bytes = 0;
        while self.replica.steps() - begun + bytes / BYTES_A_STEP < BURST_STEPS
            && let Some(input) = due.pop_front()
        {
            if let ReplicaInput::Message(_, message, _) = &input {
                bytes += size_of_message(message) as u64;
            }
            self.take(input);
        }
    }

    fn take(&mut self, input: ReplicaInput) {
        let now_ms = self.now_ms();
        match input {
            ReplicaInput::Opened { id, peer, address, writer } => {
                self.writers.insert(id, writer.clone());
                if let ConfigurationAt::There(there) = &self.config.configuration
                    && address.as_ref() == Some(there)
                {
                    self.service_at = Some(id);
                    if self.joined {
                        let started = self.replica.chain().epoch == 0;
                        let (member, durable) = (self.me.clone(), self.keeper.is_some());
                        let has = self.replica.has();
                        let _ = writer.send(Message::Join { member, durable, started, has });
                    }
                }
                self.replica.connected(now_ms, id, peer);
            }
            ReplicaInput::Closed(id) => {
                self.writers.remove(&id);
                self.reporters.remove(&id);
                self.service_at = self.service_at.filter(|at| *at != id);
                self.replica.closed(now_ms, id);
                self.region.closed(now_ms, id, &self.replica);
            }
            ReplicaInput::Drained(id, bytes) => {
                self.replica.drained(id, bytes);
                self.region.drained(now_ms, id, bytes, &self.replica);
            }
            ReplicaInput::Chain(chain) => {
                for reporter in &self.reporters {
                    if let Some(writer) = self.writers.get(reporter) {
                        let _ = writer.send(Message::Chain(chain.clone()));
                    }
                }
                self.replica.configure(now_ms, chain);
                self.dial();
            }
            ReplicaInput::Snapshot(wanted) => {
                self.wanted.push(wanted);
                self.look();
            }
            ReplicaInput::Message(id, Message::Chain(chain), _) if self.service_at == Some(id) => {
                self.replica.configure(now_ms, chain);
                self.dial();
            }
            ReplicaInput::Message(id, message @ (Message::Join { .. } | Message::Alive { .. }), _) => {
                self.reported(id, message);
            }
            ReplicaInput::Message(id, Message::Share { member, positions }, _) => {
                match self.unknown_region(&positions) {
                    Some(why) => self.replica.refuse_listener(id, why),
                    None => self.region.shared(now_ms, id, member, positions, &mut self.replica),
                }
            }
            ReplicaInput::Message(id, Message::Listen { positions, others }, room) => {
                match self.unknown_region(&positions) {
                    Some(why) => self.replica.refuse_listener(id, why),
                    None => self.replica.receive(now_ms, id, Message::Listen { positions, others }),
                }
                drop(room);
            }
            ReplicaInput::Message(id, Message::Region(message), _) => {
                self.region.receive(now_ms, id, message, &mut self.replica);
            }
            ReplicaInput::Message(id, message, room) => {
                self.replica.receive(now_ms, id, message);
                drop(room);
            }
            ReplicaInput::Denied(id, stream, first, Denied(why)) => {
                self.replica.refuse(id, stream, first, Reason::NotAuthorized, why);
            }
        }
    }

    /// Why a client that wants events from these positions on waits for some that never come: it names a region of
    /// which nothing is known here. Whoever has had events of it is let in: the region was there, and may come back.
    fn unknown_region(&self, positions: &[(Stream, Position)]) -> Option<String> {
        let is_known = |region: &str| {
            region == self.config.replica.region
                || self.config.regions.contains_key(region)
                || self.replica.streams().any(|(stream, _)| stream.region() == region)
        };
        let mut begins = positions.iter().filter(|(_, position)| matches!(position.seq, 0 | FROM_NOW));
        let mut known = BTreeSet::new();
        let region = begins.find_map(|(stream, _)| {
            let region = stream.region();
            let is_new = known.insert(region);
            (is_new && !is_known(region)).then_some(region)
        })?;
        Some(format!(
            "there is no region {region}: it is neither this node's own nor in [broadcast.regions], and no stream of it has \
             come here"
        ))
    }

    /// Hands a replica's report to the configuration service here.
    fn reported(&mut self, from: ConnectionId, message: Message) {
        let id = match self.replica.peer(from) {
            Some(Peer::In(region, tailwater_broadcast::message::Role::Replica(id)))
                if *region == self.config.replica.region =>
            {
                *id
            }
            _ => return,
        };
        let Some(service) = &self.service else { return };
        let report = match message {
            Message::Join { member, durable, started, has } if member.id == id => {
                self.reporters.insert(from);
                Report::Join { member, durable, started, has }
            }
            Message::Alive { epoch, caught_up, waits, has } => {
                Report::Alive { id, epoch, caught_up, waits, has }
            }
            _ => return,
        };
        let _ = service.try_send(report);
    }

    fn carry_out(&mut self) {
        let mut outputs = self.replica.outputs();
        for output in &outputs {
            match output {
                ReplicaOutput::Held { stream, .. } => self.region.held(stream, &self.replica),
                ReplicaOutput::Send(to, message) => self.region.sent(*to, size_of_message(message)),
                ReplicaOutput::Close(..) | ReplicaOutput::Persist { .. } | ReplicaOutput::SetAside(_) => {}
            }
        }
        outputs.extend(self.region.outputs(self.now_ms(), &self.replica));
        for output in outputs {
            match output {
                ReplicaOutput::Send(to, message) => {
                    if let Some(writer) = self.writers.get(&to) {
                        let _ = writer.send(message);
                    }
                }
                ReplicaOutput::Close(id, why) => {
                    if let Some(left_out) = self.complaints.admit(self.env.now(), "ended") {
                        tracing::warn!(connection = id, why, left_out, "a broadcast connection is ended");
                    }
                    self.writers.remove(&id);
                }
                ReplicaOutput::SetAside(dropped) if self.keeper.is_none() => {
                    tracing::warn!(
                        region = dropped.region,
                        lineage = %format_args!("{:x}", dropped.lineages.own),
                        events = dropped.live(),
                        "the region has begun anew without the events that this replica had in memory: they are forgotten, and \
                         it copies those that are there now"
                    );
                }
                output @ (ReplicaOutput::Persist { .. }
                | ReplicaOutput::Held { .. }
                | ReplicaOutput::SetAside(_)) => {
                    if let Some(keeper) = &mut self.keeper {
                        keeper.take(output);
                    }
                }
            }
        }
    }

    /// Answers those who wait for what holds now.
    fn look(&mut self) {
        self.wanted.retain(|wanted| !wanted.answer.is_closed());
        if self.wanted.is_empty() {
            return;
        }
        let snapshot = self.snapshot();
        for wanted in self.wanted.extract_if(.., |wanted| (wanted.holds)(&snapshot)) {
            let _ = wanted.answer.send(snapshot.clone());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let streams = self.replica.streams();
        Snapshot {
            chain: self.replica.chain().clone(),
            place: self.replica.place(),
            is_head: self.replica.is_head(),
            is_tail: self.replica.is_tail(),
            streams: streams
                .map(|(stream, state)| {
                    let stats = state.history.stats();
                    StreamSnapshot {
                        stream: stream.clone(),
                        source: self.replica.source_of(stream).map(str::to_owned),
                        lineage: self.replica.lineage_of(stream),
                        last: state.last(),
                        held: state.held(),
                        held_back: self.replica.held_back(stream),
                        live: stats.live,
                        stored: stats.stored,
                        bytes: stats.bytes,
                        predicates: stats.predicates,
                    }
                })
                .collect(),
            connections: self.writers.len(),
            region: self.region.snapshot(),
            counters: self.replica.counters,
            disk: self.keeper.as_ref().map(Keeper::stats),
            delays: self.replica.delays.clone(),
        }
    }
}

/// What happens on the disk, if there is one.
async fn happened(keeper: &mut Option<Keeper>) -> KeeperHappened {
    match keeper {
        Some(keeper) => keeper.happened().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tailwater_broadcast::message::Role;
    use tailwater_broadcast::name::Stream;
    use tailwater_broadcast::replica::Config;
    use tailwater_broadcast::{Content, Writer};

    use super::*;

    #[tokio::test]
    async fn a_burst_ends_when_it_has_taken_long_however_few_inputs_it_was() {
        let (queue, mut queued) = mpsc::channel(1_000);
        let inputs = Inputs::new(queue.clone(), queue);
        let replica = Config::new("here", 1);
        let config = ReplicaServerConfig {
            replica: replica.clone(),
            advertised: None,
            regions: BTreeMap::new(),
            configuration: ConfigurationAt::There("127.0.0.1:1".to_owned()),
            joins: true,
            silence_ms: 1_000,
            lost_ms: 60_000,
            connections_max: 1,
            quotas: None,
            authorizer: Arc::new(tailwater_access::Everybody),
            acceptor: tailwater_tls::Acceptor::plain(),
            dialer: tailwater_tls::Dialer::plain(),
        };
        let me = Member { id: 1, address: "127.0.0.1:1".to_owned() };
        let mut core = Core::new(Env::real(), Replica::new(replica), None, me, config, None, inputs.clone());
        let mut events = Writer::new(0);
        let content = Content { payload: vec![0; 1 << 20].into(), ..Content::default() };
        events.publish(&content, None).unwrap();
        let batch = events.finish(0);
        let stream = Stream::parse("here/news").unwrap();
        let mut due = VecDeque::new();
        for id in 1..=40 {
            let peer = Peer::In("client".to_owned(), Role::Client(id.into()));
            core.replica.connected(0, id, peer.clone());
            let (stream, batch) = (stream.clone(), batch.clone());
            let publish = Message::Publish { stream, client: id.into(), answered: 0, first: 1, batch };
            assert!(inputs.of_connection(&peer).message(id, publish).await);
            due.extend(queued.recv().await);
        }
        let mut bursts = Vec::new();
        while !due.is_empty() {
            let before = due.len();
            core.take_burst(&mut due);
            bursts.push(before - due.len());
        }
        assert_eq!(bursts, [8; 5]);
    }
}
