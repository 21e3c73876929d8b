//! `bench fanout`: one producer at a fixed rate, many consumers.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tailwater_load::appender::Gathering;
use tailwater_load::experiment::{self, Cpu, ExperimentPlan, Outcome, Sample, Timeline};
use tailwater_load::interrupt;
use tailwater_load::limits::{CONSUMERS_PER_PROCESS, KEPT_UP_WITHIN, RATE_TOLERANCE};
use tailwater_load::messages::{
    ConsumersConfig, FaultFlags, MessageProtocol, ProducerConfig, Reads, Spread, TransportFlag, Validate,
};
use tailwater_load::payload::HEADER_BYTES;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{PercentilesMs, round};
use tailwater_load::stopping::{self, StopOne, TICK_MS};

use crate::pingpong::core_to_core_ns;
use crate::plot;
use crate::target::{LoadTarget, TargetArgs};

/// Bytes of a chunk: what reads are compared with.
const CHUNK_BYTES: f64 = 4096.0;

/// Flags of `bench fanout`.
#[derive(clap::Args)]
pub struct Args {
    /// How many consumers.
    #[arg(long, default_value_t = 100)]
    consumers: usize,
    /// The most consumers in one process, up to 500. The number of processes follows.
    #[arg(long, default_value_t = CONSUMERS_PER_PROCESS)]
    per_process: usize,
    /// How many processes the consumers are spread over, whatever their number. At most 500 are in one process.
    #[arg(long, value_name = "PROCESSES", conflicts_with = "per_process")]
    processes: Option<usize>,
    /// Stop one consumer (SIGSTOP) for SECONDS seconds of the measured time. It has a process to itself. The report
    /// says what the others noticed and how it caught up.
    #[arg(long, value_name = "SECONDS", conflicts_with = "start")]
    stop_one: Option<f64>,
    /// How consumers read.
    #[arg(long, value_enum, default_value_t = TransportFlag::Shm)]
    transport: TransportFlag,
    /// Give each consumer a connection to everything. Otherwise the consumers of a process share its reader.
    #[arg(long)]
    connection_each: bool,
    /// A process for each consumer, which reads as an application does: through the window where the node offers one,
    /// and by itself where it does not.
    #[arg(long, conflicts_with_all = ["connection_each", "per_process", "processes", "stop_one", "one_sided"])]
    own_reader: bool,
    /// What is appended, in Mbit/s of messages.
    #[arg(long, default_value_t = 240.0, value_name = "MBIT")]
    rate_mbit: f64,
    /// Bytes of each message.
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    message_bytes: usize,
    /// Shards of the stream.
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// How many shards each consumer reads. By default all shards.
    #[arg(long, value_name = "SHARDS")]
    shards_per_consumer: Option<u32>,
    /// Give each process consumers of all shards. Otherwise consumers of the same shards are in the same process, as
    /// far as possible.
    #[arg(long)]
    apart: bool,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 15.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Seconds of warm-up, which do not count. By default 3, and 10 where consumers are crowded.
    #[arg(long, value_name = "SECONDS")]
    warmup_s: Option<f64>,
    /// When the node writes what was appended: at once, or every MS milliseconds.
    #[arg(long, default_value = "immediate", value_name = "immediate|MS")]
    flush: String,
    /// When consumers start: before the producer, or all at once beside a running producer.
    #[arg(long, value_enum, default_value_t = FanoutStart::Smooth)]
    start: FanoutStart,
    /// Who computes a record's checksum: each consumer, or the first one in a process that reads it. By default each
    /// consumer, and the first one where consumers are crowded. They are crowded where those that share a reader are
    /// given 250,000 records/s all in all.
    #[arg(long, value_enum)]
    validate: Option<Validate>,
    /// To which shard the next records go.
    #[arg(long, value_enum, default_value_t = Spread::RoundRobin)]
    spread: Spread,
    /// How long the producer's batches wait for more, in microseconds.
    #[arg(long, default_value_t = 0, value_name = "US")]
    linger_us: u64,
    /// How often the producer sends what is due, in microseconds. By default 1,000. Where consumers are crowded it is
    /// as often as each shard is given 8 records, from 5,000 to 30,000.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..))]
    every_us: Option<u64>,
    /// Niceness of the producer, from -20, which goes first, to 19. Readers that share its processors hold back any
    /// application there; with -10 it goes before them, as the node and the cells do.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    producer_nice: i32,
    /// The least time between two looks of a reader for lengths, in microseconds, rounded up to the next tick of a
    /// millisecond. 0 is a look at every wake-up. By default 250 for readers of 50 consumers or more, 5,000 where
    /// consumers are crowded, and 0 for others.
    #[arg(long, value_name = "US")]
    lengths_every_us: Option<u64>,
    /// How fast backlogs shrink: most bytes a second of a process beyond what is written meanwhile. By default as in
    /// the client library.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    catch_up_bytes_per_s: Option<u64>,
    /// The least time between two polls of a process's consumers, in microseconds. 0 is a poll whenever something came.
    /// By default 0, and 5,000 where consumers are crowded.
    #[arg(long, value_name = "US")]
    poll_every_us: Option<u64>,
    /// What a process keeps of each shard for consumers near the tail, in KiB. By default half a second's worth.
    #[arg(long, value_name = "KIB")]
    window_kib: Option<usize>,
    /// Draw rates and delays over time as an SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Bytes of records in one batch.
    #[arg(long, default_value_t = 256 << 10, value_name = "BYTES")]
    batch_bytes: usize,
    /// With --protocol kafka: this many consumers besides, which read all shards one-sidedly in processes of their own.
    #[arg(long, default_value_t = 0, value_name = "CONSUMERS", conflicts_with = "stop_one")]
    one_sided: usize,
    /// How many processes the consumers of --one-sided are spread over, with at most 500 in one. By default as few as
    /// there have to be.
    #[arg(long, value_name = "PROCESSES", requires = "one_sided")]
    one_sided_processes: Option<usize>,
    #[command(flatten)]
    target: TargetArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

impl Args {
    fn shards_per_consumer(&self) -> u32 {
        self.shards_per_consumer.unwrap_or(self.shards)
    }

    fn message_bytes(&self) -> usize {
        self.message_bytes.max(HEADER_BYTES)
    }

    /// Records per second that are appended.
    fn rate(&self) -> f64 {
        self.rate_mbit * 1e6 / 8.0 / self.message_bytes() as f64
    }
}

/// When consumers start.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum FanoutStart {
    /// Before the producer.
    Smooth,
    /// All at once, when the measured time begins.
    AtOnce,
}

/// How often things are done, where it was not given. Where consumers are crowded each turn of all of them, and each
/// entry, costs more than what is gained by having a record sooner.
struct FanoutPace {
    every_us: u64,
    lengths_every_us: Option<u64>,
    poll_every_us: u64,
    validate: Validate,
    warmup_s: f64,
}

impl FanoutPace {
    /// Consumers are crowded where those who share a reader are given so many records per second all in all.
    const CROWDED: f64 = 250_000.0;
    /// Records that a shard is given at a time then, as far as that takes no longer than [`FanoutPace::EVERY_US`].
    const RECORDS_AT_A_TIME: f64 = 8.0;
    const EVERY_US: std::ops::RangeInclusive<u64> = 5_000..=30_000;

    /// The run's, with its consumers in so many processes.
    fn of(args: &Args, processes: usize) -> Self {
        let sharing = match args.connection_each || args.target.protocol() == MessageProtocol::Kafka {
            true => 1,
            false => args.consumers.div_ceil(processes),
        };
        let of_shard = args.rate() / f64::from(args.shards);
        let is_crowded = sharing as f64 * f64::from(args.shards_per_consumer()) * of_shard >= Self::CROWDED;
        let at_a_time_us = (Self::RECORDS_AT_A_TIME / of_shard * 1e6) as u64;
        let (every_us, poll_every_us, validate, warmup_s) = if is_crowded {
            let every_us = at_a_time_us.clamp(*Self::EVERY_US.start(), *Self::EVERY_US.end());
            (every_us, 5_000, Validate::Process, 10.0)
        } else {
            (1_000, 0, Validate::Consumer, 3.0)
        };
        Self {
            every_us: args.every_us.unwrap_or(every_us),
            lengths_every_us: args.lengths_every_us.or(is_crowded.then_some(5_000)),
            poll_every_us: args.poll_every_us.unwrap_or(poll_every_us),
            validate: args.validate.unwrap_or(validate),
            warmup_s: args.warmup_s.unwrap_or(warmup_s),
        }
    }
}

/// What it reports.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    consumers: usize,
    processes: usize,
    transport: TransportFlag,
    connection_each: bool,
    one_sided: usize,
    one_sided_processes: usize,
    #[serde(flatten)]
    target: LoadTarget,
    flush: String,
    rate_mbit: f64,
    message_bytes: usize,
    shards: u32,
    shards_per_consumer: u32,
    together: bool,
    start: FanoutStart,
    spread: Spread,
    batch_bytes: usize,
    linger_us: u64,
    every_us: u64,
    lengths_every_us: Option<u64>,
    poll_every_us: u64,
    window_bytes: usize,
    /// `consumer`: each consumer computes the checksum of each record; `process`: the first one of a process.
    validates: Validate,
    warmup_s: f64,
    duration_s: f64,
    /// Measured records, and how often one of them was delivered.
    produced: u64,
    delivered: u64,
    /// Over the whole run, the warm-up included.
    #[serde(flatten)]
    faults: FaultFlags,
    delivered_gbit_s: f64,
    /// Of every measured record, for every consumer.
    delay_ms: PercentilesMs,
    ack_ms: PercentilesMs,
    /// How much later than planned the producer sent records.
    producer_late_ms: PercentilesMs,
    /// Of the rate that was asked for.
    producer_rate: f64,
    /// `node`: the node and the cache backends; `backends`: these alone.
    cpu_s: Cpu,
    cpu_cores: Cpu,
    wall_s: f64,
    reads: Reads,
    /// Of those who read one-sidedly, if there are any.
    read_amplification: Option<Amplification>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own_reader: Option<OwnReaderCost>,
    core_to_core_ns: Option<f64>,
    consumers_started_ms: f64,
    /// How long after the last record was appended the last consumer had everything.
    ended_after_ms: Option<f64>,
    unfinished_consumers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_one: Option<stopping::Report>,
    keeps_up: bool,
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    series: Vec<Sample>,
}

/// What is read more than once.
#[derive(Debug, PartialEq, Serialize)]
struct Amplification {
    /// Read for each byte that became readable.
    bytes: f64,
    /// Reads for each chunk's worth of those bytes.
    reads: f64,
}

impl Amplification {
    /// None if nothing became readable, as where all consumers speak Kafka's protocol: 0 would say that nothing had to
    /// be read.
    fn of(reads: &Reads) -> Option<Self> {
        let useful = (reads.entry_bytes > 0).then_some(reads.entry_bytes as f64)?;
        let asked = (reads.relaxed + reads.hedged + reads.consistent + reads.durable) as f64;
        Some(Self {
            bytes: round((reads.cell_bytes + reads.durable_bytes) as f64 / useful, 3),
            reads: round(asked / (useful / CHUNK_BYTES), 3),
        })
    }
}

/// What one consumer costs that has a reader of its own.
#[derive(Debug, PartialEq, Serialize)]
struct OwnReaderCost {
    /// Cores, of each.
    cpu_cores: f64,
    /// How often threads of each went to sleep in a second.
    wakes_s: f64,
    /// Read from cells and the durable layer by the readers themselves, for each byte that became readable.
    read_by_itself: f64,
    /// Of what became readable, what came through the window.
    through_window: f64,
}

impl OwnReaderCost {
    fn of(outcome: &Outcome) -> Self {
        let (processes, reads) = (outcome.processes as f64, outcome.consumed.reads);
        let useful = (reads.entry_bytes as f64).max(1.0);
        Self {
            cpu_cores: round(outcome.cpu.consumers / outcome.wall_s / processes, 4),
            wakes_s: round(outcome.sleeps as f64 / outcome.wall_s / processes, 1),
            read_by_itself: round((reads.cell_bytes + reads.durable_bytes) as f64 / useful, 3),
            through_window: round(reads.window_bytes as f64 / useful, 3),
        }
    }
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.consumers > 0 && args.shards > 0, "at least one consumer and one shard");
    anyhow::ensure!(args.rate_mbit > 0.0 && args.duration_s > 0.0, "a rate and a duration above 0");
    let shards_per_consumer = args.shards_per_consumer();
    anyhow::ensure!(
        (1..=args.shards).contains(&shards_per_consumer),
        "a consumer can't read {shards_per_consumer} of {} shards",
        args.shards
    );
    let stop_one = args.stop_one.map(|s| StopOne::within(s, args.duration_s)).transpose()?;
    let processes = processes(&args)?;
    let one_sided_processes = one_sided_processes(&args)?;
    let protocol = args.target.protocol();
    anyhow::ensure!(
        protocol == MessageProtocol::Tailwater || (args.stop_one.is_none() && !args.connection_each),
        "with --protocol kafka each consumer has a connection, and none can be stopped"
    );
    anyhow::ensure!(
        args.one_sided == 0 || protocol == MessageProtocol::Kafka,
        "--one-sided needs --protocol kafka: otherwise all are"
    );
    let is_tcp = protocol == MessageProtocol::Kafka || args.transport == TransportFlag::Tcp;
    anyhow::ensure!(!args.target.tls || is_tcp, "--tls encrypts TCP: add --transport tcp");
    interrupt::listen()?;
    let half_second = (args.rate_mbit * 1e6 / 16.0) as usize / args.shards as usize;
    let window_bytes = args.window_kib.map_or(half_second.clamp(128 << 10, 64 << 20), |kib| kib << 10);
    let pace = FanoutPace::of(&args, processes);
    let duration = Duration::from_secs_f64(args.duration_s);
    let plan = ExperimentPlan {
        consumers: args.consumers,
        processes,
        stop_one,
        one_sided: args.one_sided,
        one_sided_processes,
        reading: ConsumersConfig {
            together: !args.apart,
            shards_per_consumer,
            protocol,
            connection_each: args.connection_each,
            own_reader: args.own_reader,
            from_beginning: args.start == FanoutStart::Smooth,
            validate: pace.validate,
            lengths_every_us: pace.lengths_every_us,
            catch_up_bytes_per_s: args.catch_up_bytes_per_s,
            poll_every_us: pace.poll_every_us,
            window_bytes,
            tick_ms: if stop_one.is_some() { TICK_MS } else { 500 },
            ..ConsumersConfig::new(args.shards, args.transport)
        },
        appending: Some(ProducerConfig {
            protocol,
            spread: args.spread,
            gathering: Gathering {
                batch_bytes: args.batch_bytes,
                linger_us: args.linger_us,
                requests_in_flight: args.target.requests_in_flight,
            },
            every_us: pace.every_us,
            nice: args.producer_nice,
            tick_ms: 500,
            ..ProducerConfig::new(args.shards, args.rate(), args.message_bytes(), duration)
        }),
        flush: args.flush.clone(),
        warmup: Duration::from_secs_f64(pace.warmup_s),
        start_at_once: args.start == FanoutStart::AtOnce,
        ramp: Duration::ZERO,
        halt: None,
        duration,
    };
    let core_to_core_ns = core_to_core_ns().map(|ns| round(ns, 1));
    let mut system = args.target.start()?;
    let (mut line, mut timeline) = (ProgressLine::default(), Timeline::new(Duration::from_millis(500)));
    let outcome = experiment::run(&mut system, &plan, |live, _| {
        if timeline.look(live)
            && let Some(sample) = timeline.samples.last()
        {
            line.show(&progress(sample));
        }
        Ok(())
    })?;
    drop(line);
    if let Some(file) = &args.plot {
        let title = format!("{} consumers, {} Mbit/s", args.consumers, args.rate_mbit);
        plot::write(file, &title, &timeline.samples, &[])?;
    }
    let report = report(&args, &plan, outcome, core_to_core_ns, timeline.samples);
    report::print(args.output, &report)?;
    anyhow::ensure!(
        report.faults.total() == 0 && report.error.is_none(),
        "records were not what they should be: see above"
    );
    Ok(())
}

/// How many processes the consumers are spread over, but for the one that is stopped.
fn processes(args: &Args) -> anyhow::Result<usize> {
    let alone = usize::from(args.stop_one.is_some());
    let together = args.consumers - alone;
    anyhow::ensure!(together > 0, "--stop-one needs another consumer, which is to notice nothing");
    anyhow::ensure!(
        (1..=CONSUMERS_PER_PROCESS).contains(&args.per_process),
        "--per-process {}: 1 to {CONSUMERS_PER_PROCESS} consumers",
        args.per_process
    );
    let least = together.div_ceil(CONSUMERS_PER_PROCESS);
    let processes = match args.own_reader {
        true => together,
        false => args.processes.unwrap_or(together.div_ceil(args.per_process)),
    };
    anyhow::ensure!(
        (least..=together).contains(&processes),
        "{together} consumers are spread over {least} to {together} processes, not {processes}: see --processes"
    );
    Ok(processes)
}

/// The same of the one-sided consumers beside them.
fn one_sided_processes(args: &Args) -> anyhow::Result<usize> {
    let (least, most) = (args.one_sided.div_ceil(CONSUMERS_PER_PROCESS), args.one_sided);
    let processes = args.one_sided_processes.unwrap_or(least);
    anyhow::ensure!(
        (least..=most).contains(&processes),
        "{most} one-sided consumers are spread over {least} to {most} processes, not {processes}"
    );
    Ok(processes)
}

fn report(
    args: &Args,
    plan: &ExperimentPlan,
    outcome: Outcome,
    core_to_core_ns: Option<f64>,
    series: Vec<Sample>,
) -> Report {
    let Outcome { produced, consumed, cpu, wall_s, .. } = &outcome;
    let rate = plan.appending.as_ref().map_or(0.0, |config| config.rate);
    let kafka = args.target.protocol() == MessageProtocol::Kafka;
    let reads = consumed.reads;
    let producer_rate = produced.measured as f64 / produced.measured_s / rate;
    let ended_after_ms = outcome.ended_after_ms().map(|ms| round(ms, 2));
    let whole = outcome.ended_after_ms().is_some_and(|ms| ms <= KEPT_UP_WITHIN.as_secs_f64() * 1e3);
    Report {
        bench: "fanout",
        consumers: args.consumers,
        processes: outcome.processes,
        transport: if kafka { TransportFlag::Tcp } else { args.transport },
        connection_each: kafka || args.connection_each,
        one_sided: args.one_sided,
        one_sided_processes: plan.one_sided_processes,
        target: args.target.told(),
        flush: args.flush.clone(),
        rate_mbit: args.rate_mbit,
        message_bytes: plan.appending.as_ref().map_or(0, |config| config.message_bytes),
        shards: args.shards,
        shards_per_consumer: plan.reading.shards_per_consumer,
        together: plan.reading.together,
        start: args.start,
        spread: args.spread,
        batch_bytes: args.batch_bytes,
        linger_us: args.linger_us,
        every_us: plan.appending.as_ref().map_or(0, |config| config.every_us),
        lengths_every_us: plan.reading.lengths_every_us,
        poll_every_us: plan.reading.poll_every_us,
        window_bytes: plan.reading.window_bytes,
        validates: plan.reading.validate,
        warmup_s: plan.warmup.as_secs_f64(),
        duration_s: args.duration_s,
        produced: produced.measured,
        delivered: consumed.measured,
        faults: consumed.faults,
        delivered_gbit_s: round(consumed.measured_bytes as f64 * 8.0 / 1e9 / produced.measured_s, 3),
        delay_ms: outcome.delays.percentiles_ms(),
        ack_ms: outcome.ack_ms(),
        producer_late_ms: outcome.late_ms(),
        producer_rate: round(producer_rate, 4),
        cpu_s: cpu.over(1.0, 2),
        cpu_cores: cpu.over(*wall_s, 3),
        wall_s: round(*wall_s, 2),
        reads,
        read_amplification: Amplification::of(&reads),
        own_reader: args.own_reader.then(|| OwnReaderCost::of(&outcome)),
        core_to_core_ns,
        consumers_started_ms: round(outcome.started_ms, 1),
        ended_after_ms,
        unfinished_consumers: consumed.unfinished,
        stop_one: outcome.stopping.as_ref().map(stopping::Stopping::report),
        keeps_up: whole && (1.0 - producer_rate).abs() <= RATE_TOLERANCE && consumed.faults.total() == 0,
        error: consumed.error.clone(),
        series: if args.start == FanoutStart::AtOnce { series } else { Vec::new() },
    }
}

/// A line while it runs.
fn progress(sample: &Sample) -> String {
    let Sample { t_s, appended_s, delivered_s, delay_ms, durable_s, .. } = sample;
    format!(
        "{t_s:.0} s: {appended_s:.0} appended/s, {delivered_s:.0} delivered/s, delay p50 {:.2} ms, p99 {:.2} ms, {durable_s:.0} durable reads/s",
        delay_ms.p50, delay_ms.p99,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_more_than_once_is_told_of_those_who_read_one_sidedly_and_of_nobody_else() {
        assert_eq!(Amplification::of(&Reads::default()), None);
        let reads = Reads {
            relaxed: 4,
            consistent: 2,
            cell_bytes: 10_000,
            durable_bytes: 240,
            entry_bytes: 8_192,
            ..Reads::default()
        };
        assert_eq!(Amplification::of(&reads), Some(Amplification { bytes: 1.25, reads: 3.0 }));
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// How often a run's producer sends, its processes poll, and who validates.
    fn pace(flags: &str) -> (u64, u64, Validate) {
        use clap::Parser;
        let args = Command::parse_from(format!("fanout {flags}").split_whitespace()).args;
        let processes = processes(&args).expect("a number of processes");
        let pace = FanoutPace::of(&args, processes);
        (pace.every_us, pace.poll_every_us, pace.validate)
    }

    #[test]
    fn crowded_consumers_are_polled_in_turns_unless_told_otherwise_and_others_at_once() {
        let at_once = (1_000, 0, Validate::Consumer);
        assert_eq!(pace("--consumers 1 --rate-mbit 8"), at_once);
        assert_eq!(pace("--consumers 64 --transport tcp --connection-each"), at_once);
        assert_eq!(pace("--consumers 64 --protocol kafka"), at_once);
        let of_one_shard = (5_000, 5_000, Validate::Process);
        assert_eq!(pace("--consumers 1000 --rate-mbit 150"), of_one_shard);
        let of_many_shards = (30_000, 5_000, Validate::Process);
        assert_eq!(pace("--consumers 7950 --shards 120 --shards-per-consumer 4"), of_many_shards);
        let told = "--consumers 1000 --every-us 1000 --poll-every-us 0 --validate consumer";
        assert_eq!(pace(told), at_once);
    }
}
