//! A TCP socket with TLS around it.
//!
//! What is written is encrypted at once, and waits in here until the socket takes it: at most [`SEALED_BYTES`] and what
//! comes around them. What is read comes into memory of the pool first, and decrypted from there to where it is wanted.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use bytes::BytesMut;
use parking_lot::Mutex;
use tailwater_tls::Channel;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::client::buffers::RECEIVE;
use crate::client::stream::try_receive;
use crate::limits::{RECORD_BYTES_MAX, SEALED_BYTES};

/// Memory of encrypted bytes that is kept for the next ones.
const KEPT_BYTES: usize = 64 << 10;

/// The client's end of a connection in TLS.
#[derive(Debug)]
pub(crate) struct SecuredStream {
    pub(super) socket: TcpStream,
    state: Mutex<SecuredState>,
}

#[derive(Debug)]
struct SecuredState {
    channel: Channel,
    unsent: Vec<u8>,
    /// How many of those were sent.
    sent: usize,
}

impl SecuredStream {
    /// Behind the handshake. The server says nothing before it is asked, so nothing was received yet.
    pub(crate) fn new(socket: TcpStream, channel: Channel) -> Self {
        Self { socket, state: Mutex::new(SecuredState { channel, unsent: Vec::new(), sent: 0 }) }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.state.lock().unsent.is_empty()
    }

    /// See `Stream::try_read_buf`; what is read is at most `bytes_max`, of which [`RECORD_BYTES_MAX`] are for what came
    /// before.
    ///
    /// # Errors
    /// Also of kind `InvalidData`, in words, if the server does not go on.
    pub(super) fn try_read_buf(&self, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
        let before = buffer.len();
        let at_once = bytes_max.saturating_sub(RECORD_BYTES_MAX).clamp(1, SEALED_BYTES);
        let mut sealed = RECEIVE.take(at_once);
        let received = loop {
            if self.state.lock().channel.is_over() {
                break Ok(0);
            }
            sealed.clear();
            let received = try_receive(&mut sealed, at_once, |receive| {
                self.socket.try_io(Interest::READABLE, || receive(self.socket.as_fd()))
            });
            match received {
                Ok(0) => break Ok(0),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = self.state.lock().channel.open(&sealed, buffer) {
                break Err(error);
            }
            if buffer.len() > before {
                break Ok(buffer.len() - before);
            }
        };
        RECEIVE.keep(sealed);
        received
    }

    /// Waits for some bytes.
    ///
    /// # Errors
    /// As of [`SecuredStream::try_read_buf`].
    pub(super) async fn read_some(&self, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            match self.try_read_buf(buffer, bytes_max + RECORD_BYTES_MAX) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// See `Stream::try_write`: what it takes of the pieces is not always with the socket yet.
    pub(super) fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let state = &mut *self.state.lock();
        state.flush(&self.socket)?;
        let mut taken = 0;
        for piece in pieces {
            let part = &piece[..piece.len().min(SEALED_BYTES - taken)];
            state.channel.seal(part)?;
            taken += part.len();
        }
        state.channel.take_sealed(&mut state.unsent);
        match state.flush(&self.socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(taken),
            flushed => flushed.map(|()| taken),
        }
    }
}

impl SecuredState {
    fn flush(&mut self, socket: &TcpStream) -> io::Result<()> {
        while self.sent < self.unsent.len() {
            match socket.try_write(&self.unsent[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        self.unsent.clear();
        self.unsent.shrink_to(KEPT_BYTES);
        Ok(())
    }
}
