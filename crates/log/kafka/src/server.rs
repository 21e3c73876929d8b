//! Listens, and keeps the connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_access::PlacesByAddress;
use tailwater_env::{Task, TaskGroup};
use tailwater_login::Users;
use tailwater_login::limits::STRANGERS_MAX;
use tailwater_tls::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::config::{Listener, parse_address};
use crate::connection;

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers clients until it is dropped: then all connections end.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    open_address: Option<SocketAddr>,
    secured_address: Option<SocketAddr>,
    /// Without encryption, and with it.
    login_addresses: [Option<SocketAddr>; 2],
    broker: Arc<Broker>,
    _accepting: Vec<Task>,
}

/// A listener, as its connections see it.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its clients are told instead.
    pub advertised: Option<Arc<(String, u16)>>,
    /// What takes its connections.
    pub acceptor: Acceptor,
    /// As whom its clients have to log in, if they have to.
    pub users: Option<Arc<Users>>,
}

impl Server {
    /// Answers the clients of all `listeners`, of which there is one at least, for `broker`: the sockets that were
    /// bound, with what was configured. None is encrypted.
    pub fn start(listeners: Vec<(TcpListener, Listener)>, broker: Arc<Broker>) -> std::io::Result<Self> {
        let plain = |(socket, configured)| (socket, configured, Acceptor::plain());
        Self::start_with(listeners.into_iter().map(plain).collect(), None, broker)
    }

    /// The same, where each listener has what takes its connections, and clients log in as one of `users` where they
    /// have to.
    ///
    /// # Errors
    /// A listener whose clients have to log in, and no users.
    pub fn start_with(
        listeners: Vec<(TcpListener, Listener, Acceptor)>,
        users: Option<Arc<Users>>,
        broker: Arc<Broker>,
    ) -> std::io::Result<Self> {
        let env = broker.env.clone();
        // Of all of them together: whoever has the most clients takes what others leave.
        let room = Arc::new(Semaphore::new(broker.config.connections_max));
        let strangers = PlacesByAddress::default();
        let (mut addresses, mut accepting) = (Vec::new(), Vec::new());
        let (mut open_address, mut secured_address) = (None, None);
        let mut login_addresses = [None, None];
        for (socket, configured, acceptor) in listeners {
            let address = socket.local_addr()?;
            let advertised = parse_address(&configured.advertised).map(Arc::new);
            if configured.login && users.is_none() {
                return Err(std::io::Error::other(format!(
                    "clients of {address} have to log in, and there are no users"
                )));
            }
            let first = match (configured.login, acceptor.is_secured()) {
                (true, is_secured) => &mut login_addresses[usize::from(is_secured)],
                (false, true) => &mut secured_address,
                (false, false) => &mut open_address,
            };
            first.get_or_insert(address);
            let users = users.clone().filter(|_| configured.login);
            let listening = Listening { address, advertised, acceptor, users };
            let accept =
                accept(socket, listening, (Arc::clone(&room), strangers.clone()), Arc::clone(&broker));
            accepting.push(env.spawn("kafka-accept", accept));
            addresses.push(address);
        }
        Ok(Self { addresses, open_address, secured_address, login_addresses, broker, _accepting: accepting })
    }

    /// Where it listens, in the order in which it was told to.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The first where connections are not encrypted and nobody has to log in.
    pub fn open_address(&self) -> Option<SocketAddr> {
        self.open_address
    }

    /// The first where connections are encrypted and nobody has to log in.
    pub fn secured_address(&self) -> Option<SocketAddr> {
        self.secured_address
    }

    /// The first where everybody has to log in, and connections are encrypted, or are not.
    pub fn login_address(&self, is_secured: bool) -> Option<SocketAddr> {
        self.login_addresses[usize::from(is_secured)]
    }

    /// What it answers for.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

async fn accept(
    socket: TcpListener,
    listening: Listening,
    (room, strangers): (Arc<Semaphore>, PlacesByAddress),
    broker: Arc<Broker>,
) {
    // Dropped, and so ended, with this task.
    let mut connections = TaskGroup::default();
    loop {
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(left_out) = broker.complain("not accepted") {
                    tracing::warn!(%error, left_out, "no connection can be accepted at the moment");
                }
                broker.env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if broker.quotas.admit_connection(peer.ip()).is_err() {
            if let Some(left_out) = broker.complain("too many new connections") {
                tracing::warn!(%peer, left_out, "refused: the quota connection_creation_rate of its address is used up");
            }
            continue;
        }
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            if let Some(left_out) = broker.complain("too many connections") {
                let max = broker.config.connections_max;
                tracing::warn!(%peer, max, left_out, "refused: [kafka] connections_max are open");
            }
            continue;
        };
        let place = listening.users.is_some().then(|| strangers.take(peer.ip(), STRANGERS_MAX));
        if let Some(None) = place {
            if let Some(left_out) = broker.complain("too many strangers") {
                tracing::warn!(%peer, left_out, "refused: too many connections from there have not logged in");
            }
            continue;
        }
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "gone at once");
            continue;
        }
        let (listening, serving) = (listening.clone(), Arc::clone(&broker));
        connections.spawn(&broker.env, "kafka-connection", async move {
            connection::serve(stream, peer, listening, place.flatten(), serving).await;
            drop(permit);
        });
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // Where bbr is the default it caps a loopback stream near 10 Gbit/s; where cubic is not there, so be it.
    let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"cubic");
    Ok(())
}
