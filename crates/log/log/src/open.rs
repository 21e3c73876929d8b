//! Opening a log: from the data directory to shards that take appends.
//!
//! 1. The directory is locked, segment files and the metadata's snapshot are listed, the journal is replayed into
//!    both.
//! 2. Metadata and store are brought together, shard by shard ([`recover`]): what an unclean stop left open is
//!    sealed at its recovered length, what retention gave up is deleted. The shards' owners do both, and commit the
//!    records of the former, at once or, on a disk without room, as soon as the journal takes records again; until
//!    then another start finds the same.
//! 3. The producers of each shard are what its last snapshot says, and the batches since then.
//! 4. The shards go to their owners, which claim a term with each shard's first append.
//!
//! A shard whose bytes are not all there is not opened: appends and reads of it are refused, nothing of it is touched,
//! and the other shards go on. What all of them need, the journal and the metadata, has to be whole.

mod known;
pub(crate) mod placed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{Offset, SegmentId, ShardId, ShardNumber, StreamId, batches};
use tailwater_journal::{Journal, JournalConfig, JournalPosition, ReplayError, Tag};
use tailwater_meta::{Meta, MetaConfig};
use tailwater_store::{DataDir, OpenSegments, RecoveredSegment, SegmentStore, StoreConfig, lock_data_dir};
use tailwater_tail::{Cells, TailWriter, WriterConfig};

pub(crate) use self::known::{KnownLog, KnownShard};
use crate::budget::ReadBudget;
use crate::cold::ColdConfig;
use crate::counters::Counters;
use crate::error::{LogOpenError, ReadError};
use crate::hot::Hot;
use crate::limits::{
    CATCHING_UP_MAX, COLD_READING_MAX, IN_FLIGHT_BYTES_DEFAULT, RECOVERY_PARALLEL, SINGLE_MAX,
    TIMESTAMP_AFTER_MAX_DEFAULT,
};
use crate::log::{ClosedShard, Damaged, Log, LogInner, Streams, remove_deleted, remove_leftovers};
use crate::owner::{self, OwnerDependencies};
use crate::producer::{Claim, Producers};
use crate::producer_ids::ProducerIds;
use crate::refill::refill;
use crate::scan::{Scan, read_error};
use crate::shard::{FoundContent, Recovered, SegmentsFound, recover};
use crate::share::{ShardOwner, SharedShards};
use crate::stream::{PREFIX, ProducersRecord, SegmentRecord, StreamRecord};
use crate::sweep::LogSweeping;

/// How a log works.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Owner tasks that the shards are spread over, at least 1. More than there are cores help nobody.
    pub owners: usize,
    /// Bytes of appends between their arrival and their answer, over all shards; beyond it appends are refused
    /// as overloaded. Less than the store's `pending_bytes_max`, or the store refuses first.
    pub in_flight_bytes: u64,
    /// How far a record's timestamp may be ahead of the wall's clock (Kafka's `message.timestamp.after.max.ms`, and its
    /// default). Explicit transaction ids may be anything.
    pub timestamp_after_max: Duration,
    /// Bytes of the records of one append when decompressed, at most [`RECORDS_DECOMPRESSED_BYTES_MAX`], which is what
    /// readers take.
    pub decompressed_bytes_max: usize,
    /// Bytes of the newest entries of all shards that are kept in memory for two-sided readers at the tail; 0 is none.
    pub hot_bytes: u64,
    /// How often segments roll by time, and retention is looked after.
    pub tick: Duration,
    /// How long [`Log::close`] tries to leave nothing to recover.
    pub close_timeout: Duration,
    /// The journal's.
    pub journal: JournalConfig,
    /// The store's.
    pub store: StoreConfig,
    /// The replicated store that the streams' segments are in; `None` keeps them on this host's disk.
    pub segments: Option<Arc<dyn OpenSegments>>,
    /// How often it is looked for what no record names in a replicated store; zero is never.
    pub sweep_every: Duration,
    /// Where completed segments are copied to; `None` is nowhere.
    pub cold: Option<ColdConfig>,
    /// The metadata's, in the data directory.
    pub meta: MetaConfig,
    /// The metadata that is elsewhere; `None` keeps it in the data directory.
    pub metadata: Option<SharedMetadata>,
    /// How the cells are written.
    pub tail: WriterConfig,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            owners: 2,
            in_flight_bytes: IN_FLIGHT_BYTES_DEFAULT,
            timestamp_after_max: TIMESTAMP_AFTER_MAX_DEFAULT,
            decompressed_bytes_max: RECORDS_DECOMPRESSED_BYTES_MAX,
            hot_bytes: 0,
            tick: Duration::from_secs(1),
            close_timeout: Duration::from_secs(30),
            journal: JournalConfig::default(),
            store: StoreConfig::default(),
            segments: None,
            sweep_every: Duration::ZERO,
            cold: None,
            meta: MetaConfig::default(),
            metadata: None,
            tail: WriterConfig::default(),
        }
    }
}

/// Metadata that is not in the data directory.
#[derive(Clone)]
pub struct SharedMetadata {
    /// The metadata.
    pub meta: Arc<dyn Meta>,
    /// Where it is, in words.
    pub place: String,
    /// By which it is told from others.
    pub cluster: uuid::Uuid,
    /// Whether several processes are active on it, each of which owns a part of the shards
    /// ([`ShardSharing`](crate::ShardSharing)). Segments have to be in a replicated store then.
    pub is_shared: bool,
}

impl std::fmt::Debug for SharedMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMetadata({}, cluster {})", self.place, self.cluster)
    }
}

/// What is in a data directory, replayed.
pub(crate) struct OpenedDir {
    pub(crate) journal: Journal,
    /// The store on this host's disk.
    pub(crate) store: SegmentStore,
    /// The segments that are in it.
    pub(crate) found: Vec<RecoveredSegment>,
    /// The directory's own metadata.
    pub(crate) local: Arc<dyn Meta>,
}

impl OpenedDir {
    /// Opens what is in `dir`, which the caller has locked. Blocks on the disk.
    pub(crate) fn open(
        env: &Env,
        config: &LogConfig,
        dir: &Path,
        others: &mut ReplayOthers<'_>,
        progress: &Progress,
    ) -> Result<Self, LogOpenError> {
        let failed = |error: &dyn std::fmt::Display| LogOpenError::Store(error.to_string());
        let mut segments =
            tailwater_store::Recovery::begin_telling(env, dir, config.store.clone(), progress.clone())
                .map_err(|error| failed(&error))?;
        progress.begin("metadata", 0);
        let mut metadata = tailwater_meta::Recovery::begin(env, &dir.join("meta"))
            .map_err(|error| LogOpenError::Meta(error.to_string()))?;
        let mut replay = |tag, end, bytes: &[u8]| {
            if tag == tailwater_store::TAG {
                segments.replay(end, bytes)
            } else if tag == tailwater_meta::TAG {
                metadata.replay(end, bytes)
            } else {
                others(tag, end, bytes)
            }
        };
        let (journal_dir, journal_config) = (dir.join("journal"), config.journal.clone());
        let journal = Journal::open_telling(env, &journal_dir, journal_config, &mut replay, progress)
            .map_err(|error| LogOpenError::Journal(error.to_string()))?;
        let (store, found) = segments.finish(journal.clone()).map_err(|error| failed(&error))?;
        let local = metadata.finish(env, journal.clone(), config.meta.clone());
        Ok(Self { journal, store, found, local: Arc::new(local) })
    }
}

/// Takes records of the journal that are not the log's, in order: tag, end, bytes.
pub type ReplayOthers<'a> = dyn FnMut(Tag, JournalPosition, &[u8]) -> Result<(), ReplayError> + Send + 'a;

/// Connects to the cells, whose configuration is in the metadata; an error says why the log can't be without them.
pub type OpenCells<'a> =
    dyn FnOnce(Arc<dyn Meta>) -> BoxFuture<'a, Result<Option<Cells>, String>> + Send + 'a;

impl Log {
    /// Opens the log in `dir`, which is created if it is not there, and shadows what it writes to `cells`.
    /// Blocks on the disk while journal and segments are read.
    pub async fn open(
        env: &Env,
        config: LogConfig,
        dir: &Path,
        cells: Option<Cells>,
    ) -> Result<Self, LogOpenError> {
        let data_dir = lock_data_dir(env, dir).map_err(|error| LogOpenError::Store(error.to_string()))?;
        let mut others = |_, _, _: &[u8]| {
            Err(ReplayError::new("written by a later version, or not by the log: its tag is not known"))
        };
        let progress = Progress::default();
        let cells = Box::new(|_| -> BoxFuture<'static, _> { Box::pin(std::future::ready(Ok(cells))) });
        Self::open_locked(env, config, dir, data_dir, cells, &mut others, &progress).await
    }

    /// The same in a directory whose lock, `data_dir`, was taken before, telling how far it is. The journal's records
    /// of other tags than the log's own go to `others`. `cells` is called when the metadata can be read.
    pub async fn open_locked(
        env: &Env,
        config: LogConfig,
        dir: &Path,
        data_dir: DataDir,
        cells: Box<OpenCells<'_>>,
        others: &mut ReplayOthers<'_>,
        progress: &Progress,
    ) -> Result<Self, LogOpenError> {
        let OpenedDir { journal, store, found, local } =
            OpenedDir::open(env, &config, dir, others, progress)?;
        let meta = placed::metadata(config.metadata.as_ref(), &local, found.len()).await?;

        let keys = meta.list(PREFIX).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
        let owner_number = env.random_u64();
        let is_shared = config.metadata.as_ref().is_some_and(|shared| shared.is_shared);
        let known = match is_shared {
            true => KnownLog::read_what_can_be(&keys),
            false => KnownLog::read(&keys)?,
        };
        let owner = is_shared.then_some(owner_number);
        let (segments, found) =
            placed::segments(env, &config, (&meta, &known), (&store, found), owner, progress).await?;

        let (segments, cold) = placed::cold(env, &*meta, &known, config.cold.clone(), segments).await?;

        let cells = cells(Arc::clone(&meta)).await.map_err(LogOpenError::Cells)?;
        let tail = TailWriter::start_with(env, cells, config.tail);
        let counters = Arc::new(Counters::default());
        let hot = Arc::new(Hot::new(config.hot_bytes));
        let needs = OwnerDependencies {
            env: env.clone(),
            journal: journal.clone(),
            segments: Arc::clone(&segments),
            cold: cold.as_ref().map(|cold| cold.tier.clone()),
            meta: Arc::clone(&meta),
            tail: tail.clone(),
            counters: Arc::clone(&counters),
            hot: Arc::clone(&hot),
            tick: config.tick,
        };
        let log = Self {
            inner: Arc::new(LogInner {
                env: env.clone(),
                config_close_timeout: config.close_timeout,
                timestamp_after_max_ms: u64::try_from(config.timestamp_after_max.as_millis())
                    .unwrap_or(u64::MAX),
                decompressed_bytes_max: config.decompressed_bytes_max.min(RECORDS_DECOMPRESSED_BYTES_MAX),
                dir: dir.to_owned(),
                owner_number,
                sharing: is_shared.then(SharedShards::default),
                owners: (0..config.owners.max(1)).map(|_| owner::start(needs.clone())).collect(),
                streams: parking_lot::RwLock::new(Streams::default()),
                naming: tokio::sync::Mutex::new(()),
                producer_ids: ProducerIds::default(),
                budget: ReadBudget::new(config.in_flight_bytes),
                hot,
                catching_up: tokio::sync::Semaphore::new(CATCHING_UP_MAX),
                cold_reading: tokio::sync::Semaphore::new(COLD_READING_MAX),
                single: tokio::sync::Semaphore::new(SINGLE_MAX),
                counters,
                closed: AtomicBool::new(false),
                source_ends: Default::default(),
                refill: parking_lot::Mutex::new(None),
                copying: parking_lot::Mutex::new(None),
                sweeping: LogSweeping::new(!is_shared),
                cold,
                tail,
                meta,
                _local: local,
                segments,
                store,
                journal,
                _dir: data_dir,
            }),
        };
        log.recover(known, found, progress).await?;
        log.start_tasks(config.sweep_every);
        Ok(log)
    }

    /// Brings metadata and store together.
    async fn recover(
        &self,
        known: KnownLog,
        found: Vec<RecoveredSegment>,
        progress: &Progress,
    ) -> Result<(), LogOpenError> {
        let inner = &*self.inner;
        let KnownLog { streams, shards: mut known, deleted, .. } = known;
        if let Some(sharing) = &inner.sharing {
            // Nothing is this process's before it has claimed it. Of one without a record that was read nobody is
            // known.
            for (shard, known) in known.iter().filter(|(_, known)| known.version > 0) {
                sharing.note(*shard, ShardOwner::of(&known.record));
            }
            for record in streams.into_values() {
                let shards = (0..record.config.shards).map(|_| Err(ClosedShard::Elsewhere)).collect();
                self.adopt(record, shards).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
            }
            return Ok(());
        }

        let mut stored: BTreeMap<ShardId, Vec<SegmentsFound>> = BTreeMap::new();
        for segment in &found {
            if let Some(damage) = &segment.damaged {
                tracing::error!(segment = %segment.id, damage, "a segment is damaged");
            }
            stored.entry(segment.id.shard).or_default().push(found_segment(segment));
        }
        // A deletion that a crash interrupted is carried on with.
        let gone = |shard: &ShardId| {
            streams.get(&shard.stream).is_none_or(|record| shard.shard.0 >= record.config.shards)
        };
        let segments = stored.iter().filter(|(shard, _)| gone(shard)).flat_map(|(_, segments)| segments);
        let segments: Vec<SegmentId> = segments.map(|segment| segment.id).collect();
        self.remove(segments).await.map_err(|error| LogOpenError::Store(error.to_string()))?;
        let mut leftovers: Vec<StreamId> =
            known.keys().filter(|shard| gone(shard)).map(|shard| shard.stream).collect();
        leftovers.dedup();
        for stream in leftovers {
            if let Err(error) = remove_leftovers(&*inner.meta, stream).await {
                tracing::warn!(%stream, %error, "metadata of a deleted stream is left for the next start");
            }
        }

        for stream in deleted {
            // This process is the only one: what it has found of them is removed.
            if let Err(error) = remove_deleted(&*inner.meta, stream).await {
                tracing::warn!(%stream, %error, "that a stream was deleted is noted until the next start");
            }
        }

        let shards = streams.values().map(|record| u64::from(record.config.shards)).sum();
        progress.begin("shards", shards);
        for (id, record) in streams {
            let numbers =
                (0..record.config.shards).map(|number| ShardId { stream: id, shard: ShardNumber(number) });
            let shards = numbers.map(|shard| {
                let known = known.remove(&shard).unwrap_or_default();
                let found = stored.remove(&shard).unwrap_or_default();
                self.recover_or_refuse(&record, shard, known, found)
            });
            let shards: Vec<_> = shards.collect();
            let shards = stream::iter(shards).buffered(RECOVERY_PARALLEL).inspect_ok(|_| progress.advance(1));
            let shards: Vec<Result<_, Damaged>> = shards.try_collect().await?;
            let shards = shards.into_iter().map(|shard| shard.map_err(ClosedShard::Damaged)).collect();
            self.adopt(record, shards).await.map_err(|error| LogOpenError::Meta(error.to_string()))?;
        }
        self.refill_cell();
        Ok(())
    }

    /// Begins to bring the ends of the shards back into the data cell, if there is one.
    fn refill_cell(&self) {
        let inner = &*self.inner;
        if inner.tail.refill_share(1) > 0 {
            // What is in cold storage alone stays there: nobody has asked for it yet.
            let store = inner.cold.as_ref().map_or(&inner.segments, |cold| &cold.store);
            let refill = refill(Arc::clone(store), inner.tail.clone(), self.whole_shards());
            *inner.refill.lock() = Some(inner.env.spawn("tail-refill", refill));
        }
    }

    /// A shard whose bytes are not all there is refused, whoever asks for it; the others need not wait for that.
    pub(crate) async fn recover_or_refuse(
        &self,
        stream: &StreamRecord,
        shard: ShardId,
        known: KnownShard,
        found: Vec<SegmentsFound>,
    ) -> Result<Result<(Recovered, Producers), Damaged>, LogOpenError> {
        let segments = found.iter().map(|segment| segment.id).collect();
        match self.recover_shard(stream, shard, known, found).await {
            Err(LogOpenError::Inconsistent { shard, why }) => {
                tracing::error!(%shard, why, "the shard is damaged and is not opened; the others are");
                Ok(Err(Damaged { why: format!("shard {shard}: {why}").into(), segments }))
            }
            result => result.map(Ok),
        }
    }

    async fn recover_shard(
        &self,
        stream: &StreamRecord,
        shard: ShardId,
        known: KnownShard,
        found: Vec<SegmentsFound>,
    ) -> Result<(Recovered, Producers), LogOpenError> {
        let inner = &*self.inner;
        let KnownShard { record, version, segments, producers, truncated } = known;
        let segments = segments.into_values().collect();
        let record = stream.numbered(record);
        let mut recovered = recover(shard, record, version, segments, &found, inner.env.wall_ms())
            .map_err(|why| LogOpenError::Inconsistent { shard, why })?;
        recovered.truncated = truncated.into_values().collect();
        recovered.lift_term(stream);
        for segment in &recovered.completed {
            if let (Some(cold), Some(copied)) = (&inner.cold, segment.cold) {
                let id = SegmentId { shard, number: segment.number, term: segment.term };
                cold.tier.name(id, copied.copy, segment.length);
            }
        }
        for (id, length) in &recovered.seals {
            tracing::info!(segment = %id, %length, "sealed at its recovered length");
        }
        let producers = self.recover_producers(stream, shard, &recovered, producers).await?;
        Ok((recovered, producers))
    }

    /// The shard's producers: the snapshot, and the batches since. Those of another cluster's source are not known
    /// here: their ids are of that.
    async fn recover_producers(
        &self,
        stream: &StreamRecord,
        shard: ShardId,
        recovered: &Recovered,
        snapshot: Option<ProducersRecord>,
    ) -> Result<Producers, LogOpenError> {
        let inner = &*self.inner;
        let now_ms = inner.env.wall_ms();
        if stream.source.is_some() {
            return Ok(Producers::default());
        }
        let snapshot = snapshot.filter(|snapshot| snapshot.term >= stream.term_min);
        let (upto, mut producers) = match snapshot {
            Some(snapshot) => (snapshot.upto, Producers::restore(snapshot.producers)),
            // Also of what is removed already, and was never in a snapshot: its producer may send it again.
            None => (Offset(0), Producers::default()),
        };
        let is_of_here =
            |segment: &&SegmentRecord| segment.next_offset > upto && segment.term >= stream.term_min;
        for segment in recovered.completed.iter().filter(is_of_here) {
            let id = SegmentId { shard, number: segment.number, term: segment.term };
            // A disk that refuses a read may answer the next one: that is no damage.
            let unreadable = |error: ReadError| match error {
                ReadError::Corrupt(why) => LogOpenError::Inconsistent { shard, why },
                error => LogOpenError::Store(format!("segment {id}: {error}")),
            };
            let position = inner.segments.locate_offset(&id, upto.max(segment.base_offset)).await;
            let position = position.map_err(|error| unreadable(read_error(error)))?;
            let mut scan = Scan::new(&*inner.segments, id, position, segment.length);
            while let Some(scanned) = scan.next().await.map_err(unreadable)? {
                if scanned.header.next_offset() <= upto || scanned.header.is_control() {
                    continue;
                }
                let bytes = scan.batches(&scanned).await.map_err(unreadable)?;
                for batch in batches(&bytes) {
                    let batch =
                        batch.map_err(|error| unreadable(ReadError::Corrupt(format!("{id}: {error}"))))?;
                    let header = batch.header();
                    if let Some(producer) = header.producer().filter(|_| header.base_offset >= upto) {
                        let claim = Claim {
                            producer: producer.id,
                            epoch: producer.epoch,
                            first: producer.base_sequence,
                            count: header.record_count,
                        };
                        producers.replay(claim, header.base_offset, now_ms);
                    }
                }
            }
        }
        producers.expire(now_ms);
        Ok(producers)
    }
}

pub(crate) fn found_segment(segment: &RecoveredSegment) -> SegmentsFound {
    let content = segment.contents.as_ref().map(|contents| {
        let last = contents.last.header();
        FoundContent {
            base_offset: contents.first_offset,
            next_offset: last.next_offset(),
            first_transaction_id: contents.first_transaction_id,
            last_transaction_id: last.transaction_id,
        }
    });
    let (id, length, sealed, damaged) = (segment.id, segment.length, segment.sealed, segment.damaged.clone());
    SegmentsFound { id, length, sealed, content, damaged }
}
