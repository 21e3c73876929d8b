//! A CA, a node's files, and clients.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tailwater_env::Env;
use tailwater_tls::authority::{Authority, CertificateWanted, Issued};
use tailwater_tls::{Acceptor, Certificates, ClientCertificates, FurtherCertificate, PeerStream, TlsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A node's files and what was read from them.
pub struct World {
    pub env: Env,
    pub config: TlsConfig,
    dir: tempfile::TempDir,
    /// Of all CAs that the node's certificates were of, the newest last.
    authorities: Vec<Authority>,
    certificates: Arc<Certificates>,
    listener: TcpListener,
}

/// Whose certificates a client takes.
pub enum Trust {
    /// The CA of the first certificate of the node.
    First,
    /// One that the node has nothing of.
    Another,
}

/// How a client connects.
pub struct Side {
    roots: RootCertStore,
    versions: Vec<&'static rustls::SupportedProtocolVersion>,
    shown: Option<Issued>,
    first_ca: String,
    /// The node's name.
    name: &'static str,
}

impl World {
    pub async fn start(config: TlsConfig) -> Self {
        Self::with_days(config, 90).await
    }

    /// A node's certificate that is good for so many days.
    pub async fn with_days(config: TlsConfig, days: i64) -> Self {
        let env = Env::real();
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| Some(dir.path().join(name));
        let mut config = TlsConfig { certificate: path("node.pem"), key: path("node.key"), ..config };
        if config.client_certificates != ClientCertificates::None {
            config.client_ca = path("ca.pem");
        }
        let authority = Authority::create("test", env.wall_ms()).expect("a CA");
        std::fs::write(dir.path().join("ca.pem"), &authority.certificate).expect("written");
        let node = authority.issue(&node(days), env.wall_ms()).expect("a certificate");
        std::fs::write(dir.path().join("node.pem"), node.certificate).expect("written");
        std::fs::write(dir.path().join("node.key"), node.key).expect("written");
        let certificates = Certificates::open(&env, &config).expect("good files").expect("there are some");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self { env, config, dir, authorities: vec![authority], certificates, listener }
    }

    /// A configuration that asks clients for certificates.
    pub fn asking(client_certificates: ClientCertificates) -> TlsConfig {
        TlsConfig { client_certificates, ..TlsConfig::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }

    pub fn acceptor(&self) -> Acceptor {
        Acceptor::secured("test", &self.certificates)
    }

    /// Where the node listens.
    pub fn address(&self) -> String {
        self.listener.local_addr().expect("bound").to_string()
    }

    /// The node's end of a connection that somebody else makes.
    pub async fn accepted(&self) -> TcpStream {
        self.listener.accept().await.expect("accepted").0
    }

    /// Both ends of a connection: the node's first.
    pub async fn pair(&self) -> (TcpStream, TcpStream) {
        let address = self.listener.local_addr().expect("bound");
        let connecting = TcpStream::connect(address);
        let (accepted, connected) = tokio::join!(self.listener.accept(), connecting);
        (accepted.expect("accepted").0, connected.expect("connected"))
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::runtime::Handle::current().spawn(future)
    }

    /// Waits for a condition that another thread makes true.
    pub async fn until(&self, done: impl Fn() -> bool) {
        while !done() {
            self.env.sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Writes a further certificate of the node, for these names, and its key.
    pub fn write_further(&self, file: &str, hosts: &[&str]) -> FurtherCertificate {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let wanted = CertificateWanted { name: file.to_owned(), hosts, is_server: true, days: 90 };
        let issued = self.authorities.last().expect("one").issue(&wanted, self.env.wall_ms());
        let issued = issued.expect("a certificate");
        std::fs::write(self.path(file), format!("{}{}", issued.certificate, issued.key)).expect("written");
        FurtherCertificate { certificate: self.path(file), key: None }
    }

    /// Reads the files anew, with these further certificates.
    pub fn with_further(&mut self, further: Vec<FurtherCertificate>) {
        self.config.certificates = further;
        let certificates = Certificates::open(&self.env, &self.config);
        self.certificates = certificates.expect("good files").expect("there are some");
    }

    /// A client's certificate that is good for so many days.
    pub fn client(&self, name: &str, days: i64) -> Issued {
        issue_client(self.authorities.last().expect("one"), name, days, &self.env)
    }

    pub fn client_of_another_ca(&self, name: &str) -> Issued {
        let other = Authority::create("other", self.env.wall_ms()).expect("a CA");
        issue_client(&other, name, 10, &self.env)
    }

    /// Replaces certificate and key by those of another CA.
    pub fn replace_files(&mut self, days: i64) {
        let key = self.replace_certificate(days, self.env.wall_ms());
        self.write_key(&key);
    }

    /// The same, with a certificate that is good for so many seconds.
    pub fn replace_files_for_seconds(&mut self, seconds: i64) {
        let yesterday = self.env.wall_ms() - 24 * 3_600_000;
        let key = self.replace_certificate(1, yesterday + seconds * 1_000);
        self.write_key(&key);
    }

    /// The certificate alone; the key that belongs to it.
    pub fn replace_certificate_only(&mut self) -> String {
        self.replace_certificate(90, self.env.wall_ms())
    }

    fn replace_certificate(&mut self, days: i64, issued_ms: i64) -> String {
        let authority = Authority::create("test", self.env.wall_ms()).expect("a CA");
        let node = authority.issue(&node(days), issued_ms).expect("a certificate");
        self.authorities.push(authority);
        // As a whole, as whoever does it well.
        let beside = self.path("node.pem.new");
        std::fs::write(&beside, node.certificate).expect("written");
        std::fs::rename(beside, self.path("node.pem")).expect("renamed");
        node.key
    }

    pub fn write_key(&self, key: &str) {
        let beside = self.path("node.key.new");
        std::fs::write(&beside, key).expect("written");
        std::fs::rename(beside, self.path("node.key")).expect("renamed");
    }
}

fn node(days: i64) -> CertificateWanted {
    let hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    CertificateWanted { name: "node".to_owned(), hosts, is_server: true, days }
}

fn issue_client(authority: &Authority, name: &str, days: i64, env: &Env) -> Issued {
    let hosts = vec![format!("{name}.example")];
    let wanted = CertificateWanted { name: name.to_owned(), hosts, is_server: false, days };
    authority.issue(&wanted, env.wall_ms()).expect("a certificate")
}

fn roots(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("a CA");
    }
    roots
}

impl Side {
    /// One that trusts the CA of the newest certificate, and speaks everything.
    pub fn new(world: &World) -> Self {
        let [first, .., last] = &world.authorities[..] else {
            let only = &world.authorities[0].certificate;
            return Self {
                roots: roots(only),
                versions: rustls::ALL_VERSIONS.to_vec(),
                shown: None,
                first_ca: only.clone(),
                name: "localhost",
            };
        };
        Self {
            roots: roots(&last.certificate),
            versions: rustls::ALL_VERSIONS.to_vec(),
            shown: None,
            first_ca: first.certificate.clone(),
            name: "localhost",
        }
    }

    pub fn with_tls_1_2(self) -> Self {
        Self { versions: vec![&rustls::version::TLS12], ..self }
    }

    pub fn trusting(self, trust: Trust) -> Self {
        let another = || Authority::create("another", Env::real().wall_ms()).expect("a CA").certificate;
        let pem = match trust {
            Trust::First => self.first_ca.clone(),
            Trust::Another => another(),
        };
        Self { roots: roots(&pem), ..self }
    }

    pub fn showing(self, shown: Issued) -> Self {
        Self { shown: Some(shown), ..self }
    }

    pub async fn connect(self, tcp: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .expect("versions")
            .with_root_certificates(self.roots);
        let config = match &self.shown {
            None => builder.with_no_client_auth(),
            Some(Issued { certificate, key }) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let chain = chain.collect::<Result<Vec<_>, _>>().expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a certificate")
            }
        };
        let name = ServerName::try_from(self.name).expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    }

    /// One that asks for this name.
    pub fn asking_for(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// Connects, and has a word sent back; the version of TLS.
pub async fn dial(tcp: TcpStream, side: Side) -> std::io::Result<String> {
    let mut stream = side.connect(tcp).await?;
    stream.write_all(b"hello").await?;
    let mut read = [0; 5];
    stream.read_exact(&mut read).await?;
    assert_eq!(&read, b"hello");
    let version = stream.get_ref().1.protocol_version().expect("agreed");
    Ok(format!("{version:?}"))
}

/// Sends a word back.
pub async fn echo(stream: &mut PeerStream) {
    let mut read = [0; 5];
    stream.read_exact(&mut read).await.expect("read");
    stream.write_all(&read).await.expect("written");
    stream.flush().await.expect("flushed");
}
