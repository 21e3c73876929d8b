//! Cells that are loaded as a whole: what is read, while loads come and backends go.

use super::refill_tests::{RefilledBackends, TRANSPORTS, assert_all_there, items, keys_of};
use super::*;
use crate::layout::encode_item;
use crate::protocol::{METHOD_MUTATE, encode_mutate};
use crate::testing::in_runtime;

/// A client of a cell with nothing loaded.
async fn client(backends: &Arc<RefilledBackends>, numbers: &[u32]) -> Cell {
    let cell = backends.client_of(Mode::R2Immutable, numbers, 1).await;
    joined_all(backends, numbers).await;
    cell
}

/// Waits until all take a load.
async fn joined_all(backends: &Arc<RefilledBackends>, numbers: &[u32]) {
    backends.until(|| numbers.iter().all(|number| backends.backend(*number).has_joined_a_cell())).await;
}

/// Loads, and has it read.
async fn load(cell: &Cell, items: &[(Bytes, Bytes)]) {
    let mut load = begin(cell).await;
    load.set(items.to_vec()).await.expect("both replicas are there");
    let generation = load.generation();
    load.end().await.expect("all have it");
    read(cell, generation).await;
}

async fn read(cell: &Cell, generation: u64) {
    let next = cell.configuration().loaded(generation).expect("a later load");
    assert!(cell.configure(next).await.expect("a configuration"));
}

/// As soon as all backends are connected and take it.
async fn begin(cell: &Cell) -> CellLoad {
    loop {
        match cell.begin_load().await {
            Ok(load) => return load,
            Err(CellLoadError::Backend { .. }) => cell.shared.env.sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

fn text(lookup: &Lookup) -> &str {
    match lookup {
        Lookup::Hit { value, .. } => std::str::from_utf8(value).expect("text"),
        other => panic!("a hit expected, not {other:?}"),
    }
}

#[test]
fn what_was_loaded_is_read_in_every_way_and_the_next_load_takes_its_place() {
    for can in TRANSPORTS {
        for numbers in [&[0, 1][..], &[0, 1, 2, 3]] {
            in_runtime(|env| async move {
                let backends = RefilledBackends::with(&env, can, numbers.iter().copied());
                let cell = client(&backends, numbers).await;
                let key = [Bytes::from_static(b"key 1")];
                assert_eq!(cell.get_consistent(&key).await[0].outcome(), LookupOutcome::Inconclusive);
                for what in ["first", "second"] {
                    load(&cell, &items(what)).await;
                    for way in LookupWay::ALL {
                        assert_all_there(&cell.with_lookup(way), &items(what)).await;
                    }
                    for (lookup, (_, value)) in
                        cell.get_relaxed(&keys_of(&items(what))).await.iter().zip(items(what))
                    {
                        assert_eq!(text(lookup).as_bytes(), value);
                    }
                    assert_eq!(cell.get_consistent(&[Bytes::from_static(b"other")]).await, [Lookup::Miss]);
                }
                // The former load is forgotten, by each backend when it is told of the next one.
                let held =
                    || numbers.iter().map(|number| backends.backend(*number).stats().items).sum::<u64>();
                backends.until(|| held() == 2 * 80).await;
            });
        }
    }
}

#[test]
fn a_lookup_of_many_keys_is_answered_from_one_load_and_loads_never_go_back() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..3);
            let cell = client(&backends, &[0, 1, 2]).await;
            load(&cell, &items("0")).await;
            let reader = backends.client_of(Mode::R2Immutable, &[0, 1, 2], 2).await;
            // On a thread of its own: what reads memory never waits.
            #[allow(clippy::disallowed_methods)]
            let reading = tokio::spawn(async move {
                let keys = keys_of(&items(""));
                let mut last = 0;
                // Until it is told of the last one.
                while last < 12 {
                    let lookups = reader.get_consistent(&keys).await;
                    // One that met more changes than it is made again for says of some keys that it can't say.
                    let loads: Vec<u32> = lookups
                        .iter()
                        .filter(|lookup| lookup.outcome() != LookupOutcome::Inconclusive)
                        .map(|lookup| {
                            text(lookup).split(' ').next().expect("a load").parse().expect("a number")
                        })
                        .collect();
                    assert!(loads.windows(2).all(|pair| pair[0] == pair[1]), "a mix: {loads:?}");
                    let now = loads.first().copied().unwrap_or(last);
                    assert!(now >= last, "load {now} behind {last}");
                    last = now;
                }
            });
            for number in 1..=12 {
                load(&cell, &items(&number.to_string())).await;
            }
            reading.await.expect("no panic");
        });
    }
}

#[test]
fn one_of_two_backends_dies_and_what_was_loaded_is_read_and_comes_back_to_it() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..2);
            let cell = client(&backends, &[0, 1]).await;
            load(&cell, &items("first")).await;
            for number in 0..2 {
                backends.stop(number);
                assert_all_there(&cell, &items("first")).await;
                let error = cell.begin_load().await.err().expect("one is gone");
                assert!(
                    matches!(error, CellLoadError::Backend { number: gone, .. } if gone == number),
                    "{error}"
                );
                backends.start(number);
                backends.until_filled(&[0, 1]).await;
                assert_all_there(&cell, &items("first")).await;
            }
            load(&cell, &items("second")).await;
            assert_all_there(&cell, &items("second")).await;
        });
    }
}

#[test]
fn what_nobody_has_any_more_is_not_said_to_be_absent_and_is_loaded_anew() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[2], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        backends.start(0);
        backends.start(1);
        joined_all(&backends, &[0, 1]).await;
        for lookup in cell.get_consistent(&keys_of(&items("first"))).await {
            assert_eq!(lookup.outcome(), LookupOutcome::Inconclusive, "{lookup:?}");
        }
        load(&cell, &items("first")).await;
        assert_all_there(&cell, &items("first")).await;
    });
}

#[test]
fn a_load_that_a_backend_s_start_cut_in_two_is_not_read_and_neither_is_one_that_another_one_overtook() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[0], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        let mut cut = begin(&cell).await;
        cut.set(items("cut")).await.expect("both are there");
        backends.start(1);
        backends.until_filled(&[0, 1]).await;
        // The client has to be connected to it, to be told more than that it is not.
        begin(&cell).await;
        let why = cut.end().await.expect_err("half of it is lost").to_string();
        assert!(why.contains("has started again, or another load has begun"), "{why}");

        let overtaken = begin(&cell).await;
        load(&cell, &items("second")).await;
        assert_eq!(overtaken.end().await, Err(CellLoadError::Changing));
        assert_all_there(&cell, &items("second")).await;
    });
}

#[test]
fn keys_of_a_loaded_cell_are_changed_by_nobody() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[0], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        let key = keys_of(&items(""))[0].clone();
        assert_eq!(cell.set(vec![(key.clone(), Bytes::new())]).await, [Err(SetError::Immutable)]);
        assert_eq!(cell.erase(vec![key.clone()]).await, [Err(SetError::Immutable)]);
        assert_eq!(cell.update(key.clone(), |_| UpdateTo::Erase).await, Err(UpdateError::Immutable));
        assert_eq!(cell.clear().await, 0);
        // A client that does not care is refused by the backends, once they are told what is read.
        let id = cell.configuration().id;
        backends.until(|| (0..2).all(|number| backends.backend(number).config_id() == id)).await;
        let live = cell.inner().replicas[0].live().expect("it is connected");
        let generation = cell.configuration().generation;
        for key in [key.to_vec(), [&generation.to_be_bytes()[..], &key].concat()] {
            let item = encode_item(&key, cell.inner().versions.next(env.wall_ms()), Some(b"x"));
            let payload = encode_mutate(cell.configuration().id, [item].iter()).concat();
            let refused = live.connection.call(METHOD_MUTATE, payload.into()).await.expect_err("refused");
            assert!(refused.to_string().contains("can't be changed one by one"), "{refused}");
        }
        assert_all_there(&cell, &items("first")).await;
        let other = RefilledBackends::with(&env, TRANSPORTS[0], 0..1).client_of(Mode::R1, &[0], 1).await;
        assert_eq!(other.begin_load().await.err(), Some(CellLoadError::Mode("R1")));
    });
}

#[test]
fn a_load_for_which_there_is_no_room_is_refused_before_anything_goes() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[0], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        let large = (0..16).map(|n| (Bytes::from(format!("large {n}")), Bytes::from(vec![1; 1 << 20])));
        let error = begin(&cell).await.set(large.collect()).await.expect_err("16 MiB into 8 MiB");
        assert!(matches!(error, CellLoadError::NoRoom { .. }), "{error}");
        let long = vec![(Bytes::from(vec![b'a'; LOADED_KEY_BYTES_MAX + 1]), Bytes::new())];
        let error = begin(&cell).await.set(long).await.expect_err("too long");
        assert!(matches!(error, CellLoadError::TooLarge { value_len: 0, .. }), "{error}");
        assert_all_there(&cell, &items("first")).await;
        assert_eq!(backends.backend(0).stats().evicted, 0);
    });
}

#[test]
fn a_load_that_has_ended_is_not_overtaken_before_it_is_read() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[0], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        let mut ended = begin(&cell).await;
        ended.set(items("second")).await.expect("both are there");
        let (generation, config_id) = (ended.generation(), ended.config_id());
        ended.end().await.expect("all have it");
        let why = cell.begin_load().await.err().expect("not now").to_string();
        assert!(why.contains("another load has just ended, and is about to be read: load again in"), "{why}");
        assert!(cell.check_load(generation + 1, config_id).await.is_err(), "nobody has that one");
        cell.check_load(generation, config_id).await.expect("all have it");
        read(&cell, generation).await;
        assert_all_there(&cell, &items("second")).await;
        load(&cell, &items("third")).await;
        assert_all_there(&cell, &items("third")).await;
    });
}

#[test]
fn what_is_read_stays_when_a_load_takes_more_slots_or_names_than_there_are() {
    let wasteful = (0..8).map(|n| (Bytes::from(format!("large {n}")), Bytes::from(vec![1; 600_000])));
    let many = (0..20_000).map(|n| (Bytes::from(format!("small {n}")), Bytes::from_static(b"value")));
    for too_much in [wasteful.collect::<Vec<_>>(), many.collect()] {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, TRANSPORTS[0], 0..2);
            let cell = client(&backends, &[0, 1]).await;
            load(&cell, &items("first")).await;
            let error = begin(&cell).await.set(too_much).await;
            assert_eq!(error, Err(CellLoadError::Full), "its bytes alone have room");
            assert_all_there(&cell, &items("first")).await;
            for number in 0..2 {
                assert_eq!(backends.backend(number).stats().evicted, 0);
            }
            // What it has left is in nobody's way.
            let other = backends.client_of(Mode::R2Immutable, &[0, 1], 2).await;
            load(&other, &items("second")).await;
            assert_all_there(&other, &items("second")).await;
        });
    }
}

/// Goes through the phases of a change. All the time `read` is what is read, and nothing is loaded.
async fn change(cell: &Cell, next: Configuration, read: &[(Bytes, Bytes)]) {
    let last = next.id + 2;
    assert!(cell.configure(next).await.expect("a configuration"));
    while cell.configuration().id < last {
        assert_all_there(cell, read).await;
        assert_eq!(cell.begin_load().await.err(), Some(CellLoadError::Changing));
        match cell.next_phase().await {
            // One that is dead is not told that it has left, and not waited for.
            Some(next) => {
                drop(cell.shared.env.timeout(Duration::from_millis(50), cell.configure(next)).await);
            }
            None => cell.shared.env.sleep(Duration::from_millis(1)).await,
        }
    }
    assert_all_there(cell, read).await;
}

#[test]
fn a_loaded_cell_grows_and_shrinks_and_each_key_is_read_all_the_time() {
    for can in TRANSPORTS {
        in_runtime(|env| async move {
            let backends = RefilledBackends::with(&env, can, 0..5);
            let cell = client(&backends, &[0, 1, 2]).await;
            load(&cell, &items("first")).await;
            let places = |numbers: &[u32]| -> Vec<BackendPlace> {
                numbers.iter().map(|number| BackendPlace::new(*number, Vec::new())).collect()
            };
            for (what, after) in [("grown", &[0, 1, 2, 3, 4][..]), ("shrunk", &[3, 4]), ("moved", &[0, 1])] {
                let read = if what == "grown" { items("first") } else { items("again") };
                change(&cell, cell.configuration().changing_to(places(after)).expect("a change"), &read)
                    .await;
                load(&cell, &items("again")).await;
                assert_all_there(&cell, &items("again")).await;
            }
            // Those that have left, the last one of each key among them, hold nothing.
            backends.until(|| (2..5).all(|number| backends.backend(number).stats().items == 0)).await;
        });
    }
}

#[test]
fn a_backend_of_a_loaded_cell_that_is_dead_is_drained_and_nothing_is_lost() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        backends.stop(1);
        let after = [0, 2].map(|number| BackendPlace::new(number, Vec::new())).to_vec();
        change(&cell, cell.configuration().changing_to(after).expect("a change"), &items("first")).await;
        // Of two of one load, each is enough.
        backends.stop(0);
        assert_all_there(&cell, &items("first")).await;
    });
}

#[test]
fn all_backends_of_a_loaded_cell_restart_while_a_spare_stands_for_each_and_each_key_is_read_all_the_time() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..3);
        let cell = client(&backends, &[0, 1]).await;
        load(&cell, &items("first")).await;
        let spare = BackendPlace::new(2, Vec::new());
        let next = cell.configuration().with_other_spares(vec![spare.clone()]).expect("a spare");
        cell.configure(next).await.expect("a configuration");
        let mut pending: BTreeMap<u32, u64> = loop {
            let seen = cell.roll_seen().await.instances;
            if seen.len() == 3 {
                break seen;
            }
            env.sleep(Duration::from_millis(1)).await;
        };
        let all = pending.clone();
        loop {
            assert_all_there(&cell, &items("first")).await;
            let known = cell.configuration();
            match RollStep::next(&known, &pending, &cell.roll_seen().await) {
                RollStep::Done => break,
                RollStep::Wait(_) => match cell.next_phase().await {
                    Some(next) => drop(cell.configure(next).await.expect("a configuration")),
                    None => env.sleep(Duration::from_millis(1)).await,
                },
                RollStep::Drain { number, spare: by } => {
                    assert_eq!(by, spare.number);
                    let after = known.drained_onto(number, &spare).expect("a backend");
                    drop(cell.configure(known.changing_to(after).expect("a change")).await);
                }
                RollStep::Restore(number) => {
                    let after = known.restored(&BackendPlace::new(number, Vec::new())).expect("drained");
                    drop(cell.configure(known.changing_to(after).expect("a change")).await);
                }
                RollStep::End(number) => backends.start(number),
                RollStep::Over(number) => drop(pending.remove(&number)),
            }
        }
        let now = cell.roll_seen().await.instances;
        assert!(all.iter().all(|(number, before)| now[number] != *before), "{all:?} {now:?}");
        load(&cell, &items("second")).await;
        assert_all_there(&cell, &items("second")).await;
    });
}

#[test]
fn a_backend_that_has_no_room_for_what_was_loaded_says_so_and_the_others_answer() {
    in_runtime(|env| async move {
        let backends = RefilledBackends::with(&env, TRANSPORTS[1], 0..2);
        let cell = client(&backends, &[0, 1]).await;
        let large: Vec<_> =
            items("").into_iter().map(|(key, _)| (key, Bytes::from(vec![7; 60_000]))).collect();
        load(&cell, &large).await;
        backends.start_with(1, 4 << 20);
        backends.until(|| backends.backend(1).stats().hindrance.contains("no room")).await;
        let stats = backends.backend(1).stats();
        assert!(!backends.backend(1).is_filled() && stats.evicted == 0, "{stats:?}");
        assert_all_there(&cell, &large).await;
        // With room it goes on.
        backends.start(1);
        backends.until_filled(&[1]).await;
        backends.stop(0);
        assert_all_there(&cell, &large).await;
    });
}
