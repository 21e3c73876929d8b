//! A shard over a journal, a store and metadata that are lists, which check what they are asked to do.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cold::ColdCopy;
use tailwater_format::{
    BatchBuilder, Codec, Producer, ShardNumber, StreamId, parse_entry, parse_entry_header,
};
use tokio::sync::oneshot;

use super::super::*;
use super::transcript;
use crate::batches::{Checked, TransactionIds};
use crate::hot::Hot;
use crate::stream::{ProducersRecord, ShardRecord, StreamRecord, TruncatedRecord};
use crate::view::{SharedView, View};

pub(super) type Reply = oneshot::Receiver<Result<AppendAnswer, AppendError>>;

const OWNER: u64 = 99;

/// A shard and everything below it.
pub(super) struct World {
    pub(super) shard: Shard,
    pub(super) now_ms: u64,
    /// The entry that the store was asked to take.
    pub(super) asked: Option<Write>,
    /// What metadata was asked to commit.
    pub(super) asked_meta: Option<Change>,
    /// Entries per segment, as the store took them.
    pub(super) segments: BTreeMap<SegmentId, Vec<Bytes>>,
    sealed: BTreeMap<SegmentId, Position>,
    deleted: Vec<SegmentId>,
    pub(super) journal: u64,
    pub(super) record: Option<(ShardRecord, u64)>,
    pub(super) recorded: BTreeMap<SegmentNumber, SegmentRecord>,
    /// Removed segments that metadata has.
    pub(super) truncated: BTreeMap<SegmentNumber, TruncatedRecord>,
    /// What is in cold storage.
    pub(super) copies: BTreeSet<(SegmentId, ColdCopy)>,
    /// What readers are given from there.
    pub(super) named: BTreeMap<SegmentId, ColdCopy>,
    pub(super) producers: Option<ProducersRecord>,
    /// What the cells' writer was told.
    shadow: BTreeMap<SegmentId, Vec<u8>>,
    /// What was put out, one a line.
    pub(super) lines: Arc<Mutex<Vec<String>>>,
    pub(super) closed: bool,
    is_copy: bool,
    /// What readers see.
    view: Arc<SharedView>,
    hot: Hot,
}

pub(super) fn shard_id() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) }
}

pub(super) fn config() -> StreamConfig {
    StreamConfig { retention_ms: None, ..StreamConfig::default() }
}

pub(super) fn batch(timestamps: &[i64], producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for &timestamp in timestamps {
        builder.append(None, Some(&[7; 100]), &[], timestamp).expect("small");
    }
    if let Some((id, epoch, base_sequence)) = producer {
        builder.set_producer(Producer { id, epoch, base_sequence });
    }
    builder.finish(Codec::None)
}

pub(super) fn checked(bytes: Bytes, ids: TransactionIds) -> Checked {
    Checked::check(bytes, ids, RECORDS_DECOMPRESSED_BYTES_MAX).expect("good")
}

impl World {
    /// A created stream's shard, opened, at 1,000 ms.
    pub(super) fn new(config: StreamConfig) -> Self {
        let shard =
            Shard::new(shard_id(), Arc::new(config), OWNER, Recovered::default(), Producers::default());
        let mut world = Self {
            view: SharedView::new(View::of(&shard)),
            hot: Hot::new(1 << 20),
            shard,
            now_ms: 1_000,
            asked: None,
            asked_meta: None,
            segments: BTreeMap::new(),
            sealed: BTreeMap::new(),
            deleted: Vec::new(),
            journal: 0,
            record: None,
            recorded: BTreeMap::new(),
            truncated: BTreeMap::new(),
            copies: BTreeSet::new(),
            named: BTreeMap::new(),
            producers: None,
            shadow: BTreeMap::new(),
            lines: Arc::default(),
            closed: false,
            is_copy: false,
        };
        world.step(ShardInput::Opened);
        world
    }

    /// A step, and what can be done about its outputs without an answer to the shard.
    pub(super) fn step(&mut self, input: ShardInput) {
        let at = StepTime { now: Instant::from_ns(self.now_ms * 1_000_000), wall_ms: self.now_ms as i64 };
        let mut out = Vec::new();
        let changed = self.shard.step(at, input, &mut out);
        self.view.show(&self.hot, &self.shard, changed, &out);
        if changed.tail {
            self.lines.lock().push(transcript::tail("show", &self.shard.tail()));
        }
        if changed.list {
            self.lines.lock().push(transcript::list(self.shard.completed()));
        }
        let writes = out.iter().position(|output| matches!(output, Output::Write(_)));
        assert!(writes.is_none_or(|index| index + 1 == out.len()), "a write is the last output of its step");
        for output in out {
            // Whoever waits for a reply writes it down.
            self.lines.lock().extend(transcript::output(&output));
            self.perform(output);
        }
    }

    /// Offers an append, whose reply is written down as `name`'s.
    pub(super) fn offer(&mut self, name: &str, batches: Checked, expected_term: Option<Term>) -> Reply {
        self.offer_to(name, batches, expected_term, None)
    }

    /// Offers an entry of the source's, whose reply is written down as `name`'s.
    pub(super) fn offer_copied(&mut self, name: &str, batches: Checked, copied: CopiedTo) -> Reply {
        self.offer_to(name, batches, None, Some(copied))
    }

    fn offer_to(
        &mut self,
        name: &str,
        batches: Checked,
        expected_term: Option<Term>,
        copied: Option<CopiedTo>,
    ) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let (name, lines) = (name.to_owned(), Arc::clone(&self.lines));
        let waiter = Waiter::new(None, move |outcome| {
            lines.lock().push(transcript::reply(&name, &outcome));
            drop(reply.send(outcome));
        });
        self.step(ShardInput::Append(StoreAppend { batches, expected_term, copied, waiter }));
        receiver
    }

    /// Offers an entry of the source of a copy: `count` records from `base` on.
    pub(super) fn give(&mut self, name: &str, base: u64, count: usize) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let (name, lines) = (name.to_owned(), Arc::clone(&self.lines));
        let waiter = Waiter::new(None, move |outcome| {
            lines.lock().push(transcript::reply(&name, &outcome));
            drop(reply.send(outcome));
        });
        let batches = checked(batch(&vec![5; count], None), TransactionIds::RunningMaximum);
        let copied = Some(CopiedTo { base_offset: Offset(base), term: Term(1) });
        self.step(ShardInput::Append(StoreAppend { batches, expected_term: None, copied, waiter }));
        receiver
    }

    /// Offers a batch of `count` records of a producer.
    pub(super) fn append_as(&mut self, id: i64, epoch: i16, sequence: i32, count: usize) -> Reply {
        let bytes = batch(&vec![5; count], Some((id, epoch, sequence)));
        self.offer("p", checked(bytes, TransactionIds::RunningMaximum), None)
    }

    /// The store takes what it was asked to, and metadata commits, until nothing is left of that.
    pub(super) fn work(&mut self) {
        self.step(ShardInput::Proceed);
        let mut rounds = 0;
        while self.asked.is_some() || self.asked_meta.is_some() {
            rounds += 1;
            assert!(rounds < 10_000, "it never ends: {:?}", self.asked_meta);
            if self.asked.is_some() {
                self.wrote();
            } else {
                self.commit();
            }
        }
    }

    /// The same, and everything written is synced.
    pub(super) fn settle_all(&mut self) {
        self.work();
        self.step(ShardInput::Synced(EntryPlace(self.journal)));
        self.work();
    }

    /// The store takes the entry that it was asked to, as its record of ten bytes in the journal.
    pub(super) fn wrote(&mut self) {
        let write = self.asked.take().expect("asked");
        if write.create {
            let fresh = self.segments.insert(write.segment, Vec::new()).is_none();
            assert!(fresh && !self.deleted.contains(&write.segment), "{} is used twice", write.segment);
        }
        let entries = self.segments.get_mut(&write.segment).expect("created");
        assert_eq!(entries.iter().map(|entry| entry.len() as u64).sum::<u64>(), write.position.0);
        assert!(!self.sealed.contains_key(&write.segment), "{} is sealed", write.segment);
        let header = parse_entry(&write.bytes).expect("an entry").header;
        assert_eq!(header.segment_id(), write.segment);
        if let Some(last) = entries.last() {
            header.check_follows(&parse_entry_header(last).expect("an entry")).expect("continues");
        }
        entries.push(write.bytes);
        self.journal += 10;
        let result = Ok(EntryPlace(self.journal));
        self.step(ShardInput::Wrote { created: true, result });
    }

    /// The store does not take the entry.
    pub(super) fn refuse(&mut self, error: WriteError) {
        let write = self.asked.take().expect("asked");
        self.step(ShardInput::Wrote { created: !write.create, result: Err(error) });
    }

    /// Metadata does what it was asked to.
    pub(super) fn commit(&mut self) {
        let result = self.commit_unanswered();
        self.step(ShardInput::Committed(result));
    }

    /// The same, and does not answer.
    pub(super) fn commit_unanswered(&mut self) -> Result<u64, ChangeError> {
        let change = self.asked_meta.take().expect("asked");
        let version = self.record.map_or(0, |(_, version)| version);
        if version != change.version {
            return Err(ChangeError::Conflict(self.record));
        }
        self.record = Some((change.record, version + 1));
        for segment in &change.completed {
            self.recorded.insert(segment.number, *segment);
        }
        for segment in &change.updated {
            self.recorded.insert(segment.number, *segment).expect("recorded");
        }
        for number in &change.deleted {
            self.recorded.remove(number).expect("recorded");
        }
        for truncated in &change.truncated {
            assert!(self.truncated.insert(truncated.segment.number, *truncated).is_none());
        }
        for number in change.forgotten.iter().chain(change.restored.iter().map(|segment| &segment.number)) {
            self.truncated.remove(number).expect("kept");
        }
        for segment in &change.restored {
            assert!(self.recorded.insert(segment.number, *segment).is_none());
        }
        self.producers = change.producers.or(self.producers.take());
        Ok(version + 1)
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Write(write) => assert!(self.asked.replace(write).is_none(), "one entry at a time"),
            Output::Commit(change) => {
                assert!(self.asked_meta.replace(change).is_none(), "one commit at a time");
            }
            Output::Sync(upto) => assert!(upto.0 <= self.journal, "no more can be synced than was written"),
            // Answers: the transcript has them.
            Output::WakeAt(_) | Output::Truncated(..) | Output::Restored(..) | Output::Begun(..) => {}
            Output::Reply(waiter, result) => {
                if let Ok(appended) = &result {
                    assert!(
                        appended.last_offset < self.shard.tail().next_offset,
                        "visible before it is acked"
                    );
                }
                waiter.answer(result);
            }
            Output::Extend { segment, bytes, durable, tail, .. } => {
                let shadow = self.shadow.entry(segment).or_default();
                shadow.extend_from_slice(&bytes);
                assert_eq!(shadow.len() as u64, durable.get().0, "in order and without gaps");
                assert_eq!((tail.segment_id(shard_id()), tail.durable.0), (segment, shadow.len() as u64));
            }
            Output::Took { .. } => {}
            Output::Ahead { segment, bytes, source_durable, .. } => {
                let shadow = self.shadow.get_mut(&segment).expect("readers see it");
                shadow.extend_from_slice(&bytes);
                assert_eq!(shadow.len() as u64, source_durable.get().0, "in order and without gaps");
            }
            Output::CaughtUp(tail, _) => {
                let shadow = &self.shadow[&tail.segment_id(shard_id())];
                assert!(tail.durable.0 <= shadow.len() as u64, "it was ahead");
            }
            Output::Update(tail) => assert!(tail.is_possible()),
            Output::Seal(id, length) => {
                let stored: u64 = self.segments[&id].iter().map(|entry| entry.len() as u64).sum();
                assert!(length.0 <= stored && self.sealed.insert(id, length).is_none());
            }
            Output::NameCopy(id, copy, _) => {
                self.named.insert(id, copy);
            }
            Output::HideCopy(id) => {
                self.named.remove(&id).expect("named");
            }
            Output::RemoveCopy(id, copy) => self.remove_copy(id, copy),
            Output::Delete(id) | Output::Discard(id) => {
                self.check_delete(id);
                self.segments.remove(&id).expect("there");
                self.deleted.push(id);
            }
            Output::Closed => assert!(!std::mem::replace(&mut self.closed, true), "it ends once"),
        }
    }

    /// A segment leaves the store only when metadata has forgotten it, or names a copy that is there; and where copies
    /// of removed segments are kept, only when there is one.
    fn check_delete(&self, id: SegmentId) {
        if self.shard.state == ShardPhase::Deleted {
            return;
        }
        let is_copied =
            |segment: &SegmentRecord| segment.cold.is_some_and(|cold| self.copies.contains(&(id, cold.copy)));
        match self.recorded.get(&id.number).filter(|segment| segment.term == id.term) {
            Some(segment) => assert!(
                segment.is_released() && is_copied(segment),
                "{id} leaves the store, and metadata says {segment:?}"
            ),
            None if self.keeps_removed() && id.number < self.shard.next_number() => {
                let kept = self.truncated.get(&id.number).map(|truncated| &truncated.segment);
                assert!(kept.is_some_and(is_copied), "{id} is removed, and of its copy there is {kept:?}");
            }
            None => {}
        }
    }

    fn keeps_removed(&self) -> bool {
        self.shard.config.cold && self.shard.cold.is_some_and(|cold| cold.kept_ms > 0)
    }

    /// A copy goes only when metadata does not name it any more.
    fn remove_copy(&mut self, id: SegmentId, copy: ColdCopy) {
        let kept = self.truncated.values().map(|truncated| &truncated.segment);
        let mut all = self.recorded.values().chain(kept);
        let is_named = all
            .any(|segment| segment.number == id.number && segment.cold.is_some_and(|cold| cold.copy == copy));
        assert!(
            !is_named || self.shard.state == ShardPhase::Deleted,
            "the copy of {id} goes, and metadata names it"
        );
        self.named.remove(&id);
        assert!(self.copies.remove(&(id, copy)), "the copy of {id} goes once");
    }

    /// Cold storage has a copy of a completed segment, and the shard is told.
    pub(super) fn copied(&mut self, number: SegmentNumber) {
        let Some(segment) = self.shard.completed().find(|segment| segment.number == number) else { return };
        let id = SegmentId { shard: shard_id(), number, term: segment.term };
        let copy = ColdCopy(number.0);
        self.copies.insert((id, copy));
        self.step(ShardInput::Copied(SegmentCopied { number, term: id.term, copy }));
    }

    /// Somebody wants removed records back. The answer is written down.
    pub(super) fn restore(&mut self, from: Offset) {
        let (reply, _) = oneshot::channel();
        self.step(ShardInput::Restore(RestoreRequest { from, reply }));
    }

    /// A copy is to go on at a later offset. The answer is written down.
    pub(super) fn begin(&mut self, offset: Offset) {
        let (reply, _) = oneshot::channel();
        self.step(ShardInput::Begin(CopyBegin { offset, reply }));
    }

    /// Every record that readers are told of is somewhere that they are led to.
    pub(super) fn check_readable(&self) {
        let log_start = self.shard.tail().log_start;
        let mut next = log_start;
        for segment in self.shard.completed().filter(|segment| segment.next_offset > log_start) {
            let id = SegmentId { shard: shard_id(), number: segment.number, term: segment.term };
            assert!(segment.base_offset <= next, "{id}: a gap before {}", segment.base_offset);
            let copy = self.named.get(&id).copied();
            let is_there =
                self.segments.contains_key(&id) || copy.is_some_and(|copy| self.copies.contains(&(id, copy)));
            assert!(is_there, "{id} is nowhere: {segment:?}");
            next = segment.next_offset;
        }
    }

    /// A sync failed. Of a segment without a durable entry the store has the name.
    pub(super) fn lose(&mut self, why: &str) {
        self.step(ShardInput::Lost(why.into()));
        for id in self.shard.empty.clone() {
            self.segments.entry(id).or_default().clear();
        }
    }

    /// The shard of a copy, and not of a source.
    pub(super) fn of_copy(mut self) -> Self {
        self.is_copy = true;
        self.restart();
        self.lines.lock().clear();
        self
    }

    /// The process is killed and starts again: what the store has is recovered, with what metadata has.
    pub(super) fn restart(&mut self) {
        let found: Vec<SegmentsFound> = self
            .segments
            .iter()
            .map(|(&id, entries)| {
                let headers: Vec<_> =
                    entries.iter().map(|entry| parse_entry_header(entry).expect("an entry")).collect();
                let content = headers.first().zip(headers.last()).map(|(first, last)| FoundContent {
                    base_offset: first.base_offset,
                    next_offset: last.next_offset(),
                    first_transaction_id: first.transaction_id,
                    last_transaction_id: last.transaction_id,
                });
                let length = Position(entries.iter().map(|entry| entry.len() as u64).sum());
                SegmentsFound { id, length, sealed: self.sealed.contains_key(&id), content, damaged: None }
            })
            .collect();
        let (record, version) = self.record.unwrap_or_default();
        let recorded = self.recorded.values().copied().collect();
        let recovered = recover(shard_id(), record, version, recorded, &found, 5_000);
        let mut recovered = recovered.expect("consistent");
        recovered.truncated = self.truncated.values().copied().collect();
        let copies = recovered.completed.iter().filter_map(|segment| {
            Some((
                SegmentId { shard: shard_id(), number: segment.number, term: segment.term },
                segment.cold?.copy,
            ))
        });
        self.named = copies.collect();
        (self.asked, self.asked_meta) = (None, None);
        self.open(recovered);
    }

    /// The next owner opens the shard.
    fn open(&mut self, recovered: Recovered) {
        let (config, cold) = (Arc::clone(&self.shard.config), self.shard.cold);
        let planted = self.shard.planted;
        let shard =
            Shard::new(shard_id(), config, OWNER + 1, recovered, Producers::default()).with_cold(cold);
        self.shard = if self.is_copy { shard.of_copy() } else { shard };
        self.shard.plant(planted);
        self.view = self.view.begin_anew(View::of(&self.shard));
        self.closed = false;
        self.step(ShardInput::Opened);
    }

    /// The stream's source moves: here, or to the cluster that `source` names. The shard goes through this as in
    /// a log: closed, given up with what it knows, and opened again.
    pub(super) fn move_source(&mut self, source: Option<String>, term_min: Term) {
        assert!(self.closed, "only a shard that is closed is given up");
        self.is_copy = source.is_some();
        let config = Arc::clone(&self.shard.config);
        let nothing =
            Shard::new(shard_id(), Arc::clone(&config), OWNER, Recovered::default(), Producers::default());
        let nothing = nothing.with_cold(self.shard.cold);
        let (mut recovered, _) = std::mem::replace(&mut self.shard, nothing).into_released();
        recovered.lift_term(&StreamRecord {
            id: shard_id().stream,
            name: "moved".to_owned(),
            created_ms: 0,
            config: (*config).clone(),
            source,
            term_min,
            numbers_from: SegmentNumber(0),
        });
        self.open(recovered);
    }
}
