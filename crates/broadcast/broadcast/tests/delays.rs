//! How long events take is known to every replica of a region.

use std::collections::BTreeMap;

use tailwater_broadcast::message::{Chain, Member, Message, ReplicaId, Role};
use tailwater_broadcast::replica::{Config, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Content, Stream, Writer};

/// What a message takes to the next replica.
const HOP_MS: u64 = 10;

/// Replicas, each of which follows the one that it is connected to.
struct Region {
    replicas: BTreeMap<ReplicaId, Replica>,
    now_ms: u64,
}

impl Region {
    fn configure(&mut self, epoch: u64, members: &[ReplicaId], joining: &[ReplicaId]) {
        let all = |ids: &[ReplicaId]| {
            ids.iter().map(|&id| Member { id, address: format!("replica-{id}") }).collect::<Vec<_>>()
        };
        let (members, joining) = (all(members), all(joining));
        let chain = Chain { epoch, lineage: 0, region: "here".to_owned(), members, joining };
        for replica in self.replicas.values_mut() {
            replica.configure(self.now_ms, chain.clone());
        }
        self.run();
    }

    fn connect(&mut self, follower: ReplicaId, before: ReplicaId) {
        let (id, now_ms) = (100 * follower + before, self.now_ms);
        let ends = [
            (before, Peer::In("here".to_owned(), Role::Replica(follower))),
            (follower, Peer::Out("here".to_owned(), before)),
        ];
        for (end, peer) in ends {
            self.replicas.get_mut(&end).unwrap().connected(now_ms, id, peer);
        }
        self.run();
    }

    /// Until nobody says anything that is not said again and again.
    fn run(&mut self) {
        loop {
            let mut sent = Vec::new();
            for (&from, replica) in &mut self.replicas {
                for output in replica.outputs() {
                    match output {
                        ReplicaOutput::Send(id, message) if id >= 100 => {
                            let to = if from == id / 100 { id % 100 } else { id / 100 };
                            sent.push((to, id, message));
                        }
                        _ => {}
                    }
                }
            }
            sent.retain(|(_, _, message)| {
                !matches!(message, Message::Advertise { .. } | Message::Ask { .. })
            });
            if sent.is_empty() {
                return;
            }
            self.now_ms += HOP_MS;
            for replica in self.replicas.values_mut() {
                replica.tick(self.now_ms, self.now_ms);
            }
            for (to, id, message) in sent {
                self.replicas.get_mut(&to).unwrap().receive(self.now_ms, id, message);
            }
        }
    }
}

#[test]
fn every_member_of_a_chain_knows_how_long_events_take_and_one_that_joins_counts_none_of_before() {
    let replicas = (1..=4).map(|id| (id, Replica::new(Config::new("here", id)))).collect();
    let mut region = Region { replicas, now_ms: 0 };
    region.configure(1, &[1, 2, 3], &[]);
    region.connect(2, 1);
    region.connect(3, 2);
    // Who was the last member before is the tail.
    region.configure(2, &[1, 2, 3], &[4]);
    let stream = Stream::parse("here/news").unwrap();
    let mut events = Writer::new(0);
    events.publish(&Content::default(), None).unwrap();
    let batch = events.finish(0);
    let head = region.replicas.get_mut(&1).unwrap();
    head.connected(region.now_ms, 7, Peer::In("client".to_owned(), Role::Client(3)));
    let publish = Message::Publish { stream: stream.clone(), client: 3, answered: 0, first: 1, batch };
    head.receive(region.now_ms, 7, publish);
    region.run();
    let delays = |region: &Region, id| {
        region.replicas[&id].delays.get("here").map_or((0, 0), |of| (of.count(), of.sum_ms()))
    };
    // There to the tail, and back to the head.
    assert_eq!([3, 2, 1].map(|id| delays(&region, id)), [(1, 2 * HOP_MS), (1, 3 * HOP_MS), (1, 4 * HOP_MS)]);
    region.now_ms += 3_600_000;
    region.connect(4, 3);
    assert_eq!(region.replicas[&4].stream(&stream).unwrap().held(), 1);
    assert_eq!(delays(&region, 4), (0, 0));
}
