//! Backends are told which keys were read, and keep those.

use std::sync::atomic::Ordering;

use super::tests::{MEMORY, WIRE, config, hit, items, keys_of};
use super::*;
use crate::limits::TOUCHED_KEYS_MAX;
use crate::protocol::METHOD_TOUCH;
use crate::testing::{CellFaults, Double, in_runtime, served, small};
use crate::{Backend, BackendConfig, EvictionPolicy};

struct Evicting {
    env: Env,
    backends: Vec<Arc<Backend>>,
    faults: Vec<Arc<CellFaults>>,
    cell: Cell,
}

impl Evicting {
    /// Three backends with room for about 200 values of 4 KiB each.
    async fn start(
        env: Env,
        eviction: EvictionPolicy,
        every: Option<Duration>,
        can: tailwater_rma::Capabilities,
    ) -> Self {
        let shape = BackendConfig { eviction_at: 0.1, eviction, ..small(77) };
        let served: Vec<_> = (0..3).map(|_| served(&env, shape)).collect();
        let doubles = served.iter().map(|(backend, doorbell)| Double::connect(&env, backend, doorbell, can));
        let (connections, faults) = doubles.unzip();
        let mut config = config(Mode::R32, connections);
        config.touch_every = every;
        let cell = Cell::connect(&env, config).await.expect("three backends");
        Self { env, backends: served.into_iter().map(|(backend, _)| backend).collect(), faults, cell }
    }

    async fn wait_for(&self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    fn touches(&self) -> Vec<u64> {
        self.backends.iter().map(|backend| backend.stats().touches).collect()
    }

    fn touch_calls(&self) -> Vec<usize> {
        let of = |faults: &Arc<CellFaults>| {
            faults.calls.lock().iter().filter(|method| **method == METHOD_TOUCH).count()
        };
        self.faults.iter().map(of).collect()
    }

    /// Sets, and waits until all replicas have it.
    async fn set(&self, items: Vec<(Bytes, Bytes)>) {
        let sets = |world: &Self| -> Vec<u64> { world.backends.iter().map(|of| of.stats().sets).collect() };
        let (before, count) = (sets(self), items.len() as u64);
        self.cell.set(items).await.into_iter().for_each(|set| assert!(set.is_ok()));
        self.wait_for(|world| sets(world).iter().zip(&before).all(|(now, before)| *now >= before + count))
            .await;
    }
}

#[test]
fn keys_that_are_read_one_sidedly_outlast_a_scan_of_cold_sets() {
    const EVERY: Option<Duration> = Some(Duration::from_millis(1));
    for (eviction, every, can, is_kept) in [
        (EvictionPolicy::Lru, EVERY, MEMORY, true),
        (EvictionPolicy::S3Fifo, EVERY, WIRE, true),
        (EvictionPolicy::Lrm, EVERY, MEMORY, false),
        (EvictionPolicy::Lru, None, MEMORY, false),
        (EvictionPolicy::S3Fifo, None, MEMORY, false),
    ] {
        in_runtime(|env| async move {
            let world = Evicting::start(env, eviction, every, can).await;
            let hot = items(20, 4_096);
            let keys = keys_of(&hot);
            world.set(hot.clone()).await;
            for round in 0..30 {
                let before = world.touches();
                loop {
                    world.cell.get_relaxed(&keys[..10]).await;
                    world.cell.get_consistent(&keys[10..]).await;
                    let now = world.touches();
                    // A read that meets another one notes nothing, so some may be told of twice and others not yet.
                    if !is_kept || now.iter().zip(&before).all(|(now, before)| *now >= before + 40) {
                        break;
                    }
                    world.env.sleep(Duration::from_millis(1)).await;
                }
                let cold = (0..20).map(|n| (format!("cold {round} {n}").into(), hot[0].1.clone()));
                world.set(cold.collect()).await;
            }
            let held = world.cell.get_consistent(&keys).await;
            let hits = held.iter().filter(|lookup| lookup.outcome() == LookupOutcome::Hit);
            assert_eq!(hits.count(), if is_kept { 20 } else { 0 }, "{eviction:?}, {every:?}");
            held.iter()
                .zip(&hot)
                .filter(|_| is_kept)
                .for_each(|(held, (_, value))| assert_eq!(hit(held), value));
            assert!(every.is_some() || world.cell.stats().touches == 0);
        });
    }
}

#[test]
fn backends_that_do_not_go_by_reads_are_told_once_and_one_that_is_connected_anew_once_more() {
    in_runtime(|env| async move {
        let every = Some(Duration::from_millis(1));
        let world = Evicting::start(env, EvictionPolicy::Lrm, every, WIRE).await;
        let hot = items(10, 100);
        let keys = keys_of(&hot);
        world.set(hot).await;
        let touches = &world.cell.shared.touches;
        let is_wanted = || touches.is_wanted();
        assert!(is_wanted());
        let read_until = async |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                world.cell.get_consistent(&keys).await;
                world.env.sleep(Duration::from_millis(1)).await;
            }
        };
        read_until(&|| !is_wanted()).await;
        assert_eq!(world.touch_calls(), [1; 3]);
        world.wait_for(|world| world.cell.shared.touches.noted() == 0).await;
        world.cell.get_consistent(&keys).await;
        assert_eq!(touches.noted(), 0, "a read notes nothing");

        let replica = Arc::clone(&world.cell.inner().replicas[1]);
        replica.give_up(&replica.live().expect("it was connected"));
        read_until(&|| world.touch_calls()[1] == 2).await;
        read_until(&|| !is_wanted()).await;
        assert_eq!(world.touch_calls(), [1, 2, 1]);
        assert!(world.touches().iter().all(|touches| *touches == 0));
    });
}

#[test]
fn a_key_is_noted_once_and_so_many_keys_at_most_and_what_was_missed_is_not() {
    let touches = Touches::default();
    let key = |n: usize| Bytes::from(n.to_string());
    let found = Lookup::Hit { version: Version::ZERO, value: Bytes::new(), extras: ItemExtras::default() };
    touches.note(&[key(0)], std::slice::from_ref(&found));
    assert_eq!(touches.noted(), 0, "nobody is connected who wants that");
    touches.want();
    let keys = [key(1), key(2), key(1), key(3), key(4)];
    let failed = Lookup::Failed(CellFailure::Deadline);
    touches.note(&keys, &[found.clone(), found.clone(), found.clone(), Lookup::Miss, failed]);
    assert_eq!(touches.noted(), 2);
    let many: Vec<Bytes> = (0..2 * TOUCHED_KEYS_MAX).map(key).collect();
    touches.note(&many, &vec![found; many.len()]);
    assert_eq!(touches.noted(), TOUCHED_KEYS_MAX);
}

#[test]
fn a_backend_that_answers_no_calls_keeps_nobody_waiting() {
    in_runtime(|env| async move {
        let every = Some(Duration::from_millis(1));
        let world = Evicting::start(env, EvictionPolicy::Lru, every, MEMORY).await;
        let hot = items(10, 100);
        let keys = keys_of(&hot);
        world.set(hot).await;
        world.faults[0].calls_stalled.store(true, Ordering::Relaxed);
        let is_told = |world: &Evicting| world.touches()[1] > 0 && world.touches()[2] > 0;
        while !is_told(&world) {
            let read = world.cell.get_consistent(&keys).await;
            assert!(read.iter().all(|lookup| lookup.outcome() == LookupOutcome::Hit));
            world.env.sleep(Duration::from_millis(1)).await;
        }
    });
}
