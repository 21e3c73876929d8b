//! A replica joins a chain whatever becomes of its connections.

use bytes::Bytes;
use tailwater_broadcast::limits::UNSETTLED_BYTES_MAX;
use tailwater_broadcast::message::{Chain, Member, Message, Role};
use tailwater_broadcast::replica::{
    Config, ConnectionId, MESSAGE_BYTES, Peer, Replica, ReplicaOutput, WAITING_BYTES_MAX, size_of_message,
};
use tailwater_broadcast::{Collect, Content, Position, Stream, Writer};

/// In the chain's lineage.
fn at(seq: u64) -> Position {
    Position { lineage: 1, seq }
}

/// The only member of a chain, which replica 3 wants to join.
fn tail() -> Replica {
    let mut tail = Replica::new(Config::new("here", 1));
    let member = |id| Member { id, address: format!("replica-{id}") };
    let (members, joining) = (vec![member(1)], vec![member(3)]);
    tail.configure(0, Chain { epoch: 2, lineage: 1, region: "here".to_owned(), members, joining });
    tail.connected(0, 7, Peer::In("client".to_owned(), Role::Client(9)));
    tail
}

fn publish(tail: &mut Replica, stream: &Stream, client: u128) {
    publish_next(tail, stream, (client, 1), &Content::default());
    tail.outputs();
}

/// A client's event of that number.
fn publish_next(tail: &mut Replica, stream: &Stream, (client, first): (u128, u64), content: &Content) {
    let mut events = Writer::new(0);
    events.publish(content, None).unwrap();
    let batch = events.finish(0);
    tail.receive(0, 7, Message::Publish { stream: stream.clone(), client, answered: 0, first, batch });
}

/// What the tail sends replica 3 when it follows through a new connection, having all up to `count`.
fn followed(tail: &mut Replica, through: ConnectionId, stream: &Stream, count: u64) -> Vec<Message> {
    tail.connected(0, through, Peer::In("here".to_owned(), Role::Replica(3)));
    let counts = vec![(stream.clone(), at(count))];
    tail.receive(0, through, Message::Follow { epoch: 2, lineage: 1, counts: counts.clone() });
    if count > 0 {
        tail.receive(0, through, Message::Held { epoch: 2, counts });
    }
    let sent = tail.outputs().into_iter().filter_map(|output| match output {
        ReplicaOutput::Send(to, message) => (to == through).then_some(message),
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_joining_replica_whose_connection_broke_after_the_handover_is_handed_over_to_again() {
    let (mut tail, stream) = (tail(), Stream::parse("here/news").unwrap());
    publish(&mut tail, &stream, 5);
    for through in [10, 11] {
        let sent = followed(&mut tail, through, &stream, 1);
        assert!(sent.iter().any(|message| matches!(message, Message::Publishers { .. })), "{sent:?}");
        assert_eq!(sent.last(), Some(&Message::Token { epoch: 2 }));
        assert_eq!(tail.caught_up(), None);
        if through == 10 {
            tail.closed(0, through);
        }
    }
    tail.receive(0, 11, Message::Ready { epoch: 2 });
    assert_eq!(tail.caught_up(), Some(3));
}

#[test]
fn a_joining_replica_forgets_what_only_the_tail_gave_it_when_another_one_becomes_the_tail() {
    let stream = Stream::parse("here/news").unwrap();
    let chain = |epoch, members: &[u64]| {
        let member = |id: &u64| Member { id: *id, address: format!("replica-{id}") };
        let members = members.iter().map(member).collect();
        Chain { epoch, lineage: 1, region: "here".to_owned(), members, joining: vec![member(&3)] }
    };
    let mut joining = Replica::new(Config::new("here", 3));
    joining.configure(0, chain(2, &[1]));
    joining.connected(0, 7, Peer::Out("here".to_owned(), 1));
    for after in 0..2 {
        let mut events = Writer::new(after);
        events.publish(&Content::default(), None).unwrap();
        let (batch, origin, stream) = (events.finish(0), None, stream.clone());
        joining.receive(0, 7, Message::Append { epoch: 2, stream, lineage: 1, origin, batch });
    }
    // The tail hears that it has both, and settles the second one for that.
    let has = Message::Held { epoch: 2, counts: vec![(stream.clone(), at(2))] };
    assert!(
        joining.outputs().iter().any(|output| matches!(output, ReplicaOutput::Send(7, sent) if *sent == has))
    );
    joining.receive(0, 7, Message::Held { epoch: 2, counts: vec![(stream.clone(), at(1))] });
    let counts = |replica: &Replica| replica.stream(&stream).map(|state| (state.held(), state.last()));
    assert_eq!(counts(&joining), Some((1, 2)));
    joining.configure(0, chain(3, &[4, 1]));
    assert_eq!(counts(&joining), Some((1, 2)), "the same one has what it gave");
    joining.configure(0, chain(4, &[4, 1, 2]));
    assert_eq!(counts(&joining), Some((1, 1)));
}

#[test]
fn a_replica_with_events_that_the_chain_does_not_have_is_not_let_in() {
    let (mut tail, stream) = (tail(), Stream::parse("here/news").unwrap());
    publish(&mut tail, &stream, 5);
    tail.connected(0, 10, Peer::In("here".to_owned(), Role::Replica(3)));
    tail.receive(0, 10, Message::Follow { epoch: 2, lineage: 1, counts: vec![(stream.clone(), at(2))] });
    let outputs = tail.outputs();
    let is_refused = |output: &ReplicaOutput| matches!(output, ReplicaOutput::Close(10, why) if why.contains("here/news up to 2"));
    assert!(outputs.iter().any(is_refused), "{outputs:?}");
    assert!(
        !outputs.iter().any(|output| matches!(output, ReplicaOutput::Send(10, Message::Token { .. }))),
        "{outputs:?}"
    );
    assert!(followed(&mut tail, 11, &stream, 1).contains(&Message::Token { epoch: 2 }));
}

#[test]
fn a_joining_replica_does_not_apply_the_predicates_again_that_the_tail_has_applied() {
    let (mut tail, stream) = (tail(), Stream::parse("here/news").unwrap());
    for n in 0..200u64 {
        let mut events = Writer::new(0);
        let headers = vec![(Bytes::from_static(b"n"), Bytes::from((n % 100).to_string()))];
        let collect = Collect::Matching(format!("header.n = \"{n}\"").into());
        let collect = (n >= 100).then_some(&collect);
        events.publish(&Content { headers, ..Content::default() }, collect).unwrap();
        let (stream, batch) = (stream.clone(), events.finish(0));
        tail.receive(
            0,
            7,
            Message::Publish { stream: stream.clone(), client: 5, answered: n, first: n + 1, batch },
        );
        tail.outputs();
        while tail.stream(&stream).unwrap().history.is_due() {
            tail.tick(0, 1_000);
        }
    }
    let member = |id| Member { id, address: format!("replica-{id}") };
    let (members, joining) = (vec![member(1)], vec![member(3)]);
    let mut new = Replica::new(Config::new("here", 3));
    new.configure(0, Chain { epoch: 2, lineage: 1, region: "here".to_owned(), members, joining });
    new.connected(0, 8, Peer::Out("here".to_owned(), 1));
    for message in followed(&mut tail, 10, &stream, 0) {
        new.receive(0, 8, message);
    }
    new.receive(0, 8, Message::Held { epoch: 2, counts: vec![(stream.clone(), at(200))] });
    let history = &new.stream(&stream).unwrap().history;
    assert_eq!((history.last(), history.stats().predicates), (200, 0));
}

#[test]
fn a_follower_is_told_of_many_publishers_only_as_fast_as_it_reads() {
    let mut tail = tail();
    let streams = [1, 2].map(|number| Stream::parse(&format!("here/news-{number}")).unwrap());
    let publishers = 30_000;
    for stream in &streams {
        (0..publishers).for_each(|client| publish(&mut tail, stream, client));
    }
    tail.connected(0, 10, Peer::In("here".to_owned(), Role::Replica(3)));
    let counts: Vec<_> = streams.iter().map(|stream| (stream.clone(), at(publishers as u64))).collect();
    tail.receive(0, 10, Message::Follow { epoch: 2, lineage: 1, counts: counts.clone() });
    tail.receive(0, 10, Message::Held { epoch: 2, counts });
    let (mut told, mut waiting) = (0, 0);
    loop {
        let to_follower = tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(10, message) => Some(message),
            ReplicaOutput::Close(10, why) => panic!("{why}"),
            _ => None,
        });
        let sent: Vec<Message> = to_follower.collect();
        waiting += sent.iter().map(size_of_message).sum::<usize>();
        for message in &sent {
            if let Message::Publishers { numbers, .. } = message {
                told += numbers.len();
            }
        }
        if sent.contains(&Message::Token { epoch: 2 }) {
            break;
        }
        if sent.is_empty() {
            assert!((1..WAITING_BYTES_MAX + MESSAGE_BYTES).contains(&waiting), "{waiting} bytes wait");
            tail.drained(10, std::mem::take(&mut waiting));
        }
    }
    assert_eq!(told, streams.len() * publishers as usize);
}

/// Lets the tail send all that it wants to; what a connection is sent.
fn all_sent(tail: &mut Replica, through: ConnectionId) -> Vec<Message> {
    let mut all = Vec::new();
    loop {
        tail.drained(through, usize::MAX);
        let sent = tail.outputs().into_iter().filter_map(|output| match output {
            ReplicaOutput::Send(to, message) if to == through => Some(message),
            ReplicaOutput::Close(..) => panic!("{output:?}"),
            _ => None,
        });
        let before = all.len();
        all.extend(sent);
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn a_joining_replica_that_holds_nothing_of_what_it_is_sent_is_sent_a_bounded_part_and_keeps_nobody_waiting() {
    let (mut tail, stream) = (tail(), Stream::parse("here/news").unwrap());
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    let large = |tail: &mut Replica, first: u64| {
        let content = Content { payload: payload.clone(), ..Content::default() };
        publish_next(tail, &stream, (5, first), &content);
        all_sent(tail, 7)
    };
    let count = 2 * (UNSETTLED_BYTES_MAX >> 20) as u64;
    for first in 1..=count {
        large(&mut tail, first);
    }
    let appended =
        |sent: &[Message]| sent.iter().filter(|m| matches!(m, Message::Append { .. })).count() as u64;
    let mut has = 0;
    // Each time that it follows anew, with what it has in memory.
    for through in [10, 11, 12] {
        tail.connected(0, through, Peer::In("here".to_owned(), Role::Replica(3)));
        let counts = if has > 0 { vec![(stream.clone(), at(has))] } else { Vec::new() };
        tail.receive(0, through, Message::Follow { epoch: 2, lineage: 1, counts });
        has += appended(&all_sent(&mut tail, through));
        assert!((count / 4..=count / 2).contains(&has), "{has} of {count}");
        if through < 12 {
            tail.closed(0, through);
        }
    }
    // What is published is settled without it, and it gets the rest as it holds what it has.
    let answers = large(&mut tail, count + 1);
    assert!(answers.iter().any(|m| matches!(m, Message::Published { number, .. } if *number == count + 1)));
    let mut handed_over = false;
    while has < count + 1 || !handed_over {
        tail.receive(0, 12, Message::Held { epoch: 2, counts: vec![(stream.clone(), at(has))] });
        let sent = all_sent(&mut tail, 12);
        assert!(!handed_over && (appended(&sent) > 0 || has == count + 1), "{has} of {count}");
        has += appended(&sent);
        handed_over = sent.contains(&Message::Token { epoch: 2 });
        assert!(!handed_over || has == count + 1);
    }
}

#[test]
fn a_joining_replica_is_waited_for_only_when_it_holds_what_once_was_everything() {
    let (mut tail, stream) = (tail(), Stream::parse("here/news").unwrap());
    let publish = |tail: &mut Replica, stream: &Stream, first: u64| {
        publish_next(tail, stream, (5, first), &Content::default());
        let answered =
            |output: ReplicaOutput| matches!(output, ReplicaOutput::Send(7, Message::Published { .. }));
        tail.outputs().into_iter().any(answered)
    };
    assert!(publish(&mut tail, &stream, 1));
    tail.connected(0, 10, Peer::In("here".to_owned(), Role::Replica(3)));
    tail.receive(0, 10, Message::Follow { epoch: 2, lineage: 1, counts: Vec::new() });
    let sent = all_sent(&mut tail, 10);
    assert!(sent.iter().any(|message| matches!(message, Message::Append { .. })), "{sent:?}");
    // Its disk has none of it yet, for as long as that takes.
    for first in 2..10 {
        assert!(publish(&mut tail, &stream, first));
        assert!(!all_sent(&mut tail, 10).contains(&Message::Token { epoch: 2 }));
    }
    // Nor of a stream that there was not when it was sent everything.
    let new = Stream::parse("here/new").unwrap();
    assert!(publish(&mut tail, &new, 1));
    assert!(!all_sent(&mut tail, 10).contains(&Message::Token { epoch: 2 }));
    // What came since is on its way to its disk, which goes on.
    tail.receive(0, 10, Message::Held { epoch: 2, counts: vec![(stream.clone(), at(1))] });
    assert!(all_sent(&mut tail, 10).contains(&Message::Token { epoch: 2 }));
    assert!(!publish(&mut tail, &stream, 10), "it is waited for");
}
