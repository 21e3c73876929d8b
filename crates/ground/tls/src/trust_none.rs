//! What stands for trust in a build without TLS: there is none.

use tailwater_env::Env;
use tokio::net::TcpStream;

use crate::config::{NO_TLS_IN_BUILD, TlsError};
use crate::dialer::{DialError, DialerConfig};
use crate::stream::PeerStream;

/// What went wrong with a connection.
pub(crate) fn told(error: &std::io::Error) -> String {
    error.to_string()
}

/// Whom a client trusts, of which a build without TLS has nobody.
#[derive(Debug)]
pub(crate) enum Trust {}

impl Trust {
    pub(crate) fn open(_: &Env, config: &DialerConfig) -> Result<Self, TlsError> {
        let path = config.ca.as_deref().unwrap_or(std::path::Path::new(""));
        Err(TlsError(format!("{path:?} is to be trusted, {NO_TLS_IN_BUILD}")))
    }

    pub(crate) async fn secure(&self, _: TcpStream, _: &str) -> Result<PeerStream, DialError> {
        match *self {}
    }
}
