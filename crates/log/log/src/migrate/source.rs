//! What a data directory has that is to be moved, as a start would find it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tailwater_env::{Env, Progress};
use tailwater_format::{SegmentId, ShardId, ShardNumber, StreamId};
use tailwater_journal::Journal;
use tailwater_meta::{Meta, Versioned};
use tailwater_store::{DataDir, RecoveredSegment, SegmentStore, StoreContract};
use uuid::Uuid;

use super::segments::WantedSegment;
use crate::config::StreamDurability;
use crate::error::LogOpenError;
use crate::limits::SHARD_SEGMENTS_SHARED_MAX;
use crate::open::placed::{self, ByMetadata};
use crate::open::{KnownLog, KnownShard, LogConfig, OpenedDir, ReplayOthers, found_segment};
use crate::shard::{Recovered, SegmentsFound, recover};
use crate::stream::{
    Key, METADATA_KEY, SEGMENTS_KEY, SegmentRecord, SegmentsRecord, ShardRecord, StreamRecord, segment_key,
    shard_key,
};

/// A shard as it is to be recorded.
struct SourceShard {
    id: ShardId,
    /// `None` of one that nobody has appended to.
    record: Option<ShardRecord>,
    segments: Vec<SegmentRecord>,
}

/// A stream that is moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigrationStream {
    /// Its name.
    pub name: String,
    /// Its shards.
    pub shards: u32,
    /// Records that were not removed.
    pub records: u64,
    /// Completed segments that are copied. The newest one is completed by the move.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Segments that only cold storage has. They stay there.
    pub segments_cold: u64,
    /// Copies of each entry, if the stream has a number of its own.
    #[serde(skip)]
    pub write_quorum: Option<u32>,
}

/// A data directory with metadata of its own. Its drop gives the directory back.
pub struct MigrationSource {
    /// The cluster to which an earlier run has moved it.
    pub moved_to: Option<Uuid>,
    pub(super) local: Arc<dyn Meta>,
    streams: BTreeMap<StreamId, StreamRecord>,
    shards: Vec<SourceShard>,
    keys: Vec<(String, Versioned)>,
    /// By which number a replicated store knows the segments, if they are in one.
    cluster: Option<Uuid>,
    /// Segments that only cold storage has.
    released: usize,
    /// Those of which bytes are missing, with the reasons.
    damaged: Vec<String>,
    /// Segments on this host's disk.
    found: Vec<SegmentId>,
    store: SegmentStore,
    journal: Journal,
    _dir: DataDir,
}

impl MigrationSource {
    /// Opens what is in `dir`, whose lock was taken before. `config` is that of the node; its `metadata` is not looked
    /// at, and its `segments` only where the directory began with a replicated store. Records of the journal that are
    /// not the log's go to `others`. Blocks on the disk.
    ///
    /// # Errors
    /// As of [`Log::open`](crate::Log::open). A shard of which bytes are missing is none of these:
    /// [`MigrationSource::refused`] names it.
    pub async fn open(
        env: &Env,
        config: &LogConfig,
        dir: &Path,
        lock: DataDir,
        others: &mut ReplayOthers<'_>,
        progress: &Progress,
    ) -> Result<Self, LogOpenError> {
        let OpenedDir { journal, store, found, local } = OpenedDir::open(env, config, dir, others, progress)?;
        let failed = |error: tailwater_meta::MetaError| LogOpenError::Meta(error.to_string());
        let moved_to = placed::noted(&*local).await?;
        let keys = local.list("").await.map_err(failed)?;
        let mut known = KnownLog::read(&log_keys(&keys))?;
        let own = found.iter().map(|segment| segment.id).collect();
        let found = match (&known.segments, &config.segments) {
            (Some(record), Some(opening)) if moved_to.is_none() => {
                let right = Arc::new(ByMetadata(Arc::clone(&local)));
                let recorded = |id: &SegmentId| known.is_recorded(id);
                let opening = opening.open(env, right, record.cluster, &recorded, progress);
                opening.await.map_err(LogOpenError::Store)?.1
            }
            _ => found,
        };
        let mut damaged = Vec::new();
        let (released, cluster) = (known.released(), known.segments.map(|record| record.cluster));
        let streams = std::mem::take(&mut known.streams);
        let shards = match moved_to {
            Some(_) => Vec::new(),
            None => shards_of(&streams, known.shards, &found, env.wall_ms(), &mut damaged),
        };
        Ok(Self {
            moved_to,
            local,
            streams,
            shards,
            keys,
            cluster,
            released,
            damaged,
            found: own,
            store,
            journal,
            _dir: lock,
        })
    }

    /// The streams, by their names.
    pub fn streams(&self) -> Vec<MigrationStream> {
        let mut streams: BTreeMap<StreamId, MigrationStream> =
            self.streams.iter().map(|(id, record)| (*id, stream_of(record))).collect();
        for shard in &self.shards {
            let Some(stream) = streams.get_mut(&shard.id.stream) else { continue };
            let log_start = shard.record.map_or(0, |record| record.log_start.0);
            let next = shard.segments.last().map(|segment| segment.next_offset.0);
            let next = next.or(shard.record.map(|record| record.next_offset.0)).unwrap_or_default();
            stream.records += next.saturating_sub(log_start);
            for segment in &shard.segments {
                if segment.is_released() {
                    stream.segments_cold += 1;
                } else {
                    stream.segments += 1;
                    stream.bytes += segment.length.0;
                }
            }
        }
        let mut streams: Vec<_> = streams.into_values().collect();
        streams.sort_by(|one, other| one.name.cmp(&other.name));
        streams
    }

    /// The keys that are moved.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(key, _)| key.as_str()).filter(|key| self.is_moved(key))
    }

    /// How many segments are on this host's disk.
    pub fn segments_here(&self) -> usize {
        self.found.len()
    }

    /// How many segments only cold storage has.
    pub fn segments_cold(&self) -> usize {
        self.released
    }

    /// Why it is not moved as it is, and what to do.
    pub fn refused(&self) -> Option<String> {
        if let Some(why) = self.damaged.first() {
            let count = self.damaged.len();
            let first = if self.cluster.is_some() {
                "see to it that `segments` names the store that has its segments; otherwise "
            } else {
                ""
            };
            return Some(format!(
                "{count} of its shards are damaged, and what is left of them is not taken for all that there is: {why}; {first}\
                 restore the data directory from a backup, or delete the stream"
            ));
        }
        let names = |is_so: &dyn Fn(&StreamRecord) -> bool| {
            let names = self.streams.values().filter(|stream| is_so(stream)).map(|stream| &*stream.name);
            names.collect::<Vec<_>>().join(" ")
        };
        let intervals = names(&|stream| stream.config.durability == StreamDurability::Interval);
        if !intervals.is_empty() {
            return Some(format!(
                "a replicated store acknowledges what is durable, and these streams have durability interval: {intervals}. \
                 Start the node as before, `tailwater stream alter NAME --durability fsync` for each, and stop it again"
            ));
        }
        let many = self.shards.iter().find(|shard| shard.segments.len() > SHARD_SEGMENTS_SHARED_MAX);
        many.map(|shard| {
            let (count, name) = (shard.segments.len(), self.name_of(shard.id.stream));
            format!(
                "shard {} of stream {name:?} has {count} completed segments, and metadata elsewhere takes \
                 {SHARD_SEGMENTS_SHARED_MAX} of a shard: start the node as before, and truncate the stream",
                shard.id.shard
            )
        })
    }

    /// Deletes the segments on this host's disk, of a directory that was moved; how many there were.
    ///
    /// # Errors
    /// Where the directory was not moved; why the disk or the journal refuses. What is left the next call deletes.
    pub async fn remove_segments(&self) -> Result<usize, String> {
        if placed::noted(&*self.local).await.map_err(|error| error.to_string())?.is_none() {
            return Err("the data directory was not moved, and its segments are the only ones".to_owned());
        }
        for id in &self.found {
            self.store.delete(id).map_err(|error| error.to_string())?;
        }
        self.store.flush().await.map_err(|error| error.to_string())?;
        Ok(self.found.len())
    }

    /// Brings the directory in order, so that the next start has less to do. Nothing is changed after it.
    pub async fn close(&self) {
        if let Err(error) = self.store.flush().await {
            tracing::warn!(%error, "segments are brought in order at the next start");
        }
        if let Err(error) = self.journal.close().await {
            tracing::warn!(%error, "closing");
        }
    }

    pub(super) fn store(&self) -> &dyn StoreContract {
        &self.store
    }

    /// By which number a replicated store knows the segments, if they are in one already.
    pub(super) fn segments_at(&self) -> Option<Uuid> {
        self.cluster
    }

    pub(super) fn name_of(&self, stream: StreamId) -> &str {
        self.streams.get(&stream).map_or("", |record| &record.name)
    }

    /// The segments that are to be in the replicated store.
    pub(super) fn wanted_segments(&self) -> Vec<WantedSegment> {
        let of_shard = |shard: &SourceShard| {
            let copies = self.streams.get(&shard.id.stream).map(|stream| stream.config.copies());
            let (shard_id, copies) = (shard.id, copies.unwrap_or_default());
            let wanted = move |segment: SegmentRecord| WantedSegment {
                id: SegmentId { shard: shard_id, number: segment.number, term: segment.term },
                length: segment.length,
                copies,
            };
            shard.segments.clone().into_iter().filter(|segment| !segment.is_released()).map(wanted)
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The keys as they are to be, with the segments by the number `cluster` in a replicated store.
    pub(super) fn wanted(&self, cluster: Uuid) -> BTreeMap<String, Bytes> {
        let kept = self.keys.iter().filter(|(key, _)| self.is_moved(key));
        let mut wanted: BTreeMap<String, Bytes> =
            kept.map(|(key, found)| (key.clone(), found.value.clone())).collect();
        wanted.insert(SEGMENTS_KEY.to_owned(), SegmentsRecord { cluster }.encode());
        for shard in &self.shards {
            wanted.extend(shard.record.map(|record| (shard_key(shard.id), record.encode())));
            let keyed = |segment: &SegmentRecord| (segment_key(shard.id, segment.number), segment.encode());
            wanted.extend(shard.segments.iter().map(keyed));
        }
        wanted
    }

    /// What a deleted stream has left behind is not moved, as a start would remove it.
    fn is_moved(&self, key: &str) -> bool {
        match Key::parse(key) {
            Some(
                Key::Shard(shard) | Key::Segment(shard, _) | Key::Producers(shard) | Key::Truncated(shard, _),
            ) => self.streams.get(&shard.stream).is_some_and(|of| shard.shard.0 < of.config.shards),
            _ => key != METADATA_KEY,
        }
    }
}

/// Those of the log: what else there is, it does not know.
fn log_keys(keys: &[(String, Versioned)]) -> Vec<(String, Versioned)> {
    let is_read = |key: &str| key.starts_with(crate::stream::PREFIX) && key != METADATA_KEY;
    keys.iter().filter(|(key, _)| is_read(key)).cloned().collect()
}

fn stream_of(record: &StreamRecord) -> MigrationStream {
    MigrationStream {
        name: record.name.clone(),
        shards: record.config.shards,
        records: 0,
        segments: 0,
        bytes: 0,
        segments_cold: 0,
        write_quorum: record.config.write_quorum,
    }
}

/// The shards of these streams, with what metadata has yet to be told of.
fn shards_of(
    streams: &BTreeMap<StreamId, StreamRecord>,
    mut known: BTreeMap<ShardId, KnownShard>,
    found: &[RecoveredSegment],
    now_ms: i64,
    damaged: &mut Vec<String>,
) -> Vec<SourceShard> {
    let mut stored: BTreeMap<ShardId, Vec<SegmentsFound>> = BTreeMap::new();
    for segment in found {
        stored.entry(segment.id.shard).or_default().push(found_segment(segment));
    }
    let mut shards = Vec::new();
    for (stream, record) in streams {
        for number in 0..record.config.shards {
            let id = ShardId { stream: *stream, shard: ShardNumber(number) };
            let known = known.remove(&id).unwrap_or_default();
            let found = stored.remove(&id).unwrap_or_default();
            match shard_of(record, id, known, &found, now_ms) {
                Ok(shard) => shards.push(shard),
                Err(why) => damaged.push(format!("shard {number} of stream {:?}: {why}", record.name)),
            }
        }
    }
    shards
}

/// A shard with what its last owner left open completed at its recovered length, as its next owner would.
fn shard_of(
    stream: &StreamRecord,
    id: ShardId,
    known: KnownShard,
    found: &[SegmentsFound],
    now_ms: i64,
) -> Result<SourceShard, String> {
    let KnownShard { record, version, segments, .. } = known;
    let segments = segments.into_values().collect();
    let recovered = recover(id, stream.numbered(record), version, segments, found, now_ms)?;
    let Recovered { completed, unsaved, .. } = recovered;
    let mut record = (version > 0 || !unsaved.is_empty()).then_some(record);
    if let (Some(record), Some(last)) = (&mut record, unsaved.last()) {
        record.next_segment = last.number.next();
        record.next_offset = last.next_offset;
        record.transaction_id = last.last_transaction_id;
    }
    Ok(SourceShard { id, record, segments: completed })
}
