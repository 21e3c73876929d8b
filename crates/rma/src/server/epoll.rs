//! An engine on epoll: one thread that serves its connections and waits for nothing but them.
//!
//! The loop is: wait; take in what other threads sent; serve the sockets that are ready; look at the doorbell for
//! parked WATCHes; end what is overdue. A connection is served until its socket has nothing more or takes nothing
//! more, or it had its turn ([`TURN_BYTES`]); then the next one is.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tailwater_env::{HashMap, Instant};

use crate::limits::LOOK_AGAIN;
use crate::server::calls::Job;
use crate::server::listen::{Accepted, Listener};
use crate::server::mailbox::{Mailbox, Message};
use crate::server::session::{Call, Ended, Session, World};
use crate::server::shared::Shared;
use crate::service::Peer;
use crate::socket::send_with_files;

/// Bytes that one connection may be sent before the others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Bytes taken off a socket at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// Connections accepted before those that are there have their turn.
const ACCEPT_MAX: usize = 64;
/// How long to leave the listening sockets alone when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Events taken from the kernel at once.
const EVENTS: usize = 256;

const TOKEN_MAILBOX: u64 = 0;
const TOKEN_TIMER: u64 = 1;
const TOKEN_LISTENERS: u64 = 2;
const TOKEN_CONNECTIONS: u64 = 16;

/// What ends a connection, for the log.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("closed by the peer")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Ended(#[from] Ended),
    #[error("the server's buffers are full: {0} bytes")]
    Memory(usize),
}

impl From<Errno> for Gone {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

struct Connection {
    socket: OwnedFd,
    peer: Arc<Peer>,
    unix: bool,
    session: Session,
    /// What the kernel watches the socket for.
    interest: epoll::EventFlags,
    /// The socket may have bytes for us.
    readable: bool,
    /// The socket may take bytes.
    writable: bool,
    /// Its entry in the engine's deadlines; not later than its session's next one.
    armed: Option<Instant>,
    /// It was given the doorbell's page.
    mapped: bool,
    /// Memory accounted for it.
    memory: usize,
}

/// One engine.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    accept_again: Option<Instant>,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    next_engine: usize,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Connections with parked WATCHes.
    watching: BTreeSet<u64>,
    doorbell_seen: u32,
    /// Connections that had their turn and want another one.
    ready: VecDeque<u64>,
    receive: Vec<u8>,
    output: Vec<u8>,
    stopped: bool,
}

impl Engine {
    /// Engine `number` of those in `shared`; the first one is given the listening sockets and the doorbell's
    /// timer.
    pub(crate) fn new(shared: Arc<Shared>, number: usize, listeners: Vec<Listener>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mailbox = shared.mailboxes[number].clone();
        let watch = |fd: BorrowedFd<'_>, token: u64| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        watch(mailbox.event(), TOKEN_MAILBOX)?;
        if number == 0 {
            watch(shared.doorbell.timer(), TOKEN_TIMER)?;
        }
        for (listener, token) in listeners.iter().zip(TOKEN_LISTENERS..) {
            watch(listener.as_fd(), token)?;
        }
        let doorbell_seen = shared.doorbell.value();
        Ok(Self {
            shared,
            mailbox,
            epoll,
            listeners,
            accept_again: None,
            connections: HashMap::default(),
            next_connection: TOKEN_CONNECTIONS,
            next_engine: 0,
            deadlines: BTreeSet::new(),
            watching: BTreeSet::new(),
            doorbell_seen,
            ready: VecDeque::new(),
            receive: vec![0; RECEIVE_BYTES],
            output: Vec::new(),
            stopped: false,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stopped {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "an engine cannot wait for its sockets and ends");
                    return;
                }
            }
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                match token {
                    TOKEN_MAILBOX => self.take_messages(),
                    TOKEN_TIMER => self.shared.doorbell.timer_fired(),
                    TOKEN_LISTENERS..TOKEN_CONNECTIONS => self.accept((token - TOKEN_LISTENERS) as usize),
                    id => self.socket_ready(id, flags),
                }
            }
            for _ in 0..self.ready.len() {
                if let Some(id) = self.ready.pop_front() {
                    self.serve(id);
                }
            }
            self.look_at_doorbell();
            self.check_deadlines();
        }
    }

    fn timeout(&self) -> Timespec {
        let now = self.shared.env.now();
        let mut wait = Duration::from_secs(3600);
        if let Some((deadline, _)) = self.deadlines.first() {
            wait = wait.min(deadline.since(now));
        }
        if let Some(again) = self.accept_again {
            wait = wait.min(again.since(now));
        }
        if !self.watching.is_empty() {
            wait = wait.min(LOOK_AGAIN);
        }
        if !self.ready.is_empty() {
            wait = Duration::ZERO;
        }
        // The kernel counts whole milliseconds; rounded down, the last one would be spent spinning.
        let ms = wait.as_nanos().div_ceil(1_000_000);
        let wait = Duration::from_millis(u64::try_from(ms).expect("an hour at most"));
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() }
    }

    fn take_messages(&mut self) {
        let mut touched = BTreeSet::new();
        for message in self.mailbox.take() {
            match message {
                Message::Serve(accepted) => self.begin(accepted),
                Message::Stop => self.stopped = true,
                Message::Answer { connection, request, answer } => {
                    let now = self.shared.env.now();
                    // A connection that is gone needs no answer.
                    if let Some(there) = self.connections.get_mut(&connection) {
                        match there.session.call_answered(request, &answer, now) {
                            Ok(()) => {
                                touched.insert(connection);
                            }
                            Err(ended) => self.end(connection, &ended.into()),
                        }
                    }
                }
            }
        }
        for id in touched {
            self.serve(id);
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_MAX {
            match self.listeners[listener].accept() {
                Ok(accepted) => {
                    if !self.shared.count_connection() {
                        let peer = &accepted.peer.address;
                        tracing::warn!(peer, "connection refused: the server has as many as it may");
                        continue;
                    }
                    let engine = self.next_engine;
                    self.next_engine = (engine + 1) % self.shared.mailboxes.len();
                    if engine == 0 {
                        self.begin(accepted);
                    } else {
                        self.shared.mailboxes[engine].send(Message::Serve(accepted));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let out_of_room = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
                    if out_of_room.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
                        tracing::warn!(%error, "cannot accept connections for a while");
                        self.pause_accepting();
                        return;
                    }
                    // That connection ended before it began.
                    tracing::debug!(%error, "accepting a connection failed");
                }
            }
        }
    }

    fn pause_accepting(&mut self) {
        for listener in &self.listeners {
            // Registered for as long as no pause is on; a failure would only cost repeated warnings.
            let _ = epoll::delete(&self.epoll, listener);
        }
        self.accept_again = Some(self.shared.env.now() + ACCEPT_PAUSE);
    }

    fn resume_accepting(&mut self) {
        self.accept_again = None;
        for (listener, token) in self.listeners.iter().zip(TOKEN_LISTENERS..) {
            let data = epoll::EventData::new_u64(token);
            if let Err(error) = epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN) {
                tracing::warn!(%error, "cannot listen again yet");
                self.accept_again = Some(self.shared.env.now() + ACCEPT_PAUSE);
            }
        }
    }

    fn begin(&mut self, accepted: Accepted) {
        let id = self.next_connection;
        self.next_connection += 1;
        let Accepted { socket, peer, unix } = accepted;
        let interest = epoll::EventFlags::IN;
        if let Err(error) = epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(id), interest) {
            tracing::warn!(peer = peer.address, %error, "cannot serve a connection");
            self.shared.uncount_connection();
            return;
        }
        let session = Session::new(self.shared.session_limits(unix), self.shared.env.now());
        let connection = Connection {
            socket,
            peer,
            unix,
            session,
            interest,
            readable: true,
            writable: true,
            armed: None,
            mapped: false,
            memory: 0,
        };
        self.connections.insert(id, connection);
        self.serve(id);
    }

    fn socket_ready(&mut self, id: u64, flags: epoll::EventFlags) {
        if let Some(connection) = self.connections.get_mut(&id) {
            // A hang-up or an error shows in the next receive or send.
            connection.readable |= flags != epoll::EventFlags::OUT;
            let dead = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            connection.writable |= flags.intersects(epoll::EventFlags::OUT | dead);
            self.serve(id);
        }
    }

    /// Gives a connection its turn, and settles what follows from it.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let engine = (&self.mailbox, &mut self.receive);
        connection.session.lend_output(&mut self.output);
        let turn = turn(&self.shared, engine, id, connection);
        let settled = turn.and_then(|again| {
            connection.session.return_output(&mut self.output);
            connection.account(&self.shared)?;
            connection.watch_socket(&self.epoll, id)?;
            Ok(again)
        });
        match settled {
            Err(gone) => self.end(id, &gone),
            Ok(again) => {
                if again {
                    self.ready.push_back(id);
                }
                let deadline = connection.session.next_deadline();
                let sooner =
                    deadline.filter(|deadline| connection.armed.is_none_or(|armed| *deadline < armed));
                if let Some(deadline) = sooner {
                    if let Some(armed) = connection.armed.replace(deadline) {
                        self.deadlines.remove(&(armed, id));
                    }
                    self.deadlines.insert((deadline, id));
                }
                let parked = connection.session.parked() > 0;
                if parked && self.watching.insert(id) {
                    self.mailbox.parking.announce(self.watching.len());
                    // Behind the announcement: a ring before it is seen here, one behind it wakes us.
                    connection.session.look(self.shared.doorbell.value(), self.shared.env.now());
                    if !connection.session.output().is_empty() {
                        self.ready.push_back(id);
                    }
                } else if !parked && self.watching.remove(&id) {
                    self.mailbox.parking.announce(self.watching.len());
                }
            }
        }
    }

    fn end(&mut self, id: u64, gone: &Gone) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let peer = &connection.peer.address;
        match gone {
            Gone::Closed => tracing::debug!(peer, "connection closed by the peer"),
            Gone::Io(reason) => tracing::info!(peer, %reason, "connection failed"),
            reason => tracing::warn!(peer, %reason, "connection dropped"),
        }
        if connection.mapped {
            self.shared.doorbell.unmapped();
        }
        if let Some(armed) = connection.armed {
            self.deadlines.remove(&(armed, id));
        }
        if self.watching.remove(&id) {
            self.mailbox.parking.announce(self.watching.len());
        }
        self.shared.change_memory(connection.memory, 0);
        self.shared.uncount_connection();
        // Closing the socket takes it off the epoll as well: nobody else has its descriptor.
    }

    /// Completes parked WATCHes if the word moved, whether or not we were woken for that.
    fn look_at_doorbell(&mut self) {
        let doorbell = self.shared.doorbell.value();
        if doorbell == self.doorbell_seen || self.watching.is_empty() {
            return;
        }
        self.doorbell_seen = doorbell;
        let now = self.shared.env.now();
        for id in self.watching.iter().copied().collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.session.look(doorbell, now);
                self.serve(id);
            }
        }
    }

    fn check_deadlines(&mut self) {
        let now = self.shared.env.now();
        if self.accept_again.is_some_and(|again| again <= now) {
            self.resume_accepting();
        }
        while let Some((deadline, id)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.remove(&(deadline, id));
            let connection = self.connections.get_mut(&id).expect("deadlines go with their connections");
            connection.armed = None;
            connection.session.look(self.shared.doorbell.value(), now);
            match connection.session.check_deadlines(now) {
                Ok(()) => self.serve(id),
                Err(ended) => self.end(id, &ended.into()),
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            if connection.mapped {
                self.shared.doorbell.unmapped();
            }
            self.shared.change_memory(connection.memory, 0);
            self.shared.uncount_connection();
        }
        self.mailbox.parking.announce(0);
    }
}

/// Receives, answers and sends until there is nothing to do; `true` if only the turn's end stopped it.
fn turn(
    shared: &Arc<Shared>,
    (mailbox, receive): (&Arc<Mailbox>, &mut Vec<u8>),
    id: u64,
    connection: &mut Connection,
) -> Result<bool, Gone> {
    let Connection { socket, peer, unix, session, readable, writable, mapped, .. } = connection;
    let doorbell = || shared.doorbell.value();
    let mut submit = |call: Call| {
        shared.calls.submit(Job {
            peer: peer.clone(),
            method: call.method,
            payload: call.payload,
            connection: id,
            request: call.request,
            engine: mailbox.clone(),
        })
    };
    let now = shared.env.now();
    let mut world =
        World { now, service: &*shared.service, doorbell: &doorbell, files: *unix, submit: &mut submit };
    let mut turn_bytes = 0;
    loop {
        let mut progress = false;
        if *readable && session.wants_input() {
            match rustix::net::recv(&*socket, &mut receive[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Gone::Closed),
                Ok((count, _)) => {
                    // A socket that had less than we asked for is empty; if not, the kernel will say so.
                    *readable = count == receive.len();
                    turn_bytes += count;
                    progress = true;
                    session.receive(&receive[..count], &mut world)?;
                }
                Err(Errno::AGAIN) => *readable = false,
                Err(Errno::INTR) => progress = true,
                Err(error) => return Err(error.into()),
            }
        }
        while *writable && !session.output().is_empty() {
            match send(shared, socket, session, mapped) {
                Ok(count) => {
                    session.sent(count, now);
                    turn_bytes += count;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => *writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        session.answer(&mut world)?;
        progress |= *writable && !session.output().is_empty();
        if !progress {
            return Ok(false);
        }
        if turn_bytes >= TURN_BYTES {
            return Ok(true);
        }
    }
}

/// Sends some of the output, with the descriptors if they are due.
fn send(
    shared: &Arc<Shared>,
    socket: &OwnedFd,
    session: &mut Session,
    mapped: &mut bool,
) -> io::Result<usize> {
    let Some(table) = session.files_due() else {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        return Ok(rustix::net::send(socket, session.output(), flags)?);
    };
    // Counted before the page can be mapped, so that no wake is left out.
    if !*mapped {
        shared.doorbell.mapped();
        *mapped = true;
    }
    let regions = table.regions().iter().filter_map(|region| region.file());
    let files: Vec<_> = std::iter::once(shared.doorbell.file()).chain(regions).collect();
    let count = send_with_files(socket, session.output(), &files)?;
    session.files_sent();
    Ok(count)
}

impl Connection {
    /// Has the kernel watch the socket for what can be acted upon.
    fn watch_socket(&mut self, epoll: &OwnedFd, id: u64) -> io::Result<()> {
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, self.session.wants_input());
        interest.set(epoll::EventFlags::OUT, !self.session.output().is_empty());
        if interest != self.interest {
            epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(id), interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Accounts for the memory held for the peer, which is little for all but those that are behind.
    fn account(&mut self, shared: &Shared) -> Result<(), Gone> {
        let memory = self.session.memory();
        let grew = memory > self.memory;
        let total = shared.change_memory(self.memory, memory);
        self.memory = memory;
        if grew && total > shared.memory_bytes_max() { Err(Gone::Memory(total)) } else { Ok(()) }
    }
}
