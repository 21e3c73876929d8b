//! What a peer can make a replica hold is bounded.

use bytes::Bytes;
use tailwater_broadcast::message::{Chain, Member, Message, Reason, Role};
use tailwater_broadcast::replica::stream::UNSETTLED_BYTES_MAX;
use tailwater_broadcast::replica::{Config, Output, Peer, Replica};
use tailwater_broadcast::{Content, Stream, Writer};

#[test]
fn publishers_are_refused_while_too_much_waits_for_a_replica_that_holds_nothing() {
    let mut head = Replica::new(Config::new("here", 1));
    let member = |id| Member { id, address: format!("replica-{id}") };
    let members = vec![member(1), member(2)];
    head.configure(0, Chain { epoch: 1, region: "here".to_owned(), members, joining: Vec::new() });
    head.connected(0, 7, Peer::In("client".to_owned(), Role::Client(3)));
    let stream = Stream::parse("here/news").unwrap();
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    let mut refused = None;
    for first in 1..=2 * (UNSETTLED_BYTES_MAX >> 20) as u64 {
        let mut events = Writer::new(0);
        events.publish(&Content { payload: payload.clone(), ..Content::default() }, None).unwrap();
        let publish = Message::Publish { stream: stream.clone(), client: 3, first, batch: events.finish(1) };
        head.receive(0, 7, publish);
        refused = head.outputs().into_iter().find_map(|output| match output {
            Output::Send(7, Message::Refused { first, reason, .. }) => Some((first, reason)),
            _ => None,
        });
        if refused.is_some() {
            break;
        }
    }
    let (first, reason) = refused.expect("some publish was refused");
    assert_eq!(reason, Reason::Limit);
    assert_eq!(head.stream(&stream).unwrap().last(), first - 1, "what came before is on its way");
}
