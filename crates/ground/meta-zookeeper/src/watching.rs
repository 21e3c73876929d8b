//! Watches and leases: what is told by ZooKeeper, and what has to be read again where it may not have been told.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tailwater_meta::limits::{LEASE_TTL_MAX, LEASE_TTL_MIN, WATCHES_MAX};
use tailwater_meta::{Event, Lease, MetaError, Watch, WatchSender, check_key, check_value, watch_channel};
use tokio::sync::watch;
use zookeeper_client::{AddWatchMode, Client, Error as ZkError, EventType, PersistentWatcher, SessionState};

use crate::limits::{INLINE_BYTES_MAX, LOOK, RETRY};
use crate::paths::{base_of, key_at};
use crate::store::MetaInner;

impl MetaInner {
    pub(crate) async fn watch(self: &Arc<Self>, prefix: &str) -> Result<Watch, MetaError> {
        if self.watches.fetch_add(1, Ordering::Relaxed) >= WATCHES_MAX {
            self.watches.fetch_sub(1, Ordering::Relaxed);
            return Err(MetaError::Unavailable(format!("there are {WATCHES_MAX} watches already")));
        }
        let (base, _) = base_of(&self.keys(), prefix);
        let watcher = match self.watcher(&base).await {
            Ok(watcher) => watcher,
            Err(error) => {
                self.watches.fetch_sub(1, Ordering::Relaxed);
                return Err(error);
            }
        };
        let (sender, events) = watch_channel();
        let following =
            WatchFollowing { meta: Arc::downgrade(self), base, prefix: prefix.to_owned(), sender };
        self.session.env.spawn("meta-watch", following.run(watcher)).detach();
        Ok(events)
    }

    async fn watcher(&self, base: &str) -> Result<(Client, PersistentWatcher), MetaError> {
        let client = self.session.ready().await?;
        let watcher = self.session.timed(client.watch(base, AddWatchMode::PersistentRecursive)).await;
        let watcher = watcher.map_err(|error| self.session.unavailable(&error))?;
        Ok((client, watcher))
    }

    pub(crate) async fn lease(
        self: &Arc<Self>,
        key: &str,
        value: Bytes,
        ttl: Duration,
    ) -> Result<Lease, MetaError> {
        check_key(key)?;
        check_value(key, &value)?;
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            let reason = format!("a lease of {ttl:?}: {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?} are possible");
            return Err(MetaError::Invalid(reason));
        }
        if value.len() > INLINE_BYTES_MAX {
            let length = value.len();
            return Err(MetaError::Invalid(format!(
                "a lease with {length} bytes, {INLINE_BYTES_MAX} at most"
            )));
        }
        let Some(stat) = self.create_leased(key, &value).await? else {
            return Err(MetaError::Conflict { key: key.to_owned() });
        };
        let (lost, seen) = watch::channel(false);
        let (path, created) = (self.path_of(key), stat.czxid);
        let looking = look_after(Arc::downgrade(self), path.clone(), created, lost);
        let looking = self.session.env.spawn("meta-lease", looking);
        let meta = Arc::downgrade(self);
        let release = move || {
            drop(looking);
            let Some(meta) = meta.upgrade() else { return };
            let env = meta.session.env.clone();
            env.spawn("meta-lease-end", async move { meta.end_lease(&path, created).await }).detach();
        };
        Ok(Lease::new(key.to_owned(), self.session.saw(stat.mzxid), seen, release))
    }

    /// Deletes a leased key, if it is that one, however long that takes while the session lives.
    async fn end_lease(&self, path: &str, created: i64) {
        loop {
            let Ok(client) = self.session.ready().await else { continue };
            let is_over = match self.session.timed(client.check_stat(path)).await {
                Ok(Some(stat)) if stat.czxid == created => {
                    let deleted = self.session.timed(client.delete(path, Some(stat.version))).await;
                    matches!(deleted, Ok(()) | Err(ZkError::NoNode | ZkError::BadVersion))
                }
                Ok(_) => true,
                Err(_) => false,
            };
            if is_over {
                return;
            }
            self.session.env.sleep(RETRY).await;
        }
    }
}

/// Tells when a leased key is gone.
async fn look_after(meta: Weak<MetaInner>, path: String, created: i64, lost: watch::Sender<bool>) {
    loop {
        let Some(strong) = meta.upgrade() else { return };
        let Ok(client) = strong.session.ready().await else { continue };
        let looked = strong.session.timed(client.check_and_watch_stat(&path)).await;
        let env = strong.session.env.clone();
        drop(strong);
        match looked {
            Ok((Some(stat), changed)) if stat.czxid == created => drop(changed.changed().await),
            Ok(_) => break,
            Err(_) => env.sleep(RETRY).await,
        }
    }
    lost.send_replace(true);
}

/// The task of one watch.
struct WatchFollowing {
    meta: Weak<MetaInner>,
    base: String,
    prefix: String,
    sender: WatchSender,
}

impl WatchFollowing {
    async fn run(self, first: (Client, PersistentWatcher)) {
        let mut watching = Some(first);
        while let Some((client, mut watcher)) = watching.take() {
            loop {
                let Some(meta) = self.meta.upgrade() else { return };
                let env = meta.session.env.clone();
                drop(meta);
                let event = env.timeout(LOOK, watcher.changed()).await;
                if self.sender.is_abandoned() {
                    break;
                }
                let Some(event) = event else { continue };
                match (event.event_type, event.session_state) {
                    // What was changed meanwhile is not told.
                    (EventType::Session, SessionState::SyncConnected) => self.sender.lag(),
                    (EventType::Session, state) if state.is_terminated() => {
                        watching = self.again().await;
                        break;
                    }
                    (EventType::Session, _) => {}
                    _ => self.changed(&client, &event.path).await,
                }
            }
        }
        if let Some(meta) = self.meta.upgrade() {
            meta.watches.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The same in another session, before which changes may have been missed.
    async fn again(&self) -> Option<(Client, PersistentWatcher)> {
        loop {
            let meta = self.meta.upgrade().filter(|_| !self.sender.is_abandoned())?;
            if let Ok(watcher) = meta.watcher(&self.base).await {
                self.sender.lag();
                return Some(watcher);
            }
            let env = meta.session.env.clone();
            drop(meta);
            env.sleep(RETRY).await;
        }
    }

    async fn changed(&self, client: &Client, path: &str) {
        let Some(meta) = self.meta.upgrade() else { return };
        let Some(key) = key_at(&meta.keys(), path).filter(|key| key.starts_with(&self.prefix)) else {
            return;
        };
        match meta.read(client, &key).await {
            Ok(value) => self.sender.send(Event { key, value }),
            Err(_) => self.sender.lag(),
        }
    }
}
