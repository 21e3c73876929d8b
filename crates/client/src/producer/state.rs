//! What a producer sends next, as a state machine without I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_env::Instant;
use tailwater_format::Offset;
use tailwater_format::batch::{BatchBuilder, Producer};
use tailwater_format::call::ErrorCode;

use super::{Ack, BatchAck, Partitioner, ProducerConfig, shard_of_key};
use crate::Error;
use crate::limits::{APPEND_BYTES_MAX, BATCHES_IN_FLIGHT_MAX, RETRY_PAUSE};

/// Memory of a record beside its bytes, roughly: counted, so that empty records are bounded too.
const RECORD_OVERHEAD: usize = 32;

/// A batch that will not change any more.
pub(super) struct Sealed {
    pub(super) bytes: Bytes,
    pub(super) ack: Arc<BatchAck>,
    count: u32,
    /// What it counts against the buffer's bound.
    buffered: usize,
    /// Its place among the batches of its shard.
    order: u64,
    since: Instant,
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
    ack: Arc<BatchAck>,
    count: u32,
    buffered: usize,
    since: Instant,
}

#[derive(Default)]
struct Shard {
    open: Option<Open>,
    /// Sealed and not in flight, in order.
    queue: VecDeque<Sealed>,
    in_flight: usize,
    /// Came back unacknowledged; sent again, before anything else, once nothing of the shard is in flight.
    back: Vec<Sealed>,
    next_sequence: i32,
    next_order: u64,
    retry_at: Instant,
    /// In the list of shards that may have something to send.
    listed: bool,
}

/// All of a producer but its I/O.
pub(super) struct State {
    config: ProducerConfig,
    /// Producer id and epoch.
    identity: Option<(i64, i16)>,
    shards: Vec<Shard>,
    /// Shards that may have something to send.
    list: VecDeque<u32>,
    /// Bytes that wait for acknowledgement.
    buffered: usize,
    /// Batches not acknowledged yet, open ones included.
    outstanding: usize,
    round_robin: u32,
    flushing: bool,
    /// Why nothing more is taken.
    closed: Option<String>,
}

impl State {
    pub(super) fn new(shards: u32, config: ProducerConfig, identity: Option<(i64, i16)>) -> Self {
        Self {
            config,
            identity,
            shards: (0..shards).map(|_| Shard::default()).collect(),
            list: VecDeque::new(),
            buffered: 0,
            outstanding: 0,
            round_robin: 0,
            flushing: false,
            closed: None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.buffered < self.config.buffer_bytes_max || self.closed.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// What is open is sealed without waiting for more.
    pub(super) fn flush(&mut self) {
        self.flushing = self.outstanding > 0;
        for shard in 0..self.shards.len() as u32 {
            if self.shards[shard as usize].open.is_some() {
                self.list(shard);
            }
        }
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

    /// Takes a record in; whether the sender should look for something to send.
    pub(super) fn put(
        &mut self,
        now: Instant,
        timestamp_ms: i64,
        shard: u32,
        key: Option<&[u8]>,
        value: &[u8],
    ) -> Result<(Ack, bool), Error> {
        if let Some(why) = &self.closed {
            return Err(Error::Closed(why.clone()));
        }
        let bytes = key.map_or(0, <[u8]>::len) + value.len();
        let bytes_max = APPEND_BYTES_MAX / 2;
        if bytes > bytes_max {
            return Err(Error::RecordTooLong { bytes, bytes_max });
        }
        if !self.has_room() {
            let bytes_max = self.config.buffer_bytes_max;
            return Err(Error::BufferFull { bytes: self.buffered, bytes_max });
        }
        let buffered = bytes + RECORD_OVERHEAD;
        self.buffered += buffered;
        let full = {
            let open = &self.shards[shard as usize].open;
            open.as_ref().is_some_and(|open| open.builder.len() + buffered > self.config.batch_bytes)
        };
        if full {
            self.seal(shard);
        }
        let state = &mut self.shards[shard as usize];
        let open = state.open.get_or_insert_with(|| {
            self.outstanding += 1;
            let builder = BatchBuilder::new();
            Open { builder, ack: BatchAck::new(shard), count: 0, buffered: 0, since: now }
        });
        open.builder
            .append(key, Some(value), &[], timestamp_ms)
            .expect("a batch is sealed long before it is as long as a batch may be");
        open.buffered += buffered;
        let ack = Ack { batch: Arc::clone(&open.ack), index: open.count, waiting: None };
        open.count += 1;
        // While a batch of the shard is in flight, its answer is what makes the sender look again.
        let wake = state.in_flight == 0 || full || open.builder.len() >= self.config.batch_bytes / 4;
        let newly = wake && self.list(shard);
        Ok((ack, newly))
    }

    /// The batches of the next append CALL; empty if none may be sent.
    pub(super) fn take_ready(&mut self, now: Instant) -> Vec<Sealed> {
        let (mut ready, mut bytes) = (Vec::new(), 0);
        for _ in 0..self.list.len() {
            let Some(number) = self.list.pop_front() else { break };
            self.shards[number as usize].listed = false;
            loop {
                if !self.may_send(now, number) {
                    break;
                }
                if self.shards[number as usize].queue.is_empty() {
                    self.seal(number);
                }
                let shard = &mut self.shards[number as usize];
                let Some(batch) = shard.queue.front() else { break };
                if bytes > 0 && bytes + batch.bytes.len() > APPEND_BYTES_MAX {
                    self.list(number);
                    return ready;
                }
                bytes += batch.bytes.len();
                shard.in_flight += 1;
                ready.push(shard.queue.pop_front().expect("just seen"));
            }
            if self.waits_for_time(now, number) {
                self.list(number);
            }
        }
        ready
    }

    /// When a batch is due that nothing else will make the sender look for.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let due = |number: &u32| {
            let shard = &self.shards[*number as usize];
            let linger = shard.open.as_ref().map(|open| open.since + self.config.linger);
            Some(linger.unwrap_or(shard.retry_at).max(shard.retry_at))
        };
        self.list.iter().filter_map(due).min()
    }

    /// Takes in what became of batches.
    pub(super) fn answered(&mut self, now: Instant, outcomes: Vec<(Sealed, Outcome)>) {
        for (batch, outcome) in outcomes {
            let number = batch.ack.shard;
            let shard = &mut self.shards[number as usize];
            shard.in_flight -= 1;
            // Behind a batch that has to be sent again, the node sees a hole in the sequence.
            let hole = |error: &Error| matches!(error, Error::Refused(refusal) if refusal.code == ErrorCode::OutOfOrderSequence);
            match outcome {
                Outcome::Acked(base_offset) => self.finish(batch, |count| Ok((base_offset, count))),
                Outcome::Failed(error) if hole(&error) && (shard.in_flight > 0 || !shard.back.is_empty()) => {
                    shard.back.push(batch);
                }
                Outcome::Retry(error) if now.since(batch.since) < self.config.deadline => {
                    tracing::debug!(shard = number, %error, "sending a batch again");
                    shard.retry_at = now + RETRY_PAUSE;
                    shard.back.push(batch);
                }
                Outcome::Retry(error) | Outcome::Failed(error) => {
                    self.closed.get_or_insert_with(|| error.to_string());
                    self.finish(batch, |_| Err(error));
                }
            }
            self.list(number);
        }
        if self.closed.is_some() {
            self.fail_rest();
        }
        if self.outstanding == 0 {
            self.flushing = false;
        }
    }

    fn may_send(&mut self, now: Instant, number: u32) -> bool {
        let shard = &mut self.shards[number as usize];
        if now < shard.retry_at {
            return false;
        }
        if !shard.back.is_empty() {
            if shard.in_flight > 0 {
                return false;
            }
            shard.back.sort_by_key(|batch| batch.order);
            for batch in shard.back.drain(..).rev() {
                shard.queue.push_front(batch);
            }
        }
        if shard.in_flight >= BATCHES_IN_FLIGHT_MAX {
            return false;
        }
        if !shard.queue.is_empty() {
            return true;
        }
        let Some(open) = &shard.open else { return false };
        let large = open.builder.len() >= self.config.batch_bytes / 4;
        let aged = now >= open.since + self.config.linger;
        large || self.flushing || (aged && shard.in_flight == 0)
    }

    /// Whether time alone will make the shard ready.
    fn waits_for_time(&self, now: Instant, number: u32) -> bool {
        let shard = &self.shards[number as usize];
        let something = !shard.queue.is_empty() || !shard.back.is_empty() || shard.open.is_some();
        let lingering = shard.open.as_ref().is_some_and(|open| now < open.since + self.config.linger);
        something && shard.in_flight == 0 && (now < shard.retry_at || lingering)
    }

    fn seal(&mut self, number: u32) {
        let shard = &mut self.shards[number as usize];
        let Some(mut open) = shard.open.take() else { return };
        if let Some((id, epoch)) = self.identity {
            open.builder.set_producer(Producer { id, epoch, base_sequence: shard.next_sequence });
            // Kafka's sequence numbers go from the largest 32-bit number to 0.
            let next = i64::from(shard.next_sequence) + i64::from(open.count);
            shard.next_sequence = (next % (i64::from(i32::MAX) + 1)) as i32;
        }
        let order = shard.next_order;
        shard.next_order += 1;
        shard.queue.push_back(Sealed {
            bytes: open.builder.finish(self.config.codec),
            ack: open.ack,
            count: open.count,
            buffered: open.buffered,
            order,
            since: open.since,
        });
    }

    fn finish(&mut self, batch: Sealed, result: impl FnOnce(u32) -> Result<(Offset, u32), Error>) {
        self.buffered -= batch.buffered;
        self.outstanding -= 1;
        batch.ack.complete(result(batch.count));
    }

    /// After a batch failed for good its shard's sequence has a hole: nothing later can be appended.
    fn fail_rest(&mut self) {
        let why = self.closed.clone().unwrap_or_default();
        for number in 0..self.shards.len() as u32 {
            self.seal(number);
            let shard = &mut self.shards[number as usize];
            let rest: Vec<_> = shard.back.drain(..).chain(shard.queue.drain(..)).collect();
            for batch in rest {
                self.finish(batch, |_| Err(Error::Closed(why.clone())));
            }
        }
    }

    /// Puts the shard on the list; whether it was not on it.
    fn list(&mut self, number: u32) -> bool {
        let shard = &mut self.shards[number as usize];
        if shard.listed {
            return false;
        }
        shard.listed = true;
        self.list.push_back(number);
        true
    }
}
