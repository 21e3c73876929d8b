use std::sync::atomic::Ordering;
use std::task::Poll;

use tailwater_env::Instant;
use tailwater_rma::{Capabilities, Connection, LocalDoorbell};

use super::*;
use crate::testing::{CellFaults, Double, in_runtime, served, small, world_by_hand};
use crate::{Backend, BackendConfig};

const ID: u64 = 77;
pub(super) const MEMORY: Capabilities = Capabilities { memory: true, scar: false };
pub(super) const WIRE: Capabilities = Capabilities { memory: false, scar: false };
pub(super) const WIRE_WITH_SCAR: Capabilities = Capabilities { memory: false, scar: true };

pub(super) struct World {
    env: Env,
    pub(super) backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    pub(super) faults: Vec<Arc<CellFaults>>,
    pub(super) cell: Cell,
}

pub(super) fn config(mode: Mode, connections: Vec<Arc<dyn Connection>>) -> CellConfig {
    let mut config = CellConfig::new(ID, mode, Backends::connected(connections), 1);
    // On a busy machine nothing may fail for want of time, but where that is what the test is about.
    config.deadline = Duration::from_secs(60);
    config.connect_deadline = Duration::from_secs(60);
    config.hedge_after = Duration::from_millis(5);
    config.watch_slice = Duration::from_millis(5);
    // Some tests count the CALLs.
    config.touch_every = None;
    config
}

pub(super) async fn world(env: Env, mode: Mode, backends: usize, can: Capabilities) -> World {
    let backends: Vec<_> = (0..backends).map(|_| served(&env, small(ID))).collect();
    world_of(env, mode, backends, can).await
}

async fn world_of(
    env: Env,
    mode: Mode,
    backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    can: Capabilities,
) -> World {
    let doubles = backends.iter().map(|(backend, doorbell)| Double::connect(&env, backend, doorbell, can));
    let (connections, faults) = doubles.unzip();
    let cell = Cell::connect(&env, config(mode, connections)).await.expect("enough backends");
    World { env, backends, faults, cell }
}

/// Has operations that begin from now on go about it in another way.
pub(super) fn change(cell: &Cell, change: impl FnOnce(&mut CellInner)) {
    let mut inner = (*cell.inner()).clone();
    change(&mut inner);
    *cell.shared.current.write() = Arc::new(inner);
}

pub(super) fn set_deadline(cell: &Cell, deadline: Duration) {
    change(cell, |inner| inner.deadline = deadline);
}

fn key(n: u32) -> Bytes {
    Bytes::from(format!("key {n}"))
}

fn value(n: u32, len: usize) -> Bytes {
    n.to_le_bytes().iter().copied().cycle().take(len).collect()
}

pub(super) fn hit(lookup: &Lookup) -> &Bytes {
    match lookup {
        Lookup::Hit { value, .. } => value,
        other => panic!("a hit expected, not {other:?}"),
    }
}

#[test]
fn what_was_set_is_read_by_every_transport_and_in_both_ways() {
    for can in [MEMORY, WIRE, WIRE_WITH_SCAR] {
        for (mode, backends) in [(Mode::R1, 1), (Mode::R32, 3), (Mode::R32, 5)] {
            in_runtime(|env| async move {
                let world = world(env, mode, backends, can).await;
                let items: Vec<_> = (0..200).map(|n| (key(n), value(n, 100 + 37 * n as usize))).collect();
                let versions = world.cell.set(items.clone()).await;
                let mut keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
                keys.push(Bytes::from("never set"));
                let consistent = world.cell.get_consistent(&keys).await;
                for ((lookup, (_, value)), version) in consistent.iter().zip(&items).zip(versions) {
                    let (version, value) = (version.expect("set"), value.clone());
                    let expected = Lookup::Hit { version, value, extras: ItemExtras::default() };
                    assert_eq!(*lookup, expected);
                }
                assert_eq!(consistent[200], Lookup::Miss);
                for lookup in world.cell.get_relaxed(&keys).await.iter().zip(&items) {
                    // The third replica may still be on its way to it.
                    assert!(matches!(lookup.0, Lookup::Miss) || *hit(lookup.0) == lookup.1.1);
                }
            });
        }
    }
}

/// Keys of which each replica group of three backends gets some.
pub(super) fn items(count: u32, len: usize) -> Vec<(Bytes, Bytes)> {
    (0..count).map(|n| (key(n), value(n, len))).collect()
}

pub(super) fn keys_of(items: &[(Bytes, Bytes)]) -> Vec<Bytes> {
    items.iter().map(|(key, _)| key.clone()).collect()
}

/// A cell of which all replicas have so many items of such a length, with these and their keys.
pub(super) async fn filled(
    env: Env,
    mode: Mode,
    backends: usize,
    can: Capabilities,
    (count, len): (u32, usize),
) -> (World, Vec<(Bytes, Bytes)>, Vec<Bytes>) {
    let world = world(env, mode, backends, can).await;
    let items = items(count, len);
    world.set_everywhere(&items).await;
    let keys = keys_of(&items);
    (world, items, keys)
}

impl World {
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Sets, and waits until all three replicas have it. Nothing else may be on its way to them.
    pub(super) async fn set_everywhere(&self, items: &[(Bytes, Bytes)]) {
        let before = self.carried_out();
        for result in self.cell.set(items.to_vec()).await {
            result.expect("all backends are there");
        }
        self.until_carried_out(before + (self.cell.inner().mode.replicas() * items.len()) as u64).await;
    }

    /// SETs that the backends have carried out, superseded ones included.
    fn carried_out(&self) -> u64 {
        let stats = self.backends.iter().map(|(backend, _)| backend.stats());
        stats.map(|stats| stats.sets + stats.superseded).sum()
    }

    async fn until_carried_out(&self, wanted: u64) {
        let mut seen = Seen::default();
        while self.carried_out() < wanted {
            // One that is superseded rings nothing, and may be the last: hence a deadline to look again.
            self.cell.watch(&mut seen, Duration::from_millis(10)).await;
        }
    }

    pub(super) fn lose(&self, backend: usize) {
        self.faults[backend].lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn assert_all_hit(&self, lookups: &[Lookup], items: &[(Bytes, Bytes)]) {
        for (lookup, (_, value)) in lookups.iter().zip(items) {
            assert_eq!(hit(lookup), value);
        }
    }
}

#[test]
fn with_one_of_three_backends_gone_everything_works() {
    for can in [MEMORY, WIRE, WIRE_WITH_SCAR] {
        in_runtime(|env| async move {
            let (world, items, keys) = filled(env, Mode::R32, 3, can, (30, 500)).await;
            world.lose(1);
            for _ in 0..5 {
                world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
                world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
            }
            let newer: Vec<_> = keys.iter().map(|key| (key.clone(), Bytes::from("newer"))).collect();
            for result in world.cell.set(newer.clone()).await {
                result.expect("two are enough");
            }
            world.assert_all_hit(&world.cell.get_consistent(&keys).await, &newer);
            assert_eq!(world.cell.live_backends(), 2);
            assert_eq!(world.cell.stats().failed, 0);
        });
    }
}

#[test]
fn with_two_of_three_gone_relaxed_reads_use_the_third_and_the_rest_fails_without_waiting() {
    for can in [MEMORY, WIRE, WIRE_WITH_SCAR] {
        in_runtime(|env| async move {
            let (world, items, keys) = filled(env, Mode::R32, 3, can, (30, 500)).await;
            // A deadline that the test would not survive: nothing below may wait for it.
            set_deadline(&world.cell, Duration::from_secs(3600));
            world.lose(0);
            world.lose(2);
            world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
            for lookup in world.cell.get_consistent(&keys).await {
                assert_eq!(lookup, Lookup::Failed(CellFailure::Unreachable));
            }
            for result in world.cell.set(items.clone()).await {
                assert_eq!(result, Err(SetError::Unreachable));
            }
            world.lose(1);
            for lookup in world.cell.get_relaxed(&keys).await {
                assert_eq!(lookup, Lookup::Failed(CellFailure::Unreachable));
            }
        });
    }
}

#[test]
fn an_emptied_backend_is_outvoted_and_an_emptied_cell_misses() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE, (30, 500)).await;
        world.backends[2].0.clear();
        world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
        for (lookup, (_, value)) in world.cell.get_relaxed(&keys).await.iter().zip(&items) {
            assert!(*lookup == Lookup::Miss || hit(lookup) == value);
        }
        assert_eq!(world.cell.clear().await, 3);
        assert!(world.cell.get_consistent(&keys).await.iter().all(|lookup| *lookup == Lookup::Miss));
    });
}

#[test]
fn replicas_that_hold_different_versions_for_good_make_a_consistent_read_fail() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE, (1, 500)).await;
        set_deadline(&world.cell, Duration::from_millis(50));
        // The first misses a SET that the second gets; the third is gone.
        world.faults[0].calls_stalled.store(true, Ordering::Relaxed);
        world.lose(2);
        let before = world.carried_out();
        let result = world.cell.set(items.clone()).await;
        assert!(result[0].is_err(), "one acknowledgement is not enough");
        world.until_carried_out(before + 1).await;
        set_deadline(&world.cell, Duration::from_secs(60));
        world.faults[0].calls_stalled.store(false, Ordering::Relaxed);
        let lookup = world.cell.get_consistent(&keys).await;
        assert_eq!(lookup[0], Lookup::Failed(CellFailure::NoQuorum));
        world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
    });
}

#[test]
fn a_relaxed_read_that_a_stalled_backend_keeps_waiting_is_hedged() {
    for can in [WIRE, WIRE_WITH_SCAR] {
        in_runtime(|env| async move {
            let (world, items, keys) = filled(env, Mode::R32, 3, can, (30, 500)).await;
            world.faults[0].stalled.store(true, Ordering::Relaxed);
            // One call in three begins there.
            while world.cell.stats().hedged == 0 {
                world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
            }
            // Consistent reads and SETs have two others.
            world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
            for result in world.cell.set(items.clone()).await {
                result.expect("two are enough");
            }
        });
    }
}

/// Reads 400 keys where no backend answers any more, after `make` has been told of each.
fn assert_only_the_budget_is_hedged(make: fn(&Replica, Instant)) {
    in_runtime(async move |env| {
        let (world, _, keys) = filled(env, Mode::R32, 3, WIRE, (400, 100)).await;
        set_deadline(&world.cell, Duration::from_millis(50));
        for (replica, faults) in world.cell.inner().replicas.iter().zip(&world.faults) {
            faults.stalled.store(true, Ordering::Relaxed);
            make(replica, world.env.now());
        }
        let lookups = world.cell.get_relaxed(&keys).await;
        assert!(lookups.iter().all(|lookup| *lookup == Lookup::Failed(CellFailure::Deadline)));
        // 64 saved up, which 400 reads add nothing to.
        assert_eq!(world.cell.stats().hedged, 64);
    });
}

#[test]
fn a_backend_that_is_slow_but_answers_is_hedged_as_far_as_the_budget_goes_only() {
    assert_only_the_budget_is_hedged(|replica, _| {
        // As if it answered others all the time.
        replica.live().expect("it is connected").answered_ns.store(u64::MAX, Ordering::Relaxed);
    });
}

#[test]
fn where_all_backends_were_late_reads_are_hedged_as_far_as_the_budget_goes_only() {
    // None of the three is any better.
    assert_only_the_budget_is_hedged(|replica, now| replica.suspect(now + Duration::from_secs(3600)));
}

#[test]
fn a_process_that_runs_late_itself_hedges_as_far_as_the_budget_goes_only() {
    for (late, hedged) in [(Duration::ZERO, 400), (Duration::from_millis(5), 64)] {
        let (by_hand, clock) = world_by_hand();
        in_runtime(|env| async move {
            let (world, _, keys) = filled(env, Mode::R32, 3, WIRE, (400, 100)).await;
            change(&world.cell, |inner| inner.env = by_hand);
            for (replica, faults) in world.cell.inner().replicas.iter().zip(&world.faults) {
                faults.stalled.store(true, Ordering::Relaxed);
                // The clock by hand begins anew.
                replica.live().expect("it is connected").answered_ns.store(0, Ordering::Relaxed);
            }
            let hedge_after = world.cell.inner().hedge_after;
            clock.advance(Duration::from_secs(1));
            let mut read = std::pin::pin!(world.cell.get_relaxed(&keys));
            assert!(futures::poll!(&mut read).is_pending());
            assert_eq!(world.cell.stats().hedged, 0);
            // Nobody answers. Who looks in time takes that for what it is.
            clock.advance(hedge_after + late);
            assert!(futures::poll!(&mut read).is_pending());
            assert_eq!(world.cell.stats().hedged, hedged);
        });
    }
}

#[test]
fn a_backend_that_was_late_is_not_the_first_to_be_asked_for_a_while() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE, (30, 500)).await;
        world.cell.inner().replicas[1].suspect(world.env.now() + Duration::from_secs(3600));
        let before = world.faults[1].reads.load(Ordering::Relaxed);
        world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
        assert_eq!(world.faults[1].reads.load(Ordering::Relaxed), before);
        // But it is asked rather than nobody.
        world.lose(0);
        world.lose(2);
        world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
    });
}

#[test]
fn when_all_backends_stall_operations_end_at_the_deadline() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        set_deadline(&world.cell, Duration::from_millis(20));
        for faults in &world.faults {
            faults.stalled.store(true, Ordering::Relaxed);
        }
        let keys = [key(1)];
        assert_eq!(world.cell.get_relaxed(&keys).await, [Lookup::Failed(CellFailure::Deadline)]);
        assert_eq!(world.cell.get_consistent(&keys).await, [Lookup::Failed(CellFailure::Deadline)]);
        assert_eq!(world.cell.set(items(1, 1)).await, [Err(SetError::Deadline)]);
        assert_eq!(world.cell.clear().await, 0);
        assert_eq!(world.cell.stats().failed, 2);
    });
}

/// More keys than one lookup, or one CALL, takes: some go behind others, and none of them begins to count anew.
#[test]
fn one_operation_with_many_keys_has_one_deadline_for_all() {
    for can in [WIRE, WIRE_WITH_SCAR] {
        let (by_hand, clock) = world_by_hand();
        in_runtime(|env| async move {
            let world = world(env, Mode::R32, 3, can).await;
            let deadline = world.cell.inner().deadline;
            change(&world.cell, |inner| {
                Arc::make_mut(&mut inner.sending).env = by_hand.clone();
                inner.env = by_hand;
            });
            for faults in &world.faults {
                faults.stalled.store(true, Ordering::Relaxed);
            }
            let items = items(2 * MUTATE_ITEMS_MAX as u32 + 1, 1);
            let keys = keys_of(&items);
            assert!(keys.len() > 3 * KEYS_PER_LOOKUP_MAX);
            let cell = &world.cell;
            let late = vec![Lookup::Failed(CellFailure::Deadline); keys.len()];

            let mut relaxed = std::pin::pin!(cell.get_relaxed(&keys));
            assert!(futures::poll!(&mut relaxed).is_pending());
            clock.advance(deadline);
            assert_eq!(futures::poll!(&mut relaxed), Poll::Ready(late.clone()));

            let mut consistent = std::pin::pin!(cell.get_consistent(&keys));
            assert!(futures::poll!(&mut consistent).is_pending());
            clock.advance(deadline);
            assert_eq!(futures::poll!(&mut consistent), Poll::Ready(late));

            let mut set = std::pin::pin!(cell.set(items));
            assert!(futures::poll!(&mut set).is_pending());
            clock.advance(deadline);
            let Poll::Ready(results) = futures::poll!(&mut set) else { panic!("it waits for more than one") };
            assert_eq!(results.len(), 2 * MUTATE_ITEMS_MAX + 1);
            // Whose CALL has ended at the same moment, by another thread, are told that nobody answers.
            let is_late = |result| matches!(result, Err(SetError::Deadline | SetError::Unreachable));
            assert!(results.into_iter().all(is_late));
        });
    }
}

#[test]
fn torn_reads_are_read_again_and_asked_for_by_call_in_the_end() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R1, 1, WIRE, (10, 5000)).await;
        let torn = &world.faults[0].torn_reads;
        for count in 1..=3 {
            torn.store(count, Ordering::Relaxed);
            for lookup in world.cell.get_relaxed(&keys).await.iter().zip(&items) {
                // A torn bucket may look like a bucket without the key.
                assert!(*lookup.0 == Lookup::Miss || *hit(lookup.0) == lookup.1.1);
            }
        }
        torn.store(u64::MAX, Ordering::Relaxed);
        for lookup in world.cell.get_relaxed(&keys).await {
            // The backend's own code looks up in the end.
            assert!(matches!(lookup, Lookup::Miss | Lookup::Hit { .. }), "{lookup:?}");
        }
        torn.store(0, Ordering::Relaxed);
        world.assert_all_hit(&world.cell.get_relaxed(&keys).await, &items);
    });
}

#[test]
fn overflowed_buckets_are_read_by_call_and_others_never() {
    for can in [MEMORY, WIRE, WIRE_WITH_SCAR] {
        in_runtime(|env| async move {
            let config = BackendConfig { buckets: 2, ..small(ID) };
            let backends: Vec<_> = (0..3).map(|_| served(&env, config)).collect();
            let world = world_of(env, Mode::R32, backends, can).await;
            let lookups = |world: &World| {
                let calls = world.faults.iter().map(|faults| faults.calls.lock().clone());
                calls.flatten().filter(|method| *method == crate::protocol::METHOD_LOOKUP).count()
            };
            let all = items(60, 700);
            world.set_everywhere(&all[..6]).await;
            world.assert_all_hit(&world.cell.get_relaxed(&keys_of(&all[..6])).await, &all);
            assert_eq!(lookups(&world), 0);
            world.set_everywhere(&all).await;
            assert!(world.backends[0].0.stats().overflowed > 0);
            world.assert_all_hit(&world.cell.get_relaxed(&keys_of(&all)).await, &all);
            world.assert_all_hit(&world.cell.get_consistent(&keys_of(&all)).await, &all);
            assert!(lookups(&world) > 0);
            assert_eq!(world.cell.get_consistent(&[Bytes::from("none")]).await, [Lookup::Miss]);
            for result in world.cell.erase(keys_of(&all)).await {
                result.expect("erased");
            }
            for lookup in world.cell.get_consistent(&keys_of(&all)).await {
                assert_eq!(lookup, Lookup::Miss);
            }
        });
    }
}

#[test]
fn scan_and_read_answers_what_two_reads_do() {
    in_runtime(|env| async move {
        // Few buckets, sizes up to the greatest, some keys erased, some never set.
        let config = BackendConfig { buckets: 4, capacity_bytes: 64 << 20, ..small(ID) };
        let backends = vec![served(&env, config)];
        let scanning = world_of(env.clone(), Mode::R1, backends.clone(), WIRE_WITH_SCAR).await;
        let reading = world_of(env, Mode::R1, backends, WIRE).await;
        let items: Vec<_> =
            (0..80).map(|n| (key(n), value(n, [0, 1, 5000, 70_000, 1 << 20][n as usize % 5]))).collect();
        scanning.cell.set(items.clone()).await;
        scanning.cell.erase((0..80).step_by(7).map(key).collect()).await;
        let keys: Vec<Bytes> = (0..100).map(key).collect();
        let scanned = scanning.cell.get_relaxed(&keys).await;
        assert_eq!(scanned, reading.cell.get_relaxed(&keys).await);
        assert_eq!(scanned, reading.cell.get_consistent(&keys).await);
        assert_eq!(scanned.iter().filter(|lookup| **lookup == Lookup::Miss).count(), 32);
        assert!(scanning.faults[0].scars.load(Ordering::Relaxed) > 0);
        assert_eq!(reading.faults[0].scars.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_cell_at_rest_answers_nothing_and_answers_all_when_it_is_woken() {
    for can in [MEMORY, WIRE] {
        in_runtime(|env| async move {
            let (world, items, keys) = filled(env, Mode::R32, 3, can, (10, 500)).await;
            let lost = Lookup::Failed(CellFailure::Unreachable);
            for _ in 0..3 {
                world.cell.rest();
                assert!(world.cell.get_relaxed(&keys).await.iter().all(|lookup| *lookup == lost));
                assert!(world.cell.get_consistent(&keys).await.iter().all(|lookup| *lookup == lost));
                world.cell.wake();
                world.cell.awake().await;
                world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
            }
        });
    }
}

#[test]
fn who_waits_for_a_cell_that_wakes_does_not_wait_for_one_backend_of_three_that_is_gone() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE, (10, 500)).await;
        world.cell.rest();
        world.faults[1].lost.store(true, Ordering::Relaxed);
        world.cell.wake();
        // The deadline is a minute.
        world.cell.awake().await;
        world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
    });
}

#[test]
fn a_consistent_read_over_a_wire_fetches_the_data_once() {
    in_runtime(|env| async move {
        let (world, items, keys) = filled(env, Mode::R32, 3, WIRE_WITH_SCAR, (1, 100_000)).await;
        world.assert_all_hit(&world.cell.get_consistent(&keys).await, &items);
        let bytes = world.cell.stats().bytes;
        assert!((100_000..110_000).contains(&bytes), "{bytes} bytes for a value of 100,000");
    });
}

#[test]
fn a_writer_whose_clock_is_slow_overtakes_one_whose_clock_is_fast() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        let wall_ms = world.env.wall_ms();
        let ahead =
            Version { timestamp_us: (wall_ms as u64 + 30 * 60_000) * 1000, client_id: 1, sequence: 0 };
        assert!(world.cell.inner().versions.follow(ahead, wall_ms));
        world.set_everywhere(&items(3, 10)).await;
        let connections = world
            .backends
            .iter()
            .map(|(backend, doorbell)| Double::connect(&world.env, backend, doorbell, WIRE).0);
        let mut config = config(Mode::R32, connections.collect());
        config.client_id = 2;
        let other = Cell::connect(&world.env, config).await.expect("three");
        for n in 0..3 {
            let version = other.set(vec![(key(n), Bytes::from("mine"))]).await.remove(0).expect("followed");
            assert!(version > ahead);
            assert_eq!(hit(&other.get_consistent(&[key(n)]).await[0]), "mine");
        }
    });
}

#[test]
fn a_version_from_a_broken_clock_is_not_taken_and_silences_nobody() {
    in_runtime(|env| async move {
        let world = world(env.clone(), Mode::R1, 1, WIRE).await;
        let held = Version { timestamp_us: u64::MAX, client_id: 9, sequence: 0 };
        let item = crate::layout::encode_item(&key(0), held, Some(b"x"));
        let live = world.cell.inner().replicas[0].live().expect("connected");
        let payload = crate::protocol::encode_mutate(ID, [item].iter());
        let taken = live.connection.call_with_pieces(crate::protocol::METHOD_MUTATE, payload).await;
        let refused = crate::protocol::REFUSED_VERSION;
        assert!(
            matches!(taken, Err(tailwater_rma::CallError::Refused { code, .. }) if code == refused),
            "{taken:?}"
        );
        world.cell.set(items(1, 1)).await.remove(0).expect("the key can be written");
    });
}

#[test]
fn full_queues_refuse_and_empty_again() {
    in_runtime(|env| async move {
        let backends: Vec<_> = (0..3).map(|_| served(&env, small(ID))).collect();
        let doubles =
            backends.iter().map(|(backend, doorbell)| Double::connect(&env, backend, doorbell, WIRE));
        let (connections, faults): (Vec<_>, Vec<_>) = doubles.unzip();
        let mut config = config(Mode::R32, connections);
        config.queue_bytes_max = 10_000;
        config.deadline = Duration::from_millis(50);
        let cell = Cell::connect(&env, config).await.expect("three");
        for faults in &faults {
            faults.calls_stalled.store(true, Ordering::Relaxed);
        }
        let results = cell.set(items(200, 1000)).await;
        let overloaded = results.iter().filter(|result| **result == Err(SetError::Overloaded)).count();
        assert!(overloaded > 150, "{overloaded} of 200 KB do not fit queues of 10 KB");
        assert!(results.iter().all(Result::is_err));
        for faults in &faults {
            faults.calls_stalled.store(false, Ordering::Relaxed);
        }
        // The CALLs that stalled end at their deadline.
        while cell.set(items(1, 1000)).await[0].is_err() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn concurrent_sets_travel_together() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        let sets = (0..500).map(|n| world.cell.set(vec![(key(n), value(n, 10))]));
        for results in futures::future::join_all(sets).await {
            results[0].expect("set");
        }
        let calls: usize = world.faults.iter().map(|faults| faults.calls.lock().len()).sum();
        assert!(calls < 750, "{calls} CALLs for 1500 items");
    });
}

#[test]
fn a_cell_that_is_dropped_with_sets_under_way_leaves_nothing_behind() {
    in_runtime(|env| async move {
        let world = world(env.clone(), Mode::R32, 3, WIRE).await;
        for faults in &world.faults {
            faults.calls_stalled.store(true, Ordering::Relaxed);
        }
        let replicas: Vec<_> = world.cell.inner().replicas.iter().map(Arc::downgrade).collect();
        for n in 0..4 {
            // Polled once, and abandoned.
            assert!(futures::poll!(Box::pin(world.cell.set(vec![(key(n), value(n, 10))]))).is_pending());
        }
        drop(world.cell);
        while replicas.iter().any(|replica| replica.upgrade().is_some()) {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn the_last_of_a_row_of_sets_stays() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        for n in 0..200 {
            world.cell.set(vec![(key(0), value(n, 100))]).await.remove(0).expect("set");
        }
        // Two are enough for each; the third one's are still on their way.
        world.until_carried_out(3 * 200).await;
        world.set_everywhere(&items(1, 7)).await;
        for (backend, _) in &world.backends {
            assert_eq!(backend.stats().items, 1);
        }
        for _ in 0..20 {
            assert_eq!(hit(&world.cell.get_relaxed(&[key(0)]).await[0]), &value(0, 7));
        }
    });
}

#[test]
fn consistent_reads_beside_a_writer_never_go_back_and_never_miss_what_was_acknowledged() {
    for can in [MEMORY, WIRE] {
        in_runtime(|env| async move {
            let world = world(env.clone(), Mode::R32, 3, can).await;
            world.set_everywhere(&items(1, 100)).await;
            let acknowledged = Arc::new(parking_lot::Mutex::new(Version::ZERO));
            let writing = {
                let (cell, acknowledged) = (world.cell.clone(), Arc::clone(&acknowledged));
                async move {
                    for n in 0..300 {
                        let version = cell.set(vec![(key(0), value(n, 100 + n as usize))]).await.remove(0);
                        *acknowledged.lock() = version.expect("all are there");
                    }
                }
            };
            let (done, mut is_done) = tokio::sync::oneshot::channel();
            let writer = env.spawn("writer", async move {
                writing.await;
                // The test may have failed and gone.
                let _ = done.send(());
            });
            let mut newest = Version::ZERO;
            while is_done.try_recv().is_err() {
                let before = *acknowledged.lock();
                match world.cell.get_consistent(&[key(0)]).await.remove(0) {
                    Lookup::Hit { version, .. } => {
                        assert!(version >= before, "acknowledged before the read began");
                        assert!(version >= newest, "reads went back");
                        newest = version;
                    }
                    // Replaced as often as it was looked at.
                    Lookup::Failed(CellFailure::NoQuorum) => {}
                    other => panic!("{other:?}"),
                }
                tokio::task::yield_now().await;
            }
            drop(writer);
        });
    }
}

#[test]
fn a_watch_completes_when_something_was_set_and_at_its_deadline_otherwise() {
    in_runtime(|env| async move {
        let world = world(env.clone(), Mode::R32, 3, MEMORY).await;
        let mut seen = Seen::default();
        // The backends came, and their doorbells are first seen.
        while world.cell.watch(&mut seen, Duration::from_millis(30)).await {}
        let cell = world.cell.clone();
        let setter = env.spawn("setter", async move {
            cell.set(items(1, 1)).await.remove(0).expect("set");
        });
        assert!(world.cell.watch(&mut seen, Duration::from_secs(3600)).await);
        drop(setter);
        world.lose(0);
        world.lose(1);
        world.lose(2);
        while world.cell.live_backends() > 0 {
            world.cell.watch(&mut seen, Duration::from_secs(3600)).await;
        }
    });
}

/// Backends that come and go.
struct Restarting {
    env: Env,
    now: parking_lot::Mutex<Option<(Arc<Backend>, LocalDoorbell)>>,
    lost: parking_lot::Mutex<Vec<Arc<CellFaults>>>,
}

impl Connector for Restarting {
    fn connect<'a>(&'a self, _: &'a BackendPlace) -> Connecting<'a> {
        let answer = match &*self.now.lock() {
            Some((backend, doorbell)) => {
                let (connection, faults) = Double::connect(&self.env, backend, doorbell, WIRE);
                self.lost.lock().push(faults);
                Ok(connection)
            }
            None => Err("down".to_owned()),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[test]
fn a_restarted_backend_is_connected_again_and_one_of_another_configuration_is_not() {
    in_runtime(|env| async move {
        let connector = Arc::new(Restarting {
            env: env.clone(),
            now: parking_lot::Mutex::new(Some(served(&env, small(ID)))),
            lost: parking_lot::Mutex::default(),
        });
        let mut config = CellConfig::new(ID, Mode::R1, Backends::through(Arc::clone(&connector) as _, 1), 1);
        config.deadline = Duration::from_secs(60);
        config.connect_deadline = Duration::from_secs(60);
        config.watch_slice = Duration::from_millis(5);
        config.reconnect_after_max = Duration::from_millis(5);
        config.reconnect_after_min = Duration::from_millis(1);
        let cell = Cell::connect(&env, config).await.expect("one");
        cell.set(items(1, 10)).await.remove(0).expect("set");

        let down = |next: Option<(Arc<Backend>, LocalDoorbell)>| {
            *connector.now.lock() = next;
            connector.lost.lock().drain(..).for_each(|faults| faults.lost.store(true, Ordering::Relaxed));
        };
        down(None);
        assert_eq!(cell.get_relaxed(&[key(0)]).await, [Lookup::Failed(CellFailure::Unreachable)]);
        down(Some(served(&env, small(ID + 1))));
        let mut attempts = connector.lost.lock().len();
        while attempts < 3 {
            tokio::task::yield_now().await;
            attempts = connector.lost.lock().len();
            assert_eq!(cell.live_backends(), 0);
        }
        down(Some(served(&env, small(ID))));
        let mut seen = Seen::default();
        while cell.live_backends() == 0 {
            cell.watch(&mut seen, Duration::from_secs(3600)).await;
        }
        assert_eq!(cell.get_relaxed(&[key(0)]).await, [Lookup::Miss], "it begins empty");
        cell.set(items(1, 10)).await.remove(0).expect("set");
        assert_eq!(hit(&cell.get_consistent(&[key(0)]).await[0]), &value(0, 10));
    });
}

#[test]
fn keys_and_values_beyond_the_limits_are_refused_one_by_one() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        let key_len = crate::limits::KEY_BYTES_MAX;
        let value_len = crate::limits::VALUE_BYTES_MAX;
        let zeros = |len: usize| Bytes::from(vec![0; len]);
        let results = world
            .cell
            .set(vec![
                (zeros(key_len), zeros(value_len)),
                (zeros(key_len + 1), zeros(1)),
                (zeros(1), zeros(value_len + 1)),
                (zeros(0), zeros(0)),
            ])
            .await;
        results[0].expect("at the limits");
        assert_eq!(results[1], Err(SetError::TooLarge { key_len: key_len + 1, value_len: 1 }));
        assert_eq!(results[2], Err(SetError::TooLarge { key_len: 1, value_len: value_len + 1 }));
        results[3].expect("empty");
        let lookups = world.cell.get_consistent(&[zeros(key_len), zeros(0)]).await;
        assert_eq!(hit(&lookups[0]).len(), value_len);
        assert_eq!(hit(&lookups[1]).len(), 0);
    });
}

#[test]
fn a_cell_with_too_few_backends_is_refused() {
    in_runtime(|env| async move {
        let error = Cell::connect(&env, config(Mode::R32, Vec::new())).await.expect_err("refused");
        assert_eq!(error, ConfigurationError::Backends { backends: 0, mode: Mode::R32 });
        assert_eq!(error.to_string(), "a cell of 0 backends: R32 needs at least 3 and at most 1024");
    });
}

#[test]
fn parts_are_one_piece_if_they_lie_next_to_each_other_in_one_frame_and_are_most_of_it() {
    let frame = Bytes::from((0..100).collect::<Vec<u8>>());
    let other = Bytes::from(vec![0; 100]);
    let frames = [other.clone(), frame.clone()];
    let whole = joined([&frame[10..40], &frame[40..41], &frame[41..90]], &frames);
    let whole = whole.expect("nothing lies in between");
    assert_eq!((whole.as_ptr(), &whole[..]), (frame[10..].as_ptr(), &frame[10..90]));
    assert_eq!(joined([&frame[10..40], &frame[41..90]], &frames), None, "a gap");
    assert_eq!(joined([&frame[40..90], &frame[10..40]], &frames), None, "another order");
    assert_eq!(joined([&frame[10..60], &other[..40]], &frames), None, "two frames");
    assert_eq!(joined([&frame[10..40]], &frames), None, "it would keep too much");
    assert_eq!(joined([&frame[..]], &frames[..1]), None, "another frame");
    assert_eq!(joined([], &frames), None);
}
