//! The durable layer as a reader sees it.

use bytes::Bytes;
use tailwater_env::BoxFuture;
use tailwater_format::{
    Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail, Term,
};

use crate::SourceError;

/// An answer of a [`DurableSource`].
pub type FromSource<'a, T> = BoxFuture<'a, Result<T, SourceError>>;

/// One segment of a shard as the durable layer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSegment {
    /// Its number.
    pub number: SegmentNumber,
    /// The term of its writer.
    pub term: Term,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// Durable bytes.
    pub length: Position,
    /// Whether `length` is final.
    pub sealed: bool,
}

/// Where the bytes of segments durably are. The client's is a CALL to a node; a node's own is its log.
pub trait DurableSource: Send + Sync + 'static {
    /// Bytes of `segment` from `from`, at least one and at most `len`, and never past what is durable.
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes>;

    /// The tails of shards as the durable layer knows them, `None` where no segment exists yet; what it says
    /// in `cached` only counts as far as the source is also the writer of the cell.
    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>>;

    /// The shard's segments from `from` on, oldest first, as many as fit one answer; the first one listed is
    /// the oldest that is left if `from` was removed.
    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>>;
}
