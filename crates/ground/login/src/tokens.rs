//! Tokens: what a program shows in place of a user's name and password. The node keeps of each what checks it.
//!
//! ```text
//! tw.NAME.SECRET           the secret: 32 random bytes, in base64 for URLs
//!
//! login/token/NAME
//!       0    1  format     1
//!       1    8  expires    milliseconds since 1970, little-endian; the greatest number: never; 0: it is being removed
//!       9   32  SHA-256 of the secret
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::channel::oneshot;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use tailwater_access::{RightsBell, are_same};
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, MetaError, Op};

use crate::limits::TOKENS_MAX;
use crate::users::{UserError, check_name};

/// Where all of them are.
const TOKENS: &str = "login/token/";
const FORMAT: u8 = 1;
/// What a token's text begins with.
const BEGIN: &str = "tw.";
/// What the principal of a token begins with; no user's name has its colon.
const PRINCIPAL: &str = "token:";
/// What the principal of an issuer's token begins with.
pub(crate) const ISSUED: &str = "jwt:";
const NEVER: i64 = i64::MAX;
/// Until when one was good that is being removed.
const ENDED: i64 = 0;

/// A token, without what it is shown by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its name.
    pub name: String,
    /// Until when it is good, in milliseconds since 1970; for ever if that is not said.
    pub expires_ms: Option<i64>,
}

/// Whom a token, or another text like it, stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBearer {
    /// On whose behalf.
    pub principal: Arc<str>,
    /// Until when, in milliseconds since 1970.
    pub until_ms: Option<i64>,
}

/// A token that metadata has.
struct KnownToken {
    token: StoredToken,
    /// Of its key: another node may have put another token of the name in its place.
    version: u64,
}

/// What is kept of a token.
#[derive(Clone)]
pub(crate) struct StoredToken {
    pub(crate) expires_ms: i64,
    pub(crate) hash: [u8; 32],
}

impl StoredToken {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&[FORMAT][..], &self.expires_ms.to_le_bytes(), &self.hash].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[FORMAT])?;
        let (expires_ms, hash) = rest.split_first_chunk()?;
        Some(Self { expires_ms: i64::from_le_bytes(*expires_ms), hash: hash.try_into().ok()? })
    }

    fn until_ms(&self) -> Option<i64> {
        Some(self.expires_ms).filter(|ms| *ms != NEVER)
    }

    /// What checks it, for as long as it is not being removed.
    fn check(&self) -> Option<[u8; 32]> {
        (self.expires_ms > ENDED).then_some(self.hash)
    }
}

/// The tokens of a node. What is changed is durable before it holds; changes are made one at a time.
pub struct Tokens {
    env: Env,
    meta: Arc<dyn Meta>,
    known: RwLock<BTreeMap<String, KnownToken>>,
    changing: tokio::sync::Mutex<()>,
    /// Rings when one was removed.
    removed: Arc<RightsBell>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("count", &self.known.read().len()).finish_non_exhaustive()
    }
}

impl Tokens {
    pub(crate) async fn open(
        env: &Env,
        meta: Arc<dyn Meta>,
        removed: Arc<RightsBell>,
    ) -> Result<Arc<Self>, UserError> {
        let mut known = BTreeMap::new();
        for (name, token) in stored_tokens(&*meta).await? {
            match token {
                Ok(token) => _ = known.insert(name, token),
                Err(error) => tracing::error!(%error, "the token is good for nothing here"),
            }
        }
        let (known, changing) = (RwLock::new(known), tokio::sync::Mutex::default());
        Ok(Arc::new(Self { env: env.clone(), meta, known, changing, removed }))
    }

    /// Has the tokens that metadata has by now; whether some are gone, or are others.
    pub(crate) async fn read_again(&self) -> Result<bool, UserError> {
        let _turn = self.changing.lock().await;
        let stored = stored_tokens(&*self.meta).await?;
        let mut known = self.known.write();
        let mut now = BTreeMap::new();
        for (name, token) in stored {
            match token {
                Ok(token) => _ = now.insert(name, token),
                Err(error) => {
                    // Others come and go all the same.
                    tracing::warn!(%error, "it stays as this node knows it");
                    now.extend(known.remove_entry(&name));
                }
            }
        }
        let is_less = known
            .iter()
            .any(|(name, was)| now.get(name).is_none_or(|now| now.token.check() != was.token.check()));
        *known = now;
        Ok(is_less)
    }

    /// As whom whoever shows a token of this name is known.
    pub fn principal(name: &str) -> String {
        format!("{PRINCIPAL}{name}")
    }

    /// The name of the node's own token that is known so.
    pub(crate) fn name_of(principal: &str) -> Option<&str> {
        principal.strip_prefix(PRINCIPAL)
    }

    /// What checks a token, if there is one of that name that is not being removed.
    pub(crate) fn hash(&self, name: &str) -> Option<[u8; 32]> {
        self.known.read().get(name).and_then(|known| known.token.check())
    }

    /// Whether this is how a token is known, the node's own or one of an issuer elsewhere.
    pub fn is_principal(name: &str) -> bool {
        name.starts_with(PRINCIPAL) || name.starts_with(ISSUED)
    }

    /// All of them, in the order of their names.
    pub fn list(&self) -> Vec<TokenInfo> {
        let known = self.known.read();
        let tokens = known.iter();
        tokens
            .map(|(name, known)| TokenInfo { name: name.clone(), expires_ms: known.token.until_ms() })
            .collect()
    }

    /// The names of those that are good no more.
    pub fn expired(&self) -> Vec<String> {
        let now = self.env.wall_ms();
        let known = self.known.read();
        known
            .iter()
            .filter(|(_, known)| known.token.expires_ms <= now)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Whom a text stands for, if it is a token that is good.
    pub fn bearer(&self, text: &str) -> Option<TokenBearer> {
        let (name, secret) = text.strip_prefix(BEGIN)?.rsplit_once('.')?;
        let hash: [u8; 32] = Sha256::digest(secret).into();
        let known = self.known.read();
        let token = &known.get(name)?.token;
        let is_good = are_same(&hash, &token.hash) && self.env.wall_ms() < token.expires_ms;
        is_good.then(|| TokenBearer { principal: Self::principal(name).into(), until_ms: token.until_ms() })
    }

    /// Makes one, and tells its text, which nobody can tell again.
    ///
    /// # Errors
    /// A name that none can have, or one has; a time that is over; one token too many; metadata that does not answer.
    pub async fn create(self: &Arc<Self>, name: &str, expires_ms: Option<i64>) -> Result<String, UserError> {
        check_name(name)?;
        if expires_ms.is_some_and(|ms| ms <= self.env.wall_ms()) {
            return Err(UserError::Invalid("the token would have expired already".to_owned()));
        }
        let mut secret = [0; 32];
        secret
            .chunks_exact_mut(8)
            .for_each(|part| part.copy_from_slice(&self.env.random_u64().to_le_bytes()));
        let secret = URL_SAFE_NO_PAD.encode(secret);
        let hash = Sha256::digest(&secret).into();
        let token = StoredToken { expires_ms: expires_ms.unwrap_or(NEVER), hash };
        self.change(name.to_owned(), TokenChange::Make(token)).await?;
        Ok(format!("{BEGIN}{name}.{secret}"))
    }

    /// Removes one.
    ///
    /// # Errors
    /// That there is none, and metadata that does not answer.
    pub async fn remove(self: &Arc<Self>, name: &str) -> Result<(), UserError> {
        self.change(name.to_owned(), TokenChange::Remove).await
    }

    /// Ends one, which is good for nothing from then on, and is to be removed as those whose time is over.
    ///
    /// # Errors
    /// That there is none, and metadata that does not answer.
    pub async fn end(self: &Arc<Self>, name: &str) -> Result<(), UserError> {
        self.change(name.to_owned(), TokenChange::End).await
    }

    /// What holds as long as one is there that is good no more; nothing if there is none, or another node has made it
    /// anew.
    ///
    /// # Errors
    /// Metadata that does not answer.
    pub async fn is_over(&self, name: &str) -> Result<Option<Op>, UserError> {
        let stored = self.stored(name).await?.filter(|stored| stored.token.expires_ms <= self.env.wall_ms());
        let check =
            |stored: KnownToken| Op::Check { key: key(name), expect: Expect::Version(stored.version) };
        Ok(stored.map(check))
    }

    /// A token as metadata has it now.
    async fn stored(&self, name: &str) -> Result<Option<KnownToken>, UserError> {
        let stored = self.meta.get(&key(name)).await;
        let Some(stored) = stored.map_err(|error| UserError::Unavailable(error.to_string()))? else {
            return Ok(None);
        };
        let token = StoredToken::decode(&stored.value).ok_or_else(|| of_later_version(name))?;
        Ok(Some(KnownToken { token, version: stored.version }))
    }

    /// Removes one that is good no more; whether it did. One of its name that another node has made since is known from
    /// then on, and stays.
    ///
    /// # Errors
    /// Metadata that does not answer.
    pub async fn remove_expired(&self, name: &str) -> Result<bool, UserError> {
        let _turn = self.changing.lock().await;
        if let Some(stored) = self.stored(name).await? {
            if stored.token.expires_ms > self.env.wall_ms() {
                self.known.write().insert(name.to_owned(), stored);
                return Ok(false);
            }
            let delete = Op::Delete { key: key(name), expect: Expect::Version(stored.version) };
            match self.meta.commit(vec![delete]).await {
                Ok(_) => {}
                // It is still one of those that have expired, and will be looked at again.
                Err(MetaError::Conflict { .. }) => return Ok(false),
                Err(error) => return Err(UserError::Unavailable(error.to_string())),
            }
        }
        self.known.write().remove(name);
        self.removed.ring();
        Ok(true)
    }

    /// Carries a change out, also if nobody waits for it any more.
    async fn change(self: &Arc<Self>, name: String, to: TokenChange) -> Result<(), UserError> {
        let (done, answer) = oneshot::channel();
        let tokens = Arc::clone(self);
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(tokens.change_now(name, to).await);
        };
        self.env.spawn("login-tokens", changing).detach();
        answer.await.unwrap_or_else(|_| Err(UserError::Unavailable("the node stops".to_owned())))
    }

    async fn change_now(&self, name: String, to: TokenChange) -> Result<(), UserError> {
        let _turn = self.changing.lock().await;
        let is_made = matches!(to, TokenChange::Make(_));
        let (before, count) = {
            let known = self.known.read();
            (known.get(&name).map(|known| (known.token.hash, known.version)), known.len())
        };
        let (token, expect) = match (to, before) {
            (TokenChange::Make(_), Some(_)) => {
                let why = format!("there is a token {name:?}: remove it first, or choose another name");
                return Err(UserError::Invalid(why));
            }
            (TokenChange::Make(_), None) if count >= TOKENS_MAX => {
                return Err(UserError::Invalid(format!(
                    "there are {TOKENS_MAX} tokens, and that is the most"
                )));
            }
            (TokenChange::Make(token), None) => (Some(token), Expect::Absent),
            (TokenChange::End, Some((hash, version))) => {
                (Some(StoredToken { expires_ms: ENDED, hash }), Expect::Version(version))
            }
            (TokenChange::Remove, Some((_, version))) => (None, Expect::Version(version)),
            (TokenChange::End | TokenChange::Remove, None) => return Err(UserError::UnknownToken(name)),
        };
        let op = match &token {
            Some(token) => Op::Put { key: key(&name), value: token.encode().into(), expect },
            None => Op::Delete { key: key(&name), expect },
        };
        let committed = self.meta.commit(vec![op]).await;
        let version = committed.map_err(|error| match error {
            MetaError::Conflict { .. } if is_made => UserError::Invalid(format!(
                "another node has made a token {name:?} meanwhile: remove it there, or choose another name"
            )),
            MetaError::Conflict { .. } => UserError::Unavailable(format!(
                "another node has just changed the token {name:?}: look at it, and try again"
            )),
            error => UserError::Unavailable(error.to_string()),
        })?;
        let mut known = self.known.write();
        match token {
            Some(token) => drop(known.insert(name, KnownToken { token, version })),
            None => drop(known.remove(&name)),
        }
        drop(known);
        self.removed.ring();
        Ok(())
    }
}

/// What becomes of a token.
enum TokenChange {
    Make(StoredToken),
    End,
    Remove,
}

fn key(name: &str) -> String {
    format!("{TOKENS}{name}")
}

fn of_later_version(name: &str) -> UserError {
    UserError::Unavailable(format!(
        "the token {name:?} can't be read: a later version has written it, or it is damaged; upgrade this node"
    ))
}

/// The tokens that metadata has, and which of them can't be read.
async fn stored_tokens(
    meta: &dyn Meta,
) -> Result<BTreeMap<String, Result<KnownToken, UserError>>, UserError> {
    let stored = meta.list(TOKENS).await.map_err(|error| UserError::Unavailable(error.to_string()))?;
    let mut known = BTreeMap::new();
    for (key, stored) in stored {
        let name = key.strip_prefix(TOKENS).unwrap_or_default();
        let token = StoredToken::decode(&stored.value).ok_or_else(|| of_later_version(name));
        let token = token.map(|token| KnownToken { token, version: stored.version });
        known.insert(name.to_owned(), token);
    }
    Ok(known)
}
