//! A client's connection, which ends when an answer is not taken in time, or a request's head does not come: however
//! slowly a client reads, it holds memory no longer than that, and however slowly it writes, its connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use tailwater_env::Env;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is known of a connection's requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Odd while one is answered, whose head is there.
    turns: AtomicU64,
    /// Whether one has succeeded.
    is_known: AtomicBool,
}

impl Requests {
    /// A request's head is there, and it is answered now.
    pub(crate) fn begin(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// It is answered.
    pub(crate) fn end(&self, is_known: bool) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.is_known.fetch_or(is_known, Ordering::Relaxed);
    }
}

/// How long a connection may be between two requests, and within a request's head, or before any that succeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) head: Duration,
    /// An answer has to be taken within this.
    pub(crate) answer: Duration,
}

/// Waits for requests' heads.
struct RequestHeads {
    requests: Arc<Requests>,
    limits: Limits,
    /// The turn that the rest is of.
    turn: u64,
    has_begun: bool,
    deadline: Option<BoxFuture<'static, ()>>,
}

impl RequestHeads {
    /// Whether it is waited for one.
    fn is_due(&mut self) -> bool {
        let turn = self.requests.turns.load(Ordering::Relaxed);
        if turn != self.turn {
            (self.turn, self.has_begun, self.deadline) = (turn, false, None);
        }
        turn.is_multiple_of(2)
    }

    /// Something was read.
    fn read(&mut self) {
        if self.is_due() && !self.has_begun {
            (self.has_begun, self.deadline) = (true, None);
        }
    }

    /// There is nothing to be read.
    fn poll(&mut self, env: &Env, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_due() {
            return Poll::Pending;
        }
        let is_idle = !self.has_begun && self.requests.is_known.load(Ordering::Relaxed);
        let limit = if is_idle { self.limits.idle } else { self.limits.head };
        self.deadline.get_or_insert_with(|| env.sleep(limit)).as_mut().poll(context)
    }
}

/// A connection. Nothing is counted as long as the system takes what is written at once.
pub(crate) struct RequestSocket<S> {
    stream: S,
    env: Env,
    heads: RequestHeads,
    /// Since something could not be written: until when all has to be.
    deadline: Option<BoxFuture<'static, ()>>,
}

impl<S> RequestSocket<S> {
    /// `stream`, and what its requests are told to.
    pub(crate) fn new(stream: S, env: &Env, limits: Limits, requests: &Arc<Requests>) -> Self {
        let requests = Arc::clone(requests);
        let heads = RequestHeads { requests, limits, turn: 0, has_begun: false, deadline: None };
        Self { stream, env: env.clone(), heads, deadline: None }
    }

    /// What there is to be written has to wait.
    fn poll_waiting<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Self { env, heads, deadline, .. } = self;
        ready!(deadline.get_or_insert_with(|| env.sleep(heads.limits.answer)).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "its answer was not taken in time")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, env, heads, .. } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(context, buffer);
        match &read {
            Poll::Pending => {
                ready!(heads.poll(env, context));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "its request did not come in time")))
            }
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                heads.read();
                read
            }
            Poll::Ready(_) => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.poll_waiting(context),
            written => written,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, parts) {
            Poll::Pending => self.poll_waiting(context),
            written => written,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when all is written; in TLS some of it may be in memory still.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.poll_waiting(context),
            flushed => {
                self.deadline = None;
                flushed
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_taken_byte_by_byte_ends_its_connection() {
        let env = Env::real();
        let (server, mut client) = tokio::io::duplex(16);
        let long = Duration::from_secs(600);
        let limits = Limits { idle: long, head: long, answer: Duration::from_secs(6) };
        let mut socket = RequestSocket::new(server, &env, limits, &Arc::default());
        // A first one is taken at once.
        let mut taken = vec![0; 1_000];
        let first = vec![1; 1_000];
        let write = async {
            socket.write_all(&first).await?;
            socket.flush().await
        };
        let (written, read) = futures::join!(write, client.read_exact(&mut taken));
        written.expect("written");
        read.expect("read");
        assert_eq!(taken, first);
        // This one always goes on, and would take minutes.
        let slowly = async {
            while client.read_u8().await.is_ok() {
                env.sleep(Duration::from_millis(20)).await;
            }
        };
        let long = vec![2; 10_000];
        let write = async {
            let failed = socket.write_all(&long).await.expect_err("it is not taken");
            drop(socket);
            failed
        };
        let (failed, ()) = futures::join!(write, slowly);
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
    #[tokio::test]
    async fn a_request_whose_head_does_not_come_ends_its_connection_and_one_that_is_answered_does_not() {
        let env = Env::real();
        let limits = Limits {
            idle: Duration::from_secs(600),
            head: Duration::from_millis(50),
            answer: Duration::from_secs(600),
        };
        let requests = Arc::new(Requests::default());
        let (server, mut client) = tokio::io::duplex(16);
        let mut socket = RequestSocket::new(server, &env, limits, &requests);
        client.write_all(b"a").await.expect("sent");
        assert_eq!(socket.read_u8().await.expect("read"), b'a');
        requests.begin();
        // Longer than a head may take.
        let waited = env.timeout(Duration::from_millis(200), socket.read_u8()).await;
        assert!(waited.is_none(), "it is answered: {waited:?}");
        requests.end(true);
        let waited = env.timeout(Duration::from_millis(200), socket.read_u8()).await;
        assert!(waited.is_none(), "it was answered well, and may be silent: {waited:?}");
        client.write_all(b"b").await.expect("sent");
        assert_eq!(socket.read_u8().await.expect("read"), b'b');
        assert_eq!(socket.read_u8().await.expect_err("no more").kind(), io::ErrorKind::TimedOut);
        // Nobody knows this one.
        let (server, _client) = tokio::io::duplex(16);
        let mut socket = RequestSocket::new(server, &env, limits, &Arc::default());
        assert_eq!(socket.read_u8().await.expect_err("nothing").kind(), io::ErrorKind::TimedOut);
    }
}
