//! Keeps the locks of all pages of a writer: one bulk read of all of them at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_cache::{Cell, CellFailure, Lookup, Seen};
use tailwater_env::Env;

use super::TailWriterShared;
use super::state::PageId;
use crate::lock::{Action, Lock, LockTiming, LockValue, Signature};
use crate::lock_key;

/// The pause between writing a lock and looking whether it is there.
const CONFIRM_AFTER: Duration = Duration::from_millis(2);

/// Locks that are all held are looked at after this long though the cell's doorbell did not ring.
const HELD_CHECK_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(env: Env, cell: Cell, timing: LockTiming, shared: Arc<TailWriterShared>) {
    let writer = env.random_u64();
    let mut locks: BTreeMap<PageId, Lock> = BTreeMap::new();
    let mut seen = Seen::default();
    loop {
        let pages = shared.state.lock().pages();
        locks.retain(|page, _| pages.binary_search(page).is_ok());
        for page in &pages {
            let nonce = env.random_u64();
            locks.entry(*page).or_insert_with(|| Lock::new(Signature { writer, nonce }, timing));
        }
        let wrote = look(&env, &cell, &shared, &mut locks).await;
        let looked = env.now();
        let all_held = locks.values().all(Lock::is_held);
        let pause = async {
            if wrote {
                return env.sleep(CONFIRM_AFTER).await;
            }
            if all_held {
                // Whoever poisons a lock rings; our own publishing rings too, so not sooner than we would look.
                cell.watch(&mut seen, HELD_CHECK_EVERY).await;
            }
            env.sleep_until(looked + timing.check_every).await;
        };
        tokio::select! {
            biased;
            () = shared.new_page.notified() => {}
            () = pause => {}
        }
    }
}

/// One look at all locks; whether any was written, so that the next look should come soon.
async fn look(env: &Env, cell: &Cell, shared: &TailWriterShared, locks: &mut BTreeMap<PageId, Lock>) -> bool {
    if locks.is_empty() {
        return false;
    }
    let keys: Vec<Bytes> = locks.keys().map(|page| lock_key(page.stream, page.page)).collect();
    let found = cell.get_consistent(&keys).await;
    let now = env.now();
    let (mut writes, mut releases) = (Vec::new(), Vec::new());
    for ((key, lookup), (page, lock)) in keys.into_iter().zip(found).zip(locks.iter_mut()) {
        let action = match lookup {
            Lookup::Hit { value, .. } => lock.step(now, LockValue::decode(&value)),
            Lookup::Miss => lock.step(now, None),
            Lookup::Failed(CellFailure::NoQuorum) => lock.disagreed(now),
            // Nobody can tell who holds it: who did goes on, and who did not has no page to publish either.
            Lookup::Failed(_) => continue,
        };
        match action {
            Action::None => {}
            Action::Write(value) => writes.push((key, value.encode())),
            Action::Release => releases.push(key),
        }
        shared.state.lock().set_locked(now, *page, lock.is_held());
    }
    shared.work.notify_one();
    let mut wrote = false;
    // A write that failed is found missing by the next look.
    if !writes.is_empty() {
        wrote = cell.set(writes).await.iter().any(Result::is_ok);
    }
    if !releases.is_empty() {
        let _ = cell.erase(releases).await;
    }
    wrote
}
