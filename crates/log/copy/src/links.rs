//! How a cluster reaches others: the seam between the protocol and connections.

use std::str::FromStr;
use std::sync::Arc;

use tailwater_env::{BoxFuture, Env};
use tailwater_rma::{Address, Connection, connect_with};
use tailwater_tls::Dialer;

/// Makes connections to the nodes of other clusters.
///
/// CALLs over a connection may overtake each other, get no answer, or be carried out without one. Whoever connects
/// bounds the time that it takes.
pub trait ClusterLinks: Send + Sync {
    /// A connection to the node at `address`, as it was given to [`crate::Copies::add`]; in words why there is none.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>>;
}

/// Connections over the network, made as a node makes all of its connections.
pub struct DialedLinks {
    env: Env,
    dialer: Dialer,
}

impl DialedLinks {
    /// Those that `dialer` makes.
    pub fn new(env: &Env, dialer: &Dialer) -> Arc<Self> {
        Arc::new(Self { env: env.clone(), dialer: dialer.clone() })
    }
}

impl ClusterLinks for DialedLinks {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        Box::pin(async move {
            let address = Address::from_str(address).map_err(|error| error.to_string())?;
            connect_with(&self.env, &address, &self.dialer).await.map_err(|error| error.to_string())
        })
    }
}
