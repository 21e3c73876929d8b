//! A client's connection, which ends when an answer is not taken in time: however slowly a client reads, it holds memory no
//! longer than that.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use tailwater_env::Env;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection. Nothing is counted as long as the system takes what is written at once.
pub(crate) struct Socket<S> {
    stream: S,
    env: Env,
    limit: Duration,
    /// Since something could not be written: until when all has to be.
    deadline: Option<BoxFuture<'static, ()>>,
}

impl<S> Socket<S> {
    /// `stream`, whose answers have to be taken within `limit`.
    pub(crate) fn new(stream: S, env: &Env, limit: Duration) -> Self {
        Self { stream, env: env.clone(), limit, deadline: None }
    }

    /// What there is to be written has to wait.
    fn poll_waiting<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Self { env, limit, deadline, .. } = self;
        ready!(deadline.get_or_insert_with(|| env.sleep(*limit)).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "its answer was not taken in time")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
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

    /// Called when all is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.deadline = None;
        Pin::new(&mut self.stream).poll_flush(context)
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
        let mut socket = Socket::new(server, &env, Duration::from_secs(6));
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
}
