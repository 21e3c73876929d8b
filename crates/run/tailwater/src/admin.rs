//! The admin HTTP of a node, as the command line uses it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwater_client::{Client, ClientConfig, ClientLogin, Dialer, DialerConfig, LoginConfig, Mechanism};
use tailwater_env::Env;
use tailwater_node::api::{ErrorBody, NodeView};
use ureq::SendBody;
use ureq::http::Request;
use ureq::http::header::{AUTHORIZATION, HeaderValue};
use ureq::middleware::MiddlewareNext;

/// Pause before a node that is not there is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What a node answered instead of doing it.
#[derive(Debug)]
pub struct AdminRefused(pub ErrorBody);

impl std::fmt::Display for AdminRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for AdminRefused {}

/// The node to talk to.
#[derive(clap::Args, Clone)]
pub struct Server {
    /// Admin address of a node.
    #[arg(
        long,
        global = true,
        env = "TAILWATER_SERVER",
        default_value = "127.0.0.1:7421",
        value_name = "HOST:PORT",
        value_parser = crate::values::server
    )]
    server: String,
    /// File in PEM with the CA of the certificates of the node, its cells and its replicas. With it, the address is one
    /// of https.
    #[arg(long, global = true, env = "TAILWATER_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// File in PEM with a certificate to show to the node, and with its key.
    #[arg(long, global = true, env = "TAILWATER_CERTIFICATE", value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// The user to log in as, with a password.
    #[arg(long, global = true, env = "TAILWATER_LOGIN", value_name = "NAME")]
    login: Option<String>,
    /// File with that user's password in its first line. Without it, the password is in TAILWATER_LOGIN_PASSWORD.
    #[arg(long, global = true, env = "TAILWATER_LOGIN_PASSWORD_FILE", value_name = "FILE")]
    login_password_file: Option<PathBuf>,
    /// File with a token in its first line, to show in place of a user's name and password. Without it, the token may
    /// be in TAILWATER_LOGIN_TOKEN.
    #[arg(
        long,
        global = true,
        env = "TAILWATER_LOGIN_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "login"
    )]
    login_token_file: Option<PathBuf>,
    /// How the user shows that it knows its password, to nodes and to their cells: scram-sha-256, scram-sha-512, or
    /// plain, which sends it, and only in TLS. Over HTTP the password is sent always.
    #[arg(
        long,
        global = true,
        env = "TAILWATER_LOGIN_MECHANISM",
        value_name = "NAME",
        value_parser = crate::values::mechanism
    )]
    login_mechanism: Option<Mechanism>,
}

impl Server {
    /// The same of the node at another address.
    #[cfg(feature = "bookkeeper")]
    pub fn at(&self, address: &str) -> Self {
        Self { server: address.to_owned(), ..self.clone() }
    }

    /// GET.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.finish(self.agent()?.get(self.url(path)).call())
    }

    /// GET from a node that may not be there yet: it is asked again until `patience` is over.
    pub fn get_within<T: DeserializeOwned>(&self, patience: Duration, path: &str) -> anyhow::Result<T> {
        #[allow(clippy::disallowed_methods)] // Its user's patience; nothing here runs in a simulated world.
        let now = std::time::Instant::now;
        let (until, mut told, agent) = (now() + patience, false, self.agent()?);
        loop {
            let answer = agent.get(self.url(path)).call();
            let away = match &answer {
                Ok(answer) => answer.status() == ureq::http::StatusCode::SERVICE_UNAVAILABLE,
                // Who it is that answers is not taken, which no wait changes.
                Err(ureq::Error::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => false,
                Err(ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::Timeout(_)) => true,
                Err(_) => false,
            };
            if !away || now() >= until {
                return self.finish(answer);
            }
            if !std::mem::replace(&mut told, true) {
                eprintln!("tailwater: no node is ready at {} yet; waiting for it", self.server);
            }
            std::thread::park_timeout(ASK_AGAIN_AFTER);
        }
    }

    /// POST with a JSON body.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.finish(self.agent()?.post(self.url(path)).send_json(body))
    }

    /// PUT with a JSON body.
    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.finish(self.agent()?.put(self.url(path)).send_json(body))
    }

    /// PATCH with a JSON body.
    pub fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.finish(self.agent()?.patch(self.url(path)).send_json(body))
    }

    /// DELETE.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.finish(self.agent()?.delete(self.url(path)).call())
    }

    /// Where the node's clients connect: through its Unix socket if that is on this host. The node is waited for until
    /// `patience` is over.
    pub fn data_address(&self, patience: Duration) -> anyhow::Result<String> {
        let node: NodeView = self.get_within(patience, "/v1/node")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let dialer = runtime.block_on(async { self.dialer(&Env::real()) })?;
        // What the node calls an address may be another node's from here: every host has paths, and a loopback, of its
        // own.
        let login = self.login()?;
        let id_at = |address: &str| runtime.block_on(Client::node_id(address, &dialer, login.clone()));
        if let Some(path) = node.unix.filter(|path| path.exists()) {
            let local = format!("unix:{}", path.display());
            if id_at(&local).is_ok_and(|id| id == node.id) {
                return Ok(local);
            }
        }
        anyhow::ensure!(
            !node.data_tls || dialer.is_secured(),
            "the node at {} is reached in TLS from here, and nothing says whose certificates are good: name the file of its CA \
             with --ca or TAILWATER_CA",
            self.server
        );
        let scheme = if node.data_tls { "tls" } else { "tcp" };
        let address = format!("{scheme}:{}", node.data);
        match id_at(&address) {
            Ok(id) if id != node.id => Err(anyhow!(
                "the node at {} tells its clients to connect to {}, but from here another node answers there: set \
                 advertised_data below [listen] in its configuration to an address that it has for others",
                self.server,
                node.data
            )),
            // One that can't be connected to is waited for, and told of, by who needs it.
            _ => Ok(address),
        }
    }

    /// What makes connections to the node, to its cells and to its other replicas. A certificate of theirs may be for
    /// the host of --server in place of the IP address that they tell.
    pub fn dialer(&self, env: &Env) -> anyhow::Result<Dialer> {
        let host = self.host();
        let config = DialerConfig {
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: None,
            names: host.parse::<IpAddr>().is_err().then(|| host.to_owned()).into_iter().collect(),
        };
        Ok(Dialer::open(env, &config)?)
    }

    /// The name or the IP address that --server has.
    fn host(&self) -> &str {
        let server = self.server.split("://").last().unwrap_or_default();
        let server = server.split('/').next().unwrap_or_default();
        let host =
            server.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map_or(server, |(host, _)| host);
        host.trim_matches(['[', ']'])
    }

    /// Where the node speaks Kafka's protocol.
    pub fn kafka_address(&self) -> anyhow::Result<String> {
        let node: NodeView = self.get("/v1/node")?;
        let (mut address, scheme) = match kafka_of(&node, self.login()?.as_ref(), self.ca.is_some()) {
            Some((address, true)) => (address, "tls:"),
            Some((address, false)) => (address, ""),
            None => anyhow::bail!(
                "the node speaks Kafka's protocol not at all, or only in TLS or with a login: name the file of its CA with \
                 --ca or TAILWATER_CA, and a user with --login, or a token with --login-token-file"
            ),
        };
        if address.ip().is_unspecified() {
            // On all addresses: the one that is known from admin HTTP, if it is one.
            let known = self.server.split("://").last().and_then(|server| server.parse::<SocketAddr>().ok());
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            address.set_ip(known.unwrap_or(any).ip());
        }
        Ok(format!("{scheme}{address}"))
    }

    fn url(&self, path: &str) -> String {
        if self.server.contains("://") {
            format!("{}{path}", self.server.trim_end_matches('/'))
        } else {
            let scheme = if self.ca.is_some() { "https" } else { "http" };
            format!("{scheme}://{}{path}", self.server)
        }
    }

    fn finish<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> anyhow::Result<T> {
        let mut answer = answer.map_err(|error| {
            anyhow!(
                "no node's admin HTTP answers at {} ({error}): start one with `tailwater serve --data DIR`, or name \
                 another's admin address with --server or TAILWATER_SERVER",
                self.server
            )
        })?;
        if answer.status().is_success() {
            return answer.body_mut().read_json().context("the node's answer makes no sense");
        }
        let status = answer.status();
        let told = answer.body_mut().read_to_string().unwrap_or_default();
        match serde_json::from_str::<ErrorBody>(&told) {
            Ok(body) => Err(AdminRefused(body).into()),
            // From whatever else listens there.
            Err(_) => Err(anyhow!(
                "the node answers {status}: {}",
                told.trim().chars().take(200).collect::<String>()
            )),
        }
    }

    fn agent(&self) -> anyhow::Result<ureq::Agent> {
        let mut config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        if let Some(header) = self.authorization()? {
            config =
                config.middleware(move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
                    request.headers_mut().insert(AUTHORIZATION, header.clone());
                    next.handle(request)
                });
        }
        #[cfg(feature = "tls")]
        let config = config.tls_config(self.tls()?);
        #[cfg(not(feature = "tls"))]
        anyhow::ensure!(
            self.ca.is_none() && self.certificate.is_none() && !self.server.starts_with("https:"),
            "{} is to be asked by https, and this build has no TLS: `make dist` makes target/dist/tailwater, which has it, as \
             has one of `cargo build --release -p tailwater --features tls`",
            self.server
        );
        Ok(config.build().into())
    }

    /// What tells the node who asks (RFC 7617, RFC 6750).
    fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(login) = self.login()? else { return Ok(None) };
        let header = match login.user() {
            Some(user) => {
                anyhow::ensure!(!user.contains(':'), "a user's name has no colon: {user:?}");
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", login.secret().text())))
            }
            None => format!("Bearer {}", login.secret().text()),
        };
        let mut header = HeaderValue::try_from(header).context("that is no login")?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    /// What a client of the node logs in with, if anything.
    pub fn login(&self) -> anyhow::Result<Option<ClientLogin>> {
        anyhow::ensure!(
            self.login.is_none()
                || self.login_password_file.is_some()
                || std::env::var_os(LoginConfig::PASSWORD).is_some(),
            "--login needs a password: name a file with --login-password-file, or set {}",
            LoginConfig::PASSWORD
        );
        let config = LoginConfig {
            user: self.login.clone(),
            password_file: self.login_password_file.clone(),
            token_file: self.login_token_file.clone(),
            mechanism: self.login_mechanism,
        };
        config.open().map_err(|why| anyhow!("{why}"))
    }

    /// A client of the node, as these options have it.
    pub fn client(&self, env: &Env) -> anyhow::Result<ClientConfig> {
        Ok(ClientConfig { dialer: self.dialer(env)?, login: self.login()?, ..ClientConfig::default() })
    }

    #[cfg(feature = "tls")]
    fn tls(&self) -> anyhow::Result<ureq::tls::TlsConfig> {
        use ureq::tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, parse_pem};

        anyhow::ensure!(
            self.ca.is_some() || !self.server.starts_with("https:"),
            "{} has a certificate, and nothing says whose certificates are good: name the file of its CA with --ca or TAILWATER_CA; \
             those of public CAs are in /etc/ssl/certs/ca-certificates.crt",
            self.server
        );
        tailwater_tls::use_everywhere();
        let read = |path: &PathBuf| -> anyhow::Result<(Vec<Certificate<'static>>, Option<_>)> {
            #[allow(clippy::disallowed_methods)] // A command reads its user's files.
            let pem = std::fs::read(path).with_context(|| format!("{} can't be read", path.display()))?;
            let (mut certificates, mut key) = (Vec::new(), None);
            for item in parse_pem(&pem) {
                match item.with_context(|| format!("{} is no PEM", path.display()))? {
                    PemItem::Certificate(certificate) => certificates.push(certificate),
                    PemItem::PrivateKey(found) => key = Some(found),
                    _ => {}
                }
            }
            anyhow::ensure!(!certificates.is_empty(), "{} has no certificate in PEM", path.display());
            Ok((certificates, key))
        };
        let mut config = TlsConfig::builder();
        if let Some(ca) = &self.ca {
            config = config.root_certs(RootCerts::new_with_certs(&read(ca)?.0));
        }
        if let Some(path) = &self.certificate {
            let (chain, key) = read(path)?;
            let key = key.with_context(|| {
                format!("{} has no key: put it into the same file, behind the certificate", path.display())
            })?;
            config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        Ok(config.build())
    }
}

/// Where a client speaks Kafka's protocol with a node, and whether in TLS: where its login is wanted, if it has one.
fn kafka_of(node: &NodeView, login: Option<&ClientLogin>, has_ca: bool) -> Option<(SocketAddr, bool)> {
    let of = |secured: Option<SocketAddr>, plain: Option<SocketAddr>| {
        let secured = secured.filter(|_| has_ca).map(|address| (address, true));
        secured.or_else(|| plain.map(|address| (address, false)))
    };
    let wanted = login.and_then(|login| {
        let plain = node.kafka_login.filter(|_| !login.mechanism().shows_password());
        of(node.kafka_tls_login, plain)
    });
    wanted.or_else(|| of(node.kafka_tls, node.kafka))
}

/// A name as a part of a URL's path.
pub fn escaped(name: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(escape).collect()
}
