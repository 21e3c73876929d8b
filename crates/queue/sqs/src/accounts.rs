//! Who asks, and how much each account may use.
//!
//! Quotas are buckets that fill at the rate of the quota and hold a second's worth of it. Whoever is over is refused
//! before anything is read of the request but its head, so that it costs the others nothing. That head says whose
//! request it is, and anybody can write one: it is only looked at whether there is something, and what is used is taken
//! when the signature was verified, and the body's length is known. Messages in flight are counted
//! ([`crate::in_flight`]) where they are received.
//!
//! Where several front ends serve the same queues, each of them gives its share of what an account may have in a
//! second ([`sharing`]). What the store counts, queues and messages in flight, is of all of them anyway. Receives that
//! wait are of the front end whose connections they hold.

mod kept;
mod sharing;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tailwater_access::{Peer, RightsBell, RightsChanges, SecretText};
use tailwater_env::{Env, HashMap, Task};
use tailwater_queue::{QueueError, QueueStore};
use tailwater_quotas::{QuotaShares, ShareBucket};

use crate::config::{AccountConfig, SqsConfig};
use crate::error::{Code, ErrorRefusal};
use crate::in_flight::InFlight;

#[cfg(feature = "fuzz")]
pub(crate) use kept::{check_kept, kept_seeds};

pub use kept::{AccountBounds, AccountError, AccountInfo, NewAccountKey};

/// Whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its account.
    pub(crate) account: String,
    /// The access key that it signed with; empty where nobody signs.
    pub(crate) key: String,
}

impl Identity {
    /// As whom the authorizer knows it, at the other end of the connection of `connected`: what nobody signed is that
    /// one's.
    pub(crate) fn peer(&self, connected: &Peer) -> Peer {
        match self.key.is_empty() {
            true => connected.clone(),
            false => Peer::of(connected.address.clone(), &self.account),
        }
    }
}

/// The accounts of a node: those of its configuration, and those that are made while it runs.
pub struct Accounts {
    env: Env,
    config: SqsConfig,
    set: RwLock<Arc<AccountSet>>,
    /// Rings when it has become another one.
    changed: RightsBell,
    kept: OnceLock<kept::KeptIn>,
    /// What this front end gives of each account's quotas.
    shares: RwLock<QuotaShares>,
    sharing: OnceLock<Task>,
    /// Held over a change.
    changing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").field("count", &self.set().count()).finish_non_exhaustive()
    }
}

/// All accounts at some time.
#[derive(Default)]
struct AccountSet {
    by_id: HashMap<String, Arc<Account>>,
    /// Secret and account, by access key.
    keys: HashMap<String, (SecretText, Arc<Account>)>,
}

impl AccountSet {
    fn count(&self) -> usize {
        self.by_id.len()
    }

    fn configs(&self) -> impl Iterator<Item = &AccountConfig> {
        self.by_id.values().map(|account| &account.config)
    }
}

struct Account {
    config: AccountConfig,
    used: Arc<AccountUse>,
}

/// What an account uses of what it may. It stays when its keys or its bounds change.
struct AccountUse {
    requests: Mutex<ShareBucket>,
    bytes: Mutex<ShareBucket>,
    in_flight: Mutex<InFlight>,
    /// Receives that wait.
    waiting: AtomicUsize,
}

/// A receive of an account that waits.
pub(crate) struct WaitingGuard(Arc<AccountUse>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Accounts {
    /// Those of the configuration alone.
    pub(crate) fn of(env: &Env, config: &SqsConfig) -> Arc<Self> {
        let accounts = Self {
            env: env.clone(),
            config: config.clone(),
            set: RwLock::default(),
            changed: RightsBell::default(),
            kept: OnceLock::new(),
            shares: RwLock::new(QuotaShares::new(env.random_u64() >> 1)),
            sharing: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
        };
        accounts.replace(Vec::new());
        Arc::new(accounts)
    }

    fn set(&self) -> Arc<AccountSet> {
        Arc::clone(&self.set.read())
    }

    /// Goes by the accounts of the configuration and by these from now on.
    fn replace(&self, kept: Vec<AccountConfig>) {
        let before = self.set();
        let mut set = AccountSet::default();
        // The configuration's come first: of two that are called the same it is theirs that counts.
        for config in self.config.accounts.iter().cloned().chain(kept) {
            if set.by_id.contains_key(&config.id) {
                tracing::warn!(
                    account = config.id,
                    "the configuration's counts, and not what was added: remove that"
                );
                continue;
            }
            let known = before.by_id.get(&config.id);
            let account = match known {
                Some(known) if known.config == config => Arc::clone(known),
                known => Arc::new(self.account(config, known)),
            };
            for key in &account.config.keys {
                set.keys.insert(key.id.clone(), (key.secret.clone(), Arc::clone(&account)));
            }
            set.by_id.insert(account.config.id.clone(), account);
        }
        *self.set.write() = Arc::new(set);
        self.changed.ring();
    }

    fn account(&self, config: AccountConfig, known: Option<&Arc<Account>>) -> Account {
        let used = known.map(|known| Arc::clone(&known.used)).unwrap_or_else(|| {
            let now = self.env.now();
            let full = |rate| Mutex::new(ShareBucket::full(rate, now));
            Arc::new(AccountUse {
                requests: full(config.requests_per_s),
                bytes: full(config.bytes_per_s),
                in_flight: Mutex::default(),
                waiting: AtomicUsize::new(0),
            })
        });
        Account { config, used }
    }

    /// The one account that there is, if nobody has to sign.
    pub(crate) fn everybody(&self) -> Option<Identity> {
        let is_open = !self.config.login && self.set().count() == 0;
        is_open.then(|| Identity { account: self.config.account.clone(), key: String::new() })
    }

    /// The secret of an access key.
    pub(crate) fn secret(&self, key: &str) -> Option<String> {
        self.set().keys.get(key).map(|(secret, _)| secret.text().to_owned())
    }

    /// Who has an access key.
    pub(crate) fn identity(&self, key: String) -> Option<Identity> {
        let (_, account) = self.set().keys.get(&key).cloned()?;
        Some(Identity { account: account.config.id.clone(), key })
    }

    /// Hears when accounts or keys change.
    pub(crate) fn changes(&self) -> RightsChanges {
        self.changed.changes()
    }

    /// Whether whoever asks would still be let in.
    pub(crate) fn check(&self, identity: &Identity) -> Result<(), ErrorRefusal> {
        let (now, refusal) = match identity.key.is_empty() {
            true => {
                let why = "There are accounts by now: requests have to be signed.";
                (self.everybody(), ErrorRefusal::new(Code::MissingAuthenticationToken, why))
            }
            false => {
                let why = "The key was removed meanwhile.";
                (self.identity(identity.key.clone()), ErrorRefusal::new(Code::InvalidClientTokenId, why))
            }
        };
        if now.as_ref() == Some(identity) { Ok(()) } else { Err(refusal) }
    }

    fn by_id(&self, id: &str) -> Option<Arc<Account>> {
        self.set().by_id.get(id).cloned()
    }

    /// Refuses a request of whoever claims to have `key`, if this front end's share of that account's quota is used up.
    /// Uses nothing of it.
    pub(crate) fn check_quota(&self, key: &str) -> Result<(), ErrorRefusal> {
        let Some((_, account)) = self.set().keys.get(key).cloned() else { return Ok(()) };
        let now = self.env.now();
        let (requests, bytes) = self.shares(&account.config, now);
        let is_left = account.used.requests.lock().has_some(requests, now)
            && account.used.bytes.lock().has_some(bytes, now);
        is_left.then_some(()).ok_or_else(throttled)
    }

    /// Counts a request with a body of so many bytes, or refuses it, by the same share.
    pub(crate) fn admit(&self, identity: &Identity, bytes: usize) -> Result<(), ErrorRefusal> {
        let Some(account) = self.by_id(&identity.account) else { return Ok(()) };
        let now = self.env.now();
        let (requests_share, bytes_share) = self.shares(&account.config, now);
        let is_admitted = account.used.requests.lock().take(1, requests_share, now)
            && account.used.bytes.lock().take(bytes as u64, bytes_share, now);
        is_admitted.then_some(()).ok_or_else(throttled)
    }

    /// Whether an account may have one more receive that waits, which it has as long as what is answered is there. Who
    /// waits holds a connection, of which there are not enough for everybody if one account takes them all.
    pub(crate) fn admit_waiting(&self, identity: &Identity) -> Result<Option<WaitingGuard>, ErrorRefusal> {
        let Some(account) = self.by_id(&identity.account) else { return Ok(None) };
        let most = match account.config.waiting_max {
            0 => self.config.connections_max.div_ceil(2),
            most => most,
        };
        let one_more = |waiting: usize| (waiting < most).then_some(waiting + 1);
        match account.used.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Some(WaitingGuard(Arc::clone(&account.used)))),
            Err(_) => {
                let message = "Too many receives of the account wait: [[sqs.accounts]] waiting_max";
                Err(ErrorRefusal::new(Code::RequestThrottled, message))
            }
        }
    }

    /// Whether an account may have one more queue.
    pub(crate) async fn admit_queue(
        &self,
        account: &str,
        queues: &dyn QueueStore,
    ) -> Result<(), ErrorRefusal> {
        let most = self.by_id(account).map_or(0, |account| account.config.queues_max);
        match most == 0 || queues.list(account, "", None, most).await?.len() < most {
            true => Ok(()),
            false => Err(ErrorRefusal::new(Code::OverLimit, format!("The account may have {most} queues."))),
        }
    }

    /// How many messages of an account's queues may be received, of `wanted`: at least one.
    pub(crate) async fn admit_receive(
        &self,
        account: &str,
        wanted: usize,
        queues: &dyn QueueStore,
    ) -> Result<usize, ErrorRefusal> {
        let Some((account, most)) = self.in_flight_quota(account) else { return Ok(wanted) };
        if account.used.in_flight.lock().is_due(self.env.now()) {
            let mut counted = 0;
            for queue in queues.list(&account.config.id, "", None, usize::MAX).await? {
                match queues.figures(&queue).await {
                    Ok(figures) => counted += figures.counts.in_flight,
                    Err(QueueError::NoQueue) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            account.used.in_flight.lock().count(counted);
        }
        match usize::try_from(account.used.in_flight.lock().room(most)).unwrap_or(usize::MAX) {
            0 => Err(ErrorRefusal::new(
                Code::OverLimit,
                format!("Too many messages in flight: the account may have {most}."),
            )),
            room => Ok(wanted.min(room)),
        }
    }

    /// Messages of an account's queues were received.
    pub(crate) fn received(&self, account: &str, count: usize) {
        if let Some((account, _)) = self.in_flight_quota(account) {
            account.used.in_flight.lock().received(count);
        }
    }

    /// Messages of an account's queues were deleted.
    pub(crate) fn deleted(&self, account: &str, count: usize) {
        if let Some((account, _)) = self.in_flight_quota(account) {
            account.used.in_flight.lock().deleted(count);
        }
    }

    fn in_flight_quota(&self, account: &str) -> Option<(Arc<Account>, u64)> {
        let account = self.by_id(account)?;
        let most = account.config.in_flight_max;
        (most > 0).then_some((account, most))
    }
}

fn throttled() -> ErrorRefusal {
    ErrorRefusal::new(Code::RequestThrottled, "Rate exceeded: the account's quota is used up.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyConfig;

    pub(super) fn bounded(id: &str, requests_per_s: u64, waiting_max: usize) -> AccountConfig {
        AccountConfig {
            id: id.to_owned(),
            keys: vec![KeyConfig::new(&format!("key of {id}"), "secret")],
            requests_per_s,
            bytes_per_s: 0,
            queues_max: 0,
            in_flight_max: 0,
            waiting_max,
        }
    }

    pub(super) fn accounts(account: AccountConfig) -> Arc<Accounts> {
        let accounts = Accounts::of(&Env::real(), &SqsConfig::default());
        accounts.replace(vec![account]);
        accounts
    }

    pub(super) fn who() -> Identity {
        Identity { account: "111122223333".to_owned(), key: String::new() }
    }

    #[tokio::test]
    async fn receives_that_wait_still_count_when_the_account_s_bounds_have_changed() {
        let accounts = accounts(bounded(&who().account, 0, 2));
        let both = [accounts.admit_waiting(&who()), accounts.admit_waiting(&who())];
        assert!(both.iter().all(Result::is_ok) && accounts.admit_waiting(&who()).is_err());
        accounts.replace(vec![bounded(&who().account, 7, 3)]);
        let third = accounts.admit_waiting(&who());
        assert!(third.is_ok() && accounts.admit_waiting(&who()).is_err(), "three, and not two and three");
        drop(both);
        assert!(accounts.admit_waiting(&who()).is_ok());
    }
}
