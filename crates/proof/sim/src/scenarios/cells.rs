//! Backends on nodes, and cells of them over the simulated network.

use std::sync::Arc;
use std::time::Duration;

use tailwater_cache::{
    Backend, BackendConfig, BackendPlace, Cell, CellConfig, Configuration, Connecting, Connector,
    EvictionPolicy, Mode, RefillConfig,
};
use tailwater_env::Env;
use tailwater_rma::{Backing, LocalDoorbell};
use tailwater_tail::Cells;

use crate::checkers::Violation;
use crate::net::Net;
use crate::planted::Plant;
use crate::world::{Node, World};

/// Backends of a cell.
pub(super) const BACKENDS: usize = 3;
const BACKEND_NAMES: [&str; BACKENDS] = ["backend-0", "backend-1", "backend-2"];

/// One cell of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellsKind {
    Data,
    Metadata,
    /// One that is loaded as a whole.
    Loaded,
}

impl CellsKind {
    fn address(self, backend: usize) -> String {
        format!("{self:?}/{backend}")
    }

    fn name(self) -> &'static str {
        match self {
            CellsKind::Data => "data",
            CellsKind::Metadata => "metadata",
            CellsKind::Loaded => "loaded",
        }
    }

    /// What all clients know when they begin, and tell backends, which start without.
    pub(super) fn configuration(self) -> Configuration {
        let id = match self {
            CellsKind::Data => 0xda7a << 32 | 1,
            CellsKind::Metadata => 0x4e7a << 32 | 1,
            CellsKind::Loaded => 0x10ad << 32 | 1,
        };
        let mode = match self {
            CellsKind::Data | CellsKind::Metadata => Mode::R32,
            CellsKind::Loaded => Mode::R2Immutable,
        };
        let addresses = vec![Vec::new(); BACKENDS];
        Configuration::first(id, self.name(), mode, addresses).expect("three backends are enough")
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

/// How a backend is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackendShape {
    pub(super) buckets: u64,
    pub(super) ttl: Duration,
    /// It is refilled from the others, through this.
    pub(super) refilled: Option<Plant>,
}

impl BackendShape {
    /// One that nobody refills.
    fn with_buckets(buckets: u64) -> Self {
        Self { buckets, ttl: Duration::from_secs(60), refilled: None }
    }
}

/// Starts one backend, which knows no configuration, and which nobody refills.
pub(super) fn start_backend(
    net: &Net,
    node: &Node,
    number: usize,
    kind: CellsKind,
    buckets: u64,
) -> Arc<Backend> {
    start_backend_of(net, node, number, kind, BackendShape::with_buckets(buckets))
}

/// Starts one backend, which knows no configuration.
pub(super) fn start_backend_of(
    net: &Net,
    node: &Node,
    number: usize,
    kind: CellsKind,
    shape: BackendShape,
) -> Arc<Backend> {
    let config = BackendConfig {
        capacity_bytes: 4 << 20,
        buckets: shape.buckets,
        ttl: shape.ttl,
        eviction_at: 0.8,
        // Whatever is told of reads changes nothing of what holds.
        eviction: [EvictionPolicy::Lrm, EvictionPolicy::Lru, EvictionPolicy::S3Fifo][number % 3],
        config_id: 0,
        backing: Backing::Private,
    };
    let backend = Backend::start(&node.env(), config).expect("4 MiB of memory");
    backend.is_for(kind.name());
    if let Some(plant) = shape.refilled {
        let config = RefillConfig {
            again_after: Duration::from_secs(1),
            retry_after: Duration::from_millis(160),
            deadline: Duration::from_millis(500),
            bytes_per_second: 4 << 20,
        };
        backend.refill_from(connector(net, node, kind, plant), config);
    }
    let doorbell = LocalDoorbell::new();
    let bell = doorbell.clone();
    backend.ring_on_change(move || bell.ring());
    net.listen(node, &kind.address(number), backend.clone(), doorbell);
    backend
}

/// A client of a cell, on `node`, whose SETs go through `plant`.
pub(super) async fn connect(net: &Net, node: &Node, env: &Env, kind: CellsKind, plant: Plant) -> Cell {
    let config =
        CellConfig::of(kind.configuration(), connector(net, node, kind, plant), env.random_u64() as u32);
    Cell::connect(env, config).await.expect("three backends are enough")
}

/// What connects a client on `node` to a cell's backends, by their numbers.
pub(super) fn connector(net: &Net, node: &Node, kind: CellsKind, plant: Plant) -> Arc<dyn Connector> {
    Arc::new(NetConnector { net: net.clone(), node: node.clone(), kind, plant })
}

/// Both cells, as a client on `node` sees them.
pub(super) async fn both(net: &Net, node: &Node, env: &Env, plant: Plant) -> Cells {
    let data = connect(net, node, env, CellsKind::Data, plant).await;
    let metadata = connect(net, node, env, CellsKind::Metadata, plant).await;
    Cells { data, metadata }
}

/// The same, for who is outside of the world.
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
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        let backend = backend.number as usize;
        Box::pin(async move {
            let address = self.kind.address(backend);
            // Every other backend is reached as through shared memory.
            let connection = self.net.connect(&self.node, &address, backend.is_multiple_of(2)).await;
            let mut connection = connection.map_err(|lost| lost.to_string())?;
            let read = self.plant.read_of(backend);
            if read != backend {
                let address = self.kind.address(read);
                let reads = self.net.connect(&self.node, &address, read.is_multiple_of(2)).await;
                connection = Plant::reading_by(reads.map_err(|lost| lost.to_string())?, connection);
            }
            Ok(self.plant.connection(connection, backend))
        })
    }
}
