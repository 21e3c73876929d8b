//! Scenarios, in the order of a group's life.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A group whose clock the test moves, and the answers that it gave.
struct World {
    group: ClassicGroup,
    now: Instant,
    tickets: u64,
    answers: BTreeMap<u64, ClassicOutput>,
}

impl World {
    fn new() -> Self {
        Self::with(Limits {
            session_ms: 6_000..=60_000,
            initial_delay: 3 * SECOND,
            members_max: 4,
            bytes_max: 10_000,
        })
    }

    fn with(limits: Limits) -> Self {
        let group = ClassicGroup::new(Arc::new(limits), 0, None);
        Self { group, now: Instant::from_ns(0), tickets: 0, answers: BTreeMap::new() }
    }

    fn take(&mut self, out: Vec<ClassicOutput>) {
        for output in out {
            let (ClassicOutput::Join(ticket, _) | ClassicOutput::Sync(ticket, _)) = &output;
            assert!(self.answers.insert(ticket.0, output).is_none(), "answered twice");
        }
    }

    fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        let mut out = Vec::new();
        self.group.tick(self.now, &mut out);
        self.take(out);
    }

    fn join_as(&mut self, join: Join) -> u64 {
        self.tickets += 1;
        let mut out = Vec::new();
        self.group.join(self.now, join, Ticket(self.tickets), &mut out);
        self.take(out);
        self.tickets
    }

    fn join(&mut self, id: &str) -> u64 {
        self.join_as(join(id))
    }

    fn sync(&mut self, id: &str, assignments: &[(&str, &str)]) -> u64 {
        self.sync_as(Sync {
            member_id: id.to_owned(),
            generation: self.group.generation,
            assignments: assignments
                .iter()
                .map(|(id, what)| ((*id).to_owned(), Bytes::copy_from_slice(what.as_bytes())))
                .collect(),
            ..Sync::default()
        })
    }

    fn sync_as(&mut self, sync: Sync) -> u64 {
        self.tickets += 1;
        let mut out = Vec::new();
        self.group.sync(self.now, sync, Ticket(self.tickets), &mut out);
        self.take(out);
        self.tickets
    }

    fn leave(&mut self, id: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        let mut out = Vec::new();
        let left = self.group.leave(self.now, id, instance, &mut out);
        self.take(out);
        left
    }

    fn beat(&mut self, id: &str) -> Result<(), ErrorCode> {
        self.group.heartbeat(self.now, id, None, self.group.generation)
    }

    fn joined(&mut self, ticket: u64) -> JoinGroupResponse {
        match self.answers.remove(&ticket) {
            Some(ClassicOutput::Join(_, answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn synced(&mut self, ticket: u64) -> (i16, String) {
        match self.answers.remove(&ticket) {
            Some(ClassicOutput::Sync(_, answer)) => {
                (answer.error_code, String::from_utf8_lossy(&answer.assignment).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    /// A stable group of these members, the first of which leads.
    fn stable(names: &[&str]) -> Self {
        let mut world = Self::new();
        for name in names {
            world.join(name);
        }
        world.pass(3 * SECOND);
        world.pass(3 * SECOND);
        world.answers.clear();
        let ids: Vec<&str> = names.iter().map(|name| name.trim_start_matches("new ")).collect();
        for id in &ids {
            let all: Vec<(&str, &str)> = ids.iter().map(|id| (*id, *id)).collect();
            world.sync(id, if *id == ids[0] { &all } else { &[] });
        }
        world.answers.clear();
        assert_eq!(world.group.phase, ClassicPhase::Stable);
        world
    }
}

/// A member whose id is made of its name.
fn join(id: &str) -> Join {
    let is_new = id.starts_with("new ");
    Join {
        member_id: if is_new { String::new() } else { id.to_owned() },
        new_id: id.trim_start_matches("new ").to_owned(),
        instance: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".to_owned(),
        session_ms: 10_000,
        rebalance_ms: 30_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Bytes::copy_from_slice(id.as_bytes()))],
        id_required: false,
        skips_assignment: true,
    }
}

fn static_join(id: &str, instance: &str) -> Join {
    Join { instance: Some(instance.to_owned()), ..join(id) }
}

const NONE: i16 = 0;

fn code(error: ErrorCode) -> i16 {
    error.number()
}

#[test]
fn the_first_members_wait_for_each_other_and_the_leader_assigns() {
    let mut world = World::new();
    let a = world.join("new a");
    world.pass(2 * SECOND);
    let b = world.join("new b");
    world.pass(SECOND);
    assert!(world.answers.is_empty(), "somebody joined meanwhile: they wait once more");
    world.pass(3 * SECOND);
    let (a, b) = (world.joined(a), world.joined(b));
    assert_eq!((a.error_code, a.generation_id, a.leader.as_str(), a.members.len()), (NONE, 1, "a", 2));
    assert_eq!((b.error_code, b.generation_id, b.leader.as_str(), b.members.len()), (NONE, 1, "a", 0));
    assert_eq!(a.protocol_name.as_deref(), Some("range"));
    let b = world.sync("b", &[]);
    assert!(world.answers.is_empty(), "the leader did not assign yet");
    let a = world.sync("a", &[("a", "0-4"), ("b", "5-9"), ("nobody", "x")]);
    assert_eq!(world.synced(b), (NONE, "5-9".to_owned()));
    assert_eq!(world.synced(a), (NONE, "0-4".to_owned()));
    assert_eq!(world.group.phase, ClassicPhase::Stable);
    let again = world.sync("b", &[]);
    assert_eq!(world.synced(again), (NONE, "5-9".to_owned()), "whose answer was lost asks again");
    assert_eq!(world.beat("a"), Ok(()));
}

#[test]
fn who_has_no_id_gets_one_and_counts_when_it_comes_with_it() {
    let mut world = World::new();
    let asked = world.join_as(Join { id_required: true, ..join("new a") });
    let asked = world.joined(asked);
    assert_eq!((asked.error_code, asked.member_id.as_str()), (code(ErrorCode::MemberIdRequired), "a"));
    assert_eq!(world.group.phase, ClassicPhase::Empty);
    assert!(!world.group.is_unused());
    let a = world.join("a");
    world.pass(3 * SECOND);
    assert_eq!(world.joined(a).error_code, NONE);
    // One that never comes again is forgotten.
    world.join_as(Join { id_required: true, ..join("new b") });
    world.sync("a", &[]);
    for _ in 0..2 {
        world.pass(6 * SECOND);
        world.beat("a").expect("in");
    }
    world.answers.clear();
    let late = world.join("b");
    assert_eq!(world.joined(late).error_code, code(ErrorCode::UnknownMemberId));
}

#[test]
fn a_member_that_joins_makes_all_others_join_again() {
    let mut world = World::stable(&["new a"]);
    assert_eq!(world.beat("a"), Ok(()));
    let b = world.join("new b");
    assert_eq!(world.beat("a"), Err(ErrorCode::RebalanceInProgress));
    let early = world.sync("a", &[]);
    assert_eq!(world.synced(early).0, code(ErrorCode::RebalanceInProgress));
    let a = world.join("a");
    let (a, b) = (world.joined(a), world.joined(b));
    assert_eq!((a.generation_id, a.members.len(), b.generation_id), (2, 2, 2));
    assert_eq!(world.group.check_commit(world.now, "a", None, 1), Err(ErrorCode::IllegalGeneration));
    assert_eq!(world.group.check_commit(world.now, "a", None, 2), Err(ErrorCode::RebalanceInProgress));
}

#[test]
fn who_does_not_join_again_in_time_is_out() {
    let mut world = World::stable(&["new a", "new b"]);
    let c = world.join("new c");
    let a = world.join("a");
    // It goes on with heartbeats, but does not join.
    for _ in 0..5 {
        world.pass(6 * SECOND);
        let _ = world.beat("b");
    }
    let (a, c) = (world.joined(a), world.joined(c));
    assert_eq!((a.error_code, a.generation_id, a.members.len(), c.generation_id), (NONE, 2, 2, 2));
    assert_eq!(world.beat("b"), Err(ErrorCode::UnknownMemberId));
}

#[test]
fn a_silent_member_is_out_after_its_session_timeout_and_one_that_waits_is_not() {
    let mut world = World::stable(&["new a", "new b"]);
    world.pass(9 * SECOND);
    assert_eq!(world.beat("a"), Ok(()));
    world.pass(SECOND);
    assert_eq!(world.beat("a"), Err(ErrorCode::RebalanceInProgress), "b is out");
    assert_eq!(world.beat("b"), Err(ErrorCode::UnknownMemberId));
    let a = world.join("a");
    assert_eq!(world.joined(a).members.len(), 1);
    world.sync("a", &[]);
    world.answers.clear();
    let b = world.join("new b");
    world.pass(5 * SECOND);
    assert_eq!(world.beat("a"), Err(ErrorCode::RebalanceInProgress));
    world.pass(10 * SECOND);
    assert_eq!(world.joined(b).leader, "b", "a was silent; b waited for longer, but for an answer");
}

#[test]
fn a_member_keeps_its_share_to_the_last_moment_of_its_session_and_then_it_is_the_others() {
    const MOMENT: Duration = Duration::from_nanos(1);
    let mut world = World::stable(&["new a", "new b"]);
    // Both were heard of now; a will be again.
    let end = world.now + 10 * SECOND;
    world.pass(9 * SECOND);
    assert_eq!(world.beat("a"), Ok(()));
    world.pass(SECOND - MOMENT);
    assert_eq!(world.group.next_deadline(), Some(end), "when somebody has to look");
    assert_eq!(world.group.phase, ClassicPhase::Stable);
    assert_eq!(&world.group.members["b"].assignment[..], b"b");
    // A word at that moment is not too late.
    let before = world.group.clone();
    assert_eq!(world.beat("b"), Ok(()));
    world.pass(9 * SECOND);
    assert!(world.group.members.contains_key("b"));
    (world.group, world.now) = (before, end - MOMENT);

    world.pass(MOMENT);
    assert_eq!(world.now, end);
    assert!(!world.group.members.contains_key("b"));
    assert_eq!(world.beat("b"), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.beat("a"), Err(ErrorCode::RebalanceInProgress));
    let a = world.join("a");
    let a = world.joined(a);
    assert_eq!((a.generation_id, a.leader.as_str(), a.members.len()), (2, "a", 1));
    let a = world.sync("a", &[("a", "a and b")]);
    assert_eq!(world.synced(a), (NONE, "a and b".to_owned()));
    assert_eq!(world.group.phase, ClassicPhase::Stable);
}

#[test]
fn who_leaves_is_out_at_once() {
    let mut world = World::stable(&["new a", "new b"]);
    assert_eq!(world.leave("b", None), Ok(()));
    assert_eq!(world.leave("b", None), Err(ErrorCode::UnknownMemberId));
    let a = world.join("a");
    assert_eq!(world.joined(a).members.len(), 1);
    assert_eq!(world.leave("a", None), Ok(()));
    assert_eq!((world.group.state(), world.group.generation), ("Empty", 3));
    assert!(world.group.is_unused());
}

#[test]
fn a_leader_that_never_assigns_is_out_and_the_others_go_on() {
    let mut world = World::stable(&["new a"]);
    let b = world.join("new b");
    let a = world.join("a");
    assert_eq!((world.joined(a).leader, world.joined(b).leader), ("a".to_owned(), "a".to_owned()));
    let b = world.sync("b", &[]);
    for _ in 0..6 {
        world.pass(5 * SECOND);
        let _ = world.beat("a");
    }
    assert_eq!(world.synced(b).0, code(ErrorCode::RebalanceInProgress));
    let b = world.join("b");
    assert_eq!(world.joined(b).leader, "b");
}

#[test]
fn a_static_member_that_comes_back_in_time_gets_what_it_had_without_a_rebalance() {
    let mut world = World::new();
    world.join_as(static_join("new a1", "a"));
    world.join_as(static_join("new b1", "b"));
    world.pass(3 * SECOND);
    world.pass(3 * SECOND);
    world.answers.clear();
    world.sync("a1", &[("a1", "left"), ("b1", "right")]);
    world.sync("b1", &[]);
    world.answers.clear();
    let back = world.join_as(static_join("new b2", "b"));
    let back = world.joined(back);
    assert_eq!((back.error_code, back.generation_id, back.leader.as_str()), (NONE, 1, "a1"));
    let synced = world.sync("b2", &[]);
    assert_eq!(world.synced(synced), (NONE, "right".to_owned()));
    // The one whose place it took is told.
    let instance = Some("b");
    let beat = world.group.heartbeat(world.now, "b1", instance, 1);
    assert_eq!(beat, Err(ErrorCode::FencedInstanceId));
    assert_eq!(world.group.heartbeat(world.now, "b2", instance, 1), Ok(()));
    assert_eq!(world.leave("b1", instance), Err(ErrorCode::FencedInstanceId));
    // The leader too: it is told that it leads, and that there is nothing to assign.
    let leader = world.join_as(static_join("new a2", "a"));
    let leader = world.joined(leader);
    assert_eq!((leader.leader.as_str(), leader.skip_assignment, leader.members.len()), ("a2", true, 2));
    let old = Join { skips_assignment: false, ..static_join("new a3", "a") };
    let old = world.join_as(old);
    let old = world.joined(old);
    assert_eq!((old.leader.as_str(), old.member_id.as_str(), old.members.len()), ("a2", "a3", 0));
    // By its name alone it is made to leave.
    assert_eq!(world.leave("", Some("a")), Ok(()));
    assert_eq!(world.leave("", Some("a")), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.group.state(), "PreparingRebalance");
}

#[test]
fn a_group_whose_static_members_are_all_away_waits_for_their_sessions() {
    let mut world = World::new();
    world.join_as(Join { session_ms: 60_000, ..static_join("new a1", "a") });
    world.pass(3 * SECOND);
    world.sync("a1", &[]);
    world.join("new b");
    world.answers.clear();
    world.leave("b", None).expect("in");
    world.pass(40 * SECOND);
    assert_eq!((world.group.state(), world.group.members.len()), ("PreparingRebalance", 1));
    world.pass(30 * SECOND);
    assert_eq!((world.group.state(), world.group.members.len()), ("Empty", 0));
}

#[test]
fn members_that_have_no_protocol_in_common_are_refused() {
    let mut world = World::stable(&["new a"]);
    let other = |name: &str| vec![(name.to_owned(), Bytes::new())];
    for refused in [
        Join { protocols: other("sticky"), ..join("new b") },
        Join { protocol_type: "connect".to_owned(), ..join("new b") },
        Join { protocols: vec![], ..join("new b") },
        Join { protocol_type: String::new(), ..join("new b") },
    ] {
        let ticket = world.join_as(refused);
        assert_eq!(world.joined(ticket).error_code, code(ErrorCode::InconsistentGroupProtocol));
    }
    assert_eq!(world.group.phase, ClassicPhase::Stable, "nobody was disturbed");
    let wrong = Sync {
        member_id: "a".to_owned(),
        generation: 1,
        protocol_type: Some("consumer".to_owned()),
        protocol: Some("sticky".to_owned()),
        ..Sync::default()
    };
    let wrong = world.sync_as(wrong);
    assert_eq!(world.synced(wrong).0, code(ErrorCode::InconsistentGroupProtocol));
}

#[test]
fn the_protocol_is_the_one_that_most_like_best_among_those_that_all_have() {
    let mut world = World::new();
    let list = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Bytes::new())).collect();
    world.join_as(Join { protocols: list(&["sticky", "range", "x"]), ..join("new a") });
    world.join_as(Join { protocols: list(&["range", "sticky"]), ..join("new b") });
    let c = world.join_as(Join { protocols: list(&["y", "range", "sticky"]), ..join("new c") });
    world.pass(3 * SECOND);
    world.pass(3 * SECOND);
    assert_eq!(world.joined(c).protocol_name.as_deref(), Some("range"));
}

#[test]
fn another_assignor_takes_over_when_the_last_member_has_it_and_nobody_is_refused_meanwhile() {
    let with_both = |id: &str| {
        let protocols = ["sticky", "range"].map(|name| (name.to_owned(), Bytes::new())).to_vec();
        Join { protocols, ..join(id) }
    };
    let mut world = World::stable(&["new a", "new b"]);
    // Started again one after the other, each with the new assignor in front of the old one.
    world.leave("b", None).expect("it is a member");
    let (c, a) = (world.join_as(with_both("new c")), world.join("a"));
    for ticket in [c, a] {
        assert_eq!(world.joined(ticket).protocol_name.as_deref(), Some("range"));
    }
    world.leave("a", None).expect("it is a member");
    let (d, c) = (world.join_as(with_both("new d")), world.join_as(with_both("c")));
    for ticket in [d, c] {
        assert_eq!(world.joined(ticket).protocol_name.as_deref(), Some("sticky"));
    }
}

#[test]
fn timeouts_members_and_bytes_are_bounded() {
    let mut world = World::stable(&["new a", "new b", "new c", "new d"]);
    for session_ms in [0, -1, 5_999, 60_001, i32::MAX] {
        let ticket = world.join_as(Join { session_ms, ..join("new e") });
        assert_eq!(world.joined(ticket).error_code, code(ErrorCode::InvalidSessionTimeout));
    }
    let full = world.join("new e");
    assert_eq!(world.joined(full).error_code, code(ErrorCode::GroupMaxSizeReached));
    assert_eq!(world.group.phase, ClassicPhase::Stable);
    world.leave("d", None).expect("in");
    let large = vec![("range".to_owned(), Bytes::from(vec![0; 10_001]))];
    let large = world.join_as(Join { protocols: large, ..join("new e") });
    assert_eq!(world.joined(large).error_code, code(ErrorCode::GroupMaxSizeReached));
}

#[test]
fn what_a_member_says_is_bounded_and_counted_whatever_part_of_it_it_is() {
    let long = || "x".repeat(3_000);
    let protocol = |name: String| (name, Bytes::new());
    for bad in [
        Join { member_id: long(), ..join("new a") },
        Join { instance: Some(long()), ..join("new a") },
        Join { client_id: long().into(), ..join("new a") },
        Join { protocol_type: long(), ..join("new a") },
        Join { protocols: vec![protocol(long())], ..join("new a") },
        Join { protocols: (0..257).map(|number| protocol(number.to_string())).collect(), ..join("new a") },
    ] {
        assert_eq!(bad.check(), Err(ErrorCode::InvalidRequest));
    }
    assert_eq!(join("new a").check(), Ok(()));
    let mut world = World::stable(&["new a"]);
    let before = world.group.bytes();
    let names = (0..200).map(|number| protocol(number.to_string())).collect();
    let many = world.join_as(Join { protocols: names, ..join("new b") });
    assert_eq!(world.joined(many).error_code, code(ErrorCode::GroupMaxSizeReached), "of empty metadata");
    assert_eq!(world.group.bytes(), before);
    world.leave("a", None).expect("in");
    assert_eq!(world.group.bytes(), 0);
}

#[test]
fn an_assignment_that_is_too_large_is_refused_and_the_group_goes_on() {
    let mut world = World::new();
    world.join("new a");
    world.pass(3 * SECOND);
    let large = "x".repeat(10_001);
    let large = world.sync("a", &[("a", &large)]);
    assert_eq!(world.synced(large).0, code(ErrorCode::UnknownServerError));
    assert_eq!(world.beat("a"), Err(ErrorCode::RebalanceInProgress));
}

#[test]
fn wrong_ids_and_generations_are_told_apart() {
    let mut world = World::stable(&["new a"]);
    let now = world.now;
    let group = &mut world.group;
    assert_eq!(group.heartbeat(now, "b", None, 1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(group.heartbeat(now, "a", None, 2), Err(ErrorCode::IllegalGeneration));
    assert_eq!(group.heartbeat(now, "a", Some("name"), 1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(group.check_commit(now, "a", None, 1), Ok(()));
    assert_eq!(group.check_commit(now, "a", None, 2), Err(ErrorCode::IllegalGeneration));
    assert_eq!(group.check_commit(now, "b", None, 1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(group.check_commit(now, "", None, -1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(group.delete(), Err(ErrorCode::NonEmptyGroup));
    world.leave("a", None).expect("in");
    let group = &mut world.group;
    assert_eq!(group.check_commit(now, "", None, -1), Ok(()), "nobody is in it");
    assert_eq!(group.delete(), Ok(()));
    assert_eq!(group.check_commit(now, "", None, -1), Err(ErrorCode::CoordinatorNotAvailable));
    let late = world.join("new a");
    assert_eq!(world.joined(late).error_code, code(ErrorCode::CoordinatorNotAvailable));
}

#[test]
fn who_asks_twice_is_answered_twice() {
    let mut world = World::stable(&["new a", "new b"]);
    let first = world.join("a");
    let second = world.join("a");
    assert_eq!(world.joined(first).error_code, code(ErrorCode::RebalanceInProgress));
    let b = world.join("b");
    assert_eq!((world.joined(second).error_code, world.joined(b).error_code), (NONE, NONE));
    // The answer got lost: the same once more, without a rebalance.
    let again = world.join("b");
    let again = world.joined(again);
    assert_eq!((again.error_code, again.generation_id), (NONE, 2));
    assert_eq!(world.group.phase, ClassicPhase::Completing);
    let first = world.sync("b", &[]);
    let second = world.sync("b", &[]);
    assert_eq!(world.synced(first).0, code(ErrorCode::RebalanceInProgress));
    world.sync("a", &[("b", "all")]);
    assert_eq!(world.synced(second), (NONE, "all".to_owned()));
}
