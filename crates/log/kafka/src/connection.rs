//! One client's connection: frames in, answers out, in the order of the requests.
//!
//! What holds:
//! - Requests are carried out one after the other, as a broker of Kafka does, with one exception: a Produce begins as
//!   soon as it is there if only others of its kind are before it. Appends are submitted in the order in which they
//!   came, so a pipeline keeps its order, and one sync acknowledges many of them.
//! - While an answer is waited for, the socket is read on, up to [`AHEAD_BYTES_MAX`] or the end of a frame that may
//!   begin beside it: a client that goes away is noticed, and what it waited for is given up if that is what others
//!   have to do.
//! - A whole request that was read is carried out, also if the client is gone by then: whoever produces with acks=0
//!   closes when everything is sent.
//! - A client that does not read its answers is not read either, and is closed after a while; it holds only itself up.
//! - Large answers that were not sent yet are bounded together. One that finds no room closes its connection; a Produce
//!   finds out before anything of it is appended, and nothing behind it is begun.
//! - A frame takes memory as its bytes arrive, not as its length says. All large frames together are bounded: one that
//!   is next takes its room when as much of it is there as a small one has, while what is under way goes on, and gives
//!   it back when it does not go on coming or has not come in time. So whoever waits for room waits for what ends, and
//!   to announce a frame holds nobody up. The few very large frames wait for each other and for none of the others.
//! - What counts against no room is bounded for each connection: [`AHEAD_BYTES_MAX`] and a small frame that were read,
//!   and the small requests that were begun: one, or [`PIPELINE_MAX`] Produce, whose records the log counts. The memory
//!   of what was read is let go with it (`buffer.rs`).
//! - Whoever owes something of a quota is held: its next request of that kind is not begun, nor anything behind it,
//!   until nothing is owed any more. One that is held for as long as an idle connection may be is closed. What a client
//!   sent that has gone away is begun within a minute, or dropped.
//! - Answers to Produce have their room from the beginning, and many may be under way: a connection has no more begun
//!   when these have a quarter of it all.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tailwater_access::AddressPlace;
use tailwater_env::{Env, Instant};
use tailwater_login::LoginSession;
use tailwater_quotas::QuotaChanges;
use tailwater_tls::is_hello;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::api::Api;
use crate::broker::{Begun, Broker, Outcome, Peer};
use crate::sasl::PeerLogin;
use crate::server::Listening;
use crate::wire::{Frame, Malformed};

mod buffer;
#[cfg(test)]
mod tests;

use buffer::Buffer;

/// Produce requests of one connection that may be under way: clients have five.
const PIPELINE_MAX: usize = 64;
/// Bytes that are read ahead of the request that is carried out.
const AHEAD_BYTES_MAX: usize = 128 << 10;
/// Bytes that the buffer has room for at least before each read, but for the end of a frame.
const READ_BYTES: usize = 16 << 10;
/// Bytes that it grows by at most at once, for a frame that has its room; or as many as there are already.
const GROW_BYTES: usize = 1 << 20;
/// Frames up to this size take nothing of what all large ones share.
const SMALL_FRAME_BYTES_MAX: usize = 64 << 10;
/// A large frame has [`KafkaConfig::stalled_ms`](crate::KafkaConfig::stalled_ms) to arrive, and so much for each MiB.
const ARRIVAL_PER_MIB: Duration = Duration::from_secs(1);
/// In this part of that time so many bytes of it have to come, or its rest.
const ARRIVAL_STEPS: u32 = 6;
const ARRIVAL_STEP_BYTES: usize = 64 << 10;
/// How long what a client sent before it went away is kept, where the client owes something of a quota. What can't be
/// begun by then is dropped: nobody waits for its answer.
const GONE_HELD_MAX: Duration = Duration::from_secs(60);
/// How long a client has to log in.
const LOGIN_PATIENCE: Duration = Duration::from_secs(30);
/// Pieces that go out with one system call.
const PIECES_AT_ONCE: usize = 64;
/// A request's header up to its correlation id.
const HEADER_BYTES: usize = 8;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closing {
    #[error("malformed {api} request: {error}")]
    Malformed { api: &'static str, error: Malformed },
    #[error("{api} request with more than {max} items in its arrays: [kafka] items_max is {max}")]
    Items { api: &'static str, max: usize },
    #[error("a frame of {0} bytes is none")]
    Length(i32),
    #[error(
        "the client speaks TLS, and this listener does not: set `tls = true` for it, or tell the client to use none"
    )]
    Tls,
    #[error("a frame of {given} bytes: [kafka] frame_bytes_max is {max}")]
    TooLarge { given: usize, max: usize },
    #[error("API {api} in version {version} is not spoken here")]
    Unsupported { api: i16, version: i16 },
    #[error("{0} of a client that has not logged in, as it has to here")]
    Stranger(&'static str),
    #[error("its user, or its token, was removed")]
    LoggedOut,
    #[error("{0}")]
    Refused(String),
    #[error("nothing came for {0:?}")]
    Idle(Duration),
    #[error("it was held for {0:?}, and still owes something of its quota")]
    Held(Duration),
    #[error("it has not taken its answers in {0:?}")]
    Stalled(Duration),
    #[error("a frame of {0} bytes did not go on coming, or has not come in {1:?}")]
    Slow(usize, Duration),
    #[error("the client went away within a request")]
    Cut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Closing {
    /// What lines in the log about it are bounded by.
    fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } | Self::Items { .. } | Self::Length(_) => "malformed",
            Self::Tls => "TLS",
            Self::TooLarge { .. } => "too large",
            Self::Unsupported { .. } => "unsupported",
            Self::Stranger(_) | Self::LoggedOut => "no login",
            Self::Refused(_) => "refused",
            Self::Held(_) => "over its quota",
            Self::Idle(_) | Self::Stalled(_) | Self::Slow(..) => "too slow",
            Self::Cut | Self::Io(_) => "gone",
        }
    }
}

/// Answers a client until it goes away or errs.
/// `place` is its own among those who have not logged in, where clients have to.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    listener: Listening,
    place: Option<AddressPlace>,
    broker: Arc<Broker>,
) {
    let local = stream.local_addr().unwrap_or(listener.address);
    let advertised = listener.advertised;
    let Some(stream) = listener.acceptor.accept(stream, peer).await else { return };
    let connected = stream.peer(peer.to_string());
    let by = broker.env.now() + LOGIN_PATIENCE;
    let login = listener.users.zip(place).map(|(users, place)| PeerLogin::new(users, by, peer.ip(), place));
    broker.stats.connection_opened();
    let mut connection = Connection {
        peer: Arc::new(Peer {
            address: peer,
            connected,
            login,
            local,
            is_secured: stream.is_secured(),
            advertised,
            next_fetch: Mutex::new(broker.env.now()),
        }),
        stream,
        buffer: Buffer::default(),
        room: Room::None,
        under_way: VecDeque::new(),
        only_produce: true,
        held: Duration::ZERO,
        held_since: None,
        quota_changes: broker.quotas.changes(),
        broker: Arc::clone(&broker),
    };
    let ended = connection.run().await;
    connection.stream.close(&broker.env).await;
    broker.stats.connection_closed();
    match ended {
        Ok(()) => tracing::debug!(%peer, "the client closed its connection"),
        Err(Closing::Io(why)) => tracing::debug!(%peer, %why, "the connection broke"),
        Err(why @ (Closing::Idle(_) | Closing::Cut)) => tracing::debug!(%peer, %why, "closed"),
        Err(why) => {
            broker.stats.connection_refused();
            if let Some(left_out) = broker.complain(why.reason()) {
                tracing::warn!(%peer, %why, left_out, "closed a Kafka client's connection");
            }
        }
    }
}

struct Connection<S> {
    peer: Arc<Peer>,
    stream: S,
    buffer: Buffer,
    /// What the frame at the front of the buffer takes of the room for all.
    room: Room,
    /// Requests that were begun, oldest first.
    under_way: VecDeque<Begun>,
    /// Whether all of them are Produce, and others of its kind may begin behind them.
    only_produce: bool,
    /// For how long the request at the front of the buffer may not begin, because of what its client owes of a quota.
    held: Duration,
    /// Since when it is, without that anything was begun meanwhile.
    held_since: Option<Instant>,
    quota_changes: QuotaChanges,
    broker: Arc<Broker>,
}

/// The room of a large frame that is next to be carried out.
enum Room {
    /// Not asked for.
    None,
    /// Others have it. Nothing is read meanwhile.
    Wanted { permit: BoxFuture<'static, Option<OwnedSemaphorePermit>>, len: usize },
    /// Taken, until the frame was carried out; it has to arrive in time.
    Taken { permit: Option<OwnedSemaphorePermit>, arrival: RequestArrival },
}

/// When a large frame has to come.
#[derive(Clone, Copy)]
struct RequestArrival {
    len: usize,
    /// For all of it.
    patience: Duration,
    arrives_by: Instant,
    /// By when how many bytes have to be there.
    step_by: Instant,
    step_bytes: usize,
    /// Whether that time was over while nothing was read, and it was given once more.
    is_extended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers requests until the client goes away, and carries out what it sent before it did.
    async fn run(&mut self) -> Result<(), Closing> {
        let Err(ended) = self.exchange().await;
        if !matches!(ended, Closing::Cut | Closing::Io(_)) {
            return Err(ended);
        }
        self.carry_out_the_rest().await?;
        if matches!(ended, Closing::Cut) && self.buffer.is_empty() { Ok(()) } else { Err(ended) }
    }

    async fn exchange(&mut self) -> Result<Infallible, Closing> {
        loop {
            self.begin_requests().await?;
            let idle = self.patience();
            let env = self.broker.env.clone();
            let (is_waiting, held) = (!self.under_way.is_empty(), self.held);
            let is_held = !held.is_zero();
            self.held_since = is_held.then(|| self.held_since.unwrap_or_else(|| env.now()));
            let held_until = self.held_since.unwrap_or_default() + idle;
            let wants_room = matches!(self.room, Room::Wanted { .. });
            // A frame that has its room may begin beside what is under way, so all of it is read.
            let has_room = matches!(self.room, Room::Taken { .. });
            self.go_on_arriving();
            let session = self.peer.login.as_ref().and_then(PeerLogin::session);
            let has_session = session.is_some();
            let reads_on = (!is_waiting && !is_held) || has_room;
            let may_read = !wants_room && (reads_on || self.buffer.len() < AHEAD_BYTES_MAX);
            let (least, count) = if may_read { self.wanted() } else { (0, 0) };
            let mut space = self.buffer.space(least, count);
            let (room, arrival) = match &mut self.room {
                Room::None => (None, None),
                Room::Wanted { permit, len } => (Some((permit, *len)), None),
                Room::Taken { arrival, .. } => (None, Some(*arrival)),
            };
            tokio::select! {
                biased;
                outcome = async { (&mut self.under_way.front_mut().expect("it is waited for").answer).await }, if is_waiting => {
                    self.under_way.pop_front();
                    self.send(outcome).await?;
                }
                (permit, len) = took(room), if wants_room => self.room = self.taken(permit, len),
                read = self.stream.read_buf(&mut space), if may_read => if read? == 0 {
                    return Err(Closing::Cut);
                },
                closing = late(&env, arrival), if has_room => return Err(closing),
                () = logged_out(session), if has_session => return Err(Closing::LoggedOut),
                () = released(&env, held, &mut self.quota_changes), if is_held => {}
                () = env.sleep_until(held_until), if is_held && !is_waiting => return Err(Closing::Held(idle)),
                () = env.sleep(idle), if !is_waiting && !wants_room && !is_held => return Err(Closing::Idle(idle)),
            }
        }
    }

    /// Carries out the whole requests that are there. Nobody is there to be answered, so what others decide about is
    /// begun only.
    async fn carry_out_the_rest(&mut self) -> Result<(), Closing> {
        // All of it together: each request may have to wait for its quota, and the connection counts meanwhile.
        let until = self.broker.env.now() + GONE_HELD_MAX;
        loop {
            self.begin_requests().await?;
            if let Some(Begun { answer, waits_for_others, .. }) = self.under_way.pop_front() {
                let outcome = if waits_for_others { answer.now_or_never() } else { Some(answer.await) };
                if let Some(Outcome::Close(why)) = outcome {
                    return Err(Closing::Refused(why));
                }
                continue;
            }
            match &mut self.room {
                Room::Wanted { permit, len } if self.buffer.len() >= *len + 4 => {
                    let (permit, len) = (permit.await, *len);
                    self.room = self.taken(permit, len);
                }
                _ if !self.held.is_zero() && self.broker.env.now() + self.held <= until => {
                    released(&self.broker.env, self.held, &mut self.quota_changes).await;
                }
                _ => return Ok(()),
            }
        }
    }

    /// For how many bytes there has to be room next, and for how many if there is not: for the rest of the frame that
    /// has begun, in steps; in small ones as long as it counts against nothing.
    fn wanted(&self) -> (usize, usize) {
        let rest = match self.frame_len() {
            Ok(Some(len)) => Some((len + 4).saturating_sub(self.buffer.len())),
            _ => None,
        };
        let most = match self.room {
            Room::Taken { .. } => GROW_BYTES.max(self.buffer.len()),
            Room::None | Room::Wanted { .. } => SMALL_FRAME_BYTES_MAX,
        };
        // A frame's memory is made for exactly its rest: there is no need of more for the last bytes of it. Into no
        // room at all nothing could be read, which would look like the end of the stream.
        let least = rest.map_or(READ_BYTES, |rest| rest.clamp(1, READ_BYTES));
        (least, rest.unwrap_or(0).clamp(READ_BYTES, most))
    }

    /// Length of the frame at the front of the buffer, without the four bytes that say it.
    fn frame_len(&self) -> Result<Option<usize>, Closing> {
        let Some(prefix) = self.buffer.bytes().first_chunk() else { return Ok(None) };
        let len = i32::from_be_bytes(*prefix);
        let given =
            usize::try_from(len).ok().filter(|len| *len >= HEADER_BYTES).ok_or(Closing::Length(len))?;
        // Who has not logged in has nothing long to say.
        let max = match self.peer.is_stranger() {
            true => SMALL_FRAME_BYTES_MAX.min(self.broker.config.frame_bytes_max),
            false => self.broker.config.frame_bytes_max,
        };
        match given > max {
            true if is_hello(prefix) => Err(Closing::Tls),
            true if self.peer.is_stranger() => Err(Closing::Stranger("a long request")),
            true => Err(Closing::TooLarge { given, max }),
            false => Ok(Some(given)),
        }
    }

    /// Begins what has arrived and may begin, and asks for the room of what is next.
    async fn begin_requests(&mut self) -> Result<(), Closing> {
        self.held = Duration::ZERO;
        while let Some(len) = self.frame_len()? {
            let Some(api) = self.buffer.bytes().get(4..6) else { return Ok(()) };
            let api = i16::from_be_bytes([api[0], api[1]]);
            let is_produce = api == Api::Produce.number();
            let may_begin = self.under_way.is_empty()
                || (is_produce
                    && self.only_produce
                    && self.under_way.len() < PIPELINE_MAX
                    && self.leaves_room());
            if !may_begin {
                return Ok(());
            }
            // What has its room has to come, and so is not held any more.
            if let Room::None = self.room
                && let Some(client_id) = client_id(self.buffer.bytes())
            {
                self.held = self.broker.owed(&self.peer, client_id, Api::from_number(api));
                if !self.held.is_zero() {
                    return Ok(());
                }
            }
            if len > SMALL_FRAME_BYTES_MAX && matches!(self.room, Room::None) {
                if self.buffer.len() < SMALL_FRAME_BYTES_MAX {
                    return Ok(());
                }
                self.room = Room::Wanted { permit: Arc::clone(&self.broker).take_room(len).boxed(), len };
            }
            if matches!(self.room, Room::Wanted { .. }) || self.buffer.len() < len + 4 {
                return Ok(());
            }
            let request = self.buffer.take(len);
            let permit = match std::mem::replace(&mut self.room, Room::None) {
                Room::Taken { permit, .. } => permit,
                Room::None | Room::Wanted { .. } => None,
            };
            let begun = self.broker.begin(&self.peer, request, permit).await?;
            self.only_produce = is_produce && !begun.is_last;
            self.under_way.push_back(begun);
            self.held_since = None;
        }
        Ok(())
    }

    /// How long the next request is waited for.
    fn patience(&self) -> Duration {
        let idle = Duration::from_millis(self.broker.configs.now().idle_ms);
        match &self.peer.login {
            Some(login) if self.peer.is_stranger() => idle.min(login.by.since(self.broker.env.now())),
            _ => idle,
        }
    }

    /// Whether the answers to what is under way have no more of the room for all than a connection should.
    fn leaves_room(&self) -> bool {
        let held: usize = self.under_way.iter().map(|begun| begun.answer_bytes).sum();
        held <= self.broker.config.answers_bytes_max / 4
    }

    /// Room that was taken for a frame, which has to come from now on.
    fn taken(&self, permit: Option<OwnedSemaphorePermit>, len: usize) -> Room {
        let stalled = Duration::from_millis(self.broker.config.stalled_ms);
        let patience = stalled + ARRIVAL_PER_MIB * u32::try_from(len >> 20).unwrap_or(u32::MAX);
        let now = self.broker.env.now();
        let step_bytes = (self.buffer.len() + ARRIVAL_STEP_BYTES).min(len + 4);
        let (arrives_by, step_by) = (now + patience, now + stalled / ARRIVAL_STEPS);
        Room::Taken {
            permit,
            arrival: RequestArrival { len, patience, arrives_by, step_by, step_bytes, is_extended: false },
        }
    }

    /// Gives a frame that went on coming time for its next step.
    fn go_on_arriving(&mut self) {
        let there = self.buffer.len();
        let Room::Taken { arrival, .. } = &mut self.room else { return };
        let (now, stalled) = (self.broker.env.now(), Duration::from_millis(self.broker.config.stalled_ms));
        let is_there = there >= arrival.step_bytes;
        // An answer was waited for meanwhile, which is not the frame's doing.
        let is_late = now >= arrival.step_by && !arrival.is_extended;
        if is_there || is_late {
            arrival.is_extended = !is_there;
            arrival.step_bytes = if is_there { there + ARRIVAL_STEP_BYTES } else { arrival.step_bytes };
            arrival.step_bytes = arrival.step_bytes.min(arrival.len + 4);
            arrival.step_by = now + stalled / ARRIVAL_STEPS;
        }
    }

    async fn send(&mut self, outcome: Outcome) -> Result<(), Closing> {
        let (frame, _room) = match outcome {
            Outcome::Frame(frame, room) => (frame, room),
            Outcome::Nothing => return Ok(()),
            Outcome::Close(why) => return Err(Closing::Refused(why)),
        };
        let stalled = Duration::from_millis(self.broker.config.stalled_ms);
        let env = self.broker.env.clone();
        let sent = frame.len() as u64;
        // However little it takes at a time, it does not hold the answer for ever.
        let patience = stalled + ARRIVAL_PER_MIB * u32::try_from(sent >> 20).unwrap_or(u32::MAX);
        let taken_by = env.now() + patience;
        let mut pieces = frame;
        while !pieces.is_empty() {
            let left = taken_by.since(env.now()).min(stalled);
            match env.timeout(left, write_some(&mut self.stream, &pieces)).await {
                None => return Err(Closing::Stalled(patience)),
                Some(written) => skip(&mut pieces, written?),
            }
        }
        // In TLS the end of it may be in memory still. Mostly nothing is, and then there is nothing to be timed.
        match self.stream.flush().now_or_never() {
            Some(flushed) => flushed?,
            None => {
                let left = taken_by.since(env.now()).min(stalled);
                env.timeout(left, self.stream.flush()).await.ok_or(Closing::Stalled(patience))??;
            }
        }
        self.broker.stats.sent(sent);
        Ok(())
    }
}

/// What the client of a request calls itself, once that much of its frame is there.
fn client_id(frame: &[u8]) -> Option<&str> {
    let id = frame.get(4 + HEADER_BYTES..)?;
    let (len, id) = id.split_first_chunk()?;
    // One without a name has a length below zero.
    let len = usize::try_from(i16::from_be_bytes(*len)).unwrap_or(0);
    Some(std::str::from_utf8(id.get(..len)?).unwrap_or_default())
}

/// Completes when a client that was held has to be looked at again: its time is over, or quotas changed.
async fn released(env: &Env, held: Duration, changes: &mut QuotaChanges) {
    tokio::select! {
        biased;
        () = changes.changed() => {}
        () = env.sleep(held) => {}
    }
}

/// Completes when there is room for a frame.
async fn took(
    wanted: Option<(&mut BoxFuture<'static, Option<OwnedSemaphorePermit>>, usize)>,
) -> (Option<OwnedSemaphorePermit>, usize) {
    let (permit, len) = wanted.expect("room is wanted");
    (permit.await, len)
}

/// Completes when the user, or the token, is removed as which a client has logged in.
async fn logged_out(session: Option<LoginSession>) {
    session.expect("it has logged in").removed().await;
}

/// Completes when a frame should have come, or more of it.
async fn late(env: &Env, arrival: Option<RequestArrival>) -> Closing {
    let RequestArrival { len, patience, arrives_by, step_by, .. } = arrival.expect("one is on its way");
    env.sleep_until(arrives_by.min(step_by)).await;
    Closing::Slow(len, patience)
}

/// Sends the beginning of a frame; how many bytes.
async fn write_some<S: AsyncWrite + Unpin>(stream: &mut S, frame: &Frame) -> io::Result<usize> {
    let written = match &frame.pieces[..] {
        [only] => stream.write(only).await?,
        pieces => {
            let slices: Vec<IoSlice<'_>> =
                pieces.iter().take(PIECES_AT_ONCE).map(|piece| IoSlice::new(piece)).collect();
            stream.write_vectored(&slices).await?
        }
    };
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// Drops `count` bytes at the beginning.
fn skip(frame: &mut Frame, mut count: usize) {
    let mut gone = 0;
    for piece in &mut frame.pieces {
        let some = count.min(piece.len());
        piece.advance(some);
        count -= some;
        if !piece.is_empty() {
            break;
        }
        gone += 1;
    }
    frame.pieces.drain(..gone);
}
