//! What a fuzzer runs: a server's session under the bytes of a client, and what a client makes of a server's bytes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tailwater_access::Peer;
use tailwater_env::Instant;

use crate::connection::{ReadOp, RegionId, ScarOp};
use crate::frame::{
    self, CallAnswer, Decoder, FabricReply, FrameKind, HEADER_BYTES, Header, HelloReply, RegionKey, Side,
};
use crate::limits::{BATCH_BYTES_MAX, FRAME_BODY_MAX, LOGIN_BYTES_MAX, LOGIN_METHOD};
use crate::region::{Backing, Region};
use crate::server::{NextOutput, Session, SessionLimits, World};
use crate::service::{LoginDemand, Reply, ScarHit, Service};

/// What a client of a region has: some bytes to read, and a bucket at each even place.
struct Small {
    /// What is wanted of who has not logged in.
    login: Option<LoginDemand>,
}

fn region() -> &'static Arc<Region> {
    static REGION: OnceLock<Arc<Region>> = OnceLock::new();
    REGION.get_or_init(|| {
        Arc::new(
            Region::create_with_generation("fuzz", 4 << 10, 1, Backing::Private, 7).expect("there is memory"),
        )
    })
}

impl Service for Small {
    fn login_demand(&self, _: &Peer) -> Option<LoginDemand> {
        self.login.clone()
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        vec![Arc::clone(region())]
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        let data = (op.key_hash != 0).then_some((0, op.key_hash as u64, 100));
        op.bucket.is_multiple_of(2).then_some(ScarHit { bucket: (0, op.bucket, 64), data })
    }

    fn call(&self, _: &Peer, _: u16, _: Bytes, _: Reply) {}
}

/// The bytes of a client, in pieces of so many as the first one says: every answer is a whole frame, and what is held
/// of what came is no more than a frame and a piece. Whoever has to log in has no answer to a READ before.
pub fn session(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    // One of four has to log in, and one may.
    let (piece, is_required) = (first & 63, first & 64 != 0);
    let refusal = crate::Refusal { code: 1, message: "log in".to_owned() };
    let login = (first & 128 != 0).then_some(LoginDemand { is_required, refusal });
    let (service, mut knows_peer) = (Small { login }, first & 192 != 192);
    let now = Instant::default();
    let limits = SessionLimits {
        output_bytes_max: 64 << 10,
        hello_deadline: Duration::from_secs(1),
        login_deadline: Duration::from_secs(1),
        frame_deadline: Duration::from_secs(1),
        drain_deadline: Duration::from_secs(1),
        idle_deadline: None,
    };
    let mut messages = Vec::new();
    let (mut session, mut answers) = (Session::new(limits, now), Decoder::new(Side::Responses));
    let peer = Peer::anonymous("fuzz".to_owned());
    let mut calls = Vec::new();
    for bytes in data.chunks(4 * usize::from(piece) + 1) {
        let mut accepted = Vec::new();
        let mut submit = |call| {
            accepted.push(call);
            true
        };
        let mut log_in = |call| {
            messages.push(call);
            Ok(())
        };
        let mut world = World {
            now,
            service: &service,
            peer: &peer,
            doorbell: &|| 5,
            files: false,
            fabric: &|| Some(Arc::default()),
            submit: &mut submit,
            log_in: &mut log_in,
        };
        let mut received = session.receive(bytes, &mut world);
        // Who takes all of its answers is heard to the end.
        while received.is_ok() && take_output(&mut session, &mut answers, now) {
            received = session.answer(&mut world);
        }
        if let Err(why) = received {
            return assert!(!why.to_string().is_empty() && !why.complaint().is_empty());
        }
        calls.append(&mut accepted);
        for call in calls.drain(..) {
            let answer = CallAnswer::Done(call.payload);
            session.call_answered(call.request, &answer, now).expect("answers are taken");
            take_output(&mut session, &mut answers, now);
        }
        assert!(knows_peer || !session.is_admitted(), "it has not logged in");
        for message in messages.drain(..) {
            assert!(message.payload.len() <= LOGIN_BYTES_MAX, "a stranger is not listened to for long");
            // What it sends says how that goes on.
            let answer = match message.payload.first() {
                Some(b'y') => {
                    session.logged_in();
                    knows_peer = true;
                    CallAnswer::Done(message.payload)
                }
                Some(b'n') => {
                    session.refuse_login();
                    CallAnswer::Overloaded
                }
                _ => CallAnswer::Done(message.payload),
            };
            session.call_answered(message.request, &answer, now).expect("answers are taken");
            take_output(&mut session, &mut answers, now);
        }
        assert!(session.memory() <= 2 * (HEADER_BYTES + FRAME_BODY_MAX + BATCH_BYTES_MAX));
    }
}

/// Takes what the session has to send; whether that was something. All of it is frames of a server.
fn take_output(session: &mut Session, answers: &mut Decoder, now: Instant) -> bool {
    let sent = match session.next_output() {
        Some(NextOutput::Bytes(bytes) | NextOutput::LastBytes(bytes)) => {
            answers.feed(bytes);
            bytes.len()
        }
        Some(NextOutput::Stretch(_)) => unreachable!("its region has no file"),
        None => return false,
    };
    session.sent(sent, now);
    while let Some((header, body)) = answers.next().expect("a server sends frames") {
        unpack(&header, &body);
    }
    true
}

/// The bytes of a server, as a client reads them.
pub fn answers(data: &[u8]) {
    let mut decoder = Decoder::new(Side::Responses);
    decoder.feed(data);
    while let Ok(Some((header, body))) = decoder.next() {
        unpack(&header, &body);
    }
    assert!(frame::missing(data) <= HEADER_BYTES + FRAME_BODY_MAX);
}

/// Reads an answer as that to requests of several kinds.
fn unpack(header: &Header, body: &Bytes) {
    let count = usize::from(header.argument);
    match header.kind {
        FrameKind::HelloReply => {
            let Ok(hello) = HelloReply::parse(body.clone()) else { return };
            let mut again = Vec::new();
            hello.encode(&mut again, header.request);
            assert_eq!(HelloReply::parse(Bytes::from(again).slice(HEADER_BYTES..)), Ok(hello));
        }
        FrameKind::ReadReply => {
            // As long as the bytes that are there allow, so that some of them fit.
            for len in [0, 1, (body.len() / count.max(1)) as u32] {
                let ops = vec![ReadOp { region: RegionId(0), generation: 7, offset: 0, len }; count];
                let mut out = vec![0; count * len as usize];
                let mut results = Vec::new();
                if frame::unpack_read(header, body, &ops, &mut out, &mut results).is_ok() {
                    assert_eq!(results.len(), count);
                }
            }
        }
        FrameKind::ScarReply => {
            for apart in [0, 30, u32::MAX] {
                let ops = vec![ScarOp { bucket: 0, key_hash: 1, apart }; count];
                if let Ok(replies) = frame::unpack_scar(header, body, &ops) {
                    assert_eq!(replies.len(), count);
                }
            }
        }
        FrameKind::WatchReply => {
            frame::parse_watch_reply(body.clone());
        }
        FrameKind::CallReply => {
            if let Ok(answer) = CallAnswer::parse(header, body.clone()) {
                let mut again = Vec::new();
                answer.encode(&mut again, header.request);
                let again = CallAnswer::parse(header, Bytes::from(again).slice(HEADER_BYTES..));
                assert_eq!(again, Ok(answer));
            }
        }
        FrameKind::FabricReply => {
            if let Ok(reply) = FabricReply::parse(header, body.clone()) {
                let mut again = Vec::new();
                reply.encode(&mut again, header.request);
                let again = FabricReply::parse(header, Bytes::from(again).slice(HEADER_BYTES..));
                assert_eq!(again, Ok(reply));
            }
        }
        FrameKind::Hello
        | FrameKind::Read
        | FrameKind::Scar
        | FrameKind::Watch
        | FrameKind::Call
        | FrameKind::Fabric => unreachable!("no server sends that"),
    }
}

/// A client's bytes for [`session`], and a server's for [`answers`].
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let op = |len| ReadOp { region: RegionId(0), generation: 7, offset: 8, len };
    let scar = |bucket, key_hash| ScarOp { bucket, key_hash, apart: 30 };
    let mut asked = vec![63];
    frame::encode_hello(&mut asked, 0);
    let hello = asked.clone();
    frame::encode_read(&mut asked, 1, &[op(100), op(1)]);
    frame::encode_scar(&mut asked, 2, &[scar(64, 9), scar(3, 0)]);
    frame::encode_watch(&mut asked, 3, 4, Duration::from_secs(1));
    frame::encode_call(&mut asked, 4, 0x101, 5);
    asked.extend_from_slice(b"hello");
    frame::encode_fabric(&mut asked, 5);
    // Who has to log in, and who asks for something else before.
    let log_in = |message: &[u8], asked: &mut Vec<u8>| {
        frame::encode_call(asked, 1, LOGIN_METHOD, message.len());
        asked.extend_from_slice(message);
    };
    let mut logs_in = vec![255];
    frame::encode_hello_to_log_in(&mut logs_in, 0);
    let mut stranger = logs_in.clone();
    log_in(b"first", &mut logs_in);
    log_in(b"yes", &mut logs_in);
    frame::encode_hello(&mut logs_in, 2);
    frame::encode_read(&mut logs_in, 3, &[op(100)]);
    let mut refused = stranger.clone();
    log_in(b"no", &mut refused);
    frame::encode_read(&mut stranger, 1, &[op(100)]);
    frame::encode_hello(&mut refused, 2);
    let mut answered = Vec::new();
    let hello_reply = HelloReply {
        version: 2,
        scar: true,
        files: false,
        fabric: true,
        login: false,
        doorbell: 5,
        regions: vec![region().info(RegionId(0))],
    };
    hello_reply.encode(&mut answered, 0);
    frame::frame(&mut answered, FrameKind::ReadReply, 2, 1, |out| out.extend_from_slice(&[0, 1, 9, 9, 9]));
    frame::frame(&mut answered, FrameKind::ScarReply, 1, 2, |out| {
        frame::put_scar_result(out, frame::Status::Done, 3, 40);
        out.extend_from_slice(&[7; 43]);
    });
    frame::encode_watch_reply(&mut answered, 3, 6);
    CallAnswer::Done(Bytes::from_static(b"hello")).encode(&mut answered, 4);
    CallAnswer::Overloaded.encode(&mut answered, 5);
    let refusal = crate::Refusal { code: 3, message: "no".to_owned() };
    CallAnswer::Refused(refusal).encode(&mut answered, 6);
    let (key, provider) = (RegionKey { key: 9, base: 0 }, "tcp;ofi_rxm".to_owned());
    let fabric = FabricReply { provider, format: 1, name: vec![2; 16], keys: vec![Some(key), None] };
    fabric.encode(&mut answered, 7);
    (vec![hello, asked, logs_in, stranger, refused], vec![answered])
}
