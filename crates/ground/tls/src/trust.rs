//! Whom a client of ours trusts, and what it shows: read from files, and again when they have changed.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tailwater_env::{Env, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::by_name::certificates;
use crate::certificates::{EnvTime, read_file};
use crate::config::TlsError;
use crate::dialer::{DialError, DialerConfig};
use crate::limits::{HANDSHAKE_DEADLINE, LOOK_EVERY};
use crate::stream::PeerStream;

/// Whom a client trusts, and what it shows.
pub(crate) struct Trust {
    env: Env,
    config: DialerConfig,
    current: Mutex<TrustLoaded>,
}

/// As the files had it.
struct TrustLoaded {
    client: Arc<ClientConfig>,
    looked_at: Instant,
    fingerprint: u64,
}

/// The contents of the files.
struct TrustFiles {
    ca: Vec<u8>,
    /// A certificate and its key.
    shown: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Trust {
    pub(crate) fn open(env: &Env, config: &DialerConfig) -> Result<Self, TlsError> {
        let files = TrustFiles::read(env, config)?;
        let loaded = TrustLoaded {
            client: files.load(env, config)?,
            looked_at: env.now(),
            fingerprint: files.fingerprint(),
        };
        Ok(Self { env: env.clone(), config: config.clone(), current: Mutex::new(loaded) })
    }

    pub(crate) async fn secure(&self, tcp: TcpStream, host: &str) -> Result<PeerStream, DialError> {
        let connector = TlsConnector::from(self.client());
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| DialError::Refused(format!("{host:?} is no name that a certificate can be for")))?;
        match self.env.timeout(HANDSHAKE_DEADLINE, connector.connect(name, tcp)).await {
            Some(Ok(stream)) => Ok(PeerStream::secured(stream, None)),
            Some(Err(error)) => {
                let known = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                Err(match (known, error.kind()) {
                    (Some(known), _) => DialError::Refused(refusal(known)),
                    (None, std::io::ErrorKind::UnexpectedEof) => DialError::Io(std::io::Error::new(
                        error.kind(),
                        "the connection was closed within the handshake: does this listener speak TLS?",
                    )),
                    (None, _) => DialError::Io(error),
                })
            }
            None => Err(DialError::Slow(HANDSHAKE_DEADLINE)),
        }
    }

    /// What new connections begin with: of the files as they are now, if these can be used.
    fn client(&self) -> Arc<ClientConfig> {
        let mut current = self.current.lock();
        let now = self.env.now();
        if now.since(current.looked_at) >= LOOK_EVERY {
            current.looked_at = now;
            // Of two files one may have been replaced so far.
            if let Ok(files) = TrustFiles::read(&self.env, &self.config)
                && files.fingerprint() != current.fingerprint
                && let Ok(client) = files.load(&self.env, &self.config)
            {
                current.client = client;
                current.fingerprint = files.fingerprint();
            }
        }
        Arc::clone(&current.client)
    }
}

impl TrustFiles {
    fn read(env: &Env, config: &DialerConfig) -> Result<Self, TlsError> {
        let read = |path: &Path| read_file(env, path).map_err(|why| TlsError(format!("{path:?} {why}")));
        let ca = read(config.ca.as_deref().unwrap_or(Path::new("")))?;
        let shown = match &config.certificate {
            None => None,
            Some(path) => Some((read(path)?, read(config.key.as_ref().unwrap_or(path))?)),
        };
        Ok(Self { ca, shown })
    }

    fn fingerprint(&self) -> u64 {
        let none = (Vec::new(), Vec::new());
        let (certificate, key) = self.shown.as_ref().unwrap_or(&none);
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        for file in [&self.ca, certificate, key] {
            hash.update(&(file.len() as u64).to_le_bytes());
            hash.update(file);
        }
        hash.digest()
    }

    fn load(&self, env: &Env, config: &DialerConfig) -> Result<Arc<ClientConfig>, TlsError> {
        let at =
            |path: Option<&Path>, why: String| TlsError(format!("{:?} {why}", path.unwrap_or(Path::new(""))));
        let in_ca = |why| at(config.ca.as_deref(), why);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca).map_err(in_ca)? {
            roots
                .add(certificate)
                .map_err(|why| in_ca(format!("has a certificate that is no CA's: {why}")))?;
        }
        let mut names = Vec::new();
        for name in &config.names {
            let parsed = ServerName::try_from(name.clone());
            names.push(parsed.map_err(|_| TlsError(format!("{name:?} is no name that a server can have")))?);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|why| in_ca(why.to_string()))?;
        let time = Arc::new(EnvTime(env.clone()));
        let builder = ClientConfig::builder_with_details(provider, time)
            .with_safe_default_protocol_versions()
            .map_err(|why| TlsError(why.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ByName { verifier, names }));
        let Some((certificate, key)) = &self.shown else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let path = config.certificate.as_deref();
        let key_path = config.key.as_deref().or(path);
        let chain = certificates(certificate).map_err(|why| at(path, why))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|why| at(key_path, format!("has no private key in PEM: {why}")))?;
        let client = builder.with_client_auth_cert(chain, key).map_err(|why| match why {
            rustls::Error::InconsistentKeys(_) => {
                at(key_path, "is not the key of the certificate".to_owned())
            }
            other => at(path, format!("can't be used: {other}")),
        })?;
        Ok(Arc::new(client))
    }
}

/// Takes a server's certificate that has the address at which it is reached, or one of some names.
#[derive(Debug)]
struct ByName {
    verifier: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for ByName {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        reached_at: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |name: &ServerName<'_>| self.verifier.verify_server_cert(leaf, between, name, ocsp, now);
        match verify(reached_at) {
            Err(
                error @ rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                ),
            ) => self.names.iter().find_map(|name| verify(name).ok()).ok_or(error),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// What went wrong with a connection, in words for who made it.
pub(crate) fn told(error: &std::io::Error) -> String {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    known.map_or_else(|| error.to_string(), refusal)
}

/// What went wrong, in words for who connects.
pub(crate) fn refusal(error: &rustls::Error) -> String {
    match error {
        // Of another CA of the same name.
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is of none of the CAs that are trusted here: is it the right server, and the right file of its CA?"
                .to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired: replace the server's files".to_owned(),
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected,
            presented,
        }) => format!(
            "its certificate is for {}, and not for {}: connect by one of these, or have one made that has it too",
            presented.join(", "),
            expected.to_str()
        ),
        rustls::Error::InvalidCertificate(why) => format!("its certificate is not taken: {why}"),
        rustls::Error::InvalidMessage(_) => {
            "what answers there speaks no TLS: leave the CA out, or have that listener speak it (`tls = true`)".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it lets nobody in without a certificate: name the file of one that its CA has signed".to_owned()
        }
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError),
        ) => format!("it does not take the certificate that is shown to it ({alert:?}): use one that its CA has signed"),
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "the certificate that is shown to it has expired: use another one".to_owned()
        }
        other => other.to_string(),
    }
}
