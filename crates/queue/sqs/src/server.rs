//! Listens, and keeps the connections.
//!
//! There are at most `connections_max`, and of these `connections_per_address_max` from one address; each has a head of
//! bounded size, and bodies and answers are bounded one by one and together ([`crate::front`]). A client that goes away
//! while its receive waits ends that, and one that does not take its answer in time is left ([`crate::socket`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tailwater_access::PlacesByAddress;
use tailwater_env::{Complaints, Task, TaskGroup};
use tailwater_tls::{Acceptor, HELLO_IN_HTTP, PeerStream};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::SqsConfig;
use crate::front::{Front, OverTls, is_health};
use crate::socket::{Limits, RequestSocket, Requests};

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request's head, and of what is read at once.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Answers clients until it is dropped: then all connections end.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    is_secured: bool,
    front: Arc<Front>,
    _accepting: Task,
}

impl Server {
    /// Answers the clients of `listener` for `front`. Nothing is encrypted.
    pub fn start(listener: TcpListener, front: Arc<Front>) -> std::io::Result<Self> {
        Self::start_with(listener, Acceptor::plain(), front)
    }

    /// The same with what takes the connections.
    pub fn start_with(listener: TcpListener, acceptor: Acceptor, front: Arc<Front>) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let (env, is_secured) = (front.env.clone(), acceptor.is_secured());
        let accepting = env.spawn("sqs-accept", accept(listener, acceptor, Arc::clone(&front)));
        Ok(Self { address, is_secured, front, _accepting: accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether connections are encrypted.
    pub fn is_secured(&self) -> bool {
        self.is_secured
    }

    /// What it answers for.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }
}

async fn accept(listener: TcpListener, acceptor: Acceptor, front: Arc<Front>) {
    let room = Arc::new(Semaphore::new(front.config.connections_max));
    let places = PlacesByAddress::default();
    let complaints = Arc::new(Complaints::default());
    // Dropped, and so ended, with this task.
    let mut connections = TaskGroup::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                let reason = "no connection can be accepted at the moment";
                complain(&front, &complaints, reason, || error.to_string());
                front.env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            let max = front.config.connections_max;
            complain(&front, &complaints, "refused", || {
                format!("{peer}: {max} connections, [sqs] connections_max")
            });
            continue;
        };
        let max = front.config.connections_per_address_max;
        let Some(place) = places.take(peer.ip(), max) else {
            complain(&front, &complaints, "refused, of one address", || {
                format!("{peer}: {max} connections of its address, [sqs] connections_per_address_max")
            });
            continue;
        };
        // A client that is not there any more is dropped by the kernel; best effort, as the system may not know it.
        let stalled_ms = u32::try_from(front.config.stalled_ms).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, stalled_ms);
        if stream.set_nodelay(true).is_err() {
            continue; // gone at once
        }
        let (serving, complaining) = (Arc::clone(&front), Arc::clone(&complaints));
        let acceptor = acceptor.clone();
        connections.spawn(&front.env, "sqs-connection", async move {
            if let Some(stream) = acceptor.accept(stream, peer).await {
                serve(stream, peer, serving, &complaining).await;
            }
            drop((permit, place));
        });
    }
}

async fn serve(stream: PeerStream, peer: SocketAddr, front: Arc<Front>, complaints: &Complaints) {
    front.stats.connections.fetch_add(1, Ordering::Relaxed);
    // Nobody has signed yet: whose each request is, its signature says.
    let asking = stream.peer(peer.to_string());
    let (asking, is_secured, opening) = (&asking, stream.is_secured(), stream.opening());
    let requests = Arc::new(Requests::default());
    let service = service_fn(|mut request: Request<Incoming>| {
        if is_secured {
            request.extensions_mut().insert(OverTls);
        }
        let (front, requests) = (Arc::clone(&front), Arc::clone(&requests));
        requests.begin();
        async move {
            let is_health = is_health(&request);
            let answer = front.answer(asking, request).await;
            // Where there are accounts it was signed, but for those that everybody may ask.
            requests.end(answer.status().is_success() && !is_health);
            Ok::<_, Infallible>(answer)
        }
    });
    let of = Duration::from_millis;
    let SqsConfig { idle_ms, head_ms, stalled_ms, .. } = front.config;
    let limits = Limits { idle: of(idle_ms), head: of(head_ms), answer: of(stalled_ms) };
    let stream = RequestSocket::new(stream, &front.env, limits, &requests);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // From the connection's begin, and from the end of each answer: it also ends idle connections.
        .header_read_timeout(Duration::from_millis(front.config.idle_ms))
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match connection.await {
        Ok(()) => {}
        Err(error) if error.is_parse() && opening.is_hello() => {
            complain(&front, complaints, "TLS", || format!("{peer}: {HELLO_IN_HTTP}"));
        }
        Err(error) if error.is_parse() => {
            complain(&front, complaints, "no HTTP", || format!("{peer}: {error}"));
        }
        Err(error) => tracing::debug!(%peer, %error, "an SQS client's connection ended"),
    }
    front.stats.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Writes a line about a connection that went wrong, if the log can take it.
fn complain(front: &Front, complaints: &Complaints, reason: &'static str, why: impl FnOnce() -> String) {
    if let Some(left_out) = complaints.admit(front.env.now(), reason) {
        tracing::warn!(reason, why = why(), left_out, "SQS: connection dropped");
    }
}
