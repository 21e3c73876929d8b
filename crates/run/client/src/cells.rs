//! The cells that a node tells of, and the way to their backends.
//!
//! A backend that was not reached at once, or is connected again, is first asked for at the node: one that runs inside
//! the node has another TCP port after each start. Where the node does not answer, the addresses that it told last are
//! tried.
//!
//! What answers at an address may be another node's backend, most of all at a path, which every host has its own of:
//! there every read would miss. So a node says which start of a backend it uses, and another one is not taken.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use parking_lot::Mutex;
use tailwater_cache::{
    BackendPlace, Backends, Cell, CellConfig, Configuration, Connecting, Connector, LookupWay, Mode,
    instance_of,
};
use tailwater_env::{Env, Instant, Task};
use tailwater_format::call::{BackendInfo, CellInfo, CellMode, FindCell, Hello, Method, NodeInfo};
use tailwater_rma::{Address, Connection, LoginWish};
use tailwater_tail::Cells;

use crate::Error;
use crate::client::Transport;
use crate::connection::Node;
use crate::limits::{CELLS_ASK_DEADLINE, CELLS_REST_AFTER, RECONNECT_PAUSE_MAX};

/// How often the writers publish an idle page of tails again, if the node says so.
pub(crate) fn page_refresh(info: &NodeInfo) -> Option<Duration> {
    let refresh_ms = info.metadata_cell.as_ref()?.refresh_ms;
    let refresh = Duration::from_millis(refresh_ms.into()).min(tailwater_tail::limits::INTERVAL_MAX);
    Some(refresh).filter(|refresh| !refresh.is_zero())
}

/// Connects to both cells of a node; `None` where it has none.
pub(crate) async fn connect(
    env: &Env,
    node: &Arc<Node>,
    hello: &Hello,
    info: &NodeInfo,
    (transport, lookup): (Transport, LookupWay),
) -> Result<Option<Cells>, Error> {
    let (Some(data), Some(metadata)) = (&info.data_cell, &info.metadata_cell) else { return Ok(None) };
    let of_log = async |info: &CellInfo| {
        let ask = CellAsk::OfLog { hello: hello.clone(), id: info.id };
        let cell = reach(env, node, ask, info, transport, |_| {}).await?;
        Ok::<_, Error>(cell.with_lookup(lookup))
    };
    Ok(Some(Cells { data: of_log(data).await?, metadata: of_log(metadata).await? }))
}

/// Connects to the cell of that name, which is none of the log's.
pub(crate) async fn named(
    env: &Env,
    node: &Arc<Node>,
    name: &str,
    transport: Transport,
    change: impl FnOnce(&mut CellConfig),
) -> Result<Cell, Error> {
    let find = FindCell { name: name.to_owned() };
    let info: CellInfo = node.call(Method::FindCell, &find).await?;
    reach(env, node, CellAsk::Named(find), &info, transport, change).await
}

/// Connects to the cell that a node tells of.
async fn reach(
    env: &Env,
    node: &Arc<Node>,
    ask: CellAsk,
    info: &CellInfo,
    transport: Transport,
    change: impl FnOnce(&mut CellConfig),
) -> Result<Cell, Error> {
    let mode = match CellMode::try_from(info.mode) {
        Ok(CellMode::R1) => Mode::R1,
        Ok(CellMode::R32) => Mode::R32,
        Ok(CellMode::R2Immutable) => Mode::R2Immutable,
        _ => return Err(Error::Malformed(format!("a cell with mode {}", info.mode))),
    };
    let told = Arc::new(CellsTold {
        env: env.clone(),
        node: Arc::clone(node),
        ask,
        transport,
        tried: Mutex::default(),
        places: Mutex::new(places(info, transport)?),
    });
    // Unique enough: it only breaks ties between versions of the same microsecond.
    let client_id = env.random_u64() as u32;
    let configuration = info.configuration.as_deref().map(Configuration::decode);
    let mut config = match configuration {
        Some(Ok(configuration)) => CellConfig::of(configuration, told, client_id),
        // A node of another version. The backends' places are the same at least where all of them hold all keys.
        Some(Err(_)) | None => {
            let backends = Backends::through(told, info.backends.len());
            CellConfig::new(info.config_id, mode, backends, client_id)
        }
    };
    if info.deadline_ms > 0 {
        config.deadline = Duration::from_millis(info.deadline_ms.into());
    }
    if info.hedge_after_ms > 0 {
        config.hedge_after = Duration::from_millis(info.hedge_after_ms.into());
    }
    change(&mut config);
    Cell::connect(env, config).await.map_err(|error| Error::Malformed(error.to_string()))
}

/// The cells of a process that may do without them. While a window feeds all that the process follows they rest, so
/// that the backends have one connection for all processes of the window's host.
pub(crate) struct CellsAtNeed {
    env: Env,
    node: Arc<Node>,
    hello: Hello,
    /// `None` where the node has none.
    cells: Option<Cells>,
    /// Since when a window feeds all that is followed.
    fed_since: Option<Instant>,
    is_resting: bool,
    /// Asks the node for what has changed meanwhile.
    learning: Option<Task>,
}

impl CellsAtNeed {
    pub(crate) fn new(env: &Env, node: &Arc<Node>, hello: Hello, cells: Option<Cells>) -> Self {
        let (env, node) = (env.clone(), Arc::clone(node));
        Self { env, node, hello, cells, fed_since: None, is_resting: false, learning: None }
    }

    /// Takes note of whether a window feeds all that is followed.
    pub(crate) fn note(&mut self, is_fed: bool) {
        if !is_fed {
            return self.wake();
        }
        let now = self.env.now();
        let since = *self.fed_since.get_or_insert(now);
        if let Some(cells) = self.cells.as_ref().filter(|_| !self.is_resting)
            && now.since(since) >= CELLS_REST_AFTER
        {
            cells.data.rest();
            cells.metadata.rest();
            (self.is_resting, self.learning) = (true, None);
        }
    }

    /// They are read from now on. Completes when they can be, as far as they can within the time that one attempt to
    /// connect has: who reads before that asks the node for everything.
    pub(crate) async fn need(&mut self) {
        let was_resting = self.is_resting;
        self.wake();
        if let Some(cells) = self.cells.as_ref().filter(|_| was_resting) {
            join(cells.data.awake(), cells.metadata.awake()).await;
        }
    }

    fn wake(&mut self) {
        self.fed_since = None;
        if let Some(cells) = self.cells.as_ref().filter(|_| self.is_resting) {
            cells.data.wake();
            cells.metadata.wake();
            let learn = learn(self.env.clone(), Arc::clone(&self.node), self.hello.clone(), cells.clone());
            self.learning = Some(self.env.spawn("client-cells", learn));
            self.is_resting = false;
        }
    }
}

/// Goes by the configurations that the node has now: of the backends that the cells knew before they rested, none may
/// be left.
async fn learn(env: Env, node: Arc<Node>, hello: Hello, cells: Cells) {
    let info: NodeInfo = loop {
        match node.call(Method::Hello, &hello).await {
            Ok(info) => break info,
            Err(_) => env.sleep(RECONNECT_PAUSE_MAX).await,
        }
    };
    for (told, cell) in [(info.data_cell, &cells.data), (info.metadata_cell, &cells.metadata)] {
        let told = told.and_then(|told| told.configuration);
        if let Some(Ok(newest)) = told.as_deref().map(Configuration::decode)
            && newest.id > cell.configuration().id
            && let Err(why) = cell.configure(newest).await
        {
            tracing::debug!(%why, "the node tells a configuration of a cell that can't be");
        }
    }
}

/// The backends of one cell, where the node says that they are.
struct CellsTold {
    env: Env,
    node: Arc<Node>,
    ask: CellAsk,
    transport: Transport,
    /// The numbers of backends that were looked for before.
    tried: Mutex<BTreeSet<u32>>,
    /// Of each backend by its number, as they were told last.
    places: Mutex<BTreeMap<u32, CellPlace>>,
}

/// What a node is asked about a cell.
enum CellAsk {
    /// Of the cells that it tells of with its greeting, the one of that number.
    OfLog {
        hello: Hello,
        id: u32,
    },
    Named(FindCell),
}

impl CellAsk {
    async fn of(&self, node: &Node) -> Result<Option<CellInfo>, Error> {
        match self {
            CellAsk::OfLog { hello, id } => {
                let info: NodeInfo = node.call(Method::Hello, hello).await?;
                let cells = [info.data_cell, info.metadata_cell];
                Ok(cells.into_iter().flatten().find(|info| info.id == *id))
            }
            CellAsk::Named(find) => node.call(Method::FindCell, find).await.map(Some),
        }
    }
}

/// Where a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CellPlace {
    addresses: Vec<Address>,
    instance: Instance,
}

/// Which start of a backend is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instance {
    This(u64),
    /// The node does not know.
    Unknown,
    /// The node is one that does not say.
    Any,
}

impl CellsTold {
    /// Asks the node where the backends are now. What it does not answer, or what can't be, changes nothing.
    async fn ask(&self) {
        let asked = self.ask.of(&self.node);
        let Some(Ok(Some(info))) = self.env.timeout(CELLS_ASK_DEADLINE, asked).await else { return };
        if let Ok(places) = places(&info, self.transport) {
            *self.places.lock() = places;
        }
    }
}

impl Connector for CellsTold {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        Box::pin(async move {
            let was_tried = !self.tried.lock().insert(backend.number);
            let told = |told: &Self| told.places.lock().get(&backend.number).cloned();
            if was_tried || told(self).is_none() {
                self.ask().await;
            }
            // One that the node does not tell of has come with a newer configuration than the node told.
            let place =
                told(self).map_or_else(|| CellPlace::of(&backend.addresses, None, self.transport), Ok);
            place.map_err(|error| error.to_string())?.connect(&self.env, &self.node).await
        })
    }
}

impl CellPlace {
    /// Connects at the first address where the backend is; an error is why not at the last one.
    async fn connect(&self, env: &Env, node: &Node) -> Result<Arc<dyn Connection>, String> {
        let mut why = "it has no address".to_owned();
        for address in &self.addresses {
            if self.instance == Instance::Unknown && matches!(address, Address::Unix(_)) {
                why = format!(
                    "{address}: the node does not know the backend at the moment, so it may be another's"
                );
                continue;
            }
            let login = node.login().map(|login| LoginWish { login, or_without: true });
            match tailwater_rma::connect_as(env, address, node.dialer(), login).await {
                Ok(connection) if self.is_right(&*connection) => return Ok(connection),
                Ok(_) => why = format!("{address}: another backend than the node's"),
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        Err(why)
    }

    fn is_right(&self, connection: &dyn Connection) -> bool {
        match self.instance {
            Instance::This(instance) => instance_of(connection) == Some(instance),
            Instance::Unknown | Instance::Any => true,
        }
    }
}

/// Of each backend, the addresses that `transport` may take.
fn places(info: &CellInfo, transport: Transport) -> Result<BTreeMap<u32, CellPlace>, Error> {
    let of_backend = |(place, backend): (u32, &BackendInfo)| {
        let of = CellPlace::of(&backend.addresses, backend.instance, transport)?;
        Ok((backend.number.unwrap_or(place), of))
    };
    (0..).zip(&info.backends).map(of_backend).collect()
}

impl CellPlace {
    fn of(told: &[String], instance: Option<u64>, transport: Transport) -> Result<Self, Error> {
        let mut addresses = Vec::new();
        for address in told {
            let address = Address::from_str(address).map_err(|error| Error::Malformed(error.to_string()))?;
            let wanted = match (&address, transport) {
                (Address::Unix(path), Transport::Auto) => is_socket(path),
                (_, Transport::Auto)
                | (Address::Unix(_), Transport::Shm)
                | (Address::Tcp(_) | Address::Tls(_), Transport::Tcp)
                | (Address::Ofi(_), Transport::Ofi) => true,
                _ => false,
            };
            if wanted {
                addresses.push(address);
            }
        }
        let instance = match instance {
            Some(0) => Instance::Unknown,
            Some(instance) => Instance::This(instance),
            None => Instance::Any,
        };
        Ok(Self { addresses, instance })
    }
}

/// Whether a Unix socket that a node names is on this host: a node elsewhere names paths of its own.
#[allow(clippy::disallowed_methods)] // It is this host's, where the node's addresses lead.
fn is_socket(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_start_of_a_backend_is_meant_a_node_says_or_does_not_know_or_is_too_old_to_say() {
        let told = |instance| {
            let addresses = vec!["tcp:127.0.0.1:1".to_owned()];
            let info = CellInfo {
                backends: vec![BackendInfo { addresses, instance, number: None }],
                ..CellInfo::default()
            };
            places(&info, Transport::Auto).expect("addresses")[&0].instance
        };
        assert_eq!(told(Some(7)), Instance::This(7));
        assert_eq!(told(Some(0)), Instance::Unknown);
        assert_eq!(told(None), Instance::Any);
    }

    #[test]
    fn lengths_are_expected_as_often_as_the_node_says_that_it_writes_them() {
        let told = |refresh_ms| NodeInfo {
            metadata_cell: Some(CellInfo { refresh_ms, ..CellInfo::default() }),
            ..NodeInfo::default()
        };
        assert_eq!(page_refresh(&told(700)), Some(Duration::from_millis(700)));
        assert_eq!(page_refresh(&told(0)), None, "an older node does not say");
        assert_eq!(page_refresh(&NodeInfo::default()), None);
        assert_eq!(page_refresh(&told(u32::MAX)), Some(Duration::from_secs(3_600)));
    }
}
