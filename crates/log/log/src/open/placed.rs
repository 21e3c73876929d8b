//! Where the segments and the metadata of a data directory are: on this host's disk, or elsewhere. A directory is
//! opened as it was begun, so that no stream appears empty, or is unknown, because it is elsewhere.

use std::sync::Arc;

use tailwater_cold::ColdStore;
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::SegmentId;
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tailwater_store::{
    OpenedSegments, RecoveredSegment, SegmentStore, StoreContract, WriteRight, WriteRightFault,
};
use uuid::Uuid;

use super::known::KnownLog;
use super::{LogConfig, SharedMetadata};
use crate::cold::{ColdConfig, LogCold};
use crate::error::LogOpenError;
use crate::stream::{METADATA_KEY, MOVING_KEY, SEGMENTS_KEY, SegmentsRecord, ShardRecord, shard_key};

/// Whoever may change the metadata may write to the store.
#[derive(Clone)]
pub(crate) struct ByMetadata(pub(crate) Arc<dyn Meta>);

impl std::fmt::Debug for ByMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByMetadata")
    }
}

impl WriteRight for ByMetadata {
    fn confirm<'a>(&'a self, _: Option<&'a SegmentId>) -> BoxFuture<'a, Result<(), WriteRightFault>> {
        Box::pin(async {
            // One without operations says no more than that.
            match self.0.commit(Vec::new()).await {
                Ok(_) => Ok(()),
                Err(MetaError::TakenOver(why)) => Err(WriteRightFault::Lost(why)),
                Err(error) => Err(WriteRightFault::Unknown(error.to_string())),
            }
        })
    }
}

/// How often a record is read that its owner changes meanwhile.
const CONFIRM_ATTEMPTS: usize = 8;

/// Whoever the record of a shard names may write its segments, in the term that it has there.
struct ByRecord {
    meta: Arc<dyn Meta>,
    owner: u64,
}

impl std::fmt::Debug for ByRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByRecord({:016x})", self.owner)
    }
}

impl ByRecord {
    async fn confirm_segment(&self, id: &SegmentId) -> Result<(), WriteRightFault> {
        let lost = || WriteRightFault::Lost(format!("another node owns shard {} by now", id.shard));
        let of = |error: MetaError| match error {
            MetaError::TakenOver(why) => WriteRightFault::Lost(why),
            error => WriteRightFault::Unknown(error.to_string()),
        };
        let key = shard_key(id.shard);
        for _ in 0..CONFIRM_ATTEMPTS {
            let Some(found) = self.meta.get(&key).await.map_err(of)? else { return Err(lost()) };
            let record = ShardRecord::decode(&key, &found.value)
                .map_err(|error| WriteRightFault::Unknown(error.to_string()))?;
            if record.owner != self.owner || record.term != id.term {
                return Err(lost());
            }
            // The read says who the owner is; the commit, that the process may change metadata at all.
            let check = Op::Check { key: key.clone(), expect: Expect::Version(found.version) };
            match self.meta.commit(vec![check]).await {
                Ok(_) => return Ok(()),
                // The owner's own change of the record may be in between: another look tells.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(of(error)),
            }
        }
        Err(WriteRightFault::Unknown(format!("{key} changes all the time")))
    }
}

impl WriteRight for ByRecord {
    fn confirm<'a>(&'a self, segment: Option<&'a SegmentId>) -> BoxFuture<'a, Result<(), WriteRightFault>> {
        Box::pin(async move {
            match segment {
                Some(id) => self.confirm_segment(id).await,
                None => ByMetadata(Arc::clone(&self.meta)).confirm(None).await,
            }
        })
    }
}

/// Which cluster's metadata, elsewhere, a data directory has taken note of, if of any.
pub(crate) async fn noted(local: &dyn Meta) -> Result<Option<Uuid>, LogOpenError> {
    let noted = local.get(METADATA_KEY).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
    let noted = noted.map(|found| SegmentsRecord::decode(METADATA_KEY, &found.value)).transpose()?;
    Ok(noted.map(|noted| noted.cluster))
}

/// The metadata: what is in the data directory, or `shared`, of which the directory takes note. The directory has so
/// many `segments` of its own.
pub(super) async fn metadata(
    shared: Option<&SharedMetadata>,
    local: &Arc<dyn Meta>,
    segments: usize,
) -> Result<Arc<dyn Meta>, LogOpenError> {
    let failed = |error: MetaError| LogOpenError::Meta(error.to_string());
    let noted = noted(&**local).await?;
    if let Some(shared) = shared {
        check_moved(shared).await?;
    }
    match (shared, noted) {
        (None, None) => Ok(Arc::clone(local)),
        (None, Some(noted)) => Err(LogOpenError::Meta(format!(
            "this data directory was begun with metadata elsewhere, or moved there, those of the cluster {noted}: set \
             `metadata` to where they are, as it was"
        ))),
        (Some(shared), Some(noted)) if noted == shared.cluster => {
            if segments > 0 {
                tracing::info!(
                    segments,
                    "segments of this data directory were moved, and nothing reads them here: \
                     `tailwater migrate --remove-segments` removes them"
                );
            }
            Ok(Arc::clone(&shared.meta))
        }
        (Some(shared), Some(noted)) => Err(LogOpenError::Meta(format!(
            "this data directory is of the cluster {}, and {} has the metadata of the cluster {}: set `metadata` as it was, \
             or use a new data directory",
            noted, shared.place, shared.cluster
        ))),
        (Some(shared), None) => {
            let own = local.list("").await.map_err(failed)?.len();
            if own > 0 || segments > 0 {
                return Err(LogOpenError::Meta(format!(
                    "this data directory has metadata of its own, {own} keys, and `metadata` names {}: `tailwater migrate` \
                     with this configuration moves everything there; or leave `metadata` out, or use a new data directory",
                    shared.place
                )));
            }
            let value = SegmentsRecord { cluster: shared.cluster }.encode();
            let put = Op::Put { key: METADATA_KEY.to_owned(), value, expect: Expect::Absent };
            local.commit(vec![put]).await.map_err(failed)?;
            Ok(Arc::clone(&shared.meta))
        }
    }
}

/// Whether all is there of what was to be moved to `shared`.
async fn check_moved(shared: &SharedMetadata) -> Result<(), LogOpenError> {
    let moving = shared.meta.get(MOVING_KEY).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
    let Some(moving) = moving else { return Ok(()) };
    Err(LogOpenError::Meta(format!(
        "{} is being moved to from the data directory with the id {}, and not all of it is there: run `tailwater migrate` on \
         that directory to its end",
        shared.place,
        String::from_utf8_lossy(&moving.value)
    )))
}

/// The store of segments, and what is in it: the one on this host's disk, `store`, with what was `found` there, or a
/// replicated one. Of one that several processes share, of which this is `owner`, nothing is looked at before it is
/// claimed.
pub(super) async fn segments(
    env: &Env,
    config: &LogConfig,
    (meta, known): (&Arc<dyn Meta>, &KnownLog),
    (store, found): (&SegmentStore, Vec<RecoveredSegment>),
    owner: Option<u64>,
    progress: &Progress,
) -> Result<OpenedSegments, LogOpenError> {
    let Some(opening) = &config.segments else {
        if owner.is_some() {
            let why = "several nodes share what is in a replicated store alone: set `segments` to one";
            return Err(LogOpenError::Store(why.to_owned()));
        }
        return Ok((embedded(known, store)?, found));
    };
    // Of a directory that was moved they are elsewhere by now.
    let own = if config.metadata.is_some() { 0 } else { found.len() };
    let cluster = cluster(env, &**meta, known, own).await?;
    let meta = Arc::clone(meta);
    let opened = match owner {
        Some(owner) => {
            let right = Arc::new(ByRecord { meta, owner });
            let opened = opening.open_shared(env, right, cluster, progress).await;
            opened.map(|store| (store, Vec::new()))
        }
        None => {
            let right = Arc::new(ByMetadata(meta));
            let recorded = |id: &SegmentId| known.is_recorded(id);
            opening.open(env, right, cluster, &recorded, progress).await
        }
    };
    opened.map_err(LogOpenError::Store)
}

/// The store on this host's disk, if the segments are there.
fn embedded(known: &KnownLog, store: &SegmentStore) -> Result<Arc<dyn StoreContract>, LogOpenError> {
    if known.segments.is_some() {
        return Err(LogOpenError::Store(
            "the segments of this data directory are in a replicated store: set `segments` to it, as it was"
                .to_owned(),
        ));
    }
    Ok(Arc::new(store.clone()))
}

/// A number by which a replicated store knows segments.
pub(crate) fn new_cluster(env: &Env) -> Uuid {
    let random = (u128::from(env.random_u64()) << 64) | u128::from(env.random_u64());
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
}

/// The number by which a replicated store knows the segments of this data directory: made, and kept, when there is
/// none.
async fn cluster(
    env: &Env,
    meta: &dyn Meta,
    known: &KnownLog,
    // Segments on this host's disk.
    own: usize,
) -> Result<Uuid, LogOpenError> {
    if own > 0 {
        return Err(LogOpenError::Store(format!(
            "this data directory has {own} segments of its own, and `segments` names a replicated store: set `metadata` to a \
             place in ZooKeeper too, and run `tailwater migrate` with that configuration, which moves everything; or leave \
             `segments` out, or use a new data directory"
        )));
    }
    if let Some(record) = &known.segments {
        return Ok(record.cluster);
    }
    let cluster = new_cluster(env);
    let value = SegmentsRecord { cluster }.encode();
    let put = Op::Put { key: SEGMENTS_KEY.to_owned(), value, expect: Expect::Absent };
    let failed = |error: MetaError| LogOpenError::Meta(error.to_string());
    match meta.commit(vec![put]).await {
        // Another process that shares the metadata has begun at the same time.
        Err(MetaError::Conflict { .. }) => {
            let found = meta.get(SEGMENTS_KEY).await.map_err(failed)?;
            let found = found.map(|found| SegmentsRecord::decode(SEGMENTS_KEY, &found.value)).transpose()?;
            Ok(found.map_or(cluster, |found| found.cluster))
        }
        committed => committed.map(|_| cluster).map_err(failed),
    }
}

/// The store with cold storage behind it, if there is any.
///
/// # Errors
/// Where metadata has segments that only cold storage has, and nothing says where it is.
pub(super) async fn cold(
    env: &Env,
    meta: &dyn Meta,
    known: &KnownLog,
    config: Option<ColdConfig>,
    segments: Arc<dyn StoreContract>,
) -> Result<(Arc<dyn StoreContract>, Option<LogCold>), LogOpenError> {
    let Some(config) = config else {
        return match known.released() {
            0 => Ok((segments, None)),
            released => Err(LogOpenError::Store(format!(
                "{released} segments of this data directory are in cold storage alone: set url below [cold] to where that is"
            ))),
        };
    };
    let cluster = crate::cold::cluster(env, meta, known.cold).await?;
    let cold = LogCold::new(env, config, cluster, Arc::clone(&segments));
    Ok((Arc::new(ColdStore::new(segments, cold.tier.clone())), Some(cold)))
}
