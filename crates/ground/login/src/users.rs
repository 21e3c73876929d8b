//! The users of a node, kept in its metadata.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::channel::oneshot;
use parking_lot::RwLock;
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, Op};
use tokio::sync::Semaphore;

use crate::credentials::{SALT_BYTES, StoredPassword};
use crate::limits::{
    HASHES_MAX, ITERATIONS, NAME_BYTES_MAX, PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN, USERS_MAX,
};
use crate::login::{LoginError, LoginStep};

/// Where all of them are.
const USERS: &str = "login/user/";

/// Why a user is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// A name or a password that can be nobody's, or one user too many.
    #[error("{0}")]
    Invalid(String),
    /// There is none with that name.
    #[error("there is no user {0:?}")]
    Unknown(String),
    /// The metadata can't be read or written.
    #[error("{0}")]
    Unavailable(String),
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginStats {
    /// Clients that were let in.
    pub logins: u64,
    /// Clients that were not.
    pub refused: u64,
}

/// The users of a node. What is changed is durable before it holds; changes are made one at a time.
pub struct Users {
    env: Env,
    meta: Arc<dyn Meta>,
    known: RwLock<BTreeMap<String, StoredPassword>>,
    changing: tokio::sync::Mutex<()>,
    /// What the users that there are not are made from.
    secret: [u8; 32],
    hashing: Semaphore,
    logins: AtomicU64,
    refused: AtomicU64,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("count", &self.known.read().len()).finish_non_exhaustive()
    }
}

impl Users {
    /// Those that the metadata has.
    ///
    /// # Errors
    /// Metadata that can't be read, or has something else where a user should be.
    pub async fn open(env: &Env, meta: Arc<dyn Meta>) -> Result<Arc<Self>, UserError> {
        let stored = meta.list(USERS).await.map_err(|error| UserError::Unavailable(error.to_string()))?;
        let mut known = BTreeMap::new();
        for (key, stored) in stored {
            let name = key.strip_prefix(USERS).unwrap_or_default();
            let credentials = StoredPassword::decode(&stored.value).ok_or_else(|| {
                UserError::Unavailable(format!("the user {name:?} was written by a later version"))
            })?;
            known.insert(name.to_owned(), credentials);
        }
        let mut secret = [0; 32];
        secret.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&env.random_u64().to_le_bytes()));
        Ok(Arc::new(Self {
            env: env.clone(),
            meta,
            known: RwLock::new(known),
            changing: tokio::sync::Mutex::default(),
            secret,
            hashing: Semaphore::new(HASHES_MAX),
            logins: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// The users' names, in order.
    pub fn names(&self) -> Vec<String> {
        self.known.read().keys().cloned().collect()
    }

    /// What was counted since the start.
    pub fn stats(&self) -> LoginStats {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LoginStats { logins: of(&self.logins), refused: of(&self.refused) }
    }

    /// Gives a user, who may be new, a password. Whether the user is new.
    ///
    /// # Errors
    /// A name or a password that can be nobody's, one user too many, metadata that does not answer.
    pub async fn set(self: &Arc<Self>, name: &str, password: &str) -> Result<bool, UserError> {
        check_name(name)?;
        let length = password.len();
        if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&length) || password.contains('\0') {
            return Err(UserError::Invalid(format!(
                "a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes, none of them zero, and this one has {length}"
            )));
        }
        let salts = [self.salt(), self.salt()];
        let credentials = {
            let _turn = self.hashing.acquire().await;
            StoredPassword::derive(password.as_bytes(), salts, ITERATIONS)
        };
        self.change(name.to_owned(), Some(credentials)).await
    }

    /// Removes a user. Connections that it has go on.
    ///
    /// # Errors
    /// That there is none, and metadata that does not answer.
    pub async fn remove(self: &Arc<Self>, name: &str) -> Result<(), UserError> {
        match self.change(name.to_owned(), None).await? {
            true => Err(UserError::Unknown(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Changes a user in the metadata and then here, also if nobody waits for it any more; whether there was none.
    async fn change(self: &Arc<Self>, name: String, to: Option<StoredPassword>) -> Result<bool, UserError> {
        let (done, answer) = oneshot::channel();
        let users = Arc::clone(self);
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(users.change_now(name, to).await);
        };
        self.env.spawn("login-users", changing).detach();
        answer.await.unwrap_or_else(|_| Err(UserError::Unavailable("the node stops".to_owned())))
    }

    async fn change_now(&self, name: String, to: Option<StoredPassword>) -> Result<bool, UserError> {
        let _turn = self.changing.lock().await;
        let (is_new, count) = {
            let known = self.known.read();
            (!known.contains_key(&name), known.len())
        };
        let key = format!("{USERS}{name}");
        let op = match &to {
            Some(_) if is_new && count >= USERS_MAX => {
                return Err(UserError::Invalid(format!("there are {USERS_MAX} users, and that is the most")));
            }
            Some(credentials) => Op::Put { key, value: credentials.encode().into(), expect: Expect::Any },
            None if is_new => return Ok(true),
            None => Op::Delete { key, expect: Expect::Any },
        };
        let committed = self.meta.commit(vec![op]).await;
        committed.map_err(|error| UserError::Unavailable(error.to_string()))?;
        let mut known = self.known.write();
        match to {
            Some(credentials) => drop(known.insert(name, credentials)),
            None => drop(known.remove(&name)),
        }
        Ok(is_new)
    }

    /// What is kept of a user's password, or what looks like it.
    pub(crate) fn credentials_or_decoy(&self, name: &str) -> StoredPassword {
        let known = self.known.read().get(name).cloned();
        // Made for everybody, so that it takes as long for those that there are.
        let decoy = StoredPassword::decoy(&self.secret, name);
        known.unwrap_or(decoy)
    }

    /// Whether it is the user's password; there may be no such user.
    pub(crate) async fn is_password(&self, name: &str, password: &str) -> bool {
        let credentials = self.credentials_or_decoy(name);
        let _turn = self.hashing.acquire().await;
        credentials.is_password(password.as_bytes())
    }

    /// A text that nobody knew before.
    pub(crate) fn nonce(&self) -> String {
        format!("{:016x}{:016x}", self.env.random_u64(), self.env.random_u64())
    }

    fn salt(&self) -> [u8; SALT_BYTES] {
        let mut salt = [0; SALT_BYTES];
        salt.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&self.env.random_u64().to_le_bytes()));
        salt
    }

    pub(crate) fn count(&self, stepped: &Result<LoginStep, LoginError>) {
        match stepped {
            Ok(LoginStep::Challenge(_)) => 0,
            Ok(LoginStep::Done { .. }) => self.logins.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.refused.fetch_add(1, Ordering::Relaxed),
        };
    }
}

/// Names can't look like a certificate's subject, which has an equals sign.
fn check_name(name: &str) -> Result<(), UserError> {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(may) && name != ANONYMOUS {
        true => Ok(()),
        false => Err(UserError::Invalid(format!(
            "a user has a name of 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.' or '@', which is not {ANONYMOUS:?}"
        ))),
    }
}

/// Who nobody authenticated.
const ANONYMOUS: &str = "anonymous";
