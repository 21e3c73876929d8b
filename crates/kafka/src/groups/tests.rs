//! The coordinator over a real log: what is kept, and for how long.

use std::path::Path;
use std::sync::Arc;

use tailwater_env::Env;
use tailwater_format::StreamId;
use tailwater_log::{Log, LogConfig, StreamConfig};

use super::classic::Join;
use super::consumer::{Beat, LEAVING, Partitions};
use super::coordinator::Committer;
use super::offsets::GroupOffsets;
use super::records::{Committed, Kind};
use super::{Coordinator, GroupsConfig};
use crate::errors::ErrorCode;

async fn log(dir: &Path) -> Log {
    Log::open(&Env::real(), LogConfig::default(), dir, None).await.expect("it opens")
}

async fn open(log: &Log, config: GroupsConfig) -> Coordinator {
    Coordinator::open(&Env::real(), config, log).await.expect("it opens")
}

async fn stream(log: &Log, name: &str) -> StreamId {
    log.create_stream(name, StreamConfig { shards: 100, ..StreamConfig::default() }).await.expect("new").id
}

fn offsets(stream: StreamId, partitions: std::ops::Range<u32>, offset: i64) -> GroupOffsets {
    let committed = Committed {
        offset,
        leader_epoch: 3,
        committed_ms: Env::real().wall_ms(),
        expires_ms: None,
        metadata: "m".to_owned(),
    };
    partitions.map(|partition| ((stream, partition), committed.clone())).collect()
}

fn nobody() -> Committer {
    Committer { generation: -1, ..Committer::default() }
}

fn member(session_ms: i32) -> Join {
    Join {
        member_id: String::new(),
        new_id: "member".to_owned(),
        instance: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".to_owned(),
        session_ms,
        rebalance_ms: 60_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Default::default())],
        id_required: false,
        skips_assignment: true,
    }
}

fn quick() -> GroupsConfig {
    GroupsConfig { initial_rebalance_delay_ms: 0, ..GroupsConfig::default() }
}

/// Waits for a condition that nothing tells of.
async fn until(mut is_true: impl FnMut() -> bool) {
    while !is_true() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_committed_is_there_after_the_log_is_opened_again_and_what_is_deleted_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = log(dir.path()).await;
    let topic = stream(&first, "topic").await;
    let groups = open(&first, GroupsConfig::default()).await;
    let wide = (0..100).map(|number| format!("group/{number}")).collect::<Vec<_>>();
    let commits = wide.iter().map(async |name| {
        groups.check_commit(name, &nobody()).expect("allowed");
        groups.commit(name, offsets(topic, 0..100, 7)).await.expect("kept");
    });
    futures::future::join_all(commits).await;
    groups.commit("group/3", offsets(topic, 63..65, 9)).await.expect("kept");
    groups.forget_offsets("group/4", vec![(topic, 5)]).await.expect("forgotten");
    groups.delete("group/5").await.expect("deleted");
    assert_eq!(groups.delete("group/5").await, Err(ErrorCode::GroupIdNotFound));
    drop(groups);
    first.close().await;
    drop(first);

    let second = log(dir.path()).await;
    let groups = open(&second, GroupsConfig::default()).await;
    assert_eq!(groups.groups().len(), 99);
    let offset =
        |name: &str, partition| groups.offsets().get(name, (topic, partition)).map(|found| found.offset);
    assert_eq!(groups.offsets().of("group/0").len(), 100);
    assert_eq!([62, 63, 64, 65].map(|partition| offset("group/3", partition)), [7, 9, 9, 7].map(Some));
    assert_eq!((offset("group/4", 5), offset("group/4", 6)), (None, Some(7)));
    assert_eq!(groups.offsets().of("group/5").len(), 0);
    let found = groups.offsets().get("group/3", (topic, 63)).expect("committed");
    assert_eq!((found.leader_epoch, found.metadata.as_str()), (3, "m"));
}

#[tokio::test]
async fn many_groups_commits_share_their_syncs() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let groups = open(&log, GroupsConfig::default()).await;
    let before = log.journal().stats().groups;
    let names = (0..1_000).map(|number| format!("g{number}")).collect::<Vec<_>>();
    let commits = names.iter().map(|name| groups.commit(name, offsets(topic, 0..3, 1)));
    for kept in futures::future::join_all(commits).await {
        kept.expect("kept");
    }
    let syncs = log.journal().stats().groups - before;
    assert!(syncs <= 20, "{syncs} syncs for 1,000 groups that commit at the same time");
}

#[tokio::test]
async fn a_generation_is_followed_by_the_next_one_over_a_restart_and_its_members_join_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = log(dir.path()).await;
    let topic = stream(&first, "topic").await;
    let groups = open(&first, quick()).await;
    let joined = groups.join("g", member(10_000)).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(groups.group("g").expect("there").empty_since_ms, None);
    // In the order of the queue, so the group's record is durable too.
    groups.commit("g", offsets(topic, 0..1, 5)).await.expect("kept");
    drop(groups);
    first.close().await;
    drop(first);

    let second = log(dir.path()).await;
    let groups = open(&second, quick()).await;
    assert_eq!(groups.heartbeat("g", &joined.member_id, None, 1), Err(ErrorCode::UnknownMemberId));
    let snapshot = groups.group("g").expect("there");
    assert_eq!((snapshot.group.state(), snapshot.group.protocol_type()), ("Empty", Some("consumer")));
    assert!(snapshot.empty_since_ms.is_some());
    let again = Join { new_id: "another".to_owned(), ..member(10_000) };
    assert_eq!(groups.join("g", again).await.generation_id, 2);
    let late = Committer { member_id: joined.member_id, generation: 1, instance: None };
    assert_eq!(groups.check_commit("g", &late), Err(ErrorCode::UnknownMemberId));
}

#[tokio::test]
async fn offsets_are_over_when_nobody_reads_for_long_enough_and_the_group_with_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let config = GroupsConfig { offsets_retention_ms: 50, offsets_check_ms: 10, ..quick() };
    let groups = open(&log, config).await;
    let joined = groups.join("read", member(600_000)).await;
    groups.commit("read", offsets(topic, 0..1, 5)).await.expect("kept");
    groups.commit("unread", offsets(topic, 0..1, 5)).await.expect("kept");
    until(|| groups.group("unread").is_none()).await;
    assert!(groups.offsets().has("read"), "somebody is in it");
    groups.leave("read", &joined.member_id, None).expect("in");
    until(|| groups.group("read").is_none()).await;
    while !log.meta().list("kafka/").await.expect("readable").is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn offsets_of_a_deleted_stream_are_gone_whoever_gets_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let (gone, kept) = (stream(&log, "gone").await, stream(&log, "kept").await);
    let groups = open(&log, GroupsConfig { offsets_check_ms: 10, ..quick() }).await;
    groups.commit("g", offsets(gone, 0..3, 5)).await.expect("kept");
    groups.commit("g", offsets(kept, 0..3, 5)).await.expect("kept");
    log.delete_stream("gone").await.expect("deleted");
    let again = stream(&log, "gone").await;
    assert_eq!(groups.offsets().get("g", (again, 0)), None);
    until(|| groups.offsets().of("g").len() == 3).await;
}

#[tokio::test]
async fn groups_are_bounded_and_those_that_nobody_came_into_make_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let config = GroupsConfig { groups_max: 2, session_timeout_min_ms: 1, ..quick() };
    let groups = Arc::new(open(&log, config).await);
    for name in ["a", "b"] {
        let asked = groups.join(name, Join { id_required: true, ..member(200) }).await;
        assert_eq!(asked.error_code, ErrorCode::MemberIdRequired.number());
    }
    let full = groups.join("c", member(200)).await;
    assert_eq!(full.error_code, ErrorCode::GroupMaxSizeReached.number());
    assert_eq!(groups.check_commit("c", &nobody()), Err(ErrorCode::GroupMaxSizeReached));
    until(|| groups.groups().is_empty()).await;
    assert_eq!(groups.join("c", member(10_000)).await.error_code, 0);
    for bad in [String::new(), "x".repeat(513)] {
        assert_eq!(groups.join(&bad, member(200)).await.error_code, ErrorCode::InvalidGroupId.number());
    }
}

/// A member of KIP-848 joins.
fn beat(id: &str) -> Beat {
    Beat {
        member_id: id.to_owned(),
        rebalance: Some(std::time::Duration::from_secs(60)),
        topics: Some(vec!["topic".to_owned()]),
        owned: Some(Partitions::new()),
        ..Beat::default()
    }
}

#[tokio::test]
async fn a_group_that_everybody_left_changes_its_protocol_and_keeps_its_offsets_and_its_count() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let groups = open(&log, quick()).await;
    let joined = groups.join("g", member(10_000)).await;
    groups.commit("g", offsets(topic, 0..1, 5)).await.expect("kept");
    groups.leave("g", &joined.member_id, None).expect("in");
    // Its leaving was another generation.
    let (told, _) = groups.beat("g", beat("a")).expect("taken in");
    assert_eq!(told.epoch, 3);
    let committer = Committer { member_id: "a".to_owned(), generation: 3, instance: None };
    groups.check_commit("g", &committer).expect("allowed");
    groups.beat("g", Beat { epoch: LEAVING, ..beat("a") }).expect("in");
    let again = groups.join("g", Join { new_id: "another".to_owned(), ..member(10_000) }).await;
    assert_eq!((again.error_code, again.generation_id), (0, 5));
    assert_eq!(groups.offsets().get("g", (topic, 0)).map(|found| found.offset), Some(5));
}

#[tokio::test]
async fn a_group_moves_to_the_other_protocol_with_members_in_it_and_back_when_the_last_of_that_one_leaves() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let groups = open(&log, quick()).await;
    let subscription = tailwater_kafka_wire::consumer::Subscription {
        topics: vec!["topic".to_owned()],
        ..Default::default()
    };
    let said = tailwater_kafka_wire::consumer::encode(&subscription, 1);
    let classic = Join { protocols: vec![("range".to_owned(), said)], ..member(10_000) };
    let joined = groups.join("g", classic.clone()).await;
    groups.commit("g", offsets(topic, 0..1, 5)).await.expect("kept");
    let state = || groups.group("g").map(|found| (found.group.kind(), found.group.state()));
    // What can't be taken in changes nothing.
    let bad = Beat { pattern: Some("(".to_owned()), ..beat("a") };
    assert_eq!(groups.beat("g", bad).expect_err("refused").0, ErrorCode::InvalidRegularExpression);
    assert_eq!(state(), Some((Kind::Classic, "CompletingRebalance")));
    let (told, _) = groups.beat("g", beat("a")).expect("taken in");
    assert_eq!((told.epoch, state()), (2, Some((Kind::Consumer, "Reconciling"))));
    assert_eq!(groups.heartbeat("g", &joined.member_id, None, 1), Err(ErrorCode::RebalanceInProgress));
    let again = Join { member_id: joined.member_id.clone(), ..classic };
    assert_eq!(groups.join("g", again.clone()).await.generation_id, 2);
    assert_eq!(groups.heartbeat("g", &joined.member_id, None, 2), Ok(()));
    let committer = Committer { member_id: joined.member_id, generation: 2, instance: None };
    groups.check_commit("g", &committer).expect("allowed");
    groups.beat("g", Beat { epoch: LEAVING, ..beat("a") }).expect("in");
    assert_eq!(state(), Some((Kind::Classic, "PreparingRebalance")));
    assert_eq!(groups.join("g", again).await.generation_id, 3);
    assert_eq!(groups.offsets().get("g", (topic, 0)).map(|found| found.offset), Some(5));
}
