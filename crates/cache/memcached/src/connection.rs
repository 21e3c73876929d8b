//! One client's connection: requests in, answers out, in the order of the requests.
//!
//! What holds:
//! - A request is carried out when it is there as a whole, and the next one begins when it is over. Answers are sent
//!   when nothing more is there to be carried out, or there are [`FLUSH_BYTES`] of them.
//! - A client that does not read its answers is not read either, and is closed after a while.
//! - Values beyond [`SMALL_BYTES`] take room that all connections share, from the moment at which they are announced
//!   to the moment at which they are stored, and while they are sent. A value takes memory as it comes.
//! - A client that has to log in is told nothing before it has.

mod meta;
mod text;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tailwater_access::{AddressPlace, Peer};
use tailwater_env::Instant;
use tailwater_login::{Login, LoginSession, LoginStep, Mechanism};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

use crate::front::MemcachedFront;
use crate::limits::{FLUSH_BYTES, LOGIN_PATIENCE, READ_BYTES, REFUSED_AFTER, SMALL_BYTES};
use crate::reply::Replies;
use crate::request::{Decoded, MemcachedRequest, RequestDecoder, StoreVerb, TextRequest};

/// Pieces that go out with one system call.
const PIECES_AT_ONCE: usize = 64;

const NO_ROOM: &str = "SERVER_ERROR out of memory: [memcached] values_bytes_max";

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemcachedEnd {
    #[error("the client closed it")]
    Closed,
    #[error("the client went away within a request")]
    Cut,
    #[error("nothing came for {0:?}")]
    Idle(Duration),
    #[error("it has not sent the rest of a request, or not taken its answers, in {0:?}")]
    Stalled(Duration),
    #[error("it has not logged in")]
    Stranger,
    #[error("its user was removed")]
    LoggedOut,
    #[error("{0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(crate) struct Connection<S> {
    stream: S,
    buffer: BytesMut,
    decoder: RequestDecoder,
    replies: Replies,
    front: Arc<MemcachedFront>,
    peer: Peer,
    /// By when it has to log in, if it has to and has not.
    login_by: Option<Instant>,
    /// How long it may go on, once it has.
    session: Option<LoginSession>,
    /// Its address's place for it among those that have not.
    place: Option<AddressPlace>,
    /// Room for the value that is being received.
    receiving: Option<OwnedSemaphorePermit>,
    /// Room for the values that are being sent.
    sending: Vec<OwnedSemaphorePermit>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn new(stream: S, peer: Peer, place: Option<AddressPlace>, front: Arc<MemcachedFront>) -> Self {
        let login_by = front.users.is_some().then(|| front.env.now() + LOGIN_PATIENCE);
        Self {
            stream,
            buffer: BytesMut::new(),
            decoder: RequestDecoder::default(),
            replies: Replies::default(),
            front,
            peer,
            login_by,
            session: None,
            place,
            receiving: None,
            sending: Vec::new(),
        }
    }

    /// Answers until the client goes away or errs.
    pub async fn run(&mut self) -> MemcachedEnd {
        loop {
            let done = match self.decoder.next(&mut self.buffer) {
                Decoded::Request(request) => self.carry_out(request).await,
                Decoded::Refused(why) => {
                    self.refuse(why);
                    Ok(())
                }
                Decoded::Closed(why) => {
                    self.refuse(why);
                    self.flush().await.and(Err(MemcachedEnd::Malformed(why)))
                }
                Decoded::More { data } => self.more(data).await,
            };
            let done = match done {
                Ok(()) if self.replies.len() >= FLUSH_BYTES => self.flush().await,
                done => done,
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    /// Sends what there is, and reads more.
    async fn more(&mut self, data: usize) -> Result<(), MemcachedEnd> {
        self.flush().await?;
        let of = Duration::from_millis;
        let (idle, stalled) = (of(self.front.config.idle_ms), of(self.front.config.stalled_ms));
        if data > SMALL_BYTES && self.receiving.is_none() {
            let room = Arc::clone(&self.front.room).acquire_many_owned(MemcachedFront::permits(data));
            match self.front.env.timeout(stalled, room).await {
                Some(Ok(permit)) => self.receiving = Some(permit),
                Some(Err(_)) | None => {
                    self.front.stats.store_no_memory.add(1);
                    self.refuse(NO_ROOM);
                    return self.flush().await.and(Err(MemcachedEnd::Malformed(NO_ROOM)));
                }
            }
        }
        let has_begun = self.decoder.has_begun(&self.buffer);
        let patience = if has_begun { stalled } else { idle };
        let patience = match self.login_by {
            Some(by) => patience.min(by.since(self.front.env.now())),
            None => patience,
        };
        self.buffer.reserve(READ_BYTES);
        let read = self.front.env.timeout(patience, self.stream.read_buf(&mut self.buffer)).await;
        match read {
            None if self.login_by.is_some_and(|by| by <= self.front.env.now()) => Err(MemcachedEnd::Stranger),
            None if has_begun => Err(MemcachedEnd::Stalled(stalled)),
            None => Err(MemcachedEnd::Idle(idle)),
            Some(Ok(0)) => Err(if has_begun { MemcachedEnd::Cut } else { MemcachedEnd::Closed }),
            Some(read) => {
                self.front.stats.bytes_read.add(read? as u64);
                Ok(())
            }
        }
    }

    /// Sends all answers that there are.
    async fn flush(&mut self) -> Result<(), MemcachedEnd> {
        // Before each read, and mostly all is sent by then.
        if self.replies.len() == 0 {
            return Ok(());
        }
        let stalled = Duration::from_millis(self.front.config.stalled_ms);
        self.front.stats.bytes_written.add(self.replies.len() as u64);
        let mut pieces = VecDeque::from(self.replies.take());
        while !pieces.is_empty() {
            let written = if let [only] = pieces.make_contiguous() {
                self.front.env.timeout(stalled, self.stream.write(only)).await
            } else {
                let slices: Vec<IoSlice<'_>> =
                    pieces.iter().take(PIECES_AT_ONCE).map(|piece| IoSlice::new(piece)).collect();
                self.front.env.timeout(stalled, self.stream.write_vectored(&slices)).await
            };
            let written = written.ok_or(MemcachedEnd::Stalled(stalled))??;
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            drop_written(&mut pieces, written);
        }
        self.sending.clear();
        // What is in TLS goes out now.
        let flushed = self.front.env.timeout(stalled, self.stream.flush()).await;
        Ok(flushed.ok_or(MemcachedEnd::Stalled(stalled))??)
    }

    fn refuse(&mut self, why: &str) {
        self.front.stats.refused_commands.add(1);
        self.replies.line(why);
    }

    async fn carry_out(&mut self, request: MemcachedRequest) -> Result<(), MemcachedEnd> {
        if self.session.as_ref().is_some_and(LoginSession::is_over) {
            return Err(MemcachedEnd::LoggedOut);
        }
        let carried_out = match request {
            request if self.login_by.is_some() => self.log_in(request).await,
            MemcachedRequest::Text(request) => self.text(request).await,
            MemcachedRequest::Meta(request) => {
                self.meta(request).await;
                Ok(())
            }
        };
        self.receiving = None;
        carried_out
    }

    /// The one request of who has not logged in: to store a name and a password, under any key.
    async fn log_in(&mut self, request: MemcachedRequest) -> Result<(), MemcachedEnd> {
        let credentials = match &request {
            MemcachedRequest::Text(TextRequest::Quit) => return self.quit().await,
            MemcachedRequest::Text(TextRequest::Store { verb: StoreVerb::Set, data, cas: None, .. }) => {
                data.splitn(2, |byte| *byte == b' ').collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        let ([user, password], Some(users)) = (&credentials[..], &self.front.users) else {
            self.refuse("CLIENT_ERROR unauthenticated");
            return Ok(());
        };
        self.front.stats.auth_cmds.add(1);
        let message = [&b"\0"[..], user, b"\0", password].concat();
        let address = self.peer.ip();
        let mut login = Login::begin(users, Mechanism::Plain, address);
        match login.step(&message).await {
            Ok(LoginStep::Done { user, .. }) => {
                self.peer = Peer::of(self.peer.address.clone(), &user);
                (self.login_by, self.place, self.session) = (None, None, login.session().cloned());
                self.replies.line("STORED");
            }
            Ok(LoginStep::Challenge(_)) | Err(_) => {
                self.front.stats.auth_errors.add(1);
                self.front.env.sleep(REFUSED_AFTER).await;
                self.refuse("CLIENT_ERROR authentication failure");
            }
        }
        Ok(())
    }

    async fn quit(&mut self) -> Result<(), MemcachedEnd> {
        self.flush().await.and(Err(MemcachedEnd::Closed))
    }

    /// Whether the client may do that; if not, it is told.
    fn may(&mut self, operation: &str) -> bool {
        match self.front.may(&self.peer, operation) {
            Ok(()) => true,
            Err(denied) => {
                let why = denied.to_string().replace(|of: char| of.is_ascii_control(), " ");
                self.refuse(&format!("CLIENT_ERROR not authorized: {why}"));
                false
            }
        }
    }

    /// Takes room for a value that is about to be sent; `false` if there is none.
    fn has_room(&mut self, value: &Bytes) -> bool {
        if value.len() <= SMALL_BYTES {
            return true;
        }
        let room = Arc::clone(&self.front.room);
        match room.try_acquire_many_owned(MemcachedFront::permits(value.len())) {
            Ok(permit) => {
                self.sending.push(permit);
                true
            }
            Err(_) => false,
        }
    }
}

fn drop_written(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(first) = pieces.front_mut() {
        if written < first.len() {
            first.advance(written);
            return;
        }
        written -= first.len();
        pieces.pop_front();
    }
}
