//! How far a group got: OffsetCommit, OffsetFetch, OffsetDelete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_access::Resource;
use tailwater_format::StreamId;
use tailwater_log::LogStreamInfo;
use uuid::Uuid;

use crate::answers::distinct;
use crate::answers::groups::code;
use crate::broker::{Broker, Context, shard_of};
use crate::errors::ErrorCode;
use crate::groups::coordinator::{Committer, Coordinator, check_name};
use crate::groups::offsets::{GroupOffsets, Partition};
use crate::groups::records::Committed;
use crate::messages::offsets::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic, OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic, OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};

/// From this version of OffsetCommit and OffsetFetch on topics are named by their ids.
const IDS_FROM_VERSION: i16 = 10;
/// From this version of OffsetFetch on it takes several groups.
const GROUPS_FROM_VERSION: i16 = 8;
/// From this version of OffsetCommit on members of KIP-848 commit.
const EPOCHS_FROM_VERSION: i16 = 9;
/// Up to this version of OffsetCommit a client says how long its offsets are kept.
const RETENTION_UP_TO_VERSION: i16 = 4;

pub(crate) async fn offset_commit(
    broker: Arc<Broker>,
    context: Context,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let committer = Committer {
        member_id: request.member_id,
        instance: request.group_instance_id,
        generation: request.generation_id_or_member_epoch,
    };
    let allowed = broker.authorize_group(&context, &request.group_id);
    let coordinator = allowed.and_then(|()| broker.groups.of(&request.group_id));
    let allowed = coordinator.as_ref().map_err(|error| *error);
    let allowed = allowed.and_then(|groups| groups.check_commit(&request.group_id, &committer));
    let allowed = allowed.map_err(|error| match error {
        // What clients knew before KIP-848.
        ErrorCode::GroupIdNotFound if context.version < EPOCHS_FROM_VERSION => ErrorCode::IllegalGeneration,
        error => error,
    });
    let now_ms = broker.env.wall_ms();
    let keep_ms =
        Some(request.retention_time_ms).filter(|ms| context.version <= RETENTION_UP_TO_VERSION && *ms >= 0);
    let expires_ms = keep_ms.map(|ms| now_ms.saturating_add(ms));
    let by_id = context.version >= IDS_FROM_VERSION;
    let limits = broker.configs.now().groups.clone();
    let kept = coordinator.as_ref().map_or(0, |groups| groups.offsets().bytes());
    let room = limits.offsets_bytes_max.saturating_sub(kept);
    let mut offsets = GroupOffsets::new();
    let mut bytes = 0;
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let stream = broker.find_topic(&context, &topic.name, topic.topic_id, by_id);
        let mut take = |partition: OffsetCommitRequestPartition| {
            let stream = stream.as_ref().map_err(|error| *error)?;
            let shard = shard_of(stream, partition.partition_index)?;
            allowed?;
            let groups = coordinator.as_ref().map_err(|error| *error)?;
            let metadata = partition.committed_metadata.unwrap_or_default();
            if metadata.len() > limits.offset_metadata_bytes_max {
                return Err(ErrorCode::OffsetMetadataTooLarge);
            }
            let committed = Committed {
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                committed_ms: now_ms,
                expires_ms,
                metadata,
            };
            // So that others of the request are kept; the writer looks again, at all requests together.
            let partition = (shard.stream, shard.shard.0);
            let before = groups.offsets().get(&request.group_id, partition);
            let more = committed.bytes().saturating_sub(before.map_or(0, |before| before.bytes()));
            if more > room - bytes {
                return Err(ErrorCode::InvalidCommitOffsetSize);
            }
            bytes += more;
            offsets.insert(partition, committed);
            Ok(())
        };
        let partitions = topic.partitions.into_iter().map(|partition| OffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: code(take(partition)),
        });
        let partitions = partitions.collect();
        topics.push(OffsetCommitResponseTopic { name: topic.name, topic_id: topic.topic_id, partitions });
    }
    if let Ok(groups) = &coordinator
        && let Err(error) = groups.commit(&request.group_id, offsets).await
    {
        let partitions = topics.iter_mut().flat_map(|topic| &mut topic.partitions);
        partitions.filter(|partition| partition.error_code == 0).for_each(|partition| {
            partition.error_code = error.number();
        });
    }
    OffsetCommitResponse { topics, ..Default::default() }
}

pub(crate) async fn offset_fetch(
    broker: Arc<Broker>,
    context: Context,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    if context.version >= GROUPS_FROM_VERSION {
        let by_id = context.version >= IDS_FROM_VERSION;
        let groups = distinct(request.groups, |group: &OffsetFetchRequestGroup| group.group_id.clone());
        let groups = groups.into_iter().map(|group| fetch_group(&broker, &context, group, by_id));
        return OffsetFetchResponse { groups: groups.collect(), ..Default::default() };
    }
    let named =
        |name, partition_indexes| OffsetFetchRequestTopics { name, partition_indexes, ..Default::default() };
    let group = OffsetFetchRequestGroup {
        group_id: request.group_id,
        topics: request.topics.map(|topics| {
            topics.into_iter().map(|topic| named(topic.name, topic.partition_indexes)).collect()
        }),
        ..Default::default()
    };
    let group = fetch_group(&broker, &context, group, false);
    let topics = group.topics.into_iter().map(|topic| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(old_form).collect(),
    });
    OffsetFetchResponse { topics: topics.collect(), error_code: group.error_code, ..Default::default() }
}

fn old_form(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition {
    let OffsetFetchResponsePartitions {
        partition_index,
        committed_offset,
        committed_leader_epoch,
        metadata,
        error_code,
    } = partition;
    OffsetFetchResponsePartition {
        partition_index,
        committed_offset,
        committed_leader_epoch,
        metadata,
        error_code,
    }
}

fn fetch_group(
    broker: &Broker,
    context: &Context,
    group: OffsetFetchRequestGroup,
    by_id: bool,
) -> OffsetFetchResponseGroup {
    let OffsetFetchRequestGroup { group_id, topics, member_id, member_epoch } = group;
    let allowed = broker.authorize_group(context, &group_id);
    let coordinator = allowed.and_then(|()| broker.groups.of(&group_id)).and_then(|groups| {
        groups.check_fetch(&group_id, member_id.as_deref(), member_epoch)?;
        Ok(groups)
    });
    let groups = match coordinator {
        Ok(groups) => groups,
        Err(error) => {
            // Before version 2 only partitions have errors.
            let topics = topics.filter(|_| context.version < 2).into_iter().flatten().map(|topic| {
                let partitions =
                    topic.partition_indexes.into_iter().map(|index| partition(index, None, Some(error)));
                OffsetFetchResponseTopics {
                    partitions: partitions.collect(),
                    name: topic.name,
                    topic_id: topic.topic_id,
                }
            });
            let topics = topics.collect();
            return OffsetFetchResponseGroup { group_id, topics, error_code: error.number() };
        }
    };
    let topics = match topics {
        Some(topics) => {
            let mut told = BTreeSet::new();
            let topics = topics.into_iter();
            topics
                .map(|topic| fetch_topic(broker, context, (&groups, &group_id), topic, by_id, &mut told))
                .collect()
        }
        None => fetch_all(broker, context, &groups, &group_id),
    };
    OffsetFetchResponseGroup { group_id, topics, ..Default::default() }
}

fn fetch_topic(
    broker: &Broker,
    context: &Context,
    (groups, group): (&Coordinator, &str),
    topic: OffsetFetchRequestTopics,
    by_id: bool,
    told: &mut BTreeSet<Partition>,
) -> OffsetFetchResponseTopics {
    let OffsetFetchRequestTopics { name, topic_id, partition_indexes } = topic;
    let stream = broker.find_topic(context, &name, topic_id, by_id);
    // By name, a topic that is not there is one that nothing was committed of.
    let error = stream.as_ref().err().copied();
    let error = error.filter(|error| by_id || *error == ErrorCode::TopicAuthorizationFailed);
    let partitions = partition_indexes.into_iter().filter_map(|index| {
        let number = u32::try_from(index).ok();
        let named = stream.as_ref().ok().zip(number).map(|(stream, number)| (stream.id, number));
        if named.is_some_and(|named| !told.insert(named)) {
            return None;
        }
        let found = named.and_then(|named| groups.offsets().get(group, named));
        Some(partition(index, found, error))
    });
    OffsetFetchResponseTopics { partitions: partitions.collect(), name, topic_id }
}

fn fetch_all(
    broker: &Broker,
    context: &Context,
    groups: &Coordinator,
    group: &str,
) -> Vec<OffsetFetchResponseTopics> {
    let mut topics: BTreeMap<StreamId, Vec<OffsetFetchResponsePartitions>> = BTreeMap::new();
    for ((stream, number), committed) in groups.offsets().of(group) {
        topics.entry(stream).or_default().push(partition(number as i32, Some(committed), None));
    }
    let topics = topics.into_iter().filter_map(|(id, partitions)| {
        // Those of a deleted one are not removed yet.
        let name = broker.log.stream_by_id(id).ok()?.name;
        if !broker.shows(context, Resource::Stream(&name)) {
            return None;
        }
        Some(OffsetFetchResponseTopics { name, topic_id: id.0, partitions })
    });
    topics.collect()
}

fn partition(
    partition_index: i32,
    committed: Option<Committed>,
    error: Option<ErrorCode>,
) -> OffsetFetchResponsePartitions {
    let error_code = error.unwrap_or(ErrorCode::None).number();
    match committed {
        Some(committed) => OffsetFetchResponsePartitions {
            partition_index,
            committed_offset: committed.offset,
            committed_leader_epoch: committed.leader_epoch,
            metadata: Some(committed.metadata),
            error_code,
        },
        None => OffsetFetchResponsePartitions {
            partition_index,
            committed_offset: -1,
            committed_leader_epoch: -1,
            metadata: Some(String::new()),
            error_code,
        },
    }
}

pub(crate) async fn offset_delete(
    broker: Arc<Broker>,
    context: Context,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let name = request.group_id;
    let refused =
        |error: ErrorCode| OffsetDeleteResponse { error_code: error.number(), ..Default::default() };
    if let Err(error) = broker.authorize_group(&context, &name).and_then(|()| check_name(&name)) {
        return refused(error);
    }
    let groups = match broker.groups.of(&name) {
        Ok(groups) => groups,
        Err(error) => return refused(error),
    };
    // As they were before anybody was asked for: what a member commits that comes meanwhile stays.
    let committed = groups.offsets().of(&name);
    let subscribed = match groups.subscribed(&name) {
        Ok(subscribed) => subscribed,
        Err(error) => return refused(error),
    };
    let mut partitions = BTreeSet::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let stream = broker.find_topic(&context, &topic.name, Uuid::nil(), false);
        let check = |index: i32| -> Result<(StreamId, u32), ErrorCode> {
            let stream: &LogStreamInfo = stream.as_ref().map_err(|error| *error)?;
            let shard = shard_of(stream, index)?;
            if subscribed.contains(&stream.name) {
                return Err(ErrorCode::GroupSubscribedToTopic);
            }
            Ok((shard.stream, shard.shard.0))
        };
        let answers = topic.partitions.iter().map(|partition| {
            let checked = check(partition.partition_index).map(|partition| _ = partitions.insert(partition));
            OffsetDeleteResponsePartition {
                partition_index: partition.partition_index,
                error_code: code(checked),
            }
        });
        let answers = answers.collect();
        topics.push(OffsetDeleteResponseTopic { name: topic.name, partitions: answers });
    }
    let forgotten = committed.into_iter().filter(|(partition, _)| partitions.contains(partition));
    match groups.forget_offsets(&name, forgotten.collect()).await {
        Ok(()) => OffsetDeleteResponse { topics, ..Default::default() },
        Err(error) => refused(error),
    }
}
