//! Scenarios.

use super::*;
use crate::groups::members::{KeptMembers, MemberChanges};

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn topic(number: u128) -> StreamId {
    StreamId(uuid::Uuid::from_u128(number))
}

pub(super) fn partitions(numbers: impl IntoIterator<Item = u32>) -> Partitions {
    let numbers: BTreeSet<u32> = numbers.into_iter().collect();
    if numbers.is_empty() { Partitions::new() } else { [(topic(1), numbers)].into() }
}

pub(super) struct World {
    pub(super) group: ConsumerGroup,
    pub(super) now: Instant,
    pub(super) catalog: Catalog,
    /// Topics that not everybody may know of, and who may.
    pub(super) hidden: BTreeMap<&'static str, &'static str>,
}

impl World {
    pub(super) fn new() -> Self {
        let limits = Limits {
            session: 45 * SECOND,
            heartbeat: 5 * SECOND,
            classic_session_ms: 1..=60_000,
            members_max: 4,
            bytes_max: 1 << 20,
        };
        Self {
            group: ConsumerGroup::new(Arc::new(limits), 0),
            now: Instant::from_ns(0),
            catalog: Catalog::default()
                .next([("t".to_owned(), (topic(1), 6)), ("other".to_owned(), (topic(2), 2))].into()),
            hidden: BTreeMap::new(),
        }
    }

    pub(super) fn beat(&mut self, mut beat: Beat) -> Result<Told, MemberRefused> {
        let (known, principal) = (self.group.pattern_of(&beat), Arc::clone(&beat.principal));
        let may_know = |name: &str| self.hidden.get(name).is_none_or(|who| **who == *principal);
        beat.look_up(known, self.now, &self.catalog, may_know);
        self.group.heartbeat(self.now, beat, &self.catalog)
    }

    pub(super) fn join(&mut self, id: &str) -> Told {
        self.beat(joining(id)).expect("taken in")
    }

    /// Topics come, change or go.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Topics)) {
        let mut topics = self.catalog.topics.clone();
        change(&mut topics);
        self.catalog = self.catalog.next(topics);
    }

    /// A member's usual heartbeat: that it has these partitions.
    pub(super) fn has(&mut self, id: &str, epoch: i32, numbers: impl IntoIterator<Item = u32>) -> Told {
        let owned = Some(partitions(numbers));
        self.beat(Beat { member_id: id.to_owned(), epoch, owned, ..Beat::default() }).expect("known")
    }

    /// One in which nothing has changed.
    pub(super) fn same(&mut self, id: &str, epoch: i32) -> Result<Told, MemberRefused> {
        self.beat(Beat { member_id: id.to_owned(), epoch, ..Beat::default() })
    }

    /// The node is killed and started again.
    pub(super) fn restart(&mut self) {
        let (mut kept, mut changes) = (KeptMembers::default(), MemberChanges::new());
        for id in self.group.members.keys() {
            kept.keep(id, self.group.record_of(id).as_ref(), &mut changes);
        }
        let disk = changes.into_iter().filter_map(|(part, value)| Some((part, value?))).collect();
        let (_, records) = KeptMembers::restore(&disk, &mut MemberChanges::new());
        let (limits, epochs) = (Arc::clone(&self.group.limits), (self.group.epoch, self.group.target_epoch));
        self.group = ConsumerGroup::restore(self.now, limits, epochs, records, &self.catalog);
    }

    pub(super) fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.group.tick(self.now);
    }
}

pub(super) fn joining(id: &str) -> Beat {
    Beat {
        member_id: id.to_owned(),
        epoch: JOINING,
        rebalance: Some(60 * SECOND),
        topics: Some(vec!["t".to_owned()]),
        owned: Some(Partitions::new()),
        ..Beat::default()
    }
}

fn error(result: Result<Told, MemberRefused>) -> ErrorCode {
    result.expect_err("refused").0
}

#[test]
fn the_first_member_gets_everything_at_once() {
    let mut world = World::new();
    let told = world.join("a");
    assert_eq!((told.epoch, told.assignment), (1, Some(partitions(0..6))));
    assert_eq!(world.group.state(), "Stable");
    assert_eq!(world.same("a", 1).expect("known").assignment, None, "nothing new");
    assert_eq!(world.group.check_committer("a", 1), Ok(()));
    assert_eq!(world.group.check_committer("a", 0), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(world.group.check_committer("b", 1), Err(ErrorCode::UnknownMemberId));
}

#[test]
fn a_partition_goes_to_the_next_one_only_when_it_was_given_up() {
    let mut world = World::new();
    world.join("a");
    let b = world.join("b");
    assert_eq!((b.epoch, b.assignment), (2, Some(Partitions::new())), "nothing is free yet");
    assert_eq!(world.group.state(), "Reconciling");
    let a = world.same("a", 1).expect("known");
    assert_eq!(
        (a.epoch, a.assignment),
        (1, Some(partitions(0..3))),
        "in its old epoch, until it has done it"
    );
    assert_eq!(world.group.members["a"].has(), partitions(0..6), "what it was heard to have");
    assert_eq!(world.same("b", 2).expect("known").assignment, None);
    assert_eq!(world.has("a", 1, 0..6).epoch, 1, "not yet");
    assert_eq!(world.has("a", 1, 0..3).epoch, 2);
    let b = world.same("b", 2).expect("known");
    assert_eq!((b.epoch, b.assignment), (2, Some(partitions(3..6))));
    assert_eq!(world.group.state(), "Stable");
}

#[test]
fn who_leaves_or_falls_silent_makes_room() {
    let mut world = World::new();
    world.join("a");
    world.join("b");
    world.has("a", 1, 0..3);
    world.has("a", 1, 0..3);
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(3..6)));
    world.pass(30 * SECOND);
    world.same("a", 2).expect("known");
    world.pass(20 * SECOND);
    assert_eq!(error(world.same("b", 2)), ErrorCode::UnknownMemberId);
    let a = world.same("a", 2).expect("known");
    assert_eq!((a.epoch, a.assignment), (3, Some(partitions(0..6))));
    let left = world.beat(Beat { member_id: "a".to_owned(), epoch: LEAVING, ..Beat::default() });
    assert_eq!(left.expect("known").epoch, LEAVING);
    assert_eq!((world.group.state(), world.group.epoch), ("Empty", 4));
    assert_eq!(world.group.check_committer("", -1), Ok(()));
}

#[test]
fn a_member_keeps_its_partitions_to_the_last_moment_of_its_session_and_then_they_are_the_others() {
    const MOMENT: Duration = Duration::from_nanos(1);
    let mut world = World::new();
    world.join("a");
    world.join("b");
    world.has("a", 1, 0..3);
    world.has("a", 1, 0..3);
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(3..6)));
    // Both were heard of now; a will be again.
    let end = world.now + 45 * SECOND;
    world.pass(44 * SECOND);
    assert_eq!(world.same("a", 2).expect("known").assignment, None);
    world.pass(SECOND - MOMENT);
    assert_eq!(world.group.next_deadline(), Some(end), "when somebody has to look");
    assert_eq!(world.group.members["b"].assigned, partitions(3..6));
    assert_eq!(world.same("a", 2).expect("known").assignment, None);
    // A word at that moment is not too late.
    let before = world.group.clone();
    assert_eq!(world.same("b", 2).expect("known").epoch, 2);
    world.pass(44 * SECOND);
    assert!(world.group.members.contains_key("b"));
    (world.group, world.now) = (before, end - MOMENT);

    world.pass(MOMENT);
    assert_eq!(world.now, end);
    assert!(!world.group.members.contains_key("b"));
    let a = world.same("a", 2).expect("known");
    assert_eq!((a.epoch, a.assignment), (3, Some(partitions(0..6))));
    assert_eq!(error(world.same("b", 2)), ErrorCode::UnknownMemberId);
}

#[test]
fn who_does_not_give_up_in_time_is_out() {
    let mut world = World::new();
    world.join("a");
    world.join("b");
    world.same("a", 1).expect("known");
    for _ in 0..7 {
        world.pass(9 * SECOND);
        let _ = world.same("a", 1);
        world.same("b", 2).expect("known");
    }
    assert_eq!(error(world.same("a", 1)), ErrorCode::UnknownMemberId);
    let b = world.same("b", world.group.members["b"].epoch).expect("known");
    assert_eq!(world.group.members["b"].assigned, partitions(0..6), "{b:?}");
}

#[test]
fn who_joins_again_is_not_held_to_what_it_had_to_give_up_before() {
    let named = |id: &str| Beat { instance: Some("name".to_owned()), ..joining(id) };
    let leave = Beat { epoch: LEAVING_FOR_NOW, ..named("a") };
    for (again, leave) in [("a", None), ("a2", Some(leave))] {
        let mut world = World::new();
        world.beat(named("a")).expect("taken in");
        world.join("b");
        world.same("a", 1).expect("known");
        assert_eq!(world.group.members["a"].revoking, partitions(3..6));
        leave.map(|leave| world.beat(leave).expect("known"));
        let told = world.beat(named(again)).expect("taken in");
        assert_eq!(told.assignment, Some(partitions(0..3)));
        for _ in 0..7 {
            world.pass(9 * SECOND);
            world.same(again, told.epoch).expect("it lives, and has nothing to give up");
            world.same("b", 2).expect("known");
        }
    }
}

#[test]
fn epochs_that_are_not_the_member_s_are_fenced_but_for_a_lost_answer() {
    let mut world = World::new();
    world.join("a");
    assert_eq!(error(world.same("a", 2)), ErrorCode::FencedMemberEpoch);
    world.join("b");
    world.has("a", 1, 0..3);
    world.has("a", 1, 0..3);
    // It did not hear that it is in epoch 2.
    let again = world.has("a", 1, 0..3);
    assert_eq!(again.epoch, 2);
    let owned = Some(partitions(0..6));
    let zombie = Beat { member_id: "a".to_owned(), epoch: 1, owned, ..Beat::default() };
    assert_eq!(error(world.beat(zombie)), ErrorCode::FencedMemberEpoch);
    assert_eq!(error(world.same("c", 1)), ErrorCode::UnknownMemberId);
    // Whoever joins again begins anew.
    let told = world.join("a");
    assert_eq!((told.epoch, told.assignment), (2, Some(partitions(0..3))));
}

#[test]
fn topics_that_come_grow_and_go_change_what_is_assigned() {
    let mut world = World::new();
    world.join("a");
    world.change(|topics| _ = topics.insert("t".to_owned(), (topic(1), 8)));
    let grown = world.same("a", 1).expect("known");
    assert_eq!((grown.epoch, grown.assignment), (2, Some(partitions(0..8))));
    let both = Beat { topics: None, pattern: Some("t|oth.*".to_owned()), ..joining("b") };
    world.beat(both).expect("taken in");
    assert_eq!(world.group.target["b"][&topic(2)].len(), 2, "only it reads that one");
    world.change(|topics| _ = topics.remove("other"));
    let less = world.same("b", 3).expect("known");
    assert!(!world.group.target["b"].contains_key(&topic(2)), "{less:?}");
    for pattern in ["(", "a)|(b", "t)"] {
        let bad = Beat { topics: None, pattern: Some(pattern.to_owned()), ..joining("c") };
        assert_eq!(error(world.beat(bad)), ErrorCode::InvalidRegularExpression);
    }
    let bad = Beat { assignor: Some("best".to_owned()), ..joining("c") };
    assert_eq!(error(world.beat(bad)), ErrorCode::UnsupportedAssignor);
    assert!(!world.group.members.contains_key("c"));
    let range = Beat { assignor: Some("range".to_owned()), ..joining("c") };
    world.beat(range).expect("taken in");
    assert_eq!(world.group.assignor, Assignor::Range);
}

#[test]
fn topics_are_looked_at_again_only_when_they_or_what_is_wanted_have_changed() {
    let mut world = World::new();
    world.join("a");
    let known = world.catalog.clone();
    // Whatever is in it, it says that it is the one that was looked at.
    world.catalog.topics.remove("t");
    assert_eq!(world.same("a", 1).expect("known").epoch, 1);
    world.catalog = known.next(world.catalog.topics.clone());
    assert_eq!(
        world.same("a", 1).expect("known").assignment,
        Some(Partitions::new()),
        "it has to give all up"
    );
    world.catalog = world.catalog.next(known.topics.clone());
    let before = world.catalog.version;
    world.catalog = world.catalog.next(known.topics.clone());
    assert_eq!(world.catalog.version, before, "the same topics");
    let other = Beat { topics: Some(vec!["other".to_owned()]), ..joining("a") };
    world.beat(other).expect("taken in");
    assert!(world.group.target["a"].contains_key(&topic(2)));
}

#[test]
fn topics_of_before_do_not_undo_what_newer_ones_brought() {
    let mut world = World::new();
    world.join("a");
    let before = world.catalog.clone();
    world.change(|topics| _ = topics.insert("t".to_owned(), (topic(1), 8)));
    assert_eq!(world.same("a", 1).expect("known").epoch, 2);
    world.catalog = before;
    assert_eq!(world.same("a", 2).expect("known").epoch, 2);
    assert_eq!(world.group.target["a"], partitions(0..8));
}

#[test]
fn a_static_member_that_is_back_in_time_has_what_it_had_and_nobody_moves() {
    let mut world = World::new();
    let named = |id: &str| Beat { instance: Some("name".to_owned()), ..joining(id) };
    assert_eq!(world.beat(named("a1")).expect("taken in").epoch, 1);
    assert_eq!(error(world.beat(named("a2"))), ErrorCode::UnreleasedInstanceId);
    let leave = |id: &str, epoch| Beat {
        member_id: id.to_owned(),
        epoch,
        instance: Some("name".to_owned()),
        ..Beat::default()
    };
    assert_eq!(world.group.state(), "Stable");
    assert_eq!(world.beat(leave("a1", LEAVING_FOR_NOW)).expect("known").epoch, LEAVING_FOR_NOW);
    assert_eq!(world.group.state(), "Reconciling", "as Kafka calls it");
    let other = world.join("b");
    assert_eq!(other.assignment, Some(Partitions::new()), "what it had is kept for it");
    let back = world.beat(named("a2")).expect("taken in");
    assert_eq!((back.epoch, back.assignment), (2, Some(partitions(0..3))));
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(3..6)));
    assert_eq!(error(world.beat(leave("a1", 1))), ErrorCode::FencedInstanceId);
    world.beat(leave("a2", LEAVING)).expect("known");
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(0..6)));
}

#[test]
fn what_a_static_member_was_to_give_up_is_free_when_it_leaves_for_now() {
    let mut world = World::new();
    let named = Beat { instance: Some("name".to_owned()), ..joining("a") };
    world.beat(named.clone()).expect("taken in");
    world.join("b");
    world.same("a", 1).expect("known");
    assert_eq!(world.same("b", 2).expect("known").assignment, None, "it is read by the other one");
    world.beat(Beat { epoch: LEAVING_FOR_NOW, ..named }).expect("known");
    assert_eq!(world.same("b", 2).expect("known").assignment, Some(partitions(3..6)));
}

pub(super) fn matching(id: &str, principal: &str, text: &str) -> Beat {
    Beat { topics: None, pattern: Some(text.to_owned()), principal: principal.into(), ..joining(id) }
}

#[test]
fn of_what_a_pattern_matches_a_member_is_told_what_its_principal_may_know_of() {
    let mut world = World::new();
    world.hidden.insert("other", "alice");
    let told = world.beat(matching("b", "bob", ".*")).expect("taken in");
    assert_eq!(told.assignment, Some(partitions(0..6)));
    let told = world.beat(matching("a", "alice", ".*")).expect("taken in");
    assert_eq!(told.assignment, Some([(topic(2), [0, 1].into())].into()), "nobody else may read it");
    assert!(!world.group.target["b"].contains_key(&topic(2)));
    // Whoever may know of it changes, and the topics don't: that is seen some time later.
    world.hidden.insert("other", "bob");
    let says = |world: &mut World, id: &str, principal: &str| {
        let (member_id, epoch) = (id.to_owned(), world.group.members[id].epoch);
        let beat = Beat { member_id, epoch, principal: principal.into(), ..Beat::default() };
        world.beat(beat).expect("known")
    };
    world.now = world.now + 599 * SECOND;
    says(&mut world, "a", "alice");
    assert!(world.group.target["a"].contains_key(&topic(2)), "not yet");
    world.now = world.now + SECOND;
    says(&mut world, "b", "bob");
    says(&mut world, "a", "alice");
    assert!(!world.group.target["a"].contains_key(&topic(2)));
    assert!(world.group.target["b"].contains_key(&topic(2)));
}

#[test]
fn a_topic_that_matches_is_found_with_a_heartbeat_of_who_wants_it_and_nobody_else_looks_for_it() {
    let mut world = World::new();
    world.beat(matching("a", "", "new.*")).expect("taken in");
    world.join("b");
    world.change(|topics| _ = topics.insert("newer".to_owned(), (topic(3), 2)));
    assert_eq!(world.same("b", 2).expect("known").epoch, 2, "it would have to match others' patterns");
    let told = world.same("a", 1).expect("known");
    assert_eq!((told.epoch, told.assignment), (3, Some([(topic(3), [0, 1].into())].into())));
    world.change(|topics| _ = topics.remove("newer"));
    world.same("b", 2).expect("known");
    assert!(world.group.target["a"].is_empty(), "what is gone everybody sees");
}

#[test]
fn a_pattern_that_several_members_have_is_counted_once() {
    let mut world = World::new();
    let with = |id: &str, text: &str| Beat { pattern: Some(text.to_owned()), ..joining(id) };
    world.beat(with("a", "t|oth.*")).expect("taken in");
    let one = world.group.compiled_bytes;
    assert!(one > 0);
    world.beat(with("b", "t|oth.*")).expect("taken in");
    assert_eq!(world.group.compiled_bytes, one);
    world.beat(with("c", "t.*")).expect("taken in");
    assert!(world.group.compiled_bytes > one);
    for id in ["a", "b", "c"] {
        world.beat(Beat { epoch: LEAVING, ..joining(id) }).expect("known");
    }
    assert_eq!(world.group.bytes(), 0);
}

#[test]
fn members_and_what_they_say_are_bounded() {
    let mut world = World::new();
    for id in ["a", "b", "c", "d"] {
        world.join(id);
    }
    assert_eq!(error(world.beat(joining("e"))), ErrorCode::GroupMaxSizeReached);
    let much = Beat { topics: Some(vec!["x".repeat(1 << 20)]), ..joining("a") };
    assert_eq!(error(world.beat(much)), ErrorCode::GroupMaxSizeReached);
    let unbounded = Beat { pattern: Some("x".repeat(4_097)), ..joining("a") };
    assert_eq!(unbounded.check().expect_err("refused").0, ErrorCode::InvalidRegularExpression);
    for bad in [
        Beat { rack: Some("x".repeat(3_000)), ..joining("a") },
        Beat { instance: Some("x".repeat(3_000)), ..joining("a") },
        joining(&"x".repeat(3_000)),
        Beat { client_id: "x".repeat(3_000).into(), ..joining("a") },
    ] {
        assert_eq!(bad.check().expect_err("refused").0, ErrorCode::InvalidRequest);
    }
    let greedy = Beat { pattern: Some("(x{1000}){1000}".to_owned()), ..joining("a") };
    assert_eq!(error(world.beat(greedy)), ErrorCode::InvalidRegularExpression);
    assert_eq!(world.group.delete(), Err(ErrorCode::NonEmptyGroup));
}
