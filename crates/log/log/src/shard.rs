//! One shard as a step machine: [`Shard::step`] takes what happens (a [`ShardInput`]: appends, the store's and
//! metadata's answers, the journal's progress, time) and puts out what to do (an [`Output`]: what to write, to record
//! and to answer). No clock, disk or channel is touched here; the shell is `owner.rs`.
//!
//! ```text
//!   Append        Write, Wrote            Synced                         (full or old)
//!  --------> buffer ----------> in flight ------> acknowledged, visible ------> completed segment -- Seal, Commit
//!                                  \-- Written -> acknowledged, unsynced -- Synced --/            (interval)
//! ```
//!
//! What holds:
//! - Offsets and transaction ids are given when an append is accepted, in the order of acceptance; entries leave
//!   in that order, and acknowledgements are given in that order. What fails takes everything behind it along,
//!   so an acknowledged record never has an unacknowledged one before it that is missing.
//! - The store is asked for one entry at a time, and metadata for one commit at a time.
//! - An append is acknowledged, shown to readers and remembered as its producer's in one step, `settle_entry`:
//!   when its entry is durable (or written, with `interval`).
//! - A segment is only ever written by the owner that created it: the first append after a start, a loss or a
//!   conflict claims a higher term in metadata, and only then a segment of that term is created.
//! - Readers see a segment from its first durable entry on. One that never had any is deleted, and its number
//!   is used again, with a higher term; in a copy it is not used again.
//! - A completed segment is recorded after its last entry is durable. Until the record is written, recovery finds
//!   the same in the store.

mod accept;
mod change;
mod cold;
mod copy;
mod outputs;
mod recover;
mod roll;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Instant;
use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{
    AppendedTo, Dlsn, DurableTo, EntryFields, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId,
    SlotId, Tail, Term, TransactionId,
};
use tailwater_store::{EntryPlace, SegmentCopies};

use crate::batches::{Accepted, encode};
use crate::config::{FlushPolicy, StreamConfig, StreamDurability};
use crate::error::AppendError;
use crate::limits::{BUSY_RETRY, ENTRY_BYTES_TARGET, ENTRY_RECORDS_TARGET, STALL_MAX};
use crate::planted::ShardMistake;
use crate::producer::{ProducerState, Producers, Refused};
use crate::retention;
use crate::stream::{SegmentRecord, TruncatedRecord};

use change::Changes;
pub use change::{Change, ChangeError};
pub use cold::{RestoreRequest, SegmentCopied, ShardCold};
pub use outputs::{
    AppendAnswer, CopiedTo, CopyBegin, Output, ShardInput, StepTime, StoreAppend, Truncation, ViewChange,
    Waiter, Write, WriteError,
};
pub use recover::{FoundContent, Recovered, SegmentsFound, recover};
use segments::{ShardOpenSegment, Visible};

/// Whether appends may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardPhase {
    /// No term of ours: the next append claims one.
    Resting,
    /// The claim is under way; appends gather in the buffer.
    Claiming,
    /// This term is ours.
    Owning(Term),
    /// Another owner has claimed a higher one.
    Lost,
    /// The stream is gone.
    Deleted,
}

/// An entry between the store's taking it and its acknowledgement.
#[derive(Debug)]
struct Flush {
    segment: SegmentId,
    from: Position,
    bytes: bytes::Bytes,
    sync: bool,
    next_offset: Offset,
    transaction_id: TransactionId,
    entry_id: EntryId,
    base_offset: Offset,
    appends: Vec<Accepted>,
    place: EntryPlace,
}

impl Flush {
    /// Where its bytes end.
    fn end(&self) -> Position {
        Position(self.from.0 + self.bytes.len() as u64)
    }
}

/// How far an acknowledged entry reaches whose bytes are not synced yet.
#[derive(Clone, Copy, Debug)]
struct Unsynced {
    place: EntryPlace,
    reach: Reach,
}

/// A point in the shard, after an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    segment: SegmentId,
    position: Position,
    next_offset: Offset,
    transaction_id: TransactionId,
}

/// An entry that the store was too busy for.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    since: Instant,
    /// When it is offered again.
    retry_at: Instant,
}

/// A duplicate that waits for the first.
#[derive(Debug)]
struct Duplicate {
    base_offset: Offset,
    next_offset: Offset,
    append_time_ms: i64,
    waiter: Waiter,
}

/// One shard.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    config: Arc<StreamConfig>,
    state: ShardPhase,
    closing: bool,
    /// [`Output::Closed`] is out.
    is_closed: bool,
    /// Its term was claimed before it was opened, and others are told of it.
    is_claimed: bool,
    /// Its records are those of a source in another cluster.
    is_copy: bool,
    /// What recovery found to be done in the store.
    undone: Vec<Output>,
    /// The last [`Output::WakeAt`].
    wake_at: Option<Instant>,

    changes: Changes,
    /// Completed segments, oldest first.
    completed: VecDeque<SegmentRecord>,
    /// The last of them, if it was cut by a loss and metadata does not know its length yet. Until then a crash
    /// may bring the cut entries back, so readers are not told that it ends there.
    cut: Option<SegmentNumber>,

    /// Removed segments whose cold copies are kept, oldest first.
    truncated: VecDeque<TruncatedRecord>,
    /// How the node's cold storage is used, if it has one.
    cold: Option<ShardCold>,
    /// Who waits for removed records to come back.
    restore: Option<RestoreRequest>,
    planted: ShardMistake,

    /// Accepted and in no entry yet.
    buffer: VecDeque<Accepted>,
    buffer_bytes: usize,
    buffer_since: Instant,
    /// The entry that the store was asked to take and has not taken yet.
    writing: Option<Flush>,
    /// The store has not answered the last [`Output::Write`].
    is_asked: bool,
    /// The store was too busy for `writing`.
    blocked: Option<Blocked>,
    in_flight: VecDeque<Flush>,
    unsynced: VecDeque<Unsynced>,
    duplicates: Vec<Duplicate>,

    /// Segments that take no more entries and are not completed yet, oldest first.
    rolling: VecDeque<ShardOpenSegment>,
    /// The segment that takes entries.
    open: Option<ShardOpenSegment>,

    /// Offset of the next record to be accepted.
    next_offset: AppendedTo<Offset>,
    /// Running maximum up to there.
    transaction_id: TransactionId,
    /// The latest time that an append's records were given as theirs, in this life of the shard.
    append_time_ms: i64,
    /// Offset after the last acknowledged record.
    acked_next: DurableTo<Offset>,
    /// Running maximum up to there.
    acked_transaction_id: TransactionId,
    visible: Visible,
    producers: Producers,
    producers_expire_at: Instant,
    /// The first number that no segment of this shard ever had, as far as this life knows. A copy's terms are its
    /// source's, so it can't use a number again in a higher one.
    unused: SegmentNumber,
    /// Segments of a copy without entries, whose numbers metadata has yet to leave behind.
    empty: Vec<SegmentId>,

    tail_changed: bool,
    list_changed: bool,
    taken_back: bool,
}

/// How often producers are looked through for those to forget.
const PRODUCERS_EXPIRE_EVERY: Duration = Duration::from_secs(60);

impl Shard {
    /// How many copies of its next segment there are to be.
    pub fn copies(&self) -> SegmentCopies {
        self.config.copies()
    }

    /// The shard as recovery found it; for a created stream's, [`Recovered::default`]. [`ShardInput::Opened`] is its
    /// first input. `owner` is random for each start of a log.
    pub fn new(
        id: ShardId,
        config: Arc<StreamConfig>,
        owner: u64,
        recovered: Recovered,
        producers: Producers,
    ) -> Self {
        let undone = recovered.undone();
        let Recovered { record, version, completed, unsaved, unused, truncated, .. } = recovered;
        let completed: VecDeque<SegmentRecord> = completed.into();
        let (next_offset, transaction_id) =
            completed.back().map_or((record.next_offset, record.transaction_id), |last| {
                (
                    last.next_offset.max(record.next_offset),
                    last.last_transaction_id.max(record.transaction_id),
                )
            });
        let visible = Visible::at_rest(&completed, &record, next_offset);
        Self {
            id,
            config,
            state: ShardPhase::Resting,
            closing: false,
            is_closed: false,
            is_claimed: false,
            is_copy: false,
            undone,
            wake_at: None,
            changes: Changes::new(owner, record, version, unsaved),
            completed,
            cut: None,
            truncated: truncated.into(),
            cold: None,
            restore: None,
            planted: ShardMistake::Nothing,
            buffer: VecDeque::new(),
            buffer_bytes: 0,
            buffer_since: Instant::default(),
            writing: None,
            is_asked: false,
            blocked: None,
            in_flight: VecDeque::new(),
            unsynced: VecDeque::new(),
            duplicates: Vec::new(),
            rolling: VecDeque::new(),
            open: None,
            next_offset: AppendedTo::new(next_offset),
            transaction_id,
            append_time_ms: i64::MIN,
            acked_next: DurableTo::new(next_offset),
            acked_transaction_id: transaction_id,
            visible,
            producers,
            producers_expire_at: Instant::default(),
            unused,
            empty: Vec::new(),
            tail_changed: true,
            list_changed: true,
            taken_back: false,
        }
    }

    /// Takes in what happens, and puts out what is to be done about it: first what readers see is shown, if it changed,
    /// and then the outputs are carried out in their order.
    pub fn step(&mut self, at: StepTime, input: ShardInput, out: &mut Vec<Output>) -> ViewChange {
        let StepTime { now, wall_ms } = at;
        let is_answer = matches!(input, ShardInput::Wrote { .. });
        assert_eq!(
            self.is_asked, is_answer,
            "{}: the store's answer, and nothing else, follows on a write",
            self.id
        );
        self.is_asked = false;
        match input {
            ShardInput::Append(append) => match append.copied {
                None => self.append(now, wall_ms, append, out),
                Some(copied) => self.append_copied(now, wall_ms, append, copied, out),
            },
            ShardInput::Begin(begin) => self.begin(begin, wall_ms, out),
            ShardInput::Truncate(truncation) => self.truncate(now, truncation, out),
            ShardInput::Copied(copied) => self.copied(copied, out),
            ShardInput::Restore(wish) => self.restore(wish, out),
            ShardInput::Configure(config) => {
                assert!(
                    self.config.may_become(&config).is_ok(),
                    "{}: looked at before it was committed",
                    self.id
                );
                self.config = config;
            }
            ShardInput::Close => self.closing = true,
            ShardInput::Resume => (self.closing, self.is_closed) = (false, false),
            ShardInput::Delete => self.delete(out),
            event => {
                if self.take_in(at, event, out) {
                    self.proceed(at, out);
                }
            }
        }
        self.check_invariants();
        ViewChange {
            tail: std::mem::take(&mut self.tail_changed),
            list: std::mem::take(&mut self.list_changed),
            taken_back: std::mem::take(&mut self.taken_back),
        }
    }

    /// What holds between any two steps.
    fn check_invariants(&self) {
        debug_assert!(
            self.acked_next.get() <= self.next_offset.get(),
            "{}: only what was accepted is acked",
            self.id
        );
        debug_assert!(self.acked_transaction_id <= self.transaction_id, "{}: a running maximum", self.id);
        debug_assert!(
            self.changes.log_start() <= self.acked_next.get(),
            "{}: what is removed was there",
            self.id
        );
        debug_assert!(self.buffer.len() <= self.buffer_bytes, "{}: no append is empty", self.id);
        debug_assert!(
            self.writing.is_some() || self.blocked.is_none(),
            "{}: only an entry is blocked",
            self.id
        );
        debug_assert!(
            self.writing.is_none() || self.open.is_some(),
            "{}: an entry is of the open segment",
            self.id
        );
        debug_assert!(self.tail().is_possible(), "{}: {:?}", self.id, self.tail());
        debug_assert!(
            self.unsynced.is_empty() || self.config.durability == StreamDurability::Interval,
            "{}: acked before it was synced",
            self.id
        );
        debug_assert!(
            self.state != ShardPhase::Lost || (self.buffer.is_empty() && self.writing.is_none()),
            "{}: nobody waits for what is never written",
            self.id
        );
    }

    /// Takes in what is no request; whether the shard may have something to do behind it.
    fn take_in(
        &mut self,
        StepTime { now, wall_ms }: StepTime,
        event: ShardInput,
        out: &mut Vec<Output>,
    ) -> bool {
        match event {
            ShardInput::Opened => out.append(&mut self.undone),
            ShardInput::Wrote { created, result } => self.wrote(now, wall_ms, created, result, out),
            ShardInput::Written(upto) => {
                self.settle(upto, wall_ms, out);
                return self.may_go_on();
            }
            ShardInput::Synced(upto) => {
                match self.config.durability {
                    StreamDurability::Fsync => self.settle(upto, wall_ms, out),
                    StreamDurability::Interval => self.sync(upto, wall_ms, out),
                }
                return self.may_go_on();
            }
            ShardInput::Lost(why) => self.lost(&why, wall_ms, out),
            ShardInput::Committed(result) => self.committed(now, result, out),
            ShardInput::Tick => self.tick(now, wall_ms, out),
            ShardInput::Proceed => {}
            _ => unreachable!("a request"),
        }
        true
    }

    /// Whether the journal's progress lets the shard do more than answer: a segment is completed, a truncation may be
    /// recorded, or the end is near. Asked for every entry, so it is no more than a look.
    fn may_go_on(&self) -> bool {
        let awaits_term =
            self.in_flight.is_empty() && self.buffer.front().is_some_and(|first| first.copied.is_some());
        self.list_changed || self.changes.is_truncating() || self.closing || awaits_term
    }

    /// Puts out what is due: the next entry, and if there is none, what is to be told to metadata.
    fn proceed(&mut self, at: StepTime, out: &mut Vec<Output>) {
        if let Some(write) = self.next_write(at.now, at.wall_ms) {
            self.is_asked = true;
            out.push(Output::Write(write));
            return;
        }
        out.extend(self.awaited_sync().map(Output::Sync));
        // First: what it completes is part of the change.
        self.finish(at.wall_ms, out);
        out.extend(self.next_change(at.now, at.wall_ms).map(Output::Commit));
        let wake_at = self.deadline();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            out.push(Output::WakeAt(wake_at));
        }
    }

    /// From here on it makes a mistake.
    #[cfg(test)]
    fn plant(&mut self, planted: ShardMistake) {
        self.planted = planted;
    }

    /// The same where the term of its record was claimed for this owner, and nothing was written in it yet.
    pub(crate) fn claimed(mut self) -> Self {
        let term = self.changes.record().term;
        self.state = ShardPhase::Owning(term);
        self.is_claimed = true;
        // The first append needs no other term. A term that was told may not go back.
        self.visible.will_have(term);
        self
    }

    /// Whether another owner has it.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == ShardPhase::Lost
    }

    /// Whether metadata has yet to answer.
    pub(crate) fn is_committing(&self) -> bool {
        self.changes.is_committing()
    }

    /// What a start would find of a shard that is closed, and its producers.
    pub(crate) fn into_released(self) -> (Recovered, Producers) {
        let unused = self.unused.max(self.next_number());
        let (record, version, unsaved) = self.changes.into_parts();
        let recovered = Recovered {
            record,
            version,
            completed: self.completed.into(),
            unsaved,
            seals: Vec::new(),
            deletes: self.empty,
            unused,
            truncated: self.truncated.into(),
        };
        (recovered, self.producers)
    }

    /// Where to note what is refused before it comes here.
    pub(crate) fn refused(&self) -> &Arc<Refused> {
        self.producers.refused()
    }

    /// Which shard this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The tail that readers may see; `cached` is left to the cells' writer.
    pub fn tail(&self) -> Tail {
        Tail {
            segment: self.visible.number,
            term: self.visible.term,
            base_offset: self.visible.base_offset,
            cached: Position(0),
            durable: self.visible.durable.get(),
            next_offset: self.acked_next.get(),
            sealed: self.visible.sealed && self.cut != Some(self.visible.number),
            previous: self.visible.previous,
            chunk_bytes: self.config.chunk_bytes,
            cells: self.config.cells,
            log_start: self.changes.log_start(),
        }
    }

    /// Running transaction id of the last record that readers may see.
    pub fn acked_transaction_id(&self) -> TransactionId {
        self.acked_transaction_id
    }

    /// What it remembers of the producers of acknowledged records, by producer.
    pub fn producers(&self) -> Vec<ProducerState> {
        self.producers.snapshot(self.acked_next.get())
    }

    /// Completed segments whose lengths are final, oldest first.
    pub fn completed(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.completed.iter().filter(|segment| self.cut != Some(segment.number))
    }

    /// Offset after the last record that no loss takes back.
    fn synced_next(&self) -> Offset {
        let Some(Unsynced { reach, .. }) = self.unsynced.front() else { return self.acked_next.get() };
        self.segment(reach.segment).synced_next.get()
    }

    /// A segment that has entries which are not synced.
    fn segment(&self, id: SegmentId) -> &ShardOpenSegment {
        let segment = self.rolling.iter().chain(&self.open).find(|open| open.id == id);
        segment.expect("a segment is completed after its last entry is synced")
    }

    fn segment_mut(&mut self, id: SegmentId) -> &mut ShardOpenSegment {
        let segment = self.rolling.iter_mut().chain(&mut self.open).find(|open| open.id == id);
        segment.expect("a segment is completed after its last entry is synced")
    }

    /// Whether some append waits for the journal.
    fn is_in_flight(&self) -> bool {
        !self.in_flight.is_empty() || !self.unsynced.is_empty()
    }

    /// When to go on although nothing happened. Not while something else has to happen first: a deadline that has
    /// passed and leads to nothing would keep the owner running.
    fn deadline(&self) -> Option<Instant> {
        if matches!(self.state, ShardPhase::Lost | ShardPhase::Deleted) {
            return None;
        }
        let could_write = self.writing.is_none() && !self.waits_for_roll();
        let flush = match (self.config.flush, self.state) {
            (FlushPolicy::EveryMs(ms), ShardPhase::Owning(_)) if !self.buffer.is_empty() && could_write => {
                Some(self.buffer_since + Duration::from_millis(ms))
            }
            _ => None,
        };
        let retry = self.blocked.map(|blocked| blocked.retry_at);
        [flush, retry, self.changes.retry_deadline()].into_iter().flatten().min()
    }

    /// The next entry to hand to the store, if one is due.
    fn next_write(&mut self, now: Instant, wall_ms: i64) -> Option<Write> {
        let ShardPhase::Owning(term) = self.state else { return None };
        if self.blocked.is_some_and(|blocked| now < blocked.retry_at) {
            return None;
        }
        if self.writing.is_none() {
            if !self.is_due(now) {
                return None;
            }
            if self.waits_for_term(term) {
                return None;
            }
            let count = self.gather_count();
            self.roll_if_full(self.buffer.iter().take(count).map(|append| append.batches.bytes.len()).sum());
            if self.waits_for_roll() {
                return None;
            }
            self.writing = Some(self.gather(term, count, now, wall_ms));
        }
        let (entry, open) = (self.writing.as_ref()?, self.open.as_ref()?);
        Some(Write {
            segment: entry.segment,
            create: !open.created,
            position: entry.from,
            bytes: entry.bytes.clone(),
            sync: entry.sync,
            tell_written: self.config.durability == StreamDurability::Interval,
        })
    }

    /// With `interval` readers see what may be lost: one segment at a time, so that what a loss takes back never spans
    /// two.
    fn waits_for_roll(&self) -> bool {
        self.config.durability == StreamDurability::Interval
            && self.rolling.iter().any(|segment| !segment.is_synced())
    }

    /// Up to where the journal has to be synced before the next segment can begin, if one waits for that, or before a
    /// truncation can be recorded.
    fn awaited_sync(&self) -> Option<EntryPlace> {
        let is_awaited = self.waits_for_roll() || self.changes.wanted_log_start() > self.synced_next();
        if self.config.durability != StreamDurability::Interval || !is_awaited {
            return None;
        }
        let last_written = self.in_flight.back().map(|entry| entry.place);
        last_written.or(self.unsynced.back().map(|unsynced| unsynced.place))
    }

    fn is_due(&self, now: Instant) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match self.config.flush {
            FlushPolicy::Immediate => true,
            FlushPolicy::EveryMs(ms) => {
                self.closing
                    || self.buffer_bytes >= self.config.flush_bytes as usize
                    || now >= self.buffer_since + Duration::from_millis(ms)
            }
        }
    }

    /// How many appends at the front of the buffer make the next entry.
    fn gather_count(&self) -> usize {
        let (mut count, mut bytes, mut decompressed, mut records) = (0, 0, 0, 0);
        for accepted in &self.buffer {
            // An entry that is copied stays one.
            if accepted.copied.is_some() {
                return 1;
            }
            bytes += accepted.batches.bytes.len();
            decompressed += accepted.batches.decompressed_bytes;
            records += u64::from(accepted.batches.records);
            let full = bytes > ENTRY_BYTES_TARGET
                || decompressed > RECORDS_DECOMPRESSED_BYTES_MAX
                || records > ENTRY_RECORDS_TARGET;
            if count > 0 && full {
                break;
            }
            count += 1;
        }
        count
    }

    /// Turns the front of the buffer into an entry of the open segment.
    fn gather(&mut self, term: Term, count: usize, now: Instant, wall_ms: i64) -> Flush {
        assert!(self.changes.record().term == term, "{}: an entry is of the term that metadata has", self.id);
        let appends: Vec<Accepted> = self.buffer.drain(..count).collect();
        self.buffer_bytes -= appends.iter().map(|accepted| accepted.batches.bytes.len()).sum::<usize>();
        self.buffer_since = now;

        debug_assert!(!self.buffer.is_empty() || self.buffer_bytes == 0, "{}: bytes of no append", self.id);
        let base_offset = appends[0].base_offset;
        let written_next = self.in_flight.back().map_or(self.acked_next.get(), |entry| entry.next_offset);
        assert_eq!(base_offset, written_next, "{}: an entry goes on where the last one ended", self.id);
        let first_transaction_id = appends[0].first_transaction_id;
        let mut number = self.next_number();
        if appends[0].copied.is_some() && self.open.is_none() {
            number = number.max(self.unused);
            self.unused = number.next();
        }
        let id = SegmentId { shard: self.id, number, term };
        let open = self.open.get_or_insert(ShardOpenSegment {
            id,
            created: false,
            created_ms: wall_ms,
            created_at: now,
            length: AppendedTo::new(Position(0)),
            shadowed: DurableTo::new(Position(0)),
            next_entry: EntryId(0),
            base_offset,
            first_transaction_id,
            synced: DurableTo::new(Position(0)),
            synced_next: DurableTo::new(base_offset),
            synced_transaction_id: first_transaction_id,
        });
        let last = &appends[count - 1];
        let (next_offset, transaction_id) = (last.next_offset(), last.transaction_id);
        let fields = EntryFields {
            segment: open.id,
            entry_id: open.next_entry,
            base_offset,
            record_count: u32::try_from(next_offset.0 - base_offset.0)
                .expect("an entry's records are bounded"),
            transaction_id,
        };
        let bytes = encode(&fields, &appends);
        // With `interval` the next segment waits until this one is synced: its last entry should not take long.
        let is_last = open.length.get().0 + 2 * bytes.len() as u64 > retention::roll_bytes(&self.config);
        Flush {
            segment: open.id,
            from: open.length.get(),
            bytes,
            sync: self.config.durability == StreamDurability::Fsync || is_last,
            next_offset,
            transaction_id,
            entry_id: open.next_entry,
            base_offset,
            appends,
            place: EntryPlace(0),
        }
    }

    /// Takes in what the store said to the last write.
    fn wrote(
        &mut self,
        now: Instant,
        wall_ms: i64,
        created: bool,
        result: Result<EntryPlace, WriteError>,
        out: &mut Vec<Output>,
    ) {
        let open = self.open.as_mut().expect("the entry belongs to the open segment");
        open.created |= created;
        let error = match result {
            Ok(place) => {
                let mut entry = self.writing.take().expect("the store answers what it was asked");
                assert_eq!(
                    (open.id, open.length.get()),
                    (entry.segment, entry.from),
                    "it was asked for this entry"
                );
                let before = self.in_flight.back().map(|before| before.place);
                assert!(before < Some(place), "{}: a later entry has a later place", self.id);
                open.length.advance(entry.end());
                open.next_entry = open.next_entry.next();
                entry.place = place;
                let segment = entry.segment;
                self.took(&entry, out);
                self.in_flight.push_back(entry);
                self.blocked = None;
                self.shadow_ahead(segment, out);
                return;
            }
            Err(error) => error,
        };
        match error {
            WriteError::Busy(why) => self.block(now, why, out),
            WriteError::NoSpace(why) => self.fail_unwritten(&AppendError::NoSpace(why), out),
            WriteError::Unavailable(why) => self.fail_unwritten(&AppendError::Unavailable(why), out),
            WriteError::Fenced => {
                self.state = ShardPhase::Lost;
                self.fail_unwritten(&AppendError::NotOwner, out);
            }
            // What of the segment is durable has been acknowledged before it is sealed there: a loss in the journal, if
            // there was one, comes as `ShardInput::Lost`, behind all that was synced before it.
            WriteError::Over(_) if self.is_in_flight() => self.block(now, "records in flight were lost", out),
            WriteError::Over(why) => self.lost(&why, wall_ms, out),
        }
    }

    /// The store is too busy for an entry: offers it again in a moment, but not for ever.
    fn block(&mut self, now: Instant, why: &'static str, out: &mut Vec<Output>) {
        let since = self.blocked.map_or(now, |blocked| blocked.since);
        self.blocked = Some(Blocked { since, retry_at: now + BUSY_RETRY });
        if now.since(since) > STALL_MAX {
            self.fail_unwritten(&AppendError::Overloaded(why), out);
        }
    }

    /// The journal is written (`interval`) or synced (`fsync`) up to `upto`: acknowledges what lies before it.
    fn settle(&mut self, upto: EntryPlace, wall_ms: i64, out: &mut Vec<Output>) {
        // One that was synced before it was full, before readers see the next one.
        self.complete_rolled(wall_ms, out);
        while self.in_flight.front().is_some_and(|entry| entry.place <= upto) {
            let entry = self.in_flight.pop_front().expect("just looked at");
            self.settle_entry(entry, wall_ms, out);
        }
        self.release_duplicates(out);
        if self.config.durability == StreamDurability::Fsync {
            self.complete_rolled(wall_ms, out);
        }
    }

    /// Moves the watermark over one entry: readers, producers and acknowledgements in one step.
    fn settle_entry(&mut self, entry: Flush, wall_ms: i64, out: &mut Vec<Output>) {
        let reach = Reach {
            segment: entry.segment,
            position: entry.end(),
            next_offset: entry.next_offset,
            transaction_id: entry.transaction_id,
        };
        assert_eq!(entry.base_offset, self.acked_next.get(), "{}: entries settle in order", self.id);
        match self.config.durability {
            StreamDurability::Fsync => self.synced(reach),
            StreamDurability::Interval => self.unsynced.push_back(Unsynced { place: entry.place, reach }),
        }
        let appended = self.segment(entry.segment).length;
        self.visible.reach(entry.segment, entry.base_offset, reach.position, appended);
        self.acked_next.advance(reach.next_offset, self.next_offset);
        debug_assert!(reach.transaction_id >= self.acked_transaction_id, "{}: a running maximum", self.id);
        self.acked_transaction_id = reach.transaction_id;
        self.tail_changed = true;
        let (tail, durable, was_taken) =
            (self.tail(), self.visible.durable, entry.appends[0].copied.is_some());
        let open = self.segment_mut(entry.segment);
        if open.shadowed.get() > entry.from {
            out.push(Output::CaughtUp(tail, entry.bytes.len()));
        } else {
            open.shadowed.advance(reach.position, open.length);
            out.push(Output::Extend {
                segment: entry.segment,
                base_offset: entry.base_offset,
                bytes: entry.bytes,
                durable,
                tail,
                accepted_at: entry.appends[0].accepted_at,
                was_taken,
            });
            self.shadow_ahead(entry.segment, out);
        }
        for accepted in entry.appends {
            if let Some(claim) = accepted.batches.claim {
                self.producers.settle(claim.producer, wall_ms);
            }
            let slot =
                u32::try_from(accepted.base_offset.0 - entry.base_offset.0).expect("records of one entry");
            let appended = AppendAnswer {
                base_offset: accepted.base_offset,
                last_offset: Offset(accepted.next_offset().0 - 1),
                append_time_ms: accepted.append_time_ms,
                term: entry.segment.term,
                dlsn: Some(Dlsn { segment: entry.segment.number, entry: entry.entry_id, slot: SlotId(slot) }),
            };
            out.push(Output::Reply(accepted.waiter, Ok(appended)));
        }
    }

    fn release_duplicates(&mut self, out: &mut Vec<Output>) {
        if self.duplicates.is_empty() {
            return;
        }
        let (term, acked_next) = (self.visible.term, self.acked_next.get());
        for duplicate in self.duplicates.extract_if(.., |duplicate| duplicate.next_offset <= acked_next) {
            out.push(Output::Reply(
                duplicate.waiter,
                Ok(AppendAnswer {
                    base_offset: duplicate.base_offset,
                    last_offset: Offset(duplicate.next_offset.0 - 1),
                    append_time_ms: duplicate.append_time_ms,
                    term,
                    dlsn: None,
                }),
            ));
        }
    }

    /// The journal is synced up to `upto`, and so written, with `interval`.
    fn sync(&mut self, upto: EntryPlace, wall_ms: i64, out: &mut Vec<Output>) {
        self.settle(upto, wall_ms, out);
        while self.unsynced.front().is_some_and(|unsynced| unsynced.place <= upto) {
            let unsynced = self.unsynced.pop_front().expect("just looked at");
            self.synced(unsynced.reach);
        }
        self.complete_rolled(wall_ms, out);
    }

    /// A sync failed and everything that was not durable is gone from the journal. Fails what was in flight,
    /// seals the segment at its durable length; the next append claims a higher term.
    fn lost(&mut self, why: &Arc<str>, wall_ms: i64, out: &mut Vec<Output>) {
        if !self.is_in_flight() && self.writing.is_none() && self.buffer.is_empty() {
            return;
        }
        let error = AppendError::Lost(Arc::clone(why));
        self.unsynced.clear();
        let in_flight = std::mem::take(&mut self.in_flight);
        for accepted in in_flight.into_iter().flat_map(|entry| entry.appends) {
            out.push(Output::Reply(accepted.waiter, Err(error.clone())));
        }
        self.fail_unwritten(&error, out);
        if let ShardPhase::Owning(_) = self.state {
            self.state = ShardPhase::Resting;
        }
        self.rolling.extend(self.open.take());
        for segment in std::mem::take(&mut self.rolling) {
            self.complete(&segment, wall_ms, out);
        }
        // With `interval`, what was acknowledged since the last sync is gone with the rest.
        let (next_offset, transaction_id) = self.completed_end();
        self.acked_next.take_back(next_offset);
        self.acked_transaction_id = transaction_id;
        self.next_offset.take_back(next_offset);
        self.transaction_id = transaction_id;
        self.producers.take_back(next_offset);
        self.changes.cut_log_start(next_offset, out);
        self.visible = Visible::at_rest(&self.completed, self.changes.record(), next_offset);
        if self.is_claimed {
            // Others tell this one. The next append may be long in coming.
            self.visible.will_have(self.changes.record().term);
        }
        if self.is_copy {
            self.show_coming();
        }
        (self.tail_changed, self.taken_back) = (true, true);
        out.push(Output::Update(self.tail()));
    }

    /// Fails what is in no entry that the store took, and gives its offsets back.
    fn fail_unwritten(&mut self, error: &AppendError, out: &mut Vec<Output>) {
        self.blocked = None;
        let failed = self.writing.take().map(|entry| entry.appends).into_iter().flatten();
        let failed: Vec<Accepted> = failed.chain(self.buffer.drain(..)).collect();
        self.buffer_bytes = 0;
        if self.open.as_ref().is_some_and(|open| !open.created) {
            self.open = None;
        }
        let (next_offset, transaction_id) = match self.in_flight.back() {
            Some(entry) => (entry.next_offset, entry.transaction_id),
            None => (self.acked_next.get(), self.acked_transaction_id),
        };
        self.next_offset.take_back(next_offset);
        self.transaction_id = transaction_id;
        if failed.iter().any(|accepted| accepted.batches.claim.is_some()) {
            self.producers.take_back(next_offset);
        }
        for accepted in failed {
            out.push(Output::Reply(accepted.waiter, Err(error.clone())));
        }
        for duplicate in self.duplicates.extract_if(.., |duplicate| duplicate.next_offset > next_offset) {
            out.push(Output::Reply(duplicate.waiter, Err(error.clone())));
        }
    }

    /// The number of the segment that would be opened next.
    fn next_number(&self) -> SegmentNumber {
        let newest = self.open.as_ref().or(self.rolling.back()).map(|segment| segment.id.number);
        let newest = newest.or_else(|| self.completed.back().map(|segment| segment.number));
        // Behind the newest one there may have been others, which were cut off.
        newest.map_or(SegmentNumber(0), SegmentNumber::next).max(self.changes.record().next_segment)
    }

    /// Offset and transaction id at the end of the last completed segment.
    fn completed_end(&self) -> (Offset, TransactionId) {
        let begun = self.changes.begun();
        match self.completed.back() {
            Some(last) if last.next_offset >= begun => (last.next_offset, last.last_transaction_id),
            Some(last) => (begun, last.last_transaction_id),
            None => (begun, self.changes.record().transaction_id),
        }
    }
}
