//! One region on real connections: a node, a publisher with a rate, and listeners that share events with each other
//! (section 3.2), in processes of up to 500.
//!
//! Every event carries when it was about to be published; a listener reads the clock when it has been handed it, and
//! checks that its number follows the last one. All counts are of the measured time but for those of lost events,
//! which are of the whole run.

mod listeners;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
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
use tailwater_load::messages::{MessageOrder, ShardTotal};
use tailwater_load::report::{self, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{Workspace, free_address};

pub use self::listeners::be_members;
use self::listeners::{ListenerAnswer, MembersHeard};
use super::proxies::start_proxy;

/// Publishes that are not answered; beyond it the publisher falls behind its rate.
const UNANSWERED_MAX: usize = 2_000;

/// Flags of `bench broadcast members`.
#[derive(clap::Args)]
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
    let (sender, answers) = channel();
    let mut listeners = Vec::new();
    let mut left = args.clients;
    for number in 0..args.processes {
        let count = left.div_ceil(args.processes - number);
        left -= count;
        let name = format!("listeners-{number}");
        let mut child =
            Child::start_worker(&name, &["bench", "worker"], workspace.path(), number, sender.clone())?;
        let (addresses, stream) = (vec![address.to_string()], "r0/events".to_owned());
        child.tell(&MembersConfig { addresses, stream, count, protocol: args.protocol.clone() })?;
        listeners.push(child);
    }
    drop(sender);
    let mut bench = Bench { args, proxy, listeners, answers };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let outcome = bench.measure(&runtime, &address.to_string())?;
    report::print(args.output, &outcome)?;
    ensure!(outcome.lost == 0 && outcome.reordered == 0, "events were lost or reordered");
    Ok(())
}

struct Bench<'a> {
    args: &'a Args,
    proxy: Child,
    listeners: Vec<Child>,
    answers: Receiver<(usize, Option<ListenerAnswer>)>,
}

impl Bench<'_> {
    fn measure(&mut self, runtime: &tokio::runtime::Runtime, address: &str) -> anyhow::Result<Outcome> {
        let args = self.args;
        self.gather(READY_DEADLINE, |answer| matches!(answer, ListenerAnswer::Ready).then_some(()))?;
        let publisher = {
            // Its task is spawned in there.
            let _inside = runtime.enter();
            Publisher::new(&Env::real(), vec![address.to_owned()])
        };
        let begin_ns = monotonic_ns();
        let from_ns = begin_ns + args.warmup_s() * 1_000_000_000;
        let until_ns = from_ns + args.duration_s * 1_000_000_000;
        self.tell(&MessageOrder::Measure { from_ns })?;
        let publishing = runtime.spawn(publish(publisher, Load::of(args), begin_ns, until_ns));
        let mut cpu = [Duration::ZERO; 3];
        while monotonic_ns() < until_ns {
            if cpu[0].is_zero() && monotonic_ns() >= from_ns {
                cpu = self.cpu();
            }
            interrupt::check()?;
            self.proxy.check()?;
            self.listeners.iter_mut().try_for_each(Child::check)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        let now = self.cpu();
        let cores = |which: usize| round((now[which] - cpu[which]).as_secs_f64() / args.duration_s as f64, 2);
        let cores = Cores { proxy: cores(0), publisher: cores(1), listeners: cores(2) };
        let published = runtime.block_on(publishing).context("the publisher")??;
        let total = ShardTotal { records: published.all, checksums: 0 };
        self.tell(&MessageOrder::Finish { produced: vec![total] })?;
        let heard = self.gather(FINISH_DEADLINE * 2, |answer| match answer {
            ListenerAnswer::Heard(heard) => Some(heard),
            ListenerAnswer::Ready | ListenerAnswer::Failed(_) => None,
        })?;
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

    fn tell(&mut self, order: &MessageOrder) -> anyhow::Result<()> {
        self.listeners.iter_mut().try_for_each(|child| child.tell(order))
    }

    /// CPU time of the node, this process and the listeners so far.
    fn cpu(&self) -> [Duration; 3] {
        let own = cpu_of(std::process::id()).unwrap_or_default();
        [self.proxy.cpu(), own, self.listeners.iter().map(Child::cpu).sum()]
    }

    /// Waits for an answer of each process.
    fn gather<T>(
        &mut self,
        limit: Duration,
        mut take: impl FnMut(ListenerAnswer) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let mut all = BTreeMap::new();
        let begin_ns = monotonic_ns();
        while all.len() < self.listeners.len() {
            interrupt::check()?;
            self.proxy.check()?;
            let waited = Duration::from_nanos(monotonic_ns() - begin_ns);
            ensure!(waited < limit, "the listeners did not answer within {limit:?}");
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok((number, Some(ListenerAnswer::Failed(error)))) => {
                    anyhow::bail!("listeners-{number}: {error}");
                }
                Ok((number, Some(answer))) => all.extend(take(answer).map(|taken| (number, taken))),
                // One that gave its last answer ends, and maybe before others have answered.
                Ok((number, None)) if all.contains_key(&number) => {}
                Ok((number, None)) => return Err(self.listeners[number].failure("has ended")),
                Err(_) => {}
            }
        }
        Ok(all.into_values().collect())
    }
}

struct Load {
    stream: Stream,
    rate: f64,
    event_bytes: usize,
    every: Duration,
    warmup_ns: u64,
}

impl Load {
    fn of(args: &Args) -> Self {
        Self {
            stream: Stream::parse("r0/events").expect("a stream's name"),
            rate: args.rate,
            event_bytes: args.event_bytes,
            every: Duration::from_micros(args.every_us),
            warmup_ns: args.warmup_s() * 1_000_000_000,
        }
    }

    /// How many events are due `elapsed_s` seconds after the beginning.
    fn due_by(&self, elapsed_s: f64) -> u64 {
        let rise_s = self.warmup_ns as f64 / 2e9;
        let full_s =
            if elapsed_s < rise_s { elapsed_s * elapsed_s / rise_s / 2.0 } else { elapsed_s - rise_s / 2.0 };
        (full_s * self.rate) as u64
    }
}

/// How many events were published.
#[derive(Default)]
struct MembersPublished {
    all: u64,
    measured: u64,
}

/// Publishes what is due, until the time is over and all is acknowledged.
async fn publish(
    publisher: Publisher,
    load: Load,
    begin_ns: u64,
    until_ns: u64,
) -> anyhow::Result<MembersPublished> {
    let mut published = MembersPublished::default();
    let mut answers = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(load.every);
    let mut payload = vec![0; load.event_bytes];
    loop {
        ticks.tick().await;
        let now_ns = monotonic_ns();
        if now_ns >= until_ns {
            break;
        }
        let due = load.due_by((now_ns - begin_ns) as f64 / 1e9) - published.all;
        if due > 0 {
            payload[..8].copy_from_slice(&now_ns.to_le_bytes());
            let content = Content { payload: Bytes::copy_from_slice(&payload), ..Content::default() };
            let mut writer = Writer::new(0);
            for _ in 0..due {
                writer.publish(&content, None)?;
            }
            answers.push(publisher.publish_batch(&load.stream, writer.finish(0)));
            published.all += due;
            published.measured += if now_ns >= begin_ns + load.warmup_ns { due } else { 0 };
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
        let load = |warmup_s: u64| Load {
            stream: Stream::parse("r0/events").expect("a stream's name"),
            rate: 1_000.0,
            event_bytes: 8,
            every: Duration::from_millis(2),
            warmup_ns: warmup_s * 1_000_000_000,
        };
        assert_eq!(
            [0.0, 5.0, 10.0, 20.0, 30.0].map(|at| load(20).due_by(at)),
            [0, 1_250, 5_000, 15_000, 25_000]
        );
        assert_eq!(load(0).due_by(2.0), 2_000);
    }
}
