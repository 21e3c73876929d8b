//! The coordinator over a real log: what is kept, and for how long.

mod elsewhere;
mod sessions;

use std::path::Path;
use std::sync::Arc;

use tailwater_env::Env;
use tailwater_format::StreamId;
use tailwater_log::{Log, LogConfig, StreamConfig};
use tailwater_meta::testing::FailingMeta;
use tempfile::TempDir;

use super::GroupsConfig;
use super::classic::{Join, Sync};
use super::consumer::{Beat, LEAVING, Partitions};
use super::coordinator::Committer;
use super::coordinator::Coordinator;
use super::offsets::{GroupOffsets, NotKept, OffsetBytes, Offsets, StoredGroups};
use super::records::{Committed, GroupRecord, GroupRecordKind};
use crate::config::KafkaConfig;
use crate::errors::ErrorCode;
use crate::runtime::RuntimeConfigs;

async fn log(dir: &Path) -> Log {
    Log::open(&Env::real(), LogConfig::default(), dir, None).await.expect("it opens")
}

async fn open(log: &Log, config: GroupsConfig) -> Coordinator {
    open_in(&Env::real(), log, config).await
}

async fn open_in(env: &Env, log: &Log, groups: GroupsConfig) -> Coordinator {
    open_with(env, log, configs(env, log, groups).await).await
}

async fn configs(env: &Env, log: &Log, groups: GroupsConfig) -> Arc<RuntimeConfigs> {
    let file = KafkaConfig { groups, ..KafkaConfig::default() };
    RuntimeConfigs::open(env, Arc::clone(log.meta()), file, None).await.expect("it opens")
}

async fn open_with(env: &Env, log: &Log, configs: Arc<RuntimeConfigs>) -> Coordinator {
    let stored = StoredGroups::read(&**log.meta()).await.expect("read");
    Coordinator::open(env, configs, log, (Arc::clone(log.meta()), &stored), Arc::default(), &|_| true)
}

async fn stream(log: &Log, name: &str) -> StreamId {
    log.create_stream(name, StreamConfig { shards: 100, ..StreamConfig::default() }).await.expect("new").id
}

/// A directory, a log in it with a stream, and the groups of that.
async fn begun(config: GroupsConfig) -> (TempDir, Log, StreamId, Coordinator) {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let groups = open(&log, config).await;
    (dir, log, topic, groups)
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

/// What a group committed of one partition.
fn offsets_at(groups: &Coordinator, name: &str, partition: u32) -> GroupOffsets {
    groups.offsets().of(name).into_iter().filter(|((_, number), _)| *number == partition).collect()
}

#[tokio::test]
async fn what_was_committed_since_somebody_looked_is_not_given_up() {
    let (_dir, _log, topic, groups) = begun(GroupsConfig::default()).await;
    groups.commit("g", offsets(topic, 0..3, 5)).await.expect("kept");
    let seen = groups.offsets().of("g");
    groups.commit("g", offsets(topic, 0..1, 6)).await.expect("kept");
    // One in the same round, too: nothing is awaited between them.
    let newer = groups.commit("g", offsets(topic, 1..2, 7));
    let forgotten = groups.forget_offsets("g", seen);
    let (newer, forgotten) = futures::join!(newer, forgotten);
    newer.expect("kept");
    forgotten.expect("forgotten");
    let left = (0..3).map(|number| groups.offsets().get("g", (topic, number)).map(|found| found.offset));
    assert_eq!(left.collect::<Vec<_>>(), [Some(6), Some(7), None]);
}

#[tokio::test]
async fn what_is_committed_is_there_after_the_log_is_opened_again_and_what_is_deleted_is_not() {
    let (dir, first, topic, groups) = begun(GroupsConfig::default()).await;
    let wide = (0..100).map(|number| format!("group/{number}")).collect::<Vec<_>>();
    let commits = wide.iter().map(async |name| {
        groups.check_commit(name, &nobody()).expect("allowed");
        groups.commit(name, offsets(topic, 0..100, 7)).await.expect("kept");
    });
    futures::future::join_all(commits).await;
    groups.commit("group/3", offsets(topic, 63..65, 9)).await.expect("kept");
    groups.forget_offsets("group/4", offsets_at(&groups, "group/4", 5)).await.expect("forgotten");
    groups.delete("group/5").await.expect("deleted");
    assert_eq!(groups.delete("group/5").await, Err(ErrorCode::GroupIdNotFound));
    drop(groups);
    first.close().await;
    drop(first);

    let second = log(dir.path()).await;
    let groups = open(&second, GroupsConfig::default()).await;
    assert_eq!(groups.names().len(), 99);
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
async fn a_group_whose_deleter_goes_away_is_deleted_all_the_same() {
    let (_dir, _log, topic, groups) = begun(GroupsConfig::default()).await;
    groups.check_commit("group", &nobody()).expect("allowed");
    groups.commit("group", offsets(topic, 0..1, 7)).await.expect("kept");
    {
        let mut delete = std::pin::pin!(groups.delete("group"));
        assert!(futures::poll!(&mut delete).is_pending(), "it has to become durable");
        let joined = groups.beat("group", beat("a"), |_| true).await;
        assert_eq!(joined.expect_err("refused").0, ErrorCode::CoordinatorNotAvailable, "it comes again");
    }
    until(|| groups.check_commit("group", &nobody()).is_ok()).await;
    assert_eq!(groups.offsets().of("group").len(), 0);
}

#[tokio::test]
async fn a_group_of_which_something_is_committed_while_it_is_deleted_is_there_with_it() {
    let (_dir, _log, topic, groups) = begun(GroupsConfig::default()).await;
    groups.commit("g", offsets(topic, 0..1, 7)).await.expect("kept");
    groups.check_commit("g", &nobody()).expect("allowed");
    // One round writes both.
    let (deleted, kept) = {
        let mut delete = std::pin::pin!(groups.delete("g"));
        let mut commit = std::pin::pin!(groups.commit("g", offsets(topic, 1..2, 8)));
        assert!(futures::poll!(&mut delete).is_pending());
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut commit).is_pending());
        futures::join!(delete, commit)
    };
    assert_eq!((deleted, kept), (Ok(()), Ok(())));
    assert_eq!(groups.offsets().of("g").keys().copied().collect::<Vec<_>>(), [(topic, 1)]);
    assert_eq!(groups.group("g").map(|found| found.group.state()), Some("Empty"));
}

#[tokio::test]
async fn a_group_that_is_removed_as_unused_keeps_what_is_committed_meanwhile() {
    let (_dir, _log, topic, groups) = begun(GroupsConfig::default()).await;
    let name: Arc<str> = "g".into();
    // It has nothing any more, and nobody looked since.
    groups.commit("g", offsets(topic, 1..2, 5)).await.expect("kept");
    groups.forget_offsets("g", groups.offsets().of("g")).await.expect("forgotten");
    groups.check_commit("g", &nobody()).expect("allowed");
    let commit = groups.commit("g", offsets(topic, 0..1, 7));
    let (kept, ()) = futures::join!(commit, groups.shared.sweep(&name));
    assert_eq!(kept, Ok(()));
    assert!(groups.group("g").is_some() && groups.offsets().has("g"));
    groups.forget_offsets("g", groups.offsets().of("g")).await.expect("forgotten");
    groups.shared.sweep(&name).await;
    assert!(groups.group("g").is_none());
}

#[tokio::test]
async fn commits_stay_within_the_memory_that_they_may_take_also_those_of_known_partitions() {
    let config = GroupsConfig { offsets_bytes_max: 30 << 10, ..GroupsConfig::default() };
    let (_dir, _log, topic, groups) = begun(config).await;
    groups.commit("g", offsets(topic, 0..100, 5)).await.expect("kept");
    let long = |partition: u32| -> GroupOffsets {
        let committed = offsets(topic, partition..partition + 1, 6).into_iter();
        committed
            .map(|(key, committed)| (key, Committed { metadata: "m".repeat(4_000), ..committed }))
            .collect()
    };
    // At the same time, so that one round writes them.
    let kept = futures::future::join_all((0..100).map(|number| groups.commit("g", long(number)))).await;
    assert!(groups.offsets().bytes() <= 30 << 10);
    assert_eq!(kept.iter().filter(|kept| kept.is_ok()).count(), 1);
    assert!(kept.iter().all(|kept| kept.is_ok() || *kept == Err(ErrorCode::InvalidCommitOffsetSize)));
    groups.commit("g", offsets(topic, 0..100, 7)).await.expect("as many bytes as before, or fewer");
    groups.commit("g", long(7)).await.expect("there is room again");
}

#[tokio::test]
async fn many_groups_commits_share_their_syncs() {
    let (_dir, log, topic, groups) = begun(GroupsConfig::default()).await;
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
    let (dir, first, topic, groups) = begun(quick()).await;
    let joined = groups.join("g", member(600_000)).await;
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
    let again = Join { new_id: "another".to_owned(), ..member(600_000) };
    assert_eq!(groups.join("g", again).await.generation_id, 2);
    let late = Committer { member_id: joined.member_id, generation: 1, instance: None };
    assert_eq!(groups.check_commit("g", &late), Err(ErrorCode::UnknownMemberId));
}

#[tokio::test]
async fn offsets_are_over_when_nobody_reads_for_long_enough_and_the_group_with_them() {
    let config = GroupsConfig { offsets_retention_ms: 50, offsets_check_ms: 10, ..quick() };
    let (_dir, log, topic, groups) = begun(config).await;
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
async fn what_a_group_is_by_now_is_kept_however_many_changes_wait() {
    let (_dir, log, topic, groups) = begun(quick()).await;
    let joined = groups.join("g", member(600_000)).await;
    // As many changes as can wait: nothing is awaited before the member leaves.
    let commits = (0..2_000).map(|_| groups.commit("g", offsets(topic, 0..1, 5)));
    let mut commits = tokio::task::unconstrained(futures::future::join_all(commits));
    assert!(futures::poll!(&mut commits).is_pending());
    groups.leave("g", &joined.member_id, None).expect("in");
    assert!(commits.await.iter().all(Result::is_ok));
    // Written in order: what came before this is kept.
    groups.commit("g", offsets(topic, 0..1, 6)).await.expect("kept");
    let kept = log.meta().get("kafka/group/g").await.expect("readable").expect("there");
    let kept = GroupRecord::decode(&kept.value).expect("one");
    assert!(kept.empty_since_ms.is_some(), "{kept:?}");
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
async fn members_of_a_group_whose_record_can_not_be_read_are_kept_for_whoever_can() {
    let (_dir, log, _, groups) = begun(quick()).await;
    for group in ["g", "h"] {
        groups.beat(group, beat("a"), |_| true).await.expect("taken in");
    }
    drop(groups);
    let members = || async { log.meta().list("kafka/member/").await.expect("listed").len() };
    let before = members().await;
    let value = bytes::Bytes::from_static(b"\xff of a later version");
    let unreadable = tailwater_meta::Op::Put {
        key: "kafka/group/g".to_owned(),
        value,
        expect: tailwater_meta::Expect::Present,
    };
    let gone = tailwater_meta::Op::Delete {
        key: "kafka/group/h".to_owned(),
        expect: tailwater_meta::Expect::Present,
    };
    log.meta().commit(vec![unreadable, gone]).await.expect("put");
    let groups = open(&log, quick()).await;
    groups.offsets().kept().await.expect("it writes").expect("durable");
    let left = members().await;
    assert!(left > 0 && left * 2 == before, "{left} of {before}");
}

#[tokio::test]
async fn a_commit_that_is_allowed_and_keeps_nothing_makes_no_group() {
    let (_dir, _log, topic, groups) = begun(GroupsConfig { groups_max: 1, ..quick() }).await;
    for name in ["a", "b", "c"] {
        groups.check_commit(name, &nobody()).expect("allowed");
        groups.commit(name, GroupOffsets::default()).await.expect("there is nothing to keep");
    }
    assert!(groups.names().is_empty());
    groups.commit("d", offsets(topic, 0..1, 7)).await.expect("kept");
    assert_eq!(groups.check_commit("e", &nobody()), Err(ErrorCode::GroupMaxSizeReached));
}

#[tokio::test]
async fn who_is_in_a_group_stays_in_it_when_there_is_no_more_room_for_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let groups = open(&log, GroupsConfig { groups_bytes_max: 3_000, ..quick() }).await;
    let large = |member_id: &str| Join {
        member_id: member_id.to_owned(),
        protocols: vec![("range".to_owned(), vec![0; 1_000].into())],
        ..member(10_000)
    };
    let first = groups.join("a", large("")).await;
    assert_eq!(first.error_code, 0);
    let sync = |generation| Sync {
        member_id: "member".to_owned(),
        generation,
        assignments: vec![("member".to_owned(), vec![0; 1_000].into())],
        ..Sync::default()
    };
    assert_eq!(groups.sync("a", sync(first.generation_id)).await.error_code, 0);
    assert_eq!(groups.join("b", large("")).await.error_code, ErrorCode::GroupMaxSizeReached.number());
    // All that it says again takes the place of what it said.
    let again = groups.join("a", large("member")).await;
    assert_eq!(again.error_code, 0);
    assert_eq!(groups.sync("a", sync(again.generation_id)).await.error_code, 0);
    let more = Join { protocols: vec![("range".to_owned(), vec![0; 2_000].into())], ..large("member") };
    assert_eq!(groups.join("a", more).await.error_code, ErrorCode::GroupMaxSizeReached.number());
}

#[tokio::test]
async fn groups_are_bounded_and_those_that_nobody_came_into_make_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let config = GroupsConfig { groups_max: 2, session_timeout_min_ms: 1, ..quick() };
    let groups = Arc::new(open(&log, config).await);
    for name in ["a", "b"] {
        let asked = groups.join(name, Join { id_required: true, ..member(10_000) }).await;
        assert_eq!(asked.error_code, ErrorCode::MemberIdRequired.number());
    }
    let full = groups.join("c", member(200)).await;
    assert_eq!(full.error_code, ErrorCode::GroupMaxSizeReached.number());
    assert_eq!(groups.check_commit("c", &nobody()), Err(ErrorCode::GroupMaxSizeReached));
    until(|| groups.names().is_empty()).await;
    assert_eq!(groups.join("c", member(600_000)).await.error_code, 0);
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
    let (_dir, _log, topic, groups) = begun(quick()).await;
    let joined = groups.join("g", member(600_000)).await;
    groups.commit("g", offsets(topic, 0..1, 5)).await.expect("kept");
    groups.leave("g", &joined.member_id, None).expect("in");
    // Its leaving was another generation.
    let (told, _) = groups.beat("g", beat("a"), |_| true).await.expect("taken in");
    assert_eq!(told.epoch, 3);
    let committer = Committer { member_id: "a".to_owned(), generation: 3, instance: None };
    groups.check_commit("g", &committer).expect("allowed");
    groups.beat("g", Beat { epoch: LEAVING, ..beat("a") }, |_| true).await.expect("in");
    let again = groups.join("g", Join { new_id: "another".to_owned(), ..member(600_000) }).await;
    assert_eq!((again.error_code, again.generation_id), (0, 5));
    assert_eq!(groups.offsets().get("g", (topic, 0)).map(|found| found.offset), Some(5));
}

#[tokio::test]
async fn a_group_moves_to_the_other_protocol_with_members_in_it_and_back_when_the_last_of_that_one_leaves() {
    let (_dir, _log, topic, groups) = begun(quick()).await;
    let subscription = tailwater_kafka_wire::consumer::Subscription {
        topics: vec!["topic".to_owned()],
        ..Default::default()
    };
    let said = tailwater_kafka_wire::consumer::encode(&subscription, 1);
    let classic = Join { protocols: vec![("range".to_owned(), said)], ..member(600_000) };
    let joined = groups.join("g", classic.clone()).await;
    groups.commit("g", offsets(topic, 0..1, 5)).await.expect("kept");
    let state = || groups.group("g").map(|found| (found.group.kind(), found.group.state()));
    // What can't be taken in changes nothing.
    let bad = Beat { pattern: Some("(".to_owned()), ..beat("a") };
    assert_eq!(
        groups.beat("g", bad, |_| true).await.expect_err("refused").0,
        ErrorCode::InvalidRegularExpression
    );
    assert_eq!(state(), Some((GroupRecordKind::Classic, "CompletingRebalance")));
    let (told, _) = groups.beat("g", beat("a"), |_| true).await.expect("taken in");
    assert_eq!((told.epoch, state()), (2, Some((GroupRecordKind::Consumer, "Reconciling"))));
    assert_eq!(groups.heartbeat("g", &joined.member_id, None, 1), Err(ErrorCode::RebalanceInProgress));
    let again = Join { member_id: joined.member_id.clone(), ..classic };
    assert_eq!(groups.join("g", again.clone()).await.generation_id, 2);
    assert_eq!(groups.heartbeat("g", &joined.member_id, None, 2), Ok(()));
    let committer = Committer { member_id: joined.member_id, generation: 2, instance: None };
    groups.check_commit("g", &committer).expect("allowed");
    groups.beat("g", Beat { epoch: LEAVING, ..beat("a") }, |_| true).await.expect("in");
    assert_eq!(state(), Some((GroupRecordKind::Classic, "PreparingRebalance")));
    assert_eq!(groups.join("g", again).await.generation_id, 3);
    assert_eq!(groups.offsets().get("g", (topic, 0)).map(|found| found.offset), Some(5));
}

/// A heartbeat of a member of KIP-848 that has these partitions.
fn has(id: &str, epoch: i32, topic: StreamId, numbers: std::ops::Range<u32>) -> Beat {
    let owned = Some(Partitions::from([(topic, numbers.collect())]));
    Beat { member_id: id.to_owned(), epoch, owned, ..Beat::default() }
}

#[tokio::test]
async fn members_of_kip_848_go_on_after_the_log_is_opened_again_as_if_nothing_had_been() {
    let (dir, first, topic, groups) = begun(quick()).await;
    groups.beat("g", beat("gone"), |_| true).await.expect("taken in");
    groups.beat("g", Beat { epoch: LEAVING, ..beat("gone") }, |_| true).await.expect("in");
    for id in ["a", "b"] {
        groups.beat("g", beat(id), |_| true).await.expect("taken in");
    }
    groups.beat("g", has("a", 2, topic, 0..100), |_| true).await.expect("in");
    let (told, _) = groups.beat("g", has("a", 2, topic, 0..50), |_| true).await.expect("in");
    assert_eq!(told.epoch, 3);
    let (told, _) = groups.beat("g", has("b", 3, topic, 0..0), |_| true).await.expect("in");
    assert_eq!(told.assignment.map(|given| given[&topic].clone()), Some((50..100).collect()));
    drop(groups);
    first.close().await;
    drop(first);

    let second = log(dir.path()).await;
    let groups = open(&second, quick()).await;
    let snapshot = groups.group("g").expect("there");
    assert_eq!(
        (snapshot.group.state(), snapshot.group.generation(), snapshot.empty_since_ms),
        ("Stable", 3, None)
    );
    for id in ["a", "b"] {
        let committer = Committer { member_id: id.to_owned(), generation: 3, instance: None };
        assert_eq!(groups.check_commit("g", &committer), Ok(()));
    }
    for (id, numbers) in [("a", 0..50), ("b", 50..100)] {
        let (told, _) = groups.beat("g", has(id, 3, topic, numbers), |_| true).await.expect("known");
        assert_eq!((told.epoch, told.assignment), (3, None));
    }
    let gone = groups.beat("g", has("gone", 1, topic, 0..0), |_| true).await;
    assert_eq!(gone.expect_err("out").0, ErrorCode::UnknownMemberId);
    for id in ["a", "b"] {
        groups.beat("g", Beat { epoch: LEAVING, ..beat(id) }, |_| true).await.expect("in");
    }
    assert!(second.meta().list("kafka/member/").await.expect("readable").is_empty(), "nobody is in it");
}

#[tokio::test]
async fn a_heartbeat_that_changes_nothing_writes_nothing_and_one_that_does_is_answered_when_that_is_durable()
{
    let (_dir, log, topic, groups) = begun(quick()).await;
    {
        let mut joined = std::pin::pin!(groups.beat("g", beat("a"), |_| true));
        assert!(futures::poll!(&mut joined).is_pending(), "it has to become durable");
        // Nothing new, but what that tells is not durable yet.
        let mut again = std::pin::pin!(groups.beat("g", has("a", 1, topic, 0..100), |_| true));
        assert!(futures::poll!(&mut again).is_pending());
        let (joined, again) = futures::join!(joined, again);
        assert_eq!([joined, again].map(|told| told.expect("in").0.epoch), [1, 1]);
    }
    let before = log.journal().stats().groups;
    let all = Beat { epoch: 1, owned: has("a", 1, topic, 0..100).owned, ..beat("a") };
    for same in [has("a", 1, topic, 0..100), Beat { owned: None, ..has("a", 1, topic, 0..0) }, all] {
        let mut told = std::pin::pin!(groups.beat("g", same, |_| true));
        assert!(futures::poll!(&mut told).is_ready(), "there is nothing to wait for");
    }
    // Written in order: whatever came before this is written.
    groups.commit("g", offsets(topic, 0..1, 6)).await.expect("kept");
    assert_eq!(log.journal().stats().groups - before, 1, "the commit's own");
}

#[tokio::test]
async fn a_group_s_record_that_metadata_did_not_take_is_written_when_it_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let meta = FailingMeta::new(log.meta());
    meta.take(0);
    let stored = StoredGroups::read(&*meta).await.expect("read");
    let room = (OffsetBytes::default(), usize::MAX);
    let (offsets, _) = Offsets::open(&Env::real(), meta.clone(), room, &stored, &|_| true);
    let record = |generation| GroupRecord {
        kind: GroupRecordKind::Classic,
        generation,
        empty_since_ms: None,
        target_epoch: generation,
        protocol_type: "consumer".to_owned(),
    };
    let keep = |name: &str, generation| {
        let record = record(generation).encode().into();
        offsets.keep(&name.into(), [(format!("kafka/group/{name}"), Some(record))].into())
    };
    keep("a", 1);
    let count = keep("b", 1);
    let refused = offsets.kept().await.expect("answered");
    assert!(matches!(refused, Err(NotKept::Meta(_))), "{refused:?}");
    until(|| meta.refused() > 0).await;
    // What is newer goes before what could not be written.
    let newer = keep("b", 2);
    assert!(!offsets.is_kept(count));
    let tried = meta.refused();
    until(|| meta.refused() > tried).await;
    meta.take(i64::MAX);
    assert_eq!(offsets.kept().await, Ok(Ok(())));
    assert!(offsets.is_kept(newer));
    for (name, generation) in [("a", 1), ("b", 2)] {
        let kept = log.meta().get(&format!("kafka/group/{name}")).await.expect("it answers").expect("kept");
        assert_eq!(GroupRecord::decode(&kept.value), Ok(record(generation)));
    }
}

#[tokio::test]
async fn topics_are_listed_again_for_members_when_they_have_changed_and_only_then() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    stream(&log, "old").await;
    let groups = open(&log, quick()).await;
    let catalog = || groups.shared.catalog(true);
    let before = catalog();
    assert!(Arc::ptr_eq(&before, &catalog()), "nothing has changed");
    let id = stream(&log, "new").await;
    let after = catalog();
    assert_eq!((before.get("new"), after.get("new")), (None, Some(&(id, 100))));
    assert!(Arc::ptr_eq(&after, &catalog()));
    log.alter_stream("new", |old: &StreamConfig| {
        Ok::<_, tailwater_log::StreamError>(StreamConfig { shards: 101, ..old.clone() })
    })
    .await
    .expect("more of them");
    assert_eq!(catalog().get("new"), Some(&(id, 101)));
    log.delete_stream("new").await.expect("there");
    assert_eq!(catalog().get("new"), None);
}
