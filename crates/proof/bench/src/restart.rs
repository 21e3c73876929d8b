//! `bench restart`: how long readers go without, when a node is killed under load and started again; beside it
//! Apache Kafka. Both sync what they acknowledge.
//!
//! Before the kill the stream has as much as is to be read, and one producer appends at a rate. From the kill on
//! counts:
//!
//! - the first append that is handed over after it and acknowledged;
//! - the first of those that a consumer reads which was connected all the time;
//! - the first record that a consumer reads which begins to connect at the kill, from the beginning of the stream on;
//! - that one's having read so many MiB.
//!
//! The server is started again as soon as it is gone. Clients of Kafka's protocol connect again every few milliseconds,
//! which no client of Kafka's does: none of them is what Kafka waits for.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tailwater_client::{ClientConfig, WindowUse};
use tailwater_load::address::LoadAddress;
use tailwater_load::appender::{Appender, Gathering};
use tailwater_load::clock::monotonic_ns;
use tailwater_load::follower::LoadFollower;
use tailwater_load::measuring::until;
use tailwater_load::messages::MessageProtocol;
use tailwater_load::payload::{self, HEADER_BYTES, Payload};
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::round;
use tailwater_load::system::{CellProcesses, PeerDurability, System, SystemArgs};
use tailwater_load::{free_address, interrupt};

/// Flags of `bench restart`.
#[derive(clap::Args)]
pub struct Args {
    /// MiB of records that the new consumer reads, and that are there before the kill.
    #[arg(long, default_value_t = 1_024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    read_mib: u64,
    /// Mbit/s of records that are appended when the server is killed, and after it.
    #[arg(long, default_value_t = 40, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..))]
    rate_mbit: u64,
    /// Bytes of each record.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    record_bytes: usize,
    /// Seconds of this load before the kill.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    load_s: f64,
    /// How often each system is killed, in turn.
    #[arg(long, default_value_t = 3, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Kafka's script, beside which Tailwater is run in turn: `bench/peers/kafka`.
    #[arg(long, value_name = "SCRIPT")]
    kafka: Option<PathBuf>,
    /// Leaves the limits of readers that catch up as they are by default: 64 MiB/s of a process, and 256 MiB/s of all
    /// that a node serves. Without it there are none, as Kafka has none.
    #[arg(long)]
    bounded: bool,
    #[command(flatten)]
    system: SystemArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct RestartReport {
    bench: &'static str,
    read_mib: u64,
    rate_mbit: u64,
    record_bytes: usize,
    load_s: f64,
    bounded: bool,
    cells: CellProcesses,
    runs: Vec<RestartRun>,
}

/// One kill. Times are seconds from it on.
#[derive(Serialize)]
struct RestartRun {
    system: &'static str,
    round: u32,
    /// MiB of records that were acknowledged before the kill.
    stored_mib: f64,
    /// The first new append was acknowledged.
    append_s: f64,
    /// The consumer that was connected had the first new record.
    connected_s: f64,
    /// The new consumer had its first record.
    new_s: f64,
    /// The new consumer had read all that it should.
    read_s: f64,
}

/// Records that wait for their acknowledgement at most.
const IN_FLIGHT: usize = 4_096;
/// The pause before somebody connects again.
const AGAIN: Duration = Duration::from_millis(5);
/// How long a run may take before it counts as failed.
const GIVE_UP: Duration = Duration::from_secs(600);

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.load_s > 0.0, "--load-s: above 0");
    anyhow::ensure!(args.record_bytes >= HEADER_BYTES, "--record-bytes: at least {HEADER_BYTES}");
    interrupt::listen()?;
    let mut line = ProgressLine::default();
    let mut runs = Vec::new();
    for round in 1..=args.rounds {
        line.show(&format!("round {round}: tailwater"));
        runs.push(kill_own(&args, round)?);
        if let Some(script) = &args.kafka {
            line.show(&format!("round {round}: kafka"));
            runs.push(kill_kafka(&args, script, round)?);
        }
    }
    drop(line);
    let Args { read_mib, rate_mbit, record_bytes, load_s, bounded, .. } = args;
    let cells = args.system.cells();
    let bench = "restart";
    let report = RestartReport { bench, read_mib, rate_mbit, record_bytes, load_s, bounded, cells, runs };
    report::print(args.output, &report)
}

fn kill_own(args: &Args, round: u32) -> anyhow::Result<RestartRun> {
    let unbounded = "[log]\ncatch_up_bytes_per_s = 0\n";
    let with = args.system.clone().with_config(if args.bounded { "" } else { unbounded });
    let mut system = System::start_for(&with, false, PeerDurability::Fsync)?;
    system.create_stream(1, "immediate")?;
    let target = RestartTarget {
        protocol: MessageProtocol::Tailwater,
        address: system.address(true)?,
        stream: system.stream().to_owned(),
    };
    let run = measure(args, "tailwater", round, target, || {
        system.kill_node()?;
        system.start_node()
    })?;
    system.stop()?;
    Ok(run)
}

fn kill_kafka(args: &Args, script: &Path, round: u32) -> anyhow::Result<RestartRun> {
    // Its controller listens one above.
    let (port, _controller) = (free_address()?.port(), free_address()?);
    let address = LoadAddress::from(format!("127.0.0.1:{port}"));
    let system = System::connect(&args.system, address.clone(), None)?;
    let mut broker = RestartedBroker::start(script, system.dir().join("kafka"), port)?;
    system.create_stream(1, "immediate")?;
    let target =
        RestartTarget { protocol: MessageProtocol::Kafka, address, stream: system.stream().to_owned() };
    let run = measure(args, "kafka", round, target, || broker.kill_and_start());
    // Its topic while it lives.
    drop(system);
    run
}

/// Apache Kafka, which its script started, and which was killed and started again by this process.
struct RestartedBroker {
    script: PathBuf,
    dir: PathBuf,
    port: u16,
    again: Option<std::process::Child>,
}

impl RestartedBroker {
    fn start(script: &Path, dir: PathBuf, port: u16) -> anyhow::Result<Self> {
        let broker = Self { script: script.to_owned(), dir, port, again: None };
        let status = broker.command("start").stdout(Stdio::null()).status();
        let status = status.with_context(|| format!("{} can't be started", script.display()))?;
        anyhow::ensure!(status.success(), "{} start: {status}", script.display());
        Ok(broker)
    }

    fn command(&self, what: &str) -> Process {
        let mut command = Process::new(&self.script);
        command.arg(what).arg(&self.dir).env("KAFKA_FSYNC", "1").env("KAFKA_PORT", self.port.to_string());
        command
    }

    fn kill_and_start(&mut self) -> anyhow::Result<()> {
        let pid = std::fs::read_to_string(self.dir.join("pid")).context("a broker without a pid file")?;
        let pid: i32 = pid.trim().parse()?;
        kill_process(Pid::from_raw(pid).context("a process without an id")?, Signal::KILL)?;
        // It has its files until it is gone.
        while is_alive(pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.again = Some(self.command("run").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        Ok(())
    }
}

impl Drop for RestartedBroker {
    fn drop(&mut self) {
        match &mut self.again {
            // Both fail only if it is gone.
            Some(again) => drop((again.kill(), again.wait())),
            None => drop(self.command("stop").stdout(Stdio::null()).status()),
        }
    }
}

/// Whether a process runs; one that has ended and that nobody has waited for does not.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which is in parentheses: the state.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Where a run appends and reads.
#[derive(Clone)]
struct RestartTarget {
    protocol: MessageProtocol,
    address: LoadAddress,
    stream: String,
}

/// What the tasks of a run tell each other. Times are of the monotonic clock, in ns; 0 is not yet.
#[derive(Default)]
struct RestartWatch {
    acked_bytes: AtomicU64,
    /// The load has its rate from here on, and no limit before.
    paced_at: AtomicU64,
    killed_at: AtomicU64,
    appended_at: AtomicU64,
    connected_at: AtomicU64,
    new_at: AtomicU64,
    read_at: AtomicU64,
    /// Records that the connected consumer has read.
    connected_records: AtomicU64,
    /// No more is appended.
    is_over: AtomicBool,
}

impl RestartWatch {
    /// Notes that something happened for the first time.
    fn note(&self, at: &AtomicU64) {
        // Each of them has one task that writes it.
        if at.load(Ordering::Relaxed) == 0 {
            at.store(monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// Whether what was stamped so is from after the kill.
    fn is_new(&self, stamp_ns: u64) -> bool {
        let killed_at = self.killed_at.load(Ordering::Relaxed);
        killed_at > 0 && stamp_ns >= killed_at
    }

    /// Seconds from the kill until then, if it has happened.
    fn since_kill(&self, at: &AtomicU64) -> Option<f64> {
        let at = at.load(Ordering::Relaxed);
        let since = at.saturating_sub(self.killed_at.load(Ordering::Relaxed));
        (at > 0).then(|| round(since as f64 / 1e9, 3))
    }
}

/// Loads the target, has it killed by `restart`, and waits until everybody has what is waited for.
fn measure(
    args: &Args,
    system: &'static str,
    round_number: u32,
    target: RestartTarget,
    mut restart: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<RestartRun> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let watch = Arc::new(RestartWatch::default());
    let wanted = args.read_mib << 20;
    let config = client_config(args);
    let appending = start_appending(args, target.clone(), Arc::clone(&watch))?;
    runtime.spawn(follow(target.clone(), config.clone(), Arc::clone(&watch)));
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let reaches = |counter, least| Ok((of(counter) >= least).then_some(()));
    until("as much is appended as is to be read", GIVE_UP, || reaches(&watch.acked_bytes, wanted))?;
    watch.note(&watch.paced_at);
    std::thread::sleep(Duration::from_secs_f64(args.load_s));
    let more = of(&watch.connected_records) + 1;
    until("the connected consumer reads", GIVE_UP, || reaches(&watch.connected_records, more))?;
    let stored = of(&watch.acked_bytes);

    watch.note(&watch.killed_at);
    restart()?;
    runtime.spawn(read_anew(target, config, wanted, Arc::clone(&watch)));
    let times = || {
        Some(RestartRun {
            system,
            round: round_number,
            stored_mib: round(stored as f64 / f64::from(1 << 20), 1),
            append_s: watch.since_kill(&watch.appended_at)?,
            connected_s: watch.since_kill(&watch.connected_at)?,
            new_s: watch.since_kill(&watch.new_at)?,
            read_s: watch.since_kill(&watch.read_at)?,
        })
    };
    let run = until(&format!("{system} comes back"), GIVE_UP, || Ok(times()))?;
    watch.is_over.store(true, Ordering::Relaxed);
    appending.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?;
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(run)
}

fn client_config(args: &Args) -> ClientConfig {
    let mut config = ClientConfig { name: "bench-restart".to_owned(), ..ClientConfig::default() };
    // It would be a process of the node's, which is killed with it.
    config.window = WindowUse::Never;
    if !args.bounded {
        (config.reader.bytes_per_s, config.reader.catch_up_bytes_per_s) = (u64::MAX, u64::MAX);
    }
    config
}

/// A producer belongs to one thread.
fn start_appending(
    args: &Args,
    target: RestartTarget,
    watch: Arc<RestartWatch>,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let (record_bytes, rate_mbit) = (args.record_bytes, args.rate_mbit);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let appending = move || runtime.block_on(append(target, record_bytes, rate_mbit, watch));
    Ok(std::thread::Builder::new().name("appending".to_owned()).spawn(appending)?)
}

/// Appends until it is over, and connects again where that is lost.
async fn append(target: RestartTarget, record_bytes: usize, rate_mbit: u64, watch: Arc<RestartWatch>) {
    let mut record = vec![b'x'; record_bytes];
    let mut sequence = 0;
    let records_per_s = rate_mbit as f64 * 1e6 / 8.0 / record_bytes as f64;
    let (mut paced, mut paced_at) = (0, 0);
    while !watch.is_over.load(Ordering::Relaxed) {
        let RestartTarget { protocol, address, stream } = &target;
        let appender = Appender::connect(*protocol, address, stream, 1, Gathering::default()).await;
        let Ok(mut appender) = appender else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let lost = loop {
            if watch.is_over.load(Ordering::Relaxed) {
                return;
            }
            let now = monotonic_ns();
            if paced_at == 0 {
                paced_at = watch.paced_at.load(Ordering::Relaxed);
            }
            let mut left = IN_FLIGHT as u64;
            if paced_at > 0 {
                // Nothing that could not be sent in time is caught up with: it is a rate, and not an amount.
                let due = (now.saturating_sub(paced_at) as f64 / 1e9 * records_per_s) as u64;
                left = due.saturating_sub(paced);
                paced = paced.max(due);
            }
            while left > 0 && appender.in_flight() < IN_FLIGHT {
                payload::seal(&mut record, 0, sequence, monotonic_ns());
                let stamp_ns = Payload::parse(&record).map_or(0, |sealed| sealed.stamp_ns());
                match appender.send(0, &record, stamp_ns) {
                    Ok(true) => sequence += 1,
                    _ => break,
                }
                left -= 1;
            }
            tokio::select! {
                acked = appender.next(), if appender.in_flight() > 0 => match acked {
                    Ok(stamps) => {
                        let bytes = (stamps.len() * record_bytes) as u64;
                        watch.acked_bytes.fetch_add(bytes, Ordering::Relaxed);
                        if stamps.last().is_some_and(|stamp_ns| watch.is_new(*stamp_ns)) {
                            watch.note(&watch.appended_at);
                        }
                    }
                    Err(error) => break error,
                },
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        };
        if watch.killed_at.load(Ordering::Relaxed) == 0 {
            eprintln!("the producer lost its server before it was killed: {lost:#}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads what is appended, and goes on where it was when its connection is lost.
async fn follow(target: RestartTarget, config: ClientConfig, watch: Arc<RestartWatch>) {
    let mut from = Some(0);
    read(&target, &config, &mut from, |record| {
        watch.connected_records.fetch_add(1, Ordering::Relaxed);
        if Payload::parse(record).is_some_and(|sealed| watch.is_new(sealed.stamp_ns())) {
            watch.note(&watch.connected_at);
        }
        true
    })
    .await;
}

/// Reads from the beginning, as one who comes while the server is away.
async fn read_anew(target: RestartTarget, config: ClientConfig, wanted: u64, watch: Arc<RestartWatch>) {
    let (mut from, mut bytes) = (Some(0), 0);
    read(&target, &config, &mut from, |record| {
        watch.note(&watch.new_at);
        bytes += record.len() as u64;
        if bytes >= wanted {
            watch.note(&watch.read_at);
        }
        bytes < wanted
    })
    .await;
}

/// Hands out records from an offset on until `each` has enough.
async fn read(
    target: &RestartTarget,
    config: &ClientConfig,
    from: &mut Option<u64>,
    mut each: impl FnMut(&[u8]) -> bool,
) {
    let RestartTarget { protocol, address, stream } = target;
    let mut goes_on = true;
    while goes_on {
        if let Ok(mut follower) =
            LoadFollower::connect(*protocol, address, stream, *from, config.clone()).await
        {
            while goes_on {
                let read = follower.next(|record| goes_on = goes_on && each(record)).await;
                *from = Some(follower.next_offset());
                if read.is_err() {
                    break;
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_stamped_after_the_kill_is_new_and_the_first_of_it_counts() {
        let watch = RestartWatch::default();
        assert!(!watch.is_new(u64::MAX), "nothing was killed");
        watch.killed_at.store(1_000_000_000, Ordering::Relaxed);
        assert!(!watch.is_new(999_999_999) && watch.is_new(1_000_000_000));
        assert_eq!(watch.since_kill(&watch.appended_at), None);
        watch.appended_at.store(1_250_000_000, Ordering::Relaxed);
        watch.note(&watch.appended_at);
        assert_eq!(watch.since_kill(&watch.appended_at), Some(0.25));
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive_though_nobody_has_waited_for_it() {
        assert!(is_alive(std::process::id().cast_signed()));
        let mut child = Process::new("true").spawn().expect("it is everywhere");
        while is_alive(child.id().cast_signed()) {
            std::thread::yield_now();
        }
        assert!(child.wait().expect("it ended").success());
    }
}
