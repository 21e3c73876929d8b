//! A connected stream socket of either family, on tokio's reactor.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

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

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.writable().await,
            Self::Unix(socket) => socket.writable().await,
        }
    }

    /// Reads at most `bytes_max` into the spare capacity of `buffer`; an error of kind `WouldBlock` if there is nothing. A
    /// receive that finds fewer has emptied the socket, and is noted as that: the next one waits without another look.
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
