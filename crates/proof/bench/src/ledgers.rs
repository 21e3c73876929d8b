//! `bench ledgers`: the native client of BookKeeper beside Apache's for Java, in turn, on the same bookies: entries
//! that are acknowledged in a second, and for each second of the client's own processor time.
//!
//! Both keep the same number of entries in flight in one ledger of three copies, two of which acknowledge, with CRC32C.
//! Each writes so many entries once before it is measured, and then as many again. Java's runs with its optimizing
//! compiler. ZooKeeper and bookies run on the same machine, and sync before they answer.
//!
//! What the native client wrote it reads again, one entry with each request and then many.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tailwater_bookkeeper::digest::DigestKind;
use tailwater_bookkeeper::{
    BookKeeper, EntryId, LedgerId, LedgerOptions, LedgerReader, LedgerTimes, LedgerWriter, Quorums,
};
use tailwater_env::Env;
use tailwater_load::clock::{cpu_of, monotonic_ns};
use tailwater_load::interrupt;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, round};
use tokio::sync::Semaphore;

use crate::ledger_servers::{LedgerServers, ServerSize};
use crate::program::{result_of, run_to_end};

/// How long servers may take to start, and a client to write what it has to.
const GIVE_UP: Duration = Duration::from_secs(600);
const PASSWORD: &str = "bench";
const LOOK: Duration = Duration::from_millis(20);

/// Flags of `bench ledgers`.
#[derive(clap::Args)]
pub struct Args {
    /// The script that runs ZooKeeper, bookies and Java's client.
    #[arg(long, default_value = ".ci/bookkeeper", value_name = "SCRIPT")]
    bookkeeper: PathBuf,
    /// Bookies.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=16))]
    bookies: u16,
    /// Entries that each client writes in a round, and once before.
    #[arg(long, default_value_t = 50_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..))]
    entries: u32,
    /// Bytes of each entry.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    entry_bytes: u32,
    /// Entries that wait for their acknowledgement.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    in_flight: u32,
    /// How often each client is run, in turn.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct LedgersReport {
    bench: &'static str,
    bookies: u16,
    entries: u32,
    entry_bytes: u32,
    in_flight: u32,
    runs: Vec<LedgersRun>,
    reads: Vec<LedgersRead>,
}

/// Reading of what the native client wrote, from the first entry to the last.
#[derive(Serialize)]
struct LedgersRead {
    /// Whether many entries come with one request, or each with one of its own.
    batched: bool,
    round: u32,
    /// Entries that were read in a second.
    entries_s: f64,
    /// For each second of the client's processor time.
    entries_cpu_s: f64,
}

#[derive(Serialize)]
struct LedgersRun {
    client: &'static str,
    round: u32,
    #[serde(flatten)]
    measured: Measured,
}

/// What was measured of a client; Java's program prints the same.
#[derive(Serialize, Deserialize)]
struct Measured {
    /// Entries that were acknowledged in a second.
    entries_s: f64,
    /// For each second of the client's processor time.
    entries_cpu_s: f64,
    /// Until the acknowledgement.
    p50_ms: f64,
    p99_ms: f64,
}

impl LedgerServers {
    fn java(&self, args: &Args) -> anyhow::Result<Measured> {
        let mut command = Process::new(self.script());
        command.env("BOOKKEEPER_SIZE", "server").args([
            "client",
            self.zookeeper(),
            "bench",
            PASSWORD,
            "3",
            "3",
            "2",
        ]);
        command.args([args.entries, args.entry_bytes, args.in_flight].map(|number| number.to_string()));
        let [said, log] = ["java.json", "java.log"].map(|name| self.dir().join(name));
        let ended = run_to_end(command, &said, &log, GIVE_UP)?;
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let (value, _) = result_of(&said, ended).map_err(|why| anyhow::anyhow!("{why}\n{}", read(&log)))?;
        Ok(serde_json::from_value(value)?)
    }

    async fn client(&self) -> anyhow::Result<BookKeeper> {
        let uri = self.uri().parse()?;
        Ok(BookKeeper::connect(Env::real(), uri, LedgerTimes::default()).await?)
    }

    fn native(&self, args: &Args) -> anyhow::Result<(Measured, LedgerId)> {
        runtime()?.block_on(async {
            let client = self.client().await?;
            // They are known a little after they listen.
            while client.ledgers().bookies().await?.len() < usize::from(args.bookies) {
                interrupt::check()?;
                tokio::time::sleep(LOOK).await;
            }
            let options = LedgerOptions {
                quorums: Quorums::new(3, 3, 2).context("in order")?,
                digest: DigestKind::Crc32c,
                password: PASSWORD.into(),
                custom: [].into(),
            };
            let writer = client.create(&options).await?;
            write(&writer, args).await?;
            let measured = write(&writer, args).await?;
            let ledger = writer.ledger();
            writer.close().await?;
            Ok((measured, ledger))
        })
    }

    /// Reads a ledger once, and then once more, which is measured.
    fn read(&self, ledger: LedgerId, batched: bool, round: u32) -> anyhow::Result<LedgersRead> {
        runtime()?.block_on(async {
            let client = self.client().await?.with_batches(batched);
            let reader = client.open(ledger, PASSWORD.as_bytes()).await?;
            read_all(&reader).await?;
            let (begun_ns, begun_cpu) = (monotonic_ns(), cpu_seconds());
            let entries = read_all(&reader).await? as f64;
            let (seconds, cpu) = ((monotonic_ns() - begun_ns) as f64 / 1e9, cpu_seconds() - begun_cpu);
            let (entries_s, entries_cpu_s) =
                (round_off(entries / seconds), round_off(entries / cpu.max(0.01)));
            Ok(LedgersRead { batched, round, entries_s, entries_cpu_s })
        })
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    cpu_of(std::process::id()).unwrap_or_default().as_secs_f64()
}

fn round_off(number: f64) -> f64 {
    round(number, 0)
}

/// How many entries there are, each of which was read.
async fn read_all(reader: &LedgerReader) -> anyhow::Result<i64> {
    let mut next = EntryId::FIRST;
    loop {
        interrupt::check()?;
        match reader.read_range(next).await?.last() {
            Some(last) => next = last.entry.next(),
            None => return Ok(next.get()),
        }
    }
}

/// Writes the entries of a round.
async fn write(writer: &LedgerWriter, args: &Args) -> anyhow::Result<Measured> {
    let payload = Bytes::from(vec![0; args.entry_bytes as usize]);
    let room = Arc::new(Semaphore::new(args.in_flight as usize));
    let seen = Arc::new(Mutex::new((Durations::default(), None)));
    let (begun_ns, begun_cpu) = (monotonic_ns(), cpu_seconds());
    for _ in 0..args.entries {
        let permit = Arc::clone(&room).acquire_owned().await?;
        let sent_ns = monotonic_ns();
        let pending = writer.send(payload.clone()).await?;
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let acknowledged = pending.acknowledged().await;
            let (durations, failed) = &mut *seen.lock();
            durations.record(monotonic_ns() - sent_ns);
            *failed = failed.take().or(acknowledged.err());
            drop(permit);
        });
    }
    let _all = room.acquire_many(args.in_flight).await?;
    let (seconds, cpu) = ((monotonic_ns() - begun_ns) as f64 / 1e9, cpu_seconds() - begun_cpu);
    let (durations, failed) = &mut *seen.lock();
    if let Some(fault) = failed.take() {
        return Err(fault.into());
    }
    let of = durations.percentiles_ms();
    let entries = f64::from(args.entries);
    Ok(Measured {
        entries_s: round_off(entries / seconds),
        entries_cpu_s: round_off(entries / cpu.max(0.01)),
        p50_ms: round(of.p50, 2),
        p99_ms: round(of.p99, 2),
    })
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let mut line = ProgressLine::default();
    line.show("ZooKeeper and bookies start");
    let servers =
        LedgerServers::start(&args.bookkeeper, ServerSize::Small, usize::from(args.bookies), 0, |_, _| {
            Ok(())
        })?;
    let (mut runs, mut reads) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        line.show(&format!("round {round}: tailwater"));
        let (measured, ledger) = servers.native(&args)?;
        runs.push(LedgersRun { client: "tailwater", round, measured });
        for batched in [false, true] {
            line.show(&format!("round {round}: tailwater reads"));
            reads.push(servers.read(ledger, batched, round)?);
        }
        line.show(&format!("round {round}: java"));
        runs.push(LedgersRun { client: "java", round, measured: servers.java(&args)? });
    }
    drop(line);
    let Args { bookies, entries, entry_bytes, in_flight, .. } = args;
    report::print(
        args.output,
        &LedgersReport { bench: "ledgers", bookies, entries, entry_bytes, in_flight, runs, reads },
    )
}
