//! Scenarios with a restart in them.

use crate::errors::ErrorCode;
use crate::groups::consumer::tests::{SECOND, World, joining, matching, partitions, topic};
use crate::groups::consumer::{Beat, ConsumerGroup, LEAVING_FOR_NOW, Partitions};

/// Members `a` and `b`, which share a topic: `a` has its half in the first epoch still, if it `has_yet` to give up the
/// other one.
fn two(has_yet: bool) -> World {
    let mut world = World::new();
    world.join("a");
    world.join("b");
    world.has("a", 1, 0..6);
    if !has_yet {
        assert_eq!(world.has("a", 1, 0..3).epoch, 2);
        assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(3..6)));
    }
    world
}

#[test]
fn a_group_in_which_nothing_was_under_way_goes_on_in_its_epoch() {
    let mut world = two(false);
    world.restart();
    assert_eq!((world.group.state(), world.group.epoch), ("Stable", 2));
    for id in ["a", "b"] {
        assert_eq!(world.group.check_committer(id, 2), Ok(()));
        let told = world.same(id, 2).expect("known");
        assert_eq!((told.epoch, told.assignment), (2, None));
    }
    assert_eq!(world.join("c").epoch, 3);
}

#[test]
fn what_a_member_has_yet_to_give_up_is_still_its_own() {
    let mut world = two(true);
    world.restart();
    assert_eq!(world.group.state(), "Reconciling");
    assert_eq!(world.group.members["a"].has(), partitions(0..6));
    assert_eq!(world.same("b", 2).expect("known").assignment, None);
    assert_eq!(world.has("a", 1, 0..6).epoch, 1, "not yet");
    assert_eq!(world.has("a", 1, 0..3).epoch, 2);
    world.restart();
    let b = world.same("b", 2).expect("known");
    assert_eq!((b.epoch, b.assignment), (2, Some(partitions(3..6))));
    assert_eq!(world.group.state(), "Stable");
}

#[test]
fn the_time_in_which_a_member_is_to_give_up_begins_anew_as_its_session_does() {
    let mut world = two(true);
    world.pass(30 * SECOND);
    world.restart();
    for _ in 0..2 {
        world.pass(29 * SECOND);
        world.has("a", 1, 0..6);
        world.same("b", 2).expect("known");
    }
    world.pass(2 * SECOND);
    assert_eq!(world.same("a", 1).expect_err("out").0, ErrorCode::UnknownMemberId);
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(0..6)));
}

#[test]
fn a_member_that_did_not_hear_of_its_epoch_before_the_restart_goes_on() {
    let mut world = two(true);
    world.has("a", 1, 0..3);
    world.restart();
    let told = world.has("a", 1, 0..3);
    assert_eq!(told.epoch, 2);
}

#[test]
fn topics_that_came_grew_or_went_meanwhile_make_a_new_target() {
    let mut world = two(false);
    world.change(|topics| _ = topics.insert("t".to_owned(), (topic(1), 8)));
    world.restart();
    let told = world.same("a", 2).expect("known");
    assert_eq!((told.epoch, told.assignment), (3, Some(partitions([0, 1, 2, 6]))));
    world.change(|topics| _ = topics.remove("t"));
    world.restart();
    let told = world.same("b", 2).expect("known");
    assert_eq!(told.assignment, Some(partitions([])));
}

#[test]
fn a_static_member_that_is_away_comes_back_to_what_it_had() {
    let mut world = World::new();
    let named = |id: &str| Beat { instance: Some("name".to_owned()), ..joining(id) };
    world.beat(named("a")).expect("taken in");
    world.beat(Beat { epoch: LEAVING_FOR_NOW, ..named("a") }).expect("in");
    world.restart();
    assert_eq!(world.beat(named("b")).expect("back").assignment, Some(partitions(0..6)));
    assert_eq!(world.group.members.keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(world.group.epoch, 1, "nobody moved");
}

#[test]
fn what_a_pattern_had_found_is_its_own_until_it_looks_again_and_nobody_moves() {
    let mut world = World::new();
    world.hidden.insert("other", "knows");
    let knows = world.beat(matching("a", "knows", ".*")).expect("taken in");
    let all: Partitions = [(topic(1), (0..6).collect()), (topic(2), (0..2).collect())].into();
    assert_eq!(knows.assignment, Some(all.clone()));
    world.beat(matching("b", "does not", ".*")).expect("taken in");
    let epoch = world.group.epoch;
    world.restart();
    // A heartbeat of the one does not make the other one's pattern look.
    world.same("b", epoch).expect("known");
    assert_eq!(world.group.epoch, epoch);
    assert!(world.group.target["a"].contains_key(&topic(2)));
    let told =
        world.beat(Beat { principal: "knows".into(), owned: Some(all), ..kept("a", 1) }).expect("known");
    assert_eq!((told.epoch, world.group.epoch), (1, epoch), "it is to give up its share of the other one");
    assert!(!world.group.members["a"].revoking.is_empty());
}

fn kept(id: &str, epoch: i32) -> Beat {
    Beat { member_id: id.to_owned(), epoch, ..Beat::default() }
}

#[test]
fn what_two_records_have_is_one_member_s() {
    let world = two(false);
    let mut records: Vec<_> = ["a", "b"].map(|id| world.group.record_of(id).expect("in")).into();
    records[1].revoking = partitions(2..3);
    records[1].epoch = 7;
    let restored =
        ConsumerGroup::restore(world.now, world.group.limits.clone(), (2, 2), records, &world.catalog);
    assert_eq!(restored.members["a"].has(), partitions(0..3));
    assert_eq!(restored.members["b"].has(), partitions(3..6));
    assert_eq!(restored.target_epoch, 7, "epochs are no earlier than those of members");
    assert!(restored.epoch > 7, "a new target is made");
}
