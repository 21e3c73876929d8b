//! A consumer that fetches as Kafka's do: a connection, one fetch in flight on it that waits for records, batches whose
//! checksum it checks and that it decodes where they arrived. A task of its own in its process's only thread.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use tailwater_format::{BatchError, Decompressor, Offset, batches};
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::messages::fetch::{
    FetchPartition, FetchRequest, FetchTopic, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

use super::connection::{Connection, answer};
use super::versions;
use crate::address::LoadAddress;
use crate::check::ShardCheck;
use crate::messages::Validate;
use crate::reading::Process;
use crate::tally::TallySeen;

/// `fetch.max.wait.ms` and `max.partition.fetch.bytes` of Kafka's consumer, with their defaults there.
const WAIT_MS: i32 = 500;
const FETCH_BYTES_MAX: i32 = 1 << 20;
/// `isolation.level`: all that is there.
const UNCOMMITTED: i8 = 0;
/// The end of a partition, as a time.
pub(super) const LATEST: i64 = -1;
/// A pause while the broker is still making a new partition.
const PAUSE: Duration = Duration::from_millis(1);

struct Consumer {
    connection: Connection,
    topic: String,
    /// Each shard that it reads, and the offset that comes next.
    next: Vec<(u32, i64)>,
    seen: TallySeen,
    decompressor: Decompressor,
}

/// Connects a consumer of `shards`, and begins to fetch.
pub async fn start(process: &Arc<Process>, shards: Vec<u32>) -> anyhow::Result<()> {
    let config = &process.config;
    let mut connection = Connection::open(&config.node).await?;
    let mut next = Vec::with_capacity(shards.len());
    for &shard in &shards {
        let begin = match config.from_beginning {
            true => 0,
            false => latest(&mut connection, &config.stream, shard).await?,
        };
        next.push((shard, begin));
    }
    // Nothing else is in the stream but the records of one producer, so offsets and sequences are the same.
    let checks = next.iter().map(|&(_, offset)| ShardCheck::starting_at(offset as u64)).collect();
    let seen = TallySeen::new(shards[0], checks);
    let topic = config.stream.clone();
    let mut consumer = Consumer { connection, topic, next, seen, decompressor: Decompressor::new() };
    consumer.fetch();
    tokio::task::spawn(consumer.follow(Arc::clone(process)));
    Ok(())
}

async fn latest(connection: &mut Connection, topic: &str, shard: u32) -> anyhow::Result<i64> {
    let partition =
        ListOffsetsPartition { partition_index: shard as i32, timestamp: LATEST, ..Default::default() };
    let topic = ListOffsetsTopic { name: topic.to_owned(), partitions: vec![partition] };
    let asked = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let answer = connection.ask(&asked, versions::LIST_OFFSETS).await?;
    let partition = answer.topics.first().and_then(|topic| topic.partitions.first());
    let partition = partition.context("no word about a partition")?;
    anyhow::ensure!(
        partition.error_code == 0,
        "no end of a partition: Kafka's error {}",
        partition.error_code
    );
    Ok(partition.offset)
}

/// Asks for what comes next in each partition.
fn fetch_of(topic: &str, next: &[(u32, i64)]) -> FetchRequest {
    let partitions = next.iter().map(|&(shard, fetch_offset)| FetchPartition {
        partition: shard as i32,
        fetch_offset,
        partition_max_bytes: FETCH_BYTES_MAX,
        ..Default::default()
    });
    let topic =
        FetchTopic { topic: topic.to_owned(), partitions: partitions.collect(), ..Default::default() };
    FetchRequest {
        max_wait_ms: WAIT_MS,
        min_bytes: 1,
        isolation_level: UNCOMMITTED,
        topics: vec![topic],
        ..Default::default()
    }
}

/// A partition that is read from an offset on, without a process of consumers around it.
pub struct PartitionReader {
    connection: Connection,
    topic: String,
    next: (u32, i64),
    decompressor: Decompressor,
}

impl PartitionReader {
    /// Connects to read a partition from an offset on, or from its end, and begins to fetch.
    pub async fn open(
        address: &LoadAddress,
        topic: &str,
        shard: u32,
        from: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut connection = Connection::open(address).await?;
        let from = match from {
            Some(offset) => offset as i64,
            None => latest(&mut connection, topic, shard).await?,
        };
        let next = (shard, from);
        connection.queue(&fetch_of(topic, &[next]), versions::FETCH);
        Ok(Self { connection, topic: topic.to_owned(), next, decompressor: Decompressor::new() })
    }

    /// The offset of the record that comes next.
    pub fn next_offset(&self) -> u64 {
        self.next.1 as u64
    }

    /// Hands out the values that come next, if a fetch brings some. Their batches' checksums are checked.
    pub async fn next(&mut self, mut each: impl FnMut(&[u8])) -> anyhow::Result<()> {
        let frame = self.connection.next().await?;
        let answer = answer::<FetchRequest>(frame, versions::FETCH)?;
        anyhow::ensure!(answer.error_code == 0, "a fetch failed: Kafka's error {}", answer.error_code);
        for partition in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let code = partition.error_code;
            anyhow::ensure!(code == 0, "a fetch failed: Kafka's error {code}");
            for batch in batches(&partition.records.into_bytes()) {
                let batch = match batch {
                    Ok(batch) => batch,
                    // A broker may cut the last batch where the answer is full.
                    Err(BatchError::Incomplete { .. }) => break,
                    Err(error) => return Err(error.into()),
                };
                batch.check_crc()?;
                let mut records = batch.records(&mut self.decompressor, FETCH_BYTES_MAX as usize)?;
                records.skip_below(Offset(self.next.1 as u64))?;
                for record in records {
                    each(record?.value.unwrap_or_default());
                }
                self.next.1 = batch.header().next_offset().0 as i64;
            }
        }
        self.connection.queue(&fetch_of(&self.topic, &[self.next]), versions::FETCH);
        Ok(())
    }
}

impl Consumer {
    /// Asks for what comes next.
    fn fetch(&mut self) {
        self.connection.queue(&fetch_of(&self.topic, &self.next), versions::FETCH);
    }

    async fn follow(mut self, process: Arc<Process>) {
        let mut look = process.look.subscribe();
        loop {
            let taken = tokio::select! {
                biased;
                // The process lives as long as its consumers.
                _ = look.changed() => Ok(()),
                frame = self.connection.next(), if !self.seen.stopped => match frame {
                    Ok(frame) => self.take(frame, &process).await,
                    Err(error) => Err(error),
                },
            };
            let mut tally = process.tally.lock();
            if let Err(error) = taken {
                tally.give_up(&mut self.seen, &format!("{error:#}"));
            }
            if let Some(collect) = tally.is_over(std::iter::once(&mut self.seen)) {
                // Whoever collects waits for all.
                let _ = collect.send(vec![self.seen]);
                return;
            }
        }
    }

    async fn take(&mut self, frame: Bytes, process: &Process) -> anyhow::Result<()> {
        let answer = answer::<FetchRequest>(frame, versions::FETCH)?;
        anyhow::ensure!(answer.error_code == 0, "a fetch failed: Kafka's error {}", answer.error_code);
        let mut pause = false;
        for partition in answer.responses.into_iter().flat_map(|topic| topic.partitions) {
            let shard = partition.partition_index as u32;
            let begins = [ErrorCode::UnknownTopicOrPartition, ErrorCode::NotLeaderOrFollower];
            match partition.error_code {
                0 => self.records(shard, &partition.records.into_bytes(), process)?,
                code if begins.iter().any(|error| error.number() == code) => pause = true,
                code => bail!("a fetch from partition {shard} failed: Kafka's error {code}"),
            }
        }
        if pause {
            tokio::time::sleep(PAUSE).await;
        }
        self.fetch();
        Ok(())
    }

    fn records(&mut self, shard: u32, bytes: &[u8], process: &Process) -> anyhow::Result<()> {
        let (_, next) = self.next.iter_mut().find(|(own, _)| *own == shard).context("a strange partition")?;
        let mut tally = process.tally.lock();
        for batch in batches(bytes) {
            let batch = match batch {
                Ok(batch) => batch,
                // A broker may cut the last batch where the answer is full.
                Err(BatchError::Incomplete { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            if process.config.validate == Validate::Consumer {
                batch.check_crc()?;
            }
            let mut records = batch.records(&mut self.decompressor, FETCH_BYTES_MAX as usize)?;
            records.skip_below(Offset(*next as u64))?;
            let end = batch.header().next_offset();
            let mut broken = None;
            let values = records.map_while(|record| match record {
                Ok(record) => Some(record.value.unwrap_or_default()),
                Err(error) => {
                    broken = Some(error);
                    None
                }
            });
            tally.take(&mut self.seen, shard, end.0, values);
            if let Some(error) = broken {
                return Err(error.into());
            }
            *next = end.0 as i64;
        }
        Ok(())
    }
}
