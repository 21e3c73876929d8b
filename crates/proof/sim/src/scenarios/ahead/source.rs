//! The durable layer of the consumer: the log of the last cluster, as long as that runs.

use bytes::Bytes;
use tailwater_env::BoxFuture;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};
use tailwater_log::Log;
use tailwater_tail::{DurableSource, SourceError, SourceSegment};

use crate::world::run_on;

use super::{LAST, SharedAhead};

pub(super) struct LastLog(pub(super) SharedAhead);

impl LastLog {
    async fn ask<T: Send + 'static, F>(&self, ask: impl FnOnce(Log) -> F) -> Result<T, SourceError>
    where
        F: Future<Output = Result<T, SourceError>> + Send + 'static,
    {
        let down = || SourceError::Unavailable("the cluster is down".to_owned());
        let life = self.0.life(LAST).ok_or_else(down)?;
        run_on(&life.env, "ask", ask(life.log.clone())).await.unwrap_or_else(|| Err(down()))
    }
}

impl DurableSource for LastLog {
    fn read(
        &self,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        Box::pin(self.ask(move |log| async move { DurableSource::read(&log, segment, from, len).await }))
    }

    fn tails<'a>(
        &'a self,
        stream: StreamId,
        shards: &'a [ShardNumber],
    ) -> BoxFuture<'a, Result<Vec<Option<Tail>>, SourceError>> {
        let shards = shards.to_vec();
        Box::pin(self.ask(move |log| async move { DurableSource::tails(&log, stream, &shards).await }))
    }

    fn segments(
        &self,
        shard: ShardId,
        from: SegmentNumber,
    ) -> BoxFuture<'_, Result<Vec<SourceSegment>, SourceError>> {
        Box::pin(self.ask(move |log| async move { DurableSource::segments(&log, shard, from).await }))
    }
}
