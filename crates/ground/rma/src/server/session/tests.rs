use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::connection::{ReadOp, RegionId};
use crate::limits::CALL_BYTES_MAX;
use crate::region::{Backing, Region};
use crate::service::{LoginDemand, Reply, ScarHit};

/// Has a region, may want a login, and says of whoever reads that it owes this.
struct Nothing(Arc<Region>, Option<LoginDemand>, Mutex<(Duration, Vec<usize>)>);

impl Service for Nothing {
    fn login_demand(&self, _peer: &Peer) -> Option<LoginDemand> {
        self.1.clone()
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        vec![self.0.clone()]
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        // Key hash 7 stands for an index entry that points out of the region.
        let offset = if op.key_hash == 7 { u64::MAX - 3 } else { 0 };
        Some(ScarHit { bucket: (0, 0, 64), data: Some((0, offset, 100)) })
    }

    fn owed_for_reads(&self, _peer: &Peer, bytes: usize) -> Duration {
        let (owed, told) = &mut *self.2.lock();
        told.push(bytes);
        *owed
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
        login_deadline: Duration::from_secs(5),
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
    /// Messages of its login.
    login: Vec<Call>,
    accepts_calls: bool,
}

impl Test {
    fn new() -> Self {
        let region = Region::create("test", 1 << 20, 0, Backing::Private).expect("there is memory");
        Self {
            session: Session::new(limits(), Instant::default()),
            service: Nothing(Arc::new(region), None, Mutex::default()),
            doorbell: 5,
            fabric: None,
            now: Instant::default(),
            calls: Vec::new(),
            login: Vec::new(),
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
        let login = &mut self.login;
        let mut log_in = |call| {
            login.push(call);
            Ok(())
        };
        let mut world = World {
            now: self.now,
            service: &self.service,
            peer: &Peer::anonymous("test".to_owned()),
            doorbell: &|| doorbell,
            files: false,
            fabric: &|| fabric.clone(),
            submit: &mut submit,
            log_in: &mut log_in,
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
fn who_owes_for_what_it_read_is_answered_and_then_held_until_it_owes_nothing() {
    let mut test = Test::greeted();
    let op = test.op(1_000);
    test.service.2.lock().0 = 2 * SECOND;
    for id in 0..3 {
        test.send(|out| frame::encode_read(out, id, &[op])).expect("it is well-formed");
    }
    assert_eq!(test.take_all().len(), 1, "the first was answered before it was known");
    assert!(!test.session.wants_input());
    assert_eq!(test.session.next_deadline(), Some(test.now + SECOND), "asked again");
    for _ in 0..20 {
        test.pass(SECOND).expect("it is not idle: nobody listened");
        test.step(|session, world| session.answer(world)).expect("well-formed");
        assert!(test.take_all().is_empty() && !test.session.wants_input());
    }
    test.service.2.lock().0 = Duration::ZERO;
    test.pass(SECOND).expect("alive");
    test.step(|session, world| session.answer(world)).expect("well-formed");
    assert_eq!(test.take_all().len(), 2);
    assert!(test.session.wants_input());
    let told = std::mem::take(&mut test.service.2.lock().1);
    let (asked, read): (Vec<usize>, Vec<usize>) = told.into_iter().partition(|bytes| *bytes == 0);
    assert_eq!(asked.len(), 21);
    assert!(read.len() == 3 && read.iter().all(|bytes| (1_000..1_100).contains(bytes)), "{read:?}");

    test.send(|out| frame::encode_scar(out, 4, &[ScarOp { bucket: 0, key_hash: 0, apart: 0 }]))
        .expect("well-formed");
    assert_eq!(test.take_all().len(), 1);
    let told = std::mem::take(&mut test.service.2.lock().1);
    assert!(matches!(told[..], [bytes] if bytes > 164), "{told:?}");
    test.send(|out| encode_call(out, 5, 1, b"x")).expect("well-formed");
    assert!(test.service.2.lock().1.is_empty(), "no read");
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

/// A session whose service wants a login.
fn stranger(is_required: bool) -> Test {
    let refusal = Refusal { code: 3, message: "log in".to_owned() };
    let mut test = Test::new();
    test.service.1 = Some(LoginDemand { is_required, refusal });
    test
}

/// What a stranger is told when it says HELLO: that it has to log in, and of nothing that there is.
fn assert_is_asked_to_log_in(test: &mut Test) {
    let [(header, body)] = &test.take_all()[..] else { panic!("one answer") };
    assert_eq!((header.kind, header.argument), (FrameKind::HelloReply, 0));
    let told = HelloReply::parse(body.clone()).expect("well-formed");
    let expected = HelloReply { version: frame::VERSION, login: true, ..HelloReply::default() };
    assert_eq!(told, expected);
    assert!(!test.session.is_admitted());
}

fn log_in(out: &mut Vec<u8>, id: u64) {
    encode_call(out, id, LOGIN_METHOD, b"message");
}

#[test]
fn who_has_to_log_in_is_told_of_no_region_and_reads_nothing_before_it_has_and_says_hello_again() {
    let mut test = stranger(true);
    test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    assert_is_asked_to_log_in(&mut test);
    test.send(|out| log_in(out, 1)).expect("it is well-formed");
    assert_eq!(test.login.len(), 1);
    test.session.logged_in();
    test.session.call_answered(1, &CallAnswer::Done(Bytes::new()), test.now).expect("it is taken");
    assert_eq!(test.take_all().len(), 1);
    assert!(!test.session.is_admitted());
    test.send(|out| frame::encode_hello(out, 2)).expect("it is well-formed");
    let told = HelloReply::parse(test.take_all()[0].1.clone()).expect("well-formed");
    assert!(!told.login && told.regions.len() == 1 && test.session.is_admitted(), "{told:?}");
    let op = test.op(8);
    test.send(|out| frame::encode_read(out, 3, &[op])).expect("it is well-formed");
    assert_eq!(test.take_all()[0].0.kind, FrameKind::ReadReply);
    assert_eq!(test.send(|out| frame::encode_hello(out, 4)), Err(SessionEnded::HelloAgain));
}

#[test]
fn what_else_a_stranger_asks_for_ends_its_connection_and_its_calls_are_refused_with_what_to_do() {
    let read = |test: &Test, out: &mut Vec<u8>| frame::encode_read(out, 1, &[test.op(8)]);
    let scar = |_: &Test, out: &mut Vec<u8>| {
        frame::encode_scar(out, 1, &[ScarOp { bucket: 0, key_hash: 1, apart: 0 }]);
    };
    let watch = |_: &Test, out: &mut Vec<u8>| frame::encode_watch(out, 1, 0, SECOND);
    let fabric = |_: &Test, out: &mut Vec<u8>| frame::encode_fabric(out, 1);
    let hello = |_: &Test, out: &mut Vec<u8>| frame::encode_hello(out, 1);
    type Ask<'a> = &'a dyn Fn(&Test, &mut Vec<u8>);
    let asks: [Ask<'_>; 5] = [&read, &scar, &watch, &fabric, &hello];
    for ask in asks {
        let mut test = stranger(true);
        test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
        test.take_all();
        let mut bytes = Vec::new();
        ask(&test, &mut bytes);
        let ended = test.send_bytes(&bytes);
        assert!(matches!(ended, Err(SessionEnded::NoLogin(_))), "{ended:?}");
        assert_eq!(test.unsent(), b"", "nothing is answered");
    }
    let mut test = stranger(true);
    assert_eq!(test.send(|out| log_in(out, 0)), Err(SessionEnded::NoHello));
    let mut test = stranger(true);
    test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    test.take_all();
    test.send(|out| encode_call(out, 1, 3, b"append")).expect("it is answered");
    let (header, body) = test.take_all().remove(0);
    let refused = CallAnswer::Refused(Refusal { code: 3, message: "log in".to_owned() });
    assert_eq!(CallAnswer::parse(&header, body), Ok(refused));
    assert!(test.calls.is_empty() && test.login.is_empty());
}

#[test]
fn a_login_that_is_refused_takes_its_time_or_has_long_messages_is_ended() {
    let mut refused = stranger(true);
    refused.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    refused.send(|out| log_in(out, 1)).expect("it is well-formed");
    let ended = refused.send(|out| log_in(out, 2));
    assert!(matches!(ended, Err(SessionEnded::NoLogin(_))), "one message at a time: {ended:?}");
    refused.session.refuse_login();
    for again in [frame::encode_hello, log_in] {
        let ended = refused.send(|out| again(out, 3));
        assert!(matches!(ended, Err(SessionEnded::Refused(_))), "{ended:?}");
    }
    let mut slow = stranger(true);
    slow.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    slow.take_all();
    for _ in 0..4 {
        assert_eq!(slow.pass(SECOND), Ok(()));
        slow.send(|out| encode_call(out, 1, 3, b"append")).expect("it is answered");
        slow.take_all();
    }
    assert_eq!(slow.session.next_deadline(), Some(slow.now + SECOND));
    assert_eq!(slow.pass(SECOND), Err(SessionEnded::SlowLogin(5 * SECOND)));
    let mut long = stranger(true);
    long.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    // Its header suffices.
    let ended = long.send(|out| frame::encode_call(out, 1, LOGIN_METHOD, LOGIN_BYTES_MAX + 1));
    assert!(matches!(ended, Err(SessionEnded::LongLogin(_))), "{ended:?}");
}

#[test]
fn who_may_log_in_is_taken_for_what_it_is_unless_it_says_that_it_does() {
    let mut test = stranger(false);
    test.send(|out| frame::encode_hello(out, 0)).expect("it is well-formed");
    test.take_all();
    assert!(test.session.is_admitted());
    // It is an application's CALL like any other one then.
    test.send(|out| log_in(out, 1)).expect("it is well-formed");
    assert_eq!((test.calls.len(), test.login.len()), (1, 0));
    let mut test = stranger(false);
    test.send(|out| frame::encode_hello_to_log_in(out, 0)).expect("it is well-formed");
    assert_is_asked_to_log_in(&mut test);
    // A service without logins answers as always.
    let mut test = Test::new();
    test.send(|out| frame::encode_hello_to_log_in(out, 0)).expect("it is well-formed");
    assert!(test.session.is_admitted());
}
