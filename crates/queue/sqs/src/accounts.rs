//! Who asks, and how much each account may use.
//!
//! Quotas are buckets that fill at the rate of the quota and hold a second's worth of it. Whoever is over is refused
//! before anything is read of the request but its head, so that it costs the others nothing. That head says whose
//! request it is, and anybody can write one: it is only looked at whether there is something, and what is used is taken
//! when the signature was verified, and the body's length is known. Messages in flight are counted
//! ([`crate::in_flight`]) where they are received.

use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_access::{Peer, SecretText};
use tailwater_env::{Env, HashMap, Instant};
use tailwater_queue::{QueueError, QueueStore};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{AccountConfig, SqsConfig};
use crate::error::{Code, ErrorRefusal};
use crate::in_flight::InFlight;

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

/// The accounts.
pub(crate) struct Accounts {
    env: Env,
    /// The account of everybody, if none are configured.
    everybody: Option<String>,
    by_id: HashMap<String, Account>,
    /// Secret and account, by access key.
    keys: HashMap<String, (SecretText, String)>,
}

struct Account {
    config: AccountConfig,
    requests: Mutex<Bucket>,
    bytes: Mutex<Bucket>,
    in_flight: Mutex<InFlight>,
    /// Receives that may still wait.
    waiting: Arc<Semaphore>,
}

/// What may still be used at the moment.
struct Bucket {
    level: f64,
    filled_at: Instant,
}

impl Bucket {
    /// Whether there is something. A rate of 0 is any rate.
    fn has_some(&mut self, rate: u64, now: Instant) -> bool {
        if rate == 0 {
            return true;
        }
        let rate = rate as f64;
        self.level = (self.level + rate * now.since(self.filled_at).as_secs_f64()).min(rate);
        self.filled_at = now;
        self.level > 0.0
    }

    /// Takes `amount` out, if there is something; what is too much is missing later.
    fn take(&mut self, amount: u64, rate: u64, now: Instant) -> bool {
        let is_there = self.has_some(rate, now);
        if is_there {
            self.level -= amount as f64;
        }
        is_there
    }
}

impl Accounts {
    pub(crate) fn new(env: &Env, config: &SqsConfig) -> Self {
        let everybody = config.accounts.is_empty().then(|| config.account.clone());
        let mut keys = HashMap::default();
        let mut by_id = HashMap::default();
        let now = env.now();
        for account in &config.accounts {
            for key in &account.keys {
                keys.insert(key.id.clone(), (key.secret.clone(), account.id.clone()));
            }
            let full = |rate: u64| Mutex::new(Bucket { level: rate as f64, filled_at: now });
            let (requests, bytes) = (full(account.requests_per_s), full(account.bytes_per_s));
            let waiting_max = match account.waiting_max {
                0 => config.connections_max.div_ceil(2),
                most => most.min(Semaphore::MAX_PERMITS),
            };
            let account = Account {
                config: account.clone(),
                requests,
                bytes,
                in_flight: Mutex::default(),
                waiting: Arc::new(Semaphore::new(waiting_max)),
            };
            by_id.insert(account.config.id.clone(), account);
        }
        Self { env: env.clone(), everybody, by_id, keys }
    }

    /// The one account that there is, if nobody has to sign.
    pub(crate) fn everybody(&self) -> Option<Identity> {
        self.everybody.clone().map(|account| Identity { account, key: String::new() })
    }

    /// The secret of an access key.
    pub(crate) fn secret(&self, key: &str) -> Option<String> {
        self.keys.get(key).map(|(secret, _)| secret.text().to_owned())
    }

    /// Who has an access key.
    pub(crate) fn identity(&self, key: String) -> Option<Identity> {
        let (_, account) = self.keys.get(&key)?;
        Some(Identity { account: account.clone(), key })
    }

    /// Refuses a request of whoever claims to have `key`, if that account's quota is used up. Uses nothing of it.
    pub(crate) fn check_quota(&self, key: &str) -> Result<(), ErrorRefusal> {
        let Some(account) = self.keys.get(key).and_then(|(_, account)| self.by_id.get(account)) else {
            return Ok(());
        };
        let now = self.env.now();
        let AccountConfig { requests_per_s, bytes_per_s, .. } = account.config;
        let is_left = account.requests.lock().has_some(requests_per_s, now)
            && account.bytes.lock().has_some(bytes_per_s, now);
        is_left.then_some(()).ok_or_else(throttled)
    }

    /// Counts a request with a body of so many bytes, or refuses it.
    pub(crate) fn admit(&self, identity: &Identity, bytes: usize) -> Result<(), ErrorRefusal> {
        let Some(account) = self.by_id.get(&identity.account) else { return Ok(()) };
        let now = self.env.now();
        let AccountConfig { requests_per_s, bytes_per_s, .. } = account.config;
        let is_admitted = account.requests.lock().take(1, requests_per_s, now)
            && account.bytes.lock().take(bytes as u64, bytes_per_s, now);
        is_admitted.then_some(()).ok_or_else(throttled)
    }

    /// Whether an account may have one more receive that waits, which it has as long as what is answered is there. Who
    /// waits holds a connection, of which there are not enough for everybody if one account takes them all.
    pub(crate) fn admit_waiting(
        &self,
        identity: &Identity,
    ) -> Result<Option<OwnedSemaphorePermit>, ErrorRefusal> {
        let Some(account) = self.by_id.get(&identity.account) else { return Ok(None) };
        let waiting = Arc::clone(&account.waiting).try_acquire_owned();
        waiting.map(Some).map_err(|_| {
            let message = "Too many receives of the account wait: [[sqs.accounts]] waiting_max";
            ErrorRefusal::new(Code::RequestThrottled, message)
        })
    }

    /// Whether an account may have one more queue.
    pub(crate) async fn admit_queue(
        &self,
        account: &str,
        queues: &dyn QueueStore,
    ) -> Result<(), ErrorRefusal> {
        let most = self.by_id.get(account).map_or(0, |account| account.config.queues_max);
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
        if account.in_flight.lock().is_due(self.env.now()) {
            let mut counted = 0;
            for queue in queues.list(&account.config.id, "", None, usize::MAX).await? {
                match queues.figures(&queue).await {
                    Ok(figures) => counted += figures.counts.in_flight,
                    Err(QueueError::NoQueue) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            account.in_flight.lock().count(counted);
        }
        match usize::try_from(account.in_flight.lock().room(most)).unwrap_or(usize::MAX) {
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
            account.in_flight.lock().received(count);
        }
    }

    /// Messages of an account's queues were deleted.
    pub(crate) fn deleted(&self, account: &str, count: usize) {
        if let Some((account, _)) = self.in_flight_quota(account) {
            account.in_flight.lock().deleted(count);
        }
    }

    fn in_flight_quota(&self, account: &str) -> Option<(&Account, u64)> {
        let account = self.by_id.get(account)?;
        let most = account.config.in_flight_max;
        (most > 0).then_some((account, most))
    }
}

fn throttled() -> ErrorRefusal {
    ErrorRefusal::new(Code::RequestThrottled, "Rate exceeded: the account's quota is used up.")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_a_second_s_worth_at_once() {
        let start = Instant::from_ns(0);
        let mut bucket = Bucket { level: 10.0, filled_at: start };
        let mut taken = |now: Instant| (0..100).filter(|_| bucket.take(1, 10, now)).count();
        assert_eq!(taken(start), 10);
        assert_eq!(taken(start + Duration::from_millis(500)), 5);
        assert_eq!(taken(start + Duration::from_secs(60)), 10);
    }

    #[test]
    fn what_is_larger_than_the_bucket_passes_and_is_missing_later() {
        let start = Instant::from_ns(0);
        let mut bucket = Bucket { level: 10.0, filled_at: start };
        assert!(bucket.take(30, 10, start));
        assert!(!bucket.take(1, 10, start + Duration::from_secs(2)));
        assert!(bucket.take(1, 10, start + Duration::from_millis(2_100)));
    }
}
