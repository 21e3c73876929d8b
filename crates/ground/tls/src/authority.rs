//! A CA of one's own, and the certificates that it issues: for who has none yet.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::OffsetDateTime;

use crate::config::TlsError;

/// How long a CA is good.
const CA_DAYS: i64 = 3_650;

/// How long what it issues is good: the longest that all systems take.
pub const ISSUED_DAYS: i64 = 825;

/// What makes certificates good a little before they are made: clocks differ.
const SKEW_S: i64 = 3_600;

/// A CA, with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// Its key, in PEM: whoever has it makes certificates that are taken.
    pub key: String,
}

/// A certificate with its key, both in PEM.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// Who a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateWanted {
    /// The subject's common name.
    pub name: String,
    /// The DNS names and IP addresses by which others reach who has it.
    pub hosts: Vec<String>,
    /// Whether others connect to it, or it only connects to others.
    pub is_server: bool,
    /// For how many days it is good; it may be over already.
    pub days: i64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}

impl Authority {
    /// A new CA, called `name`, at `now_ms` since the Unix epoch.
    ///
    /// # Errors
    /// Where the system has no randomness for a key.
    pub fn create(name: &str, now_ms: i64) -> Result<Self, TlsError> {
        let mut params = params(name, &[], CA_DAYS, now_ms)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        let text = key.serialize_pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate, key: text })
    }

    /// One that was made before, of its certificate and its key in PEM.
    ///
    /// # Errors
    /// What is no certificate, or no key.
    pub fn load(certificate: &str, key: &str) -> Result<Self, TlsError> {
        let pair = KeyPair::from_pem(key).map_err(|why| TlsError(format!("the CA's key is none: {why}")))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair)
            .map_err(|why| TlsError(format!("the CA's certificate is none: {why}")))?;
        Ok(Self { issuer, certificate: certificate.to_owned(), key: key.to_owned() })
    }

    /// Issues a certificate at `now_ms` since the Unix epoch.
    ///
    /// # Errors
    /// A host that is neither a name nor an address.
    pub fn issue(&self, wanted: &CertificateWanted, now_ms: i64) -> Result<Issued, TlsError> {
        let mut params = params(&wanted.name, &wanted.hosts, wanted.days, now_ms)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match wanted.is_server {
            // A node connects to others as well.
            true => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            false => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}

fn params(name: &str, hosts: &[String], days: i64, now_ms: i64) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(hosts)
        .map_err(|why| TlsError(format!("{hosts:?} has a name that no certificate can have: {why}")))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now_s = now_ms / 1_000;
    let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).map_err(failed);
    let end_s = now_s + days * 86_400;
    params.not_before = at((now_s - SKEW_S).min(end_s - SKEW_S))?;
    params.not_after = at(end_s)?;
    Ok(params)
}

fn failed(why: impl std::fmt::Display) -> TlsError {
    TlsError(format!("no certificate can be made: {why}"))
}
