use std::sync::Arc;

use super::*;
use crate::connection::{ReadOp, RegionId};
use crate::limits::CALL_BYTES_MAX;
use crate::region::{Backing, Region};
use crate::service::{Reply, ScarHit};

struct Nothing(Arc<Region>);

impl Service for Nothing {
    fn regions(&self) -> Vec<Arc<Region>> {
        vec![self.0.clone()]
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        // Key hash 7 stands for an index entry that points out of the region.
        let offset = if op.key_hash == 7 { u64::MAX - 3 } else { 0 };
        Some(ScarHit { bucket: (0, 0, 64), data: Some((0, offset, 100)) })
    }

    fn call(&self, _peer: &Peer, _method: u16, _payload: Bytes, _reply: Reply) {}
}

fn encode_call(out: &mut Vec<u8>, request: u64, method: u16, payload: &[u8]) {
    frame::encode_call(out, request, method, payload.len());
    out.extend_from_slice(payload);
}

fn limits() -> SessionLimits {
    SessionLimits {
        output_bytes_max: 10_000,
        hello_deadline: Duration::from_secs(1),
        frame_deadline: Duration::from_secs(2),
        drain_deadline: Duration::from_secs(3),
        idle_deadline: Some(Duration::from_secs(4)),
    }
}

/// A session in a world of its own, where time is what the test says.
struct Test {
    session: Session,
    service: Nothing,
    doorbell: u32,
    fabric: Option<Arc<FabricReply>>,
    now: Instant,
    calls: Vec<Call>,
    accepts_calls: bool,
}

impl Test {
    fn new() -> Self {
        let region = Region::create("test", 1 << 20, 0, Backing::Private).expect("there is memory");
        Self {
            session: Session::new(limits(), Instant::default()),
            service: Nothing(Arc::new(region)),
            doorbell: 5,
            fabric: None,
            now: Instant::default(),
            calls: Vec::new(),
            accepts_calls: true,
        }
    }

    fn greeted() -> Self {
        let mut test = Self::new();
        test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
        assert_eq!(test.take_all().len(), 1);
        test
    }

    fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), SessionEnded> {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        self.send_bytes(&bytes)
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SessionEnded> {
        self.step(|session, world| session.receive(bytes, world))
    }

    fn step(
        &mut self,
        step: impl FnOnce(&mut Session, &mut World<'_>) -> Result<(), SessionEnded>,
    ) -> Result<(), SessionEnded> {
        let (calls, accepts, doorbell) = (&mut self.calls, self.accepts_calls, self.doorbell);
        let fabric = self.fabric.clone();
        let mut submit = |call| {
            if accepts {
                calls.push(call);
            }
            accepts
        };
        let mut world = World {
            now: self.now,
            service: &self.service,
            peer: &Peer::anonymous("test".to_owned()),
            doorbell: &|| doorbell,
            files: false,
            fabric: &|| fabric.clone(),
            submit: &mut submit,
        };
        step(&mut self.session, &mut world)
    }

    /// Everything sent so far, as frames.
    fn take_all(&mut self) -> Vec<(frame::Header, Bytes)> {
        let mut decoder = Decoder::new(Side::Responses);
        let sent = self.unsent().len();
        decoder.feed(self.unsent());
        self.session.sent(sent, self.now);
        std::iter::from_fn(|| decoder.next().expect("a session sends well-formed frames")).collect()
    }

    /// Its region has no file, so all of it is bytes, and in one piece.
    fn unsent(&self) -> &[u8] {
        match self.session.next_output() {
            Some(NextOutput::LastBytes(bytes)) => bytes,
            Some(other) => panic!("{other:?}"),
            None => &[],
        }
    }

    fn pass(&mut self, time: Duration) -> Result<(), SessionEnded> {
        self.now = self.now + time;
        self.session.look(self.doorbell, self.now);
        self.session.check_deadlines(self.now)
    }

    fn op(&self, len: u32) -> ReadOp {
        ReadOp { region: RegionId(0), generation: self.service.0.generation(), offset: 0, len }
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn who_does_not_say_hello_first_is_dropped() {
    let mut test = Test::new();
    let ended = test.send(|out| frame::encode_watch(out, 0, 0, SECOND));
    assert_eq!(ended, Err(SessionEnded::NoHello));
}

#[test]
fn who_says_hello_twice_is_dropped() {
    let mut test = Test::greeted();
    assert_eq!(test.send(|out| frame::encode_hello(out, 0)), Err(SessionEnded::HelloAgain));
}

#[test]
fn who_speaks_only_other_versions_is_dropped() {
    let mut test = Test::new();
    let mut hello = Vec::new();
    frame::encode_hello(&mut hello, 0);
    hello[frame::HEADER_BYTES + 4..][..2].copy_from_slice(&[3, 9]);
    assert_eq!(test.send_bytes(&hello), Err(SessionEnded::Version { lowest: 3, highest: 9 }));
}

#[test]
fn who_says_nothing_is_dropped_after_the_hello_deadline() {
    let mut test = Test::new();
    assert_eq!(test.session.next_deadline(), Some(Instant::default() + SECOND));
    assert_eq!(test.pass(SECOND / 2), Ok(()));
    assert_eq!(test.pass(SECOND / 2), Err(SessionEnded::Silent(SECOND)));
}

#[test]
fn who_stops_in_the_middle_of_a_frame_is_dropped() {
    let mut test = Test::greeted();
    test.send_bytes(&[1, 0]).expect("it could become a frame");
    assert_eq!(test.pass(SECOND), Ok(()));
    test.send_bytes(&[0]).expect("it could still");
    assert_eq!(test.pass(SECOND), Err(SessionEnded::HalfFrame(2 * SECOND)));
}

#[test]
fn who_is_idle_is_dropped_unless_it_waits_for_something() {
    let mut test = Test::greeted();
    test.send(|out| encode_call(out, 1, 0, b"")).expect("it is well-formed");
    assert_eq!(test.pass(100 * SECOND), Ok(()));
    let answer = CallAnswer::Done(Bytes::new());
    test.session.call_answered(1, &answer, test.now).expect("it is small");
    test.take_all();
    assert_eq!(test.pass(SECOND), Err(SessionEnded::Idle(4 * SECOND)));
}

#[test]
fn who_takes_none_of_its_answers_is_dropped_and_who_takes_some_is_not() {
    let mut test = Test::greeted();
    test.send(|out| frame::encode_read(out, 1, &[test_op(5_000)])).expect("it is well-formed");
    for _ in 0..3 {
        assert_eq!(test.pass(2 * SECOND), Ok(()));
        test.session.sent(1, test.now);
        // Asks for something now and then, so that it is not idle.
        test.send(|out| frame::encode_watch(out, 2, 0, SECOND)).expect("it is well-formed");
    }
    assert_eq!(test.pass(3 * SECOND), Err(SessionEnded::NotReading(3 * SECOND)));
}

fn test_op(len: u32) -> ReadOp {
    ReadOp { region: RegionId(9), generation: 0, offset: 0, len }
}

#[test]
fn requests_wait_while_answers_are_not_taken() {
    let mut test = Test::greeted();
    let op = test.op(4_000);
    for id in 0..100 {
        test.send(|out| frame::encode_read(out, id, &[op])).expect("it is well-formed");
    }
    // The third answer brought it over the limit; nothing beyond was taken up.
    assert!(!test.session.wants_input());
    assert!(test.unsent().len() < 3 * 4_100, "{}", test.unsent().len());
    let mut ids = Vec::new();
    while !test.unsent().is_empty() {
        ids.extend(test.take_all().iter().map(|(header, _)| header.request));
        test.step(|session, world| session.answer(world)).expect("they are well-formed");
    }
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert!(test.session.wants_input());
}

#[test]
fn a_batch_that_asks_for_more_than_a_frame_may_bring_is_dropped() {
    let mut test = Test::greeted();
    let ops = vec![test.op(1 << 20); 5];
    let ended = test.send(|out| frame::encode_read(out, 1, &ops));
    assert_eq!(ended, Err(SessionEnded::BatchTooLarge(5 << 20)));
}

#[test]
fn a_hit_that_points_out_of_its_region_is_answered_as_out_of_bounds() {
    let mut test = Test::greeted();
    let ops = [7, 8].map(|key_hash| ScarOp { bucket: 0, key_hash, apart: 30 });
    test.send(|out| frame::encode_scar(out, 1, &ops)).expect("it is well-formed");
    let (header, body) = test.take_all().remove(0);
    let replies = frame::unpack_scar(&header, &body, &ops).expect("it is well-formed");
    assert_eq!(replies[0], Some(Err(OpError::OutOfBounds)));
    assert!(matches!(&replies[1], Some(Ok(hit)) if (hit.head.len(), hit.data.len()) == (30, 70)));
}

#[test]
fn a_watch_waits_for_the_doorbell_or_its_deadline() {
    let mut test = Test::greeted();
    test.send(|out| frame::encode_watch(out, 1, 4, SECOND)).expect("it is well-formed");
    assert_eq!(test.take_all().len(), 1, "the doorbell is at 5 already");
    test.send(|out| frame::encode_watch(out, 2, 5, SECOND)).expect("it is well-formed");
    test.send(|out| frame::encode_watch(out, 3, 5, 2 * SECOND)).expect("it is well-formed");
    assert_eq!((test.take_all().len(), test.session.parked()), (0, 2));
    assert_eq!(test.session.next_deadline(), Some(test.now + SECOND));
    test.pass(SECOND).expect("it waits");
    let ids = |frames: Vec<(frame::Header, Bytes)>| {
        frames.iter().map(|(header, _)| header.request).collect::<Vec<_>>()
    };
    assert_eq!(ids(test.take_all()), [2]);
    test.doorbell = 6;
    test.session.look(6, test.now);
    assert_eq!(ids(test.take_all()), [3]);
    assert_eq!(test.session.parked(), 0);
}

#[test]
fn watches_beyond_the_limit_are_answered_at_once() {
    let mut test = Test::greeted();
    for id in 0..WATCHES_PER_CONNECTION_MAX as u64 + 3 {
        test.send(|out| frame::encode_watch(out, id, 5, SECOND)).expect("it is well-formed");
    }
    assert_eq!((test.take_all().len(), test.session.parked()), (3, WATCHES_PER_CONNECTION_MAX));
}

#[test]
fn calls_beyond_the_limit_and_calls_that_find_no_room_are_answered_overloaded() {
    let mut test = Test::greeted();
    for id in 0..CALLS_PER_CONNECTION_MAX as u64 + 2 {
        test.send(|out| encode_call(out, id, 3, b"x")).expect("it is well-formed");
    }
    assert_eq!((test.calls.len(), test.take_all().len()), (CALLS_PER_CONNECTION_MAX, 2));
    let mut test = Test::greeted();
    test.accepts_calls = false;
    test.send(|out| encode_call(out, 9, 3, b"x")).expect("it is well-formed");
    let (header, body) = test.take_all().remove(0);
    assert_eq!(CallAnswer::parse(&header, body), Ok(CallAnswer::Overloaded));
}

#[test]
fn who_leaves_too_many_call_answers_unread_is_dropped() {
    let mut test = Test::greeted();
    let answer = CallAnswer::Done(Bytes::from(vec![0; CALL_BYTES_MAX]));
    let fit = (OUTPUT_BYTES_HARD_MAX / CALL_BYTES_MAX) as u64;
    for id in 0..fit {
        test.send(|out| encode_call(out, id, 0, b"")).expect("it is well-formed");
    }
    let ended = (0..fit).find_map(|id| test.session.call_answered(id, &answer, test.now).err());
    assert!(matches!(ended, Some(SessionEnded::Unread(_))), "{ended:?}");
}

#[test]
fn who_asks_for_keys_where_there_are_none_is_dropped_and_else_is_told_and_may_be_silent() {
    let mut test = Test::greeted();
    let ended = test.send(|out| frame::encode_fabric(out, 1)).expect_err("there are none");
    assert_eq!(ended, FrameError::Kind(FrameKind::Fabric as u8).into());

    let mut test = Test::new();
    test.fabric = Some(Arc::new(FabricReply { provider: "shm".to_owned(), ..FabricReply::default() }));
    test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    let hello = HelloReply::parse(test.take_all().remove(0).1).expect("it is one");
    assert!(hello.fabric && !test.session.has_keys());
    test.send(|out| frame::encode_fabric(out, 1)).expect("there are some");
    let (header, body) = test.take_all().remove(0);
    assert_eq!(FabricReply::parse(&header, body).expect("it is one").provider, "shm");
    assert!(test.session.has_keys());
    test.pass(Duration::from_secs(3600)).expect("what it reads is not seen here");
}
