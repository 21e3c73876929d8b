//! The bytes of messages and records.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tailwater_broadcast::message::{
    Advertised, Chain, Has, Member, Message, Origin, Reason, Role, VERSION, Waits,
};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::wire::WirePiece;
use tailwater_broadcast::{Batch, Collect, Content, Position, Stream, Writer, region};

fn samples() -> Vec<Message> {
    let stream = Stream::parse("eu/prices").unwrap();
    let mut writer = Writer::new(7);
    let content = Content { payload: Bytes::from_static(b"payload"), ..Content::default() };
    writer.publish(&content, Some(&Collect::KeepLast(9))).unwrap();
    let batch = writer.finish(9);
    let removed = Batch { removed: 8, ..batch.clone() };
    let position = Position { lineage: 8, seq: 9 };
    let counts = vec![(stream.clone(), position)];
    let member = Member { id: 4, address: "127.0.0.1:9400".to_owned() };
    let chain = Chain {
        epoch: 3,
        lineage: 9,
        region: "eu".to_owned(),
        members: vec![member.clone()],
        joining: vec![member.clone()],
    };
    let origin = Some(Origin { client: 5, first: 6 });
    let (region, text) = ("eu".to_owned(), "why".to_owned());
    let removed_of = stream.clone();
    let sharer = region::Member { id: 7, address: "a:1".into() };
    let waits = Waits { disk_ms: 5, before_ms: 6, next: Some((7, 8)) };
    let has = Has { lineage: 9, epoch: 11, events: 10 };
    vec![
        Message::Hello { version: VERSION, region: region.clone(), role: Role::Client(1 << 100) },
        Message::Hello { version: VERSION, region, role: Role::Replica(4) },
        Message::Chain(chain),
        Message::Publish { stream: stream.clone(), client: 5, answered: 4, first: 6, batch: batch.clone() },
        Message::Published { stream: stream.clone(), number: 1, seq: 2, repeated: true },
        Message::Refused { stream: stream.clone(), first: 1, reason: Reason::Invalid, text: text.clone() },
        Message::ListenRefused { reason: Reason::Limit, text },
        Message::Advertise {
            epoch: 2,
            answers: Some(3),
            counts: vec![Advertised { stream: stream.clone(), count: position, age_ms: 10 }],
        },
        Message::Advertise { epoch: 2, answers: None, counts: Vec::new() },
        Message::Ask { at: 3 },
        Message::Subscribe { stream: stream.clone(), after: position },
        Message::Unsubscribe { stream: stream.clone() },
        Message::Events { stream: stream.clone(), lineage: 8, batch: batch.clone() },
        Message::Follow { epoch: 2, lineage: 9, counts: counts.clone() },
        Message::Publishers { stream: stream.clone(), numbers: vec![(5, 6)] },
        Message::Append { epoch: 2, stream: stream.clone(), lineage: 8, origin, batch: batch.clone() },
        Message::Append { epoch: 2, stream: stream.clone(), lineage: 8, origin: None, batch: batch.clone() },
        Message::Applied { epoch: 2, stream: stream.clone(), last: position },
        Message::Held { epoch: 2, counts: counts.clone() },
        Message::Token { epoch: 2 },
        Message::Ready { epoch: 2 },
        Message::Share { member: sharer.clone(), positions: counts.clone() },
        Message::Region(region::Message::Gossip {
            me: sharer.clone(),
            view: vec![region::MessageSeen { member: sharer, rounds: 258 }],
            answer: true,
        }),
        Message::Region(region::Message::Notify(vec![region::RegionProgress {
            stream: stream.clone(),
            lineage: 8,
            held: 1,
            count: 2,
            hops: 3,
        }])),
        Message::Region(region::Message::Request {
            stream: stream.clone(),
            lineage: 8,
            after: 1,
            up_to: 2,
            bytes_max: 3,
        }),
        Message::Region(region::Message::Events {
            stream,
            lineage: 8,
            after: 1,
            held: 2,
            count: 3,
            hops: 4,
            stands: true,
            batches: vec![batch],
        }),
        Message::Bye,
        Message::Listen { positions: counts.clone(), others: true },
        Message::Listening { positions: counts },
        Message::Join { member, durable: true, started: false, has },
        Message::Alive { epoch: 2, caught_up: vec![4], waits, has },
        Message::Events { stream: removed_of.clone(), lineage: 8, batch: removed },
        Message::Removed { epoch: 2, stream: removed_of, last: position },
    ]
}

#[test]
fn an_append_whose_publisher_s_numbers_can_not_be_is_refused() {
    for (first, is_read) in [(0, false), (1, true), (u64::MAX, false)] {
        let mut writer = Writer::new(7);
        writer.publish(&Content::default(), None).unwrap();
        let (stream, origin) = (Stream::parse("eu/prices").unwrap(), Some(Origin { client: 5, first }));
        let batch = writer.finish(9);
        let append = Message::Append { epoch: 2, stream, lineage: 0, origin, batch };
        let mut out = BytesMut::new();
        append.encode(&mut out);
        assert_eq!(Message::decode(out.freeze().slice(4..)).is_ok(), is_read, "{first}");
    }
}

/// A frame as `formats/messages.txt` has it: the message's kind, then the bytes in hex.
fn golden_line(message: &Message) -> String {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    let debug = format!("{message:?}");
    let name = debug.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hex}")
}

#[test]
fn the_bytes_of_every_kind_of_message_never_change() {
    let golden: Vec<&str> = include_str!("formats/messages.txt").lines().collect();
    let samples = samples();
    assert_eq!(samples.len(), golden.len());
    let mut kinds = BTreeSet::new();
    for (message, golden) in samples.iter().zip(golden) {
        assert_eq!(golden_line(message), golden);
        kinds.extend(golden.split_once(' ').and_then(|(_, hex)| hex.get(8..10)));
    }
    assert_eq!(kinds.len(), 26, "a kind has no sample: {kinds:?}");
}

#[test]
fn the_bytes_of_every_kind_of_record_never_change() {
    let encoded = |record: &Record| {
        let mut out = BytesMut::new();
        record.encode(&mut out);
        out.freeze()
    };
    let held = Record::Held { stream: Stream::parse("eu/s").unwrap(), last: 0x0102 };
    assert_eq!(encoded(&held), [&[2, 4][..], b"eu/s", &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(encoded(&Record::Forgot), [4][..]);
    assert_eq!(encoded(&Record::Mark), [5][..]);
    let publishers =
        Record::Publishers { stream: Stream::parse("eu/s").unwrap(), numbers: vec![(0x0304, 0x0102)] };
    let number = [&[4, 3][..], &[0; 14], &[2, 1, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(encoded(&publishers), [&[3, 4][..], b"eu/s", &[1, 0, 0, 0], &number].concat());
    let mut writer = Writer::new(7);
    writer.publish(&Content { payload: Bytes::from_static(b"x"), ..Content::default() }, None).unwrap();
    let (stream, origin) = (Stream::parse("eu/s").unwrap(), Origin { client: 5, first: 6 });
    let stored = Record::Stored { stream, batch: writer.finish(8), origin: Some(origin) };
    let origin = [&[1, 5][..], &[0; 15], &[6], &[0; 7]].concat();
    let state = [0; 9];
    let batch =
        [&[7][..], &[0; 7], &[8], &[0; 7], &[1, 0, 0, 0], &state, &[3, 0, 0, 0], &[0, 1, b'x']].concat();
    assert_eq!(encoded(&stored), [&[1, 4][..], b"eu/s", &origin, &batch].concat());
    let applied = Record::Applied { stream: Stream::parse("eu/s").unwrap(), last: 0x0102 };
    assert_eq!(encoded(&applied), [&[6, 4][..], b"eu/s", &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
    let lineage = Record::Lineage { lineage: 0x0102, keeps: true };
    assert_eq!(encoded(&lineage), [7, 2, 1, 0, 0, 0, 0, 0, 0, 1][..]);
    let elsewhere = Record::Elsewhere { region: "us".to_owned(), lineage: 0x0102 };
    assert_eq!(encoded(&elsewhere), [&[8, 2][..], b"us", &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
    let removed = Record::Removed { stream: Stream::parse("eu/s").unwrap(), last: 0x0102 };
    assert_eq!(encoded(&removed), [&[10, 4][..], b"eu/s", &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(encoded(&Record::Member { epoch: 0x0102 }), [9, 2, 1, 0, 0, 0, 0, 0, 0][..]);
}

#[test]
fn a_refusal_s_text_is_cut_after_1000_bytes() {
    let refused = Message::ListenRefused { reason: Reason::NotAuthorized, text: "x".repeat(1001) };
    let mut out = BytesMut::new();
    refused.encode(&mut out);
    let read = Message::decode(out.freeze().slice(4..)).unwrap();
    assert_eq!(read, Message::ListenRefused { reason: Reason::NotAuthorized, text: "x".repeat(1000) });
}

#[test]
fn every_message_comes_back_and_every_cut_one_is_refused() {
    for message in samples() {
        let mut out = BytesMut::new();
        message.encode(&mut out);
        let frame = out.freeze().slice(4..);
        assert_eq!(frame.len(), message.size());
        assert_eq!(Message::decode(frame.clone()).unwrap(), message);
        for cut in 0..frame.len() {
            assert!(Message::decode(frame.slice(..cut)).is_err(), "{message:?} cut at {cut}");
        }
    }
}

proptest! {
    #[test]
    fn a_changed_frame_is_refused_or_read_without_a_panic(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let mut out = BytesMut::new();
        which.get(&samples()).encode(&mut out);
        let mut frame = out[4..].to_vec();
        for (at, to) in changes {
            let len = frame.len();
            frame[at % len] = to;
        }
        let _ = Message::decode(frame.into());
    }
}
