//! Listens, and keeps the connections, of which there are at most `connections_max`.

use std::net::SocketAddr;
use std::sync::Arc;

use tailwater_access::{AddressPlace, PlacesByAddress};
use tailwater_env::{Task, TaskGroup};
use tailwater_login::limits::STRANGERS_MAX;
use tailwater_tls::Acceptor;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::connection::{Connection, MemcachedEnd};
use crate::front::MemcachedFront;
use crate::limits::ACCEPT_PAUSE;

/// Answers clients until it is dropped: then all connections end.
#[derive(Debug)]
pub struct MemcachedServer {
    address: SocketAddr,
    is_secured: bool,
    front: Arc<MemcachedFront>,
    _accepting: Task,
}

impl MemcachedServer {
    /// Answers the clients of `listener`, whose connections `acceptor` takes.
    pub fn start(
        listener: TcpListener,
        acceptor: Acceptor,
        front: Arc<MemcachedFront>,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let (env, is_secured) = (front.env.clone(), acceptor.is_secured());
        let _accepting = env.spawn("memcached-accept", accept(listener, acceptor, Arc::clone(&front)));
        Ok(Self { address, is_secured, front, _accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether connections are encrypted.
    pub fn is_secured(&self) -> bool {
        self.is_secured
    }

    /// What it answers for.
    pub fn front(&self) -> &Arc<MemcachedFront> {
        &self.front
    }
}

async fn accept(listener: TcpListener, acceptor: Acceptor, front: Arc<MemcachedFront>) {
    let room = Arc::new(Semaphore::new(front.config.connections_max));
    // Dropped, and so ended, with this task.
    let mut connections = TaskGroup::default();
    let strangers = PlacesByAddress::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                front.complain("no connection can be accepted at the moment", || error.to_string());
                front.env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            front.stats.rejected_connections.add(1);
            let max = front.config.connections_max;
            front.complain("refused", || format!("{peer}: {max} connections, [memcached] connections_max"));
            continue;
        };
        let place = front.users.is_some().then(|| strangers.take(peer.ip(), STRANGERS_MAX));
        if let Some(None) = place {
            front.stats.rejected_connections.add(1);
            front.complain("refused, of one address", || {
                format!("{peer}: {STRANGERS_MAX} connections of its address have not logged in")
            });
            continue;
        }
        // A client that is not there any more is dropped by the kernel; best effort, as the system may not know it.
        let stalled_ms = u32::try_from(front.config.stalled_ms).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, stalled_ms);
        if stream.set_nodelay(true).is_err() {
            continue; // gone at once
        }
        let (serving, acceptor) = (Arc::clone(&front), acceptor.clone());
        connections.spawn(&front.env, "memcached-connection", async move {
            if let Some(stream) = acceptor.accept(stream, peer).await {
                serve(stream, peer, place.flatten(), serving).await;
            }
            drop(permit);
        });
    }
}

async fn serve(
    stream: tailwater_tls::PeerStream,
    peer: SocketAddr,
    place: Option<AddressPlace>,
    front: Arc<MemcachedFront>,
) {
    front.stats.curr_connections.add(1);
    front.stats.total_connections.add(1);
    let asking = stream.peer(peer.to_string());
    let ended = Connection::new(stream, asking, place, Arc::clone(&front)).run().await;
    front.stats.curr_connections.sub(1);
    match ended {
        MemcachedEnd::Stalled(_)
        | MemcachedEnd::Stranger
        | MemcachedEnd::LoggedOut
        | MemcachedEnd::Malformed(_) => {
            front.complain("closed", || format!("{peer}: {ended}"));
        }
        MemcachedEnd::Closed | MemcachedEnd::Cut | MemcachedEnd::Idle(_) | MemcachedEnd::Io(_) => {
            tracing::debug!(%peer, why = %ended, "a memcached client's connection ended");
        }
    }
}
