//! When silent members are out, by a clock that the test moves.

use super::super::group::Group;
use super::*;
use crate::moved::{MOMENT, MovedClock, SECOND};
use crate::runtime::ConfigScope;

fn members(groups: &Coordinator) -> Vec<String> {
    match groups.group("g").expect("there").group {
        Group::Classic(group) => group.members.into_keys().collect(),
        Group::Consumer(group) => group.members.into_keys().collect(),
    }
}

#[tokio::test]
async fn who_waits_for_a_silent_member_of_the_classic_protocol_is_alone_when_its_session_ends_and_not_before()
{
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let (clock, env) = MovedClock::new();
    let groups = open_in(&env, &log, quick()).await;
    let joining = |id: &str| Join { new_id: id.to_owned(), ..member(10_000) };
    let first = groups.join("g", joining("silent")).await;
    assert_eq!((first.error_code, first.generation_id), (0, 1));
    let assigned = Sync {
        member_id: "silent".to_owned(),
        generation: 1,
        assignments: vec![("silent".to_owned(), "everything".into())],
        ..Sync::default()
    };
    clock.pass(3 * SECOND).await;
    assert_eq!(groups.sync("g", assigned).await.assignment, "everything");
    // Its last word.
    clock.pass(2 * SECOND).await;
    assert_eq!(groups.heartbeat("g", "silent", None, 1), Ok(()));
    clock.pass(SECOND).await;
    let mut next = std::pin::pin!(groups.join("g", Join { session_ms: 60_000, ..joining("next") }));
    assert!(futures::poll!(&mut next).is_pending());
    clock.pass(9 * SECOND - MOMENT).await;
    assert!(futures::poll!(&mut next).is_pending(), "it has a moment left");
    assert_eq!(members(&groups), ["next", "silent"]);
    clock.pass(MOMENT).await;
    let futures::task::Poll::Ready(joined) = futures::poll!(&mut next) else { panic!("its session is over") };
    assert_eq!((joined.error_code, joined.generation_id, joined.leader.as_str()), (0, 2, "next"));
    assert_eq!(members(&groups), ["next"]);
    assert_eq!(groups.heartbeat("g", "silent", None, 1), Err(ErrorCode::UnknownMemberId));
    let assigned = Sync {
        member_id: "next".to_owned(),
        generation: 2,
        assignments: vec![("next".to_owned(), "everything".into())],
        ..Sync::default()
    };
    assert_eq!(groups.sync("g", assigned).await.assignment, "everything");
}

#[tokio::test]
async fn after_a_restart_a_member_of_kip_848_has_a_whole_session_to_come_back_and_not_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    stream(&log, "topic").await;
    let (clock, env) = MovedClock::new();
    let config = GroupsConfig { consumer_session_timeout_ms: 45_000, ..quick() };
    let groups = open_in(&env, &log, config.clone()).await;
    groups.beat("g", beat("silent"), |_| true).await.expect("taken in");
    clock.pass(44 * SECOND).await;
    drop(groups);
    let groups = open_in(&env, &log, config).await;
    clock.pass(45 * SECOND - MOMENT).await;
    assert_eq!(members(&groups), ["silent"]);
    clock.pass(MOMENT).await;
    assert_eq!(members(&groups), [""; 0]);
    let late = groups.beat("g", Beat { epoch: 1, ..beat("silent") }, |_| true).await;
    assert_eq!(late.expect_err("out").0, ErrorCode::UnknownMemberId);
}

#[tokio::test]
async fn what_a_silent_member_of_kip_848_had_is_the_other_one_s_when_its_session_ends_and_not_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    let topic = stream(&log, "topic").await;
    let (clock, env) = MovedClock::new();
    let config = GroupsConfig { consumer_session_timeout_ms: 45_000, ..quick() };
    let groups = open_in(&env, &log, config).await;
    let says = async |id: &str, epoch: i32, owned: Option<std::ops::Range<u32>>| {
        let owned = owned.map(|numbers| Partitions::from([(topic, numbers.collect())]));
        let beat = Beat { member_id: id.to_owned(), epoch, owned, ..Beat::default() };
        let (told, _) = groups.beat("g", beat, |_| true).await?;
        let count = told.assignment.map(|given| given.values().map(|numbers| numbers.len()).sum::<usize>());
        Ok::<_, (ErrorCode, String)>((told.epoch, count))
    };
    groups.beat("g", beat("silent"), |_| true).await.expect("taken in");
    groups.beat("g", beat("stays"), |_| true).await.expect("taken in");
    assert_eq!(says("silent", 1, Some(0..100)).await, Ok((1, Some(50))));
    // Its last word.
    assert_eq!(says("silent", 1, Some(0..50)).await, Ok((2, None)));
    assert_eq!(says("stays", 2, None).await, Ok((2, Some(50))));
    clock.pass(44 * SECOND).await;
    assert_eq!(says("stays", 2, None).await, Ok((2, None)));
    clock.pass(SECOND - MOMENT).await;
    assert_eq!(says("stays", 2, None).await, Ok((2, None)), "the other one has a moment left");
    assert_eq!(members(&groups), ["silent", "stays"]);
    clock.pass(MOMENT).await;
    assert_eq!(members(&groups), ["stays"]);
    assert_eq!(says("stays", 2, None).await, Ok((3, Some(100))));
    assert_eq!(says("silent", 2, None).await.expect_err("out").0, ErrorCode::UnknownMemberId);
}

#[tokio::test]
async fn a_session_timeout_that_is_set_holds_from_a_member_s_next_heartbeat_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = log(dir.path()).await;
    stream(&log, "topic").await;
    let (clock, env) = MovedClock::new();
    let configs = configs(&env, &log, GroupsConfig { consumer_session_timeout_ms: 45_000, ..quick() }).await;
    let groups = open_with(&env, &log, Arc::clone(&configs)).await;
    groups.beat("g", beat("a"), |_| true).await.expect("taken in");
    let shorter = |_: &_| Ok([("group.consumer.session.timeout.ms".to_owned(), "10000".to_owned())].into());
    configs.change(ConfigScope::Broker, shorter, false).await.expect("set");
    clock.pass(45 * SECOND - MOMENT).await;
    assert_eq!(members(&groups), ["a"]);
    let last = groups.beat("g", Beat { epoch: 1, ..beat("a") }, |_| true).await;
    last.expect("it is in");
    clock.pass(10 * SECOND - MOMENT).await;
    assert_eq!(members(&groups), ["a"]);
    clock.pass(MOMENT).await;
    assert_eq!(members(&groups), [""; 0]);
}
