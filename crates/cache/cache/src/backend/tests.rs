use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::table::regions::TablePart;
use super::*;
use crate::configuration::Configuration;
use crate::layout::{EncodedItem, ITEM_HEADER_BYTES, ItemExtras, Pointer, encode_item};
use crate::limits::{BLOCK_BYTES, EXPIRED_KEPT, SLOT_REST, TOMBSTONES_MAX};
use crate::protocol::{ConfigureRequest, LoadRequest, Looked, encode_mutate};
use crate::testing::{HandClock, small, world_by_hand};
use crate::version::Version;

pub(super) const ID: u64 = 3;

pub(super) fn start(config: BackendConfig) -> (Arc<Backend>, Arc<HandClock>) {
    let (env, clock) = world_by_hand();
    (Backend::start(&env, config).expect("memory"), clock)
}

pub(super) fn version(n: u64) -> Version {
    Version { timestamp_us: n, client_id: 1, sequence: 0 }
}

/// A value that only this key and version have.
pub(super) fn value(key: &[u8], version: Version, len: usize) -> Vec<u8> {
    let seed = xxhash_rust::xxh3::xxh3_64_with_seed(key, version.timestamp_us);
    let mut value = seed.to_le_bytes().repeat(len.div_ceil(8));
    value.truncate(len);
    value
}

pub(super) fn call(backend: &Backend, method: u16, payload: Bytes) -> Result<Bytes, Refusal> {
    let answer = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&answer);
    let peer = Peer::anonymous("test".to_owned());
    backend.call(&peer, method, payload, Reply::new(move |answer| *kept.lock() = Some(answer)));
    let answer = answer.lock().take();
    answer.expect("the backend answers before it returns")
}

/// A request with these items.
fn mutation<'a>(config_id: u64, items: impl Iterator<Item = &'a Bytes> + Clone) -> Bytes {
    encode_mutate(config_id, items).concat().into()
}

pub(super) fn mutate(backend: &Backend, items: &[Bytes]) -> Vec<Outcome> {
    let answer = call(backend, METHOD_MUTATE, mutation(ID, items.iter())).expect("well formed");
    let reply = MutateReply::decode(answer).expect("well formed");
    reply.outcomes(items.len()).expect("one for each")
}

pub(super) fn set(backend: &Backend, key: &[u8], n: u64, len: usize) -> Outcome {
    let value = value(key, version(n), len);
    mutate(backend, &[encode_item(key, version(n), Some(&value))])[0]
}

fn erase(backend: &Backend, key: &[u8], n: u64) -> Outcome {
    mutate(backend, &[encode_item(key, version(n), None)])[0]
}

/// What a reader finds: from memory alone, but for keys whose bucket overflowed.
pub(super) fn read(backend: &Backend, key: &[u8]) -> Option<(Version, Vec<u8>)> {
    let hash = KeyHash::of(key);
    let mut bucket = [0; BUCKET_BYTES];
    backend.served().index.read(bucket_offset(hash.bucket(backend.config.buckets)), &mut bucket);
    let bytes = match scan_bucket(&bucket, hash, ID) {
        BucketView::Found { version, pointer: Pointer { offset, len } } => {
            let mut bytes = vec![0; len as usize];
            backend.served().data.read(offset, &mut bytes);
            assert_eq!(Item::parse(&bytes).expect("quiet").version, version);
            bytes
        }
        BucketView::Absent => return None,
        BucketView::Overflowed => match look_up(backend, &[hash]).remove(0) {
            Looked::Item(item) => item.to_vec(),
            Looked::Absent => return None,
            Looked::Deferred | Looked::Unknown => panic!("a single item has room, and nothing is unknown"),
        },
        BucketView::Unknown | BucketView::OtherConfig => panic!("a bucket of this backend, which is filled"),
    };
    let item = Item::parse(&bytes).expect("quiet");
    assert_eq!((item.key, item.tombstone), (key, false));
    Some((item.version, item.value.to_vec()))
}

fn look_up(backend: &Backend, hashes: &[KeyHash]) -> Vec<Looked> {
    let request = LookupRequest::of(ID, hashes.iter().copied()).encode_to_vec();
    let answer = call(backend, METHOD_LOOKUP, request.into()).expect("well formed");
    LookupReply::decode(answer).expect("well formed").parts(hashes.len()).expect("one for each")
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Set { key: u8, version: u64, len: usize },
    Erase { key: u8, version: u64 },
    Pass { ms: u64 },
    Clear,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..40;
    let step = prop_oneof![
        10 => (key.clone(), 1_u64..200, 0_usize..5_000)
            .prop_map(|(key, version, len)| Step::Set { key, version, len }),
        3 => (key, 1_u64..200).prop_map(|(key, version)| Step::Erase { key, version }),
        3 => (0_u64..400).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 1..100)
}

/// A key's last mutation in the model: its version, when, and the value's length if it was a SET.
type Known = (u64, u64, Option<usize>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_backend_answers_like_a_plain_map(steps in steps(), buckets in prop_oneof![Just(1_u64), Just(3), Just(64)]) {
        let ttl = Duration::from_secs(1);
        let (backend, clock) = start(BackendConfig { buckets, ttl, ..small(ID) });
        let mut model: BTreeMap<u8, Known> = BTreeMap::new();
        let mut now_ms = 0;
        for step in steps {
            match step {
                Step::Set { key, version: n, len } => {
                    let expected = match model.get(&key) {
                        Some((held, ..)) if *held > n => Outcome::Superseded(version(*held)),
                        Some((held, ..)) if *held == n => Outcome::Applied,
                        _ => {
                            model.insert(key, (n, now_ms, Some(len)));
                            Outcome::Applied
                        }
                    };
                    prop_assert_eq!(set(&backend, &[key], n, len), expected);
                }
                Step::Erase { key, version: n } => {
                    let expected = match model.get(&key) {
                        Some((held, ..)) if *held > n => Outcome::Superseded(version(*held)),
                        Some((held, ..)) if *held == n => Outcome::Applied,
                        _ => {
                            model.insert(key, (n, now_ms, None));
                            Outcome::Applied
                        }
                    };
                    prop_assert_eq!(erase(&backend, &[key], n), expected);
                }
                Step::Pass { ms } => {
                    now_ms += ms;
                    clock.advance(Duration::from_millis(ms));
                    while backend.sweep_once() {}
                    model.retain(|_, (_, set_ms, len)| len.is_none() || now_ms - *set_ms < 1000);
                }
                Step::Clear => {
                    backend.clear();
                    model.clear();
                }
            }
            for key in 0..40 {
                let expected = match model.get(&key) {
                    Some((n, _, Some(len))) => Some((version(*n), value(&[key], version(*n), *len))),
                    _ => None,
                };
                prop_assert_eq!(read(&backend, &[key]), expected, "key {}", key);
            }
            let held = model.values().filter(|(.., len)| len.is_some()).count() as u64;
            prop_assert_eq!(backend.stats().items, held);
        }
        backend.clear();
        let stats = backend.stats();
        prop_assert_eq!((stats.items, stats.live_bytes, stats.overflowed), (0, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn while_regions_move_both_places_hold_the_same_whatever_is_done(before in steps(), during in steps(), after in steps()) {
        let (backend, clock) = start(BackendConfig { buckets: 3, ttl: Duration::from_secs(1), ..small(ID) });
        let carry_out = |steps: Vec<Step>| {
            for step in steps {
                match step {
                    Step::Set { key, version: n, len } => drop(set(&backend, &[key], n, len)),
                    Step::Erase { key, version: n } => drop(erase(&backend, &[key], n)),
                    Step::Pass { ms } => {
                        clock.advance(Duration::from_millis(ms));
                        while backend.sweep_once() {}
                    }
                    Step::Clear => backend.clear(),
                }
            }
        };
        let bytes_of = |region: &Region| {
            let mut bytes = vec![0; region.len() as usize];
            region.read(0, &mut bytes);
            bytes
        };
        carry_out(before);
        let new = backend.begin_move().expect("memory");
        carry_out(during);
        for (part, region) in [(TablePart::Index, &new.index), (TablePart::Data, &new.data)] {
            backend.table.lock().copy_part(part, 0, &mut vec![0; region.len() as usize]);
        }
        let old = backend.switch_places(new);
        carry_out(after);
        let now = backend.served();
        let header = crate::layout::HEADER_BYTES as usize;
        prop_assert!(bytes_of(&now.index)[header..] == bytes_of(&old.index)[header..]);
        prop_assert!(bytes_of(&now.data) == bytes_of(&old.data));
        let header_of = |region: &Region| {
            IndexHeader::decode(bytes_of(region).first_chunk().expect("a header"), region.len()).expect("whole")
        };
        prop_assert!(header_of(&old.index).has_moved && !header_of(&now.index).has_moved);
        backend.retire();
        set(&backend, b"later", 1_000, 10);
        for key in [&b"later"[..], &[1], &[2]] {
            let hash = KeyHash::of(key);
            let mut bucket = [0; BUCKET_BYTES];
            old.index.read(bucket_offset(hash.bucket(3)), &mut bucket);
            prop_assert_eq!(scan_bucket(&bucket, hash, ID), BucketView::OtherConfig, "nobody believes it");
        }
        prop_assert!(read(&backend, b"later").is_some());
    }
}

#[test]
fn the_least_recently_modified_are_evicted_and_never_more_than_the_limit_is_live() {
    let config = BackendConfig { capacity_bytes: 6 * BLOCK_BYTES, eviction_at: 0.5, ..small(ID) };
    let (backend, _) = start(config);
    let limit = 3 * BLOCK_BYTES;
    let len = 4096;
    for n in 0..2_000_u64 {
        // Every tenth key is set again and again, and so stays.
        set(&backend, b"kept", 2 * n + 1, len);
        set(&backend, &n.to_le_bytes(), 2 * n + 2, len);
        assert!(backend.stats().live_bytes <= limit);
    }
    let held = backend.stats().items;
    assert!(held > 700, "{held} items of 4 KiB in {limit} bytes");
    assert!(read(&backend, b"kept").is_some());
    for n in 0..2_000_u64 {
        assert_eq!(read(&backend, &n.to_le_bytes()).is_some(), n >= 2_001 - held, "item {n} of {held}");
    }
    let stats = backend.stats();
    assert_eq!((stats.evicted, stats.slabs_reclaimed), (2_001 - held, 0));
}

#[test]
fn an_index_for_values_of_their_size_holds_all_short_ones_and_one_for_longer_ones_evicts_many() {
    const VALUE_BYTES: usize = 512;
    let fill = |value_bytes| {
        let (backend, _clock) = start(BackendConfig::data(8 << 20, value_bytes, ID, Backing::Private));
        // Less than is evicted for room: all of it may stay.
        let count = (8 << 20) / 2 / VALUE_BYTES;
        for n in 0..count {
            // As long as a chunk's.
            set(&backend, &[[0; 40].as_slice(), &n.to_le_bytes()].concat(), n as u64 + 1, VALUE_BYTES);
        }
        (count as u64, backend.stats())
    };
    let (count, stats) = fill(4_096);
    assert!(stats.evicted > count / 4, "{stats:?}");
    assert!(stats.overflowed > stats.items / 20, "{stats:?}");
    let (count, stats) = fill(VALUE_BYTES as u64);
    assert_eq!((stats.items, stats.evicted), (count, 0), "{stats:?}");
    assert!(stats.overflowed < stats.items / 100, "{stats:?}");
}

#[test]
fn slabs_follow_a_change_of_sizes() {
    let (backend, clock) = start(BackendConfig { capacity_bytes: 4 * BLOCK_BYTES, ..small(ID) });
    for (round, len) in [100, 4_000, 1 << 20, 60_000, 300].into_iter().enumerate() {
        clock.advance(Duration::from_millis(10));
        for n in 0..300_u64 {
            let n = round as u64 * 1000 + n;
            assert_eq!(set(&backend, &n.to_le_bytes(), n + 1, len), Outcome::Applied);
            assert_eq!(read(&backend, &n.to_le_bytes()).expect("just set").1.len(), len);
        }
    }
    assert!(backend.stats().slabs_reclaimed > 0);
}

#[test]
fn the_greatest_value_fits_the_smallest_backend_and_replaces_itself() {
    let (backend, _) = start(BackendConfig { capacity_bytes: 1, ..small(ID) });
    for n in 1..10 {
        assert_eq!(set(&backend, b"k", n, 1 << 20), Outcome::Applied);
        assert_eq!(read(&backend, b"k").expect("held").0, version(n));
    }
}

#[test]
fn a_late_set_does_not_bring_an_erased_key_back_even_when_its_tombstone_was_merged() {
    let (backend, _) = start(small(ID));
    set(&backend, b"k", 10, 8);
    assert_eq!(erase(&backend, b"k", 20), Outcome::Applied);
    assert_eq!(set(&backend, b"k", 15, 8), Outcome::Superseded(version(20)));
    let tombstones: Vec<Bytes> =
        (0..TOMBSTONES_MAX as u64).map(|n| encode_item(&n.to_le_bytes(), version(1), None)).collect();
    for some in tombstones.chunks(MUTATE_ITEMS_MAX) {
        mutate(&backend, some);
    }
    assert_eq!(set(&backend, b"k", 15, 8), Outcome::BelowSummary(version(20)));
    assert_eq!(set(&backend, b"k", 21, 8), Outcome::Applied);
    assert_eq!(read(&backend, b"k").expect("held").0, version(21));
}

#[test]
fn a_malformed_batch_is_refused_as_a_whole() {
    let (backend, _) = start(small(ID));
    let good = encode_item(b"good", version(1), Some(b"value"));
    let mut bad = encode_item(b"bad", version(1), Some(b"value")).to_vec();
    *bad.last_mut().expect("some") ^= 1;
    let refused = |payload: Bytes| call(&backend, METHOD_MUTATE, payload).expect_err("refused").code;
    assert_eq!(refused(mutation(ID, [good.clone(), bad.into()].iter())), REFUSED_MALFORMED);
    assert_eq!(refused(mutation(ID, [good.clone(), good.slice(..20)].iter())), REFUSED_MALFORMED);
    assert_eq!(refused(mutation(ID + 1, [good].iter())), REFUSED_CONFIG);
    assert_eq!(refused(Bytes::from_static(b"\xff\xff\xff")), REFUSED_MALFORMED);
    let many = vec![encode_item(b"", version(1), None); MUTATE_ITEMS_MAX + 1];
    assert_eq!(refused(mutation(ID, many.iter())), REFUSED_MALFORMED);
    assert_eq!(call(&backend, 9999, Bytes::new()).expect_err("no such method").code, REFUSED_METHOD);
    let hashes =
        LookupRequest { hashes: Bytes::from_static(&[0; 15]), ..LookupRequest::of(ID, std::iter::empty()) };
    let refusal = call(&backend, METHOD_LOOKUP, hashes.encode_to_vec().into()).expect_err("cut short");
    assert_eq!(refusal.code, REFUSED_MALFORMED);
    assert_eq!(backend.stats().items, 0);
}

#[test]
fn a_lookup_answers_what_fits_and_defers_the_rest() {
    let (backend, _) = start(BackendConfig { buckets: 1, capacity_bytes: 16 * BLOCK_BYTES, ..small(ID) });
    let keys: Vec<[u8; 1]> = (0..8).map(|n| [n]).collect();
    for key in &keys {
        set(&backend, key, 1, 1 << 20);
    }
    let hashes: Vec<KeyHash> = keys.iter().map(|key| KeyHash::of(key)).collect();
    let looked = look_up(&backend, &hashes);
    let deferred = looked.iter().filter(|looked| **looked == Looked::Deferred).count();
    assert_eq!(deferred, 8 - LOOKUP_BYTES_MAX / ((1 << 20) + ITEM_HEADER_BYTES + 1));
    assert!(matches!(look_up(&backend, &hashes[7..])[0], Looked::Item(_)));
}

#[test]
fn the_doorbell_rings_once_for_a_batch_and_not_for_one_that_changed_nothing() {
    let (backend, _) = start(small(ID));
    let rings = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rings);
    backend.ring_on_change(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let batch = [b"a", b"b"].map(|key| encode_item(key, version(5), Some(b"")));
    mutate(&backend, &batch);
    assert_eq!(rings.load(Ordering::Relaxed), 1);
    set(&backend, b"a", 4, 1);
    assert_eq!(rings.load(Ordering::Relaxed), 1, "superseded");
}

#[test]
fn the_scan_of_the_far_side_names_the_bucket_and_what_it_points_at() {
    let (backend, _) = start(small(ID));
    set(&backend, b"k", 1, 100);
    set(&backend, b"long", 1, 1 << 20);
    let op = |key: &[u8]| {
        let hash = KeyHash::of(key);
        ScarOp { bucket: hash.bucket(512), key_hash: hash.0, apart: 0 }
    };
    let hit = backend.scar(&op(b"k")).expect("a bucket");
    let (place, offset, len) = hit.data.expect("held");
    let mut bytes = vec![0; len as usize];
    backend.regions()[place].read(offset, &mut bytes);
    assert_eq!(Item::parse(&bytes).expect("quiet").key, b"k");
    assert_eq!(backend.scar(&op(b"none")).expect("a bucket").data, None);
    assert_eq!(backend.scar(&op(b"long")).expect("a bucket").data, None, "longer than one read");
    assert_eq!(backend.scar(&ScarOp { bucket: 512, key_hash: 0, apart: 0 }), None);
}

#[test]
fn the_name_of_an_erased_key_is_not_completed_by_the_pointer_of_the_next_one_in_its_way() {
    let (backend, _) = start(BackendConfig { buckets: 1, ..small(ID) });
    let bucket = || {
        let mut bucket = [0; BUCKET_BYTES];
        backend.served().index.read(bucket_offset(0), &mut bucket);
        bucket
    };
    set(&backend, b"erased", 1, 100);
    erase(&backend, b"erased", 2);
    let before = bucket();
    set(&backend, b"next", 3, 100);
    let after = bucket();
    for cut in (0..=BUCKET_BYTES).step_by(8) {
        let spliced = [&before[..cut], &after[cut..]].concat();
        let view = scan_bucket(&spliced, KeyHash::of(b"erased"), ID);
        assert!(matches!(view, BucketView::Absent), "cut at {cut}: {view:?}");
    }
}

/// Keys of the readers that are overtaken.
const KEYS: u64 = 24;

/// A backend under pressure: two buckets for more keys than they have ways, sizes that move between slabs, a region
/// so small that items are evicted.
fn crowded() -> (Arc<Backend>, Arc<HandClock>) {
    start(BackendConfig { buckets: 2, capacity_bytes: 4 * BLOCK_BYTES, eviction_at: 0.02, ..small(ID) })
}

/// The `n`th step of its writer.
fn crowd(backend: &Backend, clock: &HandClock, n: u64) {
    // No slot rests for longer than one SET takes.
    clock.advance(SLOT_REST);
    let key = (n * 7919) % KEYS;
    let len = if n.is_multiple_of(5) { 30_000 } else { 64 << (n % 6) };
    set(backend, &key.to_le_bytes(), n, len);
    if n.is_multiple_of(50) {
        erase(backend, &((n + 1) % KEYS).to_le_bytes(), n);
    }
}

/// What a racing reader made of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raced {
    Proven(Version),
    NotNamed,
    /// Another key's item, a piece of one, or pieces of several.
    Noticed,
}

/// Reads like a client, in pieces; `overtake` runs between them.
fn read_racing(backend: &Backend, key: &[u8], mut overtake: impl FnMut()) -> Raced {
    let mut copy = |region: &Region, offset: u64, out: &mut [u8], piece: usize| {
        for (n, out) in out.chunks_mut(piece).enumerate() {
            region.read(offset + (n * piece) as u64, out);
            overtake();
        }
    };
    let hash = KeyHash::of(key);
    let mut bucket = [0; BUCKET_BYTES];
    copy(&backend.served().index, bucket_offset(hash.bucket(backend.config.buckets)), &mut bucket, 8);
    let BucketView::Found { pointer, .. } = scan_bucket(&bucket, hash, ID) else { return Raced::NotNamed };
    let mut bytes = vec![0; pointer.len as usize];
    copy(&backend.served().data, pointer.offset, &mut bytes, (pointer.len as usize / 40).next_multiple_of(8));
    match Item::parse(&bytes) {
        Ok(item) if item.key == key => {
            assert_eq!(item.value, value(key, item.version, item.value.len()), "a value that nobody set");
            Raced::Proven(item.version)
        }
        _ => Raced::Noticed,
    }
}

#[test]
fn a_reader_that_is_overtaken_between_any_two_words_takes_nothing_that_was_not_set() {
    let (backend, clock) = crowded();
    let (mut proven, mut noticed) = (0, 0);
    let (mut step, mut state) = (0, 1_u64);
    for n in 0..3_000_u64 {
        let key = (n % KEYS).to_le_bytes();
        let raced = read_racing(&backend, &key, || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Some readers are overtaken by a few steps in all, some by many at once.
            let steps = if n % 3 == 0 {
                u64::from(state >> 60 == 0)
            } else {
                (state >> 61) * u64::from(state >> 56 & 15 == 0)
            };
            for _ in 0..steps {
                step += 1;
                crowd(&backend, &clock, step);
            }
        });
        match raced {
            Raced::Proven(_) => proven += 1,
            Raced::Noticed => noticed += 1,
            Raced::NotNamed => {}
        }
    }
    assert!(proven > 300 && noticed > 300, "{proven} proven, {noticed} noticed: both were put to the test");
    assert!(backend.stats().evicted > 0);
}

#[test]
fn readers_beside_a_writer_take_nothing_that_was_not_set() {
    let (backend, clock) = crowded();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (backend, done) = (&backend, &done);
            scope.spawn(move || {
                let mut key = reader;
                while !done.load(Ordering::Relaxed) {
                    key = (key + 1) % KEYS;
                    read_racing(backend, &key.to_le_bytes(), || ());
                }
            });
        }
        for n in 1..10_000 {
            crowd(&backend, &clock, n);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_key_that_is_only_replaced_is_never_absent_to_a_reader() {
    let (backend, _) = start(small(ID));
    set(&backend, b"k", 1, 500);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let hash = KeyHash::of(b"k");
            let mut absent = 0;
            while !done.load(Ordering::Relaxed) {
                let mut bucket = [0; BUCKET_BYTES];
                backend.served().index.read(bucket_offset(hash.bucket(512)), &mut bucket);
                absent += u64::from(!matches!(scan_bucket(&bucket, hash, ID), BucketView::Found { .. }));
            }
            absent
        });
        for n in 2..20_000 {
            set(&backend, b"k", n, (n % 700) as usize);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(reader.join().expect("no panic"), 0);
    });
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let (env, _) = world_by_hand();
    let wrong = [
        BackendConfig { buckets: 0, ..small(ID) },
        BackendConfig { eviction_at: 0.0, ..small(ID) },
        BackendConfig { eviction_at: 1.1, ..small(ID) },
        BackendConfig { eviction_at: f64::NAN, ..small(ID) },
        BackendConfig { capacity_bytes: u64::MAX, ..small(ID) },
    ];
    for config in wrong {
        let error = Backend::start(&env, config).err().expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_version_far_ahead_of_the_clock_is_refused_with_its_batch_and_later_writes_go_on() {
    let (backend, _) = start(small(ID));
    let bound_us = u64::try_from(backend.env.wall_ms() + 3_600_000).expect("positive") * 1000;
    let items = |n| [encode_item(b"other", version(1), Some(b"x")), encode_item(b"key", version(n), None)];
    for ahead in [bound_us + 1, u64::MAX] {
        let refused = call(&backend, METHOD_MUTATE, mutation(ID, items(ahead).iter())).expect_err("refused");
        assert_eq!(refused.code, REFUSED_VERSION);
        assert!(refused.message.contains("clock"), "{}", refused.message);
    }
    assert_eq!(read(&backend, b"other"), None, "nothing of it was done");
    assert_eq!(set(&backend, b"key", 2, 10), Outcome::Applied);
    assert_eq!(mutate(&backend, &items(bound_us)), [Outcome::Applied; 2]);
}

#[test]
fn what_has_expired_is_reclaimed_a_while_later_and_what_was_touched_is_not() {
    let (backend, clock) = start(small(ID));
    let expires_ms = backend.env.wall_ms() as u64 + 1_000;
    let set = |key: &[u8], n: u64, expires_ms: u64| {
        let extras = ItemExtras { expires_ms, tag: 0, token: 0 };
        let item = EncodedItem::new(key, version(n), Some(&"value".into()), extras);
        mutate(&backend, &[item.pieces().next().expect("one piece").clone()])[0]
    };
    for (key, expires_ms) in [(&b"a"[..], expires_ms), (b"b", expires_ms), (b"c", expires_ms), (b"d", 0)] {
        assert_eq!(set(key, 1, expires_ms), Outcome::Applied);
    }
    assert_eq!(set(b"b", 2, expires_ms + 10_000), Outcome::Applied);
    assert_eq!(erase(&backend, b"c", 2), Outcome::Applied);
    clock.advance(Duration::from_millis(1_000) + EXPIRED_KEPT - Duration::from_millis(1));
    assert!(!backend.sweep_once() && read(&backend, b"a").is_some(), "for readers whose clocks are slow");
    clock.advance(Duration::from_millis(1));
    assert!(!backend.sweep_once());
    assert_eq!(read(&backend, b"a"), None);
    assert!(read(&backend, b"b").is_some() && read(&backend, b"d").is_some());
    assert_eq!((backend.stats().expired, backend.stats().items), (1, 2));
}

fn copy(backend: &Backend, key: &[u8], n: u64, len: usize, age: Duration) -> bool {
    let bytes = encode_item(key, version(n), Some(&value(key, version(n), len)));
    let now = backend.env.now();
    backend.table.lock().copy(&Item::parse(&bytes).expect("just encoded"), age, now)
}

#[test]
fn a_copy_keeps_its_age_and_undoes_nothing_that_is_newer_erased_expired_or_promised() {
    let (backend, clock) = start(small(ID));
    clock.advance(Duration::from_secs(100));
    assert_eq!(set(&backend, b"newer", 10, 20), Outcome::Applied);
    assert!(!copy(&backend, b"newer", 9, 20, Duration::ZERO));
    assert_eq!(erase(&backend, b"erased", 10), Outcome::Applied);
    assert!(!copy(&backend, b"erased", 9, 20, Duration::ZERO));
    assert!(copy(&backend, b"erased", 11, 20, Duration::ZERO), "set again elsewhere");
    assert!(copy(&backend, b"old", 5, 20, Duration::from_secs(50)));
    assert!(copy(&backend, b"young", 6, 20, Duration::from_secs(1)));
    assert!(!copy(&backend, b"too old", 4, 20, Duration::from_secs(60)), "it would be gone by now");
    clock.advance(Duration::from_secs(11));
    while backend.sweep_once() {}
    assert_eq!(read(&backend, b"old"), None, "61 seconds old, of which it was here for 11");
    assert!(read(&backend, b"young").is_some());
    // What was promised stands: nothing below it is applied, and it itself is.
    let hash = KeyHash::of(b"promised");
    assert!(backend.table.lock().promise(hash, version(50)).is_ok());
    assert!(copy(&backend, b"promised", 40, 20, Duration::ZERO));
    assert!(matches!(set(&backend, b"promised", 45, 20), Outcome::BelowSummary(_)));
    let bytes = encode_item(b"promised", version(50), Some(b"x"));
    let accepted =
        backend.table.lock().apply_promised(&Item::parse(&bytes).expect("just encoded"), backend.env.now());
    assert_eq!(accepted, Outcome::Applied);
}

/// What comes of an item of the key at a version that was promised.
fn accept(backend: &Backend, key: &[u8], n: u64) -> Outcome {
    let bytes = encode_item(key, version(n), Some(&value(key, version(n), 20)));
    let now = backend.env.now();
    backend.table.lock().apply_promised(&Item::parse(&bytes).expect("just encoded"), now)
}

#[test]
fn what_was_promised_is_not_applied_over_a_copy_of_a_later_version() {
    let (backend, _clock) = start(small(ID));
    for (key, is_held) in [(b"not held", false), (b"was held", true)] {
        if is_held {
            assert_eq!(set(&backend, key, 1, 20), Outcome::Applied);
        }
        assert!(backend.table.lock().promise(KeyHash::of(key), version(50)).is_ok());
        assert!(copy(&backend, key, 60, 20, Duration::ZERO));
        // So this replica counts for the later one from then on, and keeps to it.
        assert_eq!(accept(&backend, key, 60), Outcome::Applied);
        assert_eq!(accept(&backend, key, 50), Outcome::Superseded(version(60)));
        assert_eq!(read(&backend, key).map(|(held, _)| held), Some(version(60)));
    }
    // The same of what another replica has erased.
    assert!(backend.table.lock().promise(KeyHash::of(b"erased"), version(50)).is_ok());
    backend.table.lock().copy_erased(KeyHash::of(b"erased"), version(60), backend.env.now());
    assert_eq!(accept(&backend, b"erased", 50), Outcome::Superseded(version(60)));
    assert_eq!(read(&backend, b"erased"), None);
}

#[test]
fn a_full_backend_is_not_filled_again_with_what_it_has_removed() {
    let (backend, clock) = start(BackendConfig { capacity_bytes: 4 * BLOCK_BYTES, ..small(ID) });
    let key = |n: u64| format!("key {n}").into_bytes();
    for n in 1..200 {
        clock.advance(Duration::from_millis(10));
        assert_eq!(set(&backend, &key(n), n, 40_000), Outcome::Applied);
    }
    let evicted = backend.stats().evicted;
    assert!(evicted > 0);
    for n in 1..=evicted {
        assert!(!copy(&backend, &key(n), n, 40_000, Duration::from_millis(10 * (199 - n))), "key {n}");
    }
    assert_eq!((backend.stats().evicted, backend.stats().copied), (evicted, 0));
    // What is older than all that is held is not taken either, if there is no room.
    assert!(!copy(&backend, b"older", 300, 40_000, Duration::from_secs(50)));
    assert!(copy(&backend, b"younger", 301, 40_000, Duration::ZERO));
}

#[test]
fn a_backend_ends_when_it_is_asked_to_if_somebody_waits_for_that_and_it_holds_no_keys() {
    use futures::FutureExt;

    use crate::configuration::Configuration;
    use crate::protocol::{ConfigureRequest, METHOD_END, REFUSED_END};

    let (backend, _) = start(small(0));
    let told = |configuration: &Configuration, number: u32| {
        let request = ConfigureRequest { configuration: configuration.encode(), number };
        call(&backend, METHOD_CONFIGURE, request.encode_to_vec().into()).expect("a configuration");
    };
    let end = || call(&backend, METHOD_END, Bytes::new());
    let refused = |why: &str| matches!(end(), Err(of) if of.code == REFUSED_END && of.message.contains(why));
    assert!(refused("runs in a node"));
    let ended = backend.asked_to_end();
    tokio::pin!(ended);
    assert!(ended.as_mut().now_or_never().is_none());
    let first = Configuration::first(1 << 32 | 1, "tiles", crate::cell::Mode::R1, vec![Vec::new(); 2]);
    let cell = first.and_then(|of| of.with_spares(vec![Vec::new()])).expect("a cell");
    told(&cell, 1);
    assert!(refused("drain it before"));
    let after = cell.drained_onto(1, &cell.spares[0]).expect("there is one");
    let copying = cell.changing_to(after).expect("a change");
    told(&copying, 1);
    assert!(refused("drain it before"), "it is still read");
    told(&copying.next_phase().and_then(|of| of.next_phase()).expect("phases"), 1);
    assert!(ended.as_mut().now_or_never().is_none());
    end().expect("it is drained");
    ended.now_or_never().expect("it ends");
}

/// A backend of a cell that is loaded, and the configuration that it goes by.
fn loaded() -> (Arc<Backend>, Arc<HandClock>, Configuration) {
    let (env, clock) = world_by_hand();
    let backend = Backend::start(&env, small(0)).expect("memory");
    // It is a world in which no task runs: nobody refills it, and it says that it does not know.
    backend.refill_from(Arc::new(NobodyRefills), RefillConfig::default());
    let addresses = vec![Vec::new(); 2];
    let first = Configuration::first(1 << 32 | 1, "roads", crate::cell::Mode::R2Immutable, addresses);
    let first = first.expect("a cell");
    told(&backend, &first);
    backend.joined_above(Version::ZERO);
    backend.filled_up_to(None);
    (backend, clock, first)
}

struct NobodyRefills;

impl crate::cell::Connector for NobodyRefills {
    fn connect<'a>(
        &'a self,
        _: &'a crate::configuration::BackendPlace,
    ) -> futures::future::BoxFuture<'a, Result<Arc<dyn tailwater_rma::Connection>, String>> {
        Box::pin(std::future::ready(Err("nobody is there".to_owned())))
    }
}

fn told(backend: &Backend, configuration: &Configuration) {
    let request = ConfigureRequest { configuration: configuration.encode(), number: 0 };
    call(backend, METHOD_CONFIGURE, request.encode_to_vec().into()).expect("a configuration");
}

fn load(backend: &Backend, generation: u64, is_complete: bool) -> Result<Bytes, Refusal> {
    let request = LoadRequest { config_id: backend.config_id(), generation, is_complete };
    call(backend, METHOD_LOAD, request.encode_to_vec().into())
}

#[test]
fn a_load_of_which_another_one_has_removed_keys_is_not_said_to_be_known_when_it_is_read() {
    let (backend, clock, configuration) = loaded();
    load(&backend, 1, false).expect("it begins");
    load(&backend, 1, true).expect("it ends");
    assert!(load(&backend, 2, false).is_err(), "the first one may be read any moment");
    clock.advance(Duration::from_secs(11));
    load(&backend, 2, false).expect("the first one is not read");
    assert!(load(&backend, 1, true).is_err(), "it has been overtaken");
    told(&backend, &configuration.loaded(1).expect("a later load"));
    assert!(!backend.is_filled(), "its keys are gone");
}

#[test]
fn no_load_is_so_late_that_none_can_follow_it() {
    let (backend, _clock, configuration) = loaded();
    for generation in [u64::MAX, 1_800_172_800_000 << 16] {
        let refused = load(&backend, generation, false).expect_err("two days ahead").message;
        assert!(refused.contains("more than a day ahead"), "{refused}");
    }
    load(&backend, 1_800_000_000_000 << 16 | 7, false).expect("by the same clock");
    // A clock was wrong: what follows on what is read is taken in any case.
    let ahead = 1_900_000_000_000 << 16;
    told(&backend, &configuration.loaded(ahead).expect("a later load"));
    backend.joined_above(Version::ZERO);
    load(&backend, ahead + 1, false).expect("the next one");
    assert!(load(&backend, ahead + 2, false).is_err());
}
