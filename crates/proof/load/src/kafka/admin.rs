//! The topic of a run: made before it, removed behind it.

use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_kafka_wire::messages::cluster::{MetadataRequest, MetadataRequestTopic};
use tailwater_kafka_wire::messages::fetch::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use tailwater_kafka_wire::messages::topics::{CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest};

use super::connection::Connection;
use super::consumer::LATEST;
use super::versions;
use crate::address::LoadAddress;

/// How long a new topic's partitions may take to have leaders.
const LEADERS_DEADLINE: Duration = Duration::from_secs(20);

/// Creates a topic with one copy of each of its partitions, and returns when all of them are led.
pub fn create_topic(address: &LoadAddress, name: &str, partitions: u32) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let mut connection = Connection::open(address).await?;
        let topic = CreatableTopic {
            name: name.to_owned(),
            num_partitions: i32::try_from(partitions)?,
            replication_factor: 1,
            ..Default::default()
        };
        let asked = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let answer = connection.ask(&asked, versions::CREATE_TOPICS).await?;
        let created = answer.topics.first().context("no word about the topic")?;
        anyhow::ensure!(
            created.error_code == 0,
            "topic {name} can't be created: Kafka's error {}, {}",
            created.error_code,
            created.error_message.as_deref().unwrap_or_default()
        );
        let begin = Instant::now();
        while !has_leaders(&mut connection, name, partitions).await? {
            anyhow::ensure!(begin.elapsed() < LEADERS_DEADLINE, "topic {name} has no leaders");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A broker may not know yet what the cluster has decided, and would refuse records meanwhile.
        while !leads_all(&mut connection, name, partitions).await? {
            anyhow::ensure!(
                begin.elapsed() < LEADERS_DEADLINE,
                "the broker does not lead all of topic {name}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

async fn has_leaders(connection: &mut Connection, name: &str, partitions: u32) -> anyhow::Result<bool> {
    let topic = MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() };
    let asked = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = connection.ask(&asked, versions::METADATA).await?;
    let found = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let led = found.filter(|partition| partition.error_code == 0 && partition.leader_id >= 0).count();
    Ok(led == partitions as usize)
}

async fn leads_all(connection: &mut Connection, name: &str, partitions: u32) -> anyhow::Result<bool> {
    let asked = (0..partitions).map(|shard| ListOffsetsPartition {
        partition_index: shard as i32,
        timestamp: LATEST,
        ..Default::default()
    });
    let topic = ListOffsetsTopic { name: name.to_owned(), partitions: asked.collect() };
    let asked = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let answer = connection.ask(&asked, versions::LIST_OFFSETS).await?;
    let answered = answer.topics.iter().flat_map(|topic| &topic.partitions);
    Ok(answered.filter(|partition| partition.error_code == 0).count() == partitions as usize)
}

/// Deletes a topic.
pub fn delete_topic(address: &LoadAddress, name: &str) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let mut connection = Connection::open(address).await?;
        let asked = DeleteTopicsRequest {
            topic_names: vec![name.to_owned()],
            timeout_ms: 10_000,
            ..Default::default()
        };
        connection.ask(&asked, versions::DELETE_TOPICS).await?;
        Ok(())
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
