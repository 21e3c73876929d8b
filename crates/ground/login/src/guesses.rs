//! What an address may cost before its clients are known: wrong logins, and connections of strangers.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_access::network;
use tailwater_env::{HashMap, Instant};

use crate::limits::{STRANGERS_MAX, WRONG_ADDRESSES_MAX, WRONG_FORGOTTEN_AFTER, WRONG_LOGINS_MAX};

/// Wrong logins, by the address that they come from. A login counts as wrong until it is known to be right, so that
/// many at once are no more guesses than one after the other.
#[derive(Debug, Default)]
pub(crate) struct WrongLogins(Mutex<HashMap<Option<IpAddr>, Wrong>>);

/// Those of an address, or of all for which there was no room.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    count: u32,
    /// Up to when they were forgotten.
    since: Instant,
}

impl Wrong {
    fn forget(&mut self, now: Instant) {
        let times = now.since(self.since).as_nanos() / WRONG_FORGOTTEN_AFTER.as_nanos();
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        self.count = self.count.saturating_sub(times);
        self.since = if self.count == 0 { now } else { self.since + WRONG_FORGOTTEN_AFTER * times };
    }
}

impl WrongLogins {
    /// Whether another one is looked at. It counts as wrong from then on.
    pub(crate) fn take(&self, address: IpAddr, now: Instant) -> bool {
        let mut wrong = self.0.lock();
        let mut key = Some(network(address));
        if wrong.len() >= WRONG_ADDRESSES_MAX && !wrong.contains_key(&key) {
            wrong.retain(|_, wrong| {
                wrong.forget(now);
                wrong.count > 0
            });
            key = key.filter(|_| wrong.len() < WRONG_ADDRESSES_MAX);
        }
        let of = wrong.entry(key).or_insert(Wrong { count: 0, since: now });
        of.forget(now);
        let admits = of.count < WRONG_LOGINS_MAX;
        of.count += u32::from(admits);
        admits
    }

    /// One that was looked at was right.
    pub(crate) fn was_right(&self, address: IpAddr) {
        let mut wrong = self.0.lock();
        let key = Some(network(address));
        let key = if wrong.contains_key(&key) { key } else { None };
        if let Some(of) = wrong.get_mut(&key) {
            of.count = of.count.saturating_sub(1);
            if of.count == 0 {
                wrong.remove(&key);
            }
        }
    }
}

/// Connections whose clients have not logged in, by the address that they come from: at most [`STRANGERS_MAX`] each, so
/// that none of them takes the room of the others.
#[derive(Clone, Debug, Default)]
pub struct Strangers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A stranger's place, until it is dropped.
#[derive(Debug)]
pub struct StrangerPermit {
    strangers: Strangers,
    network: IpAddr,
}

impl Strangers {
    /// A place for one more connection of this address, if it may have one.
    pub fn take(&self, address: IpAddr) -> Option<StrangerPermit> {
        let network = network(address);
        let mut strangers = self.0.lock();
        let count = strangers.entry(network).or_default();
        if *count >= STRANGERS_MAX {
            return None;
        }
        *count += 1;
        Some(StrangerPermit { strangers: self.clone(), network })
    }
}

impl Drop for StrangerPermit {
    fn drop(&mut self) {
        let mut strangers = self.strangers.0.lock();
        if let Some(count) = strangers.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                strangers.remove(&self.network);
            }
        }
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
            assert!(wrong.take(address(1), now));
        }
        assert!(!wrong.take(address(1), now));
        assert!(wrong.take(address(2), now));
        let later = now + WRONG_FORGOTTEN_AFTER;
        assert!(wrong.take(address(1), later), "one is forgotten");
        assert!(!wrong.take(address(1), later));
    }

    #[test]
    fn right_logins_are_not_counted() {
        let (wrong, now) = (WrongLogins::default(), Instant::default());
        for _ in 0..10 * WRONG_LOGINS_MAX {
            assert!(wrong.take(address(1), now));
            wrong.was_right(address(1));
        }
        assert!(wrong.0.lock().is_empty());
    }

    #[test]
    fn more_addresses_than_are_counted_are_bounded_together() {
        let (wrong, now) = (WrongLogins::default(), Instant::default());
        for number in 0..WRONG_ADDRESSES_MAX as u32 {
            assert!(wrong.take(address(number), now));
        }
        let admitted = (0..1_000).filter(|number| wrong.take(address(1 << 20 | number), now)).count();
        assert_eq!(admitted as u32, WRONG_LOGINS_MAX);
        assert_eq!(wrong.0.lock().len(), WRONG_ADDRESSES_MAX + 1);
    }

    #[test]
    fn strangers_of_an_address_are_bounded_until_they_are_known_or_gone() {
        let strangers = Strangers::default();
        let mut taken: Vec<_> =
            (0..STRANGERS_MAX).map(|_| strangers.take(address(1)).expect("room")).collect();
        assert!(strangers.take(address(1)).is_none());
        assert!(strangers.take(address(2)).is_some());
        taken.pop();
        assert!(strangers.take(address(1)).is_some());
        taken.clear();
        assert!(strangers.0.lock().is_empty());
    }
}
