//! The keys of the issuer whose JWTs are taken: a JWKS in a file or at a URL, which is read again and again.
//!
//! A file is looked at every second. A URL is asked every five minutes, and sooner when a token names a key that is not
//! known. What can't be read is told in the log, and the keys from before are used on.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tailwater_env::{Env, Instant, Task};
use tailwater_login::{JwtIssuer, JwtKeys, Users};
use tailwater_tls::{Dialer, DialerConfig};

use crate::config::JwtConfig;

/// Bytes of a JWKS.
const BYTES_MAX: usize = 1 << 20;
/// How often it is looked whether there is something to do.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a URL is asked.
const ASK_EVERY: Duration = Duration::from_secs(300);
/// How soon it is asked again, when it did not answer, or when a key is wanted.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where most systems have the CAs that everybody trusts.
const PUBLIC_CAS: &str = "/etc/ssl/certs/ca-certificates.crt";

enum JwksSource {
    File(PathBuf),
    Url { uri: Uri, address: String, dialer: Dialer },
}

/// Lets the issuer's tokens in, and follows its keys until it is dropped.
///
/// # Errors
/// What is wrong with what is configured, or with the file. A URL that does not answer is asked again later.
pub(crate) async fn follow(env: &Env, config: &JwtConfig, users: &Users) -> anyhow::Result<Task> {
    anyhow::ensure!(
        !config.issuer.is_empty() && !config.audience.is_empty(),
        "[access.jwt] needs issuer, which is the iss of its tokens, and audience, of which their aud has one"
    );
    let source = JwksSource::of(env, config).context("[access.jwt] jwks")?;
    let of = JwtIssuer { issuer: config.issuer.clone(), audience: config.audience.clone() };
    let keys = Arc::new(JwtKeys::new(of));
    let mut jwks = Bytes::new();
    match source.read(env).await.and_then(|read| replaced(&keys, read)) {
        Ok(read) => jwks = read,
        Err(why) if matches!(source, JwksSource::Url { .. }) => complain(&config.jwks, &why),
        Err(why) => return Err(why.context(format!("[access.jwt] jwks = {:?}", config.jwks))),
    }
    users.take_jwts(Arc::clone(&keys));
    let (env_, name) = (env.clone(), config.jwks.clone());
    Ok(env.spawn("jwks", async move {
        let mut next = source.after(env_.now(), !jwks.is_empty());
        loop {
            env_.sleep(LOOK_EVERY).await;
            let now = env_.now();
            let is_wanted = now.since(next.asked) >= ASK_AGAIN && keys.is_wanted();
            if now < next.due && !is_wanted {
                continue;
            }
            let read = source.read(&env_).await;
            let changed = read.and_then(|read| if read == jwks { Ok(read) } else { replaced(&keys, read) });
            next = source.after(now, changed.is_ok());
            match changed {
                Ok(read) => jwks = read,
                Err(why) => complain(&name, &why),
            }
        }
    }))
}

/// When a source was asked, and when it is asked next.
struct NextAsk {
    asked: Instant,
    due: Instant,
}

fn replaced(keys: &JwtKeys, read: Bytes) -> anyhow::Result<Bytes> {
    let count = keys.replace(&read).map_err(anyhow::Error::msg)?;
    tracing::info!(count, "the issuer's keys were read");
    Ok(read)
}

fn complain(name: &str, why: &anyhow::Error) {
    tracing::warn!(jwks = name, why = %format!("{why:#}"), "the issuer's keys can't be read; those from before are used on");
}

impl JwksSource {
    fn of(env: &Env, config: &JwtConfig) -> anyhow::Result<Self> {
        let Some((scheme, _)) = config.jwks.split_once("://") else {
            return Ok(Self::File(PathBuf::from(&config.jwks)));
        };
        let uri: Uri = config.jwks.parse().context("it is neither a file nor a URL")?;
        let host = uri.host().context("it names no host")?.to_owned();
        let is_here = matches!(&*host, "localhost" | "127.0.0.1" | "[::1]");
        let (port, dialer) = match scheme {
            "https" => {
                let ca = config.ca.clone().unwrap_or_else(|| PUBLIC_CAS.into());
                (443, Dialer::open(env, &DialerConfig { ca: Some(ca), ..DialerConfig::default() })?)
            }
            // Whoever could change what comes on the way would be let in.
            "http" if is_here => (80, Dialer::plain()),
            _ => anyhow::bail!("it has to be https://, a file, or http:// on this host"),
        };
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(port));
        Ok(Self::Url { uri, address, dialer })
    }

    fn after(&self, asked: Instant, is_read: bool) -> NextAsk {
        let due = match self {
            Self::File(_) => asked,
            Self::Url { .. } => asked + if is_read { ASK_EVERY } else { ASK_AGAIN },
        };
        NextAsk { asked, due }
    }

    async fn read(&self, env: &Env) -> anyhow::Result<Bytes> {
        match self {
            Self::File(path) => {
                #[allow(clippy::disallowed_methods)] // A small file, as those of [tls] are.
                let file = std::fs::File::open(path).context("the file can't be read")?;
                let mut bytes = Vec::new();
                file.take(BYTES_MAX as u64).read_to_end(&mut bytes).context("the file can't be read")?;
                Ok(bytes.into())
            }
            Self::Url { uri, address, dialer } => {
                let got = env.timeout(PATIENCE, get(env, uri, address, dialer)).await;
                got.with_context(|| format!("it did not answer in {PATIENCE:?}"))?
            }
        }
    }
}

async fn get(env: &Env, uri: &Uri, address: &str, dialer: &Dialer) -> anyhow::Result<Bytes> {
    let stream = dialer.connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Until the answer was read.
    let _connection = env.spawn("jwks-connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to the issuer broke");
        }
    });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(header::HOST, address).header(header::ACCEPT, "application/json");
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    anyhow::ensure!(answer.status() == StatusCode::OK, "it answers {}", answer.status());
    let body = Limited::new(answer.into_body(), BYTES_MAX).collect().await;
    Ok(body.map_err(|error| anyhow::anyhow!("its answer can't be read: {error}"))?.to_bytes())
}
