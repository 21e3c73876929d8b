//! What publishers are answered.

use tailwater_broadcast::message::{Chain, Member, Message, PublisherId, Reason, Role};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::recovered::RecoveredStream;
use tailwater_broadcast::replica::{Config, Lineages, Peer, Replica, ReplicaOutput};
use tailwater_broadcast::{Collect, Content, HistoryOptions, Stream, Writer};

/// The only member of a chain, with a publisher's connection.
fn head() -> Replica {
    let mut head = Replica::new(Config::new("here", 1));
    let members = vec![Member { id: 1, address: "replica-1".to_owned() }];
    head.configure(
        0,
        Chain { epoch: 1, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() },
    );
    head.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
    head.outputs();
    head
}

/// One event of a publisher all of whose events before it were answered.
fn event(stream: &Stream, client: PublisherId, answered: u64, first: u64) -> Message {
    let mut events = Writer::new(0);
    events.publish(&Content::default(), None).unwrap();
    Message::Publish { stream: stream.clone(), client, answered, first, batch: events.finish(0) }
}

/// What a replica answers its publisher now.
fn answer(replica: &mut Replica) -> Option<Message> {
    replica.outputs().into_iter().find_map(|output| match output {
        ReplicaOutput::Send(7, message) => Some(message),
        _ => None,
    })
}

/// What the head answers to one event.
fn publish(head: &mut Replica, stream: &Stream, client: PublisherId, first: u64) -> Message {
    head.receive(0, 7, event(stream, client, 0, first));
    answer(head).expect("it is the only replica")
}

#[test]
fn a_retry_of_what_was_published_is_answered_a_number_that_is_not_smaller() {
    let (mut head, stream) = (head(), Stream::parse("here/news").unwrap());
    let published = |seq, repeated| Message::Published { stream: stream.clone(), number: 1, seq, repeated };
    assert_eq!(publish(&mut head, &stream, 1, 1), published(1, false));
    assert_eq!(publish(&mut head, &stream, 2, 1), published(2, false));
    assert_eq!(publish(&mut head, &stream, 1, 1), published(2, true));
}

#[test]
fn numbers_that_a_publisher_can_not_have_are_refused_whatever_it_says_was_answered() {
    let (mut head, stream) = (head(), Stream::parse("here/news").unwrap());
    for (answered, first) in [(u64::MAX, u64::MAX), (u64::MAX - 1, u64::MAX)] {
        head.receive(0, 7, event(&stream, 1, answered, first));
        let refused = answer(&mut head);
        assert!(matches!(refused, Some(Message::Refused { reason: Reason::Invalid, .. })), "{refused:?}");
    }
    assert_eq!(head.streams().count(), 0);
}

#[test]
fn what_is_refused_begins_no_stream() {
    let (mut head, stream) = (head(), Stream::parse("here/news").unwrap());
    let refused = publish(&mut head, &stream, 1, 2);
    assert!(matches!(refused, Message::Refused { reason: Reason::Gap, .. }), "{refused:?}");
    assert_eq!(head.streams().count(), 0);
}

#[test]
fn an_event_of_another_region_s_stream_is_refused_for_good_by_the_head_and_by_others() {
    let stream = Stream::parse("there/news").unwrap();
    for members in [&[2][..], &[1, 2], &[]] {
        let mut replica = member(2, members);
        let refused = publish(&mut replica, &stream, 1, 1);
        let Message::Refused { reason: Reason::Invalid, first: 1, text, .. } = refused else {
            panic!("{refused:?}")
        };
        assert!(text.contains("region there") && text.contains("region here"), "{text}");
        assert_eq!(replica.streams().count(), 0);
    }
}

/// A replica of a chain, with a publisher's connection.
fn member(id: u64, members: &[u64]) -> Replica {
    let mut replica = Replica::new(Config::new("here", id));
    replica.configure(0, chain(1, members));
    replica.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
    replica.outputs();
    replica
}

fn chain(epoch: u64, members: &[u64]) -> Chain {
    let members = members.iter().map(|&id| Member { id, address: format!("replica-{id}") }).collect();
    Chain { epoch, lineage: 1, region: "here".to_owned(), members, joining: Vec::new() }
}

#[test]
fn an_event_that_comes_again_to_a_head_which_was_removed_and_then_to_one_that_has_it_appears_once() {
    let stream = Stream::parse("here/news").unwrap();
    // The chain without the head that does not know it, whose last member is left.
    let mut last = member(3, &[3]);
    for first in 1..=6 {
        let published =
            Message::Published { stream: stream.clone(), number: first, seq: first, repeated: false };
        assert_eq!(publish(&mut last, &stream, 5, first), published);
    }
    // Its publisher was answered all but the last, and the old head has none of it.
    let mut old = member(1, &[1]);
    old.configure(0, chain(2, &[1, 2, 3]));
    old.outputs();
    old.receive(0, 7, event(&stream, 5, 5, 6));
    assert_eq!(answer(&mut old), None, "it refuses nothing that others may have, and acknowledges nothing");
    old.configure(0, chain(3, &[3]));
    let told = answer(&mut old);
    assert!(
        matches!(told, Some(Message::Chain(_) | Message::Refused { reason: Reason::NotHead, .. })),
        "{told:?}"
    );
    assert_eq!(old.stream(&stream).unwrap().last(), 0, "it comes to nothing there");
    last.receive(0, 7, event(&stream, 5, 5, 6));
    let repeated = Message::Published { stream: stream.clone(), number: 6, seq: 6, repeated: true };
    assert_eq!(answer(&mut last), Some(repeated));
}

#[test]
fn the_first_event_that_is_not_answered_may_follow_what_the_chain_forgot_and_a_later_one_may_not() {
    let (mut head, stream) = (head(), Stream::parse("here/news").unwrap());
    head.receive(0, 7, event(&stream, 1, 5, 7));
    let refused = answer(&mut head);
    assert!(matches!(refused, Some(Message::Refused { reason: Reason::Gap, first: 7, .. })), "{refused:?}");
    for (first, seq) in [(6, 1), (7, 2)] {
        head.receive(0, 7, event(&stream, 1, 5, first));
        let published = Message::Published { stream: stream.clone(), number: first, seq, repeated: false };
        assert_eq!(answer(&mut head), Some(published));
    }
    // Whatever it says: what it repeats is left out.
    head.receive(0, 7, event(&stream, 1, u64::MAX, 7));
    let repeated = Message::Published { stream: stream.clone(), number: 7, seq: 2, repeated: true };
    assert_eq!(answer(&mut head), Some(repeated));
}

/// A replica that becomes the only member of the next chain, with what is left in another one's history.
fn takes_over(id: u64, of: &Replica, stream: &Stream) -> Replica {
    let mut recovered = RecoveredStream::new(HistoryOptions::default());
    let history = &of.stream(stream).unwrap().history;
    let mut after = 0;
    while let Some(batch) = history.read(after, u64::MAX, 1000) {
        after = batch.last;
        recovered.apply(Record::Stored { stream: stream.clone(), batch, origin: None }).unwrap();
    }
    let lineages = Lineages { own: 1, ..Lineages::default() };
    let mut replica = Replica::recovered(Config::new("here", id), lineages, recovered.into_streams());
    replica.configure(0, chain(id, &[id]));
    replica.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
    replica.outputs();
    replica
}

#[test]
fn no_event_has_an_earlier_time_than_the_one_before_it_whichever_head_s_clock_is_ahead() {
    let stream = Stream::parse("here/news").unwrap();
    let publish = |head: &mut Replica, wall_ms: u64, client, collect: Option<Collect>| {
        let content = Content { key: Some("key".into()), ..Content::default() };
        let mut events = Writer::new(0);
        events.publish(&content, collect.as_ref()).unwrap();
        let batch = events.finish(0);
        head.tick(0, wall_ms);
        let publish = Message::Publish { stream: stream.clone(), client, answered: 0, first: 1, batch };
        head.receive(0, 7, publish);
        let answer = answer(head);
        assert!(matches!(answer, Some(Message::Published { .. })), "{answer:?}");
        head.stream(&stream).unwrap().time_ms()
    };
    let mut first = member(1, &[1]);
    assert_eq!(publish(&mut first, 1000, 11, None), 1000);
    let mut second = takes_over(2, &first, &stream);
    assert_eq!(publish(&mut second, 900, 12, Some(Collect::SameKey)), 1000);
    // It has a tombstone for the first event, and admits whatever does not bring that back.
    let mut third = takes_over(3, &second, &stream);
    assert_eq!(publish(&mut third, 800, 13, Some(Collect::OlderThan(950))), 1000);
    let history = &third.stream(&stream).unwrap().history;
    let mut events: Vec<(u64, u64)> = Vec::new();
    while let Some(batch) = history.read(events.len() as u64, u64::MAX, 1000) {
        events.extend(batch.events().map(|event| event.unwrap()).map(|event| (event.seq, event.time_ms)));
    }
    assert_eq!(
        events,
        [(1, 1000), (2, 1000), (3, 1000)],
        "a tombstone, what explains it, and what removes neither"
    );
}
