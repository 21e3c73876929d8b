//! How fast copies are made.

use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};

/// Bytes per second that copying may move, to cold storage and back. What is not used is not saved up.
#[derive(Debug)]
pub struct CopyPace {
    env: Env,
    /// 0 is no bound.
    bytes_per_s: u64,
    /// When the next bytes may go.
    free_at: Mutex<Instant>,
}

impl CopyPace {
    /// So many bytes per second; 0 is no bound.
    pub fn new(env: &Env, bytes_per_s: u64) -> Self {
        Self { env: env.clone(), bytes_per_s, free_at: Mutex::new(env.now()) }
    }

    /// Completes when `bytes` more may be moved.
    pub(crate) async fn take(&self, bytes: usize) {
        if self.bytes_per_s == 0 {
            return;
        }
        let now = self.env.now();
        let begin = {
            let mut free_at = self.free_at.lock();
            let begin = now.max(*free_at);
            let ns = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.bytes_per_s);
            *free_at = begin + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            begin
        };
        if begin > now {
            self.env.sleep_until(begin).await;
        }
    }
}
