//! The entry point: one node's address, from which everything else is learned.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_cache::{Cell, CellConfig, LookupWay};
use tailwater_env::{Env, Task};
use tailwater_format::call::{
    self, CALL_VERSION, CallErrorCode, CallMessage, FindStream, Hello, Method, NodeInfo, stream_from_wire,
};
use tailwater_format::limits::APPEND_BYTES_MAX;
use tailwater_format::{ShardId, ShardNumber, Start, StreamId};
use tailwater_login::ClientLogin;
use tailwater_rma::Address;
use tailwater_tail::{DurableSource, ReaderConfig, ReaderStats, TailReader};
use tailwater_tls::Dialer;

use crate::cells::{self, CellsAtNeed};
use crate::connection::Node;
use crate::delays::{self, DelayCounts};
use crate::limits::{CALL_DEADLINE, CONNECT_DEADLINE, RETRY_PAUSE, SHARDS_MAX};
use crate::source::NodeSource;
use crate::window::{self, WindowPlaces};
use crate::{Consumer, ConsumerConfig, Error, Producer, ProducerSettings};

/// Which way to the cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where the backend runs on this host, elsewhere libfabric where the backend serves it, and else
    /// TCP.
    #[default]
    Auto,
    /// Shared memory or nothing.
    Shm,
    /// TCP even on this host.
    Tcp,
    /// libfabric even on this host; READs go over TCP while it fails, or where this program is built without it.
    Ofi,
}

/// Whether a client borrows what another process of this host has read and checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowUse {
    /// Where there is a sidecar on this host, or the node has a window on it, that is of this user; not with
    /// [`Transport::Tcp`] and [`Transport::Ofi`].
    #[default]
    WhereOffered,
    /// It reads by itself.
    Never,
}

/// How a client behaves. The defaults suit most.
#[derive(Clone, Debug, Default)]
pub struct ClientConfig {
    /// A name that the node's logs show; the program's name is a good one.
    pub name: String,
    /// Which way to the cells.
    pub transport: Transport,
    /// How lengths are looked up at three replicas. `None`: two are asked, and the third if they do not agree or one is
    /// late. A process follows lengths all the time, and each answer costs both sides a system call.
    pub lookup: Option<LookupWay>,
    /// How the process reads.
    pub reader: ReaderConfig,
    /// Whether it may do so through a window.
    pub window: WindowUse,
    /// The Unix socket of this host's sidecar, which is a window that somebody started. `None`: [`sidecar_socket`].
    ///
    /// [`sidecar_socket`]: crate::sidecar_socket
    pub sidecar: Option<PathBuf>,
    /// Whom it trusts where nodes and cells are in TLS, and what it shows to them.
    pub dialer: Dialer,
    /// What it logs in with, at the node, at cells that the node runs, and in Kafka's protocol as a member of a group.
    /// A cell's backend that takes no logins is read as who the process is there without.
    pub login: Option<ClientLogin>,
    /// Everything is read from the node's durable segments, as if there were no cells and no window: for who compares
    /// what the cells deliver with what was written. The node serves each byte, so applications leave it off.
    pub without_cells: bool,
}

/// How far a node's wall clock is ahead of this process's, as one call told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Milliseconds that the node's clock is ahead; negative where it is behind.
    pub ahead_ms: i64,
    /// The most that this may be wrong, in ms: half the call's time, and a millisecond for each clock's own steps.
    pub error_ms: u64,
}

impl ClockOffset {
    /// What an answer tells that has the node's clock, of a call that began and ended at these times of this process's
    /// wall clock and took `took` by the clock that does not jump.
    fn of(node_ms: i64, began_ms: i64, ended_ms: i64, took: Duration) -> Self {
        let middle_ms = began_ms.saturating_add(ended_ms.saturating_sub(began_ms) / 2);
        // The wall clock may have been set meanwhile, which the other clock does not notice.
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let wall_ms = ended_ms.abs_diff(began_ms);
        Self { ahead_ms: node_ms.saturating_sub(middle_ms), error_ms: took_ms.max(wall_ms) / 2 + 2 }
    }
}

/// A process's connection to a cluster. Cheap to clone; all its consumers share one reader.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    env: Env,
    node: Arc<Node>,
    node_id: String,
    transport: Transport,
    reader: TailReader,
    delays: Arc<DelayCounts>,
    _window: Option<Task>,
    _delays: Task,
}

/// A stream, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: Arc<str>,
    /// Its id, for ever.
    pub id: StreamId,
    /// Number of its shards.
    pub shards: u32,
}

impl Stream {
    pub(crate) fn shard(&self, shard: u32) -> ShardId {
        ShardId { stream: self.id, shard: ShardNumber(shard) }
    }
}

impl Client {
    /// Connects to the node at `address`: `IP:PORT`, `tcp:IP:PORT` or `unix:/path`. One at `tls:IP:PORT` takes a
    /// [`ClientConfig::dialer`].
    pub async fn connect(address: &str) -> Result<Self, Error> {
        Self::connect_with(Env::real(), address, ClientConfig::default()).await
    }

    /// The same in a given world, with a given configuration.
    pub async fn connect_with(env: Env, address: &str, config: ClientConfig) -> Result<Self, Error> {
        let address = parse_address(address)?;
        let mut reader = config.reader;
        reader.check()?;
        let node = Arc::new(Node::new(env.clone(), address, config.dialer, config.login));
        let hello = Hello { version: CALL_VERSION, client: config.name.clone() };
        let info: NodeInfo =
            retry(&env, CONNECT_DEADLINE, may_pass, || node.call(Method::Hello, &hello)).await?;
        let lookup = config.lookup.unwrap_or(LookupWay::Two);
        let cells = match config.without_cells {
            true => None,
            false => cells::connect(&env, &node, &hello, &info, (config.transport, lookup)).await?,
        };
        let source: Arc<dyn DurableSource> = Arc::new(NodeSource::new(Arc::clone(&node)));
        reader.page_refresh = cells::page_refresh(&info).unwrap_or(reader.page_refresh);
        let reader = TailReader::start(&env, cells.clone(), source, reader);
        let is_wanted = config.window == WindowUse::WhereOffered
            && !matches!(config.transport, Transport::Tcp | Transport::Ofi)
            && !config.without_cells;
        let sidecar = config.sidecar.or_else(|| window::sidecar_socket(&info.node_id));
        let sockets: Vec<PathBuf> = sidecar.into_iter().chain(info.window.map(PathBuf::from)).collect();
        let window = (is_wanted && !sockets.is_empty()).then(|| {
            let cells = CellsAtNeed::new(&env, &node, hello, cells);
            let places = WindowPlaces { sockets, node: info.node_id.clone() };
            env.spawn("client-window", window::follow(env.clone(), reader.clone(), cells, places))
        });
        let delays = Arc::<DelayCounts>::default();
        let telling = env.spawn("client-delays", delays::tell(Arc::clone(&node), Arc::clone(&delays)));
        let node_id = info.node_id;
        let transport = config.transport;
        let inner =
            ClientInner { env, node, node_id, transport, reader, delays, _window: window, _delays: telling };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The id of the node at `address`, which it has for the life of its data directory. Asks nothing else, and once.
    pub async fn node_id(
        address: &str,
        dialer: &Dialer,
        login: Option<ClientLogin>,
    ) -> Result<String, Error> {
        let node = Node::new(Env::real(), parse_address(address)?, dialer.clone(), login);
        let hello = Hello { version: CALL_VERSION, client: String::new() };
        let info: NodeInfo = node.call(Method::Hello, &hello).await?;
        Ok(info.node_id)
    }

    /// The id of the node that it was connected to.
    pub fn connected_node_id(&self) -> &str {
        &self.inner.node_id
    }

    /// How far the node's wall clock is from this process's; `None` if it is a node that does not tell. One call.
    ///
    /// # Errors
    /// As of any call. Cancelling it loses nothing.
    pub async fn clock_offset(&self) -> Result<Option<ClockOffset>, Error> {
        let ClientInner { env, node, .. } = &*self.inner;
        let (began, began_ms) = (env.now(), env.wall_ms());
        let hello = Hello { version: CALL_VERSION, client: String::new() };
        let info: NodeInfo = node.call(Method::Hello, &hello).await?;
        let (ended_ms, took) = (env.wall_ms(), env.now().since(began));
        Ok(info.wall_ms.map(|node_ms| ClockOffset::of(node_ms, began_ms, ended_ms, took)))
    }

    /// Finds a stream by its name.
    pub async fn stream(&self, name: &str) -> Result<Stream, Error> {
        self.found(name).await.map(|(stream, _)| stream)
    }

    /// A stream, and the bytes of the longest batch that it takes, as far as the node says that.
    async fn found(&self, name: &str) -> Result<(Stream, Option<u32>), Error> {
        let find = FindStream { name: name.to_owned() };
        let found: call::StreamInfo = self.find(Method::FindStream, &find).await?;
        let id = stream_from_wire(&found.stream)?;
        if !(1..=SHARDS_MAX).contains(&found.shards) {
            return Err(Error::Malformed(format!("a stream of {} shards", found.shards)));
        }
        let append_bytes_max = found.config.and_then(|config| config.append_bytes_max);
        Ok((Stream { name: found.name.into(), id, shards: found.shards }, append_bytes_max))
    }

    /// A producer for the stream of that name.
    pub async fn producer(&self, stream: &str, config: ProducerSettings) -> Result<Producer, Error> {
        let (stream, append_bytes_max) = self.found(stream).await?;
        let append_bytes_max = append_bytes_max.map_or(APPEND_BYTES_MAX, |bytes| bytes as usize);
        let (env, node) = (self.inner.env.clone(), Arc::clone(&self.inner.node));
        Producer::start(env, node, stream, append_bytes_max, config).await
    }

    /// A consumer of the stream of that name.
    pub async fn consumer(&self, stream: &str, config: ConsumerConfig) -> Result<Consumer, Error> {
        let stream = self.stream(stream).await?;
        Consumer::start(self.clone(), stream, config).await
    }

    /// A consumer of a stream that is known already.
    pub async fn consumer_of(&self, stream: Stream, config: ConsumerConfig) -> Result<Consumer, Error> {
        Consumer::start(self.clone(), stream, config).await
    }

    /// A consumer of some shards of a stream that is known already, which begins in each at a place of its own.
    pub async fn consumer_at(&self, stream: Stream, starts: Vec<(u32, Start)>) -> Result<Consumer, Error> {
        Consumer::start_at(self.clone(), stream, starts).await
    }

    /// The cell of that name, which was created at the node's cluster. Its backends are looked for where the node says
    /// that they are. `change` may set what [`CellConfig::of`] has defaults for.
    ///
    /// The cell outlives the client: it keeps asking the node.
    ///
    /// # Errors
    /// There is no such cell ([`Error::is_unknown_cell`]), the node does not tell of it to this client, or does not
    /// answer within 10 s. Backends that are gone are no error.
    ///
    /// [`CellConfig::of`]: tailwater_cache::CellConfig::of
    pub async fn cell(&self, name: &str, change: impl FnOnce(&mut CellConfig)) -> Result<Cell, Error> {
        let ClientInner { env, node, transport, .. } = &*self.inner;
        cells::named(env, node, name, *transport, change).await
    }

    /// What the process's consumers have read, and how.
    pub fn reader_stats(&self) -> ReaderStats {
        self.inner.reader.stats()
    }

    /// The process's reader, for a thread that polls many consumers.
    pub fn reader(&self) -> &TailReader {
        &self.inner.reader
    }

    pub(crate) fn delays(&self) -> &DelayCounts {
        &self.inner.delays
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.inner.node
    }

    /// Asks the node for what a consumer begins with. One that has too much to do, as while very many consumers start,
    /// is asked again.
    pub(crate) async fn find<Q: CallMessage, A: CallMessage>(
        &self,
        method: Method,
        request: &Q,
    ) -> Result<A, Error> {
        let ClientInner { env, node, .. } = &*self.inner;
        let is_busy = |error: &Error| matches!(error, Error::Refused(refusal) if refusal.code == CallErrorCode::Overloaded);
        retry(env, CALL_DEADLINE, is_busy, || node.call(method, request)).await
    }
}

/// Whether waiting for a node makes sense. Who it is that answers is not taken, which no wait changes.
fn may_pass(error: &Error) -> bool {
    error.is_retriable() && !matches!(error, Error::Secure { .. })
}

fn parse_address(text: &str) -> Result<Address, Error> {
    let with_scheme = if ["tcp:", "tls:", "unix:"].iter().any(|scheme| text.starts_with(scheme)) {
        text.to_owned()
    } else {
        format!("tcp:{text}")
    };
    Address::from_str(&with_scheme).map_err(|error| Error::Address(error.to_string()))
}

/// Tries until it works, fails with an error that may not pass, or the time is up.
async fn retry<F, T>(
    env: &Env,
    deadline: Duration,
    is_worth_it: impl Fn(&Error) -> bool,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let end = env.now() + deadline;
    loop {
        match attempt().await {
            Err(error) if is_worth_it(&error) && env.now() < end => env.sleep(RETRY_PAUSE).await,
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_as_far_ahead_as_its_answer_is_from_the_middle_of_the_call_give_or_take_half_of_it() {
        let of = |node_ms, took_ms: u64| {
            ClockOffset::of(node_ms, 1_000, 1_000 + took_ms as i64, Duration::from_millis(took_ms))
        };
        assert_eq!(of(1_050, 100), ClockOffset { ahead_ms: 0, error_ms: 52 });
        assert_eq!(of(6_000, 0), ClockOffset { ahead_ms: 5_000, error_ms: 2 });
        assert_eq!(of(500, 20), ClockOffset { ahead_ms: -510, error_ms: 12 });
        let set_meanwhile = ClockOffset::of(1_000, 1_000, 61_000, Duration::from_millis(4));
        assert!(set_meanwhile.error_ms >= 30_000, "{set_meanwhile:?}");
        // A node may say anything.
        ClockOffset::of(i64::MIN, 1_000, 1_001, Duration::MAX);
    }
}
