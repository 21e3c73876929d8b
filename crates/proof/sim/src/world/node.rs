//! Simulated machines: each one's handle on the world, its life and its deaths.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tailwater_env::{Clock, Disk, Env, Instant, Random, Task, Tasks};
use tokio::sync::Notify;

use crate::disk::SimDisk;
use crate::rng::Rng;

use super::executor::{ExecutorShared, Owner, Sleep};

/// The wall clock when a world begins: 2026-01-01T00:00:00Z in ms.
const WALL_MS_AT_START: i64 = 1_767_225_600_000;

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// kill -9: memory is gone, what was written is still in the operating system's memory.
    Process,
    /// The power fails: of what was not synced, any part may be gone.
    Power,
}

/// The node died before an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node crashed")]
pub struct Crashed;

pub(crate) struct NodeState {
    pub(crate) name: &'static str,
    /// The incarnation that is up, or none.
    up: Option<u64>,
    incarnation_next: u64,
    /// Its tasks do not run.
    pub(crate) is_paused: bool,
    /// Rung at each death. A watch would wake futures of one task that wait for it in any order.
    deaths: Arc<Notify>,
    wall_skew_ms: i64,
    rng: Rng,
    disk: SimDisk,
}

impl NodeState {
    pub(crate) fn is_alive(&self, incarnation: u64) -> bool {
        self.up == Some(incarnation)
    }

    pub(crate) fn disk(&self) -> &SimDisk {
        &self.disk
    }
}

/// A handle on one simulated machine.
#[derive(Clone)]
pub struct Node {
    shared: Arc<ExecutorShared>,
    id: usize,
}

impl Node {
    pub(super) fn create(shared: &Arc<ExecutorShared>, name: &'static str) -> Self {
        let disk = SimDisk::new(shared, name);
        let id = shared.with(|core| {
            core.record("node", name, core.nodes.len() as u64, 0);
            core.nodes.push(NodeState {
                name,
                up: Some(0),
                incarnation_next: 1,
                is_paused: false,
                deaths: Arc::default(),
                wall_skew_ms: 0,
                rng: Rng::new(shared.seed, name),
                disk,
            });
            core.nodes.len() - 1
        });
        Self { shared: shared.clone(), id }
    }

    /// The name it was created with.
    pub fn name(&self) -> &'static str {
        self.shared.with(|core| core.nodes[self.id].name)
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.owner().is_some()
    }

    /// The world as the running process sees it.
    ///
    /// # Panics
    /// If the node is down.
    pub fn env(&self) -> Env {
        self.env_with_disk(|disk| disk)
    }

    /// As [`Node::env`], with something put in front of the disk, such as a planted bug.
    ///
    /// # Panics
    /// If the node is down.
    pub fn env_with_disk(&self, wrap: impl FnOnce(Arc<dyn Disk>) -> Arc<dyn Disk>) -> Env {
        let owner = self.owner().expect("a node that is down has no processes");
        let shared = &self.shared;
        Env::new(
            Arc::new(NodeClock { shared: shared.clone(), owner: Some(owner) }),
            Arc::new(NodeRandom { shared: shared.clone(), node: self.id }),
            Arc::new(NodeTasks { shared: shared.clone(), owner: Some(owner) }),
            wrap(self.disk().mount(owner)),
        )
    }

    /// The controls of its disk.
    pub fn disk(&self) -> SimDisk {
        self.shared.with(|core| core.nodes[self.id].disk.clone())
    }

    /// Takes over the disk of `other`, as a volume that is detached there and attached here, and gives it its own.
    /// What was not synced is lost as in a power failure. The processes of `other` go on, and every call of theirs to
    /// that disk fails from here on.
    ///
    /// # Panics
    /// If this node is up, or is `other`.
    pub fn take_disk_of(&self, other: &Node) {
        assert!(!self.is_up(), "a disk is attached to a node that is down");
        assert_ne!(self.id, other.id, "a node has its own disk");
        let disk = self.shared.with(|core| {
            let disk = core.nodes[other.id].disk.clone();
            core.nodes[other.id].disk = std::mem::replace(&mut core.nodes[self.id].disk, disk.clone());
            core.record("take-disk", core.nodes[self.id].name, self.id as u64, other.id as u64);
            disk
        });
        disk.crash(Crash::Power);
    }

    /// Ends all its tasks at once. Does nothing if it is down.
    pub fn crash(&self, how: Crash) {
        if let Some(owner) = self.owner() {
            kill(&self.shared, owner, how);
        }
    }

    /// Starts it again, crashing it first if it is up.
    pub fn restart(&self, how: Crash) -> Env {
        self.crash(how);
        self.start();
        self.env()
    }

    /// Lets it come up after a crash. Does nothing if it is up.
    pub fn start(&self) {
        self.shared.with(|core| {
            let node = &mut core.nodes[self.id];
            if node.up.is_none() {
                let incarnation = node.incarnation_next;
                node.incarnation_next += 1;
                node.up = Some(incarnation);
                core.record("start", core.nodes[self.id].name, self.id as u64, incarnation);
            }
        });
    }

    /// Stops all its tasks where they are, as a machine that swaps, or whose hypervisor does. Time and timers go on.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Lets them go on. A crash does so, too.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    fn set_paused(&self, is_paused: bool) {
        self.shared.with(|core| {
            let node = &mut core.nodes[self.id];
            if node.is_paused != is_paused {
                node.is_paused = is_paused;
                core.record("pause", core.nodes[self.id].name, self.id as u64, u64::from(is_paused));
            }
        });
    }

    /// Completes when the running process is gone, at once if there is none.
    pub async fn died(&self) {
        if let Some(incarnation) = self.incarnation() {
            self.died_as(incarnation).await;
        }
    }

    /// The number of the running process; none if the node is down.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.owner().map(|owner| owner.incarnation)
    }

    /// Whether the process with that number is still running.
    pub(crate) fn is_incarnation(&self, incarnation: u64) -> bool {
        self.incarnation() == Some(incarnation)
    }

    /// Completes when the process with that number is gone.
    pub(crate) async fn died_as(&self, incarnation: u64) {
        let deaths = self.shared.with(|core| core.nodes[self.id].deaths.clone());
        loop {
            let death = deaths.notified();
            if !self.is_incarnation(incarnation) {
                return;
            }
            death.await;
        }
    }

    /// Runs `future` as a task of the node and answers its output.
    pub async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Crashed> {
        if !self.is_up() {
            return Err(Crashed);
        }
        super::run_on(&self.env(), name, future).await.ok_or(Crashed)
    }

    /// Moves its wall clock, in either direction.
    pub fn skew_wall_ms(&self, by: i64) {
        self.shared.with(|core| core.nodes[self.id].wall_skew_ms += by);
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        self.shared
            .with(|core| core.nodes[self.id].up)
            .map(|incarnation| Owner { node: self.id, incarnation })
    }
}

/// Kills one incarnation. Called from outside, or by its own disk when the last permitted I/O was made.
pub(crate) fn kill(shared: &ExecutorShared, owner: Owner, how: Crash) {
    let disk = shared.with(|core| {
        if !core.is_alive(owner) {
            return None;
        }
        let node = &mut core.nodes[owner.node];
        (node.up, node.is_paused) = (None, false);
        let disk = node.disk.clone();
        let name = node.name;
        core.record("crash", name, owner.incarnation, u64::from(how == Crash::Power));
        Some(disk)
    });
    let Some(disk) = disk else { return };
    shared.kill_tasks(owner);
    disk.crash(how);
    shared.with(|core| core.nodes[owner.node].deaths.clone()).notify_waiters();
}

/// For tasks that belong to no node and survive all crashes.
#[derive(Clone)]
pub struct Outside {
    shared: Arc<ExecutorShared>,
}

impl Outside {
    pub(super) fn new(shared: Arc<ExecutorShared>) -> Self {
        Self { shared }
    }

    /// Starts a task that may be polled at any moment, also in the middle of a node's disk call.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> Task {
        NodeTasks { shared: self.shared.clone(), owner: None }.spawn(name, Box::pin(future))
    }

    /// Completes once `duration` has passed.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = NodeClock { shared: self.shared.clone(), owner: None };
        clock.sleep_until(clock.now() + duration)
    }

    /// Time since the world began.
    pub fn now(&self) -> Instant {
        Instant::from_ns(self.shared.now_ns())
    }

    /// Folds an event into the trace.
    pub fn record(&self, kind: &'static str, a: u64, b: u64) {
        self.shared.record(kind, "", a, b);
    }

    /// `future`'s output, or `None` if it took longer than `limit`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let sleep = self.sleep(limit);
        match futures::future::select(std::pin::pin!(future), sleep).await {
            futures::future::Either::Left((output, _)) => Some(output),
            futures::future::Either::Right(_) => None,
        }
    }
}

struct NodeClock {
    shared: Arc<ExecutorShared>,
    owner: Option<Owner>,
}

impl Clock for NodeClock {
    fn now(&self) -> Instant {
        Instant::from_ns(self.shared.now_ns())
    }

    fn wall_ms(&self) -> i64 {
        self.shared.with(|core| {
            let skew = self.owner.map_or(0, |owner| core.nodes[owner.node].wall_skew_ms);
            WALL_MS_AT_START + skew + i64::try_from(core.now_ns / 1_000_000).expect("a short simulation")
        })
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Sleep::new(self.shared.clone(), self.owner, deadline.as_ns()))
    }
}

struct NodeRandom {
    shared: Arc<ExecutorShared>,
    node: usize,
}

impl Random for NodeRandom {
    fn next_u64(&self) -> u64 {
        self.shared.with(|core| {
            let node = &mut core.nodes[self.node];
            let (name, number) = (node.name, node.rng.next_u64());
            core.record("random", name, number, 0);
            number
        })
    }
}

struct NodeTasks {
    shared: Arc<ExecutorShared>,
    owner: Option<Owner>,
}

impl NodeTasks {
    fn start(&self, name: &'static str, dedicated: bool, future: BoxFuture<'static, ()>) -> Task {
        let id = self.shared.spawn(name, self.owner, dedicated, future);
        // Weak, because a task may hold its own handle or another's in a circle.
        let shared = Arc::downgrade(&self.shared);
        Task::new(move || {
            if let (Some(shared), Some(id)) = (shared.upgrade(), id) {
                shared.cancel(id);
            }
        })
    }
}

impl Tasks for NodeTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.start(name, false, future)
    }

    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.start(name, true, future)
    }
}
