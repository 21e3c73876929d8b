//! Events that proxies carry among each other (figure 4): one proxy a region, each a process of its own, drivers
//! that publish to each in a closed loop, and a listener in each region that gets everything.
//!
//! Every event is 10 bytes, numbered on its own, and collects all that are more than this many before it. A listener
//! checks of each event that it continues its stream and its driver, and reads when it was made.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{BufMut, BytesMut};
use serde::Serialize;
use tailwater_broadcast::Writer;
use tailwater_client::broadcast::{Collect, Content, Listener, Positions, Publisher, Stream};
use tailwater_env::Env;
use tailwater_load::child::Child;
use tailwater_load::clock::{cpu_of, monotonic_ns};
use tailwater_load::interrupt;
use tailwater_load::measuring::{LoadSwitch, RunMeter, until};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, round};
use tailwater_load::system::{Workspace, free_address};
use tokio::runtime::Runtime;

use super::hearing::{EventsHeard, HearingReceive, PAYLOAD_BYTES, listen};
use super::node::Node;

/// How long the proxies may take to carry the first event everywhere, and the last ones.
const SETTLE: Duration = Duration::from_secs(60);

/// Flags of `bench broadcast 4`.
#[derive(clap::Args)]
pub struct Args {
    /// Proxies, each of a region of its own.
    #[arg(long, default_value_t = 3)]
    proxies: usize,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    duration_s: u64,
    /// How long to warm up, in seconds.
    #[arg(long, default_value_t = 3)]
    warmup_s: u64,
    /// Drivers for each proxy. Each waits for a batch's answer before it publishes the next batch.
    #[arg(long, default_value_t = 4)]
    drivers: u16,
    /// Events of a batch.
    #[arg(long, default_value_t = 2000)]
    batch: u32,
    /// Each event collects the events that are more than this many before it. The paper has 100,000,000, which takes
    /// much memory.
    #[arg(long, default_value_t = 2_000_000)]
    keep_last: u64,
    /// How a listener takes what comes: each event by `get_event`, or whole batches with their events in place.
    #[arg(long, value_enum, default_value_t = HearingReceive::GetEvent)]
    receive: HearingReceive,
    /// Where a proxy keeps an event before it counts it as held. The paper's proxies keep it in memory.
    #[arg(long, default_value = "memory", value_parser = ["memory", "interval", "fsync"])]
    durability: String,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Serialize)]
struct DelayMs {
    p50: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct Outcome {
    proxies: usize,
    drivers: u16,
    batch: u32,
    keep_last: u64,
    durability: String,
    receive: HearingReceive,
    /// Events a second that were published and heard in every region.
    events_per_s: f64,
    published: u64,
    /// In all regions, of events of which a tombstone was heard: those of a listener that fell behind by more than
    /// `keep_last`.
    collected: u64,
    lost: u64,
    reordered: u64,
    /// From before an event was published to after it was heard in a region.
    delay_ms: DelayMs,
    /// Cores that the proxies took, and the drivers and listeners.
    cores: BTreeMap<&'static str, f64>,
}

/// What all drivers and listeners have in common.
pub(super) struct Run {
    began_ns: u64,
    pub(super) switch: LoadSwitch,
    /// Events that were acknowledged.
    published: AtomicU64,
}

impl Run {
    /// Microseconds since the run began; they wrap around after an hour.
    pub(super) fn now_us(&self) -> u32 {
        ((monotonic_ns() - self.began_ns) / 1000) as u32
    }
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    ensure!((1..=9).contains(&args.proxies), "--proxies is from 1 to 9");
    ensure!(
        args.batch > 0 && args.drivers > 0 && args.duration_s > 0,
        "--batch, --drivers and --duration-s are from 1 on"
    );
    interrupt::listen()?;
    let workspace = Workspace::create(None, false)?;
    let addresses = (0..args.proxies).map(|_| free_address()).collect::<anyhow::Result<Vec<_>>>()?;
    let proxies = (0..args.proxies)
        .map(|number| start_proxy(number, &addresses, &args.durability, workspace.path()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = measure(&args, &runtime, &addresses, proxies)?;
    report::print(args.output, &outcome)?;
    ensure!(outcome.lost == 0 && outcome.reordered == 0, "events were lost or reordered");
    Ok(())
}

/// A proxy of a region of its own.
pub(super) fn start_proxy(
    number: usize,
    addresses: &[SocketAddr],
    durability: &str,
    dir: &std::path::Path,
) -> anyhow::Result<Child> {
    let others = addresses.iter().enumerate().filter(|(other, _)| *other != number);
    let regions: Vec<String> = others.map(|(other, at)| format!("r{other} = [\"{at}\"]")).collect();
    let broadcast = format!(
        "listen = \"{}\"\nregion = \"r{number}\"\ndurability = \"{durability}\"\n[broadcast.regions]\n{}",
        addresses[number],
        regions.join("\n"),
    );
    Node::prepare(&format!("proxy-{number}"), dir, &broadcast)?.start()
}

fn measure(
    args: &Args,
    runtime: &Runtime,
    addresses: &[SocketAddr],
    mut proxies: Vec<Child>,
) -> anyhow::Result<Outcome> {
    // Listeners and publishers begin their tasks where they are made.
    let _inside = runtime.enter();
    let env = Env::real();
    let run = Arc::new(Run {
        began_ns: monotonic_ns(),
        switch: LoadSwitch::default(),
        published: AtomicU64::new(0),
    });
    let streams: Vec<Stream> =
        (0..args.proxies).map(|n| Stream::parse(&format!("r{n}/events"))).collect::<Result<_, _>>()?;
    let (mut heard, mut listening) = (Vec::new(), Vec::new());
    for at in addresses {
        let listener = Listener::new(&env, vec![at.to_string()], Positions::start());
        let of_this = Arc::new(EventsHeard::default());
        heard.push(Arc::clone(&of_this));
        let run = Arc::clone(&run);
        listening.push(tokio::spawn(listen(listener, args.receive, of_this, run, args.drivers)));
    }
    let mut driving = Vec::new();
    for (at, stream) in addresses.iter().zip(&streams) {
        for driver in 0..args.drivers {
            let publisher = Publisher::new(&env, vec![at.to_string()]);
            let (stream, run) = (stream.clone(), Arc::clone(&run));
            driving.push(tokio::spawn(drive(publisher, stream, driver, args.batch, args.keep_last, run)));
        }
    }
    // Until every region hears something of every stream the run has not begun.
    wait(&mut proxies, "the first events are heard everywhere", || {
        heard.iter().all(|h| h.streams.load(Ordering::Relaxed) == args.proxies as u64)
    })?;
    let counters = |proxies: &Vec<Child>| {
        let least = heard.iter().map(|h| h.events.load(Ordering::Relaxed)).min().unwrap_or(0);
        let own = cpu_of(std::process::id()).unwrap_or_default();
        let cpu: Duration = proxies.iter().map(Child::cpu).sum();
        [least as f64, cpu.as_secs_f64(), own.as_secs_f64()]
    };
    let meter = RunMeter::start(Duration::from_secs(args.warmup_s), Duration::from_secs(args.duration_s));
    let metered = meter
        .pass(&run.switch, &mut proxies, counters, |proxies| proxies.iter_mut().try_for_each(Child::check))?;
    let [events_per_s, cores, own_cores] = metered.per_s(2);
    for driver in driving {
        runtime.block_on(driver).context("a driver")??;
    }
    let published = run.published.load(Ordering::Relaxed);
    let all = wait(&mut proxies, "the last events are heard everywhere", || {
        heard.iter().all(|h| h.all() >= published)
    });
    if let Err(error) = all {
        eprintln!("{error:#}");
    }
    let mut delays = Durations::default();
    for of_one in &heard {
        delays.add(&of_one.delays.lock().expect("no listener panics"));
    }
    let missing = |h: &Arc<EventsHeard>| published.saturating_sub(h.all());
    for task in listening {
        if task.is_finished() {
            runtime.block_on(task).context("a listener")?.context("a listener has ended")?;
        } else {
            task.abort();
        }
    }
    let percentiles = delays.percentiles_ms();
    Ok(Outcome {
        proxies: args.proxies,
        drivers: args.drivers,
        batch: args.batch,
        keep_last: args.keep_last,
        durability: args.durability.clone(),
        receive: args.receive,
        events_per_s: round(events_per_s, 0),
        published,
        collected: heard.iter().map(|h| h.collected.load(Ordering::Relaxed)).sum(),
        lost: heard.iter().map(missing).sum(),
        reordered: heard.iter().map(|h| h.reordered.load(Ordering::Relaxed)).sum(),
        delay_ms: DelayMs { p50: percentiles.p50, p99: percentiles.p99, max: percentiles.max },
        cores: BTreeMap::from([("proxies", cores), ("drivers_and_listeners", own_cores)]),
    })
}

/// Waits for a condition, while all proxies live.
fn wait(proxies: &mut [Child], what: &str, holds: impl Fn() -> bool) -> anyhow::Result<()> {
    until(what, SETTLE, || {
        proxies.iter_mut().try_for_each(Child::check)?;
        Ok(holds().then_some(()))
    })
}

/// Publishes batch after batch.
async fn drive(
    publisher: Publisher,
    stream: Stream,
    driver: u16,
    batch: u32,
    keep_last: u64,
    run: Arc<Run>,
) -> anyhow::Result<()> {
    let collect = Collect::KeepLast(keep_last);
    let mut number = 0u32;
    while !run.switch.is_stopping() {
        let mut payloads = BytesMut::with_capacity(PAYLOAD_BYTES * batch as usize);
        let made_us = run.now_us();
        for _ in 0..batch {
            payloads.put_u32_le(number);
            payloads.put_u16_le(driver);
            payloads.put_u32_le(made_us);
            number = number.wrapping_add(1);
        }
        let payloads = payloads.freeze();
        let mut writer = Writer::new(0);
        for at in (0..payloads.len()).step_by(PAYLOAD_BYTES) {
            let payload = payloads.slice(at..at + PAYLOAD_BYTES);
            writer.publish(&Content { payload, ..Content::default() }, Some(&collect))?;
        }
        publisher.publish_batch(&stream, writer.finish(0)).await?;
        run.published.fetch_add(u64::from(batch), Ordering::Relaxed);
    }
    Ok(())
}
