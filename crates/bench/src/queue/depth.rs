//! `bench queue depth`: what a receive takes, and the memory of the node, with more and more messages in one queue; and what it
//! takes on another queue after many messages have passed through it.
//!
//! One worker measures: it sends a batch, receives one and deletes it, so that the queue stays as long as it is.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;

use super::client::Client;
use super::load::Random;
use super::nodes::{Nodes, StoreArgs};
use super::traffic::Traffic;
use crate::interrupt;
use crate::report::{self, Format};
use crate::stats::{Durations, PercentilesMs, round};

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Messages in the queue, ascending; it is measured at each.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    depth: Vec<u64>,
    /// Messages that have passed through another queue, ascending; it is measured before all and at each.
    #[arg(long, value_delimiter = ',', default_value = "1000000")]
    passed: Vec<u64>,
    /// Messages that are in that queue while others pass.
    #[arg(long, default_value_t = 1_000, value_name = "MESSAGES")]
    standing: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    body_bytes: usize,
    /// Messages of a request.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10))]
    batch: u64,
    /// FIFO queues, with so many groups.
    #[arg(long, value_name = "GROUPS", value_parser = clap::value_parser!(u64).range(1..))]
    fifo: Option<u64>,
    /// Connections that fill the queue, and that let messages pass.
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Receives that are measured each time, after a tenth as many that are not.
    #[arg(long, default_value_t = 5_000)]
    receives: u64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
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
}

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
            let measured = bench.measure(rate)?;
            eprintln!("{depth} messages: {:?}, {} bytes", measured.receive_ms, measured.rss_bytes);
            outcome.depths.push(AtDepth { messages: there, measured });
        }
    }
    if !args.passed.is_empty() {
        let nodes = Nodes::start(&args.store)?;
        let bench = Bench::new(&args, &nodes, "passed")?;
        bench.traffic.fill(bench.server, args.standing, args.workers)?;
        let mut passed = 0;
        for upto in std::iter::once(&0).chain(&args.passed) {
            let begin = Instant::now();
            bench.pass(upto - passed)?;
            let rate = (upto - passed) as f64 / begin.elapsed().as_secs_f64();
            passed = *upto;
            let measured = bench.measure(rate)?;
            eprintln!("{passed} passed: {:?}, {} bytes", measured.receive_ms, measured.rss_bytes);
            outcome.passed.push(AfterPassing { messages_passed: passed, measured });
        }
    }
    report::print(args.output, &outcome)
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

    fn measure(&self, messages_per_s: f64) -> anyhow::Result<Measured> {
        let (mut client, mut random) = (Client::new(self.server), Random(u64::MAX));
        let mut took = Took::default();
        for _ in 0..self.args.receives / 10 {
            self.cycle(&mut client, &mut random, &mut took)?;
        }
        took = Took::default();
        let before = self.nodes.cpu();
        let mut received = 0;
        for _ in 0..self.args.receives {
            interrupt::check()?;
            received += self.cycle(&mut client, &mut random, &mut took)?;
        }
        let cpu = self.nodes.cpu().saturating_sub(before);
        Ok(Measured {
            messages_per_s: round(messages_per_s, 0),
            send_ms: took.send.percentiles_ms(),
            receive_ms: took.receive.percentiles_ms(),
            cycle_ms: took.cycle.percentiles_ms(),
            rss_bytes: self.nodes.rss_bytes(),
            node_ms: round(cpu.as_secs_f64() * 1e3 / received.max(1) as f64, 4),
        })
    }

    /// Sends a batch, receives one and deletes it; how many it received.
    fn cycle(&self, client: &mut Client, random: &mut Random, took: &mut Took) -> anyhow::Result<u64> {
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
        let batches = AtomicU64::new(messages / self.args.batch);
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for at in 0..self.args.workers as u64 {
                let (batches, failed) = (&batches, &failed);
                scope.spawn(move || {
                    let (mut client, mut random) = (Client::new(self.server), Random(at));
                    let left = |left: u64| left.checked_sub(1);
                    while batches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
                        let cycled = self.cycle(&mut client, &mut random, &mut Took::default());
                        if let Err(error) = interrupt::check().and(cycled) {
                            failed.lock().expect("no worker panics").get_or_insert(error);
                            return;
                        }
                    }
                });
            }
        });
        failed.into_inner().expect("no worker panicked").map_or(Ok(()), Err)
    }
}

#[derive(Default)]
struct Took {
    send: Durations,
    receive: Durations,
    cycle: Durations,
}
