//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// How long a CALL to a node may take before it counts as lost. An append waits for a sync of the disk, which
/// takes seconds on one that is worn out or shared.
pub const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// How long to look for a node before [`crate::Client::connect`] gives up.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// First and longest pause before a lost connection is tried again; doubled in between, with jitter.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`RECONNECT_PAUSE_MIN`].
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Batches of one shard under way at once: as many as the node remembers of a producer, so that any of them
/// can be sent again.
pub const BATCHES_IN_FLIGHT_MAX: usize = 5;

/// Append CALLs under way at once; each carries the ready batches of any number of shards.
pub const APPENDS_IN_FLIGHT_MAX: usize = 8;

/// Bytes of batches in one append CALL; the node takes CALLs of 8 MiB.
pub const APPEND_BYTES_MAX: usize = 4 << 20;

/// Pause before a batch that was refused with an error that may pass is sent again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);
