//! A node's store of segments on simulated bookies: as `ledgers` is on real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Env, Instant, Progress, Task};
use tailwater_format::{Offset, Position, SegmentId, ShardId, StreamId, Term, TransactionId, parse_entry};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_store::{
    DecidedCopies, EntryPlace, IndexContents, KeptWhy, OpenSegments, OpenedSegments, RawHeader,
    RecoveredSegment, SegmentCopies, SegmentJudge, SegmentVerdict, SegmentWatch, ShardTakeOver,
    StoreContract, StoreError, WriteRight, WriteRightFault,
};
use tokio::sync::Notify;

use crate::planted::Plant;

use super::bookies::{Bookies, SimLedgerState};
use super::links::{LinkPlace, NodeLink};

/// How long a segment waits for a ledger, or for bookies, before what was appended is given up.
const WRITE_PATIENCE: Duration = Duration::from_secs(3);
/// Pause before the right to write is asked for again.
const RETRY: Duration = Duration::from_millis(100);
/// Entries of a segment that are on their way to bookies at a time.
const IN_FLIGHT_MAX: usize = 8;
/// How often an entry is asked for before a read fails.
const READ_ATTEMPTS: usize = 10;

/// What becomes of a segment's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentEnd {
    Close,
    Delete,
    Discard,
}

#[derive(Default)]
struct SimSegmentState {
    entries: Vec<Bytes>,
    /// Where each ends.
    ends: Vec<u64>,
    places: Vec<EntryPlace>,
    /// Entries that an ack quorum has.
    acked: usize,
    sealed: Option<u64>,
    /// Nothing more is acknowledged.
    is_over: bool,
    end: Option<SegmentEnd>,
}

impl SimSegmentState {
    fn appended(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn durable(&self) -> u64 {
        self.acked.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    fn push(&mut self, entry: Bytes) {
        self.ends.push(self.appended() + entry.len() as u64);
        self.entries.push(entry);
    }
}

/// A segment that the node has.
struct SimSegment {
    id: SegmentId,
    /// Entries and bytes of one that was found: its entries are read as they are asked for.
    found: Option<(usize, u64)>,
    state: Mutex<SimSegmentState>,
    changed: Notify,
    task: Mutex<Option<Task>>,
}

impl SimSegment {
    fn new(id: SegmentId, found: Option<(usize, u64)>) -> Arc<Self> {
        let (state, changed, task) = (Mutex::default(), Notify::new(), Mutex::default());
        Arc::new(Self { id, found, state, changed, task })
    }

    fn change(&self, change: impl FnOnce(&mut SimSegmentState)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    /// Waits until there is something.
    async fn wait<T>(&self, there: impl Fn(&SimSegmentState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(there) = there(&self.state.lock()) {
                return there;
            }
            changed.await;
        }
    }
}

/// What the store and its tasks share.
struct SimStoreShared {
    env: Env,
    link: NodeLink,
    bookies: Arc<Bookies>,
    right: Arc<dyn WriteRight>,
    plant: Plant,
}

/// A store to be opened.
pub(super) struct SimLedgers {
    pub(super) link: NodeLink,
    pub(super) bookies: Arc<Bookies>,
    pub(super) plant: Plant,
}

impl std::fmt::Debug for SimLedgers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimLedgers of node {}", self.link.node)
    }
}

struct SimLedgerStore {
    shared: Arc<SimStoreShared>,
    segments: Mutex<BTreeMap<SegmentId, Arc<SimSegment>>>,
    newest: Mutex<BTreeMap<ShardId, Arc<SimSegment>>>,
    places: AtomicU64,
}

impl SimStoreShared {
    /// The task of a segment that is written.
    async fn write(
        self: Arc<Self>,
        held: Arc<SimSegment>,
        before: Option<Arc<SimSegment>>,
        watch: Arc<dyn SegmentWatch>,
    ) {
        let mut is_made = false;
        if let Err(why) = self.pump(&held, before, &*watch, &mut is_made).await {
            let mut was_over = false;
            held.change(|state| was_over = std::mem::replace(&mut state.is_over, true));
            if let Some(why) = why.filter(|_| !was_over) {
                watch.lost(&why);
            }
        }
        let end = held.wait(|state| state.end).await;
        if !is_made {
            return;
        }
        let id = &held.id;
        match end {
            SegmentEnd::Delete => self.link.ask_until(LinkPlace::Metadata, || self.bookies.delete(id)).await,
            SegmentEnd::Discard => self.bookies.discard(&self.link, id, self.plant).await,
            SegmentEnd::Close => {
                let (is_whole, entries, length) = {
                    let state = held.state.lock();
                    (!state.is_over && state.acked == state.entries.len(), state.acked, state.durable())
                };
                if is_whole {
                    let close = || self.bookies.close_open(id, entries, length);
                    let closed = self.link.ask_until(LinkPlace::Metadata, close).await;
                    if !matches!(closed, Some(SimLedgerState::Recovering)) {
                        return;
                    }
                }
                self.bookies.recover(&self.link, id, self.plant).await;
            }
        }
    }

    /// Has entries acknowledged until the segment is ended.
    ///
    /// # Errors
    /// Why what is not acknowledged is given up, if anybody wants to know.
    async fn pump(
        &self,
        held: &SimSegment,
        before: Option<Arc<SimSegment>>,
        watch: &dyn SegmentWatch,
        is_made: &mut bool,
    ) -> Result<(), Option<String>> {
        if let Some(before) = before {
            let is_over = before.wait(|state| {
                let is_settled = state.acked == state.entries.len();
                (state.is_over || is_settled).then_some(state.is_over)
            });
            if is_over.await {
                return Err(None);
            }
        }
        let id = &held.id;
        let begun = self.env.now();
        while self.link.ask(LinkPlace::Metadata, || self.bookies.create(*id)).await.is_none() {
            // It may be there all the same.
            *is_made = true;
            self.check_patience(id, begun)?;
        }
        *is_made = true;
        self.confirm(id, begun).await?;
        loop {
            let batch = held.wait(|state| {
                let waiting: Vec<_> = (state.acked..state.entries.len())
                    .take(IN_FLIGHT_MAX)
                    .map(|entry| (entry, state.entries[entry].clone()))
                    .collect();
                let is_over = state.end.is_some() || state.is_over;
                (is_over || !waiting.is_empty()).then_some(if is_over { Vec::new() } else { waiting })
            });
            let batch = batch.await;
            if batch.is_empty() {
                return Ok(());
            }
            let adds = batch
                .iter()
                .map(|(entry, bytes)| self.bookies.add_to_quorum(&self.link, id, *entry, bytes, false));
            let added = self.env.timeout(WRITE_PATIENCE, join_all(adds)).await;
            let Some(added) = added else { return Err(Some(format!("{id}: bookies do not answer"))) };
            let good = added.iter().take_while(|added| added.is_ok()).count();
            let mut upto = None;
            held.change(|state| {
                state.acked += good;
                upto = state.acked.checked_sub(1).map(|last| state.places[last]);
            });
            if let Some(upto) = upto.filter(|_| good > 0) {
                watch.durable(upto);
            }
            if good < added.len() {
                return Err(Some(format!("{id}: it is fenced")));
            }
        }
    }

    /// That the node may write the segment, whose ledger is there.
    async fn confirm(&self, id: &SegmentId, begun: Instant) -> Result<(), Option<String>> {
        if self.plant == Plant::RightNotConfirmed {
            return Ok(());
        }
        loop {
            match self.right.confirm(Some(id)).await {
                Ok(()) => return Ok(()),
                Err(WriteRightFault::Lost(why)) => return Err(Some(why)),
                Err(WriteRightFault::Unknown(_)) => self.check_patience(id, begun)?,
            }
            self.env.sleep(RETRY).await;
        }
    }

    fn check_patience(&self, id: &SegmentId, begun: Instant) -> Result<(), Option<String>> {
        match self.env.now().since(begun) < WRITE_PATIENCE {
            true => Ok(()),
            false => Err(Some(format!("{id}: there is no ledger for it"))),
        }
    }
}

impl SimLedgerStore {
    fn get(&self, id: &SegmentId) -> Result<Arc<SimSegment>, StoreError> {
        self.segments.lock().get(id).cloned().ok_or(StoreError::Unknown(*id))
    }

    fn hold(&self, held: Arc<SimSegment>) {
        let id = held.id;
        let mut newest = self.newest.lock();
        let is_newest = newest
            .get(&id.shard)
            .is_none_or(|newest| (newest.id.term, newest.id.number) < (id.term, id.number));
        if is_newest {
            newest.insert(id.shard, Arc::clone(&held));
        }
        self.segments.lock().insert(id, held);
    }

    fn give_up(&self, id: &SegmentId, end: SegmentEnd) -> Result<(), StoreError> {
        let held = self.segments.lock().remove(id).ok_or(StoreError::Unknown(*id))?;
        // It is ended where it is: the shard's next segment does not wait for it.
        held.change(|state| {
            (state.is_over, state.end) = (true, Some(end));
            state.sealed = state.sealed.or(Some(state.durable()));
        });
        match held.task.lock().take() {
            Some(task) => task.detach(),
            None => {
                let (shared, id) = (Arc::clone(&self.shared), *id);
                let deletion = async move {
                    let SimStoreShared { link, bookies, plant, .. } = &*shared;
                    match end {
                        SegmentEnd::Discard => bookies.discard(link, &id, *plant).await,
                        _ => link.ask_until(LinkPlace::Metadata, || bookies.delete(&id)).await,
                    }
                };
                self.shared.env.spawn("sim-deletion", deletion).detach();
            }
        }
        Ok(())
    }

    /// The segment of a ledger, which is closed; `None` if it is gone.
    async fn take_one(&self, id: SegmentId, is_recorded: bool) -> Option<RecoveredSegment> {
        let SimStoreShared { link, bookies, plant, .. } = &*self.shared;
        let (entries, length) = bookies.recover(link, &id, *plant).await?;
        let held = SimSegment::new(id, Some((entries, length)));
        self.hold(held);
        let mut contents = None;
        if !is_recorded && entries > 0 {
            let (first, last) = (self.entry(&id, 0).await, self.entry(&id, entries - 1).await);
            let header = parse_entry(&first).expect("an entry").header;
            let first = IndexContents::first(&header, RawHeader::of(&first).expect("a header"));
            contents = Some(IndexContents { last: RawHeader::of(&last).expect("a header"), ..first });
        }
        let (length, damaged) = (Position(length), None);
        Some(RecoveredSegment { id, length, contents, sealed: true, damaged })
    }

    /// An entry of a closed ledger, however long that takes.
    async fn entry(&self, id: &SegmentId, entry: usize) -> Bytes {
        loop {
            if let Some(bytes) = self.shared.bookies.read_one(&self.shared.link, id, entry).await {
                return bytes;
            }
        }
    }

    async fn read_bytes(&self, id: &SegmentId, at: Position, length: usize) -> Result<Bytes, StoreError> {
        let held = self.get(id)?;
        let durable = held.found.map_or_else(|| held.state.lock().durable(), |(_, length)| length);
        if at.0 > durable {
            return Err(StoreError::BeyondDurable { position: at, durable: Position(durable) });
        }
        while let Some(entry) = next_entry(&held, at) {
            let mut read = None;
            for _ in 0..READ_ATTEMPTS {
                read = self.shared.bookies.read_one(&self.shared.link, id, entry).await;
                if read.is_some() {
                    break;
                }
            }
            let bytes = read.ok_or_else(|| StoreError::Replicas(format!("{id}: nobody answers")))?;
            held.change(|state| {
                // Another read may have brought it.
                if state.entries.len() == entry {
                    state.push(bytes);
                }
            });
        }
        let state = held.state.lock();
        let mut bytes = BytesMut::new();
        for (entry, end) in state.entries.iter().zip(&state.ends) {
            let begin = end - entry.len() as u64;
            let from = at.0.max(begin);
            let to = (*end).min(durable).min(at.0 + length as u64);
            if from < to {
                bytes.extend_from_slice(&entry[(from - begin) as usize..(to - begin) as usize]);
            }
        }
        Ok(bytes.freeze())
    }
}

/// The entry that has to be read before there is something at `at` of a segment that was found.
fn next_entry(held: &SimSegment, at: Position) -> Option<usize> {
    let (entries, length) = held.found?;
    let state = held.state.lock();
    let is_there = state.appended() > at.0 || at.0 >= length || state.entries.len() == entries;
    (!is_there).then_some(state.entries.len())
}

impl StoreContract for SimLedgerStore {
    fn journal(&self) -> Option<&Journal> {
        None
    }

    fn decided(&self, _: SegmentCopies) -> DecidedCopies {
        DecidedCopies::ONE
    }

    fn check_copies(&self, _: SegmentCopies) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn create(
        &self,
        id: SegmentId,
        _: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError> {
        let before = self.newest.lock().get(&id.shard).cloned();
        if let Some(before) = &before {
            let (term, highest) = (id.term, before.id.term);
            if term < highest {
                return Err(StoreError::Fenced { term, highest });
            }
            if term == highest && id.number <= before.id.number {
                return Err(StoreError::NotNext { number: id.number, term, highest: before.id.number });
            }
        }
        let before = before.filter(|before| before.found.is_none() && before.state.lock().sealed.is_none());
        let held = SimSegment::new(id, None);
        self.hold(Arc::clone(&held));
        let writing = Arc::clone(&self.shared).write(Arc::clone(&held), before, watch);
        *held.task.lock() = Some(self.shared.env.spawn("sim-ledger", writing));
        Ok(())
    }

    fn append(&self, id: &SegmentId, at: Position, entry: Bytes, _: bool) -> Result<EntryPlace, StoreError> {
        let held = self.get(id)?;
        let place = EntryPlace(self.places.fetch_add(1, Ordering::Relaxed) + 1);
        if let Some((_, length)) = held.found {
            return Err(StoreError::Recovered { length: Position(length) });
        }
        {
            let state = held.state.lock();
            if let Some(length) = state.sealed {
                return Err(StoreError::Sealed { length: Position(length) });
            }
            if state.is_over {
                return Err(StoreError::Lost { durable: Position(state.durable()) });
            }
            assert_eq!(at.0, state.appended(), "{id}: it continues");
        }
        held.change(|state| {
            state.push(entry);
            state.places.push(place);
        });
        Ok(place)
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        let held = self.get(id)?;
        held.change(|state| {
            state.sealed = Some(length.0);
            state.end.get_or_insert(SegmentEnd::Close);
        });
        Ok(None)
    }

    fn lower_fence(&self, _: &ShardId, _: Term) {}

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.give_up(id, SegmentEnd::Delete)
    }

    fn discard(&self, id: &SegmentId) -> Result<(), StoreError> {
        self.give_up(id, SegmentEnd::Discard)
    }

    fn read<'a>(
        &'a self,
        id: &'a SegmentId,
        at: Position,
        length: usize,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.read_bytes(id, at, length))
    }

    fn locate_offset<'a>(
        &'a self,
        _: &'a SegmentId,
        _: Offset,
    ) -> BoxFuture<'a, Result<Position, StoreError>> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn locate_transaction_id<'a>(
        &'a self,
        _: &'a SegmentId,
        _: TransactionId,
    ) -> BoxFuture<'a, Result<Position, StoreError>> {
        Box::pin(async { Ok(Position(0)) })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn take_over<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        Box::pin(async move {
            let SimStoreShared { link, bookies, .. } = &*self.shared;
            let listed =
                link.ask_until(LinkPlace::Metadata, || bookies.list(|shard| shards.contains(shard))).await;
            let of_one = |shard: &ShardId| {
                let shard = *shard;
                let ledgers: Vec<_> = listed.iter().filter(|id| id.shard == shard).copied().collect();
                let taking: ShardTakeOver<'a> = Box::pin(async move {
                    self.forget(&shard);
                    let takes = ledgers.into_iter().map(|id| self.take_one(id, recorded(&id)));
                    join_all(takes).await.into_iter().flatten().collect()
                });
                (shard, taking)
            };
            Ok(shards.iter().map(of_one).collect())
        })
    }

    fn forget(&self, shard: &ShardId) {
        self.newest.lock().remove(shard);
        let gone: Vec<_> = self.segments.lock().extract_if(.., |id, _| id.shard == *shard).collect();
        for (_, held) in gone {
            let is_ended = held.state.lock().sealed.is_some();
            match held.task.lock().take() {
                Some(task) if is_ended => task.detach(),
                task => drop(task),
            }
        }
    }

    fn sweep<'a>(&'a self, judge: &'a dyn SegmentJudge) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let SimStoreShared { link, bookies, plant, .. } = &*self.shared;
            let seen = link.ask_until(LinkPlace::Metadata, || bookies.states()).await;
            let ids: Vec<SegmentId> = seen.iter().map(|(id, _)| *id).collect();
            for ((id, state), verdict) in seen.iter().zip(judge.judge(&ids).await) {
                let is_left_over = match verdict {
                    SegmentVerdict::LeftOver(_) => true,
                    SegmentVerdict::Kept(KeptWhy::Undecided { .. }) => *plant == Plant::EndedTermSweptAway,
                    SegmentVerdict::Kept(_) => false,
                };
                if is_left_over {
                    link.ask_until(LinkPlace::Metadata, || bookies.sweep_away(id, *state)).await;
                }
            }
            Ok(())
        })
    }

    fn delete_stream(&self, stream: StreamId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.shared.bookies.delete_all(&self.shared.link, |shard| shard.stream == stream).await;
            Ok(())
        })
    }
}

impl OpenSegments for SimLedgers {
    fn open<'a>(
        &'a self,
        _: &'a Env,
        _: Arc<dyn WriteRight>,
        _: uuid::Uuid,
        _: &'a (dyn Fn(&SegmentId) -> bool + Sync),
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<OpenedSegments, String>> {
        Box::pin(std::future::ready(Err("several nodes share it".to_owned())))
    }

    fn open_shared<'a>(
        &'a self,
        env: &'a Env,
        right: Arc<dyn WriteRight>,
        _: uuid::Uuid,
        _: &'a Progress,
    ) -> BoxFuture<'a, Result<Arc<dyn StoreContract>, String>> {
        let (env, link, bookies) = (env.clone(), self.link.clone(), Arc::clone(&self.bookies));
        let shared = Arc::new(SimStoreShared { env, link, bookies, right, plant: self.plant });
        let (segments, newest, places) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let store = SimLedgerStore { shared, segments, newest, places };
        Box::pin(std::future::ready(Ok(Arc::new(store) as Arc<dyn StoreContract>)))
    }
}
