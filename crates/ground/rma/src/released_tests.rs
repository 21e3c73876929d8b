//! Frames that release 0.1.0 said and heard: today's code reads them, and says the same in the same bytes.
//! `crates/cache/cache/tests/data/0.1.0/make` has recorded them.

use bytes::Bytes;

use crate::connection::{OpError, ReadOp, ScarOp};
use crate::frame::{
    CallAnswer, Decoder, FrameError, FrameKind, Header, HelloReply, Request, Side, VERSION, encode_call,
    encode_hello, encode_read, encode_scar, encode_watch, encode_watch_reply, parse_watch_reply, unpack_read,
    unpack_scar,
};

const FRAMES: &str = include_str!("../tests/data/0.1.0/frames");

/// A frame that was recorded at a step.
struct RecordedFrame {
    step: &'static str,
    side: Side,
    bytes: Vec<u8>,
}

fn recorded() -> Vec<RecordedFrame> {
    let parse = |line: &'static str| {
        let [step, direction, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let side = if direction == ">" { Side::Requests } else { Side::Responses };
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        RecordedFrame { step, side, bytes: (0..hex.len()).step_by(2).map(byte).collect() }
    };
    FRAMES.lines().map(parse).collect()
}

fn whole(frame: &RecordedFrame) -> (Header, Bytes) {
    let mut decoder = Decoder::new(frame.side);
    decoder.feed(&frame.bytes);
    let whole = decoder.next().unwrap_or_else(|error| panic!("{}: {error}", frame.step));
    assert_eq!(decoder.held(), 0, "{}", frame.step);
    whole.unwrap_or_else(|| panic!("{}: a part of a frame", frame.step))
}

/// The request and the response of a step.
fn step(name: &str) -> [(Header, Bytes); 2] {
    let of = |side| {
        let all = recorded();
        whole(all.iter().find(|frame| frame.step == name && frame.side == side).expect("it was recorded"))
    };
    [of(Side::Requests), of(Side::Responses)]
}

#[test]
fn every_frame_of_release_0_1_0_is_read_and_would_be_written_byte_for_byte_today() {
    let frames = recorded();
    assert_eq!(frames.len(), 2 * 13, "as many steps, each with a request and a response");
    for frame in &frames {
        let (header, body) = whole(frame);
        let mut again = Vec::new();
        let id = header.request;
        if frame.side == Side::Requests {
            match Request::parse(&header, body).expect("it is well-formed") {
                Request::Hello { lowest, highest, logs_in: false } => {
                    assert_eq!((lowest, highest), (VERSION, VERSION));
                    encode_hello(&mut again, id);
                }
                Request::Read(ops) => encode_read(&mut again, id, &ops.iter().collect::<Vec<_>>()),
                Request::Scar(ops) => encode_scar(&mut again, id, &ops.iter().collect::<Vec<_>>()),
                Request::Watch { last_seen, deadline } => encode_watch(&mut again, id, last_seen, deadline),
                Request::Call { method, payload } => {
                    encode_call(&mut again, id, method, payload.len());
                    again.extend_from_slice(&payload);
                }
                Request::Hello { .. } => panic!("{}: the release knows no logins", frame.step),
                Request::Fabric => panic!("{}: the release does not know libfabric", frame.step),
            }
        } else {
            match header.kind {
                FrameKind::HelloReply => HelloReply::parse(body).expect("well-formed").encode(&mut again, id),
                FrameKind::WatchReply => encode_watch_reply(&mut again, id, parse_watch_reply(body)),
                FrameKind::CallReply => {
                    CallAnswer::parse(&header, body).expect("known").encode(&mut again, id)
                }
                // What they are an answer to is looked at below.
                FrameKind::ReadReply | FrameKind::ScarReply => continue,
                kind => panic!("{}: {kind:?} is no response", frame.step),
            }
        }
        assert_eq!(again, frame.bytes, "{}", frame.step);
    }
}

#[test]
fn what_release_0_1_0_answered_means_today_what_it_meant() {
    let [_, (_, body)] = step("hello");
    let hello = HelloReply::parse(body).expect("well-formed");
    assert_eq!((hello.version, hello.scar, hello.files), (VERSION, true, false));
    assert_eq!(hello.regions.iter().map(|region| region.kind).collect::<Vec<_>>(), [1, 2]);

    let [(header, request), (answer, body)] = step("read");
    let Ok(Request::Read(ops)) = Request::parse(&header, request) else { panic!("a READ") };
    let ops: Vec<ReadOp> = ops.iter().collect();
    let (mut out, mut results) = (vec![0; 384 + 64 + 64], Vec::new());
    unpack_read(&answer, &body, &ops, &mut out, &mut results).expect("well-formed");
    assert_eq!(results, [Ok(()), Err(OpError::OutOfBounds), Err(OpError::StaleRegion)]);
    assert_eq!(out[..8], 11_u64.to_le_bytes(), "a bucket begins with the cell's configuration");

    let [(header, request), (answer, body)] = step("scar");
    let Ok(Request::Scar(ops)) = Request::parse(&header, request) else { panic!("a SCAR") };
    let ops: Vec<ScarOp> = ops.iter().collect();
    let replies = unpack_scar(&answer, &body, &ops).expect("well-formed");
    let [Some(Ok(held)), Some(Ok(missed)), Some(Err(OpError::Unsupported))] = &replies[..] else {
        panic!("{replies:?}");
    };
    assert_eq!((held.bucket.len(), held.head.len(), &held.data[..]), (384, 38, &b"again"[..]));
    assert_eq!((missed.bucket.len(), missed.head.len(), missed.data.len()), (384, 0, 0));

    for (name, code) in [("malformed", 1), ("other-config", 2), ("no-method", 3), ("ahead", 5)] {
        let [_, (answer, body)] = step(name);
        let Ok(CallAnswer::Refused(refusal)) = CallAnswer::parse(&answer, body) else { panic!("{name}") };
        assert_eq!(refusal.code, code, "{name}");
        assert!(!refusal.message.is_empty(), "{name}");
    }
}

#[test]
fn frames_of_another_version_are_refused_by_their_version_before_anything_else_of_them_is_read() {
    for frame in recorded() {
        for version in [VERSION - 1, VERSION + 1, u8::MAX] {
            let mut bytes = frame.bytes.clone();
            bytes[4] = version;
            // Whatever a later version means by the rest.
            bytes[5] ^= 0x40;
            let mut decoder = Decoder::new(frame.side);
            decoder.feed(&bytes);
            let refused = decoder.next().expect_err("it is of another version");
            assert_eq!(refused, FrameError::Version(version), "{}", frame.step);
            assert!(refused.to_string().contains(&version.to_string()), "{refused}");
        }
    }
}
