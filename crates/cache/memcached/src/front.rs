//! What all connections have in common: the cell, who may do what, and the bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, Resource};
use tailwater_cache::{Cell, CellFailure, CellValue, Lookup, Mode, UpdateError, UpdateTo, Updated, Version};
use tailwater_env::{Complaints, Env, Instant, Task};
use tailwater_login::Users;
use tokio::sync::{MutexGuard, Semaphore};

use crate::change::{KeyChange, KeyChanged};
use crate::config::MemcachedConfig;
use crate::limits::KEY_LOCKS;
use crate::recent::RecentKeys;
use crate::stats::{MemcachedStats, MemcachedStatsRead};

/// Bytes that a permit of the room for values stands for.
const ROOM_UNIT_BYTES: usize = 1 << 10;

/// A cell as memcached's clients see it.
pub struct MemcachedFront {
    pub(crate) env: Env,
    pub(crate) config: MemcachedConfig,
    pub(crate) cell: Cell,
    /// Those who log in, if clients have to.
    pub(crate) users: Option<Arc<Users>>,
    authorizer: Arc<dyn Authorizer>,
    pub(crate) started: Instant,
    pub(crate) stats: MemcachedStats,
    pub(crate) recent: RecentKeys,
    pub(crate) complaints: Complaints,
    /// Room for the values of all connections that are being received or sent.
    pub(crate) room: Arc<Semaphore>,
    /// By these the changes of one key wait for each other, which would else begin again and again.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// What `flush_all` is to do later.
    flushing: Mutex<Option<Task>>,
}

/// What a change of a key did.
pub(crate) struct ItemChanged {
    /// What the client is told.
    pub changed: KeyChanged,
    /// The version that the item has since; `None` if it is as it was.
    pub version: Option<Version>,
    /// The item as it was.
    pub before: Option<CellValue>,
    /// What was made of it.
    pub to: UpdateTo,
}

impl std::fmt::Debug for MemcachedFront {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemcachedFront").field("cell", &self.config.cell).finish_non_exhaustive()
    }
}

impl MemcachedFront {
    /// One for a cell; `users` are those who may log in, if the configuration has clients do so.
    pub fn new(
        env: &Env,
        config: MemcachedConfig,
        cell: Cell,
        users: Option<Arc<Users>>,
        authorizer: Arc<dyn Authorizer>,
    ) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(config.values_bytes_max / ROOM_UNIT_BYTES));
        // It was checked.
        let cell = cell.with_lookup(config.lookup.parse().unwrap_or_default());
        let users = users.filter(|_| config.login);
        Arc::new(Self {
            env: env.clone(),
            config,
            cell,
            users,
            authorizer,
            started: env.now(),
            stats: MemcachedStats::default(),
            recent: RecentKeys::new(),
            complaints: Complaints::default(),
            room,
            turns: (0..KEY_LOCKS).map(|_| tokio::sync::Mutex::new(())).collect(),
            flushing: Mutex::default(),
        })
    }

    /// What was counted.
    pub fn stats(&self) -> MemcachedStatsRead {
        self.stats.read()
    }

    /// Permits for so many bytes of values.
    pub(crate) fn permits(bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).unwrap_or(u32::MAX)
    }

    pub(crate) fn may(&self, peer: &Peer, operation: &str) -> Result<(), Denied> {
        let resource = Resource::Cell(&self.config.cell);
        self.authorizer.authorize(peer, AccessRequest { protocol: Protocol::Memcached, operation, resource })
    }

    /// Writes a line about a client that went wrong, if the log can take it.
    pub(crate) fn complain(&self, reason: &'static str, why: impl FnOnce() -> String) {
        if let Some(left_out) = self.complaints.admit(self.env.now(), reason) {
            tracing::warn!(reason, why = why(), left_out, "memcached: connection dropped");
        }
    }

    /// Waits until no other change of the key is under way over this listener.
    pub(crate) async fn turn(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let hash = tailwater_cache::layout::KeyHash::of(key).0 as usize;
        self.turns[hash & (KEY_LOCKS - 1)].lock().await
    }

    /// Looks keys up by quorum. Of a key whose replicas do not agree they are made to.
    pub(crate) async fn get(&self, keys: &[Bytes]) -> Vec<Lookup> {
        let mut lookups = self.cell.get_consistent(keys).await;
        for (key, lookup) in keys.iter().zip(&mut lookups) {
            if *lookup != Lookup::Failed(CellFailure::NoQuorum) {
                continue;
            }
            let _turn = self.turn(key).await;
            if let Ok(Updated { before, .. }) = self.cell.update(key.clone(), |_| UpdateTo::Keep).await {
                *lookup = match before {
                    Some(CellValue { version, value, extras }) => Lookup::Hit { version, value, extras },
                    None => Lookup::Miss,
                };
            }
        }
        let (mut hits, mut misses) = (0, 0);
        for lookup in &lookups {
            match lookup {
                Lookup::Hit { .. } => hits += 1,
                Lookup::Miss => misses += 1,
                Lookup::Failed(_) => self.stats.get_failed.add(1),
            }
        }
        self.stats.cmd_get.add(keys.len() as u64);
        self.stats.get_hits.add(hits);
        self.stats.get_misses.add(misses);
        lookups
    }

    /// Changes a key.
    pub(crate) async fn change(&self, key: &Bytes, change: &KeyChange) -> Result<ItemChanged, UpdateError> {
        let _turn = self.turn(key).await;
        let updated = self.cell.update(key.clone(), |held| change.decide(held).0).await;
        let Updated { before, version } = updated.inspect_err(|error| {
            if *error == UpdateError::Unknown {
                self.stats.unknown_outcomes.add(1);
            }
        })?;
        // Once more, of what it was in the end.
        let (to, changed) = change.decide(before.as_ref());
        Ok(ItemChanged { changed, version, before, to })
    }

    /// Forgets everything, now or in a while; an error says what was not reached.
    pub(crate) async fn flush_all(self: &Arc<Self>, delay: Duration) -> Result<(), String> {
        self.stats.cmd_flush.add(1);
        if delay.is_zero() {
            return self.flush().await;
        }
        let front = Arc::downgrade(self);
        let env = self.env.clone();
        let flushing = async move {
            env.sleep(delay).await;
            if let Some(front) = front.upgrade()
                && let Err(why) = front.flush().await
            {
                tracing::warn!(why, "memcached: flush_all has not reached all backends");
            }
        };
        // Another one takes the place of the one before.
        *self.flushing.lock() = Some(self.env.spawn("memcached-flush", flushing));
        Ok(())
    }

    async fn flush(&self) -> Result<(), String> {
        if self.cell.configuration().mode.is_immutable() {
            return Err(UpdateError::Immutable.to_string());
        }
        let cleared = self.cell.clear().await;
        let configuration = self.cell.configuration();
        let all = configuration.backends.len();
        // One replica of three is outvoted.
        let may_miss = match configuration.mode {
            Mode::R1 | Mode::R2Immutable => 0,
            Mode::R32 => 1,
        };
        match cleared + may_miss >= all {
            true => Ok(()),
            false => Err(format!("{} of {all} backends were not reached", all - cleared)),
        }
    }
}
