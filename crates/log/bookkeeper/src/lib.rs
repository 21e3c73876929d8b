//! wip
mod append;
mod client;
mod connections;
pub mod digest;
mod ids;
pub mod limits;
mod metadata;
mod planted;
mod protocol;
mod read;
mod reader;
mod recover;
mod step;
mod wire;
mod writer;
mod zookeeper;
#[cfg(test)]
mod tests;
pub use client::{BookKeeper, LedgerOptions, LedgerTimes};
pub use ids::{BookieId, EntryId, LedgerId, Quorums};
pub use metadata::{LedgerMetadata, LedgerState, MetadataFault};
pub use reader::LedgerReader;
pub use step::{LedgerFault, Versioned};
pub use writer::{LedgerWriter, PendingAppend};
pub use zookeeper::{Ledgers, LedgersUri};
