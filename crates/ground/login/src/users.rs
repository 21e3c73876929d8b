//! The users of a node, kept in its metadata.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::channel::oneshot;
use parking_lot::RwLock;
use tailwater_access::{RightsBell, RightsChanges};
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, MetaError, Op, Versioned};
use tokio::sync::Semaphore;

use crate::credentials::{SALT_BYTES, ScramKeys, StoredPassword};
use crate::guesses::WrongLogins;
use crate::hash::Hash;
use crate::limits::{
    CONFLICTS_MAX, HASHES_MAX, ITERATIONS, ITERATIONS_MIN, NAME_BYTES_MAX, PASSWORD_BYTES_MAX,
    PASSWORD_BYTES_MIN, SALT_BYTES_MAX, USERS_MAX,
};
use crate::login::{LoginError, LoginStep};
use crate::mechanism::Mechanism;
use crate::tokens::{TokenBearer, Tokens};

/// Where all of them are.
const USERS: &str = "login/user/";

/// For each user some random bytes, which are put with the user and deleted with it: a user who was removed and is
/// there again has others, whichever node has done so. One whom a program from before this has made has none.
const LIVES: &str = "login/life/";

/// What each removal of a user writes: the user's name. So users are removed one at a time, of all nodes together.
const REMOVED: &str = "login/users";

/// What users that there are not are made from: 32 random bytes, the same as long as the node lives.
const SECRET: &str = "login/secret";

/// Iterations that are taken from whoever hashed a password himself, at most: each login of his takes so many.
const ITERATIONS_GIVEN_MAX: u32 = 16_384;

/// What is asked of the users that would be left: why one of those who go may not.
type LeftGuard = Box<dyn Fn(&[String]) -> Result<(), String> + Send + Sync>;

/// A change of what is kept of a user's password for one mechanism.
#[derive(Clone)]
pub struct ScramChange {
    /// `ScramSha256` or `ScramSha512`.
    pub mechanism: Mechanism,
    /// What is kept from then on; nothing if that is none.
    pub to: Option<SaltedPassword>,
}

/// A password that was hashed already.
#[derive(Clone)]
pub struct SaltedPassword {
    /// How often.
    pub iterations: u32,
    /// With what.
    pub salt: Vec<u8>,
    /// The result.
    pub salted: Vec<u8>,
}

/// Why a user is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// A name or a password that can be nobody's, or one user too many.
    #[error("{0}")]
    Invalid(String),
    /// There is none with that name.
    #[error("there is no user {0:?}")]
    Unknown(String),
    /// There is no token with that name.
    #[error("there is no token {0:?}")]
    UnknownToken(String),
    /// A user who is needed.
    #[error("{0}")]
    Needed(String),
    /// A mechanism that nothing is kept for.
    #[error("nothing is kept of a password for {0}")]
    NoSuchMechanism(String),
    /// The metadata can't be read or written.
    #[error("{0}")]
    Unavailable(String),
}

/// A client that was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLogin<'a> {
    /// By which mechanism it tried.
    pub mechanism: Mechanism,
    /// From where, if its guesses are counted.
    pub address: Option<IpAddr>,
    /// Why not.
    pub error: &'a LoginError,
}

type RefusedTold = Box<dyn Fn(RefusedLogin<'_>) + Send + Sync>;

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginStats {
    /// Clients that were let in.
    pub logins: u64,
    /// Clients that were not.
    pub refused: u64,
}

/// A user, who has a number that nobody else had since the start: not even one of the same name.
struct KnownUser {
    password: StoredPassword,
    number: u64,
    /// What metadata has of it below [`LIVES`].
    life: Option<Bytes>,
}

/// A user as metadata has it; `Err` of one that can't be read.
struct StoredUser {
    password: Result<StoredPassword, UserError>,
    life: Option<Bytes>,
}

/// The users of a node. What is changed is durable before it holds; changes are made one at a time.
pub struct Users {
    env: Env,
    meta: Arc<dyn Meta>,
    known: RwLock<BTreeMap<String, KnownUser>>,
    /// Users that there were so far: the number of the next one.
    next_number: AtomicU64,
    /// Rings when a user or a token was removed.
    removed: Arc<RightsBell>,
    changing: tokio::sync::Mutex<()>,
    guard: std::sync::OnceLock<LeftGuard>,
    told: std::sync::OnceLock<RefusedTold>,
    tokens: Arc<Tokens>,
    #[cfg(feature = "jwt")]
    jwts: std::sync::OnceLock<Arc<crate::jwt::JwtKeys>>,
    pub(crate) wrong: WrongLogins,
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
    /// Metadata that can't be read. A user who can't be read is passed over, and can't log in.
    pub async fn open(env: &Env, meta: Arc<dyn Meta>) -> Result<Arc<Self>, UserError> {
        let mut known = BTreeMap::new();
        for (number, (name, StoredUser { password, life })) in (0..).zip(stored_users(&*meta).await?) {
            match password {
                Ok(password) => _ = known.insert(name, KnownUser { password, number, life }),
                Err(error) => tracing::error!(%error, "the user can't log in here"),
            }
        }
        let secret = kept_secret(env, &*meta).await?;
        let removed = Arc::<RightsBell>::default();
        let tokens = Tokens::open(env, Arc::clone(&meta), Arc::clone(&removed)).await?;
        Ok(Arc::new(Self {
            env: env.clone(),
            meta,
            guard: std::sync::OnceLock::new(),
            told: std::sync::OnceLock::new(),
            tokens,
            #[cfg(feature = "jwt")]
            jwts: std::sync::OnceLock::new(),
            wrong: WrongLogins::default(),
            next_number: AtomicU64::new(known.values().map(|user| user.number + 1).max().unwrap_or(0)),
            removed,
            known: RwLock::new(known),
            changing: tokio::sync::Mutex::default(),
            secret,
            hashing: Semaphore::new(HASHES_MAX),
            logins: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Has the users that metadata has by now; whether some are gone, or are others of their names.
    pub(crate) async fn read_users(&self) -> Result<bool, UserError> {
        let _turn = self.changing.lock().await;
        let stored = stored_users(&*self.meta).await?;
        let mut known = self.known.write();
        let before = known.len();
        known.retain(|name, _| stored.contains_key(name));
        let mut is_other = known.len() < before;
        for (name, StoredUser { password, life }) in stored {
            match password {
                Ok(password) => is_other |= self.know(&mut known, name, password, life),
                // Others come and go all the same.
                Err(error) => tracing::warn!(%error, "it stays as this node knows it"),
            }
        }
        Ok(is_other)
    }

    /// Takes note of a user as metadata has it; whether it is not the one that was known of that name.
    fn know(
        &self,
        known: &mut BTreeMap<String, KnownUser>,
        name: String,
        password: StoredPassword,
        life: Option<Bytes>,
    ) -> bool {
        let before = known.remove(&name);
        let was_there = before.is_some();
        let number = before.filter(|user| user.life == life).map(|user| user.number);
        let is_other = was_there && number.is_none();
        let number = number.unwrap_or_else(|| self.next_number.fetch_add(1, Ordering::Relaxed));
        known.insert(name, KnownUser { password, number, life });
        is_other
    }

    pub(crate) fn meta(&self) -> &Arc<dyn Meta> {
        &self.meta
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Tells that users, or tokens, are gone.
    pub(crate) fn ring(&self) {
        self.removed.ring();
    }

    /// The users' names, in order.
    pub fn names(&self) -> Vec<String> {
        self.known.read().keys().cloned().collect()
    }

    /// The tokens beside them.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Takes the tokens of an issuer elsewhere too, once.
    #[cfg(feature = "jwt")]
    pub fn take_jwts(&self, keys: Arc<crate::jwt::JwtKeys>) {
        // A node has one issuer, which it is told when it starts.
        let _ = self.jwts.set(keys);
    }

    /// Whom a token of the node's own, or of the issuer, stands for.
    pub(crate) fn bearer(&self, text: &str) -> Option<TokenBearer> {
        let own = self.tokens.bearer(text);
        #[cfg(feature = "jwt")]
        let own = own.or_else(|| self.jwts.get()?.bearer(text));
        own
    }

    /// From now on nobody is removed for whom `guard`, asked about those who would be left, has a reason why not.
    pub fn guard(&self, guard: impl Fn(&[String]) -> Result<(), String> + Send + Sync + 'static) {
        // It is said once, when a node starts.
        let _ = self.guard.set(Box::new(guard));
    }

    /// From now on `told` is called with each login that is refused, but for those that are not looked at as too many
    /// from their address were wrong. It must not wait.
    pub fn on_refused(&self, told: impl Fn(RefusedLogin<'_>) + Send + Sync + 'static) {
        // It is said once, when a node starts.
        let _ = self.told.set(Box::new(told));
    }

    /// For which mechanisms something is kept of a user's password, and how often it was hashed.
    pub fn scram(&self, name: &str) -> Option<Vec<(Mechanism, u32)>> {
        let known = self.known.read();
        let kept = &known.get(name)?.password;
        let of = |mechanism, hash| Some((mechanism, kept.keys(hash)?.iterations));
        let both = [of(Mechanism::ScramSha256, Hash::Sha256), of(Mechanism::ScramSha512, Hash::Sha512)];
        Some(both.into_iter().flatten().collect())
    }

    /// Changes what is kept of a user's password, who may be new, and is removed with the last of it.
    ///
    /// # Errors
    /// What of it can't be, that there is nothing to remove, a user who is needed, metadata that does not answer.
    pub async fn set_scram(self: &Arc<Self>, name: &str, changes: Vec<ScramChange>) -> Result<(), UserError> {
        check_name(name)?;
        let read = changes.into_iter().map(|change| {
            let hash = change.mechanism.hash().ok_or_else(|| {
                UserError::Invalid(format!("nothing is kept for {}", change.mechanism.name()))
            })?;
            let keys = change.to.map(|given| given.keys(hash)).transpose()?;
            Ok((change.mechanism, hash, keys))
        });
        let read = read.collect::<Result<Vec<_>, UserError>>()?;
        let unknown = name.to_owned();
        let decide = move |known: Option<Result<StoredPassword, UserError>>| {
            let known = known.transpose()?;
            let is_known = known.is_some();
            let mut kept = known.unwrap_or_default();
            for (mechanism, hash, keys) in &read {
                if keys.is_none() && kept.keys(*hash).is_none() {
                    return Err(match is_known {
                        true => UserError::NoSuchMechanism(mechanism.name().to_owned()),
                        false => UserError::Unknown(unknown.clone()),
                    });
                }
                kept.set(*hash, keys.clone());
            }
            Ok(Some(kept).filter(|kept| !kept.is_empty()))
        };
        self.change(name.to_owned(), decide).await.map(drop)
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
            let _turn = self.turn().await;
            StoredPassword::derive(password.as_bytes(), salts, ITERATIONS)
        };
        self.change(name.to_owned(), move |_| Ok(Some(credentials.clone()))).await
    }

    /// Removes a user, whose sessions are over then.
    ///
    /// # Errors
    /// That there is none, a user who is needed, metadata that does not answer.
    pub async fn remove(self: &Arc<Self>, name: &str) -> Result<(), UserError> {
        match self.change(name.to_owned(), |_| Ok(None)).await? {
            true => Err(UserError::Unknown(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Changes a user in the metadata and then here, also if nobody waits for it any more; whether there was none.
    async fn change(
        self: &Arc<Self>,
        name: String,
        decide: impl Fn(Option<Result<StoredPassword, UserError>>) -> Result<Option<StoredPassword>, UserError>
        + Send
        + Sync
        + 'static,
    ) -> Result<bool, UserError> {
        let (done, answer) = oneshot::channel();
        let users = Arc::clone(self);
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(users.change_now(name, decide).await);
        };
        self.env.spawn("login-users", changing).detach();
        answer.await.unwrap_or_else(|_| Err(UserError::Unavailable("the node stops".to_owned())))
    }

    async fn change_now(
        &self,
        name: String,
        decide: impl Fn(Option<Result<StoredPassword, UserError>>) -> Result<Option<StoredPassword>, UserError>,
    ) -> Result<bool, UserError> {
        let _turn = self.changing.lock().await;
        let (key, life_key) = (format!("{USERS}{name}"), format!("{LIVES}{name}"));
        for _ in 0..CONFLICTS_MAX {
            // Another node may have changed it, which this one has yet to hear of.
            let stored = self.meta.get(&key).await.map_err(unavailable)?;
            let expect = stored.as_ref().map_or(Expect::Absent, |stored| Expect::Version(stored.version));
            let before = stored.map(|stored| decode_user(&name, &stored.value));
            let is_new = before.is_none();
            let to = decide(before)?;
            let (key, life_key) = (key.clone(), life_key.clone());
            // Behind the user: whoever has made another one of the name meanwhile makes the commit a conflict.
            let life = match is_new {
                true => Some(Bytes::copy_from_slice(&self.env.random_u64().to_le_bytes())),
                false => self.meta.get(&life_key).await.map_err(unavailable)?.map(|stored| stored.value),
            };
            let ops = match &to {
                Some(_) if is_new && self.known.read().len() >= USERS_MAX => {
                    let why = format!("there are {USERS_MAX} users, and that is the most");
                    return Err(UserError::Invalid(why));
                }
                Some(password) => {
                    let put = Op::Put { key, value: password.encode().into(), expect };
                    let begun = life.clone().filter(|_| is_new);
                    let begin = begun.map(|value| Op::Put { key: life_key, value, expect: Expect::Any });
                    std::iter::once(put).chain(begin).collect()
                }
                None if is_new => {
                    self.changed_to(name, None);
                    return Ok(true);
                }
                None => vec![
                    Op::Delete { key, expect },
                    Op::Delete { key: life_key, expect: Expect::Any },
                    self.removal(&name).await?,
                ],
            };
            match self.meta.commit(ops).await {
                Ok(_) => {
                    self.changed_to(name, to.map(|password| (password, life)));
                    return Ok(is_new);
                }
                // Another node has changed the user meanwhile, or removed another one.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(error)),
            }
        }
        Err(UserError::Unavailable("others change this user all the time: try it again".to_owned()))
    }

    /// What goes with the removal of a user, so that no other one is removed at the same time: the last one that is
    /// needed stays.
    async fn removal(&self, name: &str) -> Result<Op, UserError> {
        // Before the users are looked at: what is removed after this is a conflict.
        let removed = self.meta.get(REMOVED).await.map_err(unavailable)?;
        if let Some(guard) = self.guard.get() {
            let users = self.meta.list(USERS).await.map_err(unavailable)?;
            let names = users.iter().filter_map(|(key, _)| key.strip_prefix(USERS));
            let left: Vec<String> = names.filter(|left| *left != name).map(str::to_owned).collect();
            guard(&left).map_err(UserError::Needed)?;
        }
        let expect = removed.map_or(Expect::Absent, |removed| Expect::Version(removed.version));
        Ok(Op::Put { key: REMOVED.to_owned(), value: name.to_owned().into(), expect })
    }

    /// Goes by a user as it is now, with its life; or by that there is none.
    fn changed_to(&self, name: String, to: Option<(StoredPassword, Option<Bytes>)>) {
        let mut known = self.known.write();
        let is_gone = match to {
            Some((password, life)) => self.know(&mut known, name, password, life),
            None => known.remove(&name).is_some(),
        };
        drop(known);
        if is_gone {
            self.removed.ring();
        }
    }

    /// What is kept of a user's password for a hash, or what looks like it.
    pub(crate) fn keys_or_decoy(&self, name: &str, hash: Hash) -> ScramKeys {
        let known = self.known.read().get(name).and_then(|user| user.password.keys(hash).cloned());
        // Made for everybody, so that it takes as long for those that there are.
        let decoy = ScramKeys::decoy(&self.secret, hash, name);
        known.unwrap_or(decoy)
    }

    /// A turn to hash a password.
    pub(crate) async fn turn(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // Never closed.
        self.hashing.acquire().await.ok()
    }

    /// Whether it is the user's password; there may be no such user. Takes milliseconds, for which there is a turn.
    pub(crate) fn is_password(&self, name: &str, password: &str) -> bool {
        // Both may be of passwords of their own, which Kafka's clients set: then that of SHA-256 is the one.
        let has_256 =
            self.known.read().get(name).is_none_or(|user| user.password.keys(Hash::Sha256).is_some());
        let hash = if has_256 { Hash::Sha256 } else { Hash::Sha512 };
        let keys = self.keys_or_decoy(name, hash);
        keys.is_password(hash, password.as_bytes())
    }

    /// The number of a user, if there is one of that name.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.known.read().get(name).map(|user| user.number)
    }

    /// Hears of users and tokens that are removed from now on.
    pub(crate) fn removals(&self) -> RightsChanges {
        self.removed.changes()
    }

    pub(crate) fn wall_ms(&self) -> i64 {
        self.env.wall_ms()
    }

    pub(crate) fn sleep(&self, time: std::time::Duration) -> tailwater_env::BoxFuture<'static, ()> {
        self.env.sleep(time)
    }

    pub(crate) fn now(&self) -> tailwater_env::Instant {
        self.env.now()
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

    /// Takes note of a step of a login by `mechanism` from `address`.
    pub(crate) fn note(
        &self,
        mechanism: Mechanism,
        address: Option<IpAddr>,
        stepped: &Result<LoginStep, LoginError>,
    ) {
        match stepped {
            Ok(LoginStep::Challenge(_)) => {}
            Ok(LoginStep::Done { .. }) => drop(self.logins.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                if let Some(address) = address.filter(|_| *error != LoginError::TooMany) {
                    self.wrong.count(address, self.now());
                }
                if let Some(told) = self.told.get().filter(|_| *error != LoginError::TooMany) {
                    told(RefusedLogin { mechanism, address, error });
                }
            }
        }
    }
}

impl SaltedPassword {
    fn keys(self, hash: Hash) -> Result<ScramKeys, UserError> {
        let Self { iterations, salt, salted } = self;
        if !(ITERATIONS_MIN..=ITERATIONS_GIVEN_MAX).contains(&iterations) {
            return Err(UserError::Invalid(format!(
                "a password is hashed {ITERATIONS_MIN} to {ITERATIONS_GIVEN_MAX} times, and not {iterations} times"
            )));
        }
        if !(1..=SALT_BYTES_MAX).contains(&salt.len()) {
            return Err(UserError::Invalid(format!("a salt has 1 to {SALT_BYTES_MAX} bytes")));
        }
        match salted.len() == hash.bytes() {
            true => Ok(ScramKeys::of_salted(hash, &salted, &salt, iterations)),
            false => Err(UserError::Invalid(format!("a hashed password has {} bytes here", hash.bytes()))),
        }
    }
}

/// The users that metadata has, and which of them can't be read.
async fn stored_users(meta: &dyn Meta) -> Result<BTreeMap<String, StoredUser>, UserError> {
    let stored = meta.list(USERS).await.map_err(unavailable)?;
    // Behind the users: of one who is made anew in between, who will be told of, it is known here already.
    let lives = meta.list(LIVES).await.map_err(unavailable)?;
    let life = |(key, stored): (String, Versioned)| Some((key.strip_prefix(LIVES)?.to_owned(), stored.value));
    let mut lives: BTreeMap<String, Bytes> = lives.into_iter().filter_map(life).collect();
    let mut users = BTreeMap::new();
    for (key, stored) in stored {
        let name = key.strip_prefix(USERS).unwrap_or_default();
        let (password, life) = (decode_user(name, &stored.value), lives.remove(name));
        users.insert(name.to_owned(), StoredUser { password, life });
    }
    Ok(users)
}

fn decode_user(name: &str, bytes: &[u8]) -> Result<StoredPassword, UserError> {
    StoredPassword::decode(bytes)
        .ok_or_else(|| UserError::Unavailable(format!(
            "the user {name:?} can't be read: a later version has written it, or it is damaged; upgrade this node, or give \
             the user a password anew"
        )))
}

fn unavailable(error: MetaError) -> UserError {
    UserError::Unavailable(error.to_string())
}

/// What the metadata has of it, where it is put if it is not there.
async fn kept_secret(env: &Env, meta: &dyn Meta) -> Result<[u8; 32], UserError> {
    loop {
        if let Some(kept) = meta.get(SECRET).await.map_err(unavailable)? {
            let secret = (&kept.value[..]).try_into();
            return secret.map_err(|_| UserError::Unavailable(format!("{SECRET} is not what it should be")));
        }
        let mut secret = [0; 32];
        secret.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&env.random_u64().to_le_bytes()));
        let put = Op::Put { key: SECRET.to_owned(), value: secret.to_vec().into(), expect: Expect::Absent };
        match meta.commit(vec![put]).await {
            // Another process has just made one.
            Err(MetaError::Conflict { .. }) => {}
            committed => return committed.map(|_| secret).map_err(unavailable),
        }
    }
}

/// Names can't look like a certificate's subject, which has an equals sign.
pub(crate) fn check_name(name: &str) -> Result<(), UserError> {
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
