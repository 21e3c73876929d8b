//! The handle: create, append, seal, delete, read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_bookkeeper::limits::ENTRY_BYTES_MAX;
use tailwater_bookkeeper::{BookKeeper, BookieId, LedgerFault, LedgerId, LedgerStatus, Quorums};
use tailwater_env::{BoxFuture, Env, HashMap, Instant, Task};
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, StreamId, Term, TransactionId};
use tailwater_journal::{Journal, JournalPosition};
use tailwater_store::{
    DecidedCopies, EntryPlace, FromStore, ReplicatedStats, SegmentCopies, SegmentJudge, SegmentWatch,
    ShardTakeOver, StoreContract, StoreError, WriteRight,
};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

use crate::cache::EntryCache;
use crate::held::{Command, EntryRoom, HeldSegment, LedgerAppend, UnfinishedCount, UnfinishedLedger};
use crate::limits::{BOOKIES_LOOK, LEDGERS_AT_A_TIME, POINT_STEP_BYTES, RETRY, TROUBLE_TOLD};
use crate::names::PASSWORD;
use crate::opening::UnreadLedgers;
use crate::points::LedgerPoint;
use crate::writing::SegmentWriting;

/// What is counted: each stands for itself, so all accesses are relaxed.
#[derive(Default)]
pub(crate) struct LedgerCounters {
    pub(crate) entries: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) entries_read: AtomicU64,
    pub(crate) begun_short: AtomicU64,
    pub(crate) swept: AtomicU64,
    pub(crate) swept_away: AtomicU64,
}

/// What the handle and its tasks share.
pub(crate) struct LedgersShared {
    pub(crate) env: Env,
    pub(crate) client: BookKeeper,
    pub(crate) right: Arc<dyn WriteRight>,
    pub(crate) cluster: Uuid,
    pub(crate) quorums: Quorums,
    pub(crate) cache: EntryCache,
    pub(crate) unread: UnreadLedgers,
    /// Bookies that take entries, when it was looked the last time; `None` before that.
    bookies: Mutex<Option<Arc<BTreeSet<BookieId>>>>,
    /// Nobody has the store any more.
    is_dropped: AtomicBool,
    /// Segments that were sealed or deleted, whose ledgers are not closed or deleted yet.
    unfinished: Arc<UnfinishedCount>,
    /// Held by deletions that are under way.
    deleting: Semaphore,
    pub(crate) counters: LedgerCounters,
    /// Why entries were not taken the last time, and when that was.
    trouble: Mutex<Option<(Instant, String)>>,
}

impl LedgersShared {
    pub(crate) fn new(
        env: Env,
        client: BookKeeper,
        right: Arc<dyn WriteRight>,
        cluster: Uuid,
        quorums: Quorums,
    ) -> Self {
        Self {
            env,
            client,
            right,
            cluster,
            quorums,
            cache: EntryCache::default(),
            unread: UnreadLedgers::default(),
            bookies: Mutex::new(None),
            is_dropped: AtomicBool::new(false),
            unfinished: Arc::default(),
            deleting: Semaphore::new(LEDGERS_AT_A_TIME),
            counters: LedgerCounters::default(),
            trouble: Mutex::new(None),
        }
    }

    /// Entries are not taken, or are given up.
    pub(crate) fn note_trouble(&self, why: &str) {
        tracing::warn!("{why}");
        *self.trouble.lock() = Some((self.env.now(), why.to_owned()));
    }

    /// Entries are taken.
    pub(crate) fn note_health(&self) {
        *self.trouble.lock() = None;
    }

    /// Deletes a ledger of which nothing was acknowledged here, if there is nothing in it. An entry that no quorum
    /// answered may be on a bookie all the same, and whoever took over may have recovered and recorded it: that ledger
    /// stays, and the next who opens the shard decides. Whether there is something in it is known only of a closed one.
    pub(crate) async fn discard_ledger(&self, ledger: LedgerId) {
        while !self.is_dropped.load(Ordering::Relaxed) {
            match self.client.recover(ledger, PASSWORD).await.map(|metadata| metadata.state) {
                Ok(LedgerStatus::Closed { last, .. }) if last.get() < 0 => {
                    return self.delete_ledger(ledger).await;
                }
                Ok(_) => return tracing::info!(%ledger, "there is something in it: it stays"),
                Err(LedgerFault::NoLedger) => return,
                Err(fault) => tracing::warn!(%ledger, %fault, "it is not known yet whether it is empty"),
            }
            self.env.sleep(RETRY).await;
        }
    }

    /// See [`Self::bookies`].
    fn living(&self) -> Option<Arc<BTreeSet<BookieId>>> {
        self.bookies.lock().clone()
    }

    /// Looks again and again which bookies take entries, for as long as the store is there.
    async fn look_for_bookies(self: Arc<Self>) {
        let mut before = String::new();
        while !self.is_dropped.load(Ordering::Relaxed) {
            if let Ok(bookies) = self.client.ledgers().bookies().await {
                let unknown: Vec<&str> = self.client.places().unknown(&bookies).map(BookieId::name).collect();
                let told = unknown.join(", ");
                // Once for each set of them.
                if !told.is_empty() && told != before {
                    tracing::warn!("[ledgers.places] does not say where these bookies are: {told}");
                }
                before = told;
                *self.bookies.lock() = Some(Arc::new(bookies.into_iter().collect()));
            }
            self.env.sleep(BOOKIES_LOOK).await;
        }
    }

    /// Deletes a ledger, however long that takes.
    pub(crate) async fn delete_ledger(&self, ledger: LedgerId) {
        let Ok(_turn) = self.deleting.acquire().await else { return };
        while !self.is_dropped.load(Ordering::Relaxed) {
            match self.client.delete(ledger).await {
                Ok(()) | Err(LedgerFault::NoLedger) => return,
                Err(fault) => tracing::warn!(%ledger, %fault, "it is not deleted yet"),
            }
            self.env.sleep(RETRY).await;
        }
    }
}

/// The copies as BookKeeper has them.
fn quorums_of(decided: DecidedCopies) -> Result<Quorums, StoreError> {
    let DecidedCopies { ensemble, write_quorum, ack_quorum, min_regions } = decided;
    if min_regions > ack_quorum {
        return Err(StoreError::Copies(format!(
            "an ack quorum of {ack_quorum} is not in {min_regions} regions: ask for more copies, or for fewer regions"
        )));
    }
    Quorums::new(ensemble as usize, write_quorum as usize, ack_quorum as usize).ok_or_else(|| {
        StoreError::Copies(format!(
            "an ensemble of {ensemble} bookies, a write quorum of {write_quorum} and an ack quorum of {ack_quorum} are not in \
             the order 1 <= ack <= write <= ensemble"
        ))
    })
}

/// The newest segment of a shard.
struct NewestSegment {
    term: Term,
    number: SegmentNumber,
    held: Arc<HeldSegment>,
}

/// A store of segments in ledgers; see the crate. Its drop ends its tasks, as a crash would.
pub(crate) struct LedgerStore {
    pub(crate) shared: Arc<LedgersShared>,
    segments: Mutex<HashMap<SegmentId, Arc<HeldSegment>>>,
    newest: Mutex<HashMap<ShardId, NewestSegment>>,
    /// The ledgers that were found of a shard when all were looked at.
    pub(crate) listed: Mutex<HashMap<ShardId, BTreeSet<LedgerId>>>,
    /// The last place that was given.
    places: AtomicU64,
    /// Bytes of entries that are neither acknowledged nor given up.
    pending: Arc<AtomicU64>,
    _looking: Task,
}

impl LedgerStore {
    /// A store without segments.
    pub(crate) fn new(shared: LedgersShared) -> Self {
        let shared = Arc::new(shared);
        let looking = shared.env.spawn("ledger-bookies", Arc::clone(&shared).look_for_bookies());
        Self {
            shared,
            segments: Mutex::default(),
            newest: Mutex::default(),
            listed: Mutex::default(),
            places: AtomicU64::new(0),
            pending: Arc::default(),
            _looking: looking,
        }
    }

    /// Has a segment that was there before.
    pub(crate) fn hold(&self, held: HeldSegment) {
        let held = Arc::new(held);
        self.note_newest(&held);
        self.segments.lock().insert(held.id, held);
    }

    /// Has none of a shard's segments any more, and does not know which there are.
    pub(crate) fn forget_shard(&self, shard: &ShardId) {
        self.listed.lock().remove(shard);
        self.drop_segments(shard);
    }

    /// Has none of a shard's segments any more. The tasks of those that were ended go on to their end.
    pub(crate) fn drop_segments(&self, shard: &ShardId) {
        self.newest.lock().remove(shard);
        let gone: Vec<_> =
            self.segments.lock().extract_if(|id, _| id.shard == *shard).map(|(_, held)| held).collect();
        for held in gone {
            let is_ended = held.state.lock().sealed.is_some();
            match held.task.lock().take() {
                Some(task) if is_ended => task.detach(),
                task => drop(task),
            }
        }
    }

    /// Segments that take entries, and whose next entry gets fewer copies at living bookies than its stream wants.
    fn short(&self) -> u64 {
        let Some(bookies) = self.shared.living() else { return 0 };
        let newest: Vec<_> = self.newest.lock().values().map(|newest| Arc::clone(&newest.held)).collect();
        let is_short = |held: &&Arc<HeldSegment>| {
            let open = held.open_ledger();
            open.is_some_and(|open| open.copies_at(|bookie| bookies.contains(bookie)) < open.wanted)
        };
        newest.iter().filter(is_short).count() as u64
    }

    fn note_newest(&self, held: &Arc<HeldSegment>) {
        let (term, number) = (held.id.term, held.id.number);
        let mut newest = self.newest.lock();
        if newest.get(&held.id.shard).is_none_or(|newest| (newest.term, newest.number) < (term, number)) {
            newest.insert(held.id.shard, NewestSegment { term, number, held: Arc::clone(held) });
        }
    }

    pub(crate) fn get(&self, id: &SegmentId) -> Result<Arc<HeldSegment>, StoreError> {
        self.segments.lock().get(id).cloned().ok_or(StoreError::Unknown(*id))
    }

    /// Has the task of a segment, if it has one, do what ends its ledger; whether it does.
    fn tell(&self, held: &HeldSegment, command: impl FnOnce(UnfinishedLedger) -> Command) -> bool {
        let Some(task) = &held.commands else { return false };
        task.send(command(UnfinishedLedger::begin(&self.shared.unfinished))).is_ok()
    }

    /// Forgets a segment, whose ledger is to go by `command`; the ledger, if no task sees to it.
    fn give_up(
        &self,
        id: &SegmentId,
        command: impl FnOnce(UnfinishedLedger) -> Command,
    ) -> Result<Option<LedgerId>, StoreError> {
        let held = self.segments.lock().remove(id).ok_or(StoreError::Unknown(*id))?;
        held.give_away();
        if self.tell(&held, command) {
            // The last handle on the segment is its task's, which ends by itself from here on.
            if let Some(task) = held.task.lock().take() {
                task.detach();
            }
            return Ok(None);
        }
        let ledger = held.state.lock().ledger;
        Ok(ledger)
    }
}

impl Drop for LedgerStore {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
        for held in self.segments.lock().values() {
            // Its task has this segment, and would never end by itself.
            drop(held.task.lock().take());
        }
    }
}

impl StoreContract for LedgerStore {
    fn journal(&self) -> Option<&Journal> {
        None
    }

    fn decided(&self, wanted: SegmentCopies) -> DecidedCopies {
        let of = self.shared.quorums;
        let [ensemble, write_quorum, ack_quorum] =
            [of.ensemble(), of.write(), of.ack()].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let min_regions = u32::try_from(self.shared.client.places().min_regions.max(1)).unwrap_or(u32::MAX);
        DecidedCopies { ensemble, write_quorum, ack_quorum, min_regions }.unless(wanted)
    }

    fn places(&self) -> Option<u32> {
        self.shared.living().map(|bookies| u32::try_from(bookies.len()).unwrap_or(u32::MAX))
    }

    fn living_copies(&self, shard: &ShardId) -> Option<u32> {
        let bookies = self.shared.living()?;
        let held = self.newest.lock().get(shard).map(|newest| Arc::clone(&newest.held))?;
        let copies = held.open_ledger()?.copies_at(|bookie| bookies.contains(bookie));
        Some(u32::try_from(copies).unwrap_or(u32::MAX))
    }

    fn check_copies(&self, wanted: SegmentCopies) -> FromStore<'_, ()> {
        Box::pin(async move {
            let decided = self.decided(wanted);
            let quorums = quorums_of(decided)?;
            let places = self.shared.client.places().wanting(decided.min_regions as usize);
            let chosen = self.shared.client.choose(quorums, &places).await;
            chosen.map(drop).map_err(|fault| match fault {
                LedgerFault::TooFewBookies { have, need } => StoreError::Copies(format!(
                    "{need} bookies are to have each segment, and {have} take entries"
                )),
                LedgerFault::Regions { .. } => StoreError::Copies(fault.to_string()),
                fault => StoreError::Replicas(fault.to_string()),
            })
        })
    }

    fn create(
        &self,
        id: SegmentId,
        copies: SegmentCopies,
        watch: Arc<dyn SegmentWatch>,
    ) -> Result<(), StoreError> {
        let decided = self.decided(copies);
        let (quorums, min_regions) = (quorums_of(decided)?, decided.min_regions as usize);
        let previous = {
            let newest = self.newest.lock();
            let newest = newest.get(&id.shard);
            if let Some(newest) = newest {
                if id.term < newest.term {
                    return Err(StoreError::Fenced { term: id.term, highest: newest.term });
                }
                if id.term == newest.term && id.number <= newest.number {
                    let (number, term, highest) = (id.number, id.term, newest.number);
                    return Err(StoreError::NotNext { number, term, highest });
                }
            }
            newest.map(|newest| Arc::clone(&newest.held)).filter(|held| held.state.lock().sealed.is_none())
        };
        // What was there before the store was opened takes no entries.
        let previous = previous.filter(|held| held.commands.is_some());
        let (commands, received) = mpsc::unbounded_channel();
        let held = Arc::new(HeldSegment::written(id, commands));
        self.note_newest(&held);
        self.segments.lock().insert(id, Arc::clone(&held));
        let shared = Arc::clone(&self.shared);
        let held_too = Arc::clone(&held);
        let writing = SegmentWriting {
            shared,
            held: held_too,
            quorums,
            min_regions,
            previous,
            commands: received,
            watch,
        };
        *held.task.lock() = Some(self.shared.env.spawn("ledger-segment", writing.run()));
        Ok(())
    }

    fn append(
        &self,
        id: &SegmentId,
        position: Position,
        entry: Bytes,
        _sync: bool,
    ) -> Result<EntryPlace, StoreError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(StoreError::TooLong { given: entry.len(), max: ENTRY_BYTES_MAX });
        }
        let held = self.get(id)?;
        let room = EntryRoom::take(&self.pending, entry.len())?;
        let mut state = held.state.lock();
        if let Some(length) = state.sealed {
            return Err(StoreError::Sealed { length });
        }
        if state.is_over {
            return Err(match &held.commands {
                Some(_) => StoreError::Lost { durable: state.durable.get() },
                None => StoreError::Recovered { length: state.durable.get() },
            });
        }
        if position != state.appended.get() {
            return Err(StoreError::NotContinuing { position, appended: state.appended.get() });
        }
        let point = LedgerPoint::of(id, state.taken, position, &entry)
            .map_err(|why| StoreError::Replicas(format!("not the next entry: {why}")))?;
        let place = EntryPlace(self.places.fetch_add(1, Ordering::Relaxed) + 1);
        let appended = LedgerAppend { bytes: entry, point, place, _room: room };
        let commands = held.commands.as_ref().ok_or(StoreError::Closed)?;
        commands
            .send(Command::Append(appended))
            .map_err(|_| StoreError::Lost { durable: state.durable.get() })?;
        state.appended.advance(point.end);
        state.taken += 1;
        if state.points.last().is_none_or(|last| position.0 >= last.0 + POINT_STEP_BYTES) {
            state.points.note(point);
        }
        Ok(place)
    }

    fn seal(&self, id: &SegmentId, length: Position) -> Result<Option<JournalPosition>, StoreError> {
        let held = self.get(id)?;
        // A ledger that was there before was closed when the store was opened.
        if held.seal(length)? {
            self.tell(&held, Command::Seal);
        }
        Ok(None)
    }

    fn lower_fence(&self, shard: &ShardId, term: Term) {
        if let Some(newest) = self.newest.lock().get_mut(shard) {
            newest.term = term.min(newest.term);
        }
    }

    fn delete(&self, id: &SegmentId) -> Result<(), StoreError> {
        if let Some(ledger) = self.give_up(id, Command::Delete)? {
            let (shared, unfinished) =
                (Arc::clone(&self.shared), UnfinishedLedger::begin(&self.shared.unfinished));
            let delete = async move {
                shared.delete_ledger(ledger).await;
                drop(unfinished);
            };
            self.shared.env.spawn("ledger-deletion", delete).detach();
        }
        Ok(())
    }

    fn discard(&self, id: &SegmentId) -> Result<(), StoreError> {
        if let Some(ledger) = self.give_up(id, |_| Command::Discard)? {
            let shared = Arc::clone(&self.shared);
            let discard = async move { shared.discard_ledger(ledger).await };
            self.shared.env.spawn("ledger-discard", discard).detach();
        }
        Ok(())
    }

    fn read<'a>(&'a self, id: &'a SegmentId, position: Position, length: usize) -> FromStore<'a, Bytes> {
        Box::pin(self.read_bytes(id, position, length))
    }

    fn locate_offset<'a>(&'a self, id: &'a SegmentId, offset: Offset) -> FromStore<'a, Position> {
        Box::pin(self.position_of_offset(id, offset))
    }

    fn locate_transaction_id<'a>(
        &'a self,
        id: &'a SegmentId,
        transaction_id: TransactionId,
    ) -> FromStore<'a, Position> {
        Box::pin(self.position_of_transaction_id(id, transaction_id))
    }

    fn flush(&self) -> FromStore<'_, ()> {
        Box::pin(async {
            self.shared.unfinished.finished().await;
            Ok(())
        })
    }

    fn health(&self) -> Result<(), StoreError> {
        match &*self.shared.trouble.lock() {
            Some((when, why)) if self.shared.env.now().since(*when) < TROUBLE_TOLD => {
                Err(StoreError::Replicas(why.clone()))
            }
            _ => Ok(()),
        }
    }

    fn take_over<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        Box::pin(async move { Ok(self.take_over_shards(shards, recorded).await) })
    }

    fn take_over_again<'a>(
        &'a self,
        shards: &'a BTreeSet<ShardId>,
        recorded: &'a (dyn Fn(&SegmentId) -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<ShardId, ShardTakeOver<'a>>, String>> {
        Box::pin(async move { Ok(self.take_over_shards_again(shards, recorded).await) })
    }

    fn forget(&self, shard: &ShardId) {
        self.forget_shard(shard);
    }

    fn delete_stream(&self, stream: StreamId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.delete_ledgers_of(stream))
    }

    fn sweep<'a>(&'a self, judge: &'a dyn SegmentJudge) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.shared.sweep(judge))
    }

    fn replicated_stats(&self) -> Option<ReplicatedStats> {
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(ReplicatedStats {
            pending_bytes: of(&self.pending),
            entries: of(&counters.entries),
            given_up: of(&counters.given_up),
            entries_read: of(&counters.entries_read),
            entries_batched: self.shared.client.entries_batched(),
            unfinished: self.shared.unfinished.get(),
            begun_short: of(&counters.begun_short),
            short: self.short(),
            swept: of(&counters.swept),
            swept_away: of(&counters.swept_away),
        })
    }
}
