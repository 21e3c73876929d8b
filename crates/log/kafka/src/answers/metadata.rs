//! Metadata: which topics there are, and who leads their partitions: this node does, or whoever owns them where several
//! are active.

use std::sync::Arc;

use tailwater_format::{ShardId, ShardNumber};
use tailwater_log::{LogStreamInfo, StreamConfig, StreamError};
use uuid::Uuid;

use crate::answers::distinct;
use crate::broker::{Broker, Context};
use crate::errors::{ErrorCode, stream_error};
use crate::internal::{self, OFFSETS_TOPIC};
use crate::messages::cluster::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker,
    MetadataResponsePartition, MetadataResponseTopic,
};
use crate::replicas::Replicas;

/// What everybody may do with a topic: read, write, create, delete, alter, describe, and describe and alter its
/// configuration. Bit i stands for operation i.
pub(crate) const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;
/// What everybody may do with the cluster: create, alter, describe, act as a part of it, describe and alter its
/// configuration, write idempotently.
pub(crate) const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;

/// From this version on topics are shown with their ids.
const IDS_SHOWN_FROM_VERSION: i16 = 10;
/// From this version on topics are asked for by their ids; before it no name is null.
const IDS_ASKED_FROM_VERSION: i16 = 12;

pub(crate) async fn metadata(
    broker: Arc<Broker>,
    context: Context,
    request: MetadataRequest,
) -> MetadataResponse {
    let version = context.version;
    let asks_for_all = match &request.topics {
        None => true,
        Some(topics) => version == 0 && topics.is_empty(),
    };
    let named = |topic: &MetadataRequestTopic| (topic.name.clone(), topic.topic_id);
    let topics_asked = request.topics.map(|topics| distinct(topics, named));
    let wanted = topics_asked.iter().flatten();
    if (IDS_SHOWN_FROM_VERSION..IDS_ASKED_FROM_VERSION).contains(&version)
        && wanted.clone().any(|topic| topic.topic_id != Uuid::nil())
    {
        // These versions show ids, but nobody can ask by them.
        let topics =
            wanted.map(|topic| failed(ErrorCode::InvalidRequest, topic.name.clone(), topic.topic_id));
        return MetadataResponse { topics: topics.collect(), ..Default::default() };
    }
    let may_create =
        broker.configs.now().auto_create_topics && (version < 4 || request.allow_auto_topic_creation);
    let mut topics = Vec::new();
    if asks_for_all {
        topics.extend(broker.listed_topics(&context).iter().map(|stream| broker.describe_topic(stream)));
    } else {
        for asked in topics_asked.unwrap_or_default() {
            let topic = match asked.name {
                Some(name) if asked.topic_id == Uuid::nil() => {
                    match broker.topic_or_new(&context, &name, may_create).await {
                        Ok(stream) => broker.describe_topic(&stream),
                        Err(error) => failed(error, Some(name), Uuid::nil()),
                    }
                }
                // Before ids a name is always there, or the request has none of the forms that clients send.
                None if version < IDS_ASKED_FROM_VERSION => {
                    failed(ErrorCode::InvalidTopic, Some(String::new()), Uuid::nil())
                }
                _ => match broker.find_topic_to_read(&context, "", asked.topic_id, true) {
                    Ok(stream) => broker.describe_topic(&stream),
                    // Java's consumer would never look at metadata again: it can't read a topic that has no name.
                    Err(ErrorCode::UnknownTopicId) if asked.topic_id != Uuid::nil() => continue,
                    Err(error) => failed(error, None, asked.topic_id),
                },
            };
            topics.push(topic);
        }
    }
    if version >= 8 && request.include_topic_authorized_operations {
        for topic in topics.iter_mut().filter(|topic| topic.error_code == 0) {
            topic.topic_authorized_operations = TOPIC_OPERATIONS;
        }
    }
    let brokers = broker.brokers_for(&context.peer).into_iter();
    MetadataResponse {
        brokers: brokers
            .map(|(node_id, host, port)| MetadataResponseBroker { node_id, host, port, rack: None })
            .collect(),
        cluster_id: Some(broker.cluster_id.clone()),
        controller_id: broker.config.broker_id,
        topics,
        cluster_authorized_operations: match request.include_cluster_authorized_operations {
            true => CLUSTER_OPERATIONS,
            false => i32::MIN,
        },
        ..Default::default()
    }
}

fn failed(error: ErrorCode, name: Option<String>, topic_id: Uuid) -> MetadataResponseTopic {
    MetadataResponseTopic { error_code: error.number(), name, topic_id, ..Default::default() }
}

impl Broker {
    pub(crate) fn describe_topic(&self, stream: &LogStreamInfo) -> MetadataResponseTopic {
        let is_internal = internal::is_internal(stream.id);
        let partitions = (0..stream.config.shards).map(|number| {
            let own = self.config.broker_id;
            let shard = ShardId { stream: stream.id, shard: ShardNumber(number) };
            let leader = match is_internal {
                true => Some((own, internal::EPOCH as u32)),
                false => self.leader_of(shard).map(|(leader, term)| (leader, term.0)),
            };
            let id = leader.map_or(own, |(id, _)| id);
            let term = leader.map(|(_, term)| term);
            let replicas = match is_internal {
                true => Replicas { all: vec![id], in_sync: vec![id], offline: vec![] },
                false => Replicas::new(&self.log, &stream.config, &shard, id, term.is_some()),
            };
            MetadataResponsePartition {
                error_code: if term.is_some() { 0 } else { ErrorCode::LeaderNotAvailable.number() },
                partition_index: number as i32,
                leader_id: if term.is_some() { id } else { -1 },
                leader_epoch: term.map_or(-1, |term| term as i32),
                replica_nodes: replicas.all,
                isr_nodes: replicas.in_sync,
                offline_replicas: replicas.offline,
            }
        });
        MetadataResponseTopic {
            name: Some(stream.name.clone()),
            topic_id: stream.id.0,
            is_internal,
            partitions: partitions.collect(),
            ..Default::default()
        }
    }

    /// The topic of that name; a new one if there is none and one may be created.
    async fn topic_or_new(
        &self,
        context: &Context,
        name: &str,
        may_create: bool,
    ) -> Result<LogStreamInfo, ErrorCode> {
        if name == OFFSETS_TOPIC {
            return self.find_topic_to_read(context, name, Uuid::nil(), false);
        }
        self.authorize_topic(context, name)?;
        match self.log.stream(name) {
            Ok(stream) => return Ok(stream),
            Err(_) if tailwater_log::check_name(name).is_err() => return Err(ErrorCode::InvalidTopic),
            Err(_) if !may_create => return Err(ErrorCode::UnknownTopicOrPartition),
            Err(_) => {}
        }
        let config =
            StreamConfig { shards: self.configs.now().default_partitions, ..StreamConfig::default() };
        match self.log.create_stream(name, config).await {
            Ok(created) => {
                tracing::info!(
                    topic = name,
                    partitions = created.config.shards,
                    "created, because a client asked for it"
                );
                Ok(created)
            }
            // Somebody else asked for it at the same time.
            Err(StreamError::Exists(_)) => self.log.stream(name).map_err(|error| stream_error(&error)),
            Err(error) => {
                if let Some(left_out) = self.complain("no topic") {
                    let what = "a topic that a client asked for can't be created";
                    tracing::warn!(topic = name, %error, left_out, "{what}");
                }
                Err(stream_error(&error))
            }
        }
    }
}
