//! Where the backends of a cell are, and how to get a connection to one.

use std::sync::Arc;

use futures::future::BoxFuture;
use tailwater_env::Env;
use tailwater_rma::{Address, Connection};
use tailwater_tls::Dialer;

use crate::layout::INDEX_KIND;

/// Makes connections to the backends of a cell.
pub trait Connector: Send + Sync + 'static {
    /// Connects to backend `backend`, counted from 0. The cell bounds the time it takes.
    fn connect(&self, backend: usize) -> BoxFuture<'_, Result<Arc<dyn Connection>, String>>;
}

/// The backends of a cell.
#[derive(Clone)]
pub struct Backends {
    pub(super) count: usize,
    pub(super) connector: Arc<dyn Connector>,
}

impl Backends {
    /// Backends at addresses; those of one backend are tried in their order.
    pub fn at(env: &Env, addresses: Vec<Vec<Address>>) -> Self {
        Self::dialled(env, addresses, Dialer::plain())
    }

    /// The same, where `dialer` says whom to trust at those in TLS.
    pub fn dialled(env: &Env, addresses: Vec<Vec<Address>>, dialer: Dialer) -> Self {
        Self {
            count: addresses.len(),
            connector: Arc::new(ByAddress { env: env.clone(), addresses, dialer }),
        }
    }

    /// Connections that are there already, one for each backend. One that is lost is not made again.
    pub fn connected(connections: Vec<Arc<dyn Connection>>) -> Self {
        Self { count: connections.len(), connector: Arc::new(Connected(connections)) }
    }

    /// `count` backends, reached in the caller's own way.
    pub fn through(connector: Arc<dyn Connector>, count: usize) -> Self {
        Self { count, connector }
    }
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backends({})", self.count)
    }
}

struct ByAddress {
    env: Env,
    addresses: Vec<Vec<Address>>,
    dialer: Dialer,
}

impl Connector for ByAddress {
    fn connect(&self, backend: usize) -> BoxFuture<'_, Result<Arc<dyn Connection>, String>> {
        Box::pin(connect_any(&self.env, &self.addresses[backend], &self.dialer))
    }
}

/// Which start of which backend is at the other end: the generation of its index region, which no other one has. `None`
/// if that is no backend.
pub fn instance_of(connection: &dyn Connection) -> Option<u64> {
    let regions = connection.regions();
    regions.iter().find(|region| region.kind == INDEX_KIND).map(|region| region.generation)
}

/// Connects at the first of some addresses that answers, in their order; an error is why the last one did not.
async fn connect_any(
    env: &Env,
    addresses: &[Address],
    dialer: &Dialer,
) -> Result<Arc<dyn Connection>, String> {
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match tailwater_rma::connect_with(env, address, dialer).await {
            Ok(connection) => return Ok(connection),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}

struct Connected(Vec<Arc<dyn Connection>>);

impl Connector for Connected {
    fn connect(&self, backend: usize) -> BoxFuture<'_, Result<Arc<dyn Connection>, String>> {
        let connection = &self.0[backend];
        let answer = match connection.lost() {
            None => Ok(Arc::clone(connection)),
            Some(lost) => Err(lost.to_string()),
        };
        Box::pin(std::future::ready(answer))
    }
}
