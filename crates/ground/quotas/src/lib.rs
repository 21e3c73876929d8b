//! How much each user, client and address may take in a second: quotas, where they are kept, and what is taken of
//! them.
//!
//! A quota is about a user, about what a client calls itself, about both, or about an address ([`QuotaEntity`]), as
//! Kafka's quotas are. The one that says most about a user and a client counts, and that of the address besides. A node
//! keeps its quotas in its metadata ([`ClientQuotas`]), and counts what is taken by itself: what other nodes give does
//! not count.
//!
//! Where several nodes give one quota together, as of an account of queues that all of them serve, each has a share of
//! it ([`QuotaShares`]), of which a [`ShareBucket`] is filled.
//!
//! What holds:
//! - Whoever takes more than a second's worth owes the rest, and is to be held until it owes nothing. What is owed is
//!   never forgotten: over a longer time nobody has more than the quota.
//! - A changed quota holds for what is taken after it is durable, and whoever is held is told.
//! - Where there are no quotas, to ask costs one read of memory.

mod bucket;
mod entity;
mod kept;
pub mod limits;
mod share_bucket;
mod shares;

pub use entity::{QuotaBound, QuotaBounds, QuotaEntity, QuotaError};
pub use kept::{ClientQuotas, QuotaChanges, QuotaTaker, QuotasRead};
pub use share_bucket::ShareBucket;
pub use shares::{QuotaShares, ShareUse};
