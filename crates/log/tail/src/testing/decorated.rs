//! A durable source that stands in front of another one, and does some things otherwise.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};

use crate::{DurableSource, FromSource, SourceSegment};

/// What a [`DecoratedSource`] does otherwise than the one behind it: nothing, unless a method says so.
pub trait SourceHooks: Send + Sync + 'static {
    /// [`DurableSource::read`].
    fn read<'a>(
        &'a self,
        inner: &'a dyn DurableSource,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> FromSource<'a, Bytes> {
        inner.read(segment, from, len)
    }

    /// Changes what is told of the tails of `shards`, or only notes it.
    fn told(&self, _stream: StreamId, _shards: &[ShardNumber], _tails: &mut [Option<Tail>]) {}
}

/// A durable source with hooks in front of it.
pub struct DecoratedSource<H> {
    /// The source that is asked.
    pub inner: Arc<dyn DurableSource>,
    /// What is otherwise.
    pub hooks: H,
}

impl<H: SourceHooks> DurableSource for DecoratedSource<H> {
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes> {
        self.hooks.read(&*self.inner, segment, from, len)
    }

    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>> {
        Box::pin(async move {
            let mut tails = self.inner.tails(stream, shards).await?;
            self.hooks.told(stream, shards, &mut tails);
            Ok(tails)
        })
    }

    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>> {
        self.inner.segments(shard, from)
    }
}
