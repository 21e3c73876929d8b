//! A connected stream socket of either family, on tokio's reactor.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use bytes::{BufMut, BytesMut};
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// The client's end of a connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.readable().await,
            Self::Unix(socket) => socket.readable().await,
        }
    }

    /// As [`Stream::readable`], once as many bytes are there, as far as the kernel sees to that; `before` is what it
    /// was told last.
    pub(crate) async fn readable_from(&self, bytes: usize, before: &mut usize) -> io::Result<()> {
        if let Self::Tcp(socket) = self
            && std::mem::replace(before, bytes) != bytes
        {
            set_readable_from(socket.as_fd(), bytes);
        }
        self.readable().await
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.writable().await,
            Self::Unix(socket) => socket.writable().await,
        }
    }

    /// Reads at most `bytes_max` into the spare capacity of `buffer`; an error of kind `WouldBlock` if there is
    /// nothing. A receive that finds fewer has emptied the socket, and is noted as that: the next one waits without
    /// another look.
    pub(crate) fn try_read_buf(&self, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
        let mut emptied = None;
        let mut receive = |socket: BorrowedFd<'_>| {
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
        };
        let received = match self {
            Self::Tcp(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_fd())),
            Self::Unix(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_fd())),
        };
        emptied.map_or(received, Ok)
    }

    /// Writes what fits of these pieces; an error of kind `WouldBlock` if nothing does.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_write_vectored(pieces),
            Self::Unix(socket) => socket.try_write_vectored(pieces),
        }
    }

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
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
            let received = match self {
                Self::Tcp(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_fd())),
                Self::Unix(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_fd())),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }
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
