//! The server: engine threads that answer for a service's regions.
//!
//! ```text
//! clients == sockets ==> engine threads ---- READ, SCAR: straight from the regions; short CALLs
//!                            |     ^
//!                 other CALL |     | answers, by mailbox
//!                            v     |
//!                     bounded queue, worker threads ---- the application
//! ```
//!
//! Connections in TLS have their handshakes in tasks of the runtime, and come to an engine behind that, which encrypts
//! and decrypts what they carry.
//!
//! Engines wait for sockets and for nothing else. A CALL that the application calls short they carry out themselves.
//! Everything a peer can make grow is bounded, and a peer that goes beyond a bound, or sends what is no frame, is
//! dropped with one line in the log; the others do not notice.

mod calls;
mod driver;
mod engine;
mod epoll;
#[cfg(not(feature = "ofi"))]
mod fabric;
#[allow(unsafe_code)]
mod groups;
mod limits;
pub(crate) mod listen;
mod login;
mod mailbox;
mod output;
mod pipe;
#[allow(unsafe_code)]
mod ring;
mod secured;
mod session;
mod shared;
mod uring;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tailwater_access::PlacesByAddress;
use tailwater_env::{Complaints, Env};
use tailwater_tls::Acceptor;

use crate::address::Address;
use crate::atomics::AtomicUsize;
use crate::doorbell::Doorbell;
use crate::service::Service;
use crate::table::RegionTable;

#[cfg(feature = "ofi")]
pub(crate) use crate::fabric::host::FabricHost;
use calls::Calls;
use driver::Driver;
use engine::Engine;
use epoll::Epoll;
#[cfg(not(feature = "ofi"))]
pub(crate) use fabric::FabricHost;
use listen::Listener;
pub(crate) use mailbox::Mailbox;
use mailbox::Message;
use shared::EngineShared;
use uring::Uring;
#[cfg(feature = "fuzz")]
pub(crate) use {
    limits::SessionLimits,
    output::NextOutput,
    session::{Session, World},
};

/// How long a dropped server waits for its engines, which end as soon as they are not in the application's `scar`.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// How a server's engines wait for their sockets and move bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring where the kernel has it, epoll otherwise.
    #[default]
    Auto,
    /// epoll.
    Epoll,
    /// io_uring, or no server.
    IoUring,
}

/// How long an address is tried again that a killed process may still have. Mostly it is some milliseconds.
pub const SOCKETS_OUTLIVE_PROCESS: Duration = Duration::from_secs(2);
const TAKEN_AGAIN_EVERY: Duration = Duration::from_millis(20);

/// Where a server listens, and how it is bounded.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// An IP address and port to listen at; port 0 lets the kernel choose.
    pub tcp: Option<SocketAddr>,
    /// What takes the connections of `tcp`: in TLS, or as they come.
    pub tls: Acceptor,
    /// A provider of libfabric's, such as `verbs;ofi_rxm` or `tcp;ofi_rxm`, that reads the regions for those who
    /// connect to `tcp` by [`Address::Ofi`]. What it reads is not encrypted, so it does not go with `tls`.
    pub ofi: Option<String>,
    /// A path to listen at. Clients there are given the regions themselves.
    pub unix: Option<PathBuf>,
    /// Engine threads; at most one less than the machine has cores, and at least one.
    pub engines: usize,
    /// What the engines run on.
    pub engine_kind: EngineKind,
    /// Worker threads for CALLs.
    pub call_workers: usize,
    /// CALLs that may wait for a worker; one more is answered "overloaded".
    pub calls_queued_max: usize,
    /// Payload bytes that may wait for a worker.
    pub call_bytes_queued_max: usize,
    /// Connections at the same time; one more is closed at once.
    pub connections_max: usize,
    /// Unsent bytes of one connection at which no more of its requests are taken up.
    pub output_bytes_max: usize,
    /// Bytes held for all connections together (requests half received, answers unsent). When they are more, a
    /// connection that grows and holds more than its share, this divided by the connections there are, is dropped; as
    /// each may have its share whatever the others do, all of them may hold twice as much.
    pub memory_bytes_max: usize,
    /// A connection that has not said HELLO by then is dropped.
    pub hello_deadline: Duration,
    /// A connection that has to log in, and has not by then, is dropped.
    pub login_deadline: Duration,
    /// Connections of an address, or of a network of IPv6, that have to log in and have not; one more is closed at
    /// once.
    pub strangers_max: usize,
    /// A connection that has not sent the rest of a frame by then is dropped.
    pub frame_deadline: Duration,
    /// A connection that takes none of its answers for so long is dropped.
    pub drain_deadline: Duration,
    /// A TCP connection that asks for nothing, and waits for nothing, for so long is dropped. Machines that
    /// vanish are noticed by keep-alive, and Unix sockets know by themselves.
    pub idle_deadline: Option<Duration>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            tcp: None,
            tls: Acceptor::plain(),
            ofi: None,
            unix: None,
            engines: 1,
            engine_kind: EngineKind::Auto,
            call_workers: 2,
            calls_queued_max: 1024,
            call_bytes_queued_max: 64 << 20,
            connections_max: 4096,
            output_bytes_max: 1 << 20,
            memory_bytes_max: 1 << 30,
            hello_deadline: Duration::from_secs(5),
            login_deadline: Duration::from_secs(30),
            strangers_max: 256,
            frame_deadline: Duration::from_secs(10),
            drain_deadline: Duration::from_secs(10),
            idle_deadline: Some(Duration::from_secs(15 * 60)),
        }
    }
}

/// A running server. Dropping it closes all connections and removes its socket file, and returns once that is
/// done; CALLs that run are not waited for.
pub struct Server {
    shared: Arc<EngineShared>,
    tcp: Option<SocketAddr>,
    unix: Option<PathBuf>,
    engine_kind: EngineKind,
    running: Arc<Running>,
}

impl Server {
    /// Listens, and starts the threads.
    ///
    /// # Errors
    /// If an address is taken, descriptors or memory have run out, or io_uring or libfabric was asked for and is not
    /// there.
    ///
    /// # Panics
    /// If `service` has more regions than [`crate::limits::REGIONS_MAX`].
    pub fn start(env: &Env, config: ServerConfig, service: Arc<dyn Service>) -> io::Result<Server> {
        let _checked = RegionTable::of(&*service);
        let mut listeners = Vec::new();
        if let Some(address) = config.tcp {
            listeners.push(Listener::tcp(address)?);
        }
        if let Some(path) = &config.unix {
            listeners.push(Listener::unix(path)?);
        }
        let tcp = listeners.iter().find_map(|listener| match listener {
            Listener::Tcp { address, .. } => Some(*address),
            Listener::Unix { .. } => None,
        });
        let unix = listeners.iter().find_map(|listener| match listener {
            Listener::Unix { name, .. } => Some(name.path().to_owned()),
            Listener::Tcp { .. } => None,
        });
        let fabric = start_fabric(env, &config, tcp, &service)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let engines = config.engines.clamp(1, cores.saturating_sub(1).max(1));
        let engine_kind = match config.engine_kind {
            EngineKind::Auto if Uring::is_supported() => EngineKind::IoUring,
            EngineKind::Auto => EngineKind::Epoll,
            kind => kind,
        };
        let mailboxes: Vec<_> =
            (0..engines).map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<_>>()?;
        let doorbell = Doorbell::create(env, mailboxes.clone())?;
        let calls = Calls::start(
            env,
            &service,
            config.call_workers,
            config.calls_queued_max,
            config.call_bytes_queued_max,
        );
        let shared = Arc::new(EngineShared {
            env: env.clone(),
            config,
            service,
            doorbell,
            calls,
            mailboxes,
            connections: AtomicUsize::new(0),
            memory: AtomicUsize::new(0),
            complaints: Complaints::default(),
            strangers: PlacesByAddress::default(),
            fabric,
        });
        let running = Arc::new(Running::default());
        // From here on dropping the server ends what was started.
        let server = Server { shared, tcp, unix, engine_kind, running };
        for number in 0..engines {
            let listeners = if number == 0 { std::mem::take(&mut listeners) } else { Vec::new() };
            server.start_engine(env, number, listeners)?;
        }
        Ok(server)
    }

    /// As [`Server::start`], at addresses that a server may have had whose process was killed. The kernel ends an
    /// io_uring, and lets go of the sockets in it, some time after its process is gone: so addresses that are taken are
    /// tried again for [`SOCKETS_OUTLIVE_PROCESS`].
    ///
    /// # Errors
    /// As of [`Server::start`].
    ///
    /// # Panics
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn take_over(env: &Env, config: ServerConfig, service: Arc<dyn Service>) -> io::Result<Server> {
        let until = env.now() + SOCKETS_OUTLIVE_PROCESS;
        loop {
            match Self::start(env, config.clone(), Arc::clone(&service)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && env.now() < until => {
                    env.sleep(TAKEN_AGAIN_EVERY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts an engine on a thread of its own, and returns once it is there.
    fn start_engine(&self, env: &Env, number: usize, listeners: Vec<Listener>) -> io::Result<()> {
        let (shared, kind) = (self.shared.clone(), self.engine_kind);
        let ended = self.running.begin();
        let (started, starts) = std::sync::mpsc::sync_channel(1);
        let run = async move {
            // Made on their thread: what they wait with belongs to the thread that made it.
            match kind {
                EngineKind::IoUring => run_engine(Uring::new(), shared, number, listeners, &started),
                _ => run_engine(Epoll::new(), shared, number, listeners, &started),
            }
            drop(ended);
        };
        env.spawn_dedicated("rma-engine", run).detach();
        starts.recv().unwrap_or_else(|_| Err(io::Error::other("the engine's thread did not start")))
    }

    /// The TCP address it listens at.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// The same as an address to connect to.
    pub fn tcp_address(&self) -> Option<Address> {
        let is_secured = self.shared.config.tls.is_secured();
        self.tcp.map(if is_secured { Address::Tls } else { Address::Tcp })
    }

    /// The address whose clients read over libfabric, if it serves that.
    pub fn ofi_address(&self) -> Option<Address> {
        self.tcp.filter(|_| self.shared.fabric.is_some()).map(Address::Ofi)
    }

    /// The socket's path it listens at.
    pub fn unix_path(&self) -> Option<&Path> {
        self.unix.as_deref()
    }

    /// What its engines run on; not `Auto`.
    pub fn engine_kind(&self) -> EngineKind {
        self.engine_kind
    }

    /// The doorbell to ring after publishing.
    pub fn doorbell(&self) -> Doorbell {
        self.shared.doorbell.clone()
    }

    /// What has its service asked again whom it admits.
    pub fn admission(&self) -> ServiceAdmission {
        ServiceAdmission { mailboxes: self.shared.mailboxes.clone(), fabric: self.shared.fabric.clone() }
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(crate::atomics::Ordering::Relaxed)
    }

    /// Bytes held for all connections at this moment.
    pub fn memory(&self) -> usize {
        self.shared.memory.load(crate::atomics::Ordering::Relaxed)
    }
}

/// Has a server's service asked again whom it admits, for as long as the server runs.
#[derive(Clone)]
pub struct ServiceAdmission {
    mailboxes: Vec<Arc<Mailbox>>,
    fabric: Option<Arc<FabricHost>>,
}

impl ServiceAdmission {
    /// Has every engine ask for each of its connections, and end those that [`Service::admit`] does not admit any more.
    /// What such a peer was told of libfabric is good for nothing then.
    /// What a peer on this host has mapped it can read on, until the service moves its regions elsewhere and empties
    /// them where they were.
    pub fn ask_again(&self) {
        for mailbox in &self.mailboxes {
            mailbox.send(Message::AskAgain);
        }
    }

    /// Has every engine read the service's regions where they are now: [`Service::regions`] answers regions with the
    /// same ids, lengths and generations as before, at another place in memory. Those who have mapped them stay
    /// connected, and read them where they were.
    pub fn regions_moved(&self) {
        self.tell_moved(false);
    }

    /// The same, and ends the connections of those who have mapped the regions where they were.
    pub fn hang_up_on_moved(&self) {
        self.tell_moved(true);
    }

    fn tell_moved(&self, hang_up: bool) {
        for mailbox in &self.mailboxes {
            mailbox.send(Message::RegionsMoved { hang_up });
        }
        if let Some(fabric) = &self.fabric {
            fabric.renew();
        }
    }
}

/// What reads the regions over libfabric, where that is wanted.
fn start_fabric(
    env: &Env,
    config: &ServerConfig,
    tcp: Option<SocketAddr>,
    service: &Arc<dyn Service>,
) -> io::Result<Option<Arc<FabricHost>>> {
    let Some(provider) = &config.ofi else { return Ok(None) };
    let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let Some(tcp) = tcp else {
        return invalid("libfabric needs an address of TCP beside it, for all that it does not do");
    };
    if config.tls.is_secured() {
        return invalid("libfabric does not encrypt what it reads: it does not go with TLS");
    }
    FabricHost::start(env, provider, tcp.ip(), Arc::clone(service)).map(|host| Some(Arc::new(host)))
}

/// An engine's thread: tells whether it started, and serves until it is stopped.
fn run_engine<D: Driver>(
    driver: io::Result<D>,
    shared: Arc<EngineShared>,
    number: usize,
    listeners: Vec<Listener>,
    started: &std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    let engine = driver.and_then(|driver| Engine::new(driver, shared, number, listeners));
    // Whoever starts it is there until it has heard.
    match engine {
        Ok(engine) => {
            let _ = started.send(Ok(()));
            engine.run();
        }
        Err(error) => drop(started.send(Err(error))),
    }
}

impl std::fmt::Debug for ServiceAdmission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ServiceAdmission").field(&self.mailboxes).finish()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("tcp", &self.tcp).field("unix", &self.unix).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.calls.stop();
        for mailbox in &self.shared.mailboxes {
            mailbox.send(Message::Stop);
        }
        if !self.running.wait(STOP_DEADLINE) {
            tracing::error!("an engine did not stop: the application's scar does not return");
        }
    }
}

/// Counts the engines that run.
#[derive(Default)]
struct Running {
    engines: Mutex<usize>,
    ended: Condvar,
}

/// One engine's share in [`Running`]; dropped, on its thread, when the engine is gone.
struct EndedGuard(Arc<Running>);

impl Running {
    fn begin(self: &Arc<Self>) -> EndedGuard {
        *self.engines.lock() += 1;
        EndedGuard(self.clone())
    }

    /// Whether all ended in time.
    fn wait(&self, limit: Duration) -> bool {
        let mut engines = self.engines.lock();
        !self.ended.wait_while_for(&mut engines, |engines| *engines > 0, limit).timed_out()
    }
}

impl Drop for EndedGuard {
    fn drop(&mut self) {
        *self.0.engines.lock() -= 1;
        self.0.ended.notify_all();
    }
}
