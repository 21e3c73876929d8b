//! Connections over which a client stops to ask, and hears what was answered by then.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether nothing more is asked over a connection.
#[derive(Default)]
pub(super) struct Halt {
    /// Written by whoever waits for an answer; read by the connection's task, which `waker` wakes after that.
    is_told: AtomicBool,
    waker: AtomicWaker,
}

impl Halt {
    /// The other end is told that nothing is waited for any more. What it had answered before it heard of that comes,
    /// and then the end.
    pub(super) fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }
}

/// A connection that ends in one direction when its [`Halt`] says so.
pub(super) struct HaltingStream<S> {
    stream: S,
    halt: Arc<Halt>,
    is_shut: bool,
}

impl<S> HaltingStream<S> {
    pub(super) fn new(stream: S, halt: &Arc<Halt>) -> Self {
        Self { stream, halt: Arc::clone(halt), is_shut: false }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HaltingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // First, so that a word that comes in between wakes it.
        self.halt.waker.register(context.waker());
        if !self.is_shut && self.halt.is_told() {
            // If it fails, reading says why.
            self.is_shut = Pin::new(&mut self.stream).poll_shutdown(context).is_ready();
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HaltingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
