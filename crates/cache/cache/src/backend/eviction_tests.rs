//! What goes when a backend is full, by each policy.

use proptest::prelude::*;

use super::tests::{ID, Step, call, mutate, read, set, start, steps, value, version};
use super::*;
use crate::layout::encode_item;
use crate::limits::TOUCHES_PER_CALL_MAX;
use crate::testing::{HandClock, small};

const ALL: [EvictionPolicy; 3] = [EvictionPolicy::Lrm, EvictionPolicy::Lru, EvictionPolicy::S3Fifo];
/// Room for so many values of [`VALUE_BYTES`].
const ROOM: u64 = 550;
const VALUE_BYTES: usize = 4_000;

fn full_at_half(eviction: EvictionPolicy) -> (Arc<Backend>, Arc<HandClock>) {
    start(BackendConfig { capacity_bytes: 4 * BLOCK_BYTES, eviction_at: 0.5, eviction, ..small(ID) })
}

fn touch<'a>(backend: &Backend, keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<bool, Refusal> {
    let hashes: Vec<KeyHash> = keys.map(|key| KeyHash::of(key)).collect();
    let answer = call(backend, METHOD_TOUCH, TouchRequest::of(&hashes).encode_to_vec().into())?;
    Ok(TouchReply::decode(answer).expect("well formed").is_wanted)
}

/// A world in which some keys are hot, and others are set and never read.
struct ScannedBackend {
    backend: Arc<Backend>,
    clock: Arc<HandClock>,
    hot: Vec<Vec<u8>>,
    /// SETs so far.
    sets: u64,
}

impl ScannedBackend {
    fn start(eviction: EvictionPolicy) -> Self {
        let (backend, clock) = full_at_half(eviction);
        let hot = (0..50_u8).map(|n| vec![n]).collect();
        let mut scanned = Self { backend, clock, hot, sets: 0 };
        scanned.set_hot();
        scanned
    }

    fn set(&mut self, key: &[u8]) {
        self.sets += 1;
        self.clock.advance(Duration::from_millis(1));
        assert_eq!(set(&self.backend, key, self.sets, VALUE_BYTES), Outcome::Applied);
    }

    fn set_hot(&mut self) {
        self.hot.clone().iter().for_each(|key| self.set(key));
    }

    /// Sets so many keys that nobody set before.
    fn scan(&mut self, count: u64) {
        (0..count).for_each(|_| self.set(format!("cold {}", self.sets).as_bytes()));
    }

    fn touch_hot(&self) -> bool {
        touch(&self.backend, self.hot.iter()).expect("well formed")
    }

    fn hot_held(&self) -> usize {
        self.hot.iter().filter(|key| read(&self.backend, key).is_some()).count()
    }
}

#[test]
fn keys_that_are_read_outlast_a_scan_of_cold_sets_if_evictions_go_by_that_and_clients_tell() {
    for eviction in ALL {
        for is_told in [false, true] {
            let mut scanned = ScannedBackend::start(eviction);
            for _ in 0..20 {
                if is_told {
                    assert_eq!(scanned.touch_hot(), eviction != EvictionPolicy::Lrm);
                }
                scanned.scan(ROOM / 5);
            }
            let expected = if is_told && eviction != EvictionPolicy::Lrm { 50 } else { 0 };
            assert_eq!(scanned.hot_held(), expected, "{eviction:?}, told: {is_told}");
            let stats = scanned.backend.stats();
            assert_eq!(stats.touches, if expected > 0 { 20 * 50 } else { 0 });
            assert!(stats.evicted > 1_000 && stats.live_bytes <= stats.capacity_bytes / 2);
        }
    }
}

#[test]
fn what_was_read_once_outlasts_a_scan_of_any_length_by_s3_fifo_and_not_by_lru() {
    let held = |eviction, cold| {
        let mut scanned = ScannedBackend::start(eviction);
        scanned.touch_hot();
        scanned.scan(cold);
        scanned.hot_held()
    };
    assert_eq!(held(EvictionPolicy::Lru, 2 * ROOM), 0);
    assert_eq!(held(EvictionPolicy::S3Fifo, 6 * ROOM), 50);
}

#[test]
fn what_comes_back_soon_after_it_was_removed_unread_outlasts_the_next_scan_by_s3_fifo() {
    let mut scanned = ScannedBackend::start(EvictionPolicy::S3Fifo);
    scanned.scan(ROOM + 60);
    assert_eq!(scanned.hot_held(), 0, "nobody has read them");
    scanned.set_hot();
    scanned.scan(3 * ROOM);
    assert_eq!(scanned.hot_held(), 50);
    // And it goes when others are read.
    let others: Vec<Vec<u8>> = (0..ROOM).map(|n| format!("other {n}").into_bytes()).collect();
    for some in others.chunks(50) {
        some.iter().for_each(|key| scanned.set(key));
        touch(&scanned.backend, some.iter()).expect("well formed");
    }
    scanned.scan(ROOM);
    assert!(scanned.hot_held() < 50, "the main queue is not for ever");
}

#[test]
fn where_all_is_used_room_is_made_all_the_same_and_the_metrics_tell_how_long_it_was_unused() {
    for eviction in [EvictionPolicy::Lru, EvictionPolicy::S3Fifo] {
        let mut scanned = ScannedBackend::start(eviction);
        scanned.scan(ROOM);
        let before = scanned.backend.stats();
        assert!(before.evicted > 0);
        let all: Vec<Vec<u8>> = (0..scanned.sets).map(|n| format!("cold {n}").into_bytes()).collect();
        (0..3).for_each(|_| drop(touch(&scanned.backend, all.iter().chain(&scanned.hot))));
        scanned.clock.advance(Duration::from_secs(5));
        scanned.set(b"one more");
        let after = scanned.backend.stats();
        assert!(read(&scanned.backend, b"one more").is_some() && after.evicted == before.evicted + 1);
        assert_eq!(after.evicted_unused_ms, 5_001, "{eviction:?}");
        assert!(after.evicted_age_ms > 5_001, "{eviction:?}");
    }
}

#[test]
fn a_late_set_does_not_come_after_a_later_one_that_was_evicted_meanwhile() {
    for eviction in ALL {
        let mut scanned = ScannedBackend::start(eviction);
        scanned.scan(ROOM + 60);
        assert_eq!(scanned.hot_held(), 0, "{eviction:?}");
        // The last one of those that are hot was set at this version, half a second ago.
        let late = set(&scanned.backend, &[49], 49, VALUE_BYTES);
        assert!(
            matches!(late, Outcome::BelowSummary(above) if above >= version(50)),
            "{eviction:?}: {late:?}"
        );
        assert_eq!(set(&scanned.backend, &[49], 5_000, VALUE_BYTES), Outcome::Applied);
    }
}

#[test]
fn what_is_read_expires_by_its_last_set_all_the_same() {
    for eviction in ALL {
        let config = BackendConfig { ttl: Duration::from_secs(1), eviction, ..small(ID) };
        let (backend, clock) = start(config);
        let keys = [vec![1], vec![2]];
        set(&backend, &keys[0], 1, 100);
        for _ in 0..2 {
            clock.advance(Duration::from_millis(600));
            let _ = touch(&backend, keys.iter());
            while backend.sweep_once() {}
            set(&backend, &keys[1], 9, 100);
        }
        assert!(read(&backend, &keys[0]).is_none() && read(&backend, &keys[1]).is_some(), "{eviction:?}");
    }
}

#[test]
fn keys_that_are_not_held_are_not_noted_and_too_many_or_half_ones_are_refused() {
    let (backend, _) = full_at_half(EvictionPolicy::Lru);
    let keys: Vec<Vec<u8>> = (0..=TOUCHES_PER_CALL_MAX).map(|n| n.to_le_bytes().to_vec()).collect();
    assert!(touch(&backend, keys[1..].iter()).expect("as many as there may be"));
    assert_eq!(backend.stats().touches, 0);
    let refused = touch(&backend, keys.iter()).expect_err("too many");
    assert_eq!(refused.code, REFUSED_MALFORMED);
    let half = TouchRequest { hashes: vec![0; 24].into() }.encode_to_vec();
    assert_eq!(call(&backend, METHOD_TOUCH, half.into()).expect_err("cut short").code, REFUSED_MALFORMED);
    assert!(touch(&backend, [].iter()).expect("nothing is well formed"));
}

#[test]
fn a_backend_at_all_of_its_memory_takes_an_hour_of_writes_of_all_sizes_and_answers_the_last_ones() {
    const SETS: u64 = 20_000;
    for eviction in ALL {
        let ttl = Duration::from_secs(600);
        let config =
            BackendConfig { capacity_bytes: 4 * BLOCK_BYTES, eviction_at: 1.0, eviction, ttl, ..small(ID) };
        let (backend, clock) = start(config);
        let capacity = 4 * BLOCK_BYTES;
        let key_of = |n: u64| format!("key {}", n % 7_000).into_bytes();
        // Sizes come and go over the hour, so that slabs change what they are for; now and then there is a large one.
        let len_of = |n: u64| match n % 500 {
            0 => 700_000,
            _ => 40 + (n * 7_919 % 97) as usize * (1 + n as usize * 8 / SETS as usize) * 5,
        };
        let mut full = 0;
        for n in 1..=SETS {
            clock.advance(Duration::from_secs(3_600) / SETS as u32);
            let key = key_of(n);
            assert_eq!(set(&backend, &key, n, len_of(n)), Outcome::Applied, "{eviction:?}, SET {n}");
            let held = read(&backend, &key);
            assert_eq!(held, Some((version(n), value(&key, version(n), len_of(n)))), "{eviction:?}, SET {n}");
            // Some that were set before, or nothing.
            for before in [n.saturating_sub(3), n.saturating_sub(450), n * 31 % n.max(2)] {
                if let Some((at, bytes)) = read(&backend, &key_of(before)) {
                    assert!(at.timestamp_us <= n && key_of(at.timestamp_us) == key_of(before));
                    let expected = value(&key_of(before), at, len_of(at.timestamp_us));
                    assert!(bytes == expected, "{eviction:?}, SET {n}: {at}");
                }
            }
            if n % 64 == 0 {
                let _ = touch(&backend, [key_of(n / 2), key_of(n)].iter());
                while backend.sweep_once() {}
                let stats = backend.stats();
                assert!(stats.live_bytes <= capacity, "{} of {capacity}", stats.live_bytes);
                full += u64::from(stats.live_bytes * 10 > capacity * 7);
            }
        }
        let stats = backend.stats();
        assert!(full > SETS / 64 / 2, "{eviction:?}: it was full {full} times");
        assert!(stats.evicted > 1_000 && stats.slabs_reclaimed > 10, "{eviction:?}: {stats:?}");
        assert_eq!(stats.sets, SETS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn by_any_policy_a_full_backend_answers_the_last_set_or_nothing_and_keeps_its_limit(
        steps in steps(),
        touched in proptest::collection::vec(0_u8..40, 100),
        eviction in proptest::sample::select(&ALL[..]),
        thousandths in 2_u32..10,
    ) {
        // Some ten of the longest values.
        let eviction_at = f64::from(thousandths) / 1_000.0;
        let config = BackendConfig { capacity_bytes: 4 * BLOCK_BYTES, buckets: 2, eviction_at, eviction, ..small(ID) };
        let (backend, clock) = start(config);
        let limit = (4.0 * BLOCK_BYTES as f64 * eviction_at) as u64;
        let mut last = std::collections::BTreeMap::new();
        for (step, touched) in steps.into_iter().zip(touched) {
            let _ = touch(&backend, [vec![touched], vec![touched / 2]].iter());
            match step {
                // The same once more changes nothing.
                Step::Set { key, version: n, .. } | Step::Erase { key, version: n }
                    if read(&backend, &[key]).is_some_and(|(held, _)| held == version(n)) => {}
                Step::Set { key, version: n, len } => {
                    if set(&backend, &[key], n, len) == Outcome::Applied {
                        last.insert(key, (n, Some(len)));
                    }
                }
                Step::Erase { key, version: n } => {
                    let outcome = mutate(&backend, &[encode_item(&[key], version(n), None)]);
                    if outcome == [Outcome::Applied] {
                        last.insert(key, (n, None));
                    }
                }
                Step::Pass { ms } => {
                    clock.advance(Duration::from_millis(ms));
                    while backend.sweep_once() {}
                }
                Step::Clear => {
                    backend.clear();
                    last.clear();
                }
            }
            let mut held = 0;
            for key in 0..40 {
                let Some((at, bytes)) = read(&backend, &[key]) else { continue };
                held += 1;
                let (n, len) = last.get(&key).copied().unwrap_or_default();
                prop_assert_eq!((at, Some(bytes)), (version(n), len.map(|len| value(&[key], version(n), len))));
            }
            let stats = backend.stats();
            prop_assert_eq!(stats.items, held);
            prop_assert!(stats.live_bytes <= limit || stats.items <= 1, "{} of {}", stats.live_bytes, limit);
        }
        backend.clear();
        let stats = backend.stats();
        prop_assert_eq!((stats.items, stats.live_bytes, stats.overflowed), (0, 0, 0));
    }
}
