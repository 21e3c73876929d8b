//! What groups commit in other clusters.

use tailwater_access::Everybody;
use tailwater_format::call::CopiedOffset;

use super::*;
use crate::broker::Broker;

fn at(stream: StreamId, offset: i64, committed_ms: i64) -> GroupOffsets {
    let (key, committed) = offsets(stream, 0..1, offset).pop_first().expect("one");
    [(key, Committed { committed_ms, ..committed })].into()
}

#[tokio::test]
async fn offsets_of_other_clusters_are_kept_where_they_are_later_and_nobody_is_in_the_group() {
    let (_dir, _log, topic, groups) = begun(quick()).await;
    let now = || groups.offsets().get("g", (topic, 0)).map(|committed| committed.offset);
    for (offset, committed_ms, kept) in [(5, 100, 5), (3, 100, 5), (7, 99, 5), (4, 101, 4)] {
        groups.follow("g", at(topic, offset, committed_ms)).await.expect("kept, or passed over");
        assert_eq!(now(), Some(kept), "{offset} at {committed_ms}");
    }
    assert_eq!(groups.names().len(), 1, "a group that is known by that alone is one");
    let joined = groups.join("g", member(60_000)).await;
    groups.follow("g", at(topic, 9, 102)).await.expect("passed over");
    assert_eq!(now(), Some(4), "its members go by what they commit");
    groups.leave("g", &joined.member_id, None).expect("it was in it");
    groups.follow("g", at(topic, 9, 103)).await.expect("kept");
    assert_eq!(now(), Some(9));
}

#[tokio::test]
async fn another_cluster_is_told_of_each_offset_once_and_of_all_when_the_node_was_started_again() {
    let (_dir, log, topic, groups) = begun(GroupsConfig::default()).await;
    let other = stream(&log, "other").await;
    for name in 0..12 {
        groups.commit(&format!("group/{name}"), offsets(topic, 0..100, 5)).await.expect("kept");
    }
    groups.commit("group/3", offsets(other, 0..1, 1)).await.expect("kept");
    let first = groups.offsets().since(topic, 0, 0);
    let second = groups.offsets().since(topic, first.life, first.upto);
    assert_eq!((first.offsets.len(), second.offsets.len()), (1_000, 200));
    assert!(groups.offsets().since(topic, second.life, second.upto).offsets.is_empty());
    groups.commit("group/3", offsets(topic, 7..8, 9)).await.expect("kept");
    groups.forget_offsets("group/4", offsets_at(&groups, "group/4", 5)).await.expect("forgotten");
    let third = groups.offsets().since(topic, second.life, second.upto).offsets;
    let told: Vec<_> = third.iter().map(|told| (&*told.group, told.shard, told.offset)).collect();
    assert_eq!(told, [("group/3", 7, 9)]);

    drop(groups);
    let groups = open(&log, GroupsConfig::default()).await;
    let mut count = 0;
    let mut told = groups.offsets().since(topic, second.life, second.upto);
    while !told.offsets.is_empty() {
        count += told.offsets.len();
        told = groups.offsets().since(topic, told.life, told.upto);
    }
    assert_eq!(count, 1_199, "all that are left");
}

fn telling_of_deletions(groups: &Coordinator) {
    groups.offsets().are_copied(Box::new(|_| true));
}

#[tokio::test]
async fn a_deleted_group_stays_away_whatever_other_clusters_tell_of_before_also_after_a_start_and_may_begin_anew()
 {
    let (_dir, log, topic, groups) = begun(quick()).await;
    telling_of_deletions(&groups);
    let now_ms = Env::real().wall_ms();
    groups.commit("g", at(topic, 5, now_ms)).await.expect("kept");
    groups.delete("g").await.expect("deleted");
    assert_eq!((groups.names().len(), groups.offsets().has("g")), (0, false));
    groups.follow("g", at(topic, 5, now_ms)).await.expect("passed over");
    assert_eq!(groups.offsets().get("g", (topic, 0)), None);

    drop(groups);
    let groups = open(&log, quick()).await;
    assert_eq!(groups.names().len(), 0);
    groups.follow("g", at(topic, 5, now_ms)).await.expect("passed over");
    assert_eq!(
        (groups.names().len(), groups.offsets().has("g")),
        (0, false),
        "it was told again from the first"
    );
    groups.commit("g", at(topic, 1, now_ms)).await.expect("kept");
    let begun = groups.offsets().get("g", (topic, 0)).expect("committed");
    assert!(begun.offset == 1 && begun.committed_ms > now_ms, "later than its deletion: {begun:?}");
}

#[tokio::test]
async fn the_deletion_of_a_group_is_copied_to_other_clusters_and_leaves_who_has_members_there() {
    let (_dir, _log, topic, here) = begun(quick()).await;
    let (_other_dir, other_log, _, there) = begun(quick()).await;
    telling_of_deletions(&here);
    let now_ms = Env::real().wall_ms() - 1_000;
    for groups in [&here, &there] {
        for name in ["g", "h", "used"] {
            groups.commit(name, at(topic, 5, now_ms)).await.expect("kept");
        }
    }
    let member = there.join("used", member(60_000)).await;
    here.delete("g").await.expect("deleted");
    here.delete("used").await.expect("deleted");
    here.forget_offsets("h", here.offsets().of("h")).await.expect("deleted");
    let told = here.offsets().since(topic, 0, 0).offsets;
    assert!(
        told.iter().all(|told| told.offset == -1 && told.metadata.is_empty()) && told.len() == 3,
        "{told:?}"
    );
    for told in told {
        let deleted = at(topic, told.offset, told.committed_ms);
        there.follow(&told.group, deleted).await.expect("followed");
    }
    let left: Vec<_> = there.names();
    assert_eq!(left, [Arc::from("used")], "its members go by their own");
    assert!(there.offsets().get("used", (topic, 0)).is_some() && !member.member_id.is_empty());
    // It is told on.
    let told = there.offsets().since(topic, 0, 0).offsets;
    assert_eq!(told.iter().filter(|told| told.offset == -1).count(), 2);
    drop(there);
    let there = open(&other_log, quick()).await;
    assert_eq!(there.names().len(), 1);
}

#[tokio::test]
async fn a_deletion_is_remembered_only_where_a_stream_is_copied_and_as_long_as_offsets_are_kept() {
    let config = GroupsConfig { offsets_retention_ms: 60_000, offsets_check_ms: 10, ..quick() };
    let (_dir, log, topic, groups) = begun(config).await;
    let alone = stream(&log, "alone").await;
    groups.offsets().are_copied(Box::new(move |stream| stream == topic));
    groups.commit("g", at(topic, 5, Env::real().wall_ms())).await.expect("kept");
    groups.commit("g", at(alone, 5, Env::real().wall_ms())).await.expect("kept");
    groups.delete("g").await.expect("deleted");
    let remembered = groups.offsets().deleted();
    assert_eq!(remembered.iter().map(|(_, of)| of.len()).sum::<usize>(), 1);
    // Another cluster deleted one long ago.
    groups.follow("old", at(topic, -1, 1)).await.expect("followed");
    until(|| groups.offsets().newest("old", (topic, 0)).is_none()).await;
    assert_eq!(groups.offsets().deleted().len(), 1);
    log.delete_stream("topic").await.expect("there");
    until(|| groups.offsets().deleted().is_empty()).await;
    assert_eq!(groups.offsets().bytes(), 0);
}

fn told(offset: i64, committed_ms: i64) -> Vec<CopiedOffset> {
    vec![CopiedOffset {
        group: "g".to_owned(),
        shard: 0,
        offset,
        leader_epoch: -1,
        committed_ms,
        expires_ms: None,
        metadata: String::new(),
    }]
}

#[tokio::test]
async fn what_is_committed_after_a_deletion_of_a_clock_that_is_ahead_stays_when_that_is_told_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let (config, authorizer) = (KafkaConfig::default(), Arc::new(Everybody));
    let env = Env::real();
    let open = Broker::open(&env, config, log.clone(), "cluster".to_owned(), authorizer, None);
    let broker = open.await.expect("it opens");
    let groups = broker.groups.only().expect("one node is active");
    let there = || groups.offsets().get("g", (topic, 0));
    let now_ms = Env::real().wall_ms();
    let deleted_ms = now_ms + 600_000;
    groups.commit("g", at(topic, 5, now_ms)).await.expect("kept");
    broker.follow_offsets(topic, told(-1, deleted_ms)).await.expect("followed");
    assert_eq!(there(), None);
    for offset in 1..4 {
        groups.commit("g", at(topic, offset, now_ms + offset)).await.expect("kept");
        // By a node that was started again.
        broker.follow_offsets(topic, told(-1, deleted_ms)).await.expect("passed over");
        let kept = there().expect("it was committed since");
        assert!(kept.offset == offset && kept.committed_ms > deleted_ms, "{kept:?}");
    }

    // Of a clock that is further ahead an offset is taken as one of now, and a deletion is not.
    let far_ms = now_ms + 1_000_000_000;
    broker.follow_offsets(topic, told(-1, far_ms)).await.expect("left out");
    assert_eq!(there().map(|kept| kept.offset), Some(3));
    broker.follow_offsets(topic, told(9, far_ms)).await.expect("passed over");
    assert_eq!(there().map(|kept| kept.offset), Some(3), "what is there is later than now");
    log.close().await;
}

#[tokio::test]
async fn nobody_who_joins_while_a_deletion_is_followed_loses_the_offsets() {
    let (_dir, log, topic, groups) = begun(quick()).await;
    let now_ms = Env::real().wall_ms();
    groups.commit("g", at(topic, 5, now_ms - 1_000)).await.expect("kept");
    // The deletion is on its way to be durable when the member comes.
    let deletion = groups.follow("g", at(topic, -1, now_ms));
    let (followed, joined) = futures::join!(deletion, groups.join("g", member(60_000)));
    followed.expect("followed");
    assert_ne!(joined.error_code, 0, "it would find the offset, or none");
    assert_eq!((groups.names().len(), groups.offsets().has("g")), (0, false));
    let joined = groups.join("g", member(60_000)).await;
    assert_eq!(joined.error_code, 0);
    groups.leave("g", &joined.member_id, None).expect("it was in it");

    // One of two offsets: the group is there all the same, also for metadata.
    groups.commit("g", offsets(topic, 0..2, 7)).await.expect("kept");
    let later_ms = Env::real().wall_ms() + 1_000;
    groups.follow("g", at(topic, -1, later_ms)).await.expect("followed");
    assert_eq!(groups.offsets().of("g").len(), 1);
    let joined = groups.join("g", member(60_000)).await;
    assert_eq!(joined.error_code, 0);
    groups.leave("g", &joined.member_id, None).expect("it was in it");
    drop(groups);
    assert_eq!(open(&log, quick()).await.names().len(), 1);
}
