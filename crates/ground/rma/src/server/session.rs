//! One connection at the server, without its socket: bytes in, bytes out.
//!
//! A step function: it is given bytes, time, answers of the application and the doorbell's value, and it appends
//! to its output. What it holds is bounded:
//! - input: one frame, and what came behind it in one receive;
//! - output: it takes up no further request while more than `output_bytes_max` are unsent, so READs and SCARs
//!   exceed that by one batch at most; CALL answers end the connection at [`OUTPUT_BYTES_HARD_MAX`];
//! - parked WATCHes and CALLs under way: counted.
//!
//! A peer that owes for what it has read is held: nothing more of it is taken up until it owes nothing.
//!
//! It is over, with a reason for the log, when its peer sends what is no frame, does not say HELLO in time, stops
//! in the middle of a frame, or does not take its answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tailwater_access::Peer;
use tailwater_env::Instant;

use crate::connection::{OpError, ScarOp};
use crate::frame::{
    self, CallAnswer, Decoder, FabricReply, FrameError, FrameKind, HelloReply, ReadOps, Request, ScarOps,
    Side, Status,
};
use crate::limits::{
    BATCH_BYTES_MAX, CALLS_PER_CONNECTION_MAX, LOGIN_BYTES_MAX, LOGIN_METHOD, OUTPUT_BYTES_HARD_MAX,
    OUTPUT_BYTES_KEPT, READ_BYTES_MAX, READS_HELD_MAX, WATCHES_PER_CONNECTION_MAX,
};
use crate::region::Region;
use crate::server::limits::SessionLimits;
use crate::server::output::{NextOutput, OutputQueue};
use crate::service::{Refusal, Service};
use crate::table::RegionTable;

/// Why a connection was ended by this side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SessionEnded {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a frame other than HELLO came first")]
    NoHello,
    #[error(
        "the client speaks TLS, and this listener does not: give the node a certificate in [tls], or the client an address \
         of tcp:IP:PORT"
    )]
    SpeaksTls,
    #[error("did not log in, and asked for something else: {0} frame")]
    NoLogin(&'static str),
    #[error("sent {0} bytes at once before it was let in")]
    LongLogin(usize),
    #[error("did not log in within {0:?}")]
    SlowLogin(Duration),
    #[error("its user, or its token, was removed, or has expired")]
    LoggedOut,
    #[error("said HELLO twice")]
    HelloAgain,
    #[error("speaks versions {lowest} to {highest} of the format, not {ours}", ours = frame::VERSION)]
    Version { lowest: u8, highest: u8 },
    #[error("asked for {0} bytes in one frame")]
    BatchTooLarge(u64),
    #[error("refused: {0}")]
    Refused(String),
    #[error("did not say HELLO within {0:?}")]
    Silent(Duration),
    #[error("stopped in the middle of a frame for {0:?}")]
    HalfFrame(Duration),
    #[error("took none of its answers for {0:?}")]
    NotReading(Duration),
    #[error("left {0} bytes of answers unread")]
    Unread(usize),
    #[error("asked for nothing for {0:?}")]
    Idle(Duration),
    #[error("has mapped the regions where they were, and did not connect again since they have moved")]
    Moved,
}

impl SessionEnded {
    /// What lines in the log about it are bounded by.
    pub(crate) fn complaint(&self) -> &'static str {
        match self {
            Self::Frame(_) => "malformed",
            Self::SpeaksTls => "TLS",
            Self::NoHello | Self::HelloAgain | Self::Version { .. } => "no greeting",
            Self::BatchTooLarge(_) => "too large",
            Self::Refused(_) => "refused",
            Self::NoLogin(_) | Self::LongLogin(_) | Self::SlowLogin(_) => "no login",
            Self::LoggedOut => "logged out",
            Self::Moved => "moved",
            Self::Silent(_) | Self::HalfFrame(_) | Self::NotReading(_) | Self::Unread(_) | Self::Idle(_) => {
                "too slow"
            }
        }
    }
}

/// A CALL for the application.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: u64,
    pub(crate) method: u16,
    pub(crate) payload: Bytes,
}

/// What a session needs of its server during a step.
pub(crate) struct World<'a> {
    pub(crate) now: Instant,
    pub(crate) service: &'a dyn Service,
    pub(crate) peer: &'a Peer,
    /// The doorbell's word.
    pub(crate) doorbell: &'a dyn Fn() -> u32,
    /// Descriptors can be passed to this peer.
    pub(crate) files: bool,
    /// How libfabric reads the regions at this moment, if it does.
    pub(crate) fabric: &'a dyn Fn() -> Option<Arc<FabricReply>>,
    /// Takes a CALL, or answers `false` if there is too much to do.
    pub(crate) submit: &'a mut dyn FnMut(Call) -> bool,
    /// Takes a message of a login, or answers why not.
    pub(crate) log_in: &'a mut dyn FnMut(Call) -> Result<(), Refusal>,
}

#[derive(Debug)]
struct Parked {
    request: u64,
    last_seen: u32,
    deadline: Instant,
}

/// How far a peer is with its login.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoginStage {
    /// It has not begun one, and need not.
    None,
    /// It has said HELLO, and logs in before it says it again. Its other CALLs are answered this.
    Due(Refusal),
    /// It has logged in.
    Done,
    /// It was refused.
    Refused,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    began: Instant,
    limits: SessionLimits,
    decoder: Decoder,
    /// Memory of what the decoder has, while whoever receives has it.
    input_lent: usize,
    peer: PeerState,
    /// When the peer last began to keep us waiting for the rest of a frame.
    half_frame_since: Option<Instant>,
    last_request: Instant,
    /// It owes for what it has read, and is asked again then.
    held_until: Option<Instant>,
}

/// Everything but the decoder, which frames are borrowed from while this is changed.
#[derive(Debug)]
struct PeerState {
    output: OutputQueue,
    /// When it last took a byte, or the output last became non-empty.
    output_moved: Instant,
    table: Option<RegionTable>,
    login: LoginStage,
    files_due: bool,
    /// It was given the regions' descriptors, or is about to be.
    has_files: bool,
    /// It was told the keys that libfabric reads the regions by.
    has_keys: bool,
    watches: Vec<Parked>,
    calls: usize,
    /// Bytes of answers to reads that the service was not told of yet.
    read_bytes: usize,
}

impl Session {
    pub(crate) fn new(limits: SessionLimits, now: Instant) -> Self {
        Self {
            began: now,
            limits,
            decoder: Decoder::new(Side::Requests),
            input_lent: 0,
            peer: PeerState {
                output: OutputQueue::default(),
                output_moved: now,
                table: None,
                login: LoginStage::None,
                files_due: false,
                has_files: false,
                has_keys: false,
                watches: Vec::new(),
                calls: 0,
                read_bytes: 0,
            },
            half_frame_since: None,
            last_request: now,
            held_until: None,
        }
    }

    /// Takes bytes off the socket and answers what can be answered.
    pub(crate) fn receive(&mut self, bytes: &[u8], world: &mut World<'_>) -> Result<(), SessionEnded> {
        self.decoder.feed(bytes);
        self.answer(world)
    }

    /// Takes up requests that wait for room in the output, or because the peer is held. To be called after bytes were
    /// sent, and at the next deadline.
    pub(crate) fn answer(&mut self, world: &mut World<'_>) -> Result<(), SessionEnded> {
        if self.held_until.is_some_and(|until| until <= world.now) {
            // It may have been forgiven meanwhile, or owe what others of its kind have read.
            self.hold(0, world);
            // It was not silent: nobody listened.
            self.last_request = world.now;
        }
        while self.wants_input() {
            if self.peer.table.is_none() {
                self.check_length()?;
            }
            let next = self.decoder.next();
            if next.is_err() && self.peer.table.is_none() && tailwater_tls::is_hello(self.decoder.buffer()) {
                return Err(SessionEnded::SpeaksTls);
            }
            let Some((header, body)) = next? else {
                break;
            };
            self.half_frame_since = None;
            self.last_request = world.now;
            let request = Request::parse(&header, body)?;
            self.peer.answer(header.request, request, world)?;
            let read = std::mem::take(&mut self.peer.read_bytes);
            if read > 0 {
                self.hold(read, world);
            }
        }
        if !self.wants_input() || self.decoder.held() == 0 {
            self.half_frame_since = None;
        } else if self.half_frame_since.is_none() {
            self.half_frame_since = Some(world.now);
        }
        Ok(())
    }

    /// Holds the peer for as long as it owes something, after it was sent so many bytes of the regions.
    fn hold(&mut self, read: usize, world: &World<'_>) {
        let owed = world.service.owed_for_reads(world.peer, read).min(READS_HELD_MAX);
        self.held_until = (!owed.is_zero()).then(|| world.now + owed);
    }

    /// A stranger has nothing to say that is long.
    fn check_length(&mut self) -> Result<(), SessionEnded> {
        let buffer = self.decoder.buffer();
        if tailwater_tls::is_hello(buffer) {
            return Ok(());
        }
        // The first bytes of something else than a frame are looked at as what they are.
        let is_frame = buffer.get(4).is_some_and(|version| *version == frame::VERSION);
        match buffer.len() + frame::missing(buffer) {
            long if is_frame
                && long > frame::HEADER_BYTES + LOGIN_BYTES_MAX
                && frame::missing(buffer) > 0 =>
            {
                Err(SessionEnded::LongLogin(long))
            }
            _ => Ok(()),
        }
    }

    /// The peer is known from now on, and is to say HELLO again.
    pub(crate) fn logged_in(&mut self) {
        self.peer.login = LoginStage::Done;
    }

    /// The peer is not let in: what it sends next ends the connection.
    pub(crate) fn refuse_login(&mut self) {
        self.peer.login = LoginStage::Refused;
    }

    /// Whether it has said HELLO, and the service admitted it then.
    pub(crate) fn is_admitted(&self) -> bool {
        self.peer.table.is_some()
    }

    /// Whether it can read the regions over libfabric, where nobody asks whose reads they are.
    pub(crate) fn has_keys(&self) -> bool {
        self.peer.has_keys
    }

    /// Reads the regions at the places in `table` from now on. `false`: the peer has mapped them at others.
    pub(crate) fn read_from(&mut self, table: &RegionTable) -> bool {
        if self.peer.has_files {
            return self.peer.table.as_ref().is_some_and(|had| had.is_same_memory(table));
        }
        self.peer.table = Some(table.clone());
        true
    }

    /// Whether the peer may send more; if not, it is held, or first has to take what it is due.
    pub(crate) fn wants_input(&self) -> bool {
        self.held_until.is_none() && self.peer.output.pending() < self.limits.output_bytes_max
    }

    /// What to send next.
    pub(crate) fn next_output(&self) -> Option<NextOutput<'_>> {
        self.peer.output.next()
    }

    /// What goes out together: all but the last bytes.
    pub(crate) fn output_ahead(&self) -> impl Iterator<Item = NextOutput<'_>> {
        self.peer.output.ahead()
    }

    /// The first so many bytes of it were taken by the socket.
    pub(crate) fn sent(&mut self, count: usize, now: Instant) {
        self.peer.output_moved = now;
        self.peer.output.sent(count);
    }

    /// Takes it out, to be sent as a whole and reported by [`Session::sent`], before more is taken.
    pub(crate) fn take_output(&mut self) -> Option<Vec<u8>> {
        self.peer.output.take()
    }

    /// Takes out up to `bytes_max` bytes of it, as copies, to be sent as a whole and reported by [`Session::sent`],
    /// before more is taken.
    pub(crate) fn take_output_into(&mut self, bytes: &mut Vec<u8>, bytes_max: usize) {
        self.peer.output.take_into(bytes, bytes_max);
    }

    /// Gives the session what was received, behind what [`Session::lend_input`] lent.
    pub(crate) fn return_input(&mut self, input: BytesMut) {
        debug_assert_eq!(self.decoder.held(), 0, "it was lent");
        self.input_lent = 0;
        *self.decoder.buffer() = input;
    }

    /// Lends what was received and answers nothing yet, for the rest of a frame to be appended without a copy.
    pub(crate) fn lend_input(&mut self) -> BytesMut {
        self.input_lent = self.decoder.capacity();
        std::mem::take(self.decoder.buffer())
    }

    /// Lends the session a buffer for its output.
    pub(crate) fn lend_output(&mut self, spare: &mut Vec<u8>) {
        self.peer.output.lend(spare);
    }

    /// Takes the buffer back, if the session does not need it any more.
    pub(crate) fn return_output(&mut self, spare: &mut Vec<u8>) {
        self.peer.output.give_back(spare, OUTPUT_BYTES_KEPT);
    }

    /// The regions whose descriptors have to go with the next byte sent, if any.
    pub(crate) fn files_due(&self) -> Option<&RegionTable> {
        self.peer.table.as_ref().filter(|_| self.peer.files_due)
    }

    /// They went.
    pub(crate) fn files_sent(&mut self) {
        self.peer.files_due = false;
    }

    /// The application's answer to a CALL.
    pub(crate) fn call_answered(
        &mut self,
        request: u64,
        answer: &CallAnswer,
        now: Instant,
    ) -> Result<(), SessionEnded> {
        let unsent = self.peer.output.pending() + answer.frame_bytes();
        if unsent > OUTPUT_BYTES_HARD_MAX {
            return Err(SessionEnded::Unread(unsent));
        }
        self.peer.calls -= 1;
        self.peer.starts_output(now);
        answer.encode(self.peer.output.bytes(), request);
        Ok(())
    }

    /// Completes the WATCHes that a doorbell of this value, or time, completes.
    pub(crate) fn look(&mut self, doorbell: u32, now: Instant) {
        if self.peer.watches.is_empty() {
            return;
        }
        let mut watches = std::mem::take(&mut self.peer.watches);
        watches.retain(|watch| {
            let complete = watch.last_seen != doorbell || watch.deadline <= now;
            if complete {
                self.peer.starts_output(now);
                frame::encode_watch_reply(self.peer.output.bytes(), watch.request, doorbell);
            }
            !complete
        });
        self.peer.watches = watches;
    }

    /// WATCHes that wait.
    pub(crate) fn parked(&self) -> usize {
        self.peer.watches.len()
    }

    /// Ends the connection if one of its deadlines has passed.
    pub(crate) fn check_deadlines(&self, now: Instant) -> Result<(), SessionEnded> {
        let limits = &self.limits;
        let over = |since: Instant, limit: Duration| since + limit <= now;
        if self.peer.table.is_none() {
            match self.peer.login {
                LoginStage::None if over(self.last_request, limits.hello_deadline) => {
                    return Err(SessionEnded::Silent(limits.hello_deadline));
                }
                LoginStage::None => {}
                _ if over(self.began, limits.login_deadline) => {
                    return Err(SessionEnded::SlowLogin(limits.login_deadline));
                }
                _ => {}
            }
        }
        if self.peer.output.pending() > 0 && over(self.peer.output_moved, limits.drain_deadline) {
            return Err(SessionEnded::NotReading(limits.drain_deadline));
        }
        if self.half_frame_since.is_some_and(|since| over(since, limits.frame_deadline)) {
            return Err(SessionEnded::HalfFrame(limits.frame_deadline));
        }
        match self.idle_limit() {
            Some(limit) if over(self.last_request, limit) => Err(SessionEnded::Idle(limit)),
            _ => Ok(()),
        }
    }

    /// When to call [`Session::look`] and [`Session::check_deadlines`] next, if nothing else happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let limits = &self.limits;
        let hello = self.peer.table.is_none().then(|| match self.peer.login {
            LoginStage::None => self.last_request + limits.hello_deadline,
            _ => self.began + limits.login_deadline,
        });
        let drain = (self.peer.output.pending() > 0).then(|| self.peer.output_moved + limits.drain_deadline);
        let half_frame = self.half_frame_since.map(|since| since + limits.frame_deadline);
        let idle = self.idle_limit().map(|limit| self.last_request + limit);
        let watches = self.peer.watches.iter().map(|watch| watch.deadline);
        [hello, drain, half_frame, idle, self.held_until].into_iter().flatten().chain(watches).min()
    }

    /// Bytes of memory held for the peer.
    pub(crate) fn memory(&self) -> usize {
        self.decoder.capacity() + self.input_lent + self.peer.output.memory()
    }

    /// How long the peer may be silent as things stand: for ever while it waits for something, or while its
    /// silence is normal.
    fn idle_limit(&self) -> Option<Duration> {
        let waits = self.peer.calls > 0 || !self.peer.watches.is_empty();
        // What is read over libfabric is not seen here.
        let waits = waits || self.peer.has_keys;
        self.limits.idle_deadline.filter(|_| !waits && self.peer.table.is_some())
    }
}

impl PeerState {
    fn starts_output(&mut self, now: Instant) {
        if self.output.pending() == 0 {
            self.output_moved = now;
        }
    }

    fn answer(&mut self, id: u64, request: Request, world: &mut World<'_>) -> Result<(), SessionEnded> {
        self.starts_output(world.now);
        let Some(table) = &self.table else {
            return self.answer_stranger(id, request, world);
        };
        match request {
            Request::Hello { .. } => Err(SessionEnded::HelloAgain),
            Request::Read(ops) => {
                let before = self.output.pending();
                read(&mut self.output, id, &ops, table)?;
                self.read_bytes += self.output.pending() - before;
                Ok(())
            }
            Request::Scar(ops) => {
                let before = self.output.pending();
                scar(&mut self.output, id, &ops, table, world.service);
                self.read_bytes += self.output.pending() - before;
                Ok(())
            }
            Request::Watch { last_seen, deadline } => {
                let parked = Parked { request: id, last_seen, deadline: world.now + deadline };
                let doorbell = (world.doorbell)();
                if doorbell != last_seen || self.watches.len() >= WATCHES_PER_CONNECTION_MAX {
                    frame::encode_watch_reply(self.output.bytes(), id, doorbell);
                } else {
                    self.watches.push(parked);
                }
                Ok(())
            }
            Request::Call { method, payload } => {
                let call = Call { request: id, method, payload };
                if self.calls < CALLS_PER_CONNECTION_MAX && (world.submit)(call) {
                    self.calls += 1;
                } else {
                    CallAnswer::Overloaded.encode(self.output.bytes(), id);
                }
                Ok(())
            }
            Request::Fabric => {
                // Nobody asks who was told at HELLO that there is none.
                let reply = (world.fabric)().ok_or(FrameError::Kind(FrameKind::Fabric as u8))?;
                reply.encode(self.output.bytes(), id);
                self.has_keys = true;
                Ok(())
            }
        }
    }

    /// Answers who was not admitted: HELLO, and then messages of a login, and nothing else.
    fn answer_stranger(
        &mut self,
        id: u64,
        request: Request,
        world: &mut World<'_>,
    ) -> Result<(), SessionEnded> {
        match (&self.login, request) {
            (LoginStage::None | LoginStage::Done, Request::Hello { lowest, highest, logs_in }) => {
                self.hello(id, (lowest, highest), logs_in, world)
            }
            (LoginStage::None | LoginStage::Done, _) => Err(SessionEnded::NoHello),
            (LoginStage::Due(_), Request::Hello { .. }) => Err(SessionEnded::NoLogin("a second HELLO")),
            (LoginStage::Due(refusal), Request::Call { method, payload }) => {
                let taken = match method {
                    LOGIN_METHOD if self.calls == 0 => (world.log_in)(Call { request: id, method, payload }),
                    LOGIN_METHOD => {
                        return Err(SessionEnded::NoLogin(
                            "a message before the last one was answered, in a CALL",
                        ));
                    }
                    _ => Err(refusal.clone()),
                };
                match taken {
                    Ok(()) => self.calls += 1,
                    Err(refusal) => CallAnswer::Refused(refusal).encode(self.output.bytes(), id),
                }
                Ok(())
            }
            (LoginStage::Due(_), request) => Err(SessionEnded::NoLogin(request.name())),
            (LoginStage::Refused, _) => Err(SessionEnded::Refused("its login was refused".to_owned())),
        }
    }

    fn hello(
        &mut self,
        id: u64,
        (lowest, highest): (u8, u8),
        logs_in: bool,
        world: &World<'_>,
    ) -> Result<(), SessionEnded> {
        if !(lowest..=highest).contains(&frame::VERSION) {
            return Err(SessionEnded::Version { lowest, highest });
        }
        let demand = match self.login {
            LoginStage::None => world.service.login_demand(world.peer),
            _ => None,
        };
        if let Some(demand) = demand.filter(|demand| demand.is_required || logs_in) {
            // Told of nothing that the service has.
            let reply = HelloReply { version: frame::VERSION, login: true, ..HelloReply::default() };
            reply.encode(self.output.bytes(), id);
            self.login = LoginStage::Due(demand.refusal);
            return Ok(());
        }
        world.service.admit(world.peer).map_err(|refusal| SessionEnded::Refused(refusal.message))?;
        let table = RegionTable::of(world.service);
        let files = world.files && table.regions().iter().all(|region| region.file().is_some());
        let probe = ScarOp { bucket: 0, key_hash: 0, apart: 0 };
        let reply = HelloReply {
            version: frame::VERSION,
            // A service without buckets answers none of any bucket.
            scar: world.service.scar(&probe).is_some(),
            files,
            fabric: (world.fabric)().is_some(),
            login: false,
            doorbell: (world.doorbell)(),
            regions: table.infos(),
        };
        reply.encode(self.output.bytes(), id);
        self.files_due = files;
        self.has_files = files;
        self.table = Some(table);
        Ok(())
    }
}

/// Answers a READ straight from the regions.
fn read(out: &mut OutputQueue, id: u64, ops: &ReadOps, table: &RegionTable) -> Result<(), SessionEnded> {
    let count = ops.iter().len();
    let bytes: u64 = ops.iter().map(|op| u64::from(op.len)).filter(|len| *len <= READ_BYTES_MAX.into()).sum();
    if bytes > BATCH_BYTES_MAX as u64 {
        return Err(SessionEnded::BatchTooLarge(bytes));
    }
    let found: Vec<_> = ops.iter().map(|op| table.find(&op).map(|region| (region, op))).collect();
    let bytes: usize = found.iter().flatten().map(|(_, op)| op.len as usize).sum();
    let argument = u16::try_from(count).expect("batches are limited");
    frame::header(out.bytes(), FrameKind::ReadReply, argument, id, count + bytes);
    let status = |found: &Result<_, OpError>| match found {
        Ok(_) => Status::Done as u8,
        Err(error) => Status::from(*error) as u8,
    };
    out.bytes().extend(found.iter().map(status));
    for (region, op) in found.into_iter().flatten() {
        out.region(region, op.offset, op.len);
    }
    Ok(())
}

/// Answers a SCAR as far as the response has room.
fn scar(out: &mut OutputQueue, id: u64, ops: &ScarOps, table: &RegionTable, service: &dyn Service) {
    let count = ops.iter().len();
    let mut room = BATCH_BYTES_MAX;
    let mut full = false;
    // What each operation is answered, and the stretches of it: bucket, and data if there are any.
    let mut found = Vec::with_capacity(count);
    for op in ops.iter() {
        let result = if full { Ok(None) } else { scar_one(&op, table, service, room) };
        full |= matches!(result, Ok(None));
        room -= result.as_ref().map_or(0, |hit| hit.as_ref().map_or(0, Scarred::len));
        found.push(result);
    }
    let argument = u16::try_from(count).expect("batches are limited");
    let results = frame::scar_results_bytes(count);
    frame::header(out.bytes(), FrameKind::ScarReply, argument, id, results + BATCH_BYTES_MAX - room);
    for result in &found {
        let (status, bucket, data) = match result {
            Ok(Some(hit)) => (Status::Done, hit.bucket.2, hit.data.map_or(0, |(_, _, len)| len)),
            Ok(None) => (Status::Again, 0, 0),
            Err(error) => (Status::from(*error), 0, 0),
        };
        frame::put_scar_result(out.bytes(), status, bucket, data);
    }
    let hits =
        || found.iter().zip(ops.iter()).filter_map(|(hit, op)| Some((hit.as_ref().ok()?.as_ref()?, op)));
    for (hit, op) in hits() {
        let (region, offset, len) = hit.bucket;
        out.region(region, offset, len);
        if let Some((region, offset, len)) = hit.data {
            out.region(region, offset, len.min(op.apart));
        }
    }
    for (hit, op) in hits() {
        if let Some((region, offset, len)) = hit.data {
            let apart = len.min(op.apart);
            out.region(region, offset + u64::from(apart), len - apart);
        }
    }
}

/// The places, all within their regions, that answer one SCAR.
struct Scarred<'a> {
    bucket: (&'a Arc<Region>, u64, u32),
    data: Option<(&'a Arc<Region>, u64, u32)>,
}

impl Scarred<'_> {
    fn len(&self) -> usize {
        self.bucket.2 as usize + self.data.map_or(0, |(_, _, len)| len as usize)
    }
}

/// Where the answer to one SCAR lies, or `None` if it exceeds `room` bytes.
fn scar_one<'a>(
    op: &ScarOp,
    table: &'a RegionTable,
    service: &dyn Service,
    room: usize,
) -> Result<Option<Scarred<'a>>, OpError> {
    let hit = service.scar(op).ok_or(OpError::Unsupported)?;
    let data_len = hit.data.map_or(0, |(_, _, len)| len);
    if hit.bucket.2.max(data_len) > READ_BYTES_MAX {
        return Err(OpError::OutOfBounds);
    }
    if hit.bucket.2 as usize + data_len as usize > room {
        return Ok(None);
    }
    // Where a hit points comes from region memory in the end: not to be trusted more than a peer's offset.
    let find = |(place, offset, len): (usize, u64, u32)| {
        let region = table.regions().get(place).ok_or(OpError::OutOfBounds)?;
        if region.contains(offset, len) { Ok((region, offset, len)) } else { Err(OpError::OutOfBounds) }
    };
    Ok(Some(Scarred { bucket: find(hit.bucket)?, data: hit.data.map(find).transpose()? }))
}

#[cfg(test)]
mod tests;
