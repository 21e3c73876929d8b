//! Followers of a cell: what each backend tells, and that no change is missed silently.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tailwater_env::Instant;

use super::follow::FollowedBackends;
use super::tests::{WIRE, World, items, world};
use super::*;
use crate::limits::MUTATIONS_SETTLE;
use crate::protocol::ChangesReply;
use crate::testing::in_runtime;
use crate::version::Version;

const CONFIG_ID: u64 = 9;

fn at(ms: u64) -> Instant {
    Instant::from_ns(0) + Duration::from_millis(ms)
}

/// A reply that tells of `keys` behind which there are `told` changes. A key's change has the key as its version.
fn reply(order: u64, told: u64, keys: &[u128], is_gap: bool) -> Option<ChangesReply> {
    let hashes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let version = |key: &u128| Version { timestamp_us: *key as u64 + 1, client_id: 0, sequence: 0 };
    let versions: Vec<u8> = keys.iter().flat_map(|key| version(key).to_bytes()).collect();
    let (hashes, versions) = (hashes.into(), versions.into());
    Some(ChangesReply { order, told, hashes, is_gap, is_all: true, has_copied: false, versions })
}

/// Three backends that have answered at the beginning, at 0 ms, and at 5 s.
fn begun(mode: Mode) -> FollowedBackends {
    let mut following = FollowedBackends::default();
    following.go_by(CONFIG_ID, mode, 0..3);
    for number in 0..3 {
        assert_eq!(following.begin_asking(number), Some((0, 0)));
        let news = following.answered(number, CONFIG_ID, at(0), reply(1, 0, &[], true), at(0));
        let is_begin = number == if mode == Mode::R32 { 1 } else { 2 };
        let is_late = mode == Mode::R32 && number == 2;
        assert_eq!(news.contains(&CellNews::Everything), is_begin || is_late, "{number}");
    }
    for number in 0..3 {
        assert_eq!(answered(&mut following, number, 5_000, reply(1, 0, &[], false)), []);
    }
    following
}

/// What is told when a backend answers at `ms` to what it was asked at once.
fn answered(
    following: &mut FollowedBackends,
    number: u32,
    ms: u64,
    reply: Option<ChangesReply>,
) -> Vec<CellNews> {
    following.answered(number, CONFIG_ID, at(ms), reply, at(ms))
}

#[test]
fn a_change_is_told_with_one_backend_away_and_everything_where_two_were_away_at_once() {
    let mut following = begun(Mode::R32);
    let told = answered(&mut following, 0, 10_000, reply(1, 1, &[7], false));
    assert_eq!(told, [CellNews::Keys(vec![KeyHash(7)])]);
    assert_eq!(following.as_of(), Some(at(5_000)), "the others are not heard since");
    answered(&mut following, 1, 10_100, reply(1, 1, &[7], false));
    assert_eq!(following.as_of(), Some(at(10_000)));
    // The third one starts again.
    answered(&mut following, 2, 10_150, reply(1, 1, &[7], false));
    answered(&mut following, 2, 10_200, None);
    assert_eq!(answered(&mut following, 2, 20_000, reply(2, 5, &[], true)), []);
    assert_eq!(following.as_of(), Some(at(10_100)));
    answered(&mut following, 0, 20_100, reply(1, 1, &[], false));
    answered(&mut following, 1, 20_200, reply(1, 1, &[], false));
    assert_eq!(following.as_of(), Some(at(20_100)));
    // Another one does, soon after.
    answered(&mut following, 1, 20_300, None);
    assert_eq!(answered(&mut following, 1, 20_400, reply(3, 0, &[], true)), [CellNews::Everything]);
    // And one long after that.
    for ms in [25_000, 26_000] {
        (0..2).for_each(|number| {
            drop(answered(&mut following, number, ms, reply([1, 3][number as usize], 1, &[], false)))
        });
        answered(&mut following, 2, ms, reply(2, 5, &[], false));
    }
    assert_eq!(answered(&mut following, 0, 26_100, reply(4, 0, &[], true)), []);
    // While another one is away a gap is everything at once.
    answered(&mut following, 1, 40_000, None);
    assert_eq!(answered(&mut following, 2, 40_100, reply(5, 0, &[], true)), [CellNews::Everything]);
}

#[test]
fn what_one_backend_alone_has_told_is_told_once_more_and_until_then_it_is_not_known_what_has_changed() {
    let keys = |key| [CellNews::Keys(vec![KeyHash(key)])];
    let mut following = begun(Mode::R32);
    (0..3).for_each(|number| drop(answered(&mut following, number, 10_000, reply(1, 0, &[], false))));
    // The first one has applied it. The second one is not heard, and the third one misses it.
    assert_eq!(answered(&mut following, 0, 10_100, reply(1, 1, &[7], false)), keys(7));
    assert_eq!(answered(&mut following, 2, 10_200, reply(1, 0, &[], false)), []);
    assert_eq!(answered(&mut following, 0, 12_000, reply(1, 1, &[], false)), []);
    assert_eq!(answered(&mut following, 2, 12_000, reply(1, 0, &[], false)), []);
    assert_eq!(following.as_of(), Some(at(10_000)), "who got it may have what was before");
    assert_eq!(answered(&mut following, 2, 13_100, reply(1, 0, &[], false)), keys(7));
    assert_eq!(answered(&mut following, 0, 13_200, reply(1, 1, &[], false)), []);
    assert_eq!(following.as_of(), Some(at(13_100)));
    // Of what two have told, and of what was copied, nothing is told again.
    (0..3).for_each(|number| {
        drop(answered(&mut following, number, 20_000 + u64::from(number), reply(1, 2, &[8], false)))
    });
    let copied =
        reply(1, 3, &[9], false).map(|of| ChangesReply { versions: vec![0; Version::BYTES].into(), ..of });
    assert_eq!(answered(&mut following, 0, 20_100, copied), keys(9));
    assert_eq!(answered(&mut following, 1, 23_500, reply(1, 2, &[], false)), []);
    // A later change of a key is one of its own.
    let later = |told, version: u64| {
        let version = Version { timestamp_us: version, client_id: 1, sequence: 0 }.to_bytes();
        reply(1, told, &[7], false).map(|of| ChangesReply { versions: version.to_vec().into(), ..of })
    };
    assert_eq!(answered(&mut following, 0, 30_000, later(4, 50)), keys(7));
    assert_eq!(answered(&mut following, 1, 30_100, later(3, 60)), keys(7));
    assert_eq!(answered(&mut following, 2, 30_200, later(3, 50)), keys(7));
    assert_eq!(answered(&mut following, 2, 33_100, reply(1, 3, &[], false)), keys(7));
}

#[test]
fn a_gap_in_which_a_backend_may_have_copied_keys_is_everything() {
    for has_copied in [false, true] {
        let mut following = begun(Mode::R32);
        (0..3).for_each(|number| drop(answered(&mut following, number, 10_000, reply(1, 0, &[], false))));
        let gap = reply(2, 0, &[], true).map(|gap| ChangesReply { has_copied, ..gap });
        let told = answered(&mut following, 2, 10_100, gap);
        assert_eq!(told.contains(&CellNews::Everything), has_copied);
    }
}

#[test]
fn what_was_applied_in_a_gap_and_later_by_a_backend_that_is_not_heard_is_everything_once_it_must_be_over() {
    let mut following = begun(Mode::R32);
    (0..3).for_each(|number| drop(answered(&mut following, number, 10_000, reply(1, 0, &[], false))));
    // The second one is asked, and keeps silent.
    assert_eq!(answered(&mut following, 2, 10_100, reply(2, 0, &[], true)), []);
    for ms in [12_000, 14_000] {
        assert_eq!(answered(&mut following, 0, ms, reply(1, 0, &[], false)), []);
        assert_eq!(answered(&mut following, 2, ms, reply(2, 0, &[], false)), []);
        assert_eq!(following.as_of(), Some(at(10_000)), "it may still tell");
    }
    assert_eq!(answered(&mut following, 1, 15_000, None), [CellNews::Everything]);
    assert_eq!(following.as_of(), Some(at(14_000)));
}

#[test]
fn with_one_replica_each_gap_is_everything_and_the_slowest_backend_says_how_fresh_it_is() {
    let mut following = begun(Mode::R1);
    (0..3).for_each(|number| {
        drop(answered(&mut following, number, 9_000 + u64::from(number), reply(1, 0, &[], false)))
    });
    assert_eq!(following.as_of(), Some(at(9_000)));
    assert_eq!(answered(&mut following, 1, 9_200, reply(2, 0, &[], true)), [CellNews::Everything]);
}

#[test]
fn another_configuration_is_everything_once_its_backends_but_one_have_answered() {
    let mut following = begun(Mode::R32);
    following.go_by(CONFIG_ID + 1, Mode::R32, 1..5);
    assert_eq!(following.as_of(), None);
    assert_eq!(following.begin_asking(1), Some((1, 0)), "its place is still of use");
    assert_eq!(following.begin_asking(4), Some((0, 0)));
    let mut answer =
        |number, config_id, told| following.answered(number, config_id, at(9_000), told, at(9_000));
    assert_eq!(answer(1, CONFIG_ID, reply(1, 0, &[], false)), [], "of before");
    for number in 1..3 {
        assert_eq!(answer(number, CONFIG_ID + 1, reply(1, 0, &[], false)), []);
    }
    assert_eq!(answer(3, CONFIG_ID + 1, reply(1, 0, &[], true)), [CellNews::Everything]);
    assert_eq!(answer(0, CONFIG_ID, reply(1, 9, &[1], false)), [], "it has left");
}

/// A backend as far as its order goes.
#[derive(Default)]
struct ModelBackend {
    order: u64,
    changes: Vec<u128>,
    /// Those that it keeps begin there.
    kept_from: usize,
    /// When it was asked, for which place; and what it has answered.
    asked: Option<(Instant, (u64, u64))>,
    answer: Option<ChangesReply>,
}

impl ModelBackend {
    fn start(&mut self, order: u64) {
        let asked = self.asked;
        *self = Self { order, asked, ..Self::default() };
    }

    fn answer_to(&self, (order, told): (u64, u64)) -> ChangesReply {
        let count = self.changes.len();
        let is_gap = order != self.order || (told as usize) < self.kept_from;
        let keys = if is_gap { &[] } else { &self.changes[told as usize..] };
        reply(self.order, count as u64, keys, is_gap).expect("a reply")
    }
}

struct ModelChange {
    begun: Instant,
    applied: BTreeSet<usize>,
    acknowledged: Option<Instant>,
}

/// What whoever is told of `news` has by then, who gets it at once: two of three have applied it, or he may get what
/// was before. Who gets values from then on gets what was acknowledged before.
fn hear(told: &mut BTreeSet<u128>, changes: &[ModelChange], news: Vec<CellNews>) {
    for news in news {
        match news {
            CellNews::Keys(keys) => {
                let is_got = |key: &u128| changes[*key as usize].applied.len() >= 2;
                told.extend(keys.iter().map(|key| key.0).filter(is_got));
            }
            CellNews::Everything => {
                let acknowledged = |n: &usize| changes[*n].acknowledged.is_some();
                told.extend((0..changes.len()).filter(acknowledged).map(|n| n as u128));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn every_change_that_was_acknowledged_before_a_follower_is_as_of_was_told(
        steps in proptest::collection::vec((0_u8..20, 0_usize..3, 0_u64..300), 1..400),
    ) {
        let mut following = FollowedBackends::default();
        following.go_by(CONFIG_ID, Mode::R32, 0..3);
        let mut backends: [ModelBackend; 3] = std::array::from_fn(|_| ModelBackend::default());
        let mut changes: Vec<ModelChange> = Vec::new();
        let mut told: BTreeSet<u128> = BTreeSet::new();
        let (mut now, mut orders) = (at(1), 0);
        for backend in &mut backends {
            orders += 1;
            backend.start(orders);
        }
        for (step, number, ms) in steps {
            now = now + Duration::from_millis(ms);
            let backend = &mut backends[number];
            match step {
                0 | 1 => changes.push(ModelChange { begun: now, applied: BTreeSet::new(), acknowledged: None }),
                2..=7 => {
                    let is_under_way = |change: &ModelChange| {
                        now.since(change.begun) <= MUTATIONS_SETTLE && !change.applied.contains(&number)
                    };
                    let under_way: Vec<usize> = (0..changes.len()).filter(|n| is_under_way(&changes[*n])).collect();
                    if let Some(n) = under_way.get(ms as usize % under_way.len().max(1)) {
                        let change = &mut changes[*n];
                        backend.changes.push(*n as u128);
                        change.applied.insert(number);
                        if change.applied.len() == 2 {
                            change.acknowledged = Some(now);
                        }
                    }
                }
                // A backend is asked, answers, and is heard.
                8..=15 => match (backend.asked, backend.answer.take()) {
                    (None, _) => {
                        backend.asked = following.begin_asking(number as u32).map(|place| (now, place));
                    }
                    (Some((_, place)), None) => backend.answer = Some(backend.answer_to(place)),
                    (Some((asked, _)), answer) => {
                        backend.asked = None;
                        let news = following.answered(number as u32, CONFIG_ID, asked, answer, now);
                        hear(&mut told, &changes, news);
                    }
                },
                16 => {
                    backend.answer = None;
                    if let Some((asked, _)) = backend.asked.take() {
                        let news = following.answered(number as u32, CONFIG_ID, asked, None, now);
                        hear(&mut told, &changes, news);
                    }
                }
                17 => {
                    orders += 1;
                    backend.start(orders);
                }
                18 => backend.kept_from = backend.changes.len(),
                _ => now = now + Duration::from_millis(10 * ms),
            }
            let as_of = following.as_of();
            for (n, change) in changes.iter().enumerate() {
                let is_old = change.acknowledged.is_some_and(|when| as_of.is_some_and(|as_of| when < as_of));
                prop_assert!(!is_old || told.contains(&(n as u128)), "change {} as of {:?}", n, as_of);
            }
        }
    }
}

async fn told_of(follower: &mut CellFollower, key: &Bytes) {
    loop {
        match follower.next().await {
            CellNews::Keys(hashes) if hashes.contains(&KeyHash::of(key)) => return,
            CellNews::Keys(_) => {}
            CellNews::Everything => panic!("nothing was lost"),
        }
    }
}

/// Until the backends have all been heard, it is told that everything may have changed once or twice.
async fn has_begun(world: &World) -> CellFollower {
    let mut follower = world.cell.follow();
    assert_eq!(follower.next().await, CellNews::Everything);
    while follower.is_open() {
        let _ = world.env().timeout(Duration::from_millis(1), follower.next()).await;
    }
    while world.env().timeout(Duration::from_millis(1), follower.next()).await.is_some() {}
    follower
}

#[test]
fn a_follower_is_told_of_what_other_clients_set_and_erase_with_one_backend_away_and_back() {
    in_runtime(|env| async move {
        let world = world(env, Mode::R32, 3, WIRE).await;
        let mut follower = has_begun(&world).await;
        let items = items(3, 100);
        let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
        assert!(world.cell.set(items[..1].to_vec()).await[0].is_ok());
        told_of(&mut follower, &keys[0]).await;
        world.faults[1].calls_stalled.store(true, Ordering::Relaxed);
        assert!(world.cell.set(items[1..2].to_vec()).await[0].is_ok());
        told_of(&mut follower, &keys[1]).await;
        world.faults[1].calls_stalled.store(false, Ordering::Relaxed);
        assert!(world.cell.erase(keys[..1].to_vec()).await[0].is_ok());
        told_of(&mut follower, &keys[0]).await;
        // One that was emptied is outvoted, and all of them are not.
        assert_eq!(world.cell.clear().await, 3);
        while follower.next().await != CellNews::Everything {}
    });
}
