//! A gateway in front of a cluster: what comes by it, in either direction, comes later by the delay of a long line.
//!
//! It can be cut. Then its connections end, and there are no new ones.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::system::free_address;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces on their way in one direction of a connection, beyond which its sender waits: some 16 MB.
const PIECES_MAX: usize = 256;

/// All gateways of a run, on a thread of their own.
pub struct Gateways {
    runtime: tokio::runtime::Runtime,
    threads: Arc<Mutex<Vec<i32>>>,
}

/// One of them.
pub struct Gateway {
    /// Where it listens.
    pub address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Gateways {
    /// None yet.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn new() -> anyhow::Result<Self> {
        let threads = Arc::<Mutex<Vec<i32>>>::default();
        let begun = Arc::clone(&threads);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all();
        runtime.on_thread_start(move || begun.lock().push(rustix::thread::gettid().as_raw_pid()));
        Ok(Self { runtime: runtime.build()?, threads })
    }

    /// CPU time of all gateways since their start: what the emulated lines cost.
    pub fn cpu(&self) -> Duration {
        let of = |thread: &i32| {
            // `schedstat` begins with the nanoseconds that the thread has run for.
            let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
            text.split(' ').next()?.parse().map(Duration::from_nanos).ok()
        };
        self.threads.lock().iter().filter_map(of).sum()
    }

    /// One more, in front of `target`, whose line has that delay in each direction.
    ///
    /// # Errors
    /// No port is free.
    pub fn open(&self, target: SocketAddr, delay: Duration) -> anyhow::Result<Gateway> {
        self.open_at(free_address()?, target, delay)
    }

    /// The same at an address that is known.
    ///
    /// # Errors
    /// The address is in use.
    pub fn open_at(
        &self,
        address: SocketAddr,
        target: SocketAddr,
        delay: Duration,
    ) -> anyhow::Result<Gateway> {
        let listener = self.runtime.block_on(TcpListener::bind(address));
        let listener = listener.with_context(|| format!("{address} can't be listened at"))?;
        let (is_cut, cut) = watch::channel(false);
        self.runtime.spawn(accept(listener, target, delay, cut));
        Ok(Gateway { address, is_cut })
    }
}

impl Gateway {
    /// Cuts it, or mends it.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, delay: Duration, cut: watch::Receiver<bool>) {
    // It ends with the runtime.
    while let Ok((near, _)) = listener.accept().await {
        if *cut.borrow() {
            continue;
        }
        let mut cut = cut.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // Whoever could mend it is gone, too.
                _ = cut.wait_for(|is_cut| *is_cut) => {}
                () = carry(near, target, delay) => {}
            }
        });
    }
}

/// Carries a connection until one of its ends closes it.
async fn carry(near: TcpStream, target: SocketAddr, delay: Duration) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    // Small messages are not to wait for each other beside the delay.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    tokio::select! {
        biased;
        () = pass(near_in, far_out, delay) => {}
        () = pass(far_in, near_out, delay) => {}
    }
}

async fn pass(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, delay: Duration) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Arc<[u8]>)>(PIECES_MAX);
    let read = async move {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(len @ 1..) = from.read(&mut piece).await {
            if sender.send((Instant::now() + delay, piece[..len].into())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        let mut due = VecDeque::new();
        while let Some((at, piece)) = match due.pop_front() {
            Some(next) => Some(next),
            None => pieces.recv().await,
        } {
            tokio::time::sleep_until(at).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
            due.extend(std::iter::from_fn(|| pieces.try_recv().ok()));
        }
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_comes_by_a_gateway_is_late_whole_and_in_order_and_nothing_comes_by_one_that_is_cut() {
        let target = TcpListener::bind("127.0.0.1:0").expect("a port");
        let gateways = Gateways::new().expect("a thread");
        let delay = Duration::from_millis(30);
        let gateway = gateways.open(target.local_addr().expect("an address"), delay).expect("a port");
        let mut near = TcpStream::connect(gateway.address).expect("a connection");
        let (mut far, _) = target.accept().expect("a connection");
        let begin = std::time::Instant::now();
        let sent: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
        let expected = sent.clone();
        let sending = std::thread::spawn(move || near.write_all(&sent).map(|()| near));
        let mut got = vec![0; expected.len()];
        far.read_exact(&mut got).expect("all of it");
        assert!(begin.elapsed() >= delay && got == expected);
        let mut near = sending.join().expect("it ends").expect("sent");

        gateway.cut(true);
        assert_eq!(near.read(&mut [0; 1]).unwrap_or_default(), 0, "it has ended");
        let mut refused = TcpStream::connect(gateway.address).expect("it listens still");
        assert_eq!(refused.read(&mut [0; 1]).unwrap_or_default(), 0, "nobody answers");
        gateway.cut(false);
        TcpStream::connect(gateway.address).expect("a connection").write_all(b"again").expect("sent");
        let mut again = [0; 5];
        target.accept().expect("a connection").0.read_exact(&mut again).expect("all of it");
        assert_eq!(&again, b"again");
    }
}
