//! A log's cold storage: what it is opened with, and the task that copies segments, removes copies and sweeps.
//!
//! What a shard decides is in `shard/cold.rs`; how a segment is copied is in the crate `cold`. The task looks now and
//! then which segments have no copy, copies one of each shard in turn, and tells the shard's owner. It waits for cold
//! storage and nobody waits for it: while cold storage is down, segments stay where they are.

mod copier;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tailwater_cold::{ColdObjects, ColdStats, ColdTier};
use tailwater_env::Env;
use tailwater_format::{Offset, SegmentId, ShardId, ShardNumber};
use tailwater_meta::{Expect, Meta, Op};
use tailwater_store::StoreContract;
use tokio::sync::{SemaphorePermit, oneshot};
use uuid::Uuid;

use crate::error::{AppendError, LogOpenError, StreamError};
use crate::log::{Log, LogInner};
use crate::owner::OwnerRequest;
use crate::shard::{RestoreRequest, ShardCold};
use crate::stream::{COLD_PLACE_KEY, ColdPlaceRecord, SegmentRecord};
use crate::view::View;

/// What a log's cold storage is.
#[derive(Clone)]
pub struct ColdConfig {
    /// The place.
    pub objects: Arc<dyn ColdObjects>,
    /// How long the copy of a segment is kept that retention or a truncation removed.
    pub kept: Duration,
    /// Bytes per second that copying moves; 0 is no bound.
    pub bytes_per_s: u64,
    /// Bytes of the objects that a segment is divided into, a multiple of [`tailwater_cold::limits::BLOCK_BYTES`].
    pub part_bytes: u32,
    /// How often it is looked for segments to copy and copies to remove.
    pub look_every: Duration,
    /// How often it is looked for copies that no record names.
    pub sweep_every: Duration,
}

impl fmt::Debug for ColdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColdConfig").field("objects", &self.objects).finish_non_exhaustive()
    }
}

/// Cold storage of an open log.
#[derive(Clone)]
pub(crate) struct LogCold {
    pub(crate) config: ColdConfig,
    pub(crate) tier: ColdTier,
    /// Where segments are that have not left it.
    pub(crate) store: Arc<dyn StoreContract>,
}

impl LogCold {
    /// That of the data directory with this number.
    pub(crate) fn new(env: &Env, config: ColdConfig, cluster: Uuid, store: Arc<dyn StoreContract>) -> Self {
        let tier = ColdTier::new(env, Arc::clone(&config.objects), cluster);
        Self { config, tier, store }
    }

    /// What shards are told of it.
    pub(crate) fn of_shards(&self) -> ShardCold {
        ShardCold { kept_ms: u64::try_from(self.config.kept.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// The number by which cold storage knows this data directory: made, and kept, when there is none.
pub(crate) async fn cluster(
    env: &Env,
    meta: &dyn Meta,
    known: Option<ColdPlaceRecord>,
) -> Result<Uuid, LogOpenError> {
    if let Some(record) = known {
        return Ok(record.cluster);
    }
    let random = (u128::from(env.random_u64()) << 64) | u128::from(env.random_u64());
    let cluster = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    let value = ColdPlaceRecord { cluster }.encode();
    let put = Op::Put { key: COLD_PLACE_KEY.to_owned(), value, expect: Expect::Absent };
    meta.commit(vec![put]).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
    Ok(cluster)
}

impl View {
    /// Whether the record at `offset` is in a segment that only cold storage has.
    pub(crate) fn is_cold(&self, offset: Offset) -> bool {
        let index = self.completed.partition_point(|segment| segment.next_offset <= offset);
        self.completed.get(index).is_some_and(|segment| segment.is_released())
    }
}

impl LogInner {
    /// Leave to read from the durable layer: one that waits for cold storage keeps nobody from the disk.
    pub(crate) async fn reading(&self, is_cold: bool) -> Option<SemaphorePermit<'_>> {
        let readers = if is_cold { &self.cold_reading } else { &self.catching_up };
        // It is never closed.
        readers.acquire().await.ok()
    }
}

impl Log {
    /// Counters of cold storage, if there is any.
    pub fn cold_stats(&self) -> Option<ColdStats> {
        self.inner.cold.as_ref().map(|cold| cold.tier.counters().get())
    }

    /// Whether the segment that holds this record is in cold storage alone.
    pub fn is_cold(&self, shard: ShardId, offset: Offset) -> bool {
        self.view(shard).is_ok_and(|view| view.is_cold(offset))
    }

    /// Whether a segment is in cold storage alone.
    pub fn is_cold_segment(&self, segment: &SegmentId) -> bool {
        let Ok(view) = self.view(segment.shard) else { return false };
        let index = view.completed.partition_point(|completed| completed.number < segment.number);
        let found = view.completed.get(index).filter(|found| found.number == segment.number);
        found.is_some_and(SegmentRecord::is_released)
    }

    /// Brings records of a shard back that retention or a truncation removed, from the one at `from` on, as far as
    /// their copies are kept. Answers the first offset that is there then. They are left alone by retention for as long
    /// as copies are kept, and then go as others of their age.
    ///
    /// # Errors
    /// `NothingToRestore`; `Overloaded` while a truncation or another restore is under way; `NoCold`; those of
    /// [`Log::truncate`].
    pub async fn restore(&self, name: &str, shard: ShardNumber, from: Offset) -> Result<Offset, StreamError> {
        let stream = self.find(name)?;
        if let Some(source) = &stream.record.source {
            return Err(StreamError::Copy(source.clone()));
        }
        let shards = stream.record.config.shards;
        let handle = stream.shard(shard).ok_or(StreamError::NoShard { shard: shard.0, shards })?;
        let slot = handle.slot::<StreamError>()?;
        let (reply, answer) = oneshot::channel();
        let request = OwnerRequest::Restore(slot, RestoreRequest { from, reply });
        self.inner.owners[handle.owner].try_send(request, false).map_err(|error| match error {
            AppendError::Closed => StreamError::Closed,
            _ => StreamError::Overloaded,
        })?;
        answer.await.unwrap_or(Err(StreamError::Closed))
    }

    /// Begins to copy, if there is cold storage.
    pub(crate) fn start_copying(&self) {
        let inner = &self.inner;
        if let Some(cold) = &inner.cold {
            let copier = copier::Copier::new(&inner.env, cold.clone(), Arc::downgrade(inner));
            *inner.copying.lock() = Some(inner.env.spawn("cold-copier", copier.run()));
        }
    }
}
