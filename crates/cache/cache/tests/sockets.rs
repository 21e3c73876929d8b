//! A cell over real sockets: what the transports promise, seen from where they are used.

#![allow(clippy::disallowed_methods)] // a test of real sockets, with tasks that end with it

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::{
    Backend, BackendConfig, Backends, Cell, CellConfig, CellFailure, EvictionPolicy, Lookup, Mode, Seen,
    joined,
};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, Server, ServerConfig, Service};

const ID: u64 = 11;

fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

fn backend(env: &Env) -> Arc<Backend> {
    let config = BackendConfig {
        capacity_bytes: 16 << 20,
        buckets: 256,
        ttl: Duration::from_secs(3_600),
        eviction_at: 0.8,
        eviction: EvictionPolicy::Lrm,
        config_id: ID,
        backing: Backing::Shared,
    };
    Backend::start(env, config).expect("memory")
}

struct Served {
    server: Server,
    backend: Arc<Backend>,
}

fn serve(env: &Env, config: ServerConfig) -> Served {
    let backend = backend(env);
    let server = Server::start(env, config, Arc::clone(&backend) as Arc<dyn Service>).expect("a server");
    let doorbell = server.doorbell();
    backend.ring_on_change(move || doorbell.ring());
    Served { server, backend }
}

/// Waits until every backend has all of the items: two acknowledge, the third gets them in a moment.
async fn until_everywhere(cell: &Cell, servers: &[Served], items: usize) {
    let mut seen = Seen::default();
    while servers.iter().any(|served| served.backend.stats().items < items as u64) {
        cell.watch(&mut seen, Duration::from_secs(3600)).await;
    }
}

fn unix(dir: &Path, number: usize) -> ServerConfig {
    ServerConfig { unix: Some(dir.join(format!("{number}"))), ..ServerConfig::default() }
}

fn tcp() -> ServerConfig {
    ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), ..ServerConfig::default() }
}

fn address(Served { server, .. }: &Served) -> Vec<Address> {
    let tcp = server.tcp_addr().map(Address::Tcp);
    let unix = server.unix_path().map(|path| Address::Unix(path.to_owned()));
    unix.into_iter().chain(tcp).collect()
}

fn config(env: &Env, servers: &[Served]) -> CellConfig {
    let mut config =
        CellConfig::new(ID, Mode::R32, Backends::at(env, servers.iter().map(address).collect()), 1);
    config.reconnect_after_min = Duration::from_millis(1);
    config.reconnect_after_max = Duration::from_millis(20);
    // On a busy machine nothing here may fail for want of time.
    config.deadline = Duration::from_secs(30);
    config
}

fn items() -> Vec<(Bytes, Bytes)> {
    let value = |n: u32| Bytes::from(vec![n as u8; [10, 4096, 70_000, 1 << 20][n as usize % 4]]);
    (0..32).map(|n| (Bytes::from(format!("key {n}")), value(n))).collect()
}

fn assert_hits(lookups: &[Lookup], items: &[(Bytes, Bytes)]) {
    for (lookup, (key, wanted)) in lookups.iter().zip(items) {
        match lookup {
            Lookup::Hit { value, .. } => assert_eq!(value, wanted),
            other => panic!("{key:?}: {other:?}"),
        }
    }
}

async fn set_read_and_watch(cell: &Cell, servers: &[Served]) {
    let items = items();
    let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
    let mut seen = Seen::default();
    while cell.watch(&mut seen, Duration::from_millis(20)).await {}
    for result in cell.set(items.clone()).await {
        result.expect("set");
    }
    assert!(cell.watch(&mut seen, Duration::from_secs(3600)).await, "the doorbells rang");
    assert_hits(&cell.get_consistent(&keys).await, &items);
    until_everywhere(cell, servers, items.len()).await;
    assert_hits(&cell.get_relaxed(&keys).await, &items);
    for result in cell.erase(keys[..4].to_vec()).await {
        result.expect("erased");
    }
    assert!(cell.get_consistent(&keys[..4]).await.iter().all(|lookup| *lookup == Lookup::Miss));
}

#[test]
fn a_cell_over_mapped_memory() {
    in_runtime(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let servers: Vec<Served> = (0..3).map(|number| serve(&env, unix(dir.path(), number))).collect();
        let cell = Cell::connect(&env, config(&env, &servers)).await.expect("three");
        set_read_and_watch(&cell, &servers).await;
    });
}

#[test]
fn a_cell_over_tcp() {
    in_runtime(|env| async move {
        let servers: Vec<Served> = (0..3).map(|_| serve(&env, tcp())).collect();
        let cell = Cell::connect(&env, config(&env, &servers)).await.expect("three");
        set_read_and_watch(&cell, &servers).await;
    });
}

#[test]
fn values_that_one_backend_sends_together_over_tcp_are_one_piece() {
    in_runtime(|env| async move {
        let servers: Vec<Served> = (0..3).map(|_| serve(&env, tcp())).collect();
        let cell = Cell::connect(&env, config(&env, &servers)).await.expect("three");
        let value = |n: u8| Bytes::from(vec![n; 70_000 + usize::from(n)]);
        let items: Vec<_> = (0..5).map(|n| (Bytes::from(format!("key {n}")), value(n))).collect();
        let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
        for result in cell.set(items.clone()).await {
            result.expect("set");
        }
        until_everywhere(&cell, &servers, items.len()).await;
        let (lookups, frames) = cell.get_relaxed_with_frames(&keys, usize::MAX).await;
        assert_hits(&lookups, &items);
        let values = lookups.iter().map(|lookup| match lookup {
            Lookup::Hit { value, .. } => &value[..],
            other => panic!("{other:?}"),
        });
        let whole = joined(values, &frames).expect("nothing lies in between");
        assert!(whole == items.iter().map(|(_, value)| &value[..]).collect::<Vec<_>>().concat());
    });
}

#[test]
fn a_cell_of_which_each_backend_is_reached_in_another_way() {
    in_runtime(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let servers = [serve(&env, unix(dir.path(), 0)), serve(&env, tcp()), serve(&env, tcp())];
        let cell = Cell::connect(&env, config(&env, &servers)).await.expect("three");
        set_read_and_watch(&cell, &servers).await;
    });
}

#[test]
fn backends_end_one_after_the_other_and_come_back_empty() {
    in_runtime(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut servers: Vec<Served> = (0..3).map(|number| serve(&env, unix(dir.path(), number))).collect();
        let cell = Cell::connect(&env, config(&env, &servers)).await.expect("three");
        let items = items();
        let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
        for result in cell.set(items.clone()).await {
            result.expect("set");
        }
        until_everywhere(&cell, &servers, items.len()).await;
        drop(servers.remove(0));
        assert_hits(&cell.get_consistent(&keys).await, &items);
        assert_hits(&cell.get_relaxed(&keys).await, &items);
        drop(servers.remove(0));
        // Until its end is known, reads may find the mapping as it was; they are right all the same.
        let mut seen = Seen::default();
        while cell.get_consistent(&keys[..1]).await != [Lookup::Failed(CellFailure::Unreachable)] {
            cell.watch(&mut seen, Duration::from_secs(3600)).await;
        }
        assert_hits(&cell.get_relaxed(&keys).await, &items);
        servers.clear();
        let mut again: Vec<Served> = (0..3).map(|number| serve(&env, unix(dir.path(), number))).collect();
        while cell.live_backends() < 3 || cell.get_consistent(&keys[..1]).await != [Lookup::Miss] {
            cell.watch(&mut seen, Duration::from_secs(3600)).await;
        }
        for result in cell.set(items.clone()).await {
            result.expect("set");
        }
        assert_hits(&cell.get_consistent(&keys).await, &items);
        again.clear();
    });
}

/// A backend of a cell of its own that everybody reaches in both ways, and a client that reads by mapped memory or over
/// TCP.
async fn one(env: &Env, served: &Served, is_mapped: bool) -> Cell {
    let address = address(served).swap_remove(usize::from(!is_mapped));
    let mut config = CellConfig::new(ID, Mode::R1, Backends::at(env, vec![vec![address]]), 1);
    config.deadline = Duration::from_secs(30);
    // Often enough for nobody to be hung up on.
    config.watch_slice = Duration::from_millis(5);
    Cell::connect(env, config).await.expect("one")
}

/// Reads a key that is counted up, until told to stop; every read has to find what was acknowledged before it.
async fn read_on(cell: Cell, acknowledged: Arc<AtomicU64>, reads: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let key = [Bytes::from_static(b"count")];
    while !stop.load(Ordering::Relaxed) {
        let before = acknowledged.load(Ordering::Acquire);
        match cell.get_consistent(&key).await.remove(0) {
            Lookup::Hit { value, .. } => {
                let count = u64::from_le_bytes(value[..8].try_into().expect("a count"));
                assert!(count >= before, "{count} was read behind the answer to {before}");
            }
            other => panic!("{other:?}"),
        }
        assert_ne!(cell.get_relaxed(&key).await[0], Lookup::Miss);
        reads.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

fn is_empty(file: &File) -> bool {
    let len = usize::try_from(file.metadata().expect("a file").len()).expect("it fits");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn a_backend_moves_from_a_kept_mapping_which_is_emptied_and_all_others_read_on_under_load() {
    in_runtime(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let both = ServerConfig { tcp: tcp().tcp, ..unix(dir.path(), 0) };
        let served = serve(&env, both);
        // What whoever maps the memory was given.
        let kept = served.backend.regions().into_iter().map(|region| {
            let file = region.file().expect("shared").try_clone_to_owned().expect("a descriptor");
            (File::from(file), region.generation())
        });
        let kept: Vec<_> = kept.collect();
        let near = one(&env, &served, true).await;
        let far = one(&env, &served, false).await;
        for result in far.set(items()).await {
            result.expect("set");
        }
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let count = |count: u64| Bytes::copy_from_slice(&count.to_le_bytes());
        far.set(vec![(Bytes::from_static(b"count"), count(0))]).await.remove(0).expect("set");
        let reads = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let mut tasks: Vec<_> = [near.clone(), far.clone()]
            .into_iter()
            .zip(&reads)
            .map(|(cell, reads)| {
                tokio::spawn(read_on(cell, acknowledged.clone(), reads.clone(), stop.clone()))
            })
            .collect();
        let (writer, done, stopped) = (near.clone(), acknowledged.clone(), stop.clone());
        tasks.push(tokio::spawn(async move {
            let mut next = 0;
            while !stopped.load(Ordering::Relaxed) {
                next += 1;
                let key = Bytes::from_static(b"count");
                writer.set(vec![(key, count(next))]).await.remove(0).expect("set");
                done.store(next, Ordering::Release);
            }
        }));

        let admission = served.server.admission();
        served.backend.move_regions(&admission).await.expect("memory");
        assert!(kept.iter().all(|(file, _)| is_empty(file)), "what was mapped is emptied");
        for result in far.set(items()).await {
            result.expect("set");
        }
        let so_far = reads.each_ref().map(|reads| reads.load(Ordering::Relaxed));
        while reads.iter().zip(so_far).any(|(reads, so_far)| reads.load(Ordering::Relaxed) <= so_far + 1) {
            assert!(!tasks.iter().any(tokio::task::JoinHandle::is_finished), "somebody was interrupted");
            tokio::task::yield_now().await;
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("nobody was interrupted");
        }
        assert!(kept.iter().all(|(file, _)| is_empty(file)), "nothing new is written there");
        let keys: Vec<Bytes> = items().into_iter().map(|(key, _)| key).collect();
        for cell in [&near, &far] {
            assert_hits(&cell.get_consistent(&keys).await, &items());
        }
        let regions = served.backend.regions();
        assert!(
            regions.iter().zip(&kept).all(|(region, (_, generation))| region.generation() == *generation)
        );
        // And once more, from where it is now.
        served.backend.move_regions(&admission).await.expect("memory");
        assert_hits(&one(&env, &served, true).await.get_consistent(&keys).await, &items());
    });
}
