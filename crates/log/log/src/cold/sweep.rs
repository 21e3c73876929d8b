//! Copies that no record names: what a crash left between a commit and what follows from it.
//!
//! | a folder of | is removed if |
//! |---|---|
//! | a segment that metadata names with this copy, kept or removed | never |
//! | a segment that is still to be copied | never: the copy is gone on with |
//! | a term below the shard's recorded one | nothing names it |
//! | the shard's recorded term, which this log claimed | nothing names it |
//! | another term | never: somebody else may be about to name it |
//! | a stream that was deleted here | always |
//! | a stream that nothing is known of | never: it may be that of metadata which were put back |
//!
//! How old it is does not matter: a clock says nothing about who is at work.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tailwater_cold::{ColdError, CopyName};
use tailwater_format::{SegmentId, ShardId, ShardNumber, StreamId};
use tailwater_meta::{Expect, Meta, Op};

use super::copier::Copier;
use crate::log::LogInner;
use crate::stream::{
    COLD_GONE_PREFIX, Key, SegmentRecord, ShardRecord, StreamRecordError, TruncatedRecord, segment_key,
    shard_key, truncated_key,
};

fn unreadable(error: impl std::fmt::Display) -> ColdError {
    ColdError::Unavailable(format!("metadata: {error}"))
}

/// What metadata says of a shard's copies.
struct ShardNames<'a> {
    meta: &'a dyn Meta,
    shard: ShardId,
    owner: u64,
}

impl ShardNames<'_> {
    async fn record<T>(
        &self,
        key: String,
        decode: impl Fn(&str, &[u8]) -> Result<T, StreamRecordError>,
    ) -> Result<Option<T>, ColdError> {
        let found = self.meta.get(&key).await.map_err(unreadable)?;
        found.map(|found| decode(&key, &found.value)).transpose().map_err(unreadable)
    }

    /// Whether nothing names a copy, and nobody else will.
    async fn is_left_over(&self, name: CopyName) -> Result<bool, ColdError> {
        let record = self.record(shard_key(self.shard), ShardRecord::decode).await?.unwrap_or_default();
        // Read first: who claims a later term after this reads what is named after that.
        let is_ours = name.term == record.term && record.owner == self.owner;
        if name.term >= record.term && !is_ours {
            return Ok(false);
        }
        let is_it = |segment: &SegmentRecord| {
            // One without a copy may be in the midst of being copied.
            segment.term == name.term && segment.cold.is_none_or(|cold| cold.copy == name.copy)
        };
        let segment = self.record(segment_key(self.shard, name.number), SegmentRecord::decode).await?;
        let truncated = self.record(truncated_key(self.shard, name.number), TruncatedRecord::decode).await?;
        let named = segment.iter().chain(truncated.iter().map(|truncated| &truncated.segment)).any(is_it);
        Ok(!named)
    }
}

impl Copier {
    /// Removes what no record names.
    pub(super) async fn sweep(&self) -> Result<(), ColdError> {
        let mut unknown = 0;
        for stream in self.cold.tier.streams().await? {
            let Some(inner) = self.log.upgrade() else { return Ok(()) };
            let known = inner.streams.read().by_id.get(&stream).map(|stream| stream.record.config.shards);
            drop(inner);
            match known {
                Some(shards) => {
                    for shard in 0..shards {
                        self.sweep_shard(ShardId { stream, shard: ShardNumber(shard) }).await?;
                    }
                }
                None => unknown += 1,
            }
        }
        let gone = self.sweep_gone().await?;
        // Those that were deleted here are known, and not there any more.
        self.counters().streams_unknown.store(unknown - gone.min(unknown), Relaxed);
        Ok(())
    }

    async fn sweep_shard(&self, shard: ShardId) -> Result<(), ColdError> {
        for name in self.cold.tier.copies(shard).await? {
            let id = SegmentId { shard, number: name.number, term: name.term };
            let Some(inner) = self.log.upgrade() else { return Ok(()) };
            if self.told.contains_key(&id) || is_to_be_copied(&inner, &id) {
                continue;
            }
            let (meta, owner) = (Arc::clone(&inner.meta), inner.owner_number);
            drop(inner);
            let names = ShardNames { meta: &*meta, shard, owner };
            if names.is_left_over(name).await? {
                tracing::info!(segment = %id, "a copy that no record names is removed from cold storage");
                self.cold.tier.sweep(shard, name).await?;
            }
        }
        Ok(())
    }

    /// Removes the copies of streams that were deleted; how many streams had a folder.
    async fn sweep_gone(&self) -> Result<u64, ColdError> {
        let Some(meta) = self.log.upgrade().map(|inner| Arc::clone(&inner.meta)) else { return Ok(0) };
        let there = self.cold.tier.streams().await?;
        let mut swept = 0;
        for (key, _) in meta.list(COLD_GONE_PREFIX).await.map_err(unreadable)? {
            let Some(Key::ColdGone(stream)) = Key::parse(&key) else { continue };
            // It may have been made again meanwhile. Nothing is copied while this task sweeps.
            let is_there = |inner: Arc<LogInner>| inner.streams.read().by_id.contains_key(&stream);
            if self.log.upgrade().is_none_or(is_there) {
                continue;
            }
            let has_folder = there.contains(&stream);
            if has_folder {
                self.sweep_deleted(stream).await?;
                swept += 1;
            }
            let forget = Op::Delete { key, expect: Expect::Any };
            meta.commit(vec![forget]).await.map_err(unreadable)?;
        }
        Ok(swept)
    }

    async fn sweep_deleted(&self, stream: StreamId) -> Result<(), ColdError> {
        tracing::info!(%stream, "the copies of a deleted stream are removed from cold storage");
        self.cold.tier.sweep_stream(stream).await
    }
}

/// Whether a segment waits to be copied, so that what is there of a copy is gone on with.
fn is_to_be_copied(inner: &LogInner, id: &SegmentId) -> bool {
    let stream = inner.streams.read().by_id.get(&id.shard.stream).cloned();
    let Some(stream) = stream.filter(|stream| stream.record.config.cold) else { return false };
    let Some(handle) = stream.shard(id.shard.shard) else { return false };
    let view = handle.view();
    view.completed.iter().any(|segment| view.id(segment) == *id && segment.cold.is_none())
}
