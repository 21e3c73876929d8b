//! What stands for a connection in TLS in a build without: there is none.

use std::io;

use bytes::BytesMut;

/// A connection in TLS, of which a build without TLS has none.
#[derive(Debug)]
pub enum Channel {}

impl Channel {
    /// See the build that has them.
    ///
    /// # Errors
    /// None.
    pub fn open(&mut self, _: &[u8], _: &mut BytesMut) -> io::Result<()> {
        match *self {}
    }

    /// See the build that has them.
    pub fn is_over(&self) -> bool {
        match *self {}
    }

    /// See the build that has them.
    ///
    /// # Errors
    /// None.
    pub fn seal(&mut self, _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    /// See the build that has them.
    pub fn take_sealed(&mut self, _: &mut Vec<u8>) {
        match *self {}
    }
}
