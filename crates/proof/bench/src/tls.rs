//! `bench tls`: what TLS costs. Appends, fan-out over TCP with a connection for each consumer and with a shared one,
//! and Kafka's protocol, each with and without TLS in turn; and Kafka's protocol also to an Apache Kafka.
//!
//! Each run is a `bench append` or a `bench fanout` of its own process. Appends are compared by records a second. A
//! fan-out has a fixed rate, so it is compared by what is delivered for each core that is busy meanwhile: those of the
//! server and of the consumers.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::round;
use tailwater_load::system::{Workspace, WorkspaceArgs, make_certificates};
use tailwater_load::{free_address, interrupt};

use crate::compare::series::Series;
use crate::program::{result_of, run_to_end};

/// What a run may take besides its warm-up and what is measured: starts, and reading to the end.
const BESIDE: Duration = Duration::from_secs(180);
/// Warm-up of each run of a broker that is warm, in seconds.
const WARM_S: f64 = 5.0;

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    /// What is measured. By default all of it.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<TlsLoad>,
    /// Bytes of each record that is appended.
    #[arg(long, default_value_t = 1_024, value_name = "BYTES")]
    record_bytes: usize,
    /// Records that wait for their acknowledgement.
    #[arg(long, default_value_t = 4_096, value_name = "RECORDS")]
    in_flight: usize,
    /// Consumers with a connection for each.
    #[arg(long, default_value_t = 16)]
    consumers_each: usize,
    /// Consumers that share a connection.
    #[arg(long, default_value_t = 128)]
    consumers_shared: usize,
    /// Consumers of Kafka's protocol.
    #[arg(long, default_value_t = 16)]
    consumers_kafka: usize,
    /// What is appended beside consumers, in Mbit/s.
    #[arg(long, default_value_t = 100.0, value_name = "MBIT")]
    rate_mbit: f64,
    /// Kafka's script, beside which Kafka's protocol is measured: `bench/peers/kafka`.
    #[arg(long, value_name = "FILE")]
    kafka: Option<PathBuf>,
    /// Warm-up of the broker that has just started, with and without TLS, in seconds.
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    kafka_warmup_s: f64,
    /// Seconds of each run that are measured.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    duration_s: f64,
    /// Seconds of warm-up of each run.
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    warmup_s: f64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// A load that is measured with and without TLS.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum TlsLoad {
    /// Appends over TCP.
    Append,
    /// Consumers over TCP with a connection for each.
    FanoutEach,
    /// Consumers over TCP that share a connection.
    FanoutShared,
    /// Appends in Kafka's protocol.
    KafkaAppend,
    /// Consumers of Kafka's protocol.
    KafkaFanout,
}

/// Who is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum TlsServer {
    Tailwater,
    Kafka,
}

impl TlsLoad {
    const ALL: [Self; 5] =
        [Self::Append, Self::FanoutEach, Self::FanoutShared, Self::KafkaAppend, Self::KafkaFanout];

    fn is_append(self) -> bool {
        matches!(self, Self::Append | Self::KafkaAppend)
    }

    fn is_kafka(self) -> bool {
        matches!(self, Self::KafkaAppend | Self::KafkaFanout)
    }

    /// The bench that is run.
    fn args(self, args: &Args) -> Vec<String> {
        let of = |consumers: usize, how: &str| {
            format!("fanout --consumers {consumers} --rate-mbit {} --validate process {how}", args.rate_mbit)
        };
        let append = format!("append --record-bytes {} --in-flight {}", args.record_bytes, args.in_flight);
        let line = match self {
            Self::Append => format!("{append} --tcp"),
            Self::KafkaAppend => format!("{append} --protocol kafka"),
            Self::FanoutEach => of(args.consumers_each, "--transport tcp --connection-each"),
            Self::FanoutShared => of(args.consumers_shared, "--transport tcp"),
            Self::KafkaFanout => of(args.consumers_kafka, "--protocol kafka"),
        };
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// What is compared: of appends records a second, of a fan-out Gbit/s delivered by each core that is busy.
    fn figure(self, ran: &Value) -> f64 {
        let number = |pointer: &str| ran.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
        match self.is_append() {
            true => number("/records_per_s"),
            false => {
                number("/delivered_gbit_s") / (number("/cpu_cores/node") + number("/cpu_cores/consumers"))
            }
        }
    }

    /// How long acknowledgements, or deliveries, took.
    fn p99_ms(self, ran: &Value) -> f64 {
        let pointer = if self.is_append() { "/ack_ms/p99" } else { "/delay_ms/p99" };
        ran.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }
}

/// One load of one server, in all rounds.
#[derive(Serialize)]
struct TlsPart {
    load: TlsLoad,
    server: TlsServer,
    /// Records a second, or Gbit/s delivered by each core.
    plain: Vec<f64>,
    tls: Vec<f64>,
    /// With TLS over without, the median of the rounds.
    ratio: f64,
    plain_p99_ms: Vec<f64>,
    tls_p99_ms: Vec<f64>,
    /// Whether all consumers kept up in all runs.
    keeps_up: bool,
}

/// Tailwater over Kafka in one load.
#[derive(Serialize)]
struct TlsBeside {
    load: TlsLoad,
    /// Medians of the rounds.
    plain: f64,
    tls: f64,
    /// Whether the ratio with TLS is at least that without.
    holds: bool,
}

#[derive(Serialize)]
struct TlsOutcome {
    bench: &'static str,
    record_bytes: usize,
    in_flight: usize,
    consumers_each: usize,
    consumers_shared: usize,
    consumers_kafka: usize,
    rate_mbit: f64,
    warmup_s: f64,
    duration_s: f64,
    rounds: usize,
    parts: Vec<TlsPart>,
    /// Nothing without a broker.
    tailwater_over_kafka: Vec<TlsBeside>,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0, "at least one round");
    interrupt::listen()?;
    let workspace = args.workspace.create()?;
    let loads: Vec<TlsLoad> = match args.only.is_empty() {
        true => TlsLoad::ALL.to_vec(),
        false => args.only.clone(),
    };
    let broker = args.kafka.as_ref().filter(|_| loads.iter().any(|load| load.is_kafka()));
    let broker = broker.map(|script| TlsBroker::start(script, workspace.path())).transpose()?;
    let mut bench = Bench { args: &args, workspace: &workspace, broker, run: 0 };
    bench.warm_up()?;
    let mut parts = bench.parts(&loads);
    for number in 0..args.rounds {
        for part in &mut parts {
            // Each goes first as often as the other one.
            for turn in 0..2 {
                let is_tls = (number + turn) % 2 == 1;
                bench.add(part, is_tls, number)?;
            }
        }
    }
    for part in &mut parts {
        part.ratio = round(Series::ratios(&part.tls, &part.plain).median(), 3);
    }
    let beside = loads.iter().filter_map(|load| beside(&parts, *load)).collect();
    report::print(
        args.output,
        &TlsOutcome {
            bench: "tls",
            record_bytes: args.record_bytes,
            in_flight: args.in_flight,
            consumers_each: args.consumers_each,
            consumers_shared: args.consumers_shared,
            consumers_kafka: args.consumers_kafka,
            rate_mbit: args.rate_mbit,
            warmup_s: args.warmup_s,
            duration_s: args.duration_s,
            rounds: args.rounds,
            parts,
            tailwater_over_kafka: beside,
        },
    )
}

/// Ours over the broker's, if there was one.
fn beside(parts: &[TlsPart], load: TlsLoad) -> Option<TlsBeside> {
    let of = |server| parts.iter().find(|part| part.load == load && part.server == server);
    let (own, other) = (of(TlsServer::Tailwater)?, of(TlsServer::Kafka)?);
    let plain = round(Series::ratios(&own.plain, &other.plain).median(), 3);
    let tls = round(Series::ratios(&own.tls, &other.tls).median(), 3);
    Some(TlsBeside { load, plain, tls, holds: tls >= plain })
}

struct Bench<'a> {
    args: &'a Args,
    workspace: &'a Workspace,
    broker: Option<TlsBroker>,
    /// Runs so far.
    run: usize,
}

impl Bench<'_> {
    /// What is measured, in the order of a round.
    fn parts(&self, loads: &[TlsLoad]) -> Vec<TlsPart> {
        let part = |load, server| TlsPart {
            load,
            server,
            plain: Vec::new(),
            tls: Vec::new(),
            ratio: f64::NAN,
            plain_p99_ms: Vec::new(),
            tls_p99_ms: Vec::new(),
            keeps_up: true,
        };
        let mut parts = Vec::new();
        for load in loads {
            parts.push(part(*load, TlsServer::Tailwater));
            if load.is_kafka() && self.broker.is_some() {
                parts.push(part(*load, TlsServer::Kafka));
            }
        }
        parts
    }

    /// Loads the broker's listeners, as its code is slow until it was run for long.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        for is_tls in [false, true] {
            if self.broker.is_some() {
                self.one(TlsLoad::KafkaAppend, TlsServer::Kafka, is_tls, self.args.kafka_warmup_s)?;
            }
        }
        Ok(())
    }

    /// Adds one run to a part.
    fn add(&mut self, part: &mut TlsPart, is_tls: bool, number: usize) -> anyhow::Result<()> {
        let warmup_s = match part.server {
            TlsServer::Tailwater => self.args.warmup_s,
            TlsServer::Kafka => self.args.warmup_s.min(WARM_S),
        };
        let ran = self.one(part.load, part.server, is_tls, warmup_s)?;
        let (figure, p99_ms) = (round(part.load.figure(&ran), 3), part.load.p99_ms(&ran));
        eprintln!(
            "round {}: {:?} of {:?}{}: {figure}, p99 {p99_ms} ms",
            number + 1,
            part.load,
            part.server,
            if is_tls { " in TLS" } else { "" }
        );
        let (figures, p99s) = match is_tls {
            true => (&mut part.tls, &mut part.tls_p99_ms),
            false => (&mut part.plain, &mut part.plain_p99_ms),
        };
        figures.push(figure);
        p99s.push(p99_ms);
        part.keeps_up &= ran.get("keeps_up").and_then(Value::as_bool).unwrap_or(true);
        Ok(())
    }

    /// One run; what it told.
    fn one(
        &mut self,
        load: TlsLoad,
        server: TlsServer,
        is_tls: bool,
        warmup_s: f64,
    ) -> anyhow::Result<Value> {
        let mut command = Process::new(std::env::current_exe()?);
        command
            .arg("bench")
            .args(load.args(self.args))
            .args(["-o", "json", "--dir"])
            .arg(self.workspace.path());
        command.args(["--warmup-s", &warmup_s.to_string()]);
        command.args(["--duration-s", &self.args.duration_s.to_string()]);
        let awake = match (server, &self.broker) {
            (TlsServer::Kafka, Some(broker)) => {
                command.args(broker.flags(is_tls));
                Some(broker.awake()?)
            }
            _ => {
                command.args(is_tls.then_some("--tls"));
                None
            }
        };
        self.run += 1;
        let file = |kind: &str| self.workspace.path().join(format!("run-{}.{kind}", self.run));
        let limit = Duration::from_secs_f64(warmup_s + self.args.duration_s) + BESIDE;
        let ended = run_to_end(command, &file("json"), &file("log"), limit)?;
        drop(awake);
        let result = result_of(&file("json"), ended);
        let (ran, _) = result.map_err(|why| {
            let log = std::fs::read_to_string(file("log")).unwrap_or_default();
            anyhow::anyhow!("{load:?} of {server:?} failed: {why}\n{log}")
        })?;
        Ok(ran)
    }
}

/// Apache Kafka with two listeners, of which one is in TLS. It stands still but for its own runs.
struct TlsBroker {
    script: PathBuf,
    dir: PathBuf,
    ca: PathBuf,
    pem: PathBuf,
    port: u16,
    pid: i32,
}

impl TlsBroker {
    fn start(script: &Path, dir: &Path) -> anyhow::Result<Self> {
        let tls = make_certificates(&dir.join("kafka-tls"), None)?;
        // The key, and behind it the certificate, are one file there.
        let read =
            |name: &str| std::fs::read_to_string(tls.join(name)).context("a certificate that was made");
        let pem = tls.join("broker.pem");
        std::fs::write(&pem, read("node.key")? + &read("node.pem")?)?;
        // Its controller listens one above, and its listener in TLS two.
        let ports = (0..3).map(|_| free_address()).collect::<anyhow::Result<Vec<_>>>()?;
        let (port, dir) = (ports[0].port(), dir.join("kafka"));
        let mut broker = Self { script: script.to_owned(), dir, ca: tls.join("ca.pem"), pem, port, pid: 0 };
        let status = broker.command("start").status();
        let status = status.with_context(|| format!("{} can't be started", script.display()))?;
        anyhow::ensure!(status.success(), "{} start: {status}", script.display());
        let pid = std::fs::read_to_string(broker.dir.join("pid")).context("a broker without a pid file")?;
        broker.pid = pid.trim().parse()?;
        broker.signal(Signal::STOP)?;
        Ok(broker)
    }

    fn command(&self, what: &str) -> Process {
        let mut command = Process::new(&self.script);
        command.arg(what).arg(&self.dir).stdout(Stdio::null());
        command.env("KAFKA_FSYNC", "1").env("KAFKA_PORT", self.port.to_string()).env("KAFKA_TLS", &self.pem);
        command
    }

    /// Flags of a bench that loads it.
    fn flags(&self, is_tls: bool) -> Vec<String> {
        let port = if is_tls { self.port + 2 } else { self.port };
        let mut flags = vec!["--bootstrap".to_owned(), format!("127.0.0.1:{port}")];
        flags.extend(["--server-pid".to_owned(), self.pid.to_string()]);
        if is_tls {
            flags.extend(["--broker-ca".to_owned(), self.ca.display().to_string()]);
        }
        flags
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.pid).context("a process without an id")?;
        kill_process(pid, signal).context("the broker has ended")
    }

    /// Lets it run until this is dropped.
    fn awake(&self) -> anyhow::Result<AwakeBroker<'_>> {
        self.signal(Signal::CONT)?;
        Ok(AwakeBroker(self))
    }
}

impl Drop for TlsBroker {
    fn drop(&mut self) {
        // Both fail only if it is gone.
        let _ = self.signal(Signal::CONT);
        let _ = self.command("stop").status();
    }
}

struct AwakeBroker<'a>(&'a TlsBroker);

impl Drop for AwakeBroker<'_> {
    fn drop(&mut self) {
        // It fails only if it is gone, which the next run tells.
        let _ = self.0.signal(Signal::STOP);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fan_out_is_compared_by_what_a_busy_core_delivers_and_appends_by_how_many_there_are() {
        let ran = json!({ "delivered_gbit_s": 3.0, "cpu_cores": { "node": 0.5, "consumers": 1.0 } });
        assert_eq!(TlsLoad::FanoutEach.figure(&ran), 2.0);
        assert_eq!(TlsLoad::KafkaAppend.figure(&json!({ "records_per_s": 7.0 })), 7.0);
        assert!(TlsLoad::Append.figure(&json!({})).is_nan());
    }

    #[test]
    fn tailwater_is_compared_with_the_broker_of_the_same_rounds_with_and_without_tls() {
        let part = |server, plain: [f64; 3], tls: [f64; 3]| TlsPart {
            load: TlsLoad::KafkaAppend,
            server,
            plain: plain.to_vec(),
            tls: tls.to_vec(),
            ratio: 1.0,
            plain_p99_ms: Vec::new(),
            tls_p99_ms: Vec::new(),
            keeps_up: true,
        };
        let own = part(TlsServer::Tailwater, [6.0, 8.0, 4.0], [4.0, 6.0, 9.0]);
        let kafka = part(TlsServer::Kafka, [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]);
        let both = beside(&[own, kafka], TlsLoad::KafkaAppend).expect("both are there");
        assert_eq!((both.plain, both.tls, both.holds), (3.0, 3.0, true));
        assert!(beside(&[], TlsLoad::KafkaAppend).is_none());
    }
}
