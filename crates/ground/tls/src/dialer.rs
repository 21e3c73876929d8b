//! Makes connections of ours to others.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;
use tokio::net::TcpStream;

use crate::config::TlsError;
use crate::stream::PeerStream;
use crate::trust::Trust;

/// What a client of ours trusts, and what it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialerConfig {
    /// A PEM file with the CAs of servers' certificates. None is no TLS, whatever the others are.
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate that is shown, and behind it those between it and its CA.
    pub certificate: Option<PathBuf>,
    /// A PEM file with its key. None is the file of the certificate.
    pub key: Option<PathBuf>,
    /// Names that a server's certificate may have in place of the IP address at which it is reached.
    pub names: Vec<String>,
}

/// Why there is no connection in TLS.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// One of both does not like what the other one has shown or offered, or is not set up for it. No try helps until
    /// somebody has changed something.
    #[error("{0}")]
    Refused(String),
    /// The server did not go on.
    #[error("the handshake was not done in {0:?}")]
    Slow(Duration),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What makes the connections of a client: in TLS, if it trusts anybody. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Option<Arc<Trust>>);

impl Dialer {
    /// One that can make connections without TLS only.
    pub fn plain() -> Self {
        Self(None)
    }

    /// One that trusts whom the configuration says. Reads the files, which blocks, and again when a second or more
    /// later it is used and they have changed.
    ///
    /// # Errors
    /// A file that can't be read, has no certificate or no key, or has one that does not belong to the other; or a
    /// build without TLS.
    pub fn open(env: &Env, config: &DialerConfig) -> Result<Self, TlsError> {
        match config.ca {
            // What would be shown is shown to nobody.
            None => Ok(Self(None)),
            Some(_) => Ok(Self(Some(Arc::new(Trust::open(env, config)?)))),
        }
    }

    /// Whether it can make connections in TLS.
    pub fn is_secured(&self) -> bool {
        self.0.is_some()
    }

    /// Connects to `address`, which is `HOST:PORT`: in TLS, if it can. What is small goes out at once.
    ///
    /// # Errors
    /// Why it came to nothing, and what to do.
    pub async fn connect(&self, address: &str) -> Result<PeerStream, DialError> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        if !self.is_secured() {
            return Ok(PeerStream::plain(tcp));
        }
        self.secure(tcp, address.rsplit_once(':').map_or(address, |(host, _)| host)).await
    }

    /// Begins TLS on a connection to `host`: a name, or an IP address, which may be in brackets.
    ///
    /// # Errors
    /// Why it came to nothing, and what to do.
    pub async fn secure(&self, tcp: TcpStream, host: &str) -> Result<PeerStream, DialError> {
        match &self.0 {
            Some(trust) => trust.secure(tcp, host.trim_matches(['[', ']'])).await,
            None => Err(DialError::Refused(
                "it is to be reached in TLS, and nothing says whose certificates are good: name the file of its CA".to_owned(),
            )),
        }
    }
}
