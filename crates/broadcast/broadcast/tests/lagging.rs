//! Publishers of a region whose listeners lag are answered later, and go on.

use tailwater_broadcast::message::{Chain, Member, Message, ReplicaId, Role};
use tailwater_broadcast::replica::{Config, HELD_BACK_MS_MAX, LAG_MS, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Content, Stream, Writer};

/// The shell's tick.
const TICK_MS: u64 = 20;
/// The publisher's connection, and that of the second replica with the first.
const PUBLISHER: u64 = 7;
const CHAIN: u64 = 8;

/// A chain of one or two replicas, whose publisher has one event for each tick and waits for nothing.
struct Region {
    replicas: Vec<Replica>,
    now_ms: u64,
    published: u64,
    answered: u64,
}

fn stream() -> Stream {
    Stream::parse("here/news").unwrap()
}

impl Region {
    fn new(replicas: ReplicaId, silence_ms: u64) -> Self {
        let member = |id| Member { id, address: format!("replica-{id}") };
        let members: Vec<Member> = (0..replicas).map(member).collect();
        let chain = Chain { epoch: 1, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() };
        let replica = |id| {
            let mut replica = Replica::new(Config { silence_ms, ..Config::new("here", id) });
            replica.configure(0, chain.clone());
            replica
        };
        let mut region =
            Self { replicas: (0..replicas).map(replica).collect(), now_ms: 0, published: 0, answered: 0 };
        region.replicas[0].connected(0, PUBLISHER, Peer::In("client".to_owned(), Role::Client(3)));
        if replicas > 1 {
            region.replicas[0].connected(0, CHAIN, Peer::In("here".to_owned(), Role::Replica(1)));
            region.replicas[1].connected(0, CHAIN, Peer::Out("here".to_owned(), 0));
        }
        region.run();
        region
    }

    fn tail(&mut self) -> &mut Replica {
        self.replicas.last_mut().unwrap()
    }

    /// Until nobody has anything to say.
    fn run(&mut self) {
        loop {
            let mut sent = Vec::new();
            for (at, replica) in self.replicas.iter_mut().enumerate() {
                for output in replica.outputs() {
                    match output {
                        ReplicaOutput::Send(PUBLISHER, Message::Published { number, .. }) => {
                            assert_eq!(number, self.answered + 1);
                            self.answered = number;
                        }
                        ReplicaOutput::Send(CHAIN, message) => sent.push((1 - at, message)),
                        ReplicaOutput::Close(_, why) => panic!("{why}"),
                        _ => {}
                    }
                }
            }
            if sent.is_empty() {
                return;
            }
            for (to, message) in sent {
                self.replicas[to].receive(self.now_ms, CHAIN, message);
            }
        }
    }

    fn publish(&mut self) {
        self.published += 1;
        let mut events = Writer::new(0);
        events.publish(&Content::default(), None).unwrap();
        let (first, batch) = (self.published, events.finish(0));
        let publish = Message::Publish { stream: stream(), client: 3, answered: 0, first, batch };
        self.replicas[0].receive(self.now_ms, PUBLISHER, publish);
        self.run();
    }

    /// Time passes, in which nothing is published.
    fn pass(&mut self, ms: u64, have: Option<u64>) {
        for _ in 0..ms / TICK_MS {
            self.now_ms += TICK_MS;
            for replica in &mut self.replicas {
                replica.tick(self.now_ms, self.now_ms);
            }
            self.tail().readers_have(&stream(), have);
            self.run();
        }
    }

    /// The same, with an event in each tick, of which listeners have all but the last `lag` ones.
    fn load(&mut self, ms: u64, lag: u64) {
        for _ in 0..ms / TICK_MS {
            self.publish();
            let have = self.published.saturating_sub(lag);
            self.pass(TICK_MS, Some(have));
        }
    }

    fn held_back(&mut self) -> u64 {
        self.tail().held_back(&stream())
    }

    fn unanswered_ms(&self) -> u64 {
        (self.published - self.answered) * TICK_MS
    }
}

#[test]
fn answers_wait_for_as_long_as_most_listeners_lag_more_than_they_may_and_no_longer_than_the_bound() {
    for replicas in [1, 2] {
        let mut region = Region::new(replicas, 5_000);
        region.load(2_000, LAG_MS / TICK_MS - 2);
        assert_eq!(region.unanswered_ms(), 0, "they lag by less");
        assert_eq!((region.held_back(), region.tail().counters.held_back), (0, 0));
        // By 400 ms more than they may.
        region.load(2_000, (LAG_MS + 400) / TICK_MS);
        let waits = region.unanswered_ms();
        assert!((300..=500).contains(&waits), "{waits}");
        assert_eq!(region.held_back(), region.published - region.answered);
        // They stand still, and the chain has all of it nevertheless.
        region.load(10_000, 1_000);
        let waits = region.unanswered_ms();
        assert!((HELD_BACK_MS_MAX - 100..=HELD_BACK_MS_MAX).contains(&waits), "{waits}");
        let held = region.tail().stream(&stream()).unwrap().held();
        assert_eq!(held, region.published, "it goes on delivering");
        // They have caught up, and publishers are answered at once.
        let (all, counted) = (region.published, region.tail().counters.held_back);
        region.pass(TICK_MS, Some(all));
        assert_eq!((region.answered, region.held_back()), (region.published, 0));
        // All but those before the lag and the first of it.
        assert!((550..=600).contains(&counted), "{counted}");
        region.load(1_000, 0);
        assert_eq!(
            region.tail().counters.held_back,
            counted,
            "an answer that waits for nobody is not counted"
        );
    }
}

#[test]
fn listeners_that_stand_still_for_ever_keep_an_answer_for_a_while_and_nobody_of_the_chain_waits_for_long() {
    let (silence_ms, mut longest) = (300, 0);
    let mut region = Region::new(2, silence_ms);
    region.load(1_000, 0);
    assert_eq!(region.unanswered_ms(), 0);
    for _ in 0..200 {
        region.publish();
        let have = region.published / 2;
        region.pass(TICK_MS, Some(have));
        let waits = region.replicas[0].waits();
        longest = longest.max(waits.next.map_or(0, |(_, ms)| ms));
    }
    assert!((silence_ms - 100..=silence_ms).contains(&region.unanswered_ms()), "{}", region.unanswered_ms());
    // Whoever waits for five times as long has the other one removed.
    assert!(longest < 2 * silence_ms, "{longest}");
    // Nothing comes any more, and all is answered.
    region.pass(silence_ms + TICK_MS, Some(0));
    assert_eq!(region.answered, region.published);
    assert_eq!(region.replicas[0].waits().next, None);
}

#[test]
fn a_tail_that_feeds_too_few_or_is_asked_for_another_regions_stream_answers_at_once() {
    let mut region = Region::new(2, 1_000);
    region.load(1_000, 1_000);
    assert!(region.unanswered_ms() > 0);
    region.pass(TICK_MS, None);
    assert_eq!(region.answered, region.published);
    // What the head is told counts for nothing, as it feeds nobody.
    region.publish();
    region.replicas[0].readers_have(&stream(), Some(0));
    region.pass(TICK_MS, None);
    assert_eq!(region.answered, region.published);
}
