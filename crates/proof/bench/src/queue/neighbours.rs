//! `bench queue neighbours`: two accounts of one node, each with its quota. What the quiet one waits for its answers
//! while the other is silent, while it uses its quota, and while it asks for a multiple of it.
//!
//! Both keep to a timetable: who gets an answer late does not ask less. The three follow each other in each round, so
//! that what else the machine does is in all of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Value, json};
use tailwater_load::interrupt;
use tailwater_load::measuring::{LoadSwitch, RunMeter, on_threads};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};

use super::client::{Client, LoadCredentials};
use super::load::{LoadRandom, body};
use super::nodes::{LoadAccount, Nodes, StoreArgs};
use super::traffic::Traffic;

/// Time at the beginning of each part that is not measured.
const SETTLE: Duration = Duration::from_millis(500);

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Requests a second that each account may send.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    quota: u64,
    /// How many times its quota the other account asks for.
    #[arg(long, default_value_t = 10)]
    times: u64,
    /// Messages a second that the quiet account sends, receives and deletes: three requests each.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    quiet_per_s: u64,
    /// Connections of each account.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 2_048, value_name = "BYTES")]
    body_bytes: usize,
    /// How long each part of a round is measured, in seconds.
    #[arg(long, default_value_t = 10)]
    duration_s: u64,
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct Outcome {
    bench: &'static str,
    store: &'static str,
    quota: u64,
    quiet_per_s: u64,
    body_bytes: usize,
    duration_s: u64,
    rounds: u64,
    parts: Vec<NeighbourPart>,
    /// The quiet account's p99 beside the most that the other asks for, over that alone.
    p99_ratio: f64,
}

/// What was measured while the other account asked for so much, all rounds together.
#[derive(Serialize)]
struct NeighbourPart {
    /// Requests a second that the other account asked for; 0 is alone.
    asked_per_s: u64,
    /// The quiet account's requests.
    quiet_ms: PercentilesMs,
    quiet_requests: u64,
    /// The other's, in a second.
    admitted_per_s: f64,
    refused_per_s: f64,
    /// Cores that the nodes kept busy.
    node_cores: f64,
}

#[derive(Default)]
struct NeighbourCounts {
    quiet: Durations,
    admitted: u64,
    refused: u64,
    cpu_s: f64,
    seconds: f64,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let account = |number: u64| LoadAccount {
        id: format!("{number:012}"),
        requests_per_s: args.quota,
        credentials: LoadCredentials {
            key_id: format!("AKIABENCH{number}"),
            secret: format!("secret-of-{number}"),
        },
    };
    let (quiet, other) = (account(1), account(2));
    let nodes = Nodes::start_with(&args.store, &[quiet, other])?;
    let (quiet, other) = (account(1), account(2));
    let server = nodes.addresses()[0];
    let create = |account: &LoadAccount, name| {
        let mut client = Client::new(server).signed(Some(account.credentials.clone()));
        Traffic::create(&mut client, name, args.body_bytes, None)
    };
    let bench = Bench {
        args: &args,
        server,
        nodes: &nodes,
        traffic: create(&quiet, "quiet")?,
        quiet: quiet.credentials,
        url: create(&other, "other")?.url().to_owned(),
        other: other.credentials,
    };
    let asked = [0, args.quota, args.quota * args.times];
    let mut counted: Vec<NeighbourCounts> = asked.iter().map(|_| NeighbourCounts::default()).collect();
    for number in 0..args.rounds {
        for (asked, counted) in asked.iter().zip(&mut counted) {
            bench.part(*asked, counted)?;
        }
        let p99 = counted.iter().map(|counted| counted.quiet.percentiles_ms().p99).collect::<Vec<_>>();
        eprintln!("round {}: the quiet account's p99 {p99:?} ms so far", number + 1);
    }
    let part = |(asked, counted): (&u64, &NeighbourCounts)| NeighbourPart {
        asked_per_s: *asked,
        quiet_ms: counted.quiet.percentiles_ms(),
        quiet_requests: counted.quiet.count(),
        admitted_per_s: round(counted.admitted as f64 / counted.seconds, 0),
        refused_per_s: round(counted.refused as f64 / counted.seconds, 0),
        node_cores: round(counted.cpu_s / counted.seconds, 3),
    };
    let parts: Vec<NeighbourPart> = asked.iter().zip(&counted).map(part).collect();
    let p99_ratio = round(parts[2].quiet_ms.p99 / parts[0].quiet_ms.p99.max(1e-9), 2);
    report::print(
        args.output,
        &Outcome {
            bench: "queue neighbours",
            store: args.store.name(),
            quota: args.quota,
            quiet_per_s: args.quiet_per_s,
            body_bytes: args.body_bytes,
            duration_s: args.duration_s,
            rounds: args.rounds,
            parts,
            p99_ratio,
        },
    )
}

struct Bench<'a> {
    args: &'a Args,
    server: SocketAddr,
    nodes: &'a Nodes,
    /// The quiet account's queue.
    traffic: Traffic,
    quiet: LoadCredentials,
    /// The other's.
    url: String,
    other: LoadCredentials,
}

impl Bench<'_> {
    /// Lets both run for the time of one part, the other one at so many requests a second.
    fn part(&self, asked_per_s: u64, counted: &mut NeighbourCounts) -> anyhow::Result<()> {
        let switch = LoadSwitch::default();
        let connections = self.args.connections as usize;
        let work = |number: usize| match (number % connections) as u64 {
            at if number < connections => self.quiet(at, &switch),
            at => self.other(at, asked_per_s, &switch),
        };
        let accounts = if asked_per_s > 0 { 2 } else { 1 };
        let meter = RunMeter::start(SETTLE, Duration::from_secs(self.args.duration_s));
        let cpu_s = |(): &()| [self.nodes.cpu().as_secs_f64()];
        let pass = || meter.pass(&switch, &mut (), cpu_s, |()| Ok(()));
        let (all, metered) = on_threads(accounts * connections, work, pass)?;
        counted.seconds += metered.seconds;
        counted.cpu_s += metered.grew[0];
        for one in all {
            counted.quiet.add(&one.quiet);
            counted.admitted += one.admitted;
            counted.refused += one.refused;
        }
        Ok(())
    }

    /// Sends, receives and deletes, each message at its time.
    fn quiet(&self, at: u64, switch: &LoadSwitch) -> anyhow::Result<NeighbourCounts> {
        let mut client = Client::new(self.server).signed(Some(self.quiet.clone()));
        let (mut random, mut counted) = (LoadRandom(at), NeighbourCounts::default());
        let mut timetable = Timetable::new(self.args.quiet_per_s, self.args.connections, at);
        while !switch.is_stopping() {
            timetable.wait();
            let mut timed = |action: &mut dyn FnMut() -> anyhow::Result<()>| {
                let begin = Instant::now();
                action()?;
                if switch.is_measuring() {
                    counted.quiet.record(begin.elapsed().as_nanos() as u64);
                }
                anyhow::Ok(())
            };
            timed(&mut || self.traffic.send(&mut client, 1, &mut random))?;
            let mut receipts = Vec::new();
            timed(&mut || {
                receipts = self.traffic.receive(&mut client, 1)?;
                Ok(())
            })?;
            if !receipts.is_empty() {
                timed(&mut || self.traffic.delete(&mut client, &receipts))?;
            }
        }
        Ok(counted)
    }

    /// Sends, receives and deletes as the timetable says, whatever it is answered.
    fn other(&self, at: u64, asked_per_s: u64, switch: &LoadSwitch) -> anyhow::Result<NeighbourCounts> {
        let mut client = Client::new(self.server).signed(Some(self.other.clone()));
        let (mut random, mut counted) = (LoadRandom(at), NeighbourCounts::default());
        let mut timetable = Timetable::new(asked_per_s, self.args.connections, at);
        let (mut is_sending, mut receipt) = (true, None);
        while !switch.is_stopping() {
            timetable.wait();
            let (action, with) = match &receipt {
                Some(receipt) => ("DeleteMessage", json!({"QueueUrl": self.url, "ReceiptHandle": receipt})),
                None if is_sending => {
                    let body = body(0, self.args.body_bytes, &mut random);
                    ("SendMessage", json!({"QueueUrl": self.url, "MessageBody": body}))
                }
                None => ("ReceiveMessage", json!({"QueueUrl": self.url})),
            };
            let is_admitted = match client.ask("AmazonSQS", action, &with) {
                Ok((200, answer)) => {
                    let received: Option<&Value> = answer["Messages"].get(0);
                    receipt = received.map(|message| message["ReceiptHandle"].clone());
                    is_sending = action != "SendMessage";
                    true
                }
                Ok((_, answer)) if answer.to_string().contains("Throttled") => false,
                Ok((status, answer)) => bail!("{action} is answered {status}: {answer}"),
                // The node has closed the connection of a request that it did not read to its end.
                Err(error) if error.downcast_ref::<std::io::Error>().is_some() => continue,
                Err(error) => return Err(error).context("the other account"),
            };
            if switch.is_measuring() {
                *(if is_admitted { &mut counted.admitted } else { &mut counted.refused }) += 1;
            }
        }
        Ok(counted)
    }
}

/// When the next request of one of several connections is due.
struct Timetable {
    next: Instant,
    every: Duration,
}

impl Timetable {
    fn new(per_s: u64, connections: u64, at: u64) -> Self {
        let every = Duration::from_secs_f64(connections as f64 / per_s as f64);
        Self { next: Instant::now() + every.mul_f64(at as f64 / connections as f64), every }
    }

    fn wait(&mut self) {
        let ahead = self.next.saturating_duration_since(Instant::now());
        if !ahead.is_zero() {
            std::thread::sleep(ahead);
        }
        self.next += self.every;
    }
}
