//! memcached's protocol over one of the node's cells, which is created if there is none.

use std::sync::Arc;

use anyhow::Context;
use tailwater_env::Env;
use tailwater_login::Users;
use tailwater_memcached::{MemcachedConfig, MemcachedFront, MemcachedServer};
use tokio::net::TcpListener;

use crate::api::CreateCell;
use crate::backend::CellKind;
use crate::cells::created::CreatedCells;
use crate::config::{CellModeSetting, EvictionSetting};
use crate::gate::FrontGate;

/// How long the values of a cell live that is created for this: items without an expiry stay until there is no room.
/// Ten years.
const TTL_MS: u64 = 10 * 365 * 24 * 3_600 * 1_000;

/// The size of the values that its index is laid out for, in bytes: memcached's are short.
const VALUE_BYTES: u64 = 512;

/// Listens, if the protocol is spoken at all.
pub(crate) async fn bind(config: &MemcachedConfig) -> anyhow::Result<Option<TcpListener>> {
    if !config.enabled {
        return Ok(None);
    }
    let listen = config.listen;
    let bound = TcpListener::bind(listen).await;
    Ok(Some(bound.with_context(|| {
        format!("memcached's protocol can't be spoken on {listen}: choose another address with --memcached")
    })?))
}

/// Answers memcached's clients, if the protocol is spoken.
pub(crate) async fn start(
    env: &Env,
    config: &MemcachedConfig,
    listener: Option<TcpListener>,
    created: &CreatedCells,
    users: &Arc<Users>,
    gate: &FrontGate,
) -> anyhow::Result<Option<MemcachedServer>> {
    let Some(listener) = listener else { return Ok(None) };
    let name = &config.cell;
    anyhow::ensure!(
        CellKind::named(name).is_none(),
        "[memcached] cell = \"{name}\" is a cell of the log's: choose another name"
    );
    if created.cell(name).await.is_none() {
        let asked = CreateCell {
            name: name.clone(),
            backends: 1,
            mode: CellModeSetting::R1,
            addresses: Vec::new(),
            spares: 0,
            spare_addresses: Vec::new(),
            capacity_bytes: Some(config.capacity_bytes),
            value_bytes: Some(VALUE_BYTES),
            ttl_ms: Some(TTL_MS),
            eviction_percent: None,
            // What is read is not to go before what was only set.
            eviction: Some(EvictionSetting::S3Fifo),
        };
        let create = created.create(asked).await;
        create.with_context(|| format!("[memcached] cell = \"{name}\" can't be created"))?;
    }
    let cell = created.cell(name).await.context("the cell was created just now")?;
    let authorizer = Arc::clone(&gate.authorizer);
    let front = MemcachedFront::new(env, config.clone(), cell, Some(Arc::clone(users)), authorizer);
    let acceptor = gate.acceptor("memcached", config.tls);
    let tls = acceptor.is_secured();
    let server = MemcachedServer::start(listener, acceptor, front)?;
    let login = config.login;
    tracing::info!(memcached = %server.address(), tls, login, cell = name, "memcached's clients are answered");
    Ok(Some(server))
}
