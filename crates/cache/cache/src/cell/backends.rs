//! Where the backends of a cell are, and how to get a connection to one.

use std::str::FromStr;
use std::sync::Arc;

use futures::future::BoxFuture;
use tailwater_env::Env;
use tailwater_rma::{Address, Connection};
use tailwater_tls::Dialer;

use crate::configuration::BackendPlace;
use crate::layout::INDEX_KIND;

/// A connection to a backend, or why there is none, in words.
pub type Connecting<'a> = BoxFuture<'a, Result<Arc<dyn Connection>, String>>;

/// Makes connections to the backends of a cell.
pub trait Connector: Send + Sync + 'static {
    /// Connects to a backend, as its cell's configuration has it. The cell bounds the time it takes.
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a>;
}

/// The backends of a cell whose configuration never changes, by their numbers from 0.
#[derive(Clone)]
pub struct Backends {
    pub(super) places: Vec<BackendPlace>,
    pub(super) connector: Arc<dyn Connector>,
}

impl Backends {
    /// Backends at addresses; those of one backend are tried in their order.
    pub fn at(env: &Env, addresses: Vec<Vec<Address>>) -> Self {
        let texts = addresses.iter().map(|addresses| addresses.iter().map(Address::to_string).collect());
        let places =
            (0..).zip(texts).map(|(number, addresses)| BackendPlace::new(number, addresses)).collect();
        Self { places, connector: Self::by_address(env) }
    }

    /// Connections that are there already, one for each backend. One that is lost is not made again.
    pub fn connected(connections: Vec<Arc<dyn Connection>>) -> Self {
        let count = connections.len();
        Self::through(Arc::new(Connected(connections)), count)
    }

    /// `count` backends, reached in the caller's own way.
    pub fn through(connector: Arc<dyn Connector>, count: usize) -> Self {
        let numbers = (0_u32..).take(count);
        let places = numbers.map(|number| BackendPlace::new(number, Vec::new())).collect();
        Self { places, connector }
    }

    /// What reaches backends at the addresses that their configuration has, in their order.
    pub fn by_address(env: &Env) -> Arc<dyn Connector> {
        Self::by_address_with(env, Dialer::plain())
    }

    /// The same, where `dialer` says whom to trust at those in TLS.
    pub fn by_address_with(env: &Env, dialer: Dialer) -> Arc<dyn Connector> {
        Arc::new(ByAddress { env: env.clone(), dialer })
    }
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backends({})", self.places.len())
    }
}

struct ByAddress {
    env: Env,
    dialer: Dialer,
}

impl Connector for ByAddress {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        Box::pin(connect_any(&self.env, &backend.addresses, &self.dialer))
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
    addresses: &[String],
    dialer: &Dialer,
) -> Result<Arc<dyn Connection>, String> {
    let mut why = "it has no address".to_owned();
    for text in addresses {
        let address = match Address::from_str(text) {
            Ok(address) => address,
            Err(error) => {
                why = format!("{text}: {error}");
                continue;
            }
        };
        match tailwater_rma::connect_with(env, &address, dialer).await {
            Ok(connection) => return Ok(connection),
            Err(error) => why = format!("{address}: {error}"),
        }
    }
    Err(why)
}

struct Connected(Vec<Arc<dyn Connection>>);

impl Connector for Connected {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        let answer = match self.0.get(backend.number as usize) {
            None => Err(format!("there is no connection to backend {}", backend.number)),
            Some(connection) => match connection.lost() {
                None => Ok(Arc::clone(connection)),
                Some(lost) => Err(lost.to_string()),
            },
        };
        Box::pin(std::future::ready(answer))
    }
}
