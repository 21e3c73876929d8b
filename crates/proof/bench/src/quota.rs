//! `bench quota`: two clients of Kafka's protocol at one node. What the quiet one waits for its acknowledgements while
//! it is alone, and while another one pushes as hard as it can: within a quota, and without one.
//!
//! The quiet one keeps to a timetable, and a record's time begins when it is due: who gets an answer late does not ask
//! less. The three parts follow each other in each round, so that what else the machine does is in all of them.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tailwater_load::address::LoadAddress;
use tailwater_load::appender::{Appender, Gathering};
use tailwater_load::clock::monotonic_ns;
use tailwater_load::interrupt;
use tailwater_load::measuring::{LoadSwitch, RunMeter, on_threads};
use tailwater_load::messages::MessageProtocol;
use tailwater_load::payload::HEADER_BYTES;
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{CellProcesses, PeerDurability, System, SystemArgs};

use crate::compare::series::Series;

/// What the two call themselves, and the shard of each.
const QUIET: (&str, u32) = ("quiet", 0);
const PUSHING: (&str, u32) = ("pushing", 1);
const SHARDS: u32 = 2;
/// Records that wait for their acknowledgement at each connection of the one that pushes.
const PUSHED: usize = 4_096;
/// How long nothing is waited for that is not there: a load looks whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes a second that the client that pushes may append, in MB.
    #[arg(long, default_value_t = 5.0, value_name = "MB")]
    quota_mbyte_s: f64,
    /// Connections of the client that pushes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Records a second of the quiet client.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    quiet_per_s: u64,
    /// Bytes of each record.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    record_bytes: usize,
    /// Have users with certificates, in TLS, and a quota of a user. By default it is a quota of a client's name.
    #[arg(long)]
    users: bool,
    /// How long each part of a round is measured, in seconds.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Time at the beginning of each part that is not measured, in seconds.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    warmup_s: f64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    #[command(flatten)]
    system: SystemArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// What the other client does while the quiet one is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum QuotaPart {
    Alone,
    WithinQuota,
    WithoutQuota,
}

impl QuotaPart {
    const ALL: [Self; 3] = [Self::Alone, Self::WithinQuota, Self::WithoutQuota];
}

#[derive(Serialize)]
struct QuotaOutcome {
    bench: &'static str,
    quota_mbyte_s: f64,
    connections: u64,
    quiet_per_s: u64,
    record_bytes: usize,
    users: bool,
    cells: CellProcesses,
    warmup_s: f64,
    duration_s: f64,
    rounds: u64,
    parts: Vec<QuotaMeasured>,
    /// The quiet client's p99 beside the one within its quota, over that alone: the median of the rounds.
    p99_ratio: f64,
    /// The same of each round.
    p99_ratios: Vec<f64>,
    /// The same beside the one without a quota.
    p99_ratio_without_quota: f64,
}

/// One part, all rounds together.
#[derive(Serialize)]
struct QuotaMeasured {
    beside: QuotaPart,
    quiet_ms: PercentilesMs,
    quiet_records: u64,
    /// The quiet client's p99 of each round.
    p99_ms: Vec<f64>,
    /// What was acknowledged to the one that pushes.
    pushed_mbyte_s: f64,
    node_cores: f64,
}

#[derive(Default)]
struct QuotaCounts {
    quiet: Durations,
    pushed: u64,
}

/// All rounds of one part.
#[derive(Default)]
struct QuotaRounds {
    all: QuotaCounts,
    p99_ms: Vec<f64>,
    cpu_s: f64,
    seconds: f64,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.quota_mbyte_s > 0.0 && args.rounds > 0, "a quota above 0, and at least one round");
    interrupt::listen()?;
    let with = args.system.clone().or_cells(CellProcesses::R1);
    let with = if args.users { with.secured() } else { with };
    let cells = with.cells();
    let system = System::start_for(&with, true, PeerDurability::Fsync)?;
    system.create_stream(SHARDS, "immediate")?;
    let bench = Bench {
        quiet: system.kafka_address_of(QUIET.0)?,
        pushing: system.kafka_address_of(PUSHING.0)?,
        args: &args,
        system: &system,
    };
    let mut rounds = QuotaPart::ALL.map(|_| QuotaRounds::default());
    for number in 0..args.rounds {
        // Each is first, and last, as often as the others.
        for turn in 0..rounds.len() {
            let at = (turn + number as usize) % rounds.len();
            bench.part(QuotaPart::ALL[at], &mut rounds[at])?;
        }
        let p99 = rounds.each_ref().map(|rounds| *rounds.p99_ms.last().expect("just measured"));
        eprintln!(
            "round {}: the quiet client's p99 alone, beside the other one, and without its quota: {p99:?} ms",
            number + 1
        );
    }
    let ratios = |at: usize| Series::ratios(&rounds[at].p99_ms, &rounds[0].p99_ms);
    let (within, without) = (ratios(1), ratios(2));
    let part = |(beside, rounds): (QuotaPart, &QuotaRounds)| QuotaMeasured {
        beside,
        quiet_ms: rounds.all.quiet.percentiles_ms(),
        quiet_records: rounds.all.quiet.count(),
        p99_ms: rounds.p99_ms.clone(),
        pushed_mbyte_s: round(rounds.all.pushed as f64 * args.record_bytes as f64 / rounds.seconds / 1e6, 2),
        node_cores: round(rounds.cpu_s / rounds.seconds, 3),
    };
    let outcome = QuotaOutcome {
        bench: "quota",
        quota_mbyte_s: args.quota_mbyte_s,
        connections: args.connections,
        quiet_per_s: args.quiet_per_s,
        record_bytes: args.record_bytes,
        users: args.users,
        cells,
        warmup_s: args.warmup_s,
        duration_s: args.duration_s,
        rounds: args.rounds,
        parts: QuotaPart::ALL.into_iter().zip(&rounds).map(part).collect(),
        p99_ratio: round(within.median(), 3),
        p99_ratios: within.values().iter().map(|ratio| round(*ratio, 3)).collect(),
        p99_ratio_without_quota: round(without.median(), 3),
    };
    system.stop()?;
    report::print(args.output, &outcome)
}

struct Bench<'a> {
    args: &'a Args,
    system: &'a System,
    quiet: LoadAddress,
    pushing: LoadAddress,
}

impl Bench<'_> {
    /// Measures one part of a round.
    fn part(&self, part: QuotaPart, rounds: &mut QuotaRounds) -> anyhow::Result<()> {
        let bytes = (self.args.quota_mbyte_s * 1e6) as u64;
        let quota = (part != QuotaPart::WithoutQuota).then_some(bytes);
        let entity = match self.args.users {
            true => json!({ "user": format!("CN={}", PUSHING.0) }),
            false => json!({ "client_id": PUSHING.0 }),
        };
        self.system.set_quota(&entity, &json!({ "producer_byte_rate": quota }))?;
        let switch = LoadSwitch::default();
        let pushing = if part == QuotaPart::Alone { 0 } else { self.args.connections as usize };
        let work = |number: usize| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            match number {
                0 => runtime.block_on(self.quiet(&switch)),
                _ => runtime.block_on(self.push(&switch)),
            }
        };
        let times = [self.args.warmup_s, self.args.duration_s].map(Duration::from_secs_f64);
        let meter = RunMeter::start(times[0], times[1]);
        let cpu_s = |(): &()| [self.system.cpu().0.as_secs_f64()];
        let pass = || meter.pass(&switch, &mut (), cpu_s, |()| Ok(()));
        let (all, metered) = on_threads(1 + pushing, work, pass)?;
        let mut quiet = Durations::default();
        for one in &all {
            quiet.add(&one.quiet);
            rounds.all.pushed += one.pushed;
        }
        rounds.p99_ms.push(quiet.percentiles_ms().p99);
        rounds.all.quiet.add(&quiet);
        rounds.seconds += metered.seconds;
        rounds.cpu_s += metered.grew[0];
        Ok(())
    }

    async fn connect(&self, address: &LoadAddress) -> anyhow::Result<Appender> {
        let (protocol, stream) = (MessageProtocol::Kafka, self.system.stream());
        Appender::connect(protocol, address, stream, SHARDS, Gathering::default()).await
    }

    fn record(&self) -> Vec<u8> {
        vec![b'x'; self.args.record_bytes.max(HEADER_BYTES)]
    }

    /// Appends each record when it is due.
    async fn quiet(&self, switch: &LoadSwitch) -> anyhow::Result<QuotaCounts> {
        let (mut appender, record) = (self.connect(&self.quiet).await?, self.record());
        let mut counts = QuotaCounts::default();
        let every_ns = 1_000_000_000 / self.args.quiet_per_s;
        let mut due_ns = monotonic_ns();
        while !switch.is_stopping() {
            let now = monotonic_ns();
            while due_ns <= now && appender.send(QUIET.1, &record, due_ns)? {
                due_ns += every_ns;
            }
            let left = Duration::from_nanos(due_ns.saturating_sub(monotonic_ns()));
            // A batch that came is told even if the next record is due.
            let acknowledged = tokio::select! {
                biased;
                stamps = appender.next(), if appender.in_flight() > 0 => stamps?,
                () = tokio::time::sleep(left.min(LOOK)) => continue,
            };
            let now = monotonic_ns();
            if switch.is_measuring() {
                acknowledged.iter().for_each(|due| counts.quiet.record(now.saturating_sub(*due)));
            }
        }
        Ok(counts)
    }

    /// Appends as much as is acknowledged.
    async fn push(&self, switch: &LoadSwitch) -> anyhow::Result<QuotaCounts> {
        let (mut appender, record) = (self.connect(&self.pushing).await?, self.record());
        let mut counts = QuotaCounts::default();
        while !switch.is_stopping() {
            while appender.in_flight() < PUSHED && appender.send(PUSHING.1, &record, monotonic_ns())? {}
            let acknowledged = tokio::select! {
                biased;
                stamps = appender.next() => stamps?,
                () = tokio::time::sleep(LOOK) => continue,
            };
            if switch.is_measuring() {
                counts.pushed += acknowledged.len() as u64;
            }
        }
        Ok(counts)
    }
}
