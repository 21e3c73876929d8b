//! Cells of backends in this process, which can be taken away and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tailwater_cache::{Backend, BackendConfig, Backends, Cell, CellConfig, Connector, Mode};
use tailwater_env::Env;
use tailwater_rma::{
    Backing, CallError, Capabilities, Connection, ConnectionLost, LocalDoorbell, OpError, ReadOp, RegionInfo,
    ScarOp, ScarReply, Service,
};

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
    fn connect(&self, backend: usize) -> BoxFuture<'_, Result<Arc<dyn Connection>, String>> {
        let (service, doorbell) = &self.backends[backend];
        let inner = tailwater_rma::local::connect(Arc::clone(service) as _, doorbell.clone(), &self.env);
        let (gone, torn) = (Arc::clone(&self.gone[backend]), Arc::clone(&self.torn));
        let is_wire = torn.load(Ordering::Relaxed);
        let connection = Switched { inner, service: Arc::clone(service), gone, torn, is_wire };
        let answer = match connection.lost() {
            None => Ok(Arc::new(connection) as Arc<dyn Connection>),
            Some(lost) => Err(lost.to_string()),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A connection that a test can cut, and damage.
struct Switched {
    inner: Arc<dyn Connection>,
    service: Arc<Backend>,
    gone: Arc<AtomicBool>,
    torn: Arc<AtomicBool>,
    is_wire: bool,
}

impl Switched {
    fn check(&self) -> Result<(), ConnectionLost> {
        self.lost().map_or(Ok(()), Err)
    }
}

impl Connection for Switched {
    fn peer(&self) -> &str {
        "switched"
    }

    fn capabilities(&self) -> Capabilities {
        let is_wire = self.is_wire;
        Capabilities { memory: !is_wire, scar: is_wire }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.inner.regions()
    }

    fn read<'a>(
        &'a self,
        ops: &'a [ReadOp],
        out: &'a mut [u8],
    ) -> BoxFuture<'a, Result<Vec<Result<(), OpError>>, ConnectionLost>> {
        Box::pin(async move {
            self.check()?;
            self.inner.read(ops, out).await
        })
    }

    fn scar<'a>(
        &'a self,
        ops: &'a [ScarOp],
    ) -> BoxFuture<'a, Result<Vec<Result<ScarReply, OpError>>, ConnectionLost>> {
        Box::pin(async move {
            self.check()?;
            let regions = self.service.regions();
            let copy = |(place, offset, len): (usize, u64, u32)| {
                let mut bytes = vec![0; len as usize];
                regions[place].read(offset, &mut bytes);
                bytes
            };
            let reply = |op: &ScarOp| {
                let hit = self.service.scar(op).ok_or(OpError::OutOfBounds)?;
                let bucket = Bytes::from(copy(hit.bucket));
                let mut frame = hit.data.map(copy).unwrap_or_default();
                let apart = frame.len().min(op.apart as usize);
                if self.torn.load(Ordering::Relaxed)
                    && let Some(byte) = frame.get_mut(apart + 100)
                {
                    *byte ^= 1;
                }
                let frame = Bytes::from(frame);
                Ok(ScarReply { bucket, head: frame.slice(..apart), data: frame.slice(apart..), frame })
            };
            Ok(ops.iter().map(reply).collect())
        })
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(async move {
            let seen = self.inner.watch(last_seen, deadline).await;
            self.check()?;
            seen
        })
    }

    fn call(&self, method: u16, payload: Bytes) -> BoxFuture<'_, Result<Bytes, CallError>> {
        Box::pin(async move {
            self.check().map_err(CallError::Lost)?;
            self.inner.call(method, payload).await
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        let gone = self.gone.load(Ordering::Relaxed);
        gone.then(|| ConnectionLost { peer: "switched".to_owned(), reason: "a test cut it".to_owned() })
    }
}
