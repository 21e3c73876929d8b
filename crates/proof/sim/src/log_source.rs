//! The durable layer of a reader, where that is the log of a process that may be down.

use std::future::Future;

use bytes::Bytes;
use tailwater_env::{BoxFuture, Env};
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};
use tailwater_log::Log;
use tailwater_tail::{DurableSource, FromSource, SourceError, SourceSegment};

use crate::world::run_on;

/// A log and the world of its process, once a request has come there; `None` while it is down.
pub(crate) type FoundLog = BoxFuture<'static, Option<(Log, Env)>>;

/// It finds the log anew for each request.
pub(crate) struct RemoteLog<F>(pub(crate) F);

impl<F: Fn() -> FoundLog + Send + Sync> RemoteLog<F> {
    async fn ask<T: Send + 'static, A>(&self, ask: impl FnOnce(Log) -> A) -> Result<T, SourceError>
    where
        A: Future<Output = Result<T, SourceError>> + Send + 'static,
    {
        let down = || SourceError::Unavailable("the log's process is down".to_owned());
        let (log, env) = (self.0)().await.ok_or_else(down)?;
        run_on(&env, "ask", ask(log)).await.unwrap_or_else(|| Err(down()))
    }
}

impl<F: Fn() -> FoundLog + Send + Sync + 'static> DurableSource for RemoteLog<F> {
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes> {
        Box::pin(self.ask(move |log| async move { DurableSource::read(&log, segment, from, len).await }))
    }

    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>> {
        let shards = shards.to_vec();
        Box::pin(self.ask(move |log| async move { DurableSource::tails(&log, stream, &shards).await }))
    }

    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>> {
        Box::pin(self.ask(move |log| async move { DurableSource::segments(&log, shard, from).await }))
    }
}
