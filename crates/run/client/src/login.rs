//! What a program logs in with, and the login in CALLs, to a node and to its cells.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tailwater_access::SecretText;
use tailwater_env::Env;
use tailwater_format::call::{LoginAnswer, LoginMessage, decode_call, encode_call};
use tailwater_login::{ClientExchange, ClientLogin, Mechanism};
use tailwater_rma::{ClientDialogue, LoginNext, ServerLogin};

/// Where a program has its login from. With the default it is a token in the variable `TAILWATER_LOGIN_TOKEN`, if there
/// is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginConfig {
    /// A user's name. The user's password is in the variable `TAILWATER_LOGIN_PASSWORD` if no file has it.
    pub user: Option<String>,
    /// A file with that password in its first line.
    pub password_file: Option<PathBuf>,
    /// A file with a token in its first line, in place of a user.
    pub token_file: Option<PathBuf>,
    /// How the user shows that it knows its password. Not said: by SCRAM-SHA-256.
    pub mechanism: Option<Mechanism>,
}

impl LoginConfig {
    /// The variable that a user's password may be in.
    pub const PASSWORD: &str = "TAILWATER_LOGIN_PASSWORD";

    /// The variable that a token may be in.
    pub const TOKEN: &str = "TAILWATER_LOGIN_TOKEN";

    /// As the variables have it: `TAILWATER_LOGIN`, `TAILWATER_LOGIN_PASSWORD_FILE`, `TAILWATER_LOGIN_TOKEN_FILE` and
    /// `TAILWATER_LOGIN_MECHANISM`.
    ///
    /// # Errors
    /// A mechanism that there is not.
    pub fn of_environment() -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mechanism =
            variable("TAILWATER_LOGIN_MECHANISM").map(|name| Self::mechanism_named(&name)).transpose()?;
        Ok(Self {
            user: variable("TAILWATER_LOGIN"),
            password_file: variable("TAILWATER_LOGIN_PASSWORD_FILE").map(Into::into),
            token_file: variable("TAILWATER_LOGIN_TOKEN_FILE").map(Into::into),
            mechanism,
        })
    }

    /// How a user may show that it knows its password, by its name in letters of any size.
    ///
    /// # Errors
    /// What there is, if that is none.
    pub fn mechanism_named(name: &str) -> Result<Mechanism, String> {
        let found =
            Mechanism::from_name(&name.to_uppercase()).filter(|found| *found != Mechanism::OAuthBearer);
        found
            .ok_or_else(|| format!("{name:?} is no way to log in: use scram-sha-256, scram-sha-512 or plain"))
    }

    /// Reads the secret, which blocks; `None` where there is no login.
    ///
    /// # Errors
    /// A user without a password, a file that can't be read, and what can be no login.
    pub fn open(&self) -> Result<Option<ClientLogin>, String> {
        match &self.user {
            Some(user) => {
                let password = secret(self.password_file.as_deref(), Self::PASSWORD)?.ok_or_else(|| {
                    format!(
                        "the user {user:?} needs a password: name a file that has it, or set {}",
                        Self::PASSWORD
                    )
                })?;
                let mechanism = self.mechanism.unwrap_or(Mechanism::ScramSha256);
                ClientLogin::of_user(user, password, mechanism).map(Some)
            }
            None => secret(self.token_file.as_deref(), Self::TOKEN)?.map(ClientLogin::of_token).transpose(),
        }
    }
}

/// What the first line of a file has, or the variable.
fn secret(file: Option<&Path>, variable: &str) -> Result<Option<SecretText>, String> {
    let Some(file) = file else {
        return Ok(std::env::var(variable).ok().map(|text| SecretText::new(&text)));
    };
    #[allow(clippy::disallowed_methods)] // A program reads its user's files, before it has any world.
    let text =
        std::fs::read_to_string(file).map_err(|why| format!("{} can't be read: {why}", file.display()))?;
    SecretText::of_file(&text).map(Some).map_err(|why| format!("{}: {why}", file.display()))
}

/// What all of a client's connections are logged in with.
pub(crate) struct CallLogin(pub(crate) ClientLogin);

struct CallExchange {
    mechanism: Mechanism,
    exchange: ClientExchange,
}

impl ServerLogin for CallLogin {
    fn begin(&self, env: &Env, is_private: bool) -> Result<Box<dyn ClientDialogue>, String> {
        let (mechanism, exchange) = (self.0.mechanism(), self.0.begin(env, is_private)?);
        Ok(Box::new(CallExchange { mechanism, exchange }))
    }
}

impl ClientDialogue for CallExchange {
    fn next(&mut self, said: Option<Bytes>) -> Result<LoginNext, String> {
        let (mut is_done, mut message) = (false, Bytes::new());
        if let Some(said) = said {
            LoginAnswer { message, is_done } = decode_call(said).map_err(|error| error.to_string())?;
        }
        match self.exchange.next(&message)? {
            Some(_) if is_done => Err("it says that the login is done before it is".to_owned()),
            None if !is_done => Err("it does not say that the login is done".to_owned()),
            None => Ok(LoginNext::Done),
            Some(message) => {
                let mechanism = self.mechanism.name().to_owned();
                Ok(LoginNext::Send(encode_call(&LoginMessage { mechanism, message: message.into() })))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // a user's files
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_from_files_and_says_what_is_missing_and_shows_no_secret() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            Some(path)
        };
        let of_user = LoginConfig {
            user: Some("alice".to_owned()),
            password_file: file("password", "correct horse\n"),
            ..LoginConfig::default()
        };
        let login = of_user.open().expect("readable").expect("a login");
        assert_eq!(login.mechanism(), Mechanism::ScramSha256);
        assert!(!format!("{of_user:?} {login:?}").contains("horse"), "{login:?}");
        let token = LoginConfig { token_file: file("token", "tw.ci.x\n"), ..LoginConfig::default() };
        assert_eq!(token.open().expect("readable").expect("a login").mechanism(), Mechanism::OAuthBearer);
        let empty = LoginConfig { password_file: file("empty", ""), ..of_user.clone() };
        assert!(empty.open().expect_err("none").contains("first line"));
        let gone = LoginConfig { password_file: Some(dir.path().join("gone")), ..of_user };
        assert!(gone.open().expect_err("none").contains("can't be read"));
        assert_eq!(LoginConfig::mechanism_named("scram-sha-512"), Ok(Mechanism::ScramSha512));
        LoginConfig::mechanism_named("oauthbearer").expect_err("it is for tokens");
    }
}
