//! One region on real connections: a node, a publisher with a rate, and listeners that share events with each other
//! (section 3.2), in processes of up to 500.
//!
//! Every event carries when it was about to be published; a listener reads the clock when it has been handed it, and
//! checks that its number follows the last one. All counts are of the measured time but for those of lost events,
//! which are of the whole run.

mod listeners;

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tailwater_broadcast::Writer;
use tailwater_client::broadcast::{Content, Publisher, RegionOptions, Stream};
use tailwater_env::Env;
use tailwater_load::child::Child;
use tailwater_load::clock::{cpu_of, monotonic_ns};
use tailwater_load::interrupt;
use tailwater_load::limits::{CONSUMERS_PER_PROCESS, FINISH_DEADLINE, READY_DEADLINE};
use tailwater_load::measuring::{LoadSwitch, RunMeter, RunTimes};
use tailwater_load::messages::{MessageOrder, ShardTotal};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{Workspace, free_address};
use tailwater_load::workers::Workers;

pub use self::listeners::be_members;
use self::listeners::{ListenerAnswer, MembersHeard};
use super::proxies::start_proxy;

/// Publishes that are not answered; beyond it the publisher falls behind its rate.
const UNANSWERED_MAX: usize = 2_000;

/// Flags of `bench broadcast members`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Listeners.
    #[arg(long, default_value_t = 1_000)]
    clients: usize,
    /// Processes over which the listeners are spread.
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// Events a second.
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    duration_s: u64,
    /// How long to warm up, in seconds. In the first half the rate rises to what it will be, so that listeners find
    /// each other before they have much to carry. By default 40 for 1,000 clients, in proportion for more or fewer, and
    /// at least 3.
    #[arg(long)]
    warmup_s: Option<u64>,
    /// Bytes of an event, from 8.
    #[arg(long, default_value_t = 16)]
    event_bytes: usize,
    /// How often due events are published, in microseconds.
    #[arg(long, default_value_t = 2_000)]
    every_us: u64,
    /// What the node does with an event before it is acknowledged: `memory`, `interval` or `fsync`.
    #[arg(long, default_value = "interval")]
    durability: String,
    /// A directory on the disk that the node writes to, in which one is made and removed again.
    #[arg(long, value_name = "DIR")]
    dir: Option<std::path::PathBuf>,
    #[command(flatten)]
    protocol: MembersProtocol,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

impl Args {
    fn warmup_s(&self) -> u64 {
        self.warmup_s.unwrap_or_else(|| (self.clients as u64 / 25).max(3))
    }
}

/// What a listener does; if nothing is said what the library does.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
struct MembersProtocol {
    /// Do not share at all: the node sends everything to each listener.
    #[arg(long)]
    proxy_alone: bool,
    /// Connect through TCP, though all listeners are on one host.
    #[arg(long)]
    tcp: bool,
    /// Members of a view, at most.
    #[arg(long, default_value_t = RegionOptions::default().view_max)]
    view: usize,
    /// Members that are told of news between two shuffles.
    #[arg(long, default_value_t = RegionOptions::default().fanout)]
    fanout: usize,
    /// Members that a listener feeds with what comes. 0 is the paper's protocol.
    #[arg(long, default_value_t = RegionOptions::default().feeds)]
    feeds: usize,
    /// Milliseconds after which others are told of news.
    #[arg(long, default_value_t = RegionOptions::default().shuffle_ms)]
    shuffle_ms: u64,
    /// Milliseconds between two messages about news to one member at least.
    #[arg(long, default_value_t = RegionOptions::default().notify_ms)]
    notify_ms: u64,
    /// Milliseconds between two exchanges of views.
    #[arg(long, default_value_t = RegionOptions::default().gossip_ms)]
    gossip_ms: u64,
    /// Milliseconds after which a request is given up. The node is given four times as long.
    #[arg(long, default_value_t = RegionOptions::default().request_timeout_ms)]
    request_timeout_ms: u64,
    /// KiB of events that a listener asks for at once.
    #[arg(long, default_value_t = RegionOptions::default().request_bytes >> 10)]
    request_kib: usize,
    /// KiB of events that a listener keeps for others.
    #[arg(long, default_value_t = RegionOptions::default().recv_bytes >> 10)]
    recv_kib: usize,
    /// Connections that a listener makes, and as many that it takes. By default as many as fit, up to 64.
    #[arg(long)]
    links_max: Option<usize>,
}

/// A process full of listeners.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MembersConfig {
    addresses: Vec<String>,
    stream: String,
    count: usize,
    protocol: MembersProtocol,
}

#[derive(Serialize)]
struct Outcome {
    clients: usize,
    processes: usize,
    rate: f64,
    warmup_s: u64,
    protocol: MembersProtocol,
    /// Events a second that were published, and that a listener got.
    published_per_s: f64,
    delivered_per_s: f64,
    /// Over the whole run: events published, and those times the listeners that these got or did not get.
    published: u64,
    delivered: u64,
    lost: u64,
    reordered: u64,
    /// From before an event was published to after a listener was handed it.
    delay_ms: PercentilesMs,
    /// Of the events that listeners got over the whole run, the part that the node sent.
    from_proxy: f64,
    requests_to_proxy: u64,
    requests_to_peers: u64,
    timeouts: u64,
    duplicates: u64,
    /// Times that another member began to feed a listener.
    moves: u64,
    /// At the end: listeners that are fed, and members that the one farthest from the node has between, itself
    /// included.
    fed: usize,
    hops_max: u8,
    /// Members that a listener knows at least, and connections to others on average.
    view_min: usize,
    links_mean: f64,
    /// Cores that the node, the publisher and the listeners took.
    cores: Cores,
}

#[derive(Serialize)]
struct Cores {
    proxy: f64,
    publisher: f64,
    listeners: f64,
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.clients > 0 && args.processes > 0 && args.duration_s > 0,
        "--clients, --processes and --duration-s are from 1 on"
    );
    let each = args.clients.div_ceil(args.processes);
    ensure!(
        each <= CONSUMERS_PER_PROCESS,
        "a process has at most {CONSUMERS_PER_PROCESS} clients: give --processes {}",
        args.clients.div_ceil(CONSUMERS_PER_PROCESS)
    );
    ensure!(args.event_bytes >= 8 && args.every_us > 0, "--event-bytes is from 8, --every-us from 1");
    interrupt::listen()?;
    let workspace = Workspace::create(args.dir.as_deref(), false)?;
    let address = free_address()?;
    let proxy = start_proxy(0, &[address], &args.durability, workspace.path())?;
    let mut listeners = Workers::default();
    let mut left = args.clients;
    for number in 0..args.processes {
        let count = left.div_ceil(args.processes - number);
        left -= count;
        let (addresses, stream) = (vec![address.to_string()], "r0/events".to_owned());
        let role = MembersConfig { addresses, stream, count, protocol: args.protocol.clone() };
        listeners.start(&format!("listeners-{number}"), &["bench", "worker"], workspace.path(), &role)?;
    }
    let mut bench = Bench { args, proxy, listeners };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let outcome = bench.measure(&runtime, &address.to_string())?;
    report::print(args.output, &outcome)?;
    ensure!(outcome.lost == 0 && outcome.reordered == 0, "events were lost or reordered");
    Ok(())
}

struct Bench<'a> {
    args: &'a Args,
    proxy: Child,
    listeners: Workers<ListenerAnswer>,
}

impl Bench<'_> {
    fn measure(&mut self, runtime: &tokio::runtime::Runtime, address: &str) -> anyhow::Result<Outcome> {
        let args = self.args;
        let Self { proxy, listeners, .. } = self;
        let is_ready = |answer| matches!(answer, ListenerAnswer::Ready).then_some(());
        listeners.gather(READY_DEADLINE, || proxy.check(), is_ready)?;
        let publisher = {
            // Its task is spawned in there.
            let _inside = runtime.enter();
            Publisher::new(&Env::real(), vec![address.to_owned()])
        };
        let meter =
            RunMeter::start(Duration::from_secs(args.warmup_s()), Duration::from_secs(args.duration_s));
        let times = meter.times();
        self.listeners.tell(&MessageOrder::Measure { from_ns: times.from_ns })?;
        let publishing = runtime.spawn(publish(publisher, args.clone(), times));
        let metered = meter.pass(&LoadSwitch::default(), self, Self::cpu, |bench| {
            bench.proxy.check()?;
            bench.listeners.check()
        })?;
        let [proxy, publisher, listeners] = metered.per_s(2);
        let cores = Cores { proxy, publisher, listeners };
        let published = runtime.block_on(publishing).context("the publisher")??;
        let total = ShardTotal { records: published.all, checksums: 0 };
        let Self { proxy, listeners, .. } = self;
        listeners.tell(&MessageOrder::Finish { produced: vec![total] })?;
        let heard = listeners.gather(
            FINISH_DEADLINE * 2,
            || proxy.check(),
            |answer| match answer {
                ListenerAnswer::Heard(heard) => Some(heard),
                ListenerAnswer::Ready => None,
            },
        )?;
        let mut all = MembersHeard::default();
        let mut delays = Durations::default();
        for heard in &heard {
            delays.add_sparse(&heard.delays);
            all.add(heard);
        }
        let seconds = args.duration_s as f64;
        let wanted = published.all * args.clients as u64;
        Ok(Outcome {
            clients: args.clients,
            processes: args.processes,
            rate: args.rate,
            warmup_s: args.warmup_s(),
            protocol: args.protocol.clone(),
            published_per_s: round(published.measured as f64 / seconds, 0),
            delivered_per_s: round(all.measured as f64 / args.clients as f64 / seconds, 0),
            published: published.all,
            delivered: all.delivered,
            lost: wanted.saturating_sub(all.delivered),
            reordered: all.reordered,
            delay_ms: delays.percentiles_ms(),
            from_proxy: match args.protocol.proxy_alone {
                true => 1.0,
                false => round(all.from_proxy as f64 / all.delivered.max(1) as f64, 4),
            },
            requests_to_proxy: all.requests_to_proxy,
            requests_to_peers: all.requests_to_peers,
            timeouts: all.timeouts,
            duplicates: all.duplicates,
            moves: all.moves,
            fed: all.fed,
            hops_max: heard.iter().map(|heard| heard.hops_max).max().unwrap_or(0),
            view_min: heard.iter().map(|heard| heard.view_min).min().unwrap_or(0),
            links_mean: round(all.links as f64 / args.clients as f64, 1),
            cores,
        })
    }

    /// CPU seconds of the node, this process and the listeners so far.
    fn cpu(&self) -> [f64; 3] {
        let own = cpu_of(std::process::id()).unwrap_or_default();
        let listeners = self.listeners.children().iter().map(Child::cpu).sum();
        [self.proxy.cpu(), own, listeners].map(|cpu: Duration| cpu.as_secs_f64())
    }
}

/// How many events are due `elapsed_s` seconds after the beginning, of a rate that rises for `rise_s` seconds.
fn due_by(rate: f64, rise_s: f64, elapsed_s: f64) -> u64 {
    let full_s =
        if elapsed_s < rise_s { elapsed_s * elapsed_s / rise_s / 2.0 } else { elapsed_s - rise_s / 2.0 };
    (full_s * rate) as u64
}

/// How many events were published.
#[derive(Default)]
struct MembersPublished {
    all: u64,
    measured: u64,
}

/// Publishes what is due, until the time is over and all is acknowledged.
async fn publish(publisher: Publisher, args: Args, times: RunTimes) -> anyhow::Result<MembersPublished> {
    let stream = Stream::parse("r0/events")?;
    let mut published = MembersPublished::default();
    let mut answers = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(Duration::from_micros(args.every_us));
    let mut payload = vec![0; args.event_bytes];
    loop {
        ticks.tick().await;
        let now_ns = monotonic_ns();
        if now_ns >= times.until_ns {
            break;
        }
        let elapsed_s = (now_ns - times.begin_ns) as f64 / 1e9;
        let due = due_by(args.rate, args.warmup_s() as f64 / 2.0, elapsed_s) - published.all;
        if due > 0 {
            payload[..8].copy_from_slice(&now_ns.to_le_bytes());
            let content = Content { payload: Bytes::copy_from_slice(&payload), ..Content::default() };
            let mut writer = Writer::new(0);
            for _ in 0..due {
                writer.publish(&content, None)?;
            }
            answers.push(publisher.publish_batch(&stream, writer.finish(0)));
            published.all += due;
            published.measured += if now_ns >= times.from_ns { due } else { 0 };
        }
        while answers.len() > UNANSWERED_MAX
            && let Some(answer) = answers.next().await
        {
            answer?;
        }
        while let Some(Some(answer)) = futures::FutureExt::now_or_never(answers.next()) {
            answer?;
        }
    }
    while let Some(answer) = answers.next().await {
        answer?;
    }
    Ok(published)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_for_half_of_the_warm_up_and_is_then_what_was_asked_for() {
        let due = [0.0, 5.0, 10.0, 20.0, 30.0].map(|at| due_by(1_000.0, 10.0, at));
        assert_eq!(due, [0, 1_250, 5_000, 15_000, 25_000]);
        assert_eq!(due_by(1_000.0, 0.0, 2.0), 2_000);
    }
}
