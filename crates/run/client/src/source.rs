//! The durable layer as a client reaches it: CALLs to a node, which authorizes them and bounds each; the rate is the
//! reader's to keep.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::call::{
    self, CallErrorCode, Method, ReadDurable, SegmentRef, encode_call, stream_to_wire,
};
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};
use tailwater_tail::{DurableSource, FromSource, SourceError, SourceSegment};

use crate::Error;
use crate::connection::Node;

pub(crate) struct NodeSource {
    node: Arc<Node>,
}

impl NodeSource {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    async fn list(
        &self,
        shard: ShardId,
        from: SegmentNumber,
    ) -> Result<(Vec<SourceSegment>, Offset), SourceError> {
        let request = call::Segments {
            stream: stream_to_wire(shard.stream),
            shard: shard.shard.0,
            from_offset: 0,
            from_segment: Some(from.0),
        };
        let reply: call::SegmentsReply =
            self.node.call(Method::Segments, &request).await.map_err(source_error)?;
        let mut segments = Vec::with_capacity(reply.segments.len());
        for info in reply.segments {
            segments.push(SourceSegment {
                number: SegmentNumber(info.number),
                term: call::term_from_wire(info.term).map_err(|e| SourceError::Invalid(e.to_string()))?,
                base_offset: Offset(info.base_offset),
                length: Position(info.len),
                sealed: info.sealed,
            });
        }
        Ok((segments, Offset(reply.log_start)))
    }
}

impl DurableSource for NodeSource {
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes> {
        Box::pin(async move {
            let request = ReadDurable { segment: Some(SegmentRef::from(segment)), position: from.0, len };
            match self.node.call_bytes(Method::ReadDurable, vec![encode_call(&request)]).await {
                Ok(bytes) => Ok(bytes),
                Err(Error::Refused(refusal)) if is_missing(refusal.code) => {
                    // Removed, most likely; the segments that are left say so.
                    let (segments, log_start) = self.list(segment.shard, segment.number).await?;
                    match segments.first() {
                        Some(oldest) if oldest.number > segment.number => {
                            Err(SourceError::Truncated { log_start })
                        }
                        _ => Err(SourceError::Unavailable(refusal.to_string())),
                    }
                }
                Err(error) => Err(source_error(error)),
            }
        })
    }

    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>> {
        Box::pin(async move {
            let request = call::Tails {
                stream: stream_to_wire(stream),
                shards: shards.iter().map(|shard| shard.0).collect(),
            };
            let reply: call::TailsReply =
                self.node.call(Method::Tails, &request).await.map_err(source_error)?;
            if reply.deleted {
                return Err(SourceError::NoStream);
            }
            let mut tails = vec![None; shards.len()];
            for told in &reply.tails {
                let tail = told.tail().map_err(|error| SourceError::Invalid(error.to_string()))?;
                if let Some(index) = shards.iter().position(|shard| shard.0 == told.shard) {
                    tails[index] = Some(tail);
                }
            }
            Ok(tails)
        })
    }

    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>> {
        Box::pin(async move { Ok(self.list(shard, from).await?.0) })
    }
}

/// Whether the node says that it does not have what was asked for.
fn is_missing(code: CallErrorCode) -> bool {
    matches!(code, CallErrorCode::UnknownSegment | CallErrorCode::OffsetOutOfRange)
}

fn source_error(error: Error) -> SourceError {
    match error {
        Error::Refused(refusal) if refusal.code == CallErrorCode::UnknownStream => SourceError::NoStream,
        // The shard is damaged, or this principal may not read it: whoever waits should hear of it.
        Error::Refused(refusal) if !refusal.code.is_retriable() => SourceError::Refused(refusal.to_string()),
        refused @ Error::Login { .. } => SourceError::Refused(refused.to_string()),
        Error::Malformed(why) => SourceError::Invalid(why),
        other => SourceError::Unavailable(other.to_string()),
    }
}
