//! Scripts about what only clusters of several nodes have much to say to: replicas, leaders, controllers, features,
//! quotas; and about what a partition knows of its producers.

use tailwater_format::Codec;
use tailwater_kafka::messages::replicas::*;
use tailwater_kafka::messages::security::{
    AlterClientQuotasEntry, AlterClientQuotasOp, AlterClientQuotasRequest, EntityData,
};
use tailwater_kafka::messages::topics::{DescribeProducersRequest, TopicRequest};

use tailwater_kafka::messages::cluster::{
    DescribeTopicPartitionsRequest, MetadataRequest, MetadataRequestTopic, TopicRequest as DescribedTopic,
};
use tailwater_kafka::messages::fetch::{
    FetchPartition, FetchRequest, FetchTopic, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use tailwater_kafka::messages::topics::{CreatableTopic, CreateTopicsRequest};
use uuid::Uuid;

use crate::common::batch;
use crate::groups::ready;
use crate::session::Session;

const NOBODY_S: &str = "nobody.s";

pub fn replicas(session: &mut Session) {
    session.create("replicas", 2, &[]);
    let moved = |path: &str, name: &str, partition| AlterReplicaLogDirsRequest {
        dirs: vec![AlterReplicaLogDir {
            path: path.to_owned(),
            topics: vec![AlterReplicaLogDirTopic { name: name.to_owned(), partitions: vec![partition] }],
        }],
    };
    session.ask_all("to a directory that is none", &moved("/no/such", "replicas", 0));
    session.ask_all("to a relative directory", &moved("data", "replicas", 0));
    session.ask_all("to no directory", &AlterReplicaLogDirsRequest { dirs: vec![] });

    let elect = |election_type, of: Option<(&str, &[i32])>| ElectLeadersRequest {
        election_type,
        topic_partitions: of.map(|(topic, partitions)| {
            vec![ElectLeadersTopicPartitions { topic: topic.to_owned(), partitions: partitions.to_vec() }]
        }),
        timeout_ms: 30_000,
    };
    for election_type in [0, 1] {
        let what = |of: &str| format!("election {election_type} of {of}");
        // Before version 1 there is one kind.
        let versions = if election_type == 0 { 0..=2 } else { 1..=2 };
        session.ask_in(what("two"), versions.clone(), &elect(election_type, Some(("replicas", &[0, 1]))));
        session.ask_in(
            what("one not there"),
            versions.clone(),
            &elect(election_type, Some((NOBODY_S, &[0]))),
        );
        session.ask_in(what("a third"), versions.clone(), &elect(election_type, Some(("replicas", &[2]))));
        session.ask_in(what("all"), versions.clone(), &elect(election_type, None));
        session.ask_in(what("none"), versions, &elect(election_type, Some(("replicas", &[]))));
    }

    let reassign = |topic: &str, partition_index, replicas: Option<&[i32]>| {
        let replicas = replicas.map(<[i32]>::to_vec);
        let partitions = vec![ReassignablePartition { partition_index, replicas }];
        let topics = vec![ReassignableTopic { name: topic.to_owned(), partitions }];
        AlterPartitionReassignmentsRequest { timeout_ms: 30_000, topics, ..Default::default() }
    };
    session.ask_all("to where it is", &reassign("replicas", 0, Some(&[1])));
    session.ask_all("to another broker", &reassign("replicas", 0, Some(&[7])));
    session.ask_all("to nowhere", &reassign("replicas", 0, Some(&[])));
    session.ask_all("nothing is cancelled", &reassign("replicas", 0, None));
    session.ask_all("of no topic", &reassign(NOBODY_S, 0, Some(&[1])));
    session.ask_all("of no partition", &reassign("replicas", 9, Some(&[1])));
    session.ask_all("all that move", &ListPartitionReassignmentsRequest::default());
    let topics = [("replicas", 0), (NOBODY_S, 3)].map(|(name, partition)| ListPartitionReassignmentsTopics {
        name: name.to_owned(),
        partition_indexes: vec![partition],
    });
    let asked = ListPartitionReassignmentsRequest { topics: Some(topics.to_vec()), ..Default::default() };
    session.ask_all("some that move", &asked);
}

pub fn controllers(session: &mut Session) {
    let quorum = |topic: &str, partition_index| DescribeQuorumRequest {
        topics: vec![DescribeQuorumRequestTopicData {
            topic_name: topic.to_owned(),
            partitions: vec![DescribeQuorumRequestPartitionData { partition_index }],
        }],
    };
    session.ask_all("metadata", &quorum("__cluster_metadata", 0));
    session.ask_all("another partition", &quorum("__cluster_metadata", 1));
    session.ask_all("another topic", &quorum("replicas", 0));
    session.ask_all("nothing", &DescribeQuorumRequest::default());

    let update = |feature: &str, max_version_level, upgrade_type| UpdateFeaturesRequest {
        timeout_ms: 30_000,
        feature_updates: vec![FeatureUpdateKey {
            feature: feature.to_owned(),
            max_version_level,
            allow_downgrade: true,
            upgrade_type,
        }],
        validate_only: false,
    };
    session.ask_all("a feature that there is not", &update("no.such", 3, 1));
    session.ask_all("none", &UpdateFeaturesRequest::default());

    let alter = |remove| AlterClientQuotasRequest {
        entries: vec![AlterClientQuotasEntry {
            entity: vec![EntityData {
                entity_type: "client-id".to_owned(),
                entity_name: Some("me".to_owned()),
            }],
            ops: vec![AlterClientQuotasOp { key: "consumer_byte_rate".to_owned(), value: 1e9, remove }],
        }],
        validate_only: true,
    };
    session.ask_all("taken away", &alter(true));
    session.ask_all("a quota", &alter(false));
}

pub fn producers(session: &mut Session) {
    let topic = ("producers", session.create("producers", 2, &[]));
    let of = |asked: &[(&str, &[i32])]| DescribeProducersRequest {
        topics: asked
            .iter()
            .map(|(name, partitions)| TopicRequest {
                name: (*name).to_owned(),
                partition_indexes: partitions.to_vec(),
            })
            .collect(),
    };
    session.ask_all("nobody yet", &of(&[("producers", &[0, 1])]));
    session.produce("the first batch", 9, topic, 0, batch(&[1, 2], Codec::None, Some((77, 3, 0))));
    session.produce("the second batch", 9, topic, 0, batch(&[3], Codec::None, Some((77, 3, 2))));
    session.produce("without an id", 9, topic, 1, batch(&[1], Codec::None, None));
    session.ask_all("one of them", &of(&[("producers", &[0, 1])]));
    session.ask_all("not there", &of(&[(NOBODY_S, &[0]), ("producers", &[5, -1])]));
}

/// The topic in which groups are kept.
pub fn internal(session: &mut Session) {
    const NAME: &str = "__consumer_offsets";
    ready(session);
    let id = session.wait_for(NAME, 1);
    let topic = MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(NAME.to_owned()) };
    let asked =
        MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: false, ..Default::default() };
    session.ask_in("by name", 1..=13, &asked);
    let topics = vec![DescribedTopic { name: NAME.to_owned() }];
    let described =
        DescribeTopicPartitionsRequest { topics, response_partition_limit: 1, ..Default::default() };
    session.ask_all("described", &described);
    for timestamp in [-1, -2, -3, 1_000] {
        let partitions = vec![ListOffsetsPartition { timestamp, ..Default::default() }];
        let topics = vec![ListOffsetsTopic { name: NAME.to_owned(), partitions }];
        let asked = ListOffsetsRequest { replica_id: -1, topics, ..Default::default() };
        session.ask_in(format!("time {timestamp}"), 7..=11, &asked);
    }
    for fetch_offset in [0, 7, -1] {
        let partitions =
            vec![FetchPartition { fetch_offset, partition_max_bytes: 1_000, ..Default::default() }];
        let topics = vec![FetchTopic { topic: NAME.to_owned(), topic_id: id, partitions }];
        let asked = FetchRequest { max_bytes: 1_000, topics, ..Default::default() };
        session.fetch(format!("from {fetch_offset}"), 12, &asked);
        session.fetch(format!("from {fetch_offset}"), 16, &asked);
    }
    for version in [9, 13] {
        session.produce("written to", version, (NAME, id), 0, batch(&[1], Codec::None, None));
    }
    let topic = CreatableTopic {
        name: NAME.to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    session.ask(
        "created",
        7,
        &CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, validate_only: true },
    );
}
