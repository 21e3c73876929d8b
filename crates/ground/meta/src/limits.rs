//! All limits of metadata: unit, reason, relation to the others.

use std::time::Duration;

/// Most bytes of a key: a path of a few names.
pub const KEY_BYTES_MAX: usize = 1024;

/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Most operations of one commit.
pub const OPS_MAX: usize = 1024;

/// Most bytes of the keys of one commit, together: in ZooKeeper it is one request of at most 1 MiB, in which a byte of
/// a key may take three. Values may be elsewhere.
pub const KEYS_BYTES_MAX: usize = 128 << 10;

/// Most bytes of one commit, encoded. It is one journal record, so the journal's own limit has to be at least
/// this.
pub const COMMIT_BYTES_MAX: usize = 4 << 20;

/// Commits on their way to the disk, beyond which further ones wait.
pub const PENDING_MAX: usize = 1024;

/// Events that a watch holds for its reader; beyond that it lags and the reader lists again.
pub const WATCH_EVENTS_MAX: usize = 1024;

/// Bytes of keys and values that a watch holds for its reader; more than one commit can change.
pub const WATCH_BYTES_MAX: usize = 8 << 20;

/// Watches at a time.
pub const WATCHES_MAX: usize = 4096;

/// Leases at a time.
pub const LEASES_MAX: usize = 65_536;

/// Shortest and longest time to live of a lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(10);
/// See [`LEASE_TTL_MIN`].
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);

/// How long after a failed snapshot the next attempt follows. The journal keeps the commits meanwhile.
pub const SNAPSHOT_RETRY: Duration = Duration::from_secs(1);

/// Bytes of a snapshot that are written at once.
pub const SNAPSHOT_WRITE_BYTES: usize = 1 << 20;

const _: () = assert!(COMMIT_BYTES_MAX > VALUE_BYTES_MAX + KEY_BYTES_MAX);
const _: () = assert!(WATCH_BYTES_MAX > COMMIT_BYTES_MAX);

const _: () = {
    assert!(OPS_MAX * 64 < COMMIT_BYTES_MAX, "as many operations as are allowed fit, if they are small");
    assert!(OPS_MAX * 100 < KEYS_BYTES_MAX, "with keys of 100 bytes, too");
    assert!(KEY_BYTES_MAX < KEYS_BYTES_MAX && KEYS_BYTES_MAX < COMMIT_BYTES_MAX, "any key can be committed");
    assert!(
        COMMIT_BYTES_MAX < tailwater_journal::limits::RECORD_BYTES_MAX / 2,
        "a commit is one record of the journal"
    );
    assert!(LEASE_TTL_MIN.as_nanos() < LEASE_TTL_MAX.as_nanos(), "there are leases");
    assert!(SNAPSHOT_WRITE_BYTES >= VALUE_BYTES_MAX, "any value is written at once");
};
