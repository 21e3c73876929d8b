//! The connections to object stores: those of the other clients here, with the same TLS. Answers are read whole; none
//! is longer than a block or a list.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::http::uri::Scheme;
use hyper::{Uri, header};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use tailwater_env::{Env, Task};
use tailwater_tls::{Dialer, DialerConfig};

use crate::limits::{ANSWER_BYTES_MAX, IDLE_CONNECTIONS_MAX};

/// Where most systems have the CAs that everybody trusts.
const PUBLIC_CAS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The variable that names another file of them, as most programs have it.
const CAS_VARIABLE: &str = "SSL_CERT_FILE";

/// Makes connections to an object store.
#[derive(Clone, Debug)]
pub(crate) struct ColdConnector(ColdHttp);

#[derive(Clone)]
struct ColdHttp {
    env: Env,
    dialer: Dialer,
    idle: Arc<Mutex<Vec<IdleConnection>>>,
}

/// A connection on which nothing is under way.
struct IdleConnection {
    scheme: Scheme,
    address: String,
    sender: SendRequest<HttpRequestBody>,
    _task: Task,
}

impl std::fmt::Debug for ColdHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ColdHttp")
    }
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HttpFailure(String);

fn failed(kind: HttpErrorKind, why: &dyn std::fmt::Display) -> HttpError {
    HttpError::new(kind, HttpFailure(why.to_string()))
}

impl ColdConnector {
    /// One that trusts the CAs that everybody trusts, if this system has them. Without them it speaks plain HTTP only.
    ///
    /// # Errors
    /// What is wrong with their file.
    pub(crate) fn open(env: &Env) -> Result<Self, String> {
        let cas = std::env::var_os(CAS_VARIABLE).unwrap_or_else(|| PUBLIC_CAS.into());
        let dialer = match Path::new(&cas).exists() && cfg!(feature = "objects") {
            true => Dialer::open(env, &DialerConfig { ca: Some(cas.into()), ..DialerConfig::default() }),
            false => Ok(Dialer::plain()),
        };
        let dialer = dialer.map_err(|error| error.to_string())?;
        Ok(Self(ColdHttp { env: env.clone(), dialer, idle: Arc::default() }))
    }
}

impl HttpConnector for ColdConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

impl ColdHttp {
    /// A connection that is there already, if the other end has not ended it.
    fn idle(&self, scheme: &Scheme, address: &str) -> Option<IdleConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.sender.is_closed());
        let is_it =
            |connection: &IdleConnection| connection.scheme == *scheme && connection.address == address;
        let at = idle.iter().position(is_it)?;
        Some(idle.swap_remove(at))
    }

    async fn connect(&self, scheme: Scheme, address: String) -> Result<IdleConnection, HttpError> {
        let refused = |error: &dyn std::fmt::Display| {
            failed(HttpErrorKind::Connect, &format!("{address} can't be connected to: {error}"))
        };
        let dialer = if scheme == Scheme::HTTPS { self.dialer.clone() } else { Dialer::plain() };
        if scheme == Scheme::HTTPS && !dialer.is_secured() {
            return Err(refused(&format!(
                "there are no CAs to trust: install them to {PUBLIC_CAS}, or name their file in {CAS_VARIABLE}"
            )));
        }
        let stream = dialer.connect(&address).await.map_err(|error| refused(&error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| refused(&error))?;
        let run = async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the object store broke");
            }
        };
        let task = self.env.spawn("cold-connection", run);
        Ok(IdleConnection { scheme, address, sender, _task: task })
    }

    async fn exchange(
        &self,
        mut connection: IdleConnection,
        request: HttpRequest,
    ) -> Result<HttpResponse, HttpError> {
        let sent = |error: hyper::Error| {
            let kind = if error.is_timeout() { HttpErrorKind::Timeout } else { HttpErrorKind::Interrupted };
            failed(kind, &error)
        };
        connection.sender.ready().await.map_err(sent)?;
        let (parts, body) = connection.sender.send_request(request).await.map_err(sent)?.into_parts();
        let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let whole: Bytes = whole.map_err(|error| failed(HttpErrorKind::Interrupted, &error))?.to_bytes();
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(whole)))
    }
}

#[async_trait::async_trait]
impl HttpService for ColdHttp {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        let unknown = || failed(HttpErrorKind::Request, &"its URL names no host");
        let scheme = parts.uri.scheme().cloned().ok_or_else(unknown)?;
        let host = parts.uri.host().ok_or_else(unknown)?.to_owned();
        let default = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let address = format!("{host}:{}", parts.uri.port_u16().unwrap_or(default));
        if !parts.headers.contains_key(header::HOST) {
            let authority = parts.uri.authority().map_or("", |authority| authority.as_str());
            let value = authority.parse().map_err(|error| failed(HttpErrorKind::Request, &error))?;
            parts.headers.insert(header::HOST, value);
        }
        let path = parts.uri.path_and_query().cloned();
        parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        let request = HttpRequest::from_parts(parts, body);
        // The other end may just have ended one that was idle: then the request was not carried out, or is one that may
        // be carried out twice, as all are here.
        if let Some(connection) = self.idle(&scheme, &address)
            && let Ok(answer) = self.exchange(connection, request.clone()).await
        {
            return Ok(answer);
        }
        let connection = self.connect(scheme, address).await?;
        self.exchange(connection, request).await
    }
}
