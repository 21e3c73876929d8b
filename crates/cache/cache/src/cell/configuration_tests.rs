//! Clients and backends that know different configurations of a cell.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use parking_lot::Mutex as Lock;
use tailwater_rma::{Capabilities, LocalDoorbell};

use super::refill_tests::{assert_all_there, set};
use super::*;
use crate::backend::Backend;
use crate::testing::{CellFaults, Double, in_runtime, served, small, world_by_hand};

/// Backends by their numbers, which know no configuration when they start.
struct BackendsByNumber {
    env: Env,
    can: Capabilities,
    backends: Lock<BTreeMap<u32, (Arc<Backend>, LocalDoorbell)>>,
    connections: Lock<Vec<Arc<CellFaults>>>,
    away: AtomicBool,
}

impl BackendsByNumber {
    fn with(env: &Env, can: Capabilities, numbers: impl IntoIterator<Item = u32>) -> Arc<Self> {
        let place = Self {
            env: env.clone(),
            can,
            backends: Lock::default(),
            connections: Lock::default(),
            away: AtomicBool::new(false),
        };
        numbers.into_iter().for_each(|number| place.start(number));
        Arc::new(place)
    }

    /// Starts a backend, or starts it again.
    fn start(&self, number: u32) {
        self.backends.lock().insert(number, served(&self.env, small(0)));
        self.cut();
    }

    /// Ends all connections.
    fn cut(&self) {
        self.connections.lock().drain(..).for_each(|faults| faults.lost.store(true, Ordering::Relaxed));
    }

    fn backend(&self, number: u32) -> Arc<Backend> {
        Arc::clone(&self.backends.lock()[&number].0)
    }

    /// A client that begins with what it knows of the cell.
    async fn client(self: &Arc<Self>, configuration: Configuration, client_id: u32) -> Cell {
        let mut config = CellConfig::of(configuration, Arc::clone(self) as _, client_id);
        // On a busy machine nothing may fail for want of time.
        config.deadline = Duration::from_secs(60);
        config.connect_deadline = Duration::from_secs(60);
        config.reconnect_after_min = Duration::from_millis(1);
        config.reconnect_after_max = Duration::from_millis(5);
        config.watch_slice = Duration::from_millis(5);
        Cell::connect(&self.env, config).await.expect("a configuration")
    }
}

impl Connector for BackendsByNumber {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        let answer = match self.backends.lock().get(&backend.number) {
            Some((served, doorbell)) if !self.away.load(Ordering::Relaxed) => {
                let (connection, faults) = Double::connect(&self.env, served, doorbell, self.can);
                self.connections.lock().push(faults);
                Ok(connection)
            }
            _ => Err("it does not run".to_owned()),
        };
        Box::pin(std::future::ready(answer))
    }
}

const ID: u64 = 9 << 32 | 1;
const TRANSPORTS: [Capabilities; 3] = [
    Capabilities { memory: true, scar: false },
    Capabilities { memory: false, scar: false },
    Capabilities { memory: false, scar: true },
];

/// A configuration of the backends with these numbers.
fn of(id: u64, numbers: &[u32]) -> Configuration {
    let addresses = vec![Vec::new(); numbers.len()];
    let mut configuration = Configuration::first(id, "tiles", Mode::R32, addresses).expect("a cell");
    for (place, number) in configuration.backends.iter_mut().zip(numbers) {
        place.number = *number;
    }
    configuration
}

fn items(what: &str) -> Vec<(Bytes, Bytes)> {
    (0..60).map(|n| (Bytes::from(format!("key {n}")), Bytes::from(format!("{what} {n}")))).collect()
}

#[test]
fn backends_that_know_no_configuration_are_told_and_go_by_it() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let place = BackendsByNumber::with(&env, can, 0..4);
            let cell = place.client(of(ID, &[0, 1, 2, 3]), 1).await;
            let items = items("value");
            set(&cell, &items).await;
            assert_all_there(&cell, &items).await;
            for number in 0..4 {
                let backend = place.backend(number);
                assert_eq!(backend.config_id(), ID);
                assert_eq!(backend.configuration(), Some(of(ID, &[0, 1, 2, 3])));
            }
        });
    }
}

#[test]
fn a_client_that_goes_by_an_old_configuration_learns_the_new_one_from_a_backend_and_its_call_succeeds() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let place = BackendsByNumber::with(&env, can, 0..5);
            let old = of(ID, &[0, 1, 2]);
            let late = place.client(old.clone(), 1).await;
            let owner = place.client(old.clone(), 2).await;
            set(&late, &items("before")).await;
            // Two others take the places of two: the one that stays holds what is its own.
            let new = of(ID + 1, &[2, 3, 4]);
            assert!(owner.configure(new.clone()).await.expect("a configuration"));
            let after = items("after");
            set(&owner, &after).await;
            // By the old placement it would find two backends with nothing.
            assert_all_there(&late, &after).await;
            assert_eq!(*late.configuration(), new);
            let later = items("later");
            set(&late, &later).await;
            assert_all_there(&owner, &later).await;
            assert!(!owner.configure(of(ID, &[0, 1, 2])).await.expect("a configuration"), "ids only grow");
            for number in [0, 1] {
                let left = place.backend(number).stats();
                assert_eq!((left.config_id, left.items), (ID + 1, 0), "one that has left holds nothing");
            }
        });
    }
}

#[test]
fn what_begins_while_the_backends_of_a_new_configuration_are_being_connected_waits_for_them() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let place = BackendsByNumber::with(&env, can, 0..5);
            let cell = place.client(of(ID, &[0, 1, 2]), 1).await;
            // The first of the three goes by the new one before it waits, and connects in the background.
            let setting = async { set(&cell, &items("new")).await };
            let keys: Vec<Bytes> = items("new").into_iter().map(|(key, _)| key).collect();
            let reading = cell.get_consistent(&keys);
            let configuring = cell.configure(of(ID + 1, &[2, 3, 4]));
            let (configured, lookups, ()) = futures::join!(configuring, reading, setting);
            assert!(configured.expect("a configuration"));
            assert!(lookups.iter().all(|lookup| !matches!(lookup, Lookup::Failed(_))), "{lookups:?}");
            assert_all_there(&cell, &items("new")).await;
        });
    }
}

#[test]
fn a_set_that_an_old_configuration_placed_is_refused_by_backends_that_go_by_the_new_one() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[1], 0..3);
        let cell = place.client(of(ID, &[0, 1, 2]), 1).await;
        set(&cell, &items("one")).await;
        let item = crate::layout::encode_item(
            b"key 0",
            Version { timestamp_us: 1, client_id: 5, sequence: 0 },
            None,
        );
        let mutation = |id| Bytes::from(crate::protocol::encode_mutate(id, [item.clone()].iter()).concat());
        let (served, doorbell) = place.backends.lock()[&0].clone();
        let connection = tailwater_rma::local::connect(served, doorbell, &env);
        for id in [0, ID - 1, ID + 1] {
            let refused = connection.call(crate::protocol::METHOD_MUTATE, mutation(id)).await;
            let code = match refused {
                Err(CallError::Refused { code, .. }) => code,
                other => panic!("{other:?}"),
            };
            assert_eq!(code, crate::protocol::REFUSED_CONFIG);
        }
        connection.call(crate::protocol::METHOD_MUTATE, mutation(ID)).await.expect("its own");
    });
}

#[test]
fn a_backend_that_starts_again_is_told_by_any_client_and_a_client_with_less_is_told_by_it() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[0], 0..4);
        let new = of(ID + 3, &[0, 1, 2, 3]);
        let cell = place.client(new.clone(), 1).await;
        set(&cell, &items("one")).await;
        place.start(2);
        let mut seen = Seen::default();
        while cell.live_backends() < 4 || place.backend(2).config_id() != ID + 3 {
            cell.watch(&mut seen, Duration::from_secs(3600)).await;
        }
        set(&cell, &items("two")).await;
        let other = place.client(of(ID, &[0, 1, 2]), 2).await;
        assert_all_there(&other, &items("two")).await;
        assert_eq!(*other.configuration(), new);
    });
}

#[test]
fn backends_that_start_one_at_a_time_after_their_clients_make_a_working_cell() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[2], []);
        let known = of(ID, &[0, 1, 2]);
        let (one, other) = (place.client(known.clone(), 1).await, place.client(known, 2).await);
        assert!(one.set(items("early")).await.iter().all(|result| *result == Err(SetError::Unreachable)));
        let mut seen = Seen::default();
        for number in [1, 0, 2] {
            place.start(number);
        }
        while one.live_backends() < 3 || other.live_backends() < 3 {
            one.watch(&mut seen, Duration::from_millis(5)).await;
        }
        set(&one, &items("one")).await;
        assert_all_there(&other, &items("one")).await;
    });
}

#[test]
fn a_backend_takes_no_configuration_of_another_cell_and_none_if_it_was_started_with_an_id() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[1], 0..3);
        place.backend(0).is_for("lengths");
        place.backends.lock().insert(1, served(&env, small(77)));
        let cell = place.client(of(ID, &[0, 1, 2]), 1).await;
        assert_eq!(cell.live_backends(), 1);
        assert_eq!(place.backend(0).config_id(), 0);
        assert_eq!(place.backend(1).config_id(), 77);
        assert_eq!(place.backend(1).configuration(), None);
    });
}

#[test]
fn a_cell_that_is_created_anew_begins_with_nothing_of_the_one_before_it() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[0], 0..3);
        let before = place.client(of(ID, &[0, 1, 2]), 1).await;
        set(&before, &items("before")).await;
        drop(before);
        let anew = place.client(of(Configuration::first_id(0, ID), &[0, 1, 2]), 2).await;
        let keys: Vec<Bytes> = items("before").into_iter().map(|(key, _)| key).collect();
        assert!(anew.get_consistent(&keys).await.iter().all(|lookup| *lookup == Lookup::Miss));
        assert!((0..3).all(|number| place.backend(number).stats().items == 0));
    });
}

#[test]
fn a_client_that_does_nothing_is_told_a_new_configuration_by_its_backends() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let place = BackendsByNumber::with(&env, can, 0..4);
            let owner = place.client(of(ID, &[0, 1, 2]), 1).await;
            let mut config = CellConfig::of(of(ID, &[0, 1, 2]), Arc::clone(&place) as _, 2);
            // So that it would not notice by itself.
            config.watch_slice = Duration::from_secs(3_600);
            let idle = Cell::connect(&env, config).await.expect("a configuration");
            let new = of(ID + 1, &[1, 2, 3]);
            owner.configure(new.clone()).await.expect("a configuration");
            assert_eq!(*idle.configured_after(ID).await, new);
        });
    }
}

#[test]
fn who_waits_for_a_configuration_is_answered_with_what_there_is_when_too_many_wait_or_it_takes_too_long() {
    use crate::limits::{CONFIG_WAIT_MAX, CONFIG_WAITS_MAX};

    let (env, clock) = world_by_hand();
    let (backend, doorbell) = served(&env, small(0));
    let connection = tailwater_rma::local::connect(Arc::clone(&backend) as _, doorbell, &env);
    let asking = || {
        let request = prost::Message::encode_to_vec(&crate::protocol::ConfigRequest { after: ID });
        connection.call(crate::protocol::METHOD_CONFIG, request.into())
    };
    let mut waiting: Vec<_> = (0..=CONFIG_WAITS_MAX).map(|_| asking()).collect();
    let mut answered: Vec<bool> = waiting.iter_mut().map(|asked| asked.now_or_never().is_some()).collect();
    // Only those that were polled have asked; the first of them is known to be answered when it is polled again.
    answered[0] |= (&mut waiting[0]).now_or_never().is_some();
    assert_eq!(answered.iter().filter(|answered| **answered).count(), 1);
    assert!(answered[0], "it has waited longest");
    clock.advance(CONFIG_WAIT_MAX);
    backend.answer_long_waiting();
    assert!(waiting.into_iter().skip(1).all(|asked| asked.now_or_never().is_some()));
}

#[test]
fn a_client_that_knows_one_backend_and_nothing_else_is_told_the_rest_by_it() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let place = BackendsByNumber::with(&env, can, 0..4);
            let seed = |number| BackendPlace::new(number, Vec::new());
            let at = |numbers: &[u32]| {
                let seeds: Vec<_> = numbers.iter().map(|number| seed(*number)).collect();
                let (env, place) = (env.clone(), Arc::clone(&place));
                let change = |config: &mut CellConfig| config.deadline = Duration::from_secs(60);
                async move { Cell::at_seeds(&env, place, &seeds, 5, change).await }
            };
            assert!(
                at(&[3]).await.expect_err("none was told yet").contains("no configuration of its cell yet")
            );
            let cell = place.client(of(ID, &[0, 1, 2]), 1).await;
            set(&cell, &items("one")).await;
            // The first one does not run, and the second one is in no configuration.
            let found = at(&[9, 3, 1]).await.expect("one of them is of use");
            assert_eq!(*found.configuration(), of(ID, &[0, 1, 2]));
            assert_all_there(&found, &items("one")).await;
        });
    }
}

#[test]
fn a_backend_that_could_not_be_reached_when_it_left_is_told_when_it_can() {
    in_runtime(|env| async move {
        let place = BackendsByNumber::with(&env, TRANSPORTS[1], 0..4);
        let owner = place.client(of(ID, &[0, 1, 2]), 1).await;
        set(&owner, &items("one")).await;
        let (left, doorbell) = place.backends.lock().remove(&0).expect("it runs");
        place.cut();
        let coming_back = async {
            // Not before the others go by the new one.
            let (other, its_doorbell) = place.backends.lock()[&1].clone();
            let connection = tailwater_rma::local::connect(other, its_doorbell, &env);
            let request = prost::Message::encode_to_vec(&crate::protocol::ConfigRequest { after: ID });
            connection.call(crate::protocol::METHOD_CONFIG, request.into()).await.expect("its next one");
            assert_eq!(left.config_id(), ID);
            place.backends.lock().insert(0, (Arc::clone(&left), doorbell));
        };
        let (configured, ()) = futures::join!(owner.configure(of(ID + 1, &[1, 2, 3])), coming_back);
        assert!(configured.expect("a configuration"));
        assert_eq!((left.config_id(), left.stats().items), (ID + 1, 0));
    });
}
