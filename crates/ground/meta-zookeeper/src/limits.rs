//! Every bound of this crate.

use std::time::Duration;

use tailwater_meta::limits::{KEYS_BYTES_MAX, OPS_MAX};

/// Most bytes of one request to ZooKeeper and of one answer: `jute.maxbuffer`, as servers have it where nobody set it.
pub const PACKET_BYTES_MAX: usize = 0xf_ffff;
/// Bytes of values that stand in their keys' own nodes in one commit; others are written before it, in parts.
pub const INLINE_BYTES_MAX: usize = 448 << 10;
/// Bytes of a part of a value.
pub const PART_BYTES: usize = 512 << 10;
/// Bytes that an operation takes in a request beside its key and its value, and the path of the metadata.
pub const OP_OVERHEAD_BYTES: usize = 96;
/// Most bytes of the path below which the metadata is.
pub const ROOT_BYTES_MAX: usize = 32;
/// Requests that one call has under way at a time.
pub const REQUESTS_AT_A_TIME: usize = 64;
/// How often a commit is tried while others change the same keys.
pub const COMMIT_ATTEMPTS: usize = 16;
/// Keys whose values can't be read that are remembered, so that the log is told of each once.
pub const UNREADABLE_MAX: usize = 1_024;
/// How long a call waits for ZooKeeper to be there, and for an answer, before it is refused.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Shortest time after which ZooKeeper may give up a session of which it hears nothing.
pub const SESSION_MIN: Duration = Duration::from_secs(1);
/// Pause before something that ZooKeeper did not do is tried again.
pub const RETRY: Duration = Duration::from_millis(500);
/// How long a node that waits leaves the place to the one that was there before: ZooKeeper may have been away, and
/// with it everybody's session.
pub const GRACE: Duration = Duration::from_secs(1);
/// How often the task of a watch or a wait looks whether anybody still wants it, and whether it missed something.
pub const LOOK: Duration = Duration::from_secs(1);

// A commit is one request, in which a byte of a key may be three. What has two operations for one is looked at apart.
const _: () = assert!(
    KEYS_BYTES_MAX * 3 + OPS_MAX * (OP_OVERHEAD_BYTES + ROOT_BYTES_MAX) + INLINE_BYTES_MAX < PACKET_BYTES_MAX
);
const _: () = assert!(PART_BYTES + OP_OVERHEAD_BYTES < PACKET_BYTES_MAX);
const _: () =
    assert!(GRACE.as_millis() <= SESSION_MIN.as_millis(), "a grace does not wait for another session");
