//! Durable segments on a local disk, filled behind the journal.
//!
//! A segment is one append-only file of a shard. What is appended goes into the journal, whose sync
//! acknowledges it for all shards at once, and into memory; a background task brings it into the segment's own
//! file in large writes, syncs that, and only then drops the memory and trims the journal.
//!
//! What is guaranteed:
//! - **One writer.** Once a segment with a higher term was created in a shard, lower terms are refused.
//! - **Continuity.** A segment takes only the entry that continues it: position, entry id, offset, transaction
//!   id. A pair of segment number and term is never used again.
//! - **No gap between segments.** When the journal has lost entries of a segment, none of the same term begins in its
//!   shard until that one is sealed or deleted: the writer may not know yet, and would go on behind what is lost.
//! - **Never past durable.** A read answers only what is in the synced journal, or in a synced file.
//! - **Never rewritten.** Bytes that were durable never change; a recovered segment is never appended to; a
//!   sealed length is for ever.
//! - **No silent loss.** What was acknowledged stays readable while the disk is full or fails, and is there after
//!   a restart: the journal keeps it until a sync of the segment's file, and of its name, has succeeded.
//! - **Bounded.** Memory by [`StoreConfig::pending_bytes_max`], the journal by the rounds of the filler, reads by
//!   queues; whoever exceeds is told, and nobody waits in here but [`SegmentStore::read`] for the disk.
//!
//! What it is not: it keeps no offsets beyond sparse indexes, knows no retention, and does not decide when a
//! segment ends. `log` does.
//!
//! How it is opened:
//! ```ignore
//! let lock = lock_data_dir(&env, dir)?;
//! let mut recovery = Recovery::begin(&env, dir, config)?;
//! let journal = Journal::open(&env, &dir.join("journal"), journal_config, &mut |tag, end, bytes| {
//!     if tag == store::TAG { recovery.replay(end, bytes) } else { … }
//! })?;
//! let (store, segments) = recovery.finish(journal)?;
//! ```
//!
//! `contract.rs` is what the log asks of any store of segments, this one among them.
//!
//! To be read in this order: `store.rs` (the handle), `segment.rs` and `pending.rs` (one segment's state),
//! `filler.rs` (from memory to files), `recovery.rs` (and back); `layout.rs`, `record.rs`, `index.rs` and
//! `checkpoint.rs` draw the bytes.

mod checkpoint;
mod contract;
mod copies;
mod error;
mod files;
mod filler;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod index;
mod indexes;
mod layout;
mod ledger;
pub mod limits;
mod lock;
mod pending;
mod reader;
mod record;
mod recovery;
mod segment;
mod shards;
mod store;
mod sweep;
mod syncer;

pub use contract::{
    EntryPlace, FromStore, OpenSegments, OpenedSegments, ReplicatedStats, SegmentWatch, ShardTakeOver,
    StoreContract, WriteRight, WriteRightFault,
};
pub use copies::{DecidedCopies, SegmentCopies};
pub use error::{OpenError, StoreError};
pub use index::{IndexContents, Point, RawHeader, SparseIndex};
pub use limits::StoreConfig;
pub use lock::{DataDir, lock_data_dir};
pub use record::TAG;
pub use recovery::{RecoveredSegment, Recovery};
pub use store::{SegmentStore, StoreStats, StoredSegment};
pub use sweep::{KeptWhy, LeftOverWhy, SegmentJudge, SegmentVerdict};
