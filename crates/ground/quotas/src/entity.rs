//! Whom a quota is about, and what it bounds.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::limits::{QUOTA_MAX, QUOTA_NAME_BYTES_MAX};

/// What stands for everybody who has no quota of its own.
pub(crate) const EACH: &str = "*";

/// What a quota bounds, in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaBound {
    /// Bytes of requests that append.
    ProducerByteRate,
    /// Bytes of records that are read by requests.
    ConsumerByteRate,
    /// Requests, whatever they are.
    RequestRate,
    /// Connections that an address makes.
    ConnectionCreationRate,
}

impl QuotaBound {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::ProducerByteRate, Self::ConsumerByteRate, Self::RequestRate, Self::ConnectionCreationRate];

    /// The name, which is Kafka's where Kafka has such a bound.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProducerByteRate => "producer_byte_rate",
            Self::ConsumerByteRate => "consumer_byte_rate",
            Self::RequestRate => "request_rate",
            Self::ConnectionCreationRate => "connection_creation_rate",
        }
    }

    /// Whether a quota about this can have it.
    pub const fn is_of(self, entity: &QuotaEntity) -> bool {
        !matches!(self, Self::ConnectionCreationRate) || entity.ip.is_some()
    }

    /// The one with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bound| bound.name() == name)
    }
}

/// The bounds of one quota.
pub type QuotaBounds = BTreeMap<QuotaBound, u64>;

/// Whom a quota is about: a user, what a client calls itself, both, or an address. `*` stands for each one that has no
/// quota of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaEntity {
    /// The user, as the audit names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the client calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

impl fmt::Display for QuotaEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("user", &self.user), ("client", &self.client_id), ("address", &self.ip)];
        let mut said = parts.into_iter().filter_map(|(what, name)| Some((what, name.as_ref()?)));
        if let Some((what, name)) = said.next() {
            write!(f, "{what} {name}")?;
        }
        said.try_for_each(|(what, name)| write!(f, ", {what} {name}"))
    }
}

/// Why there is no such quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// One that can be none, or one too many.
    #[error("{0}")]
    Invalid(String),
    /// The metadata can't be read or written.
    #[error("{0}")]
    Unavailable(String),
}

impl QuotaEntity {
    /// The same, with its address in the form in which addresses are compared.
    ///
    /// # Errors
    /// Why a quota can't be about this.
    pub fn checked(mut self) -> Result<Self, QuotaError> {
        let invalid = |why: &str| Err(QuotaError::Invalid(why.to_owned()));
        let is_of_client = self.user.is_some() || self.client_id.is_some();
        match (&mut self.ip, is_of_client) {
            (None, false) => return invalid("a quota is about a user, a client's id, or an address"),
            (Some(_), true) => {
                return invalid("a quota is about an address, or about a user or a client's id");
            }
            (Some(ip), false) if ip != EACH => match ip.parse::<IpAddr>() {
                Ok(address) => *ip = tailwater_access::network(address).to_string(),
                Err(_) => return invalid("an address is one like 10.0.0.5, or * for each that has no quota"),
            },
            _ => {}
        }
        for name in [&self.user, &self.client_id].into_iter().flatten() {
            if name.is_empty() || name.len() > QUOTA_NAME_BYTES_MAX || name.contains('\0') {
                return Err(QuotaError::Invalid(format!(
                    "a name in a quota has 1 to {QUOTA_NAME_BYTES_MAX} bytes, none of them zero"
                )));
            }
        }
        Ok(self)
    }

    /// # Errors
    /// Why it can't be bounded so.
    pub(crate) fn check_bound(&self, bound: QuotaBound, most: Option<u64>) -> Result<(), QuotaError> {
        let invalid = |why: String| Err(QuotaError::Invalid(why));
        let name = bound.name();
        if !bound.is_of(self) {
            return invalid(format!("{name} is of an address, and not of a user or a client's id"));
        }
        match most {
            Some(most) if !(1..=QUOTA_MAX).contains(&most) => {
                invalid(format!("{name} is a number from 1 to {QUOTA_MAX}, and not {most}"))
            }
            _ => Ok(()),
        }
    }
}
