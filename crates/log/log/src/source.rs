//! The log as the durable layer of readers in its own process.

use bytes::Bytes;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};
use tailwater_tail::{DurableSource, FromSource, SourceError, SourceSegment};

use crate::error::ReadError;
use crate::log::Log;

impl DurableSource for Log {
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes> {
        Box::pin(async move {
            let bytes = self.read_durable(segment, from, len).await?;
            if bytes.is_empty() {
                return Err(SourceError::Unavailable(format!("{segment} is not durable beyond {from} yet")));
            }
            Ok(bytes)
        })
    }

    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>> {
        Box::pin(async move { Ok(self.tails(stream, shards)?.into_iter().map(Some).collect()) })
    }

    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>> {
        Box::pin(async move {
            let segments = self.segments(shard, from)?.into_iter().map(|segment| SourceSegment {
                number: segment.number,
                term: segment.term,
                base_offset: segment.base_offset,
                length: segment.length,
                sealed: segment.sealed,
            });
            Ok(segments.collect())
        })
    }
}

impl From<ReadError> for SourceError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoStream | ReadError::NoShard { .. } => Self::NoStream,
            ReadError::Truncated { log_start } => Self::Truncated { log_start },
            error @ (ReadError::Damaged(_) | ReadError::Corrupt(_)) => Self::Refused(error.to_string()),
            error => Self::Unavailable(error.to_string()),
        }
    }
}
