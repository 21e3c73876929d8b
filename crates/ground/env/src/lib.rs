//! The seams to the outside world.
//!
//! Everything that a simulated world has to control comes in through [`Env`]: time, randomness, tasks and
//! the disk. (The network comes in one floor up, as `rma::Connection`.) [`Env::real`] is the world that the
//! binary runs in; the `sim` crate builds one from a seed. Clippy forbids the direct calls.
//!
//! What holds in every world:
//! - [`Env::now`] never goes back. [`Env::wall_ms`] may.
//! - A task is dropped at an await point when its [`Task`] handle is dropped, unless it was detached.
//! - Only a task started by [`Env::spawn_dedicated`] may block, and disk calls block.

mod clock;
mod complaints;
mod disk;
pub mod panics;
mod progress;
mod random;
mod real;
mod tasks;
mod times;

use std::future::Future;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, Instant};
pub use complaints::Complaints;
pub use disk::{Disk, File, LockGuard, OpenMode};
pub use futures::future::BoxFuture;
pub use progress::{Progress, Stage};
pub use random::Random;
pub use tasks::{Task, TaskGroup, Tasks, yield_once};
pub use times::{TIMES_BUCKETS, TIMES_POWERS, Times, TimesRead, times_end};

/// A hash map that iterates in the same order for the same keys in every run.
#[allow(clippy::disallowed_types)]
pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<xxhash_rust::xxh3::Xxh3Default>>;
/// A hash set that iterates in the same order for the same keys in every run.
#[allow(clippy::disallowed_types)]
pub type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<xxhash_rust::xxh3::Xxh3Default>>;

/// A handle on one world; cheap to clone, and what every part of Tailwater is given when it is opened.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    tasks: Arc<dyn Tasks>,
    disk: Arc<dyn Disk>,
}

impl Env {
    /// A world of the four given parts.
    pub fn new(
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        tasks: Arc<dyn Tasks>,
        disk: Arc<dyn Disk>,
    ) -> Self {
        Self { clock, random, tasks, disk }
    }

    /// The real world: the machine's clocks and disk, and the tokio runtime this is called in.
    ///
    /// # Panics
    /// Outside a tokio runtime that has its timer enabled.
    pub fn real() -> Self {
        real::env(tokio::runtime::Handle::current())
    }

    /// Time since an arbitrary origin; never goes back.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Milliseconds since the Unix epoch; may jump in either direction.
    pub fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Completes once `duration` has passed.
    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(self.now() + duration)
    }

    /// Completes once [`Env::now`] has reached `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(deadline)
    }

    /// `future`'s output, or `None` if it took longer than `limit`; the future is dropped then.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let sleep = self.sleep(limit);
        let future = std::pin::pin!(future);
        match futures::future::select(future, sleep).await {
            futures::future::Either::Left((output, _)) => Some(output),
            futures::future::Either::Right(_) => None,
        }
    }

    /// 64 random bits; not for secrets in a simulated world.
    pub fn random_u64(&self) -> u64 {
        self.random.next_u64()
    }

    /// A random number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0 does not exist");
        // Multiply-shift: the bias is below bound / 2^64, which no use here can notice.
        ((u128::from(self.random_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Starts a task, which must not block. `name` says what it is for in traces.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> Task {
        self.tasks.spawn(name, Box::pin(future))
    }

    /// Starts a task on a thread of its own, where it may block on the disk.
    pub fn spawn_dedicated(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Task {
        self.tasks.spawn_dedicated(name, Box::pin(future))
    }

    /// The disk. Its calls block: make them from dedicated tasks, or while opening.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
