//! A region begins anew, and a replica comes back with what was before.

use tailwater_broadcast::message::{AGE_UNKNOWN, Advertised, Chain, Has, Member, Message, Role};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::replica::{Config, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Batch, Content, Durability, Position, Stream, Writer};

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
    told_of(0, at, count)
}

/// The same of a lineage of that region.
fn told_of(lineage: u64, at: u64, seq: u64) -> Message {
    let counts = vec![Advertised { stream: far(), count: Position { lineage, seq }, age_ms: 0 }];
    Message::Advertise { epoch: 1, answers: Some(at), counts }
}

/// The other region's tail, behind connection 6, sends three events and says at 1 s that it has no more.
fn hear_far(replica: &mut Replica) {
    replica.connected(0, 6, Peer::Out("there".to_owned(), 5));
    replica.receive(0, 6, told(0, 3));
    replica.receive(0, 6, Message::Events { stream: far(), lineage: 0, batch: batch(0, 3) });
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
    assert_eq!(replica.has(), Has { lineage: 7, epoch: 1, events: 3 });
    replica
}

/// What it wants done; all that is to be written is.
fn persist(replica: &mut Replica) -> Vec<ReplicaOutput> {
    let mut all = Vec::new();
    loop {
        let outputs = replica.outputs();
        if outputs.is_empty() {
            return all;
        }
        for output in &outputs {
            if let ReplicaOutput::Persist { ticket: Some(ticket), .. } = output {
                replica.persisted(0, ticket);
            }
        }
        all.extend(outputs);
    }
}

fn follow_of(outputs: &[ReplicaOutput]) -> Option<&Message> {
    outputs.iter().find_map(|output| match output {
        ReplicaOutput::Send(_, message @ Message::Follow { .. }) => Some(message),
        _ => None,
    })
}

#[test]
fn a_replica_that_joins_a_chain_of_another_lineage_drops_what_it_has_once_it_reaches_its_tail() {
    let mut replica = before();
    replica.configure(0, chain(5, 8, &[4], &[2]));
    persist(&mut replica);
    assert_eq!(replica.has(), Has { lineage: 7, epoch: 1, events: 3 }, "the next chain may begin with it");
    let late = replica.stream(&stream()).map(|state| state.last());
    assert_eq!(late, Some(3));

    replica.connected(0, 8, Peer::Out("here".to_owned(), 4));
    let outputs = persist(&mut replica);
    let Some(ReplicaOutput::SetAside(dropped)) =
        outputs.iter().find(|output| matches!(output, ReplicaOutput::SetAside(_)))
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((dropped.lineages.own, dropped.live()), (7, 3));
    assert_eq!(dropped.streams[&stream()].held(), 3);
    let at = |wanted: &ReplicaOutput| outputs.iter().position(|output| output == wanted);
    let record = Record::Lineage { lineage: 8, keeps: false };
    let written = at(&ReplicaOutput::Persist { record, ticket: None });
    assert!(
        written > outputs.iter().position(|output| matches!(output, ReplicaOutput::SetAside(_))),
        "{outputs:?}"
    );
    assert_eq!(follow_of(&outputs), Some(&Message::Follow { epoch: 5, lineage: 8, counts: Vec::new() }));
    assert_eq!(replica.has(), Has { lineage: 8, epoch: 0, events: 0 });

    // From then on it is one of that chain, whoever its tail is.
    replica.configure(0, chain(6, 8, &[4], &[6, 2]));
    let outputs = persist(&mut replica);
    assert!(!outputs.iter().any(|output| matches!(output, ReplicaOutput::SetAside(_))), "{outputs:?}");
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
        let lineage = replica.lineage_of(&stream);
        let (stream_of, batch) = (stream.clone(), batch(0, 1));
        let append = Message::Append { epoch: 5, stream: stream_of, lineage, origin: None, batch };
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
    let counts = vec![(stream(), Position { lineage: 7, seq: 3 })];
    assert_eq!(follow_of(&outputs), Some(&Message::Follow { epoch: 5, lineage: 7, counts }));
    assert!(!outputs.iter().any(|output| matches!(output, ReplicaOutput::SetAside(_))), "{outputs:?}");
}

#[test]
fn a_region_that_begins_anew_begins_with_what_its_first_replica_has() {
    let mut replica = before();
    replica.configure(0, chain(5, 7, &[4], &[2]));
    persist(&mut replica);
    replica.configure(0, chain(6, 8, &[2], &[]));
    let outputs = persist(&mut replica);
    let record = Record::Lineage { lineage: 8, keeps: true };
    assert!(outputs.contains(&ReplicaOutput::Persist { record, ticket: None }), "{outputs:?}");
    assert_eq!(replica.has(), Has { lineage: 8, epoch: 6, events: 3 });
}

/// Whether the tail, with three events of lineage 7, ends the connection of replica 4 that follows with so many.
fn sends_away(lineage: u64, count: u64, hears_first: bool) -> bool {
    let mut tail = before();
    let joins = chain(2, 7, &[2], &[4]);
    if hears_first {
        tail.configure(0, joins.clone());
    }
    tail.connected(0, 8, Peer::In("here".to_owned(), Role::Replica(4)));
    tail.receive(
        0,
        8,
        Message::Follow { epoch: 2, lineage, counts: vec![(stream(), Position { lineage, seq: count })] },
    );
    let mut outputs = persist(&mut tail);
    if !hears_first {
        tail.configure(0, joins);
        outputs.extend(persist(&mut tail));
    }
    let sends = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Send(8, Message::Append { .. }));
    let ends = outputs.iter().any(|output| matches!(output, ReplicaOutput::Close(8, _)));
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

/// Of the other region's stream.
fn at(lineage: u64, seq: u64) -> Position {
    Position { lineage, seq }
}

/// The head and tail here, with five events of lineage 3 of the other region, from connection 6 to that one's tail; 9
/// is a listener of its stream.
fn has_far() -> Replica {
    let mut replica = before();
    replica.connected(0, 6, Peer::Out("there".to_owned(), 5));
    replica.receive(0, 6, told_of(3, 0, 5));
    let outputs = persist(&mut replica);
    assert_eq!(subscribed(&outputs), [(6, at(3, 0))]);
    replica.receive(0, 6, Message::Events { stream: far(), lineage: 3, batch: batch(0, 5) });
    replica.connected(0, 9, Peer::In("client".to_owned(), Role::Client(1)));
    persist(&mut replica);
    replica.receive(0, 9, Message::Listen { positions: vec![(far(), at(3, 5))], others: false });
    let listening = Message::Listening { positions: vec![(far(), at(3, 5))] };
    assert_eq!(sent(&persist(&mut replica), 9), [listening]);
    replica
}

fn subscribed(outputs: &[ReplicaOutput]) -> Vec<(u64, Position)> {
    let subscribe = |output: &ReplicaOutput| match output {
        ReplicaOutput::Send(to, Message::Subscribe { after, .. }) => Some((*to, *after)),
        _ => None,
    };
    outputs.iter().filter_map(subscribe).collect()
}

fn sent(outputs: &[ReplicaOutput], through: u64) -> Vec<Message> {
    let sent = |output: &ReplicaOutput| match output {
        ReplicaOutput::Send(to, message) if *to == through => Some(message.clone()),
        _ => None,
    };
    outputs.iter().filter_map(sent).collect()
}

#[test]
fn a_region_that_hears_of_a_later_lineage_puts_aside_what_it_has_and_takes_all_from_the_beginning() {
    let mut replica = has_far();
    // It has begun anew, and counts further already.
    replica.receive(0, 6, told_of(4, 0, 8));
    let outputs = persist(&mut replica);
    let Some(ReplicaOutput::SetAside(dropped)) =
        outputs.iter().find(|output| matches!(output, ReplicaOutput::SetAside(_)))
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((&*dropped.region, dropped.lineages.own, dropped.live()), ("there", 3, 5));
    let record = Record::Elsewhere { region: "there".to_owned(), lineage: 4 };
    assert!(outputs.contains(&ReplicaOutput::Persist { record, ticket: None }), "{outputs:?}");
    assert_eq!(subscribed(&outputs), [(6, at(4, 0))]);
    assert_eq!(replica.stream(&stream()).map(|state| state.last()), Some(3), "of its own it has all");
    assert_eq!(replica.age_ms(&far()), AGE_UNKNOWN);

    // What was on its way of the lineage before is left out, and what comes of this one goes to who listened to that
    // one.
    replica.receive(0, 6, Message::Events { stream: far(), lineage: 3, batch: batch(5, 1) });
    let events = Message::Events { stream: far(), lineage: 4, batch: batch(0, 8) };
    replica.receive(0, 6, events.clone());
    assert_eq!(sent(&persist(&mut replica), 9), [events]);
}

#[test]
fn a_region_takes_nothing_of_an_earlier_lineage_whoever_says_it_and_however_far_it_is() {
    let mut replica = has_far();
    replica.receive(0, 6, told_of(4, 0, 1));
    replica.receive(0, 6, Message::Events { stream: far(), lineage: 4, batch: batch(0, 1) });
    persist(&mut replica);
    // A third region, which has not heard of it.
    replica.connected(0, 7, Peer::Out("elsewhere".to_owned(), 5));
    replica.receive(0, 7, told_of(3, 0, 100));
    replica.closed(0, 6);
    replica.receive(0, 7, told_of(3, 0, 100));
    let outputs = persist(&mut replica);
    assert_eq!(subscribed(&outputs), []);
    assert_eq!(replica.stream(&far()).map(|state| state.last()), Some(1));
    // Over it comes what is of the later one, once it has heard.
    replica.receive(0, 7, told_of(4, 0, 2));
    assert_eq!(subscribed(&persist(&mut replica)), [(7, at(4, 1))]);
}

#[test]
fn a_listener_is_sent_all_of_a_later_lineage_than_it_was_in_and_nothing_of_an_earlier_one() {
    let mut replica = has_far();
    let mut listens = |position: Position| {
        replica.receive(0, 9, Message::Listen { positions: vec![(far(), position)], others: false });
        sent(&persist(&mut replica), 9)
    };
    let begins = |position| Message::Listening { positions: vec![(far(), position)] };
    let events = |after, count| Message::Events { stream: far(), lineage: 3, batch: batch(after, count) };
    assert_eq!(listens(at(3, 4)), [begins(at(3, 4)), events(4, 1)]);
    assert_eq!(listens(at(2, 4)), [begins(at(3, 0)), events(0, 5)]);
    assert_eq!(listens(at(0, 4)), [begins(at(3, 0)), events(0, 5)], "it is not known of which");
    assert_eq!(listens(Position::NOW), [begins(at(3, 5))]);
    assert_eq!(listens(at(4, 1)), [begins(at(4, 1))]);
}

#[test]
fn a_proxy_that_subscribed_in_an_earlier_lineage_is_sent_nothing_of_a_later_one_before_it_asks() {
    let mut replica = has_far();
    replica.connected(0, 8, Peer::In("third".to_owned(), Role::Replica(5)));
    replica.receive(0, 8, Message::Subscribe { stream: far(), after: at(3, 5) });
    replica.receive(0, 6, told_of(4, 0, 7));
    replica.receive(0, 6, Message::Events { stream: far(), lineage: 4, batch: batch(0, 7) });
    let is_events = |message: &Message| matches!(message, Message::Events { .. });
    assert!(!sent(&persist(&mut replica), 8).iter().any(is_events));
    replica.receive(0, 8, Message::Subscribe { stream: far(), after: at(4, 0) });
    assert!(sent(&persist(&mut replica), 8).iter().any(is_events));
}

#[test]
fn what_the_replica_behind_held_of_an_earlier_lineage_does_not_count_for_a_later_one() {
    let mut head = Replica::new(Config::new("here", 1));
    head.configure(0, chain(2, 7, &[1, 2], &[]));
    head.connected(0, 8, Peer::In("here".to_owned(), Role::Replica(2)));
    head.receive(0, 8, Message::Follow { epoch: 2, lineage: 7, counts: Vec::new() });
    head.connected(0, 6, Peer::Out("there".to_owned(), 5));
    let appended = |outputs: &[ReplicaOutput]| {
        let lineage = |message: Message| match message {
            Message::Append { lineage, batch, .. } => Some((lineage, batch.after, batch.last)),
            _ => None,
        };
        sent(outputs, 8).into_iter().find_map(lineage)
    };
    for (lineage, count) in [(3, 5), (4, 4)] {
        head.receive(0, 6, told_of(lineage, 0, count));
        head.receive(0, 6, Message::Events { stream: far(), lineage, batch: batch(0, count) });
        assert_eq!(appended(&head.outputs()), Some((lineage, 0, count)));
        if lineage == 3 {
            let counts = vec![(far(), at(3, 3))];
            head.receive(0, 8, Message::Held { epoch: 2, counts });
            assert_eq!(head.stream(&far()).map(|state| state.held()), Some(3));
        }
    }
    // Said before it heard of the later one.
    let held = |head: &mut Replica, position| {
        head.receive(0, 8, Message::Held { epoch: 2, counts: vec![(far(), position)] });
        head.stream(&far()).map(|state| state.held())
    };
    assert_eq!(held(&mut head, at(3, 5)), Some(0));
    assert_eq!(held(&mut head, at(4, 2)), Some(2));
}

#[test]
fn a_replica_takes_the_lineage_of_another_region_that_the_one_before_it_has() {
    let mut replica = Replica::new(Config::new("here", 2));
    replica.configure(0, chain(2, 7, &[1, 2], &[]));
    replica.connected(0, 8, Peer::Out("here".to_owned(), 1));
    let append = |replica: &mut Replica, lineage, count| {
        let (stream, batch) = (far(), batch(0, count));
        replica.receive(0, 8, Message::Append { epoch: 2, stream, lineage, origin: None, batch });
        (replica.lineage_of(&far()), replica.stream(&far()).map(|state| state.last()))
    };
    assert_eq!(append(&mut replica, 3, 5), (3, Some(5)));
    assert_eq!(append(&mut replica, 4, 2), (4, Some(2)));
    // It had not become that of all: who joins takes what the chain has.
    assert_eq!(append(&mut replica, 3, 5), (3, Some(5)));
    let outputs = replica.outputs();
    let held: Vec<_> = sent(&outputs, 8).into_iter().filter(|m| matches!(m, Message::Held { .. })).collect();
    assert_eq!(held, [Message::Held { epoch: 2, counts: vec![(far(), at(3, 5))] }]);
    // Of its own region there is one.
    let append = Message::Append { epoch: 2, stream: stream(), lineage: 9, origin: None, batch: batch(0, 1) };
    replica.receive(0, 8, append);
    assert_eq!(replica.stream(&stream()).map(|state| state.last()), None);
}

#[test]
fn a_replica_that_joins_with_another_lineage_of_another_region_is_sent_all_of_it_and_is_handed_over_to() {
    let mut tail = has_far();
    let far_of = |lineage, seq| vec![(far(), at(lineage, seq)), (stream(), Position { lineage: 7, seq: 3 })];
    tail.configure(0, chain(2, 7, &[2], &[4]));
    tail.connected(0, 8, Peer::In("here".to_owned(), Role::Replica(4)));
    tail.receive(0, 8, Message::Follow { epoch: 2, lineage: 7, counts: far_of(4, 9) });
    tail.receive(0, 8, Message::Held { epoch: 2, counts: far_of(4, 9) });
    let outputs = persist(&mut tail);
    assert!(!outputs.iter().any(|output| matches!(output, ReplicaOutput::Close(8, _))), "{outputs:?}");
    let append = Message::Append { epoch: 2, stream: far(), lineage: 3, origin: None, batch: batch(0, 5) };
    let sent_first = sent(&outputs, 8);
    assert!(
        sent_first.contains(&append) && !sent_first.contains(&Message::Token { epoch: 2 }),
        "{outputs:?}"
    );
    tail.receive(0, 8, Message::Held { epoch: 2, counts: far_of(3, 5) });
    assert!(sent(&persist(&mut tail), 8).contains(&Message::Token { epoch: 2 }));
}

#[test]
fn a_replica_does_not_wait_for_its_disk_while_what_it_had_of_another_region_is_put_aside() {
    let mut replica = before();
    hear_far(&mut replica);
    replica.receive(1_000, 6, told_of(4, 1_000, 2));
    replica.receive(1_000, 6, Message::Events { stream: far(), lineage: 4, batch: batch(0, 2) });
    let outputs = replica.outputs();
    assert!(outputs.iter().any(|output| matches!(output, ReplicaOutput::SetAside(_))), "{outputs:?}");
    assert_eq!(replica.stream(&far()).map(|state| state.last()), Some(2), "{outputs:?}");
    let mut now_ms = 1_000;
    let mut pass = |replica: &mut Replica, ms: u64| {
        for _ in 0..ms / 20 {
            now_ms += 20;
            replica.tick(now_ms, now_ms);
            replica.outputs();
        }
        replica.waits().disk_ms
    };
    assert_eq!(pass(&mut replica, 60_000), 0);
    // What takes so long is not that.
    assert!(pass(&mut replica, 300_000) > 30_000);
}
