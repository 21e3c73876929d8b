//! A login, step by step.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::hash::Hash;
use crate::limits::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX, PASSWORD_BYTES_MAX};
use crate::mechanism::Mechanism;
use crate::scram::{Challenged, FirstMessage};
use crate::session::LoginSession;
use crate::tokens::{TokenBearer, Tokens};
use crate::users::Users;

/// Why a client is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// What it sent makes no sense.
    #[error("the login makes no sense: {0}")]
    Malformed(&'static str),
    /// There is no such user, or it has another password; nobody is told which.
    #[error("there is no such user, or its password is another one")]
    Refused {
        /// Who it says it is; at most [`NAME_BYTES_MAX`] bytes.
        user: String,
    },
    /// What it shows is no token, or one that has expired.
    #[error("there is no such token, or it has expired")]
    NoToken,
    /// Too many logins from its address were wrong.
    #[error("too many logins from this address were wrong: wait a minute")]
    TooMany,
}

/// What comes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// The client is sent this, and answers.
    Challenge(Bytes),
    /// The client is known.
    Done {
        /// Its name.
        user: Arc<str>,
        /// What it is sent.
        answer: Bytes,
        /// Until when it may be taken for that, in milliseconds since 1970.
        until_ms: Option<i64>,
    },
}

/// A login that has begun. After an error, or its end, it is over.
pub struct Login {
    users: Arc<Users>,
    mechanism: Mechanism,
    /// From where, if its guesses are counted.
    address: Option<IpAddr>,
    state: LoginState,
    session: Option<LoginSession>,
}

enum LoginState {
    Plain,
    ScramFirst(Hash),
    ScramLast(Box<Challenged>),
    Bearer,
    Over,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Login {
    /// Begins one for a user among `users`, from an address whose wrong logins are counted.
    pub fn begin(users: &Arc<Users>, mechanism: Mechanism, address: Option<IpAddr>) -> Self {
        let state = match mechanism {
            Mechanism::Plain => LoginState::Plain,
            Mechanism::ScramSha256 => LoginState::ScramFirst(Hash::Sha256),
            Mechanism::ScramSha512 => LoginState::ScramFirst(Hash::Sha512),
            Mechanism::OAuthBearer => LoginState::Bearer,
        };
        Self { users: Arc::clone(users), mechanism, address, state, session: None }
    }

    /// Goes on with what the client sent. That a password is checked takes milliseconds of this thread.
    ///
    /// # Errors
    /// Why the client is not let in. Failures are counted.
    pub async fn step(&mut self, message: &[u8]) -> Result<LoginStep, LoginError> {
        let stepped = match self.is_admitted() {
            true => self.try_step(message).await,
            false => Err(LoginError::TooMany),
        };
        self.users.note(self.mechanism, self.address, &stepped);
        if let Ok(LoginStep::Done { user, until_ms, .. }) = &stepped {
            self.session = Some(LoginSession::begin(&self.users, user, *until_ms));
        }
        stepped
    }

    /// How long the client may go on, once it is known.
    pub fn session(&self) -> Option<&LoginSession> {
        self.session.as_ref()
    }

    /// Whether the address has not guessed too often.
    fn is_admitted(&self) -> bool {
        !self.address.is_some_and(|address| self.users.wrong.are_too_many(address, self.users.now()))
    }

    async fn try_step(&mut self, message: &[u8]) -> Result<LoginStep, LoginError> {
        let state = std::mem::replace(&mut self.state, LoginState::Over);
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(LoginError::Malformed("it is too long"));
        }
        let text = std::str::from_utf8(message).map_err(|_| LoginError::Malformed("it is no UTF-8"))?;
        match state {
            LoginState::Over => Err(LoginError::Malformed("it is over")),
            LoginState::Plain => self.plain(text).await,
            LoginState::Bearer => {
                self.bearer(bearer(text).ok_or(LoginError::Malformed("it shows no token"))?)
            }
            LoginState::ScramFirst(hash) => {
                let first = FirstMessage::read(text).map_err(LoginError::Malformed)?;
                let keys = self.users.keys_or_decoy(&first.user, hash);
                let challenged = first.challenge(hash, keys, &self.users.nonce());
                let message = Bytes::copy_from_slice(challenged.message().as_bytes());
                self.state = LoginState::ScramLast(Box::new(challenged));
                Ok(LoginStep::Challenge(message))
            }
            LoginState::ScramLast(challenged) => {
                let user = challenged.user();
                match challenged.finish(text).map_err(LoginError::Malformed)? {
                    Some(answer) => {
                        Ok(LoginStep::Done { user: user.into(), answer: answer.into(), until_ms: None })
                    }
                    None => Err(refused(user)),
                }
            }
        }
    }

    async fn plain(&self, text: &str) -> Result<LoginStep, LoginError> {
        let (user, password) = plain(text).map_err(LoginError::Malformed)?;
        if Tokens::is_principal(user) {
            return match self.bearer(password) {
                Ok(LoginStep::Done { user: of, .. }) if &*of != user => Err(LoginError::NoToken),
                other => other,
            };
        }
        let _turn = self.users.turn().await;
        // Others from there may have guessed wrong while this one waited.
        if !self.is_admitted() {
            return Err(LoginError::TooMany);
        }
        match self.users.is_password(user, password) {
            true => Ok(LoginStep::Done { user: user.into(), answer: Bytes::new(), until_ms: None }),
            false => Err(refused(user)),
        }
    }

    fn bearer(&self, token: &str) -> Result<LoginStep, LoginError> {
        let TokenBearer { principal, until_ms } = self.users.bearer(token).ok_or(LoginError::NoToken)?;
        Ok(LoginStep::Done { user: principal, answer: Bytes::new(), until_ms })
    }
}

/// The user and the password in `[FOR]` NUL `USER` NUL `PASSWORD`.
pub(crate) fn plain(message: &str) -> Result<(&str, &str), &'static str> {
    let parts: Vec<&str> = message.split('\0').collect();
    let [acts_for, user, password] = parts[..] else {
        return Err("it is not what PLAIN is");
    };
    if !acts_for.is_empty() && acts_for != user {
        return Err("it wants to act for another user");
    }
    if user.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err("it names no user, or its password is too long");
    }
    Ok((user, password))
}

/// The token in a client's first message: `n,,` 0x01 `auth=Bearer TOKEN` 0x01 0x01, with other pairs beside it.
pub(crate) fn bearer(message: &str) -> Option<&str> {
    let (header, pairs) = message.split_once('\x01')?;
    // Whoever acts for somebody else would say so here.
    if !matches!(header, "n,," | "y,,") || !pairs.ends_with('\x01') {
        return None;
    }
    let given = pairs.split('\x01').find_map(|pair| pair.strip_prefix("auth="))?;
    let (scheme, token) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn refused(user: &str) -> LoginError {
    let end = (0..=NAME_BYTES_MAX.min(user.len())).rev().find(|end| user.is_char_boundary(*end));
    LoginError::Refused { user: user[..end.unwrap_or(0)].to_owned() }
}
