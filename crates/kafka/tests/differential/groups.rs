//! Scripts about consumer groups of the classic protocol: joining, offsets, and looking after them.

use bytes::Bytes;
use tailwater_format::Codec;
use tailwater_kafka::api::Request;
use tailwater_kafka::messages::cluster::FindCoordinatorRequest;
use tailwater_kafka::messages::groups::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
};
use tailwater_kafka::messages::membership::*;
use tailwater_kafka::messages::offsets::*;
use uuid::Uuid;

use crate::common::batch;
use crate::session::Session;

/// Waits until somebody coordinates groups: Kafka makes a topic for them first.
fn wait_for_coordinator(session: &mut Session) {
    let asked = FindCoordinatorRequest { key: "warm".to_owned(), ..Default::default() };
    while session.client.ask(3, &asked).expect("an answer").error_code != 0 {}
    let asked =
        HeartbeatRequest { group_id: "warm".to_owned(), member_id: "m".to_owned(), ..Default::default() };
    // Not any more that it loads, or is none.
    while matches!(session.client.ask(3, &asked).expect("an answer").error_code, 14..=16) {}
}

pub fn coordinators(session: &mut Session) {
    wait_for_coordinator(session);
    let asked = |keys: &[&str], key_type| FindCoordinatorRequest {
        key: keys[0].to_owned(),
        key_type,
        coordinator_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    };
    session.ask_all("of a group", &asked(&["g"], 0));
    session.ask_in("of several groups", 4..=6, &asked(&["g", "h"], 0));
    session.ask_in("of what there is none of", 1..=6, &asked(&["g"], 9));
}

/// What a consumer says when it joins: version 1, one topic, no user data.
fn subscription(topic: &str) -> Bytes {
    let mut bytes = vec![0, 1, 0, 0, 0, 1, 0, topic.len() as u8];
    bytes.extend(topic.as_bytes());
    // User data null, no partitions owned.
    bytes.extend([255, 255, 255, 255, 0, 0, 0, 0]);
    bytes.into()
}

fn join(group: &str, member: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        member_id: member.to_owned(),
        protocol_type: "consumer".to_owned(),
        protocols: ["range", "roundrobin"]
            .map(|name| JoinGroupRequestProtocol { name: name.to_owned(), metadata: subscription("grouped") })
            .into(),
        ..Default::default()
    }
}

/// A whole life of a group in each version of JoinGroup.
pub fn membership(session: &mut Session) {
    wait_for_coordinator(session);
    session.create("grouped", 2, &[]);
    for version in JoinGroupRequest::API.versions() {
        let group = format!("life-{version}");
        let shorter = |least: i16, most: i16| version.clamp(least, most);
        session.ask("an unknown member", version, &join(&group, "nobody"));
        session.ask("no group", version, &join("", ""));
        session.ask("too short", version, &JoinGroupRequest { session_timeout_ms: 5, ..join(&group, "") });
        session.ask("no protocol", version, &JoinGroupRequest { protocols: vec![], ..join(&group, "") });
        let typeless = JoinGroupRequest { protocol_type: String::new(), ..join(&group, "") };
        session.ask("no protocol type", version, &typeless);
        let mut joined = session.ask("new", version, &join(&group, "")).expect("an answer");
        if version >= 4 {
            let member = joined.member_id.clone();
            joined = session.ask("new, with its id", version, &join(&group, &member)).expect("an answer");
        }
        let (member, generation) = (joined.member_id.clone(), joined.generation_id);
        let sync = |member: &str, generation_id, protocol: &str| SyncGroupRequest {
            group_id: group.clone(),
            generation_id,
            member_id: member.to_owned(),
            protocol_type: Some("consumer".to_owned()),
            protocol_name: Some(protocol.to_owned()),
            assignments: vec![SyncGroupRequestAssignment {
                member_id: member.to_owned(),
                assignment: Bytes::from_static(b"all of it"),
            }],
            ..Default::default()
        };
        let beat = |member: &str, generation_id| HeartbeatRequest {
            group_id: group.clone(),
            generation_id,
            member_id: member.to_owned(),
            ..Default::default()
        };
        session.ask("nobody's", shorter(0, 5), &sync("nobody", generation, "range"));
        session.ask("of another generation", shorter(0, 5), &sync(&member, generation + 1, "range"));
        session.ask("of another protocol", shorter(0, 5), &sync(&member, generation, "sticky"));
        session.ask("the leader's", shorter(0, 5), &sync(&member, generation, "range"));
        session.ask("once more", shorter(0, 5), &sync(&member, generation, "range"));
        session.ask("alive", shorter(0, 4), &beat(&member, generation));
        session.ask("of another generation", shorter(0, 4), &beat(&member, generation + 1));
        session.ask("nobody's", shorter(0, 4), &beat("nobody", generation));
        session.ask("no group", shorter(0, 4), &HeartbeatRequest { group_id: String::new(), ..beat("m", 1) });
        let other_type = JoinGroupRequest { protocol_type: "connect".to_owned(), ..join(&group, "") };
        session.ask("another type", version, &other_type);
        let mut strange = join(&group, "");
        strange.protocols.iter_mut().for_each(|protocol| protocol.name += "-strange");
        session.ask("nothing in common", version, &strange);
        session.ask("again, unchanged", version, &join(&group, &member));
        session.ask("after it joined again", shorter(0, 5), &sync(&member, generation + 1, "range"));

        let leave = |member: &str| LeaveGroupRequest {
            group_id: group.clone(),
            member_id: member.to_owned(),
            members: vec![MemberIdentity { member_id: member.to_owned(), ..Default::default() }],
        };
        session.ask("nobody", shorter(0, 5), &leave("nobody"));
        session.ask("the member", shorter(0, 5), &leave(&member));
        session.ask("the member again", shorter(0, 5), &leave(&member));
        session.ask("after it left", shorter(0, 4), &beat(&member, generation));
    }
    let fixed = JoinGroupRequest { group_instance_id: Some("one".to_owned()), ..join("fixed", "") };
    let first = session.ask("static", 7, &fixed).expect("an answer");
    let sync = SyncGroupRequest {
        group_id: "fixed".to_owned(),
        generation_id: first.generation_id,
        member_id: first.member_id.clone(),
        group_instance_id: Some("one".to_owned()),
        assignments: vec![],
        ..Default::default()
    };
    session.ask("static", 4, &sync);
    let second = session.ask("static, once more", 7, &fixed).expect("an answer");
    let old = |member: &str| HeartbeatRequest {
        group_id: "fixed".to_owned(),
        generation_id: second.generation_id,
        member_id: member.to_owned(),
        group_instance_id: Some("one".to_owned()),
    };
    session.ask("the first of them", 3, &old(&first.member_id));
    session.ask("the second of them", 3, &old(&second.member_id));
    let members = vec![MemberIdentity { group_instance_id: Some("one".to_owned()), ..Default::default() }];
    let leave = LeaveGroupRequest { group_id: "fixed".to_owned(), members, ..Default::default() };
    session.ask("by instance", 4, &leave);
}

pub fn offsets(session: &mut Session) {
    wait_for_coordinator(session);
    let id = session.create("committed", 2, &[]);
    session.produce("a batch", 9, ("committed", id), 0, batch(&[1, 2, 3], Codec::None, None));
    let commit = |group: &str, topic: &str, topic_id, partition_index, metadata: Option<String>| {
        let partitions = vec![OffsetCommitRequestPartition {
            partition_index,
            committed_offset: 2,
            committed_metadata: metadata,
            ..Default::default()
        }];
        OffsetCommitRequest {
            group_id: group.to_owned(),
            topics: vec![OffsetCommitRequestTopic { name: topic.to_owned(), topic_id, partitions }],
            ..Default::default()
        }
    };
    let fetch = |group: &str, topics: Option<&[&str]>, topic_id| OffsetFetchRequest {
        group_id: group.to_owned(),
        topics: topics.map(|topics| {
            let of = |name: &&str| OffsetFetchRequestTopic {
                name: (*name).to_owned(),
                partition_indexes: vec![0, 1, 7],
            };
            topics.iter().map(of).collect()
        }),
        groups: vec![OffsetFetchRequestGroup {
            group_id: group.to_owned(),
            topics: topics.map(|topics| {
                let of = |name: &&str| OffsetFetchRequestTopics {
                    name: (*name).to_owned(),
                    topic_id,
                    partition_indexes: vec![0, 1, 7],
                };
                topics.iter().map(of).collect()
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    let other = Uuid::from_u128(99);
    for version in OffsetCommitRequest::API.versions() {
        let group = format!("offsets-{version}");
        let words = Some("words".to_owned());
        session.ask("a place", version, &commit(&group, "committed", id, 0, words.clone()));
        session.ask("no words", version, &commit(&group, "committed", id, 1, None));
        session.ask("no such partition", version, &commit(&group, "committed", id, 5, None));
        session.ask("no such topic", version, &commit(&group, "nobody.s", other, 0, None));
        session.ask("too many words", version, &commit(&group, "committed", id, 0, Some("x".repeat(5_000))));
        session.ask("no group", version, &commit("", "committed", id, 0, None));
        let of_nobody = OffsetCommitRequest {
            member_id: "nobody".to_owned(),
            generation_id_or_member_epoch: 3,
            ..commit(&group, "committed", id, 0, None)
        };
        session.ask("of a member that is none", version, &of_nobody);
    }
    for version in OffsetFetchRequest::API.versions() {
        let group = "offsets-5";
        session.ask("of a topic", version, &fetch(group, Some(&["committed"]), id));
        session.ask("of a topic that is not there", version, &fetch(group, Some(&["nobody.s"]), other));
        session.ask("of nothing", version, &fetch(group, Some(&[]), id));
        session.ask("of a group that is not there", version, &fetch("nobody.s", Some(&["committed"]), id));
        if version >= 2 {
            session.ask("of all", version, &fetch(group, None, id));
        }
    }
    let describe = |groups: &[&str]| DescribeGroupsRequest {
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        include_authorized_operations: true,
    };
    session.ask_all("a group", &describe(&["offsets-2"]));
    session.ask_all("a group that is not there", &describe(&["nobody.s"]));
    let joined = session.client.ask(3, &join("busy", "")).expect("an answer");
    session.ask("a group that rebalances", 5, &describe(&["busy"]));
    let sync = SyncGroupRequest {
        group_id: "busy".to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        assignments: vec![SyncGroupRequestAssignment {
            member_id: joined.member_id.clone(),
            assignment: Bytes::from_static(b"all of it"),
        }],
        ..Default::default()
    };
    session.client.ask(2, &sync).expect("an answer");
    session.ask_all("a group with a member", &describe(&["busy"]));
    session.ask("a group with members", 9, &commit("busy", "committed", id, 0, None));
    let states = |states: &[&str]| ListGroupsRequest {
        states_filter: states.iter().map(|state| (*state).to_owned()).collect(),
        ..Default::default()
    };
    session.ask_in("stable ones", 4..=5, &states(&["Stable"]));
    session.ask_in("ones in no such state", 4..=5, &states(&["Strange"]));
    let types = ListGroupsRequest { types_filter: vec!["consumer".to_owned()], ..Default::default() };
    session.ask_in("KIP-848's", 5..=5, &types);
    let delete = |groups: &[&str]| DeleteGroupsRequest {
        groups_names: groups.iter().map(|group| (*group).to_owned()).collect(),
    };
    session.ask_all("a group with members", &delete(&["busy"]));
    session.ask_all("a group that is not there", &delete(&["nobody.s"]));
    for version in DeleteGroupsRequest::API.versions() {
        let group = format!("offsets-{}", version + 2);
        session.ask("a group", version, &delete(&[&group]));
        session.ask("of a deleted group", 7, &fetch(&group, None, id));
    }
    let delete_offset = |group: &str, topic: &str, partition_index| OffsetDeleteRequest {
        group_id: group.to_owned(),
        topics: vec![OffsetDeleteRequestTopic {
            name: topic.to_owned(),
            partitions: vec![OffsetDeleteRequestPartition { partition_index }],
        }],
    };
    session.ask_all("a place", &delete_offset("offsets-7", "committed", 0));
    session.ask_all("a place that is not there", &delete_offset("offsets-7", "committed", 0));
    session.ask_all("of no such topic", &delete_offset("offsets-7", "nobody.s", 0));
    session.ask_all("of no such group", &delete_offset("nobody.s", "committed", 0));
    session.ask_all("of a topic that is subscribed to", &delete_offset("busy", "grouped", 0));
    session.ask("what is left", 7, &fetch("offsets-7", None, id));
}

/// A group of KIP-848 with one member, whose partitions the broker assigns.
pub fn consumer_protocol(session: &mut Session) {
    wait_for_coordinator(session);
    let id = session.create("assigned-here", 2, &[]);
    for version in ConsumerGroupHeartbeatRequest::API.versions() {
        let group = format!("kip-848-{version}");
        let beat =
            |member_epoch, topics: Option<&[&str]>, owned: Option<Vec<i32>>| ConsumerGroupHeartbeatRequest {
                group_id: group.clone(),
                member_id: format!("{:022}", 7),
                member_epoch,
                rebalance_timeout_ms: if topics.is_some() { 30_000 } else { -1 },
                subscribed_topic_names: topics
                    .map(|topics| topics.iter().map(|topic| (*topic).to_owned()).collect()),
                topic_partitions: owned.map(|partitions| match partitions.is_empty() {
                    true => vec![],
                    false => vec![ConsumerGroupHeartbeatRequestTopicPartitions { topic_id: id, partitions }],
                }),
                ..Default::default()
            };
        let topics: &[&str] = &["assigned-here"];
        session.ask("of a member that is none", version, &beat(4, None, None));
        session.ask(
            "no group",
            version,
            &ConsumerGroupHeartbeatRequest { group_id: String::new(), ..beat(0, Some(topics), Some(vec![])) },
        );
        session.ask(
            "an assignor that is none",
            version,
            &ConsumerGroupHeartbeatRequest {
                server_assignor: Some("strange".to_owned()),
                ..beat(0, Some(topics), Some(vec![]))
            },
        );
        session.ask("owns before it joins", version, &beat(0, Some(topics), Some(vec![1])));
        session.ask("no topics", version, &beat(0, None, Some(vec![])));
        let joined = session.client.ask(version, &beat(0, Some(topics), Some(vec![]))).expect("an answer");
        assert_eq!(joined.error_code, 0, "{joined:?}");
        // What it owns comes at once or a little later, and its epoch with it.
        let mut epoch = joined.member_epoch;
        let mut has_all = joined.assignment.is_some_and(|assigned| assigned.topic_partitions.len() == 1);
        while !has_all {
            let answer = session.client.ask(version, &beat(epoch, None, None)).expect("an answer");
            has_all = answer.assignment.is_some_and(|assigned| assigned.topic_partitions.len() == 1);
            epoch = answer.member_epoch;
        }
        session.ask("it has them", version, &beat(epoch, None, Some(vec![0, 1])));
        session.ask("alive", version, &beat(epoch, None, None));
        session.ask("of an epoch to come", version, &beat(epoch + 1, None, None));
        let partitions = vec![OffsetCommitRequestPartition { committed_offset: 0, ..Default::default() }];
        let commit = |epoch, version: i16| OffsetCommitRequest {
            group_id: group.clone(),
            generation_id_or_member_epoch: epoch,
            member_id: format!("{:022}", 7),
            topics: vec![OffsetCommitRequestTopic {
                name: "assigned-here".to_owned(),
                topic_id: if version >= 10 { id } else { Uuid::nil() },
                partitions: partitions.clone(),
            }],
            ..Default::default()
        };
        session.ask("of a member", 9, &commit(epoch, 9));
        session.ask("of a member, by id", 10, &commit(epoch, 10));
        session.ask("of an epoch to come", 9, &commit(epoch + 3, 9));
        session.ask("joins with the other protocol", 5, &join(&group, ""));
        let described = ConsumerGroupDescribeRequest {
            group_ids: vec![group.clone(), "nobody.s".to_owned()],
            include_authorized_operations: false,
        };
        session.ask("a group", version, &described);
        let groups = vec![group.clone()];
        session.ask("a group", 6, &DescribeGroupsRequest { groups, include_authorized_operations: false });
        session.ask("leaves", version, &beat(-1, None, None));
        session.ask("leaves again", version, &beat(-1, None, None));
        session.ask("an empty group", version, &described);
    }
}
