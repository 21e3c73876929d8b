//! Groups: who reads which partitions, and how far they got.
//!
//! ```text
//!   answers/groups.rs           --> Coordinator --> classic/, consumer/  (one group: decisions only)
//!   answers/consumer_groups.rs  -----'    |
//!   answers/offsets.rs          -----'    `----> Offsets --> Meta: durable before the answer
//! ```
//!
//! What holds:
//! - A committed offset is durable before it is answered, and is given back over restarts until retention or somebody
//!   removes it. Commits that come at the same time share a sync.
//! - What a member of a group of KIP-848 is told is durable before. After a restart it goes on as it was, and nobody is
//!   given what it may still have.
//! - Who is in a classic group is in memory only. After a restart its members are not known, which makes them join
//!   again, with ids that nobody had before; so nothing that a member of an earlier life says is taken for one of now.
//! - Groups, their members, what these say of themselves and what is committed are bounded (`config.rs`).
//!
//! Where several nodes are active each coordinates a share of the groups (`shares.rs`).
//!
//! `coordinator.rs` keeps the groups, their timers and whoever waits; `offsets.rs` what was committed, in memory and in
//! metadata; `records.rs` and `members.rs` the bytes of that; `retention.rs` removes what nobody needs any more.

pub(crate) mod admin;
mod bounds;
pub(crate) mod classic;
mod config;
pub(crate) mod consumer;
pub(crate) mod coordinator;
mod elsewhere;
pub(crate) mod group;
pub(crate) mod members;
pub(crate) mod offsets;
pub(crate) mod records;
mod retention;
pub(crate) mod shares;
#[cfg(test)]
mod tests;

pub use config::GroupsConfig;
pub(crate) use shares::Coordinators;
