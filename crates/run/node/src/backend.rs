//! One cache backend and its server: inside the node, or as a process of its own.

mod near;
mod readers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use tailwater_access::{AccessRequest, Authorizer, PRINCIPAL_OF_UID, Protocol, Resource};
use tailwater_cache::protocol::{
    METHOD_ACCEPT, METHOD_CHANGES, METHOD_CONFIG, METHOD_CONFIGURE, METHOD_END, METHOD_INFO, METHOD_JOIN,
    METHOD_LOAD, METHOD_LOOKUP, METHOD_MUTATE, METHOD_PROMISE, METHOD_SCAN, METHOD_TOUCH,
    REFUSED_NOT_AUTHORIZED,
};
use tailwater_cache::{Backend, BackendConfig, Backends, EvictionPolicy, RefillConfig};
use tailwater_env::{Env, Task};
use tailwater_quotas::{ClientQuotas, QuotaBound, QuotaTaker};
use tailwater_rma::{
    Address, Backing, DoorbellStats, LoginDemand, LoginDialogue, Peer, Refusal, Region, Reply, ScarHit,
    ScarOp, Server, ServerConfig, Service, ServiceAdmission,
};
use tailwater_tls::{Acceptor, Dialer};
use tokio::sync::Notify;

pub(crate) use self::near::NearBackend;
use self::readers::MappedReaders;
pub use crate::logins::CallLogins;

/// Which cell a backend is for: they differ in what they keep, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Chunks.
    Data,
    /// Lengths and locks.
    Metadata,
}

impl CellKind {
    /// The cell's number, which clients are told.
    pub const fn number(self) -> u32 {
        match self {
            CellKind::Data => 1,
            CellKind::Metadata => 2,
        }
    }

    /// Its name in configuration, metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            CellKind::Data => "data",
            CellKind::Metadata => "metadata",
        }
    }

    /// The one of the log's cells that has that name.
    pub fn named(name: &str) -> Option<Self> {
        [CellKind::Data, CellKind::Metadata].into_iter().find(|kind| kind.name() == name)
    }

    /// The size of the values that a backend is laid out for if nothing is said, in bytes: for chunks, what streams
    /// have if nothing is said.
    pub const fn value_bytes(self) -> u64 {
        match self {
            CellKind::Data => 4_096,
            CellKind::Metadata => tailwater_format::tails::TAIL_PAGE_BYTES_MAX as u64,
        }
    }
}

/// Quotas that are known once the metadata can be read, which may be after the cells are there.
pub type LateQuotas = Arc<OnceLock<Arc<ClientQuotas>>>;

/// How to run a backend.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// For which cell: of another one it takes no configuration.
    pub cell: String,
    /// Memory for values, in bytes.
    pub capacity_bytes: u64,
    /// The size of the values that its index is laid out for, in bytes.
    pub value_bytes: u64,
    /// Time to live.
    pub ttl: Duration,
    /// How full it may get before it evicts, in percent of the capacity, 1 to 100.
    pub eviction_percent: u8,
    /// Which values it evicts.
    pub eviction: EvictionPolicy,
    /// Where clients on other hosts connect.
    pub tcp: Option<SocketAddr>,
    /// What takes the connections there: in TLS, or as they come.
    pub tls: Acceptor,
    /// Who may log in over TCP, and who has to; nobody can where that is none. Processes of this host are known by
    /// their users of the system.
    pub logins: Option<Arc<CallLogins>>,
    /// What its readers' bytes count against, once it is known.
    pub quotas: LateQuotas,
    /// The provider of libfabric's that clients there can read by, if any.
    pub ofi: Option<String>,
    /// Where clients on this host connect.
    pub unix: Option<PathBuf>,
    /// Most connections.
    pub connections_max: usize,
    /// Engine threads.
    pub engines: usize,
    /// What connects to the other backends of the cell, which refill this one when it starts again.
    pub dialer: Dialer,
}

/// A backend that is being served.
pub struct ServedBackend {
    /// First of all, those in this process learn that it ends.
    near: Arc<NearBackend>,
    backend: Arc<Backend>,
    server: Server,
    /// Hang up on those who lost the right to read, and move what they have mapped.
    _revoking: [Task; 2],
}

impl ServedBackend {
    /// Starts one; `authorizer` says what whoever connects may do.
    pub async fn start(
        env: &Env,
        options: &BackendOptions,
        authorizer: Arc<dyn Authorizer>,
    ) -> anyhow::Result<Self> {
        let (capacity, values, name) = (options.capacity_bytes, options.value_bytes, &options.cell);
        // It is told its configuration by whoever knows it.
        let mut config = BackendConfig::data(capacity, values, 0, Backing::Shared);
        config.ttl = options.ttl;
        config.eviction = options.eviction;
        config.eviction_at = f64::from(options.eviction_percent) / 100.0;
        let backend = Backend::start(env, config).with_context(|| {
            format!(
                "the {name} cell's memory of {capacity} bytes can't be had: is /dev/shm or the memory limit too \
                 small? {}",
                match CellKind::named(name) {
                    Some(_) => format!("Lower capacity_bytes in [{name}_cell]"),
                    None => "Give its backends less capacity_bytes".to_owned(),
                }
            )
        })?;
        backend.is_for(name);
        let others = Backends::by_address_with(env, options.dialer.clone());
        backend.refill_from(others, RefillConfig::default());
        let config = ServerConfig {
            tcp: options.tcp,
            tls: options.tls.clone(),
            ofi: options.ofi.clone(),
            unix: options.unix.clone(),
            engines: options.engines,
            connections_max: options.connections_max,
            strangers_max: tailwater_login::limits::STRANGERS_MAX,
            ..ServerConfig::default()
        };
        let mut rights = authorizer.changes();
        let guarded = Arc::new(Guarded {
            cell: name.clone(),
            backend: Arc::clone(&backend),
            authorizer,
            logins: options.logins.clone(),
            quotas: Arc::clone(&options.quotas),
            readers: MappedReaders::new(rights.may_come()),
        });
        let server = Server::take_over(env, config, Arc::clone(&guarded) as _)
            .await
            .with_context(|| format!("the {name} cell's backend can't listen"))?;
        let doorbell = server.doorbell();
        backend.ring_on_change(move || doorbell.ring());
        let admission = server.admission();
        let wanted = Arc::new(Notify::new());
        let moving = keep_moving(env.clone(), Arc::clone(&guarded), admission.clone(), Arc::clone(&wanted));
        let asking = async move {
            loop {
                rights.changed().await;
                admission.ask_again();
                if guarded.forget_refused() {
                    wanted.notify_one();
                }
            }
        };
        let _revoking = [env.spawn("cell-rights", asking), env.spawn("cell-moves", moving)];
        let near = NearBackend::new(env, &backend);
        Ok(Self { near, backend, server, _revoking })
    }

    /// The way to it from within this process, which ends with it.
    pub(crate) fn near(&self) -> Weak<NearBackend> {
        Arc::downgrade(&self.near)
    }

    /// The backend itself, for this process.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// How often its doorbell woke whom.
    pub fn doorbell_stats(&self) -> DoorbellStats {
        self.server.doorbell().stats()
    }

    /// How many are connected to it.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Its address for other hosts.
    pub fn tcp_address(&self) -> Option<Address> {
        self.server.tcp_address()
    }

    /// Its address for clients that read over libfabric.
    pub fn ofi_address(&self) -> Option<Address> {
        self.server.ofi_address()
    }

    /// Its address on this host.
    pub fn unix_path(&self) -> Option<&Path> {
        self.server.unix_path()
    }
}

/// How often a move is tried again for which there is no memory.
const MOVE_AGAIN: Duration = Duration::from_secs(5);

/// Moves a backend's regions each time that it is wanted.
async fn keep_moving(env: Env, guarded: Arc<Guarded>, admission: ServiceAdmission, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        let (done, is_done) = tokio::sync::oneshot::channel();
        let (again, guarded, admission) = (env.clone(), Arc::clone(&guarded), admission.clone());
        // On a thread of its own: it makes memory, and copies it.
        let _moving = env.spawn_dedicated("cell-move", async move {
            while let Err(error) = guarded.backend.move_regions(&admission).await {
                tracing::error!(
                    cell = guarded.cell,
                    %error,
                    "a reader that lost its right can read this cell's memory on, as there is no memory to move the cell \
                     to: give the node as much again, or start it again"
                );
                again.sleep(MOVE_AGAIN).await;
            }
            tracing::info!(cell = guarded.cell, "moved a cell's memory from a reader that lost its right");
            // Nobody waits if the backend has ended.
            let _ = done.send(());
        });
        let _ = is_done.await;
    }
}

/// A backend that asks whether its peers may do what they want: to read, when they connect and when rights change, as
/// no one-sided read asks anybody, and for each of their CALLs.
struct Guarded {
    /// The name of its cell.
    cell: String,
    backend: Arc<Backend>,
    authorizer: Arc<dyn Authorizer>,
    logins: Option<Arc<CallLogins>>,
    quotas: LateQuotas,
    readers: MappedReaders,
}

impl Guarded {
    /// Forgets those who were given the regions and may not read any more; whether there were any.
    fn forget_refused(&self) -> bool {
        // Nobody requests anything here, so nothing of it is for the audit.
        self.readers.forget_unless(|reader| self.authorizer.shows(reader, self.request("read")))
    }

    fn request<'a>(&'a self, operation: &'a str) -> AccessRequest<'a> {
        AccessRequest { protocol: Protocol::Cell, operation, resource: Resource::Cell(&self.cell) }
    }

    fn ask(&self, peer: &Peer, operation: &str) -> Result<(), Refusal> {
        self.authorizer.authorize(peer, self.request(operation)).map_err(|denied| refusal(denied.to_string()))
    }
}

fn refusal(message: String) -> Refusal {
    Refusal { code: REFUSED_NOT_AUTHORIZED, message }
}

impl Service for Guarded {
    fn login_demand(&self, peer: &Peer) -> Option<LoginDemand> {
        // Who is given the memory is remembered as a user of the system, who can't be removed.
        let logins = self.logins.as_ref().filter(|_| !peer.principal.starts_with(PRINCIPAL_OF_UID))?;
        let mut demand = logins.demand(peer);
        demand.refusal.code = REFUSED_NOT_AUTHORIZED;
        Some(demand)
    }

    fn begin_login(&self, peer: &Peer, is_private: bool) -> Result<Box<dyn LoginDialogue>, Refusal> {
        match &self.logins {
            Some(logins) => logins.begin(peer, is_private),
            None => Err(refusal("nobody logs in at this backend".to_owned())),
        }
    }

    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        self.ask(peer, "read")?;
        if !self.readers.note(peer) {
            return Err(refusal(format!(
                "the memory of the cell {} is mapped by too many users already",
                self.cell
            )));
        }
        // Once more: whoever has just looked for those without rights has not met this one. The request is in the
        // audit.
        match self.authorizer.shows(peer, self.request("read")) {
            true => Ok(()),
            false => Err(refusal(format!("{} has just lost the right to read this cell", peer.principal))),
        }
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        self.backend.regions()
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        self.backend.scar(op)
    }

    fn owed_for_reads(&self, peer: &Peer, bytes: usize) -> Duration {
        let Some(quotas) = self.quotas.get().filter(|quotas| quotas.is_any()) else { return Duration::ZERO };
        let (bound, taker) = (QuotaBound::ConsumerByteRate, QuotaTaker::of(peer, ""));
        match bytes {
            0 => quotas.owed(bound, taker),
            _ => quotas.take(bound, taker, bytes as u64),
        }
    }

    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        self.backend.is_short(method, payload)
    }

    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        let operation = match method {
            METHOD_LOOKUP | METHOD_SCAN | METHOD_CONFIG | METHOD_INFO | METHOD_TOUCH | METHOD_CHANGES => {
                "read"
            }
            METHOD_MUTATE | METHOD_PROMISE | METHOD_ACCEPT | METHOD_JOIN | METHOD_LOAD => "mutate",
            METHOD_CONFIGURE | METHOD_END => "configure",
            // METHOD_CLEAR, and whatever is not named here: what is forgotten above is open to the fewest.
            _ => "clear",
        };
        match self.ask(peer, operation) {
            Ok(()) => self.backend.call(peer, method, payload, reply),
            Err(refusal) => reply.send(Err(refusal)),
        }
    }
}
