//! `tailwater cache …`

mod keys;
mod rights;
mod top;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;
use tailwater_cache::limits::SEED_DEADLINE;
use tailwater_cache::{BackendPlace, Backends, Cell, CellConfig, Configuration, LookupWay, Version};
use tailwater_env::Env;
use tailwater_node::api::CellView;
use tailwater_node::backend::{BackendOptions, CellKind, LateQuotas, ServedBackend};
use tailwater_node::signal::StopSignals;
use tailwater_node::{CellSection, Config, LogFormat, Logging, is_of_this_host, thread_count};
use tailwater_rma::Address;
use tailwater_tls::{Acceptor, Certificates, ClientCertificates, Dialer, DialerConfig, TlsConfig};

use self::rights::BackendRights;
use super::cell::EvictionArg;
use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};
use crate::values;

/// Exit status of `cache serve` when it was asked to end, for its supervisor to start it again.
const START_AGAIN: i32 = 10;

/// What to do with caches.
#[derive(Subcommand)]
pub enum Command {
    /// Run one cache backend as a process of its own.
    ///
    /// It exits with status 10 when `tailwater cell roll` wants a restart. Its supervisor has to restart it.
    Serve(Box<ServeArgs>),
    /// List a node's cells, as `tailwater cell ls` does.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Set a key to a value in a cell, and wait until a quorum of its replicas has it.
    Set {
        #[command(flatten)]
        asked: AskedCell,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Time after which the key has no value any more. 0: it keeps it as long as the cell has room.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=u64::MAX), default_value = "0")]
        ttl_ms: u64,
    },
    /// Get a key's value from a cell, as a quorum of its replicas has it.
    ///
    /// It ends with status 1 where there is none, and with 3 where nothing can be said: there may be a value.
    Get {
        #[command(flatten)]
        asked: AskedCell,
        /// The key.
        key: String,
        /// The way to ask the replicas. `auto` chooses by transport and size. `two` asks two, and the third if they
        /// do not agree or one is late. `all` asks all at once, and one sends the value along. `2xr` is the same, but
        /// the value comes afterwards. With `scar` all send the value along. With `call` the backends' own code
        /// answers.
        #[arg(long, value_name = "WAY", value_parser = str::parse::<LookupWay>, default_value = "auto")]
        lookup: LookupWay,
        /// Form of the output. JSON has the version, and the time at which the value expires.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Set a key to a value if the key is at a version, or if it has no value.
    Cas {
        #[command(flatten)]
        asked: AskedCell,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The version that the key has to be at, as `tailwater cache get -o json` prints it; or use --absent.
        #[arg(long, value_name = "VERSION", value_parser = keys::version)]
        at: Option<Version>,
        /// The key has to have no value.
        #[arg(long, conflicts_with = "at")]
        absent: bool,
        /// Time after which the key has no value any more. 0: it keeps it as long as the cell has room.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=u64::MAX), default_value = "0")]
        ttl_ms: u64,
    },
    /// Delete a key from a cell, and wait until a quorum of its replicas has forgotten it.
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        asked: AskedCell,
        /// The key.
        key: String,
    },
    /// Give a key's value another time to live from now on.
    Touch {
        #[command(flatten)]
        asked: AskedCell,
        /// The key.
        key: String,
        /// Time after which the key has no value any more. 0: it keeps it as long as the cell has room.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(0..=u64::MAX))]
        ttl_ms: u64,
    },
    /// Print the values of some keys, and each one again when it changes, whoever changes it.
    ///
    /// It goes on until it is interrupted. A key that two of three backends can't tell of is looked up again.
    Follow {
        #[command(flatten)]
        asked: AskedCell,
        /// The keys.
        #[arg(required = true)]
        keys: Vec<String>,
        /// End after so many values.
        #[arg(short = 'n', long, value_name = "N", value_parser = values::number::<u64>(1..=u64::MAX))]
        count: Option<u64>,
        /// Form of the output. JSON has the version, and the time at which the value expires.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show the contents and counters of a cell's backends.
    Stats {
        #[command(flatten)]
        asked: AskedCell,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show the work of a cell's backends in each second.
    ///
    /// One-sided reads leave no trace at a backend. The node's `/metrics` counts the node's own reads.
    Top {
        #[command(flatten)]
        asked: AskedCell,
        /// Time between two looks.
        #[arg(long, value_name = "MS", value_parser = values::number::<u64>(100..=3_600_000), default_value = "1000")]
        every_ms: u64,
        /// End after so many looks. By default the command goes on until it is interrupted.
        #[arg(short = 'n', long, value_name = "N", value_parser = values::number::<u64>(1..=u64::MAX))]
        count: Option<u64>,
        /// Form of the output. In JSON each line has all backends.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Empty a cell. Readers read the durable layer until the cell is warm again.
    Clear {
        /// The cell's name.
        #[arg(value_name = "NAME", value_parser = cell_name)]
        cell: String,
    },
}

/// Flags of `cache serve`.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The cell of the backend: `data`, `metadata`, or a created one. The node or a client of the cell gives the
    /// backend its configuration.
    #[arg(long, value_name = "NAME", value_parser = cell_name)]
    cell: String,
    /// Where clients on this host connect.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Where clients on other hosts connect.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    tcp: Option<SocketAddr>,
    /// Serve one-sided reads over libfabric as well, by this provider: `verbs;ofi_rxm` for RDMA, `efa`, or
    /// `tcp;ofi_rxm` in software. Clients connect to `ofi:` and the address of --tcp. libfabric encrypts nothing.
    #[arg(long, value_name = "PROVIDER", requires = "tcp", conflicts_with = "tls_certificate")]
    ofi: Option<String>,
    /// File in PEM with a certificate. Connections to --tcp are then in TLS. The file is read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tcp")]
    tls_certificate: Option<PathBuf>,
    /// File in PEM with the certificate's key. By default the file of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// File in PEM with the CA of clients' certificates. Every client of --tcp has to show one. Other backends of the
    /// cell need a certificate of that CA, too.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    rights: BackendRights,
    /// Let other hosts in over --tcp without --tls-certificate or --tls-client-ca. Every client that connects may do
    /// everything.
    #[arg(long)]
    insecure: bool,
    /// Memory for values, taken from shared memory at the start. By default as much as a node's own backend has.
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(1 << 20..=u64::MAX))]
    capacity_bytes: Option<u64>,
    /// Expected size of a value; it decides the size of the index. For the data cell, use the smallest common chunk
    /// size. By default as in a node's own backend.
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(512..=1 << 20))]
    value_bytes: Option<u64>,
    /// How long a value is kept that is not written again. By default as in a node's own backend.
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1_000..=u64::MAX))]
    ttl_ms: Option<u64>,
    /// How full the backend may get, in percent, before it evicts values.
    #[arg(long, value_name = "PERCENT", value_parser = values::number::<u8>(1..=100))]
    eviction_percent: Option<u8>,
    /// Which values it evicts: `lrm` for the one that was not written for longest, `lru` for the one that was neither
    /// written nor read for longest, `s3-fifo` for those that were only written before those that were read.
    #[arg(long, value_enum, default_value_t = EvictionArg::Lrm)]
    eviction: EvictionArg,
    /// Threads that answer one-sided reads over TCP. 0 is one for each core but one.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::number::<usize>(0..=1_024))]
    engines: usize,
    /// Which log lines are written, as in `info,tailwater_cache=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Which cell: one of its backends is asked for the rest.
#[derive(clap::Args)]
#[group(required = true)]
pub struct Seeds {
    /// The cell's name. The node tells the addresses of its backends.
    #[arg(long, value_name = "NAME", value_parser = cell_name)]
    cell: Option<String>,
    /// Address of one of the cell's backends, as `tailwater cell describe` shows them: `unix:PATH`, `tcp:HOST:PORT`,
    /// `tls:HOST:PORT` or `ofi:HOST:PORT`. You may give several. The first backend that answers tells the others'
    /// addresses.
    #[arg(long, value_name = "ADDRESS", value_parser = seed)]
    seed: Vec<Address>,
}

/// Which cell, and how long it has.
#[derive(clap::Args)]
pub struct AskedCell {
    #[command(flatten)]
    seeds: Seeds,
    /// Time for the operation, and before it for connecting to the backends. A backend that does not answer may hold
    /// the command up for as long.
    #[arg(long, value_name = "MS", value_parser = values::number::<u64>(1..=3_600_000), default_value = "1000")]
    deadline_ms: u64,
}

/// Runs one of them.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve(*args),
        Command::Ls(ListArgs { output }) => super::cell::list(server, output),
        Command::Set { asked, key, value, ttl_ms } => {
            in_cell(server, &asked, async |cell| keys::set(cell, key, value, ttl_ms).await)
        }
        Command::Get { asked, key, lookup, output } => {
            in_cell(server, &asked, async |cell| keys::get(cell.with_lookup(lookup), key, output).await)
        }
        Command::Cas { asked, key, value, at, absent, ttl_ms } => {
            anyhow::ensure!(
                absent || at.is_some(),
                "say what the key has to hold now: --at VERSION, or --absent"
            );
            in_cell(server, &asked, async |cell| keys::cas(cell, key, value, at, ttl_ms).await)
        }
        Command::Delete { asked, key } => in_cell(server, &asked, async |cell| keys::delete(cell, key).await),
        Command::Touch { asked, key, ttl_ms } => {
            in_cell(server, &asked, async |cell| keys::touch(cell, key, ttl_ms).await)
        }
        Command::Follow { asked, keys, count, output } => {
            in_cell(server, &asked, async |cell| keys::follow(cell, keys, count, output).await)
        }
        Command::Stats { asked, output } => {
            in_cell(server, &asked, async |cell| keys::stats(cell, output).await)
        }
        Command::Top { asked, every_ms, count, output } => {
            let every = Duration::from_millis(every_ms);
            in_cell(server, &asked, async |cell| top::run(cell, every, count, output).await)
        }
        Command::Clear { cell } => {
            let _: CellView = server.post(&format!("/v1/cells/{}/clear", escaped(&cell)), &Value::Null)?;
            output::print(&format!("the {cell} cell is empty"))
        }
    }
}

/// Addresses of a cell's backends, one of which will do.
fn addresses(server: &Server, seeds: &Seeds) -> anyhow::Result<Vec<String>> {
    let mut addresses: Vec<String> = seeds.seed.iter().map(Address::to_string).collect();
    if let Some(name) = &seeds.cell {
        let cell: CellView = server.get(&format!("/v1/cells/{}", escaped(name)))?;
        addresses.extend(cell.backends.into_iter().flatten());
    }
    Ok(addresses)
}

/// Connects to the cell of that name, whose operations take so long at most.
pub(super) fn in_named_cell<T>(
    server: &Server,
    name: &str,
    deadline: Duration,
    then: impl AsyncFnOnce(Cell) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let seeds = Seeds { cell: Some(name.to_owned()), seed: Vec::new() };
    in_cell_with(server, &seeds, SEED_DEADLINE, |config| config.deadline = deadline, then)
}

/// Connects to the cell that is meant.
fn in_cell(
    server: &Server,
    asked: &AskedCell,
    then: impl AsyncFnOnce(Cell) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = Duration::from_millis(asked.deadline_ms);
    let change = |config: &mut CellConfig| {
        config.deadline = deadline;
        config.connect_deadline = deadline;
    };
    in_cell_with(server, &asked.seeds, deadline.max(SEED_DEADLINE), change, then)
}

fn in_cell_with<T>(
    server: &Server,
    seeds: &Seeds,
    seed_deadline: Duration,
    change: impl FnOnce(&mut CellConfig),
    then: impl AsyncFnOnce(Cell) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let addresses = addresses(server, seeds)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let env = Env::real();
        // The number is not known, and not asked for where the address is.
        let place = |address| BackendPlace::new(0, vec![address]);
        let places: Vec<_> = addresses.into_iter().map(place).collect();
        let connector = Backends::by_address_with(&env, server.dialer(&env)?);
        let client_id = env.random_u64() as u32;
        let told = Cell::configuration_at(&env, &*connector, &places, seed_deadline).await;
        let told = told.map_err(|why| anyhow::anyhow!("no backend of the cell can be asked: {why}"))?;
        let mut config = CellConfig::of(told, connector, client_id);
        change(&mut config);
        then(Cell::connect(&env, config).await?).await
    })
}

fn seed(text: &str) -> Result<Address, String> {
    text.parse::<Address>().map_err(|error| error.to_string())
}

/// The name of a cell, which is to be checked before a backend takes memory for it.
fn cell_name(text: &str) -> Result<String, String> {
    Configuration::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let ServeArgs {
        cell,
        unix,
        tcp,
        ofi,
        tls_certificate,
        tls_key,
        tls_client_ca,
        rights,
        insecure,
        capacity_bytes,
        value_bytes,
        ttl_ms,
        eviction_percent,
        eviction,
        engines,
        log,
    } = args;
    anyhow::ensure!(
        unix.is_some() || tcp.is_some(),
        "a backend that listens nowhere is of no use: give --unix PATH, --tcp IP:PORT or both"
    );
    let is_open = tls_certificate.is_none() || tls_client_ca.is_none();
    if let Some(tcp) = tcp.filter(|tcp| is_open && !insecure && !is_of_this_host(*tcp)) {
        anyhow::bail!(
            "--tcp {tcp} would let others than this host in, unencrypted or without being known: whoever connects \
             could read and change all of it. Give --tls-certificate and --tls-client-ca, listen on 127.0.0.1, or say \
             that it is meant: --insecure"
        );
    }
    let tls = TlsConfig {
        certificate: tls_certificate,
        key: tls_key,
        client_certificates: match tls_client_ca {
            Some(_) => ClientCertificates::Required,
            None => ClientCertificates::None,
        },
        client_ca: tls_client_ca,
        ..TlsConfig::default()
    };
    let defaults = Config::default();
    let default: &CellSection = match CellKind::named(&cell) {
        Some(CellKind::Metadata) => &defaults.metadata_cell,
        Some(CellKind::Data) | None => &defaults.data_cell,
    };
    let options = BackendOptions {
        cell,
        capacity_bytes: capacity_bytes.unwrap_or(default.capacity_bytes),
        value_bytes: value_bytes.unwrap_or(default.value_bytes),
        ttl: Duration::from_millis(ttl_ms.unwrap_or(default.ttl_ms)),
        eviction_percent: eviction_percent.unwrap_or(default.eviction_percent),
        eviction: eviction.setting().policy(),
        tcp,
        tls: Acceptor::plain(),
        logins: None,
        quotas: LateQuotas::default(),
        ofi,
        unix,
        connections_max: defaults.listen.connections_max,
        engines: thread_count(engines),
        dialer: Dialer::plain(),
    };
    if run_backend(options, &tls, rights.with_own(), log)? {
        std::process::exit(START_AGAIN);
    }
    Ok(())
}

/// Runs it until it is stopped, or asked to end: whether it was asked to.
fn run_backend(
    options: BackendOptions,
    tls: &TlsConfig,
    rights: BackendRights,
    filter: String,
) -> anyhow::Result<bool> {
    tailwater_node::logging::init(&Logging { format: LogFormat::Text, filter })?;
    tailwater_node::panics::end_the_process();
    tailwater_node::priority::prefer(tailwater_node::priority::NICE);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::caught();
        let env = Env::real();
        // The other backends of the cell are asked as they ask this one.
        let dialer = Dialer::open(
            &env,
            &DialerConfig {
                ca: tls.client_ca.clone(),
                certificate: tls.certificate.clone(),
                key: tls.key.clone(),
                names: Vec::new(),
            },
        )?;
        let certificates = Certificates::open(&env, tls)?;
        let _watch = certificates.as_ref().map(Certificates::watch);
        let tls = certificates.map_or_else(Acceptor::plain, |of| Acceptor::secured("--tcp", &of));
        let options = BackendOptions { tls, dialer, ..options };
        let served = ServedBackend::start(&env, &options, Arc::new(rights)).await?;
        tracing::info!(
            cell = options.cell,
            tcp = served.tcp_address().map(|address| address.to_string()),
            ofi = served.ofi_address().map(|address| address.to_string()),
            unix = ?served.unix_path(),
            "the backend is ready"
        );
        let asked_to_end = served.backend().asked_to_end();
        tokio::select! {
            _ = stop.next() => Ok(false),
            () = asked_to_end => {
                tracing::info!(cell = options.cell, "asked to end: whoever runs this backend is to start it again");
                Ok(true)
            }
        }
    })
}
