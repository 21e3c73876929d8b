//! A store of segments with cold storage behind it: what the store has not, and a copy has, is read from the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tailwater_env::BoxFuture;
use tailwater_format::{Offset, Position, SegmentId, ShardId, StreamId, Term, TransactionId};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_store::{
    DecidedCopies, EntryPlace, FromStore, ReplicatedStats, SegmentCopies, SegmentJudge, SegmentWatch,
    ShardTakeOver, StoreContract, StoreError,
};

use crate::tier::ColdTier;

/// See the module.
pub struct ColdStore {
    store: Arc<dyn StoreContract>,
    tier: ColdTier,
}

impl ColdStore {
    /// `store` with `tier` behind it.
    pub fn new(store: Arc<dyn StoreContract>, tier: ColdTier) -> Self {
        Self { store, tier }
    }
}

/// What the store answered; what the copy has, where the store has no such segment or can't read it.
async fn or_of_copy<T>(
    answer: Result<T, StoreError>,
    copy: impl Future<Output = Option<Result<T, StoreError>>>,
) -> Result<T, StoreError> {
    match answer {
        Err(StoreError::Unknown(_) | StoreError::Read { .. }) => copy.await.unwrap_or(answer),
        answer => answer,
    }
}

impl StoreContract for ColdStore {
    fn journal(&self) -> Option<&Journal> {
        self.store.journal()
    }

    fn decided(&self, wanted: SegmentCopies) -> DecidedCopies {
        self.store.decided(wanted)
    }

    fn places(&self) -> Option<u32> {
        self.store.places()
    }

    fn living_copies(&self, shard: &ShardId) -> Option<u32> {
        self.store.living_copies(shard)
    }

    fn check_copies(&self, wanted: SegmentCopies) -> FromStore<'_, ()> {
        self.store.check_copies(wanted)
    }

    fn create(
        &self,
        id: SegmentId,
        copies: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError> {
        self.store.create(id, copies, watch)
    }

    fn append(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        sync: bool,
    ) -> Result<EntryPlace, StoreError> {
        self.store.append(id, position, entry, sync)
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        self.store.seal(id, length)
    }

    fn take_over<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        self.store.take_over(shards, recorded)
    }

    fn take_over_again<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        self.store.take_over_again(shards, recorded)
    }

    fn forget(&self, shard: &ShardId) {
        self.store.forget(shard);
    }

    fn delete_stream(&self, stream: StreamId) -> BoxFuture<'_, Result<(), String>> {
        self.store.delete_stream(stream)
    }

    fn sweep<'a>(&'a self, judge: &'a dyn SegmentJudge) -> BoxFuture<'a, Result<(), String>> {
        self.store.sweep(judge)
    }

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.store.delete(id)
    }

    fn discard(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.store.discard(id)
    }

    fn read<'a>(&'a self, id: &'a SegmentId, position: Position, length: usize) -> FromStore<'a, Bytes> {
        Box::pin(async move {
            or_of_copy(self.store.read(id, position, length).await, self.tier.read(id, position, length))
                .await
        })
    }

    fn locate_offset<'a>(&'a self, id: &'a SegmentId, offset: Offset) -> FromStore<'a, Position> {
        Box::pin(async move {
            or_of_copy(self.store.locate_offset(id, offset).await, self.tier.locate_offset(id, offset)).await
        })
    }

    fn locate_transaction_id<'a>(
        &'a self,
        id: &'a SegmentId,
        transaction_id: TransactionId,
    ) -> FromStore<'a, Position> {
        Box::pin(async move {
            or_of_copy(
                self.store.locate_transaction_id(id, transaction_id).await,
                self.tier.locate_transaction_id(id, transaction_id),
            )
            .await
        })
    }

    fn flush(&self) -> FromStore<'_, ()> {
        self.store.flush()
    }

    fn lower_fence(&self, shard: &ShardId, term: Term) {
        self.store.lower_fence(shard, term);
    }

    fn health(&self) -> Result<(), StoreError> {
        self.store.health()
    }

    fn replicated_stats(&self) -> Option<ReplicatedStats> {
        self.store.replicated_stats()
    }
}
