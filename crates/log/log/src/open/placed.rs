//! Where the segments of a data directory are: on this host's disk, or in a replicated store. A directory is opened
//! as it was begun, so that no stream appears empty because its segments are elsewhere.

use std::sync::Arc;

use tailwater_cold::ColdStore;
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_store::{RecoveredSegment, SegmentStore, StoreContract};
use uuid::Uuid;

use super::known::KnownLog;
use crate::cold::{ColdConfig, LogCold};
use crate::error::LogOpenError;
use crate::stream::{SEGMENTS_KEY, SegmentsRecord};

/// The store on this host's disk, if the segments are there.
pub(super) fn embedded(
    known: &KnownLog,
    store: &SegmentStore,
) -> Result<Arc<dyn StoreContract>, LogOpenError> {
    if known.segments.is_some() {
        return Err(LogOpenError::Store(
            "the segments of this data directory are in a replicated store: set `segments` to it, as it was"
                .to_owned(),
        ));
    }
    Ok(Arc::new(store.clone()))
}

/// The number by which a replicated store knows the segments of this data directory: made, and kept, when there is
/// none.
pub(super) async fn cluster(
    env: &Env,
    meta: &dyn Meta,
    known: &KnownLog,
    found: &[RecoveredSegment],
) -> Result<Uuid, LogOpenError> {
    if !found.is_empty() {
        return Err(LogOpenError::Store(format!(
            "this data directory has {} segments of its own, and `segments` names a replicated store: leave that out, or use \
             a new data directory, and copy the streams over with their clients",
            found.len()
        )));
    }
    if let Some(record) = &known.segments {
        return Ok(record.cluster);
    }
    let random = (u128::from(env.random_u64()) << 64) | u128::from(env.random_u64());
    let cluster = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    let value = SegmentsRecord { cluster }.encode();
    let put = Op::Put { key: SEGMENTS_KEY.to_owned(), value, expect: Expect::Absent };
    meta.commit(vec![put]).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
    Ok(cluster)
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
