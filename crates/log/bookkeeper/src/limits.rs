//! Every bound of this crate.

use std::time::Duration;

/// Bookies of a ledger: acknowledgements are bits of 64.
pub const ENSEMBLE_MAX: usize = 64;
/// Bytes of an entry's payload: a bookie takes frames of 5 MiB as it is configured by default.
pub const ENTRY_BYTES_MAX: usize = (5 << 20) - (4 << 10);
/// Bytes of a frame that a bookie may send; a longer one ends its connection.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Requests that wait for one bookie, asked or not; one more is refused as a bookie does that has too many.
pub const REQUESTS_MAX: usize = 64 << 10;
/// Bytes that are gathered for one write to a connection.
pub const WRITE_BYTES_MAX: usize = 256 << 10;
/// Entries of a writer that are not acknowledged yet; another append waits.
pub const IN_FLIGHT_ENTRIES_MAX: usize = 8 << 10;
/// Bytes of entries of a writer that are not acknowledged yet; another append waits.
pub const IN_FLIGHT_BYTES_MAX: usize = 32 << 20;
/// Entries that a recovery reads at a time.
pub const RECOVERY_READS_MAX: usize = 16;
/// Entries whose copies a check of a ledger reads at a time.
pub const CHECK_ENTRIES_MAX: usize = 64;
/// Bytes of one copy each of the entries that a check of a ledger reads at a time, by the size of the last one.
pub const CHECK_BYTES_MAX: usize = 8 << 20;
/// How often a bookie that does not answer is asked for a copy that is checked.
pub const CHECK_TRIES: u32 = 3;
/// Copies with something wrong that a check of a ledger names; all are counted.
pub const CHECK_FAULTS_MAX: usize = 100;
/// Entries that a reader asks for at a time, each by a request of its own.
pub const READ_AHEAD_MAX: usize = 64;
/// Entries that a reader asks for with one request.
pub const BATCH_ENTRIES_MAX: usize = 1_024;
/// Bytes of entries that a reader asks for with one request: less than a bookie's frame has as it is configured by
/// default. A single entry may be longer.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Bytes of a ledger's metadata that are read: ZooKeeper's own bound of a node.
pub const METADATA_BYTES_MAX: usize = 1 << 20;
/// Ensembles of a ledger: beyond it another change is refused, so that metadata stays below ZooKeeper's bound.
pub const ENSEMBLES_MAX: usize = 1_024;

/// How long a bookie may take to answer an add or a read.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to come up.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a bookie that could not be reached is not tried again; doubled up to [`RECONNECT_PAUSE_MAX`].
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// See [`RECONNECT_PAUSE_MIN`].
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a bookie that takes no request for many entries is not asked for any: it may be upgraded.
pub const BATCHES_AGAIN: Duration = Duration::from_secs(300);
/// How often time is looked at where something waits.
pub const TICK: Duration = Duration::from_millis(20);

const _: () = assert!(BATCH_BYTES_MAX < ENTRY_BYTES_MAX && BATCH_ENTRIES_MAX >= READ_AHEAD_MAX);
const _: () = assert!(ENTRY_BYTES_MAX < FRAME_BYTES_MAX && ENTRY_BYTES_MAX < IN_FLIGHT_BYTES_MAX);
