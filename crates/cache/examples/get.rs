//! How long a relaxed and a consistent get of a 4 KiB value take over mapped memory, one core, values far larger
//! in sum than the caches.
//!
//!     cargo run --release -p tailwater-cache --example get [seconds per line]
//!
//! Prints, beside the cell's gets, the same bytes copied out of the region and validated without a cell: the
//! floor on this machine at this moment.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::layout::Entry;
use tailwater_cache::{Backend, BackendConfig, Backends, Cell, CellConfig, Lookup, Mode};
use tailwater_env::Env;
use tailwater_rma::{Backing, LocalDoorbell, Service, local};

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
}

impl Report {
    /// Runs `batch`, which answers how many keys it read, for the duration; prints the time of one key.
    async fn line<F: Future<Output = usize>>(&self, name: &str, mut batch: impl FnMut() -> F) {
        let begin = self.env.now();
        let mut keys = 0;
        while self.env.now().since(begin) < self.duration {
            for _ in 0..64 {
                keys += batch().await;
            }
        }
        let each = self.env.now().since(begin).as_nanos() as f64 / keys as f64;
        println!("{name:<44} {each:>7.0} ns/key");
    }
}

async fn run(env: Env, seconds: f64) {
    let config = BackendConfig::data(512 << 20, VALUE_BYTES as u64 + 80, CONFIG_ID, Backing::Shared);
    let mut backends = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..3 {
        let backend = Backend::start(&env, config).expect("memory for a backend of 512 MiB");
        let doorbell = LocalDoorbell::new();
        connections.push(local::connect(Arc::clone(&backend) as Arc<dyn Service>, doorbell, &env));
        backends.push(backend);
    }
    let cell_config = CellConfig::new(CONFIG_ID, Mode::R32, Backends::connected(connections), 1);
    let cell = Cell::connect(&env, cell_config).await.expect("three backends");
    let keys: Vec<Bytes> = (0..VALUES).map(key).collect();
    for some in keys.chunks(256) {
        let items = some.iter().map(|key| (key.clone(), Bytes::from(vec![7; VALUE_BYTES]))).collect();
        for result in cell.set(items).await {
            result.expect("set");
        }
    }

    let report = Report { env: env.clone(), duration: Duration::from_secs_f64(seconds) };
    let mut state = 1_u64;
    let mut random_key = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as u32) % below
    };

    let data = Arc::clone(&backends[0].regions()[1]);
    let entry_bytes = VALUE_BYTES + 80;
    let mut buffer = vec![0; entry_bytes];
    report
        .line("floor: copy and checksum, no lookup", || {
            // Slots of 4288 bytes, 17 in a slab of 72 KiB.
            let slot = random_key(VALUES * 3 / 4);
            data.read(u64::from(slot / 17) * 73_728 + u64::from(slot % 17) * 4288, &mut buffer);
            let valid = Entry::parse(&buffer).is_ok();
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
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async move { run(Env::real(), seconds).await });
}
