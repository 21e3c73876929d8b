//! Updates of one key by several clients, replicas that differ, and values that expire.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use proptest::prelude::*;
use tailwater_rma::{Capabilities, Connection, LocalDoorbell};

use super::*;
use crate::layout::{Item, KeyHash, encode_item};
use crate::protocol::{METHOD_MUTATE, encode_mutate};
use crate::testing::{CellFaults, Double, in_runtime, served, small, world_by_hand};
use crate::{Backend, CasError};

const ID: u64 = 78;
const MEMORY: Capabilities = Capabilities { memory: true, scar: false };
const WIRE: Capabilities = Capabilities { memory: false, scar: true };

struct Clients {
    backends: Vec<(Arc<Backend>, LocalDoorbell)>,
    cells: Vec<Cell>,
    /// Of each client, by backend.
    faults: Vec<Vec<Arc<CellFaults>>>,
}

async fn clients(env: &Env, count: usize) -> Clients {
    clients_by(env, count, WIRE).await
}

async fn clients_by(env: &Env, count: usize, can: Capabilities) -> Clients {
    let backends: Vec<_> = (0..3).map(|_| served(env, small(ID))).collect();
    let (mut cells, mut faults) = (Vec::new(), Vec::new());
    for client_id in 1..=count as u32 {
        let doubles = backends.iter().map(|(backend, doorbell)| Double::connect(env, backend, doorbell, can));
        let (connections, of_client): (Vec<Arc<dyn Connection>>, Vec<_>) = doubles.unzip();
        let mut config = CellConfig::new(ID, Mode::R32, Backends::connected(connections), client_id);
        // Nothing fails for want of time, but where that is what the test is about.
        config.deadline = Duration::from_secs(60);
        cells.push(Cell::connect(env, config).await.expect("three backends are enough"));
        faults.push(of_client);
    }
    Clients { backends, cells, faults }
}

fn key() -> Bytes {
    Bytes::from_static(b"key")
}

fn number_of(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).parse().expect("a number")
}

fn one_more(held: Option<&CellValue>) -> UpdateTo {
    let number = held.map_or(0, |held| number_of(&held.value)) + 1;
    UpdateTo::Set(number.to_string().into(), ItemExtras::default())
}

async fn got(cell: &Cell) -> Lookup {
    cell.get_consistent(&[key()]).await.remove(0)
}

/// Puts an item into one replica alone, as a mutation does whose client died.
async fn set_at(cell: &Cell, backend: usize, version: Version, value: &[u8]) {
    let item = encode_item(&key(), version, Some(value));
    let live = cell.inner().replicas[backend].live().expect("connected");
    let payload = encode_mutate(ID, [item].iter());
    live.connection.call_with_pieces(METHOD_MUTATE, payload).await.expect("taken");
}

#[test]
fn increments_by_several_clients_at_once_are_all_counted() {
    in_runtime(|env| async move {
        let clients = clients(&env, 3).await;
        let counting = clients.cells.iter().map(|cell| async {
            let mut counted = 0;
            for _ in 0..60 {
                match cell.update(key(), one_more).await {
                    Ok(_) => counted += 1,
                    Err(UpdateError::Unknown) => return (counted, true),
                    // The rounds are bounded; nothing has changed.
                    Err(UpdateError::Contended) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            (counted, false)
        });
        let counted = join_all(counting).await;
        let acknowledged: u64 = counted.iter().map(|(counted, _)| *counted).sum();
        let unknown = counted.iter().filter(|(_, is_unknown)| *is_unknown).count() as u64;
        let updated = clients.cells[0].update(key(), |_| UpdateTo::Keep).await.expect("they are all there");
        let held = number_of(&updated.before.expect("it was counted").value);
        assert!((acknowledged..=acknowledged + unknown).contains(&held), "{held}, and {counted:?}");
    });
}

#[test]
fn a_value_is_exchanged_only_for_the_one_that_was_named() {
    in_runtime(|env| async move {
        let clients = clients(&env, 2).await;
        let [one, other] = &clients.cells[..] else { panic!("two") };
        let extras = ItemExtras { expires_ms: 0, tag: 7, token: 0 };
        let cas = |cell: &Cell, expected, value: &'static str| {
            let cell = cell.clone();
            async move { cell.cas(key(), expected, value.into(), extras).await }
        };
        let first = cas(one, None, "first").await.expect("it was not there");
        assert_eq!(cas(other, None, "x").await, Err(CasError::Other(first)));
        let second = cas(other, Some(first), "second").await.expect("nobody else has");
        assert!(second > first);
        assert_eq!(cas(one, Some(first), "x").await, Err(CasError::Other(second)));
        let Lookup::Hit { value, extras: kept, version } = got(one).await else { panic!("it is there") };
        assert_eq!((&value[..], kept, version), (&b"second"[..], extras, second));
        one.erase(vec![key()]).await.remove(0).expect("erased");
        assert_eq!(cas(other, Some(second), "x").await, Err(CasError::Absent));
        assert_eq!(got(other).await, Lookup::Miss);
    });
}

#[test]
fn replicas_of_three_minds_agree_again_with_the_next_update() {
    in_runtime(|env| async move {
        let clients = clients(&env, 1).await;
        let cell = &clients.cells[0];
        let at = |timestamp_us| Version { timestamp_us, client_id: 9, sequence: 0 };
        for backend in 0..3 {
            set_at(cell, backend, at(1 + backend as u64), &[b'1' + backend as u8]).await;
        }
        assert_eq!(got(cell).await, Lookup::Failed(CellFailure::NoQuorum));
        let kept = cell.update(key(), |_| UpdateTo::Keep).await.expect("a quorum is there");
        // The promises may have come from the two that hold the lower ones.
        let number = number_of(&kept.before.expect("a value").value);
        assert!((2..=3).contains(&number), "{number}");
        let Lookup::Hit { value, .. } = got(cell).await else { panic!("they agree") };
        assert_eq!(number_of(&value), number);
    });
}

#[test]
fn an_update_that_only_a_minority_applied_is_finished_by_its_own_client() {
    in_runtime(|env| async move {
        let clients = clients(&env, 1).await;
        let (cell, faults) = (&clients.cells[0], &clients.faults[0]);
        assert_eq!(cell.update(key(), one_more).await.map(|updated| updated.before), Ok(None));
        // Of one replica no answer is to be had; the others are there.
        faults[2].lost.store(true, Ordering::Relaxed);
        for number in 1..20 {
            let updated = cell.update(key(), one_more).await.expect("two are enough");
            assert_eq!(number_of(&updated.before.expect("it was counted").value), number);
        }
        faults[1].lost.store(true, Ordering::Relaxed);
        let failed = cell.update(key(), one_more).await;
        assert!(
            matches!(failed, Err(UpdateError::NotApplied(CellFailure::Unreachable))),
            "nobody was asked to apply it: {failed:?}"
        );
        drop(clients.backends);
    });
}

#[test]
fn an_update_whose_answers_do_not_come_is_unknown_or_nothing_and_says_which() {
    in_runtime(|env| async move {
        let clients = clients(&env, 1).await;
        let (cell, faults) = (&clients.cells[0], &clients.faults[0]);
        let mut inner = (*cell.inner()).clone();
        inner.deadline = Duration::from_millis(50);
        *cell.shared.current.write() = Arc::new(inner);
        faults.iter().for_each(|faults| faults.calls_stalled.store(true, Ordering::Relaxed));
        let never = cell.update(key(), one_more).await;
        assert_eq!(never, Err(UpdateError::NotApplied(CellFailure::Deadline)), "no promise came");
        faults.iter().for_each(|faults| faults.calls_stalled.store(false, Ordering::Relaxed));
        let unknown = cell
            .update(key(), |held| {
                faults.iter().for_each(|faults| faults.calls_stalled.store(true, Ordering::Relaxed));
                one_more(held)
            })
            .await;
        assert_eq!(unknown, Err(UpdateError::Unknown));
        assert_eq!((cell.stats().update_failures, cell.stats().updates_unknown), (1, 1));
    });
}

#[test]
fn a_value_that_has_expired_is_missed_by_every_way_to_read_it_and_may_be_added_anew() {
    for can in [MEMORY, Capabilities { memory: false, scar: false }, WIRE] {
        in_runtime(|env| async move {
            let clients = clients_by(&env, 1, can).await;
            let cell = &clients.cells[0];
            let set = async |expires_ms: u64| {
                let extras = ItemExtras { expires_ms, tag: 3, token: 0 };
                cell.set_with(vec![(key(), "value".into(), extras)]).await.remove(0).expect("set");
                extras
            };
            // The one replica that is asked may be the one that has it last.
            let relaxed = async |is_right: &dyn Fn(&Lookup) -> bool| {
                while !is_right(&cell.get_relaxed(&[key()]).await[0]) {
                    env.sleep(std::time::Duration::from_millis(1)).await;
                }
            };
            let now_ms = env.wall_ms() as u64;
            let extras = set(now_ms + 3_600_000).await;
            let is_kept = |lookup: &Lookup| matches!(lookup, Lookup::Hit { extras: of, .. } if *of == extras);
            assert!(is_kept(&got(cell).await));
            relaxed(&is_kept).await;
            // The backends have it still, for readers whose clocks are slow.
            set(now_ms).await;
            assert_eq!(got(cell).await, Lookup::Miss);
            relaxed(&|lookup| *lookup == Lookup::Miss).await;
            assert_eq!(cell.touch(key(), 0).await, Ok(None), "what has expired is not brought back");
            cell.cas(key(), None, "next".into(), ItemExtras::default()).await.expect("there is none");
            assert!(matches!(got(cell).await, Lookup::Hit { value, .. } if value == "next"));
            // A touch keeps all but the expiry.
            set(now_ms + 3_600_000).await;
            let touched = cell.touch(key(), 0).await.expect("a quorum is there").expect("it is there");
            let kept = ItemExtras { expires_ms: 0, tag: 3, token: 0 };
            let expected = Lookup::Hit { version: touched, value: "value".into(), extras: kept };
            assert_eq!(got(cell).await, expected);
        });
    }
}

/// What happens to one key at one backend, in an order that the network chose.
#[derive(Clone, Copy, Debug)]
enum KeyEvent {
    Set(u64),
    Erase(u64),
    Promise(u64),
    Accept(u64),
}

fn came() -> impl Strategy<Value = KeyEvent> {
    let version = 1_u64..12;
    prop_oneof![
        version.clone().prop_map(KeyEvent::Set),
        version.clone().prop_map(KeyEvent::Erase),
        version.clone().prop_map(KeyEvent::Promise),
        version.prop_map(KeyEvent::Accept),
    ]
}

proptest! {
    #[test]
    fn a_late_or_repeated_mutation_undoes_nothing_and_what_was_promised_stays_as_it_was_told(
        order in proptest::collection::vec(came(), 1..40),
    ) {
        let (env, _clock) = world_by_hand();
        let (backend, doorbell) = served(&env, small(ID));
        let (connection, _) = Double::connect(&env, &backend, &doorbell, MEMORY);
        let at = |timestamp_us| Version { timestamp_us, client_id: 1, sequence: 0 };
        let (mut held, mut promised) = (0, None);
        for came in order {
            let (version, is_set, method) = match came {
                KeyEvent::Set(version) => (version, true, METHOD_MUTATE),
                KeyEvent::Erase(version) => (version, false, METHOD_MUTATE),
                KeyEvent::Accept(version) => (version, true, crate::protocol::METHOD_ACCEPT),
                KeyEvent::Promise(version) => {
                    let is_promised = promise(&*connection, at(version));
                    let is_above = version > held && promised.is_none_or(|promised| version >= promised);
                    prop_assert_eq!(is_promised.map(|held| held.timestamp_us), is_above.then_some(held));
                    if is_above {
                        promised = Some(version);
                    }
                    continue;
                }
            };
            let item = encode_item(&key(), at(version), is_set.then_some(&b"x"[..]));
            let payload = encode_mutate(ID, [item].iter());
            let reply = futures::executor::block_on(connection.call_with_pieces(method, payload)).expect("taken");
            let reply = <crate::protocol::MutateReply as prost::Message>::decode(reply).expect("a reply");
            let is_applied = reply.outcomes(1).expect("one") == [crate::protocol::Outcome::Applied];
            let is_free = version > held && promised.is_none_or(|promised| version >= promised);
            let may = match came {
                KeyEvent::Accept(_) => version == held || (is_free && promised == Some(version)),
                _ => version == held || is_free,
            };
            prop_assert_eq!(is_applied, may, "{:?} with {} held and {:?} promised", came, held, promised);
            if is_applied && version != held {
                (held, promised) = (version, None);
            }
        }
    }
}

/// The version that the backend holds or erased the key at, if it promises.
fn promise(connection: &dyn Connection, version: Version) -> Option<Version> {
    use crate::protocol::{METHOD_PROMISE, PromiseReply, PromiseRequest, PromiseState};
    let payload = PromiseRequest::of(ID, KeyHash::of(&key()), version);
    let payload = prost::Message::encode_to_vec(&payload).into();
    let reply = futures::executor::block_on(connection.call(METHOD_PROMISE, payload)).expect("taken");
    let reply = <PromiseReply as prost::Message>::decode(reply).expect("a reply");
    match reply.promised().expect("it makes sense").ok()? {
        PromiseState::Held(item) => Some(Item::parse(&item).expect("whole").version),
        PromiseState::Gone(erased) => Some(erased),
    }
}
