//! A way to a TCP address by which answers come later by a fixed time: a backend that is slow, for its clients.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Bytes that are taken at once.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces on their way back, for one connection.
const PIECES_MAX: usize = 256;

/// Open until it is dropped.
pub(super) struct DelayedWay {
    pub(super) address: SocketAddr,
    /// A thread of its own, so that what is measured does not wait for it.
    _runtime: Runtime,
}

impl DelayedWay {
    pub(super) fn open(to: SocketAddr, delay: Duration) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // A connection that ends ends the other one, and there is nobody to tell why.
                    let _ = carry(client, to, delay).await;
                });
            }
        });
        Ok(Self { address, _runtime: runtime })
    }
}

async fn carry(client: TcpStream, to: SocketAddr, delay: Duration) -> std::io::Result<()> {
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (sender, mut late) = mpsc::channel::<(Instant, Bytes)>(PIECES_MAX);
    let asking = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let answering = async {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let len = from_server.read(&mut piece).await?;
            let due = Instant::now() + delay;
            if len == 0 || sender.send((due, Bytes::copy_from_slice(&piece[..len]))).await.is_err() {
                return Ok(());
            }
        }
    };
    let delivering = async {
        while let Some((due, piece)) = late.recv().await {
            tokio::time::sleep_until(due).await;
            to_client.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = asking => ended,
        ended = answering => ended,
        ended = delivering => ended,
    }
}
