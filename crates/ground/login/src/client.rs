//! The client's side of a login: SCRAM (RFC 5802, RFC 7677) without channel binding, PLAIN (RFC 4616) and OAUTHBEARER
//! (RFC 7628). Messages in, messages out, whatever the protocol that carries them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tailwater_access::{SecretText, are_same};
use tailwater_env::Env;

use crate::hash::Hash;
use crate::limits::{ITERATIONS_ASKED_MAX, ITERATIONS_MIN, SALT_BYTES_MAX};
use crate::mechanism::Mechanism;

/// Bytes of chance in a nonce.
const NONCE_WORDS: usize = 3;

/// What a client logs in with. The secret is in nothing that is printed of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLogin {
    /// Empty for a token.
    user: String,
    secret: SecretText,
    mechanism: Mechanism,
}

/// A login that a client has begun. After an error, or its end, it is over.
#[derive(Debug)]
pub struct ClientExchange {
    state: ExchangeState,
}

#[derive(Debug)]
enum ExchangeState {
    /// This is sent, and the server has nothing to say to it.
    One(SecretText),
    ScramFirst(ScramClient),
    ScramChallenge(ScramClient),
    /// The server has to show this.
    ScramLast(Vec<u8>),
    /// What the server says to the only message is not looked at.
    Sent,
    Over,
}

#[derive(Debug)]
struct ScramClient {
    hash: Hash,
    password: SecretText,
    nonce: String,
    /// What both sides sign of the first message.
    bare: String,
}

impl ClientLogin {
    /// A user's name and password, and how the user shows that it knows it: SCRAM, where both sides do and nobody is
    /// sent the password, or PLAIN.
    ///
    /// # Errors
    /// A name or a password that is none, and a mechanism that is for tokens.
    pub fn of_user(user: &str, password: SecretText, mechanism: Mechanism) -> Result<Self, String> {
        if user.is_empty() || password.is_empty() {
            return Err("a login has a user's name and a password, and neither is empty".to_owned());
        }
        if user.contains('\0') || password.text().contains('\0') {
            return Err("a user's name and a password have no zero bytes".to_owned());
        }
        if mechanism == Mechanism::OAuthBearer {
            return Err("OAUTHBEARER is for tokens, and not for passwords".to_owned());
        }
        Ok(Self { user: user.to_owned(), secret: password, mechanism })
    }

    /// A token.
    ///
    /// # Errors
    /// An empty one, and one with bytes that no token has.
    pub fn of_token(token: SecretText) -> Result<Self, String> {
        match token.text() {
            "" => Err("the token is empty".to_owned()),
            text if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Self { user: String::new(), secret: token, mechanism: Mechanism::OAuthBearer })
            }
            _ => Err("a token has only letters, digits and signs of ASCII".to_owned()),
        }
    }

    /// The user's name; `None` for a token.
    pub fn user(&self) -> Option<&str> {
        Some(&*self.user).filter(|user| !user.is_empty())
    }

    /// The password, or the token, for whoever has to show it in another way.
    pub fn secret(&self) -> &SecretText {
        &self.secret
    }

    /// How it proves who it is.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Begins a login over a connection. `is_private`: nobody else reads what goes over it.
    ///
    /// # Errors
    /// A connection over which what is sent could be read by others.
    pub fn begin(&self, env: &Env, is_private: bool) -> Result<ClientExchange, String> {
        if self.mechanism.shows_password() && !is_private {
            return Err(match self.mechanism {
                Mechanism::OAuthBearer => {
                    "a token is sent in TLS only: use an address of tls:IP:PORT, or a Unix socket".to_owned()
                }
                _ => "PLAIN sends the password, and does so in TLS only: use an address of tls:IP:PORT, or SCRAM"
                    .to_owned(),
            });
        }
        let state = match self.mechanism.hash() {
            Some(hash) => {
                let random: Vec<u8> = (0..NONCE_WORDS).flat_map(|_| env.random_u64().to_le_bytes()).collect();
                let nonce = STANDARD.encode(random);
                ExchangeState::ScramFirst(ScramClient::new(hash, self, nonce))
            }
            None if self.mechanism == Mechanism::OAuthBearer => {
                let message = format!("n,,\x01auth=Bearer {}\x01\x01", self.secret.text());
                ExchangeState::One(SecretText::new(&message))
            }
            None => ExchangeState::One(SecretText::new(&format!("\0{}\0{}", self.user, self.secret.text()))),
        };
        Ok(ClientExchange { state })
    }
}

impl ClientExchange {
    /// What is sent next, behind what the server has said; `None` once the server is known to let the client in, as far
    /// as the client can tell. Takes milliseconds where a password is hashed.
    ///
    /// # Errors
    /// What is wrong with what the server has said.
    pub fn next(&mut self, said: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
        let text = || std::str::from_utf8(said).map_err(|_| "its answer is no text");
        match std::mem::replace(&mut self.state, ExchangeState::Over) {
            ExchangeState::One(message) => {
                self.state = ExchangeState::Sent;
                Ok(Some(message.text().into()))
            }
            ExchangeState::Sent => Ok(None),
            ExchangeState::ScramFirst(client) => {
                let message = format!("n,,{}", client.bare);
                self.state = ExchangeState::ScramChallenge(client);
                Ok(Some(message.into()))
            }
            ExchangeState::ScramChallenge(client) => {
                let (message, shown) = client.answer(text()?)?;
                self.state = ExchangeState::ScramLast(shown);
                Ok(Some(message.into()))
            }
            ExchangeState::ScramLast(shown) => {
                let value = text()?.split(',').next().and_then(|first| first.strip_prefix("v="));
                let value = value.and_then(|value| STANDARD.decode(value).ok());
                match value.is_some_and(|value| are_same(&value, &shown)) {
                    true => Ok(None),
                    false => Err("it does not show that it knows the user: it may be somebody else"),
                }
            }
            ExchangeState::Over => Err("the login is over"),
        }
    }
}

impl ScramClient {
    fn new(hash: Hash, login: &ClientLogin, nonce: String) -> Self {
        let bare = format!("n={},r={nonce}", escaped(&login.user));
        Self { hash, password: login.secret.clone(), nonce, bare }
    }

    /// What answers a challenge, and what the server is to show then.
    fn answer(&self, challenge: &str) -> Result<(String, Vec<u8>), &'static str> {
        let mut attributes = challenge.split(',');
        let mut attribute = |name| attributes.next().and_then(|attribute| attribute.strip_prefix(name));
        let nonce = attribute("r=").ok_or("its challenge has no nonce")?;
        let salt = attribute("s=").ok_or("its challenge has no salt")?;
        let iterations = attribute("i=").and_then(|iterations| iterations.parse::<u32>().ok());
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err("its nonce is not made of the one that it was sent");
        }
        let salt = STANDARD.decode(salt).ok().filter(|salt| (1..=SALT_BYTES_MAX).contains(&salt.len()));
        let salt = salt.ok_or("its salt is none")?;
        // With few a password could be guessed from what is answered.
        let iterations = iterations
            .filter(|iterations| (ITERATIONS_MIN..=ITERATIONS_ASKED_MAX).contains(iterations))
            .ok_or("it asks for too few iterations, or for too many")?;
        let salted = self.hash.salted(self.password.text().as_bytes(), &salt, iterations);
        let client = self.hash.mac(&salted, b"Client Key");
        let unsigned = format!("c=biws,r={nonce}");
        let signed = format!("{},{challenge},{unsigned}", self.bare);
        let signature = self.hash.mac(&self.hash.digest(&client), signed.as_bytes());
        let proof: Vec<u8> = client.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        let shown = self.hash.mac(&self.hash.mac(&salted, b"Server Key"), signed.as_bytes());
        Ok((format!("{unsigned},p={}", STANDARD.encode(proof)), shown))
    }
}

/// A name without commas and equals signs.
fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_user(mechanism: Mechanism) -> ClientLogin {
        ClientLogin::of_user("user", SecretText::new("pencil"), mechanism).expect("a login")
    }

    /// The dialogue of RFC 7677, section 3.
    #[test]
    fn the_client_says_what_the_specification_has_it_say() {
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let client = ScramClient::new(Hash::Sha256, &of_user(Mechanism::ScramSha256), nonce);
        let mut exchange = ClientExchange { state: ExchangeState::ScramFirst(client) };
        let mut next = |said: &str| {
            let next = exchange.next(said.as_bytes());
            next.map(|next| next.map(|next| String::from_utf8(next).expect("text")))
        };
        assert_eq!(next(""), Ok(Some("n,,n=user,r=rOprNGfwEbeRWgbNEkqO".to_owned())));
        let challenge =
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(next(challenge), Ok(Some(last.to_owned())));
        assert_eq!(next("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(None));
        assert!(next("").is_err(), "it is over");
    }

    #[tokio::test]
    async fn a_server_that_does_not_know_the_user_or_asks_for_what_gives_the_password_away_is_not_gone_on_with()
     {
        let env = Env::real();
        let begun = || {
            let mut exchange =
                of_user(Mechanism::ScramSha512).begin(&env, false).expect("SCRAM goes anywhere");
            let first = exchange.next(b"").expect("a message").expect("a message");
            let nonce =
                String::from_utf8(first).expect("text").split_once(",r=").expect("a nonce").1.to_owned();
            (exchange, nonce)
        };
        for (challenge, named) in [
            ("", "no nonce"),
            ("r=NONCE,s=AAAA,i=4096", "made of"),
            ("r=otherNONCE,s=AAAA,i=4096", "made of"),
            ("r=NONCEx", "no salt"),
            ("r=NONCEx,s=!,i=4096", "its salt"),
            ("r=NONCEx,s=AAAA", "iterations"),
            ("r=NONCEx,s=AAAA,i=1", "iterations"),
            ("r=NONCEx,s=AAAA,i=100001", "iterations"),
        ] {
            let (mut exchange, nonce) = begun();
            let why = exchange.next(challenge.replace("NONCE", &nonce).as_bytes()).expect_err(challenge);
            assert!(why.contains(named), "{challenge}: {why}");
        }
        for shown in ["", "v=", "e=other-error", "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="] {
            let (mut exchange, nonce) = begun();
            exchange.next(format!("r={nonce}x,s=AAAA,i=4096").as_bytes()).expect("a challenge");
            assert!(exchange.next(shown.as_bytes()).expect_err(shown).contains("somebody else"), "{shown}");
        }
    }

    #[tokio::test]
    async fn what_shows_a_secret_is_sent_where_nobody_else_reads_it_and_is_printed_nowhere() {
        let env = Env::real();
        let plain = of_user(Mechanism::Plain);
        let token = ClientLogin::of_token(SecretText::new("tw.ci.pencil")).expect("a token");
        for login in [&plain, &token] {
            assert!(login.begin(&env, false).expect_err("refused").contains("in TLS only"));
            let mut exchange = login.begin(&env, true).expect("fine");
            assert!(!format!("{login:?} {exchange:?}").contains("pencil"), "{exchange:?}");
            let message =
                String::from_utf8(exchange.next(b"").expect("begun").expect("a message")).expect("text");
            assert!(message.contains("pencil"), "{message:?}");
            assert_eq!(exchange.next(b""), Ok(None));
        }
        let scram = of_user(Mechanism::ScramSha256).begin(&env, true).expect("fine");
        assert!(!format!("{scram:?}").contains("pencil"), "{scram:?}");
    }

    #[test]
    fn a_name_with_what_separates_attributes_is_escaped() {
        let login =
            ClientLogin::of_user("a=b,c", SecretText::new("pencil"), Mechanism::ScramSha256).expect("fine");
        assert_eq!(ScramClient::new(Hash::Sha256, &login, "nonce".to_owned()).bare, "n=a=3Db=2Cc,r=nonce");
    }

    #[test]
    fn what_can_be_no_login_is_refused_with_what_is_wrong() {
        for (user, password) in [("", "pencil"), ("user", ""), ("us\0er", "pencil"), ("user", "pen\0cil")] {
            ClientLogin::of_user(user, SecretText::new(password), Mechanism::Plain).expect_err(user);
        }
        for token in ["", "two words", "tw.ci.\u{fc}"] {
            ClientLogin::of_token(SecretText::new(token)).expect_err(token);
        }
    }
}
