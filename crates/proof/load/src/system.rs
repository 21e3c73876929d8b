//! The system under test: a node and its cells, each part a process of its own, in a directory of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::address::LoadAddress;
use crate::child::Child;
use crate::clock::{cpu_of, monotonic_ns};
use crate::kafka;

/// Time to live of values in the data cell, in ms: the paper's.
const DATA_TTL_MS: u64 = 60_000;
/// Time to live of values in the metadata cell, in ms: the paper's; and in a cell without a log.
const KEPT_TTL_MS: u64 = 24 * 3_600 * 1_000;
/// Memory of each backend of the metadata cell, in bytes.
const METADATA_BYTES: u64 = 16 << 20;
/// Backends of a cell with three copies.
const BACKENDS: usize = 3;
/// The node's configuration file.
const NODE_CONFIG: &str = "node.toml";
/// How long a part may take to answer: on a machine that does much besides, too.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long a part may take to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Flags about where a run has its data.
#[derive(clap::Args, Clone, Default)]
pub struct WorkspaceArgs {
    /// Where to put the data: a directory on the disk to measure. A directory is made in it, and removed again.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave the directory, with the logs of all processes.
    #[arg(long)]
    keep: bool,
}

impl WorkspaceArgs {
    /// Makes the directory.
    pub fn create(&self) -> anyhow::Result<Workspace> {
        Workspace::create(self.dir.as_deref(), self.keep)
    }
}

/// Flags about the system under test.
#[derive(clap::Args, Clone)]
pub struct SystemArgs {
    /// Copies of each cached value: r1 (in the node) or r3.2 (three backend processes for each cell). By default r3.2,
    /// and r1 with --protocol kafka.
    #[arg(long, value_enum)]
    cells: Option<CellProcesses>,
    /// Memory of each backend of the data cell, in MiB.
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    cell_mib: u64,
    /// Bytes of the stream's chunks. By default the stream's default.
    #[arg(long, value_name = "BYTES")]
    chunk_bytes: Option<u32>,
    /// More lines of the node's configuration file.
    #[arg(long, hide = true, default_value = "")]
    node_config: String,
    /// Whether connections over TCP are encrypted.
    #[arg(skip)]
    is_secured: bool,
    /// Backends of the data cell with three copies; 0 are as many as it needs.
    #[arg(skip)]
    data_backends: usize,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

/// Copies of each cached value.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CellProcesses {
    /// One, in the node.
    #[value(name = "r1")]
    #[serde(rename = "R1")]
    R1,
    /// Three, in processes of their own, of which two are a quorum.
    #[value(name = "r3.2")]
    #[serde(rename = "R3.2")]
    R32,
}

impl SystemArgs {
    /// The usual: three copies, 512 MiB each.
    pub fn usual(workspace: WorkspaceArgs) -> Self {
        Self {
            cells: None,
            cell_mib: 512,
            chunk_bytes: None,
            node_config: String::new(),
            is_secured: false,
            data_backends: 0,
            workspace,
        }
    }

    /// Bytes of the stream's chunks, if not the default.
    pub fn chunk_bytes(&self) -> Option<u32> {
        self.chunk_bytes
    }

    /// Copies of each cached value.
    pub fn cells(&self) -> CellProcesses {
        self.cells.unwrap_or(CellProcesses::R32)
    }

    /// With more lines of the node's configuration file: keys outside of sections, or whole sections.
    pub fn with_config(mut self, lines: &str) -> Self {
        self.node_config += lines;
        self
    }

    /// With TLS on connections over TCP: those of clients of our own, to the node and to its cells, and Kafka's.
    pub fn secured(mut self) -> Self {
        self.is_secured = true;
        self
    }

    /// With so many backends of the data cell, if it has three copies: three at least.
    pub fn with_data_backends(mut self, backends: usize) -> Self {
        self.data_backends = backends;
        self
    }

    /// With so many copies, unless somebody has said how many.
    pub fn or_cells(mut self, cells: CellProcesses) -> Self {
        self.cells.get_or_insert(cells);
        self
    }
}

/// When a node acknowledges.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerDurability {
    /// When records are on the disk.
    Fsync,
    /// When they are written; they are synced at intervals.
    Interval,
}

/// A directory that is removed at the end.
pub struct Workspace {
    path: PathBuf,
    keep: bool,
}

impl Workspace {
    /// Makes one below `dir`, or where this machine keeps large temporary files.
    pub fn create(dir: Option<&Path>, keep: bool) -> anyhow::Result<Self> {
        let parent = match dir {
            Some(dir) => dir.to_owned(),
            None => [std::env::temp_dir(), PathBuf::from("/var/tmp"), std::env::current_dir()?]
                .into_iter()
                .find(|dir| dir.is_dir() && !is_memory(dir))
                .context("neither the temporary directory nor this one is on a disk: name one with --dir")?,
        };
        if is_memory(&parent) {
            eprintln!("{} is memory, not a disk: what a sync costs is not measured there", parent.display());
        }
        let path = parent.join(format!("tailwater-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("{} can't be made", path.display()))?;
        Ok(Self { path: path.canonicalize()?, keep })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("left behind: {}", self.path.display());
        } else {
            // What can't be removed is in a temporary directory.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn is_memory(dir: &Path) -> bool {
    /// TMPFS_MAGIC of `statfs(2)`.
    const TMPFS: i64 = 0x0102_1994;
    #[allow(clippy::unnecessary_cast)] // its width differs between platforms
    rustix::fs::statfs(dir).is_ok_and(|stat| stat.f_type as i64 == TMPFS)
}

/// Which of the two cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CellName {
    /// Chunks.
    Data,
    /// Lengths.
    Metadata,
}

impl CellName {
    fn as_str(self) -> &'static str {
        match self {
            CellName::Data => "data",
            CellName::Metadata => "metadata",
        }
    }
}

/// One cache backend process.
pub struct BackendProcess {
    child: Option<Child>,
    name: String,
    args: Vec<String>,
    /// Its addresses, nearest first.
    pub addresses: Vec<String>,
}

impl BackendProcess {
    fn prepare(
        cell: CellName,
        number: usize,
        dir: &Path,
        capacity_bytes: u64,
        ttl_ms: u64,
        (tls, ofi): (Option<&SystemTls>, Option<&str>),
    ) -> anyhow::Result<Self> {
        let name = format!("{}-{number}", cell.as_str());
        let unix = dir.join(format!("{name}.sock"));
        let tcp = free_address()?;
        let args = [
            "cache",
            "serve",
            "--cell",
            cell.as_str(),
            "--unix",
            &unix.display().to_string(),
            "--tcp",
            &tcp.to_string(),
            "--capacity-bytes",
            &capacity_bytes.to_string(),
            "--ttl-ms",
            &ttl_ms.to_string(),
        ];
        let mut args = args.map(str::to_owned).to_vec();
        if let Some(SystemTls { certificate, key, .. }) = tls {
            for (flag, file) in [("--tls-certificate", certificate), ("--tls-key", key)] {
                args.extend([flag.to_owned(), file.display().to_string()]);
            }
        }
        let scheme = if tls.is_some() { "tls" } else { "tcp" };
        let mut addresses = vec![format!("unix:{}", unix.display()), format!("{scheme}:{tcp}")];
        if let Some(provider) = ofi {
            args.extend(["--ofi".to_owned(), provider.to_owned()]);
            addresses.push(format!("ofi:{tcp}"));
        }
        Ok(Self { child: None, name, args, addresses })
    }

    fn start(&mut self, dir: &Path) -> anyhow::Result<()> {
        // One that was killed leaves its socket's name behind.
        let _ = std::fs::remove_file(self.addresses[0].trim_start_matches("unix:"));
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.child = Some(Child::start(&self.name, &args, dir)?);
        Ok(())
    }

    /// Waits until it answers.
    fn wait(&mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        let address = self.addresses[1].trim_start_matches("tcp:").trim_start_matches("tls:").to_owned();
        child.until("does not listen", START_DEADLINE, || std::net::TcpStream::connect(&address).is_ok())
    }
}

/// Starts the three backends of a data cell and nothing else, which are read over libfabric too if `ofi` is a provider
/// of its. It is a cache without a log: its values stay for longer than any measurement takes.
pub fn start_data_cell(
    dir: &Path,
    capacity_bytes: u64,
    ofi: Option<&str>,
) -> anyhow::Result<Vec<BackendProcess>> {
    let mut backends = Vec::with_capacity(BACKENDS);
    for number in 0..BACKENDS {
        let (cell, ways) = (CellName::Data, (None, ofi));
        let mut backend = BackendProcess::prepare(cell, number, dir, capacity_bytes, KEPT_TTL_MS, ways)?;
        backend.start(dir)?;
        backends.push(backend);
    }
    backends.iter_mut().try_for_each(BackendProcess::wait)?;
    Ok(backends)
}

/// CPU time of some backends so far.
pub fn cpu_of_backends(backends: &[BackendProcess]) -> Duration {
    backends.iter().filter_map(|backend| backend.child.as_ref()).map(Child::cpu).sum()
}

/// A node and its cells; or a broker of Kafka's that was there before.
pub struct System {
    server: Server,
    data_cell: Vec<BackendProcess>,
    metadata_cell: Vec<BackendProcess>,
    /// Memory of each backend of the data cell.
    data_bytes: u64,
    workspace: Workspace,
}

enum Server {
    Node(Node),
    Broker(MeasuredBroker),
}

struct Node {
    child: Child,
    admin: SocketAddr,
    unix: PathBuf,
    tcp: SocketAddr,
    kafka: SocketAddr,
    tls: Option<SystemTls>,
    chunk_bytes: Option<u32>,
    durability: PeerDurability,
}

/// Certificates of a system whose connections are encrypted.
struct SystemTls {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl SystemTls {
    /// Makes them in a directory.
    fn make(dir: &Path) -> anyhow::Result<Self> {
        let dir = make_certificates(&dir.join("tls"), None)?;
        Ok(Self { ca: dir.join("ca.pem"), certificate: dir.join("node.pem"), key: dir.join("node.key") })
    }
}

/// Has this program make a CA (`ca.pem`), and a certificate of this host with its key (`node.pem`, `node.key`), in a
/// directory; or a client's certificate with its key (`NAME.pem`), if they are there. The directory.
///
/// # Errors
/// They can't be made, as in a build without TLS.
pub fn make_certificates(dir: &Path, client: Option<&str>) -> anyhow::Result<PathBuf> {
    let mut init = std::process::Command::new(std::env::current_exe()?);
    init.args(["init", "--tls", "--dir"]).arg(dir);
    let made = init.args(client.iter().flat_map(|name| ["--client", name])).output()?;
    anyhow::ensure!(
        made.status.success(),
        "no certificates: {}",
        String::from_utf8_lossy(&made.stderr).trim()
    );
    Ok(dir.to_owned())
}

/// Dropping it deletes the topic.
struct MeasuredBroker {
    address: LoadAddress,
    pid: Option<u32>,
    topic: String,
}

impl Drop for MeasuredBroker {
    fn drop(&mut self) {
        if let Err(error) = kafka::admin::delete_topic(&self.address, &self.topic) {
            eprintln!("topic {} is left behind: {error:#}", self.topic);
        }
    }
}

impl System {
    /// Starts one, and returns when it is ready.
    pub fn start(args: &SystemArgs) -> anyhow::Result<Self> {
        Self::start_for(args, false, PeerDurability::Fsync)
    }

    /// Takes the broker that listens at `address`; `pid` is its process, if that is known.
    pub fn connect(args: &SystemArgs, address: LoadAddress, pid: Option<u32>) -> anyhow::Result<Self> {
        let workspace = args.workspace.create()?;
        let topic = format!("bench-{:x}", monotonic_ns());
        let server = Server::Broker(MeasuredBroker { address, pid, topic });
        Ok(Self { server, data_cell: Vec::new(), metadata_cell: Vec::new(), data_bytes: 0, workspace })
    }

    /// Starts one that speaks Kafka's protocol or does not, whose streams are as durable as it says.
    pub fn start_for(
        args: &SystemArgs,
        speaks_kafka: bool,
        durability: PeerDurability,
    ) -> anyhow::Result<Self> {
        let workspace = args.workspace.create()?;
        let dir = workspace.path().to_owned();
        let tls = args.is_secured.then(|| SystemTls::make(&dir)).transpose()?;
        let (mut data_cell, mut metadata_cell) = (Vec::new(), Vec::new());
        if args.cells() == CellProcesses::R32 {
            let ways = (tls.as_ref(), None);
            let prepare = |cell, number, bytes, ttl_ms| {
                BackendProcess::prepare(cell, number, &dir, bytes, ttl_ms, ways)
            };
            for number in 0..args.data_backends.max(BACKENDS) {
                data_cell.push(prepare(CellName::Data, number, args.cell_mib << 20, DATA_TTL_MS)?);
            }
            for number in 0..BACKENDS {
                metadata_cell.push(prepare(CellName::Metadata, number, METADATA_BYTES, KEPT_TTL_MS)?);
            }
        }
        let (admin, tcp, unix) = (free_address()?, free_address()?, dir.join("node.sock"));
        let kafka = free_address()?;
        for backend in data_cell.iter_mut().chain(&mut metadata_cell) {
            backend.start(&dir)?;
        }
        for backend in data_cell.iter_mut().chain(&mut metadata_cell) {
            backend.wait()?;
        }
        let mut config = format!(
            "data = {:?}\n{}\n[listen]\ndata = \"{tcp}\"\nadmin = \"{admin}\"\nunix = {unix:?}\n",
            dir.join("data"),
            args.node_config,
        );
        let is_secured = tls.is_some();
        config += &format!("tls = {is_secured}\n");
        config += &format!("[kafka]\nenabled = {speaks_kafka}\nlisten = \"{kafka}\"\ntls = {is_secured}\n");
        if let Some(SystemTls { ca, certificate, key }) = &tls {
            config += &format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nca = {ca:?}\n");
            // Who has a certificate is known by it.
            config += &format!("client_ca = {ca:?}\nclient_certificates = \"optional\"\n");
            config += "listeners = \"named\"\n";
        }
        config += "[sqs]\nenabled = false\n[broadcast]\nenabled = false\n";
        for (cell, backends) in [("data_cell", &data_cell), ("metadata_cell", &metadata_cell)] {
            let mode = if backends.is_empty() { "R1" } else { "R3.2" };
            let addresses: Vec<_> = backends.iter().map(|backend| &backend.addresses).collect();
            config += &format!("[{cell}]\nmode = \"{mode}\"\nbackends = {addresses:?}\n");
            if cell == "data_cell" {
                config += &format!("capacity_bytes = {}\n", args.cell_mib << 20);
            }
        }
        std::fs::write(dir.join(NODE_CONFIG), config)?;
        let child = start_node(&dir)?;
        let chunk_bytes = args.chunk_bytes;
        let mut node = Node { child, admin, unix, tcp, kafka, tls, chunk_bytes, durability };
        node.wait_until_ready()?;
        let data_bytes = args.cell_mib << 20;
        Ok(Self { server: Server::Node(node), data_cell, metadata_cell, data_bytes, workspace })
    }

    /// Where clients of our own on this host connect; through shared memory or not is up to their transport. A broker
    /// has no such address.
    pub fn address(&self, shared_memory: bool) -> anyhow::Result<LoadAddress> {
        match &self.server {
            Server::Node(node) if shared_memory => Ok(format!("unix:{}", node.unix.display()).into()),
            Server::Node(node) => {
                let scheme = if node.tls.is_some() { "tls" } else { "tcp" };
                Ok(LoadAddress::from(format!("{scheme}:{}", node.tcp)).with_ca(node.ca()))
            }
            Server::Broker(broker) => {
                bail!("the broker at {} speaks Kafka's protocol only", broker.address.address)
            }
        }
    }

    /// Where Kafka's clients connect.
    pub fn kafka_address(&self) -> LoadAddress {
        match &self.server {
            Server::Node(node) => LoadAddress::from(node.kafka.to_string()).with_ca(node.ca()),
            Server::Broker(broker) => broker.address.clone(),
        }
    }

    /// Where a client of Kafka's protocol connects that calls itself so. In TLS it shows a certificate of that name.
    ///
    /// # Errors
    /// The certificate can't be made.
    pub fn kafka_address_of(&self, client: &str) -> anyhow::Result<LoadAddress> {
        let mut address = self.kafka_address();
        address.client_id = Some(client.to_owned());
        if let Some(dir) = address.ca.as_deref().and_then(Path::parent) {
            let made = make_certificates(dir, Some(client))?;
            address.certificate = Some(made.join(format!("{client}.pem")));
        }
        Ok(address)
    }

    /// Sets a quota of the node: `entity` and `bounds` as admin HTTP takes them.
    ///
    /// # Errors
    /// The node refuses it, or it is a broker.
    pub fn set_quota(&self, entity: &Value, bounds: &Value) -> anyhow::Result<()> {
        let Server::Node(node) = &self.server else { bail!("a broker has no admin HTTP") };
        let body = json!({ "entity": entity, "bounds": bounds });
        let mut answer = agent().put(node.url("/v1/quotas")).send_json(&body)?;
        if !answer.status().is_success() {
            bail!("the quota can't be set: {}", answer.body_mut().read_to_string()?);
        }
        Ok(())
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.workspace.path()
    }

    /// Name of the stream that everything happens in.
    pub fn stream(&self) -> &str {
        match &self.server {
            Server::Node(_) => "bench",
            Server::Broker(broker) => &broker.topic,
        }
    }

    /// Creates it. `flush` is `immediate` or a number of milliseconds, and nothing to a broker.
    pub fn create_stream(&self, shards: u32, flush: &str) -> anyhow::Result<()> {
        match &self.server {
            Server::Node(node) => node.create_stream(self.stream(), shards, flush),
            Server::Broker(broker) => kafka::admin::create_topic(&broker.address, &broker.topic, shards),
        }
    }

    /// Takes a cell's backends away, or brings them back, empty.
    pub fn set_cell(&mut self, cell: CellName, up: bool) -> anyhow::Result<()> {
        let dir = self.workspace.path().to_owned();
        let backends = match cell {
            CellName::Data => &mut self.data_cell,
            CellName::Metadata => &mut self.metadata_cell,
        };
        for backend in backends.iter_mut() {
            if up {
                backend.start(&dir)?;
            } else {
                // Killed: the worst way to go.
                backend.child = None;
            }
        }
        if up { backends.iter_mut().try_for_each(BackendProcess::wait) } else { Ok(()) }
    }

    fn backends_of(&mut self, cell: CellName) -> &mut Vec<BackendProcess> {
        match cell {
            CellName::Data => &mut self.data_cell,
            CellName::Metadata => &mut self.metadata_cell,
        }
    }

    /// Kills one backend of a cell.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn kill_backend(&mut self, cell: CellName, number: usize) {
        self.backends_of(cell)[number].child = None;
    }

    /// Starts one again that was killed, empty. Does not wait until it answers.
    ///
    /// # Errors
    /// It can't be started.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn start_backend(&mut self, cell: CellName, number: usize) -> anyhow::Result<()> {
        let dir = self.workspace.path().to_owned();
        self.backends_of(cell)[number].start(&dir)
    }

    /// Starts more backends of the data cell, up to `backends`, and has the node take them into the cell. The change is
    /// not waited for: see [`System::is_changing`].
    ///
    /// # Errors
    /// They do not start, or the node refuses them.
    pub fn grow_data_cell(&mut self, backends: usize) -> anyhow::Result<()> {
        let dir = self.workspace.path().to_owned();
        let first = self.data_cell.len();
        for number in first..backends {
            let mut backend = BackendProcess::prepare(
                CellName::Data,
                number,
                &dir,
                self.data_bytes,
                DATA_TTL_MS,
                (None, None),
            )?;
            backend.start(&dir)?;
            self.data_cell.push(backend);
        }
        self.data_cell[first..].iter_mut().try_for_each(BackendProcess::wait)?;
        let Server::Node(node) = &self.server else { bail!("a broker has no cells") };
        let addresses: Vec<_> = self.data_cell[first..].iter().map(|backend| &backend.addresses).collect();
        let url = node.url("/v1/cells/data/resize");
        let mut answer = agent().post(url).send_json(json!({ "addresses": addresses }))?;
        if !answer.status().is_success() {
            bail!("the data cell can't be resized: {}", answer.body_mut().read_to_string()?);
        }
        Ok(())
    }

    /// How many backends the data cell has.
    pub fn data_backends(&self) -> usize {
        self.data_cell.len()
    }

    /// How far the change of the data cell's backends is; `None` if none is under way.
    ///
    /// # Errors
    /// The node does not answer, or it is a broker.
    pub fn is_changing(&self) -> anyhow::Result<Option<String>> {
        let Server::Node(node) = &self.server else { bail!("a broker has no cells") };
        let view: Vec<Value> = agent().get(node.url("/v1/cells")).call()?.body_mut().read_json()?;
        let data = view.iter().find(|cell| cell["name"] == "data").context("there is a data cell")?;
        Ok(data["change"].as_str().map(str::to_owned))
    }

    /// Kills the node as a crash does; its cells' backends stay.
    ///
    /// # Errors
    /// It is a broker, which somebody else has started.
    pub fn kill_node(&mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Node(node) => node.child.kill(),
            Server::Broker(broker) => bail!("the broker at {} was not started here", broker.address.address),
        }
    }

    /// Starts the node again that was killed. Does not wait until it is ready.
    ///
    /// # Errors
    /// It is a broker, which somebody else has started.
    pub fn start_node(&mut self) -> anyhow::Result<()> {
        let dir = self.workspace.path().to_owned();
        match &mut self.server {
            Server::Node(node) => {
                node.child = start_node(&dir)?;
                Ok(())
            }
            Server::Broker(broker) => bail!("the broker at {} was not started here", broker.address.address),
        }
    }

    /// Fails if any part has ended that was not taken away.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Server::Node(node) = &mut self.server {
            node.child.check()?;
        }
        let backends = self.data_cell.iter_mut().chain(&mut self.metadata_cell);
        backends.filter_map(|backend| backend.child.as_mut()).try_for_each(Child::check)
    }

    /// CPU time of the server, and of the backends beside it, so far; zero for a broker whose process is not known.
    pub fn cpu(&self) -> (Duration, Duration) {
        let server = match &self.server {
            Server::Node(node) => node.child.cpu(),
            Server::Broker(broker) => broker.pid.and_then(cpu_of).unwrap_or_default(),
        };
        (server, cpu_of_backends(&self.data_cell) + cpu_of_backends(&self.metadata_cell))
    }

    /// CPU time of the node's window so far; zero if it has none.
    pub fn window_cpu(&self) -> Duration {
        match &self.server {
            Server::Node(node) => node.child.cpu_of_its("window"),
            Server::Broker(_) => Duration::ZERO,
        }
    }

    /// Stops the node in order; the rest with it. A broker goes on.
    pub fn stop(mut self) -> anyhow::Result<()> {
        match &mut self.server {
            Server::Node(node) => node.child.stop(STOP_DEADLINE),
            Server::Broker(_) => Ok(()),
        }
    }
}

/// Starts the node whose configuration is in `dir`.
fn start_node(dir: &Path) -> anyhow::Result<Child> {
    Child::start("node", &["serve", "--config", &dir.join(NODE_CONFIG).display().to_string()], dir)
}

impl Node {
    fn ca(&self) -> Option<PathBuf> {
        self.tls.as_ref().map(|tls| tls.ca.clone())
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let url = self.url("/readyz");
        let is_ready = || agent().get(&url).call().is_ok_and(|answer| answer.status().is_success());
        self.child.until("is not ready", START_DEADLINE, is_ready)
    }

    fn create_stream(&self, name: &str, shards: u32, flush: &str) -> anyhow::Result<()> {
        let durability = self.durability;
        let mut body = json!({ "name": name, "shards": shards, "flush": flush, "durability": durability });
        if let Some(chunk_bytes) = self.chunk_bytes {
            body["chunk_bytes"] = chunk_bytes.into();
        }
        let mut answer = agent().post(self.url("/v1/streams")).send_json(&body)?;
        if !answer.status().is_success() {
            bail!("stream {name} can't be created: {}", answer.body_mut().read_to_string()?);
        }
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin)
    }
}

/// Asks admin HTTP.
pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
    config.timeout_global(Some(Duration::from_secs(30))).build().into()
}

/// An address of this host that nobody listens at, and that neither a connection nor another process is given
/// meanwhile: it lies outside the range that the kernel takes ports of outgoing connections from, and in a block of
/// ports that is this process's alone, among all that ask here. Each is told once.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    static OWN: Mutex<Ports> = Mutex::new(Ports { guards: Vec::new(), left: 0..0 });
    OWN.lock().take()
}

/// The ports that this process may use. They come in blocks, of which the first port is listened at for as long as the
/// process lives: whoever finds it taken takes another block.
struct Ports {
    guards: Vec<TcpListener>,
    left: Range<u16>,
}

impl Ports {
    /// So few that every process of a test run finds blocks, so many that few guards are open.
    const BLOCK: u16 = 64;

    fn take(&mut self) -> anyhow::Result<SocketAddr> {
        loop {
            match self.left.next() {
                // What was not started by this project may listen anywhere.
                Some(port) if listen(port).is_ok() => return Ok((Ipv4Addr::LOCALHOST, port).into()),
                Some(_) => {}
                None => self.add_block()?,
            }
        }
    }

    fn add_block(&mut self) -> anyhow::Result<()> {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let first_ephemeral = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
        let ports = 10_000..first_ephemeral.unwrap_or(32_768u16);
        anyhow::ensure!(
            ports.len() > 1_000,
            "the kernel gives outgoing connections nearly every port there is"
        );
        let blocks = (ports.end - ports.start) / Self::BLOCK;
        // Processes that begin at the same time look in different places.
        let seed = monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id());
        let place = ((seed >> 20) % u64::from(blocks)) as u16;
        let mut firsts = (place..blocks).chain(0..place).map(|block| ports.start + block * Self::BLOCK);
        let (first, guard) =
            firsts.find_map(|first| Some((first, listen(first).ok()?))).context("no port is free")?;
        self.guards.push(guard);
        self.left = first + 1..first + Self::BLOCK;
        Ok(())
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_processes_that_take_addresses_at_the_same_time_are_never_given_the_same() {
        // As each process has its own, they know of each other by their guards only.
        let mut processes = [(); 2].map(|()| Ports { guards: Vec::new(), left: 0..0 });
        let taken = processes.each_mut().map(|ports| {
            let several = 3 * usize::from(Ports::BLOCK);
            (0..several).map(|_| ports.take().expect("an address")).collect::<BTreeSet<_>>()
        });
        assert_eq!(
            taken.each_ref().map(BTreeSet::len),
            [3 * usize::from(Ports::BLOCK); 2],
            "each is told once"
        );
        assert!(taken[0].is_disjoint(&taken[1]));
    }
}
