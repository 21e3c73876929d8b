//! Scripts about groups: a member's life in every version, what is refused, and both protocols.

use bytes::Bytes;
use tailwater_kafka::messages::cluster::FindCoordinatorRequest;
use tailwater_kafka::messages::groups::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
};
use tailwater_kafka::messages::membership::*;
use tailwater_kafka::messages::offsets::*;
use tailwater_kafka_wire::consumer::{Assigned, Assignment, Subscription, encode};
use uuid::Uuid;

use crate::pairs::create_for_groups;
use crate::session::Session;

/// Waits until groups are looked after: a broker that has just begun may not be ready.
pub fn ready(session: &mut Session) {
    let find = FindCoordinatorRequest { key: "ready".to_owned(), ..Default::default() };
    let beat = HeartbeatRequest { group_id: "ready".to_owned(), ..Default::default() };
    loop {
        let found = session.client.ask(0, &find).expect("an answer").error_code;
        let heard = session.client.ask(0, &beat).expect("an answer").error_code;
        // UNKNOWN_MEMBER_ID: the coordinator looked.
        if (found, heard) == (0, 25) {
            return;
        }
    }
}

/// That one reads the topic `groups-members`.
fn subscription() -> Bytes {
    let topic = b"groups-members";
    [&[0, 1, 0, 0, 0, 1, 0, 14], &topic[..], &[255, 255, 255, 255, 0, 0, 0, 0]].concat().into()
}

pub fn join(group: &str, member_id: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        member_id: member_id.to_owned(),
        group_instance_id: None,
        protocol_type: "consumer".to_owned(),
        protocols: ["range", "sticky"]
            .map(|name| JoinGroupRequestProtocol { name: name.to_owned(), metadata: subscription() })
            .into(),
        reason: None,
    }
}

/// Joins with the id that one is given first, where that is how it is done.
pub fn joined(session: &mut Session, version: i16, asked: &JoinGroupRequest) -> JoinGroupResponse {
    let mut answer = session.ask("joins", version, asked).expect("an answer");
    if answer.error_code == 79 {
        let again = JoinGroupRequest { member_id: answer.member_id, ..asked.clone() };
        answer = session.ask("joins with its id", version, &again).expect("an answer");
    }
    answer
}

fn sync(group: &str, joined: &JoinGroupResponse) -> SyncGroupRequest {
    let assignment = SyncGroupRequestAssignment {
        member_id: joined.member_id.clone(),
        assignment: Bytes::from_static(b"everything"),
    };
    SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: None,
        protocol_type: Some("consumer".to_owned()),
        protocol_name: Some("range".to_owned()),
        assignments: vec![assignment],
    }
}

pub fn beat(group: &str, joined: &JoinGroupResponse) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: None,
    }
}

pub fn commit(
    group: &str,
    (name, id): (&str, Uuid),
    generation: i32,
    member_id: &str,
) -> OffsetCommitRequest {
    let partition = |partition_index, metadata: Option<&str>| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 42,
        committed_leader_epoch: -1,
        committed_metadata: metadata.map(str::to_owned),
    };
    let partitions = vec![
        partition(0, Some("note")),
        partition(1, None),
        partition(7, Some("beyond")),
        partition(1, Some(&"x".repeat(5_000))),
    ];
    let topic = OffsetCommitRequestTopic { name: name.to_owned(), topic_id: id, partitions };
    let nobody = OffsetCommitRequestTopic {
        name: "nobody.s".to_owned(),
        topic_id: Uuid::from_u128(5),
        partitions: vec![partition(0, None)],
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: generation,
        member_id: member_id.to_owned(),
        topics: vec![topic, nobody],
        ..Default::default()
    }
}

fn fetch(groups: &[&str], (name, id): (&str, Uuid), topics: bool) -> OffsetFetchRequest {
    let old =
        |name: &str| OffsetFetchRequestTopic { name: name.to_owned(), partition_indexes: vec![0, 1, 7] };
    let new = |name: &str, topic_id| OffsetFetchRequestTopics {
        name: name.to_owned(),
        topic_id,
        partition_indexes: vec![0, 1, 7],
    };
    let group = |group: &&str| OffsetFetchRequestGroup {
        group_id: (*group).to_owned(),
        topics: topics.then(|| vec![new(name, id), new("nobody.s", Uuid::from_u128(5))]),
        ..Default::default()
    };
    OffsetFetchRequest {
        group_id: groups[0].to_owned(),
        topics: topics.then(|| vec![old(name), old("nobody.s")]),
        groups: groups.iter().map(group).collect(),
        require_stable: false,
    }
}

pub fn leave(group: &str, members: &[(&str, Option<&str>)]) -> LeaveGroupRequest {
    let member = |(member_id, instance): &(&str, Option<&str>)| MemberIdentity {
        member_id: (*member_id).to_owned(),
        group_instance_id: instance.map(str::to_owned),
        reason: None,
    };
    LeaveGroupRequest {
        group_id: group.to_owned(),
        member_id: members[0].0.to_owned(),
        members: members.iter().map(member).collect(),
    }
}

pub fn describe(group: &str) -> DescribeGroupsRequest {
    DescribeGroupsRequest { groups: vec![group.to_owned()], include_authorized_operations: true }
}

pub fn lives(session: &mut Session) {
    ready(session);
    let id = ("groups", session.create("groups", 2, &[]));
    for version in 0..=10_i16 {
        let group = &format!("life {version}");
        let up_to = |max: i16| version.min(max);
        let joined = joined(session, up_to(9), &join(group, ""));
        session.ask("while it waits for itself", up_to(6), &describe(group));
        session.ask("an early heartbeat", up_to(4), &beat(group, &joined));
        session.ask("an early commit", version.max(2), &commit(group, id, 1, &joined.member_id));
        session.ask("assigns", up_to(5), &sync(group, &joined));
        session.ask("asks again", up_to(5), &sync(group, &joined));
        session.ask("a heartbeat", up_to(4), &beat(group, &joined));
        session.ask("commits", version.max(2), &commit(group, id, 1, &joined.member_id));
        session.ask("commits as nobody", version.max(2), &commit(group, id, -1, ""));
        session.ask("commits too early", version.max(2), &commit(group, id, 2, &joined.member_id));
        session.ask("commits as another", version.max(2), &commit(group, id, 1, "another"));
        session.ask("fetches", version.max(1), &fetch(&[group, "nobody's"], id, true));
        session.ask("fetches all", version.max(2), &fetch(&[group, "nobody's"], id, false));
        let mut nothing = fetch(&[group], id, true);
        nothing.topics = Some(vec![]);
        nothing.groups.iter_mut().for_each(|group| group.topics = Some(vec![]));
        session.ask("fetches nothing", version.max(1), &nothing);
        session.ask("described", up_to(6), &describe(group));
        let stale = JoinGroupResponse { generation_id: 9, ..joined.clone() };
        session.ask("a heartbeat of another generation", up_to(4), &beat(group, &stale));
        session.ask("a sync of another generation", up_to(5), &sync(group, &stale));
        let delete = DeleteGroupsRequest { groups_names: vec![group.clone(), "nobody's".to_owned()] };
        session.ask("deleted too early", up_to(2), &delete);
        session.ask("leaves", up_to(5), &leave(group, &[(&joined.member_id, None), ("another", None)]));
        session.ask("left", up_to(6), &describe(group));
        session.ask("a heartbeat when it left", up_to(4), &beat(group, &joined));
        session.ask("commits as nobody to an empty group", version.max(2), &commit(group, id, -1, ""));
        session.ask("commits a generation to an empty group", version.max(2), &commit(group, id, 1, ""));
        session.ask("deleted", up_to(2), &delete);
        session.ask("fetches what is deleted", version.max(1), &fetch(&[group], id, true));
    }
}

pub fn refusals(session: &mut Session) {
    ready(session);
    let id = ("groups-refused", session.create("groups-refused", 2, &[]));
    for version in 0..=9 {
        for session_timeout_ms in [0, 5_999, 1_800_001, -1] {
            let asked = JoinGroupRequest { session_timeout_ms, ..join("refused", "") };
            session.ask(format!("a session of {session_timeout_ms} ms"), version, &asked);
        }
        session.ask("without a name", version, &join("", ""));
        session.ask("with an id that nobody gave", version, &join("refused", "mine"));
        let none = JoinGroupRequest { protocols: vec![], ..join("refused", "") };
        session.ask("without a protocol", version, &none);
        let none = JoinGroupRequest { protocol_type: String::new(), ..join("refused", "") };
        session.ask("without a type", version, &none);
    }
    let nobody = JoinGroupResponse { generation_id: 1, member_id: "nobody".to_owned(), ..Default::default() };
    for group in ["refused", ""] {
        session.ask_all(format!("{group:?}: syncs"), &sync(group, &nobody));
        session.ask_all(format!("{group:?}: beats"), &beat(group, &nobody));
        session.ask_all(format!("{group:?}: leaves"), &leave(group, &[("nobody", None), ("", Some("name"))]));
        session.ask_all(format!("{group:?}: commits"), &commit(group, id, 1, "nobody"));
        session.ask_all(format!("{group:?}: fetches"), &fetch(&[group, "other"], id, true));
        session.ask_all(format!("{group:?}: is described"), &describe(group));
        let delete = DeleteGroupsRequest { groups_names: vec![group.to_owned()] };
        session.ask_all(format!("{group:?}: is deleted"), &delete);
        let topics = vec![OffsetDeleteRequestTopic {
            name: "groups-refused".to_owned(),
            partitions: vec![OffsetDeleteRequestPartition { partition_index: 0 }],
        }];
        session.ask_all(
            format!("{group:?}: is forgotten"),
            &OffsetDeleteRequest { group_id: group.to_owned(), topics },
        );
        let group_ids = vec![group.to_owned()];
        let described = ConsumerGroupDescribeRequest { group_ids, ..Default::default() };
        session.ask_all(format!("{group:?}: is described as one of KIP-848"), &described);
    }
    for key_type in [0, 1, 2, 9] {
        let coordinator_keys = vec!["a".to_owned(), "b".to_owned()];
        let find = FindCoordinatorRequest { key: "a".to_owned(), key_type, coordinator_keys };
        if key_type == 0 {
            session.ask_all("finds a coordinator", &find);
        }
        if key_type == 9 {
            session.ask_in("finds another kind of coordinator", 1..=6, &find);
        }
    }
}

pub fn members(session: &mut Session) {
    ready(session);
    let id = ("groups-members", session.create("groups-members", 2, &[]));
    let named = |id: &str, name: &str| JoinGroupRequest {
        group_instance_id: Some(name.to_owned()),
        ..join("static", id)
    };
    let first = session.ask("a static member joins", 9, &named("", "name")).expect("an answer");
    let with_name = |joined: &JoinGroupResponse| SyncGroupRequest {
        group_instance_id: Some("name".to_owned()),
        ..sync("static", joined)
    };
    session.ask("it assigns", 5, &with_name(&first));
    let second = session.ask("it is back", 9, &named("", "name")).expect("an answer");
    session.ask("it has what it had", 5, &with_name(&second));
    session.ask("the one before asks", 5, &with_name(&first));
    let third = session.ask("it is back in an old version", 8, &named("", "name")).expect("an answer");
    session.ask("the one before joins", 9, &named(&second.member_id, "name"));
    session.ask("with a name that is not there", 9, &named(&third.member_id, "other"));
    let fenced = OffsetCommitRequest {
        group_instance_id: Some("name".to_owned()),
        ..commit("static", id, 1, &first.member_id)
    };
    session.ask("the first one commits", 9, &fenced);
    let mut beaten = beat("static", &first);
    beaten.group_instance_id = Some("name".to_owned());
    session.ask("the first one beats", 4, &beaten);
    session.ask("described", 6, &describe("static"));
    session.ask("the first one leaves", 5, &leave("static", &[(&first.member_id, Some("name"))]));
    session.ask("made to leave", 5, &leave("static", &[("", Some("name")), ("", Some("other"))]));
    session.ask("empty", 6, &describe("static"));
    session.ask("kept for nobody", 9, &commit("static", id, -1, ""));
    let topic = |name: &str| OffsetDeleteRequestTopic {
        name: name.to_owned(),
        partitions: [0, 1, 7].map(|partition_index| OffsetDeleteRequestPartition { partition_index }).into(),
    };
    let forget = |group: &str| OffsetDeleteRequest {
        group_id: group.to_owned(),
        topics: vec![topic("groups-members"), topic("groups"), topic("nobody.s")],
    };
    session.ask("forgotten", 0, &forget("static"));
    let joined = joined(session, 9, &join("reads", ""));
    session.ask("assigns", 5, &sync("reads", &joined));
    session.ask("forgotten while it is read", 0, &forget("reads"));
    for states_filter in [vec![], vec!["Stable".to_owned()], vec!["empty".to_owned()], vec!["x".to_owned()]] {
        for types_filter in [vec![], vec!["classic".to_owned()], vec!["Consumer".to_owned()]] {
            let (states_filter, types_filter) = (states_filter.clone(), types_filter);
            let what = format!("listed {states_filter:?} {types_filter:?}");
            session.ask(what, 5, &ListGroupsRequest { states_filter, types_filter });
        }
    }
    session.ask_in("listed", 0..=4, &ListGroupsRequest::default());
}

fn tell(member: &str, epoch: i32, owned: Option<(Uuid, Vec<i32>)>) -> ConsumerGroupHeartbeatRequest {
    let joins = epoch == 0;
    let topic =
        |(topic_id, partitions)| ConsumerGroupHeartbeatRequestTopicPartitions { topic_id, partitions };
    ConsumerGroupHeartbeatRequest {
        group_id: "new".to_owned(),
        member_id: member.to_owned(),
        member_epoch: epoch,
        rebalance_timeout_ms: if joins { 60_000 } else { -1 },
        subscribed_topic_names: joins.then(|| vec!["groups-new".to_owned()]),
        topic_partitions: if joins { Some(Vec::new()) } else { owned.map(|owned| vec![topic(owned)]) },
        ..Default::default()
    }
}

pub fn consumer_groups(session: &mut Session) {
    ready(session);
    let id = ("groups-new", create_for_groups(session, "groups-new"));
    let default = || tell("a", 0, None);
    for version in 0..=1 {
        session.ask("a group that is not there", version, &tell("a", 1, None));
        session.ask("no id", version, &tell("", 1, None));
        session.ask("no epoch", version, &tell("a", -3, None));
        session.ask("no name", version, &tell("a", -2, None));
        let asked = ConsumerGroupHeartbeatRequest { rebalance_timeout_ms: -1, ..default() };
        session.ask("no rebalance timeout", version, &asked);
        let asked = ConsumerGroupHeartbeatRequest { topic_partitions: None, ..default() };
        session.ask("does not say that it has nothing", version, &asked);
        let asked = ConsumerGroupHeartbeatRequest { subscribed_topic_names: None, ..default() };
        session.ask("wants nothing", version, &asked);
        let asked = ConsumerGroupHeartbeatRequest { server_assignor: Some("best".to_owned()), ..default() };
        session.ask("an assignor that is not there", version, &asked);
        let asked = ConsumerGroupHeartbeatRequest { group_id: String::new(), ..default() };
        session.ask("no group", version, &asked);
    }
    let told = session.ask("the first one joins", 1, &tell("a", 0, None)).expect("an answer");
    // Groups begin with different epochs.
    let epoch = told.member_epoch;
    let own = |numbers: &[i32]| Some((id.1, numbers.to_vec()));
    session.ask("an epoch of the future", 1, &tell("a", 99, None));
    session.ask("another member", 1, &tell("c", 1, None));
    let describe = ConsumerGroupDescribeRequest {
        group_ids: vec!["new".to_owned()],
        include_authorized_operations: true,
    };
    session.ask_all("one member", &describe);
    session.ask("nothing new", 1, &tell("a", epoch, None));
    session.ask_in("described in the old way", 0..=6, &self::describe("new"));
    session.ask("commits", 9, &commit("new", id, epoch, "a"));
    session.ask("commits in another epoch", 9, &commit("new", id, epoch + 1, "a"));
    session.ask("commits as another", 9, &commit("new", id, epoch, "c"));
    session.ask("commits as nobody", 9, &commit("new", id, -1, ""));
    let mut fetched = fetch(&["new"], id, true);
    for (member, later) in [(Some("a"), 0), (Some("a"), 1), (Some("c"), 0), (None, -1)] {
        fetched.groups[0].member_id = member.map(str::to_owned);
        fetched.groups[0].member_epoch = if member.is_some() { epoch + later } else { -1 };
        session.ask(format!("{member:?} fetches {later} epochs later"), 9, &fetched);
    }
    let delete = DeleteGroupsRequest { groups_names: vec!["new".to_owned()] };
    session.ask("deleted too early", 2, &delete);
    session.ask("leaves", 1, &tell("a", -1, own(&[])));
    session.ask("leaves again", 1, &tell("a", -1, None));
    session.ask_all("nobody", &describe);
    session.ask("deleted", 2, &delete);
}

/// A group of the classic protocol is joined by a member of KIP-848, and is a classic one again when that leaves.
pub fn moving(session: &mut Session) {
    ready(session);
    let topic = "groups-moving";
    let id = (topic, create_for_groups(session, topic));
    let of_topic =
        |partitions: &[i32]| vec![Assigned { topic: topic.to_owned(), partitions: partitions.into() }];
    let join = |member_id: &str, owned: &[i32]| {
        let topics = vec![topic.to_owned()];
        let said = Subscription { topics, user_data: None, owned_partitions: of_topic(owned) };
        let metadata = encode(&said, 1);
        let protocols = ["range", "sticky"]
            .map(|name| JoinGroupRequestProtocol { name: name.to_owned(), metadata: metadata.clone() });
        JoinGroupRequest { protocols: protocols.into(), ..join("moving", member_id) }
    };
    let tell = |epoch: i32, owned: &[i32]| ConsumerGroupHeartbeatRequest {
        group_id: "moving".to_owned(),
        subscribed_topic_names: (epoch == 0).then(|| vec![topic.to_owned()]),
        ..tell("b", epoch, Some((id.1, owned.to_vec())))
    };
    let first = joined(session, 9, &join("", &[]));
    let assignment = encode(&Assignment { topics: of_topic(&[0, 1, 2, 3]), user_data: None }, 0);
    let member_id = first.member_id.clone();
    let assignments = vec![SyncGroupRequestAssignment { member_id, assignment }];
    session.ask("assigns", 5, &SyncGroupRequest { assignments, ..sync("moving", &first) });
    session.ask("nothing new", 4, &beat("moving", &first));

    let told = session.ask("one of the other protocol joins", 1, &tell(0, &[])).expect("an answer");
    session.ask("has to join again", 4, &beat("moving", &first));
    session.ask("commits before", 9, &commit("moving", id, first.generation_id, &first.member_id));
    session.ask("commits as nobody", 9, &commit("moving", id, -1, ""));
    session.ask("nothing is free", 1, &tell(told.member_epoch, &[]));
    session.ask(
        "another kind of protocol",
        9,
        &JoinGroupRequest { protocol_type: "connect".to_owned(), ..join("", &[]) },
    );
    let again = join(&first.member_id, &[0, 1, 2, 3]);
    let second = session.ask("joins again and has all", 9, &again).expect("an answer");
    session.ask("keeps some", 5, &sync("moving", &second));
    session.ask(
        "a protocol that is not its own",
        5,
        &SyncGroupRequest { protocol_name: Some("sticky".to_owned()), ..sync("moving", &second) },
    );
    session.ask("has to give up the others", 4, &beat("moving", &second));
    session.ask("still nothing is free", 1, &tell(told.member_epoch, &[]));
    let again = join(&first.member_id, &[0, 1]);
    let third = session.ask("joins without them", 9, &again).expect("an answer");
    session.ask("has its share", 5, &sync("moving", &third));
    session.ask("stays", 4, &beat("moving", &third));
    session.ask("beats in the generation before", 4, &beat("moving", &first));
    session.ask("the other one has its own", 1, &tell(told.member_epoch, &[]));
    session.ask("commits", 9, &commit("moving", id, third.generation_id, &first.member_id));
    session.ask("commits too late", 9, &commit("moving", id, first.generation_id, &first.member_id));
    session.ask(
        "somebody else's heartbeat",
        4,
        &HeartbeatRequest { member_id: "b".to_owned(), ..beat("moving", &third) },
    );
    session.ask_in("described in the old way", 0..=6, &self::describe("moving"));

    session.ask("the other one leaves", 1, &tell(-1, &[]));
    session.ask("has to join a classic group", 4, &beat("moving", &third));
    session.ask("described as a classic group", 6, &self::describe("moving"));
    let last = session.ask("leads again", 9, &join(&first.member_id, &[0, 1])).expect("an answer");
    session.ask("assigns again", 5, &sync("moving", &last));
    session.ask("leaves", 5, &leave("moving", &[(&first.member_id, None)]));
    session.ask_in("what was committed is there", 9..=9, &fetch(&["moving"], id, true));
}
