//! The quotas of a node, kept in its metadata, and what is taken of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::channel::oneshot;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailwater_access::Peer;
use tailwater_env::{Env, Task};
use tailwater_meta::{Expect, Meta, MetaError, Op, follow_whole};
use tokio::sync::watch;

use crate::bucket::{BucketOwner, QuotaBuckets};
use crate::entity::{EACH, QuotaBound, QuotaBounds, QuotaEntity, QuotaError};
use crate::limits::{CONFLICTS_MAX, QUOTA_NAME_BYTES_MAX, QUOTAS_MAX};

/// Where all of them are: one key for each, by a hash of whom it is about.
const QUOTAS: &str = "access/quota/";

/// What stands for a part that a quota does not name: no name is empty.
const UNNAMED: &str = "";

/// A quota, as it is kept.
#[derive(Serialize, Deserialize)]
struct KeptQuota {
    entity: QuotaEntity,
    bounds: QuotaBounds,
}

/// Who takes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaTaker<'a> {
    /// The user, as the audit names it.
    pub user: &'a str,
    /// What the client calls itself; empty if nothing.
    pub client_id: &'a str,
    /// The address of its host; `None` on a Unix socket.
    pub address: Option<IpAddr>,
}

impl<'a> QuotaTaker<'a> {
    /// The client at the other end of a connection.
    pub fn of(peer: &'a Peer, client_id: &'a str) -> Self {
        Self { user: &peer.principal, client_id, address: peer.ip() }
    }
}

impl std::fmt::Display for QuotaTaker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.user)?;
        self.address.map_or(Ok(()), |address| write!(f, " at {address}"))
    }
}

/// What was counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotasRead {
    /// Quotas that there are.
    pub quotas: usize,
    /// How often something was taken, or wanted, beyond a quota, by what that bounds.
    pub exceeded: Vec<(&'static str, u64)>,
}

/// What applies to a taker: whose buckets, and how much is in each every second. All of them count.
type TakerQuotas = [Option<(BucketOwner, u64)>; 2];

/// All quotas, as they are looked at.
#[derive(Debug, Default)]
struct QuotaSet {
    all: BTreeMap<QuotaEntity, QuotaBounds>,
    /// By user and then by client: [`UNNAMED`] where the quota does not say which.
    by: BTreeMap<String, BTreeMap<String, QuotaBounds>>,
    by_address: BTreeMap<String, QuotaBounds>,
}

/// By what a client is counted: its id, or the beginning of one that is longer than a quota's name may be.
fn counted_name(client_id: &str) -> &str {
    let end = client_id.floor_char_boundary(QUOTA_NAME_BYTES_MAX);
    &client_id[..end]
}

impl QuotaSet {
    fn of(all: BTreeMap<QuotaEntity, QuotaBounds>) -> Self {
        let mut set = Self::default();
        for (QuotaEntity { user, client_id, ip }, bounds) in &all {
            match ip {
                Some(ip) => drop(set.by_address.insert(ip.clone(), bounds.clone())),
                None => {
                    let of_user = set.by.entry(user.clone().unwrap_or_default()).or_default();
                    of_user.insert(client_id.clone().unwrap_or_default(), bounds.clone());
                }
            }
        }
        set.all = all;
        set
    }

    /// The quotas that apply to a taker, and with whom it is counted: that of its address, and what says most about it
    /// of the others.
    fn of_taker(&self, bound: QuotaBound, taker: QuotaTaker<'_>) -> TakerQuotas {
        let of_address = taker.address.filter(|_| !self.by_address.is_empty());
        [self.of_client(bound, taker), of_address.and_then(|address| self.of_address(bound, address))]
    }

    /// The quota that says most about a user and a client: the order is Kafka's.
    fn of_client(&self, bound: QuotaBound, taker: QuotaTaker<'_>) -> Option<(BucketOwner, u64)> {
        let QuotaTaker { user, client_id, .. } = taker;
        let order = [
            (user, client_id),
            (user, EACH),
            (user, UNNAMED),
            (EACH, client_id),
            (EACH, EACH),
            (EACH, UNNAMED),
            (UNNAMED, client_id),
            (UNNAMED, EACH),
        ];
        let found = |(at, (user, client)): (usize, (&str, &str))| {
            // Who calls itself nothing is none that a quota names.
            if client.is_empty() && !matches!(at, 2 | 5) {
                return None;
            }
            let rate = *self.by.get(user)?.get(client)?.get(&bound)?;
            // Whoever has no quota of its own is counted by itself nonetheless.
            let owner = BucketOwner {
                bound,
                user: (!user.is_empty()).then(|| taker.user.to_owned()),
                client: (!client.is_empty()).then(|| counted_name(client_id).to_owned()),
                address: None,
            };
            Some((owner, rate))
        };
        order.into_iter().enumerate().find_map(found)
    }

    /// The quota of an address, or of each one without a quota of its own. One of IPv6 counts as its /64 network.
    fn of_address(&self, bound: QuotaBound, address: IpAddr) -> Option<(BucketOwner, u64)> {
        let address = tailwater_access::network(address).to_string();
        let found = self.by_address.get(&address).or_else(|| self.by_address.get(EACH));
        let rate = *found?.get(&bound)?;
        Some((BucketOwner { bound, user: None, client: None, address: Some(address) }, rate))
    }
}

/// The quotas of a node. What is changed is durable before it holds; changes are made one at a time.
pub struct ClientQuotas {
    env: Env,
    set: RwLock<Arc<QuotaSet>>,
    is_any: AtomicBool,
    buckets: Mutex<QuotaBuckets>,
    /// Tells after the set changed.
    changed: watch::Sender<()>,
    kept: OnceLock<KeptQuotas>,
    changing: tokio::sync::Mutex<()>,
    exceeded: [AtomicU64; QuotaBound::ALL.len()],
}

struct KeptQuotas {
    meta: Arc<dyn Meta>,
    _watch: Task,
}

impl std::fmt::Debug for ClientQuotas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientQuotas").field("count", &self.set.read().all.len()).finish_non_exhaustive()
    }
}

/// Hears when quotas change.
#[derive(Clone, Debug)]
pub struct QuotaChanges(watch::Receiver<()>);

impl QuotaChanges {
    /// Completes when quotas changed since this was made, or since it last completed.
    ///
    /// # Cancel safety
    /// No change is missed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // Who could change them is gone.
            std::future::pending().await
        }
    }
}

impl ClientQuotas {
    /// Those that `meta` has, where they are kept, followed by what others change there.
    ///
    /// # Errors
    /// Metadata that can't be read, or has something else where a quota should be.
    pub async fn open(env: &Env, meta: Arc<dyn Meta>) -> Result<Arc<Self>, QuotaError> {
        // Before they are read, so that nothing is missed between.
        let watch = meta.watch(QUOTAS).await.map_err(unavailable)?;
        let quotas = Arc::new(Self {
            env: env.clone(),
            set: RwLock::default(),
            is_any: AtomicBool::new(false),
            buckets: Mutex::default(),
            changed: watch::Sender::default(),
            kept: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
            exceeded: std::array::from_fn(|_| AtomicU64::default()),
        });
        quotas.read_all(&*meta, true).await?;
        let of = Arc::clone(&meta);
        let following = follow_whole(env, "quotas", watch, Arc::downgrade(&quotas), move |quotas| {
            let of = Arc::clone(&of);
            Box::pin(async move {
                let _turn = quotas.changing.lock().await;
                quotas.read_all(&*of, false).await
            })
        });
        let _ = quotas.kept.set(KeptQuotas { meta, _watch: following });
        Ok(quotas)
    }

    /// Goes by what metadata has by now. A quota that can't be read stays as it is known; when a node starts, it is
    /// refused.
    async fn read_all(&self, meta: &dyn Meta, is_start: bool) -> Result<(), QuotaError> {
        let stored = meta.list(QUOTAS).await.map_err(unavailable)?;
        let before = Arc::clone(&self.set.read());
        let mut all = BTreeMap::new();
        for (at, stored) in stored {
            match decode(&at, &stored.value) {
                Ok(quota) => _ = all.insert(quota.entity, quota.bounds),
                Err(error) if is_start => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "it stays as this node knows it");
                    let known = before.all.iter().filter(|(entity, _)| key(entity) == at);
                    all.extend(known.map(|(entity, bounds)| (entity.clone(), bounds.clone())));
                }
            }
        }
        self.replace(all);
        Ok(())
    }

    /// Goes by these from now on.
    fn replace(&self, all: BTreeMap<QuotaEntity, QuotaBounds>) {
        // What was changed here is read again once the metadata tells of it.
        if self.set.read().all == all {
            return;
        }
        self.is_any.store(!all.is_empty(), Ordering::Relaxed);
        *self.set.write() = Arc::new(QuotaSet::of(all));
        self.changed.send_replace(());
    }

    /// All of them, in order.
    pub fn list(&self) -> Vec<(QuotaEntity, QuotaBounds)> {
        let set = Arc::clone(&self.set.read());
        set.all.iter().map(|(entity, bounds)| (entity.clone(), bounds.clone())).collect()
    }

    /// What was counted since the start.
    pub fn stats(&self) -> QuotasRead {
        let counts = QuotaBound::ALL.iter().zip(&self.exceeded);
        QuotasRead {
            quotas: self.set.read().all.len(),
            exceeded: counts.map(|(bound, count)| (bound.name(), count.load(Ordering::Relaxed))).collect(),
        }
    }

    /// Whether there are any.
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Hears of changes from now on.
    pub fn changes(&self) -> QuotaChanges {
        QuotaChanges(self.changed.subscribe())
    }

    /// What may be taken in a second; nothing if that is not bounded.
    pub fn rate(&self, bound: QuotaBound, taker: QuotaTaker<'_>) -> Option<u64> {
        self.of_taker(bound, taker).into_iter().flatten().map(|(_, rate)| rate).min()
    }

    fn of_taker(&self, bound: QuotaBound, taker: QuotaTaker<'_>) -> TakerQuotas {
        let set = Arc::clone(&self.set.read());
        set.of_taker(bound, taker)
    }

    /// How long a taker has to be held until it owes nothing.
    pub fn owed(&self, bound: QuotaBound, taker: QuotaTaker<'_>) -> Duration {
        if !self.is_any() {
            return Duration::ZERO;
        }
        let (quotas, now) = (self.of_taker(bound, taker), self.env.now());
        let mut buckets = self.buckets.lock();
        let owed = quotas.iter().flatten().map(|(owner, rate)| buckets.owed(owner, *rate, now));
        owed.max().unwrap_or_default()
    }

    /// Takes so much, whether or not it is there; how long the taker has to be held until it owes nothing.
    pub fn take(&self, bound: QuotaBound, taker: QuotaTaker<'_>, amount: u64) -> Duration {
        if !self.is_any() {
            return Duration::ZERO;
        }
        let (quotas, now) = (self.of_taker(bound, taker), self.env.now());
        let mut buckets = self.buckets.lock();
        let owed = quotas.into_iter().flatten().map(|(owner, rate)| buckets.take(owner, amount, rate, now));
        let owed = owed.max().unwrap_or_default();
        drop(buckets);
        if !owed.is_zero() {
            self.count_exceeded(bound);
        }
        owed
    }

    /// Takes so much if nothing is owed; else how long until that is so, and nothing is taken.
    ///
    /// # Errors
    /// That it is owed something.
    pub fn admit(&self, bound: QuotaBound, taker: QuotaTaker<'_>, amount: u64) -> Result<(), Duration> {
        if !self.is_any() {
            return Ok(());
        }
        self.admit_owners(bound, self.of_taker(bound, taker), amount)
    }

    /// Lets an address make a connection; else how long until it may. An address of IPv6 counts as its /64 network.
    ///
    /// # Errors
    /// That it has made too many.
    pub fn admit_connection(&self, from: IpAddr) -> Result<(), Duration> {
        if !self.is_any() {
            return Ok(());
        }
        let bound = QuotaBound::ConnectionCreationRate;
        let set = Arc::clone(&self.set.read());
        self.admit_owners(bound, [set.of_address(bound, from), None], 1)
    }

    fn admit_owners(&self, bound: QuotaBound, quotas: TakerQuotas, amount: u64) -> Result<(), Duration> {
        let now = self.env.now();
        let mut buckets = self.buckets.lock();
        let owed = quotas.iter().flatten().map(|(owner, rate)| buckets.owed(owner, *rate, now));
        let owed = owed.max().unwrap_or_default();
        if owed.is_zero() {
            for (owner, rate) in quotas.into_iter().flatten() {
                buckets.take(owner, amount, rate, now);
            }
            return Ok(());
        }
        drop(buckets);
        self.count_exceeded(bound);
        Err(owed)
    }

    fn count_exceeded(&self, bound: QuotaBound) {
        let counts = QuotaBound::ALL.iter().zip(&self.exceeded);
        for (_, count) in counts.filter(|(own, _)| **own == bound) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a quota may be changed so.
    ///
    /// # Errors
    /// Why not.
    pub fn check(
        entity: QuotaEntity,
        bounds: &BTreeMap<QuotaBound, Option<u64>>,
    ) -> Result<QuotaEntity, QuotaError> {
        let entity = entity.checked()?;
        bounds.iter().try_for_each(|(bound, most)| entity.check_bound(*bound, *most))?;
        Ok(entity)
    }

    /// Sets bounds of a quota, which may be new, and takes those away of which there is nothing: the quota is gone with
    /// the last of them. The bounds that it has then.
    ///
    /// # Errors
    /// A quota that can be none, one quota too many, metadata that does not answer.
    pub async fn alter(
        self: &Arc<Self>,
        entity: QuotaEntity,
        bounds: BTreeMap<QuotaBound, Option<u64>>,
    ) -> Result<QuotaBounds, QuotaError> {
        let entity = Self::check(entity, &bounds)?;
        let (done, answer) = oneshot::channel();
        let quotas = Arc::clone(self);
        // Carried out also if nobody waits for it any more.
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(quotas.alter_now(entity, bounds).await);
        };
        self.env.spawn("quotas", changing).detach();
        answer.await.unwrap_or_else(|_| Err(QuotaError::Unavailable("the node stops".to_owned())))
    }

    async fn alter_now(
        &self,
        entity: QuotaEntity,
        bounds: BTreeMap<QuotaBound, Option<u64>>,
    ) -> Result<QuotaBounds, QuotaError> {
        let kept = self
            .kept
            .get()
            .ok_or_else(|| QuotaError::Unavailable("the node has not started yet".to_owned()))?;
        let _turn = self.changing.lock().await;
        let mut all = self.set.read().all.clone();
        let key = key(&entity);
        for _ in 0..CONFLICTS_MAX {
            // Another node may have changed it, and this one not have heard of it yet.
            let stored = kept.meta.get(&key).await.map_err(unavailable)?;
            let expect = stored.as_ref().map_or(Expect::Absent, |stored| Expect::Version(stored.version));
            let before = match stored {
                Some(stored) => decode(&key, &stored.value)?.bounds,
                None => QuotaBounds::new(),
            };
            let after = changed(&before, &bounds);
            if before.is_empty() && !after.is_empty() && all.len() >= QUOTAS_MAX {
                return Err(QuotaError::Invalid(format!(
                    "there are {QUOTAS_MAX} quotas, and that is the most"
                )));
            }
            let op = match after.is_empty() {
                true => Op::Delete { key: key.clone(), expect },
                false => {
                    let quota = KeptQuota { entity: entity.clone(), bounds: after.clone() };
                    Op::Put { key: key.clone(), value: encode(&quota).into(), expect }
                }
            };
            let committed = if after == before { Ok(0) } else { kept.meta.commit(vec![op]).await };
            match committed {
                Ok(_) => {
                    match after.is_empty() {
                        true => drop(all.remove(&entity)),
                        false => drop(all.insert(entity, after.clone())),
                    }
                    self.replace(all);
                    return Ok(after);
                }
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(error)),
            }
        }
        Err(QuotaError::Unavailable("others change this quota all the time: try it again".to_owned()))
    }
}

/// Bounds as they are once some are set, or taken away.
fn changed(before: &QuotaBounds, bounds: &BTreeMap<QuotaBound, Option<u64>>) -> QuotaBounds {
    let mut after = before.clone();
    for (bound, most) in bounds {
        match most {
            Some(most) => drop(after.insert(*bound, *most)),
            None => drop(after.remove(bound)),
        }
    }
    after
}

fn decode(key: &str, bytes: &[u8]) -> Result<KeptQuota, QuotaError> {
    serde_json::from_slice(bytes)
        .map_err(|_| QuotaError::Unavailable(format!(
            "the quota at {key} can't be read: a later version has written it, or it is damaged; upgrade this node, or \
             set the quota anew on one that can read it"
        )))
}

fn unavailable(error: MetaError) -> QuotaError {
    QuotaError::Unavailable(error.to_string())
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

fn key(entity: &QuotaEntity) -> String {
    let hash = Sha256::digest(encode(entity));
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{QUOTAS}{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(quotas: &[(Option<&str>, Option<&str>, u64)]) -> QuotaSet {
        let quota = |&(user, client, rate): &(Option<&str>, Option<&str>, u64)| {
            let [user, client_id] = [user, client].map(|name| name.map(str::to_owned));
            (QuotaEntity { user, client_id, ip: None }, BTreeMap::from([(QuotaBound::RequestRate, rate)]))
        };
        QuotaSet::of(quotas.iter().map(quota).collect())
    }

    #[test]
    fn the_quota_that_says_most_about_a_client_is_the_one_that_counts_and_says_who_shares_it() {
        let (alice, app) = (Some("alice"), Some("app"));
        let order = [
            (alice, app, true, true),
            (alice, Some(EACH), true, true),
            (alice, None, true, false),
            (Some(EACH), app, true, true),
            (Some(EACH), Some(EACH), true, true),
            (Some(EACH), None, true, false),
            (None, app, false, true),
            (None, Some(EACH), false, true),
        ];
        let taker = QuotaTaker { user: "alice", client_id: "app", address: None };
        for first in 0..order.len() {
            let there: Vec<_> =
                (first..order.len()).map(|at| (order[at].0, order[at].1, at as u64)).collect();
            let (owner, rate) = set(&there).of_client(QuotaBound::RequestRate, taker).expect("a quota");
            let (_, _, by_user, by_client) = order[first];
            assert_eq!(
                (rate, owner.user.is_some(), owner.client.is_some()),
                (first as u64, by_user, by_client)
            );
        }
        let none = set(&[(Some("bob"), None, 1), (None, Some("other"), 1)]);
        assert_eq!(none.of_client(QuotaBound::RequestRate, taker), None);
        // Who calls itself nothing is one of all others.
        let taker = QuotaTaker { client_id: "", ..taker };
        let found =
            set(&[(alice, None, 1), (alice, Some(EACH), 2)]).of_client(QuotaBound::RequestRate, taker);
        assert_eq!(found.expect("a quota").1, 2);
    }
}
