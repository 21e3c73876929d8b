//! The `[tls]` section.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dialer::DialerConfig;
use crate::limits::FURTHER_CERTIFICATES_MAX;

/// What a build without TLS says to whoever wants it.
pub(crate) const NO_TLS_IN_BUILD: &str = "but this build has no TLS: `make dist` makes target/dist/tailwater, which has it, \
    as has one of `cargo build --release -p tailwater --features tls`";

/// The certificates of a node, and which of its listeners use them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// A PEM file with the node's certificate, and behind it those between it and its CA. None is no TLS.
    pub certificate: Option<PathBuf>,
    /// A PEM file with its key. None is the file of the certificate.
    pub key: Option<PathBuf>,
    /// A PEM file with the CAs of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients show certificates.
    pub client_certificates: ClientCertificates,
    /// A PEM file with the CAs of what the node connects to. None is `client_ca`.
    pub ca: Option<PathBuf>,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// Which listeners are encrypted that do not say.
    pub listeners: SecuredListeners,
    /// Further certificates, each for clients that ask for one of its names. All others get the first one above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<FurtherCertificate>,
}

/// A certificate for clients that ask for one of its names (SNI).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FurtherCertificate {
    /// A PEM file with the certificate, and behind it those between it and its CA.
    pub certificate: PathBuf,
    /// A PEM file with its key. None is the file of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Nobody is asked for one.
    #[default]
    None,
    /// Whoever shows one is known by it, and it has to be of one of the CAs.
    Optional,
    /// Nobody comes in without one.
    Required,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsVersion {
    /// 1.2, for old clients.
    #[serde(rename = "1.2")]
    V12,
    /// 1.3.
    #[default]
    #[serde(rename = "1.3")]
    V13,
}

/// Which listeners are encrypted that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecuredListeners {
    /// All of them.
    #[default]
    All,
    /// None: those are that say `tls = true`.
    Named,
}

/// What is wrong with certificates, with the file that has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub String);

impl TlsConfig {
    /// Whether a listener that says `tls` of itself, or nothing, is encrypted.
    pub fn covers(&self, tls: Option<bool>) -> bool {
        let is_on = self.certificate.is_some();
        is_on && tls.unwrap_or(self.listeners == SecuredListeners::All)
    }

    /// Whether a listener for replicas is encrypted that says `tls` of itself, or nothing. They connect to each other,
    /// so one that says nothing is where there is a CA for that.
    pub fn covers_replicas(&self, tls: Option<bool>) -> bool {
        self.covers(tls) && self.dialer().ca.is_some()
    }

    /// Whom the node trusts where it connects, and that it shows its own certificate there.
    pub fn dialer(&self) -> DialerConfig {
        DialerConfig {
            ca: self.ca.clone().or_else(|| self.client_ca.clone()),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            names: Vec::new(),
        }
    }

    /// Whether the keys make sense together, for a build that `has_tls` or not; if not, which one does not and what to
    /// do. `listeners` are the listeners' sections, with what each says.
    ///
    /// # Errors
    /// That.
    pub fn check<'a>(
        &self,
        has_tls: bool,
        listeners: impl IntoIterator<Item = (&'a str, Option<bool>)>,
    ) -> Result<(), String> {
        if self.certificates.len() > FURTHER_CERTIFICATES_MAX {
            return Err(format!(
                "[[tls.certificates]] are {}, and {FURTHER_CERTIFICATES_MAX} at most: one certificate may have many names",
                self.certificates.len()
            ));
        }
        if self.certificate.is_none() {
            if let Some(further) = self.certificates.first() {
                return Err(format!(
                    "[[tls.certificates]] certificate = {:?} is for some names, and [tls] has no certificate for all \
                     others: add certificate = \"FILE\" there",
                    further.certificate
                ));
            }
            for (name, given) in [("key", &self.key), ("client_ca", &self.client_ca)] {
                if let Some(path) = given {
                    return Err(format!(
                        "[tls] {name} = {path:?} is of no use without a certificate: add certificate = \"FILE\", or \
                         leave [tls] out"
                    ));
                }
            }
            if let Some((section, _)) = listeners.into_iter().find(|(_, tls)| *tls == Some(true)) {
                return Err(format!(
                    "{section} has tls = true, but there is no certificate: write certificate = \"FILE\" and key = \
                     \"FILE\" below [tls]; `tailwater init --tls` makes both"
                ));
            }
        }
        if self.client_certificates != ClientCertificates::None && self.client_ca.is_none() {
            return Err(
                "[tls] client_certificates asks clients for certificates, and nothing says whose are good: add client_ca = \
                 \"FILE\", or use \"none\""
                    .to_owned(),
            );
        }
        if self.client_certificates == ClientCertificates::None && self.client_ca.is_some() {
            return Err(
                "[tls] client_ca says whose certificates of clients are good, and nobody is asked for one: add \
                 client_certificates = \"optional\" or \"required\", or leave it out"
                    .to_owned(),
            );
        }
        match (self.certificate.is_some() || self.ca.is_some()) && !has_tls {
            true => Err(format!("[tls] names a certificate, {NO_TLS_IN_BUILD}; or leave [tls] out")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_certificate() -> TlsConfig {
        TlsConfig { certificate: Some("node.pem".into()), ..TlsConfig::default() }
    }

    #[test]
    fn a_listener_that_says_nothing_does_as_all_do_and_one_that_says_something_does_that() {
        let mut config = with_certificate();
        assert_eq!([None, Some(true), Some(false)].map(|tls| config.covers(tls)), [true, true, false]);
        config.listeners = SecuredListeners::Named;
        assert_eq!([None, Some(true), Some(false)].map(|tls| config.covers(tls)), [false, true, false]);
        let none = TlsConfig::default();
        assert_eq!([None, Some(false)].map(|tls| none.covers(tls)), [false, false]);
    }

    #[test]
    fn keys_that_make_no_sense_together_are_refused_with_what_to_write() {
        let refusal = |change: fn(&mut TlsConfig), tls| {
            let mut config = TlsConfig::default();
            change(&mut config);
            config.check(true, [("[kafka]", tls)]).expect_err("refused")
        };
        let text = refusal(|_| {}, Some(true));
        assert!(text.contains("[kafka] has tls = true") && text.contains("tailwater init --tls"), "{text}");
        let text = refusal(|config| config.key = Some("node.key".into()), None);
        assert!(text.contains("[tls] key") && text.contains("add certificate"), "{text}");
        let required = |config: &mut TlsConfig| {
            *config = with_certificate();
            config.client_certificates = ClientCertificates::Required;
        };
        assert!(refusal(required, None).contains("add client_ca"));
        let unused = |config: &mut TlsConfig| {
            *config = with_certificate();
            config.client_ca = Some("ca.pem".into());
        };
        assert!(refusal(unused, None).contains("add client_certificates"));
        with_certificate().check(true, [("[kafka]", Some(true)), ("[sqs]", None)]).expect("it makes sense");
    }

    #[test]
    fn a_build_without_tls_refuses_a_certificate_and_says_how_to_get_one_that_has_it() {
        TlsConfig::default().check(false, []).expect("nothing is wanted");
        let text = with_certificate().check(false, []).expect_err("refused");
        assert!(text.contains("make dist") && text.contains("--features tls"), "{text}");
    }
}
