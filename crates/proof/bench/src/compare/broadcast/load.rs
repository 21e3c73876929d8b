//! The load of `tailwater bench broadcast members` for a peer: one publisher with a rate, and subscribers that each get
//! everything and check its numbers, with as little of a client as there can be.
//!
//! ```text
//! event   number u64 | when it was about to be published, CLOCK_MONOTONIC in ns u64 | zeros
//! ```
//!
//! What is due is published every `--every-us`, as one batch where the peer has batches. The subscribers are spread
//! over threads with a connection each. All rates and CPU times are of the measured time; lost events are of the whole
//! run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::BytesMut;
use serde_json::{Value, json};
use tailwater_load::clock::{cpu_of, cpu_of_thread, monotonic_ns};
use tailwater_load::measuring::{LoadSwitch, RunMeter, RunTimes, until};
use tailwater_load::stats::{Durations, round};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::nats::Nats;
use super::redis::Redis;

/// How long subscribers may take to be ready, and behind the last publish how long none of them may get anything, nor
/// the publisher an answer, until what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 64 << 10;
/// The publisher goes on so long behind the measured time, which so ends while everything runs.
const BEHIND_NS: u64 = 100_000_000;

/// Flags.
#[derive(clap::Args, Clone, Copy)]
pub struct Args {
    #[arg(long, value_enum)]
    system: ComparedSystem,
    #[arg(long)]
    port: u16,
    #[arg(long)]
    server_pid: u32,
    #[arg(long)]
    subscribers: usize,
    /// Threads that subscribers are spread over.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Events a second.
    #[arg(long)]
    rate: f64,
    #[arg(long, default_value_t = 2_000)]
    every_us: u64,
    /// From 16 on.
    #[arg(long)]
    event_bytes: usize,
    #[arg(long)]
    warmup_s: u64,
    #[arg(long)]
    duration_s: u64,
}

/// What is loaded.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum ComparedSystem {
    /// NATS without JetStream: nothing is stored.
    NatsCore,
    /// A push consumer of a JetStream stream for each subscriber.
    Jetstream,
    /// Redis's PUBLISH: nothing is stored.
    RedisPubsub,
    /// XADD, and each subscriber's XREAD.
    RedisStreams,
}

impl ComparedSystem {
    /// Events that the publisher has on their way without an answer; beyond it, it falls behind its rate. More suits
    /// Redis, and JetStream drops what is more than 10,000.
    fn unanswered_max(self) -> usize {
        if self == ComparedSystem::Jetstream { 4_096 } else { 16_384 }
    }
}

/// What a connection says, and understands. Each connection has its own.
pub(super) trait LoadWire {
    /// What every connection begins with.
    fn open(&mut self, out: &mut Vec<u8>);
    /// What is said before anything else is done in a run, and how many lines answer it.
    fn prepare(&mut self, out: &mut Vec<u8>) -> usize;
    /// Publishes a batch; how many lines will answer it.
    fn publish<'a>(&mut self, events: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) -> usize;
    /// One line that a publisher got; whether it is one of those that were said to come.
    fn answer(&mut self, line: &[u8], out: &mut Vec<u8>) -> anyhow::Result<bool>;
    /// Subscribes.
    fn subscribe(&mut self, number: usize, out: &mut Vec<u8>);
    /// Takes what a subscriber got out of `received` as far as it is whole.
    fn receive(
        &mut self,
        received: &mut BytesMut,
        out: &mut Vec<u8>,
        event: impl FnMut(&[u8]),
    ) -> anyhow::Result<()>;
    /// Whether everything that is published from now on will come.
    fn is_subscribed(&self) -> bool;
}

/// What all threads share.
#[derive(Default)]
struct LoadShared {
    ready: AtomicUsize,
    publisher: AtomicU32,
    /// The measured time.
    from_ns: AtomicU64,
    until_ns: AtomicU64,
    delivered: AtomicU64,
    /// Delivered within the measured time, whenever it was published.
    measured: AtomicU64,
    reordered: AtomicU64,
}

/// Runs it, and prints one JSON object.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match args.system {
        ComparedSystem::NatsCore => load(args, || Nats::new(false)),
        ComparedSystem::Jetstream => load(args, || Nats::new(true)),
        ComparedSystem::RedisPubsub => load(args, || Redis::new(false)),
        ComparedSystem::RedisStreams => load(args, || Redis::new(true)),
    }
}

fn load<W: LoadWire + 'static>(args: &Args, wire: fn() -> W) -> anyhow::Result<()> {
    ensure!(args.event_bytes >= 16 && args.every_us > 0 && args.threads > 0, "a flag is too small");
    let shared = Arc::new(LoadShared { from_ns: AtomicU64::new(u64::MAX), ..LoadShared::default() });
    let port = args.port;
    runtime()?.block_on(async {
        let mut publisher = Publisher::connect(port, wire()).await?;
        publisher.prepare().await?;
        ensure!(publisher.all_answered().await?, "the server does not answer");
        anyhow::Ok(())
    })?;
    let mut threads = Vec::new();
    let mut left = args.subscribers;
    for number in 0..args.threads {
        let count = left.div_ceil(args.threads - number);
        let numbers = args.subscribers - left..args.subscribers - left + count;
        left -= count;
        let shared = Arc::clone(&shared);
        threads.push(std::thread::Builder::new().spawn(move || subscribe(port, numbers, wire, &shared))?);
    }
    until("all subscribers are ready", PATIENCE, || {
        check(&mut threads)?;
        Ok((shared.ready.load(Ordering::Acquire) >= args.subscribers).then_some(()))
    })?;
    let meter = RunMeter::start(Duration::from_secs(args.warmup_s), Duration::from_secs(args.duration_s));
    let times = meter.times();
    shared.until_ns.store(times.until_ns, Ordering::Relaxed);
    shared.from_ns.store(times.from_ns, Ordering::Release);
    let publishing = {
        let (args, shared) = (*args, Arc::clone(&shared));
        std::thread::Builder::new().spawn(move || publish(args, wire(), times, &shared))?
    };
    let cpu = |_: &_| {
        let own = cpu_of(std::process::id()).unwrap_or_default();
        let publisher = cpu_of_thread(shared.publisher.load(Ordering::Acquire)).unwrap_or_default();
        let server = cpu_of(args.server_pid).unwrap_or_default();
        [server, publisher, own.saturating_sub(publisher)].map(|cpu| cpu.as_secs_f64())
    };
    let metered = meter.pass(&LoadSwitch::default(), &mut threads, cpu, |threads| {
        cpu_of(args.server_pid).context("the server has ended")?;
        check(threads)
    })?;
    let [server, own_publisher, subscribers] = metered.per_s(3);
    let published = publishing.join().expect("the publisher does not panic")?;
    let wanted = published.all * args.subscribers as u64;
    let (mut last, mut last_ns) = (0, monotonic_ns());
    while last < wanted && monotonic_ns() - last_ns < PATIENCE.as_nanos() as u64 {
        let delivered = shared.delivered.load(Ordering::Relaxed);
        if delivered > last {
            (last, last_ns) = (delivered, monotonic_ns());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // They end when they look.
    shared.until_ns.store(0, Ordering::Release);
    let mut delays = Durations::default();
    for thread in threads {
        delays.add(&thread.join().expect("a subscriber does not panic")?);
    }
    let seconds = args.duration_s as f64;
    let delivered = shared.delivered.load(Ordering::Relaxed);
    let result: Value = json!({
        "bench": "broadcast-peer",
        "clients": args.subscribers,
        "rate": args.rate,
        "published_per_s": round(published.measured as f64 / seconds, 0),
        "delivered_per_s":
            round(shared.measured.load(Ordering::Relaxed) as f64 / seconds / args.subscribers as f64, 0),
        "published": published.all,
        "unanswered": published.unanswered,
        "delivered": delivered,
        "lost": wanted.saturating_sub(delivered),
        "reordered": shared.reordered.load(Ordering::Relaxed),
        "delay_ms": delays.percentiles_ms(),
        "cores": { "server": server, "publisher": own_publisher, "subscribers": subscribers },
    });
    println!("{result}");
    Ok(())
}

/// Fails as a thread full of subscribers did.
fn check(threads: &mut Vec<std::thread::JoinHandle<anyhow::Result<Durations>>>) -> anyhow::Result<()> {
    let Some(ended) = threads.iter().position(|thread| thread.is_finished()) else { return Ok(()) };
    threads.swap_remove(ended).join().expect("a subscriber does not panic")?;
    anyhow::bail!("subscribers ended before their time")
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

// ---- Publishing

#[derive(Default)]
struct LoadPublished {
    all: u64,
    measured: u64,
    /// Not acknowledged when the run ended.
    unanswered: usize,
}

struct Publisher<W> {
    stream: TcpStream,
    wire: W,
    received: BytesMut,
    out: Vec<u8>,
    /// Of each batch that is not answered: its events, and the lines that are still to come.
    unanswered: VecDeque<(usize, usize)>,
    events: usize,
}

impl<W: LoadWire> Publisher<W> {
    async fn connect(port: u16, mut wire: W) -> anyhow::Result<Self> {
        let stream = connect(port).await?;
        let (received, mut out) = (BytesMut::with_capacity(READ_BYTES), Vec::new());
        wire.open(&mut out);
        Ok(Self { stream, wire, received, out, unanswered: VecDeque::new(), events: 0 })
    }

    async fn prepare(&mut self) -> anyhow::Result<()> {
        let lines = self.wire.prepare(&mut self.out);
        self.unanswered.push_back((0, lines));
        self.send().await
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Whether everything was answered in time.
    async fn all_answered(&mut self) -> anyhow::Result<bool> {
        while !self.unanswered.is_empty() {
            let reading = self.stream.read_buf(&mut self.received);
            let Ok(read) = tokio::time::timeout(PATIENCE, reading).await else { return Ok(false) };
            self.answers(read?).await?;
        }
        Ok(true)
    }

    async fn answers(&mut self, read: usize) -> anyhow::Result<()> {
        ensure!(read > 0, "the server ended the publisher's connection");
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            let line = self.received.split_to(end + 1);
            if self.wire.answer(line.trim_ascii_end(), &mut self.out)? {
                let (events, left) = self.unanswered.front_mut().context("an answer to nothing")?;
                *left -= 1;
                if *left == 0 {
                    self.events -= *events;
                    self.unanswered.pop_front();
                }
            }
        }
        if self.out.is_empty() { Ok(()) } else { self.send().await }
    }
}

fn publish(
    args: Args,
    wire: impl LoadWire,
    times: RunTimes,
    shared: &LoadShared,
) -> anyhow::Result<LoadPublished> {
    shared.publisher.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Release);
    runtime()?.block_on(async {
        let mut publisher = Publisher::connect(args.port, wire).await?;
        let mut published = LoadPublished::default();
        let mut ticks = tokio::time::interval(Duration::from_micros(args.every_us));
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                read = publisher.stream.read_buf(&mut publisher.received) => {
                    publisher.answers(read?).await?;
                    continue;
                }
            }
            let now_ns = monotonic_ns();
            if now_ns >= times.until_ns + BEHIND_NS {
                break;
            }
            let due = ((now_ns - times.begin_ns) as f64 / 1e9 * args.rate) as u64 - published.all;
            let due = (due as usize).min(args.system.unanswered_max() - publisher.events);
            if due == 0 {
                continue;
            }
            batch.clear();
            batch.resize(due * args.event_bytes, 0);
            for (number, event) in (published.all..).zip(batch.chunks_exact_mut(args.event_bytes)) {
                event[..8].copy_from_slice(&number.to_le_bytes());
                event[8..16].copy_from_slice(&now_ns.to_le_bytes());
            }
            let lines = publisher.wire.publish(batch.chunks_exact(args.event_bytes), &mut publisher.out);
            publisher.unanswered.push_back((due, lines));
            publisher.events += due;
            publisher.send().await?;
            published.all += due as u64;
            let is_measured = (times.from_ns..times.until_ns).contains(&now_ns);
            published.measured += if is_measured { due as u64 } else { 0 };
        }
        publisher.all_answered().await?;
        published.unanswered = publisher.events;
        Ok(published)
    })
}

// ---- Subscribing

/// Subscribes so many on this thread, until the measured time is over for good.
fn subscribe<W: LoadWire + 'static>(
    port: u16,
    numbers: std::ops::Range<usize>,
    wire: fn() -> W,
    shared: &Arc<LoadShared>,
) -> anyhow::Result<Durations> {
    let delays = Rc::new(RefCell::new(Durations::default()));
    let local = tokio::task::LocalSet::new();
    let all: Vec<_> = numbers
        .map(|number| local.spawn_local(one(port, number, wire(), Arc::clone(shared), Rc::clone(&delays))))
        .collect();
    runtime()?.block_on(local.run_until(async {
        let ended = async {
            while shared.until_ns.load(Ordering::Acquire) > 0
                || shared.from_ns.load(Ordering::Relaxed) == u64::MAX
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        tokio::select! {
            ended = ended => ended,
            (failed, ..) = futures::future::select_all(all) => failed?,
        }
    }))?;
    Ok(delays.take())
}

async fn one(
    port: u16,
    number: usize,
    mut wire: impl LoadWire,
    shared: Arc<LoadShared>,
    delays: Rc<RefCell<Durations>>,
) -> anyhow::Result<()> {
    let mut stream = connect(port).await?;
    let (mut received, mut out) = (BytesMut::with_capacity(READ_BYTES), Vec::new());
    wire.open(&mut out);
    wire.subscribe(number, &mut out);
    let (mut next, mut is_ready) = (0u64, false);
    loop {
        if !is_ready && wire.is_subscribed() {
            is_ready = true;
            shared.ready.fetch_add(1, Ordering::Release);
        }
        if !out.is_empty() {
            stream.write_all(&out).await?;
            out.clear();
        }
        received.reserve(READ_BYTES);
        // A server that ends it because it is too slow is no failure of the run: what it did not get is lost.
        if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
            return std::future::pending().await;
        }
        let now_ns = monotonic_ns();
        let from_ns = shared.from_ns.load(Ordering::Relaxed);
        let is_measured = (from_ns..shared.until_ns.load(Ordering::Relaxed)).contains(&now_ns);
        let (mut count, mut reordered) = (0, 0);
        let mut delays = delays.borrow_mut();
        let (mut stamp_ns, mut alike) = (now_ns, 0);
        wire.receive(&mut received, &mut out, |event| {
            let word = |at: usize| {
                event.get(at..at + 8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            };
            let (number, stamp) = (word(0).unwrap_or(u64::MAX), word(8).unwrap_or(0));
            reordered += u64::from(number < next);
            next = number.wrapping_add(1);
            count += 1;
            if stamp != stamp_ns {
                if is_measured && alike > 0 {
                    delays.record_many(now_ns.saturating_sub(stamp_ns), alike);
                }
                (stamp_ns, alike) = (stamp, 0);
            }
            alike += 1;
        })?;
        if is_measured && alike > 0 {
            delays.record_many(now_ns.saturating_sub(stamp_ns), alike);
        }
        drop(delays);
        shared.delivered.fetch_add(count, Ordering::Relaxed);
        shared.reordered.fetch_add(reordered, Ordering::Relaxed);
        if is_measured {
            shared.measured.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// What a subscriber makes of `text` in two pieces: the events, and what it says.
#[cfg(test)]
pub(super) fn received_in_pieces(
    wire: &mut impl LoadWire,
    text: &[u8],
    parted: usize,
) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut received, mut out, mut events) = (BytesMut::new(), Vec::new(), Vec::new());
    for piece in [&text[..parted], &text[parted..]] {
        received.extend_from_slice(piece);
        wire.receive(&mut received, &mut out, |event| events.push(event.to_vec())).expect("it is understood");
    }
    assert!(received.is_empty());
    (events, out)
}
