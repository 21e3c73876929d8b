//! What groups commit in other clusters.

use super::*;

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
