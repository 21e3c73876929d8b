//! A world for tests that is real but for its clock, which a test moves.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::{BoxFuture, Clock, Env, Instant, Random, Task, Tasks};
use tokio::sync::watch;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The shortest time that the clock can move by.
pub(crate) const MOMENT: Duration = Duration::from_nanos(1);

/// A world that is real but for its clock, which goes when the test says so.
pub(crate) struct MovedClock {
    real: Env,
    now: watch::Sender<Instant>,
}

impl MovedClock {
    pub(crate) fn new() -> (Arc<Self>, Env) {
        let real = Env::real();
        let disk = Arc::clone(real.disk());
        let moved = Arc::new(Self { real, now: watch::Sender::new(Instant::from_ns(0)) });
        let env = Env::new(moved.clone(), moved.clone(), moved.clone(), disk);
        (moved, env)
    }

    /// Moves the clock; whoever was waiting for that has done what it had to when this returns.
    pub(crate) async fn pass(&self, duration: Duration) {
        self.now.send_modify(|now| *now = *now + duration);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Instant {
        *self.now.borrow()
    }

    fn wall_ms(&self) -> i64 {
        self.real.wall_ms()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            if now.wait_for(|now| *now >= deadline).await.is_err() {
                // The test is over.
                futures::future::pending().await
            }
        })
    }
}

impl Random for MovedClock {
    fn next_u64(&self) -> u64 {
        self.real.random_u64()
    }
}

impl Tasks for MovedClock {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.real.spawn(name, future)
    }

    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.real.spawn_dedicated(name, future)
    }
}
