//! An engine: one thread that serves its connections and waits for nothing but them.
//!
//! The loop is: wait; serve the sockets that are ready; end what is overdue; take in what other threads, and this one,
//! sent; look at the doorbell for parked WATCHes. What it waits with, and how bytes come off a socket and onto it, is
//! the driver's business ([`Driver`]); what the bytes mean is the session's.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tailwater_access::Peer;
use tailwater_env::{HashMap, Instant};

use crate::frame::CallAnswer;
use crate::limits::LOOK_AGAIN;
use crate::server::calls::{AtWorkers, CallJob};
use crate::server::driver::{Driver, DriverTurn, Gone};
use crate::server::listen::{AcceptedConnection, Listener};
use crate::server::login::ConnectionLogin;
use crate::server::mailbox::{Mailbox, Message};
use crate::server::secured::{self, Cipher};
use crate::server::session::{Call, Session, SessionEnded, World};
use crate::server::shared::EngineShared;
use crate::service::LoginTurn;
use crate::table::RegionTable;

/// Connections accepted before those that are there have their turn.
const ACCEPT_MAX: usize = 64;
/// How long to leave the listening sockets alone when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TOKEN_MAILBOX: u64 = 0;
const TOKEN_TIMER: u64 = 1;
const TOKEN_LISTENERS: u64 = 2;
const TOKEN_CONNECTIONS: u64 = 16;

/// One connection as the engine knows it; its socket is the driver's.
struct Connection {
    peer: Arc<Peer>,
    /// Where it came in.
    at: Arc<str>,
    unix: bool,
    session: Session,
    /// Its entry in the engine's deadlines; not later than its session's next one.
    armed: Option<Instant>,
    /// It was given the doorbell's page.
    mapped: bool,
    /// Memory accounted for it.
    memory: usize,
    /// Its CALLs that the workers have.
    at_workers: AtWorkers,
    login: ConnectionLogin,
}

/// One engine.
pub(crate) struct Engine<D> {
    driver: D,
    shared: Arc<EngineShared>,
    mailbox: Arc<Mailbox>,
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
    stopped: bool,
}

impl<D: Driver> Engine<D> {
    /// Engine `number` of those in `shared`; the first one is given the listening sockets and the doorbell's
    /// timer.
    pub(crate) fn new(
        mut driver: D,
        shared: Arc<EngineShared>,
        number: usize,
        listeners: Vec<Listener>,
    ) -> io::Result<Self> {
        let mailbox = shared.mailboxes[number].clone();
        driver.watch(mailbox.event(), TOKEN_MAILBOX)?;
        if number == 0 {
            driver.watch(shared.doorbell.timer(), TOKEN_TIMER)?;
        }
        for (listener, token) in listeners.iter().zip(TOKEN_LISTENERS..) {
            driver.watch(listener.as_fd(), token)?;
        }
        let doorbell_seen = shared.doorbell.value();
        Ok(Self {
            driver,
            shared,
            mailbox,
            listeners,
            accept_again: None,
            connections: HashMap::default(),
            next_connection: TOKEN_CONNECTIONS,
            next_engine: 0,
            deadlines: BTreeSet::new(),
            watching: BTreeSet::new(),
            doorbell_seen,
            ready: VecDeque::new(),
            stopped: false,
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(mut self) {
        let mut events = Vec::new();
        let mut settled = self.settle();
        while !self.stopped {
            let timeout = if settled { self.timeout() } else { Duration::ZERO };
            if let Err(error) = self.driver.wait(timeout, &mut events) {
                tracing::error!(%error, "an engine cannot wait for its sockets and ends");
                return;
            }
            self.mailbox.stay();
            for token in events.drain(..) {
                match token {
                    TOKEN_MAILBOX => self.mailbox.woken(),
                    TOKEN_TIMER => self.shared.doorbell.timer_fired(),
                    TOKEN_LISTENERS..TOKEN_CONNECTIONS => self.accept((token - TOKEN_LISTENERS) as usize),
                    id => self.serve(id),
                }
            }
            for _ in 0..self.ready.len() {
                if let Some(id) = self.ready.pop_front() {
                    self.serve(id);
                }
            }
            self.check_deadlines();
            settled = self.settle();
        }
    }

    /// Takes in what was sent, and looks at the doorbell; whether there is nothing more, and whoever sends something
    /// from now on wakes the engine. Looks again once: what is done here has answers of its own. Sockets have their
    /// turn then.
    fn settle(&mut self) -> bool {
        for _ in 0..2 {
            let messages = self.mailbox.take();
            if messages.is_empty() && !self.has_rung() {
                return true;
            }
            self.mailbox.stay();
            self.take_in(messages);
            self.look_at_doorbell();
        }
        false
    }

    fn timeout(&self) -> Duration {
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
        wait
    }

    fn take_in(&mut self, messages: Vec<Message>) {
        let mut touched = BTreeSet::new();
        for message in messages {
            match message {
                Message::Serve(accepted) => self.begin(accepted),
                Message::AskAgain => self.ask_again(),
                Message::RegionsMoved { hang_up } => self.regions_moved(hang_up),
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
                Message::Login { connection, request, turn } => {
                    if self.take_turn(connection, request, turn) {
                        touched.insert(connection);
                    }
                }
                Message::LoggedOut { connection } => {
                    self.end_admitted(vec![(connection, SessionEnded::LoggedOut)]);
                }
            }
        }
        for id in touched {
            self.serve(id);
        }
    }

    /// Ends the connections of peers whom the service does not admit any more.
    fn ask_again(&mut self) {
        let admitted = self.connections.iter().filter(|(_, connection)| connection.session.is_admitted());
        let refused = admitted.filter_map(|(id, connection)| {
            let refusal = self.shared.service.admit(&connection.peer).err()?;
            Some((*id, SessionEnded::Refused(refusal.message)))
        });
        let refused = refused.collect();
        self.end_admitted(refused);
    }

    /// Ends connections that were admitted and are not any more: what they were told of libfabric is good for nothing
    /// then.
    fn end_admitted(&mut self, refused: Vec<(u64, SessionEnded)>) {
        let has_keys = |id: &u64| self.connections.get(id).is_some_and(|there| there.session.has_keys());
        if let Some(fabric) =
            self.shared.fabric.as_ref().filter(|_| refused.iter().any(|(id, _)| has_keys(id)))
        {
            fabric.renew();
        }
        for (id, ended) in refused {
            self.end(id, &ended.into());
        }
    }

    /// Goes by what came of a message of a login; whether the connection has an answer.
    fn take_turn(&mut self, id: u64, request: u64, turn: LoginTurn) -> bool {
        // A connection that is gone needs no answer.
        let Some(there) = self.connections.get_mut(&id) else { return false };
        let answer = match turn {
            LoginTurn::Challenge(challenge, dialogue) => {
                there.login.goes_on(dialogue);
                CallAnswer::Done(challenge)
            }
            LoginTurn::Done { answer, peer, over } => {
                there.peer = Arc::new(peer);
                let mailbox = Arc::clone(&self.mailbox);
                let out = async move {
                    over.await;
                    mailbox.send(Message::LoggedOut { connection: id });
                };
                there.login.is_done(self.shared.env.spawn("rma-login-over", out));
                there.session.logged_in();
                CallAnswer::Done(answer)
            }
            LoginTurn::Refused(refusal) => {
                there.login.is_refused();
                there.session.refuse_login();
                CallAnswer::Refused(refusal)
            }
        };
        match there.session.call_answered(request, &answer, self.shared.env.now()) {
            Ok(()) => true,
            Err(ended) => {
                self.end(id, &ended.into());
                false
            }
        }
    }

    /// Reads the regions where they are now, and ends the connections of those who have mapped them elsewhere if that
    /// is wanted.
    fn regions_moved(&mut self, hang_up: bool) {
        let table = RegionTable::of(&*self.shared.service);
        let admitted = self.connections.iter_mut().filter(|(_, there)| there.session.is_admitted());
        let elsewhere = admitted.filter_map(|(id, there)| (!there.session.read_from(&table)).then_some(*id));
        for id in elsewhere.collect::<Vec<_>>().into_iter().filter(|_| hang_up) {
            self.end(id, &SessionEnded::Moved.into());
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_MAX {
            match self.listeners[listener].accept() {
                Ok(accepted) => {
                    if !self.shared.count_connection() {
                        if let Some(left_out) = self.shared.complain("too many connections") {
                            let peer = &accepted.peer.address;
                            tracing::warn!(
                                peer,
                                at = &*accepted.at,
                                left_out,
                                "connection refused: the server has as many as it may"
                            );
                        }
                        continue;
                    }
                    let engine = self.next_engine;
                    self.next_engine = (engine + 1) % self.shared.mailboxes.len();
                    if !accepted.unix && self.shared.config.tls.is_secured() {
                        secured::shake_hands(&self.shared, accepted, engine);
                    } else if engine == 0 {
                        self.begin(accepted);
                    } else {
                        self.shared.mailboxes[engine].send(Message::Serve(accepted));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let out_of_room = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
                    if out_of_room.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
                        if let Some(left_out) = self.shared.complain("not accepted") {
                            tracing::warn!(%error, left_out, "cannot accept connections for a while");
                        }
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
        for (listener, token) in self.listeners.iter().zip(TOKEN_LISTENERS..) {
            self.driver.unwatch(listener.as_fd(), token);
        }
        self.accept_again = Some(self.shared.env.now() + ACCEPT_PAUSE);
    }

    fn resume_accepting(&mut self) {
        self.accept_again = None;
        for (listener, token) in self.listeners.iter().zip(TOKEN_LISTENERS..) {
            if let Err(error) = self.driver.watch(listener.as_fd(), token) {
                tracing::warn!(%error, "cannot listen again yet");
                self.accept_again = Some(self.shared.env.now() + ACCEPT_PAUSE);
            }
        }
    }

    fn begin(&mut self, accepted: AcceptedConnection) {
        let id = self.next_connection;
        self.next_connection += 1;
        let AcceptedConnection { socket, peer, at, unix, channel } = accepted;
        let is_private = unix || channel.is_some();
        let Some(login) = ConnectionLogin::of(&self.shared, &peer, is_private) else {
            if let Some(left_out) = self.shared.complain("too many strangers") {
                let max = self.shared.config.strangers_max;
                tracing::warn!(
                    peer = peer.address,
                    max,
                    left_out,
                    "refused: as many connections of its address as may be have not logged in"
                );
            }
            self.shared.uncount_connection();
            return;
        };
        if let Err(error) = self.driver.add(id, socket, channel.map(Cipher::new)) {
            if let Some(left_out) = self.shared.complain("not served") {
                tracing::warn!(peer = peer.address, %error, left_out, "cannot serve a connection");
            }
            self.shared.uncount_connection();
            return;
        }
        let session = Session::new(self.shared.session_limits(unix), self.shared.env.now());
        let connection = Connection {
            peer,
            at,
            unix,
            session,
            armed: None,
            mapped: false,
            memory: 0,
            at_workers: AtWorkers::default(),
            login,
        };
        self.connections.insert(id, connection);
        self.serve(id);
    }

    /// Gives a connection its turn, and settles what follows from it.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Connection { peer, unix, session, mapped, at_workers, login, .. } = connection;
        let (shared, mailbox) = (&self.shared, &self.mailbox);
        let doorbell = || shared.doorbell.value();
        // Who has a path to a Unix socket has no need of it.
        let fabric = || shared.fabric.as_ref().filter(|_| !*unix).map(|fabric| fabric.told());
        let mut submit = |call: Call| {
            let is_short = shared.service.is_short(call.method, &call.payload);
            let job = CallJob {
                peer: peer.clone(),
                method: call.method,
                payload: call.payload,
                connection: id,
                request: call.request,
                engine: mailbox.clone(),
            };
            if is_short && at_workers.is_none() {
                // Handing it over would take longer.
                job.run(&*shared.service);
                return true;
            }
            shared.calls.submit(job, at_workers.one_more())
        };
        let mut log_in = |call: Call| login.take(shared, mailbox, (&**peer, id), call);
        let world = World {
            now: shared.env.now(),
            service: &*shared.service,
            peer,
            doorbell: &doorbell,
            files: *unix,
            fabric: &fabric,
            submit: &mut submit,
            log_in: &mut log_in,
        };
        let turn = self.driver.turn(id, &mut DriverTurn { shared, session, world, mapped });
        let settled = turn.and_then(|again| {
            connection.account(&self.shared)?;
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
                    if connection.session.next_output().is_some() {
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
        self.driver.remove(id);
        let (peer, at) = (&connection.peer.address, &*connection.at);
        match (gone, gone.complaint().and_then(|reason| self.shared.complain(reason))) {
            (Gone::Closed, _) => tracing::debug!(peer, "connection closed by the peer"),
            (_, None) => {}
            (Gone::Io(reason), Some(left_out)) => {
                tracing::info!(peer, at, %reason, left_out, "connection failed");
            }
            (reason, Some(left_out)) => tracing::warn!(peer, at, %reason, left_out, "connection dropped"),
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
    }

    /// Whether the word moved since parked WATCHes were looked at.
    fn has_rung(&self) -> bool {
        !self.watching.is_empty() && self.shared.doorbell.value() != self.doorbell_seen
    }

    /// Completes parked WATCHes if the word moved, whether or not we were woken for that.
    fn look_at_doorbell(&mut self) {
        if !self.has_rung() {
            return;
        }
        let doorbell = self.shared.doorbell.value();
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

impl<D> Drop for Engine<D> {
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

impl Connection {
    /// Accounts for the memory held for the peer, which is little for all but those that are behind. When all of them
    /// hold more than they may, whoever holds more than its share and still grows has to go: never one that others
    /// left no room.
    fn account(&mut self, shared: &EngineShared) -> Result<(), Gone> {
        let memory = self.session.memory();
        let grew = memory > self.memory;
        let total = shared.change_memory(self.memory, memory);
        self.memory = memory;
        let is_full = grew && total > shared.config.memory_bytes_max;
        if is_full && memory > shared.memory_share() { Err(Gone::Memory { memory, total }) } else { Ok(()) }
    }
}
