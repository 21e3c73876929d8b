//! Streams, shards, segments, ownership and retention.
//!
//! A stream is a named set of shards; a shard is a totally ordered log with one writer at a time, its *owner*; it is
//! kept in segments, each of one owner's term. What the paper of DistributedLog calls a log stream is a shard here.
//!
//! What is guaranteed:
//! - **Order.** The records of a shard have dense offsets, in the order of acceptance, and every reader sees them in
//!   that order.
//! - **Acknowledgement.** An append is answered when it is as durable as its stream's [`StreamDurability`] says, and
//!   after everything before it in its shard. It is visible to readers then, and not before.
//! - **One writer.** An owner claims a term in metadata before it writes, the store refuses lower ones, and a segment
//!   is never appended to by any other owner than the one that created it.
//! - **Exactly once** for idempotent producers, over restarts and lost answers, for 24 hours.
//! - **Bounded.** Queues are bounded in requests and bytes; who finds one full is told at once ([`limits`]).
//!
//! What it is not: it does not read for consumers beyond durable bytes by position (`tail` and `client` do), and knows
//! no cells (`tail` shadows to them).
//!
//! To be read in this order: `log.rs` (the handle), `log/streams.rs`, `batches.rs`, `owner.rs` (the loop), `shard.rs`
//! and `shard/` (the protocol, without input or output); `open.rs` and `shard/recover.rs` (a start); `share.rs` (shards
//! of several processes); `locate.rs`; `sweep.rs` (segments that no record names);
//! `migrate.rs` (a data directory's streams to where several processes share them); `stream.rs` (what metadata keeps).

mod ahead;
mod batches;
mod budget;
mod cold;
mod commit;
mod config;
mod copying;
mod counters;
mod error;
mod fetch;
mod follow;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hot;
pub mod limits;
mod locate;
mod log;
mod migrate;
mod moving;
mod open;
mod owner;
mod planted;
mod producer;
mod producer_ids;
mod refill;
mod retention;
mod scan;
mod shard;
mod share;
mod slots;
mod source;
mod stream;
mod sweep;
mod upkeep;
mod view;

pub use batches::TransactionIds;
pub use cold::ColdConfig;
pub use config::{ConfigError, FlushPolicy, StreamConfig, StreamDurability, Timestamps, check_name};
pub use copying::{CopyCursor, CopyRecord, ReadEntries};
pub use counters::LogStats;
pub use error::{AppendError, LogOpenError, ReadError, StreamError};
pub use fetch::Fetched;
pub use locate::{LocateRead, ReadLocation};
pub use log::{
    AppendOptions, CompletedSegment, Log, LogStreamInfo, PendingAppend, SegmentDescription, ShardDescription,
    StreamDescription,
};
pub use migrate::{
    MigrationError, MigrationOutcome, MigrationSource, MigrationStep, MigrationStream, MigrationTarget,
    MigrationTold, migrate,
};
pub use moving::ShardEnd;
pub use open::{LogConfig, OpenCells, ReplayOthers, SharedMetadata};
pub use producer::{ProducerBatch, ProducerState, SequenceError};
pub use shard::AppendAnswer;
pub use share::{GONE_AFTER_MIN, MembersSeen, ShardMember, ShardOwner, ShardSharing, heir, is_going};
pub use stream::{SegmentRecord, StreamRecordError};
pub use sweep::SegmentRecords;
pub use view::{Listener, View};
