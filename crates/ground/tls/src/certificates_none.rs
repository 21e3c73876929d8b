//! What stands for certificates in a build without TLS: there are none.

use std::net::SocketAddr;
use std::sync::Arc;

use tailwater_env::{Env, Task};
use tokio::net::TcpStream;

use crate::acceptor::HandshakeError;
use crate::config::{TlsConfig, TlsError};
use crate::stats::TlsStats;
use crate::stream::PeerStream;

/// A node's certificates, of which a build without TLS has none.
#[derive(Debug)]
pub enum Certificates {}

impl Certificates {
    /// None, or that this build has no TLS.
    ///
    /// # Errors
    /// Where the configuration names a certificate.
    pub fn open(_: &Env, config: &TlsConfig) -> Result<Option<Arc<Self>>, TlsError> {
        config.check(false, []).map(|()| None).map_err(TlsError)
    }

    /// See the build that has them.
    pub fn watch(self: &Arc<Self>) -> Task {
        match **self {}
    }

    /// See the build that has them.
    pub fn look(&self) {
        match *self {}
    }

    /// See the build that has them.
    pub fn expires_ms(&self) -> i64 {
        match *self {}
    }

    /// See the build that has them.
    pub fn stats(&self) -> TlsStats {
        match *self {}
    }

    pub(crate) async fn accept(&self, _: TcpStream, _: SocketAddr, _: &str) -> Option<PeerStream> {
        match *self {}
    }

    pub(crate) async fn handshake(&self, _: TcpStream) -> Result<PeerStream, HandshakeError> {
        match *self {}
    }
}
