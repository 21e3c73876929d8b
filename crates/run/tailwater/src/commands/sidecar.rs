//! `tailwater sidecar`: a process that somebody starts on a host with many consumers, to read a node's cells once for
//! all of them. It is a window like the node's own, and finds a node that is anywhere.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tailwater_client::Error;
use tailwater_env::{Env, Instant};
use tailwater_node::probes::{self, ProbeRead, ProbeTold};
use tailwater_node::signal::StopSignals;
use tailwater_node::{LogFormat, Logging, is_of_this_host};
use tailwater_window::{WindowConfig, WindowReport};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::consume::TransportArg;
use crate::admin::Server;
use crate::output::{self, Format, counted};
use crate::values;

/// How long a node is waited for that does not answer.
const NODE_PATIENCE: Duration = Duration::from_secs(86_400);
/// Pause before a node is connected to again.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Flags of `sidecar`.
#[derive(clap::Args)]
pub struct Args {
    /// Read this stream even while nobody on this host follows it. It may be given several times. The sidecar reads any
    /// other stream while somebody follows it.
    #[arg(long, value_name = "NAME")]
    stream: Vec<String>,
    /// Where consumers on this host connect. By default they find it by themselves: at
    /// /tmp/tailwater-UID-NODE.sidecar, with the number of the user and the id of the node.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// How many processes have to follow a shard before the sidecar reads it for them. Fewer read by themselves.
    #[arg(long, value_name = "PROCESSES", default_value_t = 1, value_parser = values::number::<usize>(1..=8_192))]
    from: usize,
    /// Answer /healthz, /readyz and /metrics there.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    http: Option<SocketAddr>,
    /// Let other hosts ask at --http.
    #[arg(long, requires = "http")]
    insecure: bool,
    /// Print what the sidecar does, every SECONDS seconds.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = values::number::<u32>(1..=86_400))]
    stats: Option<u32>,
    /// Form of the output of --stats.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Which way to the cells.
    #[arg(long, value_enum, default_value_t = TransportArg::Auto)]
    transport: TransportArg,
    /// Which log lines are written, as in `info,tailwater_window=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// How it is.
enum SidecarState {
    /// It has not found its node yet; why not.
    Away(String),
    Serving(WindowReport),
}

/// The same for all who ask.
#[derive(Clone)]
struct SharedState {
    env: Env,
    state: Arc<Mutex<SidecarState>>,
}

/// What is printed.
#[derive(Serialize)]
struct SidecarLine {
    readers: u64,
    readers_fed: u64,
    shards: u64,
    behind_records: u64,
    cell_bytes: u64,
    durable_bytes: u64,
    published_bytes: u64,
    lent_bytes: u64,
    /// Since records were published last, in ms.
    published_age_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// Reads for others until it is stopped.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    if let Some(http) = args.http.filter(|http| !args.insecure && !is_of_this_host(*http)) {
        anyhow::bail!(
            "--http {http} would answer other hosts, unencrypted: listen on 127.0.0.1, or say that it is meant: --insecure"
        );
    }
    tailwater_node::logging::init(&Logging { filter: args.log.clone(), format: LogFormat::Text })?;
    tailwater_node::panics::end_the_process();
    tailwater_node::priority::prefer(tailwater_node::priority::NICE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut stop = StopSignals::caught();
        tokio::select! {
            biased;
            () = stop.next() => Ok(()),
            done = serve(server, args) => done,
        }
    });
    // A thread may wait for the node.
    runtime.shutdown_background();
    done
}

async fn serve(server: &Server, args: Args) -> anyhow::Result<()> {
    let env = Env::real();
    let state = Arc::new(Mutex::new(SidecarState::Away("it looks for its node".to_owned())));
    let shared = SharedState { env: env.clone(), state };
    // Its drop ends the probes.
    let _probes = match args.http {
        Some(http) => Some(answer_probes(&env, http, &shared).await?),
        None => None,
    };
    let (dialer, login) = (server.dialer(&env)?, server.login()?);
    let every = args.stats.map(|seconds| Duration::from_secs(seconds.into()));
    loop {
        // Each time: one that was started again may tell another address.
        let node = node_of(server.clone()).await?;
        let config = WindowConfig {
            name: "sidecar",
            node,
            listen: args.unix.clone(),
            fed_from: args.from,
            streams: args.stream.clone(),
            transport: args.transport.way(),
            dialer: dialer.clone(),
            login: login.clone(),
        };
        let (mut due_at, mut missing) = (env.now(), Some(String::new()));
        let tell = |report: WindowReport| {
            if missing != report.missing {
                match &report.missing {
                    None => tracing::info!("the sidecar is ready"),
                    Some(why) => tracing::warn!(why, "the sidecar is not ready"),
                }
                missing.clone_from(&report.missing);
            }
            if let Some(every) = every.filter(|_| env.now() >= due_at) {
                // Nobody has to listen.
                let _ = SidecarLine::of(&report, env.now()).print(args.output);
                due_at = env.now() + every;
            }
            shared.set(SidecarState::Serving(report));
        };
        let Err(why) = tailwater_window::run(env.clone(), config, tell).await else { return Ok(()) };
        // It was never there, or is not any more.
        if !why.downcast_ref::<Error>().is_some_and(Error::is_retriable) {
            return Err(why);
        }
        tracing::warn!(%why, "the sidecar has no node yet");
        shared.set(SidecarState::Away(format!("{why:#}")));
        env.sleep(CONNECT_PAUSE).await;
    }
}

/// The address of the node, which is waited for.
async fn node_of(server: Server) -> anyhow::Result<String> {
    let (told, address) = oneshot::channel();
    let ask = move || {
        // Nobody waits for it when the sidecar is stopped.
        let _ = told.send(server.data_address(NODE_PATIENCE));
    };
    std::thread::Builder::new().name("sidecar-node".to_owned()).spawn(ask)?;
    address.await.context("nobody asks for the node any more")?
}

async fn answer_probes(
    env: &Env,
    http: SocketAddr,
    shared: &SharedState,
) -> anyhow::Result<oneshot::Sender<()>> {
    let listener =
        TcpListener::bind(http).await.with_context(|| format!("--http {http} can't be listened on"))?;
    let (stop, stopped) = oneshot::channel();
    let shared = shared.clone();
    let read: ProbeRead = Arc::new(move || shared.told());
    env.spawn("sidecar-probes", probes::serve(env.clone(), listener, read, stopped)).detach();
    Ok(stop)
}

impl SharedState {
    fn set(&self, state: SidecarState) {
        *self.state.lock().expect("nobody panics with it") = state;
    }

    /// What probes are told.
    fn told(&self) -> ProbeTold {
        match &*self.state.lock().expect("nobody panics with it") {
            SidecarState::Away(why) => ProbeTold { unready: Some(why.clone()), ..ProbeTold::default() },
            SidecarState::Serving(report) => SidecarLine::of(report, self.env.now()).told(report),
        }
    }
}

impl SidecarLine {
    fn of(report: &WindowReport, now: Instant) -> Self {
        Self {
            readers: report.stats.readers,
            readers_fed: report.stats.readers_fed,
            shards: report.stats.shards,
            behind_records: report.behind,
            cell_bytes: report.reads.cell_bytes,
            durable_bytes: report.reads.durable_bytes,
            published_bytes: report.stats.bytes,
            lent_bytes: report.bytes_lent,
            published_age_ms: report.published_at.map(|at| now.since(at).as_millis()),
            missing: report.missing.clone(),
        }
    }

    fn told(self, report: &WindowReport) -> ProbeTold {
        let count = |count: u64| count as f64;
        let mut gauges = vec![
            ("tailwater_sidecar_readers", "Processes that are connected.", count(self.readers)),
            ("tailwater_sidecar_readers_fed", "Those of them that it reads for.", count(self.readers_fed)),
            ("tailwater_sidecar_shards", "Shards that it reads for others.", count(self.shards)),
            (
                "tailwater_sidecar_behind_records",
                "Records that it knows of and has not published.",
                count(self.behind_records),
            ),
        ];
        let age = self.published_age_ms.map(|ms| ms as f64 / 1e3);
        let help = "How long ago it published records last.";
        gauges.extend(age.map(|age| ("tailwater_sidecar_published_age_seconds", help, age)));
        let counters = vec![
            ("tailwater_sidecar_cell_read_bytes", "Bytes that it read from the cells.", self.cell_bytes),
            ("tailwater_sidecar_durable_read_bytes", "Bytes that it read from the node.", self.durable_bytes),
            ("tailwater_sidecar_published_bytes", "Bytes that it published.", self.published_bytes),
            (
                "tailwater_sidecar_lent_bytes",
                "Bytes of records that it published, counted for each reader of their shard.",
                self.lent_bytes,
            ),
            ("tailwater_sidecar_publications", "Times that it woke its readers.", report.stats.publications),
        ];
        ProbeTold { unready: self.missing, counters, gauges, ..ProbeTold::default() }
    }

    fn print(&self, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Json => output::print_json(self),
            Format::Table => output::print(&self.to_string()),
        }
    }
}

impl fmt::Display for SidecarLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = output::bytes;
        write!(f, "{} connected, {} fed, ", counted(self.readers, "reader"), self.readers_fed)?;
        write!(f, "{}, {} behind; ", counted(self.shards, "shard"), counted(self.behind_records, "record"))?;
        write!(f, "{} from cells, {} durable, ", bytes(self.cell_bytes), bytes(self.durable_bytes))?;
        write!(f, "{} published, {} lent", bytes(self.published_bytes), bytes(self.lent_bytes))?;
        if let Some(age) = self.published_age_ms {
            write!(f, "; published {age} ms ago")?;
        }
        self.missing.as_ref().map_or(Ok(()), |why| write!(f, "; not ready: {why}"))
    }
}
