//! A way through TLS for a library that makes its connections itself, and takes none that is made already.
//!
//! The library connects to this process, on loopback, and what it says goes on to its server by a [`Dialer`].
//!
//! ```text
//!  library --TCP, loopback--> relay --TLS--> server
//! ```
//!
//! What holds:
//! - Each server has a port of its own, which the kernel chooses. So the library knows its servers apart, and leaves
//!   one that fails for another one.
//! - Only processes of this process's user get through: whoever does speaks with this process's certificate. Others are
//!   hung up on before anything is read or sent. A process of this user that sees the same files could read the
//!   certificate's key as well. One in another container that shares this network does not see them, and gets through.
//! - A connection ends as a whole: at either end, and in both directions.
//! - Why a server was not reached is remembered until it is: the library is told only that the connection has ended.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures::future::{Either, select};
use parking_lot::Mutex;
use tailwater_env::{Env, Task, TaskGroup};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::dialer::Dialer;
use crate::limits::{RELAY_BUFFER_BYTES, RELAY_DIAL_DEADLINE, RELAY_PAUSE, RELAYED_MAX};
use crate::trust;

/// Where the kernel lists this host's connections over IPv4, with whose they are.
const CONNECTIONS: &str = "/proc/self/net/tcp";
/// How the kernel lists an end that nobody has closed.
const ESTABLISHED: &str = "01";

/// The ways to some servers; dropping it ends all connections.
#[derive(Debug)]
pub struct Relays {
    servers: String,
    refusals: Arc<Refusals>,
    tasks: Vec<Task>,
}

/// Why servers were not reached, of those that were not reached the last time.
#[derive(Debug, Default)]
struct Refusals {
    by_server: Mutex<BTreeMap<String, String>>,
    /// Rung when there is one more.
    changed: Notify,
}

impl Refusals {
    fn told(&self) -> Option<String> {
        let by_server = self.by_server.lock();
        let told: Vec<String> = by_server.iter().map(|(server, why)| format!("{server}: {why}")).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}

impl Relays {
    /// Ways to `servers`, which are `HOST:PORT` with commas between them. By a dialer without TLS they are the servers
    /// themselves, and nothing is listened on.
    ///
    /// # Errors
    /// If there is no port on loopback.
    pub async fn open(env: &Env, dialer: &Dialer, servers: &str) -> io::Result<Self> {
        let mut relays = Self { servers: servers.to_owned(), refusals: Arc::default(), tasks: Vec::new() };
        if !dialer.is_secured() {
            return Ok(relays);
        }
        let mut addresses = Vec::new();
        for server in servers.split(',') {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?.to_string());
            let relay = Relay {
                env: env.clone(),
                dialer: dialer.clone(),
                server: server.to_owned(),
                refusals: Arc::clone(&relays.refusals),
            };
            relays.tasks.push(env.spawn("tls relay", Arc::new(relay).listen(listener)));
        }
        relays.servers = addresses.join(",");
        Ok(relays)
    }

    /// What the library has to connect to, in place of the servers and in their order.
    pub fn servers(&self) -> &str {
        &self.servers
    }

    /// Why servers were not reached, of those that were not reached the last time; `None` if there are none.
    pub fn refusal(&self) -> Option<String> {
        self.refusals.told()
    }

    /// Completes when each server was tried from here on, and none was reached; why. Never where there is no TLS.
    pub async fn all_refused(&self) -> String {
        self.refusals.by_server.lock().clear();
        loop {
            // Before the look, so that nothing is missed.
            let mut changed = pin!(self.refusals.changed.notified());
            changed.as_mut().enable();
            let count = self.refusals.by_server.lock().len();
            if !self.tasks.is_empty() && count == self.tasks.len() {
                return self.refusals.told().unwrap_or_default();
            }
            changed.await;
        }
    }
}

/// The way to one server.
struct Relay {
    env: Env,
    dialer: Dialer,
    server: String,
    refusals: Arc<Refusals>,
}

impl Relay {
    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let mut connections = TaskGroup::default();
        let room = Arc::new(Semaphore::new(RELAYED_MAX));
        loop {
            let Ok((local, _)) = listener.accept().await else {
                // No descriptor is left, which may be better soon.
                self.env.sleep(RELAY_PAUSE).await;
                continue;
            };
            let Ok(room) = Arc::clone(&room).try_acquire_owned() else {
                self.note("too many connections to it are open");
                continue;
            };
            if !is_own(&local) {
                tracing::warn!(
                    server = self.server,
                    "hung up on somebody whom {CONNECTIONS} does not show to be of this user"
                );
                continue;
            }
            let relay = Arc::clone(&self);
            let carrying = async move {
                relay.carry(local).await;
                drop(room);
            };
            connections.spawn(&self.env, "tls relay connection", carrying);
        }
    }

    async fn carry(&self, local: TcpStream) {
        let dialing = async {
            local.set_nodelay(true)?;
            self.dialer.connect(&self.server).await
        };
        let secured = match self.env.timeout(RELAY_DIAL_DEADLINE, dialing).await {
            Some(Ok(secured)) => secured,
            Some(Err(why)) => return self.note(&why.to_string()),
            None => return self.note("it does not accept connections"),
        };
        let (from, to) = secured.into_split();
        let (local_from, local_to) = local.into_split();
        let there = pin!(pump(local_from, to, || ()));
        // A server that refuses a certificate may say so when the handshake is done here already. So one is reached
        // when it says something.
        let is_reached = AtomicBool::new(false);
        let heard = || {
            if !is_reached.swap(true, Relaxed) {
                self.refusals.by_server.lock().remove(&self.server);
            }
        };
        let back = pin!(pump(from, local_to, heard));
        let by_server = match select(back, there).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => return,
        };
        match by_server {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => self.note(&trust::told(&why)),
            _ if !is_reached.load(Relaxed) => self.note("it ended the connection before it said anything"),
            _ => {}
        }
    }

    fn note(&self, why: &str) {
        let before = self.refusals.by_server.lock().insert(self.server.clone(), why.to_owned());
        self.refusals.changed.notify_waiters();
        if before.as_deref() != Some(why) {
            tracing::warn!(server = self.server, why, "a server can't be used in TLS");
        }
    }
}

/// Carries what one end says to the other, until there is no more.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut heard: impl FnMut(),
) -> io::Result<()> {
    let mut buffer = vec![0; RELAY_BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        heard();
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// Whether a process of this process's user is at the other end.
#[allow(clippy::disallowed_methods)] // the kernel is asked about real connections, whatever world the caller is in
fn is_own(local: &TcpStream) -> bool {
    let (Ok(SocketAddr::V4(own)), Ok(SocketAddr::V4(peer))) = (local.local_addr(), local.peer_addr()) else {
        return false;
    };
    let Ok(connections) = std::fs::read_to_string(CONNECTIONS) else { return false };
    let user = user_of(&connections, own, peer);
    user.is_some() && user == user_of(&connections, peer, own)
}

/// Whose the end at `local` is of the connection to `remote`, as the kernel lists it. Only of an established one: an
/// end that its process has closed belongs to nobody, and is listed as root's, whoever sent something by it.
///
/// ```text
///   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
///    0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 ...
/// ```
fn user_of(connections: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
    // The address as a number of this machine, although its bytes are in the network's order.
    let listed = |at: SocketAddrV4| format!("{:08X}:{:04X}", u32::from_ne_bytes(at.ip().octets()), at.port());
    let (local, remote) = (listed(local), listed(remote));
    connections.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next() == Some(&local) && fields.next() == Some(&remote);
        let is_open = is_it && fields.next() == Some(ESTABLISHED);
        fields.nth(3).filter(|_| is_open)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_list_says_whose_each_end_of_a_connection_is() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let loopback = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        let line = |local: u16, remote: u16, user: u32| {
            format!("   0: {loopback}:{local:04X} {loopback}:{remote:04X} 01 0:0 00:0 0  {user} 0 4711 1 0\n")
        };
        let listed =
            format!("  sl  local_address rem_address\n{}{}", line(80, 5000, 7), line(5000, 80, 1000));
        assert_eq!(user_of(&listed, at(80), at(5000)), Some(7));
        assert_eq!(user_of(&listed, at(5000), at(80)), Some(1000));
        assert_eq!(user_of(&listed, at(5001), at(80)), None);
        assert_eq!(user_of("", at(80), at(5000)), None);
        // What the kernel lists of ends that were closed, in FIN_WAIT2 and TIME_WAIT: nobody is behind them.
        for state in ["05", "06"] {
            let closed = line(5000, 80, 0).replace(" 01 ", &format!(" {state} "));
            assert_eq!(user_of(&closed, at(5000), at(80)), None);
        }
    }
}
