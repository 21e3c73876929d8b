//! Backends that start again and are refilled, and cells whose backends change in phases.

use std::sync::Weak;

use parking_lot::Mutex as Lock;
use tailwater_rma::{Capabilities, LocalDoorbell};

use super::*;
use crate::backend::{Backend, BackendConfig, RefillConfig};
use crate::testing::{in_runtime, served, small};

const ID: u64 = 9 << 32 | 1;
pub(super) const TRANSPORTS: [Capabilities; 3] = [
    Capabilities { memory: true, scar: false },
    Capabilities { memory: false, scar: false },
    Capabilities { memory: false, scar: true },
];

/// Backends by their numbers, which reach each other.
pub(super) struct RefilledBackends {
    env: Env,
    can: Capabilities,
    /// The pause before one is compared with the others again.
    again_after: Duration,
    running: Lock<BTreeMap<u32, (Arc<Backend>, LocalDoorbell)>>,
    /// What leads to each, to be cut.
    faults: Lock<Vec<(u32, Arc<crate::testing::CellFaults>)>>,
}

/// What connects to them; backends have it too, and are not kept by it.
struct ReachBackends(Weak<RefilledBackends>);

impl RefilledBackends {
    pub(super) fn with(env: &Env, can: Capabilities, numbers: impl IntoIterator<Item = u32>) -> Arc<Self> {
        Self::comparing_after(env, can, numbers, Duration::from_millis(20))
    }

    /// The same with another pause between comparisons. Each configuration that a backend is told begins one at once.
    pub(super) fn comparing_after(
        env: &Env,
        can: Capabilities,
        numbers: impl IntoIterator<Item = u32>,
        again_after: Duration,
    ) -> Arc<Self> {
        let (running, faults) = Default::default();
        let backends = Arc::new(Self { env: env.clone(), can, again_after, running, faults });
        numbers.into_iter().for_each(|number| backends.start(number));
        backends
    }

    /// Starts one, or starts it again.
    pub(super) fn start(self: &Arc<Self>, number: u32) {
        self.start_with(number, small(0).capacity_bytes);
    }

    /// The same with so much memory.
    pub(super) fn start_with(self: &Arc<Self>, number: u32, capacity_bytes: u64) {
        self.stop(number);
        let (backend, doorbell) = served(&self.env, BackendConfig { capacity_bytes, ..small(0) });
        let config = RefillConfig {
            again_after: self.again_after,
            retry_after: Duration::from_millis(32),
            deadline: Duration::from_secs(60),
            bytes_per_second: u64::MAX,
        };
        backend.refill_from(Arc::new(ReachBackends(Arc::downgrade(self))), config);
        self.running.lock().insert(number, (backend, doorbell));
    }

    pub(super) fn stop(&self, number: u32) {
        self.running.lock().remove(&number);
        let is_to_it = |(to, faults): &mut (u32, Arc<crate::testing::CellFaults>)| {
            if *to == number {
                faults.lost.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            *to != number
        };
        self.faults.lock().retain_mut(is_to_it);
    }

    pub(super) fn backend(&self, number: u32) -> Arc<Backend> {
        Arc::clone(&self.running.lock()[&number].0)
    }

    async fn client(self: &Arc<Self>, numbers: &[u32], client_id: u32) -> Cell {
        self.client_of(Mode::R32, numbers, client_id).await
    }

    pub(super) async fn client_of(self: &Arc<Self>, mode: Mode, numbers: &[u32], client_id: u32) -> Cell {
        let mut configuration =
            Configuration::first(ID, "tiles", mode, vec![Vec::new(); numbers.len()]).expect("a cell");
        for (place, number) in configuration.backends.iter_mut().zip(numbers) {
            place.number = *number;
        }
        let mut config =
            CellConfig::of(configuration, Arc::new(ReachBackends(Arc::downgrade(self))), client_id);
        // On a busy machine nothing may fail for want of time.
        config.deadline = Duration::from_secs(60);
        config.connect_deadline = Duration::from_secs(60);
        config.reconnect_after_min = Duration::from_millis(1);
        config.reconnect_after_max = Duration::from_millis(5);
        config.watch_slice = Duration::from_millis(5);
        Cell::connect(&self.env, config).await.expect("a configuration")
    }

    /// Waits for something that these backends do by themselves.
    pub(super) async fn until(&self, done: impl Fn() -> bool) {
        while !done() {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn until_filled(&self, numbers: &[u32]) {
        let is_filled = |number: &u32| {
            let backend = self.backend(*number);
            backend.config_id() != 0 && backend.is_filled()
        };
        self.until(|| numbers.iter().all(is_filled)).await;
    }
}

impl Connector for ReachBackends {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        let connected = self.0.upgrade().and_then(|of| {
            let (served, doorbell) = of.running.lock().get(&backend.number)?.clone();
            let (connection, faults) = crate::testing::Double::connect(&of.env, &served, &doorbell, of.can);
            of.faults.lock().push((backend.number, faults));
            Some(connection)
        });
        Box::pin(std::future::ready(connected.ok_or_else(|| "it does not run".to_owned())))
    }
}

pub(super) fn items(what: &str) -> Vec<(Bytes, Bytes)> {
    (0..80).map(|n| (Bytes::from(format!("key {n}")), Bytes::from(format!("{what} {n}")))).collect()
}

pub(super) fn keys_of(items: &[(Bytes, Bytes)]) -> Vec<Bytes> {
    items.iter().map(|(key, _)| key.clone()).collect()
}

pub(super) async fn set(cell: &Cell, items: &[(Bytes, Bytes)]) {
    for result in cell.set(items.to_vec()).await {
        result.expect("a quorum is there");
    }
}

pub(super) async fn assert_all_there(cell: &Cell, items: &[(Bytes, Bytes)]) {
    for (lookup, (key, wanted)) in cell.get_consistent(&keys_of(items)).await.iter().zip(items) {
        assert!(matches!(lookup, Lookup::Hit { value, .. } if value == wanted), "{key:?}: {lookup:?}");
    }
}

#[test]
fn each_of_three_backends_dies_and_is_refilled_in_turn_and_nothing_is_lost() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..3);
            let cell = backends.client(&[0, 1, 2], 1).await;
            backends.until_filled(&[0, 1, 2]).await;
            set(&cell, &items("before")).await;
            let erased = Bytes::from_static(b"erased");
            set(&cell, &[(erased.clone(), Bytes::from_static(b"x"))]).await;
            cell.erase(vec![erased.clone()]).await.pop().expect("one").expect("a quorum is there");
            for number in 0..3 {
                backends.start(number);
                backends.until_filled(&[0, 1, 2]).await;
                assert_all_there(&cell, &items("before")).await;
            }
            assert_eq!(cell.get_consistent(&[erased]).await, [Lookup::Miss]);
            let copied: u64 = (0..3).map(|number| backends.backend(number).stats().copied).sum();
            assert!(copied >= 160, "{copied}");
            // And all goes on.
            set(&cell, &items("after")).await;
            assert_all_there(&cell, &items("after")).await;
        });
    }
}

#[test]
fn a_backend_that_reaches_nobody_says_that_it_does_not_know_and_takes_no_sets() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..3);
            let cell = backends.client(&[0, 1, 2], 1).await;
            backends.until_filled(&[0, 1, 2]).await;
            set(&cell, &items("value")).await;
            // One of three is away, and another one starts again: of both replicas of some values nothing is left.
            backends.stop(0);
            backends.start(1);
            backends.until(|| backends.backend(1).config_id() == ID).await;
            backends
                .until(|| backends.backend(1).stats().hindrance.contains("backend 0 is not reached"))
                .await;
            for lookup in cell.get_consistent(&keys_of(&items("value"))).await {
                assert!(matches!(lookup, Lookup::Failed(_)), "{lookup:?}");
            }
            // The client has found the one that has started again.
            backends.until(|| cell.live_backends() == 2).await;
            let set_one = cell.set(vec![(Bytes::from_static(b"a"), Bytes::from_static(b"b"))]);
            let answered = env.timeout(Duration::from_millis(50), set_one).await;
            assert_eq!(answered, None, "it is tried until the deadline");
            // Whoever is away comes back, and nothing is lost but what it had.
            backends.start(0);
            backends.until_filled(&[0, 1, 2]).await;
            set(&cell, &items("again")).await;
            assert_all_there(&cell, &items("again")).await;

            // Two are lost at once, and the third is away for good: emptied, the cell goes on.
            backends.stop(0);
            backends.start(1);
            backends.until(|| backends.backend(1).config_id() == ID).await;
            backends.until(|| cell.live_backends() == 2).await;
            assert_eq!(cell.clear().await, 2);
            // Until each of its keys is known to be gone, a lookup may say that it does not know.
            loop {
                match cell.get_consistent(&keys_of(&items("again"))).await.swap_remove(0) {
                    Lookup::Miss => break,
                    unknown => assert!(matches!(unknown, Lookup::Failed(_)), "{unknown:?}"),
                }
            }
            set(&cell, &items("more")).await;
            assert_all_there(&cell, &items("more")).await;
        });
    }
}

#[test]
fn a_cell_grows_and_shrinks_in_phases_and_nothing_is_lost() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..5);
            let cell = backends.client(&[0, 1, 2], 1).await;
            let other = backends.client(&[0, 1, 2], 2).await;
            backends.until_filled(&[0, 1, 2]).await;
            set(&cell, &items("first")).await;
            for (round, after) in [&[0, 1, 2, 3, 4][..], &[1, 3, 4], &[0, 1, 2, 3]].into_iter().enumerate() {
                let place = |number: &u32| BackendPlace::new(*number, Vec::new());
                let after: Vec<BackendPlace> = after.iter().map(place).collect();
                let next = cell.configuration().changing_to(after.clone()).expect("a change");
                let last = next.id + 2;
                assert!(cell.configure(next).await.expect("a configuration"));
                // Whoever owns the cell goes on with it, also another one.
                while cell.configuration().id < last {
                    assert!(cell.configuration().changing_to(after.clone()).is_err(), "one at a time");
                    set(&other, &items(&format!("round {round}"))).await;
                    assert_all_there(&cell, &items(&format!("round {round}"))).await;
                    let owner = if round == 1 { &other } else { &cell };
                    match owner.next_phase().await {
                        Some(next) => drop(owner.configure(next).await.expect("a configuration")),
                        None => env.sleep(Duration::from_millis(1)).await,
                    }
                    cell.configured_after(owner.configuration().id - 1).await;
                }
                assert_eq!(cell.configuration().backends, after);
                let expected = items(&format!("round {round}"));
                assert_all_there(&cell, &expected).await;
                assert_all_there(&other, &expected).await;
            }
        });
    }
}

#[test]
fn updates_are_counted_while_backends_change_and_start_again() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..4);
        let cell = backends.client(&[0, 1, 2], 1).await;
        backends.until_filled(&[0, 1, 2]).await;
        let key = Bytes::from_static(b"count");
        let one_more = |held: Option<&CellValue>| {
            let before: u64 =
                held.map_or(0, |held| String::from_utf8_lossy(&held.value).parse().expect("a number"));
            UpdateTo::Set((before + 1).to_string().into(), ItemExtras::default())
        };
        let mut counted = 0_u64;
        let place = |number| BackendPlace::new(number, Vec::new());
        let next = cell.configuration().changing_to([0, 2, 3].map(place).to_vec()).expect("a change");
        let last = next.id + 2;
        cell.update(key.clone(), one_more).await.expect("counted");
        counted += 1;
        cell.configure(next).await.expect("a configuration");
        while cell.configuration().id < last {
            cell.update(key.clone(), one_more).await.expect("counted");
            counted += 1;
            match cell.next_phase().await {
                Some(next) => drop(cell.configure(next).await.expect("a configuration")),
                None => env.sleep(Duration::from_millis(1)).await,
            }
        }
        for number in [0, 2, 3] {
            backends.start(number);
            backends.until_filled(&[0, 2, 3]).await;
            cell.update(key.clone(), one_more).await.expect("counted");
            counted += 1;
        }
        let held = cell.get_consistent(&[key]).await;
        assert!(matches!(&held[0], Lookup::Hit { value, .. } if value == &counted.to_string()), "{held:?}");
    });
}

#[test]
fn a_backend_that_starts_again_with_less_memory_is_refilled_as_far_as_it_has_room_and_others_answer_the_rest()
{
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let cell = backends.client(&[0, 1, 2], 1).await;
        backends.until_filled(&[0, 1, 2]).await;
        let large: Vec<_> =
            items("").into_iter().map(|(key, _)| (key, Bytes::from(vec![7; 60_000]))).collect();
        for some in large.chunks(8) {
            set(&cell, some).await;
        }
        backends.start_with(2, 4 << 20);
        backends.until_filled(&[2]).await;
        let stats = backends.backend(2).stats();
        assert!((1..80).contains(&stats.items), "{} of 80 items in 4 MiB", stats.items);
        assert!(stats.live_bytes <= stats.capacity_bytes, "{stats:?}");
        assert_all_there(&cell, &large).await;
        // It is compared again and again, and takes no more.
        let scans = stats.scans;
        backends.until(|| backends.backend(2).stats().scans > scans + 3).await;
        let again = backends.backend(2).stats();
        assert_eq!(
            (again.items, again.evicted),
            (stats.items, stats.evicted),
            "nothing makes room for what was removed"
        );
    });
}

#[test]
fn nothing_is_copied_below_a_version_that_was_promised_to_who_may_still_use_it() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let cell = backends.client(&[0, 1, 2], 1).await;
        backends.until_filled(&[0, 1, 2]).await;
        let key = Bytes::from_static(b"key");
        set(&cell, &[(key.clone(), Bytes::from_static(b"1"))]).await;
        backends.until(|| (0..3).all(|number| backends.backend(number).stats().items == 1)).await;
        let version = |ahead_ms: u64| {
            let timestamp_us = (env.wall_ms() as u64 + ahead_ms) * 1_000;
            Version { timestamp_us, client_id: 77, sequence: 0 }
        };
        // Two tell an update that there is 1.
        let promised = version(60_000);
        let request = crate::protocol::PromiseRequest::of(ID, KeyHash::of(&key), promised).encode_to_vec();
        for number in [0, 1] {
            let (served, doorbell) = backends.running.lock()[&number].clone();
            let connection = tailwater_rma::local::connect(served, doorbell, &env);
            connection.call(crate::protocol::METHOD_PROMISE, request.clone().into()).await.expect("promised");
        }
        // The third one has another value since, which two can't have before the update is over.
        apply_at(&backends, 2, ID, crate::layout::encode_item(&key, version(2_000), Some(b"2"))).await;
        let scans = [0, 1].map(|number| backends.backend(number).stats().scans);
        backends
            .until(|| {
                [0, 1].iter().zip(scans).all(|(of, scans)| backends.backend(*of).stats().scans > scans + 2)
            })
            .await;
        let held = cell.get_consistent(&[key]).await;
        assert!(matches!(&held[0], Lookup::Hit { value, .. } if value == "1"), "{held:?}");
    });
}

/// Applies an item at one backend, as a client does whose mutation reaches no other one.
async fn apply_at(backends: &RefilledBackends, number: u32, config_id: u64, item: Bytes) {
    let (served, doorbell) = backends.running.lock()[&number].clone();
    let connection = tailwater_rma::local::connect(served, doorbell, &backends.env);
    let pieces = crate::protocol::encode_mutate(config_id, [item].iter()).concat();
    let reply = connection.call(crate::protocol::METHOD_MUTATE, pieces.into()).await.expect("an answer");
    let reply = crate::protocol::MutateReply::decode(reply).expect("well formed");
    assert_eq!(reply.outcomes(1).expect("one"), [crate::protocol::Outcome::Applied], "at {number}");
}

/// A cell of 0, 1 and 2 that changes to 0, 3 and 4. All that those are to hold is copied, and then a value comes to
/// 1 and 2 alone and is read: its client is parted from the others. Answers that value, and the next phase.
async fn read_where_those_after_have_nothing_of_it(
    backends: &Arc<RefilledBackends>,
    cell: &Cell,
    key: &Bytes,
) -> (Lookup, Configuration) {
    backends.until_filled(&[0, 1, 2]).await;
    set(cell, &[(key.clone(), Bytes::from_static(b"1"))]).await;
    let after = [0, 3, 4].map(|number| BackendPlace::new(number, Vec::new())).to_vec();
    let copying = cell.configuration().changing_to(after).expect("a change");
    let config_id = copying.id;
    cell.configure(copying).await.expect("a configuration");
    let leaving = loop {
        match cell.next_phase().await {
            Some(leaving) => break leaving,
            None => backends.env.sleep(Duration::from_millis(1)).await,
        }
    };
    // Above what backends take that have seen others join.
    let timestamp_us = (backends.env.wall_ms() as u64 + 2_000) * 1_000;
    let version = Version { timestamp_us, client_id: 77, sequence: 0 };
    for number in [1, 2] {
        let item = crate::layout::encode_item(key, version, Some(b"2"));
        apply_at(backends, number, config_id, item).await;
    }
    let read = cell.get_consistent(std::slice::from_ref(key)).await.swap_remove(0);
    assert!(matches!(&read, Lookup::Hit { value, .. } if value == "2"), "{read:?}");
    (read, leaving)
}

#[test]
fn what_was_read_of_those_before_alone_is_never_overtaken_by_what_those_after_have() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::comparing_after(&env, can, 0..5, Duration::from_secs(3_600));
            let cell = backends.client(&[0, 1, 2], 1).await;
            let key = Bytes::from_static(b"key");
            let (read, leaving) = read_where_those_after_have_nothing_of_it(&backends, &cell, &key).await;
            cell.configure(leaving).await.expect("a configuration");
            for way in LookupWay::ALL {
                let again = cell.with_lookup(way).get_consistent(std::slice::from_ref(&key)).await;
                let is_older = again[0] != read && again[0].outcome() != LookupOutcome::Inconclusive;
                assert!(!is_older, "{}: {again:?}", way.name());
            }
            while cell.configuration().change.is_some() {
                match cell.next_phase().await {
                    Some(next) => drop(cell.configure(next).await.expect("a configuration")),
                    None => env.sleep(Duration::from_millis(1)).await,
                }
            }
            assert_eq!(cell.get_consistent(&[key]).await, [read]);
        });
    }
}

#[test]
fn an_update_goes_on_from_what_was_read_of_those_before_alone() {
    in_runtime(|env| async move {
        let backends =
            RefilledBackends::comparing_after(&env, TRANSPORTS[1], 0..5, Duration::from_secs(3_600));
        let cell = backends.client(&[0, 1, 2], 1).await;
        let key = Bytes::from_static(b"key");
        let (_, leaving) = read_where_those_after_have_nothing_of_it(&backends, &cell, &key).await;
        cell.configure(leaving).await.expect("a configuration");
        let updated = cell.update(key, |_| UpdateTo::Set(Bytes::from_static(b"3"), ItemExtras::default()));
        let before = updated.await.expect("a quorum is there").before.expect("a value");
        assert_eq!(before.value, "2");
    });
}

/// One CALL about an update to one backend.
async fn call_at(backends: &RefilledBackends, number: u32, method: u16, payload: Bytes) -> Bytes {
    let (served, doorbell) = backends.running.lock()[&number].clone();
    let connection = tailwater_rma::local::connect(served, doorbell, &backends.env);
    connection.call(method, payload).await.expect("an answer")
}

#[test]
fn an_update_that_was_under_way_when_a_backend_died_does_not_count_its_acknowledgement_with_a_later_one() {
    use crate::protocol::{METHOD_ACCEPT, METHOD_PROMISE, MutateReply, Outcome, PromiseRequest};
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let cell = backends.client(&[0, 1, 2], 1).await;
        backends.until_filled(&[0, 1, 2]).await;
        let key = Bytes::from_static(b"count");
        // Above what backends take that have seen others join.
        let timestamp_us = (env.wall_ms() as u64 + 3_000) * 1_000;
        let version = Version { timestamp_us, client_id: 77, sequence: 0 };
        let promise = PromiseRequest::of(ID, KeyHash::of(&key), version).encode_to_vec();
        for number in [0, 1] {
            call_at(&backends, number, METHOD_PROMISE, promise.clone().into()).await;
        }
        let accept = async |number| {
            let item = crate::layout::encode_item(&key, version, Some(b"1"));
            let payload = crate::protocol::encode_mutate(ID, [item].iter()).concat();
            let reply = call_at(&backends, number, METHOD_ACCEPT, payload.into()).await;
            MutateReply::decode(reply).expect("well formed").outcomes(1).expect("one")[0]
        };
        // One acknowledges it, and starts again with what the others hold: it is not on its way to them yet.
        assert_eq!(accept(0).await, Outcome::Applied);
        backends.start(0);
        backends.until_filled(&[0, 1, 2]).await;
        // Another one would be the second to acknowledge it, and the only one to have it.
        let late = accept(1).await;
        assert!(matches!(late, Outcome::Superseded(floor) if floor >= version), "{late:?}");
        assert_eq!(cell.get_consistent(&[key]).await, [Lookup::Miss]);
    });
}

#[test]
fn what_was_under_way_when_a_backend_died_is_applied_by_none_that_it_has_joined_since() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let _cell = backends.client(&[0, 1, 2], 1).await;
        backends.until_filled(&[0, 1, 2]).await;
        let timestamp_us = env.wall_ms() as u64 * 1_000;
        let item = |client_id| {
            let version = Version { timestamp_us, client_id, sequence: 0 };
            crate::layout::encode_item(b"under way", version, Some(b"value"))
        };
        // The start before acknowledges it, and dies.
        backends.start(1);
        backends.until_filled(&[0, 1, 2]).await;
        for number in 0..3 {
            let (served, doorbell) = backends.running.lock()[&number].clone();
            let connection = tailwater_rma::local::connect(served, doorbell, &env);
            let pieces = crate::protocol::encode_mutate(ID, [item(number)].iter()).concat();
            let reply =
                connection.call(crate::protocol::METHOD_MUTATE, pieces.into()).await.expect("an answer");
            let reply = crate::protocol::MutateReply::decode(reply).expect("well formed");
            let outcome = reply.outcomes(1).expect("one")[0];
            assert!(matches!(outcome, crate::protocol::Outcome::BelowSummary(_)), "{number}: {outcome:?}");
        }
    });
}
