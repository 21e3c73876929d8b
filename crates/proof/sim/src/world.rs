//! A world made from a seed: virtual time, tasks in seeded order, nodes that crash, disks that forget.
//!
//! - Same seed, same code: same [`World::trace`]. Nothing in a world looks at the machine's clock, threads,
//!   random numbers or files.
//! - A node's tasks, timers and open files end together at [`Node::crash`]; its disk stays, as a machine's does.
//! - The future given to [`World::run`] stands outside of all nodes and sees what they do, like an operator or
//!   a test. It is never polled in the middle of a disk call; everything else may be.

mod executor;
mod node;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tailwater_env::{Env, Instant, Task};

pub(crate) use executor::{ExecutorShared, Owner};
pub(crate) use node::kill;
pub use node::{Crash, Crashed, Node, Outside};

/// Why a world came to a halt before its main future completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StuckWorld {
    /// Every task waits for another one.
    #[error("nothing is ready and no timer is set at {at_ns} ns: the main future waits for ever")]
    Deadlock {
        /// Virtual time.
        at_ns: u64,
    },
    /// A task spins, or the work does not end.
    #[error("not done after {steps} polls, at {at_ns} ns")]
    StepsUsedUp {
        /// Polls done.
        steps: u64,
        /// Virtual time.
        at_ns: u64,
    },
}

/// Polls after which [`World::run`] gives up unless told otherwise: some seconds of real time.
pub const STEPS_MAX_DEFAULT: u64 = 5_000_000;

/// A seeded world. Dropping it drops every task in it.
pub struct World {
    shared: Arc<ExecutorShared>,
    steps_max: u64,
}

impl World {
    /// A world in which everything is decided by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { shared: ExecutorShared::new(seed), steps_max: STEPS_MAX_DEFAULT }
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Bounds the number of polls of all [`World::run`] calls together.
    pub fn set_steps_max(&mut self, steps: u64) {
        self.steps_max = steps;
    }

    /// Whether other tasks run during the disk calls of dedicated tasks; they do unless told otherwise.
    pub fn set_run_tasks_during_io(&self, run: bool) {
        self.shared.set_run_tasks_during_io(run);
    }

    /// A handle for tasks that stand outside of all nodes, such as one that breaks things.
    pub fn outside(&self) -> Outside {
        Outside::new(self.shared.clone())
    }

    /// A new node, up, with an empty disk.
    pub fn node(&self, name: &'static str) -> Node {
        Node::create(&self.shared, name)
    }

    /// Time since the world began.
    pub fn now(&self) -> Instant {
        Instant::from_ns(self.shared.now_ns())
    }

    /// Runs everything until `main` completes.
    pub fn run<F: Future>(&self, main: F) -> Result<F::Output, StuckWorld> {
        let mut main = std::pin::pin!(main);
        let waker = self.shared.main_waker();
        loop {
            match self.shared.step() {
                executor::ExecutorStep::Main => {
                    if let Poll::Ready(output) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Ok(output);
                    }
                }
                executor::ExecutorStep::Done => {}
                executor::ExecutorStep::Nothing => {
                    return Err(StuckWorld::Deadlock { at_ns: self.shared.now_ns() });
                }
            }
            let (steps, at_ns) = self.shared.with(|core| (core.steps, core.now_ns));
            if steps > self.steps_max {
                return Err(StuckWorld::StepsUsedUp { steps, at_ns });
            }
        }
    }

    /// Runs everything for a stretch of virtual time.
    pub fn run_for(&self, duration: Duration) -> Result<(), StuckWorld> {
        self.run(self.outside().sleep(duration))
    }

    /// Hash over everything that happened so far.
    pub fn trace(&self) -> u64 {
        self.shared.with(|core| core.trace.hash())
    }

    /// Number of events in the trace.
    pub fn events(&self) -> u64 {
        self.shared.with(|core| core.trace.count())
    }

    /// The last events in words, oldest first.
    pub fn recent_events(&self) -> Vec<String> {
        self.shared.with(|core| core.trace.recent().map(ToString::to_string).collect())
    }

    /// Whether each event is written to standard error as it happens.
    pub fn set_print_events(&self, print: bool) {
        self.shared.with(|core| core.trace.set_print(print));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks hold handles on the world and the world holds the tasks.
        self.shared.clear();
    }
}

/// Runs `future` as a task of `env` and answers its output; `None` if its node died first.
pub async fn run_on<T: Send + 'static>(
    env: &Env,
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    let task: Task = env.spawn(name, async move {
        // The receiver is gone if nobody wants to know any more.
        let _ = send.send(future.await);
    });
    let output = receive.await.ok();
    drop(task);
    output
}
