use super::*;

fn member(id: ReplicaId) -> Member {
    Member { id, address: format!("127.0.0.1:{id}") }
}

fn ids(chain: &Chain) -> (Vec<ReplicaId>, Vec<ReplicaId>) {
    let of = |members: &[Member]| members.iter().map(|member| member.id).collect();
    (of(&chain.members), of(&chain.joining))
}

fn step(service: &mut Membership, now_ms: u64) -> Option<(Vec<ReplicaId>, Vec<ReplicaId>)> {
    let next = service.next(now_ms)?;
    assert_eq!(next.epoch, service.chain().epoch + 1);
    service.changed(next.clone());
    Some(ids(&next))
}

/// A service without a chain, which has listened for others already.
fn first_start_after(chain: Chain) -> Membership {
    Membership { listens_ms: None, ..Membership::new(0, chain, 1000, 3000) }
}

fn first_start() -> Membership {
    first_start_after(Chain { region: "eu".into(), ..Chain::default() })
}

#[test]
fn replicas_join_at_the_end_when_they_caught_up_and_silent_ones_leave() {
    let mut service = first_start();
    service.join(0, member(1), false, true);
    assert_eq!(step(&mut service, 0), Some((vec![1], vec![])));
    service.join(1, member(2), false, true);
    service.join(1, member(3), false, true);
    assert_eq!(step(&mut service, 1), Some((vec![1], vec![2, 3])));
    assert_eq!(step(&mut service, 2), None);
    let epoch = service.chain().epoch;
    service.alive(3, 1, epoch, &[3], Waits::default());
    assert_eq!(step(&mut service, 3), Some((vec![1, 3], vec![2])));
    // What the tail of an earlier epoch says does not count.
    service.alive(4, 3, epoch, &[2], Waits::default());
    assert_eq!(step(&mut service, 4), None);
    service.alive(900, 3, service.chain().epoch, &[2], Waits::default());
    service.alive(900, 2, service.chain().epoch, &[], Waits::default());
    assert_eq!(step(&mut service, 900), Some((vec![1, 3, 2], vec![])));
    assert_eq!(step(&mut service, 1500), Some((vec![3, 2], vec![])));
}

#[test]
fn of_several_that_have_nothing_the_first_that_asked_is_the_head_however_often_it_asks() {
    let mut service = Membership::new(0, Chain { region: "eu".into(), ..Chain::default() }, 1000, 3000);
    for (at_ms, id) in [(0, 1), (10, 2), (500, 1), (510, 3), (900, 2), (901, 1), (902, 3)] {
        service.join(at_ms, member(id), true, true);
        assert_eq!(step(&mut service, at_ms), None, "it listens");
    }
    assert_eq!(step(&mut service, 1_001), Some((vec![1], vec![2, 3])));
}

#[test]
fn whoever_wants_to_join_a_full_chain_under_ever_other_numbers_takes_bounded_room() {
    let mut service = first_start();
    for id in 1..100_000 {
        service.join(0, member(id), true, true);
        // As soon as it is full there is nothing to decide any more.
        step(&mut service, 0);
    }
    let chain = service.chain();
    assert_eq!(chain.members.len() + chain.joining.len(), MEMBERS_MAX);
    assert!(service.seen.len() <= SEEN_MAX, "{}", service.seen.len());
    let known = chain.members.iter().chain(&chain.joining);
    assert!(known.clone().all(|member| service.seen.contains_key(&member.id)));
}

#[test]
fn nobody_is_silent_while_nobody_is_listened_to() {
    let mut service = alive(3);
    service.did_not_listen(2_000);
    service.alive(2_010, 1, 5, &[], Waits::default());
    assert_eq!(step(&mut service, 2_010), None);
    assert_eq!(step(&mut service, 3_001), Some((vec![1], vec![])));
}

#[test]
fn a_joining_replica_that_started_again_has_not_caught_up_whatever_the_tail_says() {
    let mut service = first_start();
    service.join(0, member(1), false, true);
    service.join(0, member(2), true, false);
    assert_eq!(step(&mut service, 0), Some((vec![1], vec![2])));
    service.join(10, member(2), true, true);
    // It has not heard of that yet.
    service.alive(20, 1, service.chain().epoch, &[2], Waits::default());
    assert_eq!(step(&mut service, 20), Some((vec![1], vec![2])), "it begins anew");
    service.alive(30, 1, service.chain().epoch, &[2], Waits::default());
    assert_eq!(step(&mut service, 30), Some((vec![1, 2], vec![])));
}

#[test]
fn a_member_that_started_again_goes_to_the_end_if_there_is_another() {
    let mut service = first_start();
    service.join(0, member(1), true, true);
    step(&mut service, 0);
    service.join(1, member(1), true, true);
    assert_eq!(step(&mut service, 1), None);
    service.join(1, member(2), true, true);
    step(&mut service, 1);
    service.alive(2, 1, service.chain().epoch, &[2], Waits::default());
    assert_eq!(step(&mut service, 2), Some((vec![1, 2], vec![])));
    service.join(3, member(1), true, false);
    assert_eq!(step(&mut service, 3), None);
    service.join(4, member(1), true, true);
    assert_eq!(step(&mut service, 4), None);
    service.alive(5, 2, service.chain().epoch, &[], Waits::default());
    assert_eq!(step(&mut service, 5), Some((vec![2], vec![1])));
}

/// Members 2, 4 and 6, which keep their events, and a service that has just started.
fn all_down() -> Membership {
    let members = vec![member(2), member(4), member(6)];
    let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
    Membership::new(0, chain, 1000, 60_000)
}

#[test]
fn when_all_members_started_again_the_first_goes_on_and_the_others_join_it() {
    let mut service = all_down();
    service.join(10, member(4), true, true);
    assert_eq!(step(&mut service, 10), None);
    service.join(20, member(2), true, true);
    assert_eq!(step(&mut service, 20), None);
    service.join(30, member(6), true, true);
    assert_eq!(step(&mut service, 30), Some((vec![2], vec![4, 6])));
    service.alive(40, 2, service.chain().epoch, &[4], Waits::default());
    assert_eq!(step(&mut service, 40), Some((vec![2, 4], vec![6])));
    assert_eq!(step(&mut service, 50), None);
}

#[test]
fn a_member_that_started_again_joins_the_others_if_they_are_there_and_goes_on_alone_if_they_stay_away() {
    let mut service = all_down();
    service.join(10, member(4), true, true);
    assert_eq!(step(&mut service, 10), None);
    service.join(20, member(6), true, false);
    assert_eq!(step(&mut service, 20), Some((vec![2, 6], vec![4])));
    let mut service = all_down();
    service.join(10, member(4), true, true);
    service.alive(900, 4, 5, &[], Waits::default());
    assert_eq!(step(&mut service, 1000), None);
    assert_eq!(step(&mut service, 1001), Some((vec![4], vec![])));
}

#[test]
fn one_that_starts_again_while_it_joins_gets_a_new_epoch() {
    let mut service = first_start();
    service.join(0, member(2), true, true);
    step(&mut service, 0);
    service.join(1, member(4), true, true);
    step(&mut service, 1);
    service.join(2, member(4), true, false);
    assert_eq!(step(&mut service, 2), None);
    service.join(3, member(4), true, true);
    assert_eq!(step(&mut service, 3), Some((vec![2], vec![4])));
}

#[test]
fn a_service_that_restarts_waits_for_members_that_can_come_back_and_replaces_those_that_can_not() {
    for (last, replaced) in [(8, false), (7, true)] {
        let chain =
            Chain { epoch: 5, lineage: 7, region: "eu".into(), members: vec![member(last)], joining: vec![] };
        let mut service = Membership::new(0, chain, 1000, 3000);
        service.join(0, member(2), false, true);
        assert_eq!(step(&mut service, 0), Some((vec![last], vec![2])));
        service.alive(4000, 2, 6, &[], Waits::default());
        assert_eq!(step(&mut service, 4000), replaced.then(|| (vec![2], vec![])));
    }
}

#[test]
fn a_replica_at_the_address_of_the_last_member_replaces_it_at_once_if_its_memory_is_gone() {
    let members = vec![Member { id: 7, address: "127.0.0.1:9400".to_owned() }];
    let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
    let mut service = Membership::new(0, chain, 1000, 60_000);
    service.join(10, Member { id: 9, address: "127.0.0.1:9400".to_owned() }, false, true);
    assert_eq!(step(&mut service, 10), Some((vec![9], vec![])));
}

#[test]
fn a_replica_at_the_address_of_the_last_member_replaces_it_later_if_it_had_a_disk() {
    let members = vec![Member { id: 8, address: "127.0.0.1:9400".to_owned() }];
    let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
    let mut service = Membership::new(0, chain, 1000, 60_000);
    service.join(10, Member { id: 6, address: "127.0.0.1:9400".to_owned() }, true, true);
    assert_eq!(step(&mut service, 10), Some((vec![8], vec![6])));
    service.alive(60_000, 6, service.chain().epoch, &[], Waits::default());
    assert_eq!(step(&mut service, 60_000), None);
    assert_eq!(step(&mut service, 60_001), Some((vec![6], vec![])));
}

#[test]
fn the_last_member_stays_if_it_can_come_back_and_is_replaced_if_it_can_not() {
    for durable in [true, false] {
        let mut service = first_start();
        service.join(0, member(1), durable, true);
        step(&mut service, 0);
        assert_eq!(step(&mut service, 5000), None);
        service.join(2000, member(2), durable, true);
        assert_eq!(step(&mut service, 2000), Some((vec![1], vec![2])));
        service.alive(5000, 2, 2, &[], Waits::default());
        assert_eq!(step(&mut service, 5000), if durable { None } else { Some((vec![2], vec![])) });
    }
}

fn has(lineage: u64, events: u64) -> Has {
    has_of(lineage, 0, events)
}

fn has_of(lineage: u64, epoch: u64, events: u64) -> Has {
    Has { lineage, epoch, events }
}

#[test]
fn a_service_without_a_chain_listens_before_it_begins_one_and_does_with_a_survivor_rather_than_an_empty_replica()
 {
    let mut service = Membership::new(0, unbegun("eu", 90, 0), 1000, 60_000);
    // Its own replica, which has lost its disk with the metadata.
    service.join(10, member(2), true, true);
    for now_ms in [10, 200, 1_000] {
        assert_eq!(service.next(now_ms), None, "at {now_ms}");
        service.alive(now_ms, 2, 0, &[], Waits::default());
    }
    for (id, has) in [(4, has_of(7, 5, 30)), (6, has_of(7, 5, 20))] {
        service.join(900, member(id), true, false);
        service.alive(950, id, 5, &[], Waits::default());
        service.has(id, has);
    }
    let next = service.next(1_001).expect("it has listened");
    assert_eq!(ids(&next), (vec![4], vec![2, 6]));
    assert_eq!((next.epoch, next.lineage), (91, (90 << 20) + 1));
    assert_eq!(service.events_of(4), 30);
}

#[test]
fn while_a_service_without_a_chain_did_not_listen_it_has_not_listened() {
    let mut service = Membership::new(0, unbegun("eu", 90, 0), 1000, 60_000);
    service.join(10, member(2), true, true);
    service.did_not_listen(5_000);
    service.join(5_500, member(4), true, false);
    service.has(4, has_of(7, 5, 1));
    assert_eq!(service.next(6_000), None);
    assert_eq!(step(&mut service, 6_001), Some((vec![4], vec![2])));
}

#[test]
fn a_region_whose_metadata_is_lost_goes_on_with_whoever_was_a_member_last_however_many_events_another_one_has()
 {
    for (of_2, of_4, first) in [
        // One that was removed has what never was acknowledged.
        (has_of(7, 5, 10), has_of(7, 3, 12), 2),
        (has_of(7, 3, 12), has_of(7, 5, 10), 4),
        // One that joins was no member, or not lately.
        (has_of(7, 0, 9), has_of(7, 5, 10), 4),
        (has_of(8, 1, 1), has_of(7, 5, 10), 2),
        (has_of(7, 5, 10), has_of(7, 5, 11), 4),
        (has_of(8, 9, 0), has_of(7, 5, 10), 4),
        (has_of(1 << 63, 9, 1), has_of(7, 5, 10), 4),
        (has_of(7, 1 << 63, 1), has_of(7, 5, 10), 4),
    ] {
        let mut service = first_start();
        for (id, has) in [(2, of_2), (4, of_4)] {
            service.join(0, member(id), true, false);
            service.has(id, has);
        }
        assert_eq!(service.next(0).and_then(|next| next.head()), Some(first), "{of_2:?} {of_4:?}");
    }
}

#[test]
fn a_chain_that_replaces_one_of_metadata_that_is_lost_is_newer_than_what_any_replica_knows() {
    for (knows, was_member, epoch) in [(0, 0, 91), (300, 200, 301), (200, 300, 301), (1 << 63, 200, 201)] {
        let mut service = first_start_after(unbegun("eu", 90, 0));
        for id in [2, 4] {
            service.join(0, member(id), true, false);
        }
        service.alive(0, 4, knows, &[], Waits::default());
        service.has(4, has_of(7, was_member, 0));
        assert_eq!(service.next(0).map(|next| next.epoch), Some(epoch));
    }
}

#[test]
fn what_takes_the_place_of_lost_metadata_has_a_greater_lineage_and_a_greater_epoch() {
    const MS: u64 = 1_800_000_000_000;
    let fresh = |wall_ms, random| unbegun("eu", wall_ms, random);
    assert!(fresh(MS, u64::MAX).lineage < fresh(MS + 1, 0).lineage);
    assert!(fresh(MS, u64::MAX).epoch < fresh(MS + 1, 0).epoch);
    assert_ne!(fresh(MS, 0).lineage, fresh(MS, u64::MAX).lineage);
    // As far as it was counted up in a second of ever new beginnings.
    assert!(fresh(MS, u64::MAX).lineage + 1_000_000 < fresh(MS + 1_000, 0).lineage);
}

#[test]
fn a_chain_that_no_member_goes_on_in_is_of_another_lineage_and_only_that() {
    let chain = Chain { region: "eu".into(), lineage: 100, ..Chain::default() };
    let mut service = first_start_after(chain);
    service.join(0, member(2), true, true);
    step(&mut service, 0);
    assert_eq!(service.chain().lineage, 101);
    service.join(1, member(4), true, true);
    step(&mut service, 1);
    service.alive(2, 2, service.chain().epoch, &[4], Waits::default());
    assert_eq!(step(&mut service, 2), Some((vec![2, 4], vec![])));
    // The first one is gone, and the second one has what its disk kept.
    service.join(2_000, member(4), true, true);
    assert_eq!(step(&mut service, 2_000), Some((vec![4], vec![])));
    assert_eq!(service.chain().lineage, 101);
    // Now its disk is gone as well.
    service.join(4_000, Member { id: 6, ..member(4) }, true, true);
    assert_eq!(step(&mut service, 4_000), Some((vec![4], vec![6])));
    assert_eq!(service.chain().lineage, 101);
    service.alive(6_000, 6, service.chain().epoch, &[], Waits::default());
    assert_eq!(step(&mut service, 6_000), Some((vec![6], vec![])));
    assert_eq!(service.chain().lineage, 102);
}

#[test]
fn a_new_lineage_is_greater_than_that_of_any_replica_that_is_there_unless_it_can_not_be() {
    for (known, lineage) in [(3, 8), (7, 8), (90, 91), (1 << 63, 8)] {
        let chain = Chain { region: "eu".into(), lineage: 7, ..Chain::default() };
        let mut service = first_start_after(chain);
        service.join(0, member(2), true, true);
        service.join(0, member(4), true, true);
        service.has(4, has(known, 5));
        step(&mut service, 0);
        assert_eq!(service.chain().lineage, lineage, "{known}");
    }
}

#[test]
fn a_region_begins_anew_with_the_replica_that_has_most_of_what_was_there() {
    for (of_2, of_3, of_4, first) in [
        (has(0, 0), has(7, 5), has(7, 9), 4),
        (has(7, 0), has(7, 5), has(6, 9), 3),
        (has(0, 0), has(5, 5), has(6, 9), 4),
        (has(7, 0), has(7, 0), has(0, 0), 2),
    ] {
        let (members, joining) = (vec![member(7)], vec![member(2), member(3), member(4)]);
        let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining };
        let mut service = Membership::new(0, chain, 1000, 3000);
        for (id, has) in [(2, of_2), (3, of_3), (4, of_4)] {
            service.alive(4_000, id, 5, &[], Waits::default());
            service.has(id, has);
        }
        let others = [2, 3, 4].into_iter().filter(|id| *id != first).collect();
        assert_eq!(step(&mut service, 4_000), Some((vec![first], others)));
        assert_eq!(service.chain().lineage, 8);
    }
}

#[test]
fn a_region_begins_anew_with_a_replica_that_is_kept_out_and_has_events_rather_than_with_an_empty_one() {
    let mut service = alive(2);
    assert_eq!(step_after(&mut service, 1_010, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
    let mut now_ms = 1_020;
    let kept_out = |service: &mut Membership, now_ms| {
        service.join(now_ms, member(3), false, false);
        service.has(3, has(7, 5));
    };
    kept_out(&mut service, now_ms);
    assert_eq!(step(&mut service, now_ms), None);
    // The last member is gone: an empty one has its address.
    now_ms = 1_030;
    service.join(now_ms, Member { id: 9, ..member(1) }, false, true);
    assert_eq!(step(&mut service, now_ms), Some((vec![3], vec![9])));
    assert_eq!(service.chain().lineage, 8);
    // One that is silent is not waited for.
    let mut service = alive(2);
    step_after(&mut service, 1_010, &[(1, next(3, 5_000))]);
    kept_out(&mut service, 1_020);
    assert_eq!(step(&mut service, 1_020), None);
    service.alive(2_500, 1, service.chain().epoch, &[], Waits::default());
    service.join(2_500, Member { id: 9, ..member(1) }, false, true);
    assert_eq!(step(&mut service, 2_500), Some((vec![9], vec![])));
}

/// Members 1, 3, 5 and so on, which say all the time that they are alive.
fn alive(members: u64) -> Membership {
    let members = (0..members).map(|place| member(2 * place + 1)).collect();
    let chain = Chain { epoch: 5, lineage: 7, region: "eu".into(), members, joining: vec![] };
    let mut service = Membership::new(0, chain, 1000, 60_000);
    say(&mut service, 0, &[]);
    service
}

/// What some wait for; the others say that they are alive.
fn say(service: &mut Membership, now_ms: u64, waits: &[(ReplicaId, Waits)]) {
    let Chain { epoch, members, joining, .. } = service.chain().clone();
    for Member { id, .. } in members.iter().chain(&joining) {
        let waits = waits.iter().find(|(of, _)| of == id).map(|(_, waits)| *waits).unwrap_or_default();
        service.alive(now_ms, *id, epoch, &[], waits);
    }
}

/// The chain after this was said for as long as silence may last, up to `now_ms`, if it is another one.
fn step_after(
    service: &mut Membership,
    now_ms: u64,
    waits: &[(ReplicaId, Waits)],
) -> Option<(Vec<ReplicaId>, Vec<ReplicaId>)> {
    for at_ms in [now_ms - 1_000, now_ms - 1] {
        say(service, at_ms, waits);
        assert_eq!(step(service, at_ms), None, "at {at_ms}");
    }
    say(service, now_ms, waits);
    step(service, now_ms)
}

/// Who is removed if this is said for as long as silence may last.
fn goes(members: u64, waits: &[(ReplicaId, Waits)]) -> Option<ReplicaId> {
    let mut service = alive(members);
    let before = ids(service.chain()).0;
    let after = step_after(&mut service, 2_000, waits)?.0;
    before.into_iter().find(|id| !after.contains(id))
}

fn disk(ms: u64) -> Waits {
    Waits { disk_ms: ms, ..Waits::default() }
}

fn next(id: ReplicaId, ms: u64) -> Waits {
    Waits { next: Some((id, ms)), ..Waits::default() }
}

fn cut(ms: u64) -> Waits {
    Waits { before_ms: ms, ..Waits::default() }
}

#[test]
fn a_member_whose_disk_stands_still_is_removed_if_anothers_goes_on() {
    assert_eq!(goes(3, &[(3, disk(4_999)), (1, next(3, 3_999))]), None);
    for id in [1, 3, 5] {
        let mut service = alive(3);
        say(&mut service, 10, &[(id, disk(5_000))]);
        let others = [1, 3, 5].into_iter().filter(|other| *other != id).collect();
        assert_eq!(step(&mut service, 10), Some((others, vec![])), "its own word is enough");
    }
    assert_eq!(goes(1, &[(1, disk(50_000))]), None);
    assert_eq!(goes(2, &[(1, disk(50_000)), (3, disk(4_000))]), None);
}

#[test]
fn of_those_that_wait_for_the_one_behind_the_last_one_knows_who_does_not_move_on() {
    assert_eq!(goes(2, &[(1, next(3, 5_000))]), Some(3));
    assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 5_000))]), Some(7));
    // The last one has not waited for long enough, and will have.
    assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 3_900))]), None);
    assert_eq!(goes(4, &[(1, next(3, 6_000)), (3, next(5, 6_000)), (5, next(7, 1_000))]), Some(5));
    // It waits for another one than that which is behind it now.
    assert_eq!(goes(2, &[(1, next(9, 5_000))]), None);
}

#[test]
fn a_member_that_waits_for_its_own_disk_is_not_believed_about_another_one() {
    let both = Waits { disk_ms: 4_000, ..next(5, 9_000) };
    assert_eq!(goes(3, &[(3, both)]), None);
    let mut service = alive(3);
    say(&mut service, 10, &[(3, Waits { disk_ms: 5_000, ..both })]);
    assert_eq!(step(&mut service, 10), Some((vec![1, 5], vec![])));
    assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, both)]), Some(3));
    assert_eq!(goes(3, &[(3, next(5, 9_000))]), Some(5));
}

#[test]
fn of_the_two_ends_of_a_broken_link_that_one_is_removed_which_nobody_else_reaches() {
    // The link alone, between members that others reach: the one behind.
    assert_eq!(goes(4, &[(3, next(5, 5_000)), (1, next(3, 5_000)), (5, cut(5_000))]), Some(5));
    assert_eq!(goes(2, &[(1, next(3, 5_000)), (3, cut(5_000))]), Some(3));
    // The head, which has no other neighbour, or nobody reaches the two.
    assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, cut(5_000))]), Some(1));
    // One in the middle that nobody reaches, whether or not it had something for the one behind it.
    let alone = Waits { before_ms: 5_000, ..next(5, 5_000) };
    for middle in [alone, cut(5_000)] {
        assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, middle), (5, cut(5_000))]), Some(3));
    }
    assert_eq!(goes(3, &[(3, alone), (5, cut(5_000))]), Some(3), "nothing waits for it yet");
    // The tail.
    assert_eq!(goes(3, &[(1, next(3, 5_000)), (3, next(5, 5_000)), (5, cut(5_000))]), Some(5));
}

#[test]
fn one_whose_disk_stands_still_stays_until_another_one_is_heard_which_may_have_ended() {
    let mut service = alive(2);
    service.alive(10, 3, 5, &[], disk(5_000));
    assert_eq!(step(&mut service, 10), None);
    service.alive(500, 3, 5, &[], disk(5_500));
    assert_eq!(step(&mut service, 500), None);
    service.alive(600, 1, 5, &[], Waits::default());
    assert_eq!(step(&mut service, 600), Some((vec![1], vec![])));
}

#[test]
fn one_that_keeps_another_waiting_stays_if_that_one_may_have_ended_meanwhile() {
    let mut service = alive(2);
    for now_ms in [10, 1_009] {
        say(&mut service, now_ms, &[(1, next(3, 5_000))]);
        assert_eq!(step(&mut service, now_ms), None, "at {now_ms}");
    }
    service.alive(1_020, 3, 5, &[], Waits::default());
    assert_eq!(step(&mut service, 1_020), None);
    // Its own word comes after the other one's last.
    service.alive(1_900, 3, 5, &[], disk(5_000));
    assert_eq!(step(&mut service, 1_900), None);
    service.alive(2_009, 3, 5, &[], Waits::default());
    assert_eq!(step(&mut service, 2_009), None);
    assert_eq!(step(&mut service, 2_010), Some((vec![3], vec![])));
}

#[test]
fn what_is_said_of_another_epoch_removes_nobody() {
    let mut service = alive(2);
    for now_ms in [10, 1_010] {
        service.alive(now_ms, 3, 5, &[], Waits::default());
        service.alive(now_ms, 1, 4, &[], next(3, 9_000));
        assert_eq!(step(&mut service, now_ms), None);
    }
    assert_eq!(step_after(&mut service, 2_010, &[(1, next(3, 9_000))]), Some((vec![1], vec![])));
}

#[test]
fn nobody_is_removed_before_all_said_what_they_wait_for_or_had_the_time_to() {
    let mut service = alive(3);
    service.join(10, member(7), false, true);
    assert_eq!(step(&mut service, 10), Some((vec![1, 3, 5], vec![7])));
    for now_ms in [20, 1_020] {
        service.alive(now_ms, 1, 6, &[], next(3, 5_000));
        service.alive(now_ms, 3, 5, &[], Waits::default());
        service.alive(now_ms, 5, 5, &[], Waits::default());
        service.alive(now_ms, 7, 6, &[], Waits::default());
        assert_eq!(step(&mut service, now_ms), None);
    }
    service.alive(1_030, 5, 6, &[], Waits::default());
    service.alive(1_030, 3, 6, &[], next(5, 3_900));
    assert_eq!(step(&mut service, 1_030), None, "the third one is it");
    // The second one does not hear of the chain.
    let mut service = alive(3);
    service.join(10, member(7), false, true);
    step(&mut service, 10);
    for (now_ms, gone) in
        [(900, false), (1_700, false), (2_509, false), (2_510, false), (3_509, false), (3_510, true)]
    {
        say(&mut service, now_ms, &[(1, next(3, 5_000))]);
        service.alive(now_ms, 3, 5, &[], Waits::default());
        assert_eq!(step(&mut service, now_ms), gone.then(|| (vec![1, 5], vec![7])));
    }
}

#[test]
fn one_that_did_not_move_on_is_kept_out_for_longer_each_time_unless_nobody_else_is_left() {
    let mut service = alive(2);
    let mut now_ms = 10;
    for out_ms in [5_000, 10_000, 20_000, 40_000, 80_000, 80_000] {
        // It joins again before it knows.
        now_ms += 1_000;
        service.join(now_ms, member(3), false, false);
        assert_eq!(step_after(&mut service, now_ms, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
        let until_ms = now_ms + out_ms;
        for (at_ms, joins) in [(now_ms + 1, false), (until_ms - 1, false), (until_ms, true)] {
            say(&mut service, at_ms, &[]);
            service.join(at_ms, member(3), false, false);
            assert_eq!(step(&mut service, at_ms), joins.then(|| (vec![1], vec![3])), "after {out_ms}");
        }
        let epoch = service.chain().epoch;
        service.alive(until_ms, 1, epoch, &[3], Waits::default());
        assert_eq!(step(&mut service, until_ms), Some((vec![1, 3], vec![])));
        now_ms = until_ms;
    }
    // Later it is a fault like the first one, and if the other one is lost it is not waited for.
    now_ms += 4 * 80_000;
    assert_eq!(step_after(&mut service, now_ms, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
    service.join(now_ms + 1, Member { id: 3, ..member(1) }, false, false);
    assert_eq!(step(&mut service, now_ms + 1), Some((vec![3], vec![])));
}

#[test]
fn a_joining_replica_that_is_handed_over_to_and_does_not_move_on_is_removed_and_never_the_tail() {
    for waits in [disk(9_000), cut(9_000), Waits::default()] {
        let mut service = alive(2);
        service.join(10, member(7), false, true);
        assert_eq!(step(&mut service, 10), Some((vec![1, 3], vec![7])));
        assert_eq!(step_after(&mut service, 1_020, &[(7, waits)]), None, "it keeps nobody waiting");
        let waits = [(1, next(3, 5_100)), (3, next(7, 5_000)), (7, waits)];
        assert_eq!(step_after(&mut service, 2_030, &waits), Some((vec![1, 3], vec![])));
        service.join(2_040, member(7), false, false);
        assert_eq!(step(&mut service, 2_040), None);
    }
}

#[test]
fn the_tail_stays_when_one_that_joined_and_kept_it_waiting_is_removed_and_the_head_hears_of_it_later() {
    let mut service = alive(2);
    service.join(10, member(7), false, true);
    assert_eq!(step(&mut service, 10), Some((vec![1, 3], vec![7])));
    let waits = [(1, next(3, 5_000)), (3, next(7, 5_000))];
    assert_eq!(step_after(&mut service, 2_000, &waits), Some((vec![1, 3], vec![])));
    // The tail holds everything at once, and the first one has not heard of that.
    for now_ms in [2_010, 2_500, 2_990] {
        say(&mut service, now_ms, &[(1, next(3, 6_000))]);
        assert_eq!(step(&mut service, now_ms), None, "at {now_ms}");
    }
    say(&mut service, 3_000, &[]);
    assert_eq!(step(&mut service, 3_000), None);
    // From here on it is the tail.
    assert_eq!(step_after(&mut service, 10_000, &[(1, next(3, 5_000))]), Some((vec![1], vec![])));
}

#[test]
fn a_member_that_reaches_the_service_anew_stays_though_it_has_not_said_yet_what_it_waits_for() {
    let mut service = alive(3);
    let waits = [(1, next(3, 4_500)), (3, next(5, 3_900))];
    say(&mut service, 10, &waits);
    assert_eq!(step(&mut service, 10), None);
    service.join(20, member(3), false, false);
    assert_eq!(step(&mut service, 20), None);
    service.alive(30, 1, 5, &[], waits[0].1);
    assert_eq!(step(&mut service, 30), None);
    let waits = [(1, next(3, 5_000)), (3, next(5, 5_000))];
    assert_eq!(step_after(&mut service, 1_100, &waits), Some((vec![1, 3], vec![])));
}

#[test]
fn a_member_whose_links_break_one_after_the_other_is_removed_and_no_neighbour_of_it() {
    let from = |from_ms: u64, now_ms: u64| now_ms.saturating_sub(from_ms);
    let later = [1_000, 2_400, 2_600, 3_900];
    for (first_ms, second_ms) in later.into_iter().flat_map(|ms| [(0, ms), (ms, 0)]) {
        let mut service = alive(3);
        let gone = (0..=6_000).step_by(100).find_map(|now_ms| {
            // From when its link to the first one is broken nothing comes through it, and what that one says of it
            // begins with whichever breaks first.
            let (before_ms, after_ms) = (from(first_ms, now_ms), from(second_ms, now_ms));
            let middle = Waits { before_ms, ..next(5, if second_ms < first_ms { after_ms } else { 0 }) };
            let waits = [(1, next(3, now_ms)), (3, middle), (5, cut(after_ms))];
            say(&mut service, now_ms, &waits);
            step(&mut service, now_ms)
        });
        assert_eq!(gone, Some((vec![1, 5], vec![])), "{first_ms} {second_ms}");
    }
}
