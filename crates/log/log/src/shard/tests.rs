//! Scenarios over the step machine, with a journal, a store and metadata that are lists.

mod ownership;
mod removal;

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_format::{
    BatchBuilder, Codec, Producer, ShardNumber, StreamId, parse_entry, parse_entry_header,
};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::*;
use crate::batches::{Checked, TransactionIds};
use crate::error::StreamError;
use crate::producer::SequenceError;
use crate::stream::ShardRecord;

type Reply = oneshot::Receiver<Result<AppendAnswer, AppendError>>;

const OWNER: u64 = 99;

/// A shard and everything below it.
struct World {
    shard: Shard,
    now_ms: u64,
    /// Entries per segment, as the store took them.
    segments: BTreeMap<SegmentId, Vec<Bytes>>,
    sealed: BTreeMap<SegmentId, Position>,
    deleted: Vec<SegmentId>,
    journal: u64,
    refuse: Option<WriteError>,
    record: Option<(ShardRecord, u64)>,
    recorded: BTreeMap<SegmentNumber, SegmentRecord>,
    producers: Option<crate::stream::ProducersRecord>,
    commits: bool,
    /// What the cells' writer was told.
    shadow: BTreeMap<SegmentId, Vec<u8>>,
    tails: Vec<Tail>,
    truncated: Vec<Result<Offset, StreamError>>,
    closed: bool,
}

fn shard_id() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) }
}

fn config() -> StreamConfig {
    StreamConfig { retention_ms: None, ..StreamConfig::default() }
}

fn world(config: StreamConfig) -> World {
    World {
        shard: Shard::new(shard_id(), Arc::new(config), OWNER, Recovered::default(), Producers::default()),
        now_ms: 1_000,
        segments: BTreeMap::new(),
        sealed: BTreeMap::new(),
        deleted: Vec::new(),
        journal: 0,
        refuse: None,
        record: None,
        recorded: BTreeMap::new(),
        producers: None,
        commits: true,
        shadow: BTreeMap::new(),
        tails: Vec::new(),
        truncated: Vec::new(),
        closed: false,
    }
}

fn batch(timestamps: &[i64], producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for &timestamp in timestamps {
        builder.append(None, Some(&[7; 100]), &[], timestamp).expect("small");
    }
    if let Some((id, epoch, base_sequence)) = producer {
        builder.set_producer(Producer { id, epoch, base_sequence });
    }
    builder.finish(Codec::None)
}

impl World {
    fn now(&self) -> Instant {
        Instant::from_ns(self.now_ms * 1_000_000)
    }

    fn offer(&mut self, bytes: Bytes, expected_term: Option<Term>, ids: TransactionIds) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let batches = Checked::check(bytes, ids, tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX)
            .expect("good");
        let waiter = Waiter::new(None, |outcome| drop(reply.send(outcome)));
        let append = StoreAppend { batches, expected_term, waiter };
        let mut out = Vec::new();
        self.shard.append(self.now(), self.now_ms as i64, append, &mut out);
        self.perform(out);
        reply_of(receiver)
    }

    /// Offers a batch of `count` records.
    fn append(&mut self, count: usize) -> Reply {
        self.offer(batch(&vec![5; count], None), None, TransactionIds::RunningMaximum)
    }

    fn append_as(&mut self, id: i64, epoch: i16, sequence: i32, count: usize) -> Reply {
        let bytes = batch(&vec![5; count], Some((id, epoch, sequence)));
        self.offer(bytes, None, TransactionIds::RunningMaximum)
    }

    fn truncate(&mut self, before: u64) {
        let (reply, _) = oneshot::channel();
        let mut out = Vec::new();
        self.shard.truncate(self.now(), Truncation { before: Offset(before), reply }, &mut out);
        self.perform(out);
    }

    /// Writes what is due and commits what is to be committed.
    fn work(&mut self) {
        loop {
            let mut idle = true;
            while let Some(write) = self.shard.next_write(self.now(), self.now_ms as i64) {
                let result = self.write(&write);
                let stop = result.is_err();
                let mut out = Vec::new();
                self.shard.wrote(self.now(), result, &mut out);
                self.perform(out);
                idle = false;
                if stop {
                    break;
                }
            }
            if self.commits
                && let Some(change) = self.shard.next_change(self.now())
            {
                let result = self.commit(&change);
                self.answer_commit(result);
                idle = false;
            }
            if idle || self.refuse.is_some() {
                return;
            }
        }
    }

    fn write(&mut self, write: &Write) -> Result<JournalPosition, WriteError> {
        if let Some(error) = self.refuse.clone() {
            return Err(error);
        }
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
        entries.push(write.bytes.clone());
        self.journal += 10;
        Ok(JournalPosition(self.journal))
    }

    fn commit(&mut self, change: &Change) -> Result<u64, ChangeError> {
        let version = self.record.map_or(0, |(_, version)| version);
        if version != change.version {
            return Err(ChangeError::Conflict(self.record));
        }
        self.record = Some((change.record, version + 1));
        for segment in &change.completed {
            self.recorded.insert(segment.number, *segment);
        }
        for number in &change.deleted {
            self.recorded.remove(number).expect("recorded");
        }
        self.producers = change.producers.clone().or(self.producers.take());
        Ok(version + 1)
    }

    fn answer_commit(&mut self, result: Result<u64, ChangeError>) {
        let mut out = Vec::new();
        self.shard.committed(self.now(), result, &mut out);
        self.perform(out);
    }

    /// The journal is synced up to `journal`.
    fn settle(&mut self, journal: u64) {
        let mut out = Vec::new();
        self.shard.settle(JournalPosition(journal), self.now_ms as i64, &mut out);
        self.perform(out);
    }

    fn sync(&mut self, journal: u64) {
        let mut out = Vec::new();
        self.shard.sync(JournalPosition(journal), self.now_ms as i64, &mut out);
        self.perform(out);
    }

    /// Everything written is synced.
    fn settle_all(&mut self) {
        self.work();
        self.settle(self.journal);
        self.work();
    }

    fn lose(&mut self) {
        let mut out = Vec::new();
        self.shard.lost(&"disk broken".into(), self.now_ms as i64, &mut out);
        self.perform(out);
    }

    fn tick(&mut self, later_ms: u64) {
        self.now_ms += later_ms;
        let mut out = Vec::new();
        self.shard.tick(self.now(), self.now_ms as i64, &mut out);
        self.perform(out);
        self.work();
    }

    fn close(&mut self) {
        self.shard.close();
        self.settle_all();
        let mut out = Vec::new();
        self.shard.finish(self.now_ms as i64, &mut out);
        self.perform(out);
        self.work();
        let mut out = Vec::new();
        self.shard.finish(self.now_ms as i64, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Reply(waiter, result) => {
                    if let Ok(appended) = &result {
                        assert!(
                            appended.last_offset < self.shard.tail().next_offset,
                            "visible before it is acked"
                        );
                    }
                    waiter.answer(result);
                }
                Output::Extend { segment, from, bytes, tail, .. } => {
                    let shadow = self.shadow.entry(segment).or_default();
                    assert_eq!(shadow.len() as u64, from.0, "in order and without gaps");
                    shadow.extend_from_slice(&bytes);
                    assert_eq!((tail.segment_id(shard_id()), tail.durable.0), (segment, shadow.len() as u64));
                    self.tails.push(tail);
                }
                Output::Update(tail) => self.tails.push(tail),
                Output::Seal(id, length) => {
                    let stored: u64 = self.segments[&id].iter().map(|entry| entry.len() as u64).sum();
                    assert!(length.0 <= stored && self.sealed.insert(id, length).is_none());
                }
                Output::Delete(id) => {
                    self.segments.remove(&id).expect("there");
                    self.deleted.push(id);
                }
                Output::Truncated(_, result) => self.truncated.push(result),
                Output::Closed => self.closed = true,
            }
        }
    }

    /// What recovery finds if the process is killed after the journal was synced up to `journal`.
    fn restart(&mut self, config: StreamConfig) -> Recovered {
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
        let recovered = recover(shard_id(), record, version, recorded, &found, 5_000).expect("consistent");
        for (id, length) in &recovered.seals {
            self.sealed.insert(*id, *length);
        }
        for id in &recovered.deletes {
            self.segments.remove(id);
        }
        self.shard =
            Shard::new(shard_id(), Arc::new(config), OWNER + 1, recovered.clone(), Producers::default());
        recovered
    }
}

fn reply_of(receiver: Reply) -> Reply {
    receiver
}

fn offsets(mut reply: Reply) -> (u64, u64) {
    let appended = reply.try_recv().expect("answered").expect("appended");
    (appended.base_offset.0, appended.last_offset.0)
}

fn error(mut reply: Reply) -> AppendError {
    reply.try_recv().expect("answered").expect_err("refused")
}

fn is_waiting(reply: &mut Reply) -> bool {
    matches!(reply.try_recv(), Err(TryRecvError::Empty))
}

#[test]
fn appends_whose_times_were_taken_in_another_order_than_their_places_have_times_that_do_not_go_back() {
    let mut world = world(config());
    let mut replies = [2_000, 1_990, 2_001].map(|taken| {
        let two = [batch(&[7, 9], None), batch(&[8], None)].concat();
        let ids = TransactionIds::RunningMaximum;
        let mut batches = Checked::check(two.into(), ids, 1 << 20).expect("good");
        batches.set_append_time(taken).expect("no explicit ids");
        let (reply, receiver) = oneshot::channel();
        let waiter = Waiter::new(None, |outcome| drop(reply.send(outcome)));
        let append = StoreAppend { batches, expected_term: None, waiter };
        let mut out = Vec::new();
        world.shard.append(world.now(), 3_000, append, &mut out);
        world.perform(out);
        receiver
    });
    world.settle_all();
    let told = replies.each_mut().map(|reply| reply.try_recv().expect("answered").expect("appended"));
    assert_eq!(told.map(|appended| appended.append_time_ms), [2_000, 2_000, 2_001]);
    let mut times = Vec::new();
    for entry in world.segments.values().flatten() {
        for batch in tailwater_format::batches(parse_entry(entry).expect("an entry").batches) {
            let batch = batch.expect("whole");
            batch.check_crc().expect("a checksum that fits");
            times.push(batch.header().max_timestamp_ms);
        }
    }
    assert_eq!(times, [2_000, 2_000, 2_000, 2_000, 2_001, 2_001]);
}

#[test]
fn an_append_is_acknowledged_when_its_entry_is_durable_and_not_before() {
    let mut world = world(config());
    let mut reply = world.append(3);
    world.work();
    assert!(is_waiting(&mut reply));
    assert_eq!(world.shard.tail().next_offset, Offset(0));
    world.settle(9);
    assert!(is_waiting(&mut reply));
    world.settle(10);
    let appended = reply.try_recv().expect("answered").expect("appended");
    assert_eq!((appended.base_offset, appended.last_offset, appended.term), (Offset(0), Offset(2), Term(1)));
    assert_eq!(world.shard.tail().next_offset, Offset(3));
}

#[test]
fn what_is_queued_becomes_one_entry_with_immediate_flush() {
    let mut world = world(config());
    let replies: Vec<Reply> = (1..=4).map(|count| world.append(count)).collect();
    world.settle_all();
    assert_eq!(world.journal, 10, "one entry");
    let offsets: Vec<_> = replies.into_iter().map(offsets).collect();
    assert_eq!(offsets, [(0, 0), (1, 2), (3, 5), (6, 9)]);
}

#[test]
fn what_is_queued_becomes_more_entries_than_one_when_it_is_too_much_to_be_decompressed() {
    let mut builder = BatchBuilder::new();
    let value = vec![7; 2 << 20];
    for _ in 0..3 {
        builder.append(None, Some(&value), &[], 5).expect("small enough");
    }
    let of_18_mib: Bytes = builder.finish(Codec::Zstd).repeat(3).into();
    let mut world = world(config());
    for _ in 0..4 {
        drop(world.offer(of_18_mib.clone(), None, TransactionIds::RunningMaximum));
    }
    world.settle_all();
    let entries = world.segments.values().flatten().map(|entry| parse_entry(entry).expect("an entry"));
    let records: Vec<u32> = entries.map(|entry| entry.header.record_count).collect();
    assert_eq!(records, [27, 9], "an entry holds at most 64 MiB");
}

#[test]
fn dlsns_name_segment_entry_and_slot() {
    let mut world = world(config());
    let first = world.append(2);
    let second = world.append(3);
    world.settle_all();
    let third = world.append(1);
    world.settle_all();
    let dlsn = |mut reply: Reply| reply.try_recv().expect("answered").expect("appended").dlsn.expect("known");
    let texts: Vec<_> = [first, second, third].map(|reply| dlsn(reply).to_string()).into();
    assert_eq!(texts, ["0/0/0", "0/0/2", "0/1/0"]);
}

#[test]
fn a_periodic_flush_waits_for_its_time_or_its_bytes() {
    let mut world = world(StreamConfig { flush: FlushPolicy::EveryMs(20), flush_bytes: 1_000, ..config() });
    let mut reply = world.append(1);
    world.work();
    assert_eq!(world.journal, 0);
    assert_eq!(world.shard.deadline(), Some(Instant::from_ns(1_020_000_000)));
    world.now_ms += 20;
    world.work();
    assert_eq!(world.journal, 10);
    world.settle_all();
    assert!(!is_waiting(&mut reply));

    drop(world.append(20));
    world.work();
    assert_eq!(world.journal, 20, "more than 1,000 bytes");
}

#[test]
fn a_full_segment_rolls_and_is_recorded_once_its_last_entry_is_durable() {
    let mut world = world(StreamConfig { segment_bytes: 4_096, ..config() });
    for _ in 0..3 {
        drop(world.append(15));
        world.work();
    }
    assert_eq!(world.segments.len(), 2, "two entries of 1.7 KiB fit in one segment");
    world.settle(20);
    world.work();
    let segment = world.recorded[&SegmentNumber(0)];
    assert_eq!((segment.base_offset, segment.next_offset), (Offset(0), Offset(30)));
    assert_eq!(world.shard.tail().segment, SegmentNumber(0));
    assert!(world.shard.tail().sealed);
    world.settle(30);
    let tail = world.shard.tail();
    assert_eq!(tail.previous, Some((SegmentNumber(0), Term(1), segment.length)));
    assert_eq!(
        (tail.segment, tail.base_offset, tail.next_offset),
        (SegmentNumber(1), Offset(30), Offset(45))
    );
    assert_eq!(world.record.expect("recorded").0.next_segment, SegmentNumber(1));
}

#[test]
fn an_entry_larger_than_a_segment_gets_one_of_its_own() {
    let mut world = world(StreamConfig { segment_bytes: 4_096, ..config() });
    for _ in 0..2 {
        drop(world.append(100));
        world.settle_all();
    }
    assert_eq!(world.segments.len(), 2);
}

#[test]
fn an_old_segment_rolls_without_further_appends() {
    let mut world = world(StreamConfig { segment_ms: 500, ..config() });
    drop(world.append(1));
    world.settle_all();
    world.tick(499);
    assert!(world.sealed.is_empty());
    world.tick(1);
    assert_eq!(world.sealed.len(), 1);
    assert!(world.shard.tail().sealed && world.recorded.len() == 1);
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (1, 1));
    assert_eq!(world.shard.tail().segment, SegmentNumber(1));
    assert_eq!(world.shard.tail().term, Term(1), "the owner did not change");
}

#[test]
fn transaction_ids_are_the_running_maximum_of_timestamps() {
    let mut world = world(config());
    for timestamps in [&[5, 9][..], &[3], &[7, 20, 8]] {
        drop(world.offer(batch(timestamps, None), None, TransactionIds::RunningMaximum));
        world.settle_all();
    }
    let ids: Vec<i64> = world
        .segments
        .values()
        .next()
        .expect("one segment")
        .iter()
        .map(|entry| parse_entry_header(entry).expect("an entry").transaction_id.0)
        .collect();
    assert_eq!(ids, [9, 9, 20]);
}

#[test]
fn explicit_transaction_ids_that_decrease_are_refused() {
    let mut world = world(config());
    drop(world.offer(batch(&[5, 9], None), None, TransactionIds::Explicit));
    let reply = world.offer(batch(&[8, 10], None), None, TransactionIds::Explicit);
    let (given, last) = (TransactionId(8), TransactionId(9));
    assert_eq!(error(reply), AppendError::TransactionId { given, last });
    let reply = world.offer(batch(&[9, 10], None), None, TransactionIds::Explicit);
    world.settle_all();
    assert_eq!(offsets(reply), (2, 3));
}

#[test]
fn a_duplicate_of_a_durable_batch_is_answered_at_once_and_of_one_in_flight_with_it() {
    let mut world = world(config());
    let first = world.append_as(7, 0, 0, 2);
    let mut again = world.append_as(7, 0, 0, 2);
    assert!(is_waiting(&mut again), "still in the buffer");
    world.work();
    let mut third = world.append_as(7, 0, 0, 2);
    assert!(is_waiting(&mut third), "written and not durable");
    world.settle(10);
    assert_eq!((offsets(first), offsets(again), offsets(third)), ((0, 1), (0, 1), (0, 1)));
    let late = world.append_as(7, 0, 0, 2);
    assert_eq!(offsets(late), (0, 1));
    assert_eq!(world.journal, 10, "the batch is there once");
}

#[test]
fn sequences_out_of_order_and_old_epochs_are_refused() {
    let mut world = world(config());
    drop(world.append_as(7, 1, 0, 2));
    let out_of_order = SequenceError::OutOfOrder { producer: 7, expected: 2, given: 3 };
    assert_eq!(error(world.append_as(7, 1, 3, 1)), AppendError::Sequence(out_of_order));
    let epoch = SequenceError::Epoch { producer: 7, current: 1, given: 0 };
    assert_eq!(error(world.append_as(7, 0, 2, 1)), AppendError::Sequence(epoch));
}

#[test]
fn a_failed_sync_fails_what_was_in_flight_and_the_log_goes_on_with_a_higher_term() {
    let mut world = world(config());
    let kept = world.append_as(7, 0, 0, 1);
    world.settle_all();
    let lost = world.append_as(7, 0, 1, 1);
    world.work();
    let duplicate = world.append_as(7, 0, 1, 1);
    let buffered = world.append_as(7, 0, 2, 1);
    let length = world.shard.tail().durable;
    world.lose();
    assert_eq!(offsets(kept), (0, 0));
    for reply in [lost, duplicate, buffered] {
        assert!(matches!(error(reply), AppendError::Lost(why) if &*why == "disk broken"));
    }
    let segment = *world.segments.keys().next().expect("one");
    assert_eq!(world.sealed[&segment], length);
    // Until metadata knows the length, a crash may bring back what was lost: readers are not told of an end.
    let tail = world.shard.tail();
    assert!(!tail.sealed && tail.durable == length && tail.next_offset == Offset(1));
    assert_eq!(world.shard.completed().count(), 0);
    world.settle_all();
    let tail = world.shard.tail();
    assert!(tail.sealed && tail.durable == length && tail.next_offset == Offset(1));
    assert_eq!(world.shard.completed().count(), 1);

    let retried = world.append_as(7, 0, 1, 1);
    world.settle_all();
    assert_eq!(offsets(retried), (1, 1));
    let tail = world.shard.tail();
    assert_eq!((tail.segment, tail.term, tail.base_offset), (SegmentNumber(1), Term(2), Offset(1)));
    assert_eq!(tail.previous, Some((SegmentNumber(0), Term(1), length)));
}

#[test]
fn a_loss_with_a_roll_in_flight_leaves_no_gap() {
    let mut world = world(StreamConfig { segment_bytes: 4_096, ..config() });
    for _ in 0..4 {
        drop(world.append(15));
        world.work();
    }
    assert_eq!(world.segments.len(), 2);
    world.settle(10);
    world.lose();
    assert_eq!(world.deleted.len(), 1, "nobody saw the second segment");
    assert_eq!(world.shard.tail().next_offset, Offset(15));
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (15, 15));
    let names: Vec<_> = world.segments.keys().map(|id| (id.number.0, id.term.0)).collect();
    assert_eq!(names, [(0, 1), (1, 2)]);
}

#[test]
fn a_loss_of_a_shards_first_entry_begins_it_anew() {
    let mut world = world(config());
    drop(world.append(1));
    world.work();
    world.lose();
    assert!(world.segments.is_empty());
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (0, 0));
    assert_eq!(world.shard.tail().term, Term(2));
}

#[test]
fn a_full_disk_refuses_appends_and_gives_their_offsets_back() {
    let mut world = world(config());
    drop(world.append_as(7, 0, 0, 1));
    world.settle_all();
    world.refuse = Some(WriteError::NoSpace("3 bytes free".into()));
    let refused = world.append_as(7, 0, 1, 1);
    world.work();
    assert!(matches!(error(refused), AppendError::NoSpace(why) if &*why == "3 bytes free"));
    world.refuse = None;
    let reply = world.append_as(7, 0, 1, 1);
    world.settle_all();
    assert_eq!(offsets(reply), (1, 1));
    assert_eq!(world.segments.len(), 1, "the same segment");
}

#[test]
fn a_busy_store_is_waited_for_and_then_given_up() {
    let mut world = world(config());
    drop(world.append(1));
    world.settle_all();
    world.refuse = Some(WriteError::Busy("slow disk"));
    let mut waits = world.append(1);
    world.work();
    assert!(is_waiting(&mut waits) && world.shard.is_blocked());
    let behind = world.append(1);
    world.refuse = None;
    world.settle_all();
    assert_eq!((offsets(waits), offsets(behind)), ((1, 1), (2, 2)));

    world.refuse = Some(WriteError::Busy("slow disk"));
    let given_up = world.append(1);
    world.work();
    world.now_ms += STALL_MAX.as_millis() as u64 + 1;
    world.work();
    assert_eq!(error(given_up), AppendError::Overloaded("slow disk"));
    assert!(!world.shard.is_blocked());
}

#[test]
fn a_clean_stop_completes_and_records_the_open_segment() {
    let mut world = world(StreamConfig { flush: FlushPolicy::EveryMs(1_000), ..config() });
    let reply = world.append(2);
    world.close();
    assert_eq!(offsets(reply), (0, 1));
    assert!(world.closed && world.recorded.len() == 1 && world.sealed.len() == 1);
    assert_eq!(error(world.append(1)), AppendError::Closed);
    let recovered = world.restart(config());
    assert!(recovered.unsaved.is_empty() && recovered.seals.is_empty());
}

#[test]
fn after_a_kill_the_open_segment_is_sealed_and_never_appended_to() {
    let mut world = world(config());
    drop(world.append(2));
    world.settle_all();
    let length = world.shard.tail().durable;
    let recovered = world.restart(config());
    assert_eq!(recovered.unsaved.len(), 1);
    let tail = world.shard.tail();
    assert_eq!((tail.sealed, tail.durable, tail.next_offset), (true, length, Offset(2)));
    world.work();
    assert_eq!(world.recorded[&SegmentNumber(0)].length, length, "recorded without waiting for an append");
    let reply = world.append(1);
    world.settle_all();
    assert_eq!(offsets(reply), (2, 2));
    let tail = world.shard.tail();
    assert_eq!((tail.segment, tail.term), (SegmentNumber(1), Term(2)));
    assert_eq!(tail.previous, Some((SegmentNumber(0), Term(1), length)));
}

#[test]
fn recovery_deletes_what_metadata_gave_up_and_refuses_what_is_missing() {
    let id = |number: u64, term: u32| SegmentId {
        shard: shard_id(),
        number: SegmentNumber(number),
        term: Term(term),
    };
    let content = |base: u64, next: u64| FoundContent {
        base_offset: Offset(base),
        next_offset: Offset(next),
        first_transaction_id: TransactionId(0),
        last_transaction_id: TransactionId(0),
    };
    let found = |id, length, sealed, content| {
        let length = Position(length);
        SegmentsFound { id, length, sealed, content, damaged: None }
    };
    let record = ShardRecord {
        term: Term(3),
        log_start: Offset(10),
        next_segment: SegmentNumber(2),
        next_offset: Offset(20),
        ..ShardRecord::default()
    };
    let kept = SegmentRecord {
        number: SegmentNumber(1),
        term: Term(1),
        base_offset: Offset(10),
        next_offset: Offset(20),
        length: Position(100),
        first_transaction_id: TransactionId(0),
        last_transaction_id: TransactionId(0),
        created_ms: 0,
        sealed_ms: 0,
    };
    let stored = [
        found(id(0, 1), 50, true, Some(content(0, 10))),
        found(id(1, 1), 130, false, Some(content(10, 25))),
        found(id(2, 2), 0, false, None),
        found(id(2, 3), 70, false, Some(content(20, 30))),
        found(id(3, 3), 0, false, None),
    ];
    let recovered = recover(shard_id(), record, 4, vec![kept], &stored, 9).expect("consistent");
    assert_eq!(recovered.deletes, [id(0, 1), id(2, 2), id(3, 3)]);
    assert_eq!(recovered.seals, [(id(1, 1), Position(100)), (id(2, 3), Position(70))]);
    let numbers: Vec<_> = recovered.completed.iter().map(|segment| segment.number.0).collect();
    assert_eq!((numbers, recovered.unsaved.len()), (vec![1, 2], 1));

    let missing = recover(shard_id(), record, 4, vec![kept], &stored[2..], 9).unwrap_err();
    assert!(missing.contains("missing"), "{missing}");
    let short = [found(id(1, 1), 99, true, Some(content(10, 19)))];
    assert!(recover(shard_id(), record, 4, vec![kept], &short, 9).unwrap_err().contains("99 of 100"));
    let gap = [stored[1].clone(), found(id(2, 3), 70, false, Some(content(21, 30)))];
    assert!(recover(shard_id(), record, 4, vec![kept], &gap, 9).unwrap_err().contains("goes on"));
    let short = SegmentsFound { damaged: Some("synced up to 90".to_owned()), ..stored[3].clone() };
    let short = recover(shard_id(), record, 4, vec![kept], &[stored[1].clone(), short], 9).unwrap_err();
    assert!(short.contains("is not whole: synced up to 90"), "{short}");
}

#[test]
fn interval_durability_acknowledges_when_written_and_a_loss_takes_back_what_was_not_synced() {
    let mut world = world(StreamConfig { durability: StreamDurability::Interval, ..config() });
    let synced = world.append_as(7, 0, 0, 1);
    world.settle_all();
    world.sync(world.journal);
    let unsynced = world.append_as(7, 0, 1, 1);
    world.settle_all();
    assert_eq!((offsets(synced), offsets(unsynced)), ((0, 0), (1, 1)));
    assert_eq!(world.shard.tail().next_offset, Offset(2));
    world.lose();
    assert_eq!(world.shard.tail().next_offset, Offset(1));
    let other = world.append_as(7, 0, 1, 1);
    world.settle_all();
    assert_eq!(offsets(other), (1, 1), "not taken for a duplicate");
    assert_eq!((world.shard.tail().segment, world.shard.tail().term), (SegmentNumber(1), Term(2)));
}

#[test]
fn what_is_seen_synced_before_it_is_seen_written_does_not_hold_up_the_next_segment() {
    let interval = StreamConfig { segment_bytes: 4_096, durability: StreamDurability::Interval, ..config() };
    let mut world = world(interval);
    let first = world.append(30);
    world.work();
    let waits = world.append(30);
    world.work();
    assert_eq!(world.shard.awaited_sync(), Some(JournalPosition(world.journal)));
    world.sync(world.journal);
    assert_eq!(offsets(first), (0, 29), "what is synced is written");
    assert_eq!(world.shard.awaited_sync(), None);
    world.settle_all();
    assert_eq!(offsets(waits), (30, 59));
}

#[test]
fn a_segment_follows_at_once_on_one_that_was_synced_before_it_was_full() {
    let interval = StreamConfig { segment_bytes: 4_096, durability: StreamDurability::Interval, ..config() };
    let mut world = world(interval);
    drop(world.append(30));
    world.settle_all();
    world.sync(world.journal);
    let next = world.append(30);
    world.settle_all();
    assert_eq!(offsets(next), (30, 59));
    world.sync(world.journal);
    let completed: Vec<_> = world.shard.completed().map(|segment| segment.next_offset).collect();
    assert_eq!(completed, [Offset(30)]);
}

#[test]
fn what_waits_for_the_sync_of_a_segment_or_for_the_store_has_no_time_that_is_over() {
    let flush = FlushPolicy::EveryMs(20);
    let interval =
        StreamConfig { flush, segment_bytes: 4_096, durability: StreamDurability::Interval, ..config() };
    let mut rolling = world(interval);
    drop(rolling.append(30));
    rolling.now_ms += 20;
    rolling.settle_all();
    let mut waits = rolling.append(30);
    rolling.now_ms += 20;
    rolling.work();
    assert!(is_waiting(&mut waits), "the first segment is full and not synced");
    assert_eq!(rolling.shard.deadline(), None);
    rolling.sync(rolling.journal);
    rolling.settle_all();
    assert_eq!(offsets(waits), (30, 59));

    let mut busy = world(StreamConfig { flush, ..config() });
    drop(busy.append(1));
    busy.now_ms += 20;
    busy.settle_all();
    busy.refuse = Some(WriteError::Busy("slow disk"));
    drop(busy.append(1));
    busy.now_ms += 20;
    busy.work();
    drop(busy.append(1));
    busy.now_ms += 20;
    assert!(busy.shard.is_blocked());
    assert_eq!(busy.shard.deadline(), None);
}

#[test]
fn the_producers_are_recorded_with_each_completed_segment() {
    let mut world = world(StreamConfig { segment_ms: 10, ..config() });
    drop(world.append_as(7, 0, 0, 4));
    world.settle_all();
    world.tick(10);
    let record = world.producers.clone().expect("recorded");
    assert_eq!((record.upto, record.producers.len()), (Offset(4), 1));
    assert_eq!(record.producers[0].batches[0].last, 3);
}

#[test]
fn a_deleted_shard_fails_everything_and_frees_its_segments() {
    let mut world = world(StreamConfig { segment_bytes: 4_096, ..config() });
    for _ in 0..3 {
        drop(world.append(15));
        world.settle_all();
    }
    let in_flight = world.append(1);
    world.work();
    let mut out = Vec::new();
    world.shard.delete(&mut out);
    world.perform(out);
    assert_eq!(error(in_flight), AppendError::NoStream);
    assert!(world.segments.is_empty());
    assert_eq!(error(world.append(1)), AppendError::NoStream);
}

proptest::proptest! {
    /// Whatever is appended, synced, lost and restarted in whatever order: what was acknowledged stays, dense and
    /// in order, and an idempotent producer that retries is there exactly once.
    #[test]
    fn acknowledged_records_survive_any_order_of_events(
        steps in proptest::collection::vec((0u8..9, 1usize..20), 1..120),
    ) {
        let config = StreamConfig { segment_bytes: 4_096, ..config() };
        let mut world = world(config.clone());
        let mut sequence = 0;
        // What the producer has not been answered yet: first sequence, count, reply.
        let mut waiting: VecDeque<(i32, usize, Reply)> = VecDeque::new();
        let mut acked: Vec<(u64, i32, usize)> = Vec::new();
        for (kind, size) in steps {
            match kind {
                0..=3 => {
                    if waiting.len() < 5 {
                        let reply = world.append_as(7, 0, sequence, size);
                        waiting.push_back((sequence, size, reply));
                        sequence += size as i32;
                    }
                }
                4 => world.work(),
                5 | 6 => {
                    world.work();
                    let upto = world.journal.saturating_sub(10 * (size as u64 % 3));
                    world.settle(upto);
                }
                7 => world.lose(),
                _ => world.tick(size as u64),
            }
            // The producer sends again, in order, what failed.
            while let Some((first, count, mut reply)) = waiting.pop_front() {
                match reply.try_recv() {
                    Ok(Ok(appended)) => acked.push((appended.base_offset.0, first, count)),
                    Ok(Err(_)) => {
                        let mut again = VecDeque::from([(first, count)]);
                        again.extend(waiting.drain(..).map(|(first, count, _)| (first, count)));
                        for (first, count) in again {
                            let reply = world.append_as(7, 0, first, count);
                            waiting.push_back((first, count, reply));
                        }
                        break;
                    }
                    Err(_) => {
                        waiting.push_front((first, count, reply));
                        break;
                    }
                }
            }
        }
        world.settle_all();
        let mut expected = 0;
        for (base, first, count) in acked {
            proptest::prop_assert_eq!((base, first as u64), (expected, expected));
            expected += count as u64;
        }
        proptest::prop_assert!(world.shard.tail().next_offset.0 >= expected);
    }
}
