//! Bounds of quotas.

use std::time::Duration;

/// Quotas that a node keeps at most: all are in memory.
pub const QUOTAS_MAX: usize = 10_000;
/// Bytes of a user's name, or of what a client calls itself, in a quota.
pub const QUOTA_NAME_BYTES_MAX: usize = 1024;
/// The greatest bound, in bytes, requests or connections a second.
pub const QUOTA_MAX: u64 = 1_000_000_000_000_000;
/// Takers whose use is remembered at most, of each bound. Of those beyond them all together have what one may have, if
/// their quotas tell them apart in the same way and have the same rate.
pub const QUOTA_TAKERS_MAX: usize = 10_000;
/// How often those are forgotten who owe nothing and have a second's worth, when there are as many.
pub const QUOTA_TIDY: Duration = Duration::from_secs(1);
/// How often a change is tried again when somebody else has changed the same quota meanwhile.
pub const CONFLICTS_MAX: usize = 16;
