//! Keys by the time at which to look at them.

use std::collections::BTreeSet;

use tailwater_env::Instant;

/// A set of keys, each at most once, ordered by time and then by key. The key's own record keeps its time.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    times: BTreeSet<(Instant, K)>,
}

impl<K: Copy + Ord> Schedule<K> {
    pub(super) fn new() -> Self {
        Self { times: BTreeSet::new() }
    }

    /// Moves `key` from where its record says it is to `wanted`.
    pub(super) fn set(&mut self, key: K, scheduled: &mut Option<Instant>, wanted: Option<Instant>) {
        if *scheduled == wanted {
            return;
        }
        if let Some(at) = *scheduled {
            assert!(self.times.remove(&(at, key)), "a key is where its record says");
        }
        if let Some(at) = wanted {
            assert!(self.times.insert((at, key)), "a key is there once");
        }
        *scheduled = wanted;
    }

    /// The first key whose time has come; it stays where it is.
    pub(super) fn due(&self, now: Instant) -> Option<K> {
        self.times.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.times.first().map(|(at, _)| *at)
    }
}
