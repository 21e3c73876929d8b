//! BDQS, section V.D, figure 8, in simulated time: servers, each a front end and, three of them, a replica, are killed
//! after times that are exponential around the mean time to failure, and are back ten seconds later.
//!
//! For each queue three senders with a pause of half a second, and when all is sent three receivers that work two
//! seconds on a message; each goes to another server when the one that it uses does not answer. The seed says which of
//! the paper's three mean times it is, and whether one replica or a quorum answers ([`Case::of`]); the rarer failures
//! are, the more is sent, so that there are some.
//!
//! Checked: every message that was sent is received. Counted: kills, duplicates, messages out of the order of the
//! index. Times in the report are of the world.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_queue::SharedConfig;
use tailwater_queue::shared::SharedQueues;
use tailwater_queue::{
    Consistency, Message, OrderHint, QueueError, QueueRecord, QueueStore, QueueView, Receive, Send, Settings,
};
use tokio::sync::{mpsc, oneshot};

use super::cluster::{Cluster, REPLICAS, SimRows};
use super::fronts::{self, number_of};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, Outside, World};

const NAMES: [&str; SERVERS] = ["server-0", "server-1", "server-2", "server-3", "server-4"];
const SERVERS: usize = 5;
const QUEUES: usize = 2;
/// Senders, and receivers, of a queue.
const CLIENTS: usize = 3;
const SEND_PAUSE: Duration = Duration::from_millis(500);
const WORK: Duration = Duration::from_secs(2);
const REPAIR: Duration = Duration::from_secs(10);
const VISIBILITY: Duration = Duration::from_secs(30);
/// Requests that a server takes before it has looked at the first of them.
const REQUESTS: usize = 64;
const ANSWER: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// A queue is empty when nothing has come for so long.
const SILENCE: Duration = Duration::from_secs(120);

/// One of the paper's, at one of two levels.
#[derive(Clone, Copy, Debug)]
struct Case {
    mttf: Duration,
    level: Consistency,
    /// Messages of each sender.
    messages: u64,
}

impl Case {
    fn of(seed: u64) -> Self {
        let (mttf_s, messages) = [(100, 100), (1_000, 400), (10_000, 1_600)][(seed % 3) as usize];
        let level = [Consistency::One, Consistency::Quorum][(seed / 3 % 2) as usize];
        Self { mttf: Duration::from_secs(mttf_s), level, messages }
    }
}

/// What a client asks a server.
enum ServersRequest {
    Send(usize, u64, oneshot::Sender<Result<(), QueueError>>),
    Receive(usize, oneshot::Sender<Result<Vec<Message>, QueueError>>),
    Delete(usize, Message, oneshot::Sender<Result<(), QueueError>>),
}

/// Where the servers that are up take requests.
type Servers = Arc<Mutex<[Option<mpsc::Sender<ServersRequest>>; SERVERS]>>;

/// What receivers of a queue got: the number in a message and its place in the index, in the order in which they came.
#[derive(Default)]
struct Got {
    received: Vec<(u64, (u64, u64))>,
    distinct: BTreeSet<u64>,
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    world.set_steps_max(200_000_000);
    let case = Case::of(world.seed());
    let cluster = Cluster::new(world.outside(), Rng::new(world.seed(), "cluster"), 0);
    let config = SharedConfig { consistency: case.level, ..SharedConfig::default() };
    let servers = Servers::default();
    let kills = Arc::new(Mutex::new(0));
    for (number, name) in NAMES.into_iter().enumerate() {
        let node = world.node(name);
        let server = Server { number, cluster: Arc::clone(&cluster), config: config.clone(), plant };
        server.start(node.env(), &servers);
        let rng = Rng::new(world.seed(), name);
        let killing = server.fail(world.outside(), node, rng, case.mttf, servers.clone(), Arc::clone(&kills));
        world.outside().spawn("failures", killing).detach();
    }
    let node = world.node("clients");
    let got = match world.run(node.run("load", load(node.env(), servers, case)))? {
        Ok(got) => got,
        Err(crashed) => return Err(Violation::new(format!("the clients: {crashed:?}"))),
    };
    let mut report = Report::default();
    report.count("kills", *kills.lock());
    report.count("seconds", world.outside().now().as_ns() / 1_000_000_000);
    for (queue, got) in got.into_iter().enumerate() {
        let sent = case.messages * CLIENTS as u64;
        let lost: Vec<u64> = (0..sent).filter(|number| !got.distinct.contains(number)).collect();
        ensure(lost.is_empty(), || format!("of queue {queue} the messages {lost:?} are lost"))?;
        report.count("sent", sent);
        report.count("duplicates", got.received.len() as u64 - sent);
        report.count("out of order", sent - in_order(&got.received) as u64);
    }
    Ok(report)
}

/// Messages, each as it came first, that are in the longest part of them that is in the order of the index.
fn in_order(received: &[(u64, (u64, u64))]) -> usize {
    let mut seen = BTreeSet::new();
    let firsts = received.iter().filter(|(number, _)| seen.insert(*number)).map(|(_, place)| *place);
    longest_in_order(&firsts.collect::<Vec<_>>())
}

/// The length of the longest part of `places` that is in order.
pub(super) fn longest_in_order(places: &[(u64, u64)]) -> usize {
    let mut ends: Vec<(u64, u64)> = Vec::new();
    for place in places {
        let at = ends.partition_point(|end| end < place);
        match ends.get_mut(at) {
            Some(end) => *end = *place,
            None => ends.push(*place),
        }
    }
    ends.len()
}

/// One server.
#[derive(Clone)]
struct Server {
    number: usize,
    cluster: Arc<Cluster>,
    config: SharedConfig,
    plant: Plant,
}

impl Server {
    fn start(&self, env: Env, servers: &Servers) {
        let (server, servers) = (self.clone(), Arc::clone(servers));
        let run = {
            let env = env.clone();
            async move {
                let (store, queues) = server.open(&env).await;
                let (asking, mut asked) = mpsc::channel(REQUESTS);
                servers.lock()[server.number] = Some(asking);
                while let Some(request) = asked.recv().await {
                    env.spawn("request", answer(store.clone(), queues.clone(), request)).detach();
                }
            }
        };
        env.spawn("server", run).detach();
    }

    /// Opens the queues, as soon as the replicas let it.
    async fn open(&self, env: &Env) -> (SharedQueues, Vec<Arc<QueueView>>) {
        loop {
            let rows = Arc::new(SimRows::new(&self.cluster, env, self.plant));
            if let Ok(store) = SharedQueues::start(env, rows, self.config.clone()).await {
                let mut queues = Vec::new();
                while queues.len() < QUEUES {
                    let settings = Settings { order_hint: OrderHint::K(1), ..Settings::default() };
                    let record = QueueRecord::new("account", format!("q-{}", queues.len()), settings);
                    match fronts::create(&store, record).await {
                        Ok(view) => queues.push(view),
                        Err(_) => env.sleep(RETRY).await,
                    }
                }
                return (store, queues);
            }
            env.sleep(RETRY).await;
        }
    }

    /// Is killed and comes back, again and again.
    async fn fail(
        self,
        outside: Outside,
        node: Node,
        mut rng: Rng,
        mttf: Duration,
        servers: Servers,
        kills: Arc<Mutex<u64>>,
    ) {
        loop {
            let even = (rng.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
            outside.sleep(mttf.mul_f64(-even.ln())).await;
            servers.lock()[self.number] = None;
            if self.number < REPLICAS {
                self.cluster.set_up(self.number, false);
            }
            node.crash(Crash::Process);
            *kills.lock() += 1;
            outside.sleep(REPAIR).await;
            if self.number < REPLICAS {
                self.cluster.set_up(self.number, true);
            }
            node.start();
            self.start(node.env(), &servers);
        }
    }
}

async fn answer(store: SharedQueues, queues: Vec<Arc<QueueView>>, request: ServersRequest) {
    match request {
        ServersRequest::Send(queue, number, reply) => {
            let send = Send { content: Bytes::copy_from_slice(&number.to_le_bytes()), ..Send::default() };
            let _ = reply.send(store.send(&queues[queue], vec![send]).await.map(|_| ()));
        }
        ServersRequest::Receive(queue, reply) => {
            let wait = Some(Duration::from_secs(1));
            let receive = Receive { count: 1, visibility: Some(VISIBILITY), wait, attempt: None };
            let _ = reply.send(store.receive(&queues[queue], receive).await);
        }
        ServersRequest::Delete(queue, message, reply) => {
            let _ = reply.send(store.delete(&queues[queue], vec![message.receipt]).await.map(|_| ()));
        }
    }
}

/// A client, and the server that it uses.
struct Client {
    env: Env,
    servers: Servers,
    at: usize,
}

impl Client {
    /// Asks until it is answered well, each time another server.
    async fn ask<T>(
        &mut self,
        request: impl Fn(oneshot::Sender<Result<T, QueueError>>) -> ServersRequest,
    ) -> T {
        loop {
            let server = self.servers.lock()[self.at % SERVERS].clone();
            if let Some(server) = server {
                let (reply, answer) = oneshot::channel();
                let asked = async {
                    server.send(request(reply)).await.ok()?;
                    answer.await.ok()?.ok()
                };
                if let Some(Some(answer)) = self.env.timeout(ANSWER, asked).await {
                    return answer;
                }
            }
            self.at += 1;
            self.env.sleep(RETRY).await;
        }
    }

    async fn send(mut self, queue: usize, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.ask(|reply| ServersRequest::Send(queue, number, reply)).await;
            self.env.sleep(SEND_PAUSE).await;
        }
    }

    async fn receive(mut self, queue: usize, sent: u64, got: Arc<Mutex<Got>>) {
        let mut silent_since = self.env.now();
        while (got.lock().distinct.len() as u64) < sent && self.env.now().since(silent_since) < SILENCE {
            let messages = self.ask(|reply| ServersRequest::Receive(queue, reply)).await;
            let Some(message) = messages.into_iter().next() else { continue };
            silent_since = self.env.now();
            let number = number_of(&message);
            {
                let mut got = got.lock();
                got.received.push((number, (message.sent_at, message.number.0)));
                got.distinct.insert(number);
            }
            self.env.sleep(WORK).await;
            self.ask(|reply| ServersRequest::Delete(queue, message.clone(), reply)).await;
        }
    }
}

/// Both phases; what the receivers of each queue got.
async fn load(env: Env, servers: Servers, case: Case) -> Vec<Got> {
    let client = |at| Client { env: env.clone(), servers: Arc::clone(&servers), at };
    let all = || (0..QUEUES).flat_map(|queue| (0..CLIENTS).map(move |at| (queue, at)));
    let send = |(queue, at)| {
        let first = at as u64 * case.messages;
        client(queue + at).send(queue, first..first + case.messages)
    };
    futures::future::join_all(all().map(send)).await;
    let got: Vec<Arc<Mutex<Got>>> = (0..QUEUES).map(|_| Arc::default()).collect();
    let sent = case.messages * CLIENTS as u64;
    let receive =
        |(queue, at): (usize, usize)| client(queue + at).receive(queue, sent, Arc::clone(&got[queue]));
    futures::future::join_all(all().map(receive)).await;
    got.iter().map(|got| std::mem::take(&mut *got.lock())).collect()
}
