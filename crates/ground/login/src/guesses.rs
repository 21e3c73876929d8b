//! Wrong logins, of which an address has some.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_access::network;
use tailwater_env::{HashMap, Instant};

use crate::limits::{WRONG_ADDRESSES_MAX, WRONG_FORGOTTEN_AFTER_S, WRONG_LOGINS_MAX};

/// After so long one wrong login is forgotten.
const WRONG_FORGOTTEN_AFTER: Duration = Duration::from_secs(WRONG_FORGOTTEN_AFTER_S);

/// Wrong logins, by the address that they come from.
#[derive(Debug, Default)]
pub(crate) struct WrongLogins(Mutex<HashMap<Option<IpAddr>, WrongCount>>);

/// Those of an address, or of all for which there was no room.
#[derive(Clone, Copy, Debug)]
struct WrongCount {
    count: u32,
    /// Up to when they were forgotten.
    since: Instant,
}

impl WrongCount {
    fn forget(&mut self, now: Instant) {
        let times = now.since(self.since).as_nanos() / WRONG_FORGOTTEN_AFTER.as_nanos();
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.count = self.count.saturating_sub(times);
        self.since = if self.count == 0 { now } else { self.since + WRONG_FORGOTTEN_AFTER * times };
    }
}

impl WrongLogins {
    /// Whether so many logins of an address were wrong that none is looked at for now.
    pub(crate) fn are_too_many(&self, address: IpAddr, now: Instant) -> bool {
        let mut wrong = self.0.lock();
        let key = Some(network(address));
        let is_full = wrong.len() >= WRONG_ADDRESSES_MAX && !wrong.contains_key(&key);
        let Some(of) = wrong.get_mut(if is_full { &None } else { &key }) else { return false };
        of.forget(now);
        of.count >= WRONG_LOGINS_MAX
    }

    /// A login was wrong.
    pub(crate) fn count(&self, address: IpAddr, now: Instant) {
        let mut wrong = self.0.lock();
        let mut key = Some(network(address));
        if wrong.len() >= WRONG_ADDRESSES_MAX && !wrong.contains_key(&key) {
            wrong.retain(|_, wrong| {
                wrong.forget(now);
                wrong.count > 0
            });
            key = key.filter(|_| wrong.len() < WRONG_ADDRESSES_MAX);
        }
        let of = wrong.entry(key).or_insert(WrongCount { count: 0, since: now });
        of.forget(now);
        of.count = of.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_that_guesses_waits_and_others_do_not() {
        let (wrong, now) = (WrongLogins::default(), Instant::default());
        for _ in 0..WRONG_LOGINS_MAX {
            assert!(!wrong.are_too_many(address(1), now));
            wrong.count(address(1), now);
        }
        assert!(wrong.are_too_many(address(1), now));
        assert!(!wrong.are_too_many(address(2), now));
        let later = now + WRONG_FORGOTTEN_AFTER;
        assert!(!wrong.are_too_many(address(1), later), "one is forgotten");
        wrong.count(address(1), later);
        assert!(wrong.are_too_many(address(1), later));
    }

    #[test]
    fn more_addresses_than_are_counted_are_bounded_together() {
        let (wrong, now) = (WrongLogins::default(), Instant::default());
        for number in 0..WRONG_ADDRESSES_MAX as u32 {
            wrong.count(address(number), now);
        }
        let admitted = (0..1_000).map(|number| address(1 << 20 | number)).filter(|address| {
            let is_admitted = !wrong.are_too_many(*address, now);
            wrong.count(*address, now);
            is_admitted
        });
        assert_eq!(admitted.count() as u32, WRONG_LOGINS_MAX);
        assert_eq!(wrong.0.lock().len(), WRONG_ADDRESSES_MAX + 1);
        let later = now + WRONG_FORGOTTEN_AFTER;
        wrong.count(address(1 << 21), later);
        assert!(!wrong.are_too_many(address(1 << 21), later), "the others were forgotten");
    }
}
