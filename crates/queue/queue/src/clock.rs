//! The time that queues go by: milliseconds since the epoch, which never go back.
//!
//! It is the wall's at the start, and runs as the machine's monotonic clock does. Where the wall's is ahead by more
//! than a second (the machine slept, or its clock was set), it follows; where that one was set back it does not, and no
//! timeout gets longer by it.

use tailwater_env::{Env, Instant};

/// How far the wall's clock may be ahead before it is followed, in milliseconds.
const AHEAD_MS_MAX: u64 = 1_000;

/// A clock; one for all queues of a store.
#[derive(Clone)]
pub(crate) struct QueueClock {
    env: Env,
    /// Time at the origin of the monotonic clock, which may lie before the epoch in a simulated world.
    base_ms: u64,
}

impl QueueClock {
    /// A clock that does not go below `least_ms`.
    pub(crate) fn start(env: &Env, least_ms: u64) -> Self {
        let wall = u64::try_from(env.wall_ms()).unwrap_or(0).max(least_ms);
        let elapsed = env.now().as_ns() / 1_000_000;
        Self { env: env.clone(), base_ms: wall.saturating_sub(elapsed) }
    }

    /// What time it is.
    pub(crate) fn now(&mut self) -> u64 {
        let now = self.base_ms + self.env.now().as_ns() / 1_000_000;
        let wall = u64::try_from(self.env.wall_ms()).unwrap_or(0);
        if wall > now + AHEAD_MS_MAX {
            self.base_ms += wall - now;
            return wall;
        }
        now
    }

    /// When it will be that time, as the clock goes now: not earlier than that.
    pub(crate) fn instant(&self, ms: u64) -> Instant {
        Instant::from_ns(ms.saturating_sub(self.base_ms).saturating_mul(1_000_000))
    }
}
