//! CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords. Each topic, and each partition, has an answer of its
//! own: what is wrong with one changes nothing for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_format::{Offset, ShardId, StreamId};
use tailwater_log::{LogStreamInfo, StreamConfig, StreamError};
use uuid::Uuid;

use crate::answers::configs;
use crate::broker::{Broker, Context, shard_of};
use crate::errors::{ErrorCode, RefusedRequest, stream_error};
use crate::internal::{OFFSETS_TOPIC, check_not_internal};
use crate::messages::topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreatePartitionsRequest,
    CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult, CreateTopicsRequest,
    CreateTopicsResponse, DeletableTopicResult, DeleteRecordsPartition, DeleteRecordsPartitionResult,
    DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopicResult, DeleteTopicState,
    DeleteTopicsRequest, DeleteTopicsResponse,
};
use crate::{replicas, topic_config};

/// The answers of CreateTopics tell partitions and configurations from this version on.
const DETAILS_FROM_VERSION: i16 = 5;
/// The offset that stands for a partition's end in DeleteRecords.
const HIGH_WATERMARK: i64 = -1;

/// The names that are there more than once.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name.to_owned()).collect()
}

/// Whether a client may do to a topic what it asks for.
pub(crate) fn may(broker: &Broker, context: &Context, topic: &str) -> Result<(), RefusedRequest> {
    let refused = |error| RefusedRequest::new(error, format!("this client may not do that to topic {topic}"));
    broker.authorize_topic(context, topic).map_err(refused)
}

fn twice() -> RefusedRequest {
    RefusedRequest::new(ErrorCode::InvalidRequest, "the topic is named twice in one request")
}

pub(crate) async fn create_topics(
    broker: Arc<Broker>,
    context: Context,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let repeated = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut topics: Vec<CreatableTopicResult> =
        repeated.iter().map(|name| not_created(name.clone(), twice())).collect();
    for topic in request.topics.into_iter().filter(|topic| !repeated.contains(&topic.name)) {
        let created = create(&broker, &context, &topic, request.validate_only).await;
        topics.push(match created {
            Ok((id, config)) => created_topic(&broker, &context, topic.name, id, &config),
            Err(refused) => {
                tracing::debug!(topic = topic.name, why = refused.why, "not created");
                not_created(topic.name, refused)
            }
        });
    }
    CreateTopicsResponse { topics, ..Default::default() }
}

fn not_created(name: String, refused: RefusedRequest) -> CreatableTopicResult {
    CreatableTopicResult {
        name,
        error_code: refused.error.number(),
        error_message: Some(refused.why),
        configs: Some(vec![]),
        ..Default::default()
    }
}

fn created_topic(
    broker: &Broker,
    context: &Context,
    name: String,
    topic_id: Uuid,
    config: &StreamConfig,
) -> CreatableTopicResult {
    let details = context.version >= DETAILS_FROM_VERSION;
    let configs = details.then(|| {
        let values = configs::of_topic(broker, config, None, false);
        let value = |value: crate::messages::configs::DescribeConfigsResourceResult| CreatableTopicConfigs {
            name: value.name,
            value: value.value,
            read_only: value.read_only,
            config_source: value.config_source,
            is_sensitive: false,
        };
        values.into_iter().map(value).collect()
    });
    CreatableTopicResult {
        name,
        topic_id,
        num_partitions: config.shards as i32,
        replication_factor: broker.log.decided_copies(config).write_quorum as i16,
        configs,
        ..Default::default()
    }
}

/// Creates a topic, or only looks whether it could be; its id, which is nil then, and its configuration.
async fn create(
    broker: &Broker,
    context: &Context,
    topic: &CreatableTopic,
    only_look: bool,
) -> Result<(Uuid, StreamConfig), RefusedRequest> {
    may(broker, context, &topic.name)?;
    tailwater_log::check_name(&topic.name).map_err(|error| RefusedRequest::from(StreamError::from(error)))?;
    if topic.name == OFFSETS_TOPIC || broker.log.stream(&topic.name).is_ok() {
        return Err(StreamError::Exists(topic.name.clone()).into());
    }
    let mut config = StreamConfig { shards: partitions(broker, topic)?, ..StreamConfig::default() };
    for wanted in &topic.configs {
        let value = wanted.value.as_deref().ok_or_else(|| {
            RefusedRequest::new(ErrorCode::InvalidConfig, format!("{} is null: no topic's is", wanted.name))
        })?;
        topic_config::key(&wanted.name)?.set(&mut config, value)?;
    }
    config.write_quorum = replicas::write_quorum(&broker.log, topic.replication_factor)?;
    let config = replicas::settle(&broker.log, None, config)?;
    if only_look {
        broker.log.check_create(&topic.name, &config)?;
        broker.log.check_copies(&config).await?;
        return Ok((Uuid::nil(), config));
    }
    let created = broker.log.create_stream(&topic.name, config).await?;
    Ok((created.id.0, created.config))
}

/// How many partitions a new topic wants.
fn partitions(broker: &Broker, topic: &CreatableTopic) -> Result<u32, RefusedRequest> {
    if topic.assignments.is_empty() {
        return match topic.num_partitions {
            -1 => Ok(broker.configs.now().default_partitions),
            given => u32::try_from(given).ok().filter(|given| *given > 0).ok_or_else(|| {
                RefusedRequest::new(ErrorCode::InvalidPartitions, format!("{given} partitions: at least 1"))
            }),
        };
    }
    if topic.num_partitions != -1 || topic.replication_factor != -1 {
        let why = "with an assignment of replicas, partitions and replication factor are -1";
        return Err(RefusedRequest::new(ErrorCode::InvalidRequest, why));
    }
    let mut numbers: Vec<i32> = topic.assignments.iter().map(|given| given.partition_index).collect();
    numbers.sort_unstable();
    if !(0..).zip(&numbers).all(|(expected, number)| expected == *number) {
        let why = "the partitions of an assignment are 0, 1, and so on, each once";
        return Err(RefusedRequest::new(ErrorCode::InvalidReplicaAssignment, why));
    }
    for assignment in &topic.assignments {
        assigned(broker, &assignment.broker_ids)?;
    }
    Ok(numbers.len() as u32)
}

/// Whether a partition is to be where it can be.
fn assigned(broker: &Broker, brokers: &[i32]) -> Result<(), RefusedRequest> {
    if brokers == [broker.config.broker_id] {
        return Ok(());
    }
    let why = format!("a partition has one replica, on broker {}", broker.config.broker_id);
    Err(RefusedRequest::new(ErrorCode::InvalidReplicaAssignment, why))
}

pub(crate) async fn delete_topics(
    broker: Arc<Broker>,
    context: Context,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    // Before version 6 topics were named only.
    let by_name = |name| DeleteTopicState { name: Some(name), topic_id: Uuid::nil() };
    let wanted: Vec<DeleteTopicState> = match context.version {
        ..6 => request.topic_names.into_iter().map(by_name).collect(),
        _ => request.topics,
    };
    let repeated = repeated(wanted.iter().filter_map(|topic| topic.name.as_deref()));
    let mut responses = Vec::new();
    let mut told = BTreeSet::new();
    for topic in wanted {
        let outcome = match &topic.name {
            Some(name) if repeated.contains(name) => {
                if !told.insert(name.clone()) {
                    continue;
                }
                Err(twice())
            }
            _ => delete(&broker, &context, &topic).await,
        };
        responses.push(match outcome {
            Ok(deleted) => DeletableTopicResult {
                name: Some(deleted.name),
                topic_id: deleted.id.0,
                ..Default::default()
            },
            Err(refused) => DeletableTopicResult {
                name: topic.name,
                topic_id: topic.topic_id,
                error_code: refused.error.number(),
                error_message: Some(refused.why),
            },
        });
    }
    DeleteTopicsResponse { responses, ..Default::default() }
}

async fn delete(
    broker: &Broker,
    context: &Context,
    topic: &DeleteTopicState,
) -> Result<LogStreamInfo, RefusedRequest> {
    let stream = match (&topic.name, topic.topic_id) {
        (Some(name), id) if id.is_nil() => {
            may(broker, context, name)?;
            check_not_internal(name)?;
            broker.log.stream(name)?
        }
        (None, id) if !id.is_nil() => {
            let stream = broker.log.stream_by_id(StreamId(id));
            let stream =
                stream.map_err(|error| RefusedRequest::new(ErrorCode::UnknownTopicId, error.to_string()))?;
            // Whoever knows its id only is not told its name.
            let refused = |error| RefusedRequest::new(error, "this client may not do that to this topic");
            broker.authorize_topic(context, &stream.name).map_err(refused)?;
            stream
        }
        _ => {
            return Err(RefusedRequest::new(
                ErrorCode::InvalidRequest,
                "a topic has a name or an id, not both",
            ));
        }
    };
    broker.log.delete_stream(&stream.name).await?;
    Ok(stream)
}

pub(crate) async fn create_partitions(
    broker: Arc<Broker>,
    context: Context,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let repeated = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
    let result = |name, outcome: Result<(), RefusedRequest>| {
        let refused = outcome.err();
        CreatePartitionsTopicResult {
            name,
            error_code: refused.as_ref().map_or(0, |refused| refused.error.number()),
            error_message: refused.map(|refused| refused.why),
        }
    };
    let mut results: Vec<_> = repeated.iter().map(|name| result(name.clone(), Err(twice()))).collect();
    for topic in request.topics.into_iter().filter(|topic| !repeated.contains(&topic.name)) {
        let name = topic.name.clone();
        results.push(result(name, grow(&broker, &context, topic, request.validate_only).await));
    }
    CreatePartitionsResponse { results, ..Default::default() }
}

async fn grow(
    broker: &Broker,
    context: &Context,
    topic: CreatePartitionsTopic,
    only_look: bool,
) -> Result<(), RefusedRequest> {
    may(broker, context, &topic.name)?;
    check_not_internal(&topic.name)?;
    if let Some(assignments) = &topic.assignments {
        for assignment in assignments {
            assigned(broker, &assignment.broker_ids)?;
        }
    }
    let assigned = topic.assignments.map(|assignments| assignments.len() as u32);
    let change = move |old: &StreamConfig| {
        let more = u32::try_from(topic.count).ok().filter(|count| *count > old.shards).ok_or_else(|| {
            let why =
                format!("{} partitions: the topic has {} and can only get more", topic.count, old.shards);
            RefusedRequest::new(ErrorCode::InvalidPartitions, why)
        })?;
        if assigned.is_some_and(|assigned| assigned != more - old.shards) {
            let why = format!("an assignment of replicas for each of {} new partitions", more - old.shards);
            return Err(RefusedRequest::new(ErrorCode::InvalidReplicaAssignment, why));
        }
        Ok(StreamConfig { shards: more, ..old.clone() })
    };
    if only_look {
        let old = broker.log.stream(&topic.name)?.config;
        return Ok(old.may_become(&change(&old)?).map_err(StreamError::from)?);
    }
    broker.log.alter_stream(&topic.name, change).await?;
    Ok(())
}

pub(crate) async fn delete_records(
    broker: Arc<Broker>,
    context: Context,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut topics = Vec::new();
    for topic in request.topics {
        let stream = broker.find_topic(&context, &topic.name, Uuid::nil(), false);
        let mut partitions = Vec::new();
        for asked in &topic.partitions {
            let truncated = match &stream {
                Ok(stream) => truncate(&broker, stream, asked).await,
                Err(error) => Err(*error),
            };
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: asked.partition_index,
                low_watermark: truncated.map_or(-1, |start| start.0 as i64),
                error_code: truncated.err().map_or(0, ErrorCode::number),
            });
        }
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    DeleteRecordsResponse { topics, ..Default::default() }
}

/// The first offset that is left.
async fn truncate(
    broker: &Broker,
    stream: &LogStreamInfo,
    asked: &DeleteRecordsPartition,
) -> Result<Offset, ErrorCode> {
    let shard: ShardId = shard_of(stream, asked.partition_index)?;
    let before = match asked.offset {
        HIGH_WATERMARK => {
            let view = broker.log.view(shard).map_err(|error| crate::errors::read_error(&error))?;
            view.tail.next_offset
        }
        given => Offset(u64::try_from(given).map_err(|_| ErrorCode::OffsetOutOfRange)?),
    };
    broker.log.truncate(&stream.name, shard.shard, before).await.map_err(|error| stream_error(&error))
}
