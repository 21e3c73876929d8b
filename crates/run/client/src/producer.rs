//! Appends records, in order for each shard, each at least once, and exactly once while the node remembers
//! the producer.
//!
//! ```text
//!   send() -> open batch of the shard -> sealed, with its sequence -> in flight -> acknowledged
//!                                            ^------ refused for now ------'
//! ```
//!
//! A batch is sealed when it is full, when its time is up, or as soon as nothing of its shard is in flight:
//! alone, a record waits for nobody; under load, batches grow by themselves. What was not acknowledged is sent
//! again with the same sequence, so the node can tell a repetition; the order within a shard never changes.
//! (A producer that is not idempotent has one batch of a shard in flight at a time, for the order's sake; an idempotent
//! one until the shard's first acknowledgement, from which on the node knows it.)
//!
//! When a batch of an idempotent producer fails for good, so does everything behind it, and the producer is
//! closed: its sequence has a hole that the node would refuse.

mod ack;
mod state;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tailwater_env::{Env, Task};
use tailwater_format::ShardNumber;
use tailwater_format::batch::Codec;
use tailwater_format::call::{
    Append, AppendItem, Appended, Appends, CallRefusal, InitProducer, Method, ProducerInfo, offset_from_wire,
    stream_to_wire,
};
use tokio::sync::Notify;

use crate::connection::Node;
use crate::limits::CALL_DEADLINE;
use crate::{Error, Stream};
pub use ack::{Ack, Acked};
use state::{Outcome, ProducerCore, Sealed};

/// Which shard a record goes to when the caller does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioner {
    /// By the hash of the key, as Kafka's clients do it; records without a key go round-robin.
    #[default]
    Key,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
}

/// How a producer behaves.
#[derive(Clone, Copy, Debug)]
pub struct ProducerSettings {
    /// Which shard a record goes to.
    pub partitioner: Partitioner,
    /// Compression of record batches.
    pub codec: Codec,
    /// Bytes of records in one batch; at most [`crate::limits::BATCH_BYTES_TARGET_MAX`], and at most what the stream
    /// took in one append when the producer was made.
    pub batch_bytes: usize,
    /// How long a batch waits for more records although nothing is in flight.
    pub linger: Duration,
    /// Bytes of records that may wait for acknowledgement; [`Producer::send`] refuses more.
    pub buffer_bytes_max: usize,
    /// How long a batch is tried before its records fail.
    pub deadline: Duration,
    /// Whether the node recognizes repetitions.
    pub idempotent: bool,
    /// Whether the caller gives each record its transaction id ([`Producer::send_at`]); one that is smaller
    /// than one before it in its shard is refused. Otherwise the node takes the running maximum of timestamps.
    /// They take the place of the records' times: a position by time (`@TIME`) goes by them too.
    pub explicit_transaction_ids: bool,
}

impl Default for ProducerSettings {
    fn default() -> Self {
        Self {
            partitioner: Partitioner::Key,
            codec: Codec::None,
            batch_bytes: 256 << 10,
            linger: Duration::ZERO,
            buffer_bytes_max: 64 << 20,
            deadline: Duration::from_secs(120),
            idempotent: true,
            explicit_transaction_ids: false,
        }
    }
}

/// Why a producer does not get on: [`Producer::trouble`].
#[derive(Clone, Debug)]
pub struct Trouble {
    /// Why a batch was not acknowledged when it was sent last. It is sent again.
    pub error: Error,
    /// For how long batches of its shard have been sent again.
    pub lasts: Duration,
}

/// Appends to one stream. Cheap to clone; records of clones share batches.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<ProducerInner>,
}

struct ProducerInner {
    shared: Arc<ProducerShared>,
    stream: Stream,
    _task: Task,
}

struct ProducerShared {
    env: Env,
    state: Mutex<ProducerCore>,
    /// Rung when there may be something to send.
    work: Notify,
    /// Rung when something was acknowledged or failed.
    done: Notify,
}

impl Producer {
    pub(crate) async fn start(
        env: Env,
        node: Arc<Node>,
        stream: Stream,
        append_bytes_max: usize,
        config: ProducerSettings,
    ) -> Result<Self, Error> {
        let identity = if config.idempotent {
            let info: ProducerInfo = node.call(Method::InitProducer, &InitProducer {}).await?;
            match i16::try_from(info.epoch) {
                Ok(epoch) if info.producer_id >= 0 => Some((info.producer_id, epoch)),
                _ => return Err(Error::Malformed(format!("{info:?} is no producer"))),
            }
        } else {
            None
        };
        let state = Mutex::new(ProducerCore::new(stream.shards, append_bytes_max, config, identity));
        let shared =
            Arc::new(ProducerShared { env: env.clone(), state, work: Notify::new(), done: Notify::new() });
        let task = env.spawn(
            "producer",
            run(Arc::clone(&shared), node, stream.clone(), config.explicit_transaction_ids),
        );
        Ok(Self { inner: Arc::new(ProducerInner { shared, stream, _task: task }) })
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.inner.stream
    }

    /// Hands a record over, with a key or without. Never waits: what it returns completes when the record is
    /// acknowledged, and [`Error::BufferFull`] says to wait first ([`Producer::room`]).
    pub fn send(&self, key: Option<&[u8]>, value: &[u8]) -> Result<Ack, Error> {
        self.put(None, None, key, value)
    }

    /// Hands a record over to one shard with a timestamp of its own, in ms since the epoch; with
    /// [`ProducerSettings::explicit_transaction_ids`] it is the record's transaction id.
    ///
    /// # Panics
    /// If the stream has no such shard.
    pub fn send_at(
        &self,
        shard: u32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: &[u8],
    ) -> Result<Ack, Error> {
        assert!(shard < self.inner.stream.shards, "shard {shard} of {}", self.inner.stream.shards);
        self.put(Some(shard), Some(timestamp), key, value)
    }

    /// Hands a record over to one shard.
    ///
    /// # Panics
    /// If the stream has no such shard.
    pub fn send_to(&self, shard: u32, key: Option<&[u8]>, value: &[u8]) -> Result<Ack, Error> {
        assert!(shard < self.inner.stream.shards, "shard {shard} of {}", self.inner.stream.shards);
        self.put(Some(shard), None, key, value)
    }

    /// Completes when there is room for more, or when the producer is closed, which the next send then says. Where
    /// clones send as well, the room may be gone again by then.
    pub async fn room(&self) {
        let shared = &self.inner.shared;
        loop {
            let mut done = std::pin::pin!(shared.done.notified());
            done.as_mut().enable();
            if shared.state.lock().has_room() {
                return;
            }
            done.await;
        }
    }

    /// Completes when everything handed over so far was acknowledged or failed, without waiting for batches to fill.
    /// Cancelling it changes nothing but that nobody waits.
    pub async fn flush(&self) {
        let shared = &self.inner.shared;
        let upto = shared.state.lock().flush();
        shared.work.notify_one();
        loop {
            let mut done = std::pin::pin!(shared.done.notified());
            done.as_mut().enable();
            if shared.state.lock().is_flushed(upto) {
                return;
            }
            done.await;
        }
    }

    /// Why records wait that were sent: what the node said, or that it does not answer. It is tried until
    /// [`ProducerSettings::deadline`], which an application may not want to be silent for. `None` while all goes well.
    pub fn trouble(&self) -> Option<Trouble> {
        let shared = &self.inner.shared;
        shared.state.lock().trouble(shared.env.now())
    }

    fn put(
        &self,
        shard: Option<u32>,
        timestamp: Option<i64>,
        key: Option<&[u8]>,
        value: &[u8],
    ) -> Result<Ack, Error> {
        let shared = &self.inner.shared;
        let random = || shared.env.random_u64();
        let mut state = shared.state.lock();
        let shard = shard.unwrap_or_else(|| state.choose_shard(key, random));
        let timestamp = timestamp.unwrap_or_else(|| shared.env.wall_ms());
        let (ack, wake) = state.put(|| shared.env.now(), timestamp, shard, key, value)?;
        drop(state);
        if wake {
            shared.work.notify_one();
        }
        Ok(ack)
    }
}

/// One append CALL's batches and how it ended.
type SentBatch = (Vec<Sealed>, Result<Appends, Error>);

/// Sends what is ready until the producer is dropped.
async fn run(shared: Arc<ProducerShared>, node: Arc<Node>, stream: Stream, explicit_transaction_ids: bool) {
    let wire_stream = stream_to_wire(stream.id);
    let mut under_way: FuturesUnordered<BoxFuture<'static, SentBatch>> = FuturesUnordered::new();
    loop {
        let mut wake_at = shared.env.now() + CALL_DEADLINE;
        loop {
            let mut state = shared.state.lock();
            let now = shared.env.now();
            let batches = state.take_ready(now, under_way.len());
            if batches.is_empty() {
                wake_at = state.next_deadline(now, under_way.len()).unwrap_or(wake_at);
                break;
            }
            drop(state);
            let stream = wire_stream.clone();
            under_way.push(append(Arc::clone(&node), stream, batches, explicit_transaction_ids));
        }
        tokio::select! {
            biased;
            Some((batches, result)) = under_way.next() => {
                shared.state.lock().answered(shared.env.now(), outcomes(batches, result));
                shared.done.notify_waiters();
            }
            () = shared.work.notified() => {}
            () = shared.env.sleep_until(wake_at) => {}
        }
    }
}

fn append(
    node: Arc<Node>,
    stream: Bytes,
    batches: Vec<Sealed>,
    explicit_transaction_ids: bool,
) -> BoxFuture<'static, SentBatch> {
    async move {
        let items = batches
            .iter()
            .map(|batch| AppendItem { shard: batch.shard, batches: batch.bytes.clone(), expected_term: None })
            .collect();
        let append = Append { stream, items, explicit_transaction_ids };
        let result = node.call_with_pieces(Method::Append, append.to_pieces()).await;
        (batches, result)
    }
    .boxed()
}

/// What became of each batch of a CALL.
fn outcomes(batches: Vec<Sealed>, result: Result<Appends, Error>) -> Vec<(Sealed, Outcome)> {
    use tailwater_format::call::AppendOutcome;
    let results = match result {
        Ok(appends) if appends.results.len() == batches.len() => appends.results,
        Ok(_) => {
            let error = Error::Malformed("an answer for another number of batches".to_owned());
            return batches.into_iter().map(|batch| (batch, Outcome::Failed(error.clone()))).collect();
        }
        Err(error) => {
            return batches.into_iter().map(|batch| (batch, Outcome::from_error(error.clone()))).collect();
        }
    };
    batches
        .into_iter()
        .zip(results)
        .map(|(batch, result)| {
            let outcome = match result.outcome {
                Some(AppendOutcome::Appended(Appended { base_offset, .. })) => {
                    match offset_from_wire(base_offset) {
                        Ok(base_offset) => Outcome::Acked(base_offset),
                        Err(error) => Outcome::Failed(error.into()),
                    }
                }
                Some(AppendOutcome::Failed(failure)) => {
                    Outcome::from_error(Error::Refused(CallRefusal::from(failure)))
                }
                None => Outcome::Failed(Error::Malformed("an answer without an outcome".to_owned())),
            };
            (batch, outcome)
        })
        .collect()
}

/// The shard of a key, as Kafka's default partitioner chooses it (murmur2, made positive).
pub fn shard_of_key(key: &[u8], shards: u32) -> ShardNumber {
    ShardNumber((murmur2(key) & 0x7fff_ffff) % shards)
}

/// Kafka's murmur2, with its seed.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    for (index, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_where_kafka_s_clients_send_them() {
        // From Apache Kafka's UtilsTest.testMurmur2.
        let known: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key) as i32, hash, "{}", String::from_utf8_lossy(key));
        }
    }
}
