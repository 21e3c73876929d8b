//! Accepts the connections of one listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::certificates::Certificates;
use crate::stream::PeerStream;

/// Why a connection came to nothing before anything was said over it.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client speaks something else.
    #[error(
        "the client speaks {0}, and this listener takes TLS only: tell the client to use TLS, or set `tls = false` here"
    )]
    Plain(&'static str),
    /// One of both does not like what the other one has shown or offered.
    #[error("{0}")]
    Refused(String),
    /// The client did not go on, or it was not its turn.
    #[error("the handshake was not done in {0:?}")]
    Slow(Duration),
    /// The client has gone without a word, as those do that only look whether somebody listens.
    #[error("the client went away before it said anything")]
    Silent,
    /// The client has gone within the handshake.
    #[error("the client went away within the handshake")]
    Cut,
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl HandshakeError {
    /// What lines in the log about it are bounded by.
    #[cfg_attr(
        not(feature = "rustls"),
        expect(dead_code, reason = "nothing goes wrong where nothing is done")
    )]
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Plain(_) => "no TLS",
            Self::Refused(_) => "refused",
            Self::Slow(_) => "too slow",
            Self::Silent | Self::Cut | Self::Io(_) => "gone",
        }
    }
}

/// What takes the connections of a listener: as they come, or in TLS.
#[derive(Clone, Debug, Default)]
pub struct Acceptor(Option<(&'static str, Arc<Certificates>)>);

impl Acceptor {
    /// Connections as they come.
    pub fn plain() -> Self {
        Self(None)
    }

    /// Connections in TLS. The log calls the listener `name`.
    pub fn secured(name: &'static str, certificates: &Arc<Certificates>) -> Self {
        Self(Some((name, Arc::clone(certificates))))
    }

    /// Whether connections are encrypted.
    pub fn is_secured(&self) -> bool {
        self.0.is_some()
    }

    /// What the protocol goes on with, when both sides have agreed. A failure is counted, and told in the log as far as
    /// that can take such lines. To be called in the task of the connection: it waits for the client.
    pub async fn accept(&self, tcp: TcpStream, peer: SocketAddr) -> Option<PeerStream> {
        match &self.0 {
            None => Some(PeerStream::plain(tcp)),
            Some((name, certificates)) => certificates.accept(tcp, peer, name).await,
        }
    }

    /// The same without a line in the log.
    ///
    /// # Errors
    /// Why it came to nothing.
    pub async fn handshake(&self, tcp: TcpStream) -> Result<PeerStream, HandshakeError> {
        match &self.0 {
            None => Ok(PeerStream::plain(tcp)),
            Some((_, certificates)) => certificates.handshake(tcp).await,
        }
    }
}
