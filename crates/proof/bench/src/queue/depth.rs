//! `bench queue depth`: what a receive takes, and the memory of the node, with more and more messages in one queue; and
//! what it takes on another queue after many messages have passed through it, in turn with a queue that is new.
//!
//! One worker measures: it sends a batch, receives one and deletes it, so that the queue stays as long as it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use tailwater_load::interrupt;
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{PercentilesMs, round};

use super::client::Client;
use super::load::LoadRandom;
use super::nodes::{Nodes, StoreArgs};
use super::traffic::{Took, Traffic, share_out};

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Numbers of messages in the queue, ascending. There is a measurement at each.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    depth: Vec<u64>,
    /// Numbers of messages that have passed through another queue, ascending. At each it is measured in turn with a new
    /// queue.
    #[arg(long, value_delimiter = ',', default_value = "1000000")]
    passed: Vec<u64>,
    /// Messages that stand in the other queue while messages pass, and in the new queue.
    #[arg(long, default_value_t = 1_000, value_name = "MESSAGES")]
    standing: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    body_bytes: usize,
    /// Messages of a request.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10))]
    batch: u64,
    /// Use FIFO queues with this many groups.
    #[arg(long, value_name = "GROUPS", value_parser = clap::value_parser!(u64).range(1..))]
    fifo: Option<u64>,
    /// Connections that fill the queue, and that let messages pass.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Receives that are measured each time. A tenth as many come before and are not measured.
    #[arg(long, default_value_t = 5_000)]
    receives: u64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct Outcome {
    bench: &'static str,
    store: &'static str,
    body_bytes: usize,
    batch: u64,
    fifo_groups: u64,
    standing: u64,
    depths: Vec<AtDepth>,
    passed: Vec<AfterPassing>,
}

#[derive(Serialize)]
struct AtDepth {
    messages: u64,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Serialize)]
struct AfterPassing {
    messages_passed: u64,
    #[serde(flatten)]
    measured: Measured,
    /// Of a queue through which nothing has passed.
    fresh: Measured,
}

/// Turns that two queues take while they are measured, so that what disturbs one disturbs the other.
const TURNS: u64 = 10;

#[derive(Serialize)]
struct Measured {
    /// Messages sent in a second to come here; those that passed were received and deleted, too.
    messages_per_s: f64,
    send_ms: PercentilesMs,
    receive_ms: PercentilesMs,
    /// From before a send to after the delete.
    cycle_ms: PercentilesMs,
    /// Memory of all nodes that is in use, in bytes.
    rss_bytes: u64,
    /// CPU of the nodes for one message that was measured, in milliseconds.
    node_ms: f64,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    ensure!(args.depth.is_sorted() && args.passed.is_sorted(), "depths and numbers have to ascend");
    interrupt::listen()?;
    let mut outcome = Outcome {
        bench: "queue depth",
        store: args.store.name(),
        body_bytes: args.body_bytes,
        batch: args.batch,
        fifo_groups: args.fifo.unwrap_or(0),
        standing: args.standing,
        depths: Vec::new(),
        passed: Vec::new(),
    };
    // Nodes of their own for each of the two, so that neither has the other's memory.
    if !args.depth.is_empty() {
        let nodes = Nodes::start(&args.store)?;
        let bench = Bench::new(&args, &nodes, "depth")?;
        let mut there = 0;
        for depth in &args.depth {
            let begin = Instant::now();
            bench.traffic.fill(bench.server, depth.saturating_sub(there), args.workers)?;
            let rate = (depth - there) as f64 / begin.elapsed().as_secs_f64();
            there = *depth;
            let [measured] = measure([(&bench, rate)])?;
            eprintln!("{depth} messages: {:?}, {} bytes", measured.receive_ms, measured.rss_bytes);
            outcome.depths.push(AtDepth { messages: there, measured });
        }
    }
    if !args.passed.is_empty() {
        let nodes = Nodes::start(&args.store)?;
        let bench = Bench::new(&args, &nodes, "passed")?;
        bench.traffic.fill(bench.server, args.standing, args.workers)?;
        let mut passed = 0;
        for upto in &args.passed {
            let begin = Instant::now();
            bench.pass(upto - passed)?;
            let rate = (upto - passed) as f64 / begin.elapsed().as_secs_f64();
            passed = *upto;
            let fresh = Bench::new(&args, &nodes, &format!("fresh-{upto}"))?;
            let begin = Instant::now();
            fresh.traffic.fill(fresh.server, args.standing, args.workers)?;
            let filled = args.standing as f64 / begin.elapsed().as_secs_f64();
            let [measured, fresh] = measure([(&bench, rate), (&fresh, filled)])?;
            eprintln!("{passed} passed: {:?}; a new queue: {:?}", measured.receive_ms, fresh.receive_ms);
            outcome.passed.push(AfterPassing { messages_passed: passed, measured, fresh });
        }
    }
    report::print(args.output, &outcome)
}

/// Measures queues of the same nodes, in turns; beside each, how many messages a second it took to come here.
fn measure<const N: usize>(queues: [(&Bench<'_>, f64); N]) -> anyhow::Result<[Measured; N]> {
    let mut clients = queues.map(|(bench, _)| (Client::new(bench.server), LoadRandom(u64::MAX)));
    let mut took: [(Took, Duration, u64); N] = std::array::from_fn(|_| Default::default());
    for (at, (bench, _)) in queues.iter().enumerate() {
        let (client, random) = &mut clients[at];
        for _ in 0..bench.args.receives / 10 {
            bench.cycle(client, random, &mut Took::default())?;
        }
    }
    for turn in 0..TURNS {
        for (at, (bench, _)) in queues.iter().enumerate() {
            let ((client, random), (took, cpu, received)) = (&mut clients[at], &mut took[at]);
            let before = bench.nodes.cpu();
            let upto = |turn: u64| bench.args.receives * turn / TURNS;
            for _ in upto(turn)..upto(turn + 1) {
                interrupt::check()?;
                *received += bench.cycle(client, random, took)?;
            }
            *cpu += bench.nodes.cpu().saturating_sub(before);
        }
    }
    Ok(std::array::from_fn(|at| {
        let ((bench, rate), (took, cpu, received)) = (queues[at], &took[at]);
        Measured {
            messages_per_s: round(rate, 0),
            send_ms: took.send.percentiles_ms(),
            receive_ms: took.receive.percentiles_ms(),
            cycle_ms: took.cycle.percentiles_ms(),
            rss_bytes: bench.nodes.rss_bytes(),
            node_ms: round(cpu.as_secs_f64() * 1e3 / (*received).max(1) as f64, 4),
        }
    }))
}

/// One queue.
struct Bench<'a> {
    args: &'a Args,
    nodes: &'a Nodes,
    server: SocketAddr,
    traffic: Traffic,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args, nodes: &'a Nodes, name: &str) -> anyhow::Result<Self> {
        let server = nodes.addresses()[0];
        let traffic = Traffic::create(&mut Client::new(server), name, args.body_bytes, args.fifo)?;
        Ok(Self { args, nodes, server, traffic })
    }

    /// Sends a batch, receives one and deletes it; how many it received.
    fn cycle(&self, client: &mut Client, random: &mut LoadRandom, took: &mut Took) -> anyhow::Result<u64> {
        let ns = |since: Instant| since.elapsed().as_nanos() as u64;
        let begin = Instant::now();
        self.traffic.send(client, self.args.batch, random)?;
        took.send.record(ns(begin));
        // A receive may find less than a batch; then as many more do, so that the queue does not grow.
        let mut received = 0;
        while received < self.args.batch {
            let receiving = Instant::now();
            let receipts = self.traffic.receive(client, self.args.batch - received)?;
            match receipts.is_empty() {
                true => std::thread::sleep(Duration::from_millis(1)),
                false => {
                    took.receive.record(ns(receiving));
                    self.traffic.delete(client, &receipts)?;
                }
            }
            received += receipts.len() as u64;
        }
        took.cycle.record(ns(begin));
        Ok(received)
    }

    /// Lets so many messages pass through the queue.
    fn pass(&self, messages: u64) -> anyhow::Result<()> {
        let batches = messages / self.args.batch;
        share_out(self.server, self.args.workers, batches, "passing", |client, random| {
            self.cycle(client, random, &mut Took::default()).map(drop)
        })
    }
}
