//! What administrators of clusters ask a node for that is alone.

#![allow(clippy::disallowed_methods)] // a real broker

mod common;

use common::{Client, Tailwater, batch};
use tailwater_format::Codec;
use tailwater_kafka::messages::cluster::{MetadataRequest, MetadataRequestTopic};
use tailwater_kafka::messages::configs::{
    DescribeConfigsRequest, DescribeConfigsResource, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource, IncrementalAlterConfigsRequestAlterableConfig,
};
use tailwater_kafka::messages::fetch::{
    FetchPartition, FetchRequest, FetchTopic, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use tailwater_kafka::messages::membership::ConsumerGroupHeartbeatRequest;
use tailwater_kafka::messages::offsets::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use tailwater_kafka::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka::messages::replicas::*;
use tailwater_kafka::messages::security::{
    AlterClientQuotasEntry, AlterClientQuotasOp, AlterClientQuotasRequest, EntityData,
};
use tailwater_kafka::messages::topics::{
    CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DescribeLogDirsRequest,
    DescribeProducersRequest, ProducerState, TopicRequest,
};
use tailwater_kafka::wire::RecordsBytes;
use tailwater_kafka::{ErrorCode, KafkaConfig};

fn create(client: &mut Client, name: &str) {
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions: 2,
        replication_factor: 1,
        ..Default::default()
    };
    let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 60_000, validate_only: false };
    assert_eq!(client.ask(5, &asked).expect("an answer").topics[0].error_code, 0);
}

/// What a partition tells of its producers.
fn producers(client: &mut Client, topic: &str, partition: i32) -> Vec<ProducerState> {
    let topics = vec![TopicRequest { name: topic.to_owned(), partition_indexes: vec![partition, partition] }];
    let mut answer = client.ask(0, &DescribeProducersRequest { topics }).expect("an answer");
    let mut partitions = answer.topics.remove(0).partitions;
    assert_eq!(partitions.len(), 1, "what is named twice is answered once");
    assert_eq!(partitions[0].error_code, 0);
    partitions.remove(0).active_producers
}

#[test]
fn a_partition_tells_of_its_idempotent_producers_also_after_a_restart() {
    let mut tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    create(&mut client, "t");
    for (first, timestamps) in [(0, &[1, 2][..]), (2, &[3])] {
        let records = RecordsBytes(vec![batch(timestamps, Codec::None, Some((77, 4, first)))]);
        let partition_data = vec![PartitionProduceData { index: 1, records }];
        let topic = TopicProduceData { name: "t".to_owned(), partition_data, ..Default::default() };
        let asked =
            ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data: vec![topic], ..Default::default() };
        let answer = client.ask(9, &asked).expect("an answer");
        assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
    }
    let told = producers(&mut client, "t", 1);
    let [producer] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((producer.producer_id, producer.producer_epoch, producer.last_sequence), (77, 4, 2));
    assert!(producer.last_timestamp > 1_000_000_000_000, "the node's time: {producer:?}");
    assert_eq!(producers(&mut client, "t", 0), []);
    tailwater.restart();
    let told = producers(&mut Client::connect(tailwater.address()), "t", 1);
    assert_eq!((told[0].producer_id, told[0].last_sequence), (77, 2));
}

#[test]
fn a_replica_stays_in_the_directory_that_it_is_in() {
    let tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    create(&mut client, "t");
    let dirs = client.ask(4, &DescribeLogDirsRequest { topics: None }).expect("an answer");
    let own = dirs.results[0].log_dir.clone();
    let mut moved = |path: &str, name: &str| {
        let topics = vec![AlterReplicaLogDirTopic { name: name.to_owned(), partitions: vec![1] }];
        let asked =
            AlterReplicaLogDirsRequest { dirs: vec![AlterReplicaLogDir { path: path.to_owned(), topics }] };
        let answer = client.ask(2, &asked).expect("an answer");
        ErrorCode::from_number(answer.results[0].partitions[0].error_code).expect("a code")
    };
    assert_eq!(moved(&own, "t"), ErrorCode::None);
    assert_eq!(moved(&own, "nobody.s"), ErrorCode::ReplicaNotAvailable);
    assert_eq!(moved("/elsewhere", "t"), ErrorCode::LogDirNotFound);
}

#[test]
fn the_node_is_the_quorum_of_its_metadata_whose_end_moves_with_every_change() {
    let tailwater = Tailwater::start(KafkaConfig { broker_id: 5, ..KafkaConfig::default() });
    let mut client = Client::connect(tailwater.address());
    let partitions = vec![DescribeQuorumRequestPartitionData { partition_index: 0 }];
    let topics =
        vec![DescribeQuorumRequestTopicData { topic_name: "__cluster_metadata".to_owned(), partitions }];
    let asked = DescribeQuorumRequest { topics };
    let mut ends = Vec::new();
    for topic in ["a", "b"] {
        create(&mut client, topic);
        let answer = client.ask(2, &asked).expect("an answer");
        assert_eq!((answer.error_code, answer.nodes[0].node_id), (0, 5));
        assert_eq!(answer.nodes[0].listeners[0].port, tailwater.address().port());
        let partition = &answer.topics[0].partitions[0];
        assert_eq!((partition.error_code, partition.leader_id), (0, 5));
        assert_eq!((partition.current_voters.len(), partition.observers.len()), (1, 0));
        assert_eq!(partition.current_voters[0].replica_id, 5);
        assert_eq!(partition.current_voters[0].log_end_offset, partition.high_watermark);
        ends.push(partition.high_watermark);
    }
    assert!(ends[0] < ends[1], "{ends:?}");
}

#[test]
fn what_can_not_be_done_here_is_refused_with_the_reason() {
    let tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    create(&mut client, "t");
    let said = |error_code: i16, message: Option<String>, code: ErrorCode, words: &str| {
        assert_eq!(error_code, code.number());
        let message = message.expect("a sentence");
        assert!(message.contains(words), "{message}");
    };
    let topics = vec![ElectLeadersTopicPartitions { topic: "t".to_owned(), partitions: vec![0] }];
    let asked = ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() };
    let mut answer = client.ask(2, &asked).expect("an answer");
    let result = answer.replica_election_results[0].partition_result.remove(0);
    said(result.error_code, result.error_message, ErrorCode::ElectionNotNeeded, "broker 1 leads it");

    let partitions = vec![ReassignablePartition { partition_index: 0, replicas: Some(vec![1, 2]) }];
    let topics = vec![ReassignableTopic { name: "t".to_owned(), partitions }];
    let asked = AlterPartitionReassignmentsRequest { topics, ..Default::default() };
    let mut answer = client.ask(1, &asked).expect("an answer");
    let result = answer.responses[0].partitions.remove(0);
    said(result.error_code, result.error_message, ErrorCode::InvalidReplicaAssignment, "one replica");

    let entity = vec![EntityData { entity_type: "user".to_owned(), entity_name: None }];
    let op = |remove| AlterClientQuotasOp { key: "producer_byte_rate".to_owned(), value: 1.0, remove };
    let entries =
        [false, true].map(|remove| AlterClientQuotasEntry { entity: entity.clone(), ops: vec![op(remove)] });
    let asked = AlterClientQuotasRequest { entries: entries.to_vec(), validate_only: false };
    let mut answer = client.ask(1, &asked).expect("an answer");
    for entry in answer.entries.drain(..) {
        assert_eq!((entry.error_code, &entry.entity), (0, &entity));
    }

    let update = FeatureUpdateKey { feature: "transaction.version".to_owned(), ..Default::default() };
    let asked = UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
    let answer = client.ask(2, &asked).expect("an answer");
    said(answer.error_code, answer.error_message, ErrorCode::InvalidUpdateVersion, "transaction.version");
}

/// Sets one name of a configuration, or gives it up; the error, and the words for it.
fn set(client: &mut Client, kind: i8, of: &str, name: &str, value: Option<&str>) -> (ErrorCode, String) {
    let configs = vec![IncrementalAlterConfigsRequestAlterableConfig {
        name: name.to_owned(),
        config_operation: i8::from(value.is_none()),
        value: value.map(str::to_owned),
    }];
    let resources = vec![IncrementalAlterConfigsRequestAlterConfigsResource {
        resource_type: kind,
        resource_name: of.to_owned(),
        configs,
    }];
    let asked = IncrementalAlterConfigsRequest { resources, validate_only: false };
    let answer = client.ask(1, &asked).expect("an answer").responses.remove(0);
    let error = ErrorCode::from_number(answer.error_code).expect("a code");
    (error, answer.error_message.unwrap_or_default())
}

/// Value and source of one name.
fn described(client: &mut Client, kind: i8, of: &str, name: &str) -> Option<(String, i8)> {
    let resources = vec![DescribeConfigsResource {
        resource_type: kind,
        resource_name: of.to_owned(),
        configuration_keys: Some(vec![name.to_owned()]),
    }];
    let asked = DescribeConfigsRequest { resources, include_synonyms: true, include_documentation: true };
    let mut found = client.ask(4, &asked).expect("an answer").results.remove(0).configs;
    assert!(found.len() <= 1, "one name");
    let found = found.pop()?;
    Some((found.value.expect("a value"), found.config_source))
}

const BROKER: i8 = 4;
const GROUP: i8 = 32;
const DONE: (ErrorCode, String) = (ErrorCode::None, String::new());

#[test]
fn what_is_set_of_a_broker_holds_at_once_and_after_a_restart_until_it_is_given_up() {
    let mut tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    let usual = |client: &mut Client, name: &str| {
        let topic = CreatableTopic {
            name: name.to_owned(),
            num_partitions: -1,
            replication_factor: -1,
            ..Default::default()
        };
        let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 60_000, validate_only: false };
        client.ask(5, &asked).expect("an answer").topics[0].num_partitions
    };
    let name = "num.partitions";
    assert_eq!(described(&mut client, BROKER, "1", name), Some(("1".to_owned(), 4)));
    assert_eq!(set(&mut client, BROKER, "", name, Some("2")), DONE);
    assert_eq!(described(&mut client, BROKER, "", name), Some(("2".to_owned(), 3)));
    assert_eq!(usual(&mut client, "two"), 2);
    assert_eq!(set(&mut client, BROKER, "1", name, Some("3")), DONE);
    assert_eq!(usual(&mut client, "three"), 3);
    tailwater.restart();
    let mut client = Client::connect(tailwater.address());
    assert_eq!(described(&mut client, BROKER, "1", name), Some(("3".to_owned(), 2)));
    assert_eq!(usual(&mut client, "three.again"), 3);
    for of in ["1", ""] {
        assert_eq!(set(&mut client, BROKER, of, name, None), DONE);
    }
    assert_eq!(usual(&mut client, "one"), 1);

    assert_eq!(set(&mut client, BROKER, "1", "auto.create.topics.enable", Some("false")), DONE);
    let topic = MetadataRequestTopic { name: Some("missing".to_owned()), ..Default::default() };
    let asked = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = client.ask(9, &asked).expect("an answer");
    assert_eq!(answer.topics[0].error_code, ErrorCode::UnknownTopicOrPartition.number());
    for (name, value, words) in [
        ("listeners", "PLAINTEXT://:9092", "can't be set of a broker while the node runs"),
        ("log.retention.ms", "1", "set retention.ms of each topic"),
        ("num.partitions", "-1", "it is negative"),
    ] {
        let (error, why) = set(&mut client, BROKER, "1", name, Some(value));
        assert!(error == ErrorCode::InvalidConfig && why.contains(words), "{error:?}: {why}");
    }
}

#[test]
fn a_member_is_told_the_interval_that_is_set_of_its_group_with_its_next_heartbeat() {
    let tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    create(&mut client, "t");
    let mut beats = [("g", 0), ("other", 0)];
    let beat = |client: &mut Client, (group, epoch): &mut (&str, i32)| {
        let asked = ConsumerGroupHeartbeatRequest {
            group_id: (*group).to_owned(),
            member_id: "m".to_owned(),
            member_epoch: *epoch,
            rebalance_timeout_ms: 60_000,
            subscribed_topic_names: Some(vec!["t".to_owned()]),
            topic_partitions: Some(vec![]),
            ..Default::default()
        };
        let answer = client.ask(1, &asked).expect("an answer");
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        *epoch = answer.member_epoch;
        answer.heartbeat_interval_ms
    };
    assert_eq!(beats.each_mut().map(|of| beat(&mut client, of)), [5_000, 5_000]);
    let name = "consumer.heartbeat.interval.ms";
    assert_eq!(set(&mut client, GROUP, "g", name, Some("700")), DONE);
    assert_eq!(described(&mut client, GROUP, "g", name), Some(("700".to_owned(), 8)));
    assert_eq!(described(&mut client, GROUP, "other", name), Some(("5000".to_owned(), 4)));
    assert_eq!(beats.each_mut().map(|of| beat(&mut client, of)), [700, 5_000]);
    assert_eq!(set(&mut client, BROKER, "1", "group.consumer.heartbeat.interval.ms", Some("900")), DONE);
    assert_eq!(beats.each_mut().map(|of| beat(&mut client, of)), [700, 900]);
    assert_eq!(set(&mut client, GROUP, "g", name, None), DONE);
    assert_eq!(beats.each_mut().map(|of| beat(&mut client, of)), [900, 900]);
}

const OFFSETS: &str = "__consumer_offsets";

/// All topics, with whether they are internal and how many partitions they have.
fn topics(client: &mut Client, named: Option<&str>) -> Vec<(String, bool, usize)> {
    let named =
        named.map(|name| vec![MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() }]);
    let answer = client.ask(9, &MetadataRequest { topics: named, ..Default::default() }).expect("an answer");
    let topics = answer.topics.into_iter();
    topics.map(|topic| (topic.name.expect("a name"), topic.is_internal, topic.partitions.len())).collect()
}

#[test]
fn the_topic_of_committed_offsets_is_listed_once_there_is_a_group_and_has_no_records() {
    let tailwater = Tailwater::start(KafkaConfig::default());
    let mut client = Client::connect(tailwater.address());
    create(&mut client, "a");
    assert_eq!(topics(&mut client, None), [("a".to_owned(), false, 2)]);
    assert_eq!(topics(&mut client, Some(OFFSETS)), [(OFFSETS.to_owned(), true, 1)]);
    let partitions = vec![OffsetCommitRequestPartition { committed_offset: 0, ..Default::default() }];
    let commits = vec![OffsetCommitRequestTopic { name: "a".to_owned(), partitions, ..Default::default() }];
    let asked = OffsetCommitRequest {
        group_id: "g".to_owned(),
        generation_id_or_member_epoch: -1,
        topics: commits,
        ..Default::default()
    };
    assert_eq!(client.ask(8, &asked).expect("an answer").topics[0].partitions[0].error_code, 0);
    assert_eq!(topics(&mut client, None), [(OFFSETS.to_owned(), true, 1), ("a".to_owned(), false, 2)]);

    let partitions = vec![ListOffsetsPartition { partition_index: 0, timestamp: -1, ..Default::default() }];
    let asked = ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic { name: OFFSETS.to_owned(), partitions }],
        ..Default::default()
    };
    let end = client.ask(7, &asked).expect("an answer").topics[0].partitions[0].clone();
    assert_eq!((end.error_code, end.offset), (0, 0));
    let partitions = vec![FetchPartition { partition: 0, partition_max_bytes: 1, ..Default::default() }];
    let topic = FetchTopic { topic: OFFSETS.to_owned(), partitions, ..Default::default() };
    let asked = FetchRequest { topics: vec![topic], max_bytes: 1, ..Default::default() };
    let found = client.ask(12, &asked).expect("an answer").responses[0].partitions[0].clone();
    assert_eq!((found.error_code, found.high_watermark, found.records.0.len()), (0, 0, 0));

    assert_eq!(described(&mut client, 2, OFFSETS, "cleanup.policy"), Some(("compact".to_owned(), 1)));
    let (error, why) = set(&mut client, 2, OFFSETS, "retention.ms", Some("1"));
    assert!(error == ErrorCode::InvalidTopic && why.contains("in its metadata"), "{error:?}: {why}");
    let topic_names = vec![OFFSETS.to_owned()];
    let asked = DeleteTopicsRequest { topic_names, timeout_ms: 60_000, ..Default::default() };
    let deleted = client.ask(5, &asked).expect("an answer").responses.remove(0);
    assert_eq!(deleted.error_code, ErrorCode::InvalidTopic.number());
}
