//! Claims: shards that nobody owns, or whose owner is gone, become this process's.
//!
//! 1. The record gets this process's number and a higher term, if it is what it was when it was read. From here on the
//!    last owner changes no metadata of the shard, and begins no segment.
//! 2. The shard's records are read, and the store shuts the last owner out of the segments that it left open.
//! 3. Both are brought together, as after a crash ([`recover`](crate::shard::recover)), and the shard is opened in the
//!    term that was claimed.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use tailwater_format::{SegmentId, ShardId, Term};
use tailwater_meta::{Expect, MetaError, Op, Versioned};

use super::{ShardOwner, unavailable};
use crate::error::{LogOpenError, StreamError};
use crate::limits::RECOVERY_PARALLEL;
use crate::log::Log;
use crate::open::{KnownLog, KnownShard, found_segment};
use crate::shard::SegmentsFound;
use crate::stream::{ShardRecord, prefixes_of_shard, producers_key, shard_key, stream_key};

/// A shard whose claim is committed.
struct ClaimedShard {
    shard: ShardId,
    record: ShardRecord,
    version: u64,
    /// Nobody ever had it.
    is_new: bool,
}

impl Log {
    /// Claims these shards, as far as nobody else has done so, and opens them. Answers those that it has claimed, and
    /// that could not be opened.
    pub(super) async fn claim_shards(&self, shards: &[ShardId]) -> Result<Vec<ShardId>, StreamError> {
        let claims = shards.iter().map(|shard| {
            let shard = *shard;
            async move { (shard, self.claim(shard).await) }
        });
        let claims: Vec<_> = claims.collect();
        let claims: Vec<_> = stream::iter(claims).buffer_unordered(RECOVERY_PARALLEL).collect().await;
        let mut claimed = Vec::new();
        for (shard, claim) in claims {
            match claim {
                Ok(claim) => claimed.extend(claim),
                Err(error) => tracing::warn!(%shard, %error, "it is not claimed"),
            }
        }
        let mut failed: Vec<ShardId> = claimed.iter().map(|claimed| claimed.shard).collect();
        match self.open_claimed(claimed).await {
            Ok(opened) => failed.retain(|shard| !opened.contains(shard)),
            Err(error) => tracing::warn!(%error, "what was claimed is not opened yet"),
        }
        Ok(failed)
    }

    /// The claim of one shard; `None` if it is not what it was thought to be.
    async fn claim(&self, shard: ShardId) -> Result<Option<ClaimedShard>, StreamError> {
        let (inner, key) = (&*self.inner, shard_key(shard));
        let Some(sharing) = &inner.sharing else { return Ok(None) };
        let thought = sharing.get(&shard).unwrap_or_default();
        let found = inner.meta.get(&key).await.map_err(unavailable)?;
        let decode = |found: &Versioned| ShardRecord::decode(&key, &found.value);
        let record = found.as_ref().map(decode).transpose();
        let record = record.map_err(|error| StreamError::Unavailable(error.to_string()))?;
        let before = record.unwrap_or_default();
        if before.owner != thought.owner && before.owner != inner.owner_number {
            sharing.note(shard, ShardOwner::of(&before));
            return Ok(None);
        }
        let record = ShardRecord { owner: inner.owner_number, term: before.term.next(), ..before };
        let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
        let ops = vec![
            Op::Check { key: stream_key(shard.stream), expect: Expect::Present },
            Op::Put { key, value: record.encode(), expect },
        ];
        match inner.meta.commit(ops).await {
            Ok(version) => {
                sharing.note(shard, ShardOwner::of(&record));
                Ok(Some(ClaimedShard { shard, record, version, is_new: before.term == Term(0) }))
            }
            // Somebody else has claimed it, or its stream is deleted: both are told.
            Err(MetaError::Conflict { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn open_claimed(&self, claimed: Vec<ClaimedShard>) -> Result<BTreeSet<ShardId>, StreamError> {
        let inner = &*self.inner;
        let mut known = self.known_of(&claimed).await?;
        let left: BTreeSet<ShardId> =
            claimed.iter().filter(|claimed| !claimed.is_new).map(|claimed| claimed.shard).collect();
        let mut stored: BTreeMap<ShardId, Vec<SegmentsFound>> = BTreeMap::new();
        if !left.is_empty() {
            let recorded = |id: &SegmentId| known.is_recorded(id);
            let found = inner.segments.take_over(&left, &recorded).await.map_err(StreamError::Unavailable)?;
            for segment in &found {
                stored.entry(segment.id.shard).or_default().push(found_segment(segment));
            }
        }
        let recoveries =
            claimed.into_iter().filter_map(|claimed| {
                let ClaimedShard { shard, record, version, .. } = claimed;
                // Of a stream that was deleted meanwhile there is nothing to open.
                let stream = self.by_id(shard.stream).ok()?.record.clone();
                let known = known.shards.remove(&shard).unwrap_or_default();
                let known = KnownShard { record, version, ..known };
                let found = stored.remove(&shard).unwrap_or_default();
                Some(async move {
                    (shard, record.term, self.recover_or_refuse(&stream, shard, known, found).await)
                })
            });
        let recoveries: Vec<_> = recoveries.collect();
        let mut recoveries = stream::iter(recoveries).buffer_unordered(RECOVERY_PARALLEL);
        let mut opened = BTreeSet::new();
        while let Some((shard, term, recovered)) = recoveries.next().await {
            match recovered {
                Ok(recovered) => {
                    if self.open_shard(shard, recovered).await? {
                        tracing::info!(%shard, %term, "it is this node's");
                    }
                    opened.insert(shard);
                }
                Err(LogOpenError::Store(why)) => tracing::warn!(%shard, why, "it can't be opened yet"),
                Err(error) => tracing::warn!(%shard, %error, "it can't be opened yet"),
            }
        }
        Ok(opened)
    }

    /// What metadata has of the shards' segments and producers: nobody else changes it any more.
    async fn known_of(&self, claimed: &[ClaimedShard]) -> Result<KnownLog, StreamError> {
        let meta = &self.inner.meta;
        let reads = claimed.iter().map(|claimed| async move {
            let mut keys = Vec::new();
            if claimed.is_new {
                return Ok(keys);
            }
            for prefix in prefixes_of_shard(claimed.shard) {
                keys.extend(meta.list(&prefix).await?);
            }
            let key = producers_key(claimed.shard);
            keys.extend(meta.get(&key).await?.map(|found| (key, found)));
            Ok::<_, MetaError>(keys)
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffer_unordered(RECOVERY_PARALLEL);
        let mut keys = Vec::new();
        while let Some(read) = reads.next().await {
            keys.extend(read.map_err(unavailable)?);
        }
        KnownLog::read(&keys).map_err(|error| StreamError::Unavailable(error.to_string()))
    }
}
