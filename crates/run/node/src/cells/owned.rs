//! Configurations of cells in the node's metadata. The node owns those of the cells that it starts or connects to.
//!
//! At its start the node says which backends a cell has. If the stored configuration says the same, it stays as it is;
//! otherwise the next one follows. Backends may know a newer one: other nodes own the same cell where they share its
//! backends. That one is taken if it says the same, and followed by another one if not.
//!
//! Afterwards metadata and cell are kept together: what is stored is told to the cell's backends, and what the cell
//! learns from them is stored. While metadata takes no commits, the cell goes on by what it knows.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tailwater_cache::limits::SEED_DEADLINE;
use tailwater_cache::{BackendPlace, Cell, Configuration, Connector, Mode};
use tailwater_env::Env;
use tailwater_meta::{Expect, Meta, MetaError, Op};

/// Where configurations are, each below its cell's name.
pub const PREFIX: &str = "cell/configuration/";

/// How long a start waits for metadata to take a configuration, before it goes on without: on a full disk.
const STORE_DEADLINE: Duration = Duration::from_secs(5);

/// The pause before metadata is asked again that did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a node says of one of its cells.
pub struct CellWanted {
    /// The cell's name.
    pub name: String,
    /// How it replicates.
    pub mode: Mode,
    /// Of each backend, the addresses that stay the same over restarts.
    pub addresses: Vec<Vec<String>>,
    /// The same of the spares that it begins with.
    pub spares: Vec<Vec<String>>,
}

/// The stored configuration, and the version of its key.
pub(super) async fn stored(meta: &dyn Meta, name: &str) -> anyhow::Result<Option<(Configuration, u64)>> {
    let Some(stored) = meta.get(&format!("{PREFIX}{name}")).await? else { return Ok(None) };
    let configuration = Configuration::decode(&stored.value)
        .with_context(|| format!("metadata has a configuration of the cell {name} that can't be read"))?;
    Ok(Some((configuration, stored.version)))
}

/// The configuration that a cell begins with, as far as this node and the cell's backends know; it is stored.
pub async fn begin(
    env: &Env,
    meta: &dyn Meta,
    connector: &dyn Connector,
    wanted: &CellWanted,
) -> anyhow::Result<Configuration> {
    let name = &wanted.name;
    let known = stored(meta, name).await?.map(|(configuration, _)| configuration);
    let configuration = match known {
        Some(known) if wanted.is_in(&known) => return Ok(known),
        Some(known) => known.changed(known.id + 1, wanted.mode, wanted.addresses.clone()),
        None => {
            // Another node may have begun it, or this one before its metadata was lost: what the backends hold is of
            // use.
            let told = Cell::configuration_at(env, connector, &wanted.places(), SEED_DEADLINE).await;
            if let Ok(told) =
                told.as_ref().inspect_err(|why| tracing::debug!(cell = name, why, "a cell is new"))
                && told.name == *name
            {
                let told = match wanted.is_in(told) {
                    true => told.clone(),
                    false => told.changed(told.id + 1, wanted.mode, wanted.addresses.clone())?,
                };
                keep_stored(env, meta, &told).await;
                return Ok(told);
            }
            let mut above = 0;
            for (_, of) in meta.list(PREFIX).await? {
                above = above.max(Configuration::decode(&of.value).map_or(0, |of| of.id));
            }
            let id = Configuration::first_id(env.wall_ms(), above);
            Configuration::first(id, name, wanted.mode, wanted.addresses.clone())
                .and_then(|first| first.with_spares(wanted.spares.clone()))
        }
    };
    let configuration = configuration.with_context(|| format!("the {name} cell"))?;
    keep_stored(env, meta, &configuration).await;
    Ok(configuration)
}

/// Stores a configuration; the cell goes on without if that can't be.
pub(super) async fn keep_stored(env: &Env, meta: &dyn Meta, configuration: &Configuration) {
    let cell = &configuration.name;
    match env.timeout(STORE_DEADLINE, store(meta, configuration)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(cell, %error, "a cell's configuration is not stored"),
        None => tracing::warn!(cell, "a cell's configuration is not stored: metadata takes no commits"),
    }
}

/// Sees to it that the cell has the configuration that is wanted although some backend knew a newer one.
pub async fn insist(cell: &Cell, wanted: &CellWanted) -> anyhow::Result<()> {
    let known = cell.configuration();
    if !wanted.is_in(&known) {
        let next = known.changed(known.id + 1, wanted.mode, wanted.addresses.clone())?;
        tracing::info!(cell = wanted.name, id = next.id, "its backends had another configuration");
        cell.configure(next).await?;
    }
    Ok(())
}

impl CellWanted {
    /// Its backends, with numbers from 0.
    fn places(&self) -> Vec<BackendPlace> {
        let place = |(number, addresses): (u32, &Vec<String>)| BackendPlace::new(number, addresses.clone());
        (0..).zip(&self.addresses).map(place).collect()
    }

    /// Whether a configuration says what is wanted.
    fn is_in(&self, configuration: &Configuration) -> bool {
        let backends = self.places();
        let said = Configuration {
            mode: self.mode,
            name: self.name.clone(),
            backends,
            // Those come and go while the cell is used.
            spares: configuration.spares.clone(),
            ..configuration.clone()
        };
        said.says_the_same(configuration)
    }
}

/// Stores a configuration, unless one that is as new is there.
pub(super) async fn store(meta: &dyn Meta, configuration: &Configuration) -> anyhow::Result<()> {
    loop {
        let expect = match stored(meta, &configuration.name).await? {
            Some((known, _)) if known.id >= configuration.id => return Ok(()),
            Some((_, version)) => Expect::Version(version),
            None => Expect::Absent,
        };
        let key = format!("{PREFIX}{}", configuration.name);
        let put = Op::Put { key, value: configuration.encode(), expect };
        match meta.commit(vec![put]).await {
            Ok(_) => return Ok(()),
            // Somebody else was here meanwhile.
            Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Keeps a cell and what metadata has of it together, for as long as there is metadata.
pub async fn keep(env: Env, meta: Arc<dyn Meta>, cell: Cell) {
    let key = format!("{PREFIX}{}", cell.configuration().name);
    loop {
        if let Err(error) = keep_watched(&*meta, &key, &cell).await {
            tracing::debug!(key, %error, "a cell goes on by the configuration that is known");
        }
        env.sleep(RETRY_AFTER).await;
    }
}

/// The same until metadata does not answer.
async fn keep_watched(meta: &dyn Meta, key: &str, cell: &Cell) -> anyhow::Result<()> {
    let mut watch = meta.watch(key).await?;
    loop {
        let known = cell.configuration();
        let stored = stored(meta, &known.name).await?;
        match stored {
            Some((stored, _)) if stored.id > known.id => drop(cell.configure(stored).await?),
            Some((stored, _)) if stored.id == known.id => {}
            _ => store(meta, &known).await?,
        }
        let known = cell.configuration().id;
        tokio::select! {
            biased;
            event = watch.next() => drop(event?),
            _ = cell.configured_after(known) => {}
        }
    }
}
