//! What publishers are answered.

use tailwater_broadcast::message::{Chain, Member, Message, PublisherId, Reason, Role};
use tailwater_broadcast::replica::{Config, Output, Peer, Replica};
use tailwater_broadcast::{Content, Stream, Writer};

/// The only member of a chain, with a publisher's connection.
fn head() -> Replica {
    let mut head = Replica::new(Config::new("here", 1));
    let members = vec![Member { id: 1, address: "replica-1".to_owned() }];
    head.configure(0, Chain { epoch: 1, region: "here".to_owned(), members, joining: Vec::new() });
    head.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
    head.outputs();
    head
}

/// What the head answers to one event.
fn publish(head: &mut Replica, stream: &Stream, client: PublisherId, first: u64) -> Message {
    let mut events = Writer::new(0);
    events.publish(&Content::default(), None).unwrap();
    head.receive(0, 7, Message::Publish { stream: stream.clone(), client, first, batch: events.finish(0) });
    let answer = head.outputs().into_iter().find_map(|output| match output {
        Output::Send(7, message) => Some(message),
        _ => None,
    });
    answer.expect("it is the only replica")
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
fn what_is_refused_begins_no_stream() {
    let (mut head, stream) = (head(), Stream::parse("here/news").unwrap());
    let refused = publish(&mut head, &stream, 1, 2);
    assert!(matches!(refused, Message::Refused { reason: Reason::Gap, .. }), "{refused:?}");
    assert_eq!(head.streams().count(), 0);
}
