//! Where a load finds a server, and who it is there.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tailwater_client::{Dialer, DialerConfig, TlsError};
use tailwater_env::Env;

/// What Kafka's brokers are told of a client that has no other name.
const CLIENT_ID: &str = "tailwater-bench";

/// An address, whose certificates are good where it is reached in TLS, and who connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadAddress {
    /// As the client library takes it, or `HOST:PORT` of Kafka's protocol.
    pub address: String,
    /// A PEM file with the CA; nothing is no TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// In TLS, a PEM file with the certificate that is shown, and its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// What a client of Kafka's protocol calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
}

impl LoadAddress {
    /// What makes connections there.
    ///
    /// # Errors
    /// A file that has no CA, or a build without TLS.
    pub fn dialer(&self) -> Result<Dialer, TlsError> {
        let (ca, certificate) = (self.ca.clone(), self.certificate.clone());
        Dialer::open(&Env::real(), &DialerConfig { ca, certificate, ..DialerConfig::default() })
    }

    /// In TLS, if there is a CA.
    pub fn with_ca(mut self, ca: Option<PathBuf>) -> Self {
        self.ca = ca;
        self
    }

    /// What a client of Kafka's protocol calls itself.
    pub fn client_id(&self) -> &str {
        self.client_id.as_deref().unwrap_or(CLIENT_ID)
    }
}

impl From<String> for LoadAddress {
    fn from(address: String) -> Self {
        Self { address, ..Self::default() }
    }
}
