//! What the tests of this crate share: a world whose clock is moved by hand, and connections that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tailwater_env::{Clock, Env, Instant, Random, Task, Tasks};
use tailwater_rma::testing::{ConnectionHooks, Decorated, cut, scar_of};
use tailwater_rma::{
    Backing, CallDone, Capabilities, Connection, ConnectionLost, LocalDoorbell, ReadOp, ScarOp, ScarResults,
    Service,
};

use crate::layout::BUCKET_BYTES;
use crate::{Backend, BackendConfig, EvictionPolicy};

/// Runs a test in the real world, on two threads.
pub(crate) fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let env = Env::real();
        let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

/// A clock that stands still until it is told otherwise. It wakes nobody: who sleeps is polled by hand, too.
pub(crate) struct HandClock {
    now_ns: Arc<AtomicU64>,
}

impl HandClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant::from_ns(self.now_ns.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> i64 {
        1_800_000_000_000 + (self.now_ns.load(Ordering::Relaxed) / 1_000_000) as i64
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let now_ns = Arc::clone(&self.now_ns);
        Box::pin(std::future::poll_fn(move |_| {
            match Instant::from_ns(now_ns.load(Ordering::Relaxed)) >= deadline {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }))
    }
}

struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

struct NoTasks;

impl Tasks for NoTasks {
    fn spawn(&self, _name: &'static str, _future: BoxFuture<'static, ()>) -> Task {
        Task::new(|| ())
    }

    fn spawn_dedicated(&self, _name: &'static str, _future: BoxFuture<'static, ()>) -> Task {
        Task::new(|| ())
    }
}

/// A world in which no task runs and time passes by hand.
pub(crate) fn world_by_hand() -> (Env, Arc<HandClock>) {
    let clock = Arc::new(HandClock { now_ns: Arc::new(AtomicU64::new(1)) });
    // Only its disk is taken from the real world, which needs a runtime to be entered.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let disk = Arc::clone(Env::real().disk());
    let env =
        Env::new(Arc::clone(&clock) as _, Arc::new(Counting(AtomicU64::new(1))), Arc::new(NoTasks), disk);
    (env, clock)
}

/// A small backend's configuration.
pub(crate) fn small(config_id: u64) -> BackendConfig {
    BackendConfig {
        capacity_bytes: 8 << 20,
        buckets: 512,
        ttl: Duration::from_secs(60),
        eviction_at: 0.8,
        eviction: EvictionPolicy::Lrm,
        config_id,
        backing: Backing::Private,
    }
}

/// A backend in this process and a doorbell for it.
pub(crate) fn served(env: &Env, config: BackendConfig) -> (Arc<Backend>, LocalDoorbell) {
    let backend = Backend::start(env, config).expect("memory for a small backend");
    let doorbell = LocalDoorbell::new();
    let ring = doorbell.clone();
    backend.ring_on_change(move || ring.ring());
    (backend, doorbell)
}

/// What a [`Double`] does to the operations that pass through it.
#[derive(Default)]
pub(crate) struct CellFaults {
    /// The connection is lost.
    pub(crate) lost: AtomicBool,
    /// Nothing is answered any more.
    pub(crate) stalled: AtomicBool,
    /// So many operations are answered, less one, and none after them; 0: all are.
    pub(crate) answers_left: AtomicU64,
    /// CALLs are not answered.
    pub(crate) calls_stalled: AtomicBool,
    /// READs of this many batches to come are torn: the second half of each operation is
    /// something else.
    pub(crate) torn_reads: AtomicU64,
    /// READs of anything but buckets are torn.
    pub(crate) torn_data: AtomicBool,
    /// Operations seen.
    pub(crate) reads: AtomicU64,
    pub(crate) scars: AtomicU64,
    pub(crate) calls: Mutex<Vec<u16>>,
}

/// A connection to a local backend with faults, and with the capabilities of the transport it plays.
pub(crate) struct Double {
    service: Arc<dyn Service>,
    can: Capabilities,
    faults: Arc<CellFaults>,
}

impl Double {
    pub(crate) fn connect(
        env: &Env,
        backend: &Arc<Backend>,
        doorbell: &LocalDoorbell,
        can: Capabilities,
    ) -> (Arc<dyn Connection>, Arc<CellFaults>) {
        let service = Arc::clone(backend) as Arc<dyn Service>;
        let inner = tailwater_rma::local::connect(Arc::clone(&service), doorbell.clone(), env);
        let faults = Arc::new(CellFaults::default());
        let hooks = Self { service, can, faults: Arc::clone(&faults) };
        (Arc::new(Decorated { inner, hooks }), faults)
    }
}

impl ConnectionHooks for Double {
    fn capabilities(&self, _: &dyn Connection) -> Capabilities {
        self.can
    }

    fn pass(&self) -> BoxFuture<'_, Result<(), ConnectionLost>> {
        Box::pin(async move {
            let last = |left: u64| (left > 1).then(|| left - 1);
            let is_over = self.faults.answers_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, last);
            if self.faults.stalled.load(Ordering::Relaxed) || is_over == Err(1) {
                std::future::pending::<()>().await;
            }
            if !self.can.memory {
                // A transport with a wire never answers at once.
                tokio::task::yield_now().await;
            }
            self.lost().map_or(Ok(()), Err)
        })
    }

    fn after_read(&self, ops: &[ReadOp], out: &mut [u8]) {
        self.faults.reads.fetch_add(1, Ordering::Relaxed);
        if self.faults.torn_data.load(Ordering::Relaxed) {
            let mut at = 0;
            for op in ops {
                let len = op.len as usize;
                if len != BUCKET_BYTES {
                    out[at + len / 2..at + len].fill(0x5a);
                }
                at += len;
            }
        }
        let tear = |left: u64| left.checked_sub(1);
        if self.faults.torn_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, tear).is_ok() {
            let mut at = 0;
            for op in ops {
                let len = op.len as usize;
                out[at + len / 2..at + len].fill(0x5a);
                at += len;
            }
        }
    }

    fn scar<'a>(&'a self, _: &'a dyn Connection, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        self.faults.scars.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(scar_of(&*self.service, ops, |_| ())))
    }

    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        self.faults.calls.lock().push(method);
        if self.faults.calls_stalled.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        inner.call(method, payload)
    }

    fn lost(&self) -> Option<ConnectionLost> {
        cut("double", self.faults.lost.load(Ordering::Relaxed))
    }
}
