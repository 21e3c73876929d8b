//! ListOffsets and OffsetForLeaderEpoch: from a time or a term to an offset.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{Decompressor, Offset, ShardId, TransactionId, batches};
use tailwater_log::{LocateRead, Log, ReadError, View};
use uuid::Uuid;

use crate::broker::{Broker, Context, shard_of};
use crate::errors::{ErrorCode, read_error};
use crate::internal;
use crate::messages::fetch::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
    ListOffsetsTopic, ListOffsetsTopicResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset as EpochEnd, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};

/// The times that stand for places.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

pub(crate) async fn list_offsets(
    broker: Arc<Broker>,
    context: Context,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let mut topics = Vec::new();
    let repeated = repeated(&request.topics);
    let mut refused = BTreeSet::new();
    for topic in &request.topics {
        let stream = broker.find_topic_to_read(&context, &topic.name, Uuid::nil(), false);
        let mut partitions = Vec::new();
        for asked in &topic.partitions {
            let partition = (topic.name.as_str(), asked.partition_index);
            let is_repeated = repeated.contains(&partition);
            if is_repeated && !refused.insert(partition) {
                continue;
            }
            let found = match &stream {
                Err(ErrorCode::TopicAuthorizationFailed) => Err(ErrorCode::TopicAuthorizationFailed),
                _ if is_repeated => Err(ErrorCode::InvalidRequest),
                Ok(stream) => match shard_of(stream, asked.partition_index) {
                    Ok(shard) => position(&broker, shard, asked).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(*error),
            };
            let (error, timestamp, offset, leader_epoch) = match found {
                Ok((timestamp, offset, epoch)) => (ErrorCode::None, timestamp, offset, epoch),
                Err(error) => (error, -1, -1, -1),
            };
            partitions.push(ListOffsetsPartitionResponse {
                partition_index: asked.partition_index,
                error_code: error.number(),
                timestamp,
                offset,
                leader_epoch,
            });
        }
        topics.push(ListOffsetsTopicResponse { name: topic.name.clone(), partitions });
    }
    ListOffsetsResponse { topics, ..Default::default() }
}

/// The partitions that are asked for more than once, which is refused as Kafka does: each could be a search of its own,
/// as often as a request has room for.
fn repeated(topics: &[ListOffsetsTopic]) -> BTreeSet<(&str, i32)> {
    let asked = topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| (topic.name.as_str(), partition.partition_index))
    });
    let mut seen = BTreeSet::new();
    asked.filter(|partition| !seen.insert(*partition)).collect()
}

/// Timestamp, offset and epoch of what is asked for; -1 for what there is none of.
async fn position(
    broker: &Broker,
    shard: ShardId,
    asked: &ListOffsetsPartition,
) -> Result<(i64, i64, i32), ErrorCode> {
    const NOTHING: (i64, i64, i32) = (-1, -1, -1);
    if internal::is_internal(shard.stream) {
        internal::check_epoch(asked.current_leader_epoch)?;
        return Ok(match asked.timestamp {
            LATEST | EARLIEST | EARLIEST_LOCAL => (-1, 0, internal::EPOCH),
            _ => NOTHING,
        });
    }
    let failed = |error: ReadError| read_error(&error);
    let view = broker.log.view(shard).map_err(failed)?;
    check_epoch(&broker.log, &view, asked.current_leader_epoch)?;
    let tail = &view.tail;
    let time = match asked.timestamp {
        LATEST => return Ok((-1, tail.next_offset.0 as i64, tail.term.0 as i32)),
        EARLIEST | EARLIEST_LOCAL => {
            let start = tail.log_start.0 as i64;
            return Ok((-1, start, epoch_at(&view, tail.log_start)));
        }
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => return Ok(NOTHING),
        MAX_TIMESTAMP if tail.next_offset == tail.log_start => return Ok(NOTHING),
        // The first record that has it made the running maximum what it is.
        MAX_TIMESTAMP => view.transaction_id.0,
        // Of a later version, as far as is known here.
        time if time < 0 => return Err(ErrorCode::UnsupportedVersion),
        time => time,
    };
    let found =
        broker.log.locate(shard, LocateRead::TransactionId(TransactionId(time))).await.map_err(failed)?;
    if found.offset >= tail.next_offset {
        return Ok(NOTHING);
    }
    let timestamp = timestamp_of(broker, shard, found.offset).await.map_err(failed)?;
    // A batch of a few bytes may have been decompressed to very many: others have their turn.
    tokio::task::yield_now().await;
    Ok((timestamp, found.offset.0 as i64, epoch_at(&view, found.offset)))
}

/// The timestamp of one record.
async fn timestamp_of(broker: &Broker, shard: ShardId, offset: Offset) -> Result<i64, ReadError> {
    let fetched = broker.log.fetch_one(shard, offset).await?;
    let bytes = fetched.pieces.first().map_or(&[][..], |piece| piece);
    let mut decompressor = Decompressor::new();
    let corrupt = |error: &dyn std::fmt::Display| ReadError::Corrupt(error.to_string());
    for batch in batches(bytes) {
        let batch = batch.map_err(|error| corrupt(&error))?;
        let records = batch.records(&mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX);
        for record in records.map_err(|error| corrupt(&error))? {
            let record = record.map_err(|error| corrupt(&error))?;
            if record.offset == offset {
                return Ok(record.timestamp_ms);
            }
        }
    }
    Err(ReadError::Corrupt(format!("no record at offset {offset} of {shard}")))
}

/// Whether the client knows the partition's epoch; -1 is a client that does not care.
pub(crate) fn check_epoch(log: &Log, view: &View, given: i32) -> Result<(), ErrorCode> {
    let current = log.leader_term(view.shard, view.tail.term).0 as i32;
    match given {
        -1 => Ok(()),
        given if given < current => Err(ErrorCode::FencedLeaderEpoch),
        given if given > current => Err(ErrorCode::UnknownLeaderEpoch),
        _ => Ok(()),
    }
}

/// The epoch in which the record at `offset` was, or will be, written.
fn epoch_at(view: &View, offset: Offset) -> i32 {
    let index = view.completed.partition_point(|segment| segment.next_offset <= offset);
    view.completed.get(index).map_or(view.tail.term, |segment| segment.term).0 as i32
}

/// The largest epoch that is not after `wanted`, and the offset after its last record; -1 and -1 if `wanted` is not
/// known yet.
pub(crate) fn epoch_end(log: &Log, view: &View, wanted: i32) -> (i32, i64) {
    let tail = &view.tail;
    // Of a term that was claimed, and in which nothing was written yet, a client may know, too.
    let current = log.leader_term(view.shard, tail.term).0 as i32;
    if wanted > current || wanted < 0 {
        return (-1, -1);
    }
    if wanted >= tail.term.0 as i32 {
        return (tail.term.0 as i32, tail.next_offset.0 as i64);
    }
    // Segments are in the order of their terms. The end of an epoch is where the next one begins.
    let next = view.completed.partition_point(|segment| segment.term.0 as i32 <= wanted);
    let end = view.completed.get(next).map_or(tail.base_offset, |segment| segment.base_offset);
    match next.checked_sub(1).and_then(|index| view.completed.get(index)) {
        Some(last) => (last.term.0 as i32, end.0 as i64),
        // All that was written so early is gone: whatever the client has of it is before the log's start.
        None => (wanted, end.max(tail.log_start).0 as i64),
    }
}

pub(crate) async fn offset_for_leader_epoch(
    broker: Arc<Broker>,
    context: Context,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let end = |topic: &str, asked: &OffsetForLeaderPartition| {
        let stream = broker.find_topic_to_read(&context, topic, Uuid::nil(), false)?;
        let shard = shard_of(&stream, asked.partition)?;
        if internal::is_internal(shard.stream) {
            internal::check_epoch(asked.current_leader_epoch)?;
            return Ok(if asked.leader_epoch == internal::EPOCH { (internal::EPOCH, 0) } else { (-1, -1) });
        }
        let view = broker.log.view(shard).map_err(|error| read_error(&error))?;
        check_epoch(&broker.log, &view, asked.current_leader_epoch)?;
        Ok(epoch_end(&broker.log, &view, asked.leader_epoch))
    };
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let partition = asked.partition;
            match end(&topic.topic, asked) {
                Ok((leader_epoch, end_offset)) => {
                    EpochEnd { error_code: 0, partition, leader_epoch, end_offset }
                }
                Err(error) => {
                    let error: ErrorCode = error;
                    EpochEnd { error_code: error.number(), partition, ..Default::default() }
                }
            }
        });
        let partitions = partitions.collect();
        OffsetForLeaderTopicResult { topic: topic.topic, partitions }
    });
    let topics = topics.collect();
    OffsetForLeaderEpochResponse { topics, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_that_are_asked_for_twice_are_found_also_in_two_lists() {
        let topic = |name: &str, partitions: &[i32]| ListOffsetsTopic {
            name: name.to_owned(),
            partitions: partitions
                .iter()
                .map(|index| ListOffsetsPartition { partition_index: *index, ..Default::default() })
                .collect(),
        };
        let topics = [topic("a", &[0, 1, 1]), topic("b", &[0]), topic("a", &[2, 0])];
        assert_eq!(repeated(&topics), [("a", 0), ("a", 1)].into());
    }
}
