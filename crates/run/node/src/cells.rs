//! The node's two cells: backends of its own, or processes elsewhere.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tailwater_cache::{Backends, Cell, CellConfig as ClientConfig, Mode};
use tailwater_env::Env;
use tailwater_format::call::{BackendInfo, CellInfo, CellMode as WireMode};
use tailwater_rma::{Address, LocalDoorbell, local};

use crate::api::CellView;
use crate::backend::{BackendOptions, CellKind, ServedBackend};
use crate::config::{self, CellModeSetting, CellSection, Config};
use crate::gate::FrontGate;

/// One cell as the node has it.
pub struct NodeCell {
    kind: CellKind,
    /// As configured, but for the mode of the node's own backend, which is one copy.
    config: CellSection,
    /// The node's own connection to it.
    pub cell: Cell,
    /// Addresses of each backend.
    pub addresses: Vec<Vec<String>>,
    /// The backend that the node runs itself.
    pub own: Option<ServedBackend>,
}

impl NodeCell {
    /// Starts the backend if it is the node's own, and connects.
    pub async fn start(env: &Env, kind: CellKind, config: &Config, gate: &FrontGate) -> anyhow::Result<Self> {
        let cell_config = match kind {
            CellKind::Data => &config.data_cell,
            CellKind::Metadata => &config.metadata_cell,
        };
        if cell_config.backends.is_empty() {
            return Self::start_own(env, kind, cell_config, config, gate).await;
        }
        let mut addresses = Vec::new();
        for backend in &cell_config.backends {
            let parsed: Result<Vec<_>, _> = backend.iter().map(|text| Address::from_str(text)).collect();
            addresses.push(parsed.with_context(|| format!("[{}_cell] backends", kind.name()))?);
        }
        let backends = Backends::dialled(env, addresses, gate.dialer.clone());
        let cell = connect(env, kind, cell_config, backends).await?;
        let addresses = cell_config.backends.clone();
        Ok(Self { kind, config: cell_config.clone(), cell, addresses, own: None })
    }

    async fn start_own(
        env: &Env,
        kind: CellKind,
        cell_config: &CellSection,
        config: &Config,
        gate: &FrontGate,
    ) -> anyhow::Result<Self> {
        let listen = &config.listen;
        let options = BackendOptions {
            kind,
            capacity_bytes: cell_config.capacity_bytes,
            value_bytes: cell_config.value_bytes,
            ttl: Duration::from_millis(cell_config.ttl_ms),
            eviction_percent: cell_config.eviction_percent,
            // Any free port of the node's address: clients learn it from the node.
            tcp: Some(SocketAddr::new(listen.data.ip(), 0)),
            tls: gate.data_acceptor(listen.tls),
            unix: Some(config.cell_socket(kind)),
            connections_max: listen.connections_max,
            engines: config::thread_count(listen.engines),
        };
        let own = ServedBackend::start(env, &options, Arc::clone(&gate.authorizer)).await?;
        let addresses = vec![addresses_of(&own, listen.advertised_data)];
        let connection = local::connect(own.backend().clone(), LocalDoorbell::new(), env);
        let backends = Backends::connected(vec![connection]);
        let config = CellSection { mode: CellModeSetting::R1, ..cell_config.clone() };
        let cell = connect(env, kind, &config, backends).await?;
        Ok(Self { kind, config, cell, addresses, own: Some(own) })
    }

    /// The size of the values that the node's own backend is laid out for, in bytes.
    pub fn laid_out_for(&self) -> Option<u64> {
        self.own.as_ref().map(|_| self.config.value_bytes)
    }

    /// What clients are told, at this moment.
    pub fn info(&self) -> CellInfo {
        let mode = match self.config.mode {
            CellModeSetting::R1 => WireMode::R1,
            CellModeSetting::R32 => WireMode::R32,
        };
        CellInfo {
            id: self.kind.config_id() as u32,
            mode: mode.into(),
            backends: self
                .addresses
                .iter()
                .zip(self.cell.instances())
                .map(|(addresses, instance)| BackendInfo {
                    addresses: addresses.clone(),
                    instance: Some(instance.unwrap_or(0)),
                })
                .collect(),
            config_id: self.kind.config_id(),
            deadline_ms: self.config.deadline_ms,
            hedge_after_ms: self.config.hedge_after_ms,
            refresh_ms: self.config.refresh().as_millis() as u32,
        }
    }

    /// What people are told.
    pub fn view(&self) -> CellView {
        CellView {
            name: self.kind.name().to_owned(),
            mode: match self.config.mode {
                CellModeSetting::R1 => "R1".to_owned(),
                CellModeSetting::R32 => "R3.2".to_owned(),
            },
            backends: self.addresses.clone(),
            live: self.cell.live_backends(),
        }
    }
}

async fn connect(
    env: &Env,
    kind: CellKind,
    configured: &CellSection,
    backends: Backends,
) -> anyhow::Result<Cell> {
    let mode = match configured.mode {
        CellModeSetting::R1 => Mode::R1,
        CellModeSetting::R32 => Mode::R32,
    };
    let client_id = env.random_u64() as u32;
    let mut config = ClientConfig::new(kind.config_id(), mode, backends, client_id);
    config.deadline = Duration::from_millis(configured.deadline_ms.into());
    config.hedge_after = Duration::from_millis(configured.hedge_after_ms.into());
    Cell::connect(env, config).await.with_context(|| format!("the {} cell", kind.name()))
}

/// Nearest first: shared memory, then TCP under the address that clients reach this host by.
fn addresses_of(own: &ServedBackend, advertised: Option<SocketAddr>) -> Vec<String> {
    let reached = |tcp: SocketAddr| {
        SocketAddr::new(advertised.map_or(tcp.ip(), |advertised| advertised.ip()), tcp.port())
    };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let unix = own.unix_path().map(|path| Address::Unix(absolute(path)).to_string());
    let tcp = own.tcp_address().map(|address| match address {
        Address::Tcp(tcp) => Address::Tcp(reached(tcp)).to_string(),
        Address::Tls(tcp) => Address::Tls(reached(tcp)).to_string(),
        unix @ Address::Unix(_) => unix.to_string(),
    });
    unix.into_iter().chain(tcp).collect()
}
