//! Ids, positions, entries and record batches: pure codecs, no I/O.

mod ids;

pub use ids::{
    Dlsn, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, SlotId, StreamId, Term,
    TransactionId,
};
