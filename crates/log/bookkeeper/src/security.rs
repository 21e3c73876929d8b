//! How servers are reached that want to know who comes, or that speak in TLS.

use tailwater_access::EngineLogin;
use tailwater_tls::Dialer;

/// How the servers are reached that have ledgers. By default nobody logs in, and nothing is encrypted.
#[derive(Clone, Debug, Default)]
pub struct LedgersSecurity {
    /// What is shown to ZooKeeper: SASL with DIGEST-MD5. A password is not sent.
    pub zookeeper: Option<EngineLogin>,
    /// Makes connections to ZooKeeper, in TLS if it trusts anybody. A server's certificate has to be for its host as
    /// the store names it.
    pub zookeeper_dialer: Dialer,
    /// To bookies.
    pub bookies: BookieSecurity,
}

/// How bookies are reached.
#[derive(Clone, Debug, Default)]
pub struct BookieSecurity {
    /// What is shown to a bookie: SASL with DIGEST-MD5. A password is not sent.
    pub login: Option<EngineLogin>,
    /// Makes a connection one in TLS, if it trusts anybody. A bookie's certificate has to be for the host of its
    /// address.
    pub dialer: Dialer,
}
