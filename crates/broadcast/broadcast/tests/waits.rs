//! A replica knows for how long it has waited, and for what.

use tailwater_broadcast::message::{Chain, Member, Message, Role, Waits};
use tailwater_broadcast::replica::{Config, Peer, Replica, ReplicaOutput, ReplicaTicket};
use tailwater_broadcast::{Content, Durability, Position, Stream, Writer};

/// A member with a disk, of the chain 2, 4, 6.
struct Told {
    replica: Replica,
    now_ms: u64,
    tickets: Vec<ReplicaTicket>,
    published: u64,
}

fn stream() -> Stream {
    Stream::parse("here/news").unwrap()
}

impl Told {
    fn new(id: u64) -> Self {
        let config = Config { durability: Durability::Fsync.into(), ..Config::new("here", id) };
        let mut replica = Replica::new(config);
        let member = |id| Member { id, address: format!("replica-{id}") };
        let members = vec![member(2), member(4), member(6)];
        replica.configure(
            0,
            Chain { epoch: 1, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() },
        );
        replica.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
        replica.connected(0, 8, Peer::In("here".to_owned(), Role::Replica(id + 2)));
        replica.receive(0, 8, Message::Follow { epoch: 1, lineage: 1, counts: Vec::new() });
        replica.connected(0, 9, Peer::Out("here".to_owned(), id - 2));
        Self { replica, now_ms: 0, tickets: Vec::new(), published: 0 }
    }

    fn publish(&mut self) {
        self.published += 1;
        let mut events = Writer::new(0);
        events.publish(&Content::default(), None).unwrap();
        let (first, batch) = (self.published, events.finish(0));
        let publish = Message::Publish { stream: stream(), client: 3, answered: 0, first, batch };
        self.replica.receive(self.now_ms, 7, publish);
        self.outputs();
    }

    fn outputs(&mut self) {
        let outputs = self.replica.outputs().into_iter();
        self.tickets.extend(outputs.filter_map(|output| match output {
            ReplicaOutput::Persist { ticket, .. } => ticket,
            _ => None,
        }));
    }

    /// The disk takes all that was written.
    fn sync(&mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            self.replica.persisted(self.now_ms, &ticket);
        }
        self.outputs();
    }

    fn next_holds(&mut self, count: u64) {
        let held = Message::Held { epoch: 1, counts: vec![(stream(), Position { lineage: 0, seq: count })] };
        self.replica.receive(self.now_ms, 8, held);
    }

    fn pass(&mut self, ms: u64) -> Waits {
        for _ in 0..ms / 20 {
            self.now_ms += 20;
            self.replica.tick(self.now_ms, self.now_ms);
            self.outputs();
        }
        self.replica.waits()
    }
}

#[test]
fn a_replica_waits_for_its_disk_while_that_takes_nothing_and_then_for_the_one_behind_it() {
    let mut head = Told::new(2);
    assert_eq!(head.pass(3_000), Waits::default());
    head.publish();
    let waits = head.pass(2_000);
    assert!((1_800..=2_000).contains(&waits.disk_ms), "{waits:?}");
    assert_eq!(waits.next, None, "nothing was sent to it");
    head.sync();
    head.publish();
    let waits = head.pass(1_000);
    // The second one.
    assert!((800..=1_000).contains(&waits.disk_ms), "{waits:?}");
    head.sync();
    let waits = head.pass(1_000);
    assert_eq!(waits.disk_ms, 0);
    assert!(matches!(waits.next, Some((4, 1_800..=2_000))), "{waits:?}");
    // One of two is progress.
    head.next_holds(1);
    let waits = head.pass(1_000);
    assert!(matches!(waits.next, Some((4, 800..=1_000))), "{waits:?}");
    head.next_holds(2);
    assert_eq!(head.pass(1_000), Waits::default());
}

#[test]
fn a_replica_that_was_not_awake_did_not_wait() {
    let mut head = Told::new(2);
    head.publish();
    head.sync();
    head.pass(100);
    head.now_ms += 60_000;
    let waits = head.pass(20);
    assert!(matches!(waits.next, Some((4, 1..=400))), "{waits:?}");
}

#[test]
fn a_link_that_breaks_again_and_again_and_carries_nothing_is_waited_for_all_the_time() {
    let mut head = Told::new(2);
    head.publish();
    head.publish();
    head.sync();
    head.next_holds(1);
    head.pass(100);
    for _ in 0..10 {
        head.replica.closed(head.now_ms, 8);
        head.pass(100);
        head.replica.connected(head.now_ms, 8, Peer::In("here".to_owned(), Role::Replica(4)));
        let follow = Message::Follow {
            epoch: 1,
            lineage: 1,
            counts: vec![(stream(), Position { lineage: 0, seq: 1 })],
        };
        head.replica.receive(head.now_ms, 8, follow);
        head.next_holds(1);
        head.pass(100);
    }
    let waits = head.replica.waits();
    assert!(matches!(waits.next, Some((4, 1_800..))), "{waits:?}");
}

#[test]
fn a_replica_waits_for_the_one_before_it_from_when_it_hears_nothing_of_it() {
    let mut middle = Told::new(4);
    let waits = middle.pass(1_000);
    assert!((800..=1_000).contains(&waits.before_ms), "{waits:?}");
    middle.replica.receive(
        middle.now_ms,
        9,
        Message::Advertise { epoch: 1, answers: None, counts: Vec::new() },
    );
    assert_eq!(middle.pass(100).before_ms, 0);
    middle.replica.closed(middle.now_ms, 9);
    let waits = middle.pass(1_000);
    assert!((800..=1_000).contains(&waits.before_ms), "{waits:?}");
    assert_eq!(Told::new(2).pass(1_000).before_ms, 0, "nobody is before the head");
}

#[test]
fn a_replica_waits_anew_when_somebody_behind_it_is_removed_and_goes_on_waiting_when_somebody_joins() {
    let mut head = Told::new(2);
    head.publish();
    head.sync();
    let member = |id| Member { id, address: format!("replica-{id}") };
    let mut chain = head.replica.chain().clone();
    head.pass(1_000);
    (chain.epoch, chain.joining) = (2, vec![member(8)]);
    head.replica.configure(head.now_ms, chain.clone());
    let waits = head.pass(1_000);
    assert!(matches!(waits.next, Some((4, 1_800..=2_000))), "{waits:?}");
    (chain.epoch, chain.members) = (3, vec![member(2), member(4)]);
    head.replica.configure(head.now_ms, chain);
    assert_eq!(head.replica.waits(), Waits::default());
    let waits = head.pass(1_000);
    assert!(matches!(waits.next, Some((4, 800..=1_000))), "{waits:?}");
}
