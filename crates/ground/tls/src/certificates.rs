//! The certificates of a node: read from files, used for handshakes, read again when the files change.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use tailwater_env::{Complaints, Env, OpenMode, Task};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::acceptor::HandshakeError;
use crate::by_name::{Certified, CertifiedByName, NamedFile, certificates};
use crate::config::{ClientCertificates, FurtherCertificate, TlsConfig, TlsError, TlsVersion};
use crate::limits::{EXPIRY_WARNING, FILE_BYTES_MAX, HANDSHAKE_DEADLINE, HANDSHAKES_MAX, LOOK_EVERY};
use crate::parsed::ParsedCertificate;
use crate::stats::TlsStats;
use crate::stream::PeerStream;

/// How often it is said that a certificate ends soon.
const EXPIRY_TOLD_EVERY: Duration = Duration::from_secs(86_400);

/// How the configuration names what files are in.
const FIRST: &str = "[tls]";
const FURTHER: &str = "[[tls.certificates]]";

/// What the beginning of a client's bytes is looked at for.
const OPENING_BYTES: usize = 8;

/// Bytes that a client has sent without TLS, and that are taken off before it is told that this is TLS.
const DISCARDED_BYTES: usize = 16 << 10;

/// A node's certificates, and those of the CAs of its clients. All listeners of a node share them, and the bound on
/// handshakes at the same time.
pub struct Certificates {
    env: Env,
    config: TlsConfig,
    current: RwLock<Arc<Loaded>>,
    /// What the files had when they were last looked at, whether it could be used or not.
    looked_at: Mutex<u64>,
    /// Whether they could not be read then, which is told once.
    is_unreadable: AtomicBool,
    /// Whoever watches the files is to look now.
    look: Notify,
    turns: Semaphore,
    complaints: Complaints,
    counters: [AtomicU64; 4],
}

/// Where each figure of [`TlsStats`] is counted.
#[derive(Clone, Copy)]
enum TlsCount {
    Handshakes,
    Failed,
    Reloads,
    ReloadsFailed,
}

/// What new connections begin with.
struct Loaded {
    server: Arc<ServerConfig>,
    own: ParsedCertificate,
    /// When the first of all certificates ends, and whose chain it is in: its subject.
    expires_ms: i64,
    expires_first: String,
}

/// The contents of the files.
struct CertificateFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    /// Each further certificate, and its key.
    further: Vec<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Those that the configuration names, if it names any. Reads the files, which blocks.
    ///
    /// # Errors
    /// A file that can't be read, has no certificate or no key, or has one that does not belong to the other.
    pub fn open(env: &Env, config: &TlsConfig) -> Result<Option<Arc<Self>>, TlsError> {
        config.check(true, []).map_err(TlsError)?;
        let Some(certificate) = &config.certificate else { return Ok(None) };
        let files = CertificateFiles::read(env, config, certificate)?;
        let loaded = files.load(env, config)?;
        loaded.tell(env);
        Ok(Some(Arc::new(Self {
            env: env.clone(),
            config: config.clone(),
            current: RwLock::new(Arc::new(loaded)),
            looked_at: Mutex::new(files.fingerprint()),
            is_unreadable: AtomicBool::new(false),
            look: Notify::new(),
            turns: Semaphore::new(HANDSHAKES_MAX),
            complaints: Complaints::default(),
            counters: Default::default(),
        })))
    }

    /// Looks at the files every second, and when [`Certificates::look`] says so, until the task is dropped. Says in the
    /// log what comes of it, and each day that a certificate ends soon.
    pub fn watch(self: &Arc<Self>) -> Task {
        let watched = Arc::clone(self);
        self.env.spawn_dedicated("tls-files", async move {
            let mut tell_at = watched.env.now() + EXPIRY_TOLD_EVERY;
            loop {
                watched.env.timeout(LOOK_EVERY, watched.look.notified()).await;
                watched.reload();
                if watched.env.now() >= tell_at {
                    tell_at = watched.env.now() + EXPIRY_TOLD_EVERY;
                    watched.current().tell(&watched.env);
                }
            }
        })
    }

    /// Has the files looked at now.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// When the first of the node's certificates ends, or of those behind them, in milliseconds since the Unix epoch.
    pub fn expires_ms(&self) -> i64 {
        self.current().expires_ms
    }

    /// What was counted since the start.
    pub fn stats(&self) -> TlsStats {
        let of = |count: TlsCount| self.counters[count as usize].load(Ordering::Relaxed);
        TlsStats {
            handshakes: of(TlsCount::Handshakes),
            failed: of(TlsCount::Failed),
            reloads: of(TlsCount::Reloads),
            reloads_failed: of(TlsCount::ReloadsFailed),
        }
    }

    fn count(&self, count: TlsCount) {
        self.counters[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.read())
    }

    /// Takes what the files have, if that is not what they had. What can't be used is told once, and what there was
    /// goes on being used.
    fn reload(&self) {
        let Some(certificate) = &self.config.certificate else { return };
        let files = match CertificateFiles::read(&self.env, &self.config, certificate) {
            Ok(files) => files,
            // Whoever replaces a file may have it away for a moment.
            Err(error) => {
                if !self.is_unreadable.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "certificates can't be read again: those from before are used");
                }
                return;
            }
        };
        self.is_unreadable.store(false, Ordering::Relaxed);
        let fingerprint = files.fingerprint();
        if std::mem::replace(&mut *self.looked_at.lock(), fingerprint) == fingerprint {
            return;
        }
        match files.load(&self.env, &self.config) {
            Ok(loaded) => {
                self.count(TlsCount::Reloads);
                tracing::info!(
                    subject = loaded.own.identity.subject,
                    "new certificates are used from now on"
                );
                loaded.tell(&self.env);
                *self.current.write() = Arc::new(loaded);
            }
            // Of two files one may have been replaced so far.
            Err(error) => {
                self.count(TlsCount::ReloadsFailed);
                tracing::warn!(%error, "the files of [tls] have changed and can't be used: those from before are");
            }
        }
    }

    pub(crate) async fn accept(
        &self,
        tcp: TcpStream,
        peer: SocketAddr,
        listener: &str,
    ) -> Option<PeerStream> {
        match self.handshake(tcp).await {
            Ok(stream) => Some(stream),
            Err(why @ HandshakeError::Silent) => {
                tracing::debug!(%peer, listener, %why, "TLS: connection dropped");
                None
            }
            Err(why) => {
                if let Some(left_out) = self.complaints.admit(self.env.now(), why.reason()) {
                    tracing::warn!(%peer, listener, %why, left_out, "TLS: connection dropped");
                }
                None
            }
        }
    }

    pub(crate) async fn handshake(&self, tcp: TcpStream) -> Result<PeerStream, HandshakeError> {
        let done = self.env.timeout(HANDSHAKE_DEADLINE, self.exchange(tcp)).await;
        let done = done.unwrap_or(Err(HandshakeError::Slow(HANDSHAKE_DEADLINE)));
        match &done {
            Ok(_) => self.count(TlsCount::Handshakes),
            Err(HandshakeError::Silent) => {}
            Err(_) => self.count(TlsCount::Failed),
        }
        done
    }

    async fn exchange(&self, tcp: TcpStream) -> Result<PeerStream, HandshakeError> {
        // Before it is anybody's turn: who says nothing takes nobody's.
        let mut opening = [0; OPENING_BYTES];
        let count = tcp.peek(&mut opening).await?;
        let opening = &opening[..count];
        match opening {
            [] => return Err(HandshakeError::Silent),
            // A record with a part of a handshake.
            [22, ..] => {}
            other => {
                let spoken = spoken(other);
                match spoken {
                    HTTP => answer(&tcp, TO_HTTP),
                    CALLS => answer(&tcp, ALERT),
                    _ => {}
                }
                return Err(HandshakeError::Plain(spoken));
            }
        }
        let _turn = self.turns.acquire().await;
        let acceptor = TlsAcceptor::from(Arc::clone(&self.current().server));
        let stream = acceptor.accept(tcp).await.map_err(refusal)?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let client = shown.map(|leaf| ParsedCertificate::of(leaf)).transpose();
        let client =
            client.map_err(|why| HandshakeError::Refused(format!("the client's certificate {why}")))?;
        Ok(PeerStream::secured(stream, client.map(|parsed| parsed.identity)))
    }
}

const HTTP: &str = "HTTP without TLS";
const CALLS: &str = "Tailwater's own protocol without TLS";

/// What a client in HTTP is told.
const TO_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
    this is HTTP, and TLS is spoken here: use https\n";

/// A record of TLS with a fatal alert: the version is not spoken.
const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 70];

/// What a client speaks that does not speak TLS.
fn spoken(opening: &[u8]) -> &'static str {
    const METHODS: [&[u8]; 8] =
        [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT "];
    // A method may be longer than what is there of it.
    let is_http = METHODS
        .iter()
        .any(|method| opening.len() >= 4 && method.starts_with(&opening[..method.len().min(opening.len())]));
    match opening {
        _ if is_http => HTTP,
        // The length of a small frame, and a number of an API.
        [0, 0 | 1, _, _, 0, ..] => "Kafka's protocol without TLS",
        // The length of a HELLO, the version of the format, and the kind.
        [8, 0, 0, 0, _, 1, 0, 0] => CALLS,
        _ => "no TLS",
    }
}

/// Tells a client in its own words, or in those of TLS, that this is TLS. It may be gone by then.
fn answer(tcp: &TcpStream, answer: &[u8]) {
    // What is left unread would reset the connection, and with it what was answered.
    let mut discarded = [0; DISCARDED_BYTES];
    let _ = tcp.try_io(Interest::READABLE, || tcp.try_read(&mut discarded));
    let _ = tcp.try_write(answer);
}

/// What went wrong with a handshake, in words for who reads the log.
fn refusal(error: io::Error) -> HandshakeError {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(known) = known else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => HandshakeError::Cut,
            _ => HandshakeError::Io(error),
        };
    };
    HandshakeError::Refused(match known {
        rustls::Error::NoCertificatesPresented => {
            "the client shows no certificate, and client_certificates in [tls] is \"required\"".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the client's certificate is of none of the CAs of client_ca in [tls]".to_owned()
        }
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the client's certificate has expired".to_owned(),
        rustls::Error::InvalidCertificate(why) => format!("the client's certificate is not taken: {why}"),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::UnsupportedCertificate),
        ) => format!(
            "the client does not take this node's certificate ({alert:?}): give it the CA, and connect by a name that the \
             certificate has"
        ),
        rustls::Error::PeerIncompatible(why) => {
            format!("the client speaks no TLS that is spoken here ({why:?}): see min_version in [tls]")
        }
        other => other.to_string(),
    })
}

impl CertificateFiles {
    fn read(env: &Env, config: &TlsConfig, certificate: &Path) -> Result<Self, TlsError> {
        let key = config.key.as_deref().unwrap_or(certificate);
        let client_ca = config.client_ca.as_deref();
        let of_names = |further: &FurtherCertificate| {
            let key = further.key.as_deref().unwrap_or(&further.certificate);
            Ok((read(env, FURTHER, "certificate", &further.certificate)?, read(env, FURTHER, "key", key)?))
        };
        Ok(Self {
            certificate: read(env, FIRST, "certificate", certificate)?,
            key: read(env, FIRST, "key", key)?,
            client_ca: client_ca.map(|path| read(env, FIRST, "client_ca", path)).transpose()?,
            further: config.certificates.iter().map(of_names).collect::<Result<_, TlsError>>()?,
        })
    }

    /// What differs where any of the files does.
    fn fingerprint(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let none = Vec::new();
        let first = [&self.certificate, &self.key, self.client_ca.as_ref().unwrap_or(&none)];
        let further = self.further.iter().flat_map(|(certificate, key)| [certificate, key]);
        for file in first.into_iter().chain(further) {
            hash.update(&(file.len() as u64).to_le_bytes());
            hash.update(file);
        }
        hash.digest()
    }

    fn load(&self, env: &Env, config: &TlsConfig) -> Result<Loaded, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let Certified { key: first, own, mut expires_ms } = self.first(&provider, config)?;
        let mut expires_first = own.identity.subject.clone();
        let mut certified = CertifiedByName { first, further: Vec::new() };
        for (named, (certificate, key)) in config.certificates.iter().zip(&self.further) {
            let FurtherCertificate { certificate: path, key: key_path } = named;
            let of_key = key_path.as_deref().unwrap_or(path);
            let certificate = NamedFile { section: FURTHER, key: "certificate", path, pem: certificate };
            let key = NamedFile { section: FURTHER, key: "key", path: of_key, pem: key };
            let further = Certified::read(&provider, &certificate, &key)?;
            if further.expires_ms < expires_ms {
                (expires_ms, expires_first) = (further.expires_ms, further.own.identity.subject);
            }
            certified.further.push(further.key);
        }
        let versions: &[&rustls::SupportedProtocolVersion] = match config.min_version {
            TlsVersion::V13 => &[&rustls::version::TLS13],
            TlsVersion::V12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let time = Arc::new(EnvTime(env.clone()));
        let builder = ServerConfig::builder_with_details(Arc::clone(&provider), time)
            .with_protocol_versions(versions)
            .map_err(|why| TlsError(why.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let path = config.client_ca.as_deref().unwrap_or(Path::new(""));
                let in_ca = |why| TlsError(format!("{FIRST} client_ca = {path:?} {why}"));
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem).map_err(in_ca)? {
                    roots
                        .add(certificate)
                        .map_err(|why| in_ca(format!("has a certificate that is no CA's: {why}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match config.client_certificates {
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                    ClientCertificates::None | ClientCertificates::Required => verifier,
                };
                builder.with_client_cert_verifier(verifier.build().map_err(|why| in_ca(why.to_string()))?)
            }
        };
        let mut server = builder.with_cert_resolver(Arc::new(certified));
        if self.client_ca.is_some() {
            // A session that is taken up again would let a client in whose certificate has expired meanwhile.
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
        }
        Ok(Loaded { server: Arc::new(server), own, expires_ms, expires_first })
    }

    fn first(&self, provider: &CryptoProvider, config: &TlsConfig) -> Result<Certified, TlsError> {
        let path = config.certificate.as_deref().unwrap_or(Path::new(""));
        let of_key = config.key.as_deref().unwrap_or(path);
        let certificate = NamedFile { section: FIRST, key: "certificate", path, pem: &self.certificate };
        let key = NamedFile { section: FIRST, key: "key", path: of_key, pem: &self.key };
        Certified::read(provider, &certificate, &key)
    }
}

impl Loaded {
    /// Says if it ends soon, or has ended.
    fn tell(&self, env: &Env) {
        let left_ms = self.expires_ms - env.wall_ms();
        let subject = &self.expires_first;
        let days = left_ms / 86_400_000;
        if left_ms <= 0 {
            tracing::error!(subject, "the certificate of [tls] has expired: clients refuse it");
        } else if u128::try_from(left_ms).is_ok_and(|left| left < EXPIRY_WARNING.as_millis()) {
            tracing::warn!(subject, days, "the certificate of [tls] expires soon: replace its files");
        }
    }
}

fn read(env: &Env, section: &str, key: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    read_file(env, path).map_err(|why| TlsError(format!("{section} {key} = {path:?} {why}")))
}

/// A file with certificates or a key.
///
/// # Errors
/// Why not.
pub(crate) fn read_file(env: &Env, path: &Path) -> Result<Vec<u8>, String> {
    let reading = || {
        let file = env.disk().open(path, OpenMode::Read)?;
        let length = file.len()?;
        if length > FILE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "it has {length} bytes, and {FILE_BYTES_MAX} are the most"
            )));
        }
        let mut bytes = vec![0; length as usize];
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    reading().map_err(|why| format!("can't be read: {why}"))
}

/// The world's clock, which says what has expired.
#[derive(Debug)]
pub(crate) struct EnvTime(pub(crate) Env);

impl TimeProvider for EnvTime {
    fn current_time(&self) -> Option<UnixTime> {
        let since = u64::try_from(self.0.wall_ms()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(since)))
    }
}
