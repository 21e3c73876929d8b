//! AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, DescribeQuorum,
//! UpdateFeatures: what a node answers that is its own controller, and has the one replica of every partition in one
//! directory. What would change nothing succeeds; anything else is refused with the error that Kafka has for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::answers::topics::may;
use crate::broker::{Broker, Context, shard_of};
use crate::config::security_protocol;
use crate::errors::{ErrorCode, RefusedRequest};
use crate::messages::replicas::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse, DescribeQuorumListener, DescribeQuorumNode, DescribeQuorumPartitionData,
    DescribeQuorumRequest, DescribeQuorumRequestTopicData, DescribeQuorumResponse, DescribeQuorumTopicData,
    ElectLeadersRequest, ElectLeadersResponse, ElectLeadersTopicPartitions, ElectionPartitionResult,
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, QuorumReplicaState,
    ReassignablePartition, ReassignablePartitionResponse, ReassignableTopicResponse, ReplicaElectionResult,
    UpdateFeaturesRequest, UpdateFeaturesResponse,
};

/// Kinds of elections: of the first replica, and of one that may have missed records.
const ELECTIONS: std::ops::RangeInclusive<i8> = 0..=1;
/// The topic and the partition that the controllers of Kafka keep the cluster's metadata in.
const METADATA_TOPIC: &str = "__cluster_metadata";
const METADATA_PARTITION: i32 = 0;
/// The term of a controller that was never another one.
const QUORUM_EPOCH: i32 = 1;

/// Whether there is such a partition that the client may do to what it asks for.
fn check_partition(
    broker: &Broker,
    context: &Context,
    topic: &str,
    partition: i32,
) -> Result<(), RefusedRequest> {
    may(broker, context, topic)?;
    let there_is = || shard_of(&broker.log.stream(topic).ok()?, partition).ok();
    there_is().map(|_| ()).ok_or_else(|| {
        let topic: String = topic.chars().take(64).collect();
        let why = format!("there is no partition {partition} of a topic {topic:?}");
        RefusedRequest::new(ErrorCode::UnknownTopicOrPartition, why)
    })
}

pub(crate) async fn alter_replica_log_dirs(
    broker: Arc<Broker>,
    context: Context,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let may = broker.authorize_cluster(&context);
    let own = broker.log.dir().display().to_string();
    let mut topics: BTreeMap<String, Vec<AlterReplicaLogDirPartitionResult>> = BTreeMap::new();
    for dir in request.dirs {
        for topic in dir.topics {
            for &partition_index in &topic.partitions {
                let moved =
                    may.and_then(|()| match dir.path == own {
                        true => check_partition(&broker, &context, &topic.name, partition_index).map_err(
                            |refused| match refused.error {
                                ErrorCode::UnknownTopicOrPartition => ErrorCode::ReplicaNotAvailable,
                                error => error,
                            },
                        ),
                        false => Err(ErrorCode::LogDirNotFound),
                    });
                let error_code = moved.err().map_or(0, ErrorCode::number);
                let result = AlterReplicaLogDirPartitionResult { partition_index, error_code };
                topics.entry(topic.name.clone()).or_default().push(result);
            }
        }
    }
    let results = topics
        .into_iter()
        .map(|(topic_name, partitions)| AlterReplicaLogDirTopicResult { topic_name, partitions })
        .collect();
    AlterReplicaLogDirsResponse { results, ..Default::default() }
}

/// Nothing is elected, for one reason: version 0 can say it of each partition alone.
fn no_election(request: ElectLeadersRequest, error: ErrorCode) -> ElectLeadersResponse {
    let results = request.topic_partitions.unwrap_or_default().into_iter().map(|asked| {
        let partitions: BTreeSet<i32> = asked.partitions.into_iter().collect();
        let refused = |partition_id| ElectionPartitionResult {
            partition_id,
            error_code: error.number(),
            error_message: None,
        };
        let partition_result = partitions.into_iter().map(refused).collect();
        ReplicaElectionResult { topic: asked.topic, partition_result }
    });
    ElectLeadersResponse {
        error_code: error.number(),
        replica_election_results: results.collect(),
        ..Default::default()
    }
}

/// Every partition that is there has its leader.
pub(crate) async fn elect_leaders(
    broker: Arc<Broker>,
    context: Context,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    if let Err(error) = broker.authorize_cluster(&context) {
        return no_election(request, error);
    }
    if !ELECTIONS.contains(&request.election_type) {
        return no_election(request, ErrorCode::InvalidRequest);
    }
    let elect = |topic: &str, partition_id| {
        let RefusedRequest { error, why } =
            check_partition(&broker, &context, topic, partition_id).err().unwrap_or_else(|| {
                let why = format!("broker {} leads it, as its only replica", broker.config.broker_id);
                RefusedRequest::new(ErrorCode::ElectionNotNeeded, why)
            });
        ElectionPartitionResult { partition_id, error_code: error.number(), error_message: Some(why) }
    };
    // Asked for all partitions, those of each topic are told that an election was needed for: none.
    let all = || {
        let topics = broker.listed_topics(&context).into_iter();
        topics.map(|stream| ElectLeadersTopicPartitions { topic: stream.name, partitions: vec![] }).collect()
    };
    let asked = request.topic_partitions.unwrap_or_else(all);
    let results = asked.into_iter().map(|asked| {
        let partitions: BTreeSet<i32> = asked.partitions.into_iter().collect();
        let partition_result =
            partitions.into_iter().map(|partition| elect(&asked.topic, partition)).collect();
        ReplicaElectionResult { topic: asked.topic, partition_result }
    });
    ElectLeadersResponse { replica_election_results: results.collect(), ..Default::default() }
}

/// A partition stays where it is.
pub(crate) async fn alter_partition_reassignments(
    broker: Arc<Broker>,
    context: Context,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let allow_replication_factor_change = request.allow_replication_factor_change;
    if let Err(error) = broker.authorize_cluster(&context) {
        return AlterPartitionReassignmentsResponse {
            allow_replication_factor_change,
            error_code: error.number(),
            error_message: Some("this client may not move partitions".to_owned()),
            ..Default::default()
        };
    }
    let move_one = |topic: &str, asked: &ReassignablePartition| {
        check_partition(&broker, &context, topic, asked.partition_index)?;
        match asked.replicas.as_deref() {
            Some([only]) if *only == broker.config.broker_id => Ok(()),
            Some(_) => {
                let why = format!("a partition has one replica, on broker {}", broker.config.broker_id);
                Err(RefusedRequest::new(ErrorCode::InvalidReplicaAssignment, why))
            }
            None => Err(RefusedRequest::new(
                ErrorCode::NoReassignmentInProgress,
                "partitions are never moved, so there is nothing to cancel",
            )),
        }
    };
    let responses = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let refused = move_one(&topic.name, asked).err();
            ReassignablePartitionResponse {
                partition_index: asked.partition_index,
                error_code: refused.as_ref().map_or(0, |refused| refused.error.number()),
                error_message: refused.map(|refused| refused.why),
            }
        });
        let partitions = partitions.collect();
        ReassignableTopicResponse { name: topic.name, partitions }
    });
    AlterPartitionReassignmentsResponse {
        allow_replication_factor_change,
        responses: responses.collect(),
        ..Default::default()
    }
}

/// None is ever under way.
pub(crate) async fn list_partition_reassignments(
    broker: Arc<Broker>,
    context: Context,
    _: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    let refused = broker.authorize_cluster(&context).err();
    ListPartitionReassignmentsResponse {
        error_code: refused.map_or(0, ErrorCode::number),
        error_message: refused.map(|_| "this client may not see where partitions are moved".to_owned()),
        ..Default::default()
    }
}

/// This node is the only voter, and its metadata's last change is the end of what it has recorded.
pub(crate) async fn describe_quorum(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let failed = |error: ErrorCode, why: String| DescribeQuorumResponse {
        error_code: error.number(),
        error_message: Some(why),
        ..Default::default()
    };
    if let Err(error) = broker.authorize_cluster(&context) {
        return failed(error, "this client may not see the cluster's controllers".to_owned());
    }
    // A commit of nothing answers where the last one was.
    let changes = match broker.log.meta().commit(vec![]).await {
        Ok(last) => i64::try_from(last).unwrap_or(i64::MAX),
        Err(error) => {
            return failed(ErrorCode::NotLeaderOrFollower, format!("metadata unavailable: {error}"));
        }
    };
    let is_metadata = |topic: &DescribeQuorumRequestTopicData| {
        topic.topic_name == METADATA_TOPIC
            && topic.partitions.iter().map(|asked| asked.partition_index).eq([METADATA_PARTITION])
    };
    if let [topic] = request.topics.as_slice()
        && is_metadata(topic)
    {
        return quorum(&broker, &context, changes);
    }
    let unknown = |partition_index| DescribeQuorumPartitionData {
        partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition.number(),
        error_message: Some(format!("only partition {METADATA_PARTITION} of {METADATA_TOPIC} has voters")),
        ..Default::default()
    };
    let topics = request.topics.into_iter().map(|topic| DescribeQuorumTopicData {
        topic_name: topic.topic_name,
        partitions: topic.partitions.iter().map(|asked| unknown(asked.partition_index)).collect(),
    });
    DescribeQuorumResponse { topics: topics.collect(), ..Default::default() }
}

/// What is answered when it is asked for in the one way that there is.
fn quorum(broker: &Broker, context: &Context, changes: i64) -> DescribeQuorumResponse {
    let (node_id, now_ms) = (broker.config.broker_id, broker.env.wall_ms());
    let this = QuorumReplicaState {
        replica_id: node_id,
        replica_directory_id: Uuid::nil(),
        log_end_offset: changes,
        last_fetch_timestamp: now_ms,
        last_caught_up_timestamp: now_ms,
    };
    let partition = DescribeQuorumPartitionData {
        partition_index: METADATA_PARTITION,
        leader_id: node_id,
        leader_epoch: QUORUM_EPOCH,
        high_watermark: changes,
        current_voters: vec![this],
        ..Default::default()
    };
    let (host, port) = broker.address_for(&context.peer);
    let listener = DescribeQuorumListener {
        name: security_protocol(context.peer.is_secured, context.peer.login.is_some()).to_owned(),
        host,
        port: u16::try_from(port).unwrap_or_default(),
    };
    DescribeQuorumResponse {
        topics: vec![DescribeQuorumTopicData {
            topic_name: METADATA_TOPIC.to_owned(),
            partitions: vec![partition],
        }],
        nodes: vec![DescribeQuorumNode { node_id, listeners: vec![listener] }],
        ..Default::default()
    }
}

/// There are no features whose level could be another one.
pub(crate) async fn update_features(
    broker: Arc<Broker>,
    context: Context,
    request: UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    if let Err(error) = broker.authorize_cluster(&context) {
        return UpdateFeaturesResponse {
            error_code: error.number(),
            error_message: Some("this client may not update features".to_owned()),
            ..Default::default()
        };
    }
    // In all versions of all of them together, as Kafka 4.3 does.
    let Some(first) = request.feature_updates.first() else { return UpdateFeaturesResponse::default() };
    let name: String = first.feature.chars().take(64).collect();
    UpdateFeaturesResponse {
        error_code: ErrorCode::InvalidUpdateVersion.number(),
        error_message: Some(format!("there are no features here, so {name:?} is none that has a level")),
        ..Default::default()
    }
}
