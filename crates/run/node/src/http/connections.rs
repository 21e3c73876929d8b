//! The connections of admin HTTP, and of broadcasts over HTTP, and what each may take.
//!
//! Health checks and metrics have to answer whatever else comes in on the port. So there are at most
//! `connections_max` connections, each has a head and a body of bounded size and the time `timeout_ms` to send
//! either, and what does not take its answer in that time is dropped by the kernel. Whoever sends something else than
//! HTTP gets an answer that says so, and a line in the log, as far as that can take them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use futures::StreamExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tailwater_access::Peer;
use tailwater_env::{Complaints, Env};
use tailwater_format::call::CallErrorCode;
use tailwater_login::LoginSession;
use tailwater_tls::{Acceptor, HELLO_IN_HTTP, PeerStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};

use super::refused;
use crate::config::AdminConfig;

/// Bytes of a body that is too long that are read all the same.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// Pause after a connection could not be accepted, for lack of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who sent a request: an extension of it.
#[derive(Clone, Debug)]
pub struct ConnectionSender {
    /// From where.
    pub address: SocketAddr,
    /// The same in words, and on whose behalf.
    pub peer: Arc<Peer>,
    /// How long it may go on, where it has shown a password or a token.
    pub session: Option<LoginSession>,
}

/// What requests may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// What is served, as the log calls it.
    pub name: &'static str,
    /// The section of the configuration where they can be changed.
    pub section: &'static str,
    /// As [`AdminConfig`]'s.
    pub connections_max: usize,
    /// As [`AdminConfig`]'s.
    pub header_bytes_max: usize,
    /// As [`AdminConfig`]'s.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are read or were not answered yet, together.
    pub bodies_bytes_max: usize,
    /// As [`AdminConfig`]'s.
    pub timeout: Duration,
}

impl From<AdminConfig> for Limits {
    fn from(config: AdminConfig) -> Self {
        Self {
            name: "admin HTTP",
            section: "[admin]",
            connections_max: config.connections_max,
            header_bytes_max: config.header_bytes_max,
            body_bytes_max: config.body_bytes_max,
            bodies_bytes_max: config.body_bytes_max.saturating_mul(config.connections_max).min(1 << 31),
            timeout: config.timeout(),
        }
    }
}

/// What a request's body is read within.
struct Bodies {
    env: Env,
    limits: Limits,
    /// Bytes that are left for bodies.
    room: Arc<Semaphore>,
}

/// Answers requests until `stopped`, then finishes those under way.
pub async fn serve(
    env: Env,
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    acceptor: Acceptor,
    mut stopped: oneshot::Receiver<()>,
) {
    let complaints = Arc::new(Complaints::default());
    let room = Arc::new(Semaphore::new(limits.bodies_bytes_max));
    let bodies = Arc::new(Bodies { env: env.clone(), limits: limits.clone(), room });
    let routes = routes.layer(middleware::from_fn_with_state(bodies, bound_body));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // From the connection's begin, and from the end of each answer: it also ends idle connections.
        .header_read_timeout(limits.timeout)
        .max_header_size(limits.header_bytes_max)
        .max_buf_size(limits.header_bytes_max);
    let name = limits.name;
    let timeout_ms = u32::try_from(limits.timeout.as_millis()).unwrap_or(u32::MAX);
    // Each connection has a receiver. What hyper-util has for this takes no connections that may be upgraded.
    let under_way = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut stopped => break, // a dropped sender means the same
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                complain(&env, name, &complaints, None, "a connection can't be accepted", &error.to_string());
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if under_way.receiver_count() >= limits.connections_max {
            let why = "there are connections_max connections already";
            complain(&env, name, &complaints, Some(peer), "refused", why);
            if !acceptor.is_secured() {
                refuse(&socket, limits.section);
            }
            continue;
        }
        // Best effort: without it the peer is dropped later.
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&socket, timeout_ms);
        let (http, routes, acceptor) = (http.clone(), routes.clone(), acceptor.clone());
        let (complaints, stopping) = (Arc::clone(&complaints), under_way.subscribe());
        let env_ = env.clone();
        let run = async move {
            let Some(stream) = acceptor.accept(socket, peer).await else { return };
            let opening = stream.opening();
            match exchange(&http, stream, peer, routes, stopping).await {
                Ok(()) => {}
                Err(error) if error.is_parse() && opening.is_hello() => {
                    complain(&env_, name, &complaints, Some(peer), "TLS", HELLO_IN_HTTP);
                }
                Err(error) if error.is_parse() => {
                    complain(&env_, name, &complaints, Some(peer), "no HTTP", &error.to_string());
                }
                // An idle connection, a slow one, or one whose peer went away.
                Err(error) => tracing::debug!(%peer, %error, "{name}: connection ended"),
            }
        };
        env.spawn("http-connection", run).detach();
    }
    drop(listener);
    under_way.send_replace(());
    under_way.closed().await;
}

/// Answers the requests of one connection until it ends, or until `stopping` says that the one under way is the last.
async fn exchange(
    http: &http1::Builder,
    stream: PeerStream,
    peer: SocketAddr,
    routes: Router,
    mut stopping: watch::Receiver<()>,
) -> hyper::Result<()> {
    let routes = TowerToHyperService::new(routes);
    let sender =
        ConnectionSender { address: peer, peer: Arc::new(stream.peer(peer.to_string())), session: None };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(sender.clone());
        routes.call(request)
    });
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = &mut connection => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// Tells one connection too many that it is. It may be gone by then.
fn refuse(socket: &TcpStream, section: &str) {
    // Without a length, so that the body ends where the connection does.
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n\
        connection: close\r\n\r\ntoo many connections: see connections_max below {section}\n"
    );
    let _ = socket.try_write(answer.as_bytes());
}

/// Reads a request's body, within the bounds, before anything is done about the request.
async fn bound_body(State(bodies): State<Arc<Bodies>>, request: Request, next: Next) -> Response {
    let Bodies { env, limits: Limits { section, body_bytes_max: most, timeout, .. }, room } = &*bodies;
    let (most, timeout) = (*most, *timeout);
    let (head, body) = request.into_parts();
    let too_long = || {
        let why = format!("the body is longer than {most} bytes: see body_bytes_max below {section}");
        refused(StatusCode::PAYLOAD_TOO_LARGE, CallErrorCode::Malformed, why)
    };
    let announced =
        head.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|announced: u64| announced > most as u64) {
        let _ = env.timeout(timeout, discard(body)).await;
        return too_long();
    }
    // Of one that does not say how long it is, room for the longest. It is given back when the request is answered.
    let wanted = match announced {
        Some(announced) => announced as usize,
        None if body.is_end_stream() => 0,
        None => most,
    };
    let Ok(_room) = room.try_acquire_many(wanted as u32) else {
        let _ = env.timeout(timeout, discard(body)).await;
        let why = format!("too many bodies are under way: see bodies_bytes_max below {section}");
        let mut answer = refused(StatusCode::SERVICE_UNAVAILABLE, CallErrorCode::Overloaded, why);
        answer.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        return answer;
    };
    match env.timeout(timeout, to_bytes(body, most)).await {
        Some(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Some(Err(error)) if is_too_long(&error) => too_long(),
        Some(Err(error)) => refused(StatusCode::BAD_REQUEST, CallErrorCode::Malformed, error.to_string()),
        None => {
            let why = format!("the body did not come within {timeout:?}");
            refused(StatusCode::REQUEST_TIMEOUT, CallErrorCode::Malformed, why)
        }
    }
}

/// Reads what a client still sends and forgets it: many read no answer before they have sent everything, and see
/// a broken connection instead.
async fn discard(body: Body) {
    let mut data = body.into_data_stream();
    let mut left = DISCARDED_BYTES_MAX;
    while left > 0
        && let Some(Ok(bytes)) = data.next().await
    {
        left = left.saturating_sub(bytes.len());
    }
}

fn is_too_long(error: &axum::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

/// Writes a line about a connection that went wrong, if the log can take it.
fn complain(
    env: &Env,
    name: &str,
    complaints: &Complaints,
    peer: Option<SocketAddr>,
    reason: &'static str,
    why: &str,
) {
    let Some(left_out) = complaints.admit(env.now(), reason) else { return };
    let peer = peer.map(tracing::field::display);
    tracing::warn!(peer, reason, why, left_out, "{name}: connection dropped");
}
