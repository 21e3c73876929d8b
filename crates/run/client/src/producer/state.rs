//! What a producer sends next, as a state machine without I/O.
//!
//! What holds:
//! - The batches of a shard are sent in the order in which they were begun. What has to be sent again goes
//!   before everything else, in order, and not before nothing of the shard is in flight.
//! - A batch is only sent while the oldest unacknowledged one of its shard is among the last
//!   [`BATCHES_IN_FLIGHT_MAX`] with it: the node remembers that many, and takes an older one that is sent again
//!   for a gap in the sequence. Counting those in flight is not enough: answers may overtake one another.
//! - Until a batch of a shard is acknowledged, one is sent at a time: the shard does not know the producer yet, and
//!   takes any sequence from it, so of two CALLs the later one could be first.
//! - A batch that is begun while others of its shard are in flight grows until one is answered. Where answers take
//!   long, as with a stream that is flushed now and then, it does not wait for one: a CALL in each
//!   [`BATCHES_IN_FLIGHT_MAX`]th of the time that answers take carries such batches, while few CALLs are under way.
//! - CALLs beyond [`APPENDS_UNPACED`] go one after the other, spread over the time that answers take: a shard that has
//!   nothing in flight does not wait for the answers of others, and where answers come soon CALLs gather more.
//! - Every batch is acknowledged or failed exactly once, whatever way it leaves: [`Promise`].
//! - A shard is in the schedule exactly while it has something that may be sent at some time: whatever changes
//!   that ends in [`ProducerCore::reschedule`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_format::Offset;
use tailwater_format::batch::{BATCH_HEADER_BYTES, BatchBuilder, Codec, Producer};
use tailwater_format::call::CallErrorCode;
use tailwater_format::limits::APPEND_ITEMS_MAX;

use super::ack::{Ack, Promise};
use super::{Partitioner, ProducerSettings, Trouble, shard_of_key};
use crate::Error;
use crate::limits::{
    APPENDS_IN_FLIGHT_MAX, APPENDS_UNPACED, BATCH_BYTES_TARGET_MAX, BATCHES_IN_FLIGHT_MAX, CALL_BYTES_TARGET,
    RECORD_BYTES_MAX, RETRY_PAUSE,
};

/// Memory of a record beside its bytes, roughly: counted, so that empty records are bounded too.
const RECORD_OVERHEAD: usize = 32;

/// The least time between a CALL and the next one that is not due: acknowledgements of a node on this host that syncs
/// to a quick disk come before, so nothing changes for its producers.
const EARLY_AFTER_MIN: Duration = Duration::from_millis(2);

/// The least time between CALLs beyond [`APPENDS_UNPACED`].
const PACED_AFTER_MIN: Duration = Duration::from_millis(4);

/// The longest time to an acknowledgement of late gets shorter by this part with each acknowledgement.
const ACK_TIME_KEPT: u32 = 32;

/// Of the buffer's bound, the part that may be kept in builders of sealed batches for the next ones: enough that a
/// producer of a thousand shards, which has an open batch for each, does not grow each of them from nothing.
const BUILDERS_KEPT_PART: usize = 4;

/// A batch that will not change any more.
pub(super) struct Sealed {
    pub(super) shard: u32,
    pub(super) bytes: Bytes,
    promise: Promise,
    /// Its place among all batches, in the order in which they were begun.
    number: u64,
    /// Its place among the batches of its shard.
    order: u64,
    count: u32,
    /// What it counts against the buffer's bound.
    buffered: usize,
    since: Instant,
    /// When it was last sent; when it was begun, if it was not.
    sent_at: Instant,
}

/// Those of one CALL, and their bytes.
#[derive(Default)]
struct ReadyBatches {
    batches: Vec<Sealed>,
    bytes: usize,
}

/// What is to be done with a shard's next batch.
enum BatchPlan {
    /// It is sent then.
    SendAt(Instant),
    /// It was begun then, and grows until an answer is there, though it may be sent.
    GrowsSince(Instant),
}

/// What became of a batch.
pub(super) enum Outcome {
    Acked(Offset),
    /// It may work later, or may have been done.
    Retry(Error),
    Failed(Error),
}

impl Outcome {
    pub(super) fn from_error(error: Error) -> Self {
        if error.is_retriable() { Outcome::Retry(error) } else { Outcome::Failed(error) }
    }
}

struct Open {
    builder: BatchBuilder,
    promise: Promise,
    number: u64,
    buffered: usize,
    since: Instant,
}

#[derive(Default)]
struct Shard {
    open: Option<Open>,
    /// Sealed and not in flight, in order.
    queue: VecDeque<Sealed>,
    in_flight: usize,
    /// Came back unacknowledged.
    back: Vec<Sealed>,
    /// The places of those that were sent and are not acknowledged: in flight, or back.
    sent: BTreeSet<u64>,
    /// The node knows the producer: one was acknowledged.
    is_known: bool,
    next_order: u64,
    next_sequence: i32,
    retry_at: Instant,
    /// Where it is in the schedule.
    scheduled: Option<Instant>,
}

/// All of a producer but its I/O.
pub(super) struct ProducerCore {
    config: ProducerSettings,
    /// Bytes of a record's key and value, at most.
    record_bytes_max: usize,
    /// Producer id and epoch.
    identity: Option<(i64, i16)>,
    shards: Vec<Shard>,
    /// Shards that have something to send, by the time at which they may.
    schedule: BTreeSet<(Instant, u32)>,
    /// Shards with a batch that grows until an answer is there, though it may be sent.
    growing: BTreeSet<u32>,
    /// When those are sent, if no answer has come.
    early_at: Instant,
    /// When the next CALL may go, if many are under way.
    next_paced_at: Instant,
    /// From when a batch is sent to its acknowledgement: the longest of late.
    ack_time: Duration,
    /// For the next batches: their memory has been there before. The last one to be used is the first to be again.
    builders: Vec<BatchBuilder>,
    /// Memory that they keep, in bytes.
    builders_bytes: usize,
    /// Bytes that wait for acknowledgement.
    buffered: usize,
    /// Numbers of the batches that are not acknowledged yet, open ones included.
    outstanding: BTreeSet<u64>,
    next_number: u64,
    /// Batches below this number are sealed without waiting for more.
    flush_upto: u64,
    round_robin: u32,
    /// Why the last batch of a shard that was answered has to be sent again, and since when that is so.
    troubles: BTreeMap<u32, (Instant, Error)>,
    /// Why nothing more is taken.
    closed: Option<String>,
}

impl ProducerCore {
    /// The stream takes appends of so many bytes.
    pub(super) fn new(
        shards: u32,
        append_bytes_max: usize,
        config: ProducerSettings,
        identity: Option<(i64, i16)>,
    ) -> Self {
        assert!(shards > 0, "a stream has at least one shard");
        let batch_bytes = config.batch_bytes.min(BATCH_BYTES_TARGET_MAX).min(append_bytes_max);
        // A compressed batch may be shorter than a record in it: the node says whether it is.
        let record_bytes_max = match config.codec {
            Codec::None => RECORD_BYTES_MAX.min(append_bytes_max.saturating_sub(BATCH_HEADER_BYTES)),
            _ => RECORD_BYTES_MAX,
        };
        Self {
            config: ProducerSettings { batch_bytes, ..config },
            record_bytes_max,
            identity,
            shards: (0..shards).map(|_| Shard::default()).collect(),
            schedule: BTreeSet::new(),
            growing: BTreeSet::new(),
            early_at: Instant::default(),
            next_paced_at: Instant::default(),
            ack_time: Duration::ZERO,
            builders: Vec::new(),
            builders_bytes: 0,
            buffered: 0,
            outstanding: BTreeSet::new(),
            next_number: 0,
            flush_upto: 0,
            round_robin: 0,
            troubles: BTreeMap::new(),
            closed: None,
        }
    }

    /// Of the shards whose batches have to be sent again, the one for which that is so for longest.
    pub(super) fn trouble(&self, now: Instant) -> Option<Trouble> {
        let (since, error) = self.troubles.values().min_by_key(|(since, _)| *since)?;
        Some(Trouble { error: error.clone(), lasts: now.since(*since) })
    }

    /// Whether [`ProducerCore::put`] answers something else than that the buffer is full.
    pub(super) fn has_room(&self) -> bool {
        self.buffered < self.config.buffer_bytes_max || self.closed.is_some()
    }

    /// Seals what is open as soon as it may be sent. Answers what to ask [`ProducerCore::is_flushed`] with.
    pub(super) fn flush(&mut self) -> u64 {
        self.flush_upto = self.next_number;
        for shard in 0..self.shards.len() as u32 {
            self.reschedule(shard);
        }
        self.flush_upto
    }

    /// Whether every batch below this number was acknowledged or failed.
    pub(super) fn is_flushed(&self, upto: u64) -> bool {
        self.outstanding.first().is_none_or(|oldest| *oldest >= upto)
    }

    pub(super) fn choose_shard(&mut self, key: Option<&[u8]>, random: impl FnOnce() -> u64) -> u32 {
        let shards = self.shards.len() as u32;
        match (self.config.partitioner, key) {
            (Partitioner::Key, Some(key)) => shard_of_key(key, shards).0,
            (Partitioner::Random, _) => (random() % u64::from(shards)) as u32,
            (Partitioner::RoundRobin | Partitioner::Key, _) => {
                self.round_robin = (self.round_robin + 1) % shards;
                self.round_robin
            }
        }
    }

    /// Takes a record in; whether the sender has to look again sooner than it was going to. The time is asked for
    /// when the record begins a batch: reading the clock takes as long as much of the rest.
    pub(super) fn put(
        &mut self,
        now: impl FnOnce() -> Instant,
        timestamp_ms: i64,
        shard: u32,
        key: Option<&[u8]>,
        value: &[u8],
    ) -> Result<(Ack, bool), Error> {
        if let Some(why) = &self.closed {
            return Err(Error::Closed(why.clone()));
        }
        let bytes = key.map_or(0, <[u8]>::len) + value.len();
        if bytes > self.record_bytes_max {
            return Err(Error::RecordTooLong { bytes, bytes_max: self.record_bytes_max });
        }
        if !self.has_room() {
            let bytes_max = self.config.buffer_bytes_max;
            return Err(Error::BufferFull { bytes: self.buffered, bytes_max });
        }
        let buffered = bytes + RECORD_OVERHEAD;
        self.buffered += buffered;
        let open = &self.shards[shard as usize].open;
        if open.as_ref().is_some_and(|open| open.builder.len() + buffered > self.config.batch_bytes) {
            self.seal(shard);
        }
        let state = &mut self.shards[shard as usize];
        let open = state.open.get_or_insert_with(|| {
            let number = self.next_number;
            self.next_number += 1;
            self.outstanding.insert(number);
            let builder = self.builders.pop().unwrap_or_default();
            self.builders_bytes -= builder.memory();
            Open { builder, promise: Promise::new(shard), number, buffered: 0, since: now() }
        });
        let ack = open.promise.ack(open.builder.record_count());
        open.builder
            .append(key, Some(value), &[], timestamp_ms)
            .expect("a batch is sealed long before it is as long as a batch may be");
        open.buffered += buffered;
        Ok((ack, self.reschedule(shard)))
    }

    /// The batches of the next append CALL; empty if none may be sent. So many CALLs are under way.
    pub(super) fn take_ready(&mut self, now: Instant, calls: usize) -> Vec<Sealed> {
        let mut ready = ReadyBatches::default();
        if self.may_call_at(calls).is_none_or(|at| at > now) {
            return ready.batches;
        }
        while let Some(&(_, number)) = self.schedule.first().filter(|(at, _)| *at <= now) {
            if !self.take_next(number, now, &mut ready) {
                break;
            }
        }
        while self.may_be_early(calls)
            && now >= self.early_at
            && let Some(number) = self.growing.first().copied()
        {
            if !self.take_next(number, now, &mut ready) {
                break;
            }
        }
        if !ready.batches.is_empty() {
            let share = self.ack_time / BATCHES_IN_FLIGHT_MAX as u32;
            self.early_at = now + share.max(self.config.linger).max(EARLY_AFTER_MIN);
            let share = self.ack_time / (APPENDS_IN_FLIGHT_MAX - APPENDS_UNPACED) as u32;
            self.next_paced_at = now + share.max(PACED_AFTER_MIN);
        }
        ready.batches
    }

    /// Adds a shard's next batch to a CALL; `false` if there is no room.
    fn take_next(&mut self, number: u32, now: Instant, ready: &mut ReadyBatches) -> bool {
        self.take_back(number);
        if self.shards[number as usize].queue.is_empty() {
            self.seal(number);
        }
        let shard = &mut self.shards[number as usize];
        let len = shard.queue.front().expect("what is due has something to send").bytes.len();
        let is_full = ready.bytes > 0 && ready.bytes + len > CALL_BYTES_TARGET;
        if ready.batches.len() == APPEND_ITEMS_MAX || is_full {
            self.reschedule(number);
            return false;
        }
        ready.bytes += len;
        let mut batch = shard.queue.pop_front().expect("just seen");
        batch.sent_at = now;
        shard.in_flight += 1;
        shard.sent.insert(batch.order);
        ready.batches.push(batch);
        self.reschedule(number);
        true
    }

    /// When to look for a CALL again, with so many under way, if nothing happens until then. It may turn out that there
    /// is none: a batch that is begun until then goes without [`ProducerCore::put`] saying so.
    pub(super) fn next_deadline(&self, now: Instant, calls: usize) -> Option<Instant> {
        let may_call_at = self.may_call_at(calls)?;
        let early = Some(self.early_at).filter(|at| self.may_be_early(calls) && *at > now);
        let scheduled = self.schedule.first().map(|(at, _)| (*at).max(may_call_at));
        scheduled.into_iter().chain(early).min()
    }

    /// From when on there may be one more CALL, if any may before another one is answered.
    fn may_call_at(&self, calls: usize) -> Option<Instant> {
        match calls {
            0..APPENDS_UNPACED => Some(Instant::default()),
            APPENDS_UNPACED..APPENDS_IN_FLIGHT_MAX => Some(self.next_paced_at),
            _ => None,
        }
    }

    /// Whether a CALL may go that is not due. Where many are under way there is so much to send that batches had
    /// better grow.
    fn may_be_early(&self, calls: usize) -> bool {
        (1..BATCHES_IN_FLIGHT_MAX).contains(&calls)
    }

    /// Takes in what became of batches.
    pub(super) fn answered(&mut self, now: Instant, outcomes: Vec<(Sealed, Outcome)>) {
        for (batch, outcome) in outcomes {
            let number = batch.shard;
            let shard = &mut self.shards[number as usize];
            shard.in_flight -= 1;
            // Behind a batch that has to be sent again, the node sees a hole in the sequence.
            let is_behind = shard.in_flight > 0 || !shard.back.is_empty();
            match outcome {
                Outcome::Acked(base_offset) => {
                    shard.is_known = true;
                    // Those that are answered together were sent one after the other: the first of them tells.
                    let took = now.since(batch.sent_at);
                    self.ack_time = took.max(self.ack_time - self.ack_time / ACK_TIME_KEPT);
                    self.troubles.remove(&number);
                    self.finish(batch, |count| Ok((base_offset, count)));
                }
                Outcome::Failed(error) if is_hole(&error) && is_behind && self.closed.is_none() => {
                    shard.back.push(batch);
                }
                Outcome::Retry(error)
                    if now.since(batch.since) < self.config.deadline && self.closed.is_none() =>
                {
                    tracing::debug!(shard = number, %error, "sending a batch again");
                    shard.retry_at = now + RETRY_PAUSE;
                    shard.back.push(batch);
                    let since = self.troubles.get(&number).map_or(now, |(since, _)| *since);
                    self.troubles.insert(number, (since, error));
                }
                Outcome::Retry(error) | Outcome::Failed(error) => {
                    self.troubles.remove(&number);
                    if self.identity.is_some() {
                        // The shard's sequence has a hole: nothing later can be appended.
                        self.closed.get_or_insert_with(|| error.to_string());
                    }
                    self.finish(batch, |_| Err(error));
                }
            }
            self.reschedule(number);
        }
        if let Some(why) = self.closed.clone() {
            self.fail_rest(&why);
        }
    }

    /// Puts what came back in front of what waits, in order.
    fn take_back(&mut self, number: u32) {
        let shard = &mut self.shards[number as usize];
        shard.back.sort_by_key(|batch| batch.number);
        for batch in shard.back.drain(..).rev() {
            shard.queue.push_front(batch);
        }
    }

    /// What is to be done with the shard's next batch, if nothing happens until then.
    fn next_batch(&self, number: u32) -> Option<BatchPlan> {
        let shard = &self.shards[number as usize];
        // Nobody but the sender keeps the order where there are no sequences, or the node does not know them yet.
        let keeps_order = self.identity.is_some() && shard.is_known;
        let window = if keeps_order { BATCHES_IN_FLIGHT_MAX as u64 } else { 1 };
        let next = shard.queue.front().map_or(shard.next_order, |first| first.order);
        let since = if let Some(back) = shard.back.first() {
            (shard.in_flight == 0).then_some(back.since)?
        } else if shard.sent.first().is_some_and(|oldest| next >= oldest + window) {
            return None;
        } else if let Some(first) = shard.queue.front() {
            first.since
        } else {
            let open = shard.open.as_ref()?;
            if open.number < self.flush_upto || open.builder.len() >= self.config.batch_bytes / 4 {
                open.since
            } else if shard.in_flight == 0 {
                open.since + self.config.linger
            } else {
                return Some(BatchPlan::GrowsSince(open.since));
            }
        };
        Some(BatchPlan::SendAt(since.max(shard.retry_at)))
    }

    /// Puts the shard where it belongs in the schedule; whether the sender has to look sooner than it was going to.
    fn reschedule(&mut self, number: u32) -> bool {
        let (wanted, grows_since) = match self.next_batch(number) {
            Some(BatchPlan::SendAt(at)) => (Some(at), None),
            Some(BatchPlan::GrowsSince(since)) => (None, Some(since)),
            None => (None, None),
        };
        let is_overdue = match grows_since {
            Some(since) => self.growing.insert(number) && since >= self.early_at,
            None => {
                self.growing.remove(&number);
                false
            }
        };
        let shard = &mut self.shards[number as usize];
        let before = std::mem::replace(&mut shard.scheduled, wanted);
        if before == wanted {
            return is_overdue;
        }
        if let Some(at) = before {
            self.schedule.remove(&(at, number));
        }
        if let Some(at) = wanted {
            self.schedule.insert((at, number));
        }
        is_overdue || wanted.is_some_and(|at| before.is_none_or(|before| at < before))
    }

    fn seal(&mut self, number: u32) {
        let shard = &mut self.shards[number as usize];
        let Some(mut open) = shard.open.take() else { return };
        let count = open.builder.record_count();
        if let Some((id, epoch)) = self.identity {
            open.builder.set_producer(Producer { id, epoch, base_sequence: shard.next_sequence });
            // Kafka's sequence numbers go from the largest 32-bit number to 0.
            let next = i64::from(shard.next_sequence) + i64::from(count);
            shard.next_sequence = (next % (i64::from(i32::MAX) + 1)) as i32;
        }
        let order = shard.next_order;
        shard.next_order += 1;
        let bytes = open.builder.finish(self.config.codec);
        let kept = self.builders_bytes + open.builder.memory();
        if kept <= self.config.buffer_bytes_max / BUILDERS_KEPT_PART {
            self.builders_bytes = kept;
            self.builders.push(open.builder);
        }
        shard.queue.push_back(Sealed {
            shard: number,
            order,
            bytes,
            promise: open.promise,
            number: open.number,
            count,
            buffered: open.buffered,
            since: open.since,
            sent_at: open.since,
        });
    }

    fn finish(&mut self, batch: Sealed, result: impl FnOnce(u32) -> Result<(Offset, u32), Error>) {
        self.shards[batch.shard as usize].sent.remove(&batch.order);
        self.forget(batch.number, batch.buffered);
        batch.promise.keep(result(batch.count));
    }

    fn forget(&mut self, number: u64, buffered: usize) {
        self.buffered -= buffered;
        self.outstanding.remove(&number);
    }

    /// Fails everything that is not in flight.
    fn fail_rest(&mut self, why: &str) {
        self.troubles.clear();
        for number in 0..self.shards.len() as u32 {
            let shard = &mut self.shards[number as usize];
            shard.sent.clear();
            let sealed = shard.back.drain(..).chain(shard.queue.drain(..));
            let open = shard.open.take().map(|open| (open.number, open.buffered, open.promise));
            let rest: Vec<_> =
                sealed.map(|batch| (batch.number, batch.buffered, batch.promise)).chain(open).collect();
            for (batch, buffered, promise) in rest {
                self.forget(batch, buffered);
                promise.keep(Err(Error::Closed(why.to_owned())));
            }
            self.reschedule(number);
        }
    }
}

fn is_hole(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.code == CallErrorCode::OutOfOrderSequence)
}

#[cfg(test)]
mod tests;
