//! What may be published over HTTP from each address, of IPv6 from each /64 network.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_access::network;
use tailwater_broadcast::quota::{Meter, Quota};
use tailwater_env::{Env, HashMap, Instant};

/// Addresses that are remembered at most, and how often those are forgotten of which nothing is missing when there are
/// as many.
const ADDRESSES_MAX: usize = 10_000;
const TIDY: Duration = Duration::from_secs(1);

/// A meter for each address that published lately.
pub(super) struct QuotaAddresses {
    env: Env,
    quota: Quota,
    meters: Mutex<Meters>,
    refused: AtomicU64,
}

struct Meters {
    of: HashMap<IpAddr, Meter>,
    /// Of all addresses beyond those.
    others: Meter,
    tidied: Instant,
}

impl QuotaAddresses {
    pub(super) fn new(env: &Env, quota: Quota) -> Self {
        let now = env.now();
        let meters = Meters { of: HashMap::default(), others: Meter::new(quota, now), tidied: now };
        Self { env: env.clone(), quota, meters: Mutex::new(meters), refused: AtomicU64::new(0) }
    }

    /// Whether something may be published from an address now; if not, how long until it may.
    pub(super) fn admit(&self, from: IpAddr) -> Result<(), Duration> {
        let (from, now) = (network(from), self.env.now());
        let mut meters = self.meters.lock();
        let Meters { of, others, .. } = &mut *meters;
        let is_full = of.len() >= ADDRESSES_MAX;
        let meter = of.get_mut(&from).or(is_full.then_some(others));
        let wait = meter.map_or(Duration::ZERO, |meter| meter.wait(now));
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
        let (from, now) = (network(from), self.env.now());
        let mut meters = self.meters.lock();
        let Meters { of, others, tidied } = &mut *meters;
        let has_room = |of: &HashMap<IpAddr, Meter>| of.len() < ADDRESSES_MAX || of.contains_key(&from);
        if !has_room(of) && now.since(*tidied) >= TIDY {
            *tidied = now;
            of.retain(|_, meter| !meter.wait(now).is_zero() || !meter.is_full());
        }
        let meter = match has_room(of) {
            true => of.entry(from).or_insert_with(|| Meter::new(self.quota, now)),
            false => others,
        };
        meter.spend(bytes, events);
    }

    /// Requests that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[tokio::test]
    async fn the_addresses_of_a_network_of_ipv6_share_a_quota_and_one_of_ipv4_has_one_however_it_is_written()
    {
        let quota = Quota { events_per_s: 1, burst_s: 1.0, ..Quota::NONE };
        let addresses = QuotaAddresses::new(&Env::real(), quota);
        let may = |from: &str| addresses.admit(from.parse().unwrap()).is_ok();
        for spends in ["2001:db8::1", "::ffff:192.0.2.1"] {
            // So much that nothing is back soon.
            addresses.spend(spends.parse().unwrap(), 0, 1_000_000);
        }
        assert!(!may("2001:db8::1") && !may("2001:db8::ffff:0:0:2") && !may("192.0.2.1"));
        assert!(may("2001:db8:0:1::1") && may("192.0.2.2"));
    }

    #[tokio::test]
    async fn addresses_beyond_those_that_are_remembered_share_a_quota() {
        let quota = Quota { events_per_s: 1, burst_s: 1.0, ..Quota::NONE };
        let addresses = QuotaAddresses::new(&Env::real(), quota);
        let address = |n: usize| IpAddr::V6(Ipv6Addr::from_bits((n as u128) << 64));
        for n in 0..2 * ADDRESSES_MAX {
            // So much that none of them is forgotten soon.
            addresses.spend(address(n), 0, 1_000_000);
        }
        assert_eq!(addresses.meters.lock().of.len(), ADDRESSES_MAX);
        assert!(addresses.admit(address(0)).is_err());
        assert!(addresses.admit(address(5 * ADDRESSES_MAX)).is_err(), "one that has published nothing");
    }
}
