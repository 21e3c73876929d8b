//! From a data directory's own metadata and segments to those that nodes share: what `tailwater migrate` does.
//!
//! 1. [`MigrationSource::open`] reads the directory as a start would, and claims, seals and removes nothing in it.
//! 2. The shared metadata takes note that it is being moved to, and from which directory (`log/moving`). Nobody goes by
//!    it from here on: nodes do not start on it, and nobody looks for segments that no record names.
//! 3. The completed segments are copied, entry by entry, in the order of each shard. A copy has the name of its
//!    segment, its positions and its entries. What the replicated store has of an earlier run, and is not whole or not
//!    wanted any more, is deleted first. The store is opened anew until it has every segment at its length
//!    (`segments.rs`).
//! 4. The keys are put as they are in the directory, and those that an earlier run left are deleted, until metadata is
//!    the same as there (`keys.rs`).
//! 5. The directory takes note of whose metadata it is moved to (`log/metadata`). From here on it is not opened with
//!    metadata of its own.
//! 6. The shared metadata forgets that it is being moved to. Nodes may start.
//!
//! What holds:
//! - **A run may end anywhere, and the next one goes on.** Each step finds out by itself what is left of it. Before
//!   step 5 the directory may be served again, and changed: the next run moves what is there by then.
//! - **Nobody serves both.** Between steps 2 and 6 the shared metadata is nobody's, and from step 5 on the directory's
//!   own metadata is not.
//! - **Nothing else is touched.** Before step 2 the shared metadata has to be empty. Segments are told from others by
//!   a number that step 2 makes. Queues, broadcasts and whatever else is in the directory stay as they are.
//!
//! Whoever calls it has the directory's lock, and the turn to change the shared metadata.

mod keys;
mod segments;
mod source;

use std::sync::Arc;

use tailwater_env::{Env, Progress};
use tailwater_format::SegmentId;
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tailwater_store::{OpenSegments, StoreError};
use uuid::Uuid;

use crate::error::{LogOpenError, ReadError};
use crate::open::SharedMetadata;
use crate::open::placed::new_cluster;
use crate::stream::{METADATA_KEY, MOVING_KEY, SEGMENTS_KEY, SegmentsRecord};

pub use self::source::{MigrationSource, MigrationStream};

/// Where everything goes.
pub struct MigrationTarget {
    /// The metadata, which this process may change.
    pub metadata: SharedMetadata,
    /// The store of segments.
    pub segments: Arc<dyn OpenSegments>,
    /// By which the shared metadata knows the data directory.
    pub source: String,
}

/// A step that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// The shared metadata has taken note that it is being moved to.
    Begun,
    /// Something of an earlier run, or of a copy that failed, is deleted.
    Deleted(SegmentId),
    /// So many segments, of so many bytes, are to be copied.
    ToCopy(u64, u64),
    /// So many bytes more are copied.
    Copied(u64),
    /// A segment is copied.
    Segment(SegmentId),
    /// The store has every segment.
    Segments,
    /// So many of so many keys are as they are to be.
    Keys(usize, usize),
    /// Everything is there.
    Whole,
    /// The directory has taken note of where it was moved.
    Marked,
    /// The shared metadata is whole.
    Done,
}

/// Is told of each step. Where it answers that it is not to go on, the run ends there, and the next one goes on.
pub type MigrationTold<'a> = dyn Fn(MigrationStep) -> bool + Send + Sync + 'a;

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationOutcome {
    /// Whether an earlier run had moved the directory already.
    pub was_moved: bool,
    /// Segments that this run has copied.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keys of the shared metadata that this run has put or deleted.
    pub keys: u64,
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The data directory.
    #[error(transparent)]
    Source(#[from] LogOpenError),
    /// What has to be changed first; nothing was moved.
    #[error("{0}")]
    Refused(String),
    /// The metadata of either side.
    #[error(transparent)]
    Metadata(#[from] MetaError),
    /// The replicated store.
    #[error("{0}")]
    Store(String),
    /// A segment can't be copied.
    #[error("segment {id} is not copied: {why}")]
    Segment {
        /// The segment.
        id: SegmentId,
        /// What is wrong.
        why: String,
    },
    /// Whoever was told of a step wanted no more.
    #[error("it was stopped")]
    Stopped,
}

impl MigrationError {
    fn read(id: SegmentId) -> impl Fn(ReadError) -> Self {
        move |error| Self::Segment { id, why: error.to_string() }
    }

    fn write(id: SegmentId) -> impl Fn(StoreError) -> Self {
        move |error| Self::Segment { id, why: error.to_string() }
    }
}

/// A run.
struct MigrationRun<'a> {
    env: &'a Env,
    source: &'a MigrationSource,
    target: &'a MigrationTarget,
    progress: &'a Progress,
    told: &'a MigrationTold<'a>,
    outcome: MigrationOutcome,
}

/// Moves all that is in `source` to `target`. `progress` says what it waits for.
///
/// Dropping the future ends the run, and the next one goes on.
///
/// # Errors
/// See [`MigrationError`]. The data directory is as it was, unless [`MigrationStep::Marked`] was told.
pub async fn migrate(
    env: &Env,
    source: &MigrationSource,
    target: &MigrationTarget,
    progress: &Progress,
    told: &MigrationTold<'_>,
) -> Result<MigrationOutcome, MigrationError> {
    let outcome = MigrationOutcome::default();
    MigrationRun { env, source, target, progress, told, outcome }.run().await
}

impl MigrationRun<'_> {
    async fn run(mut self) -> Result<MigrationOutcome, MigrationError> {
        if let Some(moved_to) = self.source.moved_to {
            self.check_moved_here(moved_to)?;
            self.outcome.was_moved = true;
            self.finish().await?;
            return Ok(self.outcome);
        }
        if let Some(why) = self.source.refused() {
            return Err(MigrationError::Refused(why));
        }
        let cluster = self.begin().await?;
        self.tell(MigrationStep::Begun)?;
        // Those of a directory that began with a replicated store are in it already, by the number that it has.
        if self.source.segments_at().is_none() {
            self.copy_segments(cluster).await?;
        }
        self.tell(MigrationStep::Segments)?;
        self.copy_keys(cluster).await?;
        self.tell(MigrationStep::Whole)?;
        self.mark().await?;
        self.tell(MigrationStep::Marked)?;
        self.finish().await?;
        Ok(self.outcome)
    }

    fn tell(&self, step: MigrationStep) -> Result<(), MigrationError> {
        if (self.told)(step) { Ok(()) } else { Err(MigrationError::Stopped) }
    }

    fn meta(&self) -> &Arc<dyn Meta> {
        &self.target.metadata.meta
    }

    /// Whether the directory was moved to this metadata and not to others.
    fn check_moved_here(&self, moved_to: Uuid) -> Result<(), MigrationError> {
        let SharedMetadata { cluster, place, .. } = &self.target.metadata;
        if moved_to == *cluster {
            return Ok(());
        }
        Err(MigrationError::Refused(format!(
            "this data directory is of the cluster {moved_to} already, and {place} has the metadata of the cluster {cluster}: \
             set `metadata` as it was"
        )))
    }

    /// Whether it is from this directory that the shared metadata is being moved to.
    fn check_moving_from_here(&self, moving: &[u8]) -> Result<(), MigrationError> {
        let MigrationTarget { source, metadata, .. } = self.target;
        if moving == source.as_bytes() {
            return Ok(());
        }
        let otherwise = if self.source.moved_to.is_none() { ", or name another path" } else { "" };
        Err(MigrationError::Refused(format!(
            "{} is being moved to from another data directory, the one with the id {}: run `tailwater migrate` on that one to \
             its end{otherwise}",
            metadata.place,
            String::from_utf8_lossy(moving)
        )))
    }

    /// Has the shared metadata take note that it is being moved to; the number of its segments.
    async fn begin(&self) -> Result<Uuid, MigrationError> {
        let (meta, target) = (self.meta(), self.target);
        let place = &target.metadata.place;
        if let Some(moving) = meta.get(MOVING_KEY).await? {
            self.check_moving_from_here(&moving.value)?;
            let found = meta.get(SEGMENTS_KEY).await?;
            let record = found.map(|found| SegmentsRecord::decode(SEGMENTS_KEY, &found.value)).transpose();
            let record = record.map_err(LogOpenError::from)?.filter(|record| self.is_ours(record));
            return record.map(|record| record.cluster).ok_or_else(|| {
                let why =
                    format!("{place} is not as an earlier run left it: name a path that is not there yet");
                MigrationError::Refused(why)
            });
        }
        let keys = meta.list("").await?.len();
        if keys > 0 {
            return Err(MigrationError::Refused(format!(
                "{place} has metadata already, {keys} keys, and what is moved is not added to others: name a path that is not \
                 there yet"
            )));
        }
        let cluster = self.source.segments_at().unwrap_or_else(|| new_cluster(self.env));
        let put = |key: &str, value| Op::Put { key: key.to_owned(), value, expect: Expect::Absent };
        let moving = put(MOVING_KEY, target.source.clone().into());
        meta.commit(vec![moving, put(SEGMENTS_KEY, SegmentsRecord { cluster }.encode())]).await?;
        Ok(cluster)
    }

    /// Whether the segments are those of the directory, if it has them in a replicated store.
    fn is_ours(&self, record: &SegmentsRecord) -> bool {
        self.source.segments_at().is_none_or(|cluster| cluster == record.cluster)
    }

    /// Has the data directory take note of whose metadata it is moved to: the one change of it.
    async fn mark(&self) -> Result<(), MigrationError> {
        let value = SegmentsRecord { cluster: self.target.metadata.cluster }.encode();
        let put = Op::Put { key: METADATA_KEY.to_owned(), value, expect: Expect::Absent };
        self.source.local.commit(vec![put]).await?;
        Ok(())
    }

    /// Has the shared metadata forget that it is being moved to. A directory that a node began with this metadata has
    /// the same mark as one that was moved: it does not end the move of another one.
    async fn finish(&self) -> Result<(), MigrationError> {
        if let Some(moving) = self.meta().get(MOVING_KEY).await? {
            self.check_moving_from_here(&moving.value)?;
            let delete = Op::Delete { key: MOVING_KEY.to_owned(), expect: Expect::Version(moving.version) };
            self.meta().commit(vec![delete]).await?;
        }
        self.tell(MigrationStep::Done)
    }
}
