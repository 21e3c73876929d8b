//! Producers, and readers' way to the durable layer: both ask the owner over the network.

use std::time::Duration;

use bytes::Bytes;
use tailwater_env::{BoxFuture, Env};
use tailwater_format::{
    BatchBuilder, Codec, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
};
use tailwater_log::{AppendError, Appended, Log};
use tailwater_tail::{DurableSource, SegmentInfo, SourceError};

use crate::checkers::Violation;
use crate::rng::Rng;
use crate::world::run_on;

use super::Cluster;

/// A record's value: its identity, then bytes that follow from it.
pub(super) fn encode(identity: u64, length: usize) -> Vec<u8> {
    let mut bytes = identity.to_le_bytes().to_vec();
    bytes.extend((0..length).map(|at| (identity as u8).wrapping_add(at as u8)));
    bytes
}

/// The identity of a value that is whole.
pub(super) fn decode(value: &[u8]) -> Option<u64> {
    let identity = u64::from_le_bytes(*value.first_chunk::<8>()?);
    (encode(identity, value.len() - 8) == value).then_some(identity)
}

/// Appends to one shard until told to stop.
pub(super) async fn produce(shared: Cluster, shard: u32, mut rng: Rng) {
    while !shared.state.lock().stop && !shared.is_over() {
        shared.outside.sleep(Duration::from_micros(rng.between(100, 4_000))).await;
        let (Some((log, env)), Some(stream)) = (shared.log(), shared.stream()) else { continue };
        let count = rng.between(1, 4);
        let identities: Vec<u64> = {
            let mut state = shared.state.lock();
            let first = state.identity_next;
            state.identity_next += count;
            let checker = state.checkers.entry(shard).or_default();
            (first..first + count).inspect(|&identity| checker.produced(identity)).collect()
        };
        let mut builder = BatchBuilder::new();
        for &identity in &identities {
            let length = if rng.below(10) == 0 { rng.below(3_000) } else { rng.below(200) };
            let value = encode(identity, length as usize);
            builder.append(None, Some(&value), &[], env.wall_ms()).expect("a small record");
        }
        let batch = builder.finish(Codec::None);
        let appending = append(log, env.clone(), stream, ShardNumber(shard), batch);
        let Some(answer) = run_on(&env, "append", appending).await else {
            shared.count("appends without an answer");
            continue;
        };
        let mut state = shared.state.lock();
        let checker = state.checkers.entry(shard).or_default();
        match answer {
            Ok(appended) => {
                let checked = checker.acknowledged(appended.base_offset.0, &identities);
                if let Err(violation) = checked {
                    state.violation.get_or_insert(violation);
                }
                state.report.count("appends", 1);
            }
            Err(AppendError::Lost(_) | AppendError::Closed) => state.report.count("lost appends", 1),
            Err(error) if error.is_retriable() => {
                // Not in the log, and it never will be.
                let checked = checker.refused(&identities);
                if let Err(violation) = checked {
                    state.violation.get_or_insert(violation);
                }
                state.report.count("refused appends", 1);
            }
            Err(error) => {
                let violation = Violation::new(format!("a correct append was refused: {error}"));
                state.violation.get_or_insert(violation);
            }
        }
    }
}

async fn append(
    log: Log,
    env: Env,
    stream: StreamId,
    shard: ShardNumber,
    batch: Bytes,
) -> Result<Appended, AppendError> {
    env.sleep(Duration::from_micros(env.random_below(200))).await;
    log.append(stream, shard, batch).await
}

/// The durable layer of a reader: the owner's log, some way off.
pub(super) struct Source(pub(super) Cluster);

impl Source {
    async fn ask<T: Send + 'static, F>(&self, ask: impl FnOnce(Log) -> F) -> Result<T, SourceError>
    where
        F: Future<Output = Result<T, SourceError>> + Send + 'static,
    {
        let shared = &self.0;
        let down = || SourceError::Unavailable("the owner is down".to_owned());
        shared.outside.sleep(Duration::from_micros(50)).await;
        let (log, env) = shared.log().ok_or_else(down)?;
        run_on(&env, "ask", ask(log)).await.unwrap_or_else(|| Err(down()))
    }
}

impl DurableSource for Source {
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
    ) -> BoxFuture<'_, Result<Vec<SegmentInfo>, SourceError>> {
        Box::pin(self.ask(move |log| async move { DurableSource::segments(&log, shard, from).await }))
    }
}
