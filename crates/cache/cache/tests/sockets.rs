//! A cell over real sockets: what the transports promise, seen from where they are used.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::{
    Backend, BackendConfig, Backends, Cell, CellConfig, CellFailure, Lookup, Mode, Seen, joined,
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
        ttl: Duration::from_secs(60),
        eviction_at: 0.8,
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
