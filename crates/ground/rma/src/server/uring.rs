//! Driving sockets with io_uring: one system call submits the sends of a whole round, and waits for what the
//! kernel received meanwhile into buffers it was given.
//!
//! A socket has at most one receive (which goes on until it is cancelled) and one send under way. What came is kept
//! until the socket's next turn, at most what fits in the ring's buffers. A session that wants no input has its
//! receive cancelled.
//!
//! Against epoll, on one engine over loopback: the same server time for each read of a large batch and for one
//! connection that asks for one thing at a time, 7 to 20 % less with 64 connections that do (6.2 to 6.8 us against
//! 7.2 to 7.9, on a machine busy with other things).
//!
//! A socket that is removed is shut down, which ends both, and closed when they have ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use tailwater_env::HashMap;

use crate::frame;
use crate::limits::OUTPUT_BYTES_KEPT;
use crate::server::driver::{Driver, DriverTurn, Gone};
use crate::server::pipe::Pipe;
use crate::server::ring::{Completion, Ring, is};
use crate::server::secured::Cipher;
use crate::server::session::Session;

/// Output buffers kept for the next sends.
const SPARES: usize = 16;

/// Room that is made at once for the rest of a long frame, in what has come of it.
const INBOX_GROWTH: usize = 4;

/// A descriptor that is polled for the engine.
struct Watched {
    fd: OwnedFd,
    /// A poll of it is under way.
    polled: bool,
    /// The engine wants to know; a poll that completes after it ceased to is not told.
    wanted: bool,
}

struct Socket {
    fd: OwnedFd,
    /// Received and not yet answered, the beginning of a frame included.
    inbox: BytesMut,
    cipher: Option<Cipher>,
    receiving: bool,
    cancelling: bool,
    /// A send is under way, of its buffer from this index on.
    sending: Option<usize>,
    /// What the last send did not take, from this index on.
    rest: Option<(Vec<u8>, usize)>,
    /// Bytes sent that the session does not know of.
    sent: usize,
    /// The far side closed, or something failed.
    gone: Option<Gone>,
    /// The engine was told that there is something.
    told: bool,
    /// Removed by the engine.
    closing: bool,
}

/// Sockets on one io_uring.
pub(crate) struct Uring {
    ring: Ring,
    watched: HashMap<u64, Watched>,
    sockets: HashMap<u64, Socket>,
    spares: Vec<Vec<u8>>,
    /// For all sockets with a cipher by turns: what is to be encrypted.
    plain: Vec<u8>,
    pipe: Pipe,
}

impl Uring {
    /// For the thread that calls this, and no other.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or not all of it that is needed, or forbids it.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            ring: Ring::new()?,
            watched: HashMap::default(),
            sockets: HashMap::default(),
            spares: Vec::new(),
            plain: Vec::new(),
            pipe: Pipe::new()?,
        })
    }

    /// Whether this kernel has what it takes.
    pub(crate) fn is_supported() -> bool {
        Ring::new().is_ok()
    }
}

fn keep(spares: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if spares.len() < SPARES && (1..=OUTPUT_BYTES_KEPT).contains(&buffer.capacity()) {
        buffer.clear();
        spares.push(buffer);
    }
}

impl Driver for Uring {
    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()> {
        for (token, watched) in &mut self.watched {
            if watched.wanted && !watched.polled {
                self.ring.poll(watched.fd.as_fd(), *token)?;
                watched.polled = true;
            }
        }
        let (sockets, watched, spares) = (&mut self.sockets, &mut self.watched, &mut self.spares);
        self.ring.wait(timeout, |completion| {
            let token = match completion {
                Completion::Polled { token } => {
                    if let Some(watched) = watched.get_mut(&token) {
                        watched.polled = false;
                        if watched.wanted {
                            tokens.push(token);
                        }
                    }
                    return;
                }
                Completion::Received { token, .. } | Completion::Sent { token, .. } => token,
            };
            let socket = sockets.get_mut(&token).expect("a socket stays until its operations ended");
            socket.complete(completion, spares);
            if socket.closing && !socket.receiving && socket.sending.is_none() {
                sockets.remove(&token);
            } else if !socket.closing && !std::mem::replace(&mut socket.told, true) {
                tokens.push(token);
            }
        })
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        match self.watched.get_mut(&token) {
            Some(watched) => watched.wanted = true,
            None => {
                let fd = fd.try_clone_to_owned()?;
                self.watched.insert(token, Watched { fd, polled: false, wanted: true });
            }
        }
        Ok(())
    }

    fn unwatch(&mut self, _fd: BorrowedFd<'_>, token: u64) {
        if let Some(watched) = self.watched.get_mut(&token) {
            watched.wanted = false;
        }
    }

    fn add(&mut self, id: u64, fd: OwnedFd, mut cipher: Option<Cipher>) -> io::Result<()> {
        let mut inbox = BytesMut::new();
        if let Some(cipher) = &mut cipher {
            cipher.open(&[], &mut inbox).map_err(|gone| io::Error::other(gone.to_string()))?;
        }
        // On a nonblocking one the kernel would answer that it has nothing, in place of waiting.
        rustix::io::ioctl_fionbio(&fd, false)?;
        let socket = Socket {
            fd,
            inbox,
            cipher,
            receiving: false,
            cancelling: false,
            sending: None,
            rest: None,
            sent: 0,
            gone: None,
            told: false,
            closing: false,
        };
        self.sockets.insert(id, socket);
        Ok(())
    }

    fn turn(&mut self, id: u64, turn: &mut DriverTurn<'_>) -> Result<bool, Gone> {
        let socket = self.sockets.get_mut(&id).expect("sockets go with their connections");
        socket.told = false;
        let sent = std::mem::take(&mut socket.sent);
        if sent > 0 {
            turn.session.sent(sent, turn.world.now);
        }
        let mut spare = self.spares.pop().unwrap_or_default();
        turn.session.lend_output(&mut spare);
        turn.session.return_input(std::mem::take(&mut socket.inbox));
        turn.session.answer(&mut turn.world)?;
        socket.inbox = turn.session.lend_input();
        if let Some(gone) = socket.gone.take() {
            return Err(gone);
        }
        if let Some(sent) = turn.send_files(&socket.fd) {
            // The first bytes on a fresh socket, which has room for them.
            turn.session.sent(sent?, turn.world.now);
        }
        let mut again = false;
        if socket.sending.is_none() {
            let next = match &mut socket.cipher {
                None => {
                    again = socket.rest.is_none() && socket.send_stretches(&mut self.pipe, turn)?;
                    socket.rest.take().or_else(|| Some((turn.session.take_output()?, 0)))
                }
                Some(_) if socket.rest.is_some() => socket.rest.take(),
                Some(_) if turn.session.next_output().is_none() => None,
                Some(cipher) => {
                    let mut sealed = self.spares.pop().unwrap_or_default();
                    cipher.seal(turn.session, &mut self.plain, &mut sealed)?;
                    Some((sealed, 0))
                }
            };
            if let Some((buffer, from)) = next {
                self.ring.send(socket.fd.as_fd(), id, buffer, from)?;
                socket.sending = Some(from);
            }
        }
        turn.session.return_output(&mut spare);
        keep(&mut self.spares, spare);
        if turn.session.wants_input() && !socket.receiving {
            self.ring.receive(socket.fd.as_fd(), id)?;
            socket.receiving = true;
        } else if !turn.session.wants_input() && socket.receiving && !socket.cancelling {
            self.ring.cancel_receive(id)?;
            socket.cancelling = true;
        }
        Ok(again)
    }

    fn remove(&mut self, id: u64) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        if socket.receiving || socket.sending.is_some() {
            socket.closing = true;
            // Ends both; it fails for sockets that are not connected any more, whose operations end anyway.
            let _ = rustix::net::shutdown(&socket.fd, rustix::net::Shutdown::Both);
        } else {
            self.sockets.remove(&id);
        }
    }
}

impl Socket {
    /// Sends everything up to the last stretch, as far as the socket takes it at once: the ring would have another
    /// thread of the kernel splice. What is left goes through the ring, as a copy. Whether anything went, and
    /// with it made room for further answers, of which no completion will tell.
    fn send_stretches(&self, pipe: &mut Pipe, turn: &mut DriverTurn<'_>) -> Result<bool, Gone> {
        let is_due = |session: &Session| session.output_ahead().next().is_some();
        if !is_due(turn.session) {
            return Ok(false);
        }
        // Splicing has no flag of its own for the socket. The ring's operations on it are none the wiser: whether
        // they wait is settled when they begin.
        rustix::io::ioctl_fionbio(&self.fd, true)?;
        let mut some = false;
        let result = loop {
            if !is_due(turn.session) {
                break Ok(some);
            }
            match pipe.send(turn.session.output_ahead(), self.fd.as_fd()) {
                Ok(sent) => {
                    turn.session.sent(sent, turn.world.now);
                    some = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(some),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error.into()),
            }
        };
        rustix::io::ioctl_fionbio(&self.fd, false)?;
        result
    }

    /// Takes in what became of an operation.
    fn complete(&mut self, completion: Completion<'_>, spares: &mut Vec<Vec<u8>>) {
        match completion {
            Completion::Polled { .. } => {}
            Completion::Received { result, more, .. } => {
                if !more {
                    self.receiving = false;
                    self.cancelling = false;
                }
                match result {
                    Ok([]) => self.gone = Some(Gone::Closed),
                    Ok(bytes) if !self.closing => self.take_in(bytes),
                    Ok(_) => {}
                    // Cancelled by us, or out of buffers, of which there are more by now: begun again when wanted.
                    Err(error)
                        if is(&error, &[libc::ECANCELED, libc::ENOBUFS, libc::EINTR, libc::EAGAIN]) => {}
                    Err(error) => self.gone = Some(error.into()),
                }
            }
            Completion::Sent { buffer, result, .. } => {
                let from = self.sending.take().expect("one was under way");
                let count = match result {
                    Ok(count) => count,
                    Err(error) if is(&error, &[libc::EINTR, libc::EAGAIN]) => 0,
                    Err(error) => {
                        self.gone = Some(error.into());
                        return;
                    }
                };
                let is_all = from + count == buffer.len();
                self.sent += match &mut self.cipher {
                    None => count,
                    Some(cipher) => cipher.sent(count, is_all),
                };
                if !is_all {
                    self.rest = Some((buffer, from + count));
                } else {
                    keep(spares, buffer);
                }
            }
        }
    }

    /// Appends to what was received. The room that a long frame needs is made in few steps, each in proportion to what
    /// has come of it.
    fn take_in(&mut self, bytes: &[u8]) {
        if let Some(cipher) = &mut self.cipher {
            if let Err(gone) = cipher.open(bytes, &mut self.inbox) {
                self.gone = Some(gone);
            }
            return;
        }
        if self.inbox.capacity() - self.inbox.len() < bytes.len() {
            let come = self.inbox.len() + bytes.len();
            self.inbox.reserve(bytes.len().max(frame::missing(&self.inbox).min(INBOX_GROWTH * come)));
        }
        self.inbox.extend_from_slice(bytes);
    }
}
