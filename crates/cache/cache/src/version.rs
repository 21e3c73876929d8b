//! Versions: which of two SETs of one key is the later one.
//!
//! A version is the triple (timestamp, client id, sequence), ordered in that order. Client ids are unique, and
//! a client never makes the same version twice, so versions are unique. One client's versions only grow,
//! whatever its wall clock does. Two clients' versions are ordered by their clocks; a client that loses against
//! a higher version [follows](VersionClock::follow) it, so a slow clock delays a writer by a round trip but
//! does not silence it.

use std::fmt;

use parking_lot::Mutex;

use crate::limits::VERSION_AHEAD_MAX;

/// Which SET or ERASE of a key it was. A backend applies one only if it is higher than what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Microseconds since the Unix epoch by the clock of the client, or more if it had to go on counting.
    pub timestamp_us: u64,
    /// Who made it.
    pub client_id: u32,
    /// Tells versions of one client and microsecond apart.
    pub sequence: u32,
}

impl Version {
    /// Size in bytes wherever it is written.
    pub const BYTES: usize = 16;
    /// Below every version that a client makes.
    pub const ZERO: Version = Version { timestamp_us: 0, client_id: 0, sequence: 0 };

    /// Whether it is more than [`VERSION_AHEAD_MAX`] ahead of a wall clock that shows `wall_ms`.
    pub fn is_ahead(self, wall_ms: i64) -> bool {
        let ahead_max_ms = i64::try_from(VERSION_AHEAD_MAX.as_millis()).unwrap_or(i64::MAX);
        let bound_ms = u64::try_from(wall_ms.saturating_add(ahead_max_ms)).unwrap_or(0);
        self.timestamp_us > bound_ms.saturating_mul(1000)
    }

    /// 64 bits that stand for it, never 0: of another version they are the same with a probability of 2^-64. They do
    /// not tell which of two versions is the later one.
    pub fn token(self) -> u64 {
        crate::layout::xxh3_64(&self.to_bytes()).max(1)
    }

    /// Little endian: timestamp (8), client id (4), sequence (4).
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.timestamp_us.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.client_id.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// The inverse of [`Version::to_bytes`]; every value of the bytes is a version.
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        let [t0, t1, t2, t3, t4, t5, t6, t7, c0, c1, c2, c3, s0, s1, s2, s3] = *bytes;
        Self {
            timestamp_us: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            client_id: u32::from_le_bytes([c0, c1, c2, c3]),
            sequence: u32::from_le_bytes([s0, s1, s2, s3]),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.timestamp_us, self.client_id, self.sequence)
    }
}

/// Makes one client's versions.
#[derive(Debug)]
pub struct VersionClock {
    client_id: u32,
    /// Timestamp and sequence of the last version.
    last: Mutex<(u64, u32)>,
}

impl VersionClock {
    /// A clock for `client_id`, which nobody else may use in the same cell.
    pub fn new(client_id: u32) -> Self {
        Self { client_id, last: Mutex::new((0, 0)) }
    }

    /// Whose versions these are.
    pub fn client_id(&self) -> u32 {
        self.client_id
    }

    /// A version higher than all that this clock made or followed before.
    pub fn next(&self, wall_ms: i64) -> Version {
        let wall_us = u64::try_from(wall_ms).unwrap_or(0).saturating_mul(1000);
        let mut last = self.last.lock();
        let (timestamp_us, sequence) = &mut *last;
        if wall_us > *timestamp_us {
            (*timestamp_us, *sequence) = (wall_us, 0);
        } else if let Some(next) = sequence.checked_add(1) {
            *sequence = next;
        } else {
            // `follow` keeps timestamps within an hour of the wall, so there is room above.
            (*timestamp_us, *sequence) = (timestamp_us.saturating_add(1), 0);
        }
        Version { timestamp_us: *timestamp_us, client_id: self.client_id, sequence: *sequence }
    }

    /// Makes all further versions higher than `seen`. Refused (`false`) if `seen` is more than
    /// [`VERSION_AHEAD_MAX`] ahead of the wall: one broken clock must not carry all others away.
    pub fn follow(&self, seen: Version, wall_ms: i64) -> bool {
        if seen.is_ahead(wall_ms) {
            return false;
        }
        let mut last = self.last.lock();
        if last.0 <= seen.timestamp_us {
            *last = (seen.timestamp_us + 1, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_one_client_grow_while_its_wall_clock_stands_still_or_goes_back() {
        let clock = VersionClock::new(7);
        let mut last = Version::ZERO;
        for wall_ms in [1000, 1000, 999, 5, -1, 1001, 1001, 0] {
            let version = clock.next(wall_ms);
            assert!(version > last, "{version} after {last}");
            last = version;
        }
        assert_eq!(last.timestamp_us, 1_001_000);
    }

    #[test]
    fn a_slow_client_overtakes_what_it_followed_but_does_not_follow_a_broken_clock() {
        let clock = VersionClock::new(1);
        let seen = Version { timestamp_us: 50_000, client_id: 9, sequence: 3 };
        assert!(clock.follow(seen, 10));
        assert!(clock.next(10) > seen);

        let absurd = Version { timestamp_us: u64::MAX, client_id: 9, sequence: 0 };
        assert!(!clock.follow(absurd, 10));
        assert!(clock.next(10).timestamp_us < 60_000);
    }

    #[test]
    fn bytes_keep_a_version() {
        let version = Version { timestamp_us: 0x0102_0304_0506_0708, client_id: 9, sequence: u32::MAX };
        assert_eq!(Version::from_bytes(&version.to_bytes()), version);
    }
}
