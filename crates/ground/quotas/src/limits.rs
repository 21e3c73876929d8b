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
/// How often front ends that give a quota together tell each other what they give, as long as they are
/// [`SHARERS_MAX`] at most: twice as rarely when they are up to twice as many, and so on, as each reads what all tell.
pub const SHARE_ROUND: Duration = Duration::from_secs(1);
/// Rounds after which a front end that could not tell the others, or hear of them, gives an equal share.
pub const SHARE_ROUNDS_MAX: u32 = 4;
/// Rounds after which a front end of which nothing was heard is not counted any more. It gives an equal share by then.
pub const GONE_ROUNDS: u32 = 10;
/// Front ends among which shares go to where they are used; those of more are equal.
pub const SHARERS_MAX: u64 = 64;
/// Takers whose shares go to where they are used, at the same time: 16 KiB of a report. Those of others are equal.
pub const SHARED_TAKERS_MAX: usize = 512;
/// A front end keeps this part of its equal share, whatever the others want.
pub const FLOOR_PART: u64 = 10;

const _: () = assert!(SHARE_ROUNDS_MAX * 2 <= GONE_ROUNDS, "who is not counted any more knows it by then");
