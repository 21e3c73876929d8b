//! What a client and a backend tell each other of their cell's configuration, and what a client does with a new one.
//!
//! A backend's header names the configuration that it goes by. If that is not the client's, the one with the lower id
//! takes over the other's: the client asks for the backend's, or tells its own. So what one client or one backend knows
//! reaches all that anybody asks, whether metadata is there or not. Beside that each client waits, by one CALL for each
//! connection, for the backend's next configuration: so the client has that when the backend is told it, and not with
//! the first operation that fails.
//!
//! An operation goes by one configuration from its begin to its end. If a backend went by another one meanwhile, what
//! came of that is *doubted*, and the operation is made again when the two have agreed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use prost::Message;
use tailwater_env::Env;
use tailwater_rma::{CallError, Connection, ReadOp, RegionInfo};
use tokio::sync::{oneshot, watch};

use super::CellShared;
use super::backends::Connector;
use super::replica::KeepConfig;
use crate::configuration::{BackendPlace, Configuration};
use crate::layout::{HEADER_USED_BYTES, IndexHeader};
use crate::limits::{TELL_LEFT_MAX, TELL_LEFT_PAUSE_MAX};
use crate::protocol::{ConfigReply, ConfigRequest, ConfigureRequest, METHOD_CONFIG, METHOD_CONFIGURE};

/// How often a header is read again that was being written.
const TORN_HEADERS_MAX: u32 = 3;

/// The newest configuration that a client knows of, and whether it is to be doubted.
pub(super) struct Agreed {
    newest: RwLock<Arc<Configuration>>,
    /// Counts what made somebody doubt.
    doubts: AtomicU64,
    /// How many of those doubts are settled.
    settled: watch::Sender<u64>,
    /// A newer configuration was learned, and its backends are being connected.
    adopting: watch::Sender<bool>,
}

impl Agreed {
    pub(super) fn new(configuration: Arc<Configuration>) -> Self {
        Self {
            newest: RwLock::new(configuration),
            doubts: AtomicU64::new(0),
            settled: watch::Sender::new(0),
            adopting: watch::Sender::new(false),
        }
    }

    pub(super) fn newest(&self) -> Arc<Configuration> {
        Arc::clone(&self.newest.read())
    }

    /// Takes note of a configuration if it is of the same cell's name and newer; whether it was.
    pub(super) fn learn(&self, configuration: Configuration) -> bool {
        let mut newest = self.newest.write();
        let is_newer = configuration.id > newest.id && configuration.name == newest.name;
        if is_newer {
            *newest = Arc::new(configuration);
        }
        is_newer
    }

    /// A backend goes by another configuration than was used.
    pub(super) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::Relaxed);
    }

    /// Doubts so far.
    pub(super) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Relaxed)
    }

    /// From now on nothing is settled, until the backends of a newer configuration are connected.
    pub(super) fn begin_adopting(&self) {
        self.adopting.send_replace(true);
    }

    /// Waits until no backends are being connected for the first time.
    pub(super) async fn adopted(&self) {
        // An error would mean that the cell is gone.
        let _ = self.adopting.subscribe().wait_for(|adopting| !adopting).await;
    }

    /// They are, so whatever was doubted before is to be tried again, and so is what failed because they were not: to
    /// an operation that began meanwhile that is a doubt which came after its begin.
    pub(super) fn end_adopting(&self) {
        self.doubt();
        self.adopting.send_replace(false);
        self.settle(self.doubts());
    }

    /// The doubts that there were `before` an agreement began are settled.
    pub(super) fn settle(&self, before: u64) {
        if *self.adopting.borrow() {
            return;
        }
        self.settled.send_if_modified(|settled| {
            let is_more = before > *settled;
            *settled = before.max(*settled);
            is_more
        });
    }

    /// Whether something that is not settled yet, or was since there were `before` doubts, may be why an operation
    /// failed.
    pub(super) fn is_doubtful(&self, before: u64) -> bool {
        // In this order, for an adoption that ends is a doubt first.
        *self.adopting.borrow() || self.doubts() > before
    }

    /// Waits until a doubt that came after `before` is settled; `false` if it is not in time, or there is none.
    pub(super) async fn settled_after(&self, before: u64, env: &Env, within: Duration) -> bool {
        if !self.is_doubtful(before) {
            return false;
        }
        let mut settled = self.settled.subscribe();
        let is_settled = settled.wait_for(|settled| *settled > before);
        env.timeout(within, is_settled).await.is_some()
    }
}

/// The index header at the other end.
pub(super) async fn read_header(
    connection: &dyn Connection,
    index: &RegionInfo,
) -> Result<IndexHeader, String> {
    let mut header = [0; HEADER_USED_BYTES];
    let (region, generation) = (index.id, index.generation);
    let op = ReadOp { region, generation, offset: 0, len: HEADER_USED_BYTES as u32 };
    for _ in 0..=TORN_HEADERS_MAX {
        let results = connection.read(&[op], &mut header).await.map_err(|lost| lost.to_string())?;
        if let Some(Err(error)) = results.first() {
            return Err(format!("reading the index header: {error}"));
        }
        if let Some(header) = IndexHeader::decode(&header, index.len) {
            return Ok(header);
        }
    }
    Err("an index of a layout that is not known here".to_owned())
}

/// What came of bringing a client and a backend together.
pub(super) enum Agreement {
    /// The backend goes by the client's configuration.
    Same,
    /// It goes by this newer one.
    Newer(Box<Configuration>),
}

/// Brings a client that knows `ours` together with the backend that has `number` in it and whose header is `header`.
/// With `is_doubted` something else said that they differ, so the backend is asked in any case.
pub(super) async fn agree(
    connection: &dyn Connection,
    header: &IndexHeader,
    ours: &Configuration,
    number: u32,
    is_doubted: bool,
) -> Result<Agreement, String> {
    if header.config_id == ours.id && !is_doubted {
        return Ok(Agreement::Same);
    }
    let differ = || format!("it belongs to config {}, not {}", header.config_id, ours.id);
    if ours.is_fixed() {
        return Err(differ());
    }
    let mut theirs = None;
    if header.config_id >= ours.id {
        theirs = configuration_of(connection).await?;
    }
    if theirs.as_ref().is_none_or(|theirs| theirs.id < ours.id) {
        theirs = tell(connection, ours, number).await?;
    }
    match theirs {
        Some(theirs) if theirs.name != ours.name => {
            Err(format!("it belongs to the cell {}, not {}", theirs.name, ours.name))
        }
        Some(theirs) if theirs.id == ours.id => Ok(Agreement::Same),
        Some(theirs) if theirs.id > ours.id => Ok(Agreement::Newer(Box::new(theirs))),
        _ => Err(differ()),
    }
}

/// Goes by each newer configuration that the backend at the other end is told, from when it is. Ends if it can't be
/// asked: a backend of another version, or a connection that is lost. Where it has no news it is asked again, `pause`
/// after the last time at the soonest.
pub(super) async fn follow_configuration(
    env: &Env,
    connection: &dyn Connection,
    cell: &Weak<CellShared>,
    pause: Duration,
) {
    loop {
        let Some(known) = cell.upgrade().map(|cell| cell.agreed.newest()) else { return };
        if known.is_fixed() {
            return;
        }
        let asked = env.now();
        let request = ConfigRequest { after: known.id };
        match connection.call(METHOD_CONFIG, request.encode_to_vec().into()).await {
            Ok(reply) => match configuration_in(reply) {
                Ok(Some(theirs)) if theirs.id > known.id && theirs.name == known.name => {
                    let Some(cell) = cell.upgrade() else { return };
                    cell.adopt(theirs);
                }
                // It has waited, or too many do.
                Ok(_) => env.sleep_until(asked + pause).await,
                Err(why) => {
                    tracing::warn!(
                        peer = connection.peer(),
                        why,
                        "cache backend told a configuration that is none"
                    );
                    return;
                }
            },
            Err(CallError::Overloaded { .. }) => env.sleep(pause).await,
            Err(CallError::Lost(_) | CallError::Refused { .. }) => return,
        }
    }
}

/// Tells the backend at `place` the newest configuration, in which it is not any more; until it was told, or is in a
/// newer one again, or [`TELL_LEFT_MAX`] is over. Otherwise it would go on answering clients that know what was before.
pub(super) async fn tell_left(
    env: Env,
    connector: Arc<dyn Connector>,
    place: BackendPlace,
    keep: KeepConfig,
    cell: Weak<CellShared>,
    done: oneshot::Sender<()>,
) {
    let begun = env.now();
    let mut backoff = keep.backoff_min;
    while env.now().since(begun) < TELL_LEFT_MAX {
        let Some(newest) = cell.upgrade().map(|cell| cell.agreed.newest()) else { return };
        if newest.place_of(place.number).is_some() {
            return;
        }
        let attempt = async {
            let connection = connector.connect(&place).await?;
            let request = ConfigureRequest { configuration: newest.encode(), number: place.number };
            match connection.call(METHOD_CONFIGURE, request.encode_to_vec().into()).await {
                // One that takes it from others only will not take it later.
                Ok(_) | Err(CallError::Refused { .. }) => Ok(()),
                Err(error @ (CallError::Lost(_) | CallError::Overloaded { .. })) => Err(error.to_string()),
            }
        };
        match env.timeout(keep.connect_deadline, attempt).await {
            Some(Ok(())) => {
                // Nobody may wait for it any more.
                let _ = done.send(());
                return;
            }
            Some(Err(reason)) => {
                tracing::debug!(
                    backend = place.number,
                    reason,
                    "cache backend not told that it has left its cell"
                );
            }
            None => {}
        }
        env.sleep(backoff).await;
        backoff = (backoff * 2).min(TELL_LEFT_PAUSE_MAX);
    }
}

/// Tells a backend a configuration; answers the one that it goes by then.
async fn tell(
    connection: &dyn Connection,
    configuration: &Configuration,
    number: u32,
) -> Result<Option<Configuration>, String> {
    let request = ConfigureRequest { configuration: configuration.encode(), number };
    let reply = connection.call(METHOD_CONFIGURE, request.encode_to_vec().into()).await;
    configuration_in(reply.map_err(|error| error.to_string())?)
}

/// The configuration that the backend at the other end goes by; `None` if it knows none.
pub(super) async fn configuration_of(connection: &dyn Connection) -> Result<Option<Configuration>, String> {
    let reply = connection.call(METHOD_CONFIG, Bytes::new()).await;
    configuration_in(reply.map_err(|error| error.to_string())?)
}

/// The configuration in a backend's answer.
fn configuration_in(reply: Bytes) -> Result<Option<Configuration>, String> {
    let reply = ConfigReply::decode(reply).map_err(|error| error.to_string())?;
    if reply.configuration.is_empty() {
        return Ok(None);
    }
    Configuration::decode(&reply.configuration).map(Some).map_err(|error| error.to_string())
}
