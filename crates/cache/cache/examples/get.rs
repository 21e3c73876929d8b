//! How long a relaxed and a consistent get of a 4 KiB value take over mapped memory, one core, values far larger
//! in sum than the caches.
//!
//!     cargo run --release -p tailwater-cache --example get [local|unix|tcp] [SECONDS] [ONLY LINES WITH THIS]
//!
//! Prints, beside the cell's gets, the same bytes copied out of the region and validated without a cell: the
//! floor on this machine at this moment. CPU time is the calling thread's, which does all the work of a read
//! over mapped memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::layout::Item;
use tailwater_cache::{Backend, BackendConfig, Backends, Cell, CellConfig, Lookup, Mode};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, LocalDoorbell, Server, ServerConfig, Service, local};

const VALUES: u32 = 48 << 10;
const VALUE_BYTES: usize = 4096;
const CONFIG_ID: u64 = 1;

fn key(n: u32) -> Bytes {
    let mut key = [0; 48];
    key[..4].copy_from_slice(&n.to_le_bytes());
    Bytes::copy_from_slice(&key)
}

struct Report {
    env: Env,
    duration: Duration,
    only: String,
}

impl Report {
    /// Runs `batch`, which answers how many keys it read, for the duration; prints the time of one key.
    async fn line<F: Future<Output = usize>>(&self, name: &str, mut batch: impl FnMut() -> F) {
        if !name.contains(&self.only) {
            return;
        }
        let begin = self.env.now();
        let cpu_begin = thread_cpu_ns();
        let mut keys = 0;
        while self.env.now().since(begin) < self.duration {
            for _ in 0..64 {
                keys += batch().await;
            }
        }
        let each = self.env.now().since(begin).as_nanos() as f64 / keys as f64;
        let cpu = (thread_cpu_ns() - cpu_begin) / keys as f64;
        println!("{name:<44} {each:>7.0} ns/key, {cpu:>7.0} ns of this thread's CPU");
    }
}

fn thread_cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Three backends in this process, and how to reach them.
struct World {
    backends: Vec<Arc<Backend>>,
    connections: Backends,
    _servers: Vec<Server>,
}

fn serve(env: &Env, transport: &str) -> World {
    let config = BackendConfig::data(320 << 20, VALUE_BYTES as u64 + 80, CONFIG_ID, Backing::Shared);
    let start = |_| Backend::start(env, config).expect("memory for a backend of 320 MiB");
    let backends: Vec<Arc<Backend>> = (0..3).map(start).collect();
    let mut servers = Vec::new();
    let connections = if transport == "local" {
        let services = backends.iter().map(|backend| Arc::clone(backend) as Arc<dyn Service>);
        Backends::connected(
            services.map(|service| local::connect(service, LocalDoorbell::new(), env)).collect(),
        )
    } else {
        let mut addresses = Vec::new();
        for (number, backend) in backends.iter().enumerate() {
            let mut config = ServerConfig::default();
            if transport == "tcp" {
                config.tcp = Some(([127, 0, 0, 1], 0).into());
            } else {
                let name = format!("tailwater-get-{}-{number}", std::process::id());
                config.unix = Some(std::env::temp_dir().join(name));
            }
            let server =
                Server::start(env, config, Arc::clone(backend) as Arc<dyn Service>).expect("a server");
            let tcp = server.tcp_addr().map(Address::Tcp);
            let unix = server.unix_path().map(|path| Address::Unix(path.to_owned()));
            addresses.push(tcp.into_iter().chain(unix).collect());
            let doorbell = server.doorbell();
            backend.ring_on_change(move || doorbell.ring());
            servers.push(server);
        }
        Backends::at(env, addresses)
    };
    World { backends, connections, _servers: servers }
}

async fn run(env: Env, transport: &str, seconds: f64, only: String) {
    let World { backends, connections, _servers } = serve(&env, transport);
    let mut config = CellConfig::new(CONFIG_ID, Mode::R32, connections, 1);
    config.deadline = Duration::from_secs(60);
    let cell = Cell::connect(&env, config).await;
    let cell = cell.expect("three backends");
    let keys: Vec<Bytes> = (0..VALUES).map(key).collect();
    for some in keys.chunks(256) {
        let items = some.iter().map(|key| (key.clone(), Bytes::from(vec![7; VALUE_BYTES]))).collect();
        for result in cell.set(items).await {
            result.expect("set");
        }
    }

    // Two replicas have acknowledged; relaxed reads also ask the third.
    while backends.iter().any(|backend| backend.stats().sets < u64::from(VALUES)) {
        env.sleep(Duration::from_millis(1)).await;
    }

    let report = Report { env: env.clone(), duration: Duration::from_secs_f64(seconds), only };
    let mut state = 1_u64;
    let mut random_key = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as u32) % below
    };

    let data = Arc::clone(&backends[0].regions()[1]);
    let item_bytes = VALUE_BYTES + 80;
    let mut buffer = vec![0; item_bytes];
    report
        .line("floor: copy and checksum, no lookup", || {
            // Slots of 4288 bytes, 17 in a slab of 72 KiB.
            let slot = random_key(VALUES);
            data.read(u64::from(slot / 17) * 73_728 + u64::from(slot % 17) * 4288, &mut buffer);
            let valid = Item::parse(&buffer).is_ok();
            async move { usize::from(valid) }
        })
        .await;

    for (name, below) in [("cold", VALUES), ("64 hot keys", 64)] {
        for batch in [1, 8, 32] {
            let mut wanted =
                || -> Vec<Bytes> { (0..batch).map(|_| keys[random_key(below) as usize].clone()).collect() };
            report
                .line(&format!("get_relaxed, {name}, batches of {batch}"), || {
                    let wanted = wanted();
                    let cell = &cell;
                    async move { hits(cell.get_relaxed(&wanted).await) }
                })
                .await;
            report
                .line(&format!("get_consistent, {name}, batches of {batch}"), || {
                    let wanted = wanted();
                    let cell = &cell;
                    async move { hits(cell.get_consistent(&wanted).await) }
                })
                .await;
        }
    }
    for batch in [1, 32] {
        report
            .line(&format!("set, three replicas, batches of {batch}"), || {
                let items: Vec<_> = (0..batch)
                    .map(|_| {
                        (keys[random_key(VALUES) as usize].clone(), Bytes::from_static(&[9; VALUE_BYTES]))
                    })
                    .collect();
                let cell = &cell;
                async move { cell.set(items).await.iter().filter(|result| result.is_ok()).count() }
            })
            .await;
    }
    println!("{:?}", cell.stats());
}

fn hits(lookups: Vec<Lookup>) -> usize {
    assert!(lookups.iter().all(|lookup| matches!(lookup, Lookup::Hit { .. })), "everything is there");
    lookups.len()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().unwrap_or_else(|| "local".to_owned());
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let only = arguments.next().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async move { run(Env::real(), &transport, seconds, only).await });
}
