//! Scenarios of groups that move from one protocol to the other.

use tailwater_kafka_wire::consumer::Subscription;

use super::super::tests::{SECOND, World, partitions};
use super::super::{Beat, LEAVING};
use super::*;

fn owned(numbers: impl IntoIterator<Item = i32>) -> Vec<Assigned> {
    vec![Assigned { topic: "t".to_owned(), partitions: numbers.into_iter().collect() }]
}

fn protocols(has: Vec<Assigned>) -> Vec<(String, Bytes)> {
    let said = Subscription { topics: vec!["t".to_owned()], user_data: None, owned_partitions: has };
    ["range", "roundrobin"].map(|name| (name.to_owned(), encode(&said, 1))).into()
}

/// A member of that id joins, and says that it has these partitions.
fn joining(id: &str, has: impl IntoIterator<Item = i32>) -> Join {
    Join {
        member_id: id.to_owned(),
        new_id: "new".to_owned(),
        instance: None,
        client_id: "client".into(),
        client_host: "/host".to_owned(),
        session_ms: 10_000,
        rebalance_ms: 30_000,
        protocol_type: PROTOCOL_TYPE.to_owned(),
        protocols: protocols(owned(has)),
        id_required: true,
        skips_assignment: true,
    }
}

fn classic_limits() -> Arc<classic::Limits> {
    let limits =
        classic::Limits { session_ms: 1..=60_000, initial_delay: SECOND, members_max: 4, bytes_max: 10_000 };
    Arc::new(limits)
}

/// A classic group in its fifth generation, with these members and their partitions.
fn classic_group(members: &[(&str, std::ops::Range<i32>)]) -> ClassicGroup {
    let consumer = |(id, has): &(&str, std::ops::Range<i32>)| Consumer {
        id: (*id).to_owned(),
        instance: Some((*id).to_uppercase()),
        client_id: "client".into(),
        client_host: "/host".to_owned(),
        session: 10 * SECOND,
        rebalance: 30 * SECOND,
        protocols: protocols(Vec::new()),
        topics: vec!["t".to_owned()],
        assigned: owned(has.clone()),
    };
    let consumers = members.iter().map(consumer).collect();
    ClassicGroup::of_consumers(Instant::from_ns(0), classic_limits(), 5, consumers, &mut Vec::new())
}

/// That group as one of KIP-848.
fn moved(members: &[(&str, std::ops::Range<i32>)]) -> World {
    let mut world = World::new();
    let limits = Arc::clone(&world.group.limits);
    let moved = ConsumerGroup::of_classic(world.now, limits, &classic_group(members), &world.catalog);
    world.group = moved.expect("consumers");
    world
}

impl World {
    fn classic_join(&mut self, join: Join) -> (i16, i32) {
        let answer = self.group.join(self.now, join, &self.catalog);
        (answer.error_code, answer.generation_id)
    }

    fn classic_sync(&mut self, id: &str, generation: i32) -> Partitions {
        let (member_id, assignments) = (id.to_owned(), Vec::new());
        let protocol = Some("range".to_owned());
        let sync = Sync { member_id, generation, protocol, assignments, ..Sync::default() };
        let answer = self.group.sync(self.now, &sync, &self.catalog);
        assert_eq!(answer.error_code, 0);
        by_id(&tailwater_kafka_wire::consumer::assigned(answer.assignment).expect("one"), &self.catalog)
    }

    fn classic_beat(&mut self, id: &str, generation: i32) -> Result<(), ErrorCode> {
        self.group.classic_heartbeat(self.now, id, None, generation, &self.catalog)
    }
}

#[test]
fn members_of_both_protocols_share_and_nothing_is_given_before_it_was_given_up() {
    let mut world = moved(&[("a", 0..3), ("b", 3..6)]);
    let told = world.join("c");
    assert_eq!((told.epoch, told.assignment), (6, Some(Partitions::new())));
    assert_eq!(world.group.check_committer("a", 5), Ok(()), "it commits before it joins again");

    // An eager one has nothing by the time at which it joins.
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.classic_join(joining("a", [])), (0, 6));
    assert_eq!(world.classic_sync("a", 6), partitions(0..2));
    assert_eq!(world.classic_beat("a", 6), Ok(()));
    assert_eq!(world.group.check_committer("a", 5), Err(ErrorCode::IllegalGeneration));
    assert_eq!(world.has("c", 6, []).assignment, Some(partitions(2..3)));

    // A cooperative one keeps what it reads, and joins once more when it has given up what it has to.
    assert_eq!(world.classic_beat("b", 5), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.classic_join(joining("b", 3..6)), (0, 5));
    assert_eq!(world.classic_sync("b", 5), partitions(3..5));
    assert_eq!(world.classic_beat("b", 5), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.has("c", 6, [2]).assignment, None, "it was not heard to have given it up");
    assert_eq!(world.classic_join(joining("b", 3..5)), (0, 6));
    assert_eq!(world.classic_sync("b", 6), partitions(3..5));
    assert_eq!(world.has("c", 6, [2]).assignment, Some(partitions([2, 5])));
    assert_eq!(world.group.state(), "Stable");
    assert_eq!([world.classic_beat("a", 6), world.classic_beat("b", 6)], [Ok(()), Ok(())]);
    assert_eq!(world.classic_beat("c", 6), Err(ErrorCode::UnknownMemberId), "that is not what it speaks");
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::IllegalGeneration));

    // One that gets more joins again for it.
    world.group.classic_leave("b", None).expect("it is in");
    assert_eq!(world.classic_beat("a", 6), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.classic_join(joining("a", 0..2)), (0, 7));
    assert_eq!(world.classic_sync("a", 7).values().map(|numbers| numbers.len()).sum::<usize>(), 3);
}

#[test]
fn a_member_is_out_that_is_silent_or_does_not_join_again() {
    let mut world = moved(&[("a", 0..3), ("b", 3..6)]);
    world.join("c");
    world.pass(9 * SECOND);
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::RebalanceInProgress));
    world.pass(SECOND);
    assert_eq!(world.classic_beat("b", 5), Err(ErrorCode::UnknownMemberId), "it was silent");
    for _ in 0..3 {
        assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::RebalanceInProgress));
        world.pass(9 * SECOND);
    }
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::RebalanceInProgress));
    world.pass(2 * SECOND);
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::UnknownMemberId), "it did not join");
    assert_eq!(world.has("c", 6, []).assignment, Some(partitions(0..6)));
}

#[test]
fn a_static_member_comes_back_with_the_other_protocol_to_what_it_had() {
    let mut world = moved(&[("a", 0..3), ("b", 3..6)]);
    let instance = Some("A".to_owned());
    let told = world.beat(Beat { instance: instance.clone(), ..super::super::tests::joining("a2") });
    assert_eq!(told.expect("it takes its place").assignment, Some(partitions(0..3)));
    assert_eq!(world.classic_beat("a", 5), Err(ErrorCode::UnknownMemberId));
    let old = world.group.classic_heartbeat(world.now, "a", Some("A"), 5, &world.catalog);
    assert_eq!(old, Err(ErrorCode::FencedInstanceId));
    // And back again.
    let back = Join { instance, ..joining("", []) };
    let (error, generation) = world.classic_join(back);
    assert_eq!((error, world.classic_sync("new", generation)), (0, partitions(0..3)));
    assert!(world.group.is_classic());
    world.group.classic_leave("", Some("A")).expect("by its name");
    assert_eq!(world.group.members.keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn who_does_not_fit_in_is_refused() {
    let mut world = moved(&[("a", 0..3)]);
    let code = |error: ErrorCode| (error.number(), -1);
    let (asked, refused) = (joining("", []), ErrorCode::MemberIdRequired);
    assert_eq!(world.classic_join(asked.clone()), code(refused));
    let other = Join { protocol_type: "connect".to_owned(), ..asked.clone() };
    assert_eq!(world.classic_join(other), code(ErrorCode::InconsistentGroupProtocol));
    let other = Join { protocols: vec![("other".to_owned(), asked.protocols[0].1.clone())], ..asked.clone() };
    assert_eq!(world.classic_join(other), code(ErrorCode::InconsistentGroupProtocol));
    let garbage = Join { protocols: vec![("range".to_owned(), Bytes::new())], ..asked.clone() };
    assert_eq!(world.classic_join(garbage), code(ErrorCode::InconsistentGroupProtocol));
    let hasty = Join { session_ms: 0, ..asked.clone() };
    assert_eq!(world.classic_join(hasty), code(ErrorCode::InvalidSessionTimeout));
    let unknown = Join { instance: Some("X".to_owned()), ..joining("x", []) };
    assert_eq!(world.classic_join(unknown), code(ErrorCode::UnknownMemberId));
    let fenced = Join { instance: Some("A".to_owned()), ..joining("x", []) };
    assert_eq!(world.classic_join(fenced), code(ErrorCode::FencedInstanceId));
    let large = Join { protocols: vec![("range".to_owned(), vec![0; 1 << 20].into()); 2], ..asked };
    let large = Join { protocols: [protocols(Vec::new()), large.protocols].concat(), ..large };
    assert_eq!(
        world.classic_join(Join { id_required: false, ..large }),
        code(ErrorCode::GroupMaxSizeReached)
    );
    for id in ["b", "c", "d"] {
        assert_eq!(world.classic_join(joining(id, [])).0, 0, "it need not be known");
    }
    assert_eq!(world.classic_join(joining("e", [])), code(ErrorCode::GroupMaxSizeReached));
}

#[test]
fn what_a_member_has_yet_to_give_up_is_nobody_elses_however_the_group_moves() {
    let mut world = moved(&[("a", 0..6)]);
    world.join("c");
    assert_eq!(world.classic_join(joining("a", 0..6)), (0, 5), "it is told to give up half");
    world.beat(Beat { member_id: "c".to_owned(), epoch: LEAVING, ..Beat::default() }).expect("it leaves");
    // A classic group now, whose only member reads all six until it joins again; a member of KIP-848 comes before that.
    let group = world.group.to_classic(world.now, classic_limits(), &world.catalog, &mut Vec::new());
    let again = ConsumerGroup::of_classic(world.now, Arc::clone(&world.group.limits), &group, &world.catalog);
    world.group = again.expect("consumers");
    assert_eq!(world.join("d").assignment, Some(Partitions::new()));
    let (error, generation) = world.classic_join(joining("a", 0..6));
    assert_eq!((error, world.classic_sync("a", generation)), (0, partitions(0..3)));
    assert_eq!(world.has("d", 7, []).assignment, None, "it was not heard to have given it up");
}

#[test]
fn what_a_member_says_that_it_has_counts_beside_what_it_was_assigned() {
    let world = World::new();
    let mut group = ClassicGroup::new(classic_limits(), 0, None);
    let mut out = Vec::new();
    let join = Join { instance: Some("A".to_owned()), id_required: false, ..joining("", 2..5) };
    group.join(world.now, join, classic::Ticket(1), &mut out);
    let has = group.consumers().expect("consumers")[0].assigned.clone();
    assert_eq!(by_id(&has, &world.catalog), partitions(2..5));
}

#[test]
fn a_member_that_has_not_heard_of_its_id_is_left_out_as_it_comes_with_another_one() {
    let world = World::new();
    let mut group = ClassicGroup::new(classic_limits(), 0, None);
    let join = Join { id_required: false, ..joining("", []) };
    group.join(world.now, join, classic::Ticket(1), &mut Vec::new());
    assert_eq!(group.members.len(), 1);
    assert_eq!(group.consumers().expect("consumers").len(), 0);
}

#[test]
fn a_sync_with_the_protocol_that_the_classic_group_had_agreed_on_is_told_to_join_again() {
    let mut world = moved(&[("a", 0..3)]);
    let sync = Sync {
        member_id: "a".to_owned(),
        generation: 5,
        protocol: Some("roundrobin".to_owned()),
        ..Sync::default()
    };
    let answer = world.group.sync(world.now, &sync, &world.catalog);
    assert_eq!(answer.error_code, ErrorCode::InconsistentGroupProtocol.number(), "nobody else is there");
    world.join("c");
    let answer = world.group.sync(world.now, &sync, &world.catalog);
    assert_eq!(answer.error_code, ErrorCode::RebalanceInProgress.number());
}

#[test]
fn only_a_group_of_consumers_moves() {
    let world = World::new();
    let group = |protocol_type: &str| {
        let mut group = ClassicGroup::new(classic_limits(), 0, None);
        let join = Join { protocol_type: protocol_type.to_owned(), id_required: false, ..joining("", []) };
        group.join(world.now, join, classic::Ticket(1), &mut Vec::new());
        group
    };
    let moved = |group: &ClassicGroup| {
        ConsumerGroup::of_classic(world.now, Arc::clone(&world.group.limits), group, &world.catalog)
    };
    assert!(moved(&group("consumer")).is_some());
    assert!(moved(&group("connect")).is_none());
    let mut waiting = group("consumer");
    let mut out = Vec::new();
    waiting.give_up_waiting(&mut out);
    let [ClassicOutput::Join(classic::Ticket(1), answer)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(answer.error_code, ErrorCode::RebalanceInProgress.number());
}

#[test]
fn a_group_whose_last_member_of_the_other_protocol_is_out_is_a_classic_one_that_rebalances() {
    let mut world = moved(&[("a", 0..6)]);
    world.join("c");
    assert_eq!(world.classic_join(joining("a", 0..6)), (0, 5));
    assert_eq!(world.classic_join(joining("a", 0..3)), (0, 6));
    assert!(!world.group.is_classic());
    world.beat(Beat { member_id: "c".to_owned(), epoch: LEAVING, ..Beat::default() }).expect("it leaves");
    assert!(world.group.is_classic());
    let mut out = Vec::new();
    let mut group = world.group.to_classic(world.now, classic_limits(), &world.catalog, &mut out);
    assert_eq!((group.state(), group.generation, out.len()), ("PreparingRebalance", 6, 0));
    assert_eq!(group.heartbeat(world.now, "a", None, 6), Err(ErrorCode::RebalanceInProgress));
    group.join(world.now, joining("a", 0..2), classic::Ticket(9), &mut out);
    let [ClassicOutput::Join(classic::Ticket(9), answer)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((answer.generation_id, answer.leader.as_str()), (7, "a"));
}
