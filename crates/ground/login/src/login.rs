//! A login, step by step.

use std::sync::Arc;

use bytes::Bytes;

use crate::credentials::Hash;
use crate::limits::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX, PASSWORD_BYTES_MAX};
use crate::scram::{Challenged, FirstMessage};
use crate::users::Users;

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// It sends its password (RFC 4616).
    Plain,
    /// Both prove that they know it (RFC 7677).
    ScramSha256,
    /// The same with another hash.
    ScramSha512,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// What clients call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Whether it shows the password to everybody on the way, where the connection is not encrypted.
    pub fn shows_password(self) -> bool {
        self == Self::Plain
    }
}

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
    },
}

/// A login that has begun. After an error, or its end, it is over.
pub struct Login {
    users: Arc<Users>,
    state: LoginState,
}

enum LoginState {
    Plain,
    ScramFirst(Hash),
    ScramLast(Box<Challenged>),
    Over,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Login {
    /// Begins one for a user among `users`.
    pub fn begin(users: &Arc<Users>, mechanism: Mechanism) -> Self {
        let state = match mechanism {
            Mechanism::Plain => LoginState::Plain,
            Mechanism::ScramSha256 => LoginState::ScramFirst(Hash::Sha256),
            Mechanism::ScramSha512 => LoginState::ScramFirst(Hash::Sha512),
        };
        Self { users: Arc::clone(users), state }
    }

    /// Goes on with what the client sent. That a password is checked takes milliseconds of this thread.
    ///
    /// # Errors
    /// Why the client is not let in. Failures are counted.
    pub async fn step(&mut self, message: &[u8]) -> Result<LoginStep, LoginError> {
        let stepped = self.try_step(message).await;
        self.users.count(&stepped);
        stepped
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
            LoginState::ScramFirst(hash) => {
                let first = FirstMessage::read(text).map_err(LoginError::Malformed)?;
                let credentials = self.users.credentials_or_decoy(&first.user);
                let challenged = first.challenge(hash, credentials, &self.users.nonce());
                let message = Bytes::copy_from_slice(challenged.message().as_bytes());
                self.state = LoginState::ScramLast(Box::new(challenged));
                Ok(LoginStep::Challenge(message))
            }
            LoginState::ScramLast(challenged) => {
                let user = challenged.user();
                match challenged.finish(text).map_err(LoginError::Malformed)? {
                    Some(answer) => Ok(LoginStep::Done { user: user.into(), answer: answer.into() }),
                    None => Err(refused(user)),
                }
            }
        }
    }

    /// `[FOR]` NUL `USER` NUL `PASSWORD`.
    async fn plain(&self, text: &str) -> Result<LoginStep, LoginError> {
        let parts: Vec<&str> = text.split('\0').collect();
        let [acts_for, user, password] = parts[..] else {
            return Err(LoginError::Malformed("it is not what PLAIN is"));
        };
        if !acts_for.is_empty() && acts_for != user {
            return Err(LoginError::Malformed("it wants to act for another user"));
        }
        if user.is_empty() || password.len() > PASSWORD_BYTES_MAX {
            return Err(LoginError::Malformed("it names no user, or its password is too long"));
        }
        match self.users.is_password(user, password).await {
            true => Ok(LoginStep::Done { user: user.into(), answer: Bytes::new() }),
            false => Err(refused(user)),
        }
    }
}

fn refused(user: &str) -> LoginError {
    let end = (0..=NAME_BYTES_MAX.min(user.len())).rev().find(|end| user.is_char_boundary(*end));
    LoginError::Refused { user: user[..end.unwrap_or(0)].to_owned() }
}
