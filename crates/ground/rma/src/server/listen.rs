//! Listening sockets, and what comes in at them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect,
    getsockname, listen, socket_with, sockopt,
};
use tailwater_access::Peer;
use tailwater_tls::Channel;

use super::groups::groups_of;
use crate::socket::tune_tcp;

/// Connections that the kernel completes before we accept them.
const BACKLOG: i32 = 1024;

/// A connection that a client just made.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Arc<Peer>,
    /// Where it came in: that is all by which those that come to different Unix sockets differ.
    pub(crate) at: Arc<str>,
    /// Descriptors can be passed over it.
    pub(crate) unix: bool,
    /// What is between it and its session.
    pub(crate) channel: Option<Channel>,
}

/// A socket that clients connect to.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp { socket: OwnedFd, address: SocketAddr, at: Arc<str> },
    Unix { socket: OwnedFd, name: SocketFile, at: Arc<str> },
}

impl Listener {
    /// Listens at an IP address; port 0 lets the kernel choose.
    pub(crate) fn tcp(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, flags(), None)?;
        // A server that is restarted takes its port again while connections of its predecessor linger.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // What it accepts has all of it from the beginning.
        tune_tcp(&socket)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Self::Tcp { socket, address, at: format!("tcp:{address}").into() })
    }

    /// Listens at a path. A socket file that nobody listens at any more, left by a process that was killed, is
    /// replaced.
    ///
    /// # Errors
    /// Of kind `AddrInUse` if somebody listens there, or what is there is no socket.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        if is_abandoned(path, &address)? {
            rustix::fs::unlink(path)?;
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags(), None)?;
        bind(&socket, &address)?;
        let name = SocketFile::of(path)?;
        listen(&socket, BACKLOG)?;
        Ok(Self::Unix { socket, name, at: format!("unix:{}", path.display()).into() })
    }

    /// A Unix socket's descriptor, and its name, which goes with it; `None` of another one.
    pub(crate) fn into_unix(self) -> Option<(OwnedFd, SocketFile)> {
        match self {
            Self::Unix { socket, name, .. } => Some((socket, name)),
            Self::Tcp { .. } => None,
        }
    }

    /// The next connection; an error of kind `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<AcceptedConnection> {
        let (socket, from) = acceptfrom_with(self, flags())?;
        match self {
            Self::Tcp { at, .. } => {
                let from = from.and_then(|from: SocketAddrAny| SocketAddr::try_from(from).ok());
                let address = from.map_or_else(|| "tcp:?".to_owned(), |from| format!("tcp:{from}"));
                Ok(accepted(socket, Peer::anonymous(address), at, false))
            }
            Self::Unix { at, .. } => {
                let process = sockopt::socket_peercred(&socket)?;
                let address = format!("unix:pid {}", process.pid.as_raw_nonzero());
                let others = groups_of(socket.as_fd())?;
                let peer = Peer::of_process(address, process.uid.as_raw(), process.gid.as_raw(), &others);
                Ok(accepted(socket, peer, at, true))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp { socket, .. } | Self::Unix { socket, .. } => socket.as_fd(),
        }
    }
}

fn flags() -> SocketFlags {
    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC
}

fn accepted(socket: OwnedFd, peer: Peer, at: &Arc<str>, unix: bool) -> AcceptedConnection {
    AcceptedConnection { socket, peer: Arc::new(peer), at: Arc::clone(at), unix, channel: None }
}

/// Whether a socket file is there that nobody listens at.
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Socket => {
            let why = format!("{} is there and is no socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        Ok(_) => {}
    }
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags(), None)?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        _ => {
            let why = format!("another process listens at {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
    }
}

/// A socket's name in the file system, removed on drop unless somebody else has taken it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // At worst a file stays that the next server finds abandoned.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
