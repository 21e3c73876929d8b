//! Answers on their way out: bytes that are copied, and values that are not.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};
use tailwater_cache::{SetError, UpdateError};

use crate::limits::APART_BYTES_MIN;
use crate::request::TOO_LARGE;

/// What is to be sent, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pieces: Vec<Bytes>,
    /// What is behind the last piece.
    tail: BytesMut,
    bytes: usize,
}

impl Replies {
    /// Bytes that are to be sent.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// One line.
    pub fn line(&mut self, line: &str) {
        self.put(line.as_bytes());
        self.put(b"\r\n");
    }

    /// A line that is made up of values.
    pub fn format(&mut self, line: std::fmt::Arguments<'_>) {
        let before = self.tail.len();
        // Bytes take all that is written.
        let _ = self.tail.write_fmt(line);
        self.bytes += self.tail.len() - before;
    }

    /// Some bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    /// A value, with the end of its block.
    pub fn value(&mut self, value: &Bytes) {
        if value.len() < APART_BYTES_MIN {
            self.put(value);
        } else {
            self.cut();
            self.bytes += value.len();
            self.pieces.push(value.clone());
        }
        self.put(b"\r\n");
    }

    /// All of it, which is taken away.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.cut();
        self.bytes = 0;
        std::mem::take(&mut self.pieces)
    }

    fn cut(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
        }
    }
}

/// What a client is told of an update that did not come about.
pub(crate) fn line_of_update(error: &UpdateError) -> String {
    match error {
        UpdateError::TooLarge { .. } => TOO_LARGE.to_owned(),
        UpdateError::NotApplied(_)
        | UpdateError::Contended
        | UpdateError::Immutable
        | UpdateError::Unknown => {
            format!("SERVER_ERROR {error}")
        }
    }
}

/// What a client is told of a SET that no quorum acknowledged.
pub(crate) fn line_of_set(error: &SetError) -> String {
    match error {
        SetError::TooLarge { .. } => TOO_LARGE.to_owned(),
        SetError::Overloaded => "SERVER_ERROR out of memory storing object".to_owned(),
        _ if error.is_unknown() => format!("SERVER_ERROR it is not known whether it came about: {error}"),
        _ => format!("SERVER_ERROR {error}"),
    }
}
