//! A sensible request of each API, in all its versions: what mutations begin with, and what is asked without rights.

#![allow(dead_code)] // each test binary uses a part of it

use bytes::Bytes;
use tailwater_format::Codec;
use tailwater_kafka::api::ApiRequest;
use tailwater_kafka::messages::cluster::*;
use tailwater_kafka::messages::configs::*;
use tailwater_kafka::messages::fetch::*;
use tailwater_kafka::messages::groups::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
};
use tailwater_kafka::messages::header::{read_response, request};
use tailwater_kafka::messages::membership::*;
use tailwater_kafka::messages::offsets::*;
use tailwater_kafka::messages::produce::*;
use tailwater_kafka::messages::replicas::*;
use tailwater_kafka::messages::security::*;
use tailwater_kafka::messages::topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatePartitionsRequest,
    CreatePartitionsTopic, CreateTopicsRequest, DeleteRecordsPartition, DeleteRecordsRequest,
    DeleteRecordsTopic, DeleteTopicState, DeleteTopicsRequest, DescribableLogDirTopic,
    DescribeLogDirsRequest, DescribeProducersRequest, TopicRequest as DescribeProducersTopic,
};
use tailwater_kafka::wire::RecordsBytes;
use uuid::Uuid;

use crate::common::batch;

/// A request's frame.
#[derive(Clone)]
pub struct Sample {
    pub api: i16,
    pub version: i16,
    pub frame: Bytes,
    /// Reads an answer to it, without its length, as a client does; whether it is one.
    pub read_answer: fn(i16, Bytes) -> bool,
    /// An answer to it in words.
    pub show_answer: fn(i16, Bytes) -> String,
}

/// The topic that all of them are about.
pub const TOPIC: &str = "t";

/// One of every API and version.
pub fn samples(topic_id: Uuid) -> Vec<Sample> {
    let name = || TOPIC.to_owned();
    let mut all = Vec::new();
    let out = &mut all;
    add(out, produce(topic_id, batch(&[1, 2], Codec::None, Some((5, 0, 0)))));
    add(
        out,
        FetchRequest {
            max_wait_ms: 1,
            topics: vec![FetchTopic {
                topic: name(),
                topic_id,
                partitions: vec![FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() }],
            }],
            forgotten_topics_data: vec![ForgottenTopic { topic: name(), topic_id, partitions: vec![1] }],
            ..Default::default()
        },
    );
    let partitions = vec![ListOffsetsPartition { timestamp: -1, ..Default::default() }];
    let topics = vec![ListOffsetsTopic { name: name(), partitions }];
    add(out, ListOffsetsRequest { replica_id: -1, topics, ..Default::default() });
    let topics = vec![MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(name()) }];
    add(out, MetadataRequest { topics: Some(topics), ..Default::default() });
    add(out, SaslHandshakeRequest { mechanism: "PLAIN".to_owned() });
    let (client_software_name, client_software_version) = ("tests".to_owned(), "1.0".to_owned());
    add(out, ApiVersionsRequest { client_software_name, client_software_version });
    let topic = CreatableTopic {
        name: "new".to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: vec![1] }],
        configs: vec![CreatableTopicConfig { name: "retention.ms".to_owned(), value: Some("1".to_owned()) }],
    };
    add(out, CreateTopicsRequest { topics: vec![topic], timeout_ms: 1, validate_only: false });
    let topic_names = vec!["new".to_owned()];
    let topics = vec![DeleteTopicState { name: Some("new".to_owned()), topic_id: Uuid::nil() }];
    add(out, DeleteTopicsRequest { topics, topic_names, timeout_ms: 1 });
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 0 }];
    let topics = vec![DeleteRecordsTopic { name: name(), partitions }];
    add(out, DeleteRecordsRequest { topics, timeout_ms: 1 });
    add(out, InitProducerIdRequest { producer_id: -1, producer_epoch: -1, ..Default::default() });
    let partitions = vec![OffsetForLeaderPartition::default()];
    let topics = vec![OffsetForLeaderTopic { topic: name(), partitions }];
    add(out, OffsetForLeaderEpochRequest { topics, ..Default::default() });
    add(out, DescribeAclsRequest::default());
    add(out, CreateAclsRequest { creations: vec![AclCreation::default()] });
    add(out, DeleteAclsRequest { filters: vec![DeleteAclsFilter::default()] });
    add(
        out,
        DescribeConfigsRequest {
            resources: vec![DescribeConfigsResource {
                resource_type: 2,
                resource_name: name(),
                configuration_keys: Some(vec!["retention.ms".to_owned()]),
            }],
            include_synonyms: true,
            include_documentation: true,
        },
    );
    let configs = vec![AlterConfigsRequestAlterableConfig {
        name: "segment.ms".to_owned(),
        value: Some("9".to_owned()),
    }];
    let resources = vec![AlterConfigsRequestResource { resource_type: 2, resource_name: name(), configs }];
    add(out, AlterConfigsRequest { resources, validate_only: false });
    let topics = vec![DescribableLogDirTopic { topic: name(), partitions: vec![0] }];
    add(out, DescribeLogDirsRequest { topics: Some(topics) });
    add(out, SaslAuthenticateRequest { auth_bytes: Bytes::from_static(b"\0a\0b") });
    let topics = vec![CreatePartitionsTopic { name: name(), count: 2, assignments: None }];
    add(out, CreatePartitionsRequest { topics, timeout_ms: 1, validate_only: false });
    let configs = vec![IncrementalAlterConfigsRequestAlterableConfig {
        name: "flush.ms".to_owned(),
        config_operation: 0,
        value: Some("1".to_owned()),
    }];
    let resources = vec![IncrementalAlterConfigsRequestAlterConfigsResource {
        resource_type: 2,
        resource_name: name(),
        configs,
    }];
    add(out, IncrementalAlterConfigsRequest { resources, validate_only: false });
    add(out, DescribeClientQuotasRequest { components: vec![ComponentData::default()], strict: true });
    passwords(out);
    add(out, DescribeClusterRequest::default());
    add(out, ListConfigResourcesRequest { resource_types: vec![2, 4] });
    let cursor = DescribeTopicPartitionsRequestCursor { topic_name: name(), partition_index: 0 };
    let topics = vec![TopicRequest { name: name() }];
    add(out, DescribeTopicPartitionsRequest { topics, cursor: Some(cursor), ..Default::default() });
    replicas(out);
    groups(out, topic_id);
    all
}

fn passwords(out: &mut Vec<Sample>) {
    let name = || TOPIC.to_owned();
    add(out, DescribeUserScramCredentialsRequest { users: Some(vec![ScramUserName { name: name() }]) });
    let upsertion = ScramCredentialUpsertion {
        name: name(),
        mechanism: 1,
        iterations: 4_096,
        salt: Bytes::from_static(&[1; 16]),
        salted_password: Bytes::from_static(&[2; 32]),
    };
    let deletion = ScramCredentialDeletion { name: name(), mechanism: 2 };
    let request = AlterUserScramCredentialsRequest { deletions: vec![deletion], upsertions: vec![upsertion] };
    add(out, request);
}

fn replicas(out: &mut Vec<Sample>) {
    let name = || TOPIC.to_owned();
    let topics = vec![AlterReplicaLogDirTopic { name: name(), partitions: vec![0] }];
    add(
        out,
        AlterReplicaLogDirsRequest { dirs: vec![AlterReplicaLogDir { path: "/data".to_owned(), topics }] },
    );
    let topics = vec![ElectLeadersTopicPartitions { topic: name(), partitions: vec![0] }];
    add(out, ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() });
    let partitions = vec![ReassignablePartition { partition_index: 0, replicas: Some(vec![1]) }];
    let topics = vec![ReassignableTopic { name: name(), partitions }];
    add(out, AlterPartitionReassignmentsRequest { topics, ..Default::default() });
    let topics = vec![ListPartitionReassignmentsTopics { name: name(), partition_indexes: vec![0] }];
    add(out, ListPartitionReassignmentsRequest { topics: Some(topics), ..Default::default() });
    let entity = vec![EntityData { entity_type: "client-id".to_owned(), entity_name: Some(name()) }];
    let ops =
        vec![AlterClientQuotasOp { key: "consumer_byte_rate".to_owned(), value: 1_000.0, remove: false }];
    let entries = vec![AlterClientQuotasEntry { entity, ops }];
    add(out, AlterClientQuotasRequest { entries, validate_only: false });
    let partitions = vec![DescribeQuorumRequestPartitionData { partition_index: 0 }];
    let topics =
        vec![DescribeQuorumRequestTopicData { topic_name: "__cluster_metadata".to_owned(), partitions }];
    add(out, DescribeQuorumRequest { topics });
    let feature_updates = vec![FeatureUpdateKey { feature: "f".to_owned(), ..Default::default() }];
    add(out, UpdateFeaturesRequest { feature_updates, ..Default::default() });
    let topics = vec![DescribeProducersTopic { name: name(), partition_indexes: vec![0] }];
    add(out, DescribeProducersRequest { topics });
}

fn groups(out: &mut Vec<Sample>, topic_id: Uuid) {
    let (name, group_id, member_id) = (|| TOPIC.to_owned(), || "g".to_owned(), || "m".to_owned());
    let metadata = Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b't']);
    let protocols = vec![JoinGroupRequestProtocol { name: "range".to_owned(), metadata }];
    let join = JoinGroupRequest {
        group_id: group_id(),
        session_timeout_ms: 6_000,
        rebalance_timeout_ms: 6_000,
        protocol_type: "consumer".to_owned(),
        protocols,
        ..Default::default()
    };
    add(out, join);
    let assignments = vec![SyncGroupRequestAssignment { member_id: member_id(), ..Default::default() }];
    let sync =
        SyncGroupRequest { group_id: group_id(), member_id: member_id(), assignments, ..Default::default() };
    add(out, sync);
    add(out, HeartbeatRequest { group_id: group_id(), member_id: member_id(), ..Default::default() });
    let members = vec![MemberIdentity { member_id: member_id(), ..Default::default() }];
    add(out, LeaveGroupRequest { group_id: group_id(), member_id: member_id(), members });
    let coordinator_keys = vec![group_id()];
    add(out, FindCoordinatorRequest { key: group_id(), key_type: 0, coordinator_keys });
    let partitions = vec![OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() }];
    let topics = vec![OffsetCommitRequestTopic { name: name(), topic_id, partitions }];
    add(out, OffsetCommitRequest { group_id: group_id(), topics, ..Default::default() });
    let topics = vec![OffsetFetchRequestTopic { name: name(), partition_indexes: vec![0] }];
    let asked = vec![OffsetFetchRequestTopics { name: name(), topic_id, partition_indexes: vec![0] }];
    let group = OffsetFetchRequestGroup { group_id: group_id(), topics: Some(asked), ..Default::default() };
    let groups = vec![group];
    add(
        out,
        OffsetFetchRequest { group_id: group_id(), topics: Some(topics), groups, require_stable: false },
    );
    let partitions = vec![OffsetDeleteRequestPartition::default()];
    let topics = vec![OffsetDeleteRequestTopic { name: name(), partitions }];
    add(out, OffsetDeleteRequest { group_id: group_id(), topics });
    add(out, ListGroupsRequest { states_filter: vec!["Empty".to_owned()], types_filter: vec![] });
    add(out, DescribeGroupsRequest { groups: vec![group_id()], include_authorized_operations: true });
    add(out, DeleteGroupsRequest { groups_names: vec!["other".to_owned()] });
    let topic_partitions = Some(vec![]);
    let beat = ConsumerGroupHeartbeatRequest {
        group_id: "k".to_owned(),
        member_id: member_id(),
        rebalance_timeout_ms: 6_000,
        subscribed_topic_names: Some(vec![name()]),
        topic_partitions,
        ..Default::default()
    };
    add(out, beat);
    add(out, ConsumerGroupDescribeRequest { group_ids: vec!["k".to_owned()], ..Default::default() });
}

/// A Produce request of these records.
pub fn produce(topic_id: Uuid, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData { index: 0, records: RecordsBytes(vec![records]) };
    let topic = TopicProduceData { name: TOPIC.to_owned(), topic_id, partition_data: vec![data] };
    ProduceRequest { acks: -1, timeout_ms: 1_000, topic_data: vec![topic], ..Default::default() }
}

fn add<R: ApiRequest<Response: std::fmt::Debug>>(samples: &mut Vec<Sample>, asked: R) {
    let (read_answer, show_answer) = (read_answer::<R> as _, show_answer::<R> as _);
    for version in R::API.versions() {
        let frame = request(&asked, version, 7, "test").concat();
        samples.push(Sample { api: R::API.number(), version, frame, read_answer, show_answer });
    }
}

fn read_answer<R: ApiRequest>(version: i16, answer: Bytes) -> bool {
    read_response::<R::Response>(R::API, version, answer).is_ok()
}

fn show_answer<R: ApiRequest<Response: std::fmt::Debug>>(version: i16, answer: Bytes) -> String {
    format!("{:?}", read_response::<R::Response>(R::API, version, answer).expect("an answer").1)
}
