//! Broadcasts: what publishers, listeners, replicas and members of a region send each other, and what a replica keeps.

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt;
use tailwater_broadcast::frame::{FrameReader, WireFrameError};
use tailwater_broadcast::limits::PREDICATE_BYTES_MAX;
use tailwater_broadcast::message::{Message, Reason, Role};
use tailwater_broadcast::record::Record;
use tailwater_broadcast::region::message::Message as MemberMessage;
use tailwater_broadcast::{Batch, Collect, Content, Kind, Position, Positions, Predicate, Stream, Writer};

/// The bytes of whoever connects to a replica: messages, until one is none.
pub(super) fn frames(data: &[u8]) {
    for sparing in [false, true] {
        let reader = FrameReader::new(data);
        let mut reader = if sparing { reader.sparing() } else { reader };
        loop {
            match reader.next().now_or_never().expect("all of it is there") {
                Ok(Some(message)) => message_there_and_back(&message),
                Ok(None) => break,
                Err(WireFrameError::Bad(why)) => {
                    assert!(!why.to_string().is_empty());
                    break;
                }
                Err(WireFrameError::Io(why)) => unreachable!("{why}"),
            }
        }
    }
}

fn message_there_and_back(message: &Message) {
    let mut frame = BytesMut::new();
    message.encode(&mut frame);
    let frame = frame.freeze();
    assert_eq!(frame.len() - 4, u32::from_le_bytes(*frame.first_chunk().expect("a length")) as usize);
    assert_eq!(Message::decode(frame.slice(4..)).as_ref(), Ok(message));
    if let Message::Publish { batch, .. } | Message::Events { batch, .. } = message {
        cut(batch);
    }
}

/// A batch that was taken is what its parts are, wherever it is cut.
fn cut(batch: &Batch) {
    let (mut events, mut seen) = (batch.events(), 0);
    let mut places = Vec::new();
    while events.advance().expect("it was checked") {
        let event = events.to_event();
        assert!(event.seq > seen && event.range > 0);
        seen = event.seq;
        // Some of them, and not all of many.
        if places.len() < 4 {
            places.push(event.seq);
        }
        if let Kind::Collection(_, Collect::Matching(text)) = &event.kind {
            let _ = Predicate::parse(text);
        }
    }
    for at in places {
        let (before, rest) = (batch.up_to(at), batch.rest(at));
        let parts = [before.expect("it was checked"), rest.expect("it was checked")];
        let parts: Vec<Batch> = parts.into_iter().flatten().collect();
        for part in &parts {
            part.check().expect("a part of what was checked");
        }
        let joined = Batch::joined(&parts).expect("they follow each other");
        assert_eq!((joined.after, joined.last, joined.count), (batch.after, batch.last, batch.count));
    }
}

fn stream() -> Stream {
    Stream::parse("eu/prices").expect("a name")
}

pub(super) fn batch() -> Batch {
    let mut writer = Writer::new(7);
    let content = Content {
        key: Some(Bytes::from_static(b"key")),
        headers: vec![(Bytes::from_static(b"name"), Bytes::from_static(b"value"))],
        payload: Bytes::from_static(b"payload"),
    };
    let matching = Collect::Matching(Bytes::from_static(b"key = \"a\" and seq < 9"));
    writer.publish(&content, None).expect("small");
    writer.publish(&content, Some(&Collect::SameKey)).expect("small");
    writer.publish(&Content::default(), Some(&Collect::KeepLast(3))).expect("small");
    writer.publish(&Content::default(), Some(&matching)).expect("small");
    writer.finish(11)
}

pub(super) fn frame_seeds() -> Vec<Vec<u8>> {
    let (stream, batch) = (stream(), batch());
    let hello = |role| Message::Hello { version: 1, region: "eu".to_owned(), role };
    let at = Position { lineage: 1, seq: 7 };
    let messages = [
        hello(Role::Client(3)),
        hello(Role::Replica(4)),
        Message::Publish { stream: stream.clone(), client: 9, answered: 0, first: 1, batch },
        Message::Published { stream: stream.clone(), number: 1, seq: 2, repeated: false },
        Message::Refused { stream: stream.clone(), first: 1, reason: Reason::Full, text: "no".to_owned() },
        Message::Advertise { epoch: 1, answers: Some(2), counts: Vec::new() },
        Message::Subscribe { stream: stream.clone(), after: at },
        Message::Unsubscribe { stream },
    ];
    let mut all = BytesMut::new();
    let mut each = Vec::new();
    for message in messages {
        let mut frame = BytesMut::new();
        message.encode(&mut frame);
        all.extend_from_slice(&frame);
        each.push(frame.to_vec());
    }
    each.push(all.to_vec());
    // One of each kind, with little in it.
    for kind in 0..40 {
        let mut frame = BytesMut::new();
        frame.put_u32_le(41);
        frame.put_u8(kind);
        frame.put_bytes(0, 40);
        each.push(frame.to_vec());
    }
    each
}

/// A message of a member of a region.
pub(super) fn members(data: &[u8]) {
    match MemberMessage::decode(Bytes::copy_from_slice(data)) {
        Ok(message) => {
            let mut written = BytesMut::new();
            message.encode(&mut written);
            assert_eq!(written.len(), message.size());
            assert_eq!(MemberMessage::decode(written.freeze()), Ok(message));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

pub(super) fn member_seeds() -> Vec<Vec<u8>> {
    let request =
        MemberMessage::Request { stream: stream(), lineage: 1, after: 7, up_to: 11, bytes_max: 1 << 20 };
    let events = MemberMessage::Events {
        stream: stream(),
        lineage: 1,
        after: 7,
        held: 11,
        count: 4,
        hops: 2,
        stands: true,
        batches: vec![batch(); 2],
    };
    let mut seeds: Vec<Vec<u8>> = [request, events, MemberMessage::Notify(Vec::new())]
        .iter()
        .map(|message| {
            let mut bytes = BytesMut::new();
            message.encode(&mut bytes);
            bytes.to_vec()
        })
        .collect();
    seeds.extend((0..8).map(|kind| [&[kind][..], &[0; 60]].concat()));
    seeds
}

/// A token with which a listener goes on.
pub(super) fn tokens(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Positions::parse(text) {
        Ok(positions) => {
            let token = positions.token();
            assert_eq!(Positions::parse(&token).expect("a token").token(), token);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

pub(super) fn token_seeds() -> Vec<Vec<u8>> {
    let mut some = Positions::of([stream()]);
    some.begin(&stream(), Position { lineage: 2, seq: 70 });
    [some, Positions::start(), Positions::now([stream()])]
        .iter()
        .map(|positions| positions.token().into_bytes())
        .collect()
}

/// The text of a predicate: it is written as one that is the same, and holds for the same events.
pub(super) fn predicates(data: &[u8]) {
    let predicate = match Predicate::parse(data) {
        Ok(predicate) => predicate,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let text = predicate.to_string();
    // Bytes that are no text are four times as long when they are written.
    if text.len() > PREDICATE_BYTES_MAX {
        return;
    }
    let again = Predicate::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{text}: {why}"));
    assert_eq!(again, predicate, "{text}");
    let mut events = batch().events();
    while events.advance().expect("it was checked") {
        let event = events.to_event();
        assert_eq!(again.holds(&event), predicate.holds(&event));
    }
    let _ = (predicate.pins(), predicate.is_stable(true), predicate.is_stable(false));
    for facts in predicate.branches() {
        predicate.holds_given(facts);
    }
}

pub(super) fn predicate_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "true",
        r#"key = "user/7""#,
        r#"key in ("a", "b") and header.type = "temp""#,
        r#"header("content-type") starts with "image/" and time < 1767225600000"#,
        "not (header.keep is not missing) and seq < 1000000",
        r#"key not in ("\x00\"\\", "\n\t") or (seq >= 1 and seq != 5 or time <= 18446744073709551615)"#,
        r#"not not (false or key > "a" and key is missing)"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A record of a replica's journal.
pub(super) fn records(data: &[u8]) {
    match Record::decode(Bytes::copy_from_slice(data)) {
        Ok(record) => {
            let mut written = BytesMut::new();
            record.encode(&mut written);
            if let Record::Stored { batch, .. } = &record {
                cut(batch);
            }
            let _ = record.region();
            assert_eq!(Record::decode(written.freeze()), Ok(record));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let stored = Record::Stored { stream: stream(), origin: None, batch: batch() };
    let held = Record::Held { stream: stream(), last: 9 };
    let publishers = Record::Publishers { stream: stream(), numbers: vec![(3, 9)] };
    let mut seeds: Vec<Vec<u8>> = [stored, held, publishers, Record::Forgot, Record::Mark]
        .iter()
        .map(|record| {
            let mut bytes = BytesMut::new();
            record.encode(&mut bytes);
            bytes.to_vec()
        })
        .collect();
    seeds.extend((0..16).map(|kind| [&[kind][..], &[0; 60]].concat()));
    seeds
}
