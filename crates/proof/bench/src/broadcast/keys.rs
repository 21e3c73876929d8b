//! What an event costs a proxy that collects the one before it with its key, with few events stored and with many: the
//! search by key may not depend on how many there are (section 3.4's future work, an index).
//!
//! For each number of stored events a proxy, a process of its own, which has one event of each of as many keys. Drivers
//! publish events with keys drawn at random in a closed loop, to one proxy after the other for a few seconds each, so
//! that what the machine does otherwise meets all of them. A listener of each proxy checks that no number is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tailwater_broadcast::Writer;
use tailwater_client::broadcast::{Collect, Content, Listener, Positions, Publisher, Received, Stream};
use tailwater_env::Env;
use tailwater_load::child::Child;
use tailwater_load::clock::monotonic_ns;
use tailwater_load::interrupt;
use tailwater_load::measuring::{LoadSwitch, RunMeter};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{Workspace, free_address};
use tokio::runtime::Runtime;

use super::node::{Node, SeenStreamView};

/// How long a proxy may take until its listener has everything.
const SETTLE: Duration = Duration::from_secs(60);
/// Events that are replaced before it counts, at least: then what is collected is also dropped.
const REPLACED_MIN: u64 = 100_000;

/// Flags of `bench broadcast keys`.
#[derive(clap::Args)]
pub struct Args {
    /// Numbers of events that are stored, each with a key of its own. There is a proxy for each number.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 10_000_000])]
    stored: Vec<u64>,
    /// How often each proxy has its turn.
    #[arg(long, default_value_t = 4)]
    turns: u64,
    /// How long a turn is, in seconds.
    #[arg(long, default_value_t = 3)]
    duration_s: u64,
    /// Drivers. Each waits for a batch's answer before it publishes the next batch.
    #[arg(long, default_value_t = 4)]
    drivers: u64,
    /// Events of a batch.
    #[arg(long, default_value_t = 1000)]
    batch: u64,
    /// What a proxy does with an event before it counts as held.
    #[arg(long, default_value = "memory", value_parser = ["memory", "interval", "fsync"])]
    durability: String,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct Outcome {
    durability: String,
    drivers: u64,
    batch: u64,
    proxies: Vec<Cost>,
    /// CPU time for an event of the last proxy over that of the first.
    cpu_of_first: f64,
    lost: u64,
}

#[derive(Serialize)]
struct Cost {
    stored: u64,
    /// Events a second in its turns.
    events_per_s: f64,
    /// CPU time of the whole proxy for an event: it is received, numbered, matched, stored, and sent to the listener.
    cpu_ns: f64,
    /// From publishing a batch to its answer.
    ack_ms: PercentilesMs,
    /// Events that are not collected; as many as keys.
    live: u64,
    /// The proxy's resident memory.
    memory_bytes: u64,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_sane = args.stored.iter().all(|&stored| (1..=1_000_000_000).contains(&stored));
    ensure!(is_sane && !args.stored.is_empty(), "--stored is from 1 to 1,000,000,000, each");
    ensure!((1..=10_000).contains(&args.batch), "--batch is from 1 to 10,000");
    ensure!(
        args.drivers > 0 && args.turns > 0 && args.duration_s > 0,
        "there has to be something to measure"
    );
    interrupt::listen()?;
    let workspace = Workspace::create(None, false)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Listeners and publishers begin their tasks where they are made.
    let _entered = runtime.enter();
    let mut proxies = Vec::new();
    for &stored in &args.stored {
        let mut proxy = KeysProxy::start(stored, &args.durability, &workspace, &runtime)?;
        eprintln!("{stored} events are published, and {} replaced", proxy.replaced_first());
        proxy.fill(args, &runtime)?;
        proxies.push(proxy);
    }
    for turn in 0..args.turns {
        for proxy in &mut proxies {
            proxy.turn(args, turn, &runtime)?;
            eprintln!(
                "turn {} of {}, {} stored: {:.0} ns an event",
                turn + 1,
                args.turns,
                proxy.stored,
                proxy.cpu_ns()
            );
        }
    }
    let costs = proxies.iter_mut().map(KeysProxy::cost).collect::<anyhow::Result<Vec<_>>>()?;
    let outcome = Outcome {
        durability: args.durability.clone(),
        drivers: args.drivers,
        batch: args.batch,
        cpu_of_first: round(costs[costs.len() - 1].cpu_ns / costs[0].cpu_ns, 2),
        proxies: costs,
        lost: proxies.iter().map(|proxy| proxy.heard.missed.load(Ordering::Relaxed)).sum(),
    };
    report::print(args.output, &outcome)?;
    ensure!(outcome.lost == 0, "events were lost");
    ensure!(
        outcome.proxies.iter().all(|cost| cost.live == cost.stored),
        "an event of each key has to be left"
    );
    Ok(())
}

/// What a listener has got.
#[derive(Default)]
struct KeysHeard {
    last: AtomicU64,
    missed: AtomicU64,
}

/// One, with as many keys as it stores events.
struct KeysProxy {
    stored: u64,
    node: Node,
    child: Child,
    address: String,
    stream: Stream,
    heard: Arc<KeysHeard>,
    /// Of all turns.
    events: u64,
    time: Duration,
    cpu: Duration,
    acks: Durations,
}

impl KeysProxy {
    fn start(
        stored: u64,
        durability: &str,
        workspace: &Workspace,
        runtime: &Runtime,
    ) -> anyhow::Result<Self> {
        let at = free_address()?;
        let broadcast = format!("listen = \"{at}\"\nregion = \"r0\"\ndurability = \"{durability}\"");
        let node = Node::prepare(&format!("proxy-{stored}"), workspace.path(), &broadcast)?;
        let child = node.start()?;
        let heard = Arc::new(KeysHeard::default());
        let address = at.to_string();
        let env = Env::real();
        let listener = Listener::new(&env, vec![address.clone()], Positions::start());
        runtime.spawn(listen(listener, Arc::clone(&heard)));
        let stream = Stream::parse("r0/keys")?;
        let (events, time, cpu, acks) = Default::default();
        Ok(Self { stored, node, child, address, stream, heard, events, time, cpu, acks })
    }

    fn replaced_first(&self) -> u64 {
        self.stored.max(REPLACED_MIN)
    }

    /// Publishes an event of each key, and replaces as many.
    fn fill(&mut self, args: &Args, runtime: &Runtime) -> anyhow::Result<()> {
        let publisher = Publisher::new(&Env::real(), vec![self.address.clone()]);
        let mut random = StdRng::seed_from_u64(self.stored);
        for first in (0..self.stored).step_by(args.batch as usize) {
            interrupt::check()?;
            let keys = first..(first + args.batch).min(self.stored);
            runtime.block_on(publish(&publisher, &self.stream, keys))?;
        }
        for _ in (0..self.replaced_first()).step_by(args.batch as usize) {
            interrupt::check()?;
            let keys = (0..args.batch).map(|_| random.random_range(0..self.stored));
            runtime.block_on(publish(&publisher, &self.stream, keys))?;
        }
        self.settle()
    }

    /// Waits until the listener has all that there is.
    fn settle(&mut self) -> anyhow::Result<()> {
        let last = self.view()?.last;
        let has_all = || self.heard.last.load(Ordering::Acquire) >= last;
        self.child.until("has not sent everything to its listener", SETTLE, has_all)
    }

    fn view(&self) -> anyhow::Result<SeenStreamView> {
        let streams = self.node.streams();
        streams
            .and_then(|streams| streams.into_iter().next())
            .context("the proxy does not tell of its stream")
    }

    /// Some seconds of events with random keys.
    fn turn(&mut self, args: &Args, turn: u64, runtime: &Runtime) -> anyhow::Result<()> {
        let switch = Arc::new(LoadSwitch::default());
        let (begin, before) = (monotonic_ns(), self.child.cpu());
        let drivers: Vec<_> = (0..args.drivers)
            .map(|driver| {
                let publisher = Publisher::new(&Env::real(), vec![self.address.clone()]);
                let (stream, switch) = (self.stream.clone(), Arc::clone(&switch));
                let random = StdRng::seed_from_u64(turn << 32 | driver);
                runtime.spawn(drive(publisher, stream, random, self.stored, args.batch, switch))
            })
            .collect();
        let meter = RunMeter::start(Duration::ZERO, Duration::from_secs(args.duration_s));
        meter.pass(&switch, &mut self.child, |_| [], Child::check)?;
        for driver in drivers {
            let (events, acks) = runtime.block_on(driver).context("a driver")??;
            self.events += events;
            self.acks.add(&acks);
        }
        self.settle()?;
        self.time += Duration::from_nanos(monotonic_ns() - begin);
        self.cpu += self.child.cpu() - before;
        Ok(())
    }

    fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.events as f64
    }

    fn cost(&mut self) -> anyhow::Result<Cost> {
        Ok(Cost {
            stored: self.stored,
            events_per_s: round(self.events as f64 / self.time.as_secs_f64(), 0),
            cpu_ns: round(self.cpu_ns(), 0),
            ack_ms: self.acks.percentiles_ms(),
            live: self.view()?.live,
            memory_bytes: self.child.rss_bytes(),
        })
    }
}

/// Publishes an event of each of some keys, which collects the one before it with that key, and waits for the answer.
async fn publish(
    publisher: &Publisher,
    stream: &Stream,
    keys: impl Iterator<Item = u64>,
) -> anyhow::Result<()> {
    let mut writer = Writer::new(0);
    for key in keys {
        let key = Some(Bytes::from(format!("key-{key:012}")));
        let content = Content { key, payload: Bytes::from_static(b"0123456789"), ..Content::default() };
        writer.publish(&content, Some(&Collect::SameKey))?;
    }
    publisher.publish_batch(stream, writer.finish(0)).await?;
    Ok(())
}

/// Publishes batch after batch; answers how many events it were, and how long each batch took.
async fn drive(
    publisher: Publisher,
    stream: Stream,
    mut random: StdRng,
    keys: u64,
    batch: u64,
    switch: Arc<LoadSwitch>,
) -> anyhow::Result<(u64, Durations)> {
    let (mut events, mut acks) = (0, Durations::default());
    while !switch.is_stopping() {
        let drawn: Vec<u64> = (0..batch).map(|_| random.random_range(0..keys)).collect();
        let begin = monotonic_ns();
        publish(&publisher, &stream, drawn.into_iter()).await?;
        acks.record(monotonic_ns() - begin);
        events += batch;
    }
    Ok((events, acks))
}

/// Hears everything, and counts the numbers that are missing.
async fn listen(mut listener: Listener, heard: Arc<KeysHeard>) {
    let mut last = 0;
    while let Ok(received) = listener.next().await {
        let Received::Events(_, batch) = received else { continue };
        heard.missed.fetch_add(batch.after.abs_diff(last), Ordering::Relaxed);
        last = batch.last;
        heard.last.store(last, Ordering::Release);
    }
}
