//! `bench queue cycles`: workers that each send, receive and delete in a closed loop, over connections that are kept,
//! on one queue of a node that is started for it, or of any server that speaks SQS's protocol.
//!
//! Every body that comes is checked by the sum in it. What a worker receives is what was sent by any of them, or is of
//! the backlog that was sent before; the queue's length stays what it was.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tailwater_load::clock::cpu_of;
use tailwater_load::interrupt;
use tailwater_load::measuring::{LoadSwitch, Metered, RunMeter, on_threads};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{PercentilesMs, round};

use super::client::Client;
use super::load::LoadRandom;
use super::nodes::{Nodes, StoreArgs};
use super::traffic::{Took, Traffic};

/// Flags of it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// A server that runs already, HOST:PORT, in place of a node that is started.
    #[arg(long, value_name = "ADDRESS", requires = "server_pid")]
    endpoint: Option<SocketAddr>,
    /// The process of that server, for its CPU time.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Workers, each with a connection of its own.
    #[arg(long, default_value_t = 16)]
    workers: usize,
    /// Messages of a cycle. More than one are sent, received and deleted in batches.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10))]
    batch: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 2_048, value_name = "BYTES")]
    body_bytes: usize,
    /// Use a FIFO queue with this many groups.
    #[arg(long, value_name = "GROUPS", value_parser = clap::value_parser!(u64).range(1..))]
    fifo: Option<u64>,
    /// Messages that are in the queue from the beginning.
    #[arg(long, default_value_t = 0, value_name = "MESSAGES")]
    backlog: u64,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    duration_s: u64,
    /// How long to warm up, in seconds.
    #[arg(long, default_value_t = 3)]
    warmup_s: u64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct Outcome {
    workers: usize,
    batch: u64,
    body_bytes: usize,
    fifo_groups: u64,
    backlog: u64,
    /// Batches of messages that were sent, received and deleted.
    cycles_per_s: f64,
    messages_per_s: f64,
    /// From before a send to after the delete.
    cycle_ms: PercentilesMs,
    send_ms: PercentilesMs,
    receive_ms: PercentilesMs,
    /// Receives that were answered with nothing.
    empty: u64,
    /// The server's CPU for a message, in milliseconds.
    server_ms: f64,
    /// The workers'.
    workers_ms: f64,
}

/// What all workers have in common.
struct Run<'a> {
    args: &'a Args,
    server: SocketAddr,
    traffic: Traffic,
    deleted: AtomicU64,
    empty: AtomicU64,
    switch: LoadSwitch,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    interrupt::listen()?;
    let nodes = args.endpoint.is_none().then(|| Nodes::start(&args.store)).transpose()?;
    let server = match (&args.endpoint, &nodes) {
        (Some(endpoint), _) => *endpoint,
        (None, Some(nodes)) => nodes.addresses()[0],
        (None, None) => unreachable!("there is one of them"),
    };
    let cpu = || match (&nodes, args.server_pid) {
        (Some(nodes), _) => nodes.cpu(),
        (None, pid) => pid.and_then(cpu_of).unwrap_or_default(),
    };
    let run = Run {
        args: &args,
        server,
        traffic: Traffic::create(&mut Client::new(server), "cycles", args.body_bytes, args.fifo)?,
        deleted: AtomicU64::new(0),
        empty: AtomicU64::new(0),
        switch: LoadSwitch::default(),
    };
    run.traffic.fill(server, args.backlog, args.workers)?;
    let counters = |(): &()| {
        let own = cpu_of(std::process::id()).unwrap_or_default();
        [run.deleted.load(Ordering::Relaxed) as f64, cpu().as_secs_f64(), own.as_secs_f64()]
    };
    let meter = RunMeter::start(Duration::from_secs(args.warmup_s), Duration::from_secs(args.duration_s));
    let pass = || meter.pass(&run.switch, &mut (), counters, |()| Ok(()));
    let (all, metered) = on_threads(args.workers, |at| run.work(at as u64), pass)?;
    let Metered { seconds, grew: [deleted, server_s, workers_s] } = metered;
    let mut took = Took::default();
    all.iter().for_each(|one| took.add(one));
    let each = |all_s: f64| round(all_s * 1e3 / deleted.max(1.0), 4);
    report::print(
        args.output,
        &Outcome {
            workers: args.workers,
            batch: args.batch,
            body_bytes: args.body_bytes,
            fifo_groups: args.fifo.unwrap_or(0),
            backlog: args.backlog,
            cycles_per_s: round(deleted / args.batch as f64 / seconds, 0),
            messages_per_s: round(deleted / seconds, 0),
            cycle_ms: took.cycle.percentiles_ms(),
            send_ms: took.send.percentiles_ms(),
            receive_ms: took.receive.percentiles_ms(),
            empty: run.empty.into_inner(),
            server_ms: each(server_s),
            workers_ms: each(workers_s),
        },
    )
}

impl Run<'_> {
    /// Cycle after cycle.
    fn work(&self, at: u64) -> anyhow::Result<Took> {
        let (mut client, mut random) = (Client::new(self.server), LoadRandom(u64::MAX - at));
        let mut took = Took::default();
        let ns = |since: Instant| since.elapsed().as_nanos() as u64;
        // What the last receives did not find.
        let mut owed = 0;
        while !self.switch.is_stopping() {
            let begin = Instant::now();
            if owed < self.args.batch {
                self.traffic.send(&mut client, self.args.batch, &mut random)?;
                owed += self.args.batch;
            }
            let sent_ns = ns(begin);
            let receiving = Instant::now();
            let received = self.traffic.receive(&mut client, self.args.batch)?;
            let received_ns = ns(receiving);
            if received.is_empty() {
                self.empty.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.traffic.delete(&mut client, &received)?;
            owed = owed.saturating_sub(received.len() as u64);
            self.deleted.fetch_add(received.len() as u64, Ordering::Relaxed);
            if self.switch.is_measuring() {
                took.cycle.record(ns(begin));
                took.send.record(sent_ns);
                took.receive.record(received_ns);
            }
        }
        Ok(took)
    }
}
