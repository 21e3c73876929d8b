//! How many connections there may be, and for how long one may say nothing.

#![allow(clippy::disallowed_methods)] // a test of real sockets

mod common;

use common::{Client, Tailwater, batch, is_closed};
use tailwater_format::Codec;
use tailwater_kafka::KafkaConfig;
use tailwater_kafka::messages::cluster::ApiVersionsRequest;
use tailwater_kafka::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use tailwater_kafka::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka::messages::topics::{CreatableTopic, CreateTopicsRequest};
use tailwater_kafka::wire::RecordsBytes;

fn is_answered(client: &mut Client) -> bool {
    client.ask(0, &ApiVersionsRequest::default()).is_some()
}

#[test]
fn a_connection_beyond_connections_max_is_closed_others_go_on_and_the_place_of_one_that_ends_is_taken() {
    let tailwater = Tailwater::start(KafkaConfig { connections_max: 2, ..KafkaConfig::default() });
    let [mut first, mut second, mut third] = [(); 3].map(|()| Client::connect(tailwater.address()));
    assert!(is_answered(&mut first) && is_answered(&mut second));
    assert!(!is_answered(&mut third), "there are two already");
    assert!(is_answered(&mut first) && is_answered(&mut second), "they go on");
    drop(first);
    // Until it is noticed that it is gone; each time over a new connection.
    while !is_answered(&mut third) {}
    assert!(is_answered(&mut second));
}

/// Asserts that the broker closes it.
fn is_hung_up_on(mut client: Client) {
    let error = client.receive().expect_err("it asked for nothing");
    assert!(is_closed(&error), "{error}");
}

#[test]
fn connections_that_ask_for_nothing_are_closed_but_not_one_that_waits_for_its_answer() {
    let tailwater = Tailwater::start(KafkaConfig { idle_ms: 3_000, ..KafkaConfig::default() });
    let connect = || Client::connect(tailwater.address());
    let topic = CreatableTopic {
        name: "topic".to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, validate_only: false };
    let created = connect().ask(7, &asked).expect("an answer");
    assert_eq!(created.topics[0].error_code, 0, "{created:?}");

    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "topic".to_owned(), partitions: vec![partition], ..Default::default() };
    let fetch =
        FetchRequest { max_wait_ms: 3_600_000, min_bytes: 1, topics: vec![topic], ..Default::default() };
    let mut waits = connect();
    waits.begin(12, &fetch);
    let silent = connect();
    let mut within_a_request = connect();
    within_a_request.send(&[0, 0, 0, 20, 0, 18]).expect("sent");
    is_hung_up_on(silent);
    is_hung_up_on(within_a_request);

    let records = RecordsBytes(vec![batch(&[1], Codec::None, None)]);
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic = TopicProduceData { name: "topic".to_owned(), partition_data, ..Default::default() };
    let produce =
        ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
    let appended = connect().ask(9, &produce).expect("an answer");
    assert_eq!(appended.responses[0].partition_responses[0].error_code, 0, "{appended:?}");
    let fetched = waits.end::<FetchRequest>(12).responses.remove(0).partitions.remove(0);
    assert_eq!(fetched.high_watermark, 1);
    assert!(!fetched.records.into_bytes().is_empty());
}
