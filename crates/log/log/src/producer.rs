//! Idempotent producers of one shard: who may append next, and which batches are already there (KIP-98).
//!
//! What holds:
//! - A batch is *pending* from its acceptance until its entry is durable, and only then one of the last five
//!   of its producer. A pending batch that fails is taken back as if it had never come.
//! - The answer to a duplicate names the offsets of the first; the caller answers it no earlier than the first.
//! - What was sent behind a batch that failed is not appended before that batch is there, even if the producer is
//!   unknown otherwise ([`Refused`]); where more producers had batches refused than are remembered, of the last ones.
//! - A snapshot has at most [`PRODUCERS_BYTES_MAX`] bytes, whatever producers do.
//! - What [`Producers::snapshot`] saves and [`Producers::replay`] of the later batches rebuilds is the table as
//!   it was, so a batch that was acknowledged before a crash is recognized after it.
//!
//! A producer that the shard does not know may begin with any sequence number, as in Kafka: it may have been
//! forgotten after [`PRODUCER_EXPIRY_MS`], or retention deleted all that it wrote. It may also have been forgotten
//! earlier, because so many others came after it that a snapshot has no room for it ([`PRODUCERS_BYTES_MAX`]); what it
//! then sends a second time is appended a second time.

mod refused;

use std::collections::VecDeque;
use std::sync::Arc;

use tailwater_env::HashMap;
use tailwater_format::{BatchHeader, Offset};

use crate::limits::{
    PRODUCER_BATCH_BYTES, PRODUCER_BATCHES, PRODUCER_BYTES, PRODUCER_EXPIRY_MS, PRODUCERS_BYTES_MAX,
};

pub use refused::Refused;

/// What a batch's header says of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The producer's id, not negative.
    pub producer: i64,
    /// Its epoch.
    pub epoch: i16,
    /// Sequence number of the batch's first record, not negative.
    pub first: i32,
    /// Number of records, at least 1.
    pub count: u32,
}

impl Claim {
    /// That of a batch, if it has a producer.
    pub fn of(header: &BatchHeader) -> Option<Self> {
        let producer = header.producer()?;
        let (first, count) = (producer.base_sequence, header.record_count);
        Some(Self { producer: producer.id, epoch: producer.epoch, first, count })
    }

    /// Sequence number of the batch's last record; after 2^31-1 comes 0.
    fn last(&self) -> i32 {
        advance(self.first, self.count - 1)
    }
}

/// The sequence number `by` after `sequence`; after 2^31-1 comes 0.
fn advance(sequence: i32, by: u32) -> i32 {
    ((i64::from(sequence) + i64::from(by)) & i64::from(i32::MAX)) as i32
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Append it.
    Append,
    /// It is there already, from this offset on.
    Duplicate(Offset),
    /// It is out of order.
    Refused(SequenceError),
}

/// Why a producer's batch is refused. Neither helps to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// A later incarnation of the producer has appended (Kafka's `INVALID_PRODUCER_EPOCH`).
    #[error("producer {producer} has epoch {current} by now, the batch has {given}")]
    Epoch {
        /// The producer.
        producer: i64,
        /// The epoch of its last batch.
        current: i16,
        /// The epoch of this batch.
        given: i16,
    },
    /// Something before this batch is missing, or it is a duplicate older than the last five (Kafka's
    /// `OUT_OF_ORDER_SEQUENCE_NUMBER`).
    #[error("the next sequence number of producer {producer} is {expected}, the batch begins with {given}")]
    OutOfOrder {
        /// The producer.
        producer: i64,
        /// The only sequence number it may go on with.
        expected: i32,
        /// The sequence number of this batch.
        given: i32,
    },
}

/// One batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// The producer's epoch.
    pub epoch: i16,
    /// Sequence number of its first record.
    pub first: i32,
    /// Sequence number of its last record.
    pub last: i32,
    /// Offset of its first record.
    pub base_offset: Offset,
}

/// What is remembered of a producer; as saved in a snapshot, without the pending batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// The producer.
    pub producer: i64,
    /// Wall time in ms at which its last batch became durable.
    pub last_ms: i64,
    /// Its last batches, oldest first, at most [`PRODUCER_BATCHES`], all of one epoch.
    pub batches: Vec<ProducerBatch>,
}

#[derive(Debug, Default)]
struct Producer {
    last_ms: i64,
    /// Durable, of the newest epoch, oldest first; at most [`PRODUCER_BATCHES`].
    durable: VecDeque<ProducerBatch>,
    /// Accepted and not durable, oldest first; as many as the shard has in flight.
    pending: VecDeque<ProducerBatch>,
}

impl Producer {
    /// Bytes that it takes in a snapshot, at most, when its pending batches are durable.
    fn bytes(&self) -> usize {
        let batches = (self.durable.len() + self.pending.len()).min(PRODUCER_BATCHES);
        PRODUCER_BYTES + batches * PRODUCER_BATCH_BYTES
    }

    fn newest(&self) -> Option<&ProducerBatch> {
        self.pending.back().or_else(|| self.durable.back())
    }

    fn remember(&mut self, batch: ProducerBatch, now_ms: i64) {
        if self.durable.back().is_some_and(|last| last.epoch != batch.epoch) {
            self.durable.clear();
        }
        if self.durable.len() == PRODUCER_BATCHES {
            self.durable.pop_front();
        }
        self.durable.push_back(batch);
        self.last_ms = self.last_ms.max(now_ms);
    }
}

/// The producers of one shard.
#[derive(Debug)]
pub struct Producers {
    table: HashMap<i64, Producer>,
    /// Sum of [`Producer::bytes`].
    bytes: usize,
    /// How many they may be before some are forgotten. More than the limit where those that are more have batches
    /// pending: looking for others with every batch would find none.
    forget_above: usize,
    refused: Arc<Refused>,
}

impl Default for Producers {
    fn default() -> Self {
        Self {
            table: HashMap::default(),
            bytes: 0,
            forget_above: PRODUCERS_BYTES_MAX,
            refused: Arc::default(),
        }
    }
}

impl Producers {
    /// What to do with the batch that makes `claim`; changes nothing.
    pub fn check(&self, claim: Claim) -> Verdict {
        let producer = self.table.get(&claim.producer);
        let Some((producer, newest)) = producer.and_then(|known| Some((known, known.newest()?))) else {
            return match self.refused.comes_before(claim) {
                None => Verdict::Append,
                Some(expected) => Verdict::Refused(SequenceError::OutOfOrder {
                    producer: claim.producer,
                    expected,
                    given: claim.first,
                }),
            };
        };
        if claim.epoch < newest.epoch {
            return Verdict::Refused(SequenceError::Epoch {
                producer: claim.producer,
                current: newest.epoch,
                given: claim.epoch,
            });
        }
        let expected = if claim.epoch == newest.epoch { advance(newest.last, 1) } else { 0 };
        if claim.first == expected {
            return Verdict::Append;
        }
        let same = |batch: &&ProducerBatch| {
            batch.epoch == claim.epoch && batch.first == claim.first && batch.last == claim.last()
        };
        if let Some(first) = producer.pending.iter().chain(&producer.durable).find(same) {
            // What was refused of it was this one, sent once more, or comes behind it.
            self.refused.forget(claim.producer);
            return Verdict::Duplicate(first.base_offset);
        }
        Verdict::Refused(SequenceError::OutOfOrder { producer: claim.producer, expected, given: claim.first })
    }

    /// Where to note what is refused before it comes here.
    pub fn refused(&self) -> &Arc<Refused> {
        &self.refused
    }

    /// Notes that the batch was accepted at `base_offset`. [`Producers::check`] must have allowed it.
    pub fn accept(&mut self, claim: Claim, base_offset: Offset) {
        let batch = ProducerBatch { epoch: claim.epoch, first: claim.first, last: claim.last(), base_offset };
        self.change(claim.producer, |producer| producer.pending.push_back(batch));
        self.refused.forget(claim.producer);
        if self.bytes > self.forget_above {
            self.forget_oldest();
        }
    }

    fn change<T>(&mut self, producer: i64, change: impl FnOnce(&mut Producer) -> T) -> T {
        let mut before = 0;
        let state = self.table.entry(producer).and_modify(|state| before = state.bytes()).or_default();
        let changed = change(state);
        self.bytes = self.bytes - before + state.bytes();
        changed
    }

    /// Notes that the oldest pending batch of `producer` is durable.
    ///
    /// # Panics
    /// If it has none: batches become durable in the order they were accepted in.
    pub fn settle(&mut self, producer: i64, now_ms: i64) {
        assert!(self.table.contains_key(&producer), "a producer with pending batches is not forgotten");
        self.change(producer, |state| {
            let batch = state.pending.pop_front().expect("accepted before it became durable");
            state.remember(batch, now_ms);
        });
    }

    /// Takes back the batches from offset `from` on: their entries failed, or (`interval`) were lost after all.
    pub fn take_back(&mut self, from: Offset) {
        let is_gone = |batch: &mut ProducerBatch| batch.base_offset >= from;
        self.table.retain(|&id, producer| {
            let mut failed = None;
            while let Some(batch) = producer.pending.pop_back_if(is_gone) {
                failed = Some(batch);
            }
            // Those were acknowledged: nobody sends them again.
            while producer.durable.pop_back_if(is_gone).is_some() {}
            // Also for one that is known: it may be taken back altogether next.
            if let Some(ProducerBatch { epoch, first, .. }) = failed {
                self.refused.note(Claim { producer: id, epoch, first, count: 1 });
            }
            producer.newest().is_some()
        });
        self.bytes = self.table.values().map(Producer::bytes).sum();
    }

    /// Puts in a batch that recovery found in the log, in the order of the log.
    pub fn replay(&mut self, claim: Claim, base_offset: Offset, now_ms: i64) {
        self.accept(claim, base_offset);
        self.settle(claim.producer, now_ms);
    }

    /// Forgets those that have not appended for [`PRODUCER_EXPIRY_MS`].
    pub fn expire(&mut self, now_ms: i64) {
        self.table.retain(|&id, producer| {
            let stays =
                !producer.pending.is_empty() || now_ms.saturating_sub(producer.last_ms) < PRODUCER_EXPIRY_MS;
            if !stays {
                self.refused.forget(id);
            }
            stays
        });
        self.bytes = self.table.values().map(Producer::bytes).sum();
        // Those that had batches pending when it was looked last may have none by now.
        if self.bytes > PRODUCERS_BYTES_MAX {
            self.forget_oldest();
        }
    }

    /// The durable state of all producers before offset `upto`, sorted by id; of the newest ones, if there are more
    /// than fit.
    pub fn snapshot(&self, upto: Offset) -> Vec<ProducerState> {
        let mut states: Vec<ProducerState> = self
            .table
            .iter()
            .map(|(&producer, state)| {
                let before = |batch: &&ProducerBatch| batch.base_offset < upto;
                let batches = state.durable.iter().filter(before).copied().collect();
                ProducerState { producer, last_ms: state.last_ms, batches }
            })
            .filter(|state| !state.batches.is_empty())
            .collect();
        let bytes = |state: &ProducerState| PRODUCER_BYTES + state.batches.len() * PRODUCER_BATCH_BYTES;
        if states.iter().map(bytes).sum::<usize>() > PRODUCERS_BYTES_MAX {
            states.sort_unstable_by_key(|state| (std::cmp::Reverse(state.last_ms), state.producer));
            let mut room = PRODUCERS_BYTES_MAX;
            let mut fits = |state: &ProducerState| match room.checked_sub(bytes(state)) {
                Some(left) => {
                    room = left;
                    true
                }
                None => false,
            };
            let count = states.iter().map_while(|state| Some(()).filter(|()| fits(state))).count();
            states.truncate(count);
        }
        states.sort_unstable_by_key(|state| state.producer);
        states
    }

    /// The table that a snapshot saved.
    pub fn restore(states: Vec<ProducerState>) -> Self {
        let mut producers = Self::default();
        for state in states {
            producers.change(state.producer, |producer| {
                for batch in state.batches {
                    producer.remember(batch, state.last_ms);
                }
            });
        }
        producers
    }

    /// Whether nobody is remembered.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Makes room for a quarter, so that a flood of strangers costs each of them little.
    fn forget_oldest(&mut self) {
        let mut idle: Vec<(i64, i64)> = self
            .table
            .iter()
            .filter(|(_, producer)| producer.pending.is_empty())
            .map(|(&id, producer)| (producer.last_ms, id))
            .collect();
        idle.sort_unstable();
        let mut idle = idle.into_iter();
        while self.bytes > PRODUCERS_BYTES_MAX / 4 * 3
            && let Some((_, id)) = idle.next()
        {
            self.bytes -= self.table.remove(&id).map_or(0, |producer| producer.bytes());
            self.refused.forget(id);
        }
        self.forget_above = PRODUCERS_BYTES_MAX.max(self.bytes + PRODUCERS_BYTES_MAX / 8);
    }
}

#[cfg(test)]
mod tests;
