//! The tests that every [`Meta`] passes, whatever is behind it.
//!
//! An implementation's own tests call [`check`] on a store that may hold anything except keys that begin with
//! `conformance/`. What only one implementation promises (what survives a restart, when a snapshot is taken) it
//! tests itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tailwater_env::Env;

use crate::contract::{Expect, Meta, MetaError, Op, Versioned};
use crate::limits::{KEY_BYTES_MAX, KEYS_BYTES_MAX, OPS_MAX, VALUE_BYTES_MAX, WATCH_EVENTS_MAX};
use crate::watch::{Watch, WatchEnd};

/// Runs all tests, one after the other.
///
/// # Panics
/// If the store is not what the contract says.
pub async fn check(env: &Env, meta: Arc<dyn Meta>) {
    let meta = meta.as_ref();
    a_key_is_what_was_last_committed(meta).await;
    every_expectation_holds_when_it_should_and_only_then(meta).await;
    a_commit_changes_all_or_nothing(meta).await;
    a_version_is_of_one_life_of_a_key(meta).await;
    a_commit_of_conditions_only_changes_nothing(meta).await;
    a_list_has_the_keys_of_its_prefix_in_order(meta).await;
    requests_beyond_the_limits_are_refused(meta).await;
    a_commit_may_be_as_large_as_the_limits_say(meta).await;
    of_commits_that_race_for_a_version_one_wins(meta).await;
    a_watch_tells_what_is_committed_after_it(meta).await;
    a_watch_that_is_not_read_lags_and_recovers(meta).await;
    a_lease_holds_its_key_until_it_is_dropped(env, meta).await;
    a_lease_is_lost_when_its_key_is_deleted(meta).await;
    of_leases_that_race_for_a_key_one_is_given(meta).await;
    for seed in 0..2 {
        commits_do_what_a_plain_map_would(meta, seed).await;
    }
}

fn key(case: &str, name: &str) -> String {
    format!("conformance/{case}/{name}")
}

fn put(key: &str, value: &str, expect: Expect) -> Op {
    Op::Put { key: key.to_owned(), value: Bytes::copy_from_slice(value.as_bytes()), expect }
}

fn delete(key: &str, expect: Expect) -> Op {
    Op::Delete { key: key.to_owned(), expect }
}

fn versioned(value: &str, version: u64) -> Versioned {
    Versioned { value: Bytes::copy_from_slice(value.as_bytes()), version }
}

async fn get(meta: &dyn Meta, key: &str) -> Option<Versioned> {
    meta.get(key).await.expect("available")
}

async fn commit(meta: &dyn Meta, ops: Vec<Op>) -> u64 {
    meta.commit(ops).await.expect("no conflict")
}

async fn a_key_is_what_was_last_committed(meta: &dyn Meta) {
    let key = key("last", "key");
    assert_eq!(get(meta, &key).await, None);
    let version = commit(meta, vec![put(&key, "one", Expect::Any)]).await;
    assert_eq!(get(meta, &key).await, Some(versioned("one", version)));
    let version = commit(meta, vec![put(&key, "", Expect::Any)]).await;
    assert_eq!(get(meta, &key).await, Some(versioned("", version)), "an empty value is a value");
    commit(meta, vec![delete(&key, Expect::Any)]).await;
    assert_eq!(get(meta, &key).await, None);
    commit(meta, vec![delete(&key, Expect::Any)]).await;
}

async fn every_expectation_holds_when_it_should_and_only_then(meta: &dyn Meta) {
    let key = key("expect", "key");
    for there in [false, true] {
        for expected in 0..5 {
            for kind in 0..3 {
                commit(meta, vec![delete(&key, Expect::Any)]).await;
                let mut version = 0;
                if there {
                    version = commit(meta, vec![put(&key, "before", Expect::Any)]).await;
                }
                let (expect, holds) = match expected {
                    0 => (Expect::Any, true),
                    1 => (Expect::Absent, !there),
                    3 => (Expect::Present, there),
                    2 => (Expect::Version(version), there),
                    _ => (Expect::Version(version + 1), false),
                };
                let op = match kind {
                    0 => put(&key, "after", expect),
                    1 => delete(&key, expect),
                    _ => Op::Check { key: key.clone(), expect },
                };
                let what = format!("{op:?} where the key is {}", if there { "there" } else { "absent" });
                let answer = meta.commit(vec![op]).await;
                let before = there.then(|| versioned("before", version));
                if !holds {
                    assert_eq!(answer, Err(MetaError::Conflict { key: key.clone() }), "{what}");
                    assert_eq!(get(meta, &key).await, before, "{what}");
                    continue;
                }
                let answered = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
                let after = match kind {
                    0 => Some(versioned("after", answered)),
                    1 => None,
                    _ => before,
                };
                assert_eq!(get(meta, &key).await, after, "{what}");
            }
        }
    }
}

async fn a_commit_changes_all_or_nothing(meta: &dyn Meta) {
    let keys = ["a", "b", "c"].map(|name| key("atomic", name));
    let all = |last: Expect| {
        vec![put(&keys[0], "x", Expect::Any), put(&keys[1], "x", Expect::Any), put(&keys[2], "x", last)]
    };
    let refused = meta.commit(all(Expect::Version(1))).await;
    assert_eq!(refused, Err(MetaError::Conflict { key: keys[2].clone() }));
    assert_eq!(meta.list("conformance/atomic/").await.expect("available"), []);
    let version = commit(meta, all(Expect::Absent)).await;
    let expected = keys.map(|key| (key, versioned("x", version)));
    assert_eq!(meta.list("conformance/atomic/").await.expect("available"), expected);
}

async fn a_version_is_of_one_life_of_a_key(meta: &dyn Meta) {
    let key = key("versions", "key");
    let stale_version = |version| put(&key, "stale", Expect::Version(version));
    for _ in 0..5 {
        let first = commit(meta, vec![put(&key, "same", Expect::Absent)]).await;
        let second = commit(meta, vec![put(&key, "same", Expect::Version(first))]).await;
        assert_ne!(first, second, "although it is the same value");
        let stale = meta.commit(vec![stale_version(first)]).await;
        assert_eq!(stale, Err(MetaError::Conflict { key: key.clone() }));
        commit(meta, vec![delete(&key, Expect::Version(second))]).await;
        let third = commit(meta, vec![put(&key, "same", Expect::Absent)]).await;
        // Who knew it before its deletion is not taken in.
        for version in [first, second] {
            assert_ne!(third, version);
            let stale = meta.commit(vec![stale_version(version)]).await;
            assert_eq!(stale, Err(MetaError::Conflict { key: key.clone() }));
        }
        commit(meta, vec![delete(&key, Expect::Any)]).await;
    }
}

async fn a_commit_of_conditions_only_changes_nothing(meta: &dyn Meta) {
    let key = key("check", "key");
    let version = commit(meta, vec![put(&key, "x", Expect::Any)]).await;
    commit(meta, vec![Op::Check { key: key.clone(), expect: Expect::Version(version) }]).await;
    commit(meta, Vec::new()).await;
    assert_eq!(get(meta, &key).await, Some(versioned("x", version)));
}

async fn a_list_has_the_keys_of_its_prefix_in_order(meta: &dyn Meta) {
    let names = ["b", "a/2", "a/10", "a", "ab", "ä", "a/"];
    for name in names {
        commit(meta, vec![put(&key("list", name), name, Expect::Any)]).await;
    }
    for (prefix, expected) in [
        ("a/", vec!["a/", "a/10", "a/2"]),
        ("a", vec!["a", "a/", "a/10", "a/2", "ab"]),
        ("", vec!["a", "a/", "a/10", "a/2", "ab", "b", "ä"]),
        ("c", vec![]),
    ] {
        let listed = meta.list(&key("list", prefix)).await.expect("available");
        let listed: Vec<_> =
            listed.iter().map(|(key, _)| key["conformance/list/".len()..].to_owned()).collect();
        assert_eq!(listed, expected, "{prefix:?}");
    }
}

/// Commits by chance, each held against a map that carries out the same.
async fn commits_do_what_a_plain_map_would(meta: &dyn Meta, seed: u64) {
    let mut state = seed;
    let mut draw = move |below: u64| {
        // Splitmix: any sequence will do, as long as it is the same each time.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    };
    let keys =
        ["a", "a/b", "a/b/c/d", "a//", "%=~", "😀"].map(|name| key("model", &format!("{seed}/{name}")));
    let mut model: BTreeMap<&str, Versioned> = BTreeMap::new();
    let mut last = 1;
    for step in 0..40 {
        let mut ops = Vec::new();
        for key in &keys {
            let known = model.get(key.as_str()).map_or(last, |known| known.version);
            let expect = match draw(12) {
                0 => Expect::Absent,
                1 => Expect::Present,
                2 | 3 => Expect::Version(known),
                4 => Expect::Version(last),
                _ => Expect::Any,
            };
            match draw(8) {
                0..3 => ops.push(put(key, &format!("{step}{}", "x".repeat(draw(40) as usize)), expect)),
                3 => ops.push(delete(key, expect)),
                4 => ops.push(Op::Check { key: key.clone(), expect }),
                _ => {}
            }
        }
        let holds = |op: &Op| op.expect().holds(model.get(op.key()).map(|known| known.version));
        let conflict = ops.iter().find(|op| !holds(op)).map(|op| op.key().to_owned());
        match (meta.commit(ops.clone()).await, conflict) {
            (Ok(version), None) => {
                for op in &ops {
                    let key = keys.iter().find(|key| *key == op.key()).expect("one of them");
                    match op {
                        Op::Put { value, .. } => {
                            model.insert(key, Versioned { value: value.clone(), version });
                            last = version;
                        }
                        Op::Delete { .. } => drop(model.remove(key.as_str())),
                        Op::Check { .. } => {}
                    }
                }
            }
            (Err(MetaError::Conflict { key }), Some(expected)) => assert_eq!(key, expected, "{ops:?}"),
            (answer, expected) => panic!("{answer:?}, and {expected:?} conflicts: {ops:?}"),
        }
        if step % 4 != 3 {
            continue;
        }
        let listed = meta.list(&key("model", &format!("{seed}/"))).await.expect("available");
        let expected = model.iter().map(|(key, known)| ((*key).to_owned(), known.clone()));
        assert!(expected.eq(listed.iter().cloned()), "seed {seed}, step {step}: {listed:?}, not {model:?}");
    }
}

async fn requests_beyond_the_limits_are_refused(meta: &dyn Meta) {
    let key = key("limits", "key");
    let large = |bytes| Op::Put { key: key.clone(), value: Bytes::from(vec![0; bytes]), expect: Expect::Any };
    let check = Op::Check { key: key.clone(), expect: Expect::Any };
    for ops in [
        vec![put("", "x", Expect::Any)],
        vec![put(&"k".repeat(KEY_BYTES_MAX + 1), "x", Expect::Any)],
        vec![large(VALUE_BYTES_MAX + 1)],
        vec![put(&key, "x", Expect::Any), delete(&key, Expect::Any)],
        vec![check; OPS_MAX + 1],
        (0..=KEYS_BYTES_MAX / KEY_BYTES_MAX)
            .map(|number| put(&format!("{number:0>KEY_BYTES_MAX$}"), "x", Expect::Any))
            .collect(),
    ] {
        assert!(matches!(meta.commit(ops).await, Err(MetaError::Invalid(_))));
    }
    assert_eq!(get(meta, &key).await, None);
    commit(meta, vec![large(VALUE_BYTES_MAX)]).await;
    assert_eq!(get(meta, &key).await.map(|found| found.value.len()), Some(VALUE_BYTES_MAX));
    commit(meta, vec![delete(&key, Expect::Any)]).await;
}

async fn a_commit_may_be_as_large_as_the_limits_say(meta: &dyn Meta) {
    // Every byte is one that a store may have to write as several.
    let names: Vec<String> = (0..OPS_MAX).map(|number| format!("{number:04}/{}", "%".repeat(90))).collect();
    let puts = |value: &'static [u8], expect| {
        let put = move |name: &String| Op::Put {
            key: key("large", name),
            value: Bytes::from_static(value),
            expect,
        };
        names.iter().map(put).collect::<Vec<Op>>()
    };
    commit(meta, puts(&[b'x'; 600], Expect::Absent)).await;
    let version = commit(meta, puts(&[b'y'; 600], Expect::Present)).await;
    let listed = meta.list(&key("large", "")).await.expect("available");
    assert_eq!(listed.len(), names.len());
    let is_new = |found: &Versioned| found.version == version && found.value == [b'y'; 600].as_slice();
    assert!(listed.iter().all(|(_, found)| is_new(found)));
    commit(meta, names.iter().map(|name| delete(&key("large", name), Expect::Any)).collect()).await;
    assert_eq!(meta.list(&key("large", "")).await.expect("available"), []);
}

async fn of_commits_that_race_for_a_version_one_wins(meta: &dyn Meta) {
    let key = key("race", "counter");
    commit(meta, vec![put(&key, "0", Expect::Absent)]).await;
    let increment = |_| async {
        loop {
            let found = get(meta, &key).await.expect("it is there");
            let count: u64 = std::str::from_utf8(&found.value).expect("a number").parse().expect("a number");
            let next = put(&key, &(count + 1).to_string(), Expect::Version(found.version));
            match meta.commit(vec![next]).await {
                Ok(_) => return,
                Err(MetaError::Conflict { .. }) => {
                    let by_now = get(meta, &key).await.expect("it is there").version;
                    assert_ne!(by_now, found.version, "a conflict is about something that can be seen");
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    join_all((0..20).map(increment)).await;
    assert_eq!(get(meta, &key).await.expect("it is there").value, "20");
}

/// Reads events until the key is what is wanted.
async fn follow(watch: &mut Watch, key: &str, wanted: Option<Versioned>) {
    loop {
        let event = watch.next().await.expect("few enough events");
        if event.key == key && event.value == wanted {
            return;
        }
    }
}

async fn a_watch_tells_what_is_committed_after_it(meta: &dyn Meta) {
    let (inside, outside) = (key("watch", "in/key"), key("watch", "out"));
    commit(meta, vec![put(&inside, "before", Expect::Any)]).await;
    let mut watch = meta.watch(&key("watch", "in/")).await.expect("available");
    let version =
        commit(meta, vec![put(&inside, "after", Expect::Any), put(&outside, "x", Expect::Any)]).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((event.key.as_str(), event.value), (inside.as_str(), Some(versioned("after", version))));
    commit(meta, vec![delete(&inside, Expect::Any)]).await;
    follow(&mut watch, &inside, None).await;
    commit(meta, vec![delete(&inside, Expect::Any), delete(&outside, Expect::Any)]).await;
    assert_eq!(watch.try_next(), None, "what changes nothing is no event");
}

async fn a_watch_that_is_not_read_lags_and_recovers(meta: &dyn Meta) {
    let prefix = key("lag", "");
    let mut watch = meta.watch(&prefix).await.expect("available");
    for round in 0..3 {
        let puts = (0..WATCH_EVENTS_MAX / 2)
            .map(|number| put(&format!("{prefix}{number}"), &round.to_string(), Expect::Any));
        commit(meta, puts.collect()).await;
    }
    let last = format!("{prefix}last");
    let version = commit(meta, vec![put(&last, "x", Expect::Any)]).await;
    // A store that leaves out earlier changes of a key may keep up without lagging.
    loop {
        match watch.next().await {
            Ok(event) if event.key == last => {
                assert_eq!(event.value, Some(versioned("x", version)));
                break;
            }
            Ok(_) => {}
            Err(WatchEnd::Lagged) => {
                let listed = meta.list(&prefix).await.expect("available");
                if listed.iter().any(|(key, _)| *key == last) {
                    break;
                }
            }
            Err(WatchEnd::Closed) => panic!("the store is there"),
        }
    }
    let version = commit(meta, vec![put(&last, "y", Expect::Any)]).await;
    loop {
        match watch.next().await {
            Ok(event) if event.value == Some(versioned("y", version)) => break,
            Ok(_) | Err(WatchEnd::Lagged) => {}
            Err(WatchEnd::Closed) => panic!("the store is there"),
        }
    }
}

async fn a_lease_holds_its_key_until_it_is_dropped(env: &Env, meta: &dyn Meta) {
    let (key, other) = (key("lease", "key"), key("lease", "other"));
    let ttl = Duration::from_millis(300);
    let mut watch = meta.watch(&key).await.expect("available");
    let lease = meta.lease(&key, Bytes::from_static(b"me"), ttl).await.expect("free");
    assert_eq!(get(meta, &key).await, Some(versioned("me", lease.version())));
    follow(&mut watch, &key, Some(versioned("me", lease.version()))).await;
    let conflict = Err(MetaError::Conflict { key: key.clone() });
    let second = meta.lease(&key, Bytes::from_static(b"you"), ttl).await;
    assert_eq!(second.map(|lease| lease.version()), conflict);
    assert_eq!(meta.commit(vec![put(&key, "over", Expect::Any)]).await, conflict);

    // It renews itself for as long as it is held.
    env.sleep(ttl * 4).await;
    assert!(!lease.is_lost());
    let fence = Op::Check { key: key.clone(), expect: Expect::Version(lease.version()) };
    commit(meta, vec![fence.clone(), put(&other, "x", Expect::Any)]).await;

    let version = lease.version();
    drop(lease);
    follow(&mut watch, &key, None).await;
    assert_eq!(meta.commit(vec![fence, put(&other, "y", Expect::Any)]).await, conflict);
    let lease = meta.lease(&key, Bytes::from_static(b"you"), ttl).await.expect("free again");
    assert_ne!(lease.version(), version);
}

async fn a_lease_is_lost_when_its_key_is_deleted(meta: &dyn Meta) {
    let key = key("broken-lease", "key");
    let lease = meta.lease(&key, Bytes::new(), Duration::from_secs(60)).await.expect("free");
    commit(meta, vec![delete(&key, Expect::Version(lease.version()))]).await;
    lease.lost().await;
    assert!(lease.is_lost());
    let version = commit(meta, vec![put(&key, "mine", Expect::Absent)]).await;
    drop(lease);
    assert_eq!(
        get(meta, &key).await,
        Some(versioned("mine", version)),
        "it is not the lost lease's to remove"
    );
}

async fn of_leases_that_race_for_a_key_one_is_given(meta: &dyn Meta) {
    let key = key("lease-race", "key");
    let claims = (0..10).map(|_| meta.lease(&key, Bytes::new(), Duration::from_secs(60)));
    let given = join_all(claims).await;
    assert_eq!(given.iter().filter(|lease| lease.is_ok()).count(), 1);
    for refused in given.iter().filter_map(|lease| lease.as_ref().err()) {
        assert_eq!(*refused, MetaError::Conflict { key: key.clone() });
    }
}
