//! Driving sockets with epoll: the kernel says which are ready, and receiving and sending are calls of their own.
//!
//! A connection is served until its socket has nothing more or takes nothing more, or it had its turn
//! ([`TURN_BYTES`]); then the next one is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tailwater_env::HashMap;

use crate::server::driver::{Driver, DriverTurn, Gone};
use crate::server::output::NextOutput;
use crate::server::pipe::Pipe;
use crate::server::secured::Cipher;
use crate::server::session::Session;

/// Bytes that one connection may receive and be sent before the others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Bytes taken off a socket at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// Events taken from the kernel at once.
const EVENTS: usize = 256;

struct Socket {
    fd: OwnedFd,
    /// What the kernel watches it for.
    interest: epoll::EventFlags,
    /// It may have bytes for us.
    readable: bool,
    /// It may take bytes.
    writable: bool,
    cipher: Option<Cipher>,
    /// What the cipher's other end had said together with its handshake.
    early: BytesMut,
    /// Encrypted and not taken by the socket yet, from this index on.
    sealed: Vec<u8>,
    sealed_from: usize,
}

/// Sockets on one epoll.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    sockets: HashMap<u64, Socket>,
    events: Vec<epoll::Event>,
    /// For all sockets by turns: what was just received, and what is just being sent.
    receive: Vec<u8>,
    output: Vec<u8>,
    plain: Plain,
    pipe: Pipe,
}

/// For all sockets with a cipher by turns: what came decrypted, and what is to be encrypted.
#[derive(Default)]
struct Plain {
    received: BytesMut,
    output: Vec<u8>,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: HashMap::default(),
            events: Vec::with_capacity(EVENTS),
            receive: vec![0; RECEIVE_BYTES],
            output: Vec::new(),
            plain: Plain::default(),
            pipe: Pipe::new()?,
        })
    }
}

impl Driver for Epoll {
    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        // The kernel counts whole milliseconds; rounded down, the last one would be spent spinning.
        let ms = u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let rounded = Duration::from_millis(ms);
        let tv_sec = i64::try_from(rounded.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec, tv_nsec: rounded.subsec_nanos().into() };
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, events, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let (token, flags) = (event.data.u64(), event.flags);
            if let Some(socket) = self.sockets.get_mut(&token) {
                // A hang-up or an error shows in the next receive or send.
                let dead = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                socket.readable |= flags != epoll::EventFlags::OUT;
                socket.writable |= flags.intersects(epoll::EventFlags::OUT | dead);
            }
            tokens.push(token);
        }
        Ok(())
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(())
    }

    fn unwatch(&mut self, fd: BorrowedFd<'_>, _token: u64) {
        // It fails for what is not watched only.
        let _ = epoll::delete(&self.epoll, fd);
    }

    fn add(&mut self, id: u64, fd: OwnedFd, mut cipher: Option<Cipher>) -> io::Result<()> {
        let mut early = BytesMut::new();
        if let Some(cipher) = &mut cipher {
            cipher.open(&[], &mut early).map_err(|gone| io::Error::other(gone.to_string()))?;
        }
        let interest = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id), interest)?;
        let socket = Socket {
            fd,
            interest,
            readable: true,
            writable: true,
            cipher,
            early,
            sealed: Vec::new(),
            sealed_from: 0,
        };
        self.sockets.insert(id, socket);
        Ok(())
    }

    fn turn(&mut self, id: u64, turn: &mut DriverTurn<'_>) -> Result<bool, Gone> {
        let socket = self.sockets.get_mut(&id).expect("sockets go with their connections");
        turn.session.lend_output(&mut self.output);
        let again = move_bytes(socket, &mut self.pipe, &mut self.receive, &mut self.plain, turn);
        turn.session.return_output(&mut self.output);
        let again = again?;
        socket.watch_for(turn.session, &self.epoll, id)?;
        Ok(again)
    }

    fn remove(&mut self, id: u64) {
        // Closing it takes it off the epoll as well: nobody else has the descriptor.
        self.sockets.remove(&id);
    }
}

/// Receives, answers and sends until there is nothing to do; `true` if only the turn's end stopped it.
fn move_bytes(
    socket: &mut Socket,
    pipe: &mut Pipe,
    receive: &mut [u8],
    plain: &mut Plain,
    turn: &mut DriverTurn<'_>,
) -> Result<bool, Gone> {
    let mut turn_bytes = 0;
    if !socket.early.is_empty() {
        turn.session.receive(&std::mem::take(&mut socket.early), &mut turn.world)?;
    }
    loop {
        let mut progress = false;
        if socket.readable && turn.session.wants_input() {
            match rustix::net::recv(&socket.fd, &mut receive[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Gone::Closed),
                Ok((count, _)) => {
                    // A socket that had less than we asked for is empty; if not, the kernel will say so.
                    socket.readable = count == receive.len();
                    turn_bytes += count;
                    progress = true;
                    let received = match &mut socket.cipher {
                        None => &receive[..count],
                        Some(cipher) => {
                            plain.received.clear();
                            cipher.open(&receive[..count], &mut plain.received)?;
                            &plain.received[..]
                        }
                    };
                    turn.session.receive(received, &mut turn.world)?;
                }
                Err(Errno::AGAIN) => socket.readable = false,
                Err(Errno::INTR) => progress = true,
                Err(error) => return Err(error.into()),
            }
        }
        while socket.cipher.is_some() && socket.writable && socket.has_output(turn.session) {
            match socket.send_sealed(&mut plain.output, turn) {
                Ok(count) => {
                    turn_bytes += count;
                    progress = true;
                }
                Err(Gone::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => socket.writable = false,
                Err(Gone::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(gone) => return Err(gone),
            }
        }
        while socket.cipher.is_none() && socket.writable && turn.session.next_output().is_some() {
            let sent = match (turn.send_files(&socket.fd), turn.session.next_output()) {
                (Some(sent), _) => sent,
                (None, Some(NextOutput::LastBytes(bytes))) => {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    rustix::net::send(&socket.fd, bytes, flags).map_err(io::Error::from)
                }
                (None, Some(_)) => pipe.send(turn.session.output_ahead(), socket.fd.as_fd()),
                (None, None) => break,
            };
            match sent {
                Ok(count) => {
                    turn.session.sent(count, turn.world.now);
                    turn_bytes += count;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        turn.session.answer(&mut turn.world)?;
        progress |= socket.writable && socket.has_output(turn.session);
        if !progress {
            return Ok(false);
        }
        if turn_bytes >= TURN_BYTES {
            return Ok(true);
        }
    }
}

impl Socket {
    /// Whether there is something to be sent.
    fn has_output(&self, session: &Session) -> bool {
        !self.sealed.is_empty() || session.next_output().is_some()
    }

    /// Sends what is encrypted, and if there is nothing encrypts what is next; how many bytes.
    fn send_sealed(&mut self, plain: &mut Vec<u8>, turn: &mut DriverTurn<'_>) -> Result<usize, Gone> {
        let cipher = self.cipher.as_mut().expect("it is one in TLS");
        if self.sealed.is_empty() {
            cipher.seal(turn.session, plain, &mut self.sealed)?;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let count = rustix::net::send(&self.fd, &self.sealed[self.sealed_from..], flags)?;
        self.sealed_from += count;
        let is_all = self.sealed_from == self.sealed.len();
        turn.session.sent(cipher.sent(count, is_all), turn.world.now);
        if is_all {
            // An idle connection holds no memory.
            (self.sealed, self.sealed_from) = (Vec::new(), 0);
        }
        Ok(count)
    }

    /// Has the kernel watch the socket for what can be acted upon.
    fn watch_for(&mut self, session: &Session, epoll: &OwnedFd, id: u64) -> io::Result<()> {
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, session.wants_input());
        interest.set(epoll::EventFlags::OUT, self.has_output(session));
        if interest != self.interest {
            epoll::modify(epoll, &self.fd, epoll::EventData::new_u64(id), interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}
