//! Accounts that are made and removed while the node runs. They are in its metadata, with their secrets: what a request
//! was signed with can't be checked without.
//!
//! ```text
//! sqs/account/ID      JSON: keys, each with id and secret; and what bounds the account
//! sqs/accounts        the ID of the account that was removed last
//! ```
//!
//! What holds:
//! - What is changed is durable before it holds, and before it is answered. Other nodes of the same metadata follow it.
//! - A secret is told once, to whoever makes the key.
//! - An account of the configuration is the configuration's alone.
//! - The last account stays, unless it is said that nobody has to sign afterwards: accounts are removed one at a time,
//!   of all nodes together, as each removal writes `sqs/accounts`.
//! - An account that this program can't read is there, without keys: others are let in as before, and everybody is not.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use tailwater_access::SecretText;
use tailwater_env::{Env, Task};
use tailwater_meta::{Expect, Meta, MetaError, Op, follow_whole};

use super::Accounts;
use crate::config::{AccountConfig, KeyConfig, SqsConfig, check_account};
use crate::limits::{ACCOUNT_KEYS_MAX, ACCOUNTS_MAX, CONFLICTS_MAX};

const ACCOUNTS: &str = "sqs/account/";
/// What each removal of an account writes.
const REMOVED: &str = "sqs/accounts";
/// What the id of a key begins with, and of what the rest is.
const KEY_BEGIN: &str = "AKIA";
const KEY_LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// What an account is to be bounded by; what is not said stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountBounds {
    /// Requests a second; 0 is any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_s: Option<u64>,
    /// Bytes of requests a second; 0 is any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Queues; 0 is any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues_max: Option<usize>,
    /// Messages in flight, in all its queues; 0 is any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_max: Option<u64>,
    /// Receives that wait at the same time; 0 is a half of the connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_max: Option<usize>,
}

impl AccountBounds {
    fn over(self, before: Self) -> Self {
        Self {
            requests_per_s: self.requests_per_s.or(before.requests_per_s),
            bytes_per_s: self.bytes_per_s.or(before.bytes_per_s),
            queues_max: self.queues_max.or(before.queues_max),
            in_flight_max: self.in_flight_max.or(before.in_flight_max),
            waiting_max: self.waiting_max.or(before.waiting_max),
        }
    }
}

/// An account, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountInfo {
    /// Its number.
    pub id: String,
    /// The ids of its keys.
    pub keys: Vec<String>,
    /// Whether it is one of the configuration.
    pub is_configured: bool,
}

/// A key that was made. Nobody is told its secret again.
#[derive(Clone)]
pub struct NewAccountKey {
    /// The key's id.
    pub id: String,
    /// Its secret.
    pub secret: String,
}

impl std::fmt::Debug for NewAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewAccountKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why something can't be done with an account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// One that can be none, or one too many.
    #[error("{0}")]
    Invalid(String),
    /// There is none of that number, or no such key of it.
    #[error("there is no {0}")]
    Unknown(String),
    /// Without it nobody would have to sign.
    #[error(
        "it is the last account: without it nobody has to sign, and everybody is the account {everybody}"
    )]
    Last {
        /// That account.
        everybody: String,
    },
    /// The metadata can't be read or written.
    #[error("{0}")]
    Unavailable(String),
}

/// An account, as it is kept.
#[derive(Clone, Default, Serialize, Deserialize)]
struct KeptAccount {
    keys: Vec<KeptKey>,
    bounds: AccountBounds,
}

#[derive(Clone, Serialize, Deserialize)]
struct KeptKey {
    id: String,
    secret: String,
}

impl KeptAccount {
    fn decode(key: &str, bytes: &[u8]) -> Result<Self, AccountError> {
        serde_json::from_slice(bytes).map_err(|_| {
            AccountError::Unavailable(format!("the account at {key} was written by a later version"))
        })
    }

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    fn config(self, id: &str) -> AccountConfig {
        let Self { keys, bounds } = self;
        let key =
            |KeptKey { id, secret }| KeyConfig { id, secret: SecretText::new(&secret), secret_file: None };
        AccountConfig {
            id: id.to_owned(),
            keys: keys.into_iter().map(key).collect(),
            requests_per_s: bounds.requests_per_s.unwrap_or(0),
            bytes_per_s: bounds.bytes_per_s.unwrap_or(0),
            queues_max: bounds.queues_max.unwrap_or(0),
            in_flight_max: bounds.in_flight_max.unwrap_or(0),
            waiting_max: bounds.waiting_max.unwrap_or(0),
        }
    }
}

/// An account as it was before a change: there may be none, or one that this program can't read.
type KeptBefore = Option<Result<KeptAccount, AccountError>>;

/// Where they are kept.
pub(super) struct KeptIn {
    meta: Arc<dyn Meta>,
    _watch: Task,
}

impl Accounts {
    /// Those of the configuration and those that `meta` has, where they are kept, followed by what others change there.
    ///
    /// # Errors
    /// Metadata that can't be read.
    pub async fn open(env: &Env, config: &SqsConfig, meta: Arc<dyn Meta>) -> Result<Arc<Self>, AccountError> {
        // Before they are read, so that nothing is missed between.
        let watch = meta.watch(ACCOUNTS).await.map_err(unavailable)?;
        let accounts = Self::of(env, config);
        accounts.read_all(&*meta).await?;
        let of = Arc::clone(&meta);
        let following =
            follow_whole(env, "sqs-accounts", watch, Arc::downgrade(&accounts), move |accounts| {
                let of = Arc::clone(&of);
                Box::pin(async move {
                    let _turn = accounts.changing.lock().await;
                    accounts.read_all(&*of).await
                })
            });
        let _ = accounts.kept.set(KeptIn { meta, _watch: following });
        Ok(accounts)
    }

    async fn read_all(&self, meta: &dyn Meta) -> Result<(), AccountError> {
        let mut kept = Vec::new();
        for (key, stored) in meta.list(ACCOUNTS).await.map_err(unavailable)? {
            let account = KeptAccount::decode(&key, &stored.value).unwrap_or_else(|error| {
                tracing::warn!(%error, "it is taken for one without keys");
                KeptAccount::default()
            });
            kept.push(account.config(key.strip_prefix(ACCOUNTS).unwrap_or_default()));
        }
        self.replace(kept);
        Ok(())
    }

    /// All of them, in the order of their numbers.
    pub fn list(&self) -> Vec<AccountInfo> {
        let set = self.set();
        let info = |config: &AccountConfig| AccountInfo {
            id: config.id.clone(),
            keys: config.keys.iter().map(|key| key.id.clone()).collect(),
            is_configured: self.is_configured(&config.id),
        };
        let mut all: Vec<AccountInfo> = set.configs().map(info).collect();
        all.sort_by(|one, other| one.id.cmp(&other.id));
        all
    }

    fn is_configured(&self, id: &str) -> bool {
        self.config.accounts.iter().any(|account| account.id == id)
    }

    /// Makes a key of an account, which is new if it is not there, and bounds the account.
    ///
    /// # Errors
    /// A number that is none, or an account of the configuration; one account or key too many; metadata that does not
    /// answer.
    pub async fn add_key(
        self: &Arc<Self>,
        id: &str,
        bounds: AccountBounds,
    ) -> Result<NewAccountKey, AccountError> {
        check_account("account", id).map_err(AccountError::Invalid)?;
        self.check_own(id)?;
        let key = self.new_key();
        let made = KeptKey { id: key.id.clone(), secret: key.secret.clone() };
        let id = id.to_owned();
        let change = move |accounts: &Self, before: KeptBefore| {
            let before = before.transpose()?;
            if before.is_none() && accounts.set().count() >= ACCOUNTS_MAX {
                let why = format!("there are {ACCOUNTS_MAX} accounts, and that is the most");
                return Err(AccountError::Invalid(why));
            }
            let mut account = before.unwrap_or_default();
            if account.keys.len() >= ACCOUNT_KEYS_MAX {
                let why = format!("it has {ACCOUNT_KEYS_MAX} keys, and that is the most: remove one first");
                return Err(AccountError::Invalid(why));
            }
            account.bounds = bounds.over(account.bounds);
            account.keys.push(made.clone());
            Ok(Some(account))
        };
        self.change(id, false, change).await?;
        Ok(key)
    }

    /// Removes an account, or one of its keys. Its queues stay. `opens` says that everybody may be let in unsigned if
    /// it is the last one.
    ///
    /// # Errors
    /// That there is none, or that it is the configuration's; the last key; the last account; metadata that does not
    /// answer.
    pub async fn remove(
        self: &Arc<Self>,
        id: &str,
        key: Option<&str>,
        opens: bool,
    ) -> Result<(), AccountError> {
        let (id, key) = (id.to_owned(), key.map(str::to_owned));
        let about = id.clone();
        let change = move |accounts: &Self, before: KeptBefore| {
            let Some(account) = before else {
                accounts.check_own(&about)?;
                return Err(AccountError::Unknown(format!("account {about}")));
            };
            let Some(key) = &key else { return Ok(None) };
            let mut account = account?;
            let count = account.keys.len();
            account.keys.retain(|known| known.id != *key);
            if account.keys.len() == count {
                return Err(AccountError::Unknown(format!("key {key} of account {about}")));
            }
            if account.keys.is_empty() {
                let why =
                    format!("{key} is the last key of {about}: add another one first, or remove the account");
                return Err(AccountError::Invalid(why));
            }
            Ok(Some(account))
        };
        self.change(id, opens, change).await
    }

    fn check_own(&self, id: &str) -> Result<(), AccountError> {
        match self.is_configured(id) {
            true => Err(AccountError::Invalid(format!(
                "{id} is an account of the configuration: change [[sqs.accounts]] there, and start the node again"
            ))),
            false => Ok(()),
        }
    }

    fn new_key(&self) -> NewAccountKey {
        let mut secret = [0; 30];
        for part in secret.chunks_mut(8) {
            part.copy_from_slice(&self.env.random_u64().to_le_bytes()[..part.len()]);
        }
        let random = (u128::from(self.env.random_u64()) << 64) | u128::from(self.env.random_u64());
        let letters = (0..16).map(|at| char::from(KEY_LETTERS[(random >> (5 * at)) as usize & 31]));
        let id = letters.fold(KEY_BEGIN.to_owned(), |mut id, letter| {
            id.push(letter);
            id
        });
        NewAccountKey { id, secret: URL_SAFE_NO_PAD.encode(secret) }
    }

    /// Carries a change out, also if nobody waits for it any more.
    async fn change(
        self: &Arc<Self>,
        id: String,
        opens: bool,
        change: impl Fn(&Self, KeptBefore) -> Result<Option<KeptAccount>, AccountError> + Send + Sync + 'static,
    ) -> Result<(), AccountError> {
        let (done, answer) = oneshot::channel();
        let accounts = Arc::clone(self);
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(accounts.change_now(&id, opens, change).await);
        };
        self.env.spawn("sqs-accounts", changing).detach();
        answer.await.unwrap_or_else(|_| Err(AccountError::Unavailable("the node stops".to_owned())))
    }

    async fn change_now(
        &self,
        id: &str,
        opens: bool,
        change: impl Fn(&Self, KeptBefore) -> Result<Option<KeptAccount>, AccountError>,
    ) -> Result<(), AccountError> {
        let meta = self.kept.get().map(|kept| &kept.meta);
        let meta = meta.ok_or_else(|| AccountError::Unavailable("accounts are not kept here".to_owned()))?;
        let _turn = self.changing.lock().await;
        let key = format!("{ACCOUNTS}{id}");
        for _ in 0..CONFLICTS_MAX {
            let stored = meta.get(&key).await.map_err(unavailable)?;
            let expect = stored.as_ref().map_or(Expect::Absent, |stored| Expect::Version(stored.version));
            let before = stored.map(|stored| KeptAccount::decode(&key, &stored.value));
            let after = change(self, before)?;
            let ops = match &after {
                Some(account) => {
                    vec![Op::Put { key: key.clone(), value: account.encode().into(), expect }]
                }
                None => {
                    vec![Op::Delete { key: key.clone(), expect }, self.removal(&**meta, id, opens).await?]
                }
            };
            match meta.commit(ops).await {
                Ok(_) => {
                    self.changed_to(id, after);
                    return Ok(());
                }
                // Another node has changed it meanwhile, or removed another one.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(error)),
            }
        }
        Err(AccountError::Unavailable("others change this account all the time: try it again".to_owned()))
    }

    /// What goes with the removal of an account, so that no other one is removed at the same time.
    async fn removal(&self, meta: &dyn Meta, id: &str, opens: bool) -> Result<Op, AccountError> {
        // Before the accounts are counted: what is removed after this look is a conflict.
        let removed = meta.get(REMOVED).await.map_err(unavailable)?;
        if !opens && !self.config.login && self.config.accounts.is_empty() {
            // This node may not have heard yet of what others have removed.
            let count = meta.list(ACCOUNTS).await.map_err(unavailable)?.len();
            if count <= 1 {
                return Err(AccountError::Last { everybody: self.config.account.clone() });
            }
        }
        let expect = removed.map_or(Expect::Absent, |removed| Expect::Version(removed.version));
        Ok(Op::Put { key: REMOVED.to_owned(), value: id.to_owned().into(), expect })
    }

    /// Goes by one account as it is now, whether or not the others can be read at the moment.
    fn changed_to(&self, id: &str, account: Option<KeptAccount>) {
        let set = self.set();
        let configured: BTreeSet<&str> =
            self.config.accounts.iter().map(|account| account.id.as_str()).collect();
        let others =
            set.configs().filter(|account| account.id != id && !configured.contains(&*account.id)).cloned();
        self.replace(others.chain(account.map(|account| account.config(id))).collect());
    }
}

/// What a fuzzer runs: an account as metadata has it.
#[cfg(feature = "fuzz")]
pub(crate) fn check_kept(data: &[u8]) {
    match KeptAccount::decode(&format!("{ACCOUNTS}111122223333"), data) {
        Ok(account) => {
            let again = KeptAccount::decode("", &account.encode()).expect("just encoded");
            assert_eq!(again.encode(), account.encode());
            let count = account.keys.len();
            let config = account.config("111122223333");
            assert_eq!(config.keys.len(), count);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Bytes for [`check_kept`].
#[cfg(feature = "fuzz")]
pub(crate) fn kept_seeds() -> Vec<Vec<u8>> {
    let key = |id: &str| KeptKey { id: id.to_owned(), secret: "secret".to_owned() };
    let bounds =
        AccountBounds { requests_per_s: Some(10), in_flight_max: Some(u64::MAX), ..AccountBounds::default() };
    let account = KeptAccount { keys: vec![key("AKIAA"), key("AKIAB")], bounds };
    vec![account.encode(), KeptAccount::default().encode()]
}

fn unavailable(error: MetaError) -> AccountError {
    AccountError::Unavailable(error.to_string())
}
