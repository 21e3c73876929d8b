//! Cells beside the log's own, which somebody created: caches for whoever connects to their backends.
//!
//! What was asked for is in the node's metadata, beside the cell's configuration. The node runs the backends, or they
//! are processes elsewhere. At a start the node runs its own ones again, empty, at their sockets' paths and at new
//! ports, and their cell's next configuration says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_cache::limits::BACKENDS_MAX;
use tailwater_cache::{BackendStats, Backends, Cell, CellStats, Configuration, Connector};
use tailwater_env::{Env, Task};
use tailwater_format::call::CellInfo;
use tailwater_meta::{Expect, Meta, Op};
use tailwater_rma::Address;
use tokio::sync::Mutex;

use super::near::{NearBackends, NearFirst};
use super::resized::{ChangeDriver, OwnBackends};
use super::rolled::CellRolls;
use super::{
    CellDoors, CellError, CellWanted, addresses_of, connect, info_of, mode_of, options_of, owned,
    unix_address, view_of,
};
use crate::api::{CellRollView, CellView, CreateCell};
use crate::backend::{CellKind, ServedBackend};
use crate::config::{CellModeSetting, CellSection, Config, EvictionSetting};

/// Where what was asked for is, each below its cell's name.
const PREFIX: &str = "cell/created/";

/// Cells that a node has beside its log's own: each may be memory that is taken at every start.
const CREATED_MAX: usize = 64;

/// Backends of one cell that a node runs itself.
pub(super) const OWN_BACKENDS_MAX: usize = 16;

/// What was asked for, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CellRecord {
    pub(super) mode: CellModeSetting,
    /// Backends that the node ran at first.
    own: usize,
    /// The numbers in the cell of those that it runs now, if the cell was changed; at first they are those from 0 on.
    #[serde(default)]
    pub(super) own_numbers: Option<Vec<u32>>,
    /// The number of the next backend that is new, if there was one.
    #[serde(default)]
    next_number: u32,
    /// Spares that it ran at first, with the numbers behind those.
    #[serde(default)]
    spares: usize,
    /// Addresses of those that it does not run.
    pub(super) addresses: Vec<Vec<String>>,
    /// The same of the spares that the cell began with.
    #[serde(default)]
    spare_addresses: Vec<Vec<String>>,
    /// While the backends are restarted one after another: those that are still to start again, each with the start of
    /// it that is to end.
    #[serde(default)]
    pub(super) rolling: Option<BTreeMap<u32, u64>>,
    capacity_bytes: u64,
    value_bytes: u64,
    ttl_ms: u64,
    eviction_percent: u8,
    #[serde(default)]
    eviction: EvictionSetting,
}

impl CellRecord {
    /// The one of that name, and the version of its key.
    pub(super) async fn stored(meta: &dyn Meta, name: &str) -> anyhow::Result<Option<(Self, u64)>> {
        let Some(stored) = meta.get(&format!("{PREFIX}{name}")).await? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&stored.value)?, stored.version)))
    }

    /// What stores it under that name.
    pub(super) fn put(&self, name: &str, expect: Expect) -> Op {
        let value = serde_json::to_vec(self).expect("numbers and texts are JSON");
        Op::Put { key: format!("{PREFIX}{name}"), value: value.into(), expect }
    }

    /// A number that no backend of the cell ever had.
    pub(super) fn take_number(&mut self, configuration: &Configuration) -> u32 {
        let known = configuration.members().chain(&configuration.spares).map(|place| place.number).max();
        let number = self.next_number.max(known.map_or(0, |known| known.wrapping_add(1)));
        self.next_number = number.wrapping_add(1);
        number
    }

    /// The numbers of the backends that the node runs.
    fn own_numbers(&self) -> Vec<u32> {
        self.own_numbers.clone().unwrap_or_else(|| (0_u32..).take(self.own + self.spares).collect())
    }

    fn section(&self) -> CellSection {
        CellSection {
            mode: self.mode,
            capacity_bytes: self.capacity_bytes,
            value_bytes: self.value_bytes,
            ttl_ms: self.ttl_ms,
            eviction_percent: self.eviction_percent,
            eviction: self.eviction,
            ..CellSection::default()
        }
    }
}

pub(super) struct CreatedCell {
    pub(super) cell: Cell,
    /// As it is stored.
    pub(super) record: CellRecord,
    pub(super) own: OwnBackends,
    /// What it waits for, while its backends are restarted one after another.
    pub(super) rolling: String,
    /// Keeping its configuration, and carrying on its changes.
    _tasks: [Task; 2],
}

/// The cells that were created.
pub struct CreatedCells {
    pub(super) env: Env,
    config: Config,
    pub(super) meta: Arc<dyn Meta>,
    doors: CellDoors,
    near: Arc<NearBackends>,
    pub(super) cells: Mutex<BTreeMap<String, CreatedCell>>,
    pub(super) rolls: CellRolls,
}

impl CreatedCell {
    /// What people are told of it.
    pub(super) fn view(&self) -> CellView {
        let rolling = self.record.rolling.as_ref().map(|pending| CellRollView {
            pending: pending.keys().copied().collect(),
            waits_for: self.rolling.clone(),
        });
        CellView { rolling, ..view_of(&self.cell, |place| place.addresses.clone()) }
    }
}

impl CreatedCells {
    /// Those that metadata has. One that can't be had is left out, and said in the log.
    pub async fn open(
        env: &Env,
        config: &Config,
        meta: &Arc<dyn Meta>,
        doors: CellDoors,
    ) -> anyhow::Result<Arc<Self>> {
        let created = Self {
            env: env.clone(),
            config: config.clone(),
            meta: Arc::clone(meta),
            doors,
            near: Arc::default(),
            cells: Mutex::default(),
            rolls: CellRolls::default(),
        };
        if config.cluster.is_shared() {
            // Each would run the backends.
            return Ok(Arc::new(created));
        }
        for (key, stored) in meta.list(PREFIX).await? {
            let name = key.trim_start_matches(PREFIX);
            let started = match serde_json::from_slice(&stored.value) {
                Ok(record) => created.start(name, &record).await,
                Err(error) => Err(error.into()),
            };
            match started {
                Ok(cell) => drop(created.cells.lock().await.insert(name.to_owned(), cell)),
                Err(error) => tracing::error!(cell = name, "a cell is left out: {error:#}"),
            }
        }
        let created = Arc::new(created);
        created.drive_rolls();
        Ok(created)
    }

    /// Creates one.
    pub async fn create(&self, asked: CreateCell) -> Result<CellView, CellError> {
        let (name, record) = record_of(asked).map_err(CellError::Invalid)?;
        let unavailable = |why: String| CellError::Unavailable(why);
        if self.config.cluster.is_shared() {
            let why = "no cells are created where all nodes are active ([cluster] active = \"all\")";
            return Err(CellError::Invalid(why.to_owned()));
        }
        let mut cells = self.cells.lock().await;
        let key = format!("{PREFIX}{name}");
        let stored = self.meta.get(&key).await.map_err(|error| unavailable(error.to_string()))?;
        if stored.is_some() || CellKind::named(&name).is_some() {
            return Err(CellError::Exists(name));
        }
        if cells.len() >= CREATED_MAX {
            return Err(unavailable(format!("a node has {CREATED_MAX} created cells at most")));
        }
        let cell = self.start(&name, &record).await.map_err(|error| unavailable(format!("{error:#}")))?;
        let put = record.put(&name, Expect::Absent);
        self.meta.commit(vec![put]).await.map_err(|error| unavailable(error.to_string()))?;
        let view = cell.view();
        cells.insert(name, cell);
        Ok(view)
    }

    /// The one of that name.
    pub async fn cell(&self, name: &str) -> Option<Cell> {
        self.cells.lock().await.get(name).map(|created| created.cell.clone())
    }

    /// What clients are told of the one of that name, at this moment.
    pub async fn info(&self, name: &str) -> Option<CellInfo> {
        let cells = self.cells.lock().await;
        let created = cells.get(name)?;
        Some(info_of(0, &created.cell, &created.record.section(), |place| place.addresses.clone()))
    }

    /// What the node's own client of each cell counted, by the cell's name.
    pub async fn client_stats(&self) -> Vec<(String, CellStats)> {
        let cells = self.cells.lock().await;
        cells.iter().map(|(name, created)| (name.clone(), created.cell.stats())).collect()
    }

    /// Of each cell's backends that the node runs: the cell's name, and what they counted.
    pub async fn own_stats(&self) -> Vec<(String, BackendStats)> {
        let cells = self.cells.lock().await;
        let of_cell = |(name, created): (&String, &CreatedCell)| {
            let own: Vec<_> =
                created.own.lock().values().map(|own| (name.clone(), own.backend().stats())).collect();
            own
        };
        cells.iter().flat_map(of_cell).collect()
    }

    /// What people are told of all of them, by name.
    pub async fn views(&self) -> Vec<CellView> {
        let cells = self.cells.lock().await;
        cells.values().map(CreatedCell::view).collect()
    }

    async fn start(&self, name: &str, record: &CellRecord) -> anyhow::Result<CreatedCell> {
        let mut own = BTreeMap::new();
        let mut addresses = record.addresses.clone();
        for number in record.own_numbers() {
            let (served, its_addresses) = self.start_own(name, record, number).await?;
            addresses.push(its_addresses);
            own.insert(number, served);
        }
        let (env, meta) = (&self.env, &self.meta);
        let far = Backends::by_address_with(env, self.doors.dialer.clone());
        let connector: Arc<dyn Connector> = Arc::new(NearFirst::new(&self.near, far));
        let known = owned::stored(&**meta, name).await?;
        let configuration = match known {
            // The backends may have changed since the cell was created, or be about to.
            Some((known, _)) => {
                let moved = known.moved(&addresses);
                if moved == known { known } else { Configuration { id: known.id + 1, ..moved } }
            }
            None => {
                let (backends, spares) = match record.own {
                    0 => (record.addresses.clone(), record.spare_addresses.clone()),
                    own => (addresses[..own].to_vec(), addresses[own..].to_vec()),
                };
                let name = name.to_owned();
                let wanted = CellWanted { name, mode: mode_of(record.mode), addresses: backends, spares };
                owned::begin(env, &**meta, &*connector, &wanted).await?
            }
        };
        owned::keep_stored(env, &**meta, &configuration).await;
        let cell = connect(env, configuration, connector, &record.section()).await?;
        // Some backend may have known a newer one.
        let newest = cell.configuration();
        let moved = newest.moved(&addresses);
        if moved != *newest {
            cell.configure(Configuration { id: newest.id + 1, ..moved }).await?;
        }
        let own = Arc::new(parking_lot::Mutex::new(own));
        let keeping = owned::keep(env.clone(), Arc::clone(meta), cell.clone());
        let driver = ChangeDriver {
            env: env.clone(),
            meta: Arc::clone(meta),
            cell: cell.clone(),
            own: Arc::clone(&own),
        };
        let tasks = [env.spawn("cell-configuration", keeping), env.spawn("cell-change", driver.run())];
        Ok(CreatedCell { cell, record: record.clone(), own, rolling: String::new(), _tasks: tasks })
    }

    /// Starts the backend with that number; answers its addresses, too.
    pub(super) async fn start_own(
        &self,
        name: &str,
        record: &CellRecord,
        number: u32,
    ) -> anyhow::Result<(ServedBackend, Vec<String>)> {
        let unix = self.config.cell_socket(&format!("{name}.{number}"));
        let near = (unix, self.config.listen.data);
        let options = options_of(name, &record.section(), &self.config, &self.doors, near);
        let served = ServedBackend::start(&self.env, &options, Arc::clone(&self.doors.authorizer)).await;
        let served = served.with_context(|| format!("backend {number} of the cell {name}"))?;
        let addresses = addresses_of(&served, self.config.listen.advertised_data);
        if let Some(address) = unix_address(&served) {
            self.near.note(address, served.near());
        }
        Ok((served, addresses))
    }
}

/// A request within its bounds, or what is wrong with it.
fn record_of(asked: CreateCell) -> Result<(String, CellRecord), String> {
    let defaults = CellSection::default();
    let CreateCell {
        name,
        backends,
        mode,
        addresses,
        spares,
        spare_addresses,
        capacity_bytes,
        value_bytes,
        ttl_ms,
        eviction_percent,
        eviction,
    } = asked;
    Configuration::check_name(&name).map_err(|error| error.to_string())?;
    let replicas = mode_of(mode).replicas();
    let count = backends + addresses.len();
    if backends > 0 && !(addresses.is_empty() && spare_addresses.is_empty())
        || spares > 0 && !addresses.is_empty()
    {
        return Err("a cell's backends are the node's own or processes elsewhere, not both".to_owned());
    }
    if count < replicas {
        return Err(format!(
            "a cell in mode {} has {replicas} backends at least, not {count}",
            mode_of(mode).name()
        ));
    }
    if backends + spares > OWN_BACKENDS_MAX || count > BACKENDS_MAX {
        return Err(format!(
            "a node runs {OWN_BACKENDS_MAX} backends and spares of a cell at most, and a cell has {BACKENDS_MAX} at most"
        ));
    }
    let all = || addresses.iter().chain(&spare_addresses);
    for text in all().flatten() {
        text.parse::<Address>().map_err(|error| error.to_string())?;
    }
    if all().any(Vec::is_empty) {
        return Err("a backend that runs elsewhere has an address".to_owned());
    }
    let record = CellRecord {
        mode,
        own: backends,
        own_numbers: None,
        next_number: 0,
        spares,
        addresses,
        spare_addresses,
        rolling: None,
        capacity_bytes: capacity_bytes.unwrap_or(defaults.capacity_bytes),
        value_bytes: value_bytes.unwrap_or(defaults.value_bytes),
        ttl_ms: ttl_ms.unwrap_or(defaults.ttl_ms),
        eviction_percent: eviction_percent.unwrap_or(defaults.eviction_percent),
        eviction: eviction.unwrap_or(defaults.eviction),
    };
    record.section().check_sizes("cell").map_err(|error| error.to_string())?;
    Ok((name, record))
}
