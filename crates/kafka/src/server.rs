//! Listens, and keeps the connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Task;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::connection;

/// A pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers clients until it is dropped: then all connections end.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    broker: Arc<Broker>,
    _accepting: Task,
}

impl Server {
    /// Answers the clients of `listener` for `broker`.
    pub fn start(listener: TcpListener, broker: Arc<Broker>) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let env = broker.env.clone();
        let accepting = env.spawn("kafka-accept", accept(listener, Arc::clone(&broker)));
        Ok(Self { address, broker, _accepting: accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it answers for.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

async fn accept(listener: TcpListener, broker: Arc<Broker>) {
    let room = Arc::new(Semaphore::new(broker.config.connections_max));
    // Dropped, and so ended, with this task.
    let mut connections: Vec<(std::sync::Weak<()>, Task)> = Vec::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(left_out) = broker.complain("not accepted") {
                    tracing::warn!(%error, left_out, "no connection can be accepted at the moment");
                }
                broker.env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|(alive, _)| alive.strong_count() > 0);
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            if let Some(left_out) = broker.complain("too many connections") {
                let max = broker.config.connections_max;
                tracing::warn!(%peer, max, left_out, "refused: [kafka] connections_max are open");
            }
            continue;
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%peer, %error, "gone at once");
            continue;
        }
        let alive = Arc::new(());
        let watch = Arc::downgrade(&alive);
        let serving = Arc::clone(&broker);
        let task = broker.env.spawn("kafka-connection", async move {
            connection::serve(stream, peer, serving).await;
            drop((alive, permit));
        });
        connections.push((watch, task));
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // Where bbr is the default it caps a loopback stream near 10 Gbit/s; where cubic is not there, so be it.
    let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"cubic");
    Ok(())
}
