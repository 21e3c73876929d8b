//! Backends on nodes, and cells of them over the simulated network.

use std::sync::Arc;
use std::time::Duration;

use tailwater_cache::{Backend, BackendConfig, BackendPlace, Backends, Cell, CellConfig, Connector, Mode};
use tailwater_env::{BoxFuture, Env};
use tailwater_rma::{Backing, Connection, LocalDoorbell};
use tailwater_tail::Cells;

use crate::checkers::Violation;
use crate::net::Net;
use crate::planted::Plant;
use crate::world::{Node, World};

/// Backends of a cell; R=3.2.
pub(super) const BACKENDS: usize = 3;
const BACKEND_NAMES: [&str; BACKENDS] = ["backend-0", "backend-1", "backend-2"];

/// One cell of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellsKind {
    Data,
    Metadata,
}

impl CellsKind {
    fn address(self, backend: usize) -> String {
        format!("{self:?}/{backend}")
    }

    fn config_id(self) -> u64 {
        match self {
            CellsKind::Data => 0xda7a,
            CellsKind::Metadata => 0x4e7a,
        }
    }
}

/// The nodes that backends run on.
pub(super) fn backend_nodes(world: &World) -> Vec<Node> {
    BACKEND_NAMES.iter().map(|name| world.node(name)).collect()
}

/// Starts the backends of both cells on a node that is up.
pub(super) fn start_backends(net: &Net, node: &Node, number: usize, buckets: u64) {
    for kind in [CellsKind::Data, CellsKind::Metadata] {
        start_backend(net, node, number, kind, buckets);
    }
}

/// Starts one backend.
pub(super) fn start_backend(net: &Net, node: &Node, number: usize, kind: CellsKind, buckets: u64) {
    let config = BackendConfig {
        capacity_bytes: 4 << 20,
        buckets,
        ttl: Duration::from_secs(60),
        eviction_at: 0.8,
        config_id: kind.config_id(),
        backing: Backing::Private,
    };
    let backend = Backend::start(&node.env(), config).expect("4 MiB of memory");
    let doorbell = LocalDoorbell::new();
    let bell = doorbell.clone();
    backend.ring_on_change(move || bell.ring());
    net.listen(node, &kind.address(number), backend, doorbell);
}

/// A client of a cell, on `node`, whose SETs go through `plant`.
pub(super) async fn connect(net: &Net, node: &Node, env: &Env, kind: CellsKind, plant: Plant) -> Cell {
    let connector = NetConnector { net: net.clone(), node: node.clone(), kind, plant };
    let backends = Backends::through(Arc::new(connector), BACKENDS);
    let client_id = env.random_u64() as u32;
    let config = CellConfig::new(kind.config_id(), Mode::R32, backends, client_id);
    Cell::connect(env, config).await.expect("three backends are enough")
}

/// Both cells, as a client on `node` sees them.
pub(super) fn connect_both(world: &World, net: &Net, node: &Node, plant: Plant) -> Result<Cells, Violation> {
    let connect = |kind| world.run(connect(net, node, &node.env(), kind, plant));
    Ok(Cells { data: connect(CellsKind::Data)?, metadata: connect(CellsKind::Metadata)? })
}

struct NetConnector {
    net: Net,
    node: Node,
    kind: CellsKind,
    plant: Plant,
}

impl Connector for NetConnector {
    fn connect<'a>(
        &'a self,
        backend: &'a BackendPlace,
    ) -> BoxFuture<'a, Result<Arc<dyn Connection>, String>> {
        let backend = backend.number as usize;
        Box::pin(async move {
            let address = self.kind.address(backend);
            // Every other backend is reached as through shared memory.
            let connection = self.net.connect(&self.node, &address, backend.is_multiple_of(2)).await;
            let connection = connection.map_err(|lost| lost.to_string())?;
            Ok(self.plant.connection(connection, backend))
        })
    }
}
