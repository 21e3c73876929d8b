//! Fetch: record batches, as they were produced, and waiting for the next ones.
//!
//! What is at the tail comes from memory, what is behind it from the durable layer; what is found goes out as it lies.
//! A fetch that finds less than it wants listens to its partitions' shards and looks again when one of them moves,
//! until its time is over. A partition that has more than fits counts with all that was asked of it, as more would not
//! come of waiting. What it found counts against the room of all answers until it is sent, with the memory that
//! it keeps; where little of that is left it looks for less, but for one batch, so that consumers that read slowly
//! bound each other and stop nobody. What is kept of many partitions, while they are waited for and in the answer,
//! counts as other answers do. Where consumers are many, one that was just given little waits a moment first
//! (`pace.rs`). Where rights change, one that waits is asked for again, and what was taken from its client is answered
//! so at once. What is found is taken from the client's quota. Fetch sessions are answered with full fetches, as a
//! broker without room for sessions does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tailwater_access::RightsChanges;
use tailwater_env::Instant;
use tailwater_format::{Offset, ShardId};
use tailwater_log::{Fetched, ReadError};
use tailwater_quotas::{QuotaBound, QuotaTaker};
use tokio::sync::OwnedSemaphorePermit;

use crate::answers::positions::epoch_end;
use crate::api::Api;
use crate::broker::{Broker, Context, Outcome, shard_of};
use crate::errors::{ErrorCode, read_error};
use crate::internal;
use crate::messages::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchResponseEpochEndOffset, FetchableTopicResponse,
    PartitionData,
};
use crate::messages::header::response;
use crate::wire::{Frame, RecordsBytes};

/// From this version on topics are named by their ids.
const IDS_FROM_VERSION: i16 = 13;
/// The epoch of a client that wants no session.
const NO_SESSION: i32 = -1;
/// The epoch of a client that begins one.
const NEW_SESSION: i32 = 0;
/// What each topic takes besides its name, and each partition besides its records: as long as it is waited for, and in
/// the answer.
const TOPIC_BYTES: usize = 128;
const PARTITION_BYTES: usize = 256;
/// Others have their turn after so many partitions were looked at.
const TURN_PARTITIONS: usize = 256;

/// What is asked of one partition.
struct FetchAsked {
    shard: Result<ShardId, ErrorCode>,
    partition: FetchPartition,
}

impl FetchAsked {
    fn bytes_max(&self) -> usize {
        usize::try_from(self.partition.partition_max_bytes).unwrap_or(0)
    }
}

pub(crate) async fn fetch(
    broker: Arc<Broker>,
    context: Context,
    correlation_id: i32,
    request: FetchRequest,
) -> Outcome {
    let version = context.version;
    if !matches!(request.session_epoch, NO_SESSION | NEW_SESSION) {
        // No session was ever given, so the client begins again with all of its partitions.
        let error_code = ErrorCode::FetchSessionIdNotFound.number();
        let answer = FetchResponse { error_code, ..Default::default() };
        return response(Api::Fetch, version, correlation_id, &answer).into();
    }
    // Before anything is asked for, so that no change is missed.
    let rights = broker.rights();
    let wanted = take_apart(&broker, &context, request);
    let besides = match broker.room_for_answer(wanted.bytes()) {
        Ok(besides) => besides,
        Err(why) => return Outcome::Close(why),
    };
    let (answer, records, room) = answer(&broker, &context, wanted, rights).await;
    let outcome = response(Api::Fetch, version, correlation_id, &answer).into();
    let Outcome::Frame(frame, _) = outcome else { return outcome };
    // What is short is in the frame itself, and what is long is kept by nobody else.
    drop(answer);
    let (frame, room) = match broker.fit_answer_room(room, records.memory) {
        Ok(room) => (frame, room),
        // One batch goes out in any case, and then keeps nothing but itself.
        Err(room) if records.memory > records.bytes => (Frame { pieces: vec![frame.concat()] }, room),
        Err(room) => (frame, room),
    };
    Outcome::Frame(frame, room.into_iter().chain(besides).collect())
}

/// The records of an answer.
#[derive(Clone, Copy)]
struct FetchKept {
    bytes: usize,
    /// Bytes of the memory that they keep.
    memory: usize,
}

/// The answer, what of it is records, and the room that was taken for these.
async fn answer(
    broker: &Arc<Broker>,
    context: &Context,
    wanted: Wanted,
    mut rights: RightsChanges,
) -> (FetchResponse, FetchKept, Option<OwnedSemaphorePermit>) {
    let Wanted { mut topics, min_bytes, max_bytes, wait, committed_only } = wanted;
    let began = broker.env.now();
    let deadline = began + wait;
    let next_fetch = *context.peer.next_fetch.lock();
    if broker.env.now() < next_fetch {
        broker.env.sleep_until(next_fetch.min(deadline)).await;
    }
    let asked = topics.iter().flat_map(|(_, asked)| asked);
    let wanted = asked.fold(0_usize, |wanted, asked| wanted.saturating_add(asked.bytes_max()));
    let wanted = wanted.min(max_bytes);
    let mut listener = None;
    loop {
        let (room, permit) = broker.take_answer_room(wanted);
        // Whoever gets less room than it wants waits for no more than something.
        let enough = if room < wanted { min_bytes.min(1) } else { min_bytes };
        let found = look(broker, &topics, room, committed_only, began).await;
        // As a broker does, who asks for nothing is not made to wait.
        if found.ready >= enough || found.failed || topics.is_empty() || broker.env.now() >= deadline {
            let now = broker.env.now();
            *context.peer.next_fetch.lock() = now + broker.pace.answered(now, found.bytes);
            broker.stats.fetched(found.hot_bytes as u64, (found.bytes - found.hot_bytes) as u64);
            let records = FetchKept { bytes: found.bytes, memory: found.memory };
            let taker = QuotaTaker::of(context.peer.who(), &context.client_id);
            broker.quotas.take(QuotaBound::ConsumerByteRate, taker, found.bytes as u64);
            let throttle_time_ms = broker.throttle_time_ms(context);
            return (FetchResponse { throttle_time_ms, ..respond(topics, found) }, records, permit);
        }
        drop((found, permit));
        let Some(listening) = &listener else {
            // What comes from here on is noticed; what came since the last look is seen by the next one.
            let shards = topics.iter().flat_map(|(_, asked)| asked).filter_map(|asked| asked.shard.ok());
            listener = Some(broker.log.listen(shards));
            continue;
        };
        let left = deadline.since(broker.env.now());
        // Woken or out of time: the next look tells.
        tokio::select! {
            biased;
            () = rights.changed() => ask_again(broker, context, &mut topics),
            _ = broker.env.timeout(left, listening.changed()) => {}
        }
    }
}

/// Takes from a Fetch that waits what its client may not read any more.
fn ask_again(broker: &Broker, context: &Context, topics: &mut [(FetchableTopicResponse, Vec<FetchAsked>)]) {
    for (_, asked) in topics {
        let Some(shard) = asked.iter().find_map(|asked| asked.shard.ok()) else { continue };
        if let Err(error) = broker.may_still_read(context, shard.stream) {
            asked.iter_mut().for_each(|asked| asked.shard = Err(error));
        }
    }
}

/// What a Fetch that waits keeps of its request.
struct Wanted {
    /// Those with partitions that were not named before: as much memory as the log has shards.
    topics: Vec<(FetchableTopicResponse, Vec<FetchAsked>)>,
    min_bytes: usize,
    max_bytes: usize,
    wait: Duration,
    committed_only: bool,
}

impl Wanted {
    /// What this takes of memory, and what the answer takes besides its records.
    fn bytes(&self) -> usize {
        let topics = self.topics.iter();
        topics.map(|(topic, asked)| TOPIC_BYTES + 2 * topic.topic.len() + PARTITION_BYTES * asked.len()).sum()
    }
}

/// Takes a request apart: a wait may be long, so nothing else of it is kept.
fn take_apart(broker: &Arc<Broker>, context: &Context, request: FetchRequest) -> Wanted {
    let by_id = context.version >= IDS_FROM_VERSION;
    let mut asked_before = BTreeSet::new();
    let topics = request.topics.into_iter().map(|topic| {
        let stream = broker.find_topic_to_read(context, &topic.topic, topic.topic_id, by_id);
        let asked = topic.partitions.into_iter().map(|partition| {
            let shard = stream
                .as_ref()
                .map_err(|error| *error)
                .and_then(|stream| shard_of(stream, partition.partition));
            FetchAsked { shard, partition }
        });
        // A partition that is named again is answered once.
        let asked = asked.filter(|asked| {
            asked.shard.is_err() || asked.shard.is_ok_and(|shard| asked_before.insert(shard))
        });
        let asked = asked.collect::<Vec<_>>();
        let answer =
            FetchableTopicResponse { topic: topic.topic, topic_id: topic.topic_id, partitions: vec![] };
        (answer, asked)
    });
    let topics = topics.filter(|(_, asked)| !asked.is_empty()).collect();
    let taker = QuotaTaker::of(context.peer.who(), &context.client_id);
    let rate = broker.quotas.rate(QuotaBound::ConsumerByteRate, taker);
    // Whoever has a quota is given a second's worth at once, and then held for as long: not much at once and then
    // nothing for long.
    let rate = rate.map_or(usize::MAX, |rate| usize::try_from(rate).unwrap_or(usize::MAX));
    let max_bytes = usize::try_from(request.max_bytes).unwrap_or(0).min(broker.configs.now().fetch_bytes_max);
    let max_bytes = max_bytes.min(rate);
    Wanted {
        topics,
        // No answer has more than that, so nobody waits for more.
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0).min(max_bytes),
        max_bytes,
        wait: Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)),
        committed_only: request.isolation_level == 1,
    }
}

/// What one look at all partitions found.
#[derive(Default)]
struct Found {
    partitions: Vec<PartitionData>,
    bytes: usize,
    /// Bytes that are there for the client, up to what it asked of each partition; at least `bytes`.
    ready: usize,
    /// Bytes of the memory that they keep.
    memory: usize,
    /// Of the bytes, from memory.
    hot_bytes: usize,
    /// Whether the client has to know something at once.
    failed: bool,
}

async fn look(
    broker: &Broker,
    topics: &[(FetchableTopicResponse, Vec<FetchAsked>)],
    max_bytes: usize,
    committed_only: bool,
    began: Instant,
) -> Found {
    let mut found = Found::default();
    for (number, asked) in topics.iter().flat_map(|(_, asked)| asked).enumerate() {
        if number % TURN_PARTITIONS == TURN_PARTITIONS - 1 {
            tokio::task::yield_now().await;
        }
        let mut data = PartitionData {
            partition_index: asked.partition.partition,
            high_watermark: -1,
            aborted_transactions: (committed_only || asked.shard.is_err()).then(Vec::new),
            ..Default::default()
        };
        let room = max_bytes.saturating_sub(found.bytes);
        match look_at(broker, asked, room, found.bytes == 0, began, &mut data).await {
            Ok(FetchLook { fetched, is_hot, has_more }) => {
                let wanted = if has_more { asked.bytes_max().min(room) } else { 0 };
                found.ready += fetched.bytes.max(wanted);
                found.bytes += fetched.bytes;
                found.memory += fetched.memory;
                found.hot_bytes += if is_hot { fetched.bytes } else { 0 };
                found.failed |= data.diverging_epoch.epoch >= 0;
                data.records = RecordsBytes(fetched.pieces);
            }
            Err(error) => {
                data.error_code = error.number();
                found.failed = true;
            }
        }
        found.partitions.push(data);
    }
    found
}

/// What one look at a partition found.
#[derive(Default)]
struct FetchLook {
    fetched: Fetched,
    /// Whether that came from memory.
    is_hot: bool,
    /// Whether there are records behind it.
    has_more: bool,
}

async fn look_at(
    broker: &Broker,
    asked: &FetchAsked,
    room: usize,
    at_least_one: bool,
    began: Instant,
    data: &mut PartitionData,
) -> Result<FetchLook, ErrorCode> {
    let (log, partition) = (&broker.log, &asked.partition);
    let shard = asked.shard?;
    if internal::is_internal(shard.stream) {
        internal::look_at(data, partition.fetch_offset, partition.current_leader_epoch)?;
        return Ok(FetchLook::default());
    }
    let tails = log.tails(shard.stream, &[shard.shard]).map_err(|error| read_error(&error))?;
    let tail = tails.first().ok_or(ErrorCode::UnknownTopicOrPartition)?;
    // What comes while the records are read may be waited for.
    let end = tail.next_offset;
    let term = log.leader_term(shard, tail.term).0 as i32;
    match partition.current_leader_epoch {
        -1 => {}
        given if given < term => return Err(ErrorCode::FencedLeaderEpoch),
        given if given > term => return Err(ErrorCode::UnknownLeaderEpoch),
        _ => {}
    }
    let offset = u64::try_from(partition.fetch_offset).map_err(|_| ErrorCode::OffsetOutOfRange)?;
    let max = asked.bytes_max().min(room);
    // Of a copy it may be there already where its source is: that is waited for, as any other end is. Of what its
    // source does not have either, now that it is asked for, the client is told.
    if offset > tail.next_offset.0 && log.is_copy(shard.stream) {
        if log.is_beyond_source(shard, Offset(offset), began) == Some(true) {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        data.high_watermark = tail.next_offset.0 as i64;
        data.last_stable_offset = data.high_watermark;
        data.log_start_offset = tail.log_start.0 as i64;
        return Ok(FetchLook::default());
    }
    if partition.last_fetched_epoch >= 0 {
        let view = log.view(shard).map_err(|error| read_error(&error))?;
        let (epoch, end_offset) = epoch_end(log, &view, partition.last_fetched_epoch);
        if epoch < 0 {
            // Nothing was ever written in it: the client read from somebody else.
            return Err(ErrorCode::OffsetOutOfRange);
        }
        if epoch < partition.last_fetched_epoch || end_offset < partition.fetch_offset {
            data.diverging_epoch = FetchResponseEpochEndOffset { epoch, end_offset };
        }
    }
    let fetched = if data.diverging_epoch.epoch >= 0 {
        Ok((Fetched::default(), true))
    } else {
        match log.fetch_hot(shard, Offset(offset), max, at_least_one) {
            Ok(Some(fetched)) => Ok((fetched, true)),
            Ok(None) if max == 0 && !at_least_one => Ok((Fetched::default(), true)),
            Ok(None) => {
                log.fetch(shard, Offset(offset), max, at_least_one).await.map(|fetched| (fetched, false))
            }
            Err(error) => Err(error),
        }
    };
    let fetched = fetched.map_err(|error| {
        let is_usual = matches!(error, ReadError::Truncated { .. } | ReadError::BeyondEnd { .. });
        if !is_usual && let Some(left_out) = broker.complain("fetch failed") {
            tracing::warn!(%shard, offset, %error, left_out, "a fetch failed");
        }
        read_error(&error)
    })?;
    // After the records, so that these are not behind the high watermark.
    let tails = log.tails(shard.stream, &[shard.shard]).map_err(|error| read_error(&error))?;
    let tail = tails.first().ok_or(ErrorCode::UnknownTopicOrPartition)?;
    data.high_watermark = tail.next_offset.0 as i64;
    data.last_stable_offset = data.high_watermark;
    data.log_start_offset = tail.log_start.0 as i64;
    let (fetched, is_hot) = fetched;
    let has_more = fetched.next_offset.unwrap_or(Offset(offset)) < end;
    Ok(FetchLook { fetched, is_hot, has_more })
}

fn respond(topics: Vec<(FetchableTopicResponse, Vec<FetchAsked>)>, found: Found) -> FetchResponse {
    let mut partitions = found.partitions.into_iter();
    let responses = topics.into_iter().map(|(mut topic, asked)| {
        topic.partitions = partitions.by_ref().take(asked.len()).collect();
        topic
    });
    FetchResponse { responses: responses.collect(), ..Default::default() }
}
