//! Listens, and keeps the connections.
//!
//! There are at most `connections_max`; each has a head of bounded size, and bodies and answers are bounded one by one and
//! together ([`crate::front`]). A client that goes away while its receive waits ends that, and one that does not take its
//! answer in time is left ([`crate::socket`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tailwater_env::{Instant, Task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::front::Front;
use crate::limits::{COMPLAINTS_EVERY_S, COMPLAINTS_MAX};
use crate::socket::Socket;

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a request's head, and of what is read at once.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Answers clients until it is dropped: then all connections end.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    front: Arc<Front>,
    _accepting: Task,
}

impl Server {
    /// Answers the clients of `listener` for `front`.
    pub fn start(listener: TcpListener, front: Arc<Front>) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let env = front.env.clone();
        let accepting = env.spawn("sqs-accept", accept(listener, Arc::clone(&front)));
        Ok(Self { address, front, _accepting: accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it answers for.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }
}

async fn accept(listener: TcpListener, front: Arc<Front>) {
    let room = Arc::new(Semaphore::new(front.config.connections_max));
    let complaints = Arc::new(Complaints::default());
    // Dropped, and so ended, with this task.
    let mut connections: Vec<(std::sync::Weak<()>, Task)> = Vec::new();
    let mut prune_at = 64;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                complaints.tell(front.env.now(), || {
                    format!("no connection can be accepted at the moment: {error}")
                });
                front.env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if connections.len() >= prune_at {
            connections.retain(|(alive, _)| alive.strong_count() > 0);
            prune_at = (connections.len() * 2).max(64);
        }
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            let max = front.config.connections_max;
            complaints.tell(front.env.now(), || {
                format!("{peer} refused: {max} connections, [sqs] connections_max")
            });
            continue;
        };
        // A client that is not there any more is dropped by the kernel; best effort, as the system may not know it.
        let stalled_ms = u32::try_from(front.config.stalled_ms).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, stalled_ms);
        if stream.set_nodelay(true).is_err() {
            continue; // gone at once
        }
        let alive = Arc::new(());
        let watch = Arc::downgrade(&alive);
        let (serving, complaining) = (Arc::clone(&front), Arc::clone(&complaints));
        let task = front.env.spawn("sqs-connection", async move {
            serve(stream, peer, serving, &complaining).await;
            drop((alive, permit));
        });
        connections.push((watch, task));
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, front: Arc<Front>, complaints: &Complaints) {
    front.stats.connections.fetch_add(1, Ordering::Relaxed);
    let service = service_fn(|request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(request).await) }
    });
    let stream = Socket::new(stream, &front.env, Duration::from_millis(front.config.stalled_ms));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // From the connection's begin, and from the end of each answer: it also ends idle connections.
        .header_read_timeout(Duration::from_millis(front.config.idle_ms))
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match connection.await {
        Ok(()) => {}
        Err(error) if error.is_parse() => {
            complaints.tell(front.env.now(), || format!("{peer} sent what is no HTTP: {error}"));
        }
        Err(error) => tracing::debug!(%peer, %error, "an SQS client's connection ended"),
    }
    front.stats.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Writes lines about connections that went wrong, not more than a log can take.
#[derive(Debug, Default)]
struct Complaints(Mutex<(Option<Instant>, u32)>);

impl Complaints {
    fn tell(&self, now: Instant, what: impl FnOnce() -> String) {
        let mut told = self.0.lock();
        if told.0.is_none_or(|since| now.since(since) >= Duration::from_secs(COMPLAINTS_EVERY_S)) {
            *told = (Some(now), 0);
        }
        told.1 += 1;
        if told.1 <= COMPLAINTS_MAX {
            tracing::warn!(what = what(), "SQS");
        }
    }
}
