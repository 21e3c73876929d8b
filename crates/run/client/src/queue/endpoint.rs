//! A server of SQS's protocol, asked in JSON over HTTP.
//!
//! Connections are kept and used again, one for each call at a time, so that there are as many as there are calls at
//! the same time; a call that is dropped closes its connection, which ends a receive that waits.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tailwater_env::{Env, Task};
use tailwater_sqs_wire::{Unsigned, sign};
use tailwater_tls::{DialError, Dialer};

use super::CALL_DEADLINE;
use super::halt::{Halt, HaltingStream};
use crate::error::Error;

/// Connections that are kept while nothing is asked.
const IDLE_MAX: usize = 16;

/// Bytes of an answer: ten messages of 1 MiB, each character escaped.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// How long what was answered before a server heard that nobody waits any more may be under way.
const LAST_ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// What requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key's id.
    pub key_id: String,
    /// The secret.
    pub secret: String,
    /// The region that they are signed for.
    pub region: String,
}

impl Credentials {
    /// Those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, if both are set, for AWS_REGION.
    pub fn from_env() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            key_id: variable("AWS_ACCESS_KEY_ID")?,
            secret: variable("AWS_SECRET_ACCESS_KEY")?,
            region: variable("AWS_REGION").unwrap_or_else(|| "us-east-1".to_owned()),
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

/// A server of SQS's protocol. Clones share its connections.
#[derive(Clone)]
pub struct Endpoint(Arc<EndpointInner>);

struct EndpointInner {
    env: Env,
    /// As it was given.
    host: String,
    /// Where that is.
    address: String,
    dialer: Dialer,
    credentials: Option<Credentials>,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    halt: Arc<Halt>,
    /// Drives it.
    _task: Task,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("host", &self.0.host).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The one at `http://HOST:PORT`, or `HOST:PORT`; it is connected to when it is asked. Without credentials nothing
    /// is signed.
    pub fn new(env: &Env, address: &str, credentials: Option<Credentials>) -> Result<Self, Error> {
        Self::with_dialer(env, address, credentials, Dialer::plain())
    }

    /// The same, which may also be at `https://HOST:PORT`: `dialer` says whom to trust there.
    pub fn with_dialer(
        env: &Env,
        address: &str,
        credentials: Option<Credentials>,
        dialer: Dialer,
    ) -> Result<Self, Error> {
        let (host, dialer, port) = match address.strip_prefix("https://") {
            Some(_) if !dialer.is_secured() => {
                return Err(Error::Address(format!(
                    "{address} is in TLS, and nothing says whose certificates are good: name the file of its CA"
                )));
            }
            Some(host) => (host, dialer, 443),
            None => (address.strip_prefix("http://").unwrap_or(address), Dialer::plain(), 80),
        };
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains('/') {
            return Err(Error::Address(format!(
                "{address} is neither http://HOST:PORT nor https://HOST:PORT"
            )));
        }
        // What is behind the last colon in brackets is the end of an IPv6 address.
        let address = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            None => format!("{host}:{port}"),
            Some((_, port)) if port.parse().is_ok_and(|port: u16| port > 0) => host.to_owned(),
            Some((_, port)) => {
                let port: String = port.chars().take(64).collect();
                return Err(Error::Address(format!(
                    "{port:?} is no port: a number from 1 to 65535, as in http://localhost:9324"
                )));
            }
        };
        let (env, host, idle) = (env.clone(), host.to_owned(), Mutex::default());
        Ok(Self(Arc::new(EndpointInner { env, host, address, dialer, credentials, idle })))
    }

    /// An action of SQS with its parameters; its answer. Waits 30 s for it.
    pub async fn call(&self, action: &str, parameters: &Value) -> Result<Value, Error> {
        self.call_within(action, parameters, CALL_DEADLINE).await
    }

    /// The same, with another time to wait. An action that is not SQS's has its service before it:
    /// `Tailwater.PeekMessages`.
    pub async fn call_within(
        &self,
        action: &str,
        parameters: &Value,
        deadline: Duration,
    ) -> Result<Value, Error> {
        let service = if action.contains('.') { "" } else { "AmazonSQS." };
        let request = self.request(&format!("{service}{action}"), parameters.to_string().into())?;
        self.exchange_within(request, deadline, &Mutex::default()).await
    }

    /// The same, until `stop` completes: the server is told then that nobody waits any more. The answer, if there was
    /// one by then; none if the server is not reached after that.
    pub(super) async fn call_until(
        &self,
        action: &str,
        parameters: &Value,
        deadline: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Value>, Error> {
        let request = self.request(&format!("AmazonSQS.{action}"), parameters.to_string().into())?;
        let asked_over = Mutex::default();
        let exchange = pin!(self.exchange_within(request, deadline, &asked_over));
        // An answer that is there counts.
        let exchange = match select(exchange, pin!(stop)).await {
            Either::Left((answer, _)) => return answer.map(Some),
            Either::Right(((), exchange)) => exchange,
        };
        let halt: Option<Arc<Halt>> = asked_over.lock().take();
        let Some(halt) = halt else { return Ok(None) };
        halt.tell();
        // It may never end at a server that does not notice.
        let answer = self.0.env.timeout(LAST_ANSWER_DEADLINE, exchange).await;
        Ok(answer.and_then(Result::ok))
    }

    /// `asked_over` is told over which connection the request goes.
    async fn exchange_within(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Duration,
        asked_over: &Mutex<Option<Arc<Halt>>>,
    ) -> Result<Value, Error> {
        match self.0.env.timeout(deadline, self.exchange(request, asked_over)).await {
            Some(answer) => answer,
            None => Err(Error::Deadline { address: self.0.host.clone(), deadline }),
        }
    }

    /// `HOST:PORT`, as it was given.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    pub(super) fn env(&self) -> &Env {
        &self.0.env
    }

    fn request(&self, target: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let host = &self.0.host;
        let mut request = Request::post("/")
            .header("host", host)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", target);
        if let Some(Credentials { key_id, secret, region }) = &self.0.credentials {
            let now = jiff::Timestamp::from_millisecond(self.0.env.wall_ms());
            let now = now.map_err(|error| Error::Malformed(error.to_string()))?;
            let unsigned =
                Unsigned { method: "POST", path: "/", query: "", host, target: Some(target), body: &body };
            let (date, authorization) = sign(&unsigned, now, (key_id, secret), region);
            request = request.header("x-amz-date", date).header("authorization", authorization);
        }
        request.body(Full::new(body)).map_err(|error| Error::Address(format!("{host}: {error}")))
    }

    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        asked_over: &Mutex<Option<Arc<Halt>>>,
    ) -> Result<Value, Error> {
        let unreachable = |error: &dyn fmt::Display| Error::Unreachable {
            address: self.0.host.clone(),
            reason: error.to_string(),
        };
        loop {
            let kept = self.0.idle.lock().pop();
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(mut connection) => match connection.sender.ready().await {
                    Ok(()) => connection,
                    Err(_) => continue, // closed meanwhile
                },
                None => self.connect().await.map_err(|error| match error.downcast::<DialError>() {
                    Ok(error) => Error::from_dial(&self.0.host, *error),
                    Err(error) => unreachable(&error),
                })?,
            };
            *asked_over.lock() = Some(Arc::clone(&connection.halt));
            let answer = match connection.sender.try_send_request(request).await {
                Ok(answer) => answer,
                Err(mut failed) => match failed.take_message() {
                    // It was closed while nothing was asked, and nothing was sent.
                    Some(unsent) if was_kept => {
                        request = unsent;
                        continue;
                    }
                    _ => return Err(unreachable(failed.error())),
                },
            };
            let (status, code) = (answer.status(), code_of(&answer));
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| unreachable(&error))?.to_bytes();
            self.keep(connection);
            let body: Result<Value, _> = serde_json::from_slice(&body);
            return match (status.is_success(), body) {
                (true, body) => body.map_err(|error| Error::Malformed(error.to_string())),
                (false, body) => {
                    let message = body.ok().and_then(|body| Some(body["message"].as_str()?.to_owned()));
                    let message = message.unwrap_or_else(|| format!("the answer is {status}"));
                    Err(Error::Queue { code, message })
                }
            };
        }
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.0.idle.lock();
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() && !connection.halt.is_told() {
            idle.push(connection);
        }
    }

    async fn connect(&self) -> Result<Connection, Box<dyn std::error::Error + Send + Sync>> {
        let stream = self.0.dialer.connect(&self.0.address).await?;
        let halt = Arc::default();
        let stream = HaltingStream::new(stream, &halt);
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driven = async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to queues ended");
            }
        };
        Ok(Connection { sender, halt, _task: self.0.env.spawn("queue-connection", driven) })
    }
}

/// The code of an error, as the Query protocol has it, which is what people know.
fn code_of(answer: &hyper::Response<Incoming>) -> String {
    let code = answer.headers().get("x-amzn-query-error").and_then(|value| value.to_str().ok());
    code.and_then(|code| code.split(';').next()).unwrap_or_default().to_owned()
}
