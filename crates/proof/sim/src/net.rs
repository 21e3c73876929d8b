//! The network between simulated nodes: `rma::Connection`s that delay, splice, lose and break.
//!
//! A connection here leads to the real `Service` of another node and has all the freedom that the contract of
//! `Connection` leaves it, by seed:
//! - every request and every answer takes its own time, so calls overtake each other;
//! - a READ is cut into pieces that are read one by one, in any order, with other tasks running in between, so
//!   that old and new bytes arrive spliced; the READs of one batch are done in any order;
//! - requests and answers get lost ([`Weather::lose_per_million`]): the caller waits until its own deadline, or
//!   until the connection breaks [`SILENCE_MAX`] later;
//! - connections break ([`Weather::cut_per_million`]), partitions between nodes hold everything up, and a node
//!   that dies takes its connections and regions with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_rma::{
    CallDone, Capabilities, Connection, ConnectionLost, LocalDoorbell, ReadOp, ReadResults, RegionInfo,
    ScarOp, ScarResults, Service, assert_fills,
};
use tokio::sync::{Notify, oneshot};

use crate::rng::Rng;
use crate::world::{Node, Outside, World};

/// After so long without an answer a connection counts as broken.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Pieces that one READ is cut into, at most.
const PIECES_MAX: u64 = 4;

/// How the network behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// One way, ns, least and most.
    pub delay_ns: (u64, u64),
    /// So many of a million messages take `slow_ns` instead.
    pub slow_per_million: u32,
    /// How long a slow message takes, ns, least and most.
    pub slow_ns: (u64, u64),
    /// So many of a million operations get lost, half of them before they are carried out.
    pub lose_per_million: u32,
    /// So many of a million operations break their connection.
    pub cut_per_million: u32,
    /// So many of a million READs are cut into pieces.
    pub splice_per_million: u32,
}

impl Weather {
    /// Nothing goes wrong, but time passes and READs are spliced.
    pub const FAIR: Weather = Weather {
        delay_ns: (1_000, 30_000),
        slow_per_million: 10_000,
        slow_ns: (1_000_000, 40_000_000),
        lose_per_million: 0,
        cut_per_million: 0,
        splice_per_million: 200_000,
    };
    /// Everything goes wrong now and then.
    pub const FOUL: Weather = Weather {
        delay_ns: (1_000, 200_000),
        slow_per_million: 40_000,
        slow_ns: (1_000_000, 150_000_000),
        lose_per_million: 8_000,
        cut_per_million: 2_000,
        splice_per_million: 500_000,
    };
}

/// The network of one world; cheap to clone.
#[derive(Clone)]
pub struct Net {
    outside: Outside,
    state: Arc<Mutex<NetState>>,
    /// Rung when partitions change. A watch would wake futures of one task that wait for it in any
    /// order.
    routes: Arc<Notify>,
}

struct NetState {
    rng: Rng,
    weather: Weather,
    partitions: BTreeSet<(&'static str, &'static str)>,
    /// What messages between two nodes take besides.
    slow_links: BTreeMap<(&'static str, &'static str), Duration>,
    listeners: BTreeMap<String, Listener>,
}

#[derive(Clone)]
struct Listener {
    node: Node,
    incarnation: u64,
    env: Env,
    service: Arc<dyn Service>,
    doorbell: LocalDoorbell,
}

impl Net {
    /// The network of `world`, in fair weather.
    pub fn new(world: &World) -> Self {
        let state = NetState {
            rng: Rng::new(world.seed(), "net"),
            weather: Weather::FAIR,
            partitions: BTreeSet::new(),
            slow_links: BTreeMap::new(),
            listeners: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        Self { outside: world.outside(), state, routes: Arc::default() }
    }

    /// Changes how it behaves, for everything from here on.
    pub fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    /// Serves `service` at `address` for as long as the running process of `node` lives.
    ///
    /// # Panics
    /// If the node is down.
    pub fn listen(&self, node: &Node, address: &str, service: Arc<dyn Service>, doorbell: LocalDoorbell) {
        let incarnation = node.incarnation().expect("only a running node can listen");
        let listener = Listener { node: node.clone(), incarnation, env: node.env(), service, doorbell };
        self.state.lock().listeners.insert(address.to_owned(), listener);
    }

    /// Connects `from` with whoever listens at `address`. `memory` says whether reads claim to be plain memory
    /// reads, as through shared memory, or to take a round trip.
    pub async fn connect(
        &self,
        from: &Node,
        address: &str,
        memory: bool,
    ) -> Result<Arc<dyn Connection>, ConnectionLost> {
        let refused = |reason: &str| ConnectionLost { peer: address.to_owned(), reason: reason.to_owned() };
        self.pause(self.delay()).await;
        let listener = self.state.lock().listeners.get(address).cloned();
        let listener = listener.ok_or_else(|| refused("nobody listens there"))?;
        if !listener.node.is_incarnation(listener.incarnation) {
            return Err(refused("connection refused"));
        }
        let inner = tailwater_rma::local::connect(listener.service, listener.doorbell, &listener.env);
        let connection = SimConnection {
            net: self.clone(),
            from: from.name(),
            peer: address.to_owned(),
            server: listener.node,
            incarnation: listener.incarnation,
            server_env: listener.env,
            inner,
            memory,
            lost: Mutex::default(),
            broken: Notify::new(),
        };
        connection.route().await?;
        Ok(Arc::new(connection))
    }

    /// Holds up everything between two nodes.
    pub fn partition(&self, a: &Node, b: &Node) {
        self.state.lock().partitions.insert(pair(a.name(), b.name()));
        self.routes.notify_waiters();
    }

    /// Ends the partition of two nodes.
    pub fn heal(&self, a: &Node, b: &Node) {
        self.state.lock().partitions.remove(&pair(a.name(), b.name()));
        self.routes.notify_waiters();
    }

    /// Messages between two nodes take `extra` besides from here on, each way.
    pub fn slow_down(&self, a: &Node, b: &Node, extra: Duration) {
        self.state.lock().slow_links.insert(pair(a.name(), b.name()), extra);
    }

    fn delay_between(&self, a: &'static str, b: &'static str) -> Duration {
        self.delay() + self.state.lock().slow_links.get(&pair(a, b)).copied().unwrap_or_default()
    }

    fn delay(&self) -> Duration {
        let NetState { rng, weather, .. } = &mut *self.state.lock();
        let slow = rng.chance(weather.slow_per_million);
        let (low, high) = if slow { weather.slow_ns } else { weather.delay_ns };
        Duration::from_nanos(rng.between(low, high))
    }

    async fn pause(&self, duration: Duration) {
        self.outside.sleep(duration).await;
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng, &Weather) -> T) -> T {
        let NetState { rng, weather, .. } = &mut *self.state.lock();
        draw(rng, weather)
    }

    fn is_partitioned(&self, a: &'static str, b: &'static str) -> bool {
        self.state.lock().partitions.contains(&pair(a, b))
    }
}

fn pair(a: &'static str, b: &'static str) -> (&'static str, &'static str) {
    if a < b { (a, b) } else { (b, a) }
}

/// What befalls one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    LostBefore,
    LostAfter,
    Cut,
}

struct SimConnection {
    net: Net,
    from: &'static str,
    peer: String,
    server: Node,
    incarnation: u64,
    server_env: Env,
    inner: Arc<dyn Connection>,
    memory: bool,
    lost: Mutex<Option<ConnectionLost>>,
    /// Rung when it is.
    broken: Notify,
}

impl SimConnection {
    fn break_with(&self, reason: &str) -> ConnectionLost {
        let lost = ConnectionLost { peer: self.peer.clone(), reason: reason.to_owned() };
        self.lost.lock().get_or_insert_with(|| lost.clone());
        self.broken.notify_waiters();
        lost
    }

    fn check(&self) -> Result<(), ConnectionLost> {
        if let Some(lost) = self.lost.lock().clone() {
            return Err(lost);
        }
        if !self.server.is_incarnation(self.incarnation) {
            return Err(self.break_with("reset by peer"));
        }
        Ok(())
    }

    /// Waits as long as there is a partition; breaks if it lasts.
    async fn route(&self) -> Result<(), ConnectionLost> {
        let deadline = self.net.outside.now() + SILENCE_MAX;
        loop {
            let changed = self.net.routes.notified();
            if !self.net.is_partitioned(self.from, self.server.name()) {
                break;
            }
            let left = deadline.since(self.net.outside.now());
            if self.net.outside.timeout(left, changed).await.is_none() {
                return Err(self.break_with("timed out"));
            }
        }
        self.check()
    }

    /// One way: time, partitions, death.
    async fn travel(&self) -> Result<(), ConnectionLost> {
        self.check()?;
        self.net.pause(self.net.delay_between(self.from, self.server.name())).await;
        self.route().await
    }

    fn fate(&self) -> Fate {
        let fate = self.net.draw(|rng, weather| {
            if rng.chance(weather.cut_per_million) {
                Fate::Cut
            } else if rng.chance(weather.lose_per_million) {
                if rng.below(2) == 0 { Fate::LostBefore } else { Fate::LostAfter }
            } else {
                Fate::Arrives
            }
        });
        self.net.outside.record("message", fate as u64, 0);
        fate
    }

    /// A request there, its effect, the answer back.
    async fn exchange<T>(
        &self,
        effect: impl Future<Output = Result<T, ConnectionLost>>,
    ) -> Result<T, ConnectionLost> {
        let fate = self.fate();
        let exchange = async {
            self.travel().await?;
            match fate {
                Fate::Cut => return Err(self.break_with("broken by the network")),
                Fate::LostBefore => return self.silence().await,
                Fate::Arrives | Fate::LostAfter => {}
            }
            let output = effect.await?;
            if fate == Fate::LostAfter {
                return self.silence().await;
            }
            self.travel().await?;
            Ok(output)
        };
        tokio::select! {
            biased;
            lost = self.broken() => Err(lost),
            () = self.server.died_as(self.incarnation) => {
                // Nobody knows at once.
                self.net.pause(self.net.delay()).await;
                Err(self.break_with("reset by peer"))
            }
            output = exchange => output,
        }
    }

    /// Completes when somebody has broken it.
    async fn broken(&self) -> ConnectionLost {
        loop {
            let broken = self.broken.notified();
            if let Some(lost) = self.lost.lock().clone() {
                return lost;
            }
            broken.await;
        }
    }

    async fn silence<T>(&self) -> Result<T, ConnectionLost> {
        self.net.pause(SILENCE_MAX).await;
        Err(self.break_with("no answer"))
    }

    /// Reads piece by piece, in any order, with time in between.
    async fn read_spliced(&self, ops: &[ReadOp], out: &mut [u8]) -> ReadResults {
        let mut results = vec![Ok(()); ops.len()];
        let mut starts = Vec::with_capacity(ops.len());
        let mut at = 0;
        for op in ops {
            starts.push(at);
            at += op.len as usize;
        }
        let mut order: Vec<usize> = (0..ops.len()).collect();
        self.net.draw(|rng, _| shuffle(&mut order, rng));
        for i in order {
            let pieces = self.net.draw(|rng, weather| {
                let cuts = if rng.chance(weather.splice_per_million) { rng.below(PIECES_MAX) } else { 0 };
                pieces(ops[i].len, cuts, rng)
            });
            let spliced = pieces.len() > 1;
            for (from, len) in pieces {
                let piece = ReadOp { offset: ops[i].offset.saturating_add(u64::from(from)), len, ..ops[i] };
                let begin = starts[i] + from as usize;
                let read = self.inner.read(&[piece], &mut out[begin..begin + len as usize]).await?;
                if let Some(Err(error)) = read.first() {
                    results[i] = Err(*error);
                }
                if spliced {
                    let gap = self.net.draw(|rng, _| rng.between(100, 20_000));
                    self.net.pause(Duration::from_nanos(gap)).await;
                    self.check()?;
                }
            }
        }
        Ok(results)
    }
}

fn shuffle(order: &mut [usize], rng: &mut Rng) {
    for i in (1..order.len()).rev() {
        order.swap(i, rng.index(i + 1));
    }
}

/// Cuts `0..len` in up to `cuts` places; (from, length) of each piece, in any order.
fn pieces(len: u32, cuts: u64, rng: &mut Rng) -> Vec<(u32, u32)> {
    let mut bounds: BTreeSet<u32> = (0..cuts).map(|_| rng.below(u64::from(len) + 1) as u32).collect();
    bounds.extend([0, len]);
    let bounds: Vec<u32> = bounds.into_iter().collect();
    let mut order: Vec<usize> = (0..bounds.len() - 1).collect();
    shuffle(&mut order, rng);
    order.into_iter().map(|i| (bounds[i], bounds[i + 1] - bounds[i])).collect()
}

impl Connection for SimConnection {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { memory: self.memory, scar: self.inner.capabilities().scar }
    }

    fn regions(&self) -> Vec<RegionInfo> {
        self.inner.regions()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp], out: &'a mut [u8]) -> BoxFuture<'a, ReadResults> {
        assert_fills(ops, out);
        Box::pin(self.exchange(self.read_spliced(ops, out)))
    }

    fn scar<'a>(&'a self, ops: &'a [ScarOp]) -> BoxFuture<'a, ScarResults> {
        Box::pin(self.exchange(self.inner.scar(ops)))
    }

    fn watch(&self, last_seen: u32, deadline: Duration) -> BoxFuture<'_, Result<u32, ConnectionLost>> {
        Box::pin(self.exchange(self.inner.watch(last_seen, deadline)))
    }

    fn call(&self, method: u16, payload: Bytes) -> CallDone<'_> {
        Box::pin(async move {
            let answer = self.exchange(async {
                let (send, receive) = oneshot::channel();
                let inner = self.inner.clone();
                // On the server's own node, so that it dies with it.
                let call = self.server_env.spawn("call", async move {
                    // The caller may have given up.
                    let _ = send.send(inner.call(method, payload).await);
                });
                call.detach();
                receive.await.map_err(|_| self.break_with("reset by peer"))
            });
            answer.await?
        })
    }

    fn lost(&self) -> Option<ConnectionLost> {
        self.check().err()
    }
}

#[cfg(test)]
mod tests;
