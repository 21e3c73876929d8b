//! A script's requests to one broker, and what it answered.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use bytes::Bytes;
use tailwater_format::{Decompressor, batches};
use tailwater_kafka::api::ApiRequest;
use tailwater_kafka::messages::cluster::{MetadataRequest, MetadataRequestTopic, MetadataResponseTopic};
use tailwater_kafka::messages::configs::{DescribeConfigsRequest, DescribeConfigsResource};
use tailwater_kafka::messages::fetch::{
    FetchRequest, FetchResponse, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use tailwater_kafka::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use tailwater_kafka::messages::topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use tailwater_kafka::wire::RecordsBytes;
use uuid::Uuid;

use crate::common::Client;
use crate::tree;

/// The fields of an answer; of a connection that was closed instead, one field that says so.
pub type Fields = BTreeMap<String, String>;

/// One broker, as a script sees it.
pub struct Session {
    pub client: Client,
    /// The epoch that a new partition begins with.
    pub first_epoch: i32,
    /// The epoch that partitions are in which were there before the broker was started again.
    pub second_epoch: Option<i32>,
    /// The epoch that the group of the script began with.
    pub first_group_epoch: Option<i32>,
    /// The clock, as it was when the scripts began, in ms: the same for both brokers.
    pub now: i64,
    pub steps: Vec<(String, Fields)>,
    members: tree::Members,
}

impl Session {
    pub fn new(address: SocketAddr, first_epoch: i32, now: i64) -> Self {
        Self {
            client: Client::connect(address),
            first_epoch,
            second_epoch: None,
            first_group_epoch: None,
            now,
            steps: Vec::new(),
            members: Vec::new(),
        }
    }

    /// A connection beside the session's own, for requests that wait for it.
    pub fn another(&self) -> Client {
        Client::connect(self.client.address())
    }

    /// Notes the answer to what was begun on another connection.
    pub fn end<R: ApiRequest>(&mut self, what: impl Display, version: i16, of: &mut Client) -> R::Response
    where
        R::Response: Debug,
    {
        let answer = of.end::<R>(version);
        let fields = tree::fields(&answer, &mut self.members);
        self.note::<R>(what, version, Some(fields));
        answer
    }

    /// Asks, and notes what is answered.
    pub fn ask<R: ApiRequest>(&mut self, what: impl Display, version: i16, asked: &R) -> Option<R::Response>
    where
        R::Response: Debug,
    {
        let answer = self.client.ask(version, asked);
        let fields = answer.as_ref().map(|answer| tree::fields(answer, &mut self.members));
        self.note::<R>(what, version, fields);
        answer
    }

    /// The same for every version that is spoken here.
    pub fn ask_all<R: ApiRequest>(&mut self, what: impl Display, asked: &R)
    where
        R::Response: Debug,
    {
        self.ask_in(what, R::API.versions(), asked);
    }

    /// The same for some of them.
    pub fn ask_in<R: ApiRequest>(&mut self, what: impl Display, versions: RangeInclusive<i16>, asked: &R)
    where
        R::Response: Debug,
    {
        for version in versions {
            self.ask(&what, version, asked);
        }
    }

    fn note<R: ApiRequest>(&mut self, what: impl Display, version: i16, fields: Option<Fields>) {
        let closed = || BTreeMap::from([("connection".to_owned(), "closed".to_owned())]);
        let mut fields = fields.unwrap_or_else(closed);
        for (path, value) in &mut fields {
            let name = path.rsplit('.').next().unwrap_or(path);
            if matches!(name, "leader_epoch" | "epoch")
                && let Ok(epoch) = value.parse::<i32>()
                && epoch >= self.first_epoch
            {
                *value = self.epoch(epoch);
            }
            if let Some(first) = self.first_group_epoch
                && matches!(name, "member_epoch" | "group_epoch" | "assignment_epoch")
                && let Ok(epoch) = value.parse::<i32>()
                && epoch >= first
            {
                *value = format!("first + {}", epoch - first);
            }
        }
        self.steps.push((format!("{} {version}: {what}", R::API.name()), fields));
    }

    /// What an epoch is called on every broker.
    fn epoch(&self, epoch: i32) -> String {
        match self.second_epoch {
            Some(second) if epoch >= second => format!("second + {}", epoch - second),
            _ => format!("first + {}", epoch - self.first_epoch),
        }
    }

    /// Sends a frame as it is; what is noted is whether it is answered.
    pub fn exchange(&mut self, what: &str, frame: &[u8]) -> Option<Bytes> {
        let answer = self.client.exchange(frame);
        let outcome = if answer.is_some() { "answered" } else { "closed" };
        self.steps.push((what.to_owned(), BTreeMap::from([("connection".to_owned(), outcome.to_owned())])));
        answer
    }

    /// Creates a topic, and waits until it can be used.
    pub fn create(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Uuid {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
        });
        let topic = CreatableTopic {
            name: name.to_owned(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.collect(),
            ..Default::default()
        };
        let asked = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, validate_only: false };
        let created = self.client.ask(7, &asked).expect("an answer");
        assert_eq!(created.topics[0].error_code, 0, "{name}: {created:?}");
        self.wait_for(name, partitions)
    }

    /// Waits until all partitions of a topic have a leader that knows it; the topic's id.
    pub fn wait_for(&mut self, name: &str, partitions: i32) -> Uuid {
        let ends = ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic {
                name: name.to_owned(),
                partitions: (0..partitions)
                    .map(|partition_index| ListOffsetsPartition {
                        partition_index,
                        timestamp: -1,
                        ..Default::default()
                    })
                    .collect(),
            }],
            ..Default::default()
        };
        loop {
            let topic = self.metadata(name);
            let found = self.client.ask(6, &ends).expect("an answer");
            let mut found = found.topics.iter().flat_map(|topic| &topic.partitions);
            if topic.error_code == 0 && found.all(|partition| partition.error_code == 0) {
                return topic.topic_id;
            }
        }
    }

    /// Waits until a topic is gone.
    pub fn wait_until_gone(&mut self, name: &str) {
        while self.metadata(name).error_code == 0 {}
    }

    /// Waits until a topic's configuration shows a value, or with `None` that it has none of its own: Kafka's broker
    /// learns of a change after its controller, which is who acknowledges it.
    pub fn wait_for_config(&mut self, topic: &str, name: &str, value: Option<&str>) {
        const TOPIC: i8 = 1;
        let asked = DescribeConfigsRequest {
            resources: vec![DescribeConfigsResource {
                resource_type: 2,
                resource_name: topic.to_owned(),
                configuration_keys: Some(vec![name.to_owned()]),
            }],
            ..Default::default()
        };
        loop {
            let described = self.client.ask(4, &asked).expect("an answer");
            let configs = &described.results[0].configs;
            assert_eq!(configs.len(), 1, "{described:?}");
            let own = configs[0].value.as_deref().filter(|_| configs[0].config_source == TOPIC);
            if own == value {
                return;
            }
        }
    }

    fn metadata(&mut self, name: &str) -> MetadataResponseTopic {
        let topic = MetadataRequestTopic { topic_id: Uuid::nil(), name: Some(name.to_owned()) };
        let asked = MetadataRequest {
            topics: Some(vec![topic]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let mut answer = self.client.ask(12, &asked).expect("an answer");
        answer.topics.pop().expect("one was asked for")
    }

    /// Produces to one partition of a topic that has this name, and this id.
    pub fn produce(
        &mut self,
        what: impl Display,
        version: i16,
        (topic, topic_id): (&str, Uuid),
        partition: i32,
        records: Bytes,
    ) -> Option<ProduceResponse> {
        let data = PartitionProduceData { index: partition, records: RecordsBytes(vec![records]) };
        let topic = TopicProduceData { name: topic.to_owned(), topic_id, partition_data: vec![data] };
        let asked =
            ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
        self.ask(what, version, &asked)
    }

    /// Fetches; record batches are noted decoded.
    pub fn fetch(&mut self, what: impl Display, version: i16, asked: &FetchRequest) -> Option<FetchResponse> {
        let answer = self.client.ask(version, asked);
        let fields = answer.as_ref().map(|answer| {
            let mut rest = answer.clone();
            let partitions = rest.responses.iter_mut().flat_map(|topic| &mut topic.partitions);
            let records: Vec<_> = partitions
                .map(|partition| (partition.partition_index, std::mem::take(&mut partition.records)))
                .collect();
            let mut fields = tree::fields(&rest, &mut self.members);
            for (partition, records) in records {
                fields.insert(format!("records of {partition}"), self.decoded(&records.into_bytes()));
            }
            fields
        });
        self.note::<FetchRequest>(what, version, fields);
        answer
    }

    /// What a client gets out of fetched bytes, which may end within a batch.
    fn decoded(&self, bytes: &Bytes) -> String {
        let mut text = String::new();
        let mut decompressor = Decompressor::new();
        for batch in batches(bytes) {
            let Ok(batch) = batch else { break };
            batch.check_crc().expect("a right checksum");
            let header = batch.header();
            let epoch = self.epoch(header.leader_epoch);
            text += &format!("[{} {:?} epoch {epoch}", header.base_offset.0, header.codec);
            text +=
                &format!(" {:?}", header.producer().map(|producer| (producer.epoch, producer.base_sequence)));
            for record in batch.records(&mut decompressor, 1 << 20).expect("readable") {
                let record = record.expect("a record");
                // The time of an append is its broker's own.
                let time = if header.is_append_time() {
                    "append".to_owned()
                } else {
                    record.timestamp_ms.to_string()
                };
                text += &format!(" {}@{time}={:?}", record.offset.0, record.value.map(<[u8]>::len));
            }
            text += "]";
        }
        text
    }
}
