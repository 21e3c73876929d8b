//! Large requests share a bounded room: whoever waits for it waits for what ends.

#![allow(clippy::disallowed_methods)] // a test of real sockets

mod common;

use bytes::Bytes;
use common::{Client, Tailwater};
use tailwater_kafka::KafkaConfig;
use tailwater_kafka::messages::header::request;
use tailwater_kafka::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka::wire::RecordsBytes;

/// A Produce of 900 KiB; that there is no such topic is found out when it is carried out.
fn large(correlation_id: i32) -> Bytes {
    let records = RecordsBytes(vec![vec![0; 900 << 10].into()]);
    let partition_data = vec![PartitionProduceData { index: 0, records }];
    let topic_data =
        vec![TopicProduceData { name: "no-topic".to_owned(), partition_data, ..Default::default() }];
    let asked = ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() };
    request(&asked, 9, correlation_id, "test").concat()
}

/// A broker with room for one large request.
fn with_room_for_one(stalled_ms: u64) -> Tailwater {
    Tailwater::start(KafkaConfig {
        frame_bytes_max: 1 << 20,
        requests_bytes_max: 1 << 20,
        stalled_ms,
        auto_create_topics: false,
        ..KafkaConfig::default()
    })
}

fn answered(client: &mut Client) -> i32 {
    let answer = client.receive().expect("an answer");
    i32::from_be_bytes(*answer.first_chunk().expect("a correlation id"))
}

#[test]
fn large_requests_that_are_sent_ahead_are_all_answered_although_there_is_room_for_one() {
    let tailwater = with_room_for_one(60_000);
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(tailwater.address())).collect();
    let frames = [large(1), large(2), large(3)].concat();
    std::thread::scope(|scope| {
        for client in &mut clients {
            let frames = &frames;
            scope.spawn(move || {
                client.send(frames).expect("read in the end");
                assert_eq!([answered(client), answered(client), answered(client)], [1, 2, 3]);
            });
        }
    });
}

#[test]
fn a_large_request_that_does_not_come_is_closed_and_its_room_is_others() {
    let tailwater = with_room_for_one(5_000);
    let mut silent = Client::connect(tailwater.address());
    silent.send(&large(1)[..100 << 10]).expect("sent");
    // So that it is the first to ask for room.
    while tailwater.broker().stats().read().connections < 1 {
        std::thread::yield_now();
    }
    let mut other = Client::connect(tailwater.address());
    other.send(&large(2)).expect("read in the end");
    assert_eq!(answered(&mut other), 2);
    assert!(silent.receive().is_err(), "it is closed");
}

#[test]
fn to_announce_a_large_request_takes_no_room() {
    let tailwater = with_room_for_one(600_000);
    let mut silent: Vec<_> = (0..4).map(|_| Client::connect(tailwater.address())).collect();
    for client in &mut silent {
        client.send(&large(1)[..1_000]).expect("sent");
    }
    // So that they had come first, if it took any.
    while tailwater.broker().stats().read().connections < 4 {
        std::thread::yield_now();
    }
    let mut other = Client::connect(tailwater.address());
    for number in 2..10 {
        other.send(&large(number)).expect("read");
        assert_eq!(answered(&mut other), number);
    }
}
