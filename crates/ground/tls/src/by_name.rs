//! The certificate that a client is shown: of the further ones the first that has the name which the client asks for,
//! and else the node's first one.

use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate as ServerCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::config::TlsError;
use crate::parsed::ParsedCertificate;

/// All certificates of a node.
#[derive(Debug)]
pub(crate) struct CertifiedByName {
    pub(crate) first: Arc<CertifiedKey>,
    pub(crate) further: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for CertifiedByName {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = client.server_name().and_then(|name| ServerName::try_from(name).ok());
        let has_it = asked.and_then(|name| self.further.iter().find(|further| is_for(further, &name)));
        Some(Arc::clone(has_it.unwrap_or(&self.first)))
    }
}

fn is_for(certified: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let own = certified.end_entity_cert().and_then(ServerCertificate::try_from);
    own.is_ok_and(|own| verify_server_name(&own, name).is_ok())
}

/// What a file has, and how the configuration names it: its section and key.
pub(crate) struct NamedFile<'a> {
    pub(crate) section: &'static str,
    pub(crate) key: &'static str,
    pub(crate) path: &'a Path,
    pub(crate) pem: &'a [u8],
}

impl NamedFile<'_> {
    fn error(&self, why: &str) -> TlsError {
        TlsError(format!("{} {} = {:?} {why}", self.section, self.key, self.path))
    }
}

/// A certificate with its key, ready for handshakes.
pub(crate) struct Certified {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) own: ParsedCertificate,
    /// When the first of the chain ends, in milliseconds since the Unix epoch.
    pub(crate) expires_ms: i64,
}

impl Certified {
    /// Reads both.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub(crate) fn read(
        provider: &CryptoProvider,
        certificate: &NamedFile<'_>,
        key: &NamedFile<'_>,
    ) -> Result<Self, TlsError> {
        let chain = certificates(certificate.pem).map_err(|why| certificate.error(&why))?;
        let parsed = chain.iter().map(|der| ParsedCertificate::of(der));
        let parsed = parsed.collect::<Result<Vec<_>, _>>().map_err(|why| certificate.error(&why))?;
        let expires_ms = parsed.iter().map(|parsed| parsed.not_after_ms).min().unwrap_or(0);
        let own = parsed.into_iter().next().ok_or_else(|| certificate.error("has no certificate"))?;
        let secret = PrivateKeyDer::from_pem_slice(key.pem)
            .map_err(|why| key.error(&format!("has no private key in PEM: {why}")))?;
        let certified = CertifiedKey::from_der(chain, secret, provider).map_err(|why| match why {
            rustls::Error::InconsistentKeys(_) => key.error("is not the key of the certificate"),
            other => certificate.error(&format!("can't be used: {other}")),
        })?;
        Ok(Self { key: Arc::new(certified), own, expires_ms })
    }
}

/// The certificates of a PEM file, of which there is one at least.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|why| format!("is no PEM: {why}"))?;
    if found.is_empty() { Err("has no certificate in PEM".to_owned()) } else { Ok(found) }
}
