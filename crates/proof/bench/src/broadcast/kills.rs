//! A region's chain whose replicas are killed in turn under load.
//!
//! Three replicas, each a process; publishers at a rate, and a listener that follows them. The chain's middle, its tail
//! and its head are killed with -9, each once the one before it is a whole member again, and started again: in one turn
//! once the chain has gone on without the dead one, in the next at once. A replica that comes back becomes the tail. So
//! after each kill everything there is is read from the beginning, which is what that replica has kept on its disk and
//! was sent since, and compared with what was heard when it was published.

mod heard;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use serde::{Deserialize, Serialize};
use tailwater_client::broadcast::{
    Acknowledged, Collect, Content, Listener, Positions, Publisher, Received, Stream,
};
use tailwater_env::Env;
use tailwater_load::child::Child;
use tailwater_load::clock::monotonic_ns;
use tailwater_load::interrupt;
use tailwater_load::limits::READY_DEADLINE;
use tailwater_load::measuring::until;
use tailwater_load::messages::FaultFlags;
use tailwater_load::report::{self, ProgressLine, ReportFormat};
use tailwater_load::stats::{Durations, PercentilesMs, round};
use tailwater_load::system::{WorkspaceArgs, free_address};
use tokio::task::JoinHandle;

use self::heard::{HeardOrigin, KillsHeard};
use super::node::Node;

const REPLICAS: usize = 3;
/// The one that keeps the chain; while it is down the chain works as it is.
const CONFIGURATION: usize = 0;
/// What is killed, in this order.
const TURN: [KillsPlace; 3] = [KillsPlace::Middle, KillsPlace::Tail, KillsPlace::Head];
/// Events that have to come before the next thing happens, so that there is load all the time.
const MORE: u64 = 100;
/// Events of one publisher that are not answered; beyond it it falls behind its rate.
const UNANSWERED_MAX: usize = 10_000;
/// How often a publisher publishes what is due.
const TICK: Duration = Duration::from_millis(5);

/// Flags of `bench broadcast kills`.
#[derive(clap::Args)]
pub struct Args {
    /// How long to go on, in seconds. The turn of kills that is under way then is brought to its end.
    #[arg(long, default_value_t = 120)]
    duration_s: u64,
    /// Events a second, of all publishers together.
    #[arg(long, default_value_t = 2_000.0)]
    rate: f64,
    /// Publishers, all in one stream.
    #[arg(long, default_value_t = 2)]
    publishers: u16,
    /// Each event collects the events that are more than this many before it. So long runs need no more memory than
    /// short ones.
    #[arg(long, default_value_t = 200_000)]
    keep_last: u64,
    /// What a replica does with an event before it counts as held: `memory`, `interval` or `fsync`.
    #[arg(long, default_value = "interval", value_parser = ["memory", "interval", "fsync"])]
    durability: String,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum KillsPlace {
    Head,
    Middle,
    Tail,
}

#[derive(Serialize)]
struct Outcome {
    durability: String,
    rate: f64,
    seconds: f64,
    kills: u64,
    /// Events that were acknowledged.
    published: u64,
    /// Events that the listener got.
    delivered: u64,
    lost: u64,
    reordered: u64,
    duplicated: u64,
    /// Events that were acknowledged with another event's number.
    misnumbered: u64,
    /// How often everything was read from the beginning, and events that were others then, or were gone.
    read_again: u64,
    differing: u64,
    /// The longest time in which nothing was heard.
    longest_pause_ms: f64,
    /// By what was killed, of the longest such time of each kill.
    pauses_ms: BTreeMap<KillsPlace, Pauses>,
    /// From publishing an event to its acknowledgement.
    ack_ms: PercentilesMs,
    /// From before an event was published to after it was heard.
    delay_ms: PercentilesMs,
}

#[derive(Default, Serialize)]
struct Pauses {
    kills: u64,
    mean: f64,
    max: f64,
}

impl Pauses {
    fn add(&mut self, pause: Duration) {
        let ms = pause.as_secs_f64() * 1e3;
        self.mean = round((self.mean * self.kills as f64 + ms) / (self.kills + 1) as f64, 1);
        self.kills += 1;
        self.max = self.max.max(round(ms, 1));
    }
}

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rate > 0.0 && args.publishers > 0, "--rate and --publishers are more than 0");
    interrupt::listen()?;
    let workspace = args.workspace.create()?;
    let mut bench = Bench {
        region: Region::start(&args.durability, workspace.path())?,
        shared: Arc::new(KillsShared::new(args)),
        runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
        publishing: Vec::new(),
    };
    let outcome = bench.measure(args)?;
    report::print(args.output, &outcome)?;
    let faults =
        [outcome.lost, outcome.reordered, outcome.duplicated, outcome.misnumbered, outcome.differing];
    ensure!(faults == [0; 5], "events were lost, reordered, repeated, or are others now");
    Ok(())
}

/// The replicas.
struct Region {
    nodes: Vec<Node>,
    /// `None` while it is dead.
    children: Vec<Option<Child>>,
    addresses: Vec<String>,
}

/// Of `GET /v1/broadcast`.
#[derive(Deserialize)]
struct ChainView {
    epoch: u64,
    chain: Vec<SeenMemberView>,
}

#[derive(Deserialize)]
struct SeenMemberView {
    address: String,
    role: String,
}

impl Region {
    /// Starts them one after another, each once the one before it is in the chain.
    fn start(durability: &str, dir: &Path) -> anyhow::Result<Self> {
        let mut region = Self { nodes: Vec::new(), children: Vec::new(), addresses: Vec::new() };
        for _ in 0..REPLICAS {
            region.addresses.push(free_address()?.to_string());
        }
        for number in 0..REPLICAS {
            let broadcast = format!(
                "listen = \"{}\"\nregion = \"r0\"\nconfiguration = \"{}\"\ndurability = \"{durability}\"",
                region.addresses[number], region.addresses[CONFIGURATION],
            );
            let node = Node::prepare(&format!("replica-{number}"), dir, &broadcast)?;
            region.children.push(Some(node.start()?));
            region.nodes.push(node);
            region.wait("the replica is taken into the chain", |region| {
                Ok(region.chain(number).is_some_and(|(_, chain)| chain.len() == number + 1))
            })?;
        }
        Ok(region)
    }

    /// The chain as a replica knows it, which is a member of it: its epoch, and the addresses, head first.
    fn chain(&self, number: usize) -> Option<(u64, Vec<String>)> {
        let view: ChainView = self.nodes[number].ask("/v1/broadcast")?;
        let members = view.chain.into_iter().filter(|member| member.role != "joining");
        let members: Vec<String> = members.map(|member| member.address).collect();
        members.contains(&self.addresses[number]).then_some((view.epoch, members))
    }

    /// The chain of all three, if they agree about it.
    fn whole(&self) -> Option<Vec<String>> {
        let (epoch, chain) = self.chain(CONFIGURATION).filter(|(_, chain)| chain.len() == REPLICAS)?;
        let agrees = |number| self.chain(number).is_some_and(|(other, _)| other == epoch);
        (0..REPLICAS).all(agrees).then_some(chain)
    }

    /// Whether all three hold the only stream up to a number.
    fn hold(&self, seq: u64) -> bool {
        self.nodes.iter().all(|node| {
            node.streams().is_some_and(|streams| streams.first().is_some_and(|stream| stream.held >= seq))
        })
    }

    /// Waits for a condition, while all who are not dead live.
    fn wait(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let waited = until(what, READY_DEADLINE, || {
            self.children.iter_mut().flatten().try_for_each(Child::check)?;
            Ok(holds(self)?.then_some(()))
        });
        waited.with_context(|| {
            let chains: Vec<_> = (0..self.nodes.len()).map(|number| self.chain(number)).collect();
            format!("the replicas' chains are {chains:?}")
        })
    }
}

/// What publishers, the listener and who kills have in common.
struct KillsShared {
    stream: Stream,
    heard: Mutex<KillsHeard>,
    /// Events that publishers were given so far.
    given: AtomicU64,
    stopping: AtomicBool,
}

impl KillsShared {
    fn new(args: &Args) -> Self {
        Self {
            stream: Stream::parse("r0/events").expect("a stream's name"),
            heard: Mutex::new(KillsHeard::new(args.publishers.into())),
            given: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    fn heard(&self) -> MutexGuard<'_, KillsHeard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Bench {
    region: Region,
    shared: Arc<KillsShared>,
    runtime: tokio::runtime::Runtime,
    publishing: Vec<JoinHandle<anyhow::Result<KillsPublished>>>,
}

impl Bench {
    fn measure(&mut self, args: &Args) -> anyhow::Result<Outcome> {
        let begin_ns = monotonic_ns();
        let elapsed = || Duration::from_nanos(monotonic_ns() - begin_ns);
        let following = self.begin(args);
        self.wait_to_hear(MORE)?;
        let mut pauses_ms = BTreeMap::<KillsPlace, Pauses>::new();
        let (mut kills, mut differing) = (0, 0);
        let mut shown = ProgressLine::default();
        for turn in 0.. {
            for place in TURN {
                // What came before is not its doing.
                self.shared.heard().pause(monotonic_ns());
                self.kill(place, turn % 2 == 1).with_context(|| format!("kill {kills}, of the {place:?}"))?;
                pauses_ms.entry(place).or_default().add(self.shared.heard().pause(monotonic_ns()));
                kills += 1;
                differing += self.read_again(args.keep_last)?;
                let heard = self.shared.heard().last();
                shown.show(&format!("{kills} kills, {heard} events, {differing} differ"));
            }
            if elapsed() >= Duration::from_secs(args.duration_s) {
                break;
            }
        }
        drop(shown);
        self.shared.stopping.store(true, Ordering::Relaxed);
        let published = self.published()?;
        let given: Vec<u64> = published.iter().map(|published| published.answers.len() as u64).collect();
        let shared = Arc::clone(&self.shared);
        let all = self.region.wait("the last events are heard", |_| {
            let heard = shared.heard();
            heard.goes_on()?;
            Ok(heard.is_complete(&given))
        });
        if let Err(error) = all {
            // It counts as lost.
            eprintln!("{error:#}");
        }
        differing += self.read_again(args.keep_last)?;
        following.abort();
        let mut acks = Durations::default();
        published.iter().for_each(|published| acks.add(&published.acks));
        let answers: Vec<Vec<Acknowledged>> =
            published.into_iter().map(|published| published.answers).collect();
        let mut heard = self.shared.heard();
        let misnumbered = heard.finish(&answers);
        let FaultFlags { lost, reordered, duplicated, corrupted } = heard.faults;
        ensure!(corrupted == 0, "the listener got events that no publisher was answered of");
        Ok(Outcome {
            durability: args.durability.clone(),
            rate: args.rate,
            seconds: round(elapsed().as_secs_f64(), 1),
            kills,
            published: given.iter().sum(),
            delivered: heard.last(),
            lost,
            reordered,
            duplicated,
            misnumbered,
            read_again: kills + 1,
            differing,
            longest_pause_ms: pauses_ms.values().map(|pauses| pauses.max).fold(0.0, f64::max),
            pauses_ms,
            ack_ms: acks.percentiles_ms(),
            delay_ms: heard.delays.percentiles_ms(),
        })
    }

    /// Starts the listener and the publishers.
    fn begin(&mut self, args: &Args) -> JoinHandle<()> {
        // Their tasks are spawned in there.
        let _inside = self.runtime.enter();
        let (env, addresses) = (Env::real(), &self.region.addresses);
        let listener = Listener::new(&env, addresses.clone(), Positions::start());
        let following = self.runtime.spawn(follow(listener, Arc::clone(&self.shared)));
        let rate = args.rate / f64::from(args.publishers);
        for number in 0..args.publishers {
            let publisher = Publisher::new(&env, addresses.clone());
            let shared = Arc::clone(&self.shared);
            self.publishing.push(self.runtime.spawn(publish(
                publisher,
                number,
                rate,
                args.keep_last,
                shared,
            )));
        }
        following
    }

    /// Kills whoever is in this place, starts it again, and waits until it is a whole member of the chain.
    fn kill(&mut self, place: KillsPlace, at_once: bool) -> anyhow::Result<()> {
        let mut chain = None;
        self.region.wait("the replicas agree about a chain of three", |region| {
            chain = region.whole();
            Ok(chain.is_some())
        })?;
        let dead = &chain.context("there was a chain")?[place as usize];
        let killed = self.region.addresses.iter().position(|address| address == dead);
        let killed = killed.with_context(|| format!("{dead} is none of the replicas"))?;
        // Dropping it kills it with -9.
        self.region.children[killed] = None;
        if !at_once && killed != CONFIGURATION {
            self.region.wait("the chain goes on without the dead one", |region| {
                let without = |(_, chain): (u64, Vec<String>)| chain.len() == 2 && !chain.contains(dead);
                Ok(region.chain(CONFIGURATION).is_some_and(without))
            })?;
            self.wait_to_hear(MORE)?;
        }
        self.region.children[killed] = Some(self.region.nodes[killed].start()?);
        self.region.wait("the dead one is taken back", |region| {
            Ok(region.whole().is_some_and(|chain| chain.last() == Some(dead)))
        })?;
        // What a replica says of the chain may be old; what it holds of what is published from here on is not.
        self.wait_to_hear(MORE)?;
        let seq = self.shared.heard().last();
        self.region.wait("all hold what is new", |region| Ok(region.whole().is_some() && region.hold(seq)))
    }

    /// Waits until so many more events were heard.
    fn wait_to_hear(&mut self, more: u64) -> anyhow::Result<()> {
        let until = self.shared.heard().last() + more;
        let Self { region, shared, runtime, publishing } = self;
        region.wait("events go on", |_| {
            // None ends before it is told to, but for an error.
            if let Some(ended) = publishing.iter().position(JoinHandle::is_finished) {
                runtime.block_on(publishing.swap_remove(ended)).context("a publisher")??;
                bail!("a publisher has ended");
            }
            let heard = shared.heard();
            heard.goes_on()?;
            Ok(heard.last() >= until)
        })
    }

    /// Reads everything from the beginning; how many events differ from what was heard of them.
    fn read_again(&self, keep_last: u64) -> anyhow::Result<u64> {
        let _inside = self.runtime.enter();
        let listener = Listener::new(&Env::real(), self.region.addresses.clone(), Positions::start());
        let reading = compare(listener, &self.shared, keep_last);
        let read = self.runtime.block_on(async { tokio::time::timeout(READY_DEADLINE, reading).await });
        read.context("what there is could not be read again in time")?
    }

    /// What the publishers were answered, when they have ended.
    fn published(&mut self) -> anyhow::Result<Vec<KillsPublished>> {
        let publishing = std::mem::take(&mut self.publishing);
        self.region.wait("the last events are acknowledged", |_| {
            Ok(publishing.iter().all(JoinHandle::is_finished))
        })?;
        publishing.into_iter().map(|task| self.runtime.block_on(task).context("a publisher")?).collect()
    }
}

/// Hears everything as it comes.
async fn follow(mut listener: Listener, shared: Arc<KillsShared>) {
    loop {
        let received = listener.next().await;
        let mut heard = shared.heard();
        let taken = match received {
            Ok(Received::Events(_, batch)) => heard.take(&batch, monotonic_ns()),
            Ok(Received::Anew { region, .. }) => Err(anyhow::anyhow!("region {region} has begun anew")),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = taken {
            heard.ended = Some(format!("{error:#}"));
            return;
        }
    }
}

/// Reads up to what was heard when it begins.
async fn compare(mut listener: Listener, shared: &KillsShared, keep_last: u64) -> anyhow::Result<u64> {
    let until = shared.heard().last();
    let (mut last, mut differing) = (0, 0);
    while last < until {
        let batch = match listener.next().await? {
            Received::Events(_, batch) => batch,
            Received::Anew { region, .. } => bail!("region {region} has begun anew"),
            _ => continue,
        };
        // An event at `i` collects those before `i - keep_last`.
        let collected = shared.given.load(Ordering::Relaxed).saturating_sub(keep_last);
        let heard = shared.heard();
        for event in batch.events() {
            let event = event?;
            ensure!(event.after() == last, "event {} came after {last}", event.seq);
            last = event.seq;
            differing += if event.after() < until { heard.differing(&event, collected) } else { 0 };
        }
    }
    Ok(differing)
}

/// What one publisher was answered, in the order of its events.
#[derive(Default)]
struct KillsPublished {
    answers: Vec<Acknowledged>,
    acks: Durations,
}

/// Publishes at a rate until it is told to stop and everything is acknowledged.
async fn publish(
    publisher: Publisher,
    number: u16,
    rate: f64,
    keep_last: u64,
    shared: Arc<KillsShared>,
) -> anyhow::Result<KillsPublished> {
    let collect = Collect::KeepLast(keep_last);
    let mut published = KillsPublished::default();
    let mut answers = FuturesOrdered::new();
    let mut ticks = tokio::time::interval(TICK);
    let (begin_ns, mut given) = (monotonic_ns(), 0);
    while !shared.stopping.load(Ordering::Relaxed) {
        tokio::select! {
            biased;
            Some((answer, ack_ns)) = answers.next() => {
                published.answers.push(answer?);
                published.acks.record(ack_ns);
                continue;
            }
            _ = ticks.tick() => {}
        }
        let now_ns = monotonic_ns();
        let due = ((now_ns - begin_ns) as f64 / 1e9 * rate) as u64;
        while given < due && answers.len() < UNANSWERED_MAX {
            let payload = heard::payload(HeardOrigin { publisher: number, number: given }, now_ns);
            let content = Content { payload, ..Content::default() };
            let answer = publisher.publish(&shared.stream, &content, Some(&collect));
            answers.push_back(async move { (answer.await, monotonic_ns() - now_ns) });
            given += 1;
            shared.given.fetch_add(1, Ordering::Relaxed);
        }
    }
    while let Some((answer, ack_ns)) = answers.next().await {
        published.answers.push(answer?);
        published.acks.record(ack_ns);
    }
    Ok(published)
}
