//! `bench append`: durable appends with a fixed number of records in flight.

use std::time::Duration;

use serde::Serialize;
use tailwater_load::appender::{Appender, Gathering};
use tailwater_load::clock::{cpu_of, monotonic_ns};
use tailwater_load::interrupt;
use tailwater_load::measuring::{RunMeter, RunPhase};
use tailwater_load::messages::{MessageProtocol, Spread};
use tailwater_load::payload::{self, HEADER_BYTES};
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::System;

use crate::disk;
use crate::pingpong::core_to_core_ns;
use crate::target::{LoadTarget, TargetArgs};

/// Flags of `bench append`.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each record.
    #[arg(long, default_value_t = 128, value_name = "BYTES")]
    record_bytes: usize,
    /// Records that wait for their acknowledgement at any moment.
    #[arg(long, default_value_t = 4_096, value_name = "RECORDS")]
    in_flight: usize,
    /// Shards of the stream.
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// To which shard the next records go.
    #[arg(long, value_enum, default_value_t = Spread::RoundRobin)]
    spread: Spread,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 15.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Seconds of warm-up, which do not count.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    warmup_s: f64,
    /// When the node writes what was appended: at once, or every MS milliseconds.
    #[arg(long, default_value = "immediate", value_name = "immediate|MS")]
    flush: String,
    /// Bytes of records in one batch.
    #[arg(long, default_value_t = 256 << 10, value_name = "BYTES")]
    batch_bytes: usize,
    /// Reach the node over TCP and not through its Unix socket.
    #[arg(long)]
    tcp: bool,
    /// How long a batch waits for more, in microseconds.
    #[arg(long, default_value_t = 0, value_name = "US")]
    linger_us: u64,
    #[command(flatten)]
    target: TargetArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What it reports.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    record_bytes: usize,
    in_flight: usize,
    shards: u32,
    spread: Spread,
    #[serde(flatten)]
    target: LoadTarget,
    flush: String,
    batch_bytes: usize,
    linger_us: u64,
    connection: &'static str,
    warmup_s: f64,
    duration_s: f64,
    /// Acknowledged in the measured time.
    records: u64,
    records_per_s: f64,
    mbyte_s: f64,
    /// From before a record is handed over to its acknowledgement.
    ack_ms: PercentilesMs,
    /// Append of 4 KiB and fdatasync to a growing file on the same disk, before and after, while nothing else ran.
    fdatasync_ms: Syncs,
    /// Batches acknowledged, and the bytes of records in one on average.
    batches: u64,
    batch_bytes_mean: f64,
    /// Bytes that became durable together: all that was acknowledged at one moment, on average.
    group_bytes: f64,
    /// What the disk takes alone, appended and synced in blocks of `group_bytes`.
    disk_mbyte_s: f64,
    /// `mbyte_s` as a share of it.
    disk_share: f64,
    cpu_cores: Cores,
    core_to_core_ns: Option<f64>,
}

#[derive(Serialize)]
struct Syncs {
    p50: f64,
    p99: f64,
}

#[derive(Serialize)]
struct Cores {
    node: f64,
    backends: f64,
    client: f64,
}

/// How long each measurement of the disk alone takes.
const PROBE: Duration = Duration::from_secs(1);

/// Acknowledgements that come within this time are one group: the node answers for one fdatasync in a few frames.
const SAME_GROUP_NS: u64 = 20_000;

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.in_flight > 0 && args.shards > 0, "at least one record in flight, and one shard");
    anyhow::ensure!(args.duration_s > 0.0 && args.warmup_s >= 0.0, "a duration above 0, and no warmup below");
    anyhow::ensure!(!args.target.tls || tcp(&args), "--tls encrypts TCP: add --tcp");
    interrupt::listen()?;
    let core_to_core_ns = core_to_core_ns().map(|ns| round(ns, 1));
    let system = args.target.start()?;
    system.create_stream(args.shards, &args.flush)?;
    let mut syncs = disk::append_and_sync(system.dir(), 4_096, PROBE)?.times;

    // One thread for the client library and for the load: no record is handed from one to the other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut load = Load::new(&args);
    let cores = runtime.block_on(load.run(&args, &system))?;

    syncs.add(&disk::append_and_sync(system.dir(), 4_096, PROBE)?.times);
    let record_bytes = args.record_bytes.max(HEADER_BYTES);
    let bytes = load.records as f64 * record_bytes as f64;
    let group_bytes = bytes / load.groups.max(1) as f64;
    let disk = disk::append_and_sync(system.dir(), (group_bytes as usize).max(512), PROBE)?;
    let mbyte_s = bytes / load.seconds / 1e6;
    let report = Report {
        bench: "append",
        record_bytes,
        in_flight: args.in_flight,
        shards: args.shards,
        spread: args.spread,
        target: args.target.told(),
        flush: args.flush.clone(),
        batch_bytes: args.batch_bytes,
        linger_us: args.linger_us,
        connection: if tcp(&args) { "tcp" } else { "unix" },
        warmup_s: args.warmup_s,
        duration_s: args.duration_s,
        records: load.records,
        records_per_s: round(load.records as f64 / load.seconds, 0),
        mbyte_s: round(mbyte_s, 2),
        ack_ms: load.acks_ms.percentiles_ms(),
        fdatasync_ms: Syncs {
            p50: round(syncs.quantile_ns(0.5) as f64 / 1e6, 4),
            p99: round(syncs.quantile_ns(0.99) as f64 / 1e6, 4),
        },
        batches: load.batches,
        batch_bytes_mean: round(bytes / load.batches.max(1) as f64, 0),
        group_bytes: round(group_bytes, 0),
        disk_mbyte_s: round(disk.bytes_per_s / 1e6, 2),
        disk_share: round(mbyte_s * 1e6 / disk.bytes_per_s, 3),
        cpu_cores: cores,
        core_to_core_ns,
    };
    system.stop()?;
    report::print(args.output, &report)
}

/// Whether the server is reached over TCP: Kafka's always is.
fn tcp(args: &Args) -> bool {
    args.tcp || args.target.protocol() == MessageProtocol::Kafka
}

#[derive(Default)]
struct Load {
    record: Vec<u8>,
    sequences: Vec<u64>,
    /// The one that the last record was sent to.
    shard: usize,
    measure_from_ns: u64,
    records: u64,
    batches: u64,
    groups: u64,
    last_ack_ns: u64,
    seconds: f64,
    acks_ms: Durations,
}

impl Load {
    fn new(args: &Args) -> Self {
        Self {
            record: vec![b'x'; args.record_bytes.max(HEADER_BYTES)],
            sequences: vec![0; args.shards as usize],
            measure_from_ns: u64::MAX,
            ..Self::default()
        }
    }

    async fn run(&mut self, args: &Args, system: &System) -> anyhow::Result<Cores> {
        let protocol = args.target.protocol();
        let address = match protocol {
            MessageProtocol::Tailwater => system.address(!args.tcp)?,
            MessageProtocol::Kafka => system.kafka_address(),
        };
        let gathering = Gathering {
            batch_bytes: args.batch_bytes,
            linger_us: args.linger_us,
            requests_in_flight: args.target.requests_in_flight,
        };
        let stream = system.stream();
        let mut appender = Appender::connect(protocol, &address, stream, args.shards, gathering).await?;
        let mut line = ProgressLine::default();

        let times = [args.warmup_s, args.duration_s].map(Duration::from_secs_f64);
        let mut meter = RunMeter::start(times[0], times[1]);
        self.measure_from_ns = meter.times().from_ns;
        let mut look_ns = meter.times().begin_ns;
        let cpu = || {
            let (node, backends) = system.cpu();
            let client = cpu_of(std::process::id()).unwrap_or_default();
            [node, backends, client].map(|cpu| cpu.as_secs_f64())
        };
        loop {
            let now = monotonic_ns();
            if meter.look(now, cpu) == RunPhase::Over {
                break;
            }
            if now >= look_ns {
                look_ns = now + 500_000_000;
                interrupt::check()?;
                line.show(&format!("{} records acknowledged", self.records));
            }
            self.fill(args, &mut appender)?;
            let stamps = appender.next().await?;
            self.acknowledged(&stamps);
            while let Some(stamps) = appender.next_now()? {
                self.acknowledged(&stamps);
            }
        }
        let metered = meter.end(cpu())?;
        self.seconds = metered.seconds;
        let [node, backends, client] = metered.per_s(3);
        Ok(Cores { node, backends, client })
    }

    /// Sends until enough are in flight.
    fn fill(&mut self, args: &Args, appender: &mut Appender) -> anyhow::Result<()> {
        let mut next = true;
        while appender.in_flight() < args.in_flight {
            let shard = if next { (self.shard + 1) % self.sequences.len() } else { self.shard };
            let sequence = &mut self.sequences[shard];
            let stamp = monotonic_ns();
            payload::seal(&mut self.record, shard as u32, *sequence, stamp);
            if !appender.send(shard as u32, &self.record, stamp)? {
                return Ok(());
            }
            *sequence += 1;
            self.shard = shard;
            next = args.spread == Spread::RoundRobin;
        }
        Ok(())
    }

    fn acknowledged(&mut self, stamps: &[u64]) {
        let now = monotonic_ns();
        if now < self.measure_from_ns {
            return;
        }
        self.records += stamps.len() as u64;
        self.batches += 1;
        self.groups += u64::from(now - self.last_ack_ns > SAME_GROUP_NS);
        self.last_ack_ns = now;
        for &stamp in stamps {
            self.acks_ms.record(now.saturating_sub(stamp));
        }
    }
}
