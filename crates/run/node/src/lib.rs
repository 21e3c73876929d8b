//! One server process: configuration, roles, wiring.
//!
//! ```text
//!   clients --CALL--> NodeService --> Log --> journal, store, meta       (durable)
//!                                      `----> TailWriter --> cells       (hot)
//!   clients --one-sided reads------------------------------> cells
//!   Kafka's clients --> Broker --> Log
//!   SQS's clients --> Front --> Queues --> the same journal
//!   memcached's clients --> MemcachedFront --> a cell that was created
//!   publishers, listeners, other regions --> Broadcast --> the chain in meta
//!   streams of the log <--> Bridges <--> streams of broadcasts
//!   people  --HTTP--> /metrics, /v1
//! ```

pub mod api;
mod audit_stream;
pub mod backend;
mod bridge;
mod broadcast;
mod calls;
mod cells;
mod config;
mod gate;
mod held_calls;
mod http;
#[cfg(feature = "tls")]
mod jwks;
pub mod logging;
mod logins;
mod memcached;
mod metadata;
mod metrics;
#[cfg(feature = "bookkeeper")]
mod migrate;
pub mod panics;
pub mod priority;
pub mod probes;
mod queues;
mod rules;
pub mod signal;
mod tokens;
mod turns;
mod views;
pub mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use tailwater_access::Authorizer;
use tailwater_copy::{Copies, DialedLinks, OffsetsKeeper};
use tailwater_env::{BoxFuture, Env, Progress, Stage, Task};
use tailwater_format::StreamId;
use tailwater_format::call::{CALL_VERSION, CopiedOffset, CopiedOffsets, NodeInfo};
use tailwater_journal::ReplayError;
use tailwater_kafka::Administered;
use tailwater_log::{Log, LogConfig, SharedMetadata};
use tailwater_login::Users;
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tailwater_permissions::Rules;
use tailwater_queue::QueueStore;
use tailwater_quotas::ClientQuotas;
use tailwater_rma::{Address, Server, ServerConfig, Service};
use tailwater_store::DataDir;
use tailwater_tail::Cells;
use tailwater_tail::window::WindowStats;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::backend::{CellKind, LateQuotas};
use crate::bridge::Bridges;
use crate::broadcast::Broadcast;
use crate::calls::NodeService;
use crate::cells::created::CreatedCells;
use crate::cells::{CellBegun, CellDoors, NodeCell};
pub use crate::config::{
    BridgeConfig, BridgeStart, BroadcastConfig, CellModeSetting, CellSection, Config, EvictionSetting,
    GroupSharing, InsecureListeners, JwtConfig, LogFormat, Logging, is_of_this_host, parse_toml,
    thread_count,
};
use crate::config::{ClusterConfig, QueueStoreKind};
use crate::gate::FrontGate;
use crate::held_calls::HeldCalls;
use crate::http::Identities;
use crate::logins::CallLogins;
use crate::metadata::{NodeSharing, STANDING_BY, Turn};
use crate::metrics::Meters;
#[cfg(feature = "bookkeeper")]
pub use crate::migrate::{MigrateNews, MigrateOptions, MigrateReport, MigrateTold, migrate};
use crate::rules::SuperUsers;
use crate::turns::Turns;

/// How long a stopping node waits for requests under way.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// How often a node says in its log how far it is with its start.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// What the parts of a node have in common.
struct NodeShared {
    env: Env,
    id: String,
    /// The data directory.
    dir: PathBuf,
    data: SocketAddr,
    unix: Option<PathBuf>,
    log: Log,
    /// Between clusters.
    copies: Copies,
    /// Data and metadata; none where the log is without cells.
    cells: Option<[Arc<NodeCell>; 2]>,
    created: Arc<CreatedCells>,
    server: Server,
    kafka: Option<tailwater_kafka::Server>,
    queues: Arc<dyn QueueStore>,
    sqs: Option<tailwater_sqs::Server>,
    memcached: Option<tailwater_memcached::MemcachedServer>,
    broadcast: Option<Broadcast>,
    /// Where all nodes are active; once the node has told the others where it is.
    sharing: OnceLock<NodeSharing>,
    /// Dropped before the log closes.
    bridges: Mutex<Option<Bridges>>,
    /// What the window's process does, while there is one.
    window: Mutex<Option<WindowStats>>,
    meters: Arc<Meters>,
    turns: Arc<Turns>,
    gate: FrontGate,
    identities: Identities,
    rules: Arc<Rules>,
    quotas: Arc<ClientQuotas>,
    /// End tokens whose time is over, and follow the keys of an issuer.
    _tokens: Vec<Task>,
    _audit_stream: Option<Task>,
    /// Streams that get metrics of their own.
    streams_told_max: usize,
    /// Groups that do.
    groups_told_max: usize,
    group_shards_told_max: usize,
    /// Queues that do.
    queues_told_max: usize,
}

impl NodeShared {
    /// Where other clusters connect.
    fn call_address(&self) -> String {
        let scheme = if matches!(self.server.tcp_address(), Some(Address::Tls(_))) { "tls" } else { "tcp" };
        format!("{scheme}:{}", self.data)
    }

    /// Where the node listens, for people.
    fn addresses(&self, admin: SocketAddr) -> Vec<(String, String)> {
        let kafka = self.kafka.iter().flat_map(tailwater_kafka::Server::addresses);
        let mut addresses = vec![("admin", admin.to_string()), ("data", self.call_address())];
        addresses.extend(kafka.map(|address| ("kafka", address.to_string())));
        addresses.extend(self.sqs.iter().map(|sqs| ("sqs", sqs.address().to_string())));
        addresses
            .extend(self.memcached.iter().map(|memcached| ("memcached", memcached.address().to_string())));
        addresses.extend(self.broadcast.iter().map(|broadcast| ("broadcast", broadcast.at().1.to_string())));
        addresses.into_iter().map(|(name, address)| (name.to_owned(), address)).collect()
    }

    /// Where Kafka's clients of other nodes are told that this one listens.
    fn told_to_kafka(&self, config: &Config) -> Vec<(String, u16)> {
        let bound = self.kafka.iter().flat_map(tailwater_kafka::Server::addresses);
        let told = bound.zip(config.kafka.all_listeners()).map(|(address, listener)| {
            let advertised = listener.advertised.rsplit_once(':');
            let advertised = advertised.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
            advertised.unwrap_or_else(|| (address.ip().to_canonical().to_string(), address.port()))
        });
        told.collect()
    }

    fn cells(&self) -> impl Iterator<Item = &NodeCell> {
        self.cells.iter().flatten().map(|cell| &**cell)
    }
}

/// A running node.
pub struct Node {
    env: Env,
    shared: Arc<NodeShared>,
    /// Where metadata is shared.
    turn: Option<Turn>,
    admin: SocketAddr,
    stop_http: oneshot::Sender<()>,
    http: tokio::task::JoinHandle<()>,
}

impl Node {
    /// Starts everything, bottom up: cells, log (which recovers), calls. Before all of it admin HTTP tells that the
    /// node is there, and not ready. After an error nothing is left running.
    ///
    /// Recovery is for as long as the disk takes on a thread of its own, and goes on there if this is cancelled: then
    /// the process should end.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_for(config, None).await
    }

    /// The same, for those whom `authorizer` lets in place of the node's own rules: the one place where it is decided
    /// who may do what. Of those, SQS lets whom its accounts and the queues' policies let.
    pub async fn start_with(config: Config, authorizer: Arc<dyn Authorizer>) -> anyhow::Result<Self> {
        Self::start_for(config, Some(authorizer)).await
    }

    async fn start_for(config: Config, authorizer: Option<Arc<dyn Authorizer>>) -> anyhow::Result<Self> {
        let (started, starting) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        let start = move || drop(started.send(runtime.block_on(Self::start_here(config, authorizer))));
        std::thread::Builder::new().name("start".to_owned()).spawn(start)?;
        starting.await.context("the node panicked when it started")?
    }

    /// The same on this thread, which waits for the disk.
    async fn start_here(mut config: Config, authorizer: Option<Arc<dyn Authorizer>>) -> anyhow::Result<Self> {
        let env = Env::real();
        admit(&mut config)?;
        // The directory's lock comes first of all: a second node must not touch the first one's sockets, and is told
        // that the directory is in use and not that a port is, which it would choose another one for.
        let lock = tailwater_store::lock_data_dir(&env, &config.data)
            .with_context(|| format!("the data directory {} can't be used", config.data.display()))?;
        let rules = rules::open(&env, &config)?;
        let authorizer = authorizer.unwrap_or_else(|| Arc::clone(&rules) as Arc<dyn Authorizer>);
        let gate = FrontGate::open(&env, &config.tls, authorizer)?;
        let progress = Progress::default();
        let AdminServer { address: admin_addr, is_secured, starting, stop_http, http } =
            AdminServer::start(&env, &config, &gate, &progress).await?;
        let _telling = env.spawn("start-told", tell(env.clone(), progress.clone()));
        let turn = Turn::take(&env, &config, admin_addr, &progress).await?;
        leave_to_local_node(&mut config);
        let Listeners { kafka, sqs, memcached, broadcast } = Listeners::bind(&config).await?;
        progress.begin("cells", 0);
        let meters = Arc::new(Meters::default());
        let logins = CallLogins::new(&env, config.listen.login, Arc::clone(&meters));
        let late_quotas = LateQuotas::default();
        let doors = CellDoors::of(&gate, &logins, &late_quotas, &config);
        let mut recovery = queues::Recovery::begin(&env, &config)?;
        let metadata = turn.as_ref().map(Turn::shared);
        let (log, node_cells) =
            open_log(&env, &config, lock, metadata, &doors, &mut recovery, &progress).await?;
        progress.begin("cells", 0);
        let created = CreatedCells::open(&env, &config, log.meta(), doors).await?;
        progress.begin("queues", 0);
        let queues = recovery.finish(&env, &config, log.journal()).await?;
        let id = node_id(&env, &log).await?;
        let number = take_number(&mut config, turn.as_ref()).await?;
        let info = info_of(&env, id.clone(), node_cells.clone(), &config);
        let (administered, tokens) = who_may_come_in(&env, &config, &log, &rules).await?;
        let Administered { users, quotas, .. } = administered.clone();
        logins.begin_with(&users);
        // Nobody was set before.
        let _ = late_quotas.set(Arc::clone(&quotas));
        let stream = config.access.audit_stream.as_deref();
        let audit_stream = stream.and_then(|name| audit_stream::follow(&env, &rules, &log, name, &id));
        let kafka = start_kafka(&env, &config, kafka, &log, (&id, administered), &gate).await?;
        let sqs = start_sqs(&env, &config, sqs, (&queues, log.meta()), &gate).await?;
        let memcached = memcached::start(&env, &config.memcached, memcached, &created, &users, &gate).await?;
        let (reads_max, bytes_per_s) = (config.log.catch_up_reads_max, config.log.catch_up_bytes_per_s);
        let turns = Arc::new(Turns::new(&env, reads_max, bytes_per_s, Arc::clone(&meters)));
        let (broadcast, bridges) =
            start_broadcast(&env, &config, broadcast, (&log, &turns, &created), &users, &gate, &progress)
                .await?;
        let copies = start_copies(&env, &config.cluster, &log, kafka.as_ref(), &gate).await?;
        let service = Arc::new(NodeService::new(
            env.clone(),
            log.clone(),
            Arc::clone(&turns),
            info,
            Arc::clone(&meters),
            (Arc::clone(&gate.authorizer), logins),
            (copies.clone(), Arc::clone(&created)),
        ));
        let service: Arc<dyn Service> = Arc::new(HeldCalls::new(&env, &quotas, service));
        let server = start_server(&env, &config, service, &gate).await?;
        let bound = server.tcp_addr().unwrap_or(config.listen.data);
        let shared = Arc::new(NodeShared {
            env: env.clone(),
            id,
            dir: config.data.clone(),
            data: config.listen.advertised_data.unwrap_or(bound),
            copies,
            unix: server.unix_path().and_then(|path| std::path::absolute(path).ok()),
            log,
            cells: node_cells,
            created,
            server,
            kafka,
            queues,
            sqs,
            memcached,
            broadcast,
            sharing: OnceLock::new(),
            bridges: Mutex::new(bridges),
            window: Mutex::new(None),
            meters,
            turns,
            gate,
            identities: Identities { env: env.clone(), users, is_secured },
            rules,
            quotas,
            _tokens: tokens,
            _audit_stream: audit_stream,
            streams_told_max: config.metrics.streams_max,
            groups_told_max: config.metrics.groups_max,
            group_shards_told_max: config.metrics.group_shards_max,
            queues_told_max: config.metrics.queues_max,
        });
        shared.copies.listens_at(&shared.call_address());
        turn.iter().for_each(|turn| turn.announce(shared.addresses(admin_addr)));
        share(&shared, &config, turn.as_ref(), number)?;
        starting.started(Arc::clone(&shared));
        tracing::info!(data = %shared.data, admin = %admin_addr, dir = %config.data.display(), "the node is ready");
        Ok(Self { env, shared, turn, admin: admin_addr, stop_http, http })
    }

    /// Takes note of what the window's process does, for the page of metrics; `None` while there is none.
    pub fn window_runs(&self, stats: Option<WindowStats>) {
        *self.shared.window.lock() = stats;
    }

    /// Where admin HTTP listens.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    /// Whether the node has certificates, which can be read again.
    pub fn has_certificates(&self) -> bool {
        self.shared.gate.certificates().is_some()
    }

    /// Has the files of the certificates looked at now, and not within a second only.
    pub fn look_at_certificates(&self) {
        if let Some(certificates) = self.shared.gate.certificates() {
            tracing::info!("the files of [tls] are read again");
            certificates.look();
        }
    }

    /// Completes when another node has taken over what this one shares with it, and says which. This one changes
    /// nothing any more, and is to end as if it had been killed. Never completes where metadata is in the data
    /// directory.
    pub async fn taken_over(&self) -> String {
        match &self.turn {
            Some(turn) => turn.taken_over().await,
            None => std::future::pending().await,
        }
    }

    /// Stops gracefully: appends under way are answered, segments are completed, everything is synced.
    pub async fn stop(self) -> anyhow::Result<()> {
        tracing::info!("stopping");
        drop(self.stop_http);
        if let Some(sharing) = self.shared.sharing.get() {
            sharing.drain();
            if self.env.timeout(STOP_DEADLINE, sharing.drained()).await != Some(true) {
                tracing::warn!("not everything was given to other nodes in time; they take it over");
            }
            sharing.end();
        }
        self.shared.copies.stop();
        drop(self.shared.bridges.lock().take());
        if let Some(broadcast) = &self.shared.broadcast {
            // Listeners are told, but not waited for long.
            let _ = self.env.timeout(Duration::from_secs(2), broadcast.close_http()).await;
        }
        // First: it takes a checkpoint, for which it needs the journal.
        if self.env.timeout(STOP_DEADLINE, self.shared.queues.close()).await.is_none() {
            tracing::warn!(
                "the queues did not close in time; recovery at the next start replays the journal"
            );
        }
        if let Some(broadcast) = &self.shared.broadcast
            && self.env.timeout(STOP_DEADLINE, broadcast.close()).await.is_none()
        {
            tracing::warn!("the journal of broadcasts did not close in time");
        }
        if self.env.timeout(STOP_DEADLINE, self.shared.log.close()).await.is_none() {
            tracing::warn!("the log did not close in time; recovery at the next start completes it");
        }
        if let Some(turn) = &self.turn {
            turn.leave().await;
        }
        // Keep-alive connections of scrapers must not hold the stop up.
        let _ = self.env.timeout(Duration::from_millis(500), self.http).await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// The number of this node among Kafka's brokers, where all nodes are active: it is the configuration's from here on.
async fn take_number(config: &mut Config, turn: Option<&Turn>) -> anyhow::Result<Option<i32>> {
    let Some(turn) = turn else { return Ok(None) };
    let number = turn.broker_number().await?;
    config.kafka.broker_id = number.unwrap_or(config.kafka.broker_id);
    Ok(number)
}

/// Begins to own a part of what there is, where all nodes are active.
fn share(
    shared: &NodeShared,
    config: &Config,
    turn: Option<&Turn>,
    number: Option<i32>,
) -> anyhow::Result<()> {
    let Some(turn) = turn else { return Ok(()) };
    let told = number.map(|number| (number, shared.told_to_kafka(config)));
    let broker = shared.kafka.as_ref().map(|kafka| Arc::clone(kafka.broker()));
    if let Some(sharing) = turn.share(&shared.env, &shared.log, broker, told)? {
        // A node starts once.
        let _ = shared.sharing.set(sharing);
    }
    Ok(())
}

/// Who may log in, and what each may do and take, as the metadata has it; and what follows the tokens among that.
async fn who_may_come_in(
    env: &Env,
    config: &Config,
    log: &Log,
    rules: &Arc<Rules>,
) -> anyhow::Result<(Administered, Vec<Task>)> {
    let users = Users::open(env, Arc::clone(log.meta())).await?;
    rules.keep_in(Arc::clone(log.meta())).await?;
    let super_users = SuperUsers::of(config);
    super_users.check(&users)?;
    super_users.guard(&users);
    rules::audit_refused_logins(env, rules, &users);
    let tokens = follow_tokens(env, config, &users, rules).await?;
    let quotas = ClientQuotas::open(env, Arc::clone(log.meta())).await?;
    Ok((Administered { rules: Arc::clone(rules), users, quotas }, tokens))
}

/// What ends tokens, and follows the keys of an issuer if there is one.
async fn follow_tokens(
    env: &Env,
    config: &Config,
    users: &Arc<Users>,
    rules: &Arc<Rules>,
) -> anyhow::Result<Vec<Task>> {
    let mut tasks = vec![tokens::expire(env, users, rules)];
    if config.cluster.is_shared() {
        tasks.push(users.follow().await?);
    }
    if let Some(issuer) = &config.access.jwt {
        tasks.push(follow_issuer(env, issuer, users).await?);
    }
    Ok(tasks)
}

#[cfg(feature = "tls")]
async fn follow_issuer(env: &Env, issuer: &JwtConfig, users: &Users) -> anyhow::Result<Task> {
    jwks::follow(env, issuer, users).await
}

#[cfg(not(feature = "tls"))]
async fn follow_issuer(_: &Env, _: &JwtConfig, _: &Users) -> anyhow::Result<Task> {
    anyhow::bail!(
        "[access.jwt] names an issuer of tokens, and this build has no TLS and checks no signatures: `make dist` makes \
         target/dist/tailwater, which does"
    )
}

/// What has to be so before anything listens. Those who made the configuration themselves did not have it checked when
/// it was read.
fn admit(config: &mut Config) -> anyhow::Result<()> {
    config.check_exposure()?;
    config.read_secrets()?;
    for listener in config.exposed() {
        let (listen, key) = (listener.listen, listener.key);
        tracing::warn!(%listen, "{key} is open to others than this host, unencrypted or unknown, as [listen] insecure says");
    }
    Ok(())
}

/// Says in the log, again and again, how far a start is.
async fn tell(env: Env, progress: Progress) {
    loop {
        env.sleep(TOLD_EVERY).await;
        let Stage { what, done, whole } = progress.stage();
        if what == STANDING_BY {
            continue;
        }
        tracing::info!(what, done, whole, "recovering");
    }
}

/// The log and its cells: their backends run before the log is recovered, and are connected when metadata can be read,
/// which has their configurations. What is the queues' in the journal goes to `recovery`.
async fn open_log(
    env: &Env,
    config: &Config,
    lock: DataDir,
    metadata: Option<SharedMetadata>,
    doors: &CellDoors,
    recovery: &mut queues::Recovery,
    progress: &Progress,
) -> anyhow::Result<(Log, Option<[Arc<NodeCell>; 2]>)> {
    let begun = begin_cells(env, config, doors).await?;
    let mut node_cells = None;
    let advertised = config.listen.advertised_data;
    let finish = |meta| -> BoxFuture<'_, _> {
        Box::pin(async {
            node_cells =
                finish_cells(env, begun, meta, advertised).await.map_err(|why| format!("{why:#}"))?;
            let both = node_cells.as_ref();
            let cells = both.map(|[data, metadata]| [data.cell.clone(), metadata.cell.clone()]);
            Ok(cells.map(|[data, metadata]| Cells { data, metadata }))
        })
    };
    progress.begin("queues", 0);
    let mut others = |tag, position, bytes: &[u8]| match tag {
        tailwater_queue::TAG => recovery.replay(position, bytes),
        _ => Err(ReplayError::new("written by a later version: its tag is not known")),
    };
    let (log_config, finish) = (LogConfig { metadata, ..config.log_config(env)? }, Box::new(finish));
    let log = Log::open_locked(env, log_config, &config.data, lock, finish, &mut others, progress).await?;
    Ok((log, node_cells))
}

/// The backends of data and metadata that are the node's own, if the log has cells.
async fn begin_cells(
    env: &Env,
    config: &Config,
    doors: &CellDoors,
) -> anyhow::Result<Option<[CellBegun; 2]>> {
    if !config.log.cells {
        return Ok(None);
    }
    let data = CellBegun::begin(env, CellKind::Data, config, doors).await?;
    let metadata = CellBegun::begin(env, CellKind::Metadata, config, doors).await?;
    Ok(Some([data, metadata]))
}

/// Both cells, connected, once the metadata can be read.
async fn finish_cells(
    env: &Env,
    begun: Option<[CellBegun; 2]>,
    meta: Arc<dyn Meta>,
    advertised: Option<SocketAddr>,
) -> anyhow::Result<Option<[Arc<NodeCell>; 2]>> {
    let Some([data, metadata]) = begun else { return Ok(None) };
    let data = data.finish(env, &meta, advertised).await?;
    let metadata = metadata.finish(env, &meta, advertised).await?;
    Ok(Some([Arc::new(data), Arc::new(metadata)]))
}

/// What clients are told of the node when they say hello, anew each time: cells come and go.
fn info_of(
    env: &Env,
    id: String,
    cells: Option<[Arc<NodeCell>; 2]>,
    config: &Config,
) -> impl Fn() -> NodeInfo + use<> {
    let env = env.clone();
    let window = config.window_socket().and_then(|path| std::path::absolute(path).ok());
    let window = window.and_then(|path| path.into_os_string().into_string().ok());
    move || {
        let [data_cell, metadata_cell] = [0, 1].map(|cell| cells.as_ref().map(|cells| cells[cell].info()));
        NodeInfo {
            node_id: id.clone(),
            version: CALL_VERSION,
            program: concat!("tailwater ", env!("CARGO_PKG_VERSION")).to_owned(),
            data_cell,
            metadata_cell,
            window: window.clone(),
            wall_ms: Some(env.wall_ms()),
        }
    }
}

/// The data directory's id: made at its first start, kept in its metadata.
async fn node_id(env: &Env, log: &Log) -> anyhow::Result<String> {
    const KEY: &str = "node/id";
    if let Some(stored) = log.meta().get(KEY).await? {
        return Ok(String::from_utf8_lossy(&stored.value).into_owned());
    }
    let id = format!("{:016x}", env.random_u64());
    let put = Op::Put { key: KEY.to_owned(), value: id.clone().into(), expect: Expect::Absent };
    match log.meta().commit(vec![put]).await {
        // Another node that shares the metadata has begun at the same time.
        Err(MetaError::Conflict { .. }) => {
            let stored = log.meta().get(KEY).await?.context("the cluster's id is gone")?;
            Ok(String::from_utf8_lossy(&stored.value).into_owned())
        }
        committed => committed.map(|_| id).map_err(Into::into),
    }
}

/// Admin HTTP, which is there before everything else: recovery may take minutes, and a node may stand by for days, in
/// which whoever looks after it has to see that it is alive.
struct AdminServer {
    address: SocketAddr,
    is_secured: bool,
    starting: Arc<http::Starting>,
    /// Its drop ends it.
    stop_http: oneshot::Sender<()>,
    http: tokio::task::JoinHandle<()>,
}

impl AdminServer {
    async fn start(
        env: &Env,
        config: &Config,
        gate: &FrontGate,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(config.listen.admin).await.with_context(|| {
            format!("admin HTTP can't listen on {}: choose another with --admin", config.listen.admin)
        })?;
        let address = listener.local_addr()?;
        let (stop_http, stopped) = oneshot::channel::<()>();
        progress.begin("cells", 0);
        let starting = http::Starting::new(Arc::clone(&gate.authorizer), progress.clone());
        let routes = Arc::clone(&starting).routes();
        let acceptor = gate.acceptor("admin HTTP", config.admin.tls);
        let is_secured = acceptor.is_secured();
        let limits = config.admin.clone().into();
        let serve = http::serve(env.clone(), listener, routes, limits, acceptor, stopped);
        let http = tokio::runtime::Handle::current().spawn(serve);
        Ok(Self { address, is_secured, starting, stop_http, http })
    }
}

/// Leaves queues and broadcasts, which are in one node's data directory, to that node.
fn leave_to_local_node(config: &mut Config) {
    if config.is_local_node() {
        return;
    }
    let queues = config.sqs.enabled && config.queues.store == QueueStoreKind::Embedded;
    if queues || config.broadcast.enabled {
        let node = &config.cluster.local_node;
        tracing::info!(node, "queues and broadcasts are the named node's, and are not served here");
    }
    config.sqs.enabled &= !queues;
    config.broadcast.enabled = false;
}

/// What is listened at as soon as it is this node's turn: clients that come early wait.
struct Listeners {
    kafka: Option<KafkaListeners>,
    sqs: Option<TcpListener>,
    memcached: Option<TcpListener>,
    broadcast: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> anyhow::Result<Self> {
        let kafka = match config.kafka.enabled {
            true => Some(bind_kafka(&config.kafka).await?),
            false => None,
        };
        let sqs = match config.sqs.enabled {
            true => Some(TcpListener::bind(config.sqs.listen).await.with_context(|| {
                let listen = config.sqs.listen;
                format!("SQS's protocol can't be spoken on {listen}: choose another address with --sqs, or --no-sqs")
            })?),
            false => None,
        };
        let broadcast = match config.broadcast.enabled {
            true => Some(TcpListener::bind(config.broadcast.listen).await.with_context(|| {
                let listen = config.broadcast.listen;
                format!("broadcasts can't be carried on {listen}: choose another address with --broadcast, or --no-broadcast")
            })?),
            false => None,
        };
        let memcached = memcached::bind(&config.memcached).await?;
        Ok(Self { kafka, sqs, memcached, broadcast })
    }
}

/// Sockets, each with what is configured for it.
type KafkaListeners = Vec<(TcpListener, tailwater_kafka::Listener)>;

async fn bind_kafka(config: &tailwater_kafka::KafkaConfig) -> anyhow::Result<KafkaListeners> {
    let mut bound = Vec::new();
    for (index, listener) in config.all_listeners().into_iter().enumerate() {
        let listen = listener.listen;
        let socket = TcpListener::bind(listen).await.with_context(|| match index {
            0 => format!(
                "Kafka's protocol can't be spoken on {listen}: choose another address with --kafka, or --no-kafka"
            ),
            _ => format!(
                "Kafka's protocol can't be spoken on {listen} too: choose another address for it in [[kafka.listeners]], \
                 or --kafka, or leave it out"
            ),
        })?;
        bound.push((socket, listener));
    }
    Ok(bound)
}

/// The broadcasts and their bridges to streams and cells, where something listens for them.
async fn start_broadcast(
    env: &Env,
    config: &Config,
    listener: Option<TcpListener>,
    of: (&Log, &Arc<Turns>, &Arc<CreatedCells>),
    users: &Arc<Users>,
    gate: &FrontGate,
    progress: &Progress,
) -> anyhow::Result<(Option<Broadcast>, Option<Bridges>)> {
    let Some(listener) = listener else { return Ok((None, None)) };
    let kept = (config.data.as_path(), of.0.meta(), users);
    let broadcast = Broadcast::start(env, listener, &config.broadcast, kept, gate, progress).await?;
    let bridges = Bridges::start(env, of, broadcast.regions(), &config.bridge);
    Ok((Some(broadcast), Some(bridges)))
}

async fn start_copies(
    env: &Env,
    config: &ClusterConfig,
    log: &Log,
    kafka: Option<&tailwater_kafka::Server>,
    gate: &FrontGate,
) -> anyhow::Result<Copies> {
    let links = DialedLinks::new(env, &gate.dialer);
    let copies = Copies::start_at(env, log, config.given(), links, &config.link_bytes_per_s).await?;
    if let Some(kafka) = kafka.filter(|_| config.group_offsets == GroupSharing::Shared) {
        // Whoever was in a group of this cluster goes on where it was, not where others are.
        let after = if kafka.broker().groups_had_members() { MEMBERS_JOIN } else { Duration::ZERO };
        kafka.broker().tell_of_deletions(copies.placed());
        copies.follow_groups(Arc::new(KafkaOffsets(Arc::clone(kafka.broker()))), after);
    }
    Ok(copies)
}

/// In this time members of groups have joined again after a start: clients notice within a session time-out, which is
/// 45 s by default.
const MEMBERS_JOIN: Duration = Duration::from_secs(60);

/// What groups of Kafka's clients commit, and delete.
struct KafkaOffsets(Arc<tailwater_kafka::Broker>);

impl OffsetsKeeper for KafkaOffsets {
    fn since(&self, stream: StreamId, life: u64, after: u64) -> CopiedOffsets {
        self.0.offsets_since(stream, life, after)
    }

    fn follow(&self, stream: StreamId, offsets: Vec<CopiedOffset>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.0.follow_offsets(stream, offsets))
    }
}

async fn start_kafka(
    env: &Env,
    config: &Config,
    listeners: Option<KafkaListeners>,
    log: &Log,
    (id, administered): (&str, Administered),
    gate: &FrontGate,
) -> anyhow::Result<Option<tailwater_kafka::Server>> {
    let Some(listeners) = listeners else { return Ok(None) };
    let (kafka, log, id) = (gate.kafka(&config.kafka), log.clone(), id.to_owned());
    let (told, users) = (kafka.all_listeners(), Arc::clone(&administered.users));
    let broker =
        tailwater_kafka::Broker::open(env, kafka, log, id, Arc::clone(&gate.authorizer), Some(administered));
    let broker = broker.await.map_err(|why| anyhow::anyhow!(why))?;
    let accepting = listeners.into_iter().map(|(socket, listener)| {
        let acceptor = gate.acceptor("Kafka", listener.tls);
        (socket, listener, acceptor)
    });
    let server = tailwater_kafka::Server::start_with(accepting.collect(), Some(users), broker)?;
    for (address, listener) in server.addresses().iter().zip(told) {
        let advertised = Some(listener.advertised).filter(|advertised| !advertised.is_empty());
        let tls = listener.tls == Some(true);
        let login = listener.login;
        tracing::info!(kafka = %address, advertised, tls, login, "Kafka's clients are answered");
    }
    Ok(Some(server))
}

async fn start_sqs(
    env: &Env,
    config: &Config,
    listener: Option<TcpListener>,
    (queues, meta): (&Arc<dyn QueueStore>, &Arc<dyn Meta>),
    gate: &FrontGate,
) -> anyhow::Result<Option<tailwater_sqs::Server>> {
    let Some(listener) = listener else { return Ok(None) };
    let (queues, authorizer) = (Arc::clone(queues), Arc::clone(&gate.authorizer));
    let accounts = tailwater_sqs::Accounts::open(env, &config.sqs, Arc::clone(meta)).await?;
    accounts.share(&queues).await.context("the other front ends of the queues can't be asked for")?;
    let sqs = config.sqs.clone();
    let front = tailwater_sqs::Front::with_accounts(env, sqs, queues, authorizer, accounts);
    let acceptor = gate.acceptor("SQS", config.sqs.tls);
    let tls = acceptor.is_secured();
    let server = tailwater_sqs::Server::start_with(listener, acceptor, front)?;
    tracing::info!(sqs = %server.address(), tls, "SQS's clients are answered");
    Ok(Some(server))
}

async fn start_server(
    env: &Env,
    config: &Config,
    service: Arc<dyn Service>,
    gate: &FrontGate,
) -> anyhow::Result<Server> {
    let listen = &config.listen;
    let server = ServerConfig {
        tcp: Some(listen.data),
        tls: gate.data_acceptor(listen.tls),
        unix: Some(config.node_socket()),
        engines: config::thread_count(listen.engines),
        // One: appends reach the log in the order in which they arrived.
        call_workers: 1,
        connections_max: listen.connections_max,
        strangers_max: tailwater_login::limits::STRANGERS_MAX,
        ..ServerConfig::default()
    };
    Server::take_over(env, server, service).await.with_context(|| {
        format!("the node can't listen on {}: choose another address with --listen", listen.data)
    })
}
