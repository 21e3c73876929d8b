//! What both ends do with their sockets: options, and descriptors passed along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, sockopt,
};

use crate::limits::REGIONS_MAX;

/// Descriptors in one message: every region's, and the doorbell's.
const FILES_MAX: usize = REGIONS_MAX + 1;

/// A peer's machine that went away without a word is noticed after about this long, where data is under way.
const TCP_USER_TIMEOUT_MS_MAX: u32 = 30_000;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Sets what every TCP connection of ours has, at both ends: before it is one, on the socket that connects or listens.
/// A connection that began with bbr is paced for as long as it lives, whatever controls its congestion later.
pub(crate) fn tune_tcp(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, TCP_USER_TIMEOUT_MS_MAX)?;
    // bbr paces to what it believes the path carries, which on loopback is a third of what it does carry. Where
    // cubic is not there, the default has to do.
    let _ = sockopt::set_tcp_congestion(socket, "cubic");
    Ok(())
}

/// Sends what the socket takes of `bytes`, and `files` with the first byte.
///
/// # Errors
/// Of kind `WouldBlock` if nothing, and then no file either, was taken.
pub(crate) fn send_with_files(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    assert!(files.len() <= FILES_MAX && !bytes.is_empty());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(files)), "the space is for this many");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives into `buffer`, and appends the descriptors that came along.
///
/// # Errors
/// Of kind `InvalidData` if there were more descriptors than a server may have regions.
pub(crate) fn receive_with_files(
    socket: impl AsFd,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for control in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = control {
            files.extend(passed);
        }
    }
    if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) || files.len() > FILES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
    }
    Ok(message.bytes)
}
