//! Ids, positions, entries and record batches: pure codecs, no I/O.
//!
//! - [`entry`]: what a segment consists of.
//! - [`chunk`]: the pieces of a segment that the data cell keeps, and their keys.
//! - [`tails`]: how far segments reach, as the metadata cell keeps it.
//! - [`batch`]: Kafka's record batches, which entries carry.
//! - [`call`]: what is asked of a node two-sidedly.
//! - [`snapshot`]: what the updates of a shard come to, as records of a stream of their own.
//! - [`watermark`]: how far something is appended, durable and cached, as types.
//! - [`Start`]: where to begin in a shard, as people write it.
//!
//! Nothing read is trusted: every decoder checks before it uses, allocates no more than the bounds in [`limits`]
//! allow, and answers an error, never a panic, to any bytes. What an encoder is given comes from this program, so
//! it asserts. The bytes of every format are drawn where they are parsed, and collected in `docs/formats.md`.

pub mod batch;
mod bytes_at;
pub mod call;
mod chunk;
pub mod entry;
mod ids;
pub mod limits;
pub mod snapshot;
mod start;
pub mod tails;
pub mod watermark;

pub use batch::{
    Batch, BatchBuilder, BatchError, BatchHeader, Codec, Decompressor, NO_TIMESTAMP_MS, Producer, Record,
    Records, RecordsOfBatch, batches,
};
pub use chunk::{CHUNK_KEY_BYTES, ChunkKey};
pub use entry::{
    Discontinuity, ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES, Entry, EntryCorrupt, EntryError, EntryFields,
    EntryHeader, EntryReader, encode_entry, encode_entry_with, parse_entry, parse_entry_header,
};
pub use ids::{
    Dlsn, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, SlotId, StreamId, Term,
    TransactionId,
};
pub use limits::SHARDS_PER_PAGE;
pub use start::{Start, StartError};
pub use tails::{Tail, TailPage, TailPageError, tail_page_key, tail_page_of};
pub use watermark::{AppendedTo, CachedTo, DurableTo};
