//! An idempotent producer with acks=all, in the thread of its caller: records gather in a batch for each partition,
//! which goes out when it is full, or when a request may begin and it is old enough.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use bytes::Bytes;
use tailwater_format::{BatchBuilder, Codec};
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::messages::produce::{
    InitProducerIdRequest, PartitionProduceData, ProduceRequest, TopicProduceData,
};
use tailwater_kafka_wire::wire::RecordsBytes;

use super::connection::{Connection, answer};
use super::versions;
use crate::address::LoadAddress;
use crate::appender::Gathering;
use crate::clock::monotonic_ns;

/// Bytes of full batches beyond which no record is taken: `buffer.memory` of Kafka's producer, twice its default.
const BUFFER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one request, unless a single batch has more: `max.request.size` of Kafka's producer.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// How long a broker may take.
const TIMEOUT_MS: i32 = 30_000;

/// A producer.
pub struct Producer {
    connection: Connection,
    topic: String,
    gathering: Gathering,
    id: i64,
    epoch: i16,
    shards: Vec<Shard>,
    /// The partition that is looked at first for the next request.
    turn: usize,
    /// The batches of each request.
    under_way: VecDeque<Vec<Batch>>,
    acknowledged: VecDeque<Vec<u64>>,
    /// Records.
    in_flight: usize,
    /// Bytes of batches that are full and not acknowledged.
    buffered_bytes: usize,
    /// Wall clock less monotonic clock, in ms.
    wall_ms: i64,
}

#[derive(Default)]
struct Shard {
    builder: BatchBuilder,
    stamps: Vec<u64>,
    next_sequence: i32,
    full: VecDeque<(Bytes, Batch)>,
}

/// A batch that went out, or may.
struct Batch {
    bytes: usize,
    stamps: Vec<u64>,
}

impl Producer {
    /// Connects, and gets its id.
    pub async fn connect(
        address: &LoadAddress,
        topic: &str,
        shards: u32,
        gathering: Gathering,
    ) -> anyhow::Result<Self> {
        let mut connection = Connection::open(address).await?;
        let asked = InitProducerIdRequest { transaction_timeout_ms: TIMEOUT_MS, ..Default::default() };
        let given = loop {
            let given = connection.ask(&asked, versions::INIT_PRODUCER_ID).await?;
            let loading = [ErrorCode::CoordinatorLoadInProgress, ErrorCode::CoordinatorNotAvailable];
            if !loading.iter().any(|error| error.number() == given.error_code) {
                break given;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        anyhow::ensure!(given.error_code == 0, "no producer id: Kafka's error {}", given.error_code);
        let wall = SystemTime::UNIX_EPOCH.elapsed().context("a clock before 1970")?.as_millis();
        Ok(Self {
            connection,
            topic: topic.to_owned(),
            gathering,
            id: given.producer_id,
            epoch: given.producer_epoch,
            shards: (0..shards).map(|_| Shard::default()).collect(),
            turn: 0,
            under_way: VecDeque::new(),
            acknowledged: VecDeque::new(),
            in_flight: 0,
            buffered_bytes: 0,
            wall_ms: i64::try_from(wall)? - (monotonic_ns() / 1_000_000) as i64,
        })
    }

    /// Takes a record, stamped `stamp_ns`; whether there was room for it.
    pub fn send(&mut self, shard: u32, record: &[u8], stamp_ns: u64) -> anyhow::Result<bool> {
        if self.buffered_bytes > BUFFER_BYTES_MAX {
            return Ok(false);
        }
        let (id, epoch) = (self.id, self.epoch);
        let shard = &mut self.shards[shard as usize];
        let len = shard.builder.len();
        if !shard.builder.is_empty() && len + record.len() > self.gathering.batch_bytes {
            self.buffered_bytes += shard.close(id, epoch);
        }
        let timestamp_ms = self.wall_ms + (stamp_ns / 1_000_000) as i64;
        shard.builder.append(None, Some(record), &[], timestamp_ms)?;
        shard.stamps.push(stamp_ns);
        self.in_flight += 1;
        Ok(true)
    }

    /// Records that were taken and not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Sends what may go, and waits for the next batch that is acknowledged: when its records were sent. Waits for ever
    /// if there is none. May be dropped at any time.
    pub async fn next(&mut self) -> anyhow::Result<Vec<u64>> {
        loop {
            if let Some(stamps) = self.next_now() {
                return Ok(stamps);
            }
            let wait = self.begin_requests();
            let frame = tokio::select! {
                frame = self.connection.next() => frame?,
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => continue,
            };
            self.answered(frame)?;
        }
    }

    /// The same, if one is known already.
    pub fn next_now(&mut self) -> Option<Vec<u64>> {
        self.acknowledged.pop_front()
    }

    /// Begins requests while there may be more; how long until a batch is old enough to be sent, if one is waited for.
    fn begin_requests(&mut self) -> Option<Duration> {
        let linger = Duration::from_micros(self.gathering.linger_us);
        while self.under_way.len() < self.gathering.requests_in_flight {
            let (mut partitions, mut batches, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut wait: Option<Duration> = None;
            let now = monotonic_ns();
            for number in 0..self.shards.len() {
                let index = (self.turn + number) % self.shards.len();
                let (id, epoch) = (self.id, self.epoch);
                let shard = &mut self.shards[index];
                if shard.full.is_empty()
                    && let Some(&first) = shard.stamps.first()
                {
                    let age = Duration::from_nanos(now.saturating_sub(first));
                    match linger.checked_sub(age).filter(|left| !left.is_zero()) {
                        None => self.buffered_bytes += shard.close(id, epoch),
                        Some(left) => wait = Some(wait.map_or(left, |least| least.min(left))),
                    }
                }
                if shard
                    .full
                    .front()
                    .is_some_and(|(batch, _)| bytes > 0 && bytes + batch.len() > REQUEST_BYTES_MAX)
                {
                    self.turn = index;
                    break;
                }
                let Some((records, batch)) = shard.full.pop_front() else { continue };
                bytes += records.len();
                partitions
                    .push(PartitionProduceData { index: index as i32, records: RecordsBytes(vec![records]) });
                batches.push(batch);
            }
            if partitions.is_empty() {
                return wait;
            }
            let data = TopicProduceData {
                name: self.topic.clone(),
                partition_data: partitions,
                ..Default::default()
            };
            let asked = ProduceRequest {
                acks: -1,
                timeout_ms: TIMEOUT_MS,
                topic_data: vec![data],
                ..Default::default()
            };
            self.connection.queue(&asked, versions::PRODUCE);
            self.under_way.push_back(batches);
        }
        None
    }

    fn answered(&mut self, frame: Bytes) -> anyhow::Result<()> {
        let answer = answer::<ProduceRequest>(frame, versions::PRODUCE)?;
        for partition in answer.responses.iter().flat_map(|topic| &topic.partition_responses) {
            anyhow::ensure!(
                partition.error_code == 0,
                "records for partition {} were refused: Kafka's error {}, {}",
                partition.index,
                partition.error_code,
                partition.error_message.as_deref().unwrap_or_default()
            );
        }
        let batches = self.under_way.pop_front().context("an answer that nobody asked for")?;
        for Batch { bytes, stamps } in batches {
            self.in_flight -= stamps.len();
            self.buffered_bytes -= bytes;
            self.acknowledged.push_back(stamps);
        }
        Ok(())
    }
}

impl Shard {
    /// Ends the batch that records gather in; how many bytes it has.
    fn close(&mut self, id: i64, epoch: i16) -> usize {
        let count = self.builder.record_count() as i32;
        let base_sequence = self.next_sequence;
        self.builder.set_producer(tailwater_format::Producer { id, epoch, base_sequence });
        // After 2^31 - 1 comes 0.
        self.next_sequence = base_sequence.wrapping_add(count) & i32::MAX;
        let stamps = std::mem::take(&mut self.stamps);
        let records = self.builder.finish(Codec::None);
        let bytes = records.len();
        self.full.push_back((records, Batch { bytes, stamps }));
        bytes
    }
}
