//! Cells of backends in this process, which can be taken away and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tailwater_cache::{
    Backend, BackendConfig, BackendPlace, Backends, Cell, CellConfig, Connecting, Connector, EvictionPolicy,
    Mode,
};
use tailwater_env::Env;
use tailwater_rma::testing::{ConnectionHooks, Decorated, cut, scar_of};
use tailwater_rma::{Backing, Capabilities, Connection, ConnectionLost, LocalDoorbell, ScarOp, ScarResults};

/// Whoever waits for as long as this waits for ever.
const NEVER: Duration = Duration::from_secs(600);

/// Runs a test in the real world, on two threads.
pub(crate) fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        assert!(env.timeout(NEVER, test(env.clone())).await.is_some(), "the test never ends");
    });
}

/// Waits for `condition`; says what it waits for if that does not come about for so long that it never will.
pub(crate) async fn until(env: &Env, what: &str, mut condition: impl FnMut() -> bool) {
    let began = env.now();
    while !condition() {
        assert!(env.now().since(began) < NEVER / 2, "still waiting until {what}");
        env.sleep(Duration::from_millis(1)).await;
    }
}

/// A cell with three replicas.
pub(crate) struct TestCell {
    pub(crate) cell: Cell,
    ring: Arc<Ring>,
    env: Env,
}

struct Ring {
    env: Env,
    backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    gone: Vec<Arc<AtomicBool>>,
    /// Values have a damaged byte when they come, over connections that begin from then on.
    torn: Arc<AtomicBool>,
}

impl TestCell {
    pub(crate) async fn start(env: &Env, id: u64) -> Self {
        let backends: Vec<_> = (0..3).map(|_| backend(env, id)).collect();
        let gone = (0..3).map(|_| Arc::default()).collect();
        let ring = Arc::new(Ring { env: env.clone(), backends, gone, torn: Arc::default() });
        let backends = Backends::through(Arc::clone(&ring) as Arc<dyn Connector>, 3);
        let mut config = CellConfig::new(id, Mode::R32, backends, 1);
        config.reconnect_after_min = Duration::from_millis(1);
        config.reconnect_after_max = Duration::from_millis(10);
        config.watch_slice = Duration::from_millis(5);
        (config.deadline, config.connect_deadline) = (NEVER, NEVER);
        let cell = Cell::connect(env, config).await.expect("three backends are enough");
        Self { cell, ring, env: env.clone() }
    }

    /// Another client of the same cell.
    pub(crate) async fn again(&self, id: u64, client_id: u32) -> Cell {
        let backends = Backends::through(Arc::clone(&self.ring) as Arc<dyn Connector>, 3);
        let config = CellConfig::new(id, Mode::R32, backends, client_id);
        Cell::connect(&self.env, config).await.expect("three backends are enough")
    }

    /// Takes the first `count` backends away, and gives the others back.
    pub(crate) fn set_gone(&self, count: usize) {
        for (number, gone) in self.ring.gone.iter().enumerate() {
            gone.store(number < count, Ordering::Relaxed);
        }
    }

    /// Whether values change on their way, as they do where they were evicted meanwhile. Connections that begin while
    /// it is so are as over a socket.
    pub(crate) fn set_torn(&self, torn: bool) {
        self.ring.torn.store(torn, Ordering::Relaxed);
    }

    /// Empties all backends.
    pub(crate) async fn clear(&self) {
        self.cell.clear().await;
    }
}

fn backend(env: &Env, id: u64) -> (Arc<Backend>, LocalDoorbell) {
    let config = BackendConfig {
        capacity_bytes: 8 << 20,
        buckets: 2_048,
        ttl: Duration::from_secs(60),
        eviction_at: 0.8,
        eviction: EvictionPolicy::Lrm,
        config_id: id,
        backing: Backing::Private,
    };
    let backend = Backend::start(env, config).expect("memory for a small backend");
    let doorbell = LocalDoorbell::new();
    let ring = doorbell.clone();
    backend.ring_on_change(move || ring.ring());
    (backend, doorbell)
}

impl Connector for Ring {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        let backend = backend.number as usize;
        let (service, doorbell) = &self.backends[backend];
        let inner = tailwater_rma::local::connect(Arc::clone(service) as _, doorbell.clone(), &self.env);
        let (gone, torn) = (Arc::clone(&self.gone[backend]), Arc::clone(&self.torn));
        let is_wire = torn.load(Ordering::Relaxed);
        let hooks = Switched { service: Arc::clone(service), gone, torn, is_wire };
        let answer = match hooks.lost() {
            None => Ok(Arc::new(Decorated { inner, hooks }) as Arc<dyn Connection>),
            Some(lost) => Err(lost.to_string()),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A connection that a test can cut, and damage.
struct Switched {
    service: Arc<Backend>,
    gone: Arc<AtomicBool>,
    torn: Arc<AtomicBool>,
    is_wire: bool,
}

impl ConnectionHooks for Switched {
    fn capabilities(&self, _: &dyn Connection) -> Capabilities {
        let is_wire = self.is_wire;
        Capabilities { memory: !is_wire, scar: is_wire }
    }

    fn scar<'a>(&'a self, _: &'a dyn Connection, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        let damage = |data: &mut [u8]| {
            if self.torn.load(Ordering::Relaxed)
                && let Some(byte) = data.get_mut(100)
            {
                *byte ^= 1;
            }
        };
        Box::pin(std::future::ready(scar_of(&*self.service, ops, damage)))
    }

    fn lost(&self) -> Option<ConnectionLost> {
        cut("switched", self.gone.load(Ordering::Relaxed))
    }
}
