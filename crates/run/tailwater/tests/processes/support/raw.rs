//! Kafka's protocol, request by request.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use tailwater_kafka_wire::api::ApiRequest;
use tailwater_kafka_wire::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use tailwater_kafka_wire::messages::header::{read_response, request};
use tailwater_kafka_wire::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use tailwater_kafka_wire::wire::RecordsBytes;

use super::{Node, PATIENCE};

/// A connection.
pub struct Raw {
    pub stream: TcpStream,
    correlation_id: i32,
}

impl Raw {
    pub fn connect(node: &Node) -> Self {
        let stream = TcpStream::connect(&node.kafka).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can have one");
        Self { stream, correlation_id: 0 }
    }

    /// Sends a request, and reads no answer.
    pub fn send<R: ApiRequest>(&mut self, version: i16, asked: &R) {
        self.correlation_id += 1;
        let frame = request(asked, version, self.correlation_id, "raw").concat();
        self.stream.write_all(&frame).expect("sent");
    }

    /// Reads the answer to a request.
    pub fn receive<R: ApiRequest>(&mut self, version: i16) -> R::Response {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).expect("an answer");
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut answer).expect("a whole answer");
        let (id, answer) = read_response(R::API, version, answer.into()).expect("it makes sense");
        assert_eq!(id, self.correlation_id);
        answer
    }

    pub fn call<R: ApiRequest>(&mut self, version: i16, asked: &R) -> R::Response {
        self.send(version, asked);
        self.receive::<R>(version)
    }

    /// In the newest version.
    pub fn ask<R: ApiRequest>(&mut self, asked: &R) -> R::Response {
        self.call(*R::API.versions().end(), asked)
    }

    /// Appends a batch to a shard, and returns the offset of its first record once it is durable.
    pub fn produce(&mut self, topic: &str, shard: i32, batch: Bytes) -> i64 {
        let data = PartitionProduceData { index: shard, records: RecordsBytes(vec![batch]) };
        let topic =
            TopicProduceData { name: topic.to_owned(), partition_data: vec![data], ..Default::default() };
        let asked =
            ProduceRequest { acks: -1, timeout_ms: 300_000, topic_data: vec![topic], ..Default::default() };
        let answer = self.call(9, &asked);
        let partition = &answer.responses[0].partition_responses[0];
        assert_eq!(partition.error_code, 0, "{partition:?}");
        partition.base_offset
    }

    /// Record batches of a shard from an offset on; waits until there are any.
    pub fn fetch(&mut self, topic: &str, shard: i32, offset: i64, bytes_max: i32) -> Bytes {
        let partition = FetchPartition {
            partition: shard,
            fetch_offset: offset,
            partition_max_bytes: bytes_max,
            ..Default::default()
        };
        let topic = FetchTopic { topic: topic.to_owned(), partitions: vec![partition], ..Default::default() };
        let asked =
            FetchRequest { max_wait_ms: 100_000, min_bytes: 1, topics: vec![topic], ..Default::default() };
        let mut answer = self.call(12, &asked);
        let partition = answer.responses[0].partitions.remove(0);
        assert_eq!(partition.error_code, 0, "at {offset}");
        partition.records.into_bytes()
    }
}
