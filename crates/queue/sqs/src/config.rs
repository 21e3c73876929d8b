//! How the node speaks SQS's protocol, and what an account may use.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tailwater_access::SecretText;

/// The `[sqs]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SqsConfig {
    /// Whether it is spoken at all.
    pub enabled: bool,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Whether connections are encrypted; if not said, as `[tls]` has it.
    pub tls: Option<bool>,
    /// The `http://host:port` in the addresses of queues; empty is the one at which the client reached the node.
    pub advertised: String,
    /// The region in the names (ARNs) of queues. Requests may be signed for any.
    pub region: String,
    /// Whether every request has to be signed, also as long as there is no account: nobody is let in then.
    pub login: bool,
    /// The account of whoever asks, where there are no accounts.
    pub account: String,
    /// Connections at the same time.
    pub connections_max: usize,
    /// Connections at the same time from one address: of IPv6, from one network of 64 bits.
    pub connections_per_address_max: usize,
    /// Bytes of one request's body. A message of 1 MiB takes up to 6 in JSON.
    pub body_bytes_max: usize,
    /// Bytes of all bodies at the same time; beyond it connections are not read.
    pub bodies_bytes_max: usize,
    /// Bytes of all answers that were made and not sent; beyond it no further messages are read.
    pub answers_bytes_max: usize,
    /// A connection without a request for so many milliseconds is closed.
    pub idle_ms: u64,
    /// A request's head has to come within so many milliseconds: from its first byte on, or from the connection's begin
    /// as long as nobody has asked anything over it. Of a body, something has to come as often.
    pub head_ms: u64,
    /// A body has to come, and an answer to go, within so many milliseconds.
    pub stalled_ms: u64,
    /// Accounts, besides those that are made while the node runs. With any, every request has to be signed with a key
    /// of one of them; without, signatures are not looked at, and everybody is `account`.
    pub accounts: Vec<AccountConfig>,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountConfig {
    /// Its number: 12 digits.
    pub id: String,
    /// What its requests are signed with.
    pub keys: Vec<KeyConfig>,
    /// Requests a second, at all front ends of its queues together; 0 is any number.
    #[serde(default)]
    pub requests_per_s: u64,
    /// Bytes of requests a second, at all of them; 0 is any number.
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Queues; 0 is any number.
    #[serde(default)]
    pub queues_max: usize,
    /// Messages in flight, in all its queues; 0 is any number.
    #[serde(default)]
    pub in_flight_max: u64,
    /// Receives that wait at the same time at one front end; 0 is a half of `connections_max`.
    #[serde(default)]
    pub waiting_max: usize,
}

/// An access key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// The access key's id.
    pub id: String,
    /// The secret.
    #[serde(default)]
    pub secret: SecretText,
    /// A file that has the secret in its first line. Whoever starts the node reads it into `secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
}

impl KeyConfig {
    /// One whose secret is this text.
    pub fn new(id: &str, secret: &str) -> Self {
        Self { id: id.to_owned(), secret: SecretText::new(secret), secret_file: None }
    }
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9324)),
            tls: None,
            advertised: String::new(),
            region: "us-east-1".to_owned(),
            login: false,
            account: "000000000000".to_owned(),
            connections_max: 10_000,
            connections_per_address_max: 5_000,
            body_bytes_max: 8 << 20,
            bodies_bytes_max: 256 << 20,
            answers_bytes_max: 256 << 20,
            idle_ms: 600_000,
            head_ms: 10_000,
            stalled_ms: 60_000,
            accounts: Vec::new(),
        }
    }
}

impl SqsConfig {
    /// Whether every field lies in its bounds; if not, which one does not and what to do.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(format!("[sqs] {name} = {given} is not between {min} and {max}")),
        };
        within("connections_max", self.connections_max as u64, 1, 1_000_000)?;
        within("connections_per_address_max", self.connections_per_address_max as u64, 1, 1_000_000)?;
        within("body_bytes_max", self.body_bytes_max as u64, 64 << 10, 64 << 20)?;
        within("bodies_bytes_max", self.bodies_bytes_max as u64, self.body_bytes_max as u64, 1 << 40)?;
        within("answers_bytes_max", self.answers_bytes_max as u64, 1 << 20, 1 << 40)?;
        within("idle_ms", self.idle_ms, 100, u64::MAX >> 1)?;
        within("head_ms", self.head_ms, 100, u64::from(u32::MAX))?;
        within("stalled_ms", self.stalled_ms, 100, u64::from(u32::MAX))?;
        check_account("account", &self.account)?;
        if self.region.is_empty()
            || !self.region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(format!("[sqs] region = {:?} is none, as us-east-1 is one", self.region));
        }
        if !self.advertised.is_empty() && !self.advertised.starts_with("http") {
            return Err(format!("[sqs] advertised = {:?} is no http://host:port", self.advertised));
        }
        let mut ids = std::collections::BTreeSet::new();
        let mut keys = std::collections::BTreeSet::new();
        for account in &self.accounts {
            check_account("accounts: id", &account.id)?;
            if !ids.insert(&account.id) {
                return Err(format!("[sqs] accounts: {} is there twice", account.id));
            }
            if account.keys.is_empty() {
                return Err(format!("[sqs] accounts: {} has no keys, so nobody could use it", account.id));
            }
            for key in &account.keys {
                if key.id.is_empty() || (key.secret.is_empty() && key.secret_file.is_none()) {
                    return Err(format!(
                        "[sqs] accounts: {} has a key without id or secret: write id = \"...\" and secret_file = \"FILE\", \
                         or secret = \"...\"",
                        account.id
                    ));
                }
                if !keys.insert(&key.id) {
                    return Err(format!("[sqs] accounts: the key {} is there twice", key.id));
                }
            }
        }
        Ok(())
    }
}

/// Whether an account can be called so; why not.
pub(crate) fn check_account(name: &str, id: &str) -> Result<(), String> {
    match id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(()),
        false => Err(format!("[sqs] {name} = {id:?} is not a number of 12 digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lies_within_its_own_bounds_and_what_does_not_is_named() {
        SqsConfig::default().check().expect("in bounds");
        let config = SqsConfig { account: "12".to_owned(), ..SqsConfig::default() };
        assert!(config.check().unwrap_err().contains("12 digits"));
        let config = SqsConfig { idle_ms: 1, ..SqsConfig::default() };
        assert!(config.check().unwrap_err().contains("idle_ms = 1"));
    }

    #[test]
    fn a_key_has_a_secret_or_a_file_with_it_and_its_secret_is_not_shown() {
        let mut config = SqsConfig::default();
        let key = KeyConfig::new("AKIA", "hidden");
        config.accounts.push(AccountConfig {
            id: "123456789012".to_owned(),
            keys: vec![key],
            requests_per_s: 0,
            bytes_per_s: 0,
            queues_max: 0,
            in_flight_max: 0,
            waiting_max: 0,
        });
        config.check().expect("it has one");
        let shown = format!("{config:?}");
        assert!(shown.contains("AKIA") && !shown.contains("hidden"), "{shown}");
        let key = &mut config.accounts[0].keys[0];
        key.secret = SecretText::default();
        assert!(config.check().expect_err("without").contains("secret_file = \"FILE\""));
        config.accounts[0].keys[0].secret_file = Some("key".into());
        config.check().expect("whoever starts it reads the file");
    }
}
