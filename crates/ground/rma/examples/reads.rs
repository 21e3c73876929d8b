//! How many 4 KiB reads a second: mapped, and over TCP on loopback, with the server in a process of its own.
//!
//! ```text
//! cargo run --release -p tailwater-rma --example reads [SECONDS] [FILTER]
//! ```
//!
//! Every figure is for one client task on one thread. The round trip of a cache line between two cores is printed
//! beside them, because it moves loopback figures by a factor of two from one minute to the next on some machines.
//! FILTER runs only the measurements whose name contains it, which is what a profiler wants.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::{Env, Instant};
use tailwater_rma::{
    Address, Backing, Connection, EngineKind, Peer, ReadOp, Refusal, Region, Reply, ScarHit, ScarOp, Server,
    ServerConfig, Service, connect,
};

const REGION_BYTES: u64 = 256 << 20;
const VALUE_BYTES: u32 = 4096;

struct Values(Arc<Region>);

impl Service for Values {
    fn regions(&self) -> Vec<Arc<Region>> {
        vec![self.0.clone()]
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        let place = op.bucket % (REGION_BYTES / u64::from(VALUE_BYTES));
        let data = (0, place * u64::from(VALUE_BYTES), VALUE_BYTES);
        Some(ScarHit { bucket: (0, data.1, 64), data: Some(data) })
    }

    fn call(&self, _peer: &Peer, _method: u16, _payload: Bytes, reply: Reply) {
        reply.send(Err(Refusal { code: 1, message: "reads only".to_owned() }));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("serve") {
        let path = arguments.next().ok_or("a path to listen at")?;
        let engine_kind = match arguments.next().as_deref() {
            Some("epoll") => EngineKind::Epoll,
            _ => EngineKind::IoUring,
        };
        return runtime.block_on(serve(&path, engine_kind));
    }
    let seconds = first.map_or(Ok(2), |text| text.parse())?;
    let filter = arguments.next().unwrap_or_default();
    runtime.block_on(measure(Duration::from_secs(seconds), &filter))
}

/// The server's process: ends when its standard input does.
async fn serve(path: &str, engine_kind: EngineKind) -> Result<(), Box<dyn std::error::Error>> {
    let env = Env::real();
    let region = Arc::new(Region::create("values", REGION_BYTES, 0, Backing::Shared)?);
    for offset in (0..REGION_BYTES).step_by(8) {
        region.write(offset, &offset.to_le_bytes());
    }
    let config = ServerConfig {
        tcp: Some(([127, 0, 0, 1], 0).into()),
        unix: Some(path.into()),
        engine_kind,
        ..ServerConfig::default()
    };
    let server = Server::start(&env, config, Arc::new(Values(region)))?;
    println!("{}", Address::Tcp(server.tcp_addr().ok_or("it listens at TCP")?));
    std::io::stdout().flush()?;
    std::io::stdin().lines().count();
    Ok(())
}

/// A server in a process of its own.
struct Served {
    process: Child,
    shm: Arc<dyn Connection>,
    tcp: Arc<dyn Connection>,
    tcps: Vec<Arc<dyn Connection>>,
}

impl Served {
    async fn start(env: &Env, kind: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("rma-reads-{}-{kind}", std::process::id()));
        let mut process = Command::new(std::env::current_exe()?)
            .args(["serve".as_ref(), path.as_os_str(), kind.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or("its output is a pipe")?).read_line(&mut line)?;
        let address = line.trim().parse()?;
        let tcp = connect(env, &address).await?;
        let mut tcps = Vec::new();
        for _ in 0..64 {
            tcps.push(connect(env, &address).await?);
        }
        let shm = connect(env, &Address::Unix(path)).await?;
        Ok(Self { process, shm, tcp, tcps })
    }
}

async fn measure(time: Duration, filter: &str) -> Result<(), Box<dyn std::error::Error>> {
    let env = Env::real();
    let mut epoll = Served::start(&env, "epoll").await?;
    let mut uring = Served::start(&env, "io_uring").await?;
    println!("{:<38} {:>10} {:>9} {:>8} {:>15}", "", "reads/s", "ns/read", "p50 us", "server us/read");
    let both = [("epoll", &epoll), ("io_uring", &uring)];
    for (name, batch, in_flight, scar) in [
        ("shm, one at a time", 1, 1, false),
        ("shm, batches of 8", 8, 1, false),
        ("shm, 64 hot values", 1, 1, false),
        ("tcp, one in flight", 1, 1, false),
        ("tcp, batches of 32, two in flight", 32, 2, false),
        ("tcp, one by one, 64 in flight", 1, 64, false),
        ("tcp, 64 connections, one each", 1, 64, false),
        ("tcp scar, batches of 32, two", 32, 2, true),
    ] {
        for (kind, served) in both {
            let is_shm = name.starts_with("shm");
            if !name.contains(filter) || (is_shm && kind == "io_uring") {
                continue;
            }
            let one = std::slice::from_ref(if is_shm { &served.shm } else { &served.tcp });
            let connections = if name.contains("connections") { &served.tcps } else { one };
            let hot = name.contains("hot");
            let cpu = cpu_time(&served.process);
            let measured = Measured::of(&env, connections, time, batch, in_flight, scar, hot).await?;
            let cpu = cpu_time(&served.process).saturating_sub(cpu);
            println!(
                "{name:<29.29} {:>8} {:>10.0} {:>9.0} {:>8.1} {:>15.2}",
                if is_shm { "" } else { kind },
                measured.reads as f64 / measured.elapsed.as_secs_f64(),
                measured.elapsed.as_nanos() as f64 / measured.reads as f64,
                measured.p50.as_nanos() as f64 / 1e3,
                cpu.as_nanos() as f64 / 1e3 / measured.reads as f64,
            );
        }
    }
    println!("core to core and back: {} ns", ping_pong(&env));
    for server in [&mut epoll, &mut uring] {
        drop(server.process.stdin.take());
        server.process.wait()?;
    }
    Ok(())
}

struct Measured {
    reads: u64,
    elapsed: Duration,
    /// Of one batch.
    p50: Duration,
}

impl Measured {
    async fn of(
        env: &Env,
        connections: &[Arc<dyn Connection>],
        time: Duration,
        batch: u64,
        in_flight: usize,
        scar: bool,
        hot: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let start = env.now();
        let lanes = connections.iter().cycle().take(in_flight);
        let lanes = lanes.map(|connection| lane(env, connection, start + time, batch, scar, hot));
        let mut reads = 0;
        let mut latencies = Vec::new();
        for lane in futures::future::join_all(lanes).await {
            let (count, mut times) = lane?;
            reads += count;
            latencies.append(&mut times);
        }
        latencies.sort_unstable();
        let p50 = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
        Ok(Self { reads, elapsed: env.now().since(start), p50 })
    }
}

/// One batch after the other until `end`.
async fn lane(
    env: &Env,
    connection: &Arc<dyn Connection>,
    end: Instant,
    batch: u64,
    scar: bool,
    hot: bool,
) -> Result<(u64, Vec<Duration>), Box<dyn std::error::Error>> {
    let info = connection.regions()[0];
    let values = if hot { 64 } else { info.len / u64::from(VALUE_BYTES) };
    let mut out = vec![0; (batch as usize) * VALUE_BYTES as usize];
    let mut random = env.random_u64() | 1;
    let mut next = || {
        // xorshift: where to read must cost nothing beside the read.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % values
    };
    let mut reads = 0;
    let mut latencies = Vec::new();
    loop {
        let start = env.now();
        if start >= end {
            return Ok((reads, latencies));
        }
        if scar {
            let ops: Vec<_> = (0..batch).map(|_| ScarOp { bucket: next(), key_hash: 1, apart: 0 }).collect();
            for reply in connection.scar(&ops).await? {
                std::hint::black_box(reply?);
            }
        } else {
            let ops: Vec<_> = (0..batch)
                .map(|_| ReadOp {
                    region: info.id,
                    generation: info.generation,
                    offset: next() * u64::from(VALUE_BYTES),
                    len: VALUE_BYTES,
                })
                .collect();
            for result in connection.read(&ops, &mut out).await? {
                result?;
            }
            std::hint::black_box(&out);
        }
        reads += batch;
        if latencies.len() < 1_000_000 {
            latencies.push(env.now().since(start));
        }
    }
}

/// The CPU time a process has used, by the kernel's clock ticks of 10 ms.
#[allow(clippy::disallowed_methods)] // It looks at a real process.
fn cpu_time(process: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    // The fields behind the name, which is in parentheses and may contain anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Nanoseconds for a cache line to go to another core and back.
fn ping_pong(env: &Env) -> u64 {
    const ROUNDS: u64 = 200_000;
    let word = AtomicU64::new(0);
    let start = env.now();
    std::thread::scope(|scope| {
        for side in 0..2 {
            let word = &word;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    while word.load(Ordering::Acquire) != round * 2 + side {
                        std::hint::spin_loop();
                    }
                    word.store(round * 2 + side + 1, Ordering::Release);
                }
            });
        }
    });
    let elapsed = env.now().since(start).as_nanos() / u128::from(ROUNDS);
    u64::try_from(elapsed).unwrap_or(u64::MAX)
}
