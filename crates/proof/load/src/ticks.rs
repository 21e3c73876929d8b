//! A clock that ticks at once and then at equal distances, to some tens of microseconds.
//!
//! The runtime's own timers count whole milliseconds, so that what is due every millisecond comes in twos every other
//! one, and of two records that come together the second waits for the first one's sync. A thread that sleeps is exact
//! enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Its thread ends within a tick after it was dropped.
pub struct Ticks {
    ticked: Arc<Notify>,
}

impl Ticks {
    /// Begins at once, with the first tick.
    pub fn new(every: Duration) -> Self {
        let ticked = Arc::new(Notify::new());
        let taken_by = Arc::downgrade(&ticked);
        std::thread::spawn(move || {
            let mut next = Instant::now();
            while let Some(ticked) = taken_by.upgrade() {
                ticked.notify_one();
                drop(ticked);
                // One that comes late moves the others, in place of many at once behind it.
                next = (next + every).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Self { ticked }
    }

    /// The next tick, or one for all that were missed. May be dropped: a tick that nobody took is there the next time.
    pub async fn tick(&self) {
        self.ticked.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn as_many_ticks_as_there_is_time_for_come_and_none_too_early() {
        let begin = Instant::now();
        let ticks = Ticks::new(Duration::from_micros(700));
        for _ in 0..20 {
            ticks.tick().await;
        }
        assert!(begin.elapsed() >= Duration::from_micros(19 * 700), "the first comes at once");
    }
}
