//! A connection in TLS without its socket: for who moves its bytes in a way of its own.
//!
//! Bytes of the socket go in and what they say comes out, and the other way round. Nothing here waits.

use std::io::{self, BufRead, Write};

use bytes::BytesMut;
use rustls::Connection;

use crate::trust;

/// Both ends of a connection use it alike, once the handshake is done.
pub struct Channel {
    /// More than a kilobyte.
    connection: Box<Connection>,
    /// The other end has said that it will say nothing more.
    is_over: bool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = Box::new(connection.into());
        // Its user bounds what it gives.
        connection.set_buffer_limit(None);
        Self { connection, is_over: false }
    }

    /// Takes what came from the socket, all of it, and appends to `plain` what it says, which is not longer. Of what
    /// came last 16 KiB and some bytes may stay in here, until the rest of them comes. To be called with nothing once
    /// at the beginning: the other end may have said something together with its handshake.
    ///
    /// # Errors
    /// Of kind `InvalidData`, in words, if the other end sent what it should not, or does not go on: the connection is
    /// over.
    pub fn open(&mut self, mut sealed: &[u8], plain: &mut BytesMut) -> io::Result<()> {
        loop {
            // What is held would otherwise be too much for it.
            self.connection.process_new_packets().map_err(|error| self.refused(&error))?;
            self.drain(plain)?;
            if sealed.is_empty() || self.is_over {
                return Ok(());
            }
            if self.connection.read_tls(&mut sealed)? == 0 {
                let why = "the other end sent a record longer than there are any";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }

    /// Whether the other end has said that nothing more comes.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Encrypts: what is to be sent then is in here.
    ///
    /// # Errors
    /// If the connection may not be used for longer, which it is after more bytes than anybody sends.
    pub fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(plain)
    }

    /// Appends to `sealed` what is to be sent.
    pub fn take_sealed(&mut self, sealed: &mut Vec<u8>) {
        while self.connection.wants_write() {
            self.connection.write_tls(sealed).expect("a vector takes everything");
        }
    }

    fn drain(&mut self, plain: &mut BytesMut) -> io::Result<()> {
        let mut reader = self.connection.reader();
        loop {
            let len = match reader.fill_buf() {
                Ok([]) => {
                    self.is_over = true;
                    return Ok(());
                }
                Ok(chunk) => {
                    plain.extend_from_slice(chunk);
                    chunk.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            reader.consume(len);
        }
    }

    fn refused(&self, error: &rustls::Error) -> io::Error {
        let why = match &*self.connection {
            Connection::Client(_) => trust::refusal(error),
            Connection::Server(_) => error.to_string(),
        };
        io::Error::new(io::ErrorKind::InvalidData, why)
    }
}
