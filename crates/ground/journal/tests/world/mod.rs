//! A small world for tests: one thread, tasks in an order drawn from a seed, a clock that jumps to the next
//! timer when nothing else is left to do, and a disk (`disk.rs`) that fails and crashes when told to.

#![allow(dead_code, unused_imports)] // each test file uses a part of it

mod disk;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Clock, Env, Instant, Random, Task, Tasks};

pub use disk::{Fault, TestDisk};

/// The world; dropping it drops its tasks, as a crash does.
pub struct World {
    shared: Arc<Shared>,
    pub disk: Arc<TestDisk>,
    pub env: Env,
}

struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: u64,
    seed: u64,
    tasks: BTreeMap<u64, Option<BoxFuture<'static, ()>>>,
    ready: Vec<u64>,
    timers: BTreeMap<(u64, u64), Waker>,
    ids: u64,
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn next_random(&mut self) -> u64 {
        splitmix(&mut self.seed)
    }
}

/// The next number of a seeded sequence.
pub fn splitmix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The main future's number; tasks have higher ones.
const MAIN: u64 = 0;

impl World {
    /// A world with an empty disk.
    pub fn new(seed: u64) -> Self {
        Self::with_disk(seed, Arc::new(TestDisk::new(seed)))
    }

    /// A world on what a crash of another one left.
    pub fn with_disk(seed: u64, disk: Arc<TestDisk>) -> Self {
        let shared = Arc::new(Shared { state: Mutex::new(State { seed, ..State::default() }) });
        let env = Env::new(
            Arc::new(Part(Arc::clone(&shared))),
            Arc::new(Part(Arc::clone(&shared))),
            // Tasks hold an Env: a strong handle here would keep them and the world alive for ever.
            Arc::new(Spawner(Arc::downgrade(&shared))),
            Arc::clone(&disk) as Arc<dyn tailwater_env::Disk>,
        );
        Self { shared, disk, env }
    }

    /// Runs until `future` completes; `None` if the disk has crashed before.
    ///
    /// # Panics
    /// If nothing is left that could happen.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        self.shared.state.lock().ready.push(MAIN);
        loop {
            if self.disk.has_crashed() {
                return None;
            }
            let Some(id) = self.next_ready() else {
                panic!("nothing is left to do, and the test still waits");
            };
            let waker = Waker::from(Arc::new(Ready { id, shared: Arc::downgrade(&self.shared) }));
            let mut context = Context::from_waker(&waker);
            if id == MAIN {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return if self.disk.has_crashed() { None } else { Some(output) };
                }
                continue;
            }
            let task = self.shared.state.lock().tasks.get_mut(&id).and_then(Option::take);
            if let Some(mut task) = task {
                let polled = task.as_mut().poll(&mut context);
                let mut state = self.shared.state.lock();
                match (polled, state.tasks.get_mut(&id)) {
                    (Poll::Pending, Some(place)) => *place = Some(task),
                    // Ended, or cancelled by itself.
                    _ => drop(state.tasks.remove(&id)),
                }
            }
        }
    }

    fn next_ready(&self) -> Option<u64> {
        let mut state = self.shared.state.lock();
        while state.ready.is_empty() {
            let ((at, _), waker) = state.timers.pop_first()?;
            state.now = state.now.max(at);
            drop(state);
            waker.wake();
            state = self.shared.state.lock();
        }
        let choice = state.next_random() as usize % state.ready.len();
        Some(state.ready.swap_remove(choice))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Dropping tasks cancels others, so the lock must not be held.
        let tasks = std::mem::take(&mut self.shared.state.lock().tasks);
        drop(tasks);
        self.shared.state.lock().timers.clear();
    }
}

struct Ready {
    id: u64,
    shared: Weak<Shared>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            let mut state = shared.state.lock();
            if !state.ready.contains(&self.id) {
                state.ready.push(self.id);
            }
        }
    }
}

struct Part(Arc<Shared>);

impl Clock for Part {
    fn now(&self) -> Instant {
        Instant::from_ns(self.0.state.lock().now)
    }

    fn wall_ms(&self) -> i64 {
        (self.0.state.lock().now / 1_000_000) as i64
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let shared = Arc::clone(&self.0);
        let mut registered = false;
        Box::pin(std::future::poll_fn(move |context| {
            let mut state = shared.state.lock();
            if state.now >= deadline.as_ns() {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut registered, true) {
                let id = state.next_id();
                state.timers.insert((deadline.as_ns(), id), context.waker().clone());
            }
            Poll::Pending
        }))
    }
}

impl Random for Part {
    fn next_u64(&self) -> u64 {
        self.0.state.lock().next_random()
    }
}

struct Spawner(Weak<Shared>);

impl Tasks for Spawner {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let Some(shared) = self.0.upgrade() else { return Task::new(|| {}) };
        let mut state = shared.state.lock();
        let id = state.next_id();
        state.tasks.insert(id, Some(future));
        state.ready.push(id);
        let shared = Weak::clone(&self.0);
        Task::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            let cancelled = shared.state.lock().tasks.remove(&id);
            drop(cancelled);
        })
    }

    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.spawn(name, future)
    }
}
