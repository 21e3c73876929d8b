//! What is known of one segment.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_bookkeeper::{BookieId, LedgerId, LedgerReader, WriterMetadata};
use tailwater_env::Task;
use tailwater_format::{AppendedTo, DurableTo, Position, SegmentId};
use tailwater_store::{EntryPlace, StoreError};
use tokio::sync::{Notify, OnceCell, mpsc};

use crate::limits::{ENTRY_OVERHEAD_BYTES, PENDING_BYTES_MAX};
use crate::points::{LedgerPoint, LedgerPoints};

/// How far a segment is.
#[derive(Debug)]
pub(crate) struct HeldState {
    /// Its ledger; `None` before one was made.
    pub(crate) ledger: Option<LedgerId>,
    /// Its end, durable or not.
    pub(crate) appended: AppendedTo<Position>,
    /// How far it is acknowledged, and may be read.
    pub(crate) durable: DurableTo<Position>,
    /// Entries before `appended`.
    pub(crate) taken: i64,
    /// Entries before `durable`.
    pub(crate) entries: i64,
    /// Its length, for ever; also of one that is deleted.
    pub(crate) sealed: Option<Position>,
    /// It was given up, is deleted, or was there before the store was opened: it takes no more entries.
    pub(crate) is_over: bool,
    pub(crate) points: LedgerPoints,
}

/// What the task of a segment that is written is asked for.
pub(crate) enum Command {
    /// To append an entry.
    Append(LedgerAppend),
    /// To close the ledger: the segment is sealed.
    Seal(UnfinishedLedger),
    /// To delete the ledger.
    Delete(UnfinishedLedger),
    /// To delete the ledger if there is nothing in it. A restart does it as well, so that nobody waits for it.
    Discard,
}

/// Something that is to be done with a ledger, until it is done and this is dropped.
pub(crate) struct UnfinishedLedger(Arc<UnfinishedCount>);

/// How much is to be done with ledgers.
#[derive(Default)]
pub(crate) struct UnfinishedCount {
    count: AtomicUsize,
    /// Rung when there is nothing.
    none: Notify,
}

impl UnfinishedLedger {
    /// One more.
    pub(crate) fn begin(count: &Arc<UnfinishedCount>) -> Self {
        count.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for UnfinishedLedger {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}

impl UnfinishedCount {
    /// How much there is.
    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed) as u64
    }

    /// Completes when there is nothing.
    pub(crate) async fn finished(&self) {
        loop {
            // Before the look, so that nothing is missed.
            let mut none = pin!(self.none.notified());
            none.as_mut().enable();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

/// An entry on its way.
pub(crate) struct LedgerAppend {
    pub(crate) bytes: Bytes,
    pub(crate) point: LedgerPoint,
    pub(crate) place: EntryPlace,
    pub(crate) _room: EntryRoom,
}

/// The room that an entry takes until it is acknowledged or given up.
pub(crate) struct EntryRoom {
    pending: Arc<AtomicU64>,
    bytes: u64,
}

impl EntryRoom {
    /// Takes room for an entry of `bytes`, if there is some.
    pub(crate) fn take(pending: &Arc<AtomicU64>, bytes: usize) -> Result<Self, StoreError> {
        let bytes = bytes as u64 + ENTRY_OVERHEAD_BYTES;
        let room = Self { pending: Arc::clone(pending), bytes };
        let pending_bytes = pending.fetch_add(bytes, Ordering::Relaxed);
        if pending_bytes + bytes > PENDING_BYTES_MAX {
            // What was added is taken away again where `room` is dropped.
            return Err(StoreError::Full { pending_bytes, pending_bytes_max: PENDING_BYTES_MAX });
        }
        Ok(room)
    }
}

impl Drop for EntryRoom {
    fn drop(&mut self) {
        self.pending.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The ledger of a segment that is written.
pub(crate) struct WrittenLedger {
    pub(crate) metadata: WriterMetadata,
    /// Copies of each entry that its stream wants. The ledger may have begun with fewer.
    pub(crate) wanted: usize,
}

impl WrittenLedger {
    /// How many copies an entry gets that is appended now, at such bookies.
    pub(crate) fn copies_at(&self, is_there: impl Fn(&BookieId) -> bool) -> usize {
        self.metadata.with(|metadata| metadata.copies_of_next(is_there))
    }
}

/// A segment of the store.
pub(crate) struct HeldSegment {
    pub(crate) id: SegmentId,
    pub(crate) state: Mutex<HeldState>,
    /// Set when its ledger is made, if that is made here.
    pub(crate) written: OnceLock<WrittenLedger>,
    /// Opened by the first read.
    pub(crate) reader: OnceCell<LedgerReader>,
    /// The way to its task; `None` where it never had one. What waits there is bounded by [`EntryRoom`].
    pub(crate) commands: Option<mpsc::UnboundedSender<Command>>,
    /// Its task, which ends when this is dropped.
    pub(crate) task: Mutex<Option<Task>>,
    /// Rung whenever it may be settled.
    moved: Notify,
}

impl HeldSegment {
    /// One that is written, through `commands`.
    pub(crate) fn written(id: SegmentId, commands: mpsc::UnboundedSender<Command>) -> Self {
        let state = HeldState {
            ledger: None,
            appended: AppendedTo::default(),
            durable: DurableTo::default(),
            taken: 0,
            entries: 0,
            sealed: None,
            is_over: false,
            points: LedgerPoints::default(),
        };
        Self::new(id, state, Some(commands))
    }

    /// One that was there before, whose ledger is closed behind so many entries of so many bytes.
    pub(crate) fn found(id: SegmentId, ledger: LedgerId, entries: i64, length: Position) -> Self {
        let state = HeldState {
            ledger: Some(ledger),
            appended: AppendedTo::new(length),
            durable: DurableTo::new(length),
            taken: entries,
            entries,
            sealed: None,
            is_over: true,
            points: LedgerPoints::default(),
        };
        Self::new(id, state, None)
    }

    fn new(id: SegmentId, state: HeldState, commands: Option<mpsc::UnboundedSender<Command>>) -> Self {
        let (written, reader) = (OnceLock::new(), OnceCell::new());
        Self {
            id,
            state: Mutex::new(state),
            written,
            reader,
            commands,
            task: Mutex::new(None),
            moved: Notify::new(),
        }
    }

    /// Its ledger, as long as it takes entries and has one.
    pub(crate) fn open_ledger(&self) -> Option<&WrittenLedger> {
        let is_open = {
            let state = self.state.lock();
            state.sealed.is_none() && !state.is_over
        };
        self.written.get().filter(|_| is_open)
    }

    /// Changes what is known, and tells those who wait for it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut HeldState) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.moved.notify_waiters();
        changed
    }

    /// Whether everything in it was acknowledged, once that is known: the next segment may be written then. Of one
    /// that was given up that is never so, also where it was sealed since: the next one continues what was lost.
    pub(crate) async fn is_settled(&self) -> bool {
        loop {
            // Before the look, so that nothing is missed.
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            {
                let state = self.state.lock();
                if state.is_over {
                    return false;
                }
                if state.durable.get() == state.appended.get() {
                    return true;
                }
            }
            moved.await;
        }
    }

    /// Ends it where it is, as it is to be deleted.
    pub(crate) fn give_away(&self) {
        self.change(|state| {
            state.is_over = true;
            state.sealed.get_or_insert(state.durable.get());
        });
    }

    /// Ends it at `length`; whether it was not ended before. What is acknowledged behind that is taken back: there is
    /// such in one that was given up or found, as whoever wrote it had not heard of all that bookies have. There is in
    /// one that is written, too: the owner gives it up together with a later segment, which may be lost before the
    /// owner has heard of this one's last acknowledgements.
    pub(crate) fn seal(&self, length: Position) -> Result<bool, StoreError> {
        self.change(|state| match state.sealed {
            Some(sealed) if sealed == length => Ok(false),
            Some(sealed) => Err(StoreError::Sealed { length: sealed }),
            None if length > state.appended.get() => {
                Err(StoreError::SealBeyondEnd { length, appended: state.appended.get() })
            }
            None => {
                let durable = state.durable.get();
                state.sealed = Some(length);
                state.appended.take_back(length);
                state.durable.take_back(durable.min(length));
                state.points.cut(length);
                Ok(true)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tailwater_format::{SegmentNumber, ShardId, ShardNumber, StreamId, Term};

    use super::*;

    fn segment() -> HeldSegment {
        let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
        let id = SegmentId { shard, number: SegmentNumber(0), term: Term(1) };
        let held = HeldSegment::written(id, mpsc::unbounded_channel().0);
        held.change(|state| {
            state.appended.advance(Position(30));
            state.durable.advance(Position(20), state.appended);
        });
        held
    }

    #[test]
    fn the_next_segment_waits_for_everything_to_be_acknowledged_and_is_given_up_with_what_is_not() {
        let held = segment();
        assert_eq!(held.is_settled().now_or_never(), None);
        held.change(|state| state.durable.advance(Position(30), state.appended));
        assert_eq!(held.is_settled().now_or_never(), Some(true));
        assert_eq!(held.seal(Position(30)), Ok(true));
        assert_eq!(held.is_settled().now_or_never(), Some(true));

        for end in [|held: &HeldSegment| drop(held.seal(Position(20))), HeldSegment::give_away] {
            let held = segment();
            held.change(|state| state.is_over = true);
            end(&held);
            assert_eq!(held.is_settled().now_or_never(), Some(false), "although it has ended");
            assert!(held.state.lock().sealed.is_some(), "what is begun later does not ask it");
        }
    }

    #[test]
    fn a_segment_is_sealed_once() {
        let held = segment();
        let too_long = StoreError::SealBeyondEnd { length: Position(31), appended: Position(30) };
        assert_eq!(held.seal(Position(31)), Err(too_long));
        assert_eq!((held.seal(Position(20)), held.seal(Position(20))), (Ok(true), Ok(false)));
        assert_eq!(held.seal(Position(10)), Err(StoreError::Sealed { length: Position(20) }));
    }

    #[test]
    fn what_the_owner_had_not_heard_of_when_it_gave_a_written_segment_up_is_taken_back() {
        let held = segment();
        assert_eq!(held.seal(Position(19)), Ok(true));
        let state = held.state.lock();
        assert_eq!((state.durable.get(), state.appended.get()), (Position(19), Position(19)));
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let pending = Arc::default();
        let rooms: Vec<_> = std::iter::from_fn(|| EntryRoom::take(&pending, 64 << 20).ok()).collect();
        assert_eq!(rooms.len(), 3, "four with what they take beside it are too much");
        assert!(matches!(EntryRoom::take(&pending, 64 << 20), Err(StoreError::Full { .. })));
        drop(rooms);
        assert_eq!(pending.load(Ordering::Relaxed), 0);
    }
}
