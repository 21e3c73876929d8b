//! DescribeCluster, DescribeTopicPartitions, DescribeLogDirs: what administrators look at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_log::LogStreamInfo;
use uuid::Uuid;

use crate::answers::metadata::{CLUSTER_OPERATIONS, TOPIC_OPERATIONS};
use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::internal;
use crate::messages::cluster::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse, DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use crate::messages::topics::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};

/// The endpoints that clients are given.
const BROKERS: i8 = 1;
/// Those of the controllers, which speak to brokers only.
const CONTROLLERS: i8 = 2;
/// Partitions in one answer: Kafka's `max.request.partition.size.limit`.
const PARTITIONS_MAX: usize = 2_000;

pub(crate) async fn describe_cluster(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    if context.version >= 1 && request.endpoint_type != BROKERS {
        let (error, why) = match request.endpoint_type {
            CONTROLLERS => (ErrorCode::MismatchedEndpointType, "controllers are not asked here"),
            _ => (ErrorCode::UnsupportedEndpointType, "there are brokers only"),
        };
        return DescribeClusterResponse {
            error_code: error.number(),
            error_message: Some(why.to_owned()),
            ..Default::default()
        };
    }
    if let Err(error) = broker.authorize_cluster(&context) {
        return DescribeClusterResponse { error_code: error.number(), ..Default::default() };
    }
    let brokers = broker.brokers_for(&context.peer).into_iter();
    DescribeClusterResponse {
        cluster_id: broker.cluster_id.clone(),
        controller_id: broker.config.broker_id,
        brokers: brokers
            .map(|(broker_id, host, port)| DescribeClusterBroker {
                broker_id,
                host,
                port,
                rack: None,
                is_fenced: false,
            })
            .collect(),
        cluster_authorized_operations: match request.include_cluster_authorized_operations {
            true => CLUSTER_OPERATIONS,
            false => i32::MIN,
        },
        ..Default::default()
    }
}

/// Topics in the order of their names, so many partitions at a time; the answer says where to go on.
pub(crate) async fn describe_topic_partitions(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let asks_for_all = request.topics.is_empty();
    let find = |name: &str| {
        broker.find_topic_to_read(&context, name, Uuid::nil(), false).map_err(|error| match error {
            ErrorCode::UnknownTopicOrPartition if tailwater_log::check_name(name).is_err() => {
                ErrorCode::InvalidTopic
            }
            error => error,
        })
    };
    let mut topics: BTreeMap<String, Result<LogStreamInfo, ErrorCode>> = match asks_for_all {
        true => {
            let listed = broker.listed_topics(&context).into_iter();
            listed.map(|stream| (stream.name.clone(), Ok(stream))).collect()
        }
        false => request.topics.into_iter().map(|topic| (topic.name.clone(), find(&topic.name))).collect(),
    };
    let mut first = 0;
    if let Some(cursor) = &request.cursor {
        if !asks_for_all && !topics.contains_key(&cursor.topic_name) {
            // It was not given by an answer to these topics.
            let refused = |name: &String| DescribeTopicPartitionsResponseTopic {
                error_code: ErrorCode::InvalidRequest.number(),
                name: Some(name.clone()),
                ..Default::default()
            };
            let topics = topics.keys().map(refused).collect();
            return DescribeTopicPartitionsResponse { topics, ..Default::default() };
        }
        topics = topics.split_off(&cursor.topic_name);
        if topics.contains_key(&cursor.topic_name) {
            first = u32::try_from(cursor.partition_index).unwrap_or(0);
        }
    }
    let mut room = usize::try_from(request.response_partition_limit).unwrap_or(0).clamp(1, PARTITIONS_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for (name, stream) in topics {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                response.topics.push(DescribeTopicPartitionsResponseTopic {
                    error_code: error.number(),
                    name: Some(name),
                    topic_authorized_operations: TOPIC_OPERATIONS,
                    ..Default::default()
                });
                continue;
            }
        };
        if room == 0 {
            response.next_cursor =
                Some(DescribeTopicPartitionsResponseCursor { topic_name: name, partition_index: 0 });
            break;
        }
        let all = broker.describe_topic(&stream).partitions;
        let partitions: Vec<_> = all.iter().skip(first as usize).take(room).cloned().collect();
        room -= partitions.len();
        let next = std::mem::take(&mut first) as usize + partitions.len();
        response.topics.push(DescribeTopicPartitionsResponseTopic {
            name: Some(name.clone()),
            topic_id: stream.id.0,
            is_internal: internal::is_internal(stream.id),
            partitions: partitions
                .into_iter()
                .map(|partition| DescribeTopicPartitionsResponsePartition {
                    error_code: partition.error_code,
                    partition_index: partition.partition_index,
                    leader_id: partition.leader_id,
                    leader_epoch: partition.leader_epoch,
                    replica_nodes: partition.replica_nodes,
                    isr_nodes: partition.isr_nodes,
                    eligible_leader_replicas: Some(vec![]),
                    last_known_elr: Some(vec![]),
                    offline_replicas: partition.offline_replicas,
                })
                .collect(),
            topic_authorized_operations: TOPIC_OPERATIONS,
            ..Default::default()
        });
        if next < all.len() {
            let partition_index = next as i32;
            response.next_cursor =
                Some(DescribeTopicPartitionsResponseCursor { topic_name: name, partition_index });
            break;
        }
    }
    response
}

/// The one directory that everything is in, and how much of it each partition takes.
pub(crate) async fn describe_log_dirs(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    if let Err(error) = broker.authorize_cluster(&context) {
        return DescribeLogDirsResponse { error_code: error.number(), ..Default::default() };
    }
    let wanted: BTreeMap<String, Option<BTreeSet<i32>>> = match request.topics {
        None => broker.log.list_streams().into_iter().map(|stream| (stream.name, None)).collect(),
        Some(topics) => topics
            .into_iter()
            .map(|topic| (topic.topic, Some(topic.partitions.into_iter().collect())))
            .collect(),
    };
    let mut topics = Vec::new();
    for (name, partitions) in wanted {
        // What is not there takes no room.
        let Ok(description) = broker.log.describe(&name) else { continue };
        let mut found = Vec::new();
        for shard in description.shards {
            let partition_index = shard.shard.0 as i32;
            if partitions.as_ref().is_some_and(|wanted| !wanted.contains(&partition_index)) {
                continue;
            }
            let partition_size = shard.segments.iter().map(|segment| segment.length.0 as i64).sum();
            found.push(DescribeLogDirsPartition { partition_index, partition_size, ..Default::default() });
        }
        if !found.is_empty() {
            topics.push(DescribeLogDirsTopic { name, partitions: found });
        }
    }
    let usable = broker.env.disk().free_bytes(broker.log.dir()).ok();
    DescribeLogDirsResponse {
        results: vec![DescribeLogDirsResult {
            log_dir: broker.log.dir().display().to_string(),
            topics,
            usable_bytes: usable.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1),
            ..Default::default()
        }],
        ..Default::default()
    }
}
