//! Consumer groups on real processes: kcat's members, ours, and requests one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::kafka::{kcat, need};
use crate::support::raw::Raw;
use crate::support::{Follower, Node, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwater_kafka_wire::ErrorCode;
use tailwater_kafka_wire::messages::cluster::FindCoordinatorRequest;
use tailwater_kafka_wire::messages::groups::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest,
};
use tailwater_kafka_wire::messages::membership::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse, HeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol,
    JoinGroupResponse, LeaveGroupRequest, MemberIdentity, SyncGroupRequest, SyncGroupRequestAssignment,
    SyncGroupResponse,
};
use tailwater_kafka_wire::messages::offsets::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetDeleteRequest,
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic, OffsetFetchRequest, OffsetFetchRequestGroup,
    OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};

/// Groups that don't wait for their first members.
fn node(dir: &tempfile::TempDir) -> Node {
    need("kcat");
    let groups = [
        ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0"),
        // Nobody who speaks request by request is out before the test is, however busy the machine.
        ("TAILWATER_KAFKA__GROUPS__CONSUMER_SESSION_TIMEOUT_MS", "600000"),
    ];
    Node::start_with(&dir.path().join("data"), &[], &groups)
}

/// The session timeout of the member that falls silent.
const SESSION: Duration = Duration::from_secs(6);

/// A member of kcat's, which writes shard and value of each record, and notices soon what the others do.
fn member(node: &Node, group: &str, stream: &str) -> Follower {
    member_with_session(node, group, stream, Duration::from_secs(60))
}

fn member_with_session(node: &Node, group: &str, stream: &str, session: Duration) -> Follower {
    let session = format!("session.timeout.ms={}", session.as_millis());
    let mut command = Command::new("kcat");
    command.args(["-b", &node.kafka, "-G", group, stream, "-q", "-u", "-f", "%p %s\\n"]);
    for setting in ["auto.offset.reset=earliest", &session, "heartbeat.interval.ms=200"] {
        command.args(["-X", setting]);
    }
    Follower::of(&mut command)
}

fn our_member(node: &Node, group: &str, stream: &str) -> Follower {
    Follower::start(node, &["consume", stream, "--group", group, "--format", "%s %v\\n"])
}

fn signal(member: &mut Follower, signal: Signal) {
    kill_process(Pid::from_child(member.child()), signal).expect("it is there");
}

fn describe(node: &Node, group: &str) -> Option<Value> {
    serde_json::from_str(&node.get(&format!("/v1/groups/{group}"))?).ok()
}

/// Waits until a group is stable with members that have so many shards each.
fn wait_for_members(node: &Node, group: &str, shards: &[u64]) {
    let mut seen = Value::Null;
    wait_for("the group's members", || {
        seen = describe(node, group)?;
        let members = seen["member_list"].as_array()?;
        let mut found: Vec<u64> = members.iter().filter_map(|member| member["shards"].as_u64()).collect();
        found.sort();
        (seen["state"] == "Stable" && found == shards).then_some(())
    });
}

/// Appends lines with these numbers, evenly.
fn produce(node: &Node, stream: &str, numbers: std::ops::Range<u32>) {
    let lines: String = numbers.map(|number| format!("{number}:{number}\n")).collect();
    kcat(node, &["-P", "-t", stream, "-K", ":"], &lines);
}

/// The numbers that come to any of these members, until there are so many.
fn consume(members: &[&Follower], count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    wait_for("records", || {
        for line in members.iter().flat_map(|member| std::iter::from_fn(|| member.try_next())) {
            let (_, number) = line.split_once(' ').expect("shard and number");
            numbers.push(number.parse().expect("a number"));
        }
        (numbers.len() >= count).then_some(())
    });
    numbers.sort();
    numbers
}

/// Waits until all of these numbers came to any of these members, and maybe others.
fn consume_all(members: &[&Follower], numbers: std::ops::Range<u32>) {
    let mut missing: BTreeSet<u32> = numbers.collect();
    wait_for("all records", || {
        for line in members.iter().flat_map(|member| std::iter::from_fn(|| member.try_next())) {
            let (_, number) = line.split_once(' ').expect("shard and number");
            missing.remove(&number.parse().expect("a number"));
        }
        missing.is_empty().then_some(())
    });
}

#[test]
fn kcat_s_members_share_the_shards_and_take_over_from_who_leaves_or_falls_silent() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "6"]);
    let one = member(&node, "g", "s");
    wait_for_members(&node, "g", &[6]);
    produce(&node, "s", 0..100);
    assert_eq!(consume(&[&one], 100), (0..100).collect::<Vec<_>>());
    let mut two = member(&node, "g", "s");
    let mut three = member_with_session(&node, "g", "s", SESSION);
    wait_for_members(&node, "g", &[2, 2, 2]);
    produce(&node, "s", 100..200);
    consume_all(&[&one, &two, &three], 100..200);
    // It leaves.
    signal(&mut two, Signal::INT);
    wait_for_members(&node, "g", &[3, 3]);
    // It is heard of no more, and keeps its shards until its session ends.
    let stopped = Instant::now();
    signal(&mut three, Signal::STOP);
    produce(&node, "s", 200..300);
    wait_for_members(&node, "g", &[6]);
    let silent = stopped.elapsed();
    // Its last heartbeat was some time before, one of 15 that it sends in half a session.
    assert!(silent > SESSION / 2, "it was out after {silent:?}");
    consume_all(&[&one], 200..300);
    // When it is back it joins again, and has its share.
    signal(&mut three, Signal::CONT);
    wait_for_members(&node, "g", &[3, 3]);
    produce(&node, "s", 300..400);
    consume_all(&[&one, &three], 300..400);
}

#[test]
fn our_members_and_kcat_s_share_a_group_and_a_graceful_change_repeats_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "4"]);
    produce(&node, "s", 0..100);
    let mut one = our_member(&node, "g", "s");
    assert_eq!(consume(&[&one], 100), (0..100).collect::<Vec<_>>());
    // It is in the group by Kafka's protocol, and reads from the cells.
    let metrics = node.get("/metrics").expect("metrics");
    let of =
        |series: &str| metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    assert_eq!(of("tailwater_kafka_requests_total{api=\"Fetch\"}").unwrap_or_default(), 0.0);
    assert!(
        of("tailwater_kafka_requests_total{api=\"JoinGroup\"}").is_some_and(|joins| joins > 0.0),
        "{metrics}"
    );
    let two = our_member(&node, "g", "s");
    wait_for_members(&node, "g", &[2, 2]);
    produce(&node, "s", 100..200);
    assert_eq!(consume(&[&one, &two], 100), (100..200).collect::<Vec<_>>());
    // It commits and leaves, and the other goes on exactly there.
    signal(&mut one, Signal::INT);
    wait_for("it to end", || one.child().try_wait().expect("ours"));
    wait_for_members(&node, "g", &[4]);
    produce(&node, "s", 200..300);
    assert_eq!(consume(&[&two], 100), (200..300).collect::<Vec<_>>());
    let theirs = member(&node, "g", "s");
    wait_for_members(&node, "g", &[2, 2]);
    produce(&node, "s", 300..400);
    assert_eq!(consume(&[&two, &theirs], 100), (300..400).collect::<Vec<_>>());
    drop((two, theirs));
    let rest = node.run(&["consume", "s", "--group", "other", "--exit-at-end", "--format", "%v\\n"]);
    assert_eq!(rest.lines().count(), 400);
    let rest = node.run(&["consume", "s", "--group", "other", "--exit-at-end", "--format", "%v\\n"]);
    assert_eq!(rest, "", "all of it was committed");
}

#[test]
fn our_members_share_with_one_of_kip_848_and_have_everything_back_when_it_leaves() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "4"]);
    produce(&node, "s", 0..100);
    let ours = our_member(&node, "g", "s");
    assert_eq!(consume(&[&ours], 100), (0..100).collect::<Vec<_>>());
    let mut raw = Raw::connect(&node);
    let (error, epoch, none) = told(&raw.ask(&beat("g", "b", 0, None)));
    assert_eq!((error, none), (OK, Some(Vec::new())), "nothing is free yet");
    let given = wait_for("ours to give up its half", || told(&raw.ask(&beat("g", "b", epoch, None))).2);
    assert_eq!(given.len(), 2);
    wait_for_members(&node, "g", &[2, 2]);
    assert_eq!(describe(&node, "g").expect("there")["kind"], "consumer");
    produce(&node, "s", 100..200);
    assert_eq!(told(&raw.ask(&beat("g", "b", -1, None))), (OK, -1, None));
    wait_for_members(&node, "g", &[4]);
    assert_eq!(describe(&node, "g").expect("there")["kind"], "classic");
    consume_all(&[&ours], 100..200);
}

#[test]
fn groups_go_on_from_what_they_committed_when_the_node_was_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "3"]);
    let ours = our_member(&node, "ours", "s");
    let mut last = BTreeMap::new();
    for round in 0..3_u32 {
        produce(&node, "s", round * 100..(round + 1) * 100);
        let theirs = kcat(
            &node,
            &["-G", "theirs", "s", "-e", "-q", "-f", "%p %o\\n", "-X", "auto.offset.reset=earliest"],
            "",
        );
        assert_eq!(theirs.lines().count(), 100, "round {round}: what came since");
        for line in theirs.lines() {
            let (shard, offset) = line.split_once(' ').expect("two words");
            let (shard, offset): (u32, u64) = (shard.parse().expect("one"), offset.parse().expect("one"));
            let next = last.insert(shard, offset).map_or(0, |last| last + 1);
            assert_eq!(offset, next, "shard {shard}");
        }
        // What it had not committed when the node was killed comes again.
        consume_all(&[&ours], round * 100..(round + 1) * 100);
        node.process.kill();
        node.restart();
        // Nobody remembers its members; ours is back by itself.
        wait_for_members(&node, "ours", &[3]);
    }
}

#[test]
fn groups_are_listed_described_reset_and_deleted_with_their_lag() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let environment = [
        ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0"),
        ("TAILWATER_METRICS__GROUP_SHARDS_MAX", "1"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "s", "--shards", "2"]);
    produce(&node, "s", 0..100);
    let group = "a/b c";
    kcat(&node, &["-G", group, "s", "-e", "-q", "-X", "auto.offset.reset=earliest"], "");
    produce(&node, "s", 100..150);
    let list = node.run(&["group", "ls"]);
    let line = list.lines().find(|line| line.trim().starts_with(group)).expect("listed");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[2..7], ["classic", "Empty", "0", "2", "50"], "{list}");
    let seconds: f64 = words[7].parse().expect("seconds");
    assert!(seconds >= 0.0);
    let metrics = node.get("/metrics").expect("metrics");
    assert!(metrics.contains("tailwater_group_lag_records{group=\"a/b c\"} 50"), "{metrics}");
    assert!(metrics.contains("tailwater_group_lag_seconds{group=\"a/b c\"}"));
    assert!(metrics.contains("\ntailwater_groups 1\n"));
    // Of each shard what is described of it, as far as it has series of its own.
    let described: Value =
        serde_json::from_str(&node.run(&["group", "describe", group, "-o", "json"])).expect("JSON");
    let shards = described["shard_list"].as_array().expect("shards");
    for key in ["lag_records", "lag_seconds"] {
        let of = |shard: &str| -> Option<f64> {
            let labels = format!("{{group=\"{group}\",stream=\"s\",shard=\"{shard}\"}} ");
            let start = format!("tailwater_group_shard_{key}{labels}");
            metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
        };
        let (told, described) = (of("0").expect("a series"), shards[0][key].as_f64().expect("a number"));
        // Time has passed in between.
        assert!(told <= described && (key == "lag_seconds" || told == described), "{told} {described}");
        assert_eq!(of("1"), None, "beyond group_shards_max");
    }
    assert!(metrics.contains("\ntailwater_group_shards_omitted 1\n"));
    // To the start, seen first and then done.
    let seen = node.run(&["group", "reset", group, "--to", "start", "--dry-run", "-o", "json"]);
    assert_eq!(seen.lines().count(), 2);
    assert!(node.run(&["group", "describe", group]).contains("lag-records  50"));
    node.run(&["group", "reset", group, "--to", "start"]);
    let described: Value =
        serde_json::from_str(&node.run(&["group", "describe", group, "-o", "json"])).expect("JSON");
    assert_eq!((&described["lag_records"], &described["state"]), (&150.into(), &"Empty".into()));
    node.run(&["group", "reset", group, "--to", "end", "--stream", "s"]);
    assert_eq!(kcat(&node, &["-G", group, "s", "-e", "-q"], ""), "");
    node.run(&["group", "reset", group, "--to", "-1"]);
    assert_eq!(kcat(&node, &["-G", group, "s", "-e", "-q"], "").lines().count(), 2);
    // With --watch it is shown again and again.
    let watch = Follower::start(&node, &["group", "ls", "--watch", "-o", "json"]);
    let described = Follower::start(&node, &["group", "describe", group, "--watch", "-o", "json"]);
    for follower in [&watch, &described] {
        assert!(follower.next().contains("\"lag_records\":0"));
    }
    produce(&node, "s", 150..160);
    for follower in [&watch, &described] {
        wait_for("what came since", || follower.next().contains("\"lag_records\":10").then_some(()));
    }
    kcat(&node, &["-G", group, "s", "-e", "-q"], "");
    // Members go on from where they are.
    let member = our_member(&node, group, "s");
    wait_for_members(&node, "a%2Fb%20c", &[2]);
    assert!(node.run_failing(&["group", "reset", group, "--to", "start"]).contains("has members"));
    assert!(node.run_failing(&["group", "delete", group]).contains("has members"));
    let mut member = member;
    signal(&mut member, Signal::TERM);
    wait_for("it to leave", || (describe(&node, "a%2Fb%20c")?["state"] == "Empty").then_some(()));
    node.run(&["group", "delete", group]);
    assert!(node.run_failing(&["group", "describe", group]).contains("there is no group"));
    assert!(node.run_failing(&["group", "reset", "new", "--to", "end"]).contains("there is no group"));
    assert!(!node.run(&["group", "ls"]).contains(group));
}

fn join(group: &str, member_id: &str, instance: Option<&str>) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 300_000,
        rebalance_timeout_ms: 300_000,
        member_id: member_id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".to_owned(), ..Default::default() }],
        reason: None,
    }
}

fn sync(group: &str, joined: &JoinGroupResponse, assignment: &'static [u8]) -> SyncGroupRequest {
    let member_id = joined.member_id.clone();
    let assignment =
        SyncGroupRequestAssignment { member_id: member_id.clone(), assignment: assignment.into() };
    SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: joined.generation_id,
        member_id,
        group_instance_id: None,
        protocol_type: Some("consumer".to_owned()),
        protocol_name: Some("range".to_owned()),
        assignments: vec![assignment],
    }
}

fn commit(
    group: &str,
    stream: (&str, uuid::Uuid),
    joined: &JoinGroupResponse,
    offset: i64,
) -> OffsetCommitRequest {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset,
        committed_leader_epoch: 1,
        committed_metadata: Some("note".to_owned()),
    };
    let topic = OffsetCommitRequestTopic {
        name: stream.0.to_owned(),
        topic_id: stream.1,
        // The second one is not there.
        partitions: vec![partition(0), partition(7)],
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: joined.generation_id,
        member_id: joined.member_id.clone(),
        topics: vec![topic],
        ..Default::default()
    }
}

fn fetch(groups: &[&str], stream: (&str, uuid::Uuid)) -> OffsetFetchRequest {
    let old = OffsetFetchRequestTopic { name: stream.0.to_owned(), partition_indexes: vec![0] };
    let topic = OffsetFetchRequestTopics {
        name: stream.0.to_owned(),
        topic_id: stream.1,
        partition_indexes: vec![0],
    };
    let group = |group: &&str| OffsetFetchRequestGroup {
        group_id: (*group).to_owned(),
        topics: Some(vec![topic.clone()]),
        ..Default::default()
    };
    OffsetFetchRequest {
        group_id: groups[0].to_owned(),
        topics: Some(vec![old]),
        groups: groups.iter().map(group).collect(),
        ..Default::default()
    }
}

fn id(node: &Node, stream: &str) -> uuid::Uuid {
    let described: Value =
        serde_json::from_str(&node.get(&format!("/v1/streams/{stream}")).expect("there")).expect("JSON");
    described["id"].as_str().expect("an id").parse().expect("an id")
}

const OK: i16 = 0;

fn code(error: ErrorCode) -> i16 {
    error.number()
}

#[test]
fn every_version_of_every_request_leads_through_a_member_s_life() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s"]);
    let stream = ("s", id(&node, "s"));
    let mut raw = Raw::connect(&node);
    for version in 0..=10_i16 {
        let group = &format!("g{version}");
        let up_to = |max: i16| version.min(max);
        let keys = vec![group.clone()];
        let find = FindCoordinatorRequest { key: group.clone(), key_type: 0, coordinator_keys: keys };
        let found = raw.call(up_to(6), &find);
        let port = found.coordinators.first().map_or(found.port, |found| found.port);
        assert!(node.kafka.ends_with(&format!(":{port}")), "{found:?}");

        let mut joined = raw.call(up_to(9), &join(group, "", None));
        if joined.error_code == code(ErrorCode::MemberIdRequired) {
            assert!(version >= 4);
            joined = raw.call(up_to(9), &join(group, &joined.member_id, None));
        }
        assert_eq!((joined.error_code, joined.generation_id, joined.members.len()), (OK, 1, 1));
        assert_eq!((&joined.leader, joined.protocol_name.as_deref()), (&joined.member_id, Some("range")));
        let synced = raw.call(up_to(5), &sync(group, &joined, b"all"));
        assert_eq!((synced.error_code, &synced.assignment[..]), (OK, &b"all"[..]));
        let mut beat = HeartbeatRequest {
            group_id: group.clone(),
            generation_id: 1,
            member_id: joined.member_id.clone(),
            group_instance_id: None,
        };
        assert_eq!(raw.call(up_to(4), &beat).error_code, OK);
        beat.generation_id = 9;
        assert_eq!(raw.call(up_to(4), &beat).error_code, code(ErrorCode::IllegalGeneration));

        let done = raw.call(version.max(2), &commit(group, stream, &joined, 42));
        let codes: Vec<i16> =
            done.topics[0].partitions.iter().map(|partition| partition.error_code).collect();
        assert_eq!(codes, [OK, code(ErrorCode::UnknownTopicOrPartition)], "version {version}");
        let fetched = raw.call(version.max(1), &fetch(&[group, "nobody"], stream));
        if version < 8 {
            let found = &fetched.topics[0].partitions[0];
            assert_eq!((found.committed_offset, found.metadata.as_deref()), (42, Some("note")));
        } else {
            let offset = |index: usize| fetched.groups[index].topics[0].partitions[0].committed_offset;
            assert_eq!((offset(0), offset(1)), (42, -1));
            assert_eq!(fetched.groups[0].topics[0].partitions[0].committed_leader_epoch, 1);
        }

        let described =
            raw.call(up_to(6), &DescribeGroupsRequest { groups: vec![group.clone()], ..Default::default() });
        let described = &described.groups[0];
        assert_eq!((described.group_state.as_str(), described.members.len()), ("Stable", 1));
        assert_eq!(described.members[0].client_id, "raw");
        let listed = ListGroupsRequest {
            states_filter: vec!["stable".to_owned()],
            types_filter: vec!["classic".to_owned()],
        };
        let listed = raw.call(up_to(5), &listed);
        assert!(listed.groups.iter().any(|listed| listed.group_id == *group));
        let delete = DeleteGroupsRequest { groups_names: vec![group.clone(), "nobody".to_owned()] };
        let refused = raw.call(up_to(2), &delete);
        let codes: Vec<i16> = refused.results.iter().map(|result| result.error_code).collect();
        assert_eq!(codes, [code(ErrorCode::NonEmptyGroup), code(ErrorCode::GroupIdNotFound)]);
        let member_id = joined.member_id.clone();
        let leave = LeaveGroupRequest {
            group_id: group.clone(),
            member_id: member_id.clone(),
            members: vec![MemberIdentity { member_id, ..Default::default() }],
        };
        let left = raw.call(up_to(5), &leave);
        assert_eq!((left.error_code, left.members.iter().map(|left| left.error_code).sum::<i16>()), (OK, 0));
        assert_eq!(raw.call(up_to(2), &delete).results[0].error_code, OK);
    }
    let all =
        FindCoordinatorRequest { key_type: 2, coordinator_keys: vec!["x".to_owned()], ..Default::default() };
    assert_eq!(raw.ask(&all).coordinators[0].error_code, code(ErrorCode::InvalidRequest));
}

#[test]
fn static_members_are_fenced_and_removed_by_their_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s"]);
    let stream = ("s", id(&node, "s"));
    let mut raw = Raw::connect(&node);
    let first = raw.ask(&join("g", "", Some("name")));
    let static_sync = |joined: &JoinGroupResponse| SyncGroupRequest {
        group_instance_id: Some("name".to_owned()),
        ..sync("g", joined, b"all")
    };
    assert_eq!(raw.ask(&static_sync(&first)).error_code, OK);
    let second = raw.ask(&join("g", "", Some("name")));
    assert_eq!((second.error_code, second.generation_id, second.skip_assignment), (OK, 1, true));
    let synced: SyncGroupResponse = raw.ask(&static_sync(&second));
    assert_eq!(&synced.assignment[..], b"all", "as it was, without a rebalance");
    let fenced =
        OffsetCommitRequest { group_instance_id: Some("name".to_owned()), ..commit("g", stream, &first, 1) };
    let fenced = raw.ask(&fenced).topics[0].partitions[0].error_code;
    assert_eq!(fenced, code(ErrorCode::FencedInstanceId));
    assert_eq!(raw.ask(&static_sync(&first)).error_code, code(ErrorCode::FencedInstanceId));
    let named =
        |name: &str| MemberIdentity { group_instance_id: Some(name.to_owned()), ..Default::default() };
    let members = vec![named("name"), named("other")];
    let left = raw.ask(&LeaveGroupRequest { group_id: "g".to_owned(), members, ..Default::default() });
    let codes: Vec<i16> = left.members.iter().map(|left| left.error_code).collect();
    assert_eq!(codes, [OK, code(ErrorCode::UnknownMemberId)]);
    // With nobody in it, whoever is in no group commits, and offsets can be given up.
    let nobody = JoinGroupResponse::default();
    let done = raw.ask(&commit("g", stream, &nobody, 7));
    assert_eq!(done.topics[0].partitions[0].error_code, OK);
    let delete = OffsetDeleteRequest {
        group_id: "g".to_owned(),
        topics: vec![OffsetDeleteRequestTopic {
            name: "s".to_owned(),
            partitions: vec![OffsetDeleteRequestPartition { partition_index: 0 }],
        }],
    };
    let deleted = raw.ask(&delete);
    assert_eq!((deleted.error_code, deleted.topics[0].partitions[0].error_code), (OK, OK));
    let fetched = raw.ask(&fetch(&["g"], stream));
    assert_eq!(fetched.groups[0].topics[0].partitions[0].committed_offset, -1);
}

#[test]
fn a_client_that_never_reads_its_answers_holds_nobody_up_and_is_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    need("kcat");
    let quick = [
        ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0"),
        ("TAILWATER_KAFKA__STALLED_MS", "3000"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &quick);
    node.run(&["stream", "create", "s", "--shards", "2"]);
    // A member of the group who waits for an answer that it never reads, and one who asks and asks.
    let short = |member_id: &str| JoinGroupRequest {
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        ..join("g", member_id, None)
    };
    let mut silent = Raw::connect(&node);
    let joined = silent.ask(&short(""));
    silent.send(9, &short(&joined.member_id));
    let mut asking = Raw::connect(&node);
    asking.stream.set_nonblocking(true).expect("it can");
    let groups = (0..100).map(|number| format!("{number:0200}")).collect();
    let names = DescribeGroupsRequest { groups, ..Default::default() };
    let frame = tailwater_kafka_wire::messages::header::request(&names, 6, 1, "raw").concat();
    let mut at = 0;
    // Whether it is closed; what was not taken of a frame goes first the next time.
    let mut ask_on = || loop {
        match std::io::Write::write(&mut asking.stream, &frame[at..]) {
            Ok(written) => at = (at + written) % frame.len(),
            Err(error) => break error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    assert!(!ask_on());
    produce(&node, "s", 0..100);
    // It counts as a member until its session ends; another group is not concerned at all.
    let other = member(&node, "other", "s");
    assert_eq!(consume(&[&other], 100), (0..100).collect::<Vec<_>>());
    let both = member(&node, "g", "s");
    assert_eq!(consume(&[&both], 100), (0..100).collect::<Vec<_>>());
    // The node can't get rid of its answers, takes no more, and closes it in the end.
    wait_for("it to be closed", || ask_on().then_some(()));
    let address = asking.stream.local_addr().expect("it has one").to_string();
    let told = |log: &str| log.lines().any(|l| l.contains("not taken its answers") && l.contains(&address));
    wait_for("the log to say why", || told(&node.process.log()).then_some(()));
}

fn beat(
    group: &str,
    member: &str,
    epoch: i32,
    owned: Option<(uuid::Uuid, Vec<i32>)>,
) -> ConsumerGroupHeartbeatRequest {
    let joins = epoch == 0;
    let topic =
        |(topic_id, partitions)| ConsumerGroupHeartbeatRequestTopicPartitions { topic_id, partitions };
    let owned = owned.map(|owned| vec![topic(owned)]);
    ConsumerGroupHeartbeatRequest {
        group_id: group.to_owned(),
        member_id: member.to_owned(),
        member_epoch: epoch,
        rebalance_timeout_ms: if joins { 60_000 } else { -1 },
        subscribed_topic_names: joins.then(|| vec!["s".to_owned()]),
        topic_partitions: if joins { Some(Vec::new()) } else { owned },
        ..Default::default()
    }
}

/// Epoch and partitions of an answer; no partitions if they are no news.
fn told(answer: &ConsumerGroupHeartbeatResponse) -> (i16, i32, Option<Vec<i32>>) {
    let topics = answer.assignment.as_ref().map(|given| &given.topic_partitions);
    let all = topics.map(|topics| topics.iter().flat_map(|topic| topic.partitions.clone()).collect());
    (answer.error_code, answer.member_epoch, all)
}

#[test]
fn members_of_kip_848_are_moved_one_partition_after_the_other_and_commit_in_their_epochs() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "4"]);
    let id = id(&node, "s");
    let mut raw = Raw::connect(&node);
    assert_eq!(told(&raw.ask(&beat("g", "a", 0, None))), (OK, 1, Some(vec![0, 1, 2, 3])));
    assert_eq!(told(&raw.ask(&beat("g", "b", 0, None))), (OK, 2, Some(vec![])));
    assert_eq!(told(&raw.ask(&beat("g", "a", 1, Some((id, vec![0, 1, 2, 3]))))), (OK, 1, Some(vec![0, 1])));
    assert_eq!(told(&raw.ask(&beat("g", "b", 2, None))), (OK, 2, None));
    assert_eq!(told(&raw.ask(&beat("g", "a", 1, Some((id, vec![0, 1]))))), (OK, 2, None));
    assert_eq!(told(&raw.ask(&beat("g", "b", 2, None))), (OK, 2, Some(vec![2, 3])));

    let member = |member: &str, epoch| JoinGroupResponse {
        member_id: member.to_owned(),
        generation_id: epoch,
        ..Default::default()
    };
    let mut done = |member: JoinGroupResponse| {
        raw.ask(&commit("g", ("s", id), &member, 5)).topics[0].partitions[0].error_code
    };
    assert_eq!(done(member("a", 2)), OK);
    assert_eq!(done(member("a", 1)), code(ErrorCode::StaleMemberEpoch));
    assert_eq!(done(member("c", 2)), code(ErrorCode::UnknownMemberId));
    assert_eq!(done(member("", -1)), code(ErrorCode::UnknownMemberId));
    let mut asked = fetch(&["g"], ("s", id));
    (asked.groups[0].member_id, asked.groups[0].member_epoch) = (Some("a".to_owned()), 2);
    assert_eq!(raw.ask(&asked).groups[0].topics[0].partitions[0].committed_offset, 5);
    asked.groups[0].member_epoch = 1;
    assert_eq!(raw.ask(&asked).groups[0].error_code, code(ErrorCode::StaleMemberEpoch));

    let group_ids = vec!["g".to_owned(), "nobody".to_owned()];
    let described = raw.ask(&ConsumerGroupDescribeRequest { group_ids, ..Default::default() }).groups;
    let [ours, nobody] = &described[..] else { panic!("{described:?}") };
    assert_eq!((ours.group_state.as_str(), ours.group_epoch, ours.members.len()), ("Stable", 2, 2));
    assert_eq!(ours.members[0].assignment.topic_partitions[0].topic_name, "s");
    assert_eq!(nobody.error_code, code(ErrorCode::GroupIdNotFound));
    // The two kinds mix only where it is known what the classic ones read.
    assert_eq!(raw.ask(&join("g", "", None)).error_code, code(ErrorCode::InconsistentGroupProtocol));
    let classic = raw.ask(&join("classic", "", None));
    assert_eq!(raw.ask(&join("classic", &classic.member_id, None)).error_code, OK);
    assert_eq!(told(&raw.ask(&beat("classic", "a", 0, None))).0, code(ErrorCode::GroupIdNotFound));

    // A node that is killed knows them when it is back: what they commit is taken, and nobody moves.
    node.process.kill();
    node.restart();
    let mut raw = Raw::connect(&node);
    for (name, offset) in [("a", 6), ("b", 7)] {
        let committed = raw.ask(&commit("g", ("s", id), &member(name, 2), offset));
        assert_eq!(committed.topics[0].partitions[0].error_code, OK);
        assert_eq!(told(&raw.ask(&beat("g", name, 2, None))), (OK, 2, None));
    }
    assert_eq!(raw.ask(&fetch(&["g"], ("s", id))).groups[0].topics[0].partitions[0].committed_offset, 7);
    assert_eq!(told(&raw.ask(&beat("g", "a", -1, None))), (OK, -1, None));
    assert_eq!(told(&raw.ask(&beat("g", "b", 2, None))), (OK, 3, Some(vec![0, 1, 2, 3])));
    assert_eq!(told(&raw.ask(&beat("g", "b", -1, None))), (OK, -1, None));
    assert!(node.run(&["group", "ls"]).contains("consumer  Empty"));
    // With nobody in it, it may become one of the classic protocol.
    let asked = raw.ask(&join("g", "", None));
    assert_eq!(asked.error_code, code(ErrorCode::MemberIdRequired));
    assert_eq!(raw.ask(&join("g", &asked.member_id, None)).error_code, OK);
}
