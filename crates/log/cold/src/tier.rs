//! The copies that metadata names, and reading them.
//!
//! A block is read at once, checked against the copy's index, and kept for a while. Whoever reads on gets the next
//! one read ahead. A block that is not what was written is read once more, and never given out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tailwater_env::{Env, HashMap};
use tailwater_format::{Offset, Position, SegmentId, ShardId, StreamId, TransactionId};
use tailwater_store::StoreError;
use uuid::Uuid;

use crate::index::ColdIndex;
use crate::limits::{
    AHEAD_MAX, BLOCK_BYTES, BLOCKS_MAX, COPY_TIMEOUT, INDEX_BYTES_MAX, INDEXES_MAX, READ_TIMEOUT,
    REMOVALS_MAX,
};
use crate::names::{
    ColdCopy, CopyName, cluster_folder, copy_folder, index_name, part_name, shard_folder, stream_folder,
};
use crate::objects::{ColdError, ColdObjects};
use crate::recent::Recent;
use crate::stats::ColdCounters;

/// A copy that metadata names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedCopy {
    id: SegmentId,
    copy: ColdCopy,
    length: Position,
}

struct TierShared {
    env: Env,
    objects: Arc<dyn ColdObjects>,
    cluster: Uuid,
    named: RwLock<HashMap<SegmentId, NamedCopy>>,
    indexes: Recent<ColdCopy, Arc<ColdIndex>>,
    blocks: Recent<(ColdCopy, u64), Bytes>,
    /// Blocks that are read ahead at the moment.
    ahead: AtomicUsize,
    /// Folders that no record names any more.
    removals: Mutex<VecDeque<String>>,
    counters: ColdCounters,
}

/// Cold storage of one data directory. Cheap to clone.
#[derive(Clone)]
pub struct ColdTier(Arc<TierShared>);

impl ColdTier {
    /// That of the data directory with the number `cluster`. Asks nothing of the place: it may be down.
    pub fn new(env: &Env, objects: Arc<dyn ColdObjects>, cluster: Uuid) -> Self {
        Self(Arc::new(TierShared {
            env: env.clone(),
            objects,
            cluster,
            named: RwLock::default(),
            indexes: Recent::new(INDEXES_MAX),
            blocks: Recent::new(BLOCKS_MAX),
            ahead: AtomicUsize::new(0),
            removals: Mutex::default(),
            counters: ColdCounters::default(),
        }))
    }

    /// The place itself.
    pub fn objects(&self) -> &dyn ColdObjects {
        &*self.0.objects
    }

    /// The number of the data directory, with which all names begin.
    pub fn cluster(&self) -> Uuid {
        self.0.cluster
    }

    /// The counters.
    pub fn counters(&self) -> &ColdCounters {
        &self.0.counters
    }

    /// Metadata names a copy from now on: readers are given it where the store has nothing.
    pub fn name(&self, id: SegmentId, copy: ColdCopy, length: Position) {
        self.0.named.write().insert(id, NamedCopy { id, copy, length });
    }

    /// Metadata keeps a copy that readers are not given.
    pub fn hide(&self, id: &SegmentId) {
        self.0.named.write().remove(id);
    }

    /// Metadata does not name a copy any more: it is removed, some time. Where too many wait it is swept instead.
    pub fn remove(&self, id: &SegmentId, copy: ColdCopy) {
        self.hide(id);
        let mut removals = self.0.removals.lock();
        if removals.len() < REMOVALS_MAX {
            removals.push_back(copy_folder(self.0.cluster, id, copy));
        }
    }

    /// Whether readers are given a copy of this segment where the store has nothing.
    pub fn has(&self, id: &SegmentId) -> bool {
        self.0.named.read().contains_key(id)
    }

    /// Removes what no record names any more.
    ///
    /// # Errors
    /// Why it can't at the moment. What is left waits.
    pub async fn remove_waiting(&self) -> Result<(), ColdError> {
        loop {
            let Some(folder) = self.0.removals.lock().front().cloned() else { return Ok(()) };
            self.within(&folder, self.0.objects.remove(&folder)).await?;
            ColdCounters::one(&self.0.counters.copies_removed);
            self.0.removals.lock().pop_front();
        }
    }

    /// The streams of this data directory of which there is a folder, in no order.
    ///
    /// # Errors
    /// Why that can't be had at the moment.
    pub async fn streams(&self) -> Result<Vec<StreamId>, ColdError> {
        let folder = cluster_folder(self.0.cluster);
        let names = self.within(&folder, self.0.objects.list(&folder)).await?;
        Ok(names.iter().filter_map(|name| Uuid::try_parse(name).ok()).map(StreamId).collect())
    }

    /// The copies of a shard's segments of which there is a folder, whole or not.
    ///
    /// # Errors
    /// As [`ColdTier::streams`].
    pub async fn copies(&self, shard: ShardId) -> Result<Vec<CopyName>, ColdError> {
        let folder = shard_folder(self.0.cluster, shard);
        let names = self.within(&folder, self.0.objects.list(&folder)).await?;
        Ok(names.iter().filter_map(|name| CopyName::parse(name)).collect())
    }

    /// Removes a folder that no record names.
    ///
    /// # Errors
    /// As [`ColdTier::streams`].
    pub async fn sweep(&self, shard: ShardId, name: CopyName) -> Result<(), ColdError> {
        let id = SegmentId { shard, number: name.number, term: name.term };
        let folder = copy_folder(self.0.cluster, &id, name.copy);
        self.within(&folder, self.0.objects.remove(&folder)).await?;
        ColdCounters::one(&self.0.counters.copies_swept);
        Ok(())
    }

    /// Removes all copies of a stream.
    ///
    /// # Errors
    /// As [`ColdTier::streams`].
    pub async fn sweep_stream(&self, stream: StreamId) -> Result<(), ColdError> {
        let folder = stream_folder(self.0.cluster, stream);
        self.within(&folder, self.0.objects.remove(&folder)).await?;
        ColdCounters::one(&self.0.counters.copies_swept);
        Ok(())
    }

    /// As the store's `read`, if there is a copy.
    pub(crate) async fn read(
        &self,
        id: &SegmentId,
        position: Position,
        length: usize,
    ) -> Option<Result<Bytes, StoreError>> {
        let named = self.named(id)?;
        Some(self.read_copy(named, position, length).await)
    }

    /// As the store's `locate_offset`, if there is a copy.
    pub(crate) async fn locate_offset(
        &self,
        id: &SegmentId,
        offset: Offset,
    ) -> Option<Result<Position, StoreError>> {
        let named = self.named(id)?;
        Some(self.index(named).await.map(|index| index.position_of_offset(offset)))
    }

    /// As the store's `locate_transaction_id`, if there is a copy.
    pub(crate) async fn locate_transaction_id(
        &self,
        id: &SegmentId,
        wanted: TransactionId,
    ) -> Option<Result<Position, StoreError>> {
        let named = self.named(id)?;
        Some(self.index(named).await.map(|index| index.position_of_transaction_id(wanted)))
    }

    fn named(&self, id: &SegmentId) -> Option<NamedCopy> {
        self.0.named.read().get(id).copied()
    }

    async fn read_copy(
        &self,
        named: NamedCopy,
        position: Position,
        length: usize,
    ) -> Result<Bytes, StoreError> {
        if position > named.length {
            return Err(StoreError::BeyondDurable { position, durable: named.length });
        }
        if position == named.length || length == 0 {
            return Ok(Bytes::new());
        }
        let index = self.index(named).await?;
        let block = position.0 / BLOCK_BYTES as u64;
        self.read_ahead(named, &index, block);
        let bytes = self.block(named, &index, block).await?;
        let begin = (position.0 % BLOCK_BYTES as u64) as usize;
        let end = bytes.len().min(begin.saturating_add(length));
        self.0.counters.bytes_read.fetch_add((end - begin) as u64, Relaxed);
        Ok(bytes.slice(begin..end))
    }

    async fn index(&self, named: NamedCopy) -> Result<Arc<ColdIndex>, StoreError> {
        let cell = self.0.indexes.cell(named.copy);
        let read = || async {
            let name = index_name(&copy_folder(self.0.cluster, &named.id, named.copy));
            let bytes = self.get(&name, 0, INDEX_BYTES_MAX).await?;
            let index = ColdIndex::decode(named.copy, named.length, &bytes);
            index.map(Arc::new).map_err(|why| ColdError::Damaged { name, why })
        };
        let index = cell.get_or_try_init(read).await;
        index.cloned().map_err(|error| self.failed(named, Position(0), &error))
    }

    /// A whole block, checked.
    async fn block(&self, named: NamedCopy, index: &ColdIndex, block: u64) -> Result<Bytes, StoreError> {
        let begin = block * BLOCK_BYTES as u64;
        let cell = self.0.blocks.cell((named.copy, block));
        let read = || async {
            let folder = copy_folder(self.0.cluster, &named.id, named.copy);
            let part_bytes = u64::from(index.part_bytes);
            let name = part_name(&folder, begin / part_bytes);
            for _ in 0..2 {
                let bytes = self.get(&name, begin % part_bytes, index.block_len(block)).await?;
                if index.is_block(block, &bytes) {
                    return Ok(bytes);
                }
            }
            Err(ColdError::Damaged { name, why: format!("its block {block} has another checksum") })
        };
        let bytes = cell.get_or_try_init(read).await;
        bytes.cloned().map_err(|error| self.failed(named, Position(begin), &error))
    }

    /// Begins to read the block behind one that somebody who reads on has come to.
    fn read_ahead(&self, named: NamedCopy, index: &Arc<ColdIndex>, block: u64) {
        let shared = &self.0;
        let reads_on = block == 0 || shared.blocks.has(&(named.copy, block - 1));
        let next = (named.copy, block + 1);
        if !reads_on || index.block_len(next.1) == 0 || shared.blocks.has(&next) {
            return;
        }
        if shared.ahead.fetch_add(1, AcqRel) >= AHEAD_MAX {
            shared.ahead.fetch_sub(1, AcqRel);
            return;
        }
        // Its place is taken here, so that nobody begins it a second time.
        drop(shared.blocks.cell(next));
        let (tier, index) = (self.clone(), Arc::clone(index));
        let read = async move {
            // Whoever comes to it is told why it can't be had.
            let _ = tier.block(named, &index, next.1).await;
            tier.0.ahead.fetch_sub(1, AcqRel);
        };
        shared.env.spawn("cold-ahead", read).detach();
    }

    /// What is asked by nobody who waits.
    async fn within<T>(
        &self,
        folder: &str,
        asked: impl Future<Output = Result<T, ColdError>>,
    ) -> Result<T, ColdError> {
        let late = || ColdError::Unavailable(format!("{folder}: no answer in {COPY_TIMEOUT:?}"));
        self.0.env.timeout(COPY_TIMEOUT, asked).await.unwrap_or_else(|| Err(late()))
    }

    async fn get(&self, name: &str, from: u64, length: usize) -> Result<Bytes, ColdError> {
        let late = || ColdError::Unavailable(format!("{name}: no answer in {READ_TIMEOUT:?}"));
        let read = self.0.env.timeout(READ_TIMEOUT, self.0.objects.read(name, from, length));
        read.await.unwrap_or_else(|| Err(late()))
    }

    fn failed(&self, named: NamedCopy, position: Position, error: &ColdError) -> StoreError {
        ColdCounters::one(&self.0.counters.reads_failed);
        StoreError::Read { id: named.id, position, why: format!("cold storage: {error}") }
    }
}
