//! How fast it is copied from other clusters: all streams that come from one share what the link to it may carry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};

use crate::limits::{ANSWER_BYTES, WINDOW};

/// What the links to other clusters may carry, by their names, in bytes a second, at least
/// [`crate::limits::LINK_BYTES_PER_S_MIN`] each. One that is not there has no bound.
pub type LinkRates = BTreeMap<String, u64>;

/// What one of them has carried.
pub(crate) struct LinkPace {
    bytes_per_s: u64,
    /// When what came so far is what it may have carried.
    even_at: Mutex<Instant>,
}

impl LinkPace {
    /// That of each link with a bound.
    pub(crate) fn of_all(env: &Env, rates: &LinkRates) -> BTreeMap<String, Arc<Self>> {
        let pace = |bytes_per_s: u64| {
            Arc::new(Self { bytes_per_s: bytes_per_s.max(1), even_at: Mutex::new(env.now()) })
        };
        rates.iter().map(|(name, rate)| (name.clone(), pace(*rate))).collect()
    }

    /// Answers that one stream may have under way: what comes in a second, and one at least.
    pub(crate) fn window(&self) -> usize {
        usize::try_from(self.bytes_per_s / ANSWER_BYTES as u64).unwrap_or(WINDOW).clamp(1, WINDOW)
    }

    /// So many bytes came; waits until they, and all before them, are what the link may have carried.
    pub(crate) async fn spend(&self, env: &Env, bytes: usize) {
        let wait = {
            let mut even_at = self.even_at.lock();
            let now = env.now();
            // What it did not carry it may not carry later.
            *even_at = (*even_at).max(now) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
            even_at.since(now)
        };
        if !wait.is_zero() {
            env.sleep(wait).await;
        }
    }
}
