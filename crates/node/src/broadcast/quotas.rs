//! What may be published over HTTP from each address.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_broadcast::quota::{Meter, Quota};
use tailwater_env::{Env, HashMap};

/// Addresses that are remembered before those are forgotten that nothing is missing of.
const ADDRESSES_MAX: usize = 10_000;

/// A meter for each address that published lately.
pub(super) struct Addresses {
    env: Env,
    quota: Quota,
    meters: Mutex<HashMap<IpAddr, Meter>>,
    refused: AtomicU64,
}

impl Addresses {
    pub(super) fn new(env: &Env, quota: Quota) -> Self {
        Self { env: env.clone(), quota, meters: Mutex::default(), refused: AtomicU64::new(0) }
    }

    /// Whether something may be published from an address now; if not, how long until it may.
    pub(super) fn admit(&self, from: IpAddr) -> Result<(), Duration> {
        let now = self.env.now();
        let mut meters = self.meters.lock();
        let wait = meters.get_mut(&from).map_or(Duration::ZERO, |meter| meter.wait(now));
        if wait.is_zero() {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(wait)
    }

    /// So much is published from an address.
    pub(super) fn spend(&self, from: IpAddr, bytes: u64, events: u64) {
        let is_bounded = self.quota.bytes_per_s > 0 || self.quota.events_per_s > 0;
        if !is_bounded {
            return;
        }
        let now = self.env.now();
        let mut meters = self.meters.lock();
        if meters.len() >= ADDRESSES_MAX && !meters.contains_key(&from) {
            meters.retain(|_, meter| !meter.wait(now).is_zero() || !meter.is_full());
        }
        meters.entry(from).or_insert_with(|| Meter::new(self.quota, now)).spend(bytes, events);
    }

    /// Requests that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
