//! Keeps the locks of all pages of a writer: one bulk read of all of them at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_cache::{Cell, Lookup};
use tailwater_env::Env;

use super::Shared;
use super::state::PageId;
use crate::lock::{Action, CHECK_EVERY, Lock, LockValue, Signature};
use crate::lock_key;

/// How often to look while a lock is wanted that is not held, in the first moments of a page.
const ACQUIRE_EVERY: std::time::Duration = std::time::Duration::from_millis(2);

pub(super) async fn run(env: Env, cell: Cell, shared: Arc<Shared>) {
    let writer = env.random_u64();
    let mut locks: BTreeMap<PageId, Lock> = BTreeMap::new();
    loop {
        let pages = shared.state.lock().pages();
        locks.retain(|page, _| pages.binary_search(page).is_ok());
        for page in &pages {
            let nonce = env.random_u64();
            locks.entry(*page).or_insert_with(|| Lock::new(Signature { writer, nonce }));
        }
        let acted = look(&env, &cell, &shared, &mut locks).await;
        env.sleep(if acted { ACQUIRE_EVERY } else { CHECK_EVERY }).await;
    }
}

/// One look at all locks; whether any was written, so that the next look should come soon.
async fn look(env: &Env, cell: &Cell, shared: &Shared, locks: &mut BTreeMap<PageId, Lock>) -> bool {
    let keys: Vec<Bytes> = locks.keys().map(|page| lock_key(page.stream, page.page)).collect();
    if keys.is_empty() {
        return false;
    }
    let found = cell.get_consistent(&keys).await;
    let now = env.now();
    let (mut writes, mut releases) = (Vec::new(), Vec::new());
    for ((key, lookup), (page, lock)) in keys.into_iter().zip(found).zip(locks.iter_mut()) {
        let value = match lookup {
            Lookup::Hit { value, .. } => LockValue::decode(&value),
            Lookup::Miss => None,
            // Nobody can tell who holds it, so nobody is kept from trying to write.
            Lookup::Failed(_) => continue,
        };
        match lock.step(now, value) {
            Action::None => {}
            Action::Write(value) => writes.push((key, value.encode())),
            Action::Release => releases.push(key),
        }
        shared.state.lock().set_locked(*page, lock.is_held());
    }
    shared.work.notify_one();
    let acted = !writes.is_empty();
    // A write that failed is found missing by the next look.
    if !writes.is_empty() {
        let _ = cell.set(writes).await;
    }
    if !releases.is_empty() {
        let _ = cell.erase(releases).await;
    }
    acted
}
