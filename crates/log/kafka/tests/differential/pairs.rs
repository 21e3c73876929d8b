//! Scripts about groups of several members: who waits for whom, who is told what, and who is out.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwater_kafka::messages::groups::{ConsumerGroupDescribeRequest, DeleteGroupsRequest};
use tailwater_kafka::messages::membership::*;
use tailwater_kafka::messages::offsets::OffsetCommitRequest;
use uuid::Uuid;

use crate::common::Client;
use crate::groups::{beat, commit, describe, join, joined, leave, ready};
use crate::session::Session;

/// Of members that are never out because they are late.
const PATIENT_MS: i32 = 1_200_000;
/// The shortest session that brokers allow.
const SHORT_MS: i32 = 6_000;

fn patient(group: &str, member_id: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        session_timeout_ms: PATIENT_MS,
        rebalance_timeout_ms: PATIENT_MS,
        ..join(group, member_id)
    }
}

fn named(group: &str, member_id: &str, name: &str) -> JoinGroupRequest {
    JoinGroupRequest { group_instance_id: Some(name.to_owned()), ..patient(group, member_id) }
}

/// Begins to join on a connection of its own, with the id that one is given first, where that is how it is done.
fn comes(session: &mut Session, of: &mut Client, version: i16, asked: &JoinGroupRequest) {
    let mut asked = asked.clone();
    if version >= 4 && asked.member_id.is_empty() && asked.group_instance_id.is_none() {
        asked.member_id = session.ask("is given an id", version, &asked).expect("an answer").member_id;
    }
    of.begin(version, &asked);
}

/// A sync of a member, which assigns to others if it is the leader.
fn sync(
    group: &str,
    joined: &JoinGroupResponse,
    assigned: &[(&JoinGroupResponse, &str)],
) -> SyncGroupRequest {
    let assignments = assigned.iter().map(|(member, assignment)| SyncGroupRequestAssignment {
        member_id: member.member_id.clone(),
        assignment: Bytes::copy_from_slice(assignment.as_bytes()),
    });
    SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id: joined.member_id.clone(),
        group_instance_id: None,
        protocol_type: Some("consumer".to_owned()),
        // Early versions of JoinGroup don't tell it.
        protocol_name: Some(joined.protocol_name.clone().unwrap_or_else(|| "range".to_owned())),
        assignments: assignments.collect(),
    }
}

/// Waits until a group is seen in a state, with so many members.
fn wait_for_state(session: &mut Session, group: &str, state: &str, members: usize) {
    until(|| {
        let described = session.client.ask(5, &describe(group)).expect("an answer");
        let described = &described.groups[0];
        described.group_state == state && described.members.len() == members
    });
}

/// How long something is waited for before the test fails: for machines that are very busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// Asks again and again: a broker tells nobody that its patience is over.
#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Two members of one group, in every version.
pub fn pairs(session: &mut Session) {
    ready(session);
    let id = ("groups-pairs", session.create("groups-pairs", 2, &[]));
    for version in 0..=9_i16 {
        let group = &format!("pair {version}");
        let up_to = |max: i16| version.min(max);
        let committed = version.max(2);
        let commits =
            |generation: i32, member: &JoinGroupResponse| commit(group, id, generation, &member.member_id);
        let again = |member: &JoinGroupResponse| patient(group, &member.member_id);
        let mut other = session.another();

        let first = joined(session, version, &patient(group, ""));
        session.ask("one assigns itself all", up_to(5), &sync(group, &first, &[(&first, "all")]));
        comes(session, &mut other, version, &patient(group, ""));
        wait_for_state(session, group, "PreparingRebalance", 2);
        session.ask("two waits for one", up_to(6), &describe(group));
        session.ask("one is told to join again", up_to(4), &beat(group, &first));
        session.ask("one asks for what it had", up_to(5), &sync(group, &first, &[]));
        session.ask("one commits what it has read", committed, &commits(1, &first));
        let one = session.ask("one joins again", version, &again(&first)).expect("an answer");
        let two = session.end::<JoinGroupRequest>("two has joined", version, &mut other);

        session.ask("both wait for the leader", up_to(6), &describe(group));
        session.ask("one beats before it assigns", up_to(4), &beat(group, &one));
        session.ask("two beats before it is assigned", up_to(4), &beat(group, &two));
        session.ask("one beats in the generation before", up_to(4), &beat(group, &first));
        session.ask("one commits before it assigns", committed, &commits(2, &one));
        session.ask("two commits before it is assigned", committed, &commits(2, &two));
        session.ask("one commits in the generation before", committed, &commits(1, &one));
        session.ask("two joins again while the leader is waited for", version, &again(&two));
        session.ask("one joins again before it assigns", version, &again(&one));
        other.begin(up_to(5), &sync(group, &two, &[]));
        let both = [(&one, "a half"), (&two, "the rest")];
        session.ask("one assigns to both", up_to(5), &sync(group, &one, &both));
        session.end::<SyncGroupRequest>("two is assigned the rest", up_to(5), &mut other);

        session.ask("both have their shares", up_to(6), &describe(group));
        session.ask("two asks for it again", up_to(5), &sync(group, &two, &[]));
        session.ask("two assigns, which it may not", up_to(5), &sync(group, &two, &[(&two, "all")]));
        session.ask("two asks in the generation before", up_to(5), &{
            SyncGroupRequest { generation_id: 1, ..sync(group, &two, &[]) }
        });
        session.ask("one beats", up_to(4), &beat(group, &one));
        session.ask("two beats", up_to(4), &beat(group, &two));
        session.ask("one beats in the generation before", up_to(4), &beat(group, &first));
        session.ask("two commits", committed, &commits(2, &two));
        session.ask("two commits in the generation before", committed, &commits(1, &two));
        session.ask("two joins again as it was", version, &again(&two));
        session.ask("nothing has changed", up_to(4), &beat(group, &one));

        // The leader joins again as it was: it wants to assign anew.
        other.begin(version, &again(&one));
        wait_for_state(session, group, "PreparingRebalance", 2);
        session.ask("two is told to join again", up_to(4), &beat(group, &two));
        let two = session.ask("two joins again", version, &again(&two)).expect("an answer");
        let one = session.end::<JoinGroupRequest>("one has joined again", version, &mut other);
        // It leaves instead of assigning; two waits for that, or has not asked yet.
        other.begin(up_to(5), &sync(group, &two, &[]));
        session.ask("one leaves before it assigns", up_to(5), &leave(group, &[(&one.member_id, None)]));
        session.end::<SyncGroupRequest>("two is told to join again", up_to(5), &mut other);
        session.ask("one beats although it left", up_to(4), &beat(group, &one));
        let two = session.ask("two joins alone", version, &again(&two)).expect("an answer");
        session.ask("two assigns itself all", up_to(5), &sync(group, &two, &[(&two, "all")]));

        // Whoever shares no protocol with those who are in it is not let in.
        let metadata = Bytes::new();
        let only = |name: &str, member_id: &str| JoinGroupRequest {
            protocols: vec![JoinGroupRequestProtocol { name: name.to_owned(), metadata: metadata.clone() }],
            ..patient(group, member_id)
        };
        session.ask("three shares no protocol", version, &only("other", ""));
        session.ask("three is of another kind", version, &{
            JoinGroupRequest { protocol_type: "connect".to_owned(), ..patient(group, "") }
        });
        comes(session, &mut other, version, &only("sticky", ""));
        wait_for_state(session, group, "PreparingRebalance", 2);
        let two =
            session.ask("two joins again with what both have", version, &again(&two)).expect("an answer");
        let three = session.end::<JoinGroupRequest>("three has joined", version, &mut other);
        let protocol_name = Some("sticky".to_owned());
        let both = sync(group, &two, &[(&three, "all")]);
        session.ask("two assigns by another protocol", up_to(5), &{
            SyncGroupRequest { protocol_name: Some("range".to_owned()), ..both.clone() }
        });
        session.ask("two assigns all to three", up_to(5), &SyncGroupRequest { protocol_name, ..both });
        session.ask("all is three's", up_to(6), &describe(group));
        session.ask("three leaves", up_to(5), &leave(group, &[(&three.member_id, None)]));
        session.ask("two is told that it has to join again", up_to(4), &beat(group, &two));
        session.ask("three beats although it left", up_to(4), &beat(group, &three));
        session.ask("three commits although it left", committed, &commits(three.generation_id, &three));
        session.ask("three asks although it left", up_to(5), &sync(group, &three, &[]));
        session.ask("three joins with the id it had", version, &again(&three));
        let two = session.ask("two joins alone again", version, &again(&two)).expect("an answer");
        session.ask("two assigns itself all again", up_to(5), &sync(group, &two, &[(&two, "all")]));

        leader_leaves(session, &mut other, version, group, &two);
    }
}

/// The leader leaves while one waits for it.
fn leader_leaves(
    session: &mut Session,
    other: &mut Client,
    version: i16,
    group: &str,
    two: &JoinGroupResponse,
) {
    let up_to = |max: i16| version.min(max);
    comes(session, other, version, &patient(group, ""));
    wait_for_state(session, group, "PreparingRebalance", 2);
    session.ask("two leaves while four waits", up_to(5), &leave(group, &[(&two.member_id, None)]));
    let four = session.end::<JoinGroupRequest>("four leads", version, other);
    session.ask("four leaves", up_to(5), &leave(group, &[(&four.member_id, None)]));
    session.ask("nobody is left", up_to(6), &describe(group));
}

/// Two static members, whose places others take under their names.
pub fn names(session: &mut Session) {
    ready(session);
    let id = ("groups-names", session.create("groups-names", 2, &[]));
    for version in 5..=9_i16 {
        let group = &format!("names {version}");
        let up_to = |max: i16| version.min(max);
        let syncs = |name: &str, member: &JoinGroupResponse, assigned: &[(&JoinGroupResponse, &str)]| {
            SyncGroupRequest { group_instance_id: Some(name.to_owned()), ..sync(group, member, assigned) }
        };
        let beats = |name: &str, member: &JoinGroupResponse| HeartbeatRequest {
            group_instance_id: Some(name.to_owned()),
            ..beat(group, member)
        };
        let commits = |name: &str, member: &JoinGroupResponse| OffsetCommitRequest {
            group_instance_id: Some(name.to_owned()),
            ..commit(group, id, member.generation_id, &member.member_id)
        };
        let mut other = session.another();
        let mut third = session.another();

        let one = session.ask("one joins", version, &named(group, "", "one")).expect("an answer");
        session.ask("one assigns itself all", up_to(5), &syncs("one", &one, &[(&one, "all")]));
        other.begin(version, &named(group, "", "two"));
        wait_for_state(session, group, "PreparingRebalance", 2);
        let one = named(group, &one.member_id, "one");
        let one = session.ask("one joins again", version, &one).expect("an answer");
        let two = session.end::<JoinGroupRequest>("two has joined", version, &mut other);
        session.ask("one assigns", up_to(5), &syncs("one", &one, &[(&one, "a half"), (&two, "the rest")]));
        session.ask("two is assigned the rest", up_to(5), &syncs("two", &two, &[]));

        let back = session.ask("two is back", version, &named(group, "", "two")).expect("an answer");
        session.ask("two has what it had", up_to(5), &syncs("two", &back, &[]));
        session.ask("one is not disturbed", up_to(4), &beats("one", &one));
        session.ask("the two before beats", up_to(4), &beats("two", &two));
        session.ask("the two before beats without its name", up_to(4), &beat(group, &two));
        session.ask("the two before asks", up_to(5), &syncs("two", &two, &[]));
        session.ask("the two before commits", version.max(7), &commits("two", &two));
        session.ask("the two before joins", version, &named(group, &two.member_id, "two"));
        session.ask("the two before leaves", up_to(5), &leave(group, &[(&two.member_id, Some("two"))]));
        session.ask("two beats under one's name", up_to(4), &beats("one", &back));
        session.ask("two beats under a name that nobody has", up_to(4), &beats("three", &back));
        session.ask("described", up_to(6), &describe(group));

        let leads =
            session.ask("one, which leads, is back", version, &named(group, "", "one")).expect("an answer");
        session.ask("the one before beats", up_to(4), &beats("one", &one));
        session.ask("one has what it had", up_to(5), &syncs("one", &leads, &[]));
        session.ask("two is not disturbed", up_to(4), &beats("two", &back));

        // It leads, so it wants to assign anew; while it waits for two, another takes its place.
        other.begin(version, &named(group, &leads.member_id, "one"));
        // What one that is back in an early version is told is not that it leads: only its new protocol is news then.
        let new = named(group, &leads.member_id, "one").protocols.drain(..1).collect();
        wait_for_state(session, group, "PreparingRebalance", 2);
        third.begin(version, &JoinGroupRequest { protocols: new, ..named(group, "", "one") });
        session.end::<JoinGroupRequest>("the one that waited is out", version, &mut other);
        let two = named(group, &back.member_id, "two");
        let two = session.ask("two joins again", version, &two).expect("an answer");
        let one = session.end::<JoinGroupRequest>("the new one has joined", version, &mut third);
        session.ask("the new one assigns", up_to(5), &syncs("one", &one, &[(&two, "all")]));
        session.ask("two is assigned all", up_to(5), &syncs("two", &two, &[]));

        session.ask("two is made to leave", up_to(5), &leave(group, &[("", Some("two"))]));
        session.ask("two beats although it was", up_to(4), &beats("two", &two));
        session.ask("two joins with the id it had", version, &named(group, &two.member_id, "two"));
        session.ask("one is told to join again", up_to(4), &beats("one", &one));
        session.ask("one leaves under its name", up_to(5), &leave(group, &[(&one.member_id, Some("one"))]));
        session.ask("nobody is left", up_to(6), &describe(group));
    }
}

/// Members that are not heard of any more.
pub fn silence(session: &mut Session) {
    ready(session);
    let id = ("groups-silence", session.create("groups-silence", 2, &[]));
    let group = "silence";
    let (mut second, mut third) = (session.another(), session.another());
    let one = joined(session, 9, &patient(group, ""));
    let short = |asked| JoinGroupRequest { session_timeout_ms: SHORT_MS, ..asked };
    comes(session, &mut second, 9, &short(patient(group, "")));
    third.begin(9, &short(named(group, "", "three")));
    wait_for_state(session, group, "PreparingRebalance", 3);
    let one = session.ask("one joins again", 9, &patient(group, &one.member_id)).expect("an answer");
    let two = session.end::<JoinGroupRequest>("two has joined", 9, &mut second);
    let three = session.end::<JoinGroupRequest>("three has joined", 9, &mut third);
    let all = [(&one, "some"), (&two, "more"), (&three, "most")];
    session.ask("one assigns", 5, &sync(group, &one, &all));
    // Neither of the others is heard of again. One is answered when their sessions are over: it waits for longer.
    let one =
        session.ask("one joins again, and waits", 9, &patient(group, &one.member_id)).expect("an answer");
    session.ask("one assigns itself all", 5, &sync(group, &one, &[(&one, "all")]));
    session.ask("one is left", 6, &describe(group));
    let with_name = |mut beat: HeartbeatRequest| {
        beat.group_instance_id = Some("three".to_owned());
        beat
    };
    session.ask("two beats too late", 4, &beat(group, &two));
    session.ask("two asks too late", 5, &sync(group, &two, &[]));
    session.ask("two commits too late", 9, &commit(group, id, two.generation_id, &two.member_id));
    session.ask("two joins with the id it had", 9, &patient(group, &two.member_id));
    session.ask("two leaves too late", 5, &leave(group, &[(&two.member_id, None)]));
    session.ask("three beats too late", 4, &with_name(beat(group, &three)));
    session.ask("three joins with the id it had", 9, &named(group, &three.member_id, "three"));
    session.ask("three leaves too late", 5, &leave(group, &[(&three.member_id, Some("three"))]));
    third.begin(9, &named(group, "", "three"));
    wait_for_state(session, group, "PreparingRebalance", 2);
    let one = session.ask("one joins with it", 9, &patient(group, &one.member_id)).expect("an answer");
    let three = session.end::<JoinGroupRequest>("three is back", 9, &mut third);
    session.ask("one leaves", 5, &leave(group, &[(&one.member_id, None)]));
    session.ask("three leaves", 5, &leave(group, &[(&three.member_id, Some("three"))]));

    // Who joins and never asks for its share is out when the time for a rebalance is over.
    let group = "no sync";
    let hasty =
        |member_id: &str| JoinGroupRequest { rebalance_timeout_ms: 1_000, ..patient(group, member_id) };
    let one = joined(session, 9, &hasty(""));
    session.ask("one assigns itself all", 5, &sync(group, &one, &[(&one, "all")]));
    // The longest of both decides: one's would be over before two has come.
    comes(session, &mut second, 9, &JoinGroupRequest { rebalance_timeout_ms: 3_000, ..patient(group, "") });
    let one = session.client.ask(9, &hasty(&one.member_id)).expect("an answer");
    let two = second.end::<JoinGroupRequest>(9);
    session.ask("one assigns to both", 5, &sync(group, &one, &[(&two, "all")]));
    until(|| session.client.ask(4, &beat(group, &one)).expect("an answer").error_code != 0);
    session.ask("one is told to join again", 4, &beat(group, &one));
    session.ask("two is out", 4, &beat(group, &two));
    session.ask("two asks too late", 5, &sync(group, &two, &[]));
}

/// A heartbeat of KIP-848's; one that joins says what it wants.
pub fn tell(
    group: &str,
    member: &str,
    name: Option<&str>,
    epoch: i32,
    topic: &str,
) -> ConsumerGroupHeartbeatRequest {
    let joins = epoch == 0;
    ConsumerGroupHeartbeatRequest {
        group_id: group.to_owned(),
        member_id: member.to_owned(),
        member_epoch: epoch,
        instance_id: name.map(str::to_owned),
        rebalance_timeout_ms: if joins { PATIENT_MS } else { -1 },
        subscribed_topic_names: joins.then(|| vec![topic.to_owned()]),
        topic_partitions: joins.then(Vec::new),
        ..Default::default()
    }
}

/// The same with what the member has.
fn has(
    beat: ConsumerGroupHeartbeatRequest,
    topic_id: Uuid,
    partitions: &[i32],
) -> ConsumerGroupHeartbeatRequest {
    let owned = ConsumerGroupHeartbeatRequestTopicPartitions { topic_id, partitions: partitions.to_vec() };
    ConsumerGroupHeartbeatRequest { topic_partitions: Some(vec![owned]), ..beat }
}

fn describe_new(group: &str) -> ConsumerGroupDescribeRequest {
    ConsumerGroupDescribeRequest { group_ids: vec![group.to_owned()], include_authorized_operations: false }
}

/// The partitions that a member was told to have.
fn told(answer: &ConsumerGroupHeartbeatResponse) -> Vec<i32> {
    let topics = answer.assignment.iter().flat_map(|assignment| &assignment.topic_partitions);
    topics.flat_map(|topic| topic.partitions.iter().copied()).collect()
}

/// Creates a topic of four partitions, and waits until groups know it: Kafka's hear of it after those who produce.
pub fn create_for_groups(session: &mut Session, topic: &str) -> Uuid {
    let id = session.create(topic, 4, &[]);
    let group = format!("looks at {topic}");
    until(|| {
        let answer = session.client.ask(1, &tell(&group, "looks", None, 0, topic)).expect("an answer");
        told(&answer).len() == 4
    });
    session.client.ask(1, &tell(&group, "looks", None, -1, topic)).expect("an answer");
    let deleted = session.client.ask(2, &DeleteGroupsRequest { groups_names: vec![group] });
    assert_eq!(deleted.expect("an answer").results[0].error_code, 0);
    id
}

/// Two members of KIP-848: what one gives up the other gets.
pub fn consumer_groups(session: &mut Session) {
    ready(session);
    let topic = "groups-two";
    let id = create_for_groups(session, topic);
    let group = "two";
    let tell = |member: &str, epoch| tell(group, member, None, epoch, topic);
    // Groups begin with different epochs: what is compared is how they go on.
    let first = session.client.ask(1, &tell("a", 0)).expect("an answer");
    session.first_group_epoch = Some(first.member_epoch);
    let epoch = first.member_epoch;
    session.ask("a has all", 1, &has(tell("a", epoch), id, &[0, 1, 2, 3]));
    session.ask("b joins", 1, &tell("b", 0));
    session.ask("a is asked to give up some, b waits", 1, &describe_new(group));
    let new = epoch + 1;
    session.ask("b beats while nothing is free", 1, &has(tell("b", new), id, &[]));
    let keeps = session.ask("a is told to give up some", 1, &tell("a", epoch)).expect("an answer");
    let keeps = told(&keeps);
    assert_eq!(keeps.len(), 2);
    session.ask("a still has all", 1, &has(tell("a", epoch), id, &[0, 1, 2, 3]));
    session.ask("b beats while a still has all", 1, &tell("b", new));
    session.ask("described on the way", 1, &describe_new(group));
    session.ask("a has given them up", 1, &has(tell("a", epoch), id, &keeps));
    let gets = session.ask("b gets them", 1, &tell("b", new)).expect("an answer");
    let gets = told(&gets);
    session.ask("b has them", 1, &has(tell("b", new), id, &gets));
    session.ask("a beats in the epoch before", 1, &has(tell("a", epoch), id, &keeps));
    session.ask("a beats in the epoch before without a word", 1, &tell("a", epoch));
    session.ask("a beats in the epoch before and has what is b's", 1, &has(tell("a", epoch), id, &gets));
    session.ask("a beats in an epoch to come", 1, &tell("a", new + 1));
    session.ask("described", 1, &describe_new(group));

    // Both have nothing when they want nothing, and one gets all when the other leaves.
    let nothing = |member: &str, epoch| ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: Some(vec![]),
        ..tell(member, epoch)
    };
    session.ask("b wants nothing", 1, &nothing("b", new));
    session.ask("b has given all up", 1, &has(tell("b", new), id, &[]));
    session.ask("a gets all", 1, &tell("a", new));
    session.ask("described when b has nothing", 1, &describe_new(group));
    session.ask("b leaves", 1, &tell("b", -1));
    session.ask("b beats although it left", 1, &tell("b", new + 1));
    session.ask("a stays", 1, &has(tell("a", new + 1), id, &[0, 1, 2, 3]));

    // Who gives nothing up is out when its time is over, and the other one gets all.
    let slow = ConsumerGroupHeartbeatRequest { rebalance_timeout_ms: 1_000, ..tell("a", new + 2) };
    session.ask("a has little time", 1, &slow);
    let joined = session.ask("c joins", 1, &tell("c", 0)).expect("an answer");
    session.ask("a is told, and does nothing", 1, &tell("a", new + 2));
    let mut epoch = joined.member_epoch;
    until(|| {
        let answer = session.client.ask(1, &tell("c", epoch)).expect("an answer");
        epoch = answer.member_epoch;
        told(&answer).len() == 4
    });
    session.ask("a is out", 1, &tell("a", new + 2));
    session.ask("c has all", 1, &has(tell("c", epoch), id, &[0, 1, 2, 3]));
    session.ask("described when a is out", 1, &describe_new(group));
    session.ask("c leaves", 1, &tell("c", -1));
}

/// A static member of KIP-848.
pub fn consumer_names(session: &mut Session) {
    ready(session);
    let topic = "groups-named";
    let id = (topic, create_for_groups(session, topic));
    let group = "named";
    let all = [0, 1, 2, 3];
    let tell = |member: &str, name: Option<&str>, epoch| tell(group, member, name, epoch, topic);
    let first = session.client.ask(1, &tell("a", Some("name"), 0)).expect("an answer");
    session.first_group_epoch = Some(first.member_epoch);
    let epoch = first.member_epoch;
    session.ask("a has all", 1, &has(tell("a", Some("name"), epoch), id.1, &all));
    session.ask("b wants the name while a has it", 1, &tell("b", Some("name"), 0));
    session.ask("a beats without its name", 1, &tell("a", None, epoch));
    session.ask("a beats under another name", 1, &tell("a", Some("other"), epoch));
    session.ask("b beats under a's name", 1, &tell("b", Some("name"), epoch));
    session.ask("described", 1, &describe_new(group));
    session.ask("a joins again", 1, &tell("a", Some("name"), 0));
    session.ask("a leaves for now under another name", 1, &tell("a", Some("other"), -2));
    session.ask("a leaves for now", 1, &tell("a", Some("name"), -2));
    session.ask("described while it is away", 1, &describe_new(group));
    session.ask("a commits while it is away", 9, &commit(group, id, epoch, "a"));
    let back = session.ask("b is back under the name", 1, &tell("b", Some("name"), 0)).expect("an answer");
    let epoch = back.member_epoch;
    session.ask("b has all", 1, &has(tell("b", Some("name"), epoch), id.1, &all));
    session.ask("a beats under the name", 1, &tell("a", Some("name"), epoch));
    session.ask("a beats without it", 1, &tell("a", None, epoch));
    session.ask("a leaves under the name", 1, &tell("a", Some("name"), -1));
    session.ask("a leaves for now again", 1, &tell("a", Some("name"), -2));
    session.ask("a commits", 9, &commit(group, id, epoch, "a"));
    session.ask("b commits", 9, &commit(group, id, epoch, "b"));
    session.ask("described when b has the place", 1, &describe_new(group));
    session.ask("b leaves for now", 1, &tell("b", Some("name"), -2));
    session.ask("c joins without a name", 1, &tell("c", None, 0));
    session.ask("c gets what is not kept", 1, &tell("c", None, epoch + 1));
    session.ask("described while b is away", 1, &describe_new(group));
    let back = session.ask("d is back under the name", 1, &tell("d", Some("name"), 0)).expect("an answer");
    let keeps = told(&back);
    session.ask("d has its share", 1, &has(tell("d", Some("name"), back.member_epoch), id.1, &keeps));
    session.ask("c gets its share", 1, &tell("c", None, epoch + 1));
    session.ask("described when both have their shares", 1, &describe_new(group));
    session.ask("d leaves for good", 1, &tell("d", Some("name"), -1));
    session.ask("c gets all", 1, &tell("c", None, epoch + 1));
    session.ask("c leaves", 1, &tell("c", None, -1));
    session.ask("nobody is left", 1, &describe_new(group));
}
