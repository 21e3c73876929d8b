//! Which keys this client has read, for backends that evict by that: one-sided reads leave no trace there.
//!
//! Reads note what they hit, each key once until it is told of, a bounded number of keys, and none while another thread
//! notes some. A task tells all replicas of these keys from time to time. A backend answers whether it goes by that. If
//! none does, nothing is noted until one is connected anew. All of it is a hint: what gets lost makes evictions worse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::Env;
use tailwater_rma::CallError;
use tokio::sync::Notify;

use super::replica::{LiveReplica, Replica};
use super::{CellInner, CellShared, Lookup};
use crate::layout::KeyHash;
use crate::limits::{TOUCHED_KEYS_MAX, TOUCHES_PER_CALL_MAX};
use crate::protocol::{METHOD_TOUCH, TouchReply, TouchRequest};

/// Keys that were read and not told of yet.
#[derive(Default)]
pub(super) struct Touches {
    /// Some backend goes by them, or was not asked yet.
    is_wanted: AtomicBool,
    noted: Mutex<BTreeSet<KeyHash>>,
    /// There are some, and there were none.
    some: Notify,
}

impl Touches {
    /// A backend was connected that was not asked yet.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Notes keys that were hit.
    pub(super) fn note(&self, keys: &[Bytes], lookups: &[Lookup]) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut noted) = self.noted.try_lock() else { return };
        let had_none = noted.is_empty();
        for (key, lookup) in keys.iter().zip(lookups) {
            if noted.len() == TOUCHED_KEYS_MAX {
                break;
            }
            if matches!(lookup, Lookup::Hit { .. }) {
                noted.insert(KeyHash::of(key));
            }
        }
        let has_some = !noted.is_empty();
        drop(noted);
        if had_none && has_some {
            self.some.notify_one();
        }
    }

    /// Whether reads note anything.
    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Keys that are noted.
    #[cfg(test)]
    pub(super) fn noted(&self) -> usize {
        self.noted.lock().len()
    }

    fn take(&self) -> BTreeSet<KeyHash> {
        std::mem::take(&mut *self.noted.lock())
    }
}

/// Tells the backends of `cell` of keys that were read, `every` so often while there are some, until it is dropped.
pub(super) async fn keep_telling(env: Env, touches: Arc<Touches>, cell: Weak<CellShared>, every: Duration) {
    loop {
        touches.some.notified().await;
        env.sleep(every).await;
        let Some(inner) = cell.upgrade().map(|cell| cell.current()) else { return };
        tell(&inner, &touches.take()).await;
        touches.is_wanted.store(false, Ordering::Relaxed);
        // In this order: one that is connected in between is seen here, or is wanted afterwards.
        let live =
            cell.upgrade().map(|cell| cell.current()).into_iter().flat_map(|cell| cell.replicas.clone());
        if live.filter_map(|replica| replica.live()).any(|live| live.wants_touches()) {
            touches.want();
        }
    }
}

async fn tell(cell: &CellInner, keys: &BTreeSet<KeyHash>) {
    let mut of_backends: BTreeMap<usize, Vec<KeyHash>> = BTreeMap::new();
    for hash in keys {
        cell.writers(*hash).for_each(|(backend, _)| of_backends.entry(backend).or_default().push(*hash));
    }
    let told = of_backends.iter().map(|(backend, keys)| tell_one(cell, &cell.replicas[*backend], keys));
    join_all(told).await;
    cell.counters.touches.add(keys.len() as u64);
}

async fn tell_one(cell: &CellInner, replica: &Replica, keys: &[KeyHash]) {
    let Some(live) = replica.live() else { return };
    for some in keys.chunks(TOUCHES_PER_CALL_MAX) {
        if !live.wants_touches() {
            return;
        }
        let call = live.connection.call(METHOD_TOUCH, TouchRequest::of(some).encode_to_vec().into());
        match cell.env.timeout(cell.deadline, call).await {
            Some(Ok(reply)) => {
                if !TouchReply::decode(reply).is_ok_and(|reply| reply.is_wanted) {
                    live.wants_no_touches();
                }
            }
            // One of an earlier version knows no such CALL.
            Some(Err(CallError::Refused { .. })) => live.wants_no_touches(),
            Some(Err(CallError::Lost(_))) => replica.give_up(&live),
            // It has other things to do.
            Some(Err(CallError::Overloaded { .. })) | None => return,
        }
    }
}

impl LiveReplica {
    fn wants_touches(&self) -> bool {
        self.wants_touches.load(Ordering::Relaxed)
    }

    fn wants_no_touches(&self) {
        self.wants_touches.store(false, Ordering::Relaxed);
    }
}
