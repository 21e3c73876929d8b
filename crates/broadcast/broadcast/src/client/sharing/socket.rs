//! How two listeners are connected. In one network namespace, which is most often that of one host, they meet at an
//! abstract Unix socket named after the one that is connected to: a message there takes the kernel half the time that
//! TCP takes. All others connect through TCP. Whoever is there says who it is, one way or the other.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Buf;
use tailwater_env::{Env, Task};
use tailwater_tls::PeerWriteHalf;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

use crate::frame;
use crate::region::Member;

/// Pieces that are written at once.
const SLICES_MAX: usize = 64;

/// Where others connect to a listener.
pub(super) struct Door {
    tcp: TcpListener,
    unix: Option<UnixListener>,
}

impl Door {
    pub(super) async fn bind(at: SocketAddr) -> io::Result<Self> {
        Ok(Self { tcp: TcpListener::bind(at).await?, unix: None })
    }

    /// The address for TCP.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Opens it for those of this host, too. Where that can't be they use TCP.
    pub(super) fn open_for_host(&mut self, id: u64) {
        match UnixListener::bind(name(id)) {
            Ok(unix) => self.unix = Some(unix),
            Err(error) => tracing::debug!(%error, "listeners of this host connect through TCP"),
        }
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<(ReadHalf, WriteHalf)> {
        let unix = async {
            match &self.unix {
                Some(unix) => unix.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            accepted = unix => Ok(split_unix(accepted?.0)),
            accepted = self.tcp.accept() => split_tcp(accepted?.0),
        }
    }
}

/// Connects to another listener.
pub(super) async fn connect(to: &Member, host_sockets: bool) -> io::Result<(ReadHalf, WriteHalf)> {
    if host_sockets && let Ok(stream) = UnixStream::connect(name(to.id)).await {
        return Ok(split_unix(stream));
    }
    split_tcp(TcpStream::connect(&*to.address).await?)
}

/// Of the abstract socket.
fn name(id: u64) -> String {
    format!("\0tailwater-listener-{id:016x}")
}

fn split_tcp(stream: TcpStream) -> io::Result<(ReadHalf, WriteHalf)> {
    frame::set_up(&stream)?;
    let (read, write) = stream.into_split();
    Ok((ReadHalf::Tcp(read), WriteHalf::Tcp(write)))
}

fn split_unix(stream: UnixStream) -> (ReadHalf, WriteHalf) {
    let (read, write) = stream.into_split();
    (ReadHalf::Unix(read), WriteHalf::Unix(write))
}

/// What comes over a connection.
#[derive(Debug)]
pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(context, buffer),
            Self::Unix(half) => Pin::new(half).poll_read(context, buffer),
        }
    }
}

/// Where what is to be sent over a connection goes.
#[derive(Debug)]
pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    /// Into a socket of this process, and from there into TLS by a task: what TLS has taken may not have left, of which
    /// nobody would hear.
    #[allow(dead_code, reason = "the task ends when it is dropped")]
    Secured(unix::OwnedWriteHalf, Task),
}

impl WriteHalf {
    /// That of the connection to the proxy.
    ///
    /// # Errors
    /// If the system has no socket left.
    pub(super) fn to_proxy(env: &Env, half: PeerWriteHalf) -> io::Result<Self> {
        let mut secured = match half {
            PeerWriteHalf::Plain(half) => return Ok(Self::Tcp(half)),
            #[allow(unreachable_patterns, reason = "a build without TLS has no other")]
            secured => secured,
        };
        let (ours, theirs) = UnixStream::pair()?;
        let (_, write) = ours.into_split();
        let (mut read, _) = theirs.into_split();
        let pump = async move {
            // An error is the connection's end, of which whoever reads hears as well.
            let _ = tokio::io::copy(&mut read, &mut secured).await;
        };
        Ok(Self::Secured(write, env.spawn("broadcast-sharing-tls", pump)))
    }

    /// Waits until it takes something, or has failed.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            Self::Unix(half) | Self::Secured(half, _) => half.writable().await,
        }
    }

    /// Writes as much as it takes at once.
    pub(super) fn write_some(&self, from: &mut impl Buf) -> io::Result<()> {
        while from.has_remaining() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = from.chunks_vectored(&mut slices);
            let written = match self {
                Self::Tcp(half) => half.try_write_vectored(&slices[..count]),
                Self::Unix(half) | Self::Secured(half, _) => half.try_write_vectored(&slices[..count]),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => from.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of it.
    pub(super) async fn write_all(&self, mut from: impl Buf) -> io::Result<()> {
        while from.has_remaining() {
            self.writable().await?;
            self.write_some(&mut from)?;
        }
        Ok(())
    }
}
