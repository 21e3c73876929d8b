//! The two directions of a connection, for a task each.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

#[cfg(feature = "rustls")]
type Secured = tokio_rustls::TlsStream<tokio::net::TcpStream>;

/// What comes over a connection.
#[derive(Debug)]
pub enum PeerReadHalf {
    /// As it comes.
    Plain(OwnedReadHalf),
    /// In TLS.
    #[cfg(feature = "rustls")]
    Secured(tokio::io::ReadHalf<Secured>),
}

/// Where what is to be sent over a connection goes. What is written in TLS may wait until it is flushed.
#[derive(Debug)]
pub enum PeerWriteHalf {
    /// As it is.
    Plain(OwnedWriteHalf),
    /// In TLS.
    #[cfg(feature = "rustls")]
    Secured(tokio::io::WriteHalf<Secured>),
}

impl AsyncRead for PeerReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(half) => Pin::new(half).poll_read(context, buffer),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => Pin::new(half).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerWriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(half) => Pin::new(half).poll_write(context, bytes),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => Pin::new(half).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(half) => Pin::new(half).poll_write_vectored(context, parts),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => Pin::new(half).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(half) => half.is_write_vectored(),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => half.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(half) => Pin::new(half).poll_flush(context),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => Pin::new(half).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(half) => Pin::new(half).poll_shutdown(context),
            #[cfg(feature = "rustls")]
            Self::Secured(half) => Pin::new(half).poll_shutdown(context),
        }
    }
}
