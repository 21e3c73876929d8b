//! A replica of a region's proxy under the messages of whoever has connected to it: publishers, listeners, replicas of
//! other regions, and a tail of another region that it asks.

use bytes::{Bytes, BytesMut};
use tailwater_broadcast::message::{Chain, Member, Message, Role};
use tailwater_broadcast::replica::{Config, ConnectionId, Peer, Replica, ReplicaOutput, size_of_message};
use tailwater_broadcast::{Position, Stream};

/// Messages of one input.
const MESSAGES_MAX: usize = 64;

/// Who is connected, by the number of the connection.
fn peers() -> [Peer; 4] {
    [
        Peer::In("eu".to_owned(), Role::Client(9)),
        Peer::In("eu".to_owned(), Role::Client(10)),
        Peer::In("us".to_owned(), Role::Replica(3)),
        Peer::Out("us".to_owned(), 5),
    ]
}

/// Messages, each a byte that says from whom, and a frame. Whatever the replica sends is a message that is read as it
/// was.
pub(super) fn run(mut data: &[u8]) {
    let member = Member { id: 1, address: "127.0.0.1:1".to_owned() };
    let chain =
        Chain { epoch: 1, lineage: 1, region: "eu".to_owned(), members: vec![member], joining: Vec::new() };
    let mut replica = Replica::new(Config { stream_bytes_max: 64 << 10, ..Config::new("eu", 1) });
    replica.tick(0, 1_000_000);
    replica.configure(0, chain);
    for (connection, peer) in (0..).zip(peers()) {
        replica.connected(0, connection, peer);
    }
    for now_ms in (0..).step_by(50).take(MESSAGES_MAX) {
        replica.tick(now_ms, 1_000_000 + now_ms);
        carry_out(&mut replica, now_ms);
        let Some((from, rest)) = data.split_first() else { return };
        let Some((length, rest)) = rest.split_first_chunk() else { return };
        let Some((frame, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else { return };
        data = rest;
        match Message::decode(Bytes::copy_from_slice(frame)) {
            Ok(message) => replica.receive(now_ms, ConnectionId::from(*from % 4), message),
            Err(why) => return assert!(!why.to_string().is_empty()),
        }
        carry_out(&mut replica, now_ms);
    }
}

/// Sends what it has to send, and closes what it says.
fn carry_out(replica: &mut Replica, now_ms: u64) {
    loop {
        let outputs = replica.outputs();
        if outputs.is_empty() {
            return;
        }
        for output in outputs {
            match output {
                ReplicaOutput::Send(to, message) => {
                    let mut frame = BytesMut::new();
                    message.encode(&mut frame);
                    assert_eq!(Message::decode(frame.split_off(4).freeze()), Ok(message.clone()));
                    replica.drained(to, size_of_message(&message));
                }
                ReplicaOutput::Close(connection, why) => {
                    assert!(!why.is_empty());
                    replica.closed(now_ms, connection);
                }
                ReplicaOutput::Persist { ticket, .. } => {
                    if let Some(ticket) = ticket {
                        replica.persisted(now_ms, &ticket);
                    }
                }
                ReplicaOutput::Held { .. } | ReplicaOutput::SetAside(_) => {}
            }
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let stream = || Stream::parse("eu/prices").expect("a name");
    let batch = super::broadcast::batch;
    let publish =
        |first| Message::Publish { stream: stream(), client: 9, answered: first - 1, first, batch: batch() };
    let at = Position { lineage: 1, seq: 0 };
    let listen = Message::Listen { positions: vec![(stream(), at)], others: true };
    let elsewhere = Stream::parse("us/prices").expect("a name");
    let counts = vec![tailwater_broadcast::message::Advertised {
        stream: elsewhere.clone(),
        count: Position { lineage: 2, seq: 11 },
        age_ms: 5,
    }];
    let messages = [
        (0, publish(1)),
        (1, listen),
        (0, publish(5)),
        (2, Message::Subscribe { stream: stream(), after: at }),
        (3, Message::Advertise { epoch: 1, answers: None, counts }),
        (3, Message::Events { stream: elsewhere, lineage: 2, batch: batch() }),
        (2, Message::Ask { at: 7 }),
        (2, Message::Unsubscribe { stream: stream() }),
    ];
    let framed = messages.iter().map(|(from, message)| {
        let mut frame = BytesMut::from(&[*from][..]);
        message.encode(&mut frame);
        frame.to_vec()
    });
    let each: Vec<Vec<u8>> = framed.collect();
    let all = each.concat();
    each.into_iter().chain([all]).collect()
}
