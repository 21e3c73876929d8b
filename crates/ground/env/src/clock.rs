//! Two clocks: one that never goes back, for deadlines, and the wall's, for timestamps.

use std::ops::{Add, Sub};
use std::time::Duration;

use futures::future::BoxFuture;

/// A point on the clock that never goes back: nanoseconds since an origin that is fixed for one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The point `ns` nanoseconds after the origin.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Never less than what an earlier call answered, on any thread.
    fn now(&self) -> Instant;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> i64;
    /// Completes once `now()` has reached `deadline`; dropping it cancels the timer.
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()>;
}
