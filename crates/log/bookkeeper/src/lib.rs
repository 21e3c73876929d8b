//! A native client of [Apache BookKeeper](https://bookkeeper.apache.org): ledgers that are created, appended to,
//! followed, fenced, recovered, checked and deleted. It speaks the bookies' protocol in version 3, and keeps ledgers'
//! metadata in ZooKeeper as the Java client does: each opens, reads, fences and recovers what the other one wrote.
//!
//! ```text
//!  LedgerWriter   LedgerReader   BookKeeper::recover      handles: tasks and sockets
//!    append          read             recover             state machines without I/O, see `step`
//!        \            |               /
//!     Connections: one for each bookie        Ledgers: ZooKeeper
//!        handshake, wire, digest                 metadata
//! ```
//!
//! ```no_run
//! # use tailwater_bookkeeper::digest::DigestKind;
//! # use tailwater_bookkeeper::{BookKeeper, EntryId, LedgerOptions, LedgerTimes, Quorums};
//! # use tailwater_env::Env;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let uri = "bookkeeper://zk1,zk2,zk3/ledgers".parse()?;
//! let client = BookKeeper::connect(Env::real(), uri, LedgerTimes::default()).await?;
//! let quorums = Quorums::new(3, 3, 2).ok_or("they are out of order")?;
//! let options = LedgerOptions { quorums, digest: DigestKind::Crc32c, password: "secret".into(), custom: [].into() };
//! let writer = client.create(&options).await?;
//! let entry = writer.append("hello".into()).await?; // it is durable
//! let reader = client.open(writer.ledger(), b"secret").await?;
//! let lac = reader.wait_beyond(EntryId::NONE).await?; // a long poll at a bookie
//! assert_eq!(reader.read(lac.min(entry)).await?.payload, "hello");
//! client.recover(writer.ledger(), b"secret").await?; // the writer is shut out
//! # Ok(())
//! # }
//! ```
//!
//! What holds:
//! - An append is answered when an ack quorum has it durably, and everything before it in the ledger too.
//! - What was acknowledged is in the ledger for ever, and a reader that asks so many bookies for the LAC finds it.
//! - Once a ledger is recovered nothing is acknowledged in it any more, whatever its writer still does.
//! - A digest is checked on every read. A copy that is damaged is never handed out: another one is read.
//! - What a bookie or ZooKeeper sends is an answer or an error, and never a panic. What waits is bounded: [`limits`].
//!
//! What it does not do: protocol version 2, but for reads of many entries at once, which version 3 does not have.
//! Ledgers that get a bookie's copies again after it was lost are the business of BookKeeper's own AutoRecovery.

mod append;
mod batches;
mod check;
mod client;
mod connections;
pub mod digest;
mod digest_md5;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
mod ids;
pub mod limits;
mod metadata;
mod placement;
mod planted;
mod protocol;
mod read;
mod reader;
mod recover;
mod security;
mod step;
mod wire;
mod writer;
mod zookeeper;

#[cfg(test)]
mod tests;

pub use check::{BadCopy, CopyFault, LedgerCheck};
pub use client::{BookKeeper, LedgerOptions, LedgerTimes};
pub use ids::{BookieId, EntryId, LedgerId, Quorums};
pub use metadata::{LedgerMetadata, LedgerStatus, MetadataFault};
pub use placement::{BookiePlace, BookiePlaceFault, BookiePlaces, MIN_REGIONS_KEY};
pub use protocol::BookieError;
pub use reader::LedgerReader;
pub use security::{BookieSecurity, LedgersSecurity};
pub use step::{LedgerFault, VersionedMetadata};
pub use writer::{LedgerWriter, PendingEntry, WriterMetadata};
pub use zookeeper::{LedgerScan, Ledgers, LedgersUri, LedgersUriFault};
