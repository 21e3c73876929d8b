//! A replica of a region's proxy (`tailwater_broadcast::replica`) on real connections, with its events on disk where a
//! stream wants that.
//!
//! ```text
//!   clients'  connections --reader tasks--> inputs --> core task: Replica --> one writer task a connection
//!   replicas' connections --reader tasks--> inputs -------^      `--> Configuration (if hosted here) --> meta
//!   this process (metrics) -------------------------------'
//! ```
//!
//! The core task is the only one that touches the replica, and the [`region`] beside it, which serves the clients that
//! share events among each other. Readers wait when the queue of their kind is full; what waits for a
//! writer is bounded by the replica itself, which is told how much left.

mod configuration;
mod connection;
mod core;
mod dial;
pub mod disk;
mod gate;
mod handle;
mod inputs;
mod pace;
pub mod region;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_access::{Authorizer, Denied};
use tailwater_broadcast::message::{Chain, Member, Message, ReplicaId};
use tailwater_broadcast::name::Stream;
use tailwater_broadcast::replica::{self, ConnectionId, Peer, Replica};
use tailwater_env::{Env, Task};
use tailwater_journal::Journal;
use tailwater_meta::Meta;
use tailwater_tls::{Acceptor, Dialer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

pub use self::handle::{Handle, Snapshot, StreamSnapshot};
pub use self::pace::Quotas;
pub use self::region::RegionSnapshot;
use crate::disk::Disk;

/// Inputs of clients that wait for the core task, and as many of replicas; readers pause beyond it, and beyond the
/// bytes that [`inputs`] says.
const INPUTS_MAX: usize = 1024;
/// How often the core task lets time pass.
const TICK: Duration = Duration::from_millis(20);
/// How long the other end may say nothing: replicas tell each other every `advertise_ms` that they are alive.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Where the region's chain is decided.
#[derive(Clone)]
pub enum ConfigurationAt {
    /// Here, kept in this process's metadata.
    Here(Arc<dyn Meta>),
    /// In the replica at this address.
    There(String),
}

/// What can be set.
#[derive(Clone)]
pub struct ReplicaServerConfig {
    /// Of the replica.
    pub replica: replica::Config,
    /// Where others reach this replica, if not where it listens.
    pub advertised: Option<String>,
    /// The replicas of the other regions' proxies.
    pub regions: BTreeMap<String, Vec<String>>,
    /// Where the chain is decided.
    pub configuration: ConfigurationAt,
    /// Whether this replica wants to be in the chain. If not, it has no events, and only tells others the chain that is
    /// decided here.
    pub joins: bool,
    /// A member that is not heard for so long is removed from the chain, in milliseconds; for the configuration.
    pub silence_ms: u64,
    /// The last member, if it keeps its events in memory only or its disk is gone, is given up after so long, in
    /// milliseconds; for the configuration.
    pub lost_ms: u64,
    /// Connections at a time.
    pub connections_max: usize,
    /// What publishers may publish; `None` is no bound.
    pub quotas: Option<Arc<Quotas>>,
    /// Says what whoever connects may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// What takes connections: in TLS, or as they come.
    pub acceptor: Acceptor,
    /// What makes those to other replicas.
    pub dialer: Dialer,
}

/// Something for the core task.
pub(crate) enum ReplicaInput {
    /// A connection is open, with the other end's hello read and ours sent.
    Opened { id: ConnectionId, peer: Peer, address: Option<String>, writer: mpsc::UnboundedSender<Message> },
    /// A message came; it takes room until it was run.
    Message(ConnectionId, Message, inputs::InputsRoom),
    /// A publish came of somebody who may not: the events of this stream from this one on.
    Denied(ConnectionId, Stream, u64, Denied),
    /// So many bytes of messages left.
    Drained(ConnectionId, usize),
    /// A connection is gone.
    Closed(ConnectionId),
    /// The chain as the configuration service here has it.
    Chain(Chain),
    /// Somebody wants to know how it stands.
    Snapshot(handle::SnapshotWanted),
}

/// Runs a replica until it is dropped: then all its connections end.
pub struct Server {
    address: SocketAddr,
    handle: Handle,
    _tasks: Vec<Task>,
    journal: Option<Journal>,
}

impl Server {
    /// Runs a replica with nothing in it, answering on `listener`.
    pub fn start(env: &Env, listener: TcpListener, config: ReplicaServerConfig) -> std::io::Result<Self> {
        Self::start_with(env, listener, config, None)
    }

    /// Runs a replica with what its disk has, if it has one; then it has the disk's id.
    pub fn start_with(
        env: &Env,
        listener: TcpListener,
        mut config: ReplicaServerConfig,
        disk: Option<Disk>,
    ) -> std::io::Result<Self> {
        if let Some(disk) = &disk {
            config.replica.id = disk.id();
        }
        let address = listener.local_addr()?;
        let (inputs, of_clients) = mpsc::channel(INPUTS_MAX);
        let (replicas, of_replicas) = mpsc::channel(INPUTS_MAX);
        let reached_at = config.advertised.clone().unwrap_or_else(|| address.to_string());
        let me = Member { id: config.replica.id, address: reached_at };
        let (replica, keeper) = match disk {
            None => (Replica::new(config.replica.clone()), None),
            Some(disk) => {
                config.replica.durability = disk.keeper.durability().clone();
                let replica = Replica::recovered(config.replica.clone(), disk.lineages, disk.streams);
                (replica, Some(disk.keeper))
            }
        };
        let journal = keeper.as_ref().map(|keeper| keeper.journal().clone());
        let handle = Handle::new(inputs.clone());
        let mut tasks = Vec::new();
        let service = match &config.configuration {
            ConfigurationAt::There(_) => None,
            ConfigurationAt::Here(meta) => {
                let (reports, reported) = mpsc::channel(INPUTS_MAX);
                let region = config.replica.region.clone();
                let service = configuration::run(
                    env.clone(),
                    Arc::clone(meta),
                    region,
                    (config.silence_ms, config.lost_ms),
                    reported,
                    replicas.clone(),
                );
                tasks.push(env.spawn("broadcast-configuration", service));
                Some(reports)
            }
        };
        let hello = replica.hello();
        let inputs = inputs::Inputs::new(inputs, replicas);
        let accepting = connection::accept(env.clone(), listener, hello, config.clone(), inputs.clone());
        tasks.push(env.spawn("broadcast-accept", accepting));
        let core = core::Core::new(env.clone(), replica, keeper, me, config, service, inputs);
        tasks.push(env.spawn("broadcast", core.run(of_clients, of_replicas)));
        Ok(Self { address, handle, _tasks: tasks, journal })
    }

    /// Makes everything durable that was held; from then on nothing more is held of streams that are kept on disk.
    /// The directory may be opened again when this returns.
    pub async fn stop(&self) {
        if let Some(journal) = &self.journal
            && let Err(error) = journal.close().await
        {
            tracing::error!(%error, "not all broadcast events are on disk");
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// To look at it from this process.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// A number for a replica that keeps nothing over a restart: a random odd one.
pub fn fresh_id(env: &Env) -> ReplicaId {
    env.random_u64() | 1
}
