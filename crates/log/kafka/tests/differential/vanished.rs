//! A script about topics that are deleted while they are read.

use tailwater_kafka::messages::cluster::{MetadataRequest, MetadataRequestTopic};
use tailwater_kafka::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use tailwater_kafka::messages::groups::ConsumerGroupDescribeRequest;
use tailwater_kafka::messages::membership::*;
use tailwater_kafka::messages::offsets::*;
use tailwater_kafka::messages::topics::DeleteTopicsRequest;
use uuid::Uuid;

use crate::groups::{commit, ready};
use crate::pairs::{create_for_groups, until};
use crate::session::Session;

/// Longer than an answer is waited for: whoever is not woken fails.
const LONG_MS: i32 = 600_000;

const PATTERN: &str = "vanished-.*";

fn tell(member: &str, epoch: i32, owned: Option<&[(Uuid, &[i32])]>) -> ConsumerGroupHeartbeatRequest {
    let joins = epoch == 0;
    let owned = owned.map(|owned| {
        let topic = |(topic_id, partitions): &(Uuid, &[i32])| ConsumerGroupHeartbeatRequestTopicPartitions {
            topic_id: *topic_id,
            partitions: partitions.to_vec(),
        };
        owned.iter().map(topic).collect()
    });
    ConsumerGroupHeartbeatRequest {
        group_id: "vanished".to_owned(),
        member_id: member.to_owned(),
        member_epoch: epoch,
        rebalance_timeout_ms: if joins { LONG_MS } else { -1 },
        subscribed_topic_regex: joins.then(|| PATTERN.to_owned()),
        topic_partitions: owned.or(joins.then(Vec::new)),
        ..Default::default()
    }
}

fn fetch_of(topics: &[(&str, Uuid)], max_wait_ms: i32) -> FetchRequest {
    let topic = |(name, topic_id): &(&str, Uuid)| FetchTopic {
        topic: (*name).to_owned(),
        topic_id: *topic_id,
        partitions: vec![FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() }],
    };
    let topics = topics.iter().map(topic).collect();
    FetchRequest { max_wait_ms, min_bytes: 1, topics, ..Default::default() }
}

fn metadata_of(topic_id: Uuid, name: Option<&str>) -> MetadataRequest {
    let topic = MetadataRequestTopic { topic_id, name: name.map(str::to_owned) };
    MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: false, ..Default::default() }
}

/// A topic is deleted that a member of a group reads, which subscribes to a pattern: what is there, until it has given
/// the topic up, and after.
pub fn vanished(session: &mut Session) {
    ready(session);
    let goes = ("vanished-goes", create_for_groups(session, "vanished-goes"));
    let stays = ("vanished-stays", create_for_groups(session, "vanished-stays"));
    let all: &[i32] = &[0, 1, 2, 3];
    let both: &[(Uuid, &[i32])] = &[(goes.1, all), (stays.1, all)];
    let first = session.client.ask(1, &tell("a", 0, None)).expect("an answer");
    session.first_group_epoch = Some(first.member_epoch);
    // Kafka matches patterns beside its heartbeats.
    let (mut epoch, mut told) = (first.member_epoch, first.assignment);
    until(|| {
        let count = told.iter().flat_map(|told| &told.topic_partitions).count();
        if count < 2 {
            let answer = session.client.ask(1, &tell("a", epoch, None)).expect("an answer");
            (epoch, told) = (answer.member_epoch, answer.assignment.or(told.take()));
        }
        count == 2
    });
    session.first_group_epoch = Some(epoch);
    session.ask("a has both", 1, &tell("a", epoch, Some(both)));
    session.ask_in("commits of one that is there", 9..=10, &commit("vanished", goes, epoch, "a"));

    let mut waiting = session.another();
    waiting.begin(12, &fetch_of(&[goes, stays], LONG_MS));
    let names = DeleteTopicsRequest {
        topic_names: vec![goes.0.to_owned()],
        timeout_ms: 30_000,
        ..Default::default()
    };
    session.ask("one is deleted", 5, &names);
    session.wait_until_gone(goes.0);
    session.end::<FetchRequest>("who waits for its records is told", 12, &mut waiting);
    session.ask_in("fetched", 12..=18, &fetch_of(&[goes], 0));
    session.ask_in("asked for by name", 9..=13, &metadata_of(Uuid::nil(), Some(goes.0)));
    session.ask_in("asked for by id", 12..=13, &metadata_of(goes.1, None));

    // Groups of Kafka's hear of it later.
    let keeps: &[(Uuid, &[i32])] = &[(stays.1, all)];
    let mut told = None;
    until(|| {
        told = session.client.ask(1, &tell("a", epoch, None)).expect("an answer").assignment;
        told.is_some()
    });
    assert_eq!(told.expect("just looked at").topic_partitions.len(), 1);
    session.ask("a still has both", 1, &tell("a", epoch, Some(both)));
    // What the client does first: it commits what it has read of what it gives up.
    session.ask_in("commits of one that is gone", 2..=10, &commit("vanished", goes, epoch, "a"));
    session.ask_in("commits of both", 9..=10, &{
        let mut asked = commit("vanished", goes, epoch, "a");
        asked.topics.extend(commit("vanished", stays, epoch, "a").topics.into_iter().take(1));
        asked
    });
    session.ask("a has given it up", 1, &tell("a", epoch, Some(keeps)));
    let group =
        OffsetFetchRequestGroup { group_id: "vanished".to_owned(), topics: None, ..Default::default() };
    let fetch = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    session.ask_in("what is committed", 9..=9, &fetch);
    session.ask("described", 1, &describe("vanished"));
    session.ask("a leaves", 1, &tell("a", -1, None));
}

pub fn describe(group: &str) -> ConsumerGroupDescribeRequest {
    ConsumerGroupDescribeRequest { group_ids: vec![group.to_owned()], include_authorized_operations: false }
}
