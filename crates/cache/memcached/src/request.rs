//! Bytes of a connection to requests: pure, and never surprised.
//!
//! A request is a line, and behind some lines a block of data of the length that they say. [`RequestDecoder`] takes
//! bytes as they come, says how far it is, and skips what a line announced that can't be taken. It never panics on
//! bytes, and holds nothing but the head of the request that is next.

mod meta;
mod text;

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::{KEY_BYTES_MAX, LINE_BYTES_MAX, VALUE_BYTES_MAX};

pub use meta::{MetaFlags, MetaRequest, MetaVerb};
pub use text::{StoreVerb, TextRequest};

/// A request, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemcachedRequest {
    /// One of the text commands.
    Text(TextRequest),
    /// One of the meta commands.
    Meta(MetaRequest),
}

/// A line that a client is answered with, without its end.
pub type RefusalLine = &'static str;

/// What there is of a connection's next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of it.
    Request(MemcachedRequest),
    /// It is none; the client is told this, and may go on.
    Refused(RefusalLine),
    /// It is none, and nobody knows where the next one begins: the client is told this, and closed.
    Closed(RefusalLine),
    /// More bytes are needed. `data` is the length of the block that is to come, or 0.
    More {
        /// Bytes of the block, without its end.
        data: usize,
    },
}

pub(crate) const BAD_LINE: RefusalLine = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: RefusalLine = "CLIENT_ERROR bad data chunk";
pub(crate) const TOO_LARGE: RefusalLine = "SERVER_ERROR object too large for cache";
const TOO_LONG: RefusalLine = "CLIENT_ERROR line too long";
const UNKNOWN: RefusalLine = "ERROR";

/// What a line says.
enum LineRead {
    /// All there is.
    Whole(MemcachedRequest),
    /// A block of so many bytes follows.
    WithData(MemcachedRequest, usize),
    /// Refused; a block of so many bytes follows all the same, and is skipped with its end.
    Refused(RefusalLine, Option<usize>),
}

/// Takes a connection's bytes apart.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    /// A request whose block is to come, and the block's length.
    head: Option<(MemcachedRequest, usize)>,
    /// Bytes to come that nobody looks at.
    skip: usize,
    /// Bytes of the buffer in which there is no end of a line.
    searched: usize,
}

impl RequestDecoder {
    /// Whether a request has begun of which more is to come.
    pub fn has_begun(&self, buffer: &BytesMut) -> bool {
        self.head.is_some() || self.skip > 0 || !buffer.is_empty()
    }

    /// The next request of `buffer`, whose bytes it takes away.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Decoded {
        let skipped = self.skip.min(buffer.len());
        buffer.advance(skipped);
        self.skip -= skipped;
        if self.skip > 0 {
            return Decoded::More { data: 0 };
        }
        if self.head.is_none() {
            let line = match self.line(buffer) {
                Ok(line) => line,
                Err(Some(why)) => return Decoded::Closed(why),
                Err(None) => return Decoded::More { data: 0 },
            };
            match read_line(&line) {
                LineRead::Whole(request) => return Decoded::Request(request),
                LineRead::WithData(request, len) => self.head = Some((request, len)),
                LineRead::Refused(why, data) => {
                    self.skip = data.map_or(0, |data| data.saturating_add(2));
                    return Decoded::Refused(why);
                }
            }
        }
        let Some((request, len)) = self.head.take() else { return Decoded::Refused(UNKNOWN) };
        if buffer.len() < len + 2 {
            self.head = Some((request, len));
            return Decoded::More { data: len };
        }
        let data = buffer.split_to(len).freeze();
        let end = buffer.split_to(2);
        match &end[..] == b"\r\n" {
            true => Decoded::Request(request.with_data(data)),
            false => Decoded::Refused(BAD_CHUNK),
        }
    }

    /// The next line, without its end; why there will be none, or that it is not there yet.
    fn line(&mut self, buffer: &mut BytesMut) -> Result<Bytes, Option<RefusalLine>> {
        // TLS's first byte, and the binary protocol's.
        if let [0x16 | 0x80, ..] = buffer[..] {
            return Err(Some("ERROR neither TLS nor the binary protocol is spoken here"));
        }
        let Some(end) = buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = buffer.len();
            return Err((buffer.len() > LINE_BYTES_MAX).then_some(TOO_LONG));
        };
        // Also if it has come with its end: how it was cut on the way says nothing of it.
        if self.searched + end > LINE_BYTES_MAX {
            return Err(Some(TOO_LONG));
        }
        let mut line = buffer.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        line.truncate(line.len() - 1);
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        Ok(line)
    }
}

impl MemcachedRequest {
    fn with_data(mut self, block: Bytes) -> Self {
        match &mut self {
            Self::Text(TextRequest::Store { data, .. }) => *data = block,
            Self::Meta(request) => request.data = block,
            Self::Text(_) => {}
        }
        self
    }
}

fn read_line(line: &Bytes) -> LineRead {
    let mut words = words(line);
    let Some(verb) = words.next() else { return LineRead::Refused(UNKNOWN, None) };
    match MetaVerb::of(&verb) {
        Some(verb) => meta::read(verb, words),
        None => text::read(&verb, words),
    }
}

/// The words of a line, which spaces part.
fn words(line: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).map(|word| line.slice_ref(word))
}

/// A key of the text protocol.
fn key(word: Bytes) -> Option<Bytes> {
    let is_key = !word.is_empty() && word.len() <= KEY_BYTES_MAX && !word.iter().any(u8::is_ascii_control);
    is_key.then_some(word)
}

fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The length of a block; what is wrong with it, and how much of it comes all the same.
fn data_len(word: &[u8]) -> Result<usize, (RefusalLine, Option<usize>)> {
    let given: i64 = number(word).ok_or((BAD_LINE, None))?;
    match usize::try_from(given) {
        Ok(len) if len <= VALUE_BYTES_MAX => Ok(len),
        Ok(len) => Err((TOO_LARGE, Some(len))),
        Err(_) => Err((BAD_LINE, None)),
    }
}

#[cfg(test)]
mod tests;
