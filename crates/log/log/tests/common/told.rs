//! A store in memory that has a watermark for each segment, and no journal for its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Env, Progress};
use tailwater_format::{Offset, Position, SegmentId, ShardId, StreamId, Term, TransactionId, parse_entry};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_store::{
    DecidedCopies, EntryPlace, FromStore, IndexContents, OpenSegments, OpenedSegments, RawHeader,
    RecoveredSegment, SegmentCopies, SegmentWatch, ShardTakeOver, StoreContract, StoreError, WriteRight,
    WriteRightFault,
};
use uuid::Uuid;

/// A segment.
pub struct Stored {
    pub bytes: Vec<u8>,
    pub durable: usize,
    pub last_place: EntryPlace,
    pub sealed: bool,
    pub watch: Option<Arc<dyn SegmentWatch>>,
    /// Its writer is shut out.
    pub is_fenced: bool,
    /// Nothing of it gets durable before it is confirmed that its writer may write it.
    pub is_unconfirmed: bool,
}

/// What is in a store.
#[derive(Default)]
pub struct Content {
    pub segments: BTreeMap<SegmentId, Stored>,
    pub places: u64,
    /// Shards of which nothing gets durable.
    pub held: BTreeSet<ShardId>,
    /// Shards whose bookies do not answer whoever takes them over.
    pub unreachable: BTreeSet<ShardId>,
    /// How often segments were looked for.
    pub lists: u64,
    /// How often those that were found before were looked at again.
    pub looks_again: u64,
    /// The look for segments that does not end.
    pub slow_list: Option<u64>,
    /// Shards of which bytes can't be read.
    pub damaged: BTreeSet<ShardId>,
    pub clusters: BTreeSet<Uuid>,
}

/// A store in memory, which outlives the logs on it. An entry is durable at once unless its shard is held.
#[derive(Clone, Default)]
pub struct ToldStore(pub Arc<Mutex<Content>>, Option<(Env, Arc<dyn WriteRight>)>);

impl std::fmt::Debug for ToldStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToldStore")
    }
}

impl ToldStore {
    pub fn hold(&self, shard: ShardId) {
        self.0.lock().held.insert(shard);
    }

    /// What was held of a shard is durable now.
    pub fn release(&self, shard: ShardId) {
        let content = &mut *self.0.lock();
        content.held.remove(&shard);
        for (_, stored) in content.segments.iter_mut().filter(|(id, _)| id.shard == shard) {
            stored.durable = stored.bytes.len();
            stored.watch.iter().for_each(|watch| watch.durable(stored.last_place));
        }
    }

    /// What was held of a shard is given up.
    pub fn give_up(&self, shard: ShardId) {
        let content = &mut *self.0.lock();
        content.held.remove(&shard);
        let newest = content.segments.iter().rfind(|(id, _)| id.shard == shard).expect("one is written");
        newest.1.watch.as_ref().expect("it is new").lost("the test says so");
    }

    /// It is known whether a segment's writer may write it.
    fn confirmed(&self, id: &SegmentId, confirmed: Result<(), WriteRightFault>) {
        let content = &mut *self.0.lock();
        let is_held = content.held.contains(&id.shard);
        let Some(stored) = content.segments.get_mut(id) else { return };
        stored.is_unconfirmed = false;
        let Some(watch) = &stored.watch else { return };
        match confirmed {
            // As if it were on a bookie, and no quorum had it.
            Ok(()) if !stored.is_fenced && is_held => {}
            Ok(()) if !stored.is_fenced => {
                stored.durable = stored.bytes.len();
                watch.durable(stored.last_place);
            }
            _ => {
                stored.bytes.clear();
                watch.lost("its writer may not write it");
            }
        }
    }

    async fn listed(&self, shards: &BTreeSet<ShardId>) -> Vec<SegmentId> {
        let list = {
            let content = &mut *self.0.lock();
            content.lists += 1;
            content.lists
        };
        while self.0.lock().slow_list == Some(list) {
            self.pause().await;
        }
        let content = &*self.0.lock();
        content.segments.keys().filter(|id| shards.contains(&id.shard)).copied().collect()
    }

    /// Completes when what a shard's last owner left open can be closed.
    async fn until_reachable(&self, shard: &ShardId) {
        while self.0.lock().unreachable.contains(shard) {
            self.pause().await;
        }
    }

    /// How each of these shards is taken over, of which these segments were found.
    fn taking<'a>(
        &'a self,
        shards: &BTreeSet<ShardId>,
        listed: &[SegmentId],
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BTreeMap<ShardId, ShardTakeOver<'a>> {
        let of_one = move |shard: ShardId, listed: &[SegmentId]| {
            let listed: Vec<SegmentId> = listed.iter().filter(|id| id.shard == shard).copied().collect();
            let taking: ShardTakeOver<'a> = Box::pin(async move {
                self.until_reachable(&shard).await;
                let content = &mut *self.0.lock();
                // One that was deleted meanwhile is not there.
                let mut found_now = Vec::new();
                for id in listed {
                    found_now
                        .extend(content.segments.get_mut(&id).map(|stored| found(&id, stored, recorded)));
                }
                if content.damaged.contains(&shard) {
                    found_now
                        .iter_mut()
                        .for_each(|found| found.damaged = Some("it can't be read".to_owned()));
                }
                found_now
            });
            (shard, taking)
        };
        shards.iter().map(|shard| of_one(*shard, listed)).collect()
    }

    async fn pause(&self) {
        let (env, _) = self.1.as_ref().expect("a store that is shared");
        env.sleep(std::time::Duration::from_millis(5)).await;
    }

    fn read_now(&self, id: &SegmentId, at: Position, length: usize) -> Result<Bytes, StoreError> {
        let content = self.0.lock();
        let stored = content.segments.get(id).ok_or(StoreError::Unknown(*id))?;
        let (from, durable) = (at.0 as usize, stored.durable);
        if from > durable {
            return Err(StoreError::BeyondDurable { position: at, durable: Position(durable as u64) });
        }
        Ok(Bytes::copy_from_slice(&stored.bytes[from..durable.min(from + length)]))
    }
}

impl StoreContract for ToldStore {
    fn journal(&self) -> Option<&Journal> {
        None
    }

    fn decided(&self, _: SegmentCopies) -> DecidedCopies {
        DecidedCopies::ONE
    }

    fn check_copies(&self, _: SegmentCopies) -> FromStore<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn create(
        &self,
        id: SegmentId,
        _: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError> {
        let (bytes, last_place) = (Vec::new(), EntryPlace(0));
        let stored = Stored {
            bytes,
            durable: 0,
            last_place,
            sealed: false,
            watch: Some(watch),
            is_fenced: false,
            is_unconfirmed: self.1.is_some(),
        };
        assert!(self.0.lock().segments.insert(id, stored).is_none(), "{id}: a name is used once");
        Ok(())
    }

    fn append(&self, id: &SegmentId, at: Position, entry: Bytes, _: bool) -> Result<EntryPlace, StoreError> {
        let content = &mut *self.0.lock();
        let is_held = content.held.contains(&id.shard);
        content.places += 1;
        let place = EntryPlace(content.places);
        let stored = content.segments.get_mut(id).ok_or(StoreError::Unknown(*id))?;
        assert_eq!(at.0, stored.bytes.len() as u64, "{id}: it continues");
        stored.bytes.extend_from_slice(&entry);
        stored.last_place = place;
        if stored.is_fenced {
            stored.bytes.truncate(at.0 as usize);
            stored.watch.as_ref().expect("it was new").lost("another one has fenced it");
        } else if stored.is_unconfirmed {
            if let Some((env, right)) = self.1.as_ref().filter(|_| at == Position(0)) {
                let (told, id, right) = (self.clone(), *id, Arc::clone(right));
                let confirm = async move {
                    let confirmed = right.confirm(Some(&id)).await;
                    told.confirmed(&id, confirmed);
                };
                env.spawn("told-confirm", confirm).detach();
            }
        } else if !is_held {
            stored.durable = stored.bytes.len();
            stored.watch.as_ref().expect("it is new").durable(place);
        }
        Ok(place)
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        let content = &mut *self.0.lock();
        let stored = content.segments.get_mut(id).ok_or(StoreError::Unknown(*id))?;
        stored.sealed = true;
        stored.durable = length.0 as usize;
        Ok(None)
    }

    fn lower_fence(&self, _: &ShardId, _: Term) {}

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.0.lock().segments.remove(id).map(drop).ok_or(StoreError::Unknown(*id))
    }

    fn read<'a>(&'a self, id: &'a SegmentId, at: Position, length: usize) -> FromStore<'a, Bytes> {
        Box::pin(async move { self.read_now(id, at, length) })
    }

    fn locate_offset<'a>(&'a self, _: &'a SegmentId, _: Offset) -> FromStore<'a, Position> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn locate_transaction_id<'a>(&'a self, _: &'a SegmentId, _: TransactionId) -> FromStore<'a, Position> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn flush(&self) -> FromStore<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn delete_stream(&self, stream: StreamId) -> BoxFuture<'_, Result<(), String>> {
        self.0.lock().segments.retain(|id, _| id.shard.stream != stream);
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, id: &SegmentId) -> Result<(), StoreError> {
        let content = &mut *self.0.lock();
        let stored = content.segments.get(id).ok_or(StoreError::Unknown(*id))?;
        if stored.bytes.is_empty() {
            content.segments.remove(id);
        }
        Ok(())
    }

    fn take_over<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        Box::pin(async move {
            let listed = self.listed(shards).await;
            Ok(self.taking(shards, &listed, recorded))
        })
    }

    fn take_over_again<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        let listed: Vec<SegmentId> = {
            let content = &mut *self.0.lock();
            content.looks_again += 1;
            content.segments.keys().filter(|id| shards.contains(&id.shard)).copied().collect()
        };
        Box::pin(std::future::ready(Ok(self.taking(shards, &listed, recorded))))
    }
}

/// A segment whose writer is shut out. As with ledgers: what was not acknowledged may be there.
fn found(
    id: &SegmentId,
    stored: &mut Stored,
    recorded: &(dyn Fn(&SegmentId) -> bool + Sync),
) -> RecoveredSegment {
    stored.is_fenced = true;
    stored.durable = stored.bytes.len();
    let (length, damaged) = (Position(stored.durable as u64), None);
    let contents = if recorded(id) { None } else { contents_of(&stored.bytes) };
    RecoveredSegment { id: *id, length, contents, sealed: true, damaged }
}

fn contents_of(bytes: &[u8]) -> Option<IndexContents> {
    let (mut contents, mut at) = (None, 0);
    while at < bytes.len() {
        let header = parse_entry(&bytes[at..]).expect("an entry").header;
        let raw = RawHeader::of(&bytes[at..]).expect("a header");
        let first = contents.unwrap_or_else(|| IndexContents::first(&header, raw));
        contents = Some(IndexContents { last: raw, ..first });
        at += header.len as usize;
    }
    contents
}

impl OpenSegments for ToldStore {
    fn open<'a>(
        &'a self,
        _: &'a Env,
        _: Arc<dyn WriteRight>,
        cluster: Uuid,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<OpenedSegments, String>> {
        Box::pin(async move {
            let content = &mut *self.0.lock();
            content.clusters.insert(cluster);
            let mut all = Vec::new();
            for (id, stored) in &mut content.segments {
                stored.watch = None;
                all.push(found(id, stored, recorded));
            }
            Ok((Arc::new(self.clone()) as Arc<dyn StoreContract>, all))
        })
    }

    fn open_shared<'a>(
        &'a self,
        env: &'a Env,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Arc<dyn StoreContract>, String>> {
        self.0.lock().clusters.insert(cluster);
        let shared = Self(Arc::clone(&self.0), Some((env.clone(), right)));
        Box::pin(std::future::ready(Ok(Arc::new(shared) as Arc<dyn StoreContract>)))
    }
}
