//! How clients prove who they are, by the names that SASL has for it.

use crate::hash::Hash;

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// It sends its password (RFC 4616).
    Plain,
    /// Both prove that they know it (RFC 7677).
    ScramSha256,
    /// The same with another hash.
    ScramSha512,
    /// It shows a token (RFC 7628).
    OAuthBearer,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::ScramSha256, Self::ScramSha512, Self::OAuthBearer];

    /// What clients call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OAuthBearer => "OAUTHBEARER",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Whether it shows the password, or the token, to everybody on the way, where the connection is not encrypted.
    pub fn shows_password(self) -> bool {
        matches!(self, Self::Plain | Self::OAuthBearer)
    }

    pub(crate) fn hash(self) -> Option<Hash> {
        match self {
            Self::ScramSha256 => Some(Hash::Sha256),
            Self::ScramSha512 => Some(Hash::Sha512),
            Self::Plain | Self::OAuthBearer => None,
        }
    }
}
