//! What the world outside knows of a scenario, and how clients are told that it is over.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Env;

use crate::checkers::{Report, Violation};
use crate::world::{StuckWorld, World};

/// What the world outside knows of a scenario, whatever that is about.
#[derive(Default)]
pub(super) struct Noted {
    /// What happened so far.
    pub(super) report: Report,
    /// The first thing seen that must not be.
    pub(super) violation: Option<Violation>,
    /// Clients end.
    pub(super) stop: bool,
    /// Those that have not.
    pub(super) clients: usize,
}

/// What the world outside of a scenario's node knows.
pub(super) trait Outcome {
    /// What is noted of it.
    fn noted(&mut self) -> &mut Noted;

    /// Nothing is left of the life before.
    fn begin_life(&mut self) {}

    /// Counts something.
    fn count(&mut self, what: &'static str, times: u64) {
        self.noted().report.count(what, times);
    }

    /// Notes what a check came to.
    fn note(&mut self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.noted().violation.get_or_insert(violation);
        }
    }

    /// Whether anything was seen that must not be.
    fn has_failed(&mut self) -> bool {
        self.noted().violation.is_some()
    }

    /// Whether clients are to end.
    fn is_over(&mut self) -> bool {
        self.noted().stop || self.has_failed()
    }

    /// What happened so far.
    fn report(&mut self) -> Report {
        self.noted().report.clone()
    }

    /// Fails if anything was seen that must not be.
    fn take_violation(&mut self) -> Result<(), Violation> {
        self.noted().violation.take().map_or(Ok(()), Err)
    }
}

impl Outcome for Noted {
    fn noted(&mut self) -> &mut Noted {
        self
    }
}

/// The same for tasks that share a whole scenario: what is noted has a lock of its own, which is held for nothing else.
#[derive(Default)]
pub(super) struct SharedOutcome(Mutex<Noted>);

impl SharedOutcome {
    /// See [`Outcome::count`].
    pub(super) fn count(&self, what: &'static str, times: u64) {
        self.0.lock().count(what, times);
    }

    /// See [`Outcome::note`].
    pub(super) fn note(&self, result: Result<(), Violation>) {
        self.0.lock().note(result);
    }

    /// See [`Outcome::has_failed`].
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().has_failed()
    }

    /// See [`Outcome::report`].
    pub(super) fn report(&self) -> Report {
        self.0.lock().report()
    }

    /// Lets so much time pass, or less if anything is seen that must not be.
    pub(super) fn let_pass(&self, world: &World, time: Duration) -> Result<(), StuckWorld> {
        let (outside, began) = (world.outside(), world.now());
        world.run(async {
            while world.now().since(began) < time && !self.has_failed() {
                outside.sleep(Duration::from_millis(10)).await;
            }
        })
    }

    /// See [`Outcome::take_violation`].
    pub(super) fn take_violation(&self) -> Result<(), Violation> {
        self.0.lock().take_violation()
    }
}

/// Runs a client as a task of `env`, and counts it while it does.
pub(super) fn spawn_client<M: Outcome + Send + 'static>(
    env: &Env,
    model: &Arc<Mutex<M>>,
    name: &'static str,
    running: impl Future<Output = ()> + Send + 'static,
) {
    model.lock().noted().clients += 1;
    let model = Arc::clone(model);
    let run = async move {
        running.await;
        model.lock().noted().clients -= 1;
    };
    env.spawn(name, run).detach();
}
