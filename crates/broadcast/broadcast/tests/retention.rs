//! What retention removes goes at every replica of every region, and whoever is behind it is told.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_broadcast::message::{Chain, Member, Message, Reason, Role};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::recovered::RecoveredStream;
use tailwater_broadcast::replica::{Config, ConnectionId, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Collect, Content, Durability, Position, Stream, Writer};

const RETENTION_MS: u64 = 10_000;
/// The publisher's connection, and a listener's.
const PUBLISHER: ConnectionId = 100;
const LISTENER: ConnectionId = 101;
const WALL_MS: u64 = 1_700_000_000_000;

fn at(seq: u64) -> Position {
    Position { lineage: 1, seq }
}

fn stream() -> Stream {
    Stream::parse("here/news").unwrap()
}

fn chain(region: &str, epoch: u64, members: &[u64], joining: &[u64]) -> Chain {
    let member = |id: &u64| Member { id: *id, address: format!("replica-{id}") };
    let [members, joining] = [members, joining].map(|ids| ids.iter().map(member).collect());
    Chain { epoch, lineage: 1, region: region.to_owned(), members, joining }
}

/// Replicas, and which two a connection is between: who dialed first.
#[derive(Default)]
struct World {
    now_ms: u64,
    replicas: BTreeMap<u64, Replica>,
    links: BTreeMap<ConnectionId, (u64, u64)>,
    /// What the listener was sent.
    heard: Vec<Message>,
    refused: Vec<Reason>,
    /// What the replicas wrote, all together.
    records: Vec<Record>,
    published: u64,
}

impl World {
    fn add(&mut self, region: &str, id: u64, chain: Chain) {
        let mut config = Config { retention_ms: RETENTION_MS, ..Config::new(region, id) };
        if id.is_multiple_of(2) {
            config.durability = Durability::Fsync.into();
        }
        config.stream_bytes_max = 4 << 20;
        let mut replica = Replica::new(config);
        replica.configure(self.now_ms, chain);
        self.replicas.insert(id, replica);
    }

    fn replica(&mut self, id: u64) -> &mut Replica {
        self.replicas.get_mut(&id).unwrap()
    }

    fn connect(&mut self, link: ConnectionId, (dialer, its): (u64, &str), (acceptor, of): (u64, &str)) {
        self.links.insert(link, (dialer, acceptor));
        let now_ms = self.now_ms;
        let in_peer = Peer::In(its.to_owned(), Role::Replica(dialer));
        self.replica(acceptor).connected(now_ms, link, in_peer);
        self.replica(dialer).connected(now_ms, link, Peer::Out(of.to_owned(), acceptor));
        self.run();
    }

    /// The chain is so, for all of its region.
    fn configure(&mut self, chain: &Chain) {
        let now_ms = self.now_ms;
        self.replicas.values_mut().for_each(|replica| replica.configure(now_ms, chain.clone()));
        self.run();
    }

    fn client(&mut self, link: ConnectionId, of: u64) {
        let now_ms = self.now_ms;
        self.replica(of).connected(now_ms, link, Peer::In("client".to_owned(), Role::Client(link.into())));
    }

    /// Carries messages until there are none; disks take everything at once.
    fn run(&mut self) {
        loop {
            let mut outputs = Vec::new();
            for (id, replica) in &mut self.replicas {
                outputs.extend(replica.outputs().into_iter().map(|output| (*id, output)));
            }
            if outputs.is_empty() {
                return;
            }
            for (id, output) in outputs {
                let now_ms = self.now_ms;
                match output {
                    ReplicaOutput::Send(LISTENER, message) => {
                        self.replica(id).drained(LISTENER, usize::MAX);
                        self.heard.push(message);
                    }
                    ReplicaOutput::Send(PUBLISHER, Message::Refused { reason, .. }) => {
                        self.refused.push(reason)
                    }
                    ReplicaOutput::Send(link, message) => {
                        self.replica(id).drained(link, usize::MAX);
                        let Some((dialer, acceptor)) = self.links.get(&link).copied() else { continue };
                        let to = if id == dialer { acceptor } else { dialer };
                        self.replica(to).receive(now_ms, link, message);
                    }
                    ReplicaOutput::Persist { record, ticket } => {
                        self.records.push(record);
                        if let Some(ticket) = ticket {
                            self.replica(id).persisted(now_ms, &ticket);
                        }
                    }
                    ReplicaOutput::Held { stream, last } if id.is_multiple_of(2) => {
                        self.records.push(Record::Held { stream, last });
                    }
                    ReplicaOutput::Held { .. } | ReplicaOutput::SetAside(_) => {}
                    ReplicaOutput::Close(link, why) => panic!("{link} of {id} is closed: {why}"),
                }
            }
        }
    }

    /// Time passes, in ticks.
    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms += 50;
            let now_ms = self.now_ms;
            self.replicas.values_mut().for_each(|replica| replica.tick(now_ms, WALL_MS + now_ms));
            self.run();
        }
    }

    /// Publishes as many events with `bytes` of payload each, at the head, one after the other.
    fn publish(&mut self, head: u64, count: usize, bytes: usize, collect: Option<&Collect>) {
        for _ in 0..count {
            self.published += 1;
            let mut events = Writer::new(0);
            let content = Content { payload: Bytes::from(vec![b'x'; bytes]), ..Content::default() };
            events.publish(&content, collect).unwrap();
            let client = u128::from(self.published);
            let publish =
                Message::Publish { stream: stream(), client, answered: 0, first: 1, batch: events.finish(0) };
            let now_ms = self.now_ms;
            self.replica(head).receive(now_ms, PUBLISHER, publish);
            self.run();
        }
    }

    /// Of a replica: up to which number events were removed, and how many are left.
    fn has(&self, id: u64) -> (u64, u64) {
        let history = &self.replicas[&id].stream(&stream()).unwrap().history;
        (history.removed(), history.stats().live)
    }

    /// What a listener at the tail is sent from a number on: of each batch what it covers, and what was removed.
    fn listen(&mut self, tail: u64, after: u64) -> Vec<(u64, u64, u64)> {
        let (now_ms, positions) = (self.now_ms, vec![(stream(), at(after))]);
        self.heard.clear();
        self.replica(tail).receive(now_ms, LISTENER, Message::Listen { positions, others: false });
        self.run();
        let batches = self.heard.iter().filter_map(|message| match message {
            Message::Events { batch, .. } => Some((batch.after, batch.last, batch.removed)),
            _ => None,
        });
        batches.collect()
    }
}

/// Two replicas here, and one of another region.
fn world() -> World {
    let mut world = World::default();
    world.add("here", 1, chain("here", 1, &[1], &[]));
    world.add("here", 2, chain("here", 1, &[1], &[]));
    world.add("there", 9, chain("there", 1, &[9], &[]));
    world.connect(7, (2, "here"), (1, "here"));
    world.connect(8, (9, "there"), (2, "here"));
    world.configure(&chain("here", 2, &[1], &[2]));
    world.configure(&chain("here", 3, &[1, 2], &[]));
    world.client(PUBLISHER, 1);
    world.client(LISTENER, 2);
    world.pass(1_000);
    world
}

#[test]
fn what_is_old_enough_goes_in_every_region_but_for_a_streams_last_event_and_listeners_behind_it_are_told() {
    let mut world = world();
    world.publish(1, 3, 1, None);
    world.pass(6_000);
    world.publish(1, 3, 1, None);
    let all = |world: &World| [1, 2, 9].map(|id| world.has(id));
    assert_eq!(all(&world), [(0, 6); 3]);
    world.pass(6_000);
    assert_eq!(all(&world), [(3, 3); 3]);
    assert_eq!(world.listen(2, 0).first(), Some(&(0, 3, 3)));
    assert_eq!(world.listen(2, 2).first(), Some(&(2, 3, 3)));
    let has_all = world.listen(2, 3);
    assert!(has_all.iter().all(|(_, _, removed)| *removed == 0), "{has_all:?}");
    world.pass(20_000);
    assert_eq!(all(&world), [(5, 1); 3]);
    assert_eq!(world.listen(2, 3), [(3, 5, 5), (5, 6, 0)]);
    assert_eq!(world.replica(1).counters.removed, 5);
    // The next one has the next number, and one that was collected was not removed.
    world.publish(1, 1, 1, Some(&Collect::KeepLast(0)));
    world.pass(20_000);
    assert_eq!(all(&world), [(5, 1); 3]);
    assert_eq!(world.listen(2, 5), [(5, 6, 0), (6, 7, 0)]);
}

#[test]
fn a_stream_that_is_full_takes_events_again_once_retention_made_room() {
    let mut world = world();
    world.publish(1, 5, 1 << 20, None);
    assert_eq!(world.refused, [Reason::Full; 2]);
    world.pass(12_000);
    world.publish(1, 1, 1 << 20, None);
    assert_eq!((world.refused.len(), world.has(1)), (2, (2, 2)));
}

#[test]
fn what_is_on_its_way_is_left_alone_and_counts_until_it_is_settled() {
    let mut world = world();
    world.publish(1, 2, 1000, None);
    // The replica behind says nothing any more.
    let link = world.links.remove(&7);
    world.publish(1, 3, 1000, None);
    world.pass(12_000);
    assert_eq!(world.has(1), (1, 1));
    let state = world.replica(1).stream(&stream()).unwrap();
    assert_eq!((state.held(), state.last()), (2, 5));
    assert!(state.bytes() > 4_000);
    // It follows anew.
    world.links.insert(7, link.unwrap());
    let now_ms = world.now_ms;
    for id in [1, 2] {
        world.replica(id).closed(now_ms, 7);
    }
    world.connect(7, (2, "here"), (1, "here"));
    world.pass(2_000);
    assert_eq!([1, 2].map(|id| world.has(id)), [(4, 1); 2]);
    let state = world.replica(1).stream(&stream()).unwrap();
    assert_eq!(state.unsettled().count(), 0);
    assert!(state.bytes() < 2_000);
}

#[test]
fn a_replica_that_joins_or_was_away_hears_what_was_removed_meanwhile() {
    let mut world = world();
    world.publish(1, 3, 1, None);
    world.pass(100);
    // The other region hears nothing for a while; here one more joins.
    let now_ms = world.now_ms;
    for id in [2, 9] {
        world.replica(id).closed(now_ms, 8);
    }
    world.publish(1, 3, 1, None);
    world.pass(12_000);
    assert_eq!((world.has(2), world.has(9)), ((5, 1), (0, 3)));
    world.connect(8, (9, "there"), (2, "here"));
    world.pass(1_000);
    assert_eq!(world.has(9), (5, 1));
    world.add("here", 5, chain("here", 1, &[1], &[]));
    world.connect(9, (5, "here"), (2, "here"));
    world.configure(&chain("here", 4, &[1, 2], &[5]));
    world.pass(1_000);
    assert_eq!(world.has(5), (5, 1));
}

#[test]
fn a_replica_that_restarts_knows_what_was_removed() {
    let mut world = world();
    world.publish(1, 3, 1, None);
    world.pass(6_000);
    world.publish(1, 3, 1, None);
    world.pass(6_000);
    let mut recovered = RecoveredStream::default();
    for record in &world.records {
        recovered.apply(record.clone()).unwrap();
    }
    let streams = recovered.into_streams();
    let history = &streams[&stream()].history;
    assert_eq!((history.removed(), history.last(), history.stats().live), (3, 6, 3));
}

#[test]
fn the_numbers_of_a_new_lineage_are_not_removed_for_what_was_said_of_the_one_before() {
    let mut world = World::default();
    world.add("here", 5, chain("here", 1, &[1], &[5]));
    world.replica(5).connected(0, 7, Peer::Out("here".to_owned(), 1));
    let mut events = Writer::new(0);
    (0..2).for_each(|_| events.publish(&Content::default(), None).unwrap());
    let (batch, origin) = (events.finish(0), None);
    world.replica(5).receive(0, 7, Message::Append { epoch: 1, stream: stream(), lineage: 1, origin, batch });
    world.replica(5).receive(0, 7, Message::Held { epoch: 1, counts: vec![(stream(), at(1))] });
    world.replica(5).receive(0, 7, Message::Removed { epoch: 1, stream: stream(), last: at(90) });
    assert_eq!(world.has(5), (1, 0), "no more is held");
    world.replica(5).configure(0, Chain { lineage: 2, ..chain("here", 2, &[5], &[]) });
    world.client(PUBLISHER, 5);
    world.pass(100);
    world.publish(5, 4, 1, None);
    let (removed, live) = world.has(5);
    assert_eq!((removed, live > 3), (1, true));
}

#[test]
fn a_publisher_can_not_say_that_something_was_removed() {
    let mut world = world();
    let mut events = Writer::new(0);
    events.publish(&Content::default(), None).unwrap();
    let mut batch = events.finish(0);
    batch.removed = 1;
    let publish = Message::Publish { stream: stream(), client: 5, answered: 0, first: 1, batch };
    world.replica(1).receive(0, PUBLISHER, publish);
    world.run();
    assert_eq!(world.refused, [Reason::Invalid]);
}
