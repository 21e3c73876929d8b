//! A connected stream socket of either family, on tokio's reactor.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use bytes::{BufMut, BytesMut};
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::client::secured::SecuredStream;
use crate::limits::RECORD_BYTES_MAX;

/// The client's end of a connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Secured(SecuredStream),
    Unix(UnixStream),
}

impl Stream {
    /// Has `operate` try something on the socket that the reactor believes to be ready for it.
    fn try_io<T>(
        &self,
        interest: Interest,
        mut operate: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::Tcp(socket) => socket.try_io(interest, || operate(socket.as_fd())),
            Self::Secured(secured) => secured.socket.try_io(interest, || operate(secured.socket.as_fd())),
            Self::Unix(socket) => socket.try_io(interest, || operate(socket.as_fd())),
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.readable().await,
            Self::Secured(secured) => secured.socket.readable().await,
            Self::Unix(socket) => socket.readable().await,
        }
    }

    /// As [`Stream::readable`], once as many bytes are there, as far as the kernel sees to that; `before` is what it
    /// was told last.
    pub(crate) async fn readable_from(&self, bytes: usize, before: &mut usize) -> io::Result<()> {
        let (socket, bytes) = match self {
            Self::Tcp(socket) => (socket, bytes),
            // A part of the record under way may have come before.
            Self::Secured(secured) => (&secured.socket, bytes.saturating_sub(RECORD_BYTES_MAX).max(1)),
            Self::Unix(socket) => return socket.readable().await,
        };
        if std::mem::replace(before, bytes) != bytes {
            set_readable_from(socket.as_fd(), bytes);
        }
        socket.readable().await
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.writable().await,
            Self::Secured(secured) => secured.socket.writable().await,
            Self::Unix(socket) => socket.writable().await,
        }
    }

    /// Room that [`Stream::try_read_buf`] is to be given beyond what is wanted: for what came before and was not whole.
    pub(crate) fn slack(&self) -> usize {
        match self {
            Self::Secured(_) => RECORD_BYTES_MAX,
            Self::Tcp(_) | Self::Unix(_) => 0,
        }
    }

    /// Reads at most `bytes_max` into the spare capacity of `buffer`; an error of kind `WouldBlock` if there is
    /// nothing. A receive that finds fewer has emptied the socket, and is noted as that: the next one waits without
    /// another look.
    pub(crate) fn try_read_buf(&self, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
        match self {
            Self::Secured(secured) => secured.try_read_buf(buffer, bytes_max),
            Self::Tcp(_) | Self::Unix(_) => {
                try_receive(buffer, bytes_max, |receive| self.try_io(Interest::READABLE, receive))
            }
        }
    }

    /// Writes what fits of these pieces; an error of kind `WouldBlock` if nothing does.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write_vectored(pieces),
            Self::Secured(secured) => secured.try_write(pieces),
            Self::Unix(socket) => socket.try_write_vectored(pieces),
        }
    }

    /// Whether the socket has everything that was written. If not, [`Stream::try_write`] goes on with it, also with
    /// nothing.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Self::Secured(secured) => secured.is_flushed(),
            Self::Tcp(_) | Self::Unix(_) => true,
        }
    }

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || !self.is_flushed() {
            self.writable().await?;
            match self.try_write(&[IoSlice::new(bytes)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until `receive` finds something on the socket.
    pub(crate) async fn read_with(
        &self,
        mut receive: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            self.readable().await?;
            match self.try_io(Interest::READABLE, &mut receive) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// Ends the connection in both directions.
    pub(crate) fn shut_down(&self) {
        // It fails where it has ended.
        let _ = match self {
            Self::Tcp(socket) => rustix::net::shutdown(socket, rustix::net::Shutdown::Both),
            Self::Secured(secured) => rustix::net::shutdown(&secured.socket, rustix::net::Shutdown::Both),
            Self::Unix(socket) => rustix::net::shutdown(socket, rustix::net::Shutdown::Both),
        };
    }
}

/// Receives at most `bytes_max` into the spare capacity of `buffer`, as [`Stream::try_read_buf`] says; `try_io` is the
/// socket's.
pub(super) fn try_receive(
    buffer: &mut BytesMut,
    bytes_max: usize,
    try_io: impl FnOnce(&mut dyn FnMut(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut emptied = None;
    let received = try_io(&mut |socket| {
        let room = buffer.spare_capacity_mut();
        let room_bytes = room.len().min(bytes_max);
        let room = &mut room[..room_bytes];
        let ((received, _), _) = rustix::net::recv(socket, room, RecvFlags::empty())?;
        let count = received.len();
        // SAFETY: `recv` has written as many bytes behind what `buffer` had.
        unsafe { buffer.advance_mut(count) };
        if count > 0 && count < room_bytes {
            emptied = Some(count);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(count)
    });
    emptied.map_or(received, Ok)
}

/// A TCP socket that has fewer than `bytes` bytes counts as one that has none, unless no more will come. The kernel
/// makes the room that it takes to have as many, and takes fewer for enough if it can't. A wish: where it is not taken,
/// every byte counts.
fn set_readable_from(socket: BorrowedFd<'_>, bytes: usize) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let len = size_of_val(&bytes) as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), (&raw const bytes).cast());
    // SAFETY: `value` points to `len` bytes that live until the call is over, and the kernel only reads them; the
    // descriptor is borrowed for as long.
    let _ = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, len) };
}
