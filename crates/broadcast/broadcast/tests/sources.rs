//! From whom the proxies of several regions fetch each other's streams, in simulated time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tailwater_broadcast::message::{Chain, Member, Message, Role};
use tailwater_broadcast::replica::{Config, ConnectionId, Peer, Replica, ReplicaOutput, size_of_message};
use tailwater_broadcast::{Content, Stream, Writer};

/// Between two looks at everything, and between two ticks.
const STEP_MS: u64 = 5;
const TICK_MS: u64 = 20;
/// After this a connection on which nothing comes is ended.
const SILENCE_MS: u64 = 2_000;
const PUBLISHER: ConnectionId = 1;

/// A connection that a region's replica opened to another one.
struct Link {
    id: ConnectionId,
    /// To the acceptor, to the dialer: when it comes, and what.
    queues: [VecDeque<(u64, Message)>; 2],
    heard_ms: u64,
}

/// Regions of one replica each, all connected to all.
struct World {
    now_ms: u64,
    replicas: Vec<Replica>,
    links: BTreeMap<(usize, usize), Link>,
    /// Smaller one first.
    cuts: BTreeSet<(usize, usize)>,
    latency_ms: fn(usize, usize) -> u64,
    next_id: ConnectionId,
    drawn: u64,
    published: Vec<u64>,
}

fn stream(region: usize) -> Stream {
    Stream::parse(&format!("r{region}/news")).unwrap()
}

impl World {
    fn new(regions: usize, latency_ms: fn(usize, usize) -> u64) -> Self {
        let replica = |region: usize| {
            let name = format!("r{region}");
            let mut replica = Replica::new(Config::new(&name, 1));
            let members = vec![Member { id: 1, address: name.clone() }];
            replica.configure(0, Chain { epoch: 1, lineage: 1, region: name, members, joining: Vec::new() });
            replica.connected(0, PUBLISHER, Peer::In("client".to_owned(), Role::Client(3)));
            replica
        };
        Self {
            now_ms: 0,
            replicas: (0..regions).map(replica).collect(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            latency_ms,
            next_id: PUBLISHER + 1,
            drawn: 1,
            published: vec![0; regions],
        }
    }

    fn cut(&mut self, one: usize, other: usize) {
        self.cuts.insert((one.min(other), one.max(other)));
    }

    fn heal(&mut self, one: usize, other: usize) {
        self.cuts.remove(&(one.min(other), one.max(other)));
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cuts.contains(&(one.min(other), one.max(other)))
    }

    fn publish(&mut self, region: usize, count: u64) {
        let mut events = Writer::new(0);
        for _ in 0..count {
            events.publish(&Content::default(), None).unwrap();
        }
        let (first, batch) = (self.published[region] + 1, events.finish(0));
        self.published[region] += count;
        let publish =
            Message::Publish { stream: stream(region), client: 3, answered: first - 1, first, batch };
        self.replicas[region].receive(self.now_ms, PUBLISHER, publish);
    }

    /// How far a region has another one's stream.
    fn count(&self, here: usize, of: usize) -> u64 {
        self.replicas[here].stream(&stream(of)).map_or(0, |state| state.held())
    }

    fn source(&self, here: usize, of: usize) -> Option<&str> {
        self.replicas[here].source_of(&stream(of))
    }

    fn moved(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.counters.moved).sum()
    }

    fn run(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now_ms += STEP_MS;
        let regions = self.replicas.len();
        for (dialer, acceptor) in (0..regions).flat_map(|one| (0..regions).map(move |other| (one, other))) {
            if dialer != acceptor {
                self.carry(dialer, acceptor);
            }
        }
        for region in 0..regions {
            // They began one after the other, so what they say is of different moments.
            let age_ms = self.now_ms.saturating_sub(35 * region as u64);
            if age_ms >= 100 && age_ms.is_multiple_of(TICK_MS) {
                self.replicas[region].tick(self.now_ms, self.now_ms);
            }
            for output in self.replicas[region].outputs() {
                match output {
                    ReplicaOutput::Send(PUBLISHER, message) => {
                        self.replicas[region].drained(PUBLISHER, size_of_message(&message));
                    }
                    ReplicaOutput::Send(id, message) => self.send(region, id, message),
                    ReplicaOutput::Close(_, why) => panic!("r{region} ended a connection: {why}"),
                    ReplicaOutput::Persist { .. }
                    | ReplicaOutput::Held { .. }
                    | ReplicaOutput::SetAside(_) => {}
                }
            }
        }
    }

    fn send(&mut self, region: usize, id: ConnectionId, message: Message) {
        // From -5 to +5 ms.
        self.drawn =
            self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let jitter_ms = (self.drawn >> 33) % 11;
        let Some(((dialer, acceptor), link)) = self.links.iter_mut().find(|(_, link)| link.id == id) else {
            return;
        };
        let queue = &mut link.queues[usize::from(region == *acceptor)];
        let at_ms = self.now_ms + (self.latency_ms)(*dialer, *acceptor) + jitter_ms - 5;
        let after_ms = queue.back().map_or(0, |(at_ms, _)| *at_ms);
        queue.push_back((at_ms.max(after_ms), message));
    }

    /// What comes on the connection that one region opened to another; opened again if it has ended.
    fn carry(&mut self, dialer: usize, acceptor: usize) {
        let now_ms = self.now_ms;
        if self.is_cut(dialer, acceptor) {
            if self.links.get(&(dialer, acceptor)).is_some_and(|link| now_ms - link.heard_ms > SILENCE_MS)
                && let Some(link) = self.links.remove(&(dialer, acceptor))
            {
                self.replicas[dialer].closed(now_ms, link.id);
                self.replicas[acceptor].closed(now_ms, link.id);
            }
            return;
        }
        let Some(link) = self.links.get_mut(&(dialer, acceptor)) else {
            let (id, region) = (self.next_id, |of: usize| format!("r{of}"));
            self.next_id += 1;
            self.links.insert((dialer, acceptor), Link { id, queues: Default::default(), heard_ms: now_ms });
            self.replicas[acceptor].connected(now_ms, id, Peer::In(region(dialer), Role::Replica(1)));
            self.replicas[dialer].connected(now_ms, id, Peer::Out(region(acceptor), 1));
            return;
        };
        for (direction, (from, to)) in [(dialer, acceptor), (acceptor, dialer)].into_iter().enumerate() {
            while let Some((_, message)) = link.queues[direction].pop_front_if(|(at_ms, _)| *at_ms <= now_ms)
            {
                if to == dialer {
                    link.heard_ms = now_ms;
                }
                self.replicas[from].drained(link.id, size_of_message(&message));
                self.replicas[to].receive(now_ms, link.id, message);
            }
        }
    }
}

/// Region 0 publishes an event a second; answers how long the longest of them took to come to region 2.
fn longest_delay_ms(world: &mut World, seconds: u64) -> u64 {
    let mut waiting: VecDeque<(u64, u64)> = VecDeque::new();
    let mut longest_ms = 0;
    for at_ms in (0..seconds * 1_000).step_by(STEP_MS as usize) {
        if at_ms.is_multiple_of(1_000) {
            world.publish(0, 1);
            waiting.push_back((world.published[0], world.now_ms));
        }
        world.step();
        while let Some((_, since_ms)) = waiting.pop_front_if(|(seq, _)| *seq <= world.count(2, 0)) {
            longest_ms = longest_ms.max(world.now_ms - since_ms);
        }
        if let Some((_, since_ms)) = waiting.front() {
            longest_ms = longest_ms.max(world.now_ms - since_ms);
        }
    }
    longest_ms
}

#[test]
fn a_slow_stream_leaves_a_source_that_lives_and_gets_nothing_itself_within_two_seconds() {
    let mut world = World::new(3, |_, _| 20);
    world.cut(0, 2);
    longest_delay_ms(&mut world, 5);
    assert_eq!(world.source(2, 0), Some("r1"), "there is no other way");
    world.heal(0, 2);
    world.run(500);
    assert_eq!(world.source(2, 0), Some("r1"), "it has not been moved back yet");
    world.cut(0, 1);
    let longest_ms = longest_delay_ms(&mut world, 60);
    assert!(longest_ms <= 2_000, "an event took {longest_ms} ms");
    assert_eq!(world.source(2, 0), Some("r0"));
    // And so does the other one, which got it on the way that is cut.
    assert_eq!((world.count(1, 0), world.source(1, 0)), (world.published[0], Some("r2")));
}

#[test]
fn a_slow_stream_is_moved_back_to_its_own_region_once_its_link_was_healed_for_some_time() {
    let mut world = World::new(3, |_, _| 20);
    world.cut(0, 2);
    longest_delay_ms(&mut world, 5);
    for _ in 0..3 {
        // It comes and goes.
        world.heal(0, 2);
        longest_delay_ms(&mut world, 2);
        assert_eq!(world.source(2, 0), Some("r1"));
        world.cut(0, 2);
        longest_delay_ms(&mut world, 3);
    }
    world.heal(0, 2);
    longest_delay_ms(&mut world, 10);
    assert_eq!(world.source(2, 0), Some("r0"));
    assert_eq!(world.replicas[2].counters.moved, 1, "once");
}

#[test]
fn a_source_that_is_as_far_as_the_others_is_kept() {
    // In a line: by way of those between it is no longer.
    let mut world = World::new(4, |one, other| 20 * one.abs_diff(other) as u64);
    for _ in 0..2_000 {
        for region in 0..4 {
            world.publish(region, 325);
        }
        world.step();
    }
    assert!(world.count(3, 0) > world.published[0] / 2);
    // Each region may have found each stream at another one first.
    assert!(world.moved() <= 12, "moved {} times in {} s", world.moved(), world.now_ms / 1_000);
}

#[test]
fn a_fast_stream_leaves_a_source_that_is_cut_off_from_here_before_it_counts_as_silent() {
    let mut world = World::new(3, |_, _| 40);
    let flow = |world: &mut World, steps: u64| {
        for _ in 0..steps {
            world.publish(0, 325);
            world.step();
        }
    };
    flow(&mut world, 1_000);
    assert_eq!(world.source(2, 0), Some("r0"));
    world.cut(0, 2);
    flow(&mut world, Config::new("r2", 1).silence_ms / STEP_MS);
    assert_eq!(world.source(2, 0), Some("r1"));
}

#[test]
fn what_a_region_knows_of_a_stream_that_goes_on_is_young_also_where_the_way_over_another_one_is_faster() {
    let mut world = World::new(3, |one, other| if one.abs_diff(other) == 2 { 200 } else { 40 });
    for _ in 0..2_000 {
        world.publish(0, 7);
        world.step();
        if world.now_ms >= 5_000 {
            assert!(world.replicas[2].age_ms(&stream(0)) < 1_000, "after {} ms", world.now_ms);
        }
    }
}

#[test]
fn what_a_region_knows_of_another_ones_stream_is_as_old_as_its_last_way_there() {
    let mut world = World::new(3, |_, _| 20);
    longest_delay_ms(&mut world, 2);
    let age_ms = |world: &World| world.replicas[2].age_ms(&stream(0));
    assert!(age_ms(&world) < 500, "{}", age_ms(&world));
    // By way of the other one.
    world.cut(0, 2);
    longest_delay_ms(&mut world, 5);
    assert!(age_ms(&world) < 500, "{}", age_ms(&world));
    world.cut(0, 1);
    world.run(3_000);
    assert!(age_ms(&world) >= 3_000, "{}", age_ms(&world));
    world.heal(0, 1);
    longest_delay_ms(&mut world, 5);
    assert!(age_ms(&world) < 500, "{}", age_ms(&world));
}
