//! The node's cells: the two of its log, of backends of its own or of processes elsewhere, and those that were created.

pub mod created;
mod near;
pub mod owned;
mod resized;
mod rolled;
mod spared;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tailwater_access::Authorizer;
use tailwater_cache::{
    BackendPlace, Backends, Cell, CellChange, CellConfig as ClientConfig, Configuration, Connector, Mode,
};
use tailwater_env::{Env, Task};
use tailwater_format::call::{BackendInfo, CellInfo, CellMode as WireMode};
use tailwater_meta::Meta;
use tailwater_rma::Address;
use tailwater_tls::{Acceptor, Dialer};

use crate::api::{CellPlaceView, CellSpareView, CellView, ResizeCell};
use crate::backend::{BackendOptions, CellKind, LateQuotas, ServedBackend};
use crate::cells::near::ToOwn;
use crate::cells::owned::CellWanted;
use crate::cells::resized::ChangeDriver;
use crate::config::{self, CellModeSetting, CellSection, Config};
use crate::gate::FrontGate;
use crate::logins::CallLogins;

/// Why something can't be done with a cell.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is none of that name.
    #[error("there is no cell {0}")]
    Unknown(String),
    /// There is one of that name.
    #[error("there is a cell {0} already: choose another name")]
    Exists(String),
    /// Its backends are being changed.
    #[error(
        "the backends of the cell {0} are being changed: `tailwater cell describe {0}` shows how far that is"
    )]
    Changing(String),
    /// Its backends are being restarted.
    #[error(
        "the backends of the cell {0} are being restarted one after another: `tailwater cell roll {0} --stop` ends that"
    )]
    Rolling(String),
    /// Not now, or not here.
    #[error("{0}")]
    Unavailable(String),
}

/// Whom the node's own backends let in, and how it connects to others.
#[derive(Clone)]
pub struct CellDoors {
    authorizer: Arc<dyn Authorizer>,
    logins: Arc<CallLogins>,
    quotas: LateQuotas,
    tls: Acceptor,
    dialer: Dialer,
}

impl CellDoors {
    /// As the node's other doors for clients of its log. `quotas` are those of its readers, once they are known.
    pub(crate) fn of(
        gate: &FrontGate,
        logins: &Arc<CallLogins>,
        quotas: &LateQuotas,
        config: &Config,
    ) -> Self {
        let (authorizer, logins, quotas) =
            (Arc::clone(&gate.authorizer), Arc::clone(logins), Arc::clone(quotas));
        Self {
            authorizer,
            logins,
            quotas,
            tls: gate.data_acceptor(config.listen.tls),
            dialer: gate.dialer.clone(),
        }
    }
}

/// One of the log's cells as the node has it.
pub struct NodeCell {
    kind: CellKind,
    /// As configured, but for the mode of the node's own backend, which is one copy.
    config: CellSection,
    /// The node's own connection to it.
    pub cell: Cell,
    /// The backend that the node runs itself.
    pub own: Option<ServedBackend>,
    /// Its addresses.
    own_addresses: Vec<String>,
    meta: Arc<dyn Meta>,
    /// Keeping its configuration, and carrying on its changes.
    _tasks: Vec<Task>,
}

/// The same before the metadata can be read: its backend runs, if it is the node's own, and knows no configuration.
pub struct CellBegun {
    kind: CellKind,
    config: CellSection,
    own: Option<ServedBackend>,
    wanted: CellWanted,
    dialer: Dialer,
}

impl CellBegun {
    /// Starts the backend if it is the node's own.
    pub async fn begin(
        env: &Env,
        kind: CellKind,
        config: &Config,
        doors: &CellDoors,
    ) -> anyhow::Result<Self> {
        let mut section = match kind {
            CellKind::Data => config.data_cell.clone(),
            CellKind::Metadata => config.metadata_cell.clone(),
        };
        let name = kind.name().to_owned();
        let (own, addresses) = if section.backends.is_empty() {
            section.mode = CellModeSetting::R1;
            let (unix, tcp) = (config.cell_socket(kind.name()), config.listen.data);
            let options = options_of(&name, &section, config, doors, (unix, tcp));
            let own = ServedBackend::start(env, &options, Arc::clone(&doors.authorizer)).await?;
            // Its port is another one after each start: clients learn that from the node.
            let addresses = vec![unix_address(&own).into_iter().collect()];
            (Some(own), addresses)
        } else {
            for text in section.backends.iter().flatten() {
                Address::from_str(text).with_context(|| format!("[{name}_cell] backends"))?;
            }
            (None, section.backends.clone())
        };
        let wanted = CellWanted { name, mode: mode_of(section.mode), addresses, spares: Vec::new() };
        Ok(Self { kind, config: section, own, wanted, dialer: doors.dialer.clone() })
    }

    /// Connects, by the configuration that metadata has or is given now.
    pub async fn finish(
        self,
        env: &Env,
        meta: &Arc<dyn Meta>,
        advertised: Option<SocketAddr>,
    ) -> anyhow::Result<NodeCell> {
        let Self { kind, config, own, wanted, dialer } = self;
        let own_addresses = own.as_ref().map(|own| addresses_of(own, advertised)).unwrap_or_default();
        let connector: Arc<dyn Connector> = match &own {
            Some(own) => Arc::new(ToOwn::new(own)),
            None => Backends::by_address_with(env, dialer),
        };
        let configuration = owned::begin(env, &**meta, &*connector, &wanted).await?;
        let cell = connect(env, configuration, connector, &config).await?;
        owned::insist(&cell, &wanted).await?;
        let keeping = owned::keep(env.clone(), Arc::clone(meta), cell.clone());
        let mut _tasks = vec![env.spawn("cell-configuration", keeping)];
        if own.is_none() {
            let driver = ChangeDriver::of_log(env, meta, &cell);
            _tasks.push(env.spawn("cell-change", driver.run()));
        }
        Ok(NodeCell { kind, config, cell, own, own_addresses, meta: Arc::clone(meta), _tasks })
    }
}

impl NodeCell {
    /// The size of the values that the node's own backend is laid out for, in bytes.
    pub fn laid_out_for(&self) -> Option<u64> {
        self.own.as_ref().map(|_| self.config.value_bytes)
    }

    fn addresses(&self, place: &BackendPlace) -> Vec<String> {
        match self.own {
            Some(_) => self.own_addresses.clone(),
            None => place.addresses.clone(),
        }
    }

    /// What clients are told, at this moment.
    pub fn info(&self) -> CellInfo {
        info_of(self.kind.number(), &self.cell, &self.config, |place| self.addresses(place))
    }

    /// What people are told.
    pub fn view(&self) -> CellView {
        view_of(&self.cell, |place| self.addresses(place))
    }

    /// Begins a change to more backends that are processes of their own, while readers and writers go on.
    ///
    /// # Errors
    /// The node runs the backend itself, something else than addresses was asked for, or a change is under way.
    pub async fn resize(&self, asked: ResizeCell) -> Result<CellView, CellError> {
        let name = self.kind.name();
        let ResizeCell { backends, addresses, spares, spare_addresses } = asked;
        if self.own.is_some() {
            return Err(CellError::Invalid(format!(
                "the node runs the backend of the cell {name} itself: name backends in [{name}_cell] first"
            )));
        }
        if backends.is_some() || spares.is_some() || !spare_addresses.is_empty() || addresses.is_empty() {
            return Err(CellError::Invalid(format!(
                "the backends of the cell {name} are processes of their own: name each that is to be one more, with \
                 --backend"
            )));
        }
        let configuration = self.cell.configuration();
        let mut after = resized::sorted(&configuration);
        resized::check_addresses(&addresses, after.len()).map_err(CellError::Invalid)?;
        let first = after.last().map_or(0, |place| place.number + 1);
        after.extend((first..).zip(addresses).map(|(number, of)| BackendPlace::new(number, of)));
        resized::change(&*self.meta, &self.cell, after).await?;
        Ok(self.view())
    }
}

/// What clients are told of a cell, whose number is 0 if it is none of the log's.
fn info_of(
    number: u32,
    cell: &Cell,
    section: &CellSection,
    addresses: impl Fn(&BackendPlace) -> Vec<String>,
) -> CellInfo {
    let configuration = cell.configuration();
    let mode = match configuration.mode {
        Mode::R1 => WireMode::R1,
        Mode::R32 => WireMode::R32,
        Mode::R2Immutable => WireMode::R2Immutable,
    };
    let backends = cell.backends();
    let told = |(place, instance): &(BackendPlace, Option<u64>)| BackendInfo {
        addresses: addresses(place),
        instance: Some(instance.unwrap_or(0)),
        number: Some(place.number),
    };
    CellInfo {
        id: number,
        mode: mode.into(),
        backends: backends.iter().map(told).collect(),
        config_id: configuration.id,
        deadline_ms: section.deadline_ms,
        hedge_after_ms: section.hedge_after_ms,
        refresh_ms: section.refresh().as_millis() as u32,
        configuration: Some(configuration.encode()),
    }
}

/// What people are told of a cell.
fn view_of(cell: &Cell, addresses: impl Fn(&BackendPlace) -> Vec<String>) -> CellView {
    let configuration = cell.configuration();
    let placement = configuration.placement();
    let live: BTreeSet<u32> = cell
        .backends()
        .iter()
        .filter(|(_, instance)| instance.is_some())
        .map(|(place, _)| place.number)
        .collect();
    let view_of_place = |(at, place): (usize, &BackendPlace)| CellPlaceView {
        number: place.number,
        is_live: live.contains(&place.number),
        copies_percent: (placement.part_of(at) * 1_000.0).round() / 10.0,
        filled_percent: None,
        hindrance: None,
        part: part_of(&configuration, place.number).map(str::to_owned),
        stands_for: place.stands_for,
    };
    let places: Vec<_> = configuration.members().enumerate().map(view_of_place).collect();
    CellView {
        name: configuration.name.clone(),
        mode: configuration.mode.name().to_owned(),
        backends: configuration.members().map(addresses).collect(),
        change: configuration.change.as_ref().map(|change| phase_of(change).to_owned()),
        live: places.iter().filter(|place| place.is_live).count(),
        config_id: configuration.id,
        places,
        spares: configuration.spares.iter().map(|spare| spare_view_of(&configuration, spare)).collect(),
        rolling: None,
        generation: configuration.mode.is_immutable().then_some(configuration.generation),
        rows: configuration.ring.rows,
        points: configuration.ring.points,
    }
}

fn spare_view_of(configuration: &Configuration, spare: &BackendPlace) -> CellSpareView {
    CellSpareView {
        number: spare.number,
        addresses: spare.addresses.clone(),
        is_live: None,
        stand_in: configuration.stand_in_of(spare.number).map(|place| place.number),
    }
}

/// How far a change is.
fn phase_of(change: &CellChange) -> &'static str {
    if change.is_copied { "leaving" } else { "copying" }
}

/// What a change that is under way does to a backend, if it does anything.
fn part_of(configuration: &Configuration, number: u32) -> Option<&'static str> {
    let change = configuration.change.as_ref()?;
    let is_in = |places: &[BackendPlace]| places.iter().any(|place| place.number == number);
    match (is_in(&configuration.backends), is_in(&change.backends)) {
        (true, false) => Some("leaves"),
        (false, true) => Some("comes"),
        _ => None,
    }
}

/// Adds to what people are told what only the backends know.
pub async fn ask_backends(cell: &Cell, view: &mut CellView) {
    let stats = cell.backend_stats().await;
    for place in &mut view.places {
        let Some((_, of)) = stats.iter().find(|(number, _)| *number == place.number) else { continue };
        let unfilled = of.unfilled_buckets as f64 / of.buckets.max(1) as f64;
        // Rounded down: what is not filled is not 100 %.
        place.filled_percent = Some(((1.0 - unfilled) * 1_000.0).floor() / 10.0);
        place.hindrance = Some(of.hindrance.clone()).filter(|why| !why.is_empty());
    }
    if !view.spares.is_empty() {
        let live = cell.spare_instances().await;
        view.spares.iter_mut().for_each(|spare| spare.is_live = Some(live.contains_key(&spare.number)));
    }
}

fn mode_of(mode: CellModeSetting) -> Mode {
    match mode {
        CellModeSetting::R1 => Mode::R1,
        CellModeSetting::R32 => Mode::R32,
        CellModeSetting::R2Immutable => Mode::R2Immutable,
    }
}

/// How the node runs a backend of its own.
fn options_of(
    name: &str,
    section: &CellSection,
    config: &Config,
    doors: &CellDoors,
    (unix, near): (PathBuf, SocketAddr),
) -> BackendOptions {
    BackendOptions {
        cell: name.to_owned(),
        capacity_bytes: section.capacity_bytes,
        value_bytes: section.value_bytes,
        ttl: Duration::from_millis(section.ttl_ms),
        eviction_percent: section.eviction_percent,
        eviction: section.eviction.policy(),
        // Any free port of the node's address: clients learn it from the node.
        tcp: Some(SocketAddr::new(near.ip(), 0)),
        tls: doors.tls.clone(),
        logins: Some(Arc::clone(&doors.logins)),
        quotas: Arc::clone(&doors.quotas),
        ofi: section.ofi.clone(),
        unix: Some(unix),
        connections_max: config.listen.connections_max,
        engines: config::thread_count(config.listen.engines),
        dialer: doors.dialer.clone(),
    }
}

async fn connect(
    env: &Env,
    configuration: Configuration,
    connector: Arc<dyn Connector>,
    configured: &CellSection,
) -> anyhow::Result<Cell> {
    let name = configuration.name.clone();
    let mut config = ClientConfig::of(configuration, connector, env.random_u64() as u32);
    config.deadline = Duration::from_millis(configured.deadline_ms.into());
    config.hedge_after = Duration::from_millis(configured.hedge_after_ms.into());
    Cell::connect(env, config).await.with_context(|| format!("the {name} cell"))
}

/// Nearest first: shared memory, then libfabric and TCP under the address that clients reach this host by.
fn addresses_of(own: &ServedBackend, advertised: Option<SocketAddr>) -> Vec<String> {
    let reached = |tcp: SocketAddr| {
        SocketAddr::new(advertised.map_or(tcp.ip(), |advertised| advertised.ip()), tcp.port())
    };
    let far = own.ofi_address().into_iter().chain(own.tcp_address()).map(|address| match address {
        Address::Tcp(tcp) => Address::Tcp(reached(tcp)).to_string(),
        Address::Tls(tcp) => Address::Tls(reached(tcp)).to_string(),
        Address::Ofi(tcp) => Address::Ofi(reached(tcp)).to_string(),
        unix @ Address::Unix(_) => unix.to_string(),
    });
    unix_address(own).into_iter().chain(far).collect()
}

fn unix_address(own: &ServedBackend) -> Option<String> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    own.unix_path().map(|path| Address::Unix(absolute(path)).to_string())
}
