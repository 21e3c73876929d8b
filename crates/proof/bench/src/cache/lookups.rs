//! `bench cache lookups`: the ways to look up by quorum (CliqueMap, sections 7.2.1 and 7.2.2).
//!
//! First with one replica of three slow by a fixed delay, and none slow, in pairs that take turns; a cell with one
//! copy, whose backend is the slow one, beside it. Then by the size of values: all replicas send them, or one does.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde::Serialize;
use tailwater_cache::{Backends, Cell, CellConfig, Configuration, Lookup, LookupWay, Mode};
use tailwater_env::Env;
use tailwater_load::clusters::relay::{Gateway, Gateways};
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, round};
use tailwater_load::system::{BackendProcess, Workspace, start_data_cell};

use super::{CONFIG_ID, DATA_CELL, PercentilesUs};

/// Room for some copies of the largest values.
const CAPACITY_BYTES: u64 = 64 << 20;

/// Bytes of the values of the second part.
const SIZES: [usize; 7] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Which backend is slow.
const SLOW: usize = 0;

/// Flags of `bench cache lookups`.
#[derive(clap::Args)]
pub struct Args {
    /// How much later the slow replica answers, in milliseconds.
    #[arg(long, default_value_t = 2, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=100))]
    delay_ms: u64,
    /// Bytes of the values in the first part.
    #[arg(long, default_value_t = 4_096, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    value_bytes: u32,
    /// Pairs of measurements, of which medians are taken.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=99))]
    pairs: u8,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    duration_s: f64,
    /// Where to put sockets and logs.
    #[arg(long, value_name = "DIR")]
    dir: Option<std::path::PathBuf>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    transport: &'static str,
    delay_ms: u64,
    value_bytes: u32,
    pairs: u8,
    duration_s: f64,
    slow_replica: Vec<SlowReplica>,
    sizes: Vec<SizeOfValues>,
}

/// One way, with one replica slow and with none.
#[derive(Serialize)]
struct SlowReplica {
    cells: &'static str,
    lookup: &'static str,
    /// Of the pair in the middle by its ratio of p50.
    none_slow_us: PercentilesUs,
    one_slow_us: PercentilesUs,
    /// One slow to none slow, medians of the pairs: 1 is not slower.
    p50: f64,
    p99: f64,
}

/// Values of one size.
#[derive(Serialize)]
struct SizeOfValues {
    value_bytes: usize,
    /// All replicas send the value.
    scar_us: PercentilesUs,
    /// All say where it is, and one is asked for it.
    twice_read_us: PercentilesUs,
    auto_us: PercentilesUs,
    /// Medians: below 1, having all send it is quicker.
    scar_to_twice_read: f64,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let workspace = Workspace::create(args.dir.as_deref(), false)?;
    let place = |name: &str| -> anyhow::Result<std::path::PathBuf> {
        let path = workspace.path().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    };
    let three = start_data_cell(&place("three")?, CAPACITY_BYTES, None)?;
    let single = start_data_cell(&place("single")?, CAPACITY_BYTES, None)?;
    // A thread of their own, so that what is measured does not wait for them. Half of the delay is on the way back.
    let ways = Gateways::new()?;
    let slow = |backends: &[BackendProcess]| -> anyhow::Result<Gateway> {
        let to = tcp_of(&backends[SLOW])?.trim_start_matches("tcp:").parse()?;
        ways.open(to, Duration::from_millis(args.delay_ms) / 2)
    };
    let slow = [slow(&single)?, slow(&three)?];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (slow_replica, sizes) = runtime.block_on(async {
        let slow_replica = slow_replica(args, [&single[..1], &three], &slow).await?;
        anyhow::Ok((slow_replica, sizes(args, &three).await?))
    })?;
    let report = Report {
        bench: "cache lookups",
        transport: "tcp",
        delay_ms: args.delay_ms,
        value_bytes: args.value_bytes,
        pairs: args.pairs,
        duration_s: args.duration_s,
        slow_replica,
        sizes,
    };
    report::print(args.output, &report)
}

/// A client of some backends over TCP, to one of which a slow way leads.
async fn connect(mode: Mode, backends: &[BackendProcess], slow: Option<&Gateway>) -> anyhow::Result<Cell> {
    let env = Env::real();
    let mut addresses = Vec::new();
    for (number, backend) in backends.iter().enumerate() {
        let address = match slow {
            Some(slow) if number == SLOW => format!("tcp:{}", slow.address),
            _ => tcp_of(backend)?.to_owned(),
        };
        addresses.push(vec![address]);
    }
    // The same configuration whichever way leads there: only the client goes by its addresses.
    let configuration = Configuration::first(CONFIG_ID, DATA_CELL, mode, addresses)?;
    let mut config = CellConfig::of(configuration, Backends::by_address(&env), env.random_u64() as u32);
    // What is measured is not to be hedged.
    config.hedge_after = Duration::from_millis(400);
    Ok(Cell::connect(&env, config).await?)
}

fn tcp_of(backend: &BackendProcess) -> anyhow::Result<&str> {
    let tcp = backend.addresses.iter().find(|address| address.starts_with("tcp:"));
    tcp.map(String::as_str).context("a backend without TCP")
}

async fn set(cell: &Cell, bytes: usize) -> anyhow::Result<[Bytes; 1]> {
    let key = Bytes::from(format!("lookups-{bytes}"));
    let result = cell.set(vec![(key.clone(), vec![7; bytes].into())]).await.pop().context("an answer")?;
    result.context("the value can't be set")?;
    Ok([key])
}

/// Looks the key up again and again.
async fn measure(args: &Args, cell: &Cell, key: &[Bytes; 1]) -> anyhow::Result<Durations> {
    let mut times = Durations::default();
    let begin = Instant::now();
    let duration = Duration::from_secs_f64(args.duration_s);
    let mut before = begin;
    while before - begin < duration {
        interrupt::check()?;
        let lookups = cell.get_consistent(key).await;
        ensure!(matches!(lookups[..], [Lookup::Hit { .. }]), "a lookup ended with {lookups:?}");
        let now = Instant::now();
        times.record((now - before).as_nanos() as u64);
        before = now;
    }
    Ok(times)
}

async fn slow_replica(
    args: &Args,
    [single, three]: [&[BackendProcess]; 2],
    slow: &[Gateway; 2],
) -> anyhow::Result<Vec<SlowReplica>> {
    let mut line = ProgressLine::default();
    let mut measured = Vec::new();
    for (mode, backends, way) in [(Mode::R1, single, &slow[0]), (Mode::R32, three, &slow[1])] {
        let none_slow = connect(mode, backends, None).await?;
        let one_slow = connect(mode, backends, Some(way)).await?;
        let key = set(&none_slow, args.value_bytes as usize).await?;
        let ways: &[LookupWay] = match mode {
            Mode::R32 => {
                &[LookupWay::Two, LookupWay::All, LookupWay::TwiceRead, LookupWay::Scar, LookupWay::Auto]
            }
            Mode::R1 | Mode::R2Immutable => &[LookupWay::Auto],
        };
        for lookup in ways {
            line.show(&format!("{}, {}", mode.name(), lookup.name()));
            let cells = [&none_slow, &one_slow].map(|cell| cell.with_lookup(*lookup));
            // Who is slow is known from the begin of what is measured.
            for cell in &cells {
                measure(args, cell, &key).await?;
            }
            let mut pairs = Vec::new();
            for _ in 0..args.pairs {
                pairs.push([measure(args, &cells[0], &key).await?, measure(args, &cells[1], &key).await?]);
            }
            measured.push(of_pairs(mode, *lookup, pairs));
        }
    }
    Ok(measured)
}

fn of_pairs(mode: Mode, lookup: LookupWay, mut pairs: Vec<[Durations; 2]>) -> SlowReplica {
    let ratio = |pair: &[Durations; 2], quantile: f64| {
        pair[1].quantile_ns(quantile) as f64 / pair[0].quantile_ns(quantile).max(1) as f64
    };
    let mut tails: Vec<f64> = pairs.iter().map(|pair| ratio(pair, 0.99)).collect();
    tails.sort_by(f64::total_cmp);
    pairs.sort_by(|one, other| ratio(one, 0.5).total_cmp(&ratio(other, 0.5)));
    let middle = &pairs[pairs.len() / 2];
    SlowReplica {
        cells: mode.name(),
        lookup: lookup.name(),
        none_slow_us: middle[0].percentiles_ms().into(),
        one_slow_us: middle[1].percentiles_ms().into(),
        p50: round(ratio(middle, 0.5), 2),
        p99: round(tails[tails.len() / 2], 2),
    }
}

async fn sizes(args: &Args, backends: &[BackendProcess]) -> anyhow::Result<Vec<SizeOfValues>> {
    let mut line = ProgressLine::default();
    let mut measured = Vec::new();
    for value_bytes in SIZES {
        line.show(&format!("values of {value_bytes} bytes"));
        // What it learned of other sizes is not to count.
        let cell = connect(Mode::R32, backends, None).await?;
        let key = set(&cell, value_bytes).await?;
        let ways = [LookupWay::Scar, LookupWay::TwiceRead, LookupWay::Auto];
        let mut times = ways.map(|_| Durations::default());
        for _ in 0..args.pairs {
            for (way, times) in ways.iter().zip(&mut times) {
                times.add(&measure(args, &cell.with_lookup(*way), &key).await?);
            }
        }
        let [scar, twice_read, auto] = &times;
        let p50 = |times: &Durations| times.quantile_ns(0.5) as f64;
        measured.push(SizeOfValues {
            value_bytes,
            scar_us: scar.percentiles_ms().into(),
            twice_read_us: twice_read.percentiles_ms().into(),
            auto_us: auto.percentiles_ms().into(),
            scar_to_twice_read: round(p50(scar) / p50(twice_read).max(1.0), 2),
        });
    }
    Ok(measured)
}
