//! `[access]`: who may do what.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tailwater_login::Tokens;
use tailwater_permissions::{Enforcement, SubjectMapping};

/// Who may do what.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// What the rules of `tailwater acl` are for: `off`, `report`, `enforce`.
    pub rules: Enforcement,
    /// Who may do everything, rules or not: names of users, subjects of certificates.
    pub super_users: Vec<String>,
    /// Which user whoever shows a certificate is taken for by rules; the first that is about its subject.
    pub certificates: Vec<SubjectMapping>,
    /// File of the audit, in lines of JSON; if not said, `audit.jsonl` in the data directory. With rules that are off
    /// there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<PathBuf>,
    /// A stream that has the audit as well, a record of JSON for each event. Somebody else creates it, and keeps others
    /// from writing to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_stream: Option<String>,
    /// An issuer elsewhere whose tokens are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtConfig>,
}

/// An issuer of JSON Web Tokens. Whoever shows one is `jwt:` and its `sub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JwtConfig {
    /// The `iss` of its tokens.
    pub issuer: String,
    /// One of what the `aud` of its tokens has.
    pub audience: Vec<String>,
    /// File or URL with its keys, a JWKS.
    pub jwks: String,
    /// File in PEM with the CA of that URL; if not said, the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl AccessConfig {
    /// Whether one of the super users can show a certificate: those have subjects and alternative names, which have
    /// a sign that users' names can't have.
    pub(crate) fn has_certified_super_user(&self) -> bool {
        let is_of_certificate = |name: &String| {
            name.contains(['=', ':']) && !name.starts_with("uid:") && !Tokens::is_principal(name)
        };
        self.super_users.iter().any(is_of_certificate)
    }
}
