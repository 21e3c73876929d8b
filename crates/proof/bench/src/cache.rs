//! `bench cache`: reads and writes of a data cell of three backends, by one client; and of memcached in the same run,
//! if that is installed.

mod lookups;
mod protocol;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde::Serialize;
use tailwater_cache::{Backends, Cell, CellConfig, Configuration, Lookup, Mode};
use tailwater_env::Env;
use tailwater_load::clock::cpu_of;
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{BackendProcess, Workspace, cpu_of_backends, start_data_cell};
use tokio::runtime::Runtime;

use crate::memcached::{Memcached, TextClient};
use crate::pingpong::core_to_core_ns;

/// The data cell's name, as a node has it.
const DATA_CELL: &str = "data";
/// The id of its configuration: all clients of a run are to know the same one.
const CONFIG_ID: u64 = 1 << 32 | 1;
/// Keys of the hot set.
const HOT_KEYS: usize = 64;
/// SETs in one call while the cell is filled.
const FILL_BATCH: usize = 64;

/// Flags of `bench cache`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Something else of a cell.
    #[command(subcommand)]
    of: Option<CacheBench>,
    /// Bytes of each value.
    #[arg(long, default_value_t = 4_096, value_name = "BYTES")]
    value_bytes: usize,
    /// How many values there are. They should be more than the processor's caches hold.
    #[arg(long, default_value_t = 65_536)]
    values: usize,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Measure only this way of reading.
    #[arg(long, value_enum)]
    transport: Option<CacheTransport>,
    /// Read over libfabric as well, by this provider of it, such as `tcp;ofi_rxm`.
    #[arg(long, value_name = "PROVIDER")]
    ofi: Option<String>,
    /// Leave memcached out, although it is installed.
    #[arg(long)]
    no_memcached: bool,
    /// Where to put sockets and logs.
    #[arg(long, value_name = "DIR")]
    dir: Option<std::path::PathBuf>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// A way of reading.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CacheTransport {
    /// Shared memory.
    Shm,
    /// TCP over the loopback.
    Tcp,
    /// libfabric, by the provider of `--ofi`.
    Ofi,
}

/// What is measured of a cell beside reads and writes.
#[derive(clap::Subcommand)]
enum CacheBench {
    /// The ways to look up by quorum: with one replica of three slow, and by the size of values.
    Lookups(lookups::Args),
    /// memcached's protocol of a node, beside memcached itself.
    Protocol(protocol::Args),
}

/// What it reports.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    cells: &'static str,
    value_bytes: usize,
    values: usize,
    duration_s: f64,
    core_to_core_ns: Option<f64>,
    figures: Vec<Figure>,
    /// Nothing if it is not installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    memcached: Option<Peer>,
}

/// memcached, loaded by the same client in the same way. It keeps one copy of a value.
#[derive(Serialize)]
struct Peer {
    version: String,
    figures: Vec<PeerFigure>,
    /// Ours to its, for the same keys and batches.
    ratios: Vec<Ratio>,
}

#[derive(Serialize)]
struct PeerFigure {
    /// `get` or `set`, over TCP.
    operation: &'static str,
    keys: &'static str,
    batch: usize,
    #[serde(flatten)]
    calls: CacheCalls,
}

/// CacheCalls of one kind, one after the other.
#[derive(Serialize)]
struct CacheCalls {
    /// Keys per second.
    per_s: f64,
    call_us: PercentilesUs,
    misses: u64,
    /// CPU of the server for one key, in microseconds.
    server_us: f64,
    /// CPU of this process for one key, in microseconds.
    client_us: f64,
}

#[derive(Serialize)]
struct Ratio {
    transport: CacheTransport,
    operation: &'static str,
    keys: &'static str,
    batch: usize,
    /// Of keys per second: above 1, ours is faster.
    per_s: f64,
    /// Of the median call's time: below 1, ours is faster.
    p50: f64,
    /// Of the CPU for a key, servers and client together: below 1, ours takes less.
    cpu: f64,
}

#[derive(Serialize)]
struct Figure {
    transport: CacheTransport,
    /// `get relaxed`, `get consistent` or `set`.
    operation: &'static str,
    /// `cold`: any value; `hot`: one of 64.
    keys: &'static str,
    /// Keys in one call.
    batch: usize,
    /// Keys per second, one call after the other.
    per_s: f64,
    /// Of one call, in microseconds.
    call_us: PercentilesUs,
    misses: u64,
    failures: u64,
    /// CPU of the three backends for one key, in microseconds.
    backends_us: f64,
    /// CPU of this process for one key, in microseconds.
    client_us: f64,
}

#[derive(Default, Serialize)]
struct PercentilesUs {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl From<PercentilesMs> for PercentilesUs {
    fn from(ms: PercentilesMs) -> Self {
        let us = |ms: f64| round(ms * 1e3, 2);
        Self { p50: us(ms.p50), p99: us(ms.p99), p999: us(ms.p999), max: us(ms.max) }
    }
}

#[derive(Clone, Copy)]
enum CacheOperation {
    Relaxed,
    Consistent,
    Set,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.of {
        Some(CacheBench::Lookups(of)) => return lookups::run(&of),
        Some(CacheBench::Protocol(of)) => return protocol::run(&of),
        None => {}
    }
    ensure!(args.values >= HOT_KEYS, "at least {HOT_KEYS} values");
    ensure!(
        args.ofi.is_some() || args.transport != Some(CacheTransport::Ofi),
        "--transport ofi needs --ofi PROVIDER, such as tcp;ofi_rxm"
    );
    interrupt::listen()?;
    let workspace = Workspace::create(args.dir.as_deref(), false)?;
    let core_to_core_ns = core_to_core_ns().map(|ns| round(ns, 1));
    // Room for all values below the share at which the cell begins to evict.
    let capacity = (args.values * args.value_bytes * 2).max(64 << 20) as u64;
    let backends = start_data_cell(workspace.path(), capacity, args.ofi.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(measure(&args, &backends))?;
    // A relaxed read may come to a replica before the SET that a quorum of the others has acknowledged.
    let by_quorum = figures.iter().filter(|figure| figure.operation == CacheOperation::Consistent.name());
    let missed: u64 = by_quorum.map(|figure| figure.misses).sum();
    ensure!(
        missed == 0,
        "{missed} lookups missed a value that is in the cell: they cost less than those that hit"
    );
    let memcached = match args.no_memcached {
        true => None,
        false => measure_memcached(&args, &runtime, capacity, &figures)?,
    };
    let report = Report {
        bench: "cache",
        cells: "R3.2",
        value_bytes: args.value_bytes,
        values: args.values,
        duration_s: args.duration_s,
        core_to_core_ns,
        figures,
        memcached,
    };
    report::print(args.output, &report)
}

async fn measure(args: &Args, backends: &[BackendProcess]) -> anyhow::Result<Vec<Figure>> {
    let keys: Vec<Bytes> = (0..args.values).map(|i| Bytes::from(format!("bench-{i:010}"))).collect();
    let value = Bytes::from(vec![7; args.value_bytes]);
    let mut line = ProgressLine::default();
    let mut figures = Vec::new();
    let mut filled = false;
    let ofi = args.ofi.as_ref().map(|_| CacheTransport::Ofi);
    for transport in [CacheTransport::Shm, CacheTransport::Tcp].into_iter().chain(ofi) {
        if args.transport.is_some_and(|only| only != transport) {
            continue;
        }
        let cell = connect(backends, transport).await?;
        if !filled {
            line.show("filling the cell");
            fill(&cell, &keys, &value).await?;
            filled = true;
        }
        for (operation, batches) in [
            (CacheOperation::Relaxed, &[1, 8, 32][..]),
            (CacheOperation::Consistent, &[1, 8, 32]),
            (CacheOperation::Set, &[1, 32]),
        ] {
            for &batch in batches {
                for (name, keys) in [("cold", &keys[..]), ("hot", &keys[..HOT_KEYS])] {
                    if matches!(operation, CacheOperation::Set) && name == "hot" {
                        continue;
                    }
                    let mut figure = Figure {
                        transport,
                        operation: operation.name(),
                        keys: name,
                        batch,
                        per_s: 0.0,
                        call_us: PercentilesMs::default().into(),
                        misses: 0,
                        failures: 0,
                        backends_us: 0.0,
                        client_us: 0.0,
                    };
                    line.show(&format!("{} over {transport:?}, {name}, {batch} at a time", figure.operation));
                    one(args, &cell, backends, operation, keys, &value, &mut figure).await?;
                    figures.push(figure);
                }
            }
        }
    }
    Ok(figures)
}

/// The same loads on memcached; `None` if it is not installed.
fn measure_memcached(
    args: &Args,
    runtime: &Runtime,
    capacity: u64,
    ours: &[Figure],
) -> anyhow::Result<Option<Peer>> {
    // One thread is all that one connection uses.
    let Some(server) = Memcached::start(capacity, 1)? else {
        eprintln!("memcached is not installed, so that nothing is compared: bench/peers/install memcached");
        return Ok(None);
    };
    let mut client = TextClient::connect(server.address())?;
    let keys: Vec<Bytes> = (0..args.values).map(|i| Bytes::from(format!("bench-{i:010}"))).collect();
    let value = vec![7; args.value_bytes];
    let mut line = ProgressLine::default();
    line.show("filling memcached");
    for some in keys.chunks(FILL_BATCH) {
        interrupt::check()?;
        client.set(some, &value)?;
    }
    let mut figures = Vec::new();
    for (operation, batches) in [("get", &[1, 8, 32][..]), ("set", &[1, 32])] {
        for &batch in batches {
            for (name, keys) in [("cold", &keys[..]), ("hot", &keys[..HOT_KEYS])] {
                if operation == "set" && name == "hot" {
                    continue;
                }
                line.show(&format!("memcached {operation}, {name}, {batch} at a time"));
                let pid = server.pid();
                let server_cpu = || cpu_of(pid).unwrap_or_default();
                let calls = calls(args, keys, batch, server_cpu, async |some| match operation {
                    "get" => Ok(client.get(some, args.value_bytes)?.misses as u64),
                    _ => client.set(some, &value).map(|()| 0),
                });
                let (keys, calls) = (name, runtime.block_on(calls)?);
                figures.push(PeerFigure { operation, keys, batch, calls });
            }
        }
    }
    let ratios = ours.iter().filter_map(|ours| {
        let same = |its: &&PeerFigure| {
            ours.operation.starts_with(its.operation) && (ours.keys, ours.batch) == (its.keys, its.batch)
        };
        let its = figures.iter().find(same)?;
        Some(Ratio {
            transport: ours.transport,
            operation: ours.operation,
            keys: ours.keys,
            batch: ours.batch,
            per_s: round(ours.per_s / its.calls.per_s, 2),
            p50: round(ours.call_us.p50 / its.calls.call_us.p50, 2),
            cpu: round((ours.backends_us + ours.client_us) / (its.calls.server_us + its.calls.client_us), 2),
        })
    });
    let ratios = ratios.collect();
    Ok(Some(Peer { version: client.version()?, figures, ratios }))
}

/// Makes calls for as long as a figure takes, each for so many of `keys`; a call tells how many were missed.
async fn calls<K: Clone>(
    args: &Args,
    keys: &[K],
    batch: usize,
    server_cpu: impl Fn() -> Duration,
    mut call: impl AsyncFnMut(&[K]) -> anyhow::Result<u64>,
) -> anyhow::Result<CacheCalls> {
    interrupt::check()?;
    let cpu = || [server_cpu(), cpu_of(std::process::id()).unwrap_or_default()];
    let [server, client] = cpu();
    let (mut times, mut misses) = (Durations::default(), 0);
    let mut random = 1u64;
    let mut some = Vec::with_capacity(batch);
    let begin = Instant::now();
    let duration = Duration::from_secs_f64(args.duration_s);
    let mut before = begin;
    while before - begin < duration {
        some.clear();
        some.extend((0..batch).map(|_| keys[next_index(&mut random, keys.len())].clone()));
        misses += call(&some).await?;
        let now = Instant::now();
        times.record((now - before).as_nanos() as u64);
        before = now;
    }
    let count = (times.count() * batch as u64) as f64;
    let us = |from: Duration, to: Duration| round((to - from).as_secs_f64() * 1e6 / count, 3);
    let per_s = (count / begin.elapsed().as_secs_f64()).round();
    let [server_end, client_end] = cpu();
    let (server_us, client_us) = (us(server, server_end), us(client, client_end));
    Ok(CacheCalls { per_s, call_us: times.percentiles_ms().into(), misses, server_us, client_us })
}

/// The next of a fixed sequence of numbers below `bound`.
fn next_index(random: &mut u64, bound: usize) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*random >> 33) as usize) % bound
}

async fn connect(backends: &[BackendProcess], transport: CacheTransport) -> anyhow::Result<Cell> {
    let env = Env::real();
    let scheme = match transport {
        CacheTransport::Shm => "unix:",
        CacheTransport::Tcp => "tcp:",
        CacheTransport::Ofi => "ofi:",
    };
    let mut addresses = Vec::new();
    for backend in backends {
        let address = backend.addresses.iter().find(|address| address.starts_with(scheme));
        addresses.push(vec![address.context("a backend without that transport")?.clone()]);
    }
    let configuration = Configuration::first(CONFIG_ID, DATA_CELL, Mode::R32, addresses)?;
    let config = CellConfig::of(configuration, Backends::by_address(&env), env.random_u64() as u32);
    Ok(Cell::connect(&env, config).await?)
}

async fn fill(cell: &Cell, keys: &[Bytes], value: &Bytes) -> anyhow::Result<()> {
    for some in keys.chunks(FILL_BATCH) {
        interrupt::check()?;
        let items = some.iter().map(|key| (key.clone(), value.clone())).collect();
        for result in cell.set(items).await {
            result.context("the cell can't be filled")?;
        }
    }
    Ok(())
}

async fn one(
    args: &Args,
    cell: &Cell,
    backends: &[BackendProcess],
    operation: CacheOperation,
    keys: &[Bytes],
    value: &Bytes,
    figure: &mut Figure,
) -> anyhow::Result<()> {
    let batch = figure.batch;
    let made = calls(
        args,
        keys,
        batch,
        || cpu_of_backends(backends),
        async |some| {
            match operation {
                CacheOperation::Relaxed => figure.count(&cell.get_relaxed(some).await),
                CacheOperation::Consistent => figure.count(&cell.get_consistent(some).await),
                CacheOperation::Set => {
                    let items = some.iter().map(|key| (key.clone(), value.clone())).collect();
                    let failed = cell.set(items).await.iter().filter(|result| result.is_err()).count();
                    figure.failures += failed as u64;
                }
            }
            Ok(0)
        },
    )
    .await?;
    (figure.per_s, figure.call_us) = (made.per_s, made.call_us);
    (figure.backends_us, figure.client_us) = (made.server_us, made.client_us);
    Ok(())
}

impl CacheOperation {
    fn name(self) -> &'static str {
        match self {
            CacheOperation::Relaxed => "get relaxed",
            CacheOperation::Consistent => "get consistent",
            CacheOperation::Set => "set",
        }
    }
}

impl Figure {
    fn count(&mut self, lookups: &[Lookup]) {
        for lookup in lookups {
            match lookup {
                Lookup::Hit { .. } => {}
                Lookup::Miss => self.misses += 1,
                Lookup::Failed(_) => self.failures += 1,
            }
        }
    }
}
