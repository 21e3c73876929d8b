//! A region begins anew, and a replica comes back with what was before.

use tailwater_broadcast::message::{AGE_UNKNOWN, Advertised, Chain, Has, Member, Message, Role};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::replica::{Config, Output, Peer, Replica};
use tailwater_broadcast::{Batch, Content, Durability, Stream, Writer};

fn stream() -> Stream {
    Stream::parse("here/news").unwrap()
}

fn far() -> Stream {
    Stream::parse("there/news").unwrap()
}

/// Events behind number `after`.
fn batch(after: u64, count: u64) -> Batch {
    let mut events = Writer::new(after);
    (0..count).for_each(|_| events.publish(&Content::default(), None).unwrap());
    events.finish(0)
}

/// What the tail of the other region, asked then, says at once of its stream.
fn told(at: u64, count: u64) -> Message {
    let counts = vec![Advertised { stream: far(), count, age_ms: 0 }];
    Message::Advertise { epoch: 1, answers: Some(at), counts }
}

/// The other region's tail, behind connection 6, sends three events and says at 1 s that it has no more.
fn hear_far(replica: &mut Replica) {
    replica.connected(0, 6, Peer::Out("there".to_owned(), 5));
    replica.receive(0, 6, told(0, 3));
    replica.receive(0, 6, Message::Events { stream: far(), batch: batch(0, 3) });
    persist(replica);
    replica.receive(1_000, 6, told(1_000, 3));
    assert_eq!(replica.age_ms(&far()), 0);
}

fn chain(epoch: u64, lineage: u64, members: &[u64], joining: &[u64]) -> Chain {
    let all =
        |ids: &[u64]| ids.iter().map(|id| Member { id: *id, address: format!("replica-{id}") }).collect();
    Chain { epoch, lineage, region: "here".to_owned(), members: all(members), joining: all(joining) }
}

/// Replica 2, the only member of a chain of lineage 7 until now, which has three events.
fn before() -> Replica {
    let config = Config { durability: Durability::Fsync.into(), ..Config::new("here", 2) };
    let mut replica = Replica::new(config);
    replica.configure(0, chain(1, 7, &[2], &[]));
    replica.connected(0, 1, Peer::In("client".to_owned(), Role::Client(9)));
    let mut events = Writer::new(0);
    (0..3).for_each(|_| events.publish(&Content::default(), None).unwrap());
    let publish =
        Message::Publish { stream: stream(), client: 9, answered: 0, first: 1, batch: events.finish(0) };
    replica.receive(0, 1, publish);
    persist(&mut replica);
    assert_eq!(replica.has(), Has { lineage: 7, events: 3 });
    replica
}

/// What it wants done; all that is to be written is.
fn persist(replica: &mut Replica) -> Vec<Output> {
    let mut all = Vec::new();
    loop {
        let outputs = replica.outputs();
        if outputs.is_empty() {
            return all;
        }
        for output in &outputs {
            if let Output::Persist { ticket: Some(ticket), .. } = output {
                replica.persisted(0, ticket);
            }
        }
        all.extend(outputs);
    }
}

fn follow_of(outputs: &[Output]) -> Option<&Message> {
    outputs.iter().find_map(|output| match output {
        Output::Send(_, message @ Message::Follow { .. }) => Some(message),
        _ => None,
    })
}

#[test]
fn a_replica_that_joins_a_chain_of_another_lineage_drops_what_it_has_once_it_reaches_its_tail() {
    let mut replica = before();
    replica.configure(0, chain(5, 8, &[4], &[2]));
    persist(&mut replica);
    assert_eq!(replica.has(), Has { lineage: 7, events: 3 }, "the next chain may begin with it");
    let late = replica.stream(&stream()).map(|state| state.last());
    assert_eq!(late, Some(3));

    replica.connected(0, 8, Peer::Out("here".to_owned(), 4));
    let outputs = persist(&mut replica);
    let Some(Output::SetAside(dropped)) = outputs.iter().find(|output| matches!(output, Output::SetAside(_)))
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((dropped.lineage, dropped.live()), (7, 3));
    assert_eq!(dropped.streams[&stream()].held(), 3);
    let at = |wanted: &Output| outputs.iter().position(|output| output == wanted);
    let record = Record::Lineage { lineage: 8, keeps: false };
    let written = at(&Output::Persist { record, ticket: None });
    assert!(written > outputs.iter().position(|output| matches!(output, Output::SetAside(_))), "{outputs:?}");
    assert_eq!(follow_of(&outputs), Some(&Message::Follow { epoch: 5, lineage: 8, counts: Vec::new() }));
    assert_eq!(replica.has(), Has { lineage: 8, events: 0 });

    // From then on it is one of that chain, whoever its tail is.
    replica.configure(0, chain(6, 8, &[4], &[6, 2]));
    let outputs = persist(&mut replica);
    assert!(!outputs.iter().any(|output| matches!(output, Output::SetAside(_))), "{outputs:?}");
}

#[test]
fn a_replica_that_dropped_what_it_had_does_not_know_how_old_what_it_gets_is() {
    let mut replica = before();
    hear_far(&mut replica);
    replica.tick(1_000, 1_000);
    assert_eq!(replica.age_ms(&stream()), 0);
    replica.configure(1_000, chain(5, 8, &[4], &[2]));
    replica.connected(1_000, 8, Peer::Out("here".to_owned(), 4));
    for stream in [stream(), far()] {
        let append = Message::Append { epoch: 5, stream: stream.clone(), origin: None, batch: batch(0, 1) };
        replica.receive(1_000, 8, append);
        assert_eq!(replica.stream(&stream).map(|state| state.last()), Some(1));
        assert_eq!(replica.age_ms(&stream), AGE_UNKNOWN);
    }
}

#[test]
fn a_region_that_says_less_than_it_has_said_before_makes_nothing_that_is_held_elsewhere_young() {
    let mut replica = before();
    hear_far(&mut replica);
    // It has begun anew, and two of its new events are there.
    replica.receive(5_000, 6, told(5_000, 2));
    assert_eq!(replica.age_ms(&far()), 4_000);
}

#[test]
fn a_replica_that_joins_a_chain_of_its_own_lineage_keeps_what_it_has() {
    let mut replica = before();
    replica.configure(0, chain(5, 7, &[4], &[2]));
    replica.connected(0, 8, Peer::Out("here".to_owned(), 4));
    let outputs = persist(&mut replica);
    let counts = vec![(stream(), 3)];
    assert_eq!(follow_of(&outputs), Some(&Message::Follow { epoch: 5, lineage: 7, counts }));
    assert!(!outputs.iter().any(|output| matches!(output, Output::SetAside(_))), "{outputs:?}");
}

#[test]
fn a_region_that_begins_anew_begins_with_what_its_first_replica_has() {
    let mut replica = before();
    replica.configure(0, chain(5, 7, &[4], &[2]));
    persist(&mut replica);
    replica.configure(0, chain(6, 8, &[2], &[]));
    let outputs = persist(&mut replica);
    let record = Record::Lineage { lineage: 8, keeps: true };
    assert!(outputs.contains(&Output::Persist { record, ticket: None }), "{outputs:?}");
    assert_eq!(replica.has(), Has { lineage: 8, events: 3 });
}

/// Whether the tail, with three events of lineage 7, ends the connection of replica 4 that follows with so many.
fn sends_away(lineage: u64, count: u64, hears_first: bool) -> bool {
    let mut tail = before();
    let joins = chain(2, 7, &[2], &[4]);
    if hears_first {
        tail.configure(0, joins.clone());
    }
    tail.connected(0, 8, Peer::In("here".to_owned(), Role::Replica(4)));
    tail.receive(0, 8, Message::Follow { epoch: 2, lineage, counts: vec![(stream(), count)] });
    let mut outputs = persist(&mut tail);
    if !hears_first {
        tail.configure(0, joins);
        outputs.extend(persist(&mut tail));
    }
    let sends = |output: &Output| matches!(output, Output::Send(8, Message::Append { .. }));
    let ends = outputs.iter().any(|output| matches!(output, Output::Close(8, _)));
    assert!(!ends || !outputs.iter().any(sends), "{outputs:?}");
    ends
}

#[test]
fn a_tail_sends_away_who_has_other_events_than_it_whichever_of_them_heard_of_the_chain_first() {
    for hears_first in [true, false] {
        assert!(!sends_away(7, 2, hears_first));
        assert!(sends_away(7, 4, hears_first), "it is ahead");
        assert!(sends_away(6, 2, hears_first), "it is of another lineage");
    }
}
