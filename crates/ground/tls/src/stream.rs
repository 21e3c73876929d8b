//! A connection as the protocol behind it reads and writes it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tailwater_access::Peer;
use tailwater_env::Env;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::channel::Channel;
use crate::halves::{PeerReadHalf, PeerWriteHalf};
use crate::identity::ClientIdentity;
use crate::limits::CLOSE_PATIENCE;

/// Bytes from which on it is clear that TLS begins.
const HELLO_BYTES: usize = 3;

/// What is said of a client that speaks TLS to a listener of HTTP that does not.
pub const HELLO_IN_HTTP: &str =
    "the client speaks TLS, and this listener does not: set `tls = true` for it, or ask it by http";

/// Whether these bytes of a connection's beginning are those of TLS. Less than three are not.
pub fn is_hello(bytes: &[u8]) -> bool {
    // A record with a part of a handshake, and its version, which has been 3.1 or 3.3 for long.
    matches!(bytes, [22, 3, 0..=4, ..])
}

/// A connection, plain or in TLS, at either end of it.
///
/// What is written in TLS may wait in memory, 64 KiB at most, until it is flushed: whoever waits for an answer to have
/// gone flushes.
#[derive(Debug)]
pub struct PeerStream {
    inner: Inner,
    client: Option<ClientIdentity>,
    opening: Opening,
    /// Whether the beginning was looked at.
    has_begun: bool,
}

#[derive(Debug)]
enum Inner {
    Plain(TcpStream),
    #[cfg(feature = "rustls")]
    Secured(Box<tokio_rustls::TlsStream<TcpStream>>),
}

/// What a plain connection began with, for whoever gave the connection away and wonders what was wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Opening(Arc<AtomicBool>);

impl Opening {
    /// Whether its client speaks TLS, which the listener does not.
    pub fn is_hello(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl PeerStream {
    /// A connection as it comes.
    pub fn plain(tcp: TcpStream) -> Self {
        Self { inner: Inner::Plain(tcp), client: None, opening: Opening::default(), has_begun: false }
    }

    #[cfg(feature = "rustls")]
    pub(crate) fn secured(
        stream: impl Into<tokio_rustls::TlsStream<TcpStream>>,
        client: Option<ClientIdentity>,
    ) -> Self {
        let inner = Inner::Secured(Box::new(stream.into()));
        Self { inner, client, opening: Opening::default(), has_begun: true }
    }

    /// The connection below.
    pub fn tcp(&self) -> &TcpStream {
        match &self.inner {
            Inner::Plain(tcp) => tcp,
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => stream.get_ref().0,
        }
    }

    /// The connection below, and what is between it and who uses it, if anything. To be done before anything was read
    /// or written.
    pub fn into_parts(self) -> (TcpStream, Option<Channel>) {
        match self.inner {
            Inner::Plain(tcp) => (tcp, None),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => match *stream {
                tokio_rustls::TlsStream::Client(stream) => {
                    let (tcp, connection) = stream.into_inner();
                    (tcp, Some(Channel::new(connection)))
                }
                tokio_rustls::TlsStream::Server(stream) => {
                    let (tcp, connection) = stream.into_inner();
                    (tcp, Some(Channel::new(connection)))
                }
            },
        }
    }

    /// Its two directions.
    pub fn into_split(self) -> (PeerReadHalf, PeerWriteHalf) {
        match self.inner {
            Inner::Plain(tcp) => {
                let (read, write) = tcp.into_split();
                (PeerReadHalf::Plain(read), PeerWriteHalf::Plain(write))
            }
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => {
                let (read, write) = tokio::io::split(*stream);
                (PeerReadHalf::Secured(read), PeerWriteHalf::Secured(write))
            }
        }
    }

    /// Whether it is encrypted.
    pub fn is_secured(&self) -> bool {
        !matches!(self.inner, Inner::Plain(_))
    }

    /// Who is at the other end, at `address`: by a certificate, or nobody that is known.
    pub fn peer(&self, address: String) -> Peer {
        match &self.client {
            Some(client) => client.peer(address),
            None => Peer::anonymous(address),
        }
    }

    /// What it began with, which is known when something was read.
    pub fn opening(&self) -> Opening {
        self.opening.clone()
    }

    /// Ends a connection in TLS in the way that says that it was not cut off. Waits a second for the client to take
    /// that. A plain one needs no words.
    pub async fn close(&mut self, env: &Env) {
        if self.is_secured() {
            // A client that has gone has no need of it.
            let _ = env.timeout(CLOSE_PATIENCE, self.shutdown()).await;
        }
    }
}

impl From<TcpStream> for PeerStream {
    fn from(tcp: TcpStream) -> Self {
        Self::plain(tcp)
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match &mut this.inner {
            Inner::Plain(tcp) => {
                let before = buffer.filled().len();
                let read = Pin::new(tcp).poll_read(context, buffer);
                let came = &buffer.filled()[before..];
                if !this.has_begun && !came.is_empty() {
                    // Who speaks TLS sends these together; in pieces they are taken for whatever else.
                    this.has_begun = true;
                    if came.len() >= HELLO_BYTES && is_hello(came) {
                        this.opening.0.store(true, Ordering::Relaxed);
                    }
                }
                read
            }
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, parts),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Plain(tcp) => tcp.is_write_vectored(),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            #[cfg(feature = "rustls")]
            Inner::Secured(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
