//! Connections whose client has taken more than its quota.

#![allow(clippy::disallowed_methods)] // a real broker

mod common;

use common::{Client, Tailwater, batch, read_all};
use tailwater_format::Codec;
use tailwater_kafka::KafkaConfig;
use tailwater_kafka::messages::cluster::MetadataRequest;
use tailwater_kafka::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use tailwater_kafka::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use tailwater_kafka::messages::security::{
    AlterClientQuotasEntry, AlterClientQuotasOp, AlterClientQuotasRequest, EntityData,
};
use tailwater_kafka::messages::topics::{CreatableTopic, CreateTopicsRequest};
use tailwater_kafka::wire::RecordsBytes;

/// A broker with the topic `t`.
fn broker() -> (Tailwater, Client) {
    let tailwater = Tailwater::start(KafkaConfig::default());
    let client = with_topic(&tailwater);
    (tailwater, client)
}

/// A connection to a broker, which has the topic `t` from now on.
fn with_topic(tailwater: &Tailwater) -> Client {
    let mut client = Client::connect(tailwater.address());
    let topic = CreatableTopic {
        name: "t".to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 60_000, validate_only: false };
    assert_eq!(client.ask(5, &asked).expect("an answer").topics[0].error_code, 0);
    client
}

/// Bounds all who call themselves as the tests do, or bounds them no more.
fn bound(client: &mut Client, key: &str, most: Option<f64>) {
    let op =
        AlterClientQuotasOp { key: key.to_owned(), value: most.unwrap_or_default(), remove: most.is_none() };
    let entity =
        vec![EntityData { entity_type: "client-id".to_owned(), entity_name: Some("test".to_owned()) }];
    let entries = vec![AlterClientQuotasEntry { entity, ops: vec![op] }];
    let answer = client.ask(1, &AlterClientQuotasRequest { entries, validate_only: false });
    assert_eq!(answer.expect("an answer").entries[0].error_code, 0);
}

fn produce() -> ProduceRequest {
    let records = RecordsBytes(vec![batch(&[1; 1_000], Codec::None, None)]);
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic_data = vec![TopicProduceData { name: "t".to_owned(), partition_data, ..Default::default() }];
    ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data, ..Default::default() }
}

fn fetch() -> FetchRequest {
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "t".to_owned(), partitions: vec![partition], ..Default::default() };
    FetchRequest { topics: vec![topic], max_bytes: 1 << 20, ..Default::default() }
}

fn has_written(answer: &ProduceResponse) -> bool {
    answer.responses[0].partition_responses[0].error_code == 0
}

#[test]
fn a_producer_that_owes_something_is_held_on_new_connections_too_and_a_consumer_beside_it_is_not() {
    let (_tailwater, mut client) = broker();
    bound(&mut client, "producer_byte_rate", Some(1.0));
    let answer = client.ask(8, &produce()).expect("an answer");
    // Hours: some ten thousand bytes at one in a second.
    assert!(has_written(&answer) && answer.throttle_time_ms > 3_600_000, "{}", answer.throttle_time_ms);
    let mut another = Client::connect(client.address());
    another.begin(8, &produce());
    let answer = client.ask(11, &fetch()).expect("an answer");
    assert_eq!(answer.throttle_time_ms, 0);
    for _ in 0..100 {
        client.ask(8, &MetadataRequest::default()).expect("an answer");
    }
    assert_eq!(read_all(&mut client, "t", uuid::Uuid::nil()), 1_000, "the second one has not begun");
    // It is told at once that it is not bounded any more.
    bound(&mut client, "producer_byte_rate", None);
    assert!(has_written(&another.end::<ProduceRequest>(8)));
    assert_eq!(read_all(&mut client, "t", uuid::Uuid::nil()), 2_000);
}

#[test]
fn a_consumer_is_given_a_second_s_worth_or_one_batch_and_then_held() {
    let (_tailwater, mut client) = broker();
    let batches = 4;
    for _ in 0..batches {
        assert!(has_written(&client.ask(8, &produce()).expect("an answer")));
    }
    let mut consumer = Client::connect(client.address());
    bound(&mut client, "consumer_byte_rate", Some(1.0));
    let found = |answer: &FetchResponse| answer.responses[0].partitions[0].records.len();
    let answer = consumer.ask(11, &fetch()).expect("an answer");
    let one = batch(&[1; 1_000], Codec::None, None).len();
    assert_eq!(found(&answer), one);
    assert!(answer.throttle_time_ms > 3_600_000, "{}", answer.throttle_time_ms);
    consumer.begin(11, &fetch());
    assert!(has_written(&client.ask(8, &produce()).expect("an answer")), "a producer is not held");
    bound(&mut client, "consumer_byte_rate", None);
    assert_eq!(found(&consumer.end::<FetchRequest>(11)), (batches + 1) * one);
}

#[test]
fn what_a_client_sent_before_it_went_away_is_carried_out_once_it_owes_nothing() {
    let (_tailwater, mut client) = broker();
    // Of one of them some twenty seconds are owed.
    let rate = batch(&[1; 1_000], Codec::None, None).len() / 20;
    bound(&mut client, "producer_byte_rate", Some(rate as f64));
    assert!(has_written(&client.ask(8, &produce()).expect("an answer")));
    let mut gone = Client::connect(client.address());
    let acks_0 = ProduceRequest { acks: 0, ..produce() };
    for _ in 0..3 {
        gone.begin(8, &acks_0);
    }
    drop(gone);
    bound(&mut client, "producer_byte_rate", None);
    while read_all(&mut client, "t", uuid::Uuid::nil()) < 4_000 {}
}

#[test]
fn a_connection_that_is_held_for_as_long_as_an_idle_one_may_be_is_closed_and_nothing_of_it_is_begun() {
    let tailwater = Tailwater::start(KafkaConfig { idle_ms: 5_000, ..KafkaConfig::default() });
    let mut client = with_topic(&tailwater);
    bound(&mut client, "producer_byte_rate", Some(1.0));
    assert!(has_written(&client.ask(8, &produce()).expect("an answer")));
    let mut held = Client::connect(client.address());
    held.begin(8, &produce());
    assert!(held.receive().is_err_and(|error| common::is_closed(&error)));
    let mut client = Client::connect(client.address());
    assert_eq!(read_all(&mut client, "t", uuid::Uuid::nil()), 1_000);
}
