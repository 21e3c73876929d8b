//! The ways to look up by quorum, each with what it is there for.

use std::sync::atomic::Ordering;
use std::task::Poll;

use tailwater_rma::Capabilities;

use super::tests::{MEMORY, WIRE, WIRE_WITH_SCAR, World, change, filled, set_deadline};
use super::*;
use crate::protocol::METHOD_LOOKUP;
use crate::testing::{in_runtime, world_by_hand};

const TRANSPORTS: [Capabilities; 3] = [MEMORY, WIRE, WIRE_WITH_SCAR];
const ALL_AT_ONCE: [LookupWay; 3] = [LookupWay::All, LookupWay::TwiceRead, LookupWay::Scar];

/// Nothing below may wait for these.
fn never_hedge(world: &World) {
    set_deadline(&world.cell, Duration::from_secs(7_200));
    change(&world.cell, |inner| inner.hedge_after = Duration::from_secs(3_600));
}

fn reads(world: &World) -> Vec<u64> {
    world.faults.iter().map(|faults| faults.reads.load(Ordering::Relaxed)).collect()
}

fn scars(world: &World) -> Vec<u64> {
    world.faults.iter().map(|faults| faults.scars.load(Ordering::Relaxed)).collect()
}

#[test]
fn every_way_answers_the_same_over_every_transport() {
    for can in TRANSPORTS {
        for (mode, backends) in [(Mode::R1, 1), (Mode::R32, 3), (Mode::R32, 5)] {
            in_runtime(|env| async move {
                let (world, items, mut keys) = filled(env, mode, backends, can, (60, 700)).await;
                keys.push(Bytes::from("never set"));
                for way in LookupWay::ALL {
                    let lookups = world.cell.with_lookup(way).get_consistent(&keys).await;
                    world.assert_all_hit(&lookups[..60], &items);
                    assert_eq!(lookups[60].outcome(), LookupOutcome::Miss, "{way:?}");
                }
                assert_eq!(world.cell.stats().failed, 0);
            });
        }
    }
}

#[test]
fn every_way_does_with_one_replica_gone_and_none_answers_with_two_gone() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let (world, items, keys) = filled(env, Mode::R32, 3, can, (30, 700)).await;
            never_hedge(&world);
            world.lose(1);
            for way in LookupWay::ALL {
                world.assert_all_hit(&world.cell.with_lookup(way).get_consistent(&keys).await, &items);
            }
            world.lose(2);
            for way in LookupWay::ALL {
                for lookup in world.cell.with_lookup(way).get_consistent(&keys).await {
                    assert_eq!(lookup, Lookup::Failed(CellFailure::Unreachable), "{way:?}");
                    assert_eq!(lookup.outcome(), LookupOutcome::Inconclusive);
                }
            }
        });
    }
}

/// One replica never votes: it answers nothing at all from the start, and nobody is asked a second time for it.
#[test]
fn where_all_are_asked_the_answer_is_there_while_one_replica_has_not_answered() {
    for can in [WIRE, WIRE_WITH_SCAR] {
        for slow in 0..3 {
            in_runtime(|env| async move {
                let (world, items, keys) = filled(env, Mode::R32, 3, can, (30, 700)).await;
                never_hedge(&world);
                world.faults[slow].stalled.store(true, Ordering::Relaxed);
                let before = reads(&world)[slow] + scars(&world)[slow];
                for way in ALL_AT_ONCE.into_iter().chain([LookupWay::Auto]) {
                    for _ in 0..10 {
                        let lookups = world.cell.with_lookup(way).get_consistent(&keys).await;
                        world.assert_all_hit(&lookups, &items);
                    }
                }
                let stats = world.cell.stats();
                assert_eq!(reads(&world)[slow] + scars(&world)[slow], before, "it has answered nothing");
                assert_eq!((stats.hedged, stats.called, stats.failed), (0, 0, 0));
            });
        }
    }
}

/// The SCAR goes to the preferred replica alone, so the others' count tells how often that was the slow one.
#[test]
fn a_slow_replica_is_not_the_preferred_one_any_more() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE_WITH_SCAR, (4, 700)).await;
        never_hedge(&world);
        world.faults[2].stalled.store(true, Ordering::Relaxed);
        let all = world.cell.with_lookup(LookupWay::All);
        let before: u64 = scars(&world).iter().sum();
        let rounds = 600;
        for _ in 0..rounds {
            world.assert_all_hit(&all.get_consistent(&keys).await, &items);
        }
        let along = scars(&world).iter().sum::<u64>() - before;
        // By turns it would be two of three.
        assert!(along > rounds * 8 / 10, "{along} of {rounds}");
    });
}

#[test]
fn values_come_along_from_all_from_one_or_in_a_round_trip_of_their_own() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE_WITH_SCAR, (1, 700)).await;
        // One that has not answered when two others have is not counted.
        for (way, wanted) in
            [(LookupWay::Scar, 2..=3), (LookupWay::All, 0..=1), (LookupWay::TwiceRead, 0..=0)]
        {
            let before: u64 = scars(&world).iter().sum();
            world.assert_all_hit(&world.cell.with_lookup(way).get_consistent(&keys).await, &items);
            let along = scars(&world).iter().sum::<u64>() - before;
            assert!(wanted.contains(&along), "{way:?}: {along}");
        }
    });
}

#[test]
fn what_can_t_be_read_one_sidedly_is_asked_for_by_call() {
    for (mode, backends) in [(Mode::R1, 1), (Mode::R32, 3)] {
        for can in [MEMORY, WIRE] {
            in_runtime(|env| async move {
                let (world, items, keys) = filled(env, mode, backends, can, (5, 5_000)).await;
                world.faults.iter().for_each(|faults| faults.torn_data.store(true, Ordering::Relaxed));
                for way in [LookupWay::Auto, LookupWay::Two, LookupWay::TwiceRead] {
                    world.assert_all_hit(&world.cell.with_lookup(way).get_consistent(&keys).await, &items);
                }
                world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
                let stats = world.cell.stats();
                assert!(stats.called >= 20 && stats.replaced >= 15 && stats.torn >= 5, "{stats:?}");
                let calls = world.faults.iter().map(|faults| faults.calls.lock().clone()).collect::<Vec<_>>();
                assert!(calls.concat().contains(&METHOD_LOOKUP));
            });
        }
    }
}

#[test]
fn a_consistent_read_of_slow_backends_that_answer_is_hedged_as_far_as_the_budget_goes() {
    in_runtime(|env| async move {
        let (world, _, keys) = filled(env, Mode::R32, 3, WIRE, (400, 100)).await;
        set_deadline(&world.cell, Duration::from_millis(50));
        for (replica, faults) in world.cell.inner().replicas.iter().zip(&world.faults) {
            faults.stalled.store(true, Ordering::Relaxed);
            // As if it answered others all the time.
            replica.live().expect("it is connected").answered_ns.store(u64::MAX, Ordering::Relaxed);
        }
        let two = world.cell.with_lookup(LookupWay::Two);
        let lookups = two.get_consistent(&keys).await;
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::Failed(CellFailure::Deadline)));
        // 64 saved up, which 400 reads add nothing to.
        assert_eq!(world.cell.stats().hedged, 64);
    });
}

#[test]
fn data_that_its_replica_does_not_send_comes_from_another_one_that_named_it() {
    let (by_hand, clock) = world_by_hand();
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE, (1, 700)).await;
        change(&world.cell, |inner| inner.env = by_hand);
        // The bucket is answered, and what is asked for behind it is not.
        let answers = |left| {
            world.faults.iter().for_each(|faults| faults.answers_left.store(left, Ordering::Relaxed));
        };
        answers(2);
        let cell = world.cell.with_lookup(LookupWay::TwiceRead);
        let mut read = std::pin::pin!(cell.get_consistent(&keys));
        for _ in 0..100 {
            assert!(futures::poll!(&mut read).is_pending());
            tokio::task::yield_now().await;
        }
        answers(0);
        assert_eq!(world.cell.stats().hedged, 0);
        clock.advance(world.cell.inner().hedge_after);
        let lookups = loop {
            if let Poll::Ready(lookups) = futures::poll!(&mut read) {
                break lookups;
            }
            tokio::task::yield_now().await;
        };
        world.assert_all_hit(&lookups, &items);
        assert_eq!(world.cell.stats().hedged, 1);
    });
}

#[test]
fn reads_are_counted_by_operation_and_outcome_and_retries_by_cause() {
    in_runtime(|env| async move {
        let (world, _, mut keys) = filled(env, Mode::R32, 3, WIRE, (3, 100)).await;
        keys.push(Bytes::from("never set"));
        world.cell.get_relaxed(&keys[..2]).await;
        world.cell.get_consistent(&keys).await;
        world.lose(0);
        world.lose(1);
        world.lose(2);
        world.cell.get_relaxed(&keys[..1]).await;
        world.cell.get_consistent(&keys[..2]).await;
        let counts =
            world.cell.stats().lookups().map(|(operation, outcome, n)| (operation, outcome.name(), n));
        let expected = [
            ("relaxed", "hit", 2),
            ("relaxed", "miss", 0),
            ("relaxed", "inconclusive", 1),
            ("consistent", "hit", 3),
            ("consistent", "miss", 1),
            ("consistent", "inconclusive", 2),
        ];
        assert_eq!(counts, expected);
        assert!(world.cell.stats().retries().iter().all(|(_, count)| *count == 0));
    });
}
