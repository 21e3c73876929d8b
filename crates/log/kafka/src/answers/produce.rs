//! Produce and InitProducerId.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use tailwater_format::{BatchError, BatchHeader, Codec, Offset};
use tailwater_log::{AppendAnswer, AppendOptions, LogStreamInfo, PendingAppend, Timestamps};
use uuid::Uuid;

use crate::api::Api;
use crate::broker::{Broker, Context, Memory, Outcome, Promised, shard_of};
use crate::errors::{ErrorCode, RefusedRequest, stream_error};
use crate::messages::header::response;
use crate::messages::produce::{
    InitProducerIdRequest, InitProducerIdResponse, PartitionProduceResponse, ProduceRequest, ProduceResponse,
    TopicProduceResponse,
};

/// From this version of Produce on batches may be compressed with zstd.
const ZSTD_FROM_VERSION: i16 = 7;
/// Others have their turn after so many bytes of batches, and between compressed ones.
const TURN_BYTES: usize = 1 << 20;
/// From this version of Produce on topics are named by their ids.
const IDS_FROM_VERSION: i16 = 13;

/// Bytes of the words of one error. Nothing that is said here is longer; what a disk says may be.
const WORDS_BYTES_MAX: usize = 400;
/// What the answer for one partition takes at most, and what it takes until it is answered.
const PARTITION_BYTES_MAX: usize = 64 + WORDS_BYTES_MAX;
/// What the answer for one topic takes at most, beside its name and its partitions; and all answers beside their
/// topics.
const TOPIC_BYTES_MAX: usize = 64;

/// What the answer to a request takes at most.
fn answer_bytes_max(request: &ProduceRequest) -> usize {
    let topics = request
        .topic_data
        .iter()
        .map(|topic| TOPIC_BYTES_MAX + topic.name.len() + PARTITION_BYTES_MAX * topic.partition_data.len());
    TOPIC_BYTES_MAX + topics.sum::<usize>()
}

/// One partition's append, on its way.
struct Begun {
    partition: i32,
    log_start: i64,
    append_time: bool,
    bytes: u64,
    appended: Result<PendingAppend, RefusedRequest>,
}

/// Begins to append; the batches of one connection are submitted in the order in which this is called. If there is no
/// room for the answer nothing is, and the connection has to be closed, for this reason.
///
/// A batch is read from end to end before it is submitted, and what is compressed may come to far more than was sent,
/// so others have their turn in between.
pub(crate) async fn produce(
    broker: &Arc<Broker>,
    context: &Context,
    correlation_id: i32,
    request: ProduceRequest,
    memory: Memory,
) -> Result<Promised, String> {
    let (version, acks) = (context.version, request.acks);
    let room = broker.room_for_answer(answer_bytes_max(&request))?;
    let room_bytes = room.as_ref().map_or(0, |room| room.num_permits() << 10);
    let refused = if !matches!(acks, -1..=1) {
        Some(RefusedRequest::new(
            ErrorCode::InvalidRequiredAcks,
            format!("acks is {acks}: it is 0, 1 or -1, which is all"),
        ))
    } else if request.transactional_id.is_some() {
        Some(RefusedRequest::new(ErrorCode::InvalidTxnState, NO_TRANSACTIONS))
    } else {
        None
    };
    let mut topics = Vec::with_capacity(request.topic_data.len());
    let (mut has_begun, mut read_bytes) = (false, 0);
    for topic in request.topic_data {
        let found = broker.find_topic(context, &topic.name, topic.topic_id, version >= IDS_FROM_VERSION);
        let found = found.map_err(|error| match error {
            ErrorCode::TopicAuthorizationFailed => {
                RefusedRequest::new(error, "this client may not append to it")
            }
            ErrorCode::InvalidTopic => RefusedRequest::new(error, "the node alone writes to it"),
            error => RefusedRequest::new(error, "there is no such topic"),
        });
        let mut partitions = Vec::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data {
            let stream = match (&refused, &found) {
                (Some(refused), _) | (None, Err(refused)) => Err(refused.clone()),
                (None, Ok(stream)) => Ok(stream),
            };
            let mut records = partition.records.into_bytes();
            if matches!(memory, Memory::Uncounted(bytes) if records.len() < bytes / 2) {
                // The log counts what it keeps, and has to keep no more.
                records = Bytes::copy_from_slice(&records);
            }
            let is_compressed = BatchHeader::parse(&records).is_ok_and(|header| header.codec != Codec::None);
            read_bytes += if is_compressed { TURN_BYTES } else { records.len() };
            if std::mem::replace(&mut has_begun, true) && read_bytes >= TURN_BYTES {
                read_bytes = 0;
                tokio::task::yield_now().await;
            }
            partitions.push(begin(broker, version, stream, partition.index, records));
        }
        topics.push((topic.name, topic.topic_id, partitions));
    }
    let (broker, context) = (Arc::clone(broker), context.clone());
    // It says how long others are waited for. With fewer acks there are none, and what is appended is no error.
    let timeout = (acks == -1).then(|| Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)));
    let answer = async move {
        let responses = join_all(topics.into_iter().map(|topic| finish(&broker, timeout, topic))).await;
        if acks != 0 {
            let throttle_time_ms = broker.throttle_time_ms(&context);
            let answer = ProduceResponse { responses, throttle_time_ms, ..Default::default() };
            return match response(Api::Produce, version, correlation_id, &answer).into() {
                Outcome::Frame(frame, _) => Outcome::Frame(frame, Vec::from_iter(room)),
                other => other,
            };
        }
        let mut partitions = responses.iter().flat_map(|topic| &topic.partition_responses);
        match partitions.find(|partition| partition.error_code != 0) {
            None => Outcome::Nothing,
            Some(failed) => Outcome::Close(format!(
                "records sent without waiting for an acknowledgement were not taken: {}",
                failed.error_message.as_deref().unwrap_or("no reason")
            )),
        }
    };
    Ok(Promised { answer: answer.boxed(), bytes: room_bytes })
}

const NO_TRANSACTIONS: &str = "transactions are not supported";

fn begin(
    broker: &Broker,
    version: i16,
    stream: Result<&LogStreamInfo, RefusedRequest>,
    partition: i32,
    records: Bytes,
) -> Begun {
    let bytes = records.len() as u64;
    let refused = |refused| {
        let begun = Err(refused);
        Begun { partition, log_start: -1, append_time: false, bytes, appended: begun }
    };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => return refused(error),
    };
    let shard = match shard_of(stream, partition) {
        Ok(shard) => shard,
        Err(error) => {
            let why = format!("the topic has {} partitions", stream.config.shards);
            return refused(RefusedRequest::new(error, why));
        }
    };
    let header = match check(&records, version, stream.config.timestamps) {
        Ok(header) => header,
        Err(error) => return refused(error),
    };
    let tail = broker.log.tails(stream.id, &[shard.shard]).ok().and_then(|tails| tails.first().copied());
    let appended = if header.base_offset == Offset(0) {
        let pending = broker.log.submit(stream.id, shard.shard, records, AppendOptions::default());
        pending.map_err(RefusedRequest::from)
    } else {
        let why = format!("a producer's batch begins with offset {}, not 0", header.base_offset);
        Err(RefusedRequest::new(ErrorCode::InvalidRecord, why))
    };
    Begun {
        partition,
        log_start: tail.map_or(-1, |tail| tail.log_start.0 as i64),
        append_time: stream.config.timestamps == Timestamps::Append,
        bytes,
        appended,
    }
}

/// What Kafka demands of a producer's batch beyond what the log does.
fn check(records: &[u8], version: i16, timestamps: Timestamps) -> Result<BatchHeader, RefusedRequest> {
    let invalid = |why: String| RefusedRequest::new(ErrorCode::InvalidRecord, why);
    let header = BatchHeader::parse(records).map_err(|error| match error {
        // What ends too early, and the formats before this one, were never batches.
        BatchError::Incomplete { .. } | BatchError::Magic { found: 0 | 1 } => invalid(error.to_string()),
        error => RefusedRequest::new(ErrorCode::CorruptMessage, error.to_string()),
    })?;
    if header.len != records.len() {
        return Err(invalid("a partition's records are not exactly one batch".to_owned()));
    }
    if header.codec == Codec::Zstd && version < ZSTD_FROM_VERSION {
        let why = "zstd is for clients that produce in version 7 or later";
        return Err(RefusedRequest::new(ErrorCode::UnsupportedCompressionType, why));
    }
    if header.is_transactional() {
        return Err(RefusedRequest::new(ErrorCode::InvalidTxnState, NO_TRANSACTIONS));
    }
    if header.is_append_time() && timestamps == Timestamps::Create {
        let why = "a producer's batch says that its timestamps are those of its append";
        return Err(RefusedRequest::new(ErrorCode::InvalidTimestamp, why));
    }
    Ok(header)
}

async fn finish(
    broker: &Broker,
    timeout: Option<Duration>,
    (name, topic_id, begun): (String, Uuid, Vec<Begun>),
) -> TopicProduceResponse {
    let partitions = begun.into_iter().map(async |begun| {
        let Begun { partition, log_start, append_time, bytes, appended } = begun;
        let outcome = match appended {
            Ok(pending) => {
                let outcome = match timeout {
                    Some(timeout) => broker.env.timeout(timeout, pending.outcome()).await,
                    None => Some(pending.outcome().await),
                };
                outcome.map(|outcome| outcome.map_err(RefusedRequest::from)).unwrap_or_else(|| {
                    let why = "not durable in time, but it may still become so";
                    Err(RefusedRequest::new(ErrorCode::RequestTimedOut, why))
                })
            }
            Err(refused) => Err(refused),
        };
        match outcome {
            Ok(appended) => {
                broker.stats.appended(appended.last_offset.0 - appended.base_offset.0 + 1, bytes);
                done(partition, log_start, append_time, &appended)
            }
            Err(RefusedRequest { error, mut why }) => {
                broker.stats.append_refused();
                cut(&mut why, WORDS_BYTES_MAX);
                tracing::debug!(topic = name, partition, ?error, why, "an append was refused");
                PartitionProduceResponse {
                    index: partition,
                    error_code: error.number(),
                    base_offset: -1,
                    log_start_offset: if is_told_the_start(error) { log_start } else { -1 },
                    error_message: Some(why),
                    ..Default::default()
                }
            }
        }
    });
    let partition_responses = join_all(partitions).await;
    TopicProduceResponse { name, topic_id, partition_responses }
}

/// Cuts words that are longer than `max` bytes.
fn cut(words: &mut String, max: usize) {
    if words.len() > max {
        let end = (0..=max).rev().find(|end| words.is_char_boundary(*end));
        words.truncate(end.unwrap_or_default());
    }
}

/// Whether a producer is told where the log begins although its batch was refused: Kafka tells those whose batch it
/// looked into, so that they can find out whether what they wrote before was deleted.
fn is_told_the_start(error: ErrorCode) -> bool {
    use ErrorCode::{InvalidProducerEpoch, InvalidRecord, InvalidTimestamp, OutOfOrderSequenceNumber};
    matches!(error, InvalidRecord | InvalidTimestamp | OutOfOrderSequenceNumber | InvalidProducerEpoch)
}

fn done(
    partition: i32,
    log_start: i64,
    append_time: bool,
    appended: &AppendAnswer,
) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index: partition,
        base_offset: appended.base_offset.0 as i64,
        log_append_time_ms: if append_time { appended.append_time_ms } else { -1 },
        log_start_offset: log_start,
        ..Default::default()
    }
}

pub(crate) async fn init_producer_id(
    broker: Arc<Broker>,
    context: Context,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let refused = |error: ErrorCode| InitProducerIdResponse {
        error_code: error.number(),
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    };
    if request.transactional_id.as_deref() == Some("") {
        return refused(ErrorCode::InvalidRequest);
    }
    if request.transactional_id.is_some() {
        // What every client takes for final: of other errors some try again for ever.
        return refused(ErrorCode::TransactionalIdAuthorizationFailed);
    }
    if let Err(error) = broker.authorize_cluster(&context) {
        return refused(error);
    }
    match broker.log.init_producer_id().await {
        Ok(producer_id) => InitProducerIdResponse { producer_id, ..Default::default() },
        Err(error) => match stream_error(&error) {
            // What clients try again.
            ErrorCode::NotLeaderOrFollower => refused(ErrorCode::CoordinatorNotAvailable),
            error => refused(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_where_a_character_ends() {
        for (words, max, expected) in
            [("word", 4, "word"), ("words", 4, "word"), ("wör", 2, "w"), ("ö", 1, "")]
        {
            let mut cut_words = words.to_owned();
            cut(&mut cut_words, max);
            assert_eq!(cut_words, expected);
        }
    }
}
